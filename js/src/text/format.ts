/** Numbers as text: true minus signs, weights without a leading zero, no small number shown as zero. */

import { isCarried, isSigned } from "../contract/stages";
import type { ColorScaleName, Stage } from "../contract/values";

const MINUS = "−";
/** Numbers below this have an exponent. */
const TINY = 1e-4;
/** Numbers from this on have an exponent. */
const HUGE = 1e5;
/** Below these, three decimals show fewer than two digits, and four do too. */
const LEAST_OF_3 = 0.00995;
const LEAST_OF_4 = 0.000995;

/**
 * In a cell: about four characters, with the same decimals for negative as for positive numbers. Below .005 the color
 * alone tells the number. A weight of 1 may have `most` instead of two decimals where cells are small.
 */
export function cellNumber(value: number, stage: Stage, most = 2): string {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "" : infinite(value);
  if (value === 0) return stage === "weights" ? "" : "0";
  const size = Math.abs(value);
  if (size < 0.005) return "";
  if (stage === "weights") return withoutZero(fixed(value, size < 0.995 ? 2 : most));
  const room = (decimals: number) => (decimals > 0 ? 3 : 4); // without the sign
  const decimals = [2, 1, 0].find((some) => withoutZero(fixed(size, some)).length <= room(some));
  return decimals === undefined ? exponential(value, 0) : withoutZero(fixed(value, decimals));
}

/** In a list: four decimals for weights, three for scores, at least two digits for contributions. */
export function listNumber(value: number, stage: Stage): string {
  if (!Number.isFinite(value)) return infinite(value);
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (isCarried(stage) && size < LEAST_OF_3) return size < LEAST_OF_4 ? exponential(value, 1) : fixed(value, 4);
  const decimals = stage === "weights" ? 4 : 3;
  if (size < TINY || size >= HUGE || Number(size.toFixed(decimals)) === 0) return exponential(value, 1);
  const text = fixed(value, decimals);
  return stage === "weights" ? withoutZero(text) : text;
}

/** In the status line: six decimals. */
export function statusNumber(value: number): string {
  if (!Number.isFinite(value)) return infinite(value);
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < TINY || size >= HUGE) return exponential(value, 3);
  const looksLikeOne = size !== 1 && size.toFixed(6) === "1.000000";
  return fixed(value, looksLikeOne ? 8 : 6);
}

/** `16,384` */
export function count(value: number): string {
  return fixed(value, 0).replace(/\B(?=(\d{3})+$)/g, ",");
}

/** A share of .9 as `90 %`. */
export function percent(share: number, decimals = 0): string {
  return Number.isFinite(share) ? `${fixed(100 * share, decimals)} %` : infinite(share);
}

/** The least number of so many decimals that is not below a value: a bound that is shown rounded still holds. */
export function roundedUp(value: number, decimals: number): number {
  const up = Math.ceil(value * 10 ** decimals - 1e-6) / 10 ** decimals;
  return Number.isFinite(up) ? up : value;
}

/** A change with its sign: `+.0489`. */
export function signed(value: number, stage: Stage = "weights"): string {
  const text = listNumber(value, stage);
  return value > 0 && Number.isFinite(value) ? `+${text}` : text;
}

export interface LegendTick {
  value: number;
  text: string;
}

/**
 * The labels of a legend: both exact ends and round values between, at most four, none closer to its neighbor than
 * `minGap` of the legend. Weights run from `low` to `high`; on a log scale they show the powers of ten above a
 * thousandth of `high`. All other stages are symmetric: −m, 0, m.
 */
export function legendTicks(
  low: number,
  high: number,
  scale: ColorScaleName,
  stage: Stage,
  minGap = 0.14,
): LegendTick[] {
  if (isSigned(stage)) {
    const most = Math.max(Math.abs(low), Math.abs(high));
    return (most > 0 ? [-most, 0, most] : [0]).map((value) => ({ value, text: endText(value, stage) }));
  }
  if (!(high > low)) return [{ value: high, text: endText(high, stage) }];
  const isLog = scale === "log" && high > 0;
  const start = isLog ? Math.max(low, high / 1000) : low;
  const place = isLog
    ? (value: number) => Math.log(value / start) / Math.log(high / start)
    : (value: number) => (value - start) / (high - start);
  const inner = isLog ? powersOfTen(start, high) : roundValues(start, high, place, minGap);
  const kept = inner.filter((value) => place(value) <= 1 - minGap);
  const first = kept[0];
  const needsStart = first === undefined || place(first) >= minGap;
  return [
    ...(needsStart ? [{ value: start, text: endText(start, stage) }] : []),
    ...kept.map((value) => ({ value, text: roundText(value) })),
    { value: high, text: endText(high, stage) },
  ];
}

/** Round values strictly between the ends: with the step that ends exactly at `high`, else the smallest that fits. */
function roundValues(low: number, high: number, place: (value: number) => number, minGap: number): number[] {
  const unit = powerOfTen(exponentOf(high - low));
  const candidates = [0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 1, 2, 2.5, 3, 4, 5].map((step) => step * unit);
  let smallest: number[] | null = null;
  for (const step of candidates) {
    if (step < minGap * (high - low)) continue;
    const values = multiples(step, low, high).filter((value) => place(value) >= minGap && place(value) <= 1 - minGap);
    if (values.length > 2) continue;
    const endsAt = high / step;
    if (values.length > 0 && low === 0 && Math.abs(endsAt - Math.round(endsAt)) < 1e-6) return values;
    smallest ??= values;
  }
  return smallest ?? [];
}

function multiples(step: number, low: number, high: number): number[] {
  const values: number[] = [];
  for (let index = Math.floor(low / step) + 1; index * step < high; index++) {
    values.push(Number((index * step).toPrecision(12)));
  }
  return values;
}

function powersOfTen(low: number, high: number): number[] {
  const values: number[] = [];
  // `low` counts as a power of ten if only its last digits exceed one.
  for (let power = exponentOf(low * (1 - 1e-9)) + 1; ; power++) {
    const value = powerOfTen(power);
    if (value >= high) return values;
    values.push(value);
  }
}

/** The exponent of the first digit, from the digits: the last bit of a logarithm differs between machines. */
function exponentOf(value: number): number {
  return Number(value.toExponential().split("e")[1]);
}

function powerOfTen(power: number): number {
  return Number(`1e${power}`);
}

/** All digits of a round number. */
function roundText(value: number): string {
  if (value !== 0 && Math.abs(value) < TINY) return exponential(value, 0);
  return withoutZero(String(Number(value.toPrecision(3))))
    .replace("e+", "e")
    .replace("-", MINUS);
}

/** Two digits of a weight, one decimal of a score. */
function endText(value: number, stage: Stage): string {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < TINY || size >= HUGE) return exponential(value, 1);
  if (stage === "weights") return roundText(Number(value.toPrecision(2)));
  if (size < 1) return withoutZero(fixed(value, Math.min(4, 1 - exponentOf(size))));
  return size < 100 ? fixed(value, 1) : count(value);
}

/** An end of a range, as the legend shows it. */
export const legendNumber = (value: number, stage: Stage): string => endText(value, stage);

function infinite(value: number): string {
  return Number.isNaN(value) ? "NaN" : value > 0 ? "+∞" : `${MINUS}∞`;
}

/** Never `−0.00`. */
function fixed(value: number, decimals: number): string {
  const text = value.toFixed(decimals).replace("e+", "e");
  if (!text.startsWith("-")) return text;
  return Number(text) === 0 ? text.slice(1) : text.replace("-", MINUS);
}

/** `3.1e−7` */
function exponential(value: number, decimals: number): string {
  return value.toExponential(decimals).replace("e+", "e").replaceAll("-", MINUS);
}

function withoutZero(text: string): string {
  return text.replace(/^([−-]?)0\./, "$1.");
}
