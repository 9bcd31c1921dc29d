/** The plane: similar heads lie together. */

import type { HeadAt, Index } from "./contents";

const SIZE = 240;
const EDGE = 10;

export interface PlaneProps {
  readonly index: Index;
  readonly heads: readonly HeadAt[];
  readonly fills: readonly string[];
  readonly found: ReadonlySet<number>;
  readonly chosen: HeadAt | null;
  readonly beside: HeadAt | null;
  onChoose(head: HeadAt, beside: boolean): void;
}

export function HeadPlane({ index, heads, fills, found, chosen, beside, onChoose }: PlaneProps) {
  const [xs, ys] = [0, 1].map((axis) => index.plane.map((place) => place[axis] ?? 0)) as [number[], number[]];
  const scale = (values: number[]) => {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    return (value: number) => EDGE + ((value - low) / (high - low || 1)) * (SIZE - 2 * EDGE);
  };
  const [x, y] = [scale(xs), scale(ys)];
  return (
    <figure class="aw-atlas-plane">
      <svg viewBox={`0 0 ${SIZE} ${SIZE}`} role="group" aria-label="Similar heads lie together">
        {heads.map((head) => {
          const mark = chosen?.at === head.at ? "chosen" : beside?.at === head.at ? "beside" : undefined;
          return (
            // biome-ignore lint/a11y/noStaticElementInteractions: the map has a button for each head
            <circle
              key={head.at}
              class="aw-atlas-dot"
              data-mark={mark}
              data-faded={!found.has(head.at) || undefined}
              cx={x(xs[head.at] ?? 0).toFixed(1)}
              cy={(SIZE - y(ys[head.at] ?? 0)).toFixed(1)}
              r={mark === undefined ? 4 : 6}
              style={{ fill: fills[head.at] }}
              onClick={(event) => onChoose(head, event.shiftKey)}
            >
              <title>{`Layer ${head.layer}, head ${head.head}: ${index.sentences[head.at]}`}</title>
            </circle>
          );
        })}
      </svg>
      <figcaption>
        Similar heads lie together. This plane shows {Math.round(100 * index.shown)} % of how heads differ.
      </figcaption>
    </figure>
  );
}
