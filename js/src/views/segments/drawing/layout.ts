/**
 * The layout of the answer's tokens: lines of text, with a stack as wide as the word above each token. Pure functions.
 */

import { lineOf, type Placed } from "../../../text/lines";

/** Pixels between two words, and between the subwords of one. */
const GAP = 4;
const JOINT = 1;
/** The minimum width of a stack. */
const LEAST = 14;
/** A line breaks after a sentence if it is at least this full. */
const FULL = 0.5;
const SENTENCE = /[.!?…。！？]["'”’»)\]]*$/u;

export interface TokenLine {
  readonly start: number;
  readonly stop: number;
  readonly width: number;
}

export interface TokenLayout {
  readonly lines: readonly TokenLine[];
  /** For each token, in its line. */
  readonly lefts: Float32Array;
  readonly widths: Float32Array;
}

/** Room that a line leaves for a pinned word, which is a pill. */
export const PILL_SLACK = 24;

/** Return tokens with one as wide as its pill; later tokens in its line move. */
export function withPill(layout: TokenLayout, at: number, width: number): TokenLayout {
  const own = layout.widths[at];
  if (own === undefined || own >= width) return layout;
  const index = lineIndex(layout, at);
  const line = layout.lines[index]!;
  const more = Math.ceil(width - own);
  const [lefts, widths] = [layout.lefts.slice(), layout.widths.slice()];
  widths[at] = own + more;
  for (let other = line.start; other < line.stop; other++) {
    if (layout.lefts[other]! > layout.lefts[at]!) lefts[other]! += more;
  }
  const lines = layout.lines.map((other) => (other === line ? { ...line, width: line.width + more } : other));
  return { lines, lefts, widths };
}

/** Break tokens into lines no wider than `room`: after a sentence, else before a word, else anywhere. */
export function layTokens(
  tokens: readonly Placed[],
  room: number,
  widthOf: (token: Placed) => number,
  unit = 1,
): TokenLayout {
  const widths = Float32Array.from(tokens, (token) => Math.max(LEAST * unit, Math.ceil(widthOf(token))));
  const gapAt = (at: number) => (tokens[at]!.gap === "" ? JOINT : GAP) * unit;
  const lefts = new Float32Array(tokens.length);
  const lines: TokenLine[] = [];
  let start = 0;
  while (start < tokens.length) {
    const stop = endOfLine(tokens, widths, gapAt, start, room);
    let width = 0;
    for (let at = start; at < stop; at++) {
      if (at > start) width += gapAt(at);
      lefts[at] = width;
      width += widths[at]!;
    }
    if (isFromRight(tokens, start, stop)) {
      for (let at = start; at < stop; at++) lefts[at] = width - lefts[at]! - widths[at]!;
    }
    lines.push({ start, stop, width });
    start = stop;
  }
  return { lines, lefts, widths };
}

/** Return the last token of the line that begins at `start`. */
function endOfLine(
  tokens: readonly Placed[],
  widths: Float32Array,
  gapAt: (at: number) => number,
  start: number,
  room: number,
): number {
  let width = widths[start]!;
  let [word, sentence] = [-1, -1];
  for (let at = start + 1; at < tokens.length; at++) {
    if (tokens[at - 1]!.breaks) return at;
    if (tokens[at]!.opens) {
      word = at;
      if (SENTENCE.test(tokens[at - 1]!.text) && width >= FULL * room) sentence = at;
    }
    width += gapAt(at) + widths[at]!;
    if (width > room) return sentence > start ? sentence : word > start ? word : at;
  }
  return tokens.length;
}

const FROM_RIGHT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]/u;
const LETTER = /\p{L}/u;

/** Whether the first letter of a line is of a right-to-left script. */
function isFromRight(tokens: readonly Placed[], start: number, stop: number): boolean {
  for (let at = start; at < stop; at++) {
    const letter = LETTER.exec(tokens[at]!.text);
    if (letter !== null && !tokens[at]!.special) return FROM_RIGHT.test(letter[0]);
  }
  return false;
}

/** Return the token at a place of its line, or the nearest; null if the line ends before it. */
export function tokenAt(layout: TokenLayout, line: number, x: number, slack: number): number | null {
  const of = layout.lines[line];
  if (of === undefined) return null;
  for (let at = of.start; at < of.stop; at++) {
    const left = layout.lefts[at]!;
    if (x >= left - slack && x < left + layout.widths[at]! + slack) return at;
  }
  return null;
}

/** Return the token of the line above or below whose center is nearest. */
export function tokenBeyond(layout: TokenLayout, at: number, by: number): number {
  const line = layout.lines[lineIndex(layout, at) + by];
  if (line === undefined) return at;
  const middle = layout.lefts[at]! + layout.widths[at]! / 2;
  let [best, away] = [line.start, Number.POSITIVE_INFINITY];
  for (let other = line.start; other < line.stop; other++) {
    const off = Math.abs(layout.lefts[other]! + layout.widths[other]! / 2 - middle);
    if (off < away) [best, away] = [other, off];
  }
  return best;
}

/** Return the line that holds a token. */
export const lineIndex = ({ lines }: TokenLayout, at: number): number => lineOf(lines, at);

// --- one line, from top to bottom -----------------------------------------------------------------------------------

/** The parts of one line of tokens, in pixels from its top. */
export interface LineBox {
  /** The strip of the excluded weight, whose height is 1. */
  readonly aside: number;
  /** The upper edge of the stacks, their height, and the text below. */
  readonly top: number;
  readonly tall: number;
  readonly text: number;
  /** The line pitch. */
  readonly pitch: number;
}

const WIDE_BOX: LineBox = { aside: 18, top: 21, tall: 96, text: 122, pitch: 158 };
const NARROW_BOX: LineBox = { aside: 12, top: 15, tall: 64, text: 84, pitch: 119 };

/** Return the heights of a line's parts. */
export function lineBox(narrow: boolean, unit: number): LineBox {
  const box = narrow ? NARROW_BOX : WIDE_BOX;
  return {
    aside: box.aside * unit,
    top: box.top * unit,
    tall: box.tall * unit,
    text: box.text * unit,
    pitch: box.pitch * unit,
  };
}

/** Return the lines at least partly between two heights. */
export function linesWithin(count: number, pitch: number, top: number, bottom: number) {
  return { start: Math.max(0, Math.floor(top / pitch)), stop: Math.min(count, Math.ceil(bottom / pitch)) };
}

// --- bands ----------------------------------------------------------------------------------------------------------

/** Columns drawn as one band: a segment, or all gray ones. */
export interface Band {
  readonly columns: readonly number[];
  readonly slot: number;
  readonly pinned: boolean;
}

/** The number of segments with a color of their own. */
export const COLORED_COLUMNS = 8;
/** With more segments, the gray ones are one band. */
const MOST_BANDS = COLORED_COLUMNS + 1;

/** Return the bands of a stack from the baseline up: pinned ones first, then the others in their order. */
export function bandsOf(columns: readonly number[], slots: readonly number[], pinned: readonly number[]): Band[] {
  const band = (column: number) => ({ columns: [column], slot: slots[column] ?? -1, pinned: pinned.includes(column) });
  const first = pinned.filter((column) => columns.includes(column)).map(band);
  const others = columns.filter((column) => !pinned.includes(column));
  if (columns.length <= MOST_BANDS) return [...first, ...others.map(band)];
  const gray = others.filter((column) => (slots[column] ?? -1) < 0);
  const colored = others.filter((column) => (slots[column] ?? -1) >= 0).map(band);
  return [...first, ...colored, ...(gray.length > 0 ? [{ columns: gray, slot: -1, pinned: false }] : [])];
}
