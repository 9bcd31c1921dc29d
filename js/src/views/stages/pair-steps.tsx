/** One weight explained step by step: name and formula, a picture, and the resulting number. */

import type { Signal } from "@preact/signals-core";
import type { ComponentChildren } from "preact";
import { Token } from "../../components/dom";
import { dragScale } from "../../components/what-if";
import { BLOCKED, NAN } from "../../contract/decode";
import { legendOf, wordOf } from "../../contract/stages";
import type { Carried } from "../../contract/values";
import { type ExplainedPair, type Numbers, waterfall } from "../../data/stage-data";
import type { Ui } from "../../state/ui";
import { count, listNumber, percent } from "../../text/format";
import { SINK } from "../../text/words";

const WIDEST = 500; // of a picture, in pixels
const BESIDE = 190 + 112 + 2 * 16; // beside it: name, result, gaps
const MARGIN = 24; // right of a picture, for overflow
const LABELS = 9; // the most labels under the bars of the softmax
const APART = 54; // pixels between two of them
const EDGE = 20; // pixels from a chart's left edge within which a label begins at the edge
const ROOMY = 440; // pixels for three notes side by side

interface StepProps {
  readonly ui: Ui;
  readonly pair: ExplainedPair;
  /** Pixels of its picture. */
  readonly wide: number;
}

interface PairStepsProps {
  readonly ui: Ui;
  readonly pair: ExplainedPair;
  /** Whether another pair has been pinned, whose numbers are due. */
  readonly stale: boolean;
  readonly largestFirst: Signal<boolean>;
}

/** Show the steps of one pair through the stages. */
export function PairSteps({ ui, pair, stale, largestFirst }: PairStepsProps) {
  const stacked = ui.mode.value === "narrow" || ui.mode.value === "under";
  const room = ui.width.value / ui.unit.value - MARGIN - (stacked ? 0 : BESIDE);
  const step: StepProps = { ui, pair, wide: Math.max(200, Math.floor(Math.min(WIDEST, room))) };
  return (
    <div class="aw-ladder" data-aw="ladder" data-stale={stale || undefined}>
      {pair.score !== null && <DotProduct {...step} largestFirst={largestFirst} />}
      {pair.scaled !== null && <Scale {...step} />}
      {pair.softcap !== null && <Softcap {...step} />}
      {pair.masked !== null && <Mask {...step} />}
      <Softmax {...step} />
      {pair.value !== null && pair.output !== null && <Value {...step} />}
      <CarriedRows {...step} />
    </div>
  );
}

/** Return whether the query's row is fully masked. */
export const isNothing = (pair: ExplainedPair) => pair.maximum === Number.NEGATIVE_INFINITY;

interface RowProps {
  readonly name: string;
  readonly formula: ComponentChildren;
  readonly result: string;
  readonly unit: string;
  /** The result without the other rules, or ""; its line is always kept, so that nothing moves. */
  readonly before?: string | undefined;
  /** The purpose of the step. */
  readonly about?: ComponentChildren;
  readonly children: ComponentChildren;
}

function Row({ name, formula, result, unit, before, about, children }: RowProps) {
  return (
    <section class="aw-step" aria-label={`${name}: ${unit} ${result}`}>
      <div class="aw-step-name">
        <h4>{name}</h4>
        <div>{formula}</div>
      </div>
      <div class="aw-step-picture">
        {children}
        {about && <p class="aw-about">{about}</p>}
      </div>
      <div class="aw-step-result">
        <output>{result}</output>
        <div>{unit}</div>
        {before !== undefined && before !== "" && before !== result ? (
          <div class="aw-step-before">○ {before} before</div>
        ) : (
          before !== undefined && <div>&nbsp;</div>
        )}
      </div>
    </section>
  );
}

const score = (value: number | null) => listNumber(value ?? Number.NaN, "scores");
const weight = (value: number | null) => listNumber(value ?? Number.NaN, "weights");
const frame = (wide: number, tall: number) => ({
  viewBox: `-2 0 ${wide + MARGIN - 2} ${tall}`,
  style: { width: `calc(${wide + MARGIN - 2} * var(--aw-u))` },
});
const beforeOf = (pair: ExplainedPair, name: keyof Numbers, say: (value: number | null) => string) =>
  pair.original === null ? "" : say(pair.original[name] as number | null);

/** The running sum of q_d · k_d; its last edge is the score. */
export function DotProduct({ pair, wide, largestFirst }: StepProps & { largestFirst: Signal<boolean> }) {
  const { products } = pair;
  if (products === null) {
    return (
      <Row name="Score" formula="as given" result={score(pair.score)} unit="score">
        <p>The scores were given directly, so there are no q and k to multiply.</p>
      </Row>
    );
  }
  const formula = (
    <>
      q · k = Σ q<sub>d</sub> k<sub>d</sub>
    </>
  );
  const broken = products.findIndex((product) => !Number.isFinite(product));
  if (broken >= 0 || !Number.isFinite(pair.score ?? 0)) {
    return (
      <Row name="Dot product" formula={formula} result={score(pair.score)} unit="score">
        <p>
          {broken < 0
            ? "Each product is finite, but their sum is beyond what the numbers can hold."
            : `Dimension ${broken}: q times k is ${score(products[broken]!)}, so q or k holds NaN or ∞ there, and so does the sum.`}
        </p>
      </Row>
    );
  }
  const steps = waterfall(products, largestFirst.value);
  const sums = [0, ...steps.map((step) => step.to)];
  const [low, high] = [Math.min(...sums), Math.max(...sums)];
  const tall = 84;
  const y = (value: number) => 6 + (tall * (high - value)) / (high - low || 1);
  const pitch = wide / steps.length;
  const gap = pitch > 6 ? 1 : 0;
  const order = Array.from(products.keys()).sort((a, b) => products[b]! - products[a]!);
  const [most, least] = [order[0]!, order.at(-1)!];
  const last = steps.at(-1)!;
  const note = (dimension: number) => (
    <span>
      dimension {dimension} {products[dimension]! < 0 ? "takes" : "adds"} {score(Math.abs(products[dimension]!))}
    </span>
  );
  return (
    <Row
      name="Dot product"
      formula={formula}
      result={score(pair.score)}
      unit="score"
      about="How well the key fits the query: a bar for each dimension, its product added to the sum so far."
    >
      <svg class="aw-chart" {...frame(wide, tall + 14)} role="img" aria-label="Products, summed">
        <path class="aw-axis" d={`M0 ${y(0)}H${wide}`} />
        {steps.map((step, place) => (
          <rect
            key={step.index}
            class={step.to < step.from ? "aw-below" : "aw-above"}
            x={place * pitch}
            y={Math.min(y(step.from), y(step.to))}
            width={Math.max(0.5, pitch - gap)}
            height={Math.max(1, Math.abs(y(step.from) - y(step.to)))}
            rx={pitch > 6 ? 1 : 0}
          >
            <title>{`dimension ${step.index}: ${score(products[step.index]!)}, sum ${score(step.to)}`}</title>
          </rect>
        ))}
        <path class="aw-lead" d={`M${wide} ${y(last.to)}h12`} />
        <circle class="aw-dot" cx={wide + 14} cy={y(last.to)} r="3.5">
          <title>{`sum: ${score(last.to)}`}</title>
        </circle>
      </svg>
      <div class="aw-notes" data-two-lines={wide < ROOMY || undefined}>
        {note(most)}
        <button
          type="button"
          onClick={() => {
            largestFirst.value = !largestFirst.value;
          }}
        >
          {count(products.length)} {products.length === 1 ? "product" : "products"},{" "}
          {largestFirst.value ? "largest first" : "in order"}
        </button>
        {products.length > 1 && note(least)}
      </div>
    </Row>
  );
}

/** Return "÷ √32" if the scale is 1 / √d_k, else "× 0.5". */
export function scaleWords(
  scale: number | null,
  headSize: number | null,
): { sign: string; formula: ComponentChildren } {
  const root = headSize === null ? null : Math.sqrt(headSize);
  if (root !== null && (scale === null || Math.abs(scale * root - 1) < 1e-6)) {
    return {
      sign: `÷ √${headSize}`,
      formula: (
        <>
          score ÷ √d<sub>k</sub> = score ÷ {Number(root.toPrecision(4))}
        </>
      ),
    };
  }
  const factor = scale === null ? "scale" : String(Number(scale.toPrecision(4))).replace("-", "−");
  return { sign: `× ${factor}`, formula: `score × ${factor}` };
}

/** From score to scaled score on one line; moving the solid dot changes the scale. */
function Scale({ ui, pair, wide }: StepProps) {
  const { head_size, saved } = ui.store.facts.value;
  const words = scaleWords(pair.scale, head_size);
  if (!Number.isFinite(pair.score ?? 0)) {
    return (
      <Row name="Scale" formula={words.formula} result={score(pair.scaled)} unit="scaled">
        <p>A factor does not change {score(pair.score)}.</p>
      </Row>
    );
  }
  const from = pair.score ?? 0;
  const to = pair.scaled ?? 0;
  const before = pair.original?.scaled ?? null;
  const shown = [0, from, to, ...(before === null ? [] : [before])].filter(Number.isFinite);
  const [low, high] = [Math.min(...shown), Math.max(...shown)];
  const x = (value: number) => 8 + ((wide - 16) * (value - low)) / (high - low || 1);
  const apart = Math.abs(x(from) - x(to));
  const ahead = x(from) > x(to) ? 7 : -7;
  const drag = dragScale(
    ui,
    pair,
    (px, width) => low + ((px / width) * (wide + MARGIN - 2) - 2 - 8) * ((high - low) / (wide - 16)),
  );
  return (
    <Row
      name="Scale"
      formula={words.formula}
      result={score(pair.scaled)}
      unit="scaled"
      before={beforeOf(pair, "scaled", score)}
      about={
        <>
          {head_size === null
            ? "One factor for all scores of the head."
            : `A sum of ${head_size} products spreads about √${head_size} times as widely as one of them. ÷ √${head_size}, or × ${Number((head_size ** -0.5).toPrecision(3))}, undoes that, so that the softmax does not give one key everything.`}
          {from !== 0 && saved === undefined && " Drag the filled dot to try another scale."}
        </>
      }
    >
      <svg class="aw-chart" {...frame(wide, 34)} role="group" aria-label="From score to scaled score">
        <path class="aw-track" d={`M0 10H${wide}`} />
        <path class="aw-tick" d={`M${x(0)} 6v8`} />
        {Math.abs(x(0) - x(to)) > 30 && Math.abs(x(0) - x(from)) > 30 && (
          <text x={x(0)} y="29">
            0
          </text>
        )}
        {apart > 14 && (
          <path
            class="aw-lead"
            d={`M${x(from) - Math.sign(ahead) * 5} 10H${x(to) + ahead}m${ahead * 0.7} -3l${-ahead * 0.7} 3l${ahead * 0.7} 3`}
          />
        )}
        <circle class="aw-dot" data-hollow cx={x(from)} cy="10" r="4" />
        {before !== null && (
          <circle class="aw-dot" data-before cx={x(before)} cy="10" r="4.5">
            <title>{`before: ${score(before)}`}</title>
          </circle>
        )}
        <circle class="aw-dot aw-grip" cx={x(to)} cy="10" r="4.5" {...(saved === undefined ? drag : {})} />
        <text x={x(to)} y="29">
          scaled
        </text>
        {apart > 44 && (
          <text x={x(from)} y="29">
            score
          </text>
        )}
      </svg>
    </Row>
  );
}

function Softcap({ pair, wide }: StepProps) {
  const cap = Number((pair.softcap ?? 0).toPrecision(4));
  const tall = 40;
  const most = Math.max(3 * (pair.softcap ?? 1), Math.abs(pair.scaled ?? 0));
  const x = (value: number) => wide / 2 + ((value / most) * wide) / 2;
  const y = (value: number) => tall / 2 - ((value / (pair.softcap ?? 1)) * (tall - 8)) / 2;
  const curve = Array.from({ length: 61 }, (_, i) => {
    const value = most * (i / 30 - 1);
    return `${i === 0 ? "M" : "L"}${x(value)} ${y((pair.softcap ?? 1) * Math.tanh(value / (pair.softcap ?? 1)))}`;
  });
  return (
    <Row
      name="Softcap"
      formula={`${cap} · tanh(scaled ÷ ${cap})`}
      result={score(pair.capped)}
      unit="capped"
      before={beforeOf(pair, "capped", score)}
      about={`The curve bends scores so that none goes beyond ±${cap}; small ones stay nearly as they are.`}
    >
      <svg class="aw-chart" {...frame(wide, tall)} role="img" aria-label="Softcap">
        <path class="aw-axis" d={`M0 ${tall / 2}H${wide}`} />
        <path class="aw-curve" d={curve.join("")} />
        {Number.isFinite(pair.scaled) && (
          <circle class="aw-dot" cx={x(pair.scaled ?? 0)} cy={y(pair.capped ?? 0)} r="3.5">
            <title>{`scaled ${score(pair.scaled)}, capped ${score(pair.capped)}`}</title>
          </circle>
        )}
      </svg>
    </Row>
  );
}

/** Which rule blocks the pair, or what is added; one sentence for each. */
function Mask({ pair }: StepProps) {
  const { effects, allowed } = pair;
  const added = effects.filter((effect) => effect.adds !== null && effect.adds !== 0 && !effect.blocks);
  const start = pair.softcap === null ? "scaled" : "capped";
  const sum = added.reduce((all, effect) => all + (effect.adds ?? 0), 0);
  return (
    <Row
      name="Mask"
      formula={allowed ? `${start} ${sum < 0 ? "−" : "+"} ${score(Math.abs(sum))}` : "blocked: −∞"}
      result={score(pair.masked)}
      unit="masked"
      before={beforeOf(pair, "masked", score)}
    >
      <div class="aw-rules">
        {effects.length === 0 && <RuleLine allowed>Allowed. No rule blocks or shifts this pair.</RuleLine>}
        {effects.map((effect) => (
          <RuleLine key={effect.name} allowed={!effect.blocks}>
            <EffectWords effect={effect} />
          </RuleLine>
        ))}
      </div>
    </Row>
  );
}

/** "Blocked by causal: key ≤ query", "The mask allows this pair.", "The bias takes 0.250." */
function EffectWords({ effect: { name, blocks, adds } }: { effect: Numbers["effects"][number] }) {
  if (!/^(mask|bias)\b/.test(name)) {
    return (
      <>
        {blocks ? "Blocked by " : "Allowed by "}
        <b>{name}</b>
      </>
    );
  }
  const [what, ...how] = name.split(": ");
  return (
    <>
      The <b>{what}</b>
      {how.length > 0 && ` (${how.join(": ")})`}{" "}
      {blocks
        ? "blocks this pair: its score becomes −∞."
        : adds === null
          ? "allows this pair."
          : adds === 0
            ? "adds 0."
            : `${adds < 0 ? "takes" : "adds"} ${score(Math.abs(adds))}.`}
    </>
  );
}

function RuleLine({ allowed, children }: { allowed: boolean; children: ComponentChildren }) {
  return (
    <p>
      <svg viewBox="0 0 16 16" aria-hidden="true">
        <circle cx="8" cy="8" r="6.5" />
        <path d={allowed ? "M5 8.3l2 2 4-4.4" : "M4 12l8-8"} />
      </svg>
      <span>{children}</span>
    </p>
  );
}

/** The place of a bar's label: below its center, or from the chart's edge for the first ones, in any font. */
const inside = (center: number) =>
  center < EDGE ? ({ x: 0, style: { textAnchor: "start" } } as const) : { x: center };

/** The query's weights; that of the pair in ink. */
function Softmax({ ui, pair, wide }: StepProps) {
  const { keys, grid } = pair.row;
  const values = Array.from(grid.values, (value) => (Number.isFinite(value) ? value : 0));
  const before = pair.original?.row ?? null;
  const sink = pair.sink_weight;
  const sinkBefore = pair.original?.sink_weight ?? null;
  const sinks = [sink ?? 0, sinkBefore ?? 0].filter(Number.isFinite);
  const most = Math.max(...values, ...(before ?? []).filter(Number.isFinite), ...sinks, 1e-30);
  const tall = 48;
  const pitch = wide / (keys.length + (sink === null ? 0 : 1));
  const bar = Math.max(1, Math.min(pitch - (pitch > 4 ? 2 : 0), 26));
  const labels = ui.store.keyLabels.value;
  const own = keys.indexOf(pair.key);
  const named = new Set(
    values
      .map((_, index) => index)
      .sort((a, b) => (b === own ? 1 : a === own ? -1 : values[b]! - values[a]!))
      .slice(0, Math.min(LABELS, Math.floor(wide / APART)))
      .filter((index) => index === own || keys.length <= LABELS || values[index]! > 0.04 * most),
  );
  const shown = keepApart(sink === null ? [...named] : [keys.length, ...named], own, pitch, 46);
  const exponent = `exp(${score(pair.masked)} − ${score(pair.log_normalizer)})`;
  return (
    <Row
      name="Softmax"
      formula={pair.log_normalizer === null ? "as given" : "exp(masked − log-normalizer)"}
      result={pair.allowed ? weight(pair.weight) : "0"}
      unit={pair.log_normalizer === null ? "weight" : pair.allowed ? exponent : "blocked: no weight"}
      before={beforeOf(pair, "weight", weight)}
      about={<AboutSoftmax ui={ui} pair={pair} />}
    >
      <svg class="aw-chart" {...frame(wide, tall + 20)} role="img" aria-label="The query's weights">
        {values.map((value, index) => {
          const center = (index + 0.5) * pitch;
          const height = (tall * value) / most;
          const key = keys[index]!;
          return (
            <g key={key}>
              {grid.kinds[index] === BLOCKED || grid.kinds[index] === NAN ? (
                <path
                  class={grid.kinds[index] === NAN ? "aw-nan" : "aw-slash"}
                  d={`M${center - 3} ${tall}l6 -6${grid.kinds[index] === NAN ? "m-6 0l6 6" : ""}`}
                >
                  <title>{`${labels.at(key).text} ${count(key)}: ${grid.kinds[index] === NAN ? "NaN" : "masked"}`}</title>
                </path>
              ) : (
                <rect
                  class={index === own ? "aw-own" : "aw-data"}
                  x={center - bar / 2}
                  y={tall - Math.max(0.75, height)}
                  width={bar}
                  height={Math.max(0.75, height)}
                  rx={bar > 6 ? 1.5 : 0}
                >
                  <title>{`${labels.at(key).text} ${count(key)}: ${weight(value)}`}</title>
                </rect>
              )}
              {before !== null && before[index] !== value && before[index]! > 0 && (
                <rect
                  class="aw-hollow"
                  x={center - bar / 2}
                  y={tall - (tall * before[index]!) / most}
                  width={bar}
                  height={(tall * before[index]!) / most}
                  rx={bar > 6 ? 1.5 : 0}
                >
                  <title>{`before: ${weight(before[index]!)}`}</title>
                </rect>
              )}
              {shown.has(index) && (
                <text {...inside(center)} y={tall + 14} data-own={index === own || undefined}>
                  {clipped(labels.at(key).text)}
                  {labels.at(key).subscript !== "" && (
                    <tspan class="aw-subscript" dy="2.5">
                      {labels.at(key).subscript}
                    </tspan>
                  )}
                </text>
              )}
            </g>
          );
        })}
        {sink !== null && (
          <SinkBar
            center={(keys.length + 0.5) * pitch}
            {...{ bar, tall }}
            named={shown.has(keys.length)}
            now={sink}
            height={(tall * sink) / most || 0}
            before={sinkBefore === null || sinkBefore === sink ? null : (tall * sinkBefore) / most}
          />
        )}
      </svg>
      {keys.length < ui.store.facts.value.keys && (
        <div class="aw-notes">
          <span>{listedKeys(values, own, ui.store.facts.value.keys)}</span>
        </div>
      )}
    </Row>
  );
}

/** Which keys of a long row are listed: the pair's own is among them, however weak it is. */
export function listedKeys(values: readonly number[], own: number, keys: number): string {
  const isWeakest = values.every((value) => value >= values[own]!);
  const many = values.length - (isWeakest ? 1 : 0);
  return `the strongest ${count(many)} of ${count(keys)} keys${isWeakest ? ", and this one" : ""}`;
}

interface SinkBarProps {
  readonly center: number;
  readonly bar: number;
  readonly tall: number;
  readonly named: boolean;
  readonly now: number;
  /** Its height in pixels, now and under the original rules. */
  readonly height: number;
  readonly before: number | null;
}

/** The learned sink's weight, after those of the keys. */
function SinkBar({ center, bar, tall, named, now, height, before }: SinkBarProps) {
  const box = (pixels: number) => ({
    x: center - bar / 2,
    y: tall - pixels,
    width: bar,
    height: pixels,
    rx: bar > 6 ? 1.5 : 0,
  });
  return (
    <g class="aw-sink-bar">
      <rect class="aw-data" {...box(Math.max(0.75, height))}>
        <title>{`${SINK}: ${weight(now)}`}</title>
      </rect>
      {before !== null && <rect class="aw-hollow" {...box(before)} />}
      {named && (
        <text x={center} y={tall + 14}>
          {SINK}
        </text>
      )}
    </g>
  );
}

/** The row of the softmax, and the meaning of the log-normalizer. */
function AboutSoftmax({ ui, pair }: { ui: Ui; pair: ExplainedPair }) {
  const query = (
    <b>
      <Token labels={ui.store.queryLabels.value} index={pair.query} subscript />
    </b>
  );
  if (isNothing(pair)) {
    return pair.sink === null ? (
      <>Every key is blocked for {query}, so its weights and its output are 0.</>
    ) : (
      <>Every key is blocked for {query}, so the learned sink has all its weight, and its output is 0.</>
    );
  }
  if (Number.isNaN(pair.log_normalizer)) {
    return <>A score of {query} is NaN, so all weights of its row are NaN.</>;
  }
  if (pair.log_normalizer === null) return <>The row of {query}, as given.</>;
  return (
    <>
      Over all keys that {query} may attend to: exp of each masked score ÷ the sum of these
      {pair.sink === null ? "" : ` and of exp(${score(pair.sink)}), the learned sink`}, so that the row{" "}
      {pair.sink === null ? "" : "with the sink "}sums to 1. The log-normalizer {score(pair.log_normalizer)} is the
      logarithm of that sum.
    </>
  );
}

const clipped = (text: string) => (text.length > 9 ? `${text.slice(0, 8)}…` : text);

/** Keep labels at least `least` apart: earlier ones matter more, and the pair's own is kept. */
function keepApart(order: number[], own: number, pitch: number, least: number): Set<number> {
  const kept: number[] = [];
  for (const index of [own, ...order]) {
    if (index >= 0 && kept.every((other) => Math.abs(other - index) * pitch >= least)) kept.push(index);
  }
  return new Set(kept);
}

const shareOf = ({ share, contribution }: Numbers) =>
  share ? percent(share, share < 0.001 ? 3 : 1) : share === 0 || contribution === 0 ? "0" : "NaN";

const CARRIED: Readonly<Record<Carried, readonly [string, string]>> = {
  value_norm: ["Value norm", "weight × ‖v W_O‖"],
  logit: ["Logit", "weight × (v W_O · d) / s"],
  saliency: ["Saliency", "weight × (∂L/∂O · v)"],
};

/** The contribution of the weight, if known: a line for each stage. */
function CarriedRows({ ui: { store }, pair }: StepProps) {
  return (
    <>
      {pair.carried.map(([stage, all, each]) => (
        <Row
          key={stage}
          name={CARRIED[stage][0]}
          formula={CARRIED[stage][1]}
          result={listNumber(all ?? Number.NaN, stage)}
          unit={wordOf(stage)}
        >
          <p>
            {weight(pair.weight)} × {listNumber(each ?? Number.NaN, stage)}
            {stage === "logit" && `: ${legendOf(stage, store.facts.value, pair.batch)}`}
          </p>
        </Row>
      ))}
    </>
  );
}

/** The key's share of the query's output, number by number, over the whole output. */
function Value({ ui, pair, wide }: StepProps) {
  const value = pair.value!;
  const output = pair.output!;
  const was = pair.original?.value ?? null;
  const all = [...output, ...value, ...(was ?? [])];
  const most = Math.max(...all.map(Math.abs).filter(Number.isFinite), 1e-30);
  const half = 26;
  const pitch = wide / output.length;
  const bar = Math.max(0.75, Math.min(pitch - (pitch > 4 ? 2 : 0), 16));
  const rect = (index: number, number: number, name: string, width: number) => {
    const height = Math.max(0.5, (half * Math.abs(number)) / most || 0);
    return (
      <rect
        class={name}
        x={(index + 0.5) * pitch - width / 2}
        y={number < 0 ? half : half - height}
        width={width}
        height={height}
      >
        <title>
          {`number ${index}: ${score(value[index]!)} of ${score(output[index]!)}`}
          {was !== null && `, before ${score(was[index]!)}`}
        </title>
      </rect>
    );
  };
  const thin = Math.max(0.75, bar * 0.75);
  return (
    <Row
      name="Value"
      formula="weight × v"
      result={shareOf(pair)}
      unit={
        pair.contribution === 0 && pair.share === null ? "nothing is attended to" : "of all contributions ‖weight · v‖"
      }
      before={pair.original === null ? "" : shareOf(pair.original)}
    >
      <svg class="aw-chart" {...frame(wide, 2 * half + 2)} role="img" aria-label="Weight times value">
        {Array.from(output, (number, index) => rect(index, number, "aw-whole", bar))}
        {Array.from(value, (number, index) => rect(index, number, number < 0 ? "aw-below" : "aw-above", thin))}
        {was !== null &&
          Array.from(was, (number, index) => number !== value[index] && rect(index, number, "aw-hollow", bar))}
        <path class="aw-axis" d={`M0 ${half}H${wide}`} />
      </svg>
      <div class="aw-notes">
        <span>
          <i class="aw-above" />
          <i class="aw-below" /> from <Token labels={ui.store.keyLabels.value} index={pair.key} subscript />
        </span>
        <span>
          <i class="aw-whole" /> the whole output of{" "}
          <Token labels={ui.store.queryLabels.value} index={pair.query} subscript />, {count(output.length)}{" "}
          {output.length === 1 ? "number" : "numbers"}
        </span>
        <span style={was === null ? { visibility: "hidden" } : undefined}>
          <i class="aw-hollow" /> before
        </span>
      </div>
    </Row>
  );
}
