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

/** One row of weights in a sentence: apart from the keys that it names, `key` has the largest weight. */
export interface SaidLink {
  readonly query: number;
  readonly key: number;
  readonly weight: number;
  /** What the sentence has to name, because it weighs as much or more. */
  readonly apart: { readonly first: boolean; readonly own: boolean; readonly sink: boolean };
}

/** A list shows four decimals: a key that leads by less does not lead. */
const LEAD = 1e-4;
/** A key with less weight is not worth a sentence that sets others apart. */
const WORTH = 0.05;

/**
 * Return the link with which a sentence shows how a row reads; null if the numbers are not known, or no row has one.
 *
 * The first key and the query's own have much weight in any text, so a link to another key is preferred: one with the
 * largest weight of its whole row, or else one that is largest apart from these two and the learned sink. A link to the
 * first or the own key is last. A row with NaN or a negative number, or with one key, has none.
 */
export function saidLink(
  picture: Picture | null,
  isLeftOut: (query: number) => boolean = () => false,
): SaidLink | null {
  if (picture === null || !picture.exact || picture.sampled !== null || picture.grid === null) return null;
  if (picture.of.stage !== "weights") return null;
  if (picture.keys !== picture.grid.columns || picture.grid.rows !== picture.queries) return null;
  const best: { whole: SaidLink | null; apart: SaidLink | null; common: SaidLink | null } = {
    whole: null,
    apart: null,
    common: null,
  };
  for (let query = 0; query < picture.queries; query++) {
    for (const [name, link] of Object.entries(linksOf(picture, query)) as [keyof typeof best, SaidLink | null][]) {
      if (link !== null && link.weight > (best[name]?.weight ?? 0) && !isLeftOut(query)) best[name] = link;
    }
  }
  const { whole, apart, common } = best;
  if (whole !== null && whole.weight >= (apart?.weight ?? 0) / 2) return whole;
  return apart !== null && apart.weight >= WORTH ? apart : (whole ?? common ?? apart);
}

/** The largest other key of a row, if it is the largest of all, or else apart from some; and the largest of those. */
function linksOf({ grid, queries, keys, sink }: Picture, query: number) {
  const none = { whole: null, apart: null, common: null };
  const { values, kinds } = grid!;
  const from = query * keys;
  const own = queries === keys ? query : -1;
  const weightOf = (key: number) => (key >= 0 && kinds[from + key] === NUMBER ? values[from + key]! : 0);
  let [allowed, most, second] = [0, -1, 0];
  for (let key = 0; key < keys; key++) {
    const kind = kinds[from + key]!;
    if (kind === BLOCKED) continue;
    if (kind !== NUMBER || values[from + key]! < 0) return none;
    allowed++;
    if (key === 0 || key === own) continue;
    const weight = weightOf(key);
    if (most < 0 || weight > weightOf(most)) {
      second = most < 0 ? 0 : weightOf(most);
      most = key;
    } else second = Math.max(second, weight);
  }
  const taken = sink?.[query] ?? 0;
  if (allowed < 2 || !(taken >= 0)) return none;
  const [first, itself] = [weightOf(0), own > 0 ? weightOf(own) : 0];
  const weight = weightOf(most);
  const leads = most >= 0 && weight - second >= LEAD;
  const apart = { first: first > weight - LEAD, own: itself > weight - LEAD, sink: taken > weight - LEAD };
  const isWhole = !apart.first && !apart.own && !apart.sink;
  const isAmongOthers = allowed - Number(apart.first) - Number(apart.own) > 1; // the only key that is left leads none
  const link: SaidLink | null = leads && isAmongOthers ? { query, key: most, weight, apart } : null;
  const [greater, lesser] = first >= itself ? [0, itself] : [own, first];
  const isCommon = weightOf(greater) - Math.max(lesser, weight, taken) >= LEAD;
  const nothing = { first: false, own: false, sink: false };
  return {
    whole: isWhole ? link : null,
    apart: isWhole ? null : link,
    common: isCommon ? { query, key: greater, weight: weightOf(greater), apart: nothing } : null,
  };
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
