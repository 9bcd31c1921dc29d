/** Tokens in sentences, always with their positions: a text can have a word twice. */

import type { Side } from "../contract/values";
import { count } from "../text/format";
import type { Labels } from "../text/labels";
import { isNamed } from "./phrases";

interface PlaceProps {
  readonly labels: Labels;
  readonly index: number;
  readonly side: Side;
}

/** A token of a sentence, its position below the line: bank₁₄; where there are no tokens, "key 14". */
export function Named({ labels, index, side, opens }: PlaceProps & { opens?: boolean }) {
  if (!isNamed(labels, index)) {
    return (
      <>
        {opens ? side.replace(/^./, (first) => first.toUpperCase()) : side} {count(index)}
      </>
    );
  }
  return (
    <>
      <bdi>{labels.at(index).text}</bdi>
      <sub>{count(index)}</sub>
    </>
  );
}

/** A token of a line of facts, with its position: "bank 14"; where there are no tokens, "query 14". */
export function Place({ labels, index, side, always }: PlaceProps & { always?: boolean }) {
  const named = isNamed(labels, index);
  return (
    <>
      {(always || !named) && `${side} `}
      <b>
        <bdi>{labels.at(index).text}</bdi>
      </b>
      {named && ` ${count(index)}`}
    </>
  );
}

/** The same where no markup can be: in titles, in choices, for screen readers. */
export function placeText(labels: Labels, index: number, side: Side): string {
  return isNamed(labels, index) ? `${labels.at(index).text} ${count(index)}` : `${side} ${count(index)}`;
}
