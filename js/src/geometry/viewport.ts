/** The visible part of a picture: a small immutable value. Positions are in cells of the picture. */

/** A cell edge at `i · cell` pixels is drawn at `k · i · cell + x`, unless its axis is at its maximum. */
export interface Viewport {
  readonly k: number;
  readonly x: number;
  readonly y: number;
}

export const WHOLE: Viewport = { k: 1, x: 0, y: 0 };

export interface Span {
  readonly start: number;
  readonly stop: number;
}

/** Return where cell `index` begins, in pixels, on a whole device pixel. */
export function edge(index: number, cell: number, k: number, offset: number, dpr: number): number {
  return Math.round((index * cell * k + offset) * dpr) / dpr;
}

/** Return the cells of one axis that are at least partly in view. */
export function visible(count: number, cell: number, k: number, offset: number, size: number): Span {
  const start = Math.max(0, Math.floor(-offset / (cell * k) + 1e-6));
  const stop = Math.min(count, Math.ceil((size - offset) / (cell * k) - 1e-6));
  return { start, stop: Math.max(start, stop) };
}

/** Return the cell under a position on one axis, or null outside. */
export function cellAt(position: number, count: number, cell: number, k: number, offset: number): number | null {
  const index = Math.floor((position - offset) / (cell * k));
  return index >= 0 && index < count ? index : null;
}

/** Return how far to move so that cell `index` is in view; 0 if it is. */
export function reveal(index: number, cell: number, k: number, offset: number, size: number): number {
  const start = index * cell * k + offset;
  const stop = start + cell * k;
  if (start < 0) return -start;
  if (stop > size) return size - stop;
  return 0;
}
