/**
 * The arrangement of this view's parts: side by side or stacked, under headings that fold in little room.
 */

import { effect, type ReadonlySignal, type Signal } from "@preact/signals-core";
import type { ComponentChildren } from "preact";
import { Chevron, px } from "../../components/dom";
import type { Ui } from "../../state/ui";

const GAP = 36;
const LIST = 260;
const WIDE_LIST = 300;
const MATRIX = 380;

/** The widths of the parts in pixels, side by side or stacked. */
export interface Rooms {
  readonly beside: boolean;
  readonly tokens: number;
  readonly list: number;
  readonly matrix: number;
  readonly heads: number;
}

/** Return nodes stacked on one another. */
export function section(nodes: readonly HTMLElement[]): HTMLElement {
  const own = document.createElement("section");
  own.append(...nodes);
  return own;
}

/** The widths of the parts: side by side from 720 px on. */
export function roomsOf(ui: Ui): Rooms {
  const unit = ui.unit.value;
  const wide = ui.mode.value === "wide";
  const beside = wide || ui.mode.value === "beside";
  const all = Math.min(ui.width.value, 1280 * unit);
  if (!beside) return { beside, tokens: all, list: all, matrix: all, heads: all };
  const list = (wide ? WIDE_LIST : LIST) * unit;
  const matrix = Math.min(MATRIX * unit, 0.43 * all);
  return { beside, tokens: all - GAP * unit - list, list, matrix, heads: all - GAP * unit - matrix };
}

/** The parts of the page: two side by side, and below them two that fold in little room. */
export interface Pairs {
  readonly body: HTMLElement;
  readonly above: readonly HTMLElement[];
  readonly first: readonly [HTMLElement, HTMLElement];
  readonly second: readonly [HTMLElement, HTMLElement];
  /** The contents of the second pair's parts, and whether they are open. */
  readonly folds: readonly [HTMLElement, HTMLElement];
  readonly open: { readonly matrix: Signal<boolean>; readonly heads: Signal<boolean> };
  /** Whether there is anything to show below. */
  readonly several: ReadonlySignal<boolean>;
}

/** Place the parts by width; returns a function to stop. */
export function layPairs(ui: Ui, rooms: ReadonlySignal<Rooms>, pairs: Pairs): () => void {
  const rows = [pairs.first, pairs.second].map((pair) => {
    const node = document.createElement("div");
    node.className = "aw-seg-pair";
    node.append(...pair);
    return node;
  });
  pairs.body.replaceChildren(...pairs.above, ...rows);
  return effect(() => {
    const now = rooms.value;
    const narrow = ui.mode.value === "narrow";
    const [matrix, heads] = pairs.second;
    rows[1]!.replaceChildren(...(narrow ? [heads, matrix] : [matrix, heads]));
    for (const row of rows) row.toggleAttribute("data-beside", now.beside);
    pairs.first[0].style.width = px(now.tokens);
    pairs.first[1].style.width = px(now.list);
    matrix.style.width = now.beside ? px(now.matrix) : "100%";
    heads.style.width = now.beside ? px(now.heads) : "100%";
    rows[1]!.hidden = !pairs.several.value;
    pairs.folds[0].hidden = narrow && !pairs.open.matrix.value;
    pairs.folds[1].hidden = narrow && !pairs.open.heads.value;
  });
}

interface FoldingProps {
  readonly ui: Ui;
  readonly open: { value: boolean };
  readonly name: ComponentChildren;
  readonly note: ComponentChildren;
}

/** A heading; in little room, a button that folds its part. */
export function Folding({ ui, open, name, note }: FoldingProps) {
  if (ui.mode.value !== "narrow") {
    return (
      <>
        <h4 class="aw-heading">{name}</h4>
        {typeof note !== "string" && <span class="aw-seg-caption">{note}</span>}
      </>
    );
  }
  return (
    <h4 class="aw-heading aw-seg-fold">
      <button
        type="button"
        aria-expanded={open.value}
        onClick={() => {
          open.value = !open.value;
        }}
      >
        {name}
        <Chevron />
        <span class="aw-seg-caption">{note}</span>
      </button>
    </h4>
  );
}
