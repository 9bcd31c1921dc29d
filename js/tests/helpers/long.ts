/**
 * An invented head of 16,384 tokens, too long to hold as a matrix: every row is made when it is asked for. It has sinks, a
 * local band and, in its second half, which tells the first once more, an induction stripe.
 *
 *     const state = longState({ share: 0.38 });        // the first picture, 38 % of it exact
 *     const host = createHost(state, longPython(state));
 */

import { BLOCKED, NUMBER } from "../../src/contract/decode";
import type { BandMessage, Facts, PictureMessage, Progress, TileAddress } from "../../src/contract/messages";
import type { Traits } from "../../src/contract/traits";
import { rank } from "../../src/data/rank";
import type { HostOptions, HostRequest } from "../../src/kernel/host";
import { bits, codes, factsOf, floats, random, rankedReply, stateOf, tokenAnswers, tokensOf } from "./states.ts";

export const LENGTH = 16_384;
const HALF = LENGTH / 2;
const BIN = 32;
const OCTAVES = 24;
const LOCAL = 24;

const STORY =
  "the miller kept the key of the sluice on a nail beside the door , and when the rain came he would go down to the gate and let the water run".split(
    " ",
  );

/** The same story again and again, with other words strewn in; the second half repeats the first. */
export const TOKENS: readonly string[] = (() => {
  const next = random(5);
  const strewn = "river bank mill wheel stone old night wind over under barn lamp".split(" ");
  const first = Array.from({ length: HALF }, (_, at) =>
    at === 0 ? "[S]" : next() < 0.12 ? strewn[Math.floor(12 * next())]! : STORY[at % STORY.length]!,
  );
  return [...first, ...first.map((word, at) => (at === 0 ? "." : word))];
})();

/** Keys that every later query gives something, and how much. */
const SINKS: readonly (readonly [key: number, share: number])[] = (() => {
  const next = random(9);
  return Array.from({ length: 18 }, () => [Math.floor(LENGTH * next() ** 1.4), 0.004 + 0.07 * next() ** 3] as const);
})();

const hash = (value: number) => {
  const mixed = Math.imul(value ^ (value >>> 15), 0x2c1b3c6d);
  return ((mixed ^ (mixed >>> 12)) >>> 0) / 2 ** 32;
};

/** Where a row is not almost zero, and the little that all its other keys have. */
function rowOf(query: number) {
  const spots = new Map<number, number>();
  const add = (key: number, share: number) => {
    if (key >= 0 && key <= query) spots.set(key, (spots.get(key) ?? 0) + share);
  };
  add(0, 0.12 + 0.6 * hash(query));
  for (const [key, share] of SINKS) add(key, share * (0.3 + hash(query + 31 * key)));
  for (let back = 0; back < LOCAL; back++) add(query - back, 0.35 * hash(7 * query + back) * 0.8 ** back);
  const copied = query - HALF + 1;
  if (query >= HALF && Math.floor(query / 192) % 3 === 0) add(copied, 1.1 * (0.2 + hash(query)));
  const others = query + 1 - spots.size;
  const floor = others > 0 ? 0.12 / others : 0;
  const sum = [...spots.values()].reduce((a, b) => a + b, 0) + others * floor;
  for (const [key, share] of spots) spots.set(key, share / sum);
  return { spots, floor: floor / sum };
}

/** One weight; null above the diagonal. */
export function weightAt(query: number, key: number): number | null {
  if (key > query) return null;
  const { spots, floor } = rowOf(query);
  return spots.get(key) ?? floor;
}

/** The greatest weight in bins of 2^row level × 2^column level, or of any size; null where all are masked. */
function pooled(queries: [number, number], keys: [number, number], across: number, down: number, step = 1) {
  const rows = Math.ceil((queries[1] - queries[0]) / down);
  const columns = Math.ceil((keys[1] - keys[0]) / across);
  const out = new Array<number | null>(rows * columns).fill(null);
  for (let query = queries[0]; query < queries[1]; query += step) {
    const { spots, floor } = rowOf(query);
    const from = Math.floor((query - queries[0]) / down) * columns;
    const open = Math.min(columns, Math.floor((query - keys[0]) / across) + 1);
    for (let column = 0; column < open; column++) out[from + column] = Math.max(out[from + column] ?? 0, floor);
    for (const [key, weight] of spots) {
      if (key < keys[0] || key >= keys[1]) continue;
      const at = from + Math.floor((key - keys[0]) / across);
      out[at] = across * down === 1 ? weight : Math.max(out[at] ?? 0, weight);
    }
  }
  return out;
}

const SIDE = LENGTH / BIN;
const HIGH = 0.62;

/** The message that makes some rows of the picture exact. */
export function longBand(start: number, stop: number): { band: BandMessage } {
  const cells = pooled([start * BIN, stop * BIN], [0, LENGTH], BIN, BIN);
  const values = codes(cells, [stop - start, SIDE], { kind: "log", high: HIGH, octaves: OCTAVES });
  const of = { layer: 4, batch: 0, head: 6, stage: "weights", pool: "max" } as const;
  return { band: { ...of, version: 0, start, stop, low: 0, high: HIGH, values } };
}

const pictures = new Map<number, PictureMessage>();

/** The picture as it is after so many of its rows are exact; the others are of one query each. */
export function longPicture(exact: number): PictureMessage {
  const known = pictures.get(exact) ?? pictureAfter(exact);
  pictures.set(exact, known);
  return { ...known };
}

function pictureAfter(exact: number): PictureMessage {
  const first = BIN / 2;
  const done = pooled([0, exact * BIN], [0, LENGTH], BIN, BIN);
  const rest = Array.from({ length: SIDE - exact }, (_, at) => {
    const query = first + (exact + at) * BIN;
    return pooled([query, query + 1], [0, LENGTH], BIN, 1);
  });
  return {
    layer: 4,
    batch: 0,
    head: 6,
    stage: "weights",
    pool: "max",
    queries: LENGTH,
    keys: LENGTH,
    query_bin: BIN,
    key_bin: BIN,
    low: 0,
    high: HIGH,
    sampled: exact < SIDE ? { first, every: BIN, exact } : null,
    values: codes([...done, ...rest.flat()], [SIDE, SIDE], { kind: "log", high: HIGH, octaves: OCTAVES }),
    blocked: null,
    error: null,
  };
}

export function longFacts(facts: Partial<Facts> = {}): Facts {
  return factsOf([], {
    layers: Array.from({ length: 6 }, (_, layer) => `layer ${layer}`),
    heads: 12,
    groups: 12,
    queries: LENGTH,
    keys: LENGTH,
    head_size: 64,
    value_size: 64,
    dtype: "bfloat16",
    device: "cuda:0",
    is_causal: true,
    ...facts,
  });
}

/** The share of a causal head's cells that stand in its first rows is the square of theirs. */
const rowsFor = (share: number) => Math.round(SIDE * Math.sqrt(share));

/** Of twelve heads that differ little, from few of their rows. */
const THUMBNAILS = codes(
  Array.from({ length: 12 }, (_, head) =>
    pooled([0, LENGTH], [0, LENGTH], LENGTH / 16, LENGTH / 16, 397 + head),
  ).flat(),
  [12, 16, 16],
  { kind: "unit", high: 1 },
);
const MESSAGE = tokensOf(TOKENS);

/** The head while `share` of it is computed; with a share of 1 it is exact. */
export function longState({ share = 1, ...changes }: Partial<Traits> & { share?: number } = {}): Traits {
  const progress: Progress | null =
    share < 1
      ? { layer: 4, batch: 0, head: 6, stage: "weights", pool: "max", share, seconds_left: 4, state: "running" }
      : null;
  return stateOf([], {
    facts: longFacts(),
    layer: 4,
    head: 6,
    color_scale: "log",
    picture: longPicture(rowsFor(share)),
    thumbnails: {
      layer: 4,
      batch: 0,
      values: THUMBNAILS,
    },
    tokens: MESSAGE,
    key_tokens: MESSAGE,
    progress,
    ...changes,
  });
}

const PAIRS = strongest();
/** The strongest pair, without the first token. */
export const STRONG = PAIRS[0] as readonly [query: number, key: number, weight: number];

/** To be zoomed to single cells around that pair, which is pinned. */
export const longZoomed = (changes: Partial<Traits> = {}): Traits =>
  longState({ query: STRONG[0], key: STRONG[1], color_scale: "linear", ...changes });

function strongest(): (readonly [number, number, number])[] {
  const found: (readonly [number, number, number])[] = [];
  for (let query = 0; query < LENGTH; query += 1) {
    for (const [key, weight] of rowOf(query).spots) {
      if (key > 0 && query - key > LOCAL && weight > 0.4) found.push([query, key, weight]);
    }
  }
  const bins = new Set<string>();
  return found
    .sort((a, b) => b[2] - a[2])
    .filter(([query, key]) => {
      const bin = `${Math.floor(query / BIN)} ${Math.floor(key / BIN)}`;
      return !bins.has(bin) && bins.add(bin);
    });
}

/** What the kernel of that head answers; what only an exact picture tells it refuses while `isExact` is not so. */
export function longAnswers(isExact: () => boolean = () => true): NonNullable<HostOptions["answer"]> {
  const tokens = tokenAnswers(TOKENS);
  return (request) => {
    const { kind } = request;
    if (kind === "tokens" || kind === "find") return tokens(request);
    if (kind === "ping" || kind === "pass") return {};
    if (kind === "tiles") return tilesOf(request);
    if (kind === "row") return lineOf(denseRow(request.query as number));
    if (kind === "strongest") {
      if (!isExact()) throw new Error("The strongest pairs are known when the picture is exact.");
      return { pairs: PAIRS.slice(0, request.count as number) };
    }
    if (kind === "ranked") {
      if (request.keys && !isExact()) throw new Error("Who attends to a key is known when the picture is exact.");
      return rankedReply(rankOf(request));
    }
    const [queries, keys] = [request.queries, request.keys] as [[number, number], [number, number]];
    if (kind === "cells") return lineOf(pooled(queries, keys, 1, 1), [queries[1] - queries[0], keys[1] - keys[0]]);
    if (kind === "peak") return peakOf(queries, keys);
    throw new Error(`this page cannot answer ${kind}`);
  };
}

export function longPython(isExact?: () => boolean): HostOptions {
  return { answer: longAnswers(isExact) };
}

const denseRow = (query: number) => pooled([query, query + 1], [0, LENGTH], 1, 1);
const lineOf = (cells: (number | null)[], shape?: number[]) => ({
  values: floats(cells, shape),
  blocked: bits(cells, shape),
});

function rankOf({ queries, keys, count, over }: HostRequest) {
  const places = (queries ?? keys) as number[];
  const values = new Float32Array(LENGTH);
  const kinds = new Uint8Array(LENGTH).fill(BLOCKED);
  for (const place of places) {
    const line = queries ? denseRow(place) : Array.from({ length: LENGTH }, (_, query) => weightAt(query, place));
    line.forEach((weight, at) => {
      if (weight === null) return;
      kinds[at] = NUMBER;
      values[at]! += weight / (over === "mean" ? places.length : 1);
    });
  }
  return rank(values, kinds, count as number);
}

function peakOf(queries: [number, number], keys: [number, number]) {
  let best: { value: number | null; query: number | null; key: number | null } = {
    value: null,
    query: null,
    key: null,
  };
  for (let query = queries[0]; query < queries[1]; query++) {
    pooled([query, query + 1], keys, 1, 1).forEach((value, at) => {
      if (value !== null && value > (best.value ?? -1)) best = { value, query, key: keys[0] + at };
    });
  }
  return best;
}

const TILE = 128;

function tilesOf({ tiles }: HostRequest) {
  const made = (tiles as TileAddress[]).map((tile) => {
    const [rowLevel, columnLevel, row, column] = tile;
    const span = (at: number, level: number): [number, number] => {
      const start = at * TILE * 2 ** level;
      return [start, Math.min(LENGTH, start + TILE * 2 ** level)];
    };
    const [queries, keys] = [span(row, rowLevel), span(column, columnLevel)];
    const cells = pooled(queries, keys, 2 ** columnLevel, 2 ** rowLevel);
    const shape = [queries, keys].map(
      ([start, stop], side) => (stop - start) / 2 ** (side === 0 ? rowLevel : columnLevel),
    );
    const values = codes(cells, shape.map(Math.ceil), { kind: "log", high: HIGH, octaves: OCTAVES });
    return { tile, every: 1, first: 0, low: 0, high: HIGH, values };
  });
  return { tiles: made };
}
