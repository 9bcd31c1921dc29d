/** Where the answer's tokens stand, and what is in a stack. */

import { describe, expect, test } from "vitest";
import { labels } from "../../src/text/labels";
import { placed } from "../../src/text/lines";
import {
  bandsOf,
  layTokens,
  lineBox,
  lineIndex,
  linesWithin,
  tokenAt,
  tokenBeyond,
} from "../../src/views/segments/drawing/layout";
import { layMatrix } from "../../src/views/segments/matrix/layout";

const texts = (words: string) => {
  const tokens = words.split(" ");
  const all = labels(tokens, tokens.length);
  return placed(
    all,
    tokens.map((_, at) => at),
    true,
  );
};
const TEN = () => 20;

const linesOf = (words: string, room: number) => {
  const tokens = texts(words);
  return layTokens(tokens, room, TEN).lines.map(({ start, stop }) =>
    tokens
      .slice(start, stop)
      .map(({ text }) => text)
      .join(" "),
  );
};

describe("lines", () => {
  test("words are 4 apart, pieces of one word 1, and none is narrower than 14", () => {
    const tokens = texts("key ##s hangs .");
    const { lefts, widths, lines } = layTokens(tokens, 500, ({ text }) => 3 * text.length);
    expect([...widths]).toEqual([14, 14, 15, 14]);
    expect([...lefts]).toEqual([0, 15, 33, 49]);
    expect(lines).toEqual([{ start: 0, stop: 4, width: 63 }]);
  });

  test("a line ends after a sentence where that leaves it half full, else before a word", () => {
    expect(linesOf("The key hangs . The daughter put it there", 130)).toEqual([
      "The key hangs .",
      "The daughter put it there",
    ]);
    expect(linesOf("Yes . The daughter put it there", 130)).toEqual(["Yes . The daughter put", "it there"]);
  });

  test("a word is not cut, unless it is longer than a line", () => {
    expect(linesOf("a b key ##s ##x", 75)).toEqual(["a b", "key ##s ##x".replaceAll("##", "")]);
    expect(linesOf("key ##s ##x ##y ##z", 63)).toEqual(["key s x", "y z"]);
  });

  test("a line that is written from the right begins there", () => {
    const { lefts } = layTokens(texts("שלום עולם"), 200, TEN);
    expect([...lefts]).toEqual([24, 0]);
  });

  test("every token is in one line, in order", () => {
    const tokens = texts(Array.from({ length: 300 }, (_, at) => (at % 7 === 6 ? "." : `w${at}`)).join(" "));
    const { lines } = layTokens(tokens, 205, TEN);
    expect(lines[0]!.start).toBe(0);
    expect(lines.at(-1)!.stop).toBe(300);
    for (const [at, line] of lines.entries()) {
      expect(line.width).toBeLessThanOrEqual(205);
      if (at > 0) expect(line.start).toBe(lines[at - 1]!.stop);
    }
  });

  test("the token at a place, and the nearest one a line further", () => {
    const layout = layTokens(texts("a b c d e f"), 75, TEN);
    expect(layout.lines.map(({ start }) => start)).toEqual([0, 3]);
    expect(tokenAt(layout, 1, 25, 2)).toBe(4);
    expect(tokenAt(layout, 1, 300, 2)).toBeNull();
    expect(lineIndex(layout, 4)).toBe(1);
    expect(tokenBeyond(layout, 4, -1)).toBe(1);
    expect(tokenBeyond(layout, 1, -1)).toBe(1);
    expect(tokenBeyond(layout, 2, 1)).toBe(5);
  });

  test("only the lines in view", () => {
    const { pitch } = lineBox(false, 1);
    expect(linesWithin(90, pitch, 0, 360)).toEqual({ start: 0, stop: 3 });
    expect(linesWithin(90, pitch, pitch * 3 + 1, pitch * 3 + 361)).toEqual({ start: 3, stop: 6 });
    expect(linesWithin(2, pitch, 0, 5000)).toEqual({ start: 0, stop: 2 });
  });
});

describe("bands", () => {
  test("the pinned one is on the baseline, the others in their order", () => {
    const bands = bandsOf([1, 2, 3], [-1, 0, 1, 2], [2]);
    expect(bands.map(({ columns }) => columns)).toEqual([[2], [1], [3]]);
    expect(bands.map(({ pinned }) => pinned)).toEqual([true, false, false]);
    expect(bandsOf([1, 2, 3], [-1, 0, 1, 2], []).map(({ columns }) => columns)).toEqual([[1], [2], [3]]);
  });

  test("of many segments the gray ones are one band, but for a pinned one", () => {
    const slots = Array.from({ length: 200 }, (_, at) => (at < 8 ? at : -1));
    const all = slots.map((_, at) => at);
    const bands = bandsOf(all, slots, [50]);
    expect(bands).toHaveLength(10);
    expect(bands[0]).toEqual({ columns: [50], slot: -1, pinned: true });
    expect(bands.at(-1)!.columns).toHaveLength(191);
    expect(bands.flatMap(({ columns }) => columns).sort((a, b) => a - b)).toEqual(all);
  });
});

test("beside a matrix that is alone in its row there is room for what is set aside, however many columns it has", () => {
  const names = (count: number) => Array.from({ length: count }, () => 60);
  for (const room of [560, 584, 600]) {
    for (let count = 2; count <= 220; count++) {
      const shared = { rows: names(count), columns: names(count), room, unit: 1, aside: true, narrow: false };
      const { aside, width } = layMatrix({ ...shared, beside: false });
      expect(aside + 40).toBeLessThanOrEqual(room);
      expect(width).toBeLessThanOrEqual(room);
    }
  }
});

test("names of many columns stand so far apart that slanted ones are not on one another", () => {
  const many = new Array(200).fill(50);
  const at = layMatrix({ rows: many, columns: many, room: 380, unit: 1, aside: true, narrow: false, beside: true });
  expect(at.everyColumn * at.pitch * Math.SQRT1_2).toBeGreaterThanOrEqual(15);
  expect(at.every * at.pitch).toBeGreaterThanOrEqual(14);
  const few = layMatrix({ rows: [50], columns: [50], room: 380, unit: 1, aside: true, narrow: false, beside: true });
  expect([few.every, few.everyColumn]).toEqual([1, 1]);
});
