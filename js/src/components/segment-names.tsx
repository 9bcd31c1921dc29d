/** Names of segments along the axes of a picture, with brackets for the levels around them. */

import type { Side } from "../contract/values";
import {
  type AxisView,
  clipped,
  isSame,
  named,
  type Placed,
  piecesInView,
  type SegmentNode,
} from "../data/segment-axis";
import type { Axis } from "../geometry/cell-grid";
import { BRACKET, type Figure, GAPS_FROM, labelFont, type NameRoom } from "../geometry/layout";
import type { Plot } from "../state/plot";
import { type AxisSegments, clickSegment, isPinned, type PinnedSegment, pinnedSegment } from "../state/segment-axes";
import type { Ui } from "../state/ui";
import { count } from "../text/format";
import { shorten } from "../text/tokens";
import { px } from "./dom";
import { rangeOf } from "./phrases";

/** The distance between names; smaller, with smaller type, if there are many. */
const APART = 17;
const BRACKET_END = 5;
const LEAST_NAME = 20;

export interface NamesProps {
  readonly ui: Ui;
  readonly plot: Plot;
  readonly side: Side;
  readonly cells: Axis;
  readonly figure: Figure;
  readonly axis: AxisSegments;
}

/** Return the places of positions along an axis at the current zoom. */
export const axisView = ({ pitch, offset, size }: Axis): AxisView => ({ perToken: pitch, offset, size });

/** Return the pieces to name at the current zoom: the deeper, the more room they have. */
export function piecesOn({ ui, plot, cells, figure, axis }: Omit<NamesProps, "side">) {
  const zoomed = plot.viewport.value.k > 1;
  const levels = zoomed ? Number.POSITIVE_INFINITY : (figure.names?.levels ?? 1);
  return piecesInView(axis.tree, axisView(cells), { apart: GAPS_FROM * ui.unit.value, paths: axis.open, levels });
}

/** Draw the names of an axis's segments: those that fit; pinned and pointed-at ones always. */
export function SegmentNames(props: NamesProps) {
  const { ui, side, cells, figure } = props;
  const unit = ui.unit.value;
  const room = figure.names;
  if (!room) return null;
  const { pieces, around } = piecesOn(props);
  const pinned = pinnedSegment(ui.store, side);
  const view = axisView(cells);
  const isPointed = (node: SegmentNode) => pointedOn(ui, side, node);
  const always = (node: SegmentNode) => isPinned(pinned, node) || isPointed(node);
  const apart = apartOf(pieces, view, unit);
  const shown = named(pieces, view, apart, always);
  const font = labelFont(apart, unit);
  return (
    <>
      <Brackets {...props} around={around} pinned={pinned} room={room} />
      {shown.map((placed) => (
        <Name key={`${placed.node.start} ${placed.node.level}`} {...{ ...props, placed, pinned, font, view, room }} />
      ))}
    </>
  );
}

/**
 * How far apart names stand: nearer, and smaller, where else a piece would be nameless that is as long as its name is
 * tall.
 */
function apartOf(pieces: readonly Placed[], view: AxisView, unit: number): number {
  const [near, far] = [GAPS_FROM * unit, APART * unit];
  const shown = new Set(named(pieces, view, far));
  const isLost = (one: Placed) => {
    const { from, to } = clipped(one, view);
    return to - from >= near && !shown.has(one);
  };
  return pieces.length * far > view.size || pieces.some(isLost) ? near : far;
}

const pointedOn = ({ pointedSegment }: Ui, side: Side, node: SegmentNode) => {
  const at = pointedSegment.value;
  return at !== null && at.side === side && isSame(at.node, node);
};

interface NameProps extends NamesProps {
  readonly placed: Placed;
  readonly pinned: PinnedSegment | null;
  readonly font: number;
  readonly view: AxisView;
  readonly room: NameRoom;
}

function Name({ ui, plot, side, figure, placed, pinned, font, view, room }: NameProps) {
  const unit = ui.unit.value;
  const margin = figure.margin ?? 0;
  const down = side === "query";
  const { node } = placed;
  const isPin = isPinned(pinned, node);
  const isPointed = pointedOn(ui, side, node);
  const measure = plot.measure.value;
  const { middle } = clipped(placed, view);
  const beyond = (figure.width + figure.overhang - middle - 8 * unit) / Math.SQRT1_2; // one may be at the end
  const most = down ? room.query : Math.min(room.key, Math.max(LEAST_NAME * unit, beyond));
  const text = shorten(node.name, most, (part) => measure(part, font, 600));
  const place = down
    ? {
        top: px(figure.top + middle),
        right: px((isPin ? 2 : 8) * unit + margin - figure.left),
        transform: "translateY(-50%)",
      }
    : {
        left: px(figure.left + middle + 3 * unit),
        top: px(figure.top - 5 * unit - margin),
        transformOrigin: "0 100%",
        transform: `translateY(-100%) rotate(-45deg) translateX(${isPin ? -6 * unit : 0}px)`,
      };
  return (
    <NameButton {...{ ui, side, node, isPin, isPointed }} style={{ ...place, ...type(font, unit) }}>
      {text}
    </NameButton>
  );
}

const type = (font: number, unit: number) => ({
  fontSize: px(font * unit),
  lineHeight: px(Math.min(16, font + 4) * unit),
});

interface ButtonProps {
  readonly ui: Ui;
  readonly side: Side;
  readonly node: SegmentNode;
  readonly isPin: boolean;
  readonly isPointed: boolean;
  readonly style: Record<string, string>;
  /** Whether it stands outside zoomed tokens, or names a bracket. */
  readonly outside?: boolean;
  readonly around?: boolean;
  readonly children: preact.ComponentChildren;
}

/** A name that pins its segment. */
function NameButton({ ui, side, node, isPin, isPointed, style, outside, around, children }: ButtonProps) {
  return (
    <button
      type="button"
      tabIndex={-1}
      class={isPin && !outside ? "aw-label aw-segment-name aw-pill" : "aw-label aw-segment-name"}
      data-special={node.isRest || undefined}
      data-hovered={(!isPin && isPointed) || undefined}
      data-outside={outside || undefined}
      data-around={around || undefined}
      aria-pressed={isPin}
      title={titleOf(node)}
      style={style}
      onPointerEnter={(event: PointerEvent) => {
        if (event.pointerType !== "touch") ui.pointedSegment.value = { side, node };
      }}
      onPointerLeave={() => {
        ui.pointedSegment.value = null;
      }}
      onPointerDown={(event: PointerEvent) => event.preventDefault()}
      onClick={() => clickSegment(ui, side, node)}
    >
      <bdi>{children}</bdi>
    </button>
  );
}

/** Return "doc 3, in documents: 39 tokens, 129–167". */
export function titleOf(node: SegmentNode): string {
  const tokens = node.stop - node.start;
  const inside = node.path.length > 0 ? `, in ${node.path.join(", ")}` : "";
  return `${node.name}${inside}: ${count(tokens)} ${tokens === 1 ? "token" : "tokens"}, ${rangeOf(node)}`;
}

// --- brackets -------------------------------------------------------------------------------------------------------

interface BracketsProps extends NamesProps {
  readonly around: readonly Placed[];
  readonly pinned: PinnedSegment | null;
  readonly room: NameRoom;
}

/** Draw the levels around the names, inner ones closer to them. */
function Brackets(props: BracketsProps) {
  const { ui, plot, side, cells, figure, around, pinned, room } = props;
  const unit = ui.unit.value;
  const view = axisView(cells);
  const deepest = around.reduce((most, { node }) => Math.max(most, node.level), 0);
  const shown = around.filter(({ node }) => deepest - node.level < room.levels);
  const down = side === "query";
  const isNamed = new Set(down ? named(shown, view, 14 * unit, (node) => isPinned(pinned, node)) : shown);
  return (
    <>
      {shown.map((placed) => {
        const { node } = placed;
        const at = bracketAt(figure, room, deepest - node.level, down, unit);
        const part = clipped(placed, view);
        const ends = { first: placed.from >= -0.5, last: placed.to <= view.size + 0.5 };
        const box = down
          ? { left: px(at), top: px(figure.top + part.from), height: px(Math.max(1, part.to - part.from - 1)) }
          : { top: px(at), left: px(figure.left + part.from), width: px(Math.max(1, part.to - part.from - 1)) };
        const most = down ? room.bracket : part.to - part.from;
        const text = shorten(node.name, most, (name) => plot.measure.value(name, 12, 600));
        const place = down
          ? { right: px(4 * unit - at), top: px(figure.top + part.middle), transform: "translateY(-50%)" }
          : { left: px(figure.left + part.middle), top: px(at - 2 * unit), transform: "translate(-50%, -100%)" };
        const hasName = isNamed.has(placed) && most >= LEAST_NAME * unit;
        return (
          <span key={`${node.start} ${node.level}`}>
            <i
              class="aw-bracket"
              data-side={side}
              data-first={ends.first || undefined}
              data-last={ends.last || undefined}
              title={titleOf(node)}
              style={{ ...box, [down ? "width" : "height"]: px(BRACKET_END * unit) }}
            />
            {hasName && (
              <NameButton
                {...{ ui, side, node, isPin: isPinned(pinned, node), isPointed: pointedOn(ui, side, node) }}
                around
                style={{ ...place, ...type(12, unit) }}
              >
                {text}
              </NameButton>
            )}
          </span>
        );
      })}
    </>
  );
}

/** The place of a bracket's line, left of the names or above them; `step` counts levels outwards. */
function bracketAt(figure: Figure, room: NameRoom, step: number, down: boolean, unit: number): number {
  const margin = figure.margin ?? 0;
  if (down) return figure.left - margin - 8 * unit - room.query - 10 * unit - step * (BRACKET * unit + room.bracket);
  const names = room.key * Math.SQRT1_2 + 16 * unit;
  return figure.top - margin - names - 6 * unit - step * (BRACKET + 12) * unit;
}

// --- zoomed in ------------------------------------------------------------------------------------------------------

/** Draw the names of segments outside zoomed tokens: left of them, and above. */
export function NamesOutside(props: NamesProps) {
  const { ui, plot, side, cells, figure } = props;
  const unit = ui.unit.value;
  const view = axisView(cells);
  const room = figure.names;
  const down = side === "query";
  if (!room || (down && room.outside === 0)) return null;
  const pinned = pinnedSegment(ui.store, side);
  const { pieces } = piecesOn(props);
  const margin = figure.margin ?? 0;
  const measure = plot.measure.value;
  const shown = down ? named(pieces, view, 14 * unit) : pieces;
  return (
    <>
      {shown.map((placed) => {
        const { node } = placed;
        const { from, to, middle } = clipped(placed, view);
        const most = down ? room.outside : to - from - 6 * unit;
        if (most < LEAST_NAME * unit) return null;
        const text = shorten(node.name, most, (name) => measure(name, 12, 600));
        const where = ` ${rangeOf(node)}${node.path.length > 0 ? ` of ${node.path.at(-1)}` : ""}`;
        const isRoom = !down && text === node.name && measure(node.name, 12, 600) + measure(where, 12) <= most;
        const right = figure.left - margin - 8 * unit - room.token - 10 * unit;
        const place = down
          ? { right: px(-right), top: px(figure.top + middle), transform: "translateY(-50%)" }
          : { left: px(figure.left + middle), top: 0, transform: "translateX(-50%)" };
        return (
          <NameButton
            key={`${node.start} ${node.level}`}
            {...{ ui, side, node, isPin: isPinned(pinned, node), isPointed: pointedOn(ui, side, node) }}
            outside
            style={{ ...place, ...type(12, unit) } as Record<string, string>}
          >
            {text}
            {isRoom && <span class="aw-segment-range">{where}</span>}
          </NameButton>
        );
      })}
    </>
  );
}
