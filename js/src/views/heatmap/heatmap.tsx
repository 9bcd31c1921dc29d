/** The matrix: cells on a canvas, labels around it, rings above it. */

import { effect } from "@preact/signals-core";
import { AxisTitles, KeyLabels, QueryLabels } from "../../components/axis-labels";
import { mount, part, px, type View } from "../../components/dom";
import { watchKeyboard } from "../../components/keyboard";
import { headWords, numberOf, stackWords } from "../../components/phrases";
import { createPointer } from "../../components/pointer";
import { ExactTo, PaddedRows, Readout, Rings, WholeHead, ZoomHint } from "../../components/rings";
import { SegmentLines, SegmentMargins } from "../../components/segment-margins";
import { BLOCKED } from "../../contract/decode";
import { wordOf } from "../../contract/stages";
import { createPlot, type Plot } from "../../state/plot";
import { isCurrent } from "../../state/queries";
import { blockNumber, blockReading, pinnedSegment } from "../../state/segment-axes";
import { tileSource } from "../../state/tile-cache";
import type { Ui } from "../../state/ui";
import { count, listNumber } from "../../text/format";
import { createPainter } from "./painter";
import { recallColumn } from "./recall";
import { receivedStrip } from "./received";
import { sinkColumn } from "./sink";

export interface Heatmap extends View {
  /** The legend of the recall column. */
  readonly legend: HTMLElement;
  readonly plot: Plot;
}

/** Return the matrix with its labels, rings and readouts. */
export function heatmap(ui: Ui): Heatmap {
  const { store, kernel, stop } = ui;
  const plot = createPlot(ui);
  const node = part("aw-figure");
  const frame = part("aw-plot");
  const canvas = pictureCanvas();
  const over = part("aw-over");
  const live = part("aw-visually-hidden");
  live.setAttribute("aria-live", "polite");
  const padded = mount(part("aw-over"), () => <PaddedRows ui={ui} plot={plot} />);
  const lines = mount(part("aw-over"), () => <SegmentLines ui={ui} plot={plot} />);
  frame.append(canvas, padded.node, lines.node, over);

  const pointer = createPointer(ui, plot, canvas);
  watchKeyboard(ui, plot, canvas, pointer);
  const parts = [
    mount(part("aw-segment-margins"), () => <SegmentMargins ui={ui} plot={plot} />),
    mount(part("aw-labels"), () => <QueryLabels ui={ui} plot={plot} />),
    mount(part("aw-labels"), () => <KeyLabels ui={ui} plot={plot} />),
    mount(part("aw-labels"), () => <AxisTitles ui={ui} plot={plot} />),
    mount(part("aw-floating"), () => <WholeHead plot={plot} reset={pointer.reset} />),
    mount(part("aw-floating"), () => (pointer.hint.value ? <ZoomHint plot={plot} /> : <Readout ui={ui} plot={plot} />)),
  ];
  const exactTo = mount(part("aw-exact-to"), () => <ExactTo ui={ui} plot={plot} />);
  const rings = mount(over, () => <Rings ui={ui} plot={plot} />);
  const sink = sinkColumn(ui, plot);
  const recall = recallColumn(ui, plot);
  const received = receivedStrip(ui, plot);
  frame.append(exactTo.node);
  node.append(frame, ...sink.nodes, ...recall.nodes, ...received.nodes, ...parts.map((view) => view.node), live);

  tileSource(store.tiles, kernel, plot.wanted, () => isCurrent(store), stop);
  const painter = createPainter(ui, plot, canvas, over);
  const ends = [
    effect(() => {
      const figure = plot.figure.value;
      if (figure === null) return;
      const { left, top, width, height, overhang, below, received: strip } = figure;
      const under = below + (strip ? strip.gap + strip.height : 0);
      Object.assign(node.style, { width: px(left + width + overhang), height: px(top + height + under) });
      Object.assign(frame.style, { left: px(left), top: px(top), width: px(width), height: px(height) });
      Object.assign(canvas.style, { width: px(width), height: px(height) });
    }),
    effect(() => {
      const { figure, cellGrid } = { figure: plot.figure.value, cellGrid: plot.cellGrid.value };
      if (figure === null || cellGrid === null) return;
      const { rows, columns } = cellGrid;
      const inset = `0 ${px(figure.width - columns.size)} ${px(figure.height - rows.size)} 0`; // whole cells only
      for (const above of [over, padded.node, lines.node]) above.style.inset = inset;
    }),
    effect(() => {
      if (painter.draw()) frame.toggleAttribute("data-zoomed", plot.viewport.value.k > 1);
    }),
    effect(() => {
      ui.window.value = plot.window.value;
    }),
    effect(() => {
      const names = plot.names.value;
      frame.toggleAttribute("data-segments", names !== null);
      ui.shownNames.value = names && (names.lengths === null ? "tokens" : "segments");
    }),
    effect(() => {
      const picture = store.picture.value;
      if (picture === null) return;
      const { layer, head, stage } = picture.of;
      const layers = store.facts.value.layers.length > 1 ? `layer ${layer}, ` : "";
      const stack = stackWords(store.facts.value)
        .map((words) => `${words}, `)
        .join("");
      const size = `${count(picture.queries)} queries by ${count(picture.keys)} keys`;
      canvas.setAttribute(
        "aria-label",
        `Attention ${stage}, ${stack}${layers}${headWords(head, store.facts.value)}, ${size}`,
      );
    }),
    effect(() => {
      live.textContent = spoken(ui);
    }),
  ];

  return {
    node,
    legend: recall.legend,
    plot,
    dispose() {
      for (const end of ends) end();
      for (const view of [...parts, padded, lines, exactTo, rings, sink, recall, received]) view.dispose();
      pointer.dispose();
      painter.dispose();
      ui.window.value = null;
      ui.destination.value = null;
      ui.pointedSegment.value = null;
      ui.shownNames.value = null;
    },
  };
}

/** Return a picture's canvas, which takes the focus and has a label. */
export function pictureCanvas(name = "picture"): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.dataset.aw = name;
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-roledescription", "heatmap");
  return canvas;
}

/** The pinned segments: "answer, doc 3, mass .2446, 1.77 times even". */
function spokenBlock({ store }: Ui): string {
  const [query, key] = [pinnedSegment(store, "query"), pinnedSegment(store, "key")];
  if (query === null || key === null) {
    return query !== null ? `${query.name}, as queries` : key !== null ? `${key.name}, as keys` : "";
  }
  const reading = blockReading(store);
  if (reading === null) return `${query.name}, ${key.name}`;
  const { mass, lift } = reading;
  if (Number.isNaN(mass)) return `${query.name}, ${key.name}, fully masked or excluded`;
  return `${query.name}, ${key.name}, mass ${blockNumber(mass, reading, (one) => listNumber(one, "weights"))}, ${blockNumber(lift, reading, (one) => one.toFixed(2))} times even`;
}

/** The pinned pair for screen readers: "query 14 bank, key 16 lent, weight .2283". */
export function spoken(ui: Ui): string {
  const { store, pinned } = ui;
  const reading = pinned.value;
  if (reading === null) return spokenBlock(ui);
  const stage = store.picture.value?.of.stage ?? "weights";
  const number =
    reading.kind === BLOCKED ? "masked" : `${wordOf(stage)} ${numberOf(reading.value, reading.kind, stage)}`;
  const query = store.queryLabels.value.at(reading.query).text;
  const key = store.keyLabels.value.at(reading.key).text;
  return `query ${reading.query} ${query}, key ${reading.key} ${key}, ${number}`;
}
