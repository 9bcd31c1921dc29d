/**
 * The state of a running text or image as signals: its passages, their lines, and the weights of the pin.
 */

import { batch, computed, effect, type ReadonlySignal, type Signal, signal } from "@preact/signals-core";
import { decodeGrid, NUMBER, type Picture } from "../../contract/decode";
import { isSigned } from "../../contract/stages";
import type { Side, Stage } from "../../contract/values";
import { lineOf, type Target } from "../../data/matrix";
import { piecesAlong, piecesAt } from "../../data/segment-axis";
import { type ColorMapper, makeColorMapper } from "../../draw/color-mapper";
import { cellAt, frameOf, type Patches, patchesOf } from "../../geometry/patches";
import type { Span } from "../../geometry/viewport";
import { textMeasure } from "../../state/plot";
import { isRankingOf, latestAnswer, receivedSource, stableComputed } from "../../state/queries";
import { axisSegments } from "../../state/segment-axes";
import { PAGE } from "../../state/token-pages";
import type { Ui } from "../../state/ui";
import type { Labels } from "../../text/labels";
import { breakLines, type Line, type Placed, placed } from "../../text/lines";
import { shorten } from "../../text/tokens";
import { decodeImage } from "./picture-size";

/** Weights below this share of the maximum are not colored. */
export const LEAST_SHARE = 0.05;
/** Longer texts are shown by pages. */
const MOST_WHOLE = 16_384;
export const FONT = 15;
/** A pin makes a word wider: its line keeps so much room. */
export const SLACK = 24;

/** One text with its image: of the queries, of the keys, or of both if they are the same. */
export interface Passage {
  readonly sides: readonly Side[];
  readonly labels: Labels;
  readonly length: number;
  readonly patches: Patches | null;
  /** Left, top, right and bottom of each position on the image, as shares of its size; null if it has none. */
  readonly boxes: readonly (readonly number[])[] | null;
}

/** A passage in lines. */
export interface Flow {
  readonly passage: Passage;
  /** Pages of tokens; 1 if all are shown. */
  readonly pages: number;
  readonly page: Signal<number>;
  readonly tokens: ReadonlySignal<readonly Placed[]>;
  readonly lines: ReadonlySignal<readonly Line[]>;
  /** The index of each position among the tokens. */
  readonly places: ReadonlySignal<ReadonlyMap<number, number>>;
  readonly scroll: Signal<number>;
  /** The segments of the text; null if there are none. */
  readonly segments: ReadonlySignal<TextSegments | null>;
  /** Tokens left out as special, and those that are patches. */
  readonly left: ReadonlySignal<number>;
}

/** The segments of a text: each begins a line. */
export interface TextSegments {
  /** The color slot and name of each token's segment, by token index. */
  readonly slots: readonly number[];
  readonly names: readonly string[];
  /** The indices where another segment begins. */
  readonly begins: ReadonlySet<number>;
  /** The names of segments that begin with a token, by its position. */
  readonly starts: ReadonlyMap<number, string>;
}

/** Segments without an author, whose names would interrupt all others. */
const UNNAMED = new Set(["first token", "template", "padding"]);
/** The width of the stripe in segment colors left of the lines. */
export const STRIPE = 10;
export const NAME_FONT = 11;
const AFTER_NAME = 8;

/** Numbers of some positions, from `start` on. */
export interface Weights {
  readonly of: Target;
  readonly stage: Stage;
  readonly start: number;
  readonly values: Float32Array;
  readonly kinds: Uint8Array;
}

/** Stands for all queries: their mean, which is what each key receives. */
export const RECEIVED: Target = { side: "query", index: -1 };

export interface TextModel {
  readonly flows: ReadonlySignal<readonly Flow[]>;
  /** null if unknown, or without a pin or pointer. */
  readonly weights: ReadonlySignal<Weights | null>;
  readonly mapper: ReadonlySignal<ColorMapper | null>;
  readonly room: ReadonlySignal<number>;
  readonly image: ReadonlySignal<ImageBitmap | null>;
  /** The frame of a video on display. */
  readonly frame: Signal<number>;
  widthOf(token: Placed): number;
}

/** Return passages of text and patches, pages of long ones, and their weights, as signals. */
export function textModel(ui: Ui, withImage: boolean): TextModel {
  const { store, stop } = ui;
  const measure = textMeasure(ui);
  const hasSegments = computed(() => axisSegments(store, "query") !== null || axisSegments(store, "key") !== null);
  const room = computed(() => roomOf(ui) - (hasSegments.value ? STRIPE * ui.unit.value : 0));
  const passages = computed(() => passagesOf(ui));
  const nameWidth = (name: string | undefined) =>
    name === undefined ? 0 : measure.value(name, NAME_FONT, 500) + AFTER_NAME * ui.unit.value;
  const startsOf = (token: Placed) =>
    flows.value
      .find(({ tokens, places }) => tokens.value[places.value.get(token.position) ?? -1] === token)
      ?.segments.value?.starts.get(token.position);
  const widthOf = (token: Placed) => measure.value(token.text, FONT) + nameWidth(startsOf(token));

  function flowOf(passage: Passage): Flow {
    const positions = computed(() => {
      const { patches, length } = passage;
      const outside: number[] = [];
      for (let at = 0; at < length; at++) {
        if (patches === null || at < patches.start || at >= patches.start + patches.many) outside.push(at);
      }
      return outside;
    });
    const many = positions.peek().length;
    const pages = many > MOST_WHOLE ? Math.ceil(many / PAGE) : 1;
    const page = signal(0);
    const shown = computed(() =>
      pages === 1 ? positions.value : positions.value.slice(page.value * PAGE, (page.value + 1) * PAGE),
    );
    const unbroken = computed(() => {
      const most = room.value;
      const all = placed(passage.labels, shown.value, withImage);
      const some = all.length > 0 ? all : placed(passage.labels, shown.value, true); // a text of special tokens alone
      return some.map((token) =>
        token.text.length < 24
          ? token
          : { ...token, text: shorten(token.text, most, (text) => measure.value(text, FONT)) },
      );
    });
    const segments = computed(() => segmentsOf(ui, passage, unbroken.value));
    const tokens = computed(() => {
      const begins = segments.value?.begins;
      if (begins === undefined) return unbroken.value;
      return unbroken.value.map((token, at) => (begins.has(at + 1) ? { ...token, breaks: true } : token));
    });
    const wide = (token: Placed) =>
      measure.value(token.text, FONT) + nameWidth(segments.value?.starts.get(token.position));
    const lines = computed(() => breakLines(tokens.value, room.value, wide, measure.value(" ", FONT)));
    return {
      passage,
      pages,
      page,
      tokens,
      lines,
      places: computed(() => new Map(tokens.value.map(({ position }, at) => [position, at]))),
      scroll: signal(0),
      segments,
      left: computed(() => shown.value.length - tokens.value.length),
    };
  }

  const flows = computed(() => passages.value.map(flowOf));
  const frame = signal(0);
  const ends = [
    // A page follows the pin, on either side.
    effect(() => {
      const [query, key] = [store.query.value, store.key.value];
      for (const flow of flows.value) {
        if (flow.pages === 1) continue;
        const own = ui.target.peek()?.side === "query" ? [key, query] : [query, key];
        const pinned = own.find((index, at) => index !== null && flow.passage.sides.includes(sideAt(ui, at)));
        if (pinned != null) flow.page.value = Math.floor(pinned / PAGE);
      }
    }),
    keepAcross(ui, passages),
    followFrame(ui, passages, frame),
  ];
  stop.addEventListener("abort", () => {
    for (const end of ends) end();
  });

  const span = stableComputed<Span>(() => {
    const target = ui.target.value;
    const flow =
      target === null ? undefined : flows.value.find(({ passage }) => passage.sides.includes(otherSide(target.side)));
    if (flow === undefined) return null;
    if (flow.pages === 1) return { start: 0, stop: flow.passage.length };
    return { start: flow.page.value * PAGE, stop: Math.min(flow.passage.length, (flow.page.value + 1) * PAGE) };
  });
  const ofPin = weightsSource(ui, span);
  const nothing = computed(() => ui.target.value === null);
  const received = receivedSource(store, ui.kernel, nothing, stop);
  const weights = computed<Weights | null>(() => {
    const found = nothing.value ? received.value : null;
    return found === null ? ofPin.value : { ...found, of: RECEIVED, stage: "weights", start: 0 };
  });
  const mapper = computed(() => {
    const known = weights.value;
    const picture = store.picture.value;
    if (known === null || picture === null || picture.grid === null) return null;
    const flow = flows.value.find(({ passage }) => passage.sides.includes(otherSide(known.of.side)));
    const signed = isSigned(known.stage);
    const high = flow === undefined ? 0 : greatest(ui, flow, known);
    const range = store.color_range.value;
    const own = { ...picture, low: signed ? -high : 0, high };
    return makeColorMapper(own, picture.grid, signed, store.color_scale.value, range === "row" ? "head" : range);
  });
  return { flows, weights, mapper, room, image: decodeImage(store.image, stop), frame, widthOf };
}

export const otherSide = (side: Side): Side => (side === "query" ? "key" : "query");

/**
 * Return each token's segment and where segments begin; in a text shared by both sides, those of its keys.
 */
function segmentsOf({ store }: Ui, { sides }: Passage, tokens: readonly Placed[]): TextSegments | null {
  const axis = axisSegments(store, sides.at(-1)!);
  if (axis === null) return null;
  const pieces = piecesAt(
    piecesAlong(axis.tree, axis.open),
    tokens.map(({ position }) => position),
  );
  const begins = new Set<number>();
  const starts = new Map<number, string>();
  pieces.forEach((piece, at) => {
    if (at > 0 && piece === pieces[at - 1]) return;
    if (at > 0) begins.add(at);
    if (piece !== null && !UNNAMED.has(piece.name)) starts.set(tokens[at]!.position, piece.name);
  });
  const slots = pieces.map((piece) => (piece === null ? -1 : axis.slot(piece)));
  return { slots, names: pieces.map((piece) => piece?.name ?? ""), begins, starts };
}

/** The side named first or second after the pin: the other side comes first. */
const sideAt = (ui: Ui, at: number): Side => {
  const own = ui.target.peek()?.side ?? "query";
  return at === 0 ? otherSide(own) : own;
};

/** The width of the text. */
function roomOf({ width, mode, unit }: Ui): number {
  const whole = width.value;
  const besides = mode.value === "wide" ? 340 + 36 : mode.value === "beside" ? 260 + 36 : 0;
  return Math.max(80, Math.min(whole - besides * unit.value, 720 * unit.value) - SLACK * unit.value);
}

/** Queries and keys; once if they are the same tokens. */
function passagesOf({ store }: Ui): Passage[] {
  const { queries, keys } = store.facts.value;
  const [own, others] = [store.queryLabels.value, store.keyLabels.value];
  const grid = store.grid.value ?? null;
  const [query, key] = (["query", "key"] as const).map((side) =>
    patchesOf(grid, side, side === "query" ? queries : keys, store.batch.value),
  );
  const boxes = store.boxes.value ?? null;
  const passage = (sides: readonly Side[], labels: Labels, length: number, patches: Patches | null) => ({
    sides,
    labels,
    length,
    patches,
    boxes: boxes !== null && sides.every((side) => boxes[side]) && boxes.places.length === length ? boxes.places : null,
  });
  if (queries === keys && query?.start === key?.start && sameText(own, others)) {
    return [passage(["query", "key"], own, queries, query ?? null)];
  }
  return [passage(["query"], own, queries, query ?? null), passage(["key"], others, keys, key ?? null)];
}

/** Whether both sides have the same tokens, judging by the first ones. */
function sameText(own: Labels, others: Labels): boolean {
  for (let at = 0; at < Math.min(own.length, PAGE); at++) if (own.raw(at) !== others.raw(at)) return false;
  return true;
}

/** The frame of a video follows the pinned patch. */
function followFrame({ store }: Ui, passages: ReadonlySignal<readonly Passage[]>, frame: Signal<number>): () => void {
  return effect(() => {
    const pins = { query: store.query.value, key: store.key.value };
    for (const { sides, patches } of passages.value) {
      const pinned = sides.map((side) => pins[side]).find((position) => position !== null);
      const cell = patches === null || pinned === undefined ? null : cellAt(patches, pinned);
      if (patches !== null && cell !== null) frame.value = frameOf(patches, cell);
    }
  });
}

/** Another reading direction takes the pin along, if both sides are one text. */
function keepAcross({ store }: Ui, passages: ReadonlySignal<readonly Passage[]>): () => void {
  let last = store.direction.peek();
  return effect(() => {
    const now = store.direction.value;
    if (now === last) return;
    last = now;
    const [query, key] = [store.query.peek(), store.key.peek()];
    if (passages.peek().length > 1 || (query === null) === (key === null)) return;
    const moved = now === "query" ? { query: key ?? query, key: null } : { query: null, key: query ?? key };
    queueMicrotask(() => batch(() => store.select(moved)));
  });
}

interface Question {
  readonly picture: Picture;
  readonly target: Target;
  readonly span: Span;
}

/** The numbers of one row or column, or of a page of it. */
function weightsSource(ui: Ui, span: ReadonlySignal<Span | null>): ReadonlySignal<Weights | null> {
  const { store, kernel, stop } = ui;
  let last: Question | null = null;
  const question = computed(() => {
    const [picture, target, part] = [store.picture.value, ui.target.value, span.value];
    if (picture === null || target === null || part === null) last = null;
    else if (last?.picture.of !== picture.of || last.target !== target || last.span !== part) {
      last = { picture, target, span: part };
    }
    return last;
  });
  const answer = latestAnswer<Question, Weights>(
    question,
    ({ picture, target }) => (picture.exact ? fromPicture(picture, target) : null),
    async ({ picture, target, span: { start, stop: end } }, signal) => {
      const { layer, batch, head, stage } = picture.of;
      const address = { layer, batch, head, stage };
      const byQuery = target.side === "query";
      const one = [target.index, target.index + 1];
      const total = byQuery ? picture.keys : picture.queries;
      const reply =
        end - start < total
          ? await kernel.request(
              "cells",
              {
                ...address,
                ...(byQuery ? { queries: one, keys: [start, end] } : { queries: [start, end], keys: one }),
              },
              { signal },
            )
          : byQuery
            ? await kernel.request("row", { ...address, query: target.index }, { signal })
            : await kernel.request("column", { ...address, key: target.index }, { signal });
      const { values, kinds } = await decodeGrid(reply.values, reply.blocked, reply.buffers);
      return { of: target, stage, start, values, kinds };
    },
    stop,
    { outlives: true },
  );
  return computed(() => {
    const now = question.value;
    const known = answer.value;
    if (now === null) return null;
    if (known !== null && known.of === now.target) return known;
    return fromPicture(now.picture, now.target) ?? known;
  });
}

/** The picture's own numbers, if each of its cells is one of the matrix: exact, or as colored. */
function fromPicture(picture: Picture, target: Target): Weights | null {
  if (picture.queryBin * picture.keyBin > 1 || picture.sampled !== null) return null;
  const line = lineOf(picture, target);
  return line && { ...line, start: 0 };
}

/** The maximum of the shown numbers, without special tokens. */
function greatest(ui: Ui, flow: Flow, { start, values, kinds, of }: Weights): number {
  let most = 0;
  const see = (position: number) => {
    const at = position - start;
    if (kinds[at] === NUMBER) most = Math.max(most, Math.abs(values[at] as number));
  };
  for (const token of flow.tokens.value) if (!token.special) see(token.position);
  const { patches, labels } = flow.passage;
  if (patches !== null) for (let at = 0; at < patches.many; at++) see(patches.start + at);
  const ranked = flow.pages > 1 ? ui.ranked.value : null;
  if (ranked !== null && "ranking" in ranked && isRankingOf(ranked, ui.store.picture.value, of)) {
    const { top, values: strongest } = ranked.ranking;
    const first = top.findIndex((position) => !labels.at(position).special);
    if (first >= 0) most = Math.max(most, Math.abs(strongest[first] as number));
  }
  if (most > 0) return most;
  for (const token of flow.tokens.value) see(token.position); // special tokens alone
  return most;
}
