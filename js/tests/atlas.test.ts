/** What the pages of an atlas find and write: search, short numbers, fills and curves. */

import { describe, expect, test } from "vitest";
import { brief, headsOf, type Index, matches, percent, rangeOf, share } from "../src/atlas/contents";
import { area, shade } from "../src/atlas/tile";

const index = {
  counts: [2, 3],
  labels: [["previous token"], ["sink, first token"], ["spread"], ["names", "copies"], ["nearby"]],
  sentences: ["Attends to the previous token.", "Rests on the first token.", "Spreads.", "Attends to names.", "Near."],
} as unknown as Index;

describe("heads", () => {
  test("are numbered layer by layer", () => {
    expect(headsOf(index).map(({ layer, head }) => `${layer}·${head}`)).toEqual(["0·0", "0·1", "1·0", "1·1", "1·2"]);
  });

  test.each([
    ["", [0, 1, 2, 3, 4]],
    ["previous token", [0]],
    ["Sink", [1]],
    ["copies names", [3]],
    ["layer 1", [2, 3, 4]],
    ["head 1", [1, 3]],
    ["layer 1 head 1", [3]],
    ["1·2", [4]],
    ["1.2 near", [4]],
    ["revious", []],
  ])("are found by %j", (words, found) => {
    expect(
      headsOf(index)
        .filter((head) => matches(index, head, words))
        .map(({ at }) => at),
    ).toEqual(found);
  });
});

test.each([
  [null, "–"],
  [Number.NaN, "–"],
  [0, "0"],
  [0.0004, "4e−4"],
  [0.234, ".23"],
  [-0.05, "−.05"],
  [0.996, "1.0"],
  [9.96, "10"],
  [1234.5, "1,235"],
])("%d is written %j", (value, text) => {
  expect(brief(value)).toBe(text);
});

test("a cell has no number below .005", () => {
  expect([share(0.004), share(0.006), share(null)]).toEqual(["", ".01", "–"]);
});

test("a range goes from 0 to the largest, and knows about values below 0", () => {
  expect(rangeOf([null, 0.2, 0.1])).toEqual({ most: 0.2, signed: false });
  expect(rangeOf([-0.3, 0.1])).toEqual({ most: 0.3, signed: true });
});

test("a fill is paper at 0, and has the color of its sign", () => {
  expect(shade(null, 1, false)).toBe("transparent");
  expect(shade(0, 1, false)).toContain("calc(0.000 * var(--aw-deepest))");
  expect(shade(5, 1, false)).toContain("calc(1.000 *");
  expect(shade(-1, 1, true)).toContain("--aw-below");
  expect(shade(1, 1, true)).toContain("--aw-above");
});

test("a curve is a step for each bin, as tall as its share of the largest", () => {
  expect(area([0, 2, 1, null])).toBe("M0 1H0.0000V1.0000H0.2500V0.0000H0.5000V0.5000H0.7500V1.0000H1V1Z");
  expect(area([])).toBe("M0 1H1V1Z");
});

test("a share in percent is the nearest whole number, and neither none nor all if there is some", () => {
  for (let i = 0; i < 500; i++) {
    const value = i < 20 ? (i % 10) / 1000 + Math.floor(i / 10) * 0.991 : (i * 0.6180339887) % 1;
    const said = percent(value);
    if (said === "<1 %") expect(value).toBeLessThan(0.005);
    else if (said === ">99 %") expect(value).toBeGreaterThan(0.994);
    else expect(Math.abs(Number(said.replace(" %", "")) - 100 * value)).toBeLessThanOrEqual(0.5 + 1e-9);
  }
  expect([percent(0), percent(1)]).toEqual(["0 %", "100 %"]);
});
