/** Image patches among the positions: where each lies in the image. */

import type { GridMessage } from "../contract/messages";
import type { Side } from "../contract/values";

/** More patches than this are not drawn. */
export const MAX_PATCHED = 65_536;

/** The places of one side's patches, from `start` on: frame by frame, row by row, or where `cells` say. */
export interface Patches {
  readonly start: number;
  readonly rows: number;
  readonly columns: number;
  readonly frames: number;
  /** How many patches the sample has. */
  readonly many: number;
  /** The cell of each patch, if the sample is a window of the image; -1 for padding. */
  readonly cells: readonly number[] | null;
  /** The cells of all windows of the image. */
  readonly windows: readonly (readonly number[])[] | null;
}

/** Return the places of one side's patches in a sample; null if there are none or they do not fit. */
export function patchesOf(grid: GridMessage | null, side: Side, length: number, batch = 0): Patches | null {
  const start = grid?.[side] ?? null;
  if (grid === null || start === null) return null;
  const { rows, columns, frames = 1, windows = null } = grid;
  const cells = windows === null ? null : (windows[batch % windows.length] ?? null);
  const many = cells?.length ?? frames * rows * columns;
  const fits = [start, rows, columns, frames].every(Number.isInteger) && start >= 0 && rows > 0 && columns > 0;
  if (!fits || frames < 1 || start + many > length || many > MAX_PATCHED) return null;
  return { start, rows, columns, frames, many, cells, windows };
}

/** Return the cell of a position's patch: frame by frame, row by row; null if it is not a patch. */
export function cellAt({ start, many, cells }: Patches, position: number): number | null {
  const patch = position - start;
  if (patch < 0 || patch >= many) return null;
  const cell = cells === null ? patch : (cells[patch] ?? -1);
  return cell < 0 ? null : cell;
}

/** Return the position of the patch at a cell; null if the sample has none there. */
export function positionAt({ start, many, cells }: Patches, cell: number): number | null {
  const patch = cells === null ? cell : cells.indexOf(cell);
  return patch < 0 || patch >= many ? null : start + patch;
}

/** Return the frame of a cell. */
export const frameOf = ({ rows, columns }: Patches, cell: number) => Math.floor(cell / (rows * columns));

/** Return a patch's place in words, as Python does; null for a position that is not a patch. */
export function patchName(patches: Patches, position: number): string | null {
  const { start, many, rows, columns, frames } = patches;
  if (position < start || position >= start + many) return null;
  const cell = cellAt(patches, position);
  if (cell === null) return "[PAD]";
  const place = cell % (rows * columns);
  const row = `${Math.floor(place / columns)}, ${place % columns}`;
  if (frames === 1) return `row ${row}`;
  return `frame ${frameOf(patches, cell)}${rows * columns > 1 ? `: ${row}` : ""}`;
}

/** Return the cell under a point of one frame, row by row; null outside. */
export function cellUnder({ rows, columns }: { rows: number; columns: number }, x: number, y: number): number | null {
  const [row, column] = [Math.floor(y * rows), Math.floor(x * columns)];
  return row >= 0 && row < rows && column >= 0 && column < columns ? row * columns + column : null;
}
