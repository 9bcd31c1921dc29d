/** Keys that move the pinned block from segment to segment, show its cells, and go back. */

import type { Side } from "../contract/values";
import { levelsOf } from "../data/segments";
import { isNamedAxis, type Plot } from "../state/plot";
import { askedOf, askingFor, axisSegments, freeBlock, lookAt, pinnedBlock, pinnedSegment } from "../state/segment-axes";
import type { KeyLine, Ui } from "../state/ui";

/** Return the keys for segments that currently have an effect; they take precedence over those for cells. */
export function blockLines(ui: Ui, plot: Plot, step: number, reset: () => void): KeyLine[] {
  const { store } = ui;
  if (store.view.value !== "heatmap") return [];
  const hasCell = store.query.value !== null || store.key.value !== null;
  const block = pinnedBlock(store);
  const isPinned = pinnedSegment(store, "query") !== null || pinnedSegment(store, "key") !== null;
  const isClose = plot.viewport.value.k > 1 && block !== null;
  const lines: KeyLine[] = [];
  if (!hasCell && isOnNames(ui, plot)) {
    const move = (side: Side, by: number) => () => moveBlock(ui, side, by);
    lines.push({
      shown: "← ↑ → ↓",
      does: "move the pinned segments",
      keys: {
        ArrowUp: move("query", -step),
        ArrowDown: move("query", step),
        ArrowLeft: move("key", -step),
        ArrowRight: move("key", step),
        Home: move("key", Number.NEGATIVE_INFINITY),
        End: move("key", Number.POSITIVE_INFINITY),
      },
    });
  }
  if (!hasCell && !isClose && block !== null && ui.hover.value === null) {
    lines.push({ shown: "Enter", does: "show the cells of the block", keys: { Enter: () => lookAt(ui, block) } });
  }
  if (ui.cameFrom.value !== null) return lines; // Esc goes back to the previous view
  if (isClose) lines.push({ shown: "Esc", does: "back from the cells", keys: { Escape: reset, Backspace: reset } });
  else if (!hasCell && isPinned) {
    const free = () => void freeBlock(ui);
    lines.push({ shown: "Esc", does: "unpin the segments", keys: { Escape: free, Backspace: free } });
  }
  return lines;
}

/** Whether names of segments are shown along both axes. */
function isOnNames({ store, unit }: Ui, plot: Plot): boolean {
  const cells = plot.cellGrid.value;
  if (cells === null) return false;
  return (["query", "key"] as const).every((side) => {
    const along = side === "query" ? cells.rows : cells.columns;
    return (
      axisSegments(store, side) !== null && isNamedAxis(plot.names.value, along, plot.viewport.value.k, unit.value)
    );
  });
}

/** Pin the segment so many places further; without a pin, begin at the asking segment and the first keys. */
function moveBlock(ui: Ui, side: Side, by: number): void {
  const { store } = ui;
  const [rows, columns] = [namesOn(ui, "query"), namesOn(ui, "key")];
  const path = askedOf(store)?.path ?? [];
  const asking = path.length === 0 ? (store.segments.value?.answer ?? rows.at(-1)) : rows.at(-1);
  const at = (names: readonly string[], name: string | null | undefined, along: Side) => {
    if (name == null || !names.includes(name)) return null;
    const moved = names.indexOf(name) + (side === along ? by : 0);
    return names[Math.max(0, Math.min(names.length - 1, moved))]!;
  };
  const query = at(rows, pinnedSegment(store, "query")?.name, "query");
  const key = at(columns, pinnedSegment(store, "key")?.name, "key");
  const name = query ?? asking;
  if (askedOf(store)?.name !== name) store.show({ asking: name === undefined ? null : askingFor(path, name) });
  if (store.segment.value !== (key ?? columns[0])) store.select({ segment: key ?? columns[0] ?? null });
}

/** The names on an axis that can be pinned, in order of appearance. */
function namesOn({ store }: Ui, side: Side): string[] {
  const axis = axisSegments(store, side);
  if (axis === null) return [];
  let nodes = axis.tree;
  for (const part of axis.path.slice(0, levelsOf(axis.segments))) {
    nodes = nodes.filter(({ name }) => name === part).flatMap(({ children }) => children);
  }
  return [...new Set(nodes.map(({ name }) => name))];
}
