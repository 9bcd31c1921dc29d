/** What the toolbar shows in the segments view: how attention is read, what is set aside, whose it is. */

import type { Section } from "../../components/menu";
import type { Measure } from "../../contract/values";
import { LEARNED_SINK, leftOf, MEASURE_WORDS, MEASURES, SELF, SINKS } from "../../data/segments";
import type { Ui } from "../../state/ui";

const NOTES: Readonly<Record<Measure, string>> = {
  mass: "mean weight on a segment's keys",
  per_token: "mass ÷ its tokens",
  lift: "mass ÷ that of even attention",
};

/** Return the choices of how attention to a segment is read. */
export function measureSection({ store }: Ui): Section {
  return {
    value: store.measure.value ?? "mass",
    choices: MEASURES.map((value) => ({ value, name: MEASURE_WORDS[value], note: NOTES[value] })),
    choose: (measure) => store.show({ measure: measure as Measure }),
  };
}

/** Return how many segments are set aside, in a word. */
export function asideName({ store }: Ui): string {
  const { without, self } = leftOf(store.mass.value?.keys ?? [], store.aside.value ?? []);
  return `${without.length + (self ? 0 : 1) || "none"}`;
}

/** Return the segments, each to be set aside or not, and each query's own key. */
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

/** Return the segments whose attention can be looked at. */
export function askingSection({ store }: Ui): Section {
  const now = store.mass.value;
  return {
    value: now?.asking ?? "",
    choices: (now?.rows ?? []).map((name) => ({ value: name, name })),
    choose: (asking) => store.show({ asking }),
  };
}
