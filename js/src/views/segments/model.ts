/**
 * The segments view's state as signals: masses after exclusion, pinned columns, all heads in order.
 */

import { computed, effect, type ReadonlySignal, type Signal, signal } from "@preact/signals-core";
import { isSigned } from "../../contract/stages";
import type { Measure, Stage } from "../../contract/values";
import {
  type HeadMass,
  type Mass,
  type MassColumns,
  type Masses,
  putRow,
  type Segments,
} from "../../data/segment-data";
import { byLargest, evenAt, type Left, leftOf, measureOf, type Rest, readingAt, restOf } from "../../data/segments";
import type { HeadOf } from "../../data/survey";
import { askColumns, askHeads, askRow, windowOf } from "../../state/segment-queries";
import type { Ui } from "../../state/ui";
import { COLORED_COLUMNS } from "./drawing/layout";

/** The place of pointer or keyboard: a column, in a token of the answer, in a row of the matrix, or in a head. */
export interface Spot {
  readonly part: "tokens" | "matrix" | "heads" | "list";
  /** −1 if it is over none. */
  readonly column: number;
  readonly token?: number;
  readonly row?: number;
  readonly head?: number;
}

/** One row of masses after exclusion. */
export interface RestRow {
  readonly rest: Rest;
  readonly row: number;
}

/** All heads, and where the asking segment's mass lies. */
export interface HeadTable {
  readonly heads: readonly HeadOf[];
  readonly rest: Rest;
  /** For each column of the mass, its index here; −1 if unknown. */
  readonly columns: readonly number[];
  readonly sizes: readonly number[];
  readonly share: number;
}

export interface SegmentsModel {
  /** Without an error; null until there is one. */
  readonly mass: ReadonlySignal<Mass | null>;
  readonly segments: ReadonlySignal<Segments | null>;
  /** Never lift for stages without lift. */
  readonly measure: ReadonlySignal<Measure>;
  /** The summed stage, and whether its sums are shares, or signed. */
  readonly stage: ReadonlySignal<Stage>;
  readonly shares: ReadonlySignal<boolean>;
  readonly signed: ReadonlySignal<boolean>;
  readonly left: ReadonlySignal<Left>;
  /** The pinned column (−1 for none), and a second one on top of it. */
  readonly pinned: ReadonlySignal<number>;
  readonly second: Signal<number>;
  /** The segment pinned inside others before going up, by their path, restored on going down again. */
  readonly lastInside: Map<string, string>;
  /** The pinned token's number in the asking segment, −1 for none. */
  readonly token: ReadonlySignal<number>;
  readonly hover: Signal<Spot | null>;
  readonly matrix: ReadonlySignal<Rest | null>;
  /** Whether a row has its numbers, not only their colors. */
  isExact(row: number): boolean;
  /** The rows of the matrix that are not excluded. */
  readonly rows: ReadonlySignal<readonly number[]>;
  /** The asking segment as a whole. */
  readonly whole: ReadonlySignal<RestRow | null>;
  tokenRow(at: number): RestRow | null;
  /** Request the masses of some tokens. */
  wantTokens(start: number, stop: number): void;
  readonly heads: ReadonlySignal<HeadTable | null>;
  /** Columns of the heads' table: all, or if there are many, those with a color and the pinned one. */
  readonly headColumns: ReadonlySignal<readonly number[]>;
  readonly reversed: Signal<boolean>;
  /** Rows of the heads' table, in their order. */
  readonly headOrder: ReadonlySignal<readonly number[]>;
  reading(at: RestRow, column: number): number;
  even(at: RestRow, column: number): number;
  /** A head's number in a column of the mass. */
  headReading(table: HeadTable, row: number, column: number): number;
}

/** Return the signals of the segments view. */
export function segmentsModel(ui: Ui): SegmentsModel {
  const { store } = ui;
  const mass = computed(() => (store.mass.value?.error === null ? store.mass.value : null));
  const stage = computed<Stage>(() => mass.value?.stage ?? "weights");
  const shares = computed(() => stage.value === "weights");
  const measure = computed<Measure>(() => measureOf(store.measure.value, stage.value));
  const left = computed<Left>(() => leftOf(mass.value?.keys ?? [], store.aside.value ?? []));
  const pinned = computed(() => {
    const at = mass.value?.keys.indexOf(store.segment.value ?? "") ?? -1;
    return left.value.columns.includes(at) ? at : -1;
  });
  const second = signal(-1);
  const hover = signal<Spot | null>(null);
  const masses = exactWherePointed(ui, mass, hover);
  const matrix = computed(() =>
    masses.value.matrix ? restOf(masses.value.matrix, left.value, { own: "each", shares: shares.value }) : null,
  );
  const tokens = tokenRows(ui, mass, left);
  const sizesOf = () => mass.value?.keySizes ?? [];
  const read = ({ rest, row }: RestRow, column: number) => readingAt(rest, sizesOf(), row, column, measure.value);
  const headParts = headTable(ui, { mass, left, measure, pinned });
  const signs = { stage, shares, signed: computed(() => isSigned(stage.value)) };
  return {
    ...{ mass, measure, left, pinned, second, matrix, ...signs, ...tokens, ...headParts },
    lastInside: ui.insidePins,
    segments: computed(() => (store.segments.value?.error === null ? store.segments.value : null)),
    token: computed(() => {
      const at = store.query.value;
      return at === null ? -1 : (mass.value?.positions.indexOf(at) ?? -1);
    }),
    hover,
    isExact: (row) => mass.value?.exact === true || masses.value.rows.has(row),
    rows: computed(() => {
      const now = mass.value;
      if (now === null) return [];
      const out = new Set(left.value.without.map((column) => now.keys[column]));
      return now.rows.map((_, row) => row).filter((row) => !out.has(now.rows[row]));
    }),
    whole: computed(() => (matrix.value === null ? null : { rest: matrix.value, row: mass.value?.row ?? 0 })),
    reading: read,
    even: ({ rest, row }, column) => evenAt(rest, sizesOf(), row, column, measure.value),
  };
}

/**
 * The matrix; if it was sent rounded, with exact numbers in the asking segment's row and in rows pointed at.
 */
function exactWherePointed(ui: Ui, mass: ReadonlySignal<Mass | null>, hover: ReadonlySignal<Spot | null>) {
  const found = signal<{ readonly of: Mass | null; readonly rows: ReadonlySet<number> }>({ of: null, rows: new Set() });
  const masses = computed(() => {
    const now = mass.value;
    const rows = found.value.of === now ? found.value.rows : new Set([now?.row ?? -1]);
    return { matrix: now?.matrix, rows };
  });
  const pointed = computed(() => (hover.value?.part === "matrix" ? (hover.value.row ?? -1) : -1));
  const end = effect(() => {
    const [now, row] = [mass.value, pointed.value];
    if (now === null || now.exact || row < 0 || masses.peek().rows.has(row) || ui.kernel.away.value) return;
    const current = new AbortController();
    askRow(ui.kernel, now, row, current.signal).then(
      (exact) => {
        if (current.signal.aborted) return;
        putRow(now.matrix, row, exact);
        found.value = { of: now, rows: new Set([...masses.peek().rows, row]) };
      },
      () => {}, // the kernel's state tells why
    );
    return () => current.abort();
  });
  ui.stop.addEventListener("abort", end, { once: true });
  return masses;
}

/** The masses of the answer's tokens: the first were sent, the others are requested as they come into view. */
function tokenRows(ui: Ui, mass: ReadonlySignal<Mass | null>, left: ReadonlySignal<Left>) {
  const blocks = signal<readonly MassColumns[]>([]);
  const asked = new Set<number>();
  let asking = new AbortController();
  const end = effect(() => {
    const now = mass.value;
    asking.abort();
    asking = new AbortController();
    asked.clear();
    blocks.value = now === null ? [] : [now.first];
    return () => asking.abort();
  });
  ui.stop.addEventListener("abort", end, { once: true });

  const rests = new WeakMap<MassColumns, { left: Left; rest: Rest }>();
  const restOfBlock = (block: MassColumns) => {
    const known = rests.get(block);
    if (known?.left === left.value) return known.rest;
    const rest = restOf(block, left.value, { own: block.own, shares: mass.value?.stage === "weights" });
    rests.set(block, { left: left.value, rest });
    return rest;
  };
  const blockAt = (at: number) => blocks.value.find(({ start, rows }) => at >= start && at < start + rows);

  async function ask(now: Mass, from: number, to: number, signal: AbortSignal): Promise<void> {
    const found = await askColumns(ui.kernel, now, [from, to], signal);
    if (!signal.aborted) blocks.value = [...blocks.value, found];
  }

  return {
    tokenRow(at: number): RestRow | null {
      const block = blockAt(at);
      return block === undefined ? null : { rest: restOfBlock(block), row: at - block.start };
    },
    wantTokens(start: number, stop: number): void {
      const now = mass.peek();
      if (now === null || ui.kernel.away.peek()) return;
      const many = windowOf(now);
      const from = Math.max(start, now.first.rows);
      for (let window = Math.floor(from / many); window * many < Math.min(stop, now.total); window++) {
        const [first, last] = [Math.max(window * many, now.first.rows), Math.min((window + 1) * many, now.total)];
        if (asked.has(window) || first >= last) continue;
        asked.add(window);
        ask(now, first, last, asking.signal).catch(() => asked.delete(window)); // the kernel's state tells why
      }
    },
  };
}

interface HeadParts {
  readonly mass: ReadonlySignal<Mass | null>;
  readonly left: ReadonlySignal<Left>;
  readonly measure: ReadonlySignal<Measure>;
  readonly pinned: ReadonlySignal<number>;
}

function headTable(ui: Ui, { mass, left, measure, pinned }: HeadParts) {
  const { store, kernel, stop } = ui;
  const reversed = signal(false);
  const sent = computed<HeadMass | null>(() => {
    const [now, heads] = [mass.value, store.headMass.value];
    if (now === null || heads === null || heads.error !== null || heads.asking !== now.asking) return null;
    if (heads.askingPath.join("\n") !== now.askingPath.join("\n")) return null;
    if (heads.stage !== now.stage) return null;
    return heads.path.join("\n") === now.path.join("\n") ? heads : null;
  });
  const headColumns = computed<readonly number[]>(() => {
    const { columns } = left.value;
    const colors = mass.value?.keyColors ?? [];
    if (columns.length <= COLORED_COLUMNS + 1) return columns;
    return columns.filter((column) => (colors[column] ?? -1) >= 0 || column === pinned.value);
  });
  // If there are very many segments, not all columns are sent: excluded and shown ones are requested.
  const more = signal<{ of: HeadMass; columns: readonly number[]; masses: Masses } | null>(null);
  const end = effect(() => {
    const [now, heads] = [mass.value, sent.value];
    if (now === null || heads === null || kernel.away.value) return;
    const there = new Set(heads.keys);
    const wanted = [...new Set([...headColumns.value, ...left.value.without])];
    const missing = wanted.filter((column) => !there.has(now.keys[column]!)).slice(0, MOST_ASKED);
    const known = more.peek();
    if (missing.length === 0 || (known?.of === heads && missing.every((one) => known.columns.includes(one)))) return;
    const current = new AbortController();
    askHeads(kernel, heads, missing, current.signal).then(
      (masses) => {
        if (!current.signal.aborted) more.value = { of: heads, columns: missing, masses };
      },
      () => {},
    );
    return () => current.abort();
  });
  stop.addEventListener("abort", end, { once: true });

  const heads = computed<HeadTable | null>(() => {
    const [now, from] = [mass.value, sent.value];
    if (now === null || from === null) return null;
    const also = more.value?.of === from ? more.value : null;
    const names = [...from.keys, ...(also?.columns ?? []).map((column) => now.keys[column]!)];
    const masses = also === null ? from.masses : beside(from.masses, also.masses);
    const out = leftOf(names, store.aside.value ?? []);
    const sums = names.length === now.keys.length ? null : from.sums;
    return {
      heads: from.heads,
      rest: restOf(masses, out, { own: "each", sums, shares: from.stage === "weights" }),
      columns: now.keys.map((name) => names.indexOf(name)),
      sizes: names.map((name) => now.keySizes[now.keys.indexOf(name)] ?? 0),
      share: from.share,
    };
  });
  const headReading = (table: HeadTable, row: number, column: number) => {
    const at = table.columns[column] ?? -1;
    return at < 0 ? Number.NaN : readingAt(table.rest, table.sizes, row, at, measure.value);
  };
  const headOrder = computed<readonly number[]>(() => {
    const table = heads.value;
    if (table === null) return [];
    const all = table.heads.map((_, row) => row);
    if (pinned.value < 0) return all;
    const sign = reversed.value ? -1 : 1;
    return byLargest(all, (row) => sign * headReading(table, row, pinned.value));
  });
  return { heads, headColumns, headOrder, reversed, headReading };
}

const MOST_ASKED = 16;

/** Return masses with additional columns. */
function beside(first: Masses, second: Masses): Masses {
  const columns = first.columns + second.columns;
  const both = (of: (masses: Masses) => Float32Array) => {
    const all = new Float32Array(first.rows * columns);
    for (let row = 0; row < first.rows; row++) {
      all.set(of(first).subarray(row * first.columns, (row + 1) * first.columns), row * columns);
      all.set(of(second).subarray(row * second.columns, (row + 1) * second.columns), row * columns + first.columns);
    }
    return all;
  };
  return {
    rows: first.rows,
    columns,
    mass: both((one) => one.mass),
    even: both((one) => one.even),
    self: both((one) => one.self),
    selfEven: both((one) => one.selfEven),
  };
}
