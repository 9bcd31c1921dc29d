/** What segments give to segments: set aside, read in three ways, ordered; where they are. */

import { describe, expect, test } from "vitest";
import { decodeSegments, type Masses } from "../../src/data/segment-data";
import {
  byLargest,
  evenAt,
  hasInside,
  largest,
  leftOf,
  levelsOf,
  meanOf,
  pieceAt,
  piecesBelow,
  piecesOf,
  rankAmong,
  readingAt,
  restOf,
  roundUp,
  slotOf,
} from "../../src/data/segments";
import { segmentsOf } from "../helpers/segments.ts";

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
