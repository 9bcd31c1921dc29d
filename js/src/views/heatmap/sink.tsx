/** The learned sink's column next to the picture: one number for each row, in the picture's colors. */

import { effect } from "@preact/signals-core";
import { pinRowOrColumn } from "../../components/axis-labels";
import { mount, part, px } from "../../components/dom";
import { pointIn } from "../../components/gestures";
import { type Grid, NAN, NUMBER, type Picture } from "../../contract/decode";
import { foldGrid, paint } from "../../draw/cells";
import { isRoomFor } from "../../draw/label-room";
import { type Axis, cellUnder, startOf } from "../../geometry/cell-grid";
import { GAPS_FROM, labelFont, usesTicks } from "../../geometry/layout";
import type { Span } from "../../geometry/viewport";
import type { Plot } from "../../state/plot";
import type { Ui } from "../../state/ui";
import { SINK, SINK_TITLE } from "../../text/words";

/** The drawn column: its rows, and how many of the picture's rows each stands for. */
interface Column {
  readonly grid: Grid;
  readonly rows: Axis;
  readonly fold: number;
}

/** Return the column as a picture of one column, folded like the picture; null without a sink. */
function columnOf(picture: Picture | null, plot: Plot): Column | null {
  const cellGrid = plot.cellGrid.value;
  if (picture?.sink == null || cellGrid === null) return null;
  const values = picture.sink;
  const kinds = Uint8Array.from(values, (value) => (Number.isNaN(value) ? NAN : NUMBER));
  const grid = { rows: values.length, columns: 1, values, kinds };
  const { rows } = cellGrid;
  if (cellGrid.levels === null) {
    const fold = rows.bin / picture.queryBin;
    return { grid: fold > 1 ? foldGrid(grid, fold, 1) : grid, rows, fold: Math.max(1, fold) };
  }
  const own = { ...rows, bin: picture.queryBin, cell: rows.pitch * picture.queryBin, count: values.length };
  return { grid, rows: own, fold: 1 };
}

export interface SinkColumn {
  /** The column, and its name above it. */
  readonly nodes: readonly HTMLElement[];
  dispose(): void;
}

/** Return the column next to a picture, with its name; empty without a sink. */
export function sinkColumn(ui: Ui, plot: Plot): SinkColumn {
  const { store, stop } = ui;
  const node = part("aw-sink");
  const canvas = document.createElement("canvas");
  canvas.dataset.aw = "sink";
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", SINK_TITLE);
  const over = mount(part("aw-over"), () => <Marks ui={ui} plot={plot} />);
  const name = mount(part("aw-sink-labels"), () => <Name ui={ui} plot={plot} />);
  node.append(canvas, over.node);

  const under = (event: PointerEvent | MouseEvent) => rowAt(ui, plot, pointIn(canvas, event).y);
  const options = { signal: stop, passive: true };
  canvas.addEventListener(
    "pointermove",
    (event) => {
      if (event.pointerType === "touch") return;
      const sink = under(event);
      ui.hover.value = sink === null ? null : { target: { side: "query", index: sink.queries.start }, sink };
    },
    options,
  );
  canvas.addEventListener("pointerleave", () => (ui.hover.value = null), options);
  canvas.addEventListener(
    "click",
    (event) => {
      const row = under(event);
      if (row !== null) pinRowOrColumn(ui, "query", row.queries.start, event.shiftKey);
    },
    options,
  );
  const end = effect(() => {
    const figure = plot.figure.value;
    const column = columnOf(store.picture.value, plot);
    node.hidden = figure?.sink == null || column === null;
    if (figure?.sink == null || column === null) return;
    const { gap, width } = figure.sink;
    const left = px(figure.left + figure.width + gap);
    Object.assign(node.style, { left, top: px(figure.top), width: px(width), height: px(figure.height) });
    Object.assign(canvas.style, { width: px(width), height: px(figure.height) });
    draw(ui, plot, canvas, column);
  });
  return {
    nodes: [node, name.node],
    dispose() {
      end();
      over.dispose();
      name.dispose();
    },
  };
}

function draw(ui: Ui, plot: Plot, canvas: HTMLCanvasElement, { grid, rows }: Column): void {
  const figure = plot.figure.value;
  const mapper = plot.mapper.value;
  const both = ui.paints.value;
  const picture = ui.store.picture.value;
  if (figure?.sink == null || mapper === null || both === null || picture === null) return;
  const { width } = figure.sink;
  const own = picture.queryBin === 1 && grid.rows === picture.queries;
  paint(canvas, {
    grid,
    mapper,
    paints: mapper.signed ? both.diverging : both.sequential,
    stage: picture.of.stage,
    cellWidth: width,
    cellHeight: rows.cell,
    viewport: { k: 1, x: 0, y: rows.offset },
    width,
    height: figure.height,
    dpr: ui.dpr.value,
    unit: ui.unit.value,
    font: ui.font.value,
    numbers:
      own && figure.mode !== "narrow" && isRoomFor(rows.cell, width, mapper.signed, ui.unit.value, plot.measure.value),
    exact: own,
    patch: null,
  });
}

/** Return the row of the picture at a height of the column, and its queries. */
function rowAt({ store }: Ui, plot: Plot, y: number): { queries: Span; row: number } | null {
  const picture = store.picture.value;
  const column = columnOf(picture, plot);
  const at = column === null ? null : cellUnder(column.rows, y);
  if (picture === null || column === null || at === null || at >= column.grid.rows) return null;
  const first = at * column.fold;
  const last = Math.min(first + column.fold, picture.sink?.length ?? 0);
  let row = first; // of folded rows, the one whose number is shown
  for (let one = first; one < last; one++) if (picture.sink![one]! > picture.sink![row]!) row = one;
  const { sampled, queryBin } = picture;
  if (sampled !== null && row >= sampled.exact) {
    const query = Math.min(sampled.first + sampled.every * row, picture.queries - 1);
    return { queries: { start: query, stop: query + 1 }, row };
  }
  const start = row * queryBin;
  return { queries: { start, stop: Math.min(start + queryBin, picture.queries) }, row };
}

/** Rings around the row under the pointer, rules along the pinned one. */
function Marks({ ui, plot }: { ui: Ui; plot: Plot }) {
  const column = columnOf(ui.store.picture.value, plot);
  const width = plot.figure.value?.sink?.width;
  if (column === null || width === undefined) return null;
  const at = ui.hover.value;
  const hovered = at !== null && "target" in at && at.sink ? Math.floor(at.sink.row / column.fold) : null;
  const query = ui.store.query.value;
  const box = (row: number) => {
    const y = startOf(column.rows, row, ui.dpr.value);
    const gap = Math.min(width, column.rows.cell) >= GAPS_FROM * ui.unit.value ? 1 : 0;
    return { y, height: Math.max(1, startOf(column.rows, row + 1, ui.dpr.value) - y - gap) };
  };
  const pinned = query === null ? null : box(Math.floor(query / column.rows.bin));
  const edges =
    pinned === null
      ? []
      : pinned.height < 6
        ? [pinned.y + pinned.height / 2 - 0.5]
        : [pinned.y - 1, pinned.y + pinned.height];
  return (
    <>
      {edges.map((edge) => (
        <i class="aw-rule" key={edge} style={{ left: 0, right: 0, height: "1px", top: px(edge) }} />
      ))}
      {hovered !== null && (
        <i
          class="aw-ring"
          data-small={box(hovered).height < 6 || undefined}
          style={{ width: px(width), height: px(box(hovered).height), transform: `translate(0, ${box(hovered).y}px)` }}
        />
      )}
    </>
  );
}

/** Return the place of a name above the center of a column. */
export function marginNameStyle(
  figure: { top: number; cellWidth: number },
  { cell, bin }: { cell: number; bin: number },
  middle: number,
  unit: number,
) {
  const fontSize = px(labelFont(figure.cellWidth, unit) * unit);
  // Slanted like tokens; upright above positions.
  return usesTicks(cell, bin, unit)
    ? { left: px(middle), top: px(figure.top - 24 * unit), transform: "translate(-50%, -100%)", fontSize }
    : {
        left: px(middle + 3 * unit),
        top: px(figure.top - 5 * unit),
        transformOrigin: "0 100%",
        transform: "translateY(-100%) rotate(-45deg)",
        fontSize,
      };
}

function Name({ ui, plot }: { ui: Ui; plot: Plot }) {
  const figure = plot.figure.value;
  const cellGrid = plot.cellGrid.value;
  if (figure?.sink == null || cellGrid === null || ui.store.picture.value?.sink == null) return null;
  const unit = ui.unit.value;
  const { gap, width } = figure.sink;
  const middle = figure.left + figure.width + gap + width / 2;
  const at = ui.hover.value;
  const hovered = at !== null && "target" in at && at.sink !== undefined;
  return (
    <span
      class="aw-label aw-sink-name"
      data-hovered={hovered || undefined}
      title={SINK_TITLE}
      style={marginNameStyle(figure, cellGrid.columns, middle, unit)}
    >
      {SINK}
    </span>
  );
}
