/** Names of segments where they have little room: short, told apart from one another; and what is set aside. */

import type { Measure as TextMeasure } from "../../../state/plot";
import type { Ui } from "../../../state/ui";
import { shortenApart } from "../../../text/tokens";
import type { HeadsLayout } from "../heads/layout";
import type { SegmentsModel } from "../model";

/** Return the names that are set aside, as all parts of the view say them. */
export function asideNames({ mass, left }: SegmentsModel): string[] {
  const { without, self } = left.value;
  return [...without.map((column) => mass.value?.keys[column] ?? ""), ...(self ? [] : ["own key"])];
}

// --- of the heads' columns ------------------------------------------------------------------------------------------

const HEADER_FONT = 10.5;
/**
 * What a column's name may have of the gap after it, and what the sorted one loses: to its padding and the triangle.
 */
const OF_GAP = 3;
const BESIDE_SORTED = 15;

/** Aslant: pixels of the longest name, from a column's left edge to its text, and below it to the bars. */
const MOST_ASLANT = 96;
const INSET = 5;
const BELOW = 9;
/** What an end that sticks out above the last column needs, and the sorted one beside its name. */
const END = 10;
const COS_45 = Math.SQRT1_2;

export interface HeaderNames {
  /** As much of each name as has room, and tells it from the others. */
  readonly texts: readonly string[];
  /** Pixels that they need in height; 0 where each stands whole above its column. */
  readonly rise: number;
}

/** Return the names above the columns: aslant where one has no room above its own. */
export function headerNames(
  { columns, widths, lefts, unit, width }: HeadsLayout,
  keys: readonly string[],
  pinned: number,
  measure: TextMeasure,
): HeaderNames {
  const beside = (at: number, other: number) => (columns[at] === pinned ? -BESIDE_SORTED : other) * unit;
  const wide = (text: string, at: number) => measure(text, HEADER_FONT, columns[at] === pinned ? 600 : 400);
  const names = columns.map((column) => keys[column]!);
  if (names.every((name, at) => wide(name, at) <= widths[at]! + beside(at, OF_GAP))) return { texts: names, rise: 0 };
  const rooms = lefts.map((left, at) => {
    const whole = (width - left - INSET * unit) / COS_45 - END * unit + beside(at, 0);
    return Math.min(MOST_ASLANT * unit, whole);
  });
  const texts = shortenApart(names, rooms, wide, columns);
  const longest = Math.max(0, ...texts.map((text, at) => wide(text, at) - beside(at, 0)));
  return { texts, rise: COS_45 * (longest + END * unit) + BELOW * unit };
}

// --- of the list's rows ---------------------------------------------------------------------------------------------

const LIST_FONT = 12;
const LEAST_NAME = 76;
const MOST_BESIDE = 110;
const MOST_SHARE = 0.4;
/** What is around a name: margins, and the padding of the pinned one. */
const AROUND_NAME = 11;
const AROUND_PINNED = 24;

export interface ListNames {
  /** Pixels of the column of names. */
  readonly wide: number;
  /** As much of each name as has room there, and tells it from the others. */
  readonly texts: readonly string[];
}

/** Return how wide the column of names is, and what stands in it. */
export function listNames(
  ui: Ui,
  names: readonly string[],
  isPinned: (at: number) => boolean,
  measure: TextMeasure,
): ListNames {
  const unit = ui.unit.value;
  const isBeside = ui.mode.value === "beside" || ui.mode.value === "wide";
  const most = Math.max(LEAST_NAME * unit, isBeside ? MOST_BESIDE * unit : MOST_SHARE * ui.width.value);
  const around = (at: number) => (isPinned(at) ? AROUND_PINNED : AROUND_NAME) * unit;
  const of = (text: string) => measure(text, LIST_FONT, 600); // as wide as a name gets under the pointer
  const needs = names.map((name, at) => Math.ceil(of(name)) + 1 + around(at));
  const wide = Math.min(most, Math.max(LEAST_NAME * unit, ...needs));
  const rooms = names.map((_, at) => wide - around(at));
  return { wide, texts: shortenApart(names, rooms, of) };
}
