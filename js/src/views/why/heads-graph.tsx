/** The graph of heads on this text: layers as columns, heads as dots, edges by the share that a part gives to a head. */

import { RadioWords } from "../../components/radio-words";
import { Asked } from "../../components/unfold";
import type { ReadSide, Reply, StreamPart } from "../../contract/requests";
import { aboutShares, edgeWords, nothingWords } from "../../data/reason-words";
import { edgesInto, edgesOf, type GraphEdge, type HeadGraph, treeOf } from "../../data/reasons";
import { HEAD_COLORS, isDark } from "../../draw/color";
import type { Ui } from "../../state/ui";
import { count, percent } from "../../text/format";
import type { Chosen } from "./chosen";
import { HeadLink } from "./head-link";
import { HeadPreview } from "./head-preview";

const LEFT = 74; // the column of embeddings
const TALLEST = 300; // of a column of heads
const PITCH = 110; // of columns, at most
const LISTED = 8; // edges in words
const SIDES = ["query", "key", "value"] as const;
const SMALL = { heads: 160, queries: 128 }; // computed without being asked

/** Return whether the graph is quick to compute. */
export function isSmall({ store }: Ui): boolean {
  const { layers, heads, queries } = store.facts.peek(); // asked once, when the view is made
  return layers.length * heads <= SMALL.heads && queries <= SMALL.queries;
}

async function read(reply: Reply<"why_heads">): Promise<HeadGraph | null> {
  return reply.into === undefined ? null : (reply as HeadGraph & Reply<"why_heads">);
}

export function HeadsGraph({ ui, chosen }: { ui: Ui; chosen: Chosen }) {
  const batch = ui.store.batch.value;
  return (
    <Asked
      ui={ui}
      kind="why_heads"
      body={{ batch, at: null }}
      of={`${batch} ${ui.store.facts.value.version}`}
      read={read}
      tall={360}
      draw={(graph) => graph && <Graph {...{ ui, chosen, graph }} />}
    />
  );
}

function Graph({ ui, chosen, graph }: { ui: Ui; chosen: Chosen; graph: HeadGraph }) {
  const { store } = ui;
  const [layer, head] = [store.layer.value, store.head.value];
  const least = Math.max(graph.least, chosen.least.value);
  const all = edgesOf(graph, least, chosen.side.value);
  const edges = chosen.follows.value ? treeOf(all, layer, head) : all;
  const words = { all: "all", query: "queries", key: "keys", value: "values" } as const;
  return (
    <>
      <div class="aw-why-tools">
        <RadioWords
          name="Read with"
          label="read with"
          words={words}
          chosen={chosen.side.value}
          choose={(side) => (chosen.side.value = side)}
        />
        <label class="aw-why-least">
          <span class="aw-muted">share from</span>
          <input
            type="range"
            min={graph.least}
            max={1}
            step={0.01}
            value={least}
            aria-label="Least share of an edge that is drawn"
            aria-valuetext={percent(least)}
            onKeyDown={(event) => event.stopPropagation()}
            onInput={(event) => (chosen.least.value = Number(event.currentTarget.value))}
          />
          <output>{percent(least)}</output>
        </label>
        <button
          type="button"
          class="aw-link"
          aria-pressed={chosen.follows.value}
          onClick={() => (chosen.follows.value = !chosen.follows.value)}
        >
          {chosen.follows.value ? "show all heads" : `follow ${layer}·${head} back`}
        </button>
      </div>
      <Dots {...{ ui, chosen, edges }} heads={graph.heads} isQuiet={!chosen.follows.value && edges.length > 60} />
      <Listed {...{ ui, least }} edges={edgesInto(all, layer, head)} side={chosen.side.value} />
      <p class="aw-muted aw-why-about">{aboutShares(graph.queries)}</p>
    </>
  );
}

/** Places of heads and other parts in the drawing. */
function placesOf(ui: Ui, of: readonly number[], others: Iterable<StreamPart>) {
  const [layers, heads] = [of.length, Math.max(1, ...of)];
  const room = ui.width.value / ui.unit.value;
  const pitch = Math.max(18, Math.min(PITCH, (room - LEFT - 24) / Math.max(1, layers)));
  const down = Math.min(22, TALLEST / heads);
  const before = ["token", "position", "type", "input", "parameter"];
  const x = (layer: number) => LEFT + 14 + layer * pitch;
  const y = (head: number) => 28 + head * down;
  const wide = x(layers - 1) + 30;
  const tall = y(heads - 1) + 46;
  const asides = new Map<string, number>(); // parts of one column stand side by side
  const counts = new Map<number | null, number>();
  for (const { label, column, kind } of others) {
    if (before.includes(kind)) continue;
    asides.set(label, counts.get(column) ?? 0);
    counts.set(column, (counts.get(column) ?? 0) + 1);
  }
  const placeOf = (part: StreamPart): readonly [number, number] | null => {
    if (part.layer !== null && part.head !== null) return [x(part.layer), y(part.head)];
    const early = before.indexOf(part.kind);
    if (early >= 0) return [LEFT - 12, y(early * Math.max(1, Math.floor(heads / 6)))];
    if (part.kind !== "MLP" && part.kind !== "module" && part.kind !== "attention") return null;
    const aside = asides.get(part.label) ?? 0;
    return part.column === null ? [LEFT - 12, tall - 20 - 11 * aside] : [x(part.column) + 8 * aside, tall - 20];
  };
  const isFirst = (part: StreamPart) => !asides.get(part.label);
  return { x, y, placeOf, isFirst, wide, tall, pitch, down };
}

interface DotsProps {
  readonly ui: Ui;
  readonly chosen: Chosen;
  readonly edges: readonly GraphEdge[];
  /** How many heads each layer has. */
  readonly heads: readonly number[];
  /** Whether edges of other heads than the selected one are pale. */
  readonly isQuiet: boolean;
}

function Dots({ ui, chosen, edges, heads, isQuiet }: DotsProps) {
  const { store } = ui;
  const all = heads.flatMap((many, l) => Array.from({ length: many }, (_, h) => [l, h] as const));
  const colors = HEAD_COLORS[isDark(ui.theme.value) ? "dark" : "light"];
  const colorOf = (side: ReadSide) => colors[SIDES.indexOf(side)]!;
  const [layer, head] = [store.layer.value, store.head.value];
  const active = new Set(
    edges.flatMap((edge) => [`${edge.layer} ${edge.head}`, `${edge.from.layer} ${edge.from.head}`]),
  );
  const others = new Map(edges.filter(({ from }) => from.head === null).map(({ from }) => [from.label, from]));
  const places = placesOf(ui, heads, others.values());
  const isOwn = (edge: GraphEdge) =>
    (edge.layer === layer && edge.head === head) || (edge.from.layer === layer && edge.from.head === head);
  return (
    <>
      <div class="aw-why-scroll">
        <svg
          class="aw-why-graph"
          viewBox={`0 0 ${places.wide} ${places.tall}`}
          style={{ width: `calc(${places.wide} * var(--aw-u))` }}
          role="group"
          aria-label={`Graph of heads: ${count(edges.length)} edges`}
        >
          {heads.map((_, at) =>
            places.pitch > 24 || at % 4 === 0 ? (
              <text key={at} class="aw-why-axis" x={places.x(at)} y={12}>
                {at === 0 ? "layer 0" : at}
              </text>
            ) : null,
          )}
          {[...edges].reverse().map((edge) => {
            const from = places.placeOf(edge.from);
            if (from === null) return null;
            const [x1, y1] = [places.x(edge.layer), places.y(edge.head)];
            const bend = (x1 - from[0]) / 2;
            const path = `M${from[0]} ${from[1]}C${from[0] + bend} ${from[1]} ${x1 - bend} ${y1} ${x1} ${y1}`;
            return (
              <g
                key={`${edge.from.label} ${edge.layer} ${edge.head} ${edge.side}`}
                class="aw-why-edge"
                role="button"
                tabindex={-1}
                aria-label={`${edgeWords(edge)}. Click to see its cells.`}
                onClick={() => openCells(ui, edge)}
                onKeyDown={(event) => event.key === "Enter" && openCells(ui, edge)}
              >
                <title>{`${edgeWords(edge)}. Click to see its cells.`}</title>
                <path
                  d={path}
                  style={{ stroke: colorOf(edge.side), strokeWidth: Math.min(5, 0.8 + 4 * Math.abs(edge.share)) }}
                  stroke-dasharray={edge.share < 0 ? "4 3" : undefined}
                  data-pale={(isQuiet && !isOwn(edge)) || undefined}
                />
                <path class="aw-hit" d={path} />
              </g>
            );
          })}
          {[...others.values()].map((part) => {
            const at = places.placeOf(part);
            return at === null ? null : (
              <g key={part.label}>
                <title>{`${part.label} (${part.module})`}</title>
                <rect class="aw-why-other" x={at[0] - 3} y={at[1] - 3} width={6} height={6} />
                {at[0] < LEFT ? (
                  <text class="aw-why-early" x={at[0] - 7} y={at[1] + 3.5}>
                    {part.label}
                  </text>
                ) : (
                  <text class="aw-why-axis" x={at[0]} y={at[1] + 15}>
                    {places.pitch > 44 && places.isFirst(part) ? part.label : ""}
                  </text>
                )}
              </g>
            );
          })}
          {all.map(([l, h]) => {
            const isSelected = l === layer && h === head;
            return (
              <g
                key={`${l} ${h}`}
                class="aw-why-dot"
                role="button"
                tabindex={isSelected ? 0 : -1}
                aria-label={`head ${l}·${h}`}
                aria-pressed={isSelected}
                data-chosen={isSelected || undefined}
                data-faint={!active.has(`${l} ${h}`) || undefined}
                onMouseEnter={() => {
                  chosen.pointedHead.value = { layer: l, head: h };
                }}
                onMouseLeave={() => {
                  chosen.pointedHead.value = null;
                }}
                onClick={() => store.select({ layer: l, head: h })}
                onKeyDown={(event) => walk(event, ui, l, h, heads)}
              >
                <title>{`head ${l}·${h}`}</title>
                <circle class="aw-hit" cx={places.x(l)} cy={places.y(h)} r={Math.max(8, places.down / 2)} />
                <circle cx={places.x(l)} cy={places.y(h)} r={isSelected ? 5 : 3.2} />
                {isSelected && (
                  <text x={places.x(l) + 9} y={places.y(h) + 3.5}>
                    {l}·{h}
                  </text>
                )}
              </g>
            );
          })}
        </svg>
      </div>
      <div class="aw-why-sides">
        <HeadPreview ui={ui} {...(chosen.pointedHead.value ?? { layer, head })} />
        {SIDES.map((side) => (
          <span key={side}>
            <i style={{ background: colorOf(side) }} /> {side === "query" ? "queries" : `${side}s`}
          </span>
        ))}
        <span>
          <i class="aw-why-square" /> embedding or MLP
        </span>
      </div>
    </>
  );
}

/** Arrows go to the head beside this one. */
function walk(event: KeyboardEvent, { store }: Ui, layer: number, head: number, heads: readonly number[]) {
  const steps: Record<string, readonly [number, number]> = {
    ArrowLeft: [-1, 0],
    ArrowRight: [1, 0],
    ArrowUp: [0, -1],
    ArrowDown: [0, 1],
  };
  const step = steps[event.key];
  if (step === undefined) return;
  event.preventDefault();
  event.stopPropagation();
  const l = Math.max(0, Math.min(heads.length - 1, layer + step[0]));
  const h = Math.max(0, Math.min(heads[l]! - 1, head + step[1]));
  store.select({ layer: l, head: h });
  const dots = (event.currentTarget as SVGElement).parentElement?.querySelectorAll<SVGElement>(".aw-why-dot");
  dots?.[heads.slice(0, l).reduce((sum, many) => sum + many, h)]?.focus();
}

/** Show the cells behind an edge: those of the head that reads. */
function openCells({ store }: Ui, { layer, head }: GraphEdge): void {
  store.select({ layer, head });
  store.show({ view: "heatmap" });
}

interface ListedProps {
  readonly ui: Ui;
  readonly edges: readonly GraphEdge[];
  readonly least: number;
  readonly side: ReadSide | "all";
}

/** The largest edges into the selected head, in words. */
function Listed({ ui, edges, least, side }: ListedProps) {
  const { store } = ui;
  const name = `${store.layer.value}·${store.head.value}`;
  if (edges.length === 0) {
    return <p class="aw-muted aw-why-list">{nothingWords(name, side, least)}</p>;
  }
  return (
    <p class="aw-why-list">
      <span class="aw-muted">Head {name} reads </span>
      {edges.slice(0, LISTED).map((edge, place) => (
        <span key={`${edge.from.label} ${edge.side}`}>
          {place > 0 && ", "}
          <HeadLink ui={ui} part={edge.from} /> <b>{percent(edge.share)}</b>{" "}
          <span class="aw-muted">of its {edge.side === "query" ? "queries" : `${edge.side}s`}</span>
        </span>
      ))}
      {edges.length > LISTED && <span class="aw-muted">, and {count(edges.length - LISTED)} more</span>}.{" "}
      <button type="button" class="aw-link" onClick={() => store.show({ view: "heatmap" })}>
        see its cells
      </button>
    </p>
  );
}
