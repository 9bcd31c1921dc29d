/** The labels of a sequence of tokens, and its tokens as running text. */

import { count } from "./format";
import { inText, partly } from "./split-characters";
import { display, joinOf, type Piece, pieceOf, styleOf, type TokenStyle, type TokenText } from "./tokens";

export interface Label extends TokenText {
  position: number;
  /** Whether another token has the same label, or may have. */
  repeated: boolean;
  /** The position, for a repeated token that is not special; else "". */
  subscript: string;
}

export interface Labels {
  readonly length: number;
  at(position: number): Label;
  /** The token as running text shows it. */
  piece(position: number): Piece;
  /** The token as the tokenizer writes it; null if unknown. */
  raw(position: number): string | null;
  /** The positions of a text, exact matches first; null if not all tokens are loaded. */
  find(text: string): number[] | null;
}

/** Return the position that tells a token apart from others of its name, special ones too; "" if none is needed. */
export function positionUnder({ subscript, repeated, position }: Label): string {
  return subscript || (repeated ? count(position) : "");
}

/** Return the labels of keys with one more name, which is not a token, at the end. */
export function withNamed(keys: Labels, name: string): Labels {
  const position = keys.length;
  return {
    ...keys,
    length: position + 1,
    at: (index) =>
      index === position ? { text: name, special: false, position, repeated: false, subscript: "" } : keys.at(index),
  };
}

/**
 * Return the labels of a sequence; without tokens, their positions. The tokens are read on first use.
 */
export function labels(tokens: readonly string[] | null, length: number, spelling?: TokenStyle): Labels {
  let read: ReturnType<typeof readAll> | null = null;
  const readNow = () => {
    read ??= readAll(tokens ?? [], spelling);
    return read;
  };
  const raw = (position: number) => tokens?.[position] ?? null;
  return {
    length,
    at(position) {
      const token = tokens?.[position];
      if (token === undefined) return unnamed(position);
      const { texts, uses, style } = readNow();
      const { text, special } = texts.get(token) as TokenText;
      const repeated = (uses.get(text) as number) > 1;
      return {
        text: partly(raw, position, text, style),
        special,
        position,
        repeated,
        subscript: repeated && !special ? count(position) : "",
      };
    },
    piece(position) {
      const token = raw(position);
      if (token === null) return unread(position);
      const { style, join } = readNow();
      return inText(pieceOf(token, style, join), raw, position, style);
    },
    raw,
    find: (text) => find(text, tokens ?? [], readNow().texts),
  };
}

/** Return the label of an unknown token: its position. */
export function unnamed(position: number): Label {
  return { text: count(position), special: false, position, repeated: false, subscript: "" };
}

/** Label image patches, which have no tokens, by their places; `named` returns null for other positions. */
export function withPatches(of: Labels, named: (position: number) => string | null): Labels {
  return {
    ...of,
    at(position) {
      const text = named(position);
      return text === null ? of.at(position) : { ...of.at(position), text };
    },
  };
}

/** Return an unknown token of running text: its position. */
export function unread(position: number): Piece {
  return { text: count(position), space: true, breaks: false, special: false };
}

/** Compare each distinct token once, as displayed and as the tokenizer writes it, ignoring case. */
function find(wanted: string, tokens: readonly string[], texts: ReadonlyMap<string, TokenText>): number[] {
  const text = wanted.toLowerCase();
  const whole = new Set<string>();
  const part = new Set<string>();
  for (const [token, shown] of texts) {
    const names = [token.toLowerCase(), shown.text.toLowerCase()];
    if (names.includes(text)) whole.add(token);
    else if (names.some((name) => name.includes(text))) part.add(token);
  }
  const places = (of: ReadonlySet<string>) => tokens.flatMap((token, at) => (of.has(token) ? [at] : []));
  return [...places(whole), ...places(part)];
}

/** Look at each distinct token once, however often it occurs. */
function readAll(tokens: readonly string[], spelling?: TokenStyle) {
  const times = new Map<string, number>();
  for (const token of tokens) times.set(token, (times.get(token) ?? 0) + 1);
  const style = spelling ?? styleOf(times.keys());
  const join = joinOf(times.keys(), style);
  const texts = new Map<string, TokenText>();
  const uses = new Map<string, number>();
  for (const [token, count] of times) {
    const shown = display(token, style);
    texts.set(token, shown);
    uses.set(shown.text, (uses.get(shown.text) ?? 0) + count);
  }
  return { texts, uses, style, join };
}
