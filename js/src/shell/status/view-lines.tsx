/** The status line of each view: the number under the pointer, or at the pin. */

import { headWords, numberOf, numbersIn, rangeOf } from "../../components/phrases";
import { Place } from "../../components/place";
import { BLOCKED, NUMBER, type Picture } from "../../contract/decode";
import { isSigned, wordOf } from "../../contract/stages";
import type { ExplainedPair } from "../../data/stage-data";
import { strongestOf } from "../../data/survey";
import { isPadding } from "../../state/padding";
import type { Reading } from "../../state/queries";
import type { Ui } from "../../state/ui";
import { count, statusNumber } from "../../text/format";
import { SINK } from "../../text/words";
import { KeySegment, Pinned } from "./place";

export const hints = ({ store }: Ui) => store.view.value === "text" || store.view.value === "image";

/** The pinned token or patch, and what a click does. */
export function Hint({ ui }: { ui: Ui }) {
  const { store } = ui;
  const pinned = (store.query.value ?? store.key.value) !== null;
  const what = store.view.value === "text" ? "token" : "patch";
  return (
    <>
      {pinned && <Pinned ui={ui} />}
      {pinned && <i class="aw-gap" />}
      click {pinned ? `another ${what}` : `a ${what}`} to pin it
    </>
  );
}

/** The link under the pointer; otherwise how to read the graph. */
export function GraphLine({ ui }: { ui: Ui }) {
  const { store } = ui;
  const at = ui.hover.value;
  const heads = store.drawnHeads.value;
  const several = store.facts.value.heads > 1;
  if (at !== null && "bin" in at && at.link) {
    return (
      <>
        <Place labels={store.queryLabels.value} index={at.bin.queries.start} side="query" /> →{" "}
        {at.bin.keys.start < store.facts.value.keys ? (
          <Place labels={store.keyLabels.value} index={at.bin.keys.start} side="key" />
        ) : (
          SINK
        )}
        <i class="aw-gap" />
        {several && ` ${headWords(at.link.head, store.facts.value)} `}
        {wordOf(store.linkedStage.value)} <b class="aw-exact">{statusNumber(at.link.weight)}</b>
      </>
    );
  }
  return (
    <>
      {(store.query.value ?? store.key.value) !== null && (
        <>
          <Pinned ui={ui} />
          <i class="aw-gap" />
        </>
      )}
      {heads.length > 1 && (
        <>
          {heads.length} heads
          <i class="aw-gap" />
        </>
      )}
      band width = {isSigned(store.linkedStage.value) ? "size of the " : ""}
      {wordOf(store.linkedStage.value)}
    </>
  );
}

/** The head under the pointer, else the selected one, with the metric in which it ranks best, 1 for the largest. */
export function HeadsLine({ ui }: { ui: Ui }) {
  const { store } = ui;
  const survey = store.survey.value;
  const at = ui.pointedHead.value ?? { layer: store.layer.value, head: store.head.value };
  const place = survey?.heads.findIndex(({ layer, head }) => layer === at.layer && head === at.head) ?? -1;
  const best = survey === null || place < 0 ? null : strongestOf(survey, place);
  return (
    <>
      <b>
        layer {at.layer} · {headWords(at.head, numbersIn(store.facts.value, at.layer))}
      </b>
      {best !== null && (
        <>
          <i class="aw-gap" />
          ranks best in <b>{best.metric.word.toLowerCase()}</b>: {count(best.rank)} of {count(best.of)}
        </>
      )}
    </>
  );
}

/** Both numbers of the pair under the pointer or at the pin, and their change; of several cells, the largest change. */
export function ChangeLine({ ui }: { ui: Ui }) {
  const { store } = ui;
  const changed = ui.change.value;
  if (changed === null) return <Pinned ui={ui} />;
  const { bin, query, key, value, of } = changed;
  const one = bin.queries.stop - bin.queries.start === 1 && bin.keys.stop - bin.keys.start === 1;
  const number = (side: number | null) => <b class="aw-exact">{side === null ? "masked" : statusNumber(side)}</b>;
  const [there, also] = [of.queries.b(query), of.keys.b(key)];
  const elsewhere = there !== of.queries.a(query) || also !== of.keys.a(key);
  return (
    <>
      {one ? "" : "largest of "}
      {one ? "" : `${count((bin.queries.stop - bin.queries.start) * (bin.keys.stop - bin.keys.start))} cells: `}
      <Place labels={store.queryLabels.value} index={of.queries.a(query)} side="query" /> →{" "}
      <Place labels={store.keyLabels.value} index={of.keys.a(key)} side="key" />
      {elsewhere && ` (in B ${count(there)} → ${count(also)})`}
      {bin.standsFor !== undefined && ` (1 of ${count(bin.standsFor)} rows)`} <i class="aw-gap" />A {number(changed.a)}{" "}
      <i class="aw-gap" />B {number(changed.b)}{" "}
      {value !== null && (
        <>
          <i class="aw-gap" />
          change{" "}
          <b class="aw-exact">
            {value > 0 ? "+" : ""}
            {statusNumber(value)}
          </b>
        </>
      )}
    </>
  );
}

/** The weight that the steps of the stages view lead to. */
export function PairWeight({ pair }: { pair: ExplainedPair }) {
  return (
    <>
      <i class="aw-gap" />
      {pair.allowed ? "weight " : ""}
      <b class="aw-exact">{pair.allowed ? statusNumber(pair.weight ?? Number.NaN) : "masked"}</b>
    </>
  );
}

export function Exact({ reading, picture, ui }: { reading: Reading; picture: Picture; ui: Ui }) {
  const { store } = ui;
  const { bin, value, kind } = reading;
  const stage = picture.of.stage;
  const one = bin.queries.stop - bin.queries.start === 1 && bin.keys.stop - bin.keys.start === 1;
  const number = kind === BLOCKED ? "masked" : kind === NUMBER ? statusNumber(value) : numberOf(value, kind, stage);
  if (one && bin.standsFor === undefined) {
    return (
      <>
        <Place labels={store.queryLabels.value} index={bin.queries.start} side="query" />
        {isPadding(store, picture, bin.queries.start) && ", padding"} →{" "}
        <Place labels={store.keyLabels.value} index={bin.keys.start} side="key" />
        <KeySegment ui={ui} index={bin.keys.start} /> <i class="aw-gap" />
        {kind === BLOCKED ? "" : `${wordOf(stage)} `}
        <b class="aw-exact">{number}</b>
      </>
    );
  }
  const row = bin.queries.stop - bin.queries.start === 1; // then only the key is reported
  return (
    <>
      {bin.standsFor !== undefined ? (
        <>
          row <b>{count(bin.queries.start)}</b> stands for {count(bin.standsFor)}
        </>
      ) : (
        <>
          {row ? "query" : "queries"} <b>{rangeOf(bin.queries)}</b>
        </>
      )}{" "}
      → keys <b>{rangeOf(bin.keys)}</b> <i class="aw-gap" />
      {kind === BLOCKED ? (
        <b class="aw-exact">all masked</b>
      ) : (
        <>
          maximum <b class="aw-exact">{number}</b> at {row ? "" : `query ${count(reading.query)}, `}key{" "}
          {count(reading.key)}
        </>
      )}
    </>
  );
}
