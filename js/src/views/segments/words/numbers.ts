/** Numbers and words of this view, for readers and screen readers. */

import { sumWord } from "../../../contract/stages";
import type { Measure, Stage } from "../../../contract/values";
import { MEASURE_WORDS } from "../../../data/segments";
import type { SegmentReading } from "../../../state/ui";
import { cellNumber, listNumber } from "../../../text/format";

const TIMES = "×";

/** `×3.8`; `×12` from 10 on. */
export function liftText(lift: number): string {
  if (!Number.isFinite(lift)) return "";
  if (lift > 0 && lift < 0.05) return `${TIMES}<.1`;
  return `${TIMES}${lift >= 9.95 ? Math.round(lift).toLocaleString("en") : lift.toFixed(1)}`;
}

/** In a list: `.5276`, or `×3.8`. */
export function readingText(value: number, measure: Measure, stage: Stage = "weights"): string {
  if (Number.isNaN(value)) return "–";
  return measure === "lift" ? liftText(value) : listNumber(value, stage);
}

/** In a cell, about four characters; nothing where it is too small for them. */
export function cellText(value: number, measure: Measure, stage: Stage = "weights"): string {
  if (Number.isNaN(value)) return "";
  if (stage !== "weights") return cellNumber(value, stage);
  if (measure === "mass") return cellNumber(value, "weights");
  if (measure === "lift") return value >= 0.05 ? liftText(value).slice(1) : "";
  const text = value.toFixed(3).replace(/^0/, "");
  return Number(text) === 0 ? "" : text;
}

/** `.24`: a share in little room. */
export function shareText(value: number, stage: Stage = "weights"): string {
  if (Number.isNaN(value)) return "–";
  if (stage !== "weights") return listNumber(value, stage);
  if (value === 0) return "0";
  if (value < 0.005) return "<.01";
  return value.toFixed(2).replace(/^0/, "");
}

/** On an axis: `.3`, `.02`, `×4`. */
export function axisText(value: number, measure: Measure): string {
  const text = String(Number(value.toPrecision(2)))
    .replace("-", "−")
    .replace(/^(−?)0\./, "$1.");
  return measure === "lift" ? TIMES + text : text;
}

/** `mass .5276, 3.8 times even`, for screen readers. */
export function spokenNumbers(
  { mass, raw, lift, isAside }: Pick<SegmentReading, "mass" | "raw" | "lift" | "isAside">,
  stage: Stage = "weights",
): string {
  if (isAside) return `excluded, ${stage === "weights" ? "weight" : sumWord(stage)} ${listNumber(raw, stage)}`;
  if (Number.isNaN(mass)) return nothingLeft(raw);
  if (stage !== "weights") return `${sumWord(stage)} ${listNumber(mass, stage)}`;
  const times = Number.isFinite(lift) ? `, ${lift >= 9.95 ? Math.round(lift) : lift.toFixed(1)} times even` : "";
  return `mass ${listNumber(mass, "weights")}${times}`;
}

/** Why a segment that is not excluded has no share: all its query's weight is elsewhere excluded, or masked. */
export const nothingLeft = (raw: number) => (Number.isNaN(raw) ? "not known" : "no weight is left");

/** "mass", "lift"; for other stages "logit added", "logit added per token". */
export function measureWord(measure: Measure, stage: Stage = "weights"): string {
  if (stage === "weights") return MEASURE_WORDS[measure];
  return measure === "per_token" ? `${sumWord(stage)} per token` : sumWord(stage);
}

/** Return the name of a segment in a sentence: "the answer", "doc 3". */
export const inWords = (name: string) => (name === "answer" || name === "question" ? `the ${name}` : name);
