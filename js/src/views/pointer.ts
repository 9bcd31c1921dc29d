/** Pointing, clicking, panning and zooming on the picture. The wheel scrolls the notebook; it zooms with Ctrl or ⌘ only. */

import { effect, signal } from "@preact/signals-core";
import { select } from "d3-selection";
import { type D3ZoomEvent, type ZoomBehavior, zoom, zoomIdentity } from "d3-zoom";
import { MAX_CELL } from "../layout";
import { binUnder, cellOf, isWithin, type Plot } from "../plot";
import { type Bin, peak } from "../source";
import type { Ui } from "../ui";
import { reveal } from "../viewport";

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
const CLICK_MOVES = 4; // a hand that trembles by less still clicks

export function pointing(ui: Ui, plot: Plot, canvas: HTMLCanvasElement): Pointing {
  const { store, kernel, stop } = ui;
  const hint = signal(false);

  const under = (event: { clientX: number; clientY: number }): Bin | null => {
    const figure = plot.figure.value;
    const picture = store.picture.value;
    if (figure === null || picture === null) return null;
    const box = canvas.getBoundingClientRect();
    return binUnder(picture, figure, plot.viewport.value, event.clientX - box.left, event.clientY - box.top);
  };

  const listen = <K extends keyof HTMLElementEventMap>(name: K, heard: (event: HTMLElementEventMap[K]) => void) =>
    canvas.addEventListener(name, heard, { signal: stop, passive: true });
  listen("pointermove", (event) => {
    if (event.pointerType === "touch") return; // a finger scrolls, and pins by a tap
    const bin = under(event);
    ui.hover.value = bin === null ? null : { bin };
  });
  listen("pointerleave", () => {
    ui.hover.value = null;
    hint.value = false;
  });
  listen("click", (event) => {
    const bin = under(event);
    if (bin !== null) void pin(bin, event.shiftKey);
  });
  listen("dblclick", () => reset());

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

  // Where the picture is at its largest or smallest d3-zoom leaves the event to the browser, which would zoom the page.
  const keepPage = (event: WheelEvent) => {
    if (event.ctrlKey || event.metaKey) event.preventDefault();
  };
  canvas.addEventListener("wheel", keepPage, { signal: stop, passive: false });

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
    const first = { query: bin.queries.start, key: bin.keys.start };
    const single = bin.queries.stop - bin.queries.start === 1 && bin.keys.stop - bin.keys.start === 1;
    const picture = store.picture.value;
    if (single || picture === null) return first;
    const known = ui.hovered.value;
    const reading =
      known !== null && isWithin(known.query, bin.queries) && isWithin(known.key, bin.keys)
        ? known
        : await peak(kernel, picture, bin, stop).catch(() => first);
    return { query: reading.query, key: reading.key };
  }

  const behaviour: ZoomBehavior<HTMLCanvasElement, unknown> = zoom<HTMLCanvasElement, unknown>()
    .filter((event: Event) => {
      if (event.type === "wheel") return (event as WheelEvent).ctrlKey || (event as WheelEvent).metaKey;
      if (event.type.startsWith("touch")) return (event as TouchEvent).touches.length >= 2;
      return event.type !== "dblclick" && (event as MouseEvent).button === 0;
    })
    .wheelDelta((event) => {
      const pixels = event.deltaMode === 1 ? 30 * event.deltaY : event.deltaY;
      return -Math.sign(pixels) * Math.min(0.5, Math.abs(pixels) * 0.01);
    })
    .clickDistance(CLICK_MOVES)
    .on("zoom", (event: D3ZoomEvent<HTMLCanvasElement, unknown>) => {
      const { k, x, y } = event.transform;
      hint.value = false;
      plot.viewport.value = { k, x, y };
    });
  const surface = select(canvas).call(behaviour).on("dblclick.zoom", null);

  function reset(): void {
    surface.call(behaviour.transform, zoomIdentity);
  }

  function follow(query: number, key: number): void {
    const figure = plot.figure.value;
    const picture = store.picture.value;
    const { k, x, y } = plot.viewport.value;
    if (figure === null || picture === null || k === 1) return;
    const { row, column } = cellOf(picture, figure, query, key);
    const right = reveal(column, figure.cellWidth, k, x, figure.width);
    const down = reveal(row, figure.cellHeight, k, y, figure.height);
    if (right === 0 && down === 0) return;
    surface.call(behaviour.transform, zoomIdentity.translate(x + right, y + down).scale(k));
  }

  // A picture of another size is seen whole again.
  let size = "";
  const end = effect(() => {
    const figure = plot.figure.value;
    if (figure === null) return;
    const { width, height, cellWidth, cellHeight, rows, columns } = figure;
    const whole: [[number, number], [number, number]] = [
      [0, 0],
      [width, height],
    ];
    const most = Math.max(1, (MAX_CELL * ui.unit.value) / Math.min(cellWidth, cellHeight));
    behaviour.scaleExtent([1, most]).extent(whole).translateExtent(whole);
    const now = `${width} ${height} ${rows} ${columns}`;
    if (size !== "" && size !== now) queueMicrotask(reset);
    size = now;
  });

  return {
    hint,
    pin,
    follow,
    reset,
    zoomBy: (factor) => surface.call(behaviour.scaleBy, factor),
    dispose() {
      end();
      clearTimeout(hinting);
      surface.on(".zoom", null);
    },
  };
}
