// @vitest-environment jsdom
/** Pointing, clicking, dragging, scrolling and keys, as a person does it. */

import { describe, expect, test } from "vitest";
import type { Traits } from "../../src/contract/traits";
import { pressOn, settle, show } from "../helpers/page.ts";
import {
  asked,
  CAUSAL,
  factsOf,
  pictureOf,
  python,
  quantised,
  random,
  stateOf,
  tokensOf,
  weights,
  X,
} from "../helpers/states.ts";
import { useFakeTime } from "../helpers/timers.ts";

useFakeTime();

async function small(changes: Partial<Traits> = {}) {
  const state = stateOf(CAUSAL, changes);
  return show(
    state,
    python(state, () => CAUSAL),
  );
}

const CELLS = weights(64, 64, 5);

/** 64 × 64, each cell of the picture for 2 × 2. */
async function pooledView(changes: Partial<Traits> = {}, options = {}) {
  const state = stateOf(CELLS, { picture: quantised(CELLS, {}, 2), facts: factsOf(CELLS), ...changes });
  return show(state, {
    ...python(state, () => CELLS, { encode: (cells, of) => quantised(cells, of, 2) }),
    ...options,
  });
}
const POOLED: [number, number] = [32, 32];

/** Where the greatest of a bin of the pooled picture is. */
function peakIn(row: number, column: number) {
  let best = { query: 2 * row, key: 2 * column };
  for (const query of [2 * row, 2 * row + 1]) {
    for (const key of [2 * column, 2 * column + 1]) {
      if (CELLS[query]![key]! > CELLS[best.query]![best.key]!) best = { query, key };
    }
  }
  return best;
}

describe("a click", () => {
  test("on a cell sets query and key, in one message", async () => {
    const { view, host } = await small();
    await view.click(2, 1);
    expect(host.saved).toEqual([{ query: 2, key: 1 }]);
    expect(view.all(".aw-ring[data-pinned]")).toHaveLength(1);
    expect(view.all(".aw-rule")).toHaveLength(4);
    expect(view.all(".aw-label.aw-pill").map((label) => label.title)).toEqual(["lent", "bank"]);
  });

  test("on the pinned cell frees it", async () => {
    const { view, host } = await small();
    await view.click(2, 1);
    await view.click(2, 1);
    expect(host.saved[1]).toEqual({ query: null, key: null });
    expect(view.all(".aw-ring[data-pinned], .aw-rule, .aw-pill")).toHaveLength(0);
  });

  test("on another cell moves the pin", async () => {
    const { view, host } = await small({ query: 3, key: 3 });
    await view.click(1, 0);
    expect(host.saved).toEqual([{ query: 1, key: 0 }]);
  });

  test("on a masked cell pins it, and says that it is masked", async () => {
    const { view } = await small();
    await view.click(0, 3);
    expect(view.status).toMatch(/^the 0 → money 3 masked/);
    expect(view.find("[aria-live]").textContent).toBe("query 0 the, key 3 money, masked");
  });

  test("is spoken to those who hear it", async () => {
    const { view } = await small();
    await view.click(2, 1);
    expect(view.find("[aria-live=polite]").textContent).toBe("query 2 lent, key 1 bank, weight .3000");
    expect(view.canvas.getAttribute("aria-label")).toBe("Attention weights, layer 0, head 0, 4 queries by 4 keys");
    expect([view.canvas.getAttribute("role"), view.canvas.tabIndex]).toEqual(["application", 0]);
  });

  test("that trembles by two pixels is a click all the same", async () => {
    const { view, host } = await small();
    const { x, y } = view.at(2, 1);
    await view.drag({ x, y }, { x: x + 2, y: y + 1 }, 2);
    expect(host.saved).toEqual([{ query: 2, key: 1 }]);
  });
});

describe("a click on a label", () => {
  test("pins the row alone, and again frees it", async () => {
    const { view, host } = await small();
    const label = () => view.all("button.aw-label").find(({ title }) => title === "lent")!;
    label().click();
    await settle();
    expect(host.saved).toEqual([{ query: 2 }]);
    expect(view.panel).toMatch(/^lent attends to/);
    expect(view.status).toMatch(/^query lent 2/);
    expect(view.all(".aw-rule")).toHaveLength(2);
    label().click();
    expect(host.saved[1]).toEqual({ query: null });
  });

  test("of a key pins the column alone: the panel turns round", async () => {
    const { view, host } = await small({ query: 1, key: 1 });
    view
      .all("button.aw-label")
      .filter(({ title }) => title === "the")[1]!
      .click();
    await settle();
    expect(host.saved).toEqual([{ query: null, key: 0 }]);
    expect(view.panel).toMatch(/^the is attended to by 0 the 1\.0000 2 lent \.5000 1 bank \.2500 3 money \.1000/);
    expect(view.panel).toContain("Mean over 4 queries .4625");
  });

  test("of the pinned key frees it", async () => {
    const { view, host } = await small({ key: 2 });
    expect(view.panel).toMatch(/^lent is attended to by/);
    view
      .all("button.aw-label")
      .filter(({ title }) => title === "lent")[1]!
      .click();
    expect(host.saved).toEqual([{ key: null }]);
    expect(view.panel).toMatch(/^Point at a row/);
  });

  test("of the row of a pinned cell pins the row alone", async () => {
    const { view, host } = await small({ query: 2, key: 1 });
    view
      .all("button.aw-label")
      .find(({ title }) => title === "lent")!
      .click();
    expect(host.saved).toEqual([{ key: null }]);
    expect(view.panel).toMatch(/^lent attends to/);
  });

  test("pointing at it previews its row; leaving ends that", async () => {
    const { view } = await small();
    const label = view.all("button.aw-label").find(({ title }) => title === "money")!;
    label.dispatchEvent(new PointerEvent("pointerenter"));
    expect(view.panel).toMatch(/^money attends to/);
    label.dispatchEvent(new PointerEvent("pointerleave"));
    expect(view.panel).toMatch(/^Point at a row/);
  });
});

describe("pointing", () => {
  test("previews number, row and labels, and moves nothing", async () => {
    const { view, host } = await small();
    const sizes = () =>
      view
        .all("[data-aw], .aw-figure, .aw-plot")
        .map(({ style }) => [style.width, style.height, style.left, style.top]);
    const before = sizes();
    await view.hover(3, 2);
    expect(view.status).toMatch(/^money 3 → lent 2 weight 0\.300000/);
    expect(view.panel).toMatch(/^money attends to/);
    expect(view.all(".aw-ring:not([data-pinned])")).toHaveLength(1);
    expect(view.all("[data-hovered]").map(({ title }) => title)).toEqual(["money", "lent"]);
    expect(sizes()).toEqual(before);
    expect(host.saved).toEqual([]);
  });

  test("elsewhere leaves the pinned row in the panel", async () => {
    const { view } = await small({ query: 2, key: 1 });
    await view.hover(3, 0);
    expect(view.panel).toMatch(/^lent attends to/);
    expect(view.status).toContain("money 3 → the 0");
    view.leave();
    expect(view.status).toContain("lent 2 → bank 1");
  });

  test("with nothing pinned and no pointer the panel says what to do, and the strongest link, which a click pins", async () => {
    const { view } = await small();
    const said =
      /^Point at a row to see its keys\. Click to pin it\.\s*Apart from the0, lent2 looks most at bank1, \.30$/;
    expect(view.panel).toMatch(said);
    await view.hover(1, 1);
    view.leave();
    expect(view.panel).toMatch(said);
    view.all(".aw-link-said")[0]!.click();
    await view.hover(3, 2);
    view.leave();
    expect(view.status).toMatch(/^lent 2 → bank 1/);
  });

  test("with a finger previews nothing: a tap pins", async () => {
    const { view } = await small();
    view.point(view.at(2, 2), "touch");
    expect(view.all(".aw-ring")).toHaveLength(0);
  });

  test("a readout stands beside the pointer only where cells carry no numbers", async () => {
    const wide = await small();
    await wide.view.hover(1, 1);
    expect(wide.view.all(".aw-readout")).toHaveLength(0);
    const cells = weights(40, 40);
    const { view } = await show(stateOf(cells));
    await view.hover(7, 9, [40, 40]);
    expect(view.text(".aw-readout")).toContain(cells[7]![9]!.toFixed(4).replace("0.", "."));
  });
});

describe("a picture whose cells stand for several", () => {
  test("pointing says which, their greatest number and where it is", async () => {
    const { view, host } = await pooledView();
    await view.hover(3, 5, POOLED);
    const { query, key } = peakIn(3, 5);
    const value = CELLS[query]![key]!;
    expect(view.status).toContain(`queries 6–7 → keys 10–11 maximum ${value.toFixed(6)} at query ${query}, key ${key}`);
    expect(asked(host.sent, "peak")[0]).toMatchObject({ queries: [6, 8], keys: [10, 12] });
    expect(view.panel).toMatch(new RegExp(`query ${query} attends to`));
  });

  test("a click pins the greatest that the kernel names", async () => {
    const { view, host } = await pooledView();
    const { query, key } = peakIn(9, 20);
    await view.click(9, 20, POOLED);
    expect(host.saved).toEqual([{ query, key }]);
    await view.click(9, 20, POOLED);
    expect(host.saved[1]).toEqual({ query: null, key: null });
  });

  test("a click after pointing asks nothing twice", async () => {
    const { view, host } = await pooledView();
    await view.hover(9, 20, POOLED);
    await view.click(9, 20, POOLED);
    const { query, key } = peakIn(9, 20);
    expect(host.saved).toEqual([{ query, key }]);
    expect(asked(host.sent, "peak").filter(({ queries }) => `${queries}` === "18,20")).toHaveLength(1);
  });

  test("without a kernel a click pins the first cell of the bin", async () => {
    const { view, host } = await pooledView({}, { dead: true });
    await view.click(9, 20, POOLED);
    expect(host.saved).toEqual([{ query: 18, key: 40 }]);
  });

  test("if Python cannot say, too", async () => {
    const answer = () => {
      throw new Error("out of memory");
    };
    const { view, host } = await pooledView({}, { answer });
    await view.click(9, 20, POOLED);
    expect(host.saved).toEqual([{ query: 18, key: 40 }]);
  });

  test("a bin of nothing but masked cells says so", async () => {
    const cells = CELLS.map((row, query) => row.map((value, key) => (key > query ? X : value)));
    const state = stateOf(cells, { picture: quantised(cells, {}, 2), facts: factsOf(cells) });
    const { view } = await show(
      state,
      python(state, () => cells),
    );
    await view.hover(0, 30, POOLED);
    expect(view.status).toContain("queries 0–1 → keys 60–61 all masked");
  });

  test("arrow keys move by a whole cell of the picture", async () => {
    const { view, host } = await pooledView({ query: 20, key: 30 });
    await view.press("ArrowDown");
    await view.press("ArrowLeft");
    expect(host.saved).toEqual([{ query: 22 }, { key: 28 }]);
  });

  test("the first wheel without Ctrl says how to zoom, once, for a while", async () => {
    const { view } = await pooledView();
    await view.wheel(40);
    expect(view.text(".aw-hint")).toBe("Ctrl + scroll to zoom");
    await settle(3000);
    expect(view.all(".aw-hint")).toHaveLength(0);
    await view.wheel(40);
    expect(view.all(".aw-hint")).toHaveLength(0);
  });
});

describe("a quantised picture of 300 × 300", () => {
  const cells = weights(300, 300, 3);
  const shape: [number, number] = [300, 300];
  async function quantisedView() {
    const state = stateOf(cells, { picture: quantised(cells), facts: factsOf(cells) });
    return show(
      state,
      python(state, () => cells),
      { width: 1200 },
    );
  }

  test("pointing asks the kernel for the exact number", async () => {
    const { view, host } = await quantisedView();
    await view.hover(17, 202, shape);
    expect(asked(host.sent, "peak")).toMatchObject([{ queries: [17, 18], keys: [202, 203], stage: "weights" }]);
    const value = cells[17]![202]!;
    expect(view.status).toContain(
      `query 17 → key 202 weight ${value < 1e-4 ? value.toExponential(3).replace("-", "−") : value.toFixed(6)}`,
    );
  });

  test("zoomed until numbers fit, the window in view is asked for once, and its numbers are drawn", async () => {
    const { view, host } = await quantisedView();
    expect(asked(host.sent, "cells")).toHaveLength(0);
    for (let step = 0; step < 12 && !asked(host.sent, "cells").length; step++) {
      await view.wheel(-60, { ctrlKey: true }, view.at(0, 0, shape));
    }
    await settle();
    const requests = asked(host.sent, "cells");
    expect(requests).toHaveLength(1);
    const [start, stop] = requests[0]!.queries as [number, number];
    expect(start).toBe(0);
    expect(stop - start).toBeGreaterThan(10);
    expect(stop - start).toBeLessThan(40);
    await settle(500);
    expect(asked(host.sent, "cells")).toHaveLength(1);
  });
});

describe("the wheel", () => {
  test("alone scrolls the notebook: nothing is prevented, nothing zooms", async () => {
    const { view } = await show(stateOf(weights(40, 40)));
    expect(await view.wheel(120)).toBe(false);
    expect(await view.wheel(-120, { shiftKey: true })).toBe(false);
    expect(await view.wheel(-120)).toBe(false);
    expect(view.isZoomed).toBe(false);
    expect(view.all(".aw-hint")).toHaveLength(0);
  });

  test.each([{ ctrlKey: true }, { metaKey: true }])("with %o zooms in and out around the pointer", async (keys) => {
    const cells = weights(40, 40);
    const { view } = await show(stateOf(cells));
    const place = view.at(30, 10, [40, 40]);
    view.point(place);
    await settle();
    const { status, pixels } = view;
    expect(status).toContain("query 30 → key 10");
    expect(await view.wheel(-100, keys, place)).toBe(true);
    expect(view.isZoomed).toBe(true);
    expect(view.pixels).not.toBe(pixels);
    view.point(place);
    await settle();
    expect(view.status).toBe(status);
    for (let step = 0; step < 5; step++) await view.wheel(100, keys, place);
    expect(view.isZoomed).toBe(false);
    expect(view.pixels).toBe(pixels);
  });

  test("with Ctrl never zooms the whole page, also where the picture is at its largest or smallest", async () => {
    const { view } = await small();
    expect(await view.wheel(-100, { ctrlKey: true })).toBe(true);
    expect(await view.wheel(100, { ctrlKey: true })).toBe(true);
    expect(view.isZoomed).toBe(false);
  });

  test("does not zoom beyond the largest cell", async () => {
    const cells = weights(40, 40);
    const { view } = await show(stateOf(cells));
    for (let step = 0; step < 20; step++) await view.wheel(-300, { ctrlKey: true }, { x: 0, y: 0 });
    view.point({ x: 43, y: 43 });
    await settle();
    expect(view.status).toContain("query 0 → key 0");
    view.point({ x: 45, y: 45 });
    await settle();
    expect(view.status).toContain("query 1 → key 1");
  });
});

describe("a drag", () => {
  const cells = weights(40, 40);
  const zoomed = async () => {
    const shown = await show(stateOf(cells));
    await shown.view.wheel(-100, { ctrlKey: true }, { x: 100, y: 100 });
    await shown.view.wheel(-100, { ctrlKey: true }, { x: 100, y: 100 });
    return shown;
  };

  test("pans a zoomed picture, and is not taken for a click", async () => {
    const { view, host } = await zoomed();
    const { pixels } = view;
    view.point({ x: 100, y: 100 });
    await settle();
    const { status } = view;
    await view.drag({ x: 100, y: 100 }, { x: 60, y: 70 });
    expect(view.pixels).not.toBe(pixels);
    view.point({ x: 60, y: 70 });
    await settle();
    expect(view.status).toBe(status);
    expect(host.saved).toEqual([]);
  });

  test("of a whole picture moves nothing and pins nothing", async () => {
    const { view, host } = await small();
    const { pixels } = view;
    await view.drag(view.at(0, 0), view.at(2, 2));
    expect(view.pixels).toBe(pixels);
    expect(host.saved).toEqual([]);
  });

  test("never shows what lies outside the matrix", async () => {
    const { view } = await zoomed();
    await view.drag({ x: 10, y: 10 }, { x: 900, y: 900 });
    view.point({ x: 1, y: 1 });
    await settle();
    expect(view.status).toContain("query 0 → key 0");
  });

  test("a double-click shows the whole again", async () => {
    const { view } = await zoomed();
    view.mouse("dblclick", { x: 50, y: 50 });
    await settle();
    expect(view.isZoomed).toBe(false);
  });
});

test("a picture of another size is seen whole", async () => {
  const cells = weights(40, 40);
  const { view, host } = await show(stateOf(cells));
  await view.wheel(-100, { ctrlKey: true });
  expect(view.isZoomed).toBe(true);
  host.fromPython({ head: 1, picture: pictureOf(weights(40, 40, 9), { head: 1 }) });
  await settle();
  expect(view.isZoomed).toBe(true);
  const other = weights(30, 30);
  host.fromPython({ layer: 1, facts: factsOf(other), picture: pictureOf(other, { layer: 1, head: 1 }) });
  await settle();
  expect(view.isZoomed).toBe(false);
});

describe("keys on the picture", () => {
  test.each([
    ["ArrowDown", {}, { query: 21 }],
    ["ArrowUp", {}, { query: 19 }],
    ["ArrowRight", {}, { key: 31 }],
    ["ArrowLeft", {}, { key: 29 }],
    ["ArrowDown", { shiftKey: true }, { query: 30 }],
    ["ArrowUp", { shiftKey: true }, { query: 10 }],
    ["ArrowRight", { shiftKey: true }, { key: 39 }],
    ["ArrowLeft", { shiftKey: true }, { key: 20 }],
    ["Home", {}, { key: 0 }],
    ["End", {}, { key: 39 }],
    ["Escape", {}, { query: null, key: null }],
    ["]", {}, { head: 2 }],
    ["[", {}, { head: 0 }],
    ["}", {}, { layer: 2 }],
    ["{", {}, { layer: 0 }],
  ])("%s %o", async (key, init, expected) => {
    const cells = weights(40, 40);
    const facts = factsOf(cells, { layers: ["a", "b", "c"] });
    const { view, host } = await show(stateOf(cells, { query: 20, key: 30, head: 1, layer: 1, facts }));
    expect(await view.press(key, init)).toEqual({ prevented: true, escaped: false });
    expect(host.saved).toEqual([expected]);
  });

  test("stop at the ends: first and last cell, head and layer", async () => {
    const { view, host } = await small({ query: 0, key: 3 });
    for (const key of ["ArrowUp", "ArrowRight", "[", "{"]) {
      expect(await view.press(key)).toEqual({ prevented: true, escaped: false });
    }
    expect(host.saved).toEqual([]);
    await view.press("ArrowDown", { shiftKey: true });
    expect(host.saved).toEqual([{ query: 3 }]);
  });

  test("with nothing pinned an arrow begins where the pointer is, else at the first cell", async () => {
    const { view, host } = await small();
    await view.press("ArrowDown");
    expect(host.saved).toEqual([{ query: 0, key: 0 }]);
    await view.press("Escape");
    await view.hover(2, 1);
    await view.press("ArrowDown");
    expect(host.saved.at(-1)).toEqual({ query: 2, key: 1 });
  });

  test("Enter and Space pin what is pointed at, and nothing where nothing is", async () => {
    const { view, host } = await small();
    expect(await view.press("Enter")).toEqual({ prevented: true, escaped: false });
    expect(host.saved).toEqual([]);
    await view.hover(2, 1);
    await view.press("Enter");
    expect(host.saved).toEqual([{ query: 2, key: 1 }]);
    await view.press(" ");
    expect(host.saved[1]).toEqual({ query: null, key: null });
  });

  test("+ − 0 zoom in, out and back", async () => {
    const { view } = await show(stateOf(weights(40, 40)));
    const { pixels } = view;
    await view.press("+");
    expect(view.isZoomed).toBe(true);
    await view.press("-");
    expect(view.pixels).toBe(pixels);
    await view.press("=");
    await view.press("+");
    await view.press("0");
    expect(view.isZoomed).toBe(false);
  });

  test("a zoomed picture follows the pin", async () => {
    const { view } = await show(stateOf(weights(40, 40), { query: 0, key: 0 }));
    for (let step = 0; step < 8; step++) await view.press("+");
    await view.press("End");
    for (let step = 0; step < 4; step++) await view.press("ArrowDown", { shiftKey: true });
    const { width, height } = view.canvas.getBoundingClientRect();
    view.point({ x: width - 2, y: height - 2 });
    await settle();
    expect(view.status).toContain("query 39 → key 39");
    const [, x] = /translate\(([-\d.]+)px/.exec(view.find(".aw-ring[data-pinned]").style.transform)!;
    expect(Number(x)).toBeLessThan(width);
  });

  test("that mean nothing here do nothing, and do not reach the notebook", async () => {
    const { view, host } = await small();
    for (const key of ["a", "b", "x", "PageDown", "Delete", "Backspace", "é"]) {
      expect(await view.press(key), key).toEqual({ prevented: false, escaped: false });
    }
    for (const key of ["Tab", "F5", "Escape"]) {
      expect(await view.press(key), key).toEqual({ prevented: false, escaped: true });
    }
    expect(host.saved).toEqual([]);
  });

  test.each(["ctrlKey", "metaKey", "altKey"])("with %s go on to the notebook", async (modifier) => {
    const { view, host } = await small({ query: 1, key: 1 });
    for (const key of ["ArrowDown", "Enter", "Home", "0", "+", "]", "Escape"]) {
      expect(await view.press(key, { [modifier]: true }), key).toEqual({ prevented: false, escaped: true });
    }
    expect(host.saved).toEqual([]);
  });

  test("that walk at random end where they say", async () => {
    const { view, host } = await small({ query: 1, key: 1 });
    const next = random(11);
    let [query, key] = [1, 1];
    for (let step = 0; step < 60; step++) {
      const down = next() < 0.5;
      const by = next() < 0.5 ? -1 : 1;
      await view.press(down ? (by > 0 ? "ArrowDown" : "ArrowUp") : by > 0 ? "ArrowRight" : "ArrowLeft");
      if (down) query = Math.max(0, Math.min(3, query + by));
      else key = Math.max(0, Math.min(3, key + by));
    }
    expect(host.saved.reduce((all, one) => Object.assign(all, one), {})).toMatchObject({ query, key });
    expect(view.all(".aw-pill.aw-label").length).toBe(2);
  });
});

describe("groups are one Tab stop each", () => {
  test("arrows, Home and End walk heads and layers, and stop there", async () => {
    const { view, host } = await small();
    for (const name of ["Head", "Layer"]) {
      expect(view.all(`[aria-label=${name}] [tabindex="0"]`)).toHaveLength(1);
    }
    const chosen = () => view.find("[aria-label=Head] [aria-checked=true]");
    expect(await pressOn(chosen(), "ArrowRight")).toEqual({ prevented: true, escaped: false });
    expect(view.head).toBe("head 1");
    expect(document.activeElement).toBe(chosen());
    await pressOn(chosen(), "End");
    expect(view.head).toBe("head 3");
    await pressOn(chosen(), "ArrowRight");
    expect(view.head).toBe("head 3");
    await pressOn(chosen(), "Home");
    expect(view.head).toBe("head 0");
    expect(await pressOn(chosen(), "a")).toEqual({ prevented: false, escaped: false });
    expect(host.saved.map(({ head }) => head)).toEqual([1, 3, 0]);
  });

  test("keys typed into a field stay there", async () => {
    const { view } = await small({
      facts: factsOf(CAUSAL, { layers: Array.from({ length: 20 }, (_, at) => `${at}`) }),
    });
    expect((await pressOn(view.find("input"), "5")).escaped).toBe(false);
  });
});

test("repeated tokens keep apart what is pinned by their position", async () => {
  const tokens = tokensOf(["bank", "the", "bank", "lent"]);
  const { view } = await small({ tokens, key_tokens: tokens });
  await view.click(2, 0);
  expect(view.status).toMatch(/^bank 2 → bank 0/);
  expect(view.text(".aw-panel-head")).toBe("bank2 attends to");
});
