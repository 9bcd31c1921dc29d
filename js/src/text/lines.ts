/** Running text: tokens in lines, with the text's spaces and line breaks. Pure functions. */

import type { Labels } from "./labels";
import { endsWord, type Piece } from "./tokens";

/** A token of a text, and the space before it in its line. */
export interface Placed {
  readonly position: number;
  readonly text: string;
  readonly gap: "" | " ";
  /** Whether a line may begin with this token. */
  readonly opens: boolean;
  readonly breaks: boolean;
  readonly special: boolean;
}

/** Tokens from `start` to before `stop` of a list, and whether their paragraph runs from right to left. */
export interface Line {
  readonly start: number;
  readonly stop: number;
  readonly rtl: boolean;
  /** In pixels. */
  readonly width: number;
}

const NO_SPACE_BEFORE = /^(?:[.,!?;:%)\]}’”»…。，、！？]+|['’](?:s|t|m|d|ll|re|ve)|n['’]t)$/i;
const NO_SPACE_AFTER = /^[([{“‘«]$/;
const CLITIC = /^(?:s|t|m|d|ll|re|ve)$/i;
/** Scripts without spaces: kana and ideographs. */
const IDEOGRAPHIC = /[\u3000-\u303f\uff00-\uffef\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\u{20000}-\u{3ffff}]/u;
const LETTER = /\p{L}/u;
const FROM_RIGHT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;

/** Return the tokens at some positions as a text; `keep` decides which special tokens are included. */
export function placed(labels: Labels, positions: readonly number[], keep: boolean): Placed[] {
  const found: Placed[] = [];
  let before: Piece | null = null;
  for (const position of positions) {
    const piece = labels.piece(position);
    if (piece.special && !keep) {
      before = null;
      continue;
    }
    const space = before === null || spaceBetween(before, piece, labels, position);
    const ideographic = IDEOGRAPHIC.test(piece.text) || (before !== null && IDEOGRAPHIC.test(before.text));
    found.push({
      position,
      text: piece.text,
      gap: space ? " " : "",
      opens: space || ideographic || before?.breaks === true,
      breaks: piece.breaks,
      special: piece.special,
    });
    before = piece;
  }
  return found;
}

function spaceBetween(before: Piece, piece: Piece, labels: Labels, position: number): boolean {
  if (before.special || piece.special) return true;
  if (piece.space !== null) return piece.space || (!before.breaks && isEnd(labels, position));
  if (NO_SPACE_BEFORE.test(piece.text) || NO_SPACE_AFTER.test(before.text)) return false;
  if (/^['’]$/.test(before.text)) return !CLITIC.test(piece.text);
  if (/^['’]$/.test(piece.text)) {
    const next = position + 1 < labels.length ? labels.piece(position + 1) : null;
    return next === null || !CLITIC.test(next.text);
  }
  return !(endsIdeographic(before.text) && IDEOGRAPHIC.test(Array.from(piece.text)[0] ?? ""));
}

const endsIdeographic = (text: string) => IDEOGRAPHIC.test(Array.from(text).at(-1) ?? "");

/** Whether the previous token ends a word, in vocabularies that mark word ends. */
const isEnd = (labels: Labels, position: number) => position > 0 && endsWord(labels.raw(position - 1));

/** Break a text into lines no wider than `room`: before a word if possible, else anywhere, never within a token. */
export function breakLines(
  tokens: readonly Placed[],
  room: number,
  widthOf: (token: Placed) => number,
  space: number,
): Line[] {
  const lines: Line[] = [];
  let paragraph = 0;
  let start = 0;
  let width = 0;
  let opening = 0; // the last place where the line may break
  let upToOpening = 0; // the width up to there
  const close = (stop: number, wide: number) => {
    lines.push({ start, stop, rtl: false, width: wide });
    start = stop;
  };
  const endParagraph = () => {
    const rtl = isFromRight(tokens, paragraph);
    for (let at = lines.length - 1; at >= 0 && (lines[at] as Line).start >= paragraph; at--) {
      lines[at] = { ...(lines[at] as Line), rtl };
    }
  };
  for (let at = 0; at < tokens.length; at++) {
    const token = tokens[at] as Placed;
    const gap = at > start && token.gap !== "" ? space : 0;
    const own = widthOf(token);
    if (token.opens && at > start) {
      opening = at;
      upToOpening = width + gap;
    }
    if (at > start && width + gap + own > room) {
      const whole = opening > start;
      const rest = whole ? width + gap - upToOpening : 0;
      close(whole ? opening : at, whole ? upToOpening - gapAt(tokens, opening, space) : width);
      width = rest + own;
    } else width += gap + own;
    if (token.breaks) {
      close(at + 1, width);
      endParagraph();
      paragraph = at + 1;
      width = 0;
    }
  }
  if (start < tokens.length) close(tokens.length, width);
  endParagraph();
  return lines;
}

const gapAt = (tokens: readonly Placed[], at: number, space: number) => (tokens[at]?.gap === "" ? 0 : space);

/** Whether the first letter of a paragraph is of a right-to-left script. */
function isFromRight(tokens: readonly Placed[], from: number): boolean {
  for (let at = from; at < tokens.length; at++) {
    const token = tokens[at] as Placed;
    const letter = LETTER.exec(token.text);
    if (letter !== null && !token.special) return FROM_RIGHT.test(letter[0]);
    if (token.breaks) return false;
  }
  return false;
}

/** Return the line that holds the token at an index. */
export function lineOf(lines: readonly { readonly start: number }[], at: number): number {
  let [low, high] = [0, lines.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (lines[middle]!.start <= at) low = middle;
    else high = middle - 1;
  }
  return low;
}
