/** Characters whose bytes are split over several tokens: each token shows which part of the character it holds. */

import { BYTE_LEVEL, byteOf, characterAt, hex, utf8 } from "./byte-level";
import { ALWAYS_SPECIAL, BYTES, type Piece, type TokenStyle, visible } from "./tokens";

/** How many tokens to each side may hold the rest of a character, which has at most four bytes. */
const AROUND = 3;

/** Return a token within running text: the first part of a split character shows it, the others show a dot. */
export function inText(
  piece: Piece,
  raw: (position: number) => string | null,
  position: number,
  style: TokenStyle,
): Piece {
  if (!piece.text.includes("<0x")) return piece;
  const text = partly(raw, position, piece.text, style);
  return { ...piece, text: text.replace(/ 1\/\d/g, "").replace(/\S+ [2-4]\/\d/gu, "·") };
}

/** Return the character and part that a token holds, such as `é 1/2`; `text` for any other token. */
export function partly(
  raw: (position: number) => string | null,
  position: number,
  text: string,
  style: TokenStyle,
): string {
  if (!text.includes("<0x")) return text;
  const bytesAt = (at: number) => rawBytes(raw(at), style);
  const own = bytesAt(position);
  if (own === null) return text;
  let [first, last] = [position, position];
  while (position - first < AROUND && bytesAt(first - 1) !== null) first--;
  while (last - position < AROUND && bytesAt(last + 1) !== null) last++;
  const bytes: number[] = [];
  const owners: number[] = [];
  for (let at = first; at <= last; at++) {
    for (const byte of bytesAt(at) as readonly number[]) {
      bytes.push(byte);
      owners.push(at);
    }
  }
  let found = "";
  for (let at = 0; at < bytes.length; ) {
    const length = characterAt(bytes, at);
    const sharing = [...new Set(owners.slice(at, at + Math.max(1, length)))];
    const part = sharing.indexOf(position);
    if (part >= 0) {
      if (length === 0) found += hex(bytes[at] as number);
      else {
        const character = utf8.decode(Uint8Array.from(bytes.slice(at, at + length)));
        found += sharing.length === 1 ? character : `${character} ${part + 1}/${sharing.length}`;
      }
    }
    at += Math.max(1, length);
  }
  return visible(found.startsWith(" ") && found.trim() !== "" ? found.slice(1) : found);
}

/** Return the bytes that a token stands for, if it is written as bytes. */
function rawBytes(token: string | null, style: TokenStyle): readonly number[] | null {
  if (token === null) return null;
  if (BYTES.test(token)) return token.match(/[0-9A-F]{2}/g)?.map((digits) => Number.parseInt(digits, 16)) ?? null;
  return style === "bytes" && BYTE_LEVEL.test(token) && !ALWAYS_SPECIAL.test(token) ? Array.from(token, byteOf) : null;
}
