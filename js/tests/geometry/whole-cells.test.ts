import { describe, expect, test } from "vitest";
import {
  type CellGrid,
  cellGridOf,
  cellsInView,
  cellUnder,
  centered,
  coveredAt,
  ownCellGrid,
  pitchOf,
  reachOf,
  within,
  withWholeCells,
  zoomedAt,
  zoomFor,
} from "../../src/geometry/cell-grid";
import { GAPS_FROM, layoutFigure } from "../../src/geometry/layout";
import { type Viewport, WHOLE } from "../../src/geometry/viewport";
import { random } from "../helpers/states.ts";

const LABELS = { query: 70, key: 50, keys: () => 0, ticks: 28, positions: 28, keyTicks: true, queryTicks: true };

function headOf(queries: number, keys = queries, width = 900) {
  const picture = { queries, keys, queryBin: Math.ceil(queries / 512), keyBin: Math.ceil(keys / 512) };
  const [rows, columns] = [Math.ceil(queries / picture.queryBin), Math.ceil(keys / picture.keyBin)];
  const figure = layoutFigure({ width, rows, columns, labels: LABELS, dpr: 1 });
  const reach = reachOf(picture, figure, 1);
  const at = (view: Viewport) => cellGridOf(reach, view, picture.queryBin * picture.keyBin === 1);
  return { picture, figure, reach, at, settled: (view: Viewport) => withWholeCells(reach, view, at(view)) };
}

/** How far an edge is from the next cell's. */
const off = (length: number, cell: number) => Math.abs(length / cell - Math.round(length / cell)) * cell;

function checkWhole({ rows, columns }: CellGrid, where: string): void {
  for (const axis of [rows, columns]) {
    if (axis.cell < GAPS_FROM) continue;
    expect(off(axis.offset, axis.cell), where).toBeLessThan(1e-6);
    const { start, stop } = cellsInView(axis);
    expect(axis.offset + start * axis.cell, where).toBeGreaterThan(-1e-6);
    expect(axis.offset + stop * axis.cell, where).toBeLessThanOrEqual(axis.size + 1e-6);
    expect(stop, where).toBeLessThanOrEqual(axis.count);
    expect(cellUnder(axis, axis.offset + (stop + 0.5) * axis.cell), where).toBeNull();
  }
}

describe.each([
  [600, 600],
  [4096, 4096],
  [100_003, 100_003],
  [4096, 700],
])("%s × %s", (queries, keys) => {
  const { reach, at, settled } = headOf(queries, keys);

  test("where cells are large, those at the edges are whole, wherever one goes, and the move is less than a cell", () => {
    const next = random(7);
    for (let k = 1; k < reach.most * 1.1; k *= 1.3) {
      for (let i = 0; i < 6; i++) {
        const place = { query: Math.floor(next() * queries), key: Math.floor(next() * keys) };
        const view = centered(reach, WHOLE, Math.min(k, reach.most), place);
        const shown = settled(view);
        const where = `k ${view.k}, ${place.query} ${place.key}`;
        const grid = at(shown);
        checkWhole(grid, where);
        expect(Math.abs(shown.x - view.x), where).toBeLessThan(Math.max(1e-9, grid.columns.cell));
        expect(Math.abs(shown.y - view.y), where).toBeLessThan(Math.max(1e-9, grid.rows.cell));
        expect(settled(shown), where).toEqual(shown);
        if (grid.rows.cell < GAPS_FROM) continue;
        const { start, stop } = cellsInView(grid.rows);
        expect(place.query, where).toBeGreaterThanOrEqual(start - 1);
        expect(place.query, where).toBeLessThanOrEqual(stop);
      }
    }
  });

  test("the first and the last cell of each axis can be brought into view, whole", () => {
    const k = zoomFor(reach, 26);
    const [first, last] = [-1e12, 1e12].map((far) => at(settled(within(reach, { k, x: far, y: far }))));
    for (const axis of ["rows", "columns"] as const) {
      expect(cellsInView(last![axis]).start).toBe(0);
      expect(cellsInView(first![axis]).stop).toBe(first![axis].count);
    }
  });
});

test("tokens that come in left of the picture move no cell: they cover some", () => {
  const { reach, at, figure } = headOf(4096);
  expect(figure.inset).toBeGreaterThan(20);
  const { from } = reach.covered;
  const before: Viewport = { k: from * (1 - 1e-6), x: -800, y: -500 };
  const after: Viewport = { ...before, k: from * (1 + 1e-6) };
  expect([coveredAt(reach, before.k), coveredAt(reach, after.k)]).toEqual([0, figure.inset]);
  const [outside, inside] = [at(before).columns, at(after).columns];
  expect(inside.offset + figure.inset!).toBeCloseTo(outside.offset, 2);
  expect(inside.size + figure.inset!).toBeCloseTo(outside.size, 9);
  expect(at(after).rows.offset).toBeCloseTo(at(before).rows.offset, 2);
});

test("what is pointed at stays under the pointer while tokens come in", () => {
  const { reach, at, figure } = headOf(4096);
  const from: Viewport = { k: reach.covered.from * 0.9, x: -2000, y: -2000 };
  const point = { x: 200, y: 200 };
  const view = zoomedAt(reach, from, reach.covered.from * 1.2, point);
  const key = (200 - at(from).columns.offset) / at(from).columns.pitch;
  // The picture begins further right now: so much less of it is left of the pointer.
  expect((200 - figure.inset! - at(view).columns.offset) / at(view).columns.pitch).toBeCloseTo(key, 6);
  const back = zoomedAt(reach, view, from.k, { x: point.x - figure.inset!, y: point.y });
  expect(back.x).toBeCloseTo(from.x, 6);
});

test("a place that one goes to is in the middle of what is not covered", () => {
  const { reach, at } = headOf(4096);
  const view = centered(reach, WHOLE, zoomFor(reach, 26), { query: 2000, key: 1000 });
  const { columns } = at(view);
  expect(columns.offset + 1000.5 * columns.pitch).toBeCloseTo((reach.x.size - reach.covered.width) / 2, 6);
});

test("a file's own bins are whole too", () => {
  const { reach, picture } = headOf(4096);
  const k = 20;
  const view = centered(reach, WHOLE, k, { query: 1000, key: 3000 });
  const shown = withWholeCells(reach, view, ownCellGrid(reach, view, picture));
  const grid = ownCellGrid(reach, shown, picture);
  expect(grid.columns.bin).toBe(8);
  expect(grid.columns.cell).toBeGreaterThan(GAPS_FROM);
  checkWhole(grid, "own");
});

test("small cells, and the whole, stay where they are", () => {
  const { reach, settled } = headOf(4096);
  expect(settled(WHOLE)).toBe(WHOLE);
  const view = { k: 2, x: -3.3, y: -7.7 };
  expect(settled(view)).toEqual(view);
  expect(pitchOf(reach.x, 2)).toBeLessThan(GAPS_FROM);
});
