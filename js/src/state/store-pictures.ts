/** The current picture: which one is drawn, rows that become exact, its range, and its finer tiles. */

import { batch, computed, effect, type ReadonlySignal, signal } from "@preact/signals-core";
import { decodeGrid, decodePicture, type Grid, type Picture } from "../contract/decode";
import type { BandMessage, Bytes, Facts, PictureMessage, TilesMessage } from "../contract/messages";
import type { HeadName, Stage } from "../contract/values";
import type { Kernel } from "../kernel/kernel";
import { createTileCache, type TileCache, type TilesOf, tilesOf } from "./tile-cache";
import type { Listener } from "./traits";

/** Return whether a picture is of this selection; otherwise it is stale. */
export function isOf(
  picture: Picture,
  wanted: { layer: number; batch: number; head: HeadName; stage: Stage; pool: string },
) {
  const { of } = picture;
  return (
    of.layer === wanted.layer &&
    of.batch === wanted.batch &&
    of.head === wanted.head &&
    of.stage === wanted.stage &&
    of.pool === wanted.pool
  );
}

const MOST_RANGES = 1024;
/** Rounding differences, relative to a range. */
const ROUNDING = 1e-5;

/** The same cells with some rows replaced in place; null if they do not fit. */
function withRows(grid: Grid, rows: Grid, start: number, stop: number): Grid | null {
  const fits = Number.isInteger(start) && start >= 0 && stop <= grid.rows && stop - start === rows.rows;
  if (!fits || rows.columns !== grid.columns) return null;
  grid.values.set(rows.values, start * grid.columns);
  grid.kinds.set(rows.kinds, start * grid.columns);
  return { ...grid };
}

/** A picture of sampled rows or of means has not seen the maximum: its range grows with new data and never shrinks. */
class Ranges {
  readonly #known = new Map<TilesOf, { low: number; high: number }>();

  widen(of: TilesOf, low: number | null, high: number | null): void {
    if (low === null || high === null) return;
    const known = this.#known.get(of);
    this.#known.set(of, known ? { low: Math.min(known.low, low), high: Math.max(known.high, high) } : { low, high });
    if (this.#known.size > MOST_RANGES) this.#known.delete(this.#known.keys().next().value as TilesOf);
  }

  widened(of: TilesOf, next: Picture): Picture {
    const range = this.#known.get(of);
    if (range === undefined || next.low === null || next.high === null) return next;
    const low = Math.min(next.low, range.low);
    const high = Math.max(next.high, range.high);
    const more = next.low - low + (high - next.high);
    return more <= ROUNDING * (high - low) ? next : { ...next, low, high };
  }
}

interface KernelMessage extends TilesMessage {
  refused: unknown;
  band: BandMessage;
}

export interface StorePictures {
  readonly picture: ReadonlySignal<Picture | null>;
  readonly problem: ReadonlySignal<string | null>;
  readonly tiles: TileCache;
}

/** Keep the picture of the selection, as the kernel sends it: whole, by bands and by tiles. */
export function storePictures(options: {
  decoded: (name: "picture", decode: (message: PictureMessage) => Promise<Picture>) => ReadonlySignal<Picture | null>;
  listener: Listener;
  kernel: Kernel;
  facts: ReadonlySignal<Facts>;
  /** Whether the wanted picture is of another stack than `facts`. */
  isElsewhere: () => boolean;
  /** The subject of the wanted picture. */
  selected: () => Picture["of"];
  /** Called with the reason why Python reverted a change. */
  refuse: (reason: string) => void;
  stop: AbortSignal;
}): StorePictures {
  const { listener, kernel, facts, selected, refuse, stop } = options;
  const picture = signal<Picture | null>(null);
  const problem = signal<string | null>(null);
  let pictureRead: Promise<unknown> = Promise.resolve();
  const arrived = options.decoded("picture", (message) => {
    const reading = decodePicture(message);
    pictureRead = reading.catch(() => {});
    return reading;
  });
  listener.onChange("picture", () => kernel.heard());

  // While the current picture is not the selected one, the kernel is computing that.
  const stale = computed(() => {
    const wanted = selected();
    return arrived.value !== null && (!isOf(arrived.value, wanted) || options.isElsewhere());
  });
  const keyOf = ({ of }: Pick<Picture, "of">) => tilesOf(of, facts.peek().version);
  const ranges = new Ranges();
  const widened = (next: Picture) => ranges.widened(keyOf(next), next);
  const ends = [
    effect(() => (stale.value ? kernel.expect() : undefined)),
    // A late picture of a head that was left meanwhile is dropped.
    effect(() => {
      const next = arrived.value;
      if (next === null) return;
      const late = stale.value;
      batch(() => {
        if (next.grid !== null && (!late || picture.peek() === null)) picture.value = widened(next);
        problem.value = late ? null : next.error;
      });
    }),
  ];
  stop.addEventListener("abort", () => {
    for (const end of ends) end();
  });

  const tiles = createTileCache(undefined, (of, tile) => {
    ranges.widen(of, tile.low, tile.high);
    const shown = picture.peek();
    if (shown !== null && keyOf(shown) === of) picture.value = widened(shown);
  });

  /** Rows that are now exact, written into their picture. */
  async function takeBand(band: BandMessage, buffers: readonly Bytes[]): Promise<void> {
    const [rows] = await Promise.all([decodeGrid(band.values, null, buffers), pictureRead]);
    const shown = picture.peek();
    if (shown?.grid == null || shown.sampled === null || !isOf(shown, band)) return;
    if (band.version !== facts.peek().version) return;
    const grid = withRows(shown.grid, rows, band.start, band.stop);
    if (grid === null) return;
    ranges.widen(keyOf(shown), band.low, band.high);
    const exact = band.start <= shown.sampled.exact ? Math.max(shown.sampled.exact, band.stop) : shown.sampled.exact;
    const known = { low: shown.low ?? band.low, high: shown.high ?? band.high };
    picture.value = widened({ ...shown, ...known, grid, sampled: { ...shown.sampled, exact } });
  }

  let bands: Promise<unknown> = Promise.resolve();
  listener.onMessage((content, buffers = []) => {
    const { refused, band, tiles: some, of } = (content ?? {}) as Partial<KernelMessage>;
    if (typeof refused === "string") refuse(refused);
    if (band) bands = bands.then(() => takeBand(band, buffers)).catch(() => {}); // one that cannot be read is dropped
    if (Array.isArray(some) && of && of.version === facts.peek().version) {
      void tiles.take(tilesOf(of, of.version), some, facts.peek(), buffers);
    }
  });

  return { picture, problem, tiles };
}
