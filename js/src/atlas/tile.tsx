/** The small picture of a head: its weight by distance over the shade of a metric. */

import { brief, type Curve, type HeadAt } from "./contents";

/** The fill of a number, from paper to the color of data; of a change, one of two colors. */
export function shade(value: number | null, most: number, signed: boolean): string {
  if (value === null) return "transparent";
  const share = Math.min(1, Math.abs(value) / most).toFixed(3);
  const color = !signed ? "--aw-data" : value < 0 ? "--aw-below" : "--aw-above";
  return `color-mix(in oklab, var(${color}) calc(${share} * var(--aw-deepest)), var(--aw-zero))`;
}

/** A curve from the left to the right edge, as the path of a filled area in a box of 1 × 1. */
export function area(values: readonly (number | null)[]): string {
  const most = Math.max(1e-12, ...values.map((value) => value ?? 0));
  const step = 1 / values.length;
  const tops = values.map((value, at) => `H${(at * step).toFixed(4)}V${(1 - (value ?? 0) / most).toFixed(4)}`);
  return `M0 1${tops.join("")}H1V1Z`;
}

export interface TileProps {
  readonly head: HeadAt;
  readonly value: number | null;
  readonly most: number;
  readonly signed: boolean;
  readonly curve: Curve;
  readonly chosen: boolean;
  readonly beside: boolean;
  readonly faded: boolean;
  readonly first: boolean;
  readonly name: string;
  readonly sentence: string;
  readonly numbered: boolean;
  onChoose(beside: boolean): void;
}

export function Tile({ head, value, most, signed, curve, chosen, beside, faded, first, name, ...rest }: TileProps) {
  return (
    <button
      type="button"
      class="aw-atlas-tile"
      data-head={`${head.layer}-${head.head}`}
      data-chosen={chosen || undefined}
      data-beside={beside || undefined}
      data-faded={faded || undefined}
      aria-pressed={chosen}
      aria-label={`Layer ${head.layer}, head ${head.head}: ${rest.sentence} ${name} ${brief(value)}`}
      title={`Layer ${head.layer}, head ${head.head}\n${rest.sentence}\n${name} ${brief(value)}`}
      tabIndex={first ? 0 : -1}
      style={{ background: shade(value, most, signed) }}
      onClick={(event) => rest.onChoose(event.shiftKey)}
    >
      <svg viewBox="0 0 1 1" preserveAspectRatio="none" aria-hidden="true">
        <path d={area(curve)} />
      </svg>
      <span>{rest.numbered ? `${head.layer}·${head.head}` : brief(value)}</span>
    </button>
  );
}
