// @vitest-environment jsdom
/** The heads view in a page: what is under the pointer, what clicks and keys do, larger pictures, several heads as one. */

import { describe, expect, test } from "vitest";
import type { Traits } from "../../src/contract/traits";
import type { Metric } from "../../src/contract/values";
import { nameOf } from "../../src/data/survey";
import type { HostOptions, HostRequest } from "../../src/kernel/host";
import { settle, show } from "../helpers/page.ts";
import { asked, type Cells, factsOf, floats, stateOf } from "../helpers/states.ts";
import { surveyOf } from "../helpers/survey.ts";
import { useFakeTime } from "../helpers/timers.ts";

useFakeTime();

const CELLS: Cells = Array.from({ length: 16 }, (_, query) =>
  Array.from({ length: 16 }, (__, key) => ((query * 7 + key * 3) % 11) / 11),
);
const METRICS = {
  entropy: [3, 1, 2, 2.5, 0.5, 4],
  first_token: [0.1, 0.2, 0.9, 0.3, 0.1, 0.4],
  mean_distance: [2, 3, 4, 5, 6, 7],
};

function state(changes: Partial<Traits> = {}): Traits {
  const facts = { ...factsOf(CELLS), layers: ["a", "b"], heads: 3, groups: 3, ...changes.facts };
  return { ...stateOf(CELLS, { ...changes, facts }), view: "heads", survey: surveyOf([3, 3], METRICS), ...changes };
}

async function draw(changes: Partial<Traits> = {}, options: HostOptions = { answer: () => ({}) }, width = 960) {
  const shown = await show(state(changes), options, { width });
  await settle(400);
  return shown;
}

const PITCH = { x: 74, y: 76, margin: 4 };
const at = (head: number, layer: number) => ({
  x: PITCH.margin + head * PITCH.x + 29,
  y: PITCH.margin + layer * PITCH.y + 29,
});

describe("which are shown, and in which order", () => {
  test("what is typed into a field stays while something else is drawn anew", async () => {
    const { view, host } = await draw();
    const field = (name: string) => view.find(`.aw-only input[aria-label="${name}"]`) as HTMLInputElement;
    field("Last layer").value = "0";
    host.fromPython({ only_heads: [1, null, null] });
    await settle();
    expect(field("First layer").value).toBe("1");
    expect(field("Last layer").value).toBe("0");
    host.fromPython({ only_heads: [1, 1, null] });
    await settle();
    expect(field("Last layer").value).toBe("1");
  });

  test("only some layers, and only above a number", async () => {
    const { view, host } = await draw();
    const put = async (name: string, value: string) => {
      const field = view.find(`.aw-only input[aria-label="${name}"]`) as HTMLInputElement;
      field.value = value;
      field.dispatchEvent(new Event("change", { bubbles: true }));
      await settle();
    };
    await put("First layer", "1");
    expect(view.text(".aw-only")).toContain("3 of 6 heads");
    await put("Entropy above", "1");
    expect(view.text(".aw-only")).toContain("2 of 6 heads");
    expect(host.saved.at(-1)).toEqual({ only_heads: [1, null, 1] });
    view.point(at(1, 0)); // the second of those that are shown: layer 1, head 2
    await settle();
    expect(view.text(".aw-head-card")).toContain("Layer 1 · head 2");
    view.button("Show all").click();
    await settle();
    expect(view.text(".aw-only")).not.toContain("of 6 heads");
    expect(host.saved.at(-1)).toEqual({ only_heads: null });
    expect(view.text(".aw-all-heads > .aw-prompt")).toContain("Rows are layers, columns are heads.");
  });

  test("those that Python, or a saved file, says", async () => {
    const { view, host } = await draw({ only_heads: [1, null, null] });
    expect(view.text(".aw-only")).toContain("3 of 6 heads");
    host.fromPython({ only_heads: null });
    await settle();
    expect(view.text(".aw-only")).not.toContain("of 6 heads");
  });

  test("metrics of the user's own are bars, order and limit like the others", async () => {
    const survey = { ...surveyOf([3, 3], METRICS), own: { Mine: floats([5, -1, 2, 9, 0, 3]) } };
    const { view, host } = await draw({ survey, bar: "Mine" as Metric });
    expect(view.text(".aw-all-heads > .aw-prompt")).toContain("the bar is mine, −9.000 to 9.000");
    const above = view.find('.aw-only input[aria-label="Mine above"]') as HTMLInputElement;
    above.value = "2";
    above.dispatchEvent(new Event("change", { bubbles: true }));
    await settle();
    expect(view.text(".aw-only")).toContain("3 of 6 heads");
    host.fromPython({ order: "Mine" as Metric });
    await settle();
    view.point(at(0, 0));
    await settle();
    expect(view.text(".aw-head-card")).toContain("Layer 1 · head 0");
  });

  test("bars of the user's own metrics go both ways from a middle line where one is below 0", async () => {
    const survey = { ...surveyOf([3, 3], METRICS), own: { Mine: floats([4, -8, 2, 0, 8, 3]) } };
    const { view, host } = await draw({ survey });
    for (const [name, color] of [
      ["--aw-above", "rgb(200, 0, 0)"],
      ["--aw-below", "rgb(0, 0, 200)"],
      ["--aw-ink2", "rgb(0, 90, 0)"],
      ["--aw-track", "rgb(240, 240, 240)"],
    ] as const)
      view.root.style.setProperty(name, color);
    host.fromPython({ bar: "Mine" as Metric });
    await settle();
    expect(view.text(".aw-all-heads > .aw-prompt")).toContain("the bar is mine, −8.000 to 8.000");
    const colors = { "200,0,0": "above", "0,0,200": "below", "0,90,0": "zero", "240,240,240": "" };
    /** What is at −¾, −⅛, 0, ⅛ and ¾ of the bar of a head. */
    const barOf = (head: number, layer: number) =>
      [-0.75, -0.125, 0, 0.125, 0.75].map((share) => {
        const { x, y } = at(head, layer);
        const found = view.pixel(Math.floor(x + 29 * share), y + 29 + 6).slice(0, 3);
        return colors[found.join() as keyof typeof colors];
      });
    expect(barOf(0, 0)).toEqual(["", "", "zero", "above", ""]);
    expect(barOf(1, 0)).toEqual(["below", "below", "zero", "", ""]);
    expect(barOf(0, 1)).toEqual(["", "", "zero", "", ""]);
    expect(barOf(1, 1)).toEqual(["", "", "zero", "above", "above"]);
  });

  test("where there is no room for bars, a narrow rim has the metric, and the page shows between two", async () => {
    const facts = { ...factsOf(CELLS), layers: ["a", "b"], heads: 12, groups: 12 };
    const shares = Array.from({ length: 24 }, (_, head) => (head === 5 ? 0 : 0.9));
    const survey = surveyOf([12, 12], { first_token: shares });
    const { view, host } = await draw({ facts, survey, bar: "first_token" as Metric }, undefined, 360);
    view.root.style.setProperty("--aw-data", "rgb(0, 0, 200)");
    view.root.style.setProperty("--aw-page", "rgb(250, 250, 250)");
    host.fromPython({ palette: "viridis" });
    await settle();
    const row = Array.from({ length: 312 }, (_, x) => view.pixel(x, 14));
    const kinds = row.map(([red, green, blue, alpha]) =>
      alpha! < 60 ? " " : red === 0 && green === 0 && blue! > 190 ? "t" : "p",
    );
    const runs = kinds.join("").trim().split(/\s+/);
    expect(runs).toHaveLength(12); // heads, apart
    for (const [head, run] of runs.entries()) expect(run).toMatch(head === 5 ? /^p{16,}$/ : /^t{1,3}p{16,}t{1,3}$/);
  });

  test("one that raises says why, and the others are there", async () => {
    const problems = { mine: "layer 0: ZeroDivisionError: division by zero" };
    const { view } = await draw({ survey: { ...surveyOf([3, 3], METRICS), own: { mine: null }, problems } });
    expect(view.text(".aw-all-heads .aw-problem")).toBe(
      "Not computed: custom metrics mine: layer 0: ZeroDivisionError: division by zero",
    );
    expect(view.text(".aw-only")).toContain("entropy above");
  });

  test("heads like the selected one", async () => {
    const { view, host } = await draw({ order: "similar", layer: 1, head: 0 });
    expect(view.text(".aw-all-heads > .aw-prompt")).toContain("Most similar to layer 1, head 0 first");
    view.point(at(0, 0));
    await settle();
    expect(view.text(".aw-head-card")).toContain("Layer 1 · head 0");
    host.fromPython({ order: "layer" });
    await settle();
    view.button(/^Order/).click();
    await settle();
    view.button(/^Heads like this one/).click();
    await settle();
    expect(host.saved.at(-1)).toEqual({ order: "similar" });
  });
});

describe("pointing", () => {
  test("the card has every metric, the best in bold, with the median of all", async () => {
    const { view } = await draw();
    view.point(at(2, 0));
    await settle();
    const card = view.text(".aw-head-card");
    expect(card).toContain("Layer 0 · head 2");
    expect(card).toContain("First token .900");
    expect(card).toContain("median of all 6 heads");
    expect(view.text("[data-best]")).toContain("First token");
    expect(view.status).toContain("layer 0 · head 2 ranks best in first token : 1 of 6");
    expect(view.status).toContain("2 layers × 3 heads · 16 × 16");
    view.leave();
    await settle();
    expect(view.all(".aw-head-card")).toHaveLength(0);
  });

  test("bars of numbers below 0 go left from a middle line, on the same scale as those above", async () => {
    const survey = { ...surveyOf([3, 3], METRICS), own: { Mine: floats([4, -8, 2, 0, 0, 3]) } };
    const { view } = await draw({ survey });
    const barOf = async (head: number) => {
      view.point(at(head, 0));
      await settle();
      const rows = view.all(".aw-head-metric");
      const row = rows.find((one) => one.textContent?.startsWith("Mine"))!;
      const { left, width } = (row.querySelector("i > i") as HTMLElement).style;
      expect(row.querySelector("i")!.hasAttribute("data-signed")).toBe(true);
      return [left, width];
    };
    expect(await barOf(0)).toEqual(["50%", "25%"]);
    expect(await barOf(1)).toEqual(["0%", "50%"]);
    expect(view.all(".aw-head-metric > i:not([data-signed])").length).toBeGreaterThan(2); // nothing below 0: from 0 on
  });

  test("the caption says what the bar is, and of how many rows", async () => {
    const { view, host } = await draw();
    expect(view.text(".aw-all-heads > .aw-prompt")).toContain("Rows are layers, columns are heads.");
    expect(view.text(".aw-all-heads > .aw-prompt")).toContain("the bar is entropy, 0 to 4.00 bits.");
    host.fromPython({ survey: surveyOf([3, 3], METRICS, { rows: 4, ready: 1 }) });
    await settle();
    expect(view.text(".aw-all-heads > .aw-prompt")).toContain(
      "From 4 of 16 queries per head, each exact. 3 of 6 heads so far.",
    );
  });

  test("heads that share a key head are named so", async () => {
    const { view } = await draw({ survey: surveyOf([4, 4], { entropy: [1, 2, 3, 4, 5, 6, 7, 8] }, { groups: 2 }) });
    expect(view.all(".aw-heads-names i")).toHaveLength(2);
    view.point(at(3, 1));
    await settle();
    expect(view.text(".aw-head-card")).toContain("key/value head 1");
  });
});

describe("heads of which a capture kept some", () => {
  const facts = { ...factsOf(CELLS), model_heads: [[1, 5, 7], null] };

  test("the card, the status and what is spoken have their numbers in the model", async () => {
    const { view } = await draw({ facts });
    view.point(at(1, 0));
    await settle();
    expect(view.text(".aw-head-title")).toContain("Layer 0 · head 1 (5 in the model)");
    expect(view.text("[data-aw=status]")).toContain("layer 0 · head 1 (5 in the model)");
    expect(view.text("[aria-live]")).toContain("layer 0, head 1 (5 in the model)");
    view.point(at(1, 1)); // of this layer all heads are there
    await settle();
    expect(view.text(".aw-head-title")).not.toContain("in the model");
    expect(view.text("[data-aw=status]")).not.toContain("in the model");
  });

  test("a column has a number of the model only where it is that of every layer", async () => {
    const columns = async (model_heads: (number[] | null)[]) =>
      (await draw({ facts: { ...facts, model_heads } })).view.text(".aw-heads-names");
    expect(await columns([[1, 5, 7], null])).toBe("0 1 2");
    expect(
      await columns([
        [1, 5, 7],
        [1, 5, 7],
      ]),
    ).toBe("0 (1) 1 (5) 2 (7)");
  });

  test("a name beside a picture has both numbers", () => {
    expect(nameOf({ layer: 0, head: 1 }, { layers: ["a", "b"], model_heads: [[1, 5], null] })).toBe("0·1 (5)");
    expect(nameOf({ layer: 1, head: 1 }, { layers: ["a", "b"], model_heads: [[1, 5], null] })).toBe("1·1");
  });
});

describe("opening", () => {
  test("a click opens the head in the heatmap", async () => {
    const { view, host } = await draw();
    view.mouse("click", at(1, 1));
    await settle();
    expect(Object.assign({}, ...host.saved)).toMatchObject({ layer: 1, head: 1, heads: [1], view: "heatmap" });
  });

  test("arrows walk and Enter opens", async () => {
    const { view, host } = await draw();
    for (const key of ["ArrowRight", "ArrowDown", "ArrowRight", "ArrowRight"]) {
      expect(await view.press(key)).toEqual({ prevented: true, escaped: false });
    }
    await settle();
    expect(view.text(".aw-head-card")).toContain("Layer 1 · head 2");
    expect(view.text("[aria-live]")).toBe("layer 1, head 2, entropy 4.00 bits");
    expect(host.saved).toEqual([]);
    await view.press("Enter");
    await settle();
    expect(Object.assign({}, ...host.saved)).toMatchObject({ layer: 1, head: 2, view: "heatmap" });
  });
});

describe("bar and order", () => {
  test("what is known of no head orders none, and is not said to", async () => {
    const survey = surveyOf([3, 3], { ...METRICS, mean_distance: Array(6).fill(Number.NaN) });
    const { view } = await draw({ survey, order: "mean_distance" });
    expect(view.text(".aw-all-heads > .aw-prompt")).not.toContain("Ordered by");
    expect(view.text(".aw-all-heads > .aw-prompt")).toContain("Rows are layers");
  });

  test("the menus set both", async () => {
    const { view, host } = await draw();
    view.button("Bar entropy").click();
    await settle();
    expect(view.text(".aw-popup")).not.toContain("Induction"); // which no head has
    view.button("First token").click();
    await settle();
    view.button("Order by layer").click();
    await settle();
    view.button("Mean distance").click();
    await settle();
    expect(host.saved).toEqual([{ bar: "first_token" }, { order: "mean_distance", bar: "mean_distance" }]);
    expect(view.text(".aw-all-heads > .aw-prompt")).toContain("Ordered by mean distance, largest first.");
    view.point(at(0, 0));
    await settle();
    expect(view.text(".aw-head-card")).toContain("Layer 1 · head 2");
  });

  test("without the kernel's numbers there is nothing to point at", async () => {
    const { view } = await draw({ survey: null });
    expect(view.text(".aw-all-heads")).toContain("The kernel computes all heads when this view opens.");
    view.mouse("click", at(0, 0));
    await view.press("Enter");
  });

  test("what went wrong is said", async () => {
    const { view, host } = await draw(
      { survey: surveyOf([3, 3], METRICS, { ready: 1, error: "out of memory" }) },
      { answer: () => ({}) },
    );
    expect(view.text(".aw-all-heads")).toContain("Not all heads could be computed");
    view.button("Try again").click();
    await settle();
    expect(asked(host.sent, "retry")).toHaveLength(1);
  });
});

describe("larger pictures", () => {
  test("are asked for where there is room, at most 200 heads at once", async () => {
    const layers = new Array<number>(20).fill(32);
    const numbers = Array.from({ length: 640 }, (_, place) => place);
    const answer = ({ heads }: HostRequest) => {
      const [start, stop] = heads as [number, number];
      const values = new Uint8Array((stop - start) * 32 * 32).fill(250);
      return {
        values: {
          data: new DataView(values.buffer),
          dtype: "uint8",
          shape: [stop - start, 32, 32],
          deflated: false,
          scale: { kind: "unit", high: 1 },
        },
      };
    };
    const { view, host } = await draw(
      { survey: surveyOf(layers, { entropy: numbers }, { side: 8, keys: 500 }) },
      { answer },
    );
    await settle(2000);
    const messages = (host.sent as { requests?: HostRequest[] }[]).map(({ requests = [] }) =>
      requests.filter(({ kind }) => kind === "thumbnails"),
    );
    const sizes = messages.map((requests) =>
      requests.reduce((sum, { heads }) => sum + (heads as number[])[1]! - (heads as number[])[0]!, 0),
    );
    expect(Math.max(...sizes)).toBeLessThanOrEqual(200);
    expect(sizes.reduce((a, b) => a + b)).toBeGreaterThanOrEqual(320);
    expect(view.pixel(10, 10).slice(0, 3)).toEqual([0x2a, 0x10, 0x55]); // the strongest color, all over
  });

  test("are not asked for where all cells are there", async () => {
    const { host } = await draw({ survey: surveyOf([3, 3], METRICS, { side: 16 }) }, { answer: () => ({}) });
    expect(asked(host.sent, "thumbnails")).toHaveLength(0);
  });
});

describe("several heads as one", () => {
  const together = (changes: Partial<Traits>) =>
    ({
      facts: { ...factsOf(CELLS), heads: 3, groups: 3 },
      view: "heatmap",
      survey: null,
      ...changes,
    }) as Partial<Traits>;

  test("the menu chooses all heads, and then some of them", async () => {
    const { view, host } = await draw(together({}));
    view.button("More").click();
    await settle();
    view.button("mean of several").click();
    await settle();
    expect(host.saved).toEqual([{ heads: [0, 1, 2] }, { combine: "mean" }]);
    expect(view.button(/^Heads mean of 3/)).toBeTruthy();
    const picked = view.all("[aria-label=Heads] [role=checkbox][aria-checked=true]");
    expect(picked).toHaveLength(3);
  });

  test("a picture of them is the one that is wanted, and they are named", async () => {
    const { view, host } = await draw(together({ heads: [0, 2], combine: "max" }));
    const picture = host.get("picture");
    host.fromPython({ picture: { ...picture, head: "max 0 2" } });
    await settle();
    expect(view.legend).toContain("maximum of heads 0, 2");
    expect(view.status).toContain("maximum of heads 0, 2");
    expect(view.canvas.getAttribute("aria-label")).toContain("maximum of heads 0, 2");
    host.fromPython({ stage: "scores", picture: { ...picture, stage: "scores" } });
    await settle();
    expect(view.status).toContain("head 0");
  });

  test("all layers as one: chosen in the same menu, said in the picker, with a way back", async () => {
    const facts = { ...factsOf(CELLS), heads: 3, groups: 3, every: 4, layers: ["0", "1", "2", "3"], forwards: 2 };
    const { view, host } = await draw(together({ facts }));
    view.button("More").click();
    await settle();
    expect(view.all("[role=menuitemradio]").map((one) => one.textContent)).toEqual(
      expect.arrayContaining(["each layer", "mean of all layers", "maximum of all forward passes"]),
    );
    view.button("mean of all layers").click();
    await settle();
    expect(host.saved.at(-1)).toEqual({ across: { how: "mean", forwards: null } });
    const as_one = { ...facts, heads: 1, groups: 1, layers: ["mean"], across: "the mean of 12 heads, layers 0–3" };
    host.fromPython({ facts: as_one, across: { how: "mean", layers: null, heads: null, forwards: null } });
    await settle();
    expect(view.find("[data-aw=across]").textContent).toContain("The mean of 12 heads, layers 0–3");
    expect(view.button(/^Heads mean of layers/)).toBeTruthy();
    view.button("show single layers").click();
    await settle();
    expect(host.saved.at(-1)).toEqual({ across: null });
  });

  test("questions are asked about them by their name", async () => {
    const { host } = await draw(together({ heads: [0, 2], combine: "mean", view: "graph", query: 3 }), {
      answer: () => ({}),
    });
    await settle(200);
    expect(new Set(asked(host.sent, "row").map(({ head }) => head))).toEqual(new Set(["mean 0 2"]));
  });
});
