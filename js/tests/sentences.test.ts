/**
 * Every sentence that is made from the numbers of a head, on 500 random heads: what it says is parsed, and computed
 * again from the cells, with none of the code that makes it.
 */

import { h } from "preact";
import { describe, expect, test } from "vitest";
import { Chances } from "../src/components/chances";
import { KindList } from "../src/components/legend";
import { Ranks, StrongestLink } from "../src/components/ranking-panel";
import { changesIn, mostChanged, type ReadyComparison } from "../src/data/comparison";
import { leftOf, restOf } from "../src/data/segments";
import { type Survey, strongestOf } from "../src/data/survey";
import { SegmentsLine } from "../src/shell/status/segment-lines";
import { GraphLine, HeadsLine } from "../src/shell/status/view-lines";
import { rankedOf } from "../src/state/queries";
import { display } from "../src/text/tokens";
import { List, Pairs } from "../src/views/compare/changes";
import { HeadLegend } from "../src/views/graph/lanes";
import { HeadCard } from "../src/views/heads/card";
import { spoken as spokenCell } from "../src/views/heatmap/heatmap";
import { summary as recallWords } from "../src/views/heatmap/recall";
import { summary as receivedWords } from "../src/views/heatmap/received";
import { numbersOf } from "../src/views/segments/index";
import { spokenNumbers } from "../src/views/segments/words/numbers";
import { DotProduct, listedKeys } from "../src/views/stages/pair-steps";
import { spoken as spokenText } from "../src/views/text/passages";
import { exactPicture, line, RANDOM_HEADS, type RandomHead, viewOf } from "./helpers/random-heads.ts";
import { random } from "./helpers/states.ts";
import { said } from "./helpers/vnode-text.ts";

type Row = readonly (number | null)[];

/** How far a rounded number may be from the true one: half of its last digit, and float32. */
function isRounded(text: string, value: number): boolean {
  const plain = text.replaceAll("−", "-").replaceAll(",", "");
  const [digits, exponent = "0"] = plain.split("e");
  const decimals = (digits!.split(".")[1] ?? "").length;
  return Math.abs(Number(plain) - value) <= 0.5 * 10 ** (Number(exponent) - decimals) + 1e-6 * Math.abs(value) + 1e-7;
}

function expectRounded(text: string | undefined, value: number): void {
  expect(text, `${text} is said of ${value}`).toSatisfy((one: string) => isRounded(one, value));
}

const columnOf = ({ cells }: RandomHead, key: number): Row => cells.map((row) => row[key]!);
const open = (row: Row) => row.filter((cell) => cell !== null);
const total = (row: Row) => open(row).reduce((sum, cell) => sum + cell, 0);
const named = (words: readonly string[], index: number) => display(words[index]!).text;
/** "bank 5" of these words: the position, after a check of the name. */
function positionOf(text: string, words: readonly string[]): number {
  const [, name, position] = /^(?:query |key )?(.+) (\d+)$/u.exec(text) ?? [];
  expect(named(words, Number(position))).toBe(name);
  return Number(position);
}

describe("beside a heatmap", () => {
  test("X looks most at Y: Y has the largest weight of its row, apart from the keys that are named", () => {
    const kinds = new Map<string, number>();
    for (const head of RANDOM_HEADS) {
      const { titles, text } = said(h(StrongestLink, { ui: viewOf(head).ui }));
      if (text === "") continue;
      const form = /^(?:Apart from (.+?), )?(\S+ \d+) looks most at (itself|\S+ \d+), ([\d.e−]+)$/u;
      const [, apart, who, at, number] = form.exec(titles[0]!) ?? expect.fail(titles[0]);
      const query = positionOf(who!, head.queries);
      const keyOf = (name: string) => (name === "itself" ? query : positionOf(name, head.keys));
      const names = apart?.split(/, | and /) ?? [];
      const left = names.filter((name) => name !== "the sink").map(keyOf);
      const row = head.cells[query]!;
      const key = keyOf(at!);
      expectRounded(number, row[key]!);
      for (const [other, weight] of row.entries()) {
        if (other !== key && weight !== null && !left.includes(other)) expect(weight).toBeLessThan(row[key]!);
      }
      if (!names.includes("the sink")) expect(head.sink?.[query] ?? 0).toBeLessThan(row[key]!);
      if ([at, ...names].includes("itself")) expect(named(head.keys, query)).toBe(named(head.queries, query));
      const kind = apart === undefined ? "plain" : apart;
      kinds.set(kind === "plain" || kind === "itself" ? kind : "apart", (kinds.get(kind) ?? 0) + 1);
      expect(text.replaceAll(" ", "")).toBe(titles[0]!.replaceAll(" ", ""));
    }
    expect([...kinds.keys()].sort()).toEqual(["apart", "itself", "plain"]); // each kind was tried
  });

  test.each(["query", "key"] as const)("the numbers of a pinned %s", (side) => {
    for (const head of RANDOM_HEADS) {
      const index = Math.floor((side === "query" ? head.cells : head.keys).length / 2);
      const row = side === "query" ? head.cells[index]! : columnOf(head, index);
      const sink = side === "query" ? (head.sink?.[index] ?? null) : null;
      const others = side === "query" ? head.keys : head.queries;
      const { ui, queries, keys } = viewOf(head);
      const ranked = rankedOf(line(head, side, index))!;
      const shown = {
        ranked,
        others: side === "query" ? keys : queries,
        chosen: -1,
        over: "last",
        most: 5,
        pooled: false,
      };
      const words = said(h(Ranks, { ...shown, ui } as never));
      if (open(row).length === 0) {
        const taken = sink === null ? "" : ", the sink has all its weight";
        expect(words.text).toBe(
          side === "query" ? `Fully masked: its output is 0${taken}.` : "No query may attend to it.",
        );
        if (sink !== null) expect(sink).toBeCloseTo(1, 5);
        continue;
      }
      expectList(words.of("aw-rank"), row, others, sink);
      if (side === "query") expectSpread(words, row, sink);
      else {
        const [, many, mean] = /Mean over (\d+) queries ([\d.e−]+)/.exec(words.text)!;
        expect(Number(many)).toBe(open(row).length);
        expectRounded(mean, total(row) / open(row).length);
      }
      const [, sum] = /Sum(?: \+ sink)? ([\d.]+)$/.exec(words.text)!;
      expectRounded(sum, total(row) + (sink ?? 0));
    }
  });

  /** Strongest first, each with its position and weight; the last line counts and sums what is not listed. */
  function expectList(items: readonly string[], row: Row, others: readonly string[], sink: number | null): void {
    const order = [...row.entries()].filter(([, cell]) => cell !== null) as [number, number][];
    order.sort((a, b) => b[1] - a[1] || a[0] - b[0]);
    const listed = items.filter((item) => !item.startsWith("sink") && !/more|masked/.test(item));
    expect(listed).toHaveLength(Math.min(5, order.length));
    for (const [at, item] of listed.entries()) {
      const [position, cell] = order[at]!;
      const [, where, name, under, number] = /^(\d+) (\S+?)(?: (\d+))? ([\d.e−]+)$/u.exec(item) ?? expect.fail(item);
      expect([Number(where), name]).toEqual([position, named(others, position)]);
      if (under !== undefined) expect(Number(under)).toBe(position);
      expectRounded(number, cell);
    }
    const own = items.findIndex((item) => item.startsWith("sink"));
    if (sink !== null) {
      expectRounded(items[own]!.split(" ")[1], sink);
      for (const [, cell] of order.slice(0, own)) expect(cell).toBeGreaterThanOrEqual(sink);
    }
    const rest = items.find((item) => /more|masked/.test(item)) ?? "";
    const [, more, left] = /^(\d+) more .*? ([\d.e−]+)$/.exec(rest) ?? [];
    expect(Number(more ?? 0)).toBe(Math.max(0, order.length - 5));
    if (left !== undefined)
      expectRounded(
        left,
        order.slice(5).reduce((sum, [, cell]) => sum + cell, 0),
      );
    expect(Number(/(\d+) masked/.exec(rest)?.[1] ?? 0)).toBe(row.length - order.length);
  }

  function expectSpread(words: ReturnType<typeof said>, row: Row, sink: number | null): void {
    const all = [...open(row), ...(sink === null ? [] : [sink])];
    const sum = all.reduce((a, b) => a + b, 0);
    const entropy = all.reduce((bits, cell) => (cell > 0 ? bits - (cell / sum) * Math.log2(cell / sum) : bits), 0);
    const form = /^Entropy ([\d.]+) of ([\d.]+) bits: \2 would be uniform over (\d+) keys( and the sink)?$/;
    const [, bits, most, many, beside] = form.exec(words.titles.find((one) => one.startsWith("Entropy"))!)!;
    expectRounded(bits, entropy);
    expectRounded(most, Math.log2(all.length));
    expect([Number(many), beside !== undefined]).toEqual([open(row).length, sink !== null]);
    const [, few, of] = /^(\d+) of (\d+) keys hold 90 % of the weight(?: on keys)?$/.exec(
      words.titles.find((one) => one.includes("90 %"))!,
    )!;
    expect(Number(of)).toBe(open(row).length);
    const sorted = [...open(row)].sort((a, b) => b - a);
    const held = (count: number) => sorted.slice(0, count).reduce((a, b) => a + b, 0);
    expect(held(Number(few))).toBeGreaterThanOrEqual(0.9 * total(row) - 1e-6);
    expect(held(Number(few) - 1)).toBeLessThan(0.9 * total(row));
  }

  test("the pinned pair, for screen readers", () => {
    for (const head of RANDOM_HEADS) {
      const [query, key] = [head.cells.length - 1, head.keys.length >> 1];
      const { picture } = viewOf(head);
      const at = query * picture.keys + key;
      const reading = { query, key, value: picture.grid!.values[at]!, kind: picture.grid!.kinds[at]! };
      const words = spokenCell(viewOf(head, { ui: { pinned: reading } }).ui);
      const cell = head.cells[query]![key]!;
      const there = `query ${query} ${named(head.queries, query)}, key ${key} ${named(head.keys, key)}, `;
      expect(words.startsWith(there)).toBe(true);
      if (cell === null) expect(words).toBe(`${there}masked`);
      else expectRounded(words.slice(there.length).replace(/^weight /, ""), cell);
    }
  });

  test("the key that receives most, of the queries that may attend to it", () => {
    for (const head of RANDOM_HEADS) {
      const means = head.keys.map((_, key) => {
        const column = columnOf(head, key);
        return open(column).length === 0 ? Number.NaN : total(column) / open(column).length;
      });
      const received = {
        values: Float32Array.from(means),
        kinds: Uint8Array.from(means, (mean) => (Number.isNaN(mean) ? 1 : 0)),
        from: exactPicture(head).of,
      };
      const words = receivedWords(viewOf(head).ui, received);
      const found = /: most by (\S+ \d+), ([\d.e−]+)$/u.exec(words);
      if (found === null) {
        expect(means.every(Number.isNaN)).toBe(true);
        continue;
      }
      const key = positionOf(found[1]!, head.keys);
      expectRounded(found[2], means[key]!);
      for (const mean of means) if (!Number.isNaN(mean)) expect(mean).toBeLessThanOrEqual(means[key]! + 1e-7);
    }
  });

  test("cells above the end of a range are above the number that is said", () => {
    const next = random(5);
    for (const head of RANDOM_HEADS) {
      const high = Math.fround(0.02 + 0.7 * next());
      const above = open(head.cells.flat()).filter((cell) => cell > high).length;
      const kinds = { blocked: 0, nan: 0, plus: 0, minus: 0, clipped: above, below: 0 };
      const mapper = { signed: false, domain: { low: 0, high } };
      const cells = (many: number) => `${many} cells`;
      const paints = { css: Array(256).fill("") };
      const { text } = said(h(KindList, { kinds, mapper, paints, stage: "weights", cells } as never));
      if (above === 0) continue;
      const [, end, many] = /above ([\d.e−]+): (\d+) cells/.exec(text)!;
      const shown = Number(end!.replace("−", "-"));
      expect(open(head.cells.flat()).filter((cell) => cell > shown + 1e-6 * high)).toHaveLength(Number(many));
    }
  });

  test("recall: the lowest and the mean of the rows that are known", () => {
    const next = random(7);
    for (const head of RANDOM_HEADS) {
      const kept = head.keys.map(() => next() < 0.6);
      const recall = head.cells.map((row) =>
        open(row).length === 0 ? Number.NaN : total(row.map((cell, key) => (kept[key] ? cell : null))) / total(row),
      );
      const words = recallWords({ values: Float32Array.from(recall), every: 1, share: 1 } as never);
      const known = recall.filter((one) => !Number.isNaN(one));
      if (known.length === 0) expect(words).toBe("every row is fully masked");
      else {
        const [, least, mean] = /^lowest ([\d.e−]+), mean ([\d.e−]+)$/.exec(words)!;
        expectRounded(least, Math.min(...known));
        expectRounded(mean, known.reduce((a, b) => a + b, 0) / known.length);
      }
    }
  });
});

describe("in the text and the graph", () => {
  test("the strongest partner of the pinned token, for screen readers", () => {
    for (const head of RANDOM_HEADS) {
      const query = head.cells.length >> 1;
      const ranked = rankedOf(line(head, "query", query))!;
      const store = { query };
      const words = spokenText(
        viewOf(head, { store, ui: { target: { side: "query", index: query }, marked: null, ranked } }).ui,
      );
      const own = `query ${query} ${named(head.queries, query)}`;
      const row = head.cells[query]!;
      if (open(row).length === 0) {
        expect(words).toBe(own);
        continue;
      }
      const form = /, most: key (\d+) (\S+), weight ([\d.e−]+)$/u;
      expect(words.replace(form, "")).toBe(own);
      const [, key, name, number] = form.exec(words)!;
      expect(named(head.keys, Number(key))).toBe(name);
      expectRounded(number, row[Number(key)]!);
      expect(row[Number(key)]!).toBe(Math.max(...open(row)));
    }
  });

  test("most to X: the largest weight of the row, or of its tokens that are not special where this is said", () => {
    let aside = 0;
    for (const head of RANDOM_HEADS) {
      const query = head.cells.length - 1;
      const { keys } = viewOf(head);
      const model = {
        focus: { value: { side: "query", index: query } },
        lines: { value: [line(head, "query", query)] },
        colors: { value: [""] },
        keyLabels: { value: withSink(keys, head) },
        ...{ bundleColor: { value: null }, signColors: { value: null }, unit: { value: 1 } },
      };
      const { text } = said(h(HeadLegend, { ui: viewOf(head).ui, model } as never));
      const row = head.cells[query]!;
      const sink = head.sink?.[query] ?? 0;
      const found = /most to (\S+?)(?: (\d+))? ([\d.]+)( without special tokens)?$/u.exec(text);
      if (found === null) {
        expect(open(row).filter((cell) => cell > 0)).toHaveLength(0);
        expect(sink).toBe(0);
        continue;
      }
      const [, name, under, number, without] = found;
      const isSpecial = (key: number) => /^\[/.test(head.keys[key]!);
      const counted = row.map((cell, key) => (without !== undefined && isSpecial(key) ? null : cell));
      const most = Math.max(sink, ...open(counted));
      expectRounded(number, most);
      if (name === "sink") expect(sink).toBe(most);
      else {
        const all = [...counted.keys()].filter((key) => named(head.keys, key) === name && counted[key] === most);
        if (under === undefined) expect(head.keys.filter((key) => display(key).text === name)).toHaveLength(1);
        else expect(all).toContain(Number(under));
        expect(all.length).toBeGreaterThan(0);
      }
      if (without !== undefined) aside++;
    }
    expect(aside).toBeGreaterThan(20);
  });

  const withSink = (keys: ReturnType<typeof viewOf>["keys"], head: RandomHead) => ({
    ...keys,
    at: (index: number) =>
      index < head.keys.length
        ? keys.at(index)
        : { text: "sink", special: false, position: index, repeated: false, subscript: "" },
  });

  test("the link under the pointer", () => {
    for (const head of RANDOM_HEADS) {
      const [query, key] = [head.cells.length >> 1, head.keys.length - 1];
      const weight = head.cells[query]![key] ?? 0;
      const bin = { queries: { start: query, stop: query + 1 }, keys: { start: key, stop: key + 1 } };
      const { ui } = viewOf(head, { ui: { hover: { bin, link: { head: 0, weight } }, target: null } });
      const [, from, to, number] = /^(\S+ \d+) → (\S+ \d+) head 0 weight ([\d.e−]+)$/u.exec(
        said(h(GraphLine, { ui })).text,
      )!;
      expect([positionOf(from!, head.queries), positionOf(to!, head.keys)]).toEqual([query, key]);
      expectRounded(number, weight);
    }
  });
});

/** Some heads with some metrics, as `decodeSurvey` returns them: each row of a random head is a metric. */
function surveyOf({ cells, keys }: RandomHead, next: () => number): Survey {
  const heads = keys.map((_, head) => ({ layer: 0, head }));
  const metrics = cells.map((row, at) => ({
    ...{ name: `m${at}`, word: `Metric ${at}`, kind: "weight" as const, high: 1, median: Number.NaN },
    values: Float32Array.from(row, (cell) => (cell === null || next() < 0.1 ? Number.NaN : cell)),
  }));
  const layer = { heads: heads.length, groups: heads.length, queries: 4, keys: 4, rows: 4 };
  const rest = { batch: 0, complete: true, error: null, problems: [] };
  return { heads, metrics, layers: [layer], pictures: heads.map(() => ({}) as never), ...rest };
}

describe("in the view of all heads", () => {
  test("ranks best in M: r of n: r − 1 of the n heads with a number have a larger one, and no metric ranks it better", () => {
    const next = random(3);
    for (const head of RANDOM_HEADS) {
      const survey = surveyOf(head, next);
      const place = Math.floor(next() * survey.heads.length);
      const { text } = said(
        h(HeadsLine, { ui: viewOf(head, { store: { survey }, ui: { pointedHead: survey.heads[place] } }).ui }),
      );
      const rankIn = (values: Float32Array) => 1 + [...values].filter((one) => one > values[place]!).length;
      const ranks = survey.metrics.flatMap(({ values }) => {
        const isApart = [...values].some((one) => one < values[place]!);
        return isApart ? [rankIn(values)] : [];
      });
      const found = /^layer 0 · head (\d+)(?: ranks best in metric (\d+) : (\d+) of (\d+))?$/.exec(text)!;
      expect(Number(found[1])).toBe(place);
      expect(found[2] === undefined).toBe(ranks.length === 0);
      if (found[2] === undefined) continue;
      const { values } = survey.metrics[Number(found[2])]!;
      expect(Number(found[3])).toBe(rankIn(values));
      expect(Number(found[3])).toBe(Math.min(...ranks));
      expect(Number(found[4])).toBe([...values].filter((one) => !Number.isNaN(one)).length);
      const { text: card } = said(
        h(HeadCard, {
          ui: viewOf(head, { store: { survey }, ui: { width: 900 } }).ui,
          layout: LAYOUT,
          place,
          scrolled: 0,
        }),
      );
      const many = survey.metrics.map(({ values }) => [...values].filter((one) => !Number.isNaN(one)).length);
      const medians = /median of (?:all (\d+) heads|the heads with a number: (?:(\d+) to )?(\d+))$/.exec(card)!;
      if (medians[1] !== undefined) expect(many.every((one) => one === Number(medians[1]))).toBe(true);
      else
        expect([Number(medians[2] ?? medians[3]), Number(medians[3])]).toEqual([Math.min(...many), Math.max(...many)]);
      expect(strongestOf(survey, place)?.of).toBe(Number(found[4]));
    }
  });

  const LAYOUT = {
    where: Array.from({ length: 12 }, (_, at) => [at, 0]),
    across: 10,
    down: 10,
    size: 10,
    left: 0,
    top: 0,
    width: 900,
    height: 100,
    margin: 0,
  } as never;
});

describe("in a comparison", () => {
  /** B is another head of the same text: the rows of A in reverse order. */
  function comparisonOf(head: RandomHead): { of: ReadyComparison; other: readonly Row[] } {
    const other = [...head.cells].reverse();
    const change = head.cells.map((row, query) =>
      row.map((cell, key) =>
        cell === null && other[query]![key] === null ? null : Math.fround((other[query]![key] ?? 0) - (cell ?? 0)),
      ),
    );
    const picture = (cells: readonly Row[]) => exactPicture({ cells, sink: null });
    const same = (length: number) => ({
      length,
      only: [0, 0] as const,
      plain: true,
      differ: 0,
      a: (at: number) => at,
      b: (at: number) => at,
      of: (at: number) => at,
    });
    const { of } = picture(head.cells);
    return {
      other,
      of: {
        of,
        against: "B",
        againstAt: null,
        error: null,
        pictures: { a: picture(head.cells), b: picture(other), change: picture(change) },
        queries: same(head.cells.length),
        keys: same(head.keys.length),
        numbers: [null, null],
      },
    };
  }
  const itemOf = (text: string) =>
    /^(?:(\S+?)(?: (\d+))? → )?(\S+?)(?: (\d+))? (masked|[\d.e−]+) (masked|[\d.e−]+)(?: ([+−\d.e]+))?$/u.exec(text) ??
    expect.fail(text);
  const expectNumber = (text: string | undefined, cell: number | null) => {
    if (cell === null) expect(text).toBe("masked");
    else expectRounded(text, cell);
  };

  test("the keys of a query: the largest of either side first, the others counted and summed", () => {
    for (const head of RANDOM_HEADS) {
      const { of, other } = comparisonOf(head);
      const query = head.cells.length >> 1;
      const [a, b] = [head.cells[query]!, other[query]!];
      const { ui } = viewOf(head, { store: { query }, ui: {} });
      const found = changesIn(of, "query", query)!;
      const words = said(h(List, { ui, found, comparison: of, pinned: true, most: 4 } as never));
      const items = words.of("aw-change").slice(1);
      const listed = items.filter((item) => !/ more (?:keys|queries)|masked in both/.test(item));
      let before = Number.POSITIVE_INFINITY;
      const seen: number[] = [];
      for (const item of listed) {
        const [, , , name, under, one, two, change] = itemOf(item);
        const key = under === undefined ? head.keys.findIndex((token) => display(token).text === name) : Number(under);
        expect(named(head.keys, key)).toBe(name);
        expectNumber(one, a[key]!);
        expectNumber(two, b[key]!);
        expectRounded(change!.replace("+", ""), (b[key] ?? 0) - (a[key] ?? 0));
        expect(Math.max(a[key] ?? 0, b[key] ?? 0)).toBeLessThanOrEqual(before);
        before = Math.max(a[key] ?? 0, b[key] ?? 0);
        seen.push(key);
      }
      const isBoth = (key: number) => a[key] === null && b[key] === null;
      const left = [...a.keys()].filter((key) => !seen.includes(key) && !isBoth(key));
      const rest = /^(\d+) more keys ([\d.e−]+) ([\d.e−]+)/.exec(
        items.find((item) => item.includes("more keys")) ?? "",
      );
      expect(Number(rest?.[1] ?? 0)).toBe(left.length);
      if (rest !== null) {
        expectRounded(
          rest[2],
          left.reduce((sum, key) => sum + (a[key] ?? 0), 0),
        );
        expectRounded(
          rest[3],
          left.reduce((sum, key) => sum + (b[key] ?? 0), 0),
        );
      }
      expect(Number(/(\d+) masked in both/.exec(words.text)?.[1] ?? 0)).toBe([...a.keys()].filter(isBoth).length);
    }
  });

  test("where they differ most: no other pair of the rows that are meant differs more", () => {
    const next = random(9);
    for (const head of RANDOM_HEADS) {
      const { of, other } = comparisonOf(head);
      const rows = head.cells.length;
      const padding = next() < 0.5 ? null : 1 + Math.floor(rows * next());
      const { ui } = viewOf(head);
      const pairs = pairsOf(head.cells, other, padding ?? rows);
      const words = said(
        h(Pairs, { ui, pairs: mostChanged(of, padding ?? rows, 4), comparison: of, padding } as never),
      );
      const isSaid = words.text.startsWith("Where they differ most, without rows of padding");
      expect(isSaid).toBe(padding !== null && padding < rows);
      for (const [at, item] of words.of("aw-change").slice(1).entries()) {
        const [, from, , to, , , , change] = itemOf(item);
        const alike = pairs.filter(({ size }) => Math.abs(size - pairs[at]!.size) < 1e-6);
        const isMeant = ({ query, key, change: value }: (typeof pairs)[number]) =>
          named(head.queries, query) === from &&
          named(head.keys, key) === to &&
          isRounded(change!.replace("+", ""), value);
        expect(alike.some(isMeant), item).toBe(true);
      }
    }
  });
});

function pairsOf(a: readonly Row[], b: readonly Row[], rows: number) {
  const all = a.slice(0, rows).flatMap((row, query) =>
    row.flatMap((cell, key) => {
      const other = b[query]![key]!;
      const change = (other ?? 0) - (cell ?? 0);
      return cell === null && other === null ? [] : [{ query, key, change, size: Math.abs(change) }];
    }),
  );
  return all.sort((x, y) => y.size - x.size);
}

describe("of segments", () => {
  const NAMES = ["first token", "doc 1", "doc 2", "answer"];

  test("a segment's share of what is not excluded, how many times even attention, and the excluded weight", () => {
    const next = random(21);
    const kinds = new Set<string>();
    for (const head of RANDOM_HEADS) {
      const [query, many] = [head.cells.length - 1, head.keys.length];
      const row = head.cells[query]!;
      const cuts = [0, 1, ...[1, 2].map(() => 1 + Math.floor((many - 1) * next())).sort((a, b) => a - b), many];
      const spans = NAMES.map((_, at) => [cuts[at]!, cuts[at + 1]!] as const);
      const weightOf = (keys: readonly number[]) => keys.reduce((sum, key) => sum + (row[key] ?? 0), 0);
      const evenOf = (keys: readonly number[]) =>
        keys.filter((key) => row[key] !== null).length / Math.max(1, open(row).length);
      const inside = spans.map(([start, stop]) => Array.from({ length: stop - start }, (_, at) => start + at));
      const own = query < many ? query : 0;
      const column = inside.findIndex((keys) => keys.includes(own));
      const aside = [...NAMES.filter(() => next() < 0.3), ...(next() < 0.3 ? ["self"] : [])];
      const masses = {
        ...{ rows: 1, columns: NAMES.length },
        ...{ mass: Float32Array.from(inside, weightOf), even: Float32Array.from(inside, evenOf) },
        ...{ self: Float32Array.of(weightOf([own])), selfEven: Float32Array.of(evenOf([own])) },
      };
      const left = leftOf(NAMES, aside);
      const rest = restOf(masses, left, { own: Uint32Array.of(column) });
      const counted = (keys: readonly number[]) => keys.filter((key) => !(aside.includes("self") && key === own));
      const kept = NAMES.flatMap((name, at) => (aside.includes(name) ? [] : counted(inside[at]!)));
      for (const [at, name] of NAMES.entries()) {
        const who = { query, from: "answer", head: null, isAside: aside.includes(name) };
        const reading = numbersOf(name, { rest, row: 0 } as never, at, inside[at]!.length, who);
        const words = spokenNumbers(reading);
        const form = /^(?:mass ([\d.e−]+)(?:, ([\d.]+) times even)?|excluded, weight ([\d.e−]+)|no weight is left)$/;
        const [, mass, times, out] = form.exec(words) ?? expect.fail(words);
        if (aside.includes(name)) expectRounded(out, weightOf(inside[at]!));
        else if (mass === undefined) expect(weightOf(kept)).toBeLessThan(1e-6);
        else {
          const share = weightOf(counted(inside[at]!)) / weightOf(kept);
          expect(Number(mass.replace("−", "-"))).toBeCloseTo(share, 3);
          const lift = share / (evenOf(counted(inside[at]!)) / evenOf(kept));
          if (times !== undefined) expect(Math.abs(Number(times) - lift)).toBeLessThan(lift >= 9.9 ? 0.51 : 0.06);
        }
        kinds.add(words.split(" ")[0]!);
        const line = said(h(SegmentsLine, { ui: segmentsUi(head, reading) })).text;
        const [, raw] = /(?:excluded, weight|weight) ([\d.e−]+)/.exec(line) ?? [];
        if (raw !== undefined) {
          expectRounded(raw, weightOf(aside.includes(name) ? inside[at]! : counted(inside[at]!)));
        }
        expect(line.includes("NaN")).toBe(false);
      }
    }
    expect([...kinds].sort()).toEqual(["excluded,", "mass", "no"]);
  });

  const segmentsUi = (head: RandomHead, segmentReading: object) =>
    viewOf(head, {
      store: {
        view: "segments",
        mass: { stage: "weights" },
        measure: "mass",
        segments_show: "attention",
        effects: null,
      },
      ui: { segmentReading, removed: null },
    }).ui;

  test("next tokens with and without: those not listed are counted, and have what is left of 1", () => {
    const next = random(23);
    for (let trial = 0; trial < 500; trial++) {
      const chances = () => {
        const all = Array.from({ length: 20 }, () => Math.exp(5 * next()));
        const sum = all.reduce((a, b) => a + b, 0);
        return all.map((one) => one / sum);
      };
      const [before, after] = [chances(), chances()];
      const detail = {
        ...{ target: "t0", before: Math.log(before[0]!), after: Math.log(after[0]!), kl: null, kl_answer: null },
        ...{ vocabulary: 20, tokens: before.slice(0, 6).map((chance, at) => [`t${at}`, chance, after[at]!]) },
      };
      const { text } = said(h(Chances, { detail, unit: "nats", most: 4 } as never));
      const [, many, left, right] = /(\d+) more tokens ([\d.e−]+) ([\d.e−]+)/.exec(text)!;
      expect(Number(many)).toBe(16);
      expectRounded(
        left,
        before.slice(4).reduce((a, b) => a + b, 0),
      );
      expectRounded(
        right,
        after.slice(4).reduce((a, b) => a + b, 0),
      );
      expectRounded(/Lost, “t0” (−?[\d.e−]+) nats/.exec(text)![1], Math.log(before[0]!) - Math.log(after[0]!));
    }
  });
});

describe("in the steps of a pair", () => {
  test("the strongest n of m keys: no key that is left out weighs more", () => {
    for (const head of RANDOM_HEADS) {
      const row = head.cells[head.cells.length - 1]!.map((cell) => cell ?? 0);
      const strongest = [...row.keys()].sort((a, b) => row[b]! - row[a]!).slice(0, 3);
      const own = row.length - 1;
      const sent = [...new Set([...strongest, own])].sort((a, b) => a - b);
      const words = listedKeys(
        sent.map((key) => row[key]!),
        sent.indexOf(own),
        row.length,
      );
      const [, many, of, beside] = /^the strongest (\d+) of (\d+) keys(, and this one)?$/.exec(words)!;
      expect(Number(of)).toBe(row.length);
      const meant = beside === undefined ? sent : sent.filter((key) => key !== own);
      expect(Number(many)).toBe(meant.length);
      const least = Math.min(...meant.map((key) => row[key]!));
      for (const [key, weight] of row.entries()) if (!sent.includes(key)) expect(weight).toBeLessThanOrEqual(least);
    }
  });

  test("the dimension that adds most, and the one that adds least or takes most", () => {
    const next = random(13);
    for (let trial = 0; trial < 500; trial++) {
      const products = Float32Array.from({ length: 2 + Math.floor(8 * next()) }, () => 4 * next() - (trial % 3));
      const score = products.reduce((a, b) => a + b, 0);
      const { text } = said(
        h(DotProduct, { pair: { products, score, original: null }, wide: 500, largestFirst: { value: true } } as never),
      );
      const all = [...text.matchAll(/dimension (\d+) (adds|takes) ([\d.e−]+)/g)];
      const ends = [Math.max(...products), Math.min(...products)];
      expect(all).toHaveLength(2);
      for (const [at, [, dimension, how, number]] of all.entries()) {
        const product = products[Number(dimension)]!;
        expect(product).toBe(ends[at]);
        expectRounded(number, how === "takes" ? -product : product);
      }
      expectRounded(/score ([−\d.e]+)/.exec(text)?.[1] ?? /([−\d.e]+) score/.exec(text)?.[1], score);
    }
  });
});
