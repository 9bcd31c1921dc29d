/** Keys pressed in the widget stay in the widget: they do not edit the notebook or trigger the host's shortcuts. */

import { focusPicture, isShortcut } from "../components/keyboard";
import type { Ui } from "../state/ui";

/** JupyterLab and Notebook 7 look for this on the focused element only, not on its ancestors. */
const KEPT = "data-lm-suppress-shortcuts";
/** Single keys with which a host edits or moves. Tab and the function keys stay with the browser and the host. */
const EDITS = /^(.|Arrow.*|Home|End|Page.*|Enter|Backspace|Delete|Insert)$/u;

/** Keep keys from the host while the widget has the focus; `/` and `?` open the cards. */
export function keepKeys(ui: Ui): void {
  const { root, stop } = ui;
  const focused = (event: Event) => event.composedPath()[0] as HTMLElement;
  root.addEventListener("focusin", (event) => focused(event).setAttribute(KEPT, "true"), { signal: stop });
  // Notebook 7 listens before any element does, but after the window. Saving stays the notebook's.
  root.ownerDocument.defaultView?.addEventListener(
    "keydown",
    (event) => {
      if (!event.composedPath().includes(root)) return;
      if (saves(event)) focused(event).removeAttribute(KEPT);
      else focused(event).setAttribute(KEPT, "true");
    },
    { capture: true, signal: stop },
  );
  root.addEventListener(
    "keydown",
    (event) => {
      if (isShortcut(event)) return;
      if (!focused(event).matches("input, textarea")) openCard(ui, event);
      if (EDITS.test(event.key)) event.stopPropagation();
    },
    { signal: stop },
  );
  keepFocus(root, stop);
}

const saves = ({ key, ctrlKey, metaKey, altKey }: KeyboardEvent) =>
  (ctrlKey || metaKey) && !altKey && key.toLowerCase() === "s";

function openCard(ui: Ui, event: KeyboardEvent): void {
  const card = event.key === "?" ? "tour" : event.key === "/" && hasGoTo(ui) ? "goto" : null;
  if (card === null) return;
  event.preventDefault();
  const field = card === "goto" ? ui.root.querySelector<HTMLInputElement>("input[data-aw=goto]") : null;
  if (field === null) ui.card.value = card;
  else field.focus(); // a long head has the field next to its picture
}

/** Whether there are tokens to go to; the view of all heads has none. */
export const hasGoTo = ({ store }: Ui) => store.view.value !== "heads";

/**
 * Give the focus to the picture when something without focus is clicked; else the notebook would get it, and the next
 * key too. A text selection is kept, so that it can be copied.
 */
function keepFocus(root: HTMLElement, stop: AbortSignal): void {
  const page = root.getRootNode() as Document | ShadowRoot;
  const selection = () => {
    const at = root.ownerDocument.getSelection();
    return at === null || at.isCollapsed ? [] : [at.anchorNode, at.anchorOffset, at.focusNode, at.focusOffset];
  };
  let before = selection();
  root.addEventListener(
    "pointerdown",
    () => {
      before = selection();
    },
    { capture: true, signal: stop },
  );
  root.addEventListener(
    "click",
    () => {
      const isNew = selection().some((end, at) => end !== before[at]);
      if (!isNew && !root.contains(page.activeElement)) focusPicture(root);
    },
    { signal: stop },
  );
}
