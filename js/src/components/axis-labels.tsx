/** Labels along both axes: all tokens if they fit, some if crowded, round positions if too many. */

import { cellsInView, placesInView, startOf } from "../geometry/cell-grid";
import { type Figure, labelFont, labelStep, roundPositions, tickPositions, usesTicks } from "../geometry/layout";
import type { Span } from "../geometry/viewport";
import { isPadding } from "../state/padding";
import { isNamedAxis, isWithin, type Measure, type Plot } from "../state/plot";
import { axisSegments } from "../state/segment-axes";
import type { Ui } from "../state/ui";
import { count } from "../text/format";
import type { Labels } from "../text/labels";
import { shorten } from "../text/tokens";
import { px } from "./dom";
import { isNamed } from "./phrases";
import { NamesOutside, SegmentNames } from "./segment-names";

type Side = "query" | "key";

/** The current state of one axis. */
interface Axis {
  readonly side: Side;
  readonly labels: Labels;
  /** Pixels along the axis: of one drawn cell, of the picture. */
  readonly pitch: number;
  readonly size: number;
  readonly cells: Span;
  /** Tokens per drawn cell, and in all. */
  readonly bin: number;
  readonly total: number;
  readonly pinned: number | null;
  /** Pinned in addition to the last pin. */
  readonly further: readonly number[];
  readonly hovered: Span | null;
  isPadding(index: number): boolean;
  /** The start of a drawn cell, from the picture's corner. */
  start(cell: number): number;
  /** Positions in view, pixels per position, and the place of the first. */
  readonly places: Span;
  readonly perToken: number;
  readonly offset: number;
  /** Whether tokens also show their positions: the axis is too long to be seen whole. */
  readonly numbered: boolean;
  readonly long: boolean;
}

/** Draw the labels left of the picture: tokens if they fit, else positions. */
export function QueryLabels({ ui, plot }: { ui: Ui; plot: Plot }) {
  return <Axis ui={ui} plot={plot} side="query" />;
}

/** Draw the slanted labels above the picture: tokens if they fit, else positions. */
export function KeyLabels({ ui, plot }: { ui: Ui; plot: Plot }) {
  return <Axis ui={ui} plot={plot} side="key" />;
}

/** Say in the corner what rows and columns are. */
export function AxisTitles({ ui, plot }: { ui: Ui; plot: Plot }) {
  const figure = plot.figure.value;
  const unit = ui.unit.value;
  if (figure === null || figure.names) return null;
  const right = 8 * unit + (figure.margin ?? 0) - figure.left;
  return (
    <>
      <span class="aw-axis-title" style={{ top: px(figure.top - 36 * unit), right: px(right) }}>
        keys →
      </span>
      <span class="aw-axis-title" style={{ top: px(figure.top - 21 * unit), right: px(right) }}>
        queries ↓
      </span>
    </>
  );
}

function Axis({ ui, plot, side }: { ui: Ui; plot: Plot; side: Side }) {
  const figure = plot.figure.value;
  const axis = figure === null ? null : axisOf(ui, plot, side);
  if (figure === null || axis === null) return null;
  const unit = ui.unit.value;
  const cells = plot.cellGrid.value?.[side === "query" ? "rows" : "columns"];
  const segments = axisSegments(ui.store, side);
  if (cells && segments !== null && isNamedAxis(plot.names.value, cells, plot.viewport.value.k, unit)) {
    return <SegmentNames {...{ ui, plot, side, cells, figure }} axis={segments} />;
  }
  if (usesTicks(axis.pitch, axis.bin, unit)) return <Ticks axis={axis} figure={figure} unit={unit} />;
  const props = { ui, axis, figure, measure: plot.measure.value };
  return (
    <>
      {cells && segments !== null && figure.names && (
        <NamesOutside {...{ ui, plot, side, cells, figure }} axis={segments} />
      )}
      {labeled(axis, unit).map((index) => (
        <Label key={index} index={index} {...props} />
      ))}
      {axis.numbered && (side === "key" || !figure.names) && <Positions axis={axis} figure={figure} unit={unit} />}
    </>
  );
}

function axisOf(ui: Ui, plot: Plot, side: Side): Axis | null {
  const { store } = ui;
  const picture = store.picture.value;
  if (picture === null) return null;
  const cellGrid = plot.cellGrid.value;
  if (cellGrid === null) return null;
  const down = side === "query";
  const dpr = ui.dpr.value;
  const cells = down ? cellGrid.rows : cellGrid.columns;
  const labels = (down ? store.queryLabels : store.keyLabels).value;
  const long = (down ? picture.queryBin : picture.keyBin) > 1;
  const at = ui.hover.value;
  const label = at !== null && "target" in at && at.target.side === side ? at.target.index : null;
  const spans = at !== null && "bin" in at ? at.bin : null;
  return {
    side,
    labels,
    pitch: cells.cell,
    size: cells.size,
    cells: cellsInView(cells),
    bin: cells.bin,
    total: cells.total,
    isPadding: (index) => (down ? isPadding(store, picture, index) : index >= picture.ownKeys),
    pinned: down ? store.query.value : store.key.value,
    further: store.shownPins.value.flatMap((pin) => pin[down ? 0 : 1] ?? []),
    hovered: label !== null ? { start: label, stop: label + 1 } : ((down ? spans?.queries : spans?.keys) ?? null),
    start: (index) => startOf(cells, index, dpr),
    places: placesInView(cells),
    perToken: cells.pitch,
    offset: cells.offset,
    long,
    numbered: long && cells.bin === 1 && isNamed(labels, 0),
  };
}

/** The cells with labels: all, or every k-th and those pinned or under the pointer. */
function labeled(axis: Axis, unit: number): number[] {
  const step = labelStep(axis.pitch, unit);
  const special = [axis.pinned, ...axis.further, axis.hovered?.start ?? null].filter((index) => index !== null);
  const inside = (index: number) => {
    const middle = axis.start(index) + axis.pitch / 2; // the label goes with the larger part of a cut cell
    return middle >= 0 && middle <= axis.size;
  };
  const chosen: number[] = [];
  for (let i = axis.cells.start; i < axis.cells.stop; i++) if (i % step === 0 && inside(i)) chosen.push(i);
  if (step === 1 && (axis.side === "query" || axis.pitch >= 20 * unit)) return chosen;
  const near = step === 1 ? 1.5 * axis.pitch : 14 * unit; // neighbors make room for a pinned or hovered label
  const kept = chosen.filter((i) => special.every((s) => s === i || Math.abs(s - i) * axis.pitch >= near));
  for (const s of special) if (isWithin(s, axis.cells) && inside(s) && !kept.includes(s)) kept.push(s);
  return kept;
}

interface LabelProps {
  readonly ui: Ui;
  readonly axis: Axis;
  readonly figure: Figure;
  readonly measure: Measure;
  readonly index: number;
}

function Label({ ui, axis, figure, measure, index }: LabelProps) {
  const unit = ui.unit.value;
  const { side, pitch } = axis;
  const down = side === "query";
  const font = Math.max(figure.names ? 10 : 0, labelFont(pitch, unit));
  const pinned = axis.pinned === index;
  const outlined = !pinned && axis.further.includes(index);
  const label = axis.labels.at(index);
  const hovered = axis.hovered?.start === index;
  const subscript =
    label.subscript !== "" && !axis.numbered && !(figure.names && !pinned) && (down || pitch >= 16 * unit || pinned);
  const weight = pinned || outlined || hovered ? 600 : 400;
  const most = down ? figure.labelRoom : (figure.keyRoom - 12 * unit) / Math.SQRT1_2;
  const rest = subscript ? measure(label.subscript, Math.max(9, font * 0.75), weight) + 2 : 0;
  const text = shorten(label.text, most - rest, (part) => measure(part, font, weight));
  const middle = axis.start(index) + pitch / 2;
  return (
    <button
      type="button"
      tabIndex={-1}
      class={pinned ? "aw-label aw-pill" : outlined ? "aw-label aw-pill-outline" : "aw-label"}
      data-special={label.special || axis.isPadding(index) || undefined}
      data-hovered={(!pinned && hovered) || undefined}
      title={label.text}
      style={{
        fontSize: px(font * unit),
        lineHeight: px(Math.min(16, font + 4) * unit),
        ...(down
          ? besideRow(figure, middle, pinned || outlined, unit)
          : aboveColumn(figure, middle, pinned || outlined, unit)),
      }}
      onPointerEnter={(event: PointerEvent) => {
        if (event.pointerType !== "touch") ui.hover.value = { target: { side, index } };
      }}
      onPointerLeave={() => {
        ui.hover.value = null;
      }}
      onPointerDown={(event: PointerEvent) => event.preventDefault()}
      onClick={(event: MouseEvent) => pinRowOrColumn(ui, side, index, event.shiftKey)}
    >
      <bdi>{text}</bdi>
      {subscript && <sub>{label.subscript}</sub>}
    </button>
  );
}

/** Right-aligned before its row; a pill grows by its padding towards the picture. */
function besideRow(figure: Figure, middle: number, pinned: boolean, unit: number) {
  return {
    top: px(figure.top + middle),
    right: px((pinned ? 2 * unit : 8 * unit) + (figure.margin ?? 0) - figure.left),
    transform: "translateY(-50%)",
  };
}

/** Slanted upwards from the center of its column. */
function aboveColumn(figure: Figure, middle: number, pinned: boolean, unit: number) {
  return {
    left: px(figure.left + middle + 3 * unit),
    top: px(figure.top - 5 * unit - (figure.margin ?? 0)),
    transformOrigin: "0 100%",
    transform: `translateY(-100%) rotate(-45deg) translateX(${pinned ? -6 * unit : 0}px)`,
  };
}

/** Pin one row or column (with `add`, in addition to the other pins); unpin it if it is pinned. */
export function pinRowOrColumn({ store }: Ui, side: Side, index: number, add: boolean): void {
  if (add) {
    store.addPin(side === "query" ? index : null, side === "key" ? index : null);
    return;
  }
  const { query, key } = { query: store.query.value, key: store.key.value };
  if (side === "query") store.select({ query: query === index && key === null ? null : index, key: null });
  else store.select({ query: null, key: key === index && query === null ? null : index });
}

/** Both ends of the view with round positions between; only round ones for a part of a long axis, which moves. */
function ticksOf(axis: Axis, apart: number): number[] {
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

function Ticks({ axis, figure, unit }: { axis: Axis; figure: Figure; unit: number }) {
  const down = axis.side === "query";
  const { perToken, offset } = axis;
  return (
    <>
      {ticksOf(axis, (down && !axis.long ? 40 : 72) * unit).map((position) => {
        const at = (position + 0.5) * perToken + offset;
        const [left, top] = [figure.left - (figure.margin ?? 0), figure.top - (figure.margin ?? 0)];
        const tick = down
          ? { left: px(left - 6 * unit), top: px(figure.top + at), width: px(4 * unit), height: "1px" }
          : { left: px(figure.left + at), top: px(top - 6 * unit), width: "1px", height: px(4 * unit) };
        const text = down
          ? { right: px(9 * unit - left), top: px(figure.top + at), transform: "translateY(-50%)" }
          : { left: px(figure.left + at), top: px(top - 7 * unit), transform: "translate(-50%, -100%)" };
        return (
          <span key={position}>
            <i class="aw-tick" style={tick} />
            <span class="aw-label" data-tick style={text}>
              {count(position)}
            </span>
          </span>
        );
      })}
    </>
  );
}

/** The places of zoomed tokens: every fourth position on the left or below, or as many as fit. */
function Positions({ axis, figure, unit }: { axis: Axis; figure: Figure; unit: number }) {
  const down = axis.side === "query";
  let step = 4;
  while (step * axis.pitch < (down ? 24 : 60) * unit) step *= 2;
  const shown: number[] = [];
  for (let at = Math.ceil(axis.cells.start / step) * step; at < axis.cells.stop; at += step) {
    const middle = axis.start(at) + axis.pitch / 2;
    if (middle >= 0 && middle <= axis.size) shown.push(at);
  }
  return (
    <>
      {shown.map((position) => {
        const middle = axis.start(position) + axis.pitch / 2;
        const place = down
          ? { left: 0, top: px(figure.top + middle), transform: "translateY(-50%)" }
          : {
              left: px(figure.left + middle),
              top: px(figure.top + figure.height + 4 * unit),
              transform: "translateX(-50%)",
            };
        return (
          <span class="aw-label" data-tick key={`at ${position}`} style={place}>
            {count(position)}
          </span>
        );
      })}
    </>
  );
}
