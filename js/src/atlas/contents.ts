/** What Python tells about an atlas: an index of all heads, and a card for each, loaded when it is opened. */

export interface Metric {
  readonly name: string;
  readonly label: string;
  /** What the number is, in a few words, with its unit. */
  readonly about: string;
}

export type Curve = readonly (number | null)[];

/** One model's numbers, each list in the order of all heads. */
export interface Side {
  readonly title: string;
  readonly values: Readonly<Record<string, readonly (number | null)[]>>;
  readonly sentences: readonly string[];
  readonly labels: readonly (readonly string[])[];
  readonly aside: readonly number[];
  /** The mean weight by distance, of all links and of content links, in a few bins. */
  readonly curves: readonly Curve[];
  readonly contentCurves: readonly Curve[];
}

export interface Index extends Side {
  readonly layers: readonly string[];
  /** The number of heads of each layer. */
  readonly counts: readonly number[];
  readonly metrics: readonly Metric[];
  readonly facts: readonly string[];
  readonly notes: readonly string[];
  readonly plane: readonly (readonly [number, number])[];
  readonly shown: number;
  readonly kinds: readonly string[];
  /** The number of texts. */
  readonly texts: number;
  /** What is left out as first and special tokens, in words: special ones may have no names. */
  readonly setAside: string;
  readonly other: Side | null;
  /** Whether a kernel can open a text in the widget. */
  readonly live: boolean;
}

export interface LinkInText {
  readonly text: number;
  readonly query: number;
  readonly key: number;
  readonly weight: number;
  readonly tokens: readonly string[];
  readonly places: readonly number[];
  readonly weights: readonly number[];
  readonly writes: readonly string[];
}

export interface Distribution {
  readonly mean: number;
  readonly std: number | null;
  readonly least: number;
  readonly most: number;
  readonly n: number;
  readonly counts: readonly number[];
  readonly edges: readonly number[];
}

export interface Card {
  readonly metrics: Readonly<Record<string, Distribution>>;
  /** The mean weight of pairs by distance; null without pairs. Of all links, and of content links. */
  readonly distances: readonly string[];
  readonly byDistance: readonly (number | null)[];
  readonly contentByDistance: readonly (number | null)[];
  readonly positions: readonly string[];
  readonly byPosition: readonly (number | null)[];
  readonly contentByPosition: readonly (number | null)[];
  readonly byKind: readonly (readonly (number | null)[])[];
  readonly links: Readonly<Record<LinkList, readonly LinkInText[]>>;
  readonly similar: readonly (readonly [number, number])[];
  readonly writes: readonly string[];
  readonly copied: readonly [number, number] | null;
  readonly unwritten: string | null;
}

export type LinkList = "strongest" | "ordinary" | "strongest content" | "ordinary content";

/** A head by its layer and its number. */
export interface HeadAt {
  readonly layer: number;
  readonly head: number;
  /** Its number among all heads. */
  readonly at: number;
}

/** Where the cards come from, and who opens a text. */
export interface Source {
  readonly index: Index;
  card(side: number, layer: number, head: number): Promise<Card>;
  /** Open a text in the widget, with the head chosen; null without a kernel. */
  open: ((text: number, layer: number, head: number, query: number, key: number) => Promise<string>) | null;
  /** The head chosen first. */
  readonly chosen: readonly [number, number] | null;
  choose(layer: number, head: number): void;
}

export function headsOf(index: Index): HeadAt[] {
  const heads: HeadAt[] = [];
  index.counts.forEach((count, layer) => {
    for (let head = 0; head < count; head++) heads.push({ layer, head, at: heads.length });
  });
  return heads;
}

const PLACES = /layer\s+(\d+)|head\s+(\d+)|(\d+)[·.](\d+)/g;

/** Whether a head is the one that is asked for by number, and all other words begin words that are known about it. */
export function matches(index: Index, { layer, head, at }: HeadAt, words: string): boolean {
  const asked = words.toLowerCase();
  for (const [, ofLayer, ofHead, both, second] of asked.matchAll(PLACES)) {
    if ((ofLayer ?? both ?? `${layer}`) !== `${layer}` || (ofHead ?? second ?? `${head}`) !== `${head}`) return false;
  }
  const known = ` ${[...(index.labels[at] ?? []), index.sentences[at]].join(" ").toLowerCase()}`;
  const rest = asked.replace(PLACES, " ").split(/[\s,]+/);
  return rest.every((word) => known.includes(` ${word}`));
}

/** A number in a few letters: .23, 1.0, 12.3, −.05; "–" if unknown. */
export function brief(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  const sign = value < 0 ? "−" : "";
  if (size === 0) return "0";
  if (size < 0.005) return `${sign}${size.toExponential(0).replace("-", "−")}`;
  if (size < 0.995) return sign + size.toFixed(2).replace(/^0/, "");
  return sign + (size < 9.95 ? size.toFixed(1) : Math.round(size).toLocaleString("en"));
}

/** A share in percent: 3 %, <1 %, >99 %. */
export function percent(value: number): string {
  const whole = Math.round(100 * value);
  return whole === 0 && value > 0 ? "<1 %" : whole === 100 && value < 1 ? ">99 %" : `${whole} %`;
}

/** A share in a cell: nothing below .005, "–" if unknown. */
export function share(value: number | null): string {
  return value !== null && value < 0.005 ? "" : brief(value);
}

/** The values' range: from 0 to the largest, or as far below 0 as above. */
export function rangeOf(values: readonly (number | null)[]): { readonly most: number; readonly signed: boolean } {
  const known = values.filter((value): value is number => value !== null);
  const most = Math.max(1e-12, ...known.map(Math.abs));
  return { most, signed: known.some((value) => value < 0) };
}
