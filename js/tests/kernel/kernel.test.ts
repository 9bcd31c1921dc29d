// @vitest-environment jsdom
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { decode } from "../../src/contract/decode";
import type { MessageListener, Model } from "../../src/contract/traits";
import { createHost, type HostOptions } from "../../src/kernel/host";
import { createKernel, KernelError, KernelGone } from "../../src/kernel/kernel";

let controller: AbortController;

beforeEach(() => {
  vi.useFakeTimers();
  controller = new AbortController();
});

afterEach(() => {
  controller.abort();
  vi.useRealTimers();
});

function start(options: HostOptions = {}) {
  const host = createHost({}, options);
  return { host, kernel: createKernel(host.proxy(), { signal: controller.signal }) };
}

/** The kinds in each message that was sent. */
const kindsIn = (sent: readonly unknown[]) =>
  (sent as { requests: { kind: string }[] }[]).map(({ requests }) => requests.map(({ kind }) => kind));

/** What became of a promise, without waiting for it. */
function fate(promise: Promise<unknown>) {
  const outcome: { value?: unknown; error?: unknown; settled: boolean } = { settled: false };
  promise.then(
    (value) => Object.assign(outcome, { value, settled: true }),
    (error: unknown) => Object.assign(outcome, { error, settled: true }),
  );
  return outcome;
}

describe("asking", () => {
  test("an answer brings its numbers", async () => {
    const { kernel } = start({
      answer: ({ query }) => ({
        values: { data: Float32Array.of(0.25, Number(query)), dtype: "float32", shape: [2], deflated: false },
        blocked: null,
      }),
    });
    const asked = kernel.request("row", { layer: 0, batch: 0, head: 0, stage: "weights", query: 14 });
    await vi.advanceTimersByTimeAsync(200);
    const reply = await asked;
    expect([...(await decode(reply.values, reply.buffers))]).toEqual([0.25, 14]);
    expect(reply.blocked).toBeNull();
  });

  test("what is asked within a frame goes in one message, and each finds its own answer", async () => {
    const { host, kernel } = start({ answer: ({ query }) => ({ value: query, query, key: 0 }) });
    const asked = [3, 1, 2].map((query) => kernel.request("peak", { query }));
    await vi.advanceTimersByTimeAsync(200);
    expect((await Promise.all(asked)).map(({ value }) => value)).toEqual([3, 1, 2]);
    expect(kindsIn(host.sent)).toEqual([["peak", "peak", "peak"]]);
  });

  test("while one message is on its way the others wait, and then go together", async () => {
    const { host, kernel } = start({ answer: () => ({}), delay: 300 });
    const first = fate(kernel.request("row"));
    await vi.advanceTimersByTimeAsync(50);
    kernel.request("column");
    await vi.advanceTimersByTimeAsync(50);
    const last = fate(kernel.request("peak"));
    expect(kindsIn(host.sent)).toEqual([["row"]]);
    await vi.advanceTimersByTimeAsync(300);
    expect(first.settled).toBe(true);
    expect(kindsIn(host.sent)).toEqual([["row"], ["column", "peak"]]);
    await vi.advanceTimersByTimeAsync(400);
    expect(last.settled).toBe(true);
  });

  test("Python's sentence is the error's message, and the others of the message are answered", async () => {
    const { kernel } = start({
      answer: ({ kind }) => {
        if (kind === "column") throw new Error("key 20 is outside 0 to 19");
        return { values: null };
      },
    });
    const bad = fate(kernel.request("column"));
    const good = fate(kernel.request("row"));
    await vi.advanceTimersByTimeAsync(200);
    expect(bad.error).toBeInstanceOf(KernelError);
    expect(String(bad.error)).toBe("KernelError: key 20 is outside 0 to 19");
    expect(good.value).toMatchObject({ ok: true });
  });

  test("a field of the question cannot stand in for its id or kind", async () => {
    const { host, kernel } = start({ answer: () => ({}) });
    kernel.request("row", { id: "mine", kind: "column", query: 3 });
    await vi.advanceTimersByTimeAsync(200);
    const [message] = host.sent as { requests: { id: string; kind: string; query: number }[] }[];
    expect(message?.requests).toMatchObject([{ kind: "row", query: 3 }]);
    expect(message?.requests[0]?.id).not.toBe("mine");
  });

  test("in a hidden tab, where no frame comes, questions are asked all the same", async () => {
    vi.stubGlobal("requestAnimationFrame", () => 1);
    const { host, kernel } = start({ answer: () => ({}) });
    const asked = fate(kernel.request("row"));
    await vi.advanceTimersByTimeAsync(150);
    expect(asked.settled).toBe(true);
    expect(host.sent).toHaveLength(1);
    vi.unstubAllGlobals();
  });

  test("without any animation frames too", async () => {
    vi.stubGlobal("requestAnimationFrame", undefined);
    const { kernel } = start({ answer: () => ({}) });
    const asked = fate(kernel.request("row"));
    await vi.advanceTimersByTimeAsync(50);
    expect(asked.settled).toBe(true);
    vi.unstubAllGlobals();
  });
});

describe("aborting", () => {
  test("a question taken back before it was sent is never sent", async () => {
    const { host, kernel } = start({ answer: () => ({}) });
    const abort = new AbortController();
    const gone = fate(kernel.request("row", {}, { signal: abort.signal }));
    kernel.request("column");
    abort.abort();
    await vi.advanceTimersByTimeAsync(200);
    expect(gone.error).toMatchObject({ name: "AbortError" });
    expect(kindsIn(host.sent)).toEqual([["column"]]);
  });

  test("one already sent is given up at once; its answer is ignored, and until then nothing else is sent", async () => {
    const { host, kernel } = start({ answer: () => ({}), delay: 200 });
    const abort = new AbortController();
    const gone = fate(kernel.request("row", {}, { signal: abort.signal }));
    await vi.advanceTimersByTimeAsync(100);
    abort.abort();
    await vi.advanceTimersByTimeAsync(0);
    expect(gone.error).toMatchObject({ name: "AbortError" });
    const next = fate(kernel.request("column"));
    await vi.advanceTimersByTimeAsync(50);
    expect(kindsIn(host.sent)).toEqual([["row"]]);
    await vi.advanceTimersByTimeAsync(500);
    expect(kindsIn(host.sent)).toEqual([["row"], ["column"]]);
    expect(next.settled).toBe(true);
  });

  test("once taken back, nothing is waited for", async () => {
    const { host, kernel } = start({ answer: () => new Promise<object>(() => {}) });
    const abort = new AbortController();
    fate(kernel.request("row", {}, { signal: abort.signal }));
    abort.abort();
    await vi.advanceTimersByTimeAsync(1000);
    expect(kernel.state.value).toBe("idle");
    expect(host.sent).toEqual([]);
  });

  test("an already aborted question is not asked", async () => {
    const { host, kernel } = start({ answer: () => ({}) });
    const gone = fate(kernel.request("row", {}, { signal: AbortSignal.abort() }));
    await vi.advanceTimersByTimeAsync(200);
    expect(gone.error).toMatchObject({ name: "AbortError" });
    expect(host.sent).toEqual([]);
  });

  test("when the widget goes, all questions end and no timer is left", async () => {
    const { host, kernel } = start({ answer: () => new Promise<object>(() => {}) });
    const sent = fate(kernel.request("row"));
    await vi.advanceTimersByTimeAsync(600);
    const waiting = fate(kernel.request("column"));
    kernel.expect();
    controller.abort();
    expect(vi.getTimerCount()).toBe(0);
    const late = fate(kernel.request("row"));
    await vi.advanceTimersByTimeAsync(20_000);
    for (const { error } of [sent, waiting, late]) expect(error).toMatchObject({ name: "AbortError" });
    expect(kindsIn(host.sent)).toEqual([["row"], ["ping"]]);
  });
});

describe("a busy kernel", () => {
  test("after 400 ms without an answer the reader is told, and no longer once it comes", async () => {
    let finish = () => {};
    const { kernel } = start({ answer: () => new Promise<object>((resolve) => (finish = () => resolve({}))) });
    const seen: string[] = [];
    kernel.state.subscribe((value) => seen.push(value));
    const asked = fate(kernel.request("row"));
    await vi.advanceTimersByTimeAsync(390);
    expect(kernel.state.value).toBe("idle");
    const first = finish;
    await vi.advanceTimersByTimeAsync(20);
    expect(kernel.state.value).toBe("waiting");
    await vi.advanceTimersByTimeAsync(3000);
    first();
    await vi.advanceTimersByTimeAsync(0);
    expect(asked.settled).toBe(true);
    expect(seen).toEqual(["idle", "waiting", "idle"]);
  });

  test("quick answers never show it, however many come", async () => {
    const { kernel } = start({ answer: () => ({}), delay: 100 });
    const seen: string[] = [];
    kernel.state.subscribe((value) => seen.push(value));
    for (let query = 0; query < 20; query++) {
      kernel.request("row", { query });
      await vi.advanceTimersByTimeAsync(70);
    }
    await vi.advanceTimersByTimeAsync(1000);
    expect(seen).toEqual(["idle"]);
  });

  test("hovering on, which takes questions back, does not make the message flicker", async () => {
    const { kernel } = start({ answer: () => new Promise<object>(() => {}) });
    const seen: string[] = [];
    kernel.state.subscribe((value) => seen.push(value));
    for (let query = 0; query < 30; query++) {
      const abort = new AbortController();
      fate(kernel.request("row", { query }, { signal: abort.signal }));
      await vi.advanceTimersByTimeAsync(40);
      abort.abort();
    }
    expect(seen).toEqual(["idle", "waiting"]);
  });

  test("a new picture that is due counts as waiting", async () => {
    const { kernel } = start({ answer: () => ({}) });
    const arrived = kernel.expect();
    const other = kernel.expect();
    await vi.advanceTimersByTimeAsync(500);
    expect(kernel.state.value).toBe("waiting");
    other();
    expect(kernel.state.value).toBe("idle");
    await vi.advanceTimersByTimeAsync(500);
    expect(kernel.state.value).toBe("waiting");
    arrived();
    arrived();
    expect(kernel.state.value).toBe("idle");
    await vi.advanceTimersByTimeAsync(2000);
    expect(kernel.state.value).toBe("idle");
  });

  test("a slow kernel, which answers pings late, loses no question", async () => {
    const { kernel } = start({ answer: () => ({}), delay: 6000 });
    const first = fate(kernel.request("row"));
    await vi.advanceTimersByTimeAsync(1000);
    const second = fate(kernel.request("column"));
    await vi.advanceTimersByTimeAsync(20_000);
    expect(first.value).toMatchObject({ ok: true });
    expect(second.value).toMatchObject({ ok: true });
  });

  test("an answer that was lost ends with an error, and the next question is asked", async () => {
    const { host, kernel } = start({
      answer: ({ kind }) => (kind === "row" ? new Promise<object>(() => {}) : {}),
    });
    const lost = fate(kernel.request("row"));
    await vi.advanceTimersByTimeAsync(600);
    const next = fate(kernel.request("column"));
    await vi.advanceTimersByTimeAsync(4000);
    expect(lost.settled).toBe(false);
    await vi.advanceTimersByTimeAsync(2000);
    expect(String(lost.error)).toBe("KernelError: the answer was lost");
    expect(next.settled).toBe(true);
    expect(kernel.state.value).toBe("idle");
    expect(kindsIn(host.sent)).toEqual([["row"], ["ping"], ["ping"], ["column"]]);
  });
});

describe("a kernel that is gone", () => {
  test("the first question finds out, and fails as such", async () => {
    const { kernel } = start();
    expect(kernel.state.value).toBe("idle");
    const asked = fate(kernel.request("row"));
    await vi.advanceTimersByTimeAsync(200);
    expect(asked.error).toBeInstanceOf(KernelGone);
    expect(kernel.state.value).toBe("gone");
    await vi.advanceTimersByTimeAsync(20_000);
    expect(vi.getTimerCount()).toBe(0);
  });

  test("a restart during a question is noticed without a further one", async () => {
    const { host, kernel } = start({ answer: () => ({}), delay: 60_000 });
    const asked = fate(kernel.request("row"));
    await vi.advanceTimersByTimeAsync(1000);
    expect(kernel.state.value).toBe("waiting");
    const queued = fate(kernel.request("column"));
    host.dead = true;
    await vi.advanceTimersByTimeAsync(5000);
    expect(kernel.state.value).toBe("gone");
    for (const { error } of [asked, queued]) expect(error).toBeInstanceOf(KernelGone);
  });

  test("a picture that is due does not come any more: nothing is waited for", async () => {
    const { host, kernel } = start({ answer: () => ({}), dead: true });
    const arrived = kernel.expect();
    await vi.advanceTimersByTimeAsync(500);
    expect(kernel.state.value).toBe("gone");
    expect(vi.getTimerCount()).toBe(0);
    host.dead = false;
    fate(kernel.request("retry"));
    await vi.advanceTimersByTimeAsync(5000);
    expect(kernel.state.value).toBe("idle");
    arrived();
    expect(kernel.state.value).toBe("idle");
  });

  test("it is back as soon as a question can be sent again", async () => {
    const { host, kernel } = start({ answer: () => ({ value: 1 }), dead: true });
    fate(kernel.request("peak"));
    await vi.advanceTimersByTimeAsync(200);
    expect(kernel.state.value).toBe("gone");
    host.dead = false;
    const asked = fate(kernel.request("peak"));
    await vi.advanceTimersByTimeAsync(200);
    expect(asked.value).toMatchObject({ value: 1 });
    expect(kernel.state.value).toBe("idle");
  });

  test("a write that throws does not escape, and tells", () => {
    const { kernel } = start({ answer: () => ({}) });
    expect(kernel.guard(() => {})).toBe(true);
    expect(kernel.state.value).toBe("idle");
    const write = () => {
      throw new Error("Cannot send");
    };
    expect(kernel.guard(write)).toBe(false);
    expect(kernel.state.value).toBe("gone");
  });

  test("sending that fails later, as in marimo, counts as well", async () => {
    const model = { ...createHost({}).proxy(), send: () => Promise.reject(new Error("offline")) };
    const kernel = createKernel(model, { signal: controller.signal });
    const asked = fate(kernel.request("row"));
    await vi.advanceTimersByTimeAsync(200);
    expect(asked.error).toBeInstanceOf(KernelGone);
    expect(kernel.state.value).toBe("gone");
  });
});

test("messages of others, and answers to nobody, change nothing", async () => {
  const host = createHost({}, { answer: () => new Promise<object>(() => {}) });
  let tell: MessageListener = () => {};
  const on = (_event: string, listener: MessageListener) => {
    tell = listener;
  };
  const model: Model = { ...host.proxy(), on };
  const kernel = createKernel(model, { signal: controller.signal });
  const asked = fate(kernel.request("row"));
  await vi.advanceTimersByTimeAsync(50);
  const others = [null, "text", { refused: "no" }, { replies: "none" }, { replies: [null, { id: "x", ok: true }] }];
  for (const content of others) tell(content);
  await vi.advanceTimersByTimeAsync(0);
  expect(asked.settled).toBe(false);
  expect(kernel.state.value).toBe("idle");
  await vi.advanceTimersByTimeAsync(400);
  expect(kernel.state.value).toBe("waiting");
});
