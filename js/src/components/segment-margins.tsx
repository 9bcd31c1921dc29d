/** Segment colors at the picture's edges, lines at their boundaries, and the ring around a pinned block. */

import type { Side, Theme } from "../contract/values";
import { type AxisView, clipped, type Placed, pieceUnder, type SegmentNode } from "../data/segment-axis";
import { segmentStyle } from "../draw/segment-colors";
import { MARGIN, MARGIN_GAP } from "../geometry/layout";
import type { Span } from "../geometry/viewport";
import type { Plot } from "../state/plot";
import { axisSegments, clickSegment, type PinnedSegment, pinnedBlock, pinnedSegment } from "../state/segment-axes";
import type { Ui } from "../state/ui";
import { px } from "./dom";
import { axisView, piecesOn, titleOf } from "./segment-names";

/** Shorter pieces have no boundary lines, which would fill the picture. */
const LEAST_LINED = 6;
/** The most blocks of a segment with many pieces. */
const MOST_RINGS = 64;
const LEAST_GRAY = 3;
/** The distance from the picture within which a margin can be clicked. */
const REACH = 4;

interface Props {
  readonly ui: Ui;
  readonly plot: Plot;
}

/** What is drawn for one axis. */
function drawnOn({ ui, plot }: Props, side: Side) {
  const figure = plot.figure.value;
  const cells = plot.cellGrid.value?.[side === "query" ? "rows" : "columns"];
  const axis = axisSegments(ui.store, side);
  if (figure === null || !cells || axis === null || plot.names.value === null) return null;
  return { figure, axis, view: axisView(cells), pieces: piecesOn({ ui, plot, cells, figure, axis }).pieces };
}

/** Draw the colors of the segments left of the picture and above it. */
export function SegmentMargins(props: Props) {
  return (
    <>
      <Margin {...props} side="query" />
      <Margin {...props} side="key" />
    </>
  );
}

function Margin({ ui, plot, side }: Props & { side: Side }) {
  const drawn = drawnOn({ ui, plot }, side);
  if (drawn === null) return null;
  const { figure, axis, view, pieces } = drawn;
  const unit = ui.unit.value;
  const down = side === "query";
  const out = (MARGIN_GAP + MARGIN + REACH) * unit;
  const place = down
    ? { left: px(figure.left - out), top: px(figure.top), width: px(out), height: px(view.size) }
    : { left: px(figure.left), top: px(figure.top - out), width: px(view.size), height: px(out) };
  const under = (event: MouseEvent) => {
    const box = (event.currentTarget as Element).getBoundingClientRect();
    return pieceUnder(pieces, down ? event.clientY - box.top : event.clientX - box.left);
  };
  return (
    <div
      class="aw-segment-margin"
      aria-hidden="true"
      style={place}
      title={ui.pointedSegment.value?.side === side ? titleOf(ui.pointedSegment.value.node) : undefined}
      onPointerMove={(event: PointerEvent) => {
        const node = event.pointerType === "touch" ? null : under(event);
        ui.pointedSegment.value = node && { side, node };
      }}
      onPointerLeave={() => {
        ui.pointedSegment.value = null;
      }}
      onClick={(event: MouseEvent) => {
        const node = under(event);
        if (node !== null) clickSegment(ui, side, node);
      }}
    >
      <MarginBars
        {...{ pieces, view, down, theme: ui.theme.value, width: MARGIN * unit, from: REACH * unit }}
        slot={axis.slot}
      />
    </div>
  );
}

export interface BarsProps {
  readonly pieces: readonly Placed[];
  readonly view: AxisView;
  readonly down: boolean;
  readonly theme: Theme;
  /** Across the axis: width and start. */
  readonly width: number;
  readonly from: number;
  slot(node: SegmentNode): number;
}

/** Draw a bar for each piece; those of one color form one shape. */
export function MarginBars({ pieces, view, down, theme, width, from, slot }: BarsProps) {
  const shapes = new Map<number, string>();
  for (const placed of pieces) {
    const part = clipped(placed, view);
    const long = part.to - part.from;
    const gap = placed.to <= view.size && long >= 3 ? 1 : 0;
    const [at, length] = [round(part.from), round(Math.max(0.5, long - gap))];
    const color = slot(placed.node);
    if (color < 0 && long < LEAST_GRAY) continue; // gray ones are distinguished only by their ends
    const shape = down
      ? `M${from} ${at}h${width}v${length}h-${width}z`
      : `M${at} ${from}h${length}v${width}h-${length}z`;
    shapes.set(color, (shapes.get(color) ?? "") + shape);
  }
  return (
    <svg class="aw-segment-bars" aria-hidden="true">
      {[...shapes].map(([color, shape]) => (
        <path key={color} data-slot={color} d={shape} style={{ fill: segmentStyle(color, theme) }} />
      ))}
    </svg>
  );
}

const round = (length: number) => Math.round(length * 100) / 100;

/** Draw lines at segment boundaries and along the pinned ones, and a ring around the pinned block. */
export function SegmentLines({ ui, plot }: Props) {
  const [down, across] = [drawnOn({ ui, plot }, "query"), drawnOn({ ui, plot }, "key")];
  const figure = plot.figure.value;
  if (figure === null || plot.names.value?.lengths == null) return null;
  const unit = ui.unit.value;
  const rows = borders(down, LEAST_LINED * unit);
  const columns = borders(across, LEAST_LINED * unit);
  const width = (plot.cellGrid.value?.columns.size ?? figure.width) + 1;
  const height = (plot.cellGrid.value?.rows.size ?? figure.height) + 1;
  return (
    <>
      <svg class="aw-segment-lines" aria-hidden="true">
        <path d={rows.map((at) => `M0 ${at}h${width}`).join("") + columns.map((at) => `M${at} 0v${height}`).join("")} />
      </svg>
      <Pinned ui={ui} plot={plot} />
    </>
  );
}

/** The places of lines: before and after each piece that is long enough, on half a pixel. */
function borders(drawn: ReturnType<typeof drawnOn>, least: number): number[] {
  if (drawn === null) return [];
  const { pieces, view } = drawn;
  const at = new Set<number>();
  for (const { from, to } of pieces) {
    if (to - from < least) continue;
    for (const edge of [from, to]) if (edge > 0.5 && edge < view.size - 0.5) at.add(Math.round(edge) - 0.5);
  }
  return [...at].sort((a, b) => a - b);
}

function Pinned({ ui, plot }: Props) {
  const { store } = ui;
  const grid = plot.cellGrid.value;
  if (grid === null) return null;
  const block = pinnedBlock(store);
  const at = (span: Span, axis: "rows" | "columns") => ({
    start: span.start * grid[axis].pitch + grid[axis].offset,
    length: (span.stop - span.start) * grid[axis].pitch,
  });
  if (block !== null) {
    const pairs = block.query.spans.flatMap((rows) => block.key.spans.map((columns) => ({ rows, columns })));
    return (
      <>
        {pairs.slice(0, MOST_RINGS).map(({ rows, columns }) => {
          const [y, x] = [at(rows, "rows"), at(columns, "columns")];
          const place = {
            transform: `translate(${x.start}px, ${y.start}px)`,
            width: px(x.length),
            height: px(y.length),
          };
          return <i class="aw-ring aw-block-ring" data-pinned key={`${rows.start} ${columns.start}`} style={place} />;
        })}
      </>
    );
  }
  const sides: [PinnedSegment | null, "rows" | "columns"][] = [
    [pinnedSegment(store, "query"), "rows"],
    [pinnedSegment(store, "key"), "columns"],
  ];
  const pointed = ui.pointedSegment.value;
  if (pointed !== null) {
    sides.push([{ ...pointed.node, spans: [pointed.node] }, pointed.side === "query" ? "rows" : "columns"]);
  }
  return (
    <>
      {sides.flatMap(([segment, axis]) =>
        (segment?.spans ?? []).slice(0, MOST_RINGS).flatMap((span) => {
          const { start, length } = at(span, axis);
          return [start - 0.5, start + length - 0.5].map((edge) => (
            <i
              class="aw-rule"
              key={`${axis} ${edge}`}
              style={
                axis === "rows"
                  ? { left: 0, right: 0, height: "1px", top: px(edge) }
                  : { top: 0, bottom: 0, width: "1px", left: px(edge) }
              }
            />
          ));
        }),
      )}
    </>
  );
}
