/** Which queries are padding, if tokens or a mask tell. */

import type { Picture } from "../contract/decode";
import type { Span } from "../geometry/viewport";
import type { Labels } from "../text/labels";

/** Special tokens that stand after the end of a text. */
const PADDING = /^[[<|]*_?pad(ding)?_?[\]>|]*$/i;
/** Tokens of longer axes are not searched for the legend's sake. */
const LOOKED_AT = 1024;

interface Known {
  readonly queryLabels: { readonly value: Labels };
  readonly keyLabels: { readonly value: Labels };
}

/**
 * Return whether a query is padding: its token says so; or a padding mask blocks the key at its position and both sides
 * have the same tokens, as in one text. A long axis, whose tokens arrive by pages, is checked by its mask only.
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

/** Return the runs of drawn rows in which all queries are padding. */
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

/** Return whether any query is known to be padding; on a long axis the last one decides. */
export function hasPadding(known: Known, picture: Picture): boolean {
  const { queries } = picture;
  if (queries > LOOKED_AT) return isPadding(known, picture, queries - 1);
  for (let query = queries - 1; query >= 0; query--) if (isPadding(known, picture, query)) return true;
  return false;
}
