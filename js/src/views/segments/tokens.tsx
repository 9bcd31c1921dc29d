/** The answer's tokens, wrapped like text, with the mass by segment above each: where did the answer look? */

import { computed, effect, type ReadonlySignal, signal } from "@preact/signals-core";
import { mount, part, px, type View } from "../../components/dom";
import { pointIn } from "../../components/gestures";
import { sumWord } from "../../contract/stages";
import { largest, roundUp } from "../../data/segments";
import { textMeasure } from "../../state/plot";
import type { Ui } from "../../state/ui";
import { count } from "../../text/format";
import { type Placed, placed } from "../../text/lines";
import {
  type Band,
  bandsOf,
  layTokens,
  lineBox,
  lineIndex,
  linesWithin,
  PILL_SLACK,
  tokenAt,
  withPill,
} from "./drawing/layout";
import { keepScroll } from "./drawing/left";
import { bandAt, evenOf, paintStacks, stackOf, type TokenScene } from "./drawing/stacks";
import { type Style, styleOf } from "./drawing/style";
import { watchTokenKeys } from "./input/keys";
import { pinStack } from "./input/pins";
import { watchSpots } from "./input/pointing";
import type { SegmentsModel, Spot } from "./model";
import { overview } from "./overview";
import { axisText, inWords, shareText } from "./words/numbers";
import type { TokensState } from "./words/states";

const AXIS = 38; // left of the lines, for the numbers of their axis
const FONT = 15;
/** If all lines are taller than this, they scroll within so many pixels. */
const TALLEST = 720;
const SCROLLED = 360;
const SLACK = 2;

/** Return the answer's tokens with their stacks; `room` is their maximum width. */
export function tokensPart(ui: Ui, model: SegmentsModel, room: ReadonlySignal<number>): View {
  const node = part("aw-seg-tokens");
  const scroller = part("aw-seg-scroller");
  const sheet = part("aw-seg-sheet");
  const canvas = document.createElement("canvas");
  canvas.dataset.aw = "picture";
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-roledescription", "stacked columns");
  const state = tokensState(ui, model, room, scroller);
  const style = computed(() => styleOf(ui));
  const scene = computed<TokenScene | null>(() => {
    const layout = state.layout.value;
    if (layout === null || model.mass.value === null) return null;
    const { bands, box, left, most, view } = state;
    const numbers = { bands: bands.value, box: box.value, left: left.value, most: most.value, view: view.value };
    return { model, layout, ...numbers, style: style.value, measure: model.measure.value };
  });
  const words = mount(part("aw-seg-words"), () => <Words ui={ui} model={model} state={state} />);
  const map = overview(ui, model, state, scroller);
  const note = mount(part("aw-seg-note"), () => <More ui={ui} model={model} />);
  sheet.append(canvas, words.node);
  scroller.append(sheet);
  node.append(map.node, scroller, note.node);

  const ends: (() => void)[] = [
    effect(() => {
      const layout = state.layout.value;
      if (layout === null) return;
      sheet.style.height = px(layout.lines.length * state.box.value.pitch);
      scroller.style.height = px(state.view.value.height);
      scroller.toggleAttribute("data-scrolls", state.scrolls.value);
    }),
    effect(() => {
      if (scene.value !== null) paintStacks(canvas, scene.value);
    }),
    effect(() => {
      const layout = state.layout.value;
      if (layout === null) return;
      const { top, height } = state.view.value;
      const { start, stop } = linesWithin(layout.lines.length, state.box.value.pitch, top, top + height);
      const [first, last] = [layout.lines[start], layout.lines[stop - 1]];
      if (first !== undefined && last !== undefined) model.wantTokens(first.start, last.stop);
    }),
    effect(() => {
      const now = model.mass.value;
      const many = `${count(now?.total ?? 0)} tokens by ${count(model.left.value.columns.length)} segments`;
      canvas.setAttribute("aria-label", `Where ${inWords(now?.asking ?? "the answer")} looked, ${many}`);
    }),
  ];
  ends.push(
    keepScroll(
      ui,
      "tokens",
      scroller,
      computed(() => (state.layout.value?.lines.length ?? 0) * state.box.value.pitch),
    ),
  );
  watchPointer(ui, model, state, canvas);
  watchTokenKeys(ui, model, state, canvas);
  return {
    node,
    dispose() {
      for (const end of ends) end();
      for (const view of [words, map, note]) view.dispose();
    },
  };
}

function tokensState(ui: Ui, model: SegmentsModel, room: ReadonlySignal<number>, scroller: HTMLElement): TokensState {
  const { store } = ui;
  const measure = textMeasure(ui);
  const scrolled = signal(0);
  const narrow = computed(() => ui.mode.value === "narrow");
  const positions = computed(() => model.mass.value?.positions ?? new Uint32Array());
  const tokens = computed(() => placed(store.queryLabels.value, [...positions.value], true));
  const left = computed(() => AXIS * ui.unit.value);
  const layout = computed(() => {
    if (room.value === 0) return null;
    const widthOf = ({ text }: Placed) => measure.value(text, FONT);
    const unit = ui.unit.value;
    return layTokens(tokens.value, room.value - left.value - PILL_SLACK * unit, widthOf, unit);
  });
  const withPin = computed(() => {
    const [all, at] = [layout.value, model.token.value];
    const word = tokens.value[at]?.text;
    if (all === null || word === undefined) return all;
    return withPill(all, at, measure.value(word, FONT, 600) + 12 * ui.unit.value);
  });
  const box = computed(() => lineBox(narrow.value, ui.unit.value));
  const bands = computed(() => {
    const [first, second] = [model.pinned.value, model.second.value];
    const pins = [first, second].filter((column) => column >= 0);
    return bandsOf(model.left.value.columns, model.mass.value?.keyColors ?? [], pins);
  });
  const lines = computed(() => layout.value?.lines.length ?? 0);
  const scrolls = computed(() => lines.value * box.value.pitch > TALLEST * ui.unit.value);
  const view = computed(() => ({
    top: scrolls.value ? scrolled.value : 0,
    width: room.value,
    height: scrolls.value ? SCROLLED * ui.unit.value : lines.value * box.value.pitch,
  }));
  let isDue = false;
  const settle = () => {
    isDue = false;
    scrolled.value = scroller.scrollTop;
  };
  scroller.addEventListener(
    "scroll",
    () => {
      if (!isDue) requestAnimationFrame(settle);
      isDue = true;
    },
    { passive: true, signal: ui.stop },
  );
  return {
    ...{ tokens, layout: withPin, bands, box, left, view, scrolls },
    most: computed(() => axisEnd(model, bands.value)),
    follow(at) {
      const where = withPin.peek();
      if (where === null || !scrolls.peek()) return;
      const top = lineIndex(where, at) * box.peek().pitch;
      const { height } = view.peek();
      const from = scroller.scrollTop;
      if (top < from) scroller.scrollTop = top;
      else if (top + box.peek().pitch > from + height) scroller.scrollTop = top + box.peek().pitch - height;
      scrolled.value = scroller.scrollTop;
    },
  };
}

/** The end of the axis: masses sum to 1; for others the largest of the first tokens, rounded up. */
function axisEnd(model: SegmentsModel, bands: readonly Band[]): number {
  const rows = model.mass.value?.first.rows ?? 0;
  if ((model.measure.value === "mass" && model.shares.value) || rows === 0) return 1;
  const totals = Array.from({ length: rows }, (_, at) => {
    const row = model.tokenRow(at);
    return row === null ? 0 : stackOf(model, row, bands).total;
  });
  return roundUp(largest(totals));
}

function watchPointer(ui: Ui, model: SegmentsModel, state: TokensState, canvas: HTMLCanvasElement): void {
  let clicked: { x: number; y: number; token: number } | null = null;
  const spotAt = (event: MouseEvent): Spot | null => {
    const { x, y } = pointIn(canvas, event);
    return spotUnder(model, state, x, y);
  };
  watchSpots(ui, model, canvas, "tokens", spotAt, (spot, event) => {
    if (spot.token === undefined) return;
    // A click may move the pinned band to the baseline: a second click at the same place still means it.
    const [x, y] = [event.clientX, event.clientY];
    const again = clicked !== null && clicked.token === spot.token && Math.hypot(x - clicked.x, y - clicked.y) < 4;
    const column = again && spot.column >= 0 && model.pinned.value >= 0 ? model.pinned.value : spot.column;
    clicked = { x, y, token: spot.token };
    pinStack(ui, model, spot.token, column, event.shiftKey);
  });
}

/** Return the token and the band at a visible point. */
function spotUnder(model: SegmentsModel, state: TokensState, x: number, y: number): Spot | null {
  const layout = state.layout.peek();
  if (layout === null) return null;
  const [box, view, bands, most] = [state.box.peek(), state.view.peek(), state.bands.peek(), state.most.peek()];
  const down = y + view.top;
  const line = Math.floor(down / box.pitch);
  const token = tokenAt(layout, line, x - state.left.peek(), SLACK);
  if (token === null) return null;
  const row = model.tokenRow(token);
  const share = (line * box.pitch + box.top + box.tall - down) / box.tall;
  const band = row === null || share < 0 ? -1 : bandAt(model, row, bands, share, most);
  const columns = bands[band]?.columns ?? [];
  return { part: "tokens", token, column: columns.length === 1 ? columns[0]! : -1 };
}

interface WordsProps {
  readonly ui: Ui;
  readonly model: SegmentsModel;
  readonly state: TokensState;
}

/** The words of the lines in view, the numbers of their axes, and the rings. */
function Words({ ui, model, state }: WordsProps) {
  const layout = state.layout.value;
  const [box, view, left] = [state.box.value, state.view.value, state.left.value];
  if (layout === null) return null;
  const tokens = state.tokens.value;
  const { start, stop } = linesWithin(layout.lines.length, box.pitch, view.top, view.top + view.height);
  const hovered = model.hover.value?.part === "tokens" ? model.hover.value.token : undefined;
  const pinned = model.token.value;
  const shown = layout.lines.slice(start, stop);
  const labels = ui.store.queryLabels.value;
  return (
    <>
      {shown.map((line, at) => {
        const top = (start + at) * box.pitch;
        return (
          <div key={line.start} class="aw-seg-line" style={{ top: px(top) }}>
            <AxisTicks model={model} state={state} first={start + at === 0} at={line.start} />
            {tokens.slice(line.start, line.stop).map((token, index) => {
              const own = line.start + index;
              return (
                <span
                  key={own}
                  class={own === pinned ? "aw-seg-word aw-pill" : "aw-seg-word"}
                  data-hovered={own === hovered || undefined}
                  data-special={token.special || undefined}
                  style={{ left: px(left + layout.lefts[own]!), width: px(layout.widths[own]!), top: px(box.text) }}
                >
                  <bdi>{token.special ? labels.at(token.position).text : token.text || "\u00a0"}</bdi>
                </span>
              );
            })}
            {[hovered, pinned].map((own, which) =>
              own !== undefined && own >= line.start && own < line.stop && (which === 1 || own !== pinned) ? (
                <i
                  key={which === 1 ? "pin" : "hover"}
                  class="aw-ring"
                  data-pinned={which === 1 || undefined}
                  style={{
                    left: px(left + layout.lefts[own]!),
                    top: px(box.top),
                    width: px(layout.widths[own]!),
                    height: px(box.tall),
                  }}
                />
              ) : null,
            )}
          </div>
        );
      })}
    </>
  );
}

/** The numbers left of a line: 0, half, the end, even attention, and in the first line the excluded share. */
function AxisTicks({ model, state, first, at }: Omit<WordsProps, "ui"> & { first: boolean; at: number }) {
  const [box, most, left] = [state.box.value, state.most.value, state.left.value];
  const measure = model.measure.value;
  const row = model.tokenRow(at) ?? model.whole.value;
  const pins = state.bands.value.filter(({ pinned }) => pinned).flatMap(({ columns }) => columns);
  const even = pins.length === 0 || row === null ? Number.NaN : evenOf(model, row, pins) / most;
  const apart = 9 / (box.tall / (left / AXIS)); // distance of two numbers, as a share of the axis
  const ticks = [
    { share: 0, text: model.signed.value ? axisText(-most, measure) : "0" },
    { share: 0.5, text: model.signed.value ? "0" : axisText(most / 2, measure) },
    { share: 1, text: (model.signed.value ? "+" : "") + axisText(most, measure) },
  ].filter(({ share }) => Number.isNaN(even) || even > 1 || Math.abs(share - even) > apart);
  if (even <= 1) ticks.push({ share: even, text: "even" });
  return (
    <>
      {first && model.shares.value && model.left.value.without.length + (model.left.value.self ? 0 : 1) > 0 && (
        <span class="aw-seg-tick" style={{ top: px(Math.max(6, box.top - 13)), right: "auto", width: px(left - 10) }}>
          aside
        </span>
      )}
      {ticks.map(({ share, text }) => (
        <span
          key={text}
          class="aw-seg-tick"
          style={{ top: px(box.top + box.tall * (1 - share)), width: px(left - 10) }}
        >
          {text}
        </span>
      ))}
    </>
  );
}

/** How to read the stacks: the line, the strip, the paler bands. */
export function TokensLegend({ ui, model, style }: { ui: Ui; model: SegmentsModel; style: Style }) {
  const now = model.mass.value;
  const whole = model.whole.value;
  if (now === null || whole === null) return null;
  const pins = [model.pinned.value, model.second.value].filter((column) => column >= 0);
  const { without, self, columns } = model.left.value;
  const measure = model.measure.value;
  const aside = without.map(
    (column) => `${now.keys[column]} ${shareText(whole.rest.raw[whole.row * whole.rest.columns + column]!, now.stage)}`,
  );
  if (!self) aside.push("own key");
  const even = pins.length > 0 ? evenOf(model, whole, pins) : Number.NaN;
  const names = pins.map((column) => now.keys[column]).join(" and ");
  const narrow = ui.mode.value === "narrow";
  return (
    <>
      {pins.length > 0 && Number.isFinite(even) && (
        <span>
          {narrow ? "line: " : <i class="aw-seg-rule" />}
          even attention for {names}
          {measure === "lift" ? "" : `, ${measure === "mass" ? shareText(even) : axisText(even, measure)}`}
        </span>
      )}
      {aside.length > 0 && (
        <span>
          {!narrow && model.shares.value && <i class="aw-seg-swatch" style={{ background: style.track }} />}
          {columns.length === 0 ? "everything is excluded" : `excluded: ${aside.join(", ")}`}
        </span>
      )}
      {!model.shares.value && <span>{sumWords(model)}</span>}
      {measure === "lift" && (
        <span>
          {pins.length > 0 ? "only pinned segments: other lifts have no sum" : "each column: its largest lift"}
        </span>
      )}
      {measure === "per_token" && <span>{model.shares.value ? "mass" : "the sum"} ÷ the tokens of each segment</span>}
      {pins.length > 0 && measure !== "lift" && style.paler < 1 && <span>other segments paler</span>}
      {(measure !== "mass" || !model.shares.value) && now.total > now.first.rows && (
        <span>higher columns are cut off</span>
      )}
    </>
  );
}

/** The sum of another stage and its signs; it is not a share. */
const sumWords = ({ stage, signed }: SegmentsModel) =>
  `${sumWord(stage.value)}, summed over the keys of each segment${signed.value ? ": above the line +, below −" : ""}; not a share of 1`;

/** Only the first tokens of a very long answer are loaded here. */
function More({ ui, model }: { ui: Ui; model: SegmentsModel }) {
  const now = model.mass.value;
  if (now === null || now.positions.length >= now.total || ui.width.value === 0) return null;
  return (
    <>
      the first {count(now.positions.length)} of {count(now.total)} tokens; the {model.shares.value ? "mass" : "sum"}{" "}
      over all of them is below
    </>
  );
}
