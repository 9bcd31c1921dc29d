/** Segments along an axis that is drawn: which pieces are told apart, which of their names have room, what lies around them. */

import type { Segments } from "./segment-data";

/** One contiguous piece of a segment, with what lies inside it. */
export interface SegmentNode {
  readonly name: string;
  readonly start: number;
  readonly stop: number;
  readonly level: number;
  /** The names that it lies in, the outermost first. */
  readonly path: readonly string[];
  /** It is what is left of the piece around it. */
  readonly isRest: boolean;
  readonly children: readonly SegmentNode[];
  /** Tokens of the shortest named piece inside; 0 where there is none. */
  readonly least: number;
}

/** An axis as it is drawn: pixels to a token, where the first would be, and how much is in view. */
export interface AxisView {
  readonly perToken: number;
  readonly offset: number;
  readonly size: number;
}

/** A piece that is at least partly in view, with where it is, in pixels; it may begin and end outside. */
export interface Placed {
  readonly node: SegmentNode;
  readonly from: number;
  readonly to: number;
}

/** What is to be told apart on an axis. */
export interface AxisPieces {
  /** Side by side, in order. */
  readonly pieces: readonly Placed[];
  /** Around these, for each further level. */
  readonly around: readonly Placed[];
}

const trees = new WeakMap<Segments, readonly SegmentNode[]>();

/** Return the outermost pieces, in order, with all that is inside them; what is left inside one is a piece too. */
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

/** The pieces inside another, and between them what is in none. */
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

/** Return where a piece is on an axis, from the corner of what is in view. */
export function placeOf(node: SegmentNode, { perToken, offset }: AxisView): Placed {
  return { node, from: node.start * perToken + offset, to: node.stop * perToken + offset };
}

/**
 * Return the pieces in view. One is told apart into those inside it where all of these are `apart` long, and where a
 * path leads through it, but at most `levels` deep.
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

/** The first of some pieces, side by side, that ends in view. */
function firstInView(nodes: readonly SegmentNode[], view: AxisView): number {
  let [low, high] = [0, nodes.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (placeOf(nodes[middle]!, view).to <= 0) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Return the part of a piece that is in view. */
export function clipped({ from, to }: Placed, { size }: AxisView): { from: number; to: number; middle: number } {
  const [start, stop] = [Math.max(0, from), Math.min(size, to)];
  return { from: start, to: stop, middle: (start + stop) / 2 };
}

/**
 * Return the pieces whose names have room: their middles are `apart` from one another, the longer pieces come first.
 * Some are named `always`; the others step back for them.
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
  const long = ({ from, to }: Placed) => Math.round(to - from); // a pan does not change which of equal ones has room
  const kept = new Set(first);
  const unnamed: { at: number; long: number }[] = []; // where one has no room, no much shorter one beside it is named
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

/** Return the piece at a place of an axis, in pixels; null where there is none. */
export function pieceUnder(pieces: readonly Placed[], at: number): SegmentNode | null {
  return pieces.find(({ from, to }) => at >= from && at < to)?.node ?? null;
}

/** Return whether two pieces are of one segment. */
export function isSame(a: SegmentNode | null, b: SegmentNode | null): boolean {
  return a !== null && b !== null && a.name === b.name && a.path.join("\n") === b.path.join("\n");
}

/** How many colors there are beside the gray of the asking segment. */
const COLORS = 7;

/** Return the color slot of each piece, as all views have it: below a path the segments there, all else gray. */
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

/** Colors in order of appearance as Python hands them out; what is asked about, or holds that, has the last one. */
function inOrder(names: readonly string[], own: string | null): Map<string, number> {
  const colored = names.filter((name) => name !== own && !RESERVED.has(name)).slice(0, COLORS);
  const slots = new Map(colored.map((name, at) => [name, at]));
  return own === null ? slots : slots.set(own, COLORS);
}

/** Without an author: they have no color. */
const RESERVED = new Set(["first token", "template", "padding", "other"]);

/** The segment inside a path that is asked about, or that the asking one lies in. */
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

/** Return the pieces of a text one after the other, those below paths told apart. */
export function piecesAlong(tree: readonly SegmentNode[], paths: Paths): SegmentNode[] {
  return tree.flatMap((node) =>
    isOn(paths, node) && node.children.length > 0 ? piecesAlong(node.children, paths) : [node],
  );
}

/** Segments, each by the names that lead to it, that are told apart into those inside them. */
export type Paths = readonly (readonly string[])[];

/** Return whether a path leads through a piece. */
export const isOn = (paths: Paths, { path, name }: SegmentNode): boolean =>
  paths.some((one) => one[path.length] === name && path.every((part, at) => part === one[at]));

/** Return the piece that each of some positions is in, in order; null where one is in none. */
export function piecesAt(pieces: readonly SegmentNode[], positions: readonly number[]): (SegmentNode | null)[] {
  let at = 0;
  return positions.map((position) => {
    while (at < pieces.length && pieces[at]!.stop <= position) at++;
    const piece = pieces[at];
    return piece !== undefined && piece.start <= position ? piece : null;
  });
}
