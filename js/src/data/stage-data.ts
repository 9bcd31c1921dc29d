/** Decoding for the stages view: every stage as a small picture, and the steps of one pair. */

import { decode, decodeGrid, type Grid, type Picture } from "../contract/decode";
import type { Bytes, Effect, Envelope, Figure, PairMessage, PairNumbers, StagesMessage } from "../contract/messages";
import type { Carried, Stage } from "../contract/values";

export interface SmallPicture {
  readonly stage: Stage;
  readonly grid: Grid;
  readonly queryBin: number;
  readonly keyBin: number;
  readonly low: number | null;
  readonly high: number | null;
  /** 1 if exact; else each row shows one of so many queries. */
  readonly every: number;
  /** The learned sink's column, a number for each row; null without one. */
  readonly sink?: Float32Array | null;
}

export interface Stages {
  readonly of: { readonly layer: number; readonly batch: number; readonly head: number };
  readonly pictures: readonly SmallPicture[];
  /** Columns are the components of the output; it is drawn like scores, with signs. */
  readonly output: (SmallPicture & { readonly rows: number; readonly columns: number }) | null;
  /** Whether this is the only stage of a saved notebook: that of its picture. */
  readonly isAlone?: boolean;
}

/** Return the single stage of a picture, for the stages view; null if rows are missing. */
export function stagesOfPicture(picture: Picture): Stages | null {
  const { of, grid, queryBin, keyBin, low, high, sink = null } = picture;
  if (grid === null || picture.sampled !== null || typeof of.head === "string") return null;
  const alone: SmallPicture = { stage: of.stage, grid, queryBin, keyBin, low, high, every: 1, sink };
  const { layer, batch, head } = of;
  return { of: { layer, batch, head }, pictures: [alone], output: null, isAlone: true };
}

/** The numbers of a pair, with NaN and ±∞ as numbers. */
export type Numbers = { readonly [K in (typeof NAMES)[number]]: number | null } & {
  readonly allowed: boolean;
  /** The contributions of the weight: the stage, its number, and the number per unit of weight. */
  readonly carried: readonly (readonly [Carried, number | null, number | null])[];
  readonly effects: readonly (Omit<Effect, "adds"> & { readonly adds: number | null })[];
};

export interface ExplainedPair extends Numbers {
  readonly layer: number;
  readonly batch: number;
  readonly head: number;
  readonly query: number;
  readonly key: number;
  readonly products: Float32Array | null;
  readonly value: Float32Array | null;
  readonly output: Float32Array | null;
  readonly row: { readonly keys: Uint32Array; readonly grid: Grid };
  /** The same under the original rules; `row` holds the weights of the same keys. */
  readonly original: (Numbers & { readonly value: Float32Array | null; readonly row: Float32Array }) | null;
}

export async function decodeStages(message: StagesMessage): Promise<Stages> {
  const { layer, batch, head, output } = message;
  const small = async (one: StagesMessage["pictures"][number]): Promise<SmallPicture> => ({
    stage: one.stage,
    grid: await decodeGrid(one.values, one.blocked),
    queryBin: one.query_bin,
    keyBin: one.key_bin,
    low: one.low,
    high: one.high,
    every: one.every,
    sink: await vector(one.sink ?? null),
  });
  const values = output && { ...output, stage: "scores" as const, key_bin: output.value_bin, every: 1 };
  const [drawn, ...pictures] = await Promise.all([values && small(values), ...message.pictures.map(small)]);
  return {
    of: { layer, batch, head },
    pictures: pictures as SmallPicture[],
    output: drawn && output && { ...drawn, rows: output.rows, columns: output.columns },
  };
}

export async function decodePair(message: PairMessage): Promise<ExplainedPair> {
  const { original } = message;
  const keys = await decode(message.row.keys);
  if (!(keys instanceof Uint32Array)) throw new Error("keys of a row must be uint32");
  return {
    ...numbersOf(message),
    layer: message.layer,
    batch: message.batch,
    head: message.head,
    query: message.query,
    key: message.key,
    products: await vector(message.products),
    value: await vector(message.value),
    output: await vector(message.output),
    row: { keys, grid: await decodeGrid(message.row.values, message.row.blocked) },
    original: original && {
      ...numbersOf(original),
      value: await vector(original.value),
      row: (await vector(original.row)) as Float32Array,
    },
  };
}

/** Decode an envelope of float32 numbers. */
export async function vector(envelope: Envelope | null, buffers?: readonly Bytes[]): Promise<Float32Array | null> {
  if (envelope === null) return null;
  const found = await decode(envelope, buffers);
  if (!(found instanceof Float32Array)) throw new Error("numbers must be float32");
  return found;
}

const NAMES = [
  "score",
  "scale",
  "scaled",
  "softcap",
  "capped",
  "masked",
  "maximum",
  "log_normalizer",
  "sink",
  "sink_weight",
  "weight",
  "contribution",
  "share",
] as const;

function numbersOf(message: PairNumbers): Numbers {
  const numbers = Object.fromEntries(NAMES.map((name) => [name, numberOf(message[name] ?? null)])) as {
    [K in (typeof NAMES)[number]]: number | null;
  };
  const effects = message.effects.map((effect) => ({ ...effect, adds: numberOf(effect.adds) }));
  const carried = Object.entries(message.carried ?? {}).map(
    ([stage, [all, each]]) => [stage as Carried, numberOf(all), numberOf(each)] as const,
  );
  return { ...numbers, allowed: message.allowed, carried, effects };
}

export function numberOf(figure: Figure): number | null {
  return typeof figure === "string" ? Number(figure.replace("inf", "Infinity")) : figure;
}

/** Return a small picture in the form that the color mapper takes. */
export function asPicture(small: SmallPicture, of: Stages["of"]): Picture {
  const { grid, queryBin, keyBin, low, high } = small;
  return {
    of: { ...of, stage: small.stage, pool: "max" },
    queries: grid.rows * queryBin,
    keys: grid.columns * keyBin,
    ownKeys: grid.columns * keyBin,
    padding: null,
    queryBin,
    keyBin,
    low,
    high,
    exact: false,
    grid,
    sampled: null,
    error: null,
  };
}

/** A step of a waterfall: one product, from the sum before it to the sum after. */
export interface Step {
  readonly index: number;
  readonly from: number;
  readonly to: number;
}

/** Accumulate products in order, or largest first; the last `to` is the score. */
export function waterfall(products: Float32Array, largestFirst: boolean): Step[] {
  const order = Array.from(products.keys());
  if (largestFirst) order.sort((a, b) => products[b]! - products[a]!);
  let sum = 0;
  return order.map((index) => {
    const from = sum;
    sum += products[index]!;
    return { index, from, to: sum };
  });
}
