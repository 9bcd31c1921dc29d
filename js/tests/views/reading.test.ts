// @vitest-environment jsdom
/** Text and image in a page: what is colored, what clicks and keys pin, which pages of a long text are there. */

import { describe, expect, test, vi } from "vitest";
import type { Traits } from "../../src/contract/traits";
import { settle, show, type View } from "../helpers/page.ts";
import { asked, CAUSAL, type Cells, factsOf, python, stateOf, tokensOf, WORDS, weights } from "../helpers/states.ts";
import { useFakeTime } from "../helpers/timers.ts";

useFakeTime();

const words = (view: View) => view.all(".aw-word");
const word = (view: View, at: number) => view.find<HTMLElement>(`[data-at="${at}"]`);
const lines = (view: View) => view.all(".aw-line").map((line) => line.textContent);
const point = async (element: HTMLElement) => {
  element.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, pointerType: "mouse" }));
  await settle();
};
const click = async (element: HTMLElement, init: MouseEventInit = {}) => {
  element.dispatchEvent(new MouseEvent("click", { bubbles: true, ...init }));
  await settle();
};
/** Positions that are colored. */
const tinted = (view: View) => view.all(".aw-tinted").map((element) => Number(element.dataset.at));

function text(cells: Cells, changes: Partial<Traits> = {}) {
  const state = stateOf(cells, { view: "text", ...changes });
  return show(
    state,
    python(state, () => cells),
  );
}

describe("text", () => {
  test("is the tokens as a text, colored by the pinned query from 5 % of its maximum on", async () => {
    const cells = CAUSAL.map((row, query) => (query === 3 ? [0.01, 0.29, 0.3, 0.4] : row));
    const { view } = await text(cells, { query: 2 });
    expect(lines(view)).toEqual(["the bank lent money"]);
    expect(tinted(view)).toEqual([0, 1]);
    expect(word(view, 2).className).toContain("aw-pill");
    expect(word(view, 3).className).toContain("aw-word-masked");
    expect(view.legend).toContain("gray: masked");
    const other = await text(cells, { query: 3 });
    expect(tinted(other.view)).toEqual([1, 2]);
  });

  test("special tokens are left out of text and range, not of the sum, and that is said", async () => {
    const cells = [[0.9, 0.06, 0.02, 0.02], ...CAUSAL.slice(1)];
    const { view } = await text(cells, {
      query: 0,
      tokens: tokensOf(["[CLS]", "bank", "lent", "money"]),
      key_tokens: tokensOf(["[CLS]", "bank", "lent", "money"]),
    });
    expect(lines(view)).toEqual(["bank lent money"]);
    expect(tinted(view)).toEqual([1, 2, 3]);
    expect(view.legend).toContain("special tokens are left out of the text, not of the sum");
    expect(view.legend).toContain(".06");
    expect(view.panel).toContain("[CLS] .9000");
    expect(view.panel).toContain("Sum 1.0000");
  });

  test("pointing previews, a click pins, another frees", async () => {
    const { view, host } = await text(CAUSAL);
    expect(tinted(view)).toEqual([0, 1, 2, 3]);
    expect(view.legend).toContain("Mean weight received");
    expect(view.find(".aw-ramp span").title).toBe("Of the queries that may attend to it");
    await point(word(view, 1));
    expect(tinted(view)).toEqual([0, 1]);
    expect(view.panel).toContain("bank attends to");
    await click(word(view, 1));
    expect(host.saved.at(-1)).toMatchObject({ query: 1 });
    await point(word(view, 0));
    expect(view.status).toContain("bank 1 → the 0 weight 0.250000");
    await click(word(view, 1));
    expect(host.get("query")).toBeNull();
  });

  test("shift adds a pin", async () => {
    const { view, host } = await text(CAUSAL, { query: 1 });
    await click(word(view, 3), { shiftKey: true });
    expect(host.get("pins")).toEqual([[1, null], [3, null]]); // biome-ignore format: one line
    expect(word(view, 3).className).toContain("aw-pill");
    expect(word(view, 1).className).toContain("aw-word-outline");
  });

  test("read the other way it is colored by who attends to the pinned key, and the pin comes along", async () => {
    const { view, host } = await text(CAUSAL, { query: 1 });
    view.button(/^Read/).click();
    await settle();
    view.button("what attends to it").click();
    await settle();
    expect(host.get("direction")).toBe("key");
    expect([host.get("query"), host.get("key")]).toEqual([null, 1]);
    expect(word(view, 0).className).toContain("aw-word-masked");
    expect(tinted(view)).toEqual([2, 3]);
    expect(view.panel).toContain("is attended to by");
  });

  test("arrows move the pin along the text; Esc frees it; keys that are handled stop there", async () => {
    const { view, host } = await text(CAUSAL, { query: 1 });
    expect(await view.press("ArrowRight")).toEqual({ prevented: true, escaped: false });
    expect(host.get("query")).toBe(2);
    await view.press("End");
    expect(host.get("query")).toBe(3);
    await view.press("ArrowRight");
    expect(host.get("query")).toBe(3);
    await view.press("Home");
    expect(host.get("query")).toBe(0);
    await view.press("Escape");
    expect(host.get("query")).toBeNull();
    expect(await view.press("x")).toEqual({ prevented: false, escaped: false });
  });

  test("up and down go to the nearest token of the line", async () => {
    const cells = weights(60, 60);
    const tokens = tokensOf(Array.from({ length: 60 }, () => "wordword"));
    const { view, host } = await text(cells, { query: 1, tokens, key_tokens: tokens });
    const perLine = view.find(".aw-line").querySelectorAll("[data-at]").length;
    expect(perLine).toBeGreaterThan(2);
    await view.press("ArrowDown");
    expect(host.get("query")).toBe(1 + perLine);
    await view.press("ArrowUp");
    expect(host.get("query")).toBe(1);
  });

  test("two texts: queries above, keys below, each pinned by its own side", async () => {
    const cells = CAUSAL.map((row) => row.slice(0, 3).map((cell) => cell ?? 0.1));
    const { view, host } = await text(cells, { key_tokens: tokensOf(["eins", "zwei", "drei"]) });
    expect(view.all(".aw-passage .aw-heading").map((node) => node.textContent)).toEqual(["Queries", "Keys"]);
    expect(lines(view)).toEqual(["the bank lent money", "eins zwei drei"]);
    const [queries, keys] = view.all(".aw-passage") as [HTMLElement, HTMLElement];
    await click(queries.querySelector<HTMLElement>('[data-at="1"]')!);
    expect([host.get("query"), host.get("key")]).toEqual([1, null]);
    expect(queries.querySelectorAll(".aw-tinted")).toHaveLength(0);
    expect(keys.querySelectorAll(".aw-tinted").length).toBeGreaterThan(0);
    await click(keys.querySelector<HTMLElement>('[data-at="2"]')!);
    expect([host.get("query"), host.get("key")]).toEqual([null, 2]);
    expect(keys.querySelectorAll(".aw-tinted")).toHaveLength(0);
    expect(queries.querySelectorAll(".aw-tinted").length).toBeGreaterThan(0);
  });

  test("without tokens it is positions", async () => {
    const { view } = await text(CAUSAL, { tokens: null, key_tokens: null, query: 3 });
    expect(lines(view)).toEqual(["0 1 2 3"]);
  });

  test("a token is text, never markup", async () => {
    const evil = tokensOf(["<img src=x onerror=alert(1)>", "&amp;", "lent", "<b>"]);
    const { view } = await text(CAUSAL, { tokens: evil, key_tokens: evil, query: 3 });
    expect(view.root.querySelector("img, b b")).toBeNull();
    expect(word(view, 0).textContent).toContain("<img");
  });

  test("of 10,000 tokens only the lines in view are in the page, and one row is asked for", async () => {
    const n = 10_000;
    const state = stateOf(CAUSAL, { view: "text", query: 9_000 });
    const tokens = tokensOf(Array.from({ length: n }, (_, at) => `w${at}`));
    const row = Array.from({ length: n }, (_, at) => (at === 8_999 ? 0.5 : 0.5 / n));
    const picture = { ...state.picture, queries: n, keys: n, query_bin: 2_500, key_bin: 2_500 };
    const answer = vi.fn((request: { kind: string }) => {
      if (request.kind !== "row") throw new Error("not asked");
      return {
        values: { data: new DataView(Float32Array.from(row).buffer), dtype: "float32", shape: [n], deflated: false },
        blocked: null,
      };
    });
    const facts = { ...factsOf(CAUSAL), queries: n, keys: n };
    const { view } = await show({ ...state, tokens, key_tokens: tokens, facts, picture }, { answer });
    await settle();
    expect(words(view).length).toBeLessThan(600);
    expect(tinted(view)).toContain(8_999);
    expect(word(view, 9_000).className).toContain("aw-pill");
  });

  test("of 131,072 a page is shown, around the pin, and only its weights are asked for", async () => {
    const n = 131_072;
    const state = stateOf(CAUSAL, { view: "text", query: 100_000, tokens: null, key_tokens: null });
    const picture = { ...state.picture, queries: n, keys: n, query_bin: 32_768, key_bin: 32_768 };
    const facts = { ...factsOf(CAUSAL), queries: n, keys: n };
    const answer = vi.fn(() => ({
      values: {
        data: new DataView(new Float32Array(4096).fill(0.1).buffer),
        dtype: "float32",
        shape: [1, 4096],
        deflated: false,
      },
      blocked: null,
    }));
    const { view, host } = await show({ ...state, facts, picture }, { answer: answer as never });
    await settle();
    expect(view.text(".aw-pager")).toContain("tokens 98,304 – 102,399 of 131,072");
    expect(word(view, 100_000).className).toContain("aw-pill");
    const cells = asked(host.sent, "cells");
    expect(cells.at(-1)).toMatchObject({ queries: [100_000, 100_001], keys: [98_304, 102_400] });
    view.button("Next tokens").click();
    await settle();
    expect(asked(host.sent, "cells").at(-1)).toMatchObject({ keys: [102_400, 106_496] });
    expect(asked(host.sent, "row")).toEqual([]);
  });

  test("words are offered where there are pieces, and only there", async () => {
    const plain = await text(CAUSAL);
    plain.view.button("More").click();
    await settle();
    expect(plain.view.all(".aw-popup [role=menuitemradio]").map((item) => item.textContent)).not.toContain("words");
    const facts = { ...factsOf(CAUSAL), has_pieces: true };
    const { view, host } = await text(CAUSAL, { facts });
    view.button("More").click();
    await settle();
    view.button(/^\s*words/).click();
    await settle();
    expect(host.saved.at(-1)).toMatchObject({ pieces: "words" });
  });

  test("what is pinned is heard", async () => {
    const { view } = await text(CAUSAL, { query: 3 });
    expect(view.find("[aria-live]").textContent).toBe("query 3 money, most: key 3 money, weight .4000");
    expect(view.canvas.getAttribute("aria-label")).toBe("Text, layer 0, head 0, 4 tokens");
  });
});

describe("image", () => {
  const grid = { rows: 1, columns: 3, query: 1, key: 1 };
  const tokens = { tokens: tokensOf(["[CLS]", "a", "b", "c"]), key_tokens: tokensOf(["[CLS]", "a", "b", "c"]) };
  /** The middle of a patch, in a picture whose place jsdom does not know. */
  const at = async (view: View, type: string, patch: number) => {
    const picture = view.find(".aw-patches");
    vi.spyOn(picture, "getBoundingClientRect").mockReturnValue({ left: 0, top: 0, width: 300, height: 100 } as DOMRect);
    picture.dispatchEvent(new MouseEvent(type, { bubbles: true, clientX: 100 * patch + 50, clientY: 50 }));
    await settle();
  };

  test("is offered only where there is a grid", async () => {
    const { view } = await text(CAUSAL);
    expect(view.all("[role=tab]").map((tab) => tab.textContent)).not.toContain("Image");
    const other = await text(CAUSAL, { grid });
    expect(other.view.all("[role=tab]").map((tab) => tab.textContent)).toContain("Image");
  });

  test("special tokens stand beside the picture; a click on a patch pins it", async () => {
    const { view, host } = await text(CAUSAL, { view: "image", grid, ...tokens });
    expect(lines(view)).toEqual(["[CLS]"]);
    await at(view, "click", 1);
    expect([host.get("query"), host.get("key")]).toEqual([2, null]);
    expect(view.all(".aw-patch-pinned")).toHaveLength(1);
    await click(word(view, 0));
    expect(host.get("query")).toBe(0);
  });

  test("read the other way a click pins the patch as a key", async () => {
    const { view, host } = await text(CAUSAL, { view: "image", grid, direction: "key", ...tokens });
    await at(view, "click", 0);
    expect([host.get("query"), host.get("key")]).toEqual([null, 1]);
  });

  test("its colors are the weights, each patch its own; what is masked has none", async () => {
    const { view } = await text(CAUSAL, { view: "image", grid, query: 2, ...tokens });
    const canvas = view.all<HTMLCanvasElement>(".aw-patches canvas")[1]!;
    const pixel = (patch: number) => [
      ...canvas.getContext("2d")!.getImageData(Math.floor(((patch + 0.4) * canvas.width) / 3), 20, 1, 1).data,
    ];
    expect(pixel(0)).not.toEqual(pixel(1));
    expect(pixel(2)[3]).toBe(0);
    expect(view.legend).toContain("no color: masked");
  });

  test("text queries over image keys: the text above, the picture below", async () => {
    const cells = CAUSAL.map((row) => row.slice(0, 3).map((cell) => cell ?? 0.1));
    const { view, host } = await text(cells, {
      view: "image",
      grid: { rows: 1, columns: 3, query: null, key: 0 },
      key_tokens: null,
    });
    expect(view.all(".aw-passage .aw-heading").map((node) => node.textContent)).toEqual(["Queries", "Keys"]);
    expect(view.all(".aw-patches")).toHaveLength(1);
    await click(word(view, 2));
    expect(host.get("query")).toBe(2);
    await at(view, "click", 2);
    expect([host.get("query"), host.get("key")]).toEqual([null, 2]);
  });

  test("arrows move from patch to patch, and off the picture to the token beside it", async () => {
    const { view, host } = await text(CAUSAL, { view: "image", grid, query: 2, ...tokens });
    await view.press("ArrowRight");
    expect(host.get("query")).toBe(3);
    await view.press("ArrowLeft", { shiftKey: true });
    expect(host.get("query")).toBe(0);
    await view.press("ArrowDown");
    expect(host.get("query")).toBe(1);
  });

  test("with nothing pinned its colors are what each patch receives: the mean over the queries that may attend", async () => {
    const { view } = await text(CAUSAL, { view: "image", grid, ...tokens });
    const received = [1, 2, 3].map((key) => {
      const own = CAUSAL.map((row) => row[key] ?? null).filter((cell) => cell !== null);
      return own.reduce((a, b) => a + b, 0) / own.length;
    });
    const canvas = view.all<HTMLCanvasElement>(".aw-patches canvas")[1]!;
    const shade = (patch: number) => {
      const [x, y] = [Math.floor(((patch + 0.4) * canvas.width) / 3), 20];
      return canvas
        .getContext("2d")!
        .getImageData(x, y, 1, 1)
        .data.slice(0, 3)
        .reduce((a, b) => a + b, 0);
    };
    const order = [0, 1, 2].sort((a, b) => received[b]! - received[a]!);
    expect([0, 1, 2].sort((a, b) => shade(a) - shade(b))).toEqual(order); // the darker, the more
  });

  test("a video has a frame at a time; the frame follows the pin, and a click is in the frame on display", async () => {
    const video = { rows: 1, columns: 2, frames: 2, query: 0, key: 0 };
    const { view, host } = await text(CAUSAL, { view: "image", grid: video, tokens: null, key_tokens: null, query: 3 });
    expect(view.all(".aw-strip button").map((one) => one.getAttribute("aria-pressed"))).toEqual(["false", "true"]);
    expect(view.panel).toContain("frame 1: 0, 1 attends to");
    await click(view.find(".aw-strip button"));
    expect(view.find(".aw-frames b").textContent).toBe("0");
    const picture = view.find(".aw-patches");
    vi.spyOn(picture, "getBoundingClientRect").mockReturnValue({ left: 0, top: 0, width: 200, height: 100 } as DOMRect);
    picture.dispatchEvent(new MouseEvent("click", { bubbles: true, clientX: 150, clientY: 50 }));
    await settle();
    expect(host.get("query")).toBe(1);
  });

  test("a window of an image has its own patches; a click on another window shows that one", async () => {
    const windows = [
      [0, 1, 3, 4],
      [2, -1, 5, -1],
    ];
    const cells = CAUSAL;
    const { view, host } = await text(cells, {
      ...{ view: "image", tokens: null, key_tokens: null, query: 1 },
      grid: { rows: 2, columns: 3, query: 0, key: 0, windows },
      facts: factsOf(cells, { batches: 2, axes_read: "windows" }),
    });
    expect(view.panel).toContain("row 0, 1 attends to");
    expect(view.all(".aw-group").some((one) => one.textContent?.startsWith("Window"))).toBe(true);
    const picture = view.find(".aw-patches");
    vi.spyOn(picture, "getBoundingClientRect").mockReturnValue({ left: 0, top: 0, width: 300, height: 200 } as DOMRect);
    picture.dispatchEvent(new MouseEvent("click", { bubbles: true, clientX: 250, clientY: 150 }));
    await settle();
    expect([host.get("batch"), host.get("query")]).toEqual([1, 2]);
  });

  test("boxes on the image are filled by weight, and a click pins one", async () => {
    const image = { mime: "image/png", data: "", width: 200, height: 100 };
    const places = [
      [0, 0, 1, 1],
      [0.5, 0, 1, 1],
      [0, 0.5, 0.5, 1],
      [0.1, 0.1, 0.2, 0.2],
    ];
    const { view, host } = await text(CAUSAL, {
      view: "image",
      image,
      boxes: { places, query: true, key: true },
      query: 3,
    });
    expect(view.all(".aw-box").map((box) => Number((box as HTMLElement).dataset.at))).toEqual([0, 1, 2, 3]);
    expect(view.all(".aw-box i")).toHaveLength(4);
    expect(view.find("[data-pinned]").dataset.at).toBe("3");
    await click(view.find('.aw-box[data-at="1"]'));
    expect(host.get("query")).toBe(1);
    expect(view.all(".aw-box i")).toHaveLength(2); // masked ones have no color
  });

  test("weights over the image can be smooth, which changes pixels between centers and none at them", async () => {
    const { view, host } = await text(CAUSAL, { view: "image", grid, query: 3, ...tokens });
    const canvas = view.all<HTMLCanvasElement>(".aw-patches canvas")[1]!;
    const pixel = (share: number) => [
      ...canvas.getContext("2d")!.getImageData(Math.round(share * canvas.width), Math.floor(canvas.height / 2), 1, 1)
        .data,
    ];
    const [center, edge] = [pixel(0.5), pixel(0.34)];
    await click(view.all<HTMLElement>(".aw-overlay [role=radio]")[1]!);
    expect(host.get("overlay")).toBe("smooth");
    expect(pixel(0.34)).not.toEqual(edge);
    for (const [at, value] of pixel(0.5).entries()) expect(Math.abs(value - center[at]!)).toBeLessThan(12);
  });

  test("in the text view patches are left out, and that is said", async () => {
    const { view } = await text(CAUSAL, {
      grid: { ...grid, columns: 2 },
      tokens: tokensOf(WORDS),
      key_tokens: tokensOf(WORDS),
    });
    expect(lines(view)).toEqual(["the money"]);
    expect(view.legend).toContain("patches are in the image, not in the text");
  });
});
