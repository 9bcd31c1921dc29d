/** The layout of tokens and heads and the visible part, shared by pictures, keys and overviews. */

import type { ReadonlySignal } from "@preact/signals-core";
import type { Placed } from "../../../text/lines";
import type { Band, LineBox, TokenLayout } from "../drawing/layout";
import type { HeadsLayout } from "../heads/layout";

/** The places of the tokens, and the visible part. */
export interface TokensState {
  readonly tokens: ReadonlySignal<readonly Placed[]>;
  readonly layout: ReadonlySignal<TokenLayout | null>;
  readonly bands: ReadonlySignal<readonly Band[]>;
  readonly box: ReadonlySignal<LineBox>;
  readonly left: ReadonlySignal<number>;
  /** The end of the axis of the stacks. */
  readonly most: ReadonlySignal<number>;
  readonly view: ReadonlySignal<{ readonly top: number; readonly width: number; readonly height: number }>;
  readonly scrolls: ReadonlySignal<boolean>;
  /** Bring a token into view. */
  follow(at: number): void;
}

/** The places of the heads. */
export interface HeadsState {
  readonly layout: ReadonlySignal<HeadsLayout | null>;
  /** The end of the bars. */
  readonly most: ReadonlySignal<number>;
  readonly shown: ReadonlySignal<{ readonly start: number; readonly stop: number }>;
  follow(place: number): void;
}
