/** The layout of the matrix's cells and names. Pure functions. */

const CELL = 34;
const NARROW_ROOM = 290;
/** Larger cells have numbers and gaps, a name beside every row, and a margin above every column. */
const NUMBERS_FROM = 28;
const GAPS_FROM = 12;
const NAMES_FROM = 14;
/** Slanted names are closer to one another than their columns. */
const SLANTED_FROM = 22;
const MARGINS_FROM = 4;
const MOST_ROW_NAME = 96;
const MOST_COLUMN_NAME = 96;
/** Room for the excluded share's numbers, and for its slanted name if nothing is beside it. */
const ASIDE = 26;
const ASIDE_NAME = 34;

export interface MatrixLayout {
  readonly unit: number;
  /** The cell pitch, and the gap in it. */
  readonly pitch: number;
  readonly gap: number;
  readonly rows: number;
  readonly columns: number;
  readonly left: number;
  readonly top: number;
  readonly width: number;
  readonly height: number;
  /** The place of the excluded share's numbers; 0 for none. */
  readonly aside: number;
  readonly rowRoom: number;
  readonly columnRoom: number;
  readonly numbers: boolean;
  readonly margins: boolean;
  /** The interval of row and column names. */
  readonly every: number;
  readonly everyColumn: number;
}

interface Wanted {
  /** The widths of the names, in pixels. */
  readonly rows: readonly number[];
  readonly columns: readonly number[];
  readonly room: number;
  readonly unit: number;
  readonly aside: boolean;
  readonly narrow: boolean;
  /** Whether there is a gap on the right into which the excluded share may reach. */
  readonly beside: boolean;
}

/** Lay out a matrix of named rows and columns in a room. */
export function layMatrix({ rows, columns, room, unit, aside, narrow, beside }: Wanted): MatrixLayout {
  const rowRoom = Math.min(MOST_ROW_NAME * unit, Math.max(0, ...rows));
  const left = rowRoom + 18 * unit;
  const longest = Math.min(MOST_COLUMN_NAME * unit, Math.max(0, ...columns));
  const many = Math.max(1, rows.length, columns.length);
  const beyond = Math.min(longest, 60 * unit) * 0.6; // slanted names of the last columns
  const own = narrow
    ? Math.min(NARROW_ROOM * unit, room - left)
    : room - left - (aside ? (ASIDE + (beside ? 0 : ASIDE_NAME)) * unit : beyond);
  const pitch = Math.max(1, Math.min(CELL * unit, Math.floor(own / many)));
  const top = Math.min(96 * unit, longest * Math.SQRT1_2 + 24 * unit);
  const wide = columns.length * pitch;
  return {
    unit,
    pitch,
    gap: pitch >= GAPS_FROM * unit ? unit : 0,
    rows: rows.length,
    columns: columns.length,
    left,
    top,
    width: Math.min(room, left + wide + (aside ? (ASIDE + ASIDE_NAME) * unit : beyond)),
    height: top + rows.length * pitch,
    aside: aside && !narrow ? left + wide + 12 * unit : 0,
    rowRoom,
    columnRoom: longest,
    numbers: pitch >= NUMBERS_FROM * unit && !narrow,
    margins: pitch >= MARGINS_FROM,
    every: Math.max(1, Math.ceil((NAMES_FROM * unit) / pitch)),
    everyColumn: Math.max(1, Math.ceil((SLANTED_FROM * unit) / pitch)),
  };
}
