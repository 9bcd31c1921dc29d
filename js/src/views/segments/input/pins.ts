/** What a click pins, and where the next click leads: to the inner segments, or to the cells, and back. */

import type { Mass } from "../../../data/segment-data";
import { type Piece, piecesBelow } from "../../../data/segments";
import { askedOf, askingFor } from "../../../state/segment-axes";
import type { Ui } from "../../../state/ui";
import type { SegmentsModel } from "../model";

/** Whether another level was requested meanwhile: until it arrives, the drawn one cannot be pinned or opened. */
const isOutdated = ({ store }: Ui, { path }: Mass) => path.join("\n") !== (store.segment_path.value ?? []).join("\n");

/** Pin a column (with `add`, in addition to the first); a pinned one opens. */
export function pinColumn(ui: Ui, model: SegmentsModel, column: number, add = false): void {
  const now = model.mass.value;
  const name = now?.keys[column];
  if (now === null || name === undefined || !model.left.value.columns.includes(column) || isOutdated(ui, now)) return;
  if (add && model.pinned.value >= 0) {
    model.second.value = model.second.value === column || column === model.pinned.value ? -1 : column;
  } else if (column === model.pinned.value) goDown(ui, model, column);
  else {
    model.second.value = -1;
    ui.store.select({ segment: name });
  }
}

/** Pin a token of the asking segment, or unpin it. */
export function pinToken(ui: Ui, model: SegmentsModel, at: number): void {
  const position = model.mass.value?.positions[at];
  if (position === undefined) return;
  ui.store.select({ query: at === model.token.value ? null : position, key: null });
}

/** Pin a token and a column; if both are pinned, open the column. */
export function pinStack(ui: Ui, model: SegmentsModel, at: number, column: number, add = false): void {
  const position = model.mass.value?.positions[at];
  if (position === undefined) return;
  if (add || column < 0) {
    if (column < 0) pinToken(ui, model, at);
    else pinColumn(ui, model, column, true);
    return;
  }
  if (at === model.token.value && column === model.pinned.value) {
    goDown(ui, model, column);
    return;
  }
  ui.store.select({ query: position, key: null });
  if (column !== model.pinned.value) pinColumn(ui, model, column);
}

/** Show the attention of another segment on the same level. */
export function ask(ui: Ui, name: string): void {
  const now = ui.store.mass.value;
  if (now !== null && !isAsked(ui, name)) ui.store.show({ asking: askingFor(now.askingPath, name) });
}

/** Whether a row's segment is the asking one, or was chosen to be. */
function isAsked({ store }: Ui, name: string): boolean {
  const now = store.mass.value;
  const { path, name: chosen } = askedOf(store) ?? { path: now?.askingPath ?? [], name: now?.asking };
  return chosen === name && path.join("\n") === (now?.askingPath ?? []).join("\n");
}

/** Make a row's segment the asking one; the asking one opens. */
export function openRow(ui: Ui, row: number): void {
  const now = ui.store.mass.value;
  const name = now?.rows[row];
  if (now === null || name === undefined) return;
  if (!isAsked(ui, name)) ask(ui, name);
  else askInside(ui, [...now.askingPath, name]);
}

/** Make the first inner segment the asking one; false if there are none. */
export function askInside({ store }: Ui, path: readonly string[]): boolean {
  const segments = store.segments.value;
  const first = segments === null ? undefined : piecesBelow(segments, path)[0];
  if (first !== undefined) store.show({ asking: [...path, first.name] });
  return first !== undefined;
}

/** Make the segment around the asking one the asking one. */
export function askAround({ store }: Ui): void {
  const path = askedOf(store)?.path ?? [];
  if (path.length > 0) store.show({ asking: askingFor(path.slice(0, -1), path.at(-1)!) });
}

/** Pin a row and a column; if both are pinned, open the column. */
export function pinCell(ui: Ui, model: SegmentsModel, row: number, column: number, add = false): void {
  const now = model.mass.value;
  if (now === null) return;
  const name = now.rows[row]!;
  if (!isAsked(ui, name)) ask(ui, name);
  else if (column === model.pinned.value) {
    goDown(ui, model, column);
    return;
  }
  if (column !== model.pinned.value) pinColumn(ui, model, column, add);
}

/** Select a head; the selected one opens. */
export function pinHead(ui: Ui, model: SegmentsModel, row: number): void {
  const at = model.heads.value?.heads[row];
  if (at === undefined) return;
  const { store } = ui;
  if (at.layer === store.layer.value && at.head === store.head.value && store.shownHeads.value.length < 2) {
    goDown(ui, model, model.pinned.value);
  } else store.select({ layer: at.layer, head: at.head, heads: [at.head] });
}

/** Show the segments inside a column, or its cells if there are none. */
export function goDown(ui: Ui, model: SegmentsModel, column: number): void {
  const { store } = ui;
  const now = model.mass.value;
  const name = now?.keys[column];
  const inKeys = store.keySegments.value ?? store.segments.value;
  if (now === null || name === undefined || inKeys === null || isOutdated(ui, now)) return;
  const path = [...now.path, name];
  if (isDivided(now, column) ?? piecesBelow(inKeys, path).length > 0) {
    const inside = model.lastInside.get(path.join("\n")) ?? null;
    if (inside === null) store.select({ segment: null });
    store.show({ segment_path: path });
    if (inside !== null) store.select({ segment: inside });
    return;
  }
  const asking = store.segments.value ?? inKeys;
  const keys = sent(now.keySpans, column) ?? spanOf(named(piecesBelow(inKeys, now.path), name));
  const queries = sent(now.rowSpans, now.row) ?? spanOf(named(piecesBelow(asking, now.askingPath), now.asking));
  if (keys === null || queries === null || keys.stop === 0) return; // a learned sink has no cells
  ui.cameFrom.value = { view: "segments", block: `${now.asking} → ${name}` };
  ui.marked.value = { queries, keys, from: now.asking, to: name, side: "key" };
  store.show({ view: "heatmap" }); // it moves to the mark
}

/** Whether a column has inner segments; null if the message (from an older file) does not tell. */
const isDivided = ({ keyInside }: Mass, column: number): boolean | null =>
  keyInside.length > 0 ? keyInside[column]! > 0 : null;

/** The longest stretch as sent; null in older files. */
function sent(spans: Uint32Array, at: number) {
  return spans.length > 0 ? { start: spans[2 * at]!, stop: spans[2 * at + 1]! } : null;
}

const named = (pieces: readonly Piece[], name: string) => pieces.filter((piece) => piece.name === name);

/** The longest piece: a segment in several places is shown there. */
function spanOf(pieces: readonly Piece[]) {
  const longest = pieces.reduce<Piece | null>(
    (most, piece) => (most === null || piece.stop - piece.start > most.stop - most.start ? piece : most),
    null,
  );
  return longest && { start: longest.start, stop: longest.stop };
}

/** Go up one level; on the outermost, unpin the second segment, the token, the segment, in turn. */
export function goUp(ui: Ui, model: SegmentsModel): void {
  const { store } = ui;
  const path = store.segment_path.value ?? [];
  if (path.length > 0) {
    const pinned = store.segment.value;
    if (pinned != null) model.lastInside.set(path.join("\n"), pinned);
    store.show({ segment_path: path.slice(0, -1) });
    store.select({ segment: path.at(-1) ?? null });
  } else if (model.second.value >= 0) model.second.value = -1;
  else if (model.token.value >= 0) store.select({ query: null, key: null });
  else if (store.segment.value !== null) store.select({ segment: null });
  else askAround(ui);
}
