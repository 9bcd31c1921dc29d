/** The status line over the columns next to a heatmap: the learned sink, and recall. */

import { rangeOf } from "../../components/phrases";
import { Place } from "../../components/place";
import type { Picture } from "../../contract/decode";
import { wordOf } from "../../contract/stages";
import { leastOf } from "../../data/recall";
import type { Span } from "../../geometry/viewport";
import type { Ui } from "../../state/ui";
import { statusNumber } from "../../text/format";
import { SINK } from "../../text/words";

/** Return the position in the sink's column under the pointer. */
export function sinkAt({ hover }: Ui) {
  const at = hover.value;
  return at !== null && "target" in at ? (at.sink ?? null) : null;
}

/** The weight of the learned sink for one query, or the maximum or mean of several. */
export function SinkLine({ ui, picture, queries, row }: { ui: Ui; picture: Picture; queries: Span; row: number }) {
  const { stage, pool } = picture.of;
  const one = queries.stop - queries.start === 1;
  return (
    <>
      {one ? (
        <Place labels={ui.store.queryLabels.value} index={queries.start} side="query" />
      ) : (
        <>
          queries <b>{rangeOf(queries)}</b>
        </>
      )}{" "}
      → {SINK} <i class="aw-gap" />
      {one ? wordOf(stage) : pool === "max" ? "maximum" : "mean"}{" "}
      <b class="aw-exact">{statusNumber(picture.sink?.[row] ?? Number.NaN)}</b>
    </>
  );
}

/** Return the position in the recall column under the pointer. */
export function recallAt({ hover }: Ui) {
  const at = hover.value;
  return at !== null && "target" in at ? (at.recall ?? null) : null;
}

/** The recall of one row, or the lowest of several. */
export function RecallLine({ ui, queries }: { ui: Ui; queries: Span }) {
  const recall = ui.store.recall.value;
  const found = recall === null ? Number.NaN : leastOf(recall, queries.start, queries.stop);
  return (
    <>
      {queries.stop - queries.start === 1 ? (
        <Place labels={ui.store.queryLabels.value} index={queries.start} side="query" />
      ) : (
        <>
          queries <b>{rangeOf(queries)}</b>, lowest
        </>
      )}{" "}
      <i class="aw-gap" />
      recall <b class="aw-exact">{Number.isNaN(found) ? "none" : statusNumber(found)}</b>
      {Number.isNaN(found) && (recall !== null && recall.share < 1 ? ", not known yet" : ", fully masked")}
    </>
  );
}
