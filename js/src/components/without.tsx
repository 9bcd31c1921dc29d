/** *Without it*: the model's next token without the pinned edge, key or segment, or without the head. */

import { signal } from "@preact/signals-core";
import { Component } from "preact";
import type { EffectOf } from "../contract/messages";
import { editWords, effectKey, lossOf } from "../data/effects";
import { nameOf } from "../data/survey";
import { askEffect, effectOf } from "../state/effects";
import type { Ui } from "../state/ui";
import { count, listNumber } from "../text/format";
import { Chances, Loss, lostBy } from "./chances";
import { sentence } from "./phrases";
import { placeText } from "./place";
import { RadioWords } from "./radio-words";

/** Return what can be removed here, as text, the most specific first. */
function removable({ store }: Ui): Record<string, EffectOf> {
  const [layer, head, query, key] = [store.layer.value, store.head.value, store.query.value, store.key.value];
  const [segment, path] = [store.segment.value, store.segment_path.value ?? []];
  return {
    ...(query !== null && key !== null ? { "this edge": { layer, head, query, key } } : {}),
    ...(key !== null ? { [`key ${placeText(store.keyLabels.value, key, "key").replace(/^key /, "")}`]: { key } } : {}),
    ...(segment && store.segments.value !== null ? { [segment]: { segment, path } } : {}),
    [`head ${nameOf({ layer, head }, store.facts.value)}`]: { layer, head },
  };
}

/** Choose what to remove, and show the result; nothing without a model. */
export class Without extends Component<{ ui: Ui }> {
  private chosen = signal(""); // a signal, so that updates are followed

  override render({ ui }: { ui: Ui }) {
    const chosen = this.chosen.value;
    const now = ui.store.effects.value;
    if (!now) return null;
    const all = removable(ui);
    const words = Object.fromEntries(Object.keys(all).map((name) => [name, name]));
    const name = Object.keys(all).find((one) => effectKey(all[one]!) === chosen) ?? null;
    const [before, after] = editWords(now);
    const told = (one: string) => {
      const lost = knownLoss(ui, all[one]!);
      return lost === null || Number.isNaN(lost) ? "" : `lost ${listNumber(lost, "scores")}`;
    };
    const notes = Object.fromEntries(Object.keys(all).map((one) => [one, told(one)]));
    const lost = name === null ? "" : notes[name];
    const choose = (next: string) => {
      this.chosen.value = next === name ? "" : effectKey(all[next]!);
      askEffect(ui, all[next]!);
    };
    return (
      <section class="aw-without" aria-label="Without it">
        <RadioWords
          name="Without"
          label={before || after}
          class="aw-over-pins"
          words={words}
          notes={notes}
          chosen={name}
          choose={choose}
        />
        {name !== null && <Removed ui={ui} of={all[name]!} />}
        <div class="aw-visually-hidden" aria-live="polite">
          {lost && `${[before, name, after].filter(Boolean).join(" ")}, ${lost} ${now.unit}`}
        </div>
      </section>
    );
  }
}

/**
 * Return what is lost without something, from its own run or those of all segments and heads; null before it is run.
 */
function knownLoss(ui: Ui, of: EffectOf): number | null {
  const detail = effectOf(ui, of);
  if (detail === null) return lossOf(ui.store.effects.value!, of);
  return detail.error ? Number.NaN : lostBy(detail);
}

/**
 * Show what the model says next without something, or else what is lost, and why there is no more; `hint`: how to see
 * it.
 */
export function Removed({ ui, of, hint = "" }: { ui: Ui; of: EffectOf; hint?: string }) {
  const { effects, facts } = ui.store;
  const now = effects.value;
  if (!now) return null;
  const detail = effectOf(ui, of);
  const problem = ui.effectProblem.value?.key === effectKey(of) ? ui.effectProblem.value.text : null;
  const failed = now.error || detail?.error;
  const where = now.text.trim();
  if (detail === null || detail.error) {
    const lost = knownLoss(ui, of);
    const isKnown = lost !== null && !Number.isNaN(lost);
    const unknown = lost === null ? "Not yet run." : isKnown ? hint : "The model cannot be run without it.";
    const here = facts.value.saved
      ? `${isKnown ? "The next token without it" : "This"} was not saved: open the notebook to compute it.`
      : problem === ""
        ? "The model runs without it."
        : problem
          ? sentence(problem)
          : unknown;
    const text = failed ? sentence(failed) : here;
    return (
      <>
        {isKnown && <Loss text={now.target?.text ?? ""} value={lost} unit={now.unit} />}
        {text && <p class="aw-prompt">{text}</p>}
      </>
    );
  }
  return (
    <>
      <p class="aw-prompt aw-without-where">
        next token
        {where && (
          <>
            {" "}
            after <bdi>“{where}”</bdi>
            {now.at !== null && `, position ${count(now.at)}`}
          </>
        )}
      </p>
      <Chances detail={detail} unit={now.unit} />
    </>
  );
}
