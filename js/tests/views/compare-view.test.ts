// @vitest-environment jsdom
/** Two attentions side by side, in a page. */

import { describe, expect, test } from "vitest";
import type { Traits } from "../../src/contract/traits";
import type { Stage } from "../../src/contract/values";
import type { HostOptions } from "../../src/kernel/host";
import { changesOf, comparisonOf, FULL, integers } from "../helpers/comparison.ts";
import { settle, show, type View } from "../helpers/page.ts";
import { CAUSAL, factsOf, pictureOf, pooled, stateOf, tokensOf, weights } from "../helpers/states.ts";
import { useFakeTime } from "../helpers/timers.ts";

useFakeTime();

async function draw(changes: Partial<Traits> = {}, width = 900, options: HostOptions = { answer: () => ({}) }) {
  const state = stateOf(FULL, {
    view: "compare",
    sides: ["no mask", "causal"],
    against: "causal",
    comparison: comparisonOf(FULL, CAUSAL),
    ...changes,
  });
  return show(state, options, { width });
}

const canvas = (view: View, name: string) => view.find<HTMLCanvasElement>(`[data-aw=${name}]`);
const pixel = (view: View, name: string, row: number, column: number) => {
  const drawn = canvas(view, name);
  const at = (index: number, size: number) => Math.floor(((index + 0.15) * size) / 4);
  return [...drawn.getContext("2d")!.getImageData(at(column, drawn.width), at(row, drawn.height), 1, 1).data];
};
const rows = (view: View) =>
  view
    .all(".aw-change-list button")
    .map((row) => [...row.children].filter((_, at) => at !== 1).map((cell) => cell.textContent));

describe("the view", () => {
  test("is the first tab of a comparison, and of nothing else", async () => {
    const { view } = await draw();
    expect(view.all("[role=tab]").map((tab) => tab.textContent)[0]).toBe("Compare");
    expect(view.find("[role=tab][aria-selected=true]").textContent).toBe("Compare");
    const plain = await show(stateOf(FULL), { answer: () => ({}) });
    expect(plain.view.all("[role=tab]").map((tab) => tab.textContent)).not.toContain("Compare");
  });

  test("heads of which a capture kept some have their numbers in the model", async () => {
    const { view } = await draw({ comparison: { ...comparisonOf(FULL, CAUSAL), head_numbers: [5, null] } });
    expect(view.all(".aw-compare-head").map((head) => head.textContent)).toEqual([
      "no maskA: layer 0, head 0 (5 in the model)",
      "causalB: layer 0, head 0",
      "B − Adifference",
    ]);
    expect(canvas(view, "picture").getAttribute("aria-label")).toContain("head 0 (5 in the model)");
    expect(canvas(view, "picture-b").getAttribute("aria-label")).not.toContain("in the model");
  });

  test("three pictures with their names, one scale for both sides", async () => {
    const { view } = await draw();
    expect(view.all(".aw-compare-head").map((head) => head.textContent)).toEqual([
      "no maskA: layer 0, head 0",
      "causalB: layer 0, head 0",
      "B − Adifference",
    ]);
    expect(canvas(view, "picture-change").getAttribute("aria-label")).toBe(
      "Attention weights, change from no mask to causal, layer 0, head 0, 4 queries by 4 keys",
    );
    // .3 of A and .3 of B have one color; a masked cell of B has none
    expect(pixel(view, "picture", 0, 1)).toEqual(pixel(view, "picture-b", 2, 1));
    expect(pixel(view, "picture", 0, 0)).not.toEqual(pixel(view, "picture-b", 0, 0));
    expect(pixel(view, "picture-b", 0, 3)[3]).toBe(0);
    expect(pixel(view, "picture-change", 0, 3)[3]).toBe(255);
    const [r, , b] = pixel(view, "picture-change", 1, 1);
    expect(r).toBeGreaterThan(b!); // more: orange
    const [r2, , b2] = pixel(view, "picture-change", 3, 1);
    expect(b2).toBeGreaterThan(r2!); // less: blue
    expect(view.legend).toMatch(/^Weight 0 \.5 1 masked Change −\.6 0 \.6$/);
  });

  test("what is clipped is said where the range is one's own", async () => {
    const { view } = await draw({ color_range: [0, 0.5] });
    expect(view.legend).toContain("above .5: 3 cells");
  });

  test("one selection: a click in any picture pins in all, and both numbers are said", async () => {
    const { view, host } = await draw();
    const other = canvas(view, "picture-b");
    const { width, height } = other.getBoundingClientRect();
    const at = { clientX: (1.5 * width) / 4, clientY: (3.5 * height) / 4, bubbles: true };
    other.dispatchEvent(new PointerEvent("pointermove", { ...at, pointerType: "mouse" }));
    await settle();
    expect(view.status).toMatch(/^money 3 → bank 1 A 0\.600000 B 0\.200000 change −0\.400000/);
    expect(view.all(".aw-ring")).toHaveLength(3);
    expect(rows(view)[0]).toEqual(["bank", ".6000", ".2000", "−.4000"]);
    for (const type of ["mousedown", "mouseup", "click"])
      other.dispatchEvent(new MouseEvent(type, { ...at, button: 0 }));
    await settle();
    expect(host.saved.at(-1)).toEqual({ query: 3, key: 1 });
    expect(view.all(".aw-ring[data-pinned]")).toHaveLength(3);
    expect(view.all(".aw-key-pin").map((pin) => pin.textContent)).toEqual(["bank", "bank", "bank"]);
    view.find<HTMLElement>(".aw-key-pin").click();
    expect(host.saved.at(-1)).toEqual({ key: null });
  });

  test("what is masked says so; what is masked on both sides has no change", async () => {
    const { view } = await draw({
      query: 0,
      key: 2,
      comparison: comparisonOf(CAUSAL, CAUSAL),
      changes: changesOf(FULL, CAUSAL, 0),
    });
    expect(view.status).toMatch(/^the 0 → lent 2 A masked B masked/);
    expect(view.status).not.toContain("change");
    expect(view.legend).toContain("Change none");
  });

  test("the pinned query's list: numbers, masks, sums, and a click on a key", async () => {
    const { view, host } = await draw({
      query: 1,
      key: 2,
      changes: changesOf(FULL, CAUSAL, 1, { key: 2, rest: { count: 7, a: 0.25, b: 0.125 }, masked: 3 }),
    });
    expect(view.text(".aw-changes-head")).toBe("bank attends to A no mask B causal");
    expect(rows(view)).toEqual([
      ["bank", ".2000", ".7500", "+.5500"],
      ["money", ".4000", "masked", "−.4000"],
      ["lent", ".3000", "masked", "−.3000"],
      ["the", ".1000", ".2500", "+.1500"],
    ]);
    expect(view.all(".aw-change.aw-rest").map((row) => row.textContent)).toEqual([
      "7 more keys.2500.1250−.1250",
      "3 masked in both",
    ]);
    expect(view.find("[aria-current]").textContent).toContain("lent");
    const line = view.find(".aw-change-line");
    expect(Number.parseFloat(line.style.left)).toBeCloseTo(25, 4);
    expect(Number.parseFloat(line.style.width)).toBeCloseTo(68.75, 4);
    expect(view.all(".aw-slash")).toHaveLength(2);
    view.all<HTMLElement>(".aw-change-list button")[3]!.click();
    expect(host.saved.at(-1)).toEqual({ key: 0 });
  });

  test("where one side has other tokens, the rest is left out and counted, and places are positions again", async () => {
    const places = { a: integers([0, 2, 3, 5]), b: integers([0, 1, 2, 4]), only: [2, 1] as [number, number] };
    const { view, host } = await draw({
      facts: factsOf(weights(6, 6)),
      tokens: tokensOf(["a", "b", "c", "d", "e", "f"]),
      key_tokens: tokensOf(["a", "b", "c", "d", "e", "f"]),
      query: 3,
      key: 5,
      comparison: comparisonOf(FULL, CAUSAL, { query_places: places, key_places: places }),
      changes: changesOf(FULL, CAUSAL, 2, {
        query: 3,
        key: 5,
        only: { a: { count: 2, sum: 0.25 }, b: { count: 1, sum: 0.5 } },
      }),
    });
    expect(view.status).toMatch(/^d 3 → f 5 \(in B 2 → 4\) A 0\.250000 B masked/);
    expect(view.legend).toContain("left out, no counterpart: 2 tokens of A, 1 token of B");
    expect(view.text(".aw-change-list")).toContain("2 only in A .2500");
    expect(view.text(".aw-change-list")).toContain("1 only in B .5000");
    expect(view.all(".aw-labels .aw-label").map((label) => label.textContent)).toEqual(["a", "c", "d", "f"]);
    view.all<HTMLElement>(".aw-change-list button")[0]!.click();
    expect(host.saved.at(-1)).toEqual({ key: 0 });
    const lost = await draw({
      facts: factsOf(weights(6, 6)),
      query: 1,
      comparison: comparisonOf(FULL, CAUSAL, { query_places: places, key_places: places }),
    });
    expect(lost.view.panel).toContain("has no counterpart on the other side");
  });

  test("a pin that Python has not answered yet has its list from the pictures", async () => {
    const { view } = await draw({ query: 3, changes: changesOf(FULL, CAUSAL, 1) });
    expect(view.text(".aw-changes-head")).toMatch(/^money attends to/);
    expect(rows(view)[0]).toEqual(["bank", ".6000", ".2000", "−.4000"]);
  });

  test("rows of padding are hatched in all three, and said", async () => {
    const { view } = await draw({ tokens: tokensOf(["a", "b", "[PAD]", "[PAD]"]) });
    expect(view.all(".aw-padded")).toHaveLength(3);
    expect(view.text("[data-aw=legend]")).toContain("rows of padding");
    expect(view.text("[data-aw=legend]")).not.toContain("rows of padding of A");
  });

  test("where the second side has other tokens only the first's rows and the change are hatched", async () => {
    const tokens = tokensOf(["a", "b", "c", "[PAD]"]);
    const { view } = await draw({ tokens, comparison: comparisonOf(FULL, CAUSAL, { differ: [1, 1] }) });
    expect(view.all(".aw-padded")).toHaveLength(2);
    expect(view.text("[data-aw=legend]")).toContain("rows of padding of A");
  });

  test("rows that a padding mask tells are hatched too", async () => {
    const picture = { ...pictureOf(FULL), padding: 3 };
    const tokens = tokensOf(["a", "b", "c", "d"]);
    const { view } = await draw({ picture, tokens, key_tokens: tokens });
    expect(view.all(".aw-padded")).toHaveLength(3);
  });

  test("labels are the first side's: what has others in the second is counted", async () => {
    const { view } = await draw({ comparison: comparisonOf(FULL, CAUSAL, { differ: [2, 2] }) });
    expect(view.legend).toContain("labels from A: 2 differ in B");
  });

  test("with more than two sides a menu says against which", async () => {
    const { view, host } = await draw({ sides: ["no mask", "causal", "window"] });
    view.find<HTMLElement>(".aw-menu[aria-label=Against] > button").click();
    await settle();
    expect(view.all("[role=menuitemradio]").map((item) => item.textContent)).toEqual(["causal", "window"]);
    view.all<HTMLElement>("[role=menuitemradio]")[1]!.click();
    expect(host.saved.at(-1)).toEqual({ against: "window" });
    expect((await draw()).view.all(".aw-menu[aria-label=Against]")).toHaveLength(0);
  });

  test("where it is narrow one picture, to be switched", async () => {
    const { view } = await draw({}, 360);
    const seen = () => view.all<HTMLElement>(".aw-plot").map((plot) => !plot.hidden);
    expect(seen()).toEqual([true, false, false]);
    expect(view.legend).toMatch(/^Weight/);
    const [, , last] = view.all<HTMLElement>(".aw-compare-switch button");
    last!.click();
    await settle();
    expect(seen()).toEqual([false, false, true]);
    expect(view.legend).toMatch(/Change −\.6 0 \.6$/);
    expect(view.legend).not.toContain("Weight");
    expect((await draw()).view.all(".aw-compare-switch")).toHaveLength(0);
  });

  test("zoom and panning are one for all three", async () => {
    const [a, b] = [weights(20, 20, 1), weights(20, 20, 2)];
    const { view } = await draw({ facts: factsOf(a), comparison: comparisonOf(a, b), tokens: null, key_tokens: null });
    const all = ["picture", "picture-b", "picture-change"].map((name) => canvas(view, name));
    const drawn = () => all.map((one) => one.getContext("2d")!.getImageData(0, 0, one.width, one.height).data.join());
    const whole = drawn();
    const wheel = (deltaY: number) =>
      new WheelEvent("wheel", { deltaY, ctrlKey: true, clientX: 5, clientY: 5, bubbles: true, cancelable: true });
    all[2]!.dispatchEvent(wheel(-100));
    await settle(200);
    expect(view.all(".aw-plot[data-zoomed]")).toHaveLength(3);
    for (const [at, now] of drawn().entries()) expect(now === whole[at]).toBe(false);
    all[1]!.dispatchEvent(new MouseEvent("dblclick", { bubbles: true }));
    await settle(200);
    expect(view.all(".aw-plot[data-zoomed]")).toHaveLength(0);
    for (const [at, now] of drawn().entries()) expect(now === whole[at]).toBe(true);
  });

  test("of cells that are pooled the kernel says which changes most", async () => {
    const asked: unknown[] = [];
    const [a, b] = [weights(8, 8, 1), weights(8, 8, 2)];
    const comparison = { ...comparisonOf(pooled(a, 2), pooled(b, 2)), queries: 8, keys: 8, query_bin: 2, key_bin: 2 };
    const { view } = await draw({ facts: factsOf(a), comparison, tokens: null, key_tokens: null }, 900, {
      answer: (request) => {
        asked.push(request);
        return { value: -0.25, a: 0.5, b: 0.25, query: 3, key: 1 };
      },
    });
    view.point(view.at(1, 0));
    await settle();
    expect(asked.at(-1)).toMatchObject({ kind: "change", against: "causal", queries: [2, 4], keys: [0, 2] });
    expect(view.status).toMatch(/^largest of 4 cells: query 3 → key 1 A 0\.500000 B 0\.250000 change −0\.250000/);
    expect(view.legend).toContain("A, B: the maximum of 2 × 2 cells");
    expect(view.legend).toContain("the largest of 2 × 2 cells");
    await view.click(1, 0);
    expect(view.status).toContain("query 3 → key 1");
  });

  test("rows that stand for several are said", async () => {
    const comparison = {
      ...comparisonOf(FULL, CAUSAL),
      ...{ queries: 16, keys: 4, query_bin: 4, sampled: { first: 3, every: 4, exact: 0 } },
    };
    const { view } = await draw({ facts: factsOf(weights(16, 4)), comparison, tokens: null, key_tokens: null });
    expect(view.legend).toContain("1 of 4 rows");
  });

  test("what cannot be compared says why, and the status line of another tab which side it is", async () => {
    const failed = await draw({ comparison: { ...comparisonOf(FULL, CAUSAL), error: "CUDA out of memory" } });
    expect(failed.view.text(".aw-compare")).toContain("These could not be compared CUDA out of memory");
    const { view } = await draw({ view: "heatmap", comparison: null });
    expect(view.status).toContain("A: no mask");
  });

  test.each(["scores", "masked"] as Stage[])("%s have two signs on both sides", async (stage) => {
    const scores = FULL.map((row) => row.map((x) => (x ?? 0) - 0.3));
    const { view } = await draw({ stage, comparison: comparisonOf(scores, FULL, { stage }) });
    expect(view.legend).toMatch(/−\.60 0 \.60 Change −\.30 0 \.30$/);
    const [r, , b] = pixel(view, "picture", 0, 3);
    expect(b).toBeGreaterThan(r!);
  });
});
