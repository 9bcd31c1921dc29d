/** The graph's state as signals: columns of tokens, the token in focus, its bands, all tokens' strongest links. */

import { computed, type ReadonlySignal } from "@preact/signals-core";
import { BLOCKED, type Links } from "../../contract/decode";
import { isSigned } from "../../contract/stages";
import type { Side } from "../../contract/values";
import type { Target } from "../../data/matrix";
import { HEAD_COLORS, isDark, LOOK } from "../../draw/color";
import type { Measure } from "../../draw/label-room";
import { segmentColor } from "../../draw/segment-colors";
import { textMeasure } from "../../state/plot";
import {
  type HeadTarget,
  type Known,
  linesSource,
  RANKS,
  type Strongest,
  stableComputed,
  strongestSource,
  type WeightedPair,
  WHOLE,
} from "../../state/queries";
import { axisSegments, segmentAt } from "../../state/segment-axes";
import type { Ui } from "../../state/ui";
import { type Labels, withNamed } from "../../text/labels";
import { SINK } from "../../text/words";
import {
  type Band,
  bandsOf,
  curvesOf,
  keepLinks,
  type Lane,
  type Link,
  lane,
  type Stem,
  sizeOf,
  strongestLast,
} from "./geometry";

/** Links per token without a pin. */
export const OVERVIEW = 3;
const LABEL_MOST = 160;
const LABEL_LEAST = 82;
const BESIDE = 10; // between a label and the curves
const ACROSS = 384; // of the curves, and more where the bars leave room
const ACROSS_WIDE = 560;
const BARS = 340;
const MOST_CURVES = 1500;
/** In a long head: how many other pins show their strongest links, and how many partners a token can request. */
const MOST_OTHERS = 8;
const MOST_PARTNERS = 64;
/** The start of the focused token's bands, from the curves' end: its bar is there. */
export const STEM = 11;

/** The places of the columns, from left to right. */
export interface Frame {
  readonly queryRight: number;
  /** For the text of a query, of a key. */
  readonly queryRoom: number;
  readonly keyRoom: number;
  readonly x0: number;
  readonly x1: number;
  readonly keyLeft: number;
  readonly barLeft: number;
  readonly barWidth: number;
  readonly meanRight: number;
  readonly width: number;
}

export interface GraphModel {
  readonly frame: ReadonlySignal<Frame | null>;
  readonly lanes: ReadonlySignal<{ queries: Lane; keys: Lane }>;
  /**
   * The token whose links stand out: pinned, else under the pointer by its label. Pointing at a band changes nothing.
   */
  readonly focus: ReadonlySignal<Target | null>;
  readonly lines: ReadonlySignal<readonly (Known | null)[]>;
  /** Whether the head is too long for all links: only pinned and focused tokens are drawn. */
  readonly isLong: ReadonlySignal<boolean>;
  /** What a long head shows without a pin. */
  readonly strongest: ReadonlySignal<Strongest>;
  readonly bands: ReadonlySignal<{ bands: readonly Band[]; stems: readonly Stem[] }>;
  readonly curves: ReadonlySignal<readonly Band[]>;
  /** The labels of the keys, followed by the learned sink if there is one. */
  readonly keyLabels: ReadonlySignal<Labels>;
  /** How many links would be drawn as curves. */
  readonly total: ReadonlySignal<number>;
  readonly colors: ReadonlySignal<readonly string[]>;
  /** The color of a key's segment, used for one head's bands if not all tokens are drawn. */
  readonly bundleColor: ReadonlySignal<((key: number) => string) | null>;
  /** The colors of links above and below zero; null without signs. */
  readonly signColors: ReadonlySignal<{ readonly plus: string; readonly minus: string } | null>;
  /** The number of the widest band: 1 for weights. */
  readonly unit: ReadonlySignal<number>;
  readonly measure: ReadonlySignal<Measure>;
}

/** Return the graph's state as signals: columns, links, bands. */
export function graphModel(ui: Ui): GraphModel {
  const { store, kernel, stop } = ui;
  const measure = textMeasure(ui);
  const focus = stableComputed<Target>(() => {
    const at = ui.target.value;
    const pinned = store.query.value !== null || store.key.value !== null;
    const labeled = pinned || (ui.hover.value !== null && "target" in ui.hover.value);
    return at === null || !labeled ? null : { side: at.side, index: at.index };
  });
  const isLong = computed(() => Math.max(store.facts.value.queries, store.facts.value.keys) > WHOLE);
  const isPinned = computed(() => store.query.value !== null || store.key.value !== null);
  const heads = computed(() => store.drawnHeads.value.length);
  const wanted = computed<readonly HeadTarget[]>(() => {
    const at = focus.value;
    if (at === null) return [];
    const { side } = at;
    const pins = isLong.value ? store.shownPins.value.map((pin) => pin[side === "query" ? 0 : 1]) : [];
    const others = [...new Set(pins)].filter((index) => index !== null && index !== at.index).slice(-MOST_OTHERS);
    return [at.index, ...(others as number[])].flatMap((index) =>
      store.drawnHeads.value.map((head) => ({ side, index, head })),
    );
  });
  const partners = computed(() => Math.min(MOST_PARTNERS, store.top_k.value ?? RANKS));
  const all = linesSource(store, kernel, wanted, partners, stop);
  const lines = computed(() => all.value.slice(0, heads.value));
  const strongest = strongestSource(store, kernel, () => isLong.value && !isPinned.value, stop);
  const stage = store.linkedStage;
  const pairs = computed<readonly Link[]>(() => {
    const head = store.drawnHeads.value.indexOf(store.picture.value?.of.head ?? -1);
    const isOfStage = store.picture.value?.of.stage === stage.value;
    return isPairs(strongest.value) && isOfStage && head >= 0 ? strongest.value.map((pair) => ({ ...pair, head })) : [];
  });

  /** Weights are shares; in other stages, the largest known number has the widest band. */
  const unit = computed(() =>
    stage.value === "weights" ? null : largestOf(store.links.value, all.value, pairs.value) || 1,
  );
  const sized = (links: readonly Link[]): readonly Link[] => {
    const most = unit.value;
    return most === null ? links : links.map((link) => ({ ...link, size: Math.abs(link.weight) / most }));
  };

  /** Links of the token in focus: whole rows once the kernel has sent them, else the strongest known ones. */
  const focused = computed<readonly Link[]>(() => {
    const at = focus.value;
    if (at === null) return [];
    const links: Link[] = [];
    lines.value.forEach((line, head) => {
      if (line !== null) links.push(...linksOf(line, head, store.facts.value.keys));
      else if (!isLong.value) links.push(...overview(ui, at.side, head).filter((link) => link[at.side] === at.index));
    });
    return keepLinks(sized(links), store.top_k.value, store.threshold.value);
  });
  const lanes = computed(() => {
    const { queries, keys } = store.facts.value;
    const has_sinks = hasSink(ui);
    const unit = ui.unit.value;
    const keep = (side: Side) => {
      if (!isPinned.value || focus.value === null) return isLong.value ? pairs.value.map((link) => link[side]) : null;
      const strong = [...focused.value].sort((a, b) => sizeOf(b) - sizeOf(a));
      const own = focus.value.side === side ? [focus.value.index] : strong.map((link) => link[side]);
      const sink = side === "key" && has_sinks ? [keys] : []; // never folded away
      return [
        ...new Set([
          ...own.slice(0, 1),
          ...sink,
          ...own,
          ...store.shownPins.value.map((pin) => pin[side === "query" ? 0 : 1] ?? -1),
        ]),
      ];
    };
    return { queries: lane(queries, keep("query"), unit), keys: lane(keys + (has_sinks ? 1 : 0), keep("key"), unit) };
  });
  const isDrawn = computed(() => store.picture.value !== null);
  const frame = computed<Frame | null>(() => {
    if (ui.width.value === 0 || !isDrawn.value) return null;
    return frameOf(ui, measure.value);
  });
  const bands = computed(() => {
    const at = focus.value;
    const { queries, keys } = lanes.value;
    if (at === null) return { bands: [], stems: [] };
    return bandsOf(focused.value, at.side, queries, keys, ui.unit.value);
  });
  const others = computed(() => {
    const side = store.direction.value;
    const at = focus.value;
    const perToken = at === null ? Math.min(store.top_k.value ?? OVERVIEW, OVERVIEW) : 1;
    const threshold = at === null ? store.threshold.value : 0;
    if (isLong.value) {
      const rest = all.value
        .slice(heads.value)
        .map((line, i) => linksOf(line, i % heads.value, store.facts.value.keys));
      const links = isPinned.value ? rest.flatMap((each) => keepLinks(sized(each), 1, 0)) : sized(pairs.value);
      return links.filter((link) => sizeOf(link) >= threshold && (at === null || link[at.side] !== at.index));
    }
    const links = sized(store.drawnHeads.value.flatMap((_, head) => overview(ui, side, head, perToken)));
    return links.filter((link) => sizeOf(link) >= threshold && (at === null || link[at.side] !== at.index));
  });
  const total = computed(() => others.value.length);
  const curves = computed(() => {
    const { queries, keys } = lanes.value;
    return curvesOf(strongestLast(others.value, MOST_CURVES), queries, keys, ui.unit.value);
  });
  const colors = computed(() => {
    const ground = isDark(ui.theme.value) ? "dark" : "light";
    const palette = HEAD_COLORS[ground];
    const heads = store.drawnHeads.value;
    if (heads.length === 1) return [LOOK[ground].data];
    return heads.map((_, place) => palette[place % palette.length] as string);
  });
  const bundleColor = computed(() => {
    const { queries, keys } = lanes.value;
    const isFolded = isLong.value || [queries, keys].some(({ rows, step }) => rows.length > 0 || step > 1);
    const axis = axisSegments(store, "key");
    if (!isFolded || axis === null || store.drawnHeads.value.length > 1 || isSigned(stage.value)) return null;
    const theme = ui.theme.value;
    void ui.paints.value; // the page's gray differs in contrast themes and between hosts
    const own = getComputedStyle(ui.root).getPropertyValue("--aw-ink3").trim();
    const ink3 = own || LOOK[isDark(theme) ? "dark" : "light"].ink3;
    const known = new Map<number, string>();
    return (key: number) => {
      const color = known.get(key) ?? segmentColor(segmentAt(axis, key)?.slot ?? -1, theme, ink3);
      known.set(key, color);
      return color;
    };
  });
  const keyLabels = computed(() => {
    const labels = store.keyLabels.value;
    return hasSink(ui) ? withNamed(labels, SINK) : labels;
  });
  return {
    frame,
    lanes,
    focus,
    lines,
    isLong,
    strongest,
    bands,
    curves,
    keyLabels,
    total,
    colors,
    bundleColor,
    signColors: computed(() => {
      const css = ui.paints.value?.diverging.css;
      return css === undefined || !isSigned(stage.value) ? null : { plus: css[255]!, minus: css[0]! };
    }),
    unit: computed(() => unit.value ?? 1),
    measure,
  };
}

/** Whether the learned sink is an additional key: only weights have a share for it. */
export const hasSink = ({ store }: Ui) => store.facts.value.has_sinks && store.linkedStage.value === "weights";

/** The largest number by size, among all links and the known rows or columns. */
function largestOf(links: Links | null, lines: readonly (Known | null)[], pairs: readonly Link[]): number {
  let most = pairs.reduce((most, { weight }) => Math.max(most, Math.abs(weight)), 0);
  for (const weight of links?.weights ?? []) most = Math.max(most, Math.abs(weight));
  for (const line of lines) {
    for (const { weight } of knownOf(line, 0)) if (Math.abs(weight) > most) most = Math.abs(weight);
  }
  return most;
}

/** The strongest links of every token for one of the shown heads, as Python sent them. */
function overview({ store }: Ui, side: Side, place: number, most = Number.POSITIVE_INFINITY): Link[] {
  const known = store.links.value;
  const head = store.drawnHeads.value[place];
  if (known === null || head === undefined || known.side !== side) return [];
  if (known.layer !== store.layer.value || known.batch !== store.batch.value) return [];
  if (known.stage !== store.linkedStage.value) return [];
  const at = known.heads.indexOf(head);
  if (at < 0) return [];
  const sinks = known.sinks?.[at] ?? null;
  if (sinks !== null) return withSinks(known, at, place, sinks, most, store.facts.value.keys);
  const links: Link[] = [];
  for (let position = 0; position < known.positions; position++) {
    for (let rank = 0; rank < Math.min(known.count, most); rank++) {
      const from = (at * known.positions + position) * known.count + rank;
      const weight = known.weights[from] as number;
      const partner = known.partners[from] as number;
      if (!(Math.abs(weight) > 0)) break;
      links.push(
        side === "query"
          ? { query: position, key: partner, head: place, weight }
          : { query: partner, key: position, head: place, weight },
      );
    }
  }
  return links;
}

/**
 * The same with a learned sink as an additional key: among the strongest of each query, or with its own strongest
 * queries.
 */
function withSinks(known: Links, at: number, place: number, sinks: Float32Array, most: number, keys: number): Link[] {
  const links: Link[] = [];
  const toSink = Array.from(sinks, (weight, query) => ({ query, key: keys, head: place, weight }));
  for (let position = 0; position < known.positions; position++) {
    const own: Link[] = known.side === "query" ? [toSink[position]!] : [];
    for (let rank = 0; rank < Math.min(known.count, most); rank++) {
      const from = (at * known.positions + position) * known.count + rank;
      const [weight, partner] = [known.weights[from]!, known.partners[from]!];
      const [query, key] = known.side === "query" ? [position, partner] : [partner, position];
      own.push({ query, key, head: place, weight });
    }
    links.push(...strongestFew(own, most));
  }
  return known.side === "query" ? links : [...links, ...strongestFew(toSink, most)];
}

const strongestFew = (links: readonly Link[], most: number) =>
  links
    .filter((link) => link.weight > 0)
    .sort((a, b) => b.weight - a.weight)
    .slice(0, most);

/** Return whether the strongest pairs are known. */
export const isPairs = (strongest: Strongest): strongest is readonly WeightedPair[] => Array.isArray(strongest);

/**
 * Return the positions of a line whose weights are known, with the weights: all, or the strongest of a ranked
 * one. The learned sink is one more key, after the others.
 */
export function knownOf(line: Known | null, keys: number): { other: number; weight: number }[] {
  if (line === null || "problem" in line) return [];
  const weight = sinkOf(line);
  const sink = weight === null ? [] : [{ other: keys, weight }];
  if ("ranking" in line) {
    const { top, values } = line.ranking;
    return [...top.map((other, at) => ({ other, weight: values[at] as number })), ...sink];
  }
  const all = Array.from(line.values, (weight, other) => ({ other, weight }));
  return [...all.filter(({ other }) => line.kinds[other] !== BLOCKED), ...sink];
}

/** The weight that a query gives to the learned sink; null for a key, and without a sink. */
export function sinkOf(line: Known | null): number | null {
  if (line === null || "problem" in line) return null;
  return ("ranking" in line ? line.ranking.sink : line.sink) ?? null;
}

function linksOf(line: Known | null, head: number, keys: number): Link[] {
  if (line === null) return [];
  const { side, index } = line.of;
  return knownOf(line, keys).flatMap(({ other, weight }) => {
    if (!(Math.abs(weight) > 0)) return [];
    return side === "query" ? { query: index, key: other, head, weight } : { query: other, key: index, head, weight };
  });
}

function frameOf(ui: Ui, measure: Measure): Frame {
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
  const most = Math.min(ACROSS_WIDE * unit, Math.max(ACROSS * unit, left - BARS * unit));
  const across = Math.max(0, narrow ? left : Math.min(most, Math.max(160 * unit, left * 0.62)));
  const x1 = x0 + across;
  const keyLeft = x1 + 10 * unit;
  const barLeft = keyLeft + keyRoom + 10 * unit;
  const meanRight = Math.min(width, narrow ? width : barLeft + BARS * unit + meanRoom);
  return {
    queryRight,
    queryRoom: queryRight - 6 * unit,
    keyRoom: keyRoom - 6 * unit,
    x0,
    x1,
    keyLeft,
    barLeft,
    barWidth: narrow ? 0 : Math.max(0, meanRight - meanRoom - barLeft),
    meanRight,
    width,
  };
}
