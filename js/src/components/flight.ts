/** How a view of the picture moves: at once, as part of a gesture, or by a short flight to another place. */

import { effect } from "@preact/signals-core";
import type { Bin } from "../data/matrix";
import { between, centered, pitchOf, type Reach, refitted, zoomFor } from "../geometry/cell-grid";
import type { Span, Viewport } from "../geometry/viewport";
import type { Plot } from "../state/plot";
import type { Ui } from "../state/ui";

const FLIGHT_MS = 160;
/** A flight that begins so soon after another belongs to it, as when the minimap is dragged: it arrives at once. */
const SAME_FLIGHT_MS = 250;
/** Pixels to a cell when a place is looked at closely: its numbers can be read. */
const CLOSE = 26;
/** As many are close enough to stay where one is: its labels can be read. */
const READABLE = 12;
/** A block whose cells would be nearly so large as to be read is shown in part, so that they can be. */
const NEARLY_READABLE = 7;

export interface Flight {
  fly(to: Viewport): void;
  /** End a flight where it is. */
  land(): void;
  dispose(): void;
}

/** Move the plot's view, by `show`, over a few frames: for readers who want no motion at once. */
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

/** Fly wherever `ui.destination` says; returns how to end. */
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

/** Return the view that shows a block as large as it fits; where its cells can only be read in part, its first ones. */
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

/** Show a picture of another size whole; in a widget of another width keep the same place in the middle. */
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
