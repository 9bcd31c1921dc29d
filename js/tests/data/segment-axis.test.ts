import { describe, expect, test } from "vitest";
import {
  clipped,
  isSame,
  named,
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
