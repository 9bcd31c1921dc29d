// @vitest-environment jsdom
/** A long head in a page: from the whole to single cells, and what is said of it meanwhile. */

import { describe, expect, test, vi } from "vitest";
import type { TileAddress } from "../../src/contract/messages";
import type { Traits } from "../../src/contract/traits";
import type { HostOptions } from "../../src/kernel/host";
import { HIGH, longHead, weightAt } from "../helpers/long-head.ts";
import { pressOn, real, type Shown, settle, show } from "../helpers/page.ts";
import { media } from "../helpers/setup.ts";
import { asked } from "../helpers/states.ts";
import { useFakeTime } from "../helpers/timers.ts";

useFakeTime();

const head = longHead(4096);
const OF = { layer: 0, batch: 0, head: 0, stage: "weights", pool: "max", version: 0 } as const;

async function long(changes: Partial<Traits> = {}, options: HostOptions = {}, width = 1200) {
  const state = head.state({ tokens: head.tokens(), key_tokens: head.tokens(), ...changes });
  return show(state, { answer: head.answer, ...options }, { width });
}

/** Magnify around a share of the picture, as far as `steps` of the wheel lead. */
async function zoom({ view }: Shown, steps: number, x = 0.5, y = 0.5): Promise<void> {
  const { width, height } = view.canvas.getBoundingClientRect();
  const place = { clientX: x * width, clientY: y * height, view: real };
  for (let step = 0; step < steps; step++) {
    view.canvas.dispatchEvent(new WheelEvent("wheel", { deltaY: -60, ctrlKey: true, cancelable: true, ...place }));
  }
  await settle(200);
}
const ticks = ({ view }: Shown) => view.all("span.aw-label[data-tick]").map((tick) => tick.textContent ?? "");
const facts = ({ view }: Shown) => view.text(".aw-minimap-facts");
const map = ({ view }: Shown) => view.find("[data-aw=minimap]");

describe("zooming into a long head", () => {
  test("asks for tiles of ever finer levels, down to single cells with their numbers", async () => {
    const shown = await long();
    expect(asked(shown.host.sent, "tiles")).toHaveLength(0);
    for (let step = 0; step < 7; step++) await zoom(shown, 3);
    const levels = asked(shown.host.sent, "tiles").map(({ tiles }) => (tiles as TileAddress[])[0]!.slice(0, 2).join());
    expect([...new Set(levels)]).toEqual(["2,2", "1,1", "0,0"]);
    const views = new Set(asked(shown.host.sent, "tiles").map(({ view }) => view));
    expect(views.size).toBe(1);
    const cells = asked(shown.host.sent, "cells").at(-1)!;
    const [start, stop] = cells.queries as [number, number];
    expect([start % 16, stop % 16]).toEqual([0, 0]);
    expect(start).toBeLessThanOrEqual(2048);
    expect(stop).toBeGreaterThan(2048);
  });

  test("goes by the cells that are drawn: pointing, pinning, arrow keys, the legend", async () => {
    const shown = await long();
    const { view, host } = shown;
    expect(view.legend).toContain("each pixel: the maximum of 8 × 8 cells");
    const { width, height } = view.canvas.getBoundingClientRect();
    const middle = { x: width / 2, y: height / 2 };
    view.point(middle);
    await settle();
    expect(view.status).toContain("queries 2,048–2,055 → keys 2,048–2,055");
    await zoom(shown, 6);
    expect(view.legend).toContain("the maximum of 2 × 2 cells");
    expect(view.status).toContain("queries 2,048–2,049 → keys 2,048–2,049");
    await view.press("ArrowDown");
    await view.press("ArrowDown");
    expect(host.saved.at(-1)).toEqual({ query: 2050 });
    await view.press("Escape");
    await zoom(shown, 14);
    expect(view.legend).not.toContain("maximum of");
    await view.drag(middle, middle);
    const pinned = host.saved.at(-1)!;
    view.leave();
    expect(view.all(".aw-ring[data-pinned]")).toHaveLength(1);
    await view.press("ArrowRight");
    expect(host.saved.at(-1)).toMatchObject({ key: pinned.key! + 1 });
    expect(view.status).toContain(weightAt(pinned.query!, pinned.key! + 1).toFixed(6));
  });

  test("a click pins the cell that is ringed, though it comes rounded to whole pixels", async () => {
    const shown = await long();
    const { view, host } = shown;
    view.point({ x: 100.49, y: 300.02 });
    await settle();
    const { queries, keys } = asked(host.sent, "peak").at(-1)! as unknown as Record<string, [number, number]>;
    for (const type of ["mousedown", "mouseup", "click"]) view.mouse(type, { x: 101, y: 300 });
    await settle();
    const { query, key } = host.saved.at(-1)!;
    expect(query).toBeGreaterThanOrEqual(queries![0]);
    expect(query).toBeLessThan(queries![1]);
    expect(key).toBeGreaterThanOrEqual(keys![0]);
    expect(key).toBeLessThan(keys![1]);
  });

  test("the same size of widget and picture all the way: nothing jumps", async () => {
    const shown = await long();
    const sizes = () => shown.view.all(".aw-figure, .aw-plot").map(({ style }) => style.cssText);
    const before = sizes();
    await zoom(shown, 20);
    expect(sizes()).toEqual(before);
  });

  test("a double-click or 0 shows the whole again, as it was", async () => {
    const shown = await long();
    const { pixels } = shown.view;
    await zoom(shown, 9, 0.3, 0.8);
    expect(shown.view.pixels).not.toBe(pixels);
    await shown.view.press("0");
    expect(shown.view.pixels).toBe(pixels);
    expect(shown.view.isZoomed).toBe(false);
  });

  test("without a kernel the picture is magnified, and nothing is asked twice", async () => {
    const shown = await long({}, { dead: true });
    await zoom(shown, 12);
    expect(shown.view.isZoomed).toBe(true);
    expect(shown.view.notices).toContain("The kernel is gone");
    expect(shown.host.sent).toHaveLength(0);
    const [red, green, blue, alpha] = shown.view.pixel(100, 100);
    expect([red! + green! + blue! > 0, alpha]).toEqual([true, 255]);
  });

  test("tiles that come later are drawn when they come; those of other tensors are not", async () => {
    const answer = (request: Parameters<typeof head.answer>[0]) =>
      request.kind === "tiles" ? { tiles: [] } : head.answer(request);
    const shown = await long({ color_scale: "log" }, { answer });
    await zoom(shown, 12);
    const { tiles } = asked(shown.host.sent, "tiles").at(-1)!;
    const before = shown.view.pixels;
    const messages = (tiles as TileAddress[]).map((address) => head.tile(address));
    shown.host.tell({ tiles: messages, of: { ...OF, version: 7, view: "view" } });
    await settle(200);
    expect(shown.view.pixels).toBe(before);
    shown.host.tell({ tiles: messages, of: { ...OF, view: "view" } });
    await settle(200);
    expect(shown.view.pixels).not.toBe(before);
  });

  test("a sampled tile is said in the legend, and its row by the pointer, until the exact one is there", async () => {
    const answer = (request: Parameters<typeof head.answer>[0]) =>
      request.kind === "tiles"
        ? { tiles: (request.tiles as TileAddress[]).map((address) => head.tile(address, { every: 4 })) }
        : head.answer(request);
    const shown = await long({}, { answer });
    await zoom(shown, 4);
    expect(shown.view.legend).toContain("1 of 4 rows");
    const { width, height } = shown.view.canvas.getBoundingClientRect();
    shown.view.point({ x: width / 4, y: height / 4 });
    await settle();
    expect(shown.view.text(".aw-readout")).toMatch(/row [\d,]+ stands for 4 ?keys [\d,]+–[\d,]+, maximum/);
    const peak = asked(shown.host.sent, "peak").at(-1)!;
    const [start, stop] = peak.queries as [number, number];
    expect(stop - start).toBe(1);
    const { tiles } = asked(shown.host.sent, "tiles").at(-1)!;
    shown.host.tell({
      tiles: (tiles as TileAddress[]).map((address) => head.tile(address)),
      of: { ...OF, view: "view" },
    });
    await settle(200);
    expect(shown.view.legend).not.toContain("rows");
  });

  test("the range grows with what tiles bring, and does not shrink when they go", async () => {
    const answer = (request: Parameters<typeof head.answer>[0]) =>
      request.kind === "tiles"
        ? { tiles: (request.tiles as TileAddress[]).map((address) => ({ ...head.tile(address), high: 0.95 })) }
        : head.answer(request);
    const shown = await long({ pool: "mean", picture: { ...head.picture(), pool: "mean" } }, { answer });
    expect(shown.view.legend).toContain(".8");
    await zoom(shown, 5);
    expect(shown.view.legend).toContain(".95");
    await shown.view.press("0");
    expect(shown.view.legend).toContain(".95");
  });
});

describe("labels of a long head", () => {
  test("whole: both ends and round positions; zoomed: only round ones, with thousands separators", async () => {
    const shown = await long();
    expect(ticks(shown)[0]).toBe("0");
    expect(ticks(shown)).toContain("4,095");
    await zoom(shown, 4, 0.7, 0.7);
    const positions = ticks(shown).map((text) => Number(text.replace(",", "")));
    expect(positions.length).toBeGreaterThan(3);
    for (const position of positions) expect(position % 64).toBe(0);
  });

  test("in single cells: tokens, and every fourth position beside them", async () => {
    const shown = await long();
    await zoom(shown, 20, 0.6, 0.6);
    const labels = shown.view.all("button.aw-label");
    expect(labels.length).toBeGreaterThan(10);
    for (const label of labels) expect(label.textContent).toMatch(/^a\d$/);
    const positions = ticks(shown).map((text) => Number(text.replace(",", "")));
    expect(positions.length).toBeGreaterThan(4);
    for (const position of positions) expect(position % 4).toBe(0);
    const [query] = labels.filter(({ style }) => style.right !== "");
    query!.click();
    expect(Object.keys(shown.host.saved.at(-1)!)).toContain("query");
  });

  test("without tokens the positions themselves are the labels, once", async () => {
    const shown = await long({ tokens: null, key_tokens: null });
    await zoom(shown, 20, 0.6, 0.6);
    expect(ticks(shown)).toEqual([]);
    for (const label of shown.view.all("button.aw-label")) expect(label.textContent).toMatch(/^\d,\d{3}$/);
  });
});

describe("a picture that becomes exact from the top", () => {
  const first = () => long({ picture: head.picture(0) });

  test("says how many rows each of its rows stands for, and at which line it is exact", async () => {
    const shown = await first();
    expect(shown.view.text(".aw-exact-to")).toBe("1 of 8 rows");
    shown.host.tell({ band: head.band(0, 256) });
    await settle();
    expect(shown.view.text(".aw-exact-to")).toBe("exact to here below: 1 of 8 rows");
    const line = () => Number.parseFloat(shown.view.find(".aw-exact-line").style.top);
    const { height } = shown.view.canvas.getBoundingClientRect();
    expect(line()).toBeCloseTo(height / 2, -1);
    shown.host.tell({ band: head.band(256, 400) });
    await settle();
    expect(line()).toBeCloseTo((height * 400) / 512, -1);
  });

  test("its exact rows are those of the exact picture; the others stay until they are computed", async () => {
    const shown = await first();
    const sampled = shown.view.pixels;
    const exact = await long();
    const whole = exact.view.pixels;
    shown.host.tell({ band: head.band(0, 512) });
    await settle();
    expect(sampled).not.toBe(whole);
    expect(shown.view.pixels).toBe(whole);
    expect(shown.view.text(".aw-exact-to")).toBe("");
  });

  test("the exact picture takes its place without a flash, where one has zoomed to", async () => {
    const shown = await first();
    await zoom(shown, 3, 0.3, 0.7);
    const before = facts(shown);
    const animate = vi.fn();
    shown.view.canvas.animate = animate as never;
    shown.host.fromPython({ picture: head.picture() });
    await settle();
    expect(facts(shown)).toBe(before);
    expect(animate).not.toHaveBeenCalled();
    expect(shown.view.all(".aw-ghost")).toHaveLength(0);
    expect(shown.view.text(".aw-exact-to")).toBe("");
  });

  test.each([
    ["of other tensors", head.band(0, 256, 9)],
    ["of another head", { ...head.band(0, 256), head: 1 }],
    ["beyond the picture", { ...head.band(0, 256), start: 300, stop: 556 }],
    ["of another width", { ...head.band(0, 256), values: longHead(2048).band(0, 128).values }],
    ["that cannot be read", { ...head.band(0, 256), values: { ...head.band(0, 256).values, dtype: "int8" } }],
    ["that says nothing", {}],
  ])("a band %s changes nothing", async (_, band) => {
    const shown = await first();
    const { pixels } = shown.view;
    shown.host.tell({ band });
    await settle();
    expect(shown.view.pixels).toBe(pixels);
    expect(shown.view.text(".aw-exact-to")).toBe("1 of 8 rows");
    shown.host.tell({ band: head.band(0, 8) });
    await settle();
    expect(shown.view.text(".aw-exact-to")).toContain("below");
  });

  test("a row that stands for several is read exactly, as the one query that it is", async () => {
    const shown = await first();
    const { view, host } = shown;
    const { width, height } = view.canvas.getBoundingClientRect();
    view.point({ x: (100.5 / 512) * width, y: (300.5 / 512) * height });
    await settle();
    expect(view.text(".aw-readout")).toMatch(
      /^\.\d+ row 2,400 stands for 8 ?keys 800–807, maximum; computing the rest$/,
    );
    expect(asked(host.sent, "peak").at(-1)).toMatchObject({ queries: [2400, 2401], keys: [800, 808] });
    host.tell({ band: head.band(0, 400) });
    await settle();
    view.point({ x: (100.5 / 512) * width, y: (300.6 / 512) * height });
    await settle();
    expect(view.text(".aw-readout")).toContain("queries 2,400–2,407");
  });

  test("its range grows with its bands", async () => {
    const shown = await long({ picture: { ...head.picture(0), high: 0.5 } });
    expect(shown.view.legend).toContain(".5");
    shown.host.tell({ band: head.band(0, 8) });
    await settle();
    expect(shown.view.legend).toContain(String(HIGH).slice(1));
  });
});

describe("the minimap", () => {
  test("is there while less than everything is in view, and says where one is", async () => {
    const shown = await long();
    expect(map(shown).hidden).toBe(true);
    await zoom(shown, 4);
    expect(map(shown).hidden).toBe(false);
    expect(facts(shown)).toMatch(/^Queries 1,[\d,]+ – 2,[\d,]+ Keys 1,[\d,]+ – 2,[\d,]+ Zoom 1 px = [\d.]+ cells$/);
    expect(map(shown).querySelector("[aria-label]")!.getAttribute("aria-label")).toMatch(/^Part in view: queries 1,/);
    await zoom(shown, 20);
    expect(facts(shown)).toContain("Zoom 1 cell = 44 px");
    await shown.view.press("0");
    expect(map(shown).hidden).toBe(true);
  });

  test("is not there for a picture that has all cells", async () => {
    const small = longHead(300);
    const shown = await show(small.state(), { answer: small.answer }, { width: 1200 });
    await zoom(shown, 4);
    expect(shown.view.isZoomed).toBe(true);
    expect(map(shown).hidden).toBe(true);
  });

  const drag = (target: HTMLElement, type: string, x: number, y: number) =>
    target.dispatchEvent(new PointerEvent(type, { clientX: x, clientY: y, pointerId: 1, button: 0, bubbles: true }));

  test("takes one to the place that is pressed, and follows while it is dragged", async () => {
    const shown = await long();
    await zoom(shown, 6);
    const target = map(shown).querySelector<HTMLElement>("[tabindex]")!;
    const side = Number.parseFloat(target.style.width);
    expect(side).toBeGreaterThan(100);
    expect(side).toBeLessThanOrEqual(132);
    drag(target, "pointerdown", side * 0.25, side * 0.75);
    await settle(400);
    const middle = () => {
      const [q0, q1, k0, k1] = [...facts(shown).matchAll(/[\d,]{3,}/g)].map(([text]) =>
        Number(text.replaceAll(",", "")),
      );
      return { query: (q0! + q1!) / 2, key: (k0! + k1!) / 2 };
    };
    expect(middle().query).toBeCloseTo(3072, -1.5);
    expect(middle().key).toBeCloseTo(1024, -1.5);
    drag(target, "pointermove", side * 0.5, side * 0.5);
    await settle(400);
    expect(middle().query).toBeCloseTo(2048, -1.5);
    drag(target, "pointerup", side * 0.5, side * 0.5);
    const released = facts(shown);
    drag(target, "pointermove", side * 0.1, side * 0.1);
    await settle(400);
    expect(facts(shown)).toBe(released);
  });

  test("moves by arrow keys, which stop there", async () => {
    const shown = await long();
    await zoom(shown, 6);
    const target = map(shown).querySelector<HTMLElement>("[tabindex]")!;
    const before = facts(shown);
    expect(await pressOn(target, "ArrowDown")).toEqual({ prevented: true, escaped: false });
    await settle(400);
    const after = facts(shown);
    expect(after).not.toBe(before);
    expect(after.replace(/Queries .* Keys/, "")).toBe(before.replace(/Queries .* Keys/, ""));
    expect(Number(/Queries ([\d,]+)/.exec(after)![1]!.replace(",", ""))).toBeGreaterThan(1900);
    expect((await pressOn(target, "a")).escaped).toBe(false);
  });
});

describe("going to a place", () => {
  const goTo = async (shown: Shown, text: string) => {
    const input = shown.view.find<HTMLInputElement>("input[data-aw=goto]");
    input.value = text;
    input.dispatchEvent(new Event("input", { bubbles: true }));
    await pressOn(input, "Enter");
    await settle(600);
  };

  test("/ leads to the field; from there to single cells that can be read, the place in the middle", async () => {
    const shown = await long();
    expect(await shown.view.press("/")).toEqual({ prevented: true, escaped: false });
    expect(document.activeElement).toBe(shown.view.find("input[data-aw=goto]"));
    await goTo(shown, "3000, 1000");
    expect(facts(shown)).toContain("Zoom 1 cell = 26 px");
    const { width, height } = shown.view.canvas.getBoundingClientRect();
    shown.view.point({ x: width / 2, y: height / 2 });
    await settle();
    expect(shown.view.status).toMatch(/a0 3,000 → a0 1,000/);
  });

  test("what is under a resting pointer is said anew where one arrives", async () => {
    const shown = await long();
    const { width, height } = shown.view.canvas.getBoundingClientRect();
    shown.view.point({ x: width / 2, y: height / 2 });
    await settle();
    expect(shown.view.status).toContain("queries 2,048–2,055");
    await goTo(shown, "3000, 1000");
    expect(shown.view.status).toMatch(/a0 3,000 → a0 1,000/);
  });

  test("takes 160 ms and asks nothing on the way; with less motion no time at all", async () => {
    const shown = await long();
    await goTo(shown, "3000, 1000");
    const levels = new Set(
      asked(shown.host.sent, "tiles").flatMap(({ tiles }) => (tiles as TileAddress[]).map(([level]) => level)),
    );
    expect([...levels]).toEqual([0]);
    media("(prefers-reduced-motion: reduce)", true);
    const still = await long();
    const input = still.view.find<HTMLInputElement>("input[data-aw=goto]");
    input.value = "3000, 1000";
    input.dispatchEvent(new Event("input", { bubbles: true }));
    await pressOn(input, "Enter");
    expect(facts(still)).toContain("Zoom 1 cell = 26 px");
  });

  test("a hand on the picture ends a flight", async () => {
    const shown = await long();
    const input = shown.view.find<HTMLInputElement>("input[data-aw=goto]");
    input.value = "3000, 1000";
    input.dispatchEvent(new Event("input", { bubbles: true }));
    input.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
    await settle(50);
    await shown.view.press("0");
    await settle(400);
    expect(shown.view.isZoomed).toBe(false);
  });

  test("of a head that shows all its tokens, the field floats over the picture until it is left", async () => {
    const small = longHead(40);
    const shown = await show(small.state(), { answer: small.answer });
    const { view, host } = shown;
    expect(view.all("input[data-aw=goto]")).toHaveLength(0);
    expect(await view.press("/")).toEqual({ prevented: true, escaped: false });
    expect(document.activeElement).toBe(view.find("input[data-aw=goto]"));
    await goTo(shown, "17");
    expect(host.saved.at(-1)).toEqual({ query: 17 });
    await pressOn(view.find("input[data-aw=goto]"), "Escape");
    expect(view.all("input[data-aw=goto]")).toHaveLength(0);
    expect(document.activeElement).toBe(view.canvas);
  });
});

test("a widget of another width keeps the place and its size", async () => {
  const shown = await long();
  await zoom(shown, 20, 0.6, 0.6);
  const before = facts(shown);
  const middle = (text: string) => {
    const [q0, q1] = [...text.matchAll(/[\d,]{3,}/g)].map(([found]) => Number(found.replace(",", "")));
    return (q0! + q1!) / 2;
  };
  const { resize } = await import("../helpers/setup.ts");
  resize(shown.view.root, 800);
  await settle();
  expect(facts(shown).split("Zoom")[1]).toBe(before.split("Zoom")[1]);
  expect(Math.abs(middle(facts(shown)) - middle(before))).toBeLessThanOrEqual(1);
});

test("another head of the same size is seen at the same place, in its own tiles", async () => {
  const shown = await long();
  await zoom(shown, 8);
  const before = facts(shown);
  shown.host.fromPython({ head: 1, heads: [1], picture: { ...head.picture(), head: 1 } });
  await settle(200);
  expect(facts(shown)).toBe(before);
  expect(asked(shown.host.sent, "tiles").at(-1)).toMatchObject({ head: 1 });
});
