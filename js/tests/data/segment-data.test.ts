/** Segments and masses as they are sent: what is read of them, and what is refused with a sentence. */

import { describe, expect, test } from "vitest";
import {
  decodeColumns,
  decodeHeadMass,
  decodeMass,
  decodeMasses,
  decodeSegments,
  putRow,
} from "../../src/data/segment-data";
import { bytesOf, headMassOf, MATRIX, massOf, segmentsOf, spans, wholes } from "../helpers/segments.ts";
import { codes, floats } from "../helpers/states.ts";

describe("segments", () => {
  test("are entries, and the names of level 0 with their colors", async () => {
    const found = await decodeSegments(segmentsOf());
    expect([...found.levels]).toEqual([0, 0, 1, 1, 0, 0]);
    expect([found.starts[5], found.stops[5], found.answer, found.more, found.error]).toEqual([6, 8, "answer", 0, null]);
    expect(found.distinct.map((name, at) => [name, found.colors[at]])).toContainEqual(["answer", 7]);
  });

  test("that do not fit say why", async () => {
    const found = await decodeSegments({ error: "the segments are of 8 tokens, and this layer has 9" });
    expect([found.error, found.names]).toEqual(["the segments are of 8 tokens, and this layer has 9", []]);
  });

  test.each([
    ["outside the text", { stops: wholes([1, 4, 3, 4, 6, 9]) }, "outside the 8 positions"],
    ["empty", { stops: wholes([0, 4, 3, 4, 6, 8]) }, "outside"],
    ["without a level", { levels: wholes([0, 0, 1, 1, 0, 0]) }, "uint8 levels"],
    ["of another count", { starts: wholes([0, 1]) }, "6 segments need as many starts"],
    ["without a size", { sizes: [1, 3, 2] }, "whole numbers for each"],
    ["named by numbers", { distinct: [1, 2, 3, 4] as never }, "need a name"],
    ["named by a number among names", { distinct: ["first token", "doc 1", 3, "answer"] as never }, "need a name"],
  ])("that are %s are refused", async (_, wrong, said) => {
    await expect(decodeSegments(segmentsOf(wrong))).rejects.toThrow(said);
  });
});

describe("mass", () => {
  test("is a matrix and the first tokens of the answer", async () => {
    const found = await decodeMass(massOf());
    expect([found.matrix.rows, found.matrix.columns, found.exact, found.share]).toEqual([4, 4, true, 1]);
    expect([...found.matrix.mass.subarray(12)]).toEqual(MATRIX[3]);
    expect([found.first.rows, found.first.own[1], found.positions[1], found.total]).toEqual([2, 3, 7, 2]);
  });

  test("quantised is read as the picture is, a row that is not known as NaN", async () => {
    const scale = { kind: "log", high: 1, octaves: 16 } as const;
    const cells = MATRIX.flat().map((value, at) => (at < 4 ? Number.NaN : value));
    const found = await decodeMass(massOf({ mass: codes(cells, [4, 4], scale) }));
    expect(found.exact).toBe(false);
    expect(found.matrix.mass[0]).toBeNaN();
    expect(found.matrix.mass[13]).toBeCloseTo(0.5, 1);
  });

  test("that could not be computed says why, and has no numbers", async () => {
    const found = await decodeMass({ ...massOf(), keys: undefined, columns: undefined, error: "too many" } as never);
    expect([found.error, found.keys, found.matrix.rows, found.first.rows]).toEqual(["too many", [], 0, 0]);
  });

  test.each([
    ["another shape", { mass: floats([1, 2], [1, 2]) }, "must be of shape (4, 4), got (1, 2)"],
    ["no own part", { self: undefined as never }, "must be of shape (4, 4)"],
    ["a row that is not there", { row: 4 }, "not the row it names"],
    ["too few looked at", { looked: wholes([1]) }, "uint32 of 4 numbers"],
    ["an own key nowhere", { columns: { ...massOf().columns!, own: wholes([3, 5]) } }, "none of 4 columns"],
  ])("with %s is refused", async (_, wrong, said) => {
    await expect(decodeMass(massOf(wrong))).rejects.toThrow(said);
  });
});

describe("mass of all heads", () => {
  test("has a row for each head, layer by layer", async () => {
    const found = await decodeHeadMass(headMassOf());
    expect(found.heads).toEqual([
      { layer: 0, head: 0 },
      { layer: 0, head: 1 },
      { layer: 1, head: 0 },
      { layer: 1, head: 1 },
    ]);
    expect([found.masses.mass[5], found.masses.mass[12], found.share]).toEqual([0.125, Number.NaN, 0.5]);
    expect([found.sums.columns, found.sums.mass[0], found.sums.selfEven[1]]).toEqual([1, 1, Math.fround(0.13)]);
  });

  test("of another number of heads is refused", async () => {
    await expect(decodeHeadMass(headMassOf({ heads: [2, 1] }))).rejects.toThrow("must be of shape (3, 4)");
    expect((await decodeHeadMass(headMassOf({ error: "out of memory" }))).error).toBe("out of memory");
  });
});

describe("what a message leaves out", () => {
  test("of segments: none has been left out", async () => {
    expect(await decodeSegments(segmentsOf({ more: 3 }))).toMatchObject({ more: 3, length: 8, sizes: [1, 3, 2, 2] });
    const none = await decodeSegments({ error: "no" });
    expect(none).toMatchObject({ more: 0, length: 0, distinct: [], sizes: [], colors: [], answer: "" });
    expect([none.starts.length, none.stops.length, none.levels.length]).toEqual([0, 0, 0]);
    await expect(decodeSegments({ error: 7 as never })).rejects.toThrow("an error must be a sentence");
  });

  test("of masses: the weights, and no division of the columns", async () => {
    const found = await decodeMass(massOf());
    expect(found).toMatchObject({ id: 1, of: { layer: 0, batch: 0, head: 0 }, path: [], asking: "answer", row: 3 });
    expect(found).toMatchObject({ askingPath: [], stage: "weights", keyInside: [], error: null });
    expect([found.keySpans.length, found.rowSpans.length]).toEqual([0, 0]);
    expect([found.keys, found.rows].map((one) => one.length)).toEqual([4, 4]);
    expect([...found.looked, ...found.positions]).toEqual([1, 3, 2, 2, 6, 7]);
    const { row, share, total, ...bare } = massOf();
    const least = await decodeMass(bare as never);
    expect([row, share, total, least.row, least.share, least.total]).toEqual([3, 1, 2, 0, 1, 0]);
  });

  test("of masses that say more, nothing is lost", async () => {
    const found = await decodeMass(
      massOf({
        ...{
          layer: 1,
          batch: 2,
          head: 5,
          path: ["a"],
          asking_path: ["b"],
          stage: "logit",
          share: 0.5,
          row: 2,
          total: 9,
        },
        ...{ key_inside: [1, 2, 3, 4], key_spans: spans([0, 1], [1, 4], [4, 6], [6, 8]) },
        row_spans: spans([0, 1], [1, 4], [4, 6], [6, 9]),
      }),
    );
    expect(found).toMatchObject({
      of: { layer: 1, batch: 2, head: 5 },
      path: ["a"],
      askingPath: ["b"],
      stage: "logit",
    });
    expect(found).toMatchObject({ share: 0.5, row: 2, total: 9, keyInside: [1, 2, 3, 4], keySizes: [1, 3, 2, 2] });
    expect(found).toMatchObject({ keyColors: [-1, 0, 1, 7], rowSizes: [1, 3, 2, 2] });
    expect([found.keySpans[7], found.rowSpans[7]]).toEqual([8, 9]);
  });

  test("of masses that have failed, what was asked is kept", async () => {
    const of = { layer: 1, batch: 2, head: 5, path: ["a"], asking_path: ["b"], stage: "logit", error: "no" } as const;
    const found = await decodeMass({ ...massOf(), ...of } as never);
    expect(found).toMatchObject({
      of: { layer: 1, batch: 2, head: 5 },
      path: ["a"],
      askingPath: ["b"],
      stage: "logit",
    });
    expect(found).toMatchObject({ row: 0, share: 1, exact: true, total: 0, error: "no" });
    expect([found.looked.length, found.positions.length, found.first.start, found.first.own.length]).toEqual([
      0, 0, 0, 0,
    ]);
    expect([found.keySpans.length, found.rowSpans.length, found.first.columns]).toEqual([0, 0, 0]);
    const heads = await decodeHeadMass({ ...headMassOf(), ...of, keys: undefined } as never);
    expect(heads).toMatchObject({ batch: 2, path: ["a"], askingPath: ["b"], stage: "logit", keys: [], error: "no" });
    expect([heads.looked.length, heads.masses.rows, heads.sums.columns]).toEqual([0, 0, 0]);
    const early = await decodeHeadMass({ id: 2, batch: 0, path: [], asking: "a", error: "no" } as never);
    expect(early).toMatchObject({ stage: "weights", askingPath: [], heads: [], total: 0, share: 1 });
  });

  test("the asking segment's row is exact also where the matrix is not", async () => {
    const own = { mass: floats([0.1, 0.2, 0.3, 0.4], [1, 4]), even: floats([1, 2, 3, 4], [1, 4]) };
    const selves = { self: floats([5, 6, 7, 8], [1, 4]), self_even: floats([9, 8, 7, 6], [1, 4]) };
    const { matrix } = await decodeMass(massOf({ row: 2, asking_row: { ...own, ...selves } } as never));
    expect([...matrix.mass.subarray(8, 12)]).toEqual([0.1, 0.2, 0.3, 0.4].map(Math.fround));
    expect([...matrix.even.subarray(8, 12)]).toEqual([1, 2, 3, 4]);
    expect([...matrix.self.subarray(8, 12), ...matrix.selfEven.subarray(8, 12)]).toEqual([5, 6, 7, 8, 9, 8, 7, 6]);
    expect([...matrix.mass.subarray(12)]).toEqual(MATRIX[3]);
  });

  test("of heads: layers of different sizes, and how many queries were looked at", async () => {
    const found = await decodeHeadMass(headMassOf({ heads: [1, 3] }));
    expect(found.heads.map(({ layer, head }) => `${layer}.${head}`)).toEqual(["0.0", "1.0", "1.1", "1.2"]);
    expect([found.looked.join(), found.total, found.id, found.keys.length]).toEqual(["2,0", 2, 2, 4]);
    expect([found.masses.rows, found.masses.columns, found.sums.rows]).toEqual([4, 4, 4]);
  });
});

describe("what does not fit", () => {
  test.each([
    ["starts that are no uint32", { starts: bytesOf([0, 1, 1, 3, 4, 6]) }],
    ["stops that are no uint32", { stops: bytesOf([1, 4, 3, 4, 6, 8]) }],
  ])("%s are refused", async (_, wrong) => {
    await expect(decodeSegments(segmentsOf(wrong))).rejects.toThrow("uint32 starts and stops");
  });

  test.each([
    ["stops", { stops: wholes([1, 4, 3, 4, 6]) }],
    ["levels", { levels: bytesOf([0, 0, 1, 1, 0]) }],
  ])("too few %s are refused", async (_, wrong) => {
    await expect(decodeSegments(segmentsOf(wrong))).rejects.toThrow("as many starts, stops and levels");
  });

  test.each([
    ["key sizes", { key_sizes: [1, 3, 2] }],
    ["key colors", { key_colors: [-1, 0, 0.5, 7] }],
    ["row sizes", { row_sizes: [1, 3] }],
    ["divisions", { key_inside: [1, 2] }],
  ])("%s that are not whole numbers for each are refused", async (_, wrong) => {
    await expect(decodeMass(massOf(wrong))).rejects.toThrow("whole numbers for each");
  });

  test.each([
    ["no columns", { columns: undefined }, "mass has no columns"],
    ["a row before the first", { row: -1 }, "not the row"],
    ["spans of too few", { key_spans: spans([0, 1]) }, "expected uint32 of 8 numbers, got uint32 of 2"],
    ["row spans of too few", { row_spans: spans([0, 1]) }, "uint32 of 8 numbers"],
    ["positions that are no whole numbers", { positions: floats([1]) }, "expected uint32 of any numbers, got float32"],
    ["no positions", { positions: undefined }, "uint32 of any numbers"],
  ])("%s: refused", async (_, wrong, said) => {
    await expect(decodeMass(massOf(wrong as never))).rejects.toThrow(said);
  });

  test("a token's own key is in a column, or in none: the number after the last", async () => {
    const { start, ...columns } = massOf().columns!;
    const found = await decodeColumns({ ...columns, own: wholes([4, 0]) }, 5, 4);
    expect([start, found.start, found.rows, found.columns, ...found.own]).toEqual([0, 5, 2, 4, 4, 0]);
    await expect(decodeColumns({ ...columns, own: wholes([4]) }, 5, 4)).rejects.toThrow("uint32 of 2 numbers");
    await expect(decodeColumns({ ...columns, mass: undefined } as never, 5, 4)).rejects.toThrow();
  });
});

test("a row of masses goes to its place, of fewer rows than columns", async () => {
  const part = (numbers: number[], shape: number[]) => floats(numbers, shape);
  const message = (rows: number) => {
    const of = (first: number) =>
      part(
        Array.from({ length: rows * 3 }, (_, at) => first + at),
        [rows, 3],
      );
    return { mass: of(0), even: of(10), self: of(20), self_even: of(30) };
  };
  const into = await decodeMasses(message(2), [2, 3]);
  putRow(into, 1, await decodeMasses({ ...message(1), mass: part([7, 8, 9], [1, 3]) }, [1, 3]));
  expect([...into.mass]).toEqual([0, 1, 2, 7, 8, 9]);
  expect([...into.even, ...into.self.subarray(3), ...into.selfEven.subarray(3)]).toEqual([
    ...[10, 11, 12, 10, 11, 12, 20, 21, 22, 30, 31, 32],
  ]);
  const buffers = [Float32Array.of(1, 2, 3)];
  const read = await decodeMasses(
    Object.fromEntries(
      ["mass", "even", "self", "self_even"].map((name) => [
        name,
        { data: 0, dtype: "float32", shape: [1, 3], deflated: false },
      ]),
    ),
    [1, 3],
    buffers as never,
  );
  expect([...read.mass, ...read.selfEven]).toEqual([1, 2, 3, 1, 2, 3]);
});
