/** What the stages of attention are called, and whether their numbers have signs. */

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
/** A token whose logits are shown; they are those before the cap where a softcap bends them afterwards. */
export const targetName = (target: { text: string; before_cap?: true }) =>
  `“${target.text}”${target.before_cap ? " before the cap" : ""}`;

/** What a legend calls the numbers of a stage; a logit with its token, where the facts of the layer are given. */
export function legendOf(stage: Stage, facts?: Facts, batch = 0) {
  const target = stage === "logit" ? facts?.targets?.[batch] : undefined;
  return target ? `Logit of ${targetName(target)}, direct path` : WORDS[stage].legend;
}

/** Whether the number of largest absolute value stands for several. */
export const isBySize = (stage: Stage) => stage === "logit" || stage === "saliency";
export const largestOf = (stage: Stage) => (isBySize(stage) ? "largest by size" : "maximum");

/** What a weight carries: such numbers are often far below 1. */
export const isCarried = (stage: Stage) => stage === "value_norm" || isBySize(stage);

/** What the sums of a stage over the keys of a segment are called. */
const SUMS: Partial<Record<Stage, string>> = {
  contribution: "‖v‖ carried",
  value_norm: "‖v W_O‖ carried",
  logit: "logit added",
  saliency: "saliency",
};

/** Links, small pictures and sums by segment are of weights, or of a stage that weights are multiplied to. */
export const linkedStage = (stage: Stage): Stage => (stage in SUMS ? stage : "weights");
export const sumWord = (stage: Stage) => SUMS[stage] ?? "mass";

/** Scores run in two directions from zero; weights and contributions begin there. */
export const isSigned = (stage: Stage) => WORDS[stage].signed;
