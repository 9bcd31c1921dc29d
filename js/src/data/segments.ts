/**
 * How the attention between segments is read: exclusion, three measures, and the places of segments.
 *
 * *Mass* is the mean weight on the keys of a segment, over the queries of another. What is excluded is left out of both
 * mass and even attention, and the rest is divided by its sum: a ratio of means. *Per token* is mass over the tokens of
 * the segment; *lift* is mass over even attention.
 */

import type { Measure, Stage } from "../contract/values";
import type { Masses, Segments } from "./segment-data";

export const MEASURES: readonly Measure[] = ["mass", "per_token", "lift"];
export const MEASURE_WORDS: Readonly<Record<Measure, string>> = { mass: "mass", per_token: "per token", lift: "lift" };

/** Return the measure for a stage: only masses have a lift. */
export const measureOf = (measure: Measure | undefined, stage: Stage): Measure =>
  stage !== "weights" && measure === "lift" ? "mass" : (measure ?? "mass");

/** Names that `aside` may hold besides columns: the first token and the learned sink; each query's own key. */
export const SINKS = "sink";
export const SELF = "self";
export const FIRST_TOKEN = "first token";
export const LEARNED_SINK = "learned sink";

// --- excluded, and read ---------------------------------------------------------------------------------------------

/** The columns that are not excluded, by number, and whether each query's own key is included. */
export interface Left {
  readonly columns: readonly number[];
  readonly without: readonly number[];
  readonly self: boolean;
}

/** Return which columns remain after excluding some by name. */
export function leftOf(keys: readonly string[], aside: readonly string[]): Left {
  const out = new Set(aside.includes(SINKS) ? [...aside, FIRST_TOKEN, LEARNED_SINK] : aside);
  const all = keys.map((_, at) => at);
  return {
    columns: all.filter((at) => !out.has(keys[at]!)),
    without: all.filter((at) => out.has(keys[at]!)),
    self: !out.has(SELF),
  };
}

/** Rows without what is excluded: shares of the rest. */
export interface Rest {
  readonly rows: number;
  readonly columns: number;
  /** (rows, columns): NaN for excluded columns, unknown rows, and rows with nothing left. */
  readonly mass: Float32Array;
  readonly even: Float32Array;
  /** (rows, columns): the weight itself, without each query's own key if that is excluded. */
  readonly raw: Float32Array;
  /** (rows,): the excluded weight. */
  readonly aside: Float32Array;
  /** False for sums of other stages, which are not normalized and have no lift. */
  readonly shares: boolean;
}

/** The part of each number on the queries' own keys: one number per cell, or one per row with its column. */
type Own = Uint32Array | "each";

interface RestOptions {
  readonly own: Own;
  /** If some columns were not sent: one column with the sums over all. Every excluded column must have been sent. */
  readonly sums?: Masses | null;
  readonly shares?: boolean;
}

/** Return the shares of what is not excluded. */
export function restOf(masses: Masses, left: Left, { own, sums = null, shares = true }: RestOptions): Rest {
  const { rows, columns } = masses;
  const none = () => new Float32Array(rows * columns).fill(Number.NaN);
  const rest = { rows, columns, mass: none(), even: none(), raw: none(), aside: new Float32Array(rows), shares };
  for (let row = 0; row < rows; row++) restOfRow(masses, left, { own, sums, shares }, rest, row);
  return rest;
}

function restOfRow(masses: Masses, left: Left, options: Required<RestOptions>, rest: Rest, row: number): void {
  const { own, sums, shares } = options;
  const first = row * masses.columns;
  let [sum, evenSum, self] = [0, 0, 0];
  for (const column of left.columns) {
    const at = first + column;
    let [weight, even] = [masses.mass[at]!, masses.even[at]!];
    const from = left.self ? -1 : own === "each" ? at : own[row] === column ? row : -1;
    if (from >= 0) {
      const mine = masses.self[from]!;
      const [less, lessEven] = [shares ? Math.min(weight, mine) : mine, Math.min(even, masses.selfEven[from]!)];
      weight -= less;
      even -= lessEven;
      self += less;
    }
    rest.raw[at] = weight;
    rest.even[at] = even;
    sum += weight;
    evenSum += even;
  }
  let out = self;
  for (const column of left.without) {
    rest.raw[first + column] = masses.mass[first + column]!;
    out += masses.mass[first + column]!;
  }
  if (sums !== null) {
    [sum, evenSum] = leftIn(masses, left, sums, row);
    if (shares) sum = Math.max(0, sum);
    out = sums.mass[row]! - sum;
  }
  rest.aside[row] = out;
  for (const column of left.columns) {
    const at = first + column;
    rest.mass[at] = shares ? (sum > 0 ? rest.raw[at]! / sum : Number.NaN) : rest.raw[at]!;
    rest.even[at] = evenSum > 0 ? rest.even[at]! / evenSum : Number.NaN;
  }
}

/** Return what remains of the sums over all columns, including unsent ones. */
function leftIn(masses: Masses, left: Left, sums: Masses, row: number): [mass: number, even: number] {
  let [mass, even] = [sums.mass[row]!, sums.even[row]!];
  if (!left.self) [mass, even] = [mass - sums.self[row]!, even - sums.selfEven[row]!];
  for (const column of left.without) {
    const at = row * masses.columns + column;
    mass -= masses.mass[at]! - (left.self ? 0 : masses.self[at]!);
    even -= masses.even[at]! - (left.self ? 0 : masses.selfEven[at]!);
  }
  return [mass, Math.max(0, even)];
}

/** Return the number of a row and column; NaN if it is excluded or masked. */
export function readingAt(rest: Rest, sizes: readonly number[], row: number, column: number, measure: Measure): number {
  const at = row * rest.columns + column;
  const [mass, even] = [rest.mass[at]!, rest.even[at]!];
  if (mass === 0 && even === 0) return Number.NaN;
  if (measure === "mass") return mass;
  if (measure === "per_token") return sizes[column]! > 0 ? mass / sizes[column]! : Number.NaN;
  return even > 0 && rest.shares ? mass / even : Number.NaN;
}

/** Return the same measure of even attention: a share, the share per token, or 1. */
export function evenAt(rest: Rest, sizes: readonly number[], row: number, column: number, measure: Measure): number {
  if (!rest.shares) return Number.NaN;
  const even = rest.even[row * rest.columns + column]!;
  if (measure === "mass") return even;
  if (measure === "per_token") return sizes[column]! > 0 ? even / sizes[column]! : Number.NaN;
  return even > 0 ? 1 : Number.NaN;
}

/** Return the largest number; 0 if there is none. */
export function largest(numbers: Iterable<number>): number {
  let most = 0;
  for (const value of numbers) if (value > most) most = value;
  return most;
}

/** Return the largest absolute value; 0 if there is none. */
export function largestSize(numbers: Iterable<number>): number {
  let most = 0;
  for (const value of numbers) if (Math.abs(value) > most) most = Math.abs(value);
  return most;
}

/** Return items by a number, largest first, those without a number last, ties in their order. */
export function byLargest<T>(things: readonly T[], number: (thing: T) => number): T[] {
  return things
    .map((thing) => ({ thing, value: Number.isNaN(number(thing)) ? Number.NEGATIVE_INFINITY : number(thing) }))
    .sort((a, b) => (a.value === b.value ? 0 : b.value > a.value ? 1 : -1))
    .map(({ thing }) => thing);
}

/** Return the rank of a number among others (1 for the largest), and their count; null if it is NaN. */
export function rankAmong(numbers: readonly number[], at: number): { rank: number; of: number } | null {
  const own = numbers[at];
  if (own === undefined || Number.isNaN(own)) return null;
  const known = numbers.filter((value) => !Number.isNaN(value));
  return { rank: known.filter((value) => value > own).length + 1, of: known.length };
}

/** Return the mean of the numbers that are not NaN; NaN if there are none. */
export function meanOf(numbers: readonly number[]): number {
  const known = numbers.filter((value) => !Number.isNaN(value));
  return known.length > 0 ? known.reduce((sum, value) => sum + value, 0) / known.length : Number.NaN;
}

/** Return the sum of the numbers that are not NaN. */
export const sumOf = (numbers: readonly number[]): number =>
  meanOf(numbers) * numbers.filter((value) => !Number.isNaN(value)).length;

/** Return the next round number, of one or two digits, for the end of an axis. */
export function roundUp(value: number): number {
  if (!(value > 0) || !Number.isFinite(value)) return 1;
  const power = Number(`1e${value.toExponential().split("e")[1]}`);
  for (const step of [1, 1.5, 2, 3, 4, 5, 6, 8, 10]) {
    const end = Number((step * power).toPrecision(3));
    if (end >= value * (1 - 1e-9)) return end;
  }
  return value;
}

// --- where they are -------------------------------------------------------------------------------------------------

/** One contiguous piece of a segment, from token `start` to before `stop`. */
export interface Piece {
  readonly name: string;
  readonly start: number;
  readonly stop: number;
}

/** Return the pieces below a path of names, in order; for an empty path, the outermost level (every token). */
export function piecesBelow(segments: Segments, path: readonly string[] = []): Piece[] {
  const { names, starts, stops, levels } = segments;
  const found: Piece[] = [];
  const above: string[] = []; // the names around the current piece
  names.forEach((name, at) => {
    const level = levels[at]!;
    above.length = Math.min(above.length, level);
    if (level === path.length && path.every((part, depth) => above[depth] === part)) {
      found.push({ name, start: starts[at]!, stop: stops[at]! });
    }
    above[level] = name;
  });
  return found;
}

/** Return all pieces of one level. */
export function piecesOf({ names, starts, stops, levels }: Segments, level: number): Piece[] {
  const all = names.map((name, at) => ({ name, start: starts[at]!, stop: stops[at]! }));
  return all.filter((_, at) => levels[at] === level);
}

/** With more segments, a few cells hold most of the mass, and a linear scale would give all others one shade. */
const MOST_LINEAR = 40;

/** Return whether the matrix of segments has log colors, as `segment_reading.is_logarithmic` decides. */
export const isLogarithmic = (rows: number, columns: number, signed: boolean): boolean =>
  !signed && Math.max(rows, columns) > MOST_LINEAR;

/** Return how many levels there are. */
export const levelsOf = ({ levels }: Segments): number => levels.reduce((most, level) => Math.max(most, level + 1), 0);

/** Return the color slot of a segment of the outermost level, −1 for gray. */
export function slotOf({ distinct, colors }: Segments, name: string): number {
  return colors[distinct.indexOf(name)] ?? -1;
}

/** Return the piece that holds a token; null if none does. The pieces are in order. */
export function pieceAt(pieces: readonly Piece[], position: number): Piece | null {
  let [low, high] = [0, pieces.length - 1];
  while (low <= high) {
    const middle = (low + high) >> 1;
    const piece = pieces[middle]!;
    if (position < piece.start) high = middle - 1;
    else if (position >= piece.stop) low = middle + 1;
    else return piece;
  }
  return null;
}

/** Return whether a segment has others inside. */
export function hasInside(segments: Segments, path: readonly string[], name: string): boolean {
  return piecesBelow(segments, [...path, name]).length > 0;
}
