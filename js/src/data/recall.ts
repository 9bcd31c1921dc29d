/** The share of each row's weight that a cache keeps, and the lowest of several rows. */

import { decode } from "../contract/decode";
import type { RecallMessage } from "../contract/messages";
import type { HeadName } from "../contract/values";

export interface Recall {
  readonly layer: number;
  readonly batch: number;
  /** The head's number; for several as one, their name. */
  readonly head: HeadName;
  /** For each query, or the lowest of `every`; NaN for a fully masked row or if not known yet. */
  readonly values: Float32Array;
  readonly every: number;
  /** The share of queries that are known, 0 to 1. */
  readonly share: number;
  readonly error: string | null;
}

export async function decodeRecall(message: RecallMessage): Promise<Recall> {
  const values = await decode(message.values);
  if (!(values instanceof Float32Array)) throw new Error(`recall must be float32, got ${message.values.dtype}`);
  return { ...message, values };
}

/** Return the least recall of some queries; NaN where none is known. */
export function leastOf({ values, every }: Recall, start: number, stop: number): number {
  let least = Number.NaN;
  for (let at = Math.floor(start / every); at * every < stop && at < values.length; at++) {
    if (!(values[at]! >= least)) least = Number.isNaN(values[at]!) ? least : values[at]!;
  }
  return least;
}
