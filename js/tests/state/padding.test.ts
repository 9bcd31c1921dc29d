// @vitest-environment jsdom
/** Which queries are said to be padding: those that tokens or a mask tell to be, and no others. */

import { signal } from "@preact/signals-core";
import { describe, expect, test } from "vitest";
import type { Picture } from "../../src/contract/decode";
import { hasPadding, isPadding, paddedRows } from "../../src/state/padding";
import { type Labels, labels } from "../../src/text/labels";

const side = (tokens: readonly string[] | null, length: number) =>
  signal(labels(tokens === null ? null : [...tokens], length)) as { value: Labels };
const known = (queries: readonly string[] | null, keys = queries, length = 6) =>
  ({ queryLabels: side(queries, length), keyLabels: side(keys, length) }) as Parameters<typeof isPadding>[0];
const picture = (changes: Partial<Picture> = {}) => ({ queries: 6, keys: 6, padding: null, ...changes }) as Picture;
const padded = (of: ReturnType<typeof known>, shown: Picture) =>
  [0, 1, 2, 3, 4, 5].filter((at) => isPadding(of, shown, at));

const PADDED = ["she", "sat", "down", "[PAD]", "[PAD]", "[PAD]"];
const ENDED = ["she", "sat", "down", "<|endoftext|>", "<|endoftext|>", "<|endoftext|>"];

describe("a query is padding", () => {
  test.each(["[PAD]", "<pad>", "<|pad|>"])("where its token is %s", (token) => {
    expect(padded(known(["a", token, "b", "c", token, token]), picture())).toEqual([1, 4, 5]);
  });

  test("where a padding mask blocks the key there, and both sides are one text", () => {
    expect(padded(known(ENDED), picture({ padding: 3 }))).toEqual([3, 4, 5]);
    expect(hasPadding(known(ENDED), picture({ padding: 3 }))).toBe(true);
  });

  test("and no other: not where keys are another text, nor without tokens, nor for a word, nor for another mask", () => {
    expect(padded(known(ENDED, ["il", "est", "tombé", "là", "bas", "!"]), picture({ padding: 3 }))).toEqual([]);
    expect(padded(known(null), picture({ padding: 3 }))).toEqual([]);
    expect(padded(known(ENDED), picture())).toEqual([]);
    expect(padded(known(["pad", "padding", "a", "b", "c", "d"]), picture())).toEqual([]);
    expect(padded(known(ENDED), picture({ padding: 3, keys: 9 }))).toEqual([]);
    expect(hasPadding(known(ENDED), picture())).toBe(false);
  });
});

test("rows of padding are drawn in runs, those that hold other queries too are not", () => {
  const all = { start: 0, stop: 6 };
  expect(paddedRows(known(PADDED), picture(), all, 1)).toEqual([{ start: 3, stop: 6 }]);
  expect(paddedRows(known(PADDED), picture(), { start: 0, stop: 3 }, 2)).toEqual([{ start: 2, stop: 3 }]);
  expect(paddedRows(known(["[PAD]", "a", "b", "c", "[PAD]", "d"]), picture(), all, 1)).toHaveLength(2);
});
