/** *Without it*: what the model says next without the pinned edge, key or segment, or without the head. */

import { Component } from "preact";
import type { EffectOf } from "../contract/messages";
import { editWords, effectKey } from "../data/effects";
import { nameOf } from "../data/survey";
import { askEffect, effectOf } from "../state/effects";
import type { Ui } from "../state/ui";
import { listNumber } from "../text/format";
import { Chances, lostBy } from "./chances";
import { sentence } from "./phrases";
import { RadioWords } from "./radio-words";

/** Return what can be taken away here, in words, the most particular first. */
function removable({ store }: Ui): Record<string, EffectOf> {
  const [layer, head, query, key] = [store.layer.value, store.head.value, store.query.value, store.key.value];
  const [segment, path] = [store.segment.value, store.segment_path.value ?? []];
  return {
    ...(query !== null && key !== null ? { "this edge": { layer, head, query, key } } : {}),
    ...(key !== null ? { [`key ${store.keyLabels.value.at(key).text}`]: { key } } : {}),
    ...(segment && store.segments.value !== null ? { [segment]: { segment, path } } : {}),
    [`head ${nameOf({ layer, head }, store.facts.value)}`]: { layer, head },
  };
}

/** Choose what to take away, and show what that does; nothing where there is no model. */
export class Without extends Component<{ ui: Ui }, { chosen: string }> {
  override state = { chosen: "" };

  override render({ ui }: { ui: Ui }, { chosen }: { chosen: string }) {
    const now = ui.store.effects.value;
    if (!now) return null;
    const all = removable(ui);
    const words = Object.fromEntries(Object.keys(all).map((name) => [name, name]));
    const name = Object.keys(all).find((one) => effectKey(all[one]!) === chosen) ?? null;
    const [before, after] = editWords(now);
    const detail = name === null ? null : effectOf(ui, all[name]!);
    const choose = (next: string) => {
      this.setState({ chosen: next === name ? "" : effectKey(all[next]!) });
      askEffect(ui, all[next]!);
    };
    return (
      <section class="aw-without" aria-label="Without it">
        <RadioWords
          name="Without"
          label={before || after}
          class="aw-over-pins"
          words={words}
          chosen={name}
          choose={choose}
        />
        {name !== null && <Removed ui={ui} of={all[name]!} />}
        <div class="aw-visually-hidden" aria-live="polite">
          {detail &&
            `${[before, name, after].filter(Boolean).join(" ")}, lost ${listNumber(lostBy(detail), "scores")} ${now.unit}`}
        </div>
      </section>
    );
  }
}

/** Show what the model says next without something, or why that is not known. */
export function Removed({ ui, of, unknown }: { ui: Ui; of: EffectOf; unknown?: string }) {
  const { effects } = ui.store;
  const detail = effectOf(ui, of);
  const problem = ui.effectProblem.value?.key === effectKey(of) ? ui.effectProblem.value.text : null;
  const error = effects.value?.error || detail?.error || problem;
  const where = effects.value?.text.trim();
  if (detail === null || detail.error) {
    const text = error ? sentence(error) : problem === "" ? "The model runs without it." : (unknown ?? "Not yet run.");
    return <p class="aw-prompt">{text}</p>;
  }
  return (
    <>
      <p class="aw-prompt aw-without-where">
        next token
        {where && (
          <>
            {" "}
            after <bdi>“{where}”</bdi>
          </>
        )}
      </p>
      <Chances detail={detail} unit={effects.value!.unit} />
    </>
  );
}
