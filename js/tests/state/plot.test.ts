// @vitest-environment jsdom
import { describe, expect, test } from "vitest";
import type { Traits } from "../../src/contract/traits";
import { isRoomFor } from "../../src/draw/label-room";
import { type CellGrid, cellGridOf, cellOf, placesOf, reachOf } from "../../src/geometry/cell-grid";
import { layoutFigure } from "../../src/geometry/layout";
import { WHOLE } from "../../src/geometry/viewport";
import { createHost } from "../../src/kernel/host";
import { createKernel } from "../../src/kernel/kernel";
import { boxAt, createPlot, inView, isWithin } from "../../src/state/plot";
import { createStore } from "../../src/state/store";
import { createUi } from "../../src/state/ui";
import { settle } from "../helpers/page.ts";
import { resize } from "../helpers/setup.ts";
import { CAUSAL, type Cells, factsOf, pictureOf, quantised, stateOf, tokensOf, weights } from "../helpers/states.ts";
import { endOfTest } from "../helpers/timers.ts";

const end = endOfTest();

async function plotOf(cells: Cells, { width = 900, ...changes }: Partial<Traits> & { width?: number } = {}) {
  const host = createHost(stateOf(cells, changes));
  const kernel = createKernel(host, { signal: end.signal });
  const store = createStore(host, kernel, end.signal);
  const root = document.createElement("div");
  document.body.append(root);
  const ui = createUi(store, kernel, root, end.signal);
  const plot = createPlot(ui);
  if (width > 0) resize(root, width);
  await settle();
  return { host, ui, plot, root, store };
}

const LABELS = { query: 60, key: 60, keys: () => 60, keyTicks: false };
const figureOf = (rows: number, columns: number, width = 900) =>
  layoutFigure({ width, rows, columns, labels: LABELS, dpr: 1 });

describe("a figure", () => {
  test("is there when there is a picture and a width, not before", async () => {
    const { plot, root } = await plotOf(CAUSAL, { width: 0 });
    expect([plot.figure.value, plot.grid.value]).toEqual([null, null]);
    resize(root, 900);
    expect(plot.figure.value).toMatchObject({ rows: 4, columns: 4, cellWidth: 44 });
  });

  test("keeps its size while the widget is hidden", async () => {
    const { plot, root } = await plotOf(CAUSAL);
    const shown = plot.figure.value;
    resize(root, 0);
    expect(plot.figure.value).toBe(shown);
  });

  test("has room for its longest label", async () => {
    const short = await plotOf(CAUSAL);
    const long = await plotOf(CAUSAL, { tokens: tokensOf(["a", "b", "c", "internationalisation"]) });
    expect(long.plot.figure.value!.left).toBeGreaterThan(short.plot.figure.value!.left + 40);
  });

  test("where a cell stands for several has some room for tokens and for their positions: zooming in moves nothing", async () => {
    const cells = weights(64, 64);
    const tokens = tokensOf(Array.from({ length: 64 }, () => "internationalisation"));
    const { plot } = await plotOf(cells, { picture: quantised(cells, {}, 2), tokens, key_tokens: tokens });
    const unzoomed = plot.figure.value!;
    expect(unzoomed).toMatchObject({ rows: 32, columns: 32, labelRoom: 52, below: 20 });
    expect(unzoomed.positions).toBeGreaterThan(10);
    expect(unzoomed.left).toBeLessThan(60); // no tokens stand there yet
    plot.viewport.value = { k: plot.reach.value!.most, x: 0, y: 0 };
    const zoomed = plot.figure.value!;
    expect(zoomed.left).toBe(14 + zoomed.labelRoom + zoomed.positions);
    expect(zoomed.left - unzoomed.left).toBe(zoomed.inset);
    expect([zoomed.left + zoomed.width, zoomed.top, zoomed.height]).toEqual([
      unzoomed.left + unzoomed.width,
      unzoomed.top,
      unzoomed.height,
    ]);
    plot.viewport.value = WHOLE;
    expect(plot.figure.value).toEqual(unzoomed);
  });

  test("without tokens positions are the labels, and take no room twice", async () => {
    const cells = weights(64, 64);
    const { plot } = await plotOf(cells, { picture: quantised(cells, {}, 2) });
    expect(plot.figure.value).toMatchObject({ positions: 0, below: 0 });
    expect(plot.figure.value!.left).toBeLessThan(60);
  });
});

describe("numbers fit", () => {
  test("into wide cells, not into narrow ones, until they are zoomed", async () => {
    const large = await plotOf(CAUSAL);
    expect(large.plot.numbersFit.value).toBe(true);
    const small = await plotOf(weights(40, 40));
    expect(small.plot.numbersFit.value).toBe(false);
    small.plot.viewport.value = { k: 20 / small.plot.figure.value!.cellWidth, x: 0, y: 0 };
    expect(small.plot.numbersFit.value).toBe(true);
  });

  test("below zero too, or no cell of the picture has one", async () => {
    const measured = (text: string, size: number) => text.length * size * 0.55;
    const signs = [18, 19, 20, 21, 22, 28, 34, 44].map((cell) => isRoomFor(cell, cell, true, 1, measured));
    expect(signs).toEqual([false, false, false, false, true, true, true, true]);
    expect([17, 18, 21, 22].map((cell) => isRoomFor(cell, cell, false, 1, measured))).toEqual([
      false,
      true,
      true,
      true,
    ]);
    const scores = await plotOf(weights(40, 40), {
      picture: pictureOf(weights(40, 40), { stage: "scores" }),
      stage: "scores",
    });
    scores.plot.viewport.value = { k: 19 / scores.plot.figure.value!.cellWidth, x: 0, y: 0 };
    expect(scores.plot.numbersFit.value).toBe(false);
  });

  test("into the wide cells of a narrow widget", async () => {
    expect((await plotOf(CAUSAL, { width: 320 })).plot.numbersFit.value).toBe(true);
    expect((await plotOf(weights(20, 20), { width: 320 })).plot.numbersFit.value).toBe(false);
  });

  test("where a cell stands for several only once it is zoomed to single ones", async () => {
    const cells = weights(8, 8);
    const { plot } = await plotOf(cells, { picture: quantised(cells, {}, 2) });
    expect(plot.figure.value!.cellWidth).toBe(44);
    expect(plot.numbersFit.value).toBe(false);
    plot.viewport.value = { k: 1.2, x: 0, y: 0 };
    expect(plot.cellGrid.value).toMatchObject({ rows: { bin: 1 }, columns: { bin: 1 } });
    expect(plot.numbersFit.value).toBe(true);
  });
});

describe("more cells than pixels", () => {
  const cells = weights(512, 512);
  const facts = factsOf(cells, { layers: ["only"] });

  test("are folded: what is drawn is the greatest of each fold × fold", async () => {
    const { plot, store } = await plotOf(cells, { facts, width: 480, picture: pictureOf(cells) });
    const { fold, rows, columns } = plot.figure.value!;
    expect(fold).toBeGreaterThan(1);
    expect([rows, columns]).toEqual([Math.ceil(512 / fold), Math.ceil(512 / fold)]);
    const first = cells.slice(0, fold).flatMap((row) => row.slice(0, fold));
    expect(plot.grid.value!.values[0]).toBe(Math.fround(Math.max(...first)));
    expect(store.picture.value!.grid!.rows).toBe(512);
    expect(plot.numbersFit.value).toBe(false);
  });

  test("of a sampled picture are read at the row that they show", async () => {
    const picture = quantised(weights(512, 512, 7), {}, 1);
    const long = { ...picture, queries: 4096, keys: 4096, query_bin: 8, key_bin: 8 };
    const sampled = { first: 3, every: 8, exact: 4 };
    const { plot, store } = await plotOf(cells, { facts, width: 480, picture: { ...long, sampled } });
    const { fold } = plot.figure.value!;
    expect(fold).toBeGreaterThan(1);
    expect(plot.bin(0, 0)).toEqual({ queries: { start: 0, stop: 8 * fold }, keys: { start: 0, stop: 8 * fold } });
    const grid = store.picture.value!.grid!;
    const row = 40;
    const column = 17;
    const bin = plot.bin(row, column)!;
    expect(bin).toMatchObject({
      standsFor: 8 * fold,
      keys: { start: column * 8 * fold, stop: (column + 1) * 8 * fold },
    });
    const shown = plot.grid.value!.values[row * plot.grid.value!.columns + column]!;
    const read = (bin.queries.start - 3) / 8;
    const inRow = grid.values.subarray(read * 512 + column * fold, read * 512 + (column + 1) * fold);
    expect(Math.max(...inRow)).toBe(shown);
  });

  test("for more cells than the kernel looks through stand for the picture's own that they show", async () => {
    const picture = quantised(weights(512, 512, 7), {}, 1);
    const long = { ...picture, queries: 1_048_576, keys: 1_048_576, query_bin: 2048, key_bin: 2048 };
    const { plot, store } = await plotOf(cells, { facts, width: 480, picture: long });
    const { queries, keys } = plot.bin(10, 20)!;
    expect([queries.stop - queries.start, keys.stop - keys.start]).toEqual([2048, 2048]);
    const shown = plot.grid.value!.values[10 * plot.grid.value!.columns + 20]!;
    expect(store.picture.value!.grid!.values[(queries.start / 2048) * 512 + keys.start / 2048]).toBe(shown);
  });

  test("on a range for each row have a color mapper of their own rows", async () => {
    const { plot } = await plotOf(cells, { facts, width: 480, picture: pictureOf(cells), color_range: "row" });
    const grid = plot.grid.value!;
    for (const row of [0, 50, grid.rows - 1]) {
      const greatest = Math.max(...grid.values.subarray(row * grid.columns, (row + 1) * grid.columns));
      expect(plot.mapper.value!.index(greatest, row)).toBe(255);
    }
  });
});

describe("places", () => {
  const latticeFor = (queries: number, keys: number, bin = 1, fold = 1, view = WHOLE): CellGrid => {
    const figure = { ...figureOf(Math.ceil(queries / bin / fold), Math.ceil(keys / bin / fold)), fold };
    const picture = { queries, keys, queryBin: bin, keyBin: bin };
    return cellGridOf(reachOf(picture, figure, 1), view, bin === 1);
  };

  test("a cell stands for its bin, and every place of the bin is in that cell", () => {
    const { rows, columns } = latticeFor(70, 50, 3, 2);
    expect([rows.count, columns.count]).toEqual([12, 9]);
    for (const axis of [rows, columns]) {
      for (let index = 0; index < axis.count; index++) {
        const { start, stop } = placesOf(axis, index);
        expect(stop).toBeLessThanOrEqual(axis.total);
        for (const place of [start, stop - 1]) expect(cellOf(axis, place)).toBe(index);
      }
    }
    expect([placesOf(rows, 11), placesOf(columns, 8)]).toEqual([
      { start: 66, stop: 70 },
      { start: 48, stop: 50 },
    ]);
  });

  test("what is under the pointer is the box that is drawn there, zoomed or not", async () => {
    const { plot } = await plotOf(weights(20, 20));
    for (const view of [WHOLE, { k: 1.7, x: -140.5, y: -61.25 }]) {
      plot.viewport.value = view;
      const cellGrid = plot.cellGrid.value!;
      const { rows, columns } = inView(cellGrid);
      for (let row = rows.start; row < rows.stop; row++) {
        for (let column = columns.start; column < columns.stop; column++) {
          const box = boxAt(cellGrid, row, column, 1, 1);
          expect(plot.box(row, column)).toEqual(box);
          const bin = plot.under(box.x + box.width / 2, box.y + box.height / 2);
          expect(bin?.queries.start).toBe(row);
          expect(bin?.keys.start).toBe(column);
        }
      }
    }
  });

  test("nothing is under the pointer outside the cells", async () => {
    const { plot } = await plotOf(CAUSAL);
    const { cellWidth, cellHeight } = plot.figure.value!;
    for (const [x, y] of [
      [-1, 5],
      [5, -1],
      [4 * cellWidth, 5],
      [5, 4 * cellHeight],
    ] as const) {
      expect(plot.under(x, y)).toBeNull();
    }
  });

  test("a box has the tile's size: less its gap from 12 px, the whole cell below", () => {
    const wide = figureOf(20, 20);
    expect(boxAt(latticeFor(20, 20), 2, 3, 1, 1)).toEqual({
      x: 3 * wide.cellWidth,
      y: 2 * wide.cellHeight,
      width: wide.cellWidth - 1,
      height: wide.cellHeight - 1,
    });
    const small = figureOf(100, 100);
    expect(small.cellWidth).toBeLessThan(12);
    const right = Math.round(2 * small.cellWidth);
    const left = Math.round(small.cellWidth);
    expect(boxAt(latticeFor(100, 100), 0, 1, 1, 1)).toMatchObject({ x: left, width: right - left });
  });

  test("a span holds its start and not its stop", () => {
    expect([1, 2, 4, 5].map((index) => isWithin(index, { start: 2, stop: 5 }))).toEqual([false, true, true, false]);
  });
});
