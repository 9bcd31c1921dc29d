/** Lines over one axis, drawn at display size so that labels keep theirs. */

import type { ComponentChildren } from "preact";

export interface Line {
  readonly name: string;
  readonly points: readonly (readonly [x: number, y: number])[];
  readonly look: "data" | "ink" | "dashed" | "faint";
}

interface Tick {
  readonly at: number;
  readonly text: string;
}

interface ChartProps {
  readonly name: string;
  /** What the numbers mean. */
  readonly about: ComponentChildren;
  readonly wide: number;
  readonly tall: number;
  readonly lines: readonly Line[];
  readonly x: readonly [low: number, high: number];
  readonly y: readonly [low: number, high: number];
  readonly xTicks: readonly Tick[];
  readonly yTicks: readonly Tick[];
  /** A place on the x axis to mark on the first line. */
  readonly mark?: number | undefined;
}

const LEFT = 34; // for the numbers of the y axis
const BELOW = 16;
const EDGE = 5;

/** Draw lines on two axes, with a name and a sentence above. */
export function LineChart({ name, about, wide, tall, lines, x, y, xTicks, yTicks, mark }: ChartProps) {
  const across = (value: number) => LEFT + ((wide - LEFT - EDGE) * (value - x[0])) / (x[1] - x[0] || 1);
  const down = (value: number) => EDGE + ((tall - BELOW - EDGE) * (y[1] - value)) / (y[1] - y[0] || 1);
  const marked = mark === undefined ? undefined : lines[0]?.points.find(([at]) => at === mark);
  return (
    <figure style={{ width: `calc(${wide} * var(--aw-u))` }}>
      <figcaption>
        <b>{name}</b> <span class="aw-muted">{about}</span>
      </figcaption>
      <svg class="aw-chart" viewBox={`0 0 ${wide} ${tall}`} role="img" aria-label={name}>
        {yTicks.map(({ at, text }) => (
          <g key={text}>
            <path class="aw-grid" d={`M${LEFT} ${down(at)}H${wide - EDGE}`} />
            <text data-end x={LEFT - 5} y={down(at) + 3.5}>
              {text}
            </text>
          </g>
        ))}
        {xTicks.map(({ at, text }) => (
          <text key={text} x={across(at)} y={tall - 3}>
            {text}
          </text>
        ))}
        {lines.map(({ name, points, look }) => (
          <path key={name} class="aw-line" data-look={look} d={path(points, across, down)}>
            <title>{name}</title>
          </path>
        ))}
        {marked !== undefined && Number.isFinite(marked[1]) && (
          <circle class="aw-dot" cx={across(marked[0])} cy={down(marked[1])} r="3" />
        )}
      </svg>
    </figure>
  );
}

/** Gaps for missing numbers. */
function path(points: Line["points"], across: (x: number) => number, down: (y: number) => number): string {
  let pen = "M";
  const parts: string[] = [];
  for (const [x, y] of points) {
    if (!Number.isFinite(y)) {
      pen = "M";
      continue;
    }
    parts.push(`${pen}${across(x).toFixed(2)} ${down(y).toFixed(2)}`);
    pen = "L";
  }
  return points.length === 1 ? `${parts[0] ?? "M0 0"}h1` : parts.join("");
}
