/** What a weight carries, as it is read here: sums are no shares, the largest links have signs, heads have both. */

import { describe, expect, test } from "vitest";
import type { Picture } from "../../src/contract/decode.ts";
import { linkedStage } from "../../src/contract/stages.ts";
import { linksOfPicture } from "../../src/data/links.ts";
import { evenAt, leftOf, measureOf, readingAt, restOf, sumOf } from "../../src/data/segments.ts";
import { pictureOf, type StageHeads, type Survey, withStage } from "../../src/data/survey.ts";
import { ownRange } from "../../src/draw/color-mapper.ts";
import { bandsOf, bandUnder, keepLinks, lane, strongestLast } from "../../src/views/graph/geometry.ts";

const floats = (...values: number[]) => new Float32Array(values);

describe("sums of a stage", () => {
  const masses = {
    ...{ rows: 1, columns: 3, mass: floats(2, -3, 0.5), even: floats(0.25, 0.5, 0.25) },
    ...{ self: floats(0, -1, 0), selfEven: floats(0, 0.1, 0) },
  };
  test("stay as they are beside what is set aside, and have no lift", () => {
    const rest = restOf(masses, leftOf(["a", "b", "c"], ["a"]), { own: "each", shares: false });
    expect([...rest.mass]).toEqual([Number.NaN, -3, 0.5]);
    expect(rest.aside[0]).toBe(2);
    expect(readingAt(rest, [1, 2, 1], 0, 1, "per_token")).toBe(-1.5);
    expect(readingAt(rest, [1, 2, 1], 0, 1, "lift")).toBeNaN();
    expect(evenAt(rest, [1, 2, 1], 0, 1, "mass")).toBeNaN();
  });
  test("lose what is of the own keys, whatever its sign", () => {
    const rest = restOf(masses, leftOf(["a", "b", "c"], ["self"]), { own: "each", shares: false });
    expect([...rest.mass]).toEqual([2, -2, 0.5]);
    expect(rest.aside[0]).toBe(-1);
  });
  test("are read as sums where lift is chosen, and masses as they were", () => {
    expect([measureOf("lift", "logit"), measureOf("lift", "weights"), measureOf(undefined, "logit")]).toEqual([
      ...["mass", "lift", "mass"],
    ]);
    expect(sumOf([1, Number.NaN, -3])).toBeCloseTo(-2);
  });
});

describe("links of a stage", () => {
  test("are of weights where a stage comes before them", () => {
    expect([linkedStage("scores"), linkedStage("logit"), linkedStage("contribution")]).toEqual([
      ...["weights", "logit", "contribution"],
    ]);
  });
  test("are the largest by size of a picture, with their signs", () => {
    const grid = { rows: 2, columns: 2, values: floats(1, -2, -0.5, 0.25), kinds: new Uint8Array(4) };
    const of = { layer: 0, batch: 0, head: 1, stage: "logit", pool: "max" } as const;
    const links = linksOfPicture({ of, grid, exact: true, queries: 2, keys: 2 } as Picture, "query", 1);
    expect([links?.stage, ...links!.partners, ...links!.weights]).toEqual(["logit", 1, 0, -2, -0.5]);
  });
  test("are as wide as they are large, and kept by size", () => {
    const links = [
      { query: 0, key: 0, head: 0, weight: 4, size: 0.5 },
      { query: 0, key: 1, head: 0, weight: -8, size: 1 },
    ];
    expect(keepLinks(links, 1, 0.6)).toEqual([links[1]]);
    expect(strongestLast(links, 2).map(({ weight }) => weight)).toEqual([4, -8]);
    const [queries, keys] = [lane(1, null), lane(2, null)];
    const { bands } = bandsOf(links, "query", queries, keys);
    expect(bands[1]!.width1).toBeCloseTo(2 * bands[0]!.width1);
    expect(bandUnder(bands, 0, bands[1]!.y0, 0)?.weight).toBe(-8);
  });
});

describe("heads of a stage", () => {
  const grid = { rows: 1, columns: 1, values: floats(-1), kinds: new Uint8Array(1) };
  const survey = {
    ...{
      batch: 0,
      heads: [
        { layer: 0, head: 0 },
        { layer: 1, head: 0 },
      ],
      metrics: [],
      error: null,
    },
    pictures: [null, grid],
  } as unknown as Survey;
  const ofStage: StageHeads = {
    ...{ batch: 0, stage: "logit", query: 3, layers: [[grid], null], error: null },
    ...{ sums: floats(-2, Number.NaN), sizes: floats(4, Number.NaN) },
  };
  test("have its pictures, never those of weights, and its sums", () => {
    const found = withStage(survey, ofStage);
    expect([pictureOf(found, 0), pictureOf(found, 1)]).toEqual([grid, null]);
    expect(found.metrics.map(({ name, high, kind }) => [name, high, kind])).toEqual([
      ["stage_sum", 2, "stage"],
      ["stage_size", 4, "size"],
    ]);
  });
  test("have no sum beside the sizes where there are no signs", () => {
    const found = withStage(survey, { ...ofStage, stage: "value_norm" });
    expect(found.metrics.map(({ name }) => name)).toEqual(["stage_size"]);
  });
  test("are drawn from − to +", () => {
    expect([-1, 0, 1].map(ownRange(true).index)).toEqual([0, 128, 255]);
    expect([0, 1].map(ownRange(false).index)).toEqual([0, 255]);
  });
});
