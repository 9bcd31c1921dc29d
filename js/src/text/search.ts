/** The input of "go to": a token's number, a pair of numbers, or text to find. */

const NUMBER = String.raw`(\d{1,3}(?:,\d{3})+(?!\d)|\d+)`;
const PLACE = new RegExp(String.raw`^${NUMBER}(?:\s*(?:→|->|,|\s)\s*${NUMBER})?$`);

export type WantedPlace =
  | { readonly query: number; readonly key: number | null }
  | { readonly beyond: number; readonly total: number }
  | { readonly text: string };

/** Parse `12,301`, `12301 → 4110`, or a text; a number in quotation marks is a text too. Null for no input. */
export function readWanted(typed: string, queries: number, keys: number): WantedPlace | null {
  const text = typed.trim();
  if (text === "") return null;
  const quoted = /^["“](.+)["”]$/.exec(text);
  if (quoted) return { text: quoted[1] as string };
  const place = PLACE.exec(text);
  if (!place) return { text };
  const [query, key] = [place[1], place[2]].map((digits) => (digits ? Number(digits.replaceAll(",", "")) : null));
  if ((query as number) >= queries) return { beyond: query as number, total: queries };
  if (key != null && key >= keys) return { beyond: key, total: keys };
  return { query: query as number, key: key ?? null };
}

/** The positions of a text, and the current one. */
export interface Found {
  readonly text: string;
  readonly positions: readonly number[];
  /** May exceed the number of known positions. */
  readonly total: number;
  readonly at: number;
}

/** Return the next or previous match, wrapping around; null if its position is unknown. */
export function stepped(found: Found, by: 1 | -1): Found | null {
  const at = (found.at + by + found.total) % found.total;
  return at < found.positions.length ? { ...found, at } : null;
}
