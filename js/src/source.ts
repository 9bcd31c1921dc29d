/** Exact numbers on demand: from the picture where it is exact, else from the kernel; the newest question wins. */

import { computed, effect, type ReadonlySignal, signal } from "@preact/signals-core";
import type { Kernel } from "./kernel";
import type { Stage } from "./model";
import { isOf, type Store } from "./store";
import type { Span } from "./viewport";
import { BLOCKED, decodeGrid, type Grid, MINUS_INF, NAN, NUMBER, type Picture, PLUS_INF } from "./wire";

/** One query over all keys, or one key over all queries. */
export interface Target {
  readonly side: "query" | "key";
  readonly index: number;
}

export interface Line {
  readonly of: Target;
  readonly stage: Stage;
  readonly values: Float32Array;
  readonly kinds: Uint8Array;
}

/** A rectangle of the matrix: one cell, or all that one cell of a pooled picture stands for. */
export interface Bin {
  readonly queries: Span;
  readonly keys: Span;
  /** Where the picture knows only one query of several: how many that one stands for. */
  readonly standsFor?: number;
}

/** The number at a cell, or the greatest in a bin and where it is. */
export interface Reading {
  readonly bin: Bin;
  readonly value: number;
  readonly kind: number;
  readonly query: number;
  readonly key: number;
}

export interface Patch extends Bin {
  readonly grid: Grid;
}

/** What a picture is of, as a request's first fields. */
const address = ({ of }: Picture) => ({
  layer: of.layer,
  batch: of.batch,
  head: of.head,
  stage: of.stage,
});

/** The bin that a cell of the picture stands for. */
export function binOf(picture: Picture, row: number, column: number): Bin {
  const span = (index: number, bin: number, count: number) => ({
    start: index * bin,
    stop: Math.min((index + 1) * bin, count),
  });
  return {
    queries: span(row, picture.queryBin, picture.queries),
    keys: span(column, picture.keyBin, picture.keys),
  };
}

/**
 * Ask anew whenever the question changes; what comes late is dropped, and a kernel that is gone leaves null. The last
 * answer stays until the next one comes: a single number only on the picture that it is of.
 */
function asked<Q extends { picture: Picture }, A>(
  question: ReadonlySignal<Q | null>,
  known: (question: Q) => A | null,
  ask: (question: Q, signal: AbortSignal) => Promise<A | null>,
  stop: AbortSignal,
  { outlives = false } = {},
): ReadonlySignal<A | null> {
  const answer = signal<A | null>(null);
  let last: Picture | null = null;
  const end = effect(() => {
    const now = question.value;
    if (now?.picture !== last && !outlives) answer.value = null;
    last = now?.picture ?? null;
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

const same = (a: object, b: object) => JSON.stringify(a) === JSON.stringify(b);

/** A computed that keeps its old value while the new one says the same. */
export function steady<T extends object>(compute: () => T | null): ReadonlySignal<T | null> {
  let last: T | null = null;
  return computed(() => {
    const next = compute();
    if (next !== null && last !== null && same(next, last)) return last;
    last = next;
    return next;
  });
}

export function lineSource(store: Store, kernel: Kernel, target: ReadonlySignal<Target | null>, stop: AbortSignal) {
  const question = computed(() => {
    const picture = store.picture.value;
    return picture === null || target.value === null ? null : { picture, target: target.value };
  });
  return asked<{ picture: Picture; target: Target }, Line>(
    question,
    ({ picture, target }) => (picture.exact ? lineOf(picture, target) : null),
    async ({ picture, target }, signal) => {
      const body = {
        ...address(picture),
        ...(target.side === "query" ? { query: target.index } : { key: target.index }),
      };
      const reply = await kernel.request(target.side === "query" ? "row" : "column", body, { signal });
      const grid = await decodeGrid(reply.values, reply.blocked, reply.buffers);
      return { of: target, stage: picture.of.stage, values: grid.values, kinds: grid.kinds };
    },
    stop,
    { outlives: true }, // a list that vanished between two heads would move what stands under it
  );
}

/** A row or column of one head. */
export interface HeadTarget extends Target {
  readonly head: number;
}

const REMEMBERED = 512; // rows and columns that are kept

/** Several rows or columns, of several heads: those that are known at once, the others as they come. */
export function linesSource(
  store: Store,
  kernel: Kernel,
  wanted: ReadonlySignal<readonly HeadTarget[]>,
  stage: ReadonlySignal<Stage>,
  stop: AbortSignal,
): ReadonlySignal<readonly (Line | null)[]> {
  const known = new Map<string, Line>();
  const arrivals = signal(0);
  const nameOf = ({ head, side, index }: HeadTarget) =>
    [store.facts.value.version, store.layer.value, store.batch.value, stage.value, head, side, index].join(" ");
  const find = (target: HeadTarget): Line | null => {
    const picture = store.picture.value;
    const { layer, batch, head } = picture?.of ?? {};
    const here = layer === store.layer.value && batch === store.batch.value && head === target.head;
    if (picture?.exact && here && picture.of.stage === stage.value) return lineOf(picture, target);
    return known.get(nameOf(target)) ?? null;
  };
  const end = effect(() => {
    const current = new AbortController();
    for (const target of wanted.value) {
      if (find(target) !== null) continue;
      const name = nameOf(target);
      const place = target.side === "query" ? { query: target.index } : { key: target.index };
      const { layer, batch } = store;
      const body = { layer: layer.value, batch: batch.value, head: target.head, stage: stage.value, ...place };
      kernel
        .request(target.side === "query" ? "row" : "column", body, { signal: current.signal })
        .then((reply) => decodeGrid(reply.values, reply.blocked, reply.buffers))
        .then(({ values, kinds }) => {
          known.set(name, { of: target, stage: body.stage, values, kinds });
          if (known.size > REMEMBERED) known.delete(known.keys().next().value as string);
          arrivals.value++;
        })
        .catch(() => {}); // the kernel's state says why
    }
    return () => current.abort();
  });
  stop.addEventListener("abort", end, { once: true });
  return computed(() => {
    void arrivals.value;
    return wanted.value.map(find);
  });
}

/** A row or column of a picture that is exact. */
export function lineOf(picture: Picture, target: Target): Line | null {
  const grid = picture.grid;
  if (grid === null) return null;
  const { rows, columns } = grid;
  const of = target;
  const stage = picture.of.stage;
  if (target.side === "query") {
    if (target.index >= rows) return null;
    const from = target.index * columns;
    return {
      of,
      stage,
      values: grid.values.subarray(from, from + columns),
      kinds: grid.kinds.subarray(from, from + columns),
    };
  }
  if (target.index >= columns) return null;
  const values = new Float32Array(rows);
  const kinds = new Uint8Array(rows);
  for (let row = 0; row < rows; row++) {
    values[row] = grid.values[row * columns + target.index]!;
    kinds[row] = grid.kinds[row * columns + target.index]!;
  }
  return { of, stage, values, kinds };
}

export function readingSource(store: Store, kernel: Kernel, bin: ReadonlySignal<Bin | null>, stop: AbortSignal) {
  const question = computed(() => {
    const picture = store.picture.value;
    return picture === null || bin.value === null ? null : { picture, bin: bin.value };
  });
  return asked<{ picture: Picture; bin: Bin }, Reading>(
    question,
    ({ picture, bin }) => {
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
    async ({ picture, bin }, signal) => peak(kernel, picture, bin, signal),
    stop,
  );
}

/** The greatest number in a bin, from the kernel. */
export async function peak(kernel: Kernel, picture: Picture, bin: Bin, signal: AbortSignal): Promise<Reading> {
  const body = {
    ...address(picture),
    queries: [bin.queries.start, bin.queries.stop],
    keys: [bin.keys.start, bin.keys.stop],
  };
  const reply = await kernel.request("peak", body, { signal });
  const value = reply.value === null ? Number.NaN : Number(String(reply.value).replace("inf", "Infinity"));
  const kind = reply.value === null ? BLOCKED : kindOf(value);
  return {
    bin,
    value,
    kind,
    query: Number(reply.query ?? bin.queries.start),
    key: Number(reply.key ?? bin.keys.start),
  };
}

function kindOf(value: number): number {
  if (Number.isNaN(value)) return NAN;
  if (value === Number.POSITIVE_INFINITY) return PLUS_INF;
  return value === Number.NEGATIVE_INFINITY ? MINUS_INF : NUMBER;
}

/** Exact numbers for a window of cells that a person could read, where the picture only has colours. */
export function patchSource(store: Store, kernel: Kernel, window: ReadonlySignal<Bin | null>, stop: AbortSignal) {
  const question = computed(() => {
    const picture = store.picture.value;
    return picture === null || picture.exact || window.value === null ? null : { picture, window: window.value };
  });
  return asked<{ picture: Picture; window: Bin }, Patch>(
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

/** Whether what a picture shows is what is selected. */
export function isCurrent(store: Store): boolean {
  const picture = store.picture.value;
  return (
    picture !== null &&
    isOf(picture, {
      layer: store.layer.value,
      batch: store.batch.value,
      head: store.head.value,
      stage: store.stage.value,
      pool: store.pool.value,
    })
  );
}
