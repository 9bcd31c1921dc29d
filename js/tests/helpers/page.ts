/** A widget in a page, as a person uses it: point at cells, press keys, read what it says. */

import { setMaxListeners } from "node:events";
import { vi } from "vitest";
import type { Traits } from "../../src/contract/traits";
import { type HostOptions, type Mounted, mount } from "../../src/kernel/host";
import { loadView, PARTS } from "../../src/shell/views";
import widget from "../../src/widget";
import { atEnd, resize } from "./setup.ts";

/** jsdom takes only its own window for an event's view; `window` here is the test runner's. */
export const real = (globalThis as unknown as { jsdom: { window: Window } }).jsdom.window;

await Promise.all(PARTS.map(loadView)); // so that each view is drawn at once; that it is waited for has tests of its own

setMaxListeners(0); // Node warns from 11 listeners of one signal on; a view has more, and they go with it

/** The colors that a host's stylesheet would give: jsdom resolves no variables. */
export const PAGE = { background: "#ffffff", ink: "#16181d" };

export function paper({ background, ink } = PAGE): HTMLStyleElement {
  const style = document.createElement("style");
  style.textContent = `.attnwidget { background-color: ${background}; color: ${ink}; font-family: sans-serif }`;
  return style;
}

/** Time for messages, frames and decoding; less than the 400 ms after which a person is told to wait. */
export const settle = (ms = 60) => vi.advanceTimersByTimeAsync(ms);

interface Place {
  x: number;
  y: number;
}

export class View {
  readonly root: HTMLElement;

  constructor(readonly el: HTMLElement | ShadowRoot) {
    this.root = el.querySelector<HTMLElement>(".attnwidget")!;
  }

  find<E extends Element = HTMLElement>(selector: string): E {
    const found = this.root.querySelector<E>(selector);
    if (found === null) throw new Error(`there is no ${selector}`);
    return found;
  }

  all<E extends HTMLElement = HTMLElement>(selector: string): E[] {
    return [...this.root.querySelectorAll<E>(selector)];
  }

  get canvas(): HTMLCanvasElement {
    return this.find<HTMLCanvasElement>("[data-aw=picture]");
  }

  /** What a part of the widget says, as one line. */
  text(selector = ".aw-frame"): string {
    return readable(this.find(selector)).replace(/\s+/g, " ").trim();
  }

  get panel(): string {
    return this.text("[data-aw=panel]");
  }

  get status(): string {
    return this.text("[data-aw=status]");
  }

  get legend(): string {
    return this.text("[data-aw=legend]");
  }

  get notices(): string {
    return this.text(".aw-notices");
  }

  /** A button by its words or its label. */
  button(name: string | RegExp): HTMLButtonElement {
    const matches = (text: string | null) =>
      text !== null && (name instanceof RegExp ? name.test(text) : text === name);
    const found = this.all<HTMLButtonElement>("button").find(
      (button) => matches(button.getAttribute("aria-label")) || matches(readable(button).trim()),
    );
    if (!found) throw new Error(`there is no button ${name}`);
    return found;
  }

  get head(): string {
    return this.find("[aria-label=Head] [aria-checked=true]").getAttribute("aria-label") ?? "";
  }

  pixel(x: number, y: number): number[] {
    return [...this.canvas.getContext("2d")!.getImageData(x, y, 1, 1).data];
  }

  /** All pixels of the picture, to be compared. */
  get pixels(): string {
    const { width, height } = this.canvas;
    return this.canvas.getContext("2d")!.getImageData(0, 0, width, height).data.join();
  }

  /** The labels of one of the graph's columns, from top to bottom; gaps among them. */
  column(side: "query" | "key"): HTMLElement[] {
    const own = this.all(".aw-graph-columns .aw-label").filter(
      (label) => label.style[side === "query" ? "right" : "left"] !== "",
    );
    return own.sort((a, b) => Number.parseFloat(a.style.top) - Number.parseFloat(b.style.top));
  }

  /** What the graph says of the token in focus, row by row: a bar's length for each head that has one, and the number. */
  get bars(): { bars: { color: string; width: number }[]; number: string }[] {
    return this.all(".aw-graph-row").map((row) => ({
      bars: [...row.querySelectorAll("i")].map(({ style }) => ({
        color: style.background,
        width: Number.parseFloat(style.width),
      })),
      number: row.querySelector("span")?.textContent ?? "",
    }));
  }

  /** The middle of a cell, while the whole picture is in view. */
  at(row: number, column: number, [rows, columns] = [4, 4]): Place {
    const { width, height } = this.canvas.getBoundingClientRect();
    return { x: ((column + 0.5) * width) / columns, y: ((row + 0.5) * height) / rows };
  }

  point({ x, y }: Place, pointerType = "mouse"): void {
    this.canvas.dispatchEvent(
      new PointerEvent("pointermove", { clientX: x, clientY: y, pointerType, bubbles: true, composed: true }),
    );
  }

  leave(): void {
    this.canvas.dispatchEvent(new PointerEvent("pointerleave"));
  }

  async hover(row: number, column: number, shape: [number, number] = [4, 4]): Promise<void> {
    this.point(this.at(row, column, shape));
    await settle();
  }

  /** Press at one place and let go at the other, as a mouse does. */
  async drag(from: Place, to: Place, steps = 4): Promise<void> {
    this.mouse("mousedown", from);
    for (let step = 1; step <= steps; step++) {
      const share = step / steps;
      const between = { x: from.x + (to.x - from.x) * share, y: from.y + (to.y - from.y) * share };
      if (from.x !== to.x || from.y !== to.y) this.mouse("mousemove", between);
    }
    this.mouse("mouseup", to);
    this.mouse("click", to);
    await settle();
  }

  async click(row: number, column: number, shape: [number, number] = [4, 4]): Promise<void> {
    const place = this.at(row, column, shape);
    await this.drag(place, place);
  }

  mouse(type: string, { x, y }: Place): void {
    this.canvas.dispatchEvent(
      new MouseEvent(type, {
        clientX: x,
        clientY: y,
        button: 0,
        bubbles: true,
        cancelable: true,
        composed: true,
        view: real,
      }),
    );
  }

  async press(key: string, init: KeyboardEventInit = {}): Promise<{ prevented: boolean; escaped: boolean }> {
    return pressOn(this.canvas, key, init);
  }

  /** Whether the page may not scroll any more. */
  async wheel(deltaY: number, init: WheelEventInit = {}, place = this.at(0, 0)): Promise<boolean> {
    const event = new WheelEvent("wheel", {
      deltaY,
      clientX: place.x,
      clientY: place.y,
      bubbles: true,
      cancelable: true,
      view: real,
      ...init,
    });
    this.canvas.dispatchEvent(event);
    await settle(200);
    return event.defaultPrevented;
  }

  get isZoomed(): boolean {
    return this.find(".aw-plot").hasAttribute("data-zoomed");
  }
}

/** Text without what is only for screen readers' or the eye's sake: canvases, drawings. */
function readable(node: Node): string {
  if (node.nodeType === Node.TEXT_NODE) return node.textContent ?? "";
  if (node instanceof Element && node.matches("svg, canvas")) return "";
  const inner = [...node.childNodes].map(readable).join("");
  return node instanceof Element && node.matches("div, li, p, button, span, b, i, h4") ? ` ${inner} ` : inner;
}

export async function pressOn(target: HTMLElement, key: string, init: KeyboardEventInit = {}) {
  let escaped = false;
  const outer = () => {
    escaped = true;
  };
  document.addEventListener("keydown", outer);
  const event = new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true, composed: true, ...init });
  target.dispatchEvent(event);
  document.removeEventListener("keydown", outer);
  await settle();
  return { prevented: event.defaultPrevented, escaped };
}

const shown: Mounted[] = [];
atEnd.push(() => Promise.all(shown.splice(0).map(({ unmount }) => unmount())));

export interface Shown extends Mounted {
  readonly view: View;
  /** One more view of the same widget. */
  another(width?: number): Promise<{ view: View; remove(): Promise<void> }>;
}

/** A widget in a page of its own, drawn. */
export async function show(
  state: Partial<Traits>,
  options: HostOptions = {},
  { width = 900, into = document.body as HTMLElement | ShadowRoot } = {},
): Promise<Shown> {
  if (!document.head.querySelector("style")) document.head.append(paper());
  const el = document.createElement("div");
  into.append(el);
  const mounted = await mount(widget, el, state, options);
  shown.push(mounted);
  const view = new View(el);
  if (width > 0) resize(view.root, width);
  await settle();
  return {
    ...mounted,
    view,
    async another(otherWidth = width) {
      const other = document.createElement("div");
      into.append(other);
      const remove = await mounted.render(other);
      const second = new View(other);
      resize(second.root, otherWidth);
      await settle();
      return { view: second, remove };
    },
  };
}
