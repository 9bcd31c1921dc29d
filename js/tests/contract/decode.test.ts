import { deflateSync } from "node:zlib";
import { describe, expect, test } from "vitest";
import {
  BLOCKED,
  bytes,
  decode,
  decodeGrid,
  decodePicture,
  decodeThumbnails,
  decodeTokens,
  MINUS_INF,
  NAN,
  NUMBER,
  PLUS_INF,
} from "../../src/contract/decode";
import type { Envelope, PictureMessage } from "../../src/contract/messages";

const raw = (data: ArrayBufferView) => new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
const view = (data: Uint8Array) => new DataView(data.buffer, data.byteOffset, data.byteLength);

/** As a message brings it: somewhere inside a larger buffer. */
function inside(data: Uint8Array, offset: number): DataView {
  const larger = new Uint8Array(data.length + offset + 5).fill(0xaa);
  larger.set(data, offset);
  return new DataView(larger.buffer, offset, data.length);
}
const floats = (numbers: number[], shape = [numbers.length]): Envelope => ({
  data: view(raw(Float32Array.from(numbers))),
  dtype: "float32",
  shape,
  deflated: false,
});
const codes = (numbers: number[], shape: number[], scale: NonNullable<Envelope["scale"]>): Envelope => ({
  data: view(Uint8Array.from(numbers)),
  dtype: "uint8",
  shape,
  deflated: false,
  scale,
});
const bits = (packed: number[], shape: number[]): Envelope => ({
  data: view(Uint8Array.from(packed)),
  dtype: "bits",
  shape,
  deflated: false,
});

describe("bytes", () => {
  test.each([
    ["a DataView with an offset, from Jupyter", inside(Uint8Array.of(7, 8, 9), 3)],
    ["a Uint8Array with an offset, from Colab", Uint8Array.of(1, 7, 8, 9, 2).subarray(1, 4)],
    ["an ArrayBuffer", Uint8Array.of(7, 8, 9).buffer],
    ["base64, from a page", "BwgJ"],
  ])("%s is the same three bytes", (_, data) => {
    expect([...bytes(data)]).toEqual([7, 8, 9]);
  });
});

describe("decode", () => {
  test("float32 at an offset that is no multiple of 4", async () => {
    const data = inside(raw(Float32Array.of(0.25, -1.5, 3)), 3);
    const array = await decode({ data, dtype: "float32", shape: [3], deflated: false });
    expect([...array]).toEqual([0.25, -1.5, 3]);
    expect(array).toBeInstanceOf(Float32Array);
  });

  test("a deflated array of 300,000 numbers comes in many chunks and is whole", async () => {
    const numbers = Float32Array.from({ length: 300_000 }, (_, index) => Math.sin(index));
    const data = inside(new Uint8Array(deflateSync(raw(numbers))), 1);
    const array = await decode({ data, dtype: "float32", shape: [300, 1000], deflated: true });
    expect(array.length).toBe(300_000);
    expect(array[299_999]).toBe(Math.fround(Math.sin(299_999)));
  });

  test("bits: the first cell is the highest bit, and the padding is no cell", async () => {
    // 1 0 1 0 0 0 0 1 | 0 1 …
    expect([...(await decode(bits([0b10100001, 0b01111111], [2, 5])))]).toEqual([1, 0, 1, 0, 0, 0, 0, 1, 0, 1]);
  });

  test("data that is a number is the index of one of the message's buffers", async () => {
    const envelope: Envelope = { data: 1, dtype: "uint32", shape: [2], deflated: false };
    const buffers = [Uint8Array.of(0), inside(raw(Uint32Array.of(5, 4_000_000_000)), 2)];
    expect([...(await decode(envelope, buffers))]).toEqual([5, 4_000_000_000]);
    await expect(decode(envelope, [Uint8Array.of(0)])).rejects.toThrow("no buffer 1: the message has 1");
  });

  test.each<[string, Partial<Envelope>, string]>([
    ["too few bytes", { shape: [3] }, "float32 of shape (3) takes 12 bytes, got 8"],
    ["too many bytes", { shape: [] }, "takes 4 bytes, got 8"],
    [
      "an unknown dtype",
      { dtype: "float16" as "float32" },
      "dtype must be float32, uint8, uint32 or bits, got float16",
    ],
    ["a shape with a hole", { shape: [2, -1] }, "shape must be a list of sizes, got [2,-1]"],
    ["what is no zlib stream", { deflated: true }, "data is not a complete zlib stream"],
    ["no data", { data: null as unknown as string }, "data must be bytes, got null"],
  ])("%s is an error, not a wrong picture", async (_, change, message) => {
    await expect(decode({ ...floats([1, 2]), ...change })).rejects.toThrow(message);
  });

  test("a deflated array of another size than its shape says is refused, larger or smaller", async () => {
    const data = view(new Uint8Array(deflateSync(new Uint8Array(100_000))));
    const envelope: Envelope = { data, dtype: "uint8", shape: [10], deflated: true };
    await expect(decode(envelope)).rejects.toThrow("more than the 10 bytes");
    await expect(decode({ ...envelope, shape: [100_001] })).rejects.toThrow("takes 100001 bytes, got 100000");
    const cut = view(
      new Uint8Array(deflateSync(raw(Float32Array.from({ length: 999 }, Math.random)))).subarray(0, 900),
    );
    await expect(decode({ data: cut, dtype: "float32", shape: [999], deflated: true })).rejects.toThrow("zlib");
  });
});

describe("decodeGrid", () => {
  test("a blocked −∞ of the masked scores is blocked, an allowed one is −∞", async () => {
    const values = floats([1.5, -Infinity, Number.NaN, -Infinity, Infinity, -2], [2, 3]);
    const grid = await decodeGrid(values, bits([0b00010000], [2, 3]));
    expect([grid.rows, grid.columns]).toEqual([2, 3]);
    expect([...grid.kinds]).toEqual([NUMBER, MINUS_INF, NAN, BLOCKED, PLUS_INF, NUMBER]);
    expect([...grid.values]).toEqual([1.5, -Infinity, Number.NaN, Number.NaN, Infinity, -2]);
  });

  test("a reply's row is a grid of one row, and its bytes are left as they were", async () => {
    const buffers = [raw(Float32Array.of(0.5, 0, 0.5)), Uint8Array.of(0b01000000)];
    const values: Envelope = { data: 0, dtype: "float32", shape: [3], deflated: false };
    const grid = await decodeGrid(values, { data: 1, dtype: "bits", shape: [3], deflated: false }, buffers);
    expect([grid.rows, grid.columns, ...grid.kinds]).toEqual([1, 3, NUMBER, BLOCKED, NUMBER]);
    expect(grid.values[1]).toBeNaN();
    expect([...new Float32Array((buffers[0] as Uint8Array).buffer)]).toEqual([0.5, 0, 0.5]);
  });

  test("log codes run from high down over the octaves, and zero is zero", async () => {
    const scale = { kind: "log", high: 0.62, octaves: 20 } as const;
    const { values, kinds } = await decodeGrid(codes([0, 250, 1, 252, 253, 254, 255, 125], [2, 4], scale));
    expect(values[0]).toBe(0);
    expect(values[1]).toBe(Math.fround(0.62));
    expect(values[2]).toBeCloseTo(0.62 / 2 ** 20, 12);
    expect(values[7]).toBeCloseTo(0.62 * 2 ** ((-20 * 125) / 249), 8);
    expect([...kinds]).toEqual([NUMBER, NUMBER, NUMBER, BLOCKED, NAN, PLUS_INF, MINUS_INF, NUMBER]);
    expect([values[3], values[4], values[5], values[6]]).toEqual([Number.NaN, Number.NaN, Infinity, -Infinity]);
  });

  test("linear codes are symmetric around 125", async () => {
    const { values } = await decodeGrid(codes([0, 1, 125, 187, 249], [1, 5], { kind: "linear", high: 28.1 }));
    expect([...values]).toEqual([0, -28.1, 0, 14.05, 28.1].map(Math.fround));
  });

  test.each<[string, Envelope, Envelope | null, string]>([
    ["codes that mean nothing", codes([251], [1, 1], { kind: "unit", high: 1 }), null, "code 251 of cell 0"],
    ["code 250 on a linear scale", codes([250], [1, 1], { kind: "linear", high: 1 }), null, "code 250 of cell 0"],
    ["no scale", { ...codes([0], [1, 1], { kind: "unit", high: 1 }), scale: null }, null, "uint8 values need a scale"],
    ["no octaves", codes([0], [1, 1], { kind: "log", high: 1 }), null, "octaves of a log scale must be above 0"],
    ["a cube", floats([1, 2], [1, 1, 2]), null, "values must be a matrix or a vector, got shape (1, 1, 2)"],
    ["bits of another shape", floats([1, 2]), bits([0], [3]), "blocked must be bits of shape (2), got bits (3)"],
  ])("%s: an error", async (_, values, blocked, message) => {
    await expect(decodeGrid(values, blocked)).rejects.toThrow(message);
  });
});

describe("decodePicture", () => {
  const message: PictureMessage = {
    layer: 5,
    batch: 0,
    head: 7,
    stage: "weights",
    pool: "max",
    queries: 5,
    keys: 4,
    query_bin: 2,
    key_bin: 2,
    low: 0,
    high: 0.5,
    values: codes([250, 0, 125, 250, 0, 0], [3, 2], { kind: "unit", high: 0.5 }),
    blocked: null,
    error: null,
  };

  test("a pooled picture says what it is of, and is not exact; its last bin may be short", async () => {
    const picture = await decodePicture(message);
    expect(picture.of).toEqual({ layer: 5, batch: 0, head: 7, stage: "weights", pool: "max" });
    expect([picture.queries, picture.keys, picture.queryBin, picture.keyBin]).toEqual([5, 4, 2, 2]);
    expect([...(picture.grid?.values ?? [])]).toEqual([0.5, 0, 0.25, 0.5, 0, 0]);
    expect([picture.exact, picture.low, picture.high, picture.error]).toEqual([false, 0, 0.5, null]);
  });

  test("only float32 with a cell for each cell is exact", async () => {
    const unpooled = { ...message, queries: 1, keys: 2, query_bin: 1, key_bin: 1 };
    const exact = await decodePicture({ ...unpooled, values: floats([0.1, 0.9], [1, 2]) });
    expect(exact.exact).toBe(true);
    const quantised = { ...unpooled, values: codes([25, 225], [1, 2], { kind: "unit", high: 1 }) };
    expect((await decodePicture(quantised)).exact).toBe(false);
  });

  test("Python's sentence comes through instead of a grid", async () => {
    const picture = await decodePicture({ ...message, values: null, low: null, high: null, error: "out of memory" });
    expect([picture.grid, picture.error, picture.of.head]).toEqual([null, "out of memory", 7]);
  });

  test("a grid that does not cover the matrix is refused", async () => {
    await expect(decodePicture({ ...message, keys: 5 })).rejects.toThrow(
      "picture of 5 × 5 in bins of 2 × 2 must be 3 × 3, got 3 × 2",
    );
    await expect(decodePicture({ ...message, values: null })).rejects.toThrow("neither values nor an error");
  });
});

test("thumbnails: each head is a grid of its own, from 0 to 1", async () => {
  const values = codes([0, 250, 125, 252, 253, 250, 0, 0], [2, 2, 2], { kind: "unit", high: 1 });
  const { layer, heads } = await decodeThumbnails({ layer: 3, batch: 1, values });
  expect(layer).toBe(3);
  expect(heads.map(({ rows, columns }) => [rows, columns])).toEqual([
    [2, 2],
    [2, 2],
  ]);
  expect([...(heads[0]?.values ?? [])]).toEqual([0, 1, 0.5, Number.NaN]);
  expect([...(heads[0]?.kinds ?? [])]).toEqual([NUMBER, NUMBER, NUMBER, BLOCKED]);
  expect([...(heads[1]?.kinds ?? [])]).toEqual([NAN, NUMBER, NUMBER, NUMBER]);
  await expect(decodeThumbnails({ layer: 0, batch: 0, values: floats([1], [1, 1]) })).rejects.toThrow(
    "thumbnails must be uint8 of shape (heads, rows, columns), got float32 (1, 1)",
  );
});

describe("decodeTokens", () => {
  const message = (tokens: string[]) => {
    const parts = tokens.map((token) => new TextEncoder().encode(token));
    let end = 0;
    const ends = Uint32Array.from(parts, (part) => (end += part.length));
    return {
      text: view(Uint8Array.from(parts.flatMap((part) => [...part]))),
      ends: { data: view(raw(ends)), dtype: "uint32", shape: [ends.length], deflated: false } as Envelope,
    };
  };

  test.each([
    ["plain", ["[CLS]", "she", "", "sat"]],
    ["of any script, with empty ones and a byte order mark", ["日本", "", "\ufeffé", "👩‍👧", "a"]],
    ["none", []],
  ])("%s", async (_, tokens) => {
    expect(await decodeTokens(message(tokens))).toEqual(tokens);
  });

  test("nothing is nothing", async () => {
    expect(await decodeTokens(null)).toBeNull();
  });

  test("ends that do not fit the text are refused", async () => {
    const { text } = message(["abc"]);
    const { ends } = message(["ab"]);
    await expect(decodeTokens({ text, ends })).rejects.toThrow("tokens end at byte 2 of 3");
    await expect(decodeTokens({ text: view(Uint8Array.of(97)), ends })).rejects.toThrow("token 0 ends at byte 2");
  });
});
