/** The exact number under the pointer, or at the pin, and what it was computed from; above it what needs saying. */

import { effect, type ReadonlySignal, signal } from "@preact/signals-core";
import type { ComponentChildren } from "preact";
import { mount, part, px, type View } from "../components/dom";
import { Mark, Message } from "../components/message";
import {
  drawnWords,
  headWords,
  isNamed,
  numberOf,
  numbersIn,
  rangeOf,
  showsCells,
  stackWords,
} from "../components/phrases";
import { BLOCKED, NUMBER, type Picture } from "../contract/decode";
import type { Facts } from "../contract/messages";
import { isSigned, sumWord, wordOf } from "../contract/stages";
import type { TraitName } from "../contract/traits";
import type { ViewName } from "../contract/values";
import { editWords } from "../data/effects";
import { hasLinksOf } from "../data/links";
import { numberIn } from "../data/matrix";
import { leastOf } from "../data/recall";
import { leftOf, levelsOf } from "../data/segments";
import type { ExplainedPair } from "../data/stage-data";
import { strongestOf } from "../data/survey";
import type { Span } from "../geometry/viewport";
import { effectOf } from "../state/effects";
import { isPadding } from "../state/padding";
import { isPinnedPair } from "../state/pinned-pair";
import { isRankingOf, type Reading } from "../state/queries";
import {
  axisSegments,
  blockNumber,
  blockReading,
  type PinnedSegment,
  pinnedSegment,
  segmentAt,
} from "../state/segment-axes";
import type { Removal, SegmentReading, Ui } from "../state/ui";
import { count, listNumber, statusNumber } from "../text/format";
import type { Labels } from "../text/labels";
import { tokenName } from "../text/tokens";
import { SINK } from "../text/words";
import { showsEffect } from "../views/segments/menus";

/**
 * Return the line below a view: the number under the pointer, and what it was computed from.
 *
 * While the kernel is busy it says so in the place of the latter, and keeps its height: an answer that takes long moves
 * nothing, neither when that is said nor when the answer comes.
 */
export function status(ui: Ui): View {
  const node = part("aw-status", "status");
  const isBusy = signal(false);
  const end = effect(() => {
    const now = ui.kernel.state.value === "waiting";
    node.style.minHeight = now ? px(node.offsetHeight) : "";
    isBusy.value = now;
  });
  const line = mount(node, () => <Status ui={ui} isBusy={isBusy} />);
  return {
    node,
    dispose() {
      end();
      line.dispose();
    },
  };
}

/** Say that the kernel is lost, and what Python would not take. */
export function notice(ui: Ui): View {
  return mount(part("aw-notices"), () => <Notice ui={ui} />);
}

function Notice({ ui }: { ui: Ui }) {
  const state = ui.kernel.state.value;
  const refused = ui.store.refused.value;
  const missing = ui.store.missing.value;
  const told = ui.told.value;
  const lacks = missing === null ? "" : ` ${missing}`;
  const message =
    told !== null ? (
      <Message sign="empty" title={told.title} text={told.text} />
    ) : state === "gone" ? (
      <Message
        sign="gone"
        title="The kernel is gone"
        text={`What you see is the last picture.${lacks} Run the cell again to compute more.`}
      />
    ) : state === "silent" ? (
      <Message
        sign="gone"
        title="No kernel answers"
        text={`You see what was saved.${lacks} If a cell is running, wait until it ends; else run this widget's cell to compute more.`}
      />
    ) : refused !== null && ui.store.facts.value.saved !== undefined ? (
      <Message sign="empty" title="Not in this file" text={refused} />
    ) : refused !== null ? (
      <Message sign="error" title="Python did not take this" text={refused} />
    ) : (
      failed(ui)
    );
  return message === null ? null : <div class="aw-notice">{message}</div>;
}

/** What each derived trait is to a reader. */
const DERIVED: Partial<Record<TraitName, string>> = {
  thumbnails: "small pictures of the heads",
  links: "links",
  stages: "stages",
  pair: "steps of the pinned pair",
  findings: "checks",
  deviation: "comparison with torch",
  changes: "changes of what is pinned",
};

/** What of this selection could not be computed; everything else is there. */
function failed({ store }: Ui) {
  const errors = Object.entries(store.errors.value ?? {});
  if (errors.length === 0) return null;
  const names = errors.map(([name]) => DERIVED[name as TraitName] ?? name);
  const reasons = new Set(errors.map(([, reason]) => reason));
  return <Message sign="empty" title={`Not computed: ${names.join(", ")}`} text={[...reasons].join("; ")} />;
}

/** What is shown, and what works: in one line, cut off where there is no room for all of it. */
function Busy({ ui }: { ui: Ui }) {
  const before = lastShown(ui);
  const running = "It is running another cell.";
  const still = before === null ? running : `You still see ${before}.`;
  const more = "Hover, zoom and pins work meanwhile.";
  return (
    <span
      class="aw-busy"
      role="status"
      title={`Waiting for the kernel. ${before === null ? "" : `${still} `}${running} ${more}`}
    >
      <Mark sign="waiting" />
      <b>Waiting for the kernel</b> {still} {ui.mode.value !== "narrow" && more}
    </span>
  );
}

/** Return what stands at the top of a picture that is another one's than was chosen: the line below may be out of sight. */
export function stillShown(ui: Ui): View {
  return mount(part("aw-still-slot"), () => {
    if (ui.kernel.state.value !== "waiting") return null;
    const before = lastShown(ui);
    const words = before !== null ? `Still showing ${before}` : lacksLinks(ui) ? "Waiting for the links" : null;
    if (words === null) return null;
    return (
      <span class="aw-still" aria-hidden="true" title="Waiting for the kernel. It is running another cell.">
        <Mark sign="waiting" /> {words}
      </span>
    );
  });
}

/** Whether a graph has no bands for a head because its links are due: those of another head are not drawn. */
function lacksLinks({ store }: Ui): boolean {
  const links = store.view.value === "graph" ? store.links.value : null;
  if (links === null) return false;
  const { layer, batch, direction, linkedStage } = store;
  const at = { layer: layer.value, batch: batch.value, side: direction.value, stage: linkedStage.value };
  return store.drawnHeads.value.some((head) => !hasLinksOf(links, { ...at, heads: [head] }));
}

/** The views that do not keep the last picture: all heads are there, or bands of the chosen ones alone. */
const NOT_LAST: readonly ViewName[] = ["heads", "graph"];

/** Whose picture still stands there while that of the selection is due; null where it is the selection's. */
function lastShown({ store }: Ui): string | null {
  const shown = (store.view.value === "segments" ? store.mass.value?.of : store.picture.value?.of) ?? null;
  if (shown === null || NOT_LAST.includes(store.view.value)) return null;
  const { layer, head, batch } = shown;
  if (layer === store.layer.value && head === store.head.value && batch === store.batch.value) return null;
  return placeWords(shown, headWords(head, store.facts.value), store.facts.value).join(" · ") || null;
}

/** Layer, sample and head, each where there are several. */
function placeWords(of: { layer: number; batch: number }, named: string, facts: Facts): string[] {
  return [
    facts.layers.length > 1 ? `layer ${of.layer}` : "",
    facts.batches > 1 ? `sample ${of.batch}` : "",
    facts.heads > 1 || facts.head_numbers ? named : "",
  ].filter(Boolean);
}

function Status({ ui, isBusy }: { ui: Ui; isBusy: ReadonlySignal<boolean> }) {
  const { store } = ui;
  const picture = store.picture.value;
  if (picture === null) return isBusy.value ? <Busy ui={ui} /> : null;
  const hovering = ui.hover.value !== null && "bin" in ui.hover.value;
  const explained = store.view.value === "stages" && !hovering ? store.pair.value : null;
  const pair = explained !== null && isPinnedPair(store, explained) ? explained : null;
  const reading = hovering ? ui.hovered.value : pair === null ? ui.pinned.value : null;
  const sink = sinkAt(ui);
  const recall = recallAt(ui);
  const segments = segmentsAt(ui);
  return (
    <>
      <span>
        {recall !== null ? (
          <RecallLine ui={ui} queries={recall} />
        ) : sink !== null ? (
          <SinkLine ui={ui} picture={picture} {...sink} />
        ) : store.view.value === "compare" ? (
          <ChangeLine ui={ui} />
        ) : store.view.value === "heads" ? (
          <HeadsLine ui={ui} />
        ) : store.view.value === "segments" ? (
          <SegmentsLine ui={ui} />
        ) : store.view.value === "graph" ? (
          <GraphLine ui={ui} />
        ) : segments !== null && reading === null ? (
          <BlockLine ui={ui} at={segments} />
        ) : reading === null ? (
          <>
            {hints(ui) ? <Hint ui={ui} /> : <Pinned ui={ui} />}
            {pair !== null && <PairWeight pair={pair} />}
          </>
        ) : (
          <Exact reading={reading} picture={picture} ui={ui} />
        )}
      </span>
      {isBusy.value ? <Busy ui={ui} /> : <span>{facts(ui, picture)}</span>}
    </>
  );
}

/** What of segments is to be said in the heatmap: the one that is pointed at, or those that are pinned while no cell is. */
function segmentsAt({ store, pointedSegment }: Ui): readonly (PinnedSegment | null)[] | null {
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
function BlockLine({ ui, at }: { ui: Ui; at: readonly (PinnedSegment | null)[] }) {
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

function SegmentPlace({ segment: { name, spans } }: { segment: PinnedSegment }) {
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

/** The segment of a key in the heatmap, as an addition to it; nothing where there are none. */
function KeySegment({ ui, index }: { ui: Ui; index: number }) {
  if (ui.store.view.value !== "heatmap") return null;
  const found = segmentAt(axisSegments(ui.store, "key"), index);
  return found === null ? null : (
    <>
      , <bdi>{found.node.name}</bdi>
    </>
  );
}

/** What the pointer is over in the column of the learned sink. */
function sinkAt({ hover }: Ui) {
  const at = hover.value;
  return at !== null && "target" in at ? (at.sink ?? null) : null;
}

/** What the pointer is over in the column of recall. */
function recallAt({ hover }: Ui) {
  const at = hover.value;
  return at !== null && "target" in at ? (at.recall ?? null) : null;
}

/** What a cache keeps of a row, or the least of several. */
function RecallLine({ ui, queries }: { ui: Ui; queries: Span }) {
  const recall = ui.store.recall.value;
  const found = recall === null ? Number.NaN : leastOf(recall, queries.start, queries.stop);
  return (
    <>
      {queries.stop - queries.start === 1 ? (
        <Place labels={ui.store.queryLabels.value} index={queries.start} side="query" />
      ) : (
        <>
          queries <b>{rangeOf(queries)}</b>, the least
        </>
      )}{" "}
      <i class="aw-gap" />
      recall <b class="aw-exact">{Number.isNaN(found) ? "none" : statusNumber(found)}</b>
      {Number.isNaN(found) && (recall !== null && recall.share < 1 ? ", not known yet" : ", it attends to nothing")}
    </>
  );
}

/** What a query gives to the learned sink, or the most or the mean of several. */
function SinkLine({ ui, picture, queries, row }: { ui: Ui; picture: Picture; queries: Span; row: number }) {
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

/** What a query that is pinned alone gives to the learned sink. */
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

const hints = ({ store }: Ui) => store.view.value === "text" || store.view.value === "image";

/** What is pinned in a running text or in an image, and what a click does. */
function Hint({ ui }: { ui: Ui }) {
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

/** The link under the pointer; else how the graph is to be read. */
function GraphLine({ ui }: { ui: Ui }) {
  const { store } = ui;
  const at = ui.hover.value;
  const heads = store.drawnHeads.value;
  const several = store.facts.value.heads > 1;
  const byQuery = ui.target.value?.side !== "key"; // what a key receives sums to anything
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
      {store.linkedStage.value === "weights" && heads.length > 1 && byQuery && ui.mode.value !== "narrow"
        ? ", each head sums to 1"
        : ""}
    </>
  );
}

/** The head that is pointed at, else the selected one, and what it does more than the others. */
function HeadsLine({ ui }: { ui: Ui }) {
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
          highest in <b>{best.metric.word.toLowerCase()}</b>, rank {count(best.rank)} of{" "}
          {count(survey?.heads.length ?? 0)}
        </>
      )}
    </>
  );
}

/** How much attention a token, or a segment, gives to another: its share of what is not set aside, and the weight. */
function SegmentsLine({ ui }: { ui: Ui }) {
  const { store } = ui;
  if (ui.removed.value !== null) return <RemovedLine ui={ui} removed={ui.removed.value} />;
  const reading = ui.segmentReading.value;
  if (showsEffect(ui)) return <>click a segment or a head to see what is lost without it</>;
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
      {reading.shares !== false && (
        <>
          {isAside ? number("set aside, weight", raw) : number("mass", mass)}
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

/** The sum of another stage than the weights: no share, and of no lift. */
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
      {isAside ? number(`set aside, ${name}`, raw) : number(name, mass)}
      {!isAside && ui.store.measure.value === "per_token" && number("per token", perToken)}
    </>
  );
}

/** What the model loses without a segment or a head: `without doc 3 → nail   log probability −0.207784 to −2.587604`. */
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

/** How much of the effects is known. */
function effectFacts({ store }: Ui): string {
  const { segments, heads } = store.effects.value!;
  const known = (lost: readonly unknown[]) => lost.filter((one) => one !== null).length;
  const part = (lost: readonly unknown[], what: string) =>
    known(lost) < lost.length
      ? `${count(known(lost))} of ${count(lost.length)} ${what}`
      : `${count(lost.length)} ${what} exact`;
  const { dtype, device } = store.facts.value;
  return [
    segments?.dropped,
    segments && part(segments.lost, "segments"),
    heads && part(heads.lost, "heads"),
    dtype,
    device,
  ]
    .filter(Boolean)
    .join(" · ");
}

/** What the masses are of. */
function segmentFacts({ store }: Ui, narrow: boolean): string {
  const now = store.mass.value;
  if (now === null || now.error !== null) return "";
  const { queries } = store.facts.value;
  const { columns } = leftOf(now.keys, store.aside.value ?? []);
  return [
    ...stackWords(store.facts.value),
    ...placeWords(now.of, headWords(now.of.head, store.facts.value), store.facts.value),
    `${count(now.total)} of ${count(queries)} queries`,
    `${count(columns.length)} ${columns.length === 1 ? "segment" : "segments"}`,
    narrow || columns.length === now.keys.length || now.stage !== "weights"
      ? ""
      : "mass is a share of what is not set aside",
  ]
    .filter(Boolean)
    .join(" · ");
}

/** `6 layers × 12 heads`, and their length where they have one. */
function allHeads(ui: Ui): string {
  const { facts, survey, sides, batch } = ui.store;
  const { dtype, device, batches } = facts.value;
  const layers = survey.value?.layers ?? [];
  const same = (of: (layer: (typeof layers)[number]) => number) => layers.every((one) => of(one) === of(layers[0]!));
  const [first] = layers;
  if (first === undefined) return "";
  const heads = same((layer) => layer.heads)
    ? `× ${first.heads} heads`
    : `, ${count(survey.value!.heads.length)} heads`;
  const square = same((layer) => layer.queries) && same((layer) => layer.keys);
  return [
    ...stackWords(facts.value),
    (sides.value?.length ?? 0) > 0 ? `A: ${sides.value![0]}` : "",
    `${layers.length} ${layers.length === 1 ? "layer" : "layers"} ${heads}`.replace(" ,", ","),
    batches > 1 ? `sample ${batch.value}` : "",
    square ? `${count(first.queries)} × ${count(first.keys)}` : "",
    dtype,
    device,
  ]
    .filter(Boolean)
    .join(" · ");
}

/** Both numbers of the pair under the pointer, or at the pin, and the change; of several cells of the largest change. */
function ChangeLine({ ui }: { ui: Ui }) {
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

/** What is pinned while there is no number to say: a query or a key alone. */
function Pinned({ ui }: { ui: Ui }) {
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

/** Of the stages view: the number that its steps lead to. */
function PairWeight({ pair }: { pair: ExplainedPair }) {
  return (
    <>
      <i class="aw-gap" />
      {pair.allowed ? "weight " : ""}
      <b class="aw-exact">{pair.allowed ? statusNumber(pair.weight ?? Number.NaN) : "masked"}</b>
    </>
  );
}

function Exact({ reading, picture, ui }: { reading: Reading; picture: Picture; ui: Ui }) {
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
  const row = bin.queries.stop - bin.queries.start === 1; // then only the key has to be said
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

/** A token with its position; where there are no tokens, "query 3". */
function Place(props: { labels: Labels; index: number; side: "query" | "key"; always?: boolean }) {
  const { labels, index, side, always } = props;
  const named = isNamed(labels, index);
  return (
    <>
      {(always || !named) && `${side} `}
      <b>
        <bdi>{labels.at(index).text}</bdi>
      </b>
      {named && ` ${count(index)}`}
    </>
  );
}

function facts(ui: Ui, picture: Picture): string {
  const { store } = ui;
  if (store.view.value === "heads") return allHeads(ui);
  if (store.view.value === "segments")
    return showsEffect(ui) ? effectFacts(ui) : segmentFacts(ui, ui.mode.value === "narrow");
  const { dtype, device, is_causal } = store.facts.value;
  const { head } = picture.of;
  const drawn = store.view.value === "graph" && store.drawnHeads.value.length > 1 ? store.drawnHeads.value : [head];
  const named = drawn.length > 1 ? drawnWords(drawn, store.facts.value) : headWords(drawn[0]!, store.facts.value);
  const cells = store.view.value === "heatmap" && isPooled(picture) && showsCells(ui);
  const sides = store.sides.value ?? [];
  const compares = store.view.value === "compare";
  return [
    ...stackWords(store.facts.value),
    sides.length > 0 && !compares ? `A: ${sides[0]}` : "",
    ...placeWords(picture.of, named, store.facts.value),
    `${count(picture.queries)} × ${count(picture.keys)}`,
    picture.ownKeys < picture.keys ? `${count(picture.ownKeys)} of ${count(picture.keys)} keys in use` : "",
    store.view.value === "heatmap" ? segmentCount(ui) : "",
    ...(cells ? ["exact"] : [is_causal ? "causal" : "", dtype, device, sampling(ui, picture)]),
  ]
    .filter(Boolean)
    .join(" · ");
}

/** `8 segments, 2 levels`. */
function segmentCount({ store }: Ui): string {
  const found = axisSegments(store, "query") ?? axisSegments(store, "key");
  if (found === null) return "";
  const { distinct, more } = found.segments;
  const [segments, levels] = [distinct.length, levelsOf(found.segments)];
  const words = `${count(segments)} ${segments === 1 ? "segment" : "segments"}${levels > 1 ? `, ${levels} levels` : ""}`;
  return more > 0 ? `${words}, ${count(more)} pieces not shown` : words;
}

const isPooled = ({ queryBin, keyBin }: Picture) => queryBin * keyBin > 1;

/** Whether the whole picture of a long head is exact; of a part of it the picture says so itself. */
function sampling({ store, window }: Ui, picture: Picture): string {
  if (!isPooled(picture) || window.value !== null || store.view.value !== "heatmap") return "";
  if (picture.sampled === null) return "exact";
  return `sampled: 1 of ${count(picture.sampled.every)} rows`;
}
