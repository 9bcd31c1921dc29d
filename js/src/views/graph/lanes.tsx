/** The columns of the graph: tokens, gaps for folded tokens, bars by head with their mean, the legend of heads. */

import { pinRowOrColumn } from "../../components/axis-labels";
import { px, Token } from "../../components/dom";
import { headWords, isNamed, sentence } from "../../components/phrases";
import { BLOCKED, NAN } from "../../contract/decode";
import { legendOf, wordOf, wordsOf } from "../../contract/stages";
import type { Side, Stage } from "../../contract/values";
import { piecesAlong, piecesAt, type SegmentNode } from "../../data/segment-axis";
import { segmentStyle } from "../../draw/segment-colors";
import { labelFont } from "../../geometry/layout";
import type { Known } from "../../state/queries";
import { type AxisSegments, axisSegments } from "../../state/segment-axes";
import type { Ui } from "../../state/ui";
import { count, listNumber } from "../../text/format";
import type { Labels } from "../../text/labels";
import { shorten } from "../../text/tokens";
import { SINK, SINK_TITLE } from "../../text/words";
import { type Lane, sizeOf } from "./geometry";
import { type Frame, type GraphModel, hasSink, isPairs, knownOf, OVERVIEW, sinkOf } from "./model";

export const HEADER = 34;
const BARS_FROM = 0.01;
/** Partners with at least this much weight are bold. */
const BOLD_FROM = 0.1;

/** Draw both columns of tokens, the bars by head and their mean. */
export function Columns({ ui, model }: { ui: Ui; model: GraphModel }) {
  const { store } = ui;
  const frame = model.frame.value;
  if (frame === null) return null;
  const unit = ui.unit.value;
  const { queries, keys } = model.lanes.value;
  const top = HEADER * unit;
  const focus = model.focus.value;
  const partners = partnersOf(ui, model);
  const heads = store.drawnHeads.value;
  const byHead = heads.length > 1;
  const valueSide = focus?.side === "key" ? "query" : "key";
  const prompted = focus === null ? prompt(ui, model) : problemOf(model);
  return (
    <>
      <span class="aw-graph-head" style={{ right: px(frame.width - frame.queryRight) }}>
        Query
      </span>
      <span class="aw-graph-head" style={{ left: px(frame.keyLeft) }}>
        Key
      </span>
      {focus !== null && frame.barWidth > 0 && (
        <span class="aw-graph-head" style={{ left: px(frame.barLeft) }}>
          {headingOf(store.linkedStage.value)}
          {byHead ? " by head" : ""}
          {valueSide === "query" ? ", of each query" : ""}
        </span>
      )}
      {focus !== null && byHead && (
        <span class="aw-graph-head" style={{ right: px(frame.width - frame.meanRight) }}>
          Mean
        </span>
      )}
      <TokenColumn
        side="query"
        lane={queries}
        labels={store.queryLabels.value}
        {...{ ui, model, frame, top, partners }}
      />
      <TokenColumn side="key" lane={keys} labels={model.keyLabels.value} {...{ ui, model, frame, top, partners }} />
      <GraphMargin side="query" lane={queries} {...{ ui, frame, top }} />
      <GraphMargin side="key" lane={keys} {...{ ui, frame, top }} />
      {focus !== null && <Bars {...{ ui, model, frame, top }} />}
      {prompted !== null && frame.barWidth > 0 && (
        <p
          class="aw-prompt"
          style={{ position: "absolute", left: px(frame.barLeft), top: px(top), width: px(frame.barWidth) }}
        >
          {prompted}
        </p>
      )}
    </>
  );
}

/** Tokens with a bold label: strong partners of the one in focus; both ends of the band under the pointer. */
function partnersOf(ui: Ui, model: GraphModel): Record<Side, ReadonlySet<number>> {
  const query = new Set<number>();
  const key = new Set<number>();
  const side = model.focus.value?.side;
  for (const band of model.bands.value.bands) {
    if (sizeOf(band) >= BOLD_FROM) (side === "query" ? key : query).add(side === "query" ? band.key : band.query);
  }
  const at = ui.hover.value;
  if (at !== null && "bin" in at) {
    query.add(at.bin.queries.start);
    key.add(at.bin.keys.start);
  }
  return { query, key };
}

/** Python's sentence, if the links of the token in focus are not known. */
function problemOf(model: GraphModel): string | null {
  const line = model.lines.value.find((each) => each !== null && "problem" in each);
  return line && "problem" in line ? sentence(line.problem) : null;
}

/** What is drawn without a token in focus, and what to do. */
function prompt({ store }: Ui, model: GraphModel): string {
  if (model.isLong.value) {
    const strongest = model.strongest.value;
    if (!isPairs(strongest))
      return "Too long to draw the links of every token. Pin a token in the heatmap to see its links.";
    const which = store.linkedStage.value === "weights" ? "strongest" : "largest";
    const pairs = `The ${count(strongest.length)} ${which} pairs of ${headWords(store.pictured.value, store.facts.value)}, without the first token.`;
    return `${pairs} Point at a token to see its links. Click to keep it.`;
  }
  if (store.links.value?.stage !== store.linkedStage.value)
    return "Too long to draw the links of every token. Pin a token to see its links.";
  const most = Math.min(store.top_k.value ?? OVERVIEW, OVERVIEW);
  const byQuery = store.direction.value === "query";
  const what = most === 1 ? (byQuery ? "key" : "query") : byQuery ? "keys" : "queries";
  const each = `${store.linkedStage.value === "weights" ? "strongest" : "largest"} ${what} of each ${byQuery ? "query" : "key"}`;
  const [drawn, total] = [model.curves.value.length, model.total.value];
  const cut = drawn < total ? `: the ${count(drawn)} strongest of ${count(total)} links` : "";
  return `The ${most === 1 ? "" : `${most} `}${each}${cut}. Point at a token to see its links. Click to keep it.`;
}

/** The segment colors beside a column of tokens: one bar for adjacent tokens of a segment. */
function GraphMargin(props: { ui: Ui; side: Side; lane: Lane; frame: Frame; top: number }) {
  const { ui, side, lane, frame, top } = props;
  const axis = axisSegments(ui.store, side);
  if (axis === null) return null;
  const unit = ui.unit.value;
  const left = px(side === "query" ? frame.x0 - 4 * unit : frame.x1 + unit);
  return (
    <>
      {marginBars(axis, lane).map(({ node, from, to }) => (
        <i
          class="aw-graph-segment"
          key={`${node.start} ${from}`}
          title={node.name}
          style={{
            left,
            width: px(3 * unit),
            top: px(top + from),
            height: px(Math.max(1, to - from - (to - from > 4 ? 1 : 0))),
            background: segmentStyle(axis.slot(node), ui.theme.value),
          }}
        />
      ))}
    </>
  );
}

/** The places of the bars; in a folded column, beside the tokens that are there. */
function marginBars(axis: AxisSegments, lane: Lane): { node: SegmentNode; from: number; to: number }[] {
  const pieces = piecesAlong(axis.tree, axis.open);
  if (lane.rows.length === 0) {
    return pieces.map((node) => ({ node, from: node.start * lane.pitch, to: node.stop * lane.pitch }));
  }
  const positions = lane.rows.flatMap((row) => (row.kind === "token" ? row.index : []));
  const found: { node: SegmentNode; from: number; to: number }[] = [];
  piecesAt(pieces, positions).forEach((node, at) => {
    const middle = lane.y(positions[at]!);
    if (node === null || middle === null) return;
    const [from, to] = [middle - lane.pitch / 2, middle + lane.pitch / 2];
    const last = found.at(-1);
    if (last?.node === node && from - last.to < 0.5) found[found.length - 1] = { ...last, to };
    else found.push({ node, from, to });
  });
  return found;
}

interface LaneProps {
  readonly side: Side;
  readonly lane: Lane;
  readonly labels: Labels;
  readonly ui: Ui;
  readonly model: GraphModel;
  readonly frame: Frame;
  readonly top: number;
  readonly partners: Record<Side, ReadonlySet<number>>;
}

function TokenColumn({ side, lane, labels, ui, model, frame, top, partners }: LaneProps) {
  const unit = ui.unit.value;
  const focus = model.focus.value;
  const isOwn = (index: number) => focus?.side === side && focus.index === index;
  const isPartner = (index: number) => partners[side].has(index);
  const rows =
    lane.rows.length > 0
      ? lane.rows
      : plainRows(
          lane,
          labels.length,
          (i) => isOwn(i) || isPinned(ui, side, i) || (side === "key" && i === ui.store.facts.value.keys),
        );
  const x = side === "query" ? { right: px(frame.width - frame.queryRight) } : { left: px(frame.keyLeft) };
  return (
    <>
      {rows.map((row, at) => {
        const y = row.kind === "token" ? (lane.y(row.index) as number) : (at + 0.5) * lane.pitch;
        const place = { ...x, top: px(top + y), transform: "translateY(-50%)" };
        if (row.kind === "gap") {
          return (
            <span class="aw-label aw-graph-gap" key={`gap${at}`} style={place}>
              ⋯ {count(row.count)} {row.count === 1 ? "token" : "tokens"}
            </span>
          );
        }
        if (side === "key" && row.index === ui.store.facts.value.keys) {
          return (
            <SinkLabel
              key="sink"
              {...{ place, unit }}
              font={labelFont(lane.pitch * lane.step, unit)}
              partner={isPartner(row.index)}
            />
          );
        }
        return (
          <GraphLabel
            key={row.index}
            index={row.index}
            pitch={lane.pitch * lane.step}
            own={isOwn(row.index)}
            partner={isPartner(row.index)}
            room={side === "query" ? frame.queryRoom : frame.keyRoom}
            {...{ side, labels, ui, model, place, unit }}
          />
        );
      })}
    </>
  );
}

/** The learned sink, below the keys: it cannot be pinned. */
function SinkLabel(props: { place: Record<string, string>; unit: number; font: number; partner: boolean }) {
  const { place, unit, font, partner } = props;
  return (
    <span
      class="aw-label aw-sink-name"
      data-hovered={partner || undefined}
      title={SINK_TITLE}
      style={{ ...place, fontSize: px(font * unit), lineHeight: px(Math.min(16, font + 4) * unit) }}
    >
      {SINK}
    </span>
  );
}

/** All tokens, or every k-th if crowded, and those that must be named. */
function plainRows(lane: Lane, total: number, must: (index: number) => boolean) {
  const rows: { kind: "token"; index: number }[] = [];
  const named: number[] = [];
  for (let i = 0; i < total; i++) if (must(i)) named.push(i);
  const near = lane.step > 1 ? 14 / lane.pitch : 0;
  for (let i = 0; i < total; i++) {
    if (named.includes(i) || (i % lane.step === 0 && named.every((n) => Math.abs(n - i) >= near))) {
      rows.push({ kind: "token", index: i });
    }
  }
  return rows;
}

function isPinned({ store }: Ui, side: Side, index: number): boolean {
  return store.shownPins.value.some((pin) => pin[side === "query" ? 0 : 1] === index);
}

interface GraphLabelProps {
  readonly index: number;
  readonly side: Side;
  readonly labels: Labels;
  readonly ui: Ui;
  readonly model: GraphModel;
  readonly place: Record<string, string>;
  readonly unit: number;
  readonly pitch: number;
  readonly room: number;
  readonly own: boolean;
  readonly partner: boolean;
}

function GraphLabel(props: GraphLabelProps) {
  const { index, side, labels, ui, model, place, unit, pitch, room, own, partner } = props;
  const { store } = ui;
  const label = labels.at(index);
  const active = (side === "query" ? store.query : store.key).value === index;
  const pinned = isPinned(ui, side, index);
  const font = labelFont(pitch, unit);
  const weight = pinned || own || partner ? 600 : 400;
  const measure = model.measure.value;
  const rest = label.subscript === "" ? 0 : measure(label.subscript, Math.max(9, font * 0.75), weight) + 2;
  const text = shorten(label.text, room - rest, (piece) => measure(piece, font, weight));
  const pill = active ? "aw-label aw-pill" : pinned ? "aw-label aw-pill-outline" : "aw-label";
  const shift = pinned ? { margin: `0 ${-6 * unit}px` } : {};
  return (
    <button
      type="button"
      tabIndex={-1}
      class={pill}
      data-special={label.special || undefined}
      data-hovered={(!pinned && (own || partner)) || undefined}
      title={label.text}
      style={{ ...place, ...shift, fontSize: px(font * unit), lineHeight: px(Math.min(16, font + 4) * unit) }}
      onPointerEnter={(event: PointerEvent) => {
        if (event.pointerType !== "touch") ui.hover.value = { target: { side, index } };
      }}
      onPointerLeave={() => {
        ui.hover.value = null;
      }}
      onPointerDown={(event: PointerEvent) => event.preventDefault()}
      onClick={(event: MouseEvent) => pinRowOrColumn(ui, side, index, event.shiftKey)}
    >
      <bdi>{text}</bdi>
      {label.subscript !== "" && <sub>{label.subscript}</sub>}
    </button>
  );
}

/** For the token in focus: each partner's weight by head as bars, and their mean as a number. */
function Bars({ ui, model, frame, top }: { ui: Ui; model: GraphModel; frame: Frame; top: number }) {
  const { store } = ui;
  const unit = ui.unit.value;
  const focus = model.focus.value;
  const lines = model.lines.value;
  if (focus === null || lines.length === 0 || lines.every((line) => line === null)) return null;
  const side = focus.side === "query" ? "key" : "query";
  const other = model.lanes.value[side === "key" ? "keys" : "queries"];
  const colors = model.colors.value;
  const bundle = model.bundleColor.value;
  const { tall, apart } = barsOf(other.pitch * other.step, lines.length, unit, ui.dpr.value);
  const { keys, queries } = store.facts.value;
  const stage = store.linkedStage.value;
  const [most, signs] = [model.unit.value, model.signColors.value];
  const total = side === "key" ? keys + (hasSink(ui) ? 1 : 0) : queries;
  const across = frame.barWidth * (signs === null ? 1 : 0.5);
  const zero = frame.barLeft + (signs === null ? 0 : across);
  const shown =
    other.rows.length > 0
      ? other.rows.flatMap((row) => (row.kind === "token" ? row.index : []))
      : Array.from({ length: total }, (_, index) => index);
  const rows = [];
  let last = Number.NEGATIVE_INFINITY;
  for (const index of shown) {
    const y = other.y(index);
    if (y === null || y - last < 11 * unit) continue;
    const known = lines.map((line) =>
      side === "key" && index === keys ? (sinkOf(line) ?? undefined) : weightAt(line, index),
    );
    if (known.every((weight) => weight === undefined)) continue; // not among the strongest
    last = y;
    const weights = known.map((weight) => weight || 0);
    const mean = weights.reduce((sum, weight) => sum + weight, 0) / weights.length;
    rows.push({ index, y, weights, mean, word: wordAt(lines, index) });
  }
  return (
    <>
      {rows.map(({ index, y, weights, mean, word }) => (
        <span
          key={index}
          class="aw-graph-row"
          data-faint={(word === null && Math.abs(mean) / most < BARS_FROM) || word === "masked" || undefined}
          data-bad={word === "NaN" || undefined}
        >
          {frame.barWidth > 0 &&
            weights.map((weight, head) =>
              Math.abs(weight) / most < BARS_FROM ? null : (
                <i
                  key={head}
                  data-faint={Math.abs(weight) / most < store.threshold.value || undefined}
                  style={{
                    left: px(weight < 0 ? zero - Math.max(2, (-weight / most) * across) : zero),
                    top: px(top + y + (head - (weights.length - 1) / 2) * apart - tall / 2),
                    width: px(Math.max(2, (Math.abs(weight) / most) * across)),
                    height: px(tall),
                    background:
                      signs !== null && weights.length === 1
                        ? weight < 0
                          ? signs.minus
                          : signs.plus
                        : side === "key"
                          ? (bundle?.(index) ?? colors[head])
                          : colors[head],
                  }}
                />
              ),
            )}
          <span style={{ right: px(frame.width - frame.meanRight), top: px(top + y) }}>
            {word ?? (weights.length > 1 && stage === "weights" ? short(mean, 3) : listNumber(mean, stage))}
          </span>
        </span>
      ))}
    </>
  );
}

/** The height and distance of the bars in a row, in whole device pixels so that all are equally tall. */
export function barsOf(pitch: number, heads: number, unit: number, dpr: number): { tall: number; apart: number } {
  if (heads === 1) return { tall: Math.min(8 * unit, pitch - 2), apart: 0 };
  const whole = (length: number) => Math.max(1, Math.floor(length * dpr + 1e-6)) / dpr;
  const room = pitch - 4 * unit;
  const apart = whole(Math.min(4 * unit, room / heads));
  if (apart * heads > room) return { tall: 1 / dpr, apart: room / heads }; // more heads than pixels: they overlap
  return { tall: whole(Math.min(3 * unit, apart * 0.75)), apart };
}

/** A weight that is known. */
function weightAt(line: Known | null, index: number): number | undefined {
  if (line === null || "problem" in line) return undefined;
  if ("values" in line) return line.values[index];
  return line.ranking.values[line.ranking.top.indexOf(index)];
}

/** The text in place of a number: masked in every head, or NaN in one. */
function wordAt(lines: readonly (Known | null)[], index: number): string | null {
  const kinds = lines.map((line) => (line !== null && "kinds" in line ? line.kinds[index] : undefined));
  if (kinds.includes(NAN)) return "NaN";
  return kinds.every((kind) => kind === BLOCKED) ? "masked" : null;
}

/** Draw the color of each head, and its strongest partner. */
export function HeadLegend({ ui, model }: { ui: Ui; model: GraphModel }) {
  const { store } = ui;
  const heads = store.drawnHeads.value;
  const focus = model.focus.value;
  const colors = model.colors.value;
  const others = focus?.side === "key" ? store.queryLabels.value : model.keyLabels.value;
  const { keys } = store.facts.value;
  const ofSegments = model.bundleColor.value !== null;
  const stage = store.linkedStage.value;
  if (heads.length === 1 && focus === null && !ofSegments && stage === store.stage.value && stage === "weights")
    return null;
  return (
    <>
      <StageKey ui={ui} model={model} />
      {heads.map((head, place) => {
        const line = model.lines.value[place];
        const { best, skipped } = line ? strongestOf(line, others, keys) : { best: null, skipped: false };
        return (
          <span class="aw-graph-key" key={head}>
            {!ofSegments && (model.signColors.value === null || heads.length > 1) && (
              <i style={{ background: colors[place] }} />
            )}
            <b>{headWords(head, ui.store.facts.value)}</b>
            {line && isBlocked(line) && <span>fully masked</span>}
            {best !== null && (
              <span>
                {stage === "weights" ? "most" : "largest"} {focus?.side === "key" ? "from " : "to "}
                {isNamed(others, best.other) ? "" : focus?.side === "key" ? "query " : "key "}
                <Token labels={others} index={best.other} subscript />{" "}
                {stage === "weights" ? short(best.weight, 2) : listNumber(best.weight, stage)}
              </span>
            )}
            {skipped && <span class="aw-graph-aside">without special tokens</span>}
          </span>
        );
      })}
      {ofSegments && <span>in the color of each key's segment</span>}
    </>
  );
}

const headingOf = (stage: Stage) =>
  stage === "weights" ? "Weight" : wordOf(stage).replace(/^./, (first) => first.toUpperCase());

/**
 * The stage of the links, the colors of their signs, and the number of the widest band; or just "weights".
 */
function StageKey({ ui, model }: { ui: Ui; model: GraphModel }) {
  const { store } = ui;
  const [stage, chosen] = [store.linkedStage.value, store.stage.value];
  if (stage !== chosen) {
    return <span>links are weights: {wordsOf(chosen)} are in the heatmap, the text and the stages</span>;
  }
  if (stage === "weights") return null;
  const signs = model.signColors.value;
  const most = listNumber(model.unit.value, stage);
  return (
    <span class="aw-graph-key">
      <b>{legendOf(stage, store.facts.value, store.batch.value)}</b>
      {signs !== null && (
        <>
          <i style={{ background: signs.plus }} />
          <span>above 0</span>
          <i style={{ background: signs.minus }} />
          <span>below</span>
        </>
      )}
      <span>widest {signs === null ? most : `±${most}`}</span>
    </span>
  );
}

/** A weight with a few decimals, without its leading zero. */
function short(weight: number, decimals: number): string {
  return weight.toFixed(decimals).replace(/^0\./, ".");
}

function isBlocked(line: Known): boolean {
  if ("ranking" in line) return line.ranking.blocked > 0 && line.ranking.allowed + line.ranking.nan === 0;
  return "kinds" in line && line.kinds.every((kind) => kind === BLOCKED);
}

type Partner = ReturnType<typeof knownOf>[number];

/** The strongest partner that is not a special token, if any. */
function strongestOf(line: Known, labels: Labels, keys: number): { best: Partner | null; skipped: boolean } {
  let best: Partner | null = null;
  let any: Partner | null = null;
  for (const one of knownOf(line, keys)) {
    const size = Math.abs(one.weight);
    if (!(size > 0)) continue;
    if (size > Math.abs(any?.weight ?? 0)) any = one;
    if (size > Math.abs(best?.weight ?? 0) && !labels.at(one.other).special) best = one;
  }
  return best === null ? { best: any, skipped: false } : { best, skipped: best !== any };
}
