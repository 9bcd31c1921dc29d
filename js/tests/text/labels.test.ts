/** Labels of a sequence: what is repeated, found, named, or a patch of an image. */

import { expect, test } from "vitest";
import { patchesOf, patchName } from "../../src/geometry/patches";
import { labels, unread, withNamed, withPatches } from "../../src/text/labels";
import { RECALL, recallTitle, SINK, SINK_TITLE } from "../../src/text/words";

const SEQUENCE = ["[CLS]", "Bank", "river", "ban", "bank", "[CLS]", "riverbank"];

test("a text is found first in the tokens that are nothing else, whatever its case", () => {
  const all = labels(SEQUENCE, 7);
  expect(all.find("bank")).toEqual([1, 4, 6]);
  expect(all.find("BAN")).toEqual([3, 1, 4, 6]);
  expect(all.find("cls")).toEqual([0, 5]);
  expect(all.find("nothing")).toEqual([]);
  expect(labels(null, 7).find("a")).toEqual([]);
  // As it is shown, and as the tokenizer writes it.
  const marked = labels(["Ġbank", "Ġx"], 2);
  expect([marked.find("bank"), marked.find("ġbank"), marked.find("ġ")]).toEqual([[0], [0], [0, 1]]);
});

test("a label is repeated where another token reads the same", () => {
  const all = labels(["a", "Ġa", "b", "a", "Ġc"], 5);
  expect([0, 1, 2, 3, 4].map((at) => [all.at(at).repeated, all.at(at).subscript])).toEqual([
    ...[
      [true, "0"],
      [true, "1"],
      [false, ""],
      [true, "3"],
      [false, ""],
    ],
  ]);
  expect([all.raw(1), all.raw(5), labels(null, 5).raw(0)]).toEqual(["Ġa", null, null]);
  expect(all.length).toBe(5);
});

test("as running text a token has a space before it, and one that is not known its position", () => {
  const all = labels(["a", "Ġa"], 3);
  expect(all.piece(1)).toEqual({ text: "a", space: true, breaks: false, special: false });
  expect(all.piece(0)).toMatchObject({ text: "a", space: false });
  expect(all.piece(2)).toEqual(unread(2));
  expect(unread(12_345)).toEqual({ text: "12,345", space: true, breaks: false, special: false });
});

test("one more name at the end is no token, and the others are as they were", () => {
  const all = labels(["a", "b"], 2);
  const more = withNamed(all, "sink");
  expect(more.length).toBe(3);
  expect(more.at(2)).toEqual({ text: "sink", special: false, position: 2, repeated: false, subscript: "" });
  expect(more.at(1)).toEqual(all.at(1));
  expect([more.raw(1), more.raw(2), more.find("b")]).toEqual(["b", null, [1]]);
});

test("patches are named by row and column, of fewer rows than columns, and nothing around them is", () => {
  const all = labels(["a", "b", "c", "d", "e", "f", "g", "h"], 8);
  const patches = patchesOf({ rows: 2, columns: 3, query: 1, key: null }, "query", 8)!;
  const named = withPatches(all, (at) => patchName(patches, at));
  expect(Array.from({ length: 8 }, (_, at) => named.at(at).text)).toEqual([
    ...["a", "row 0, 0", "row 0, 1", "row 0, 2", "row 1, 0", "row 1, 1", "row 1, 2", "h"],
  ]);
  expect(named.at(4)).toMatchObject({ position: 4, special: false, repeated: false });
  expect(named.length).toBe(8);
  expect(withPatches(all, (at) => patchName({ ...patches, start: 0 }, at)).at(0).text).toBe("row 0, 0");
});

test("the tokenizer's own style goes before what the tokens look like", () => {
  const tokens = ["Ġa", "b"];
  expect(labels(tokens, 2).at(0).text).toBe("a");
  expect(labels(tokens, 2, "words").at(0).text).toBe("Ġa");
});

test("what is a whole token as it is shown is found first", () => {
  expect(labels(["Ġbanks", "Ġbank", "ĠBank"], 3, "bytes").find("bank")).toEqual([1, 2, 0]);
});

test("a column that is no key has a name, and a title that begins with what it is", () => {
  expect([RECALL, SINK]).toEqual(["recall", "sink"]);
  expect([recallTitle(false), SINK_TITLE].map((title) => title.split(":")[0])).toEqual(["Recall", "Learned sink"]);
});
