import { describe, expect, test } from "vitest";
import { cellUnder, patchesOf, patchName } from "../../src/geometry/patches";
import { labels, withPatches } from "../../src/text/labels";
import { breakLines, lineOf, placed } from "../../src/text/lines";
import { joinOf, styleOf } from "../../src/text/tokens";
import { sizeOf } from "../../src/views/text/picture-size";

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
    expect(patchesOf(grid, "key", 7)).toMatchObject({ start: 1, rows: 2, columns: 3, many: 6 });
    expect(patchesOf(grid, "query", 7)).toBeNull();
    expect(patchesOf(grid, "key", 6)).toBeNull();
    expect(patchesOf({ ...grid, rows: 1e9 }, "key", 7)).toBeNull();
  });

  test("a point of the picture is one of them", () => {
    const patches = { start: 0, rows: 2, columns: 3 };
    expect(cellUnder(patches, 0.99, 0.99)).toBe(5);
    expect(cellUnder(patches, 0.4, 0.1)).toBe(1);
    expect(cellUnder(patches, 1, 0)).toBeNull();
  });

  test("the picture keeps its shape and fits the room", () => {
    const image = { mime: "image/png", data: "", width: 400, height: 200 };
    expect(sizeOf({ rows: 2, columns: 2 }, image, 300, 1)).toEqual({ width: 300, height: 150 });
    expect(sizeOf({ rows: 8, columns: 2 }, null, 300, 1)).toEqual({ width: 112, height: 448 });
  });

  test("without tokens a patch is called by its row and column", () => {
    const patches = patchesOf({ rows: 2, columns: 3, query: 1, key: null }, "query", 7)!;
    const all = withPatches(labels(null, 7), (at) => patchName(patches, at));
    expect([0, 1, 6].map((at) => all.at(at).text)).toEqual(["0", "row 0, 0", "row 1, 2"]);
  });
});

describe("spaces between words without marks", () => {
  test.each([
    [
      "closing marks stand at the word before",
      ["a", ".", ",", "!", "?", ";", ":", "%", ")", "]", "}", "…", "»", "”", "’"],
      "a.,!?;:%)]}…»”’",
    ],
    [
      "opening marks stand at the word after",
      ["(", "a", "[", "b", "{", "c", "“", "d", "‘", "e", "«", "f"],
      "(a [b {c “d ‘e «f",
    ],
    [
      "clitics with their apostrophe",
      ["it", "'s", "I", "’m", "he", "'ll", "do", "n't", "ca", "n’t", "they", "'re", "I", "'ve", "we", "'d", "'t"],
      "it's I’m he'll don't can’t they're I've we'd't",
    ],
    ["clitics without it", ["it", "'", "s", "we", "’", "ll"], "it's we’ll"],
    ["an apostrophe alone", ["the", "dogs", "'", "bowl"], "the dogs ' bowl"],
    ["an apostrophe at the end", ["the", "dogs", "'"], "the dogs '"],
    ["marks of Chinese and Japanese", ["天", "。", "x", "、", "y", "！", "？"], "天。 x、 y！？"],
    ["ideographs among letters", ["a", "日", "本", "b", "カ", "ナ"], "a 日本 b カナ"],
    ["whole marks only", ["a", ".b", "(c", "d"], "a .b (c d"],
    ["several closing marks at once", ["a", "...", "b", "?!"], "a... b?!"],
  ])("%s", (_, tokens, text) => {
    expect(read(tokens as string[], { spelling: "words" })).toBe(text);
  });

  test("special tokens stand apart, and what is left out ends a line's beginning", () => {
    expect(read(["a", "[SEP]", ".", "b"], { keep: true, spelling: "words" })).toBe("a [SEP] . b");
    expect(read(["a", "[SEP]", ".", "b"], { spelling: "words" })).toBe("a . b");
  });

  test("where ends of words are marked, the next has a space", () => {
    expect(read(["a</w>", "b", "c</w>", "\n</w>", "d</w>"])).toBe("a bc ↵\nd");
  });
});

describe("tokens as they are placed", () => {
  const of = (tokens: string[], positions = tokens.map((_, at) => at), keep = false, spelling?: "bytes" | "words") =>
    placed(labels(tokens, tokens.length, spelling), positions, keep);

  test("have what stands before them, and whether a line may begin there", () => {
    expect(
      of(
        ["Ġa", "b", "Ċ", "c", "日"].map((token) => (token === "日" ? "æĹ¥" : token)),
        undefined,
        false,
        "bytes",
      ),
    ).toEqual([
      { position: 0, text: "a", gap: " ", opens: true, breaks: false, special: false },
      { position: 1, text: "b", gap: "", opens: false, breaks: false, special: false },
      { position: 2, text: "↵", gap: "", opens: false, breaks: true, special: false },
      { position: 3, text: "c", gap: "", opens: true, breaks: false, special: false },
      { position: 4, text: "日", gap: "", opens: true, breaks: false, special: false },
    ]);
    expect(of(["日", "b", "c"], undefined, false, "bytes").map(({ opens }) => opens)).toEqual([true, true, false]);
  });

  test("are those of some positions, special ones where they are kept", () => {
    const tokens = ["[CLS]", "a", "b", "c", "[SEP]"];
    expect(of(tokens, [0, 2, 3, 4]).map(({ position }) => position)).toEqual([2, 3]);
    expect(of(tokens, [0, 2, 3, 4], true).map(({ position, special }) => [position, special])).toEqual([
      ...[
        [0, true],
        [2, false],
        [3, false],
        [4, true],
      ],
    ]);
  });
});

describe("lines of tokens", () => {
  type Given = { gap?: "" | " "; opens?: boolean; breaks?: boolean; special?: boolean };
  const token = (text: string, { gap = " ", opens, breaks = false, special = false }: Given = {}) => ({
    ...{ position: 0, text, gap, opens: opens ?? gap === " ", breaks, special },
  });
  const broken = (tokens: ReturnType<typeof token>[], room: number) =>
    breakLines(tokens, room, ({ text }) => 10 * text.length, 3).map(({ start, stop, width }) => [start, stop, width]);

  test("are as wide as their tokens with the spaces between them", () => {
    const words = ["ab", "c", "def"].map((text) => token(text));
    expect(broken(words, 66)).toEqual([[0, 3, 66]]);
    expect(broken(words, 65)).toEqual([
      [0, 2, 33],
      [2, 3, 30],
    ]);
    expect(broken(words, 32)).toEqual([
      [0, 1, 20],
      [1, 2, 10],
      [2, 3, 30],
    ]);
    expect(broken(words, 5)).toEqual([
      [0, 1, 20],
      [1, 2, 10],
      [2, 3, 30],
    ]);
  });

  test("take the pieces of a word with them", () => {
    const inner = (text: string) => token(text, { gap: "" });
    const words = [token("ab"), token("cd"), inner("e"), inner("f"), token("g")];
    expect(broken(words, 54)).toEqual([
      [0, 1, 20],
      [1, 5, 53],
    ]);
    expect(broken(words, 40)).toEqual([
      [0, 1, 20],
      [1, 4, 40],
      [4, 5, 10],
    ]);
    expect(broken(words, 25)).toEqual([
      [0, 1, 20],
      [1, 2, 20],
      [2, 4, 20],
      [4, 5, 10],
    ]);
    const ideographs = ["日", "本", "語"].map((text) => token(text, { gap: "", opens: true }));
    expect(broken([token("a"), ...ideographs], 30)).toEqual([
      [0, 3, 30],
      [3, 4, 10],
    ]);
    // Where the line may begin is before a space: that one is in neither line.
    expect(broken([token("a"), token("b"), inner("c"), inner("d")], 33)).toEqual([
      [0, 1, 10],
      [1, 4, 30],
    ]);
  });

  test("end where the text does, and after nothing there is none", () => {
    const all = [token("a"), token("b", { breaks: true }), token("c"), token("d", { breaks: true })];
    expect(broken(all, 99)).toEqual([
      [0, 2, 23],
      [2, 4, 23],
    ]);
    expect(broken([], 99)).toEqual([]);
    expect(broken([...all, token("e")], 99).at(-1)).toEqual([4, 5, 10]);
  });

  test("of a paragraph all run in the direction of its first letter, special tokens aside", () => {
    const rtl = (tokens: ReturnType<typeof token>[], room: number) =>
      breakLines(tokens, room, ({ text }) => 10 * text.length, 3).map((line) => line.rtl);
    const hebrew = [token("12"), token("ש"), token("a", { breaks: true })];
    expect(rtl([token("a", { breaks: true }), ...hebrew, token("b"), token("c")], 22)).toEqual([
      ...[false, true, true, true, false, false],
    ]);
    expect(rtl([token("x", { special: true }), token("ש")], 99)).toEqual([true]);
    expect(rtl([token("1", { breaks: true }), token("ש")], 99)).toEqual([false, true]);
    expect(rtl([token("12")], 99)).toEqual([false]);
    expect(rtl([token("a"), token("ש")], 99)).toEqual([false]);
  });

  test("the line of a token is the last that begins before it, or with it", () => {
    const lines = [0, 3, 4, 9].map((start) => ({ start }));
    expect(Array.from({ length: 11 }, (_, at) => lineOf(lines, at)).join("")).toBe("00012222233");
    expect(lineOf([{ start: 0 }], 5)).toBe(0);
  });
});

test.each([
  [["the", "dogs'", "s"], "the dogs' s"],
  [["the", "'em", "s"], "the 'em s"],
  [["the", "a.", "a(", "b"], "the a. a( b"],
  [["'", "as"], "' as"],
  [["'", "sa"], "' sa"],
])("only a mark that stands alone joins words: %j", (tokens, text) => {
  expect(read(tokens, { spelling: "words" })).toBe(text);
});
