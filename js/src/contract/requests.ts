/** What a front-end may ask Python, and what each kind of request is answered with. */

import type { Bytes, Envelope, Figure, TileMessage } from "./messages";

interface Values {
  values: Envelope;
  blocked: Envelope | null;
}

/** A matrix at most 128 × 128, of each bin the number of largest size; `low` and `high` are those of all numbers. */
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

/** Mass and even attention with the part of each that is of a query's own key, which is in them. */
interface Masses {
  mass: Envelope;
  even: Envelope;
  self: Envelope;
  self_even: Envelope;
}

/** What each kind of request is answered with. */
export interface Answers {
  /** `sink` is the row's number in the column of the learned sink; null where there is none. */
  row: Values & { sink?: Figure };
  column: Values;
  cells: Values;
  /** `value` is null where every cell is blocked, and text where JSON has no number for it. */
  peak: { value: number | string | null; query: number | null; key: number | null };
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
    /** Of queries, that of the learned sink; null where there is none. */
    sink?: Figure;
  };
  strongest: { pairs: [query: number, key: number, weight: number][] };
  tokens: { text: number; ends: Envelope };
  find: { positions: number[]; total: number };
  /** The largest change among some places of a comparison; a number that is blocked is null. */
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
    /** Below 1 this is a first answer, of some queries, and the request is to be made again. */
    share: number;
    /** Queries to one number of `rows`. */
    every: number;
    /** How many queries all of it is of; each of them is exact. */
    looked: number;
    rows: { entropy: Envelope; peak: Envelope; sensitivity: Envelope; allowed: Envelope };
    means: { entropy: Figure; peak: Figure; sensitivity: Figure };
    empty: number;
    saturated: number;
    uniform: number;
  };
  sweep: { own: boolean; steps: SweepStep[] };
  /** Below a `share` of 1 there are no pictures yet, and the request is to be made again. */
  gradients: { share: number; pictures: Record<"v" | "weights" | "scores" | "q" | "k", SmallMatrix | null> };
  jacobian: { query: number; picture: SmallMatrix };
  cost: { head_size: number; device: string; steps: CostStep[] };
  /** Tokens of the asking segment, `start` to `stop`. */
  segment_columns: Masses & { positions: Envelope; own: Envelope };
  /** The reading of one column for all tokens of the asking segment, in order: each the largest of `every` tokens. */
  segment_line: { values: Envelope; every: number; known: number };
  segment_keys: { positions: Envelope; values: Envelope; rest: { count: number; sum: Figure } };
  /** A row of the matrix that came rounded. */
  segment_row: Masses;
  /** A cell's exact numbers, null while they are not known, and its strongest weights. */
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
  /** Run every segment and every head once, stop that, or go on with it. */
  effects: object;
  /**
   * A part of a file of what is shown, or the buffer that it is in; `total` bytes are all of it. Below a `share` of 1
   * nothing of it is there yet, and the request is to be made again.
   */
  file: { name: string; total: number; data: number | Bytes; share: number };
  retry: object;
  ping: object;
}
export type RequestKind = keyof Answers;
/** What Python answered, with the buffers that its envelopes point into: `decode(reply.values, reply.buffers)`. */
export type Reply<K extends RequestKind = RequestKind> = Answers[K] & { buffers: readonly Bytes[] };
