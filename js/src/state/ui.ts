/** What one view of the widget adds to the store: its width, theme and colors, and what the pointer is over. */

import { batch, computed, effect, type ReadonlySignal, type Signal, signal } from "@preact/signals-core";
import type { EffectOf } from "../contract/messages";
import type { HeadName, Side, Theme, ViewName } from "../contract/values";
import type { CellChange } from "../data/comparison";
import type { EffectOrder } from "../data/effects";
import type { Bin, Target } from "../data/matrix";
import type { SegmentNode } from "../data/segment-axis";
import type { HeadFilter, HeadOf } from "../data/survey";
import type { ColorMapper, Paints } from "../draw/color-mapper";
import { takeLook } from "../draw/look";
import { watchTheme } from "../draw/theme";
import { type Mode, modeOf } from "../geometry/layout";
import type { Span } from "../geometry/viewport";
import type { Kernel } from "../kernel/kernel";
import { type Ranked, type Reading, rankedSource, readingSource, stableComputed, type Unranked } from "./queries";
import { mapperOf } from "./ranges";
import type { Store } from "./store";

/** What the pointer is over: a cell (or all that it stands for), or a label of one side. */
export type Hover =
  | {
      readonly bin: Bin /** A link of the graph. */;
      readonly link?: { readonly head: HeadName; readonly weight: number };
    }
  | {
      readonly target: Target /** The queries of a row of the learned sink's column, and that row of the picture. */;
      readonly sink?: { readonly queries: Span; readonly row: number };
      /** The queries of a row in the recall column. */
      readonly recall?: Span;
    };

/** The part of the matrix that a heatmap shows, and the size of its cells in pixels. */
export interface Window extends Bin {
  readonly cellWidth: number;
  readonly cellHeight: number;
}

/** A place to bring into view: at the current zoom, close enough to read cells, or a block as large as fits. */
export interface Destination {
  readonly query: number | null;
  readonly key: number | null;
  readonly close: boolean;
  readonly block?: Bin;
}

/** A block whose cells were opened: views mark it until another place is chosen. */
export interface MarkedBlock {
  readonly queries: Span;
  readonly keys: Span;
  /** The names of both segments. */
  readonly from: string;
  readonly to: string;
  /** The one to which a text is scrolled. */
  readonly side: Side;
}

/** The state in which the segments view was left, to be restored. */
export interface LeftSegments {
  /** In addition to the pinned segment. */
  readonly second: string | null;
  readonly tokens: number;
  readonly heads: number;
}

/** The exact numbers of segments under the pointer, at the keyboard's place, or at the pin. */
export interface SegmentReading {
  /** The source: a token of the asking segment, or a segment; and its head, unless it is the selected one. */
  readonly query: number | null;
  readonly from: string;
  readonly head: HeadOf | null;
  readonly to: string;
  /** A share of what is not excluded; the weight itself; the share under even attention; and their quotient. */
  readonly mass: number;
  readonly raw: number;
  readonly even: number;
  readonly lift: number;
  readonly perToken: number;
  readonly isAside: boolean;
  /** False if `mass` is the sum of another stage than the weights. */
  readonly shares?: boolean;
  /** False while only the color's rounded number is known. */
  readonly exact: boolean;
}

/** What the model is run without. */
export interface Removal {
  readonly name: string;
  readonly of: EffectOf;
  readonly isPinned: boolean;
  /** NaN and null if not known. */
  readonly mass: number;
  readonly lost: number | null;
}

/** The card over the picture: the tour, the list of keyboard shortcuts, or the field to go to a token. */
export type CardName = "tour" | "keys" | "goto";

/** What some keys do in a view, as a line of the list of keyboard shortcuts. */
export interface KeyLine {
  /** The keys as the list shows them. */
  readonly shown: string;
  readonly does: string;
  /** Handlers by `KeyboardEvent.key`; none for actions of the pointer. */
  readonly keys: Readonly<Record<string, () => void>>;
}

export interface Ui {
  readonly store: Store;
  readonly kernel: Kernel;
  readonly root: HTMLElement;
  readonly stop: AbortSignal;
  /** 0 while the widget is hidden or not in the page yet. */
  readonly width: Signal<number>;
  /** Including the padding: decides between narrow and wide. */
  readonly outer: Signal<number>;
  readonly unit: Signal<number>;
  readonly dpr: Signal<number>;
  readonly font: Signal<string>;
  readonly theme: Signal<Theme>;
  readonly mode: ReadonlySignal<Mode>;
  readonly paints: Signal<{ sequential: Paints; diverging: Paints } | null>;
  /** The color mapper of the current picture. */
  readonly mapper: ReadonlySignal<ColorMapper | null>;
  /** The right end of the view's own parts, shared by toolbar and status. */
  readonly extent: Signal<number | null>;
  readonly hover: Signal<Hover | null>;
  /** The head under the pointer or at the keyboard's place, among all heads. */
  readonly pointedHead: Signal<HeadOf | null>;
  /** The limits on which heads are shown among all; null for all. */
  readonly onlyHeads: ReadonlySignal<HeadFilter | null>;
  /** The part of the matrix in the heatmap: written by the heatmap, read by panel and minimap. */
  readonly window: Signal<Window | null>;
  /** The change under the pointer or at the pin: written by the comparison, read by the status line. */
  readonly change: Signal<CellChange | null>;
  /** The keys of the current view: written by the view, read by the list of shortcuts. */
  readonly keyLines: Signal<() => readonly KeyLine[]>;
  readonly card: Signal<CardName | null>;
  /** The segment numbers under the pointer or at the pin: written by the segments view, read by the status line. */
  readonly segmentReading: Signal<SegmentReading | null>;
  /** What the segments view shows the model without: written by the view, read by the status line. */
  readonly removed: Signal<Removal | null>;
  /** The menus in the toolbar, which writes it; menus without room there stand above the view. */
  readonly inToolbar: Signal<string>;
  /** The order of effects. */
  readonly effectOrder: Signal<EffectOrder>;
  /** The current run of the model, by name, and Python's sentence if it failed ("" while it runs). */
  readonly effectProblem: Signal<{ readonly key: string; readonly text: string } | null>;
  /** The view from which the cells of a block were opened, and its label, for the back button. */
  readonly cameFrom: Signal<{ readonly view: ViewName; readonly block: string } | null>;
  readonly leftSegments: Signal<LeftSegments | null>;
  /** The segment last pinned inside others, by their path, for going down again. */
  readonly insidePins: Map<string, string>;
  /** The block whose cells were opened. */
  readonly marked: Signal<MarkedBlock | null>;
  /** The chosen axis labels of the heatmap; null: segments if there are some and tokens do not fit. */
  readonly axisNames: Signal<"tokens" | "segments" | null>;
  /** The shown axis labels, written by the heatmap; null without segments. */
  readonly shownNames: Signal<"tokens" | "segments" | null>;
  /** The segment whose name or margin is under the pointer. */
  readonly pointedSegment: Signal<{ readonly side: Side; readonly node: SegmentNode } | null>;
  /** The message about a saved file or a copy. */
  readonly told: Signal<{ readonly title: string; readonly text: string } | null>;
  /** Where the heatmap should move: anyone writes it, the heatmap moves there and writes null. */
  readonly destination: Signal<Destination | null>;
  /** The row or column that the panel ranks: the pinned one, else the one under the pointer. */
  readonly target: ReadonlySignal<Target | null>;
  readonly ranked: ReadonlySignal<Ranked | Unranked | null>;
  /** The exact numbers under the pointer and at the pin. */
  readonly hovered: ReadonlySignal<Reading | null>;
  readonly pinned: ReadonlySignal<Reading | null>;
}

/** The views whose panel ranks a row or column. */
const LISTING: readonly ViewName[] = ["heatmap", "text", "image"];

/** Return what one view adds to the store, kept in step with its element. */
export function createUi(store: Store, kernel: Kernel, root: HTMLElement, stop: AbortSignal): Ui {
  const width = signal(0);
  const outer = signal(0);
  const unit = signal(1);
  const dpr = signal(1);
  const font = signal("sans-serif");
  const theme = signal<Theme>("light");
  const paints = signal<{ sequential: Paints; diverging: Paints } | null>(null);
  const hover = signal<Hover | null>(null);
  const extent = signal<number | null>(null);

  const hoverBin = stableComputed(() => {
    const at = hover.value;
    if (at === null || !("bin" in at)) return null;
    return at.bin.keys.start < store.facts.value.keys ? at.bin : null; // beyond is the graph's sink, not a key
  });
  const pinBin = stableComputed<Bin>(() => {
    const query = store.query.value;
    const key = store.key.value;
    return query === null || key === null
      ? null
      : { queries: { start: query, stop: query + 1 }, keys: { start: key, stop: key + 1 } };
  });
  const hovered = readingSource(store, kernel, hoverBin, stop);
  const pinned = readingSource(store, kernel, pinBin, stop);

  const target = stableComputed<Target>(() => {
    const [query, key] = [store.query.value, store.key.value];
    if (key !== null && (query === null || store.direction.value === "key")) return { side: "key", index: key };
    if (query !== null) return { side: "query", index: query };
    const at = hover.value;
    if (at === null) return null;
    if ("target" in at) return at.target;
    const { start, stop: end } = at.bin.queries;
    if (end - start === 1) return { side: "query", index: start };
    const peak = hovered.value; // a bin of several queries is listed by the query of its greatest number
    return peak !== null && peak.query >= start && peak.query < end ? { side: "query", index: peak.query } : null;
  });

  const listed = computed(() => (LISTING.includes(store.view.value) ? target.value : null)); // others ask themselves

  const mapper = computed(() => {
    const picture = store.picture.value;
    const both = paints.value;
    if (picture === null || both === null || picture.grid === null) return null;
    return mapperOf(store, picture, picture.grid);
  });

  const ui: Ui = {
    store,
    kernel,
    root,
    stop,
    width,
    outer,
    unit,
    dpr,
    font,
    theme,
    mode: computed(() => modeOf(outer.value, unit.value)),
    paints,
    mapper,
    extent,
    hover,
    pointedHead: signal<HeadOf | null>(null),
    onlyHeads: computed(() => {
      const limits = store.only_heads.value;
      return limits ? { from: limits[0], to: limits[1], above: limits[2] } : null;
    }),
    window: signal<Window | null>(null),
    change: signal<CellChange | null>(null),
    keyLines: signal(() => []),
    card: signal<CardName | null>(null),
    segmentReading: signal<SegmentReading | null>(null),
    removed: signal<Removal | null>(null),
    inToolbar: signal(""),
    effectOrder: signal<EffectOrder>("effect"),
    effectProblem: signal<{ readonly key: string; readonly text: string } | null>(null),
    cameFrom: signal<{ readonly view: ViewName; readonly block: string } | null>(null),
    leftSegments: signal<LeftSegments | null>(null),
    insidePins: new Map(),
    marked: markedBlock(store, stop),
    axisNames: signal<"tokens" | "segments" | null>(null),
    shownNames: signal<"tokens" | "segments" | null>(null),
    pointedSegment: signal<{ readonly side: Side; readonly node: SegmentNode } | null>(null),
    told: signal(null),
    destination: signal<Destination | null>(null),
    target,
    ranked: rankedSource(store, kernel, listed, hovered, stop),
    hovered,
    pinned,
  };
  const look = watchLook(ui);
  watchSize(ui, look);
  return ui;
}

/** The block marked until a token is pinned or unpinned, or until positions mean other tokens. */
function markedBlock(store: Store, stop: AbortSignal): Signal<MarkedBlock | null> {
  const marked = signal<MarkedBlock | null>(null);
  const chosen = computed(() => {
    const { queries, keys } = store.facts.value;
    return [store.query.value, store.key.value, store.batch.value, store.pieces.value, queries, keys].join();
  });
  const end = effect(() => {
    void chosen.value;
    marked.value = null;
  });
  stop.addEventListener("abort", end, { once: true });
  return marked;
}

/** Width comes from ResizeObserver only: a view often starts detached, at width 0. */
function watchSize({ root, width, outer, dpr, stop }: Ui, attached: () => void): void {
  const observer = new ResizeObserver((entries) => {
    const entry = entries[entries.length - 1];
    const box = entry?.contentRect;
    if (box === undefined || box.width === 0) return; // hidden: nothing is drawn and the last picture stays
    if (width.value === 0) attached();
    dpr.value = window.devicePixelRatio || 1;
    width.value = box.width;
    outer.value = entry?.borderBoxSize?.[0]?.inlineSize ?? box.width;
  });
  observer.observe(root);
  stop.addEventListener("abort", () => observer.disconnect(), { once: true });
}

/** Follow the host's theme, font and colors live. Returns a function that reads them again. */
function watchLook(ui: Ui): () => void {
  const { root, store, stop, paints, unit, font, theme } = ui;
  let last = "";
  const read = () => {
    const look = takeLook(root, store.theme.value, store.palette.value);
    batch(() => {
      unit.value = look.unit;
      theme.value = look.theme;
      font.value = look.font;
      if (look.key !== last) paints.value = look.paints;
    });
    last = look.key;
  };
  let later: ReturnType<typeof setTimeout> | undefined;
  const readSoon = () => {
    read();
    clearTimeout(later);
    later = setTimeout(read, 300); // a host sets its new theme before the style sheet applies
  };
  watchTheme(root, readSoon, stop);
  const ends = [effect(() => read()), () => clearTimeout(later)];
  stop.addEventListener("abort", () => {
    for (const end of ends) end();
  });
  return read;
}
