/** The column next to the picture that colors each row by its recall: the share of its weight that a cache keeps. */

import { effect } from "@preact/signals-core";
import { pinRowOrColumn } from "../../components/axis-labels";
import { mount, part, px, type View } from "../../components/dom";
import { pointIn } from "../../components/gestures";
import { BLOCKED, NUMBER } from "../../contract/decode";
import { leastOf, type Recall } from "../../data/recall";
import { paint } from "../../draw/cells";
import { OWN_RANGE } from "../../draw/color-mapper";
import { cellUnder } from "../../geometry/cell-grid";
import type { Plot } from "../../state/plot";
import type { Ui } from "../../state/ui";
import { listNumber, percent } from "../../text/format";
import { RECALL, recallTitle } from "../../text/words";
import { marginNameStyle } from "./sink";

export interface RecallColumn extends View {
  /** The column, its name, and its legend. */
  readonly nodes: readonly HTMLElement[];
  readonly legend: HTMLElement;
}

/** Return the column with its name; hidden without a cache. */
export function recallColumn(ui: Ui, plot: Plot): RecallColumn {
  const { stop } = ui;
  const node = part("aw-sink");
  const canvas = document.createElement("canvas");
  canvas.dataset.aw = "recall";
  canvas.setAttribute("role", "img");
  node.append(canvas);
  const name = mount(part("aw-sink-labels"), () => <Name ui={ui} plot={plot} />);
  const key = mount(part("aw-recall", "recall-legend"), () => <Key ui={ui} />);
  const under = (event: PointerEvent | MouseEvent) => queriesAt(ui, plot, pointIn(canvas, event).y);
  const options = { signal: stop, passive: true };
  const leave = () => (ui.hover.value = null);
  canvas.addEventListener(
    "pointermove",
    (event) => {
      const at = event.pointerType === "touch" ? null : under(event);
      ui.hover.value = at === null ? null : { target: { side: "query", index: at.start }, recall: at };
    },
    options,
  );
  canvas.addEventListener("pointerleave", leave, options);
  canvas.addEventListener(
    "click",
    (event) => {
      const at = under(event);
      if (at !== null) pinRowOrColumn(ui, "query", at.start, event.shiftKey);
    },
    options,
  );
  const end = effect(() => {
    const column = plot.figure.value?.recall;
    const recall = ui.store.recall.value;
    node.hidden = !column || recall === null;
    if (!column || recall === null) return;
    const { left, top, width, height } = plot.figure.value!;
    const size = { width: px(column.width), height: px(height) };
    Object.assign(node.style, { left: px(left + width + column.gap), top: px(top), ...size });
    Object.assign(canvas.style, size);
    canvas.setAttribute("aria-label", `${titleOf(ui)}. ${summary(recall)}`);
    draw(ui, plot, canvas, recall, column.width);
  });
  return {
    node,
    nodes: [node, name.node],
    legend: key.node,
    dispose() {
      end();
      name.dispose();
      key.dispose();
    },
  };
}

function draw(ui: Ui, plot: Plot, canvas: HTMLCanvasElement, recall: Recall, width: number): void {
  const rows = plot.cellGrid.value?.rows;
  const height = plot.figure.value?.height;
  const paints = ui.paints.value?.sequential;
  if (rows === undefined || height === undefined || paints === undefined) return;
  const { queries } = ui.store.facts.value;
  const count = Math.ceil(queries / rows.bin);
  const values = Float32Array.from({ length: count }, (_, row) =>
    leastOf(recall, row * rows.bin, Math.min(queries, (row + 1) * rows.bin)),
  );
  // Unknown and fully masked rows stay blank.
  const kinds = Uint8Array.from(values, (value) => (Number.isNaN(value) ? BLOCKED : NUMBER));
  paint(canvas, {
    grid: { rows: count, columns: 1, values, kinds },
    mapper: OWN_RANGE,
    paints,
    stage: "weights",
    cellWidth: width,
    cellHeight: rows.cell,
    viewport: { k: 1, x: 0, y: rows.offset },
    width,
    height,
    dpr: ui.dpr.value,
    unit: ui.unit.value,
    font: ui.font.value,
    numbers: false,
    exact: true,
    patch: null,
  });
}

/** Return the queries of the row at a height of the column. */
function queriesAt({ store }: Ui, plot: Plot, y: number): { start: number; stop: number } | null {
  const rows = plot.cellGrid.value?.rows;
  const at = rows === undefined ? null : cellUnder(rows, y);
  const { queries } = store.facts.value;
  if (rows === undefined || at === null || at * rows.bin >= queries) return null;
  return { start: at * rows.bin, stop: Math.min(queries, (at + 1) * rows.bin) };
}

const titleOf = ({ store }: Ui) => recallTitle(store.facts.value.has_sinks === true);

/** `lowest .412, mean .934`. */
export function summary({ values, every, share }: Recall): string {
  const known = values.filter((value) => !Number.isNaN(value));
  if (known.length === 0) return share < 1 ? "" : "every row is fully masked";
  const least = known.reduce((a, b) => Math.min(a, b), 1);
  const mean = known.reduce((a, b) => a + b, 0) / known.length;
  const of = every > 1 ? "" : `, mean ${listNumber(mean, "weights")}`;
  return `lowest ${listNumber(least, "weights")}${of}${share < 1 ? `, from ${percent(Math.floor(100 * share) / 100)} of the rows so far` : ""}`;
}

/** The legend of the column. */
function Key({ ui }: { ui: Ui }) {
  const recall = ui.store.recall.value;
  const css = ui.paints.value?.sequential.css;
  if (recall === null || css === undefined) return null;
  if (recall.error !== null) return <p class="aw-prompt">Recall of the rows: {recall.error}</p>;
  const stops = [0, 64, 128, 192, 255].map((at) => css[at]).join(", ");
  return (
    <div class="aw-ramp">
      <span title={titleOf(ui)}>
        {RECALL}: share of the row's weight on keys in the cache
        {ui.store.facts.value.has_sinks && " and on the sink"}
      </span>
      <span class="aw-recall-ramp">
        0 <i style={{ background: `linear-gradient(to right, ${stops})` }} /> 1
      </span>
      <span>{summary(recall)}</span>
    </div>
  );
}

function Name({ ui, plot }: { ui: Ui; plot: Plot }) {
  const figure = plot.figure.value;
  const cellGrid = plot.cellGrid.value;
  if (!figure?.recall || cellGrid === null || ui.store.recall.value === null) return null;
  const unit = ui.unit.value;
  const middle = figure.left + figure.width + figure.recall.gap + figure.recall.width / 2;
  return (
    <span
      class="aw-label aw-sink-name"
      title={titleOf(ui)}
      style={marginNameStyle(figure, cellGrid.columns, middle, unit)}
    >
      {RECALL}
    </span>
  );
}
