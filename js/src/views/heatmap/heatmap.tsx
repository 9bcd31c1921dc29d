/** The matrix: cells on a canvas, labels around it, rings above it. */

import { effect, signal } from "@preact/signals-core";
import { KeyLabels, QueryLabels } from "../../components/axis-labels";
import { mount, part, px, type View } from "../../components/dom";
import { watchKeyboard } from "../../components/keyboard";
import { headWords, numberOf } from "../../components/phrases";
import { createPointer } from "../../components/pointer";
import { ExactTo, Readout, Rings, ZoomHint } from "../../components/rings";
import { BLOCKED, type Picture } from "../../contract/decode";
import { wordOf } from "../../contract/stages";
import type { Bin } from "../../data/matrix";
import { paint } from "../../draw/cells";
import type { Span } from "../../geometry/viewport";
import { createPlot, inView, type Plot } from "../../state/plot";
import { isCurrent, patchSource, stableComputed } from "../../state/queries";
import { isOf } from "../../state/store-pictures";
import { tileSource } from "../../state/tile-cache";
import type { Ui } from "../../state/ui";
import { count } from "../../text/format";
import { paintTiles, TileRasters } from "./tile-compositor";

export interface Heatmap extends View {
  readonly plot: Plot;
}

/** Numbers are asked for by blocks of so many cells a side: a pan does not ask at every cell. */
const BLOCK = 16;

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

  const pointer = createPointer(ui, plot, canvas);
  watchKeyboard(ui, plot, canvas, pointer);
  const parts = [
    mount(part("aw-labels"), () => <QueryLabels ui={ui} plot={plot} />),
    mount(part("aw-labels"), () => <KeyLabels ui={ui} plot={plot} />),
    mount(part("aw-floating"), () => (pointer.hint.value ? <ZoomHint plot={plot} /> : <Readout ui={ui} plot={plot} />)),
  ];
  const exactTo = mount(part("aw-exact-to"), () => <ExactTo ui={ui} plot={plot} />);
  const rings = mount(over, () => <Rings ui={ui} plot={plot} />);
  frame.append(exactTo.node);
  node.append(frame, ...parts.map((view) => view.node), live);

  const patch = patchSource(
    store,
    kernel,
    stableComputed<Bin>(() => {
      const cellGrid = plot.cellGrid.value;
      if (cellGrid === null || !plot.numbersFit.value || plot.flying.value) return null;
      const { rows, columns } = inView(cellGrid);
      return { queries: inBlocks(rows, cellGrid.rows.total), keys: inBlocks(columns, cellGrid.columns.total) };
    }),
    stop,
  );
  tileSource(store.tiles, kernel, plot.wanted, () => isCurrent(store), stop);

  const rasters = new TileRasters();
  const tick = signal(0);
  let frameAsked = 0;
  let last: Drawn | null = null;
  const ends = [
    effect(() => {
      const figure = plot.figure.value;
      if (figure === null) return;
      const { left, top, width, height, overhang, below } = figure;
      Object.assign(node.style, { width: px(left + width + overhang), height: px(top + height + below) });
      Object.assign(frame.style, { left: px(left), top: px(top), width: px(width), height: px(height) });
      Object.assign(canvas.style, { width: px(width), height: px(height) });
    }),
    effect(() => draw()),
    effect(() => {
      ui.window.value = plot.window.value;
    }),
    effect(() => {
      const picture = store.picture.value;
      if (picture === null) return;
      const { layer, head, stage } = picture.of;
      const layers = store.facts.value.layers.length > 1 ? `layer ${layer}, ` : "";
      const size = `${count(picture.queries)} queries by ${count(picture.keys)} keys`;
      canvas.setAttribute("aria-label", `Attention ${stage}, ${layers}${headWords(head)}, ${size}`);
    }),
    effect(() => {
      live.textContent = spoken(ui);
    }),
  ];

  function draw(): void {
    const figure = plot.figure.value;
    const cellGrid = plot.cellGrid.value;
    const mapper = plot.mapper.value;
    const both = ui.paints.value;
    const picture = store.picture.value;
    if (figure === null || cellGrid === null || mapper === null || both === null || picture === null) return;
    const paints = mapper.signed ? both.diverging : both.sequential;
    const { color_scale, color_range } = store;
    const now = { picture, look: [color_scale.value, color_range.value, both] };
    if (last !== null && isAnother(last, now)) fade(canvas, over);
    last = now;
    const { rows, columns } = cellGrid;
    const scene = {
      mapper,
      paints,
      stage: picture.of.stage,
      width: figure.width,
      height: figure.height,
      dpr: ui.dpr.value,
      unit: ui.unit.value,
      font: ui.font.value,
      numbers: plot.numbersFit.value,
      patch: patch.value,
    };
    const grid = plot.grid.value;
    if (cellGrid.levels === null && grid !== null) {
      const viewport = { k: 1, x: columns.offset, y: rows.offset };
      paint(canvas, {
        ...scene,
        grid,
        cellWidth: columns.cell,
        cellHeight: rows.cell,
        viewport,
        exact: picture.exact && grid === picture.grid,
      });
      plot.every.value = 1;
    } else {
      void store.tiles.revision.value;
      void tick.value;
      const of = plot.tilesOf.value;
      const clock = isStill() ? Number.POSITIVE_INFINITY : performance.now();
      const painted = paintTiles(canvas, { ...scene, picture, cellGrid, tiles: store.tiles, of, rasters, now: clock });
      plot.every.value = painted.every;
      if (painted.fading && frameAsked === 0) {
        frameAsked = requestAnimationFrame(() => {
          frameAsked = 0;
          tick.value++;
        });
      }
    }
    frame.toggleAttribute("data-zoomed", plot.viewport.value.k > 1);
  }

  return {
    node,
    plot,
    dispose() {
      for (const end of ends) end();
      for (const view of [...parts, exactTo, rings]) view.dispose();
      cancelAnimationFrame(frameAsked);
      pointer.dispose();
      rasters.dispose();
      ui.window.value = null;
      ui.destination.value = null;
    },
  };
}

/** Whole blocks around a span. */
function inBlocks({ start, stop }: Span, total: number): Span {
  return { start: Math.floor(start / BLOCK) * BLOCK, stop: Math.min(total, Math.ceil(stop / BLOCK) * BLOCK) };
}

/** What a drawing shows, as far as a change of it is worth a cross-fade. */
interface Drawn {
  readonly picture: Picture;
  readonly look: readonly unknown[];
}

/** Another picture or other colours; not the same picture with more of its rows exact, or with a wider range. */
function isAnother(last: Drawn, now: Drawn): boolean {
  if (now.look.some((value, index) => value !== last.look[index])) return true;
  if (now.picture.of === last.picture.of) return false;
  return last.picture.sampled === null || !isOf(now.picture, last.picture.of);
}

const isStill = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

export function pictureCanvas(name = "picture"): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.dataset.aw = name;
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
export function fade(canvas: HTMLCanvasElement, over: HTMLElement): void {
  if (!canvas.animate || canvas.width === 0 || isStill()) return;
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
