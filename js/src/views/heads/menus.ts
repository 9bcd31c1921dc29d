/** Menus about heads: the metric under each, their order, and whether several are combined. */

import type { Section } from "../../components/menu";
import type { Facts } from "../../contract/messages";
import type { Traits } from "../../contract/traits";
import type { Metric } from "../../contract/values";
import { METRICS } from "../../data/survey";
import { askRuns } from "../../state/effects";
import type { Ui } from "../../state/ui";

const known = (name: string) => METRICS.find((metric) => metric.name === name);

export const wordOf = (name: string) => known(name)?.word.toLowerCase() ?? name;

const briefOf = (name: string) => known(name)?.brief ?? wordOf(name);

export const barName = ({ store }: Ui) => briefOf(store.bar.value);
export const orderName = ({ store }: Ui) =>
  store.order.value === "similar" ? "like this one" : `by ${briefOf(store.order.value)}`;

/** The available metrics: some need tokens. */
function choices({ store }: Ui) {
  const there = store.survey.value?.metrics;
  const named = METRICS.filter(({ name }) => there === undefined || there.some((metric) => metric.name === name));
  const own = there?.filter(({ kind }) => kind === "own") ?? [];
  return [...named, ...own].map(({ name, word }) => ({ value: name as string, name: word }));
}

/** Return the metrics that the bars can show. */
export function barSection(ui: Ui): Section {
  return {
    value: ui.store.bar.value,
    choices: choices(ui),
    choose(bar) {
      ui.store.show({ bar: bar as Metric });
      startRuns(ui, bar);
    },
  };
}

/** Start runs that have not been made, once their result is wanted. */
function startRuns(ui: Ui, chosen: string): void {
  if (chosen === "effect" && ui.store.effects.value?.state === "idle") askRuns(ui, "run");
}

/** Return the choices of an order. */
export function orderSection(ui: Ui): Section {
  return {
    value: ui.store.order.value,
    choices: [
      { value: "layer", name: "Layer" },
      { value: "similar", name: "Heads like this one", note: "by metrics and picture" },
      ...choices(ui),
    ],
    choose(order) {
      ui.store.show(
        order === "layer" || order === "similar" ? { order } : { order: order as Metric, bar: order as Metric },
      );
      startRuns(ui, order);
    },
  };
}

/** Return whether several heads can be combined here. */
export function canCombine({ store }: Ui): boolean {
  const { view, stage, facts, sides } = store;
  if ((sides.value?.length ?? 0) > 0 || stage.value !== "weights") return false;
  if (facts.value.heads < 2 && !canCross(facts.value)) return false;
  return view.value !== "stages" && view.value !== "why" && view.value !== "heads";
}

/** Return whether there are several layers or forward passes to show as one. */
const canCross = ({ every = 1, forwards = 1, saved }: Facts) => !saved && (every > 1 || forwards > 1);

const HOW = { none: "one", mean: "mean", max: "maximum" } as const;

/** Return how the chosen heads are shown, in a word or two. */
export function combineName({ store }: Ui): string {
  const across = store.across.value ?? null;
  if (across !== null) return `${HOW[across.how]} of layers`;
  const how = store.combine.value ?? "none";
  const heads = store.shownHeads.value.length;
  if (how === "none") return store.view.value === "graph" && heads > 1 ? "each" : HOW.none;
  return heads > 1 ? `${HOW[how]} of ${heads}` : HOW[how];
}

/** Return the ways to show several layers, and several forward passes, as one. */
function acrossSection({ store }: Ui): Section | null {
  const facts = store.facts.value;
  if (!canCross(facts)) return null;
  const { how = "none", forwards = null } = store.across.value ?? {};
  const value = how === "none" ? how : `${how}${forwards === null ? "" : " of all"}`;
  const passes = (facts.forwards ?? 1) > 1;
  const layers = (facts.every ?? 1) > 1 ? "all layers" : "all heads";
  return {
    title: "Layers",
    value,
    choices: [
      { value: "none", name: "each layer" },
      { value: "mean", name: `mean of ${layers}` },
      { value: "max", name: `maximum of ${layers}` },
      ...(passes ? [{ value: "mean of all", name: "mean of all forward passes" }] : []),
      ...(passes ? [{ value: "max of all", name: "maximum of all forward passes" }] : []),
    ],
    choose(chosen) {
      const [word] = chosen.split(" ") as ["none" | "mean" | "max"];
      store.show({ across: word === "none" ? null : { how: word, forwards: chosen.endsWith("all") ? "all" : null } });
    },
  };
}

/** Return the ways to show several heads. */
function combineSection({ store }: Ui): Section {
  return {
    value: store.combine.value ?? "none",
    choices: [
      { value: "none", name: store.view.value === "graph" ? "each separately" : "one" },
      { value: "mean", name: "mean of several" },
      { value: "max", name: "maximum of several" },
    ],
    choose(value) {
      const combine = value as Traits["combine"];
      const all = Array.from({ length: store.facts.value.heads }, (_, head) => head);
      // Combining needs several heads: all of them, until others are chosen.
      if (combine !== "none" && store.shownHeads.value.length < 2) store.select({ heads: all });
      store.show({ combine });
    },
  };
}

/** Return the sections of the menu of heads. */
export function headSections(ui: Ui): Section[] {
  const across = acrossSection(ui);
  const own = ui.store.facts.value.heads > 1 ? [combineSection(ui)] : [];
  return across === null ? own : [...own, across];
}
