// @vitest-environment jsdom
import { beforeAll, describe, expect, test } from "vitest";
import { BLOCKED, decodePicture, MINUS_INF, NAN, NUMBER, PLUS_INF } from "../../src/contract/decode";
import type { ColorRange, Stage } from "../../src/contract/values";
import type { Patch } from "../../src/data/matrix";
import { foldGrid, paint, type Scene } from "../../src/draw/cells";
import { parseColor } from "../../src/draw/color";
import { makeColorMapper, type Paints, readPaints } from "../../src/draw/color-mapper";
import { MAX_CELL } from "../../src/geometry/layout";
import { WHOLE } from "../../src/geometry/viewport";
import { CAUSAL, type Cells, pictureOf, X } from "../helpers/states.ts";

let paints: { light: Paints; dark: Paints; diverging: Paints };
beforeAll(() => {
  const el = document.createElement("div");
  document.body.append(el);
  el.style.cssText = "background-color: #ffffff; color: #16181d; --aw-bad: #c02434; --aw-ink3: #707580";
  const light = readPaints(getComputedStyle(el), "light", "attnwidget");
  el.style.cssText = "background-color: #111213; color: #eceef2; --aw-bad: #ff6b6b; --aw-ink3: #858a95";
  const dark = readPaints(getComputedStyle(el), "dark", "attnwidget");
  paints = { light: light.sequential, dark: dark.sequential, diverging: light.diverging };
});

interface Drawn {
  readonly scene: Scene;
  readonly canvas: HTMLCanvasElement;
  /** A pixel of the canvas. */
  at(x: number, y: number): number[];
  /** A pixel of a cell: shares of its width and height. */
  in(row: number, column: number, across?: number, down?: number): number[];
  again(changes: Partial<Scene>): Drawn;
}

interface Wanted extends Partial<Scene> {
  cell?: number;
  range?: ColorRange;
  canvas?: HTMLCanvasElement;
}

async function draw(cells: Cells, { cell = 40, range = "head", ...changes }: Wanted = {}): Promise<Drawn> {
  const stage: Stage = changes.stage ?? "weights";
  const picture = await decodePicture(pictureOf(cells, { stage }));
  const grid = picture.grid!;
  const signed = stage !== "weights";
  return drawScene({
    grid,
    mapper: makeColorMapper(picture, grid, signed, "linear", range),
    paints: signed ? paints.diverging : paints.light,
    stage,
    cellWidth: cell,
    cellHeight: cell,
    viewport: WHOLE,
    width: cell * grid.columns,
    height: cell * grid.rows,
    dpr: 1,
    unit: 1,
    font: "sans-serif",
    numbers: false,
    exact: true,
    patch: null,
    ...changes,
  });
}

function drawScene(scene: Scene, canvas = document.createElement("canvas")): Drawn {
  paint(canvas, scene);
  const at = (x: number, y: number) => [
    ...canvas.getContext("2d")!.getImageData(Math.floor(x), Math.floor(y), 1, 1).data,
  ];
  return {
    scene,
    canvas,
    at,
    in: (row, column, across = 0.5, down = 0.5) =>
      at((column + across) * scene.cellWidth * scene.dpr, (row + down) * scene.cellHeight * scene.dpr),
    again: (changes) => drawScene({ ...scene, ...changes }, canvas),
  };
}

const rgba = (css: string) => {
  const { r, g, b } = parseColor(css)!;
  return [Math.round(r), Math.round(g), Math.round(b), 255];
};
const CLEAR = [0, 0, 0, 0];
/** The color that the table has for a value of the causal matrix, whose greatest is 1. */
const color = (value: number, table = paints.light) => rgba(table.css[Math.round(255 * value)]!);
const allowed = CAUSAL.flatMap((row, query) =>
  row.flatMap((value, key) => (value === null ? [] : [{ query, key, value: Math.fround(value) }])),
);

describe.each([
  ["tiles of 40 px", 40, 1],
  ["tiles of 12 px", 12, 1],
  ["tiles of 16 px at two device pixels", 16, 2],
  ["a raster of 10 px", 10, 1],
  ["a raster of 4 px", 4, 1],
  ["a raster of 3 px at two device pixels", 3, 2],
])("%s", (_, cell, dpr) => {
  test("each number has the table's color in the middle of its cell", async () => {
    const drawn = await draw(CAUSAL, { cell, dpr });
    for (const { query, key, value } of allowed) expect(drawn.in(query, key), `${query}, ${key}`).toEqual(color(value));
  });

  test("a dark page has the dark table", async () => {
    const drawn = await draw(CAUSAL, { cell, dpr, paints: paints.dark });
    for (const { query, key, value } of allowed) expect(drawn.in(query, key)).toEqual(color(value, paints.dark));
  });

  test("a masked cell has no tile: the page is seen", async () => {
    const drawn = await draw(CAUSAL, { cell, dpr });
    for (const [query, key] of [
      [0, 1],
      [0, 3],
      [1, 2],
      [2, 3],
    ] as const) {
      expect(drawn.in(query, key, 0.15, 0.15)).toEqual(CLEAR);
      expect(drawn.in(query, key, 0.85, 0.15)).toEqual(CLEAR);
    }
  });

  test("a zero is a tile", async () => {
    const drawn = await draw([[0, 1]], { cell, dpr });
    expect(drawn.in(0, 0)).toEqual(color(0));
  });

  test("NaN is red, +∞ solid ink, and neither is a number's color", async () => {
    const drawn = await draw([[Number.NaN, Number.POSITIVE_INFINITY, 1]], { cell, dpr });
    const edge = drawn.in(0, 0, 0.5, 0.12);
    expect(edge).toEqual(rgba(cell >= 6 ? paints.light.badTint : paints.light.bad));
    expect(drawn.in(0, 1, 0.5, 0.25)).toEqual(rgba(paints.light.ink));
  });

  test("scores: blue below zero, orange above, zero in between", async () => {
    const drawn = await draw([[-2, 0, 2]], { cell, dpr, stage: "scores" });
    expect(drawn.in(0, 0)).toEqual(rgba(paints.diverging.css[1]!));
    expect(drawn.in(0, 1)).toEqual(rgba(paints.diverging.css[128]!));
    expect(drawn.in(0, 2)).toEqual(rgba(paints.diverging.css[255]!));
    expect(drawn.in(0, 0)[2]).toBeGreaterThan(drawn.in(0, 0)[0]!);
    expect(drawn.in(0, 2)[0]).toBeGreaterThan(drawn.in(0, 2)[2]!);
  });

  test("on a range for each row every row has its strongest color", async () => {
    const drawn = await draw(
      [
        [0.5, 0.1],
        [0.01, 0.02],
      ],
      { cell, dpr, range: "row" },
    );
    expect(drawn.in(0, 0)).toEqual(color(1));
    expect(drawn.in(1, 1)).toEqual(color(1));
    expect(drawn.in(1, 0)).toEqual(color(0.5));
  });
});

describe("tiles", () => {
  test("a gap of one pixel follows each, and is page", async () => {
    const drawn = await draw(
      [
        [1, 1],
        [1, 1],
      ],
      { cell: 20 },
    );
    expect(drawn.at(18, 10)).toEqual(color(1));
    expect(drawn.at(19, 10)).toEqual(CLEAR);
    expect(drawn.at(10, 19)).toEqual(CLEAR);
    expect(drawn.at(20, 10)).toEqual(color(1));
    expect(drawn.at(39, 10)).toEqual(CLEAR);
  });

  test("from 18 px corners are rounder than from 12", async () => {
    expect((await draw([[1]], { cell: 20 })).at(0, 0)[3]).toBeLessThan((await draw([[1]], { cell: 14 })).at(0, 0)[3]!);
    expect((await draw([[1]], { cell: 20 })).at(0, 0)[3]).toBeLessThan(128);
  });

  test("a masked cell has a thin slash through its middle, and nothing else", async () => {
    const drawn = await draw([[1, X]], { cell: 20 });
    const [r, g, b, alpha] = drawn.in(0, 1, 0.475, 0.475);
    expect(alpha).toBeGreaterThan(10);
    expect(alpha).toBeLessThan(100);
    expect([r, g, b].every((channel) => channel! < 60)).toBe(true);
    let inked = 0;
    for (let y = 0; y < 20; y++) for (let x = 20; x < 40; x++) if (drawn.at(x, y)[3]! > 0) inked++;
    expect(inked).toBeLessThan(40);
  });

  test("NaN has a cross of full red on its tint", async () => {
    const drawn = await draw([[Number.NaN, 1]], { cell: 40 });
    expect(drawn.at(19, 19)).toEqual(rgba(paints.light.bad));
    expect(drawn.in(0, 0, 0.5, 0.2)).toEqual(rgba(paints.light.badTint));
  });

  test("−∞ is an outline of ink around the page", async () => {
    const drawn = await draw([[Number.NEGATIVE_INFINITY, 1]], { cell: 14, stage: "scores" });
    expect(drawn.at(6, 6)).toEqual(rgba(paints.diverging.page));
    expect(drawn.at(0, 6)).toEqual(rgba(paints.diverging.ink));
    expect(drawn.at(6, 0)).toEqual(rgba(paints.diverging.ink));
  });

  test("∞ carries its sign from 18 px", async () => {
    const inks = async (cell: number) => {
      const drawn = await draw([[Number.POSITIVE_INFINITY]], { cell });
      const ink = rgba(paints.light.ink);
      let other = 0;
      for (let y = 3; y < cell - 4; y++)
        for (let x = 3; x < cell - 4; x++) if (`${drawn.at(x, y)}` !== `${ink}`) other++;
      return other;
    };
    expect(await inks(17)).toBe(0);
    expect(await inks(24)).toBeGreaterThan(5);
  });

  test("a clipped cell lacks its top right corner, and no other", async () => {
    const drawn = await draw([[0.9, 0.2]], { cell: 40, range: [0, 0.5] });
    expect(drawn.at(36, 2)).toEqual(CLEAR);
    expect(drawn.at(2, 2)).toEqual(color(1));
    expect(drawn.at(36, 36)).toEqual(color(1));
    expect(drawn.at(2, 36)).toEqual(color(1));
    expect(drawn.at(40 + 35, 3)).toEqual(rgba(paints.light.css[Math.round(255 * 0.4)]!));
  });
});

describe("numbers in cells", () => {
  const marks = (drawn: Drawn, row: number, column: number) => {
    const { cellWidth } = drawn.scene;
    const tile = `${drawn.in(row, column, 0.2, 0.1)}`;
    let count = 0;
    for (let y = 4; y < cellWidth - 5; y++) {
      for (let x = 3; x < cellWidth - 4; x++) {
        if (`${drawn.at(column * cellWidth + x, row * cellWidth + y)}` !== tile) count++;
      }
    }
    return count;
  };

  test("from 18 px, where they are wanted; none below .005, none in a masked cell", async () => {
    const cells: Cells = [[0.5, 0.001, X, 0.499]];
    const drawn = await draw(cells, { cell: 30, numbers: true });
    expect(marks(drawn, 0, 0)).toBeGreaterThan(10);
    expect(marks(drawn, 0, 1)).toBe(0);
    expect(marks(drawn, 0, 3)).toBeGreaterThan(10);
    expect(marks(await draw(cells, { cell: 30 }), 0, 0)).toBe(0);
    expect(marks(await draw(cells, { cell: 17, numbers: true }), 0, 0)).toBe(0);
  });

  test.each([18, 21])("cells of %i px hold a weight of two digits, and a weight of 1", async (cell) => {
    const drawn = await draw([[0.48, 1, 0.999]], { cell, numbers: true });
    for (const column of [0, 1, 2]) expect(marks(drawn, 0, column)).toBeGreaterThan(5);
  });

  test("a quantised picture carries the kernel's numbers where they have come, and no guess elsewhere", async () => {
    const cells: Cells = [
      [0.5, 0.5],
      [0.5, 0.5],
    ];
    const without = await draw(cells, { cell: 30, numbers: true, exact: false });
    expect(marks(without, 0, 0)).toBe(0);
    const patch: Patch = {
      queries: { start: 1, stop: 2 },
      keys: { start: 0, stop: 1 },
      grid: { rows: 1, columns: 1, values: Float32Array.of(0.48), kinds: Uint8Array.of(NUMBER) },
    };
    const patched = without.again({ patch });
    expect([marks(patched, 0, 0), marks(patched, 0, 1), marks(patched, 1, 1)]).toEqual([0, 0, 0]);
    expect(marks(patched, 1, 0)).toBeGreaterThan(10);
    const exact = await draw(
      [
        [0.5, 0.5],
        [0.48, 0.5],
      ],
      { cell: 30, numbers: true, mapper: without.scene.mapper },
    );
    const glyphs = (drawn: Drawn) => {
      const { data } = drawn.canvas.getContext("2d")!.getImageData(6, 38, 18, 14);
      return data.filter((_, at) => at % 4 === 0).reduce((sum, red) => sum + red, 0);
    };
    expect(glyphs(patched)).toBeGreaterThan(0);
    const numberOf = (drawn: Drawn) => drawn.again({ mapper: { ...drawn.scene.mapper, index: () => 255 } });
    expect(glyphs(numberOf(patched))).toBe(glyphs(numberOf(exact)));
  });
});

describe("rasters", () => {
  test("have no gaps", async () => {
    const drawn = await draw(
      [
        [1, 1],
        [1, 1],
      ],
      { cell: 8 },
    );
    for (let at = 0; at < 16; at++) expect(drawn.at(at, at)).toEqual(color(1));
  });

  test("−∞ is gray, which is no number's color", async () => {
    const drawn = await draw([[Number.NEGATIVE_INFINITY, 1]], { cell: 4, stage: "scores" });
    expect(drawn.in(0, 0)).toEqual([112, 117, 128, 255]);
  });

  test("from 6 px NaN has its cross, from 10 px a masked cell its slash", async () => {
    const nan = await draw([[Number.NaN]], { cell: 8 });
    expect(nan.at(3, 3)).not.toEqual(rgba(paints.light.badTint));
    expect(nan.at(0, 4)).toEqual(rgba(paints.light.badTint));
    expect((await draw([[X, 1]], { cell: 11 })).in(0, 0)[3]).toBeGreaterThan(0);
    const small = await draw([[X, 1]], { cell: 9 });
    for (let y = 0; y < 9; y++) for (let x = 0; x < 9; x++) expect(small.at(x, y)).toEqual(CLEAR);
  });

  test("a new range, and a new theme, repaint the same cells", async () => {
    const first = await draw(CAUSAL, { cell: 4 });
    const { grid } = first.scene;
    const picture = await decodePicture(pictureOf(CAUSAL));
    const unit = first.again({ mapper: makeColorMapper(picture, grid, false, "linear", [0, 4]) });
    expect(unit.in(0, 0)).toEqual(rgba(paints.light.css[64]!));
    expect(unit.again({ paints: paints.dark }).in(0, 0)).toEqual(rgba(paints.dark.css[64]!));
  });
});

test("the canvas has as many pixels as the screen", async () => {
  const { canvas } = await draw(CAUSAL, { cell: 16, dpr: 1.25 });
  expect([canvas.width, canvas.height]).toEqual([80, 80]);
});

test("what was drawn before is gone: a cell that becomes masked is page", async () => {
  const canvas = document.createElement("canvas");
  await draw([[1, 1]], { cell: 20 }).then(({ scene }) => drawScene(scene, canvas));
  const masked = await draw([[1, X]], { cell: 20 });
  expect(drawScene(masked.scene, canvas).in(0, 1, 0.1, 0.5)).toEqual(CLEAR);
});

describe("zoomed", () => {
  test.each([20, 4])("cells of %s px: those in view are where the viewport puts them", async (cell) => {
    const width = 4 * cell;
    const viewport = { k: 2, x: -2 * cell, y: -4 * cell };
    const drawn = await draw(CAUSAL, { cell, viewport, width, height: width });
    // Row 2 begins at the top, column 1 at the left; each cell is two cells wide.
    const seen = (row: number, column: number) => drawn.at((2 * column - 1) * cell, (2 * row - 3) * cell);
    expect(seen(2, 1)).toEqual(color(Math.fround(0.3)));
    expect(seen(3, 1)).toEqual(color(Math.fround(0.2)));
    expect(seen(3, 2)).toEqual(color(Math.fround(0.3)));
    expect(drawn.canvas.width).toBe(width);
  });

  test("a raster becomes tiles once its cells are wide enough", async () => {
    const viewport = { k: MAX_CELL / 4, x: 0, y: 0 };
    const drawn = await draw([[1, 1]], { cell: 4, viewport, width: 88, height: 44 });
    expect(drawn.at(43, 20)).toEqual(CLEAR);
    expect(drawn.at(42, 20)).toEqual(color(1));
  });
});

describe("folding", () => {
  const gridOf = async (cells: Cells) => (await decodePicture(pictureOf(cells, { stage: "masked" }))).grid!;

  test("one to one is the grid itself", async () => {
    const grid = await gridOf(CAUSAL);
    expect(foldGrid(grid, 1)).toBe(grid);
  });

  test("each fold × fold is its greatest, also at ragged ends", async () => {
    const folded = foldGrid(
      await gridOf([
        [-1, -2, 5],
        [-3, -4, 1],
        [7, 8, -9],
      ]),
      2,
    );
    expect([folded.rows, folded.columns]).toEqual([2, 2]);
    expect([...folded.values]).toEqual([-1, 5, 8, -9]);
    expect([...folded.kinds]).toEqual([NUMBER, NUMBER, NUMBER, NUMBER]);
  });

  test("NaN shows through; blocked cells only where all are; −∞ only where nothing is greater", async () => {
    const inf = Number.POSITIVE_INFINITY;
    const folded = foldGrid(
      await gridOf([
        [Number.NaN, 9, X, X, X, -inf, X, inf],
        [inf, 1, X, X, X, X, 2, -inf],
      ]),
      2,
    );
    expect([...folded.kinds]).toEqual([NAN, BLOCKED, MINUS_INF, PLUS_INF]);
    expect(folded.values[3]).toBe(inf);
  });
});
