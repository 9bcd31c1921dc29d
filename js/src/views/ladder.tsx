/** One weight explained, step by step: name and formula, a picture of what happens, the number that comes out. */

import type { Signal } from "@preact/signals-core";
import type { ComponentChildren } from "preact";
import { count, listNumber, percent } from "../format";
import { type Numbers, type Pair, waterfall } from "../steps";
import type { Ui } from "../ui";
import { BLOCKED } from "../wire";
import { dragScale } from "./what-if";

const WIDE = 500; // of every picture, in its own units
const LABELS = 9; // under the bars of the softmax, at most

export function Ladder({ ui, pair, largestFirst }: { ui: Ui; pair: Pair; largestFirst: Signal<boolean> }) {
  return (
    <div class="aw-ladder" data-aw="ladder">
      {pair.score !== null && <DotProduct pair={pair} largestFirst={largestFirst} />}
      {pair.scaled !== null && <Scale ui={ui} pair={pair} />}
      {pair.softcap !== null && <Softcap pair={pair} />}
      {pair.masked !== null && <Mask pair={pair} />}
      <Softmax ui={ui} pair={pair} />
      {pair.value !== null && pair.output !== null && <Value ui={ui} pair={pair} />}
    </div>
  );
}

interface RowProps {
  readonly name: string;
  readonly formula: ComponentChildren;
  readonly result: string;
  readonly unit: string;
  /** The result without the other rules in force, where that differs. */
  readonly before?: string | undefined;
  readonly children: ComponentChildren;
}

function Row({ name, formula, result, unit, before, children }: RowProps) {
  return (
    <section class="aw-step" aria-label={`${name}: ${unit} ${result}`}>
      <div class="aw-step-name">
        <h4>{name}</h4>
        <div>{formula}</div>
      </div>
      <div class="aw-step-picture">{children}</div>
      <div class="aw-step-result">
        <output>{result}</output>
        <div>{unit}</div>
        {before !== undefined && before !== result && <div class="aw-step-before">○ {before} before</div>}
      </div>
    </section>
  );
}

const score = (value: number | null) => listNumber(value ?? Number.NaN, "scores");
const weight = (value: number | null) => listNumber(value ?? Number.NaN, "weights");
const beforeOf = (pair: Pair, name: keyof Numbers, say: (value: number | null) => string) =>
  pair.original === null ? undefined : say(pair.original[name] as number | null);

/** The sum of q_d · k_d as it grows; its last edge is the score. */
function DotProduct({ pair, largestFirst }: { pair: Pair; largestFirst: Signal<boolean> }) {
  const { products } = pair;
  if (products === null) {
    return (
      <Row name="Score" formula="as it was given" result={score(pair.score)} unit="score">
        <p>The scores were given: there is no q and no k to multiply.</p>
      </Row>
    );
  }
  const steps = waterfall(products, largestFirst.value);
  const sums = [0, ...steps.map((step) => step.to)].filter(Number.isFinite);
  const [low, high] = [Math.min(...sums), Math.max(...sums)];
  const tall = 84;
  const y = (value: number) => 6 + (tall * (high - value)) / (high - low || 1);
  const pitch = WIDE / steps.length;
  const gap = pitch > 6 ? 1 : 0;
  const order = Array.from(products.keys()).sort((a, b) => products[b]! - products[a]!);
  const [most, least] = [order[0]!, order.at(-1)!];
  const last = steps.at(-1)!;
  return (
    <Row
      name="Dot product"
      formula={
        <>
          q · k = Σ q<sub>d</sub> k<sub>d</sub>
        </>
      }
      result={score(pair.score)}
      unit="score"
    >
      <svg class="aw-chart" viewBox={`-2 0 ${WIDE + 22} ${tall + 14}`} role="img" aria-label="Products, summed">
        <path class="aw-axis" d={`M0 ${y(0)}H${WIDE}`} />
        {steps.map((step, place) => (
          <rect
            key={step.index}
            class={step.to < step.from ? "aw-below" : "aw-above"}
            x={place * pitch}
            y={Math.min(y(step.from), y(step.to)) || 0}
            width={Math.max(0.5, pitch - gap)}
            height={Math.max(1, Math.abs(y(step.from) - y(step.to)) || 0)}
            rx={pitch > 6 ? 1 : 0}
          >
            <title>{`dimension ${step.index}: ${score(products[step.index]!)}, sum ${score(step.to)}`}</title>
          </rect>
        ))}
        <path class="aw-lead" d={`M${WIDE} ${y(last.to)}h12`} />
        <circle class="aw-dot" cx={WIDE + 14} cy={y(last.to)} r="3.5" />
      </svg>
      <div class="aw-notes">
        <span>
          dimension {most} {products[most]! < 0 ? "takes" : "adds"} {score(Math.abs(products[most]!))}
        </span>
        <button
          type="button"
          onClick={() => {
            largestFirst.value = !largestFirst.value;
          }}
        >
          {count(products.length)} products, {largestFirst.value ? "largest first" : "in order"}
        </button>
        {products.length > 1 && (
          <span>
            dimension {least} {products[least]! < 0 ? "takes" : "adds"} {score(Math.abs(products[least]!))}
          </span>
        )}
      </div>
    </Row>
  );
}

/** "÷ √32" where the scale is 1 / √d_k, else "× 0.5". */
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

/** From the score to the scaled score on one line; the solid dot can be moved: that is another scale. */
function Scale({ ui, pair }: { ui: Ui; pair: Pair }) {
  const from = pair.score ?? 0;
  const to = pair.scaled ?? 0;
  const before = pair.original?.scaled ?? null;
  const shown = [0, from, to, ...(before === null ? [] : [before])].filter(Number.isFinite);
  const [low, high] = [Math.min(...shown), Math.max(...shown)];
  const x = (value: number) => 8 + ((WIDE - 16) * (value - low)) / (high - low || 1);
  const apart = Math.abs(x(from) - x(to));
  const ahead = x(from) > x(to) ? 7 : -7;
  const drag = dragScale(
    ui,
    pair,
    (px, width) => low + ((px / width) * (WIDE + 22) - 2 - 8) * ((high - low) / (WIDE - 16)),
  );
  return (
    <Row
      name="Scale"
      formula={
        <>
          {scaleWords(pair.scale, ui.store.facts.value.head_size).formula}
          {from !== 0 && <div class="aw-step-tip">drag the filled dot to try another</div>}
        </>
      }
      result={score(pair.scaled)}
      unit="scaled"
      before={beforeOf(pair, "scaled", score)}
    >
      <svg class="aw-chart" viewBox={`-2 0 ${WIDE + 22} 34`} role="img" aria-label="From score to scaled score">
        <path class="aw-track" d={`M0 10H${WIDE}`} />
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
        {before !== null && <circle class="aw-dot" data-before cx={x(before)} cy="10" r="4.5" />}
        <circle class="aw-dot aw-grip" cx={x(to)} cy="10" r="4.5" {...drag} />
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

function Softcap({ pair }: { pair: Pair }) {
  const cap = Number((pair.softcap ?? 0).toPrecision(4));
  const tall = 40;
  const most = Math.max(3 * (pair.softcap ?? 1), Math.abs(pair.scaled ?? 0));
  const x = (value: number) => WIDE / 2 + ((value / most) * WIDE) / 2;
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
    >
      <svg class="aw-chart" viewBox={`-2 0 ${WIDE + 22} ${tall}`} role="img" aria-label="Softcap">
        <path class="aw-axis" d={`M0 ${tall / 2}H${WIDE}`} />
        <path class="aw-curve" d={curve.join("")} />
        <circle class="aw-dot" cx={x(pair.scaled ?? 0)} cy={y(pair.capped ?? 0)} r="3.5" />
      </svg>
    </Row>
  );
}

/** Which rule blocks the pair, or what is added; one sentence for each. */
function Mask({ pair }: { pair: Pair }) {
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
            {effect.blocks ? "Blocked by " : effect.adds === null ? "Allowed by " : "Shifted by "}
            <b>{effect.name}</b>
            {effect.adds !== null &&
              !effect.blocks &&
              `: ${effect.adds < 0 ? "−" : "+"}${score(Math.abs(effect.adds))}`}
          </RuleLine>
        ))}
      </div>
    </Row>
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

/** The query's weights; that of the pair in ink. */
function Softmax({ ui, pair }: { ui: Ui; pair: Pair }) {
  const { keys, grid } = pair.row;
  const values = Array.from(grid.values, (value) => (Number.isFinite(value) ? value : 0));
  const before = pair.original?.weight ?? null;
  const most = Math.max(...values, before ?? 0, 1e-30);
  const tall = 48;
  const pitch = WIDE / keys.length;
  const bar = Math.max(1, Math.min(pitch - (pitch > 4 ? 2 : 0), 26));
  const labels = ui.store.keyLabels.value;
  const own = keys.indexOf(pair.key);
  const named = new Set(
    values
      .map((_, index) => index)
      .sort((a, b) => (b === own ? 1 : a === own ? -1 : values[b]! - values[a]!))
      .slice(0, Math.min(LABELS, Math.floor(WIDE / 54)))
      .filter((index) => index === own || values[index]! > 0.04 * most),
  );
  const shown = keepApart([...named], own, pitch, 46);
  const exponent = `exp(${score(pair.masked)} − ${score(pair.log_normalizer)})`;
  return (
    <Row
      name="Softmax"
      formula={pair.log_normalizer === null ? "as it was given" : "exp(masked − log-normalizer)"}
      result={pair.allowed ? weight(pair.weight) : "0"}
      unit={pair.log_normalizer === null ? "weight" : pair.allowed ? exponent : "blocked: no weight"}
      before={beforeOf(pair, "weight", weight)}
    >
      <svg class="aw-chart" viewBox={`-2 0 ${WIDE + 22} ${tall + 20}`} role="img" aria-label="The query's weights">
        {values.map((value, index) => {
          const center = (index + 0.5) * pitch;
          const height = (tall * value) / most;
          const key = keys[index]!;
          return (
            <g key={key}>
              {grid.kinds[index] === BLOCKED ? (
                <path class="aw-slash" d={`M${center - 3} ${tall}l6 -6`} />
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
              {index === own && before !== null && before !== pair.weight && (
                <rect
                  class="aw-hollow"
                  x={center - bar / 2}
                  y={tall - (tall * before) / most}
                  width={bar}
                  height={(tall * before) / most}
                  rx={bar > 6 ? 1.5 : 0}
                />
              )}
              {shown.has(index) && (
                <text x={center} y={tall + 14} data-own={index === own || undefined}>
                  {clipped(labels.at(key).text)}
                </text>
              )}
            </g>
          );
        })}
      </svg>
      {keys.length < ui.store.facts.value.keys && (
        <div class="aw-notes">
          <span>
            the strongest {count(keys.length)} of {count(ui.store.facts.value.keys)} keys
          </span>
        </div>
      )}
    </Row>
  );
}

const clipped = (text: string) => (text.length > 9 ? `${text.slice(0, 8)}…` : text);

/** Of labels that would stand closer than `least`, the earlier ones, which matter more, and the pair's own. */
function keepApart(order: number[], own: number, pitch: number, least: number): Set<number> {
  const kept: number[] = [];
  for (const index of [own, ...order]) {
    if (index >= 0 && kept.every((other) => Math.abs(other - index) * pitch >= least)) kept.push(index);
  }
  return new Set(kept);
}

/** What the key adds to the query's output, number by number, over the whole output. */
function Value({ ui, pair }: { ui: Ui; pair: Pair }) {
  const value = pair.value!;
  const output = pair.output!;
  const most = Math.max(...Array.from(output, Math.abs).filter(Number.isFinite), ...Array.from(value, Math.abs), 1e-30);
  const half = 26;
  const pitch = WIDE / output.length;
  const bar = Math.max(0.75, Math.min(pitch - (pitch > 4 ? 2 : 0), 16));
  const rect = (x: number, number: number, name: string, width: number) => {
    const height = Math.max(0.5, (half * Math.abs(number)) / most || 0);
    return <rect class={name} x={x - width / 2} y={number < 0 ? half : half - height} width={width} height={height} />;
  };
  const keyName = ui.store.keyLabels.value.at(pair.key).text;
  const queryName = ui.store.queryLabels.value.at(pair.query).text;
  return (
    <Row
      name="Value"
      formula="weight × v"
      result={pair.share === null ? "0" : percent(pair.share, 1)}
      unit="of all contributions ‖weight · v‖"
      before={beforeOf(pair, "share", (share) => (share === null ? "0" : percent(share, 1)))}
    >
      <svg class="aw-chart" viewBox={`-2 0 ${WIDE + 22} ${2 * half + 2}`} role="img" aria-label="Weight times value">
        {Array.from(output, (number, index) => rect((index + 0.5) * pitch, number, "aw-whole", bar))}
        {Array.from(value, (number, index) =>
          rect((index + 0.5) * pitch, number, number < 0 ? "aw-below" : "aw-above", Math.max(0.75, bar * 0.75)),
        )}
        <path class="aw-axis" d={`M0 ${half}H${WIDE}`} />
      </svg>
      <div class="aw-notes">
        <span>
          <i class="aw-above" />
          <i class="aw-below" /> from <bdi>{keyName}</bdi>
        </span>
        <span>
          <i class="aw-whole" /> the whole output of <bdi>{queryName}</bdi>, {count(output.length)} dimensions
        </span>
      </div>
    </Row>
  );
}
