/**
 * The computation from left to right: every stage as a small picture, and below the steps of the pinned pair.
 */

import { effect, type Signal, signal } from "@preact/signals-core";
import { Chevron, mount, part, px, Token, type View } from "../../components/dom";
import { deviationOf, Findings, lookAtFindings } from "../../components/findings";
import { headLines, pinLines, pressKey } from "../../components/keyboard";
import { Raster, SmallRamp, sizeOf } from "../../components/small-matrix";
import { Unfold } from "../../components/unfold";
import { WhatIfPanel, whatIfName } from "../../components/what-if";
import { NAN, NUMBER } from "../../contract/decode";
import { legendOf } from "../../contract/stages";
import type { Stage } from "../../contract/values";
import type { Bin } from "../../data/matrix";
import type { ExplainedPair, SmallPicture, Stages } from "../../data/stage-data";
import type { Paints } from "../../draw/color-mapper";
import { isPinnedPair } from "../../state/pinned-pair";
import type { KeyLine, Ui } from "../../state/ui";
import { count, listNumber } from "../../text/format";
import { SINK_TITLE } from "../../text/words";
import { Gradients } from "./gradients";
import { isNothing, PairSteps, scaleWords } from "./pair-steps";
import { Cost, Scaling } from "./scaling";

const SIDE = 112; // maximum of a small picture's longer side, in pixels
const LEAST_SIDE = 76; // its minimum, to fit in one row
const WIDEST = 960; // of the view, as in stages.css
const ARROW = 58; // between two pictures
const STACKED_BELOW = 104; // below this, name and number need two lines

/** The reader's choices in this view. */
interface Chosen {
  readonly largestFirst: Signal<boolean>;
  /** The sections that are open. */
  readonly open: Signal<ReadonlySet<string>>;
  /** Whether the reader's own q and k are swept. */
  readonly own: Signal<boolean>;
}

/** Return the stages view: every stage as a small picture, and the steps of one pair. */
export function stages(ui: Ui): View {
  const chosen: Chosen = { largestFirst: signal(true), open: signal(new Set<string>()), own: signal(true) };
  ui.keyLines.value = () => stageKeys(ui, 1);
  const view = mount(part("aw-steps"), () => <StagesView ui={ui} chosen={chosen} />);
  const end = effect(() => {
    ui.extent.value = ui.mode.value === "narrow" ? null : Math.min(ui.width.value, WIDEST * ui.unit.value);
  });
  return {
    ...view,
    dispose() {
      end();
      view.dispose();
    },
  };
}

function StagesView({ ui, chosen }: { ui: Ui; chosen: Chosen }) {
  const { store } = ui;
  const found = store.stages.value;
  const paints = ui.paints.value;
  if (found === null && ui.kernel.away.value) return null; // a message below tells what is missing
  if (found === null || paints === null) return <div class="aw-steps-waiting" />;
  const { pair, stale } = shownPair(ui);
  const pictures = found.pictures.length + (found.output === null ? 0 : 1);
  const every = Math.max(1, ...found.pictures.map((one) => one.every));
  const sampled = found.pictures.filter((one) => one.every > 1).length;
  const room = (ui.width.value / ui.unit.value - ARROW * (pictures - 1)) / pictures;
  const side = room < LEAST_SIDE ? SIDE : Math.floor(Math.min(SIDE, room));
  return (
    <>
      <Headline ui={ui} pair={pair} stale={stale} />
      <div class="aw-steps-row" data-aw="picture" role="group" aria-label="Stages of the computation">
        {found.pictures.map((small, index) => (
          <>
            {index > 0 && <Operation {...operation(small.stage, ui, pair)} side={side} />}
            <StagePicture
              key={small.stage}
              side={side}
              {...{ ui, small, paints }}
              pair={stale ? null : pair}
              of={found.of}
            />
          </>
        ))}
        {found.output !== null && (
          <>
            <Operation
              text="· V"
              about="Each row of the output is the mean of the values v, weighted by the row's weights"
              side={side}
            />
            <Output side={side} {...{ ui, paints }} output={found.output} of={found.of} beside={found.pictures[0]} />
          </>
        )}
      </div>
      <Rules ui={ui} chosen={chosen} />
      {every > 1 && (
        <p class="aw-prompt">
          {sampled < found.pictures.length
            ? `${count(found.pictures.length - sampled)} of ${count(found.pictures.length)} stages are exact so far; the others show 1 of ${count(every)} rows.`
            : `Each picture shows 1 of ${count(every)} rows, each exact.`}{" "}
          A pair's numbers are exact.
        </p>
      )}
      {found.output === null && !found.isAlone && store.facts.value.value_size !== null && (
        <p class="aw-prompt">
          The output, {count(store.facts.value.queries)} × {count(store.facts.value.value_size)}, is too large to draw
          here: `w.attention.output(batch, head)` computes it.
        </p>
      )}
      {pair === null ? (
        <p class="aw-prompt">{prompt(ui)}</p>
      ) : (
        <PairSteps ui={ui} pair={pair} stale={stale} largestFirst={chosen.largestFirst} />
      )}
      <div class="aw-sections">
        <Findings ui={ui} />
        {found.pictures.length > 1 && (
          <Unfold name="Scaling" note="what dividing by √d does to scores and weights" open={chosen.open}>
            {() => <Scaling ui={ui} own={chosen.own} />}
          </Unfold>
        )}
        {found.output !== null && (
          <Unfold name="Gradients" note="how the output changes with v, weights, scores, q and k" open={chosen.open}>
            {() => <Gradients ui={ui} />}
          </Unfold>
        )}
        {!store.facts.value.saved && (
          <Unfold name="Cost" note="time and memory as the text grows, measured" open={chosen.open}>
            {() => <Cost ui={ui} />}
          </Unfold>
        )}
      </div>
    </>
  );
}

/** The pinned pair; the last one stays until its numbers arrive, so that nothing jumps. */
function shownPair({ store, kernel }: Ui): { pair: ExplainedPair | null; stale: boolean } {
  const pair = store.pair.value;
  if (pair === null || isPinnedPair(store, pair)) return { pair, stale: false };
  const isPinned = store.query.value !== null && store.key.value !== null;
  const isDue = isPinned && !store.facts.value.saved && !kernel.away.value;
  return isDue ? { pair, stale: true } : { pair: null, stale: false };
}

/**
 * What to do while there is no pair to explain; a saved file may lack the pinned pair.
 */
function prompt({ store, kernel }: Ui): string {
  const { saved } = store.facts.value;
  const pinned = store.query.value !== null && store.key.value !== null;
  if (saved && pinned) return "The steps of this pair were not saved in this file: open the notebook to see them.";
  if (kernel.away.value) return "The steps of a pair come from the kernel: run this widget's cell to see them.";
  return "Rows are queries, columns are keys. Click a cell to see how its weight is computed.";
}

/** "bank → lent  why the weight is .2283", and whether torch gives the same output. */
function Headline({ ui, pair, stale }: { ui: Ui; pair: ExplainedPair | null; stale: boolean }) {
  const { store } = ui;
  return (
    <div class="aw-steps-head">
      {pair !== null && (
        <span class="aw-steps-pair" data-stale={stale || undefined}>
          <span class="aw-pill">
            <Token labels={store.queryLabels.value} index={pair.query} subscript />
          </span>
          <span>→</span>
          <span class="aw-pill">
            <Token labels={store.keyLabels.value} index={pair.key} subscript />
          </span>
          <span class="aw-steps-why">{why(pair)}</span>
          {store.facts.value.why && (
            <button type="button" class="aw-link" onClick={() => store.show({ view: "why" })}>
              why it looked there
            </button>
          )}
        </span>
      )}
      <Parity ui={ui} />
    </div>
  );
}

function why(pair: ExplainedPair): string {
  if (isNothing(pair)) {
    return `fully masked: ${pair.sink === null ? "weights and output are 0" : "the sink has all the weight"}`;
  }
  return pair.allowed ? `why the weight is ${listNumber(pair.weight ?? 0, "weights")}` : "why there is no weight";
}

/** Whether torch's attention gives the same output, or why it cannot be compared. */
function Parity({ ui }: { ui: Ui }) {
  const torch = deviationOf(ui)?.torch;
  if (torch === undefined) return null;
  if (torch.difference === null) {
    return (
      <span class="aw-parity" data-none>
        <span>{torch.why}</span>
      </span>
    );
  }
  const over = `Largest difference in the output, over ${count(torch.queries)} ${torch.queries === 1 ? "query" : "queries"}`;
  return (
    <span class="aw-parity" data-equal={torch.equal || undefined} title={over}>
      {torch.equal ? "✓" : "!"}{" "}
      <span>
        {torch.equal ? (
          `equals torch SDPA, largest difference ${small(torch.difference)}`
        ) : (
          <>
            differs from torch SDPA by {small(torch.difference)}:{" "}
            <button type="button" class="aw-link" onClick={() => lookAtFindings(ui)}>
              see why
            </button>
          </>
        )}
      </span>
    </span>
  );
}

/** Other rules: the current ones, what they change, how to change and reset them. */
function Rules({ ui, chosen }: { ui: Ui; chosen: Chosen }) {
  const { store } = ui;
  const { saved, stages: all } = store.facts.value;
  const name = whatIfName(store.what_if.value);
  const canChange = !saved && all.length > 2;
  const isOpen = canChange && chosen.open.value.has(RULES);
  const toggle = () => {
    const others = [...chosen.open.value].filter((other) => other !== RULES);
    chosen.open.value = new Set(isOpen ? others : [...others, RULES]);
  };
  const words = (
    <>
      What if: <b>{name}</b>
    </>
  );
  return (
    <>
      <div class="aw-rules-line">
        {canChange ? (
          <button type="button" class="aw-rules-toggle" aria-expanded={isOpen} onClick={toggle}>
            <Chevron /> {words}
          </button>
        ) : (
          name !== "none" && <span>{words}</span>
        )}
        {name !== "none" && <Changed ui={ui} />}
      </div>
      {isOpen && <WhatIfPanel ui={ui} />}
    </>
  );
}

const RULES = "What if";

/** What the current rules change, and the reset button. */
function Changed({ ui }: { ui: Ui }) {
  const { store } = ui;
  const original = deviationOf(ui)?.original;
  const of =
    original && original.queries < store.facts.value.queries ? `, over ${count(original.queries)} queries` : "";
  const largest =
    original && original.weights !== null
      ? `largest change: weight ${listNumber(original.weights, "weights")}` +
        (original.output === null ? "" : `, output ${listNumber(original.output, "scores")}`) +
        of
      : "";
  return (
    <span class="aw-changed">
      <span class="aw-muted" title={largest || undefined}>
        {largest}
      </span>
      {!store.facts.value.saved && (
        <button type="button" class="aw-link" onClick={() => store.show({ what_if: {} })}>
          Reset
        </button>
      )}
    </span>
  );
}

const small = (value: number) => (value === 0 ? "0" : value.toExponential(1).replace("-", "−"));

/** The operation between two stages, and its purpose. */
function operation(to: Stage, ui: Ui, pair: ExplainedPair | null): { text: string; about: string } {
  if (to === "scaled") {
    const { sign } = scaleWords(pair?.scale ?? null, ui.store.facts.value.head_size);
    return { text: sign, about: "The same factor for all scores, so that they do not grow with the head size" };
  }
  if (to === "capped") return { text: "softcap", about: "cap · tanh(scaled ÷ cap): no score beyond ± the cap" };
  if (to === "masked") return { text: "+ mask", about: "Blocked scores become −∞; a bias is added to the rest" };
  const sink = ui.store.facts.value.has_sinks ? " and of its learned sink" : "";
  return {
    text: "softmax",
    about: `Over each row: exp of a score ÷ the sum of exp of all scores in its row${sink}, so that each row${sink && " with its sink"} sums to 1`,
  };
}

function Operation({ text, about, side }: { text: string; about: string; side: number }) {
  return (
    <div class="aw-operation" style={{ height: px(side) }} title={about}>
      <span>{text}</span>
      <svg viewBox="0 0 30 8" aria-hidden="true">
        <path d="M0 4h28M24 1l4 3-4 3" />
      </svg>
    </div>
  );
}

interface SmallProps {
  readonly ui: Ui;
  readonly small: SmallPicture;
  readonly of: Stages["of"];
  readonly paints: { sequential: Paints; diverging: Paints };
  readonly pair: ExplainedPair | null;
  /** Pixels of the longer side. */
  readonly side: number;
}

const NUMBER_AT: Partial<Record<Stage, keyof ExplainedPair>> = {
  scores: "score",
  scaled: "scaled",
  capped: "capped",
  masked: "masked",
  weights: "weight",
};

function StagePicture({ ui, small, of, paints, pair, side }: SmallProps) {
  const { store } = ui;
  const name = legendOf(small.stage);
  const number = pair === null ? null : (pair[NUMBER_AT[small.stage] as keyof ExplainedPair] as number | null);
  const blocked = pair !== null && !pair.allowed && (small.stage === "masked" || small.stage === "weights");
  const { width, height } = sizeOf(small, side);
  const box = { width: width / small.grid.columns, height: height / small.grid.rows };
  const at = (query: number, key: number) => ({
    x: Math.floor(key / small.keyBin) * box.width,
    y: Math.floor(query / small.queryBin) * box.height,
    ...box,
  });
  const hover = ui.hover.value;
  const hovered = hover !== null && "bin" in hover ? at(hover.bin.queries.start, hover.bin.keys.start) : null;
  const [query, key] = [store.query.value, store.key.value];
  const pinned = query !== null && key !== null ? at(query, key) : null;
  const under = (event: MouseEvent): Bin => {
    const frame = (event.currentTarget as HTMLElement).getBoundingClientRect();
    const row = clamp(Math.floor((event.clientY - frame.top) / box.height), small.grid.rows);
    const column = clamp(Math.floor((event.clientX - frame.left) / box.width), small.grid.columns);
    const { queries, keys } = store.facts.value;
    return {
      queries: span(row, small.queryBin, queries),
      keys: span(column, small.keyBin, keys),
    };
  };
  return (
    <div class="aw-small" style={{ width: px(side) }}>
      <div class="aw-small-head" data-stacked={side < STACKED_BELOW || undefined}>
        <b>{name === "Weight" ? "Weights" : name === "Score" ? "Scores" : name}</b>
        <span>{blocked ? "masked" : number === null ? "" : listNumber(number, small.stage)}</span>
      </div>
      {/* biome-ignore lint/a11y/noStaticElementInteractions: the canvas inside has the role and the focus */}
      <div
        class="aw-small-picture"
        style={{ width: px(width), height: px(height) }}
        onPointerMove={(event) => {
          ui.hover.value = { bin: under(event) };
        }}
        onPointerLeave={() => {
          ui.hover.value = null;
        }}
        onClick={(event) => {
          const { queries, keys } = under(event);
          const again = query === queries.start && key === keys.start;
          store.select(again ? { query: null, key: null } : { query: queries.start, key: keys.start });
        }}
        onKeyDown={(event) => pressKey(event, (step) => stageKeys(ui, step))}
      >
        <Raster
          small={small}
          of={of}
          paints={paints}
          label={`${name}, ${count(store.facts.value.queries)} queries by ${count(store.facts.value.keys)} keys`}
        />
        {query !== null && pinned !== null && (
          <>
            <i class="aw-small-rule" style={{ left: 0, right: 0, top: px(pinned.y), height: px(pinned.height) }} />
            <i class="aw-small-rule" style={{ top: 0, bottom: 0, left: px(pinned.x), width: px(pinned.width) }} />
          </>
        )}
        {hovered !== null && <Ring box={hovered} />}
        {pinned !== null && <Ring box={pinned} pinned />}
        {small.sink != null && <SinkColumn {...{ small, of, paints }} />}
      </div>
      <SmallRamp small={small} of={of} paints={paints} width={width} />
    </div>
  );
}

/** The learned sink's column, right of a small picture. */
function SinkColumn({ small, of, paints }: Pick<SmallProps, "small" | "of" | "paints">) {
  const values = small.sink!;
  const kinds = Uint8Array.from(values, (value) => (Number.isNaN(value) ? NAN : NUMBER));
  const column = { ...small, grid: { rows: values.length, columns: 1, values, kinds } };
  return (
    <div class="aw-small-sink" title={SINK_TITLE}>
      <Raster small={column} of={of} paints={paints} />
    </div>
  );
}

const LEAST_RING = 7;

function Ring({ box, pinned }: { box: { x: number; y: number; width: number; height: number }; pinned?: boolean }) {
  const width = Math.max(LEAST_RING, box.width);
  const height = Math.max(LEAST_RING, box.height);
  const x = box.x + (box.width - width) / 2;
  const y = box.y + (box.height - height) / 2;
  return (
    <i
      class="aw-ring"
      data-pinned={pinned || undefined}
      style={{ width: px(width), height: px(height), transform: `translate(${x}px, ${y}px)` }}
    />
  );
}

function Output({
  ui,
  output,
  of,
  paints,
  side,
  beside,
}: Omit<SmallProps, "small" | "pair"> & {
  output: NonNullable<Stages["output"]>;
  beside: SmallPicture | undefined;
}) {
  // As large as the pictures before it, so that rows of a query are level.
  const { width, height } = sizeOf(beside ?? output, side);
  const query = ui.store.query.value;
  const row = height / output.grid.rows;
  return (
    <div class="aw-small" style={{ width: px(side) }}>
      <div class="aw-small-head" data-stacked={side < STACKED_BELOW || undefined}>
        <b>Output</b>
        <span class="aw-muted">
          {count(output.rows)} × {count(output.columns)}
        </span>
      </div>
      <div
        class="aw-small-picture"
        style={{ width: px(width), height: px(height) }}
        role="img"
        aria-label={`Output, ${count(output.rows)} queries by ${count(output.columns)} numbers`}
      >
        <Raster small={output} of={of} paints={paints} />
        {query !== null && (
          <i
            class="aw-small-rule"
            style={{ left: 0, right: 0, top: px(Math.floor(query / output.queryBin) * row), height: px(row) }}
          />
        )}
      </div>
      <SmallRamp small={output} of={of} paints={paints} width={width} />
    </div>
  );
}

/** The same keys as on the heatmap, if they have a meaning here. */
/** Return the keys of the small pictures: arrows move the pin. */
function stageKeys(ui: Ui, step: number): KeyLine[] {
  const { store } = ui;
  const { queries, keys } = store.facts.value;
  const move = (down: number, right: number) => () =>
    store.select({
      query: clamp((store.query.value ?? -down) + down, queries),
      key: clamp((store.key.value ?? -right) + right, keys),
    });
  return [
    {
      shown: "← ↑ → ↓",
      does: "move the pin (Shift: by 10)",
      keys: {
        ArrowUp: move(-step, 0),
        ArrowDown: move(step, 0),
        ArrowLeft: move(0, -step),
        ArrowRight: move(0, step),
      },
    },
    { shown: "Home End", does: "first, last key", keys: { Home: move(0, -keys), End: move(0, keys) } },
    ...pinLines(ui),
    ...headLines(ui),
  ];
}

const clamp = (value: number, total: number) => Math.max(0, Math.min(total - 1, value));
const span = (index: number, bin: number, total: number) => ({
  start: index * bin,
  stop: Math.min((index + 1) * bin, total),
});
