/**
 * The traits that travel as plain JSON, checked: a value of the wrong kind is refused, like an envelope in
 * `decode.ts`.
 *
 * A trait that an older Python lacks is undefined, and its reader decides what to do.
 */
import type { Facts } from "./messages";
import type { TraitName, Traits } from "./traits";

type Check = (value: unknown) => boolean;
type Fields = Record<string, Check>;

/** For lists from outside. */
const MOST = 1_048_576;

const isText: Check = (value) => typeof value === "string";
const isFlag: Check = (value) => typeof value === "boolean";
const isNumber: Check = (value) => typeof value === "number" && Number.isFinite(value);
const isPlace: Check = (value) => Number.isSafeInteger(value) && (value as number) >= 0;
const isHeadName: Check = (value) => isPlace(value) || isText(value);
const isObject: Check = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const orNone =
  (check: Check): Check =>
  (value) =>
    value === null || value === undefined || check(value);
const isListOf =
  (check: Check): Check =>
  (value) =>
    Array.isArray(value) && value.length <= MOST && value.every(check);
const isSome =
  (check: Check): Check =>
  (value) =>
    isListOf(check)(value) && (value as unknown[]).length > 0;
const isOneOf =
  (...words: readonly string[]): Check =>
  (value) =>
    words.includes(value as string);
const hasFields =
  (fields: Fields): Check =>
  (value) =>
    isObject(value) && Object.entries(fields).every(([name, check]) => check((value as Record<string, unknown>)[name]));

const isPin: Check = (value) => Array.isArray(value) && value.length === 2 && value.every(orNone(isPlace));
const isLimits: Check = (value) => Array.isArray(value) && value.length === 3 && value.every(orNone(isNumber));
const isRange: Check = (value) =>
  Array.isArray(value) && value.length === 2 && value.every(isNumber) && value[0] < value[1];
const isShare: Check = (value) => isNumber(value) && (value as number) >= 0 && (value as number) <= 1;
const isColors: Check = (value) =>
  isSome((color) => isText(color) && /^#[0-9a-f]{6}$/.test(color as string))(value) && (value as unknown[]).length > 1;
const isSize: Check = (value) => isPlace(value) && (value as number) > 0;

const isStage = isOneOf(
  ...["scores", "scaled", "capped", "masked", "weights", "contribution", "value_norm", "logit", "saliency"],
);

const isFacts = hasFields({
  version: isPlace,
  layers: isSome(isText),
  batches: isSize,
  heads: isSize,
  groups: isSize,
  queries: isPlace,
  keys: isPlace,
  head_size: orNone(isPlace),
  value_size: orNone(isPlace),
  dtype: isText,
  device: isText,
  is_causal: isFlag,
  stages: isListOf(isStage),
  targets: orNone(isListOf(hasFields({ token: isPlace, text: isText, choices: isListOf(Array.isArray) }))),
  stack: orNone(isText),
  stacks: orNone(isListOf(isText)),
  forward: orNone(isPlace),
  forwards: orNone(isPlace),
  request: orNone(isText),
  saved: orNone(hasFields({ layers: isListOf(isPlace), heads: isListOf(isPlace), samples: isListOf(isPlace) })),
});

const isProgress = hasFields({
  ...{ layer: isPlace, batch: isPlace, head: isHeadName, stage: isText, pool: isText },
  share: isNumber,
  seconds_left: orNone(isNumber),
  state: isOneOf("running", "stopped"),
  workers: orNone(isNumber),
  what: orNone(isOneOf("evictions")),
});

const isFinding = hasFields({
  ...{ kind: isText, where: isText, message: isText, advice: isText },
  severity: isOneOf("error", "warning", "note"),
  query: orNone(isPlace),
  key: orNone(isPlace),
});

const isDeviation = hasFields({
  ...{ layer: isPlace, batch: isPlace, head: isPlace },
  torch: hasFields({ difference: orNone(isNumber), queries: isPlace, equal: isFlag, why: isText }),
  original: orNone(hasFields({ weights: orNone(isNumber), output: orNone(isNumber), queries: isPlace })),
});

const isKeep = hasFields({
  policy: isOneOf("window", "heavy_hitters", "tova", "snapkv"),
  budget: isNumber,
  ...{ sinks: orNone(isPlace), recent: orNone(isPlace), prompt: orNone(isPlace), observe: orNone(isPlace) },
});

const isWhatIf = hasFields({
  ...{ scale: orNone(isNumber), temperature: orNone(isNumber), softcap: orNone(isNumber), window: orNone(isSize) },
  ...{ mask: orNone(isFlag), sinks: orNone(isFlag), dtype: orNone(isText) },
  causal: (value) => orNone(isFlag)(value) || value === "lower right",
  drop_keys: orNone(isListOf(isNumber)),
  keep: orNone(isKeep),
});

const isFigure: Check = (value) =>
  value === null || isNumber(value) || ["nan", "inf", "-inf"].includes(value as string);

const isEffects = hasFields({
  ...{ error: orNone(isText), at: orNone(isPlace), text: isText },
  target: orNone(hasFields({ token: orNone(isPlace), text: isText })),
  targets: isListOf(hasFields({ at: orNone(isPlace), token: orNone(isPlace), text: isText, note: isText })),
  ...{ edit: isText, edits: isListOf(hasFields({ value: isText, name: isText, of: isText })), unit: isText },
  segments: orNone(
    hasFields({ path: isListOf(isText), names: isListOf(isText), lost: isListOf(isFigure), dropped: isText }),
  ),
  heads: orNone(hasFields({ counts: isListOf(isPlace), lost: isListOf(isFigure) })),
  left_out: orNone(isText),
  ...{ done: isPlace, total: isPlace, seconds_left: orNone(isNumber), run_seconds: orNone(isNumber) },
  state: isOneOf("idle", "running", "stopped", "done", "failed"),
});

const isEffectDetail = hasFields({
  ...{ of: isObject, at: orNone(isPlace), token: orNone(isPlace), target: isText, edit: isText },
  ...{
    error: orNone(isText),
    vocabulary: orNone(isPlace),
    before: isFigure,
    after: isFigure,
    kl: isFigure,
    kl_answer: isFigure,
  },
  tokens: isListOf((value) => Array.isArray(value) && isText(value[0]) && isFigure(value[1]) && isFigure(value[2])),
});

const isErrors: Check = (value) => isObject(value) && Object.values(value as object).every(isText);
const isGrid = hasFields({
  ...{ rows: isSize, columns: isSize, query: orNone(isPlace), key: orNone(isPlace), frames: orNone(isSize) },
  windows: orNone(isListOf(isListOf(Number.isInteger))),
});
const isBytes: Check = (value) =>
  isText(value) || ArrayBuffer.isView(value) || Object.prototype.toString.call(value) === "[object ArrayBuffer]";
const isImage = hasFields({
  mime: isOneOf("image/png", "image/jpeg"),
  data: isBytes,
  width: isSize,
  height: isSize,
});

/** The kinds of the traits that are mirrored as they are. */
const CHECKS: Partial<Record<TraitName, Check>> = {
  uid: isText,
  title: isText,
  stack: orNone(isText),
  forward: orNone(isPlace),
  layer: isPlace,
  batch: isPlace,
  head: isPlace,
  query: orNone(isPlace),
  key: orNone(isPlace),
  heads: isSome(isPlace),
  pins: isListOf(isPin),
  view: isOneOf("compare", "heatmap", "graph", "text", "image", "heads", "segments", "stages", "why"),
  stage: isStage,
  target: orNone(isPlace),
  pool: isOneOf("max", "mean"),
  color_scale: isOneOf("linear", "log"),
  color_range: (value) => isOneOf("head", "row", "unit", "layer", "view")(value) || isRange(value),
  palette: (value) =>
    isOneOf("attnwidget", "viridis")(value) ||
    hasFields({ name: isText, kind: isOneOf("sequential", "diverging"), colors: isColors })(value),
  theme: isOneOf("auto", "light", "dark", "contrast"),
  top_k: orNone(isSize),
  threshold: isShare,
  across: orNone(hasFields({ how: isOneOf("mean", "max") })),
  overlay: orNone(isOneOf("patches", "smooth")),
  opacity: orNone(isShare),
  direction: isOneOf("query", "key"),
  bar: isText, // or a custom metric
  only_heads: orNone(isLimits),
  order: isText,
  combine: orNone(isOneOf("none", "mean", "max")),
  facts: isFacts,
  progress: orNone(isProgress),
  what_if: orNone(isWhatIf),
  sides: orNone(isListOf(isText)),
  against: orNone(isText),
  findings: orNone(isListOf(isFinding)),
  deviation: orNone(isDeviation),
  errors: orNone(isErrors),
  pieces: orNone(isOneOf("pieces", "words")),
  grid: orNone(isGrid),
  boxes: orNone(hasFields({ places: isListOf(isListOf(isShare)), query: isFlag, key: isFlag })),
  image: orNone(isImage),
  measure: orNone(isOneOf("mass", "per_token", "lift")),
  aside: orNone(isListOf(isText)),
  asking: orNone((value) => isText(value) || isListOf(isText)(value)),
  segment: orNone(isText),
  segment_path: orNone(isListOf(isText)),
  segments_show: orNone(isOneOf("attention", "effect")),
  effect_target: orNone((value) => Array.isArray(value) && value.length === 2 && value.every(isPlace)),
  effect_edit: orNone(isText),
  effects: orNone(isEffects),
  effect_details: orNone(isListOf(isEffectDetail)),
};

const NO_FACTS: Facts = {
  ...{ version: 0, layers: [""], batches: 1, heads: 1, groups: 1, queries: 0, keys: 0 },
  ...{ head_size: null, value_size: null, dtype: "", device: "", is_causal: false, stages: ["weights"] },
};

/** Values for traits that were invalid from the beginning. */
const INSTEAD: Partial<Traits> = {
  ...{ uid: "", title: "", layer: 0, batch: 0, head: 0, query: null, key: null, heads: [0], pins: [] },
  ...{ view: "heatmap", stage: "weights", pool: "max", color_scale: "linear", color_range: "head" },
  ...{ palette: "attnwidget", theme: "auto", top_k: null, threshold: 0.02, direction: "query" },
  ...{ across: null, overlay: "patches", opacity: 0.55 },
  ...{ bar: "entropy", order: "layer", combine: "none", facts: NO_FACTS, progress: null, what_if: {} },
  ...{ findings: null, deviation: null, grid: null, image: null, boxes: null },
  ...{ measure: "mass", aside: [], asking: null, segment: null, segment_path: [] },
};

/** Return whether a value is valid for this trait. */
export function fitsTrait(name: TraitName, value: unknown): boolean {
  return value === undefined || (CHECKS[name]?.(value) ?? true);
}

/** Return a valid value for this trait before one arrives. */
export function insteadOf<K extends TraitName>(name: K): Traits[K] {
  return INSTEAD[name] as Traits[K];
}
