// @vitest-environment jsdom
/** The segments view in a page: what is pointed at and pinned, what leads down and back, and its states. */

import { describe, expect, test } from "vitest";
import type { Traits } from "../../src/contract/traits";
import type { HostOptions, HostRequest } from "../../src/kernel/host";
import { pressOn, settle, show, type View } from "../helpers/page.ts";
import { bytesOf, headMassOf, MATRIX, massOf, segmentsOf, spans, wholes } from "../helpers/segments.ts";
import { asked, type Cells, codes, factsOf, floats, stateOf, tokensOf } from "../helpers/states.ts";
import { useFakeTime } from "../helpers/timers.ts";

useFakeTime();

const CELLS: Cells = Array.from({ length: 8 }, (_, query) =>
  Array.from({ length: 8 }, (__, key) => (query + key) / 64),
);
const WORDS = ["[CLS]", "mill", "key", "nail", "where", "?", "the", "nail"];

function state(changes: Partial<Traits> = {}): Traits {
  const facts = { ...factsOf(CELLS), layers: ["a", "b"], heads: 2, groups: 2, ...changes.facts };
  const made: Partial<Traits> = {
    ...{ view: "segments", segments: segmentsOf(), key_segments: null, mass: massOf(), head_mass: headMassOf() },
    ...{ measure: "mass", aside: ["first token", "template"], asking: null, segment: null, segment_path: [] },
    ...{ tokens: tokensOf(WORDS), key_tokens: tokensOf(WORDS) },
    ...changes,
    facts,
  };
  return { ...stateOf(CELLS, { facts }), ...made } as Traits;
}

const KEYS = { positions: wholes([3, 1]), values: floats([0.2, 0.001]), rest: { count: 1, sum: 0.004 } };
const answer = ({ kind }: HostRequest) => (kind === "segment_keys" ? KEYS : {}) as never;

async function draw(changes: Partial<Traits> = {}, options: HostOptions = { answer }, width = 960) {
  const shown = await show(state(changes), options, { width });
  await settle(400);
  return { ...shown, set: () => Object.assign({}, ...shown.host.saved) as Partial<Traits> };
}

const PINNED = { query: 7, segment: "doc 1" };

/** Rows of the matrix as they are, without what is set aside: a half of .5 and .5, and .5 of .75. */
const ROWS = [1, 1, 2].map((row) => ({
  mass: floats(MATRIX[row]!, [1, 4]),
  even: floats([0.18, 0.55, 0.27, 0], [1, 4]),
  self: floats([0, 0, 0, 0], [1, 4]),
  self_even: floats([0, 0, 0, 0], [1, 4]),
}));

/** With a matrix that came rounded; `row` answers what is asked of a row of it. */
function drawRounded(row: (request: HostRequest) => unknown, more: HostOptions = {}, changes: Partial<Traits> = {}) {
  const own = { mass: floats(MATRIX[3]!, [1, 4]), even: floats([0.13, 0.4, 0.27, 0.2], [1, 4]) };
  const asking_row = { ...own, self: floats([0, 0, 0, 0.125], [1, 4]), self_even: floats([0, 0, 0, 0.02], [1, 4]) };
  const numbers = MATRIX.flat().map((one) => one * 0.987);
  const mass = massOf({ mass: codes(numbers, [4, 4], { kind: "log", high: 1, octaves: 10 }), asking_row });
  const column = floats([0.125, 0.125, 0.25, 0.5], [4, 1]);
  const heads = { mass: column, even: column, self: column, self_even: column };
  const asks = (request: HostRequest) =>
    (request.kind === "segment_row"
      ? row(request)
      : request.kind === "segment_heads"
        ? heads
        : answer(request)) as never;
  return draw({ mass, ...changes }, { answer: asks, ...more });
}

/** A point of the first line: in a token's stack so high, or on its word. */
function stack(view: View, token: number, share: number) {
  const word = view.all(".aw-seg-word")[token]!;
  const x = Number.parseFloat(word.style.left) + Number.parseFloat(word.style.width) / 2;
  return { x, y: 21 + 96 * (1 - share) };
}

const list = (view: View) => view.all("button.aw-seg-row:not(.aw-seg-key)").map((row) => row.title);

describe("where the answer looked", () => {
  test("the list ranks what is not set aside, as shares of the rest, with lift", async () => {
    const { view } = await draw();
    expect(view.text(".aw-seg-heading")).toContain("Where did the answer look");
    expect(list(view)).toEqual(["doc 1", "answer", "question"]);
    const row = view.text("button.aw-seg-row");
    expect(row).toContain(".5714"); // .5 of .875
    expect(row).toContain("×1.2"); // against .4 of .87
    expect(view.panel).toContain("excluded: first token .1250");
    expect(view.status).toContain("2 of 8 queries · 3 segments · mass is a share of what is not excluded");
  });

  test("a stack under the pointer is read exactly, and heard", async () => {
    const { view } = await draw();
    view.point(stack(view, 0, 0.5));
    await settle();
    expect(view.status).toContain("the 6 → doc 1");
    expect(view.status).toContain("mass 0.857143"); // .75 of .875
    expect(view.status).toContain("weight 0.750000");
    expect(view.status).toMatch(/even \.4598 .*lift 1\.86/);
    expect(view.text("[aria-live]")).toBe("answer token the 6, doc 1, mass .8571, 1.9 times even");
    expect(view.panel).toContain("the attends to");
    view.leave();
    await settle();
    expect(view.panel).toContain("the answer attends to");
  });

  test("a click pins the token and its segment; that moves to the base line, and its keys unfold", async () => {
    const { view, host, set } = await draw();
    view.mouse("click", stack(view, 1, 0.1)); // doc 1 is the lowest band
    await settle();
    expect(set()).toMatchObject({ query: 7, segment: "doc 1" });
    expect(view.text(".aw-seg-word.aw-pill")).toBe("nail");
    expect(view.text(".aw-seg-caption")).toContain("doc 1 on the baseline");
    await settle(400);
    expect(asked(host.sent, "segment_keys")[0]).toMatchObject({ of: 1, query: 7, column: 1, count: 64 });
    expect(view.text(".aw-seg-key")).toMatch(/nail ?3 .2286/); // .2 of .875
    expect(view.all(".aw-seg-key").at(-1)!.textContent).toContain("2 more keys");
    expect(view.text(".aw-seg-sums")).toContain("Whole answer .5714");
    expect(view.text(".aw-seg-sums")).toContain("Heads so far");
  });

  test("heads of which a capture kept some have their numbers in the model", async () => {
    const facts = { ...factsOf(CELLS), layers: ["a", "b"], heads: 2, groups: 2, model_heads: [[5, 7], null] };
    const { view } = await draw({ ...PINNED, facts });
    expect(view.all(".aw-seg-id").map((one) => one.textContent)).toContain("0·1 (7)");
    expect(view.text(".aw-seg-sums")).toContain("Rank of 0·0 (5)");
  });

  test("in a saved file keys that are not there are said to be missing", async () => {
    const none = () => {
      throw new Error("This number was not saved: open the notebook to compute it.");
    };
    const facts = { saved: { layers: [0], heads: [0], samples: [0] } } as never;
    const { view } = await draw({ segment: "doc 1", query: 7, facts }, { answer: none });
    await settle(400);
    expect(view.text(".aw-seg-key")).toBe("its keys were not saved");
    expect(view.find(".aw-seg-key").title).toContain("open the notebook");
  });

  test("a second click at the same place leads down: inside, and where there is nothing inside to the cells", async () => {
    const { view, host, set } = await draw({ segment: "doc 1", query: 7 });
    view.mouse("click", stack(view, 1, 0.1));
    await settle();
    expect(set()).toMatchObject({ segment_path: ["doc 1"], segment: null });
    host.fromPython({
      segment_path: ["doc 1"],
      mass: massOf({ id: 5, path: ["doc 1"], keys: ["sentence 1", "sentence 2", "outside doc 1", "first token"] }),
    });
    await settle();
    expect(view.text(".aw-seg-up")).toContain("‹ all segments inside doc 1");
    view.button(/all segments/).click();
    await settle();
    expect(set()).toMatchObject({ segment_path: [], segment: "doc 1" });
  });

  test("where only the outermost level was sent, the masses say what is inside a column, and where its cells are", async () => {
    const outermost = segmentsOf({
      ...{ names: ["first token", "doc 1", "question", "answer"], levels: bytesOf([0, 0, 0, 0]), more: 2 },
      ...{ starts: wholes([0, 1, 4, 6]), stops: wholes([1, 4, 6, 8]) },
    });
    const inside = { path: ["doc 1"], keys: ["sentence 1", "sentence 2", "outside doc 1", "first token"] };
    const rowSpans = { row_spans: spans([0, 1], [1, 4], [4, 6], [6, 8]) };
    const { view, host, set } = await draw({
      ...{ segments: outermost, segment: "doc 1", query: 7 },
      mass: massOf({ key_inside: [0, 2, 0, 0], key_spans: spans([0, 1], [1, 4], [4, 6], [6, 8]), ...rowSpans }),
    });
    view.mouse("click", stack(view, 1, 0.1));
    await settle();
    expect(set()).toMatchObject({ segment_path: ["doc 1"] });
    host.fromPython({
      ...{ segment_path: ["doc 1"], segment: "sentence 2" },
      mass: massOf({
        id: 5,
        ...inside,
        key_inside: [0, 0, 0, 0],
        key_spans: spans([1, 3], [3, 4], [0, 0], [0, 1]),
        ...rowSpans,
      }),
    });
    await settle();
    view.button(/^sentence 2/).click();
    await settle();
    expect(set()).toMatchObject({ view: "heatmap" });
    expect(view.text(".aw-back-slot")).toContain("‹ segments answer → sentence 2");
  });

  test("until another level comes nothing of the old one is pinned or opened, and the way up goes from the newest", async () => {
    const { view, host, set } = await draw({ segment: "doc 1", query: 7 });
    view.mouse("click", stack(view, 1, 0.1)); // down into doc 1: its masses are not there yet
    view.mouse("click", stack(view, 1, 0.1));
    view.mouse("click", stack(view, 1, 0.1));
    await settle();
    expect(set()).toMatchObject({ segment_path: ["doc 1"], segment: null });
    await view.press("Escape");
    await view.press("Escape");
    await view.press("Escape");
    expect(host.saved.map(({ segment_path }) => segment_path).filter(Boolean)).toEqual([["doc 1"], []]);
    expect(set()).toMatchObject({ segment_path: [], query: null, segment: null });
  });

  test("asking for another segment and at once for the first again is asking for the first", async () => {
    const { view, set } = await draw();
    const rows = view.all<HTMLButtonElement>(".aw-seg-labels > button");
    rows.find((row) => row.textContent === "question")!.click();
    rows.find((row) => row.textContent === "answer")!.click();
    await settle();
    expect(set()).toMatchObject({ asking: "answer" });
  });

  test("where the matrix came rounded numbers are about so much, until the row pointed at has come", async () => {
    let release = () => {};
    const released = new Promise<void>((resolve) => {
      release = resolve;
    });
    const { view, host } = await drawRounded(async (request) => {
      await released;
      return ROWS[request.row as number];
    });
    expect(view.text("button.aw-seg-row")).toContain(".5714"); // of the answer: .5 of .875, as it is
    await pressOn(view.find("[data-aw=segment-matrix]"), "ArrowUp"); // the question
    await settle();
    expect(view.status).toMatch(/question → doc 1 ?mass about \.6[67]/);
    release();
    await settle(400);
    expect(asked(host.sent, "segment_row")).toEqual([expect.objectContaining({ of: 1, row: 2 })]);
    expect(view.status).toContain("mass 0.666667");
  });

  test("of a kernel that takes longer than one waits for without a word, each answer comes at once", async () => {
    const some = [...new Array(4)].flatMap(() => [0.125, 0.5, 0.25]); // without the question: that is asked for
    const part = Object.fromEntries(["mass", "even", "self", "self_even"].map((name) => [name, floats(some, [4, 3])]));
    const head_mass = headMassOf({ keys: ["first token", "doc 1", "answer"], ...part });
    const more = { ...PINNED, head_mass };
    const { view, host } = await drawRounded(({ row }) => ROWS[row as number], { delay: 600 }, more);
    await settle(2000);
    expect(asked(host.sent, "segment_heads")).toHaveLength(1);
    expect(view.text(".aw-seg-heads")).toContain("question");
    expect(asked(host.sent, "segment_keys")).toHaveLength(1);
    expect(view.text(".aw-seg-key")).toMatch(/nail ?3 .2286/);
    await pressOn(view.find("[data-aw=segment-matrix]"), "ArrowUp");
    await settle(500);
    expect(view.status).toMatch(/question → doc 1 ?mass about \.6[67]/);
    await settle(1500);
    expect(asked(host.sent, "segment_row")).toHaveLength(1);
    expect(view.status).toContain("mass 0.666667");
  });

  test("a row that fails to come is asked for again when it is pointed at again", async () => {
    let fails = true;
    const { view, host } = await drawRounded(({ row }) => {
      if (fails) throw new Error("other segments are shown now: send the request again");
      return ROWS[row as number];
    });
    const matrix = view.find("[data-aw=segment-matrix]");
    await pressOn(matrix, "ArrowUp");
    await settle(400);
    expect(view.status).toMatch(/question → doc 1 ?mass about \.6[67]/);
    fails = false;
    await pressOn(matrix, "ArrowDown"); // the answer, which is exact
    await settle(400);
    await pressOn(matrix, "ArrowUp");
    await settle(400);
    expect(asked(host.sent, "segment_row").map(({ row }) => row)).toEqual([2, 2]);
    expect(view.status).toContain("mass 0.666667");
  });

  test("of two rows pointed at one after the other the last one ends exact", async () => {
    const { view, host } = await drawRounded(({ row }) => ROWS[row as number], { delay: 200 });
    const matrix = view.find("[data-aw=segment-matrix]");
    await pressOn(matrix, "ArrowUp");
    await settle(100); // on its way, and not here
    expect(asked(host.sent, "segment_row")).toHaveLength(1);
    await pressOn(matrix, "ArrowUp");
    await settle(1000);
    expect(asked(host.sent, "segment_row").map(({ row }) => row)).toEqual([2, 1]);
    expect(view.status).toMatch(/doc 1 → doc 1 ?mass 1\.000000/);
    await pressOn(matrix, "ArrowDown"); // its answer came when another was pointed at, and is asked for anew
    await settle(1000);
    expect(view.status).toContain("mass 0.666667");
  });

  test("the cells of a block are shown in the heatmap, and there is a way back", async () => {
    const { view, set } = await draw({ segment: "question" });
    view
      .all<HTMLButtonElement>("button.aw-seg-row")
      .find((row) => row.title === "question")!
      .click();
    await settle();
    expect(set()).toMatchObject({ view: "heatmap" });
    expect(view.text(".aw-back-slot")).toContain("‹ segments answer → question");
    await view.press("Backspace");
    await settle();
    expect(set()).toMatchObject({ view: "segments" });
    expect(view.all(".aw-back")).toHaveLength(0);
  });

  test("the text marks the block that one went down to, until a token is pinned; Esc leads back", async () => {
    const { view, host, set } = await draw({ segment: "question" });
    const down = view.all<HTMLButtonElement>("button.aw-seg-row").find((row) => row.title === "question")!;
    down.click();
    await settle();
    view.button("Text").click();
    await settle(400);
    const marked = (side: string) =>
      view.all(`.aw-line[data-marked=${side}] .aw-word`).map((word) => Number(word.dataset.at));
    expect([marked("query"), marked("key")]).toEqual([
      [6, 7],
      [4, 5],
    ]);
    expect(view.legend).toContain("marked: answer 6–7 → question 4–5");
    expect(view.text(".aw-column > [aria-live]")).toBe("marked: queries 6–7 of answer, keys 4–5 of question");
    view.find('[data-at="2"]').dispatchEvent(new MouseEvent("click", { bubbles: true }));
    await settle(400);
    expect(host.get("query")).toBe(2);
    expect(view.all("[data-marked], .aw-marked")).toEqual([]);
    await view.press("Escape"); // the pin
    await view.press("Escape");
    await settle();
    expect(set()).toMatchObject({ view: "segments" });
  });
});

describe("keys", () => {
  test("arrows point at tokens and segments, Enter pins and then leads down, Esc frees", async () => {
    const { view, host, set } = await draw();
    await view.press("ArrowRight");
    await view.press("ArrowUp");
    expect(view.text("[aria-live]")).toContain("answer token the 6, doc 1");
    await view.press("ArrowRight");
    await view.press("ArrowUp");
    expect(view.text("[aria-live]")).toContain("answer token nail 7, question, mass .2857");
    expect(host.saved).toEqual([]);
    expect(await view.press("Enter")).toEqual({ prevented: true, escaped: false });
    expect(set()).toMatchObject({ query: 7, segment: "question" });
    await view.press("Escape");
    expect(set()).toMatchObject({ query: null });
    await view.press("Escape");
    expect(set()).toMatchObject({ segment: null });
    await view.press("r");
    expect(set()).toMatchObject({ measure: "per_token" });
    await view.press("]");
    expect(set()).toMatchObject({ head: 1 });
  });

  test("in the matrix from cell to cell, in the heads from head to head and column to column", async () => {
    const { view, set } = await draw();
    const matrix = view.find("[data-aw=segment-matrix]");
    await pressOn(matrix, "ArrowUp");
    expect(view.text("[aria-live]")).toContain("question, doc 1");
    await pressOn(matrix, "Enter");
    expect(set()).toMatchObject({ asking: "question", segment: "doc 1" });
    const heads = view.find("[data-aw=segment-heads]");
    await pressOn(heads, "ArrowRight");
    expect(set()).toMatchObject({ segment: "question" });
    await pressOn(heads, "ArrowDown");
    await pressOn(heads, "Enter");
    expect(set()).toMatchObject({ layer: 1, head: 1 });
  });
});

describe("nested segments", () => {
  const NESTED = massOf({
    ...{ asking: "sentence 2", asking_path: ["doc 1"] },
    ...{ rows: ["sentence 1", "sentence 2", "outside doc 1", "first token"], row_sizes: [2, 1, 4, 1], row: 1 },
    ...{ row_spans: wholes([1, 3, 3, 4, 4, 8, 0, 1]), looked: wholes([2, 1, 4, 1]), positions: wholes([3]), total: 1 },
  });
  const rows = (view: View) => view.all<HTMLButtonElement>(".aw-seg-labels > button").slice(0, 3);

  test("the asking row leads inside, another is asked about on its level", async () => {
    const { view, set } = await draw({ mass: massOf({ asking: "doc 1", row: 1 }), asking: "doc 1" });
    rows(view)
      .find(({ title }) => title === "doc 1")!
      .click();
    expect(set()).toMatchObject({ asking: ["doc 1", "sentence 1"] });
    const inside = await draw({ mass: NESTED, asking: ["doc 1", "sentence 2"] });
    const names = rows(inside.view);
    expect(names.map(({ title }) => title)).toEqual(["sentence 1", "sentence 2", "outside doc 1"]);
    names[0]!.click();
    expect(inside.set()).toMatchObject({ asking: ["doc 1", "sentence 1"] });
  });

  test("the menu leads inside and around, Esc too once nothing is pinned", async () => {
    const { view, set } = await draw({ mass: NESTED, asking: ["doc 1", "sentence 2"] });
    view.find<HTMLButtonElement>(".aw-seg-heading .aw-menu > button").click();
    await settle();
    view.button(/^‹ doc 1/).click();
    expect(set()).toMatchObject({ asking: "doc 1" });
    const again = await draw({ mass: NESTED, asking: ["doc 1", "sentence 2"] });
    await again.view.press("Escape");
    expect(again.set()).toMatchObject({ asking: "doc 1" });
    const outer = await draw({ mass: massOf({ asking: "doc 1", row: 1 }), asking: "doc 1" });
    outer.view.find<HTMLButtonElement>(".aw-seg-heading .aw-menu > button").click();
    await settle();
    outer.view.button(/^inside doc 1/).click();
    expect(outer.set()).toMatchObject({ asking: ["doc 1", "sentence 1"] });
  });

  test("going down to cells marks the queries of the nested segment", async () => {
    const { view } = await draw({ mass: NESTED, asking: ["doc 1", "sentence 2"], segment: "question" });
    view
      .all<HTMLButtonElement>("button.aw-seg-row")
      .find(({ title }) => title === "question")!
      .click();
    await settle();
    view.button("Text").click();
    await settle(400);
    expect(view.legend).toContain("marked: sentence 2 3 → question 4–5");
    expect(view.all(".aw-line[data-marked=query] .aw-word").map((word) => word.dataset.at)).toEqual(["3"]);
  });

  test("a row has the color of its segment in the text", async () => {
    const inside = { segment_path: ["doc 1"], asking: ["doc 1", "sentence 2"] };
    const path = { path: ["doc 1"], keys: ["sentence 1", "sentence 2", "outside doc 1", "first token"] };
    const colors = { key_colors: [0, 7, -1, -1], asking_path: ["doc 1"], asking: "sentence 2" };
    const mass = massOf({ ...path, ...colors, rows: path.keys, row: 1 });
    const { view } = await draw({ ...inside, mass, head_mass: headMassOf({ ...path, ...colors }) });
    const edges = view.all(".aw-seg-edge").map((edge) => edge.style.background);
    expect(edges.slice(0, 3)).toEqual(edges.slice(3, 6));
    expect(new Set(edges).size).toBe(3);
    view.button("Text").click();
    await settle(400);
    const stripes = view.all(".aw-line-segment").map((stripe) => [stripe.title, stripe.style.background]);
    expect(Object.fromEntries(stripes)).toMatchObject({ "sentence 1": edges[0], "sentence 2": edges[1] });
  });
});

describe("the matrix and the heads", () => {
  test("names, numbers of what is set aside, and no tile where nothing is allowed", async () => {
    const { view } = await draw();
    expect(view.all(".aw-seg-labels > button").map((name) => name.title)).toEqual([
      ...["doc 1", "question", "answer"],
      ...["doc 1", "question", "answer"],
    ]);
    expect(view.all(".aw-seg-aside").map((one) => one.textContent)).toEqual([".50", ".25", ".13"]);
    expect(view.text(".aw-seg-matrix .aw-legend")).toContain("no tile: no query may attend to it");
  });

  /** So many segments; the first row holds these numbers, all others nothing but their own. */
  async function many(count: number, row: readonly number[], asking = 0, changes: Partial<Traits> = {}) {
    const names = Array.from({ length: count }, (_, at) => `part ${at}`);
    const own = names.flatMap((_, i) => names.map((__, j) => (i === 0 ? (row[j] ?? 0) : i === j ? 1 : 0)));
    const square = floats(own, [count, count]);
    const one = (number: number, shape: number[]) =>
      floats(new Array(shape.reduce((a, b) => a * b)).fill(number), shape);
    const sizes = names.map(() => 1);
    const mass = massOf({
      ...{
        asking: `part ${asking}`,
        row: asking,
        keys: names,
        key_sizes: sizes,
        key_colors: names.map(() => -1),
        rows: names,
      },
      ...{ row_sizes: sizes, looked: wholes(sizes), mass: square, even: one(1 / count, [count, count]) },
      ...{ self: one(0, [count, count]), self_even: one(0, [count, count]), total: 1, positions: wholes([0]) },
      columns: {
        ...{ start: 0, mass: floats(own.slice(0, count), [1, count]), even: one(1 / count, [1, count]) },
        ...{ self: floats([0]), self_even: floats([0]), own: wholes([0]) },
      },
    });
    const places = names.map((_, at) => at);
    const segments = segmentsOf({
      ...{
        names,
        starts: wholes(places),
        stops: wholes(places.map((at) => at + 1)),
        levels: bytesOf(names.map(() => 0)),
      },
      ...{ length: count, distinct: names, sizes, colors: names.map(() => -1), answer: "part 0" },
    });
    const { view } = await draw({ segments, mass, head_mass: null, aside: [], ...changes });
    const canvas = view.find("[data-aw=segment-matrix]") as HTMLCanvasElement;
    const cell = canvas.width / count;
    const color = (column: number) => [
      ...canvas.getContext("2d")!.getImageData(Math.floor((column + 0.5) * cell), Math.floor(cell / 2), 1, 1).data,
    ];
    const apart = (a: number, b: number) => Math.hypot(...color(a).map((part, at) => part - color(b)[at]!));
    return { view, legend: view.text(".aw-seg-matrix .aw-legend"), apart };
  }
  const SMALL = [0, 0.9, 0.002, 0.02, 0.0001];

  test("among many segments small numbers are told apart by a log scale, and the legend says so", async () => {
    const { legend, apart } = await many(60, SMALL);
    expect(legend).toContain("Mass, log");
    expect(legend).toContain("one color below 1/1,000 of the largest");
    expect(apart(2, 3)).toBeGreaterThan(40);
    expect(apart(0, 2)).toBeGreaterThan(20);
    expect(apart(0, 4)).toBe(0);
  });

  test("a pinned name, a pill, stands free of its neighbors, and its neighbors of none", async () => {
    const { view } = await many(200, SMALL, 101, { segment: "part 133" });
    const labels = view.all(".aw-seg-matrix .aw-label").filter(({ title }) => title !== "");
    const slanted = (one: HTMLElement) => one.className.includes("aw-seg-slanted");
    for (const [of, side, apart] of [
      [labels.filter((one) => !slanted(one)), "top", 18],
      [labels.filter(slanted), "left", 27],
    ] as const) {
      const placeOf = (one: HTMLElement) => Number.parseFloat(one.style[side]);
      const pill = of.find((one) => one.className.includes("aw-pill"))!;
      const others = of.filter((one) => one !== pill).map(placeOf);
      expect(pill.title).toBe(side === "top" ? "part 101" : "part 133");
      expect(others.length).toBeGreaterThan(5);
      const nearest = Math.min(...others.map((place) => Math.abs(place - placeOf(pill))));
      expect(nearest).toBeGreaterThanOrEqual(apart - 1e-6);
      expect(nearest).toBeLessThan(3 * apart); // only those beside it make way
    }
  });

  test("the last of many names makes way for what is set aside", async () => {
    const { view } = await many(200, SMALL, 0, { aside: ["self"] });
    const placeOf = (one: HTMLElement) => Number.parseFloat(one.style.left);
    const slanted = view.all(".aw-seg-matrix .aw-seg-slanted");
    const aside = placeOf(slanted.find((one) => one.textContent === "excluded")!);
    const names = slanted.filter(({ title }) => title !== "").map(placeOf);
    expect(names.length).toBeGreaterThan(5);
    expect(aside - Math.max(...names)).toBeGreaterThanOrEqual(20);
  });

  test("among few the scale is linear, and nothing is said", async () => {
    const { legend, apart } = await many(40, SMALL);
    expect(legend).not.toContain("log");
    expect(legend).not.toContain("thousandth");
    expect(apart(0, 2)).toBeLessThan(10);
  });

  test("heads are sorted by the pinned column, both ways, those that are not known last", async () => {
    const { view, set } = await draw({ segment: "doc 1" });
    const ids = () => view.all(".aw-seg-id").map((one) => one.textContent);
    expect(ids()).toEqual(["0·0", "1·0", "0·1", "1·1"]);
    expect(view.text(".aw-seg-heads")).toContain(".571");
    expect(view.text(".aw-seg-foot")).toContain("50 % of all heads so far");
    view.button("Sort by doc 1, largest first").click();
    await settle();
    expect(ids()).toEqual(["0·1", "1·0", "0·0", "1·1"]);
    view.button("Sort by answer").click();
    await settle();
    expect(set()).toMatchObject({ segment: "answer" });
  });
});

describe("what is set aside, and the reading", () => {
  test("both are chosen in the toolbar, and hold in all three pictures", async () => {
    const { view, set, host } = await draw();
    view.button("lift").click();
    await settle();
    expect(set()).toMatchObject({ measure: "lift" });
    expect(view.text("button.aw-seg-row")).toContain("doc 1 ×1.2 .5714");
    view.button("Exclude 1").click();
    await settle();
    view.button(/^question/).click();
    await settle();
    expect(host.saved.at(-1)).toEqual({ aside: ["first token", "template", "question"] });
    expect(list(view)).not.toContain("question");
  });

  test("the heatmap says what a pinned block is without, and lets that be chosen; without a block there is no choice", async () => {
    const { view, host } = await draw({ view: "heatmap", asking: "answer", segment: "doc 1", head_mass: null });
    expect(view.panel).toContain("excluded: first token .1250");
    view.button("More").click();
    await settle();
    view.button(/^question/).click();
    await settle();
    expect(host.saved.at(-1)).toEqual({ aside: ["first token", "template", "question"] });
    expect(view.panel).toContain("excluded: first token, question .2500");
    const none = await draw({ view: "heatmap", mass: null, head_mass: null });
    none.view.button("More").click();
    await settle();
    const choices = none.view.all(".aw-popup button").map((one) => one.textContent);
    expect(choices.length).toBeGreaterThan(2);
    expect(choices).not.toContain("question");
  });

  test("everything set aside: the strip is full, and it is said", async () => {
    const { view } = await draw({ aside: ["first token", "doc 1", "question", "answer"] });
    expect(view.text(".aw-seg-legend")).toContain("everything is excluded");
    expect(view.panel).toContain("Everything is excluded.");
    expect(view.all(".aw-seg-pair[hidden]")).toHaveLength(1);
  });
});

describe("states", () => {
  test("no segments: the call that makes them, and by sentences", async () => {
    const { view, host } = await draw({ segments: null, mass: null, head_mass: null });
    expect(view.text(".aw-seg-message")).toContain("No segments yet");
    expect(view.text(".aw-seg-message")).toContain('w.segments = "sentences"');
    view.button("By sentences").click();
    await settle();
    expect(asked(host.sent, "segment_by")[0]).toMatchObject({ unit: "sentences" });
  });

  test("segments that do not fit: Python's sentence", async () => {
    const { view } = await draw({ segments: { error: "doc 1 ends at 40 of 8 tokens" }, mass: null });
    expect(view.text(".aw-seg-message")).toContain("doc 1 ends at 40 of 8 tokens");
  });

  test("a head that is not in a saved file: this is said, and nothing is drawn in its place", async () => {
    const facts = { saved: { layers: [0], heads: [0], samples: [0] } } as never;
    const { view } = await draw({ mass: null, facts });
    expect(view.text(".aw-seg-message")).toContain("Not in this file");
    expect(view.text(".aw-seg-message")).toContain(
      "was not saved for this head. Choose another head, or open the notebook",
    );
    expect(view.all(".aw-seg-waiting")).toHaveLength(0);
    expect(view.all(".aw-seg-row")).toHaveLength(0);
  });

  test("with a kernel the same state is one of waiting", async () => {
    const { view } = await draw({ mass: null });
    expect(view.text(".aw-seg-message")).not.toContain("Not in this file");
    expect(view.all(".aw-seg-waiting")).toHaveLength(1);
  });

  test("one segment: the matrix and the heads leave", async () => {
    const { view } = await draw({ aside: ["first token", "question", "answer"] });
    expect(view.text(".aw-seg-alone")).toContain("All mass that is not excluded is on doc 1");
    expect(view.all(".aw-seg-pair[hidden]")).toHaveLength(1);
  });

  test("no answer: the question has a menu of segments", async () => {
    const { view, set } = await draw({ mass: massOf({ asking: "question", row: 2 }) });
    expect(view.text(".aw-seg-heading")).toContain("Where did question");
    view.button("Asking question").click();
    await settle();
    view.button("doc 1").click();
    await settle();
    expect(set()).toMatchObject({ asking: "doc 1" });
  });

  test("narrow: the heads fold, the matrix is folded at first, and the reading is above", async () => {
    const { view } = await draw({}, { answer }, 360);
    expect(view.find(".aw-seg-matrix").hidden).toBe(true);
    expect(view.find(".aw-seg-heads").hidden).toBe(false);
    view.button(/From each segment to each/).click();
    await settle();
    expect(view.find(".aw-seg-matrix").hidden).toBe(false);
    expect(view.text(".aw-seg-reading")).toBe("Measure mass per token lift");
  });
});
