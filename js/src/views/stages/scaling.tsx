/** The effect of dividing by √d_k, by row and by head size; and the cost of attention as it grows. */

import { type Signal, signal } from "@preact/signals-core";
import { Component, type ComponentChildren } from "preact";
import { type Line, LineChart } from "../../components/chart";
import { withoutKernel } from "../../components/phrases";
import { Raster } from "../../components/small-matrix";
import { Asked, headOf, sentence } from "../../components/unfold";
import { decodeGrid } from "../../contract/decode";
import type { Figure } from "../../contract/messages";
import type { CostStep, Reply, SweepStep } from "../../contract/requests";
import { numberOf, type SmallPicture, vector } from "../../data/stage-data";
import type { Ui } from "../../state/ui";
import { count, listNumber } from "../../text/format";

const CHART = 296; // maximum width of a chart, in pixels
const CORNER = 44; // of a small multiple

const shown = (figure: Figure) => {
  const value = numberOf(figure) ?? Number.NaN;
  const size = Math.abs(value);
  return Number.isNaN(value) ? "–" : size >= 0.01 && size < 1e3 ? value.toPrecision(3) : listNumber(value, "scores");
};
const plain = (value: number) => String(Number(value.toPrecision(3))).replace("-", "−");

/** The width at which so many fit side by side. */
function widthOf(ui: Ui): number {
  return Math.floor(Math.min(CHART, ui.width.value / ui.unit.value));
}

// Scaling.

interface Variances extends Omit<Reply<"spread">, "rows"> {
  readonly rows: Record<"entropy" | "peak" | "sensitivity" | "allowed", Float32Array>;
}

async function readVariances(reply: Reply<"spread">): Promise<Variances> {
  const names = ["entropy", "peak", "sensitivity", "allowed"] as const;
  const rows = await Promise.all(names.map((name) => vector(reply.rows[name], reply.buffers)));
  return { ...reply, rows: Object.fromEntries(names.map((name, at) => [name, rows[at]])) as Variances["rows"] };
}

/** Show the effect of dividing by √d_k on this head, and over head sizes. */
export function Scaling({ ui, own }: { ui: Ui; own: Signal<boolean> }) {
  const { body, key } = headOf(ui);
  return (
    <>
      <Asked
        ui={ui}
        kind="spread"
        body={body}
        of={key}
        read={readVariances}
        tall={180}
        draw={(found) => <RowsAndVariances ui={ui} found={found} />}
      />
      <Sweep ui={ui} own={own} />
    </>
  );
}

/** Variances before and after scaling, and statistics of the rows of weights. */
function RowsAndVariances({ ui, found }: { ui: Ui; found: Variances }) {
  const { queries } = ui.store.facts.value;
  return (
    <>
      {found.looked < queries && (
        <p class="aw-muted">
          From {count(found.looked)} of {count(queries)} queries, each exact.
        </p>
      )}
      <VarianceTable found={found} />
      <RowCharts ui={ui} found={found} />
      <UnusualRows found={found} />
    </>
  );
}

function VarianceTable({ found }: { found: Variances }) {
  const { theory, scale } = found;
  return (
    <table class="aw-table">
      <thead>
        <tr>
          <th scope="col">Variance of the entries of</th>
          <th scope="col">here</th>
          <th scope="col">in theory</th>
        </tr>
      </thead>
      <tbody>
        <tr>
          <th scope="row">q · k · v</th>
          <td>{[found.q_variance, found.k_variance, found.v_variance].map(shown).join(" · ")}</td>
          <td class="aw-muted">1, if drawn independently from a standard normal</td>
        </tr>
        <tr>
          <th scope="row">scores, q · k</th>
          <td>{shown(found.scores_variance)}</td>
          <td class="aw-muted">
            {theory !== null && (
              <>
                d<sub>k</sub> = {theory}: a sum of {theory} products, each of variance 1
              </>
            )}
          </td>
        </tr>
        <tr>
          <th scope="row">scaled scores</th>
          <td>{shown(found.scaled_variance)}</td>
          <td class="aw-muted">
            {theory !== null && (
              <>
                {plain(theory * scale * scale)} = d<sub>k</sub> × scale², with scale {plain(scale)}
              </>
            )}
          </td>
        </tr>
      </tbody>
    </table>
  );
}

/** Entropy, peak, and the share of a gradient that passes, over the queries. */
function RowCharts({ ui, found }: { ui: Ui; found: Variances }) {
  const { every, rows, means } = found;
  const query = ui.store.query.value;
  const wide = widthOf(ui);
  const mark = query === null || every > 1 ? undefined : query;
  const points = (values: Float32Array) => Array.from(values, (value, row) => [row * every, value] as const);
  const most = rows.allowed.map((allowed) => (allowed > 0 ? Math.log2(allowed) : 0));
  const last = Math.max(1, ui.store.facts.value.queries - 1);
  const ends = [{ at: 0, text: "query 0" }, ...(last > 1 ? [{ at: last * 0.94, text: count(last) }] : [])];
  const chart = (name: string, lines: Line[], high: number, mean: Figure, about: string) => (
    <LineChart
      name={name}
      about={`mean ${shown(mean)}${about}`}
      wide={wide}
      tall={96}
      lines={lines}
      x={[0, last]}
      y={[0, high]}
      xTicks={ends}
      yTicks={[
        { at: 0, text: "0" },
        { at: high, text: plain(high) },
      ]}
      mark={mark}
    />
  );
  return (
    <div class="aw-charts">
      {chart(
        "Entropy",
        [
          { name: "entropy in bits", points: points(rows.entropy), look: "data" },
          { name: "the maximum: log₂ of the number of allowed keys", points: points(most), look: "faint" },
        ],
        Math.max(1e-9, ...most),
        means.entropy,
        " bits; gray: the maximum, all keys equal",
      )}
      {chart(
        "Peak",
        [{ name: "largest weight", points: points(rows.peak), look: "data" }],
        1,
        means.peak,
        ", the largest weight",
      )}
      {chart(
        "Σ p(1 − p)",
        [{ name: "Σ p(1 − p)", points: points(rows.sensitivity), look: "data" }],
        1,
        means.sensitivity,
        ", the share of a gradient that passes",
      )}
    </div>
  );
}

function UnusualRows({ found: { saturated, uniform, empty } }: { found: Variances }) {
  if (saturated + uniform + empty === 0) return null;
  const kinds = [
    [saturated, "give one key 99 % of their weight"],
    [uniform, "weight all keys equally"],
    [empty, "are fully masked"],
  ] as const;
  return (
    <p class="aw-muted">
      {kinds
        .filter(([many]) => many > 0)
        .map(([many, what]) => `${count(many)} ${many === 1 ? "query" : "queries"}: ${what}`)
        .join(" · ")}
    </p>
  );
}

// The sweep of d_k.

interface Swept extends Omit<SweepStep, "weights" | "unscaled_weights"> {
  readonly scaled: SmallPicture;
  readonly raw: SmallPicture;
}

async function readSweep(reply: Reply<"sweep">): Promise<{ own: boolean; steps: Swept[] }> {
  const corner = async (envelope: SweepStep["weights"]): Promise<SmallPicture> => {
    const grid = await decodeGrid(envelope, null, reply.buffers);
    const high = grid.values.reduce((a, b) => Math.max(a, b), 0);
    return { stage: "weights", grid, queryBin: 1, keyBin: 1, low: 0, high, every: 1 };
  };
  const steps = reply.steps.map(async ({ weights, unscaled_weights, ...step }) => ({
    ...step,
    scaled: await corner(weights),
    raw: await corner(unscaled_weights),
  }));
  return { own: reply.own, steps: await Promise.all(steps) };
}

function Sweep({ ui, own }: { ui: Ui; own: Signal<boolean> }) {
  const { body, key } = headOf(ui);
  const hasOwn = ui.store.facts.value.head_size !== null;
  const mine = own.value && hasOwn;
  return (
    <>
      <div class="aw-switch" role="group" aria-label="Which q and k are swept">
        <b>
          Sweep of d<sub>k</sub>
        </b>
        {hasOwn && (
          <button type="button" aria-pressed={mine} onClick={() => (own.value = true)}>
            your q and k
          </button>
        )}
        <button type="button" aria-pressed={!mine} onClick={() => (own.value = false)}>
          new, random normal
        </button>
        <span class="aw-muted">
          {mine ? "their first dimensions, without the mask" : "64 queries and keys, independent, variance 1"}
        </span>
      </div>
      <Asked
        ui={ui}
        kind="sweep"
        body={{ ...body, own: mine }}
        of={`${key},${mine}`}
        read={readSweep}
        tall={300}
        draw={(found) => <Multiples ui={ui} steps={found.steps} />}
      />
    </>
  );
}

function Multiples({ ui, steps }: { ui: Ui; steps: readonly Swept[] }) {
  const paints = ui.paints.value;
  if (paints === null || steps.length === 0) return null;
  const of = headOf(ui).body;
  const wide = widthOf(ui);
  const last = Math.max(1, steps.length - 1);
  const every = wide < 200 || steps.length < 7 ? 1 : 2;
  const ticks = steps.map((step, at) => ({ at, text: count(step.head_size) })).filter(({ at }) => at % every === 0);
  const line = (name: string, look: Line["look"], read: (step: Swept) => Figure): Line => ({
    name,
    look,
    points: steps.map((step, at) => [at, numberOf(read(step)) ?? Number.NaN] as const),
  });
  const most = steps[0]!.most;
  const chart = (name: string, high: number, highText: string, lines: Line[]) => (
    <LineChart
      name={name}
      about={
        <>
          over d<sub>k</sub>
        </>
      }
      wide={wide}
      tall={120}
      lines={lines}
      x={[0, last]}
      y={[0, high]}
      xTicks={ticks}
      yTicks={[
        { at: 0, text: "0" },
        { at: high, text: highText },
      ]}
    />
  );
  return (
    <>
      <div class="aw-multiples">
        {steps.map((step) => (
          <figure key={step.head_size}>
            <figcaption>{count(step.head_size)}</figcaption>
            {([step.scaled, step.raw] as const).map((small, at) => (
              <div
                key={at === 0 ? "scaled" : "raw"}
                role="img"
                style={{ width: `calc(${CORNER} * var(--aw-u))`, height: `calc(${CORNER} * var(--aw-u))` }}
                title={`Weights at head size ${step.head_size}, ${at === 0 ? "scaled" : "not scaled"}: at most ${listNumber(small.high ?? 0, "weights")}`}
                aria-label={`Weights at head size ${step.head_size}, ${at === 0 ? "scaled" : "not scaled"}`}
              >
                <Raster small={small} of={of} paints={paints} />
              </div>
            ))}
          </figure>
        ))}
        <p class="aw-muted">
          d<sub>k</sub> above; upper row ÷ √d<sub>k</sub>, lower row not scaled. The first 16 queries × 16 keys, each
          picture on its own range.
        </p>
      </div>
      <div class="aw-charts">
        {chart("Mean entropy", most, plain(most), [
          line("scaled", "data", (step) => step.entropy),
          line("not scaled", "dashed", (step) => step.unscaled_entropy),
        ])}
        {chart("Mean peak", 1, "1", [
          line("scaled", "data", (step) => step.peak),
          line("not scaled", "dashed", (step) => step.unscaled_peak),
        ])}
        <Key>
          <i data-look="data" /> ÷ √d<sub>k</sub> <i data-look="dashed" /> not scaled. Entropy in bits: {plain(most)} is
          equal weights, 0 all weight on one key.
        </Key>
      </div>
    </>
  );
}

function Key({ children }: { children: ComponentChildren }) {
  return <p class="aw-key aw-muted">{children}</p>;
}

// Cost.

interface CostState {
  readonly steps: readonly CostStep[];
  readonly error: string;
  readonly busy: boolean;
}

const measured = signal<Reply<"cost"> | null>(null); // for this machine: the same for all heads of a size

export class Cost extends Component<{ ui: Ui }, Omit<CostState, "steps">> {
  override state = { error: "", busy: false };

  private measure = async () => {
    const { ui } = this.props;
    this.setState({ error: "", busy: true });
    try {
      measured.value = await ui.kernel.request("cost", headOf(ui).body, { signal: ui.stop });
      this.setState({ busy: false });
    } catch (error) {
      if (!ui.stop.aborted) this.setState({ error: sentence(error), busy: false });
    }
  };

  override render({ ui }: { ui: Ui }, { error, busy }: Omit<CostState, "steps">) {
    const found = measured.value;
    return (
      <div class="aw-asked">
        <p>
          <button
            type="button"
            class="aw-link"
            disabled={busy || ui.kernel.away.value}
            title={withoutKernel(ui, "measure")}
            onClick={this.measure}
          >
            {busy ? "Measuring …" : found === null ? "Measure" : "Measure again"}
          </button>{" "}
          <span class="aw-muted">one head in float32 on the kernel's CPU, at four lengths; takes a few seconds</span>
        </p>
        {error !== "" && <p role="alert">{error}</p>}
        {found !== null && <Curves ui={ui} found={found} />}
      </div>
    );
  }
}

const milliseconds = (seconds: number) => `${plain(1000 * seconds)} ms`;
const bytes = (size: number) => (size < 2 ** 20 ? `${plain(size / 2 ** 10)} KiB` : `${plain(size / 2 ** 20)} MiB`);

/** Times and bytes on logarithmic axes, where n² and n · d are straight lines. */
function Curves({ ui, found }: { ui: Ui; found: Reply<"cost"> }) {
  const { steps, head_size } = found;
  const wide = widthOf(ui);
  const x = (step: CostStep) => Math.log2(step.length);
  const line = (name: string, look: Line["look"], read: (step: CostStep) => number): Line => ({
    name,
    look,
    points: steps.map((step) => [x(step), Math.log10(read(step))] as const),
  });
  const first = steps[0]!;
  const law = (name: string, start: number, power: number): Line =>
    line(name, "faint", (step) => start * (step.length / first.length) ** power);
  const chart = (name: string, lines: Line[], say: (value: number) => string) => {
    const all = lines.flatMap(({ points }) => points.map(([, y]) => y));
    const [low, high] = [Math.min(...all), Math.max(...all)];
    return (
      <LineChart
        name={name}
        about="over n, both logarithmic"
        wide={wide}
        tall={140}
        lines={lines}
        x={[x(first), x(steps.at(-1)!)]}
        y={[low, high]}
        xTicks={steps.map((step, at) => ({
          at: x(step) + (at === 0 ? 0.1 : at === steps.length - 1 ? -0.1 : 0),
          text: count(step.length),
        }))}
        yTicks={[low, high].map((at) => ({ at, text: say(10 ** at) }))}
      />
    );
  };
  return (
    <>
      <div class="aw-charts" data-roomy>
        {chart(
          "Time",
          [
            line("all weights held", "data", (step) => step.dense_seconds),
            line("fused", "dashed", (step) => step.fused_seconds),
            line("this picture", "ink", (step) => step.seen_seconds),
            law("n²", first.dense_seconds, 2),
          ],
          milliseconds,
        )}
        {chart(
          "Memory",
          [
            line("all weights, n²", "data", (step) => step.dense_bytes),
            line("q and k, n · d", "ink", (step) => step.seen_bytes),
          ],
          bytes,
        )}
      </div>
      <table class="aw-table">
        <thead>
          <tr>
            <th scope="col">n</th>
            {steps.map((step) => (
              <th scope="col" key={step.length}>
                {count(step.length)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          <CostRow
            look="data"
            name="softmax(q kᵀ) v, all n² weights held"
            steps={steps}
            say={(step) => milliseconds(step.dense_seconds)}
          />
          <CostRow
            look="dashed"
            name="fused: torch SDPA"
            steps={steps}
            say={(step) => milliseconds(step.fused_seconds)}
          />
          <CostRow
            look="ink"
            name="a picture of the weights, here"
            steps={steps}
            say={(step) => milliseconds(step.seen_seconds)}
          />
          <CostRow look="data" name="memory of n² weights" steps={steps} say={(step) => bytes(step.dense_bytes)} />
          <CostRow
            look="ink"
            name={`memory of q and k, n · ${head_size}`}
            steps={steps}
            say={(step) => bytes(step.seen_bytes)}
          />
        </tbody>
      </table>
      <Key>Time grows with n² in all three; memory only where all weights are held. Gray: n² from the first point.</Key>
    </>
  );
}

function CostRow(props: {
  look: Line["look"];
  name: string;
  steps: readonly CostStep[];
  say: (step: CostStep) => string;
}) {
  return (
    <tr>
      <th scope="row" class="aw-key">
        <i data-look={props.look} /> {props.name}
      </th>
      {props.steps.map((step) => (
        <td key={step.length}>{props.say(step)}</td>
      ))}
    </tr>
  );
}
