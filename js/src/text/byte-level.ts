/** Byte-level vocabularies, which write each byte as a character, and characters split over several tokens. */

/** Printable bytes stand for themselves; the others are the characters from U+0100 on, in order. */
export const BYTE_LEVEL = /^[!-~¡-¬®-ÿĀ-Ń]+$/u;

/** Tokens in which only white space is written differently. */
export const ASCII_BYTES = /^[!-~ĠĊĉ]*$/u;

/** Bytes that never occur in text: control characters, and bytes that UTF-8 does not use. */
export const neverInText = (byte: number) =>
  byte === 0x7f ||
  byte === 0xc0 ||
  byte === 0xc1 ||
  byte > 0xf4 ||
  (byte < 0x20 && byte !== 9 && byte !== 10 && byte !== 13);

export const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Return the text of a byte-level token, with incomplete bytes as `<0x..>`. */
export function fromBytes(token: string): string {
  const raw = Uint8Array.from(token, byteOf);
  try {
    return utf8.decode(raw);
  } catch {
    return Array.from(raw, (byte) => (byte < 0x80 ? String.fromCharCode(byte) : hex(byte))).join("");
  }
}

/** Return the byte that a character of a byte-level token stands for. */
export function byteOf(character: string): number {
  const code = character.charCodeAt(0);
  if (code < 0x100) return code;
  const place = code - 0x100;
  return place <= 0x20 ? place : place <= 0x42 ? place - 0x21 + 0x7f : 0xad;
}

export const hex = (byte: number) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;

/** Return the length in bytes of the character that begins here; 0 if none does. */
export function characterAt(bytes: readonly number[], at: number): number {
  const first = bytes[at] as number;
  const length = first < 0x80 ? 1 : first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc2 ? 2 : 0;
  try {
    utf8.decode(Uint8Array.from(bytes.slice(at, at + length)));
    return length;
  } catch {
    return 0;
  }
}
