// @vitest-environment jsdom
/** The stages view in a page: what it shows of a pair, what clicks, keys and other rules do. */

import { signal } from "@preact/signals-core";
import { describe, expect, test, vi } from "vitest";
import { newestOnly, whatIfName } from "../../src/components/what-if";
import type { Envelope, Facts, PairMessage, StagesMessage, WhatIf } from "../../src/contract/messages";
import type { Traits } from "../../src/contract/traits";
import { waterfall } from "../../src/data/stage-data";
import type { Store } from "../../src/state/store";
import { settle, show } from "../helpers/page.ts";
import { type Cells, floats, pictureOf, stateOf } from "../helpers/states.ts";
import { useFakeTime } from "../helpers/timers.ts";

useFakeTime();

const SCORES = [
  [2, -1, 0.5],
  [4, 3, -2],
  [1, 1, 8],
];
const PRODUCTS = [3, -1, 2];
const WEIGHTS: Cells = SCORES.map((row, query) => {
  const e = row.map((x, key) => (key <= query ? Math.exp(x / 2) : 0));
  const sum = e.reduce((a, b) => a + b);
  return e.map((x, key) => (key <= query ? x / sum : null));
});
const SCALED = SCORES.map((row) => row.map((x) => x / 2));
const MASKED: Cells = SCALED.map((row, query) => row.map((x, key) => (key <= query ? x : null)));

function drawn(cells: Cells) {
  const { values, ...picture } = pictureOf(cells);
  return { ...picture, values: values as Envelope, blocked: picture.blocked };
}

function stagesOf(): StagesMessage {
  const small = (stage: "scores" | "scaled" | "masked" | "weights", cells: Cells) => ({
    ...drawn(cells),
    stage,
    every: 1,
  });
  return {
    layer: 0,
    batch: 0,
    head: 0,
    pictures: [small("scores", SCORES), small("scaled", SCALED), small("masked", MASKED), small("weights", WEIGHTS)],
    output: { ...drawn([[1, 2], [3, 4], [5, -6]]), value_bin: 1, rows: 3, columns: 2 }, // biome-ignore format: one line
  };
}

function pairOf(query: number, key: number, changes: Partial<PairMessage> = {}): PairMessage {
  const allowed = key <= query;
  const row = WEIGHTS[query]!;
  const weight = row[key] ?? 0;
  return {
    layer: 0,
    batch: 0,
    head: 0,
    query,
    key,
    score: SCORES[query]![key]!,
    scale: 0.5,
    scaled: SCALED[query]![key]!,
    softcap: null,
    capped: SCALED[query]![key]!,
    masked: allowed ? SCALED[query]![key]! : "-inf",
    maximum: 2,
    log_normalizer: Math.log(MASKED[query]!.reduce<number>((sum, x) => sum + (x === null ? 0 : Math.exp(x)), 0)),
    weight,
    contribution: weight * 2,
    share: 0.25,
    allowed,
    effects: [{ name: "causal: key ≤ query", blocks: !allowed, adds: null }],
    products: floats(PRODUCTS, [3]),
    value: floats([0.5, -0.25], [2]),
    output: floats([1, 2], [2]),
    row: {
      keys: { data: new DataView(Uint32Array.of(0, 1, 2).buffer), dtype: "uint32", shape: [3], deflated: false },
      values: floats(row, [3]),
      blocked: { data: new DataView(Uint8Array.of(key > query ? 0b01100000 >> query : 0).buffer), dtype: "bits", shape: [3], deflated: false }, // biome-ignore format: one line
    },
    original: null,
    ...changes,
  };
}

async function draw(changes: Partial<Traits> = {}, width = 960) {
  const facts = { ...stateOf(WEIGHTS).facts, head_size: 4, stages: ["scores", "scaled", "masked", "weights"] as never };
  const state = stateOf(WEIGHTS, { view: "stages", facts, stages: stagesOf(), ...changes });
  return show(state, { answer: () => ({}) }, { width });
}

describe("the pictures", () => {
  test("stand in the order of computation, with what leads from one to the next", async () => {
    const { view } = await draw();
    expect(view.all(".aw-small-head b").map((name) => name.textContent)).toEqual([
      "Scores",
      "Scaled",
      "Masked",
      "Weights",
      "Output",
    ]);
    expect(view.all(".aw-operation span").map((name) => name.textContent)).toEqual([
      "÷ √4",
      "+ mask",
      "softmax",
      "· V",
    ]);
  });

  test("say why an output is not drawn, and nothing where there are no values", async () => {
    const facts = { ...stateOf(WEIGHTS).facts, queries: 131_072, value_size: 64 };
    const large = await draw({ facts, stages: { ...stagesOf(), output: null } });
    expect(large.view.text(".aw-steps")).toContain("The output, 131,072 × 64, is too large to draw here");
    const none = await draw({ facts: { ...facts, value_size: null }, stages: { ...stagesOf(), output: null } });
    expect(none.view.text(".aw-steps")).not.toContain("too large");
  });

  test("say that a pair is to be pinned, and whether torch computes the same", async () => {
    const torch = { difference: 4.8e-7, queries: 3, equal: true, why: "" };
    const of = { layer: 0, batch: 0, head: 0, original: null };
    const { view } = await draw({ deviation: { ...of, torch } });
    expect(view.text(".aw-steps")).toContain("Click a cell to see how its weight is computed.");
    expect(view.text(".aw-parity")).toBe("✓ equals torch SDPA, largest difference 4.8e−7");
    const other = { ...torch, difference: 0.013, equal: false };
    const differs = await draw({ deviation: { ...of, torch: other } });
    expect(differs.view.text(".aw-parity")).toBe("! differs from torch SDPA by 1.3e−2: see why");
    const none = { difference: null, queries: 0, equal: false, why: "torch SDPA has no softcap to compare with" };
    const capped = await draw({ deviation: { ...of, torch: none } });
    expect(capped.view.text(".aw-parity")).toBe("torch SDPA has no softcap to compare with");
    const stale = await draw({ deviation: { ...of, head: 1, torch } });
    expect(stale.view.all(".aw-parity")).toHaveLength(0);
  });

  test("a click pins, the same again frees", async () => {
    const { host, view } = await draw();
    const picture = view.all(".aw-small-picture")[0]!;
    const box = { left: 0, top: 0, width: 112, height: 112 };
    vi.spyOn(picture, "getBoundingClientRect").mockReturnValue(box as DOMRect);
    const click = () => picture.dispatchEvent(new MouseEvent("click", { clientX: 60, clientY: 100, bubbles: true }));
    click();
    await settle();
    expect(host.saved.at(-1)).toEqual({ query: 2, key: 1 });
    click();
    await settle();
    expect(host.saved.at(-1)).toEqual({ query: null, key: null });
  });

  test("arrows move the pin, and stop there", async () => {
    const { host, view } = await draw({ query: 1, key: 1, pair: pairOf(1, 1) });
    const canvas = view.all<HTMLCanvasElement>(".aw-small-picture canvas")[2]!;
    const event = new KeyboardEvent("keydown", { key: "ArrowDown", bubbles: true, cancelable: true });
    const heard = vi.fn();
    view.root.addEventListener("keydown", heard);
    canvas.dispatchEvent(event);
    await settle();
    expect(host.saved.at(-1)).toEqual({ query: 2 });
    expect(event.defaultPrevented).toBe(true);
    expect(heard).not.toHaveBeenCalled();
  });
});

describe("the ladder", () => {
  test("says every number", async () => {
    const { view } = await draw({ query: 2, key: 2, pair: pairOf(2, 2) });
    const steps = Object.fromEntries(
      view
        .all(".aw-step")
        .map((step) => [
          step.querySelector("h4")!.textContent,
          [...step.querySelectorAll(".aw-step-result > :is(output, div)")].flatMap(
            (node) => node.textContent?.trim() || [],
          ),
        ]),
    );
    const log = Math.log(Math.exp(0.5) + Math.exp(0.5) + Math.exp(4));
    expect(steps).toEqual({
      "Dot product": ["8.000", "score"],
      Scale: ["4.000", "scaled"],
      Mask: ["4.000", "masked"],
      Softmax: [
        Math.exp(4 - log)
          .toFixed(4)
          .slice(1),
        `exp(4.000 − ${log.toFixed(3)})`,
      ],
      Value: ["25.0 %", "of all contributions ‖weight · v‖"],
    });
    expect(view.text(".aw-ladder")).toContain("score ÷ √dk = score ÷ 2");
    expect(view.text(".aw-ladder")).toContain("Allowed by causal: key ≤ query");
    expect(view.text(".aw-ladder")).toContain("dimension 0 adds 3.000");
    expect(view.text(".aw-ladder")).toContain("dimension 1 takes 1.000");
  });

  test("names the rule that blocks", async () => {
    const { view } = await draw({ query: 0, key: 2, pair: pairOf(0, 2) });
    expect(view.text(".aw-steps-head")).toContain("why there is no weight");
    expect(view.text(".aw-ladder")).toContain("Blocked by causal: key ≤ query");
    expect(view.text(".aw-ladder")).toContain("blocked: no weight");
    expect(view.text(".aw-step[aria-label^=Mask]")).toContain("−∞");
  });

  test("is another pair's, dimmed and under its name, until its own comes", async () => {
    const { view } = await draw({ query: 2, key: 1, pair: pairOf(0, 0) });
    expect(view.all(".aw-ladder[data-stale]")).toHaveLength(1);
    expect(view.all(".aw-steps-pair[data-stale] .aw-pill").map((pill) => pill.textContent)).toEqual(["0", "0"]);
    expect(view.text("[data-aw=status]")).toContain("query 2 → key 1 weight 0.028477"); // the pinned pair's own
  });

  test("is not another pair's where nothing can come", async () => {
    const facts = { ...stateOf(WEIGHTS).facts, head_size: 4, saved: { layers: [0], heads: [0], samples: [0] } };
    const { view } = await draw({ query: 2, key: 1, pair: pairOf(0, 0), facts });
    expect(view.all(".aw-ladder")).toHaveLength(0);
  });

  test("is nobody's where nothing is pinned", async () => {
    const { view } = await draw({ pair: pairOf(0, 0) });
    expect(view.all(".aw-ladder")).toHaveLength(0);
  });

  test("what is shifted is said, beside what it was before", async () => {
    const row = floats(WEIGHTS[2]!.map((cell) => cell ?? 0));
    const before = { ...pairOf(2, 1), value: floats([0.5, -0.125]), row };
    const pair = pairOf(2, 1, {
      scale: 1,
      scaled: 1,
      masked: 0.75,
      effects: [{ name: "bias", blocks: false, adds: -0.25 }],
      original: before,
    });
    const { view } = await draw({ query: 2, key: 1, pair, what_if: { scale: 1 } });
    expect(view.text(".aw-step[aria-label^=Scale]")).toContain("score × 1");
    expect(view.text(".aw-step[aria-label^=Scale]")).toContain("○ 0.500 before");
    expect(view.text(".aw-step[aria-label^=Mask]")).toMatch(/The bias takes 0.250\./);
    expect(view.text(".aw-step[aria-label^=Mask]")).toContain("scaled − 0.250");
    expect(view.all("rect.aw-hollow")).toHaveLength(1); // no weight changed, and of the value one number
  });

  test("dimensions in order or the largest first", async () => {
    const { view } = await draw({ query: 2, key: 2, pair: pairOf(2, 2) });
    const titles = () =>
      view.all<HTMLElement>(".aw-step svg rect title").map((title) => title.textContent!.slice(0, 11));
    expect(titles().slice(0, 3)).toEqual(["dimension 0", "dimension 2", "dimension 1"]);
    view.button(/products/).click();
    await settle();
    expect(titles().slice(0, 3)).toEqual(["dimension 0", "dimension 1", "dimension 2"]);
  });
});

test("a waterfall ends at the sum", () => {
  expect(waterfall(Float32Array.of(3, -1, 2), false)).toEqual([
    { index: 0, from: 0, to: 3 },
    { index: 1, from: 3, to: 2 },
    { index: 2, from: 2, to: 4 },
  ]);
  expect(waterfall(Float32Array.of(3, -1, 2), true).map((step) => step.index)).toEqual([0, 2, 1]);
});

describe("what if", () => {
  test("is named in a few words", () => {
    const names: [WhatIf, string][] = [
      [{}, "none"],
      [{ scale: 0.1767767 }, "scale 0.177"],
      [{ mask: false, causal: "lower right" }, "no mask, causal, lower right"],
      [{ drop_keys: [3], dtype: "int8", scale: 1 }, "3 changes"],
      [{ drop_keys: [3, 4] }, "without 2 keys"],
      [{ drop_keys: [] }, "none"],
      [{ window: null }, "no window"],
      [{ keep: { policy: "window", budget: 16 } }, "window and first keys, 16 keys"],
      [{ keep: { policy: "tova", budget: 0.25 } }, "TOVA, 25 % of the keys"],
      [{ keep: null }, "none"],
    ];
    for (const [changes, name] of names) expect(whatIfName(changes)).toBe(name);
  });

  test("what a cache keeps is a policy and a budget, by a slider whose newest value is always sent", async () => {
    const facts = { ...(stateOf(WEIGHTS).facts as Facts), is_causal: true, queries: 64, keys: 64 };
    const { host, view } = await draw({ query: 2, key: 1, pair: pairOf(2, 1), facts });
    view.button(/^What if/).click();
    await settle();
    view.button(/^heavy hitters/).click();
    await settle();
    expect(host.saved.at(-1)).toEqual({ what_if: { keep: { policy: "heavy_hitters", budget: 16 } } });
    const slider = view.find("input[type=range]") as HTMLInputElement;
    expect([slider.min, slider.max, slider.value]).toEqual(["2", "64", "16"]);
    slider.value = "40";
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    await settle();
    expect(JSON.stringify(host.sent)).toContain('"keep":{"policy":"heavy_hitters","budget":40}');
    view.button("all keys").click();
    await settle();
    expect(host.saved.at(-1)).toEqual({ what_if: {} });
  });

  test("is chosen below the pictures and taken back with a click", async () => {
    const { host, view } = await draw({ query: 2, key: 1, pair: pairOf(2, 1) });
    view.button(/^What if/).click();
    await settle();
    view.find("[role=radiogroup][aria-label=Scale] button:last-of-type").click();
    await settle();
    expect(host.saved.at(-1)).toEqual({ what_if: { scale: 1 } });
    view.button(/^without (?!the mask)/).click();
    await settle();
    expect(host.saved.at(-1)).toEqual({ what_if: { scale: 1, drop_keys: [1] } });
    view.button("Reset").click();
    await settle();
    expect(host.saved.at(-1)).toEqual({ what_if: {} });
  });

  test("of many values two are on their way, and the last is always sent", async () => {
    const version = signal(0);
    const facts = { peek: () => ({ version: version.peek() }), get value() { return { version: version.value }; } }; // biome-ignore format: one line
    const sent: unknown[] = [];
    const store = {
      facts,
      what_if: signal({}),
      attempt: ({ scale }: { scale: number }) => sent.push(scale),
    } as unknown as Store;
    const send = newestOnly(store);
    for (const scale of [1, 2, 3, 4]) send(scale);
    expect(sent).toEqual([1, 2]);
    version.value++;
    await settle(1);
    expect(sent).toEqual([1, 2, 4]);
    send(5);
    send(6);
    expect(sent).toEqual([1, 2, 4]);
    version.value += 2; // both at once
    await settle(1);
    expect(sent).toEqual([1, 2, 4, 6]);
    version.value++;
    await settle(1);
    send(7);
    send(8);
    send(9);
    await settle(700); // no answer came
    expect(sent).toEqual([1, 2, 4, 6, 7, 8, 9]);
    await settle(700);
    send(10);
    expect(sent.at(-1)).toBe(10);
  });
});
