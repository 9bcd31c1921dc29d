import { describe, expect, test } from "vitest";
import {
  between,
  type CellGrid,
  cellGridOf,
  cellOf,
  cellsInView,
  cellUnder,
  centered,
  coveredAt,
  MOST_BINS,
  pitchOf,
  placesInView,
  placesOf,
  type Reach,
  reachOf,
  refitted,
  startOf,
  within,
  withWholeCells,
  zoomedAt,
  zoomFor,
} from "../../src/geometry/cell-grid";
import { type Figure, layoutFigure } from "../../src/geometry/layout";
import { WHOLE } from "../../src/geometry/viewport";
import { random } from "../helpers/states.ts";

const LABELS = { query: 50, key: 50, keys: () => 0, keyTicks: true, queryTicks: true };

function headOf(queries: number, keys = queries, { width = 1200, dpr = 1 } = {}) {
  const picture = { queries, keys, queryBin: Math.ceil(queries / 512), keyBin: Math.ceil(keys / 512) };
  const [rows, columns] = [Math.ceil(queries / picture.queryBin), Math.ceil(keys / picture.keyBin)];
  const figure = layoutFigure({ width, rows, columns, labels: LABELS, dpr });
  const reach = reachOf(picture, figure, 1);
  return {
    picture,
    figure,
    reach,
    at: (view = WHOLE) => cellGridOf(reach, view, picture.queryBin * picture.keyBin === 1),
  };
}

const SIZES: [number, number][] = [
  [513, 513],
  [1000, 1000],
  [4097, 4097],
  [16_384, 16_384],
  [100_003, 100_003],
  [131_072, 131_072],
  [1_048_576, 1_048_576],
  [512, 1_048_576],
  [1_048_576, 77],
  [1, 65_536],
];

/** From the whole to the closest, around a random place. */
function* zooms(reach: Reach, seed = 3) {
  const next = random(seed);
  for (let k = 1; k < reach.most * 1.3; k *= 1.3) {
    const place = { query: next() * reach.y.total, key: next() * reach.x.total };
    yield centered(reach, WHOLE, Math.min(k, reach.most), place);
  }
}

describe.each(SIZES)("%s × %s", (queries, keys) => {
  const { picture, figure, reach, at } = headOf(queries, keys);
  const name = ({ k, x, y }: { k: number; x: number; y: number }) => `k ${k}, ${x}, ${y}`;

  test("whole, the cells are the picture's own", () => {
    const { rows, columns, levels } = at();
    expect(levels).toBeNull();
    expect([rows.bin, columns.bin]).toEqual([picture.queryBin * figure.fold, picture.keyBin * figure.fold]);
    expect([rows.cell, columns.cell]).toEqual([figure.cellHeight, figure.cellWidth]);
  });

  test("zoomed, at most 384 bins of a long axis are in view, none finer than a pixel, none coarser than the picture's", () => {
    for (const view of zooms(reach)) {
      const { rows, columns, levels } = at(view);
      for (const [axis, own] of [
        [rows, picture.queryBin * figure.fold],
        [columns, picture.keyBin * figure.fold],
      ] as const) {
        expect(axis.bin, name(view)).toBeLessThanOrEqual(own);
        const { start, stop } = cellsInView(axis);
        if (levels !== null && own > 1) expect(stop - start, name(view)).toBeLessThanOrEqual(MOST_BINS + 1);
        if (levels !== null && axis.bin > 1) expect(axis.cell, name(view)).toBeGreaterThanOrEqual(1 - 1e-9);
        if (levels !== null) expect(Math.log2(axis.bin) % 1, name(view)).toBe(0);
      }
    }
  });

  test("at the closest a cell of the matrix is 44 px or its line is tall enough already, and never more", () => {
    const { rows, columns } = at({ k: reach.most, x: 0, y: 0 });
    expect([rows.bin, columns.bin]).toEqual([1, 1]);
    expect(Math.max(rows.pitch, columns.pitch)).toBeCloseTo(44, 9);
    expect(Math.min(rows.pitch, columns.pitch)).toBeGreaterThanOrEqual(22);
  });

  test("what is drawn at a place is found there, at any zoom", () => {
    const next = random(11);
    for (const view of zooms(reach, 5)) {
      const { rows, columns } = at(view);
      for (const axis of [rows, columns]) {
        const { start, stop } = cellsInView(axis);
        const index = Math.min(stop - 1, start + Math.floor(next() * (stop - start)));
        const middle = axis.offset + (index + 0.5) * axis.cell;
        expect(cellUnder(axis, middle), name(view)).toBe(index);
        const places = placesOf(axis, index);
        expect([cellOf(axis, places.start), cellOf(axis, places.stop - 1)], name(view)).toEqual([index, index]);
        const inView = placesInView(axis);
        expect(inView.start, name(view)).toBeGreaterThanOrEqual(start * axis.bin);
        expect(inView.stop, name(view)).toBeLessThanOrEqual(Math.min(axis.total, stop * axis.bin));
      }
    }
  });

  test("nothing outside the matrix comes into view", () => {
    for (const k of [1, 1.7, 40, reach.most]) {
      for (const far of [-1e12, 1e12]) {
        const { x, y } = within(reach, { k, x: far, y: far });
        for (const [axis, offset] of [
          [reach.x, x],
          [reach.y, y],
        ] as const) {
          expect(offset).toBeLessThanOrEqual(0);
          const end = offset + axis.total * pitchOf(axis, k);
          expect(end).toBeGreaterThanOrEqual(Math.min(axis.size, axis.total * pitchOf(axis, k)) - 1e-6);
        }
      }
    }
  });
});

describe("at 1,048,576 tokens", () => {
  const { reach, at } = headOf(1_048_576, 1_048_576, { dpr: 2 });
  const deep = (query: number, key: number) => centered(reach, WHOLE, zoomFor(reach, 26), { query, key });

  test("edges are whole device pixels and cells 26 px, up to the last token", () => {
    for (const place of [0, 777_777, 1_048_575]) {
      const { rows, columns } = at(deep(place, place));
      for (const axis of [rows, columns]) {
        const { start, stop } = cellsInView(axis);
        for (let index = start; index < stop; index++) {
          const from = startOf(axis, index, 2);
          expect(from * 2).toBe(Math.round(from * 2));
          expect(Math.abs(startOf(axis, index + 1, 2) - from - 26)).toBeLessThanOrEqual(0.5);
        }
      }
    }
  });

  test("a thousand pans and zooms around a place do not drift", () => {
    const next = random(2);
    let view = deep(1_000_001, 999_983);
    const before = at(view);
    const point = { x: 200.3, y: 111.7 };
    const query = (cellGrid: CellGrid) => (point.y - cellGrid.rows.offset) / cellGrid.rows.pitch;
    const start = query(before);
    for (let step = 0; step < 1000; step++) {
      const factor = 0.5 + next();
      view = zoomedAt(reach, view, Math.min(reach.most, view.k * factor), point);
      if (view.k < 1000) view = zoomedAt(reach, view, zoomFor(reach, 26), point);
      const by = Math.round(next() * 40 - 20);
      view = within(reach, { ...view, x: view.x + by });
      view = within(reach, { ...view, x: view.x - by });
    }
    expect(Math.abs(query(at(view)) - start)).toBeLessThan(1e-3);
  });

  test("a place that is gone to is in the middle, in single cells", () => {
    const cellGrid = at(deep(524_289, 31));
    expect([cellGrid.rows.bin, cellGrid.columns.bin]).toEqual([1, 1]);
    expect(cellUnder(cellGrid.rows, cellGrid.rows.size / 2)).toBe(524_289);
    expect(cellsInView(cellGrid.columns).start).toBeLessThanOrEqual(31);
  });
});

describe("axes of different length", () => {
  test("few queries over many keys: lines stay as they are, keys grow to 44 px", () => {
    const { reach, at } = headOf(4, 131_072);
    const before = at();
    const after = at({ k: reach.most, x: 0, y: 0 });
    expect(after.rows.cell).toBe(before.rows.cell);
    expect(after.columns).toMatchObject({ bin: 1 });
    expect(after.columns.pitch).toBeCloseTo(44, 9);
  });

  test("512 queries over 1,048,576 keys: each axis stops at 44 px, the zoom goes on for the other", () => {
    const { reach, at } = headOf(512, 1_048_576);
    const middle = at({ k: 100, x: 0, y: 0 });
    expect(middle.rows).toMatchObject({ bin: 1 });
    expect(middle.rows.pitch).toBeCloseTo(44, 9);
    expect(middle.columns.bin).toBeGreaterThan(1);
    expect(at({ k: reach.most, x: 0, y: 0 }).rows.pitch).toBeCloseTo(44, 9);
  });

  test("zooming where one axis is at its largest leaves that axis where it is", () => {
    const { reach } = headOf(512, 1_048_576);
    const from = within(reach, { k: 200, x: -5000, y: -3000 });
    const to = zoomedAt(reach, from, 400, { x: 100, y: 333 });
    expect(to.y).toBe(from.y);
    expect((100 - to.x) / pitchOf(reach.x, 400)).toBeCloseTo((100 - from.x) / pitchOf(reach.x, 200), 6);
  });
});

describe("a picture that is the whole matrix", () => {
  test("is drawn from its own cells at any zoom, unfolded as soon as there are pixels", () => {
    const { figure, reach, at } = headOf(500, 500, { width: 480 });
    expect(figure.fold).toBeGreaterThan(1);
    for (const k of [1, 2, 3, 5, reach.most]) expect(at({ k, x: 0, y: 0 }).levels).toBeNull();
    expect(at({ k: 3 * figure.fold, x: 0, y: 0 }).rows.bin).toBe(1);
  });
});

describe("moving", () => {
  const { reach } = headOf(131_072);

  test("a flight begins and ends where it should, and what it goes to comes nearer all the way", () => {
    const from = centered(reach, WHOLE, 300, { query: 1000, key: 1000 });
    const to = centered(reach, from, 2000, { query: 9000, key: 500 });
    expect(between(reach, from, to, 0).x).toBeCloseTo(from.x, 3);
    expect(between(reach, from, to, 1).y).toBeCloseTo(to.y, 3);
    const away = (share: number) => {
      const { k, y } = between(reach, from, to, share);
      return Math.abs(9000.5 * pitchOf(reach.y, k) + y - reach.y.size / 2);
    };
    const path = [0, 0.2, 0.4, 0.6, 0.8, 1].map(away);
    expect(path).toEqual([...path].sort((a, b) => b - a));
  });

  test("an axis without a place keeps its middle", () => {
    const from = centered(reach, WHOLE, 64, { query: 70_000, key: 20_000 });
    const to = centered(reach, from, 640, { query: 3, key: null });
    const middle = (k: number, x: number) => (reach.x.size / 2 - x) / pitchOf(reach.x, k);
    expect(middle(to.k, to.x)).toBeCloseTo(middle(from.k, from.x), 6);
  });

  test("in a figure of another size the same place is seen at the same size; the whole stays whole", () => {
    const other = headOf(131_072, 131_072, { width: 800 }).reach;
    const view = centered(reach, WHOLE, 5000, { query: 70_000, key: 20_000 });
    const now = refitted(reach, other, view);
    expect(pitchOf(other.y, now.k)).toBeCloseTo(pitchOf(reach.y, view.k), 9);
    expect((other.y.size / 2 - now.y) / pitchOf(other.y, now.k)).toBeCloseTo(70_000.5, 3);
    expect(refitted(reach, other, WHOLE)).toBe(WHOLE);
  });

  test("close means at least 26 px a cell, as far as an axis goes", () => {
    expect(pitchOf(reach.x, zoomFor(reach, 26))).toBeCloseTo(26, 9);
    expect(zoomFor(reach, 1e9)).toBe(reach.most);
    expect(zoomFor(reach, 0)).toBe(1);
  });
});

describe("by hand", () => {
  const SIZE = { queries: 40, keys: 90, queryBin: 2, keyBin: 3 };
  const figureOf = (changes: Partial<Figure>, unit = 1) => {
    const lengths = { cellWidth: 6, cellHeight: 8, width: 90, height: 80, inset: 30, ...changes };
    const scaled = Object.entries(lengths).map(([name, one]) => [name, unit * (one as number)]);
    return { ...Object.fromEntries(scaled), fold: changes.fold ?? 2 } as Figure;
  };
  const own = { queries: 9, keys: 7, queryBin: 1, keyBin: 1 };
  /** One axis as the other, but for what is given. */
  const axis = { total: 10, own: 1, cell: 6, size: 60, most: 4, whole: 12 };
  const reachWith = (x: Partial<Reach["x"]>, y: Partial<Reach["y"]> = x, covered = { from: 99, width: 0 }): Reach => ({
    ...{ x: { ...axis, ...x }, y: { ...axis, ...y }, covered },
    most: 4,
  });

  test("cells stand for a bin, folded; each axis can be magnified to 44 px a token, letters of any size", () => {
    const reach = reachOf(SIZE, figureOf({}), 1);
    expect(reach.x).toEqual({ total: 90, own: 6, cell: 6, size: 90, most: 44, whole: 12 });
    expect(reach.y).toEqual({ total: 40, own: 4, cell: 8, size: 80, most: 22, whole: 12 });
    const larger = reachOf(SIZE, figureOf({}, 1.5), 1.5);
    expect([larger.x.most, larger.y.most, larger.most, larger.x.whole]).toEqual([44, 22, 44, 18]);
    expect(larger.covered.from).toBeCloseTo(reach.covered.from, 12);
  });

  test("lines stay as they are where they are taller than wide, and as tall as a line of letters", () => {
    const most = (cellWidth: number, cellHeight: number, unit = 1) =>
      reachOf(own, figureOf({ cellWidth, cellHeight, fold: 1 }), unit).y.most;
    expect([most(2, 22), most(2, 21), most(30, 30)]).toEqual([1, 44 / 21, 44 / 30]);
    expect([most(2, 44, 2), most(2, 30, 2)]).toEqual([1, 88 / 30]);
  });

  test("tokens cover the picture from where its cells are larger than 5 px, and never unzoomed", () => {
    const reach = reachOf(SIZE, figureOf({}), 1);
    expect([2.5, 2.5001, reach.covered.from].map((k) => coveredAt(reach, k))).toEqual([0, 30, 30]);
    expect(coveredAt(reachOf(SIZE, figureOf({ cellHeight: 40 }), 1), 1)).toBe(0);
    expect(coveredAt(reachOf(SIZE, figureOf({ cellHeight: 40 }), 1), 1.1)).toBe(30);
  });

  test("unzoomed a coarse picture has its own cells, though finer ones had room", () => {
    const reach = reachWith({ total: 64, own: 8, cell: 44, size: 352 });
    expect(cellGridOf(reach, WHOLE, false)).toMatchObject({ levels: null, rows: { bin: 8, count: 8 } });
  });

  test("as many bins as there may be in view are not too many", () => {
    const reach = reachWith({ total: 3072, own: 8, cell: 2, size: 2 * MOST_BINS });
    expect(cellGridOf(reach, { k: 4, x: 0, y: 0 }, false).levels).toEqual({ row: 1, column: 1 });
  });

  test("only zoomed, large cells that begin at the edge end with a whole one", () => {
    const sizes = (x: Partial<Reach["x"]>, k: number, offset = 0) =>
      cellGridOf(reachWith(x), { k, x: offset, y: offset }, true).rows.size;
    expect([sizes({ cell: 12.34, size: 123 }, 1), sizes({ size: 65 }, 2), sizes({}, 2)]).toEqual([123, 60, 60]);
    expect([sizes({ size: 65 }, 2, -5), sizes({ size: 65 }, 2, -12), sizes({ size: 65 }, 1.9)]).toEqual([65, 60, 65]);
    expect([sizes({ cell: 8, size: 65 }, 2, -15.5), sizes({ cell: 8, size: 65 }, 2, -15.6)]).toEqual([65, 64]);
  });

  test("cells of 12 px are brought to the edge; near the end of an axis its last cell is", () => {
    const moved = (offset: number, size = 60) => {
      const reach = reachWith({ size });
      const view = { k: 2, x: offset, y: offset };
      return withWholeCells(reach, view, cellGridOf(reach, view, true)).x;
    };
    expect([moved(-5), moved(-7), moved(-60)]).toEqual([0, -12, -60]);
    expect([moved(-48.5, 71), moved(-48, 71)]).toEqual([-60, -48]);
  });

  test("tokens cover columns alone: the middle of the rows is that of the picture", () => {
    const reach = reachWith({ total: 20, size: 120 }, { total: 20, size: 120 }, { from: 2, width: 30 });
    const { x, y } = centered(reach, WHOLE, 4, { query: 9, key: 9 });
    expect([x + 9.5 * 24, y + 9.5 * 24]).toEqual([75, 60]);
  });

  test("in a figure of another size the axis that goes on longer keeps the size of its cells", () => {
    const now = reachWith({ cell: 11, most: 4 });
    const before = [{ cell: 22, most: 2 }, { cell: 11, most: 4 }] as const; // biome-ignore format: one line
    const view = { k: 3, x: 0, y: 0 };
    expect(refitted(reachWith(before[0], before[1]), now, view).k).toBe(3);
    expect(refitted(reachWith(before[1], before[0]), now, view).k).toBe(3);
  });
});
