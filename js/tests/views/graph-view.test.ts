// @vitest-environment jsdom
/** The graph in a page: what it draws, what pointer and keys do, and what is left when it is gone. */

import { describe, expect, test, vi } from "vitest";
import type { Traits } from "../../src/contract/traits";
import { HEAD_COLORS, parseColor } from "../../src/draw/color";
import type { HostRequest } from "../../src/kernel/host";
import { STEM } from "../../src/views/graph/model";
import { pressOn, settle, show, type View } from "../helpers/page.ts";
import { resize } from "../helpers/setup.ts";
import {
  asked,
  type Cells,
  factsOf,
  floats,
  linksOf,
  pictureOf,
  python,
  quantised,
  stateOf,
  tokensOf,
  weights,
  X,
} from "../helpers/states.ts";
import { useFakeTime } from "../helpers/timers.ts";

useFakeTime();

const TEXT = "[CLS] she sat on the bank of the river and counted the money the bank had lent her . [SEP]".split(" ");
const HEADS = [0, 1, 2, 3].map((head) => weights(20, 20, 11 + head));
const headOf = (head: number) => HEADS[head] as Cells;
const weightAt = (head: number, query: number, key: number) => HEADS[head]![query]![key] as number;

/** The graph of four heads of 20 tokens, with a Python that knows them. */
async function draw(changes: Partial<Traits> = {}, { width = 900, delay = 0 } = {}) {
  const head = changes.head ?? changes.heads?.[0] ?? 0;
  const heads = changes.heads ?? [head];
  const state = stateOf(headOf(head), {
    view: "graph",
    head,
    heads,
    tokens: tokensOf(TEXT),
    key_tokens: tokensOf(TEXT),
    links: linksOf(headOf, heads, { side: changes.direction ?? "query", count: changes.top_k ?? 3 }),
    ...changes,
  });
  return show(state, { ...python(state, ({ head }) => headOf(head)), delay }, { width });
}

const label = (view: View, side: "query" | "key", index: number) => view.column(side)[index] as HTMLElement;
const point = (node: HTMLElement, type: "pointerenter" | "pointerleave") =>
  node.dispatchEvent(new PointerEvent(type, { pointerType: "mouse" }));
const click = async (node: HTMLElement, init: MouseEventInit = {}) => {
  node.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true, ...init }));
  await settle();
};
const bold = (view: View, side: "query" | "key") =>
  view.column(side).flatMap((node, index) => (node.hasAttribute("data-hovered") ? [index] : []));
const pills = (view: View, kind = ".aw-pill") => view.all(`.aw-graph-columns ${kind}`).map(({ title }) => title);
const isBlank = (view: View) => !/[1-9]/.test(view.pixels);
/** Where the band into a row of 22 ends, just inside the picture. */
const endOf = (view: View, row: number, side: "query" | "key" = "key") => {
  const { width } = view.canvas.getBoundingClientRect();
  return { x: side === "key" ? width - 1 : 1, y: (row + 0.5) * 22 };
};
const three = (value: number) => value.toFixed(3).replace(/^0/, "");
const four = (value: number) => value.toFixed(4).replace(/^0/, "");
const rgb = (css: string) => {
  const { r, g, b } = parseColor(css)!;
  return [r, g, b, 255];
};

describe("the graph", () => {
  test("has all tokens on both sides and curves between; nothing at width 0", async () => {
    const hidden = await draw({}, { width: 0 });
    expect(hidden.view.all("canvas")).toHaveLength(0);
    const { view } = await draw();
    expect(view.column("query").map(({ title }) => title)).toEqual(TEXT);
    expect(view.column("key").map(({ title }) => title)).toEqual(TEXT);
    expect(view.column("query")[5]!.textContent).toBe("bank5");
    expect([view.canvas.style.width, view.canvas.style.height]).toEqual(["384px", "440px"]);
    expect(isBlank(view)).toBe(false);
    expect(view.text(".aw-prompt")).toMatch(/^The 3 strongest keys of each query\. Point at a token/);
    expect(view.canvas.getAttribute("aria-label")).toBe("Attention graph, heads 0, 20 queries to 20 keys");
  });

  test("is chosen by its tab; both views show the same selection", async () => {
    const { view, host } = await draw({ view: "heatmap", query: 14 });
    await click(view.button("Graph"));
    expect(host.saved).toEqual([{ view: "graph" }]);
    expect(pills(view)).toEqual(["bank"]);
    await click(label(view, "key", 3));
    await click(view.button("Heatmap"));
    expect(host.saved.at(-1)).toEqual({ view: "heatmap" });
    expect(view.all(".aw-labels .aw-pill").map(({ title }) => title)).toEqual(["on"]);
    expect(view.panel).toMatch(/^on is attended to by/);
    expect(view.all("[data-aw=picture]")).toHaveLength(1);
  });

  test.each([
    ["query", 14],
    ["key", 5],
  ] as const)("with a pinned %s: bars by head and their mean are those of its row or column", async (side, index) => {
    const heads = [0, 2, 3];
    const { view } = await draw({ heads, [side]: index });
    const at = (head: number, other: number) =>
      side === "query" ? weightAt(head, index, other) : weightAt(head, other, index);
    const { bars } = view;
    expect(bars).toHaveLength(20);
    const full = Math.max(...bars.flatMap((row) => row.bars.map(({ width }) => width)));
    const most = Math.max(...heads.flatMap((head) => TEXT.map((_, other) => at(head, other))));
    bars.forEach((row, other) => {
      const values = heads.map((head) => at(head, other));
      expect(row.number).toBe(three(Math.fround(values.reduce((a, b) => a + b, 0) / 3)));
      const drawn = values.flatMap((value, place) => (value < 0.01 ? [] : [{ value, place }]));
      expect(row.bars.map(({ color }) => parseColor(color))).toEqual(
        drawn.map(({ place }) => parseColor(HEAD_COLORS.light[place]!)),
      );
      row.bars.forEach(({ width }, i) => {
        expect(width).toBeCloseTo(Math.max(2, (drawn[i]!.value / most) * full), 3);
      });
    });
    const far = side === "query" ? "key" : "query";
    const strong = TEXT.flatMap((_, other) => (heads.some((head) => at(head, other) >= 0.1) ? [other] : []));
    expect(strong.length).toBeGreaterThan(2);
    expect(bold(view, far)).toEqual(strong);
    expect(pills(view)).toEqual([TEXT[index]]);
    expect(view.text(".aw-graph-head:nth-of-type(3)")).toBe(
      side === "query" ? "Weight by head" : "Weight by head, of each query",
    );
  });

  test.each(["query", "key"] as const)("a bar in each head's color stands beside the pinned %s", async (side) => {
    const { view } = await draw({ heads: [0, 1], [side]: 10, threshold: 0 });
    const { width } = view.canvas;
    const x = side === "query" ? STEM + 1 : width - STEM - 2;
    const column = Array.from({ length: 440 }, (_, y) => view.pixel(x, y).join());
    const tall = HEAD_COLORS.light.slice(0, 2).map((css) => column.filter((c) => c === rgb(css).join()).length);
    if (side === "query") for (const height of tall) expect(Math.abs(height - 14)).toBeLessThanOrEqual(2);
    else for (const height of tall) expect(height).toBeGreaterThan(4);
    const middle = column.flatMap((c, y) => (c === rgb(HEAD_COLORS.light[0]!).join() ? [y] : []));
    expect(Math.max(...middle)).toBeLessThan(10.5 * 22 + 2); // the first head above the second
  });

  test("one head is in the data color, with no legend of heads until there is something to say", async () => {
    const { view } = await draw({ heads: [2], head: 2 });
    expect(view.all(".aw-graph-key")).toHaveLength(0);
    await click(label(view, "query", 14));
    const colors = new Set(view.bars.flatMap(({ bars }) => bars.map(({ color }) => parseColor(color)!.r)));
    expect([...colors]).toEqual([0x17]);
    expect(view.bars[3]!.number).toBe(four(weightAt(2, 14, 3)));
    expect(view.text(".aw-graph-legend")).toMatch(/^head 2 most to/);
  });

  test("names for each head its strongest partner, without special tokens", async () => {
    const cells = TEXT.map(() => TEXT.map((_, key) => (key === 0 ? 0.7 : key === 8 ? 0.2 : 0.1 / 18)));
    const state = stateOf(cells, { view: "graph", query: 4, tokens: tokensOf(TEXT), key_tokens: tokensOf(TEXT) });
    const { view } = await show(state);
    expect(view.text(".aw-graph-legend")).toBe("head 0 most to river .20 without special tokens");
  });

  test("masked is not zero, and NaN is neither", async () => {
    const cells: Cells = [
      [0.5, 0.5, 0, X],
      [Number.NaN, 1, 0, X],
      [X, X, X, X],
      [1, 0, 0, 0],
    ];
    const { view } = await show(stateOf(cells, { view: "graph", query: 0 }));
    expect(view.bars.map(({ number }) => number)).toEqual([".5000", ".5000", "0", "masked"]);
    await click(label(view, "query", 1));
    expect(view.bars.map(({ number }) => number)).toEqual(["NaN", "1.0000", "0", "masked"]);
    await click(label(view, "query", 2));
    expect(view.bars.map(({ number }) => number)).toEqual(["masked", "masked", "masked", "masked"]);
    expect(view.text(".aw-graph-legend")).toBe("head 0 fully masked");
  });

  test("where it is narrow the bars go and the mean stays", async () => {
    const { view } = await draw({ heads: [0, 1], query: 14 }, { width: 340 });
    expect(view.bars.every(({ bars }) => bars.length === 0)).toBe(true);
    expect(view.bars[2]!.number).toBe(three((weightAt(0, 14, 2) + weightAt(1, 14, 2)) / 2));
    resize(view.root, 900);
    await settle();
    expect(view.bars.some(({ bars }) => bars.length > 0)).toBe(true);
  });

  test("hostile tokens are text", async () => {
    const nasty = ["<img src=x onerror=alert(1)>", "</button>", "&amp;", "\u202egnitirw"];
    const cells = weights(4, 4);
    const tokens = tokensOf(nasty);
    const { view } = await show(stateOf(cells, { view: "graph", query: 0, tokens, key_tokens: tokens }));
    expect(view.all("img, script")).toHaveLength(0);
    expect(view.column("query").map(({ title }) => title)).toEqual([...nasty.slice(0, 3), "U+202Egnitirw"]);
  });
});

describe("pointing", () => {
  test("at a label previews its links; leaving ends that", async () => {
    const { view, host } = await draw({ heads: [0, 1] });
    const before = view.pixels;
    point(label(view, "query", 14), "pointerenter");
    await settle();
    expect(view.pixels).not.toBe(before);
    expect(view.bars[3]!.number).toBe(three((weightAt(0, 14, 3) + weightAt(1, 14, 3)) / 2));
    expect(pills(view)).toEqual([]);
    point(label(view, "query", 14), "pointerleave");
    await settle();
    expect(view.bars).toEqual([]);
    expect(view.pixels).toBe(before);
    expect(host.saved).toEqual([]);
  });

  test("at a band says its head, its number and both its ends, and moves nothing", async () => {
    const { view } = await draw({ heads: [1], head: 1, query: 14, threshold: 0 });
    const key = HEADS[1]![14]!.indexOf(Math.max(...HEADS[1]![14]!));
    const before = view.pixels;
    view.point(endOf(view, key));
    await settle();
    const number = weightAt(1, 14, key).toFixed(6);
    expect(view.status).toMatch(new RegExp(`^bank 14 → \\S+ ${key} head 1 weight ${number} `));
    expect(view.canvas.style.cursor).toBe("pointer");
    expect(view.all(".aw-graph-pointed path")).toHaveLength(1);
    expect(view.pixels).toBe(before);
    view.leave();
    await settle();
    expect(view.status).toMatch(/^query bank 14 band width = weight /);
    expect(view.all(".aw-graph-pointed path")).toHaveLength(0);
  });

  test("at a curve, with nothing pinned, keeps all the others in sight", async () => {
    const { view } = await draw({ heads: [0] });
    const before = view.pixels;
    view.point(endOf(view, 4, "query"));
    await settle();
    expect(view.status).toMatch(/^the 4 → /);
    expect(view.pixels).toBe(before);
    expect(view.bars).toEqual([]);
    expect(bold(view, "query")).toEqual([4]);
    expect(bold(view, "key")).toHaveLength(1);
  });

  test("with a finger previews nothing", async () => {
    const { view } = await draw();
    view.point(endOf(view, 4, "query"), "touch");
    label(view, "query", 3).dispatchEvent(new PointerEvent("pointerenter", { pointerType: "touch" }));
    await settle();
    expect(view.bars).toEqual([]);
    expect(view.all(".aw-graph-pointed path")).toHaveLength(0);
  });
});

describe("a click", () => {
  test("on a label pins it, again frees it; with shift it is one pin more, or less", async () => {
    const { view, host } = await draw();
    await click(label(view, "query", 14));
    await click(label(view, "query", 3), { shiftKey: true });
    expect(host.saved[1]).toEqual({ pins: [[14, null], [3, null]], query: 3 }); // biome-ignore format: one line
    expect([pills(view), pills(view, ".aw-pill-outline")]).toEqual([["on"], ["bank"]]);
    await click(label(view, "query", 3), { shiftKey: true });
    expect([pills(view), pills(view, ".aw-pill-outline")]).toEqual([["bank"], []]);
    await click(label(view, "query", 14));
    expect([pills(view), pills(view, ".aw-pill-outline")]).toEqual([[], []]);
  });

  test("on a band pins the pair and chooses its head; again frees it", async () => {
    const { view, host } = await draw({ heads: [0, 1], head: 0, query: 14, threshold: 0.05 });
    const only = TEXT.findIndex((_, key) => weightAt(1, 14, key) >= 0.06 && weightAt(0, 14, key) < 0.04);
    const { x, y } = endOf(view, only);
    view.mouse("click", { x, y });
    await settle();
    expect(host.saved).toEqual([{ key: only, head: 1 }]);
    expect(pills(view)).toEqual(["bank", TEXT[only]]);
    view.mouse("click", { x, y });
    await settle();
    expect(host.saved[1]).toEqual({ query: null, key: null });
  });

  test("with shift on a band is one pin more; beside all bands it does nothing", async () => {
    const { view, host } = await draw({ query: 14, threshold: 0.1 });
    const key = HEADS[0]![14]!.indexOf(Math.max(...HEADS[0]![14]!));
    view.canvas.dispatchEvent(
      new MouseEvent("click", { clientX: endOf(view, key).x, clientY: endOf(view, key).y, shiftKey: true }),
    );
    await settle();
    expect(host.saved[0]!.pins).toEqual([[14, null], [14, key]]); // biome-ignore format: one line
    const { length } = host.saved;
    view.mouse("click", { x: 3, y: 439 });
    expect(host.saved).toHaveLength(length);
  });
});

describe("keys", () => {
  test.each([
    ["ArrowDown", {}, { query: 11 }],
    ["ArrowUp", {}, { query: 9 }],
    ["ArrowDown", { shiftKey: true }, { query: 19 }],
    ["Home", {}, { query: 0 }],
    ["End", {}, { query: 19 }],
    ["ArrowRight", {}, { query: null, key: 10 }],
    ["Escape", {}, { query: null }],
    ["]", {}, { head: 2 }],
    ["[", {}, { head: 0 }],
    ["}", {}, { layer: 1 }],
  ])("%s %o", async (key, init, saved) => {
    const { view, host } = await draw({ query: 10, head: 1 });
    expect(await view.press(key, init)).toEqual({ prevented: true, escaped: false });
    expect(host.saved[0]).toMatchObject(saved);
  });

  test("walk the column that is in focus, also where both are pinned and keys are read", async () => {
    const { view, host } = await draw({ query: 10, key: 4, direction: "key" });
    await view.press("ArrowDown");
    expect(host.saved).toEqual([{ query: null, key: 5 }]);
  });

  test("to the other side stop at its end", async () => {
    const cells = weights(4, 20);
    const { view, host } = await show(stateOf(cells, { view: "graph", key: 15 }));
    await view.press("ArrowLeft");
    expect(host.saved).toEqual([{ query: 3, key: null }]);
  });

  test.each(["ctrlKey", "metaKey", "altKey"])("with %s go on to the notebook, others stop there", async (modifier) => {
    const { view, host } = await draw({ query: 3 });
    expect((await view.press("ArrowDown", { [modifier]: true })).escaped).toBe(true);
    expect((await view.press("a")).escaped).toBe(false);
    expect(host.saved).toEqual([]);
  });
});

describe("what is kept", () => {
  const drawn = (view: View) => view.find("canvas[data-aw=picture]") && bold(view, "key");

  test("top k, a threshold, or all", async () => {
    const { view, host } = await draw({ query: 14 });
    const pixels = new Set([view.pixels]);
    for (const [name, saved] of [
      ["top 1", { top_k: 1, threshold: 0 }],
      ["≥ .1", { top_k: null, threshold: 0.1 }],
      ["all", { top_k: null, threshold: 0 }],
    ] as const) {
      await click(view.button("Keep≥ .02top 1≥ .1all".includes(name) ? /^Keep/ : "Keep"));
      await click(view.all("[role=menuitemradio]").find(({ textContent }) => textContent === name)!);
      expect(host.saved.at(-1)).toMatchObject({ threshold: saved.threshold });
      expect(host.saved.reduce((all, one) => Object.assign(all, one), {})).toMatchObject(saved);
      pixels.add(view.pixels);
    }
    expect(pixels.size).toBe(4);
    const row = HEADS[0]![14]!;
    expect(drawn(view)).toEqual(row.flatMap((weight, key) => (weight >= 0.1 ? [key] : [])));
    host.fromPython({ top_k: 1 });
    await settle();
    expect(drawn(view)).toEqual([row.indexOf(Math.max(...row))]);
  });

  test("what it attends to, or what attends to it", async () => {
    const { view, host } = await draw({ query: 14, key: 5 });
    expect(view.text(".aw-graph-legend")).toContain("most to");
    await click(view.button(/^Read/));
    await click(view.all("[role=menuitemradio]").find(({ textContent }) => textContent === "what attends to it")!);
    expect(host.saved).toEqual([{ direction: "key" }]);
    expect(view.text(".aw-graph-legend")).toContain("most from");
    expect(view.bars[2]!.number).toBe(four(weightAt(0, 2, 5)));
  });
});

describe("several heads", () => {
  const ringed = (view: View) =>
    view
      .all("[aria-label=Heads] [aria-checked=true]")
      .map((node) => [node.getAttribute("aria-label"), node.style.getPropertyValue("--aw-head")]);

  test("shift and click adds one or takes one away, in the head's color; the last stays", async () => {
    const { view, host } = await draw({ heads: [1], head: 1, query: 14 });
    expect(ringed(view)).toEqual([["head 1", ""]]);
    await click(view.button("head 3"), { shiftKey: true });
    expect(host.saved).toEqual([{ heads: [1, 3] }]);
    expect(ringed(view)).toEqual([
      ["head 1", HEAD_COLORS.light[0]],
      ["head 3", HEAD_COLORS.light[1]],
    ]);
    expect(view.bars[2]!.number).toBe(three((weightAt(1, 14, 2) + weightAt(3, 14, 2)) / 2));
    await click(view.button("head 1"), { shiftKey: true });
    expect(host.saved[1]).toEqual({ heads: [3], head: 3 });
    await click(view.button("head 3"), { shiftKey: true });
    expect(host.saved).toHaveLength(2);
    await click(view.button("head 0"));
    expect(host.saved[2]).toEqual({ head: 0, heads: [0] });
  });

  test("rows of the other heads are asked for, once", async () => {
    const { view, host } = await draw({ heads: [0, 1, 2], query: 14 });
    expect(asked(host.sent).map(({ kind, head, query }) => [kind, head, query])).toEqual([
      ["row", 1, 14],
      ["row", 2, 14],
    ]);
    await click(label(view, "query", 3));
    await click(label(view, "query", 14));
    expect(asked(host.sent)).toHaveLength(4);
  });
});

describe("links that Python has sent", () => {
  test("of other heads, another layer or the other side are not drawn: those of an exact picture are", async () => {
    const known = await draw();
    const right = known.view.pixels;
    expect(isBlank(known.view)).toBe(false);
    await known.unmount();
    const stale: [string, Partial<Traits>][] = [
      ["nothing sent", { links: null }],
      ["other heads", { links: linksOf(headOf, [2, 3]) }],
      ["another layer", { links: linksOf(headOf, [0], { layer: 1 }) }],
      ["the other side", { links: linksOf(headOf, [0], { side: "key" }) }],
    ];
    for (const [name, changes] of stale) {
      const { view, unmount } = await draw(changes);
      expect(view.pixels === right, name).toBe(true);
      await unmount();
    }
  });

  test("of a picture that is of another stage, nothing is drawn in their place", async () => {
    const cells = headOf(0);
    const { view } = await draw({ links: null, stage: "scores", picture: pictureOf(cells, { stage: "scores" }) });
    expect(isBlank(view)).toBe(true);
  });

  test("stand for whole rows where the kernel is gone", async () => {
    const { view, host } = await draw({ heads: [0, 1] });
    host.dead = true;
    await click(label(view, "query", 14));
    const best = [...HEADS[1]![14]!].map((weight, key) => ({ weight, key })).sort((a, b) => b.weight - a.weight);
    const second = rgb(HEAD_COLORS.light[1]!).join();
    const column = Array.from({ length: 440 }, (_, y) => view.pixel(STEM + 1, y).join());
    const sum = best.slice(0, 3).reduce((total, { weight }) => total + weight, 0);
    expect(Math.abs(column.filter((c) => c === second).length - 14 * sum)).toBeLessThanOrEqual(2);
    expect(view.notices).toContain("The kernel is gone");
  });

  test("and until it answers", async () => {
    const { view } = await draw({ heads: [0, 1] }, { delay: 5000 });
    await click(label(view, "query", 14));
    const early = view.pixels;
    expect(isBlank(view)).toBe(false);
    await settle(6000);
    expect(view.pixels).not.toBe(early);
    expect(view.bars[2]!.number).toBe(three((weightAt(0, 14, 2) + weightAt(1, 14, 2)) / 2));
  });
});

describe("long texts", () => {
  async function long(tokens: number, count: number, changes: Partial<Traits> = {}) {
    const cells = Array.from({ length: count }, (_, head) => weights(tokens, tokens, head + 1));
    const heads = cells.map((_, head) => head);
    const of = (head: number) => cells[head] as Cells;
    const facts = factsOf(of(0), { heads: count });
    const picture = tokens > 256 ? quantised(of(0), {}, Math.ceil(tokens / 256)) : pictureOf(of(0));
    const state = stateOf(of(0), { view: "graph", heads, facts, picture, links: linksOf(of, heads), ...changes });
    return show(
      state,
      python(state, ({ head }) => of(head)),
    );
  }

  test("are folded once something is pinned; the gaps count what they hide", async () => {
    const { view } = await long(200, 2);
    expect(view.all(".aw-graph-gap")).toHaveLength(0);
    await click(label(view, "query", 12));
    for (const side of ["query", "key"] as const) {
      const rows = view.column(side);
      const hidden = rows
        .filter((row) => row.matches(".aw-graph-gap"))
        .map(({ textContent }) => Number(/[\d,]+/.exec(textContent ?? "")?.[0]));
      const named = rows.filter((row) => !row.matches(".aw-graph-gap")).map(({ title }) => Number(title));
      expect(hidden.length).toBeGreaterThan(0);
      expect(hidden.reduce((a, b) => a + b, 0) + named.length).toBe(200);
      expect(named).toEqual([...named].sort((a, b) => a - b));
    }
    expect(pills(view)).toHaveLength(1);
  });

  test("200 × 200 with four heads is drawn; what is left out is said", async () => {
    const { view } = await long(200, 4);
    expect(isBlank(view)).toBe(false);
    expect(view.text(".aw-prompt")).toMatch(/1,500 strongest of 2,\d\d\d links/);
    point(label(view, "query", 3), "pointerenter");
    await settle();
    expect(view.bars.length).toBeGreaterThan(20);
  });

  test("2,000 tokens are drawn, and folded around a pin", async () => {
    // Every query attends to the first 40 keys only: small enough to be made here.
    const cells = weights(2000, 40);
    const facts = factsOf(weights(1, 2000), { queries: 2000 });
    const picture = { ...quantised(weights(200, 200)), queries: 2000, keys: 2000, query_bin: 10, key_bin: 10 };
    const links = linksOf(() => cells, [0]);
    const state = stateOf(cells, { view: "graph", threshold: 0, facts, picture, links });
    const answer = ({ query }: HostRequest) => ({
      values: floats([...cells[query as number]!, ...Array(1960).fill(0)]),
      blocked: null,
    });
    const { view } = await show(state, { answer });
    expect(isBlank(view)).toBe(false);
    expect(view.text(".aw-prompt")).toContain("1,500 strongest of 6,000 links");
    expect(view.column("query").length).toBeLessThan(60);
    await click(label(view, "query", 5));
    const index = Number(view.find(".aw-graph-columns .aw-pill").title.replace(",", ""));
    expect(view.bars[0]!.number).toBe(four(cells[index]![0]!));
    expect(view.column("query").at(-1)!.textContent).toMatch(/^⋯ 1,\d\d\d tokens$/);
  });

  test("too long for links: a token must be pinned", async () => {
    const { view } = await long(300, 1, { links: null });
    expect(view.text(".aw-prompt")).toMatch(/^Too long to draw the links of every token/);
    await click(label(view, "query", 3));
    expect(isBlank(view)).toBe(false);
  });
});

describe("several pins in the heatmap", () => {
  const heat = (changes: Partial<Traits> = {}) => draw({ view: "heatmap", ...changes });
  const place = (view: View, query: number, key: number) => view.at(query, key, [20, 20] as never);
  const shiftClick = async (view: View, query: number, key: number) => {
    const { x, y } = place(view, query, key);
    view.mouse("mousedown", { x, y });
    view.canvas.dispatchEvent(new MouseEvent("click", { clientX: x, clientY: y, shiftKey: true, bubbles: true }));
    await settle();
  };

  test("shift and click adds one: a thin ring and outlined labels for those before", async () => {
    const { view, host } = await heat({ query: 14, key: 16 });
    await shiftClick(view, 3, 8);
    expect(host.saved).toEqual([{ pins: [[14, 16], [3, 8]], query: 3, key: 8 }]); // biome-ignore format: one line
    expect(view.all(".aw-ring[data-further]")).toHaveLength(1);
    expect(view.all(".aw-ring[data-pinned]")).toHaveLength(1);
    expect(view.all(".aw-labels .aw-pill").map(({ title }) => title)).toEqual(["on", "river"]);
    expect(view.all(".aw-labels .aw-pill-outline").map(({ title }) => title)).toEqual(["bank", "lent"]);
    await shiftClick(view, 3, 8);
    expect(view.all(".aw-ring[data-further], .aw-labels .aw-pill-outline")).toHaveLength(0);
  });

  test("the panel ranks the last, the mean or the sum; masked counts as nothing, NaN stays NaN", async () => {
    const cells: (number | null)[][] = [
      [0.5, X, 0.3, 0.2],
      [0.1, X, 0.6, 0.3],
      [0.25, 0.75, X, 0],
      [Number.NaN, 0.4, 0.3, 0.3],
    ];
    const pins: Traits["pins"] = [[0, null], [1, null], [2, null]]; // biome-ignore format: one line
    const { view, host } = await show(stateOf(cells, { pins, query: 2 }));
    const numbers = () =>
      Object.fromEntries(
        view
          .all(".aw-ranks button")
          .map((row) => [
            row.querySelector(".aw-token bdi")!.textContent,
            row.querySelector(".aw-number")!.textContent,
          ]),
      );
    expect(view.panel).toMatch(/^lent attends to/);
    expect(view.text(".aw-rest")).toBe("1 masked");
    const words = ["the", "bank", "lent", "money"];
    for (const [over, divisor] of [
      ["mean", 3],
      ["sum", 1],
    ] as const) {
      // biome-ignore format: one line
      await click(view.button(over));
      expect(view.panel).toMatch(new RegExp(`^3 queries ${over}`));
      const expected = words.map((word, key) => {
        const sum = [0, 1, 2].reduce((total, query) => total + (cells[query]![key] ?? 0), 0);
        return [word, four(sum / divisor)];
      });
      expect(numbers()).toEqual(Object.fromEntries(expected));
    }
    expect(view.all(".aw-rest")).toHaveLength(0);
    // Entropy is that of the shares: the same for the sum as for the mean.
    const shares = words.map((_, key) => [0, 1, 2].reduce((all, query) => all + (cells[query]![key] ?? 0) / 3, 0));
    const bits = shares.reduce((all, share) => all - share * Math.log2(share), 0);
    expect(view.text(".aw-sums")).toMatch(new RegExp(`^Entropy ${bits.toFixed(2)} of 2\\.00 bits .* Sum 3\\.0000$`));
    host.fromPython({ pins: [[1, null], [3, null]], query: 3 }); // biome-ignore format: one line
    await settle();
    expect(view.panel).toContain("NaN in 1 key");
    expect(numbers()).toMatchObject({ bank: ".4000", lent: ".9000", money: ".6000" });
  });

  test("arrows walk last, mean and sum", async () => {
    const { view } = await heat({ pins: [[1, null], [3, null]], query: 3 }); // biome-ignore format: one line
    const chosen = () => view.find("[aria-label='Over the pins'] [aria-checked=true]");
    await pressOn(chosen(), "ArrowRight");
    expect(chosen().textContent).toBe("mean");
    await pressOn(chosen(), "End");
    expect(chosen().textContent).toBe("sum");
  });
});

describe("when it ends", () => {
  test.each(["unmounting", "another view"])("by %s, nothing of it goes on", async (how) => {
    const { view, host, unmount } = await draw({ heads: [0, 1, 2] }, { delay: 300 });
    point(label(view, "query", 3), "pointerenter");
    await click(label(view, "query", 14));
    const { canvas } = view;
    const drawn = () => canvas.getContext("2d")!.getImageData(0, 0, canvas.width, canvas.height).data.join();
    const last = drawn();
    host.fromPython({ query: 6 }); // another picture is due
    if (how === "unmounting") await unmount();
    else await click(view.button("Heatmap"));
    await settle(1000);
    const before = [host.saved.length, host.sent.length];
    canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: 5, clientY: 5 }));
    canvas.dispatchEvent(new MouseEvent("click", { clientX: 383, clientY: 319 }));
    canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown" }));
    const { width } = canvas;
    host.fromPython({ query: 5, heads: [0, 1, 2, 3], links: linksOf(headOf, [0, 1, 2, 3]) });
    resize(view.root, 500);
    await settle(1000);
    expect(asked(host.sent.slice(before[1]), "row", "column")).toEqual([]);
    expect(host.saved).toHaveLength(before[0] as number);
    expect(canvas.width).toBe(width);
    expect(drawn()).toBe(last);
    expect(vi.getTimerCount()).toBe(0);
  });
});
