/** Vocabularies of bytes: every byte as a character, and characters whose bytes are in several tokens. */

import { describe, expect, test } from "vitest";
import { ASCII_BYTES, BYTE_LEVEL, byteOf, characterAt, fromBytes, hex, neverInText } from "../../src/text/byte-level";
import { labels } from "../../src/text/labels";
import { inText, partly } from "../../src/text/split-characters";
import type { TokenStyle } from "../../src/text/tokens";

/** GPT-2's table: printable bytes are themselves, the others U+0100 and on, in order. */
const ALPHABET = (() => {
  let next = 0x100;
  return Array.from({ length: 256 }, (_, byte) => {
    const shows = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    return String.fromCharCode(shows ? byte : next++);
  });
})();
const written = (text: string) => Array.from(new TextEncoder().encode(text), (byte) => ALPHABET[byte]!).join("");

describe("bytes as characters", () => {
  test("each of the 256 is read back, and nothing else is of such a vocabulary", () => {
    expect(ALPHABET.map(byteOf)).toEqual(ALPHABET.map((_, byte) => byte));
    expect(ALPHABET.every((character) => BYTE_LEVEL.test(character))).toBe(true);
    const others = [" ", "\u007f", "\u00a0", "\u00ad", "\u0144", "日", ""];
    expect(others.some((character) => BYTE_LEVEL.test(character))).toBe(false);
    expect([BYTE_LEVEL.test("a b"), BYTE_LEVEL.test(" a"), BYTE_LEVEL.test("a ")]).toEqual([false, false, false]);
    expect(["Ġa!", "ĊĉĠ~", ""].every((token) => ASCII_BYTES.test(token))).toBe(true);
    expect(["Ã", "aĀ", "Āa", "a b"].some((token) => ASCII_BYTES.test(token))).toBe(false);
  });

  test("those that no text holds are control characters, and what UTF-8 has no use for", () => {
    const never = Array.from({ length: 256 }, (_, byte) => byte).filter(neverInText);
    const control = Array.from({ length: 32 }, (_, byte) => byte).filter((byte) => ![9, 10, 13].includes(byte));
    expect(never).toEqual([
      ...control,
      0x7f,
      0xc0,
      0xc1,
      ...[0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa, 0xfb, 0xfc, 0xfd, 0xfe, 0xff],
    ]);
  });

  test("a token is text, or what is no whole character is shown as bytes", () => {
    expect(fromBytes(written(" naïve 日本 😊"))).toBe(" naïve 日本 😊");
    expect(fromBytes(written("\ufeffa"))).toBe("\ufeffa");
    expect(fromBytes(`a${ALPHABET[0xe2]}${ALPHABET[0x7f]}${ALPHABET[0x80]}`)).toBe("a<0xE2>\u007f<0x80>");
    expect([hex(0), hex(0x0a), hex(0xff)]).toEqual(["<0x00>", "<0x0A>", "<0xFF>"]);
  });

  test("a character has as many bytes as its first one says, if they are there and make one", () => {
    const bytes = [...new TextEncoder().encode("aé日😊")];
    expect(bytes.map((_, at) => characterAt(bytes, at))).toEqual([1, 2, 0, 3, 0, 0, 4, 0, 0, 0]);
    expect(characterAt([0x7f], 0)).toBe(1);
    expect(characterAt([0x80, 0x80], 0)).toBe(0);
    expect([characterAt([0xc2, 0x80], 0), characterAt([0xc1, 0x80], 0)]).toEqual([2, 0]);
    expect([characterAt([0xdf, 0xbf], 0), characterAt([0xe0, 0xa0, 0x80], 0)]).toEqual([2, 3]);
    expect([characterAt([0xef, 0xbf, 0xbd], 0), characterAt([0xf0, 0x90, 0x80, 0x80], 0)]).toEqual([3, 4]);
    expect([characterAt([0xe2, 0x82], 0), characterAt([0xe2, 0x28, 0xa1], 0)]).toEqual([0, 0]);
    expect(characterAt([0x61, 0xe2, 0x82, 0xac], 1)).toBe(3);
  });
});

describe("a character in parts", () => {
  /** One token for each byte, or for as many as each number says. */
  const cut = (text: string, ...lengths: number[]) => {
    const bytes = [...new TextEncoder().encode(text)];
    return lengths.map((length) => bytes.splice(0, length).map(hex).join(""));
  };
  const shown = (tokens: string[], spelling: TokenStyle = "text") => {
    const all = labels(tokens, tokens.length, spelling);
    return tokens.map((_, at) => all.at(at).text);
  };

  test("says in each token which part it is", () => {
    expect(shown(cut("😊", 1, 1, 1, 1))).toEqual(["😊 1/4", "😊 2/4", "😊 3/4", "😊 4/4"]);
    expect(shown(cut("日", 2, 1))).toEqual(["日 1/2", "日 2/2"]);
    expect(shown(["x", ...cut("é", 1, 1), "y"])).toEqual(["x", "é 1/2", "é 2/2", "y"]);
  });

  test("one that ends in a token in which another begins is in both", () => {
    expect(shown(cut("日本", 1, 4, 1))).toEqual(["日 1/2", "日 2/2本 1/2", "本 2/2"]);
    expect(shown(cut("é", 2))).toEqual(["é"]);
  });

  test("is looked for at most three tokens away, on either side", () => {
    const many = Array.from({ length: 9 }, () => cut("😊", 1, 1, 1, 1)).flat();
    expect(shown(many).slice(4, 8)).toEqual(["😊 1/4", "😊 2/4", "😊 3/4", "😊 4/4"]);
    let looked: number[] = [];
    const raw = (at: number) => {
      looked.push(at);
      return many[at] ?? null;
    };
    expect(partly(raw, 12, "<0xF0>", "text")).toBe("😊 1/4");
    expect([Math.min(...looked), Math.max(...looked)]).toEqual([9, 15]);
    looked = [];
    expect(partly(raw, 12, "word", "text")).toBe("word");
    expect(looked).toEqual([]);
  });

  test("whose rest is not there stays bytes", () => {
    expect(shown(["<0xE2>", "x", "<0x82>"])).toEqual(["<0xE2>", "x", "<0x82>"]);
    expect(shown(["<0xE2>", "<0xE2>", "<0x82>", "<0xAC>"])).toEqual(["<0xE2>", "€ 1/3", "€ 2/3", "€ 3/3"]);
  });

  test("in a byte-level vocabulary its bytes are characters, and special tokens and words end it", () => {
    expect(shown(["ĠðŁ", "ĺ", "Ĭ"], "bytes")).toEqual(["😊 1/3", "😊 2/3", "😊 3/3"]);
    expect(shown(["âĤ", "<|im_end|>", "¬"], "bytes")).toEqual(["<0xE2><0x82>", "<|im_end|>", "<0xAC>"]);
    expect(shown(["âĤ", "¬"], "text")).not.toEqual(["€ 1/2", "€ 2/2"]);
    expect(shown(["aâĤ", "¬Ġ"], "bytes")).toEqual(["a€ 1/2", "€ 2/2·"]);
  });

  test("is in running text shown by its first token, and by each other one as a dot", () => {
    const tokens = cut("日本", 1, 4, 1);
    const piece = (at: number) => ({ text: tokens[at]!, space: false, breaks: false, special: false });
    const read = (at: number) => inText(piece(at), (place) => tokens[place] ?? null, at, "text");
    expect([0, 1, 2].map((at) => read(at).text)).toEqual(["日", "·本", "·"]);
    expect(read(0)).toMatchObject({ space: false, breaks: false, special: false });
    const word = { ...piece(0), text: "word 1/2" };
    expect(inText(word, () => null, 0, "text")).toBe(word);
  });
});

test("a text that only looks like bytes is shown as it is; of two spaces as bytes both are seen", () => {
  const shown = (token: string) => partly((position) => (position === 0 ? token : null), 0, token, "text");
  expect([shown("é<0x41>"), shown("<0x41>é")]).toEqual(["é<0x41>", "<0x41>é"]);
  expect([shown("<0x20><0x20>"), shown("<0x20><0x41>")]).toEqual(["··", "A"]);
});
