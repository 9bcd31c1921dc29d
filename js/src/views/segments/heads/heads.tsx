/** Which heads read a segment: a row for each head, with its thumbnail and a bar in the column of each segment. */

import { computed, effect, type ReadonlySignal, signal } from "@preact/signals-core";
import { mount, part, px, type View } from "../../../components/dom";
import { pointIn } from "../../../components/gestures";
import type { Grid } from "../../../contract/decode";
import { largestSize, roundUp } from "../../../data/segments";
import { nameOf } from "../../../data/survey";
import { drawRaster } from "../../../draw/cells";
import { ownRange, type Paints } from "../../../draw/color-mapper";
import { segmentStyle } from "../../../draw/segment-colors";
import { textMeasure } from "../../../state/plot";

import type { Ui } from "../../../state/ui";
import { count, roundedUp } from "../../../text/format";
import { keepScroll } from "../drawing/left";
import { headPictures } from "../drawing/pictures";
import { cleared, type Style, styleOf, whole } from "../drawing/style";
import { watchHeadKeys } from "../input/keys";
import { pinColumn, pinHead } from "../input/pins";
import { watchSpots } from "../input/pointing";
import type { HeadTable, SegmentsModel, Spot } from "../model";
import { asideNames, type HeaderNames, headerNames } from "../words/names";
import { axisText, inWords, measureWord, readingText, shareText } from "../words/numbers";
import type { HeadsState } from "../words/states";
import { type HeadsLayout, layHeads } from "./layout";

/** Return the table of heads; `room` is its maximum width. */
export function headsPart(
  ui: Ui,
  model: SegmentsModel,
  room: ReadonlySignal<number>,
): View & { readonly state: HeadsState } {
  const node = part("aw-seg-heads");
  const scroller = part("aw-seg-scroller");
  const sheet = part("aw-seg-sheet");
  const canvas = document.createElement("canvas");
  canvas.tabIndex = 0;
  canvas.dataset.aw = "segment-heads";
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-roledescription", "table of heads");
  const scrolled = signal(0);
  const narrow = computed(() => ui.mode.value === "narrow");
  const scrollbar = signal(0);
  const textWide = textMeasure(ui);
  const layout = computed(() => {
    if (room.value === 0) return null;
    return layHeads({
      columns: narrow.value ? pinnedOnly(model) : model.headColumns.value,
      pinned: model.pinned.value,
      rows: model.headOrder.value.length,
      room: room.value - scrollbar.value,
      unit: ui.unit.value,
      narrow: narrow.value,
      number: textWide.value(model.shares.value ? WIDEST[model.measure.value] : "−88.888", 12, 700) + 6 * ui.unit.value,
    });
  });
  const most = computed(() => {
    const table = model.heads.value;
    const at = layout.value;
    if (table === null || at === null) return 1;
    const pinned = model.pinned.value;
    return roundUp(largestSize(numbersOf(model, table, pinned < 0 ? at.columns : [pinned])));
  });
  const shown = computed(() => {
    const at = layout.value;
    if (at === null) return { start: 0, stop: 0 };
    const start = Math.max(0, Math.floor(scrolled.value / at.pitch));
    return { start, stop: Math.min(at.rows, Math.ceil((scrolled.value + at.view) / at.pitch)) };
  });
  const state: HeadsState = {
    ...{ layout, most, shown },
    follow(place) {
      const at = layout.peek();
      if (at === null) return;
      const top = place * at.pitch;
      if (top < scroller.scrollTop) scroller.scrollTop = top;
      else if (top + at.pitch > scroller.scrollTop + at.view) scroller.scrollTop = top + at.pitch - at.view;
      scrolled.value = scroller.scrollTop;
    },
  };
  const visible = computed(() => model.headOrder.value.slice(shown.value.start, shown.value.stop));
  const pictures = headPictures(ui, model, visible);
  const names = computed(() => {
    const [at, now] = [layout.value, model.mass.value];
    return at && now && !at.narrow ? headerNames(at, now.keys, model.pinned.value, textWide.value) : null;
  });
  const header = mount(part("aw-seg-header"), () => <Header ui={ui} model={model} state={state} names={names.value} />);
  const marks = mount(part("aw-seg-words"), () => <Marks ui={ui} model={model} state={state} />);
  const foot = mount(part("aw-seg-foot"), () => <Foot ui={ui} model={model} state={state} />);
  sheet.append(canvas, marks.node);
  scroller.append(sheet);
  node.append(header.node, scroller, foot.node);
  scroller.addEventListener(
    "scroll",
    () => {
      scrolled.value = scroller.scrollTop;
    },
    { passive: true, signal: ui.stop },
  );
  const ends: (() => void)[] = [
    effect(() => {
      const at = layout.value;
      if (at === null) return;
      node.style.width = px(at.width + scrollbar.value);
      const rise = names.value?.rise ?? 0;
      header.node.toggleAttribute("data-aslant", rise > 0);
      header.node.style.height = rise > 0 ? px(rise) : "";
      scroller.style.height = px(at.view);
      scroller.toggleAttribute("data-fits", at.rows * at.pitch <= at.view);
      sheet.style.height = px(at.rows * at.pitch);
    }),
    effect(() => {
      const both = ui.paints.value;
      const paints = model.signed.value ? both?.diverging : both?.sequential;
      const [at, table] = [layout.value, model.heads.value];
      void pictures.arrived.value;
      if (at === null || !paints) return;
      const scene = { model, table, at, most: most.value, style: styleOf(ui), paints, pictureOf: pictures.of };
      paintHeads(canvas, scene, scrolled.value);
    }),
    effect(() => {
      const [heads, columns] = [model.heads.value?.heads.length ?? 0, layout.value?.columns.length ?? 0];
      const what = measureWord(model.measure.value, model.stage.value);
      canvas.setAttribute("aria-label", `${what} of ${heads} heads on ${columns} segments`);
    }),
  ];
  const resized = new ResizeObserver(() => {
    scrollbar.value = scroller.offsetWidth - scroller.clientWidth;
  });
  resized.observe(sheet);
  ends.push(
    keepScroll(
      ui,
      "heads",
      scroller,
      computed(() => (layout.value?.rows ?? 0) * (layout.value?.pitch ?? 0)),
    ),
  );
  watchPointer(ui, model, state, canvas, scrolled);
  watchHeadKeys(ui, model, state, canvas);
  return {
    node,
    state,
    dispose() {
      resized.disconnect();
      for (const end of ends) end();
      for (const view of [header, marks, foot]) view.dispose();
      pictures.dispose();
    },
  };
}

/** The maximum width of the sorted column's numbers. */
const WIDEST = { mass: "8.888", per_token: "8.8888", lift: "×88.8" } as const;

/** In little room, one segment has bars: the pinned one, or the first. */
function pinnedOnly(model: SegmentsModel): readonly number[] {
  const { columns } = model.left.value;
  return model.pinned.value >= 0 ? [model.pinned.value] : columns.slice(0, 1);
}

function* numbersOf(model: SegmentsModel, table: HeadTable, columns: readonly number[]): Generator<number> {
  for (let row = 0; row < table.heads.length; row++) {
    for (const column of columns) yield model.headReading(table, row, column);
  }
}

interface Scene {
  readonly model: SegmentsModel;
  readonly table: HeadTable | null;
  readonly at: HeadsLayout;
  readonly most: number;
  readonly style: Style;
  readonly paints: Paints;
  pictureOf(row: number): Grid | null;
}

function paintHeads(canvas: HTMLCanvasElement, scene: Scene, scrolled: number): void {
  const { model, table, at, style } = scene;
  const context = cleared(canvas, at.width, at.view, style.dpr);
  if (context === null || table === null) return;
  const order = model.headOrder.value;
  const first = Math.floor(scrolled / at.pitch);
  for (let place = first; place < order.length && place * at.pitch < scrolled + at.view; place++) {
    paintRow(context, scene, order[place]!, place * at.pitch - scrolled);
  }
}

const PAINTED = new WeakMap<Grid, { paints: Paints; image: HTMLCanvasElement }>();

function imageOf(grid: Grid, paints: Paints, signed: boolean): HTMLCanvasElement {
  const known = PAINTED.get(grid);
  if (known?.paints === paints) return known.image;
  const image = document.createElement("canvas");
  drawRaster(image, grid, ownRange(signed), paints);
  PAINTED.set(grid, { paints, image });
  return image;
}

function paintRow(context: CanvasRenderingContext2D, scene: Scene, row: number, top: number): void {
  const { model, table, at, style, paints, pictureOf } = scene;
  const middle = top + at.pitch / 2;
  const size = whole(at.picture, style.dpr);
  const [x, y] = [whole(at.pictureLeft, style.dpr), whole(middle - size / 2, style.dpr)];
  const grid = pictureOf(row);
  context.save();
  context.beginPath();
  context.roundRect(x, y, size, size, 3 * style.unit);
  context.clip();
  if (grid === null) {
    context.fillStyle = style.plate;
    context.fillRect(x, y, size, size);
  } else {
    const image = imageOf(grid, paints, model.signed.value);
    context.imageSmoothingEnabled = image.width > size * style.dpr;
    context.drawImage(image, x, y, size, size);
  }
  context.restore();
  at.columns.forEach((column, index) => {
    const value = model.headReading(table!, row, column);
    const even = evenOf(model, table!, row, column);
    paintBar(context, scene, { column, index, value, even, middle });
  });
}

function evenOf(model: SegmentsModel, table: HeadTable, row: number, column: number): number {
  const at = table.columns[column] ?? -1;
  if (at < 0 || !table.rest.shares) return Number.NaN;
  const even = table.rest.even[row * table.rest.columns + at]!;
  const measure = model.measure.value;
  if (measure === "lift") return even > 0 ? 1 : Number.NaN;
  return measure === "mass" ? even : even / (table.sizes[at] || Number.NaN);
}

interface Bar {
  readonly column: number;
  readonly index: number;
  readonly value: number;
  readonly even: number;
  readonly middle: number;
}

function paintBar(context: CanvasRenderingContext2D, scene: Scene, { column, index, value, even, middle }: Bar): void {
  const { model, at, most, style } = scene;
  const left = at.lefts[index]!;
  const sorted = column === model.pinned.value;
  const strong = sorted || model.pinned.value < 0;
  const tall = 8 * style.unit;
  const room = model.signed.value ? at.bar / 2 : at.bar;
  const zero = at.lefts[index]! + (model.signed.value ? room : 0);
  if (model.signed.value) {
    context.fillStyle = style.line;
    context.fillRect(whole(zero, style.dpr), middle - tall, 1 / style.dpr, 2 * tall);
  }
  if (Math.abs(value) > 0) {
    const wide = Math.max(1, (room * Math.min(Math.abs(value), most)) / most);
    const left = value > 0 ? zero : zero - wide;
    context.globalAlpha = strong ? 1 : style.paler;
    context.fillStyle = style.color(model.mass.value?.keyColors[column] ?? -1);
    context.beginPath();
    context.roundRect(left, middle - tall / 2, wide, tall, Math.min(2 * style.unit, wide / 2));
    context.fill();
    context.globalAlpha = 1;
    const end = value > 0 ? left + wide - 7 * style.unit : left + 7 * style.unit;
    if (Math.abs(value) > most * (1 + 1e-6)) cut(context, end, middle, tall, style);
    if (style.outlined) {
      context.strokeStyle = style.ink;
      context.strokeRect(left + 0.5, middle - tall / 2 + 0.5, Math.max(0, wide - 1), tall - 1);
    }
  }
  if (even <= most) {
    context.globalAlpha = strong ? 1 : 0.42;
    context.fillStyle = style.ink;
    const tick = 14 * style.unit;
    context.fillRect(whole(left + (at.bar * even) / most, style.dpr) - 0.5, middle - tick / 2, 1, tick);
    context.globalAlpha = 1;
  }
}

/** A bar that is too long is broken near its end. */
function cut(context: CanvasRenderingContext2D, x: number, middle: number, tall: number, style: Style): void {
  context.strokeStyle = style.page;
  context.lineWidth = 1.5 * style.unit;
  context.beginPath();
  for (const off of [0, 3 * style.unit]) {
    context.moveTo(x + off - 1.5 * style.unit, middle + tall / 2 + 1);
    context.lineTo(x + off + 1.5 * style.unit, middle - tall / 2 - 1);
  }
  context.stroke();
  context.lineWidth = 1;
}

function watchPointer(
  ui: Ui,
  model: SegmentsModel,
  state: HeadsState,
  canvas: HTMLCanvasElement,
  scrolled: ReadonlySignal<number>,
): void {
  const spotAt = (event: MouseEvent): Spot | null => {
    const at = state.layout.peek();
    if (at === null) return null;
    const { x, y } = pointIn(canvas, event);
    const row = model.headOrder.value[Math.floor((y + scrolled.peek()) / at.pitch)];
    if (row === undefined) return null;
    const index = at.lefts.findIndex((left, which) => x >= left - 3 && x < left + at.widths[which]! + 3);
    return { part: "heads", head: row, column: at.columns[index] ?? -1 };
  };
  watchSpots(ui, model, canvas, "heads", spotAt, (spot) => {
    if (spot.head !== undefined) pinHead(ui, model, spot.head);
  });
}

interface PartProps {
  readonly ui: Ui;
  readonly model: SegmentsModel;
  readonly state: HeadsState;
}

/** The names of the columns: a click sorts by one, the next click reverses. */
function Header({ ui, model, state, names }: PartProps & { readonly names: HeaderNames | null }) {
  const at = state.layout.value;
  const now = model.mass.value;
  if (at === null || now === null || names === null) return null;
  return (
    <>
      {at.columns.map((column, index) => {
        const pinned = column === model.pinned.value;
        const name = now.keys[column]!;
        return (
          <button
            type="button"
            key={column}
            aria-label={`Sort by ${name}${pinned ? (model.reversed.value ? ", smallest first" : ", largest first") : ""}`}
            aria-pressed={pinned}
            title={name}
            data-hovered={model.hover.value?.column === column || undefined}
            style={{ left: px(at.lefts[index]!), width: px(at.widths[index]! + 4 * at.unit) }}
            onClick={() => {
              if (pinned) model.reversed.value = !model.reversed.value;
              else {
                model.reversed.value = false;
                pinColumn(ui, model, column);
              }
            }}
          >
            <b>
              <span class={pinned ? "aw-pill" : ""}>
                <bdi>{names.texts[index]}</bdi>
              </span>
              {pinned && (
                <svg viewBox="0 0 8 6" aria-hidden="true" data-up={model.reversed.value || undefined}>
                  <path d="M0 0h8L4 6z" />
                </svg>
              )}
            </b>
            <i style={{ background: segmentStyle(now.keyColors[column] ?? -1, ui.theme.value) }} />
          </button>
        );
      })}
    </>
  );
}

/** The heads' names, the numbers of the sorted column, and rings around pictures. */
function Marks({ ui, model, state }: PartProps) {
  const at = state.layout.value;
  const table = model.heads.value;
  if (at === null || table === null) return null;
  const { start, stop } = state.shown.value;
  const { layer, head } = ui.store;
  const order = model.headOrder.value;
  const hovered = model.hover.value?.part === "heads" ? model.hover.value.head : undefined;
  const sorted = at.columns.indexOf(model.pinned.value);
  return (
    <>
      {order.slice(start, stop).map((row, index) => {
        const of = table.heads[row]!;
        const isShown = of.layer === layer.value && of.head === head.value;
        const value = sorted < 0 ? Number.NaN : model.headReading(table, row, model.pinned.value);
        return (
          <div
            key={row}
            class="aw-seg-head"
            data-now={isShown || undefined}
            data-hovered={row === hovered || undefined}
            style={{ top: px((start + index) * at.pitch), height: px(at.pitch), lineHeight: px(at.pitch) }}
          >
            <span class="aw-seg-id" style={{ width: px(at.pictureLeft - 8 * at.unit) }}>
              {nameOf(of, ui.store.facts.value)}
            </span>
            {(isShown || row === hovered) && (
              <i
                class="aw-ring"
                data-pinned={isShown || undefined}
                style={{
                  left: px(at.pictureLeft),
                  top: px((at.pitch - at.picture) / 2),
                  width: px(at.picture),
                  height: px(at.picture),
                }}
              />
            )}
            {sorted >= 0 && (
              <span class="aw-number" style={{ left: px(at.lefts[sorted]!), width: px(at.widths[sorted]!) }}>
                {at.narrow || model.measure.value !== "mass" || !model.shares.value
                  ? readingText(value, model.measure.value, model.stage.value)
                  : threeDigits(value)}
              </span>
            )}
          </div>
        );
      })}
    </>
  );
}

const threeDigits = (value: number) => (Number.isNaN(value) ? "–" : value.toFixed(3).replace(/^0/, ""));

/** How many heads are below, and their largest number. */
function Foot({ ui, model, state }: PartProps) {
  const at = state.layout.value;
  const table = model.heads.value;
  if (at === null || table === null) {
    if (ui.store.facts.value.saved === undefined) return <span>The kernel is computing all heads.</span>;
    return <span>The other heads were not saved in this file: open the notebook to compute them.</span>;
  }
  const { stop } = state.shown.value;
  const below = model.headOrder.value.slice(stop);
  const values = model.pinned.value < 0 ? [] : below.map((row) => model.headReading(table, row, model.pinned.value));
  const text = `${count(below.length)} more ${below.length === 1 ? "head" : "heads"}`;
  const most = values.reduce((high, value) => (value > high ? value : high), Number.NEGATIVE_INFINITY);
  const measure = model.measure.value;
  const aside = asideNames(model).join(", ");
  const stage = model.stage.value;
  const bound =
    measure === "lift"
      ? readingText(roundedUp(most, most >= 9.95 ? 0 : 1), measure, stage)
      : measure === "mass" && stage === "weights"
        ? shareText(roundedUp(most, 2), stage)
        : readingText(roundedUp(most, stage === "weights" ? 4 : 3), measure, stage);
  const isBounded = values.length > 0 && !model.reversed.value && Number.isFinite(most);
  const said = [
    ...(table.share < 1 ? [`${Math.floor(100 * table.share)} % of all heads so far`] : []),
    ...(below.length > 0 ? [isBounded ? `${text}, at most ${bound}` : text] : []),
    ...(aside !== "" ? [`excluded: ${aside}`] : []),
  ];
  return (
    <>
      <span style={{ marginLeft: px(at.pictureLeft) }}>{said.join("; ")}</span>
      {model.shares.value && (
        <span class="aw-seg-key-even">
          <u /> even attention
        </span>
      )}
    </>
  );
}

/** Return the note on the right above the table: the number of rows, and where the bars end. */
export function HeadsCaption({ model, state }: { model: SegmentsModel; state: HeadsState }) {
  const table = model.heads.value;
  const now = model.mass.value;
  const at = state.layout.value;
  if (table === null || now === null || at === null) return null;
  const { start, stop } = state.shown.value;
  const all = count(model.headOrder.value.length);
  const measure = model.measure.value;
  const most = state.most.value;
  const which =
    stop - start >= at.rows
      ? `${all} heads`
      : start === 0
        ? `first ${stop} of ${all}`
        : `${start + 1} to ${stop} of ${all}`;
  const isCut = largestSize(numbersOf(model, table, at.columns)) > most * (1 + 1e-6);
  const ends = `bars to ${model.signed.value ? "±" : ""}${axisText(most, measure)}${isCut ? ", longer ones cut" : ""}`;
  return <>{`${which}, ${measureWord(measure, model.stage.value)} from ${inWords(now.asking)}, ${ends}`}</>;
}
