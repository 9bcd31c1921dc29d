/** Heads like one stand as in Python: `tests/contract/similar.json`, written by test_similar_agree.py. */

import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { nearest, type Survey } from "../../src/data/survey";
import { contractFile } from "../helpers/golden.ts";

interface Golden {
  metrics: Record<string, (number | null)[]>;
  pictures: number[][][];
  orders: number[][];
}

const GOLDEN = JSON.parse(readFileSync(contractFile("similar.json"), "utf8")) as Golden;

/** What `nearest` reads of a survey. */
const survey = {
  heads: GOLDEN.pictures.map((_, place) => ({ layer: Math.floor(place / 6), head: place % 6 })),
  metrics: Object.entries(GOLDEN.metrics).map(([name, values]) => ({
    name,
    values: Float32Array.from(values, (value) => value ?? Number.NaN),
  })),
  pictures: GOLDEN.pictures.map((rows) => ({
    rows: rows.length,
    columns: rows[0]!.length,
    values: Float32Array.from(rows.flat()),
  })),
} as unknown as Survey;

describe("heads like one", () => {
  it.each(GOLDEN.orders.map((order, own) => ({ own, order })))("stand as in Python, like head $own", ({ own, order }) =>
    expect(nearest(survey, own)).toEqual(order),
  );
});
