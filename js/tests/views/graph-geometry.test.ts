import { describe, expect, test } from "vitest";
import {
  bandsOf,
  bandUnder,
  curvesOf,
  keepLinks,
  type Link,
  lane,
  middleAt,
  strongestLast,
} from "../../src/views/graph/geometry.ts";
import { barsOf } from "../../src/views/graph/lanes.tsx";

const link = (query: number, key: number, weight: number, head = 0): Link => ({ query, key, weight, head });

describe("columns of tokens", () => {
  test.each([
    [20, 22],
    [29, 22],
    [30, 16],
    [40, 16],
    [41, 12],
    [53, 12],
  ])("%i tokens stand %i apart", (total, pitch) => {
    const column = lane(total, null);
    expect(column.pitch).toBe(pitch);
    expect(column.height).toBeLessThanOrEqual(640);
    expect(column.y(0)).toBe(pitch / 2);
    expect(column.y(total - 1)).toBe(total * pitch - pitch / 2);
    expect(column.step).toBe(1);
  });

  test("more than fit share the height, with every k-th label", () => {
    const column = lane(200, null);
    expect(column.height).toBeCloseTo(640);
    expect(column.step * column.pitch).toBeGreaterThanOrEqual(14);
  });

  test("with a pin, what is far from it is folded into gaps that count what they hide", () => {
    const column = lane(4000, [3210, 12]);
    const tokens = column.rows.filter((row) => row.kind === "token").map((row) => row.kind === "token" && row.index);
    const hidden = column.rows.reduce((sum, row) => sum + (row.kind === "gap" ? row.count : 0), 0);
    expect(tokens).toContain(3210);
    expect(tokens).toContain(12);
    expect(tokens).toContain(3211);
    expect(tokens.length + hidden).toBe(4000);
    expect(column.y(12)).toBeLessThan(column.y(3210) as number);
    expect(column.y(2000)).toBeNull();
    expect(column.height).toBeLessThanOrEqual(640);
  });

  test("however many are to be kept, the column stays within its height", () => {
    for (const total of [54, 200, 1000, 65536]) {
      const column = lane(
        total,
        Array.from({ length: total }, (_, i) => (i * 7919) % total),
      );
      expect(column.height).toBeLessThanOrEqual(640 + 1e-9);
      const indices = column.rows.flatMap((row) => (row.kind === "token" ? [row.index] : []));
      expect(indices).toEqual([...indices].sort((a, b) => a - b));
    }
  });

  test("a gap never hides a single token", () => {
    for (let seed = 1; seed < 40; seed++) {
      const keep = Array.from({ length: 9 }, (_, i) => (i * i * seed * 31) % 300);
      for (const row of lane(300, keep).rows) if (row.kind === "gap") expect(row.count).toBeGreaterThan(1);
    }
  });
});

describe("bands", () => {
  const queries = lane(20, null);
  const keys = lane(20, null);
  const links = [link(14, 0, 0.25), link(14, 5, 0.5), link(14, 16, 0.125), link(14, 5, 0.9, 1), link(14, 3, 0.05, 1)];

  test("14 px are a weight of 1 where the bands of a query begin", () => {
    const { bands } = bandsOf(links, "query", queries, keys);
    expect(bands.find((band) => band.key === 5 && band.head === 0)?.width0).toBeCloseTo(7);
    expect(bands.find((band) => band.key === 5 && band.head === 1)?.width0).toBeCloseTo(12.6);
  });

  test("heads are stacked 2 apart around the query's row, each with a stem as tall as its sum", () => {
    const { stems } = bandsOf(links, "query", queries, keys);
    expect(stems.map((stem) => stem.head)).toEqual([0, 1]);
    const [first, second] = stems as [(typeof stems)[0], (typeof stems)[0]];
    expect(first.to - first.from).toBeCloseTo(14 * 0.875);
    expect(second.to - second.from).toBeCloseTo(14 * 0.95);
    expect(second.from - first.to).toBeCloseTo(2);
    expect((first.from + second.to) / 2).toBeCloseTo(queries.y(14) as number);
  });

  test("bands into one key lie side by side, within 19 px and around its row", () => {
    const { bands } = bandsOf(links, "query", queries, keys);
    const into = bands.filter((band) => band.key === 5);
    const top = Math.min(...into.map((band) => band.y1 - band.width1 / 2));
    const bottom = Math.max(...into.map((band) => band.y1 + band.width1 / 2));
    expect(bottom - top).toBeLessThanOrEqual(19 + 1e-9);
    expect((top + bottom) / 2).toBeCloseTo(keys.y(5) as number);
    expect(into[0]!.width1 / into[1]!.width1).toBeCloseTo(0.5 / 0.9);
  });

  test("a pinned key turns it round: bands end at its row, and begin at the queries'", () => {
    const { bands, stems } = bandsOf([link(2, 7, 0.4), link(9, 7, 0.8)], "key", queries, keys);
    expect(stems).toHaveLength(1);
    expect(bands.map((band) => Math.round(band.y0))).toEqual([Math.round(queries.y(2)!), Math.round(queries.y(9)!)]);
    // Received weights may sum to more than 1: together they still keep to the 14 px.
    expect(bands.reduce((sum, band) => sum + band.width1, 0)).toBeCloseTo(14);
  });

  test("a band is never thinner than can be seen, nor opaque", () => {
    const { bands } = bandsOf([link(0, 1, 1e-6), link(0, 2, 1)], "query", queries, keys);
    for (const band of bands) {
      expect(Math.min(band.width0, band.width1)).toBeGreaterThanOrEqual(0.8);
      expect(band.opacity).toBeLessThanOrEqual(0.9);
    }
  });

  test("links to tokens that are folded away are not drawn", () => {
    const far = lane(4000, [3]);
    expect(bandsOf([link(0, 3, 0.5), link(0, 2000, 0.5)], "query", lane(4000, [0]), far).bands).toHaveLength(1);
    expect(curvesOf([link(0, 2000, 0.5)], lane(4000, [0]), far)).toEqual([]);
  });
});

describe("at the ends and where it is crowded", () => {
  test.each([0, 19])("the bands of many heads of query %i stay inside the picture", (query) => {
    const column = lane(20, null);
    const links = Array.from({ length: 40 }, (_, head) => link(query, 5, 0.9, head));
    for (const some of [links.slice(0, 4), links]) {
      const { bands, stems } = bandsOf(some, "query", column, column);
      expect(stems[0]!.from).toBeGreaterThanOrEqual(-1e-9);
      expect(stems.at(-1)!.to).toBeLessThanOrEqual(440 + 1e-9);
      expect(new Set(bands.map(({ width0 }) => width0.toFixed(6))).size).toBe(1);
    }
  });

  test("bands into a crowded row leave room for the rows beside it", () => {
    const keys = lane(50, null);
    const links = Array.from({ length: 4 }, (_, head) => link(3, 20, 0.9, head));
    const { bands } = bandsOf(links, "query", lane(20, null), keys);
    expect(bands.reduce((sum, { width1 }) => sum + width1, 0)).toBeLessThanOrEqual(keys.pitch - 3 + 1e-9);
  });

  test("a single pin keeps as much of its surroundings as stands at the full distance", () => {
    const column = lane(2000, [1000]);
    expect(column.pitch).toBe(22);
    expect(column.height).toBeGreaterThan(600);
    expect(column.y(1010)! - column.y(990)!).toBeCloseTo(20 * 22);
  });

  test("of too many curves the strongest are drawn, the strongest last", () => {
    const links = [0.3, 0.1, 0.9, 0.2].map((weight, at) => link(at, at, weight));
    expect(strongestLast(links, 3).map(({ weight }) => weight)).toEqual([0.2, 0.3, 0.9]);
  });

  test.each([
    [1, 22, 1],
    [4, 22, 1],
    [4, 22, 2],
    [12, 22, 2],
    [12, 12, 1.5],
    [64, 22, 1],
  ])("%i bars in a row of %i are whole device pixels (%s to a pixel) and fit", (heads, pitch, dpr) => {
    const { tall, apart } = barsOf(pitch, heads, 1, dpr);
    expect(tall * dpr).toBeCloseTo(Math.round(tall * dpr));
    expect(tall).toBeGreaterThan(0);
    expect(apart * (heads - 1) + tall).toBeLessThanOrEqual(pitch - 2);
    if (heads > 1 && heads < 12) expect([tall, apart]).toEqual([3, 4]);
  });
});

describe("what is kept", () => {
  const links = [link(0, 1, 0.5), link(0, 2, 0.3), link(0, 3, 0.01), link(0, 4, 0), link(0, 1, 0.2, 1)];
  test("nothing below the threshold, and nothing without weight", () => {
    expect(keepLinks(links, null, 0.02).map((l) => l.weight)).toEqual([0.5, 0.3, 0.2]);
    expect(keepLinks(links, null, 0)).toHaveLength(4);
  });
  test("the strongest of each head", () => {
    expect(keepLinks(links, 1, 0).map((l) => [l.head, l.weight])).toEqual([
      [0, 0.5],
      [1, 0.2],
    ]);
  });
});

describe("pointing at a band", () => {
  const { bands } = bandsOf([link(3, 10, 0.6), link(3, 1, 0.3)], "query", lane(20, null), lane(20, null));
  test("finds it anywhere along its way", () => {
    for (const band of bands) {
      for (const share of [0.02, 0.25, 0.5, 0.75, 0.98]) {
        expect(bandUnder([band], share, middleAt(band, share).y, 0)).toBe(band);
      }
      expect(middleAt(band, 0).y).toBeCloseTo(band.y0, 3);
      expect(middleAt(band, 1).y).toBeCloseTo(band.y1, 3);
    }
  });
  test("the strongest where several lie, none beside them", () => {
    const crossing = [
      { ...bands[0]!, y0: 0, y1: 0, weight: 0.1 },
      { ...bands[0]!, y0: 0, y1: 0, weight: 0.7 },
    ];
    expect(bandUnder(crossing, 0.5, 0, 1)?.weight).toBe(0.7);
    expect(bandUnder(crossing, 0.5, 300, 1)).toBeNull();
  });
});
