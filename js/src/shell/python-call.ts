/** The current state as Python code: the call that shows it again, and the pinned numbers. */

import { isNamed } from "../components/phrases";
import { BLOCKED } from "../contract/decode";
import { wordOf } from "../contract/stages";
import type { OwnPalette, Pin } from "../contract/values";
import type { Segments } from "../data/segment-data";
import type { Ui } from "../state/ui";
import type { Labels } from "../text/labels";

/** Traits that become keywords of the call when they differ from their defaults. */
const USUAL = {
  layer: 0,
  batch: 0,
  view: "heatmap",
  stage: "weights",
  pool: "max",
  combine: "none",
  what_if: {},
  color_scale: "linear",
  color_range: "head",
  palette: "attnwidget",
  across: null,
  theme: "auto",
  top_k: null,
  threshold: 0.02,
  overlay: "patches",
  opacity: 0.55,
  direction: "query",
  against_at: null,
  bar: "entropy",
  order: "layer",
  only_heads: null,
  measure: "mass",
  aside: ["first token", "template"],
  asking: null,
  segment_path: [],
  segment: null,
  segments_show: "attention",
} as const;

/** How many pieces are written out. */
const MOST_PIECES = 64;
/** The name of everything that is in no other segment. */
const MADE = ["first token", "other"];

/** Return lines of Python. */
export function pythonOf(ui: Ui): string {
  const { store } = ui;
  const sides = store.sides.value ?? [];
  const called =
    sides.length > 0
      ? [
          `compare({${sides.map((name) => `${literal(name)}: …`).join(", ")}}`,
          `against=${literal(store.against.value)}`,
        ]
      : [`AttentionWidget(q, k, v`, ...(store.queryLabels.value.raw(0) === null ? [] : ["tokens=tokens"])];
  const samples = store.facts.value.batches;
  const [segments, ofKeys] = [store.segments.value, store.keySegments.value];
  if (segments !== null) called.push(`segments=${spansOf(segments, samples)}`);
  if (ofKeys !== null && ofKeys !== segments) called.push(`key_segments=${spansOf(ofKeys, samples)}`);
  const keywords = Object.entries(USUAL).flatMap(([name, usual]) => {
    const value = plainly(store[name as keyof typeof USUAL].value);
    return literal(value) === literal(usual) || value === undefined ? [] : [`${name}=${literal(value)}`];
  });
  const heads = store.shownHeads.value;
  const head = store.head.value;
  if (heads.length > 1) keywords.push(`heads=${literal(heads)}`);
  if (heads.length > 1 || head !== 0) keywords.push(`head=${head}`);
  const pins = store.shownPins.value;
  if (pins.length > 0) keywords.push(`pins=[${pins.map(tuple).join(", ")}]`);
  return [`w = ${[...called, ...keywords].join(", ")})`, ...pinnedLines(ui, pins)].join("\n");
}

/** `{"doc 1": (4, 60)}`; just `segments` if nested, very many, of several samples or of a chat. */
function spansOf({ names, starts, stops, levels, more }: Segments, samples: number): string {
  const spans = new Map<string, string[]>();
  names.forEach((name, at) => {
    if (!MADE.includes(name)) spans.set(name, [...(spans.get(name) ?? []), `(${starts[at]}, ${stops[at]})`]);
  });
  const isPlain = levels.every((level) => level === 0) && !spans.has("template") && !spans.has("padding");
  if (!isPlain || spans.size === 0 || samples > 1 || more > 0 || names.length > MOST_PIECES) return "segments";
  const written = [...spans].map(
    ([name, each]) => `${literal(name)}: ${each.length > 1 ? `[${each.join(", ")}]` : each}`,
  );
  return `{${written.join(", ")}}`;
}

const tuple = (pin: Pin) => `(${pin.map(literal).join(", ")})`;

/** A line for each pin; the last one with its number. */
function pinnedLines({ store, pinned }: Ui, pins: readonly Pin[]): string[] {
  const named = (side: string, labels: Labels, at: number | null) =>
    at === null ? [] : [`${side} ${at}${isNamed(labels, at) ? ` ${literal(labels.at(at).text)}` : ""}`];
  return pins.map(([query, key], at) => {
    const words = [...named("query", store.queryLabels.value, query), ...named("key", store.keyLabels.value, key)].join(
      ", ",
    );
    const reading = pinned.value;
    if (at < pins.length - 1 || reading === null || reading.query !== query || reading.key !== key) return `# ${words}`;
    const number = reading.kind === BLOCKED ? "masked" : `${wordOf(store.stage.value)} ${reading.value}`;
    return `# ${words}: ${number}`;
  });
}

/** Return a value as Python writes it. */
/** A palette of the user's own is a name or a list of colors in Python. */
function plainly(value: unknown): unknown {
  const own = typeof value === "object" && value !== null && "colors" in value ? (value as OwnPalette) : null;
  return own === null ? value : own.name.startsWith("#") ? own.colors : own.name;
}

function literal(value: unknown): string {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "string") return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") {
    const fields = Object.entries(value).map(([name, inner]) => `${JSON.stringify(name)}: ${literal(inner)}`);
    return `{${fields.join(", ")}}`;
  }
  return String(value);
}
