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

/** Return `head 3`, `mean of heads 0, 4`, `maximum of 12 heads`. */
export function headWords(head: HeadName): string {
  if (typeof head === "number") return `head ${head}`;
  const [how, ...heads] = head.split(" ");
  const which = heads.length > NAMED_HEADS ? `${heads.length} heads` : `heads ${heads.join(", ")}`;
  return `${how === "max" ? "maximum" : how} of ${which}`;
}

/** Return which forward pass and which stack is shown, in words, where there are several. */
export function stackWords({ stack, forward, forwards }: Facts): string[] {
  return [(forwards ?? 1) > 1 ? `forward ${count(forward ?? 0)}` : "", stack ?? ""].filter(Boolean);
}

/** Return `heads 0, 4`; several as one are named as such. */
export function drawnWords(heads: readonly HeadName[]): string {
  const [first] = heads;
  return typeof first === "string" ? headWords(first) : `heads ${heads.join(", ")}`;
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
