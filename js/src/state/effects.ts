/** Runs of the model without something: asking for them, and finding their results. */

import type { EffectDetail, EffectOf } from "../contract/messages";
import { detailOf, effectKey } from "../data/effects";
import { KernelError } from "../kernel/kernel";
import type { Ui } from "./ui";

/** Return the run without something; null if there was none. */
export function effectOf({ store }: Ui, of: EffectOf): EffectDetail | null {
  const now = store.effects.value;
  return now ? detailOf(store.effect_details.value, now, of) : null;
}

/** Run the model without something; the result arrives as a trait. */
export function askEffect(ui: Ui, of: EffectOf): void {
  if (effectOf(ui, of) === null) ask(ui, "effect", { of }, effectKey(of));
}

/** Run all segments and heads, stop, or resume. */
export function askRuns(ui: Ui, action: "run" | "stop" | "resume"): void {
  ask(ui, "effects", { action }, action);
}

/** While the run is going, `effectProblem` has no text. */
function ask({ kernel, effectProblem }: Ui, kind: "effect" | "effects", body: object, key: string): void {
  effectProblem.value = { key, text: "" };
  const ended = (text: string) => {
    if (effectProblem.peek()?.key === key) effectProblem.value = text ? { key, text } : null;
  };
  kernel.request(kind, body).then(
    () => ended(""),
    (error: unknown) => ended(error instanceof KernelError ? error.message : ""), // else the kernel's state tells
  );
}
