/** The ranked list: a query's keys, or a key's queries, strongest first, with exact numbers and sums. */

import { computed, type ReadonlySignal, type Signal, signal } from "@preact/signals-core";
import { isBySize, isSigned, wordsOf } from "../contract/stages";
import type { Side } from "../contract/values";
import type { Over } from "../data/matrix";
import { type Ranking, type SaidLink, saidLink, shortened } from "../data/rank";
import { isPadding } from "../state/padding";
import {
  type Combination,
  combinationSource,
  hasPairs,
  isRankingOf,
  type Ranked,
  type Strongest,
  stableComputed,
  strongestSource,
  type Unranked,
} from "../state/queries";
import { axisSegments, type BlockCells, blockCells } from "../state/segment-axes";
import type { Ui } from "../state/ui";
import { cellNumber, count, listNumber } from "../text/format";
import type { Label, Labels } from "../text/labels";
import { SINK, SINK_TITLE } from "../text/words";
import { BlockPanel, SegmentMark, showsBlock } from "./block-panel";
import { mount, part, Token, type View } from "./dom";
import { ErrorSaid } from "./findings";
import { GoTo, goToPlace } from "./goto";
import { headWords, isNamed, sentence } from "./phrases";
import { Named, placeText } from "./place";
import { type Pass, PassSlot, passOf } from "./progress";
import { RadioWords } from "./radio-words";
import { Without } from "./without";

/** The last pin alone, or all pins. */
type Choice = "last" | Over;
/** More pins than this are not combined. */
const MOST_PINS = 64;
/** Longer sequences have no room for all labels. */
const LABELLED = 64;

/** Return the panel next to a picture: what a row attends to, or what attends to a column, strongest first. */
export function panel(ui: Ui): View {
  const { store, kernel, stop } = ui;
  const choice = signal<Choice>("last");
  const pins = computed(() => {
    const side = ui.target.value?.side ?? "query";
    const places = store.shownPins.value.map((pin) => pin[side === "query" ? 0 : 1]).filter((index) => index !== null);
    return { side, indices: [...new Set(places)].slice(-MOST_PINS) };
  });
  const wanted = stableComputed<Combination>(() => {
    const over = choice.value;
    return over === "last" || pins.value.indices.length < 2 ? null : { ...pins.value, over };
  });
  const together = combinationSource(store, kernel, wanted, stop);
  const strongest = strongestSource(store, kernel, () => true, stop);
  const pass = passOf(ui);
  const cells = blockCells(store, kernel, stop);
  return mount(part("aw-panel", "panel"), () => (
    <Panel
      ui={ui}
      choice={choice}
      pins={pins.value.indices.length}
      together={wanted.value === null ? null : together.value}
      strongest={strongest.value}
      pass={pass.value}
      cells={cells}
    />
  ));
}

interface PanelProps {
  readonly ui: Ui;
  readonly choice: Signal<Choice>;
  readonly pins: number;
  /** All pins combined; null if only the last is ranked. */
  readonly together: Ranked | Unranked | null;
  readonly strongest: Strongest;
  readonly pass: Pass | null;
  /** The strongest cells of the pinned block. */
  readonly cells: ReadonlySignal<BlockCells>;
}

function Panel(props: PanelProps) {
  const { ui, pass, strongest } = props;
  const picture = ui.store.picture.value;
  const pooled = picture !== null && picture.queryBin * picture.keyBin > 1;
  const long = pooled || (picture !== null && Math.max(picture.queries, picture.keys) > LABELLED);
  const most = ui.mode.value === "narrow" ? 6 : pooled ? 7 : 12;
  const { queries, keys, has_sinks } = ui.store.facts.value;
  const rows = Math.min(most, Math.max(queries, keys)) + (has_sinks ? 2 : 1);
  return (
    <>
      {long && <div class="aw-panel-top" />}
      {long && <GoTo ui={ui} />}
      {pooled && <PassSlot ui={ui} pass={pass} />}
      <div class="aw-panel-list" data-stale={isStale(props) || undefined} style={{ "--aw-rows": `${rows}` }}>
        {showsBlock(ui) ? (
          <BlockPanel ui={ui} cells={props.cells} />
        ) : ui.target.value === null && picture !== null && hasPairs(picture) ? (
          <StrongestPairs ui={ui} pairs={strongest} />
        ) : (
          <List {...props} most={most} pooled={pooled} />
        )}
      </div>
      <Without ui={ui} />
    </>
  );
}

/** Whether the list still shows another row, column or head while its own is due. */
function isStale({ ui, together }: PanelProps): boolean {
  const ranked = together ?? ui.ranked.value;
  const target = ui.target.value;
  if (together !== null || ranked === null || "problem" in ranked || target === null) return false;
  return !isRankingOf(ranked, ui.store.picture.value, target);
}

/** The strongest links of a long head, which its picture cannot show. */
function StrongestPairs({ ui, pairs }: { ui: Ui; pairs: Strongest }) {
  const { queryLabels, keyLabels } = ui.store;
  const stage = ui.store.picture.value?.of.stage ?? "weights";
  return (
    <>
      <div class="aw-heading">
        {stage === "weights" ? "Strongest" : `Largest ${wordsOf(stage)}${isBySize(stage) ? " by size" : ""}`}, without
        the first token
      </div>
      {pairs === null ? (
        ui.store.picture.value?.sampled && <p class="aw-prompt">Available once the picture is exact.</p>
      ) : "problem" in pairs ? (
        <p class="aw-prompt">{sentence(pairs.problem)}</p>
      ) : (
        <ol class="aw-pairs" aria-label="Strongest pairs">
          {pairs.map(({ query, key, weight }) => (
            <li key={`${query} ${key}`}>
              <button type="button" class="aw-pair" onClick={() => goToPlace(ui, query, key)}>
                <span>
                  <PairPlace labels={queryLabels.value} index={query} /> <i>→</i>{" "}
                  <PairPlace labels={keyLabels.value} index={key} />
                </span>
                <span>{listNumber(weight, stage)}</span>
              </button>
            </li>
          ))}
        </ol>
      )}
    </>
  );
}

/** A token and its position, or its position alone. */
function PairPlace({ labels, index }: { labels: Labels; index: number }) {
  if (!isNamed(labels, index)) return <>{count(index)}</>;
  return (
    <>
      <bdi>{labels.at(index).text}</bdi> <i>{count(index)}</i>
    </>
  );
}

/** One link of a head in words, to show how a row reads. */
export function StrongestLink({ ui }: { ui: Ui }) {
  const { queryLabels, keyLabels, picture, facts } = ui.store;
  const [queries, keys] = [queryLabels.value, keyLabels.value];
  const isPadded = (query: number) => isPadding(ui.store, picture.value!, query);
  const isNoWord = ({ special, text }: Label) => special || !LETTER.test(text);
  const link =
    saidLink(picture.value, (query) => isPadded(query) || isNoWord(queries.at(query))) ??
    saidLink(picture.value, isPadded);
  if (link === null) return null;
  const { query, key, weight } = link;
  const { head } = picture.value!.of;
  const several = typeof head === "string" ? headWords(head, facts.value) : facts.value.across;
  const who = { labels: queries, index: query, side: "query" } as const;
  const nameOf = (index: number) => (isItself(link, index, queries, keys) ? "itself" : keyPart(keys, index));
  const apart = apartFrom(link, nameOf);
  const words = [
    ...(apart.length > 0 ? ["Apart from ", ...apart, ", ", who] : [{ ...who, opens: true }]),
    " looks most at ",
    nameOf(key),
    `, ${cellNumber(weight, "weights") || listNumber(weight, "weights")}${several ? ` (${several})` : ""}`,
  ];
  const spoken = words.map((word) => (typeof word === "string" ? word : placeText(word.labels, word.index, word.side)));
  return (
    <button type="button" class="aw-link-said" aria-label={spoken.join("")} onClick={() => goToPlace(ui, query, key)}>
      {words.map((word, at) => (typeof word === "string" ? word : <Named key={at} {...word} />))}
    </button>
  );
}

const LETTER = /[\p{L}\p{N}]/u;

type Word = string | Parameters<typeof Named>[0];

const keyPart = (labels: Labels, index: number): Word => ({ labels, index, side: "key" });

/** Whether a key is the query itself: the same token at the same position. */
function isItself({ query }: SaidLink, key: number, queries: Labels, keys: Labels): boolean {
  const isSamePlace = key === query && queries.length === keys.length;
  return isSamePlace && isNamed(keys, key) && keys.at(key).text === queries.at(query).text;
}

/** "[CLS]₀, itself and the sink": what the sentence sets apart. */
function apartFrom({ apart, query }: SaidLink, nameOf: (index: number) => Word): Word[] {
  const all = [
    ...(apart.first ? [nameOf(0)] : []),
    ...(apart.own ? [nameOf(query)] : []),
    ...(apart.sink ? [`the ${SINK}`] : []),
  ];
  return all.flatMap((one, at) => (at === 0 ? [one] : [at < all.length - 1 ? ", " : " and ", one]));
}

function List({ ui, choice, pins, together, most, pooled }: PanelProps & { most: number; pooled: boolean }) {
  const { store } = ui;
  const ranked = together ?? ui.ranked.value;
  const target = ui.target.value;
  if (target === null || ranked === null) {
    return (
      <>
        <div class="aw-panel-head" />
        {target === null && <p class="aw-prompt">Point at a row to see its keys. Click to pin it.</p>}
        {target === null && <ErrorSaid ui={ui} />}
        {target === null && together === null && <StrongestLink ui={ui} />}
      </>
    );
  }
  const { side, index } = ranked.of;
  const byQuery = side === "query";
  const own = (byQuery ? store.queryLabels : store.keyLabels).value;
  const others = (byQuery ? store.keyLabels : store.queryLabels).value;
  const pinned = (byQuery ? store.query : store.key).value === index;
  const chosen = byQuery ? store.key.value : store.query.value;
  const words = "problem" in ranked ? headline("weights", byQuery) : headline(ranked.stage, byQuery);
  return (
    <>
      <div class="aw-panel-head">
        {together !== null ? (
          <span class="aw-name">
            {pins} {byQuery ? "queries" : "keys"}
          </span>
        ) : (
          <span class={pinned ? "aw-pill" : "aw-name"}>
            {isNamed(own, index) ? "" : `${side} `}
            <Token labels={own} index={index} subscript />
          </span>
        )}
        <span>{together === null ? words : choice.value}</span>
        {pins > 1 && <OverPins choice={choice} />}
      </div>
      {"problem" in ranked ? (
        <p class="aw-prompt">{sentence(ranked.problem)}</p>
      ) : (
        <Ranks
          ranked={ranked}
          over={together === null ? "last" : choice.value}
          {...{ others, chosen, ui, most, pooled }}
        />
      )}
    </>
  );
}

/** The last pin, or the mean or sum over all pins. */
function OverPins({ choice }: { choice: Signal<Choice> }) {
  const choose = (value: Choice) => {
    choice.value = value;
  };
  return <RadioWords name="Over the pins" class="aw-over-pins" words={OVER} chosen={choice.value} choose={choose} />;
}

const OVER: Readonly<Record<Choice, string>> = { last: "last", mean: "mean", sum: "sum" };

function headline(stage: Ranked["stage"], byQuery: boolean): string {
  if (stage === "weights") return byQuery ? "attends to" : "is attended to by";
  return `${wordsOf(stage)} over its ${byQuery ? "keys" : "queries"}`;
}

interface RanksProps {
  readonly ranked: Ranked;
  readonly others: Labels;
  readonly chosen: number | null;
  readonly ui: Ui;
  readonly over: Choice;
  readonly most: number;
  /** In a long head, nearly all tokens repeat and many are masked, so less is shown of both. */
  readonly pooled: boolean;
}

const DIGIT = 6.4; // pixels of a position's digit, in the widest of common fonts

export function Ranks({ ranked, others, chosen, ui, over, most, pooled }: RanksProps) {
  const { of, stage } = ranked;
  const byQuery = of.side === "query";
  const ranking = shortened(ranked.ranking, most);
  const { top, values, rest, allowed, blocked, nan } = ranking;
  const sink = ranking.sink ?? null;
  const greatest = Math.max(...[...values, sink ?? 0].map(Math.abs).filter(Number.isFinite), 0);
  const above = sink === null ? -1 : values.filter((value) => value > sink).length; // keys before it in the list
  const select = (position: number) =>
    ui.store.select(byQuery ? { query: of.index, key: position } : { query: position, key: of.index });
  if (allowed === 0 && nan === 0) {
    const taken = sink === null ? "" : ", the sink has all its weight";
    return <p class="aw-prompt">{byQuery ? `Fully masked: its output is 0${taken}.` : "No query may attend to it."}</p>;
  }
  return (
    <>
      {nan > 0 && <NanNote count={nan} byQuery={byQuery} />}
      <ol
        class="aw-ranks"
        data-segments={marksOf(ui, byQuery ? "key" : "query") !== null || undefined}
        aria-label={headline(stage, byQuery)}
        style={{ "--aw-positions": Math.max(40, DIGIT * count(others.length - 1).length + 4) }}
      >
        {top.map((position, at) => (
          <>
            {at === above && <SinkRank {...{ stage, greatest }} value={sink as number} />}
            <Rank
              key={position}
              position={position}
              value={values[at] as number}
              isChosen={position === chosen}
              side={marksOf(ui, byQuery ? "key" : "query")}
              {...{ ui, stage, others, greatest, pooled, select }}
            />
          </>
        ))}
        {above >= top.length && <SinkRank {...{ stage, greatest }} value={sink as number} />}
        {(rest.count > 0 || blocked > 0) && (
          <Unlisted ranking={ranking} what={nounOf(byQuery)} weights={stage === "weights"} brief={pooled} />
        )}
      </ol>
      {stage === "weights" && nan === 0 && (
        <Sums
          ranking={ranking}
          byQuery={byQuery}
          brief={pooled || ui.mode.value === "narrow" || ui.mode.value === "beside"}
          title={sumTitle(byQuery, over, sink !== null)}
        />
      )}
    </>
  );
}

const nounOf = (byQuery: boolean) => (byQuery ? "keys" : "queries");

function NanNote({ count: nan, byQuery }: { count: number; byQuery: boolean }) {
  const noun = nan === 1 ? (byQuery ? "key" : "query") : nounOf(byQuery);
  return (
    <p class="aw-prompt" style={{ color: "var(--aw-bad)" }}>
      NaN in {count(nan)} {noun}: look for it in q{byQuery ? " of this query, or in k" : ", or in k of this key"}.
    </p>
  );
}

/** The side whose positions have marks in segment colors; null without segments. */
const marksOf = ({ store }: Ui, side: Side) => (axisSegments(store, side) === null ? null : side);

interface RankProps {
  readonly ui: Ui;
  /** Of the segments of these positions. */
  readonly side: Side | null;
  readonly position: number;
  readonly value: number;
  readonly isChosen: boolean;
  readonly stage: Ranked["stage"];
  readonly others: Labels;
  /** The largest number of the list, by size. */
  readonly greatest: number;
  readonly pooled: boolean;
  select(position: number): void;
}

function Rank({ ui, side, position, value, isChosen, stage, others, greatest, pooled, select }: RankProps) {
  const label = others.at(position);
  return (
    <li>
      <button type="button" class="aw-rank" aria-current={isChosen || undefined} onClick={() => select(position)}>
        {side !== null && <SegmentMark {...{ ui, side, position }} />}
        <span class="aw-position">{isNamed(others, position) && count(position)}</span>
        <span
          class={isChosen ? "aw-token aw-pill" : "aw-token"}
          data-special={label.special || undefined}
          title={label.text}
        >
          <Token labels={others} index={position} subscript={!pooled} />
        </span>
        <span class="aw-bar">
          <i style={barStyle(value, greatest, isSigned(stage))} />
        </span>
        <span class="aw-number">{listNumber(value, stage)}</span>
      </button>
    </li>
  );
}

/** The learned sink among the keys: it has no position and cannot be pinned. */
function SinkRank({ value, stage, greatest }: Pick<RankProps, "value" | "stage" | "greatest">) {
  return (
    <li class="aw-rank" title={SINK_TITLE}>
      <span class="aw-position" />
      <span class="aw-token aw-sink-name">{SINK}</span>
      <span class="aw-bar">
        <i style={barStyle(value, greatest, isSigned(stage))} />
      </span>
      <span class="aw-number">{listNumber(value, stage)}</span>
    </li>
  );
}

interface UnlistedProps {
  readonly ranking: Ranking;
  readonly what: string;
  readonly weights: boolean;
  readonly brief: boolean;
}

/** How many more there are, how many are masked, and the sum of those not listed. */
function Unlisted({ ranking: { rest, blocked }, what, weights, brief }: UnlistedProps) {
  const parts = [
    rest.count > 0 ? `${count(rest.count)} more ${what}` : "",
    blocked > 0 ? `${count(blocked)} masked` : "",
  ].filter(Boolean);
  return (
    <li class="aw-rank aw-rest">
      <span class="aw-token" title={parts.join(", ")}>
        {(brief ? parts.slice(0, 1) : parts).join(", ")}
      </span>
      {weights && rest.count > 0 && <span class="aw-number">{listNumber(rest.sum, "weights")}</span>}
    </li>
  );
}

interface SumsProps {
  readonly ranking: Ranking;
  readonly byQuery: boolean;
  readonly brief: boolean;
  /** The tooltip of the sum. */
  readonly title: string;
}

/** For a query, entropy and the number of keys that hold 90 %; for a key, its mean; and the sum. */
function Sums({ ranking, byQuery, brief, title }: SumsProps) {
  const { entropy, maxEntropy, allowed, ninety, sum } = ranking;
  const sink = ranking.sink ?? null;
  return (
    <div class="aw-sums">
      {byQuery ? (
        <>
          <div
            title={`Entropy ${entropy.toFixed(2)} of ${maxEntropy.toFixed(2)} bits: ${maxEntropy.toFixed(2)} would be uniform over ${count(allowed)} keys${sink === null ? "" : " and the sink"}`}
          >
            <span class="aw-sum-name">Entropy</span>
            <span>
              <b>{entropy.toFixed(2)}</b> of {maxEntropy.toFixed(2)} bits
            </span>
          </div>
          <div
            title={`${count(ninety)} of ${count(allowed)} keys hold 90 % of the weight${sink === null ? "" : " on keys"}`}
          >
            <span class="aw-sum-name">{brief || sink !== null ? "90 % in" : "90 % of weight in"}</span>
            <span>
              <b>{count(ninety)}</b> {ninety === 1 ? "key" : "keys"}
            </span>
          </div>
        </>
      ) : (
        <div title="The sum divided by the number of queries that may attend to it">
          <span class="aw-sum-name">Mean over {count(allowed)} queries</span>
          <span>
            <b>{listNumber(sum / allowed, "weights")}</b>
          </span>
        </div>
      )}
      <div title={title}>
        <span class="aw-sum-name">{sink === null ? "Sum" : "Sum + sink"}</span>
        <span>
          <b>{(sum + (sink ?? 0)).toFixed(4)}</b>
        </span>
      </div>
    </div>
  );
}

function barStyle(value: number, greatest: number, signed: boolean) {
  const share = Number.isFinite(value) ? (greatest > 0 ? (100 * Math.abs(value)) / greatest : 0) : 100;
  return {
    width: `${share}%`,
    minWidth: share > 0 ? "1px" : "0",
    ...(signed ? { background: value < 0 ? "var(--aw-below)" : "var(--aw-above)" } : {}),
  };
}

/** Numbers that were given need not sum to 1, and a fully masked row sums to 0: so the title says only what is summed. */
function sumTitle(byQuery: boolean, over: Choice, sink: boolean): string {
  const whose = { last: "this", mean: "the mean of the pinned", sum: "the sum of the pinned" }[over];
  if (!byQuery) return `The weight on ${whose} ${over === "last" ? "key" : "keys"}, over all queries`;
  const keys = `The weight of ${whose} ${over === "last" ? "query" : "queries"} on all keys`;
  return sink ? `${keys} and on the sink` : keys;
}
