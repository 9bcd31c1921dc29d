import { describe, expect, it } from "vitest";
import type { StreamPart } from "../../src/contract/requests";
import {
  contrasts,
  edgesInto,
  edgesOf,
  folded,
  type HeadGraph,
  type PairParts,
  type RowParts,
  rangeOf,
  sharesAt,
  stacks,
  treeOf,
  wroteWords,
} from "../../src/data/reasons";

const part = (label: string, kind = "MLP", layer: number | null = null, head: number | null = null): StreamPart => ({
  label,
  kind,
  module: label,
  layer,
  head,
});

/** Two parts and the rest, at keys 4, 7 and 9. */
const ROW: RowParts = {
  parts: [part("token", "token"), part("1·4", "head", 1, 4)],
  more: 3,
  keys: [4, 7, 9],
  others: 0,
  terms: Float32Array.of(1, 2, 3, -1, 4, 0, 0.5, 0.5, 0.5),
  means: [2, 1, 0.5],
  scores: [0.5, 6.5, 3.5],
  weights: [0.2, 0.5, 0.3],
  rounding: 1e-7,
};

describe("contrasts", () => {
  it("are less the means, or less another key, or the scores", () => {
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
  });
});

describe("sharesAt", () => {
  it("are of the sum, the largest first, without the rest", () => {
    const found = sharesAt(contrasts(ROW, "none"), 1);
    expect(found.map((one) => one.part)).toEqual([1, 0]);
    expect(found[0]!.share).toBeCloseTo(4 / 6.5);
  });

  it("are none where the parts cancel", () => {
    expect(sharesAt([[1], [-1], [0]], 0)).toEqual([]);
  });
});

it("says what a part is", () => {
  expect(wroteWords(part("token", "token"))).toBe("the token itself");
  expect(wroteWords(part("1·4", "head"))).toBe("what head 1·4 wrote there");
  expect(wroteWords(part("MLP 2"))).toBe("what MLP 2 wrote there");
  expect(wroteWords(part("bias of 1.out", "bias"))).toBe("the bias of 1.out");
  expect(wroteWords(part("position", "position"))).toBe("its position");
});

it("folds key parts into the rest, and keeps the sum", () => {
  const pair: PairParts = {
    query_parts: [part("a")],
    key_parts: [part("a"), part("b"), part("c"), part("d")],
    more: [0, 2],
    terms: Float32Array.from({ length: 10 }, (_, at) => at),
    score: 45,
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
