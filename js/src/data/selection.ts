/**
 * The selection as lists. `head` is one of `heads`, and (`query`, `key`) the last of `pins`: if only those are set, the
 * lists follow, as in Python.
 */

import type { Pin } from "../contract/values";

/** Return the current heads: `heads` if they include the selected one, else that one alone. */
export function headsInForce(head: number, heads: readonly number[]): readonly number[] {
  return heads.includes(head) ? heads : [head];
}

/** Return the current pins: `pins` if the selected place is the last of them, else that place alone, or none. */
export function pinsInForce(query: number | null, key: number | null, pins: readonly Pin[]): readonly Pin[] {
  const [lastQuery, lastKey] = pins.at(-1) ?? [null, null];
  if (lastQuery === query && lastKey === key) return pins;
  return query === null && key === null ? [] : [[query, key]];
}

/** Return the selection with a pin added, or removed if it was there. */
export function withPinToggled(pins: readonly Pin[], query: number | null, key: number | null) {
  const others = pins.filter((pin) => pin[0] !== query || pin[1] !== key);
  const next: Pin[] = others.length < pins.length ? others : [...others, [query, key]];
  const [lastQuery, lastKey] = next.at(-1) ?? [null, null];
  return { pins: next, query: lastQuery, key: lastKey };
}

/** Return the selection with a head added or removed; null for the only one, which stays. */
export function withHeadToggled(heads: readonly number[], selected: number, head: number) {
  const others = heads.filter((other) => other !== head);
  if (others.length === 0) return null;
  const next = others.length < heads.length ? others : [...heads, head].sort((a, b) => a - b);
  return { heads: next, head: next.includes(selected) ? selected : (next[0] as number) };
}
