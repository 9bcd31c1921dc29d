/** The legend below the picture: the ramp with its ends, and every other kind of cell in it. */

import { Component, createRef } from "preact";
import {
  BLOCKED,
  type Grid,
  MINUS_INF,
  NAN,
  NUMBER,
  type Picture,
  PLUS_INF,
  type Thumbnails,
} from "../contract/decode";
import { largestOf, legendOf } from "../contract/stages";
import type { Stage } from "../contract/values";
import type { ColorMapper, Paints } from "../draw/color-mapper";
import { hasPadding } from "../state/padding";
import type { Plot } from "../state/plot";
import { layerExtent } from "../state/ranges";
import type { Ui } from "../state/ui";
import { count, legendTicks, listNumber, statusNumber } from "../text/format";
import { mount, part, type View } from "./dom";
import { toggleRange } from "./keyboard";
import { headWords } from "./phrases";

/** Return the legend below a picture: its ramp, and the kinds of cells outside it. */
export function legend(ui: Ui, plot: Plot): View {
  return mount(part("aw-legend", "legend"), () => <Legend ui={ui} plot={plot} />);
}

function Legend({ ui, plot }: { ui: Ui; plot: Plot }) {
  const { store } = ui;
  const picture = store.picture.value;
  const mapper = store.color_range.value === "view" ? plot.mapper.value : ui.mapper.value;
  const both = ui.paints.value;
  if (picture === null || picture.grid === null || mapper === null || both === null) return null;
  const paints = mapper.signed ? both.diverging : both.sequential;
  const stage = picture.of.stage;
  const kinds = countKinds(picture.grid, mapper);
  const reading = ui.pinned.value ?? (store.query.value === null ? ui.hovered.value : null);
  const mark =
    reading !== null && reading.kind === NUMBER ? mapper.position(reading.value, binRow(picture, reading.query)) : null;
  const pooled = picture.queryBin * picture.keyBin > 1;
  const cells = (n: number) => `${count(n)} ${pooled ? "pooled " : ""}${n === 1 ? "cell" : "cells"}`;
  const name = legendOf(stage, store.facts.value, store.batch.value);
  return (
    <>
      <div class="aw-ramp">
        <span>
          {name}
          {mapper.log ? ", log" : ""}
        </span>
        <Ramp paints={paints} ticks={ticksOf(mapper, stage)} mark={mark} />
      </div>
      <div class="aw-kinds">
        <KindList {...{ kinds, mapper, paints, stage, cells }} />
        {store.view.value === "heatmap" && hasPadding(store, picture) && (
          <span>
            <i class="aw-padded-swatch" />
            rows of padding
          </span>
        )}
        {typeof picture.of.head === "string" && <span>{headWords(picture.of.head, store.facts.value)}</span>}
        {(ui.mode.value !== "narrow" || store.color_range.value !== "head") && <Range ui={ui} picture={picture} />}
        <Pooling ui={ui} plot={plot} picture={picture} />
        {plot.every.value > 1 && <span>1 of {count(plot.every.value)} rows</span>}
      </div>
    </>
  );
}

/** What one cell of the picture stands for. Its room is kept for single cells, so that nothing below moves. */
function Pooling({ ui, plot, picture }: { ui: Ui; plot: Plot; picture: Picture }) {
  const scale = plot.scale.value;
  const fold = plot.figure.value?.fold ?? 1;
  if (scale === null || picture.queryBin * picture.keyBin * fold === 1) return null;
  const one = scale.queries * scale.keys === 1;
  const [queries, keys] = one ? [picture.queryBin * fold, picture.keyBin * fold] : [scale.queries, scale.keys];
  const what = ui.mode.value === "narrow" ? "each" : scale.pixel ? "each pixel" : "each cell of the picture";
  const how = ui.store.pool.value === "max" ? largestOf(picture.of.stage) : "mean";
  const text = `${what}: the ${how} of ${count(queries)} × ${count(keys)} cells`;
  return one ? <span class="aw-room" data-text={text} /> : <span>{text}</span>;
}

interface KindListProps {
  readonly kinds: Kinds;
  readonly mapper: ColorMapper;
  readonly paints: Paints;
  readonly stage: Stage;
  /** "3 cells" */
  cells(n: number): string;
}

/** List every kind of cell in the picture that is not on the ramp. */
export function KindList({ kinds, mapper, paints, stage, cells }: KindListProps) {
  return (
    <>
      {kinds.blocked > 0 && (
        <span>
          <Swatch kind={BLOCKED} />
          masked
        </span>
      )}
      {kinds.nan > 0 && (
        <span>
          <Swatch kind={NAN} />
          NaN, {cells(kinds.nan)}
        </span>
      )}
      {kinds.plus > 0 && (
        <span>
          <Swatch kind={PLUS_INF} />
          +∞, {cells(kinds.plus)}
        </span>
      )}
      {kinds.minus > 0 && (
        <span>
          <Swatch kind={MINUS_INF} />
          −∞, {cells(kinds.minus)}
        </span>
      )}
      {kinds.clipped > 0 && mapper.domain !== null && (
        <span>
          <Clipped color={paints.css[255]!} />
          {mapper.signed ? "beyond ±" : "above "}
          {endOf(mapper.domain.high, stage)}: {cells(kinds.clipped)}
        </span>
      )}
      {kinds.below > 0 && mapper.domain !== null && (
        <span>
          <Clipped color={paints.css[0]!} />
          below {endOf(mapper.domain.low, stage)}: {cells(kinds.below)}
        </span>
      )}
    </>
  );
}

/** An end of the legend, with as many digits as the counts beside it need: a rounded end would be another one. */
function endOf(value: number, stage: Stage): string {
  const isSame = (text: string) => Math.abs(Number(text.replace("−", "-")) - value) <= 1e-6 * Math.abs(value);
  const tick = legendTicks(value, value, "linear", stage).at(-1)?.text ?? "";
  return [tick, listNumber(value, stage)].find(isSame) ?? statusNumber(value);
}

/** The color range; if it can be toggled between view and head, as a button. */
function Range({ ui, picture }: { ui: Ui; picture: Picture }) {
  const range = ui.store.color_range.value;
  const text = rangeText(ui, picture);
  if (ui.store.view.value !== "heatmap" || (range !== "view" && (range !== "head" || ui.window.value === null))) {
    return <span>{text}</span>;
  }
  const other = range === "view" ? "the whole head" : "the part in view";
  return (
    <button
      type="button"
      class="aw-range"
      title={`Spread the colors over ${other} (key w)`}
      onClick={() => toggleRange(ui)}
    >
      {text}
    </button>
  );
}

function rangeText({ store }: Ui, picture: Picture): string {
  const range = store.color_range.value;
  if (Array.isArray(range)) return "custom range";
  const own = typeof store.pictured.value === "string" ? "its own range" : "range of this head";
  if (range === "layer" && layerExtent(store, picture) !== null) return layerText(store.thumbnails.value, picture);
  const texts = {
    head: own,
    layer: own,
    view: "range in view",
    row: "each row has its own range",
    unit: "fixed range",
  };
  return texts[range];
}

/** Only some rows of long heads were computed. */
function layerText(small: Thumbnails | null, { queries }: Picture): string {
  const rows = small?.rows ?? queries;
  return `range of the layer's heads${rows < queries ? `, from ${count(rows)} rows per head` : ""}`;
}

function binRow(picture: Picture, query: number): number {
  return Math.floor(query / picture.queryBin);
}

/** Return the labeled values of a ramp. */
export function ticksOf(mapper: ColorMapper, stage: Stage): readonly { at: number; text: string; end: boolean }[] {
  if (mapper.domain === null) {
    const ends = mapper.signed ? ["− row's max.", "0", "row's max."] : ["0", "row's maximum"];
    return ends.map((text, i) => ({ at: i / (ends.length - 1), text, end: i === ends.length - 1 }));
  }
  const { low, high } = mapper.domain;
  const ticks = legendTicks(low, high, mapper.log ? "log" : "linear", stage, 0.2);
  return ticks.map(({ value, text }, i) => ({
    at: mapper.position(value, 0),
    text,
    end: i > 0 && i === ticks.length - 1,
  }));
}

interface RampProps {
  readonly paints: Paints;
  readonly ticks: readonly { at: number; text: string; end: boolean }[];
  readonly mark: number | null;
}

/** Draw a ramp with its values, and a mark at the number under the pointer. */
export class Ramp extends Component<RampProps> {
  private canvas = createRef<HTMLCanvasElement>();

  override componentDidMount() {
    this.draw();
  }

  override componentDidUpdate() {
    this.draw();
  }

  private draw() {
    const canvas = this.canvas.current;
    const context = canvas?.getContext("2d");
    if (!canvas || !context) return;
    const image = context.createImageData(256, 1);
    new Uint32Array(image.data.buffer).set(this.props.paints.packed);
    context.putImageData(image, 0, 0);
  }

  override render({ ticks, mark }: RampProps) {
    return (
      <div>
        <canvas ref={this.canvas} width={256} height={1} />
        {ticks.map((tick) => (
          <span
            class="aw-value"
            key={tick.at}
            data-end={tick.end || undefined}
            data-start={tick.at === 0 || undefined}
            style={{ left: `${100 * tick.at}%` }}
          >
            {tick.text}
          </span>
        ))}
        {mark !== null && (
          <svg class="aw-mark" viewBox="0 0 8 5" style={{ left: `${100 * mark}%` }} aria-hidden="true">
            <path d="M0 0h8L4 5z" />
          </svg>
        )}
      </div>
    );
  }
}

export interface Kinds {
  blocked: number;
  nan: number;
  plus: number;
  minus: number;
  clipped: number;
  below: number;
}

let counted: { grid: Grid; mapper: ColorMapper; kinds: Kinds } | null = null;

/** Count the cells of each kind, once per picture and range. */
export function countKinds(grid: Grid, mapper: ColorMapper): Kinds {
  if (counted?.grid === grid && counted.mapper === mapper) return counted.kinds;
  const kinds: Kinds = { blocked: 0, nan: 0, plus: 0, minus: 0, clipped: 0, below: 0 };
  for (let at = 0; at < grid.kinds.length; at++) {
    const kind = grid.kinds[at];
    if (kind === NUMBER) {
      const value = grid.values[at]!;
      if (!mapper.clips(value)) continue;
      if (!mapper.signed && mapper.domain !== null && value < mapper.domain.low) kinds.below++;
      else kinds.clipped++;
    } else if (kind === BLOCKED) kinds.blocked++;
    else if (kind === NAN) kinds.nan++;
    else if (kind === PLUS_INF) kinds.plus++;
    else kinds.minus++;
  }
  counted = { grid, mapper, kinds };
  return kinds;
}

function Swatch({ kind }: { kind: number }) {
  return (
    <svg viewBox="0 0 14 14" aria-hidden="true">
      {kind === BLOCKED && (
        <>
          <rect x="0.5" y="0.5" width="13" height="13" rx="2.5" fill="none" stroke="var(--aw-track)" />
          <path d="M4.5 9.5l5-5" stroke="var(--aw-ink3)" stroke-width="0.9" />
        </>
      )}
      {kind === NAN && (
        <>
          <rect width="14" height="14" rx="2.5" fill="var(--aw-bad)" opacity="0.16" />
          <path d="M4 4l6 6M10 4l-6 6" stroke="var(--aw-bad)" stroke-width="1.5" />
        </>
      )}
      {kind === PLUS_INF && <rect width="14" height="14" rx="2.5" fill="var(--aw-ink)" />}
      {kind === MINUS_INF && (
        <rect x="0.5" y="0.5" width="13" height="13" rx="2.5" fill="var(--aw-bg)" stroke="var(--aw-ink)" />
      )}
    </svg>
  );
}

function Clipped({ color }: { color: string }) {
  return (
    <svg viewBox="0 0 14 14" aria-hidden="true">
      <path d="M2.5 0H10l4 4v7.5a2.5 2.5 0 0 1-2.5 2.5h-9A2.5 2.5 0 0 1 0 11.5v-9A2.5 2.5 0 0 1 2.5 0z" fill={color} />
    </svg>
  );
}
