/** The pointer on running text and patches: pointing previews, a click pins. */

import { pinRowOrColumn } from "../../components/axis-labels";
import { cellUnder, positionAt } from "../../geometry/patches";
import type { Hover, Ui } from "../../state/ui";
import { sideOf } from "./looks";
import { otherSide, type Passage, type TextModel } from "./model";

/** A position under the pointer; `window`: of another window of the image. */
interface Under {
  readonly passage: Passage;
  readonly position: number;
  readonly window?: number;
}

/** Return the position of a patch in the window of the image that has it. */
function windowAt(passage: Passage, cell: number): Under | null {
  const { windows, start } = passage.patches!;
  const window = windows?.findIndex((cells) => cells.includes(cell)) ?? -1;
  return window < 0 ? null : { passage, window, position: start + windows![window]!.indexOf(cell) };
}

/** Preview the position under the pointer, or its pair with the pin; a click pins, with Shift in addition to others. */
export function watchPointer(ui: Ui, model: TextModel, node: HTMLElement): void {
  const under = (event: MouseEvent): Under | null => {
    const target = event.target as Element;
    const side = target.closest<HTMLElement>(".aw-passage")?.dataset.side;
    const passage = model.flows.value.find((flow) => flow.passage.sides[0] === side)?.passage;
    if (passage === undefined) return null;
    const token = target.closest<HTMLElement>("[data-at]");
    if (token !== null) return { passage, position: Number(token.dataset.at) };
    const picture = target.closest<HTMLElement>(".aw-patches");
    if (picture === null || passage.patches === null || target.closest(".aw-strip") !== null) return null;
    const box = picture.getBoundingClientRect();
    const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    const { rows, columns } = passage.patches;
    const place = cellUnder(passage.patches, x, y);
    if (place === null) return null;
    const cell = place + Number(picture.dataset.frame) * rows * columns;
    const position = positionAt(passage.patches, cell);
    return position === null ? windowAt(passage, cell) : { passage, position };
  };
  const options = { signal: ui.stop };
  node.addEventListener(
    "pointermove",
    (event) => {
      const at = event.pointerType === "touch" ? null : under(event);
      if (at !== null && at.window === undefined) ui.hover.value = hoverOf(ui, at.passage, at.position); // between two words nothing changes
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
      if (at?.window !== undefined) {
        const { windows } = at.passage.patches!;
        const batch = ui.store.batch.peek();
        ui.store.select({ batch: batch - (batch % windows!.length) + at.window });
      }
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
