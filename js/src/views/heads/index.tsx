/** All heads of all layers, small: which differ from the others, and how. A click opens one in the heatmap. */

import { effect, type Signal, signal } from "@preact/signals-core";
import { mount, part, px, type View } from "../../components/dom";
import { EffectRuns } from "../../components/effect-runs";
import { Message } from "../../components/message";
import { headWords, numbersIn } from "../../components/phrases";
import type { Facts } from "../../contract/messages";
import { isSigned, legendOf, wordsOf } from "../../contract/stages";
import {
  cornerOf,
  type HeadMetric,
  type HeadOf,
  type HeadsLayout,
  hasSigns,
  isOrdered,
  isTinted,
  metricOrNone,
  metricText,
  nameOf,
  numberInAll,
  type Survey,
} from "../../data/survey";
import type { Ui } from "../../state/ui";
import { count } from "../../text/format";
import { tokenName } from "../../text/tokens";
import { Atlas, drawHeads, moreDetail } from "./canvas";
import { HeadCard, overKeys, tallest } from "./card";
import { watchPointer, watchWalk } from "./input";
import { wordOf } from "./menus";
import { Only } from "./only";
import { arranged, type HeadsState, headsState } from "./state";

/** Return the view of all heads. */
export function heads(ui: Ui): View {
  const { store, stop } = ui;
  const state = headsState(ui);
  const scrolled = signal(0);
  const parts = partsOf(ui, state, scrolled);
  const { node, canvas, scroller } = parts;

  const atlas = new Atlas();
  const detail = signal(0); // increases as larger pictures arrive
  const ends = [
    effect(() => place(ui, state, parts)),
    effect(() => {
      parts.runs.hidden = state.metric.value?.kind !== "nats"; // otherwise no room is needed
    }),
    effect(() => {
      const [at, survey, both] = [state.layout.value, store.survey.value, ui.paints.value];
      void detail.value;
      void ui.theme.value;
      if (at === null || survey === null || !both) return;
      const losses = both.diverging;
      const paints = isSigned(survey.ofStage?.stage ?? "weights") ? losses : both.sequential;
      const facts = store.facts.value;
      drawHeads(canvas, {
        layout: at,
        survey,
        facts,
        metric: state.metric.value,
        paints,
        losses,
        style: styleOf(ui),
        atlas,
      });
    }),
    effect(() => {
      const survey = store.survey.value;
      const metric = state.metric.value;
      const bar = metric === null ? "" : `, ${metric.word.toLowerCase()} below each`;
      const size = survey === null ? "" : `, ${sizeOf(survey)}`;
      canvas.setAttribute("aria-label", `Attention heads${size}${bar}`);
    }),
    effect(() => {
      parts.live.textContent = spoken(store, state.pointed.value, state.metric.value);
    }),
    moreDetail(ui, { canvas, layout: state.layout, atlas, arrived: () => detail.value++ }),
  ];

  watchPointer(canvas, state, stop);
  watchWalk(ui, canvas, scroller, state);
  scroller.addEventListener(
    "scroll",
    () => {
      scrolled.value = scroller.scrollLeft;
    },
    { signal: stop },
  );

  return {
    node,
    dispose() {
      for (const end of ends) end();
      for (const view of parts.views) view.dispose();
    },
  };
}

/** The nested elements of the view, and the effects that keep them up to date. */
function partsOf(ui: Ui, { layout, metric, pointed, selected, described }: HeadsState, scrolled: Signal<number>) {
  const { survey } = ui.store;
  const node = part("aw-all-heads");
  const frame = part("aw-heads-frame");
  const scroller = part("aw-heads-scroller");
  const board = part("aw-heads-board");
  const pictures = part("aw-heads-pictures");
  const canvas = document.createElement("canvas");
  canvas.dataset.aw = "picture";
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-roledescription", "grid of heads");
  const live = part("aw-visually-hidden");
  live.setAttribute("aria-live", "polite");

  const caption = mount(part("aw-prompt"), () => <Caption ui={ui} metric={metric.value} />);
  const names = mount(part("aw-heads-names"), () => (
    <Names ui={ui} layout={layout.value} pointed={ui.pointedHead.value} />
  ));
  const layers = mount(part("aw-heads-layers"), () => (
    <LayerNames ui={ui} layout={layout.value} pointed={ui.pointedHead.value} />
  ));
  const card = mount(part("aw-heads-card"), () => (
    <HeadCard ui={ui} layout={layout.value} place={described.value} scrolled={scrolled.value} />
  ));
  const runs = mount(part("aw-fx-runs"), () => (metric.value?.kind === "nats" ? <EffectRuns ui={ui} /> : null));
  const problem = mount(part("aw-problem"), () => <Problem survey={survey.value} ui={ui} />);
  const marks = mount(part("aw-heads-marks"), () => (
    <Marks
      facts={ui.store.facts.value}
      survey={survey.value}
      layout={layout.value}
      selected={selected.value}
      pointed={pointed.value}
    />
  ));

  pictures.append(canvas, marks.node);
  board.append(names.node, pictures);
  scroller.append(board);
  frame.append(layers.node, scroller, card.node);
  node.append(caption.node, runs.node, frame, problem.node, live);
  const views = [caption, runs, names, layers, card, problem, marks];
  return { node, frame, scroller, board, canvas, live, layers: layers.node, card: card.node, runs: runs.node, views };
}

/** Place everything. */
function place(ui: Ui, { layout }: HeadsState, parts: ReturnType<typeof partsOf>): void {
  const at = layout.value;
  if (at === null) return;
  const { canvas, board, frame, scroller, layers } = parts;
  Object.assign(canvas.style, { width: px(at.width), height: px(at.height) });
  board.style.width = px(at.width);
  frame.style.paddingLeft = px(at.left);
  scroller.style.margin = `0 ${px(-at.margin)}`; // aligns pictures with text, and keeps rings whole
  frame.style.setProperty("--aw-heads-left", px(at.left));
  // With few rows, the card fits next to a head.
  const survey = ui.store.survey.value;
  const tall = survey === null || ui.mode.value === "narrow" ? 0 : tallest(survey) * ui.unit.value;
  frame.style.minHeight = px(tall);
  // Below the pictures, the card's room is kept, because some heads have more metrics than others.
  const isBelow = survey !== null && ui.mode.value === "narrow";
  parts.card.style.minHeight = isBelow ? px(tallest(survey) * ui.unit.value) : "";
  layers.style.top = px(at.top);
  ui.extent.value = ui.mode.value === "narrow" ? null : at.left + at.width;
}

function styleOf(ui: Ui) {
  const style = getComputedStyle(ui.root);
  const color = (name: string) => style.getPropertyValue(name).trim();
  return {
    dpr: ui.dpr.value,
    unit: ui.unit.value,
    font: ui.font.value,
    page: ui.paints.value?.sequential.page ?? "",
    ink2: color("--aw-ink2"),
    ink3: color("--aw-ink3"),
    track: color("--aw-track"),
    plate: color("--aw-plate"),
    data: color("--aw-data"),
    above: color("--aw-above"),
    below: color("--aw-below"),
  };
}

interface MarksProps {
  readonly facts: Facts;
  readonly survey: Survey | null;
  readonly layout: HeadsLayout | null;
  /** Places; -1 for none. */
  readonly selected: number;
  readonly pointed: number;
}

/** Rings around the selected head and the one under the pointer; their names, if names are shown. */
function Marks({ facts, survey, layout, selected, pointed }: MarksProps) {
  if (survey === null || layout === null) return null;
  const around = (place: number) => {
    const { x, y } = cornerOf(layout, place);
    const out = layout.bars ? 1 : 0;
    return (
      <div
        key={place}
        style={{ transform: `translate(${x}px, ${y}px)`, width: px(layout.size), height: px(layout.size) }}
      >
        <i
          class="aw-ring"
          data-pinned={place === selected || undefined}
          data-small={!layout.bars || undefined}
          style={{ inset: px(-out) }}
        />
        {layout.named && <b>{nameOf(survey.heads[place]!, facts)}</b>}
      </div>
    );
  };
  return (
    <>
      {pointed >= 0 && pointed !== selected && around(pointed)}
      {selected >= 0 && around(selected)}
    </>
  );
}

/** How to read the pictures below. */
function Caption({ ui, metric }: { ui: Ui; metric: HeadMetric | null }) {
  const { store } = ui;
  const survey = store.survey.value;
  if (survey === null) {
    return ui.kernel.away.value ? null : <>The kernel computes all heads when this view opens.</>;
  }
  const order = store.order.value;
  const known = isOrdered(survey, order);
  const rows = survey.layers.filter(({ heads }) => heads > 0);
  const some = rows.filter(({ rows: looked, queries }) => looked < queries);
  const sampled = some[0];
  const isSame = rows.every((one) => one.rows === sampled?.rows && one.queries === sampled.queries);
  const many = survey.layers.length > 1;
  const ready = survey.pictures.filter((picture) => picture !== null).length;
  return (
    <>
      {order === "similar"
        ? `Most similar to layer ${store.layer.value}, ${headWords(store.head.value, store.facts.value)} first, by metrics and picture. `
        : known
          ? `Ordered by ${wordOf(order)}, largest first. `
          : ui.onlyHeads.value !== null
            ? "Selected heads, layer by layer. "
            : many
              ? "Rows are layers, columns are heads. "
              : "The heads of the layer. "}
      {picturesOf(ui, survey)} has its own color range
      {metric === null
        ? "."
        : `; the ${isTinted(metric.kind) || isDense(ui, metric) ? "tint" : "bar"} is ${barWords(ui, metric)}, ${rangeOf(metric)}.`}
      {unsaved(ui, metric)}
      {sampled &&
        (isSame
          ? ` From ${count(sampled.rows)} of ${count(sampled.queries)} queries per head, each exact.`
          : " From some of the queries of long heads, each exact.")}
      {!survey.complete && survey.error === null && ` ${count(ready)} of ${count(survey.heads.length)} heads so far.`}
      <Only ui={ui} survey={survey} metric={metric} />
    </>
  );
}

/** What the pictures show, if that differs from the stage menu or has signs. */
function picturesOf({ store }: Ui, { ofStage }: Survey): string {
  const [stage, linked] = [store.stage.value, store.linkedStage.value];
  if (stage !== linked)
    return `Each picture is of weights (${wordsOf(stage)} are in the heatmap, the text and the stages) and`;
  if (stage === "weights") return "Each picture";
  if (ofStage === undefined)
    return `Pictures of ${wordsOf(stage)} are being computed; until then each is of weights and`;
  const what = legendOf(stage, store.facts.value, store.batch.value);
  return `${what}: each picture${isSigned(stage) ? " from − to +" : ""}`;
}

/** "the sum over the keys of query 9", signed or by size. */
function sumOf(store: Ui["store"], kind: "stage" | "size"): string {
  const { stage = "logit" } = store.survey.value?.ofStage ?? {};
  const what = kind === "stage" ? `the sum of ${wordsOf(stage)}` : `the sum of the sizes of ${wordsOf(stage)}`;
  return `${what} over ${overKeys(store.survey.value?.ofStage)}`;
}

/** In a file: why the sums are not those of the pinned query. */
function unsaved({ store }: Ui, metric: HeadMetric | null): string {
  const [query, of] = [store.query.value, store.survey.value?.ofStage];
  const isSum = metric?.kind === "stage" || metric?.kind === "size";
  if (!isSum || !store.facts.value.saved || query === null || of?.query === query) return "";
  return ` The sums of query ${query} alone were not saved: open the notebook to compute them.`;
}

/** What the bars or tints show. */
function barWords({ store }: Ui, { word, kind }: HeadMetric): string {
  if (kind === "stage" || kind === "size") return sumOf(store, kind);
  const text = store.effects.value?.target?.text;
  const target = text === undefined ? undefined : tokenName(text);
  return kind === "nats" && target ? `what “${target}” loses without the head` : word.toLowerCase();
}

function isDense(ui: Ui, metric: HeadMetric | null): boolean {
  const survey = ui.store.survey.value;
  return survey !== null && !arranged(ui, survey, metric).bars;
}

function rangeOf(metric: HeadMetric): string {
  const { kind, high } = metric;
  if (hasSigns(metric)) return `−${metricText(high, kind)} to ${metricText(high, kind)}`;
  if (kind === "weight" || kind === "share") return kind === "share" ? "0 to 100 %" : "0 to 1";
  if (kind === "size" || kind === "own") return `0 to ${metricText(high, kind)}`;
  return kind === "bits" ? `0 to ${metricText(high, kind)}` : `0 to ${metricText(high, kind)} tokens`;
}

function sizeOf({ layers, heads }: Survey): string {
  const alike = layers.every((layer) => layer.heads === layers[0]!.heads);
  if (!alike) return `${layers.length} layers, ${count(heads.length)} heads`;
  return `${layers.length} ${layers.length === 1 ? "layer" : "layers"} by ${layers[0]?.heads ?? 0} heads`;
}

function spoken({ survey, facts }: Ui["store"], place: number, metric: HeadMetric | null): string {
  const at = survey.value?.heads[place];
  if (at === undefined) return "";
  const number =
    metric === null ? "" : `, ${metric.word.toLowerCase()} ${metricOrNone(metric.values[place]!, metric.kind)}`;
  return `layer ${at.layer}, ${headWords(at.head, numbersIn(facts.value, at.layer))}${number}`;
}

interface NamesProps {
  readonly ui: Ui;
  readonly layout: HeadsLayout | null;
  readonly pointed: HeadOf | null;
}

/** Numbers above the columns; a line below heads that share a key/value head, if the same in all layers. */
function Names({ ui, layout, pointed }: NamesProps) {
  const survey = ui.store.survey.value;
  if (layout === null || survey === null || layout.top === 0) return null;
  const now = pointed ?? { layer: ui.store.layer.value, head: ui.store.head.value };
  const [first] = survey.layers;
  const alike = survey.layers.every(({ heads, groups }) => heads === first?.heads && groups === first?.groups);
  const shared = alike && first !== undefined && first.groups < first.heads ? first.heads / first.groups : 0;
  const every = layout.across >= 22 * ui.unit.value ? 1 : 4;
  const ofModel = (head: number) => {
    const number = layout.across >= 44 * ui.unit.value ? numberInAll(ui.store.facts.value, head) : undefined;
    return number === undefined ? "" : ` (${number})`;
  };
  return (
    <div style={{ height: px(layout.top) }}>
      {Array.from({ length: layout.columns }, (_, head) =>
        head % every === 0 || head === now.head ? (
          <span
            key={head}
            data-now={head === now.head || undefined}
            style={{ left: px(layout.margin + head * layout.across), width: px(layout.size) }}
          >
            {head}
            {ofModel(head)}
          </span>
        ) : null,
      )}
      {shared > 0 &&
        Array.from({ length: first!.groups }, (_, group) => (
          <i
            key={group}
            title={`key/value head ${group}`}
            style={{
              left: px(layout.margin + group * shared * layout.across),
              width: px((shared - 1) * layout.across + layout.size),
            }}
          />
        ))}
    </div>
  );
}

function LayerNames({ ui, layout, pointed }: NamesProps) {
  const survey = ui.store.survey.value;
  if (layout === null || survey === null || layout.left === 0) return null;
  const now = (pointed ?? { layer: ui.store.layer.value }).layer;
  const names = ui.store.facts.value.layers;
  return (
    <>
      {survey.layers.map((_, layer) => (
        <span
          key={layer}
          title={names[layer]}
          data-now={layer === now || undefined}
          style={{ top: px(layout.margin + layer * layout.down), lineHeight: px(layout.size) }}
        >
          {layer}
        </span>
      ))}
    </>
  );
}

function Problem({ survey, ui }: { survey: Survey | null; ui: Ui }) {
  if (survey !== null && !survey.error && survey.problems.length > 0) {
    return (
      <div class="aw-notice">
        <Message sign="empty" title="Not computed: custom metrics" text={survey.problems.join(" ")} />
      </div>
    );
  }
  if (!survey?.error) return null;
  return (
    <div class="aw-notice">
      <Message
        sign="error"
        title="Not all heads could be computed"
        text={survey.error}
        actions={[{ name: "Try again", run: () => void ui.kernel.request("retry").catch(() => {}) }]}
      />
    </div>
  );
}
