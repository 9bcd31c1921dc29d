/** The colors of a picture: which table, which domain, and which values are clipped. */

import { type Grid, NUMBER, type Picture } from "../contract/decode";
import type { ColorRange, ColorScaleName, Palette, Theme } from "../contract/values";
import { buildTable, cssOf, isDark, LOOK, parseColor, plate, scaleOf } from "./color";

/** The colors that a canvas needs, read from the page. */
export interface Paints {
  readonly packed: Uint32Array;
  readonly css: readonly string[];
  /** Black or white for each entry, whichever reads better. */
  readonly inkOn: readonly string[];
  readonly page: string;
  readonly ink: string;
  readonly bad: string;
  readonly badTint: string;
  readonly inkPacked: number;
  readonly ink3Packed: number;
  readonly badPacked: number;
  readonly badTintPacked: number;
}

export interface ColorMapper {
  readonly signed: boolean;
  readonly log: boolean;
  /** The ends of the legend; null if each row has its own. */
  readonly domain: { readonly low: number; readonly high: number } | null;
  /** Entry of the table, 0 to 255. */
  index(value: number, row: number): number;
  /** Place along the legend, 0 to 1. */
  position(value: number, row: number): number;
  /** Whether the color understates the value. */
  clips(value: number): boolean;
  /** The value as a share of the range, to find what is too small to stand out. */
  share(value: number): number;
}

/** The range of a thumbnail: 0 to 1. */
export const OWN_RANGE: ColorMapper = {
  signed: false,
  log: false,
  domain: { low: 0, high: 1 },
  index: (value) => Math.round(255 * value),
  position: (value) => value,
  clips: () => false,
  share: (value) => value,
};

/** The same for signed numbers: −1 to 1; a thumbnail spans a `share` of another's colors. */
export const ownRange = (signed: boolean, share = 1): ColorMapper => {
  if (!signed && share === 1) return OWN_RANGE;
  const position = (value: number) => (signed ? (1 + value * share) / 2 : value * share);
  return {
    ...{ signed, log: false, domain: { low: signed ? -1 : 0, high: 1 } },
    index: (value) => Math.round(255 * position(value)),
    position,
    clips: () => false,
    share: (value) => Math.abs(value * share),
  };
};

/** Return the color mapper of a picture: which table, which domain, and which values are clipped. */
export function makeColorMapper(
  picture: Picture,
  grid: Grid,
  signed: boolean,
  scale: ColorScaleName,
  range: ColorRange,
): ColorMapper {
  const kind = signed ? "diverging" : "sequential";
  const greatest = signed
    ? Math.max(Math.abs(picture.low ?? 0), Math.abs(picture.high ?? 0))
    : Math.max(0, picture.high ?? 0);
  const own = Array.isArray(range);
  const domain = own ? { low: range[0], high: range[1] } : { low: signed ? -1 : 0, high: 1 };
  if (!own && range !== "unit") Object.assign(domain, { low: signed ? -greatest : 0, high: greatest });
  const whole = scaleOf({ kind, scale, ...domain });
  const log = scale === "log" && !signed;
  const share = (value: number) => Math.abs(value) / (Math.max(Math.abs(domain.low), Math.abs(domain.high)) || 1);
  if (range === "row") {
    const rows = rowScales(grid, kind, scale);
    return {
      signed,
      log,
      domain: null,
      index: (value, row) => rows[row]?.index(value) ?? 0,
      position: (value, row) => rows[row]?.position(value) ?? 0,
      clips: () => false,
      share,
    };
  }
  return {
    signed,
    log,
    domain: signed && own ? { low: -Math.max(...range.map(Math.abs)), high: Math.max(...range.map(Math.abs)) } : domain,
    index: whole.index,
    position: whole.position,
    clips: (value) => whole.clipped(value) || (own && !signed && value < domain.low),
    share,
  };
}

function rowScales(grid: Grid, kind: "sequential" | "diverging", scale: ColorScaleName) {
  return Array.from({ length: grid.rows }, (_, row) => {
    let high = 0;
    for (let at = row * grid.columns; at < (row + 1) * grid.columns; at++) {
      if (grid.kinds[at] !== NUMBER) continue;
      const value = grid.values[at]!;
      high = Math.max(high, kind === "diverging" ? Math.abs(value) : value);
    }
    return scaleOf({ kind, scale, low: kind === "diverging" ? -high : 0, high });
  });
}

/** Read the current colors of the page, and make both tables. */
export function readPaints(style: CSSStyleDeclaration, theme: Theme, palette: Palette) {
  const look = LOOK[isDark(theme) ? "dark" : "light"];
  const page = parseColor(style.backgroundColor);
  const onPage = page !== null && page.a > 0.5 ? page : parseColor(look.page)!;
  const ink = parseColor(style.color) ?? parseColor(look.ink)!;
  const token = (name: string, otherwise: string) => parseColor(style.getPropertyValue(name)) ?? parseColor(otherwise)!;
  const bad = token("--aw-bad", look.bad);
  const ink3 = token("--aw-ink3", look.ink3);
  const mixed = (from: number, to: number) => Math.round(from + (to - from) * 0.16);
  const tint = { r: mixed(onPage.r, bad.r), g: mixed(onPage.g, bad.g), b: mixed(onPage.b, bad.b), a: 1 };
  const of = (kind: "sequential" | "diverging"): Paints => {
    const table = buildTable({ kind, palette, theme, page: onPage, ink });
    return {
      packed: table.packed,
      get css() {
        return table.css;
      },
      get inkOn() {
        return table.text;
      },
      page: cssOf(onPage),
      ink: cssOf(ink),
      bad: cssOf(bad),
      badTint: cssOf(tint),
      inkPacked: pack(ink),
      ink3Packed: pack(ink3),
      badPacked: pack(bad),
      badTintPacked: pack(tint),
    };
  };
  let sequential: Paints | undefined;
  let diverging: Paints | undefined;
  return {
    // Made on first use.
    get sequential() {
      sequential ??= of("sequential");
      return sequential;
    },
    get diverging() {
      diverging ??= of("diverging");
      return diverging;
    },
    plate: cssOf(plate(onPage, ink, theme)),
    page: onPage,
    ink3,
  };
}

function pack({ r, g, b }: { r: number; g: number; b: number }): number {
  return new Uint32Array(Uint8Array.of(r, g, b, 255).buffer)[0]!;
}
