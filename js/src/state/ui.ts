/** What one view of the widget adds to the store: its width, theme and colors, and what the pointer is over. */

import { batch, computed, effect, type ReadonlySignal, type Signal, signal } from "@preact/signals-core";
import type { EffectOf } from "../contract/messages";
import type { HeadName, Side, Theme, ViewName } from "../contract/values";
import type { CellChange } from "../data/comparison";
import type { EffectOrder } from "../data/effects";
import type { Bin, Target } from "../data/matrix";
import type { SegmentNode } from "../data/segment-axis";
import type { HeadFilter, HeadOf } from "../data/survey";
import { contrast, cssOf } from "../draw/color";
import { type ColorMapper, type Paints, readPaints } from "../draw/color-mapper";
import { detectHost, detectTheme, pageColor, watchTheme } from "../draw/theme";
import { type Mode, modeOf } from "../geometry/layout";
import type { Span } from "../geometry/viewport";
import type { Kernel } from "../kernel/kernel";
import { type Ranked, type Reading, rankedSource, readingSource, stableComputed, type Unranked } from "./queries";
import { mapperOf } from "./ranges";
import type { Store } from "./store";

/** What the pointer is over: a cell (or all that it stands for), or a label, which is one side alone. */
export type Hover =
  | {
      readonly bin: Bin /** A link of the graph. */;
      readonly link?: { readonly head: HeadName; readonly weight: number };
    }
  | {
      readonly target: Target /** The queries of a row of the learned sink's column, and that row of the picture. */;
      readonly sink?: { readonly queries: Span; readonly row: number };
      /** The queries of a row of the column of recall. */
      readonly recall?: Span;
    };

/** What of the matrix a heatmap shows, and how large one of its cells is drawn, in pixels. */
export interface Window extends Bin {
  readonly cellWidth: number;
  readonly cellHeight: number;
}

/** A place to bring into view: at the zoom in force, or close enough to read its cells, or a block so large as fits. */
export interface Destination {
  readonly query: number | null;
  readonly key: number | null;
  readonly close: boolean;
  readonly block?: Bin;
}

/** A block of cells that one went down to: views show where it is until another place is chosen. */
export interface MarkedBlock {
  readonly queries: Span;
  readonly keys: Span;
  /** The names of both segments. */
  readonly from: string;
  readonly to: string;
  /** Which of them a text is scrolled to. */
  readonly side: Side;
}

/** Where the segments view was left, to be found there again. */
export interface LeftSegments {
  /** On top of the pinned segment. */
  readonly second: string | null;
  readonly tokens: number;
  readonly heads: number;
}

/** What of segments the pointer is over, or the keyboard's place, or else what is pinned: exact numbers. */
export interface SegmentReading {
  /** Whose attention: a token of the asking segment, or a segment; in which head, where that is not the selected one. */
  readonly query: number | null;
  readonly from: string;
  readonly head: HeadOf | null;
  readonly to: string;
  /** A share of what is not set aside; the weight itself; that of even attention, a share again; and their quotient. */
  readonly mass: number;
  readonly raw: number;
  readonly even: number;
  readonly lift: number;
  readonly perToken: number;
  readonly isAside: boolean;
  /** False where `mass` is the sum of another stage than the weights. */
  readonly shares?: boolean;
  /** False while only the number's color has come. */
  readonly exact: boolean;
}

/** What the model is shown without. */
export interface Removal {
  readonly name: string;
  readonly of: EffectOf;
  readonly isPinned: boolean;
  /** NaN and null where they are not known. */
  readonly mass: number;
  readonly lost: number | null;
}

/** What a few keys do in a view, as one line of the list of keys. */
export interface KeyLine {
  /** The keys, as the list shows them. */
  readonly shown: string;
  readonly does: string;
  /** By the name that `KeyboardEvent.key` has for each; none for what is done by the pointer. */
  readonly keys: Readonly<Record<string, () => void>>;
}

export interface Ui {
  readonly store: Store;
  readonly kernel: Kernel;
  readonly root: HTMLElement;
  readonly stop: AbortSignal;
  /** 0 while the widget is hidden or not yet in the page. */
  readonly width: Signal<number>;
  /** With the padding: what decides between narrow and wide. */
  readonly outer: Signal<number>;
  readonly unit: Signal<number>;
  readonly dpr: Signal<number>;
  readonly font: Signal<string>;
  readonly theme: Signal<Theme>;
  readonly mode: ReadonlySignal<Mode>;
  readonly paints: Signal<{ sequential: Paints; diverging: Paints } | null>;
  /** From number to color for the picture in hand. */
  readonly mapper: ReadonlySignal<ColorMapper | null>;
  /** Where the view's own parts end on the right: toolbar and status end there too. */
  readonly extent: Signal<number | null>;
  readonly hover: Signal<Hover | null>;
  /** The head under the pointer, or the keyboard's, among all heads. */
  readonly pointedHead: Signal<HeadOf | null>;
  /** Which heads are shown among all; null for all of them. */
  readonly onlyHeads: ReadonlySignal<HeadFilter | null>;
  /** What the heatmap shows of the matrix: the heatmap writes it, panel and minimap read it. */
  readonly window: Signal<Window | null>;
  /** The change under the pointer, or at the pin: the comparison writes it, the status line says it. */
  readonly change: Signal<CellChange | null>;
  /** The keys of the view that is shown: the view writes it, the list of keys reads it. */
  readonly keyLines: Signal<() => readonly KeyLine[]>;
  /** What floats over the picture: the list of keys, or the field for a token to go to. */
  readonly card: Signal<"keys" | "goto" | null>;
  /** The attention of segments under the pointer, or at the pin: their view writes it, the status line says it. */
  readonly segmentReading: Signal<SegmentReading | null>;
  /** What the segments view shows the model without: it writes it, the status line says it. */
  readonly removed: Signal<Removal | null>;
  /** The choices that stand in the toolbar, which writes it: where it has no room, they stand above the view. */
  readonly inToolbar: Signal<string>;
  /** In which order effects are listed. */
  readonly effectOrder: Signal<EffectOrder>;
  /** What the model is run without, by its name, and why it could not be: Python's sentence, "" while it runs. */
  readonly effectProblem: Signal<{ readonly key: string; readonly text: string } | null>;
  /** The view from which one went down to the cells of a block, and what that is called: the way back. */
  readonly cameFrom: Signal<{ readonly view: ViewName; readonly block: string } | null>;
  readonly leftSegments: Signal<LeftSegments | null>;
  /** The segment that was last pinned inside others, by the path of these: of going down again. */
  readonly insidePins: Map<string, string>;
  /** The cells that one went down to. */
  readonly marked: Signal<MarkedBlock | null>;
  /** What stands along the axes of the heatmap; null: segments where there are some and tokens have no room. */
  readonly axisNames: Signal<"tokens" | "segments" | null>;
  /** Which of them do: the heatmap writes it; null where there are no segments. */
  readonly shownNames: Signal<"tokens" | "segments" | null>;
  /** The segment whose name, or whose margin, the pointer is on. */
  readonly pointedSegment: Signal<{ readonly side: Side; readonly node: SegmentNode } | null>;
  /** What has become of a file or a copy that was asked for, to be said. */
  readonly told: Signal<{ readonly title: string; readonly text: string } | null>;
  /** Where the heatmap is to go: anybody writes it, the heatmap goes there and writes null. */
  readonly destination: Signal<Destination | null>;
  /** The row or column that the panel ranks: the pinned one, else the hovered one. */
  readonly target: ReadonlySignal<Target | null>;
  readonly ranked: ReadonlySignal<Ranked | Unranked | null>;
  /** The exact number under the pointer, and at the pin. */
  readonly hovered: ReadonlySignal<Reading | null>;
  readonly pinned: ReadonlySignal<Reading | null>;
}

/** The views whose panel ranks a row or column. */
const LISTING: readonly ViewName[] = ["heatmap", "text", "image"];

/** Return what one view adds to the store, kept up to date with its element. */
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
    return at.bin.keys.start < store.facts.value.keys ? at.bin : null; // beyond is the graph's sink, no key
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
    const peak = hovered.value; // a bin of several queries: the one that its greatest number belongs to
    return peak !== null && peak.query >= start && peak.query < end ? { side: "query", index: peak.query } : null;
  });

  const listed = computed(() => (LISTING.includes(store.view.value) ? target.value : null)); // others ask for their own

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
    card: signal<"keys" | "goto" | null>(null),
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
    ranked: rankedSource(store, kernel, listed, stop),
    hovered,
    pinned,
  };
  const look = watchLook(ui);
  watchSize(ui, look);
  return ui;
}

/** What is marked, until a token is pinned or freed, or positions are of other tokens. */
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

/** Width comes from ResizeObserver only: a view often begins detached, at width 0. */
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

/** Theme, font and colors follow the host, live. Returns what reads them again. */
function watchLook(ui: Ui): () => void {
  const { root, store, stop, paints, unit, font, theme } = ui;
  let last = "";
  const read = () => {
    const preference = store.theme.value;
    const found = detectTheme(root, preference);
    root.dataset.host = detectHost(root);
    root.dataset.theme = found;
    root.toggleAttribute("data-own-theme", found !== detectTheme(root, "auto"));
    // On a page of its own color the widget sits on that page, where the host has no name for it.
    const page = root.dataset.host === "other" && preference === "auto" ? pageColor(root) : undefined;
    if (page === undefined) root.style.removeProperty("--aw-bg");
    else root.style.setProperty("--aw-bg", cssOf(page));
    root.removeAttribute("data-dim-grays");
    const style = getComputedStyle(root);
    const size = Number.parseFloat(style.getPropertyValue("--jp-ui-font-size1"));
    const next = size > 0 && root.dataset.host === "jupyter" ? size / 13 : 1;
    root.style.setProperty("--aw-u", `${next}px`);
    const seen = readPaints(style, found, store.palette.value);
    root.toggleAttribute("data-dim-grays", contrast(seen.ink3, seen.page) < 4.5);
    root.style.setProperty("--aw-plate", seen.plate);
    const now = [found, store.palette.value, style.backgroundColor, style.color].join();
    batch(() => {
      unit.value = next;
      theme.value = found;
      font.value = style.fontFamily || "sans-serif";
      if (now !== last) paints.value = seen;
    });
    last = now;
  };
  let later: ReturnType<typeof setTimeout> | undefined;
  const readSoon = () => {
    read();
    clearTimeout(later);
    later = setTimeout(read, 300); // a host names its new theme before its style sheet is in force
  };
  watchTheme(root, readSoon, stop);
  const ends = [effect(() => read()), () => clearTimeout(later)];
  stop.addEventListener("abort", () => {
    for (const end of ends) end();
  });
  return read;
}
