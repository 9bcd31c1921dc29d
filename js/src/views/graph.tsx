/** Queries on the left, keys on the right, attention between them: a band's width is the number. */

import { effect } from "@preact/signals-core";
import { isDark } from "../color";
import { count } from "../format";
import { type Band, bandUnder, outline } from "../graph";
import { type Frame, type GraphModel, graphModel } from "../graph-model";
import type { Side } from "../model";
import type { Ui } from "../ui";
import { mount, part, px, type View } from "./dom";
import { stepHead, stepLayer } from "./keyboard";
import { Columns, HEADER, HeadLegend } from "./lanes";

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
  figure.append(canvas, columns);
  const views = [
    mount(columns, () => <Columns ui={ui} model={model} />),
    mount(part("aw-graph-legend", "legend"), () => <HeadLegend ui={ui} model={model} />),
  ];
  node.append(figure, (views[1] as View).node);

  const ends = [
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
      draw(ui, model, canvas, frame, height);
    }),
    effect(() => {
      const { heads, queries, keys } = store.facts.value;
      const chosen = heads > 1 ? `heads ${store.shownHeads.value.join(", ")}, ` : "";
      canvas.setAttribute("aria-label", `Attention graph, ${chosen}${count(queries)} queries to ${count(keys)} keys`);
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

function draw(ui: Ui, model: GraphModel, canvas: HTMLCanvasElement, frame: Frame, height: number): void {
  const dpr = ui.dpr.value;
  const both = ui.paints.value;
  const width = frame.x1 - frame.x0;
  canvas.width = Math.round(width * dpr);
  canvas.height = Math.round(height * dpr);
  const context = canvas.getContext("2d");
  if (!context || both === null) return;
  context.setTransform(dpr, 0, 0, dpr, 0, 0);
  const dark = isDark(ui.theme.value);
  const colors = model.colors.value;
  const hasFocus = model.focus.value !== null;
  const fill = (list: readonly Band[], from: number, to: number) => {
    const path = new Path2D();
    for (const band of list) outline(path, band, from, to);
    context.fill(path);
  };
  if (hasFocus) {
    context.fillStyle = both.sequential.ink;
    // Every curve on its own, so that where many meet they add up.
    context.globalAlpha = dark ? 0.09 : 0.06;
    for (const band of model.curves.value) fill([band], 0, width);
  } else {
    for (const band of model.curves.value) {
      context.fillStyle = colors[band.head] ?? both.sequential.ink;
      context.globalAlpha = 0.35;
      fill([band], 0, width);
    }
  }
  const { bands, stems } = model.bands.value;
  const side = model.focus.value?.side ?? "query";
  const stem = 3 * ui.unit.value;
  for (const band of [...bands].sort((a, b) => a.weight - b.weight)) {
    context.fillStyle = colors[band.head] ?? both.sequential.ink;
    context.globalAlpha = band.opacity;
    fill([band], side === "query" ? stem : 0, side === "query" ? width : width - stem);
  }
  context.globalAlpha = 1;
  for (const { head, from, to } of stems) {
    context.fillStyle = colors[head] ?? both.sequential.ink;
    context.fillRect(side === "query" ? 0 : width - stem, from, stem, to - from);
  }
}

/** Pointing at a band says its number; clicking it pins the pair. */
function listen(ui: Ui, model: GraphModel, canvas: HTMLCanvasElement): void {
  const { store, stop } = ui;
  const under = (event: MouseEvent): Band | null => {
    const box = canvas.getBoundingClientRect();
    const share = (event.clientX - box.left) / box.width;
    const y = event.clientY - box.top;
    const slack = 2 * ui.unit.value;
    return bandUnder(model.bands.value.bands, share, y, slack) ?? bandUnder(model.curves.value, share, y, slack);
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
              link: { head: store.shownHeads.value[band.head] ?? 0, weight: band.weight },
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
      const { query, key } = band;
      const head = store.shownHeads.value[band.head] ?? store.head.value;
      if (event.shiftKey) store.addPin(query, key);
      else if (store.query.value === query && store.key.value === key) store.select({ query: null, key: null });
      else store.select({ query, key, head });
    },
    options,
  );
  canvas.addEventListener(
    "keydown",
    (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !press(ui, event)) return;
      event.preventDefault();
      event.stopPropagation();
    },
    options,
  );
}

/** Arrows walk the tokens of the column in focus; Esc frees; brackets change head and layer. */
function press(ui: Ui, { key, shiftKey }: KeyboardEvent): boolean {
  const { store } = ui;
  const { queries, keys } = store.facts.value;
  const step = shiftKey ? 10 : 1;
  const side: Side = store.query.value === null && store.key.value !== null ? "key" : "query";
  const total = side === "query" ? queries : keys;
  const at = (side === "query" ? store.query : store.key).value;
  const go = (index: number) => {
    const to = Math.max(0, Math.min(total - 1, index));
    store.select(side === "query" ? { query: to, key: null } : { query: null, key: to });
  };
  const actions: Record<string, () => void> = {
    ArrowUp: () => go(at === null ? 0 : at - step),
    ArrowDown: () => go(at === null ? 0 : at + step),
    ArrowLeft: () => store.select({ query: at ?? 0, key: null }),
    ArrowRight: () => store.select({ query: null, key: at ?? 0 }),
    Home: () => go(0),
    End: () => go(total - 1),
    "[": () => stepHead(ui, -1),
    "]": () => stepHead(ui, 1),
    "{": () => stepLayer(ui, -1),
    "}": () => stepLayer(ui, 1),
  };
  if (store.query.value !== null || store.key.value !== null) {
    actions.Escape = () => store.select({ query: null, key: null });
  }
  const action = actions[key];
  action?.();
  return action !== undefined;
}
