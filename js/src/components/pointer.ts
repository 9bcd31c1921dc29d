/** The pointer on the picture: pointing, clicking, panning and zooming. */

import { signal } from "@preact/signals-core";
import type { Bin } from "../data/matrix";
import { cellOf, type Reach, within, zoomedAt } from "../geometry/cell-grid";
import { reveal, type Viewport, WHOLE } from "../geometry/viewport";
import type { Plot } from "../state/plot";
import { peak } from "../state/queries";
import type { Selection } from "../state/store";
import type { Ui } from "../state/ui";
import { createFlight, keepPlace, watchDestination } from "./flight";
import { type Point, pointIn, watchGestures } from "./gestures";
import { type PeakIn, pinBin } from "./pinning";

/** Other means to move picture and pin, used by the keyboard. */
export interface Pointer {
  readonly hint: { readonly value: boolean };
  /** With `add`, in addition to the other pins. */
  pin(bin: Bin, add?: boolean): Promise<void>;
  /** Pan so that a pinned place is in view. */
  follow(query: number, key: number): void;
  zoomBy(factor: number): void;
  reset(): void;
  dispose(): void;
}

const HINT_MS = 2500;

/**
 * Follow the pointer on one canvas. Among several pictures of the same places only the `first` moves them.
 */
export function createPointer(
  ui: Ui,
  plot: Plot,
  canvas: HTMLCanvasElement,
  { first = true, peakIn = greatest(ui) }: { first?: boolean; peakIn?: PeakIn } = {},
): Pointer {
  const { stop } = ui;
  const hint = zoomHint(ui, canvas);
  const hovering = watchHover(ui, plot, canvas);
  const pin = (bin: Bin, add = false) => pinBin(ui, bin, add, peakIn);

  // A drag continues from its unrounded place, although the cells at the edges are made whole.
  let free: { readonly view: Viewport; readonly shown: Viewport } | null = null;

  function show(view: Viewport): void {
    const { k, x, y } = plot.viewport.peek();
    if (view.k === k && view.x === x && view.y === y) return;
    hint.shown.value = false;
    plot.viewport.value = view;
    if (!plot.flying.peek()) hovering.again(); // another cell is under the pointer now
  }
  const flight = createFlight(plot, show);

  /** Move the view by hand, which ends a flight. */
  function take(move: (reach: Reach, view: Viewport) => Viewport): void {
    flight.land();
    const reach = plot.reach.value;
    if (reach === null) return;
    const before = plot.viewport.value;
    const view = move(reach, free?.shown === before ? free.view : before);
    show(plot.settled(view));
    free = { view, shown: plot.viewport.value };
  }
  const reset = () => take(() => WHOLE);

  // A double click goes back to the whole: what its first click has pinned or freed is as it was before.
  let clicked: { before: Pick<Selection, "query" | "key" | "pins">; end: AbortController } | null = null;
  function takeBack(): void {
    if (clicked === null) return;
    const { before, end } = clicked;
    clicked = null;
    end.abort();
    const { query, key, shownPins } = ui.store;
    const now = JSON.stringify([query.value, key.value, shownPins.value]);
    if (now !== JSON.stringify([before.query, before.key, before.pins])) ui.store.select(before);
  }

  watchGestures(
    canvas,
    {
      pan: (by) => take((reach, { k, x, y }) => within(reach, { k, x: x + by.x, y: y + by.y })),
      zoom(factor, at) {
        take((reach, view) => zoomedAt(reach, view, view.k * factor, at));
      },
      click(event) {
        if (event.detail > 1) return; // the second click of a double click
        clicked = null;
        const bin = hovering.under(pointIn(canvas, event));
        if (bin === null) return;
        const { query, key, shownPins } = ui.store;
        clicked = {
          before: { query: query.value, key: key.value, pins: [...shownPins.value] },
          end: new AbortController(),
        };
        void pinBin(ui, bin, event.shiftKey, peakIn, clicked.end.signal);
      },
      reset() {
        if (plot.viewport.value.k > 1) takeBack();
        reset();
      },
    },
    stop,
  );

  const ends = first ? [watchDestination(ui, plot, flight), keepPlace(plot, reset, show)] : [];
  return {
    hint: hint.shown,
    pin,
    follow(query, key) {
      const cellGrid = plot.cellGrid.value;
      if (cellGrid === null || plot.viewport.value.k === 1) return;
      const { rows, columns } = cellGrid;
      const right = reveal(cellOf(columns, key), columns.cell, 1, columns.offset, columns.size);
      const down = reveal(cellOf(rows, query), rows.cell, 1, rows.offset, rows.size);
      if (right === 0 && down === 0) return;
      take((reach, { k, x, y }) => within(reach, { k, x: x + right, y: y + down }));
    },
    reset,
    zoomBy(factor) {
      const { columns, rows } = plot.cellGrid.value ?? {};
      const middle = { x: (columns?.size ?? 0) / 2, y: (rows?.size ?? 0) / 2 };
      take((reach, view) => zoomedAt(reach, view, view.k * factor, middle));
    },
    dispose() {
      for (const end of ends) end();
      hint.dispose();
      flight.dispose();
    },
  };
}

const greatest =
  ({ kernel, stop }: Ui): PeakIn =>
  (picture, bin) =>
    peak(kernel, picture, bin, stop);

/** Keep `ui.hover` at the cell under the pointer. */
function watchHover(ui: Ui, plot: Plot, canvas: HTMLCanvasElement) {
  let resting: PointerEvent | null = null; // the cell under a resting pointer may change
  const hover = (at: Point) => {
    const bin = plot.under(at.x, at.y);
    ui.hover.value = bin === null ? null : { bin };
  };
  const options = { signal: ui.stop, passive: true };
  canvas.addEventListener(
    "pointermove",
    (event) => {
      if (event.pointerType === "touch") return; // a finger scrolls, and pins by a tap
      resting = event;
      hover(pointIn(canvas, event));
    },
    options,
  );
  canvas.addEventListener(
    "pointerleave",
    () => {
      resting = null;
      ui.hover.value = null;
    },
    options,
  );
  return {
    again() {
      if (resting !== null) hover(pointIn(canvas, resting));
    },
    /**
     * What is clicked. A click comes rounded to whole pixels, which may be those of another cell than the one that is
     * ringed.
     */
    under(at: Point): Bin | null {
      const pointed = resting === null ? null : pointIn(canvas, resting);
      const same = pointed !== null && Math.hypot(at.x - pointed.x, at.y - pointed.y) < 1.5;
      return same ? plot.under(pointed.x, pointed.y) : plot.under(at.x, at.y);
    },
  };
}

/** Explain zooming once, when the wheel is turned over a pooled picture. */
function zoomHint({ store, stop }: Ui, canvas: HTMLCanvasElement) {
  const shown = signal(false);
  let said = false;
  let hiding: ReturnType<typeof setTimeout> | undefined;
  const options = { signal: stop, passive: true };
  canvas.addEventListener(
    "wheel",
    (event) => {
      const picture = store.picture.value;
      const pooled = picture !== null && picture.queryBin * picture.keyBin > 1;
      if (event.ctrlKey || event.metaKey || said || !pooled) return;
      said = true;
      shown.value = true;
      hiding = setTimeout(() => {
        shown.value = false;
      }, HINT_MS);
    },
    options,
  );
  canvas.addEventListener(
    "pointerleave",
    () => {
      shown.value = false;
    },
    options,
  );
  return { shown, dispose: () => clearTimeout(hiding) };
}
