/**
 * All heads on one canvas: pictures from an atlas, a bar or a tint for each; larger pictures as they come into view.
 */

import { effect, type ReadonlySignal } from "@preact/signals-core";
import type { Grid } from "../../contract/decode";
import type { Facts } from "../../contract/messages";
import { isSigned } from "../../contract/stages";
import {
  cornerOf,
  type HeadMetric,
  type HeadsLayout,
  hasSigns,
  isTinted,
  nameOf,
  pictureOf,
  picturesOf,
  type Survey,
} from "../../data/survey";
import { drawRaster } from "../../draw/cells";
import { ownRange, type Paints } from "../../draw/color-mapper";
import type { Ui } from "../../state/ui";

/** Whether two surveys have the same pictures. */
const same = (one: Survey, other: Survey) =>
  one.pictures === other.pictures && one.ofStage?.layers === other.ofStage?.layers;

/** Painted thumbnails, kept while they and the colors stay the same. */
export class Atlas {
  private painted = new Map<Grid, HTMLCanvasElement>();
  private paints: Paints | null = null;
  /** Larger pictures, by survey and place. */
  private finer = new Map<number, Grid>();
  private of: Survey | null = null;

  take(survey: Survey, place: number, grid: Grid): void {
    this.keep(survey);
    this.finer.set(place, grid);
  }

  has(survey: Survey, place: number): boolean {
    return this.of !== null && same(this.of, survey) && this.finer.has(place);
  }

  image(survey: Survey, place: number, paints: Paints): HTMLCanvasElement | null {
    this.keep(survey);
    const grid = this.finer.get(place) ?? pictureOf(survey, place);
    if (!grid) return null;
    if (paints !== this.paints) this.painted.clear();
    this.paints = paints;
    let found = this.painted.get(grid);
    if (found === undefined) {
      found = document.createElement("canvas");
      drawRaster(found, grid, ownRange(isSigned(survey.ofStage?.stage ?? "weights")), paints);
      this.painted.set(grid, found);
    }
    return found;
  }

  /** Cleared for another survey, but kept for the same one with more layers. */
  private keep(survey: Survey): void {
    if (this.of !== null && same(this.of, survey)) return; // only a metric may differ
    const grows =
      this.of !== null && !this.of.ofStage && !survey.ofStage && !this.of.complete && this.of.batch === survey.batch;
    if (!grows) this.finer.clear();
    this.painted.clear();
    this.of = survey;
  }
}

export interface Style {
  readonly dpr: number;
  readonly unit: number;
  readonly font: string;
  readonly page: string;
  readonly ink2: string;
  readonly ink3: string;
  readonly track: string;
  readonly plate: string;
  readonly data: string;
  readonly above: string;
  readonly below: string;
}

interface Scene {
  readonly layout: HeadsLayout;
  readonly survey: Survey;
  readonly facts: Facts;
  readonly metric: HeadMetric | null;
  readonly paints: Paints;
  /** For signed numbers. */
  readonly losses: Paints;
  readonly style: Style;
  readonly atlas: Atlas;
}

/** Draw all heads on the canvas: their pictures, and a bar or a tint for each. */
export function drawHeads(canvas: HTMLCanvasElement, scene: Scene): void {
  const { layout, survey, metric, style } = scene;
  canvas.width = Math.round(layout.width * style.dpr);
  canvas.height = Math.round(layout.height * style.dpr);
  const context = canvas.getContext("2d");
  if (!context) return;
  context.setTransform(style.dpr, 0, 0, style.dpr, 0, 0);
  const signed = metric !== null && hasSigns(metric);
  for (let place = 0; place < survey.heads.length; place++) {
    const { x, y } = cornerOf(layout, place);
    if (metric !== null && (isTinted(metric.kind) || (signed && !layout.bars)))
      signTint(context, scene, x, y, metric.values[place]! / metric.high);
    else if (!layout.bars) tint(context, scene, x, y, shareOf(metric, place, signed));
    picture(context, scene, place, x, y);
    if (layout.bars && metric !== null) bar(context, scene, { x, y, share: shareOf(metric, place, signed), signed });
    if (layout.named) name(context, scene, place, x, y);
  }
}

/** From 0 to 1; for a signed metric, from −1. */
function shareOf(metric: HeadMetric | null, place: number, signed: boolean): number {
  const value = metric?.values[place] ?? Number.NaN;
  return Number.isFinite(value) ? Math.max(signed ? -1 : 0, Math.min(1, value / metric!.high)) : 0;
}

/** The picture in whole device pixels, with slightly round corners; a plate while it is missing. */
function picture(context: CanvasRenderingContext2D, scene: Scene, place: number, x: number, y: number): void {
  const { layout, survey, paints, style, atlas } = scene;
  const image = atlas.image(survey, place, paints);
  const [left, top, size] = [whole(x, style.dpr), whole(y, style.dpr), whole(layout.size, style.dpr)];
  context.save();
  context.beginPath();
  context.roundRect(left, top, size, size, (layout.bars ? 3 : 2) * style.unit);
  context.clip();
  if (!layout.bars) {
    context.fillStyle = style.page; // masked cells show the page, not the tint
    context.fillRect(left, top, size, size);
  }
  if (image === null) {
    context.fillStyle = style.plate;
    context.fillRect(left, top, size, size);
  } else {
    const shrinks = image.width > size * style.dpr || image.height > size * style.dpr;
    context.imageSmoothingEnabled = shrinks;
    if (shrinks) context.imageSmoothingQuality = "high";
    context.drawImage(image, left, top, size, size);
  }
  context.restore();
}

const whole = (length: number, dpr: number) => Math.round(length * dpr) / dpr;

interface Bar {
  readonly x: number;
  readonly y: number;
  /** From −1 to 1. */
  readonly share: number;
  readonly signed: boolean;
}

/** The metric under the picture: from its left end, or with signs from its center, as in figures. */
function bar(context: CanvasRenderingContext2D, { layout, style }: Scene, { x, y, share, signed }: Bar): void {
  const [left, top, tall] = [whole(x, style.dpr), whole(y + layout.size + 5 * style.unit, style.dpr), 2 * style.unit];
  const room = signed ? layout.size / 2 : layout.size;
  const zero = signed ? whole(left + room, style.dpr) : left;
  const wide = room * share;
  const color = signed ? (share < 0 ? style.below : style.above) : style.ink2;
  for (const [paint, start, width] of [
    [style.track, left, layout.size],
    [color, Math.min(zero, zero + wide), Math.abs(wide)],
  ] as const) {
    if (width === 0) continue;
    context.fillStyle = paint;
    context.beginPath();
    context.roundRect(start, top, width, tall, signed && paint === color ? 0 : tall / 2);
    context.fill();
  }
  if (!signed) return;
  context.fillStyle = style.ink2;
  context.fillRect(zero, top - style.unit, 1 / style.dpr, tall + 2 * style.unit);
}

/** The metric as a tint behind the picture, visible as a margin. */
function tint(context: CanvasRenderingContext2D, { layout, style }: Scene, x: number, y: number, share: number): void {
  const margin = (layout.across - layout.size) / 2 - 0.75 * style.unit; // the page shows between two tints
  const side = layout.size + 2 * margin;
  context.globalAlpha = 0.6 * share;
  context.fillStyle = style.data;
  context.beginPath();
  context.roundRect(x - margin, y - margin, side, side, 3 * style.unit);
  context.fill();
  context.globalAlpha = 1;
}

/** A signed number around the picture, in the colors of scores; an outline if not known yet. */
function signTint(context: CanvasRenderingContext2D, scene: Scene, x: number, y: number, share: number): void {
  const { layout, losses, style } = scene;
  const margin = Math.min((layout.across - layout.size) / 2 - 0.75 * style.unit, 3.5 * style.unit);
  const side = layout.size + 2 * margin;
  context.beginPath();
  context.roundRect(x - margin, y - margin, side, side, 4 * style.unit);
  context.fillStyle = losses.css[Math.round(127.5 * (1 + Math.max(-1, Math.min(1, share || 0))))]!;
  context.strokeStyle = style.track;
  if (Number.isNaN(share)) context.stroke();
  else context.fill();
}

function name(context: CanvasRenderingContext2D, scene: Scene, place: number, x: number, y: number): void {
  const { layout, survey, facts, style } = scene;
  context.font = `400 ${10 * style.unit}px ${style.font}`;
  context.fillStyle = style.ink3;
  context.textAlign = "center";
  context.textBaseline = "alphabetic";
  context.fillText(nameOf(survey.heads[place]!, facts), x + layout.size / 2, y + layout.size + 20 * style.unit);
}

// --- more detail ----------------------------------------------------------------------------------------------------

const MOST = 200; // heads per message
const FINE = 32; // rows and columns of a larger picture
const PAUSE = 150; // milliseconds without scrolling before a request

interface Detail {
  readonly canvas: HTMLCanvasElement;
  readonly layout: ReadonlySignal<HeadsLayout | null>;
  readonly atlas: Atlas;
  arrived(): void;
}

/** Request larger pictures of the heads in view, if they fit; returns a function to stop. */
export function moreDetail(ui: Ui, { canvas, layout, atlas, arrived }: Detail): () => void {
  const { store, kernel } = ui;
  let due: ReturnType<typeof setTimeout> | undefined;
  let asking: AbortController | null = null;
  const look = () => {
    clearTimeout(due);
    due = setTimeout(() => void ask(), PAUSE);
  };

  async function ask(): Promise<void> {
    asking?.abort();
    const [at, survey] = [layout.peek(), store.survey.peek()];
    if (at === null || survey === null || !survey.complete || survey.ofStage || kernel.away.peek()) return;
    asking = new AbortController();
    const { signal } = asking;
    const wanted = spansIn(
      survey,
      inView(canvas, at, survey),
      (place) => isCoarse(survey, place, at.size * ui.dpr.peek()) && !atlas.has(survey, place),
    );
    try {
      while (wanted.length > 0 && !signal.aborted) {
        let heads = 0;
        const now = [];
        while (wanted[0] !== undefined && heads + wanted[0].stop - wanted[0].start <= MOST) {
          heads += wanted[0].stop - wanted[0].start;
          now.push(wanted.shift()!);
        }
        await Promise.all(now.map((span) => fetchSpan(survey, span, signal)));
        arrived();
      }
    } catch {
      // The kernel's state tells why; the smaller ones stay.
    }
  }

  async function fetchSpan(survey: Survey, { layer, start, stop }: Span, signal: AbortSignal): Promise<void> {
    const body = { layer, batch: survey.batch, heads: [start, stop] };
    const reply = await kernel.request("thumbnails", body, { signal });
    const grids = await picturesOf(reply.values, layer, survey.batch, reply.buffers);
    const first = survey.heads.findIndex((one) => one.layer === layer && one.head === start);
    if (store.survey.peek()?.pictures === survey.pictures && !store.survey.peek()?.ofStage)
      grids.forEach((grid, i) => void atlas.take(survey, first + i, grid));
  }

  const end = effect(() => {
    void layout.value;
    void store.survey.value;
    look();
  });
  const listen = new AbortController();
  document.addEventListener("scroll", look, { capture: true, passive: true, signal: listen.signal });
  return () => {
    end();
    clearTimeout(due);
    asking?.abort();
    listen.abort();
  };
}

interface Span {
  readonly layer: number;
  readonly start: number;
  readonly stop: number;
}

/** Whether a picture has fewer cells than pixels, and more cells can be requested. */
function isCoarse({ pictures, heads, layers }: Survey, place: number, pixels: number): boolean {
  const grid = pictures[place];
  const layer = layers[heads[place]!.layer]!;
  if (!grid) return false;
  const most = Math.min(FINE, pixels);
  return grid.columns < Math.min(most, layer.keys) * 0.75 || grid.rows < Math.min(most, layer.queries) * 0.75;
}

/** The places that are at least partly visible. */
function inView(canvas: HTMLCanvasElement, layout: HeadsLayout, survey: Survey): number[] {
  const { top, left } = canvas.getBoundingClientRect();
  const [wide, tall] = [window.innerWidth, window.innerHeight];
  return survey.heads.flatMap((_, place) => {
    const { x, y } = cornerOf(layout, place);
    const inside = left + x < wide && left + x + layout.size > 0 && top + y < tall && top + y + layout.size > 0;
    return inside ? [place] : [];
  });
}

/** The wanted places as runs of heads of a layer, each at most as long as a request may be. */
function spansIn({ heads }: Survey, places: readonly number[], isWanted: (place: number) => boolean): Span[] {
  const spans: { layer: number; start: number; stop: number }[] = [];
  for (const place of [...places].sort((a, b) => a - b)) {
    const at = heads[place]!;
    if (!isWanted(place)) continue;
    const last = spans.at(-1);
    if (last?.layer === at.layer && last.stop === at.head && last.stop - last.start < MOST) last.stop++;
    else spans.push({ layer: at.layer, start: at.head, stop: at.head + 1 });
  }
  return spans;
}
