/** The cells that one went down to, in a text: which of its tokens their queries and keys are. */

import { effect } from "@preact/signals-core";
import type { Side } from "../../contract/values";
import { axisSegments, segmentAt } from "../../state/segment-axes";
import { PAGE } from "../../state/token-pages";
import type { MarkedBlock, Ui } from "../../state/ui";
import type { Flow, Passage } from "./model";

/** The queries or the keys of the cells, with the color slot of their segment. */
export interface Mark {
  readonly side: Side;
  readonly name: string;
  readonly start: number;
  readonly stop: number;
  readonly slot: number;
}

/** Return both sides of what is marked, the queries first; none where nothing is. */
export function marksOf({ store, marked }: Ui): Mark[] {
  const block = marked.value;
  if (block === null) return [];
  const mark = (side: Side): Mark => ({
    side,
    name: side === "query" ? block.from : block.to,
    ...spanOf(block, side),
    slot: segmentAt(axisSegments(store, side), spanOf(block, side).start)?.slot ?? -1,
  });
  return [mark("query"), mark("key")];
}

const spanOf = ({ queries, keys }: MarkedBlock, side: Side) => (side === "query" ? queries : keys);

/** Return what of a passage is marked. */
export const marksOn = (ui: Ui, { sides }: Passage) => marksOf(ui).filter(({ side }) => sides.includes(side));

/** Return the place of the first token that is marked, of the side that is led to where both are in the passage. */
export function leadOf(ui: Ui, { passage, tokens }: Flow): number | null {
  const block = ui.marked.value;
  if (block === null) return null;
  const { start, stop } = spanOf(block, sideIn(passage, block));
  const at = tokens.value.findIndex(({ position }) => position >= start && position < stop);
  return at < 0 ? null : at;
}

const sideIn = ({ sides }: Passage, { side }: MarkedBlock) => (sides.includes(side) ? side : sides[0]!);

/** Turn to the pages of what is marked, once; returns how to end. */
export function turnToMarks({ marked }: Ui, flows: { readonly value: readonly Flow[] }): () => void {
  return effect(() => {
    const block = marked.value;
    if (block === null) return;
    for (const { passage, page, pages } of flows.value) {
      if (pages > 1) page.value = Math.floor(spanOf(block, sideIn(passage, block)).start / PAGE);
    }
  });
}
