/**
 * Color shows only two things: how much (ramps) and which head (categories).
 *
 * A table has 256 colors, so that a cell costs one look-up; `colorScale` maps a value to an entry. The zero of a table
 * is the *plate*, the page's own tint, so that small weights blend into any page.
 */
import type { ColorScaleName, Palette, Theme } from "../contract/values";
import ramps from "./ramps.json";

/** Red, green and blue from 0 to 255, alpha from 0 to 1. */
export interface Color {
  r: number;
  g: number;
  b: number;
  a: number;
}

/** Weights run from zero in one direction, scores in two. */
export type RampKind = "sequential" | "diverging";
export type TextColor = "#000" | "#fff";

export interface ColorTable {
  /** The 256 pixels for `putImageData`. */
  packed: Uint32Array<ArrayBuffer>;
  /** The same colors for `fillStyle` and gradients. */
  css: readonly string[];
  /** The text color on each. */
  text: readonly TextColor[];
}

/**
 * Stops of the ramps, the same as Python's: `sequential` and `diverging` by theme, and matplotlib's viridis (Smith and
 * van der Walt, CC0) at 33 even places, which interpolates to within 3/255 of the original.
 */
const { sequential, diverging, viridis: VIRIDIS, heads } = ramps;
const RAMPS = { sequential, diverging };

/** The look's own colors, as in `theme.css`: for canvases, if the page's style has none. */
export const LOOK = {
  light: { page: "#ffffff", ink: "#16181d", ink3: "#707580", data: "#177f93", bad: "#c02434" },
  dark: { page: "#111213", ink: "#eceef2", ink3: "#858a95", data: "#2fb5ab", bad: "#ff6b6b" },
};

/** The same hue for a head in both themes; beyond the fourth, color alone must not distinguish heads. */
export const HEAD_COLORS = { light: hexList(heads.light), dark: hexList(heads.dark) };

/** Return whether a theme draws light ink on a dark page. */
export function isDark(theme: Theme): boolean {
  return theme === "dark" || theme === "contrast";
}

/** Return the tile of a zero: the page with a little ink, so that it differs from a missing tile on any page. */
export function plate(page: Color, ink: Color, theme: Theme): Color {
  if (theme === "contrast") return { r: 32, g: 32, b: 38, a: 1 };
  const share = isDark(theme) ? 0.07 : 0.045;
  const mix = (from: number, to: number) => Math.round(from + (to - from) * share);
  return { r: mix(page.r, ink.r), g: mix(page.g, ink.g), b: mix(page.b, ink.b), a: 1 };
}

/** Return the 256 colors of a ramp that begins at the page's zero. */
export function buildTable(look: {
  kind: RampKind;
  palette: Palette;
  theme: Theme;
  page: Color;
  ink: Color;
}): ColorTable {
  const { kind, palette, theme, page, ink } = look;
  const own = typeof palette === "object" && palette.kind === kind ? palette.colors : null;
  const given = own ?? (kind === "sequential" && palette === "viridis" ? hexList(VIRIDIS) : null);
  if (given !== null) {
    return tableOf(
      ramp(
        given.map((hex) => toOklab(parseColor(hex) as Color)),
        256,
      ).map(fromOklab),
    );
  }
  const stops = hexList(RAMPS[kind][isDark(theme) ? "dark" : "light"]).map((hex) => toOklab(parseColor(hex) as Color));
  const zero = toOklab(plate(page, ink, theme));
  const entries =
    kind === "sequential"
      ? blend(ramp(stops, 256), zero, 31)
      : // Entry 128 is zero; 127 lie on either side, and entry 0 repeats the first.
        [
          stops[0] as Lab,
          ...blend(ramp(stops.slice(0, 9).reverse(), 128), zero, 24).reverse(),
          ...blend(ramp(stops.slice(8), 128), zero, 24).slice(1),
        ];
  return tableOf(entries.map(fromOklab));
}

/** The places of values in a table. */
export interface ColorScale {
  /** Entry of the table, 0 to 255. */
  index(value: number): number;
  /** Place along the legend, 0 to 1. */
  position(value: number): number;
  /** Whether a value exceeds the strongest color, which then understates it. */
  clipped(value: number): boolean;
}

/**
 * Sequential from `low` to `high`, diverging from −m to m with m the larger of |low| and |high|. Log runs down to a
 * thousandth of `high` (or to `low`, if higher), for sequential only.
 */
export function scaleOf(domain: { kind: RampKind; scale: ColorScaleName; low: number; high: number }): ColorScale {
  const { kind, scale } = domain;
  const most = kind === "diverging" ? Math.max(Math.abs(domain.low), Math.abs(domain.high)) : domain.high;
  const least = kind === "diverging" ? -most : domain.low;
  const bottom = Math.max(least, most / 1000);
  const isLog = kind === "sequential" && scale === "log" && most > 0 && bottom < most;
  const slack = 1e-6 * Math.max(Math.abs(most), Math.abs(least));
  const place = isLog
    ? (value: number) => (value > bottom ? Math.log(value / bottom) / Math.log(most / bottom) : 0)
    : (value: number) => (value - least) / (most - least);
  const empty = kind === "diverging" ? 0.5 : 0;
  const position = (value: number) => {
    if (!(most > least) || Number.isNaN(value)) return empty;
    if (!Number.isFinite(value)) return value > 0 ? 1 : 0;
    return Math.min(1, Math.max(0, place(value)));
  };
  return {
    position,
    index:
      kind === "diverging"
        ? (value) => Math.round(1 + 254 * position(value))
        : (value) => Math.round(255 * position(value)),
    clipped: (value) => value > most + slack || (kind === "diverging" && value < least - slack),
  };
}

/** Return black or white, whichever reads better: at least 4.5:1 on every color. */
export function inkOn(color: Color): TextColor {
  const luminance = luminanceOf(color);
  return (luminance + 0.05) / 0.05 >= 1.05 / (luminance + 0.05) ? "#000" : "#fff";
}

/** Return WCAG's contrast ratio, 1 to 21. */
export function contrast(one: Color, other: Color): number {
  const [darker, lighter] = [luminanceOf(one), luminanceOf(other)].sort((a, b) => a - b) as [number, number];
  return (lighter + 0.05) / (darker + 0.05);
}

/** Return WCAG's relative luminance, 0 to 1. */
export function luminanceOf({ r, g, b }: Color): number {
  return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
}

/**
 * Parse a color as computed styles and themes write it: `#hex`, `rgb()`, `rgba()`, `color(srgb …)` or `transparent`.
 */
export function parseColor(css: string): Color | null {
  const text = css.trim().toLowerCase();
  if (text === "transparent") return { r: 0, g: 0, b: 0, a: 0 };
  if (text.startsWith("#")) return parseHex(text.slice(1));
  const call = /^(rgba?|color)\((.*)\)$/.exec(text);
  if (!call) return null;
  const isColor = call[1] === "color";
  const parts = (call[2] as string).split(/[\s,/]+/).filter((part) => part !== "");
  if (isColor && parts.shift() !== "srgb") return null;
  const [r, g, b, a = "1"] = parts;
  if (r === undefined || g === undefined || b === undefined || parts.length > 4) return null;
  const channel = (part: string) => amount(part, 255) * (isColor && !part.endsWith("%") ? 255 : 1);
  const color = { r: channel(r), g: channel(g), b: channel(b), a: amount(a, 1) };
  return Object.values(color).every(Number.isFinite) ? color : null;
}

/** Return `#rrggbb`, or `rgb()` if the color is not opaque. */
export function cssOf({ r, g, b, a }: Color): string {
  const [red, green, blue] = [r, g, b].map((channel) => Math.round(channel)) as [number, number, number];
  if (a < 1) return `rgb(${red} ${green} ${blue} / ${a})`;
  return `#${((1 << 24) | (red << 16) | (green << 8) | blue).toString(16).slice(1)}`;
}

/** Return lightness in OKLab, 0 to 1: perceived lightness. */
export function lightnessOf(color: Color): number {
  return toOklab(color)[0];
}

// --- tables ---------------------------------------------------------------------------------------------------------

/** Lightness, green to red, blue to yellow: see Ottosson, "A perceptual color space for image processing" (2020). */
type Lab = readonly [number, number, number];

/** Evenly spaced stops, interpolated to `length` entries. */
function ramp(stops: readonly Lab[], length: number): Lab[] {
  const spans = stops.length - 1;
  return Array.from({ length }, (_, entry) => {
    const place = (entry / (length - 1)) * spans;
    const before = Math.min(spans - 1, Math.floor(place));
    return between(stops[before] as Lab, stops[before + 1] as Lab, place - before);
  });
}

/**
 * Starts a ramp at `zero` and blends into it over `over` entries. If the page's plate is not lighter (or darker) than
 * the ramp there, it takes as many more as lightness needs to keep one direction.
 */
function blend(entries: readonly Lab[], zero: Lab, over: number): Lab[] {
  const last = entries.length - 1;
  const direction = Math.sign((entries[last] as Lab)[0] - (entries[0] as Lab)[0]);
  const leastStep = 0.0006;
  let end = over;
  while (end < last && direction * ((entries[end] as Lab)[0] - zero[0]) < leastStep * end) end++;
  return entries.map((entry, index) => (index < end ? between(zero, entries[end] as Lab, index / end) : entry));
}

function between(from: Lab, to: Lab, share: number): Lab {
  const mix = (axis: 0 | 1 | 2) => from[axis] + (to[axis] - from[axis]) * share;
  return [mix(0), mix(1), mix(2)];
}

function tableOf(colors: readonly Color[]): ColorTable {
  const pixels = Uint8Array.from(colors.flatMap(({ r, g, b }) => [r, g, b, 255]));
  let css: readonly string[] | undefined;
  let text: readonly TextColor[] | undefined;
  return {
    packed: new Uint32Array(pixels.buffer),
    // Made on first use: cells without numbers need neither.
    get css() {
      css ??= colors.map(cssOf);
      return css;
    },
    get text() {
      text ??= colors.map(inkOn);
      return text;
    },
  };
}

function hexList(text: string): readonly string[] {
  return text.split(" ").map((hex) => `#${hex}`);
}

function parseHex(digits: string): Color | null {
  if (!/^(?:[\da-f]{3,4}|[\da-f]{6}|[\da-f]{8})$/.test(digits)) return null;
  const long = digits.length > 4 ? digits : digits.replace(/./g, "$&$&");
  const channel = (at: number) => Number.parseInt(long.slice(at, at + 2), 16);
  return { r: channel(0), g: channel(2), b: channel(4), a: long.length === 8 ? channel(6) / 255 : 1 };
}

/** A number, or a share of `whole`. */
function amount(part: string, whole: number): number {
  return part.endsWith("%") ? (Number(part.slice(0, -1)) / 100) * whole : Number(part);
}

function linear(channel: number): number {
  const share = channel / 255;
  return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
}

function channelOf(light: number): number {
  const share = light <= 0.0031308 ? 12.92 * light : 1.055 * light ** (1 / 2.4) - 0.055;
  return Math.round(255 * Math.min(1, Math.max(0, share)));
}

function toOklab(color: Color): Lab {
  const r = linear(color.r);
  const g = linear(color.g);
  const b = linear(color.b);
  const l = Math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
  const m = Math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
  const s = Math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return [
    0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
    1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
    0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s,
  ];
}

function fromOklab([L, A, B]: Lab): Color {
  const l = (L + 0.3963377774 * A + 0.2158037573 * B) ** 3;
  const m = (L - 0.1055613458 * A - 0.0638541728 * B) ** 3;
  const s = (L - 0.0894841775 * A - 1.291485548 * B) ** 3;
  return {
    r: channelOf(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
    g: channelOf(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
    b: channelOf(-0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s),
    a: 1,
  };
}
