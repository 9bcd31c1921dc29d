/** Around the whole widget: where a part of it throws there is one sentence, and with the next change it is built anew. */

import { effect, untracked } from "@preact/signals-core";
import { mount, part, type View } from "../components/dom";
import { Message } from "../components/message";
import type { Recovery } from "../state/recovery";

/** Keep the view that `build` returns in a node, or, where it cannot be drawn, the reason. */
export function bounded(root: HTMLElement, recovery: Recovery, build: () => View): { dispose(): void } {
  let view: View | null = null;

  function end() {
    const before = view;
    view = null;
    before?.node.remove();
    try {
      before?.dispose();
    } catch {
      // it is what threw
    }
  }

  function show(failure: { readonly why: string } | null) {
    end();
    try {
      view = failure === null ? build() : sentence(failure.why);
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

function sentence(why: string): View {
  const node = part("aw-notice", "broken");
  const text = `${why} It is drawn anew with the next change.`;
  return mount(node, () => <Message sign="error" title="This could not be drawn" text={text} />);
}
