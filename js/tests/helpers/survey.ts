/** All heads as Python sends them, made up. */

import type { SurveyMessage } from "../../src/contract/messages";
import type { Metric } from "../../src/contract/values";
import { codes, floats } from "./states.ts";

const NAMES: readonly Metric[] = [
  "entropy",
  "first_token",
  "previous_token",
  "itself",
  "same_token",
  "last_token",
  "induction",
  "mean_distance",
  "masked_share",
];

interface Options {
  /** Layers that are ready; all where it is left out. */
  readonly ready?: number;
  readonly side?: number;
  readonly groups?: number;
  readonly keys?: number;
  readonly rows?: number;
  readonly error?: string | null;
}

/** Layers of so many heads, with the metrics that are given; head h of layer l is brightest in cell l + h. */
export function surveyOf(
  heads: readonly number[],
  metrics: Partial<Record<Metric, readonly number[]>>,
  { ready = heads.length, side = 4, groups, keys = 16, rows = keys, error = null }: Options = {},
): SurveyMessage {
  const cells = (layer: number, count: number) =>
    Array.from({ length: count * side * side }, (_, at) => {
      const head = Math.floor(at / (side * side));
      return at % (side * side) === (layer + head) % (side * side) ? 1 : 0.1;
    });
  const named = NAMES.map((name) => [name, metrics[name] ? floats(metrics[name]) : null]);
  return {
    batch: 0,
    layers: heads.map((count) => ({ heads: count, groups: groups ?? count, queries: keys, keys, rows })),
    pictures: heads
      .slice(0, ready)
      .map((count, layer) => codes(cells(layer, count), [count, side, side], { kind: "unit", high: 1 })),
    metrics: Object.fromEntries(named) as SurveyMessage["metrics"],
    error,
  };
}
