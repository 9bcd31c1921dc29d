/** Labels along both axes: all tokens if they fit, some if crowded, round positions if too many. */

import { type AxisCells, axisCells, cornerStyles, drawnLabel, labelPlaces, ticksAlong } from "../draw/axis-marks";
import type { Measure } from "../draw/label-room";
import { type Figure, usesTicks } from "../geometry/layout";
import type { Span } from "../geometry/viewport";
import { isPadding } from "../state/padding";
import { isNamedAxis, type Plot } from "../state/plot";
import { axisSegments } from "../state/segment-axes";
import type { Ui } from "../state/ui";
import { count } from "../text/format";
import type { Labels } from "../text/labels";
import { KEYS_TITLE, QUERIES_TITLE } from "../text/words";
import { px } from "./dom";
import { isNamed } from "./phrases";
import { NamesOutside, SegmentNames } from "./segment-names";

type Side = "query" | "key";

/** The current state of one axis. */
interface Axis extends AxisCells {
  readonly labels: Labels;
  readonly pinned: number | null;
  /** Pinned in addition to the last pin. */
  readonly further: readonly number[];
  readonly hovered: Span | null;
  isPadding(index: number): boolean;
  /** Whether tokens also show their positions: the axis is too long to be seen whole. */
  readonly numbered: boolean;
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
  if (figure === null || figure.names) return null;
  const [columns, rows] = cornerStyles(figure, ui.unit.value);
  return (
    <>
      <span class="aw-axis-title" style={columns}>
        {KEYS_TITLE}
      </span>
      <span class="aw-axis-title" style={rows}>
        {QUERIES_TITLE}
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
      {labelPlaces(axis, specialOf(axis), unit).map((index) => (
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
  const cells = axisCells(
    side,
    down ? cellGrid.rows : cellGrid.columns,
    down ? picture.queryBin : picture.keyBin,
    ui.dpr.value,
  );
  const labels = (down ? store.queryLabels : store.keyLabels).value;
  const at = ui.hover.value;
  const label = at !== null && "target" in at && at.target.side === side ? at.target.index : null;
  const spans = at !== null && "bin" in at ? at.bin : null;
  return {
    ...cells,
    labels,
    isPadding: (index) => (down ? isPadding(store, picture, index) : index >= picture.ownKeys),
    pinned: down ? store.query.value : store.key.value,
    further: store.shownPins.value.flatMap((pin) => pin[down ? 0 : 1] ?? []),
    hovered: label !== null ? { start: label, stop: label + 1 } : ((down ? spans?.queries : spans?.keys) ?? null),
    numbered: cells.long && cells.bin === 1 && isNamed(labels, 0),
  };
}

/** The cells that are pinned or under the pointer. */
const specialOf = (axis: Axis) =>
  [axis.pinned, ...axis.further, axis.hovered?.start ?? null].filter((index) => index !== null);

interface LabelProps {
  readonly ui: Ui;
  readonly axis: Axis;
  readonly figure: Figure;
  readonly measure: Measure;
  readonly index: number;
}

function Label({ ui, axis, figure, measure, index }: LabelProps) {
  const unit = ui.unit.value;
  const { side, numbered } = axis;
  const pinned = axis.pinned === index;
  const pill = pinned ? "filled" : axis.further.includes(index) ? "outlined" : null;
  const label = axis.labels.at(index);
  const hovered = axis.hovered?.start === index;
  const { text, subscript, style } = drawnLabel({
    ...{ axis, figure, measure, unit, index, label, pill, hovered, numbered },
  });
  return (
    <button
      type="button"
      tabIndex={-1}
      class={pinned ? "aw-label aw-pill" : pill !== null ? "aw-label aw-pill-outline" : "aw-label"}
      data-special={label.special || axis.isPadding(index) || undefined}
      data-hovered={(!pinned && hovered) || undefined}
      title={label.text}
      style={style}
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
      {subscript && <sub>{subscript}</sub>}
    </button>
  );
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

function Ticks({ axis, figure, unit }: { axis: Axis; figure: Figure; unit: number }) {
  return (
    <>
      {ticksAlong(axis, figure, unit).map(({ position, line, text }) => (
        <span key={position}>
          <i class="aw-tick" style={line} />
          <span class="aw-label" data-tick style={text}>
            {count(position)}
          </span>
        </span>
      ))}
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
