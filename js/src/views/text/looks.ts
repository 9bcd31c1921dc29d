/** The look of each token or patch of a passage: its color, and whether it is pinned. */

import { BLOCKED, NAN, NUMBER } from "../../contract/decode";
import type { Side } from "../../contract/values";
import type { Ui } from "../../state/ui";
import { LEAST_SHARE, otherSide, type Passage, type TextModel, type Weights } from "./model";

/** How far along the ramp the tint behind a token goes, so that ink is readable; signed colors are darker there. */
const TINT = 0.4;
const SIGNED_TINT = 0.32;

/** The current look of each token of a passage. */
export interface TokenLooks {
  /** For a position: the tint behind it and its full color, or another mark. */
  of(position: number): TokenLook | null;
  readonly pinned: ReadonlySet<number>;
  readonly further: ReadonlySet<number>;
  /** The text of the pinned token: equal tokens show their position. */
  readonly alike: string | null;
}

type TokenLook = { readonly tint: string; readonly full: string } | "masked" | "nan";

/** The side that a click in a passage pins. */
export const sideOf = ({ store }: Ui, passage: Passage): Side =>
  passage.sides.length > 1 ? store.direction.value : (passage.sides[0] as Side);

/** Return the weights that color a passage: of the pinned token's keys, or of its queries. */
export function weightsOn(model: TextModel, passage: Passage): Weights | null {
  const known = model.weights.value;
  return known !== null && passage.sides.includes(otherSide(known.of.side)) ? known : null;
}

/** Return the current look of each token of a passage. */
export function tokenLooksOf(ui: Ui, model: TextModel, passage: Passage): TokenLooks {
  const { store } = ui;
  const known = weightsOn(model, passage);
  const mapper = model.mapper.value;
  const both = ui.paints.value;
  const paints = mapper === null || both === null ? null : mapper.signed ? both.diverging : both.sequential;
  const own = ui.target.value?.side ?? sideOf(ui, passage);
  const [pinned, further] = [new Set<number>(), new Set<number>()];
  for (const side of passage.sides) {
    const now = side === "query" ? store.query.value : store.key.value;
    for (const pin of store.shownPins.value) {
      const index = pin[side === "query" ? 0 : 1];
      if (index !== null && index !== now) further.add(index);
    }
    if (now !== null) (side === own ? pinned : further).add(now);
  }
  const [first] = pinned;
  return {
    pinned,
    further,
    alike: first === undefined ? null : passage.labels.at(first).text,
    of(position) {
      if (known === null || mapper === null || paints === null) return null;
      const at = position - known.start;
      const kind = known.kinds[at];
      if (kind === undefined) return null;
      if (kind === BLOCKED) return "masked";
      if (kind === NAN) return "nan";
      const value = known.values[at] as number;
      if (kind === NUMBER && mapper.share(value) < LEAST_SHARE) return null;
      const index = mapper.index(value, 0);
      const [zero, share] = mapper.signed ? [128, SIGNED_TINT] : [0, TINT];
      const tint = paints.css[Math.round(zero + (index - zero) * share)] as string;
      return { tint, full: paints.css[index] as string };
    },
  };
}

/** Return the position in a passage under the pointer. */
export function hoveredIn({ hover, target }: Ui, passage: Passage): number | null {
  const at = hover.value;
  if (at === null) return null;
  if ("target" in at) return passage.sides.includes(at.target.side) ? at.target.index : null;
  const side = otherSide(target.value?.side ?? "query");
  return passage.sides.includes(side) ? (side === "query" ? at.bin.queries : at.bin.keys).start : null;
}
