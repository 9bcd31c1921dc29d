import { afterEach, describe, expect, test, vi } from "vitest";
import { labels } from "../../src/text/labels";
import { display, endsWord, joinOf, pieceOf, shorten, shortenApart, styleOf, tokenName } from "../../src/text/tokens";

const text = (token: string) => display(token).text;

test.each([
  [" cat", "cat"],
  [".", "."],
  [" ", "·"],
  ["\n", "↵"],
  [" on ", "on·"],
  ["on a", "on a"],
  ["", ""],
])("the name of a token whose text is %j is %j", (given, name) => {
  expect(tokenName(given)).toBe(name);
});

test.each([
  ["bank", "bank"],
  ["", "∅"],
  [" the", "·the"],
  ["the ", "the·"],
  ["   ", "···"],
  ["New York", "New York"],
  ["a  b", "a··b"],
  ["\n", "↵"],
  ["\r\n\n", "↵↵"],
  ["x\n\ty", "x↵⇥y"],
  ["\r", "U+000D"],
])("spaces and line breaks: %j reads %j", (token, shown) => {
  expect(text(token)).toBe(shown);
});

test.each([
  ["Ġbank", "bank"],
  ["Ġ", "·"],
  ["ĠĠĠ", "···"],
  ["ĠĠdef", "·def"],
  ["Ċ", "↵"],
  ["ĊĊ", "↵↵"],
  ["ĉ", "⇥"],
  ["▁bank", "bank"],
  ["▁", "·"],
  ["▁▁▁", "···"],
  ["New▁York", "New York"],
  ["##ing", "‐ing"],
  ["##", "##"],
  ["###", "###"],
  ["## Title", "## Title"],
  ["<0x0A>", "↵"],
  ["<0x41>", "A"],
  ["<0xE2>", "<0xE2>"],
  ["<0x80>", "<0x80>"],
  ["a<0x41>", "a<0x41>"],
  ["<0x41>b", "<0x41>b"],
])("a tokenizer's own marks: %j reads %j", (token, shown) => {
  expect(text(token)).toBe(shown);
  expect(display(token).special).toBe(false);
});

test.each([
  ["\u200b", "U+200B"],
  ["pay\u202epal", "payU+202Epal"],
  ["\u0000", "U+0000"],
  ["\ufeffabc", "U+FEFFabc"],
  ["a\u00adb", "aU+00ADb"],
  ["\u00a0", "U+00A0"],
  ["\u3000", "U+3000"],
  ["a\u200db", "aU+200Db"],
  ["می\u200c", "میU+200C"],
  ["\u{e0041}", "U+E0041"],
  ["\u3164", "U+3164"],
  ["\ud83d", "U+D83D"],
  ["\u0301", "◌\u0301"],
  ["\u00a0\u0301", "U+00A0\u0301"],
])("what cannot be seen is shown: %j reads %j", (token, shown) => {
  expect(text(token)).toBe(shown);
});

test.each([
  "日本語",
  "é",
  "e\u0301",
  "👩\u200d👩\u200d👧",
  "❤\ufe0f",
  "🏴\u{e0067}\u{e0062}\u{e007f}",
  "می\u200cروم",
  "क्\u200dष",
  "🇨🇭",
  "שלום",
  "မြန်မာ",
])("%s is left as it is", (token) => {
  expect(text(token)).toBe(token);
});

describe("special tokens", () => {
  test.each([
    "[CLS]",
    "[SEP]",
    "[PAD]",
    "[S]",
    "[unused12]",
    "[/INST]",
    "<s>",
    "</s>",
    "<pad>",
    "<unk>",
    "<|endoftext|>",
    "<|im_start|>",
    "<｜begin▁of▁sentence｜>",
    "<start_of_turn>",
    "<extra_id_7>",
    "<extra_id_12>",
    "<mask_12>",
    "<turn_start>",
    "<turn_end>",
    "<s_answer>",
    "<fim_prefix>",
    "<image>",
  ])("%s", (token) => {
    expect(display(token)).toEqual({ text: token, special: true });
  });

  test.each(["[", "[1]", "[cls]", "<b>", "<table>", "<", "<div class='x'>", "CLS", "a<s>", "a[S]", "[S]a", "<|"])(
    "not %s",
    (token) => {
      expect(display(token).special).toBe(false);
    },
  );

  test("an invisible character in one is shown", () => {
    expect(display("<|a\u200b|>")).toEqual({ text: "<|aU+200B|>", special: true });
  });
});

describe("labels", () => {
  test("repeated tokens carry their position, special ones do not", () => {
    const all = labels(["[PAD]", "bank", "the", "Ġbank", "[PAD]"], 5);
    expect(all.at(1)).toEqual({ text: "bank", special: false, position: 1, repeated: true, subscript: "1" });
    expect(all.at(3)).toMatchObject({ text: "bank", repeated: true, subscript: "3" });
    expect(all.at(2)).toMatchObject({ repeated: false, subscript: "" });
    expect(all.at(4)).toMatchObject({ special: true, repeated: true, subscript: "" });
  });

  test("without tokens, and beyond them, the position is the label", () => {
    expect(labels(null, 20_000).at(16384)).toEqual({
      text: "16,384",
      special: false,
      position: 16384,
      repeated: false,
      subscript: "",
    });
    expect(labels(["a"], 2).at(1).text).toBe("1");
  });

  test("a byte-level vocabulary is read as text, whole characters and parts of one", () => {
    const all = labels(["Ġcaf", "Ã©", "ĠæĹ¥æľ¬", "<|endoftext|>", "âĤ", "ĠâĢ", "Ċ"], 7);
    expect([0, 1, 2, 3, 4, 5, 6].map((position) => all.at(position).text)).toEqual([
      "caf",
      "é",
      "日本",
      "<|endoftext|>",
      "<0xE2><0x82>",
      "<0xE2><0x80>",
      "↵",
    ]);
  });

  test("text that only looks like one is left alone", () => {
    const all = labels(["Ã©", "日本", " x", "Ġ"], 4);
    expect([0, 1, 2].map((position) => all.at(position).text)).toEqual(["Ã©", "日本", "·x"]);
    expect(labels(["cafÃ©", "x"], 2).at(0).text).toBe("cafÃ©");
  });

  test("65,536 tokens are read once, when the first label is wanted", () => {
    const words = Array.from({ length: 65_536 }, (_, position) => `Ġword${position % 9000}`);
    let reads = 0;
    const counted = new Proxy(words, {
      get(target, name, receiver) {
        if (typeof name === "string" && /^\d+$/.test(name)) reads++;
        return Reflect.get(target, name, receiver);
      },
    });
    const all = labels(counted, words.length);
    expect(reads).toBe(0);
    expect(all.at(65_535)).toMatchObject({ text: "word2535", subscript: "65,535" });
    const after = reads;
    for (let position = 0; position < 1000; position++) all.at(position);
    expect(reads - after).toBe(1000);
    expect(after).toBeLessThan(3 * 65_536);
  });
});

describe("shorten", () => {
  const width = (shown: string) => Array.from(shown).length;

  test.each([
    ["counted", 7, "counted"],
    ["counted", 6, "cou…ed"],
    ["counted", 2, "c…"],
    ["counted", 1, "…"],
    ["counted", 0, "…"],
    ["", 0, ""],
    ["internationalization", 9, "inte…tion"],
  ])("%j in room for %s: %j", (token, max, shown) => {
    expect(shorten(token, max, width)).toBe(shown);
  });

  test("never cuts through a character", () => {
    const family = "👩\u200d👩\u200d👧";
    const token = `${family}${family}abcdef${family}${family}`;
    expect(shorten(token, 16, width)).toBe(`${family}${family}…${family}`);
    expect(shorten(token, 15, width)).toBe(`${family}…${family}`);
    expect(shorten(token, 5, width)).toBe("…");
  });

  test("with proportional letters the result fits, and one letter more would not", () => {
    const measure = (shown: string) =>
      Array.from(shown, (letter) => (letter === "i" ? 3 : 7)).reduce((a, b) => a + b, 0);
    const token = "initialisation";
    for (let max = 10; max < measure(token); max++) {
      const shown = shorten(token, max, measure);
      expect(measure(shown)).toBeLessThanOrEqual(max);
      const [head, tail] = shown.split("…") as [string, string];
      expect(token.startsWith(head) && token.endsWith(tail)).toBe(true);
      const kept = head.length + tail.length;
      const bigger = `${token.slice(0, Math.ceil((kept + 1) / 2))}…${token.slice(token.length - Math.floor((kept + 1) / 2))}`;
      if (kept + 1 < token.length) expect(measure(bigger)).toBeGreaterThan(max);
    }
  });

  test("a token of a million letters is quick: only its ends are measured", () => {
    let longest = 0;
    const measure = (shown: string) => {
      longest = Math.max(longest, shown.length);
      return shown.length;
    };
    const shown = shorten(`start${"x".repeat(1_000_000)}end`, 9, measure);
    expect(shown).toBe("star…xend");
    expect(longest).toBeLessThan(2000);
  });
});

describe("names side by side stay told apart", () => {
  const wide = (text: string) => 10 * [...text].length;
  const apart = (names: string[], room: number, numbers?: number[]) =>
    shortenApart(
      names,
      names.map(() => room),
      wide,
      numbers,
    );

  test("what fits is whole; what differs once shortened keeps both ends", () => {
    expect(apart(["doc 1", "answer"], 60)).toEqual(["doc 1", "answer"]);
    expect(apart(["the first passage", "another"], 60)).toEqual(["the…ge", "ano…er"]);
  });

  test("what would read the same keeps its end", () => {
    expect(apart(["passage 112", "passage 212"], 50)).toEqual(["… 112", "… 212"]);
  });

  test("where the ends are the same too, or nothing has room, each has its number", () => {
    expect(apart(["a long name, one, of it", "a long name, two, of it"], 50, [6, 9])).toEqual(["#7", "#10"]);
    expect(apart(["passage 112", "passage 213"], 5)).toEqual(["#1", "#2"]);
    expect(apart(["one passage of it", "one passage of it"], 50)).toEqual(["#1", "#2"]);
  });

  test("a name that is whole stays whole beside another that reads the same", () => {
    expect(apart(["on…of", "one of many kinds of"], 50)).toEqual(["on…of", "…s of"]);
  });

  test("a name that is whole needs no number, also where another is the same; one that says nothing has one", () => {
    expect(apart(["doc", "doc"], 60)).toEqual(["doc", "doc"]);
    expect(apart(["document"], 10)).toEqual(["#1"]);
  });
});

describe("how a vocabulary writes spaces", () => {
  test("special tokens say nothing about it, nor does a mark among letters", () => {
    expect(styleOf(["Ġa", "<｜begin▁of▁sentence｜>"])).toBe("bytes");
    expect(styleOf(["Ġa", "▁"])).toBe("text");
    expect(styleOf(["aĠb"])).toBe("words");
  });

  test.each([
    ["bytes", ["a"], "known"],
    ["spaced", ["a"], "known"],
    ["text", ["Ġa"], "known"],
    ["words", ["Ġa"], "words"],
    ["words", ["▁a"], "known"],
    ["words", ["a "], "known"],
    ["words", ["New York"], "words"],
    ["words", ["New▁York"], "words"],
    ["words", ["[CLS]", "a</w>"], "ends"],
    ["text", ["<|ĊĊ|>", "a"], "words"],
  ] as const)("%s %j: spaces are %s", (style, tokens, join) => {
    expect(joinOf(tokens, style)).toBe(join);
  });

  test("a piece of running text has a space before it, none, or what stands around it tells", () => {
    expect(pieceOf("<s>", "text", "words")).toEqual({ text: "<s>", special: true, space: true, breaks: false });
    expect(pieceOf("a\nb", "text", "known")).toMatchObject({ text: "a↵b", space: false, breaks: false });
    expect(pieceOf("b\n", "text", "known")).toMatchObject({ space: false, breaks: true });
    expect(pieceOf("##b", "words", "words")).toMatchObject({ text: "b", space: false });
    expect(pieceOf("a##b", "words", "words")).toMatchObject({ text: "a##b", space: null });
    expect(pieceOf(" a", "text", "ends").space).toBe(false);
    expect(pieceOf("a b", "text", "known")).toMatchObject({ text: "a b", space: false });
    expect(pieceOf("  ", "text", "known")).toMatchObject({ text: "··", space: false });
    expect(pieceOf("  a", "text", "known")).toMatchObject({ text: "·a", space: true });
    expect(pieceOf(" ·a b", "text", "known")).toMatchObject({ text: "·a b", space: true });
    expect([endsWord("a</w>"), endsWord("a"), endsWord(null)]).toEqual([true, false, false]);
  });
});

describe("what has no room, or no tool to cut it", () => {
  afterEach(() => vi.unstubAllGlobals());

  test("nothing stays nothing; of a thousand letters only the ends are seen", () => {
    const length = (text: string) => text.length;
    expect(shorten("", -1, length)).toBe("");
    expect(shorten("x".repeat(1023), 2000, length)).toBe("x".repeat(1023));
    expect(shorten("x".repeat(1024), 2000, length)).toContain("…");
  });

  test("without a segmenter in the browser characters are code points", async () => {
    vi.stubGlobal("Intl", {});
    vi.resetModules();
    const old = await import("../../src/text/tokens");
    expect(old.shorten("日本語の文", 3, (text) => text.length)).toBe("日…文");
    expect(old.display("é\u200b").text).toBe("éU+200B");
  });
});
