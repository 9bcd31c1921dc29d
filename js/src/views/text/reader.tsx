/** Passages of text and images side by side with the panel: what text view and image view have in common. */

import { effect, type Signal, signal } from "@preact/signals-core";
import { Component, createRef } from "preact";
import { pinLine } from "../../components/axis-labels";
import { mount, part, px, type View } from "../../components/dom";
import { stepHead, stepLayer } from "../../components/keyboard";
import { Ramp, ticksOf } from "../../components/legend";
import { headWords } from "../../components/phrases";
import { panel } from "../../components/ranking-panel";
import { BLOCKED, NAN, NUMBER } from "../../contract/decode";
import { legendOf, wordOf } from "../../contract/stages";
import type { Side } from "../../contract/traits";
import { PAGE } from "../../state/token-pages";
import type { Hover, Ui } from "../../state/ui";
import { count, listNumber } from "../../text/format";
import { PatchPicture, type Ring } from "./image";
import type { Line, Placed } from "./lines";
import {
  type Flow,
  LEAST_SHARE,
  otherSide,
  type Passage,
  SLACK,
  type TextModel,
  textModel,
  type Weights,
} from "./model";
import { patchAt } from "./patches";

const PITCH = 30;
/** Lines in view at most; more are scrolled to. */
const MOST_LINES = 16;
const BEYOND = 4; // lines above and below what is in view
const PANEL_GAP = 36;
const SUBSCRIPT = 7.2; // pixels of one of its digits
/** How far along the ramp the tint behind a token is, so that ink always reads; colours with signs are darker there. */
const TINT = 0.4;
const SIGNED_TINT = 0.32;

export function reader(ui: Ui, withImage: boolean): View {
  const { store, stop } = ui;
  const model = textModel(ui, withImage);
  const coloured = signal(true);
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
    mount(passages, () => <Passages ui={ui} model={model} coloured={coloured} withImage={withImage} />),
    mount(part("aw-legend", "legend"), () => <Legend ui={ui} model={model} withImage={withImage} />),
    side,
  ];
  column.append(passages, (views[1] as View).node, live);
  beside.append(side.node);
  node.append(column, beside);

  listen(ui, model, passages);
  passages.addEventListener(
    "keydown",
    (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !press(ui, model, withImage, event)) return;
      event.preventDefault();
      event.stopPropagation();
    },
    { signal: stop },
  );
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
    effect(() => {
      const { queries, keys } = store.facts.value;
      const what = withImage ? "Image" : "Text";
      const many =
        model.flows.value.length > 1 ? `${count(queries)} queries and ${count(keys)} keys` : `${count(queries)} tokens`;
      const heads = headWords(store.pictured.value);
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

/** What is pinned, and its strongest, for those who hear it. */
function spoken({ store, target, ranked }: Ui): string {
  const at = target.value;
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
  readonly coloured: Signal<boolean>;
  readonly withImage: boolean;
}

function Passages({ ui, model, coloured, withImage }: ReaderProps) {
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
            {hasText && <FlowBox {...boxProps(ui, model, flow)} />}
            {withImage && passage.patches !== null && <Picture {...{ ui, model, coloured, passage }} />}
          </div>
        );
      })}
    </>
  );
}

/** Which tokens of a long text are shown, and the way to others. */
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
      <button type="button" aria-label="Tokens before" disabled={at === 0} onClick={() => go(at - 1)}>
        ‹
      </button>
      <span>
        tokens <b>{count(at * PAGE)}</b>–<b>{count(last)}</b> of {count(passage.length)}
      </span>
      <button type="button" aria-label="Tokens after" disabled={at === pages - 1} onClick={() => go(at + 1)}>
        ›
      </button>
    </div>
  );
}

/** How each token of a passage looks now. */
interface Looks {
  /** Of a position: the tint behind it and its full colour, or how else it is marked. */
  of(position: number): Look | null;
  readonly pinned: ReadonlySet<number>;
  readonly further: ReadonlySet<number>;
  /** The text of the pinned token: others that are alike carry their position. */
  readonly alike: string | null;
}

type Look = { readonly tint: string; readonly full: string } | "masked" | "nan";

/** The side that a click in a passage pins. */
const sideOf = ({ store }: Ui, passage: Passage): Side =>
  passage.sides.length > 1 ? store.direction.value : (passage.sides[0] as Side);

/** Whether a passage is coloured: it is what the pinned token attends to, or who attends to it. */
function weightsOn(model: TextModel, passage: Passage): Weights | null {
  const known = model.weights.value;
  return known !== null && passage.sides.includes(otherSide(known.of.side)) ? known : null;
}

function looksOf(ui: Ui, model: TextModel, passage: Passage): Looks {
  const { store } = ui;
  const known = weightsOn(model, passage);
  const brush = model.brush.value;
  const both = ui.paints.value;
  const paints = brush === null || both === null ? null : brush.signed ? both.diverging : both.sequential;
  const own = ui.target.value?.side ?? sideOf(ui, passage);
  const [pinned, further] = [new Set<number>(), new Set<number>()];
  for (const side of passage.sides) {
    const now = side === "query" ? store.query.value : store.key.value;
    for (const pin of store.shownPins.value) {
      const index = pin[side === "query" ? 0 : 1];
      if (index !== null && index !== now) further.add(index);
    }
    if (now !== null) (side === own ? pinned : further).add(now);
  }
  const [first] = pinned;
  return {
    pinned,
    further,
    alike: first === undefined ? null : passage.labels.at(first).text,
    of(position) {
      if (known === null || brush === null || paints === null) return null;
      const at = position - known.start;
      const kind = known.kinds[at];
      if (kind === undefined) return null;
      if (kind === BLOCKED) return "masked";
      if (kind === NAN) return "nan";
      const value = known.values[at] as number;
      if (kind === NUMBER && brush.share(value) < LEAST_SHARE) return null;
      const index = brush.index(value, 0);
      const [zero, share] = brush.signed ? [128, SIGNED_TINT] : [0, TINT];
      const tint = paints.css[Math.round(zero + (index - zero) * share)] as string;
      return { tint, full: paints.css[index] as string };
    },
  };
}

interface BoxProps {
  readonly flow: Flow;
  readonly tokens: readonly Placed[];
  readonly lines: readonly Line[];
  readonly looks: Looks;
  readonly unit: number;
  readonly room: number;
  readonly top: number;
  /** The line to be in view. */
  readonly line: number | null;
}

function boxProps(ui: Ui, model: TextModel, flow: Flow): BoxProps {
  const looks = looksOf(ui, model, flow.passage);
  const [pinned] = looks.pinned;
  const at = pinned === undefined ? undefined : flow.places.value.get(pinned);
  return {
    flow,
    tokens: flow.tokens.value,
    lines: flow.lines.value,
    looks,
    unit: ui.unit.value,
    room: model.room.value,
    top: flow.scroll.value,
    line: at === undefined ? null : lineOf(flow.lines.value, at),
  };
}

/** Pointing previews, or says the number of a pair while something is pinned; a click pins, with shift beside others. */
function listen(ui: Ui, model: TextModel, node: HTMLElement): void {
  const under = (event: MouseEvent): { passage: Passage; position: number } | null => {
    const target = event.target as Element;
    const side = target.closest<HTMLElement>(".aw-passage")?.dataset.side;
    const passage = model.flows.value.find((flow) => flow.passage.sides[0] === side)?.passage;
    if (passage === undefined) return null;
    const token = target.closest<HTMLElement>("[data-at]");
    if (token !== null) return { passage, position: Number(token.dataset.at) };
    const picture = target.closest(".aw-patches");
    if (picture === null || passage.patches === null) return null;
    const box = picture.getBoundingClientRect();
    const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    const patch = patchAt(passage.patches, x, y);
    return patch === null ? null : { passage, position: passage.patches.start + patch };
  };
  const options = { signal: ui.stop };
  node.addEventListener(
    "pointermove",
    (event) => {
      const at = event.pointerType === "touch" ? null : under(event);
      if (at !== null) ui.hover.value = hoverOf(ui, at.passage, at.position); // between two words nothing changes
    },
    options,
  );
  node.addEventListener(
    "pointerleave",
    () => {
      ui.hover.value = null;
    },
    options,
  );
  node.addEventListener(
    "mousedown",
    (event) => {
      if (event.shiftKey && under(event) !== null) event.preventDefault(); // no selection of text
    },
    options,
  );
  node.addEventListener(
    "click",
    (event) => {
      const at = under(event);
      if (at !== null) pinLine(ui, sideOf(ui, at.passage), at.position, event.shiftKey);
    },
    options,
  );
}

/** What pointing at a position means: while another is pinned their pair, else its own row or column. */
function hoverOf(ui: Ui, passage: Passage, position: number): Hover {
  const { store } = ui;
  const target = ui.target.peek();
  const isPinned = (store.query.peek() ?? store.key.peek()) !== null;
  if (!isPinned || target === null || !passage.sides.includes(otherSide(target.side))) {
    return { target: { side: sideOf(ui, passage), index: position } };
  }
  const span = (index: number) => ({ start: index, stop: index + 1 });
  const [own, other] = [span(target.index), span(position)];
  return { bin: target.side === "query" ? { queries: own, keys: other } : { queries: other, keys: own } };
}

/** The line that the token at a place is in. */
function lineOf(lines: readonly Line[], at: number): number {
  let [low, high] = [0, lines.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if ((lines[middle] as Line).start <= at) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** Lines of a text: only those in view are in the page. */
class FlowBox extends Component<BoxProps> {
  private box = createRef<HTMLDivElement>();
  private shown: number | null = null;

  override componentDidMount() {
    this.follow();
  }

  override componentDidUpdate() {
    this.follow();
  }

  /** Bring the line of the pin into view, once. */
  private follow() {
    const { flow, line, unit, lines } = this.props;
    const box = this.box.current;
    if (box === null || line === this.shown) return;
    this.shown = line;
    if (line === null || lines.length <= MOST_LINES) return;
    const pitch = PITCH * unit;
    const high = MOST_LINES * pitch;
    const to = Math.max((line + 1) * pitch - high, Math.min(flow.scroll.peek(), line * pitch));
    box.scrollTop = to;
    flow.scroll.value = to; // the event comes a frame later
  }

  /** Whether the positions of tokens that are alike fit beside them: a line is broken without them, and stays so. */
  private hasRoom(line: Line): boolean {
    const { flow, tokens, looks, unit, room } = this.props;
    if (looks.alike === null) return false;
    let width = line.width;
    for (let at = line.start; at < line.stop; at++) {
      const { position } = tokens[at] as Placed;
      const label = flow.passage.labels.at(position);
      if (label.text !== looks.alike) continue;
      width += SUBSCRIPT * label.subscript.length * unit;
      if (looks.pinned.has(position)) width += (4 + label.text.length) * unit;
    }
    return width <= room + SLACK * unit;
  }

  override render({ flow, tokens, lines, looks, unit, top }: BoxProps) {
    const pitch = PITCH * unit;
    const high = Math.min(lines.length, MOST_LINES) * pitch;
    const first = Math.max(0, Math.floor(top / pitch) - BEYOND);
    const last = Math.min(lines.length, Math.ceil((top + high) / pitch) + BEYOND);
    const scrolls = lines.length > MOST_LINES;
    return (
      <div
        class="aw-flow"
        ref={this.box}
        data-scrolls={scrolls || undefined}
        style={{ height: px(high + (scrolls ? 0 : 4 * unit)) }}
        onScroll={(event: Event) => {
          flow.scroll.value = (event.currentTarget as HTMLElement).scrollTop;
        }}
      >
        <div style={{ height: px(lines.length * pitch) }}>
          {lines.slice(first, last).map((line, at) => (
            <div
              class="aw-line"
              key={line.start}
              dir={line.rtl ? "rtl" : "ltr"}
              style={{ top: px((first + at) * pitch) }}
            >
              {tokens.slice(line.start, line.stop).map((token, place, all) => (
                <Token
                  key={token.position}
                  token={token}
                  first={place === 0}
                  glued={all[place + 1]?.gap === ""}
                  looks={looks}
                  flow={flow}
                  numbered={this.hasRoom(line)}
                />
              ))}
            </div>
          ))}
        </div>
      </div>
    );
  }
}

interface TokenProps {
  readonly token: Placed;
  readonly first: boolean;
  /** Whether the next one follows without a space. */
  readonly glued: boolean;
  readonly numbered: boolean;
  readonly looks: Looks;
  readonly flow: Flow;
}

function Token({ token, first, glued, looks, flow, numbered }: TokenProps) {
  const { position, text, gap, special } = token;
  const look = looks.of(position);
  const pinned = looks.pinned.has(position);
  const further = !pinned && looks.further.has(position);
  const coloured = look !== null && typeof look === "object" ? look : null;
  const marked = coloured !== null || pinned || further;
  const label = marked ? flow.passage.labels.at(position) : null;
  const subscript = label !== null && numbered && label.text === looks.alike ? label.subscript : "";
  const names = [
    "aw-word",
    pinned ? "aw-pill" : further ? "aw-word-outline" : coloured ? "aw-tinted" : "",
    look === "masked" && !pinned ? "aw-word-masked" : look === "nan" ? "aw-word-nan" : "",
    special ? "aw-word-special" : "",
  ];
  return (
    <>
      {first ? "" : gap}
      <span
        data-at={position}
        class={names.filter(Boolean).join(" ")}
        data-joined={gap === "" && !first ? (glued ? "both" : "before") : glued ? "after" : undefined}
        style={coloured !== null && !pinned ? { "--aw-tint": coloured.tint, "--aw-full": coloured.full } : undefined}
      >
        {text}
        {subscript !== "" && <sub>{subscript}</sub>}
      </span>
    </>
  );
}

function Picture({ ui, model, coloured, passage }: Omit<ReaderProps, "withImage"> & { passage: Passage }) {
  const patches = passage.patches;
  if (patches === null) return null;
  const looks = looksOf(ui, model, passage);
  const many = patches.rows * patches.columns;
  const known = weightsOn(model, passage);
  const brush = model.brush.value;
  const both = ui.paints.value;
  const paints = brush === null || both === null ? null : brush.signed ? both.diverging : both.sequential;
  const bitmap = model.image.value;
  const plate = bitmap === null ? (both?.sequential.css[0] ?? "") : "";
  const colours =
    known === null || brush === null || paints === null
      ? Array<string>(many).fill(plate)
      : Array.from({ length: many }, (_, at) => {
          const kind = known.kinds[patches.start + at - known.start];
          if (kind === NUMBER)
            return paints.css[brush.index(known.values[patches.start + at - known.start] as number, 0)] ?? "";
          return kind === NAN ? paints.bad : "";
        });
  const within = (position: number) => position >= patches.start && position < patches.start + many;
  const ring = (positions: Iterable<number>, kind: Ring["kind"]) =>
    [...positions].filter(within).map((position) => ({ patch: position - patches.start, kind }));
  const hovered = hoveredIn(ui, passage);
  return (
    <>
      <PatchPicture
        {...{ patches, bitmap, colours }}
        message={ui.store.image.value ?? null}
        coloured={coloured.value && known !== null}
        ink={both?.sequential.ink ?? ""}
        rings={[
          ...ring(hovered === null ? [] : [hovered], "hovered"),
          ...ring(looks.further, "further"),
          ...ring(looks.pinned, "pinned"),
        ]}
        room={model.room.value}
        unit={ui.unit.value}
        dpr={ui.dpr.value}
      />
      {bitmap !== null && known !== null && (
        <button
          type="button"
          class="aw-toggle"
          aria-pressed={!coloured.value}
          onClick={() => {
            coloured.value = !coloured.value;
          }}
        >
          {coloured.value ? "show the image alone" : "show weights over the image"}
        </button>
      )}
    </>
  );
}

/** The position in a passage that the pointer is over. */
function hoveredIn({ hover, target }: Ui, passage: Passage): number | null {
  const at = hover.value;
  if (at === null) return null;
  if ("target" in at) return passage.sides.includes(at.target.side) ? at.target.index : null;
  const side = otherSide(target.value?.side ?? "query");
  return passage.sides.includes(side) ? (side === "query" ? at.bin.queries : at.bin.keys).start : null;
}

function Legend({ ui, model, withImage }: Omit<ReaderProps, "coloured">) {
  const { store } = ui;
  const brush = model.brush.value;
  const both = ui.paints.value;
  const picture = store.picture.value;
  if (both === null || picture === null) return null;
  const flows = model.flows.value;
  const left = !withImage && flows.some((flow) => flow.left.value > 0);
  const patched = !withImage && flows.some(({ passage }) => passage.patches !== null);
  const known = model.weights.value;
  const masked = known?.kinds.includes(BLOCKED) === true;
  const stage = known?.stage ?? picture.of.stage;
  const reading = ui.hovered.value ?? ui.pinned.value;
  const mark = brush !== null && reading !== null && reading.kind === NUMBER ? brush.position(reading.value, 0) : null;
  const range = store.color_range.value;
  return (
    <>
      {brush !== null && (
        <div class="aw-ramp">
          <span>
            {legendOf(stage)}
            {brush.log ? ", log" : ""}
          </span>
          <Ramp paints={brush.signed ? both.diverging : both.sequential} ticks={ticksOf(brush, stage)} mark={mark} />
        </div>
      )}
      <div class="aw-kinds">
        {left && <span>special tokens are left out of the text, not of the sum</span>}
        {patched && <span>patches are in the image, not in the text</span>}
        {masked && <span>{withImage ? "no colour: masked" : "grey: masked"}</span>}
        {brush !== null && (range === "unit" || Array.isArray(range)) && (
          <span>{range === "unit" ? "fixed range" : "own range"}</span>
        )}
        {store.pieces.value === "words" && <span>words: weights to one summed, from one averaged</span>}
        {model.weights.value === null && <span>{prompt(ui, flows)}</span>}
      </div>
    </>
  );
}

function prompt(ui: Ui, flows: readonly Flow[]): string {
  if (ui.target.value !== null) return "";
  const what = flows.length > 1 ? "a query or a key" : "a token";
  return `point at ${what} to see its weights, click to keep it`;
}

/** Arrows move the pin along the text, from line to line, from patch to patch. */
function press(ui: Ui, model: TextModel, withImage: boolean, { key, shiftKey }: KeyboardEvent): boolean {
  const { store } = ui;
  const flows = model.flows.value;
  const side = ui.target.value?.side ?? store.direction.value;
  const flow = flows.find(({ passage }) => passage.sides.includes(side)) ?? flows[0];
  if (flow === undefined) return false;
  const at = (side === "query" ? store.query : store.key).value;
  const pin = (position: number | null) => {
    if (position !== null)
      store.select(side === "query" ? { query: position, key: null } : { query: null, key: position });
  };
  const step = shiftKey ? 10 : 1;
  const place = at === null ? undefined : flow.places.value.get(at);
  const rtl = place !== undefined && flow.lines.value[lineOf(flow.lines.value, place)]?.rtl === true;
  const actions: Record<string, () => void> = {
    ArrowLeft: () => pin(along(flow, at, rtl ? step : -step, withImage)),
    ArrowRight: () => pin(along(flow, at, rtl ? -step : step, withImage)),
    ArrowUp: () => pin(across(model, flow, at, -1, withImage)),
    ArrowDown: () => pin(across(model, flow, at, 1, withImage)),
    Home: () => pin(edge(flow, at, 0)),
    End: () => pin(edge(flow, at, 1)),
    Enter: () => pin(hoveredIn(ui, flow.passage)),
    " ": () => pin(hoveredIn(ui, flow.passage)),
    "[": () => stepHead(ui, -1),
    "]": () => stepHead(ui, 1),
    "{": () => stepLayer(ui, -1),
    "}": () => stepLayer(ui, 1),
  };
  if (store.query.value !== null || store.key.value !== null) {
    actions.Escape = () => store.select({ query: null, key: null });
  }
  const goTo = ui.root.querySelector<HTMLInputElement>("input[data-aw=goto]");
  if (goTo !== null) actions["/"] = () => goTo.focus();
  const action = actions[key];
  action?.();
  return action !== undefined;
}

/** The position so many tokens further on: what is not shown is passed over, and pages are turned. */
function along(flow: Flow, at: number | null, by: number, withImage: boolean): number | null {
  const { passage, pages } = flow;
  const shown = (position: number) =>
    withImage || (flow.places.value.has(position) ?? false) || (pages > 1 && !passage.labels.at(position).special);
  if (at === null) return flow.tokens.value[0]?.position ?? passage.patches?.start ?? null;
  let [position, left] = [at, Math.abs(by)];
  for (let next = at + Math.sign(by); left > 0 && next >= 0 && next < passage.length; next += Math.sign(by)) {
    if (!shown(next)) continue;
    position = next;
    left--;
  }
  return position;
}

/** The token above or below, nearest to the middle of this one; of a patch the next row. */
function across(model: TextModel, flow: Flow, at: number | null, by: 1 | -1, withImage: boolean): number | null {
  const { patches } = flow.passage;
  if (at === null) return along(flow, null, 1, withImage);
  if (withImage && patches !== null && at >= patches.start && at < patches.start + patches.rows * patches.columns) {
    const next = at + by * patches.columns;
    return next >= patches.start && next < patches.start + patches.rows * patches.columns ? next : at;
  }
  const place = flow.places.value.get(at);
  if (place === undefined) return along(flow, null, 1, withImage);
  const [tokens, lines] = [flow.tokens.value, flow.lines.value];
  const index = lineOf(lines, place);
  const to = lines[index + by];
  if (to === undefined) return withImage && by > 0 && patches !== null ? patches.start : at;
  const middles = (line: Line) => {
    let x = 0;
    return tokens.slice(line.start, line.stop).map((token) => {
      const width = model.widthOf(token) + (token.gap === "" ? 0 : 4);
      x += width;
      return x - width / 2;
    });
  };
  const from = lines[index] as Line;
  const x = middles(from)[place - from.start] as number;
  const distances = middles(to).map((middle) => Math.abs(middle - x));
  return tokens[to.start + distances.indexOf(Math.min(...distances))]?.position ?? at;
}

/** The first or last token of the line. */
function edge(flow: Flow, at: number | null, end: 0 | 1): number | null {
  const place = at === null ? 0 : flow.places.value.get(at);
  if (place === undefined) return at;
  const line = flow.lines.value[lineOf(flow.lines.value, place)];
  if (line === undefined) return at;
  return flow.tokens.value[end === 0 ? line.start : line.stop - 1]?.position ?? at;
}
