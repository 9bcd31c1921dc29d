/** Whether the explained pair is the pinned one: the last pair stays until the new numbers arrive. */

import type { ExplainedPair } from "../data/stage-data";
import type { Store } from "./store";

/** Return whether the numbers of a pair are those of the current selection and pin. */
export function isPinnedPair({ layer, batch, head, query, key }: Store, pair: ExplainedPair): boolean {
  const of = pair.layer === layer.value && pair.batch === batch.value && pair.head === head.value;
  return of && pair.query === query.value && pair.key === key.value;
}
