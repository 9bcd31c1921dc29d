/** The layout of the table of heads. Pure functions. */

const ROW = 26;
const ROWS = 10;
const NARROW_ROW = 32;
const NARROW_ROWS = 5;
const PICTURE = 22;
const PICTURE_LEFT = 44;
const FIRST = 76;
/** The column pitch: as drawn, minimum and maximum. */
const LEAST = 34;
const MOST = 64;
const GAP = 7;

export interface HeadsLayout {
  readonly unit: number;
  readonly narrow: boolean;
  readonly columns: readonly number[];
  /** Where each column's bars begin, and its width. */
  readonly lefts: readonly number[];
  readonly widths: readonly number[];
  /** The length of a full bar. */
  readonly bar: number;
  readonly pictureLeft: number;
  readonly picture: number;
  readonly pitch: number;
  readonly rows: number;
  readonly view: number;
  readonly width: number;
}

interface Wanted {
  readonly columns: readonly number[];
  readonly pinned: number;
  readonly rows: number;
  readonly room: number;
  readonly unit: number;
  readonly narrow: boolean;
  /** The extra width of the sorted column for its numbers, and their distance from a full bar. */
  readonly number: number;
}

/** Lay out a row for each head, and as many columns as fit, always including the pinned one. */
export function layHeads({ columns, pinned, rows, room, unit, narrow, number }: Wanted): HeadsLayout {
  const shared = { unit, narrow, rows, pictureLeft: PICTURE_LEFT * unit, picture: PICTURE * unit };
  const view = (rowOf: number, most: number) => ({
    pitch: rowOf * unit,
    view: Math.max(1, Math.min(rows, most)) * rowOf * unit,
  });
  if (narrow) {
    const left = 90 * unit;
    const width = Math.max(0, room - left);
    const bar = Math.max(20 * unit, width - 70 * unit);
    return { ...shared, ...view(NARROW_ROW, NARROW_ROWS), columns, lefts: [left], widths: [width], bar, width: room };
  }
  const own = room - FIRST * unit - number;
  const fitting = Math.max(1, Math.floor(own / (LEAST * unit)));
  const shown = withPinned(columns, pinned, fitting);
  const pitch = Math.min(MOST * unit, Math.floor(own / Math.max(1, shown.length)));
  const bar = pitch - GAP * unit;
  const lefts: number[] = [];
  const widths: number[] = [];
  let left = FIRST * unit;
  for (const column of shown) {
    const more = column === pinned ? number : 0;
    lefts.push(left);
    widths.push(bar + more);
    left += pitch + more;
  }
  return { ...shared, ...view(ROW, ROWS), columns: shown, lefts, widths, bar, width: Math.min(room, left) };
}

/** The first so many columns in their order, including the pinned one. */
function withPinned(columns: readonly number[], pinned: number, most: number): readonly number[] {
  const first = columns.slice(0, most);
  if (!columns.includes(pinned) || first.includes(pinned)) return first;
  return [...first.slice(0, -1), pinned];
}
