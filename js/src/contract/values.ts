/** The values that traits and messages take: stages, views, heads, colors. */

/** The stages of attention, in order of computation. */
export type Stage = "scores" | "scaled" | "capped" | "masked" | "weights" | "contribution" | Carried;
/** What a weight carries. */
export type Carried = "value_norm" | "logit" | "saliency";
export type Pool = "max" | "mean";
export type ColorScaleName = "linear" | "log";
/** What the colors span: the head, each row, all heads of the layer, what is in view, 0 to 1, or two numbers. */
export type ColorRange = "head" | "row" | "layer" | "view" | "unit" | [number, number];
/** Whose links are shown: those of a query to its keys, or of a key to the queries that attend to it. */
export type Side = "query" | "key";
export type ViewName = "compare" | "heatmap" | "graph" | "text" | "image" | "heads" | "segments" | "stages";
/** How the attention to a segment is read: its mass, mass for each of its tokens, or against even attention. */
export type Measure = "mass" | "per_token" | "lift";
/** What of a head is measured. */
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
/** What of a head is summed in a stage after the weights: with signs, and by size. */
export type StageSum = "stage_sum" | "stage_size";
/** A head by its number; several as one by their name, such as "mean 0 4". */
export type HeadName = number | string;
/** A pinned place; null where only one side is. */
export type Pin = [query: number | null, key: number | null];
export type Palette = "attnwidget" | "viridis";
export type ThemePreference = "auto" | "light" | "dark" | "contrast";
/** The theme in force, once the host and the system have been asked. */
export type Theme = "light" | "dark" | "contrast" | "contrast-light";
