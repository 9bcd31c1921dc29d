/** The ranking of a row or column: the strongest cells, how many matter, how spread out the weights are. */

import { BLOCKED, MINUS_INF, NAN, NUMBER, type Picture, PLUS_INF } from "../contract/decode";

export interface Ranking {
  /** Positions of the strongest cells, strongest first, without NaN and blocked cells. */
  readonly top: readonly number[];
  /** Their numbers. */
  readonly values: readonly number[];
  /** Cells that are neither blocked nor NaN. */
  readonly allowed: number;
  readonly blocked: number;
  readonly nan: number;
  readonly sum: number;
  /** The number of cells not among `top`, and their sum. */
  readonly rest: { readonly count: number; readonly sum: number };
  /** The entropy of a row of weights in bits, and its maximum: uniform over the allowed cells. */
  readonly entropy: number;
  readonly maxEntropy: number;
  /** The fewest cells that hold nine tenths of the sum. */
  readonly ninety: number;
  /** The learned sink's number in a row, counted in the entropies; null without one. */
  readonly sink?: number | null;
}

/**
 * Return the strongest cell of a picture whose cells are pairs, without the first key and without a query's own key,
 * which are often strong in any text; null if that is not known, or if there is none.
 */
export function strongestCell(
  picture: Picture | null,
  isLeftOut: (query: number) => boolean = () => false,
): { query: number; key: number; weight: number } | null {
  if (picture === null || !picture.exact || picture.sampled !== null || picture.grid === null) return null;
  if (picture.of.stage !== "weights") return null;
  const { columns, values, kinds } = picture.grid;
  if (columns !== picture.keys || picture.grid.rows !== picture.queries) return null;
  const square = picture.queries === picture.keys;
  let found = -1;
  for (let at = 0; at < values.length; at++) {
    const key = at % columns;
    if (key === 0 || kinds[at] !== NUMBER || (square && key === Math.floor(at / columns))) continue;
    if (found >= 0 && values[at]! <= values[found]!) continue;
    if (!isLeftOut(Math.floor(at / columns))) found = at;
  }
  if (found < 0 || values[found]! <= 0) return null;
  return { query: Math.floor(found / columns), key: found % columns, weight: values[found]! };
}

/** Rank a row or column: one pass for the sums, one sort of the allowed values for `ninety`; signed numbers by size. */
export function rank(
  values: Float32Array,
  kinds: Uint8Array,
  count: number,
  sink: number | null = null,
  bySize = false,
): Ranking {
  const positions = new Uint32Array(values.length);
  let allowed = 0;
  let blocked = 0;
  let nan = 0;
  let sum = 0;
  let entropy = 0;
  for (let i = 0; i < values.length; i++) {
    const kind = kinds[i]!;
    if (kind === BLOCKED) blocked++;
    else if (kind === NAN) nan++;
    else {
      positions[allowed++] = i;
      const value = values[i]!;
      sum += value;
      if (value > 0 && kind !== PLUS_INF) entropy -= value * Math.log2(value);
    }
  }
  const sizes = bySize ? values.map(Math.abs) : values;
  const order = positions.subarray(0, allowed).sort((a, b) => sizes[b]! - sizes[a]! || a - b);
  const top = [...order.subarray(0, count)];
  let held = 0;
  for (const position of top) if (kinds[position] !== MINUS_INF) held += values[position]!;
  let left = sum - held;
  // ∞ − ∞ would be NaN
  if (sum === Number.POSITIVE_INFINITY) left = order.subarray(count).reduce((total, at) => total + values[at]!, 0);
  let ninety = 0;
  for (let reached = 0; ninety < allowed && reached < 0.9 * sum - 1e-7; ninety++) reached += values[order[ninety]!]!;
  if (sink !== null && sink > 0) entropy -= sink * Math.log2(sink);
  const whole = sum + (sink ?? 0);
  return {
    top,
    values: top.map((position) => values[position]!),
    allowed,
    blocked,
    nan,
    sum,
    rest: { count: allowed - top.length, sum: bySize ? left : Math.max(0, left) },
    entropy: whole > 0 && whole < Number.POSITIVE_INFINITY ? Math.max(0, entropy / whole + Math.log2(whole)) : entropy,
    maxEntropy: allowed > 0 ? Math.log2(allowed + (sink === null ? 0 : 1)) : 0,
    ninety,
    sink,
  };
}

/** Return the ranking with fewer of the strongest cells: the others join the rest. */
export function shortened(ranking: Ranking, count: number): Ranking {
  const { top, values, rest } = ranking;
  if (top.length <= count) return ranking;
  const left = values.slice(count).filter(Number.isFinite);
  return {
    ...ranking,
    top: top.slice(0, count),
    values: values.slice(0, count),
    rest: { count: rest.count + top.length - count, sum: left.reduce((sum, value) => sum + value, rest.sum) },
  };
}
