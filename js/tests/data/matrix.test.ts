/** Rows, columns and bins of a matrix of more keys than queries, so that no axis passes for the other. */

import { describe, expect, test } from "vitest";
import { BLOCKED, decodePicture, NAN, NUMBER, type Picture } from "../../src/contract/decode";
import { hasLinksOf, linksOfPicture } from "../../src/data/links";
import { binOf, combine, type Line, lineOf, numberIn } from "../../src/data/matrix";
import { decodeRecall, leastOf, type Recall } from "../../src/data/recall";
import { bytesOf } from "../helpers/segments.ts";
import { floats, pictureOf, X } from "../helpers/states.ts";

/** Two queries over three keys. */
const CELLS = [
  [0.5, X, 0.25],
  [0.125, Number.NaN, 0.75],
];
const picture = (changes: Partial<Picture> = {}) =>
  decodePicture(pictureOf(CELLS)).then((decoded): Picture => ({ ...decoded, ...changes }));

describe("a row or a column", () => {
  test("has its own numbers, kinds and sink", async () => {
    const shown = await picture({ sink: Float32Array.of(0.25, 0.125) });
    const row = lineOf(shown, { side: "query", index: 1 })!;
    expect([...row.values]).toEqual([0.125, Number.NaN, 0.75]);
    expect([...row.kinds]).toEqual([NUMBER, NAN, NUMBER]);
    expect(row).toMatchObject({ of: { side: "query", index: 1 }, stage: "weights", sink: 0.125 });
    const column = lineOf(shown, { side: "key", index: 2 })!;
    expect([...column.values]).toEqual([0.25, 0.75]);
    expect([...lineOf(shown, { side: "key", index: 1 })!.kinds]).toEqual([BLOCKED, NAN]);
    expect(column).toMatchObject({ of: { side: "key", index: 2 }, stage: "weights" });
    expect(column.sink).toBeUndefined();
  });

  test("beyond the matrix is none", async () => {
    const shown = await picture();
    expect(lineOf(shown, { side: "query", index: 2 })).toBeNull();
    expect(lineOf(shown, { side: "key", index: 3 })).toBeNull();
    expect(lineOf(await picture({ grid: null }), { side: "query", index: 0 })).toBeNull();
    expect(lineOf(shown, { side: "query", index: 0 })!.sink).toBeNull();
  });

  test("with others is their mean or their sum, blocked where all are, NaN where any is", () => {
    const line = (values: number[], kinds: number[], sink: number | null): Line => ({
      ...{ of: { side: "query", index: values.length }, stage: "scores", sink },
      ...{ values: Float32Array.from(values), kinds: Uint8Array.from(kinds) },
    });
    const lines = [
      line([1, 5, 9, 2], [NUMBER, BLOCKED, BLOCKED, NAN], 0.5),
      line([2, 3, 9, 4], [NUMBER, NUMBER, BLOCKED, NUMBER], 0.25),
    ];
    const mean = combine(lines, "mean")!;
    expect([...mean.values]).toEqual([1.5, 1.5, 0, 3]); // the kind says that the third is no number
    expect([...mean.kinds]).toEqual([NUMBER, NUMBER, BLOCKED, NAN]);
    const sum = combine(lines, "sum")!;
    expect([...sum.values]).toEqual([3, 3, 0, 6]);
    expect([mean.sink, sum.sink]).toEqual([0.375, 0.75]);
    expect(sum).toMatchObject({ of: { index: 4 }, stage: "scores" });
    expect(combine([lines[0]!, { ...lines[1]!, sink: null }], "sum")!.sink).toBeNull();
    expect(combine([{ ...lines[0]!, sink: null }, lines[1]!], "sum")!.sink).toBe(0.25);
    expect(combine([], "sum")).toBeNull();
    const third: Line = { ...lines[0]!, of: { side: "query", index: 9 }, sink: null };
    expect(combine([...lines, third], "sum")).toMatchObject({ of: { index: 9 }, sink: null });
  });
});

test("a cell of a pooled picture stands for a bin, which ends with the matrix", async () => {
  const shown = await picture({ queries: 7, keys: 11, queryBin: 3, keyBin: 5 });
  expect(binOf(shown, 1, 2)).toEqual({ queries: { start: 3, stop: 6 }, keys: { start: 10, stop: 11 } });
  expect(binOf(shown, 2, 0)).toEqual({ queries: { start: 6, stop: 7 }, keys: { start: 0, stop: 5 } });
});

test("numbers that JSON has not are named", () => {
  expect([0.5, "0.5", "inf", "-inf", "nan", null].map(numberIn)).toEqual([
    ...[0.5, 0.5, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, Number.NaN, Number.NaN],
  ]);
});

describe("the strongest links of a picture", () => {
  test("are of each query, without what is blocked or NaN, and the unused places are 0", async () => {
    const links = linksOfPicture(await picture(), "query", 2)!;
    expect(links).toMatchObject({ layer: 0, batch: 0, heads: [0], side: "query", stage: "weights" });
    expect(links).toMatchObject({ positions: 2, count: 2, sinks: null });
    expect([...links.partners]).toEqual([0, 2, 2, 0]);
    expect([...links.weights]).toEqual([0.5, 0.25, 0.75, 0.125]);
  });

  test("are of each key; of equal ones the first comes first", async () => {
    const even = await decodePicture(
      pictureOf([
        [0.5, X, 0.25],
        [0.5, Number.NaN, 0.75],
      ]),
    );
    const links = linksOfPicture(even, "key", 2)!;
    expect(links.positions).toBe(3);
    expect([...links.partners]).toEqual([0, 1, 0, 0, 1, 0]);
    expect([...links.weights]).toEqual([0.5, 0.5, 0, 0, 0.75, 0.25]);
  });

  test("bring the column of a sink beside weights alone", async () => {
    const sink = Float32Array.of(0.25, 0.125);
    expect(linksOfPicture(await picture({ sink }), "query", 1)!.sinks).toEqual([sink]);
    const { of } = await picture();
    expect(linksOfPicture(await picture({ sink, of: { ...of, stage: "logit" } }), "query", 1)!.sinks).toBeNull();
  });

  test("are not told by a picture that is pooled, missing, of scores, or shorter than its matrix", async () => {
    const { of } = await picture();
    expect(linksOfPicture(await picture({ exact: false }), "query", 1)).toBeNull();
    expect(linksOfPicture(await picture({ grid: null }), "query", 1)).toBeNull();
    expect(linksOfPicture(await picture({ of: { ...of, stage: "scores" } }), "query", 1)).toBeNull();
    expect(linksOfPicture(await picture({ queries: 3 }), "query", 1)).toBeNull();
  });

  test("are in force for one of their heads, with the same layer, sample, side and stage", async () => {
    const links = { ...linksOfPicture(await picture(), "query", 1)!, heads: [0, 3] };
    const of: Parameters<typeof hasLinksOf>[1] = { layer: 0, batch: 0, heads: [3, 5], side: "query", stage: "weights" };
    expect(hasLinksOf(links, of)).toBe(true);
    const others: Partial<typeof of>[] = [
      { layer: 1 },
      { batch: 1 },
      { heads: [5] },
      { side: "key" },
      { stage: "logit" },
    ];
    for (const other of others) {
      expect(hasLinksOf(links, { ...of, ...other }), JSON.stringify(other)).toBe(false);
    }
  });
});

describe("recall", () => {
  const recall = (values: number[], every: number) => ({ values: Float32Array.from(values), every }) as Recall;

  test("of some queries is the least that is known of them", () => {
    const each = recall([1, 0.5, Number.NaN, 0.75, 0.25], 1);
    expect([leastOf(each, 0, 1), leastOf(each, 0, 2), leastOf(each, 2, 4), leastOf(each, 3, 5)]).toEqual([
      ...[1, 0.5, 0.75, 0.25],
    ]);
    expect(leastOf(each, 3, 4)).toBe(0.75);
    expect(leastOf(each, 2, 3)).toBeNaN();
    expect(leastOf(each, 4, 9)).toBe(0.25);
    expect(leastOf(recall([0.5, 0.25, Number.NaN], 1), 0, 3)).toBe(0.25);
    expect(leastOf(recall([0.5, 0.25, 0.75], 1), 0, 3)).toBe(0.25);
  });

  test("of queries that are sent as one is that of theirs", () => {
    const third = recall([0.5, 0.25, 0.75], 3);
    expect([leastOf(third, 0, 3), leastOf(third, 2, 4), leastOf(third, 6, 9), leastOf(third, 5, 6)]).toEqual([
      ...[0.5, 0.25, 0.75, 0.25],
    ]);
  });

  test("is read from float32, and from nothing else", async () => {
    const message = { layer: 1, batch: 2, head: 3, every: 1, share: 0.5, error: null, values: floats([0.5, 1]) };
    const found = await decodeRecall(message as never);
    expect([...found.values]).toEqual([0.5, 1]);
    expect(found).toMatchObject({ layer: 1, batch: 2, head: 3, every: 1, share: 0.5, error: null });
    await expect(decodeRecall({ ...message, values: bytesOf([1, 2]) } as never)).rejects.toThrow("float32, got uint8");
  });
});

test("a token with few partners has none of another's", async () => {
  const shown = await decodePicture(pictureOf([[0.5, 0.25, 0.125], [X, X, X]])); // biome-ignore format: one line
  expect([...linksOfPicture(shown, "query", 2)!.weights]).toEqual([0.5, 0.25, 0, 0]);
});
