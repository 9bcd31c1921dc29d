/**
 * The picture's geometry as signals: its size, the visible part, and the place of each cell. Only this module knows
 * which cells are drawn at the current zoom; everything pointed at, labeled or ringed uses its cell grid.
 */

import { computed, type ReadonlySignal, type Signal, signal } from "@preact/signals-core";
import { type Grid, NUMBER, type Picture, TILE } from "../contract/decode";
import { isSigned } from "../contract/stages";
import { type Bin, binOf } from "../data/matrix";
import { foldGrid } from "../draw/cells";
import type { ColorMapper } from "../draw/color-mapper";
import {
  isRoomFor,
  LABELS_MEASURED,
  labelRoom,
  type Measure,
  measureIn,
  receivesBelow,
  type Size,
} from "../draw/label-room";
import {
  type Axis,
  type CellGrid,
  cellGridOf,
  cellOf,
  cellsInView,
  cellUnder,
  coveredAt,
  ownCellGrid,
  placesInView,
  placesOf,
  type Reach,
  reachOf,
  startOf,
  withWholeCells,
} from "../geometry/cell-grid";
import { CROWDED, type Figure, GAPS_FROM, type LabelRoom, layoutFigure, type NameLengths } from "../geometry/layout";
import { type Span, type Viewport, WHOLE } from "../geometry/viewport";
import type { Labels } from "../text/labels";
import { stableComputed } from "./queries";
import { extentInView, mapperOf } from "./ranges";
import { type AxisSegments, axisSegments } from "./segment-axes";
import { type TilesOf, tilesInView, tilesOf, type WantedTiles } from "./tile-cache";
import type { Ui, Window } from "./ui";

/** How many cells of the matrix one drawn cell stands for, and its size. */
export interface CellScale {
  readonly queries: number;
  readonly keys: number;
  /** Whether it is one pixel of the page or screen. */
  readonly pixel: boolean;
}

export interface Plot {
  readonly figure: ReadonlySignal<Figure | null>;
  readonly viewport: Signal<Viewport>;
  /** While the view flies, nothing on its way is requested. */
  readonly flying: Signal<boolean>;
  readonly reach: ReadonlySignal<Reach | null>;
  readonly cellGrid: ReadonlySignal<CellGrid | null>;
  readonly scale: ReadonlySignal<CellScale | null>;
  readonly measure: ReadonlySignal<Measure>;
  /** The kind of labels along the axes, if there are segments. */
  readonly names: ReadonlySignal<AxisNames | null>;
  /** The drawn cells, if the picture holds them: its own, folded if the screen has fewer pixels. */
  readonly grid: ReadonlySignal<Grid | null>;
  readonly mapper: ReadonlySignal<ColorMapper | null>;
  /** Whether each cell is one of the matrix and wide enough for its number. */
  readonly numbersFit: ReadonlySignal<boolean>;
  readonly tilesOf: ReadonlySignal<TilesOf>;
  readonly wanted: ReadonlySignal<WantedTiles | null>;
  /** The visible part, if it is less than everything. */
  readonly window: ReadonlySignal<Window | null>;
  /** Queries per sampled query, if tiles in view are not exact yet; else 1. */
  readonly every: Signal<number>;
  /** The view, moved by less than a cell so that the cells at its edges are whole. */
  settled(view: Viewport): Viewport;
  /** All matrix cells behind a drawn cell; of several queries perhaps only one is known. */
  bin(row: number, column: number): Bin | null;
  /** The cell at a position of the canvas, or null outside the cells. */
  under(x: number, y: number): Bin | null;
  /** Where the cell that holds a place of the matrix is drawn. */
  box(query: number, key: number): Box | null;
}

/**
 * Return the geometry of one picture, placed by `layout`; a picture that is not `tiled` has nothing finer than its
 * own cells.
 */
export function createPlot(ui: Ui, layout = layoutFigure, tiled = true): Plot {
  const { store } = ui;
  const flying = signal(false);
  const geometry = plotGeometry(ui, layout, tiled);
  const { cellGrid } = geometry;
  const of = computed(() => {
    const picture = store.picture.value;
    return picture === null ? "" : tilesOf(picture.of, store.facts.value.version);
  });
  return {
    ...geometry,
    ...drawnCells(ui, geometry, flying),
    flying,
    tilesOf: of,
    wanted: computed(() => {
      const picture = store.picture.value;
      const grid = cellGrid.value;
      if (grid === null || grid.levels === null || flying.value || picture === null) return null;
      return { picture, of: of.value, tiles: tilesInView(grid), scale: grid.rows.pitch + grid.columns.pitch };
    }),
    window: stableComputed<Window>(() => {
      if (cellGrid.value === null) return null;
      const { rows, columns } = cellGrid.value;
      const queries = placesInView(rows);
      const keys = placesInView(columns);
      const all = (span: Span, total: number) => span.stop - span.start >= total;
      if (all(queries, rows.total) && all(keys, columns.total)) return null;
      return { queries, keys, cellWidth: columns.pitch, cellHeight: rows.pitch };
    }),
    every: signal(1),
    ...cellLookUp(ui, cellGrid, of),
  };
}

/** The drawn size of the picture, and the cells at the current zoom. */
function plotGeometry(ui: Ui, layout: typeof layoutFigure, tiled: boolean) {
  const { store } = ui;
  const viewport = signal<Viewport>(WHOLE);
  const measure = textMeasure(ui);
  /** The properties of a picture that its geometry needs; rows that become exact do not change them. */
  const size = stableComputed<Size>(() => {
    const { queries, keys, queryBin, keyBin, grid, sink } = store.picture.value ?? {};
    const isHeatmap = layout === layoutFigure && store.view.value === "heatmap";
    const extra = {
      recall: store.view.value === "heatmap" && store.recall.value?.error === null,
      received: isHeatmap && receivesBelow({ queries: queries ?? 0, keys: keys ?? 0 }),
    };
    return queries && keys && queryBin && keyBin && grid
      ? { queries, keys, queryBin, keyBin, ...extra, rows: grid.rows, columns: grid.columns, sink: sink != null }
      : null;
  });
  const labels = computed(() =>
    size.value === null ? null : labelRoom(size.value, store.queryLabels.value, store.keyLabels.value, measure.value),
  );
  const isTiled = () => tiled && !store.facts.value.saved;
  const laidOut = (labels: LabelRoom, { rows, columns }: Size) => {
    const [width, mode, dpr, unit] = [ui.width.value, ui.mode.value, ui.dpr.value, ui.unit.value];
    return layout({ width, mode, rows, columns, labels, dpr, unit });
  };
  const names = axisNames(ui, layout === layoutFigure, measure, () => {
    if (size.value === null || labels.value === null) return true;
    const { cellWidth, cellHeight } = laidOut({ ...labels.value, margins: true }, size.value);
    return (
      Math.min(cellWidth, cellHeight) >= GAPS_FROM * ui.unit.value && size.value.queryBin * size.value.keyBin === 1
    );
  });
  const unzoomed = computed<Figure | null>(() => {
    if (size.value === null || labels.value === null || ui.width.value === 0) return null;
    const segments = names.value;
    const figure = laidOut(
      { ...labels.value, margins: segments !== null, names: segments?.lengths ?? null },
      size.value,
    );
    return isTiled() || size.value.queryBin === 1 ? figure : { ...figure, inset: 0 }; // no zoom shows tokens there
  });
  const reach = computed(() =>
    size.value === null || unzoomed.value === null ? null : reachOf(size.value, unzoomed.value, ui.unit.value),
  );
  const covered = computed(() => (reach.value === null ? 0 : coveredAt(reach.value, viewport.value.k)));
  const figure = computed<Figure | null>(() => {
    const at = unzoomed.value;
    if (at === null || covered.value === 0) return at === null ? null : { ...at, inset: 0 };
    return { ...at, left: at.left + covered.value, width: at.width - covered.value, inset: covered.value };
  });
  const gridAt = (view: Viewport) => {
    if (size.value === null || reach.value === null) return null;
    if (!isTiled()) return ownCellGrid(reach.value, view, size.value);
    return cellGridOf(reach.value, view, size.value.queryBin * size.value.keyBin === 1);
  };
  const cellGrid = computed(() => gridAt(viewport.value));
  const settled = (view: Viewport) => {
    const grid = gridAt(view);
    return grid === null || reach.value === null ? view : withWholeCells(reach.value, view, grid);
  };
  const scale = stableComputed<CellScale>(() => {
    if (cellGrid.value === null) return null;
    const { rows, columns } = cellGrid.value;
    const isOne = (cell: number) => Math.abs(cell - 1) < 1e-6 || Math.abs(cell * ui.dpr.value - 1) < 1e-6;
    const pixel = isOne(rows.cell) && isOne(columns.cell);
    return { queries: rows.bin, keys: columns.bin, pixel };
  });
  return { viewport, measure, names, figure, reach, cellGrid, scale, settled };
}

/** The labels along the axes of a picture whose text has segments. */
export interface AxisNames {
  /** The lengths of the names; null if tokens are shown instead. */
  readonly lengths: NameLengths | null;
  /** Whether names were chosen, so that they stay even if tokens fit. */
  readonly isChosen: boolean;
}

/** Names of segments are shown if chosen, or if there are segments and tokens do not fit. */
function axisNames(ui: Ui, isHeatmap: boolean, measure: ReadonlySignal<Measure>, tokensFit: () => boolean) {
  const { store } = ui;
  const axes = computed(() => [axisSegments(store, "query"), axisSegments(store, "key")] as const);
  const lengths = stableComputed<NameLengths>(() => {
    const [query, key] = axes.value;
    if (!isHeatmap || (query === null && key === null)) return null;
    return nameLengths(query, key, store.queryLabels.value, measure.value);
  });
  return stableComputed<AxisNames>(() => {
    if (lengths.value === null) return null;
    const chosen = ui.axisNames.value;
    const named = chosen === null ? !tokensFit() : chosen === "segments";
    return { lengths: named ? lengths.value : null, isChosen: chosen !== null };
  });
}

/** The greatest width of the names; only so many segments are measured. */
function nameLengths(query: AxisSegments | null, key: AxisSegments | null, tokens: Labels, measure: Measure) {
  const widest = (names: readonly string[]) =>
    names.slice(0, LABELS_MEASURED).reduce((most, name) => Math.max(most, measure(name, 12, 600)), 0);
  const namesOf = (axis: AxisSegments | null) => [...new Set(axis?.segments.names ?? [])];
  const opened = (axis: AxisSegments | null) => [
    ...new Set((axis?.tree ?? []).filter(({ children }) => children.length > 0).map(({ name }) => name)),
  ];
  const depth = (axis: AxisSegments | null) => axis?.segments.levels.reduce((most, level) => Math.max(most, level), 0);
  let token = 0;
  for (let at = 0; at < Math.min(tokens.length, LABELS_MEASURED) && token < CROWDED; at++) {
    token = Math.max(token, measure(tokens.at(at).text, 10, 600));
  }
  return {
    query: widest(namesOf(query)),
    key: widest(namesOf(key)),
    token: Math.max(24, Math.min(token, CROWDED)),
    bracket: Math.max(widest(opened(query)), 0),
    levels: Math.min(MOST_BRACKETS, Math.max(depth(query) ?? 0, depth(key) ?? 0)),
    ends: lastNames(key, measure),
  };
}

/** The lengths and places of the last names above a picture. */
function lastNames(axis: AxisSegments | null, measure: Measure): NameLengths["ends"] {
  if (axis === null) return [];
  const last = axis.tree.slice(-LAST).flatMap((node) => [node, ...node.children.slice(-LAST)]);
  return last.map(({ name, start, stop }) => ({
    length: measure(name, 12, 600),
    at: (start + stop) / 2 / axis.segments.length,
  }));
}

/** Only this many names from the end can extend beyond the picture. */
const LAST = 24;

/** The most levels with brackets around the names. */
const MOST_BRACKETS = 2;

/** Return whether names of segments, rather than tokens, are shown along an axis at this zoom. */
export function isNamedAxis(names: AxisNames | null, cells: Axis, zoom: number, unit: number): boolean {
  if (names === null || names.lengths === null) return false;
  return cells.bin > 1 || cells.cell < GAPS_FROM * unit || (zoom <= 1 && names.isChosen);
}

/** The drawn cells, their colors, and whether numbers fit into them. */
function drawnCells(
  ui: Ui,
  { figure, cellGrid, scale, measure, viewport }: ReturnType<typeof plotGeometry>,
  flying: ReadonlySignal<boolean>,
) {
  const { store } = ui;
  const grid = computed<Grid | null>(() => {
    const picture = store.picture.value;
    if (picture?.grid == null || scale.value === null || cellGrid.peek()?.levels !== null) return null;
    return foldGrid(picture.grid, scale.value.queries / picture.queryBin, scale.value.keys / picture.keyBin);
  });
  const inView = extentInView(
    store,
    () => {
      const picture = store.picture.value;
      const cells = cellGrid.value;
      if (picture === null || cells === null || viewport.value.k <= 1) return null;
      return { picture, cellGrid: cells, grid: grid.value, of: tilesOf(picture.of, store.facts.value.version) };
    },
    flying,
  );
  const mapper = computed<ColorMapper | null>(() => {
    const picture = store.picture.value;
    const seen = inView.value;
    if (picture?.grid == null || ui.mapper.value === null) return null;
    if (seen === null && (grid.value === null || grid.value === picture.grid)) return ui.mapper.value;
    return mapperOf(store, picture, grid.value ?? picture.grid, seen);
  });
  const numbersFit = computed(() => {
    if (figure.value === null || cellGrid.value === null) return false;
    const { rows, columns } = cellGrid.value;
    const stage = store.picture.value?.of.stage ?? "weights";
    return (
      rows.bin * columns.bin === 1 && isRoomFor(rows.cell, columns.cell, isSigned(stage), ui.unit.value, measure.value)
    );
  });
  return { grid, mapper, numbersFit };
}

/** Mapping drawn cells and points of the canvas to places of the matrix, and back. */
function cellLookUp(ui: Ui, cellGrid: Plot["cellGrid"], of: ReadonlySignal<TilesOf>) {
  const { store } = ui;

  function bin(row: number, column: number): Bin | null {
    const picture = store.picture.value;
    const cells = cellGrid.value;
    if (picture === null || cells === null) return null;
    const queries = placesOf(cells.rows, row);
    const keys = placesOf(cells.columns, column);
    const one = (query: number, standsFor: number): Bin => ({
      queries: { start: query, stop: query + 1 },
      keys,
      standsFor: Math.min(standsFor, cells.rows.total - queries.start),
    });
    if (cells.levels !== null) {
      const place = [Math.floor(row / TILE), Math.floor(column / TILE)] as const;
      const tile = store.tiles.get(of.value, cells.levels.row, cells.levels.column, ...place);
      if (tile === undefined || tile.every === 1) return { queries, keys };
      return one(tile.first + tile.every * (row % TILE), tile.every);
    }
    const { sampled } = picture;
    const isSampled = sampled !== null && queries.start / picture.queryBin >= sampled.exact;
    const cellCount = (queries.stop - queries.start) * (keys.stop - keys.start);
    if (!isSampled && cellCount <= MOST_SEARCHED) return { queries, keys };
    const found = strongest(picture, queries, keys);
    if (!isSampled) return binOf(picture, found.row, found.column);
    return one(Math.min(sampled.first + sampled.every * found.row, picture.queries - 1), cells.rows.bin);
  }

  function under(x: number, y: number): Bin | null {
    if (cellGrid.value === null) return null;
    const row = cellUnder(cellGrid.value.rows, y);
    const column = cellUnder(cellGrid.value.columns, x);
    return row === null || column === null ? null : bin(row, column);
  }

  function box(query: number, key: number): Box | null {
    if (cellGrid.value === null) return null;
    const { rows, columns } = cellGrid.value;
    return boxAt(cellGrid.value, cellOf(rows, query), cellOf(columns, key), ui.dpr.value, ui.unit.value);
  }

  return { bin, under, box };
}

/** Cells of the matrix among which the kernel finds the maximum. */
const MOST_SEARCHED = 4_194_304;

/** The picture's cell whose number a folded cell shows. */
function strongest(picture: Picture, queries: Span, keys: Span): { row: number; column: number } {
  const { grid, queryBin, keyBin } = picture;
  const first = { row: queries.start / queryBin, column: keys.start / keyBin };
  let best = { ...first, value: Number.NEGATIVE_INFINITY };
  if (grid === null) return best;
  for (let row = first.row; row < Math.min(grid.rows, queries.stop / queryBin); row++) {
    for (let column = first.column; column < Math.min(grid.columns, keys.stop / keyBin); column++) {
      const at = row * grid.columns + column;
      if (grid.kinds[at] === NUMBER && grid.values[at]! > best.value) best = { row, column, value: grid.values[at]! };
    }
  }
  return best;
}

export interface Box {
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

/** Return the place of a drawn cell on the canvas, without the gap after it. */
export function boxAt({ rows, columns }: CellGrid, row: number, column: number, dpr: number, unit: number): Box {
  const gap = Math.min(columns.cell, rows.cell) >= GAPS_FROM * unit ? 1 : 0;
  const x = startOf(columns, column, dpr);
  const y = startOf(rows, row, dpr);
  return {
    x,
    y,
    width: startOf(columns, column + 1, dpr) - x - gap,
    height: startOf(rows, row + 1, dpr) - y - gap,
  };
}

/** Return the visible drawn cells, as rows and columns. */
export function inView({ rows, columns }: CellGrid): { rows: Span; columns: Span } {
  return { rows: cellsInView(rows), columns: cellsInView(columns) };
}

export function isWithin(index: number, span: Span): boolean {
  return index >= span.start && index < span.stop;
}

/** Return a function that measures text in the widget's font and remembers widths. */
export function textMeasure(ui: Ui): ReadonlySignal<Measure> {
  const canvas = document.createElement("canvas");
  return computed(() => measureIn(ui.font.value, ui.unit.value, canvas));
}
