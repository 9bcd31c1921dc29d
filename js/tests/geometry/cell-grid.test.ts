import { describe, expect, test } from "vitest";
import {
  between,
  type CellGrid,
  cellGridOf,
  cellOf,
  cellsInView,
  cellUnder,
  centered,
  MOST_BINS,
  pitchOf,
  placesInView,
  placesOf,
  type Reach,
  reachOf,
  refitted,
  startOf,
  within,
  zoomedAt,
  zoomFor,
} from "../../src/geometry/cell-grid";
import { layoutFigure } from "../../src/geometry/layout";
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
