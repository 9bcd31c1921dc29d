/** The values that traits and messages take: stages, views, heads, colors. */

/** The stages of attention, in order of computation. */
export type Stage = "scores" | "scaled" | "capped" | "masked" | "weights" | "contribution" | Carried;
/** What a weight contributes downstream. */
export type Carried = "value_norm" | "logit" | "saliency";
export type Pool = "max" | "mean";
export type ColorScaleName = "linear" | "log";
/** The color range: the head, each row, all heads of the layer, the view, 0 to 1, or two numbers. */
export type ColorRange = "head" | "row" | "layer" | "view" | "unit" | [number, number];
/** Whose links are shown: those from a query to its keys, or from a key to the queries that attend to it. */
export type Side = "query" | "key";
/** Layers, heads and forward passes shown as one map; null: all, for `forwards` the one shown. */
export interface Across {
  how: "mean" | "max";
  layers?: number[] | null;
  heads?: number[] | null;
  forwards?: number[] | "all" | null;
}
export type Overlay = "patches" | "smooth";
export type ViewName = "compare" | "heatmap" | "graph" | "text" | "image" | "heads" | "segments" | "stages" | "why";
/** The measure of attention to a segment: mass, mass per token, or relative to even attention. */
export type Measure = "mass" | "per_token" | "lift";
/** The metrics of a head. */
export type Metric =
  | "entropy"
  | "first_token"
  | "previous_token"
  | "itself"
  | "same_token"
  | "last_token"
  | "induction"
  | "mean_distance"
  | "masked_share"
  | "learned_sink"
  | "sink"
  | "streaming"
  | "recall";
/** The sums of a head in a stage after the weights: signed, and by size. */
export type StageSum = "stage_sum" | "stage_size";
/** A head by number; several combined by name, such as "mean 0 4". */
export type HeadName = number | string;
/** A pinned place; null for a side that is not pinned. */
export type Pin = [query: number | null, key: number | null];
/** Colors of the user's own at even places, for one of the ramps. */
export interface OwnPalette {
  readonly name: string;
  readonly kind: "sequential" | "diverging";
  readonly colors: readonly string[];
}
export type Palette = "attnwidget" | "viridis" | OwnPalette;
export type ThemePreference = "auto" | "light" | "dark" | "contrast";
/** The actual theme, after asking host and system. */
export type Theme = "light" | "dark" | "contrast" | "contrast-light";
