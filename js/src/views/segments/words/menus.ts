/** The toolbar's menus for the segments view: measure, excluded segments, asking segment. */

import type { Section } from "../../../components/menu";
import { sumWord } from "../../../contract/stages";
import type { Measure } from "../../../contract/values";
import { type EffectOrder, ORDERS } from "../../../data/effects";
import {
  LEARNED_SINK,
  leftOf,
  MEASURE_WORDS,
  MEASURES,
  measureOf,
  piecesBelow,
  SELF,
  SINKS,
} from "../../../data/segments";
import type { Ui } from "../../../state/ui";
import { tokenName } from "../../../text/tokens";
import { ask, askAround, askInside } from "../input/pins";

const NOTES: Readonly<Record<Measure, string>> = {
  mass: "mean weight on a segment's keys",
  per_token: "mass ÷ its tokens",
  lift: "mass ÷ mass of even attention",
};

/** Return the measures of attention to a segment. */
export function measureSection({ store }: Ui): Section {
  const stage = store.linkedStage.value;
  if (stage !== "weights") {
    return {
      value: measureOf(store.measure.value, stage),
      choices: [
        { value: "mass", name: "sum", note: `${sumWord(stage)}, over a segment's keys` },
        { value: "per_token", name: MEASURE_WORDS.per_token, note: "the sum ÷ its tokens" },
        { value: "lift", name: MEASURE_WORDS.lift, note: "weights only", disabled: true },
      ],
      choose: (measure) => store.show({ measure: measure as Measure }),
    };
  }
  return {
    value: store.measure.value ?? "mass",
    choices: MEASURES.map((value) => ({ value, name: MEASURE_WORDS[value], note: NOTES[value] })),
    choose: (measure) => store.show({ measure: measure as Measure }),
  };
}

/** Return the number of excluded segments. */
export function asideName({ store }: Ui): string {
  const { without, self } = leftOf(store.mass.value?.keys ?? [], store.aside.value ?? []);
  return `${without.length + (self ? 0 : 1) || "none"}`;
}

/** Return the segments that can be excluded, and each query's own key. */
export function asideSection({ store }: Ui): Section {
  const keys = store.mass.value?.keys ?? [];
  const chosen = store.aside.value ?? [];
  const named = chosen.includes(SINKS)
    ? [...chosen.filter((name) => name !== SINKS), "first token", LEARNED_SINK]
    : chosen;
  return {
    value: named,
    choices: [...keys.map((name) => ({ value: name, name })), { value: SELF, name: "own key", note: "of each query" }],
    choose: (name) =>
      store.show({ aside: named.includes(name) ? named.filter((one) => one !== name) : [...named, name] }),
  };
}

const NOTE = "the loss without each one";
const NO_MODEL = "needs a model: cap.widget(model=model, inputs=inputs)";

/** Whether the view shows the loss without segments and heads. */
export const showsEffect = ({ store }: Ui) => store.segments_show.value === "effect" && Boolean(store.effects.value);

/** Return the two things that this view can show; without a model, one is disabled with the reason. */
export function showSection({ store }: Ui): Section {
  const there = Boolean(store.effects.value);
  return {
    value: there ? (store.segments_show.value ?? "attention") : "attention",
    choices: [
      { value: "attention", name: "attention" },
      { value: "effect", name: "effect", note: there ? NOTE : NO_MODEL, disabled: !there },
    ],
    choose: (show) => store.show({ segments_show: show as "attention" | "effect" }),
  };
}

/** Return the tokens whose probability can be examined. */
export function targetSection({ store }: Ui): Section {
  const { at, target, targets = [] } = store.effects.value ?? {};
  return {
    value: `${at} ${target?.token}`,
    choices: targets.map((one) => ({ value: `${one.at} ${one.token}`, name: tokenName(one.text), note: one.note })),
    choose(value) {
      const found = targets.find((one) => value === `${one.at} ${one.token}`);
      if (found?.at != null && found.token !== null) store.show({ effect_target: [found.at, found.token] });
    },
  };
}

/** The token whose probability is examined. */
export const targetWord = ({ store }: Ui) => tokenName(store.effects.value?.target?.text ?? "");

/** The edit of each segment and head, in a word or two. */
export function editWord({ store }: Ui): string {
  const { edit = "", edits = [] } = store.effects.value ?? {};
  return edits.find(({ value }) => value === edit)?.name ?? "";
}

/** Return the edits of a head. */
export function editSection({ store }: Ui): Section {
  const { edit = "", edits = [] } = store.effects.value ?? {};
  return {
    value: edit,
    choices: edits.map(({ value, name, of }) => ({ value, name, note: `each head ${of}` })),
    choose: (effect_edit) => store.show({ effect_edit }),
  };
}

/** Return the orders of segments and heads by effect. */
export function effectOrderSection(ui: Ui): Section {
  return {
    value: ui.effectOrder.value,
    choices: Object.entries(ORDERS).map(([value, name]) => ({ value, name })),
    choose(order) {
      ui.effectOrder.value = order as EffectOrder;
    },
  };
}

/** Return the segments that can be the asking one, with the ways into one and out of it. */
export function askingSection(ui: Ui): Section {
  const now = ui.store.mass.value;
  const path = now?.askingPath ?? [];
  const segments = ui.store.segments.value;
  const own = [...path, now?.asking ?? ""];
  const up = path.length > 0 ? [{ value: AROUND, name: `‹ ${path.at(-1)}`, note: "as a whole" }] : [];
  const isDivided = segments !== null && piecesBelow(segments, own).length > 0;
  const down = isDivided ? [{ value: INSIDE, name: `inside ${now?.asking} ›`, note: "its segments" }] : [];
  return {
    value: `=${now?.asking ?? ""}`,
    choices: [...up, ...(now?.rows ?? []).map((name) => ({ value: `=${name}`, name })), ...down],
    choose(value) {
      if (value === AROUND) askAround(ui);
      else if (value === INSIDE) askInside(ui, own);
      else ask(ui, value.slice(1));
    },
  };
}

const AROUND = "around";
const INSIDE = "inside";
