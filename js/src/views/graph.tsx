/** Queries on the left, keys on the right, attention between them: a band's width is the number. */

import { computed, effect, type ReadonlySignal } from "@preact/signals-core";
import { HEAD_COLORS, isDark } from "../color";
import { count, listNumber } from "../format";
import {
  type Band,
  bandsOf,
  bandUnder,
  curvesOf,
  keepLinks,
  type Lane,
  type Link,
  lane,
  outline,
  type Stem,
} from "../graph";
import { labelFont } from "../layout";
import type { Side } from "../model";
import { textMeasure } from "../plot";
import { type HeadTarget, type Line, linesSource, type Target } from "../source";
import { type Labels, shorten } from "../tokens";
import type { Ui } from "../ui";
import { BLOCKED } from "../wire";
import { mount, part, px, type View } from "./dom";
import { stepHead, stepLayer } from "./keyboard";
import { pinLine } from "./labels";
import { isNamed } from "./words";

const HEADER = 34;
const LABEL_MOST = 160;
const LABEL_LEAST = 82;
const BESIDE = 22; // from a query's label to where its bands begin
const ACROSS = 372;
const BARS_FROM = 0.01;
const OVERVIEW = 3; // links of each token, where nothing is pinned

interface Frame {
  readonly queryRight: number;
  readonly x0: number;
  readonly x1: number;
  readonly keyLeft: number;
  readonly barLeft: number;
  readonly barWidth: number;
  readonly meanRight: number;
  readonly width: number;
}

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

interface GraphModel {
  readonly frame: ReadonlySignal<Frame | null>;
  readonly lanes: ReadonlySignal<{ queries: Lane; keys: Lane }>;
  /** The token whose links stand out: pinned, else pointed at. */
  readonly focus: ReadonlySignal<Target | null>;
  readonly lines: ReadonlySignal<readonly (Line | null)[]>;
  readonly bands: ReadonlySignal<{ bands: readonly Band[]; stems: readonly Stem[] }>;
  readonly curves: ReadonlySignal<readonly Band[]>;
  readonly colors: ReadonlySignal<readonly string[]>;
  readonly measure: ReturnType<typeof textMeasure>;
}

function graphModel(ui: Ui): GraphModel {
  const { store, kernel, stop } = ui;
  const measure = textMeasure(ui);
  const focus = computed<Target | null>(() => {
    const at = ui.target.value;
    return at === null ? null : { side: at.side, index: at.index };
  });
  const wanted = computed<readonly HeadTarget[]>(() => {
    const at = focus.value;
    return at === null ? [] : store.shownHeads.value.map((head) => ({ ...at, head }));
  });
  const weights = computed(() => "weights" as const);
  const lines = linesSource(store, kernel, wanted, weights, stop);

  /** Links of the token in focus: whole rows where the kernel has sent them, else the strongest that are known. */
  const focused = computed<readonly Link[]>(() => {
    const at = focus.value;
    if (at === null) return [];
    const links: Link[] = [];
    lines.value.forEach((line, head) => {
      if (line !== null) links.push(...linksOf(line, head));
      else links.push(...overview(ui, at.side, head).filter((link) => link[at.side] === at.index));
    });
    return keepLinks(links, store.top_k.value, store.threshold.value);
  });
  const lanes = computed(() => {
    const { queries, keys } = store.facts.value;
    const unit = ui.unit.value;
    const pinned = store.query.value !== null || store.key.value !== null;
    const keep = (side: Side) => {
      if (!pinned || focus.value === null) return null;
      const strong = [...focused.value].sort((a, b) => b.weight - a.weight);
      const own = focus.value.side === side ? [focus.value.index] : strong.map((link) => link[side]);
      return [...new Set([...own, ...store.shownPins.value.map((pin) => pin[side === "query" ? 0 : 1] ?? -1)])];
    };
    return { queries: lane(queries, keep("query"), unit), keys: lane(keys, keep("key"), unit) };
  });
  const frame = computed<Frame | null>(() => {
    if (ui.width.value === 0 || store.picture.value === null) return null;
    return frameOf(ui, measure.value);
  });
  const bands = computed(() => {
    const at = focus.value;
    const { queries, keys } = lanes.value;
    if (at === null) return { bands: [], stems: [] };
    return bandsOf(focused.value, at.side, queries, keys, ui.unit.value);
  });
  const curves = computed(() => {
    const { queries, keys } = lanes.value;
    const side = store.direction.value;
    const at = focus.value;
    const perToken = at === null ? Math.min(store.top_k.value ?? OVERVIEW, OVERVIEW) : 1;
    const threshold = at === null ? store.threshold.value : 0;
    const links = store.shownHeads.value.flatMap((_, head) => overview(ui, side, head, perToken));
    const others = at === null ? links : links.filter((link) => link[at.side] !== at.index);
    return curvesOf(
      others.filter((link) => link.weight > 0 && link.weight >= threshold),
      queries,
      keys,
      ui.unit.value,
    );
  });
  const colors = computed(() => {
    const dark = isDark(ui.theme.value);
    const palette = HEAD_COLORS[dark ? "dark" : "light"];
    const heads = store.shownHeads.value;
    if (heads.length === 1) return [dark ? "#2fb5ab" : "#177f93"];
    return heads.map((_, place) => palette[place % palette.length] as string);
  });
  return { frame, lanes, focus, lines, bands, curves, colors, measure };
}

/** The strongest links of every token for one of the shown heads, as Python sent them. */
function overview({ store }: Ui, side: Side, place: number, most = Number.POSITIVE_INFINITY): Link[] {
  const known = store.links.value;
  const head = store.shownHeads.value[place];
  if (known === null || head === undefined || known.side !== side) return [];
  if (known.layer !== store.layer.value || known.batch !== store.batch.value) return [];
  const at = known.heads.indexOf(head);
  if (at < 0) return [];
  const links: Link[] = [];
  for (let position = 0; position < known.positions; position++) {
    for (let rank = 0; rank < Math.min(known.count, most); rank++) {
      const from = (at * known.positions + position) * known.count + rank;
      const weight = known.weights[from] as number;
      const partner = known.partners[from] as number;
      if (!(weight > 0)) break;
      links.push(
        side === "query"
          ? { query: position, key: partner, head: place, weight }
          : { query: partner, key: position, head: place, weight },
      );
    }
  }
  return links;
}

function linksOf(line: Line, head: number): Link[] {
  const links: Link[] = [];
  line.values.forEach((weight, other) => {
    if (!(weight > 0) || line.kinds[other] === BLOCKED) return;
    const { side, index } = line.of;
    links.push(
      side === "query" ? { query: index, key: other, head, weight } : { query: other, key: index, head, weight },
    );
  });
  return links;
}

function frameOf(ui: Ui, measure: (text: string, size: number, weight?: number) => number): Frame {
  const { store } = ui;
  const unit = ui.unit.value;
  const width = Math.min(ui.width.value, 1280 * unit);
  const longest = (labels: Labels) => {
    let most = LABEL_LEAST * unit;
    for (let i = 0; i < Math.min(labels.length, 2048); i++) {
      const label = labels.at(i);
      most = Math.max(most, measure(label.text, 12, 600) + (label.subscript ? measure(label.subscript, 9) + 2 : 0));
    }
    return Math.min(LABEL_MOST * unit, most + 6 * unit);
  };
  const narrow = ui.mode.value === "narrow";
  const queryRight = narrow ? Math.min(longest(store.queryLabels.value), 80 * unit) : longest(store.queryLabels.value);
  const keyRoom = narrow ? Math.min(longest(store.keyLabels.value), 80 * unit) : longest(store.keyLabels.value);
  const meanRoom = 52 * unit;
  const x0 = queryRight + BESIDE * unit;
  const left = width - x0 - 10 * unit - keyRoom - meanRoom;
  const across = narrow ? left : Math.min(ACROSS * unit, Math.max(160 * unit, left * 0.62));
  const x1 = x0 + across;
  const keyLeft = x1 + 10 * unit;
  const barLeft = keyLeft + keyRoom + 10 * unit;
  const meanRight = Math.min(width, narrow ? width : barLeft + 340 * unit + meanRoom);
  return {
    queryRight,
    x0,
    x1,
    keyLeft,
    barLeft,
    barWidth: narrow ? 0 : Math.max(0, meanRight - meanRoom - barLeft),
    meanRight,
    width,
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

/** Both columns of tokens, the bars by head and their mean. */
function Columns({ ui, model }: { ui: Ui; model: GraphModel }) {
  const { store } = ui;
  const frame = model.frame.value;
  if (frame === null) return null;
  const unit = ui.unit.value;
  const { queries, keys } = model.lanes.value;
  const top = HEADER * unit;
  const focus = model.focus.value;
  const partners = new Set(model.bands.value.bands.map((band) => (focus?.side === "query" ? band.key : band.query)));
  const heads = store.shownHeads.value;
  const byHead = heads.length > 1;
  const valueSide = focus?.side === "key" ? "query" : "key";
  return (
    <>
      <span class="aw-graph-head" style={{ right: px(frame.width - frame.queryRight) }}>
        Query
      </span>
      <span class="aw-graph-head" style={{ left: px(frame.keyLeft) }}>
        Key
      </span>
      {focus !== null && frame.barWidth > 0 && (
        <span class="aw-graph-head" style={{ left: px(frame.barLeft) }}>
          {byHead ? "Weight by head" : "Weight"}
          {valueSide === "query" ? ", of each query" : ""}
        </span>
      )}
      {focus !== null && byHead && (
        <span class="aw-graph-head" style={{ right: px(frame.width - frame.meanRight) }}>
          Mean
        </span>
      )}
      <Lane side="query" lane={queries} labels={store.queryLabels.value} {...{ ui, model, frame, top, partners }} />
      <Lane side="key" lane={keys} labels={store.keyLabels.value} {...{ ui, model, frame, top, partners }} />
      {focus !== null && <Bars {...{ ui, model, frame, top }} />}
      {focus === null && frame.barWidth > 0 && (
        <p
          class="aw-prompt"
          style={{ position: "absolute", left: px(frame.barLeft), top: px(top), width: px(frame.barWidth) }}
        >
          {store.links.value === null
            ? "Too long to draw every token's links. Pin a token to see its own."
            : `The ${OVERVIEW} strongest ${store.direction.value === "query" ? "keys of each query" : "queries of each key"}. Point at a token to see its links. Click to keep it.`}
        </p>
      )}
    </>
  );
}

interface LaneProps {
  readonly side: Side;
  readonly lane: Lane;
  readonly labels: Labels;
  readonly ui: Ui;
  readonly model: GraphModel;
  readonly frame: Frame;
  readonly top: number;
  readonly partners: ReadonlySet<number>;
}

function Lane({ side, lane, labels, ui, model, frame, top, partners }: LaneProps) {
  const unit = ui.unit.value;
  const focus = model.focus.value;
  const isOwn = (index: number) => focus?.side === side && focus.index === index;
  const isPartner = (index: number) => focus !== null && focus.side !== side && partners.has(index);
  const rows =
    lane.rows.length > 0 ? lane.rows : plainRows(lane, labels.length, (i) => isOwn(i) || isPinned(ui, side, i));
  const x = side === "query" ? { right: px(frame.width - frame.queryRight) } : { left: px(frame.keyLeft) };
  return (
    <>
      {rows.map((row, at) => {
        const y = row.kind === "token" ? (lane.y(row.index) as number) : (at + 0.5) * lane.pitch;
        const place = { ...x, top: px(top + y), transform: "translateY(-50%)" };
        if (row.kind === "gap") {
          return (
            <span class="aw-label aw-graph-gap" key={`gap${at}`} style={place}>
              ⋯ {count(row.count)} {row.count === 1 ? "token" : "tokens"}
            </span>
          );
        }
        return (
          <GraphLabel
            key={row.index}
            index={row.index}
            pitch={lane.pitch * lane.step}
            own={isOwn(row.index)}
            partner={isPartner(row.index)}
            {...{ side, labels, ui, model, place, unit }}
          />
        );
      })}
    </>
  );
}

/** All tokens, or every k-th where they crowd, beside those that must be named. */
function plainRows(lane: Lane, total: number, must: (index: number) => boolean) {
  const rows: { kind: "token"; index: number }[] = [];
  const named: number[] = [];
  for (let i = 0; i < total; i++) if (must(i)) named.push(i);
  const near = lane.step > 1 ? 14 / lane.pitch : 0;
  for (let i = 0; i < total; i++) {
    if (named.includes(i) || (i % lane.step === 0 && named.every((n) => Math.abs(n - i) >= near))) {
      rows.push({ kind: "token", index: i });
    }
  }
  return rows;
}

function isPinned({ store }: Ui, side: Side, index: number): boolean {
  return store.shownPins.value.some((pin) => pin[side === "query" ? 0 : 1] === index);
}

interface GraphLabelProps {
  readonly index: number;
  readonly side: Side;
  readonly labels: Labels;
  readonly ui: Ui;
  readonly model: GraphModel;
  readonly place: Record<string, string>;
  readonly unit: number;
  readonly pitch: number;
  readonly own: boolean;
  readonly partner: boolean;
}

function GraphLabel(props: GraphLabelProps) {
  const { index, side, labels, ui, model, place, unit, pitch, own, partner } = props;
  const { store } = ui;
  const label = labels.at(index);
  const active = (side === "query" ? store.query : store.key).value === index;
  const pinned = isPinned(ui, side, index);
  const font = labelFont(pitch, unit);
  const weight = pinned || own || partner ? 600 : 400;
  const text = shorten(label.text, (LABEL_MOST - 24) * unit, (piece) => model.measure.value(piece, font, weight));
  const pill = active ? "aw-label aw-pill" : pinned ? "aw-label aw-pill-outline" : "aw-label";
  const shift = pinned ? { margin: `0 ${-6 * unit}px` } : {};
  return (
    <button
      type="button"
      tabIndex={-1}
      class={pill}
      data-special={label.special || undefined}
      data-hovered={(!pinned && (own || partner)) || undefined}
      title={label.text}
      style={{ ...place, ...shift, fontSize: px(font * unit), lineHeight: px(Math.min(16, font + 4) * unit) }}
      onPointerEnter={(event: PointerEvent) => {
        if (event.pointerType !== "touch") ui.hover.value = { target: { side, index } };
      }}
      onPointerLeave={() => {
        ui.hover.value = null;
      }}
      onPointerDown={(event: PointerEvent) => event.preventDefault()}
      onClick={(event: MouseEvent) => pinLine(ui, side, index, event.shiftKey)}
    >
      <bdi>{text}</bdi>
      {label.subscript !== "" && <sub>{label.subscript}</sub>}
    </button>
  );
}

/** For the token in focus: each partner's weight by head as bars, and their mean as a number. */
function Bars({ ui, model, frame, top }: { ui: Ui; model: GraphModel; frame: Frame; top: number }) {
  const { store } = ui;
  const unit = ui.unit.value;
  const focus = model.focus.value;
  const lines = model.lines.value;
  if (focus === null || lines.length === 0 || lines.every((line) => line === null)) return null;
  const side = focus.side === "query" ? "key" : "query";
  const other = model.lanes.value[side === "key" ? "keys" : "queries"];
  const total = lines.find((line) => line !== null)?.values.length ?? 0;
  // Bars stand beside the keys; for a key's queries, on the rows of the queries.
  const colors = model.colors.value;
  const tall = (lines.length > 1 ? Math.min(3, (other.pitch * other.step - 4) / lines.length) : 8) * unit;
  const apart = lines.length > 1 ? Math.min(5, other.pitch / lines.length) * unit : 0;
  const rows = [];
  let last = Number.NEGATIVE_INFINITY;
  for (let index = 0; index < total; index++) {
    const y = other.y(index);
    if (y === null || y - last < 11 * unit) continue;
    const weights = lines.map((line) => (line === null ? 0 : (line.values[index] as number) || 0));
    const blocked = lines.every((line) => line?.kinds[index] === BLOCKED);
    const mean = weights.reduce((sum, weight) => sum + weight, 0) / weights.length;
    last = y;
    rows.push({ index, y, weights, mean, blocked });
  }
  return (
    <>
      {rows.map(({ index, y, weights, mean, blocked }) => (
        <span key={index} class="aw-graph-row" data-faint={mean < store.threshold.value || undefined}>
          {frame.barWidth > 0 &&
            weights.map((weight, head) =>
              weight < BARS_FROM ? null : (
                <i
                  key={head}
                  style={{
                    left: px(frame.barLeft),
                    top: px(top + y + (head - (weights.length - 1) / 2) * apart - tall / 2),
                    width: px(Math.max(2, weight * frame.barWidth)),
                    height: px(tall),
                    background: colors[head],
                  }}
                />
              ),
            )}
          <span style={{ right: px(frame.width - frame.meanRight), top: px(top + y) }}>
            {blocked ? "masked" : weights.length > 1 ? short(mean, 3) : listNumber(mean, "weights")}
          </span>
        </span>
      ))}
    </>
  );
}

/** The colour of each head, and what it attends to most. */
function HeadLegend({ ui, model }: { ui: Ui; model: GraphModel }) {
  const { store } = ui;
  const heads = store.shownHeads.value;
  const focus = model.focus.value;
  const colors = model.colors.value;
  const others = (focus?.side === "key" ? store.queryLabels : store.keyLabels).value;
  if (heads.length === 1 && focus === null) return null;
  let aside = false;
  return (
    <>
      {heads.map((head, place) => {
        const line = model.lines.value[place];
        const { best, skipped } = line ? strongestOf(line, others) : { best: null, skipped: false };
        aside ||= skipped;
        return (
          <span class="aw-graph-key" key={head}>
            <i style={{ background: colors[place] }} />
            <b>head {head}</b>
            {best !== null && line && (
              <span>
                {focus?.side === "key" ? "most from " : "most to "}
                {isNamed(others, best) ? "" : focus?.side === "key" ? "query " : "key "}
                <bdi>{others.at(best).text}</bdi>
                {others.at(best).subscript && <sub>{others.at(best).subscript}</sub>}{" "}
                {short(line.values[best] as number, 2)}
              </span>
            )}
          </span>
        );
      })}
      {aside && <span class="aw-graph-aside">special tokens aside</span>}
    </>
  );
}

/** A weight to a few decimals, without its leading zero. */
function short(weight: number, decimals: number): string {
  return weight.toFixed(decimals).replace(/^0\./, ".");
}

/** The strongest partner that is not a special token, if there is one. */
function strongestOf(line: Line, labels: Labels): { best: number | null; skipped: boolean } {
  let best: number | null = null;
  let any: number | null = null;
  line.values.forEach((weight, index) => {
    if (!(weight > 0)) return;
    if (any === null || weight > (line.values[any] as number)) any = index;
    if (labels.at(index).special) return;
    if (best === null || weight > (line.values[best] as number)) best = index;
  });
  return best === null ? { best: any, skipped: false } : { best, skipped: best !== any };
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
