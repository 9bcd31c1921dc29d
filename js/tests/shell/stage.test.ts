// @vitest-environment jsdom
/** Views that are loaded when they are opened: what stands there meanwhile, and what is said where one cannot be. */

import { afterEach, beforeEach, expect, onTestFinished, test, vi } from "vitest";
import type { ViewName } from "../../src/contract/values";
import { mount } from "../../src/kernel/host";
import widget from "../../src/widget";
import { settle, show, View } from "../helpers/page.ts";
import { resize } from "../helpers/setup.ts";
import { CAUSAL, python, stateOf } from "../helpers/states.ts";

interface Waiting {
  resolve(): void;
  reject(error: Error): void;
}

/** A page that gives a part when a test lets it. */
const page = vi.hoisted(() => ({ isHeld: false, loaded: new Set<string>(), waiting: new Map<string, Waiting>() }));

vi.mock("../../src/shell/views", async (importOriginal) => {
  const views = await importOriginal<typeof import("../../src/shell/views")>();
  const isThere = (name: ViewName) => !page.isHeld || name === "heatmap" || page.loaded.has(name);
  return {
    PARTS: views.PARTS,
    loadedView: (name: ViewName) => (isThere(name) ? views.loadedView(name) : undefined),
    loadView: (name: ViewName) =>
      page.isHeld
        ? new Promise<void>((resolve, reject) => page.waiting.set(name, { resolve, reject }))
        : views.loadView(name),
  };
});

beforeEach(() => {
  vi.useFakeTimers();
  page.isHeld = true;
});
afterEach(() => {
  page.loaded.clear();
  page.waiting.clear();
  vi.useRealTimers();
});

async function give(name: ViewName): Promise<void> {
  page.loaded.add(name);
  page.waiting.get(name)!.resolve();
  await settle();
}

async function refuse(name: ViewName, why: string): Promise<void> {
  page.waiting.get(name)!.reject(new Error(why));
  await settle();
}

function started() {
  const state = stateOf(CAUSAL);
  return show(
    state,
    python(state, () => CAUSAL),
  );
}

const has = (view: View, selector: string) => view.all(selector).length > 0;

test("the view before stays until the next one is loaded", async () => {
  const { view, host } = await started();
  host.fromPython({ view: "graph" });
  await settle();
  expect(has(view, ".aw-stage > .aw-main")).toBe(true);
  expect(view.find('[role=tab][aria-selected="true"]').textContent).toBe("Graph"); // what was asked for is seen at once
  expect(has(view, ".aw-stage[aria-busy=true]")).toBe(true);
  await give("graph");
  expect(has(view, ".aw-stage[aria-busy]")).toBe(false);
  expect(has(view, ".aw-stage > .aw-main")).toBe(false);
  expect(has(view, ".aw-stage .aw-graph")).toBe(true);
});

test("a reader who waits is told, and nothing below moves", async () => {
  const { view, host } = await started();
  vi.spyOn(view.find(".aw-stage"), "offsetHeight", "get").mockReturnValue(432);
  host.fromPython({ view: "stages" });
  await settle(250);
  expect(view.text(".aw-stage")).not.toContain("Opening");
  await settle(100);
  expect(view.text(".aw-stage")).toBe("Opening the stages view …");
  expect(view.find("[data-aw=loading]").style.minHeight).toBe("432px");
  await give("stages");
  expect(view.text(".aw-stage")).not.toContain("Opening");
});

test("one that was left before it came is not shown", async () => {
  const { view, host } = await started();
  host.fromPython({ view: "graph" });
  host.fromPython({ view: "heatmap" });
  await give("graph");
  await settle(1000);
  expect(has(view, ".aw-stage > .aw-main")).toBe(true);
  host.fromPython({ view: "graph" });
  await settle();
  expect(has(view, ".aw-stage .aw-graph")).toBe(true);
});

test("one that cannot be loaded says why and what to do, and can be asked for again", async () => {
  const { view, host } = await started();
  host.fromPython({ view: "graph" });
  await settle();
  await refuse("graph", "refused by the page");
  expect(view.text(".aw-stage")).toContain("The graph view could not be loaded");
  expect(view.text(".aw-stage")).toContain("Reason: refused by the page");
  view.button("Try again").click();
  await give("graph");
  expect(has(view, ".aw-stage .aw-graph")).toBe(true);
  host.fromPython({ view: "stages" });
  await settle();
  await refuse("stages", "refused by the page");
  view.button("Show the heatmap").click();
  await settle();
  expect(has(view, ".aw-stage > .aw-main")).toBe(true);
});

test("a widget that begins with a view waits for it, and comes as a whole", async () => {
  const state = stateOf(CAUSAL, { view: "graph" });
  const el = document.createElement("div");
  document.body.append(el);
  onTestFinished(
    (
      await mount(
        widget,
        el,
        state,
        python(state, () => CAUSAL),
      )
    ).unmount,
  );
  const view = new View(el);
  resize(view.root, 900);
  await settle();
  expect(view.root.childElementCount).toBe(0);
  await give("graph");
  expect(has(view, ".aw-stage .aw-graph")).toBe(true);
});

test("a widget that begins with a view that cannot be loaded says so", async () => {
  const state = stateOf(CAUSAL, { view: "graph" });
  const el = document.createElement("div");
  document.body.append(el);
  onTestFinished(
    (
      await mount(
        widget,
        el,
        state,
        python(state, () => CAUSAL),
      )
    ).unmount,
  );
  await refuse("graph", "refused by the page");
  const view = new View(el);
  resize(view.root, 900);
  await settle();
  await refuse("graph", "refused by the page");
  expect(view.text(".aw-stage")).toContain("The graph view could not be loaded");
});

test("a view that had the focus leaves it to the next one, and no other takes it", async () => {
  page.isHeld = false;
  const { view, host } = await started();
  const picture = () => view.find<HTMLElement>("[data-aw=picture]");
  picture().focus();
  host.fromPython({ view: "graph" });
  await settle();
  expect(document.activeElement).toBe(picture());
  picture().blur();
  host.fromPython({ view: "heatmap" });
  await settle();
  expect(document.activeElement).toBe(document.body);
});
