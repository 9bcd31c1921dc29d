// @vitest-environment jsdom
import { beforeAll, beforeEach, describe, expect, test } from "vitest";
import { decodePicture, decodeTile, type Picture, type Tile } from "../../src/contract/decode";
import type { TileAddress } from "../../src/contract/messages";
import type { ColorRange } from "../../src/contract/values";
import { type ColorMapper, makeColorMapper, type Paints, readPaints } from "../../src/draw/color-mapper";
import { type CellGrid, cellGridOf, centered, reachOf } from "../../src/geometry/cell-grid";
import { layoutFigure } from "../../src/geometry/layout";
import { WHOLE } from "../../src/geometry/viewport";
import { createTileCache, type TileCache, tilesInView } from "../../src/state/tile-cache";
import {
  colorsOf,
  FADE,
  type PaintedTiles,
  paintTiles,
  TileRasters,
  type TileScene,
} from "../../src/views/heatmap/tile-compositor";
import { longHead } from "../helpers/long-head.ts";

const head = longHead(4096);
const size = { queries: head.queries, keys: head.keys };
const labels = { query: 50, key: 50, keys: () => 0, keyTicks: true, queryTicks: true };
const figure = layoutFigure({ width: 1200, rows: head.rows, columns: head.columns, labels, dpr: 1 });
const reach = reachOf({ ...size, queryBin: 8, keyBin: 8 }, figure, 1);

let paints: Paints;
let picture: Picture;
let tiles: TileCache;
let rasters: TileRasters;
beforeAll(async () => {
  const el = document.createElement("div");
  document.body.append(el);
  el.style.cssText = "background-color: #ffffff; color: #16181d; --aw-bad: #c02434; --aw-ink3: #707580";
  paints = readPaints(getComputedStyle(el), "light", "attnwidget").sequential;
  picture = await decodePicture(head.picture());
});
beforeEach(() => {
  tiles = createTileCache();
  rasters = new TileRasters();
});

const mapperOf = (range: ColorRange = "head"): ColorMapper =>
  makeColorMapper(picture, picture.grid!, false, "log", range);
const at = (k: number, query: number, key: number) =>
  cellGridOf(reach, centered(reach, WHOLE, k, { query, key }), false);

function draw(cellGrid: CellGrid, changes: Partial<TileScene> = {}) {
  const canvas = document.createElement("canvas");
  const painted: PaintedTiles = paintTiles(canvas, {
    mapper: mapperOf(),
    paints,
    stage: "weights",
    width: figure.width,
    height: figure.height,
    dpr: 1,
    unit: 1,
    font: "sans-serif",
    numbers: false,
    patch: null,
    picture,
    cellGrid,
    tiles,
    of: "a",
    rasters,
    now: Number.POSITIVE_INFINITY,
    ...changes,
  });
  const context = canvas.getContext("2d")!;
  const pixel = (x: number, y: number) => [...context.getImageData(Math.floor(x), Math.floor(y), 1, 1).data];
  /** The middle of what is drawn for a place of the matrix. */
  const place = (query: number, key: number) =>
    pixel(
      (key + 0.5) * cellGrid.columns.pitch + cellGrid.columns.offset,
      (query + 0.5) * cellGrid.rows.pitch + cellGrid.rows.offset,
    );
  const all = context.getImageData(0, 0, canvas.width, canvas.height).data;
  return {
    painted,
    pixel,
    place,
    all,
    blank: all.filter((_, index) => index % 4 === 3).filter((alpha) => alpha === 0).length,
  };
}

const colorOf = (value: number, mapper = mapperOf(), row = 0) => {
  const css = paints.css[mapper.index(value, row)]!;
  return [1, 3, 5].map((from) => Number.parseInt(css.slice(from, from + 2), 16)).concat(255);
};
const decoded = (address: TileAddress, options = {}) => decodeTile(head.tile(address, options), size);

/** A tile with the same number everywhere. */
async function flat(address: TileAddress, code: number, every = 1): Promise<Tile> {
  const tile = await decoded(address);
  return { ...tile, every, codes: tile.codes.map(() => code) };
}
const numberAt = (tile: Tile, code: number) => tile.numbers[code]!;

describe("a place without tiles", () => {
  test("is the picture of the whole, magnified: no pixel is blank", () => {
    const { place, blank, painted } = draw(at(6, 2000, 2000));
    expect(blank).toBe(0);
    expect(painted).toEqual({ fading: false, every: 1 });
    const row = Math.floor(2000 / 8);
    const value = picture.grid!.values[row * picture.grid!.columns + row]!;
    expect(place(2000, 2000)).toEqual(colorOf(value));
  });

  test("is a coarser tile where there is one, the finest of them", async () => {
    const cellGrid = at(16, 2000, 2000);
    expect(cellGrid.levels).toEqual({ row: 0, column: 0 });
    tiles.put("a", await flat([2, 2, 4, 3], 100));
    tiles.put("a", await flat([1, 1, 7, 7], 200));
    const tile = await flat([1, 1, 7, 7], 200);
    const { place, blank } = draw(cellGrid);
    expect(blank).toBe(0);
    expect(place(1990, 1990)).toEqual(colorOf(numberAt(tile, 200)));
    expect(place(2047, 2047)).toEqual(colorOf(numberAt(tile, 200)));
    expect(place(2060, 1900)).toEqual(colorOf(numberAt(tile, 100)));
  });
});

describe("a tile", () => {
  test("is drawn in its place, cell by cell", async () => {
    const cellGrid = at(16, 2000, 2000);
    for (const address of tilesInView(cellGrid)) tiles.put("a", await decoded(address));
    const { place } = draw(cellGrid);
    for (const [query, key] of [
      [2000, 2000],
      [2001, 2000],
      [1990, 2010],
      [2040, 1930],
    ] as const) {
      const tile = tiles.get("a", 0, 0, query >> 7, key >> 7)!;
      const code = tile.codes[(query & 127) * 128 + (key & 127)]!;
      expect(place(query, key)).toEqual(colorOf(numberAt(tile, code)));
    }
  });

  test("that is sampled is drawn as it is, and said", async () => {
    const cellGrid = at(16, 2000, 2000);
    tiles.put("a", await flat([0, 0, 15, 15], 150, 4));
    const { place, painted } = draw(cellGrid);
    expect(painted.every).toBe(4);
    expect(place(2000, 2000)).toEqual(colorOf(numberAt(await flat([0, 0, 15, 15], 150), 150)));
    tiles.put("a", await flat([0, 0, 15, 15], 160));
    expect(draw(cellGrid).painted.every).toBe(1);
  });

  test("leaves blocked cells empty, whatever lies under them", async () => {
    const cellGrid = at(16, 2000, 2000);
    tiles.put("a", await flat([1, 1, 7, 7], 200));
    tiles.put("a", await flat([0, 0, 15, 15], 252));
    expect(draw(cellGrid).place(2000, 2000)[3]).toBe(0);
  });

  test("fades in over the coarser one, then stands alone; one that was there before does not", async () => {
    const cellGrid = at(16, 2000, 2000);
    tiles.put("a", await flat([1, 1, 7, 7], 40));
    tiles.put("a", await flat([0, 0, 15, 15], 250));
    const { arrived } = tiles.get("a", 0, 0, 15, 15)!;
    const [under, over] = await Promise.all([flat([1, 1, 7, 7], 40), flat([0, 0, 15, 15], 250)]);
    const [from, to] = [colorOf(numberAt(under, 40)), colorOf(numberAt(over, 250))];
    const early = draw(cellGrid, { now: arrived });
    expect([early.painted.fading, early.place(2000, 2000)]).toEqual([true, from]);
    const half = draw(cellGrid, { now: arrived + FADE / 2 }).place(2000, 2000);
    half.forEach((channel, index) => {
      expect(Math.abs(channel - (from[index]! + to[index]!) / 2)).toBeLessThanOrEqual(3);
    });
    const late = draw(cellGrid, { now: arrived + FADE });
    expect([late.painted.fading, late.place(2000, 2000)]).toEqual([false, to]);
    tiles.put("a", await flat([0, 0, 15, 14], 250, 2));
    tiles.put("a", await flat([0, 0, 15, 14], 250));
    expect(draw(cellGrid, { now: arrived + FADE }).painted.fading).toBe(false);
  });
});

describe("at 12 px and more", () => {
  test("cells are tiles with gaps between them; what is missing is coarser, not blank", async () => {
    const cellGrid = at(100, 1920, 1920);
    expect(cellGrid.rows.cell).toBeGreaterThan(12);
    tiles.put("a", await decoded([0, 0, 15, 15]));
    const { place, pixel, blank } = draw(cellGrid);
    const tile = tiles.get("a", 0, 0, 15, 15)!;
    expect(place(1922, 1921)).toEqual(colorOf(numberAt(tile, tile.codes[2 * 128 + 1]!)));
    const edge = Math.round(1922 * cellGrid.rows.cell + cellGrid.rows.offset) - 1;
    const middle = 1921.5 * cellGrid.columns.cell + cellGrid.columns.offset;
    expect(pixel(middle, edge)[3]).toBe(0);
    expect(place(1918, 1918)[3]).toBe(255);
    expect(blank).toBeLessThan(0.1 * figure.width * figure.height);
  });

  test("exact numbers stand in them as soon as they are known", async () => {
    const cellGrid = at(200, 2000, 2000);
    for (const address of tilesInView(cellGrid)) tiles.put("a", await decoded(address));
    const bare = draw(cellGrid).all.join();
    const queries = { start: 1984, stop: 2016 };
    const grid = { rows: 32, columns: 32, values: new Float32Array(1024).fill(0.25), kinds: new Uint8Array(1024) };
    expect(draw(cellGrid, { numbers: true }).all.join()).toBe(bare);
    expect(draw(cellGrid, { numbers: true, patch: { queries, keys: queries, grid } }).all.join()).not.toBe(bare);
  });
});

describe("rasters", () => {
  test("are made once for a tile and its colors, and bounded", async () => {
    const tile = { ...(await decoded([0, 0, 0, 0])), arrived: 0 };
    const mapper = mapperOf();
    const canvas = rasters.of(tile, mapper, paints, 8);
    expect(rasters.of(tile, mapper, paints, 8)).toBe(canvas);
    const seen = new Set<HTMLCanvasElement>();
    for (let step = 0; step < 500; step++) seen.add(rasters.of({ ...tile }, mapper, paints, 8));
    expect(rasters.size).toBeLessThanOrEqual(96);
    expect(seen.size).toBeLessThanOrEqual(96);
    rasters.dispose();
    expect([rasters.size, canvas.width]).toEqual([0, 0]);
  });

  test("of another range are drawn anew, in the same canvas", async () => {
    const tile = { ...(await flat([0, 0, 0, 0], 200)), arrived: 0 };
    const first = rasters.of(tile, mapperOf(), paints, 8);
    const pixel = () => first.getContext("2d")!.getImageData(5, 5, 1, 1).data.join();
    const before = pixel();
    expect(rasters.of(tile, mapperOf([0, 0.3]), paints, 8)).toBe(first);
    expect(pixel()).not.toBe(before);
  });

  test("on a range for each row take that of the picture's row", async () => {
    const tile = { ...(await flat([0, 0, 0, 0], 100)), arrived: 0 };
    const mapper = mapperOf("row");
    const data = rasters.of(tile, mapper, paints, 8).getContext("2d")!.getImageData(0, 0, 1, 128).data;
    for (const row of [0, 7, 8, 127]) {
      expect([...data.slice(4 * row, 4 * row + 4)]).toEqual(colorOf(numberAt(tile, 100), mapper, Math.floor(row / 8)));
    }
  });

  test("every code has its color: numbers, blocked, NaN and infinities", async () => {
    const tile = await decoded([0, 0, 0, 0]);
    const colors = colorsOf(tile, mapperOf(), 0, paints);
    expect(colors[250]).toBe(paints.packed[255]);
    expect([colors[252], colors[253], colors[254], colors[255]]).toEqual([
      0,
      paints.badPacked,
      paints.inkPacked,
      paints.ink3Packed,
    ]);
  });
});
