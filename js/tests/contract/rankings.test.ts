/** Rankings of rows and columns: `rankings.json` is written here and read by pytest (tests/contract/test_rankings.py). */
import { expect, test } from "vitest";
import { BLOCKED, MINUS_INF, NAN, NUMBER, PLUS_INF } from "../../src/contract/decode";
import { rank } from "../../src/data/rank";
import { checkGolden, portable } from "../helpers/golden";

const [NONE, INF] = [Number.NaN, Number.POSITIVE_INFINITY];

/** Sixteenths that sum to 1 or not, in an order that looks like chance: sums of them are exact on any machine. */
function sixteenths(length: number, seed: number): number[] {
  return Array.from({ length }, (_, at) => ((at * at * 7 + at * 13 + seed * 5) % 17) / 16);
}

/** Weights of a long row that halve again and again, scattered over it. */
function halved(length: number, seed: number): number[] {
  const values = new Array<number>(length).fill(0);
  for (let power = 1; power <= 20; power++) values[(power * 7919 + seed * 104_729) % length]! += 2 ** -power;
  return values;
}

/** null is a blocked cell. */
const ROWS: Readonly<Record<string, readonly (number | null)[]>> = {
  "one cell": [1],
  "nothing but zeros": [0, 0, 0],
  "all blocked": [null, null],
  "all alike": [0.25, 0.25, 0.25, 0.25],
  "alike, some blocked": [0.25, null, 0.25, 0.25, null, 0.25],
  "one takes all": [0, 1, 0, 0],
  halves: [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.03125],
  "halves, ties, blocked": [0.25, null, 0.25, 0, 0.5, null, 0],
  NaN: [NONE, 0.5, NONE, 0.5],
  "NaN and blocked": [NONE, null, 0.75, 0.25, null],
  "only NaN": [NONE, NONE],
  "+∞": [1, INF, 2],
  "two times +∞": [INF, 0.5, INF],
  "both infinities": [INF, 1, -INF, 2],
  "−∞ among scores": [-INF, 2, -1.5, -INF, 0.5],
  "only −∞": [-INF, -INF],
  scores: [3, -2, 0.5, -8, 0.125, 3],
  "negative scores": [-3, -2, -0.5],
  "sums above 1": [1, 0.5, 0.75, 1, 0.25],
  "sums below 1": [0.0625, 0.125, 0.0625],
  ...Object.fromEntries([7, 16, 64, 300].map((length) => [`sixteenths of ${length}`, sixteenths(length, length)])),
  "sixteenths, each third blocked": sixteenths(90, 4).map((value, at) => (at % 3 === 1 ? null : value)),
  "scores of 120": sixteenths(120, 9).map((value, at) => (at % 2 ? -value : value) * 8),
  ...Object.fromEntries([1, 2, 3].map((seed) => [`halved, ${seed}`, halved(500, seed)])),
  "a sink beside halves": [0.25, 0.125, null, 0.25, 0.125],
  "a sink alone": [null, null],
  "a sink of nothing": [0.5, 0.25, 0.25],
  "a sink beside scores": [2, -1, 0.5],
};

/** Of some rows, what the learned sink beside them takes. */
const SINKS: Readonly<Record<string, number>> = {
  "a sink beside halves": 0.25,
  "a sink alone": 1,
  "a sink of nothing": 0,
  "a sink beside scores": -1.5,
};

const kindOf = (value: number | null) => {
  if (value === null) return BLOCKED;
  if (Number.isNaN(value)) return NAN;
  return value === INF ? PLUS_INF : value === -INF ? MINUS_INF : NUMBER;
};

test("rows are ranked as Python ranks them", () => {
  const rankings = Object.entries(ROWS).flatMap(([name, row]) => {
    const values = Float32Array.from(row, (value) => value ?? NONE);
    const kinds = Uint8Array.from(row, kindOf);
    return [1, 3, 12].map((count) => {
      const found = rank(values, kinds, count, SINKS[name] ?? null);
      return {
        name,
        count,
        top: found.top,
        values: found.values.map(portable),
        allowed: found.allowed,
        blocked: found.blocked,
        nan: found.nan,
        sum: portable(found.sum),
        rest: { count: found.rest.count, sum: portable(found.rest.sum) },
        entropy: portable(found.entropy),
        max_entropy: found.maxEntropy,
        ninety: found.ninety,
        ...(found.sink === null ? {} : { sink: found.sink }),
      };
    });
  });
  expect(rankings.length).toBeGreaterThanOrEqual(60);
  const rows = Object.entries(ROWS).map(([name, row]) => ({
    name,
    row: row.map((value) => (value === null ? null : portable(value))),
  }));
  checkGolden("rankings.json", { rows, rankings });
});
