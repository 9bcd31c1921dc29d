/** The messages from Python: pictures, tokens, numbers; see docs/contract.md. */

import type { Carried, HeadName, Metric, Pool, Side, Stage } from "./values";

/** Sampled rows: row r is query `first + every · r` alone, except for the first `exact` rows. */
export interface Sampled {
  first: number;
  every: number;
  exact: number;
}

/** The progress of the exact pass over a long head; null if there is none. */
export interface Progress {
  layer: number;
  batch: number;
  head: HeadName;
  stage: Stage;
  pool: Pool;
  /** Share of the cells to compute, 0 to 1. */
  share: number;
  seconds_left: number | null;
  state: "running" | "stopped";
  /** How many workers of an executor compute it; omitted if the kernel computes. */
  workers?: number;
  /** Set if the progress is not of the picture but of finding what a cache evicts, which comes first. */
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

/** An array in transit. In a trait `data` holds the bytes; in a reply, the index of one of the message's buffers. */
export interface Envelope {
  data: Bytes | number;
  dtype: "float32" | "uint8" | "uint32" | "bits";
  shape: number[];
  deflated: boolean;
  scale?: Quantisation | null;
}

/** Facts about the selected layer. */
export interface Facts {
  /** Changes whenever the tensors of the widget are replaced. */
  version: number;
  /** The names of all layers. */
  layers: string[];
  batches: number;
  /** Query heads. */
  heads: number;
  /** Key/value heads: equal to `heads`, or fewer if several query heads share one. */
  groups: number;
  queries: number;
  keys: number;
  /** null if only scores or weights were given. */
  head_size: number | null;
  value_size: number | null;
  dtype: string;
  device: string;
  is_causal: boolean;
  /** The available stages. */
  stages: Stage[];
  /** The shown stack, the stacks of its forward pass, the pass, and the number of passes. */
  stack?: string;
  stacks?: string[];
  forward?: number;
  forwards?: number;
  /** The name of the pass, if it is a request of an engine that serves; older Pythons lack it. */
  request?: string | null;
  /** The layers and heads that are shown as one, in words; null: single layers. */
  across?: string | null;
  /** The number of layers, also while they are shown as one. */
  every?: number;
  /** In a saved file only: which parts of this layer and which layers it holds, and why others are missing. */
  saved?: { layers: number[]; heads: number[]; samples: number[]; others?: string };
  /** Whether merging tokens into words changes anything. */
  has_pieces?: boolean;
  /** Whether a learned sink takes a share of the weights. */
  has_sinks?: boolean;
  /** Whether scores can be split into the parts of the residual stream. */
  why?: boolean;
  /**
   * For each sample, the token whose logits are shown (before a softcap or not) and the choices as [id, text];
   * null if there is none.
   */
  targets?:
    | readonly { token: number; text: string; before_cap?: true; choices: readonly (readonly [number, string])[] }[]
    | null;
  /**
   * The letters of three unnamed axes that were read as samples but may be heads; "maps" if a model's samples may be
   * windows, groups or heads; "windows" if they are windows of one image; else null.
   */
  axes_read?: string | null;
  /** How the model's own output was compared: "all" rows, "rows" that can be compared now, "some" rows; null: never. */
  checked?: "all" | "rows" | "some" | null;
  /** Each head's number in the model, if a capture kept only some; null if all are here. */
  head_numbers?: readonly number[] | null;
  /** The same for every layer, null for one with all heads; null if all have all. */
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
  /** The keys up to the last that any query may attend to: the length of a padded sample without padding. */
  own_keys?: number | null;
  padding?: number | null;
  /** Cells of the matrix per cell of the picture. */
  query_bin: number;
  key_bin: number;
  /** Minimum and maximum finite value of the matrix at this pooling; null if there is none. */
  low: number | null;
  high: number | null;
  /** null if every number is exact. */
  sampled?: Sampled | null;
  values: Envelope | null;
  blocked: Envelope | null;
  /** (rows,): the learned sink's column, pooled like the rows; null without one. */
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
  /** 1 if the tile is exact; else row r is query `first + every · r` alone. */
  every: number;
  first: number;
  low: number | null;
  high: number | null;
  values: Envelope;
}

/** Tiles that the kernel sends unrequested. */
export interface TilesMessage {
  tiles: TileMessage[];
  of: { layer: number; batch: number; head: HeadName; stage: Stage; pool: Pool; version: number; view: string };
}

export interface ThumbnailsMessage {
  layer: number;
  batch: number;
  values: Envelope;
  /** (heads,): the greatest weight of each head, among `rows` of its queries. */
  highs?: Envelope;
  rows?: number;
  /** The stage of the pictures; weights if omitted. */
  stage?: Stage;
}

/** All heads of all layers in a stage after the weights; of the finished layers, in order. */
export interface StageHeadsMessage {
  batch: number;
  stage: Stage;
  /** The query of the sums; null: the mean over all computed queries. */
  query: number | null;
  pictures: (Envelope | null)[];
  /** (heads,) of all layers; NaN if not known. */
  sums: Envelope;
  sizes: Envelope;
  error: string | null;
}

/**
 * All heads of all layers; `pictures` are of the layers that are ready, `metrics` of all their heads, layer by layer.
 */
export interface SurveyMessage {
  batch: number;
  /** `rows`: the number of computed queries per head. */
  layers: { heads: number; groups: number; queries: number; keys: number; rows: number }[];
  /** (heads, rows, columns); null for a layer without this sample. */
  pictures: (Envelope | null)[];
  /** (heads,), NaN if a head has none; null if no head has any. */
  metrics: Record<Metric, Envelope | null>;
  /** The same for custom metrics, by name; null until a layer is ready. */
  own?: Record<string, Envelope | null>;
  /** Why some of these have no numbers, by name. */
  problems?: Record<string, string>;
  error: string | null;
}

export interface RecallMessage {
  layer: number;
  batch: number;
  head: HeadName;
  /** float32: for each query, or the lowest of `every`; NaN if there is none. */
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
  /** The stage of the links; weights if omitted. */
  stage?: Stage;
  /** (heads, positions, count): the partners of each position, strongest first. */
  partners: Envelope;
  /** Their exact weights; 0 if there is no partner. */
  weights: Envelope;
  /** (heads, queries): the weight that each query gives to the learned sink; null without one. */
  sinks?: Envelope | null;
}

/** The changed rules, as `Attention.what_if` takes them; {} changes nothing. */
export interface WhatIf {
  scale?: number;
  temperature?: number;
  softcap?: number | null;
  mask?: boolean;
  causal?: boolean | "lower right";
  window?: number | null;
  drop_keys?: number[];
  /** null or false removes learned sinks. */
  sinks?: boolean | null;
  dtype?: "float16" | "bfloat16" | "int8";
  /** The keys that a cache holds, as `Attention.keep` takes it. */
  keep?: Keep | null;
}

export interface Keep {
  policy: "window" | "heavy_hitters" | "tova" | "snapkv";
  /** The most keys of a query; below 1, a share of them. */
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

/** All stages of a head, each at most 128 × 128, with the output (queries, value size). */
export interface StagesMessage {
  layer: number;
  batch: number;
  head: number;
  pictures: (SmallMessage & { stage: Stage; key_bin: number; every: number; sink?: Envelope | null })[];
  output: (SmallMessage & { value_bin: number; rows: number; columns: number }) | null;
}

/** A likely problem of the selected head, or something worth knowing. */
export interface Finding {
  kind: string;
  severity: "error" | "warning" | "note";
  /** The places as text; "" for the whole head. */
  where: string;
  message: string;
  advice: string;
  /** The first place. */
  query: number | null;
  key: number | null;
}

/** Differences from torch's own result, and from the result under the original rules. */
export interface Deviation {
  layer: number;
  batch: number;
  head: number;
  /** `why` there is no difference, if there is none. */
  torch: { difference: number | null; queries: number; equal: boolean; why: string };
  /** The largest |Δ| in weights and in the output; null if not finite, or without v. */
  original: { weights: number | null; output: number | null; queries: number } | null;
}

/** JSON has no NaN and no infinity, so they are text. */
export type Figure = number | string | null;

/** The effect of one rule or bias on a pair; `adds` is null for a rule, which only allows or blocks. */
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
  /** The learned sink's logit and its weight; null without one. */
  sink?: Figure;
  sink_weight?: Figure;
  weight: Figure;
  contribution: Figure;
  share: Figure;
  /** The contribution of the weight, and per unit of weight, by stage. */
  carried?: Partial<Record<Carried, [Figure, Figure]>>;
  allowed: boolean;
  effects: Effect[];
}

/** The computation of one pair through the stages. */
export interface PairMessage extends PairNumbers {
  layer: number;
  batch: number;
  head: number;
  query: number;
  key: number;
  /** (D,) q_d · k_d. */
  products: Envelope | null;
  /** (Dv,): weight · v, and its sum over all keys. */
  value: Envelope | null;
  output: Envelope | null;
  /** The query's weights for all keys, or for the strongest. */
  row: { keys: Envelope; values: Envelope; blocked: Envelope | null };
  /** The numbers under the original rules, if rules were changed; `row` holds the weights of the same keys. */
  original: (PairNumbers & { value: Envelope | null; row: Envelope }) | null;
}

/** One of the three pictures of a comparison. */
interface SideMessage {
  low: number | null;
  high: number | null;
  values: Envelope;
  blocked: Envelope | null;
}

/** Which positions of A and B match, and how many have no match. */
export interface PlacesMessage {
  a: Envelope;
  b: Envelope;
  only: [a: number, b: number];
}

/** Layer, sample and head. */
export type HeadPlace = readonly [layer: number, batch: number, head: number];

/** A, B and B − A, for places that both have. */
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
  /** null if every place is the same position on both sides. */
  query_places: PlacesMessage | null;
  key_places: PlacesMessage | null;
  /** How many places have different tokens in A and B: queries, keys. */
  differ: [queries: number, keys: number];
  /** Whether a learned sink takes a share of A's or B's weights. */
  has_sinks?: boolean;
  /** The number in the model of A's and of B's head; null if a side has all heads. */
  head_numbers?: readonly [a: number | null, b: number | null];
  /** Python's sentence; then only the identity fields above are set. */
  error: string | null;
}

/** The changes of a query over its keys, or of a key over its queries: exact weights, the larger of both first. */
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
  /** Keys that only one side has, and their total weight. */
  only: { a: { count: number; sum: Figure }; b: { count: number; sum: Figure } } | null;
}

export interface TokensMessage {
  /** All tokens as UTF-8, concatenated. */
  text: Bytes;
  /** The end of each token, in bytes. */
  ends: Envelope;
  /** The total number; tokens not in `text` are requested. */
  length?: number;
  /** How the vocabulary is written, if the tokenizer tells. */
  spelling?: "bytes" | "spaced" | "text";
}

/** Image patches among the positions, row by row, with their start; null on a side without any. */
export interface GridMessage {
  rows: number;
  columns: number;
  query: number | null;
  key: number | null;
  /** Of a video; each frame has all rows and columns. */
  frames?: number;
  /**
   * The cell of each patch in each sample that is a window of the image: frame by frame, row by row; -1 for padding.
   */
  windows?: readonly (readonly number[])[] | null;
}

/** Boxes on the image: left, top, right and bottom as shares of its size, and the sides whose positions they are. */
export interface BoxesMessage {
  places: readonly (readonly number[])[];
  query: boolean;
  key: boolean;
}

/** The image that was cut into patches, or the frames of a video as one picture. */
export interface ImageMessage {
  mime: string;
  data: Bytes;
  /** In pixels, as given; of one frame. */
  width: number;
  height: number;
  /** How many frames of a video stand in a row of the picture. */
  across?: number;
}

/** A column's color: 0 to 6; 7 for the asking segment; -1 for gray. */
export type ColorSlot = number;

/**
 * The named parts of a text: each entry a contiguous piece, each of level n + 1 inside the last of level n before it.
 */
export interface SegmentsMessage {
  names: string[];
  starts: Envelope;
  stops: Envelope;
  levels: Envelope;
  /** The number of entries that were not sent. */
  more?: number;
  /** Positions in the text. */
  length: number;
  /** The distinct names of level 0 in order of appearance, with the number of tokens and the color of each. */
  distinct: string[];
  sizes: number[];
  colors: ColorSlot[];
  /** The asking segment unless another is chosen. */
  answer: string;
}

/** Segments that cannot be shown here: Python's sentence. */
export interface NoSegmentsMessage {
  error: string;
}

/** Mass and even attention, each with its part on the query's own key, which is included. */
interface MassesMessage {
  mass: Envelope;
  even: Envelope;
  self: Envelope;
  self_even: Envelope;
}

/** For some tokens of the asking segment: (A, T); `self`, `self_even` and `own` (the own key's column) are (A,). */
export interface MassColumnsMessage extends MassesMessage {
  start: number;
  own: Envelope;
}

/** The attention between segments, before anything is excluded; see docs/contract.md. */
export interface MassMessage extends Partial<MassesMessage> {
  /** The id that requests use. */
  id: number;
  layer: number;
  batch: number;
  head: HeadName;
  path: string[];
  asking: string;
  /** The path of the asking segment, outermost first. */
  asking_path?: string[];
  /** The summed stage; weights if omitted. */
  stage?: Stage;
  /** Python's sentence; then nothing below is set. */
  error: string | null;
  keys?: string[];
  key_sizes?: number[];
  key_colors?: ColorSlot[];
  /** How many segments are inside each, 0 if none. */
  key_inside?: number[];
  /** (T, 2), (S, 2): start and stop of the longest stretch of each; 0, 0 if it has no place. */
  key_spans?: Envelope;
  rows?: string[];
  row_sizes?: number[];
  row_spans?: Envelope;
  row?: number;
  /** The asking segment's row, if the matrix is rounded. */
  asking_row?: MassesMessage;
  /** The computed share of all queries to compute, 0 to 1. */
  share?: number;
  /** (S,): the number of computed queries per row. */
  looked?: Envelope;
  /** The tokens of the asking segment with their positions, at most the first 4,096. */
  total?: number;
  positions?: Envelope;
  columns?: MassColumnsMessage;
}

/** The mass of the asking segment in all heads, layer by layer; NaN if not known yet. */
export interface HeadMassMessage extends Partial<MassesMessage> {
  id: number;
  batch: number;
  path: string[];
  asking: string;
  /** The path of the asking segment, outermost first. */
  asking_path?: string[];
  stage?: Stage;
  error: string | null;
  /** The columns that were sent, (L·H, C). */
  keys?: string[];
  /** (L·H, 1): the sums over all columns, including unsent ones. */
  sums?: MassesMessage;
  /** The number of heads per layer. */
  heads?: number[];
  /** (L,): how many of `total` queries were computed. */
  looked?: Envelope;
  total?: number;
  share?: number;
}

/** What a run of the model removes: a segment's keys, a head, an edge in one head, or a key in all heads. */
export type EffectOf =
  | { segment: string; path: string[] }
  | { layer: number; head: number }
  | { layer: number; head: number; query: number; key: number }
  | { key: number };

/** The results so far of running the model without something. */
export interface EffectsMessage {
  /** Why nothing can be run, or why a run failed. */
  error: string | null;
  /** The position whose next token is examined, and the last words up to it; null before the first run. */
  at: number | null;
  text: string;
  /** `token` is null if the target is another function of the output. */
  target: { token: number | null; text: string } | null;
  targets: { at: number | null; token: number | null; text: string; note: string }[];
  edit: string;
  /** The available edits: "zero", "without it", and for a head "set to zero". */
  edits: { value: string; name: string; of: string }[];
  /** The unit of the loss: "nats". */
  unit: string;
  /** `lost` is null if not known yet; `dropped` tells from where: "keys dropped in 6 layers". */
  segments: { path: string[]; names: string[]; lost: Figure[]; dropped: string } | null;
  /** Layer by layer. */
  heads: { counts: number[]; lost: Figure[] } | null;
  /** Which layers cannot be edited, and why; null or missing if all can. */
  left_out?: string | null;
  /** Runs of the model, one removal each, and the time of one. */
  done: number;
  total: number;
  run_seconds?: number | null;
  seconds_left: number | null;
  state: "idle" | "running" | "stopped" | "done" | "failed";
}

/** One run without something. */
export interface EffectDetail {
  of: EffectOf;
  /** Why the model cannot be run without it; then there are no numbers. */
  error?: string | null;
  at: number | null;
  token: number | null;
  target: string;
  edit: string;
  /** The target's log-probability, or the value of another target. */
  before: Figure;
  after: Figure;
  /** At this position, and the mean over those of the answer. */
  kl: Figure;
  kl_answer: Figure;
  vocabulary: number;
  /** The target first, then the tokens with the largest probability before or after. */
  tokens: [text: string, before: Figure, after: Figure][];
}
