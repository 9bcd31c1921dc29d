// @vitest-environment jsdom
/** The graph of a head too long for all its links: what is pinned, or the strongest pairs, with gaps between. */

import { describe, expect, test } from "vitest";
import type { Traits } from "../../src/contract/traits";
import type { HostOptions } from "../../src/kernel/host";
import { LENGTH, longAnswers, longFacts, longPicture, longState, STRONG, weightAt } from "../helpers/long.ts";
import { settle, show, type View } from "../helpers/page.ts";
import { asked } from "../helpers/states.ts";
import { useFakeTime } from "../helpers/timers.ts";

useFakeTime();

async function draw(changes: Partial<Traits> & { share?: number } = {}, options: HostOptions = {}, width = 900) {
  const isExact = () => (changes.share ?? 1) === 1;
  return show(longState({ view: "graph", ...changes }), { answer: longAnswers(isExact), ...options }, { width });
}

const gaps = (view: View, side: "query" | "key") =>
  view
    .column(side)
    .filter((label) => label.classList.contains("aw-graph-gap"))
    .map((label) => Number(/([\d,]+) token/.exec(label.textContent ?? "")![1]!.replaceAll(",", "")));
const tokens = (view: View, side: "query" | "key") =>
  view.column(side).filter((label) => !label.classList.contains("aw-graph-gap"));
const pill = (view: View) => view.all(".aw-graph-columns .aw-pill").map((label) => label.textContent);
const three = (value: number) => value.toFixed(4).replace(/^0/, "");

describe("with a query pinned", () => {
  const [query, key, weight] = STRONG;

  test("its strongest keys stand there, the others are folded, and every token is counted", async () => {
    const { view, host } = await draw({ query, key });
    expect(asked(host.sent, "ranked", "row")).toMatchObject([{ kind: "ranked", queries: [query], count: 12, head: 6 }]);
    for (const side of ["query", "key"] as const) {
      const folded = gaps(view, side).reduce((sum, each) => sum + each, 0);
      expect(folded + tokens(view, side).length).toBe(LENGTH);
      expect(view.column(side).length).toBeLessThanOrEqual(53);
    }
    expect(pill(view)).toHaveLength(2);
    expect(view.all(".aw-graph-row").map((row) => row.textContent)).toContain(three(weight));
    expect(/[1-9]/.test(view.pixels)).toBe(true);
  });

  test("as many keys as are kept are asked for", async () => {
    const { host } = await draw({ query, top_k: 3, threshold: 0 });
    expect(asked(host.sent, "ranked")).toMatchObject([{ count: 3 }]);
    const many = await draw({ query, top_k: 500, threshold: 0 });
    expect(asked(many.host.sent, "ranked")).toMatchObject([{ count: 64 }]);
  });

  test("tokens that are not among its strongest have no number", async () => {
    const { view } = await draw({ query, threshold: 0.02 });
    const numbers = view.all(".aw-graph-row").length;
    expect(numbers).toBeGreaterThan(1);
    expect(numbers).toBeLessThanOrEqual(12);
    expect(tokens(view, "key").length).toBeGreaterThan(numbers);
  });

  test("each of several heads is asked for; of other pins each head's strongest key", async () => {
    const pins: Traits["pins"] = [
      [9000, null],
      [query, null],
    ];
    const { view, host } = await draw({ query, pins, heads: [5, 6] });
    const requests = asked(host.sent, "ranked").map(({ head, queries }) => `${head} ${queries}`);
    expect(requests).toEqual([`5 ${query}`, `6 ${query}`, "5 9000", "6 9000"]);
    expect(tokens(view, "query").map((label) => label.querySelector("sub")?.textContent)).toContain("9,000");
    expect(view.text(".aw-graph-legend")).toMatch(/head 5 .*\.\d\d head 6 .*\.\d\d/);
  });

  test("a key whose queries are not known yet: Python's sentence, then its queries", async () => {
    let isExact = false;
    const { view, host } = await draw({ share: 0.3, key: 300 }, { answer: longAnswers(() => isExact) });
    expect(view.text(".aw-graph-columns")).toContain("Who attends to a key is known when the picture is exact.");
    isExact = true;
    host.fromPython({ progress: null, picture: longPicture(512) });
    await settle();
    expect(view.text(".aw-graph-columns")).not.toContain("is known when");
    const strongest = Array.from({ length: LENGTH }, (_, at) => weightAt(at, 300) ?? 0).reduce((a, b) =>
      Math.max(a, b),
    );
    expect(view.all(".aw-graph-row").map((row) => row.textContent)).toContain(three(strongest));
  });
});

describe("with nothing pinned", () => {
  test("the strongest pairs are drawn", async () => {
    const { view, host } = await draw();
    expect(asked(host.sent, "strongest")).toHaveLength(1);
    const subscripts = tokens(view, "query").map((label) => label.querySelector("sub")?.textContent);
    expect(subscripts).toContain(STRONG[0].toLocaleString("en"));
    expect(view.text(".aw-graph-columns")).toContain("The 8 strongest pairs of head 6, without the first token.");
    expect(/[1-9]/.test(view.pixels)).toBe(true);
  });

  test("of a stage that weights carry the largest pairs are drawn, in the colors of their signs", async () => {
    const picture = { ...longPicture(512), stage: "logit" as const };
    const pairs = [
      [9000, 7, -2.5],
      [4000, 40, 1.25],
    ];
    const { view } = await draw(
      { stage: "logit", picture },
      { answer: (request) => (request.kind === "strongest" ? { pairs } : longAnswers()(request)) },
    );
    expect(view.text(".aw-graph-columns")).toContain("The 2 largest pairs of head 6, without the first token.");
    expect(view.text(".aw-graph-legend")).toContain("widest ±2.500");
    const subscripts = tokens(view, "query").map((label) => label.querySelector("sub")?.textContent);
    expect(subscripts).toEqual(expect.arrayContaining(["9,000", "4,000"]));
  });

  test("pointing at a token asks for its links, and moves nothing", async () => {
    const { view, host } = await draw();
    const places = () => view.column("key").map((label) => label.style.top);
    const before = places();
    const label = tokens(view, "query").find((each) => each.textContent?.includes(STRONG[0].toLocaleString("en")))!;
    label.dispatchEvent(new PointerEvent("pointerenter", { pointerType: "mouse" }));
    await settle();
    expect(asked(host.sent, "ranked")).toMatchObject([{ queries: [STRONG[0]] }]);
    expect(places()).toEqual(before);
    expect(view.all(".aw-graph-row").length).toBeGreaterThan(0);
  });

  test("while the picture is not exact there is one gap and what to do", async () => {
    const { view, host } = await draw({ share: 0.3 });
    expect([gaps(view, "query"), gaps(view, "key")]).toEqual([[LENGTH], [LENGTH]]);
    expect(view.text(".aw-graph-columns")).toContain("Pin a token in the heatmap");
    expect(asked(host.sent, "strongest")).toHaveLength(0);
  });
});

test("few queries over very many keys: the queries all stand there", async () => {
  const keys = 131_072;
  const facts = longFacts({ queries: 6, keys });
  const picture = { ...longPicture(512), queries: LENGTH, keys: LENGTH };
  const { view } = await draw({ facts, picture, tokens: null, key_tokens: null, query: 3 });
  expect(tokens(view, "query")).toHaveLength(6);
  expect(view.column("key").length).toBeLessThanOrEqual(53);
});
