/** The layout of the widget as pure functions, without DOM. Lengths are CSS pixels. */

export type Mode = "narrow" | "under" | "beside" | "wide";

export const MAX_CELL = 44;
export const NUMBERS_FROM = 18;
/** A cell in a picture of few rows or columns is at least so tall or wide, so that it can be read and pointed at. */
export const LINE = 22;
export const GAPS_FROM = 12;
const MAX_WIDTH = 720;
const MAX_HEIGHT = 640;
const FRAME = 1280;
const PANEL_GAP = 36;
const KEY_GUTTER = 96;
/** Room for tokens along an axis too long to show them unzoomed. */
export const CROWDED = 52;
const KEY_CROWDED = 44;
const BELOW = 20;

/** Return the arrangement for a widget of this width. */
export function modeOf(width: number, unit = 1): Mode {
  const w = width / unit;
  return w < 520 ? "narrow" : w < 720 ? "under" : w < 1100 ? "beside" : "wide";
}

export interface Figure {
  readonly mode: Mode;
  /** One cell of the display, in CSS pixels; whole device pixels. */
  readonly cellWidth: number;
  readonly cellHeight: number;
  /** Cells of the picture per side of a display cell: 1 unless the screen has fewer pixels than there are cells. */
  readonly fold: number;
  readonly columns: number;
  readonly rows: number;
  /** The picture's canvas. */
  readonly left: number;
  readonly top: number;
  readonly width: number;
  readonly height: number;
  /** Room for slanted key labels right of the picture. */
  readonly overhang: number;
  readonly labelRoom: number;
  readonly keyRoom: number;
  /**
   * How much further right the picture begins if tokens stand on its left. Positions need less room than tokens, and a
   * long unzoomed axis shows only positions: then the picture takes the room, and tokens cover part of it when zoomed.
   */
  readonly inset?: number;
  /** Room left of the tokens and below the picture for positions, if a zoomed picture shows both. */
  readonly positions: number;
  readonly below: number;
  readonly panel: number;
  /** The learned sink's column: its distance right of the picture, and its width; null without one. */
  readonly sink?: { readonly gap: number; readonly width: number } | null;
  /** The recall column, like `sink`. */
  readonly recall?: { readonly gap: number; readonly width: number } | null;
  /** The strip of received weights: its distance below the picture, and its height; null without one. */
  readonly received?: { readonly gap: number; readonly height: number } | null;
  /** What the margins in segment colors take on the left and above. */
  readonly margin?: number;
  /** Room for the names of segments along the axes; null if tokens or positions stand there. */
  readonly names?: NameRoom | null;
}

/** Room for names of segments, in pixels. */
export interface NameRoom {
  /** For the names themselves, and for zoomed tokens in their place. */
  readonly query: number;
  readonly key: number;
  readonly token: number;
  /** For the segment's name left of zoomed tokens; 0 without room. */
  readonly outside: number;
  /** For the names of brackets left of the names; 0 if only the pointer shows them. */
  readonly bracket: number;
  /** The number of levels with brackets around the names. */
  readonly levels: number;
}

/** Widths of segment names at full size, and the number of levels around them. */
export interface NameLengths {
  readonly query: number;
  readonly key: number;
  readonly token: number;
  readonly bracket: number;
  readonly levels: number;
  /** For the last names above the picture: their lengths, and their centers as shares of its width. */
  readonly ends: readonly { readonly length: number; readonly at: number }[];
}

/** Distance and width of the colored margins. */
export const MARGIN_GAP = 3;
export const MARGIN = 3;
/** A bracket with its ends and spacing; above the picture, its name takes another line. */
export const BRACKET = 16;
const BRACKET_LINE = 28;
const NAME_GAP = 8;
const TOKEN_GAP = 10;

/** Room that labels need, in pixels at full size. */
export interface LabelRoom {
  readonly query: number;
  readonly key: number;
  readonly keys: (index: number) => number;
  /** Whether the axis shows positions unzoomed and tokens when zoomed in: keys, queries. */
  readonly keyTicks: boolean;
  readonly queryTicks?: boolean;
  /** Width of the positions at the ticks of the queries. */
  readonly ticks?: number;
  /** Room for positions next to zoomed tokens: a column on their left, a line below the picture. */
  readonly positions?: number;
  readonly below?: boolean;
  /** For the name of the learned sink's column; 0 without one. */
  readonly sink?: number;
  /** The same for the recall column. */
  readonly recall?: number;
  /** Whether the received weights stand below the picture. */
  readonly received?: boolean;
  /** Whether margins in segment colors are shown, and room for their names if these are. */
  readonly margins?: boolean;
  readonly names?: NameLengths | null;
}

/** The share of the room that whole pixels may leave empty if nobody counts the cells (many, or pooled). */
const WASTE = 0.06;
/** Cells up to this size have no labels of their own. */
export const SMALL = 5;

/**
 * Cell sizes for `rows × columns` in a room, square unless that gives a line, and the fold if pixels are too few. Cells
 * are whole device pixels; small uncountable ones grow a little if much room would stay empty.
 */
export function fit(room: number, rows: number, columns: number, dpr: number, unit = 1, pooled = false) {
  const wide = Math.max(1, Math.min(room, MAX_WIDTH * unit));
  const tall = MAX_HEIGHT * unit;
  const pixels = (length: number) => Math.max(1, Math.floor(length * dpr));
  const fold = Math.max(1, Math.ceil(columns / pixels(wide)), Math.ceil(rows / pixels(tall)));
  const across = Math.ceil(columns / fold);
  const down = Math.ceil(rows / fold);
  const whole = (length: number) => pixels(length) / dpr;
  const most = Math.min(MAX_CELL * unit, wide / across, tall / down);
  const uncounted = pooled || most <= SMALL * unit;
  const cell = uncounted && whole(most) < (1 - WASTE) * most ? most : whole(most);
  const line = LINE * unit; // few rows over many keys get tall cells
  const cellHeight = Math.max(cell, whole(Math.min(line, (4 * line) / down)));
  const cellWidth = Math.max(cell, whole(Math.min(line, (4 * line) / across)));
  return {
    fold,
    rows: down,
    columns: across,
    cellWidth: Math.min(cellWidth, Math.max(cell, whole(wide / across))),
    cellHeight,
  };
}

/** Return the font size of the labels along an axis with cells of `cell` pixels: 12, 10 or 9. */
export function labelFont(cell: number, unit = 1): number {
  const c = cell / unit;
  return c >= 16 ? 12 : c >= 13 ? 10 : 9;
}

/** Return the font size of the numbers in cells of `cell` pixels. */
export function numberFont(cell: number, unit = 1): number {
  const c = cell / unit;
  return c < 28 ? 9 : c < 34 ? 10 : 11;
}

/** Return the label interval in cells: 1 from 12 px on, else so that labels are at least 14 px apart. */
export function labelStep(cell: number, unit = 1): number {
  return cell >= GAPS_FROM * unit ? 1 : Math.ceil((14 * unit) / cell);
}

/**
 * Return whether positions replace tokens: cells are at most 5 px, or stand for several tokens.
 */
export function usesTicks(cell: number, bin: number, unit = 1): boolean {
  return bin > 1 || cell <= SMALL * unit;
}

/**
 * Return round positions for ticks from `first` to `last`, both included, at least `apart` pixels from one
 * another.
 */
export function tickPositions(first: number, last: number, pixelsPerToken: number, apart: number): number[] {
  if (last <= first) return [first];
  const least = apart / pixelsPerToken;
  const step = 2 ** Math.max(0, Math.ceil(Math.log2(least)));
  const ticks = [first];
  for (let position = Math.ceil((first + least * 0.7) / step) * step; position < last - least * 0.7; position += step) {
    ticks.push(position);
  }
  if (last - first >= least * 0.7) ticks.push(last);
  return ticks;
}

/**
 * Return round positions from `start` to before `stop`, at least `apart` pixels from one another: multiples of powers
 * of two, so that they stay when zooming.
 */
export function roundPositions(start: number, stop: number, pixelsPerToken: number, apart: number): number[] {
  const step = 2 ** Math.max(0, Math.ceil(Math.log2(apart / pixelsPerToken)));
  const positions: number[] = [];
  for (let at = Math.ceil(start / step) * step; at < stop; at += step) positions.push(at);
  return positions;
}

/** A length rounded to whole device pixels. */
export const wholePixels = (length: number, dpr: number) => Math.floor(length * dpr + 1e-6) / dpr;

const SINK_GAP = 8;
const RECALL_WIDTH = 12;
const RECEIVED_GAP = 6;
const RECEIVED_HEIGHT = 20;
/** Room in the corner between both axes for their titles. */
export const CORNER = { width: 58, height: 40 };

/** The sink's column is as wide as a key's, but never a hairline. */
const sinkWidth = (cell: number, unit: number) => Math.min(MAX_CELL * unit, Math.max(GAPS_FROM * unit, cell));

/** Room for the column and its slanted name right of the picture. */
function sinkReach(cell: number, name: number, unit: number): number {
  const width = sinkWidth(cell, unit);
  return SINK_GAP * unit + Math.max(width, width / 2 + name * Math.SQRT1_2 + 8 * unit);
}

/** Return the room for segment names left of the picture and above it. */
export function nameRoom(lengths: NameLengths, mode: Mode, unit: number): NameRoom & { left: number; top: number } {
  const narrow = mode === "narrow";
  const query = Math.min(Math.ceil(lengths.query) + 2, (narrow ? 72 : 110) * unit);
  const token = Math.min(Math.ceil(lengths.token) + 2, (narrow ? 64 : 72) * unit);
  const levels = lengths.levels;
  const bracket = narrow || levels === 0 ? 0 : Math.min(Math.ceil(lengths.bracket) + 2, 84 * unit);
  const outside = narrow ? 0 : query;
  const key = Math.min(lengths.key, (KEY_GUTTER * unit - 16 * unit) / Math.SQRT1_2);
  const around = levels * (BRACKET * unit + bracket);
  const left = NAME_GAP * unit + Math.max(query + around, token + (outside > 0 ? TOKEN_GAP * unit + outside : 0));
  // When zoomed in, the segment's name has a line above the tokens.
  const slanted = Math.ceil(key * Math.SQRT1_2 + 16 * unit);
  const above = Math.ceil(Math.min(token, CROWDED * unit) * Math.SQRT1_2 + 16 * unit) + 20 * unit;
  const top = Math.max(slanted + levels * BRACKET_LINE * unit, above);
  return { query, key, token, outside, bracket, levels, left, top };
}

/** Room for names, and zoomed tokens in their place, right of the picture. */
function nameReach(ends: NameLengths["ends"], { key, token }: NameRoom, width: number, unit: number): number {
  const tokens = Math.min(token, CROWDED * unit) * Math.SQRT1_2;
  const names = ends.map(({ length, at }) => Math.min(length, key) * Math.SQRT1_2 + 8 * unit - (1 - at) * width);
  return Math.max(16 * unit, tokens, ...names);
}

/** Return the places of picture, labels and panel in a widget of this width. */
export function layoutFigure(input: {
  width: number;
  rows: number;
  columns: number;
  labels: LabelRoom;
  dpr: number;
  unit?: number;
  /** From the widget's outer width, if known. */
  mode?: Mode;
}): Figure {
  const { width, rows, columns, labels, dpr } = input;
  const unit = input.unit ?? 1;
  const frame = Math.min(width, FRAME * unit);
  const mode = input.mode ?? modeOf(width, unit);
  const beside = mode === "beside" || mode === "wide";
  const panel = !beside
    ? frame
    : mode === "wide"
      ? 340 * unit
      : Math.round(Math.max(260 * unit, Math.min(340 * unit, frame * 0.295)));
  const most = mode === "narrow" ? 88 * unit : 160 * unit;
  const keyMost = (KEY_GUTTER * unit - 16 * unit) / Math.SQRT1_2;

  // Room for full-size labels, so that zooming in moves nothing.
  const ticks = labels.ticks === undefined ? Number.POSITIVE_INFINITY : Math.ceil(labels.ticks) + 2;
  const wide = Math.min(most, Math.ceil(labels.query)) + 2;
  const sinkWide = labels.sink ?? 0;
  const recallWide = labels.recall ?? 0;
  const keysWide = Math.min(keyMost, Math.max(labels.key, sinkWide, recallWide));
  const positions = labels.positions ? Math.ceil(labels.positions) + 10 * unit : 0;
  const named = labels.names ? nameRoom(labels.names, mode, unit) : null;
  const margin = labels.margins ? (MARGIN_GAP + MARGIN) * unit : 0;
  let [cell, cellHeight] = [LINE * unit, LINE * unit];
  let figure: Figure | null = null;
  for (let pass = 0; pass < 3; pass++) {
    const crowded = usesTicks(cell, 1, unit) && pass > 0; // long pictures: room for positions and short tokens
    const short = usesTicks(cellHeight, 1, unit) && pass > 0; // few queries over many keys have lines of their own
    const bare = short || labels.queryTicks === true; // unzoomed, no tokens beside it
    const labelRoom = named ? named.token : bare ? Math.min(wide, CROWDED * unit) : wide;
    const room = bare ? Math.min(ticks, positions + labelRoom) : positions + labelRoom;
    const left = margin + (named ? named.left : Math.max(room + 14 * unit, CORNER.width * unit));
    const longest = crowded || labels.keyTicks || named ? Math.min(keysWide, KEY_CROWDED * unit) : keysWide;
    const keyRoom = Math.max(Math.ceil(longest * Math.SQRT1_2 + 16 * unit), CORNER.height * unit);
    const reach = (index: number, at: number) =>
      Math.min(longest, labels.keys(index)) * Math.SQRT1_2 + 8 * unit - (columns - index - 0.5) * at;
    let overhang = labels.keyTicks ? Math.max(16 * unit, longest * Math.SQRT1_2 + 3 * unit) : 0;
    if (named) overhang = nameReach(labels.names!.ends, named, columns * cell, unit);
    if (!labels.keyTicks && !named) {
      for (let i = Math.max(0, columns - 40); i < columns; i++) overhang = Math.max(overhang, reach(i, cell));
    }
    if (sinkWide > 0) overhang = Math.max(overhang, sinkReach(cell, sinkWide, unit));
    const besideSink = sinkWide > 0 ? SINK_GAP * unit + sinkWidth(cell, unit) : 0;
    if (recallWide > 0) overhang = Math.max(overhang, besideSink + sinkReach(RECALL_WIDTH * unit, recallWide, unit));
    overhang = Math.ceil(overhang);
    const taken = left + overhang + (beside ? panel + PANEL_GAP * unit : 0);
    const cells = fit(frame - taken, rows, columns, dpr, unit, labels.keyTicks && labels.queryTicks);
    figure = {
      mode,
      ...cells,
      left,
      top: margin + (named ? named.top : keyRoom),
      width: wholePixels(cells.cellWidth * cells.columns, dpr),
      height: wholePixels(cells.cellHeight * cells.rows, dpr),
      overhang,
      labelRoom,
      keyRoom,
      inset: named ? 0 : Math.max(0, positions + labelRoom + 14 * unit - (left - margin)),
      positions,
      margin,
      names: named,
      below: labels.below ? BELOW * unit : 0,
      panel,
      received: labels.received ? { gap: RECEIVED_GAP * unit, height: RECEIVED_HEIGHT * unit } : null,
      sink: sinkWide > 0 ? { gap: SINK_GAP * unit, width: sinkWidth(cells.cellWidth, unit) } : null,
      recall:
        recallWide > 0
          ? {
              gap: sinkWide > 0 ? 2 * SINK_GAP * unit + sinkWidth(cells.cellWidth, unit) : SINK_GAP * unit,
              width: RECALL_WIDTH * unit,
            }
          : null,
    };
    if (Math.abs(Math.min(cells.cellWidth, cells.cellHeight) - cell) < 0.5) break;
    cell = cells.cellWidth;
    cellHeight = cells.cellHeight;
  }
  return figure as Figure;
}
