/**
 * A word that opens a list: `Show weights ⌄`. Arrow keys, Home and End move in it; Esc or an outside click closes it.
 */

import { signal } from "@preact/signals-core";
import { Component, type ComponentChildren, createRef } from "preact";
import { Chevron, px } from "./dom";
import { float, type Seen } from "./floating";

const EDGE = 4; // pixels between a menu and the window's edge

export interface Choice {
  readonly value: string;
  readonly name: string;
  readonly note?: string;
  /** Whether it cannot be chosen; its note says why. */
  readonly disabled?: boolean;
}

export interface Section {
  readonly title?: string;
  /** The chosen value; null if choices are actions; a list if several can be chosen. */
  readonly value: string | readonly string[] | null;
  readonly choices: readonly Choice[];
  choose(value: string): void;
}

interface Props {
  /** The label, such as "Show"; omitted for a menu that stands for a whole control. */
  readonly label?: string;
  readonly value?: string;
  readonly name: string;
  readonly side?: "left" | "right";
  /** Why nothing can be chosen; omitted if something can. */
  readonly disabled?: string | undefined;
  readonly sections: readonly Section[];
  readonly children?: ComponentChildren;
}

export class Menu extends Component<Props> {
  private open = signal(false); // a signal, so that updates are followed while it is open
  private wasOpen = false;
  private node = createRef<HTMLDivElement>();
  private popup = createRef<HTMLDivElement>();
  private listening: AbortController | null = null;
  private settled = () => {};

  override componentWillUnmount() {
    this.settled();
    this.listening?.abort();
  }

  private toggle = (open: boolean) => {
    this.settled();
    this.listening?.abort();
    if (open) this.listen();
    this.open.value = open; // drawn at once
  };

  private listen() {
    this.listening = new AbortController();
    const outside = (event: Event) => {
      if (!event.composedPath().includes(this.node.current as EventTarget)) this.toggle(false);
    };
    const options = { signal: this.listening.signal, capture: true };
    document.addEventListener("pointerdown", outside, options);
    const height = () => this.node.current?.getBoundingClientRect().y;
    const before = height();
    const moved = (event: Event) => {
      const inside = event.composedPath().includes(this.popup.current as EventTarget);
      if (!inside && (event.type === "resize" || height() !== before)) this.close(); // late event
    };
    document.addEventListener("scroll", moved, options);
    window.addEventListener("resize", moved, options);
  }

  /** Focus an item as soon as it is drawn, so that a key pressed in the same frame reaches it. */
  override componentDidUpdate() {
    const popup = this.popup.current;
    const opens = this.open.peek() && !this.wasOpen;
    this.wasOpen = this.open.peek();
    if (!opens || popup === null) return;
    this.settled = float(popup, this.place);
    const items = this.items();
    (items.find((item) => item.getAttribute("aria-checked") === "true") ?? items[0])?.focus({ preventScroll: true });
  }

  /** Place it below its word or above it, in the visible part of the page. */
  private place = (seen: Seen) => {
    const popup = this.popup.current;
    const button = this.node.current?.querySelector("button");
    if (!popup || !button) return;
    const word = button.getBoundingClientRect();
    const frame = popup.closest(".attnwidget")?.getBoundingClientRect() ?? document.body.getBoundingClientRect();
    popup.style.maxWidth = px(Math.max(200, frame.width));
    const { width } = popup.getBoundingClientRect();
    const [below, above] = [seen.bottom - word.bottom - 2 * EDGE, word.top - seen.top - 2 * EDGE];
    const up = Math.min(below, seen.most) < popup.scrollHeight && above > below;
    const wanted = this.props.side === "left" ? word.left - EDGE : word.right + EDGE - width;
    Object.assign(popup.style, {
      left: px(Math.max(seen.left, frame.left, Math.min(wanted, frame.right - width, seen.right - width))),
      maxHeight: px(Math.min(seen.most, Math.max(120, up ? above : below))),
      top: up ? "auto" : px(word.bottom + 2),
      bottom: up ? px(window.innerHeight - word.top + 2) : "auto",
    });
  };

  private items(): HTMLElement[] {
    return [...(this.node.current?.querySelectorAll<HTMLElement>(".aw-popup button, .aw-popup input") ?? [])];
  }

  private close() {
    this.toggle(false);
    this.node.current?.querySelector<HTMLElement>("button")?.focus({ preventScroll: true });
  }

  private onKeyDown = (event: KeyboardEvent) => {
    if (!this.open.peek()) return;
    event.stopPropagation();
    if (event.key === "Escape") {
      event.preventDefault();
      this.close();
      return;
    }
    const items = this.items();
    const root = this.node.current?.getRootNode() as Document | ShadowRoot;
    const own = root.activeElement;
    const at = items.indexOf(own as HTMLElement);
    const to = {
      ArrowDown: (at + 1) % items.length,
      ArrowUp: (at + items.length - 1) % items.length,
      ...(own instanceof HTMLInputElement ? {} : { Home: 0, End: items.length - 1 }), // in a field they move the caret
    }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    items[to]?.focus();
  };

  private onFocusOut = (event: FocusEvent) => {
    const to = event.relatedTarget as Node | null;
    if (this.open.peek() && to && !this.node.current?.contains(to)) this.toggle(false);
  };

  override render({ label, value, name, sections, disabled, children }: Props) {
    const open = this.open.value;
    return (
      <div
        class="aw-menu"
        role="group"
        aria-label={name}
        ref={this.node}
        onKeyDown={this.onKeyDown}
        onFocusOut={this.onFocusOut}
      >
        <button
          type="button"
          aria-haspopup="menu"
          aria-expanded={open}
          disabled={disabled !== undefined}
          title={disabled}
          aria-label={value ? `${name} ${value}` : name}
          onClick={() => this.toggle(!open)}
        >
          {label && <span class="aw-muted">{label}</span>}{" "}
          {value ? (
            <>
              <span>{value}</span>
              <Chevron />
            </>
          ) : (
            <svg class="aw-dots" viewBox="0 0 16 16" aria-hidden="true">
              <circle cx="2.5" cy="8" r="1.5" />
              <circle cx="8" cy="8" r="1.5" />
              <circle cx="13.5" cy="8" r="1.5" />
            </svg>
          )}
        </button>
        {open && (
          <div class="aw-popup" role="group" aria-label={name} popover="manual" ref={this.popup}>
            <div class="aw-items" role="menu" aria-label={name}>
              {sections.map((section) => (
                <div role="group" aria-label={section.title ?? name} key={section.title ?? name}>
                  {section.title && <h4 role="presentation">{section.title}</h4>}
                  {section.choices.map((choice) => (
                    <button
                      type="button"
                      key={choice.value}
                      {...roleOf(section, choice)}
                      aria-disabled={choice.disabled}
                      onClick={() => {
                        if (choice.disabled) return;
                        section.choose(choice.value);
                        this.close();
                      }}
                    >
                      {isChosen(section, choice) ? (
                        <svg class="aw-check" viewBox="0 0 10 10" aria-hidden="true">
                          <path d="M1.5 5.5 4 8l4.5-6" />
                        </svg>
                      ) : (
                        <span />
                      )}
                      <span>{choice.name}</span>
                      {choice.note && <span class="aw-note">{choice.note}</span>}
                    </button>
                  ))}
                </div>
              ))}
            </div>
            {children}
          </div>
        )}
      </div>
    );
  }
}

const isChosen = ({ value }: Section, choice: Choice) =>
  typeof value === "string" ? value === choice.value : value?.includes(choice.value) === true;

function roleOf(section: Section, choice: Choice) {
  if (section.value === null) return { role: "menuitem" as const };
  const role = typeof section.value === "string" ? ("menuitemradio" as const) : ("menuitemcheckbox" as const);
  return { role, "aria-checked": isChosen(section, choice) };
}
