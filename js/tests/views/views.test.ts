// @vitest-environment jsdom
/** What the parts of the widget say and show: panel, legend, status, pickers, menus. */

import { describe, expect, test, vi } from "vitest";
import type { Traits } from "../../src/contract/traits";
import type { ColorRange, Stage } from "../../src/contract/values";
import { buildTable, parseColor } from "../../src/draw/color";
import { PAGE, pressOn, settle, show, type View } from "../helpers/page.ts";
import {
  CAUSAL,
  type Cells,
  codes,
  factsOf,
  floats,
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

async function draw(cells: Cells, changes: Partial<Traits> = {}, width = 900) {
  const state = stateOf(cells, changes);
  return show(
    state,
    python(state, () => cells),
    { width },
  );
}

const table = (kind: "sequential" | "diverging") =>
  buildTable({
    kind,
    palette: "attnwidget",
    theme: "light",
    page: parseColor(PAGE.background)!,
    ink: parseColor(PAGE.ink)!,
  }).css.map((css) => {
    const { r, g, b } = parseColor(css)!;
    return [r, g, b, 255];
  });

const four = (value: number) => value.toFixed(4).replace(/^0/, "");

/** The panel's rows as it says them. */
const rows = (view: View) =>
  view.all(".aw-ranks li button").map((row) => ({
    position: row.querySelector(".aw-position")?.textContent ?? "",
    token: row.querySelector(".aw-token bdi")?.textContent ?? "",
    number: row.querySelector(".aw-number")?.textContent ?? "",
    bar: row.querySelector<HTMLElement>(".aw-bar i")!.style.width,
  }));
/** "Entropy" → "1.49 of 1.58 bits" */
const sums = (view: View) =>
  Object.fromEntries(
    view.all(".aw-sums > div").map((row) => [row.children[0]!.textContent, row.children[1]!.textContent]),
  );

describe("the panel", () => {
  test("ranks the keys of a query; sum, entropy and 90 % are those of its row", async () => {
    const next = random(3);
    for (const query of [0, 7, 19]) {
      const cells = weights(20, 20, 1 + Math.floor(100 * next()));
      const { view } = await draw(cells, { query });
      const sorted = cells[query]!.map((value, key) => ({ value, key })).sort((a, b) => b.value - a.value);
      const shown = rows(view);
      expect(shown).toHaveLength(12);
      expect(shown.map(({ token }) => Number(token))).toEqual(sorted.slice(0, 12).map(({ key }) => key));
      expect(shown.map(({ number }) => number)).toEqual(sorted.slice(0, 12).map(({ value }) => four(value)));
      expect(Number.parseFloat(shown[3]!.bar)).toBeCloseTo((100 * sorted[3]!.value) / sorted[0]!.value, 2);
      const rest = sorted.slice(12).reduce((sum, { value }) => sum + value, 0);
      expect(view.text(".aw-rest")).toBe(`8 more keys ${four(rest)}`);
      const entropy = sorted.reduce((sum, { value }) => sum - value * Math.log2(value), 0);
      let [held, count] = [0, 0];
      while (held < 0.9) held += sorted[count++]!.value;
      expect(sums(view)).toEqual({
        Entropy: `${entropy.toFixed(2)} of ${Math.log2(20).toFixed(2)} bits`,
        "90 % in": `${count} ${count === 1 ? "key" : "keys"}`,
        Sum: "1.0000",
      });
    }
  });

  test("counts masked keys apart, and takes its most from those that are allowed", async () => {
    const { view } = await draw(CAUSAL, { query: 2, key: 0 });
    expect(rows(view).map(({ token, number }) => `${token} ${number}`)).toEqual([
      "the .5000",
      "bank .3000",
      "lent .2000",
    ]);
    expect(view.text(".aw-rest")).toBe("1 masked");
    expect(sums(view).Entropy).toBe("1.49 of 1.58 bits");
    expect(view.find("[aria-current]").textContent).toContain("the");
  });

  test("six keys where it is narrow", async () => {
    const { view } = await draw(weights(20, 20), { query: 3 }, 400);
    expect(rows(view)).toHaveLength(6);
    expect(view.text(".aw-rest")).toMatch(/^14 more keys/);
  });

  test("a click on a key of it pins the pair, in the row and in the column", async () => {
    const row = await draw(CAUSAL, { query: 3 });
    row.view.all<HTMLButtonElement>(".aw-rank")[1]!.click();
    expect(row.host.saved).toEqual([{ key: 2 }]);
    const column = await draw(CAUSAL, { key: 1 });
    expect(column.view.panel).toMatch(/^bank is attended to by 1 bank \.7500 2 lent \.3000 3 money \.2000/);
    expect(sums(column.view)).toEqual({ "Mean over 3 queries": ".4167", Sum: "1.2500" });
    column.view.all<HTMLButtonElement>(".aw-rank")[1]!.click();
    expect(column.host.saved).toEqual([{ query: 2 }]);
  });

  test("a query that may see nothing: its output is 0", async () => {
    const { view } = await draw(
      [
        [X, X],
        [1, 0],
      ],
      { query: 0 },
    );
    expect(view.panel).toBe("query 0 attends to Fully masked: its output is 0.");
    expect(view.all(".aw-sums")).toHaveLength(0);
  });

  test("a key that no query may see", async () => {
    const { view } = await draw(
      [
        [1, X],
        [1, X],
      ],
      { key: 1 },
    );
    expect(view.panel).toBe("key 1 is attended to by No query may attend to it.");
  });

  test("NaN is counted and where to look for it is said; no sum is made of it", async () => {
    const { view } = await draw(
      [
        [Number.NaN, Number.NaN, 0.5],
        [1, 0, 0],
      ],
      { query: 0 },
    );
    expect(view.panel).toContain("NaN in 2 keys: look for it in q of this query, or in k.");
    expect(rows(view).map(({ number }) => number)).toEqual([".5000"]);
    expect(view.all(".aw-sums")).toHaveLength(0);
    const column = await draw(
      [
        [Number.NaN, 1],
        [1, 0],
      ],
      { key: 0 },
    );
    expect(column.view.panel).toContain("NaN in 1 query: look for it in q, or in k of this key.");
  });

  test("a row of nothing but NaN", async () => {
    const { view } = await draw([[Number.NaN, Number.NaN]], { query: 0 });
    expect(view.panel).toContain("NaN in 2 keys");
    expect(view.status).toContain("query 0");
  });

  test("scores have bars in two colors, three decimals, and no sums", async () => {
    const { view } = await draw(
      [
        [-2, 1.5, 0.25],
        [0, 0, 0],
      ],
      { stage: "scores", query: 0 },
    );
    expect(view.panel).toBe("query 0 scores over its keys 1 1.500 2 0.250 0 −2.000");
    const bars = view.all(".aw-bar i");
    expect(bars.map(({ style }) => style.background)).toEqual([
      "var(--aw-above)",
      "var(--aw-above)",
      "var(--aw-below)",
    ]);
    expect(bars.map(({ style }) => style.width)).toEqual(["75%", "12.5%", "100%"]);
    expect(view.all(".aw-sums")).toHaveLength(0);
  });

  test("an infinite score is said, and fills its bar", async () => {
    const { view } = await draw([[Number.POSITIVE_INFINITY, 1, Number.NEGATIVE_INFINITY]], {
      stage: "scores",
      query: 0,
    });
    expect(rows(view).map(({ number, bar }) => [number, bar])).toEqual([
      ["+∞", "100%"],
      ["1.000", "100%"],
      ["−∞", "100%"],
    ]);
  });

  test("without tokens a position is its own name, said once", async () => {
    const { view } = await draw(weights(6, 6), { query: 1, key: 4 });
    expect(view.text(".aw-panel-head")).toBe("query 1 attends to");
    expect(rows(view)[0]!.position).toBe("");
  });
});

describe("the legend", () => {
  test("ends at the head's maximum, with a mark at the pinned weight", async () => {
    const { view } = await draw(CAUSAL, { query: 1, key: 1 });
    expect(view.legend).toMatch(/^Weight 0 .*1 masked range of this head$/);
    expect(view.find<SVGElement>(".aw-mark" as never).style.left).toBe("75%");
  });

  test("without a pin the mark follows the pointer", async () => {
    const { view } = await draw(CAUSAL);
    expect(view.all(".aw-mark")).toHaveLength(0);
    await view.hover(1, 0);
    expect(view.find(".aw-mark").style.left).toBe("25%");
    await view.hover(0, 3);
    expect(view.all(".aw-mark")).toHaveLength(0);
  });

  test.each<[ColorRange, string, number[]]>([
    ["head", "range of this head", [0.75, 0.2]],
    ["unit", "fixed range", [0.75, 0.2]],
    ["row", "each row has its own range", [1, 0.4]],
    [[0.1, 0.5], "custom range", [1, 0.25]],
  ])("range %j: what it is called, and the colors of two cells", async (color_range, words, shares) => {
    const { view } = await draw(CAUSAL, { color_range });
    expect(view.legend).toContain(words);
    const places = [view.at(1, 1), view.at(2, 2)];
    const colors = table("sequential");
    for (const [at, { x, y }] of places.entries()) {
      expect(view.pixel(x + 15, y + 15)).toEqual(colors[Math.round(255 * shares[at]!)]);
    }
  });

  test("says how many cells a range of one's own cuts off, above and below", async () => {
    const { view } = await draw(CAUSAL, { color_range: [0.2, 0.5] });
    expect(view.legend).toContain("above .5: 2 cells");
    expect(view.legend).toContain("below .2: 1 cell");
    expect((await draw(CAUSAL, { color_range: "unit" })).view.legend).not.toMatch(/above|below/);
  });

  test("of scores runs from −m to m, and says what is cut off beyond", async () => {
    const cells = [
      [-4, 1],
      [2, 0],
    ];
    const { view } = await draw(cells, { stage: "scores" });
    expect(view.legend).toMatch(/^Score −4\.0 0 4\.0/);
    const own = await draw(cells, { stage: "scores", color_range: [-1, 3] });
    expect(own.view.legend).toContain("beyond ±3.0: 1 cell");
  });

  test("on a log scale says so", async () => {
    const { view, host } = await draw(CAUSAL);
    const { pixels } = view;
    host.fromPython({ color_scale: "log" });
    expect(view.legend).toMatch(/^Weight, log/);
    expect(view.pixels).not.toBe(pixels);
  });

  test("counts every kind of cell that is no number", async () => {
    const { view } = await draw(
      [
        [Number.NaN, Number.NaN, 1],
        [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, X],
      ],
      { stage: "masked" },
    );
    expect(view.legend).toContain("masked NaN, 2 cells +∞, 1 cell −∞, 1 cell");
  });

  test("of a picture whose cells stand for several says for how many, and of which sort", async () => {
    const cells = weights(64, 64);
    const picture = quantised(cells, {}, 2);
    const { view, host } = await draw(cells, { picture });
    expect(view.legend).toContain("each cell of the picture: the maximum of 2 × 2");
    host.fromPython({ pool: "mean", picture: quantised(cells, { pool: "mean" }, 2) });
    await settle();
    expect(view.legend).toContain("each cell of the picture: the mean of 2 × 2");
  });
});

describe("stages and palettes", () => {
  test.each<[Stage, string]>([
    ["scores", "score"],
    ["scaled", "scaled score"],
    ["masked", "masked score"],
    ["weights", "weight"],
  ])("%s: colors of its own kind, and its own word", async (stage, word) => {
    const cells = [
      [0.5, -1],
      [1, 0.25],
    ];
    const { view } = await draw(cells, { stage, query: 1, key: 0 });
    expect(view.status).toContain(`${word} 1.000000`);
    const { x, y } = view.at(1, 0, [2, 2]);
    expect(view.pixel(x + 14, y + 14)).toEqual(table(stage === "weights" ? "sequential" : "diverging")[255]);
  });

  test("viridis is viridis, and the zero-is-paper palette is not", async () => {
    const { view, host } = await draw([[0, 1]]);
    const zero = () => {
      const { x, y } = view.at(0, 0, [1, 2]);
      return view.pixel(x + 14, y + 14);
    };
    expect(zero()).toEqual(table("sequential")[0]);
    host.fromPython({ palette: "viridis" });
    expect(zero()).toEqual([68, 1, 84, 255]);
  });

  test("a scale with one value: all zeros draw zeros", async () => {
    const { view } = await draw([
      [0, 0],
      [0, 0],
    ]);
    const { x, y } = view.at(1, 1, [2, 2]);
    expect(view.pixel(x, y)).toEqual(table("sequential")[0]);
    expect(view.legend).toMatch(/^Weight 0/);
  });

  test("a head of nothing but NaN, or of nothing but masked cells, draws all the same", async () => {
    const nan = await draw([[Number.NaN, Number.NaN]]);
    expect(nan.view.legend).toContain("NaN, 2 cells");
    const masked = await draw([[X, X]]);
    expect(masked.view.legend).toContain("masked");
    await masked.view.hover(0, 1, [1, 2]);
    expect(masked.view.status).toContain("masked");
  });
});

describe("the picker", () => {
  const layers = (count: number) => Array.from({ length: count }, (_, at) => `layer ${at}`);

  test("is not there with one layer and one head", async () => {
    const { view } = await draw(CAUSAL, { facts: factsOf(CAUSAL, { layers: ["only"], heads: 1 }) });
    expect(view.find("[data-aw=picker]").hidden).toBe(true);
    expect(view.status).toBe("4 × 4 · float32 · cpu");
  });

  test("with one layer and several heads has heads only, and the other way round", async () => {
    const heads = await draw(CAUSAL, { facts: factsOf(CAUSAL, { layers: ["only"] }) });
    expect(heads.view.text("[data-aw=picker]")).toBe("Head 0 1 2 3");
    const both = await draw(CAUSAL, { facts: factsOf(CAUSAL, { heads: 1 }) });
    expect(both.view.text("[data-aw=picker]")).toBe("Layer 0 1");
  });

  test("up to twelve layers are chips, with the layer's name on hover", async () => {
    const { view, host } = await draw(CAUSAL, { facts: factsOf(CAUSAL, { layers: layers(12) }) });
    expect(view.all("[aria-label=Layer] button")).toHaveLength(12);
    expect(view.button("layer 7").title).toBe("layer 7");
    view.button("layer 7").click();
    expect(host.saved).toEqual([{ layer: 7 }]);
    expect(view.button("layer 7").getAttribute("aria-checked")).toBe("true");
  });

  test("more are stepped through, or typed", async () => {
    const { view, host } = await draw(CAUSAL, { layer: 17, facts: factsOf(CAUSAL, { layers: layers(80) }) });
    expect(view.text(".aw-stepper")).toContain("of 80");
    view.button("next layer").click();
    await settle();
    view.button("previous layer").click();
    await settle();
    const input = view.find<HTMLInputElement>(".aw-stepper input");
    const type = async (text: string) => {
      input.value = text;
      input.dispatchEvent(new Event("change", { bubbles: true }));
      await settle();
    };
    await type("63");
    expect(host.saved).toEqual([{ layer: 18 }, { layer: 17 }, { layer: 63 }]);
    for (const wrong of ["80", "-1", "x", ""]) {
      await type(wrong);
      expect(input.value).toBe("63");
    }
    expect(host.saved).toHaveLength(3);
  });

  test("steps end at the first and the last", async () => {
    const facts = factsOf(CAUSAL, { layers: layers(80) });
    const first = await draw(CAUSAL, { layer: 0, facts });
    expect([first.view.button("previous layer").disabled, first.view.button("next layer").disabled]).toEqual([
      true,
      false,
    ]);
    const last = await draw(CAUSAL, { layer: 79, facts });
    expect([last.view.button("previous layer").disabled, last.view.button("next layer").disabled]).toEqual([
      false,
      true,
    ]);
  });

  test("a batch of samples is stepped through", async () => {
    const { view, host } = await draw(CAUSAL, { facts: factsOf(CAUSAL, { batches: 3 }) });
    expect(view.text("[data-aw=picker]")).toMatch(/^Sample/);
    view.button("next sample").click();
    expect(host.saved).toEqual([{ batch: 1 }]);
    expect((await draw(CAUSAL)).view.text("[data-aw=picker]")).not.toContain("Sample");
  });

  test("each head is shown by its own picture, on its own range", async () => {
    const facts = factsOf(CAUSAL, { heads: 3 });
    const values = codes([1, 0, 0, 1, 0.5, 0.5, 0.5, 0.5, X, 0, 1, Number.NaN], [3, 2, 2], { kind: "unit", high: 1 });
    const { view } = await draw(CAUSAL, { facts, thumbnails: { layer: 0, batch: 0, values } });
    const colors = table("sequential");
    const pixels = view.all<HTMLCanvasElement>("[aria-label=Head] canvas").map((canvas) => {
      expect([canvas.width, canvas.height]).toEqual([2, 2]);
      const { data } = canvas.getContext("2d")!.getImageData(0, 0, 2, 2);
      return [0, 4, 8, 12].map((at) => [...data.slice(at, at + 4)]);
    });
    expect(pixels[0]).toEqual([colors[255], colors[0], colors[0], colors[255]]);
    expect(pixels[1]![0]).toEqual(colors[128]);
    expect(pixels[2]![0]).toEqual([0, 0, 0, 0]);
    expect(pixels[2]![2]).toEqual(colors[255]);
  });

  test("64 heads stand close, with a number at every eighth and at the chosen one", async () => {
    const { view, host } = await draw(CAUSAL, { head: 21, facts: factsOf(CAUSAL, { heads: 64 }) });
    expect(view.find(".aw-heads").hasAttribute("data-dense")).toBe(true);
    expect(view.all("[aria-label=Head] button")).toHaveLength(64);
    const numbers = view.all("[aria-label=Head] button").map((button) => button.textContent.trim());
    expect(numbers.filter(Boolean)).toEqual(["0", "8", "16", "21", "24", "32", "40", "48", "56"]);
    view.button("head 63").click();
    expect(host.saved).toEqual([{ head: 63 }]);
    expect((await draw(CAUSAL, { facts: factsOf(CAUSAL, { heads: 12 }) })).view.all("[data-dense]")).toHaveLength(0);
  });

  test("heads that share keys and values stand over one line, and say with whom", async () => {
    const { view } = await draw(CAUSAL, { facts: factsOf(CAUSAL, { heads: 8, groups: 2 }) });
    expect(view.button("head 5").title).toBe("head 5, key/value head 1; thumbnail with its own color range");
    expect(view.all(".aw-shared[data-last]")).toHaveLength(2);
    expect((await draw(CAUSAL)).view.all(".aw-shared")).toHaveLength(0);
  });
});

describe("widths", () => {
  test.each([
    [320, "narrow"],
    [519, "narrow"],
    [520, "under"],
    [719, "under"],
    [720, "beside"],
    [1099, "beside"],
    [1100, "wide"],
    [2000, "wide"],
  ])("%s px: %s, and all of it is there", async (width, mode) => {
    const facts = factsOf(CAUSAL, { batches: 2 });
    const { view } = await draw(CAUSAL, { query: 1, facts }, width);
    expect(view.root.dataset.mode).toBe(mode);
    expect(view.text()).toContain("attends to");
    expect(view.button("More")).toBeDefined();
    if (mode === "narrow") expect(view.button("next head")).toBeDefined();
    else expect(view.find("[role=tab]").getAttribute("aria-selected")).toBe("true");
  });

  test.each([400, 600, 900])("at %s px every look can be chosen, wherever its menu is", async (width) => {
    const { view, host } = await draw(CAUSAL, {}, width);
    const choose = async (item: string) => {
      for (const menu of view.all<HTMLButtonElement>("[aria-haspopup=menu]")) {
        menu.click();
        await settle();
        const found = view
          .all<HTMLButtonElement>("[role=menuitemradio]")
          .find(({ textContent }) => textContent.startsWith(item));
        if (found) {
          found.click();
          await settle();
          return;
        }
        menu.click();
        await settle();
      }
      throw new Error(`no menu has ${item}`);
    };
    for (const item of ["log", "each", "scores", "viridis", "dark"]) await choose(item === "each" ? "row" : item);
    expect(host.saved).toEqual([
      { color_scale: "log" },
      { color_range: "row" },
      { stage: "scores" },
      { palette: "viridis" },
      { theme: "dark" },
    ]);
    expect(view.root.dataset.theme).toBe("dark");
  });
});

describe("a range of one's own", () => {
  const open = async (view: View) => {
    view.button("Color linear").click();
    await settle();
  };
  const give = async (view: View, low: string, high: string) => {
    const [first, second] = view.all<HTMLInputElement>(".aw-popup input");
    first!.value = low;
    second!.value = high;
    view.find("form").dispatchEvent(new Event("submit", { bubbles: true, cancelable: true }));
    await settle();
  };

  test("starts from the one in force, and is set with two numbers", async () => {
    const { view, host } = await draw(CAUSAL);
    await open(view);
    expect(view.all<HTMLInputElement>(".aw-popup input").map(({ value }) => value)).toEqual(["0", "1"]);
    await give(view, "0.1", ".5");
    expect(host.saved).toEqual([{ color_range: [0.1, 0.5] }]);
    expect(view.legend).toContain("custom range");
  });

  test.each([
    ["", "1", "Enter two numbers"],
    ["a", "1", "Enter two numbers"],
    ["0", "Infinity", "Enter two numbers"],
    ["1", "1", "The first must be smaller"],
    ["2", "1", "The first must be smaller"],
  ])("%j to %j is refused in words: %s", async (low, high, words) => {
    const { view, host } = await draw(CAUSAL);
    await open(view);
    await give(view, low, high);
    expect(view.text("[role=alert]")).toBe(words);
    expect(host.saved).toEqual([]);
  });

  test("follows the ends in force while the menu is open, also in the place of what was typed", async () => {
    const ends = (view: View) => view.all<HTMLInputElement>(".aw-popup input").map(({ value }) => value);
    const cells = [
      [0.5, 0.5],
      [0.25, 0.5],
    ];
    const { view, host } = await draw(cells, { color_range: "layer" });
    view.button(/^Color linear/).click();
    await settle();
    expect(ends(view)).toEqual(["0", "0.5"]);
    const { thumbnails } = stateOf(cells);
    host.fromPython({ thumbnails: { ...thumbnails!, stage: "weights", highs: floats([0.5, 0.8, 0.5, 0.5]) } });
    await settle();
    expect(ends(view)).toEqual(["0", "0.8"]);
    await give(view, "0.1", "0.4");
    host.fromPython({ color_range: [0.2, 0.3] });
    await settle();
    expect(ends(view)).toEqual(["0.2", "0.3"]);
    await give(view, "0.3", "0.3");
    expect(view.text("[role=alert]")).toBe("The first must be smaller");
    host.fromPython({ color_range: [0.1, 0.2] });
    await settle();
    expect(view.text("[role=alert]")).toBe(""); // it was of other ends
  });

  test("keeps the digits of an end that is not typed anew, and the focus where it is", async () => {
    const { view, host } = await draw(CAUSAL, { color_range: [0.123456, 0.5] });
    view.button(/^Color linear/).click();
    await settle();
    const high = view.all<HTMLInputElement>(".aw-popup input")[1]!;
    high.focus();
    await give(view, "0.123", "0.75");
    expect(host.saved).toEqual([{ color_range: [0.123456, 0.75] }]);
    expect(document.activeElement).toBe(high);
  });

  test("true minus signs are read", async () => {
    const { view, host } = await draw(CAUSAL, { stage: "scores" });
    await open(view);
    await give(view, "−2", "2");
    expect(host.saved).toEqual([{ color_range: [-2, 2] }]);
  });

  test("keys typed there do not reach the notebook", async () => {
    const { view } = await draw(CAUSAL);
    await open(view);
    expect((await pressOn(view.find(".aw-popup input"), "a")).escaped).toBe(false);
  });
});

describe("numbers of What if", () => {
  test("follow the rules in force while the menu is open, also in the place of what was typed, and keep the focus", async () => {
    const { view, host } = await draw(CAUSAL, { what_if: { scale: 2 } });
    view.button(/^What if/).click();
    await settle();
    const fields = () => view.all<HTMLInputElement>(".aw-fields input").map(({ value }) => value);
    expect(fields()).toEqual(["2", "", "", ""]);
    host.fromPython({ what_if: { scale: 3, window: null } });
    await settle();
    expect(fields()).toEqual(["3", "", "", "none"]);
    const scale = view.find<HTMLInputElement>(".aw-fields input");
    scale.focus();
    scale.value = "9";
    host.fromPython({ what_if: { scale: 4 } });
    await settle();
    expect(fields()).toEqual(["4", "", "", ""]);
    scale.value = "0.5";
    view.find("form").dispatchEvent(new Event("submit", { bubbles: true, cancelable: true }));
    await settle();
    expect(host.saved).toEqual([{ what_if: { scale: 0.5 } }]);
    expect(document.activeElement).toBe(scale);
    scale.value = "x";
    view.find("form").dispatchEvent(new Event("submit", { bubbles: true, cancelable: true }));
    await settle();
    expect(view.text("[role=alert]")).toBe("Scale must be a number");
    host.fromPython({ what_if: { window: 5 } });
    await settle();
    expect(fields()).toEqual(["", "", "", "5"]);
    expect(view.text("[role=alert]")).toBe("");
  });
});

describe("labels", () => {
  test("stand at every row and column, full text on hover", async () => {
    const { view } = await draw(CAUSAL);
    expect(view.all("button.aw-label").map(({ title }) => title)).toEqual([
      ...["the", "bank", "lent", "money"],
      ...["the", "bank", "lent", "money"],
    ]);
  });

  test("special tokens step back; what cannot be seen is shown", async () => {
    const tokens = tokensOf(["[CLS]", "a\nb", "\u200b", "Ġword"]);
    const { view } = await draw(CAUSAL, { tokens, key_tokens: tokens });
    expect(view.all("button.aw-label[data-special]").map(({ title }) => title)).toEqual(["[CLS]", "[CLS]"]);
    expect(view.all("bdi").map(({ textContent }) => textContent)).toEqual(expect.arrayContaining(["a↵b", "U+200B"]));
  });

  test("where cells are narrow, ticks at round positions stand instead", async () => {
    const cells = weights(300, 300);
    const { view } = await draw(cells, { facts: factsOf(cells) });
    expect(view.all("button.aw-label")).toHaveLength(0);
    const ticks = view.all(".aw-label[data-tick]").map(({ textContent }) => Number(textContent.replace(",", "")));
    expect(ticks).toContain(0);
    expect(ticks).toContain(299);
    for (const tick of ticks) expect(tick % 16 === 0 || tick === 299).toBe(true);
  });

  test("where they crowd, the pinned one is there, and none stands too near to it", async () => {
    const cells = weights(60, 60);
    const tokens = tokensOf(Array.from({ length: 60 }, (_, at) => `w${at}`));
    const { view } = await draw(cells, { tokens, key_tokens: tokens, query: 31, key: 33 }, 760);
    const titles = view.all("button.aw-label").map(({ title }) => Number(title.slice(1)));
    expect(titles.length).toBeLessThan(100);
    expect(titles).toContain(31);
    expect(titles).toContain(33);
    expect(view.all(".aw-label.aw-pill")).toHaveLength(2);
  });

  test("a very long token is shortened in the label, and whole on hover", async () => {
    const long = "internationalisationalisation".repeat(8);
    const { view } = await draw(CAUSAL, { tokens: tokensOf([long, "b", "c", "d"]) });
    const label = view.all("button.aw-label")[0]!;
    expect(label.title).toBe(long);
    expect(label.textContent).toContain("…");
    expect(label.textContent.length).toBeLessThan(60);
  });
});

test("a title stands above, and nothing where there is none", async () => {
  expect((await draw(CAUSAL, { title: "two senses of bank" })).view.text(".aw-title")).toBe("two senses of bank");
  expect((await draw(CAUSAL)).view.all(".aw-title")).toHaveLength(0);
});

test("the status line says of what the picture is", async () => {
  const facts = factsOf(CAUSAL, { batches: 2, is_causal: true, dtype: "bfloat16", device: "cuda:0" });
  const { view } = await draw(CAUSAL, { layer: 1, batch: 1, head: 2, facts });
  expect(view.status).toBe("layer 1 · sample 1 · head 2 · 4 × 4 · causal · bfloat16 · cuda:0");
});

test("a rectangle of queries and keys that differ in number", async () => {
  const cells = weights(3, 7);
  const { view, host } = await draw(cells, { facts: factsOf(cells) });
  await view.click(2, 6, [3, 7]);
  expect(host.saved).toEqual([{ query: 2, key: 6 }]);
  expect(view.status).toContain("3 × 7");
  expect(view.canvas.width / view.canvas.height).toBeCloseTo(7 / 3, 5);
});

test("one query over 512 keys is a band that can be pointed at", async () => {
  const cells = weights(1, 512);
  const { view } = await draw(cells, { facts: factsOf(cells), picture: pictureOf(cells) }, 1200);
  expect(view.canvas.height).toBeGreaterThanOrEqual(22);
  await view.hover(0, 300, [1, 512]);
  expect(view.status).toContain("query 0 → key 300");
});

test("at two device pixels to a CSS pixel the canvas has twice as many, and a click finds the same cell", async () => {
  vi.stubGlobal("devicePixelRatio", 2);
  const { view, host } = await draw(CAUSAL);
  expect([view.canvas.width, view.canvas.style.width]).toEqual([352, "176px"]);
  await view.click(2, 1);
  expect(host.saved).toEqual([{ query: 2, key: 1 }]);
  vi.unstubAllGlobals();
});

describe("what each key receives", () => {
  /** The mean of a column over the queries that may attend to it. */
  const mean = (cells: Cells, key: number) => {
    const column = cells.map((row) => row[key]!).filter((cell) => cell !== X) as number[];
    return column.reduce((sum, value) => sum + value, 0) / column.length;
  };
  const strip = (view: View) => view.all<HTMLCanvasElement>("canvas[data-aw=received]")[0]!;
  const name = (view: View) => view.all(".aw-sink-name").at(-1)?.textContent;
  const at = (canvas: HTMLCanvasElement, type: string, x: number) =>
    canvas.dispatchEvent(new MouseEvent(type, { clientX: x, clientY: 3, bubbles: true }));

  test("is said, in words, by number under the pointer, and a click pins the key", async () => {
    const { view, host } = await draw(CAUSAL);
    const means = [0, 1, 2, 3].map((key) => mean(CAUSAL, key));
    const most = means.indexOf(Math.max(...means));
    const label = strip(view).getAttribute("aria-label");
    expect(label).toMatch(/^Mean weight that each key receives.*: most by /);
    expect(label).toContain(four(means[most]!));
    expect(name(view)).toBe("received");
    const left = strip(view).getBoundingClientRect().left;
    at(strip(view), "pointermove", left + 1);
    await settle(50);
    expect(name(view)).toBe(four(means[0]!));
    at(strip(view), "click", left + 1);
    await settle(50);
    expect(host.saved).toEqual([{ key: 0 }]);
    at(strip(view), "pointerleave", left + 1);
    await settle(50);
    expect(name(view)).toBe("received");
  });

  test("a picture of other numbers than the weights has its place, empty", async () => {
    const { view } = await draw(CAUSAL, { picture: pictureOf(CAUSAL, { stage: "scores" }), stage: "scores" });
    expect(strip(view).closest<HTMLElement>(".aw-sink")!.hidden).toBe(true);
  });
});
