/** Segments on the axes of a picture, and the pinned block: what some queries give to some keys. */

import { computed, effect, type ReadonlySignal, signal } from "@preact/signals-core";
import type { Side } from "../contract/values";
import { isOn, type Paths, type SegmentNode, slotsBelow, treeOf } from "../data/segment-axis";
import type { Mass, Segments } from "../data/segment-data";
import { leftOf, readingAt, restOf } from "../data/segments";
import type { Span } from "../geometry/viewport";
import type { Kernel } from "../kernel/kernel";
import { stableComputed } from "./queries";
import { askBlock, type SegmentBlock } from "./segment-queries";
import type { Store } from "./store";
import type { Ui } from "./ui";

/** The segments of one side of the picture. */
export interface AxisSegments {
  readonly segments: Segments;
  readonly tree: readonly SegmentNode[];
  /** The segment that contains those that can be pinned on this side, as a path. */
  readonly path: readonly string[];
  /** A piece is divided into those inside it if a path of either side leads through it. */
  readonly open: Paths;
  /** The color slot of a piece, −1 for gray. */
  slot(node: SegmentNode): number;
}

const slots = new WeakMap<Segments, { of: string; mass: Mass | null; slot: (node: SegmentNode) => number }>();

/** Return the segments of a side; null if there are none, or none that fit the picture. */
export function axisSegments(store: Store, side: Side) {
  const { segments, keySegments, picture, segment_path, mass } = store;
  const found = (side === "query" ? segments : keySegments).value;
  const shown = picture.value;
  const length = side === "query" ? shown?.queries : shown?.keys;
  if (found === null || found.error !== null || found.length !== length || found.names.length === 0) return null;
  const asked = askedOf(store);
  const [own, inKeys] = [asked?.path ?? [], segment_path.value ?? []];
  const of = mass.value !== null && same(mass.value.path, inKeys) ? mass.value : null;
  const path = side === "query" ? own : inKeys;
  const slot = slotOn(found, inKeys, of, asked === null ? [] : [...own, asked.name]);
  return { segments: found, tree: treeOf(found), path, open: [own, inKeys], slot } satisfies AxisSegments;
}

/** Return the chosen asking segment with its path; null if none was chosen. */
export function askedOf({ asking }: Store): { readonly path: readonly string[]; readonly name: string } | null {
  const names = typeof asking.value === "string" ? [asking.value] : (asking.value ?? []);
  const name = names.at(-1);
  return name === undefined ? null : { path: names.slice(0, -1), name };
}

/** Return the value of `asking` for a segment. */
export const askingFor = (path: readonly string[], name: string): string | readonly string[] =>
  path.length === 0 ? name : [...path, name];

function slotOn(
  segments: Segments,
  path: readonly string[],
  mass: Mass | null,
  asked: readonly string[],
): (node: SegmentNode) => number {
  const known = slots.get(segments);
  const of = JSON.stringify([path, asked]);
  if (known?.of === of && known.mass === mass) return known.slot;
  const colors = mass === null || mass.error !== null ? null : { keys: mass.keys, colors: mass.keyColors };
  const slot = slotsBelow(segments, path, colors, asked);
  slots.set(segments, { of, mass, slot });
  return slot;
}

const same = (a: readonly string[], b: readonly string[]) => a.join("\n") === b.join("\n");

/** Return the piece of the outermost level, or on the path, at a position, with its color slot. */
export function segmentAt(axis: AxisSegments | null, position: number): { node: SegmentNode; slot: number } | null {
  let nodes = axis?.tree ?? [];
  let found: SegmentNode | null = null;
  while (axis !== null) {
    const next = nodes.find(({ start, stop }) => position >= start && position < stop);
    if (next === undefined) break;
    found = next;
    if (!isOn(axis.open, next) || next.children.length === 0) break;
    nodes = next.children;
  }
  return axis === null || found === null ? null : { node: found, slot: axis.slot(found) };
}

// --- what is pinned -------------------------------------------------------------------------------------------------

/** The name and path of a pinned segment. */
export interface PinnedSegment {
  readonly path: readonly string[];
  readonly name: string;
  /** Its places, perhaps several. */
  readonly spans: readonly Span[];
}

/** Return the segment pinned on one side; for queries, the asking one once it was chosen. */
export function pinnedSegment(store: Store, side: Side): PinnedSegment | null {
  const axis = axisSegments(store, side);
  const name = side === "query" ? askedOf(store)?.name : store.segment.value;
  if (axis === null || name == null) return null;
  const spans = spansOf(axis.tree, axis.path, name);
  return spans.length === 0 ? null : { path: axis.path, name, spans };
}

function spansOf(tree: readonly SegmentNode[], path: readonly string[], name: string): Span[] {
  let nodes = tree;
  for (const part of path) nodes = nodes.filter((node) => node.name === part).flatMap(({ children }) => children);
  return nodes.filter((node) => node.name === name).map(({ start, stop }) => ({ start, stop }));
}

/** Return whether a piece belongs to a pinned segment. */
export function isPinned(pinned: PinnedSegment | null, { name, path }: SegmentNode): boolean {
  return pinned !== null && pinned.name === name && same(pinned.path, path);
}

/** Both sides of a pinned block. */
export interface PinnedBlock {
  readonly query: PinnedSegment;
  readonly key: PinnedSegment;
}

/** Return the pinned block: a segment on each side. */
export function pinnedBlock(store: Store): PinnedBlock | null {
  const [query, key] = [pinnedSegment(store, "query"), pinnedSegment(store, "key")];
  return query === null || key === null ? null : { query, key };
}

/** Pin a segment on its side, or unpin it; the queries' segment is the asking one. */
export function pinSegment({ store }: Ui, side: Side, { name, path }: SegmentNode): void {
  if (side === "query") {
    const now = askedOf(store);
    const isAsked = now !== null && now.name === name && same(now.path, path);
    store.show({ asking: isAsked ? null : askingFor(path, name) });
    return;
  }
  const pinned = pinnedSegment(store, "key");
  if (pinned?.name === name && same(pinned.path, path)) store.select({ segment: null });
  else {
    if (!same(store.segment_path.value ?? [], path)) store.show({ segment_path: [...path] });
    store.select({ segment: name });
  }
}

/** Pin the clicked segment; if both sides are pinned, show the cells; if it is pinned alone, unpin it. */
export function clickSegment(ui: Ui, side: Side, node: SegmentNode): void {
  const { store } = ui;
  const block = pinnedBlock(store);
  if (store.query.value !== null || store.key.value !== null) store.select({ query: null, key: null });
  if (block !== null && isPinned(block[side], node)) lookAt(ui, block);
  else pinSegment(ui, side, node);
}

/** Bring the cells of a block into view: the longest piece of each segment. */
export function lookAt(ui: Ui, { query, key }: PinnedBlock): void {
  ui.pointedSegment.value = null; // its name is about to disappear
  const longest = (spans: readonly Span[]) => spans.reduce((a, b) => (b.stop - b.start > a.stop - a.start ? b : a));
  ui.destination.value = {
    query: null,
    key: null,
    close: false,
    block: { queries: longest(query.spans), keys: longest(key.spans) },
  };
}

/** Unpin both sides; true if one was pinned. */
export function freeBlock({ store }: Ui): boolean {
  const [query, key] = [pinnedSegment(store, "query"), pinnedSegment(store, "key")];
  if (query !== null) store.show({ asking: null });
  if (key !== null) store.select({ segment: null });
  return query !== null || key !== null;
}

/** The row and column of the pinned block in the masses; null while these are of something else. */
function cellOf(store: Store): { mass: Mass; row: number; column: number } | null {
  const block = pinnedBlock(store);
  const mass = store.mass.value;
  const picture = store.picture.value;
  if (block === null || mass === null || mass.error !== null || picture === null) return null;
  const { layer, batch, head } = picture.of;
  if (mass.of.layer !== layer || mass.of.batch !== batch || mass.of.head !== head) return null;
  if (!same(mass.path, block.key.path) || !same(mass.askingPath, block.query.path)) return null;
  const [row, column] = [mass.rows.indexOf(block.query.name), mass.keys.indexOf(block.key.name)];
  return row < 0 || column < 0 ? null : { mass, row, column };
}

/** The numbers of the pinned block. */
export interface BlockReading {
  readonly mass: number;
  readonly perToken: number;
  readonly lift: number;
  /** Excluded segments: their names, and their share of the weight. */
  readonly aside: { readonly names: readonly string[]; readonly share: number };
  /** How many queries were computed, of how many. */
  readonly looked: number;
  readonly of: number;
  /** False if the masses are rounded because there are many segments. */
  readonly exact: boolean;
}

/** Return the three measures of the pinned block; null if not known yet. */
export function blockReading(store: Store): BlockReading | null {
  const cell = cellOf(store);
  if (cell === null) return null;
  const { mass, row, column } = cell;
  const left = leftOf(mass.keys, store.aside.value ?? []);
  const rest = restOf(mass.matrix, left, { own: "each" });
  const read = (measure: "mass" | "per_token" | "lift") => readingAt(rest, mass.keySizes, row, column, measure);
  const names = [...left.without.map((at) => mass.keys[at]!), ...(left.self ? [] : ["own key of each query"])];
  if (Number.isNaN(mass.matrix.mass[row * mass.keys.length + column]!)) return null;
  return {
    mass: read("mass"),
    perToken: read("per_token"),
    lift: read("lift"),
    aside: { names, share: rest.aside[row]! },
    looked: mass.looked[row] ?? 0,
    of: mass.rowSizes[row] ?? 0,
    exact: mass.exact || row === mass.row,
  };
}

/** Write a number of segments: in full, or no longer than its rounding allows. */
export function blockNumber(
  value: number,
  { exact }: { readonly exact: boolean },
  write: (value: number) => string,
): string {
  if (Number.isNaN(value)) return "none";
  return exact || value === 0 ? write(value) : `about ${String(Number(value.toPrecision(2))).replace(/^0\./, ".")}`;
}

/** The strongest cells of the pinned block, or why there are none. */
export type BlockCells = SegmentBlock | { readonly problem: string } | null;

const CELLS = 6;

/** Ask for the strongest cells of the pinned block; null until they come. */
export function blockCells(store: Store, kernel: Kernel, stop: AbortSignal): ReadonlySignal<BlockCells> {
  const found = signal<BlockCells>(null);
  const asked = stableComputed(() => {
    const cell = store.view.value === "heatmap" ? cellOf(store) : null;
    return cell === null ? null : { id: cell.mass.id, row: cell.row, column: cell.column };
  });
  const end = effect(() => {
    const question = asked.value;
    const mass = store.mass.peek();
    found.value = null;
    if (question === null || mass === null) return;
    const current = new AbortController();
    const { row, column } = question;
    askBlock(kernel, mass, { row, column, count: CELLS }, current.signal).then(
      (cells) => {
        if (!current.signal.aborted) found.value = cells;
      },
      (error: unknown) => {
        if (!current.signal.aborted) found.value = { problem: error instanceof Error ? error.message : String(error) };
      },
    );
    return () => current.abort();
  });
  stop.addEventListener("abort", end, { once: true });
  return computed(() => found.value);
}
