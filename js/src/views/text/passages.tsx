/** Passages of text and images side by side with the panel, shared by text view and image view. */

import { effect, type Signal, signal } from "@preact/signals-core";
import { mount, part, px, type View } from "../../components/dom";
import { watchKeys } from "../../components/keyboard";
import { Ramp, ticksOf } from "../../components/legend";
import { headWords, rangeOf } from "../../components/phrases";
import { panel } from "../../components/ranking-panel";
import { BLOCKED, NUMBER } from "../../contract/decode";
import { legendOf, wordOf } from "../../contract/stages";
import { segmentStyle } from "../../draw/segment-colors";
import { PAGE } from "../../state/token-pages";
import type { Ui } from "../../state/ui";
import { count, listNumber } from "../../text/format";
import { lineOf } from "../../text/lines";
import { BoxesView } from "./boxes-view";
import { type BoxProps, FlowBox } from "./flow-box";
import { textKeys } from "./keys";
import { tokenLooksOf } from "./looks";
import { leadOf, marksOf, marksOn, turnToMarks } from "./marks";
import { type Flow, otherSide, RECEIVED, type TextModel, textModel } from "./model";
import { PatchView } from "./patch-view";
import { watchPointer } from "./pointing";

const PANEL_GAP = 36;

/** Return running text (with `withImage`, the image too), and the ranked list. */
export function passagesView(ui: Ui, withImage: boolean): View {
  const { store } = ui;
  const model = textModel(ui, withImage);
  const before = signal(0.55); // the opacity over the image, before it was shown alone
  const node = part("aw-main aw-read");
  const column = part("aw-column");
  const beside = part("aw-beside");
  const passages = part("aw-passages", "picture");
  passages.tabIndex = 0;
  passages.style.width = "100%";
  passages.setAttribute("role", "application");
  passages.setAttribute("aria-roledescription", withImage ? "image" : "text");
  const live = part("aw-visually-hidden");
  live.setAttribute("aria-live", "polite");
  const side = panel(ui);
  const views = [
    mount(passages, () => <Passages ui={ui} model={model} before={before} withImage={withImage} />),
    mount(part("aw-legend", "legend"), () => <Legend ui={ui} model={model} withImage={withImage} />),
    side,
  ];
  column.append(passages, (views[1] as View).node, live);
  beside.append(side.node);
  node.append(column, beside);

  watchPointer(ui, model, passages);
  watchKeys(ui, passages, (step) => textKeys(ui, model, withImage, step));
  const ends = [
    effect(() => {
      const unit = ui.unit.value;
      const wide = ui.mode.value === "wide" ? 340 : 260;
      const isBeside = ui.mode.value === "wide" || ui.mode.value === "beside";
      const own = model.room.value + 24 * unit;
      column.style.width = isBeside ? px(own) : "100%";
      beside.style.width = isBeside ? px(wide * unit) : "100%";
      beside.style.marginLeft = isBeside ? px(PANEL_GAP * unit) : "0";
      ui.extent.value = isBeside ? own + (PANEL_GAP + wide) * unit : null;
      const rows = ui.mode.value === "narrow" ? 7 : 13;
      side.node.style.minHeight = px((30 + 22 * rows + 54) * unit);
    }),
    turnToMarks(ui, model.flows),
    effect(() => {
      const { queries, keys } = store.facts.value;
      const what = withImage ? "Image" : "Text";
      const many =
        model.flows.value.length > 1 ? `${count(queries)} queries and ${count(keys)} keys` : `${count(queries)} tokens`;
      const heads = headWords(store.pictured.value, store.facts.value);
      passages.setAttribute("aria-label", `${what}, layer ${store.layer.value}, ${heads}, ${many}`);
    }),
    effect(() => {
      live.textContent = spoken(ui);
    }),
  ];
  return {
    node,
    dispose() {
      for (const end of ends) end();
      for (const view of views) view.dispose();
    },
  };
}

/** The pin and its strongest partner, for screen readers. */
export function spoken({ store, target, ranked, marked }: Ui): string {
  const at = target.value;
  if (marked.value !== null) {
    const { from, to, queries, keys } = marked.value;
    return `marked: queries ${rangeOf(queries)} of ${from}, keys ${rangeOf(keys)} of ${to}`;
  }
  if (at === null || (store.query.value ?? store.key.value) === null) return "";
  const own = (at.side === "query" ? store.queryLabels : store.keyLabels).value;
  const others = (at.side === "query" ? store.keyLabels : store.queryLabels).value;
  const known = ranked.value;
  const name = `${at.side} ${at.index} ${own.at(at.index).text}`;
  if (known === null || "problem" in known || known.of.index !== at.index || known.of.side !== at.side) return name;
  const [first, value] = [known.ranking.top[0], known.ranking.values[0]];
  if (first === undefined || value === undefined) return name;
  const most = `${otherSide(at.side)} ${first} ${others.at(first).text}, ${wordOf(known.stage)} ${listNumber(value, known.stage)}`;
  return `${name}, most: ${most}`;
}

interface ReaderProps {
  readonly ui: Ui;
  readonly model: TextModel;
  readonly before: Signal<number>;
  readonly withImage: boolean;
}

function Passages({ ui, model, before, withImage }: ReaderProps) {
  if (ui.width.value === 0) return null;
  const flows = model.flows.value;
  return (
    <>
      {flows.map((flow) => {
        const { passage } = flow;
        const both = passage.sides.length > 1;
        const hasText = flow.tokens.value.length > 0;
        return (
          <div key={passage.sides.join()} class="aw-passage" data-side={passage.sides[0]}>
            {!both && <div class="aw-heading">{passage.sides[0] === "query" ? "Queries" : "Keys"}</div>}
            {flow.pages > 1 && <Pager flow={flow} />}
            {hasText && !(withImage && passage.boxes) && <FlowBox {...boxProps(ui, model, flow)} />}
            {withImage && passage.boxes !== null && <BoxesView {...{ ui, model, passage }} />}
            {withImage && passage.patches !== null && <PatchView {...{ ui, model, before, passage }} />}
          </div>
        );
      })}
    </>
  );
}

/** Which tokens of a long text are shown, and buttons to others. */
function Pager({ flow }: { flow: Flow }) {
  const { page, pages, passage } = flow;
  const at = page.value;
  const go = (to: number) => {
    page.value = Math.max(0, Math.min(pages - 1, to));
    flow.scroll.value = 0;
  };
  const last = Math.min(passage.length, (at + 1) * PAGE) - 1;
  return (
    <div class="aw-pager">
      <button type="button" aria-label="Previous tokens" disabled={at === 0} onClick={() => go(at - 1)}>
        ‹
      </button>
      <span>
        tokens <b>{count(at * PAGE)}</b>–<b>{count(last)}</b> of {count(passage.length)}
      </span>
      <button type="button" aria-label="Next tokens" disabled={at === pages - 1} onClick={() => go(at + 1)}>
        ›
      </button>
    </div>
  );
}

function boxProps(ui: Ui, model: TextModel, flow: Flow): BoxProps {
  const looks = tokenLooksOf(ui, model, flow.passage);
  const [pinned] = looks.pinned;
  const lead = leadOf(ui, flow);
  const at = lead ?? (pinned === undefined ? undefined : flow.places.value.get(pinned));
  return {
    flow,
    tokens: flow.tokens.value,
    lines: flow.lines.value,
    looks,
    unit: ui.unit.value,
    theme: ui.theme.value,
    room: model.room.value,
    top: flow.scroll.value,
    line: at === undefined ? null : lineOf(flow.lines.value, at),
    marks: marksOn(ui, flow.passage),
    sought: lead === null ? null : ui.marked.value,
  };
}

function Legend({ ui, model, withImage }: Omit<ReaderProps, "before">) {
  const { store } = ui;
  const mapper = model.mapper.value;
  const both = ui.paints.value;
  const picture = store.picture.value;
  if (both === null || picture === null) return null;
  const flows = model.flows.value;
  const left = !withImage && flows.some((flow) => flow.left.value > 0);
  const patched = !withImage && flows.some(({ passage }) => passage.patches !== null);
  const known = model.weights.value;
  const masked = picture.grid?.kinds.includes(BLOCKED) === true;
  const stage = known?.stage ?? picture.of.stage;
  const reading = ui.hovered.value ?? ui.pinned.value;
  const mark =
    mapper !== null && reading !== null && reading.kind === NUMBER ? mapper.position(reading.value, 0) : null;
  const range = store.color_range.value;
  return (
    <>
      {/* One line of its own: nothing moves when there are colors to explain. */}
      <div class="aw-ramp">
        {mapper === null ? (
          <span>{prompt(ui, flows)}</span>
        ) : (
          <>
            <span title={known?.of === RECEIVED ? "Of the queries that may attend to it" : undefined}>
              {known?.of === RECEIVED
                ? "Mean weight received"
                : legendOf(stage, ui.store.facts.value, ui.store.batch.value)}
              {mapper.log ? ", log" : ""}
            </span>
            <Ramp
              paints={mapper.signed ? both.diverging : both.sequential}
              ticks={ticksOf(mapper, stage)}
              mark={mark}
            />
          </>
        )}
      </div>
      <div class="aw-kinds">
        <Marked ui={ui} />
        {left && <span>special tokens are left out of the text, not of the sum</span>}
        {patched && <span>patches are in the image, not in the text</span>}
        {masked && <span>{withImage ? "no color: masked" : "gray: masked"}</span>}
        {(range === "unit" || Array.isArray(range)) && <span>{range === "unit" ? "fixed range" : "custom range"}</span>}
        {store.pieces.value === "words" && <span>words: keys summed, queries averaged</span>}
      </div>
    </>
  );
}

/** The marks, each a link to its place. */
function Marked({ ui }: { ui: Ui }) {
  const marks = marksOf(ui);
  if (marks.length === 0) return null;
  return (
    <span class="aw-marked">
      marked:
      {marks.map(({ side, name, start, stop, slot }, at) => (
        <>
          {at > 0 && "→"}
          <button
            type="button"
            key={side}
            title={`Show the ${side === "query" ? "queries" : "keys"} of ${name}`}
            onClick={() => {
              ui.marked.value = { ...ui.marked.value!, side };
            }}
          >
            <i class="aw-segment-mark" style={{ background: segmentStyle(slot, ui.theme.value) }} />
            <bdi>{name}</bdi> <span class="aw-muted">{rangeOf({ start, stop })}</span>
          </button>
        </>
      ))}
    </span>
  );
}

function prompt(ui: Ui, flows: readonly Flow[]): string {
  if (ui.target.value !== null) return "";
  const what = flows.length > 1 ? "a query or a key" : "a token";
  return `point at ${what} to see its weights, click to keep it`;
}
