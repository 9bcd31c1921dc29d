/** The heights of the bands in each token's stack, and how they are painted. */

import type { Measure } from "../../../contract/values";
import type { RestRow, SegmentsModel } from "../model";
import { type Band, type LineBox, linesWithin, type TokenLayout } from "./layout";
import { cleared, type Style, whole } from "./style";

/** Pixels between two bands, and between the excluded strip and the stack. */
const APART = 0.75;
const ROUND = 1.5;

export interface Stack {
  /** For each band, on the axis's scale; 0 without one. */
  readonly heights: Float32Array;
  readonly total: number;
}

/** Where zero is on the axis: at its foot, or in its middle if there are negative numbers. */
export const zeroOf = (model: SegmentsModel) => (model.signed.value ? 0.5 : 0);

/**
 * Return the heights of a token's bands; negative ones hang from the line. Masses add up to 1, masses per token to some
 * sum; lifts cannot be added, so only those of pinned columns are drawn, or the largest.
 */
export function stackOf(model: SegmentsModel, row: RestRow, bands: readonly Band[]): Stack {
  const measure = model.measure.value;
  const heights = new Float32Array(bands.length);
  bands.forEach((band, at) => {
    for (const column of band.columns) {
      const value = model.reading(row, column);
      if (value > 0 || (value < 0 && model.signed.value)) heights[at]! += value;
    }
  });
  const above = heights.reduce((sum, height) => sum + Math.max(0, height), 0);
  const below = heights.reduce((sum, height) => sum - Math.min(0, height), 0);
  const total = Math.max(above, below);
  if (measure !== "lift") return { heights, total };
  const shown = bands.some(({ pinned }) => pinned) ? bands.findIndex(({ pinned }) => pinned) : indexOfMost(heights);
  const only = heights.map((height, at) => (at === shown && bands[at]!.columns.length === 1 ? height : 0));
  return { heights: only, total: only[shown] ?? 0 };
}

const indexOfMost = (numbers: Float32Array) =>
  numbers.reduce((most, value, at) => (value > numbers[most]! ? at : most), 0);

export interface TokenScene {
  readonly model: SegmentsModel;
  readonly layout: TokenLayout;
  readonly bands: readonly Band[];
  readonly box: LineBox;
  readonly style: Style;
  /** The room of the axis, left of the lines. */
  readonly left: number;
  /** The end of the axis. */
  readonly most: number;
  readonly measure: Measure;
  readonly view: { readonly top: number; readonly width: number; readonly height: number };
}

/** Draw the stacks of all lines in view. */
export function paintStacks(canvas: HTMLCanvasElement, scene: TokenScene): void {
  const { layout, box, view, style } = scene;
  const context = cleared(canvas, view.width, view.height, style.dpr);
  if (context === null) return;
  const { start, stop } = linesWithin(layout.lines.length, box.pitch, view.top, view.top + view.height);
  for (let line = start; line < stop; line++) {
    const top = line * box.pitch - view.top;
    const { start: first, stop: last } = layout.lines[line]!;
    for (let at = first; at < last; at++) paintToken(context, scene, at, top);
    paintEven(context, scene, line, top);
  }
}

function paintToken(context: CanvasRenderingContext2D, scene: TokenScene, at: number, top: number): void {
  const { model, layout, box, style, left } = scene;
  const { dpr } = style;
  const row = model.tokenRow(at);
  const x = whole(left + layout.lefts[at]!, dpr);
  const wide = whole(left + layout.lefts[at]! + layout.widths[at]!, dpr) - x;
  const base = whole(top + box.top + box.tall, dpr);
  if (row === null) {
    context.fillStyle = style.plate;
    context.fillRect(x, base - box.tall, wide, box.tall);
    return;
  }
  const out = model.shares.value ? Math.max(0, Math.min(1, row.rest.aside[row.row]!)) * box.aside : 0;
  if (out > 0) {
    context.fillStyle = style.track;
    context.beginPath();
    const tall = Math.max(out, 1 / dpr);
    context.roundRect(x, whole(top + box.aside - tall, dpr), wide, whole(tall, dpr) || 1 / dpr, Math.min(1, tall / 2));
    context.fill();
  }
  paintBands(context, scene, row, { x, wide, base });
}

function paintBands(
  context: CanvasRenderingContext2D,
  scene: TokenScene,
  row: RestRow,
  { x, wide, base }: { x: number; wide: number; base: number },
): void {
  const { model, bands, box, style, most } = scene;
  const { dpr } = style;
  const { heights } = stackOf(model, row, bands);
  const anyPinned = bands.some(({ pinned }) => pinned);
  const gap = Math.max(1, Math.round(APART * dpr)) / dpr;
  const zero = zeroOf(model);
  const yOf = (value: number) =>
    whole(base - (zero + (Math.max(-most, Math.min(value, most)) / most) * (1 - zero)) * box.tall, dpr);
  const sums = { above: 0, below: 0 };
  if (zero > 0) {
    context.fillStyle = style.line;
    context.fillRect(x - 2, yOf(0), wide + 4, 1 / dpr);
  }
  bands.forEach((band, at) => {
    if (heights[at] === 0) return;
    const side = heights[at]! > 0 ? "above" : "below";
    const from = yOf(sums[side]);
    sums[side] += heights[at]!;
    const to = yOf(sums[side]);
    const lower = Math.max(from, to);
    const isLast = side === "above" && sums.above >= most * (1 - 1e-6) && at === bands.length - 1;
    const tall = Math.abs(from - to) - (isLast ? 0 : gap);
    if (tall <= 0) return;
    context.globalAlpha = anyPinned && !band.pinned ? style.paler : 1;
    context.fillStyle = style.color(band.slot);
    context.fillRect(x, lower - tall, wide, tall);
    if (band.pinned && style.outlined) {
      context.strokeStyle = style.ink;
      context.lineWidth = ROUND;
      context.strokeRect(x + ROUND / 2, lower - tall + ROUND / 2, wide - ROUND, Math.max(0, tall - ROUND));
    }
  });
  context.globalAlpha = 1;
}

/** The even attention of the pinned columns: a line, with steps if a mask allows each token other keys. */
function paintEven(context: CanvasRenderingContext2D, scene: TokenScene, line: number, top: number): void {
  const { model, layout, bands, box, style, left, most } = scene;
  const pinned = bands.filter((band) => band.pinned).flatMap((band) => band.columns);
  if (pinned.length === 0) return;
  const of = layout.lines[line]!;
  const places: { from: number; to: number; y: number }[] = [];
  for (let at = of.start; at < of.stop; at++) {
    const row = model.tokenRow(at);
    if (row === null) continue;
    const even = evenOf(model, row, pinned);
    if (Number.isNaN(even) || even > most) continue;
    const [from, to] = [left + layout.lefts[at]! - 2, left + layout.lefts[at]! + layout.widths[at]! + 2];
    places.push({ from, to, y: whole(top + box.top + box.tall * (1 - even / most), style.dpr) });
  }
  places.sort((a, b) => a.from - b.from);
  for (const [color, below] of [
    [style.page, 1],
    [style.ink, 0],
  ] as const) {
    context.fillStyle = color;
    places.forEach(({ from, to, y }, at) => {
      const next = places[at + 1];
      context.fillRect(from, y + below, (next === undefined ? to : next.from) - from, 1);
      if (next !== undefined && next.y !== y && below === 0) {
        context.fillRect(next.from, Math.min(y, next.y), 1, Math.abs(next.y - y) + 1);
      }
    });
  }
}

/** Return the total even attention of some columns. */
export function evenOf(model: SegmentsModel, row: RestRow, columns: readonly number[]): number {
  if (model.measure.value === "lift") return model.even(row, columns[0]!);
  return columns.reduce((sum, column) => sum + model.even(row, column), 0);
}

/** Return the band of a token at a height, counted up from the baseline as a share of the axis; −1 above all. */
export function bandAt(
  model: SegmentsModel,
  row: RestRow,
  bands: readonly Band[],
  share: number,
  most: number,
): number {
  const { heights } = stackOf(model, row, bands);
  const zero = zeroOf(model);
  const [height, sign] = [((share - zero) / (1 - zero)) * most, share < zero ? -1 : 1];
  let sum = 0;
  for (let at = 0; at < bands.length; at++) {
    if (heights[at]! * sign <= 0) continue;
    sum += heights[at]! * sign;
    if (height * sign < sum) return at;
  }
  return -1;
}
