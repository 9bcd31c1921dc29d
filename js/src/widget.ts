/** What anywidget calls: `initialize` once for each model, `render` once for each view of it. */

import { createKernel, type Kernel } from "./kernel";
import type { Model } from "./model";
import { createStore, type Store } from "./store";
import { createUi } from "./ui";
import { frame } from "./views/frame";

interface Session {
  readonly kernel: Kernel;
  readonly store: Store;
}

/** A model's views share its session. Hosts hand `initialize` and `render` different proxies: `uid` is what they share. */
const sessions = new Map<string, Session>();

function start(model: Model, stop: AbortSignal): Session {
  const kernel = createKernel(model, { signal: stop });
  return { kernel, store: createStore(model, kernel, stop) };
}

/** Older hosts give no signal: what is returned ends the same. */
function ending(signal: AbortSignal | undefined): AbortController {
  const end = new AbortController();
  if (signal?.aborted) end.abort();
  signal?.addEventListener("abort", () => end.abort(), { once: true });
  return end;
}

function initialize({ model, signal }: { model: Model; signal?: AbortSignal }): () => void {
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
  const end = ending(signal);
  const { store, kernel } = sessions.get(model.get("uid")) ?? start(model, end.signal);
  const root = document.createElement("div");
  root.className = "attnwidget";
  el.append(root);
  const ui = createUi(store, kernel, root, end.signal);
  const view = frame(ui);
  root.append(view.node);
  end.signal.addEventListener("abort", () => {
    view.dispose();
    root.remove();
  });
  return () => end.abort();
}

export default { initialize, render };
