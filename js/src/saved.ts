/**
 * What a saved file knows in the place of a kernel: traits by what is selected, answers by what is asked, and numbers of
 * every head whose picture is exact. Python has computed all of it; nothing here computes attention.
 */
import type { HostOptions, HostRequest } from "./host";
import type { Envelope, LinksMessage, PictureMessage, Side, TraitName, Traits } from "./model";
import { rank } from "./rank";
import { lineOf } from "./source";
import { BLOCKED, decode, decodePicture, type Grid, NAN, type Picture } from "./wire";

/** A trait that follows from others: which ones, and its value for each selection of them that was saved. */
export interface Known {
  readonly by: readonly TraitName[];
  readonly values: Readonly<Record<string, unknown>>;
}

/** The strongest links of one head: (positions, count). */
interface HeadLinks {
  readonly partners: Envelope;
  readonly weights: Envelope;
}

export interface Saved {
  readonly state: Partial<Traits>;
  readonly derived: Readonly<Partial<Record<TraitName, Known>>>;
  /** By layer, sample, head and side. */
  readonly links: Readonly<Record<string, HeadLinks>>;
  /** By the request itself. */
  readonly replies: Readonly<Record<string, object>>;
}

/** Traits without which there is nothing to show: what is not saved of them cannot be selected. */
const NEEDED: readonly TraitName[] = ["facts", "picture"];
const MOST_GRIDS = 32;

/** The key under which Python has saved what belongs to these values. */
export const keyOf = (values: readonly unknown[]) => JSON.stringify(values);

/** A request as it was saved, without its name for itself; its fields in the order of the alphabet. */
export function nameOf({ id: _, ...body }: HostRequest): string {
  return JSON.stringify(Object.fromEntries(Object.entries(body).sort(([a], [b]) => (a < b ? -1 : 1))));
}

/** Answers and traits from a file. `refuse` is told of what was selected and is not in it. */
export function answersOf(saved: Saved, refuse: (reason: string) => void): Pick<HostOptions, "answer" | "take"> {
  let traits: Partial<Traits> = { ...saved.state };
  const grids = new Map<string, Promise<Picture>>();

  const find = (name: TraitName, of: Partial<Traits>) => {
    const known = saved.derived[name];
    return known?.values[keyOf(known.by.map((trait) => of[trait] ?? null))];
  };

  /** The numbers of a head, where all of them were saved. */
  async function pictureOf({ layer, batch, head, stage }: HostRequest): Promise<Picture> {
    for (const pool of ["max", "mean"] as const) {
      const message = find("picture", { layer, batch, head, stage, pool } as Partial<Traits>) as
        | PictureMessage
        | undefined;
      if (message === undefined) continue;
      const name = keyOf([layer, batch, head, stage]);
      if (grids.size > MOST_GRIDS) grids.clear();
      const decoded = grids.get(name) ?? decodePicture(message);
      grids.set(name, decoded);
      const picture = await decoded;
      if (picture.exact) return picture;
    }
    throw new Error(sentence("This number"));
  }

  async function answer(request: HostRequest): Promise<object> {
    const known = saved.replies[nameOf(request)];
    if (known !== undefined) return known;
    const { kind } = request;
    if (kind === "ping" || kind === "pass" || kind === "check" || kind === "retry") return {};
    if (kind === "row" || kind === "column") {
      const side: Side = kind === "row" ? "query" : "key";
      const line = lineOf(await pictureOf(request), { side, index: Number(request[side]) });
      if (line !== null) return numbers(line.values, line.kinds, [line.values.length]);
    }
    if (kind === "ranked") return ranked(await pictureOf(request), request);
    if (kind === "cells") return cells((await pictureOf(request)).grid as Grid, request);
    throw new Error(sentence("This"));
  }

  async function take(changes: Partial<Traits>): Promise<Partial<Traits>> {
    const next = fitted({ ...traits, ...changes }, (of) => find("facts", of) as Traits["facts"] | undefined);
    const heads = next.heads ?? [];
    const there = NEEDED.every((name) => find(name, next) !== undefined);
    if (!there || "what_if" in changes || heads.some((head) => find("picture", { ...next, head }) === undefined)) {
      refuse(sentence("What you chose"));
      return Object.fromEntries(Object.keys(changes).map((name) => [name, traits[name as TraitName]]));
    }
    traits = next;
    const names = Object.keys(saved.derived) as TraitName[];
    const followed = Object.fromEntries(names.map((name) => [name, find(name, next) ?? null]));
    const own = Object.fromEntries(SELECTED.map((name) => [name, next[name]]));
    return { ...own, ...followed, links: await linksOf(next, saved.links) };
  }

  return { answer, take };
}

const SELECTED = ["layer", "batch", "head", "query", "key", "heads", "pins"] as const;

/** A selection as Python makes it: `head` is one of `heads`, (`query`, `key`) the last pin, all of them there. */
function fitted(next: Partial<Traits>, factsOf: (of: Partial<Traits>) => Traits["facts"] | undefined): Partial<Traits> {
  const facts = factsOf(next);
  if (facts === undefined) return next;
  const inside = (place: number | null | undefined, length: number) => (place != null && place < length ? place : null);
  const head = (next.head ?? 0) < facts.heads ? (next.head ?? 0) : 0;
  const heads = (next.heads ?? []).filter((one) => one < facts.heads);
  const [query, key] = [inside(next.query, facts.queries), inside(next.key, facts.keys)];
  const last = next.pins?.at(-1) ?? [null, null];
  const together = last[0] === query && last[1] === key;
  const pins: Traits["pins"] = together ? (next.pins ?? []) : query === null && key === null ? [] : [[query, key]];
  return { ...next, head, heads: heads.includes(head) ? heads : [head], query, key, pins };
}

/** The links of the chosen heads, one after the other, as Python sends them. */
async function linksOf(of: Partial<Traits>, known: Saved["links"]): Promise<LinksMessage | null> {
  const { layer = 0, batch = 0, heads = [], direction: side = "query" } = of;
  const found = heads.map((head) => known[keyOf([layer, batch, head, side])]);
  const first = found[0];
  if (first === undefined || found.includes(undefined)) return null;
  const parts = found as HeadLinks[];
  const shape = [heads.length, ...first.partners.shape];
  const partners = await joined(parts.map((one) => one.partners));
  const weights = await joined(parts.map((one) => one.weights));
  return {
    ...{ layer, batch, heads: [...heads], side },
    partners: { data: partners, dtype: "uint32", shape, deflated: false },
    weights: { data: weights, dtype: "float32", shape, deflated: false },
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

/** Exact numbers as a reply carries them. */
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

/** Several rows, or columns, taken together and ranked, as `requests.py` does. */
function ranked(picture: Picture, request: HostRequest): object {
  const side: Side = request.queries === undefined ? "key" : "query";
  const places = (request.queries ?? request.keys) as number[];
  const lines = places.flatMap((index) => lineOf(picture, { side, index }) ?? []);
  const length = lines[0]?.values.length ?? 0;
  const values = new Float32Array(length);
  const kinds = new Uint8Array(length);
  for (let at = 0; at < length; at++) {
    const open = lines.filter((line) => line.kinds[at] !== BLOCKED);
    const sum = open.reduce((total, line) => total + line.values[at]!, 0);
    values[at] = request.over === "mean" ? sum / lines.length : sum;
    kinds[at] = open.length === 0 ? BLOCKED : open.some((line) => line.kinds[at] === NAN) ? NAN : 0;
  }
  const { top, values: strongest, maxEntropy, ...found } = rank(values, kinds, Number(request.count));
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

/** What a file cannot tell, and who can. */
const sentence = (what: string) => `${what} was not saved: open the notebook to compute it.`;
