/** Drawing cells. Zero is a tile, masked is not; NaN, ±∞ and clipped cells each have their own look. */

import { BLOCKED, type Grid, MINUS_INF, MISSING, NAN, NUMBER, PLUS_INF } from "../contract/decode";
import type { Stage } from "../contract/values";
import type { Patch } from "../data/matrix";
import { GAPS_FROM, NUMBERS_FROM, numberFont } from "../geometry/layout";
import { edge, type Span, type Viewport, visible } from "../geometry/viewport";
import { cellNumber } from "../text/format";
import type { ColorMapper, Paints } from "./color-mapper";

export interface Scene {
  readonly grid: Grid;
  readonly mapper: ColorMapper;
  readonly paints: Paints;
  readonly stage: Stage;
  readonly cellWidth: number;
  readonly cellHeight: number;
  readonly viewport: Viewport;
  readonly width: number;
  readonly height: number;
  readonly dpr: number;
  readonly unit: number;
  readonly font: string;
  /** Numbers for cells that are wide enough: the grid's if exact, else the patch's, else none. */
  readonly numbers: boolean;
  readonly exact: boolean;
  readonly patch: Patch | null;
  /** The row and column of the grid's first cell, if it is only a part. */
  readonly origin?: { readonly row: number; readonly column: number };
  /** The color mapper's row for a drawn row, if they differ. */
  readonly mapperRow?: (row: number) => number;
}

const ORIGIN = { row: 0, column: 0 };
const SLASH_FROM = 10;
export const CROSS_FROM = 6;
const SIGNS_FROM = 18;

/** Draw a scene on a canvas that is `width × height` CSS pixels. */
export function paint(canvas: HTMLCanvasElement, scene: Scene): void {
  const { width, height, dpr } = scene;
  const context = cleared(canvas, width, height, dpr);
  if (!context) return;
  const { k, x, y } = scene.viewport;
  const columns = visible(scene.grid.columns, scene.cellWidth, k, x, width);
  const rows = visible(scene.grid.rows, scene.cellHeight, k, y, height);
  const size = Math.min(scene.cellWidth, scene.cellHeight) * k;
  if (size >= GAPS_FROM * scene.unit) {
    paintCells(context, scene, rows, columns);
  } else {
    paintRaster(context, scene, rows, columns);
    if (size >= CROSS_FROM * scene.unit) paintMarks(context, scene, rows, columns);
  }
}

/**
 * Return the cleared context of a canvas of `width × height` CSS pixels, scaled to device pixels.
 */
export function cleared(canvas: HTMLCanvasElement, width: number, height: number, dpr: number) {
  const across = Math.round(width * dpr);
  const down = Math.round(height * dpr);
  if (canvas.width !== across) canvas.width = across;
  if (canvas.height !== down) canvas.height = down;
  const context = canvas.getContext("2d");
  context?.setTransform(1, 0, 0, 1, 0, 0);
  context?.clearRect(0, 0, across, down);
  return context;
}

/** The place of a cell, in whole device pixels for crisp edges at any zoom. */
function boxOf(scene: Scene, row: number, column: number, gap: number) {
  const { cellWidth, cellHeight, viewport, dpr } = scene;
  const left = edge(column, cellWidth, viewport.k, viewport.x, dpr);
  const top = edge(row, cellHeight, viewport.k, viewport.y, dpr);
  const right = edge(column + 1, cellWidth, viewport.k, viewport.x, dpr);
  const bottom = edge(row + 1, cellHeight, viewport.k, viewport.y, dpr);
  return { left, top, width: right - left - gap, height: bottom - top - gap };
}

/** Paint a tile for each cell, with its number if it fits. */
export function paintCells(context: CanvasRenderingContext2D, scene: Scene, rows: Span, columns: Span): void {
  const { grid, mapper, paints, unit, viewport, dpr, mapperRow } = scene;
  const { row: top, column: left } = scene.origin ?? ORIGIN;
  context.setTransform(dpr, 0, 0, dpr, 0, 0);
  const size = Math.min(scene.cellWidth, scene.cellHeight) * viewport.k;
  const radius = (size >= 18 * unit ? 2.5 : 1.5) * unit;
  const numbers = scene.numbers && size >= NUMBERS_FROM * unit;
  const fontSize = numberFont(size, unit) * unit;
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let row = rows.start; row < rows.stop; row++) {
    for (let column = columns.start; column < columns.stop; column++) {
      const at = (row - top) * grid.columns + column - left;
      const kind = grid.kinds[at]!;
      if (kind === MISSING || kind === BLOCKED) continue;
      const box = boxOf(scene, row, column, 1);
      if (kind !== NUMBER) {
        paintKind(context, scene, kind, box, size, radius);
        continue;
      }
      const value = grid.values[at]!;
      const index = mapper.index(value, mapperRow ? mapperRow(row) : row);
      context.fillStyle = paints.css[index]!;
      context.beginPath();
      if (mapper.clips(value)) cutCorner(context, box, radius);
      else context.roundRect(box.left, box.top, box.width, box.height, radius);
      context.fill();
      if (!numbers) continue;
      const number = numberAt(scene, row, column, value);
      if (number !== null) paintNumber(context, scene, number, index, box, fontSize);
    }
  }
  slash(context, scene, rows, columns, 1);
}

/** The exact number of a cell: the picture's if exact, else the kernel's once it has arrived. */
function numberAt(scene: Scene, row: number, column: number, value: number): number | null {
  if (scene.exact) return value;
  const { patch } = scene;
  if (patch === null) return null;
  const { queries, keys } = patch;
  const inside = row >= queries.start && row < queries.stop && column >= keys.start && column < keys.stop;
  return inside ? patch.grid.values[(row - queries.start) * patch.grid.columns + column - keys.start]! : null;
}

interface Box {
  left: number;
  top: number;
  width: number;
  height: number;
}

function paintNumber(
  context: CanvasRenderingContext2D,
  scene: Scene,
  value: number,
  index: number,
  box: Box,
  fontSize: number,
): void {
  const { paints, mapper, stage, font } = scene;
  context.font = `400 ${fontSize}px ${font}`;
  const room = box.width - 1;
  const text = [cellNumber(value, stage), cellNumber(value, stage, 1)].find(
    (t) => context.measureText(t).width <= room,
  );
  if (!text) return;
  context.globalAlpha = mapper.share(value) < 0.04 ? 0.6 : 1;
  context.fillStyle = paints.inkOn[index]!;
  context.fillText(text, box.left + box.width / 2, box.top + box.height / 2 + 0.5);
  context.globalAlpha = 1;
}

function cutCorner(context: CanvasRenderingContext2D, box: Box, radius: number): void {
  const cut = Math.min(box.width, box.height) * 0.28;
  const right = box.left + box.width;
  const bottom = box.top + box.height;
  context.moveTo(box.left + radius, box.top);
  context.lineTo(right - cut, box.top);
  context.lineTo(right, box.top + cut);
  context.arcTo(right, bottom, box.left, bottom, radius);
  context.arcTo(box.left, bottom, box.left, box.top, radius);
  context.arcTo(box.left, box.top, right, box.top, radius);
  context.closePath();
}

function paintKind(
  context: CanvasRenderingContext2D,
  scene: Scene,
  kind: number,
  box: Box,
  size: number,
  radius: number,
): void {
  const { paints, unit, font } = scene;
  const { left, top, width, height } = box;
  context.beginPath();
  context.roundRect(left, top, width, height, radius);
  if (kind === NAN) {
    context.fillStyle = paints.badTint;
    context.fill();
    cross(context, paints, box);
    return;
  }
  const plus = kind === PLUS_INF;
  context.fillStyle = plus ? paints.ink : paints.page;
  context.fill();
  if (!plus) {
    context.strokeStyle = paints.ink;
    context.lineWidth = 1;
    context.beginPath();
    context.roundRect(left + 0.5, top + 0.5, width - 1, height - 1, radius);
    context.stroke();
  }
  if (size < SIGNS_FROM * unit) return;
  context.font = `600 ${(size < 28 * unit ? 9 : 11) * unit}px ${font}`;
  context.fillStyle = plus ? paints.page : paints.ink;
  context.fillText(plus ? "+∞" : "−∞", left + width / 2, top + height / 2 + 0.5);
}

/** Draw all blocked cells of a part in one stroke: half of a causal picture is blocked. */
function slash(context: CanvasRenderingContext2D, scene: Scene, rows: Span, columns: Span, gap: number): void {
  const { row: top, column: left } = scene.origin ?? ORIGIN;
  context.beginPath();
  for (let row = rows.start; row < rows.stop; row++) {
    for (let column = columns.start; column < columns.stop; column++) {
      if (scene.grid.kinds[(row - top) * scene.grid.columns + column - left] !== BLOCKED) continue;
      const box = boxOf(scene, row, column, gap);
      const reach = Math.min(box.width, box.height) * 0.2;
      const x = box.left + box.width / 2;
      const y = box.top + box.height / 2;
      context.moveTo(x - reach, y + reach);
      context.lineTo(x + reach, y - reach);
    }
  }
  context.globalAlpha = 0.2;
  context.strokeStyle = scene.paints.ink;
  context.lineWidth = 0.75;
  context.stroke();
  context.globalAlpha = 1;
}

function cross(context: CanvasRenderingContext2D, paints: Paints, { left, top, width, height }: Box): void {
  const reach = Math.min(width, height) * 0.2;
  const x = left + width / 2;
  const y = top + height / 2;
  context.strokeStyle = paints.bad;
  context.lineWidth = 1.5;
  context.beginPath();
  context.moveTo(x - reach, y - reach);
  context.lineTo(x + reach, y + reach);
  context.moveTo(x - reach, y + reach);
  context.lineTo(x + reach, y - reach);
  context.stroke();
}

/** One pixel per cell, made once for each grid, color mapper and theme, then stretched without smoothing. */
function paintRaster(context: CanvasRenderingContext2D, scene: Scene, rows: Span, columns: Span): void {
  const { cellWidth, cellHeight, viewport, dpr } = scene;
  const small = Math.min(cellWidth, cellHeight) * viewport.k < CROSS_FROM * scene.unit;
  const source = rasterOf(scene.grid, scene.mapper, scene.paints, small);
  const across = columns.stop - columns.start;
  const down = rows.stop - rows.start;
  if (across === 0 || down === 0) return;
  const left = edge(columns.start, cellWidth, viewport.k, viewport.x, dpr) * dpr;
  const top = edge(rows.start, cellHeight, viewport.k, viewport.y, dpr) * dpr;
  const right = edge(columns.stop, cellWidth, viewport.k, viewport.x, dpr) * dpr;
  const bottom = edge(rows.stop, cellHeight, viewport.k, viewport.y, dpr) * dpr;
  context.imageSmoothingEnabled = false;
  context.drawImage(source, columns.start, rows.start, across, down, left, top, right - left, bottom - top);
}

interface Raster {
  grid: Grid;
  mapper: ColorMapper;
  paints: Paints;
  small: boolean;
  canvas: HTMLCanvasElement;
}

/** Keyed by values: a picture whose rows become exact one by one keeps its canvas. */
const rasters = new WeakMap<Float32Array, Raster>();

/** Return a canvas with one pixel per cell, redrawn only if grid, colors or size change. */
export function rasterOf(grid: Grid, mapper: ColorMapper, paints: Paints, small: boolean): HTMLCanvasElement {
  const known = rasters.get(grid.values);
  const same = known && known.grid === grid && known.mapper === mapper && known.paints === paints;
  if (same && known.small === small) return known.canvas;
  const canvas = known?.canvas ?? document.createElement("canvas");
  drawRaster(canvas, grid, mapper, paints, small);
  rasters.set(grid.values, { grid, mapper, paints, small, canvas });
  return canvas;
}

/** Fill a canvas with one pixel for each cell. */
export function drawRaster(
  canvas: HTMLCanvasElement,
  grid: Grid,
  mapper: ColorMapper,
  paints: Paints,
  small = true,
): void {
  canvas.width = grid.columns;
  canvas.height = grid.rows;
  const context = canvas.getContext("2d");
  if (!context) return;
  const image = context.createImageData(grid.columns, grid.rows);
  const pixels = new Uint32Array(image.data.buffer);
  const { values, kinds } = grid;
  for (let row = 0, at = 0; row < grid.rows; row++) {
    for (let column = 0; column < grid.columns; column++, at++) {
      const kind = kinds[at]!;
      if (kind === NUMBER) pixels[at] = paints.packed[mapper.index(values[at]!, row)]!;
      else if (kind === NAN) pixels[at] = small ? paints.badPacked : paints.badTintPacked;
      else if (kind === PLUS_INF) pixels[at] = paints.inkPacked;
      else if (kind === MINUS_INF) pixels[at] = paints.ink3Packed;
    }
  }
  context.putImageData(image, 0, 0);
}

/** Paint slashes and crosses over a raster whose cells are wide enough for them. */
export function paintMarks(context: CanvasRenderingContext2D, scene: Scene, rows: Span, columns: Span): void {
  const { grid, paints, unit, viewport, dpr } = scene;
  const { row: top, column: left } = scene.origin ?? ORIGIN;
  context.setTransform(dpr, 0, 0, dpr, 0, 0);
  const slashes = Math.min(scene.cellWidth, scene.cellHeight) * viewport.k >= SLASH_FROM * unit;
  for (let row = rows.start; row < rows.stop; row++) {
    for (let column = columns.start; column < columns.stop; column++) {
      const kind = grid.kinds[(row - top) * grid.columns + column - left]!;
      if (kind === NAN) cross(context, paints, boxOf(scene, row, column, 0));
    }
  }
  if (slashes) slash(context, scene, rows, columns, 0);
}

/** A grid with fewer cells for a coarser screen: the maximum by `size` of each `down × across` block, NaN if any is. */
export function foldGrid(grid: Grid, down: number, across = down, size = (value: number) => value): Grid {
  if (down === 1 && across === 1) return grid;
  const rows = Math.ceil(grid.rows / down);
  const columns = Math.ceil(grid.columns / across);
  const values = new Float32Array(rows * columns).fill(Number.NEGATIVE_INFINITY);
  const kinds = new Uint8Array(rows * columns).fill(BLOCKED);
  for (let row = 0, at = 0; row < grid.rows; row++) {
    const base = Math.floor(row / down) * columns;
    for (let column = 0; column < grid.columns; column++, at++) {
      const kind = grid.kinds[at]!;
      if (kind === BLOCKED) continue;
      const to = base + Math.floor(column / across);
      const value = grid.values[at]!;
      const now = kinds[to]!;
      if (now === NAN) continue;
      if (kind === NAN || now === BLOCKED || size(value) > size(values[to]!)) {
        values[to] = value;
        kinds[to] = kind;
      }
    }
  }
  return { rows, columns, values, kinds };
}
