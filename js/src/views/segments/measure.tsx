/** Words that choose what this view shows and how it is read; in the toolbar, or where that has no room above the view. */

import { RadioWords } from "../../components/radio-words";
import { MEASURE_WORDS, measureOf } from "../../data/segments";
import type { Ui } from "../../state/ui";

/** Choose how the attention to a segment is read: in all three pictures. */
export function MeasureWords({ ui: { store } }: { ui: Ui }) {
  const stage = store.linkedStage.value;
  const chosen = measureOf(store.measure.value, stage);
  const words = stage === "weights" ? MEASURE_WORDS : { mass: "sum", per_token: "per token" };
  const choose = (measure: typeof chosen) => store.show({ measure });
  return <RadioWords name="Measure" label="Measure" words={words as typeof MEASURE_WORDS} {...{ chosen, choose }} />;
}

const SHOWN = { attention: "attention", effect: "effect" } as const;

/** Choose whether the view shows where the answer looked, or what the model loses without it. */
export function ShowWords({ ui: { store } }: { ui: Ui }) {
  const chosen = store.segments_show.value ?? "attention";
  const choose = (segments_show: typeof chosen) => store.show({ segments_show });
  return <RadioWords name="Show" label="Show" words={SHOWN} {...{ chosen, choose }} />;
}

/** The words for which the toolbar has no room. */
export function WordsAbove({ ui, measure = false }: { ui: Ui; measure?: boolean }) {
  const inToolbar = ui.toolbarWords.value;
  return (
    <>
      {ui.store.effects.value && !inToolbar.includes("shown") && <ShowWords ui={ui} />}
      {measure && !inToolbar.includes("measure") && <MeasureWords ui={ui} />}
    </>
  );
}
