/** Segments of a text of eight tokens, and masses between them, as Python sends them; nothing is aside. */

import type { Envelope, HeadMassMessage, MassMessage, SegmentsMessage } from "../../src/contract/messages";
import { floats } from "./states.ts";

export function wholes(numbers: readonly number[]): Envelope {
  const data = Uint32Array.from(numbers);
  return { data: new DataView(data.buffer), dtype: "uint32", shape: [numbers.length], deflated: false };
}

/** Start and stop of each, (n, 2). */
export function spans(...pairs: readonly (readonly [number, number])[]): Envelope {
  return { ...wholes(pairs.flat()), shape: [pairs.length, 2] };
}

export function bytesOf(numbers: readonly number[]): Envelope {
  const data = Uint8Array.from(numbers);
  return { data: new DataView(data.buffer), dtype: "uint8", shape: [numbers.length], deflated: false };
}

/** `first token`, `doc 1` of two sentences, `question`, `answer` of two tokens. */
export function segmentsOf(changes: Partial<SegmentsMessage> = {}): SegmentsMessage {
  return {
    names: ["first token", "doc 1", "sentence 1", "sentence 2", "question", "answer"],
    starts: wholes([0, 1, 1, 3, 4, 6]),
    stops: wholes([1, 4, 3, 4, 6, 8]),
    levels: bytesOf([0, 0, 1, 1, 0, 0]),
    length: 8,
    distinct: ["first token", "doc 1", "question", "answer"],
    sizes: [1, 3, 2, 2],
    colors: [-1, 0, 1, 7],
    answer: "answer",
    ...changes,
  };
}

const KEYS = ["first token", "doc 1", "question", "answer"];

/** Under a causal mask; the answer looks mostly at doc 1. */
export const MATRIX = [
  [1, 0, 0, 0],
  [0.5, 0.5, 0, 0],
  [0.25, 0.5, 0.25, 0],
  [0.125, 0.5, 0.125, 0.25],
];
const SELF = [1, 0.25, 0.125, 0.125];
const diagonal = (numbers: readonly number[]) => numbers.flatMap((at, i) => KEYS.map((_, j) => (i === j ? at : 0)));

export function massOf(changes: Partial<MassMessage> = {}): MassMessage {
  const shape = [4, 4];
  const even = [
    [1, 0, 0, 0],
    [0.36, 0.64, 0, 0],
    [0.18, 0.55, 0.27, 0],
    [0.13, 0.4, 0.27, 0.2],
  ].flat();
  const columns = {
    mass: [0.125, 0.75, 0, 0.125, 0.125, 0.25, 0.25, 0.375],
    even: [...even.slice(12), ...even.slice(12)],
  };
  return {
    ...{ id: 1, layer: 0, batch: 0, head: 0, path: [], asking: "answer", error: null },
    ...{ keys: KEYS, key_sizes: [1, 3, 2, 2], key_colors: [-1, 0, 1, 7] },
    ...{ rows: KEYS, row_sizes: [1, 3, 2, 2], row: 3, share: 1, looked: wholes([1, 3, 2, 2]) },
    ...{ mass: floats(MATRIX.flat(), shape), even: floats(even, shape) },
    ...{ self: floats(diagonal(SELF), shape), self_even: floats(diagonal([1, 0.36, 0.2, 0.13]), shape) },
    ...{ total: 2, positions: wholes([6, 7]) },
    columns: {
      ...{ start: 0, mass: floats(columns.mass, [2, 4]), even: floats(columns.even, [2, 4]) },
      ...{ self: floats([0.125, 0.125]), self_even: floats([0.14, 0.12]), own: wholes([3, 3]) },
    },
    ...changes,
  };
}

/** Two layers of two heads, the last of which is not known yet. */
export function headMassOf(changes: Partial<HeadMassMessage> = {}): HeadMassMessage {
  const shape = [4, 4];
  const rows = [MATRIX[3]!, [0.5, 0.125, 0.125, 0.25], [0.25, 0.25, 0.25, 0.25], KEYS.map(() => Number.NaN)];
  const self = rows.flatMap((row) => [0, 0, 0, row[3]! / 2]);
  const sums = {
    mass: [1, 1, 1, Number.NaN],
    even: [1, 1, 1, 1],
    self: rows.map((row) => row[3]! / 2),
    self_even: [0.13, 0.13, 0.13, 0.13],
  };
  return {
    ...{ id: 2, batch: 0, path: [], asking: "answer", error: null, keys: KEYS, heads: [2, 2] },
    ...{
      mass: floats(rows.flat(), shape),
      even: floats(
        rows.flatMap(() => [0.13, 0.4, 0.27, 0.2]),
        shape,
      ),
    },
    ...{
      self: floats(self, shape),
      self_even: floats(
        rows.flatMap(() => [0, 0, 0, 0.13]),
        shape,
      ),
    },
    sums: Object.fromEntries(Object.entries(sums).map(([name, one]) => [name, floats(one, [4, 1])])) as never,
    ...{ looked: wholes([2, 0]), total: 2, share: 0.5 },
    ...changes,
  };
}
