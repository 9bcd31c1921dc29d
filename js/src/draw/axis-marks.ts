/** Where labels and ticks stand along the axes of a picture: all tokens if they fit, some if crowded, else positions. */

import { type Axis, cellsInView, placesInView, startOf } from "../geometry/cell-grid";
import { type Figure, labelFont, labelStep, roundPositions, tickPositions } from "../geometry/layout";
import type { Span } from "../geometry/viewport";
import type { Label } from "../text/labels";
import { shorten } from "../text/tokens";
import type { Measure } from "./label-room";

export type Style = Readonly<Record<string, string | number>>;

const px = (length: number) => `${length}px`;

/** The cells along one axis, as they are drawn. */
export interface AxisCells {
  readonly side: "query" | "key";
  /** Pixels along the axis: of one drawn cell, of the picture. */
  readonly pitch: number;
  readonly size: number;
  readonly cells: Span;
  /** Tokens per drawn cell, and in all. */
  readonly bin: number;
  readonly total: number;
  /** Positions in view, pixels per position, and the place of the first. */
  readonly places: Span;
  readonly perToken: number;
  readonly offset: number;
  /** Whether the picture's own cells stand for several tokens. */
  readonly long: boolean;
  /** The start of a drawn cell, from the picture's corner. */
  start(cell: number): number;
}

/** Return the cells along one axis of a picture whose own cells have `bin` tokens. */
export function axisCells(side: "query" | "key", cells: Axis, bin: number, dpr: number): AxisCells {
  return {
    side,
    pitch: cells.cell,
    size: cells.size,
    cells: cellsInView(cells),
    bin: cells.bin,
    total: cells.total,
    places: placesInView(cells),
    perToken: cells.pitch,
    offset: cells.offset,
    long: bin > 1,
    start: (index) => startOf(cells, index, dpr),
  };
}

/** Return the cells with labels: all, or every k-th and the `special` ones. */
export function labelPlaces(axis: AxisCells, special: readonly number[], unit: number): number[] {
  const step = labelStep(axis.pitch, unit);
  const inside = (index: number) => {
    const middle = axis.start(index) + axis.pitch / 2; // the label goes with the larger part of a cut cell
    return middle >= 0 && middle <= axis.size;
  };
  const chosen: number[] = [];
  for (let i = axis.cells.start; i < axis.cells.stop; i++) if (i % step === 0 && inside(i)) chosen.push(i);
  if (step === 1 && (axis.side === "query" || axis.pitch >= 20 * unit)) return chosen;
  const near = step === 1 ? 1.5 * axis.pitch : 14 * unit; // neighbors make room for a special label
  const kept = chosen.filter((i) => special.every((s) => s === i || Math.abs(s - i) * axis.pitch >= near));
  const isThere = (at: number) => at >= axis.cells.start && at < axis.cells.stop;
  for (const s of special) if (isThere(s) && inside(s) && !kept.includes(s)) kept.push(s);
  return kept;
}

export interface DrawnLabel {
  readonly text: string;
  readonly subscript: string;
  readonly style: Style;
}

/** Return what a label shows, and where. */
export function drawnLabel(options: {
  readonly axis: AxisCells;
  readonly figure: Figure;
  readonly measure: Measure;
  readonly unit: number;
  readonly index: number;
  readonly label: Label;
  /** Whether the label is a pill: filled or outlined. */
  readonly pill: "filled" | "outlined" | null;
  readonly hovered: boolean;
  /** Whether positions stand beside the labels. */
  readonly numbered: boolean;
}): DrawnLabel {
  const { axis, figure, measure, unit, index, label, pill, hovered, numbered } = options;
  const { side, pitch } = axis;
  const down = side === "query";
  const pinned = pill === "filled";
  const font = Math.max(figure.names ? 10 : 0, labelFont(pitch, unit));
  const subscript =
    !numbered && !(figure.names && !pinned) && (down || pitch >= 16 * unit || pinned) ? label.subscript : "";
  const weight = pill !== null || hovered ? 600 : 400;
  const most = down ? figure.labelRoom : (figure.keyRoom - 12 * unit) / Math.SQRT1_2;
  const rest = subscript ? measure(subscript, Math.max(9, font * 0.75), weight) + 2 : 0;
  const text = shorten(label.text, most - rest, (part) => measure(part, font, weight));
  const middle = axis.start(index) + pitch / 2;
  const place = down ? besideRow : aboveColumn;
  return {
    text,
    subscript,
    style: {
      fontSize: px(font * unit),
      lineHeight: px(Math.min(16, font + 4) * unit),
      ...place(figure, middle, pill !== null, unit),
    },
  };
}

/** Right-aligned before its row; a pill grows by its padding towards the picture. */
function besideRow(figure: Figure, middle: number, pinned: boolean, unit: number): Style {
  return {
    top: px(figure.top + middle),
    right: px((pinned ? 2 * unit : 8 * unit) + (figure.margin ?? 0) - figure.left),
    transform: "translateY(-50%)",
  };
}

/** Slanted upwards from the center of its column. */
function aboveColumn(figure: Figure, middle: number, pinned: boolean, unit: number): Style {
  return {
    left: px(figure.left + middle + 3 * unit),
    top: px(figure.top - 5 * unit - (figure.margin ?? 0)),
    transformOrigin: "0 100%",
    transform: `translateY(-100%) rotate(-45deg) translateX(${pinned ? -6 * unit : 0}px)`,
  };
}

/** Return where the corner's words stand: what columns are, what rows are. */
export function cornerStyles(figure: Figure, unit: number): readonly [Style, Style] {
  const right = px(8 * unit + (figure.margin ?? 0) - figure.left);
  return [
    { top: px(figure.top - 36 * unit), right },
    { top: px(figure.top - 21 * unit), right },
  ];
}

export interface Tick {
  readonly position: number;
  readonly line: Style;
  readonly text: Style;
}

/** Return the ticks: both ends of the view with round positions between. */
export function ticksAlong(axis: AxisCells, figure: Figure, unit: number): Tick[] {
  const down = axis.side === "query";
  const { perToken, offset } = axis;
  return tickPlaces(axis, (down && !axis.long ? 40 : 72) * unit).map((position) => {
    const at = (position + 0.5) * perToken + offset;
    const [left, top] = [figure.left - (figure.margin ?? 0), figure.top - (figure.margin ?? 0)];
    const line: Style = down
      ? { left: px(left - 6 * unit), top: px(figure.top + at), width: px(4 * unit), height: "1px" }
      : { left: px(figure.left + at), top: px(top - 6 * unit), width: "1px", height: px(4 * unit) };
    const text: Style = down
      ? { right: px(9 * unit - left), top: px(figure.top + at), transform: "translateY(-50%)" }
      : { left: px(figure.left + at), top: px(top - 7 * unit), transform: "translate(-50%, -100%)" };
    return { position, line, text };
  });
}

/** Only round positions for a part of a long axis, which moves. */
function tickPlaces(axis: AxisCells, apart: number): number[] {
  const { start, stop } = axis.places;
  if (!axis.long || stop - start >= axis.total) {
    const last = Math.min(axis.total, axis.cells.stop * axis.bin) - 1;
    return tickPositions(axis.cells.start * axis.bin, last, axis.perToken, apart);
  }
  const isInside = (position: number) => {
    const at = (position + 0.5) * axis.perToken + axis.offset;
    return at >= 0 && at <= axis.size;
  };
  return roundPositions(start, stop, axis.perToken, apart).filter(isInside);
}
