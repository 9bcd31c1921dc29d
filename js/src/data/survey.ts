/** All heads of all layers: decoding, order, layout, and what each head does more than the others. */

import { decode, decodeGrid, decodeThumbnails, type Grid, type Thumbnails } from "../contract/decode";
import type { Bytes, Envelope, Facts, StageHeadsMessage, SurveyMessage } from "../contract/messages";
import { metrics } from "../contract/names.json";
import { isSigned } from "../contract/stages";
import type { HeadName, Metric, Stage, StageSum } from "../contract/values";
import { listNumber } from "../text/format";

interface Named {
  readonly name: Metric | StageSum | "effect";
  readonly word: string;
  /** A shorter word for narrow places. */
  readonly brief?: string;
  readonly kind: Kind;
}

/** The metrics with their words and the kinds of their numbers. */
export const METRICS = metrics as readonly Named[];
type Kind = "bits" | "weight" | "tokens" | "share" | "nats" | "stage" | "size" | "own";

/** Whether the sign matters most: shown as the color around a picture. */
export const isTinted = (kind: Kind) => kind === "nats" || kind === "stage";

/** Whether numbers extend to both sides of zero; custom metrics do if any is negative. */
export const hasSigns = ({ kind, values }: HeadMetric) =>
  isTinted(kind) || (kind === "own" && values.some((value) => value < 0));

/** A custom metric has the name that the user gave it. */
const ownMetric = (name: string) => ({ name, word: name, kind: "own" as const });

export interface HeadOf {
  readonly layer: number;
  readonly head: number;
}

/** One metric of all heads: NaN for a head without it, or not known yet. */
export interface HeadMetric {
  /** For custom metrics, their name. */
  readonly name: string;
  readonly word: string;
  readonly kind: Kind;
  readonly values: Float32Array;
  /** The number of a full bar. */
  readonly high: number;
  readonly median: number;
}

export interface Survey {
  readonly batch: number;
  readonly layers: SurveyMessage["layers"];
  /** Every head, layer by layer; the index of a head here is its *place*. */
  readonly heads: readonly HeadOf[];
  /** By place; null until known. */
  readonly pictures: readonly (Grid | null)[];
  readonly metrics: readonly HeadMetric[];
  /** Pictures and sums of a stage after the weights, drawn instead; and for which query the sums are. */
  readonly ofStage?: StageHeads;
  /** Whether all layers have arrived. */
  readonly complete: boolean;
  readonly error: string | null;
  /** Why some custom metrics have no numbers. */
  readonly problems: readonly string[];
}

export async function decodeSurvey(message: SurveyMessage): Promise<Survey> {
  const { batch, layers, error } = message;
  const heads = layers.flatMap(({ heads: count }, layer) =>
    Array.from({ length: count }, (_, head) => ({ layer, head })),
  );
  const known = await Promise.all(
    message.pictures.map((values, layer) => (values === null ? [] : picturesOf(values, layer, batch))),
  );
  const pictures: (Grid | null)[] = known.flat();
  if (pictures.length > heads.length) {
    throw new Error(`there are ${heads.length} heads, got pictures of ${pictures.length}`);
  }
  while (pictures.length < heads.length) pictures.push(null);
  const metrics = await Promise.all(
    [...METRICS, ...Object.keys(message.own ?? {}).map(ownMetric)].map(async ({ name, word, kind }) => {
      const sent = kind === "own" ? message.own?.[name] : isSum(name) ? null : message.metrics[name as Metric];
      if (!sent) return null;
      const values = new Float32Array(heads.length).fill(Number.NaN);
      values.set((await decodeGrid(sent)).values.subarray(0, heads.length));
      const there = values.filter((value) => Number.isFinite(value)).sort();
      return { name, word, kind, values, high: fullOf(kind, layers, there), median: medianOf(there) };
    }),
  );
  return {
    batch,
    layers,
    heads,
    pictures,
    metrics: metrics.filter((metric) => metric !== null),
    complete: message.pictures.length === layers.length,
    error,
    problems: Object.entries(message.problems ?? {}).map(([name, problem]) => `${name}: ${problem}`),
  };
}

const isSum = (name: Metric | StageSum | "effect"): name is StageSum | "effect" =>
  name === "effect" || name === "stage_sum" || name === "stage_size";

/** All heads of all layers in a stage after the weights. */
export interface StageHeads {
  readonly batch: number;
  readonly stage: Stage;
  readonly query: number | null;
  /** Layer by layer, as far as ready. */
  readonly layers: readonly (readonly Grid[] | null)[];
  readonly sums: Float32Array;
  readonly sizes: Float32Array;
  readonly error: string | null;
}

export async function decodeStageHeads(message: StageHeadsMessage): Promise<StageHeads> {
  const { batch, stage, query, error } = message;
  const [sums, sizes] = [await decode(message.sums), await decode(message.sizes)];
  const layers = await Promise.all(
    message.pictures.map((values, layer) => (values === null ? null : picturesOf(values, layer, batch))),
  );
  if (!(sums instanceof Float32Array && sizes instanceof Float32Array)) throw new Error("sums must be float32");
  return { batch, stage, query, layers, sums, sizes, error };
}

/** Return the heads with a stage's pictures instead of weights, and its sums as two more metrics. */
export function withStage(survey: Survey, ofStage: StageHeads): Survey {
  const metric = (name: StageSum, kind: Kind, values: Float32Array): HeadMetric[] => {
    const there = values.filter((value) => Number.isFinite(value)).sort();
    if (values.length !== survey.heads.length || there.length === 0) return [];
    const high = there.reduce((most, value) => Math.max(most, Math.abs(value)), 0) || 1;
    const { word } = METRICS.find((one) => one.name === name)!;
    return [{ name, word, kind, values, high, median: medianOf(there) }];
  };
  const metrics = [
    ...survey.metrics,
    ...(isSigned(ofStage.stage) ? metric("stage_sum", "stage", ofStage.sums) : []),
    ...metric("stage_size", "size", ofStage.sizes),
  ];
  return { ...survey, metrics, ofStage, error: survey.error ?? ofStage.error };
}

/** Return the picture of a head as drawn; null until known. */
export function pictureOf(survey: Survey, place: number): Grid | null {
  const { layer, head } = survey.heads[place]!;
  return survey.ofStage ? (survey.ofStage.layers[layer]?.[head] ?? null) : (survey.pictures[place] ?? null);
}

/** Return the heads of one layer from their thumbnails alone, without other layers and metrics. */
export function surveyOfLayer({ layer, batch, heads: pictures }: Thumbnails, facts: Facts): Survey {
  const { groups, queries, keys } = facts;
  return {
    batch,
    layers: [{ heads: pictures.length, groups, queries, keys, rows: queries }],
    heads: pictures.map((_, head) => ({ layer, head })),
    pictures,
    metrics: [],
    complete: true,
    error: null,
    problems: [],
  };
}

/** Decode the pictures of some heads of one layer. */
export async function picturesOf(values: Envelope, layer: number, batch: number, buffers: readonly Bytes[] = []) {
  return (await decodeThumbnails({ layer, batch, values }, buffers)).heads;
}

function fullOf(kind: Kind, layers: Survey["layers"], sorted: Float32Array): number {
  if (kind === "bits") return Math.log2(Math.max(2, ...layers.map(({ keys }) => keys)));
  if (kind === "own") return Math.max(sorted.at(-1) ?? 0, -(sorted[0] ?? 0)) || 1;
  if (kind === "tokens") return Math.max(sorted.at(-1) ?? 0, 0) || 1;
  return 1;
}

export function medianOf(sorted: Float32Array): number {
  const middle = sorted.length >> 1;
  if (sorted.length === 0) return Number.NaN;
  return sorted.length % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
}

/** Return how many heads have a number. */
export const headsWith = ({ values }: HeadMetric) => values.filter((value) => !Number.isNaN(value)).length;

/** Return the rank of each head, 1 for the largest number, ties sharing a rank; 0 without a number. */
export function rankOf({ values }: HeadMetric, place: number): number {
  const own = values[place]!;
  if (!Number.isFinite(own)) return 0;
  let above = 0;
  for (const value of values) if (value > own) above++;
  return above + 1;
}

/**
 * Return the metric in which a head ranks best, among metrics that differ between heads, and the number of heads that
 * have it; the first of equal ranks.
 */
export function strongestOf(survey: Survey, place: number): { metric: HeadMetric; rank: number; of: number } | null {
  let best: { metric: HeadMetric; rank: number; of: number } | null = null;
  for (const metric of survey.metrics) {
    const rank = rankOf(metric, place);
    const alone = metric.values.some((value) => value < metric.values[place]!);
    if (rank > 0 && alone && (best === null || rank < best.rank)) best = { metric, rank, of: headsWith(metric) };
  }
  return best;
}

/** Whether a metric can order the heads: at least one has it (effects need runs of the model). */
export const isOrdered = (survey: Survey, order: string) =>
  survey.metrics.some(({ name, values }) => name === order && values.some((value) => Number.isFinite(value)));

/**
 * Return the places in drawing order: by layer, or by the largest number, those without one last.
 */
export function orderOf(survey: Survey, order: string, like = 0): number[] {
  const places = survey.heads.map((_, place) => place);
  if (order === "similar") return nearest(survey, like);
  const metric = survey.metrics.find(({ name }) => name === order);
  if (metric === undefined) return places;
  const number = (place: number) => (Number.isFinite(metric.values[place]!) ? metric.values[place]! : -1e9);
  return places.sort((a, b) => number(b) - number(a));
}

/** Kinds that `AttentionStack.similar` does not compare: they follow from other metrics, or from a cache. */
const NOT_COMPARED: ReadonlySet<string> = new Set([
  ...["sink", "streaming", "recall", "effect", "stage_sum", "stage_size", "own"],
]);
const LEAST_SPREAD = 1e-5; // relative to the largest number: a smaller spread is rounding

/** Return the places, most similar to one first: by the sum of their ranks in metrics and picture, as in Python. */
export function nearest(survey: Survey, own: number): number[] {
  const count = survey.heads.length;
  const byMetrics = ranksOf(metricDistances(survey, own));
  const byPicture = ranksOf(Array.from({ length: count }, (_, place) => pictureDistance(survey, own, place)));
  const rank = (place: number) => (place === own ? -1 : byMetrics[place]! + byPicture[place]!);
  return survey.heads.map((_, place) => place).sort((a, b) => rank(a) - rank(b) || byMetrics[a]! - byMetrics[b]!);
}

/** √ of the mean squared difference of the common metrics, each in units of its standard deviation. */
function metricDistances(survey: Survey, own: number): number[] {
  const sums = new Float64Array(survey.heads.length);
  const counts = new Float64Array(survey.heads.length);
  for (const { name, kind, values } of survey.metrics) {
    if (NOT_COMPARED.has(name) || NOT_COMPARED.has(kind)) continue;
    const there = values.filter((value) => Number.isFinite(value));
    const mean = there.reduce((sum, value) => sum + value, 0) / there.length;
    const spread = Math.sqrt(there.reduce((sum, value) => sum + (value - mean) ** 2, 0) / there.length);
    const largest = there.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
    if (!(spread > LEAST_SPREAD * largest)) continue;
    values.forEach((value, place) => {
      const apart = ((value - values[own]!) / spread) ** 2;
      if (!Number.isFinite(apart)) return;
      sums[place]! += apart;
      counts[place]! += 1;
    });
  }
  return Array.from(sums, (sum, place) => (counts[place]! > 0 ? Math.sqrt(sum / counts[place]!) : Number.NaN));
}

/** 1 − the cosine of two small pictures; NaN if their sizes differ. */
function pictureDistance({ pictures }: Survey, own: number, place: number): number {
  const [a, b] = [pictures[own], pictures[place]];
  if (!a || !b || a.rows !== b.rows || a.columns !== b.columns) return Number.NaN;
  let [product, first, second] = [0, 0, 0];
  a.values.forEach((value, at) => {
    const x = Number.isFinite(value) ? value : 0;
    const y = Number.isFinite(b.values[at]!) ? b.values[at]! : 0;
    product += x * y;
    first += x * x;
    second += y * y;
  });
  return 1 - product / Math.sqrt(first * second);
}

/** How many are nearer than each; ties are equal, unknown ones last. */
function ranksOf(distances: readonly number[]): number[] {
  const known = distances.map((one) => (Number.isNaN(one) ? Number.POSITIVE_INFINITY : one));
  const sorted = [...known].sort((a, b) => a - b);
  const ranks = new Map<number, number>();
  sorted.forEach((one, rank) => {
    if (!ranks.has(one)) ranks.set(one, rank);
  });
  return known.map((one) => ranks.get(one)!);
}

/** The limits on which heads are shown; null means no limit. */
export interface HeadFilter {
  readonly from: number | null;
  readonly to: number | null;
  /** Of the metric that the bars show. */
  readonly above: number | null;
}

/** Return whether a head is shown. */
export function isShown(survey: Survey, place: number, filter: HeadFilter | null, metric: HeadMetric | null): boolean {
  if (filter === null) return true;
  const { layer } = survey.heads[place]!;
  if (layer < (filter.from ?? 0) || layer > (filter.to ?? Number.POSITIVE_INFINITY)) return false;
  return filter.above === null || metric === null || metric.values[place]! > filter.above;
}

/** Return a number as `metricText` does, or why there is none. */
export const metricOrNone = (value: number, kind: Kind) =>
  Number.isFinite(value) ? metricText(value, kind) : kind === "nats" && Number.isNaN(value) ? "not run" : "none";

/** Return `1.39 bits`, `.567`, `8.7`, `47 %`. */
export function metricText(value: number, kind: Kind): string {
  if (!Number.isFinite(value)) return "NaN";
  if (kind === "bits") return `${value.toFixed(2)} bits`;
  if (kind === "stage" || kind === "size") return listNumber(value, "logit");
  if (kind === "nats") return `${listNumber(value, "weights")} nats`;
  if (kind === "tokens") return value < 100 ? value.toFixed(1) : Math.round(value).toLocaleString("en");
  if (kind === "own") return listNumber(value, "scores");
  if (kind === "share") return `${Math.round(100 * value)} %`;
  const text = value.toFixed(3);
  return text === "1.000" ? "1.00" : text.replace(/^0/, "");
}

// --- where they stand -----------------------------------------------------------------------------------------------

const SIZE = 58;
const PITCH = 74;
const UNDER = 18; // below a picture, for its bar
const CAPTION = 14; // and for its name, if ordered by a metric
const LEAST = 34; // pitch below which there are no bars
const LEAST_NAMED = 44;
const DENSE = 20;
const DENSE_PITCH = 26;
const LEAST_PITCH = 17;
const SCROLLED_PITCH = 23; // if they still do not fit
const TINTED = 3; // least margin for a tint
const TALLEST = 920;
const MARGIN = 4;
const GUTTER = 30; // left of the rows, for layer numbers
const HEADER = 22; // above the columns, for head numbers

export interface HeadsLayout {
  /** Side of a picture, and the pitch, in pixels. */
  readonly size: number;
  readonly across: number;
  readonly down: number;
  readonly columns: number;
  readonly rows: number;
  /** The first picture's corner on the canvas. */
  readonly margin: number;
  readonly left: number;
  readonly top: number;
  readonly width: number;
  readonly height: number;
  /** Whether each has a bar below; otherwise the metric tints its margin. */
  readonly bars: boolean;
  readonly named: boolean;
  /** The place at a column and row, or -1. */
  at(column: number, row: number): number;
  /** The column and row of each place. */
  readonly where: readonly (readonly [column: number, row: number])[];
}

const HIDDEN = [-999, -999] as const; // the column and row of a hidden head: outside the canvas

/** Lay out one row per layer; or, by a metric or for a single large layer, as many heads per row as fit. */
export function layoutHeads(
  survey: Survey,
  order: string,
  width: number,
  unit = 1,
  { like = 0, shown = null }: { like?: number; shown?: ((place: number) => boolean) | null } = {},
): HeadsLayout {
  const room = width / unit;
  const places = orderOf(survey, order, like).filter((place) => shown === null || shown(place));
  const where: [number, number][] = survey.heads.map(() => [...HIDDEN]);
  const inOrder = order === "similar" || shown !== null || isOrdered(survey, order);
  const alone = survey.layers.length === 1;
  const left = inOrder || alone ? 0 : GUTTER;
  let columns = Math.max(1, ...survey.layers.map(({ heads }) => heads));
  let rows = survey.layers.length;
  const wide = (each: number) => (columns - 1) * each + sizeFor(each);
  let pitch = Math.min(PITCH, Math.floor(TALLEST / rows));
  while (pitch > LEAST_PITCH && wide(pitch) > room - left) pitch--;
  const byLayer = !inOrder && !(alone && pitch < LEAST);
  if (!byLayer) {
    for (pitch = PITCH; pitch >= LEAST_NAMED; pitch--) {
      columns = Math.max(1, Math.floor((room + pitch - sizeFor(pitch)) / pitch));
      rows = Math.max(1, Math.ceil(places.length / columns));
      if (rows * (sizeFor(pitch) + UNDER + CAPTION) <= TALLEST) break;
    }
  }
  const bars = pitch >= (byLayer ? LEAST : LEAST_NAMED);
  if (!bars && byLayer) {
    const fitting = Math.min(DENSE_PITCH, Math.floor((room - left) / columns));
    pitch = fitting >= LEAST_PITCH ? fitting : SCROLLED_PITCH;
  }
  if (!bars && !byLayer) {
    pitch = DENSE_PITCH;
    columns = Math.max(1, Math.floor(room / pitch));
    rows = Math.max(1, Math.ceil(places.length / columns));
  }
  const size = bars ? sizeFor(pitch) : Math.min(DENSE, pitch - TINTED);
  const down = bars ? size + UNDER + (byLayer ? 0 : CAPTION) : pitch;
  const margin = bars ? MARGIN : (pitch - size) / 2; // room for the ring, or the tint
  if (byLayer) {
    survey.heads.forEach(({ layer, head }, place) => {
      where[place] = [head, alone ? 0 : layer];
    });
  } else {
    places.forEach((place, at) => {
      where[place] = [at % columns, Math.floor(at / columns)];
    });
  }
  const at = new Map(
    where.flatMap(([column, row], place) => (column < 0 ? [] : [[row * columns + column, place] as const])),
  );
  return {
    size: size * unit,
    across: pitch * unit,
    down: down * unit,
    columns,
    rows,
    margin: margin * unit,
    left: left * unit,
    top: (byLayer ? HEADER : 0) * unit,
    width: ((columns - 1) * pitch + size + 2 * margin) * unit,
    height: ((rows - 1) * down + size + 2 * margin + (bars ? down - size - (byLayer ? 10 : 4) : 0)) * unit,
    bars,
    named: bars && !byLayer,
    at: (column, row) => (column < 0 || column >= columns ? -1 : (at.get(row * columns + column) ?? -1)),
    where,
  };
}

const sizeFor = (pitch: number) => Math.min(SIZE, Math.round(pitch - Math.max(8, 0.216 * pitch)));

/** Return the place at a point of the canvas; half of the gaps around a picture belong to it. */
export function placeAt(layout: HeadsLayout, x: number, y: number): number {
  const gap = (layout.across - layout.size) / 2;
  return layout.at(
    Math.floor((x - layout.margin + gap) / layout.across),
    Math.floor((y - layout.margin + Math.min(gap, layout.margin)) / layout.down),
  );
}

type HeadFacts = Pick<Facts, "layers" | "model_heads">;

/** Return the number in the model of a column's heads, if the same in all layers and some heads are missing. */
export function numberInAll({ model_heads }: HeadFacts, head: number): number | undefined {
  const number = model_heads?.[0]?.[head];
  return model_heads?.every((own) => own?.[head] === number) ? number : undefined;
}

/** Return `2·9`, or `9` for a single layer; `2·0 (5)` with the number in the model, if a capture kept some heads. */
export function nameOf({ layer, head }: { layer: number; head: HeadName }, { layers, model_heads }: HeadFacts): string {
  const number = model_heads?.[layer]?.[head as number];
  return `${layers.length > 1 ? `${layer}·` : ""}${head}${number === undefined ? "" : ` (${number})`}`;
}

/** Return the corner of a picture on the canvas. */
export function cornerOf(layout: HeadsLayout, place: number): { x: number; y: number } {
  const [column, row] = layout.where[place]!;
  return { x: layout.margin + column * layout.across, y: layout.margin + row * layout.down };
}

/** Return the place that an arrow key leads to: the next in its direction, or the same. */
export function stepFrom(layout: HeadsLayout, place: number, right: number, down: number): number {
  const [column, row] = layout.where[place]!;
  if (column < 0) return layout.at(0, 0);
  if (right !== 0) return orElse(layout.at(column + right, row), place);
  for (let at = row + down; at >= 0 && at < layout.rows; at += down) {
    for (let back = column; back >= 0; back--) {
      const found = layout.at(back, at); // the last head of a shorter layer
      if (found >= 0) return found;
    }
  }
  return place;
}

const orElse = (found: number, place: number) => (found >= 0 ? found : place);
