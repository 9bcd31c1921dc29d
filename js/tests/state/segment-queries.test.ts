// @vitest-environment jsdom
/** Segments in the store, and what is asked about them. */
import { expect, test } from "vitest";
import type { Traits } from "../../src/contract/traits";
import { createHost, type HostRequest } from "../../src/kernel/host";
import { createKernel } from "../../src/kernel/kernel";
import {
  askBlock,
  askColumns,
  askHeads,
  askKeys,
  askLine,
  askSegmentsBy,
  windowOf,
} from "../../src/state/segment-queries";
import { createStore } from "../../src/state/store";
import { settle } from "../helpers/page.ts";
import { headMassOf, massOf, segmentsOf, wholes } from "../helpers/segments.ts";
import { CAUSAL, floats, python, stateOf } from "../helpers/states.ts";
import { endOfTest } from "../helpers/timers.ts";

const end = endOfTest();

async function start(changes: Partial<Traits> = {}, answer?: (request: HostRequest) => object) {
  const state = stateOf(CAUSAL, { segments: segmentsOf(), mass: massOf(), head_mass: headMassOf(), ...changes });
  const asked: HostRequest[] = [];
  const options = python(state, () => CAUSAL);
  const host = createHost(state, {
    ...options,
    answer: async (request) => {
      asked.push(request);
      return answer ? answer(request) : {};
    },
  });
  const model = host.proxy();
  const kernel = createKernel(model, { signal: end.signal });
  const store = createStore(model, kernel, end.signal);
  await settle();
  return { host, kernel, store, asked };
}

/** Time for a message and its answer. */
async function soon<T>(answer: Promise<T>): Promise<T> {
  await settle();
  return answer;
}

test("segments and masses are signals, the keys' segments those of the queries where there are no others", async () => {
  const { host, store } = await start({ aside: ["first token"] });
  expect([store.segments.value?.length, store.mass.value?.id, store.headMass.value?.id]).toEqual([8, 1, 2]);
  expect(store.keySegments.value).toBe(store.segments.value);
  expect(store.aside.value).toEqual(["first token"]);
  host.fromPython({ key_segments: segmentsOf({ length: 9 }), mass: null });
  await settle();
  expect([store.keySegments.value?.length, store.mass.value]).toEqual([9, null]);
});

test("what cannot be read is said, and what was shown stays", async () => {
  const { host, store } = await start();
  host.fromPython({ segments: segmentsOf({ sizes: [1] }) });
  await settle();
  expect(store.refused.value).toContain("segments could not be read");
  expect(store.segments.value?.length).toBe(8);
  host.fromPython({ measure: "weight" as never, aside: [3] as never });
  await settle();
  expect([store.measure.value, store.aside.value]).not.toEqual(["weight", [3]]);
});

test("choices go to Python", async () => {
  const { host, store } = await start();
  store.select({ segment: "doc 1" });
  store.show({ asking: "question", segment_path: ["doc 1"], measure: "lift", aside: ["self"] });
  expect(host.saved).toEqual([
    { segment: "doc 1" },
    { asking: "question", segment_path: ["doc 1"], measure: "lift", aside: ["self"] },
  ]);
});

test("each question names the mass that it is about", async () => {
  const columns = massOf().columns!;
  const replies: Record<string, object> = {
    segment_columns: { ...columns, positions: wholes([6, 7]) },
    segment_line: { values: floats([0.5, Number.NaN]), every: 1, known: 0.5 },
    segment_keys: { positions: wholes([2]), values: floats([0.5]), rest: { count: 2, sum: "nan" } },
    segment_block: {
      mass: 0.5,
      even: null,
      self: 0,
      self_even: 0,
      looked: 2,
      queries: wholes([6]),
      keys: wholes([1]),
      values: floats([0.75]),
    },
    segment_heads: Object.fromEntries(
      ["mass", "even", "self", "self_even"].map((name) => [name, floats([1, 2, 3, 4], [4, 1])]),
    ),
  };
  const { store, kernel, asked } = await start({}, ({ kind }) => replies[kind] ?? {});
  const [mass, heads] = [store.mass.value!, store.headMass.value!];
  const some = await soon(askColumns(kernel, mass, [0, 2], end.signal));
  expect([some.rows, some.mass[1], [...some.positions]]).toEqual([2, 0.75, [6, 7]]);
  const line = await soon(askLine(kernel, mass, { column: 1, measure: "lift", aside: ["self"] }, end.signal));
  expect([line.values[0], line.values[1], line.known]).toEqual([0.5, Number.NaN, 0.5]);
  expect((await soon(askKeys(kernel, mass, { query: 6, column: 1, count: 8 }, end.signal))).rest.sum).toBeNaN();
  const block = await soon(askBlock(kernel, mass, { row: 3, column: 1, count: 4 }, end.signal));
  expect([block.mass, block.even, block.values[0]]).toEqual([0.5, null, 0.75]);
  expect((await soon(askHeads(kernel, heads, [1], end.signal))).mass[3]).toBe(4);
  await soon(askSegmentsBy(kernel, "sentences"));
  expect(asked.map(({ kind, of }) => [kind, of])).toEqual([
    ["segment_columns", 1],
    ["segment_line", 1],
    ["segment_keys", 1],
    ["segment_block", 1],
    ["segment_heads", 2],
    ["segment_by", undefined],
  ]);
  expect(windowOf(mass)).toBe(4096);
});
