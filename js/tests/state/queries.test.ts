// @vitest-environment jsdom
import { computed, type Signal, signal } from "@preact/signals-core";
import { describe, expect, test } from "vitest";
import { BLOCKED, decodePicture, MINUS_INF, NAN, NUMBER, type Picture, PLUS_INF } from "../../src/contract/decode";
import type { Sampled } from "../../src/contract/messages";
import type { Traits } from "../../src/contract/traits";
import { type Bin, binOf, lineOf, type Target } from "../../src/data/matrix";
import { createHost, type Host, type HostOptions } from "../../src/kernel/host";
import { createKernel, type Kernel } from "../../src/kernel/kernel";
import {
  type Combination,
  combinationSource,
  type HeadTarget,
  isCurrent,
  linesSource,
  patchSource,
  peak,
  type Ranked,
  rankedSource,
  readingSource,
  stableComputed,
  strongestSource,
  type Unranked,
} from "../../src/state/queries";
import { createStore, type Store } from "../../src/state/store";
import { settle } from "../helpers/page.ts";
import {
  asked,
  CAUSAL,
  type Cells,
  factsOf,
  pictureOf,
  python,
  quantised,
  stateOf,
  weights,
  X,
} from "../helpers/states.ts";
import { endOfTest } from "../helpers/timers.ts";

const end = endOfTest();

const LARGE = weights(300, 300);
/** Other numbers for each head. */
const headOf = (cells: Cells, head: number): Cells =>
  cells.map((row) => row.map((cell) => (cell === null ? X : cell / (head + 1))));

interface Started {
  host: Host;
  kernel: Kernel;
  store: Store;
}

async function start(cells: Cells, changes: Partial<Traits> = {}, options: HostOptions = {}): Promise<Started> {
  const state = stateOf(cells, changes);
  const host = createHost(state, { ...python(state, ({ head }) => headOf(cells, head)), ...options });
  const model = host.proxy();
  const kernel = createKernel(model, { signal: end.signal });
  const store = createStore(model, kernel, end.signal);
  await settle();
  return { host, kernel, store };
}

const large = (options?: HostOptions) =>
  start(LARGE, { picture: quantised(LARGE), facts: factsOf(LARGE, { layers: ["only"] }) }, options);

const bin = (query: number, key: number, size = 1): Bin => ({
  queries: { start: query, stop: query + size },
  keys: { start: key, stop: key + size },
});

/** The strongest of a ranking, with their numbers. */
const listed = (line: Ranked | Unranked | null) => {
  const { top, values } = (line as Ranked).ranking;
  return top.map((position, at) => [position, Number(values[at]!.toFixed(3))]);
};
const twelve = (line: readonly number[]) =>
  line
    .map((value, at) => [at, Number(Math.fround(value).toFixed(3))])
    .sort((a, b) => line[b[0]!]! - line[a[0]!]!)
    .slice(0, 12);

describe("an exact picture", () => {
  test("gives rows and columns itself, and the kernel is not asked", async () => {
    const { host, kernel, store } = await start(CAUSAL);
    const target = signal<Target | null>({ side: "query", index: 2 });
    const line = rankedSource(store, kernel, target, signal(null), end.signal);
    expect(listed(line.value)).toEqual([
      [0, 0.5],
      [1, 0.3],
      [2, 0.2],
    ]);
    expect((line.value as Ranked).ranking.blocked).toBe(1);
    target.value = { side: "key", index: 1 };
    expect(listed(line.value)).toEqual([
      [1, 0.75],
      [2, 0.3],
      [3, 0.2],
    ]);
    expect(line.value!.of).toEqual({ side: "key", index: 1 });
    target.value = null;
    expect(line.value).toBeNull();
    await settle();
    expect(host.sent).toEqual([]);
  });

  test("gives single cells itself", async () => {
    const { host, kernel, store } = await start(CAUSAL);
    const at = signal<Bin | null>(bin(1, 1));
    const reading = readingSource(store, kernel, at, end.signal);
    expect(reading.value).toMatchObject({ value: 0.75, kind: NUMBER, query: 1, key: 1 });
    at.value = bin(0, 3);
    expect(reading.value?.kind).toBe(BLOCKED);
    await settle();
    expect(host.sent).toEqual([]);
  });

  test("a pin that lies beyond it is no other cell", async () => {
    const { kernel, store } = await start(CAUSAL);
    const reading = readingSource(store, kernel, signal(bin(1, 4)), end.signal);
    expect(reading.value).toBeNull();
    const { picture } = store;
    expect(lineOf(picture.value!, { side: "query", index: 4 })).toBeNull();
    expect(lineOf(picture.value!, { side: "key", index: 4 })).toBeNull();
  });

  test("needs no patch", async () => {
    const { host, kernel, store } = await start(CAUSAL);
    const patch = patchSource(store, kernel, signal(bin(0, 0, 4)), end.signal);
    await settle();
    expect([patch.value, host.sent]).toEqual([null, []]);
  });
});

describe("a picture of colors only", () => {
  test("a row comes from the kernel, exact to the last digit", async () => {
    const { host, kernel, store } = await large();
    const line = rankedSource(
      store,
      kernel,
      signal<Target | null>({ side: "query", index: 7 }),
      signal(null),
      end.signal,
    );
    expect(line.value).toBeNull();
    await settle();
    expect(listed(line.value)).toEqual(twelve(LARGE[7]!));
    expect(asked(host.sent)).toMatchObject([{ kind: "row", layer: 0, batch: 0, head: 0, stage: "weights", query: 7 }]);
  });

  test("a column too", async () => {
    const { host, kernel, store } = await large();
    const line = rankedSource(
      store,
      kernel,
      signal<Target | null>({ side: "key", index: 299 }),
      signal(null),
      end.signal,
    );
    await settle();
    expect(listed(line.value)).toEqual(twelve(LARGE.map((row) => row[299]!)));
    expect(asked(host.sent)).toMatchObject([{ kind: "column", key: 299 }]);
  });

  test("the number of a cell comes from the kernel", async () => {
    const { host, kernel, store } = await large();
    const reading = readingSource(store, kernel, signal(bin(3, 4)), end.signal);
    await settle();
    expect(reading.value).toMatchObject({ value: LARGE[3]![4], query: 3, key: 4, kind: NUMBER });
    expect(asked(host.sent)).toMatchObject([{ kind: "peak", queries: [3, 4], keys: [4, 5] }]);
  });

  test("of many cells that the pointer crosses the last one is answered, and no late one after it", async () => {
    const { host, kernel, store } = await large({ delay: 150 });
    const at = signal<Bin | null>(null);
    const reading = readingSource(store, kernel, at, end.signal);
    for (let key = 0; key < 20; key++) {
      at.value = bin(0, key);
      await settle(10);
    }
    await settle(600);
    expect(reading.value).toMatchObject({ key: 19, value: LARGE[0]![19] });
    expect(asked(host.sent).length).toBeLessThan(8);
  });

  test("what the pointer has left is not answered any more", async () => {
    const { kernel, store } = await large({ delay: 100 });
    const at = signal<Bin | null>(bin(1, 1));
    const reading = readingSource(store, kernel, at, end.signal);
    await settle(50);
    at.value = null;
    await settle(500);
    expect(reading.value).toBeNull();
  });

  test("the row of a bin comes with its greatest number, in one answer", async () => {
    const { host, kernel, store } = await large();
    const reading = readingSource(store, kernel, signal(bin(4, 4, 2)), end.signal);
    const target = computed<Target | null>(() =>
      reading.value === null ? null : { side: "query", index: reading.value.query },
    );
    const line = rankedSource(store, kernel, target, reading, end.signal);
    await settle();
    expect(listed(line.value)).toEqual(twelve(LARGE[reading.value!.query]!));
    expect(asked(host.sent)).toMatchObject([{ kind: "peak", row: true }]);
    host.fromPython({ head: 1, picture: quantised(headOf(LARGE, 1), { head: 1 }) });
    await settle();
    expect(listed(line.value)).toEqual(twelve(headOf(LARGE, 1)[reading.value!.query]!.map(Number)));
  });

  test("a window of cells is asked for once, and its numbers are exact", async () => {
    const { host, kernel, store } = await large();
    const window = signal<Bin | null>(bin(10, 20, 5));
    const patch = patchSource(store, kernel, window, end.signal);
    await settle();
    expect([...patch.value!.grid.values]).toEqual(
      LARGE.slice(10, 15).flatMap((row) => row.slice(20, 25).map(Math.fround)),
    );
    expect(asked(host.sent)).toMatchObject([{ kind: "cells", queries: [10, 15], keys: [20, 25] }]);
  });

  test("numbers of the last head never stand on the next head's colors", async () => {
    const { host, kernel, store } = await large({ delay: 200 });
    const patch = patchSource(store, kernel, signal(bin(0, 0, 3)), end.signal);
    const reading = readingSource(store, kernel, signal(bin(5, 5)), end.signal);
    await settle(600);
    expect(patch.value!.grid.values[0]).toBe(Math.fround(LARGE[0]![0]!));
    host.fromPython({ head: 1, picture: quantised(headOf(LARGE, 1), { head: 1 }) });
    await settle(20);
    expect(store.picture.value?.of.head).toBe(1);
    expect([patch.value, reading.value]).toEqual([null, null]);
    await settle(600);
    expect(patch.value!.grid.values[0]).toBe(Math.fround(LARGE[0]![0]! / 2));
    expect(reading.value?.value).toBe(LARGE[5]![5]! / 2);
  });

  test("without a kernel there is no number, and no error either", async () => {
    const { host, kernel, store } = await large();
    host.dead = true;
    const line = rankedSource(
      store,
      kernel,
      signal<Target | null>({ side: "query", index: 7 }),
      signal(null),
      end.signal,
    );
    const reading = readingSource(store, kernel, signal(bin(3, 4)), end.signal);
    const patch = patchSource(store, kernel, signal(bin(0, 0, 3)), end.signal);
    await settle();
    expect([line.value, reading.value, patch.value, kernel.state.value]).toEqual([null, null, null, "gone"]);
  });

  test("a row, a column, and rows together that Python cannot tell are its sentence", async () => {
    const { kernel, store } = await large({
      answer: () => {
        throw new Error("single rows are not known");
      },
    });
    for (const of of [{ side: "query", index: 7 } as const, { side: "key", index: 9 } as const]) {
      const line = rankedSource(store, kernel, signal<Target | null>(of), signal(null), end.signal);
      await settle();
      expect(line.value).toEqual({ of, problem: "single rows are not known" });
    }
    const about = signal<Combination | null>({ side: "query", indices: [0, 4], over: "mean" });
    const together = combinationSource(store, kernel, about, end.signal);
    await settle();
    expect(together.value).toEqual({ of: { side: "query", index: 4 }, problem: "single rows are not known" });
  });

  test("a question that Python cannot answer leaves no number", async () => {
    const { kernel, store } = await large({
      answer: () => {
        throw new Error("out of memory");
      },
    });
    const reading = readingSource(store, kernel, signal(bin(3, 4)), end.signal);
    await settle();
    expect([reading.value, kernel.state.value]).toEqual([null, "idle"]);
  });

  test("when the view goes nothing is asked or answered any more", async () => {
    const { host, kernel, store } = await large();
    const view = new AbortController();
    const at = signal<Bin | null>(bin(0, 0));
    const reading = readingSource(store, kernel, at, view.signal);
    await settle();
    const before = reading.value;
    view.abort();
    at.value = bin(1, 1);
    await settle();
    expect(reading.value).toBe(before);
    expect(asked(host.sent)).toHaveLength(1);
  });
});

describe("the greatest of a bin", () => {
  const of = async (cells: Cells) => {
    const { kernel, store } = await start(cells);
    const asking = peak(kernel, store.picture.value!, bin(0, 0, 2), end.signal);
    await settle();
    return asking;
  };

  test.each([
    [
      "a number",
      [
        [0.1, 0.2],
        [0.9, 0.3],
      ],
      { value: 0.9, kind: NUMBER, query: 1, key: 0 },
    ],
    [
      "+∞",
      [
        [1, Number.POSITIVE_INFINITY],
        [2, 3],
      ],
      { value: Number.POSITIVE_INFINITY, kind: PLUS_INF, query: 0, key: 1 },
    ],
    [
      "−∞",
      [
        [X, Number.NEGATIVE_INFINITY],
        [X, X],
      ],
      { value: Number.NEGATIVE_INFINITY, kind: MINUS_INF, query: 0, key: 1 },
    ],
    [
      "NaN",
      [
        [1, 2],
        [3, Number.NaN],
      ],
      { value: Number.NaN, kind: NAN, query: 1, key: 1 },
    ],
    [
      "nothing, if all are blocked",
      [
        [X, X],
        [X, X],
      ],
      { value: Number.NaN, kind: BLOCKED, query: 0, key: 0 },
    ],
  ] as [string, Cells, object][])("%s", async (_, cells, expected) => {
    expect(await of(cells)).toMatchObject(expected);
  });
});

describe("bins", () => {
  test("stand for all their cells, and the last ones for those that are left", async () => {
    const picture = await decodePicture(quantised(weights(10, 7), {}, 4));
    expect(binOf(picture, 0, 0)).toEqual({ queries: { start: 0, stop: 4 }, keys: { start: 0, stop: 4 } });
    expect(binOf(picture, 2, 1)).toEqual({ queries: { start: 8, stop: 10 }, keys: { start: 4, stop: 7 } });
  });
});

test("a picture is current while it is of the selection", async () => {
  const { host, store } = await start(CAUSAL);
  expect(isCurrent(store)).toBe(true);
  for (const change of [{ head: 1 }, { stage: "scores" }, { pool: "mean" }, { layer: 1 }, { batch: 1 }] as const) {
    host.fromPython(change);
    expect(isCurrent(store)).toBe(false);
    host.fromPython({ head: 0, stage: "weights", pool: "max", layer: 0, batch: 0 });
    expect(isCurrent(store)).toBe(true);
  }
  host.fromPython({ picture: pictureOf(CAUSAL, { head: 2 }) });
  expect(isCurrent(store)).toBe(true);
});

test("what says the same stays the same object, so that nobody asks again", () => {
  const at = signal({ query: 1, color: "red" });
  const query = stableComputed(() => ({ query: at.value.query }));
  const first = query.value;
  at.value = { query: 1, color: "blue" };
  expect(query.value).toBe(first);
  at.value = { query: 2, color: "blue" };
  expect(query.value).toEqual({ query: 2 });
});

describe("a head too long to send its rows whole", () => {
  const WIDE = weights(5, 5000, 3);
  const TALL = weights(5000, 5, 4).map((row) => row.map((value) => value / 5000));
  const sampled = (exact = 0): Sampled => ({ first: 1, every: 10, exact });
  const wide = (changes: Partial<Traits> = {}, options?: HostOptions) =>
    start(WIDE, { picture: quantised(WIDE, {}, 10), facts: factsOf(WIDE), ...changes }, options);
  const tall = (changes: Partial<Traits> = {}, options?: HostOptions) =>
    start(TALL, { picture: quantised(TALL, {}, 10), facts: factsOf(TALL), ...changes }, options);

  test("a row comes as a ranking: the strongest, and sums over all", async () => {
    const { host, kernel, store } = await wide();
    const line = rankedSource(
      store,
      kernel,
      signal<Target | null>({ side: "query", index: 2 }),
      signal(null),
      end.signal,
    );
    await settle();
    expect(listed(line.value)).toEqual(twelve(WIDE[2]!));
    const { ranking } = line.value as Ranked;
    expect([ranking.allowed, ranking.rest.count, ranking.top.length]).toEqual([5000, 4988, 12]);
    expect(ranking.sum).toBeCloseTo(1, 5);
    expect(ranking.maxEntropy).toBeCloseTo(Math.log2(5000), 9);
    expect(asked(host.sent)).toMatchObject([{ kind: "ranked", stage: "weights", queries: [2], count: 12 }]);
  });

  test("a short column of it comes whole, a long one as a ranking", async () => {
    const short = await wide();
    rankedSource(short.store, short.kernel, signal<Target | null>({ side: "key", index: 2 }), signal(null), end.signal);
    const long = await tall();
    rankedSource(long.store, long.kernel, signal<Target | null>({ side: "key", index: 2 }), signal(null), end.signal);
    await settle();
    expect(asked(short.host.sent)).toMatchObject([{ kind: "column", key: 2 }]);
    expect(asked(long.host.sent)).toMatchObject([{ kind: "ranked", keys: [2] }]);
  });

  test("while the pointer runs over many rows only the newest is asked for", async () => {
    const { host, kernel, store } = await wide({}, { delay: 10 });
    const target = signal<Target | null>({ side: "query", index: 0 });
    const line = rankedSource(store, kernel, target, signal(null), end.signal);
    for (let index = 1; index < 5; index++) target.value = { side: "query", index };
    await settle(200);
    expect(asked(host.sent)).toMatchObject([{ kind: "ranked", queries: [4] }]);
    expect(listed(line.value)).toEqual(twelve(WIDE[4]!));
  });

  test("what Python cannot tell yet is its sentence, and is asked again when the picture is exact", async () => {
    const picture = quantised(TALL, {}, 10);
    let ready = false;
    const { host, kernel, store } = await tall(
      { picture: { ...picture, sampled: sampled() } },
      {
        answer: (request) => {
          if (!ready) throw new Error("Known when the picture is exact");
          return python({}, () => TALL).answer!(request);
        },
      },
    );
    const target = { side: "key", index: 3 } as const;
    const line = rankedSource(store, kernel, signal<Target | null>(target), signal(null), end.signal);
    await settle();
    expect(line.value).toEqual({ of: target, problem: "Known when the picture is exact" });
    ready = true;
    host.fromPython({ picture: { ...picture } });
    await settle();
    expect(listed(line.value)).toEqual(twelve(TALL.map((row) => row[3]!)));
  });

  test("a picture that grows by rows asks nothing again, and takes no number away", async () => {
    const { host, kernel, store } = await wide({ picture: { ...quantised(WIDE, {}, 10), sampled: sampled() } });
    const reading = readingSource(store, kernel, signal(bin(3, 4)), end.signal);
    rankedSource(store, kernel, signal<Target | null>({ side: "query", index: 2 }), signal(null), end.signal);
    await settle();
    const known = reading.value;
    expect(known?.value).toBe(WIDE[3]![4]);
    const before = host.sent.length;
    const picture = store.picture as Signal<Picture>;
    picture.value = { ...picture.value, sampled: sampled(200) };
    await settle();
    expect(reading.value).toBe(known);
    expect(host.sent).toHaveLength(before);
  });

  test("several rows are taken together by Python; short ones here", async () => {
    const about = signal<Combination | null>({ side: "query", indices: [0, 4], over: "mean" });
    const long = await wide();
    const together = combinationSource(long.store, long.kernel, about, end.signal);
    const short = await start(LARGE, { picture: quantised(LARGE), facts: factsOf(LARGE) });
    const here = combinationSource(short.store, short.kernel, about, end.signal);
    await settle();
    const mean = (cells: Cells) => cells[0]!.map((value, key) => ((value as number) + (cells[4]![key] as number)) / 2);
    expect(listed(together.value)).toEqual(twelve(mean(WIDE)));
    expect(asked(long.host.sent)).toMatchObject([{ kind: "ranked", queries: [0, 4], over: "mean" }]);
    expect(listed(here.value)).toEqual(twelve(mean(LARGE)));
    expect(asked(short.host.sent)).toMatchObject([
      { kind: "row", query: 0 },
      { kind: "row", query: 4 },
    ]);
    about.value = { side: "query", indices: [0, 4], over: "sum" };
    await settle();
    expect(listed(together.value)).toEqual(twelve(mean(WIDE).map((value) => 2 * value)));
  });

  test("lines of several heads: as many of their strongest as are wanted, each asked for once", async () => {
    const { host, kernel, store } = await wide();
    const count = signal(3);
    const wanted = signal<readonly HeadTarget[]>([
      { side: "query", index: 1, head: 0 },
      { side: "query", index: 1, head: 2 },
    ]);
    const lines = linesSource(store, kernel, wanted, count, end.signal);
    expect(lines.value).toEqual([null, null]);
    await settle();
    expect(listed(lines.value[0] as Ranked)).toEqual(twelve(WIDE[1]!).slice(0, 3));
    expect(listed(lines.value[1] as Ranked)).toEqual(twelve(WIDE[1]!.map((value) => value / 3)).slice(0, 3));
    wanted.value = [...wanted.value];
    await settle();
    expect(asked(host.sent)).toHaveLength(2);
    count.value = 4;
    await settle();
    expect(asked(host.sent).map((request) => request.count)).toEqual([3, 3, 4, 4]);
  });

  test("the strongest pairs are asked for once the picture is exact", async () => {
    const picture = quantised(WIDE, {}, 10);
    const { host, kernel, store } = await wide({ picture: { ...picture, sampled: sampled() } });
    const strongest = strongestSource(store, kernel, () => true, end.signal);
    await settle();
    expect([strongest.value, host.sent]).toEqual([null, []]);
    host.fromPython({ picture: { ...picture } });
    await settle();
    expect(strongest.value).toHaveLength(8);
    const first = (strongest.value as { query: number; key: number; weight: number }[])[0]!;
    const most = Math.max(...WIDE.flatMap((row) => row.slice(1)));
    expect(WIDE[first.query]![first.key]).toBe(most);
    expect(asked(host.sent)).toMatchObject([{ kind: "strongest", count: 8, skip_first: true }]);
  });

  test.each([
    ["scores", quantised(WIDE, { stage: "scores" }, 10)],
    ["means", quantised(WIDE, { pool: "mean" }, 10)],
    ["a picture whose every cell is drawn", quantised(WIDE, {}, 1)],
  ])("of %s the strongest pairs are not asked for", async (_, picture) => {
    const { host, kernel, store } = await wide({ picture, stage: picture.stage, pool: picture.pool });
    strongestSource(store, kernel, () => true, end.signal);
    await settle();
    expect(host.sent).toEqual([]);
  });
});
