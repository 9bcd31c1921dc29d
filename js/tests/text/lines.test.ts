import { describe, expect, test } from "vitest";
import { labels, withPatches } from "../../src/text/labels";
import { breakLines, placed } from "../../src/text/lines";
import { joinOf, styleOf } from "../../src/text/tokens";
import { patchAt, patchesOf, sizeOf } from "../../src/views/text/patches";

/** A sequence as the text that a reader sees, one line break to each token that ends a line. */
function read(
  tokens: string[],
  { keep = false, spelling }: { keep?: boolean; spelling?: "bytes" | "spaced" | "words" } = {},
) {
  const all = labels(tokens, tokens.length, spelling);
  const positions = tokens.map((_, position) => position);
  return placed(all, positions, keep)
    .map(({ text, gap, breaks }, at) => `${at === 0 ? "" : gap}${text}${breaks ? "\n" : ""}`)
    .join("");
}

describe("running text", () => {
  test.each([
    [
      "WordPiece",
      ["[CLS]", "the", "mill", "##er", "'", "s", "bank", ",", "(", "old", ")", ".", "[SEP]"],
      "the miller's bank, (old).",
    ],
    [
      "byte-level",
      ["<|endoftext|>", "The", "Ġmill", "er", "'s", "Ġcaf", "Ã©", ".", "Ċ", "ĊĊ", "Ġx"],
      "The miller's café.↵\n↵↵\n x",
    ],
    ["SentencePiece", ["▁Il", "▁a", "▁é", "crit", "▁une", "▁let", "tre", ".", "</s>"], "Il a écrit une lettre."],
    ["ends of words", ["<|startoftext|>", "a", "ca", "t</w>", "sat</w>", ".</w>"], "acat sat ."],
    ["words of somebody's own", ["I", "saw", "it", ":", "do", "n't", "stop", "!"], "I saw it: don't stop!"],
    ["quoted", ["she", "said", "“", "no", "”"], "she said “no”"],
    ["Chinese", ["[CLS]", "今", "天", "，", "天", "气", "好"], "今天，天气好"],
    ["real spaces", ["the", " mill", "er", "\n", " ran"], "the miller↵\n ran"],
  ])("%s: spaces and line breaks are those of the text", (_, tokens, text) => {
    expect(read(tokens as string[])).toBe(text);
  });

  test("special tokens are in it only where they are kept", () => {
    expect(read(["[CLS]", "a", "b", "[SEP]"])).toBe("a b");
    expect(read(["[CLS]", "a", "b", "[SEP]"], { keep: true })).toBe("[CLS] a b [SEP]");
  });

  test("what the tokenizer tells goes before what the tokens look like", () => {
    expect(read(["Ġorġ", "u", "Ġwann"], { spelling: "words" })).toBe("Ġorġ u Ġwann");
    expect(read(["Ã©"], { spelling: "bytes" })).toBe("é");
    expect(read([" the", " bank"], { spelling: "spaced" })).toBe("the bank");
  });

  test("of a character in parts the first shows it", () => {
    expect(read(["Ġso", "ĠðŁ", "ĺ", "Ĭ", "!"])).toBe("so 😊··!");
    expect(labels(["Ġso", "ĠðŁ", "ĺ", "Ĭ", "!"], 5).at(2).text).toBe("😊 2/3");
    expect(read(["▁", "<0xE4>", "<0xBD>", "<0xA0>"]).endsWith("你··")).toBe(true);
  });

  test("bytes that make no character stay bytes, and an escape that somebody wrote is one", () => {
    const all = labels(["Ġa", "âĤ", "Ġb"], 3);
    expect(all.at(1).text).toBe("<0xE2><0x82>");
    expect(labels(["<0xE4>", "x"], 2).at(0).text).toBe("<0xE4>");
  });
});

describe("which vocabulary", () => {
  test.each([
    ["byte-level", ["The", "Ġbank"], "bytes"],
    ["only line breaks", ["a", "ĊĊ"], "bytes"],
    ["somebody's Ġ", ["the", "letter", "Ġ"], "words"],
    ["Maltese", ["Ġorġ", "mar", "id-dar"], "words"],
    ["with a token that it cannot write", ["Ġthe", "日本"], "text"],
    ["WordPiece", ["mill", "##er"], "words"],
  ])("%s", (_, tokens, style) => {
    expect(styleOf(tokens as string[])).toBe(style);
  });

  test("a Ġ of somebody's own is shown as it is", () => {
    expect(labels(["the", "letter", "Ġ"], 3).at(2).text).toBe("Ġ");
    expect(labels(["Ġorġ", "mar"], 2).at(0).text).toBe("Ġorġ");
  });

  test("how pieces join", () => {
    expect(joinOf(["mill", "##er"], "words")).toBe("words");
    expect(joinOf(["▁mill", "er"], "words")).toBe("known");
    expect(joinOf(["mill", "er</w>"], "words")).toBe("ends");
  });
});

describe("lines", () => {
  const lines = (tokens: string[], room: number) => {
    const all = placed(
      labels(tokens, tokens.length),
      tokens.map((_, at) => at),
      false,
    );
    return breakLines(all, room, ({ text }) => Array.from(text).length, 1).map(({ start, stop, rtl }) => ({
      text: all
        .slice(start, stop)
        .map((token, at) => (at === 0 ? "" : token.gap) + token.text)
        .join(""),
      rtl,
    }));
  };

  test("break before words, and keep the pieces of one together", () => {
    expect(lines(["the", "mill", "##er", "lent"], 10).map(({ text }) => text)).toEqual(["the miller", "lent"]);
    expect(lines(["the", "mill", "##er", "lent"], 9).map(({ text }) => text)).toEqual(["the", "miller", "lent"]);
    expect(lines(["mill", "##er", "##ing"], 6).map(({ text }) => text)).toEqual(["miller", "ing"]);
  });

  test("no line is wider than the room, whatever the words", () => {
    const words = Array.from({ length: 500 }, (_, at) => "abcdefghij".slice(0, 1 + ((at * 7) % 10)));
    const found = lines(words, 24);
    expect(found.map(({ text }) => text).join(" ")).toBe(words.join(" "));
    expect(Math.max(...found.map(({ text }) => text.length))).toBeLessThanOrEqual(24);
  });

  test("a paragraph has the direction of its first letter", () => {
    expect(lines(["Ġfirst", "Ċ", "Ġ", "×©", "×ľ", "Ġx", "ĊĊ", "Ġlast"], 40).map(({ rtl }) => rtl)).toEqual([
      false,
      true,
      false,
    ]);
    expect(lines(["1", ".", "שלום", "x"], 3).map(({ rtl }) => rtl)).toEqual([true, true, true]);
  });
});

describe("patches", () => {
  test("are where the grid says, on the sides that have them", () => {
    const grid = { rows: 2, columns: 3, query: null, key: 1 };
    expect(patchesOf(grid, "key", 7)).toEqual({ start: 1, rows: 2, columns: 3 });
    expect(patchesOf(grid, "query", 7)).toBeNull();
    expect(patchesOf(grid, "key", 6)).toBeNull();
    expect(patchesOf({ ...grid, rows: 1e9 }, "key", 7)).toBeNull();
  });

  test("a point of the picture is one of them", () => {
    const patches = { start: 0, rows: 2, columns: 3 };
    expect(patchAt(patches, 0.99, 0.99)).toBe(5);
    expect(patchAt(patches, 0.4, 0.1)).toBe(1);
    expect(patchAt(patches, 1, 0)).toBeNull();
  });

  test("the picture keeps its shape and fits the room", () => {
    const image = { mime: "image/png", data: "", width: 400, height: 200 };
    expect(sizeOf({ start: 0, rows: 2, columns: 2 }, image, 300, 1)).toEqual({ width: 300, height: 150 });
    expect(sizeOf({ start: 0, rows: 8, columns: 2 }, null, 300, 1)).toEqual({ width: 112, height: 448 });
  });

  test("without tokens a patch is called by its row and column", () => {
    const all = withPatches(labels(null, 7), { rows: 2, columns: 3 }, 1);
    expect([0, 1, 6].map((at) => all.at(at).text)).toEqual(["0", "row 0, 0", "row 1, 2"]);
  });
});
