/** Words and numbers that several parts of the widget share. */

import { MINUS_INF, NAN, PLUS_INF } from "../contract/decode";
import type { Facts } from "../contract/messages";
import type { HeadName, Stage } from "../contract/values";
import type { Span } from "../geometry/viewport";
import { isAway } from "../kernel/kernel";
import type { Ui } from "../state/ui";
import { count, listNumber } from "../text/format";
import type { Labels } from "../text/labels";

const NAMED_HEADS = 6;

/** Return a number of a stage as text, including one that is not finite. */
export function numberOf(value: number, kind: number, stage: Stage): string {
  if (kind === NAN) return "NaN";
  if (kind === PLUS_INF) return "+∞";
  if (kind === MINUS_INF) return "−∞";
  return listNumber(value, stage);
}

type HeadNumbers = Pick<Facts, "head_numbers">;

/** Return the numbers in the model of a layer's heads, as `headWords` takes them. */
export function numbersIn({ model_heads }: Pick<Facts, "model_heads">, layer: number): HeadNumbers {
  return { head_numbers: model_heads?.[layer] ?? null };
}

/** Return `head 3`, `mean of heads 0, 4`, `maximum of 12 heads`; `head 0 (5 in the model)` if heads are missing. */
export function headWords(head: HeadName, facts: HeadNumbers): string {
  if (typeof head === "number") return `head ${head}${inModel([head], facts)}`;
  const [how, ...heads] = head.split(" ");
  const named = `heads ${heads.join(", ")}${inModel(heads.map(Number), facts)}`;
  const which = heads.length > NAMED_HEADS ? `${heads.length} heads` : named;
  return `${how === "max" ? "maximum" : how} of ${which}`;
}

/** Return which forward pass and which stack is shown, if there are several. */
export function stackWords({ stack, forward, forwards, request }: Facts): string[] {
  const pass = request ? `request ${request}` : `forward ${count(forward ?? 0)}`;
  return [(forwards ?? 1) > 1 ? pass : "", stack ?? ""].filter(Boolean);
}

/** Return ` (5, 7 in the model)`: the numbers of heads in the model, if only some heads are here. */
export function inModel(heads: readonly number[], { head_numbers }: HeadNumbers): string {
  return head_numbers ? ` (${heads.map((head) => head_numbers[head] ?? "?").join(", ")} in the model)` : "";
}

/** Return ` (5 in the model)`, if known; nothing if all heads are here. */
export const ofModel = (number: number | null) => (number === null ? "" : ` (${number} in the model)`);

/** Return `heads 0, 4`; several heads as one keep their name. */
export function drawnWords(heads: readonly HeadName[], facts: HeadNumbers): string {
  const [first] = heads;
  if (typeof first === "string") return headWords(first, facts);
  return `heads ${heads.join(", ")}${inModel(heads as readonly number[], facts)}`;
}

/** Return `128–131`. */
export function rangeOf({ start, stop }: Span): string {
  return stop - start === 1 ? count(start) : `${count(start)}–${count(stop - 1)}`;
}

/** Return whether a label is a token's text, rather than its position. */
export function isNamed(labels: Labels, index: number): boolean {
  return labels.at(index).text !== count(index);
}

/** Return whether the heatmap of a pooled head shows single, exact cells, as when zoomed in far. */
export function showsCells({ window }: Ui): boolean {
  const shown = window.value;
  return shown !== null && Math.min(shown.cellWidth, shown.cellHeight) >= 1;
}

/** Return Python's error message as a full sentence. */
export function sentence(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.?!]$/.test(text) ? "" : ".");
}

/** Return why something needs a kernel that is not there, and how it can be done; undefined if a kernel is there. */
export function withoutKernel({ kernel }: Ui, goal: string): string | undefined {
  const state = kernel.state.value;
  if (!isAway(state)) return undefined;
  const why = { gone: "The kernel is gone", orphan: "No kernel has this widget" }[state as "gone" | "orphan"];
  return `${why ?? "No kernel answers"}: run the cell again to ${goal}`;
}

/** Return the word for one of a layer's samples: "map" if they may be windows, groups or heads. */
export function sampleWord(facts: Facts): "sample" | "map" | "window" {
  if (facts.axes_read === "windows") return "window";
  return facts.axes_read === "maps" ? "map" : "sample";
}
