/** Where everything stands: numbers in, numbers out, no DOM. Lengths are CSS pixels. */

export type Mode = "narrow" | "under" | "beside" | "wide";

export const MAX_CELL = 44;
export const NUMBERS_FROM = 18;
/** A cell of a picture of few rows or few columns is at least so tall, or so wide: it can be read, and pointed at. */
export const LINE = 22;
export const GAPS_FROM = 12;
const MAX_WIDTH = 720;
const MAX_HEIGHT = 640;
const FRAME = 1280;
const PANEL_GAP = 36;
const KEY_GUTTER = 96;
/** Room for tokens along an axis that is too long to show them unzoomed. */
export const CROWDED = 52;
const KEY_CROWDED = 44;
const BELOW = 20;

/** Return how the parts of a widget of this width stand. */
export function modeOf(width: number, unit = 1): Mode {
  const w = width / unit;
  return w < 520 ? "narrow" : w < 720 ? "under" : w < 1100 ? "beside" : "wide";
}

export interface Figure {
  readonly mode: Mode;
  /** One cell of the display, in CSS pixels; whole device pixels. */
  readonly cellWidth: number;
  readonly cellHeight: number;
  /** Cells of the picture along a side of one display cell: 1 unless the screen has fewer pixels than the picture cells. */
  readonly fold: number;
  readonly columns: number;
  readonly rows: number;
  /** The picture's canvas. */
  readonly left: number;
  readonly top: number;
  readonly width: number;
  readonly height: number;
  /** What slanted key labels need right of the picture. */
  readonly overhang: number;
  readonly labelRoom: number;
  readonly keyRoom: number;
  /**
   * How much further right the picture begins where tokens stand beside it. Positions need less room than tokens, and
   * unzoomed a long axis has only these: then the picture has the room, and zoomed in what stands left of it covers a part.
   */
  readonly inset?: number;
  /** Left of the tokens, and below the picture: room for positions, where a zoomed picture shows both. */
  readonly positions: number;
  readonly below: number;
  readonly panel: number;
  /** The column of a learned sink: how far right of the picture, and how wide; null where there is none. */
  readonly sink?: { readonly gap: number; readonly width: number } | null;
  /** The column of the rows' recall, as `sink`. */
  readonly recall?: { readonly gap: number; readonly width: number } | null;
  /** What the margins in the colors of segments take beside the picture and above it. */
  readonly margin?: number;
  /** Room for the names of segments along the axes; null where tokens or positions stand there. */
  readonly names?: NameRoom | null;
}

/** Room for names of segments, in pixels. */
export interface NameRoom {
  /** Of the names themselves, and of zoomed tokens that stand in their place. */
  readonly query: number;
  readonly key: number;
  readonly token: number;
  /** Of the segment's name left of zoomed tokens; 0 where there is no room. */
  readonly outside: number;
  /** Of the names of brackets left of the names; 0 where these are named by the pointer alone. */
  readonly bracket: number;
  /** Levels around the names that have brackets. */
  readonly levels: number;
}

/** How wide the names of segments are at their full size, and how many levels there are around them. */
export interface NameLengths {
  readonly query: number;
  readonly key: number;
  readonly token: number;
  readonly bracket: number;
  readonly levels: number;
  /** Of the last names above the picture: how long they are, and where their middles are, of its width. */
  readonly ends: readonly { readonly length: number; readonly at: number }[];
}

/** Colored margins are so far from the picture, and so wide. */
export const MARGIN_GAP = 3;
export const MARGIN = 3;
/** A bracket with its ends and the space around it; above the picture its name is a line more. */
export const BRACKET = 16;
const BRACKET_LINE = 28;
const NAME_GAP = 8;
const TOKEN_GAP = 10;

/** Room that labels need, in pixels at their full size. */
export interface LabelRoom {
  readonly query: number;
  readonly key: number;
  readonly keys: (index: number) => number;
  /** Unzoomed the axis shows positions, zoomed in tokens: of keys, of queries. */
  readonly keyTicks: boolean;
  readonly queryTicks?: boolean;
  /** What the positions at the ticks of the queries take. */
  readonly ticks?: number;
  /** What the positions beside zoomed tokens take: a column left of them, a line below the picture. */
  readonly positions?: number;
  readonly below?: boolean;
  /** Of the name of the learned sink's column; 0 where there is none. */
  readonly sink?: number;
  /** The same of the column of the rows' recall. */
  readonly recall?: number;
  /** Whether margins in the colors of segments stand beside the picture, and of their names, where these do. */
  readonly margins?: boolean;
  readonly names?: NameLengths | null;
}

/** Of the room, what whole pixels a cell may leave empty where nobody counts cells: they are many, or not of the matrix. */
const WASTE = 0.06;
/** Cells up to this size have no labels of their own. */
export const SMALL = 5;

/**
 * Cell sizes for `rows × columns` in a room, square unless that would be a line, and the fold if pixels are too few. Cells
 * are whole device pixels; small ones, which nobody counts, are a little more where much room would be left empty.
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
  const line = LINE * unit; // few rows over many keys: tall cells rather than a hairline
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

/** Return the font size of the labels along an axis whose cells are `cell` pixels: 12, 10 or 9, as they get closer. */
export function labelFont(cell: number, unit = 1): number {
  const c = cell / unit;
  return c >= 16 ? 12 : c >= 13 ? 10 : 9;
}

/** Return the font size of the numbers in cells of `cell` pixels. */
export function numberFont(cell: number, unit = 1): number {
  const c = cell / unit;
  return c < 28 ? 9 : c < 34 ? 10 : 11;
}

/** Return every how many cells a label stands: 1 from 12 px, else such that labels are at least 14 apart. */
export function labelStep(cell: number, unit = 1): number {
  return cell >= GAPS_FROM * unit ? 1 : Math.ceil((14 * unit) / cell);
}

/**
 * Return whether positions stand in the place of tokens: where cells are 5 px or less, or stand for several tokens.
 */
export function usesTicks(cell: number, bin: number, unit = 1): boolean {
  return bin > 1 || cell <= SMALL * unit;
}

/**
 * Return round positions for ticks from `first` to `last`, both of these among them, at least `apart` pixels from one
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
 * Return round positions from `start` to before `stop`, at least `apart` pixels from one another: powers of two, so
 * that they stay.
 */
export function roundPositions(start: number, stop: number, pixelsPerToken: number, apart: number): number[] {
  const step = 2 ** Math.max(0, Math.ceil(Math.log2(apart / pixelsPerToken)));
  const positions: number[] = [];
  for (let at = Math.ceil(start / step) * step; at < stop; at += step) positions.push(at);
  return positions;
}

/** A length as device pixels, of which the last is whole. */
export const wholePixels = (length: number, dpr: number) => Math.floor(length * dpr + 1e-6) / dpr;

const SINK_GAP = 8;
const RECALL_WIDTH = 12;

/** The column of a sink is as wide as those of keys, but never a hairline. */
const sinkWidth = (cell: number, unit: number) => Math.min(MAX_CELL * unit, Math.max(GAPS_FROM * unit, cell));

/** What the column and its slanted name need right of the picture. */
function sinkReach(cell: number, name: number, unit: number): number {
  const width = sinkWidth(cell, unit);
  return SINK_GAP * unit + Math.max(width, width / 2 + name * Math.SQRT1_2 + 8 * unit);
}

/** Return how much room names of segments have left of the picture and above it. */
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
  // Zoomed in there is a line above the tokens, for the name of their segment.
  const slanted = Math.ceil(key * Math.SQRT1_2 + 16 * unit);
  const above = Math.ceil(Math.min(token, CROWDED * unit) * Math.SQRT1_2 + 16 * unit) + 20 * unit;
  const top = Math.max(slanted + levels * BRACKET_LINE * unit, above);
  return { query, key, token, outside, bracket, levels, left, top };
}

/** What names, and zoomed tokens in their place, need right of the picture. */
function nameReach(ends: NameLengths["ends"], { key, token }: NameRoom, width: number, unit: number): number {
  const tokens = Math.min(token, CROWDED * unit) * Math.SQRT1_2;
  const names = ends.map(({ length, at }) => Math.min(length, key) * Math.SQRT1_2 + 8 * unit - (1 - at) * width);
  return Math.max(16 * unit, tokens, ...names);
}

/** Return where picture, labels and panel stand in a widget of this width. */
export function layoutFigure(input: {
  width: number;
  rows: number;
  columns: number;
  labels: LabelRoom;
  dpr: number;
  unit?: number;
  /** From the widget's outer width, where that is known. */
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

  // Room for labels at their full size, so that zooming in moves nothing.
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
    const crowded = usesTicks(cell, 1, unit) && pass > 0; // long pictures: room for positions, and for short tokens
    const short = usesTicks(cellHeight, 1, unit) && pass > 0; // few queries over many keys have lines of their own
    const bare = short || labels.queryTicks === true; // unzoomed there are no tokens beside it
    const labelRoom = named ? named.token : bare ? Math.min(wide, CROWDED * unit) : wide;
    const room = bare ? Math.min(ticks, positions + labelRoom) : positions + labelRoom;
    const left = margin + (named ? named.left : room + 14 * unit);
    const longest = crowded || labels.keyTicks || named ? Math.min(keysWide, KEY_CROWDED * unit) : keysWide;
    const keyRoom = Math.ceil(longest * Math.SQRT1_2 + 16 * unit);
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
      inset: named ? 0 : positions + labelRoom - room,
      positions,
      margin,
      names: named,
      below: labels.below ? BELOW * unit : 0,
      panel,
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
