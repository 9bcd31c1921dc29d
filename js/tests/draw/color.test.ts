// @vitest-environment jsdom
import { describe, expect, test } from "vitest";
import type { Theme } from "../../src/contract/values";
import {
  buildTable,
  type Color,
  contrast,
  cssOf,
  HEAD_COLORS,
  inkOn,
  lightnessOf,
  parseColor,
  plate,
  scaleOf,
} from "../../src/draw/color";

const color = (css: string) => parseColor(css) as Color;

/** Pages as hosts have them, each with its ink. */
const PAGES: [theme: Theme, page: string, ink: string][] = [
  ["light", "#ffffff", "#16181d"],
  ["light", "#f6eee3", "#16181d"],
  ["dark", "#111213", "#eceef2"],
  ["dark", "#1f1f1f", "#eceef2"],
  ["contrast", "#000000", "#ffffff"],
  ["contrast-light", "#ffffff", "#000000"],
];
const look = (theme: Theme, page: string, ink: string) => ({ theme, page: color(page), ink: color(ink) });
const LIGHT = look("light", "#ffffff", "#16181d");
const DARK = look("dark", "#111213", "#eceef2");

describe.each(PAGES)("on a %s page of %s", (theme, page, ink) => {
  const on = look(theme, page, ink);
  const zero = cssOf(plate(on.page, on.ink, theme));

  test("more weight is always darker on light, lighter on dark", () => {
    const { css } = buildTable({ kind: "sequential", palette: "attnwidget", ...on });
    const lightness = css.map((entry) => lightnessOf(color(entry)));
    const direction = theme === "dark" || theme === "contrast" ? 1 : -1;
    for (let entry = 1; entry < 256; entry++) {
      // Eight bits a channel round by at most this much.
      expect(direction * ((lightness[entry] as number) - (lightness[entry - 1] as number))).toBeGreaterThan(-0.0022);
      if (entry >= 4)
        expect(direction * ((lightness[entry] as number) - (lightness[entry - 4] as number))).toBeGreaterThan(0);
    }
  });

  test("scores leave zero in both directions alike, each way in one direction of lightness", () => {
    const { css } = buildTable({ kind: "diverging", palette: "attnwidget", ...on });
    const lightness = css.map((entry) => lightnessOf(color(entry)));
    const direction = theme === "dark" || theme === "contrast" ? 1 : -1;
    for (const sign of [-1, 1]) {
      for (let step = 4; step <= 127; step++) {
        const further = lightness[128 + sign * step] as number;
        const nearer = lightness[128 + sign * (step - 4)] as number;
        expect(direction * (further - nearer)).toBeGreaterThan(0);
      }
    }
  });

  test("zero is the plate, and the plate is not the page", () => {
    expect(buildTable({ kind: "sequential", palette: "attnwidget", ...on }).css[0]).toBe(zero);
    expect(buildTable({ kind: "diverging", palette: "attnwidget", ...on }).css[128]).toBe(zero);
    expect(Math.abs(lightnessOf(color(zero)) - lightnessOf(on.page))).toBeGreaterThan(0.025);
  });

  test("neighboring colors are near: no step shows", () => {
    for (const kind of ["sequential", "diverging"] as const) {
      const { css } = buildTable({ kind, palette: "attnwidget", ...on });
      for (let entry = 1; entry < 256; entry++) {
        const [one, other] = [color(css[entry - 1] as string), color(css[entry] as string)];
        const step = Math.max(Math.abs(one.r - other.r), Math.abs(one.g - other.g), Math.abs(one.b - other.b));
        expect(step).toBeLessThanOrEqual(8);
      }
    }
  });

  test("numbers can be read on every color", () => {
    for (const [kind, palette] of [
      ["sequential", "attnwidget"],
      ["diverging", "attnwidget"],
      ["sequential", "viridis"],
    ] as const) {
      const { css, text } = buildTable({ kind, palette, ...on });
      expect(css).toHaveLength(256);
      css.forEach((entry, index) => {
        expect(contrast(color(text[index] as string), color(entry))).toBeGreaterThanOrEqual(4.5);
      });
    }
  });
});

test("the ends and the stops beyond the plate are those of the ramps", () => {
  const weights = buildTable({ kind: "sequential", palette: "attnwidget", ...LIGHT }).css;
  const scores = buildTable({ kind: "diverging", palette: "attnwidget", ...LIGHT }).css;
  const atThreeQuarters = color(weights[191] as string); // just before the stop #1a6390
  expect(weights[255]).toBe("#2a1055");
  expect([atThreeQuarters.r, atThreeQuarters.g, atThreeQuarters.b].map((channel) => channel >> 3)).toEqual(
    [0x1a, 0x63, 0x90].map((channel) => channel >> 3),
  );
  expect([scores[0], scores[1], scores[255]]).toEqual(["#0f3072", "#0f3072", "#7b2717"]);
  const dark = buildTable({ kind: "sequential", palette: "attnwidget", ...DARK }).css;
  const darkScores = buildTable({ kind: "diverging", palette: "attnwidget", ...DARK }).css;
  expect([dark[255], darkScores[0], darkScores[255]]).toEqual(["#f8f562", "#92ddfb", "#f9d28a"]);
});

test("viridis is viridis, from its own zero; scores keep their ramp", () => {
  const { css } = buildTable({ kind: "sequential", palette: "viridis", ...LIGHT });
  expect([css[0], css[128], css[255]]).toEqual(["#440154", "#21918c", "#fde725"]);
  const lightness = css.map((entry) => lightnessOf(color(entry)));
  for (let entry = 4; entry < 256; entry++) expect(lightness[entry]).toBeGreaterThan(lightness[entry - 4] as number);
  expect(buildTable({ kind: "diverging", palette: "viridis", ...LIGHT }).css).toEqual(
    buildTable({ kind: "diverging", palette: "attnwidget", ...LIGHT }).css,
  );
});

test("packed pixels are what putImageData draws", () => {
  const { packed, css } = buildTable({ kind: "sequential", palette: "attnwidget", ...LIGHT });
  const pixels = new Uint8ClampedArray(packed.buffer);
  const canvas = document.createElement("canvas");
  canvas.width = 256;
  canvas.height = 1;
  const context = canvas.getContext("2d") as CanvasRenderingContext2D;
  context.putImageData(new ImageData(pixels, 256, 1), 0, 0);
  for (const entry of [0, 77, 255]) {
    const { r, g, b } = color(css[entry] as string);
    expect([...context.getImageData(entry, 0, 1, 1).data]).toEqual([r, g, b, 255]);
  }
});

describe("a value's place", () => {
  test("linear weights", () => {
    const { index, position, clipped } = scaleOf({ kind: "sequential", scale: "linear", low: 0, high: 0.62 });
    expect([0, 0.31, 0.62, 0.8, -0.1].map(index)).toEqual([0, 128, 255, 255, 0]);
    expect(position(0.155)).toBeCloseTo(0.25, 10);
    expect([0.62, Math.fround(0.62), 0.6201, 0, -1].map(clipped)).toEqual([false, false, true, false, false]);
  });

  test("log weights: three decades, and what lies below is zero's color", () => {
    const { index, position } = scaleOf({ kind: "sequential", scale: "log", low: 0, high: 0.5 });
    expect([0, 1e-9, 0.0005, 0.5].map(index)).toEqual([0, 0, 0, 255]);
    expect(position(0.005)).toBeCloseTo(1 / 3, 10);
    expect(position(0.05)).toBeCloseTo(2 / 3, 10);
  });

  test("log within the reader's own range starts at its low end", () => {
    const { position } = scaleOf({ kind: "sequential", scale: "log", low: 0.01, high: 1 });
    expect([position(0.001), position(0.01), position(1)]).toEqual([0, 0, 1]);
    expect(position(0.1)).toBeCloseTo(0.5, 10);
  });

  test.each(["linear", "log"] as const)("scores are symmetric around zero, also when %s is asked for", (scale) => {
    const { index, position, clipped } = scaleOf({ kind: "diverging", scale, low: -28.1, high: 12 });
    expect([-28.1, 0, 28.1, 14.05, -99].map(index)).toEqual([1, 128, 255, 192, 1]);
    expect([position(-28.1), position(0)]).toEqual([0, 0.5]);
    expect(position(14.05)).toBeCloseTo(0.75, 10);
    expect([28.1, -28.1, 29, -29].map(clipped)).toEqual([false, false, true, true]);
  });

  test("a head of nothing but zeros is all zero, and NaN and ±∞ stay on the table", () => {
    const flat = scaleOf({ kind: "sequential", scale: "log", low: 0, high: 0 });
    expect([flat.index(0), flat.index(Number.NaN)]).toEqual([0, 0]);
    expect(scaleOf({ kind: "diverging", scale: "linear", low: 0, high: 0 }).index(0)).toBe(128);
    const scale = scaleOf({ kind: "sequential", scale: "linear", low: 0, high: 1 });
    expect([Infinity, -Infinity, Number.NaN].map(scale.index)).toEqual([255, 0, 0]);
  });
});

describe("heads", () => {
  test.each([
    ["light", "#ffffff"],
    ["dark", "#111213"],
    ["dark", "#1f1f1f"],
  ] as const)("twelve colors, all visible on a %s page of %s", (theme, page) => {
    expect(new Set(HEAD_COLORS[theme]).size).toBe(12);
    for (const head of HEAD_COLORS[theme]) expect(contrast(color(head), color(page))).toBeGreaterThanOrEqual(3);
  });
});

test("contrast is WCAG's, and ink is the better of black and white", () => {
  expect(contrast(color("#000"), color("#fff"))).toBeCloseTo(21, 10);
  expect(contrast(color("#767676"), color("#fff"))).toBeCloseTo(4.54, 2);
  expect(["#ffffff", "#777777", "#747474", "#000000"].map((css) => inkOn(color(css)))).toEqual([
    "#000",
    "#000",
    "#fff",
    "#fff",
  ]);
});

test.each([
  ["#1f1f1f", [31, 31, 31, 1]],
  ["#FA0", [255, 170, 0, 1]],
  ["#ff000080", [255, 0, 0, 128 / 255]],
  [" rgb(1, 22, 255) ", [1, 22, 255, 1]],
  ["rgba(1, 2, 3, 0.5)", [1, 2, 3, 0.5]],
  ["rgb(1 2 3 / 50%)", [1, 2, 3, 0.5]],
  ["rgb(100%, 0%, 20%)", [255, 0, 51, 1]],
  ["color(srgb 0.2 0 1)", [51, 0, 255, 1]],
  ["transparent", [0, 0, 0, 0]],
])("%s is a color", (css, [r, g, b, a]) => {
  expect(parseColor(css)).toEqual({ r, g, b, a });
});

test.each(["", "#12", "#ggg", "rgb(1, 2)", "rgb(a, b, c)", "color(display-p3 1 0 0)", "var(--x)"])(
  "%s is none",
  (css) => {
    expect(parseColor(css)).toBeNull();
  },
);

test("the plate is 4.5 % ink on light pages, 7 % on dark ones, and fixed in high contrast", () => {
  expect(cssOf(plate(LIGHT.page, LIGHT.ink, "light"))).toBe("#f5f5f5");
  expect(cssOf(plate(DARK.page, DARK.ink, "dark"))).toBe("#202123");
  expect(cssOf(plate(color("#000"), color("#fff"), "contrast"))).toBe("#202026");
});
