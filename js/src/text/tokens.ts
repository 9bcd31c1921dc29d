/** Tokens as labels: the tokenizer's marks are removed, invisible characters are made visible. */

import { ASCII_BYTES, BYTE_LEVEL, byteOf, fromBytes, neverInText } from "./byte-level";

/**
 * How a tokenizer writes its vocabulary: as text with its own marks, each byte as a character (GPT-2 and its
 * descendants), or with real spaces before words. In "words", Ġ is an ordinary letter of the user's own tokens.
 */
export type TokenStyle = "text" | "bytes" | "spaced" | "words";

export interface TokenText {
  text: string;
  /** Added by the tokenizer rather than by the author: `[CLS]`, `</s>`, `<|endoftext|>`. */
  special: boolean;
}

/** A token within running text. */
export interface Piece {
  readonly text: string;
  /** Whether a space precedes it; null if only its neighbors tell. */
  readonly space: boolean | null;
  /** Whether a line ends with it. */
  readonly breaks: boolean;
  readonly special: boolean;
}

/** Stands for an empty token. */
const NOTHING = "∅";
const ELLIPSIS = "…";

export const ALWAYS_SPECIAL = /^(?:\[\/?[A-Z][A-Z0-9_]*\]|\[unused\d+\]|<\|.+\|>|<｜.+｜>)$/su;
/** Special names in angle brackets, listed because `<b>` or `<table>` may be the user's text. */
const SPECIAL_NAME =
  /^<\/?(?:s|pad|unk|mask|bos|eos|bot|eot|eod|eop|cls|sep|think|tool_call|tool_response|mask_\d+|extra_id_\d+|unused_?\d*|reserved\w*|special\w*|(?:start|end|begin)_(?:of|header)\w*|\w+_start|\w+_end|fim_\w+|(?:image|audio|video)(?:_\w+)?|s_\w+)>$/i;
const BYTE = /^<0x([0-9A-F]{2})>$/;
export const BYTES = /^(?:<0x[0-9A-F]{2}>)+$/;
/** Ends a word in the vocabularies of CLIP and the first GPT. */
const END = "</w>";
/** A word after a space, or a run of white space, in a byte-level vocabulary. */
const MARKED = /^[ĠĊĉ]+[!-~¡-¬®-ÿ]|[ĠĊĉ]{2}/u;

/** Tokens that need no change, as most. */
const PLAIN = /^(?!##)[\x21-\x3b\x3d-\x5a\x5c-\x7e]+$/;
/** A character that is invisible, or looks like an ordinary space. */
const INVISIBLE = /^(?:[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}\p{DI}]|(?! )\p{Zs})/u;
/** Texts without these characters are shown as they are. */
const NEEDS_CARE = /[\p{C}\p{M}\p{DI}]|(?! )\p{Z}/u;
/** Characters to which an invisible joiner belongs: emoji, and scripts whose letters take their shape from it. */
const JOINING =
  /^(?:\p{Extended_Pictographic}|\p{RI}|(?![\p{sc=Latn}\p{sc=Grek}\p{sc=Cyrl}\p{sc=Hani}\p{sc=Hira}\p{sc=Kana}])\p{L})/u;
const JOINER = /\u200c|\u200d|[\u{e0020}-\u{e007f}]/gu;

/** Return the label of a token. */
export function display(token: string, style: TokenStyle = "text"): TokenText {
  if (token === "") return { text: NOTHING, special: false };
  if (PLAIN.test(token)) return { text: token, special: false };
  if (ALWAYS_SPECIAL.test(token) || SPECIAL_NAME.test(token)) return { text: visible(token), special: true };
  return { text: visible(plainText(token, style)), special: false };
}

/** Return the text, or as much of both ends as fits into `max`, around an ellipsis; characters are never cut. */
export function shorten(text: string, max: number, measure: (text: string) => number): string {
  if (text === "" || (text.length < 1024 && measure(text) <= max)) return text;
  // Only the ends of a very long text can be visible.
  const clusters =
    text.length < 1024 ? graphemes(text) : [...graphemes(text.slice(0, 512)), ...graphemes(text.slice(-512))];
  const keep = (number: number) => {
    const tail = Math.floor(number / 2);
    const end = tail > 0 ? clusters.slice(-tail).join("") : "";
    return clusters.slice(0, number - tail).join("") + ELLIPSIS + end;
  };
  let fits = 0;
  let tooMany = clusters.length;
  while (tooMany - fits > 1) {
    const number = (fits + tooMany) >> 1;
    if (measure(keep(number)) <= max) fits = number;
    else tooMany = number;
  }
  return keep(fits);
}

/**
 * Shorten neighboring names so that they stay distinct: names that would read the same keep only their ends; if these
 * are the same too, or nothing fits, each becomes its number (1 for the first of `numbers`).
 */
export function shortenApart(
  names: readonly string[],
  rooms: readonly number[],
  measure: (text: string, at: number) => number,
  numbers: readonly number[] = names.map((_, at) => at),
): string[] {
  const whole = names.map((name, at) => shorten(name, rooms[at]!, (text) => measure(text, at)));
  const ends = whole.map((text, at) =>
    isClear(whole, at) || names[at] === text ? text : endOf(names[at]!, rooms[at]!, (end) => measure(end, at)),
  );
  return ends.map((text, at) => (isClear(ends, at) || names[at] === text ? text : `#${numbers[at]! + 1}`));
}

/** Whether a text is more than an ellipsis and differs from all others. */
const isClear = (texts: readonly string[], at: number) =>
  texts[at] !== ELLIPSIS && texts.every((text, other) => other === at || text !== texts[at]);

/** Return as much of the end of a text as fits. */
function endOf(text: string, max: number, measure: (text: string) => number): string {
  const clusters = graphemes(text.slice(-512));
  let kept = clusters.length;
  while (kept > 0 && measure(ELLIPSIS + clusters.slice(-kept).join("")) > max) kept--;
  return kept > 0 ? ELLIPSIS + clusters.slice(-kept).join("") : ELLIPSIS;
}

/**
 * Return "bytes" if words or runs begin with a byte-level space or line break, and every token is one that such a
 * vocabulary can write and a text can hold. Ġ and Ċ alone, or among letters, are the user's own.
 */
export function styleOf(tokens: Iterable<string>): TokenStyle {
  let [marked, letters, strange] = [false, false, false];
  for (const token of tokens) {
    if (PLAIN.test(token) || ALWAYS_SPECIAL.test(token) || SPECIAL_NAME.test(token)) continue;
    strange ||= !BYTE_LEVEL.test(token);
    marked ||= MARKED.test(token);
    letters ||= BYTE_LEVEL.test(token) && Array.from(token, byteOf).some(neverInText);
  }
  if (!marked || letters) return "words";
  return strange ? "text" : "bytes";
}

/** How tokens become text: all spaces are known ("known"), those after the last subword ("ends"), or none ("words"). */
export type Join = "known" | "ends" | "words";

/** Return how tokens of this style become running text. */
export function joinOf(tokens: Iterable<string>, style: TokenStyle): Join {
  if (style === "bytes" || style === "spaced") return "known";
  for (const token of tokens) {
    if (ALWAYS_SPECIAL.test(token) || SPECIAL_NAME.test(token)) continue;
    if (/^[▁\s]|\s$/u.test(token) || (style === "text" && MARKED.test(token))) return "known";
    if (token.endsWith(END)) return "ends";
  }
  return "words";
}

/** Return a token as running text shows it, without the space before it and the subword marks. */
export function pieceOf(token: string, style: TokenStyle, join: Join): Piece {
  const { text, special } = display(token, style);
  if (special) return { text, special, space: true, breaks: false };
  const plain = plainText(token, style);
  const breaks = /\n$/.test(plain);
  if (join === "words") {
    const inside = /^##[^#\s]/u.test(token);
    return { text: inside ? text.slice(1) : text, special, space: inside ? false : null, breaks };
  }
  // The space comes after a word's last subword: the caller asks the previous token.
  if (join === "ends") return { text, special, space: false, breaks };
  const space = /^ /.test(spacesOf(token, style)) && plain.trim() !== "";
  return { text: space && /^ /.test(plain) ? text.replace(/^·/, "") : text, special, space, breaks };
}

/** Whether a token ends a word, in vocabularies that mark word ends. */
export const endsWord = (token: string | null) => token?.endsWith(END) === true;

/** Return a token without the tokenizer's marks; a remaining space is a real one. */
function plainText(token: string, style: TokenStyle): string {
  const byte = BYTE.exec(token);
  if (byte) {
    const code = Number.parseInt(byte[1] as string, 16);
    return code < 0x80 ? String.fromCharCode(code) : token;
  }
  if (/^##[^#\s]/u.test(token)) return `\u2010${token.slice(2)}`;
  const spaced = spacesOf(token, style);
  const isMark = style === "spaced" || !token.startsWith(" ");
  return isMark && spaced.startsWith(" ") && spaced.trim() !== "" ? spaced.slice(1) : spaced;
}

/** Return the text that a token stands for, with the space before it. */
function spacesOf(token: string, style: TokenStyle): string {
  const bare = token.length > END.length && token.endsWith(END) ? token.slice(0, -END.length) : token;
  if (style === "spaced") return bare;
  if (style === "words") return bare.replace(/▁/g, " ");
  if (style === "bytes" && !ASCII_BYTES.test(bare)) return BYTE_LEVEL.test(bare) ? fromBytes(bare) : bare;
  return bare.replace(/Ċ/g, "\n").replace(/ĉ/g, "\t").replace(/[Ġ▁]/g, " ");
}

/** Return a token's text without the space before it; if it is only white space, show it. */
export const tokenName = (text: string) => visible(text.trim() === "" ? text : text.replace(/^ /, ""));

/** Make invisible characters visible: spaces at the ends and in runs, line breaks, tabs, control characters. */
export function visible(text: string): string {
  const spaced = text
    .replace(/^ +| +$| {2,}/g, (spaces) => "·".repeat(spaces.length))
    .replace(/\r\n|\n/g, "↵")
    .replaceAll("\t", "⇥");
  if (!NEEDS_CARE.test(spaced)) return spaced;
  const clusters = graphemes(spaced);
  return clusters
    .map((cluster, index) => visibleCluster(cluster, clusters[index - 1], index === clusters.length - 1))
    .join("");
}

function visibleCluster(cluster: string, before: string | undefined, isLast: boolean): string {
  if (INVISIBLE.test(cluster)) {
    return Array.from(cluster, (character) => (INVISIBLE.test(character) ? codePoint(character) : character)).join("");
  }
  // A mark without a base. After a visible cluster (a Burmese vowel) it belongs to that cluster.
  if (/^\p{M}/u.test(cluster)) return before === undefined || INVISIBLE.test(before) ? `◌${cluster}` : cluster;
  if (!JOINING.test(cluster)) return cluster.replace(JOINER, codePoint);
  return isLast ? cluster.replace(/(?:\u200c|\u200d)$/u, codePoint) : cluster;
}

function codePoint(character: string): string {
  const code = character.codePointAt(0) ?? 0;
  return `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

let segmenter: Intl.Segmenter | null = null;

/** Return the characters as a reader perceives them. */
function graphemes(text: string): string[] {
  if (/^[\x20-\x7e]*$/.test(text) || typeof Intl.Segmenter !== "function") return Array.from(text);
  segmenter ??= new Intl.Segmenter(undefined, { granularity: "grapheme" });
  return Array.from(segmenter.segment(text), ({ segment }) => segment);
}
