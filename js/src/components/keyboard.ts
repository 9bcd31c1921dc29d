/** Keys on the picture, and their list. Handled keys do not propagate. */

import type { Plot } from "../state/plot";
import type { KeyLine, Ui } from "../state/ui";
import { blockLines } from "./block-keys";
import type { Pointer } from "./pointer";

/** Whether a key is pressed with a modifier, as for shortcuts of the host or browser. */
export const isShortcut = ({ ctrlKey, metaKey, altKey }: KeyboardEvent) => ctrlKey || metaKey || altKey;

/** Focus the picture, or the first of several. */
export function focusPicture(root: HTMLElement): void {
  const picture = root.querySelector<HTMLElement>("[data-aw=picture]");
  const first = picture?.tabIndex === 0 ? picture : picture?.querySelector<HTMLElement>("[tabindex='0']");
  first?.focus({ preventScroll: true });
}

/** The keys of a view, as lines of the list that `?` opens. With Shift a `step` is 10. */
type LinesOf = (step: number) => readonly KeyLine[];

/** Handle a view's keys while an element has the focus. */
export function watchKeys(ui: Ui, element: HTMLElement, linesOf: LinesOf): void {
  ui.keyLines.value = () => linesOf(1);
  element.addEventListener("keydown", (event) => pressKey(event, linesOf), { signal: ui.stop });
}

/** Handle a key, if it has a meaning. */
export function pressKey(event: KeyboardEvent, linesOf: LinesOf): void {
  if (isShortcut(event)) return;
  const line = linesOf(event.shiftKey ? 10 : 1).find(({ keys }) => Object.hasOwn(keys, event.key));
  if (line === undefined) return;
  event.preventDefault();
  event.stopPropagation();
  line.keys[event.key]?.();
}

/** Keys that move the pin, the view, the head and the layer while the picture has the focus. */
export function watchKeyboard(ui: Ui, plot: Plot, canvas: HTMLCanvasElement, pointing: Pointer): void {
  watchKeys(ui, canvas, (step) => {
    const picture = ui.store.picture.value;
    const cellGrid = plot.cellGrid.value;
    if (picture === null || cellGrid === null) return [];
    const down = step * cellGrid.rows.bin;
    const right = step * cellGrid.columns.bin;
    const pin = () => pinPointed(ui, pointing);
    const closer = () => pointing.zoomBy(1.5);
    const farther = () => pointing.zoomBy(1 / 1.5);
    return [
      ...blockLines(ui, plot, step, () => pointing.reset()),
      {
        shown: "← ↑ → ↓",
        does: "move the pin (Shift: by 10)",
        keys: {
          ArrowUp: () => move(ui, pointing, -down, 0),
          ArrowDown: () => move(ui, pointing, down, 0),
          ArrowLeft: () => move(ui, pointing, 0, -right),
          ArrowRight: () => move(ui, pointing, 0, right),
        },
      },
      {
        shown: "Home End",
        does: "first, last key",
        keys: {
          Home: () => move(ui, pointing, 0, -picture.keys),
          End: () => move(ui, pointing, 0, picture.keys),
        },
      },
      { shown: "Enter", does: "pin what the pointer is on", keys: { Enter: pin, " ": pin } },
      ...pinLines(ui),
      ...headLines(ui),
      {
        shown: "+ − 0",
        does: "zoom in, out, reset",
        keys: { "+": closer, "=": closer, "-": farther, "−": farther, "0": () => pointing.reset() },
      },
      ...(ui.store.view.value === "heatmap"
        ? [{ shown: "w", does: "color range: in view, or the whole head", keys: { w: () => toggleRange(ui) } }]
        : []),
      { shown: "Ctrl + scroll", does: "zoom; drag to pan", keys: {} },
    ];
  });
}

/** Esc while something is pinned; Backspace in a view opened from another. */
export function pinLines(ui: Ui): KeyLine[] {
  const { store, cameFrom } = ui;
  const lines: KeyLine[] = [];
  if (store.query.value !== null || store.key.value !== null) {
    lines.push({
      shown: "Esc",
      does: "unpin",
      keys: { Escape: () => store.select({ query: null, key: null }) },
    });
  } else if (cameFrom.value !== null) {
    lines.push({ shown: "Esc", does: `back to ${cameFrom.value.view}`, keys: { Escape: () => goBack(ui) } });
  }
  if (cameFrom.value !== null) {
    lines.push({ shown: "Backspace", does: `back to ${cameFrom.value.view}`, keys: { Backspace: () => goBack(ui) } });
  }
  return lines;
}

/** Go back to the view from which this one was opened. */
export function goBack({ store, cameFrom }: Ui): void {
  const from = cameFrom.value;
  if (from === null) return;
  store.show({ view: from.view }); // this forgets the previous view
}

/** Brackets, if there are other heads and layers. */
export function headLines(ui: Ui): KeyLine[] {
  const { heads, layers } = ui.store.facts.value;
  const lines: KeyLine[] = [];
  if (heads > 1) {
    const keys = { "[": () => stepHead(ui, -1), "]": () => stepHead(ui, 1) };
    lines.push({ shown: "[ ]", does: "previous, next head", keys });
  }
  if (layers.length > 1) {
    const keys = { "{": () => stepLayer(ui, -1), "}": () => stepLayer(ui, 1) };
    lines.push({ shown: "{ }", does: "previous, next layer", keys });
  }
  return lines;
}

/** Move the pin; without a pin, begin at the pointer, else at the first cell. */
function move(ui: Ui, pointing: Pointer, down: number, right: number): void {
  const { store } = ui;
  const picture = store.picture.value;
  if (picture === null) return;
  const clamp = (value: number, total: number) => Math.max(0, Math.min(total - 1, value));
  const [query, key] = [store.query.value, store.key.value];
  const pointed = ui.hovered.value;
  const next =
    query === null && key === null
      ? { query: pointed?.query ?? 0, key: pointed?.key ?? 0 }
      : { query: clamp((query ?? 0) + down, picture.queries), key: clamp((key ?? 0) + right, picture.keys) };
  store.select(next);
  pointing.follow(next.query, next.key);
}

function pinPointed(ui: Ui, pointing: Pointer): void {
  const at = ui.hover.value;
  if (at !== null && "bin" in at) void pointing.pin(at.bin);
}

/** Toggle the color range between the view and the whole head. */
export function toggleRange({ store }: Ui): void {
  store.show({ color_range: store.color_range.value === "view" ? "head" : "view" });
}

function stepHead({ store }: Ui, by: number): void {
  const head = store.head.value + by;
  if (head >= 0 && head < store.facts.value.heads) store.select({ head });
}

function stepLayer({ store }: Ui, by: number): void {
  const layer = store.layer.value + by;
  if (layer >= 0 && layer < store.facts.value.layers.length) store.select({ layer });
}
