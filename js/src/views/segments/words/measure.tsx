/** The choices of what this view shows and how: in the toolbar, or above the view if that has no room. */

import { Menu } from "../../../components/menu";
import { RadioWords } from "../../../components/radio-words";
import { MEASURE_WORDS, measureOf } from "../../../data/segments";
import type { Ui } from "../../../state/ui";
import { editSection, editWord, showsEffect, targetSection, targetWord } from "./menus";

/** The measure of attention in all three pictures. */
export function MeasureWords({ ui: { store } }: { ui: Ui }) {
  const stage = store.linkedStage.value;
  const chosen = measureOf(store.measure.value, stage);
  const words = stage === "weights" ? MEASURE_WORDS : { mass: "sum", per_token: "per token" };
  const choose = (measure: typeof chosen) => store.show({ measure });
  return <RadioWords name="Measure" label="Measure" words={words as typeof MEASURE_WORDS} {...{ chosen, choose }} />;
}

const SHOWN = { attention: "attention", effect: "effect" } as const;

/** The choice between attention and effects. */
export function ShowWords({ ui: { store } }: { ui: Ui }) {
  const chosen = store.segments_show.value ?? "attention";
  const choose = (segments_show: typeof chosen) => store.show({ segments_show });
  return <RadioWords name="Show" label="Show" words={SHOWN} {...{ chosen, choose }} />;
}

/** What the toolbar has no room for. */
export function WordsAbove({ ui, measure = false }: { ui: Ui; measure?: boolean }) {
  const inToolbar = ui.inToolbar.value;
  const { effects } = ui.store;
  const hasMenus = showsEffect(ui) && ui.mode.value !== "narrow"; // there, menus stand only under `⋯`
  return (
    <>
      {effects.value && !inToolbar.includes("shown") && <ShowWords ui={ui} />}
      {measure && !inToolbar.includes("measure") && <MeasureWords ui={ui} />}
      {hasMenus && effects.value!.targets.length > 0 && !inToolbar.includes("target") && (
        <Menu name="Target" label="Target" side="left" value={targetWord(ui)} sections={[targetSection(ui)]} />
      )}
      {hasMenus && !inToolbar.includes("edit") && (
        <Menu name="Edit" label="Edit" side="left" value={editWord(ui)} sections={[editSection(ui)]} />
      )}
    </>
  );
}
