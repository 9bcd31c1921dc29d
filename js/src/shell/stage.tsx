/** The place of the chosen view. The previous view stays until the next is loaded, so nothing jumps or flashes. */

import { effect, signal, untracked } from "@preact/signals-core";
import { mount, part, px, type View } from "../components/dom";
import { Message } from "../components/message";
import type { ViewName } from "../contract/values";
import type { Ui } from "../state/ui";
import { loadedView, loadView } from "./views";

/** Milliseconds before a loading message appears; loading takes about ten. */
const PATIENCE = 300;

/** The element that takes a view's keys: the first of several. */
const PICTURE = "[data-aw=picture]";

/** Return the place with the chosen view; while it loads, the previous one; or why it cannot be loaded. */
export function stage(ui: Ui): View {
  const { store } = ui;
  const node = part("aw-stage");
  const made = signal<((ui: Ui) => View) | null>(null);
  const attempts = signal(0);
  let hadFocus = false; // whether the previous view had the focus, so that the next one gets it
  const put = (make: (ui: Ui) => View) => {
    if (made.peek() !== make) store.recovery.attempt(() => (made.value = make));
  };

  const ends = [
    effect(() => {
      const name = store.view.value;
      attempts.value;
      const make = loadedView(name);
      if (make !== undefined) {
        node.removeAttribute("aria-busy");
        made.value = make;
        return undefined;
      }
      node.setAttribute("aria-busy", "true");
      let isLeft = false;
      const waits = setTimeout(() => put(() => waiting(node, name)), PATIENCE);
      const then = (next: () => (ui: Ui) => View) => {
        clearTimeout(waits);
        if (isLeft) return;
        put(next());
        node.removeAttribute("aria-busy");
      };
      loadView(name).then(
        () => then(() => loadedView(name)!),
        (error: unknown) => then(() => () => absent(ui, name, error, () => attempts.value++)),
      );
      return () => {
        isLeft = true;
        clearTimeout(waits);
      };
    }),
    effect(() => {
      // Each view has its own signal.
      const own = new AbortController();
      const view = made.value?.({ ...ui, stop: own.signal });
      if (view === undefined) return undefined;
      node.replaceChildren(view.node);
      if (hadFocus) view.node.querySelector<HTMLElement>(PICTURE)?.focus({ preventScroll: true });
      return () => {
        hadFocus = node.contains((node.getRootNode() as Document | ShadowRoot).activeElement ?? null);
        own.abort();
        view.dispose();
        ui.hover.value = null;
        ui.pointedHead.value = null;
        ui.extent.value = null;
        ui.keyLines.value = () => [];
        ui.card.value = null;
      };
    }),
  ];
  return {
    node,
    dispose() {
      for (const end of ends) end();
    },
  };
}

/** As high as the previous view, so that nothing below moves. */
function waiting(stage: HTMLElement, name: ViewName): View {
  const node = part("aw-notice", "loading");
  node.style.minHeight = px(stage.offsetHeight);
  return mount(node, () => <Message sign="waiting" title={`Opening the ${name} view …`} text="" />);
}

/** The page lacks this part of the script, or does not allow it to run. */
function absent({ store }: Ui, name: ViewName, error: unknown, again: () => void): View {
  const node = part("aw-notice", "unloaded");
  const why = error instanceof Error ? error.message : String(error);
  const text =
    "Try again. If that does not help, run the cell again or save the file again. " +
    `If the page's security policy blocks scripts from blob: URLs, allow them. Reason: ${why}`;
  return mount(node, () => (
    <Message
      sign="error"
      title={`The ${name} view could not be loaded`}
      text={text}
      actions={[
        { name: "Try again", run: () => untracked(again) },
        { name: "Show the heatmap", run: () => store.show({ view: "heatmap" }) },
      ]}
    />
  ));
}
