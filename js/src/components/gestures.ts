/** Drag, wheel and pinch on an element, as movements; the caller decides what they mean. */

export interface Point {
  readonly x: number;
  readonly y: number;
}

export interface Gestures {
  /** Pan by so much. */
  pan(by: Point): void;
  /** Magnify by a factor around a point of the element. */
  zoom(factor: number, at: Point): void;
  /** Neither a tremor nor the end of a drag. */
  click(event: MouseEvent): void;
  reset(): void;
}

const CLICK_MOVES = 4; // smaller movements still count as a click

/** Return the place of an event from the element's corner. */
export function pointIn(element: Element, { clientX, clientY }: { clientX: number; clientY: number }): Point {
  const box = element.getBoundingClientRect();
  return { x: clientX - box.left, y: clientY - box.top };
}

/** Report panning, zooming, clicks and double clicks by mouse, finger or trackpad. */
export function watchGestures(element: HTMLElement, gestures: Gestures, stop: AbortSignal): void {
  const page = element.ownerDocument;
  const pointOf = (event: { clientX: number; clientY: number }) => pointIn(element, event);
  const listen = <K extends keyof HTMLElementEventMap>(
    name: K,
    heard: (event: HTMLElementEventMap[K]) => void,
    passive = false,
  ) => element.addEventListener(name, heard, { signal: stop, passive });

  let dragged = false;
  listen("mousedown", (event) => {
    dragged = false;
    if (event.button !== 0) return;
    event.stopPropagation();
    const start = { x: event.clientX, y: event.clientY };
    let last = start;
    const held = new AbortController();
    const whileHeld = { capture: true, signal: AbortSignal.any ? AbortSignal.any([held.signal, stop]) : held.signal };
    const move = ({ clientX, clientY }: MouseEvent) => {
      dragged ||= Math.hypot(clientX - start.x, clientY - start.y) > CLICK_MOVES;
      gestures.pan({ x: clientX - last.x, y: clientY - last.y });
      last = { x: clientX, y: clientY };
    };
    page.addEventListener("mousemove", move, whileHeld);
    page.addEventListener("mouseup", () => held.abort(), whileHeld);
    page.addEventListener("selectstart", (selecting) => selecting.preventDefault(), whileHeld);
  });
  listen("click", (event) => {
    if (!dragged) gestures.click(event);
    dragged = false;
  });
  listen("dblclick", () => gestures.reset());

  // The wheel scrolls the notebook; with Ctrl or ⌘ it never zooms the page, even at the picture's largest zoom.
  listen("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    const pixels = event.deltaMode === 1 ? 30 * event.deltaY : event.deltaY;
    if (pixels !== 0) gestures.zoom(2 ** (-Math.sign(pixels) * Math.min(0.5, Math.abs(pixels) * 0.01)), pointOf(event));
  });

  // One finger scrolls the page; two hold the picture. Their places are kept in page coordinates, because the
  // element's corner moves when tokens appear on its left.
  let pinch: { middle: Point; apart: number } | null = null;
  const fingers = ({ touches }: TouchEvent) => {
    const [a, b] = [touches[0], touches[1]];
    if (a === undefined || b === undefined) return null;
    const middle = { x: (a.clientX + b.clientX) / 2, y: (a.clientY + b.clientY) / 2 };
    return { middle, apart: Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY) };
  };
  listen("touchstart", (event) => {
    pinch = fingers(event);
    if (pinch !== null) event.preventDefault();
  });
  listen("touchmove", (event) => {
    const now = fingers(event);
    if (pinch === null || now === null) return;
    event.preventDefault();
    gestures.pan({ x: now.middle.x - pinch.middle.x, y: now.middle.y - pinch.middle.y });
    const at = pointOf({ clientX: now.middle.x, clientY: now.middle.y });
    if (pinch.apart > 0 && now.apart > 0) gestures.zoom(now.apart / pinch.apart, at);
    pinch = now;
  });
  for (const end of ["touchend", "touchcancel"] as const) {
    listen(end, (event) => {
      pinch = fingers(event);
    });
  }
}
