import { describe, expect, test } from "vitest";
import { BLOCKED, decodeLinks, decodePicture, type Picture } from "../../src/contract/decode";
import { combine, lineOf } from "../../src/data/matrix";
import { rank, shortened } from "../../src/data/rank";
import { layoutFigure } from "../../src/geometry/layout";
import { floats, pictureOf } from "../helpers/states.ts";

const SINK = [0.5, 0.25, 0];
const CELLS = [
  [0.5, null, null],
  [0.5, 0.25, null],
  [0.25, 0.25, 0.5],
];

async function picture(sink: number[] | null = SINK): Promise<Picture> {
  return decodePicture({ ...pictureOf(CELLS), sink: sink === null ? null : floats(sink) });
}

describe("the column of a learned sink", () => {
  test("is a number for each row of the picture", async () => {
    expect([...((await picture()).sink ?? [])]).toEqual(SINK);
    expect((await picture(null)).sink).toBeNull();
  });

  test("of another length is refused", async () => {
    await expect(picture([0.5, 0.25])).rejects.toThrow("a sink's column must be float32 of 3 rows, got float32 of 2");
  });

  test("belongs to rows, and to no column", async () => {
    const shown = await picture();
    expect(lineOf(shown, { side: "query", index: 1 })?.sink).toBe(0.25);
    expect(lineOf(shown, { side: "key", index: 1 })?.sink ?? null).toBeNull();
    expect(lineOf(await picture(null), { side: "query", index: 1 })?.sink).toBeNull();
  });

  test("is taken together as the rows are", async () => {
    const shown = await picture();
    const rows = [0, 1].map((index) => lineOf(shown, { side: "query", index })!);
    expect(combine(rows, "mean")?.sink).toBe(0.375);
    expect(combine(rows, "sum")?.sink).toBe(0.75);
  });
});

describe("a ranking beside a sink", () => {
  const ranked = (values: number[], sink: number) =>
    rank(Float32Array.from(values), new Uint8Array(values.length), 12, sink);

  test("counts it in the entropy, and not among the keys", () => {
    const found = ranked([0.25, 0.25, 0.25], 0.25);
    expect(found).toMatchObject({
      top: [0, 1, 2],
      allowed: 3,
      sum: 0.75,
      entropy: 2,
      maxEntropy: 2,
      ninety: 3,
      sink: 0.25,
    });
  });

  test("of a row in which it has all the weight has no entropy", () => {
    const found = rank(Float32Array.of(0, 0), Uint8Array.of(BLOCKED, BLOCKED), 12, 1);
    expect(found).toMatchObject({ allowed: 0, sum: 0, entropy: 0, sink: 1 });
  });

  test("keeps it when it is shortened", () => {
    expect(shortened(ranked([0.5, 0.25], 0.25), 1)).toMatchObject({ top: [0], sink: 0.25 });
  });
});

test("links bring what each query gives to it", async () => {
  const uints = {
    data: new DataView(new Uint32Array(4).buffer),
    dtype: "uint32" as const,
    shape: [2, 2, 1],
    deflated: false,
  };
  const message = {
    layer: 0,
    batch: 0,
    heads: [0, 3],
    side: "query" as const,
    partners: uints,
    weights: floats([1, 1, 1, 1], [2, 2, 1]),
  };
  const links = await decodeLinks({ ...message, sinks: floats([0.1, 0.2, 0.3, 0.4], [2, 2]) });
  expect(links.sinks?.map((one) => [...one].map((value) => value.toFixed(1)))).toEqual([
    ["0.1", "0.2"],
    ["0.3", "0.4"],
  ]);
  expect((await decodeLinks(message)).sinks).toBeNull();
  await expect(decodeLinks({ ...message, sinks: floats([1, 1], [1, 2]) })).rejects.toThrow();
});

test("its column stands right of the picture, within the room for slanted labels", () => {
  const labels = { query: 40, key: 40, keys: () => 40, keyTicks: false };
  for (const [rows, columns] of [
    [5, 5],
    [20, 20],
    [200, 200],
    [3, 400],
  ] as const) {
    for (const width of [360, 600, 900, 1300]) {
      const input = { width, rows, columns, labels, dpr: 1 };
      const figure = layoutFigure({ ...input, labels: { ...labels, sink: 26 } });
      expect(layoutFigure(input).sink).toBeNull();
      expect(figure.sink!.width).toBeGreaterThanOrEqual(12);
      expect(figure.sink!.gap + figure.sink!.width).toBeLessThanOrEqual(figure.overhang);
      expect(figure.left + figure.width + figure.overhang).toBeLessThanOrEqual(Math.max(width, figure.left + 60));
    }
  }
});
