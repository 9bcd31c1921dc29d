/** What Python sends, as it travels: pictures, tokens, numbers; see docs/contract.md. */

import type { Carried, HeadName, Metric, Pool, Side, Stage } from "./values";

/** Rows that stand for several queries: row r below the first `exact` is that of the one query `first + every · r`. */
export interface Sampled {
  first: number;
  every: number;
  exact: number;
}

/** How far the exact pass over a long head has come; while there is none, null. */
export interface Progress {
  layer: number;
  batch: number;
  head: HeadName;
  stage: Stage;
  pool: Pool;
  /** Of the cells to compute, 0 to 1. */
  share: number;
  seconds_left: number | null;
  state: "running" | "stopped";
  /** How many workers of an executor compute it; left out where the kernel does. */
  workers?: number;
  /** Not of the picture: of what a cache evicts, which is found before anything is drawn. */
  what?: "evictions";
}

/** Bytes as hosts hand them over: Jupyter a `DataView`, Colab a `Uint8Array`, a page without a kernel base64 text. */
export type Bytes = DataView | ArrayBuffer | Uint8Array | string;

/** How the codes of a quantised picture are to be read; see "Quantised picture" in docs/contract.md. */
export interface Quantisation {
  kind: "log" | "linear" | "unit";
  high: number;
  octaves?: number;
}

/** An array on its way. In a trait `data` is the bytes, in a reply the index of one of the message's buffers. */
export interface Envelope {
  data: Bytes | number;
  dtype: "float32" | "uint8" | "uint32" | "bits";
  shape: number[];
  deflated: boolean;
  scale?: Quantisation | null;
}

/** What is known about the selected layer. */
export interface Facts {
  /** Changes whenever the tensors behind the widget are replaced. */
  version: number;
  /** The names of all layers. */
  layers: string[];
  batches: number;
  /** Query heads. */
  heads: number;
  /** Key/value heads: as many as `heads`, or fewer where several query heads share one. */
  groups: number;
  queries: number;
  keys: number;
  /** null where only scores or weights were given. */
  head_size: number | null;
  value_size: number | null;
  dtype: string;
  device: string;
  is_causal: boolean;
  /** The stages that can be shown. */
  stages: Stage[];
  /** The stack that everything shown is of, among those of its forward pass; that pass, and how many there are. */
  stack?: string;
  stacks?: string[];
  forward?: number;
  forwards?: number;
  /** Only in a saved file: what of this layer is in it, which layers are, and why others are not. */
  saved?: { layers: number[]; heads: number[]; samples: number[]; others?: string };
  /** Whether merging tokens into words would change anything. */
  has_pieces?: boolean;
  /** Whether a learned sink takes a share of the weights. */
  has_sinks?: boolean;
  /**
   * Of each sample the token whose logits are shown, before a softcap or not, and those that may be chosen: [id, text];
   * null where there is none.
   */
  targets?:
    | readonly { token: number; text: string; before_cap?: true; choices: readonly (readonly [number, string])[] }[]
    | null;
  /** The letters of three axes that nobody named, read as several samples, which may as well be heads; else null. */
  axes_read?: string | null;
  /** Of each head its number in the model, where a capture has kept some of them; null where all are there. */
  head_numbers?: readonly number[] | null;
  /** The same of every layer, null of one that has all; null where all have. */
  model_heads?: readonly (readonly number[] | null)[] | null;
}

export interface PictureMessage {
  layer: number;
  batch: number;
  head: HeadName;
  stage: Stage;
  pool: Pool;
  /** Size of the matrix. */
  queries: number;
  keys: number;
  /** Keys before those at the end that no query may attend to: a padded sample's own length. */
  own_keys?: number | null;
  padding?: number | null;
  /** Cells of the matrix to one cell of the picture. */
  query_bin: number;
  key_bin: number;
  /** Least and greatest finite value of the matrix at this pooling; null where there is none. */
  low: number | null;
  high: number | null;
  /** null where every number is exact. */
  sampled?: Sampled | null;
  values: Envelope | null;
  blocked: Envelope | null;
  /** (rows,) the column of the learned sink, pooled as the rows are; null where there is none. */
  sink?: Envelope | null;
  error: string | null;
}

/** Rows of a picture that are now exact. */
export interface BandMessage {
  layer: number;
  batch: number;
  head: HeadName;
  stage: Stage;
  pool: Pool;
  version: number;
  start: number;
  stop: number;
  low: number | null;
  high: number | null;
  values: Envelope;
}

/** Row level, column level, row, column: see "Tiles" in docs/contract.md. */
export type TileAddress = readonly [rowLevel: number, columnLevel: number, row: number, column: number];

export interface TileMessage {
  tile: TileAddress;
  /** 1 where the tile is exact; else row r is that of the one query `first + every · r`. */
  every: number;
  first: number;
  low: number | null;
  high: number | null;
  values: Envelope;
}

/** Tiles that the kernel sends of its own accord. */
export interface TilesMessage {
  tiles: TileMessage[];
  of: { layer: number; batch: number; head: HeadName; stage: Stage; pool: Pool; version: number; view: string };
}

export interface ThumbnailsMessage {
  layer: number;
  batch: number;
  values: Envelope;
  /** (heads,): the greatest weight of each head, in so many of its rows. */
  highs?: Envelope;
  rows?: number;
  /** Of which stage they are; weights where nothing is said. */
  stage?: Stage;
}

/** All heads of all layers in a stage after the weights; of layers that are ready, in order. */
export interface StageHeadsMessage {
  batch: number;
  stage: Stage;
  /** Of which query the sums are; null: the mean over all that were looked at. */
  query: number | null;
  pictures: (Envelope | null)[];
  /** (heads,) of all layers; NaN where it is not known. */
  sums: Envelope;
  sizes: Envelope;
  error: string | null;
}

/**
 * All heads of all layers; `pictures` are of the layers that are ready, `metrics` of all their heads, layer by layer.
 */
export interface SurveyMessage {
  batch: number;
  /** `rows` is how many queries of each head were looked at. */
  layers: { heads: number; groups: number; queries: number; keys: number; rows: number }[];
  /** (heads, rows, columns); null of a layer that has no such sample. */
  pictures: (Envelope | null)[];
  /** (heads,), NaN where there is none; null where no head has any. */
  metrics: Record<Metric, Envelope | null>;
  /** The same of metrics of the user's own, by their names; null until a layer is there. */
  own?: Record<string, Envelope | null>;
  /** Why some of these have no numbers, by name. */
  problems?: Record<string, string>;
  error: string | null;
}

export interface RecallMessage {
  layer: number;
  batch: number;
  head: HeadName;
  /** float32: of each query, or the least of `every`; NaN where there is none. */
  values: Envelope;
  every: number;
  share: number;
  error: string | null;
}

export interface LinksMessage {
  layer: number;
  batch: number;
  heads: HeadName[];
  side: Side;
  /** Of which stage they are; weights where nothing is said. */
  stage?: Stage;
  /** (heads, positions, count): the partners of each position, strongest first. */
  partners: Envelope;
  /** Their exact weights; 0 where there is no such partner. */
  weights: Envelope;
  /** (heads, queries): the weight that each query gives to the learned sink; null where there is none. */
  sinks?: Envelope | null;
}

/** Rules to see the tensors under, as `Attention.what_if` takes them; {} is as they are. */
export interface WhatIf {
  scale?: number;
  temperature?: number;
  softcap?: number | null;
  mask?: boolean;
  causal?: boolean | "lower right";
  window?: number | null;
  drop_keys?: number[];
  /** null or false takes learned sinks away. */
  sinks?: boolean | null;
  dtype?: "float16" | "bfloat16" | "int8";
  /** The keys that a cache has, as `Attention.keep` takes it. */
  keep?: Keep | null;
}

export interface Keep {
  policy: "window" | "heavy_hitters" | "tova" | "snapkv";
  /** How many keys a query has at most, or a share of them, below 1. */
  budget: number;
  sinks?: number;
  recent?: number;
  prompt?: number;
  observe?: number;
}

interface SmallMessage {
  query_bin: number;
  low: number | null;
  high: number | null;
  values: Envelope;
  blocked: Envelope | null;
}

/** All stages of a head, each at most 128 × 128, with the output, (queries, value size). */
export interface StagesMessage {
  layer: number;
  batch: number;
  head: number;
  pictures: (SmallMessage & { stage: Stage; key_bin: number; every: number; sink?: Envelope | null })[];
  output: (SmallMessage & { value_bin: number; rows: number; columns: number }) | null;
}

/** One thing that is likely wrong with the selected head, or worth knowing. */
export interface Finding {
  kind: string;
  severity: "error" | "warning" | "note";
  /** The places in words; "" for all of the head. */
  where: string;
  message: string;
  advice: string;
  /** The first of the places. */
  query: number | null;
  key: number | null;
}

/** How far other results are: torch's own, and under other rules that of the rules as they were given. */
export interface Deviation {
  layer: number;
  batch: number;
  head: number;
  /** `why` there is no difference, where there is none. */
  torch: { difference: number | null; queries: number; equal: boolean; why: string };
  /** The largest |Δ| of a weight and of a number of the output; null where it is not finite, or there is no v. */
  original: { weights: number | null; output: number | null; queries: number } | null;
}

/** JSON has no NaN and no infinity: those are text. */
export type Figure = number | string | null;

/** What one rule or bias does to a pair; `adds` is null for a rule, which only allows or blocks. */
export interface Effect {
  name: string;
  blocks: boolean;
  adds: Figure;
}

export interface PairNumbers {
  score: Figure;
  scale: Figure;
  scaled: Figure;
  softcap: Figure;
  capped: Figure;
  masked: Figure;
  maximum: Figure;
  log_normalizer: Figure;
  /** The logit of the learned sink and the weight that it takes; null where there is none. */
  sink?: Figure;
  sink_weight?: Figure;
  weight: Figure;
  contribution: Figure;
  share: Figure;
  /** What the weight carries, and what that is for each unit of the weight, by stage. */
  carried?: Partial<Record<Carried, [Figure, Figure]>>;
  allowed: boolean;
  effects: Effect[];
}

/** One pair's way through the stages. */
export interface PairMessage extends PairNumbers {
  layer: number;
  batch: number;
  head: number;
  query: number;
  key: number;
  /** (D,) q_d · k_d. */
  products: Envelope | null;
  /** (Dv,) weight · v, and the sum of those over all keys. */
  value: Envelope | null;
  output: Envelope | null;
  /** The query's weights, of all keys or the strongest. */
  row: { keys: Envelope; values: Envelope; blocked: Envelope | null };
  /** Without the other rules, where there are any; `row` are the weights of the same keys. */
  original: (PairNumbers & { value: Envelope | null; row: Envelope }) | null;
}

/** One of the three pictures of a comparison. */
interface SideMessage {
  low: number | null;
  high: number | null;
  values: Envelope;
  blocked: Envelope | null;
}

/** Which positions of A and B belong together, and how many of each belong to none. */
export interface PlacesMessage {
  a: Envelope;
  b: Envelope;
  only: [a: number, b: number];
}

/** Layer, sample and head. */
export type HeadPlace = readonly [layer: number, batch: number, head: number];

/** A, B and B − A, of places that both have. */
export interface ComparisonMessage {
  layer: number;
  batch: number;
  head: number;
  stage: Stage;
  pool: Pool;
  /** The name of B. */
  against: string;
  against_at?: HeadPlace | null;
  queries: number;
  keys: number;
  query_bin: number;
  key_bin: number;
  sampled: Sampled | null;
  a: SideMessage;
  b: SideMessage;
  change: SideMessage;
  /** null where every place is the same position of both. */
  query_places: PlacesMessage | null;
  key_places: PlacesMessage | null;
  /** Places that have another token in B than in A: queries, keys. */
  differ: [queries: number, keys: number];
  /** Whether a learned sink takes a share of A's or B's weights. */
  has_sinks?: boolean;
  /** Of A's and of B's head its number in the model; null where a side has all heads. */
  head_numbers?: readonly [a: number | null, b: number | null];
  /** Python's sentence, and then nothing of the above but what it is of. */
  error: string | null;
}

/** What changes for a query over its keys, or for a key over its queries: exact weights, the larger of both first. */
export interface ChangesMessage {
  layer: number;
  batch: number;
  head: number;
  against: string;
  against_at?: HeadPlace | null;
  query: number | null;
  key: number | null;
  side: Side;
  places: Envelope;
  a: { values: Envelope; blocked: Envelope | null };
  b: { values: Envelope; blocked: Envelope | null };
  change: { values: Envelope; blocked: Envelope | null };
  rest: { count: number; a: Figure; b: Figure };
  masked: number;
  /** Keys of each side that the other has not, and the weight that they hold. */
  only: { a: { count: number; sum: Figure }; b: { count: number; sum: Figure } } | null;
}

export interface TokensMessage {
  /** All tokens as UTF-8, one after the other. */
  text: Bytes;
  /** Where each token ends, in bytes. */
  ends: Envelope;
  /** How many there are; those that are not in `text` are asked for. */
  length?: number;
  /** How the vocabulary is written, where the tokenizer told. */
  spelling?: "bytes" | "spaced" | "text";
}

/** Image patches among the positions, row by row: where they begin; null on a side that has none. */
export interface GridMessage {
  rows: number;
  columns: number;
  query: number | null;
  key: number | null;
}

/** What was cut into patches. */
export interface ImageMessage {
  mime: string;
  data: Bytes;
  /** In pixels, as it was given. */
  width: number;
  height: number;
}

/** Of a column's color: 0 to 6, 7 of the segment whose attention is looked at, -1 gray. */
export type ColorSlot = number;

/**
 * The named parts of a text: each entry a contiguous piece, each of level n + 1 inside the last of level n before it.
 */
export interface SegmentsMessage {
  names: string[];
  starts: Envelope;
  stops: Envelope;
  levels: Envelope;
  /** Entries that are not here, as there are too many. */
  more?: number;
  /** Positions in the text. */
  length: number;
  /** The names of level 0 in order of appearance, each once, with the tokens and the color of each. */
  distinct: string[];
  sizes: number[];
  colors: ColorSlot[];
  /** Whose attention is looked at unless another is chosen. */
  answer: string;
}

/** Segments that cannot be shown here: Python's sentence. */
export interface NoSegmentsMessage {
  error: string;
}

/** Mass and even attention with the part of each that is of a query's own key, which is in them. */
interface MassesMessage {
  mass: Envelope;
  even: Envelope;
  self: Envelope;
  self_even: Envelope;
}

/** Of some tokens of the asking segment: (A, T), but `self`, `self_even` and `own`, the column of the own key, (A,). */
export interface MassColumnsMessage extends MassesMessage {
  start: number;
  own: Envelope;
}

/** How much attention segments give to segments, nothing set aside; see docs/contract.md. */
export interface MassMessage extends Partial<MassesMessage> {
  /** What requests name this by. */
  id: number;
  layer: number;
  batch: number;
  head: HeadName;
  path: string[];
  asking: string;
  /** What the asking segment lies in, outermost first. */
  asking_path?: string[];
  /** What is summed; weights where nothing is said. */
  stage?: Stage;
  /** Python's sentence, and then nothing below. */
  error: string | null;
  keys?: string[];
  key_sizes?: number[];
  key_colors?: ColorSlot[];
  /** How many segments each is divided into, 0 where it is not. */
  key_inside?: number[];
  /** (T, 2), (S, 2) start and stop of the longest stretch of each; 0, 0 of what has no place. */
  key_spans?: Envelope;
  rows?: string[];
  row_sizes?: number[];
  row_spans?: Envelope;
  row?: number;
  /** The row of the asking segment, where the matrix comes rounded. */
  asking_row?: MassesMessage;
  /** Of the queries that are looked at in the end, 0 to 1. */
  share?: number;
  /** (S,) how many queries of each row were looked at. */
  looked?: Envelope;
  /** Tokens of the asking segment, and where they are, the first 4,096 of them. */
  total?: number;
  positions?: Envelope;
  columns?: MassColumnsMessage;
}

/** The mass of the asking segment in all heads of all layers, layer by layer; NaN where it is not known yet. */
export interface HeadMassMessage extends Partial<MassesMessage> {
  id: number;
  batch: number;
  path: string[];
  asking: string;
  /** What the asking segment lies in, outermost first. */
  asking_path?: string[];
  stage?: Stage;
  error: string | null;
  /** The columns that are here, (L·H, C). */
  keys?: string[];
  /** (L·H, 1) the sums over all columns, also those that are not here. */
  sums?: MassesMessage;
  /** How many heads each layer has. */
  heads?: number[];
  /** (L,) how many queries were looked at, of `total`. */
  looked?: Envelope;
  total?: number;
  share?: number;
}

/** What is taken from a run of the model: a segment's keys, a head, an edge in one head, or a key in all heads. */
export type EffectOf =
  | { segment: string; path: string[] }
  | { layer: number; head: number }
  | { layer: number; head: number; query: number; key: number }
  | { key: number };

/** What runs of the model without something have told so far. */
export interface EffectsMessage {
  /** Why nothing can be run, or a run failed: a sentence. */
  error: string | null;
  /** The position whose next token is looked at, and the last words up to it; null before the model has run once. */
  at: number | null;
  text: string;
  /** `token` is null where the target is another function of the output. */
  target: { token: number | null; text: string } | null;
  targets: { at: number | null; token: number | null; text: string; note: string }[];
  edit: string;
  /** What can be done: "zero", "without it", and of a head "set to zero". */
  edits: { value: string; name: string; of: string }[];
  /** In which the loss is measured: "nats". */
  unit: string;
  /** `lost` is null where it is not known yet; `dropped` says from where: "keys dropped in 6 layers". */
  segments: { path: string[]; names: string[]; lost: Figure[]; dropped: string } | null;
  /** Layer by layer. */
  heads: { counts: number[]; lost: Figure[] } | null;
  /** Runs of the model, each of one removal, and how long one takes. */
  done: number;
  total: number;
  run_seconds?: number | null;
  seconds_left: number | null;
  state: "idle" | "running" | "stopped" | "done" | "failed";
}

/** One run without something. */
export interface EffectDetail {
  of: EffectOf;
  /** Why the model cannot be run without this: a sentence, and then no numbers. */
  error?: string | null;
  at: number | null;
  token: number | null;
  target: string;
  edit: string;
  /** The target's log-probability, or what else the target is. */
  before: Figure;
  after: Figure;
  /** At this position, and the mean over those of the answer. */
  kl: Figure;
  kl_answer: Figure;
  vocabulary: number;
  /** The target first, then those with the largest probability before or after. */
  tokens: [text: string, before: Figure, after: Figure][];
}
