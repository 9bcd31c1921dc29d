/** Which queries are padding: nobody asked for what they attend to. Said only where it is known, by tokens or by a mask. */

import type { Picture } from "../contract/decode";
import type { Span } from "../geometry/viewport";
import type { Store } from "./store";

/** Special tokens that stand where a text has ended. */
const PADDING = /^[[<|]*_?pad(ding)?_?[\]>|]*$/i;
/** Of a longer axis tokens are not looked through for what the legend says. */
const LOOKED_AT = 1024;

type Known = Pick<Store, "queryLabels" | "keyLabels">;

/**
 * Return whether a query is padding: its token says so; or a padding mask blocks the key at its position, and both sides
 * have the same tokens, as those of one text do. Of a long axis, whose tokens come by pages, only the mask is asked.
 */
export function isPadding({ queryLabels, keyLabels }: Known, picture: Picture, query: number): boolean {
  const { padding, queries, keys } = picture;
  const isLong = queries > LOOKED_AT;
  const label = isLong ? null : queryLabels.value.at(query);
  if (label?.special && PADDING.test(label.text)) return true;
  if (padding === null || query < padding || queries !== keys) return false;
  const at = isLong ? 0 : query;
  const first = queryLabels.value.at(0).text;
  return first !== "0" && keyLabels.value.at(at).text === queryLabels.value.at(at).text;
}

/** Return the runs of drawn rows all of whose queries are padding, among some. */
export function paddedRows(known: Known, picture: Picture, rows: Span, bin: number): Span[] {
  const found: Span[] = [];
  for (let row = rows.start; row < rows.stop; row++) {
    const last = Math.min(picture.queries, (row + 1) * bin) - 1;
    if (!isPadding(known, picture, row * bin) || !isPadding(known, picture, last)) continue;
    const before = found.at(-1);
    if (before !== undefined && before.stop === row) found[found.length - 1] = { ...before, stop: row + 1 };
    else found.push({ start: row, stop: row + 1 });
  }
  return found;
}

/** Return whether any query is known to be padding; of a long axis the last one tells. */
export function hasPadding(known: Known, picture: Picture): boolean {
  const { queries } = picture;
  if (queries > LOOKED_AT) return isPadding(known, picture, queries - 1);
  for (let query = queries - 1; query >= 0; query--) if (isPadding(known, picture, query)) return true;
  return false;
}
