/** The three readings as words, the chosen one underlined; in the toolbar, or where that has no room above the view. */

import { rove } from "../../components/dom";
import { MEASURE_WORDS, MEASURES } from "../../data/segments";
import type { Ui } from "../../state/ui";

/** Choose how the attention to a segment is read: in all three pictures. */
export function MeasureWords({ ui: { store } }: { ui: Ui }) {
  const chosen = store.measure.value ?? "mass";
  return (
    <div class="aw-measure" role="radiogroup" aria-label="Measure">
      <span class="aw-muted">Measure</span>
      <div>
        {MEASURES.map((measure, index) => (
          <button
            type="button"
            role="radio"
            key={measure}
            aria-checked={measure === chosen}
            tabIndex={measure === chosen ? 0 : -1}
            onClick={() => store.show({ measure })}
            onKeyDown={(event) => rove(event, index, MEASURES.length, (at) => store.show({ measure: MEASURES[at]! }))}
          >
            {MEASURE_WORDS[measure]}
          </button>
        ))}
      </div>
    </div>
  );
}
