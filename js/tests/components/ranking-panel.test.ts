// @vitest-environment jsdom
/** What stands around the picture of a long head: progress, going to a token, the strongest pairs, rankings, its tokens. */

import { describe, expect, test } from "vitest";
import { timeLeft } from "../../src/components/progress";
import type { Progress } from "../../src/contract/messages";
import type { Traits } from "../../src/contract/traits";
import type { HostOptions, HostRequest } from "../../src/kernel/host";
import { LENGTH, longAnswers, longBand, longFacts, longPicture, longState, STRONG, TOKENS } from "../helpers/long.ts";
import { pressOn, settle, show, type View } from "../helpers/page.ts";
import { asked, CAUSAL, factsOf, python, stateOf, tokenAnswers, tokensOf, weights } from "../helpers/states.ts";
import { useFakeTime } from "../helpers/timers.ts";

useFakeTime();

/** The invented head; `share` of it is computed. */
async function draw(changes: Partial<Traits> & { share?: number } = {}, options: HostOptions = {}, width = 900) {
  const isExact = () => (changes.share ?? 1) === 1;
  return show(longState(changes), { answer: longAnswers(isExact), ...options }, { width });
}

const field = (view: View) => view.find<HTMLInputElement>("[data-aw=goto]");

/** Type a text into the field and press a key. */
async function type(view: View, text: string, key = "Enter", init: KeyboardEventInit = {}) {
  const input = field(view);
  if (input.value !== text) {
    input.value = text;
    input.dispatchEvent(new InputEvent("input", { bubbles: true }));
  }
  return pressOn(input, key, init);
}
const beside = (view: View) => view.text(".aw-goto-head").replace("Go to", "").trim();

describe("progress", () => {
  test("says what is exact already, how far it has come, and how long it takes", async () => {
    const { view } = await draw({ share: 0.38 });
    expect(view.text("[data-aw=progress]")).toBe("38 % exact, about 4 s left Stop");
    expect(view.find("[data-aw=progress]").title).toBe(
      "Computing the exact picture. First picture: 512 of 16,384 query rows, each exact. " +
        "What you zoom into is exact already.",
    );
    const bar = view.find("[role=progressbar]");
    expect(bar.getAttribute("aria-valuenow")).toBe("38");
    expect(bar.getAttribute("aria-valuetext")).toBe("38 %, about 4 s left");
    expect(view.find(".aw-progress-bar i").style.width).toBe("38%");
  });

  test("names the workers that compute it", async () => {
    const { view, host } = await draw({ share: 0.38 });
    const progress = host.get("progress") as Progress;
    const line = () => view.text("[data-aw=progress]");
    expect(line()).toBe("38 % exact, about 4 s left Stop");
    host.fromPython({ progress: { ...progress, workers: 3, seconds_left: 40 } });
    expect(line()).toBe("38 % exact, 3 workers · about 40 s left Stop");
    expect(view.find("[role=progressbar]").getAttribute("aria-valuetext")).toBe("38 %, 3 workers · about 40 s left");
    host.fromPython({ progress: { ...progress, workers: 1, seconds_left: null } });
    expect(line()).toBe("38 % exact, 1 worker Stop");
    host.fromPython({ progress: { ...progress, workers: 3, state: "stopped" } });
    expect(line()).toBe("Stopped: 38 % of the picture is exact Resume");
  });

  test("can be stopped, and says so", async () => {
    const { view, host } = await draw({ share: 0.38 });
    view.button("Stop").click();
    await settle();
    expect(asked(host.sent, "pass")).toMatchObject([{ action: "stop", layer: 4, batch: 0, head: 6, stage: "weights" }]);
    host.fromPython({ progress: { ...(host.get("progress") as Progress), state: "stopped", seconds_left: null } });
    expect(view.text("[data-aw=progress]")).toBe("Stopped: 38 % of the picture is exact Resume");
    view.button("Resume").click();
    await settle();
    expect(asked(host.sent, "pass")[1]).toMatchObject({ action: "resume" });
  });

  test.each([
    ["another head", { head: 5 }],
    ["another layer", { layer: 3 }],
    ["another stage", { stage: "scores" }],
  ] as [string, Partial<Progress>][])("of %s is not shown", async (_, of) => {
    const progress = longState({ share: 0.38 }).progress as Progress;
    const { view } = await draw({ share: 0.38, progress: { ...progress, ...of } });
    expect(view.all("[role=progressbar]")).toHaveLength(0);
  });

  test("ends with its room kept, whatever is looked at then", async () => {
    const { view, host } = await draw({ share: 0.38 });
    host.fromPython({ progress: null, picture: longPicture(512) });
    await settle();
    const isKept = () => view.all("[data-aw=progress]").length === 1 && view.all("[role=progressbar]").length === 0;
    expect(isKept()).toBe(true);
    await view.hover(100, 3, [512, 512]);
    expect(isKept()).toBe(true);
  });

  test("is spoken when it begins, stops and ends, not at each step", async () => {
    const { view, host } = await draw({ share: 0.38 });
    const live = () => view.text(".aw-panel > [aria-live]");
    const before = live();
    expect(before).toContain("Computing the exact picture");
    const progress = host.get("progress") as Progress;
    host.fromPython({ progress: { ...progress, share: 0.5, seconds_left: 3 } });
    expect(live()).toBe(before);
    expect(view.find("[role=progressbar]").getAttribute("aria-valuenow")).toBe("50");
    host.fromPython({ progress: { ...progress, share: 0.5, state: "stopped" } });
    expect(live()).toBe("Stopped at 50 %");
    host.fromPython({ progress: null, picture: longPicture(512) });
    await settle();
    expect(live()).toBe("The picture is exact");
  });

  test.each([
    [null, ""],
    [0.4, "less than 1 s left"],
    [4.4, "about 4 s left"],
    [200, "about 3 min left"],
    [7300, "about 2 h left"],
  ])("%s seconds", (seconds, words) => {
    expect(timeLeft(seconds)).toBe(words);
  });
});

describe("go to", () => {
  test("is there where not all tokens have room for their labels", async () => {
    expect((await draw()).view.all("[data-aw=goto]")).toHaveLength(1);
    const small = stateOf(CAUSAL);
    const { view } = await show(
      small,
      python(small, () => CAUSAL),
    );
    expect(view.all("[data-aw=goto]")).toHaveLength(0);
    const cells = weights(65, 65);
    const many = stateOf(cells);
    const longer = await show(
      many,
      python(many, () => cells),
    );
    expect(longer.view.all("[data-aw=goto]")).toHaveLength(1);
  });

  test("a number pins that query", async () => {
    const { view, host } = await draw();
    await type(view, "12,301");
    expect(host.saved).toEqual([{ query: 12_301 }]);
    expect(view.panel).toContain(`${TOKENS[12_301]}12,301 attends to`);
    expect(beside(view)).toBe("");
  });

  test("a query is shown with its own token, and the next one among the keys that are in view", async () => {
    const { view } = await draw();
    const inView = () => {
      const [queries, keys] = [...view.find(".aw-minimap-facts").querySelectorAll("b")]
        .map((span) => span.textContent!.replaceAll(",", "").split(" – ").map(Number))
        .map(([start, stop]) => ({ start: start!, stop: stop! }));
      return { queries: queries!, keys: keys! };
    };
    const has = ({ start, stop }: { start: number; stop: number }, index: number) => start <= index && index <= stop;
    await type(view, "12,301");
    await settle(1500);
    expect([has(inView().queries, 12_301), has(inView().keys, 12_301)]).toEqual([true, true]);
    const { keys } = inView();
    await type(view, "15000");
    await settle(1500);
    expect(has(inView().queries, 15_000)).toBe(true);
    expect(inView().keys).toEqual(keys);
    await type(view, "90"); // which may not attend to any of these
    await settle(1500);
    expect([has(inView().queries, 90), has(inView().keys, 90)]).toEqual([true, true]);
  });

  test("two numbers pin the pair", async () => {
    const { view, host } = await draw();
    await type(view, "12301 → 4,110");
    expect(host.saved).toEqual([{ query: 12_301, key: 4110 }]);
  });

  test("a number beyond the end is said to be one", async () => {
    const { view, host } = await draw();
    await type(view, "16384");
    expect(beside(view)).toBe("they end at 16,383");
    expect(host.saved).toEqual([]);
  });

  test("a text is looked for here; Enter goes to the next, Shift and Enter back", async () => {
    const { view, host } = await draw();
    const places = TOKENS.flatMap((token, at) => (token === "sluice" ? [at] : []));
    await type(view, "Sluice");
    expect(beside(view)).toBe(`1 of ${places.length}`);
    await type(view, "Sluice");
    expect(beside(view)).toBe(`2 of ${places.length}`);
    await type(view, "Sluice", "Enter", { shiftKey: true });
    await type(view, "Sluice", "Enter", { shiftKey: true });
    expect(beside(view)).toBe(`${places.length} of ${places.length}`);
    expect(host.saved.map(({ query }) => query)).toEqual([places[0], places[1], places[0], places.at(-1)]);
    expect(asked(host.sent, "find")).toHaveLength(0);
  });

  test("tokens that are the text come before those that contain it", async () => {
    const words = ["banker", "a", "bank", "Bank", ...Array.from({ length: 96 }, (_, at) => `w${at}`)];
    const cells = weights(100, 100);
    const state = stateOf(cells, { tokens: tokensOf(words), key_tokens: tokensOf(words) });
    const { view, host } = await show(
      state,
      python(state, () => cells),
    );
    for (let step = 0; step < 4; step++) await type(view, "bank");
    expect(host.saved.map(({ query }) => query)).toEqual([2, 3, 0, 2]);
    await type(view, '"12"'); // in quotation marks a text, not a position
    expect(host.saved.at(-1)).toEqual({ query: words.indexOf("w12") });
  });

  test("what is not there is said where the count would be, and forgotten when something else is typed", async () => {
    const { view, host } = await draw();
    await type(view, "xyzzy");
    expect(beside(view)).toBe("no such token");
    expect(host.saved).toEqual([]);
    field(view).dispatchEvent(new InputEvent("input", { bubbles: true }));
    await settle();
    expect(beside(view)).toBe("");
  });

  test("its keys do not reach the notebook; Esc gives the focus back to the picture", async () => {
    const { view } = await draw();
    field(view).focus();
    for (const key of ["a", "d", "Enter", "ArrowUp", "z"]) {
      expect((await type(view, field(view).value, key)).escaped).toBe(false);
    }
    expect((await type(view, field(view).value, "Escape")).escaped).toBe(false);
    expect(document.activeElement).toBe(view.canvas);
  });

  test("an Enter that ends the writing of a character goes nowhere", async () => {
    const { view, host } = await draw();
    await type(view, "sluice", "Enter", { isComposing: true });
    expect(host.saved).toEqual([]);
  });
});

describe("the strongest pairs", () => {
  test("are listed while nothing is pinned or pointed at; a click pins one", async () => {
    const { view, host } = await draw();
    const pairs = view.all(".aw-pair");
    expect(pairs).toHaveLength(8);
    const [query, key, weight] = STRONG;
    expect(view.text(".aw-pair")).toBe(
      `${TOKENS[query]} ${query.toLocaleString("en")} → ${TOKENS[key]} ${key.toLocaleString("en")} ` +
        weight.toFixed(4).replace(/^0/, ""),
    );
    pairs[0]!.click();
    await settle();
    expect(host.saved).toEqual([{ query, key }]);
    expect(view.all(".aw-pair")).toHaveLength(0);
    expect(view.panel).toContain("attends to");
  });

  test("are asked for when the picture is exact, and not before", async () => {
    const { view, host } = await draw({ share: 0.38 }, { answer: longAnswers() });
    expect(view.panel).toContain("Strongest, without the first token Available once the picture is exact.");
    expect(asked(host.sent, "strongest")).toHaveLength(0);
    host.fromPython({ progress: null, picture: longPicture(512) });
    await settle();
    expect(view.all(".aw-pair")).toHaveLength(8);
    expect(asked(host.sent, "strongest")).toMatchObject([{ count: 8, skip_first: true, layer: 4, head: 6 }]);
  });

  test("of a stage that weights carry are its largest numbers, with their signs", async () => {
    const picture = { ...longPicture(512), stage: "logit" as const };
    const pairs = [
      [12, 7, -2.5],
      [900, 4, 0.00214],
    ];
    const { view, host } = await draw(
      { stage: "logit", picture },
      { answer: (request) => (request.kind === "strongest" ? { pairs } : longAnswers()(request)) },
    );
    expect(asked(host.sent, "strongest")).toMatchObject([{ stage: "logit", skip_first: true }]);
    expect(view.panel).toContain("Largest logits by size, without the first token");
    expect(view.all(".aw-pair").map((pair) => pair.textContent?.split(" ").at(-1))).toEqual(
      expect.arrayContaining([expect.stringContaining("−2.500"), expect.stringContaining("0.0021")]),
    );
  });

  test("where Python cannot tell, its sentence stands there", async () => {
    const { view } = await draw({}, { answer: longAnswers(() => false) });
    expect(view.panel).toContain("The strongest pairs are known when the picture is exact.");
  });
});

describe("a pinned query", () => {
  test("is ranked by the kernel: its strongest keys, the others together, sums over all", async () => {
    const { view, host } = await draw({ query: 12_301 });
    expect(asked(host.sent, "ranked", "row")).toMatchObject([{ kind: "ranked", queries: [12_301], count: 12 }]);
    expect(view.all(".aw-ranks li button")).toHaveLength(7);
    const listed = view.all(".aw-ranks .aw-number").map((number) => Number(number.textContent));
    expect(view.text(".aw-rest")).toMatch(/^12,29\d more keys \.\d{4}$/);
    expect(listed.reduce((sum, value) => sum + value, 0)).toBeCloseTo(1, 3);
    expect(view.text(".aw-sums")).toMatch(/^Entropy [\d.]+ of 13\.59 bits 90 % in [\d,]+ keys Sum 1\.0000$/);
    expect(view.find(".aw-rest .aw-token").title).toContain("4,082 masked");
  });

  test("and a number under the pointer are asked for once, however many rows become exact meanwhile", async () => {
    const { view, host } = await draw({ share: 0.1, query: 12_301 });
    await view.hover(300, 3, [512, 512]);
    const before = asked(host.sent).length;
    const status = view.status;
    for (let start = 162; start < 182; start += 10) {
      host.tell(longBand(start, start + 10));
      await settle();
    }
    expect(asked(host.sent)).toHaveLength(before);
    expect(view.status).toBe(status);
    expect(status).toMatch(/maximum \d/);
  });

  test("several are taken together by the kernel", async () => {
    const pins: Traits["pins"] = [
      [9000, null],
      [12_301, null],
    ];
    const { view, host } = await draw({ pins, query: 12_301 });
    view.button("mean").click();
    await settle();
    expect(asked(host.sent, "ranked").at(-1)).toMatchObject({ queries: [9000, 12_301], over: "mean" });
    expect(view.panel).toContain("2 queries mean");
    view.button("last").click();
    expect(view.panel).toContain("12,301 attends to");
  });

  test("a key whose queries are not known yet says so, and shows them when the picture is exact", async () => {
    let isExact = false;
    const { view, host } = await draw({ share: 0.38, key: 300 }, { answer: longAnswers(() => isExact) });
    expect(view.panel).toContain("is attended to by Who attends to a key is known when the picture is exact.");
    expect(view.notices).toBe("");
    isExact = true;
    host.fromPython({ progress: null, picture: longPicture(512) });
    await settle();
    expect(view.panel).toContain("is attended to by");
    expect(view.all(".aw-ranks li button")).toHaveLength(7);
  });
});

describe("tokens in pages", () => {
  const MANY = 70_000;
  const words = Array.from({ length: MANY }, (_, at) => (at === 66_000 ? "needle" : `w${at % 500}`));
  const first = { ...tokensOf(words.slice(0, 4096)), length: MANY };
  const answer = (request: HostRequest) =>
    request.kind === "tokens" || request.kind === "find" ? tokenAnswers(words)(request) : longAnswers()(request);
  const facts = longFacts({ queries: MANY });
  const paged = (changes: Partial<Traits> = {}) =>
    draw({ facts, tokens: first, picture: { ...longPicture(512), queries: LENGTH }, ...changes }, { answer });

  test("come when they are looked at, and are asked for by page", async () => {
    const { view, host } = await paged({ query: 66_000 });
    expect(view.text(".aw-panel-head")).toBe("needle66,000 attends to");
    expect(asked(host.sent, "tokens")).toMatchObject([
      { side: "query", start: 65_536, stop: 69_632, layer: 4, batch: 0 },
    ]);
  });

  test("until then the position is the label", async () => {
    const { view, host } = await draw(
      { facts, tokens: first, query: 66_000 },
      { answer: (request) => (request.kind === "tokens" ? new Promise(() => {}) : answer(request)) },
    );
    expect(view.status).toMatch(/^query 66,000/);
    expect(asked(host.sent, "tokens")).toHaveLength(1);
  });

  test("a text is looked for by Python", async () => {
    const { view, host } = await paged();
    await type(view, "needle");
    expect(beside(view)).toBe("1 of 1");
    expect(host.saved).toEqual([{ query: 66_000 }]);
    expect(asked(host.sent, "find")).toMatchObject([{ side: "query", text: "needle", start: 0, count: 20 }]);
  });

  test("of many places twenty are known at a time; the next are asked for when one comes to them", async () => {
    const { view, host } = await paged();
    for (let step = 0; step < 22; step++) await type(view, "w7");
    expect(asked(host.sent, "find").map(({ start }) => start)).toEqual([0, 19 * 500 + 8]);
    expect(host.saved.map(({ query }) => query)).toEqual(Array.from({ length: 22 }, (_, at) => 7 + 500 * at));
    expect(beside(view)).toMatch(/^22 of /);
  });

  test("without a kernel that is said", async () => {
    const { view, host } = await paged();
    host.dead = true;
    await type(view, "needle");
    expect(beside(view)).toBe("the kernel is gone");
  });
});

describe("what the toolbar and the status line say of a long head", () => {
  test("how the picture is sampled, and when it is exact", async () => {
    const { view, host } = await draw({ share: 0.38 });
    expect(view.status).toContain("cuda:0 · sampled: 1 of 32 rows");
    host.fromPython({ progress: null, picture: longPicture(512) });
    await settle();
    expect(view.status).toMatch(/cuda:0 · exact$/);
  });

  test("a head whose every cell is drawn says neither", async () => {
    const cells = weights(20, 20);
    const state = stateOf(cells, { facts: factsOf(cells) });
    const { view } = await show(
      state,
      python(state, () => cells),
    );
    expect(view.status).toMatch(/cpu$/);
  });
});
