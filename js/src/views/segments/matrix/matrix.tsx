/** Segments × segments of the selected head: rows attend to columns. */

import { computed, effect, type ReadonlySignal } from "@preact/signals-core";
import { mount, part, px, type View } from "../../../components/dom";
import { pointIn } from "../../../components/gestures";
import { Ramp } from "../../../components/legend";
import { nodesBelow } from "../../../data/segment-axis";
import { isLogarithmic, largestSize } from "../../../data/segments";
import { scaleOf } from "../../../draw/color";
import type { Paints } from "../../../draw/color-mapper";
import type { Measure as TextMeasure } from "../../../draw/label-room";
import { segmentStyle } from "../../../draw/segment-colors";
import { textMeasure } from "../../../state/plot";
import { axisSegments } from "../../../state/segment-axes";
import type { Ui } from "../../../state/ui";
import { legendTicks } from "../../../text/format";
import { shorten } from "../../../text/tokens";
import { cleared, styleOf } from "../drawing/style";
import { watchMatrixKeys } from "../input/keys";
import { openRow, pinCell, pinColumn } from "../input/pins";
import { watchSpots } from "../input/pointing";
import type { SegmentsModel, Spot } from "../model";
import { axisText, cellText, inWords, measureWord, shareText } from "../words/numbers";
import { layMatrix, type MatrixLayout } from "./layout";

const FONT = 12;
/** From a pinned name (a pill) to the next name: slanted, the distance along the axis is larger. */
const BESIDE_PILL = 18;
const BESIDE_SLANTED_PILL = 27;
/** From a slanted name to that of the excluded share, which is always shown. */
const BESIDE_ASIDE = 20;

export interface MatrixState {
  readonly layout: ReadonlySignal<MatrixLayout | null>;
  /** The largest number, and whether some cells have none. */
  readonly most: ReadonlySignal<number>;
  readonly masked: ReadonlySignal<boolean>;
  /** Whether colors are logarithmic. */
  readonly log: ReadonlySignal<boolean>;
}

/** Return the matrix; `room` is its maximum width. */
export function matrixPart(ui: Ui, model: SegmentsModel, room: ReadonlySignal<number>): View {
  const node = part("aw-seg-matrix");
  const figure = part("aw-seg-figure");
  const canvas = document.createElement("canvas");
  canvas.tabIndex = 0;
  canvas.dataset.aw = "segment-matrix";
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-roledescription", "matrix of segments");
  const measure = textMeasure(ui);
  const layout = computed(() => {
    const now = model.mass.value;
    if (now === null || room.value === 0) return null;
    const [rows, columns] = [model.rows.value, model.left.value.columns];
    const wide = (name: string) => measure.value(name, FONT, 600);
    return layMatrix({
      rows: rows.map((row) => wide(now.rows[row]!)),
      columns: columns.map((column) => wide(now.keys[column]!)),
      room: room.value,
      unit: ui.unit.value,
      aside: model.left.value.without.length > 0 || !model.left.value.self,
      narrow: ui.mode.value === "narrow",
      beside: ui.mode.value === "beside" || ui.mode.value === "wide",
    });
  });
  const most = computed(() => largestSize(numbersOf(model)));
  const masked = computed(() => [...numbersOf(model)].some(Number.isNaN));
  const log = computed(() =>
    isLogarithmic(model.rows.value.length, model.left.value.columns.length, model.signed.value),
  );
  const state: MatrixState = { layout, most, masked, log };
  const labels = mount(part("aw-seg-labels"), () => (
    <Labels ui={ui} model={model} state={state} measure={measure.value} />
  ));
  const legend = mount(part("aw-legend", "legend"), () => <Legend ui={ui} model={model} state={state} />);
  figure.append(canvas, labels.node);
  node.append(figure, legend.node);
  const ends = [
    effect(() => {
      const at = layout.value;
      if (at === null) return;
      Object.assign(figure.style, { width: px(at.width), height: px(at.height) });
      Object.assign(canvas.style, { left: px(at.left), top: px(at.top) });
      legend.node.style.paddingLeft = px(at.left);
    }),
    effect(() => {
      const [at, paints] = [layout.value, paintsOf(ui, model)];
      const place = placing(model, most.value, log.value);
      if (at !== null && paints) paintMatrix(ui, model, canvas, at, place, paints);
    }),
    effect(() => {
      const [rows, columns] = [model.rows.value.length, model.left.value.columns.length];
      canvas.setAttribute(
        "aria-label",
        `${measureWord(model.measure.value, model.stage.value)} from ${rows} segments to ${columns}`,
      );
    }),
  ];
  watchPointer(ui, model, state, canvas);
  watchMatrixKeys(ui, model, canvas);
  return {
    node,
    dispose() {
      for (const end of ends) end();
      labels.dispose();
      legend.dispose();
    },
  };
}

/** The ramp of the numbers: diverging if they are signed. */
const paintsOf = ({ paints: { value: both } }: Ui, { signed }: SegmentsModel) =>
  signed.value ? both?.diverging : both?.sequential;

/** Return a function that gives a number's place on the ramp, 0 to 1. */
const placing = ({ signed }: SegmentsModel, most: number, log: boolean) =>
  scaleOf({
    kind: signed.value ? "diverging" : "sequential",
    scale: log ? "log" : "linear",
    low: signed.value ? -most : 0,
    high: most,
  }).position;

function* numbersOf(model: SegmentsModel): Generator<number> {
  const rest = model.matrix.value;
  if (rest === null) return;
  for (const row of model.rows.value) {
    for (const column of model.left.value.columns) yield model.reading({ rest, row }, column);
  }
}

function paintMatrix(
  ui: Ui,
  model: SegmentsModel,
  canvas: HTMLCanvasElement,
  at: MatrixLayout,
  placeOf: (value: number) => number,
  paints: Paints,
): void {
  const style = styleOf(ui);
  const rest = model.matrix.value;
  const context = cleared(canvas, at.columns * at.pitch, at.rows * at.pitch, style.dpr);
  if (context === null || rest === null) return;
  context.font = `400 ${11 * style.unit}px ${style.font}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  model.rows.value.forEach((row, down) => {
    model.left.value.columns.forEach((column, across) => {
      const value = model.reading({ rest, row }, column);
      const cell = { x: across * at.pitch, y: down * at.pitch, value, text: "" };
      if (at.numbers) cell.text = cellText(value, model.measure.value, model.stage.value);
      paintCell(context, at, cell, { place: placeOf(value), paints, ink: style.ink });
    });
  });
}

interface Cell {
  readonly x: number;
  readonly y: number;
  readonly value: number;
  readonly text: string;
}

interface CellLook {
  /** The number's place on the ramp, 0 to 1. */
  readonly place: number;
  readonly paints: Paints;
  readonly ink: string;
}

function paintCell(
  context: CanvasRenderingContext2D,
  at: MatrixLayout,
  cell: Cell,
  { place, paints, ink }: CellLook,
): void {
  const { x, y, value, text } = cell;
  const side = at.pitch - at.gap;
  if (Number.isNaN(value)) {
    paintNone(context, x, y, side, ink);
    return;
  }
  const entry = Math.round(255 * place);
  context.fillStyle = paints.css[entry]!;
  context.beginPath();
  if (side >= 12) context.roundRect(x, y, side, side, (side >= 18 ? 2.5 : 1.5) * at.unit);
  else context.rect(x, y, side, side);
  context.fill();
  if (text === "" || context.measureText(text).width > side - 2) return;
  context.fillStyle = paints.inkOn[entry]!;
  context.fillText(text, x + side / 2, y + side / 2 + 0.5);
}

/** Fully masked: no tile, and a slash if it fits. */
function paintNone(context: CanvasRenderingContext2D, x: number, y: number, side: number, ink: string): void {
  if (side < 10) return;
  context.globalAlpha = 0.2;
  context.strokeStyle = ink;
  context.lineWidth = 0.75;
  context.beginPath();
  context.moveTo(x + side * 0.3, y + side * 0.7);
  context.lineTo(x + side * 0.7, y + side * 0.3);
  context.stroke();
  context.globalAlpha = 1;
}

function watchPointer(ui: Ui, model: SegmentsModel, state: MatrixState, canvas: HTMLCanvasElement): void {
  const spotAt = (event: MouseEvent): Spot | null => {
    const at = state.layout.peek();
    if (at === null) return null;
    const { x, y } = pointIn(canvas, event);
    const row = model.rows.value[Math.floor(y / at.pitch)];
    const column = model.left.value.columns[Math.floor(x / at.pitch)];
    return row === undefined || column === undefined ? null : { part: "matrix", row, column };
  };
  watchSpots(ui, model, canvas, "matrix", spotAt, (spot, event) =>
    pinCell(ui, model, spot.row!, spot.column, event.shiftKey),
  );
}

interface LabelsProps {
  readonly ui: Ui;
  readonly model: SegmentsModel;
  readonly state: MatrixState;
  readonly measure: TextMeasure;
}

/** Names beside rows and above columns with their colors, the excluded share, rings and lines. */
function Labels({ ui, model, state, measure }: LabelsProps) {
  const at = state.layout.value;
  const now = model.mass.value;
  const rest = model.matrix.value;
  if (at === null || now === null || rest === null) return null;
  const [rows, columns] = [model.rows.value, model.left.value.columns];
  const hovered = model.hover.value;
  const pinnedRow = rows.indexOf(now.row);
  const pinnedColumn = columns.indexOf(model.pinned.value);
  const hoverRow = hovered?.part === "matrix" ? rows.indexOf(hovered.row ?? -1) : -1;
  const hoverColumn = hovered === null ? -1 : columns.indexOf(hovered.column);
  const color = (slot: number) => segmentStyle(slot, ui.theme.value);
  const rowColor = slotsOfRows(ui, now.askingPath);
  const shownRow = (index: number) => isNamed(at, at.every, index, pinnedRow, BESIDE_PILL);
  const reaches = (index: number) =>
    at.aside > 0 && at.aside + 6 * at.unit - slantedFrom(at, index) < BESIDE_ASIDE * at.unit;
  const shownColumn = (index: number) =>
    isNamed(at, at.everyColumn, index, pinnedColumn, BESIDE_SLANTED_PILL) &&
    (index === pinnedColumn || at.everyColumn === 1 || !reaches(index));
  const side = at.pitch - at.gap;
  const ring = (row: number, column: number, pinned: boolean) =>
    row >= 0 &&
    column >= 0 && (
      <i
        class="aw-ring"
        key={pinned ? "pin" : "hover"}
        data-pinned={pinned || undefined}
        data-small={at.pitch < 16 || undefined}
        style={{
          transform: `translate(${at.left + column * at.pitch}px, ${at.top + row * at.pitch}px)`,
          width: px(Math.max(side, 6)),
          height: px(Math.max(side, 6)),
        }}
      />
    );
  return (
    <>
      {rows.map((row, index) => (
        <>
          {at.margins && (
            <i
              class="aw-seg-edge"
              key={`edge ${row}`}
              style={{
                left: px(at.left - 6 * at.unit),
                top: px(at.top + index * at.pitch),
                width: px(3 * at.unit),
                height: px(side),
                background: color(rowColor(now.rows[row]!)),
              }}
            />
          )}
          {shownRow(index) && (
            <button
              type="button"
              tabIndex={-1}
              key={row}
              class={index === pinnedRow ? "aw-label aw-pill" : "aw-label"}
              data-hovered={index === hoverRow || undefined}
              title={now.rows[row]}
              style={{
                top: px(at.top + index * at.pitch + side / 2),
                right: px(at.width - at.left + (index === pinnedRow ? 7 : 12) * at.unit),
                transform: "translateY(-50%)",
              }}
              onClick={() => openRow(ui, row)}
            >
              <bdi>
                {shorten(now.rows[row]!, at.rowRoom, (text) => measure(text, FONT, index === pinnedRow ? 600 : 400))}
              </bdi>
            </button>
          )}
          {at.aside > 0 && shownRow(index) && (
            <span
              class="aw-seg-aside"
              key={`aside ${row}`}
              style={{ left: px(at.aside), top: px(at.top + index * at.pitch + side / 2) }}
            >
              {shareText(rest.aside[row]!, now.stage)}
            </span>
          )}
        </>
      ))}
      {columns.map((column, index) => (
        <>
          {at.margins && (
            <i
              class="aw-seg-edge"
              key={`edge ${column}`}
              style={{
                left: px(at.left + index * at.pitch),
                top: px(at.top - 6 * at.unit),
                width: px(side),
                height: px(3 * at.unit),
                background: color(now.keyColors[column] ?? -1),
              }}
            />
          )}
          {shownColumn(index) && (
            <Slanted
              key={column}
              {...{ at, index }}
              name={now.keys[column]!}
              text={shorten(now.keys[column]!, at.columnRoom, (text) => measure(text, FONT, 600))}
              pinned={index === pinnedColumn}
              hovered={index === hoverColumn}
              choose={(add: boolean) => pinColumn(ui, model, column, add)}
            />
          )}
        </>
      ))}
      {at.aside > 0 && (
        <span
          class="aw-label aw-seg-slanted aw-seg-aside-name"
          style={{ left: px(at.aside + 6 * at.unit), top: px(at.top - 11 * at.unit) }}
        >
          excluded
        </span>
      )}
      {pinnedRow >= 0 && <Lines from={at.top + pinnedRow * at.pitch} {...{ at, side }} across />}
      {pinnedColumn >= 0 && <Lines from={at.left + pinnedColumn * at.pitch} {...{ at, side }} />}
      {(hoverRow !== pinnedRow || hoverColumn !== pinnedColumn) && ring(hoverRow, hoverColumn, false)}
      {ring(pinnedRow, pinnedColumn, true)}
    </>
  );
}

/** Return a function that gives a row's color: the segment's, as in all views. */
function slotsOfRows({ store }: Ui, path: readonly string[]): (name: string) => number {
  const axis = axisSegments(store, "query");
  const nodes = axis === null ? [] : nodesBelow(axis.tree, path);
  const slots = new Map(nodes.map((node) => [node.name, axis!.slot(node)]));
  return (name) => slots.get(name) ?? -1;
}

/** The names that are shown: at an interval, and the pinned one, for which others make room. */
function isNamed({ pitch, unit }: MatrixLayout, every: number, index: number, pinned: number, apart: number): boolean {
  if (index === pinned) return true;
  return index % every === 0 && (pinned < 0 || every === 1 || Math.abs(index - pinned) * pitch >= apart * unit);
}

interface SlantedProps {
  readonly at: MatrixLayout;
  readonly index: number;
  readonly name: string;
  readonly text: string;
  readonly pinned: boolean;
  readonly hovered: boolean;
  choose(add: boolean): void;
}

/** Where the name of a column begins. */
const slantedFrom = (at: MatrixLayout, index: number) => at.left + (index + 0.5) * at.pitch - at.gap / 2 + 2 * at.unit;

function Slanted({ at, index, name, text, pinned, hovered, choose }: SlantedProps) {
  return (
    <button
      type="button"
      tabIndex={-1}
      class={pinned ? "aw-label aw-seg-slanted aw-pill" : "aw-label aw-seg-slanted"}
      data-hovered={hovered || undefined}
      title={name}
      style={{
        left: px(slantedFrom(at, index)),
        top: px(at.top - 11 * at.unit),
        transform: `translateY(-100%) rotate(-45deg) translateX(${pinned ? -4 * at.unit : 0}px)`,
      }}
      onClick={(event: MouseEvent) => choose(event.shiftKey)}
    >
      <bdi>{text}</bdi>
    </button>
  );
}

/** Lines along both edges of the pinned row or column. */
function Lines({ at, from, side, across }: { at: MatrixLayout; from: number; side: number; across?: boolean }) {
  return (
    <>
      {[from - 1, from + side].map((edge) => (
        <i
          class="aw-rule"
          key={edge}
          style={
            across
              ? { left: px(at.left), width: px(at.columns * at.pitch), top: px(edge), height: "1px" }
              : { top: px(at.top), height: px(at.rows * at.pitch), left: px(edge), width: "1px" }
          }
        />
      ))}
    </>
  );
}

function Legend({ ui, model, state }: Omit<LabelsProps, "measure">) {
  const paints = paintsOf(ui, model);
  const most = state.most.value;
  const now = model.mass.value;
  const rest = model.matrix.value;
  if (!paints || now === null || rest === null) return null;
  const measure = model.measure.value;
  const hovered = model.hover.value;
  const [row, column] = hovered?.part === "matrix" ? [hovered.row!, hovered.column] : [now.row, model.pinned.value];
  const value = column < 0 ? Number.NaN : model.reading({ rest, row }, column);
  const { stage, signed } = model;
  const log = state.log.value && most > 0;
  const place = placing(model, most, log);
  const ticks = legendTicks(signed.value ? -most : 0, most, log ? "log" : "linear", stage.value, 0.2).map(
    ({ value, text }, index, all) => ({
      at: place(value),
      text: measure === "mass" || signed.value ? text : axisText(value, measure),
      end: index > 0 && index === all.length - 1,
    }),
  );
  const name = measureWord(measure, stage.value);
  const sampled = now.share < 1;
  const masked = state.masked.value;
  return (
    <>
      <div class="aw-ramp">
        <span>
          {name.charAt(0).toUpperCase() + name.slice(1)}
          {log ? ", log" : ""}
        </span>
        <Ramp paints={paints} ticks={ticks} mark={Number.isNaN(value) || most === 0 ? null : place(value)} />
      </div>
      {(log || sampled || masked || !now.exact) && (
        <div class="aw-kinds">
          {log && <span>one color below 1/1,000 of the largest</span>}
          {masked && <span>no tile: no query may attend to it</span>}
          {sampled && <span>{Math.floor(100 * now.share)} % of the queries computed</span>}
          {!now.exact && <span>colors in 125 steps, point for exact numbers</span>}
        </div>
      )}
    </>
  );
}

/** Return the heading of the matrix. */
export function MatrixHead({ model }: { model: SegmentsModel }) {
  const path = model.mass.value?.path ?? [];
  return (
    <>
      From each segment to each
      <span class="aw-muted">
        {path.length > 0 ? `to the segments inside ${inWords(path.at(-1)!)}` : "rows attend to columns"}
      </span>
    </>
  );
}
