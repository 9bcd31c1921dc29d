/** The names of the stages of attention, and whether their numbers have signs. */

import type { Facts } from "./messages";
import { stages } from "./names.json";
import type { Stage } from "./values";

/** `sum`: the name of a sum over the keys of a segment, for stages that multiply the weights. */
const WORDS: Record<Stage, { one: string; many: string; legend: string; signed: boolean; sum?: string }> = stages;

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

/** The stage of links, thumbnails and sums by segment: weights, or a stage that multiplies the weights. */
export const linkedStage = (stage: Stage): Stage => (WORDS[stage].sum ? stage : "weights");
export const sumWord = (stage: Stage) => WORDS[stage].sum ?? "mass";

/** Scores extend to both sides of zero; weights and contributions start there. */
export const isSigned = (stage: Stage) => WORDS[stage].signed;
