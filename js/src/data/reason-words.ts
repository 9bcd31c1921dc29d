/**
 * Sentences about the parts of a score; `attnwidget/_analysis/why/sentences.py` makes the same ones, and
 * `tests/contract/reasons.json` holds both together.
 */

import type { ReadSide, StreamPart } from "../contract/requests";
import { count, listNumber, percent, signed } from "../text/format";

/** What scores are compared with: the mean of the row's other keys, the row's mean, nothing, or another key's position. */
export type Against = "others" | "mean" | "none" | number;

const OTHERS = "the mean of the row's other keys";
const MEAN = "the row's mean";
const LEVEL = 1e-6; // of the largest part, and of the scores compared: a sum below it is rounding
const SMALL = 0.005; // of the largest part: not named; of the sum: would be shown as 0 %
const HARDLY = 0.01; // weight

/** A part by its number, and what it adds. */
export type Leading = readonly [part: number, value: number];

/** A piece of a sentence: words; strong words, which are numbers; or the name of a part, by its number. */
export type Phrase = string | { readonly strong: string } | { readonly part: number };

const score = (value: number) => listNumber(value, "scores");

/** The verb between a query and a key. */
export function looks(weight: number): string {
  if (weight >= HARDLY) return "looks at";
  return weight > 0 ? "hardly looks at" : "does not look at";
}

/** A share in percent, never rounded to all or to nothing. */
export function shareText(share: number): string {
  if (share < SMALL) return "under 1 %";
  return share >= 1 - SMALL && share < 1 - LEVEL ? "over 99 %" : percent(share);
}

/**
 * Return the sentence after "bank looks at river: ", up to the full stop. Shares are named if they are slices of the sum,
 * each above 0 and together at most 1; else what the largest parts and the rest add.
 *
 * `leading` are the two largest parts, `other` the name of the other key, `scale` the size of the scores whose difference
 * the sum is.
 */
export function reason(
  total: number,
  leading: readonly Leading[],
  against: Against,
  other: string,
  scale = 0,
): Phrase[] {
  const most = Math.abs(leading[0]?.[1] ?? 0);
  if (Math.max(most, Math.abs(total)) <= LEVEL * scale) return height(true, total, against, other);
  const named = leading.filter(([, value]) => Math.abs(value) > SMALL * most);
  const isLevel = !(Math.abs(total) > LEVEL * Math.max(most, scale));
  const shares = named.map(([, value]) => value / total);
  if (!isLevel && shares.every((share) => share > 0) && sumOf(shares) <= 1 + LEVEL) {
    const side = total > 0 ? "above" : "below";
    const whole = against === "none" ? "its score" : `what sets it ${side} ${compared(against, other)}`;
    return named.flatMap(([part], at) => [
      at > 0 ? "; " : "",
      { strong: shareText(shares[at]!) },
      ` of ${at > 0 ? "it" : whole} is `,
      { part },
    ]);
  }
  const rest = total - sumOf(named.map(([, value]) => value));
  const clauses: (readonly [Phrase, number])[] = named.map(([part, value]) => [{ part }, value]);
  if (Math.abs(rest) > SMALL * most) clauses.push(["the rest", rest]);
  return [
    ...height(isLevel, total, against, other),
    ...clauses.flatMap(([what, value], at): Phrase[] => [
      at > 0 ? ", " : "; ",
      what,
      value > 0 ? " adds " : " takes ",
      { strong: score(Math.abs(value)) },
      value > 0 ? "" : " away",
    ]),
  ];
}

const sumOf = (values: readonly number[]) => values.reduce((all, one) => all + one, 0);

function compared(against: Against, other: string): string {
  return typeof against === "number" ? other : against === "others" ? OTHERS : MEAN;
}

function height(isLevel: boolean, total: number, against: Against, other: string): Phrase[] {
  if (against === "none") return ["its score is ", { strong: isLevel ? "0" : score(total) }];
  const than = typeof against === "number" ? `that of ${other}` : compared(against, other);
  if (isLevel) return [`its score is as high as ${than}`];
  return ["its score is ", { strong: score(Math.abs(total)) }, ` ${total > 0 ? "above" : "below"} ${than}`];
}

/** Return in words what a part is: "what head 1·4 wrote there". */
export function wroteWords({ kind, label }: StreamPart): string {
  if (kind === "token") return label.startsWith("token of ") ? `the ${label}` : "the token itself";
  if (kind === "head" || kind === "cross head") return `what head ${label} wrote there`;
  if (["position", "type", "input", "bias", "parameter"].includes(kind)) {
    return label.startsWith("the ") ? label : `the ${label}`;
  }
  return kind === "feature" || kind === "rest" ? label : `what ${label} wrote there`;
}

/**
 * Return what a sum of terms is: "the score 8.546 less 4.583, the mean of the row's other keys under their weights".
 * `own` is the score before; `subtracted` is null if it is unknown, as in a file of an earlier version.
 */
export function sumWords(own: number, subtracted: number | null, against: Against, other: string): string {
  if (against === "none") return "the model's score";
  const than = thanWords(against, other);
  return subtracted === null ? `the score less ${than}` : `the score ${score(own)} less ${score(subtracted)}, ${than}`;
}

/** Return what is subtracted from scores: "the mean of the row's other keys under their weights". */
export function thanWords(against: Exclude<Against, "none">, other: string): string {
  if (typeof against === "number") return `the score of ${other}`;
  return against === "others" ? `${OTHERS} under their weights` : `${MEAN} under its weights`;
}

/** Return what terms are parts of: "the score", or "the score less the row's mean". */
export function ofWords(against: Against, other: string): string {
  if (against === "none") return "the score";
  return `the score less ${typeof against === "number" ? `that of ${other}` : compared(against, other)}`;
}

/** Return what the bars of a row are parts of; each key has other keys of its own. */
export function barsWords(against: Against, other: string): string {
  if (against === "others") return "of its score, less the mean of the other keys under their weights";
  return against === "none" ? "of its score" : `of its score, less ${thanWords(against, other)}`;
}

/** Return what a bar's height is, if it is not the score: "; less the mean of …: 3.962"; "" if there is none. */
export function heightWords(height: number, against: Against, other: string): string {
  if (against === "none" || Number.isNaN(height)) return "";
  return `; less ${thanWords(against, other)}: ${score(height)}`;
}

/** What a part gives to a head. */
interface Gift {
  readonly from: StreamPart;
  readonly layer: number;
  readonly head: number;
  readonly side: ReadSide;
  readonly share: number;
  readonly score: number;
}

/** Return an edge of the graph of heads in words: the share is that of the second number in the first. */
export function edgeWords({ from, layer, head, side, share, score: adds }: Gift): string {
  const said = `${from.label}: ${percent(share)} of the ${side} side of head ${layer}·${head}`;
  if (side === "value") return said;
  const whole = listNumber(adds / share, "scores");
  return `${said}, ${signed(adds, "scores")} of the ${whole} by which it prefers what it looks at to the average key`;
}

/** Return that no part has at least a share. */
export function nothingWords(head: string, side: ReadSide | "all", least: number): string {
  const of = side === "all" ? "queries, keys or values" : side === "query" ? "queries" : `${side}s`;
  return `No part but biases gives ${percent(least)} or more of the ${of} of head ${head}.`;
}

/** Return what shares in the graph of heads are of. */
export function aboutShares(queries: number): string {
  return (
    "Queries and keys: shares of the score by which a head prefers what it looks at to the average key. Values: of its " +
    `output. Over ${count(queries)} ${queries === 1 ? "query" : "queries"}. Dashed: less than 0; then others may be more ` +
    "than 100 %. Biases are left out."
  );
}
