/** Color ranges wider or narrower than the picture's own: all heads of the layer, or the part in view. */

import { computed, type ReadonlySignal } from "@preact/signals-core";
import { type Grid, NUMBER, type Picture, TILE } from "../contract/decode";
import { isSigned } from "../contract/stages";
import { type ColorMapper, makeColorMapper } from "../draw/color-mapper";
import { type CellGrid, cellsInView } from "../geometry/cell-grid";
import type { Span } from "../geometry/viewport";
import type { Store } from "./store";
import type { TilesOf } from "./tile-cache";

/** The minimum and maximum of some numbers. */
export interface Extent {
  readonly low: number;
  readonly high: number;
}

/**
 * Return the greatest weight of all heads of a picture's layer, from their thumbnails; null if that is not known, and
 * for stages other than the weights.
 */
export function layerExtent(store: Store, picture: Picture): Extent | null {
  const small = store.thumbnails.value;
  const { layer, batch, stage } = picture.of;
  if (stage !== "weights" || small === null || small.highs === null) return null;
  if (small.layer !== layer || small.batch !== batch || small.stage !== stage) return null;
  // Thumbnails of long heads sample rows: the picture may hold a greater weight.
  return { low: 0, high: small.highs.reduce((most, high) => Math.max(most, high), picture.high ?? 0) };
}

/** Return the picture with the ends of its color range. */
export function withRange(store: Store, picture: Picture, inView: Extent | null = null): Picture {
  const range = store.color_range.value;
  const extent = range === "layer" ? layerExtent(store, picture) : range === "view" ? inView : null;
  return extent === null ? picture : { ...picture, ...extent };
}

/** Return the color mapper of a picture over the chosen range. */
export function mapperOf(store: Store, picture: Picture, grid: Grid, inView: Extent | null = null): ColorMapper {
  const { color_scale, color_range } = store;
  const ranged = withRange(store, picture, inView);
  const mapper = makeColorMapper(ranged, grid, isSigned(picture.of.stage), color_scale.value, color_range.value);
  return ranged !== picture && inView !== null ? { ...mapper, clips: () => false } : mapper; // none exceeds it
}

interface Shown {
  readonly cellGrid: CellGrid;
  readonly picture: Picture;
  /** The drawn cells; null if tiles are drawn. */
  readonly grid: Grid | null;
  readonly of: TilesOf;
}

/**
 * Return the extent of the part in view; null if that is everything. While tiles are due or the view `isMoving`, the
 * old extent stays.
 */
export function extentInView(
  store: Store,
  shown: () => Shown | null,
  isMoving: ReadonlySignal<boolean>,
): ReadonlySignal<Extent | null> {
  let last: { extent: Extent; of: TilesOf } | null = null;
  return computed(() => {
    const now = store.color_range.value === "view" ? shown() : null;
    if (now === null) {
      last = null;
      return null;
    }
    const before = last !== null && last.of === now.of ? last.extent : null;
    if (isMoving.value && before !== null) return before;
    const found = now.grid === null ? tilesExtent(store, now) : gridExtent(now.grid, now.cellGrid);
    const extent = found === null ? before : usable(withSink(found, now));
    if (extent === null) return null;
    if (before !== null && before.low === extent.low && before.high === extent.high) return before;
    last = { extent, of: now.of };
    return extent;
  });
}

/** Zeros alone give no color range. */
const usable = (extent: Extent) => (extent.low === 0 && extent.high === 0 ? null : extent);

function gridExtent({ columns, values, kinds }: Grid, cells: CellGrid): Extent | null {
  const rows = cellsInView(cells.rows);
  const across = cellsInView(cells.columns);
  let low = Number.POSITIVE_INFINITY;
  let high = Number.NEGATIVE_INFINITY;
  for (let row = rows.start; row < rows.stop; row++) {
    for (let at = row * columns + across.start; at < row * columns + across.stop; at++) {
      if (kinds[at] !== NUMBER) continue;
      low = Math.min(low, values[at]!);
      high = Math.max(high, values[at]!);
    }
  }
  return low <= high ? { low, high } : null;
}

/** Counted by code: a tile has 256 codes but far more cells. */
function tilesExtent(store: Store, { cellGrid, of }: Shown): Extent | null {
  void store.tiles.revision.value;
  const { rows, columns, levels } = cellGrid;
  if (levels === null) return null;
  const [down, across] = [cellsInView(rows), cellsInView(columns)];
  let low = Number.POSITIVE_INFINITY;
  let high = Number.NEGATIVE_INFINITY;
  for (const row of tilesOver(down)) {
    for (const column of tilesOver(across)) {
      const tile = store.tiles.get(of, levels.row, levels.column, row, column);
      if (tile === undefined) continue;
      const there = new Uint8Array(256);
      const [y, x] = [within(down, row, tile.rows), within(across, column, tile.columns)];
      for (let r = y.start; r < y.stop; r++) {
        for (let at = r * tile.columns + x.start; at < r * tile.columns + x.stop; at++) there[tile.codes[at]!] = 1;
      }
      for (let code = 0; code < 256; code++) {
        if (there[code] === 0 || tile.kindOf[code] !== NUMBER) continue;
        low = Math.min(low, tile.numbers[code]!);
        high = Math.max(high, tile.numbers[code]!);
      }
    }
  }
  return low <= high ? { low, high } : null;
}

function* tilesOver({ start, stop }: Span): Generator<number> {
  for (let tile = Math.floor(start / TILE); tile * TILE < stop; tile++) yield tile;
}

/** The cells of a tile that are in view. */
const within = ({ start, stop }: Span, tile: number, count: number): Span => ({
  start: Math.max(0, start - tile * TILE),
  stop: Math.min(count, stop - tile * TILE),
});

/** The learned sink's column, for the rows in view. */
function withSink({ low, high }: Extent, { picture, cellGrid }: Shown): Extent {
  const { sink, queryBin } = picture;
  const { bin } = cellGrid.rows;
  const { start, stop } = cellsInView(cellGrid.rows);
  if (sink == null) return { low, high };
  for (let row = Math.floor((start * bin) / queryBin); row < Math.min(sink.length, (stop * bin) / queryBin); row++) {
    const value = sink[row]!;
    if (!Number.isFinite(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return { low, high };
}
