/** Two attentions side by side: places and positions, ranges, layout. */

import { describe, expect, test } from "vitest";
import { BLOCKED, type Grid, NUMBER, PLUS_INF } from "../../src/contract/decode";
import type { ComparisonMessage } from "../../src/contract/messages";
import {
  axisTicks,
  changedAt,
  changesIn,
  decodeChanges,
  decodeComparison,
  labelsOf,
  largestCells,
  mergedGrid,
  mostChanged,
  type ReadyComparison,
  sharedRange,
} from "../../src/data/comparison";
import { foldGrid } from "../../src/draw/cells";
import { cellGridOf, ownCellGrid, reachOf } from "../../src/geometry/cell-grid";
import { labels } from "../../src/text/labels";
import { layoutCompare } from "../../src/views/compare/layout";
import { changesOf, comparisonOf, FULL, integers } from "../helpers/comparison.ts";
import { CAUSAL, type Cells, pooled, weights, X } from "../helpers/states.ts";

async function shown(message: ComparisonMessage): Promise<ReadyComparison> {
  const found = await decodeComparison(message);
  if (found.error !== null) throw new Error(found.error);
  return found;
}

const grid = (cells: Cells): Grid => ({
  rows: cells.length,
  columns: cells[0]!.length,
  values: Float32Array.from(cells.flat(), (cell) => cell ?? Number.NaN),
  kinds: Uint8Array.from(cells.flat(), (cell) => (cell === null ? BLOCKED : NUMBER)),
});

describe("what Python sends", () => {
  test("pictures of places, plain where both sides are as long", async () => {
    const found = await shown(comparisonOf(FULL, CAUSAL));
    expect(found.pictures.change.grid!.values[4]).toBeCloseTo(0.15, 6);
    expect(found.pictures.b.grid!.kinds[1]).toBe(BLOCKED);
    expect(found.pictures.change.grid!.kinds[1]).toBe(NUMBER);
    expect(found.queries.plain).toBe(true);
    expect([found.queries.of(3), found.queries.of(4)]).toEqual([3, null]);
  });

  test("places that are other positions on each side", async () => {
    const places = { a: integers([0, 2, 3, 5]), b: integers([0, 1, 2, 4]), only: [2, 1] as [number, number] };
    const found = await shown(comparisonOf(FULL, CAUSAL, { query_places: places }));
    expect([found.queries.a(1), found.queries.b(1), found.queries.of(2), found.queries.of(1)]).toEqual([2, 1, 1, null]);
    const six = labels(["a", "b", "c", "d", "e", "c"], 6);
    const seen = labelsOf(six, found.queries);
    expect([seen.at(1).text, seen.at(3).subscript, seen.length]).toEqual(["c", "5", 4]);
    expect(seen.find("c")).toEqual([1, 3]);
    expect(labelsOf(six, found.keys)).toBe(six);
  });

  test("what does not fit is an error, Python's own sentence is not", async () => {
    const wrong = { a: integers([0]), b: integers([0]), only: [0, 0] as [number, number] };
    await expect(shown(comparisonOf(FULL, CAUSAL, { key_places: wrong }))).rejects.toThrow("4 places need a position");
    const four = integers([0, 1, 2, 3]);
    for (const side of ["a", "b"] as const) {
      const one = { ...wrong, a: four, b: four, [side]: integers([0]) };
      await expect(shown(comparisonOf(FULL, CAUSAL, { key_places: one }))).rejects.toThrow("4 places need a position");
    }
    await expect(shown(comparisonOf(FULL, CAUSAL, { queries: 9 }))).rejects.toThrow("must be 9 × 4");
    const failed = await decodeComparison({ ...comparisonOf(FULL, CAUSAL), error: "CUDA out of memory" });
    expect(failed.error).toBe("CUDA out of memory");
  });

  test("numbers of a pair are those of the pictures, where these are exact", async () => {
    const found = await shown(comparisonOf(FULL, CAUSAL));
    const one = (query: number, key: number) => ({
      queries: { start: query, stop: query + 1 },
      keys: { start: key, stop: key + 1 },
    });
    const { a, b, value } = changedAt(found, one(1, 1))!;
    expect([a, b, value].map((number) => number?.toFixed(6))).toEqual(["0.200000", "0.750000", "0.550000"]);
    expect(changedAt(found, one(0, 2))).toMatchObject({ b: null });
    expect(changedAt(found, one(0, 9))).toBeNull();
    const coarse = pooled(FULL, 2);
    const far = await shown({ ...comparisonOf(coarse, coarse), queries: 4, keys: 4, query_bin: 2, key_bin: 2 });
    expect(changedAt(far, one(0, 0))).toBeNull();
  });

  test("the list from the pictures is the one that Python makes", async () => {
    const [a, b] = [weights(20, 20, 1), weights(20, 20, 2)];
    const found = await shown(comparisonOf(a, b));
    for (const query of [0, 7, 19]) {
      const here = changesIn(found, "query", query)!;
      const theirs = await decodeChanges(changesOf(a, b, query));
      expect(here).toEqual({ ...theirs, rest: here.rest });
    }
    const column = changesIn(found, "key", 3)!;
    const all = column.rows.reduce((sum, row) => sum + row.a!, 0);
    expect(all).toBeCloseTo(
      a.reduce((sum, row) => sum + row[3]!, 0),
      5,
    );
  });

  test("where the two differ most: every pair in the order of its change, both its numbers with it", async () => {
    const [a, b] = [weights(20, 20, 1), weights(20, 20, 2)];
    const found = await shown(comparisonOf(a, b));
    const all = a.flatMap((row, query) => row.map((x, key) => ({ query, place: key, change: b[query]![key]! - x! })));
    const wanted = (queries: number, most: number) =>
      all
        .filter(({ query }) => query < queries)
        .sort((x, y) => Math.abs(y.change) - Math.abs(x.change))
        .slice(0, most);
    for (const [queries, most] of [
      [20, 12],
      [7, 5],
      [0, 12],
    ] as const) {
      const pairs = mostChanged(found, queries, most);
      expect(pairs.map(({ query, place }) => [query, place])).toEqual(
        wanted(queries, most).map(({ query, place }) => [query, place]),
      );
      for (const { query, place, a: x, b: y, value } of pairs) {
        expect(x).toBeCloseTo(a[query]![place]!, 6);
        expect(y).toBeCloseTo(b[query]![place]!, 6);
        expect(value).toBeCloseTo(y! - x!, 6);
      }
    }
  });

  test("a pair that one side masks differs by all its weight; equal pairs are not listed, nor those of a long head", async () => {
    const masked = mostChanged(await shown(comparisonOf(FULL, CAUSAL)), 4, 16);
    expect(masked).toContainEqual(expect.objectContaining({ query: 0, place: 2, b: null }));
    expect(mostChanged(await shown(comparisonOf(FULL, FULL)), 4, 12)).toEqual([]);
    const coarse = pooled(FULL, 2);
    const far = await shown({ ...comparisonOf(coarse, coarse), queries: 4, keys: 4, query_bin: 2, key_bin: 2 });
    expect(mostChanged(far, 4, 12)).toEqual([]);
  });

  test("numbers that JSON has no number for", async () => {
    const found = await decodeChanges(changesOf(FULL, CAUSAL, 1, { rest: { count: 1, a: "nan", b: "inf" } }));
    expect(found.rest).toEqual({ count: 1, a: Number.NaN, b: Number.POSITIVE_INFINITY });
  });
});

/** Three queries over five keys: no axis passes for the other. */
const WIDE: Cells = [
  [0.5, X, 0.25, 0.125, 0.125],
  [0, 0.75, X, 0.125, 0.125],
  [0.25, 0.25, 0.25, X, 0.25],
];
const OTHER: Cells = [
  [0.25, X, 0.5, 0.125, 0.125],
  [0, X, 0.5, 0.25, 0.25],
  [0.125, 0.5, 0.0625, X, 0.3125],
];
const cell = (query: number, key: number) => ({
  queries: { start: query, stop: query + 1 },
  keys: { start: key, stop: key + 1 },
});

describe("of more keys than queries", () => {
  test("a pair is of its query and its key, up to the last of each", async () => {
    const found = await shown(comparisonOf(WIDE, OTHER));
    const at = (query: number, key: number) => {
      const one = changedAt(found, cell(query, key));
      return one && [one.query, one.key, one.a, one.b, one.value];
    };
    expect(at(2, 4)).toEqual([2, 4, 0.25, 0.3125, 0.0625]);
    expect(at(1, 1)).toEqual([1, 1, 0.75, null, -0.75]);
    expect(at(0, 1)).toEqual([0, 1, null, null, null]);
    expect([at(3, 0), at(0, 5)]).toEqual([null, null]);
    expect(changedAt(found, cell(1, 2))).toMatchObject({ of: found, bin: cell(1, 2), a: null, b: 0.5, value: 0.5 });
    const lost = { ...found, pictures: { ...found.pictures, b: { ...found.pictures.b, grid: null } } };
    expect(changedAt(lost, cell(2, 4))).toMatchObject({ a: 0.25, b: null, value: 0.0625 });
  });

  test("the list of a query or a key has the larger weights first, and counts what both sides mask", async () => {
    const message = comparisonOf(WIDE, OTHER, { layer: 1, batch: 2, head: 3, against_at: [4, 5, 6] });
    const found = await shown(message);
    const row = changesIn(found, "query", 1)!;
    expect(row.rows.map(({ place, a, b, value }) => [place, a, b, value])).toEqual([
      [1, 0.75, null, -0.75],
      [2, null, 0.5, 0.5],
      [3, 0.125, 0.25, 0.125],
      [4, 0.125, 0.25, 0.125],
      [0, 0, 0, 0],
    ]);
    expect(row).toMatchObject({ side: "query", query: 1, key: null, masked: 0, only: null });
    expect(row.rest).toEqual({ count: 0, a: 0, b: 0 });
    expect(row.of).toEqual({ layer: 1, batch: 2, head: 3, against: "causal", againstAt: [4, 5, 6] });
    const column = changesIn(found, "key", 3)!;
    expect(column.rows.map(({ place }) => place)).toEqual([1, 0]);
    expect(column).toMatchObject({ side: "key", query: null, key: 3, masked: 1 });
    expect(changesIn(found, "key", 5)).toBeNull();
    expect(changesIn(await shown({ ...message, stage: "scores" }), "query", 1)).toBeNull();
  });

  test("what is NaN on a side is listed first", async () => {
    const a = [[0.5, 0.25, Number.NaN, 0.25]]; // biome-ignore format: one line
    const b = [[0.25, 0.5, 0.125, 0.125]]; // biome-ignore format: one line
    const found = changesIn(await shown(comparisonOf(a, b)), "query", 0)!;
    expect(found.rows.map(({ place }) => place)).toEqual([2, 0, 1, 3]);
  });

  test("places are positions of A again", async () => {
    const places = { a: integers([1, 4, 6]), b: integers([2, 3, 5]), only: [4, 2] as [number, number] };
    const keyPlaces = { a: integers([0, 2, 3, 7, 9]), b: integers([1, 2, 4, 5, 6]), only: [5, 3] as [number, number] };
    const message = comparisonOf(WIDE, OTHER, { query_places: places, key_places: keyPlaces, differ: [1, 2] });
    const { queries, keys, ...found } = await shown(message);
    expect(changesIn({ ...found, queries, keys }, "query", 2)!.query).toBe(6);
    expect(changesIn({ ...found, queries, keys }, "key", 4)!.key).toBe(9);
    expect([queries.length, queries.only, queries.plain, queries.differ]).toEqual([3, [4, 2], false, 1]);
    expect([keys.length, keys.only, keys.plain, keys.differ]).toEqual([5, [5, 3], false, 2]);
    expect([keys.a(3), keys.b(3), keys.of(9), keys.of(1)]).toEqual([7, 5, 4, null]);
    expect([keys.a(8), keys.b(8)]).toEqual([8, 8]); // beyond the last: as it is
    const words = labels(["a", "b", "c", "d", "Ġe", "f", "g", "h", "i", "j"], 10, "bytes");
    const seen = labelsOf(words, keys);
    expect([seen.piece(4).text, seen.raw(3), seen.at(1).text]).toEqual(["j", "h", "c"]);
    expect(seen.find("b")).toEqual([]); // no place has it
    expect(labelsOf({ ...words, find: () => null }, keys).find("b")).toBeNull();
  });

  test("without places each position is one", async () => {
    const { queries, keys } = await shown(comparisonOf(WIDE, OTHER, { differ: [1, 2] }));
    expect([queries.length, queries.only, queries.differ]).toEqual([3, [0, 0], 1]);
    expect([keys.length, keys.differ, keys.a(3), keys.b(3), keys.of(4), keys.of(5)]).toEqual([5, 2, 3, 3, 4, null]);
  });

  test("a message is of two heads, and says whether a sink takes a share", async () => {
    const of = { layer: 1, batch: 2, head: 3, stage: "weights", pool: "max" };
    const plain = await shown(comparisonOf(WIDE, OTHER, { layer: 1, batch: 2, head: 3 }));
    expect(plain).toMatchObject({ of, against: "causal", againstAt: null, numbers: [null, null], hasSinks: false });
    const more = { has_sinks: true, head_numbers: [4, null] as [number, null], against_at: [0, 1, 2] as const };
    expect(await shown(comparisonOf(WIDE, OTHER, more))).toMatchObject({
      ...{ againstAt: [0, 1, 2], numbers: [4, null], hasSinks: true },
    });
    const failed = await decodeComparison({ ...comparisonOf(WIDE, OTHER, more), error: "no" });
    expect(failed).toMatchObject({ against: "causal", againstAt: [0, 1, 2], error: "no" });
  });

  test("a list of Python has its rows, what is left of them, and what one side alone has", async () => {
    const message = changesOf(WIDE, OTHER, 1, {
      ...{ layer: 1, batch: 2, head: 3, key: 4, masked: 2, rest: { count: 7, a: 0.5, b: "nan" } },
      ...{ against_at: [0, 1, 2], only: { a: { count: 1, sum: 0.25 }, b: { count: 3, sum: "inf" } } },
    });
    const found = await decodeChanges(message);
    expect(found).toMatchObject({ side: "query", query: 1, key: 4, masked: 2 });
    expect(found.of).toEqual({ layer: 1, batch: 2, head: 3, against: "causal", againstAt: [0, 1, 2] });
    expect(found.rows.slice(0, 2)).toEqual([
      { place: 1, a: 0.75, b: null, value: -0.75 },
      { place: 2, a: null, b: 0.5, value: 0.5 },
    ]);
    expect(found.rest).toEqual({ count: 7, a: 0.5, b: Number.NaN });
    expect(found.only).toEqual([
      { count: 1, sum: 0.25 },
      { count: 3, sum: Number.POSITIVE_INFINITY },
    ]);
    expect((await decodeChanges(changesOf(WIDE, OTHER, 1))).of.againstAt).toBeNull();
    await expect(decodeChanges({ ...message, b: undefined as never })).rejects.toThrow();
  });

  test("the cells of a pooled picture that change most are bins, which end with the matrix", async () => {
    const size = { queries: 5, keys: 13, query_bin: 2, key_bin: 3 };
    const found = await shown({ ...comparisonOf(WIDE, OTHER), ...size });
    const bins = (queries: number, most: number) =>
      largestCells(found, queries, most).map(({ queries: q, keys: k }) => [q.start, q.stop, k.start, k.stop]);
    expect(bins(5, 4)).toEqual([
      [2, 4, 3, 6],
      [2, 4, 6, 9],
      [0, 2, 0, 3],
      [0, 2, 6, 9],
    ]);
    expect(bins(5, 99)).toContainEqual([4, 5, 12, 13]);
    expect(bins(5, 99)).toHaveLength(10); // of fifteen two are masked, three are alike
    expect(bins(3, 2)).toEqual([
      [2, 3, 3, 6],
      [2, 3, 6, 9],
    ]);
    expect(bins(2, 1)).toEqual([[0, 2, 0, 3]]);
    const lost = { ...found, pictures: { ...found.pictures, change: { ...found.pictures.change, grid: null } } };
    expect(largestCells(lost, 5, 4)).toEqual([]);
  });

  test("while one query stands for several, a cell is of that one", async () => {
    const sampled = { first: 1, every: 4, exact: 1 };
    const found = await shown({ ...comparisonOf(WIDE, OTHER), queries: 12, query_bin: 4, sampled });
    const rows = largestCells(found, 12, 99).map(({ queries }) => `${queries.start}–${queries.stop}`);
    expect([...new Set(rows)].sort()).toEqual(["0–4", "5–6", "9–10"]); // the first row is already of all of its queries
    expect(largestCells(found, 9, 99).every(({ queries }) => queries.start < 9)).toBe(true);
    expect(largestCells(found, 10, 99).some(({ queries }) => queries.start === 9)).toBe(true);
  });
});

describe("scales", () => {
  test("one range for both sides, from the least to the greatest", async () => {
    const { a, b } = (await shown(comparisonOf(FULL, CAUSAL))).pictures;
    expect(sharedRange(a, b).high).toBe(1);
    expect(sharedRange({ ...a, low: null, high: null }, b).high).toBe(1);
    expect(sharedRange({ ...a, low: null, high: null }, { ...b, low: null, high: null })).toEqual({
      low: null,
      high: null,
    });
    const both = mergedGrid(grid([[0.1, X, -3, X]]), grid([[0.4, 2, 1, X]]));
    expect([...both.values].slice(0, 3).map((value) => Number(value.toFixed(1)))).toEqual([0.4, 2, -3]);
    expect(both.kinds[3]).toBe(BLOCKED);
  });

  test("one range has the least of both, also where a side has none", async () => {
    const { a, b } = (await shown(comparisonOf(WIDE, OTHER))).pictures;
    const between = (one: [number | null, number | null], other: [number | null, number | null]) =>
      sharedRange({ ...a, low: one[0], high: one[1] }, { ...b, low: other[0], high: other[1] });
    expect(between([-2, 3], [-1, 5])).toEqual({ low: -2, high: 5 });
    expect(between([0, 0.5], [0.25, 0.25])).toEqual({ low: 0, high: 0.5 });
    expect(between([null, null], [-1, 5])).toEqual({ low: -1, high: 5 });
  });

  test("both sides as one: the number of larger size, also where the other is no number", () => {
    const both = mergedGrid(grid([[X, -2, 1, Number.NaN], [2, 1, X, 3]]), grid([[1, 2, -3, 4], [-1, X, X, -4]])); // biome-ignore format: one line
    expect([...both.values]).toEqual([1, -2, -3, 4, 2, 1, Number.NaN, -4]);
    expect([...both.kinds.slice(0, 4)]).toEqual([NUMBER, NUMBER, NUMBER, NUMBER]);
    expect([both.rows, both.columns]).toEqual([2, 4]);
  });

  test("both sides as one leaves either as it is, and takes no infinite number", () => {
    const [one, other] = [grid([[1, 2, 3]]), grid([[2, 1, 4]])]; // biome-ignore format: one line
    one.values[2] = Number.POSITIVE_INFINITY;
    one.kinds[2] = PLUS_INF;
    expect([...mergedGrid(one, other).values]).toEqual([2, 2, 4]);
    expect([[...one.values], one.kinds[2], [...other.values]]).toEqual([
      ...[[1, 2, Number.POSITIVE_INFINITY], PLUS_INF, [2, 1, 4]],
    ]);
  });

  test.each([
    [3, -1, [-1, 0, 1, 2, 3]],
    [0.5, -0.3, [-0.4, -0.2, 0, 0.2, 0.4, 0.6]],
    [-1, -3, [-3, -2, -1, 0]],
    [0, -0.05, [-0.05, -0.04, -0.03, -0.02, -0.01, 0]],
    [-0.5, 0, [0, 1]],
    [Number.POSITIVE_INFINITY, 0, [0, 1]],
    [7, 0.5, [0, 2, 4, 6, 8]],
    [26, 0, [0, 10, 20, 30]],
    [9.9, 0, [0, 2, 4, 6, 8, 10]],
  ])("ticks up to %d from %d", (high, low, ticks) => {
    expect(axisTicks(high, low)).toEqual(ticks);
  });

  test("changes fold by their size, with their sign", () => {
    const folded = foldGrid(grid([[0.1, -0.5], [X, 0.2]]), 2, 2, Math.abs); // biome-ignore format: one line
    expect(folded.values[0]).toBe(-0.5);
    expect(foldGrid(grid([[X, X]]), 1, 2, Math.abs).kinds[0]).toBe(BLOCKED);
  });

  test.each([
    [0.293, [0, 0.1, 0.2, 0.3]],
    [0.3, [0, 0.1, 0.2, 0.3]],
    [1, [0, 0.2, 0.4, 0.6, 0.8, 1]],
    [0.0147, [0, 0.005, 0.01, 0.015]],
    [0, [0, 1]],
    [Number.NaN, [0, 1]],
  ])("ticks up to %d", (high, ticks) => {
    expect(axisTicks(high)).toEqual(ticks);
  });
});

describe("where things stand", () => {
  const figure = (width: number, more: object = {}) =>
    layoutCompare({
      width,
      rows: 20,
      columns: 20,
      dpr: 2,
      labels: { query: 50, key: 50, keys: () => 50, keyTicks: false },
      ...more,
    });

  test.each([720, 760, 900, 1099, 1250, 2000])("three pictures and what is between them fit into %d", (width) => {
    const { left, width: each, mode } = figure(width);
    expect(mode).toBe("beside");
    expect(left + 3 * each + 42).toBeLessThanOrEqual(Math.min(width, 1280));
    expect(3 * each).toBeGreaterThan(0.8 * (Math.min(width, 1280) - left - 42) - 60);
  });

  test.each([320, 519, 719])("one picture at %d", (width) => {
    const { left, width: each } = figure(width);
    expect(left + each).toBeLessThanOrEqual(width);
    expect(each).toBeGreaterThan(0.8 * (width - left));
  });

  test("a pooled picture keeps its own bins at any zoom, folded no more than it must be", () => {
    const size = { queries: 1200, keys: 1200, queryBin: 3, keyBin: 3 };
    const at = figure(900, {
      rows: 400,
      columns: 400,
      dpr: 1,
      labels: { query: 40, key: 40, keys: () => 0, keyTicks: true, queryTicks: true },
    });
    const reach = reachOf(size, at, 1);
    expect(at.fold).toBe(2);
    const bins = [1, 1.9, 2, 8].map((k) => ownCellGrid(reach, { k, x: 0, y: 0 }, size).rows.bin);
    expect(bins).toEqual([6, 6, 3, 3]);
    expect(ownCellGrid(reach, { k: 8, x: 0, y: 0 }, size).levels).toBeNull();
    expect(ownCellGrid(reach, { k: 1, x: 0, y: 0 }, size).rows).toEqual(
      cellGridOf(reach, { k: 1, x: 0, y: 0 }, false).rows,
    );
  });
});
