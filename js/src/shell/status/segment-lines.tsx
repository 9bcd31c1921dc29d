/** The status line for segments: the attention between two, and the loss without one. */

import type { ComponentChildren } from "preact";
import { headWords, numbersIn } from "../../components/phrases";
import { Place } from "../../components/place";
import { sumWord } from "../../contract/stages";
import { editWords } from "../../data/effects";
import { numberIn } from "../../data/matrix";
import { effectOf } from "../../state/effects";
import { blockNumber, blockReading, type PinnedSegment, pinnedSegment } from "../../state/segment-axes";
import type { Removal, SegmentReading, Ui } from "../../state/ui";
import { listNumber, statusNumber } from "../../text/format";
import { tokenName } from "../../text/tokens";
import { showsEffect } from "../../views/segments/words/menus";
import { nothingLeft } from "../../views/segments/words/numbers";
import { SegmentPlace } from "./place";

/** Return the segments to report in the heatmap: the one under the pointer, or the pinned ones if no cell is pinned. */
export function segmentsAt({ store, pointedSegment }: Ui): readonly (PinnedSegment | null)[] | null {
  if (store.view.value !== "heatmap") return null;
  const at = pointedSegment.value;
  if (at !== null) {
    const { name, path, start, stop } = at.node;
    const named = { name, path, spans: [{ start, stop }] };
    return at.side === "query" ? [named, null] : [null, named];
  }
  if (store.query.value !== null || store.key.value !== null) return null;
  const pinned = [pinnedSegment(store, "query"), pinnedSegment(store, "key")];
  return pinned.every((one) => one === null) ? null : pinned;
}

/** `answer 258–283 → doc 3 129–167   mass 0.244568`. */
export function BlockLine({ ui, at }: { ui: Ui; at: readonly (PinnedSegment | null)[] }) {
  const [query, key] = at;
  const reading = query && key && ui.pointedSegment.value === null ? blockReading(ui.store) : null;
  return (
    <>
      {query && <SegmentPlace segment={query} />}
      {query && key && " → "}
      {key && <SegmentPlace segment={key} />}
      {reading !== null && (
        <>
          {" "}
          <i class="aw-gap" />
          mass <b class="aw-exact">{blockNumber(reading.mass, reading, statusNumber)}</b>
        </>
      )}
    </>
  );
}

/** The attention from a token or segment to another: the mass (share of what is not excluded), and the weight. */
export function SegmentsLine({ ui }: { ui: Ui }) {
  const { store } = ui;
  if (ui.removed.value !== null) return <RemovedLine ui={ui} removed={ui.removed.value} />;
  const reading = ui.segmentReading.value;
  if (showsEffect(ui)) return <>click a segment or a head to see the loss without it</>;
  if (reading === null)
    return store.mass.value === null ? <>&nbsp;</> : <>click a column to pin a token and a segment</>;
  const { query, from, head, to, mass, raw, even, lift, perToken, isAside } = reading;
  const narrow = ui.mode.value === "narrow";
  const number = (name: string, value: number, exact = statusNumber(value)) => (
    <>
      <i class="aw-gap" />
      {name} <b class="aw-exact">{reading.exact ? exact : blockNumber(value, reading, String)}</b>
    </>
  );
  return (
    <>
      {head !== null && `${headWords(head.head, numbersIn(store.facts.value, head.layer))} of layer ${head.layer}, `}
      {query === null ? <b>{from}</b> : <Place labels={store.queryLabels.value} index={query} side="query" />} →{" "}
      <b>
        <bdi>{to}</bdi>
      </b>
      {reading.shares === false && <SummedNumbers {...{ ui, reading, number }} />}
      {reading.shares !== false && !isAside && Number.isNaN(mass) && (
        <>
          <i class="aw-gap" />
          {nothingLeft(raw)}
        </>
      )}
      {reading.shares !== false && (isAside || !Number.isNaN(mass)) && (
        <>
          {isAside ? number("excluded, weight", raw) : number("mass", mass)}
          {!isAside && store.measure.value === "per_token" && number("per token", perToken)}
          {!isAside && !narrow && mass !== raw && number("weight", raw)}
          {!isAside && !narrow && number("even", even, listNumber(even, "weights"))}
          {!isAside &&
            Number.isFinite(lift) &&
            number("lift", lift, lift >= 0.01 ? lift.toFixed(2) : statusNumber(lift))}
        </>
      )}
    </>
  );
}

/** The numbers of a stage other than the weights: a sum, without share and lift. */
function SummedNumbers(props: {
  ui: Ui;
  reading: SegmentReading;
  number: (name: string, value: number) => ComponentChildren;
}) {
  const { ui, reading, number } = props;
  const { mass, raw, perToken, isAside } = reading;
  const name = sumWord(ui.store.mass.value?.stage ?? "weights");
  return (
    <>
      {isAside ? number(`excluded, ${name}`, raw) : number(name, mass)}
      {!isAside && ui.store.measure.value === "per_token" && number("per token", perToken)}
    </>
  );
}

/** The loss without a segment or head: `without doc 3 → nail   log probability −0.207784 to −2.587604`. */
function RemovedLine({ ui, removed: { name, of, mass, lost } }: { ui: Ui; removed: Removal }) {
  const detail = effectOf(ui, of);
  const now = ui.store.effects.value;
  const [before, after] = editWords(now);
  const number = (value: number) => <b class="aw-exact">{statusNumber(value)}</b>;
  return (
    <>
      {before}{" "}
      <b>
        <bdi>{name}</bdi>
      </b>{" "}
      {after}{" "}
      {now?.target && (
        <>
          →{" "}
          <b>
            <bdi>{tokenName(now.target.text)}</bdi>
          </b>
        </>
      )}{" "}
      <i class="aw-gap" />
      {detail !== null && !detail.error && ui.mode.value !== "narrow" && (
        <>
          {now?.unit === "nats" && "log probability "}
          {number(numberIn(detail.before))} to {number(numberIn(detail.after))},{" "}
        </>
      )}
      {lost === null ? "not yet run" : Number.isNaN(lost) ? "cannot be run" : <>lost {number(lost)}</>}
      {!Number.isNaN(mass) && ui.mode.value !== "narrow" && (
        <>
          {" "}
          <i class="aw-gap" />
          mass {number(mass)}
        </>
      )}
    </>
  );
}
