/** Names of segments where they have little room: short, told apart from one another; and what is set aside. */

import type { Measure as TextMeasure } from "../../state/plot";
import type { Ui } from "../../state/ui";
import { shortenApart } from "../../text/tokens";
import type { HeadsLayout } from "./heads-layout";
import type { SegmentsModel } from "./model";

/** Return the names that are set aside, as all parts of the view say them. */
export function asideNames({ mass, left }: SegmentsModel): string[] {
  const { without, self } = left.value;
  return [...without.map((column) => mass.value?.keys[column] ?? ""), ...(self ? [] : ["own key"])];
}

// --- of the heads' columns ------------------------------------------------------------------------------------------------

const HEADER_FONT = 10.5;
/** What a column's name may have of the gap after it, and what the sorted one loses: to its padding and the triangle. */
const OF_GAP = 3;
const BESIDE_SORTED = 15;

/** Return the names above the columns, as much of each as has room and tells it from the others. */
export function headerTexts(
  { columns, widths, unit }: HeadsLayout,
  keys: readonly string[],
  pinned: number,
  measure: TextMeasure,
): string[] {
  const rooms = widths.map((wide, at) => wide + (columns[at] === pinned ? -BESIDE_SORTED : OF_GAP) * unit);
  const wide = (text: string, at: number) => measure(text, HEADER_FONT, columns[at] === pinned ? 600 : 400);
  const names = columns.map((column) => keys[column]!);
  return shortenApart(names, rooms, wide, columns);
}

// --- of the list's rows -----------------------------------------------------------------------------------------------------

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
