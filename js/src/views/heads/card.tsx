/** The card of the head under the pointer: every metric and its place among all heads. */

import { px } from "../../components/dom";
import { headWords, numbersIn } from "../../components/phrases";
import {
  cornerOf,
  type HeadMetric,
  type HeadsLayout,
  headsWith,
  metricOrNone,
  type StageHeads,
  type Survey,
  strongestOf,
} from "../../data/survey";
import type { Ui } from "../../state/ui";
import { count } from "../../text/format";

const WIDE = 290;
const ROW = 20;
const REST = 72; // of its height
const SLACK = 40; // beyond the pictures, over text

interface Props {
  readonly ui: Ui;
  readonly layout: HeadsLayout | null;
  readonly place: number;
  /** The scroll position of the pictures. */
  readonly scrolled: number;
}

/** Describe one head: all its metrics, next to the median of all heads. */
export function HeadCard({ ui, layout, place, scrolled }: Props) {
  const survey = ui.store.survey.value;
  const at = survey?.heads[place];
  if (layout === null || survey === null || at === undefined) return null;
  const layer = survey.layers[at.layer]!;
  const best = strongestOf(survey, place)?.metric;
  const shared = layer.groups < layer.heads ? Math.floor(at.head / (layer.heads / layer.groups)) : null;
  const shown = survey.metrics.filter(
    ({ name, high, values }) => name !== "masked_share" || (high > 0 && values[place]! > 0),
  );
  const unit = ui.unit.value;
  const known = survey.pictures[place] !== null;
  const isNarrow = ui.mode.value === "narrow";
  return (
    <div
      class="aw-head-card"
      style={
        isNarrow
          ? {}
          : placeOf(ui, layout, place, scrolled, ROW * shown.length + REST + (survey.ofStage ? ROW : 0), unit)
      }
    >
      <div class="aw-head-title">
        <b>
          Layer {at.layer} · {headWords(at.head, numbersIn(ui.store.facts.value, at.layer))}
        </b>
        <span>{isNarrow ? "tap to open" : "click to open"}</span>
      </div>
      {shared !== null && <div class="aw-head-shared">key/value head {shared}</div>}
      {survey.ofStage && <div class="aw-head-shared">sums over {overKeys(survey.ofStage)}</div>}
      {known ? (
        <div class="aw-head-metrics">
          {shown.map(({ name, word, kind, values, high, median }) => (
            <div class="aw-head-metric" key={name} data-best={name === best?.name || undefined}>
              <span>{word}</span>
              <Bar
                value={values[place]!}
                ends={endsOf(values, high)}
                median={survey.heads.length > 1 ? median : null}
              />
              <span>{metricOrNone(values[place]!, kind)}</span>
            </div>
          ))}
        </div>
      ) : (
        <div class="aw-head-shared">not computed yet</div>
      )}
      {known && survey.heads.length > 1 && (
        <div class="aw-head-median">
          <u /> {medianWords(survey, shown)}
        </div>
      )}
    </div>
  );
}

/** Not every head need have every metric, and not all need be known yet. */
function medianWords({ heads }: Survey, metrics: readonly HeadMetric[]): string {
  const [least, most] = [Math.min, Math.max].map((end) => end(...metrics.map(headsWith)));
  if (least === heads.length) return `median of all ${count(heads.length)} heads`;
  return `median of the heads with a number: ${least === most ? "" : `${count(least!)} to `}${count(most!)}`;
}

/** The keys and query of a stage's sums: "the keys of query 9". */
export const overKeys = (ofStage: StageHeads | undefined) =>
  ofStage?.query == null ? "the keys, mean over the queries" : `the keys of query ${ofStage.query}`;

/** The start and end of a bar: from a center line, on one scale, if any head is below 0. */
function endsOf(values: ArrayLike<number>, high: number): { low: number; high: number } {
  const least = Array.from(values).reduce((least, value) => (value < least ? value : least), 0);
  const most = Math.max(high, -least);
  return { low: least < 0 ? -most : 0, high: most };
}

interface BarProps {
  readonly value: number;
  readonly ends: { readonly low: number; readonly high: number };
  /** Over all heads; null if no head has one. */
  readonly median: number | null;
}

function Bar({ value, ends: { low, high }, median }: BarProps) {
  const at = (value: number) => (value - low) / (high - low);
  const [from, to] = value < 0 ? [at(value), at(0)] : [at(0), at(value)];
  return (
    <i data-signed={low < 0 || undefined}>
      <i style={{ left: percent(from), width: percent(Math.min(1, to) - Math.max(0, from)) }} />
      {median !== null && <u style={{ left: percent(at(median)) }} />}
    </i>
  );
}

const percent = (share: number) => `${100 * Math.max(0, Math.min(1, Number.isFinite(share) ? share : 0))}%`;

/** Return how tall the card may get. */
export const tallest = (survey: Survey) => ROW * survey.metrics.length + REST + (survey.ofStage ? ROW : 0);

/** Below the head and on its right, or above it, or wherever there is room; inside the widget. */
function placeOf(ui: Ui, layout: HeadsLayout, place: number, scrolled: number, tall: number, unit: number) {
  const corner = cornerOf(layout, place);
  const room = ui.width.value;
  const wide = Math.min(WIDE * unit, room);
  const x = layout.left - layout.margin + corner.x - scrolled;
  const gap = 12 * unit;
  const y = layout.top + corner.y;
  const below = y + layout.size + gap;
  const above = y - gap - tall * unit;
  const inside = (at: number) =>
    Math.max(0, Math.min(at, Math.max(layout.left + layout.width, wide) - wide, room - wide));
  const bottom = layout.top + layout.height;
  if (below + tall * unit <= bottom + SLACK * unit) return { left: px(inside(x)), width: px(wide), top: px(below) };
  if (above >= -SLACK * unit) return { left: px(inside(x)), width: px(wide), bottom: `calc(100% - ${px(y - gap)})` };
  const right = x + layout.size + gap;
  const top = Math.max(0, Math.min(y, bottom - tall * unit));
  return { left: px(right + wide <= room ? right : Math.max(0, x - gap - wide)), width: px(wide), top: px(top) };
}
