// @vitest-environment jsdom
import { describe, expect, test } from "vitest";
import { decodePicture } from "../../src/contract/decode";
import type { ColorRange, ColorScaleName, Stage } from "../../src/contract/values";
import { buildTable, parseColor, plate } from "../../src/draw/color";
import { makeColorMapper, readPaints } from "../../src/draw/color-mapper";
import { type Cells, pictureOf, X } from "../helpers/states.ts";

async function mapperOf(
  cells: Cells,
  stage: Stage = "weights",
  range: ColorRange = "head",
  scale: ColorScaleName = "linear",
) {
  const picture = await decodePicture(pictureOf(cells, { stage }));
  return makeColorMapper(picture, picture.grid!, stage !== "weights", scale, range);
}

const HALVES: Cells = [
  [0.5, 0.25],
  [0.1, X],
];
const SCORES: Cells = [
  [-4, 1],
  [2, 0],
];

describe("weights", () => {
  test("on the head's range run from 0 to its greatest", async () => {
    const mapper = await mapperOf(HALVES);
    expect(mapper.domain).toEqual({ low: 0, high: 0.5 });
    expect([0, 0.25, 0.5].map((value) => mapper.index(value, 0))).toEqual([0, 128, 255]);
    expect([mapper.clips(0.5), mapper.share(0.25)]).toEqual([false, 0.5]);
  });

  test("on the unit range run from 0 to 1, whatever the head holds", async () => {
    const mapper = await mapperOf(HALVES, "weights", "unit");
    expect(mapper.domain).toEqual({ low: 0, high: 1 });
    expect(mapper.position(0.5, 0)).toBe(0.5);
  });

  test("on a range of one's own, what lies beyond either end is clipped", async () => {
    const mapper = await mapperOf(HALVES, "weights", [0.2, 0.4]);
    expect(mapper.domain).toEqual({ low: 0.2, high: 0.4 });
    expect([0.1, 0.2, 0.3, 0.4, 0.5].map((value) => mapper.clips(value))).toEqual([true, false, false, false, true]);
    expect([0.1, 0.25, 0.5].map((value) => mapper.index(value, 0))).toEqual([0, 64, 255]);
  });

  test("row by row each row's greatest is the strongest color, and nothing is clipped", async () => {
    const mapper = await mapperOf(HALVES, "weights", "row");
    expect(mapper.domain).toBeNull();
    expect([mapper.index(0.5, 0), mapper.index(0.25, 0), mapper.index(0.1, 1)]).toEqual([255, 128, 255]);
    expect([mapper.clips(9), mapper.index(0.5, 7)]).toEqual([false, 0]);
  });

  test("on a log scale a thousandth of the greatest is zero's color, and each tenth a third of the ramp", async () => {
    const mapper = await mapperOf([[1, 0.1, 0.01, 0.001]], "weights", "head", "log");
    expect(mapper.log).toBe(true);
    expect([1, 0.1, 0.01, 0.001, 0].map((value) => Number(mapper.position(value, 0).toFixed(6)))).toEqual([
      1, 0.666667, 0.333333, 0, 0,
    ]);
  });

  test("a head of nothing but zeros has one color, not a division by zero", async () => {
    const mapper = await mapperOf([[0, 0]]);
    expect([mapper.index(0, 0), mapper.share(0)]).toEqual([0, 0]);
  });

  test("a head without any finite number too", async () => {
    const mapper = await mapperOf([[Number.NaN, X]]);
    expect(mapper.domain).toEqual({ low: 0, high: 0 });
  });
});

describe("scores", () => {
  test("are symmetric: as far below zero as above, by the larger of both", async () => {
    const mapper = await mapperOf(SCORES, "scores");
    expect(mapper.domain).toEqual({ low: -4, high: 4 });
    expect([-4, 0, 4].map((value) => mapper.index(value, 0))).toEqual([1, 128, 255]);
    expect(mapper.share(-4)).toBe(1);
  });

  test("have no log scale", async () => {
    const mapper = await mapperOf(SCORES, "scores", "head", "log");
    expect(mapper.log).toBe(false);
    expect(mapper.position(2, 0)).toBe(0.75);
  });

  test("on a range of one's own are clipped at both ends of the larger", async () => {
    const mapper = await mapperOf(SCORES, "scores", [-1, 3]);
    expect(mapper.domain).toEqual({ low: -3, high: 3 });
    expect([-4, -3, 2, 3, 3.1].map((value) => mapper.clips(value))).toEqual([true, false, false, false, true]);
  });

  test("on the unit range run from −1 to 1", async () => {
    expect((await mapperOf(SCORES, "scores", "unit")).domain).toEqual({ low: -1, high: 1 });
  });

  test("row by row by the larger of both sides", async () => {
    const mapper = await mapperOf(SCORES, "scores", "row");
    expect([mapper.index(-4, 0), mapper.index(2, 1), mapper.index(0, 1)]).toEqual([1, 255, 128]);
  });
});

describe("what a canvas needs from the page", () => {
  function styled(css: string): CSSStyleDeclaration {
    const el = document.createElement("div");
    el.style.cssText = css;
    document.body.append(el);
    return getComputedStyle(el);
  }
  const channels = (packed: number) => [...new Uint8Array(Uint32Array.of(packed).buffer)];

  test("its page, its ink, and both tables on them", () => {
    const paints = readPaints(styled("background-color: #f6eee3; color: #202020"), "light", "attnwidget");
    const page = parseColor("#f6eee3")!;
    const ink = parseColor("#202020")!;
    expect([paints.sequential.page, paints.sequential.ink]).toEqual(["#f6eee3", "#202020"]);
    const table = buildTable({ kind: "sequential", palette: "attnwidget", theme: "light", page, ink });
    expect(paints.sequential.css).toEqual(table.css);
    expect(paints.diverging.css).not.toEqual(table.css);
    expect(paints.sequential.css[0]).toBe(paints.plate);
    expect(parseColor(paints.plate)).toEqual(plate(page, ink, "light"));
    expect(channels(paints.sequential.inkPacked)).toEqual([32, 32, 32, 255]);
  });

  test("NaN is the widget's own red, and 16 % of it on the page", () => {
    const { sequential } = readPaints(
      styled("background-color: #fff; color: #000; --aw-bad: #c02434; --aw-ink3: #707580"),
      "light",
      "attnwidget",
    );
    expect(sequential.bad).toBe("#c02434");
    expect(channels(sequential.badPacked)).toEqual([192, 36, 52, 255]);
    expect(parseColor(sequential.badTint)).toEqual({ r: 245, g: 220, b: 223, a: 1 });
    expect(channels(sequential.ink3Packed)).toEqual([112, 117, 128, 255]);
  });

  test.each([
    ["light", "#ffffff"],
    ["dark", "#111213"],
  ] as const)("a transparent page is taken for the %s theme's own", (theme, page) => {
    const { sequential } = readPaints(styled("background-color: transparent; color: #888"), theme, "attnwidget");
    expect(sequential.page).toBe(page);
  });

  test("a palette of the user's own is used for its ramp, and only for it", () => {
    const style = getComputedStyle(document.body);
    const own = { name: "mine", kind: "diverging", colors: ["#ff0000", "#ffffff", "#0000ff"] } as const;
    const { sequential, diverging } = readPaints(style, "light", own);
    const usual = readPaints(style, "light", "attnwidget");
    expect(sequential.css).toEqual(usual.sequential.css);
    expect([diverging.css[0], diverging.css[255]]).toEqual(["#ff0000", "#0000ff"]);
  });

  test("viridis is viridis, for weights only", () => {
    const style = styled("background-color: #fff; color: #000");
    const { sequential, diverging } = readPaints(style, "light", "viridis");
    expect([sequential.css[0], sequential.css[255]]).toEqual(["#440154", "#fde725"]);
    expect(diverging.css).toEqual(readPaints(style, "light", "attnwidget").diverging.css);
  });
});
