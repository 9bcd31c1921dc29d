/** The strongest links of every token, from an exact picture: the same as Python would send. */

import { BLOCKED, type Links, NAN, type Picture } from "../contract/decode";
import { linkedStage } from "../contract/stages";
import type { Side } from "../contract/values";
import { lineOf } from "./matrix";

/** Return the `count` strongest links of each token of one side; null if the picture does not hold them. */
export function linksOfPicture(picture: Picture, side: Side, count: number): Links | null {
  const { layer, batch, head, stage } = picture.of;
  if (!picture.exact || picture.grid === null || linkedStage(stage) !== stage) return null;
  const positions = side === "query" ? picture.queries : picture.keys;
  const partners = new Uint32Array(positions * count);
  const weights = new Float32Array(positions * count);
  for (let index = 0; index < positions; index++) {
    const line = lineOf(picture, { side, index });
    if (line === null) return null;
    const { values, kinds } = line;
    const there = Array.from(values.keys()).filter((place) => kinds[place] !== BLOCKED && kinds[place] !== NAN);
    there.sort((a, b) => Math.abs(values[b]!) - Math.abs(values[a]!));
    there.slice(0, count).forEach((place, rank) => {
      partners[index * count + rank] = place;
      weights[index * count + rank] = values[place]!;
    });
  }
  const sinks = picture.sink && stage === "weights" ? [picture.sink] : null;
  return { layer, batch, heads: [head], side, stage, positions, count, partners, weights, sinks };
}

/** Return whether links are of these heads, and of at least one. */
export function hasLinksOf(links: Links, of: Pick<Links, "layer" | "batch" | "heads" | "side" | "stage">): boolean {
  const at = links.layer === of.layer && links.batch === of.batch;
  const same = at && links.side === of.side && links.stage === of.stage;
  return same && of.heads.some((head) => links.heads.includes(head));
}
