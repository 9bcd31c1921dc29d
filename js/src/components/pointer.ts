/** Pointing, clicking, panning, zooming and travelling on the picture. */

import { effect, signal } from "@preact/signals-core";
import type { Picture } from "../contract/decode";
import type { Bin } from "../data/matrix";
import { between, cellOf, centred, type Reach, refitted, within, zoomedAt, zoomFor } from "../geometry/cell-grid";
import { reveal, type Viewport, WHOLE } from "../geometry/viewport";
import { isWithin, type Plot } from "../state/plot";
import { peak } from "../state/queries";
import type { Ui } from "../state/ui";
import { type Point, pointIn, watchGestures } from "./gestures";

/** What else moves the picture and the pin: the keyboard does, by the same means. */
export interface Pointing {
  readonly hint: { readonly value: boolean };
  /** With `add` beside the other pins. */
  pin(bin: Bin, add?: boolean): Promise<void>;
  /** Pan so that a pinned place is in view. */
  follow(query: number, key: number): void;
  zoomBy(factor: number): void;
  reset(): void;
  dispose(): void;
}

const HINT_MS = 2500;
const FLIGHT_MS = 160;
/** A journey that begins so soon after another belongs to it, as when the minimap is dragged: it arrives at once. */
const SAME_JOURNEY_MS = 250;
/** Pixels to a cell when a place is looked at closely: its numbers can be read. */
const CLOSE = 26;

/** Where in a bin the number is that it shows. */
type PeakIn = (picture: Picture, bin: Bin) => Promise<{ readonly query: number; readonly key: number }>;

const greatest =
  ({ kernel, stop }: Ui): PeakIn =>
  (picture, bin) =>
    peak(kernel, picture, bin, stop);

/** Of several pictures that show the same places only the `first` moves them by itself. */
export function pointing(
  ui: Ui,
  plot: Plot,
  canvas: HTMLCanvasElement,
  { first = true, peakIn = greatest(ui) }: { first?: boolean; peakIn?: PeakIn } = {},
): Pointing {
  const { store, stop } = ui;
  const hint = signal(false);

  let pointed: Point | null = null;

  const hover = (at: Point) => {
    const bin = plot.under(at.x, at.y);
    ui.hover.value = bin === null ? null : { bin };
  };
  const listen = <K extends keyof HTMLElementEventMap>(name: K, heard: (event: HTMLElementEventMap[K]) => void) =>
    canvas.addEventListener(name, heard, { signal: stop, passive: true });
  listen("pointermove", (event) => {
    if (event.pointerType === "touch") return; // a finger scrolls, and pins by a tap
    pointed = pointIn(canvas, event);
    hover(pointed);
  });
  listen("pointerleave", () => {
    pointed = null;
    ui.hover.value = null;
    hint.value = false;
  });

  let hinted = false;
  let hinting: ReturnType<typeof setTimeout> | undefined;
  listen("wheel", (event) => {
    const picture = store.picture.value;
    const pooled = picture !== null && picture.queryBin * picture.keyBin > 1;
    if (event.ctrlKey || event.metaKey || hinted || !pooled) return;
    hinted = true;
    hint.value = true;
    hinting = setTimeout(() => {
      hint.value = false;
    }, HINT_MS);
  });

  /** Pin a cell, or the greatest number of a bin; what is pinned already is freed. */
  async function pin(bin: Bin, add = false): Promise<void> {
    if (add) {
      const place = await placeIn(bin);
      if (!stop.aborted) store.addPin(place.query, place.key);
      return;
    }
    const [query, key] = [store.query.value, store.key.value];
    if (query !== null && key !== null && isWithin(query, bin.queries) && isWithin(key, bin.keys)) {
      store.select({ query: null, key: null });
      return;
    }
    const place = await placeIn(bin);
    if (!stop.aborted) store.select(place);
  }

  async function placeIn(bin: Bin): Promise<{ query: number; key: number }> {
    const corner = { query: bin.queries.start, key: bin.keys.start };
    const single = bin.queries.stop - bin.queries.start === 1 && bin.keys.stop - bin.keys.start === 1;
    const picture = store.picture.value;
    if (single || picture === null) return corner;
    const known = ui.hovered.value;
    const reading =
      known !== null && isWithin(known.query, bin.queries) && isWithin(known.key, bin.keys)
        ? known
        : await peakIn(picture, bin).catch(() => corner);
    return { query: reading.query, key: reading.key };
  }

  function show(view: Viewport): void {
    const { k, x, y } = plot.viewport.peek();
    if (view.k === k && view.x === x && view.y === y) return;
    hint.value = false;
    plot.viewport.value = view;
    if (pointed !== null && !plot.flying.peek()) hover(pointed); // another cell is under it now
  }

  /** What a hand does ends a flight. */
  function take(move: (reach: Reach, view: Viewport) => Viewport): void {
    land();
    const reach = plot.reach.value;
    if (reach !== null) show(move(reach, plot.viewport.value));
  }

  watchGestures(
    canvas,
    {
      pan: (by) => take((reach, { k, x, y }) => within(reach, { k, x: x + by.x, y: y + by.y })),
      zoom(factor, at) {
        take((reach, view) => zoomedAt(reach, view, view.k * factor, at));
      },
      click(event) {
        const at = pointIn(canvas, event);
        // A click comes rounded to whole pixels, which may be those of another cell than the one that is ringed.
        const same = pointed !== null && Math.hypot(at.x - pointed.x, at.y - pointed.y) < 1.5;
        const bin = same && pointed !== null ? plot.under(pointed.x, pointed.y) : plot.under(at.x, at.y);
        if (bin !== null) void pin(bin, event.shiftKey);
      },
      reset,
    },
    stop,
  );

  function reset(): void {
    take(() => WHOLE);
  }

  function zoomBy(factor: number): void {
    take((reach, view) => zoomedAt(reach, view, view.k * factor, { x: reach.x.size / 2, y: reach.y.size / 2 }));
  }

  function follow(query: number, key: number): void {
    const lattice = plot.lattice.value;
    if (lattice === null || plot.viewport.value.k === 1) return;
    const { rows, columns } = lattice;
    const right = reveal(cellOf(columns, key), columns.cell, 1, columns.offset, columns.size);
    const down = reveal(cellOf(rows, query), rows.cell, 1, rows.offset, rows.size);
    if (right === 0 && down === 0) return;
    take((reach, { k, x, y }) => within(reach, { k, x: x + right, y: y + down }));
  }

  // --- travelling -----------------------------------------------------------------------------------------------------

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
    const together = plot.flying.peek() || performance.now() - landed < SAME_JOURNEY_MS;
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

  const ends = [
    effect(() => {
      if (!first) return;
      const travel = ui.travel.value;
      const reach = plot.reach.value;
      if (travel === null || reach === null) return;
      const view = plot.viewport.peek();
      const k = travel.close ? Math.max(view.k, zoomFor(reach, CLOSE * ui.unit.peek())) : view.k;
      fly(centred(reach, view, k, travel));
      ui.travel.value = null;
    }),
  ];

  // A picture of another size is seen whole; in a widget of another width the same place stays in the middle.
  let before: { reach: Reach; size: string } | null = null;
  ends.push(
    effect(() => {
      const reach = plot.reach.value;
      if (reach === null || !first) return;
      const { x, y } = reach;
      const size = `${x.total} ${y.total}`;
      const last = before;
      before = { reach, size };
      if (last === null) return;
      if (last.size !== size) queueMicrotask(reset);
      else if (x.cell !== last.reach.x.cell || y.cell !== last.reach.y.cell || x.own !== last.reach.x.own) {
        queueMicrotask(() => show(refitted(last.reach, reach, plot.viewport.peek())));
      }
    }),
  );

  return {
    hint,
    pin,
    follow,
    reset,
    zoomBy,
    dispose() {
      for (const end of ends) end();
      clearTimeout(hinting);
      cancelAnimationFrame(frame);
    },
  };
}
