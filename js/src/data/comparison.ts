/** Comparing two attentions: decoding Python's message, mapping places to positions, listing the changes. */

import { BLOCKED, decode, decodeGrid, decodePicture, type Grid, NUMBER, type Picture } from "../contract/decode";
import type {
  ChangesMessage,
  ComparisonMessage,
  HeadPlace,
  Figure as Numeral,
  PlacesMessage,
} from "../contract/messages";
import type { Side } from "../contract/values";
import type { Label, Labels } from "../text/labels";
import { type Bin, lineOf, numberIn } from "./matrix";

/** The three pictures, from left to right. */
export const PARTS = ["a", "b", "change"] as const;
export type Part = (typeof PARTS)[number];

/** Places that both sides have; each maps to one position of A and one of B. */
export interface Places {
  readonly length: number;
  /** How many positions of A, and of B, have no place. */
  readonly only: readonly [number, number];
  /** Whether a place is the same position on both sides. */
  readonly plain: boolean;
  /** How many places have a different token in B than in A. */
  readonly differ: number;
  a(place: number): number;
  b(place: number): number;
  /** The place of a position of A; null if it has none. */
  of(position: number): number | null;
}

export type Comparison = {
  readonly of: Picture["of"];
  /** The name of B. */
  readonly against: string;
  /** Layer, sample and head of B; null: the same as A's. */
  readonly againstAt: HeadPlace | null;
} & (
  | { readonly error: string }
  | {
      readonly error: null;
      /** By place: A's numbers, B's, and B − A. */
      readonly pictures: { readonly [K in Part]: Picture };
      readonly queries: Places;
      readonly keys: Places;
      /** Whether a learned sink, which is not drawn here, takes a share of the weights of one side. */
      readonly hasSinks?: boolean;
      /** The number in the model of A's and of B's head; null if a side has all heads. */
      readonly numbers: readonly [number | null, number | null];
    }
);
export type ReadyComparison = Extract<Comparison, { error: null }>;

export async function decodeComparison(message: ComparisonMessage): Promise<Comparison> {
  const { layer, batch, head, stage, pool, against, against_at: againstAt = null, error } = message;
  const of = { layer, batch, head, stage, pool };
  if (error !== null) return { of, against, againstAt, error };
  const picture = (part: Part) => decodePicture({ ...message, ...message[part], error: null });
  const [a, b, change] = await Promise.all([picture("a"), picture("b"), picture("change")]);
  const [queries, keys] = await Promise.all([
    placesOf(message.query_places, message.queries, message.differ[0]),
    placesOf(message.key_places, message.keys, message.differ[1]),
  ]);
  const pictures = { a, b, change };
  const { head_numbers: numbers = [null, null], has_sinks } = message;
  return { of, against, againstAt, error: null, pictures, queries, keys, numbers, hasSinks: has_sinks === true };
}

async function placesOf(message: PlacesMessage | null, length: number, differ: number): Promise<Places> {
  if (message === null) {
    return {
      length,
      only: [0, 0],
      plain: true,
      differ,
      a: (place) => place,
      b: (place) => place,
      of: (position) => (position < length ? position : null),
    };
  }
  const [a, b] = await Promise.all([decode(message.a), decode(message.b)]);
  if (a.length !== length || b.length !== length) {
    throw new Error(`${length} places need a position of each side, got ${a.length} and ${b.length}`);
  }
  const found = new Map(Array.from(a, (position, place) => [position, place]));
  return {
    length,
    only: message.only,
    plain: false,
    differ,
    a: (place) => a[place] ?? place,
    b: (place) => b[place] ?? place,
    of: (position) => found.get(position) ?? null,
  };
}

/** Return the labels of places: those of A's positions. */
export function labelsOf(labels: Labels, places: Places): Labels {
  if (places.plain) return labels;
  return {
    length: places.length,
    at: (place): Label => labels.at(places.a(place)),
    piece: (place) => labels.piece(places.a(place)),
    raw: (place) => labels.raw(places.a(place)),
    find: (text) => labels.find(text)?.flatMap((position) => places.of(position) ?? []) ?? null,
  };
}

/** One cell (of several, the one that changes most) with both numbers; a blocked number is null. */
export interface CellChange {
  readonly bin: Bin;
  readonly query: number;
  readonly key: number;
  readonly a: number | null;
  readonly b: number | null;
  readonly value: number | null;
  readonly of: ReadyComparison;
}

/** Return the change of one cell, if the pictures hold its numbers. */
export function changedAt(of: ReadyComparison, bin: Bin): CellChange | null {
  const { a, b, change } = of.pictures;
  const [query, key] = [bin.queries.start, bin.keys.start];
  if (!change.exact || query >= change.queries || key >= change.keys) return null;
  const at = query * change.keys + key;
  const number = ({ grid }: Picture) => (grid === null || grid.kinds[at] === BLOCKED ? null : grid.values[at]!);
  return { bin, query, key, a: number(a), b: number(b), value: number(change), of };
}

export interface ChangeRow {
  readonly place: number;
  readonly a: number | null;
  readonly b: number | null;
  readonly value: number | null;
}

/** The rows of a query or key with the largest weight on either side, and the rest. */
export interface Changes {
  readonly side: Side;
  /** Positions of A. */
  readonly query: number | null;
  readonly key: number | null;
  readonly of: {
    readonly layer: number;
    readonly batch: number;
    readonly head: number;
    readonly against: string;
    readonly againstAt: HeadPlace | null;
  };
  readonly rows: readonly ChangeRow[];
  readonly rest: { readonly count: number; readonly a: number; readonly b: number };
  /** Places that both sides mask. */
  readonly masked: number;
  readonly only: readonly [{ count: number; sum: number }, { count: number; sum: number }] | null;
}

export async function decodeChanges(message: ChangesMessage): Promise<Changes> {
  const { layer, batch, head, against, against_at: againstAt = null, side, query, key, rest, masked, only } = message;
  const [places, a, b, change] = await Promise.all([
    decode(message.places),
    ...PARTS.map(async (part) => decodeGrid(message[part].values, message[part].blocked)), // async: may reject
  ] as const);
  const number = (grid: Grid | undefined, at: number) =>
    grid === undefined || grid.kinds[at] === BLOCKED ? null : grid.values[at]!;
  const found = (numeral: Numeral) => numberIn(numeral);
  return {
    side,
    query,
    key,
    of: { layer, batch, head, against, againstAt },
    rows: Array.from(places, (place, at) => ({
      place,
      a: number(a, at),
      b: number(b, at),
      value: number(change, at),
    })),
    rest: { count: rest.count, a: found(rest.a), b: found(rest.b) },
    masked,
    only: only && [
      { count: only.a.count, sum: found(only.a.sum) },
      { count: only.b.count, sum: found(only.b.sum) },
    ],
  };
}

/**
 * Return all rows of the list from the pictures, if they hold all numbers: for the place under the pointer, or one that
 * was just pinned.
 */
export function changesIn(comparison: ReadyComparison, side: Side, place: number): Changes | null {
  const { pictures, of, against, againstAt, queries } = comparison;
  if (!pictures.change.exact || of.stage !== "weights") return null;
  const [a, b, change] = PARTS.map((part) => lineOf(pictures[part], { side, index: place }));
  if (!a || !b || !change) return null;
  const number = (line: NonNullable<typeof a>, at: number) => (line.kinds[at] === BLOCKED ? null : line.values[at]!);
  const all = Array.from(change.values, (_, at) => ({
    place: at,
    a: number(a, at),
    b: number(b, at),
    value: number(change, at),
  }));
  const size = ({ a, b }: ChangeRow) => {
    const larger = Math.max(a ?? 0, b ?? 0);
    return Number.isNaN(larger) ? Number.POSITIVE_INFINITY : larger;
  };
  const open = all.filter(({ value }) => value !== null).sort((x, y) => size(y) - size(x));
  return {
    side,
    query: side === "query" ? queries.a(place) : null,
    key: side === "key" ? comparison.keys.a(place) : null,
    of: { layer: of.layer, batch: of.batch, head: of.head as number, against, againstAt },
    rows: open,
    rest: { count: 0, a: 0, b: 0 },
    masked: all.length - open.length,
    only: null,
  };
}

/** One pair of places, with both its numbers. */
export interface PairChange extends ChangeRow {
  readonly query: number;
}

/** Return the pairs of the first `queries` queries that change most, if the pictures hold all numbers. */
export function mostChanged(of: ReadyComparison, queries: number, most: number): PairChange[] {
  return of.pictures.change.exact
    ? largestCells(of, queries, most).map((bin) => ({
        ...changedAt(of, bin)!,
        query: bin.queries.start,
        place: bin.keys.start,
      }))
    : [];
}

/**
 * Return the cells of the picture that change most among the first `queries` queries. While one query stands for
 * all of its row, a cell belongs to that query alone.
 */
export function largestCells(of: ReadyComparison, queries: number, most: number): Bin[] {
  const { grid, sampled, queryBin, keyBin, keys } = of.pictures.change;
  if (grid === null) return [];
  const size = (at: number | undefined) => (at === undefined ? 0 : Math.abs(grid.values[at]!));
  const found: number[] = [];
  for (let at = 0; at < Math.ceil(queries / queryBin) * grid.columns; at++) {
    if (grid.kinds[at] !== NUMBER || !(size(at) > size(found[most - 1]))) continue;
    let place = found.length;
    while (place > 0 && size(found[place - 1]) < size(at)) place--;
    found.splice(place, 0, at);
    found.length = Math.min(found.length, most);
  }
  const span = (cell: number, bin: number, end: number) => ({
    start: cell * bin,
    stop: Math.min(end, (cell + 1) * bin),
  });
  const rowsOf = (row: number) => {
    if (sampled === null || row < sampled.exact) return span(row, queryBin, queries);
    const query = sampled.first + row * sampled.every;
    return { start: query, stop: query + 1 };
  };
  return found
    .map((at) => ({ queries: rowsOf(Math.floor(at / grid.columns)), keys: span(at % grid.columns, keyBin, keys) }))
    .filter((bin) => bin.queries.start < queries);
}

/** Return at most seven round values, from at most `low` (or 0) to at least `high`. */
export function axisTicks(high: number, low = 0): number[] {
  const length = Math.max(high, 0) - Math.min(low, 0);
  if (!(length > 0) || !Number.isFinite(length)) return [0, 1];
  const unit = 10 ** Math.floor(Math.log10(length));
  const step = [0.2, 0.5, 1, 2, 5].map((times) => times * unit).find((step) => length / step <= 5 + 1e-9) ?? 5 * unit;
  const first = Math.floor(Math.min(low, 0) / step + 1e-9);
  const last = Math.max(first + 1, Math.ceil(high / step - 1e-9), 0);
  return Array.from({ length: last - first + 1 }, (_, index) => Number(((first + index) * step).toPrecision(12)));
}

/** Return both sides as one grid, with the number of larger size in each cell, to find a shared range. */
export function mergedGrid(a: Grid, b: Grid): Grid {
  const values = a.values.slice();
  const kinds = a.kinds.slice();
  for (let at = 0; at < values.length; at++) {
    if (b.kinds[at] !== NUMBER) continue;
    if (kinds[at] === NUMBER && Math.abs(values[at]!) >= Math.abs(b.values[at]!)) continue;
    values[at] = b.values[at]!;
    kinds[at] = NUMBER;
  }
  return { ...a, values, kinds };
}

/** Return the lesser and the greater end of two ranges, each of which may lack an end. */
export function sharedRange(a: Picture, b: Picture): { low: number | null; high: number | null } {
  const least = [a.low, b.low].filter((low) => low !== null);
  const most = [a.high, b.high].filter((high) => high !== null);
  return { low: least.length ? Math.min(...least) : null, high: most.length ? Math.max(...most) : null };
}
