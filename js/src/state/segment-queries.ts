/** Requests for segment data that no trait holds: more tokens of the answer, one column of all, cells behind a mass. */

import { decode } from "../contract/decode";
import type { Envelope } from "../contract/messages";
import type { Reply } from "../contract/requests";
import type { Measure } from "../contract/values";
import { numberIn } from "../data/matrix";
import {
  decodeColumns,
  decodeMasses,
  type HeadMass,
  type Mass,
  type MassColumns,
  type Masses,
} from "../data/segment-data";
import type { Kernel } from "../kernel/kernel";

/** The most numbers per request: tokens × columns. */
export const WINDOW = 16_384;

/** The most tokens of the answer per request. */
export const windowOf = (mass: Mass) => Math.max(1, Math.floor(WINDOW / Math.max(1, mass.keys.length)));

/** Tokens `start` to `stop` of the asking segment. */
export async function askColumns(
  kernel: Kernel,
  mass: Mass,
  [start, stop]: readonly [start: number, stop: number],
  signal: AbortSignal,
): Promise<MassColumns & { readonly positions: Uint32Array }> {
  const reply = await kernel.request("segment_columns", { of: mass.id, start, stop }, { signal });
  const [columns, positions] = await Promise.all([
    decodeColumns(reply, start, mass.keys.length, reply.buffers),
    wholes(reply.positions, reply),
  ]);
  return { ...columns, positions };
}

/** The measure of one column for all tokens of the asking segment, each the largest of `every` tokens. */
export interface MassLine {
  readonly values: Float32Array;
  readonly every: number;
  /** The share of known tokens, 0 to 1; the others are NaN. */
  readonly known: number;
}

export async function askLine(
  kernel: Kernel,
  mass: Mass,
  of: { readonly column: number; readonly measure: Measure; readonly aside: readonly string[] },
  signal: AbortSignal,
): Promise<MassLine> {
  const reply = await kernel.request("segment_line", { of: mass.id, ...of }, { signal });
  const { every, known } = reply;
  return { values: await floats(reply.values, reply), every, known };
}

/** The strongest keys of a segment for one query. */
export interface SegmentKeys {
  readonly positions: Uint32Array;
  readonly values: Float32Array;
  readonly rest: { readonly count: number; readonly sum: number };
}

export async function askKeys(
  kernel: Kernel,
  mass: Mass,
  of: { readonly query: number; readonly column: number; readonly count: number },
  signal: AbortSignal,
): Promise<SegmentKeys> {
  const reply = await kernel.request("segment_keys", { of: mass.id, ...of }, { signal });
  const [positions, values] = await Promise.all([wholes(reply.positions, reply), floats(reply.values, reply)]);
  return { positions, values, rest: { count: reply.rest.count, sum: numberIn(reply.rest.sum) } };
}

/** A matrix row that was sent rounded. */
export async function askRow(kernel: Kernel, { id, keys }: Mass, row: number, signal: AbortSignal): Promise<Masses> {
  const reply = await kernel.request("segment_row", { of: id, row }, { signal });
  return decodeMasses(reply, [1, keys.length], reply.buffers);
}

/** A matrix cell: its exact numbers (null while unknown), and its strongest weights. */
export interface SegmentBlock {
  readonly mass: number | null;
  readonly even: number | null;
  readonly self: number | null;
  readonly selfEven: number | null;
  readonly looked: number;
  readonly queries: Uint32Array;
  readonly keys: Uint32Array;
  readonly values: Float32Array;
}

export async function askBlock(
  kernel: Kernel,
  mass: Mass,
  of: { readonly row: number; readonly column: number; readonly count: number },
  signal: AbortSignal,
): Promise<SegmentBlock> {
  const reply = await kernel.request("segment_block", { of: mass.id, ...of }, { signal });
  const [queries, keys] = await Promise.all([wholes(reply.queries, reply), wholes(reply.keys, reply)]);
  const { even, self, self_even: selfEven, looked } = reply;
  return { mass: reply.mass, even, self, selfEven, looked, queries, keys, values: await floats(reply.values, reply) };
}

/** Other columns of all heads; `columns` are numbers among the keys of the shown mass. */
export async function askHeads(
  kernel: Kernel,
  { id, heads }: HeadMass,
  columns: readonly number[],
  signal: AbortSignal,
): Promise<Masses> {
  const reply = await kernel.request("segment_heads", { of: id, columns }, { signal });
  return decodeMasses(reply, [heads.length, columns.length], reply.buffers);
}

/** Make segments from the tokens, if none were given. */
export async function askSegmentsBy(kernel: Kernel, unit: "sentences" | "paragraphs" | "lines"): Promise<void> {
  await kernel.request("segment_by", { unit });
}

async function wholes(envelope: Envelope, { buffers }: Reply): Promise<Uint32Array> {
  const array = await decode(envelope, buffers);
  if (!(array instanceof Uint32Array)) throw new Error(`expected uint32, got ${envelope.dtype}`);
  return array;
}

async function floats(envelope: Envelope, { buffers }: Reply): Promise<Float32Array> {
  const array = await decode(envelope, buffers);
  if (!(array instanceof Float32Array)) throw new Error(`expected float32, got ${envelope.dtype}`);
  return array;
}
