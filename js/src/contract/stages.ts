/** The names of the stages of attention, and whether their numbers have signs. */

import type { Facts } from "./messages";
import type { Stage } from "./values";

const WORDS: Record<Stage, { one: string; many: string; legend: string; signed: boolean }> = {
  scores: { one: "score", many: "scores", legend: "Score", signed: true },
  scaled: { one: "scaled score", many: "scaled scores", legend: "Scaled", signed: true },
  capped: { one: "capped score", many: "capped scores", legend: "Capped", signed: true },
  masked: { one: "masked score", many: "masked scores", legend: "Masked", signed: true },
  weights: { one: "weight", many: "weights", legend: "Weight", signed: false },
  contribution: { one: "contribution", many: "contributions", legend: "Contribution ‖weight · v‖", signed: false },
  value_norm: { one: "value norm", many: "value norms", legend: "Value norm ‖weight · v W_O‖", signed: false },
  logit: { one: "logit", many: "logits", legend: "Logit, direct path", signed: true },
  saliency: { one: "saliency", many: "saliencies", legend: "Saliency weight · ∂L/∂weight", signed: true },
};

/** One number of a stage: "weight", "scaled score". */
export const wordOf = (stage: Stage) => WORDS[stage].one;
export const wordsOf = (stage: Stage) => WORDS[stage].many;
/** A token whose logits are shown; before the softcap, if there is one. */
export const targetName = (target: { text: string; before_cap?: true }) =>
  `“${target.text}”${target.before_cap ? " before the cap" : ""}`;

/** The legend for a stage; for a logit with its token, if the layer's facts are given. */
export function legendOf(stage: Stage, facts?: Facts, batch = 0) {
  const target = stage === "logit" ? facts?.targets?.[batch] : undefined;
  return target ? `Logit of ${targetName(target)}, direct path` : WORDS[stage].legend;
}

/** Whether the number of largest absolute value represents several. */
export const isBySize = (stage: Stage) => stage === "logit" || stage === "saliency";
export const largestOf = (stage: Stage) => (isBySize(stage) ? "largest by size" : "maximum");

/** The stages that measure a weight's contribution; their numbers are often far below 1. */
export const isCarried = (stage: Stage) => stage === "value_norm" || isBySize(stage);

/** The names of sums of a stage over the keys of a segment. */
const SUMS: Partial<Record<Stage, string>> = {
  contribution: "‖v‖ carried",
  value_norm: "‖v W_O‖ carried",
  logit: "logit added",
  saliency: "saliency",
};

/** The stage of links, thumbnails and sums by segment: weights, or a stage that multiplies the weights. */
export const linkedStage = (stage: Stage): Stage => (stage in SUMS ? stage : "weights");
export const sumWord = (stage: Stage) => SUMS[stage] ?? "mass";

/** Scores extend to both sides of zero; weights and contributions start there. */
export const isSigned = (stage: Stage) => WORDS[stage].signed;
