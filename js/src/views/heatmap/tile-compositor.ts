/**
 * A zoomed part of a long matrix, drawn from the best tile for each place: exact, sampled, coarser, or finally the
 * picture of the whole; never a blank.
 */

import {
  type Coded,
  type Grid,
  MINUS_INF,
  MISSING,
  NAN,
  NUMBER,
  type Picture,
  PLUS_INF,
  TILE,
} from "../../contract/decode";
import { CROSS_FROM, cleared, paintCells, paintMarks, rasterOf, type Scene } from "../../draw/cells";
import type { ColorMapper, Paints } from "../../draw/color-mapper";
import { type Axis, type CellGrid, cellsInView, startOf } from "../../geometry/cell-grid";
import { GAPS_FROM } from "../../geometry/layout";
import type { Span } from "../../geometry/viewport";
import type { KeptTile, TileCache, TilesOf } from "../../state/tile-cache";

/** Milliseconds in which a tile fades in over the coarser one. */
export const FADE = 80;
/** Canvases of tiles per view: enough for several screens. */
const MOST_RASTERS = 96;

export interface TileScene
  extends Omit<Scene, "grid" | "cellWidth" | "cellHeight" | "viewport" | "exact" | "origin" | "mapperRow"> {
  readonly picture: Picture;
  readonly cellGrid: CellGrid;
  readonly tiles: TileCache;
  readonly of: TilesOf;
  readonly rasters: TileRasters;
  /** The page's clock; Infinity if nothing should move. */
  readonly now: number;
}

export interface PaintedTiles {
  /** Whether a tile is still fading in. */
  readonly fading: boolean;
  /** Queries per sampled query, in the coarsest sampled tile in view; 1 if there is none. */
  readonly every: number;
}

/**
 * The visible cells of one axis that belong to one tile, and their place on the canvas in device pixels.
 */
interface TileSpan {
  readonly tile: number;
  readonly cells: Span;
  readonly from: number;
  readonly length: number;
}

/** Paint the view from the finest tiles available, each over a coarser one while it fades in. */
export function paintTiles(canvas: HTMLCanvasElement, tileScene: TileScene): PaintedTiles {
  const { cellGrid, tiles, of, width, height, dpr, unit, now } = tileScene;
  const { rows, columns, levels } = cellGrid;
  const context = cleared(canvas, width, height, dpr);
  if (!context || levels === null) return { fading: false, every: 1 };
  context.imageSmoothingEnabled = false;
  const size = Math.min(rows.cell, columns.cell);
  const asCells = size >= GAPS_FROM * unit;
  let fading = false;
  let every = 1;
  const across = tileSpansOf(columns, dpr);
  for (const down of tileSpansOf(rows, dpr)) {
    for (const right of across) {
      const tile = tiles.get(of, levels.row, levels.column, down.tile, right.tile);
      if (tile !== undefined) every = Math.max(every, tile.every);
      if (tile !== undefined && asCells) continue;
      const share = tile === undefined ? 0 : Math.min(1, (now - tile.arrived) / FADE);
      fading ||= tile !== undefined && share < 1;
      context.globalAlpha = 1 - share;
      if (share < 1) paintCoarser(context, tileScene, down, right);
      if (tile === undefined || share === 0) continue;
      context.globalAlpha = share;
      if (share < 1) context.globalCompositeOperation = "lighter"; // the two shares add up to a whole
      paintPart(context, tileScene, tile, down, right, {
        x: right.cells.start - right.tile * TILE,
        y: down.cells.start - down.tile * TILE,
        width: right.cells.stop - right.cells.start,
        height: down.cells.stop - down.cells.start,
      });
      context.globalCompositeOperation = "source-over";
    }
  }
  context.globalAlpha = 1;
  if (size >= CROSS_FROM * unit) {
    const scene = cellScene(tileScene);
    (asCells ? paintCells : paintMarks)(context, scene, cellsInView(rows), cellsInView(columns));
  }
  return { fading, every };
}

function tileSpansOf(axis: Axis, dpr: number): TileSpan[] {
  const { start, stop } = cellsInView(axis);
  const strips: TileSpan[] = [];
  for (let tile = Math.floor(start / TILE); tile * TILE < stop; tile++) {
    const cells = { start: Math.max(start, tile * TILE), stop: Math.min(stop, (tile + 1) * TILE) };
    const from = Math.round(startOf(axis, cells.start, dpr) * dpr);
    strips.push({ tile, cells, from, length: Math.round(startOf(axis, cells.stop, dpr) * dpr) - from });
  }
  return strips;
}

/** The coarser data for a place. */
function paintCoarser(context: CanvasRenderingContext2D, tileScene: TileScene, down: TileSpan, right: TileSpan): void {
  const { cellGrid, picture, tiles, of, mapper, paints } = tileScene;
  const { rows, columns } = cellGrid;
  const levels = cellGrid.levels!;
  const part = (axis: Axis, cells: Span, bin: number, first: number) => ({
    from: (cells.start * axis.bin) / bin - first,
    length: (Math.min(cells.stop * axis.bin, axis.total) - cells.start * axis.bin) / bin,
  });
  const tile = tiles.coarser(of, levels.row, levels.column, down.tile, right.tile);
  if (tile !== undefined) {
    const [rowLevel, columnLevel, row, column] = tile.address;
    const y = part(rows, down.cells, 2 ** rowLevel, row * TILE);
    const x = part(columns, right.cells, 2 ** columnLevel, column * TILE);
    paintPart(context, tileScene, tile, down, right, { x: x.from, y: y.from, width: x.length, height: y.length });
    return;
  }
  if (picture.grid === null) return;
  const y = part(rows, down.cells, picture.queryBin, 0);
  const x = part(columns, right.cells, picture.keyBin, 0);
  const whole = rasterOf(picture.grid, mapper, paints, true);
  context.drawImage(whole, x.from, y.from, x.length, y.length, right.from, down.from, right.length, down.length);
}

function paintPart(
  context: CanvasRenderingContext2D,
  { rasters, mapper, paints, picture }: TileScene,
  tile: KeptTile,
  down: TileSpan,
  right: TileSpan,
  part: { x: number; y: number; width: number; height: number },
): void {
  const raster = rasters.of(tile, mapper, paints, picture.queryBin);
  const { x, y, width, height } = part;
  context.drawImage(raster, x, y, width, height, right.from, down.from, right.length, down.length);
}

// --- cells ----------------------------------------------------------------------------------------------------------

/** The cells in view as a grid, which is reused so that a pan creates no garbage. */
const cellsOf = new WeakMap<TileRasters, Grid>();

function cellScene(tileScene: TileScene): Scene {
  const { cellGrid, tiles, of, rasters, picture } = tileScene;
  const { rows, columns } = cellGrid;
  const levels = cellGrid.levels!;
  const down = cellsInView(rows);
  const across = cellsInView(columns);
  const grid = gridFor(rasters, down.stop - down.start, across.stop - across.start);
  for (let tileRow = Math.floor(down.start / TILE); tileRow * TILE < down.stop; tileRow++) {
    for (let tileColumn = Math.floor(across.start / TILE); tileColumn * TILE < across.stop; tileColumn++) {
      const tile = tiles.get(of, levels.row, levels.column, tileRow, tileColumn);
      const top = tileRow * TILE;
      const left = tileColumn * TILE;
      const lastColumn = Math.min(across.stop, left + TILE);
      for (let row = Math.max(down.start, top); row < Math.min(down.stop, top + TILE); row++) {
        let to = (row - down.start) * grid.columns + Math.max(across.start, left) - across.start;
        for (let column = Math.max(across.start, left); column < lastColumn; column++, to++) {
          const code = tile?.codes[(row - top) * tile.columns + column - left] ?? 0;
          grid.kinds[to] = tile === undefined ? MISSING : tile.kindOf[code]!;
          if (tile !== undefined) grid.values[to] = tile.numbers[code]!;
        }
      }
    }
  }
  return {
    ...tileScene,
    grid,
    cellWidth: columns.cell,
    cellHeight: rows.cell,
    viewport: { k: 1, x: columns.offset, y: rows.offset },
    exact: false,
    origin: { row: down.start, column: across.start },
    mapperRow: (row) => Math.floor((row * rows.bin) / picture.queryBin),
  };
}

function gridFor(owner: TileRasters, rows: number, columns: number): Grid {
  let grid = cellsOf.get(owner);
  if (grid === undefined || grid.values.length < rows * columns) {
    const room = rows * columns + 1024;
    grid = { rows, columns, values: new Float32Array(room), kinds: new Uint8Array(room) };
    cellsOf.set(owner, grid);
  }
  return Object.assign(grid, { rows, columns });
}

// --- rasters --------------------------------------------------------------------------------------------------------

interface Raster {
  tile: KeptTile;
  mapper: ColorMapper;
  paints: Paints;
  canvas: HTMLCanvasElement;
}

/**
 * Tiles as canvases with a pixel per cell, made once for each color mapper; the least recently used canvas is
 * reused.
 */
export class TileRasters {
  readonly #made = new Map<KeptTile, Raster>();
  #pixels: { image: ImageData; packed: Uint32Array } | null = null;

  get size(): number {
    return this.#made.size;
  }

  of(tile: KeptTile, mapper: ColorMapper, paints: Paints, queryBin: number): HTMLCanvasElement {
    const known = this.#made.get(tile);
    this.#made.delete(tile);
    const canvas = known?.canvas ?? this.#free();
    if (known?.mapper !== mapper || known.paints !== paints) this.#draw(canvas, tile, mapper, paints, queryBin);
    this.#made.set(tile, { tile, mapper, paints, canvas });
    return canvas;
  }

  dispose(): void {
    for (const { canvas } of this.#made.values()) canvas.width = 0; // some browsers count uncollected canvases
    this.#made.clear();
  }

  #free(): HTMLCanvasElement {
    for (const [tile, { canvas }] of this.#made) {
      if (this.#made.size < MOST_RASTERS) break;
      this.#made.delete(tile);
      return canvas;
    }
    return Object.assign(document.createElement("canvas"), { width: TILE, height: TILE });
  }

  #draw(canvas: HTMLCanvasElement, tile: KeptTile, mapper: ColorMapper, paints: Paints, queryBin: number): void {
    const context = canvas.getContext("2d");
    if (!context) return;
    this.#pixels ??= pixelsOf(context.createImageData(TILE, TILE));
    const { image, packed } = this.#pixels;
    const { rows, columns, codes, address } = tile;
    const bin = 2 ** address[0];
    let lookedUp = -1;
    let colors: Uint32Array = packed;
    for (let row = 0, at = 0; row < rows; row++) {
      // With a range per row, use that of the picture's row; else all rows have the same colors.
      const mapperRow = mapper.domain === null ? Math.floor(((address[2] * TILE + row) * bin) / queryBin) : 0;
      if (mapperRow !== lookedUp) colors = colorsOf(tile, mapper, mapperRow, paints);
      lookedUp = mapperRow;
      for (let column = 0, to = row * TILE; column < columns; column++, at++, to++) packed[to] = colors[codes[at]!]!;
    }
    context.clearRect(0, 0, TILE, TILE);
    context.putImageData(image, 0, 0, 0, 0, columns, rows);
  }
}

function pixelsOf(image: ImageData) {
  return { image, packed: new Uint32Array(image.data.buffer) };
}

/** Return the color of each code of a tile; 0 (nothing) for blocked cells. */
export function colorsOf({ numbers, kindOf }: Coded, mapper: ColorMapper, row: number, paints: Paints): Uint32Array {
  const colors = new Uint32Array(256);
  for (let code = 0; code < 256; code++) {
    const kind = kindOf[code];
    if (kind === NUMBER) colors[code] = paints.packed[mapper.index(numbers[code]!, row)]!;
    else if (kind === NAN) colors[code] = paints.badPacked;
    else if (kind === PLUS_INF) colors[code] = paints.inkPacked;
    else if (kind === MINUS_INF) colors[code] = paints.ink3Packed;
  }
  return colors;
}
