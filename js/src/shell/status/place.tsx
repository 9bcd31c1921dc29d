import { rangeOf } from "../../components/phrases";
import { Place } from "../../components/place";
import { isRankingOf } from "../../state/queries";
import { axisSegments, type PinnedSegment, segmentAt } from "../../state/segment-axes";
import type { Ui } from "../../state/ui";
import { count, statusNumber } from "../../text/format";
import { SINK } from "../../text/words";

/** The pinned query, key or both, without a number. */
export function Pinned({ ui }: { ui: Ui }) {
  const { store } = ui;
  const [query, key] = [store.query.value, store.key.value];
  if (query === null && key === null) return <>&nbsp;</>;
  return (
    <>
      {query !== null && <Place labels={store.queryLabels.value} index={query} side="query" always />}
      {query !== null && key !== null && " → "}
      {key !== null && <Place labels={store.keyLabels.value} index={key} side="key" always />}
      {key === null && <PinnedSink ui={ui} />}
    </>
  );
}

/** The weight of the learned sink for a query that is pinned without a key. */
function PinnedSink({ ui }: { ui: Ui }) {
  const ranked = ui.ranked.value;
  const query = ui.store.query.value;
  if (query === null || ranked === null || "problem" in ranked) return null;
  if (!isRankingOf(ranked, ui.store.picture.value, { side: "query", index: query })) return null;
  if (ranked.stage !== "weights" || ranked.ranking.sink == null) return null;
  return (
    <>
      <i class="aw-gap" />
      {SINK} <b class="aw-exact">{statusNumber(ranked.ranking.sink)}</b>
    </>
  );
}

export function SegmentPlace({ segment: { name, spans } }: { segment: PinnedSegment }) {
  const tokens = spans.reduce((sum, { start, stop }) => sum + stop - start, 0);
  return (
    <>
      <b>
        <bdi>{name}</bdi>
      </b>{" "}
      {spans.length === 1 ? rangeOf(spans[0]!) : `${count(tokens)} tokens in ${count(spans.length)} places`}
    </>
  );
}

/** The segment of a key, added to its place in the heatmap; nothing without segments. */
export function KeySegment({ ui, index }: { ui: Ui; index: number }) {
  if (ui.store.view.value !== "heatmap") return null;
  const found = segmentAt(axisSegments(ui.store, "key"), index);
  return found === null ? null : (
    <>
      , <bdi>{found.node.name}</bdi>
    </>
  );
}
