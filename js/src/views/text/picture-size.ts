/** The size at which an image is drawn, and its decoding. */

import { effect, type ReadonlySignal, signal } from "@preact/signals-core";
import { bytes } from "../../contract/decode";
import type { ImageMessage } from "../../contract/messages";

const MOST = 448; // pixels of the longer side

/**
 * Return the size at which an image or only its patches are drawn: whole pixels per patch without an
 * image.
 */
export function sizeOf(
  patches: { rows: number; columns: number },
  image: ImageMessage | null,
  room: number,
  unit: number,
) {
  const most = Math.min(room, MOST * unit);
  const { width, height } = image ?? { width: patches.columns, height: patches.rows };
  const scale = Math.min(most / width, (MOST * unit) / height);
  return { width: Math.max(1, Math.floor(width * scale)), height: Math.max(1, Math.floor(height * scale)) };
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
