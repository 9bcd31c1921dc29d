/** The messages while the kernel is busy: what is still shown, and what still works. */

import { mount, part, type View } from "../../components/dom";
import { Mark } from "../../components/message";
import { headWords } from "../../components/phrases";
import type { ViewName } from "../../contract/values";
import { hasLinksOf } from "../../data/links";
import type { Ui } from "../../state/ui";
import { placeWords } from "./facts";

/** What is shown and what works, on one line, cut off if it is too long. */
export function Busy({ ui }: { ui: Ui }) {
  const before = lastShown(ui);
  const running = "It is running another cell.";
  const still = before === null ? running : `You still see ${before}.`;
  const more = "You can still hover, zoom and pin.";
  return (
    <span
      class="aw-busy"
      role="status"
      title={`Waiting for the kernel. ${before === null ? "" : `${still} `}${running} ${more}`}
    >
      <Mark sign="waiting" />
      <b>Waiting for the kernel</b> {still} {ui.mode.value !== "narrow" && more}
    </span>
  );
}

/** Return a note at the top of a picture that is not yet the chosen one; the status line may be out of sight. */
export function stillShown(ui: Ui): View {
  return mount(part("aw-still-slot"), () => {
    if (ui.kernel.state.value !== "waiting") return null;
    const before = lastShown(ui);
    const words = before !== null ? `Still showing ${before}` : lacksLinks(ui) ? "Waiting for the links" : null;
    if (words === null) return null;
    return (
      <span class="aw-still" aria-hidden="true" title="Waiting for the kernel. It is running another cell.">
        <Mark sign="waiting" /> {words}
      </span>
    );
  });
}

/** Whether the graph has no bands because their links have not arrived; those of another head are not drawn. */
function lacksLinks({ store }: Ui): boolean {
  const links = store.view.value === "graph" ? store.links.value : null;
  if (links === null) return false;
  const { layer, batch, direction, linkedStage } = store;
  const at = { layer: layer.value, batch: batch.value, side: direction.value, stage: linkedStage.value };
  return store.drawnHeads.value.some((head) => !hasLinksOf(links, { ...at, heads: [head] }));
}

/** Views that do not keep the last picture. */
const NOT_LAST: readonly ViewName[] = ["heads", "graph"];

/** Return which picture is still shown while the selected one is due; null if it is the selected one. */
function lastShown({ store }: Ui): string | null {
  const shown = (store.view.value === "segments" ? store.mass.value?.of : store.picture.value?.of) ?? null;
  if (shown === null || NOT_LAST.includes(store.view.value)) return null;
  const { layer, head, batch } = shown;
  if (layer === store.layer.value && head === store.head.value && batch === store.batch.value) return null;
  return placeWords(shown, headWords(head, store.facts.value), store.facts.value).join(" · ") || null;
}
