/** The line below a view: the exact number under the pointer, or at the pin, and what it was computed from. */

import { effect, type ReadonlySignal, signal } from "@preact/signals-core";
import { mount, part, px, type View } from "../../components/dom";
import { isPinnedPair } from "../../state/pinned-pair";
import type { Ui } from "../../state/ui";
import { RecallLine, recallAt, SinkLine, sinkAt } from "./column-lines";
import { facts } from "./facts";
import { Pinned } from "./place";
import { BlockLine, SegmentsLine, segmentsAt } from "./segment-lines";
import { ChangeLine, Exact, GraphLine, HeadsLine, Hint, hints, PairWeight } from "./view-lines";
import { Busy } from "./waiting";

/**
 * Return the line below a view: the number under the pointer, and what it was computed from.
 *
 * While the kernel is busy, a message replaces the second part at the same height, so that nothing moves when it
 * appears or goes.
 */
export function status(ui: Ui): View {
  const node = part("aw-status", "status");
  const isBusy = signal(false);
  const end = effect(() => {
    const now = ui.kernel.state.value === "waiting";
    node.style.minHeight = now ? px(node.offsetHeight) : "";
    isBusy.value = now;
  });
  const line = mount(node, () => <Status ui={ui} isBusy={isBusy} />);
  return {
    node,
    dispose() {
      end();
      line.dispose();
    },
  };
}

function Status({ ui, isBusy }: { ui: Ui; isBusy: ReadonlySignal<boolean> }) {
  const { store } = ui;
  const picture = store.picture.value;
  if (picture === null) return isBusy.value ? <Busy ui={ui} /> : null;
  const hovering = ui.hover.value !== null && "bin" in ui.hover.value;
  const explained = store.view.value === "stages" && !hovering ? store.pair.value : null;
  const pair = explained !== null && isPinnedPair(store, explained) ? explained : null;
  const reading = hovering ? ui.hovered.value : pair === null ? ui.pinned.value : null;
  const sink = sinkAt(ui);
  const recall = recallAt(ui);
  const segments = segmentsAt(ui);
  return (
    <>
      <span>
        {recall !== null ? (
          <RecallLine ui={ui} queries={recall} />
        ) : sink !== null ? (
          <SinkLine ui={ui} picture={picture} {...sink} />
        ) : store.view.value === "compare" ? (
          <ChangeLine ui={ui} />
        ) : store.view.value === "heads" ? (
          <HeadsLine ui={ui} />
        ) : store.view.value === "segments" ? (
          <SegmentsLine ui={ui} />
        ) : store.view.value === "graph" ? (
          <GraphLine ui={ui} />
        ) : segments !== null && reading === null ? (
          <BlockLine ui={ui} at={segments} />
        ) : reading === null ? (
          <>
            {hints(ui) ? <Hint ui={ui} /> : <Pinned ui={ui} />}
            {pair !== null && <PairWeight pair={pair} />}
          </>
        ) : (
          <Exact reading={reading} picture={picture} ui={ui} />
        )}
      </span>
      {isBusy.value ? <Busy ui={ui} /> : <span>{facts(ui, picture)}</span>}
    </>
  );
}
