/** Labels and numbers as they are shown: `labels.json` is written here and read by pytest (tests/contract/test_labels.py). */
import { expect, test } from "vitest";
import { legendOf } from "../../src/contract/stages";
import type { ColorScaleName, Stage } from "../../src/contract/values";
import { cellNumber, legendTicks, listNumber, statusNumber } from "../../src/text/format";
import { labels } from "../../src/text/labels";
import { placed } from "../../src/text/lines";
import { display, type TokenStyle } from "../../src/text/tokens";
import { checkGolden, portable } from "../helpers/golden";

const STYLES: readonly TokenStyle[] = ["text", "bytes", "spaced", "words"];

/** Words of many scripts, and what stands between words. */
const WORDS = [
  ..."bank café naïve Ελλάδα Привет 日本 中文 ひらがな カタカナ 한국어 שלום مرحبا नमस्ते ไทย မြန်မာ ქართული հայերեն".split(
    " ",
  ),
  ..."é ñ 𝔸 ∑ → € £ “ ” … – — ‐ ’ 。 ！ ① ½ ﬁ Ａ ㎏ 👍 👩‍👩‍👧 🇨🇭 ❤️ 👍🏽 🏴󠁧󠁢󠁿".split(" "),
  ...["e\u0301", "a\u200bb", "می\u200cروم", "क्\u200dष", "x\u202ey", "\u00ad", "\u0301a", "a\u0301\u200d", "\ufeff"],
  ...["don't", "$x_1$", "<b>", "#", "##", "a b", "a  b", "\n", "\t", "\r\n", "\u0000", "\u001b[0m", "\u00a0", "\u3000"],
];

const SPECIAL =
  "[CLS] [SEP] [MASK] [unused12] [/INST] [S] <s> </s> <pad> <unk> <mask> <bos> <eos> <think> </think> <tool_call> " +
  "<extra_id_0> <mask_1> <unused99> <reserved_106> <SPECIAL_20> <start_of_turn> <end_of_turn> <end_of_image> " +
  "<fim_prefix> <jupyter_start> <image> <image_soft_token> <|endoftext|> <|im_start|> <|eot_id|> <|a\u200b|> " +
  "<｜begin▁of▁sentence｜> <｜User｜>";
const NOT_SPECIAL =
  "[ [1] [cls] [a] [] <b> <table> < > <| |> <> CLS a<s> <s>a <div> <specialé> <mask_１> [unused１] «s»";

/** Pieces and marks as tokenizers write them. */
const PIECES = [
  ..."Ġ ĠĠ ĠĠĠdef Ċ ĊĊ ĠĊ ĉ ĉreturn Ģ âĤ ¬ ĠâĢ Ł ðŁĳ ĠðŁ ĳį Ã ©s ï¿½ ÿ Ń ŃŃ Ġ. Ċ}".split(" "),
  ..."▁ ▁▁ ▁▁▁▁ ▁bank ban▁k New▁York ▁</s> <0x0A> <0x20> <0x41> <0x7F> <0xE2> <0xE2><0x82> <0xE2>a <0xe2>".split(" "),
  ..."##ing ##s ##日 ### ###a ##. </w> a</w> ing</w> 日</w> Ġa</w> .</w> </w></w>".split(" "),
  ...[
    "",
    " ",
    "  ",
    " the",
    "the ",
    " the ",
    "\n\n",
    " \n",
    "x\n\ty",
    "\ud83d",
    "\ue000",
    "## Title",
    "Ġa b",
    "\u2028",
  ],
];

/** As GPT-2 and its descendants write a text: each byte a character. */
function byteLevel(text: string): string {
  let next = 0x100;
  const alphabet = Array.from({ length: 256 }, (_, byte) => {
    const shows = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte !== 0xad);
    return String.fromCharCode(shows ? byte : next++);
  });
  return Array.from(new TextEncoder().encode(text), (byte) => alphabet[byte] as string).join("");
}

const TOKENS = [
  ...new Set([
    ...WORDS.flatMap((word) => [word, `▁${word}`, `##${word}`, `${word}</w>`, ` ${word}`]),
    ...WORDS.flatMap((word) => [byteLevel(word), byteLevel(` ${word}`)]),
    ...SPECIAL.split(" "),
    ...NOT_SPECIAL.split(" "),
    ...PIECES,
  ]),
];

/** Whole samples: how they are written is seen from them, unless the tokenizer tells. */
const SAMPLES: readonly [name: string, spelling: TokenStyle | undefined, tokens: readonly string[]][] = [
  [
    "byte-level BPE (GPT-2, Llama 3, Qwen)",
    undefined,
    [
      "<|begin_of_text|>",
      ...[
        "The",
        " café",
        " in",
        " 日本",
        " is",
        " naïve",
        "!",
        "\n\n",
        "The",
        " bank",
        "'s",
        "    ",
        " x",
        "日",
        "é",
      ].map(byteLevel),
      ...["ĠðŁ", "ĳ", "©", "âĢ", "į", "ðŁ", "ĳ§", "Ġ", "âĤ", "¬", "ã", "ģ", "Ķ", "âĤ", "Ġbank"],
      "<|eot_id|>",
    ],
  ],
  ["byte-level BPE, as its tokenizer tells", "bytes", ["cafÃ©", "æĹ¥æľ¬", "bank", "âĤ", "¬", "Â", "ł", "Ã©"]],
  ["what only looks like byte-level BPE", undefined, ["cafÃ©", "æĹ¥æľ¬", "Ġ", "日本", "Ċ"]],
  ["byte-level among other characters", undefined, ["ĠcafÃ©", "日本", "Ġbank", "Ċ", "Ġbank"]],
  ["letters that no text holds", undefined, ["ĠĢa", "ĠcafÃ©", "Ġbank"]],
  [
    "WordPiece (BERT)",
    undefined,
    [
      "[CLS]",
      "the",
      "bank",
      "em",
      "##bed",
      "##ding",
      "##s",
      "##s",
      "##é",
      "##日",
      "bank",
      ".",
      "[SEP]",
      "[PAD]",
      "[PAD]",
    ],
  ],
  [
    "SentencePiece (T5, Llama 2, Gemma)",
    undefined,
    [
      "<s>",
      "▁The",
      "▁café",
      "▁",
      "日本",
      "▁bank",
      "s",
      "▁▁▁",
      "<0xE2>",
      "<0x82>",
      "<0xAC>",
      "<0xF0>",
      "<0x9F>",
      "<0x0A>",
      "<0x0A>",
      "▁bank",
      "bank",
      "<extra_id_0>",
      "</s>",
    ],
  ],
  ["SentencePiece, as its tokenizer tells", "words", ["▁The", "Ġ", "Ġthe", "▁café", "<0xC3>", "<0xA9>", "x"]],
  [
    "CLIP, the first GPT",
    undefined,
    [
      "<|startoftext|>",
      "a</w>",
      "photo</w>",
      "of</w>",
      "a</w>",
      "river",
      "bank</w>",
      "caf",
      "é</w>",
      "日</w>",
      "</w>",
      "<|endoftext|>",
    ],
  ],
  [
    "decoded, with real spaces",
    "spaced",
    ["The", " café", " bank", "  ", "\n", " Ġ", "the", " The", "<0xE2>", "<0x82>", "<0xAC>"],
  ],
  [
    "words, marks and clitics",
    undefined,
    "He said : “ it ' s the dog 's ( old ) toy , do n't you see ? ” ' 90s O ’ Neill 日 本 。 [SEP] ok '".split(" "),
  ],
  ["plain words", undefined, ["The", "bank", "café", "日本", "of", "the", "The", "New York", " x", "Ġ", ""]],
];

const NUMBERS = [
  ...[0, -0, 1, -1, 0.5, 0.25, 0.125, 0.375, 0.625, 0.875, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625],
  ...[1.5, 2.5, 3.5, -2.5, 1.25, 1.125, 2.375, 12.5, 12.25, 12.375, 99.5, 99.96, 123.5, 122.5, 999.5, 1000.5, -12.5],
  ...[0.004999, 0.005, 0.0051, 0.0049, 0.2283, 0.9999, 0.99999994, 0.9999999, 0.9999995, 1.0000001, 0.99999, -0.001],
  ...[4.451, -4.451, 25.18, -25.18, 123.4, 9.995, 99.949, 1234, -1234.5, 12345.678, 99999.5, 100000, 123456, -3.4e38],
  ...[1e-4, 9.9e-5, 0.00009, 0.00005, 0.0004, 3.1e-7, -3.1e-7, 3.124e-7, 2.5e-7, 1.25e-7, 1e-45, 1e21, 1e300, 5e-324],
  ...[0.0005, 0.00049, 0.00051, 0.00025, 0.45, 0.55, 0.0355, 0.1, 0.2, 0.3, 0.7, 1 / 3, 2 / 3, 28.1, -28.1, 50],
  ...[0.0099, 0.00995, 0.00994, -0.0021, 0.00099, 0.000995, -0.00042, 0.0123],
  ...[Number.NaN, Infinity, -Infinity],
];

/** low, high, scale, stage, the share of the legend between two labels. */
const LEGENDS: readonly [number, number, ColorScaleName, Stage, number][] = [
  ...[0.62, 0.8, 1, 0.3, 0.9, 0.031, 0.6187, 3e-7, 0.25, 0.125, 0.5, 2, 7.5, 40, 1234, 250_000, 1e25, 0.0001].flatMap(
    (high): [number, number, ColorScaleName, Stage, number][] => [
      [0, high, "linear", "weights", 0.14],
      [0, high, "linear", "contribution", 0.2],
      [0, high, "log", "weights", 0.14],
      [0, high, "log", "contribution", 0.2],
      [-high, high / 2, "linear", "scores", 0.14],
    ],
  ),
  [0.1, 0.5, "linear", "weights", 0.14],
  [0.01, 1, "log", "weights", 0.14],
  [-2, 3, "linear", "weights", 0.2],
  [0.3, 0.31, "linear", "weights", 0.2],
  [0, 0, "linear", "weights", 0.14],
  [0, 0, "log", "weights", 0.14],
  [0, 0, "linear", "scores", 0.14],
  [0, 12345, "linear", "scaled", 0.14],
  [-28.13, 12, "log", "masked", 0.14],
  [-0.0625, 0.03125, "linear", "capped", 0.14],
  [0.5, 0.5, "linear", "weights", 0.2],
];

test("labels and numbers are those that Python draws", () => {
  const made = {
    tokens: TOKENS.map((token) => [token, STYLES.map((style) => display(token, style).text), display(token).special]),
    samples: SAMPLES.map(([name, spelling, tokens]) => {
      const all = labels(tokens, tokens.length, spelling);
      const shown = tokens.map((_, position) => all.at(position));
      return {
        name,
        spelling: spelling ?? null,
        tokens,
        labels: shown.map((one) => [one.text, one.subscript, one.special]),
        pieces: placed(all, [...tokens.keys()], true).map((one) => [
          ...[one.text, one.gap !== "", one.opens, one.special, one.breaks],
        ]),
      };
    }),
    numbers: NUMBERS.map((value) => [
      Object.is(value, -0) ? "-0" : portable(value),
      cellNumber(value, "weights"),
      cellNumber(value, "scores"),
      listNumber(value, "weights"),
      listNumber(value, "scores"),
      listNumber(value, "logit"),
      statusNumber(value),
    ]),
    legends: LEGENDS.map(([low, high, scale, stage, gap]) => [
      { low, high, scale, stage, gap },
      legendTicks(low, high, scale, stage, gap).map(({ value, text }) => [value, text]),
    ]),
  };
  expect(made.tokens.length).toBeGreaterThanOrEqual(200);
  expect(new Set(NUMBERS).size).toBeGreaterThanOrEqual(90);
  checkGolden("labels.json", made);
});

test("a logit is named by its token, before a cap or not", () => {
  const of = (target: object) => ({ targets: [{ token: 1, text: " nail", choices: [], ...target }] }) as never;
  expect(legendOf("logit", of({}))).toBe("Logit of “ nail”, direct path");
  expect(legendOf("logit", of({ before_cap: true }))).toBe("Logit of “ nail” before the cap, direct path");
});
