/** The ranked list next to the tokens: what the pinned token, or the whole answer, attends to. */

import { computed, effect, signal } from "@preact/signals-core";
import { mount, part, px, Token, type View } from "../../components/dom";
import { sumWord } from "../../contract/stages";
import { byLargest, largestSize, meanOf, rankAmong, sumOf } from "../../data/segments";
import { nameOf } from "../../data/survey";
import type { Measure as TextMeasure } from "../../draw/label-room";
import { segmentStyle } from "../../draw/segment-colors";
import { KernelError } from "../../kernel/kernel";
import { textMeasure } from "../../state/plot";
import { stableComputed } from "../../state/queries";
import { askKeys, type SegmentKeys } from "../../state/segment-queries";
import type { Ui } from "../../state/ui";
import { count, listNumber } from "../../text/format";
import { pinColumn } from "./input/pins";
import type { RestRow, SegmentsModel } from "./model";
import { asideNames, listNames } from "./words/names";
import { inWords, liftText, measureWord, readingText } from "./words/numbers";

const MOST = { narrow: 5, other: 12 } as const;
const MOST_KEYS = 64;
/** Keys below this share are only counted. */
const LEAST_KEY = 0.01;
const MOST_LISTED = 6;

interface Keys {
  readonly of: string;
  /** Or the reason why there are none. */
  readonly found: SegmentKeys | string;
}

/** Return the list: the measure of every segment, the keys of the pinned one, and its rank among all heads. */
export function listPart(ui: Ui, model: SegmentsModel): View {
  const keys = signal<Keys | null>(null);
  const wanted = stableComputed(() => {
    const now = model.mass.value;
    const [query, column] = [ui.store.query.value, model.pinned.value];
    if (now === null || query === null || model.token.value < 0 || column < 0) return null;
    return { id: now.id, query, column };
  });
  const end = effect(() => {
    const of = wanted.value;
    if (of === null || ui.kernel.away.value) return;
    const current = new AbortController();
    const mass = model.mass.peek()!;
    askKeys(ui.kernel, mass, { query: of.query, column: of.column, count: MOST_KEYS }, current.signal).then(
      (found) => {
        if (!current.signal.aborted) keys.value = { of: JSON.stringify(of), found };
      },
      (error: unknown) => {
        if (!current.signal.aborted && error instanceof KernelError) {
          keys.value = { of: JSON.stringify(of), found: error.message };
        }
      },
    );
    return () => current.abort();
  });
  const unfolded = computed(() =>
    wanted.value !== null && keys.value?.of === JSON.stringify(wanted.value) ? keys.value.found : null,
  );
  const textWide = textMeasure(ui);
  const view = mount(part("aw-seg-list", "panel"), () => (
    <List ui={ui} model={model} keys={unfolded.value} textWide={textWide.value} />
  ));
  return {
    node: view.node,
    dispose() {
      end();
      view.dispose();
    },
  };
}

/** The source of the attention: the pinned token, else the one under the pointer, else the whole segment. */
export function subjectOf(model: SegmentsModel): { token: number; row: RestRow | null } {
  const hovered = model.hover.value?.part === "tokens" ? (model.hover.value.token ?? -1) : -1;
  const token = model.token.value >= 0 ? model.token.value : hovered;
  return { token, row: token >= 0 ? model.tokenRow(token) : model.whole.value };
}

function List({
  ui,
  model,
  keys,
  textWide,
}: {
  ui: Ui;
  model: SegmentsModel;
  keys: Keys["found"] | null;
  textWide: TextMeasure;
}) {
  const now = model.mass.value;
  const { token, row } = subjectOf(model);
  if (now === null) return null;
  const position = token >= 0 ? now.positions[token] : undefined;
  const measure = model.measure.value;
  return (
    <>
      <div class="aw-panel-head">
        {position !== undefined ? (
          <span class={token === model.token.value ? "aw-pill" : "aw-name"}>
            <Token labels={ui.store.queryLabels.value} index={position} subscript />
          </span>
        ) : (
          <span class="aw-name">{inWords(now.asking)}</span>
        )}
        <span>{model.shares.value ? "attends to" : `${sumWord(now.stage)}, from`}</span>
      </div>
      {row === null ? (
        <p class="aw-prompt">Loading its numbers.</p>
      ) : model.left.value.columns.length === 0 ? (
        <p class="aw-prompt">Everything is excluded.</p>
      ) : (
        <>
          <div
            class="aw-seg-row aw-seg-columns-head"
            data-measure={measure}
            data-sums={!model.shares.value || undefined}
            aria-hidden="true"
          >
            <span />
            <span />
            <span />
            <span title={measureWord(measure, now.stage)}>{shortWord(model)}</span>
            <span>{otherWord(model)}</span>
          </div>
          <Rows ui={ui} model={model} row={row} keys={token === model.token.value ? keys : null} textWide={textWide} />
        </>
      )}
      <AllHeads ui={ui} model={model} />
    </>
  );
}

interface RowsProps {
  readonly ui: Ui;
  readonly model: SegmentsModel;
  readonly row: RestRow;
  readonly keys: Keys["found"] | null;
}

function Rows({ ui, model, row, keys, textWide }: RowsProps & { textWide: TextMeasure }) {
  const now = model.mass.value!;
  const measure = model.measure.value;
  const value = (column: number) => model.reading(row, column);
  const order = byLargest(model.left.value.columns, (column) => Math.abs(value(column)));
  const most = ui.mode.value === "narrow" ? MOST.narrow : MOST.other;
  const shown = order.length <= most + 1 ? order : order.slice(0, most);
  for (const pin of [model.pinned.value, model.second.value]) if (pin >= 0 && !shown.includes(pin)) shown.push(pin);
  const others = order.filter((column) => !shown.includes(column));
  const scale = largestSize(shown.flatMap((column) => [value(column), model.even(row, column)])) || 1;
  const sums = others.reduce((sum, column) => sum + (value(column) || 0), 0);
  const aside = row.rest.aside[row.row]!;
  const names = asideNames(model);
  const isPill = (at: number) => shown[at] === model.pinned.value || shown[at] === model.second.value;
  const { wide, texts } = listNames(
    ui,
    shown.map((column) => now.keys[column]!),
    isPill,
    textWide,
  );
  return (
    <ol
      style={{ "--aw-seg-name": px(wide) }}
      class="aw-seg-rows"
      data-measure={measure}
      data-sums={!model.shares.value || undefined}
      aria-label={`${measureWord(measure, now.stage)} by segment`}
    >
      {shown.map((column, at) => (
        <>
          <Row key={column} {...{ ui, model, row, column, scale }} text={texts[at]!} />
          {column === model.pinned.value && typeof keys === "string" && (
            <li key="keys" class="aw-seg-row aw-seg-key aw-seg-rest" title={keys}>
              <span />
              <span>{ui.store.facts.value.saved === undefined ? keys : "its keys were not saved"}</span>
            </li>
          )}
          {column === model.pinned.value && keys !== null && typeof keys !== "string" && (
            <PinnedKeys key="keys" {...{ ui, model, row, keys, scale, column }} />
          )}
        </>
      ))}
      {others.length > 0 && (
        <li class="aw-seg-row aw-seg-rest">
          <span />
          <span>{count(others.length)} more segments</span>
          {measure === "mass" && <span class="aw-number">{listNumber(sums, now.stage)}</span>}
        </li>
      )}
      {names.length > 0 && (
        <li class="aw-seg-row aw-seg-rest" title={names.join(", ")}>
          <span />
          <span>excluded: {names.join(", ")}</span>
          <span class="aw-number">{listNumber(aside, now.stage)}</span>
        </li>
      )}
    </ol>
  );
}

type RowProps = Omit<RowsProps, "keys"> & { column: number; scale: number; text: string };

function Row({ ui, model, row, column, scale, text }: RowProps) {
  const now = model.mass.value!;
  const measure = model.measure.value;
  const value = model.reading(row, column);
  const even = model.even(row, column);
  const at = row.row * row.rest.columns + column;
  const [mass, evenMass] = [row.rest.mass[at]!, row.rest.even[at]!];
  const pinned = column === model.pinned.value;
  const second = column === model.second.value;
  const name = now.keys[column]!;
  const color = segmentStyle(now.keyColors[column] ?? -1, ui.theme.value);
  const size = now.keySizes[column]!;
  const other = !model.shares.value
    ? readingText(measure === "per_token" ? mass : size > 0 ? mass / size : Number.NaN, "mass", now.stage)
    : measure === "lift"
      ? readingText(mass, "mass")
      : liftText(evenMass > 0 ? mass / evenMass : Number.NaN);
  const hovered = model.hover.value?.column === column;
  return (
    <li>
      <button
        type="button"
        class="aw-seg-row"
        aria-current={pinned || undefined}
        data-hovered={hovered || undefined}
        title={name}
        onClick={(event: MouseEvent) => pinColumn(ui, model, column, event.shiftKey)}
        onPointerEnter={(event: PointerEvent) => {
          if (event.pointerType !== "touch") model.hover.value = { part: "list", column };
        }}
        onPointerLeave={() => {
          model.hover.value = null;
        }}
      >
        <i class="aw-seg-mark" style={{ background: color }} />
        <span class={pinned ? "aw-seg-name aw-pill" : second ? "aw-seg-name aw-seg-outline" : "aw-seg-name"}>
          <bdi>{text}</bdi>
        </span>
        <span class="aw-seg-bar">
          <Bar value={value} {...{ model, scale, color }} />
          {Number.isFinite(even) && <u style={{ left: share(even, scale) }} />}
        </span>
        <span class="aw-number">{readingText(value, measure, now.stage)}</span>
        <span class="aw-lift">{other}</span>
      </button>
    </li>
  );
}

/** A bar from the left; for signed numbers, from the middle. */
function Bar({ model, value, scale, color }: { model: SegmentsModel; value: number; scale: number; color: string }) {
  if (!(Math.abs(value) > 0)) return null;
  if (!model.signed.value) return <i style={{ width: share(value, scale), background: color }} />;
  const half = 50 * Math.min(1, Math.abs(value) / scale);
  return (
    <>
      <u data-zero style={{ left: "50%" }} />
      <i style={{ left: `${value > 0 ? 50 : 50 - half}%`, width: `${half}%`, background: color }} />
    </>
  );
}

/** The headings of both columns of numbers. */
function shortWord({ measure, shares }: SegmentsModel): string {
  return shares.value || measure.value === "per_token" ? measureWord(measure.value) : "sum";
}

function otherWord({ measure, shares }: SegmentsModel): string {
  if (!shares.value) return measure.value === "per_token" ? "sum" : "per token";
  return measure.value === "lift" ? "mass" : "lift";
}

const share = (value: number, scale: number) => `${(100 * Math.max(0, Math.min(value, scale))) / scale}%`;

/** The strongest keys of the pinned segment, as shares of what is not excluded, and the rest. */
function PinnedKeys({
  ui,
  model,
  row,
  keys,
  scale,
  column,
}: RowsProps & { keys: SegmentKeys; scale: number; column: number }) {
  const now = model.mass.value!;
  const labels = ui.store.keyLabels.value;
  const at = row.row * row.rest.columns + column;
  const per = !row.rest.shares ? 1 : row.rest.raw[at]! > 0 ? row.rest.mass[at]! / row.rest.raw[at]! : 0;
  const own = model.left.value.self ? -1 : (now.positions[model.token.value] ?? -1);
  const all = [...keys.positions].map((position, index) => ({ position, value: keys.values[index]! * per }));
  const counted = all.filter(({ position }) => position !== own);
  const least = LEAST_KEY * (row.rest.shares ? 1 : largestSize(counted.map(({ value }) => value)));
  const listed = counted.filter(({ value }) => Math.abs(value) >= least).slice(0, MOST_LISTED);
  const rest = counted.slice(listed.length).reduce((sum, { value }) => sum + value, keys.rest.sum * per);
  const many = counted.length - listed.length + keys.rest.count;
  const color = segmentStyle(now.keyColors[column] ?? -1, ui.theme.value);
  const inMass = model.measure.value === "mass";
  return (
    <>
      {listed.map(({ position, value }) => (
        <li key={`key ${position}`}>
          <button
            type="button"
            class="aw-seg-row aw-seg-key"
            title="Show this cell in the heatmap"
            onClick={() => {
              const query = ui.store.query.value;
              ui.store.select({ query, key: position });
              ui.destination.value = { query, key: position, close: true };
              ui.cameFrom.value = { view: "segments", block: `${now.asking} → ${now.keys[column]}` };
              ui.store.show({ view: "heatmap" });
            }}
          >
            <span />
            <span class="aw-seg-name" title={labels.at(position).text}>
              <Token labels={labels} index={position} subscript />
            </span>
            <span class="aw-seg-bar">{inMass && <Bar {...{ model, value, scale, color }} />}</span>
            <span class="aw-number">{listNumber(value, now.stage)}</span>
          </button>
        </li>
      ))}
      {many > 0 && (
        <li class="aw-seg-row aw-seg-key aw-seg-rest">
          <span />
          <span>{`${count(many)} ${listed.length > 0 ? "more " : ""}${many === 1 ? "key" : "keys"}`}</span>
          <span class="aw-number">{listNumber(rest, now.stage)}</span>
        </li>
      )}
    </>
  );
}

/** Not every head need have a number: all its keys may be masked. */
function headsWords(values: readonly number[]): string {
  const known = values.filter((value) => !Number.isNaN(value)).length;
  return known === values.length ? `All ${count(known)} heads` : `${count(known)} of ${count(values.length)} heads`;
}

/** The pinned segment in the whole answer and in all heads, and this head's rank among them. */
function AllHeads({ ui, model }: { ui: Ui; model: SegmentsModel }) {
  const { store } = ui;
  const whole = model.whole.value;
  const table = model.heads.value;
  const column = model.pinned.value;
  const now = model.mass.value;
  if (whole === null || now === null || column < 0) return <div class="aw-seg-sums" />;
  const measure = model.measure.value;
  const values = table === null ? [] : table.heads.map((_, row) => model.headReading(table, row, column));
  const here = table?.heads.findIndex(({ layer, head }) => layer === now.of.layer && head === now.of.head) ?? -1;
  const rank = rankAmong(values, here);
  const many = store.facts.value.layers.length > 1;
  const partial = table !== null && table.share < 1;
  return (
    <div class="aw-seg-sums">
      <div>
        <span>{now.asking === "answer" ? "Whole answer" : `Whole ${now.asking}`}</span>
        <b>{readingText(model.reading(whole, column), measure, now.stage)}</b>
      </div>
      {values.length > 1 && (
        <div>
          <span>
            {partial ? "Heads so far" : headsWords(values)}
            {model.shares.value ? "" : ", their sum"}
          </span>
          <b>{readingText(model.shares.value ? meanOf(values) : sumOf(values), measure, now.stage)}</b>
        </div>
      )}
      {rank !== null && values.length > 1 && (
        <div>
          <span>
            Rank of {many ? "" : "head "}
            {nameOf(now.of, store.facts.value)}
          </span>
          <b>
            {count(rank.rank)} of {count(rank.of)}
          </b>
        </div>
      )}
    </div>
  );
}
