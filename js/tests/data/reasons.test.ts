import { describe, expect, it } from "vitest";
import type { StreamPart } from "../../src/contract/requests";
import {
  contrasts,
  edgesInto,
  edgesOf,
  folded,
  type HeadGraph,
  leadingAt,
  type PairParts,
  type RowParts,
  rangeOf,
  stacks,
  subtractedAt,
  treeOf,
} from "../../src/data/reasons";

const part = (label: string, kind = "MLP", layer: number | null = null, head: number | null = null): StreamPart => ({
  label,
  kind,
  module: label,
  layer,
  head,
  column: null,
});

/** Two parts and the rest, at keys 4, 7 and 9. */
const ROW: RowParts = {
  parts: [part("token", "token"), part("1·4", "head", 1, 4), part("MLP 1")],
  stacked: 2,
  more: 3,
  keys: [4, 7, 9],
  others: 0,
  terms: Float32Array.of(1, 2, 3, -1, 4, 0, 0.5, 0.5, 0.5),
  apart: Float32Array.of(-1, 0, 2, -4, 6, -2, 0, 0, 0),
  means: [2, 1, 0.5],
  mean: 3.5,
  other_means: [5.375, 1.7, null],
  leading: {
    none: [
      [
        [0, 1],
        [1, -1],
      ],
      [
        [1, 4],
        [2, 3],
      ],
      null,
    ],
  },
  scores: [0.5, 6.5, 3.5],
  weights: [0.2, 0.5, 0.3],
  rounding: 1e-7,
};

describe("contrasts", () => {
  it("are apart from the other keys, or less the means, or less another key, or the scores", () => {
    expect(contrasts(ROW, "others")[1]).toEqual([-4, 6, -2]);
    expect(contrasts(ROW, "mean")).toEqual([
      [-1, 0, 1],
      [-2, 3, -1],
      [0, 0, 0],
    ]);
    expect(contrasts(ROW, 9)).toEqual([
      [-2, -1, 0],
      [-1, 4, 0],
      [0, 0, 0],
    ]);
    expect(contrasts(ROW, "none")[1]).toEqual([-1, 4, 0]);
    expect(contrasts(ROW, 5)[0]).toEqual([1, 2, 3]); // a key that was not sent
  });
});

describe("stacks", () => {
  it("go up and down from zero, and end at the sums", () => {
    const found = stacks(contrasts(ROW, "none"));
    expect(found[0]).toEqual([
      { part: 0, from: 0, to: 1 },
      { part: 1, from: 0, to: -1 },
      { part: 2, from: 1, to: 1.5 },
    ]);
    expect(rangeOf(found)).toEqual([-1, 6.5]);
    expect(rangeOf([])).toEqual([0, 0]);
    expect(rangeOf(stacks([[Number.NaN, 1]]))).toEqual([0, 1]);
  });
});

describe("what is subtracted", () => {
  it("is a mean, another key's score, or nothing", () => {
    const [others, mean, key, none] = (["others", "mean", 7, "none"] as const).map((against) =>
      [0, 1].map((place) => subtractedAt(ROW, against, place)),
    );
    expect({ others, mean, key, none }).toEqual({
      ...{ others: [5.375, 1.7], mean: [3.5, 3.5], key: [6.5, 6.5], none: [0, 0] },
    });
    expect(subtractedAt(ROW, "others", 2)).toBeNaN();
  });
});

describe("the largest parts of a key", () => {
  it("are Python's, of all parts", () => {
    const found = leadingAt(ROW, "none", 1);
    expect(found).toEqual({ ofAll: true, leading: ROW.leading.none![1] });
    expect(leadingAt(ROW, "none", 2).leading).toEqual([]);
  });

  it("are those that are drawn, where a file has no others", () => {
    const found = leadingAt(ROW, 9, 1);
    expect(found).toEqual({
      ofAll: false,
      leading: [
        [1, 4],
        [0, -1],
      ],
    });
    expect(leadingAt({ ...ROW, more: 0 }, 9, 1).ofAll).toBe(true);
  });
});

it("folds key parts into the rest, and keeps the sum", () => {
  const pair: PairParts = {
    query_parts: [part("a")],
    key_parts: [part("a"), part("b"), part("c"), part("d")],
    more: [0, 2],
    terms: Float32Array.from({ length: 10 }, (_, at) => at),
    score: 45,
    subtracted: 0,
    rounding: 0,
    weight: 1,
  };
  const found = folded(pair, 2);
  expect(found.key_parts.map((one) => one.label)).toEqual(["a", "b"]);
  expect(found.more).toEqual([0, 4]);
  expect([...found.terms]).toEqual([0, 1, 9, 5, 6, 24]);
  expect(folded(pair, 4)).toBe(pair);
});

const GRAPH: HeadGraph = {
  parts: [part("token", "token"), part("0·1", "head", 0, 1), part("1·0", "head", 1, 0), part("bias of x", "bias")],
  into: [
    [1, 0],
    [2, 3],
    [0, 1],
    [2, 3],
    [1, 2],
  ],
  side: ["key", "key", "query", "value", "key"],
  from: [1, 2, 0, 3, 0],
  shares: [0.6, 0.5, -0.4, 0.9, 0.3],
  scores: [1, 2, 3, 4, 5],
  heads: [2, 3, 4],
  queries: 9,
  least: 0.02,
};

describe("the graph of heads", () => {
  it("has the edges with at least a share, without biases", () => {
    const found = edgesOf(GRAPH, 0.35, "all");
    expect(found.map((edge) => [edge.from.label, edge.layer, edge.head, edge.share])).toEqual([
      ["0·1", 1, 0, 0.6],
      ["1·0", 2, 3, 0.5],
      ["token", 0, 1, -0.4],
    ]);
    expect(edgesOf(GRAPH, 0.02, "query")).toHaveLength(1);
    expect(edgesInto(found, 2, 3)).toHaveLength(1);
  });

  it("follows a head back through the heads that it reads", () => {
    const found = treeOf(edgesOf(GRAPH, 0.02, "all"), 2, 3);
    expect(found.map((edge) => edge.from.label)).toEqual(["0·1", "1·0", "token"]);
    expect(treeOf(edgesOf(GRAPH, 0.02, "all"), 0, 0)).toEqual([]);
  });
});
