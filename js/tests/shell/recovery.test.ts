// @vitest-environment jsdom
/** Traits and replies of the wrong kind: nothing throws, one sentence says so, and good values draw the widget again. */

import { afterEach, beforeEach, expect, onTestFinished, test, vi } from "vitest";
import { fitsTrait } from "../../src/contract/plain";
import { TRAIT_NAMES, type TraitName, type Traits } from "../../src/contract/traits";
import type { ViewName } from "../../src/contract/values";
import { createHost, mount } from "../../src/kernel/host";
import widget from "../../src/widget";
import { paper, settle, View } from "../helpers/page.ts";
import { resize } from "../helpers/setup.ts";
import { CAUSAL, python, random, stateOf } from "../helpers/states.ts";
import { THOROUGH } from "../helpers/thorough.ts";

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

const SHOWN: readonly ViewName[] = ["heatmap", "graph", "text", "heads", "stages"];
const DEEP = JSON.parse("[".repeat(200) + "]".repeat(200));
/** Values of every kind, none of them one that each trait can have. */
const ODD: readonly unknown[] = [
  null,
  true,
  0,
  -1,
  1.5,
  1e300,
  2 ** 53,
  Number.NaN,
  Number.POSITIVE_INFINITY,
  "",
  "x",
  "<img src=x onerror=alert(1)>",
  [],
  [null],
  [[]],
  [[1, 2, 3]],
  [{}],
  ["x", 1],
  [1, 0],
  [-1],
  [0.5],
  {},
  { length: 1e9 },
  { length: -1 },
  { at: 1 },
  { layers: 3 },
  { heads: -1, layers: [] },
  { rows: 1e9, columns: 1e9, query: 0, key: 0 },
  { rows: "a" },
  DEEP,
  99,
  { data: "", dtype: "float32", shape: [1e9, 1e9], deflated: false },
  { values: { shape: null } },
  "constructor",
  { layer: 0, batch: 0, heads: [{}], side: 3 },
  { state: "running", share: "x" },
  { 0: 1, length: 1 },
  new Date(0),
]; // prettier-ignore

async function drawn(changes: Partial<Traits> = {}) {
  const state = stateOf(CAUSAL, changes);
  const host = createHost(
    state,
    python(state, () => CAUSAL),
  );
  const el = document.createElement("div");
  const style = paper();
  document.head.append(style);
  document.body.append(el);
  const { unmount } = await mount(widget, el, host);
  onTestFinished(() => {
    unmount();
    el.remove();
    style.remove();
  });
  resize(el.querySelector<HTMLElement>(".attnwidget")!, 900);
  await settle();
  const all = Object.fromEntries(TRAIT_NAMES.map((name) => [name, undefined])); // those that it has not, too
  return { state: { ...all, ...state } as Traits, host, view: new View(el) };
}

/** What is thrown where nobody catches it. */
function uncaught(): unknown[] {
  const found: unknown[] = [];
  const heard = (event: ErrorEvent | PromiseRejectionEvent) => {
    found.push("error" in event ? event.error : event.reason);
    event.preventDefault();
  };
  const rejected = (reason: unknown) => found.push(reason);
  window.addEventListener("error", heard);
  process.on("unhandledRejection", rejected);
  onTestFinished(() => {
    window.removeEventListener("error", heard);
    process.off("unhandledRejection", rejected);
  });
  return found;
}

const isBroken = (view: View) => view.root.querySelector("[data-aw=broken]") !== null;

test.each(SHOWN)("the view %s stands any trait", async (shown) => {
  const found = uncaught();
  const { state, host, view } = await drawn({ view: shown, query: 2, key: 1, heads: [0, 1], pins: [[2, 1]] });
  const before = view.text();
  for (const name of TRAIT_NAMES.filter((one) => one !== "uid")) {
    for (const odd of ODD) {
      expect(() => host.fromPython({ [name]: odd } as Partial<Traits>), `${name}`).not.toThrow();
      await settle(0);
    }
    expect(view.root.textContent?.length).toBeGreaterThan(0);
    host.fromPython({ ...state });
    await settle(20);
    expect(isBroken(view), `after ${name}`).toBe(false);
  }
  await settle(300);
  expect(found).toEqual([]);
  expect(view.text().slice(0, 40)).toBe(before.slice(0, 40));
});

test("many wrong traits at once, drawn by lot, leave a widget that good ones draw", async () => {
  const found = uncaught();
  const { state, host, view } = await drawn({ query: 2, key: 1 });
  const next = random(7);
  const lot = <T>(from: readonly T[]) => from[Math.floor(next() * from.length)] as T;
  for (let n = 0; n < (THOROUGH ? 300 : 60); n++) {
    const names: TraitName[] = [lot(TRAIT_NAMES), lot(TRAIT_NAMES), lot(TRAIT_NAMES)];
    const odd = Object.fromEntries(names.filter((name) => name !== "uid").map((name) => [name, lot(ODD)]));
    expect(() => host.fromPython({ ...odd, view: lot(SHOWN) } as Partial<Traits>)).not.toThrow();
    if (n % 3 === 0) await settle(10);
    if (n % 10 === 0) {
      host.fromPython({ ...state, view: lot(SHOWN) });
      await settle(20);
      expect(isBroken(view), `after ${n}`).toBe(false);
    }
  }
  host.fromPython({ ...state });
  await settle(300);
  expect(view.canvas.width).toBeGreaterThan(0);
  expect(found).toEqual([]);
});

test("a widget that opens with wrong traits draws what it can, and all of it with the next good ones", async () => {
  const found = uncaught();
  for (const name of ["facts", "heads", "pins", "grid", "color_range", "view", "findings", "what_if"] as const) {
    const good = stateOf(CAUSAL);
    const { host, view } = await drawn({ [name]: { length: -1 } } as unknown as Partial<Traits>);
    expect(view.root.textContent).not.toBe("");
    host.fromPython(good);
    await settle(200);
    expect(isBroken(view)).toBe(false);
    expect(view.canvas.width).toBeGreaterThan(0);
  }
  expect(found).toEqual([]);
});

test("a view that throws says one sentence, and is built anew at the next good state", async () => {
  const found = uncaught();
  const { host, view } = await drawn();
  const draws = vi.spyOn(document, "createElement").mockImplementation(() => {
    throw new Error("no elements are left");
  });
  host.fromPython({ view: "graph" });
  draws.mockRestore();
  await settle();
  host.fromPython({ title: "again" });
  await settle();
  expect(isBroken(view)).toBe(false);
  expect(view.text()).toContain("again");
  expect(view.all("[data-aw=broken]")).toHaveLength(0);
  expect(found).toEqual([]);
});

test("what could not be drawn offers the way on: to draw it again, or the heatmap", async () => {
  const found = uncaught();
  const { host, view } = await drawn();
  const broken = () => {
    const draws = vi.spyOn(document, "createElement").mockImplementationOnce(() => {
      throw new Error("no elements are left");
    });
    return () => draws.mockRestore();
  };
  const press = async (name: string) => {
    view
      .all<HTMLButtonElement>("[data-aw=broken] button")
      .find((one) => one.textContent === name)!
      .click();
    await settle();
  };
  let mend = broken();
  host.fromPython({ view: "graph" });
  mend();
  await settle();
  expect(isBroken(view)).toBe(true);
  expect(view.text("[data-aw=broken]")).toContain("Reason: no elements are left.");
  await press("Draw it again");
  expect(isBroken(view)).toBe(false);

  mend = broken();
  host.fromPython({ view: "text" });
  mend();
  await settle();
  await press("Show the heatmap");
  expect(isBroken(view)).toBe(false);
  expect(host.get("view")).toBe("heatmap");
  expect(found).toEqual([]);
});

test("what this front-end itself holds fits", () => {
  const state = stateOf(CAUSAL);
  for (const name of TRAIT_NAMES) expect(fitsTrait(name, state[name]), name).toBe(true);
  for (const odd of [{ length: 1e9 }, "x", -1, [[1, 2, 3]]])
    for (const name of ["facts", "heads", "pins", "grid", "color_range"] as const)
      expect(fitsTrait(name, odd), `${name} ${JSON.stringify(odd)}`).toBe(false);
});

test("pins are pairs of positions, each of which may be left out", () => {
  for (const pins of [
    [],
    [[1, 2]],
    [
      [0, null],
      [null, 3],
    ],
  ])
    expect(fitsTrait("pins", pins)).toBe(true);
  for (const pin of [[1], [1, 2, 3], ["1", 2], [-1, 0], [0.5, 1], { 0: 1, 1: 2, length: 2 }, null]) {
    expect(fitsTrait("pins", [[1, 2], pin])).toBe(false);
  }
});
