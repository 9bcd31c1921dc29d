/** The legends of a comparison: one for A and B, one for their difference. */

import { px } from "../../components/dom";
import { countKinds, KindList, type Kinds, Ramp, ticksOf } from "../../components/legend";
import type { Picture } from "../../contract/decode";
import { largestOf, legendOf } from "../../contract/stages";
import type { Part, Places, ReadyComparison } from "../../data/comparison";
import { hasPadding } from "../../state/padding";
import type { Plot } from "../../state/plot";
import type { Store } from "../../state/store";
import type { Ui } from "../../state/ui";
import { count, percent } from "../../text/format";
import { GAP, isBeside } from "./layout";
import type { Grids, Mappers } from "./mappers";

interface LegendProps {
  readonly ui: Ui;
  /** The single picture that is shown, if any. */
  readonly only: Part | null;
  readonly plot: Plot;
  /** A, with its padding if known. */
  readonly padded: Picture | null;
  readonly comparison: ReadyComparison | null;
  readonly grids: Grids | null;
  readonly mappers: Mappers | null;
}

/** Draw both legends, or that of the single picture. */
export function Legend({ ui, plot, padded, only, comparison, grids, mappers }: LegendProps) {
  const { store } = ui;
  const at = plot.figure.value;
  const both = ui.paints.value;
  if (at === null || comparison === null || grids === null || mappers === null || both === null) return null;
  const { stage, pool } = comparison.of;
  const beside = isBeside(ui.mode.value);
  const columns = {
    paddingLeft: px(at.left),
    gridTemplateColumns: `repeat(3, ${px(at.width)})`,
    columnGap: px(GAP * ui.unit.value),
  };
  const scale = plot.scale.value;
  const pooled = scale !== null && scale.queries * scale.keys > 1;
  const cells = (n: number) => `${count(n)} ${pooled ? "pooled " : ""}${n === 1 ? "cell" : "cells"}`;
  const kinds = sumOf(countKinds(grids.a, mappers.a), countKinds(grids.b, mappers.b));
  const sides = mappers.a.signed ? both.diverging : both.sequential;
  const { sampled, grid } = comparison.pictures.a;
  const every = sampled?.every ?? 1;
  const exact = (sampled?.exact ?? 0) / Math.max(1, grid?.rows ?? 1);
  const bins = pooled && `${count(every > 1 ? 1 : scale.queries)} × ${count(scale.keys)} cells`;
  const range = store.color_range.value;
  const changes = comparison.pictures.change.low !== 0 || comparison.pictures.change.high !== 0;
  const left = onlyText(comparison, store);
  return (
    <div class="aw-compare-legend" data-beside={beside || undefined} style={beside ? columns : {}}>
      {only !== "change" && (
        <div class="aw-compare-key">
          <div class="aw-ramp">
            <span>
              {legendOf(stage, store.facts.value, store.batch.value)}
              {mappers.a.log ? ", log" : ""}
            </span>
            <Ramp paints={sides} ticks={ticksOf(mappers.a, stage)} mark={null} />
          </div>
        </div>
      )}
      <div class="aw-compare-key aw-kinds">
        <KindList {...{ kinds, stage, cells }} mapper={mappers.a} paints={sides} />
        {range === "row" && <span>each row has its own range, shared by A and B</span>}
        {pooled && (
          <span>
            A, B: the {pool === "max" ? largestOf(stage) : "mean"} of {bins}
          </span>
        )}
        {every > 1 && (
          <span>
            1 of {count(every)} rows{exact > 0 && `, ${percent(Math.floor(100 * exact) / 100)} of them exact so far`}
          </span>
        )}
        {padded !== null && hasPadding(store, padded) && (
          <span>
            <i class="aw-padded-swatch" />
            rows of padding{comparison.queries.differ > 0 ? " of A" : ""}
          </span>
        )}
        {left !== null && <span>{left}</span>}
        {comparison.hasSinks && <span>without the weight of learned sinks</span>}
      </div>
      {(only === null || only === "change") && (
        <div class="aw-compare-key">
          <div class="aw-ramp">
            <span>Change</span>
            {changes ? (
              <Ramp paints={both.diverging} ticks={ticksOf(mappers.change, stage)} mark={null} />
            ) : (
              <span>none</span>
            )}
          </div>
          {pooled && <div>the largest of {bins}</div>}
        </div>
      )}
    </div>
  );
}

function sumOf(one: Kinds, other: Kinds): Kinds {
  const sum = { ...one };
  for (const name of Object.keys(sum) as (keyof Kinds)[]) sum[name] += other[name];
  return sum;
}

/** What is not compared or not labeled: "left out, no counterpart: 2 queries of A, 3 of B". */
function onlyText({ queries, keys }: ReadyComparison, { facts }: Store): string | null {
  const some = (n: number, [one, many]: readonly [string, string], side: string) =>
    n > 0 ? [`${count(n)} ${n === 1 ? one : many} of ${side}`] : [];
  const text = (what: readonly [string, string], { only: [a, b] }: Places) => [
    ...some(a, what, "A"),
    ...some(b, what, "B"),
  ];
  const same = facts.value.queries === facts.value.keys && `${queries.only}` === `${keys.only}`;
  const said = same
    ? text(["token", "tokens"], queries)
    : [...text(["query", "queries"], queries), ...text(["key", "keys"], keys)];
  if (said.length > 0) return `left out, no counterpart: ${said.join(", ")}`;
  const other = Math.max(queries.differ, keys.differ);
  return other === 0 ? null : `labels from A: ${count(other)} differ${other === 1 ? "s" : ""} in B`;
}
