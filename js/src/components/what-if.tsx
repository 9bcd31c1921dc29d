/** Other rules for the same tensors: a menu, and a scale that can be dragged. */

import { effect } from "@preact/signals-core";
import { Component } from "preact";
import type { Keep, WhatIf } from "../contract/messages";
import type { ExplainedPair } from "../data/stage-data";
import type { Store } from "../state/store";
import type { Ui } from "../state/ui";
import { rove } from "./dom";
import { Menu, type Section } from "./menu";
import { NumberField, typedIn } from "./number-field";
import { withoutKernel } from "./phrases";
import { placeText } from "./place";

/** Return what is changed in a few words; "none" if nothing is. */
export function whatIfName(changes: WhatIf): string {
  const { scale, temperature, softcap, mask, causal, window, drop_keys, sinks, dtype, keep } = changes;
  const words = [
    scale === undefined ? "" : `scale ${short(scale)}`,
    temperature === undefined ? "" : `temperature ${short(temperature)}`,
    softcap === undefined ? "" : softcap === null ? "no softcap" : `softcap ${short(softcap)}`,
    mask === false ? "no mask" : "",
    causal === undefined ? "" : causal === false ? "not causal" : causal === true ? "causal" : "causal, lower right",
    window === undefined ? "" : window === null ? "no window" : `window ${window}`,
    drop_keys === undefined || drop_keys.length === 0
      ? ""
      : `without ${drop_keys.length} ${drop_keys.length === 1 ? "key" : "keys"}`,
    sinks === null || sinks === false ? "no sink" : "",
    dtype ?? "",
    keep ? `${POLICIES[keep.policy]}, ${budgetName(keep.budget)}` : "",
  ].filter(Boolean);
  return words.length === 0 ? "none" : words.length > 2 ? `${words.length} changes` : words.join(", ");
}

/** The name of each cache policy. */
const POLICIES: Record<Keep["policy"], string> = {
  window: "window and first keys",
  heavy_hitters: "heavy hitters",
  tova: "TOVA",
  snapkv: "SnapKV",
};

const budgetName = (budget: number) =>
  Number.isInteger(budget) && budget >= 1 ? `${budget} keys` : `${Math.round(100 * budget)} % of the keys`;

const short = (value: number) => String(Number(value.toPrecision(3))).replace("-", "−");

type Part = { [K in keyof WhatIf]?: WhatIf[K] | undefined };

/** Change one rule in addition to the changed ones; undefined restores the original. */
export function change(store: Store, part: Part): void {
  store.show({ what_if: changed(store, part) });
}

function changed(store: Store, part: Part): WhatIf {
  const all = Object.entries({ ...store.what_if.peek(), ...part });
  return Object.fromEntries(all.filter(([, value]) => value !== undefined)) as WhatIf;
}

export function WhatIfMenu({ ui }: { ui: Ui }) {
  const { store } = ui;
  const changes = store.what_if.value;
  const name = whatIfName(changes);
  const words =
    ui.mode.value === "narrow" ? { value: name === "none" ? "What if" : name } : { label: "What if", value: name };
  return (
    <Menu name="What if" {...words} sections={sections(ui)} disabled={withoutKernel(ui, "try other rules")}>
      <Budget ui={ui} />
      <h4>An empty field keeps the head's own value</h4>
      <Numbers ui={ui} />
      {Object.keys(changes).length > 0 && (
        <button type="button" role="menuitem" onClick={() => store.show({ what_if: {} })}>
          Reset
        </button>
      )}
    </Menu>
  );
}

/** Show all rules at once, if there is room next to what they change. */
export function WhatIfPanel({ ui }: { ui: Ui }) {
  return (
    <section class="aw-other-rules" aria-label="What if">
      {sections(ui).map(({ title, value, choices, choose }) => (
        <div key={title} role="radiogroup" aria-label={title}>
          <span>{title}</span>
          {choices.map((choice, index) => (
            <button
              type="button"
              role="radio"
              key={choice.value}
              aria-checked={choice.value === value}
              tabIndex={choice.value === value || (index === 0 && !isOffered(choices, value)) ? 0 : -1}
              title={choice.note || undefined}
              onClick={() => choose(choice.value)}
              onKeyDown={(event) =>
                rove(event, index, choices.length, (at) => choose((choices[at] as (typeof choices)[number]).value))
              }
            >
              {choice.name}
            </button>
          ))}
        </div>
      ))}
      <Budget ui={ui} />
      <Numbers ui={ui} />
    </section>
  );
}

/** Whether the current value is one of the choices; it may be a custom number. */
const isOffered = (choices: Section["choices"], value: Section["value"]) =>
  choices.some((choice) => choice.value === value);

/** Fields that take any number; an empty one keeps the original. */
const FIELDS = [
  { name: "scale", label: "Scale", note: "multiplies each score", whole: false, least: Number.NEGATIVE_INFINITY },
  { name: "temperature", label: "Temperature", note: "divides the scale", whole: false, least: 0 },
  { name: "softcap", label: "Softcap", note: "or “none”", whole: false, least: 0 },
  { name: "window", label: "Window", note: "keys, or “none”", whole: true, least: 1 },
] as const;
type Field = (typeof FIELDS)[number];

/** Parse typed text: undefined keeps the original, null is none; a text is an error message. */
function typed({ label, name, whole, least }: Field, text: string): number | null | undefined | string {
  const word = text.trim().toLowerCase();
  if (word === "") return undefined;
  if (word === "none" && (name === "softcap" || name === "window")) return null;
  const value = Number(word.replace("−", "-"));
  if (!Number.isFinite(value)) return `${label} must be a number`;
  if (whole && (!Number.isInteger(value) || value < least)) return `${label} must be a whole number of keys, 1 or more`;
  return least === 0 && value <= 0 ? `${label} must be above 0` : value;
}

class Numbers extends Component<{ ui: Ui }, { error: string; of: string }> {
  override state = { error: "", of: "" };

  private submit = (event: Event) => {
    event.preventDefault();
    const { store } = this.props.ui;
    const wanted: { [name: string]: number | null | undefined } = {};
    const of = textsOf(store.what_if.value).join();
    for (const field of FIELDS) {
      const text = typedIn(event.currentTarget, field.name);
      if (text === textOf(store.what_if.value[field.name])) continue; // an unchanged text keeps all its digits
      const value = typed(field, text);
      if (typeof value === "string") return this.setState({ error: value, of });
      wanted[field.name] = value;
    }
    this.setState({ error: "" });
    if (Object.keys(wanted).length > 0) change(store, wanted as WhatIf);
  };

  override render({ ui }: { ui: Ui }, { error, of }: { error: string; of: string }) {
    const texts = textsOf(ui.store.what_if.value);
    return (
      <>
        <form class="aw-fields" onSubmit={this.submit}>
          {FIELDS.map(({ name, label, note }, at) => (
            <label key={name}>
              <span>{label}</span>
              <NumberField name={name} label={label} text={texts[at]!} placeholder="own" />
              <span class="aw-muted">{note}</span>
            </label>
          ))}
          <button type="submit" class="aw-set">
            Set
          </button>
        </form>
        <div class="aw-form-error" role="alert">
          {of === texts.join() && error}
        </div>
      </>
    );
  }
}

/** The texts in the fields. */
const textsOf = (changes: WhatIf) => FIELDS.map(({ name }) => textOf(changes[name]));

/** The first keys, which a window always includes, as in Python. */
const FIRST_KEYS = 4;

/** The smallest budget of a policy. */
const leastOf = ({ policy, sinks, observe }: Keep) =>
  policy === "window" ? (sinks ?? FIRST_KEYS) + 1 : policy === "snapkv" ? (observe ?? 32) + 1 : 2;

/** The cache's budget of keys: a slider whose newest value is always sent. */
function Budget({ ui }: { ui: Ui }) {
  const { store } = ui;
  const keep = store.what_if.value.keep;
  if (!keep) return null;
  const { keys } = store.facts.value;
  const least = Math.min(leastOf(keep), keys);
  const budget = Number.isInteger(keep.budget) && keep.budget >= 1 ? keep.budget : Math.ceil(keep.budget * keys);
  return (
    <label class="aw-budget">
      <span>Budget</span>
      <input
        type="range"
        min={least}
        max={keys}
        value={Math.min(Math.max(budget, least), keys)}
        aria-label="Keys that the cache holds"
        aria-valuetext={`${budget} of ${keys} keys`}
        onInput={(event) => senderOf(store, "budget")(Number((event.currentTarget as HTMLInputElement).value))}
        onKeyDown={(event) => event.stopPropagation()}
      />
      <span class="aw-muted">{`${budget} of ${keys} keys`}</span>
    </label>
  );
}

const textOf = (value: number | null | undefined) =>
  value === undefined ? "" : value === null ? "none" : String(Number(value.toPrecision(6)));

function sections({ store }: Ui): Section[] {
  const changes = store.what_if.value;
  const { head_size, is_causal, has_sinks, queries, keys } = store.facts.value;
  const noSink = changes.sinks === null || changes.sinks === false;
  const key = store.key.value;
  const dropped = changes.drop_keys ?? [];
  const found: Section[] = [
    {
      title: "Scale",
      value: changes.scale === undefined ? "own" : String(changes.scale),
      choices: [
        { value: "own", name: "as it was" },
        ...(head_size === null ? [] : [{ value: String(head_size ** -0.5), name: `1 ÷ √${head_size}` }]),
        { value: "1", name: "1", note: "no scaling" },
      ],
      choose: (value) => change(store, { scale: value === "own" ? undefined : Number(value), temperature: undefined }),
    },
    {
      title: "Mask",
      value: changes.mask === false ? "off" : "on",
      choices: [
        { value: "on", name: "as it was" },
        { value: "off", name: "without the mask" },
      ],
      choose: (value) => change(store, { mask: value === "off" ? false : undefined }),
    },
    {
      title: "Causal",
      value: changes.causal === undefined ? "own" : String(changes.causal),
      choices: [
        { value: "own", name: "as it was", note: is_causal ? "causal" : "" },
        ...(is_causal ? [{ value: "false", name: "off" }] : [{ value: "true", name: "on", note: "upper left" }]),
        { value: "lower right", name: "lower right" },
      ],
      choose: (value) =>
        change(store, {
          causal: value === "own" ? undefined : value === "lower right" ? "lower right" : value === "true",
        }),
    },
    {
      title: "Number type",
      value: changes.dtype ?? "own",
      choices: [
        { value: "own", name: "as they are" },
        { value: "float16", name: "float16" },
        { value: "bfloat16", name: "bfloat16" },
        { value: "int8", name: "int8", note: "one scale per token" },
      ],
      choose: (value) => change(store, { dtype: value === "own" ? undefined : (value as "int8") }),
    },
  ];
  if (changes.keep || (is_causal && queries === keys && keys > LEAST_CACHED)) {
    found.push({
      title: "Cache",
      value: changes.keep?.policy ?? "all",
      choices: [
        { value: "all", name: "all keys" },
        { value: "window", name: POLICIES.window },
        { value: "heavy_hitters", name: POLICIES.heavy_hitters, note: "H2O" },
        { value: "tova", name: POLICIES.tova },
      ],
      choose: (value) => change(store, { keep: value === "all" ? undefined : keepOf(value, changes.keep, keys) }),
    });
  }
  if (has_sinks || noSink) {
    found.push({
      title: "Sink",
      value: noSink ? "off" : "on",
      choices: [
        { value: "on", name: "as it was" },
        { value: "off", name: "without the sink" },
      ],
      choose: (value) => change(store, { sinks: value === "off" ? false : undefined }),
    });
  }
  if (key !== null || dropped.length > 0) {
    const isDropped = key !== null && dropped.includes(key);
    found.push({
      title: "Keys",
      value: isDropped ? "drop" : "own",
      choices: [
        { value: "own", name: "all" },
        ...(key === null ? [] : [{ value: "drop", name: `without ${placeText(store.keyLabels.value, key, "key")}` }]),
      ],
      choose: (value) =>
        change(store, { drop_keys: value === "own" || key === null ? undefined : [...new Set([...dropped, key])] }),
    });
  }
  return found;
}

const LEAST_CACHED = 8; // keys: with fewer, none needs to be evicted

/** Another policy with the same budget, or with a quarter of the keys. */
function keepOf(policy: string, before: Keep | null | undefined, keys: number): Keep {
  const found = { policy: policy as Keep["policy"], budget: before?.budget ?? Math.ceil(keys / 4) };
  return { ...found, budget: found.budget < 1 ? found.budget : Math.max(found.budget, leastOf(found)) };
}

const PATIENCE = 600; // milliseconds after which an answer is no longer awaited

const AHEAD = 2; // pending values: the kernel computes one while another's result is drawn

/** Dragging chooses the resulting scale. */
const ofScale = (scale: number): Part => ({ scale, temperature: undefined });

/**
 * Return a function that sends the newest of many numbers: the next goes once the last one's effect has arrived, and
 * the last is always sent.
 */
export function newestOnly(store: Store, part: (value: number) => Part = ofScale): (value: number) => void {
  let wanted: number | null = null;
  let ahead = 0;
  let version = 0; // of the tensors: each sent value makes a new one
  let timer: ReturnType<typeof setTimeout> | undefined;
  let end: (() => void) | null = null;
  const send = () => {
    if (wanted === null || ahead >= AHEAD) return;
    const value = wanted;
    wanted = null;
    ahead++;
    clearTimeout(timer);
    timer = setTimeout(() => arrived(ahead), PATIENCE);
    store.attempt(changed(store, part(value)));
  };
  const arrived = (count: number) => {
    ahead = Math.max(0, ahead - count);
    send();
    if (ahead > 0) return;
    clearTimeout(timer);
    end?.();
    end = null;
  };
  return (value) => {
    wanted = value;
    if (end === null) {
      version = store.facts.peek().version;
      end = effect(() => {
        const count = store.facts.value.version - version;
        version += count;
        if (count > 0) queueMicrotask(() => arrived(count));
      });
    }
    send();
  };
}

type Dragged = "scale" | "budget";
const senders = new WeakMap<Store, Partial<Record<Dragged, (value: number) => void>>>();

/** Return the sender of a control, one for each, so that its numbers arrive in order. */
function senderOf(store: Store, name: Dragged): (value: number) => void {
  const known = senders.get(store) ?? {};
  senders.set(store, known);
  known[name] ??= name === "scale" ? newestOnly(store) : newestOnly(store, (budget) => ofBudget(store, budget));
  return known[name];
}

const ofBudget = (store: Store, budget: number): Part => {
  const keep = store.what_if.peek().keep;
  return keep ? { keep: { ...keep, budget } } : {};
};

/** Return the handlers of the dot for the scaled score: moving it changes the scale. */
export function dragScale(ui: Ui, pair: ExplainedPair, valueAt: (x: number, width: number) => number) {
  const { store } = ui;
  const score = pair.score ?? 0;
  const send = senderOf(store, "scale");
  const to = (scale: number) => send(Number(scale.toPrecision(4)));
  const scale = pair.scale ?? 1;
  return {
    tabindex: 0, // SVG elements know only this spelling
    role: "slider" as const,
    "aria-label": "Scale",
    "aria-valuenow": Number(scale.toPrecision(4)),
    "aria-valuetext": `scale ${Number(scale.toPrecision(4))}`,
    onPointerDown(event: PointerEvent) {
      if (score === 0) return;
      const grip = event.currentTarget as SVGCircleElement;
      const chart = grip.ownerSVGElement as SVGSVGElement;
      const frame = chart.getBoundingClientRect();
      const end = new AbortController();
      event.preventDefault();
      window.addEventListener(
        "pointermove",
        (moved) => {
          to(Math.max(0, valueAt(moved.clientX - frame.left, frame.width) / score)); // beyond the end: above 1
        },
        { signal: end.signal },
      );
      for (const name of ["pointerup", "pointercancel"] as const) {
        window.addEventListener(name, () => end.abort(), { signal: end.signal });
      }
      ui.stop.addEventListener("abort", () => end.abort(), { once: true, signal: end.signal });
    },
    onKeyDown(event: KeyboardEvent) {
      const factors: Record<string, number> = {
        ArrowRight: 1.05,
        ArrowUp: 1.05,
        ArrowLeft: 1 / 1.05,
        ArrowDown: 1 / 1.05,
      };
      const factor = factors[event.key];
      if (factor === undefined) return;
      event.preventDefault();
      event.stopPropagation();
      to(scale * factor);
    },
  };
}
