/** The state of the view when it was left to look at cells, restored on return. */

import { effect, type ReadonlySignal } from "@preact/signals-core";
import type { LeftSegments, Ui } from "../../../state/ui";
import type { SegmentsModel } from "../model";

const NOWHERE: LeftSegments = { second: null, tokens: 0, heads: 0 };

/** Keep a scroll position, and restore it once the content is tall enough; returns a function to stop. */
export function keepScroll(
  ui: Ui,
  part: "tokens" | "heads",
  scroller: HTMLElement,
  height: ReadonlySignal<number>,
): () => void {
  let to = ui.leftSegments.peek()?.[part] ?? 0;
  let frame = 0;
  const end = effect(() => {
    if (to === 0 || height.value < to) return;
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(() => {
      scroller.scrollTop = to;
      if (scroller.scrollTop > 0) to = 0;
    });
  });
  return () => {
    end();
    cancelAnimationFrame(frame);
    ui.leftSegments.value = { ...(ui.leftSegments.peek() ?? NOWHERE), [part]: scroller.scrollTop };
  };
}

/** Keep the second pinned segment; returns a function to stop. */
export function keepSecond(ui: Ui, { mass, second, left }: SegmentsModel): () => void {
  let name = ui.leftSegments.peek()?.second ?? null;
  const end = effect(() => {
    const keys = mass.value?.keys;
    if (name === null || keys === undefined) return;
    const at = keys.indexOf(name);
    name = null;
    if (left.peek().columns.includes(at)) second.value = at;
  });
  return () => {
    end();
    const now = mass.peek()?.keys[second.peek()] ?? null;
    ui.leftSegments.value = { ...(ui.leftSegments.peek() ?? NOWHERE), second: now };
  };
}
