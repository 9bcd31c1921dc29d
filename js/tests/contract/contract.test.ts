/** What Python and TypeScript must agree on: `tests/contract` is written by pytest (tests/test_contract.py). */
import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { decodeGrid, decodePicture, decodeThumbnails, decodeTokens, type Grid } from "../../src/contract/decode";
import type { Bytes, Envelope, PictureMessage, ThumbnailsMessage, TokensMessage } from "../../src/contract/messages";
import { TRAITS } from "../../src/contract/traits";
import { contractFile } from "../helpers/golden.ts";

/** What is to be read of a grid: every so many-th cell, and how many there are of each kind. */
interface Reading {
  rows: number;
  columns: number;
  every: number;
  values: (number | string)[];
  kinds: number[];
  counts: number[];
}

interface Reply {
  id: string;
  ok: boolean;
  error?: string;
  values?: Envelope;
  blocked?: Envelope | null;
  value?: number | string | null;
}

interface Golden {
  pictures: Record<string, { message: PictureMessage; grid: Reading }>;
  failed: PictureMessage;
  thumbnails: { message: ThumbnailsMessage; heads: Reading[] };
  tokens: Record<string, { message: TokensMessage; tokens: string[] }>;
  replies: { message: { replies: Reply[] }; buffers: Bytes[]; grids: Record<string, Reading> };
}

/** A file of the contract; bytes become views into a larger buffer, as a message brings them. */
function contract(name: string): unknown {
  return JSON.parse(readFileSync(contractFile(name), "utf8"), (_, value) => {
    if (typeof value?.$bytes !== "string") return value;
    const data = Buffer.from(value.$bytes, "base64");
    const larger = new Uint8Array(data.length + 3);
    larger.set(data, 1);
    return new DataView(larger.buffer, 1, data.length);
  });
}

const golden = contract("golden.json") as Golden;

function expectReading(grid: Grid | null, reading: Reading): void {
  expect(grid).not.toBeNull();
  const { rows, columns, values, kinds } = grid as Grid;
  expect([rows, columns]).toEqual([reading.rows, reading.columns]);
  const counts = [0, 0, 0, 0, 0];
  for (const kind of kinds) counts[kind]!++;
  expect(counts).toEqual(reading.counts);
  const seen = reading.values.map((_, index) => index * reading.every);
  expect(seen.map((cell) => kinds[cell])).toEqual(reading.kinds);
  // To float32's precision: the last bit of a power is the machine's own.
  const wanted = reading.values.map((value) => Math.fround(Number(value)));
  for (const [index, cell] of seen.entries()) {
    const value = values[cell] as number;
    const away = Math.abs(value - wanted[index]!) / Math.max(Math.abs(value), Number.MIN_VALUE);
    if (!Object.is(value + 0, wanted[index]! + 0) && !(away < 1e-6)) {
      expect.fail(`cell ${cell} is ${value}, Python wrote ${wanted[index]}`);
    }
  }
}

test("the traits are those that Python syncs, each in the same role", () => {
  expect(TRAITS).toEqual(contract("traits.json"));
});

describe("pictures", () => {
  test.each(Object.entries(golden.pictures))("%s", async (_, { message, grid }) => {
    const picture = await decodePicture(message);
    expectReading(picture.grid, grid);
    const { layer, batch, head, stage, pool, low, high, queries, keys } = message;
    expect(picture.of).toEqual({ layer, batch, head, stage, pool });
    expect(picture).toMatchObject({ low, high, queries, keys, error: null });
    expect(picture.exact).toBe(message.values?.dtype === "float32");
  });

  test("one that could not be computed", async () => {
    const picture = await decodePicture(golden.failed);
    expect([picture.grid, picture.error]).toEqual([null, "CUDA out of memory"]);
  });
});

test("thumbnails", async () => {
  const { layer, batch, heads } = await decodeThumbnails(golden.thumbnails.message);
  expect([layer, batch, heads.length]).toEqual([4, 1, golden.thumbnails.heads.length]);
  for (const [head, reading] of golden.thumbnails.heads.entries()) expectReading(heads[head] ?? null, reading);
});

test.each(Object.entries(golden.tokens))("tokens: %s", async (_, { message, tokens }) => {
  expect(await decodeTokens(message)).toEqual(tokens);
});

describe("replies", () => {
  const { message, buffers, grids } = golden.replies;
  const reply = (id: string) => message.replies.find((found) => found.id === id) as Reply;

  test.each(Object.entries(grids))("numbers: %s", async (id, reading) => {
    const { ok, values, blocked } = reply(id);
    expect(ok).toBe(true);
    expectReading(await decodeGrid(values as Envelope, blocked, buffers), reading);
  });

  test("a peak is a number, text where JSON has none, or null where all is blocked", () => {
    const read = (id: string) => {
      const { value } = reply(id);
      return value === null ? null : Number(String(value).replace("inf", "Infinity")); // as source.ts does
    };
    expect(["peak", "infinite peak", "nan peak", "blocked peak"].map(read)).toEqual([8, Infinity, Number.NaN, null]);
  });

  test("a ping, and a question that cannot be answered", () => {
    expect(reply("ping")).toEqual({ id: "ping", ok: true });
    expect(reply("refused")).toEqual({ id: "refused", ok: false, error: "query 3 is out of range: give 0 to 2" });
  });
});
