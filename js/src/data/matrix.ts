/** Rows, columns and bins of an exact matrix. */

import { BLOCKED, type Grid, NAN, NUMBER, type Picture } from "../contract/decode";
import type { Side, Stage } from "../contract/values";
import type { Span } from "../geometry/viewport";

/** One query over all keys, or one key over all queries. */
export interface Target {
  readonly side: Side;
  readonly index: number;
}

/** All numbers of a row or column. */
export interface Line {
  readonly of: Target;
  readonly stage: Stage;
  readonly values: Float32Array;
  readonly kinds: Uint8Array;
  /** For a row, its number in the learned sink's column; null without one. */
  readonly sink?: number | null;
}

/** How several rows or columns are combined. */
export type Over = "mean" | "sum";

/** A rectangle of the matrix: one cell, or all cells that one cell of a pooled picture stands for. */
export interface Bin {
  readonly queries: Span;
  readonly keys: Span;
  /** If the picture knows only one of several queries: how many it stands for. */
  readonly standsFor?: number;
}

export interface Patch extends Bin {
  readonly grid: Grid;
}

/** Return the bin that a cell of the picture stands for. */
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

/** Read a number from JSON: NaN and infinities by name, or null. */
export const numberIn = (value: number | string | null) => Number(String(value).replace("inf", "Infinity"));

/** Combine several rows or columns: blocked if all are blocked, NaN if any is NaN. */
export function combine(lines: readonly Line[], over: Over): Line | null {
  const last = lines.at(-1);
  if (last === undefined) return null;
  const values = new Float32Array(last.values.length);
  const kinds = new Uint8Array(last.values.length);
  for (let i = 0; i < values.length; i++) {
    let sum = 0;
    let open = 0;
    let nan = false;
    for (const line of lines) {
      if (line.kinds[i] === BLOCKED) continue;
      open++;
      sum += line.values[i] as number;
      nan ||= line.kinds[i] === NAN;
    }
    values[i] = over === "mean" ? sum / lines.length : sum;
    kinds[i] = open === 0 ? BLOCKED : nan ? NAN : NUMBER;
  }
  const total = lines.reduce((sum, line) => sum + (line.sink ?? 0), 0);
  const sink = last.sink == null ? null : over === "mean" ? total / lines.length : total;
  return { of: last.of, stage: last.stage, values, kinds, sink };
}

/** Return a row or column of an exact picture. */
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
      sink: picture.sink?.[target.index] ?? null,
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
