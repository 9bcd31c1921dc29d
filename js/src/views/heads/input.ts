/** Pointer and keyboard on all heads: pointing describes one, a click or Enter opens it. */

import { watchKeys } from "../../components/keyboard";
import { cornerOf, type HeadsLayout, placeAt, stepFrom } from "../../data/survey";
import type { KeyLine, Ui } from "../../state/ui";
import type { HeadsState } from "./state";

/** Point by the pointer, open by a click. */
export function watchPointer(canvas: HTMLCanvasElement, state: HeadsState, signal: AbortSignal): void {
  const { layout, pointed, point, open } = state;
  const under = (event: MouseEvent): number => {
    const at = layout.value;
    if (at === null) return -1;
    const box = canvas.getBoundingClientRect();
    return placeAt(at, event.clientX - box.left, event.clientY - box.top);
  };
  const listen = { signal };
  canvas.addEventListener("pointermove", (event) => event.pointerType !== "touch" && point(under(event)), listen);
  canvas.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && point(-1), listen);
  canvas.addEventListener("pointerdown", () => canvas.focus({ preventScroll: true }), listen);
  canvas.addEventListener(
    "click",
    (event) => {
      const place = under(event);
      // A finger cannot hover: the first tap points, the second opens.
      const isTouch = (event as PointerEvent).pointerType === "touch";
      if (isTouch && place !== pointed.peek()) point(place);
      else open(place);
    },
    listen,
  );
}

/** Move through the heads by arrows, from the one under the pointer or the selected one. */
export function watchWalk(ui: Ui, canvas: HTMLCanvasElement, scroller: HTMLElement, state: HeadsState): void {
  const { layout, pointed, selected, point, open } = state;
  watchKeys(ui, canvas, () => {
    const at = layout.value;
    const from = pointed.peek() >= 0 ? pointed.peek() : selected.peek();
    if (at === null || from < 0) return [];
    const walk = (to: () => number) => () => {
      point(to());
      follow(scroller, at, pointed.peek());
    };
    const lines: KeyLine[] = [
      {
        shown: "← ↑ → ↓",
        does: "point at another head",
        keys: {
          ArrowLeft: walk(() => stepFrom(at, from, -1, 0)),
          ArrowRight: walk(() => stepFrom(at, from, 1, 0)),
          ArrowUp: walk(() => stepFrom(at, from, 0, -1)),
          ArrowDown: walk(() => stepFrom(at, from, 0, 1)),
        },
      },
      {
        shown: "Home End",
        does: "first, last head of the row",
        keys: { Home: walk(() => at.at(0, at.where[from]![1])), End: walk(() => stepToEnd(at, from)) },
      },
      { shown: "Enter", does: "open the head", keys: { Enter: () => open(from), " ": () => open(from) } },
    ];
    if (pointed.peek() >= 0) {
      lines.push({ shown: "Esc", does: "point at nothing", keys: { Escape: () => point(-1) } });
    }
    return lines;
  });
}

function stepToEnd(layout: HeadsLayout, place: number): number {
  let at = place;
  for (let next = stepFrom(layout, at, 1, 0); next !== at; next = stepFrom(layout, at, 1, 0)) at = next;
  return at;
}

/** Scroll horizontally so that a head is in view. */
function follow(scroller: HTMLElement, layout: HeadsLayout, place: number): void {
  if (place < 0) return;
  const { x } = cornerOf(layout, place);
  const room = scroller.clientWidth;
  if (x < scroller.scrollLeft) scroller.scrollLeft = x - layout.margin;
  else if (x + layout.size > scroller.scrollLeft + room) scroller.scrollLeft = x + layout.size + layout.margin - room;
}
