/** Geometry of the graph: `graph.json` is written here and read by pytest (tests/contract/test_graph.py). */
import { expect, test } from "vitest";
import {
  bandsOf,
  curvesOf,
  keepLinks,
  type Lane,
  type Link,
  lane,
  strongestLast,
} from "../../src/views/graph/geometry";
import { checkGolden } from "../helpers/golden";

/** Whole numbers that look like chance, the same everywhere. */
function scattered(count: number, below: number, seed: number): number[] {
  return Array.from({ length: count }, (_, at) => (at * at * 31 + at * 7919 + seed * 104_729) % below);
}

type LaneCase = readonly [total: number, keep: readonly number[] | null];

const LANES: readonly LaneCase[] = [
  ...[1, 2, 20, 29, 30, 40, 41, 53, 54, 200, 1000, 65_536].map((total): LaneCase => [total, null]),
  ...[54, 60, 300, 2000, 65_536].flatMap((total): LaneCase[] => [
    [total, []],
    [total, [0]],
    [total, [total - 1]],
    [total, [Math.floor(total / 2)]],
    [total, [1, total - 2]],
    [total, [10, 12, 14]],
    [total, [10, 13, 16, 20]],
    [total, scattered(5, total, 1)],
    [total, scattered(16, total, 2)],
    [total, scattered(40, total, 3)],
    [total, [-1, total, 7]],
  ]),
  [20, [3]],
];

const rowsOf = ({ rows }: Lane) => rows.map((row) => (row.kind === "token" ? row.index : { gap: row.count }));
const link = (query: number, key: number, head: number, weight: number): Link => ({ query, key, head, weight });

/** Dyadic weights: their sums are exact on any machine. */
const LINKS: Readonly<Record<string, readonly Link[]>> = {
  "one link": [link(3, 5, 0, 0.5)],
  "two heads of a query": [
    link(14, 0, 0, 0.25),
    link(14, 5, 0, 0.5),
    link(14, 16, 0, 0.125),
    link(14, 5, 1, 0.875),
    link(14, 3, 1, 0.0625),
  ],
  "a key that receives more than 1": [link(2, 7, 0, 0.5), link(9, 7, 0, 0.875), link(11, 7, 0, 1), link(9, 7, 2, 0.75)],
  "many heads": Array.from({ length: 40 }, (_, head) => link(0, (head * 3) % 20, head, 0.875)),
  "weak links": [link(19, 1, 0, 2 ** -20), link(19, 2, 0, 1), link(19, 3, 1, 2 ** -9)],
  "far apart": [link(10, 0, 0, 0.5), link(10, 1999, 1, 0.25), link(10, 700, 0, 0.125), link(10, 12, 1, 0.5)],
};

/** The columns that bands lie between. */
const COLUMNS: Readonly<Record<string, readonly [queries: LaneCase, keys: LaneCase]>> = {
  short: [
    [20, null],
    [20, null],
  ],
  "of two lengths": [
    [20, null],
    [50, null],
  ],
  folded: [
    [2000, [10]],
    [2000, [0, 1999, 12]],
  ],
  "of a key": [
    [2000, [2, 9, 11]],
    [54, [7]],
  ],
};

const CASES = Object.keys(LINKS).flatMap((links) => Object.keys(COLUMNS).map((columns) => [links, columns] as const));
const FILTERS: readonly (readonly [top: number | null, threshold: number])[] = [
  [null, 0],
  [null, 0.25],
  [1, 0],
  [2, 0.125],
];

test("columns, bands and curves are those that Python draws", () => {
  const lanesOf = (columns: string) =>
    (COLUMNS[columns] ?? []).map(([total, keep]) => lane(total, keep)) as [Lane, Lane];
  const made = {
    lanes: LANES.map(([total, keep]) => {
      const made = lane(total, keep);
      const seen = [-1, 0, 1, Math.floor(total / 2), total - 1, total, ...(keep ?? [])];
      return {
        total,
        keep,
        rows: rowsOf(made),
        pitch: made.pitch,
        height: made.height,
        step: made.step,
        y: seen.map((index) => [index, made.y(index)]),
      };
    }),
    columns: Object.entries(COLUMNS).map(([name, [queries, keys]]) => ({ name, queries, keys })),
    links: Object.entries(LINKS).map(([name, links]) => ({ name, links: links.map(Object.values) })),
    bands: CASES.flatMap(([links, columns]) =>
      (["query", "key"] as const).map((side) => {
        const { bands, stems } = bandsOf(LINKS[links] ?? [], side, ...lanesOf(columns));
        return {
          links,
          columns,
          side,
          bands: bands.map(({ query, key, head, weight, y0, y1, width0, width1, opacity }) => [
            [query, key, head, weight],
            [y0, y1, width0, width1, opacity],
          ]),
          stems: stems.map(({ head, from, to }) => [head, from, to]),
        };
      }),
    ),
    curves: CASES.map(([links, columns]) => ({
      links,
      columns,
      curves: curvesOf(LINKS[links] ?? [], ...lanesOf(columns)).map(
        ({ query, key, head, weight, y0, y1, width0, width1 }) => [
          [query, key, head, weight],
          [y0, y1, width0, width1],
        ],
      ),
    })),
    kept: Object.entries(LINKS).flatMap(([name, links]) =>
      FILTERS.map(([top, threshold]) => ({
        links: name,
        top,
        threshold,
        kept: keepLinks(links, top, threshold).map(Object.values),
        strongest: strongestLast(links, 3).map(Object.values),
      })),
    ),
  };
  const isShort = ({ links, bands }: (typeof made.bands)[0]) => bands.length < (LINKS[links] ?? []).length;
  expect(made.bands.filter(isShort).length).toBeGreaterThan(3); // links of tokens that are folded away
  checkGolden("graph.json", made);
});
