/** How a picture's view moves: at once during a gesture, or in a short animated flight. */

import { effect } from "@preact/signals-core";
import type { Bin } from "../data/matrix";
import { between, centered, pitchOf, type Reach, refitted, zoomFor } from "../geometry/cell-grid";
import type { Span, Viewport } from "../geometry/viewport";
import type { Plot } from "../state/plot";
import type { Ui } from "../state/ui";

const FLIGHT_MS = 160;
/** A flight that starts so soon after another continues it, as when the minimap is dragged: it arrives at once. */
const SAME_FLIGHT_MS = 250;
/** Pixels per cell in a close view, where numbers can be read. */
const CLOSE = 26;
/** From this size on, labels can be read and the zoom stays. */
const READABLE = 12;
/** A block whose cells would almost be readable is shown in part, so that they are. */
const NEARLY_READABLE = 7;

export interface Flight {
  fly(to: Viewport): void;
  /** End a flight at its current place. */
  land(): void;
  dispose(): void;
}

/** Move the plot's view with `show` over a few frames; at once if the reader prefers no motion. */
export function createFlight(plot: Plot, show: (view: Viewport) => void): Flight {
  let frame = 0;
  let landed = Number.NEGATIVE_INFINITY;

  function land(): void {
    if (!plot.flying.peek()) return;
    cancelAnimationFrame(frame);
    plot.flying.value = false;
    landed = performance.now();
  }

  function fly(to: Viewport): void {
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const together = plot.flying.peek() || performance.now() - landed < SAME_FLIGHT_MS;
    land();
    if (still || together) {
      landed = performance.now();
      show(to);
      return;
    }
    const from = plot.viewport.peek();
    const start = performance.now();
    plot.flying.value = true;
    const step = () => {
      const reach = plot.reach.peek();
      const share = Math.min(1, (performance.now() - start) / FLIGHT_MS);
      if (reach === null || share === 1) {
        land();
        show(to);
        return;
      }
      show(between(reach, from, to, 1 - (1 - share) ** 3));
      frame = requestAnimationFrame(step);
    };
    frame = requestAnimationFrame(step);
  }

  return { fly, land, dispose: () => cancelAnimationFrame(frame) };
}

/** Fly to each `ui.destination`; returns a function to end that. */
export function watchDestination(ui: Ui, plot: Plot, { fly }: Flight): () => void {
  return effect(() => {
    const destination = ui.destination.value;
    const reach = plot.reach.value;
    if (destination === null || reach === null) return;
    const view = plot.viewport.peek();
    if (destination.block !== undefined) {
      ui.destination.value = null;
      fly(plot.settled(around(ui, plot, reach, destination.block)));
      return;
    }
    const isFar = destination.close && view.k < zoomFor(reach, READABLE * ui.unit.peek());
    const k = isFar ? zoomFor(reach, CLOSE * ui.unit.peek()) : view.k;
    fly(plot.settled(centered(reach, view, k, destination)));
    ui.destination.value = null;
  });
}

/** Return the view that shows a block as large as it fits; or its first cells, if only a part is readable. */
function around(ui: Ui, plot: Plot, reach: Reach, { queries, keys }: Bin): Viewport {
  const figure = plot.figure.peek();
  const unit = ui.unit.peek();
  const [width, height] = [figure?.width ?? 1, figure?.height ?? 1];
  const cell = (size: number, { start, stop }: Span) => (size - 1) / Math.max(1, stop - start);
  const fits = Math.min(cell(width, keys), cell(height, queries));
  const least = fits >= NEARLY_READABLE * unit ? READABLE * unit : 0;
  const k = zoomFor(reach, Math.max(least, Math.min(CLOSE * unit, fits)));
  const middle = (size: number, { start, stop }: Span, pitch: number) =>
    Math.min((start + stop - 1) / 2, start + size / pitch / 2 - 0.5);
  const place = {
    query: middle(height, queries, pitchOf(reach.y, k)),
    key: middle(width, keys, pitchOf(reach.x, k)),
  };
  return centered(reach, plot.viewport.peek(), k, place);
}

/** Show a picture of another size whole; if only the widget's width changed, keep the center. */
export function keepPlace(plot: Plot, reset: () => void, show: (view: Viewport) => void): () => void {
  let before: { reach: Reach; size: string } | null = null;
  return effect(() => {
    const reach = plot.reach.value;
    if (reach === null) return;
    const { x, y } = reach;
    const size = `${x.total} ${y.total}`;
    const last = before;
    before = { reach, size };
    if (last === null) return;
    if (last.size !== size) queueMicrotask(reset);
    else if (x.cell !== last.reach.x.cell || y.cell !== last.reach.y.cell || x.own !== last.reach.x.own) {
      queueMicrotask(() => show(plot.settled(refitted(last.reach, reach, plot.viewport.peek()))));
    }
  });
}
