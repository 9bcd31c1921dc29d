/** The matrix: cells on a canvas, labels around it, rings above it. */

import { effect, type ReadonlySignal } from "@preact/signals-core";
import { paint } from "../canvas";
import { count } from "../format";
import type { Figure } from "../layout";
import { createPlot, inView } from "../plot";
import { type Bin, patchSource, steady } from "../source";
import { wordOf } from "../stages";
import type { Ui } from "../ui";
import { BLOCKED } from "../wire";
import { mount, part, px, type View } from "./dom";
import { keyboard } from "./keyboard";
import { KeyLabels, QueryLabels } from "./labels";
import { pointing } from "./pointer";
import { Readout, Rings, ZoomHint } from "./rings";
import { numberOf } from "./words";

export interface Heatmap extends View {
  readonly figure: ReadonlySignal<Figure | null>;
}

export function heatmap(ui: Ui): Heatmap {
  const { store, kernel, stop } = ui;
  const plot = createPlot(ui);
  const node = part("aw-figure");
  const frame = part("aw-plot");
  const canvas = pictureCanvas();
  const over = part("aw-over");
  const live = part("aw-visually-hidden");
  live.setAttribute("aria-live", "polite");
  frame.append(canvas, over);

  const pointer = pointing(ui, plot, canvas);
  keyboard(ui, canvas, pointer);
  const parts = [
    mount(part("aw-labels"), () => <QueryLabels ui={ui} plot={plot} />),
    mount(part("aw-labels"), () => <KeyLabels ui={ui} plot={plot} />),
    mount(part("aw-floating"), () => (pointer.hint.value ? <ZoomHint plot={plot} /> : <Readout ui={ui} plot={plot} />)),
  ];
  const rings = mount(over, () => <Rings ui={ui} plot={plot} />);
  node.append(frame, ...parts.map((view) => view.node), live);

  const patch = patchSource(
    store,
    kernel,
    steady<Bin>(() => {
      const figure = plot.figure.value;
      if (figure === null || !plot.numbersFit.value) return null;
      const { rows, columns } = inView(figure, plot.viewport.value);
      return { queries: rows, keys: columns };
    }),
    stop,
  );

  let last: readonly unknown[] = [];
  const ends = [
    effect(() => {
      const figure = plot.figure.value;
      if (figure === null) return;
      const { left, top, width, height, overhang } = figure;
      Object.assign(node.style, { width: px(left + width + overhang), height: px(top + height) });
      Object.assign(frame.style, { left: px(left), top: px(top), width: px(width), height: px(height) });
      Object.assign(canvas.style, { width: px(width), height: px(height) });
    }),
    effect(() => draw()),
    effect(() => {
      const picture = store.picture.value;
      if (picture === null) return;
      const { layer, head, stage } = picture.of;
      const layers = store.facts.value.layers.length > 1 ? `layer ${layer}, ` : "";
      const size = `${count(picture.queries)} queries by ${count(picture.keys)} keys`;
      canvas.setAttribute("aria-label", `Attention ${stage}, ${layers}head ${head}, ${size}`);
    }),
    effect(() => {
      live.textContent = spoken(ui);
    }),
  ];

  function draw(): void {
    const figure = plot.figure.value;
    const grid = plot.grid.value;
    const brush = plot.brush.value;
    const both = ui.paints.value;
    const picture = store.picture.value;
    if (figure === null || grid === null || brush === null || both === null || picture === null) return;
    const now = [picture, brush, both];
    if (last.length > 0 && now.some((value, index) => value !== last[index])) fade(canvas, over);
    last = now;
    paint(canvas, {
      grid,
      brush,
      paints: brush.signed ? both.diverging : both.sequential,
      stage: picture.of.stage,
      cellWidth: figure.cellWidth,
      cellHeight: figure.cellHeight,
      viewport: plot.viewport.value,
      width: figure.width,
      height: figure.height,
      dpr: ui.dpr.value,
      unit: ui.unit.value,
      font: ui.font.value,
      numbers: plot.numbersFit.value,
      exact: picture.exact,
      patch: patch.value,
    });
    frame.toggleAttribute("data-zoomed", plot.viewport.value.k > 1);
  }

  return {
    node,
    figure: plot.figure,
    dispose() {
      for (const end of ends) end();
      for (const view of [...parts, rings]) view.dispose();
      pointer.dispose();
    },
  };
}

function pictureCanvas(): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.dataset.aw = "picture";
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-roledescription", "heatmap");
  return canvas;
}

/** The pinned pair for those who hear it: "query 14 bank, key 16 lent, weight .2283". */
function spoken({ store, pinned }: Ui): string {
  const reading = pinned.value;
  if (reading === null) return "";
  const stage = store.picture.value?.of.stage ?? "weights";
  const number =
    reading.kind === BLOCKED ? "masked" : `${wordOf(stage)} ${numberOf(reading.value, reading.kind, stage)}`;
  const query = store.queryLabels.value.at(reading.query).text;
  const key = store.keyLabels.value.at(reading.key).text;
  return `query ${reading.query} ${query}, key ${reading.key} ${key}, ${number}`;
}

/** Colours of a new head, stage or palette cross-fade from the last picture. */
function fade(canvas: HTMLCanvasElement, over: HTMLElement): void {
  if (!canvas.animate || canvas.width === 0 || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  const ghost = document.createElement("canvas");
  ghost.width = canvas.width;
  ghost.height = canvas.height;
  ghost.getContext("2d")?.drawImage(canvas, 0, 0);
  ghost.className = "aw-ghost";
  Object.assign(ghost.style, { width: canvas.style.width, height: canvas.style.height });
  over.before(ghost);
  const fading = ghost.animate([{ opacity: 1 }, { opacity: 0 }], { duration: 120, easing: "ease-out" });
  fading.onfinish = () => ghost.remove();
  fading.oncancel = () => ghost.remove();
}
