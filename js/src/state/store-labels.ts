/** The labels of both sides: all tokens, or those that were sent and pages of others on demand. */

import { computed, type ReadonlySignal } from "@preact/signals-core";
import { decodeTokens } from "../contract/decode";
import type { Bytes, Envelope, Facts, GridMessage, TokensMessage } from "../contract/messages";
import type { Side } from "../contract/values";
import { patchesOf, patchName } from "../geometry/patches";
import type { Kernel } from "../kernel/kernel";
import { type Labels, labels, withPatches } from "../text/labels";
import type { TokenStyle } from "../text/tokens";
import { pagedLabels } from "./token-pages";

/** The tokens that were sent, and their total number. */
export interface SentTokens {
  readonly tokens: readonly string[];
  readonly length: number;
  readonly spelling?: TokenStyle;
}

/** Decode the tokens that were sent. */
export async function readTokens(message: TokensMessage): Promise<SentTokens> {
  const tokens = (await decodeTokens(message)) ?? [];
  const spelling: TokenStyle | undefined = message.spelling === "text" ? "words" : message.spelling;
  return { tokens, length: message.length ?? tokens.length, ...(spelling ? { spelling } : {}) };
}

/** Tokens of a reply, in the form of a trait. */
function tokensIn(text: number, ends: Envelope, buffers: readonly Bytes[]): TokensMessage {
  const bytes = buffers[text];
  const data = buffers[ends.data as number];
  if (bytes === undefined || data === undefined) throw new Error(`tokens need two buffers, got ${buffers.length}`);
  return { text: bytes, ends: { ...ends, data } };
}

/** Return the labels of one side: of all tokens, or a page at a time on demand. */
export function labelsOfSide(
  side: Side,
  sent: ReadonlySignal<SentTokens | null>,
  traits: {
    readonly facts: ReadonlySignal<Facts>;
    readonly grid: ReadonlySignal<GridMessage | null | undefined>;
    readonly layer: ReadonlySignal<number>;
    readonly batch: ReadonlySignal<number>;
  },
  kernel: Kernel,
): ReadonlySignal<Labels> {
  const { facts, grid, layer, batch } = traits;
  return computed(() => {
    const known = sent.value;
    const length = side === "query" ? facts.value.queries : facts.value.keys;
    if (known === null || known.length <= known.tokens.length) {
      const patches = grid.value;
      const placed = known === null ? patchesOf(patches ?? null, side, length, batch.value) : null;
      if (placed !== null) return withPatches(labels(null, length), (at) => patchName(placed, at));
      return labels(known?.tokens ?? null, length, known?.spelling);
    }
    const of = { layer: layer.peek(), batch: batch.value, side };
    const ask = async (start: number, end: number) => {
      if (kernel.away.peek()) return null;
      const { text, ends, buffers } = await kernel.request("tokens", { ...of, start, stop: end });
      return decodeTokens(tokensIn(text, ends, buffers));
    };
    return pagedLabels(known.tokens, known.length, ask, known.spelling);
  });
}
