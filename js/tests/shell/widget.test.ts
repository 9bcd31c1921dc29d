// @vitest-environment jsdom
/** The widget in the places that hosts put it into, with the kernels that they have. */

import { afterEach, beforeEach, describe, expect, onTestFinished, test, vi } from "vitest";
import type { Model, Traits } from "../../src/contract/traits";
import { contrast, parseColor } from "../../src/draw/color";
import { createHost, mount } from "../../src/kernel/host";
import widget from "../../src/widget";
import { paper, pressOn, real, settle, show, View } from "../helpers/page.ts";
import { resize } from "../helpers/setup.ts";
import {
  asked,
  CAUSAL,
  type Cells,
  factsOf,
  failed,
  pictureOf,
  python,
  quantised,
  stateOf,
  tokensOf,
  weights,
  X,
} from "../helpers/states.ts";
import { styleSheet } from "../helpers/style-sheet.ts";

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
  for (const { name } of [...document.body.attributes]) document.body.removeAttribute(name);
  document.documentElement.removeAttribute("style");
});

/** Four heads that differ: each attends to its own position. */
const HEADS: Cells[] = [
  CAUSAL,
  [
    [1, X, X, X],
    [0, 1, X, X],
    [0, 0, 1, X],
    [0, 0, 0, 1],
  ],
  [
    [1, X, X, X],
    [1, 0, X, X],
    [1, 0, 0, X],
    [1, 0, 0, 0],
  ],
  [
    [1, X, X, X],
    [0.5, 0.5, X, X],
    [0.25, 0.25, 0.5, X],
    [0.25, 0.25, 0.25, 0.25],
  ],
];
const headOf = ({ head }: { head: number }) => HEADS[head]!;

function started(changes: Partial<Traits> = {}, options: Parameters<typeof python>[2] = {}) {
  const state = stateOf(CAUSAL, changes);
  return { state, options: python(state, headOf, options) };
}

const LARGE = weights(300, 300);
const large = () => stateOf(LARGE, { picture: quantised(LARGE), facts: factsOf(LARGE) });

/** All canvases with pixels in them. */
const sizes = (view: View) => [view.canvas.width, view.canvas.height];

describe("a view that begins outside the page", () => {
  test("draws nothing at width 0, and its picture once it has a width", async () => {
    const { state, options } = started();
    const drawn = vi.spyOn(CanvasRenderingContext2DPrototype(), "roundRect");
    const el = document.createElement("div");
    onTestFinished((await mount(widget, el, state, options)).unmount);
    await settle(1000);
    expect(drawn).not.toHaveBeenCalled();
    const view = new View(el);
    document.body.append(el);
    await settle(1000);
    expect(drawn).not.toHaveBeenCalled();
    resize(view.root, 900);
    expect(sizes(view)).toEqual([176, 176]);
    expect(view.pixel(20, 20)[3]).toBe(255);
  });

  test("no canvas of size 0 is ever drawn from or left behind", async () => {
    const cells = weights(100, 100);
    const { view } = await show(stateOf(cells, { picture: quantised(cells) }), {}, { width: 0 });
    for (const width of [0, 700, 0, 320, 0]) {
      resize(view.root, width);
      await settle(); // drawing from an empty canvas throws
    }
    const sides = view.all<HTMLCanvasElement>("canvas").flatMap((canvas) => [canvas.width, canvas.height]);
    expect(sides.length).toBeGreaterThan(8);
    expect(Math.min(...sides)).toBeGreaterThan(0);
  });

  test("takes its theme from the place that it comes to", async () => {
    const { state, options } = started({ theme: "auto" });
    const el = document.createElement("div");
    onTestFinished((await mount(widget, el, state, options)).unmount);
    const view = new View(el);
    expect(view.root.dataset.theme).toBe("light");
    const dark = document.createElement("div");
    dark.style.background = "#111111";
    document.body.append(dark);
    dark.append(el);
    resize(view.root, 900);
    expect(view.root.dataset.theme).toBe("dark");
  });

  test("also where the host's own element is dark", async () => {
    const { state, options } = started({ theme: "auto" });
    const el = document.createElement("div");
    el.style.background = "#111111";
    document.body.append(el);
    onTestFinished((await mount(widget, el, state, options)).unmount);
    expect(new View(el).root.dataset.theme).toBe("dark");
  });
});

describe("two views of one widget", () => {
  test("have the same selection: a click in one shows in the other", async () => {
    const { state, options } = started();
    const { view: one, another, host } = await show(state, options);
    const { view: two } = await another(400);
    await one.click(2, 1);
    expect(host.saved).toEqual([{ query: 2, key: 1 }]);
    for (const view of [one, two]) expect(view.status).toMatch(/^lent 2 → bank 1 weight 0\.300000/);
    expect(two.panel).toMatch(/^lent attends to/);
    two.button("head 3").click();
    await settle();
    expect([one.head, two.head]).toEqual(["head 3", "head 3"]);
  });

  test("have each their own width and pointer", async () => {
    const { state, options } = started();
    const { view: one, another } = await show(state, options);
    const { view: two } = await another(400);
    expect([one.root.dataset.mode, two.root.dataset.mode]).toEqual(["beside", "narrow"]);
    await one.hover(3, 3);
    expect(one.status).toContain("money 3 → money 3");
    expect(two.status).not.toContain("money 3");
  });

  test("when one goes the other works on", async () => {
    const { state, options } = started();
    const { view: one, another } = await show(state, options);
    const { view: two, remove } = await another();
    await remove();
    expect(two.el.childNodes).toHaveLength(0);
    await one.click(1, 0);
    expect(one.status).toContain("bank 1 → the 0");
    one.button("head 1").click();
    await settle();
    expect(one.status).toContain("head 1");
  });

  test("when the first goes the second works on", async () => {
    const { state, options } = started();
    const host = createHost(state, options);
    const model = host.proxy();
    const whole = new AbortController();
    widget.initialize({ model, signal: whole.signal });
    const [one, two] = [document.createElement("div"), document.createElement("div")];
    const first = widget.render({ model: host.proxy(), el: one });
    onTestFinished(widget.render({ model: host.proxy(), el: two }));
    const view = new View(two);
    resize(view.root, 900);
    first();
    await settle();
    expect(one.childNodes).toHaveLength(0);
    await view.click(3, 0);
    expect(host.saved).toEqual([{ query: 3, key: 0 }]);
    whole.abort();
  });

  test("ask the kernel through one queue, though each has a model of its own", async () => {
    const state = large();
    const {
      view: one,
      another,
      host,
    } = await show(
      state,
      python(state, () => LARGE, { delay: 100 }),
      { width: 1000 },
    );
    const { view: two } = await another();
    const before = host.sent.length;
    one.point({ x: 100, y: 100 });
    two.point({ x: 200, y: 100 });
    await settle(50);
    expect(host.sent.length - before).toBe(1);
    await settle(300);
  });

  test("a view whose model has never been initialized draws all the same", async () => {
    const { state, options } = started();
    const el = document.createElement("div");
    document.body.append(el);
    const remove = widget.render({ model: createHost(state, options), el });
    const view = new View(el);
    resize(view.root, 900);
    await settle();
    expect(view.panel).toContain("Point at a row");
    expect(sizes(view)).toEqual([176, 176]);
    remove();
    expect(el.childNodes).toHaveLength(0);
  });
});

describe("a tab that goes to the back", () => {
  test("keeps its last picture at width 0", async () => {
    const { state, options } = started();
    const { view } = await show(state, options);
    const { pixels } = view;
    resize(view.root, 0);
    await settle(1000);
    expect(view.pixels).toBe(pixels);
    expect(view.root.dataset.mode).toBe("beside");
  });

  test("shows what has changed meanwhile when it comes back", async () => {
    const { state, options } = started();
    const { view, host } = await show(state, options);
    const { pixels } = view;
    resize(view.root, 0);
    host.fromPython({ head: 2, picture: pictureOf(HEADS[2]!, { head: 2 }), query: 3, key: 0 });
    await settle();
    resize(view.root, 900);
    await settle();
    expect(view.pixels).not.toBe(pixels);
    expect(view.status).toMatch(/^money 3 → the 0 weight 1\.000000/);
    resize(view.root, 400);
    expect(view.root.dataset.mode).toBe("narrow");
  });
});

describe("VS Code's white panel with pale text", () => {
  const sheet = styleSheet();
  /** A rule's own declarations, as the style sheet has them. */
  const rule = (selector: string) => {
    const at = sheet.indexOf(`${selector} {`);
    return at < 0 ? "" : sheet.slice(at, sheet.indexOf("}", at));
  };
  /** jsdom finds a variable's value but puts it nowhere: this does it by hand. */
  const used = (root: Element, name: string): string => {
    const value = getComputedStyle(root).getPropertyValue(name).trim();
    const inner = /^var\((--[\w-]+)(?:,\s*(.+))?\)$/.exec(value);
    return inner ? used(root, inner[1]!) || (inner[2] ?? "") : value;
  };

  test.each([
    ["vscode-dark", "dark", "#1f1f1f"],
    ["vscode-light", "light", "#fffffe"],
    ["vscode-high-contrast", "contrast", "#000001"],
    ["vscode-high-contrast-light", "contrast-light", "#fffffd"],
  ])("%s: the widget has its own page and its own ink", async (kind, theme, editor) => {
    const style = document.createElement("style");
    style.textContent = sheet;
    document.head.append(style);
    document.body.dataset.vscodeThemeKind = kind;
    document.body.style.cssText = "background: white; color: #ccc";
    document.documentElement.style.setProperty("--vscode-editor-background", editor);
    document.documentElement.style.setProperty("--jp-layout-color0", "white");
    const { state, options } = started({ theme: "auto" });
    const { view } = await show(state, options);
    expect([view.root.dataset.host, view.root.dataset.theme]).toEqual(["vscode", theme]);
    expect(used(view.root, "--aw-bg")).toBe(editor);
    const ink = parseColor(used(view.root, "--aw-ink"))!;
    expect(contrast(ink, parseColor(editor)!)).toBeGreaterThan(12);
    for (const gray of ["--aw-ink2", "--aw-ink3"]) {
      expect(contrast(parseColor(used(view.root, gray))!, parseColor(editor)!)).toBeGreaterThan(4.5);
    }
    style.remove();
  });

  test("neither page nor ink is ever left to the host", () => {
    expect(rule(".attnwidget")).toMatch(/\bbackground: var\(--aw-bg\);/);
    expect(rule(".attnwidget")).toMatch(/\n {2}color: var\(--aw-ink\);/);
    for (const theme of ["", '[data-theme="dark"]', '[data-theme="contrast"]']) {
      expect(rule(`.attnwidget${theme}`)).toMatch(/--aw-bg: #/);
      expect(rule(`.attnwidget${theme}`)).toMatch(/--aw-ink: #/);
    }
    expect(rule('.attnwidget[data-theme="contrast-light"]')).toMatch(/--aw-ink: #/);
  });

  test("a theme of one's own against the host's brings its own page", async () => {
    document.body.dataset.vscodeThemeKind = "vscode-dark";
    const { state, options } = started({ theme: "light" });
    const { view, host } = await show(state, options);
    expect([view.root.dataset.theme, view.root.hasAttribute("data-own-theme")]).toEqual(["light", true]);
    host.fromPython({ theme: "dark" });
    expect([view.root.dataset.theme, view.root.hasAttribute("data-own-theme")]).toEqual(["dark", false]);
  });

  test("a change of theme while it is shown repaints the picture", async () => {
    document.body.dataset.vscodeThemeKind = "vscode-light";
    const { state, options } = started({ theme: "auto" });
    const { view } = await show(state, options);
    const { pixels } = view;
    document.body.dataset.vscodeThemeKind = "vscode-dark";
    await settle(400);
    expect(view.root.dataset.theme).toBe("dark");
    expect(view.pixels).not.toBe(pixels);
  });

  test("a toolbar whose font grows after a change of theme folds again", async () => {
    document.body.dataset.vscodeThemeKind = "vscode-light";
    const { state, options } = started({ theme: "auto" });
    const { view } = await show(state, options, { width: 700 });
    const bar = view.find<HTMLElement>(".aw-toolbar");
    const menus = () => bar.querySelectorAll(".aw-controls .aw-menu").length;
    let size = 1; // of the font: the host's style sheet comes after its theme
    Object.defineProperty(bar, "offsetWidth", { get: () => Math.max(700, size * (500 + 60 * menus())) });
    const before = menus();
    document.body.dataset.vscodeThemeKind = "vscode-dark";
    await settle(400);
    expect(menus()).toBe(before);
    size = 1.2;
    resize(bar, bar.offsetWidth, 28);
    expect(menus()).toBeLessThan(before);
    expect(bar.offsetWidth).toBe(700);
  });

  test("a folded picture is repainted too", async () => {
    const cells = weights(512, 512);
    const state = stateOf(cells, { facts: factsOf(cells), theme: "auto" });
    document.body.dataset.vscodeThemeKind = "vscode-light";
    const { view } = await show(state, {}, { width: 400 });
    const before = view.pixel(3, 3);
    document.body.dataset.vscodeThemeKind = "vscode-dark";
    await settle(400);
    expect(view.pixel(3, 3)).not.toEqual(before);
  });
});

describe("inside marimo's shadow root", () => {
  async function shadowed(changes: Partial<Traits> = {}) {
    document.body.className = "light light-theme";
    const outer = document.createElement("div");
    document.body.append(outer);
    const root = outer.attachShadow({ mode: "open" });
    root.append(paper());
    const { state, options } = started(changes);
    return { outer, root, ...(await show(state, options, { into: root })) };
  }

  test("it draws, and a click pins", async () => {
    const { view, host } = await shadowed();
    expect(sizes(view)).toEqual([176, 176]);
    await view.click(3, 2);
    expect(host.saved).toEqual([{ query: 3, key: 2 }]);
    expect(view.panel).toMatch(/^money attends to/);
  });

  test("a menu opens, and closes on a click outside, in the shadow and beside it", async () => {
    const { view, outer, root } = await shadowed();
    for (const outside of [view.canvas, document.body, outer]) {
      view.button("Show weights").click();
      await settle();
      expect(view.all("[role=menu]")).toHaveLength(1);
      view
        .find(".aw-popup h4, .aw-popup span")
        .dispatchEvent(new PointerEvent("pointerdown", { bubbles: true, composed: true }));
      await settle();
      expect(view.all("[role=menu]")).toHaveLength(1);
      outside.dispatchEvent(new PointerEvent("pointerdown", { bubbles: true, composed: true }));
      await settle();
      expect(view.all("[role=menu]")).toHaveLength(0);
    }
    expect(root.contains(view.root)).toBe(true);
  });

  test("arrow keys walk an open menu, Esc closes it and gives the focus back", async () => {
    const { view, root } = await shadowed();
    view.button("Show weights").click();
    await settle();
    const focused = () => (root.activeElement as HTMLElement).textContent;
    expect(focused()).toBe("weights");
    await pressOn(root.activeElement as HTMLElement, "ArrowDown");
    expect(focused()).toBe("scores");
    const { escaped } = await pressOn(root.activeElement as HTMLElement, "Escape");
    expect([escaped, view.all("[role=menu]").length, focused()]).toEqual([false, 0, "Show weights"]);
  });

  test("keys on the picture work", async () => {
    const { view } = await shadowed({ query: 1, key: 1 });
    expect(await view.press("ArrowDown")).toEqual({ prevented: true, escaped: false });
    expect(view.status).toContain("lent 2 → bank 1");
  });
});

describe("bytes as hosts hand them over", () => {
  /** Somewhere inside a larger buffer, at an offset that fits no float. */
  const moved = (data: DataView, offset: number) => {
    const larger = new Uint8Array(data.byteLength + offset + 3).fill(0xee);
    larger.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), offset);
    return larger;
  };
  type As = (data: DataView) => unknown;
  const hand = (value: unknown, as: As): unknown => {
    if (value instanceof DataView) return as(value);
    if (Array.isArray(value)) return value.map((inner) => hand(inner, as));
    if (typeof value !== "object" || value === null) return value;
    return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, hand(inner, as)]));
  };

  test.each<[string, As]>([
    [
      "a DataView with an offset (Jupyter, VS Code, marimo)",
      (data) => new DataView(moved(data, 5).buffer, 5, data.byteLength),
    ],
    ["a Uint8Array with an offset (Colab)", (data) => moved(data, 7).subarray(7, 7 + data.byteLength)],
    ["an ArrayBuffer", (data) => moved(data, 0).buffer.slice(0, data.byteLength)],
  ])("%s: the same picture and the same words", async (_, as) => {
    const { state, options } = started({ query: 2, key: 1 });
    const plain = await show(state, options);
    const other = await show(hand({ ...state, uid: `${state.uid} again` }, as) as Traits, options);
    expect(other.view.pixels).toBe(plain.view.pixels);
    expect(other.view.text()).toBe(plain.view.text());
    expect(other.view.status).toMatch(/^lent 2 → bank 1 weight 0\.300000/);
  });

  test("answers of the kernel too", async () => {
    const state = large();
    const { answer } = python(state, () => LARGE);
    const offset = (request: never) =>
      hand(answer!(request), (data) => moved(data, 3).subarray(3, 3 + data.byteLength));
    const { view } = await show(state, { answer: offset as never }, { width: 1000 });
    view.point({ x: 10.5, y: 7.5 });
    await settle(200);
    const row = Number(/query (\d+)/.exec(view.panel)![1]);
    const greatest = Math.max(...LARGE[row]!);
    expect(view.panel).toContain(greatest.toFixed(4).replace("0.", "."));
  });
});

describe("a slow kernel", () => {
  test("a click on a head marks it at once; the last picture stays until its own comes", async () => {
    const { state, options } = started({}, { delay: 300 });
    const { view, host } = await show(state, options);
    const { pixels } = view;
    view.button("head 2").click();
    expect(view.head).toBe("head 2");
    expect(host.saved).toEqual([{ head: 2 }]);
    await settle(250);
    expect(view.pixels).toBe(pixels);
    expect(view.status).toContain("head 0");
    await settle(150);
    expect(view.pixels).not.toBe(pixels);
    expect(view.status).toContain("head 2");
    expect(view.notices).toBe("");
  });

  test("after 400 ms it is said, and no longer when the picture comes; meanwhile pins work", async () => {
    const { state, options } = started({}, { delay: 2000 });
    const { view } = await show(state, options);
    view.button("head 1").click();
    await settle(380);
    expect(view.status).not.toContain("Waiting");
    await settle(40);
    expect(view.status).toContain(
      "Waiting for the kernel You still see layer 0 · head 0. You can still hover, zoom and pin.",
    );
    expect(view.notices).toBe(""); // which would move what stands below
    await view.click(1, 1);
    expect(view.status).toContain("bank 1 → bank 1 weight 0.750000");
    await settle(1700);
    expect(view.status).not.toContain("Waiting");
    expect(view.status).toContain("weight 1.000000");
  });

  test("quick clicks through heads end on the last, and none between is drawn", async () => {
    const { state, options } = started({}, { delay: 150 });
    const { view } = await show(state, options);
    const seen = new Set([view.pixels]);
    for (const head of [1, 2, 3]) {
      view.button(`head ${head}`).click();
      await settle(20);
      seen.add(view.pixels);
    }
    for (let time = 0; time < 20; time++) {
      await settle(50);
      seen.add(view.pixels);
    }
    expect(view.head).toBe("head 3");
    expect(view.status).toContain("head 3");
    expect(seen.size).toBe(2);
    expect(view.notices).toBe("");
  });

  test("a picture of another head that comes late does not overwrite", async () => {
    const { state } = started();
    const { view, host } = await show(state, { answer: () => ({}) });
    host.fromPython({ head: 3, picture: pictureOf(HEADS[3]!, { head: 3 }) });
    await settle();
    const { pixels } = view;
    host.fromPython({ picture: pictureOf(HEADS[1]!, { head: 1 }) });
    await settle();
    expect(view.pixels).toBe(pixels);
    expect(view.status).toContain("head 3");
  });
});

describe("a dead kernel", () => {
  test("is said; hover, pin and zoom work on the picture that is there", async () => {
    const { state, options } = started();
    const { view, host } = await show(state, options);
    const { pixels } = view;
    host.dead = true;
    view.button("head 2").click();
    await settle(500);
    expect(view.notices).toMatch(/^The kernel is gone You see the last picture/);
    expect(view.pixels).toBe(pixels);
    await view.hover(2, 0);
    expect(view.status).toContain("lent 2 → the 0 weight 0.500000");
    await view.click(3, 3);
    expect(view.panel).toMatch(/^money attends to 3 money/);
    await view.wheel(-300, { ctrlKey: true });
    await view.press("+");
    expect(view.text(".aw-figure")).toBeDefined();
    expect(view.notices).toMatch(/^The kernel is gone/);
  });

  test("a large picture: no number, no exception, and the pin goes to the bin's first cell", async () => {
    const cells = weights(64, 64);
    const state = stateOf(cells, { picture: quantised(cells, {}, 2), facts: factsOf(cells) });
    const { view, host } = await show(
      state,
      python(state, () => cells),
    );
    host.dead = true;
    await view.hover(3, 5, [32, 32]);
    expect(view.notices).toMatch(/^The kernel is gone/);
    await view.click(3, 5, [32, 32]);
    expect(host.saved).toEqual([{ query: 6, key: 10 }]);
    await view.press("ArrowRight");
    await view.wheel(-300, { ctrlKey: true });
    expect(view.isZoomed).toBe(true);
  });

  test("from the beginning: a saved page draws, and everything but the kernel works", async () => {
    const { view, host } = await show(stateOf(CAUSAL));
    await view.click(2, 2);
    expect(view.status).toContain("lent 2 → lent 2 weight 0.200000");
    expect(view.notices).toBe("");
    expect(host.sent).toEqual([]);
  });

  test("a host that throws in saving is a dead kernel too", async () => {
    const { state, options } = started();
    const host = createHost(state, options);
    const throwing: Model = {
      ...host.proxy(),
      save_changes() {
        throw new Error("Cannot send");
      },
    };
    const el = document.createElement("div");
    document.body.append(el);
    const stop = widget.render({ model: throwing, el });
    const view = new View(el);
    resize(view.root, 900);
    await settle();
    await view.click(1, 0);
    expect(view.notices).toMatch(/^The kernel is gone/);
    expect(view.status).toContain("bank 1 → the 0");
    stop();
  });

  test("when it answers again, the message goes", async () => {
    const { state, options } = started({}, { delay: 500 });
    const { view, host } = await show(state, options);
    host.dead = true;
    view.button("head 2").click();
    await settle(500);
    host.dead = false;
    view.button("head 1").click();
    await settle(1200);
    expect(view.notices).toBe("");
    expect(view.status).toContain("head 1");
  });
});

describe("a head that cannot be computed", () => {
  const MEMORY = "not enough memory: head 1 needs 4.0 GiB.";

  async function withoutHead(answer?: () => object) {
    const { state, options } = started({}, { encode: encodeBut(1) });
    return show(state, answer ? { ...options, answer } : options);
  }
  const encodeBut = (bad: number) => (cells: Cells, of: object) =>
    (of as { head: number }).head === bad ? failed(MEMORY, of, cells) : pictureOf(cells, of);

  test("says Python's own sentence; the last picture stays; other heads work", async () => {
    const { view } = await withoutHead();
    const { pixels } = view;
    view.button("head 1").click();
    await settle();
    expect(view.text(".aw-problem")).toContain(`This head could not be computed ${MEMORY}`);
    expect(view.pixels).toBe(pixels);
    view.button("head 2").click();
    await settle();
    expect(view.text(".aw-problem")).toBe("");
    expect(view.status).toContain("head 2");
  });

  test("while it is found first what a cache evicts, says how far that is, with a way to stop it", async () => {
    const { view, host } = await withoutHead();
    view.button("head 1").click();
    await settle();
    const { layer, batch, head, stage, pool } = { layer: 0, batch: 0, head: 1, stage: "weights", pool: "max" } as const;
    const what = { what: "evictions", share: 0.437, seconds_left: 3.2 } as const;
    const progress = { layer, batch, head, stage, pool, ...what };
    host.fromPython({ progress: { ...progress, state: "running" } });
    expect(view.text(".aw-problem")).toBe(`What the cache keeps ${MEMORY}: 43 %, about 3 s left. Stop`);
    view.button("Stop").click();
    await settle();
    expect(asked(host.sent, "pass")).toMatchObject([{ action: "stop", layer, batch, head, stage }]);
    host.fromPython({ progress: { ...progress, seconds_left: null, state: "stopped" } });
    expect(view.text(".aw-problem")).toContain("43 %, stopped. Resume");
    host.fromPython({ progress: null, picture: pictureOf(HEADS[1]!, { head: 1 }) });
    await settle();
    expect(view.text(".aw-problem")).toBe("");
  });

  test("Try again asks Python to", async () => {
    const { view, host } = await withoutHead();
    view.button("head 1").click();
    await settle();
    view.button("Try again").click();
    await settle();
    expect(asked(host.sent)).toMatchObject([{ kind: "retry" }]);
    host.fromPython({ picture: pictureOf(HEADS[1]!, { head: 1 }) });
    await settle();
    expect(view.text(".aw-problem")).toBe("");
    expect(view.status).toContain("head 1");
  });

  test("Try again that fails, or a kernel that is gone, throws nothing", async () => {
    const { view, host } = await withoutHead(() => {
      throw new Error("no");
    });
    view.button("head 1").click();
    await settle();
    view.button("Try again").click();
    await settle();
    host.dead = true;
    view.button("Try again").click();
    await settle();
    expect(view.notices).toMatch(/^The kernel is gone/);
  });

  test("Copy the message copies it, and says where a page has no clipboard or may not use it", async () => {
    const { view } = await withoutHead();
    view.button("head 1").click();
    await settle();
    const refused = "Not copied This page is not allowed to copy. Select the message instead.";
    view.button("Copy the message").click();
    await settle();
    expect(view.notices).toBe(refused);
    const writeText = vi.fn(async () => {});
    vi.stubGlobal("navigator", { platform: "Linux", clipboard: { writeText } });
    view.button("Copy the message").click();
    await settle();
    expect(writeText).toHaveBeenCalledWith(MEMORY);
    expect(view.notices).toBe("Copied The message is on the clipboard.");
    writeText.mockRejectedValue(new DOMException("not allowed", "NotAllowedError"));
    view.button("Copy the message").click();
    await settle();
    expect(view.notices).toBe(refused);
    vi.unstubAllGlobals();
  });

  test("if it is the first one, the message stands instead of a picture", async () => {
    const { state, options } = started({ picture: failed(MEMORY) });
    const { view } = await show(state, options);
    expect(view.text(".aw-problem")).toContain(MEMORY);
    expect(view.find(".aw-stage").hidden).toBe(true);
    view.button("head 2").click();
    await settle();
    expect(view.find(".aw-stage").hidden).toBe(false);
    expect(sizes(view)).toEqual([176, 176]);
  });
});

test("what Python does not take is said as text, until the next choice", async () => {
  const { state, options } = started();
  const { view, say } = await saying(state, options);
  say({ refused: "color_range: low 3 <b>must</b> be less than high 1" });
  await settle();
  expect(view.notices).toBe("Python refused this color_range: low 3 <b>must</b> be less than high 1");
  expect(view.all(".aw-notices p b")).toHaveLength(0);
  await view.click(1, 1);
  expect(view.notices).toBe("");
});

test("what could not be computed is said once, calmly, and the picture stays", async () => {
  const reason = "KeyError: 'share'";
  const { state, options } = started({ errors: { findings: reason, deviation: reason } });
  const { view } = await show(state, options);
  expect(view.notices).toBe(`Not computed: checks, comparison with torch ${reason}`);
  expect(view.all(".aw-notices [role=alert]")).toHaveLength(0);
  expect(view.find(".aw-stage").hidden).toBe(false);
  const { view: whole } = await show({ ...state, errors: {} }, options);
  expect(whole.notices).toBe("");
});

/** A widget whose Python can also say something that was not asked. */
async function saying(state: Traits, options: object) {
  const host = createHost(state, options);
  const heard = new Set<(content: unknown) => void>();
  const eavesdrop = (model: Model): Model => ({
    ...model,
    on: ((event: never, listener: never) => {
      if (event === "msg:custom") heard.add(listener);
      model.on(event, listener);
    }) as Model["on"],
  });
  const shown = await show({ ...host, ...{ proxy: () => eavesdrop(host.proxy()) }, uid: state.uid } as never, options);
  return {
    ...shown,
    say(content: unknown) {
      for (const listener of heard) listener(content);
    },
  };
}

describe("when a view goes", () => {
  /** Listeners on what outlives a view: the document, the window, media queries, the host's model. */
  function watchListeners() {
    const live: { target: EventTarget; type: string; listener: unknown; signal?: AbortSignal | undefined }[] = [];
    const { addEventListener, removeEventListener } = EventTarget.prototype;
    vi.spyOn(EventTarget.prototype, "addEventListener").mockImplementation(function (this: EventTarget, ...args) {
      const [type, listener, options] = args;
      const signal = typeof options === "object" ? options?.signal : undefined;
      const target = this ?? window;
      if (!(target instanceof AbortSignal)) live.push({ target, type, listener, signal });
      return addEventListener.apply(target, args);
    });
    vi.spyOn(EventTarget.prototype, "removeEventListener").mockImplementation(function (this: EventTarget, ...args) {
      const target = this ?? window;
      const at = live.findIndex(
        (known) => known.target === target && known.type === args[0] && known.listener === args[1],
      );
      if (at >= 0) live.splice(at, 1);
      return removeEventListener.apply(target, args);
    });
    return (gone: Node) =>
      live
        .filter(({ target, signal }) => !signal?.aborted && !(target instanceof Node && gone.contains(target)))
        .filter(({ target }) => !(target instanceof Node) || target.isConnected || target === document)
        .map(({ target, type }) => `${type} on ${target.constructor.name}`);
  }

  function watchObservers() {
    const live = new Set<object>();
    for (const Observer of [ResizeObserver, MutationObserver]) {
      const { observe, disconnect } = Observer.prototype;
      vi.spyOn(Observer.prototype, "observe").mockImplementation(function (this: never, ...args: never[]) {
        live.add(this);
        return (observe as (...all: never[]) => void).apply(this, args);
      } as never);
      vi.spyOn(Observer.prototype, "disconnect").mockImplementation(function (this: never) {
        live.delete(this);
        return disconnect.apply(this);
      });
    }
    return live;
  }

  /** Everything that a person might do, and everything that starts a timer. */
  async function useAll(view: View) {
    await view.hover(2, 1);
    await view.click(2, 1);
    await view.wheel(-100, { ctrlKey: true });
    await view.wheel(40);
    await view.drag({ x: 20, y: 20 }, { x: 60, y: 50 });
    await view.press("]");
    view.button("More").click();
    await settle();
    document.body.dataset.jpThemeLight = "false";
    view.button("head 3").click();
  }

  test.each(["the signal aborts", "the cleanup is called"])("and %s: nothing is left of it", async (how) => {
    (await show(stateOf(CAUSAL))).unmount(); // jsdom's selectors listen to the window from their first use on
    await settle(1000);
    const observers = watchObservers();
    const left = watchListeners();
    const cells = weights(64, 64);
    const state = stateOf(cells, { picture: quantised(cells, {}, 2), facts: factsOf(cells), theme: "auto" });
    const host = createHost(
      state,
      python(state, () => cells, { delay: 100 }),
    );
    const on = vi.spyOn(host, "on");
    const subscribed = new Set<string>();
    const proxied: Model = {
      ...host.proxy(),
      on: ((event: string, listener: () => void) => {
        subscribed.add(event);
        host.on(event as never, listener as never);
      }) as never,
      off: ((event: string, listener: () => void) => {
        subscribed.delete(event);
        host.off(event as never, listener as never);
      }) as never,
    };
    const [whole, one] = [new AbortController(), new AbortController()];
    const el = document.createElement("div");
    document.body.append(el);
    document.head.append(paper());
    const endModel = widget.initialize({ model: proxied, signal: whole.signal });
    const endView = widget.render({ model: proxied, el, signal: one.signal });
    const view = new View(el);
    resize(view.root, 900);
    await settle();
    const { canvas } = view;
    await useAll(view);
    expect([subscribed.size > 10, observers.size, left(el).length > 0]).toEqual([true, 3, true]);

    if (how === "the signal aborts") {
      one.abort();
      whole.abort();
    } else {
      endView();
      endModel();
    }
    expect(el.childNodes).toHaveLength(0);
    expect(left(el)).toEqual([]);
    expect(observers.size).toBe(0);
    expect([...subscribed]).toEqual([]);
    expect(on).toHaveBeenCalled();
    await settle(151); // d3-zoom's own end of a wheel
    expect(vi.getTimerCount()).toBe(0);

    // What comes later throws nothing and changes nothing.
    const { saved, sent } = host;
    const before = [saved.length, sent.length];
    host.fromPython({ head: 1, picture: pictureOf(cells, { head: 1 }), theme: "dark" });
    canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: 5, clientY: 5 }));
    canvas.dispatchEvent(new MouseEvent("click", { clientX: 5, clientY: 5 }));
    canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown" }));
    canvas.dispatchEvent(new WheelEvent("wheel", { deltaY: -100, ctrlKey: true, view: real }));
    document.dispatchEvent(new PointerEvent("pointerdown"));
    document.body.dataset.jpThemeLight = "true";
    await settle(1000);
    expect([saved.length, sent.length]).toEqual(before);
    expect(vi.getTimerCount()).toBe(0);
    endView();
    endModel();
  });

  test("a signal that is aborted already leaves nothing behind", async () => {
    const { state, options } = started();
    const observers = watchObservers();
    const el = document.createElement("div");
    const signal = AbortSignal.abort();
    const end = widget.render({ model: createHost(state, options), el, signal });
    end();
    expect(el.childNodes).toHaveLength(0);
    expect(observers.size).toBe(0);
    await settle(1000);
    expect(vi.getTimerCount()).toBe(0);
  });
});

test("tokens and titles are text wherever they stand", async () => {
  const nasty = [
    '<img src=x onerror="window.hacked = 1">',
    "</script><script>window.hacked = 1</script>",
    "<b>bold</b>",
    "&lt;",
  ];
  const { state, options } = started({
    tokens: tokensOf(nasty),
    key_tokens: tokensOf(nasty),
    title: "<img src=x onerror=alert(1)>",
    facts: factsOf(CAUSAL, { layers: ["<i>first</i>", "<svg onload=alert(1)>"], dtype: "<u>float32</u>" }),
  });
  const { view } = await show(state, options);
  await view.hover(0, 0);
  await view.click(3, 1);
  view.button("head 1").click();
  await settle();
  await view.hover(3, 2);
  for (const token of nasty) expect(view.text()).toContain(token);
  expect(view.all("bdi").map((bdi) => bdi.textContent)).toContain(nasty[0]);
  expect(view.all(".aw-label").map((label) => label.title)).toContain(nasty[1]);
  expect(view.text(".aw-title")).toBe("<img src=x onerror=alert(1)>");
  expect(view.find('[aria-label="layer 1"]').title).toBe("<svg onload=alert(1)>");
  expect(view.status).toContain("<u>float32</u>");
  view.leave();
  await settle();
  expect(view.status).toContain(nasty[1]);
  expect(view.all("img, script, b > b, u, bdi *, .aw-title *, [onerror], [onload]")).toHaveLength(0);
  expect("hacked" in window).toBe(false);
});

test("no request leaves the page", async () => {
  const touched: string[] = [];
  const forbidden = (name: string) =>
    function refuse() {
      touched.push(name);
      throw new Error(`${name} was used`);
    };
  for (const name of ["fetch", "XMLHttpRequest", "WebSocket", "EventSource", "Image", "Worker", "importScripts"]) {
    vi.stubGlobal(name, forbidden(name));
  }
  const { state, options } = started();
  const { view } = await show(state, options);
  await view.click(2, 1);
  view.button("head 2").click();
  await view.press("}");
  await view.wheel(-100, { ctrlKey: true });
  view.button("More").click();
  await settle(500);
  expect(view.all("[src], [href], link, script, iframe")).toHaveLength(0);
  expect(styleSheet()).not.toMatch(/url\(|@import|@font-face/);
  expect(touched).toEqual([]);
  vi.unstubAllGlobals();
});

function CanvasRenderingContext2DPrototype() {
  const context = document.createElement("canvas").getContext("2d")!;
  return Object.getPrototypeOf(context) as CanvasRenderingContext2D;
}
