/** The graph: queries on the left, keys on the right, and bands between them whose width is the number. */

import { effect } from "@preact/signals-core";
import { mount, part, px, type View } from "../../components/dom";
import { headLines, pinLines, watchKeys } from "../../components/keyboard";
import { drawnWords } from "../../components/phrases";
import { wordsOf } from "../../contract/stages";
import type { Side } from "../../contract/values";
import { isDark } from "../../draw/color";
import type { KeyLine, Ui } from "../../state/ui";
import { count } from "../../text/format";
import { type Band, bandUnder, outline, type Stem, sizeOf } from "./geometry";
import { Columns, HEADER, HeadLegend } from "./lanes";
import { type Frame, type GraphModel, graphModel, STEM } from "./model";

/** Return the graph: two columns of tokens, and bands between them as wide as the weights. */
export function graph(ui: Ui): View {
  const { store } = ui;
  const model = graphModel(ui);
  const node = part("aw-graph");
  const figure = part("aw-graph-figure");
  const canvas = document.createElement("canvas");
  canvas.dataset.aw = "picture";
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-roledescription", "graph");
  const columns = part("aw-graph-columns");
  const pointed = part("aw-graph-pointed");
  figure.append(canvas, pointed, columns);
  const legend = mount(part("aw-graph-legend", "legend"), () => <HeadLegend ui={ui} model={model} />);
  const views = [
    legend,
    mount(columns, () => <Columns ui={ui} model={model} />),
    mount(pointed, () => <Pointed ui={ui} model={model} />),
  ];
  node.append(figure, legend.node);

  const picture = perFrame();
  const ends = [
    picture.cancel,
    effect(() => {
      const frame = model.frame.value;
      if (frame === null) return;
      const height = Math.max(model.lanes.value.queries.height, model.lanes.value.keys.height);
      const top = HEADER * ui.unit.value;
      Object.assign(figure.style, { width: px(frame.width), height: px(top + height + 8) });
      Object.assign(canvas.style, {
        left: px(frame.x0),
        top: px(top),
        width: px(frame.x1 - frame.x0),
        height: px(height),
      });
      legend.node.style.maxWidth = px(frame.meanRight);
      ui.extent.value = ui.mode.value === "narrow" ? null : frame.meanRight;
      Object.assign(pointed.style, { left: px(frame.x0), top: px(top) });
      const scene = sceneOf(ui, model, frame, height);
      picture.next(() => draw(canvas, scene));
    }),
    effect(() => {
      const { heads, queries, keys } = store.facts.value;
      const chosen = heads > 1 ? `${drawnWords(store.drawnHeads.value, store.facts.value)}, ` : "";
      const stage = store.linkedStage.value;
      const what = stage === "weights" ? "Attention graph" : `Graph of ${wordsOf(stage)}`;
      canvas.setAttribute("aria-label", `${what}, ${chosen}${count(queries)} queries to ${count(keys)} keys`);
    }),
  ];
  listen(ui, model, canvas);

  return {
    node,
    dispose() {
      for (const end of ends) end();
      for (const view of views) view.dispose();
    },
  };
}

/** Run only the newest callback, at the next frame: a pointer moving over labels asks for many pictures. */
function perFrame() {
  let due = 0;
  const cancel = () => cancelAnimationFrame(due);
  const next = (run: () => void) => {
    cancel();
    due = requestAnimationFrame(run);
  };
  return { next, cancel };
}

/** Everything that the picture shows, read at once. */
interface Scene {
  readonly width: number;
  readonly height: number;
  readonly dpr: number;
  readonly unit: number;
  readonly dark: boolean;
  readonly ink: string;
  colorOf(band: Band): string;
  readonly colors: readonly string[];
  readonly curves: readonly Band[];
  readonly bands: readonly Band[];
  readonly stems: readonly Stem[];
  /** The place of the token in focus; null if there is none. */
  readonly side: Side | null;
  /** The pinned token's row: a short line leads from its pill to the bars. */
  readonly tick: number | null;
}

function sceneOf(ui: Ui, model: GraphModel, frame: Frame, height: number): Scene {
  const focus = model.focus.value;
  const own = focus === null ? null : model.lanes.value[focus.side === "query" ? "queries" : "keys"];
  return {
    width: frame.x1 - frame.x0,
    height,
    dpr: ui.dpr.value,
    unit: ui.unit.value,
    dark: isDark(ui.theme.value),
    ink: ui.paints.value?.sequential.ink ?? "",
    colors: model.colors.value,
    colorOf: colorsOf(model),
    curves: model.curves.value,
    ...model.bands.value,
    side: focus?.side ?? null,
    tick: focus === null ? null : (own?.y(focus.index) ?? null),
  };
}

/**
 * The color of a band: by sign if signed, else by head; in a folded graph of one head, by the key's
 * segment.
 */
function colorsOf(model: GraphModel): (band: Band) => string {
  const [ofKey, ofHead, signs] = [model.bundleColor.value, model.colors.value, model.signColors.value];
  if (signs !== null) return ({ weight }) => (weight < 0 ? signs.minus : signs.plus);
  return ({ head, key }) => (ofKey === null ? (ofHead[head] ?? "") : ofKey(key));
}

function draw(canvas: HTMLCanvasElement, scene: Scene): void {
  const { width, height, dpr } = scene;
  canvas.width = Math.round(width * dpr);
  canvas.height = Math.round(height * dpr);
  const context = canvas.getContext("2d");
  if (!context || scene.ink === "") return;
  context.setTransform(dpr, 0, 0, dpr, 0, 0);
  drawCurves(context, scene);
  if (scene.side !== null) drawFocus(context, scene);
}

/** The links of all tokens: in the heads' colors, or in a faint ink behind those of the token in focus. */
function drawCurves(
  context: CanvasRenderingContext2D,
  { curves, colorOf, ink, dark, side, width, height }: Scene,
): void {
  // Curves that would cover the whole height more than once are paler, so that density shows.
  const covered = curves.reduce((sum, curve) => sum + curve.width0, 0) / height;
  const alpha = side === null ? 0.35 / Math.max(1, Math.sqrt(covered)) : dark ? 0.05 : 0.045;
  context.globalAlpha = alpha;
  for (const curve of curves) {
    context.fillStyle = side === null ? colorOf(curve) || ink : ink;
    fillBand(context, curve, 0, width); // filled separately, so that overlaps add up
  }
}

/** The bands of the token in focus, and a bar for each head where they begin. */
function drawFocus(context: CanvasRenderingContext2D, scene: Scene): void {
  const { bands, stems, colors, colorOf, ink, side, width, unit } = scene;
  const stem = 3 * unit;
  const inset = STEM * unit;
  const [from, to] = side === "query" ? [inset + stem, width] : [0, width - inset - stem];
  for (const band of [...bands].sort((a, b) => sizeOf(a) - sizeOf(b))) {
    context.fillStyle = colorOf(band) || ink;
    context.globalAlpha = band.opacity;
    fillBand(context, band, from, to);
  }
  context.globalAlpha = 1;
  for (const { head, from: top, to: bottom } of stems) {
    context.fillStyle = colors[head] ?? ink;
    context.fillRect(side === "query" ? inset : to, top, stem, bottom - top);
  }
  if (scene.tick === null || stems.length === 0) return;
  context.fillStyle = ink;
  const length = 7 * unit;
  context.fillRect(side === "query" ? 0 : width - length, scene.tick - 0.75 * unit, length, 1.5 * unit);
}

function fillBand(context: CanvasRenderingContext2D, band: Band, from: number, to: number): void {
  context.beginPath();
  outline(context, band, from, to);
  context.fill();
}

/** The band under the pointer, drawn again and stronger. */
function Pointed({ ui, model }: { ui: Ui; model: GraphModel }) {
  const at = ui.hover.value;
  const frame = model.frame.value;
  if (frame === null || at === null || !("bin" in at) || !at.link) return null;
  const { head } = at.link;
  const same = (band: Band) =>
    band.query === at.bin.queries.start &&
    band.key === at.bin.keys.start &&
    ui.store.drawnHeads.value[band.head] === head;
  const ofFocus = model.bands.value.bands.find(same);
  const band = ofFocus ?? model.curves.value.find(same);
  if (band === undefined) return null;
  const width = frame.x1 - frame.x0;
  const inset = ofFocus ? (STEM + 3) * ui.unit.value : 0;
  const side = model.focus.value?.side;
  const path = svgOutline(band, side === "query" ? inset : 0, side === "key" ? width - inset : width);
  return (
    <svg aria-hidden="true">
      <path d={path} fill={colorsOf(model)(band)} />
    </svg>
  );
}

/** A band's outline as an SVG path. */
function svgOutline(band: Band, from: number, to: number): string {
  const steps: string[] = [];
  outline(
    {
      moveTo: (...at) => steps.push(`M${at}`),
      lineTo: (...at) => steps.push(`L${at}`),
      bezierCurveTo: (...at) => steps.push(`C${at}`),
      closePath: () => steps.push("Z"),
    },
    band,
    from,
    to,
  );
  return steps.join("");
}

/** Pointing at a band shows its number; a click pins the pair. */
function listen(ui: Ui, model: GraphModel, canvas: HTMLCanvasElement): void {
  const { store, stop } = ui;
  const under = (event: MouseEvent): Band | null => {
    const box = canvas.getBoundingClientRect();
    const share = (event.clientX - box.left) / box.width;
    const y = event.clientY - box.top;
    const slack = 2 * ui.unit.value;
    // The bands of the token in focus begin at its bar, not at the picture's edge.
    const inset = ((STEM + 3) * ui.unit.value) / box.width;
    const along = model.focus.value?.side === "query" ? (share - inset) / (1 - inset) : share / (1 - inset);
    const within = along >= 0 && along <= 1 ? bandUnder(model.bands.value.bands, along, y, slack) : null;
    return within ?? bandUnder(model.curves.value, share, y, slack);
  };
  const options = { signal: stop };
  canvas.addEventListener(
    "pointermove",
    (event) => {
      if (event.pointerType === "touch") return;
      const band = under(event);
      canvas.style.cursor = band === null ? "default" : "pointer";
      const span = (index: number) => ({ start: index, stop: index + 1 });
      ui.hover.value =
        band === null
          ? null
          : {
              bin: { queries: span(band.query), keys: span(band.key) },
              link: { head: store.drawnHeads.value[band.head] ?? 0, weight: band.weight },
            };
    },
    options,
  );
  canvas.addEventListener(
    "pointerleave",
    () => {
      ui.hover.value = null;
    },
    options,
  );
  canvas.addEventListener(
    "click",
    (event) => {
      const band = under(event);
      if (band === null) return;
      const { query } = band;
      const key = band.key < store.facts.value.keys ? band.key : null; // the learned sink cannot be pinned
      const drawn = store.drawnHeads.value[band.head];
      const head = typeof drawn === "number" ? drawn : store.head.value;
      if (event.shiftKey) store.addPin(query, key);
      else if (store.query.value === query && store.key.value === key) store.select({ query: null, key: null });
      else store.select({ query, key, head });
    },
    options,
  );
  watchKeys(ui, canvas, (step) => graphKeys(ui, step));
}

/** Return the keys of the graph: arrows walk the tokens of the column in focus. */
function graphKeys(ui: Ui, step: number): KeyLine[] {
  const { store } = ui;
  const { queries, keys } = store.facts.value;
  const side = ui.target.value?.side ?? store.direction.value;
  const total = side === "query" ? queries : keys;
  const at = (side === "query" ? store.query : store.key).value;
  const go = (index: number) => {
    const to = Math.max(0, Math.min(total - 1, index));
    store.select(side === "query" ? { query: to, key: null } : { query: null, key: to });
  };
  return [
    {
      shown: "↑ ↓",
      does: "pin another token (Shift: 10 at a time)",
      keys: { ArrowUp: () => go(at === null ? 0 : at - step), ArrowDown: () => go(at === null ? 0 : at + step) },
    },
    {
      shown: "← →",
      does: "pin a query, a key",
      keys: {
        ArrowLeft: () => store.select({ query: Math.min(at ?? 0, queries - 1), key: null }),
        ArrowRight: () => store.select({ query: null, key: Math.min(at ?? 0, keys - 1) }),
      },
    },
    { shown: "Home End", does: "first, last token", keys: { Home: () => go(0), End: () => go(total - 1) } },
    ...pinLines(ui),
    ...headLines(ui),
  ];
}
