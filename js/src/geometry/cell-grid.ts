/**
 * The cells drawn at the current zoom: how many positions one covers along each axis, and where it is. Unzoomed, a
 * matrix is drawn in the picture's own bins; zoomed, in bins of 2^level positions, so that few are in view and each is
 * at least a pixel, down to single cells.
 */

import type { Picture } from "../contract/decode";
import { type Figure, GAPS_FROM, LINE, MAX_CELL, SMALL } from "./layout";
import { cellAt, edge, type Span, type Viewport, visible, WHOLE } from "./viewport";

/** Bins in view along an axis: at most four tiles, so that one zoom step fits into 256 KiB. */
export const MOST_BINS = 384;

export interface Axis {
  /** Positions of the matrix: all, and those of one drawn cell. */
  readonly total: number;
  readonly bin: number;
  readonly count: number;
  /** CSS pixels: of one position, of one drawn cell, before the first, and of the view. */
  readonly pitch: number;
  readonly cell: number;
  readonly offset: number;
  readonly size: number;
}

export interface CellGrid {
  readonly rows: Axis;
  readonly columns: Axis;
  /** The levels of both axes if tiles are drawn; null if the picture itself has the cells. */
  readonly levels: { readonly row: number; readonly column: number } | null;
}

/** Sizes before zooming, and how far each axis can be magnified. */
export interface Reach {
  readonly x: AxisReach;
  readonly y: AxisReach;
  /** The zoom at which both axes are largest. */
  readonly most: number;
  /** From this zoom on, tokens left of the picture cover this much of it: see `Figure.inset`. */
  readonly covered: { readonly from: number; readonly width: number };
}

interface AxisReach {
  readonly total: number;
  readonly own: number;
  readonly cell: number;
  readonly size: number;
  readonly most: number;
  /** Cells of at least so many pixels are drawn whole or not at all. */
  readonly whole: number;
}

type Size = Pick<Picture, "queries" | "keys" | "queryBin" | "keyBin">;

/** Return the unzoomed size of a picture in a figure, and its zoom limits. */
export function reachOf(picture: Size, figure: Figure, unit: number): Reach {
  const { fold, cellWidth, cellHeight, width, height } = figure;
  const pitch = { x: cellWidth / (picture.keyBin * fold), y: cellHeight / (picture.queryBin * fold) };
  const axis = (total: number, own: number, cell: number, size: number, mine: number, other: number): AxisReach => {
    // Lines that are tall enough keep their height while their contents are magnified.
    const readable = mine > other && mine >= LINE * unit;
    const most = readable ? 1 : Math.max(1, (MAX_CELL * unit) / mine);
    return { total, own, cell, size, most, whole: GAPS_FROM * unit };
  };
  const x = axis(picture.keys, picture.keyBin * fold, cellWidth, width, pitch.x, pitch.y);
  const y = axis(picture.queries, picture.queryBin * fold, cellHeight, height, pitch.y, pitch.x);
  const from = firstAbove(SMALL * unit, pitch.y);
  return { x, y, most: Math.max(x.most, y.most), covered: { from, width: figure.inset ?? 0 } };
}

/** The zoom at which a size exceeds `limit`. */
const firstAbove = (limit: number, size: number) => (limit / size) * (1 + 1e-9);

/** How much of the picture the tokens on its left cover at zoom `k`. */
export const coveredAt = ({ covered }: Reach, k: number) => (k > 1 && k >= covered.from ? covered.width : 0);

/** The magnification of an axis at zoom `k`, limited by its largest cells. */
const scaleOf = (k: number, { most }: AxisReach) => Math.min(k, most);

/** CSS pixels of one position of the matrix. */
export const pitchOf = (reach: AxisReach, k: number) => (reach.cell / reach.own) * scaleOf(k, reach);

/** Return the zoom at which one cell of the matrix is `size` pixels, or as large as possible. */
export function zoomFor(reach: Reach, size: number): number {
  const wanted = ({ cell, own, most }: AxisReach) => Math.min(most, (size * own) / cell);
  return Math.min(reach.most, Math.max(1, wanted(reach.x), wanted(reach.y)));
}

/**
 * Return the cells drawn in a view. With `whole`, the picture has every cell of the matrix, and its own cells are
 * drawn at any zoom, folded or not.
 */
export function cellGridOf(reach: Reach, view: Viewport, whole: boolean): CellGrid {
  const x = wantedLevel(reach.x, view.k);
  const y = wantedLevel(reach.y, view.k);
  // The picture's own cells, unless finer ones are worthwhile.
  const own = view.k <= 1 || (2 ** x >= reach.x.own && 2 ** y >= reach.y.own);
  const level = (wanted: number, axis: AxisReach) => Math.min(wanted, Math.floor(Math.log2(axis.own)));
  const levels = own ? null : { row: level(y, reach.y), column: level(x, reach.x) };
  return {
    rows: axisOf(reach.y, view.k, view.y, levels ? 2 ** levels.row : reach.y.own),
    columns: axisOf(reach.x, view.k, view.x, levels ? 2 ** levels.column : reach.x.own, coveredAt(reach, view.k)),
    levels: whole ? null : levels,
  };
}

/**
 * Return the cells of a picture without finer data: its own bins at any zoom, folded if the
 * screen has fewer pixels.
 */
export function ownCellGrid(reach: Reach, view: Viewport, size: Size): CellGrid {
  const axis = (axis: AxisReach, offset: number, bin: number, covered = 0) =>
    axisOf(axis, view.k, offset, bin * Math.ceil(axis.own / bin / scaleOf(view.k, axis)), covered);
  return {
    rows: axis(reach.y, view.y, size.queryBin),
    columns: axis(reach.x, view.x, size.keyBin, coveredAt(reach, view.k)),
    levels: null,
  };
}

/** The lowest level whose bins are few enough in view and at least a pixel each. */
function wantedLevel(reach: AxisReach, k: number): number {
  const pitch = pitchOf(reach, k);
  const inView = Math.min(reach.total, reach.size / pitch);
  return Math.max(0, Math.ceil(Math.log2(Math.max(inView / MOST_BINS, 1 / pitch)) - 1e-9));
}

function axisOf(reach: AxisReach, k: number, from: number, bin: number, covered = 0): Axis {
  const { total, own } = reach;
  const cell = reach.cell * scaleOf(k, reach) * (bin / own);
  const offset = from - covered;
  const room = reach.size - covered;
  // If the first cell in view is whole, so is the last.
  const isWhole = k > 1 && cell >= reach.whole && Math.abs(offset / cell - Math.round(offset / cell)) * cell < 0.5;
  const size = isWhole ? Math.max(1, Math.floor(room / cell + 1e-6)) * cell : room;
  return { total, bin, count: Math.ceil(total / bin), pitch: cell / bin, cell, offset, size: Math.min(size, room) };
}

/** The start of a drawn cell, on a whole device pixel. */
export const startOf = (axis: Axis, index: number, dpr: number) => edge(index, axis.cell, 1, axis.offset, dpr);

/** The drawn cell at a position of the canvas, or null outside. */
export function cellUnder(axis: Axis, at: number): number | null {
  const index = cellAt(at, axis.count, axis.cell, 1, axis.offset);
  return index !== null && index < cellsInView(axis).stop ? index : null;
}

/** The drawn cells at least partly in view. */
export const cellsInView = (axis: Axis): Span => visible(axis.count, axis.cell, 1, axis.offset, axis.size);

/** The positions of the matrix at least partly in view. */
export const placesInView = (axis: Axis): Span => visible(axis.total, axis.pitch, 1, axis.offset, axis.size);

/** The drawn cell that holds a position, with all its positions. */
export const cellOf = (axis: Axis, place: number) => Math.floor(place / axis.bin);

/** Return the positions that a drawn cell covers. */
export function placesOf(axis: Axis, index: number): Span {
  return { start: index * axis.bin, stop: Math.min((index + 1) * axis.bin, axis.total) };
}

// --- moving ---------------------------------------------------------------------------------------------------------

/** Return the view, moved so that it shows nothing outside the matrix. */
export function within(reach: Reach, { k, x, y }: Viewport): Viewport {
  const zoom = Math.min(reach.most, Math.max(1, k));
  const keep = (axis: AxisReach, offset: number, covered = 0) =>
    Math.min(covered, Math.max(offset, axis.size - axis.total * pitchOf(axis, zoom)));
  return { k: zoom, x: keep(reach.x, x, coveredAt(reach, zoom)), y: keep(reach.y, y) };
}

/**
 * Return the view, moved by less than a cell, so that large cells at its edges are whole; at the end of an axis, less
 * than a cell stays empty.
 */
export function withWholeCells(reach: Reach, view: Viewport, { rows, columns }: CellGrid): Viewport {
  if (view.k <= 1) return view;
  const settled = (axis: AxisReach, { cell, count, pitch }: Axis, offset: number, covered = 0) => {
    if (cell < axis.whole) return offset;
    const shown = Math.max(1, Math.floor((axis.size - covered) / cell + 1e-6));
    const last = Math.max(0, count - shown);
    const atEnd = offset + axis.total * pitch <= axis.size + 0.5;
    const first = atEnd ? last : Math.min(last, Math.max(0, Math.round((covered - offset) / cell)));
    return covered - first * cell;
  };
  const covered = coveredAt(reach, view.k);
  return { k: view.k, x: settled(reach.x, columns, view.x, covered), y: settled(reach.y, rows, view.y) };
}

/** Zoom so that the content at a point of the canvas stays there. */
export function zoomedAt(reach: Reach, view: Viewport, k: number, point: { x: number; y: number }): Viewport {
  const zoom = Math.min(reach.most, Math.max(1, k));
  const moved = (axis: AxisReach, offset: number, at: number) =>
    at - (at - offset) * (scaleOf(zoom, axis) / scaleOf(view.k, axis));
  const x = point.x + coveredAt(reach, view.k);
  return within(reach, { k: zoom, x: moved(reach.x, view.x, x), y: moved(reach.y, view.y, point.y) });
}

/**
 * Return a view centered on a cell of the matrix; an axis without a place keeps its center.
 */
export function centered(
  reach: Reach,
  view: Viewport,
  k: number,
  place: { query: number | null; key: number | null },
): Viewport {
  const offset = (axis: AxisReach, before: number, at: number | null) => {
    const middle = at === null ? (middleOf(reach, axis, view.k) - before) / pitchOf(axis, view.k) : at + 0.5;
    return middleOf(reach, axis, k) - middle * pitchOf(axis, k);
  };
  return within(reach, { k, x: offset(reach.x, view.x, place.key), y: offset(reach.y, view.y, place.query) });
}

/** The center of the view along an axis, in unzoomed pixels of the picture. */
const middleOf = (reach: Reach, axis: AxisReach, k: number) =>
  (axis.size + (axis === reach.x ? coveredAt(reach, k) : 0)) / 2;

/** Return the same view (place and size) in a figure of another size. */
export function refitted(before: Reach, now: Reach, view: Viewport): Viewport {
  if (view.k <= 1) return WHOLE;
  const middle = (axis: AxisReach, offset: number) =>
    (middleOf(before, axis, view.k) - offset) / pitchOf(axis, view.k) - 0.5;
  const place = { query: middle(before.y, view.y), key: middle(before.x, view.x) };
  const longer = before.x.most > before.y.most ? ("x" as const) : ("y" as const);
  const k = zoomFor(now, pitchOf(before[longer], view.k));
  return centered(now, view, k, place);
}

/** Return a view part of the way between two: the target's center moves in a straight line. */
export function between(reach: Reach, from: Viewport, to: Viewport, share: number): Viewport {
  const k = from.k * (to.k / from.k) ** share;
  const offset = (axis: AxisReach, before: number, after: number) => {
    const end = middleOf(reach, axis, to.k);
    const middle = (end - after) / pitchOf(axis, to.k);
    const start = before + middle * pitchOf(axis, from.k);
    return start + (end - start) * share - middle * pitchOf(axis, k);
  };
  return within(reach, { k, x: offset(reach.x, from.x, to.x), y: offset(reach.y, from.y, to.y) });
}
