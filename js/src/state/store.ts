/** The widget's state as signals. Traits come in here and nowhere else; `select` and `show` are the only writers back. */

import { batch, computed, effect, type ReadonlySignal, type Signal, signal } from "@preact/signals-core";
import {
  decodeGrid,
  decodeLinks,
  decodePicture,
  decodeThumbnails,
  decodeTokens,
  type Grid,
  type Links,
  type Picture,
  type Thumbnails,
} from "../contract/decode";
import type { BandMessage, Bytes, Envelope, Facts, TilesMessage, TokensMessage, WhatIf } from "../contract/messages";
import { type Model, TRAIT_NAMES, type TraitName, type Traits, type TraitsThatAre } from "../contract/traits";
import type { HeadName, Pin, Side, Stage } from "../contract/values";
import { type Changes, type Comparison, decodeChanges, decodeComparison } from "../data/comparison";
import { decodePair, decodeStages, type Pair, type Stages } from "../data/stage-data";
import { decodeSurvey, type Survey } from "../data/survey";
import type { Kernel } from "../kernel/kernel";
import { type Labels, labels, withPatches } from "../text/labels";
import type { TokenStyle } from "../text/tokens";
import { createTileCache, type TileCache, tilesOf } from "./tile-cache";
import { pagedLabels } from "./token-pages";

export type Selection = Pick<Traits, TraitsThatAre<"selection">>;
/** What is drawn, and how. */
export type Looks = Pick<Traits, TraitsThatAre<"look" | "numbers">>;

/** The traits that take time to decode; all others are mirrored as they are. */
const ENCODED = [
  "picture",
  "thumbnails",
  "links",
  "survey",
  "tokens",
  "key_tokens",
  "stages",
  "pair",
  "comparison",
  "changes",
] as const satisfies readonly TraitName[];
type Encoded = (typeof ENCODED)[number];
type Plain = Exclude<TraitName, Encoded>;
const PLAIN = TRAIT_NAMES.filter((name): name is Plain => !(ENCODED as readonly TraitName[]).includes(name));

export interface Store extends Readonly<{ [K in Plain]: ReadonlySignal<Traits[K]> }> {
  /** The last picture that could be drawn; another head's while the selected one is computed. */
  readonly picture: ReadonlySignal<Picture | null>;
  /** Finer parts of pictures, of all that was looked at. */
  readonly tiles: TileCache;
  /** Python's sentence, where the selected head could not be computed. */
  readonly problem: ReadonlySignal<string | null>;
  readonly thumbnails: ReadonlySignal<Thumbnails | null>;
  readonly links: ReadonlySignal<Links | null>;
  /** All heads of all layers; null in other views. */
  readonly survey: ReadonlySignal<Survey | null>;
  /** All stages of the selected head, and the pinned pair's way through them; null in other views. */
  readonly stages: ReadonlySignal<Stages | null>;
  readonly pair: ReadonlySignal<Pair | null>;
  /** A, B and their difference, and what changes for what is pinned; null in other views. */
  readonly comparison: ReadonlySignal<Comparison | null>;
  readonly changes: ReadonlySignal<Changes | null>;
  readonly queryLabels: ReadonlySignal<Labels>;
  readonly keyLabels: ReadonlySignal<Labels>;
  /** Why Python put back what was last set here. */
  readonly refused: ReadonlySignal<string | null>;
  /** The heads and pins in force. `head` is one of `heads` and (`query`, `key`) the last of `pins`: where only those were
   *  set, here or by a linked widget, the lists follow, as Python makes them do. */
  readonly shownHeads: ReadonlySignal<readonly number[]>;
  readonly shownPins: ReadonlySignal<readonly Pin[]>;
  /** What the picture is to be of: the selected head, or several as one. */
  readonly pictured: ReadonlySignal<HeadName>;
  /** What the graph draws: the chosen heads, or all of them as one. */
  readonly drawnHeads: ReadonlySignal<readonly HeadName[]>;
  select(change: Partial<Selection>): void;
  /** One more pin, or, where it is one already, one less. */
  addPin(query: number | null, key: number | null): void;
  /** One more head beside the others, or one less; the last stays. */
  toggleHead(head: number): void;
  show(change: Partial<Looks>): void;
  /** Other rules, many a second: not as a trait, which Jupyter sends only when the kernel has come to rest after the one before. */
  attempt(rules: WhatIf): void;
}

/** What a picture is of: it is stale while this differs from what is selected. */
export function isOf(
  picture: Picture,
  wanted: { layer: number; batch: number; head: HeadName; stage: Stage; pool: string },
) {
  const { of } = picture;
  return (
    of.layer === wanted.layer &&
    of.batch === wanted.batch &&
    of.head === wanted.head &&
    of.stage === wanted.stage &&
    of.pool === wanted.pool
  );
}

interface Custom extends TilesMessage {
  refused: unknown;
  band: BandMessage;
}

const MOST_RANGES = 1024;
/** Two ways to the same number differ by so much of a range. */
const ROUNDING = 1e-5;

/** The same cells with some of their rows replaced, in place; null if they do not fit. */
function withRows(grid: Grid, rows: Grid, start: number, stop: number): Grid | null {
  const fits = Number.isInteger(start) && start >= 0 && stop <= grid.rows && stop - start === rows.rows;
  if (!fits || rows.columns !== grid.columns) return null;
  grid.values.set(rows.values, start * grid.columns);
  grid.kinds.set(rows.kinds, start * grid.columns);
  return { ...grid };
}

export function createStore(model: Model, kernel: Kernel, stop: AbortSignal): Store {
  const ends: (() => void)[] = [];
  const listen = (event: string, heard: (...values: never[]) => void) => {
    model.on(event as never, heard as never);
    ends.push(() => model.off(event as never, heard as never));
  };

  const traits = {} as { [K in Plain]: Signal<Traits[K]> };
  for (const name of PLAIN) mirror(name);
  function mirror<K extends Plain>(name: K) {
    const value = signal(model.get(name));
    (traits as Record<Plain, unknown>)[name] = value;
    listen(`change:${name}`, () => {
      value.value = model.get(name);
    });
  }

  /** A trait that takes time to decode: the newest wins, and one that cannot be decoded is said, not thrown. */
  function decoded<K extends Encoded, T>(name: K, decode: (message: NonNullable<Traits[K]>) => Promise<T>) {
    const value = signal<T | null>(null);
    let newest = 0;
    const read = async () => {
      const mine = ++newest;
      const message = model.get(name);
      try {
        const next = message == null ? null : await decode(message as NonNullable<Traits[K]>);
        if (mine === newest) value.value = next;
      } catch (error) {
        if (mine === newest) refused.value = `${name} could not be read: ${(error as Error).message}`;
      }
    };
    listen(`change:${name}`, read);
    void read();
    return value;
  }

  const refused = signal<string | null>(null);
  let pictureRead: Promise<unknown> = Promise.resolve();
  const arrived = decoded("picture", (message) => {
    const reading = decodePicture(message);
    pictureRead = reading.catch(() => {});
    return reading;
  });
  listen("change:picture", () => kernel.heard());
  const thumbnails = decoded("thumbnails", decodeThumbnails);
  const links = decoded("links", decodeLinks);
  const survey = decoded("survey", decodeSurvey);
  const stages = decoded("stages", decodeStages);
  const pair = decoded("pair", decodePair);
  const comparison = decoded("comparison", decodeComparison);
  const changes = decoded("changes", decodeChanges);
  const tokens = { query: decoded("tokens", readTokens), key: decoded("key_tokens", readTokens) };

  const shownHeads = computed(() => {
    const { head, heads } = { head: traits.head.value, heads: traits.heads.value };
    return heads.includes(head) ? heads : [head];
  });
  /** As Python names it. */
  const pictured = computed<HeadName>(() => {
    const heads = shownHeads.value;
    const { combine, stage, view, sides } = traits;
    const alone = heads.length < 2 || stage.value !== "weights" || view.value === "stages" || sides.value?.length;
    if ((combine.value ?? "none") === "none" || alone) return traits.head.value;
    return [combine.value, ...[...heads].sort((a, b) => a - b)].join(" ");
  });
  const drawnHeads = computed<readonly HeadName[]>(() =>
    typeof pictured.value === "string" ? [pictured.value] : shownHeads.value,
  );

  // While the picture in hand is not of the selection, the kernel is at work on one that is.
  const stale = computed(() => {
    const wanted = {
      layer: traits.layer.value,
      batch: traits.batch.value,
      head: pictured.value,
      stage: traits.stage.value,
      pool: traits.pool.value,
    } as Picture["of"];
    return arrived.value !== null && !isOf(arrived.value, wanted);
  });
  ends.push(effect(() => (stale.value ? kernel.expect() : undefined)));

  // One that comes late, for a head that was left meanwhile, takes nobody's place.
  const picture = signal<Picture | null>(null);
  const problem = signal<string | null>(null);
  // A picture of few rows, or of means, has not seen the greatest: its range grows with what comes, and never shrinks.
  const ranges = new Map<string, { low: number; high: number }>();
  const keyOf = ({ of }: Pick<Picture, "of">) => tilesOf(of, traits.facts.peek().version);
  function widen(key: string, low: number | null, high: number | null): void {
    if (low === null || high === null) return;
    const known = ranges.get(key);
    ranges.set(key, known ? { low: Math.min(known.low, low), high: Math.max(known.high, high) } : { low, high });
    if (ranges.size > MOST_RANGES) ranges.delete(ranges.keys().next().value as string);
  }
  function widened(next: Picture): Picture {
    const range = ranges.get(keyOf(next));
    if (range === undefined || next.low === null || next.high === null) return next;
    const low = Math.min(next.low, range.low);
    const high = Math.max(next.high, range.high);
    const more = next.low - low + (high - next.high);
    return more <= ROUNDING * (high - low) ? next : { ...next, low, high };
  }
  ends.push(
    effect(() => {
      const next = arrived.value;
      if (next === null) return;
      const late = stale.value;
      batch(() => {
        if (next.grid !== null && (!late || picture.peek() === null)) picture.value = widened(next);
        problem.value = late ? null : next.error;
      });
    }),
  );

  const tiles = createTileCache(undefined, (of, tile) => {
    widen(of, tile.low, tile.high);
    const shown = picture.peek();
    if (shown !== null && keyOf(shown) === of) picture.value = widened(shown);
  });

  /** Rows that are exact now, put into the picture that they are of. */
  async function takeBand(band: BandMessage, buffers: readonly Bytes[]): Promise<void> {
    const [rows] = await Promise.all([decodeGrid(band.values, null, buffers), pictureRead]);
    const shown = picture.peek();
    if (shown?.grid == null || shown.sampled === null || !isOf(shown, band)) return;
    if (band.version !== traits.facts.peek().version) return;
    const grid = withRows(shown.grid, rows, band.start, band.stop);
    if (grid === null) return;
    widen(keyOf(shown), band.low, band.high);
    const exact = band.start <= shown.sampled.exact ? Math.max(shown.sampled.exact, band.stop) : shown.sampled.exact;
    const known = { low: shown.low ?? band.low, high: shown.high ?? band.high };
    picture.value = widened({ ...shown, ...known, grid, sampled: { ...shown.sampled, exact } });
  }

  let bands: Promise<unknown> = Promise.resolve();
  listen("msg:custom", ((content: Partial<Custom> | null, buffers: readonly Bytes[] = []) => {
    if (typeof content?.refused === "string") refused.value = content.refused;
    const { band, tiles: some, of } = content ?? {};
    if (band) bands = bands.then(() => takeBand(band, buffers)).catch(() => {}); // one that cannot be read is left out
    if (Array.isArray(some) && of && of.version === traits.facts.peek().version) {
      void tiles.take(tilesOf(of, of.version), some, traits.facts.peek(), buffers);
    }
  }) as never);

  const shownPins = computed<readonly Pin[]>(() => {
    const [query, key, pins] = [traits.query.value, traits.key.value, traits.pins.value];
    const last = pins.at(-1) ?? [null, null];
    if (last[0] === query && last[1] === key) return pins;
    return query === null && key === null ? [] : [[query, key]];
  });

  function addPin(query: number | null, key: number | null) {
    const others = shownPins.value.filter((pin) => pin[0] !== query || pin[1] !== key);
    const pins: Pin[] = others.length < shownPins.value.length ? [...others] : [...others, [query, key]];
    const [lastQuery, lastKey] = pins.at(-1) ?? [null, null];
    write({ pins, query: lastQuery, key: lastKey });
  }

  function toggleHead(head: number) {
    const shown = shownHeads.value;
    const others = shown.filter((other) => other !== head);
    if (others.length === 0) return;
    const heads = others.length < shown.length ? others : [...shown, head].sort((a, b) => a - b);
    const main = heads.includes(traits.head.value) ? traits.head.value : (heads[0] as number);
    write({ heads, head: main });
  }

  function write(change: Partial<Traits>) {
    refused.value = null;
    batch(() => {
      for (const [name, value] of Object.entries(change)) {
        model.set(name as Plain, value as never);
        (traits as Record<string, { value: unknown }>)[name]!.value = value; // hosts differ in when they echo
      }
    });
    kernel.guard(() => model.save_changes());
  }

  const facts = traits.facts as ReadonlySignal<Facts>;

  /** All tokens of a side, or as many as were sent and the others as they are looked at. */
  const labelsOf = (side: Side) =>
    computed(() => {
      const known = tokens[side].value;
      const length = side === "query" ? facts.value.queries : facts.value.keys;
      if (known === null || known.length <= known.tokens.length) {
        const grid = traits.grid.value;
        if (known === null && grid) return withPatches(labels(null, length), grid, grid[side]);
        return labels(known?.tokens ?? null, length, known?.spelling);
      }
      const of = { layer: traits.layer.peek(), batch: traits.batch.value, side };
      const ask = async (start: number, end: number) => {
        if (kernel.state.peek() === "gone") return null;
        const { text, ends, buffers } = await kernel.request("tokens", { ...of, start, stop: end });
        return decodeTokens(tokensIn(text, ends, buffers));
      };
      return pagedLabels(known.tokens, known.length, ask, known.spelling);
    });

  stop.addEventListener("abort", () => {
    for (const end of ends) end();
  });

  return {
    ...(traits as unknown as { [K in Plain]: ReadonlySignal<Traits[K]> }),
    picture,
    tiles,
    problem,
    thumbnails,
    links,
    survey,
    stages,
    pair,
    comparison,
    changes,
    refused,
    queryLabels: labelsOf("query"),
    keyLabels: labelsOf("key"),
    shownHeads,
    shownPins,
    pictured,
    drawnHeads,
    select: write,
    addPin,
    toggleHead,
    show: write,
    attempt(rules) {
      refused.value = null;
      kernel.tell({ what_if: rules });
    },
  };
}

/** The tokens that were sent, and how many there are. */
async function readTokens(message: TokensMessage) {
  const tokens = (await decodeTokens(message)) ?? [];
  const spelling: TokenStyle | undefined = message.spelling === "text" ? "words" : message.spelling;
  return { tokens, length: message.length ?? tokens.length, ...(spelling ? { spelling } : {}) };
}

/** Tokens of a reply, as a trait would bring them. */
function tokensIn(text: number, ends: Envelope, buffers: readonly Bytes[]): TokensMessage {
  const bytes = buffers[text];
  const data = buffers[ends.data as number];
  if (bytes === undefined || data === undefined) throw new Error(`tokens need two buffers, got ${buffers.length}`);
  return { text: bytes, ends: { ...ends, data } };
}
