/** Rules that exist twice: `rules.json` is written here and read by pytest (tests/contract/test_rules.py). */
import { expect, test } from "vitest";
import type { Picture } from "../../src/contract/decode";
import type { Pin } from "../../src/contract/values";
import { disagreement, LEAST_LOST, ordered, placeOn, scalesOf } from "../../src/data/effects";
import { headsInForce, pinsInForce } from "../../src/data/selection";
import { isPadding, paddedRows } from "../../src/state/padding";
import { labels } from "../../src/text/labels";
import { lossText } from "../../src/views/segments/effect/bars";
import { checkGolden, portable } from "../helpers/golden";

const [NONE, INF] = [Number.NaN, Number.POSITIVE_INFINITY];

/** Masses, and the losses without the same parts; null is not run yet. */
const EFFECTS: readonly (readonly [masses: readonly number[], losses: readonly (number | null)[]])[] = [
  [[], []],
  [[0.5], [null]],
  [
    [0, 0],
    [0, 0],
  ],
  [
    [0.61, 0.22, 0.05, 0.12],
    [2.38, 0.41, 3.1, -0.08],
  ],
  [
    [0.1, 0.9],
    [0.004, 1e-7],
  ],
  [
    [0.31, 0.002],
    [-4.2, -0.3],
  ],
  [
    [1, 0.4, 0.2],
    [INF, 0.7, NONE],
  ],
  [
    [1, 0.4, 0.2],
    [-INF, 0.7, 0.1],
  ],
  [
    [12.5, 3, NONE, 7],
    [123.4, null, 5, 61],
  ],
  [
    [250, 100],
    [1, 0.5],
  ],
  [
    [1.2e-5, 3e-6],
    [2e-7, 4e-8],
  ],
  [
    [0.4, 0.6],
    [0.5, 0.5],
  ],
];

const LOSSES = [0, -0, 0.001, -0.001, 0.005, 0.0049, 0.08, -0.08, 0.41, 1, 2.375, 9.999, 99.994, 100, 123.5, -250.4];

interface Padded {
  readonly queries: readonly string[] | null;
  readonly keys: readonly string[] | null;
  readonly lengths: readonly [number, number];
  /** The first key that a padding mask blocks. */
  readonly start: number | null;
  /** Queries in a drawn row. */
  readonly each: number;
}

const TEXT = "[CLS] the bank [SEP] [PAD] [PAD] [PAD]".split(" ");
const FIRST = "<pad> <pad> <s> ▁the ▁bank".split(" ");

const PADDED: readonly Padded[] = [
  ...[1, 2, 3].map((each) => ({ queries: TEXT, keys: TEXT, lengths: [7, 7] as const, start: null, each })),
  { queries: TEXT, keys: TEXT, lengths: [7, 7], start: 4, each: 1 },
  { queries: FIRST, keys: FIRST, lengths: [5, 5], start: null, each: 1 },
  { queries: FIRST, keys: null, lengths: [5, 9], start: 2, each: 2 },
  { queries: null, keys: null, lengths: [6, 6], start: 3, each: 1 },
  { queries: "a b c d e f".split(" "), keys: "a b c d e f".split(" "), lengths: [6, 6], start: 3, each: 2 },
  { queries: "a b c d e f".split(" "), keys: "a b c d x f".split(" "), lengths: [6, 6], start: 3, each: 1 },
  { queries: "<|pad|> [pad] <padding> pad PAD paddle".split(" "), keys: null, lengths: [6, 4], start: null, each: 1 },
];

/** `head` and `heads`; `query`, `key` and `pins`. */
const HEADS: readonly (readonly [head: number, heads: readonly number[]])[] = [
  [0, []],
  [0, [0]],
  [2, [0, 1]],
  [1, [3, 1, 2]],
];
const PINS: readonly (readonly [query: number | null, key: number | null, pins: readonly Pin[]])[] = [
  [null, null, []],
  [null, null, [[1, 2]]],
  [1, 2, [[1, 2]]],
  [1, null, [[1, 2]]],
  [
    1,
    null,
    [
      [0, 4],
      [1, null],
    ],
  ],
  [
    0,
    4,
    [
      [0, 4],
      [1, 2],
    ],
  ],
  [null, 3, []],
];

test("rules are those that Python follows", () => {
  const made = {
    effects: EFFECTS.flatMap(([masses, losses]) =>
      [LEAST_LOST, 1e-6].map((least) => {
        const scales = scalesOf(
          masses,
          losses.map((one) => one ?? NONE),
          least,
        );
        const things = masses.map((mass, at) => ({ at, mass, lost: losses[at] ?? null }));
        return {
          masses: masses.map(portable),
          losses: losses.map((one) => (one === null ? null : portable(one))),
          nats: least === LEAST_LOST,
          scales: [scales.mass, scales.lost, scales.parts, scales.left],
          places: [-1, -0.2, 0, 0.3, 1, 2].map((share) => placeOn(scales, share) / 100),
          words: things.map(({ mass, lost }) => disagreement(scales, mass, lost)),
          order: ordered(things, "effect").map(({ at }) => at),
        };
      }),
    ),
    losses: [...LOSSES, NONE, INF, -INF, null].map((one) => [
      one === null ? null : Object.is(one, -0) ? "-0" : portable(one),
      lossText(one),
    ]),
    padding: PADDED.map((one) => {
      const [queries, keys] = one.lengths;
      const known = {
        queryLabels: { value: labels(one.queries, queries) },
        keyLabels: { value: labels(one.keys, keys) },
      } as never;
      const picture = { padding: one.start, queries, keys } as Picture;
      const rows = paddedRows(known, picture, { start: 0, stop: Math.ceil(queries / one.each) }, one.each);
      return {
        ...one,
        padded: Array.from({ length: queries }, (_, query) => isPadding(known, picture, query)),
        runs: rows.map(({ start, stop }) => [start, stop]),
      };
    }),
    heads: HEADS.map(([head, heads]) => [head, heads, headsInForce(head, heads)]),
    pins: PINS.map(([query, key, pins]) => [query, key, pins, pinsInForce(query, key, pins)]),
  };
  expect(made.effects.flatMap(({ words }) => words).filter(Boolean).length).toBeGreaterThanOrEqual(4);
  checkGolden("rules.json", made);
});
