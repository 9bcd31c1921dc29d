/** The picture's geometry as signals: how large it is, what of it is in view, and which cell is where. */

import { computed, type ReadonlySignal, type Signal, signal } from "@preact/signals-core";
import { type Brush, makeBrush } from "./brush";
import { foldGrid } from "./canvas";
import { count } from "./format";
import { type Figure, GAPS_FROM, layoutFigure, NUMBERS_FROM } from "./layout";
import { type Bin, binOf } from "./source";
import { isSigned } from "./stages";
import type { Labels } from "./tokens";
import type { Ui } from "./ui";
import { cellAt, edge, type Span, type Viewport, visible, WHOLE } from "./viewport";
import type { Grid, Picture } from "./wire";

export type Measure = (text: string, size: number, weight?: number) => number;

export interface Plot {
  readonly figure: ReadonlySignal<Figure | null>;
  readonly viewport: Signal<Viewport>;
  readonly measure: ReadonlySignal<Measure>;
  /** The cells that are drawn: the picture's, folded where the screen has fewer pixels. */
  readonly grid: ReadonlySignal<Grid | null>;
  readonly brush: ReadonlySignal<Brush | null>;
  /** Whether each cell is one of the matrix and wide enough for its number. */
  readonly numbersFit: ReadonlySignal<boolean>;
}

export function createPlot(ui: Ui): Plot {
  const { store } = ui;
  const viewport = signal<Viewport>(WHOLE);
  const measure = textMeasure(ui);
  const widths = computed(() => {
    const picture = store.picture.value;
    if (picture === null) return null;
    return labelRoom(picture, store.queryLabels.value, store.keyLabels.value, measure.value);
  });
  const figure = computed<Figure | null>(() => {
    const picture = store.picture.value;
    if (picture?.grid == null || widths.value === null || ui.width.value === 0) return null;
    return layoutFigure({
      width: ui.width.value,
      mode: ui.mode.value,
      rows: picture.grid.rows,
      columns: picture.grid.columns,
      labels: widths.value,
      dpr: ui.dpr.value,
      unit: ui.unit.value,
    });
  });
  const grid = computed<Grid | null>(() => {
    const whole = store.picture.value?.grid;
    return whole == null || figure.value === null ? null : foldGrid(whole, figure.value.fold);
  });
  const brush = computed<Brush | null>(() => {
    const picture = store.picture.value;
    if (picture === null || grid.value === null) return null;
    if (grid.value === picture.grid) return ui.brush.value;
    const { color_scale, color_range } = store;
    return makeBrush(picture, grid.value, isSigned(picture.of.stage), color_scale.value, color_range.value);
  });
  const numbersFit = computed(() => {
    const f = figure.value;
    const picture = store.picture.value;
    if (f === null || picture === null || f.mode === "narrow" || f.fold > 1) return false;
    const size = Math.min(f.cellWidth, f.cellHeight) * viewport.value.k;
    return picture.queryBin * picture.keyBin === 1 && size >= NUMBERS_FROM * ui.unit.value;
  });
  return { figure, viewport, measure, grid, brush, numbersFit };
}

/** The drawn cell that holds a place of the matrix. */
export function cellOf(picture: Picture, figure: Figure, query: number, key: number) {
  return {
    row: Math.floor(query / picture.queryBin / figure.fold),
    column: Math.floor(key / picture.keyBin / figure.fold),
  };
}

/** All of the matrix that a drawn cell stands for. */
export function binAt(picture: Picture, figure: Figure, row: number, column: number): Bin {
  const { fold } = figure;
  const first = binOf(picture, row * fold, column * fold);
  const stop = (index: number, bin: number, total: number) => Math.min((index + 1) * fold * bin, total);
  return {
    queries: { start: first.queries.start, stop: stop(row, picture.queryBin, picture.queries) },
    keys: { start: first.keys.start, stop: stop(column, picture.keyBin, picture.keys) },
  };
}

/** What is under a position of the canvas, or null outside the cells. */
export function binUnder(picture: Picture, figure: Figure, view: Viewport, x: number, y: number): Bin | null {
  const row = cellAt(y, figure.rows, figure.cellHeight, view.k, view.y);
  const column = cellAt(x, figure.columns, figure.cellWidth, view.k, view.x);
  return row === null || column === null ? null : binAt(picture, figure, row, column);
}

export interface Box {
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

/** A drawn cell on the canvas, without the gap that follows it. */
export function boxAt(figure: Figure, view: Viewport, row: number, column: number, dpr: number, unit: number): Box {
  const gap = Math.min(figure.cellWidth, figure.cellHeight) * view.k >= GAPS_FROM * unit ? 1 : 0;
  const x = edge(column, figure.cellWidth, view.k, view.x, dpr);
  const y = edge(row, figure.cellHeight, view.k, view.y, dpr);
  return {
    x,
    y,
    width: edge(column + 1, figure.cellWidth, view.k, view.x, dpr) - x - gap,
    height: edge(row + 1, figure.cellHeight, view.k, view.y, dpr) - y - gap,
  };
}

/** The drawn cells in view, as rows and columns. */
export function inView(figure: Figure, view: Viewport): { rows: Span; columns: Span } {
  return {
    rows: visible(figure.rows, figure.cellHeight, view.k, view.y, figure.height),
    columns: visible(figure.columns, figure.cellWidth, view.k, view.x, figure.width),
  };
}

export function isWithin(index: number, span: Span): boolean {
  return index >= span.start && index < span.stop;
}

/** Width of text in the widget's own font, remembered. */
export function textMeasure(ui: Ui): ReadonlySignal<Measure> {
  const context = document.createElement("canvas").getContext("2d");
  return computed(() => {
    const family = ui.font.value;
    const unit = ui.unit.value;
    const known = new Map<string, number>();
    return (text, size, weight = 400) => {
      const id = `${size} ${weight} ${text}`;
      let width = known.get(id);
      if (width === undefined) {
        if (context) context.font = `${weight} ${size * unit}px ${family}`;
        width = context?.measureText(text).width ?? text.length * size * 0.6;
        known.set(id, width);
      }
      return width;
    };
  });
}

/** How much room the labels of both axes need; positions only, where a cell stands for several tokens. */
function labelRoom(picture: Picture, queries: Labels, keys: Labels, measure: Measure) {
  const full = (labels: Labels, index: number) => {
    const label = labels.at(index);
    return measure(label.text, 12, 600) + (label.subscript === "" ? 0 : measure(label.subscript, 9) + 1);
  };
  const longest = (labels: Labels, bin: number, total: number) => {
    let most = measure(count(total - 1), 10);
    if (bin === 1) for (let i = 0; i < total; i++) most = Math.max(most, full(labels, i));
    return most;
  };
  const keyTicks = picture.keyBin > 1;
  return {
    keyTicks,
    query: longest(queries, picture.queryBin, picture.queries),
    key: longest(keys, picture.keyBin, picture.keys),
    keys: (index: number) => (keyTicks ? 0 : full(keys, index)),
  };
}
