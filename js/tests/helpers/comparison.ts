/** Two attentions side by side, as Python sends them. */

import type { ChangesMessage, ComparisonMessage, Envelope } from "../../src/contract/messages";
import { bits, type Cells, floats, pictureOf } from "./states.ts";

export const FULL: Cells = [
  [0.4, 0.3, 0.2, 0.1],
  [0.1, 0.2, 0.3, 0.4],
  [0.25, 0.25, 0.25, 0.25],
  [0.05, 0.6, 0.05, 0.3],
];

const difference = (a: Cells, b: Cells): Cells =>
  a.map((row, query) =>
    row.map((x, key) => {
      const y = b[query]![key]!;
      return x === null && y === null ? null : (y ?? 0) - (x ?? 0);
    }),
  );

export const integers = (numbers: readonly number[]): Envelope => ({
  data: new DataView(Uint32Array.from(numbers).buffer),
  dtype: "uint32",
  shape: [numbers.length],
  deflated: false,
});

export function comparisonOf(a: Cells, b: Cells, changes: Partial<ComparisonMessage> = {}): ComparisonMessage {
  const part = (cells: Cells) => {
    const { low, high, values, blocked } = pictureOf(cells);
    return { low, high, values: values!, blocked };
  };
  return {
    layer: 0,
    batch: 0,
    head: 0,
    stage: "weights",
    pool: "max",
    against: "causal",
    queries: a.length,
    keys: a[0]!.length,
    query_bin: 1,
    key_bin: 1,
    sampled: null,
    a: part(a),
    b: part(b),
    change: part(difference(a, b)),
    query_places: null,
    key_places: null,
    differ: [0, 0],
    error: null,
    ...changes,
  };
}

/** What Python sends for a pinned query. */
export function changesOf(a: Cells, b: Cells, query: number, changes: Partial<ChangesMessage> = {}): ChangesMessage {
  const [one, other] = [a[query]!, b[query]!];
  const order = one
    .map((_, at) => at)
    .sort((x, y) => Math.max(one[y] ?? 0, other[y] ?? 0) - Math.max(one[x] ?? 0, other[x] ?? 0));
  const rows = (line: readonly (number | null)[]) => ({
    values: floats(order.map((at) => line[at]!)),
    blocked: bits(order.map((at) => line[at]!)),
  });
  return {
    layer: 0,
    batch: 0,
    head: 0,
    against: "causal",
    query,
    key: null,
    side: "query",
    places: integers(order),
    a: rows(one),
    b: rows(other),
    change: rows(difference(a, b)[query]!),
    rest: { count: 0, a: 0, b: 0 },
    masked: 0,
    only: null,
    ...changes,
  };
}
