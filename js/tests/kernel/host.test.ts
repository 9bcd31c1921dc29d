// @vitest-environment jsdom
import { expect, test, vi } from "vitest";
import type { Bytes } from "../../src/contract/messages";
import type { Model, Traits } from "../../src/contract/traits";
import { createHost, mount, reviveState } from "../../src/kernel/host";

test("setting a trait tells at once, and saving sends what has changed since", () => {
  const host = createHost({ layer: 0, head: 1, color_range: [0, 1] });
  const heard: unknown[] = [];
  host.on("change:head", (_, value) => heard.push(value));
  host.set("head", 7);
  host.set("head", 7);
  host.set("color_range", [0, 1]);
  host.set("layer", 5);
  expect(heard).toEqual([7]);
  expect(host.saved).toEqual([]);
  host.save_changes();
  host.save_changes();
  expect(host.saved).toEqual([{ head: 7, layer: 5 }]);
  expect(host.get("layer")).toBe(5);
});

test("the kernel's changes are all there before the first is told, and are not sent back", () => {
  const host = createHost({ layer: 0, head: 1 });
  const heard: unknown[] = [];
  host.on("change:layer", () => heard.push([host.get("layer"), host.get("head")]));
  host.fromPython({ layer: 2, head: 3 });
  host.save_changes();
  expect(heard).toEqual([[2, 3]]);
  expect(host.saved).toEqual([]);
});

test("an answer does not put back what was set after its question", async () => {
  const answers: (() => void)[] = [];
  const take = (changes: Partial<Traits>) =>
    new Promise<Partial<Traits>>((resolve) => answers.push(() => resolve({ layer: 9, ...changes })));
  const host = createHost({ head: 0, layer: 0 }, { take });
  const heard: unknown[] = [];
  host.on("change:head", () => heard.push(host.get("head")));
  for (const head of [1, 2, 3]) {
    host.set("head", head);
    if (head < 3) host.save_changes(); // the last is set, not yet saved
  }
  for (const answer of answers) {
    answer();
    await vi.waitFor(() => expect(host.get("layer")).toBe(9));
  }
  host.save_changes();
  answers[2]!();
  host.fromPython({ layer: 1 });
  await vi.waitFor(() => expect(host.get("layer")).toBe(9));
  expect(heard).toEqual([1, 2, 3]);
  host.fromPython({ head: 4 }); // of Python's own accord
  expect(host.get("head")).toBe(4);
});

test("a reply's arrays travel as buffers, in the order of their indices", async () => {
  const host = createHost(
    {},
    { answer: ({ query }) => ({ values: { data: Uint8Array.of(1, 2) }, query, more: [Uint8Array.of(3)] }) },
  );
  const arrived = new Promise<[unknown, readonly Bytes[] | undefined]>((resolve) => {
    host.on("msg:custom", (content, buffers) => resolve([content, buffers]));
  });
  host.send({ requests: [{ id: "a", kind: "row", query: 4 }] });
  const [content, buffers] = await arrived;
  expect(content).toEqual({ replies: [{ id: "a", ok: true, values: { data: 0 }, query: 4, more: [1] }] });
  expect(buffers?.map((buffer) => (buffer as DataView).byteLength)).toEqual([2, 1]);
});

test("the kernel sends messages of its own accord, unless it is dead", () => {
  const host = createHost({});
  const heard = vi.fn();
  host.on("msg:custom", heard);
  host.tell({ band: { start: 3, values: { data: Uint8Array.of(7), shape: [1] } } });
  host.dead = true;
  host.tell({ band: {} });
  expect(heard).toHaveBeenCalledTimes(1);
  const [content, buffers] = heard.mock.calls[0]!;
  expect(content).toEqual({ band: { start: 3, values: { data: 0, shape: [1] } } });
  expect((buffers[0] as DataView).getUint8(0)).toBe(7);
});

test("what an answer throws arrives as the reply's error", async () => {
  const host = createHost(
    {},
    {
      answer: () => {
        throw new Error("out of memory");
      },
    },
  );
  const arrived = new Promise((resolve) => host.on("msg:custom", resolve));
  host.send({ requests: [{ id: "a", kind: "row" }] });
  expect(await arrived).toEqual({ replies: [{ id: "a", ok: false, error: "out of memory" }] });
});

test("with a dead kernel or with none, sending throws as Jupyter does", () => {
  expect(() => createHost({}).send({ requests: [] })).toThrow("Cannot send");
  const host = createHost({}, { answer: () => ({}) });
  host.send({ requests: [] });
  host.dead = true;
  expect(() => host.send({ requests: [] })).toThrow("Cannot send");
});

test("an answer that is due when the kernel dies does not arrive", async () => {
  const host = createHost({}, { answer: () => ({}), delay: 20 });
  const heard = vi.fn();
  host.on("msg:custom", heard);
  host.send({ requests: [{ id: "a", kind: "row" }] });
  host.dead = true;
  await new Promise((resolve) => setTimeout(resolve, 60));
  expect(heard).not.toHaveBeenCalled();
});

test("state from a page: bytes are bytes again, wherever they stand", () => {
  const json = '{"layer": 3, "picture": {"values": {"data": {"$bytes": "AQID"}, "shape": [3]}}, "tokens": null}';
  const state = reviveState(json);
  const data = state.picture?.values?.data as DataView;
  expect([data.getUint8(0), data.getUint8(2), data.byteLength]).toEqual([1, 3, 3]);
  expect([state.layer, state.tokens, state.picture?.values?.shape]).toEqual([3, null, [3]]);
});

test("mount: initialize once, render for each view, each on a model of its own that shares the state", async () => {
  const models: Model[] = [];
  const log: string[] = [];
  const widget = {
    async initialize({ model, signal }: { model: Model; signal: AbortSignal }) {
      models.push(model);
      signal.addEventListener("abort", () => log.push("model aborted"));
      return () => log.push("model cleaned up");
    },
    render({ model, el, signal }: { model: Model; el: HTMLElement; signal: AbortSignal }) {
      models.push(model);
      const draw = () => {
        el.textContent = `head ${model.get("head")}`;
      };
      model.on("change:head", draw);
      draw();
      signal.addEventListener("abort", () => log.push("view aborted"));
      return () => log.push("view cleaned up");
    },
  };
  const [one, two] = [document.createElement("div"), document.createElement("div")];
  const { host, render, unmount } = await mount({ default: widget }, one, { head: 1 });
  const removeSecond = await render(two);
  expect(new Set(models).size).toBe(3);
  models[1]?.set("head", 4);
  expect([one.textContent, two.textContent]).toEqual(["head 4", "head 4"]);

  await removeSecond();
  host.fromPython({ head: 9 });
  expect([one.textContent, two.textContent]).toEqual(["head 9", "head 4"]);
  expect(log).toEqual(["view aborted", "view cleaned up"]);

  await unmount();
  await unmount();
  expect(log.slice(2)).toEqual(["view aborted", "view cleaned up", "model aborted", "model cleaned up"]);
  host.fromPython({ head: 10 });
  expect(one.textContent).toBe("head 9");
});

test("a widget may be a function, and a host may be there already", async () => {
  const host = createHost({ title: "two senses" });
  const render = vi.fn(({ model, el }: { model: Model; el: HTMLElement }) => el.append(model.get("title")));
  const el = document.createElement("div");
  const mounted = await mount(() => ({ render }), el, host);
  expect(mounted.host).toBe(host);
  expect(el.textContent).toBe("two senses");
});
