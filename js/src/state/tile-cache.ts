/** Parts of the matrix in finer bins than the picture's: kept within a budget, requested when they come into view. */

import { effect, type ReadonlySignal, type Signal, signal } from "@preact/signals-core";
import { decodeTile, type Picture, TILE, type Tile } from "../contract/decode";
import type { Bytes, Facts, TileAddress, TileMessage } from "../contract/messages";
import { type Axis, type CellGrid, cellsInView } from "../geometry/cell-grid";
import type { Span } from "../geometry/viewport";
import { type Kernel, KernelGone } from "../kernel/kernel";

/** The budget in bytes, for all views of a widget. */
export const BUDGET = 24 * 1024 * 1024;
/** The bytes of a tile besides its codes. */
const OVERHEAD = 1536;

/** The subject of tiles, as a text. */
export type TilesOf = string;

/** Return the key of the subject of tiles. */
export function tilesOf({ layer, batch, head, stage, pool }: Picture["of"], version: number): TilesOf {
  return `${layer} ${batch} ${head} ${stage} ${pool} ${version}`;
}

export interface KeptTile extends Tile {
  /** When it arrived, by the page's clock, if nothing as fine was there before. */
  readonly arrived: number;
}

export interface TileCache {
  /** Changes with every tile that comes. */
  readonly revision: ReadonlySignal<number>;
  readonly bytes: number;
  get(of: TilesOf, rowLevel: number, columnLevel: number, row: number, column: number): KeptTile | undefined;
  /** The finest tile that is coarser than these levels and covers this tile. */
  coarser(of: TilesOf, rowLevel: number, columnLevel: number, row: number, column: number): KeptTile | undefined;
  put(of: TilesOf, tile: Tile): void;
  /** Tiles as they arrive; unreadable ones are dropped. */
  take(
    of: TilesOf,
    tiles: readonly TileMessage[],
    size: Pick<Facts, "queries" | "keys">,
    buffers: readonly Bytes[],
  ): Promise<void>;
}

const nameOf = (of: TilesOf, rowLevel: number, columnLevel: number, row: number, column: number) =>
  `${of}|${rowLevel} ${columnLevel} ${row} ${column}`;

/** Return a cache of tiles; `heard` is called with every tile that is kept. */
export function createTileCache(budget = BUDGET, heard: (of: TilesOf, tile: Tile) => void = () => {}): TileCache {
  const kept = new Map<string, KeptTile>(); // least recently used first
  /** The number of tiles for each pair of levels, to find coarser ones. */
  const levels = new Map<TilesOf, Map<number, number>>();
  const revision = signal(0);
  let bytes = 0;
  const sizeOf = (tile: Tile) => tile.codes.byteLength + OVERHEAD;
  const pairOf = (rowLevel: number, columnLevel: number) => rowLevel * 64 + columnLevel;

  function account(of: TilesOf, tile: Tile, by: 1 | -1): void {
    bytes += by * sizeOf(tile);
    const pairs = levels.get(of) ?? new Map<number, number>();
    const pair = pairOf(tile.address[0], tile.address[1]);
    const left = (pairs.get(pair) ?? 0) + by;
    if (left > 0) pairs.set(pair, left);
    else pairs.delete(pair);
    if (pairs.size > 0) levels.set(of, pairs);
    else levels.delete(of);
  }

  function drop(name: string, tile: KeptTile): void {
    kept.delete(name);
    account(name.slice(0, name.indexOf("|")), tile, -1);
  }

  function find(name: string): KeptTile | undefined {
    const tile = kept.get(name);
    if (tile === undefined) return undefined;
    kept.delete(name);
    kept.set(name, tile);
    return tile;
  }

  function put(of: TilesOf, tile: Tile): void {
    const name = nameOf(of, ...tile.address);
    const before = kept.get(name);
    if (before !== undefined && before.every < tile.every) return; // the finer one stays
    if (before !== undefined) drop(name, before);
    const arrived = before === undefined ? performance.now() : Number.NEGATIVE_INFINITY;
    kept.set(name, { ...tile, arrived });
    account(of, tile, 1);
    for (const [oldest, old] of kept) {
      if (bytes <= budget) break;
      drop(oldest, old);
    }
    heard(of, tile);
    revision.value++;
  }

  return {
    revision,
    get bytes() {
      return bytes;
    },
    get: (...place) => find(nameOf(...place)),
    coarser(of, rowLevel, columnLevel, row, column) {
      let best: { rowLevel: number; columnLevel: number; name: string } | null = null;
      for (const pair of levels.get(of)?.keys() ?? []) {
        const up = Math.floor(pair / 64) - rowLevel;
        const across = (pair % 64) - columnLevel;
        if (up < 0 || across < 0 || up + across === 0) continue;
        if (best !== null && up + across >= best.rowLevel + best.columnLevel) continue;
        const name = nameOf(of, rowLevel + up, columnLevel + across, row >> up, column >> across);
        if (kept.has(name)) best = { rowLevel: up, columnLevel: across, name };
      }
      return best === null ? undefined : find(best.name);
    },
    put,
    async take(of, tiles, size, buffers) {
      const read = await Promise.allSettled(tiles.map((tile) => decodeTile(tile, size, buffers)));
      for (const one of read) if (one.status === "fulfilled") put(of, one.value);
    },
  };
}

/** Return the tiles of a cell grid in view, the central ones first. */
export function tilesInView({ rows, columns, levels }: CellGrid): TileAddress[] {
  if (levels === null) return [];
  const span = (axis: Axis): Span => {
    const { start, stop } = cellsInView(axis);
    return { start: Math.floor(start / TILE), stop: Math.ceil(stop / TILE) };
  };
  const down = span(rows);
  const across = span(columns);
  const found: TileAddress[] = [];
  for (let row = down.start; row < down.stop; row++) {
    for (let column = across.start; column < across.stop; column++) {
      found.push([levels.row, levels.column, row, column]);
    }
  }
  const middle = ({ offset, size, cell }: Axis) => (size / 2 - offset) / (cell * TILE) - 0.5;
  const away = (tile: TileAddress) => Math.hypot(tile[2] - middle(rows), tile[3] - middle(columns));
  return found.sort((a, b) => away(a) - away(b));
}

/** The wanted tiles of a picture. */
export interface WantedTiles {
  readonly picture: Picture;
  readonly of: TilesOf;
  readonly tiles: readonly TileAddress[];
  /** The magnification, as any number that panning does not change. */
  readonly scale: number;
}

const MOST_ASKED = 64;
/** Milliseconds without zooming before tiles of other levels are requested. */
export const REST = 120;
let views = 0;

/**
 * Requests wanted tiles that are missing. One request is pending at a time, and what is wanted at its end is requested
 * next, so the newest view comes first, and panning does not outrun the answers. The kernel drops the unsent rest of an
 * earlier request, so each request names all missing tiles.
 *
 * Levels that a turning wheel only passes are not requested: their tiles would be out of view on arrival, the last ones
 * would wait for them, and the bytes sent would depend on the speed of the machine.
 */
export function tileSource(
  cache: TileCache,
  kernel: Kernel,
  wanted: ReadonlySignal<WantedTiles | null>,
  isCurrent: () => boolean,
  stop: AbortSignal,
): void {
  const view = `view ${++views} ${Math.random().toString(36).slice(2, 8)}`;
  const asking: Signal<boolean> = signal(false);
  let current: { of: TilesOf; end: AbortController } | null = null;
  let asked: { of: TilesOf; names: Set<string> } = { of: "", names: new Set() };
  const rested = signal(""); // the levels at which zooming last stopped
  let seen = "";
  let rest: ReturnType<typeof setTimeout> | undefined;

  /** Whether zooming stopped at these levels; if not, `rested` changes once it does. */
  function isAtRest(levels: string, scale: number): boolean {
    const now = rested.value === levels ? "" : `${levels} ${scale}`;
    if (now !== seen) {
      seen = now;
      clearTimeout(rest);
      if (now !== "")
        rest = setTimeout(() => {
          rested.value = levels;
        }, REST);
    }
    return now === "";
  }

  async function ask({ picture, of, tiles }: WantedTiles): Promise<void> {
    const end = new AbortController();
    current = { of, end };
    asking.value = true;
    asked = { of, names: new Set(tiles.map(String)) };
    try {
      const { layer, batch, head, stage, pool } = picture.of;
      const body = { layer, batch, head, stage, pool, view, tiles };
      const reply = await kernel.request("tiles", body, { signal: end.signal });
      await cache.take(of, reply.tiles, picture, reply.buffers);
    } catch (error) {
      if (error instanceof KernelGone) asked = { of: "", names: new Set() }; // another kernel is asked again
    } finally {
      if (current?.end === end) {
        current = null;
        asking.value = false;
      }
    }
  }

  const finish = effect(() => {
    const now = isCurrent() ? wanted.value : null; // nothing more is requested for a head that was left
    const gone = kernel.away.value;
    if (current !== null && now?.of !== current.of) {
      current.end.abort();
      current = null;
      asking.value = false;
    }
    if (now === null || !isAtRest(String(now.tiles[0]?.slice(0, 2)), now.scale) || gone || asking.value) return;
    const missing = now.tiles.filter((tile) => cache.get(now.of, ...tile)?.every !== 1);
    const due = missing.some((tile) => asked.of !== now.of || !asked.names.has(String(tile)));
    if (due) void ask({ ...now, tiles: missing.slice(0, MOST_ASKED) });
  });
  stop.addEventListener(
    "abort",
    () => {
      finish();
      clearTimeout(rest);
      current?.end.abort();
    },
    { once: true },
  );
}
