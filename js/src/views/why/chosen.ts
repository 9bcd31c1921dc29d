/** What a reader has chosen in this view. */

import type { Signal } from "@preact/signals-core";
import type { ReadSide } from "../../contract/requests";
import type { Against } from "../../data/reason-words";

/** The reader's choices in this view. */
export interface Chosen {
  readonly against: Signal<Against>;
  readonly side: Signal<ReadSide | "all">;
  /** The least share of an edge that is drawn. */
  readonly least: Signal<number>;
  /** Whether only the tree of the selected head is drawn. */
  readonly follows: Signal<boolean>;
  /** The key under the pointer, by its place in the row's answer. */
  readonly pointed: Signal<number | null>;
  /** The head under the pointer in the graph. */
  readonly pointedHead: Signal<{ readonly layer: number; readonly head: number } | null>;
  readonly open: Signal<ReadonlySet<string>>;
}
