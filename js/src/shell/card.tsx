/** The card over the picture: the tour, the list of keyboard shortcuts, or the field to go to a token. */

import { Component, createRef, Fragment } from "preact";
import { px } from "../components/dom";
import { float, type Seen } from "../components/floating";
import { GoTo } from "../components/goto";
import { focusPicture } from "../components/keyboard";
import type { CardName, KeyLine, Ui } from "../state/ui";
import { hasGoTo } from "./keys";
import { Tour } from "./tour";

const EDGE = 8; // pixels from the picture's corner, and from the window's edge
const LABELS = { tour: "Tour", keys: "Keyboard shortcuts", goto: "Go to a token" } as const;

/** The open card; Esc and a click outside close it. */
export class Card extends Component<{ ui: Ui; card: CardName }> {
  private node = createRef<HTMLDivElement>();
  private listening = new AbortController();
  private settled = () => {};
  private seen: Seen | null = null;
  /** What the tour explains now; the card stands over or below it. */
  private toured: Element | null = null;

  override componentDidMount() {
    const card = this.node.current;
    if (card === null) return;
    this.settled = float(card, this.place);
    (card.querySelector<HTMLElement>("input, [data-aw=next]") ?? card).focus({ preventScroll: true });
    const options = { signal: this.listening.signal, capture: true };
    const isOutside = (event: Event) => !event.composedPath().includes(card);
    const leave = (event: Event) => {
      if (isOutside(event)) this.props.ui.card.value = null;
    };
    const follow = (event: Event) => {
      if (isOutside(event) && this.seen !== null) this.place(this.seen);
    };
    document.addEventListener("pointerdown", leave, options);
    document.addEventListener("scroll", follow, options);
  }

  override componentWillUnmount() {
    this.settled();
    this.listening.abort();
  }

  /** Place the card in the picture's upper corner, or as near as it stays visible. */
  private place = (seen: Seen) => {
    this.seen = seen;
    const card = this.node.current;
    const picture = this.props.ui.root.querySelector("[data-aw=picture]");
    const part = (this.toured ?? picture)?.getBoundingClientRect();
    if (card === null || part === undefined) return;
    const frame = this.props.ui.root.getBoundingClientRect();
    card.style.maxWidth = px(Math.max(200, frame.width));
    card.style.maxHeight = px(Math.max(120, Math.min(seen.most, seen.bottom - seen.top - 2 * EDGE)));
    const { width, height } = card.getBoundingClientRect();
    const within = (wanted: number, low: number, high: number) => Math.max(low, Math.min(wanted, high));
    Object.assign(card.style, {
      left: px(within(part.left + EDGE, Math.max(seen.left, frame.left), Math.min(seen.right, frame.right) - width)),
      top: px(within(this.top(part, height), seen.top + EDGE, seen.bottom - height - EDGE)),
    });
  };

  /** In the upper corner of a picture; below what the tour explains, if it is a line, so that it stays visible. */
  private top(part: DOMRect, height: number): number {
    if (this.toured === null) return part.top + EDGE;
    return part.height > 2 * height ? part.top + part.height / 2 : part.bottom + EDGE;
  }

  private explain = (part: Element | null) => {
    this.toured = part;
    if (this.seen !== null) this.place(this.seen);
  };

  private close = () => {
    this.props.ui.card.value = null;
    focusPicture(this.props.ui.root);
  };

  private onKeyDown = (event: KeyboardEvent) => {
    const again = this.props.card !== "goto" && event.key === "?";
    if (event.key !== "Escape" && !again) return;
    event.preventDefault();
    event.stopPropagation();
    if (again && this.props.card === "tour") this.props.ui.card.value = "keys";
    else this.close();
  };

  private onFocusOut = (event: FocusEvent) => {
    const to = event.relatedTarget as Node | null;
    if (to !== null && !this.node.current?.contains(to)) this.props.ui.card.value = null;
  };

  override render({ ui, card }: { ui: Ui; card: CardName }) {
    return (
      <div
        class="aw-popup aw-card"
        role="dialog"
        aria-label={LABELS[card]}
        popover="manual"
        tabIndex={-1}
        ref={this.node}
        onKeyDown={this.onKeyDown}
        onFocusOut={this.onFocusOut}
      >
        {card === "tour" && <Tour ui={ui} at={this.explain} close={this.close} />}
        {card === "keys" && <Keys ui={ui} />}
        {card === "goto" && <GoTo ui={ui} />}
      </div>
    );
  }
}

/** The keyboard shortcuts of this view and head. */
function Keys({ ui }: { ui: Ui }) {
  const anywhere: KeyLine[] = [{ shown: "?", does: "a tour; pressed twice, this list", keys: {} }];
  if (hasGoTo(ui)) anywhere.unshift({ shown: "/", does: "go to a token", keys: {} });
  return (
    <>
      <h4>Keyboard shortcuts while the picture has focus</h4>
      <dl class="aw-keys-help">
        {[...ui.keyLines.value(), ...anywhere].map(({ shown, does }) => (
          <Fragment key={shown}>
            <dt>{shown}</dt>
            <dd class="aw-muted">{does}</dd>
          </Fragment>
        ))}
      </dl>
    </>
  );
}
