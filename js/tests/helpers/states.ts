/**
 * A whole state of the widget from a small matrix, and a Python that answers from it.
 *
 *     const state = stateOf(CAUSAL, { query: 2 });
 *     const host = createHost(state, python(state, ({ head }) => HEADS[head]));
 */

import { BLOCKED, NAN, NUMBER } from "../../src/contract/decode";
import type {
  Envelope,
  Facts,
  LinksMessage,
  PictureMessage,
  Quantisation,
  TokensMessage,
} from "../../src/contract/messages";
import type { Traits } from "../../src/contract/traits";
import type { Side, Stage } from "../../src/contract/values";
import { type Ranking, rank } from "../../src/data/rank";
import type { HostOptions, HostRequest } from "../../src/kernel/host";

/** A matrix by rows; null is a blocked cell. */
export type Cells = readonly (readonly (number | null)[])[];
export const X = null;

/** Four words, each of which attends to itself and what stands before it. */
export const CAUSAL: Cells = [
  [1, X, X, X],
  [0.25, 0.75, X, X],
  [0.5, 0.3, 0.2, X],
  [0.1, 0.2, 0.3, 0.4],
];
export const WORDS = ["the", "bank", "lent", "money"];

/** The same numbers each time, from 0 to 1. */
export function random(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

/** Rows of weights, each of which sums to 1. */
export function weights(rows: number, columns: number, seed = 1): number[][] {
  const next = random(seed);
  return Array.from({ length: rows }, () => {
    const row = Array.from({ length: columns }, () => Math.exp(6 * next()));
    const sum = row.reduce((a, b) => a + b, 0);
    return row.map((value) => value / sum);
  });
}

// --- envelopes --------------------------------------------------------------------------------------------------------

const view = (data: ArrayBufferView) => new DataView(data.buffer, data.byteOffset, data.byteLength);
const shapeOf = (cells: Cells) => [cells.length, cells[0]?.length ?? 0];
const isBlocked = (cell: number | null) => cell === null;

export function floats(numbers: readonly (number | null)[], shape = [numbers.length]): Envelope {
  const data = Float32Array.from(numbers, (cell) => cell ?? 0);
  return { data: view(data), dtype: "float32", shape: [...shape], deflated: false };
}

/** Which cells are blocked, packed as `numpy.packbits` does; null if none is. */
export function bits(cells: readonly (number | null)[], shape = [cells.length]): Envelope | null {
  if (!cells.some(isBlocked)) return null;
  const packed = new Uint8Array(Math.ceil(cells.length / 8));
  cells.forEach((cell, at) => {
    if (isBlocked(cell)) packed[at >> 3]! |= 0x80 >> (at & 7);
  });
  return { data: view(packed), dtype: "bits", shape: [...shape], deflated: false };
}

function codeOf(cell: number | null, { kind, high, octaves = 1 }: Quantisation): number {
  if (cell === null) return 252;
  if (Number.isNaN(cell)) return 253;
  if (!Number.isFinite(cell)) return cell > 0 ? 254 : 255;
  if (kind === "linear") return 125 + Math.round((124 * cell) / high);
  if (cell === 0) return 0;
  if (kind === "unit") return Math.round((250 * cell) / high);
  return Math.max(1, Math.round(250 + (249 * Math.log2(cell / high)) / octaves));
}

export function codes(cells: readonly (number | null)[], shape: number[], scale: Quantisation): Envelope {
  const data = Uint8Array.from(cells, (cell) => codeOf(cell, scale));
  return { data: view(data), dtype: "uint8", shape, deflated: false, scale };
}

export function tokensOf(words: readonly string[]): TokensMessage {
  const parts = words.map((word) => new TextEncoder().encode(word));
  const ends = new Uint32Array(parts.length);
  let end = 0;
  parts.forEach((part, at) => {
    end += part.length;
    ends[at] = end;
  });
  const text = new Uint8Array(end);
  for (const [at, part] of parts.entries()) text.set(part, ends[at]! - part.length);
  return { text: view(text), ends: { data: view(ends), dtype: "uint32", shape: [ends.length], deflated: false } };
}

// --- pictures ---------------------------------------------------------------------------------------------------------

type Of = Pick<PictureMessage, "layer" | "batch" | "stage" | "pool"> & { head: number };
const OF: Of = { layer: 0, batch: 0, head: 0, stage: "weights", pool: "max" };

function ends(cells: Cells) {
  const finite = cells.flat().filter((cell): cell is number => cell !== null && Number.isFinite(cell));
  if (finite.length === 0) return { low: null, high: null };
  return {
    low: finite.reduce((a, b) => Math.min(a, b)),
    high: finite.reduce((a, b) => Math.max(a, b)),
  };
}

/** The matrix itself, as float32. */
export function pictureOf(cells: Cells, of: Partial<Of> = {}): PictureMessage {
  const shape = shapeOf(cells);
  const flat = cells.flat();
  return {
    ...OF,
    ...of,
    queries: shape[0]!,
    keys: shape[1]!,
    query_bin: 1,
    key_bin: 1,
    ...ends(cells),
    values: floats(flat, shape),
    blocked: bits(flat, shape),
    error: null,
  };
}

/** The greatest of each bin × bin cells; blocked where all of them are. */
export function pooled(cells: Cells, bin: number): (number | null)[][] {
  const [rows, columns] = shapeOf(cells) as [number, number];
  return Array.from({ length: Math.ceil(rows / bin) }, (_, row) =>
    Array.from({ length: Math.ceil(columns / bin) }, (_, column) => {
      const inside = cells
        .slice(row * bin, (row + 1) * bin)
        .flatMap((line) => line.slice(column * bin, (column + 1) * bin))
        .filter((cell) => cell !== null);
      return inside.length === 0 ? null : Math.max(...inside);
    }),
  );
}

/** As Python sends what is too large for float32: a byte for each cell, each of them for bin × bin of the matrix. */
export function quantised(cells: Cells, of: Partial<Of> = {}, bin = 1): PictureMessage {
  const small = bin === 1 ? cells : pooled(cells, bin);
  const whole = { ...pictureOf(cells, of), ...ends(small), query_bin: bin, key_bin: bin, blocked: null };
  const most = Math.max(Math.abs(whole.low ?? 0), Math.abs(whole.high ?? 0)) || 1;
  const scale: Quantisation =
    whole.stage === "weights" ? { kind: "log", high: most, octaves: 24 } : { kind: "linear", high: most };
  return { ...whole, values: codes(small.flat(), shapeOf(small), scale) };
}

/** What Python sends for a head that it cannot compute. */
export function failed(error: string, of: Partial<Of> = {}, cells: Cells = CAUSAL): PictureMessage {
  return { ...pictureOf(cells, of), low: null, high: null, values: null, blocked: null, error };
}

/** The strongest partners of every query (of every key) in each of `heads`, as Python sends them. */
export function linksOf(
  draw: (head: number) => Cells,
  heads: readonly number[],
  { side = "query" as Side, count = 3, layer = 0 } = {},
): LinksMessage {
  const found = heads.flatMap((head) => {
    const cells = draw(head);
    const lines = side === "query" ? cells : (cells[0] ?? []).map((_, key) => cells.map((row) => row[key] ?? null));
    return lines.map((line) => {
      const known = line.map((cell, partner) => ({ partner, weight: cell !== null && cell > 0 ? cell : 0 }));
      return known.sort((a, b) => b.weight - a.weight).slice(0, count);
    });
  });
  const flat = found.flat();
  const shape = [heads.length, found.length / heads.length, flat.length / found.length];
  const partners = Uint32Array.from(flat, ({ partner }) => partner);
  const strengths = flat.map(({ weight }) => weight);
  return {
    layer,
    batch: 0,
    heads: [...heads],
    side,
    partners: { data: view(partners), dtype: "uint32", shape, deflated: false },
    weights: floats(strengths, shape),
  };
}

export function factsOf(cells: Cells, facts: Partial<Facts> = {}): Facts {
  const [queries, keys] = shapeOf(cells) as [number, number];
  return {
    version: 0,
    layers: ["layer 0", "layer 1"],
    batches: 1,
    heads: 4,
    groups: facts.heads ?? 4,
    queries,
    keys,
    head_size: 8,
    value_size: 8,
    dtype: "float32",
    device: "cpu",
    is_causal: false,
    stages: ["weights", "scores", "scaled", "masked"],
    ...facts,
  };
}

let widgets = 0;

/** The one pin that Python makes of a query and a key. */
function pinsOf({ query = null, key = null }: Partial<Traits>): Traits["pins"] {
  return query === null && key === null ? [] : [[query, key]];
}

/** Everything that Python has sent before the first view is drawn. */
export function stateOf(cells: Cells, changes: Partial<Traits> = {}): Traits {
  const facts = changes.facts ?? factsOf(cells);
  const of: Partial<Of> = {
    layer: changes.layer ?? 0,
    batch: changes.batch ?? 0,
    head: changes.head ?? 0,
    stage: changes.stage ?? "weights",
    pool: changes.pool ?? "max",
  };
  const words = (count: number) => (count === WORDS.length ? tokensOf(WORDS) : null);
  return {
    uid: `widget ${++widgets}`,
    title: "",
    ...OF,
    query: null,
    key: null,
    heads: [changes.head ?? 0],
    pins: pinsOf(changes),
    view: "heatmap",
    color_scale: "linear",
    color_range: "head",
    palette: "attnwidget",
    theme: "light",
    top_k: null,
    threshold: 0.02,
    direction: "query",
    bar: "entropy",
    order: "layer",
    combine: "none",
    links: null,
    survey: null,
    facts,
    picture: pictureOf(cells, of),
    thumbnails: {
      layer: 0,
      batch: 0,
      values: codes(
        Array.from({ length: facts.heads * 4 }, (_, at) => (at % 4) / 3),
        [facts.heads, 2, 2],
        { kind: "unit", high: 1 },
      ),
    },
    tokens: words(facts.queries),
    key_tokens: words(facts.keys),
    progress: null,
    what_if: {},
    stages: null,
    pair: null,
    sides: [],
    against: "",
    comparison: null,
    changes: null,
    findings: [],
    deviation: null,
    ...changes,
  };
}

// --- Python -----------------------------------------------------------------------------------------------------------

/** Which matrix a selection has. */
export type Draw = (of: { layer: number; batch: number; head: number; stage: Stage }) => Cells;
type Encode = (cells: Cells, of: Partial<Of>) => PictureMessage;

const wait = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

/** Exact answers to row, column, cells, peak, ranked and strongest. */
export function answers(draw: Draw): NonNullable<HostOptions["answer"]> {
  return (request) => {
    const cells = draw(request as never);
    const numbers = (flat: readonly (number | null)[], shape?: number[]) => ({
      values: floats(flat, shape),
      blocked: bits(flat, shape),
    });
    if (request.kind === "ranked") return rankedOf(cells, request);
    if (request.kind === "strongest") return strongestOf(cells, request);
    if (request.kind === "row") return numbers(cells[request.query as number]!);
    if (request.kind === "column") return numbers(cells.map((row) => row[request.key as number]!));
    const [queries, keys] = [request.queries, request.keys] as [number, number][];
    if (request.kind === "cells") {
      const inside = cells.slice(...queries!).map((row) => row.slice(...keys!));
      return numbers(inside.flat(), shapeOf(inside));
    }
    if (request.kind !== "peak") return {};
    const found = peakOf(cells, queries!, keys!);
    return request.row && found.query !== null ? { ...found, row: numbers(cells[found.query]!) } : found;
  };
}

/** The strongest of a row or column, or of several taken together, and sums over all. */
export function rankedOf(cells: Cells, request: { [field: string]: unknown }) {
  const { queries, keys, over, count } = request as {
    queries?: number[];
    keys?: number[];
    over?: string;
    count: number;
  };
  const lines = queries
    ? queries.map((query) => cells[query]!)
    : keys!.map((key) => cells.map((row) => row[key] ?? null));
  const together = lines[0]!.map((_, at) => {
    const open = lines.map((line) => line[at]!).filter((cell) => cell !== null);
    const sum = open.reduce((a, b) => a + b, 0);
    return open.length === 0 ? null : over === "mean" ? sum / lines.length : sum;
  });
  const values = Float32Array.from(together, (cell) => cell ?? Number.NaN);
  const kinds = Uint8Array.from(together, (cell) => (cell === null ? BLOCKED : Number.isNaN(cell) ? NAN : NUMBER));
  return rankedReply(rank(values, kinds, count));
}

export function rankedReply({ top, values, maxEntropy, ...sums }: Ranking) {
  const positions = Uint32Array.from(top);
  return {
    ...sums,
    max_entropy: maxEntropy,
    positions: { data: view(positions), dtype: "uint32", shape: [top.length], deflated: false },
    values: floats(values),
  };
}

function strongestOf(cells: Cells, { count, skip_first }: { [field: string]: unknown }) {
  const pairs = cells.flatMap((row, query) =>
    row.flatMap((weight, key) => (weight === null || (skip_first && key === 0) ? [] : [[query, key, weight] as const])),
  );
  return { pairs: pairs.sort((a, b) => b[2] - a[2]).slice(0, count as number) };
}

/** Some tokens of a sequence, and where a text is among them, as Python sends them. */
export function tokenAnswers(words: readonly string[]): NonNullable<HostOptions["answer"]> {
  return ({ kind, start, stop, text, count }) => {
    const from = start as number;
    if (kind === "tokens") {
      const { text, ends } = tokensOf(words.slice(from, stop as number));
      return { text, ends };
    }
    if (kind !== "find") throw new Error(`this Python knows only tokens, not ${kind}`);
    const wanted = (text as string).toLowerCase();
    const round = words.map((_, at) => (from + at) % words.length);
    const whole = round.filter((at) => words[at]!.toLowerCase() === wanted);
    const part = round.filter((at) => words[at]!.toLowerCase().includes(wanted) && !whole.includes(at));
    const positions = [...whole, ...part];
    return { positions: positions.slice(0, count as number), total: positions.length };
  };
}

function peakOf(cells: Cells, queries: [number, number], keys: [number, number]) {
  let best: { value: number | null; query: number | null; key: number | null } = {
    value: null,
    query: null,
    key: null,
  };
  for (let query = queries[0]; query < queries[1]; query++) {
    for (let key = keys[0]; key < keys[1]; key++) {
      const value = cells[query]![key]!;
      if (value !== null && (best.value === null || !(value <= best.value))) best = { value, query, key };
    }
  }
  // JSON has no NaN and no infinity: Python sends their names.
  const named = best.value !== null && !Number.isFinite(best.value);
  return { ...best, value: named ? String(best.value).replace("Infinity", "inf").toLowerCase() : best.value };
}

/** What a Python that holds `draw` does with requests and with what is set; `delay` is how long it takes, one by one. */
export function python(
  state: Partial<Traits>,
  draw: Draw,
  { delay = 0, encode = pictureOf, answer = answers(draw) }: { delay?: number; encode?: Encode; answer?: Answer } = {},
): HostOptions {
  const now: Of = { ...OF, ...(state as Of) };
  let turn: Promise<unknown> = Promise.resolve();
  return {
    delay,
    answer,
    take(changes) {
      const wanted = (Object.keys(OF) as (keyof Of)[]).filter((name) => name in changes);
      if (wanted.length === 0) return undefined;
      Object.assign(now, Object.fromEntries(wanted.map((name) => [name, changes[name]])));
      const of = { layer: now.layer, batch: now.batch, head: now.head, stage: now.stage, pool: now.pool };
      const mine = turn.then(async () => {
        if (delay > 0) await wait(delay);
        return { picture: encode(draw(of), of) };
      });
      turn = mine;
      return mine;
    },
  };
}
type Answer = NonNullable<HostOptions["answer"]>;

/** All requests of some kinds that were sent; pings are left out, and what a page says of itself. */
export function asked(sent: readonly unknown[], ...kinds: string[]): HostRequest[] {
  const all = (sent as { requests?: HostRequest[] }[]).flatMap(({ requests = [] }) => requests);
  return all.filter(({ kind }) => (kinds.length === 0 ? kind !== "ping" : kinds.includes(kind)));
}
