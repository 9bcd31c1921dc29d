/**
 * The traits, as Python writes them, and the model that carries them.
 *
 * `Model` is the part of anywidget's model that this widget uses; `host.ts` satisfies it too, so that everything else
 * runs without Jupyter.
 */

import type {
  Bytes,
  ChangesMessage,
  ComparisonMessage,
  Deviation,
  Facts,
  Finding,
  GridMessage,
  ImageMessage,
  LinksMessage,
  PairMessage,
  PictureMessage,
  Progress,
  StagesMessage,
  SurveyMessage,
  ThumbnailsMessage,
  TokensMessage,
  WhatIf,
} from "./messages";
import type {
  ColorRange,
  ColorScaleName,
  Metric,
  Palette,
  Pin,
  Pool,
  Side,
  Stage,
  ThemePreference,
  ViewName,
} from "./values";

export interface Traits {
  uid: string;
  title: string;
  layer: number;
  batch: number;
  head: number;
  query: number | null;
  key: number | null;
  heads: number[];
  pins: Pin[];
  view: ViewName;
  stage: Stage;
  pool: Pool;
  color_scale: ColorScaleName;
  color_range: ColorRange;
  palette: Palette;
  theme: ThemePreference;
  top_k: number | null;
  threshold: number;
  direction: Side;
  bar: Metric;
  order: "layer" | Metric;
  combine: "none" | "mean" | "max";
  facts: Facts;
  picture: PictureMessage;
  thumbnails: ThumbnailsMessage;
  survey: SurveyMessage | null;
  links: LinksMessage | null;
  tokens: TokensMessage | null;
  key_tokens: TokensMessage | null;
  progress: Progress | null;
  what_if: WhatIf;
  stages: StagesMessage | null;
  pair: PairMessage | null;
  /** Of a comparison only: the names of its sides, and that of B. */
  sides?: string[];
  against?: string;
  comparison?: ComparisonMessage | null;
  changes?: ChangesMessage | null;
  /** null while they are not known: of a long head only once they were asked for. */
  findings: Finding[] | null;
  deviation: Deviation | null;
  /** Whether tokens are shown one by one or merged into words. */
  pieces?: "pieces" | "words";
  grid?: GridMessage | null;
  image?: ImageMessage | null;
}

export type TraitName = keyof Traits;

const traitNames = {
  uid: true,
  title: true,
  layer: true,
  batch: true,
  head: true,
  query: true,
  key: true,
  heads: true,
  pins: true,
  view: true,
  stage: true,
  pool: true,
  color_scale: true,
  color_range: true,
  palette: true,
  theme: true,
  top_k: true,
  threshold: true,
  direction: true,
  bar: true,
  order: true,
  combine: true,
  facts: true,
  picture: true,
  thumbnails: true,
  survey: true,
  links: true,
  tokens: true,
  key_tokens: true,
  progress: true,
  what_if: true,
  stages: true,
  pair: true,
  sides: true,
  against: true,
  comparison: true,
  changes: true,
  findings: true,
  deviation: true,
  pieces: true,
  grid: true,
  image: true,
} satisfies Record<TraitName, true>;

/** The names of all traits: the compiler holds this list against `Traits`, a test holds it against Python. */
export const TRAIT_NAMES = Object.keys(traitNames) as readonly TraitName[];

/** Told that a trait has changed. */
export type ChangeListener = (context: unknown, value: unknown) => void;
/** Told of a custom message and its buffers. */
export type MessageListener = (content: unknown, buffers?: readonly Bytes[]) => void;

export interface Model {
  get<K extends TraitName>(name: K): Traits[K];
  set<K extends TraitName>(name: K, value: Traits[K]): void;
  save_changes(): void;
  send(content: unknown, callbacks?: unknown, buffers?: ArrayBuffer[]): void;
  on<K extends TraitName>(event: `change:${K}`, listener: (context: unknown, value: Traits[K]) => void): void;
  on(event: "msg:custom", listener: MessageListener): void;
  off<K extends TraitName>(
    event: `change:${K}`,
    listener?: ((context: unknown, value: Traits[K]) => void) | null,
  ): void;
  off(event: "msg:custom", listener?: MessageListener | null): void;
  off(event?: null, listener?: null): void;
}
