/** The pointer on running text and patches: pointing previews, a click pins. */

import { pinRowOrColumn } from "../../components/axis-labels";
import type { Hover, Ui } from "../../state/ui";
import { sideOf } from "./looks";
import { otherSide, type Passage, type TextModel } from "./model";
import { patchAt } from "./patches";

/** Preview the position under the pointer, or its pair with the pin; a click pins, with Shift in addition to others. */
export function watchPointer(ui: Ui, model: TextModel, node: HTMLElement): void {
  const under = (event: MouseEvent): { passage: Passage; position: number } | null => {
    const target = event.target as Element;
    const side = target.closest<HTMLElement>(".aw-passage")?.dataset.side;
    const passage = model.flows.value.find((flow) => flow.passage.sides[0] === side)?.passage;
    if (passage === undefined) return null;
    const token = target.closest<HTMLElement>("[data-at]");
    if (token !== null) return { passage, position: Number(token.dataset.at) };
    const picture = target.closest(".aw-patches");
    if (picture === null || passage.patches === null) return null;
    const box = picture.getBoundingClientRect();
    const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    const patch = patchAt(passage.patches, x, y);
    return patch === null ? null : { passage, position: passage.patches.start + patch };
  };
  const options = { signal: ui.stop };
  node.addEventListener(
    "pointermove",
    (event) => {
      const at = event.pointerType === "touch" ? null : under(event);
      if (at !== null) ui.hover.value = hoverOf(ui, at.passage, at.position); // between two words nothing changes
    },
    options,
  );
  node.addEventListener(
    "pointerleave",
    () => {
      ui.hover.value = null;
    },
    options,
  );
  node.addEventListener(
    "mousedown",
    (event) => {
      if (event.shiftKey && under(event) !== null) event.preventDefault(); // no selection of text
    },
    options,
  );
  node.addEventListener(
    "click",
    (event) => {
      const at = under(event);
      if (at === null && (event.target as Element).closest("button") === null) ui.marked.value = null;
      if (at !== null) pinRowOrColumn(ui, sideOf(ui, at.passage), at.position, event.shiftKey);
    },
    options,
  );
}

/** The meaning of pointing at a position: with another pinned, their pair; else its own row or column. */
function hoverOf(ui: Ui, passage: Passage, position: number): Hover {
  const { store } = ui;
  const target = ui.target.peek();
  const isPinned = (store.query.peek() ?? store.key.peek()) !== null;
  if (!isPinned || target === null || !passage.sides.includes(otherSide(target.side))) {
    return { target: { side: sideOf(ui, passage), index: position } };
  }
  const span = (index: number) => ({ start: index, stop: index + 1 });
  const [own, other] = [span(target.index), span(position)];
  return { bin: target.side === "query" ? { queries: own, keys: other } : { queries: other, keys: own } };
}
