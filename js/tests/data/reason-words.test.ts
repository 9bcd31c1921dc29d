/** What the Why view says, on 500 random parts each, against its plain meaning; nothing here shares code with it. */

import { describe, expect, test } from "vitest";
import type { ReadSide, StreamPart } from "../../src/contract/requests";
import {
  type Against,
  aboutShares,
  barsWords,
  edgeWords,
  heightWords,
  type Leading,
  looks,
  nothingWords,
  ofWords,
  reason,
  sumWords,
  thanWords,
} from "../../src/data/reason-words";

const TRIES = 500;

/** Numbers that look like chance (Park and Miller 1988). */
function chance(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state * 48_271) % 2_147_483_647;
    return state / 2_147_483_647;
  };
}

const numberOf = (text: string) => Number(text.replaceAll("−", "-"));
/** Whether a number is told to three decimals, or to two digits where it has an exponent. */
const near = (text: string, value: number) =>
  Math.abs(numberOf(text) - value) <= Math.max(text.includes("e") ? 0.06 * Math.abs(value) : 0, 0.000501);

/** Parts with one sign and both, that cancel, that are alike, tiny and huge. */
function randomValues(next: () => number): number[] {
  const size = 10 ** (5 * next() - 3);
  const values = Array.from({ length: 1 + Math.floor(9 * next()) }, () => size * (2 * next() - 0.8));
  const kind = Math.floor(6 * next());
  if (kind === 0) return values.map(Math.abs);
  if (kind === 1) return values.map((value) => -Math.abs(value));
  if (kind === 2) return values.map(() => size);
  const others = values.slice(0, -1).reduce((all, one) => all + one, 0);
  return kind === 3 ? [...values.slice(0, -1), 0.01 * size * Math.round(next()) - others] : values;
}

const THAN = { others: "the mean of the row's other keys", mean: "the row's mean", key: "that of bank 4" };

test("a key's largest parts are its slices, or what they add", () => {
  const next = chance(7);
  const forms = { shares: 0, sums: 0 };
  for (let tried = 0; tried < TRIES; tried++) {
    const values = randomValues(next);
    const total = values.reduce((all, one) => all + one, 0);
    const size = Math.max(...values.map(Math.abs));
    const order = values.map((value, part): Leading => [part, value]).sort(([, a], [, b]) => Math.abs(b) - Math.abs(a));
    const against = (["none", "others", "mean", 4] as const)[tried % 4]!;
    const phrases = reason(total, order.slice(0, 2), against, "bank 4");
    const said = phrases.map((one) => (typeof one === "string" ? one : "strong" in one ? one.strong : `<${one.part}>`));
    const text = said.join("");
    const than = against === "none" ? "" : THAN[typeof against === "number" ? "key" : against];
    const shares = [...text.matchAll(/(over 99|under 1|\d+) % of (.+?) is <(\d+)>/g)];
    forms[shares.length > 0 ? "shares" : "sums"]++;
    if (shares.length > 0) {
      const side = total > 0 ? "above" : "below";
      const whole = against === "none" ? "its score" : `what sets it ${side} ${than.replace("that of ", "")}`;
      expect(shares.map(([, , of]) => of)).toEqual([whole, "it"].slice(0, shares.length));
      const named = shares.map(([, , , part]) => values[Number(part)]! / total);
      for (const [at, [, told]] of shares.entries()) {
        const percent = 100 * named[at]!;
        if (told === "over 99") expect(percent > 99.4 && percent < 100).toBe(true);
        else if (told === "under 1") expect(percent > 0 && percent < 0.51).toBe(true);
        else expect(Math.abs(percent - Number(told))).toBeLessThan(0.502);
      }
      expect(named.every((share) => share > 0)).toBe(true);
      expect(named.reduce((all, one) => all + one, 0)).toBeLessThan(1.00001);
      expect(Math.abs(named[0]! * total)).toBeCloseTo(size, 9);
      continue;
    }
    const [height, clauses = ""] = text.split("; ");
    if (Math.abs(total) <= 1e-6 * size) {
      expect(height).toBe(against === "none" ? "its score is 0" : `its score is as high as ${than}`);
    } else {
      const [, told, side, of] = /^its score is (\S+)(?: (above|below) (.+))?$/.exec(height!)!;
      expect(near(told!, against === "none" ? total : Math.abs(total))).toBe(true);
      expect([side, of]).toEqual(against === "none" ? [undefined, undefined] : [total > 0 ? "above" : "below", than]);
    }
    const added = [...clauses.matchAll(/(<\d+>|the rest) (adds|takes) (\S+?)( away)?(?=,|$)/g)].map(
      ([, what, verb, told, away]) => {
        expect(verb === "takes").toBe(away !== undefined);
        const value = numberOf(told!) * (verb === "adds" ? 1 : -1);
        if (what !== "the rest") expect(near(told!, Math.abs(values[Number(what!.slice(1, -1))]!))).toBe(true);
        if (what !== "the rest") expect(Math.sign(value)).toBe(Math.sign(values[Number(what!.slice(1, -1))]!));
        return value;
      },
    );
    const left = Math.abs(added.reduce((all, one) => all + one, 0) - total);
    expect(left).toBeLessThan(0.011 * size + 0.002 + 0.2 * (size < 2e-3 ? size : 0));
  }
  expect(Math.min(...Object.values(forms))).toBeGreaterThan(50);
});

test("what numbers are of is an equation, or names what is subtracted", () => {
  const next = chance(11);
  for (let tried = 0; tried < TRIES; tried++) {
    const [own, less] = [20 * next() - 10, 20 * next() - 10];
    const against = (["none", "others", "mean", 4] as Against[])[tried % 4]!;
    const line = sumWords(own, less, against, "bank 4");
    const height = heightWords(own - less, against, "bank 4");
    if (against === "none") {
      expect([line, height, ofWords(against, ""), barsWords(against, "")]).toEqual([
        ...["the model's score", "", "the score", "of its score"],
      ]);
      continue;
    }
    const means: Record<string, string> = {
      others: `${THAN.others} under their weights`,
      mean: `${THAN.mean} under its weights`,
    };
    const than = means[`${against}`];
    const told = /^the score (\S+) less (\S+), (.+)$/.exec(line)!;
    expect(near(told[1]!, own) && near(told[2]!, less)).toBe(true);
    expect(told[3]).toBe(than ?? "the score of bank 4");
    expect(thanWords(against, "bank 4")).toBe(told[3]);
    const bar = /^; less (.+): (\S+)$/.exec(height)!;
    expect(bar[1]).toBe(told[3]);
    expect(near(bar[2]!, own - less)).toBe(true);
    expect(sumWords(Number.NaN, null, against, "bank 4")).toBe(`the score less ${told[3]}`);
    const key = typeof against === "number" ? "key" : against;
    expect(ofWords(against, "bank 4")).toBe(`the score less ${THAN[key]}`);
    const each = against === "others" ? "the mean of the other keys under their weights" : told[3];
    expect(barsWords(against, "bank 4")).toBe(`of its score, less ${each}`);
  }
  expect(heightWords(Number.NaN, "others", "")).toBe("");
});

test("a query looks at a key by the weight that it gives", () => {
  const next = chance(13);
  for (let tried = 0; tried < TRIES; tried++) {
    const weight = tried % 5 === 0 ? 0 : 10 ** (-6 * next());
    const verb = looks(weight);
    expect(verb === "does not look at").toBe(weight === 0);
    expect(verb === "looks at").toBe(weight >= 0.01);
  }
});

describe("the graph of heads", () => {
  const part: StreamPart = { label: "0·3", kind: "head", module: "m", layer: 0, head: 3, column: null };

  test("an edge is a part of a number, of which it has the share", () => {
    const next = chance(17);
    for (let tried = 0; tried < TRIES; tried++) {
      const side = (["query", "key", "value"] as ReadSide[])[tried % 3]!;
      const [share, whole] = [3 * next() - 1, 10 ** (3 * next() - 1)];
      const said = edgeWords({ from: part, layer: 2, head: 9, side, share, score: share * whole });
      const told =
        /^0·3: (\S+) % of the (\w+) side of head 2·9(?:, (\S+) of the (\S+) by which it prefers (.+))?$/.exec(said)!;
      expect(Math.abs(numberOf(told[1]!) - 100 * share)).toBeLessThan(0.502);
      expect(told[2]).toBe(side);
      if (side === "value") expect(told[3]).toBeUndefined();
      else {
        expect(near(told[3]!.replace("+", ""), share * whole) && near(told[4]!, whole)).toBe(true);
        expect(told[5]).toBe("what it looks at to the average key");
      }
    }
  });

  test("says what is left out, and what shares are of", () => {
    expect(nothingWords("2·9", "all", 0.2)).toBe(
      "No part but biases gives 20 % or more of the queries, keys or values of head 2·9.",
    );
    expect(nothingWords("2·9", "query", 0.2)).toContain("of the queries of head 2·9");
    expect(nothingWords("2·9", "key", 0.05)).toContain("5 % or more of the keys");
    expect(aboutShares(1)).toContain("Over 1 query.");
    expect(aboutShares(1024)).toContain("Over 1,024 queries.");
  });
});
