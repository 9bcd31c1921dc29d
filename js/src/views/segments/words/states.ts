/** Where the tokens and the heads stand, and what of them is in view: what their pictures, keys and overviews share. */

import type { ReadonlySignal } from "@preact/signals-core";
import type { Placed } from "../../../text/lines";
import type { Band, LineBox, TokenLayout } from "../drawing/layout";
import type { HeadsLayout } from "../heads/layout";

/** Where the tokens stand, and what of them is in view. */
export interface TokensState {
  readonly tokens: ReadonlySignal<readonly Placed[]>;
  readonly layout: ReadonlySignal<TokenLayout | null>;
  readonly bands: ReadonlySignal<readonly Band[]>;
  readonly box: ReadonlySignal<LineBox>;
  readonly left: ReadonlySignal<number>;
  /** Where the axis of the stacks ends. */
  readonly most: ReadonlySignal<number>;
  readonly view: ReadonlySignal<{ readonly top: number; readonly width: number; readonly height: number }>;
  readonly scrolls: ReadonlySignal<boolean>;
  /** Bring a token into view. */
  follow(at: number): void;
}

/** Where the heads stand. */
export interface HeadsState {
  readonly layout: ReadonlySignal<HeadsLayout | null>;
  /** Where the bars end. */
  readonly most: ReadonlySignal<number>;
  readonly shown: ReadonlySignal<{ readonly start: number; readonly stop: number }>;
  follow(place: number): void;
}
