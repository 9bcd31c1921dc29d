/** Lines of running text, tokens tinted by their weights: only the lines in view are in the page. */

import { Component, createRef } from "preact";
import { px } from "../../components/dom";
import type { Theme } from "../../contract/values";
import { segmentStyle } from "../../draw/segment-colors";
import type { Line, Placed } from "../../text/lines";
import type { TokenLooks } from "./looks";
import type { Mark } from "./marks";
import { type Flow, SLACK, type TextSegments } from "./model";

const PITCH = 30;
/** The most lines in view; more scroll. */
const MOST_LINES = 16;
const BEYOND = 4; // lines above and below the view
const SUBSCRIPT = 7.2; // pixels of one of its digits

export interface BoxProps {
  readonly flow: Flow;
  readonly tokens: readonly Placed[];
  readonly lines: readonly Line[];
  readonly looks: TokenLooks;
  readonly unit: number;
  readonly room: number;
  readonly top: number;
  /** The line to bring into view. */
  readonly line: number | null;
  /** The marked part of the text, and whether the line is its first, which goes to the top. */
  readonly marks: readonly Mark[];
  readonly sought: object | null;
  readonly theme: Theme;
}

/** Show the lines of a text: only those in view are in the page. */
export class FlowBox extends Component<BoxProps> {
  private box = createRef<HTMLDivElement>();
  private shown: number | null = null;
  private sought: object | null = null;
  private flow: Flow | null = null;

  override componentDidMount() {
    this.follow();
  }

  override componentDidUpdate() {
    this.follow();
  }

  /** Bring the line of the pin or of the mark into view, once. */
  private follow() {
    const { flow, line, unit, lines, sought } = this.props;
    const box = this.box.current;
    if (box === null) return;
    if (flow !== this.flow && this.flow !== null) flow.scroll.value = box.scrollTop; // the same place in other lines
    this.flow = flow;
    if (line === this.shown && sought === this.sought) return;
    this.shown = line;
    this.sought = sought;
    if (line === null || lines.length <= MOST_LINES) return;
    const pitch = PITCH * unit;
    const high = MOST_LINES * pitch;
    const to =
      sought === null
        ? Math.max((line + 1) * pitch - high, Math.min(flow.scroll.peek(), line * pitch))
        : Math.max(0, Math.min(lines.length * pitch - high, (line - 1) * pitch));
    box.scrollTop = to;
    flow.scroll.value = to; // the event comes a frame later
    if (box.scrollTop === 0 && to > 0) requestAnimationFrame(() => this.scrollTo(to)); // it was not in the page yet
  }

  private scrollTo(to: number) {
    const box = this.box.current;
    if (box === null || this.props.flow.scroll.peek() !== to) return;
    box.scrollTop = to;
    this.props.flow.scroll.value = box.scrollTop;
  }

  /** Whether the positions of repeated tokens fit beside them; line breaks do not depend on this. */
  private hasRoom(line: Line): boolean {
    const { flow, tokens, looks, unit, room } = this.props;
    if (looks.alike === null) return false;
    let width = line.width;
    for (let at = line.start; at < line.stop; at++) {
      const { position } = tokens[at] as Placed;
      const label = flow.passage.labels.at(position);
      if (label.text !== looks.alike) continue;
      width += SUBSCRIPT * label.subscript.length * unit;
      if (looks.pinned.has(position)) width += (4 + label.text.length) * unit;
    }
    return width <= room + SLACK * unit;
  }

  override render({ flow, tokens, lines, looks, unit, top, theme, marks }: BoxProps) {
    const segments = flow.segments.value;
    const pitch = PITCH * unit;
    const high = Math.min(lines.length, MOST_LINES) * pitch;
    const first = Math.max(0, Math.floor(top / pitch) - BEYOND);
    const last = Math.min(lines.length, Math.ceil((top + high) / pitch) + BEYOND);
    const scrolls = lines.length > MOST_LINES;
    const markOf = ({ start, stop }: Line) => markAround(marks, tokens[start]!.position, tokens[stop - 1]!.position);
    return (
      <div
        class="aw-flow"
        ref={this.box}
        data-scrolls={scrolls || undefined}
        {...(scrolls ? { tabIndex: 0, role: "group" as const, "aria-label": "Lines of the text" } : {})}
        data-segments={segments !== null || undefined}
        style={{ height: px(high + (scrolls ? 0 : 4 * unit)) }}
        onScroll={(event: Event) => {
          flow.scroll.value = (event.currentTarget as HTMLElement).scrollTop;
        }}
      >
        <div style={{ height: px(lines.length * pitch) }}>
          {segments !== null &&
            lines
              .slice(first, last)
              .map((line, at) => (
                <Stripe
                  key={`stripe ${line.start}`}
                  segments={segments}
                  at={line.start}
                  last={segments.begins.has(line.stop)}
                  marked={markOf(line) !== undefined}
                  top={(first + at) * pitch}
                  {...{ pitch, theme }}
                />
              ))}
          {lines.slice(first, last).map((line, at) => (
            <div
              class="aw-line"
              key={line.start}
              dir={line.rtl ? "rtl" : "ltr"}
              data-marked={markOf(line)?.side}
              style={{ top: px((first + at) * pitch), ...markStyle(markOf(line), theme) }}
            >
              {tokens.slice(line.start, line.stop).map((token, place, all) => (
                <Token
                  key={token.position}
                  token={token}
                  first={place === 0}
                  glued={all[place + 1]?.gap === ""}
                  looks={looks}
                  flow={flow}
                  numbered={this.hasRoom(line)}
                  name={segments?.starts.get(token.position)}
                />
              ))}
            </div>
          ))}
        </div>
      </div>
    );
  }
}

/** The mark that contains a line. */
const markAround = (marks: readonly Mark[], first: number, last: number) =>
  marks.find(({ start, stop }) => start <= first && last < stop);

const markStyle = (mark: Mark | undefined, theme: Theme) =>
  mark ? { "--aw-mark": segmentStyle(mark.slot, theme) } : {};

interface StripeProps {
  readonly segments: TextSegments;
  /** The place of the line's first token, and whether its segment ends with the line. */
  readonly at: number;
  readonly last: boolean;
  readonly marked: boolean;
  readonly top: number;
  readonly pitch: number;
  readonly theme: Theme;
}

/** The color of a line's segment, on its left: adjacent lines of one segment form one stripe. */
function Stripe({ segments, at, last, marked, top, pitch, theme }: StripeProps) {
  const slot = segments.slots[at] ?? -1;
  return (
    <i
      class="aw-line-segment"
      title={segments.names[at]}
      data-marked={marked || undefined}
      style={{ top: px(top), height: px(pitch - (last ? 1 : 0)), background: segmentStyle(slot, theme) }}
    />
  );
}

interface TokenProps {
  readonly token: Placed;
  readonly first: boolean;
  /** Whether the next one follows without a space. */
  readonly glued: boolean;
  readonly numbered: boolean;
  /** The segment that begins with it. */
  readonly name: string | undefined;
  readonly looks: TokenLooks;
  readonly flow: Flow;
}

function Token({ token, first, glued, looks, flow, numbered, name }: TokenProps) {
  const { position, text, gap, special } = token;
  const look = looks.of(position);
  const pinned = looks.pinned.has(position);
  const further = !pinned && looks.further.has(position);
  const colored = look !== null && typeof look === "object" ? look : null;
  const marked = colored !== null || pinned || further;
  const label = marked ? flow.passage.labels.at(position) : null;
  const subscript = label !== null && numbered && label.text === looks.alike ? label.subscript : "";
  const names = [
    "aw-word",
    pinned ? "aw-pill" : further ? "aw-word-outline" : colored ? "aw-tinted" : "",
    look === "masked" && !pinned ? "aw-word-masked" : look === "nan" ? "aw-word-nan" : "",
    special ? "aw-word-special" : "",
  ];
  return (
    <>
      {first ? "" : gap}
      {name !== undefined && (
        <span class="aw-segment-start">
          <bdi>{name}</bdi>
        </span>
      )}
      <span
        data-at={position}
        class={names.filter(Boolean).join(" ")}
        data-joined={gap === "" && !first ? (glued ? "both" : "before") : glued ? "after" : undefined}
        style={colored !== null && !pinned ? { "--aw-tint": colored.tint, "--aw-full": colored.full } : undefined}
      >
        {text}
        {subscript !== "" && <sub>{subscript}</sub>}
      </span>
    </>
  );
}
