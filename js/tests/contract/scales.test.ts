/** Places on the ramp: `scales.json` is written here and read by pytest (tests/contract/test_scales.py). */
import { expect, test } from "vitest";
import { type Grid, NUMBER, type Picture } from "../../src/contract/decode";
import type { ColorRange, ColorScaleName } from "../../src/contract/values";
import { scaleOf } from "../../src/draw/color";
import { makeColorMapper } from "../../src/draw/color-mapper";
import { checkGolden, portable } from "../helpers/golden";

/** Ends and values are dyadic, so that linear places are the same to the last bit. */
const ENDS: readonly (readonly [low: number, high: number])[] = [
  [0, 1],
  [0, 0.625],
  [0, 0.015625],
  [0, 2 ** -30],
  [0, 48],
  [0.125, 0.5],
  [2 ** -12, 1],
  [-4, 1.5],
  [-0.25, 8],
  [-3, -1],
  [0, 0],
  [0.5, 0.5],
];
const SHARES = [
  0,
  2 ** -30,
  2 ** -12,
  2 ** -7,
  0.0625,
  0.125,
  0.25,
  0.375,
  0.5,
  0.6875,
  0.75,
  0.875,
  1,
  1.25,
  -0.5,
  -1,
  -2,
];

const valuesOf = (high: number) => [
  ...SHARES.map((share) => share * (high === 0 ? 1 : high)),
  Number.NaN,
  Infinity,
  -Infinity,
];

const PICTURES: Readonly<Record<string, readonly (readonly number[])[]>> = {
  weights: [
    [1, 0, 0, 0],
    [0.75, 0.25, 0, 0],
    [0.125, 0.125, 0.5, 0.25],
    [0, 0, 0, 0],
  ],
  scores: [
    [-4, 2, 0.5],
    [0, 0.125, 8],
    [-0.25, 0, 0],
  ],
};
const RANGES: readonly ColorRange[] = ["head", "row", "unit", [0, 0.5], [-2, 8], [0.125, 1]];

function gridOf(rows: readonly (readonly number[])[]): Grid {
  const values = Float32Array.from(rows.flat());
  return {
    rows: rows.length,
    columns: rows[0]!.length,
    values,
    kinds: new Uint8Array(values.length).fill(NUMBER),
  } as Grid;
}

test("values take the place on the ramp that Python gives them", () => {
  const made = {
    scales: (["sequential", "diverging"] as const).flatMap((kind) =>
      (["linear", "log"] as const).flatMap((scale) =>
        ENDS.map(([low, high]) => {
          const { position } = scaleOf({ kind, scale, low, high });
          const values = valuesOf(Math.max(Math.abs(low), Math.abs(high)));
          return { kind, scale, low, high, places: values.map((value) => [portable(value), position(value)]) };
        }),
      ),
    ),
    pictures: Object.entries(PICTURES).flatMap(([stage, rows]) =>
      (["linear", "log"] satisfies ColorScaleName[]).flatMap((scale) =>
        RANGES.map((range) => {
          const grid = gridOf(rows);
          const [low, high] = [Math.min(...rows.flat()), Math.max(...rows.flat())];
          const mapper = makeColorMapper({ low, high } as Picture, grid, stage === "scores", scale, range);
          const places = rows.map((row, at) => row.map((value) => mapper.position(value, at)));
          return { stage, scale, range, rows, low, high, places };
        }),
      ),
    ),
  };
  expect(
    made.scales.flatMap(({ places }) => places).every(([, place]) => Number(place) >= 0 && Number(place) <= 1),
  ).toBe(true);
  checkGolden("scales.json", made);
});
