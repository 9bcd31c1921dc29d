/**
 * What jsdom lacks and a browser has, as far as the widget uses it. Canvases are real (Skia through @napi-rs/canvas), so
 * tests read back the pixels that were drawn. There is no layout engine: a test says how large an element is.
 *
 *     import { colorScheme, frame, resize } from "./setup.ts";
 *     resize(root, 640);               // tells clientWidth, getBoundingClientRect and every ResizeObserver
 *     colorScheme("dark");             // prefers-color-scheme; media(query, matches) for any other query
 *     await frame();                   // after the next animation frame
 */

import { Blob as NodeBlob } from "node:buffer";
import * as skia from "@napi-rs/canvas";

// --- canvas ---------------------------------------------------------------------------------------------------------

/** Each canvas of the page draws into a Skia canvas behind it. */
const behind = new WeakMap<object, { canvas: skia.Canvas; context: skia.SKRSContext2D }>();

function surface(element: HTMLCanvasElement | OffscreenCanvasOnSkia) {
  let found = behind.get(element);
  if (!found) {
    const canvas = skia.createCanvas(1, 1);
    Object.assign(canvas, { width: element.width, height: element.height }); // createCanvas takes 0 for "the default"
    const context = onPage(canvas.getContext("2d"), element);
    found = { canvas, context };
    behind.set(element, found);
  }
  return found;
}

/** Makes a Skia context speak of the page's canvases: as its own `canvas`, and as images to draw. */
function onPage(context: skia.SKRSContext2D, element: object): skia.SKRSContext2D {
  const image = (source: object): skia.Canvas => {
    if (source instanceof HTMLCanvasElement || source instanceof OffscreenCanvasOnSkia) return surface(source).canvas;
    return source as skia.Canvas;
  };
  const drawImage = context.drawImage.bind(context) as (...all: unknown[]) => void;
  const createPattern = context.createPattern.bind(context);
  Object.defineProperties(context, {
    canvas: { value: element },
    drawImage: {
      value: (source: object, ...place: number[]) => {
        const { width, height } = source as { width: number; height: number };
        if (width === 0 || height === 0) {
          throw new DOMException("The image argument is a canvas with width or height 0", "InvalidStateError");
        }
        drawImage(image(source), ...place);
      },
    },
    createPattern: {
      value: (source: object, repeat: "repeat" | "repeat-x" | "repeat-y" | "no-repeat" | null) =>
        createPattern(image(source), repeat),
    },
  });
  return context;
}

class OffscreenCanvasOnSkia extends EventTarget {
  #width: number;
  #height: number;

  constructor(width: number, height: number) {
    super();
    this.#width = width;
    this.#height = height;
  }

  get width() {
    return this.#width;
  }

  set width(value: number) {
    this.#width = value;
    const on = behind.get(this);
    if (on) on.canvas.width = value;
  }

  get height() {
    return this.#height;
  }

  set height(value: number) {
    this.#height = value;
    const on = behind.get(this);
    if (on) on.canvas.height = value;
  }

  getContext(kind: string) {
    return kind === "2d" ? surface(this).context : null;
  }

  transferToImageBitmap() {
    return bitmapOf(this);
  }

  async convertToBlob({ type = "image/png" } = {}) {
    return new NodeBlob([surface(this).canvas.toBuffer(type as "image/png")], { type });
  }
}

type Drawable = HTMLCanvasElement | OffscreenCanvasOnSkia;

/** A copy of a canvas or of pixels, drawable like an ImageBitmap. */
function bitmapOf(source: Drawable | ImageData) {
  const bitmap = new OffscreenCanvasOnSkia(source.width, source.height);
  const { context } = surface(bitmap);
  if (source instanceof skia.ImageData) context.putImageData(source, 0, 0);
  else context.drawImage(surface(source as Drawable).canvas, 0, 0);
  return Object.assign(bitmap, { close: () => undefined });
}

Object.defineProperties(HTMLCanvasElement.prototype, {
  getContext: {
    configurable: true,
    writable: true,
    value(this: HTMLCanvasElement, kind: string) {
      return kind === "2d" ? surface(this).context : null;
    },
  },
  toDataURL: {
    configurable: true,
    writable: true,
    value(this: HTMLCanvasElement) {
      return surface(this).canvas.toDataURL("image/png");
    },
  },
  toBlob: {
    configurable: true,
    writable: true,
    value(this: HTMLCanvasElement, done: (blob: unknown) => void) {
      const png = surface(this).canvas.toBuffer("image/png");
      queueMicrotask(() => done(new NodeBlob([png], { type: "image/png" })));
    },
  },
});

// Setting a canvas's width or height, even to what it is, clears it.
for (const side of ["width", "height"] as const) {
  const original = Object.getOwnPropertyDescriptor(HTMLCanvasElement.prototype, side) as PropertyDescriptor;
  Object.defineProperty(HTMLCanvasElement.prototype, side, {
    ...original,
    set(this: HTMLCanvasElement, value: number) {
      original.set?.call(this, value);
      const on = behind.get(this);
      if (on) on.canvas[side] = this[side];
    },
  });
}

// --- sizes ----------------------------------------------------------------------------------------------------------

const sizes = new WeakMap<Element, { width: number; height: number }>();
const observers = new Set<ResizeObserverByHand>();

class ResizeObserverByHand implements ResizeObserver {
  readonly targets = new Set<Element>();
  readonly #callback: ResizeObserverCallback;

  constructor(callback: ResizeObserverCallback) {
    this.#callback = callback;
  }

  observe(target: Element) {
    this.targets.add(target);
    observers.add(this);
    // A browser reports once on its own, unless there is nothing to report.
    if (sizes.has(target)) queueMicrotask(() => this.report(target));
  }

  unobserve(target: Element) {
    this.targets.delete(target);
  }

  disconnect() {
    this.targets.clear();
    observers.delete(this);
  }

  report(target: Element) {
    const size = sizes.get(target);
    if (!size || !this.targets.has(target)) return;
    const box = (ratio: number) => [{ inlineSize: size.width * ratio, blockSize: size.height * ratio }];
    const entry: ResizeObserverEntry = {
      target,
      contentRect: DOMRectReadOnly.fromRect(size),
      borderBoxSize: box(1),
      contentBoxSize: box(1),
      devicePixelContentBoxSize: box(window.devicePixelRatio),
    };
    this.#callback([entry], this);
  }
}

/** Gives an element a size and tells every ResizeObserver that watches it, at once. */
export function resize(element: Element, width: number, height = 0): void {
  sizes.set(element, { width, height });
  for (const observer of [...observers]) observer.report(element);
}

/** The size that a test gave, else what the style says in pixels, else 0. */
function sizeOf(element: Element): { width: number; height: number } {
  const style = (element as HTMLElement).style as CSSStyleDeclaration | undefined;
  const pixels = (value: string | undefined) => (value?.endsWith("px") ? Number.parseFloat(value) : 0);
  return sizes.get(element) ?? { width: pixels(style?.width), height: pixels(style?.height) };
}

class Rect implements DOMRect {
  constructor(
    readonly x = 0,
    readonly y = 0,
    readonly width = 0,
    readonly height = 0,
  ) {}

  get left() {
    return this.x;
  }

  get top() {
    return this.y;
  }

  get right() {
    return this.x + this.width;
  }

  get bottom() {
    return this.y + this.height;
  }

  toJSON() {
    return { x: this.x, y: this.y, width: this.width, height: this.height };
  }

  static fromRect({ x = 0, y = 0, width = 0, height = 0 }: DOMRectInit = {}) {
    return new Rect(x, y, width, height);
  }
}

Element.prototype.getBoundingClientRect = function (this: Element) {
  return Rect.fromRect(sizeOf(this));
};

for (const [name, side] of [
  ["clientWidth", "width"],
  ["clientHeight", "height"],
  ["offsetWidth", "width"],
  ["offsetHeight", "height"],
] as const) {
  Object.defineProperty(HTMLElement.prototype, name, {
    configurable: true,
    get(this: HTMLElement) {
      return Math.round(sizeOf(this)[side]);
    },
  });
}

// --- media ----------------------------------------------------------------------------------------------------------

const matching = new Set<string>();
let lists: MediaQueryListByHand[] = [];

class MediaQueryListByHand extends EventTarget {
  onchange: ((event: Event) => void) | null = null;

  constructor(readonly media: string) {
    super();
    lists.push(this);
  }

  get matches() {
    return matching.has(plain(this.media));
  }

  addListener(listener: EventListener | null) {
    this.addEventListener("change", listener);
  }

  removeListener(listener: EventListener | null) {
    this.removeEventListener("change", listener);
  }

  changed() {
    const event = Object.assign(new Event("change"), { matches: this.matches, media: this.media });
    this.onchange?.(event);
    this.dispatchEvent(event);
  }
}

const plain = (query: string) => query.replace(/\s+/g, "");

/** Sets whether a media query matches, and tells those who listen. Every query starts as false. */
export function media(query: string, matches: boolean): void {
  if (matches === matching.has(plain(query))) return;
  if (matches) matching.add(plain(query));
  else matching.delete(plain(query));
  for (const list of lists) if (plain(list.media) === plain(query)) list.changed();
}

export function colorScheme(scheme: "light" | "dark"): void {
  media("(prefers-color-scheme: dark)", scheme === "dark");
  media("(prefers-color-scheme: light)", scheme === "light");
}

/** Resolves after the next animation frame's callbacks. */
export const frame = (): Promise<void> => new Promise((resolve) => requestAnimationFrame(() => resolve()));

// --- the page -------------------------------------------------------------------------------------------------------

Object.assign(globalThis, {
  // jsdom's own Blob cannot be streamed, so Node's Response and DecompressionStream could not read it.
  Blob: NodeBlob,
  DOMRect: Rect,
  DOMRectReadOnly: Rect,
  ImageData: skia.ImageData,
  OffscreenCanvas: OffscreenCanvasOnSkia,
  Path2D: skia.Path2D,
  ResizeObserver: ResizeObserverByHand,
  createImageBitmap: async (source: Drawable | ImageData) => bitmapOf(source),
  matchMedia: (query: string) => new MediaQueryListByHand(query),
});

Object.assign(Element.prototype, {
  hasPointerCapture: () => false,
  releasePointerCapture: () => undefined,
  scrollIntoView: () => undefined,
  setPointerCapture: () => undefined,
});

/** What else is to be undone at the end of each test, before the page is emptied. */
export const atEnd: (() => unknown)[] = [];

const attributesOf = (element: Element) => Array.from(element.attributes, ({ name }) => name);

/** Leave the page as it was before the first test. */
export async function emptyPage(): Promise<void> {
  for (const end of atEnd) await end();
  document.body.replaceChildren();
  document.head.replaceChildren();
  for (const element of [document.body, document.documentElement]) {
    for (const name of attributesOf(element)) element.removeAttribute(name);
  }
  for (const observer of observers) observer.disconnect();
  matching.clear();
  lists = [];
}
