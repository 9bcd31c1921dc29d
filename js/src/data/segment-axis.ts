/** Segments along a drawn axis: which pieces are shown separately, whose names fit, and what contains them. */

import type { Segments } from "./segment-data";

/** One contiguous piece of a segment, with the pieces inside it. */
export interface SegmentNode {
  readonly name: string;
  readonly start: number;
  readonly stop: number;
  readonly level: number;
  /** The names of the segments around it, outermost first. */
  readonly path: readonly string[];
  /** Whether it is a remainder of the piece around it. */
  readonly isRest: boolean;
  readonly children: readonly SegmentNode[];
  /** Tokens of the shortest named piece inside; 0 where there is none. */
  readonly least: number;
}

/** A drawn axis: pixels per token, the place of the first token, and the length in view. */
export interface AxisView {
  readonly perToken: number;
  readonly offset: number;
  readonly size: number;
}

/** A piece at least partly in view, with its place in pixels; it may begin and end outside. */
export interface Placed {
  readonly node: SegmentNode;
  readonly from: number;
  readonly to: number;
}

/** The pieces to show on an axis. */
export interface AxisPieces {
  /** Next to each other, in order. */
  readonly pieces: readonly Placed[];
  /** Around these, for each further level. */
  readonly around: readonly Placed[];
}

const trees = new WeakMap<Segments, readonly SegmentNode[]>();

/** Return the outermost pieces in order, with the pieces inside them; a remainder inside a piece is a piece too. */
export function treeOf(segments: Segments): readonly SegmentNode[] {
  let tree = trees.get(segments);
  if (tree === undefined) {
    tree = nodesAt(segments, { at: 0 }, 0, []);
    trees.set(segments, tree);
  }
  return tree;
}

function nodesAt(
  segments: Segments,
  cursor: { at: number },
  level: number,
  path: readonly string[],
  stop = Number.POSITIVE_INFINITY,
): SegmentNode[] {
  const { names, starts, stops, levels } = segments;
  const found: SegmentNode[] = [];
  while (cursor.at < names.length && levels[cursor.at]! >= level && starts[cursor.at]! < stop) {
    const at = cursor.at++;
    const own = { name: names[at]!, start: starts[at]!, stop: stops[at]!, level, path, isRest: false };
    const inside = nodesAt(segments, cursor, level + 1, [...path, own.name], own.stop);
    const least = inside.reduce((most, { start, stop }) => Math.min(most, stop - start), Number.POSITIVE_INFINITY);
    found.push({ ...own, children: withRest(own, inside), least: inside.length > 0 ? least : 0 });
  }
  return found;
}

/** The pieces inside another, with remainders between them. */
function withRest(around: Omit<SegmentNode, "children" | "least">, inside: readonly SegmentNode[]): SegmentNode[] {
  if (inside.length === 0) return [];
  const found: SegmentNode[] = [];
  let at = around.start;
  const rest = (stop: number) => {
    if (stop <= at) return;
    const { name, level, path } = around;
    const own = { name: `rest of ${name}`, start: at, stop, level: level + 1, path: [...path, name], isRest: true };
    found.push({ ...own, children: [], least: 0 });
  };
  for (const node of inside) {
    rest(node.start);
    found.push(node);
    at = Math.max(at, node.stop);
  }
  rest(around.stop);
  return found;
}

/** Return the place of a piece on an axis, from the corner of the view. */
export function placeOf(node: SegmentNode, { perToken, offset }: AxisView): Placed {
  return { node, from: node.start * perToken + offset, to: node.stop * perToken + offset };
}

/**
 * Return the pieces in view. A piece is divided into those inside it if all of them are `apart` long, and if a path
 * leads through it, but at most `levels` deep.
 */
export function piecesInView(
  tree: readonly SegmentNode[],
  view: AxisView,
  { apart, paths, levels }: { apart: number; paths: Paths; levels: number },
): AxisPieces {
  const pieces: Placed[] = [];
  const around: Placed[] = [];
  const isOpen = (node: SegmentNode) => {
    if (node.children.length === 0 || node.level >= levels) return false;
    if (isOn(paths, node)) return true;
    return node.least * view.perToken >= apart;
  };
  const add = (nodes: readonly SegmentNode[]) => {
    for (let at = firstInView(nodes, view); at < nodes.length; at++) {
      const node = nodes[at]!;
      const placed = placeOf(node, view);
      if (placed.from >= view.size) break;
      if (isOpen(node)) {
        around.push(placed);
        add(node.children);
      } else pieces.push(placed);
    }
  };
  add(tree);
  return { pieces, around };
}

/** The first of some adjacent pieces that ends in view. */
function firstInView(nodes: readonly SegmentNode[], view: AxisView): number {
  let [low, high] = [0, nodes.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (placeOf(nodes[middle]!, view).to <= 0) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Return the visible part of a piece. */
export function clipped({ from, to }: Placed, { size }: AxisView): { from: number; to: number; middle: number } {
  const [start, stop] = [Math.max(0, from), Math.min(size, to)];
  return { from: start, to: stop, middle: (start + stop) / 2 };
}

/**
 * Return the pieces whose names fit: their centers are `apart` from one another, and longer pieces come first. Those
 * in `always` are named in any case, and the others make room.
 */
export function named(
  placed: readonly Placed[],
  view: AxisView,
  apart: number,
  always: (node: SegmentNode) => boolean = () => false,
): Placed[] {
  const buckets = new Map<number, { at: number; needs: number }[]>();
  const needs = 1.5 * apart;
  const keep = (at: number, room: number) => {
    const bucket = Math.floor(at / needs);
    buckets.set(bucket, [...(buckets.get(bucket) ?? []), { at, needs: room }]);
  };
  const isFree = (at: number) => {
    const bucket = Math.floor(at / needs);
    const near = [bucket - 1, bucket, bucket + 1].flatMap((one) => buckets.get(one) ?? []);
    return near.every((other) => Math.abs(other.at - at) >= Math.max(apart, other.needs));
  };
  const first = placed.filter(({ node }) => always(node));
  const rest = placed.filter(({ node }) => !always(node));
  for (const one of first) keep(clipped(one, view).middle, needs);
  const long = ({ from, to }: Placed) => Math.round(to - from); // stable during a pan
  const kept = new Set(first);
  // A piece without room for its name also hides the names of much shorter neighbors.
  const unnamed: { at: number; long: number }[] = [];
  const isMinor = (at: number, own: number) =>
    unnamed.some((one) => one.long > 2 * own && Math.abs(one.at - at) < apart);
  for (const one of [...rest].sort((a, b) => long(b) - long(a))) {
    const { middle } = clipped(one, view);
    if (!isFree(middle)) {
      if (long(one) > 2) unnamed.push({ at: middle, long: long(one) });
      continue;
    }
    if (isMinor(middle, long(one))) continue;
    keep(middle, apart);
    kept.add(one);
  }
  return placed.filter((one) => kept.has(one));
}

/** Return the piece at a pixel of an axis; null if there is none. */
export function pieceUnder(pieces: readonly Placed[], at: number): SegmentNode | null {
  return pieces.find(({ from, to }) => at >= from && at < to)?.node ?? null;
}

/** Return whether two pieces belong to the same segment. */
export function isSame(a: SegmentNode | null, b: SegmentNode | null): boolean {
  return a !== null && b !== null && a.name === b.name && a.path.join("\n") === b.path.join("\n");
}

/** The number of colors besides the gray of the asking segment. */
const COLORS = 7;

/** Return the color slot of each piece, the same in all views: segments below a path have colors, others are gray. */
export function slotsBelow(
  segments: Segments,
  path: readonly string[],
  known: { readonly keys: readonly string[]; readonly colors: readonly number[] } | null,
  asked: readonly string[] = [],
): (node: SegmentNode) => number {
  if (path.length === 0) {
    const slots = new Map(segments.distinct.map((name, at) => [name, segments.colors[at]!]));
    return (node) => slots.get(node.path[0] ?? node.name) ?? -1;
  }
  const slots =
    known !== null
      ? new Map(known.keys.map((name, at) => [name, known.colors[at]!]))
      : inOrder(namesBelow(treeOf(segments), path), ownAt(asked, path));
  return (node) => {
    const names = [...node.path, node.name];
    const isInside = path.every((name, at) => names[at] === name);
    return isInside ? (slots.get(names[path.length]!) ?? -1) : -1;
  };
}

/** Colors in order of appearance, as in Python; the asking segment, or the one that contains it, has the last. */
function inOrder(names: readonly string[], own: string | null): Map<string, number> {
  const colored = names.filter((name) => name !== own && !RESERVED.has(name)).slice(0, COLORS);
  const slots = new Map(colored.map((name, at) => [name, at]));
  return own === null ? slots : slots.set(own, COLORS);
}

/** Segments without an author, which have no color. */
const RESERVED = new Set(["first token", "template", "padding", "other"]);

/** The segment inside a path that is asking, or that contains the asking one. */
function ownAt(asked: readonly string[], path: readonly string[]): string | null {
  return path.every((name, at) => asked[at] === name) ? (asked[path.length] ?? null) : null;
}

function namesBelow(tree: readonly SegmentNode[], path: readonly string[]): string[] {
  return [
    ...new Set(
      nodesBelow(tree, path)
        .filter(({ isRest }) => !isRest)
        .map(({ name }) => name),
    ),
  ];
}

/** Return the pieces inside the last segment of a path. */
export function nodesBelow(tree: readonly SegmentNode[], path: readonly string[]): readonly SegmentNode[] {
  let nodes = tree;
  for (const part of path) nodes = nodes.filter(({ name }) => name === part).flatMap(({ children }) => children);
  return nodes;
}

/** Return the pieces of a text in order, divided below the given paths. */
export function piecesAlong(tree: readonly SegmentNode[], paths: Paths): SegmentNode[] {
  return tree.flatMap((node) =>
    isOn(paths, node) && node.children.length > 0 ? piecesAlong(node.children, paths) : [node],
  );
}

/** Segments (each by the names that lead to it) that are divided into those inside them. */
export type Paths = readonly (readonly string[])[];

/** Return whether a path leads through a piece. */
export const isOn = (paths: Paths, { path, name }: SegmentNode): boolean =>
  paths.some((one) => one[path.length] === name && path.every((part, at) => part === one[at]));

/** Return the piece that holds each position, in order; null for positions in none. */
export function piecesAt(pieces: readonly SegmentNode[], positions: readonly number[]): (SegmentNode | null)[] {
  let at = 0;
  return positions.map((position) => {
    while (at < pieces.length && pieces[at]!.stop <= position) at++;
    const piece = pieces[at];
    return piece !== undefined && piece.start <= position ? piece : null;
  });
}
