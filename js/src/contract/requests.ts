/** The requests of a front-end to Python, and the reply to each kind. */

import type { Bytes, Envelope, Figure, TileMessage } from "./messages";

interface Values {
  values: Envelope;
  blocked: Envelope | null;
}

/** A matrix of at most 128 × 128, each bin with the number of largest size; `low` and `high` are over all numbers. */
export interface SmallMatrix extends Values {
  low: number | null;
  high: number | null;
  rows: number;
  columns: number;
  row_bin: number;
  column_bin: number;
}

/** Attention at one head size, with the scale 1 / √d_k and without; the weights of the first 16 queries and keys. */
export type SweepStep = {
  [K in "head_size" | "theory" | "most"]: number;
} & {
  [K in "scores_variance" | "scaled_variance" | `${"" | "unscaled_"}${"entropy" | "peak" | "sensitivity"}`]: Figure;
} & { weights: Envelope; unscaled_weights: Envelope };

export interface CostStep {
  length: number;
  dense_seconds: number;
  dense_bytes: number;
  fused_seconds: number;
  seen_seconds: number;
  seen_bytes: number;
}

/** Mass and even attention, each with its part on the query's own key, which is included. */
interface Masses {
  mass: Envelope;
  even: Envelope;
  self: Envelope;
  self_even: Envelope;
}

/** With what a head reads a part of the residual stream. */
export type ReadSide = "query" | "key" | "value";

/** A part of the residual stream; `layer` and `head` only of heads that the widget can show. */
export interface StreamPart {
  label: string;
  kind: string;
  module: string;
  layer: number | null;
  head: number | null;
  /** The number of the shown layer in which another part than a head was written; null if there is none. */
  column: number | null;
}

/** A long answer: below a `share` of 1 there is nothing else yet. */
type Sliced<T> = Partial<T> & { share: number };

/** The reply to each kind of request. */
export interface Answers {
  /** `sink` is the row's number in the learned sink's column; null without one. */
  row: Values & { sink?: Figure };
  column: Values;
  cells: Values;
  /** The mean weight that each key receives; below a `share` of 1 there are no numbers yet: repeat the request. */
  received: Partial<Values> & { share: number };
  /**
   * Terms (query parts and the rest, key parts and the rest); `more` says how many parts each rest holds; `nothing` says
   * instead why there is nothing to compare with. `score` is less `subtracted`.
   */
  why: Sliced<{
    query_parts: StreamPart[];
    key_parts: StreamPart[];
    more: [query: number, key: number];
    terms: Envelope;
    score: number;
    subtracted: number | null;
    rounding: number;
    weight: number;
    nothing: string;
  }>;
  /**
   * Terms (the first `stacked` parts and the rest, keys), and those `apart` from the means of each key's other keys, NaN
   * where these have no weight. `means` of the terms and `mean` of the scores are under the weights, null without any;
   * `other_means` are of the scores of each key's other keys. `leading` has the two largest parts of each key with what
   * they add, by what it is compared with. `others` counts the keys left out, `more` the parts.
   */
  why_row: Sliced<{
    parts: StreamPart[];
    stacked: number;
    more: number;
    keys: number[];
    others: number;
    terms: Envelope;
    apart: Envelope;
    means: (number | null)[];
    mean: number | null;
    other_means: (number | null)[];
    leading: Record<string, ([part: number, value: number][] | null)[]>;
    scores: number[];
    weights: number[];
    rounding: number;
  }>;
  /** The edges of the graph of heads: part `from` gives `shares` of a side's score, or output, to head `into`. */
  why_heads: Sliced<{
    parts: StreamPart[];
    into: [layer: number, head: number][];
    side: ReadSide[];
    from: number[];
    shares: number[];
    scores: number[];
    /** How many heads each layer has. */
    heads: number[];
    queries: number;
    least: number;
  }>;
  /** `value` is null if every cell is blocked, and text if JSON has no number for it; `row` comes if it was asked for. */
  peak: { value: number | string | null; query: number | null; key: number | null; row?: Answers["row"] };
  tiles: { tiles: TileMessage[] };
  ranked: {
    positions: Envelope;
    values: Envelope;
    allowed: number;
    blocked: number;
    nan: number;
    sum: number;
    rest: { count: number; sum: number };
    entropy: number;
    max_entropy: number;
    ninety: number;
    /** For queries, the learned sink's number; null without one. */
    sink?: Figure;
  };
  strongest: { pairs: [query: number, key: number, weight: number][] };
  tokens: { text: number; ends: Envelope };
  find: { positions: number[]; total: number };
  /** The largest change among some places of a comparison; a blocked number is null. */
  change: {
    value: number | string | null;
    a: number | string | null;
    b: number | string | null;
    query: number;
    key: number;
  };
  pass: object;
  thumbnails: { values: Envelope };
  check: object;
  spread: {
    [K in `${"q" | "k" | "v" | "scores" | "scaled"}_variance`]: Figure;
  } & {
    theory: number | null;
    scale: number;
    /** Below 1, this is a first answer from some queries; repeat the request. */
    share: number;
    /** Queries per number of `rows`. */
    every: number;
    /** How many queries were used; each is exact. */
    looked: number;
    rows: { entropy: Envelope; peak: Envelope; sensitivity: Envelope; allowed: Envelope };
    means: { entropy: Figure; peak: Figure; sensitivity: Figure };
    empty: number;
    saturated: number;
    uniform: number;
  };
  sweep: { own: boolean; steps: SweepStep[] };
  /** Below a `share` of 1 there are no pictures yet; repeat the request. */
  gradients: { share: number; pictures: Record<"v" | "weights" | "scores" | "q" | "k", SmallMatrix | null> };
  jacobian: { query: number; picture: SmallMatrix };
  cost: { head_size: number; device: string; steps: CostStep[] };
  /** Tokens of the asking segment, `start` to `stop`. */
  segment_columns: Masses & { positions: Envelope; own: Envelope };
  /** The measure of one column for all tokens of the asking segment, in order, each the largest of `every` tokens. */
  segment_line: { values: Envelope; every: number; known: number };
  segment_keys: { positions: Envelope; values: Envelope; rest: { count: number; sum: Figure } };
  /** A matrix row that was sent rounded. */
  segment_row: Masses;
  /** A cell's exact numbers (null while unknown) and its strongest weights. */
  segment_block: Record<"mass" | "even" | "self" | "self_even", number | null> & {
    looked: number;
    queries: Envelope;
    keys: Envelope;
    values: Envelope;
  };
  /** Other columns of all heads. */
  segment_heads: Masses;
  segment_by: object;
  /** Run the model without something: its result comes with `effect_details`. */
  effect: object;
  /** Run every segment and head once, stop, or resume. */
  effects: object;
  /**
   * Part of a file of the current view, or the buffer that holds it; `total` is its size in bytes. Below a `share` of 1
   * nothing is ready yet; repeat the request.
   */
  file: { name: string; total: number; data: number | Bytes; share: number };
  retry: object;
  ping: object;
}
export type RequestKind = keyof Answers;
/** Python's answer, with the buffers that its envelopes point into: `decode(reply.values, reply.buffers)`. */
export type Reply<K extends RequestKind = RequestKind> = Answers[K] & { buffers: readonly Bytes[] };
