/** What the stages of attention are called, and whether their numbers have signs. */

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
export const legendOf = (stage: Stage) => WORDS[stage].legend;

/** Scores run in two directions from zero; weights and contributions begin there. */
export const isSigned = (stage: Stage) => WORDS[stage].signed;
