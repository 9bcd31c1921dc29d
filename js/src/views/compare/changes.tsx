/** The changes of a query over its keys, or of a key over its queries: A hollow, B solid, and the numbers. */

import type { JSX } from "preact";
import { px, Token } from "../../components/dom";
import { isNamed } from "../../components/phrases";
import { wordsOf as manyOf } from "../../contract/stages";
import type { Stage } from "../../contract/values";
import {
  axisTicks,
  type ChangeRow,
  type Changes,
  changesIn,
  mostChanged,
  type PairChange,
  type ReadyComparison,
} from "../../data/comparison";
import { count, listNumber, signed } from "../../text/format";
import type { Labels } from "../../text/labels";
import { type PlaceSpace, MOST_LISTED as ROWS } from "./place-space";

const ABSENT = "The changes of a query in a long head need a running kernel.";
const NARROW_ROWS = 9;
const ROW = 22;
const LETTERS = { a: "A", b: "B" } as const;
const SIDES = ["a", "b"] as const;

interface ChangeListProps {
  readonly ui: PlaceSpace;
  readonly comparison: ReadyComparison | null;
  /** The first position of padding among the queries. */
  readonly padding: number | null;
}

/** List the changes at the pin or under the pointer; otherwise, the largest differences. */
export function ChangeList({ ui, comparison, padding }: ChangeListProps) {
  const { store } = ui;
  if (comparison === null) return <div style={{ minHeight: px(ROW * (ROWS + 4) * ui.unit.value) }} />;
  const most = ui.mode.value === "narrow" ? NARROW_ROWS : ROWS;
  const [query, key] = [store.query.value, store.key.value];
  const target = ui.target.value;
  const pinned = query !== null || key !== null || ui.lost.value;
  const found = pinned
    ? ofPin(ui, comparison)
    : target === null
      ? null
      : changesIn(comparison, target.side, target.index);
  const rows = Math.min(most, Math.max(comparison.queries.length, comparison.keys.length)) + 1;
  // The line for what only one side has is always kept free.
  const only = Math.max(...[comparison.queries, comparison.keys].map((one) => one.only.filter(Boolean).length));
  const pairs = found === null ? pairsOf(ui, comparison, padding, rows - 2) : [];
  const absent = ui.kernel.away.value && !comparison.pictures.change.exact;
  const isRoomKept = found !== null || pairs.length > 0 || (!absent && isComing(ui, comparison));
  return (
    <div
      style={{
        minHeight: isRoomKept ? px(ROW * (rows + 3 + only) * ui.unit.value) : "",
        maxWidth: ui.extent.value === null ? "" : px(ui.extent.value),
      }}
    >
      {found !== null && <List ui={ui} found={found} pinned={pinned} most={most} comparison={comparison} />}
      {pairs.length > 0 && <Pairs ui={ui} pairs={pairs} comparison={comparison} padding={padding} />}
      {found === null && <p class="aw-prompt">{absent ? ABSENT : whyNothing(ui, pinned, comparison)}</p>}
    </div>
  );
}

/** Return the largest differences, unless a pin is to be listed; null if not known. */
function pairsOf(
  { store, lost, largest }: PlaceSpace,
  of: ReadyComparison,
  padding: number | null,
  most: number,
): readonly PairChange[] {
  if (store.query.value !== null && !lost.value) return [];
  if (of.pictures.change.exact) return mostChanged(of, padding ?? of.queries.length, most);
  return (largest.value ?? []).filter((one) => isOfSame(one.of, of)).slice(0, most);
}

/** Whether a list is still due: for a pin, or for the largest differences of two long heads. */
function isComing({ store, lost, largest }: PlaceSpace, of: ReadyComparison): boolean {
  if (store.query.value !== null && !lost.value) return true;
  const { exact, sampled } = of.pictures.change;
  return !exact && (sampled !== null || largest.value === null || largest.value.some((one) => !isOfSame(one.of, of)));
}

const isOfSame = (one: ReadyComparison, other: ReadyComparison) =>
  JSON.stringify([one.of, one.against, one.againstAt]) === JSON.stringify([other.of, other.against, other.againstAt]);

/** Python's answer for the pin; until it arrives, the pictures' numbers. */
function ofPin({ store, lost }: PlaceSpace, comparison: ReadyComparison): Changes | null {
  const [query, key, said] = [store.query.value, store.key.value, store.changes.value];
  if (lost.value || said === null) return said;
  const { layer, batch, head } = comparison.of;
  const pin = [query === null ? null : comparison.queries.a(query), key === null ? null : comparison.keys.a(key)];
  const of = [layer, batch, head, comparison.against, String(comparison.againstAt), ...pin];
  const { of: its } = said;
  const same = [its.layer, its.batch, its.head, its.against, String(its.againstAt), said.query, said.key];
  if (of.every((part, at) => part === same[at])) return said;
  return (query !== null ? changesIn(comparison, "query", query) : changesIn(comparison, "key", key ?? 0)) ?? said;
}

function whyNothing({ store, lost, refusal }: PlaceSpace, pinned: boolean, { of, pictures }: ReadyComparison): string {
  const { value: why } = refusal;
  if (!pinned && !pictures.change.exact && why !== "")
    return `The largest differences are not known here. ${why.charAt(0).toUpperCase()}${why.slice(1)}`;
  if (!pinned && pictures.change.exact && of.stage === "weights")
    return "Point at a row to see its changes. Click to pin it.";
  if (!pinned) return "Click a cell to see which weights of its query change.";
  if (lost.value) return "The pinned token has no counterpart on the other side. Pin another to see its changes.";
  if (store.query.value === null) return "The changes of a key in a long head are not listed. Pin a query instead.";
  return "";
}

interface ListProps {
  readonly ui: PlaceSpace;
  readonly found: Changes;
  readonly comparison: ReadyComparison;
  readonly pinned: boolean;
  readonly most: number;
}

function ticksOf(rows: readonly ChangeRow[]): number[] {
  const numbers = rows.flatMap(({ a, b }) => [a ?? 0, b ?? 0]).filter(Number.isFinite);
  return axisTicks(Math.max(...numbers, 0), Math.min(...numbers, 0));
}

/** The keys of a query, or the queries of a key: A hollow, B solid, and the numbers. */
export function List({ ui, found, comparison, pinned, most }: ListProps) {
  const { store } = ui;
  const byQuery = found.side === "query";
  const own = byQuery ? comparison.queries.of(found.query ?? -1) : comparison.keys.of(found.key ?? -1);
  const chosen = byQuery ? store.key.value : store.query.value;
  const first = found.rows.slice(0, most);
  const kept = found.rows.find(({ place }, at) => place === chosen && at >= most);
  const rows = kept === undefined ? first : [...first.slice(0, -1), kept];
  const ticks = ticksOf(rows);
  const select = (place: number) =>
    own === null ? undefined : store.select(byQuery ? { query: own, key: place } : { query: place, key: own });
  return (
    <>
      <ListHead ui={ui} found={found} own={own} pinned={pinned} />
      <AxisHead ticks={ticks} />
      <ol class="aw-change-list" aria-label={wordsOf(found.side)}>
        {rows.map((row) => (
          <Change
            key={row.place}
            row={row}
            labels={(byQuery ? store.keyLabels : store.queryLabels).value}
            chosen={row.place === chosen}
            ticks={ticks}
            select={select}
          />
        ))}
        <Rest found={found} left={found.rows.filter((row) => !rows.includes(row))} />
      </ol>
    </>
  );
}

interface PairsProps {
  readonly ui: PlaceSpace;
  readonly pairs: readonly PairChange[];
  readonly comparison: ReadyComparison;
  readonly padding: number | null;
}

/** The largest differences; in a long head with rounded cells, the exact numbers of the likely largest ones. */
export function Pairs({ ui: { store }, pairs, comparison, padding }: PairsProps) {
  const { of, against } = comparison;
  const [queries, keys] = [store.queryLabels.value, store.keyLabels.value];
  const ticks = ticksOf(pairs);
  return (
    <div class="aw-change-pairs" data-long={of.stage !== "weights" || undefined}>
      <div class="aw-changes-head">
        <span>{titleOf(comparison, padding)}</span>
        <SideNames store={store} against={against} />
      </div>
      <AxisHead ticks={ticks} />
      <ol class="aw-change-list" aria-label="Where they differ most">
        {pairs.map((row) => (
          <Change
            key={`${row.query} ${row.place}`}
            row={row}
            stage={of.stage}
            labels={keys}
            from={
              <>
                <Token labels={queries} index={row.query} subscript /> →{" "}
              </>
            }
            ticks={ticks}
            select={() => store.select({ query: row.query, key: row.place })}
          />
        ))}
      </ol>
    </div>
  );
}

function titleOf({ of, pictures, queries }: ReadyComparison, padding: number | null): string {
  const { exact, sampled, queryBin, keyBin } = pictures.change;
  const many = of.stage === "weights" ? "" : manyOf(of.stage);
  const without = padding !== null && padding < queries.length ? ", without rows of padding" : "";
  if (exact) return `${many === "" ? "Where they differ most" : `Where their ${many} differ most`}${without}`;
  const found = ["Some of the largest differences", many && ` of ${many}`, sampled === null ? "" : " so far"].join("");
  return queryBin * keyBin === 1 ? found : `${found}, one per ${count(queryBin)} × ${count(keyBin)} cells`;
}

const wordsOf = (side: Changes["side"]) => (side === "query" ? "attends to" : "is attended to by");

interface ListHeadProps {
  readonly ui: PlaceSpace;
  readonly found: Changes;
  /** The place of the list; null if the other side has none. */
  readonly own: number | null;
  readonly pinned: boolean;
}

/** The heading of a list: whose changes it shows, and the names of A and B. */
function ListHead({ ui: { store }, found, own, pinned }: ListHeadProps) {
  const labels = (found.side === "query" ? store.queryLabels : store.keyLabels).value;
  return (
    <div class="aw-changes-head">
      {own !== null && (
        <span class={pinned ? "aw-pill" : "aw-name"}>
          {isNamed(labels, own) ? "" : `${found.side} `}
          <Token labels={labels} index={own} subscript />
        </span>
      )}
      <span>{wordsOf(found.side)}</span>
      <SideNames store={store} against={found.of.against} />
    </div>
  );
}

function SideNames({ store, against }: { store: PlaceSpace["store"]; against: string }) {
  const names = { a: store.sides.value?.[0] ?? "A", b: against };
  return (
    <span class="aw-changes-sides">
      {SIDES.map((side) => (
        <span key={side}>
          <i class="aw-dot" data-side={side} />
          <bdi title={names[side]}>
            {names[side] === LETTERS[side] ? LETTERS[side] : `${LETTERS[side]} ${names[side]}`}
          </bdi>
        </span>
      ))}
    </span>
  );
}

function AxisHead({ ticks }: { ticks: readonly number[] }) {
  return (
    <div class="aw-change aw-change-top">
      <span />
      <span class="aw-change-plot">
        {ticks.map((tick) => (
          <span class="aw-value" key={tick} style={{ left: `${along(tick, ticks)}%` }}>
            {tickText(tick)}
          </span>
        ))}
      </span>
      <span>A</span>
      <span>B</span>
      <span>B − A</span>
    </div>
  );
}

interface ChangeProps {
  readonly row: ChangeRow;
  /** The stage of the numbers; weights if omitted. */
  readonly stage?: Stage;
  readonly labels: Labels;
  readonly chosen?: boolean;
  /** The text before the token. */
  readonly from?: JSX.Element;
  readonly ticks: readonly number[];
  select(place: number): void;
}

function Change({ row, stage = "weights", labels, chosen, from, ticks, select }: ChangeProps) {
  const { text, special } = labels.at(row.place);
  return (
    <li>
      <button type="button" class="aw-change" aria-current={chosen || undefined} onClick={() => select(row.place)}>
        <span
          class={chosen ? "aw-token aw-pill" : "aw-token"}
          data-special={(special && !from) || undefined}
          title={text}
        >
          {from}
          <Token labels={labels} index={row.place} subscript />
        </span>
        <Dumbbell row={row} ticks={ticks} />
        <span>{numberOf(row.a, stage)}</span>
        <span>{numberOf(row.b, stage)}</span>
        <span class="aw-number">{row.value === null ? "" : signed(row.value, stage)}</span>
      </button>
    </li>
  );
}

/** What the list leaves out: smaller weights, keys of one side only, keys masked on both sides. */
function Rest({ found, left }: { found: Changes; left: readonly ChangeRow[] }) {
  const { rest, only, masked, side } = found;
  const sums = { a: rest.a + sum(left, "a"), b: rest.b + sum(left, "b"), count: rest.count + left.length };
  return (
    <>
      {sums.count > 0 && (
        <li class="aw-change aw-rest">
          <span class="aw-token">
            {count(sums.count)} more {side === "query" ? "keys" : "queries"}
          </span>
          <span />
          <span>{listNumber(sums.a, "weights")}</span>
          <span>{listNumber(sums.b, "weights")}</span>
          <span class="aw-number">{signed(sums.b - sums.a)}</span>
        </li>
      )}
      {only?.map(
        (one, index) =>
          one.count > 0 && (
            <li class="aw-change aw-rest" key={LETTERS[SIDES[index]!]}>
              <span class="aw-token">
                {count(one.count)} only in {LETTERS[SIDES[index]!]}
              </span>
              <span />
              <span>{index === 0 ? listNumber(one.sum, "weights") : ""}</span>
              <span>{index === 1 ? listNumber(one.sum, "weights") : ""}</span>
              <span />
            </li>
          ),
      )}
      {masked > 0 && (
        <li class="aw-change aw-rest">
          <span class="aw-token">{count(masked)} masked in both</span>
        </li>
      )}
    </>
  );
}

const sum = (rows: readonly ChangeRow[], side: "a" | "b") => rows.reduce((total, row) => total + (row[side] ?? 0), 0);
const numberOf = (value: number | null, stage: Stage) =>
  value === null ? <i class="aw-masked">masked</i> : listNumber(value, stage);
const tickText = (value: number) =>
  String(value)
    .replace(/^(-?)0\./, "$1.")
    .replace("-", "−");
/** The position of a value between the first and last tick, in percent. */
const along = (value: number, ticks: readonly number[]) => {
  const [start, end] = [ticks[0]!, ticks.at(-1)!];
  return 100 * Math.min(1, Math.max(0, (value - start) / (end - start)));
};

/** A hollow, B solid, the change as a line between them; a slash at 0 for a masked side. */
function Dumbbell({ row, ticks }: { row: ChangeRow; ticks: readonly number[] }) {
  const [a, b] = [along(row.a ?? 0, ticks), along(row.b ?? 0, ticks)];
  const drawn = [row.a, row.b].every((value) => value === null || Number.isFinite(value));
  return (
    <span class="aw-change-plot">
      {ticks.map((tick) => (
        <i class="aw-change-tick" key={tick} style={{ left: `${along(tick, ticks)}%` }} />
      ))}
      {drawn && row.value !== null && (
        <>
          <i
            class="aw-change-line"
            data-down={row.value < 0 || undefined}
            style={{ left: `${Math.min(a, b)}%`, width: `${Math.abs(b - a)}%` }}
          />
          {SIDES.map((side) => (
            <i
              class={row[side] === null ? "aw-slash" : "aw-dot"}
              data-side={side}
              key={side}
              style={{ left: `${side === "a" ? a : b}%` }}
            />
          ))}
        </>
      )}
    </span>
  );
}
