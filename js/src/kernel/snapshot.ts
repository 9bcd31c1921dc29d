/**
 * A saved file in place of a kernel: traits by selection, answers by request, and numbers of every head with an exact
 * picture. Python has computed all of it; nothing here computes attention.
 */

import { BLOCKED, decode, decodePicture, type Grid, type Picture } from "../contract/decode";
import type { Envelope, HeadPlace, LinksMessage, PictureMessage } from "../contract/messages";
import { isBySize, linkedStage } from "../contract/stages";
import { type TraitName, type Traits, traitsThatAre } from "../contract/traits";
import type { Side, Stage } from "../contract/values";
import { combine, lineOf } from "../data/matrix";
import { rank } from "../data/rank";
import { headsInForce, pinsInForce } from "../data/selection";
import type { HostOptions, HostRequest } from "./host";

/** A derived trait: which traits it depends on, and its value for each saved selection. */
export interface DerivedValues {
  readonly by: readonly TraitName[];
  readonly values: Readonly<Record<string, unknown>>;
  /** One of `by`: its value is merged over the one for null, field by field. */
  readonly over?: TraitName;
}

/** For each bin of a picture, the greatest number and its place in the bin, row by row. */
interface Peaks {
  readonly values: Envelope;
  readonly places: Envelope;
}

/** The strongest links of one head: (positions, count). */
interface HeadLinks {
  readonly partners: Envelope;
  readonly weights: Envelope;
  /** (queries,) for the learned sink. */
  readonly sinks?: Envelope | null;
}

export interface Snapshot {
  readonly state: Partial<Traits>;
  readonly derived: Readonly<Partial<Record<TraitName, DerivedValues>>>;
  /** By layer, sample, head, side and stage. */
  readonly links: Readonly<Record<string, HeadLinks>>;
  /** By layer, sample, head and stage. */
  readonly peaks: Readonly<Record<string, Peaks>>;
  /** By the request itself. */
  readonly replies: Readonly<Record<string, object>>;
}

/** Traits needed to show anything: unsaved values cannot be selected. */
const NEEDED: readonly TraitName[] = ["facts", "picture"];
/** And this one in comparisons. */
const COMPARED: readonly TraitName[] = ["comparison"];
/** What a reader may set without Python: selection and look. */
const FREE = traitsThatAre("selection", "look");
const MOST_GRIDS = 32;

/** Return the key under which Python saved a value for these traits. */
export const keyOf = (values: readonly unknown[]) => JSON.stringify(values);

/** Return a request as it was saved: without its id, fields in alphabetical order. */
export function nameOf({ id: _, ...body }: HostRequest): string {
  return JSON.stringify(Object.fromEntries(Object.entries(body).sort(([a], [b]) => (a < b ? -1 : 1))));
}

/** Answer requests and selections from a file. `refuse` is called with selections that it does not hold. */
export function answersOf(saved: Snapshot, refuse: (reason: string) => void): Pick<HostOptions, "answer" | "take"> {
  let traits: Partial<Traits> = { ...saved.state };
  const grids = new Map<string, Promise<Picture>>();

  const free = new Set<string>([...FREE, ...Object.values(saved.derived).flatMap(({ by }) => by)]);
  const find = (name: TraitName, of: Partial<Traits>) => {
    const known = saved.derived[name];
    const ofWeights =
      (name === "mass" || name === "head_mass") && (of.view !== "segments" || of.segments_show === "effect");
    const own = name === "picture" || name === "comparison";
    const stage = own ? of.stage : ofWeights ? "weights" : linkedStage(of.stage ?? "weights");
    const place = known?.by.map((trait) => (trait === "stage" ? stage : of[trait]) ?? null);
    return known && valueAt(known, place!);
  };

  /** The picture of a head, if it was saved. */
  async function anyPictureOf({ layer, batch, head, stage }: HostRequest): Promise<Picture> {
    const of = { layer, batch, head, stage } as Partial<Traits>;
    const message = find("picture", { ...of, pool: "max" }) ?? find("picture", { ...of, pool: "mean" });
    if (message === undefined) throw new Error(sentence("This number"));
    const name = keyOf([layer, batch, head, stage]);
    if (grids.size > MOST_GRIDS) grids.clear();
    const decoded = grids.get(name) ?? decodePicture(message as PictureMessage);
    grids.set(name, decoded);
    return decoded;
  }

  /** The same if all its numbers were saved. */
  async function pictureOf(request: HostRequest): Promise<Picture> {
    const picture = await anyPictureOf(request);
    if (!picture.exact) throw new Error(sentence("This number"));
    return picture;
  }

  async function answer(request: HostRequest): Promise<object> {
    const known = saved.replies[nameOf(request)];
    if (known !== undefined) return known;
    const { kind } = request;
    if (kind === "ping" || kind === "pass" || kind === "check" || kind === "retry") return {};
    if (kind === "row" || kind === "column") {
      const side: Side = kind === "row" ? "query" : "key";
      const line = lineOf(await pictureOf(request), { side, index: Number(request[side]) });
      if (line !== null) return { ...numbers(line.values, line.kinds, [line.values.length]), sink: line.sink ?? null };
    }
    if (kind === "ranked") return ranked(await pictureOf(request), request);
    if (kind === "peak") {
      const known = saved.peaks[keyOf([request.layer, request.batch, request.head, request.stage])];
      if (known !== undefined) return peak(await anyPictureOf(request), known, request);
    }
    if (kind === "cells") return cells((await pictureOf(request)).grid as Grid, request);
    throw new Error(sentence("This"));
  }

  async function take(changes: Partial<Traits>): Promise<Partial<Traits>> {
    const asked = { ...traits, ...changes };
    if ("against" in changes && !("against_at" in changes)) {
      asked.against_at = (find("against_at", asked) ?? null) as HeadPlace | null; // each side keeps its own place
    }
    let next = fitted(asked, (of) => find("facts", of) as Traits["facts"] | undefined);
    const heads = next.heads ?? [];
    const bySegment = next.view === "segments" && find("mass", traits) !== undefined && "stage" in changes;
    const asks = bySegment || "asking" in changes || "segment_path" in changes;
    const needed: readonly TraitName[] = [
      ...NEEDED,
      ...(next.view === "compare" ? COMPARED : []),
      ...(asks ? (["mass"] as const) : []),
    ];
    const there = needed.every((name) => find(name, next) !== undefined);
    const known = Object.keys(changes).every((name) => free.has(name));
    if (!there || !known || heads.some((head) => find("picture", { ...next, head }) === undefined)) {
      refuse(sentence("What you chose"));
      return Object.fromEntries(Object.keys(changes).map((name) => [name, traits[name as TraitName]]));
    }
    const outer = outermost(next);
    if (find("mass", next) === undefined && find("mass", outer) !== undefined) {
      refuse(sentence(`Of this head only the outermost segments are in the file. What lies inside ${insideOf(next)}`));
      next = outer;
    }
    traits = next;
    const names = Object.keys(saved.derived) as TraitName[];
    const followed = Object.fromEntries(names.map((name) => [name, find(name, next) ?? null]));
    const own = Object.fromEntries(SELECTED.map((name) => [name, next[name]]));
    const place = { asking: next.asking, segment_path: next.segment_path };
    return { ...own, ...(outer === next ? place : {}), ...followed, links: await linksOf(next, saved.links) };
  }

  return { answer, take };
}

/** Return the saved value of a trait; a merged one is the same object each time. */
function valueAt({ by, values, over }: DerivedValues, place: readonly unknown[]): unknown {
  const key = keyOf(place);
  const rest = over && values[keyOf(place.map((value, at) => (by[at] === over ? null : value)))];
  const own = values[key];
  if (rest === undefined || rest === own) return own;
  if (own === undefined) return rest;
  const known = wholes.get(own as object) ?? { ...(rest as object), ...(own as object) };
  wholes.set(own as object, known);
  return known;
}

const wholes = new WeakMap<object, object>();

const SELECTED = traitsThatAre("selection");

/** The same for the outermost segments, which every saved head has. */
function outermost(of: Partial<Traits>): Partial<Traits> {
  return { ...of, asking: null, segment_path: [], segment: of.segment_path?.[0] ?? of.segment ?? null };
}

/** The path of a place in words: the opened segments, or the asking one. */
function insideOf({ segment_path: path = [], asking }: Partial<Traits>): string {
  const last = path?.at(-1) ?? (Array.isArray(asking) ? asking.at(-1) : asking);
  return String(last ?? "them");
}

/** A selection as Python normalizes it: `head` in `heads`, (`query`, `key`) the last pin, all within range. */
function fitted(next: Partial<Traits>, factsOf: (of: Partial<Traits>) => Traits["facts"] | undefined): Partial<Traits> {
  const facts = factsOf(next);
  if (facts === undefined) return next;
  const inside = (place: number | null | undefined, length: number) => (place != null && place < length ? place : null);
  const head = (next.head ?? 0) < facts.heads ? (next.head ?? 0) : 0;
  const heads = (next.heads ?? []).filter((one) => one < facts.heads);
  const [query, key] = [inside(next.query, facts.queries), inside(next.key, facts.keys)];
  const pins = [...pinsInForce(query, key, next.pins ?? [])];
  return { ...next, head, heads: [...headsInForce(head, heads)], query, key, pins };
}

/** The links of the chosen heads, concatenated as Python sends them. */
async function linksOf(of: Partial<Traits>, known: Snapshot["links"]): Promise<LinksMessage | null> {
  const { layer = 0, batch = 0, heads = [], direction: side = "query" } = of;
  const stage = linkedStage(of.stage ?? "weights");
  const found = heads.map((head) => known[keyOf([layer, batch, head, side, stage])]);
  const first = found[0];
  if (first === undefined || found.includes(undefined)) return null;
  const parts = found as HeadLinks[];
  const shape = [heads.length, ...first.partners.shape];
  const partners = await joined(parts.map((one) => one.partners));
  const weights = await joined(parts.map((one) => one.weights));
  const columns = parts.flatMap((one) => one.sinks ?? []);
  const sinks = { data: await joined(columns), dtype: "float32", deflated: false } as const;
  return {
    ...{ layer, batch, heads: [...heads], side, stage },
    partners: { data: partners, dtype: "uint32", shape, deflated: false },
    weights: { data: weights, dtype: "float32", shape, deflated: false },
    sinks: columns[0] === undefined ? null : { ...sinks, shape: [heads.length, ...columns[0].shape] },
  };
}

async function joined(parts: readonly Envelope[]): Promise<DataView> {
  const arrays = await Promise.all(parts.map((part) => decode(part)));
  const whole = new Uint8Array(arrays.reduce((sum, array) => sum + array.byteLength, 0));
  let at = 0;
  for (const array of arrays) {
    whole.set(new Uint8Array(array.buffer, array.byteOffset, array.byteLength), at);
    at += array.byteLength;
  }
  return new DataView(whole.buffer);
}

/** Exact numbers in the form of a reply. */
function numbers(values: Float32Array, kinds: Uint8Array, shape: number[]): object {
  const own = values.slice();
  const packed = new Uint8Array(Math.ceil(kinds.length / 8));
  kinds.forEach((kind, at) => {
    if (kind === BLOCKED) packed[at >> 3]! |= 0x80 >> (at & 7);
  });
  const blocked = kinds.includes(BLOCKED) ? { data: viewOf(packed), dtype: "bits", shape, deflated: false } : null;
  return { values: { data: viewOf(own), dtype: "float32", shape, deflated: false }, blocked };
}

const viewOf = ({ buffer, byteOffset, byteLength }: ArrayBufferView) => new DataView(buffer, byteOffset, byteLength);

function cells(grid: Grid, request: HostRequest): object {
  const [[top, bottom], [left, right]] = [request.queries, request.keys] as [[number, number], [number, number]];
  const shape = [bottom - top, right - left] as const;
  const values = new Float32Array(shape[0] * shape[1]);
  const kinds = new Uint8Array(values.length);
  for (let row = 0; row < shape[0]; row++) {
    const from = (top + row) * grid.columns + left;
    values.set(grid.values.subarray(from, from + shape[1]), row * shape[1]);
    kinds.set(grid.kinds.subarray(from, from + shape[1]), row * shape[1]);
  }
  return numbers(values, kinds, [...shape]);
}

/** The greatest number of some bins, with its place: in a whole bin of the picture, or several. */
async function peak(picture: Picture, known: Peaks, request: HostRequest): Promise<object> {
  const { grid, queryBin, keyBin, queries, keys } = picture;
  const [[top, bottom], [left, right]] = [request.queries, request.keys] as [[number, number], [number, number]];
  const whole = (start: number, stop: number, bin: number, total: number) =>
    start % bin === 0 && (stop % bin === 0 || stop === total);
  if (grid === null || !whole(top, bottom, queryBin, queries) || !whole(left, right, keyBin, keys)) {
    throw new Error(sentence("This number"));
  }
  const [values, places] = await Promise.all([decode(known.values), decode(known.places)]);
  let best = -1;
  for (let row = top / queryBin; row < bottom / queryBin; row++) {
    for (let column = left / keyBin; column < right / keyBin; column++) {
      const at = row * grid.columns + column;
      if (grid.kinds[at] === BLOCKED) continue;
      if (best < 0 || !(values[at]! <= values[best]!)) best = at; // NaN counts as greatest, as in pooling
    }
  }
  if (best < 0) return { value: null, query: null, key: null };
  const [row, column] = [Math.floor(best / grid.columns), best % grid.columns];
  const [value, place] = [values[best]!, places[best]!];
  const wide = Math.min(keyBin, keys - column * keyBin);
  return {
    value: Number.isFinite(value) ? value : String(value),
    query: row * queryBin + Math.floor(place / wide),
    key: column * keyBin + (place % wide),
  };
}

const NOTHING = { values: new Float32Array(0), kinds: new Uint8Array(0), sink: null };

/** Several rows or columns combined and ranked, as in `_messages/answers/of_cells.py`. */
function ranked(picture: Picture, request: HostRequest): object {
  const side: Side = request.queries === undefined ? "key" : "query";
  const places = (request.queries ?? request.keys) as number[];
  const lines = places.flatMap((index) => lineOf(picture, { side, index }) ?? []);
  const { values, kinds, sink } = combine(lines, request.over === "mean" ? "mean" : "sum") ?? NOTHING;
  const {
    top,
    values: strongest,
    maxEntropy,
    ...found
  } = rank(values, kinds, Number(request.count), sink, isBySize(request.stage as Stage));
  const whole = (data: ArrayBufferView, dtype: string) => ({
    ...{ data: viewOf(data), dtype, shape: [top.length], deflated: false },
  });
  return {
    ...found,
    max_entropy: maxEntropy,
    positions: whole(Uint32Array.from(top), "uint32"),
    values: whole(Float32Array.from(strongest), "float32"),
  };
}

/** The message about something that the file does not hold. */
const sentence = (what: string) => `${what} was not saved: open the notebook to compute it.`;
