/** Short names of segments for little room, distinct from one another; and the excluded ones. */

import type { Measure as TextMeasure } from "../../../draw/label-room";
import type { Ui } from "../../../state/ui";
import { shortenApart } from "../../../text/tokens";
import type { HeadsLayout } from "../heads/layout";
import type { SegmentsModel } from "../model";

/** Return the names of what is excluded, the same for all parts of the view. */
export function asideNames({ mass, left }: SegmentsModel): string[] {
  const { without, self } = left.value;
  return [...without.map((column) => mass.value?.keys[column] ?? ""), ...(self ? [] : ["own key"])];
}

// --- of the heads' columns ------------------------------------------------------------------------------------------

const HEADER_FONT = 10.5;
/**
 * The room that a column's name may take of the gap after it, and that the sorted one loses to padding and triangle.
 */
const OF_GAP = 3;
const BESIDE_SORTED = 15;

/** Slanted: pixels of the longest name, from a column's left edge to its text, and from it to the bars. */
const MOST_ASLANT = 96;
const INSET = 5;
const BELOW = 9;
/** Room for an end beyond the last column, and for the sorted name. */
const END = 10;
const COS_45 = Math.SQRT1_2;

export interface HeaderNames {
  /** As much of each name as fits and makes it distinct. */
  readonly texts: readonly string[];
  /** The height in pixels; 0 if each name fits above its column. */
  readonly rise: number;
}

/** Return the names above the columns, slanted if any is too long for its own. */
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
/** The room around a name: margins, and the padding of the pinned one. */
const AROUND_NAME = 11;
const AROUND_PINNED = 24;

export interface ListNames {
  /** The width of the column of names in pixels. */
  readonly wide: number;
  /** As much of each name as fits and makes it distinct. */
  readonly texts: readonly string[];
}

/** Return the width and contents of the column of names. */
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
  const of = (text: string) => measure(text, LIST_FONT, 600); // the widest state, under the pointer
  const needs = names.map((name, at) => Math.ceil(of(name)) + 1 + around(at));
  const wide = Math.min(most, Math.max(LEAST_NAME * unit, ...needs));
  const rooms = names.map((_, at) => wide - around(at));
  return { wide, texts: shortenApart(names, rooms, of) };
}
