/** Keys on the picture. What is handled here stops here, so that the notebook's own shortcuts do not fire. */

import type { Plot } from "../state/plot";
import type { Ui } from "../state/ui";
import type { Pointer } from "./pointer";

export const SHORTCUTS = [
  ["← ↑ → ↓", "move the pin; with Shift by 10"],
  ["Home End", "first key, last key"],
  ["Enter", "pin what is pointed at"],
  ["Esc", "free the pin"],
  ["[ ]", "head before, head after"],
  ["{ }", "layer before, layer after"],
  ["+ − 0", "zoom in, out, reset"],
  ["/", "go to a token"],
  ["Ctrl + scroll", "zoom; drag to pan"],
] as const;

/** Move the pin, the view, the head and the layer by keys while the picture has the focus. */
export function watchKeyboard(ui: Ui, plot: Plot, canvas: HTMLCanvasElement, pointing: Pointer): void {
  canvas.addEventListener(
    "keydown",
    (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !press(ui, plot, pointing, event)) return;
      event.preventDefault();
      event.stopPropagation();
    },
    { signal: ui.stop },
  );
}

/** Whether the key meant something here. */
function press(ui: Ui, plot: Plot, pointing: Pointer, { key, shiftKey }: KeyboardEvent): boolean {
  const { store } = ui;
  const picture = store.picture.value;
  const cellGrid = plot.cellGrid.value;
  if (picture === null || cellGrid === null) return false;
  const step = shiftKey ? 10 : 1;
  const down = step * cellGrid.rows.bin;
  const right = step * cellGrid.columns.bin;
  const actions: Record<string, () => void> = {
    ArrowUp: () => move(ui, pointing, -down, 0),
    ArrowDown: () => move(ui, pointing, down, 0),
    ArrowLeft: () => move(ui, pointing, 0, -right),
    ArrowRight: () => move(ui, pointing, 0, right),
    Home: () => move(ui, pointing, 0, -picture.keys),
    End: () => move(ui, pointing, 0, picture.keys),
    Enter: () => pinPointed(ui, pointing),
    " ": () => pinPointed(ui, pointing),
    "[": () => stepHead(ui, -1),
    "]": () => stepHead(ui, 1),
    "{": () => stepLayer(ui, -1),
    "}": () => stepLayer(ui, 1),
    "+": () => pointing.zoomBy(1.5),
    "=": () => pointing.zoomBy(1.5),
    "-": () => pointing.zoomBy(1 / 1.5),
    "−": () => pointing.zoomBy(1 / 1.5),
    "0": () => pointing.reset(),
  };
  if (store.query.value !== null || store.key.value !== null) {
    actions.Escape = () => store.select({ query: null, key: null });
  }
  const goTo = ui.root.querySelector<HTMLInputElement>("input[data-aw=goto]");
  if (goTo !== null) actions["/"] = () => goTo.focus();
  const action = actions[key];
  action?.();
  return action !== undefined;
}

/** Move the pin; with nothing pinned, begin where the pointer is, else at the first cell. */
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

/** Select the head `by` places further on; nothing where there is none. */
export function stepHead({ store }: Ui, by: number): void {
  const head = store.head.value + by;
  if (head >= 0 && head < store.facts.value.heads) store.select({ head });
}

/** Select the layer `by` places further on; nothing where there is none. */
export function stepLayer({ store }: Ui, by: number): void {
  const layer = store.layer.value + by;
  if (layer >= 0 && layer < store.facts.value.layers.length) store.select({ layer });
}
