// @vitest-environment jsdom
/** A page on which nobody answers and sending does nothing: what was saved is drawn, and what it lacks is said. */

import { afterEach, beforeEach, describe, expect, test } from "vitest";
import type { Model, Traits } from "../../src/contract/traits";
import { createHost, type HostOptions } from "../../src/kernel/host";
import { createKernel, KernelGone } from "../../src/kernel/kernel";
import { settle, show } from "../helpers/page.ts";
import { CAUSAL, type Cells, factsOf, pictureOf, python, stateOf } from "../helpers/states.ts";
import { useFakeTime } from "../helpers/timers.ts";

useFakeTime();

let end: AbortController;
beforeEach(() => {
  end = new AbortController();
});
afterEach(() => end.abort());

const NEVER = 8000; // milliseconds, after which a page says that nobody answers

function start(options: HostOptions = {}, manager?: Model["widget_manager"]) {
  const host = createHost({}, options);
  const model = { ...host.proxy(), widget_manager: manager };
  return { host, kernel: createKernel(model, { signal: end.signal }) };
}

describe("a kernel that has never answered", () => {
  test("is waited for, and after two pings nobody is there: the question ends", async () => {
    const { host, kernel } = start({ silent: true });
    const asked = kernel.request("row").then(
      () => "answered",
      (error: unknown) => (error instanceof KernelGone ? "gone" : "failed"),
    );
    await settle(1000);
    expect(kernel.state.value).toBe("waiting");
    await settle(NEVER);
    expect(kernel.state.value).toBe("silent");
    expect(await asked).toBe("gone");
    const pings = (host.sent as { requests: { kind: string }[] }[]).filter(
      ({ requests }) => requests[0]?.kind === "ping",
    );
    expect(pings).toHaveLength(2);
  });

  test.each([
    ["from a file", { _handle_comm_msg: async () => {}, comm_live: false }, "orphan"],
    ["of a kernel", { _handle_comm_msg: async () => {}, comm_live: true, comm: {} }, "waiting"],
    ["named otherwise", undefined, "waiting"],
  ])("a model %s is told at once", async (_, found, state) => {
    const host = createHost({ uid: "its-name" }, { silent: true });
    const manager = {
      get_model: (id: string) => Promise.resolve(id === "its-name" ? found : undefined),
      kernel: { status: "busy" },
    };
    const model = { ...host.proxy(), widget_manager: manager } as Model;
    const kernel = createKernel(model, { signal: end.signal });
    const asked = kernel.request("row").catch((error: unknown) => (error as Error).message);
    await settle(1000);
    expect(kernel.state.value).toBe(state);
    if (state === "orphan") expect(await asked).toContain("does not know this widget");
  });

  test("is there again once it answers", async () => {
    const { host, kernel } = start({ silent: true, answer: () => ({}) });
    kernel.request("row").catch(() => {});
    await settle(NEVER);
    host.silent = false;
    await expect(kernel.request("row")).rejects.toThrow("no kernel answers"); // which asks whether one is there
    await settle(1000);
    expect(kernel.state.value).toBe("idle");
    await Promise.all([settle(1000), expect(kernel.request("row")).resolves.toMatchObject({ ok: true })]);
  });

  test("may be busy: where the host says so, it is waited for", async () => {
    const status = { status: "busy" };
    const { kernel } = start({ silent: true }, { kernel: status });
    kernel.request("row").catch(() => {});
    await settle(60_000);
    expect(kernel.state.value).toBe("waiting");
    status.status = "idle";
    await settle(NEVER);
    expect(kernel.state.value).toBe("silent");
  });

  test("is not one that has answered once, however long it is busy then", async () => {
    const { host, kernel } = start({ answer: () => ({}) });
    await Promise.all([settle(200), kernel.request("row")]);
    host.silent = true;
    kernel.request("row").catch(() => {});
    await settle(60_000);
    expect(kernel.state.value).toBe("waiting");
  });
});

describe("a page that was saved", () => {
  const CELLS: Cells = CAUSAL;
  const saved = (changes: Partial<Traits> = {}) => stateOf(CELLS, changes);

  test("goes back to the head that is drawn, and says that no kernel answers", async () => {
    const { view, host } = await show(saved(), { silent: true });
    view.button("head 2").click();
    await settle(1000);
    expect(view.status).toContain("Waiting for the kernel You still see layer 0 · head 0.");
    expect(view.button("head 2").getAttribute("aria-checked")).toBe("true");
    await settle(NEVER);
    expect(view.notices).toContain("No kernel answers You see what was saved.");
    expect(view.button("head 0").getAttribute("aria-checked")).toBe("true");
    expect(host.get("head")).toBe(0);
    view.button("head 3").click(); // and stays there
    await settle(NEVER);
    expect(host.get("head")).toBe(0);
    expect(view.status).toContain("head 0");
  });

  test("pins and looks need nobody", async () => {
    const { view, host } = await show(saved(), { silent: true });
    view.button("head 2").click();
    await settle(NEVER);
    await view.press("ArrowDown");
    await settle();
    expect(host.get("query")).not.toBe(null);
    expect(host.get("view")).toBe("heatmap");
  });

  test("a kernel that was only busy computes what was chosen last", async () => {
    const state = saved();
    const { view, host } = await show(state, { ...python(state, () => CELLS), silent: true });
    view.button("head 2").click();
    await settle(NEVER);
    host.silent = false;
    view.button("head 3").click(); // asks whether somebody is there
    await settle(1000);
    expect(view.notices).toBe("");
    view.button("head 3").click();
    await settle(1000);
    expect(view.status).toContain("head 3");
  });

  test("the stages that were not saved are asked for, and then said to be missing", async () => {
    const { view } = await show(saved({ view: "stages", stages: null }), { silent: true });
    await settle(1000);
    expect(view.status).toContain("Waiting for the kernel");
    await settle(NEVER);
    expect(view.notices).toContain(
      "Of the stages only the weights were saved: a notebook that is saved with this view",
    );
    expect(view.all(".aw-small-head b").map((name) => name.textContent)).toEqual(["Weights"]);
    expect(view.text(".aw-steps")).not.toContain("too large");
    expect(view.text(".aw-steps")).toContain("The steps of a pair come from the kernel");
  });

  test("where the picture is of rows that stand for several no stage is known", async () => {
    const picture = { ...pictureOf(CELLS), sampled: { first: 0, every: 2, exact: 0 } };
    const { view } = await show(saved({ view: "stages", stages: null, picture }), { silent: true });
    await settle(NEVER);
    expect(view.all(".aw-small-head b")).toHaveLength(0);
    expect(view.notices).toContain(
      "The stages were not saved: a notebook that is saved with this view open keeps them.",
    );
  });

  test("the heads of the layer are drawn from their small pictures", async () => {
    const facts = factsOf(CELLS, { layers: ["a", "b", "c"] });
    const state = saved({ view: "heads", survey: null, layer: 1, facts, picture: pictureOf(CELLS, { layer: 1 }) });
    const thumbnails = { ...state.thumbnails, layer: 1 };
    const { view } = await show({ ...state, thumbnails }, { silent: true });
    await settle(NEVER);
    expect(view.canvas.getAttribute("aria-label")).toBe(`Attention heads, 1 layer by 4 heads`);
    expect(view.notices).toContain(
      "The heads of the other layers were not saved: a notebook that is saved with this view open keeps them.",
    );
  });

  test("a graph is drawn from a picture that has all numbers", async () => {
    const { view } = await show(saved({ view: "graph", links: null }), { silent: true });
    await settle(NEVER);
    expect(/[1-9]/.test(view.pixels)).toBe(true);
    expect(view.notices).toBe("");
  });
});

test("a kernel that is gone leaves the selection at what is drawn", async () => {
  const state = stateOf(CAUSAL);
  const { view, host } = await show(
    state,
    python(state, () => CAUSAL),
  );
  host.dead = true;
  view.button("head 3").click();
  await settle(1000);
  expect(view.notices).toContain("The kernel is gone");
  expect(view.button("head 0").getAttribute("aria-checked")).toBe("true");
  expect(view.status).toContain("head 0");
});
