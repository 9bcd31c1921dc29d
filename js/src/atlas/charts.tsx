/** Small charts of a card: curves by distance and position, and a distribution over texts. */

import { brief, type Distribution } from "./contents";
import { area } from "./tile";

export interface CurveProps {
  readonly title: string;
  readonly about: string;
  readonly values: readonly (number | null)[];
  readonly names: readonly string[];
}

/** A curve with the name and number of the bin under the pointer. */
export function Curve({ title, about, values, names }: CurveProps) {
  const most = Math.max(0, ...values.map((value) => value ?? 0));
  const ticks = [0, Math.floor(values.length / 2), values.length - 1];
  return (
    <figure class="aw-atlas-chart">
      <figcaption title={about}>
        {title} <span class="aw-muted">up to {brief(most)}</span>
      </figcaption>
      <div class="aw-atlas-plot" role="img" aria-label={`${title}: the largest is ${brief(most)}. ${about}`}>
        <svg viewBox="0 0 1 1" preserveAspectRatio="none" aria-hidden="true">
          <path d={area(values)} />
        </svg>
        <div class="aw-atlas-bins">
          {values.map((value, at) => (
            <i key={names[at]} title={`${names[at]}: ${value === null ? "no such pair" : brief(value)}`} />
          ))}
        </div>
      </div>
      <div class="aw-atlas-ticks">
        {ticks.map((at) => (
          <span key={at}>{names[at]}</span>
        ))}
      </div>
    </figure>
  );
}

/** Texts by the value of a metric. */
export function Histogram({ name, of }: { readonly name: string; readonly of: Distribution }) {
  const first = of.counts.findIndex((count) => count > 0);
  const last = of.counts.length - 1 - [...of.counts].reverse().findIndex((count) => count > 0);
  const [low, high] = [Math.max(0, first - 2), Math.min(of.counts.length - 1, last + 2)];
  const counts = of.counts.slice(low, high + 1);
  const names = counts.map((_, at) => `${brief(of.edges[low + at])} to ${brief(of.edges[low + at + 1])}`);
  const spread = of.std === null ? "" : ` ± ${brief(of.std)}`;
  return (
    <figure class="aw-atlas-chart">
      <figcaption>
        {name} in {of.n.toLocaleString("en")} text{of.n === 1 ? "" : "s"}{" "}
        <span class="aw-muted">
          {brief(of.mean)}
          {spread}
        </span>
      </figcaption>
      <div class="aw-atlas-plot" role="img" aria-label={`${name}: mean ${brief(of.mean)}${spread}`}>
        <svg viewBox="0 0 1 1" preserveAspectRatio="none" aria-hidden="true">
          <path d={area(counts)} />
        </svg>
        <div class="aw-atlas-bins">
          {counts.map((count, at) => (
            <i key={names[at]} title={`${names[at]}: ${count.toLocaleString("en")} texts`} />
          ))}
        </div>
      </div>
      <div class="aw-atlas-ticks">
        <span>{brief(of.least)}</span>
        <span>{brief(of.most)}</span>
      </div>
    </figure>
  );
}
