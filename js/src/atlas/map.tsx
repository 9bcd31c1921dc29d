/** The map: all heads, layer by layer, or in the order of a metric. */

import { useRef } from "preact/hooks";
import type { Curve, HeadAt, Index } from "./contents";
import { Tile } from "./tile";

export interface MapProps {
  readonly index: Index;
  readonly heads: readonly HeadAt[];
  readonly values: readonly (number | null)[];
  readonly most: number;
  readonly signed: boolean;
  readonly curves: readonly Curve[];
  readonly name: string;
  readonly found: ReadonlySet<number>;
  readonly sorted: boolean;
  readonly chosen: HeadAt | null;
  readonly beside: HeadAt | null;
  onChoose(head: HeadAt, beside: boolean): void;
}

export function HeadMap({ index, heads, values, found, sorted, chosen, ...rest }: MapProps) {
  const root = useRef<HTMLDivElement>(null);
  const order = sorted
    ? [...heads].sort((a, b) => (values[b.at] ?? -Infinity) - (values[a.at] ?? -Infinity))
    : [...heads];
  const rows = sorted ? [order] : index.counts.map((_, layer) => order.filter((head) => head.layer === layer));
  const first = chosen?.at ?? order[0]?.at;
  const widest = Math.max(...index.counts);
  const onKeyDown = (event: KeyboardEvent) => {
    const tiles = [...(root.current?.querySelectorAll<HTMLElement>(".aw-atlas-tile") ?? [])];
    const at = tiles.indexOf(event.target as HTMLElement);
    const to = at < 0 ? undefined : tiles[target(tiles, at, event.key)];
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    for (const tile of tiles) tile.tabIndex = tile === to ? 0 : -1;
    to.focus();
  };
  const tile = (head: HeadAt) => (
    <Tile
      key={head.at}
      head={head}
      value={values[head.at] ?? null}
      most={rest.most}
      signed={rest.signed}
      curve={rest.curves[head.at] ?? []}
      chosen={chosen?.at === head.at}
      beside={rest.beside?.at === head.at}
      faded={!found.has(head.at)}
      first={head.at === first}
      name={rest.name}
      sentence={index.sentences[head.at] ?? ""}
      numbered={sorted}
      onChoose={(beside) => rest.onChoose(head, beside)}
    />
  );
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: arrow keys move between the buttons inside
    <div ref={root} class="aw-atlas-map" data-sorted={sorted || undefined} data-aw="picture" onKeyDown={onKeyDown}>
      {rows.map((row, layer) => (
        <div key={layer} class="aw-atlas-row" role="group" aria-label={sorted ? rest.name : `Layer ${layer}`}>
          {!sorted && <span class="aw-atlas-layer">{layer}</span>}
          <div class="aw-atlas-tiles" style={sorted ? undefined : { "--aw-columns": widest }}>
            {row.map(tile)}
          </div>
        </div>
      ))}
    </div>
  );
}

/** Where a key leads: to the neighbor, or to the nearest tile of the row above or below. */
function target(tiles: readonly HTMLElement[], at: number, key: string): number {
  if (key === "ArrowRight") return Math.min(at + 1, tiles.length - 1);
  if (key === "ArrowLeft") return Math.max(at - 1, 0);
  if (key === "Home") return 0;
  if (key === "End") return tiles.length - 1;
  if (key !== "ArrowDown" && key !== "ArrowUp") return -1;
  const places = tiles.map((tile) => tile.getBoundingClientRect());
  const from = places[at] as DOMRect;
  const down = key === "ArrowDown";
  let best = -1;
  let least = Number.POSITIVE_INFINITY;
  places.forEach((place, i) => {
    const rows = down ? place.top - from.top : from.top - place.top;
    if (rows < from.height / 2) return;
    const apart = rows * 1000 + Math.abs(place.left - from.left);
    if (apart < least) [least, best] = [apart, i];
  });
  return best;
}
