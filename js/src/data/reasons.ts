/** Why a head looked there: contrasts of a row, its stacks, and the graph of heads. Pure functions. */

import type { Answers, ReadSide, StreamPart } from "../contract/requests";
import type { Against, Leading } from "./reason-words";

/** A row's terms: for each stacked part, and last for the rest, a number for each of `keys`. */
export interface RowParts extends Required<Omit<Answers["why_row"], "terms" | "apart" | "share">> {
  readonly terms: Float32Array;
  readonly apart: Float32Array;
}

/** A pair's terms: (query parts and the rest) × (key parts and the rest). */
export interface PairParts extends Required<Omit<Answers["why"], "terms" | "share" | "nothing">> {
  readonly terms: Float32Array;
}

export type HeadGraph = Required<Omit<Answers["why_heads"], "share">>;

/** Return the terms of each stacked part and the rest at each key, less those of what they are compared with. */
export function contrasts(row: RowParts, against: Against): number[][] {
  const n = row.keys.length;
  const other = typeof against === "number" ? row.keys.indexOf(against) : -1;
  return Array.from({ length: row.stacked + 1 }, (_, part) => {
    const own = (against === "others" ? row.apart : row.terms).subarray(part * n, (part + 1) * n);
    const zero = against === "mean" ? (row.means[part] ?? Number.NaN) : other >= 0 ? own[other]! : 0;
    return Array.from(own, (term) => term - zero);
  });
}

/** Return what is subtracted from the score of the key at a place; NaN if there is nothing to compare with. */
export function subtractedAt(row: RowParts, against: Against, place: number): number {
  if (typeof against === "number") return row.scores[row.keys.indexOf(against)] ?? 0;
  if (against === "none") return 0;
  return (against === "mean" ? row.mean : row.other_means[place]) ?? Number.NaN;
}

/**
 * Return the two largest parts of the key at a place, with what they add. An answer in a file may not have those of the
 * comparison with a key: then they are the largest of the stacked ones, and `ofAll` is false.
 */
export function leadingAt(row: RowParts, against: Against, place: number): { leading: Leading[]; ofAll: boolean } {
  const known = row.leading[`${against}`];
  if (known !== undefined) return { leading: known[place] ?? [], ofAll: true };
  const leading = contrasts(row, against)
    .slice(0, -1)
    .map((own, part): Leading => [part, own[place]!])
    .sort(([, a], [, b]) => Math.abs(b) - Math.abs(a))
    .slice(0, 2);
  return { leading, ofAll: row.more === 0 };
}

/** A piece of a stack: a part from one height to another. */
export interface Piece {
  readonly part: number;
  readonly from: number;
  readonly to: number;
}

/** Stack the parts of each key from zero: what is above 0 upward, what is below downward. NaN has no height. */
export function stacks(terms: readonly (readonly number[])[]): Piece[][] {
  const keys = terms[0]?.length ?? 0;
  return Array.from({ length: keys }, (_, key) => {
    const ends = [0, 0];
    return terms.map((own, part) => {
      const height = own[key]! || 0;
      const side = height < 0 ? 0 : 1;
      const from = ends[side]!;
      ends[side] = from + height;
      return { part, from, to: ends[side]! };
    });
  });
}

/** Return the lowest and the highest end of some stacks, with 0 between them. */
export function rangeOf(pieces: readonly (readonly Piece[])[]): readonly [low: number, high: number] {
  const ends = pieces.flat().map(({ to }) => to);
  return [Math.min(0, ...ends), Math.max(0, ...ends)];
}

/** Return the terms with at most so many parts of the key; the others are added to the rest. */
export function folded(pair: PairParts, most: number): PairParts {
  const all = pair.key_parts.length + 1;
  if (all <= most + 1) return pair;
  const terms = new Float32Array((pair.terms.length / all) * (most + 1));
  pair.terms.forEach((term, at) => {
    const [row, column] = [Math.floor(at / all), at % all];
    terms[row * (most + 1) + Math.min(column, most)]! += term;
  });
  const more: [number, number] = [pair.more[0], pair.more[1] + all - 1 - most];
  return { ...pair, key_parts: pair.key_parts.slice(0, most), more, terms };
}

/** An edge of the graph of heads. */
export interface GraphEdge {
  readonly from: StreamPart;
  readonly layer: number;
  readonly head: number;
  readonly side: ReadSide;
  readonly share: number;
  readonly score: number;
}

/** Return the edges with at least this share, the largest first. Biases are left out: they depend on no text. */
export function edgesOf(graph: HeadGraph, least: number, side: ReadSide | "all"): GraphEdge[] {
  return graph.from
    .map((part, at) => {
      const [layer, head] = graph.into[at]!;
      const of = { from: graph.parts[part]!, layer, head, side: graph.side[at]! };
      return { ...of, share: graph.shares[at]!, score: graph.scores[at]! };
    })
    .filter(
      (edge) => Math.abs(edge.share) >= least && (side === "all" || edge.side === side) && edge.from.kind !== "bias",
    )
    .sort((a, b) => Math.abs(b.share) - Math.abs(a.share));
}

const isInto = (edge: GraphEdge, layer: number, head: number) => edge.layer === layer && edge.head === head;

/** Return the edges of a head's tree: into it, into the heads that these come from, and so on. */
export function treeOf(edges: readonly GraphEdge[], layer: number, head: number): GraphEdge[] {
  const found = new Set<GraphEdge>();
  const waiting = [{ layer, head }];
  for (let next = waiting.pop(); next !== undefined; next = waiting.pop()) {
    for (const edge of edges) {
      if (!isInto(edge, next.layer, next.head) || found.has(edge)) continue;
      found.add(edge);
      if (edge.from.layer !== null && edge.from.head !== null) {
        waiting.push({ layer: edge.from.layer, head: edge.from.head });
      }
    }
  }
  return edges.filter((edge) => found.has(edge));
}

/** Return the edges into a head. */
export const edgesInto = (edges: readonly GraphEdge[], layer: number, head: number): GraphEdge[] =>
  edges.filter((edge) => isInto(edge, layer, head));
