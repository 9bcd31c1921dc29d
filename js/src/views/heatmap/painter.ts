/** The heatmap's canvas: what is painted on it, and when pictures cross-fade. */

import { signal } from "@preact/signals-core";
import type { Picture } from "../../contract/decode";
import type { Bin } from "../../data/matrix";
import { paint } from "../../draw/cells";
import type { Span } from "../../geometry/viewport";
import { inView, type Plot } from "../../state/plot";
import { patchSource, stableComputed } from "../../state/queries";
import { isOf } from "../../state/store-pictures";
import type { Ui } from "../../state/ui";
import { paintTiles, TileRasters } from "./tile-compositor";

/** Cells per side of a block of requested numbers, so that a pan does not request each cell. */
const BLOCK = 16;

/** Exact numbers of the cells in view, requested if they fit. */
function numbersInView({ store, kernel, stop }: Ui, plot: Plot) {
  const window = stableComputed<Bin>(() => {
    const cellGrid = plot.cellGrid.value;
    if (cellGrid === null || !plot.numbersFit.value || plot.flying.value) return null;
    const { rows, columns } = inView(cellGrid);
    return { queries: inBlocks(rows, cellGrid.rows.total), keys: inBlocks(columns, cellGrid.columns.total) };
  });
  return patchSource(store, kernel, window, stop);
}

/** Paint the view: the picture's own cells, or tiles that fade in as they arrive. */
export function createPainter(ui: Ui, plot: Plot, canvas: HTMLCanvasElement, over: HTMLElement) {
  const { store } = ui;
  const patch = numbersInView(ui, plot);
  const rasters = new TileRasters();
  const tick = signal(0);
  let frameAsked = 0;
  let last: Drawn | null = null;

  function nextFrame(): void {
    if (frameAsked !== 0) return;
    frameAsked = requestAnimationFrame(() => {
      frameAsked = 0;
      tick.value++;
    });
  }

  /** False while there is nothing to paint. */
  function draw(): boolean {
    const figure = plot.figure.value;
    const cellGrid = plot.cellGrid.value;
    const mapper = plot.mapper.value;
    const both = ui.paints.value;
    const picture = store.picture.value;
    if (figure === null || cellGrid === null || mapper === null || both === null || picture === null) return false;
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
      return true;
    }
    void store.tiles.revision.value;
    void tick.value;
    const of = plot.tilesOf.value;
    const clock = isStill() ? Number.POSITIVE_INFINITY : performance.now();
    const painted = paintTiles(canvas, { ...scene, picture, cellGrid, tiles: store.tiles, of, rasters, now: clock });
    plot.every.value = painted.every;
    if (painted.fading) nextFrame();
    return true;
  }

  return {
    draw,
    dispose() {
      cancelAnimationFrame(frameAsked);
      rasters.dispose();
    },
  };
}

/** Whole blocks around a span. */
function inBlocks({ start, stop }: Span, total: number): Span {
  return { start: Math.floor(start / BLOCK) * BLOCK, stop: Math.min(total, Math.ceil(stop / BLOCK) * BLOCK) };
}

/** The parts of a drawing whose change is worth a cross-fade. */
interface Drawn {
  readonly picture: Picture;
  readonly look: readonly unknown[];
}

/** Another picture or other colors, but not more exact rows or a wider range. */
function isAnother(last: Drawn, now: Drawn): boolean {
  if (now.look.some((value, index) => value !== last.look[index])) return true;
  if (now.picture.of === last.picture.of) return false;
  return last.picture.sampled === null || !isOf(now.picture, last.picture.of);
}

const isStill = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** Cross-fade to the colors of a new head, stage or palette. */
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
