/** The stages view's data: small pictures and one pair's way, decoded. */

import { describe, expect, test } from "vitest";
import { BLOCKED, decodePicture, type Picture } from "../../src/contract/decode";
import type { PairMessage, PairNumbers, StagesMessage } from "../../src/contract/messages";
import {
  asPicture,
  decodePair,
  decodeStages,
  numberOf,
  stagesOfPicture,
  vector,
  waterfall,
} from "../../src/data/stage-data";
import { bytesOf, wholes } from "../helpers/segments.ts";
import { bits, floats, pictureOf, X } from "../helpers/states.ts";

const CELLS = [
  [0.5, X, 0.25],
  [0.125, 0.0625, 0.75],
];
const SMALL = {
  ...{ query_bin: 2, low: -0.5, high: 0.75 },
  ...{ values: floats(CELLS.flat(), [2, 3]), blocked: bits(CELLS.flat(), [2, 3]) },
};

describe("stages", () => {
  const message: StagesMessage = {
    ...{ layer: 1, batch: 2, head: 3, output: { ...SMALL, value_bin: 5, rows: 4, columns: 15 } },
    pictures: [
      { ...SMALL, stage: "scores", key_bin: 3, every: 1 },
      { ...SMALL, stage: "weights", key_bin: 3, every: 4, sink: floats([0.25, 0.5]) },
    ],
  };

  test("are small pictures, and the output one of scores", async () => {
    const found = await decodeStages(message);
    expect(found.of).toEqual({ layer: 1, batch: 2, head: 3 });
    expect(found.pictures.map(({ stage, every, sink }) => [stage, every, sink && [...sink]])).toEqual([
      ["scores", 1, null],
      ["weights", 4, [0.25, 0.5]],
    ]);
    expect(found.pictures[0]).toMatchObject({ queryBin: 2, keyBin: 3, low: -0.5, high: 0.75 });
    expect(found.pictures[0]!.grid).toMatchObject({ rows: 2, columns: 3 });
    expect(found.pictures[0]!.grid.kinds[1]).toBe(BLOCKED);
    expect(found.output).toMatchObject({ stage: "scores", queryBin: 2, keyBin: 5, every: 1, rows: 4, columns: 15 });
    expect((await decodeStages({ ...message, output: null })).output).toBeNull();
  });

  test("as pictures are as large as what they stand for", async () => {
    const { of, pictures } = await decodeStages(message);
    const { grid } = pictures[0]!;
    expect(asPicture(pictures[0]!, of)).toEqual({
      ...{ of: { layer: 1, batch: 2, head: 3, stage: "scores", pool: "max" }, queries: 4, keys: 9, ownKeys: 9 },
      ...{ padding: null, queryBin: 2, keyBin: 3, low: -0.5, high: 0.75, exact: false, grid, sampled: null },
      error: null,
    });
  });

  test("of a saved notebook are the one of its picture, where that has all rows of one head", async () => {
    const picture: Picture = { ...(await decodePicture(pictureOf(CELLS, { layer: 1, head: 3 }))), keyBin: 3 };
    expect(stagesOfPicture(picture)).toEqual({
      ...{ of: { layer: 1, batch: 0, head: 3 }, output: null, isAlone: true },
      pictures: [
        {
          ...{ stage: "weights", grid: picture.grid, queryBin: 1, keyBin: 3, low: 0.0625, high: 0.75, every: 1 },
          sink: null,
        },
      ],
    });
    const sink = Float32Array.of(0.25, 0.5);
    expect(stagesOfPicture({ ...picture, sink })!.pictures[0]!.sink).toBe(sink);
    expect(stagesOfPicture({ ...picture, grid: null })).toBeNull();
    expect(stagesOfPicture({ ...picture, sampled: { first: 0, every: 2, exact: 0 } })).toBeNull();
    expect(stagesOfPicture({ ...picture, of: { ...picture.of, head: "mean" } })).toBeNull();
  });
});

describe("a pair", () => {
  const numbers = (score: number) =>
    ({
      ...{ score, scale: 0.5, scaled: 2, softcap: null, capped: 2, masked: "-inf", maximum: 3, log_normalizer: "nan" },
      ...{ sink: "inf", sink_weight: 0.25, weight: 0.125, contribution: 0.0625, allowed: false },
      effects: [
        { name: "bias", blocks: false, adds: "-inf" },
        { name: "causal", blocks: true, adds: null },
      ],
    }) as PairNumbers;
  const message: PairMessage = {
    ...numbers(4),
    ...{ layer: 1, batch: 2, head: 3, query: 5, key: 7, carried: { logit: [0.5, "nan"], saliency: [null, 2] } },
    ...{ products: floats([1, -2, 3]), value: floats([4, 5]), output: null },
    row: { keys: wholes([7, 2, 4]), values: floats([0.5, X, 0.25], [3]), blocked: bits([0.5, X, 0.25], [3]) },
    original: { ...numbers(8), value: floats([6, 7]), row: floats([0.5, 0.25, 0.125]) },
  } as PairMessage;

  test("has all its numbers, NaN and ±∞ again as numbers", async () => {
    const found = await decodePair(message);
    expect(found).toMatchObject({
      ...{ layer: 1, batch: 2, head: 3, query: 5, key: 7, score: 4, scale: 0.5, scaled: 2, softcap: null, capped: 2 },
      ...{ masked: Number.NEGATIVE_INFINITY, maximum: 3, log_normalizer: Number.NaN, sink: Number.POSITIVE_INFINITY },
      ...{ sink_weight: 0.25, weight: 0.125, contribution: 0.0625, share: null, allowed: false, output: null },
      effects: [
        { name: "bias", blocks: false, adds: Number.NEGATIVE_INFINITY },
        { name: "causal", blocks: true, adds: null },
      ],
      carried: [
        ["logit", 0.5, Number.NaN],
        ["saliency", null, 2],
      ],
    });
    expect([...found.products!, ...found.value!]).toEqual([1, -2, 3, 4, 5]);
    expect([...found.row.keys]).toEqual([7, 2, 4]);
    expect([...found.row.grid.kinds]).toEqual([0, BLOCKED, 0]);
    expect(found.original).toMatchObject({ score: 8, carried: [] });
    expect([...found.original!.value!, ...found.original!.row]).toEqual([6, 7, 0.5, 0.25, 0.125]);
    expect((await decodePair({ ...message, original: null })).original).toBeNull();
  });

  test("with keys or numbers of another type is refused", async () => {
    const row = { ...message.row, keys: floats([1, 2, 3]) };
    await expect(decodePair({ ...message, row })).rejects.toThrow("keys of a row must be uint32");
    await expect(decodePair({ ...message, products: bytesOf([1, 2]) })).rejects.toThrow("numbers must be float32");
    expect(await vector(null)).toBeNull();
  });

  test("a figure is a number, the name of one, or none", () => {
    expect([2, "-inf", "inf", "nan", null].map(numberOf)).toEqual([2, -Infinity, Infinity, Number.NaN, null]);
  });
});

test("products are summed one after the other, as they are or the largest first; equal ones as they are", () => {
  const products = Float32Array.of(1, -2, 4, 1);
  expect(waterfall(products, false)).toEqual([
    { index: 0, from: 0, to: 1 },
    { index: 1, from: 1, to: -1 },
    { index: 2, from: -1, to: 3 },
    { index: 3, from: 3, to: 4 },
  ]);
  expect(waterfall(products, true).map(({ index, from, to }) => [index, from, to])).toEqual([
    [2, 0, 4],
    [0, 4, 5],
    [3, 5, 6],
    [1, 6, 4],
  ]);
});
