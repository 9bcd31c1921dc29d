/** Pin the place under the pointer: a cell, or within a bin the place of its number. */

import type { Picture } from "../contract/decode";
import type { Bin } from "../data/matrix";
import { isWithin } from "../state/plot";
import type { Ui } from "../state/ui";

interface Place {
  readonly query: number;
  readonly key: number;
}

/** The place within a bin of the number that it shows. */
export type PeakIn = (picture: Picture, bin: Bin) => Promise<Place>;

async function placeIn(ui: Ui, bin: Bin, peakIn: PeakIn): Promise<Place> {
  const corner = { query: bin.queries.start, key: bin.keys.start };
  const single = bin.queries.stop - bin.queries.start === 1 && bin.keys.stop - bin.keys.start === 1;
  const picture = ui.store.picture.value;
  if (single || picture === null) return corner;
  const known = ui.hovered.value;
  const reading =
    known !== null && isWithin(known.query, bin.queries) && isWithin(known.key, bin.keys)
      ? known
      : await peakIn(picture, bin).catch(() => corner);
  return { query: reading.query, key: reading.key };
}

/** Pin a cell, or the greatest number of a bin (with `add`, in addition to others); unpin it if it is pinned. */
export async function pinBin(ui: Ui, bin: Bin, add: boolean, peakIn: PeakIn, cancelled?: AbortSignal): Promise<void> {
  const { store, stop } = ui;
  const isLeft = () => stop.aborted || cancelled?.aborted === true;
  if (add) {
    const place = await placeIn(ui, bin, peakIn);
    if (!isLeft()) store.addPin(place.query, place.key);
    return;
  }
  const [query, key] = [store.query.value, store.key.value];
  if (query !== null && key !== null && isWithin(query, bin.queries) && isWithin(key, bin.keys)) {
    store.select({ query: null, key: null });
    return;
  }
  const place = await placeIn(ui, bin, peakIn);
  if (!isLeft()) store.select(place);
}
