/** The opened block in a text: which tokens are its queries and keys. */

import { effect } from "@preact/signals-core";
import type { Side } from "../../contract/values";
import { axisSegments, segmentAt } from "../../state/segment-axes";
import { PAGE } from "../../state/token-pages";
import type { MarkedBlock, Ui } from "../../state/ui";
import type { Flow, Passage } from "./model";

/** The queries or the keys of the block, with the color slot of their segment. */
export interface Mark {
  readonly side: Side;
  readonly name: string;
  readonly start: number;
  readonly stop: number;
  readonly slot: number;
}

/** Return both sides of the mark, queries first; none without a mark. */
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

/** Return the marked part of a passage. */
export const marksOn = (ui: Ui, { sides }: Passage) => marksOf(ui).filter(({ side }) => sides.includes(side));

/** Return the place of the first marked token, on the preferred side if both are in the passage. */
export function leadOf(ui: Ui, { passage, tokens }: Flow): number | null {
  const block = ui.marked.value;
  if (block === null) return null;
  const { start, stop } = spanOf(block, sideIn(passage, block));
  const at = tokens.value.findIndex(({ position }) => position >= start && position < stop);
  return at < 0 ? null : at;
}

const sideIn = ({ sides }: Passage, { side }: MarkedBlock) => (sides.includes(side) ? side : sides[0]!);

/** Turn to the pages of the mark, once; returns a function to stop. */
export function turnToMarks({ marked }: Ui, flows: { readonly value: readonly Flow[] }): () => void {
  return effect(() => {
    const block = marked.value;
    if (block === null) return;
    for (const { passage, page, pages } of flows.value) {
      if (pages > 1) page.value = Math.floor(spanOf(block, sideIn(passage, block)).start / PAGE);
    }
  });
}
