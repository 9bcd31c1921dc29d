/** The minimap of a zoomed picture: the whole picture, small, with a ring that can be dragged. */

import { computed, effect, signal } from "@preact/signals-core";
import type { Picture } from "../contract/decode";
import type { Side } from "../contract/values";
import { piecesInView } from "../data/segment-axis";
import { drawRaster, foldGrid } from "../draw/cells";
import { GAPS_FROM, MARGIN, MARGIN_GAP } from "../geometry/layout";
import type { Span } from "../geometry/viewport";
import { axisSegments } from "../state/segment-axes";
import type { Ui, Window } from "../state/ui";
import { count } from "../text/format";
import { mount, part, px, type View } from "./dom";
import { pointIn } from "./gestures";
import { rangeOf } from "./phrases";
import { MarginBars } from "./segment-margins";

const SIDE = 132;
const LEAST_SIDE = 12;
const LEAST_SHARE = 0.85;
const LEAST_RING = 10;

/** Return the minimap of a long head, with the view's place; a click moves the view. */
export function minimap(ui: Ui): View {
  const { store, stop } = ui;
  const node = part("aw-minimap", "minimap");
  const map = part("aw-minimap-map");
  const canvas = document.createElement("canvas");
  const over = part("aw-minimap-over");
  map.tabIndex = 0;
  map.setAttribute("role", "application");
  map.setAttribute("aria-roledescription", "map");
  map.append(canvas, over);
  const size = signal({ width: SIDE, height: SIDE });
  const isShown = computed(() => windowOf(ui) !== null);

  const marks = mount(over, () => <Marks ui={ui} size={size.value} />);
  const margins = mount(part("aw-segment-margins"), () => <Margins ui={ui} size={size.value} />);
  map.append(margins.node);
  const facts = mount(part("aw-minimap-facts"), () => <Facts ui={ui} />);
  node.append(map, facts.node);

  const ends = [
    effect(() => {
      const shown = windowOf(ui);
      node.hidden = shown === null;
      map.toggleAttribute("data-segments", ui.shownNames.value !== null);
      if (shown === null) return;
      const said = `Part in view: queries ${rangeOf(shown.queries)}, keys ${rangeOf(shown.keys)}`;
      map.setAttribute("aria-label", said);
    }),
    effect(() => {
      const picture = store.picture.value;
      const mapper = ui.mapper.value;
      const both = ui.paints.value;
      if (!isShown.value || picture?.grid == null || mapper === null || both === null) return;
      const { down, across, width, height } = fitted(picture, ui.dpr.value, ui.unit.value);
      const grid = foldGrid(picture.grid, down, across);
      const inRow =
        mapper.domain === null ? { ...mapper, index: (v: number, row: number) => mapper.index(v, row * down) } : mapper;
      drawRaster(canvas, grid, inRow, mapper.signed ? both.diverging : both.sequential);
      Object.assign(canvas.style, { width: px(width), height: px(height) });
      Object.assign(map.style, { width: px(width), height: px(height) });
      size.value = { width, height };
    }),
  ];

  /** Center the view on the place under the pointer. */
  function goTo(event: PointerEvent): void {
    const { queries, keys } = store.facts.value;
    const { x, y } = pointIn(map, event);
    const place = (at: number, length: number, total: number) =>
      Math.max(0, Math.min(total - 1, Math.floor((at / length) * total)));
    ui.destination.value = {
      query: place(y, size.value.height, queries),
      key: place(x, size.value.width, keys),
      close: false,
    };
  }
  const listen = <K extends keyof HTMLElementEventMap>(name: K, heard: (event: HTMLElementEventMap[K]) => void) =>
    map.addEventListener(name, heard, { signal: stop });
  let held: number | null = null;
  listen("pointerdown", (event) => {
    if (event.button !== 0) return;
    held = event.pointerId;
    map.setPointerCapture?.(event.pointerId);
    goTo(event);
  });
  listen("pointermove", (event) => {
    if (event.pointerId === held) goTo(event);
  });
  for (const name of ["pointerup", "pointercancel"] as const) {
    listen(name, () => {
      held = null;
    });
  }
  listen("keydown", (event) => {
    const now = windowOf(ui);
    const step = STEPS[event.key];
    if (now === null || step === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    const by = event.shiftKey ? 1 : 0.25;
    const { queries, keys } = store.facts.value;
    ui.destination.value = {
      query: moved(now.queries, step[0] * by, queries),
      key: moved(now.keys, step[1] * by, keys),
      close: false,
    };
  });

  return {
    node,
    dispose() {
      for (const end of ends) end();
      marks.dispose();
      margins.dispose();
      facts.dispose();
    },
  };
}

const STEPS: Record<string, readonly [down: number, right: number]> = {
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
};

/** The center of a span, moved by a share of its length; null to stay. */
function moved({ start, stop }: Span, by: number, total: number): number | null {
  if (by === 0) return null;
  return Math.max(0, Math.min(total - 1, (start + stop - 1) / 2 + by * (stop - start)));
}

/**
 * Return what is in view, of a picture whose cells stand for several, or of one with the names of segments; any other
 * is seen whole at a glance.
 */
export function windowOf({ store, window, shownNames }: Ui): Window | null {
  const picture = store.picture.value;
  if (picture === null) return null;
  return picture.queryBin * picture.keyBin > 1 || shownNames.value === "segments" ? window.value : null;
}

/**
 * A size of whole device pixels a cell, where that is not much smaller than 132 px, and how many cells of the picture
 * are one of the map.
 */
function fitted({ grid, queries, keys }: Picture, dpr: number, unit: number) {
  const most = SIDE * unit * dpr;
  const side = (total: number, other: number) =>
    Math.max(LEAST_SIDE * unit * dpr, (most * total) / Math.max(total, other));
  const fit = (cells: number, room: number) => {
    const fold = Math.ceil(cells / room);
    const shown = Math.ceil(cells / fold);
    const whole = Math.max(1, Math.floor(room / shown)) * shown;
    return { fold, length: (whole < LEAST_SHARE * room ? room : whole) / dpr };
  };
  const y = fit(grid!.rows, side(queries, keys));
  const x = fit(grid!.columns, side(keys, queries));
  return { down: y.fold, across: x.fold, width: x.length, height: y.length };
}

/** The segment colors, left of the map and above it. */
function Margins({ ui, size }: { ui: Ui; size: { width: number; height: number } }) {
  if (ui.shownNames.value === null) return null;
  const unit = ui.unit.value;
  const out = (MARGIN + MARGIN_GAP) * unit;
  const sides = [
    { side: "query", long: size.height, box: { left: px(-out), top: 0, width: px(out), height: px(size.height) } },
    { side: "key", long: size.width, box: { top: px(-out), left: 0, height: px(out), width: px(size.width) } },
  ] as const;
  return (
    <>
      {sides.map(({ side, long, box }) => {
        const axis = axisSegments(ui.store, side);
        if (axis === null) return null;
        const view = { perToken: long / axis.segments.length, offset: 0, size: long };
        const { pieces } = piecesInView(axis.tree, view, { apart: GAPS_FROM * unit, paths: axis.open, levels: 1 });
        return (
          <div class="aw-segment-margin" aria-hidden="true" key={side} style={box}>
            <MarginBars
              {...{ pieces, view, down: side === "query", theme: ui.theme.value, width: MARGIN * unit, from: 0 }}
              slot={axis.slot}
            />
          </div>
        );
      })}
    </>
  );
}

function Marks({ ui, size }: { ui: Ui; size: { width: number; height: number } }) {
  const now = windowOf(ui);
  if (now === null) return null;
  const { queries, keys } = ui.store.facts.value;
  const least = LEAST_RING * ui.unit.value;
  const part = ({ start, stop }: Span, total: number, length: number) => {
    const middle = ((start + stop) / 2 / total) * length;
    const long = Math.max(least, ((stop - start) / total) * length);
    return { middle, start: Math.max(0, Math.min(length - long, middle - long / 2)), length: Math.min(long, length) };
  };
  const x = part(now.keys, keys, size.width);
  const y = part(now.queries, queries, size.height);
  return (
    <>
      <i class="aw-minimap-line" style={{ left: 0, right: 0, height: "1px", top: px(y.middle) }} />
      <i class="aw-minimap-line" style={{ top: 0, bottom: 0, width: "1px", left: px(x.middle) }} />
      <i
        class="aw-minimap-ring"
        style={{ left: px(x.start), top: px(y.start), width: px(x.length), height: px(y.length) }}
      />
    </>
  );
}

function Facts({ ui }: { ui: Ui }) {
  const now = windowOf(ui);
  if (now === null) return null;
  return (
    <>
      <span>Queries</span>
      <b>{named(ui, "query", now.queries)}</b>
      <span>Keys</span>
      <b>{named(ui, "key", now.keys)}</b>
      <span>Zoom</span>
      <b>{zoomOf(now)}</b>
    </>
  );
}

/** The segments of a span, if few; else its positions. */
function named({ store }: Ui, side: Side, span: Span): string {
  const axis = axisSegments(store, side);
  if (axis === null) return spaced(span);
  const inside = axis.tree.filter(({ start, stop }) => start < span.stop && stop > span.start);
  const names = [...new Set(inside.map(({ name }) => name))];
  return names.length > MOST_NAMED ? spaced(span) : names.join(", ");
}

const MOST_NAMED = 2;

const spaced = (span: Span) => rangeOf(span).replace("–", " – ");

/** "1 cell = 26 px", or "1 px = 4 cells". */
function zoomOf({ cellWidth, cellHeight }: Window): string {
  const cell = Math.min(cellWidth, cellHeight);
  if (cell >= 1) return `1 cell = ${cell < 9.5 ? Number(cell.toFixed(1)) : Math.round(cell)} px`;
  const cells = 1 / cell;
  return `1 px = ${cells < 9.5 ? Number(cells.toFixed(1)) : count(Math.round(cells))} cells`;
}
