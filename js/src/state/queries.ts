/** Exact numbers on demand: from the picture if it is exact, else from the kernel; the newest question wins. */

import { computed, effect, type ReadonlySignal, signal } from "@preact/signals-core";
import { BLOCKED, decode, decodeGrid, MINUS_INF, NAN, NUMBER, type Picture, PLUS_INF } from "../contract/decode";
import type { Answers, Reply } from "../contract/requests";
import { isBySize, linkedStage } from "../contract/stages";
import type { HeadName, Side, Stage } from "../contract/values";
import { type Bin, combine, type Line, lineOf, numberIn, type Over, type Patch, type Target } from "../data/matrix";
import { type Ranking, rank } from "../data/rank";
import { MOST_RECEIVED } from "../draw/label-room";
import { type Kernel, KernelError } from "../kernel/kernel";
import type { Store } from "./store";
import { isOf } from "./store-pictures";

/** A row or column to rank: its strongest cells, and sums over all. */
export interface Ranked {
  readonly of: Target;
  readonly stage: Stage;
  readonly ranking: Ranking;
  /** The picture that these numbers belong to. */
  readonly from?: Picture["of"];
}

/** A row or column that cannot be ranked, at least not yet: Python's sentence. */
export interface Unranked {
  readonly of: Target;
  readonly problem: string;
}

/** The numbers or ranking of a row or column. */
export type Known = Line | Ranked | Unranked;

/** How many of the strongest are requested, and the most that are shown. */
export const RANKS = 12;
/** Above this many numbers, only a ranking is sent. */
export const WHOLE = 4096;

/** The number at a cell, or the greatest in a bin with its place. */
export interface Reading {
  readonly bin: Bin;
  readonly value: number;
  readonly kind: number;
  readonly query: number;
  readonly key: number;
  /** The whole row of that query, if it came along. */
  readonly row?: { readonly line: Line; readonly from: Picture["of"] } | undefined;
}

/** The picture's identity, as a request's first fields. */
const address = ({ of }: Picture) => ({
  layer: of.layer,
  batch: of.batch,
  head: of.head,
  stage: of.stage,
});

/** A picture and a question about it. While the picture only gains rows, the question stays the same. */
function questionOf<T>(store: Store, subject: ReadonlySignal<T | null>) {
  let last: { picture: Picture; about: T } | null = null;
  return computed(() => {
    const picture = store.picture.value;
    const about = subject.value;
    if (picture === null || about === null) last = null;
    else if (last?.picture.of !== picture.of || last.about !== about) last = { picture, about };
    return last;
  });
}

/**
 * Ask again whenever the question changes; late answers are dropped, and without a kernel the result is null. The last
 * answer stays until the next arrives; a single number stays only on its own picture.
 */
export function latestAnswer<Q extends { picture: Picture }, A>(
  question: ReadonlySignal<Q | null>,
  known: (question: Q) => A | null,
  ask: (question: Q, signal: AbortSignal) => Promise<A | null>,
  stop: AbortSignal,
  { outlives = false } = {},
): ReadonlySignal<A | null> {
  const answer = signal<A | null>(null);
  let last: Picture["of"] | null = null;
  const end = effect(() => {
    const now = question.value;
    if (now?.picture.of !== last && !outlives) answer.value = null;
    last = now?.picture.of ?? null;
    const ready = now === null ? null : known(now);
    if (now === null || ready !== null) {
      answer.value = ready;
      return;
    }
    const current = new AbortController();
    ask(now, current.signal).then(
      (late) => {
        if (!current.signal.aborted) answer.value = late;
      },
      () => {
        if (!current.signal.aborted) answer.value = null;
      },
    );
    return () => current.abort();
  });
  stop.addEventListener("abort", end, { once: true });
  return answer;
}

/** What each key receives: the mean over the queries that may attend to it. */
export interface Received {
  readonly values: Float32Array;
  readonly kinds: Uint8Array;
  /** The picture that these numbers belong to. */
  readonly from: Picture["of"];
}

/** What each key of the shown head receives, while it is wanted: from the picture if it is exact, else by the kernel. */
export function receivedSource(
  store: Store,
  kernel: Kernel,
  wanted: ReadonlySignal<boolean>,
  stop: AbortSignal,
): ReadonlySignal<Received | null> {
  const about = computed(() => (wanted.value ? "received" : null));
  const answer = latestAnswer<{ picture: Picture; about: string }, Received>(
    questionOf(store, about),
    ({ picture }) => receivedIn(picture),
    async ({ picture }, signal) => {
      const { layer, batch, head, stage } = picture.of;
      if (stage !== "weights" || picture.queries * picture.keys > MOST_RECEIVED) return null;
      for (;;) {
        const reply = await kernel.request("received", { layer, batch, head }, { signal });
        if (signal.aborted || (reply.values === undefined && store.facts.peek().saved)) return null;
        if (reply.values === undefined) continue;
        const { values, kinds } = await decodeGrid(reply.values, reply.blocked ?? null, reply.buffers);
        return { values, kinds, from: picture.of };
      }
    },
    stop,
  );
  return computed(() => (answer.value?.from === store.picture.value?.of ? answer.value : null));
}

/** The means of the columns of a picture that is the matrix itself. */
function receivedIn({ exact, sampled, grid, of }: Picture): Received | null {
  if (!exact || sampled !== null || grid === null || of.stage !== "weights") return null;
  const { rows, columns } = grid;
  const [values, counts] = [new Float64Array(columns), new Uint32Array(columns)];
  for (let at = 0; at < rows * columns; at++) {
    if (grid.kinds[at] === BLOCKED) continue;
    values[at % columns]! += grid.values[at]!;
    counts[at % columns]!++;
  }
  const kinds = Uint8Array.from(counts, (many, key) =>
    many === 0 ? BLOCKED : Number.isNaN(values[key]!) ? NAN : NUMBER,
  );
  return { values: Float32Array.from(values, (sum, key) => sum / Math.max(1, counts[key]!)), kinds, from: of };
}

const same = (a: object, b: object) => JSON.stringify(a) === JSON.stringify(b);

/** Return a computed signal that keeps its old value while the new one is equal. */
export function stableComputed<T extends object>(compute: () => T | null): ReadonlySignal<T | null> {
  let last: T | null = null;
  return computed(() => {
    const next = compute();
    if (next !== null && last !== null && same(next, last)) return last;
    last = next;
    return next;
  });
}

/** Rank the row or column in question: here if its numbers are known, else by the kernel. */
export function rankedSource(
  store: Store,
  kernel: Kernel,
  target: ReadonlySignal<Target | null>,
  reading: ReadonlySignal<Reading | null>,
  stop: AbortSignal,
): ReadonlySignal<Ranked | Unranked | null> {
  const known = (picture: Picture, about: Target) => {
    if (picture.exact) return lineOf(picture, about);
    const row = reading.peek()?.row;
    return row?.from === picture.of && row.line.of.side === about.side && row.line.of.index === about.index
      ? row.line
      : null;
  };
  return latestAnswer<{ picture: Picture; about: Target }, Ranked | Unranked>(
    questionOf(store, target),
    ({ picture, about }) => fromPicture(rankedOf(known(picture, about)), picture),
    async ({ picture, about }, signal) => {
      const of = address(picture);
      if (others(picture, about.side) > WHOLE || store.facts.peek().saved)
        return fromPicture(await askRanked(kernel, of, [about], signal), picture);
      const line = askLine(kernel, of, about, signal);
      return fromPicture(await orProblem(about, line.then(rankedOf)), picture);
    },
    stop,
    { outlives: true }, // a list that vanished between two heads would move everything below it
  );
}

function fromPicture(ranked: Ranked | Unranked | null, { of }: Picture): Ranked | Unranked | null {
  return ranked !== null && "ranking" in ranked ? { ...ranked, from: of } : ranked;
}

/** Return whether a ranking is of this picture and this row or column; an old one stays until the new one arrives. */
export function isRankingOf(ranked: Ranked, picture: Picture | null, { side, index }: Target): boolean {
  return ranked.from === picture?.of && ranked.of.side === side && ranked.of.index === index;
}

/** The length of a row or column of the matrix. */
const others = (of: { queries: number; keys: number }, side: Side) => (side === "query" ? of.keys : of.queries);

export const rankedOf = (line: Line | null): Ranked | null =>
  line && {
    of: line.of,
    stage: line.stage,
    ranking: rank(line.values, line.kinds, RANKS, line.sink ?? null, isBySize(line.stage)),
  };

/** The first fields of a request. */
interface Address {
  readonly layer: number;
  readonly batch: number;
  readonly head: HeadName;
  readonly stage: Stage;
}

async function askLine(kernel: Kernel, address: Address, of: Target, signal: AbortSignal): Promise<Line> {
  const [kind, place] =
    of.side === "query" ? (["row", { query: of.index }] as const) : (["column", { key: of.index }] as const);
  const reply = await kernel.request(kind, { ...address, ...place }, { signal });
  return decodeLine(reply, reply.buffers, of, address.stage);
}

async function decodeLine(
  line: Reply<"row" | "column"> | Answers["row"],
  buffers: Reply<"row">["buffers"],
  of: Target,
  stage: Stage,
): Promise<Line> {
  const { values, kinds } = await decodeGrid(line.values, line.blocked, buffers);
  return { of, stage, values, kinds, sink: sinkIn(line) };
}

/** One row or column, or several combined, ranked by the kernel. */
async function askRanked(
  kernel: Kernel,
  address: Address,
  targets: readonly Target[],
  signal: AbortSignal,
  { over, count = RANKS }: { over?: Over | undefined; count?: number } = {},
): Promise<Ranked | Unranked> {
  const of = targets[targets.length - 1] as Target;
  const body = {
    ...address,
    [of.side === "query" ? "queries" : "keys"]: targets.map(({ index }) => index),
    ...(over ? { over } : {}),
    count,
  };
  const reply = kernel.request("ranked", body, { signal });
  return orProblem(
    of,
    reply.then(async (found) => ({ of, stage: address.stage, ranking: await decodeRanking(found) })),
  );
}

/** The answer about a row or column, or Python's sentence why there is none. */
async function orProblem<A>(of: Target, answer: Promise<A>): Promise<A | Unranked> {
  try {
    return await answer;
  } catch (error) {
    if (error instanceof KernelError) return { of, problem: error.message };
    throw error;
  }
}

async function decodeRanking(reply: Reply<"ranked">): Promise<Ranking> {
  const { buffers, allowed, blocked, nan, rest, ninety } = reply;
  const [positions, values] = await Promise.all([decode(reply.positions, buffers), decode(reply.values, buffers)]);
  if (positions.length !== values.length) {
    throw new Error(`${positions.length} positions need as many values, got ${values.length}`);
  }
  return {
    top: [...positions],
    values: [...values],
    allowed,
    blocked,
    nan,
    sum: numberIn(reply.sum),
    rest: { count: rest.count, sum: numberIn(rest.sum) },
    entropy: numberIn(reply.entropy),
    maxEntropy: numberIn(reply.max_entropy),
    ninety,
    sink: sinkIn(reply),
  };
}

/** The learned sink's number in a reply about a row; null without one. */
const sinkIn = (reply: object): number | null => {
  const { sink } = reply as { sink?: number | string | null };
  return sink == null ? null : numberIn(sink);
};

/** A row or column of one head. */
export interface HeadTarget extends Target {
  readonly head: HeadName;
}

const REMEMBERED = 512; // rows and columns

/**
 * Fetch several rows or columns of several heads, whole or ranked: known ones at once, the others as they
 * arrive.
 */
export function linesSource(
  store: Store,
  kernel: Kernel,
  wanted: ReadonlySignal<readonly HeadTarget[]>,
  count: ReadonlySignal<number>,
  stop: AbortSignal,
): ReadonlySignal<readonly (Known | null)[]> {
  const known = new Map<string, Known>();
  const arrivals = signal(0);
  const stage = store.linkedStage;
  const whole = computed(() => (store.picture.value?.exact ? store.picture.value : null));
  const settled = computed(() => store.picture.value?.sampled === null); // before, a key's queries may be unknown
  const isWhole = ({ side }: Target) => others(store.facts.value, side) <= WHOLE;
  const nameOf = (target: HeadTarget) => {
    const { head, side, index } = target;
    const of = [store.facts.value.version, store.layer.value, store.batch.value, head, side, index, stage.value];
    return (isWhole(target) ? of : [...of, count.value, settled.value]).join(" ");
  };
  const find = (target: HeadTarget) => {
    const picture = whole.value;
    const { layer, batch, head } = picture?.of ?? {};
    const here = layer === store.layer.value && batch === store.batch.value && head === target.head;
    if (picture !== null && here && picture.of.stage === stage.value) return lineOf(picture, target);
    return known.get(nameOf(target)) ?? null;
  };
  const end = effect(() => {
    const current = new AbortController();
    const { layer, batch } = store;
    for (const target of wanted.value) {
      if (find(target) !== null) continue;
      const name = nameOf(target);
      const of: Address = { layer: layer.value, batch: batch.value, head: target.head, stage: stage.value };
      const answer = isWhole(target)
        ? askLine(kernel, of, target, current.signal)
        : askRanked(kernel, of, [target], current.signal, { count: count.value });
      answer
        .then((line) => {
          known.set(name, line);
          if (known.size > REMEMBERED) known.delete(known.keys().next().value as string);
          arrivals.value++;
        })
        .catch(() => {}); // the kernel's state tells why
    }
    return () => current.abort();
  });
  stop.addEventListener("abort", end, { once: true });
  return computed(() => {
    void arrivals.value;
    return wanted.value.map(find);
  });
}

/** Several rows or columns of the selected head combined, and ranked. */
export interface Combination {
  readonly side: Side;
  readonly indices: readonly number[];
  readonly over: Over;
}

/** Rank several rows or columns combined: here if their numbers are known, else by the kernel. */
export function combinationSource(
  store: Store,
  kernel: Kernel,
  wanted: ReadonlySignal<Combination | null>,
  stop: AbortSignal,
): ReadonlySignal<Ranked | Unranked | null> {
  return latestAnswer<{ picture: Picture; about: Combination }, Ranked | Unranked>(
    questionOf(store, wanted),
    ({ picture, about }) => {
      if (!picture.exact) return null;
      const lines = about.indices.map((index) => lineOf(picture, { side: about.side, index }));
      return rankedOf(
        combine(
          lines.filter((line) => line !== null),
          about.over,
        ),
      );
    },
    async ({ picture, about }, signal) => {
      const { side, indices, over } = about;
      const targets = indices.map((index) => ({ side, index }));
      const of = address(picture);
      if (others(picture, side) > WHOLE) return askRanked(kernel, of, targets, signal, { over });
      const lines = Promise.all(targets.map((target) => askLine(kernel, of, target, signal)));
      const last = targets[targets.length - 1] as Target;
      return orProblem(
        last,
        lines.then((all) => rankedOf(combine(all, over))),
      );
    },
    stop,
    { outlives: true },
  );
}

/** A link of the matrix, with its weight. */
export interface WeightedPair {
  readonly query: number;
  readonly key: number;
  readonly weight: number;
}

/** Strongest first; or Python's sentence; or null while unknown. */
export type Strongest = readonly WeightedPair[] | { readonly problem: string } | null;

const PAIRS = 8;

/** Fetch the strongest links of a long head once its picture is exact, without those to the first token. */
export function strongestSource(
  store: Store,
  kernel: Kernel,
  isWanted: () => boolean,
  stop: AbortSignal,
): ReadonlySignal<Strongest> {
  const wanted = computed(() => {
    const picture = store.picture.value;
    return picture !== null && hasPairs(picture) && picture.sampled === null && isWanted() ? true : null;
  });
  return latestAnswer<{ picture: Picture; about: true }, NonNullable<Strongest>>(
    questionOf(store, wanted),
    () => null,
    async ({ picture }, signal) => {
      try {
        const body = { ...address(picture), count: PAIRS, skip_first: true };
        const { pairs } = await kernel.request("strongest", body, { signal });
        return pairs.map(([query, key, weight]) => ({ query, key, weight }));
      } catch (error) {
        if (error instanceof KernelError) return { problem: error.message };
        throw error;
      }
    },
    stop,
  );
}

/**
 * Return whether a picture shows maximum weights (or a later stage) of a head too long for its cells: for such a
 * head the strongest links are known.
 */
export function hasPairs({ of, queryBin, keyBin }: Picture): boolean {
  return linkedStage(of.stage) === of.stage && of.pool === "max" && queryBin * keyBin > 1;
}

/** Fetch the exact number of a cell, or the greatest of a bin. */
export function readingSource(store: Store, kernel: Kernel, bin: ReadonlySignal<Bin | null>, stop: AbortSignal) {
  return latestAnswer<{ picture: Picture; about: Bin }, Reading>(
    questionOf(store, bin),
    ({ picture, about: bin }) => {
      if (!picture.exact || picture.grid === null || bin.keys.start >= picture.keys) return null;
      const at = bin.queries.start * picture.grid.columns + bin.keys.start;
      if (picture.grid.values[at] === undefined) return null;
      return {
        bin,
        query: bin.queries.start,
        key: bin.keys.start,
        value: picture.grid.values[at],
        kind: picture.grid.kinds[at]!,
      };
    },
    async ({ picture, about: bin }, signal) => peak(kernel, picture, bin, signal),
    stop,
  );
}

/** Ask the kernel for the greatest number in a bin; of several queries, also for the row of the one that has it. */
export async function peak(kernel: Kernel, picture: Picture, bin: Bin, signal: AbortSignal): Promise<Reading> {
  const body = {
    ...address(picture),
    queries: [bin.queries.start, bin.queries.stop],
    keys: [bin.keys.start, bin.keys.stop],
    ...(bin.queries.stop - bin.queries.start > 1 && picture.keys <= WHOLE ? { row: true } : {}),
  };
  const reply = await kernel.request("peak", body, { signal });
  const value = numberIn(reply.value);
  const kind = reply.value === null ? BLOCKED : kindOf(value);
  const query = Number(reply.query ?? bin.queries.start);
  const of: Target = { side: "query", index: query };
  const line = reply.row && (await decodeLine(reply.row, reply.buffers, of, picture.of.stage));
  const key = Number(reply.key ?? bin.keys.start);
  return { bin, value, kind, query, key, row: line && { line, from: picture.of } };
}

function kindOf(value: number): number {
  if (Number.isNaN(value)) return NAN;
  if (value === Number.POSITIVE_INFINITY) return PLUS_INF;
  return value === Number.NEGATIVE_INFINITY ? MINUS_INF : NUMBER;
}

/** Fetch exact numbers for a window of readable cells, if the picture only has colors. */
export function patchSource(store: Store, kernel: Kernel, window: ReadonlySignal<Bin | null>, stop: AbortSignal) {
  const question = computed(() => {
    const picture = store.picture.value;
    return picture === null || picture.exact || window.value === null ? null : { picture, window: window.value };
  });
  return latestAnswer<{ picture: Picture; window: Bin }, Patch>(
    question,
    () => null,
    async ({ picture, window }, signal) => {
      const { queries, keys } = window;
      const body = {
        ...address(picture),
        queries: [queries.start, queries.stop],
        keys: [keys.start, keys.stop],
      };
      const reply = await kernel.request("cells", body, { signal });
      return { ...window, grid: await decodeGrid(reply.values, reply.blocked, reply.buffers) };
    },
    stop,
  );
}

/** Return whether a picture is of the current selection. */
export function isCurrent(store: Store): boolean {
  const picture = store.picture.value;
  return (
    picture !== null &&
    isOf(picture, {
      layer: store.layer.value,
      batch: store.batch.value,
      head: store.pictured.value,
      stage: store.stage.value,
      pool: store.pool.value,
    })
  );
}
