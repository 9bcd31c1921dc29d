/** One query over its keys, strongest first, or one key over the queries that attend to it: exact numbers and sums. */

import { computed, type Signal, signal } from "@preact/signals-core";
import { count, listNumber } from "../format";
import { rank } from "../rank";
import { type HeadTarget, type Line, linesSource } from "../source";
import { isSigned, wordsOf } from "../stages";
import type { Labels } from "../tokens";
import type { Ui } from "../ui";
import { BLOCKED, NAN, NUMBER } from "../wire";
import { mount, part, rove, Token, type View } from "./dom";
import { isNamed } from "./words";

/** What the panel ranks where several places are pinned. */
type Over = "last" | "mean" | "sum";

export function panel(ui: Ui): View {
  const { store, kernel, stop } = ui;
  const over = signal<Over>("last");
  const pinned = computed<readonly HeadTarget[]>(() => {
    const side = ui.target.value?.side ?? "query";
    const places = store.shownPins.value.map((pin) => pin[side === "query" ? 0 : 1]).filter((index) => index !== null);
    const several = [...new Set(places)];
    return several.length > 1 ? several.map((index) => ({ side, index, head: store.head.value })) : [];
  });
  const stage = computed(() => store.picture.value?.of.stage ?? "weights");
  const lines = linesSource(store, kernel, pinned, stage, stop);
  return mount(part("aw-panel", "panel"), () => <Panel ui={ui} lines={lines.value} over={over} />);
}

interface PanelProps {
  readonly ui: Ui;
  /** Of all pinned places; none if there is only one. */
  readonly lines: readonly (Line | null)[];
  readonly over: Signal<Over>;
}

function Panel({ ui, lines, over }: PanelProps) {
  const { store } = ui;
  const several = lines.length > 1 && lines.every((line) => line !== null);
  const together = several && over.value !== "last" ? combine(lines as readonly Line[], over.value === "mean") : null;
  const line = together ?? ui.line.value;
  const target = ui.target.value;
  if (target === null || line === null) {
    return (
      <>
        <div class="aw-panel-head" />
        {target === null && <p class="aw-prompt">Point at a row to see its keys. Click to keep it.</p>}
      </>
    );
  }
  const byQuery = line.of.side === "query";
  const own = (byQuery ? store.queryLabels : store.keyLabels).value;
  const others = (byQuery ? store.keyLabels : store.queryLabels).value;
  const pinned = (byQuery ? store.query : store.key).value === line.of.index;
  const chosen = byQuery ? store.key.value : store.query.value;
  return (
    <>
      <div class="aw-panel-head">
        {together !== null ? (
          <span class="aw-name">
            {lines.length} {byQuery ? "queries" : "keys"}
          </span>
        ) : (
          <span class={pinned ? "aw-pill" : "aw-name"}>
            {isNamed(own, line.of.index) ? "" : `${line.of.side} `}
            <Token labels={own} index={line.of.index} subscript />
          </span>
        )}
        <span>{together === null ? headline(line, byQuery) : over.value}</span>
        {several && <OverPins over={over} />}
      </div>
      <Ranks line={line} over={together === null ? "last" : over.value} {...{ others, chosen, ui }} />
    </>
  );
}

/** The last pin, or the mean or sum over all of them. */
function OverPins({ over }: { over: Signal<Over> }) {
  const choices: readonly Over[] = ["last", "mean", "sum"];
  return (
    <span class="aw-over-pins" role="radiogroup" aria-label="Over the pins">
      {choices.map((choice, index) => (
        <button
          type="button"
          role="radio"
          key={choice}
          aria-checked={over.value === choice}
          tabIndex={over.value === choice ? 0 : -1}
          onClick={() => {
            over.value = choice;
          }}
          onKeyDown={(event) =>
            rove(event, index, choices.length, (at) => {
              over.value = choices[at] as Over;
            })
          }
        >
          {choice}
        </button>
      ))}
    </span>
  );
}

/** Several rows, or columns, as one: blocked where all are, NaN where any is. */
export function combine(lines: readonly Line[], mean: boolean): Line {
  const first = lines[0] as Line;
  const values = new Float32Array(first.values.length);
  const kinds = new Uint8Array(first.values.length);
  for (let i = 0; i < values.length; i++) {
    let sum = 0;
    let open = 0;
    let nan = false;
    for (const line of lines) {
      if (line.kinds[i] === BLOCKED) continue;
      open++;
      sum += line.values[i] as number;
      nan ||= line.kinds[i] === NAN;
    }
    values[i] = mean ? sum / lines.length : sum;
    kinds[i] = open === 0 ? BLOCKED : nan ? NAN : NUMBER;
  }
  return { of: first.of, stage: first.stage, values, kinds };
}

function headline(line: Line, byQuery: boolean): string {
  if (line.stage === "weights") return byQuery ? "attends to" : "is attended to by";
  return `${wordsOf(line.stage)} over its ${byQuery ? "keys" : "queries"}`;
}

interface RanksProps {
  readonly line: Line;
  readonly others: Labels;
  readonly chosen: number | null;
  readonly ui: Ui;
  readonly over: Over;
}

function Ranks({ line, others, chosen, ui, over }: RanksProps) {
  const most = ui.mode.value === "narrow" ? 6 : 12;
  const { store } = ui;
  const byQuery = line.of.side === "query";
  const weights = line.stage === "weights";
  const what = byQuery ? "keys" : "queries";
  const ranking = rank(line.values, line.kinds, most);
  const { top, rest, allowed, blocked, nan } = ranking;
  const greatest = Math.max(...top.map((position) => Math.abs(line.values[position]!)).filter(Number.isFinite), 0);
  const select = (position: number) =>
    store.select(byQuery ? { query: line.of.index, key: position } : { query: position, key: line.of.index });
  if (allowed === 0 && nan === 0) {
    return <p class="aw-prompt">{byQuery ? "Nothing allowed: its output is 0." : "No query may attend to it."}</p>;
  }
  return (
    <>
      {nan > 0 && (
        <p class="aw-prompt" style={{ color: "var(--aw-bad)" }}>
          NaN in {count(nan)} {nan === 1 ? what.replace(/ies$/, "y").replace(/s$/, "") : what}: look for it in q
          {byQuery ? " of this query, or in k" : ", or in k of this key"}.
        </p>
      )}
      <ol class="aw-ranks" aria-label={headline(line, byQuery)}>
        {top.map((position) => {
          const value = line.values[position]!;
          const label = others.at(position);
          const isChosen = position === chosen;
          return (
            <li key={position}>
              <button
                type="button"
                class="aw-rank"
                aria-current={isChosen || undefined}
                onClick={() => select(position)}
              >
                <span class="aw-position">{isNamed(others, position) && count(position)}</span>
                <span
                  class={isChosen ? "aw-token aw-pill" : "aw-token"}
                  data-special={label.special || undefined}
                  title={label.text}
                >
                  <Token labels={others} index={position} subscript />
                </span>
                <span class="aw-bar">
                  <i style={barStyle(value, greatest, isSigned(line.stage))} />
                </span>
                <span class="aw-number">{listNumber(value, line.stage)}</span>
              </button>
            </li>
          );
        })}
        {(rest.count > 0 || blocked > 0) && (
          <li class="aw-rank aw-rest">
            <span class="aw-token">
              {[
                rest.count > 0 ? `${count(rest.count)} more ${what}` : "",
                blocked > 0 ? `${count(blocked)} masked` : "",
              ]
                .filter(Boolean)
                .join(", ")}
            </span>
            {weights && rest.count > 0 && <span class="aw-number">{listNumber(rest.sum, "weights")}</span>}
          </li>
        )}
      </ol>
      {weights && nan === 0 && (
        <div class="aw-sums">
          {byQuery ? (
            <>
              <div
                title={`Entropy ${ranking.entropy.toFixed(2)} of ${ranking.maxEntropy.toFixed(2)} bits: ${ranking.maxEntropy.toFixed(2)} would be uniform over ${count(allowed)} keys`}
              >
                <span class="aw-sum-name">Entropy</span>
                <span>
                  <b>{ranking.entropy.toFixed(2)}</b> of {ranking.maxEntropy.toFixed(2)} bits
                </span>
              </div>
              <div title={`${count(ranking.ninety)} of ${count(allowed)} keys hold 90 % of the weight`}>
                <span class="aw-sum-name">{ui.mode.value === "narrow" ? "90 % in" : "90 % of weight in"}</span>
                <span>
                  <b>{count(ranking.ninety)}</b> {ranking.ninety === 1 ? "key" : "keys"}
                </span>
              </div>
            </>
          ) : (
            <div title="The mean weight that a query which may attend to this key gives it">
              <span class="aw-sum-name">Mean over {count(allowed)} queries</span>
              <span>
                <b>{listNumber(ranking.sum / allowed, "weights")}</b>
              </span>
            </div>
          )}
          <div title={sumTitle(byQuery, over)}>
            <span class="aw-sum-name">Sum</span>
            <span>
              <b>{ranking.sum.toFixed(4)}</b>
            </span>
          </div>
        </div>
      )}
    </>
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

function sumTitle(byQuery: boolean, over: Over): string {
  if (!byQuery) return "The weight that this key receives from all queries";
  return over === "sum" ? "The weights of each pinned query sum to 1" : "The weights of a query sum to 1";
}
