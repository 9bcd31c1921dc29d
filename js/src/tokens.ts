/** Tokens as labels: a tokenizer's own marks go, and what cannot be seen is made visible. */
import { count } from "./format";

/** How a tokenizer writes its vocabulary: as text, or each byte as a character (GPT-2 and its descendants). */
export type TokenStyle = "text" | "bytes";

export interface TokenText {
  text: string;
  /** Put there by the tokenizer rather than by the author: `[CLS]`, `</s>`, `<|endoftext|>`. */
  special: boolean;
}

export interface Label extends TokenText {
  position: number;
  /** Another token has the same label. */
  repeated: boolean;
  /** The position, for a repeated token that is not special; else "". */
  subscript: string;
}

export interface Labels {
  readonly length: number;
  at(position: number): Label;
  /** Where a text is, first those tokens that are nothing else; null where not all tokens are here. */
  find(text: string): number[] | null;
}

/** Stands for a token without any text. */
const NOTHING = "∅";
const ELLIPSIS = "…";

const ALWAYS_SPECIAL = /^(?:\[\/?[A-Z][A-Z0-9_]*\]|\[unused\d+\]|<\|.+\|>|<｜.+｜>)$/su;
/** Names in angle brackets: listed, because `<b>` or `<table>` may be somebody's text. */
const SPECIAL_NAME =
  /^<\/?(?:s|pad|unk|mask|bos|eos|bot|eot|eod|eop|cls|sep|think|tool_call|tool_response|mask_\d+|extra_id_\d+|unused_?\d*|reserved\w*|special\w*|(?:start|end|begin)_(?:of|header)\w*|\w+_start|\w+_end|fim_\w+|(?:image|audio|video)(?:_\w+)?|s_\w+)>$/i;
const BYTE = /^<0x([0-9A-F]{2})>$/;

/** Tokens that show as they are, as most do. */
const PLAIN = /^(?!##)[\x21-\x3b\x3d-\x5a\x5c-\x7e]+$/;
/** A character that is not seen, or is seen as an ordinary space. */
const INVISIBLE = /^(?:[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}\p{DI}]|(?! )\p{Zs})/u;
/** Nothing of a text without these has to be shown in another way. */
const NEEDS_CARE = /[\p{C}\p{M}\p{DI}]|(?! )\p{Z}/u;
/** What an invisible joiner belongs to: emoji, and scripts whose letters take their shape from it. */
const JOINING =
  /^(?:\p{Extended_Pictographic}|\p{RI}|(?![\p{sc=Latn}\p{sc=Grek}\p{sc=Cyrl}\p{sc=Hani}\p{sc=Hira}\p{sc=Kana}])\p{L})/u;
const JOINER = /\u200c|\u200d|[\u{e0020}-\u{e007f}]/gu;

/** A token as its label shows it. */
export function display(token: string, style: TokenStyle = "text"): TokenText {
  if (token === "") return { text: NOTHING, special: false };
  if (PLAIN.test(token)) return { text: token, special: false };
  if (ALWAYS_SPECIAL.test(token) || SPECIAL_NAME.test(token)) return { text: visible(token), special: true };
  return { text: visible(plainText(token, style)), special: false };
}

/** The labels of a sequence; without tokens their positions. Cheap to make: the tokens are read on first use. */
export function labels(tokens: readonly string[] | null, length: number): Labels {
  let read: { texts: Map<string, TokenText>; uses: Map<string, number> } | null = null;
  const readNow = () => {
    read ??= readAll(tokens ?? []);
    return read;
  };
  return {
    length,
    at(position) {
      const token = tokens?.[position];
      if (token === undefined) return unnamed(position);
      const { texts, uses } = readNow();
      const { text, special } = texts.get(token) as TokenText;
      const repeated = (uses.get(text) as number) > 1;
      return { text, special, position, repeated, subscript: repeated && !special ? count(position) : "" };
    },
    find: (text) => find(text, tokens ?? [], readNow().texts),
  };
}

/** The label of a token that is not known: its position. */
export function unnamed(position: number): Label {
  return { text: count(position), special: false, position, repeated: false, subscript: "" };
}

/** Each different token is compared once, as it is shown and as the tokenizer writes it; case does not matter. */
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

/** The text, or as much of both its ends as fits into `max`, around an ellipsis; characters are never cut. */
export function shorten(text: string, max: number, measure: (text: string) => number): string {
  if (text === "" || (text.length < 1024 && measure(text) <= max)) return text;
  // Of a very long text only the ends can ever be seen.
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

/** Each different token is looked at once, however often it occurs. */
function readAll(tokens: readonly string[]) {
  const times = new Map<string, number>();
  for (const token of tokens) times.set(token, (times.get(token) ?? 0) + 1);
  const style = styleOf(times.keys());
  const texts = new Map<string, TokenText>();
  const uses = new Map<string, number>();
  for (const [token, count] of times) {
    const shown = display(token, style);
    texts.set(token, shown);
    uses.set(shown.text, (uses.get(shown.text) ?? 0) + count);
  }
  return { texts, uses };
}

/** Byte-level if a space or line break is written so, and nothing occurs that such a vocabulary cannot write. */
export function styleOf(tokens: Iterable<string>): TokenStyle {
  let marked = false;
  for (const token of tokens) {
    if (PLAIN.test(token) || ALWAYS_SPECIAL.test(token) || SPECIAL_NAME.test(token)) continue;
    if (!BYTE_LEVEL.test(token)) return "text";
    marked ||= /[ĠĊĉ]/.test(token);
  }
  return marked ? "bytes" : "text";
}

/** Without the tokenizer's marks; what is left of a space is one that the mark did not stand for. */
function plainText(token: string, style: TokenStyle): string {
  const byte = BYTE.exec(token);
  if (byte) {
    const code = Number.parseInt(byte[1] as string, 16);
    return code < 0x80 ? String.fromCharCode(code) : token;
  }
  if (/^##[^#\s]/u.test(token)) return `\u2010${token.slice(2)}`;
  const spaced =
    style === "bytes" && !ASCII_BYTES.test(token)
      ? fromBytes(token)
      : token.replace(/Ċ/g, "\n").replace(/ĉ/g, "\t").replace(/[Ġ▁]/g, " ");
  const startsWord = spaced.startsWith(" ") && !token.startsWith(" ") && spaced.trim() !== "";
  return startsWord ? spaced.slice(1) : spaced;
}

/** Spaces at the ends and in runs, line breaks, tabs and all that is invisible, made visible. */
function visible(text: string): string {
  const spaced = text
    .replace(/^ +| +$| {2,}/g, (spaces) => "·".repeat(spaces.length))
    .replace(/\r\n|\n/g, "↵")
    .replaceAll("\t", "⇥");
  if (!NEEDS_CARE.test(spaced)) return spaced;
  const clusters = graphemes(spaced);
  return clusters.map((cluster, index) => visibleCluster(cluster, index === clusters.length - 1)).join("");
}

function visibleCluster(cluster: string, isLast: boolean): string {
  if (INVISIBLE.test(cluster)) {
    return Array.from(cluster, (character) => (INVISIBLE.test(character) ? codePoint(character) : character)).join("");
  }
  // A mark with nothing to stand on
  if (/^\p{M}/u.test(cluster)) return `◌${cluster}`;
  if (!JOINING.test(cluster)) return cluster.replace(JOINER, codePoint);
  return isLast ? cluster.replace(/(?:\u200c|\u200d)$/u, codePoint) : cluster;
}

function codePoint(character: string): string {
  const code = character.codePointAt(0) ?? 0;
  return `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

let segmenter: Intl.Segmenter | null = null;

/** What a reader takes for one character. */
function graphemes(text: string): string[] {
  if (/^[\x20-\x7e]*$/.test(text) || typeof Intl.Segmenter !== "function") return Array.from(text);
  segmenter ??= new Intl.Segmenter(undefined, { granularity: "grapheme" });
  return Array.from(segmenter.segment(text), ({ segment }) => segment);
}

// --- byte-level vocabularies ------------------------------------------------------------------------------------------

/** Printable bytes stand for themselves; the others are the characters from U+0100 on, in order. */
const BYTE_LEVEL = /^[!-~¡-¬®-ÿĀ-Ń]+$/u;

/** Those of which only white space is written in another way. */
const ASCII_BYTES = /^[!-~ĠĊĉ]*$/u;

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** The text of a byte-level token; bytes that are no whole character are shown as such. */
function fromBytes(token: string): string {
  const raw = Uint8Array.from(token, byteOf);
  try {
    return utf8.decode(raw);
  } catch {
    return Array.from(raw, (byte) =>
      byte < 0x80 ? String.fromCharCode(byte) : `<0x${byte.toString(16).toUpperCase()}>`,
    ).join("");
  }
}

function byteOf(character: string): number {
  const code = character.charCodeAt(0);
  if (code < 0x100) return code;
  const place = code - 0x100;
  return place <= 0x20 ? place : place <= 0x42 ? place - 0x21 + 0x7f : 0xad;
}
