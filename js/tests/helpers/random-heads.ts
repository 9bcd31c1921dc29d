/** 500 small heads of many kinds, the same each time, for the sentences that are made from their numbers. */

import { BLOCKED, NAN, NUMBER, type Picture } from "../../src/contract/decode";
import { type Line, lineOf } from "../../src/data/matrix";
import { type Labels, labels } from "../../src/text/labels";
import { type Cells, factsOf, random } from "./states.ts";

const WORDS = ["the", "bank", "river", "lent", "money", "##s", "."];

export interface RandomHead {
  /** Weights as float32; null is blocked. */
  readonly cells: Cells;
  readonly queries: readonly string[];
  readonly keys: readonly string[];
  /** The learned sink's weight in each row; null without one. */
  readonly sink: readonly number[] | null;
}

function headOf(seed: number): RandomHead {
  const next = random(977 * seed + 1);
  for (let warm = 0; warm < 8; warm++) next();
  const pick = <T>(...all: readonly T[]) => all[Math.floor(next() * all.length)]!;
  const isSelf = next() < 0.7;
  const size = () => 2 + Math.floor(11 * next());
  const rows = size();
  const columns = isSelf ? rows : size();
  const words = (count: number) =>
    Array.from({ length: count }, (_, at) => (at === 0 ? "[CLS]" : at > 3 && next() < 0.1 ? "[SEP]" : pick(...WORDS)));
  const keys = words(columns);
  const mask = pick("none", "none", "causal", "padding", "random");
  const spread = pick(0, 0.01, 1, 3, 12);
  const onFirst = pick(0, 0, 2, 8);
  const onOwn = pick(0, 0, 3);
  const cap = pick(0, 0, 2);
  const hasSink = next() < 0.25;
  const padded = 1 + Math.floor(columns * next());
  const sink: number[] = [];
  const cells = Array.from({ length: rows }, (_, query) => {
    const scores = Array.from({ length: columns }, (_, key) => {
      const isOpen = { none: true, causal: key <= query, padding: key < padded, random: next() < 0.6 }[mask];
      const score = spread * (2 * next() - 1) + (key === 0 ? onFirst : 0) + (isSelf && key === query ? onOwn : 0);
      return isOpen ? (cap > 0 ? cap * Math.tanh(score / cap) : score) : null;
    });
    const taken = hasSink ? Math.exp(4 * next() - 1) : 0;
    const sum = scores.reduce<number>((all, score) => all + (score === null ? 0 : Math.exp(score)), taken);
    sink.push(Math.fround(taken / (sum || 1)));
    return scores.map((score) => (score === null ? null : Math.fround(Math.exp(score) / sum)));
  });
  return { cells, keys, queries: isSelf ? keys : words(rows), sink: hasSink ? sink : null };
}

export const RANDOM_HEADS: readonly RandomHead[] = Array.from({ length: 500 }, (_, seed) => headOf(seed));

/** The exact picture of a head, as `decodePicture` returns it. */
export function exactPicture({ cells, sink }: Pick<RandomHead, "cells" | "sink">): Picture {
  const flat = cells.flat();
  const kindOf = (cell: number | null) => (cell === null ? BLOCKED : Number.isNaN(cell) ? NAN : NUMBER);
  return {
    of: { layer: 0, batch: 0, head: 0, stage: "weights", pool: "max" },
    ...{ queries: cells.length, keys: cells[0]!.length, ownKeys: cells[0]!.length, padding: null },
    ...{ queryBin: 1, keyBin: 1, low: 0, high: Math.max(...flat.map((cell) => cell ?? 0)), exact: true, sampled: null },
    grid: {
      rows: cells.length,
      columns: cells[0]!.length,
      values: Float32Array.from(flat, (cell) => cell ?? Number.NaN),
      kinds: Uint8Array.from(flat, kindOf),
    },
    sink: sink === null ? null : Float32Array.from(sink),
    error: null,
  };
}

/** What the parts of a view read of a head; `more` adds to it, or replaces. */
export function viewOf(head: RandomHead, more: { store?: object; ui?: object } = {}) {
  const picture = exactPicture(head);
  const [queries, keys]: Labels[] = [labels(head.queries, head.queries.length), labels(head.keys, head.keys.length)];
  const pinned = { query: null as number | null, key: null as number | null, segments: null, keySegments: null };
  const shown = {
    ...{
      picture,
      queryLabels: queries,
      keyLabels: keys,
      facts: factsOf(head.cells, { has_sinks: head.sink !== null }),
    },
    ...{ view: "heatmap", stage: "weights", linkedStage: "weights", layer: 0, batch: 0, head: 0, drawnHeads: [0] },
    ...{ direction: "query", color_range: "head", sides: [], ...pinned },
  };
  const signals = (of: object) => Object.fromEntries(Object.entries(of).map(([name, value]) => [name, { value }]));
  const store = signals({ ...shown, ...more.store });
  const ui = { ...signals({ mode: "wide", hover: null, unit: 1, window: null, theme: "light", ...more.ui }), store };
  return { picture, queries: queries!, keys: keys!, ui: ui as never };
}

/** A row or column of a head. */
export const line = (head: RandomHead, side: "query" | "key", index: number): Line =>
  lineOf(exactPicture(head), { side, index })!;
