// @vitest-environment jsdom
/** Findings in all views, and what unfolds below the stages: nothing is asked for before it is looked at. */

import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import type { Deviation, Finding, StagesMessage } from "../../src/contract/messages";
import type { Traits } from "../../src/contract/traits";
import type { HostOptions } from "../../src/kernel/host";
import { settle, show } from "../helpers/page.ts";
import { asked, CAUSAL, floats, pictureOf, stateOf } from "../helpers/states.ts";

beforeEach(() => {
  vi.useFakeTimers();
  Element.prototype.scrollIntoView = vi.fn(); // jsdom scrolls nothing
});
afterEach(() => {
  vi.useRealTimers();
});

const FINDINGS: Finding[] = [
  {
    kind: "NaN in q",
    severity: "error",
    where: "query 2",
    message: "q holds NaN at 1 query",
    advice: "Look at what computes q.",
    query: 2,
    key: null,
  },
  {
    kind: "look-ahead",
    severity: "warning",
    where: "query 1, key 3 first",
    message: "1 of 6 cells after the diagonal are allowed",
    advice: "Block them.",
    query: 1,
    key: 3,
  },
  {
    kind: "saturation",
    severity: "note",
    where: "",
    message: "3 of 4 queries",
    advice: "A note.",
    query: null,
    key: null,
  },
];
const KNOWN: Deviation = {
  layer: 0,
  batch: 0,
  head: 0,
  torch: { difference: 1e-7, queries: 4, equal: true, why: "" },
  original: null,
};

const STAGES: StagesMessage = {
  layer: 0,
  batch: 0,
  head: 0,
  pictures: (["masked", "weights"] as const).map((stage) => {
    const { values, ...picture } = pictureOf(CAUSAL);
    return { ...picture, values: values!, stage, every: 1 };
  }),
  output: null,
};

const open = (changes: Partial<Traits> = {}, options: HostOptions = {}) => {
  const facts = { ...stateOf(CAUSAL).facts, head_size: 4 };
  const output = { ...STAGES.pictures[0]!, value_bin: 1, rows: 4, columns: 4 };
  const state = stateOf(CAUSAL, { view: "stages", facts, stages: { ...STAGES, output }, deviation: KNOWN, ...changes });
  return show(state, { answer: () => ({}), ...options }, { width: 960 });
};

describe("findings", () => {
  test.each(["heatmap", "graph", "stages"] as const)("are named or counted in the %s", async (view) => {
    const found = await open({ view, findings: FINDINGS });
    expect(found.view.text("[data-aw=badge]")).toBe("✕ NaN in q and 1 more");
    const warned = await open({ view, findings: FINDINGS.slice(1) });
    expect(warned.view.text("[data-aw=badge]")).toBe("! 1 finding");
  });

  test("are not where there are none, nor another head's", async () => {
    for (const changes of [
      { findings: [] },
      { findings: FINDINGS, deviation: { ...KNOWN, head: 1 } },
      { findings: null },
    ]) {
      const { view } = await open(changes);
      expect(view.all("[data-aw=badge]")).toHaveLength(0);
    }
    const note = await open({ findings: FINDINGS.slice(2) });
    expect(note.view.text("[data-aw=badge]")).toBe("i 1 note");
  });

  test("say what, where and what to do; a click pins the place", async () => {
    const { host, view } = await open({ findings: FINDINGS, key: 0 });
    const list = view.all("[data-aw=findings] li").map((item) => item.textContent);
    expect(list[0]).toContain("q holds NaN at 1 query.Look at what computes q.");
    expect(list[1]).toContain("Look-ahead");
    view.button("query 2").click();
    await settle();
    expect(host.saved.at(-1)).toEqual({ query: 2 });
    view.button("query 1, key 3 first").click();
    await settle();
    expect(host.saved.at(-1)).toEqual({ query: 1, key: 3 });
  });

  test("an error is said beside the picture, and leads to the list", async () => {
    const { host, view } = await open({ view: "heatmap", findings: FINDINGS });
    const said = view.find<HTMLButtonElement>("[data-aw=panel] .aw-error-said");
    expect(said.textContent).toBe("✕q holds NaN at 1 query (query 2).");
    said.click();
    await settle();
    expect(host.saved.at(-1)).toEqual({ view: "stages" });
    const warned = await open({ view: "heatmap", findings: FINDINGS.slice(1) });
    expect(warned.view.all(".aw-error-said")).toHaveLength(0);
  });

  test("the badge leads to the list", async () => {
    const { host, view } = await open({ view: "heatmap", findings: FINDINGS });
    view.find<HTMLButtonElement>("[data-aw=badge]").click();
    await settle();
    expect(host.saved.at(-1)).toEqual({ view: "stages" });
    expect(document.activeElement).toBe(view.find("[data-aw=findings]"));
  });

  test("of a long head are looked for when asked", async () => {
    const facts = { ...stateOf(CAUSAL).facts, queries: 4096, keys: 4096 };
    const answer = ({ kind }: { kind: string }) => {
      if (kind === "check") throw new Error("this takes 16,777,216 numbers to compute");
      return {};
    };
    const { host, view } = await open({ facts, findings: null, deviation: null }, { answer: answer as never });
    expect(view.text("[data-aw=findings]")).toContain("This head is long, so it was not checked.");
    expect(asked(host.sent, "check")).toHaveLength(0);
    view.button("Check this head").click();
    await settle();
    expect(asked(host.sent, "check")[0]).toMatchObject({ layer: 0, batch: 0, head: 0 });
    expect(view.text("[data-aw=findings]")).toContain("this takes 16,777,216 numbers");
  });
});

const matrix = (rows: number, columns: number) => ({
  values: floats(
    Array.from({ length: rows * columns }, (_, at) => at - 3),
    [rows, columns],
  ),
  blocked: null,
  low: -3,
  high: rows * columns - 4,
  rows,
  columns,
  row_bin: 1,
  column_bin: 1,
});
const step = (head_size: number) => ({
  head_size,
  theory: head_size,
  most: 2,
  ...{ scores_variance: head_size, scaled_variance: 1, entropy: 1.5, unscaled_entropy: 0.5, peak: 0.5 },
  ...{ unscaled_peak: 0.9, sensitivity: 0.6, unscaled_sensitivity: 0.1 },
  weights: floats([0.5, 0.5, 0.25, 0.75], [2, 2]),
  unscaled_weights: floats([1, 0, 0, 1], [2, 2]),
});

const ANSWERS: { [kind: string]: object } = {
  spread: {
    ...{ q_variance: 1.02, k_variance: 0.98, v_variance: "nan", scores_variance: 3.9, scaled_variance: 0.975 },
    ...{ theory: 4, scale: 0.5, every: 1, empty: 0, saturated: 1, uniform: 0 },
    rows: {
      entropy: floats([0, 0.8, 1.4, 1.8]),
      peak: floats([1, 0.75, 0.5, 0.4]),
      sensitivity: floats([0, 0.4, 0.6, 0.7]),
      allowed: floats([1, 2, 3, 4]),
    },
    means: { entropy: 1, peak: 0.66, sensitivity: 0.43 },
  },
  sweep: { own: true, steps: [step(1), step(2), step(4)] },
  gradients: {
    pictures: { v: matrix(4, 2), weights: matrix(4, 4), scores: matrix(4, 4), q: matrix(4, 4), k: null },
  },
  jacobian: { query: 1, picture: matrix(4, 4) },
  cost: {
    head_size: 4,
    device: "cpu",
    steps: [256, 512].map((length) => ({
      length,
      ...{ dense_seconds: length / 1e5, dense_bytes: 4 * length ** 2, fused_seconds: length / 2e5 },
      ...{ seen_seconds: length / 1e5, seen_bytes: length * 32 },
    })),
  },
};
const answering = { answer: (({ kind }: { kind: string }) => ANSWERS[kind] ?? {}) as never };
const KINDS = ["spread", "sweep", "gradients", "jacobian", "cost"];

describe("sections", () => {
  test("are closed at first and ask for nothing; what is closed again asks no more", async () => {
    const { host, view } = await open({ query: 1, key: 0 }, answering);
    const heading = view.button(/^Scaling/);
    expect(heading.getAttribute("aria-expanded")).toBe("false");
    expect(asked(host.sent, ...KINDS)).toHaveLength(0);
    heading.click();
    await settle();
    expect(heading.getAttribute("aria-expanded")).toBe("true");
    expect(asked(host.sent, ...KINDS).map(({ kind }) => kind)).toEqual(["spread", "sweep"]);
    heading.click();
    host.fromPython({ facts: { ...stateOf(CAUSAL).facts, head_size: 4, version: 9 } });
    await settle(500);
    expect(asked(host.sent, ...KINDS)).toHaveLength(2);
  });

  test("scaling: variances beside the theory's, rows, and a sweep of one's own or fresh tensors", async () => {
    const { host, view } = await open({ query: 1, key: 0 }, answering);
    view.button(/^Scaling/).click();
    await settle();
    const text = view.text("[data-aw=section-scaling]");
    expect(text).toContain("1.02 · 0.980 · –");
    expect(text).toContain("3.90");
    expect(text).toContain("= 4: a sum of 4 products, each of variance 1");
    expect(text).toContain("mean 1.00 bits");
    expect(text).toContain("1 query: give one key 99 % of their weight");
    expect(view.all(".aw-multiples canvas")).toHaveLength(6);
    view.button("new, random normal").click();
    await settle(400);
    expect(asked(host.sent, "sweep").map(({ own }) => own)).toEqual([true, false]);
  });

  test("a long answer comes in slices: first of some queries, then of all", async () => {
    const shares = [0.25, 0.5, 1];
    const spread = () => {
      const share = shares.shift() ?? 1;
      return { ...ANSWERS.spread, share, looked: share < 1 ? 2 : stateOf(CAUSAL).facts.queries };
    };
    const slow = { answer: (({ kind }: { kind: string }) => (kind === "spread" ? spread() : ANSWERS[kind])) as never };
    const { host, view } = await open({}, slow);
    const seen: string[] = [];
    const watch = new MutationObserver(() => {
      const text = view.text("[data-aw=section-scaling]");
      if (seen.at(-1) !== text) seen.push(text);
    });
    watch.observe(view.root, { childList: true, subtree: true, characterData: true });
    view.button(/^Scaling/).click();
    await settle(600);
    watch.disconnect();
    expect(asked(host.sent, "spread")).toHaveLength(3);
    const whole = stateOf(CAUSAL).facts.queries;
    expect(seen.some((text) => text.includes(`From 2 of ${whole} queries`) && text.includes("Computing: 25"))).toBe(
      true,
    );
    expect(seen.at(-1)).not.toContain("queries, each exact");
    expect(view.all("[data-aw=slices]")).toHaveLength(0);
  });

  test("are asked anew once, when the tensors have come to rest", async () => {
    const { host, view } = await open({}, answering);
    view.button(/^Gradients/).click();
    await settle();
    expect(asked(host.sent, ...KINDS).map(({ kind }) => kind)).toEqual(["gradients"]);
    for (let version = 1; version < 6; version++) {
      host.fromPython({ facts: { ...stateOf(CAUSAL).facts, head_size: 4, version } });
      await settle(50);
    }
    await settle(400);
    expect(asked(host.sent, "gradients")).toHaveLength(2);
  });

  test("gradients: each with its shape and range, and the Jacobian of the pinned row", async () => {
    const { host, view } = await open({ query: 1, key: 0 }, answering);
    view.button(/^Gradients/).click();
    await settle();
    const names = view.all("[data-aw=section-gradients] figure b").map((name) => name.textContent);
    expect(names).toEqual(["dL/dV", "dL/dA", "dL/dS", "dL/dQ", "Jacobian"]);
    expect(view.text("[data-aw=section-gradients]")).toContain("L is the sum of all numbers of the output O");
    expect(view.text("[data-aw=section-gradients]")).toContain("−3.000 to 12.000");
    expect(asked(host.sent, "jacobian")[0]).toMatchObject({ query: 1 });
  });

  test("cost is measured by a button", async () => {
    const { host, view } = await open({}, answering);
    view.button(/^Cost/).click();
    await settle();
    expect(asked(host.sent, ...KINDS)).toHaveLength(0);
    view.button("Measure").click();
    await settle();
    expect(asked(host.sent, "cost")).toHaveLength(1);
    expect(view.text("[data-aw=section-cost]")).toContain("2.56 ms");
    expect(view.text("[data-aw=section-cost]")).toContain("1 MiB");
    expect(view.button("Measure again").disabled).toBe(false);
  });

  test("say why there is nothing", async () => {
    const refusing = () => {
      throw new Error("there is no v, so no output to differentiate");
    };
    const { view } = await open({}, { answer: refusing as never });
    view.button(/^Gradients/).click();
    await settle();
    expect(view.text("[data-aw=section-gradients]")).toContain("there is no v, so no output to differentiate");
  });
});

describe("what if", () => {
  test("takes numbers, and says what is none", async () => {
    const { host, view } = await open({ what_if: { window: 3 } });
    view.button(/^What if/).click();
    await settle();
    const field = (name: string) => view.find<HTMLInputElement>(`input[name=${name}]`);
    expect(field("window").value).toBe("3");
    field("softcap").value = "-2";
    view.button("Set").click();
    await settle();
    expect(view.text(".aw-other-rules [role=alert]")).toBe("Softcap must be above 0");
    field("softcap").value = "none";
    field("temperature").value = "2.5";
    field("window").value = "";
    view.button("Set").click();
    await settle();
    expect(host.saved.at(-1)).toEqual({ what_if: { temperature: 2.5, softcap: null } });
  });

  test("says the error that a number type makes, and goes back with a click", async () => {
    const original = { weights: 0.0123, output: 0.25, queries: 4 };
    const { host, view } = await open({ what_if: { dtype: "int8" }, deviation: { ...KNOWN, original } });
    expect(view.text(".aw-rules-line")).toContain("What if: int8");
    expect(view.text(".aw-changed")).toContain("largest change: weight .0123, output 0.250");
    view.button("Reset").click();
    await settle();
    expect(host.saved.at(-1)).toEqual({ what_if: {} });
  });
});
