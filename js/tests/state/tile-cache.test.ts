// @vitest-environment jsdom
import { signal } from "@preact/signals-core";
import { describe, expect, test } from "vitest";
import { decodePicture, decodeTile, type Picture, type Tile } from "../../src/contract/decode";
import type { TileAddress } from "../../src/contract/messages";
import { cellGridOf, centered, reachOf, zoomFor } from "../../src/geometry/cell-grid";
import { layoutFigure } from "../../src/geometry/layout";
import { WHOLE } from "../../src/geometry/viewport";
import { createHost, type HostRequest } from "../../src/kernel/host";
import { createKernel } from "../../src/kernel/kernel";
import { createTileCache, REST, tileSource, tilesInView, tilesOf, type WantedTiles } from "../../src/state/tile-cache";
import { longHead } from "../helpers/long-head.ts";
import { settle } from "../helpers/page.ts";
import { asked, random, stateOf } from "../helpers/states.ts";
import { endOfTest } from "../helpers/timers.ts";

const head = longHead(16_384);
const size = { queries: head.queries, keys: head.keys };
const tileAt = (address: TileAddress, every = 1) => decodeTile(head.tile(address, { every }), size);

describe("a tile that arrives", () => {
  test("has as many cells as its place leaves, and the numbers of its codes", async () => {
    const tile = await tileAt([5, 5, 3, 3]);
    expect([tile.rows, tile.columns]).toEqual([128, 128]);
    expect(tile.numbers[tile.codes[0]!]).toBeCloseTo(0.8, 6);
    const small = longHead(300);
    const last = await decodeTile(small.tile([0, 1, 2, 1]), { queries: 300, keys: 300 });
    expect([last.rows, last.columns]).toEqual([300 - 256, 150 - 128]);
  });

  test.each([
    ["a place outside", { tile: [5, 5, 4, 0] as TileAddress }],
    ["no place", { tile: [0, 0, 0] as unknown as TileAddress }],
    ["a fraction of a level", { tile: [0.5, 0, 0, 0] as unknown as TileAddress }],
    ["another shape", { tile: [8, 5, 0, 0] as TileAddress }],
    ["every 0th row", { every: 0 }],
    ["a first row of −1", { first: -1 }],
  ])("with %s is an error, not a picture", async (_, change) => {
    await expect(decodeTile({ ...head.tile([7, 5, 0, 1]), ...change }, size)).rejects.toThrow(/tile|rows/);
  });

  test("with a code that means nothing, or numbers that are no codes, too", async () => {
    const message = head.tile([5, 5, 0, 0]);
    const broken = { ...message.values, data: new DataView(new Uint8Array(128 * 128).fill(251).buffer) };
    await expect(decodeTile({ ...message, values: broken }, size)).rejects.toThrow("code 251");
    const floats = { ...message.values, dtype: "float32" as const, data: new DataView(new ArrayBuffer(4 * 128 * 128)) };
    await expect(decodeTile({ ...message, values: floats }, size)).rejects.toThrow("uint8");
  });

  test("does not keep the message that it came in", async () => {
    const message = head.tile([5, 5, 0, 0]);
    const data = message.values.data as DataView;
    const buffer = new Uint8Array(1_000_000);
    buffer.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), 500);
    const values = { ...message.values, data: new DataView(buffer.buffer, 500, data.byteLength) };
    const { codes } = await decodeTile({ ...message, values }, size);
    expect(codes.buffer.byteLength).toBe(128 * 128);
  });
});

describe("what is kept", () => {
  test("never takes more than its budget, and what was looked at last stays", async () => {
    const tile = await tileAt([0, 0, 5, 5]);
    const cache = createTileCache(40 * 18_000);
    const placed = (row: number, column: number): Tile => ({ ...tile, address: [0, 0, row, column] });
    cache.put("a", placed(0, 0));
    const next = random(4);
    for (let step = 0; step < 2000; step++) {
      cache.put(next() < 0.5 ? "a" : "b", placed(Math.floor(1 + next() * 100), Math.floor(next() * 100)));
      expect(cache.bytes).toBeLessThanOrEqual(40 * 18_000);
      expect(cache.get("a", 0, 0, 0, 0)).toBeDefined();
    }
  });

  test("an exact tile takes a sampled one's place, never the other way round", async () => {
    const cache = createTileCache();
    cache.put("a", await tileAt([3, 3, 0, 0], 8));
    expect(cache.get("a", 3, 3, 0, 0)?.every).toBe(8);
    cache.put("a", await tileAt([3, 3, 0, 0]));
    const bytes = cache.bytes;
    cache.put("a", await tileAt([3, 3, 0, 0], 8));
    expect(cache.get("a", 3, 3, 0, 0)?.every).toBe(1);
    expect(cache.bytes).toBe(bytes);
  });

  test("the finest of the coarser ones that hold a place is found, of levels that differ too", async () => {
    const cache = createTileCache();
    for (const address of [
      [5, 5, 1, 2],
      [4, 5, 2, 2],
      [2, 2, 0, 0],
    ] as TileAddress[]) {
      cache.put("a", await tileAt(address));
    }
    expect(cache.coarser("a", 4, 4, 2, 4)?.address).toEqual([4, 5, 2, 2]);
    expect(cache.coarser("a", 4, 4, 3, 5)?.address).toEqual([5, 5, 1, 2]);
    expect(cache.coarser("a", 1, 1, 1, 1)?.address).toEqual([2, 2, 0, 0]);
    expect(cache.coarser("a", 3, 3, 0, 0)).toBeUndefined();
    expect(cache.coarser("b", 4, 4, 2, 4)).toBeUndefined();
    expect(cache.coarser("a", 2, 2, 0, 0)).toBeUndefined();
  });

  test("a level whose last tile has gone is no longer looked for", async () => {
    const tile = await tileAt([0, 0, 0, 0]);
    const cache = createTileCache(3 * 18_000);
    cache.put("a", { ...tile, address: [6, 6, 0, 0] });
    for (let column = 0; column < 4; column++) cache.put("b", { ...tile, address: [0, 0, 0, column] });
    expect(cache.coarser("a", 5, 5, 0, 0)).toBeUndefined();
  });
});

const reach = (() => {
  const bin = head.bins.query;
  const labels = { query: 50, key: 50, keys: () => 0, keyTicks: true, queryTicks: true };
  const figure = layoutFigure({ width: 1200, rows: head.rows, columns: head.columns, labels, dpr: 1 });
  return reachOf({ ...size, queryBin: bin, keyBin: bin }, figure, 1);
})();
const latticeAt = (k: number, query: number, key: number) =>
  cellGridOf(reach, centered(reach, WHOLE, k, { query, key }), false);

describe("the tiles in view", () => {
  test("hold all cells in view and no others, at most sixteen, the middle first", () => {
    for (const k of [3, 5, 9, 20, 60, 200, 700, reach.most]) {
      const cellGrid = latticeAt(k, 9_000, 3_000);
      const tiles = tilesInView(cellGrid);
      expect(tiles.length).toBeLessThanOrEqual(16);
      expect(new Set(tiles.map(String)).size).toBe(tiles.length);
      const [rowLevel, columnLevel, row, column] = tiles[0]!;
      expect([2 ** rowLevel, 2 ** columnLevel]).toEqual([cellGrid.rows.bin, cellGrid.columns.bin]);
      const beside = (at: number, of: number, bin: number) => Math.abs((at + 0.5) * 128 * bin - of) <= 128 * bin;
      expect(beside(row, 9_000, cellGrid.rows.bin) && beside(column, 3_000, cellGrid.columns.bin)).toBe(true);
    }
  });

  test("whole, none is wanted", () => {
    expect(tilesInView(cellGridOf(reach, WHOLE, false))).toEqual([]);
  });
});

describe("asking", () => {
  const end = endOfTest();

  async function asker(answer: (request: HostRequest) => object | Promise<object> = head.answer) {
    const picture = await decodePicture(head.picture());
    const host = createHost(stateOf([[1]]), { answer });
    const kernel = createKernel(host, { signal: end.signal });
    const cache = createTileCache();
    const wanted = signal<WantedTiles | null>(null);
    const current = signal(true);
    tileSource(cache, kernel, wanted, () => current.value, end.signal);
    const look = (k: number, query: number, key: number, of: Picture = picture) => {
      wanted.value = { picture: of, of: tilesOf(of.of, 0), tiles: tilesInView(latticeAt(k, query, key)), scale: k };
      return wanted.value.tiles;
    };
    return { host, kernel, cache, wanted, current, look, picture };
  }
  const listOf = (request: HostRequest) => (request.tiles as TileAddress[]).map(String).sort();

  test("all that is in view is asked for in one request of a frame, with what it is of, and kept", async () => {
    const { host, cache, look } = await asker();
    const tiles = look(700, 5000, 5000);
    await settle(REST + 60);
    const requests = asked(host.sent, "tiles");
    expect(requests).toHaveLength(1);
    expect(requests[0]).toMatchObject({ layer: 0, batch: 0, head: 0, stage: "weights", pool: "max" });
    expect(typeof requests[0]!.view).toBe("string");
    expect(listOf(requests[0]!)).toEqual(tiles.map(String).sort());
    for (const tile of tiles)
      expect(
        cache.get(tilesOf({ layer: 0, batch: 0, head: 0, stage: "weights", pool: "max" }, 0), ...tile)?.every,
      ).toBe(1);
    look(700, 5000, 5000);
    await settle(REST + 60);
    expect(asked(host.sent, "tiles")).toHaveLength(1);
  });

  test("a hand that pans faster than the kernel answers asks one at a time, and last for where it is", async () => {
    let release: (() => void)[] = [];
    const { host, look } = await asker(
      (request) => new Promise((done) => release.push(() => done(head.answer(request)))),
    );
    let tiles: readonly TileAddress[] = [];
    for (let step = 0; step < 30; step++) {
      tiles = look(700, 2000 + 150 * step, 2000);
      await settle(16);
    }
    expect(asked(host.sent, "tiles")).toHaveLength(1);
    while (release.length > 0) {
      const open = release;
      release = [];
      for (const answer of open) answer();
      await settle(REST + 60);
    }
    expect(asked(host.sent, "tiles")).toHaveLength(2);
    expect(listOf(asked(host.sent, "tiles")[1]!)).toEqual(tiles.map(String).sort());
  });

  test("a tile that is yet to come is not asked for again, but with others it is: the kernel drops earlier requests", async () => {
    const late = new Set<string>();
    const { host, look } = await asker(({ tiles }) => {
      const known = (tiles as TileAddress[]).slice(1);
      late.add(String((tiles as TileAddress[])[0]));
      return { tiles: known.map((tile) => head.tile(tile)) };
    });
    look(62, 5000, 5000);
    await settle(REST + 60);
    const [first] = late;
    look(62, 5001, 5001);
    await settle(REST + 60);
    expect(asked(host.sent, "tiles")).toHaveLength(1);
    look(62, 5000, 5200);
    await settle(REST + 60);
    const [before, after] = asked(host.sent, "tiles");
    expect(listOf(after!)).toContain(first);
    expect(listOf(after!).filter((tile) => listOf(before!).includes(tile))).toEqual([first]);
  });

  test("what a sampled tile stands for is asked for with the next request, and not by itself", async () => {
    const { host, look } = await asker(({ tiles }) => ({
      tiles: (tiles as TileAddress[]).map((tile) => head.tile(tile, { every: 4 })),
    }));
    const tiles = look(9, 5000, 5000);
    await settle(300);
    expect(asked(host.sent, "tiles")).toHaveLength(1);
    const more = look(9, 5000, 9000);
    await settle(REST + 60);
    expect(asked(host.sent, "tiles")).toHaveLength(2);
    const shared = more.map(String).filter((tile) => tiles.map(String).includes(tile));
    for (const tile of shared) expect(listOf(asked(host.sent, "tiles")[1]!)).toContain(tile);
  });

  test("another head ends what was asked for the one before; of a head that was left nothing is asked", async () => {
    let release = () => {};
    const { host, cache, look, current, picture } = await asker(
      (request) =>
        new Promise((done) => {
          release = () => done(head.answer(request));
        }),
    );
    look(700, 5000, 5000);
    await settle(REST + 60);
    current.value = false;
    look(700, 9000, 9000);
    await settle(REST + 60);
    expect(asked(host.sent, "tiles")).toHaveLength(1);
    release();
    await settle(REST + 60);
    expect(cache.bytes).toBe(0);
    current.value = true;
    look(700, 9000, 9000, { ...picture, of: { ...picture.of, head: 3 } });
    await settle(REST + 60);
    expect(asked(host.sent, "tiles").at(-1)).toMatchObject({ head: 3 });
  });

  test("a kernel that cannot answer is not asked the same again; one that is gone not at all, until it is back", async () => {
    const { host, kernel, look } = await asker(() => {
      throw new Error("out of memory");
    });
    look(700, 5000, 5000);
    await settle(300);
    look(700, 5000, 5000);
    await settle(300);
    expect(asked(host.sent, "tiles")).toHaveLength(1);
    host.dead = true;
    look(700, 9000, 9000);
    await settle(REST + 60);
    expect(kernel.state.value).toBe("gone");
    look(700, 12_000, 12_000);
    await settle(REST + 60);
    host.dead = false;
    kernel.heard();
    await settle(REST + 60);
    expect(asked(host.sent, "tiles")).toHaveLength(2);
  });

  test("levels that a turning wheel passes through are not asked for, however slowly: but the one it stops at is, in full", async () => {
    const { host, cache, look } = await asker();
    look(9, 5000, 5000);
    await settle(REST + 60);
    const before = cache.bytes;
    let tiles: readonly TileAddress[] = [];
    for (const k of [9 * 2 ** 0.5, 18, 18 * 2 ** 0.5, 36]) {
      tiles = look(k, 5000, 5000);
      await settle(REST - 20);
    }
    expect(asked(host.sent, "tiles")).toHaveLength(1);
    await settle(REST + 60);
    expect(asked(host.sent, "tiles")).toHaveLength(2);
    expect(listOf(asked(host.sent, "tiles")[1]!)).toEqual(tiles.map(String).sort());
    expect(cache.bytes - before).toBeLessThanOrEqual(tiles.length * (128 * 128 + 1536));
  });

  test("a hand that pans does not wait, nor one that comes back to levels that were there", async () => {
    const { host, look } = await asker();
    look(700, 2000, 2000);
    await settle(REST + 60);
    look(700, 4000, 4000);
    await settle(16);
    expect(asked(host.sent, "tiles")).toHaveLength(2);
    await settle();
    look(9, 4000, 4000);
    await settle(REST - 20);
    look(700, 6000, 6000);
    await settle(16);
    expect(asked(host.sent, "tiles")).toHaveLength(3);
    await settle(2 * REST);
    expect(asked(host.sent, "tiles")).toHaveLength(3);
  });

  test("a view that ends asks nothing more", async () => {
    const { host, look } = await asker();
    end.abort();
    look(700, 5000, 5000);
    await settle(REST + 60);
    expect(asked(host.sent)).toHaveLength(0);
  });
});

test("single cells are asked for at the closest", () => {
  const cellGrid = latticeAt(zoomFor(reach, 26), 12_301, 4_110);
  expect(tilesInView(cellGrid).map(([row, column]) => [row, column])).toContainEqual([0, 0]);
});
