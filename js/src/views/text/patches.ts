/** Image patches among the positions, and their image. */

import { effect, type ReadonlySignal, signal } from "@preact/signals-core";
import { bytes } from "../../contract/decode";
import type { GridMessage, ImageMessage } from "../../contract/messages";
import type { Side } from "../../contract/values";

/** More patches than this are not drawn. */
export const MAX_PATCHED = 65_536;
const MOST = 448; // pixels of the longer side

/** The places of one side's patches: row by row from `start` on. */
export interface Patches {
  readonly start: number;
  readonly rows: number;
  readonly columns: number;
}

/** Return the places of one side's patches; null if there are none or they do not fit. */
export function patchesOf(grid: GridMessage | null, side: Side, length: number): Patches | null {
  const start = grid?.[side] ?? null;
  if (grid === null || start === null) return null;
  const { rows, columns } = grid;
  const many = rows * columns;
  const fits = [start, rows, columns].every(Number.isInteger) && start >= 0 && rows > 0 && columns > 0;
  return fits && start + many <= length && many <= MAX_PATCHED ? { start, rows, columns } : null;
}

/**
 * Return the size at which an image or only its patches are drawn: whole pixels per patch without an
 * image.
 */
export function sizeOf(patches: Patches, image: ImageMessage | null, room: number, unit: number) {
  const most = Math.min(room, MOST * unit);
  const { width, height } = image ?? { width: patches.columns, height: patches.rows };
  const scale = Math.min(most / width, (MOST * unit) / height);
  return { width: Math.max(1, Math.floor(width * scale)), height: Math.max(1, Math.floor(height * scale)) };
}

/** Return the patch under a point of the picture, by index; null outside. */
export function patchAt({ rows, columns }: Patches, x: number, y: number): number | null {
  const [row, column] = [Math.floor(y * rows), Math.floor(x * columns)];
  return row >= 0 && row < rows && column >= 0 && column < columns ? row * columns + column : null;
}

/** Let the browser decode the image; null if there is none or it fails. */
export function decodeImage(
  message: ReadonlySignal<ImageMessage | null | undefined>,
  stop: AbortSignal,
): ReadonlySignal<ImageBitmap | null> {
  const decoded = signal<ImageBitmap | null>(null);
  let newest = 0;
  const end = effect(() => {
    const image = message.value;
    const mine = ++newest;
    const use = (bitmap: ImageBitmap | null) => {
      if (mine === newest) decoded.value = bitmap;
    };
    if (!image || typeof createImageBitmap !== "function") return use(null);
    const blob = new Blob([bytes(image.data).slice()], { type: image.mime });
    createImageBitmap(blob).then(use, () => use(null));
  });
  stop.addEventListener("abort", () => {
    newest++;
    end();
  });
  return decoded;
}
