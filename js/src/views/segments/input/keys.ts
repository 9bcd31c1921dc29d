/** The keyboard on the three pictures: arrows point, Enter pins and goes down, Backspace and Esc go up. */

import { headLines, pressKey } from "../../../components/keyboard";
import { type EffectOrder, ORDERS } from "../../../data/effects";
import { MEASURES } from "../../../data/segments";
import { askRuns } from "../../../state/effects";
import { askedOf } from "../../../state/segment-axes";
import type { KeyLine, Ui } from "../../../state/ui";
import { tokenBeyond } from "../drawing/layout";
import type { SegmentsModel, Spot } from "../model";
import type { HeadsState, TokensState } from "../words/states";
import { goUp, pinCell, pinColumn, pinHead, pinStack } from "./pins";

type LinesOf = (step: number) => readonly KeyLine[];

/** Listen to keys on one of the pictures; the list of keys belongs to the focused one. */
function watch(ui: Ui, element: HTMLElement, linesOf: LinesOf): void {
  const listen = { signal: ui.stop };
  const show = () => {
    ui.keyLines.value = () => linesOf(1);
  };
  if (element.dataset.aw === "picture") show();
  element.addEventListener("focus", show, listen);
  element.addEventListener("keydown", (event) => pressKey(event, linesOf), listen);
}

/** The keys that all three share: way up, heads and layers, next measure. */
function commonLines(ui: Ui, model: SegmentsModel, reading?: KeyLine): KeyLine[] {
  const up = () => goUp(ui, model);
  const measure = model.measure.value;
  const next = () => ui.store.show({ measure: MEASURES[(MEASURES.indexOf(measure) + 1) % MEASURES.length]! });
  const inside = (model.mass.value?.path.length ?? 0) > 0;
  const pinned = model.pinned.value >= 0 || model.token.value >= 0;
  const lines: KeyLine[] = [];
  const isNested = (askedOf(ui.store)?.path.length ?? 0) > 0;
  if (inside || pinned || isNested) {
    const does = inside || !pinned ? "one level up" : "unpin";
    lines.push({ shown: "Esc", does, keys: { Escape: up, Backspace: up } });
  }
  const readings = { shown: "r", does: "next measure: mass, per token, lift", keys: { r: next } };
  return [...lines, ...headLines(ui), reading ?? readings];
}

const clamp = (at: number, count: number) => Math.max(0, Math.min(count - 1, at));

/** Left and right: a token. Up and down: a line, or with a token pinned or pointed at, a segment. */
export function watchTokenKeys(ui: Ui, model: SegmentsModel, state: TokensState, canvas: HTMLElement): void {
  watch(ui, canvas, (step) => {
    const many = state.tokens.value.length;
    const { columns } = model.left.value;
    const layout = state.layout.value;
    if (many === 0 || layout === null) return [];
    const spot = model.hover.value?.part === "tokens" ? model.hover.value : null;
    const token = spot?.token ?? (model.token.value >= 0 ? model.token.value : -1);
    const column = (spot?.column ?? -1) >= 0 ? spot!.column : model.pinned.value;
    const point = (to: Partial<Spot>) => {
      const next: Spot = { part: "tokens", token: clamp(Math.max(0, token), many), column, ...to };
      model.hover.value = next;
      state.follow(next.token ?? 0);
    };
    const along = (by: number) => () => point({ token: token < 0 ? 0 : clamp(token + by, many) });
    const across = (by: number) => () => {
      const at = columns.indexOf(column);
      point({ column: columns[at < 0 ? 0 : clamp(at + by, columns.length)] ?? -1 });
    };
    const line = (by: number) => () => point({ token: token < 0 ? 0 : tokenBeyond(layout, token, by) });
    const pin = () => pinStack(ui, model, Math.max(0, token), column);
    return [
      {
        shown: "← →",
        does: "previous, next token (Shift: 10 at a time)",
        keys: { ArrowLeft: along(-step), ArrowRight: along(step) },
      },
      { shown: "↑ ↓", does: "segment above, below", keys: { ArrowUp: across(1), ArrowDown: across(-1) } },
      {
        shown: "Home End",
        does: "first, last token; Page keys: a line",
        keys: {
          Home: () => point({ token: 0 }),
          End: () => point({ token: many - 1 }),
          PageUp: line(-1),
          PageDown: line(1),
        },
      },
      { shown: "Enter", does: "pin; again: look inside", keys: { Enter: pin, " ": pin } },
      ...commonLines(ui, model),
    ];
  });
}

/** Arrows from cell to cell. */
export function watchMatrixKeys(ui: Ui, model: SegmentsModel, canvas: HTMLElement): void {
  watch(ui, canvas, (step) => {
    const now = model.mass.value;
    const [rows, columns] = [model.rows.value, model.left.value.columns];
    if (now === null || rows.length === 0 || columns.length === 0) return [];
    const spot = model.hover.value?.part === "matrix" ? model.hover.value : null;
    const down = Math.max(0, rows.indexOf(spot?.row ?? now.row));
    const across = Math.max(0, columns.indexOf(spot?.column ?? model.pinned.value));
    const move = (dy: number, dx: number) => () => {
      const [row, column] = [rows[clamp(down + dy, rows.length)]!, columns[clamp(across + dx, columns.length)]!];
      model.hover.value = { part: "matrix", row, column };
    };
    const pin = () => pinCell(ui, model, rows[down]!, columns[across]!);
    return [
      {
        shown: "← ↑ → ↓",
        does: "point at another cell (Shift: 10 at a time)",
        keys: {
          ArrowUp: move(-step, 0),
          ArrowDown: move(step, 0),
          ArrowLeft: move(0, -step),
          ArrowRight: move(0, step),
        },
      },
      {
        shown: "Home End",
        does: "first, last column",
        keys: { Home: move(0, -columns.length), End: move(0, columns.length) },
      },
      { shown: "Enter", does: "pin; again: look inside", keys: { Enter: pin, " ": pin } },
      ...commonLines(ui, model),
    ];
  });
}

/** Up and down: a head. Left and right: the sorted column. */
export function watchHeadKeys(ui: Ui, model: SegmentsModel, state: HeadsState, canvas: HTMLElement): void {
  watch(ui, canvas, (step) => {
    const order = model.headOrder.value;
    const columns = model.headColumns.value;
    if (order.length === 0) return [];
    const spot = model.hover.value?.part === "heads" ? model.hover.value : null;
    const here = model.heads.value?.heads.findIndex(
      ({ layer, head }) => layer === ui.store.layer.value && head === ui.store.head.value,
    );
    const at = order.indexOf(spot?.head ?? here ?? -1);
    const move = (by: number) => () => {
      const place = at < 0 ? 0 : clamp(at + by, order.length);
      model.hover.value = { part: "heads", head: order[place]!, column: model.pinned.value };
      state.follow(place);
    };
    const sort = (by: number) => () => {
      const from = columns.indexOf(model.pinned.value);
      const to = columns[from < 0 ? 0 : clamp(from + by, columns.length)];
      if (to !== undefined && to !== model.pinned.value) pinColumn(ui, model, to);
    };
    const pin = () => pinHead(ui, model, order[Math.max(0, at)]!);
    return [
      {
        shown: "↑ ↓",
        does: "point at another head (Shift: 10 at a time)",
        keys: {
          ArrowUp: move(-step),
          ArrowDown: move(step),
          Home: move(-order.length),
          End: move(order.length),
        },
      },
      { shown: "← →", does: "sort by the previous, next segment", keys: { ArrowLeft: sort(-1), ArrowRight: sort(1) } },
      { shown: "Enter", does: "select the head; again: look inside", keys: { Enter: pin, " ": pin } },
      ...commonLines(ui, model),
    ];
  });
}

/** For rows of effects: up and down, Enter pins, `r` changes the order, `s` stops the runs. */
export function watchRowKeys(ui: Ui, model: SegmentsModel, element: HTMLElement, rows: RowKeys): void {
  watch(ui, element, (step) => {
    const ids = rows.ids();
    if (ids.length === 0) return [];
    const at = ids.indexOf(rows.at());
    const to = (by: number) => () => rows.point(ids[at < 0 ? 0 : clamp(at + by, ids.length)]!);
    const across = rows.wide?.() ?? 0;
    const pin = () => rows.pin(ids[Math.max(0, at)]!);
    const order = Object.keys(ORDERS) as EffectOrder[];
    const next = () => {
      ui.effectOrder.value = order[(order.indexOf(ui.effectOrder.value) + 1) % order.length]!;
    };
    const beyond = (by: number) =>
      across > 0 ? () => rows.point(ids[at + by * across] ?? ids[Math.max(0, at)]!) : to(by);
    const keys = { ArrowUp: beyond(-step), ArrowDown: beyond(step) };
    const sideways = across > 0 ? { ArrowLeft: to(-step), ArrowRight: to(step) } : {};
    const ends = { Home: to(-ids.length), End: to(ids.length) };
    return [
      { shown: across > 0 ? "← ↑ → ↓" : "↑ ↓", does: `point at another ${rows.what}`, keys: { ...keys, ...sideways } },
      { shown: "Home End", does: "the first, the last", keys: ends },
      { shown: "Enter", does: "pin; again on a segment: look inside", keys: { Enter: pin, " ": pin } },
      { shown: "s", does: "stop the runs", keys: { s: () => askRuns(ui, "stop") } },
      ...commonLines(ui, model, {
        shown: "r",
        does: "next order: by effect, by mass, as in the text",
        keys: { r: next },
      }),
    ];
  });
}

interface RowKeys {
  readonly what: string;
  ids(): readonly number[];
  /** The row under the pointer, or the pinned one. */
  at(): number;
  /** The number of columns, if they form a grid. */
  wide?(): number;
  point(id: number): void;
  pin(id: number): void;
}
