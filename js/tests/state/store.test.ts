// @vitest-environment jsdom
import { deflateSync } from "node:zlib";
import { describe, expect, test, vi } from "vitest";
import { decodePicture } from "../../src/contract/decode";
import type { Traits } from "../../src/contract/traits";
import { createHost, type HostOptions } from "../../src/kernel/host";
import { createKernel } from "../../src/kernel/kernel";
import { createStore } from "../../src/state/store";
import { settle } from "../helpers/page.ts";
import { CAUSAL, factsOf, failed, pictureOf, python, stateOf, tokensOf } from "../helpers/states.ts";
import { endOfTest } from "../helpers/timers.ts";

const end = endOfTest();

async function start(changes: Partial<Traits> = {}, options?: HostOptions) {
  const state = stateOf(CAUSAL, changes);
  const host = createHost(state, options ?? python(state, () => CAUSAL));
  const model = host.proxy();
  const kernel = createKernel(model, { signal: end.signal });
  const store = createStore(model, kernel, end.signal);
  await settle();
  return { host, kernel, store };
}

describe("what Python has set", () => {
  test("is there at once, and what takes decoding soon after", async () => {
    const { store } = await start({ query: 2, title: "two senses" });
    expect([store.query.value, store.key.value, store.title.value]).toEqual([2, null, "two senses"]);
    expect(store.picture.value).toMatchObject({ queries: 4, keys: 4, exact: true, of: { head: 0 } });
    expect(store.thumbnails.value?.heads).toHaveLength(4);
    expect(store.queryLabels.value.at(1).text).toBe("bank");
  });

  test("is followed when it changes", async () => {
    const { host, store } = await start();
    host.fromPython({ head: 3, key: 1, tokens: tokensOf(["a", "b", "c", "d"]), color_range: "row" });
    await settle();
    expect([store.head.value, store.key.value, store.color_range.value]).toEqual([3, 1, "row"]);
    expect(store.queryLabels.value.at(3).text).toBe("d");
    expect(store.keyLabels.value.at(3).text).toBe("money");
  });

  test("without tokens positions are the labels", async () => {
    const { host, store } = await start();
    host.fromPython({ tokens: null, facts: factsOf(CAUSAL, { queries: 12_000 }) });
    await settle();
    expect(store.queryLabels.value.at(11_999).text).toBe("11,999");
  });
});

describe("what a person chooses", () => {
  test("goes to Python in one message, and shows here at once", async () => {
    const { host, store } = await start();
    store.select({ query: 2, key: 1 });
    expect(host.saved).toEqual([{ query: 2, key: 1 }]);
    expect([store.query.value, store.key.value]).toEqual([2, 1]);
    store.show({ color_scale: "log", palette: "viridis" });
    expect(host.saved[1]).toEqual({ color_scale: "log", palette: "viridis" });
  });

  test("shows here also where a host echoes nothing", async () => {
    const { host, store } = await start();
    vi.spyOn(host, "on").mockImplementation(() => {});
    store.select({ head: 2 });
    expect(store.head.value).toBe(2);
  });

  test("what Python does not take is said, and is forgotten with the next choice", async () => {
    let listener: ((content: unknown) => void) | undefined;
    const host = createHost(stateOf(CAUSAL));
    const model = host.proxy();
    const on = model.on;
    model.on = ((event: never, heard: never) => {
      if (event === "msg:custom") listener = heard;
      on(event, heard);
    }) as never;
    const store = createStore(model, createKernel(host.proxy(), { signal: end.signal }), end.signal);
    listener?.({ refused: "head 9 is out of range: give 0 to 3" });
    expect(store.refused.value).toBe("head 9 is out of range: give 0 to 3");
    for (const other of [null, 7, {}, { refused: 3 }, "text"]) listener?.(other);
    expect(store.refused.value).toBe("head 9 is out of range: give 0 to 3");
    store.select({ head: 1 });
    expect(store.refused.value).toBeNull();
  });

  test("a model that cannot save means that the kernel is gone, not an exception", async () => {
    const { host, kernel } = await start();
    const store = createStore(
      {
        ...host.proxy(),
        save_changes() {
          throw new Error("Cannot send");
        },
      },
      kernel,
      end.signal,
    );
    store.select({ head: 1 });
    expect(kernel.state.value).toBe("gone");
    expect(store.head.value).toBe(0); // what is drawn
  });
});

describe("pictures", () => {
  test("the last one stays until that of the selection is there", async () => {
    const { host, store } = await start();
    host.fromPython({ head: 2 });
    await settle();
    expect(store.picture.value?.of.head).toBe(0);
    host.fromPython({ picture: pictureOf(CAUSAL, { head: 2 }) });
    await settle();
    expect(store.picture.value?.of.head).toBe(2);
  });

  test("one of another selection does not take its place", async () => {
    const { host, store } = await start();
    host.fromPython({ head: 3 });
    host.fromPython({ picture: pictureOf(CAUSAL, { head: 1 }) });
    await settle();
    expect(store.picture.value?.of.head).toBe(0);
    host.fromPython({ picture: pictureOf(CAUSAL, { head: 3 }) });
    await settle();
    expect(store.picture.value?.of.head).toBe(3);
    host.fromPython({ picture: pictureOf(CAUSAL, { head: 3, stage: "scores" }) });
    await settle();
    expect(store.picture.value?.of.stage).toBe("weights");
  });

  test("it is drawn though it comes before the selection that it is of", async () => {
    const { host, store } = await start();
    host.fromPython({ picture: pictureOf(CAUSAL, { head: 1 }) });
    await settle();
    host.fromPython({ head: 1 });
    await settle();
    expect(store.picture.value?.of.head).toBe(1);
  });

  test("a head that cannot be computed says so, and the last picture stays", async () => {
    const { host, store } = await start();
    host.fromPython({ head: 1, picture: failed("out of memory", { head: 1 }) });
    await settle();
    expect([store.problem.value, store.picture.value?.of.head]).toEqual(["out of memory", 0]);
    host.fromPython({ head: 2 });
    await settle();
    expect(store.problem.value).toBeNull();
  });

  test("a late failure of another head is not this head's", async () => {
    const { host, store } = await start();
    host.fromPython({ head: 2, picture: pictureOf(CAUSAL, { head: 2 }) });
    await settle();
    host.fromPython({ picture: failed("out of memory", { head: 1 }) });
    await settle();
    expect(store.problem.value).toBeNull();
  });

  test("one that cannot be read is said, not thrown", async () => {
    const { host, store } = await start();
    const picture = pictureOf(CAUSAL);
    host.fromPython({ picture: { ...picture, values: { ...picture.values!, shape: [9, 9] } } });
    await settle();
    expect(store.refused.value).toMatch(
      /^picture could not be read: float32 of shape \(9, 9\) takes 324 bytes, got 64$/,
    );
    expect(store.picture.value?.queries).toBe(4);
  });

  test("of two that come at once the newer one stays, though the older takes longer to unpack", async () => {
    const { host, store } = await start();
    const older = pictureOf(CAUSAL.map((row) => [...row].reverse()));
    const view = older.values!.data as DataView;
    const packed = deflateSync(new Uint8Array(view.buffer));
    const slow = { ...older, values: { ...older.values!, data: new Uint8Array(packed), deflated: true } };
    const newer = pictureOf(CAUSAL);
    vi.useRealTimers();
    host.fromPython({ picture: slow });
    host.fromPython({ picture: newer });
    await decodePicture(slow);
    await decodePicture(slow);
    expect(store.picture.value?.grid?.values[4]).toBe(0.25);
    host.fromPython({ picture: slow });
    await vi.waitFor(() => expect(store.picture.value?.grid?.values[5]).toBeNaN());
  });

  test("while one is due a person is told to wait, after 400 ms and not before", async () => {
    const { host, kernel, store } = await start({}, { answer: () => new Promise(() => {}) });
    store.select({ head: 1 });
    await settle(390);
    expect(kernel.state.value).toBe("idle");
    await settle(20);
    expect(kernel.state.value).toBe("waiting");
    host.fromPython({ picture: pictureOf(CAUSAL, { head: 1 }) });
    await settle();
    expect(kernel.state.value).toBe("idle");
  });

  test("back to the head in hand there is nothing to wait for", async () => {
    const { kernel, store } = await start({}, { answer: () => new Promise(() => {}) });
    store.select({ head: 1 });
    await settle(200);
    store.select({ head: 0 });
    await settle(2000);
    expect(kernel.state.value).toBe("idle");
  });
});

test("when it ends nothing of the model reaches it any more, and no timer is left", async () => {
  const { host, store } = await start();
  store.select({ head: 1 });
  end.abort();
  host.fromPython({ head: 3, title: "late", picture: pictureOf(CAUSAL, { head: 3 }) });
  await settle(5000);
  expect([store.head.value, store.title.value]).toEqual([1, ""]);
  expect(vi.getTimerCount()).toBe(0);
});
