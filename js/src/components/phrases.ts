/** Words and numbers that several parts of the widget say in the same way. */

import { MINUS_INF, NAN, PLUS_INF } from "../contract/decode";
import type { Facts } from "../contract/messages";
import type { HeadName, Stage } from "../contract/values";
import type { Span } from "../geometry/viewport";
import type { Ui } from "../state/ui";
import { count, listNumber } from "../text/format";
import type { Labels } from "../text/labels";

const NAMED_HEADS = 6;

/** Return a number of a stage in words, also one that is not finite. */
export function numberOf(value: number, kind: number, stage: Stage): string {
  if (kind === NAN) return "NaN";
  if (kind === PLUS_INF) return "+∞";
  if (kind === MINUS_INF) return "−∞";
  return listNumber(value, stage);
}

type HeadNumbers = Pick<Facts, "head_numbers">;

/** Return the model's own numbers of the heads of a layer, as `headWords` takes them. */
export function numbersIn({ model_heads }: Pick<Facts, "model_heads">, layer: number): HeadNumbers {
  return { head_numbers: model_heads?.[layer] ?? null };
}

/** Return `head 3`, `mean of heads 0, 4`, `maximum of 12 heads`; of a part of a model, `head 0 (5 in the model)`. */
export function headWords(head: HeadName, facts: HeadNumbers): string {
  if (typeof head === "number") return `head ${head}${inModel([head], facts)}`;
  const [how, ...heads] = head.split(" ");
  const named = `heads ${heads.join(", ")}${inModel(heads.map(Number), facts)}`;
  const which = heads.length > NAMED_HEADS ? `${heads.length} heads` : named;
  return `${how === "max" ? "maximum" : how} of ${which}`;
}

/** Return which forward pass and which stack is shown, in words, where there are several. */
export function stackWords({ stack, forward, forwards }: Facts): string[] {
  return [(forwards ?? 1) > 1 ? `forward ${count(forward ?? 0)}` : "", stack ?? ""].filter(Boolean);
}

/** Return ` (5, 7 in the model)`, the model's own numbers of heads, where only some of its heads are here. */
export function inModel(heads: readonly number[], { head_numbers }: HeadNumbers): string {
  return head_numbers ? ` (${heads.map((head) => head_numbers[head] ?? "?").join(", ")} in the model)` : "";
}

/** Return ` (5 in the model)`, of a head of which that is known; nothing where a side has all heads. */
export const ofModel = (number: number | null) => (number === null ? "" : ` (${number} in the model)`);

/** Return `heads 0, 4`; several as one are named as such. */
export function drawnWords(heads: readonly HeadName[], facts: HeadNumbers): string {
  const [first] = heads;
  if (typeof first === "string") return headWords(first, facts);
  return `heads ${heads.join(", ")}${inModel(heads as readonly number[], facts)}`;
}

/** Return `128–131`. */
export function rangeOf({ start, stop }: Span): string {
  return stop - start === 1 ? count(start) : `${count(start)}–${count(stop - 1)}`;
}

/** Return whether a label is a token's text, and not just its position. */
export function isNamed(labels: Labels, index: number): boolean {
  return labels.at(index).text !== count(index);
}

/** Return whether the heatmap of a pooled head shows single cells: so close nothing is pooled, and all is exact. */
export function showsCells({ window }: Ui): boolean {
  const shown = window.value;
  return shown !== null && Math.min(shown.cellWidth, shown.cellHeight) >= 1;
}

/** Return what Python says where it cannot answer, as a sentence among others. */
export function sentence(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.?!]$/.test(text) ? "" : ".");
}
