/**
 * The pointer over any of the three pictures: the model's hover is the place under it, and a click belongs to the
 * picture.
 */

import type { Ui } from "../../../state/ui";
import type { SegmentsModel, Spot } from "../model";

/** Watch a canvas, or what is in its place; `spotAt` says what is at a place, and `clicked` is called with it. */
export function watchSpots(
  ui: Ui,
  model: SegmentsModel,
  canvas: HTMLElement,
  part: Spot["part"],
  spotAt: (event: MouseEvent) => Spot | null,
  clicked: (spot: Spot, event: MouseEvent) => void,
): void {
  const listen = { signal: ui.stop };
  canvas.addEventListener(
    "pointermove",
    (event) => {
      if (event.pointerType === "touch") return;
      const [next, now] = [spotAt(event), model.hover.peek()];
      if (now?.part !== part || next === null || !isSame(next, now)) model.hover.value = next;
    },
    listen,
  );
  canvas.addEventListener("pointerleave", () => (model.hover.value = null), listen);
  canvas.addEventListener("pointerdown", () => canvas.focus({ preventScroll: true }), listen);
  canvas.addEventListener(
    "click",
    (event) => {
      const spot = spotAt(event);
      if (spot !== null) clicked(spot, event);
    },
    listen,
  );
}

const isSame = (one: Spot, other: Spot) =>
  one.token === other.token && one.row === other.row && one.head === other.head && one.column === other.column;
