/** The matrix: cells on a canvas, labels and rings in the page around and above it. */

import { batch, computed, effect, type ReadonlySignal, signal } from "@preact/signals-core";
import { select } from "d3-selection";
import { type D3ZoomEvent, type ZoomBehavior, zoom, zoomIdentity } from "d3-zoom";
import { type Brush, makeBrush } from "../brush";
import { foldGrid, paint, type Scene } from "../canvas";
import { count, listNumber } from "../format";
import {
  type Figure,
  GAPS_FROM,
  labelFont,
  labelStep,
  layoutFigure,
  MAX_CELL,
  NUMBERS_FROM,
  tickPositions,
  usesTicks,
} from "../layout";
import { type Bin, binOf, patchSource, peak, steady } from "../source";
import { type Labels, shorten } from "../tokens";
import { binAt, isSigned, type Ui } from "../ui";
import { cellAt, edge, reveal, type Span, type Viewport, visible, WHOLE } from "../viewport";
import { BLOCKED, type Grid, MINUS_INF, NAN, type Picture, PLUS_INF } from "../wire";
import { mount, part, Token, type View } from "./dom";

/** One axis of the picture as drawn: what its labels need to know. */
interface Axis {
  readonly side: "query" | "key";
  readonly labels: Labels;
  readonly cell: number;
  readonly cells: Span;
  readonly count: number;
  readonly bin: number;
  readonly k: number;
  readonly offset: number;
  readonly size: number;
  readonly pinned: number | null;
  readonly hovered: Span | null;
}

export function heatmap(ui: Ui): View & { readonly figure: ReadonlySignal<Figure | null> } {
  const { store, kernel, stop } = ui;
  const node = part("aw-figure");
  const plot = part("aw-plot");
  const canvas = document.createElement("canvas");
  canvas.dataset.aw = "picture";
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-roledescription", "heatmap");
  const over = part("aw-over");
  const live = part("aw-visually-hidden");
  live.setAttribute("aria-live", "polite");
  const queryAxis = part("aw-labels");
  const keyAxis = part("aw-labels");
  const floating = part("aw-floating");
  plot.append(canvas, over);
  node.append(plot, queryAxis, keyAxis, floating, live);

  const viewport = signal<Viewport>(WHOLE);
  const hint = signal(false);
  const measure = textMeasure(ui);

  // Sizes: of the figure on the page, and of the grid that its pixels can hold.
  const widths = computed(() => {
    const picture = store.picture.value;
    if (picture === null) return null;
    return labelWidths(picture, store.queryLabels.value, store.keyLabels.value, measure.value);
  });
  const figure = computed<Figure | null>(() => {
    const picture = store.picture.value;
    if (picture?.grid == null || widths.value === null || ui.width.value === 0) return null;
    return layoutFigure({
      width: ui.width.value,
      rows: picture.grid.rows,
      columns: picture.grid.columns,
      labels: widths.value,
      dpr: ui.dpr.value,
      unit: ui.unit.value,
    });
  });
  const drawn = computed<Grid | null>(() => {
    const grid = store.picture.value?.grid;
    return grid == null || figure.value === null ? null : foldGrid(grid, figure.value.fold);
  });

  const painted = computed<Brush | null>(() => {
    const picture = store.picture.value;
    const grid = drawn.value;
    if (picture === null || grid === null) return null;
    if (grid === picture.grid) return ui.brush.value;
    return makeBrush(picture, grid, isSigned(picture.of.stage), store.color_scale.value, store.color_range.value);
  });

  const numbersFit = computed(() => {
    const f = figure.value;
    if (f === null || f.mode === "narrow" || f.fold > 1) return false;
    const picture = store.picture.value;
    const size = Math.min(f.cellWidth, f.cellHeight) * viewport.value.k;
    return picture?.queryBin === 1 && picture.keyBin === 1 && size >= NUMBERS_FROM * ui.unit.value;
  });
  const patch = patchSource(
    store,
    kernel,
    steady<Bin>(() => {
      const f = figure.value;
      if (f === null || !numbersFit.value) return null;
      const view = viewport.value;
      return {
        queries: visible(f.rows, f.cellHeight, view.k, view.y, f.height),
        keys: visible(f.columns, f.cellWidth, view.k, view.x, f.width),
      };
    }),
    stop,
  );

  const disposals: (() => void)[] = [];
  const when = (run: () => void) => disposals.push(effect(run));

  when(() => place(figure.value));
  function place(f: Figure | null) {
    if (f === null) return;
    Object.assign(node.style, { width: px(f.left + f.width + f.overhang), height: px(f.top + f.height) });
    Object.assign(plot.style, { left: px(f.left), top: px(f.top), width: px(f.width), height: px(f.height) });
    Object.assign(canvas.style, { width: px(f.width), height: px(f.height) });
  }

  // The picture itself.
  let shown: { picture: Picture; brush: unknown; paints: unknown } | null = null;
  when(() => {
    const f = figure.value;
    const grid = drawn.value;
    const brush = painted.value;
    const both = ui.paints.value;
    const picture = store.picture.value;
    if (f === null || grid === null || brush === null || both === null || picture === null) return;
    if (shown !== null && (shown.picture !== picture || shown.brush !== brush || shown.paints !== both))
      fade(canvas, over);
    shown = { picture, brush, paints: both };
    const scene: Scene = {
      grid,
      brush,
      paints: brush.signed ? both.diverging : both.sequential,
      stage: picture.of.stage,
      cellWidth: f.cellWidth,
      cellHeight: f.cellHeight,
      viewport: viewport.value,
      width: f.width,
      height: f.height,
      dpr: ui.dpr.value,
      unit: ui.unit.value,
      font: ui.font.value,
      numbers: numbersFit.value,
      exact: picture.exact,
      patch: patch.value,
    };
    paint(canvas, scene);
  });

  when(() => {
    const picture = store.picture.value;
    if (picture === null) return;
    const { layer, head, stage } = picture.of;
    const layers = store.facts.value.layers.length > 1 ? `layer ${layer}, ` : "";
    canvas.setAttribute(
      "aria-label",
      `Attention ${stage}, ${layers}head ${head}, ${count(picture.queries)} queries by ${count(picture.keys)} keys`,
    );
  });

  // Labels, rings, rules.
  const hoveredSpans = computed(() => {
    const at = ui.hover.value;
    if (at === null) return { queries: null, keys: null };
    if ("bin" in at) return at.bin;
    const one = { start: at.target.index, stop: at.target.index + 1 };
    return at.target.side === "query" ? { queries: one, keys: null } : { queries: null, keys: one };
  });
  const axis = (side: "query" | "key"): Axis | null => {
    const f = figure.value;
    const picture = store.picture.value;
    if (f === null || picture === null) return null;
    const down = side === "query";
    const view = viewport.value;
    const cell = down ? f.cellHeight : f.cellWidth;
    const offset = down ? view.y : view.x;
    const size = down ? f.height : f.width;
    const spans = hoveredSpans.value;
    return {
      side,
      labels: (down ? store.queryLabels : store.keyLabels).value,
      cell,
      cells: visible(down ? f.rows : f.columns, cell, view.k, offset, size),
      count: down ? picture.queries : picture.keys,
      bin: (down ? picture.queryBin : picture.keyBin) * f.fold,
      k: view.k,
      offset,
      size,
      pinned: down ? store.query.value : store.key.value,
      hovered: down ? spans.queries : spans.keys,
    };
  };
  const views = [
    mount(queryAxis, () => <QueryLabels axis={axis("query")} figure={figure.value} ui={ui} measure={measure.value} />),
    mount(keyAxis, () => <KeyLabels axis={axis("key")} figure={figure.value} ui={ui} measure={measure.value} />),
    mount(over, () => <Rings ui={ui} figure={figure.value} viewport={viewport.value} />),
    mount(floating, () => (
      <Floating ui={ui} figure={figure.value} viewport={viewport.value} numbers={numbersFit.value} hint={hint.value} />
    )),
  ];

  when(() => {
    const reading = ui.pinned.value;
    const { query, key } = { query: store.query.value, key: store.key.value };
    if (reading === null || query === null || key === null) return;
    const name = (labels: Labels, index: number) => labels.at(index).text;
    const said =
      reading.kind === BLOCKED
        ? "masked"
        : `${wordOf(store.stage.value)} ${listNumber(reading.value, store.stage.value)}`;
    live.textContent = `query ${query} ${name(store.queryLabels.value, query)}, key ${key} ${name(store.keyLabels.value, key)}, ${said}`;
  });

  // Pointer.
  let hinted = false;
  const binUnder = (event: { clientX: number; clientY: number }): Bin | null => {
    const f = figure.value;
    const picture = store.picture.value;
    if (f === null || picture === null) return null;
    const box = canvas.getBoundingClientRect();
    const view = viewport.value;
    const row = cellAt(event.clientY - box.top, f.rows, f.cellHeight, view.k, view.y);
    const column = cellAt(event.clientX - box.left, f.columns, f.cellWidth, view.k, view.x);
    if (row === null || column === null) return null;
    return foldedBin(picture, row, column, f.fold);
  };
  const listen = <K extends keyof HTMLElementEventMap>(
    name: K,
    run: (event: HTMLElementEventMap[K]) => void,
    passive = true,
  ) => canvas.addEventListener(name, run as EventListener, { signal: stop, passive });
  listen("pointermove", (event) => {
    if (event.pointerType === "touch") return;
    const bin = binUnder(event);
    ui.hover.value = bin === null ? null : { bin };
  });
  listen("pointerleave", () => {
    ui.hover.value = null;
    hint.value = false;
  });
  listen("click", (event) => {
    const bin = binUnder(event);
    if (bin !== null) void pin(bin);
  });
  listen(
    "wheel",
    (event) => {
      const picture = store.picture.value;
      if (event.ctrlKey || event.metaKey || hinted || picture === null || picture.queryBin * picture.keyBin === 1)
        return;
      hinted = true; // said once, where there is something to zoom into
      hint.value = true;
      setTimeout(() => {
        hint.value = false;
      }, 2500);
    },
    true,
  );

  /** Pin a cell, or the greatest number of a bin; what is pinned already is freed. */
  async function pin(bin: Bin) {
    const { query, key } = { query: store.query.value, key: store.key.value };
    if (query !== null && key !== null && within(query, bin.queries) && within(key, bin.keys)) {
      store.select({ query: null, key: null });
      return;
    }
    let place = { query: bin.queries.start, key: bin.keys.start };
    const picture = store.picture.value;
    const known = ui.hovered.value;
    if (known !== null && within(known.query, bin.queries) && within(known.key, bin.keys)) place = known;
    else if (picture !== null && (bin.queries.stop - bin.queries.start > 1 || bin.keys.stop - bin.keys.start > 1)) {
      place = await peak(kernel, picture, bin, stop).catch(() => place);
    }
    if (!stop.aborted) store.select({ query: place.query, key: place.key });
  }

  // Zoom and pan: the wheel scrolls the notebook, and zooms with Ctrl or ⌘ only.
  const zooming: ZoomBehavior<HTMLCanvasElement, unknown> = zoom<HTMLCanvasElement, unknown>()
    .filter((event: Event) => {
      if (event.type === "wheel") return (event as WheelEvent).ctrlKey || (event as WheelEvent).metaKey;
      if (event.type.startsWith("touch")) return (event as TouchEvent).touches.length >= 2;
      return event.type !== "dblclick" && (event as MouseEvent).button === 0;
    })
    .wheelDelta((event) => {
      const pixels = event.deltaMode === 1 ? 30 * event.deltaY : event.deltaY;
      return -Math.sign(pixels) * Math.min(0.5, Math.abs(pixels) * 0.01);
    })
    .on("zoom", (event: D3ZoomEvent<HTMLCanvasElement, unknown>) => {
      const { k, x, y } = event.transform;
      viewport.value = { k, x, y };
    });
  const surface = select(canvas).call(zooming).on("dblclick.zoom", null);
  const reset = () => surface.call(zooming.transform, zoomIdentity);
  listen("dblclick", reset);
  let zoomedOn = "";
  when(() => {
    const f = figure.value;
    if (f === null) return;
    const most = Math.max(1, (MAX_CELL * ui.unit.value) / Math.min(f.cellWidth, f.cellHeight));
    zooming
      .scaleExtent([1, most])
      .extent([
        [0, 0],
        [f.width, f.height],
      ])
      .translateExtent([
        [0, 0],
        [f.width, f.height],
      ]);
    const sizes = `${f.width} ${f.height} ${f.rows} ${f.columns}`;
    if (zoomedOn !== "" && zoomedOn !== sizes) queueMicrotask(reset);
    zoomedOn = sizes;
  });
  when(() => plot.toggleAttribute("data-pannable", viewport.value.k > 1));

  // Keys.
  listen(
    "keydown",
    (event) => {
      if (handleKey(event)) {
        event.preventDefault();
        event.stopPropagation();
      }
    },
    false,
  );
  function handleKey(event: KeyboardEvent): boolean {
    if (event.ctrlKey || event.metaKey || event.altKey) return false;
    const picture = store.picture.value;
    if (picture === null) return false;
    const step = event.shiftKey ? 10 : 1;
    switch (event.key) {
      case "ArrowLeft":
        return movePin(0, -step);
      case "ArrowRight":
        return movePin(0, step);
      case "ArrowUp":
        return movePin(-step, 0);
      case "ArrowDown":
        return movePin(step, 0);
      case "Home":
        return movePin(0, -picture.keys);
      case "End":
        return movePin(0, picture.keys);
      case "Enter":
      case " ":
        return pinHovered();
      case "Escape":
        return free();
      case "[":
        return stepHead(-1);
      case "]":
        return stepHead(1);
      case "{":
        return stepLayer(-1);
      case "}":
        return stepLayer(1);
      case "+":
      case "=":
        return scaleBy(1.5);
      case "-":
      case "−":
        return scaleBy(1 / 1.5);
      case "0":
        reset();
        return true;
      default:
        return false;
    }
  }
  function movePin(down: number, right: number): boolean {
    const picture = store.picture.value as Picture;
    const clamp = (value: number, most: number) => Math.max(0, Math.min(most - 1, value));
    const from = ui.hovered.value;
    const [query, key] = [store.query.value, store.key.value];
    const next =
      query === null && key === null
        ? { query: from?.query ?? 0, key: from?.key ?? 0 }
        : {
            query: clamp((query ?? 0) + down * picture.queryBin, picture.queries),
            key: clamp((key ?? 0) + right * picture.keyBin, picture.keys),
          };
    store.select(next);
    follow(next.query, next.key);
    return true;
  }
  /** Pan so that a pinned cell is in view. */
  function follow(query: number, key: number) {
    const f = figure.value;
    const picture = store.picture.value;
    const view = viewport.value;
    if (f === null || picture === null || view.k === 1) return;
    const row = Math.floor(query / picture.queryBin / f.fold);
    const column = Math.floor(key / picture.keyBin / f.fold);
    const right = reveal(column, f.cellWidth, view.k, view.x, f.width);
    const down = reveal(row, f.cellHeight, view.k, view.y, f.height);
    if (right !== 0 || down !== 0) {
      surface.call(zooming.transform, zoomIdentity.translate(view.x + right, view.y + down).scale(view.k));
    }
  }
  function pinHovered(): boolean {
    const at = ui.hover.value;
    if (at !== null && "bin" in at) void pin(at.bin);
    return true;
  }
  function free(): boolean {
    if (store.query.value === null && store.key.value === null) return false;
    store.select({ query: null, key: null });
    return true;
  }
  function stepHead(by: number): boolean {
    const head = store.head.value + by;
    if (head >= 0 && head < store.facts.value.heads) store.select({ head });
    return true;
  }
  function stepLayer(by: number): boolean {
    const layer = store.layer.value + by;
    if (layer >= 0 && layer < store.facts.value.layers.length) store.select({ layer });
    return true;
  }
  function scaleBy(factor: number): boolean {
    surface.call(zooming.scaleBy, factor);
    return true;
  }

  return {
    node,
    figure,
    dispose() {
      for (const dispose of disposals) dispose();
      for (const view of views) view.dispose();
      surface.on(".zoom", null);
    },
  };
}

const px = (length: number) => `${length}px`;
const within = (index: number, span: Span) => index >= span.start && index < span.stop;

export function wordOf(stage: string): string {
  return stage === "weights" ? "weight" : stage === "scores" ? "score" : stage;
}

function foldedBin(picture: Picture, row: number, column: number, fold: number): Bin {
  const first = binOf(picture, row * fold, column * fold);
  if (fold === 1) return first;
  const stop = (index: number, bin: number, total: number) => Math.min((index + 1) * fold * bin, total);
  return {
    queries: { start: first.queries.start, stop: stop(row, picture.queryBin, picture.queries) },
    keys: { start: first.keys.start, stop: stop(column, picture.keyBin, picture.keys) },
  };
}

/** Colours of a new head, stage or palette cross-fade from the last picture. */
function fade(canvas: HTMLCanvasElement, over: HTMLElement): void {
  if (!canvas.animate || canvas.width === 0 || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  const ghost = document.createElement("canvas");
  ghost.width = canvas.width;
  ghost.height = canvas.height;
  ghost.getContext("2d")?.drawImage(canvas, 0, 0);
  ghost.className = "aw-ghost";
  Object.assign(ghost.style, {
    position: "absolute",
    inset: "0",
    width: canvas.style.width,
    height: canvas.style.height,
    pointerEvents: "none",
  });
  over.before(ghost);
  const fading = ghost.animate([{ opacity: 1 }, { opacity: 0 }], { duration: 120, easing: "ease-out" });
  fading.onfinish = () => ghost.remove();
  fading.oncancel = () => ghost.remove();
}

/** Width of text in the widget's own font, remembered. */
function textMeasure(ui: Ui): ReadonlySignal<(text: string, size: number, weight?: number) => number> {
  const context = document.createElement("canvas").getContext("2d");
  return computed(() => {
    const family = ui.font.value;
    const unit = ui.unit.value;
    const known = new Map<string, number>();
    return (text, size, weight = 400) => {
      const id = `${size} ${weight} ${text}`;
      let width = known.get(id);
      if (width === undefined) {
        if (context) context.font = `${weight} ${size * unit}px ${family}`;
        width = context?.measureText(text).width ?? text.length * size * 0.6;
        known.set(id, width);
      }
      return width;
    };
  });
}

/** How much room the labels of both axes need; positions only, where a cell stands for several tokens. */
function labelWidths(
  picture: Picture,
  queries: Labels,
  keys: Labels,
  measure: (text: string, size: number, weight?: number) => number,
) {
  const full = (labels: Labels, index: number) => {
    const label = labels.at(index);
    return measure(label.text, 12, 600) + (label.subscript === "" ? 0 : measure(label.subscript, 9) + 1);
  };
  const number = (most: number) => measure(count(most), 10);
  const longest = (labels: Labels, bin: number, total: number) => {
    if (bin > 1) return number(total - 1);
    let most = number(total - 1);
    for (let i = 0; i < total; i++) most = Math.max(most, full(labels, i));
    return most;
  };
  const keyTicks = picture.keyBin > 1;
  return {
    queryTicks: picture.queryBin > 1,
    keyTicks,
    query: longest(queries, picture.queryBin, picture.queries),
    key: longest(keys, picture.keyBin, picture.keys),
    keys: (index: number) => (keyTicks ? 0 : full(keys, index)),
  };
}

interface LabelProps {
  readonly axis: Axis | null;
  readonly figure: Figure | null;
  readonly ui: Ui;
  readonly measure: (text: string, size: number, weight?: number) => number;
}

/** Which cells of an axis carry a label: every one, or every k-th beside what is pinned and hovered. */
function labelled(axis: Axis, unit: number): number[] {
  const size = axis.cell * axis.k;
  const step = labelStep(size, unit);
  const special = [axis.pinned, axis.hovered?.start ?? null].filter((index) => index !== null) as number[];
  const chosen: number[] = [];
  for (let i = axis.cells.start; i < axis.cells.stop; i++) if (i % step === 0) chosen.push(i);
  if (step === 1 && !(axis.side === "key" && size < 16 * unit)) return chosen;
  const near = step === 1 ? 1.5 * size : 14 * unit; // neighbours step back for a pinned or hovered label
  const kept = chosen.filter((i) => special.every((s) => s === i || Math.abs(s - i) * size >= near));
  for (const s of special) if (within(s, axis.cells) && !kept.includes(s)) kept.push(s);
  return kept;
}

function hoverHandlers(ui: Ui, side: "query" | "key", index: number) {
  return {
    onPointerEnter: (event: PointerEvent) => {
      if (event.pointerType !== "touch") ui.hover.value = { target: { side, index } };
    },
    onPointerLeave: () => {
      ui.hover.value = null;
    },
    onClick: () => pinLabel(ui, side, index),
  };
}

/** A label pins its row or column alone; again frees it. */
function pinLabel(ui: Ui, side: "query" | "key", index: number): void {
  const { store } = ui;
  const alone = side === "query" ? store.key.value === null : store.query.value === null;
  const same = (side === "query" ? store.query.value : store.key.value) === index;
  const next = alone && same ? null : index;
  batch(() => store.select(side === "query" ? { query: next, key: null } : { query: null, key: next }));
}

function QueryLabels({ axis, figure, ui, measure }: LabelProps) {
  if (axis === null || figure === null) return null;
  const unit = ui.unit.value;
  const size = axis.cell * axis.k;
  const right = figure.left - 8 * unit;
  if (usesTicks(size, axis.bin, unit)) return <Ticks axis={axis} figure={figure} unit={unit} />;
  const font = labelFont(size, unit);
  const most = figure.labelRoom;
  return labelled(axis, unit).map((index) => {
    const pinned = axis.pinned === index;
    const label = axis.labels.at(index);
    const middle = figure.top + edge(index, axis.cell, axis.k, axis.offset, ui.dpr.value) + size / 2;
    const text = shorten(label.text, most, (part) => measure(part, font, pinned ? 600 : 400));
    return (
      <span
        key={index}
        class={pinned ? "aw-label aw-pill" : "aw-label"}
        data-special={label.special || undefined}
        data-hovered={(!pinned && axis.hovered?.start === index) || undefined}
        title={label.text}
        style={{
          fontSize: px(font * unit),
          lineHeight: px(Math.min(16 * unit, Math.max(11 * unit, size))),
          top: px(middle),
          right: px(-(pinned ? right + 6 * unit : right)),
          transform: "translateY(-50%)",
        }}
        {...hoverHandlers(ui, "query", index)}
      >
        <bdi>{text}</bdi>
        {label.subscript !== "" && <sub>{label.subscript}</sub>}
      </span>
    );
  });
}

function KeyLabels({ axis, figure, ui, measure }: LabelProps) {
  if (axis === null || figure === null) return null;
  const unit = ui.unit.value;
  const size = axis.cell * axis.k;
  if (usesTicks(size, axis.bin, unit)) return <Ticks axis={axis} figure={figure} unit={unit} />;
  const font = labelFont(size, unit);
  const crowded = size < 16 * unit;
  const most = (figure.keyRoom - 12 * unit) / Math.SQRT1_2;
  return labelled(axis, unit).map((index) => {
    const pinned = axis.pinned === index;
    const label = axis.labels.at(index);
    const middle = figure.left + edge(index, axis.cell, axis.k, axis.offset, ui.dpr.value) + size / 2;
    const text = shorten(label.text, most, (part) => measure(part, font, pinned ? 600 : 400));
    const away = pinned ? -6 * unit : 0;
    return (
      <span
        key={index}
        class={pinned ? "aw-label aw-pill" : "aw-label"}
        data-special={label.special || undefined}
        data-hovered={(!pinned && axis.hovered?.start === index) || undefined}
        title={label.text}
        style={{
          fontSize: px(font * unit),
          lineHeight: px(Math.min(16, font + 4) * unit),
          left: px(middle + 3 * unit),
          top: px(figure.top - 5 * unit),
          transformOrigin: "0 100%",
          transform: `translateY(-100%) rotate(-45deg) translateX(${away}px)`,
        }}
        {...hoverHandlers(ui, "key", index)}
      >
        <bdi>{text}</bdi>
        {label.subscript !== "" && (!crowded || pinned) && <sub>{label.subscript}</sub>}
      </span>
    );
  });
}

/** Round positions, where tokens have no room. */
function Ticks({ axis, figure, unit }: { axis: Axis; figure: Figure; unit: number }) {
  const perToken = (axis.cell * axis.k) / axis.bin;
  const first = axis.cells.start * axis.bin;
  const last = Math.min(axis.count, axis.cells.stop * axis.bin) - 1;
  const down = axis.side === "query";
  const apart = (down ? 40 : 72) * unit;
  return (
    <>
      {tickPositions(first, last, perToken, apart).map((position) => {
        const at = (position + 0.5) * perToken + axis.offset;
        const tick = down
          ? { left: px(figure.left - 6 * unit), top: px(figure.top + at), width: px(4 * unit), height: "1px" }
          : { left: px(figure.left + at), top: px(figure.top - 6 * unit), width: "1px", height: px(4 * unit) };
        const text = down
          ? { right: px(-(figure.left - 9 * unit)), top: px(figure.top + at), transform: "translateY(-50%)" }
          : { left: px(figure.left + at), top: px(figure.top - 7 * unit), transform: "translate(-50%, -100%)" };
        return (
          <span key={position}>
            <i class="aw-tick" style={tick} />
            <span class="aw-label" data-tick style={text}>
              {count(position)}
            </span>
          </span>
        );
      })}
    </>
  );
}

/** Rings around the pinned and the hovered cell, and rules along the pinned row and column. */
function Rings({ ui, figure, viewport }: { ui: Ui; figure: Figure | null; viewport: Viewport }) {
  const picture = ui.store.picture.value;
  if (figure === null || picture === null) return null;
  const [query, key] = [ui.store.query.value, ui.store.key.value];
  const at = ui.hover.value;
  const dpr = ui.dpr.value;
  const gap = Math.min(figure.cellWidth, figure.cellHeight) * viewport.k >= GAPS_FROM * ui.unit.value ? 1 : 0;
  const across = (index: number) => edge(index, figure.cellWidth, viewport.k, viewport.x, dpr);
  const down = (index: number) => edge(index, figure.cellHeight, viewport.k, viewport.y, dpr);
  const ring = (bin: Bin, pinned: boolean) => {
    const row = Math.floor(bin.queries.start / picture.queryBin / figure.fold);
    const column = Math.floor(bin.keys.start / picture.keyBin / figure.fold);
    const width = Math.max(6, across(column + 1) - across(column) - gap);
    const height = Math.max(6, down(row + 1) - down(row) - gap);
    const x = across(column) + (across(column + 1) - across(column) - gap - width) / 2;
    const y = down(row) + (down(row + 1) - down(row) - gap - height) / 2;
    return (
      <i
        key={pinned ? "pin" : "hover"}
        class="aw-ring"
        data-pinned={pinned || undefined}
        style={{ width: px(width), height: px(height), transform: `translate(${x}px, ${y}px)` }}
      />
    );
  };
  const row = query === null ? null : Math.floor(query / picture.queryBin / figure.fold);
  const column = key === null ? null : Math.floor(key / picture.keyBin / figure.fold);
  const pinnedBin = query === null || key === null ? null : binAt(picture, query, key);
  const overPin =
    pinnedBin !== null &&
    at !== null &&
    "bin" in at &&
    at.bin.queries.start === pinnedBin.queries.start &&
    at.bin.keys.start === pinnedBin.keys.start;
  return (
    <>
      {row !== null &&
        [row, row + 1].map((r, i) => (
          <i key={`r${i}`} class="aw-rule" style={{ left: 0, right: 0, height: "1px", top: px(down(r) - gap) }} />
        ))}
      {column !== null &&
        [column, column + 1].map((c, i) => (
          <i key={`c${i}`} class="aw-rule" style={{ top: 0, bottom: 0, width: "1px", left: px(across(c) - gap) }} />
        ))}
      {at !== null && "bin" in at && !overPin && ring(at.bin, false)}
      {pinnedBin !== null && ring(pinnedBin, true)}
    </>
  );
}

interface FloatingProps {
  readonly ui: Ui;
  readonly figure: Figure | null;
  readonly viewport: Viewport;
  readonly numbers: boolean;
  readonly hint: boolean;
}

/** A readout beside the pointer where cells carry no numbers, and the hint about zooming. */
function Floating({ ui, figure, viewport, numbers, hint }: FloatingProps) {
  const picture = ui.store.picture.value;
  if (figure === null || picture === null) return null;
  if (hint) {
    const key = /Mac|iPhone|iPad/.test(navigator.platform) ? "⌘" : "Ctrl";
    return (
      <div
        class="aw-hint"
        style={{ left: px(figure.left + figure.width / 2), top: px(figure.top + figure.height / 2) }}
      >
        {key} + scroll to zoom
      </div>
    );
  }
  const at = ui.hover.value;
  if (numbers || at === null || !("bin" in at)) return null;
  const reading = ui.hovered.value;
  const { bin } = at;
  const { store } = ui;
  const one = bin.queries.stop - bin.queries.start === 1 && bin.keys.stop - bin.keys.start === 1;
  const row = Math.floor(bin.queries.start / picture.queryBin / figure.fold);
  const column = Math.floor(bin.keys.start / picture.keyBin / figure.fold);
  const x = figure.left + (column + 1) * figure.cellWidth * viewport.k + viewport.x + 14;
  const y = figure.top + (row + 1) * figure.cellHeight * viewport.k + viewport.y + 14;
  const flip = x > figure.left + figure.width * 0.62;
  const up = y > figure.top + figure.height - 60;
  const known =
    reading !== null && reading.bin.queries.start === bin.queries.start && reading.bin.keys.start === bin.keys.start;
  const place = {
    ...(flip
      ? { right: px(-(x - 28 - figure.cellWidth * viewport.k) + (figure.left + figure.width + figure.overhang)) }
      : { left: px(x) }),
    top: px(up ? y - 28 - figure.cellHeight * viewport.k : y),
    transform: up ? "translateY(-100%)" : "none",
  };
  return (
    <div class="aw-readout" style={place}>
      <b>
        {known ? (reading.kind === BLOCKED ? "masked" : numberOf(reading.value, reading.kind, picture.of.stage)) : "…"}
      </b>{" "}
      {one ? (
        <>
          <Token labels={store.queryLabels.value} index={bin.queries.start} subscript /> →{" "}
          <Token labels={store.keyLabels.value} index={bin.keys.start} subscript />
        </>
      ) : (
        <>
          maximum
          <br />
          queries {range(bin.queries)}, keys {range(bin.keys)}
        </>
      )}
    </div>
  );
}

export function range({ start, stop }: Span): string {
  return stop - start === 1 ? count(start) : `${count(start)}–${count(stop - 1)}`;
}

export function numberOf(value: number, kind: number, stage: string): string {
  if (kind === NAN) return "NaN";
  if (kind === PLUS_INF) return "+∞";
  if (kind === MINUS_INF) return "−∞";
  return listNumber(value, stage as never);
}
