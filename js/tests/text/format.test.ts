import { describe, expect, test } from "vitest";
import {
  cellNumber,
  count,
  legendNumber,
  legendTicks,
  listNumber,
  percent,
  signed,
  statusNumber,
} from "../../src/text/format";

test.each([
  [0.2283, ".23"],
  [1, "1.00"],
  [0.9999, "1.00"],
  [0.0051, ".01"],
  [0.0049, ""],
  [0, ""],
  [Number.NaN, ""],
])("a weight of %s reads %j in its cell", (value, text) => {
  expect(cellNumber(value, "weights")).toBe(text);
});

test.each([
  [4.451, "4.5"],
  [-4.451, "−4.5"],
  [0.016, ".02"],
  [-0.016, "−.02"],
  [0.98, ".98"],
  [-0.98, "−.98"],
  [-0.996, "−1.0"],
  [25.18, "25"],
  [-25.18, "−25"],
  [0, "0"],
  [-0.001, ""],
  [0.001, ""],
  [1234, "1234"],
  [-1234, "−1234"],
  [-123456, "−1e5"],
  [123.4, "123"],
  [99.96, "100"],
  [123456, "1e5"],
  [Infinity, "+∞"],
  [-Infinity, "−∞"],
])("a score of %s reads %j in its cell", (value, text) => {
  expect(cellNumber(value, "scaled")).toBe(text);
});

test("a number in a cell has as many decimals below zero as above", () => {
  for (let value = 0.0013; value < 2e6; value *= 1.07) {
    expect(cellNumber(-value, "scores").replace("−", "")).toBe(cellNumber(value, "scores"));
    const text = cellNumber(-value, "scores");
    expect(text === "" || Number(text.replaceAll("−", "-")) < 0, text).toBe(true); // never −0, nor 0 on blue
  }
});

test("a weight of 1 may be shorter, where cells are small; others keep their decimals", () => {
  expect([1, 0.998, 0.23].map((value) => cellNumber(value, "weights", 1))).toEqual(["1.0", "1.0", ".23"]);
});

test.each([
  [0.2283, ".2283"],
  [0.0024, ".0024"],
  [0, "0"],
  [1, "1.0000"],
  [3.1e-7, "3.1e−7"],
  [0.00009, "9.0e−5"],
  [0.0001, ".0001"],
  [Number.NaN, "NaN"],
])("a weight of %s is listed as %j", (value, text) => {
  expect(listNumber(value, "weights")).toBe(text);
});

test.each([
  [25.18, "25.180"],
  [-4.4514, "−4.451"],
  [0.25, "0.250"],
  [0.0004, "4.0e−4"],
  [-3.1e-7, "−3.1e−7"],
  [-3.4e38, "−3.4e38"],
  [0, "0"],
  [-Infinity, "−∞"],
])("a score of %s is listed as %j", (value, text) => {
  expect(listNumber(value, "masked")).toBe(text);
});

test.each([
  [0.228342, "0.228342"],
  [-28.1, "−28.100000"],
  [1, "1.000000"],
  [0.99999994, "0.99999994"],
  [0, "0"],
  [3.124e-7, "3.124e−7"],
  [Infinity, "+∞"],
])("the status line shows %s as %j", (value, text) => {
  expect(statusNumber(value)).toBe(text);
});

test("counts, shares and changes", () => {
  expect([count(0), count(999), count(16384), count(1234567)]).toEqual(["0", "999", "16,384", "1,234,567"]);
  expect([percent(0.9), percent(0.191, 1), percent(0)]).toEqual(["90 %", "19.1 %", "0 %"]);
  expect([signed(0.0489), signed(-0.2283), signed(0), signed(1.5, "scores")]).toEqual([
    "+.0489",
    "−.2283",
    "0",
    "+1.500",
  ]);
});

describe("legend", () => {
  const texts = (...args: Parameters<typeof legendTicks>) =>
    legendTicks(...args)
      .map(({ text }) => text)
      .join(" ");

  test.each([
    [0.62, "0 .2 .4 .62"],
    [0.8, "0 .4 .8"],
    [1, "0 .5 1"],
    [0.3, "0 .1 .2 .3"],
    [0.9, "0 .3 .6 .9"],
    [0.031, "0 .01 .02 .031"],
    [0.6187, "0 .2 .4 .62"],
    [3e-7, "0 1e−7 2e−7 3.0e−7"],
  ])("linear weights up to %s", (high, text) => {
    expect(texts(0, high, "linear", "weights")).toBe(text);
  });

  test.each([
    [0.62, ".001 .01 .1 .62"],
    [1, ".001 .01 .1 1"],
    [0.12, ".00012 .001 .01 .12"],
    [0.02, "2.0e−5 .0001 .001 .02"],
  ])("log weights up to %s", (high, text) => {
    expect(texts(0, high, "log", "weights")).toBe(text);
  });

  test("scores: both ends and zero, linear even when log is chosen", () => {
    expect(texts(-28.13, 12, "linear", "scores")).toBe("−28.1 0 28.1");
    expect(texts(-5, 5, "log", "scaled")).toBe("−5.0 0 5.0");
    expect(texts(-0.25, 0.1, "linear", "scaled")).toBe("−.25 0 .25");
    expect(texts(0, 12345, "linear", "scores")).toBe("−12,345 0 12,345");
  });

  test("an own range shows both its ends; one value alone shows once", () => {
    expect(texts(0.1, 0.5, "linear", "weights")).toBe(".1 .2 .4 .5");
    expect(texts(0, 0, "linear", "weights")).toBe("0");
    expect(texts(0, 0, "linear", "scores")).toBe("0");
  });

  test("values stand where their text says, and no two stand too close, at any range", () => {
    for (let high = 0.011; high <= 1; high *= 1.037) {
      for (const minGap of [0.1, 0.14, 0.3]) {
        const ticks = legendTicks(0, high, "linear", "weights", minGap);
        expect(ticks.length).toBeGreaterThanOrEqual(2);
        expect(ticks.length).toBeLessThanOrEqual(4);
        expect([ticks[0]?.value, ticks.at(-1)?.value]).toEqual([0, high]);
        ticks.slice(1).forEach(({ value, text }, index) => {
          expect((value - (ticks[index]?.value as number)) / high).toBeGreaterThanOrEqual(minGap - 1e-9);
          expect(Math.abs(Number(text) - value)).toBeLessThanOrEqual(0.005);
        });
      }
    }
  });
});

describe("at a bound", () => {
  const ticks = (low: number, high: number, gap?: number) =>
    legendTicks(low, high, "linear", "weights", gap).map(({ value }) => value);

  test("a tick may be as near to its neighbor as it may be, and no nearer", () => {
    expect(ticks(0, 1, 0.5)).toEqual([0, 0.5, 1]);
    expect(ticks(0, 1, 0.6)).toEqual([0, 1]);
    expect(ticks(0.18, 1)).toEqual([0.18, 0.5, 0.75, 1]);
  });

  test("an end of a range is written as its size asks", () => {
    expect(legendNumber(0.25, "weights")).toBe(".25");
    expect([99.94, 100, 1, 99_999, 1e5].map((value) => legendNumber(value, "scores"))).toEqual([
      ...["99.9", "100", "1.0", "99,999", "1.0e5"],
    ]);
  });

  test("nothing is below zero that reads as zero; a weight of one may be short", () => {
    expect([percent(-0.001), percent(-0.01)]).toEqual(["0 %", "−1 %"]);
    expect([cellNumber(0.995, "weights", 0), cellNumber(0.994, "weights", 0)]).toEqual(["1", ".99"]);
  });
});
