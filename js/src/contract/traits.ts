/**
 * The traits as Python writes them, and the model that carries them.
 *
 * `Model` is the part of anywidget's model that this widget uses; `host.ts` satisfies it too, so that everything else
 * runs without Jupyter.
 */

import type {
  BoxesMessage,
  Bytes,
  ChangesMessage,
  ComparisonMessage,
  Deviation,
  EffectDetail,
  EffectsMessage,
  Facts,
  Finding,
  GridMessage,
  HeadMassMessage,
  HeadPlace,
  ImageMessage,
  LinksMessage,
  MassMessage,
  NoSegmentsMessage,
  PairMessage,
  PictureMessage,
  Progress,
  RecallMessage,
  SegmentsMessage,
  StageHeadsMessage,
  StagesMessage,
  SurveyMessage,
  ThumbnailsMessage,
  TokensMessage,
  WhatIf,
} from "./messages";
import type {
  Across,
  ColorRange,
  ColorScaleName,
  Measure,
  Metric,
  Overlay,
  Palette,
  Pin,
  Pool,
  Side,
  Stage,
  StageSum,
  ThemePreference,
  ViewName,
} from "./values";

export interface Traits {
  uid: string;
  title: string;
  /** The stack shown, and its forward pass; `facts` lists them. */
  stack?: string;
  forward?: number;
  layer: number;
  batch: number;
  head: number;
  query: number | null;
  key: number | null;
  heads: number[];
  pins: Pin[];
  view: ViewName;
  stage: Stage;
  /** The token id for the stage logit; null: the most likely next token. */
  target?: number | null;
  pool: Pool;
  color_scale: ColorScaleName;
  color_range: ColorRange;
  palette: Palette;
  theme: ThemePreference;
  top_k: number | null;
  threshold: number;
  /** Layers and forward passes shown as one; null: single layers; older Pythons lack it. */
  across?: Across | null;
  /** How weights are drawn over an image; older Pythons lack it. */
  overlay?: Overlay;
  /** Of the weights over an image, 0 to 1. */
  opacity?: number;
  direction: Side;
  bar: "effect" | StageSum | Metric;
  order: "layer" | "similar" | "effect" | StageSum | Metric;
  /** The limits on shown heads among all: first layer, last layer, minimum of `bar`; null means no limit. */
  only_heads?: readonly [from: number | null, to: number | null, above: number | null] | null;
  combine: "none" | "mean" | "max";
  facts: Facts;
  picture: PictureMessage;
  thumbnails: ThumbnailsMessage;
  survey: SurveyMessage | null;
  stage_heads?: StageHeadsMessage | null;
  links: LinksMessage | null;
  tokens: TokensMessage | null;
  key_tokens: TokensMessage | null;
  progress: Progress | null;
  what_if: WhatIf;
  stages: StagesMessage | null;
  pair: PairMessage | null;
  /** Comparisons only: the names of the sides, and that of B. */
  sides?: string[];
  against?: string;
  /** B's layer, sample and head; null: the same as A's. */
  against_at?: HeadPlace | null;
  comparison?: ComparisonMessage | null;
  changes?: ChangesMessage | null;
  /** null until known: for a long head only after a request. */
  findings: Finding[] | null;
  deviation: Deviation | null;
  /** Why derived traits could not be computed: a sentence for each, by name. */
  errors?: Partial<Record<TraitsThatAre<"derived">, string>>;
  /** Whether tokens are shown singly or merged into words. */
  pieces?: "pieces" | "words";
  grid?: GridMessage | null;
  image?: ImageMessage | null;
  boxes?: BoxesMessage | null;
  /** The named parts of the queries' text, and of the keys' if they differ; null if none were given. */
  segments?: SegmentsMessage | NoSegmentsMessage | null;
  key_segments?: SegmentsMessage | NoSegmentsMessage | null;
  measure?: Measure;
  /**
   * Names of excluded columns; also "sink", the first token and the learned sink, and "self", the own key.
   */
  aside?: string[];
  /** The asking segment; null: the answer. */
  /** A name, or the names that lead to a nested segment. */
  asking?: string | readonly string[] | null;
  /** The pinned segment of the keys. */
  segment?: string | null;
  /** The path of opened segments. */
  segment_path?: string[];
  mass?: MassMessage | null;
  head_mass?: HeadMassMessage | null;
  recall?: RecallMessage | null;
  /** Whether the segments view shows attention or effects. */
  segments_show?: "attention" | "effect";
  /** The token whose log-probability is examined, and the position before it; null: Python's choice. */
  effect_target?: [at: number, token: number] | null;
  /** The edit of removed segments and heads. */
  effect_edit?: string;
  /** The results of runs of the model without something; null without a model. */
  effects?: EffectsMessage | null;
  effect_details?: EffectDetail[] | null;
}

export type TraitName = keyof Traits;

/**
 * What a trait is to the front-end: `given` by the user in Python; the `selection`; a `look`, which needs no kernel;
 * what chooses the `numbers`, which does; `derived` from the others by Python; or the widget's `identity`, which never
 * changes.
 */
export type Role = "given" | "selection" | "look" | "numbers" | "derived" | "identity";

/** The role of every trait: the compiler checks this table against `Traits`, a test checks it against Python's tags. */
export const TRAITS = {
  uid: "identity",
  title: "given",
  stack: "numbers",
  forward: "numbers",
  layer: "selection",
  batch: "selection",
  head: "selection",
  query: "selection",
  key: "selection",
  heads: "selection",
  pins: "selection",
  view: "look",
  stage: "numbers",
  target: "numbers",
  pool: "numbers",
  color_scale: "look",
  color_range: "look",
  palette: "look",
  across: "numbers",
  theme: "look",
  top_k: "look",
  threshold: "look",
  overlay: "look",
  opacity: "look",
  direction: "look",
  bar: "look",
  order: "look",
  only_heads: "look",
  combine: "numbers",
  facts: "derived",
  picture: "derived",
  thumbnails: "derived",
  survey: "derived",
  stage_heads: "derived",
  links: "derived",
  tokens: "given",
  key_tokens: "given",
  progress: "derived",
  what_if: "numbers",
  stages: "derived",
  pair: "derived",
  sides: "identity",
  against: "numbers",
  against_at: "numbers",
  comparison: "derived",
  changes: "derived",
  errors: "derived",
  findings: "derived",
  deviation: "derived",
  pieces: "numbers",
  grid: "given",
  image: "given",
  boxes: "given",
  segments: "given",
  key_segments: "given",
  measure: "look",
  aside: "look",
  asking: "numbers",
  segment: "selection",
  segment_path: "numbers",
  mass: "derived",
  head_mass: "derived",
  recall: "derived",
  segments_show: "look",
  effect_target: "numbers",
  effect_edit: "numbers",
  effects: "derived",
  effect_details: "derived",
} as const satisfies Record<TraitName, Role>;

/** The traits that have one of these roles. */
export type TraitsThatAre<R extends Role> = { [K in TraitName]: (typeof TRAITS)[K] extends R ? K : never }[TraitName];

export const TRAIT_NAMES = Object.keys(TRAITS) as readonly TraitName[];

/** The names of the traits that have one of these roles. */
export function traitsThatAre<R extends Role>(...roles: readonly R[]): readonly TraitsThatAre<R>[] {
  return TRAIT_NAMES.filter((name) => (roles as readonly Role[]).includes(TRAITS[name])) as never;
}

/** Called when a trait has changed. */
export type ChangeListener = (context: unknown, value: unknown) => void;
/** Called with a custom message and its buffers. */
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
  /** In Jupyter's hosts: the status of the kernel. */
  readonly widget_manager?:
    | {
        readonly kernel?: { readonly status?: unknown } | null;
        get_model?(id: string): Promise<unknown> | undefined;
      }
    | undefined;
}
