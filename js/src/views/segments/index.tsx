/** Where did the answer look? Three pictures of one attention: its tokens, the segments × segments, and all heads. */

import { computed, effect, type ReadonlySignal, signal } from "@preact/signals-core";
import { mount, part, type View } from "../../components/dom";
import { Menu } from "../../components/menu";
import { Message } from "../../components/message";
import { headWords, numbersIn } from "../../components/phrases";
import { placeText } from "../../components/place";
import { legendOf, sumWord } from "../../contract/stages";
import { KernelError } from "../../kernel/kernel";
import { blockNumber } from "../../state/segment-axes";
import { askSegmentsBy } from "../../state/segment-queries";
import type { SegmentReading, Ui } from "../../state/ui";
import { count, listNumber } from "../../text/format";
import { keepSecond } from "./drawing/left";
import { styleOf } from "./drawing/style";
import { effectBody } from "./effect/effect";
import { HeadsCaption, headsPart } from "./heads/heads";
import { goUp } from "./input/pins";
import { listPart, subjectOf } from "./list";
import { MatrixHead, matrixPart } from "./matrix/matrix";
import { type RestRow, type SegmentsModel, segmentsModel } from "./model";
import { Folding, layPairs, type Rooms, roomsOf, section } from "./parts";
import { TokensLegend, tokensPart } from "./tokens";
import { WordsAbove } from "./words/measure";
import { askingSection, showsEffect } from "./words/menus";
import { inWords, spokenNumbers } from "./words/numbers";
import type { HeadsState } from "./words/states";

/** Return the segments view. */
export function segments(ui: Ui): View {
  const model = segmentsModel(ui);
  const node = part("aw-segments");
  const state = computed(() => stateOf(ui));
  const isEffect = computed(() => showsEffect(ui)); // independent of the progress of runs
  const body = part("aw-seg-body");
  const message = mount(part("aw-seg-message"), () => <Problem ui={ui} state={state.value} />);
  message.node.setAttribute("role", "group");
  message.node.style.width = "100%";
  const live = part("aw-visually-hidden");
  live.setAttribute("aria-live", "polite");
  node.append(message.node, body, live);
  const left = ui.cameFrom.peek() === null ? null : ui.leftSegments.peek();
  ui.cameFrom.value = null;
  ui.marked.value = null;
  ui.leftSegments.value = left;
  const ends = [
    effect(() => {
      if (state.value !== "there") {
        body.replaceChildren();
        return;
      }
      const own = new AbortController();
      const shown = { ...ui, stop: own.signal };
      const rooms = computed(() => roomsOf(ui));
      const parts = isEffect.value ? effectBody(shown, model, body, rooms) : bodyOf(shown, model, body, rooms);
      return () => {
        own.abort();
        for (const view of parts) view.dispose();
      };
    }),
    keepSecond(ui, model),
    effect(() => {
      // Messages replace the pictures in the same place.
      message.node.hidden = state.value === "there";
      message.node.dataset.aw = state.value === "there" ? "" : "picture";
      message.node.setAttribute("aria-label", waitingLabel(ui, state.value));
    }),
    effect(() => {
      ui.segmentReading.value = readingOf(model);
    }),
    effect(() => {
      live.textContent = spoken(ui, model);
    }),
    effect(() => {
      const list = ui.mode.value === "beside" || ui.mode.value === "wide";
      ui.extent.value = list ? Math.min(ui.width.value, 1280 * ui.unit.value) : null;
    }),
  ];
  return {
    node,
    dispose() {
      for (const end of ends) end();
      message.dispose();
      ui.segmentReading.value = null;
    },
  };
}

/** All parts of the page, in reading order. */
function bodyOf(ui: Ui, model: SegmentsModel, body: HTMLElement, rooms: ReadonlySignal<Rooms>): View[] {
  const room = (of: (rooms: Rooms) => number) => computed(() => of(rooms.value));
  const open = { heads: signal(true), matrix: signal(false) };
  const style = computed(() => styleOf(ui));

  const tokens = tokensPart(
    ui,
    model,
    room((now) => now.tokens),
  );
  const list = listPart(ui, model);
  const matrix = matrixPart(
    ui,
    model,
    room((now) => now.matrix),
  );
  const heads = headsPart(
    ui,
    model,
    room((now) => now.heads),
  );
  const several = computed(() => model.left.value.columns.length > 1);
  const reading = mount(part("aw-seg-reading"), () => <WordsAbove ui={ui} measure />);
  const tokensHead = mount(part("aw-seg-heading"), () => <TokensHead ui={ui} model={model} />);
  const legend = mount(part("aw-legend aw-seg-legend", "legend"), () => (
    <TokensLegend ui={ui} model={model} style={style.value} />
  ));
  const alone = mount(part("aw-seg-alone"), () => <Alone model={model} />);
  const answer = section([tokensHead.node, tokens.node, legend.node, alone.node]);
  const matrixHead = mount(part("aw-seg-heading"), () => (
    <Folding ui={ui} open={open.matrix} name={<MatrixHead model={model} />} note={sizeOf(model)} />
  ));
  const headsHead = mount(part("aw-seg-heading"), () => (
    <Folding
      ui={ui}
      open={open.heads}
      name={headsTitle(model)}
      note={<HeadsNote ui={ui} model={model} heads={heads} />}
    />
  ));
  const matrixSection = section([matrixHead.node, matrix.node]);
  const headsSection = section([headsHead.node, heads.node]);
  const end = layPairs(ui, rooms, {
    ...{ body, open, several },
    above: [reading.node],
    first: [answer, list.node],
    second: [matrixSection, headsSection],
    folds: [matrix.node, heads.node],
  });
  const views = [reading, tokensHead, tokens, legend, alone, list, matrixHead, matrix, headsHead, heads];
  return [...views, { node: body, dispose: end }];
}

// --- headings -------------------------------------------------------------------------------------------------------

/** "Where did the answer look" (with a menu if there is no answer), how to read the columns, and the way up. */
function TokensHead({ ui, model }: { ui: Ui; model: SegmentsModel }) {
  const now = model.mass.value;
  if (now === null) return null;
  const isAnswer = now.asking === "answer" && now.askingPath.length === 0;
  const asks = <Menu name="Asking" value={now.asking} side="left" sections={[askingSection(ui)]} />;
  const pins = [model.pinned.value, model.second.value].filter((column) => column >= 0);
  return (
    <>
      {now.stage !== "weights" ? (
        <h4 class="aw-heading">
          {legendOf(now.stage, ui.store.facts.value, ui.store.batch.value)}, from each segment, for
          {isAnswer ? " the answer" : asks}
        </h4>
      ) : (
        <h4 class="aw-heading">
          {isAnswer ? "Where did the answer look" : "Where did"}
          {!isAnswer && asks}
          {!isAnswer && "look"}
        </h4>
      )}
      {now.path.length > 0 && (
        <button type="button" class="aw-seg-up" onClick={() => goUp(ui, model)}>
          ‹ {now.path.length > 1 ? now.path.at(-2) : "all segments"}{" "}
          <span class="aw-muted">inside {now.path.at(-1)}</span>
        </button>
      )}
      <span class="aw-seg-caption">
        a column for each token
        {pins.length > 0 && (
          <>
            ,{" "}
            {pins.map((column, index) => (
              <>
                {index > 0 && " and "}
                <b class="aw-pill">
                  <bdi>{now.keys[column]}</bdi>
                </b>
              </>
            ))}{" "}
            on the baseline
          </>
        )}
      </span>
    </>
  );
}

const headsTitle = (model: SegmentsModel) => {
  const name = model.mass.value?.keys[model.pinned.value];
  if (!model.shares.value)
    return `${capital(sumWord(model.stage.value))}, from ${name === undefined ? "which segment" : inWords(name)}, by head`;
  return name === undefined ? "Which heads read which segment" : `Which heads read ${inWords(name)}`;
};

const capital = (text: string) => text.charAt(0).toUpperCase() + text.slice(1);

const sizeOf = (model: SegmentsModel) =>
  `${count(model.rows.value.length)} × ${count(model.left.value.columns.length)}`;

function HeadsNote({
  ui,
  model,
  heads,
}: {
  ui: Ui;
  model: SegmentsModel;
  heads: View & { readonly state: HeadsState };
}) {
  const all = model.headOrder.value.length;
  if (ui.mode.value !== "narrow") return <HeadsCaption model={model} state={heads.state} />;
  const { start, stop } = heads.state.shown.value;
  return <>{`${stop - start} of ${count(all)}`}</>;
}

/** A single segment has nothing to compare with. */
function Alone({ model }: { model: SegmentsModel }) {
  const now = model.mass.value;
  const [only, ...others] = model.left.value.columns;
  if (now === null || only === undefined || others.length > 0) return null;
  const aside = model.left.value.without.length > 0 ? " that is not excluded" : "";
  return (
    <p class="aw-prompt">
      {model.shares.value ? "All mass" : "The whole sum"}
      {aside} is on {now.keys[only]}: there is no other segment{aside}.
    </p>
  );
}

// --- states ---------------------------------------------------------------------------------------------------------

const waitingLabel = ({ store }: Ui, state: State) =>
  state !== "waiting"
    ? "No segments"
    : store.facts.value.saved === undefined
      ? "Computing segments"
      : "Not in this file";

type State = "none" | "error" | "waiting" | "there";

function stateOf({ store }: Ui): State {
  if (store.segments.value === null) return "none";
  if ((store.segments.value.error ?? store.mass.value?.error ?? null) !== null) return "error";
  return store.mass.value === null ? "waiting" : "there";
}

const CALL = 'w.segments = "sentences"';

const NOT_SAVED =
  "The attention between segments was not saved for this head. Choose another head, or open the notebook to compute it.";

/** The message in place of the pictures: no segments, or none that fit. */
function Problem({ ui, state }: { ui: Ui; state: State }) {
  const { store, kernel } = ui;
  if (state === "there") return null;
  if (state === "waiting") {
    if (store.facts.value.saved === undefined) return <div class="aw-seg-waiting" />;
    return <Message sign="empty" title="Not in this file" text={NOT_SAVED} />;
  }
  if (state === "error") {
    const text = store.segments.value?.error ?? store.mass.value?.error ?? "";
    return <Message sign="error" title="These segments cannot be shown" text={text} />;
  }
  const by = (unit: "sentences" | "paragraphs" | "lines") => ({
    name: `By ${unit}`,
    run() {
      askSegmentsBy(kernel, unit).catch((error: unknown) => {
        if (error instanceof KernelError) ui.told.value = { title: "No segments created", text: error.message };
      });
    },
  });
  const can = store.facts.value.saved === undefined && !kernel.away.value;
  return (
    <Message
      sign="empty"
      title="No segments yet"
      text={`Name the parts of the text: ${CALL}, or cap.widget(segments={"doc 1": (12, 40)}).`}
      {...(can ? { actions: [by("sentences"), by("paragraphs")] } : {})}
    />
  );
}

// --- what is pointed at ---------------------------------------------------------------------------------------------

/** The exact numbers under the pointer, or else at the pin. */
function readingOf(model: SegmentsModel): SegmentReading | null {
  const now = model.mass.value;
  if (now === null) return null;
  const spot = model.hover.value;
  const column = (spot?.column ?? -1) >= 0 ? spot!.column : model.pinned.value;
  if (column < 0) return null;
  const isAside = !model.left.value.columns.includes(column);
  const table = model.heads.value;
  if (spot?.part === "heads" && spot.head !== undefined && table !== null) {
    const at = table.columns[column] ?? -1;
    if (at < 0) return null;
    return numbersOf(now.keys[column]!, { rest: table.rest, row: spot.head }, at, table.sizes[at]!, {
      query: null,
      from: now.asking,
      head: table.heads[spot.head]!,
      isAside,
    });
  }
  const matrix = model.matrix.value;
  if (spot?.part === "matrix" && spot.row !== undefined && matrix !== null) {
    const from = { query: null, from: now.rows[spot.row]!, head: null, isAside };
    const exact = model.isExact(spot.row);
    return numbersOf(now.keys[column]!, { rest: matrix, row: spot.row }, column, now.keySizes[column]!, from, exact);
  }
  const { token, row } =
    spot?.part === "tokens" && spot.token !== undefined
      ? { token: spot.token, row: model.tokenRow(spot.token) }
      : subjectOf(model);
  if (row === null) return null;
  const query = token >= 0 ? now.positions[token]! : null;
  const from = { query, from: now.asking, head: null, isAside };
  return numbersOf(now.keys[column]!, row, column, now.keySizes[column]!, from);
}

export function numbersOf(
  to: string,
  { rest, row }: RestRow,
  column: number,
  size: number,
  from: Pick<SegmentReading, "query" | "from" | "head" | "isAside">,
  exact = true,
): SegmentReading {
  const at = row * rest.columns + column;
  const [mass, even, raw] = [rest.mass[at]!, rest.even[at]!, rest.raw[at]!];
  const lift = even > 0 && rest.shares ? mass / even : Number.NaN;
  return {
    ...from,
    shares: rest.shares,
    to,
    mass,
    raw,
    even,
    lift,
    perToken: size > 0 ? mass / size : Number.NaN,
    exact,
  };
}

/** "doc 3, mass .0770, lost 2.380 nats". */
function spokenEffect(ui: Ui): string {
  const { name, mass, lost } = ui.removed.value!;
  const looked = Number.isNaN(mass) ? "" : `, mass ${listNumber(mass, "weights")}`;
  const missed = lost === null ? "not yet run" : `lost ${listNumber(lost, "scores")} ${ui.store.effects.value?.unit}`;
  return `${name}${looked}, ${missed}`;
}

/** "answer token nail, doc 3, mass .5276, 3.8 times even". */
function spoken(ui: Ui, model: SegmentsModel): string {
  const reading = ui.segmentReading.value;
  const spot = model.hover.value;
  const now = model.mass.value;
  if (now === null) return "";
  if (ui.removed.value !== null) return spokenEffect(ui);
  if (reading === null) {
    if (spot?.part !== "tokens" || spot.token === undefined) return "";
    return `${now.asking} token ${placeText(ui.store.queryLabels.value, now.positions[spot.token] ?? 0, "query")}`;
  }
  const { query, from, head, to, mass, exact } = reading;
  const who =
    query !== null
      ? `${from} token ${placeText(ui.store.queryLabels.value, query, "query")}`
      : head !== null
        ? `layer ${head.layer} ${headWords(head.head, numbersIn(ui.store.facts.value, head.layer))}, ${from}`
        : from;
  return `${who}, ${to}, ${exact ? spokenNumbers(reading, now.stage) : `mass ${blockNumber(mass, reading, String)}`}`;
}
