/** Scales, words, orders and sums for the loss without a segment or head. Pure functions. */

import type { EffectDetail, EffectOf, EffectsMessage, Figure } from "../contract/messages";
import { numberIn } from "./matrix";
import { byLargest, largest } from "./segments";
import { type HeadMetric, medianOf, type Survey } from "./survey";

/** Return losses as numbers; null is not known yet. */
export const lossesIn = (figures: readonly Figure[]): (number | null)[] =>
  figures.map((one) => (one === null ? null : numberIn(one)));

/** Return a key for a removal, the same for equal ones. */
export const effectKey = (of: EffectOf) => {
  const all = of as Partial<Record<"segment" | "path" | "layer" | "head" | "query" | "key", unknown>>;
  return JSON.stringify([all.segment, all.path, all.layer, all.head, all.query, all.key]);
};

/** Return the run without a segment, head or edge, if there is one with the current target and edit. */
export function detailOf(
  details: readonly EffectDetail[] | null | undefined,
  { at, target, edit }: EffectsMessage,
  of: EffectOf,
): EffectDetail | null {
  const isIt = (one: EffectDetail) =>
    one.at === at && one.token === target?.token && one.edit === edit && effectKey(one.of) === effectKey(of);
  return details?.filter(isIt).at(-1) ?? null;
}

/** Return the loss without a segment or head, from the results of all runs; null if they do not hold it. */
export function lossOf({ segments, heads }: EffectsMessage, of: EffectOf): number | null {
  let lost: Figure | undefined;
  if ("segment" in of) {
    const isIts = segments?.path.join("\n") === of.path.join("\n");
    lost = isIts ? segments?.lost[segments.names.indexOf(of.segment)] : undefined;
  } else if ("head" in of && !("query" in of) && typeof of.head === "number") {
    const { counts = [], lost: losses = [] } = heads ?? {};
    const before = counts.slice(0, of.layer).reduce((sum, one) => sum + one, 0);
    lost = of.head < (counts[of.layer] ?? 0) ? losses[before + of.head] : undefined;
  }
  return lost == null ? null : numberIn(lost);
}

/** Return the words of the current edit before and after a name: "without doc 3", "doc 3 made even". */
export function editWords(now: EffectsMessage | null | undefined): readonly [before: string, after: string] {
  const of = now?.edits.find(({ value }) => value === now.edit)?.of;
  return now?.edit === "zero" || of === undefined ? ["without", ""] : ["", of];
}

// --- one zero, two scales -------------------------------------------------------------------------------------------

/** Mass above and loss below from a common zero, with gridlines at round values of both. */
export interface Scales {
  /** The right end of each scale. */
  readonly mass: number;
  readonly lost: number;
  /** Gridlines right of zero. */
  readonly parts: number;
  /** How far the axis extends left of zero, as a share of the right side. */
  readonly left: number;
}

/** A smaller loss, in nats, counts as none: the axis is never shorter. */
export const LEAST_LOST = 0.05;
const MOST_PARTS = 5;

/** Return two scales that end at round numbers and have the same number of parts. */
export function scalesOf(masses: readonly number[], losses: readonly number[], least = LEAST_LOST): Scales {
  const most = largest(masses.filter(Number.isFinite)) || 1;
  const step = roundStep(most / MOST_PARTS, [1, 2, 2.5, 5, 10]);
  const parts = Math.max(1, Math.ceil(most / step - 1e-9));
  const finite = losses.filter(Number.isFinite);
  const lost = roundStep(largest([...finite.map(Math.abs), least]) / parts) * parts;
  const below = losses.includes(Number.NEGATIVE_INFINITY) ? lost : largest(finite.map((value) => -value));
  return { mass: round(step * parts), lost: round(lost), parts, left: below / lost };
}

/** Return the next round number. */
function roundStep(value: number, steps = [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10]): number {
  const power = Number(`1e${value.toExponential().split("e")[1]}`);
  return round((steps.find((step) => step * power >= value * (1 - 1e-9)) ?? 10) * power);
}

const round = (value: number) => Number(value.toPrecision(6));

/** Return the position of a share of the right side, in percent of the whole axis. */
export const placeOn = ({ left }: Scales, share: number) =>
  (100 * (left + Math.max(-left, Math.min(1, share)))) / (1 + left);

export const LOOKED_AT = "looked at, hardly needed";
export const NEEDED = "needed, hardly looked at";

/** Return the words for a disagreement of mass and loss: their ends are at least half the axis apart. */
export function disagreement({ mass, lost }: Scales, ownMass: number, ownLost: number | null): string {
  if (ownLost === null || !(ownMass >= 0) || Number.isNaN(ownLost)) return "";
  const apart = Math.min(1, ownLost / lost) - ownMass / mass;
  return apart >= 0.5 - 1e-9 ? NEEDED : apart <= -0.5 + 1e-9 ? LOOKED_AT : "";
}

// --- orders and sums ------------------------------------------------------------------------------------------------

export const ORDERS = { effect: "by effect", mass: "by mass", text: "as in the text" } as const;
export type EffectOrder = keyof typeof ORDERS;

/** Return items in an order: largest loss or mass first, unknown ones last; or as in the text. */
export function ordered<T extends { readonly lost: number | null; readonly mass: number }>(
  things: readonly T[],
  order: EffectOrder,
): readonly T[] {
  if (order === "text") return things;
  return byLargest(things, ({ lost, mass }) => (order === "mass" ? mass : (lost ?? Number.NaN)));
}

export interface Chances {
  readonly rows: readonly { readonly text: string; readonly before: number; readonly after: number }[];
  /** The sum of all other tokens. */
  readonly rest: { readonly count: number; readonly before: number; readonly after: number };
}

/** Return the probabilities of some tokens before and after, and the sums over all others. */
export function chancesOf({ tokens, vocabulary }: EffectDetail, most: number): Chances {
  const rows = tokens
    .slice(0, most)
    .map(([text, before, after]) => ({ text, before: numberIn(before), after: numberIn(after) }));
  const left = (of: "before" | "after") =>
    Math.max(
      0,
      rows.reduce((sum, row) => sum - row[of], 1),
    );
  return { rows, rest: { count: vocabulary - rows.length, before: left("before"), after: left("after") } };
}

/** Return all heads with the loss without each as one more metric. */
export function withEffect(survey: Survey, effects: EffectsMessage | null | undefined): Survey {
  if (!effects) return survey;
  const values = new Float32Array(survey.heads.length).fill(Number.NaN);
  const fits = effects.heads?.counts.join() === survey.layers.map(({ heads }) => heads).join();
  if (fits) values.set(lossesIn(effects.heads!.lost).map((one) => one ?? Number.NaN));
  const there = values.filter(Number.isFinite).sort();
  const metric: HeadMetric = {
    ...{ name: "effect", word: "Loss without it", kind: "nats", values },
    high: largest(there.map(Math.abs)) || 1,
    median: medianOf(there),
  };
  return { ...survey, metrics: [...survey.metrics, metric] };
}
