/** Masses are read as Python's `by_segment` reads them: `tests/contract/segments.json`, written by test_segments.py. */

import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import type { Measure } from "../../src/contract/values";
import type { Masses } from "../../src/data/segment-data";
import { isLogarithmic, leftOf, readingAt, restOf } from "../../src/data/segments";
import { contractFile } from "../helpers/golden.ts";

type Rows = number[][];

interface Golden extends Record<"mass" | "even" | "self" | "self_even", Rows> {
  keys: string[];
  sizes: number[];
  /** Of so many rows and columns, signed or not: whether colors are logarithmic. */
  scales: [rows: number, columns: number, signed: boolean, log: boolean][];
  readings: { aside: string[]; measure: Measure; keys: string[]; values: (number | null)[][] }[];
}

const golden = JSON.parse(readFileSync(contractFile("segments.json"), "utf8")) as Golden;
const flat = (rows: Rows) => Float32Array.from(rows.flat());
const masses: Masses = {
  ...{ rows: golden.mass.length, columns: golden.keys.length, mass: flat(golden.mass), even: flat(golden.even) },
  ...{ self: flat(golden.self), selfEven: flat(golden.self_even) },
};

describe("a reading of masses", () => {
  test.each(golden.readings.map((one) => [one.measure, one.aside.join(", ") || "nothing", one] as const))(
    "%s without %s is that of by_segment",
    (_, __, { aside, measure, keys, values }) => {
      const rest = restOf(masses, leftOf(golden.keys, aside), { own: "each" });
      values.forEach((row, at) => {
        row.forEach((wanted, column) => {
          const found = readingAt(rest, golden.sizes, at, golden.keys.indexOf(keys[column]!), measure);
          // Where no query may attend the page says nothing, Python 0.
          if (wanted === null || (wanted === 0 && Number.isNaN(found))) expect(found).toBeNaN();
          else expect(Math.abs(found - wanted)).toBeLessThan(1e-5 * Math.max(1, Math.abs(wanted)));
        });
      });
      expect(golden.keys.filter((name) => !keys.includes(name)).length).toBe(golden.keys.length - keys.length);
    },
  );

  test("is a share of what is left, also of the largest of several heads, which do not sum to 1", () => {
    const twice = { ...masses, mass: masses.mass.map((value) => 2 * value) };
    const rest = restOf(twice, leftOf(golden.keys, []), { own: "each" });
    expect(rest.mass[5]).toBeCloseTo(masses.mass[5]!, 5);
  });
});

test("colors are logarithmic where they are in a figure", () => {
  for (const [rows, columns, signed, log] of golden.scales) expect(isLogarithmic(rows, columns, signed)).toBe(log);
});
