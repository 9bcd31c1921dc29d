/** The entry points for anywidget: `initialize` once per model, `render` once per view of it. */

import { untracked } from "@preact/signals-core";
import type { Model } from "./contract/traits";
import { createKernel, type Kernel } from "./kernel/kernel";
import { bounded } from "./shell/boundary";
import { frame } from "./shell/frame";
import { loadedView, loadView } from "./shell/views";
import { tellPage } from "./state/page";
import { createStore, type Store } from "./state/store";
import { createUi } from "./state/ui";

interface Session {
  readonly kernel: Kernel;
  readonly store: Store;
}

/** A model's views share its session. Hosts pass different proxies to `initialize` and `render`, which share `uid`. */
const sessions = new Map<string, Session>();

function start(model: Model, stop: AbortSignal): Session {
  const kernel = createKernel(model, { signal: stop });
  const store = createStore(model, kernel, stop);
  tellPage(kernel, store.recovery, stop);
  return { kernel, store };
}

/** Older hosts give no signal: the returned function ends it. */
function ending(signal: AbortSignal | undefined): AbortController {
  const end = new AbortController();
  signal?.addEventListener("abort", () => end.abort(), { once: true });
  return end;
}

function initialize({ model, signal }: { model: Model; signal?: AbortSignal }): () => void {
  if (signal?.aborted) return () => {};
  const end = ending(signal);
  const uid = model.get("uid");
  const session = start(model, end.signal);
  sessions.set(uid, session);
  end.signal.addEventListener("abort", () => {
    if (sessions.get(uid) === session) sessions.delete(uid);
  });
  return () => end.abort();
}

function render({ model, el, signal }: { model: Model; el: HTMLElement; signal?: AbortSignal }): () => void {
  if (signal?.aborted) return () => {};
  const end = ending(signal);
  const { store, kernel } = sessions.get(model.get("uid")) ?? start(model, end.signal);
  const drawn = el.querySelector<HTMLElement>(":scope > .attnwidget[data-first]"); // by first.ts
  const root = drawn ?? document.createElement("div");
  root.className = "attnwidget";
  if (drawn === null) el.append(root);
  const still = drawn?.firstElementChild;
  const ui = createUi(store, kernel, root, end.signal);
  // The view is built once there is a width to draw at: after it is in the page, and not while a notebook full of
  // widgets opens, whose other models have two seconds to start; and after the view's script is loaded, so that it
  // appears at its full height.
  let view: { dispose(): void } | null = null;
  const first = store.view.peek();
  let isLoaded = loadedView(first) !== undefined;
  const build = () => {
    if (!isLoaded || ui.width.peek() === 0 || view !== null || end.signal.aborted) return;
    view = untracked(() => bounded(root, store, () => frame(ui)));
    still?.remove();
    delete root.dataset.first;
  };
  const whenWide = ui.width.subscribe(build);
  const goOn = () => {
    isLoaded = true; // or it tells why not
    build();
  };
  if (!isLoaded) loadView(first).then(goOn, goOn);
  end.signal.addEventListener("abort", () => {
    whenWide();
    view?.dispose();
    root.remove();
  });
  return () => end.abort();
}

export default { initialize, render };
