/** What segments give to segments: set aside, read in three ways, ordered; where they are. */

import { describe, expect, test } from "vitest";
import { decodeSegments, type Masses } from "../../src/data/segment-data";
import {
  byLargest,
  evenAt,
  hasInside,
  largest,
  largestSize,
  leftOf,
  levelsOf,
  MEASURE_WORDS,
  MEASURES,
  meanOf,
  measureOf,
  pieceAt,
  piecesBelow,
  piecesOf,
  rankAmong,
  readingAt,
  restOf,
  roundUp,
  slotOf,
} from "../../src/data/segments";
import { bytesOf, segmentsOf, wholes } from "../helpers/segments.ts";

const KEYS = ["first token", "doc 1", "answer"];
const SIZES = [1, 4, 2];
const f = (...numbers: number[]) => Float32Array.from(numbers);

const MASSES: Masses = {
  ...{ rows: 2, columns: 3 },
  mass: f(0.5, 0.375, 0.125, 0, 0.25, 0.75),
  even: f(0.125, 0.5, 0.375, 0.25, 0.5, 0.25),
  self: f(0, 0.125, 0, 0, 0, 0.25),
  selfEven: f(0, 0.0625, 0, 0, 0, 0.125),
};
const rest = (aside: string[]) => restOf(MASSES, leftOf(KEYS, aside), { own: "each" });

describe("set aside", () => {
  test("what is left is a share of its sum, mass and even alike", () => {
    const { mass, even, raw, aside } = rest(["first token"]);
    expect([...mass]).toEqual([Number.NaN, 0.75, 0.25, Number.NaN, 0.25, 0.75]);
    expect(even[1]).toBeCloseTo(0.5 / 0.875);
    expect([...raw.slice(0, 3)]).toEqual([0.5, 0.375, 0.125]);
    expect([...aside]).toEqual([0.5, 0]);
  });

  test("of each query's own key both numbers are taken off, in the column that it is in", () => {
    const { mass, even, aside } = rest(["first token", "self"]);
    expect(mass[1]).toBeCloseTo(0.25 / 0.375);
    expect(even[1]).toBeCloseTo(0.4375 / 0.8125);
    expect([...aside]).toEqual([0.625, 0.25]);
    const rows = { ...MASSES, self: f(0.125, 0.25), selfEven: f(0.0625, 0.125) };
    const byRow = restOf(rows, leftOf(KEYS, ["first token", "self"]), { own: Uint32Array.of(1, 3) });
    expect(byRow.mass[1]).toBeCloseTo(0.25 / 0.375);
    expect(byRow.aside[1]).toBe(0); // its own key is in no column
  });

  test("sinks are the first token and the learned sink", () => {
    const left = leftOf([...KEYS, "learned sink"], ["sink"]);
    expect(left).toEqual({ columns: [1, 2], without: [0, 3], self: true });
  });

  test("nothing left is no number, not zero", () => {
    const { mass, aside } = rest(KEYS);
    expect([...mass].every(Number.isNaN)).toBe(true);
    expect([...aside]).toEqual([1, 1]);
  });

  test.each([
    ["the first token", ["first token"]],
    ["the first token and the own key", ["first token", "self"]],
  ])("where not all columns are there, %s leave the same shares by the sums over all", (_, aside) => {
    const of = (numbers: Float32Array) =>
      Float32Array.from({ length: 2 }, (_, row) => numbers.slice(3 * row, 3 * row + 3).reduce((a, b) => a + b, 0));
    const { mass, even, self, selfEven } = MASSES;
    const sums = { rows: 2, columns: 1, mass: of(mass), even: of(even), self: of(self), selfEven: of(selfEven) };
    const two = (numbers: Float32Array) => f(numbers[0]!, numbers[1]!, numbers[3]!, numbers[4]!);
    const some = { rows: 2, columns: 2, mass: two(mass), even: two(even), self: two(self), selfEven: two(selfEven) };
    const all = rest(aside);
    const part = restOf(some, leftOf(KEYS.slice(0, 2), aside), { own: "each", sums });
    for (const row of [0, 1]) {
      expect(part.mass[2 * row + 1]).toBeCloseTo(all.mass[3 * row + 1]!);
      expect(part.even[2 * row + 1]).toBeCloseTo(all.even[3 * row + 1]!);
      expect(part.aside[row]).toBeCloseTo(all.aside[row]!);
    }
  });

  test("a row that is not known stays so", () => {
    const unknown = { ...MASSES, mass: f(Number.NaN, Number.NaN, Number.NaN, 0, 0.25, 0.75) };
    const { mass } = restOf(unknown, leftOf(KEYS, []), { own: "each" });
    expect(Number.isNaN(mass[1])).toBe(true);
    expect(mass[4]).toBe(0.25);
  });
});

describe("readings", () => {
  test("mass, mass for each token, mass over even attention", () => {
    const now = rest([]);
    expect(readingAt(now, SIZES, 0, 1, "mass")).toBe(0.375);
    expect(readingAt(now, SIZES, 0, 1, "per_token")).toBe(0.09375);
    expect(readingAt(now, SIZES, 0, 1, "lift")).toBe(0.75);
    expect(evenAt(now, SIZES, 0, 1, "per_token")).toBe(0.125);
    expect(evenAt(now, SIZES, 0, 1, "lift")).toBe(1);
  });

  test("where no key is allowed there is no number; a learned sink has no tokens and no lift", () => {
    const masked = { ...MASSES, mass: f(0.5, 0, 0.5, 0, 0, 1), even: f(0, 0, 1, 0.5, 0.5, 0) };
    const now = restOf(masked, leftOf(KEYS, []), { own: "each" });
    expect(readingAt(now, SIZES, 0, 1, "mass")).toBeNaN();
    expect(readingAt(now, SIZES, 1, 1, "mass")).toBe(0); // allowed, and given nothing
    expect(readingAt(now, [0, 4, 2], 0, 0, "per_token")).toBeNaN();
    expect(readingAt(now, SIZES, 0, 0, "lift")).toBeNaN();
  });
});

describe("order", () => {
  test("the largest first, those without a number last", () => {
    expect(byLargest(["a", "b", "c", "d"], (name) => ({ a: 1, b: Number.NaN, c: 3, d: 1 })[name]!)).toEqual([
      "c",
      "a",
      "d",
      "b",
    ]);
    expect(rankAmong([1, 3, Number.NaN, 3], 0)).toEqual({ rank: 3, of: 3 });
    expect(rankAmong([1, Number.NaN], 1)).toBeNull();
    expect(meanOf([1, Number.NaN, 3])).toBe(2);
    expect(meanOf([])).toBeNaN();
    expect(largest([Number.NaN, 0.2, -1])).toBe(0.2);
  });

  test("an axis ends at a round number that is no less", () => {
    expect([0.245, 0.3, 0.0011, 7.2, 0, Number.NaN].map(roundUp)).toEqual([0.3, 0.3, 0.0015, 8, 1, 1]);
  });
});

describe("places", () => {
  test("pieces of a level, below a path, at a token", async () => {
    const segments = await decodeSegments(segmentsOf());
    expect(levelsOf(segments)).toBe(2);
    expect(piecesBelow(segments).map(({ name }) => name)).toEqual(["first token", "doc 1", "question", "answer"]);
    expect(piecesBelow(segments, ["doc 1"])).toEqual([
      { name: "sentence 1", start: 1, stop: 3 },
      { name: "sentence 2", start: 3, stop: 4 },
    ]);
    expect(piecesBelow(segments, ["question"])).toEqual([]);
    expect(piecesOf(segments, 1)).toHaveLength(2);
    expect(hasInside(segments, [], "doc 1")).toBe(true);
    expect(hasInside(segments, ["doc 1"], "sentence 1")).toBe(false);
    expect(pieceAt(piecesBelow(segments), 5)?.name).toBe("question");
    expect(pieceAt(piecesBelow(segments), 8)).toBeNull();
    expect(slotOf(segments, "question")).toBe(1);
    expect(slotOf(segments, "nothing")).toBe(-1);
  });
});

describe("numbers", () => {
  test("the largest, by value or by size, of those that are one", () => {
    expect([largest([0.5, 2, 1]), largest([-3, -1]), largest([])]).toEqual([2, 0, 0]);
    expect([largestSize([0.5, -2, 1]), largestSize([Number.NaN, 1]), largestSize([])]).toEqual([2, 1, 0]);
  });

  test("a mean and a rank are of what is known", () => {
    expect(meanOf([Number.NaN])).toBeNaN();
    expect(meanOf([-1, 2, 5, Number.NaN])).toBe(2);
    expect(rankAmong([1, 3, Number.NaN, 2], 1)).toEqual({ rank: 1, of: 3 });
    expect(rankAmong([1, 3, 2], 3)).toBeNull();
    expect(byLargest([Number.NaN, -1, Number.NaN, 0, -1], (one) => one).map(String)).toEqual([
      ...["0", "-1", "-1", "NaN", "NaN"],
    ]);
    expect(byLargest(["b", "a", "c"], () => 1)).toEqual(["b", "a", "c"]);
  });

  test.each([
    [1, 1],
    [1.01, 1.5],
    [1.5, 1.5],
    [1.6, 2],
    [2.5, 3],
    [3.1, 4],
    [4.5, 5],
    [5.5, 6],
    [6.5, 8],
    [8.5, 10],
    [0.00072, 0.0008],
    [12_345, 15_000],
    [-1, 1],
    [Number.POSITIVE_INFINITY, 1],
    [0.3 + 1e-12, 0.3],
  ])("an axis for %d ends at %d", (value, end) => {
    expect(roundUp(value)).toBe(end);
  });

  test("are read in three ways, which have names", () => {
    expect(MEASURES.map((measure) => MEASURE_WORDS[measure])).toEqual(["mass", "per token", "lift"]);
  });
});

describe("what is set aside", () => {
  test("goes by name; sinks are more than one, and the own key is no column", () => {
    expect(leftOf([...KEYS, "learned sink"], ["doc 1", "self"])).toEqual({
      ...{ columns: [0, 2, 3], without: [1], self: false },
    });
    expect(leftOf(KEYS, ["learned sink"])).toEqual({ columns: [0, 1, 2], without: [], self: true });
    expect(leftOf(["sink", ...KEYS], ["sink"])).toEqual({ columns: [2, 3], without: [0, 1], self: true });
  });

  test("an own part is never more than the weight, where these are shares", () => {
    const more = { ...MASSES, self: f(0, 0.5, 0, 0, 0, 1), selfEven: f(0, 0.75, 0, 0, 0, 0.5) };
    const { mass, raw, even, aside } = restOf(more, leftOf(KEYS, ["self"]), { own: "each" });
    expect([raw[1], raw[5], even[1], even[5]]).toEqual([0, 0, 0, 0]);
    expect([...aside]).toEqual([0.375, 0.75]);
    expect([mass[0], mass[4]]).toEqual([Math.fround(0.5 / 0.625), 1]);
  });

  test("of rows with one own key each, it is in the column that the row names", () => {
    const rows = { ...MASSES, self: f(0.125, 0.5), selfEven: f(0.0625, 0.125) };
    const { raw, even, aside } = restOf(rows, leftOf(KEYS, ["self"]), { own: Uint32Array.of(2, 2) });
    expect([...raw]).toEqual([0.5, 0.375, 0, 0, 0.25, 0.25]);
    expect([...aside]).toEqual([0.125, 0.5]);
    expect(even[2]! / even[0]!).toBeCloseTo(0.3125 / 0.125);
    expect(even[5]! / even[3]!).toBeCloseTo(0.125 / 0.25);
  });

  test("with sums over columns that are not here, the own part is off them too, and no sum is below 0", () => {
    const sums = { rows: 2, columns: 1, mass: f(1, 0.5), even: f(2, 1), self: f(0.25, 0.75), selfEven: f(0.5, 0.25) };
    const { mass, even, aside } = restOf(MASSES, leftOf(KEYS, ["first token", "self"]), { own: "each", sums });
    // Row 0: 1 − .25 own − .5 of the first token, which holds no own key; even 2 − .5 − .125.
    expect([mass[1], mass[2]]).toEqual([1, 0.5]);
    expect(even[1]).toBeCloseTo(0.4375 / 1.375);
    // Row 1: .5 − .75 is below 0: nothing is left, and all of the sum is aside.
    expect([mass[4], aside[0], aside[1]]).toEqual([Number.NaN, 0.75, 0.5]);
    const signed = restOf(MASSES, leftOf(KEYS, ["first token", "self"]), { own: "each", sums, shares: false });
    expect([signed.aside[0], signed.aside[1]]).toEqual([0.75, 0.75]);
    expect([signed.mass[1], signed.mass[4]]).toEqual([0.25, 0.25]);
  });

  test("an own key in a column that is set aside is taken off once", () => {
    const own = { ...MASSES, self: f(0.25, 0, 0, 0, 0, 0), selfEven: f(0.0625, 0, 0, 0, 0, 0) };
    const sums = { rows: 2, columns: 1, mass: f(2, 1), even: f(2, 1), self: f(0.25, 0), selfEven: f(0.0625, 0) };
    const { mass, even, aside } = restOf(own, leftOf(KEYS, ["first token", "self"]), { own: "each", sums });
    expect(mass[1]).toBe(0.25); // .375 of 2 − .25 − (.5 − .25)
    expect(even[1]).toBeCloseTo(0.5 / (2 - 0.0625 - 0.0625));
    expect(aside[0]).toBe(0.5);
  });
});

test("what is set aside has its weight still, in every row", () => {
  const left = leftOf(KEYS, [KEYS[1]!]);
  expect([...restOf(MASSES, left, { own: "each" }).raw]).toEqual([...MASSES.mass]);
  const sums = { rows: 2, columns: 1, mass: f(2, 3), even: f(0.25, 2), self: f(0, 0), selfEven: f(0, 0) };
  const { mass, even } = restOf(MASSES, left, { own: "each", sums });
  expect([mass[3], mass[5]]).toEqual([0, Math.fround(0.75 / 2.75)]);
  expect([even[0], even[5]]).toEqual([Number.NaN, Math.fround(0.25 / 1.5)]); // .25 − .5 is nothing even
});

describe("readings of more columns than rows", () => {
  const now = rest([]);
  test("are of their row and column", () => {
    expect([readingAt(now, SIZES, 1, 2, "mass"), readingAt(now, SIZES, 1, 2, "per_token")]).toEqual([0.75, 0.375]);
    expect(readingAt(now, SIZES, 1, 2, "lift")).toBe(3);
    expect(readingAt(now, SIZES, 1, 0, "mass")).toBe(0);
    expect([evenAt(now, SIZES, 1, 2, "mass"), evenAt(now, SIZES, 1, 2, "per_token")]).toEqual([0.25, 0.125]);
    expect(evenAt(now, [1, 4, 0], 1, 2, "per_token")).toBeNaN();
    expect(evenAt({ ...now, even: f(0, 0, 0, 0, 0, 0) }, SIZES, 1, 2, "lift")).toBeNaN();
    expect(readingAt({ ...now, shares: false }, SIZES, 1, 2, "lift")).toBeNaN();
  });
});

describe("pieces", () => {
  test("are below a whole path, not below a part of it", async () => {
    const segments = await decodeSegments({
      ...segmentsOf(),
      names: ["a", "b", "c", "a", "c", "b", "c"],
      starts: wholes([0, 0, 0, 4, 4, 8, 8]),
      stops: wholes([4, 3, 2, 8, 6, 12, 10]),
      levels: bytesOf([0, 1, 2, 0, 1, 0, 1]),
      length: 12,
    });
    const below = (...path: string[]) => piecesBelow(segments, path).map(({ name, start }) => `${name} ${start}`);
    expect(below()).toEqual(["a 0", "a 4", "b 8"]);
    expect(below("a")).toEqual(["b 0", "c 4"]);
    expect(below("a", "b")).toEqual(["c 0"]);
    expect(below("b")).toEqual(["c 8"]);
    expect(below("a", "c")).toEqual([]);
    expect(levelsOf(segments)).toBe(3);
    expect(piecesOf(segments, 1)).toEqual([
      { name: "b", start: 0, stop: 3 },
      { name: "c", start: 4, stop: 6 },
      { name: "c", start: 8, stop: 10 },
    ]);
    expect([hasInside(segments, ["a"], "b"), hasInside(segments, ["b"], "c")]).toEqual([true, false]);
  });

  test("are found at each of their tokens, and not between", () => {
    const pieces = [
      { name: "a", start: 1, stop: 3 },
      { name: "b", start: 3, stop: 4 },
      { name: "c", start: 6, stop: 9 },
    ];
    const found = Array.from({ length: 10 }, (_, at) => pieceAt(pieces, at)?.name ?? "-").join("");
    expect(found).toBe("-aab--ccc-");
    expect(pieceAt([], 0)).toBeNull();
  });
});

test("numbers of a stage are read for each token too; an axis of what is below zero ends at one", () => {
  expect([measureOf("per_token", "scores"), measureOf("lift", "scores"), measureOf("lift", "weights")]).toEqual([
    ...["per_token", "mass", "lift"],
  ]);
  expect([roundUp(-50), roundUp(0), roundUp(Number.NaN)]).toEqual([1, 1, 1]);
});
