/** All heads of all layers, small: which differ from the others, and in what. Click opens one in the heatmap. */

import { computed, effect, signal } from "@preact/signals-core";
import { mount, part, px, type View } from "../../components/dom";
import { Message } from "../../components/message";
import {
  cornerOf,
  type HeadMetric,
  type HeadOf,
  type HeadsLayout,
  layoutHeads,
  metricText,
  nameOf,
  placeAt,
  type Survey,
  stepFrom,
} from "../../data/survey";
import type { Ui } from "../../state/ui";
import { count } from "../../text/format";
import { Atlas, drawHeads, moreDetail } from "./canvas";
import { HeadCard, tallest } from "./card";
import { wordOf } from "./menus";

export function heads(ui: Ui): View {
  const { store, stop } = ui;
  const node = part("aw-all-heads");
  const frame = part("aw-heads-frame");
  const scroller = part("aw-heads-scroller");
  const canvas = document.createElement("canvas");
  canvas.dataset.aw = "picture";
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-roledescription", "grid of heads");
  const live = part("aw-visually-hidden");
  live.setAttribute("aria-live", "polite");
  const scrolled = signal(0);

  const layout = computed<HeadsLayout | null>(() => {
    const survey = store.survey.value;
    if (survey === null || ui.width.value === 0) return null;
    return layoutHeads(survey, store.order.value, Math.min(ui.width.value, 1280 * ui.unit.value), ui.unit.value);
  });
  const metric = computed(() => store.survey.value?.metrics.find(({ name }) => name === store.bar.value) ?? null);
  const placeOf = ({ layer, head }: HeadOf) =>
    store.survey.value?.heads.findIndex((one) => one.layer === layer && one.head === head) ?? -1;
  const pointed = computed(() => (ui.pointedHead.value === null ? -1 : placeOf(ui.pointedHead.value)));
  const selected = computed(() => placeOf({ layer: store.layer.value, head: store.head.value }));
  /** Where it stands below the pictures there is always one, so that nothing moves. */
  const described = computed(() => (pointed.value < 0 && ui.mode.value === "narrow" ? selected.value : pointed.value));
  const point = (place: number) => {
    ui.pointedHead.value = store.survey.value?.heads[place] ?? null;
  };

  const views = [
    mount(part("aw-prompt"), () => <Caption ui={ui} metric={metric.value} />),
    mount(part("aw-heads-names"), () => <Names ui={ui} layout={layout.value} pointed={ui.pointedHead.value} />),
    mount(part("aw-heads-layers"), () => <LayerNames ui={ui} layout={layout.value} pointed={ui.pointedHead.value} />),
    mount(part("aw-heads-card"), () => (
      <HeadCard ui={ui} layout={layout.value} place={described.value} scrolled={scrolled.value} />
    )),
    mount(part("aw-problem"), () => <Problem survey={store.survey.value} ui={ui} />),
    mount(part("aw-heads-marks"), () => (
      <Marks survey={store.survey.value} layout={layout.value} selected={selected.value} pointed={pointed.value} />
    )),
  ];
  const [caption, names, layers, card, problem, marks] = views as [View, View, View, View, View, View];
  const board = part("aw-heads-board");
  const pictures = part("aw-heads-pictures");
  pictures.append(canvas, marks.node);
  board.append(names.node, pictures);
  scroller.append(board);
  frame.append(layers.node, scroller, card.node);
  node.append(caption.node, frame, problem.node, live);

  const atlas = new Atlas();
  const detail = signal(0); // grows as larger pictures come
  const ends = [
    effect(() => {
      const at = layout.value;
      if (at === null) return;
      Object.assign(canvas.style, { width: px(at.width), height: px(at.height) });
      board.style.width = px(at.width);
      frame.style.paddingLeft = px(at.left);
      scroller.style.margin = `0 ${px(-at.margin)}`; // so that pictures stand where text does, and rings are whole
      frame.style.setProperty("--aw-heads-left", px(at.left));
      // Few rows: the card stands beside a head, and has room to.
      const survey = store.survey.value;
      const tall = survey === null || ui.mode.value === "narrow" ? 0 : tallest(survey) * ui.unit.value;
      frame.style.minHeight = px(tall);
      layers.node.style.top = px(at.top);
      ui.extent.value = ui.mode.value === "narrow" ? null : at.left + at.width;
    }),
    effect(() => {
      const [at, survey, paints] = [layout.value, store.survey.value, ui.paints.value?.sequential];
      void detail.value;
      void ui.theme.value;
      if (at === null || survey === null || !paints) return;
      drawHeads(canvas, { layout: at, survey, metric: metric.value, paints, style: styleOf(ui), atlas });
    }),
    effect(() => {
      const survey = store.survey.value;
      const bar = metric.value === null ? "" : `, ${metric.value.word.toLowerCase()} below each`;
      const size = survey === null ? "" : `, ${sizeOf(survey)}`;
      canvas.setAttribute("aria-label", `Attention heads${size}${bar}`);
    }),
    effect(() => {
      live.textContent = spoken(store.survey.value, pointed.value, metric.value);
    }),
    moreDetail(ui, { canvas, layout, atlas, arrived: () => detail.value++ }),
  ];

  const under = (event: MouseEvent): number => {
    const at = layout.value;
    if (at === null) return -1;
    const box = canvas.getBoundingClientRect();
    return placeAt(at, event.clientX - box.left, event.clientY - box.top);
  };
  const open = (place: number) => {
    const head = store.survey.value?.heads[place];
    if (head === undefined) return;
    store.select({ layer: head.layer, head: head.head, heads: [head.head] });
    store.show({ view: "heatmap" });
  };
  const listen = { signal: stop };
  canvas.addEventListener("pointermove", (event) => event.pointerType !== "touch" && point(under(event)), listen);
  canvas.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && point(-1), listen);
  canvas.addEventListener("pointerdown", () => canvas.focus({ preventScroll: true }), listen);
  canvas.addEventListener(
    "click",
    (event) => {
      const place = under(event);
      // A finger cannot point without touching: the first tap points, the second opens.
      const isTouch = (event as PointerEvent).pointerType === "touch";
      if (isTouch && place !== pointed.peek()) point(place);
      else open(place);
    },
    listen,
  );
  canvas.addEventListener(
    "keydown",
    (event) => {
      const at = layout.value;
      if (at === null || event.ctrlKey || event.metaKey || event.altKey) return;
      const from = pointed.peek() >= 0 ? pointed.peek() : selected.peek();
      if (from < 0) return;
      const moves: Record<string, () => void> = {
        ArrowLeft: () => point(stepFrom(at, from, -1, 0)),
        ArrowRight: () => point(stepFrom(at, from, 1, 0)),
        ArrowUp: () => point(stepFrom(at, from, 0, -1)),
        ArrowDown: () => point(stepFrom(at, from, 0, 1)),
        Home: () => point(at.at(0, at.where[from]![1])),
        End: () => point(stepToEnd(at, from)),
        Enter: () => open(from),
        " ": () => open(from),
        Escape: () => point(-1),
      };
      const move = moves[event.key];
      if (move === undefined) return;
      move();
      follow(scroller, at, pointed.peek());
      event.preventDefault();
      event.stopPropagation();
    },
    listen,
  );
  scroller.addEventListener(
    "scroll",
    () => {
      scrolled.value = scroller.scrollLeft;
    },
    listen,
  );

  return {
    node,
    dispose() {
      for (const end of ends) end();
      for (const view of views) view.dispose();
    },
  };
}

function stepToEnd(layout: HeadsLayout, place: number): number {
  let at = place;
  for (let next = stepFrom(layout, at, 1, 0); next !== at; next = stepFrom(layout, at, 1, 0)) at = next;
  return at;
}

/** Scroll, across only, so that a head is in view. */
function follow(scroller: HTMLElement, layout: HeadsLayout, place: number): void {
  if (place < 0) return;
  const { x } = cornerOf(layout, place);
  const room = scroller.clientWidth;
  if (x < scroller.scrollLeft) scroller.scrollLeft = x - layout.margin;
  else if (x + layout.size > scroller.scrollLeft + room) scroller.scrollLeft = x + layout.size + layout.margin - room;
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
  };
}

interface MarksProps {
  readonly survey: Survey | null;
  readonly layout: HeadsLayout | null;
  /** Places; -1 for none. */
  readonly selected: number;
  readonly pointed: number;
}

/** Rings around the head that is selected and the one that is pointed at; their names, where names are below. */
function Marks({ survey, layout, selected, pointed }: MarksProps) {
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
        {layout.named && <b>{nameOf(survey, place)}</b>}
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

/** How to read what is below. */
function Caption({ ui, metric }: { ui: Ui; metric: HeadMetric | null }) {
  const { store } = ui;
  const survey = store.survey.value;
  if (survey === null) return <>The kernel computes all heads when this view opens.</>;
  const order = store.order.value;
  const known = survey.metrics.some(({ name }) => name === order);
  const rows = survey.layers.filter(({ heads }) => heads > 0);
  const sampled = rows.find(({ rows: looked, queries }) => looked < queries);
  const many = survey.layers.length > 1;
  const ready = survey.pictures.filter((picture) => picture !== null).length;
  return (
    <>
      {known
        ? `Ordered by ${wordOf(order)}, largest first. `
        : many
          ? "Rows are layers, columns are heads. "
          : "The heads of the layer. "}
      Each picture on its own colour range
      {metric === null
        ? "."
        : `; the ${isDense(ui) ? "tint" : "bar"} is ${metric.word.toLowerCase()}, ${rangeOf(metric)}.`}
      {sampled && ` From ${count(sampled.rows)} of ${count(sampled.queries)} queries of each, exact.`}
      {!survey.complete && survey.error === null && ` ${count(ready)} of ${count(survey.heads.length)} heads so far.`}
    </>
  );
}

function isDense(ui: Ui): boolean {
  const survey = ui.store.survey.value;
  const width = Math.min(ui.width.value, 1280 * ui.unit.value);
  return survey !== null && !layoutHeads(survey, ui.store.order.value, width, ui.unit.value).bars;
}

function rangeOf({ kind, high }: HeadMetric): string {
  if (kind === "weight" || kind === "share") return kind === "share" ? "0 to 100 %" : "0 to 1";
  return kind === "bits" ? `0 to ${metricText(high, kind)}` : `0 to ${metricText(high, kind)} tokens`;
}

function sizeOf({ layers, heads }: Survey): string {
  const alike = layers.every((layer) => layer.heads === layers[0]!.heads);
  if (!alike) return `${layers.length} layers, ${count(heads.length)} heads`;
  return `${layers.length} ${layers.length === 1 ? "layer" : "layers"} by ${layers[0]?.heads ?? 0} heads`;
}

function spoken(survey: Survey | null, place: number, metric: HeadMetric | null): string {
  const at = survey?.heads[place];
  if (at === undefined) return "";
  const number =
    metric === null ? "" : `, ${metric.word.toLowerCase()} ${metricText(metric.values[place]!, metric.kind)}`;
  return `layer ${at.layer}, head ${at.head}${number}`;
}

interface NamesProps {
  readonly ui: Ui;
  readonly layout: HeadsLayout | null;
  readonly pointed: HeadOf | null;
}

/** Numbers above the columns; a line below those that share a key/value head, where that is so in all layers. */
function Names({ ui, layout, pointed }: NamesProps) {
  const survey = ui.store.survey.value;
  if (layout === null || survey === null || layout.top === 0) return null;
  const now = pointed ?? { layer: ui.store.layer.value, head: ui.store.head.value };
  const [first] = survey.layers;
  const alike = survey.layers.every(({ heads, groups }) => heads === first?.heads && groups === first?.groups);
  const shared = alike && first !== undefined && first.groups < first.heads ? first.heads / first.groups : 0;
  const every = layout.across >= 22 * ui.unit.value ? 1 : 4;
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
