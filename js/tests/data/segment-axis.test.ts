import { describe, expect, test } from "vitest";
import {
  clipped,
  isOn,
  isSame,
  named,
  nodesBelow,
  piecesAlong,
  piecesAt,
  piecesInView,
  pieceUnder,
  placeOf,
  slotsBelow,
  treeOf,
} from "../../src/data/segment-axis";
import { decodeSegments, type Segments } from "../../src/data/segment-data";
import { bytesOf, segmentsOf, wholes } from "../helpers/segments.ts";

/** 100 tokens: the first one, `documents` with three inside and a rest, `answer`. */
async function nested(): Promise<Segments> {
  return decodeSegments({
    names: ["first token", "documents", "doc 1", "doc 2", "doc 3", "answer"],
    starts: wholes([0, 1, 1, 31, 51, 90]),
    stops: wholes([1, 90, 31, 51, 80, 100]),
    levels: bytesOf([0, 0, 1, 1, 1, 0]),
    length: 100,
    distinct: ["first token", "documents", "answer"],
    sizes: [1, 89, 10],
    colors: [-1, 0, 7],
    answer: "answer",
  });
}

/** Many segments of so many tokens each. */
async function many(count: number, tokens: number): Promise<Segments> {
  const names = Array.from({ length: count }, (_, at) => `paragraph ${at}`);
  return decodeSegments({
    names,
    starts: wholes(names.map((_, at) => at * tokens)),
    stops: wholes(names.map((_, at) => (at + 1) * tokens)),
    levels: bytesOf(names.map(() => 0)),
    length: count * tokens,
    distinct: names,
    sizes: names.map(() => tokens),
    colors: names.map((_, at) => (at < 7 ? at : -1)),
    answer: names.at(-1)!,
  });
}

const view = (perToken: number, offset = 0, size = 400) => ({ perToken, offset, size });
const names = (placed: readonly { node: { name: string } }[]) => placed.map(({ node }) => node.name);
const WHOLE = { apart: 12, paths: [], levels: 9 };

describe("treeOf", () => {
  test("has the pieces inside another, and what is in none of these", async () => {
    const [first, documents, answer] = treeOf(await nested());
    expect(documents!.children.map(({ name, start, stop }) => [name, start, stop])).toEqual([
      ["doc 1", 1, 31],
      ["doc 2", 31, 51],
      ["doc 3", 51, 80],
      ["rest of documents", 80, 90],
    ]);
    expect(documents!.children.map(({ path, isRest }) => [path.join(), isRest])).toEqual([
      ["documents", false],
      ["documents", false],
      ["documents", false],
      ["documents", true],
    ]);
    expect([first!.children, answer!.children]).toEqual([[], []]);
    expect(documents!.least).toBe(20);
  });

  test("is made once", async () => {
    const segments = await nested();
    expect(treeOf(segments)).toBe(treeOf(segments));
  });
});

describe("piecesInView", () => {
  test("tells apart what is inside only where all of it is long enough", async () => {
    const tree = treeOf(await nested());
    const near = piecesInView(tree, view(0.6), WHOLE); // doc 2 is exactly 12 px
    expect(names(near.pieces)).toEqual(["first token", "doc 1", "doc 2", "doc 3", "rest of documents", "answer"]);
    expect(names(near.around)).toEqual(["documents"]);
    const far = piecesInView(tree, view(0.59), WHOLE);
    expect(names(far.pieces)).toEqual(["first token", "documents", "answer"]);
    expect(far.around).toEqual([]);
  });

  test("goes along the path however short the pieces are, and no deeper than it may", async () => {
    const tree = treeOf(await nested());
    expect(names(piecesInView(tree, view(0.1), { ...WHOLE, paths: [["documents"]] }).around)).toEqual(["documents"]);
    expect(names(piecesInView(tree, view(4), { ...WHOLE, levels: 0 }).pieces)).toEqual([
      "first token",
      "documents",
      "answer",
    ]);
  });

  test("leaves out what is not in view, and keeps where a piece begins outside", async () => {
    const tree = treeOf(await nested());
    const { pieces } = piecesInView(tree, view(10, -350, 200), WHOLE); // positions 35 to 55
    expect(names(pieces)).toEqual(["doc 2", "doc 3"]);
    expect(pieces[0]).toMatchObject({ from: -40, to: 160 });
    expect(clipped(pieces[0]!, view(10, -350, 200))).toEqual({ from: 0, to: 160, middle: 80 });
  });

  test("what ends where the view begins is not in it", async () => {
    const tree = treeOf(await nested());
    expect(names(piecesInView(tree, view(10, -310, 100), WHOLE).pieces)).toEqual(["doc 2"]);
  });
});

describe("named", () => {
  test("of 200 segments those have names that are 12 px apart, from end to end", async () => {
    const at = view(1, 0, 600);
    const { pieces } = piecesInView(treeOf(await many(200, 3)), at, WHOLE);
    const shown = named(pieces, at, 12);
    const middles = shown.map((placed) => clipped(placed, at).middle);
    for (let i = 1; i < middles.length; i++) {
      expect(middles[i]! - middles[i - 1]!).toBeGreaterThanOrEqual(12);
      expect(middles[i]! - middles[i - 1]!).toBeLessThan(24);
    }
    expect(shown.length).toBe(50);
  });

  test("what is pinned is named always, and its neighbors step back", async () => {
    const at = view(1, 0, 600);
    const { pieces } = piecesInView(treeOf(await many(200, 3)), at, WHOLE);
    const shown = named(pieces, at, 12, ({ name }) => name === "paragraph 42");
    expect(names(shown)).toContain("paragraph 42");
    const middle = 42 * 3 + 1.5;
    for (const placed of shown) {
      const away = Math.abs(clipped(placed, at).middle - middle);
      if (placed.node.name !== "paragraph 42") expect(away).toBeGreaterThanOrEqual(18);
    }
  });

  test("a long segment is named before a short one beside it", async () => {
    const at = view(2, 0, 200);
    const { pieces } = piecesInView(treeOf(await nested()), at, { ...WHOLE, levels: 0 });
    expect(names(named(pieces, at, 100))).toEqual(["documents"]);
    expect(names(named(pieces, at, 12))).toEqual(["first token", "documents", "answer"]);
  });
});

test("what is under a place of the margin", async () => {
  const at = view(2, -20, 150);
  const { pieces } = piecesInView(treeOf(await nested()), at, WHOLE);
  const under = (x: number) => pieceUnder(pieces, x)?.name ?? null;
  expect([under(0), under(41), under(42), under(145)]).toEqual(["doc 1", "doc 1", "doc 2", "rest of documents"]);
  expect(pieceUnder([], 10)).toBeNull();
});

describe("slotsBelow", () => {
  test("on the outermost level what is inside has the color of what is around it", async () => {
    const segments = await nested();
    const [first, documents, answer] = treeOf(segments);
    const slot = slotsBelow(segments, [], null);
    expect([first!, documents!, documents!.children[1]!, answer!].map(slot)).toEqual([-1, 0, 0, 7]);
  });

  test("below a path the segments there have colors in order, and all else is gray", async () => {
    const segments = await nested();
    const [first, documents, answer] = treeOf(segments);
    const slot = slotsBelow(segments, ["documents"], null);
    expect(documents!.children.map(slot)).toEqual([0, 1, 2, -1]);
    expect([first!, documents!, answer!].map(slot)).toEqual([-1, -1, -1]);
  });

  test("what is asked about has the last color, and no other takes one from it", async () => {
    const segments = await nested();
    const documents = treeOf(segments)[1]!;
    const slot = slotsBelow(segments, ["documents"], null, ["documents", "doc 2"]);
    expect(documents.children.map(slot)).toEqual([0, 7, 1, -1]);
    expect(documents.children.map(slotsBelow(segments, ["documents"], null, ["answer", "doc 2"]))).toEqual([
      0, 1, 2, -1,
    ]);
  });

  test("Python says who has them, where it has", async () => {
    const segments = await nested();
    const known = { keys: ["doc 1", "doc 2", "doc 3", "outside documents"], colors: [-1, 3, 4, -1] };
    expect(treeOf(segments)[1]!.children.map(slotsBelow(segments, ["documents"], known))).toEqual([-1, 3, 4, -1]);
  });
});

test("the pieces of a text, one after the other, and which of them positions are in", async () => {
  const tree = treeOf(await nested());
  expect(piecesAlong(tree, []).map(({ name }) => name)).toEqual(["first token", "documents", "answer"]);
  const inside = piecesAlong(tree, [["documents"]]);
  expect(inside.map(({ name }) => name)).toEqual([
    "first token",
    "doc 1",
    "doc 2",
    "doc 3",
    "rest of documents",
    "answer",
  ]);
  const found = piecesAt(inside, [0, 1, 30, 31, 85, 99, 100]).map((node) => node?.name ?? null);
  expect(found).toEqual(["first token", "doc 1", "doc 1", "doc 2", "rest of documents", "answer", null]);
});

test("segments of one name on different paths are not the same", async () => {
  const tree = treeOf(await decodeSegments(segmentsOf()));
  const [doc] = tree.filter(({ name }) => name === "doc 1");
  expect(isSame(doc!, doc!)).toBe(true);
  expect(isSame(doc!, { ...doc!, path: ["turn 1"] })).toBe(false);
  expect(isSame(doc!, null)).toBe(false);
  expect(placeOf(doc!, view(10)).from).toBe(10);
});

test("a name that has no room does not give way to that of a much shorter segment beside it", async () => {
  const segments = await decodeSegments({
    names: ["first token", "system", "doc 1"],
    starts: wholes([0, 1, 24]),
    stops: wholes([1, 24, 60]),
    levels: bytesOf([0, 0, 0]),
    length: 60,
    distinct: ["first token", "system", "doc 1"],
    sizes: [1, 23, 36],
    colors: [-1, 0, 7],
    answer: "doc 1",
  });
  const at = view(0.5, 0, 30); // middles at .25, 6.25 and 21
  const { pieces } = piecesInView(treeOf(segments), at, WHOLE);
  expect(names(named(pieces, at, 17))).toEqual(["doc 1"]);
  expect(names(named(pieces, at, 12))).toEqual(["system", "doc 1"]);
});

/** Three levels: `turn` with `doc 1` (two sentences and a rest), a gap, `doc 2`; `doc 1` again outside. */
async function deep(): Promise<Segments> {
  return decodeSegments({
    names: ["system", "turn", "doc 1", "s 1", "s 2", "doc 2", "doc 1", "padding"],
    starts: wholes([0, 4, 6, 6, 9, 15, 20, 30]),
    stops: wholes([4, 20, 12, 9, 11, 20, 30, 35]),
    levels: bytesOf([0, 0, 1, 2, 2, 1, 0, 0]),
    length: 35,
    distinct: ["system", "turn", "doc 1", "padding"],
    sizes: [4, 16, 10, 5],
    colors: [0, 1, 2, -1],
    answer: "doc 1",
  });
}

describe("three levels", () => {
  test("have what is in none of those inside before, between and after them", async () => {
    const [system, turn, doc] = treeOf(await deep());
    const of = (node: { children: readonly { name: string; start: number; stop: number; level: number }[] }) =>
      node.children.map(({ name, start, stop, level }) => `${name} ${start}–${stop} ${level}`);
    expect(of(turn!)).toEqual(["rest of turn 4–6 1", "doc 1 6–12 1", "rest of turn 12–15 1", "doc 2 15–20 1"]);
    expect(of(turn!.children[1]!)).toEqual(["s 1 6–9 2", "s 2 9–11 2", "rest of doc 1 11–12 2"]);
    expect(turn!.children[1]!.children[2]).toMatchObject({
      path: ["turn", "doc 1"],
      isRest: true,
      least: 0,
      children: [],
    });
    expect([system!.least, turn!.least, turn!.children[1]!.least, doc!.least]).toEqual([0, 5, 2, 0]);
    expect([doc!.children, doc!.path, doc!.level, doc!.isRest]).toEqual([[], [], 0, false]);
  });

  test("are told apart as deep as they are long enough, or as a path leads", async () => {
    const tree = treeOf(await deep());
    const at = (perToken: number, levels = 9, paths: string[][] = []) =>
      piecesInView(tree, view(perToken), { apart: 12, paths, levels });
    expect(names(at(6).pieces)).toContain("s 2");
    expect(names(at(5.9).pieces)).not.toContain("s 2");
    expect(names(at(6, 1).pieces)).toContain("doc 2");
    expect(names(at(6, 1).pieces)).not.toContain("s 2");
    expect(names(at(6).around)).toEqual(["turn", "doc 1"]);
    const along = at(0.1, 9, [["turn", "doc 1"]]);
    expect(names(along.around)).toEqual(["turn", "doc 1"]);
    expect(names(along.pieces)).toEqual([
      ...["system", "rest of turn", "s 1", "s 2", "rest of doc 1", "rest of turn", "doc 2", "doc 1", "padding"],
    ]);
    expect(names(at(0.1, 9, [["doc 1"]]).pieces)).toEqual(["system", "turn", "doc 1", "padding"]);
  });

  test("a piece ends where the view begins, or begins where it ends: not in view", async () => {
    const tree = treeOf(await deep());
    const shown = (offset: number, size: number) =>
      names(piecesInView(tree, view(1, offset, size), { ...WHOLE, levels: 0 }).pieces);
    expect(shown(-4, 16)).toEqual(["turn"]);
    expect(shown(-3.9, 16)).toEqual(["system", "turn"]);
    expect(shown(-4, 16.1)).toEqual(["turn", "doc 1"]);
    expect(shown(-30, 16)).toEqual(["padding"]);
    expect(shown(-35, 16)).toEqual([]);
  });

  test("what is in view of a piece has its middle there", async () => {
    const [, turn] = treeOf(await deep());
    expect(clipped(placeOf(turn!, view(2, 1)), view(2, 1, 30))).toEqual({ from: 9, to: 30, middle: 19.5 });
    expect(placeOf(turn!, view(2, 1))).toEqual({ node: turn, from: 9, to: 41 });
  });

  test("a path leads through each of its segments, and through no other of the same name", async () => {
    const [system, turn, doc] = treeOf(await deep());
    const inner = turn!.children[1]!;
    const paths = [["turn", "doc 1"]];
    expect([system!, turn!, inner, doc!, inner.children[0]!].map((node) => isOn(paths, node))).toEqual([
      ...[false, true, true, false, false],
    ]);
    expect(isOn([["doc 1"], ["turn"]], inner)).toBe(false);
    expect(isOn([["other", "doc 1"]], inner)).toBe(false);
    expect(isOn([], turn!)).toBe(false);
    expect([
      isSame(inner, doc!),
      isSame(inner, { ...inner, start: 9 }),
      isSame(null, null),
      isSame(null, doc!),
    ]).toEqual([...[false, true, false, false]]);
    expect(isSame(doc!, system!)).toBe(false);
  });

  test("the pieces below a path, and those along a text", async () => {
    const tree = treeOf(await deep());
    const below = (...path: string[]) => nodesBelow(tree, path).map(({ name }) => name);
    expect(below()).toEqual(["system", "turn", "doc 1", "padding"]);
    expect(below("turn")).toEqual(["rest of turn", "doc 1", "rest of turn", "doc 2"]);
    expect(below("turn", "doc 1")).toEqual(["s 1", "s 2", "rest of doc 1"]);
    expect(below("doc 1")).toEqual([]);
    const along = (...paths: string[][]) => piecesAlong(tree, paths).map(({ start, stop }) => `${start}–${stop}`);
    expect(along(["turn"])).toEqual(["0–4", "4–6", "6–12", "12–15", "15–20", "20–30", "30–35"]);
    expect(along(["system"])).toEqual(["0–4", "4–20", "20–30", "30–35"]);
  });

  test("positions are in one piece each, or in none", async () => {
    const tree = treeOf(await deep());
    const docs = [tree[1]!.children[1]!, tree[1]!.children[3]!];
    const found = piecesAt(docs, [0, 5, 6, 11, 12, 14, 15, 19, 20]).map((node) => node?.name ?? "-");
    expect(found).toEqual(["-", "-", "doc 1", "doc 1", "-", "-", "doc 2", "doc 2", "-"]);
    const placed = docs.map((node) => placeOf(node, view(10)));
    expect([59, 60, 119, 120, 150, 200].map((at) => pieceUnder(placed, at)?.name ?? "-")).toEqual([
      ...["-", "doc 1", "doc 1", "-", "doc 2", "-"],
    ]);
  });
});

describe("colors below a path", () => {
  test("are those of Python for what is inside, and of the outermost level for all else", async () => {
    const segments = await deep();
    const [system, turn, doc, padding] = treeOf(segments);
    const outer = slotsBelow(segments, [], null);
    expect([system!, turn!, doc!, padding!].map(outer)).toEqual([0, 1, 2, -1]);
    expect([turn!.children[1]!, turn!.children[1]!.children[0]!].map(outer)).toEqual([1, 1]);
    expect(outer({ ...turn!, name: "unknown" })).toBe(-1);
    const known = { keys: ["doc 1", "doc 2"], colors: [5, 6] };
    const inner = slotsBelow(segments, ["turn"], known);
    expect([turn!, turn!.children[1]!, turn!.children[3]!, turn!.children[1]!.children[1]!, doc!].map(inner)).toEqual([
      ...[-1, 5, 6, 5, -1],
    ]);
    const deepest = slotsBelow(segments, ["turn", "doc 1"], null, ["turn", "doc 1", "s 2"]);
    expect(turn!.children[1]!.children.map(deepest)).toEqual([0, 7, -1]);
    expect(slotsBelow(segments, ["turn"], null, ["turn"])(turn!.children[1]!)).toBe(0);
    expect(turn!.children.map(slotsBelow(segments, ["turn"], null, ["turn", "doc 1", "s 1"]))).toEqual([-1, 7, -1, 0]);
  });

  test("go to seven segments, and to none without an author", async () => {
    const inside = [
      "template",
      "first token",
      "padding",
      "other",
      ...Array.from({ length: 8 }, (_, at) => `doc ${at}`),
    ];
    const segments = await decodeSegments({
      names: ["turn", ...inside],
      starts: wholes([0, ...inside.map((_, at) => at)]),
      stops: wholes([12, ...inside.map((_, at) => at + 1)]),
      levels: bytesOf([0, ...inside.map(() => 1)]),
      length: 12,
      distinct: ["turn"],
      sizes: [12],
      colors: [0],
      answer: "turn",
    });
    const { children } = treeOf(segments)[0]!;
    expect(children.map(slotsBelow(segments, ["turn"], null))).toEqual([-1, -1, -1, -1, 0, 1, 2, 3, 4, 5, 6, -1]);
    expect(children.map(slotsBelow(segments, ["turn"], null, ["turn", "doc 0"]))).toEqual([
      ...[-1, -1, -1, -1, 7, 0, 1, 2, 3, 4, 5, 6],
    ]);
  });
});

describe("names that have room", () => {
  const lay = async (lengths: number[]) => {
    const ends = lengths.map((_, at) => lengths.slice(0, at + 1).reduce((a, b) => a + b));
    const own = lengths.map((_, at) => `s ${at}`);
    const segments = await decodeSegments({
      names: own,
      starts: wholes(ends.map((end, at) => end - lengths[at]!)),
      stops: wholes(ends),
      levels: bytesOf(own.map(() => 0)),
      length: ends.at(-1)!,
      distinct: own,
      sizes: lengths,
      colors: own.map(() => 0),
      answer: "s 0",
    });
    const at = view(1, 0, ends.at(-1)!);
    return { at, pieces: piecesInView(treeOf(segments), at, WHOLE).pieces };
  };
  const shown = async (lengths: number[], apart: number, always: string[] = []) => {
    const { at, pieces } = await lay(lengths);
    return names(named(pieces, at, apart, ({ name }) => always.includes(name)))
      .map((name) => name.slice(2))
      .join("");
  };

  test("are as far apart as they must be, and no further", async () => {
    expect(await shown([12, 12, 12], 12)).toBe("012");
    expect(await shown([12, 12, 12], 12.1)).toBe("02");
    expect(await shown([10, 14, 10], 13)).toBe("1");
  });

  test("the longest come first", async () => {
    expect(await shown([8, 20, 8], 14)).toBe("012");
    expect(await shown([8, 20, 8], 14.1)).toBe("1");
    expect(await shown([20, 8, 20], 15)).toBe("02");
  });

  test("those that are named always push others half as far again away", async () => {
    expect(await shown([12, 12, 12, 12], 12, ["s 1"])).toBe("13");
    expect(await shown([18, 18, 18], 12, ["s 1"])).toBe("012");
    expect(await shown([17.9, 17.9, 17.9].map(Math.floor), 12, ["s 1"])).toBe("1");
    expect(await shown([5, 5, 5], 12, ["s 0", "s 1"])).toBe("01");
  });

  test("stand in the order of the text", async () => {
    expect(await shown([5, 30, 10, 40, 5], 18)).toBe("1234");
  });
});

test("colors below a path go to no segment of the same name elsewhere, nor to one that is asked about elsewhere", async () => {
  const segments = await nested();
  const [, documents] = treeOf(segments);
  const node = (path: string[], name: string) => ({ ...documents!.children[0]!, path, name });
  const slot = slotsBelow(segments, ["documents"], null);
  expect([slot(node(["documents"], "doc 1")), slot(node(["answer"], "doc 1")), slot(node([], "documents"))]).toEqual([
    ...[0, -1, -1],
  ]);
  const deep = slotsBelow(segments, ["documents", "doc 1"], { keys: ["a"], colors: [3] });
  expect([deep(node(["documents", "doc 1"], "a")), deep(node(["documents", "doc 2"], "a"))]).toEqual([3, -1]);
  const asked = slotsBelow(segments, ["documents", "doc 1"], null, ["documents", "doc 2", "a"]);
  expect(asked(node(["documents", "doc 1"], "a"))).toBe(-1);
  expect(isSame(node(["documents", "doc 1"], "a"), node(["documents", "doc 1"], "a"))).toBe(true);
});

test("a name gives way to that of a segment without room only where it is near, and less than half as long", async () => {
  const [first] = treeOf(await nested());
  const placed = ([from, to]: [number, number]) => ({ node: first!, from, to });
  const shown = (...ends: [number, number][]) =>
    named(ends.map(placed), view(1), 20).map(({ from, to }) => (from + to) / 2);
  // The first has its middle at 50; the second, at 60 and 80 long, has no room for its name.
  expect(shown([0, 100], [20, 100], [195, 205])).toEqual([50, 200]);
  expect(shown([0, 100], [20, 100], [70, 80])).toEqual([50]);
  expect(shown([0, 100], [20, 100], [75, 85])).toEqual([50, 80]);
  expect(shown([0, 100], [20, 100], [55, 95])).toEqual([50, 75]);
  // One of two pixels is too short to take a place from another.
  expect(shown([0, 100], [59, 61], [74.875, 75.125])).toEqual([50, 75]);
});
