/** Segments and masses as they are sent: what is read of them, and what is refused with a sentence. */

import { describe, expect, test } from "vitest";
import { decodeHeadMass, decodeMass, decodeSegments } from "../../src/data/segment-data";
import { headMassOf, MATRIX, massOf, segmentsOf, wholes } from "../helpers/segments.ts";
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
