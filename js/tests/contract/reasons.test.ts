/** The sentences of *why* are those of Python: `tests/contract/reasons.json`, written by test_reasons_agree.py. */

import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import type { StreamPart } from "../../src/contract/requests";
import {
  type Against,
  type Leading,
  looks,
  type Phrase,
  reason,
  sumWords,
  wroteWords,
} from "../../src/data/reason-words";
import { contractFile } from "../helpers/golden.ts";

interface Case {
  parts: [label: string, kind: string][];
  total: number;
  leading: Leading[];
  against: Against;
  scale: number;
  weight: number;
  less: number;
  sentence: string;
  sum: string;
}

const { cases } = JSON.parse(readFileSync(contractFile("reasons.json"), "utf8")) as { cases: Case[] };

test.each(cases.map((one, at) => ({ ...one, at })))("case $at is said as in Python", (one) => {
  const parts = one.parts.map(
    ([label, kind]): StreamPart => ({ label, kind, module: "m", layer: null, head: null, column: null }),
  );
  const text = (phrase: Phrase) => {
    if (typeof phrase === "string") return phrase;
    return "strong" in phrase ? phrase.strong : wroteWords(parts[phrase.part]!);
  };
  const said = reason(one.total, one.leading, one.against, "river 5", one.scale).map(text).join("");
  expect(`of 3 ${looks(one.weight)} bank 4: ${said}.`).toBe(one.sentence);
  expect(sumWords(one.total + one.less, one.less, one.against, "river 5")).toBe(one.sum);
});
