/** An error boundary around the widget: it reports the error and offers a retry; the next change rebuilds the view. */

import { effect, untracked } from "@preact/signals-core";
import { mount, part, type View } from "../components/dom";
import { type Action, Message } from "../components/message";
import type { Store } from "../state/store";

type Broken = Pick<Store, "recovery" | "view" | "show">;

/** Keep the view that `build` returns in a node; if it cannot be drawn, show the reason. */
export function bounded(root: HTMLElement, store: Broken, build: () => View): { dispose(): void } {
  const { recovery } = store;
  let view: View | null = null;

  function end() {
    const before = view;
    view = null;
    before?.node.remove();
    try {
      before?.dispose();
    } catch {
      // the view that threw may throw again
    }
  }

  function show(failure: { readonly why: string } | null) {
    end();
    try {
      view = failure === null ? build() : sentence(failure.why, store);
      root.append(view.node);
    } catch (error) {
      if (failure === null) recovery.failed(error);
    }
  }

  const stop = effect(() => {
    const failure = recovery.failure.value;
    untracked(() => show(failure));
  });
  return {
    dispose() {
      stop();
      end();
    },
  };
}

function sentence(why: string, { recovery, view, show }: Broken): View {
  const node = part("aw-notice", "broken");
  const text = `The notebook is unchanged. Draw it again, or run the cell again. Reason: ${ended(why)}`;
  const actions: Action[] = [{ name: "Draw it again", run: () => recovery.attempt(() => {}) }];
  // The current view may be what failed; the heatmap needs the least.
  if (view.peek() !== "heatmap") actions.push({ name: "Show the heatmap", run: () => show({ view: "heatmap" }) });
  return mount(node, () => (
    <Message sign="error" title="The widget could not draw this" text={text} actions={actions} />
  ));
}

const ended = (why: string) => (/[.!?]$/.test(why) ? why : `${why}.`);
