import { describe, expect, test } from "vitest";
import type { Pin } from "../../src/contract/values";
import { headsInForce, pinsInForce, withHeadToggled, withPinToggled } from "../../src/data/selection";

describe("heads", () => {
  test("the list holds where the selected head is in it; else there is that one alone", () => {
    expect(headsInForce(3, [0, 3])).toEqual([0, 3]);
    expect(headsInForce(2, [0, 3])).toEqual([2]);
    expect(headsInForce(2, [])).toEqual([2]);
  });

  test("one more stands in order; one less may be the selected one, and then the first is", () => {
    expect(withHeadToggled([1, 4], 4, 2)).toEqual({ heads: [1, 2, 4], head: 4 });
    expect(withHeadToggled([1, 4], 4, 1)).toEqual({ heads: [4], head: 4 });
    expect(withHeadToggled([1, 4], 4, 4)).toEqual({ heads: [1], head: 1 });
    expect(withHeadToggled([4], 4, 4)).toBeNull();
  });
});

describe("pins", () => {
  test("the list holds where it ends with the selected place; else there is that one alone, or none", () => {
    const pins: [number, number][] = [
      [0, 1],
      [2, 3],
    ];
    expect(pinsInForce(2, 3, pins)).toBe(pins);
    expect(pinsInForce(0, 1, pins)).toEqual([[0, 1]]);
    expect(pinsInForce(null, 1, pins)).toEqual([[null, 1]]);
    expect(pinsInForce(null, null, pins)).toEqual([]);
    expect(pinsInForce(null, null, [])).toEqual([]);
  });

  test("one more is the selected place; without the last the one before it is", () => {
    const one = withPinToggled([], 0, 1);
    expect(one).toEqual({ pins: [[0, 1]], query: 0, key: 1 });
    const two = withPinToggled(one.pins, 2, null);
    expect(two).toEqual({
      pins: [
        [0, 1],
        [2, null],
      ],
      query: 2,
      key: null,
    });
    expect(withPinToggled(two.pins, 2, null)).toEqual(one);
    expect(withPinToggled(one.pins, 0, 1)).toEqual({ pins: [], query: null, key: null });
  });
});

test("a place is the last of its pins, and a pin is one of both its query and its key", () => {
  const pins: Pin[] = [[0, 1], [2, 3], [4, null]]; // biome-ignore format: one line
  expect(pinsInForce(4, null, pins)).toBe(pins);
  expect([pinsInForce(4, 3, pins), pinsInForce(2, null, pins), pinsInForce(2, 3, pins)]).toEqual([
    ...[[[4, 3]], [[2, null]], [[2, 3]]],
  ]);
  expect(pinsInForce(2, null, [])).toEqual([[2, null]]);
  expect(pinsInForce(null, null, [])).toEqual([]);
  const some: Pin[] = [[0, 1], [0, 3], [2, 1]]; // biome-ignore format: one line
  expect(withPinToggled(some, 0, 1)).toEqual({ pins: [[0, 3], [2, 1]], query: 2, key: 1 }); // biome-ignore format: one line
  expect(withPinToggled(some, 2, 3)).toEqual({ pins: [...some, [2, 3]], query: 2, key: 3 });
});
