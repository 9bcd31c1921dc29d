/** Popovers in the top layer, which no output area clips, placed inside the visible part of the page. */

/** The visible part of the page, in pixels of its window. */
export interface Seen {
  readonly left: number;
  readonly top: number;
  readonly right: number;
  readonly bottom: number;
  /** The height available; less while the visible part of a frame is unknown. */
  readonly most: number;
}

/** This much of a popover is visible nearly everywhere; the rest scrolls. */
const SURELY = 300;

/**
 * Milliseconds until it is asked again how much of a frame can be seen: nothing tells it that the page around it
 * scrolls.
 */
const AGAIN = 250;

/**
 * Open a popover and put it in its place. The window says how much can be seen of a page, but not of a frame in one: VS
 * Code's is 12,000 px high. There `put` is called again when that is known, and when it is another. Return how to end.
 */
export function float(popup: HTMLElement, put: (seen: Seen) => void): () => void {
  popup.showPopover?.();
  const { innerWidth: right, innerHeight: bottom } = window;
  const isFrame = window.parent !== window;
  put({ left: 0, top: 0, right, bottom, most: isFrame ? SURELY : Number.POSITIVE_INFINITY });
  return isFrame ? watchFrame(popup, put) : () => {};
}

/** Only the browser knows which part of a frame is visible: it reports on an element as large as the frame. */
function watchFrame(popup: HTMLElement, put: (seen: Seen) => void): () => void {
  const all = document.createElement("i");
  all.className = "aw-whole-window";
  all.popover = "manual";
  popup.before(all);
  all.showPopover?.();
  let before = "";
  const observer = new IntersectionObserver((entries) => {
    const seen = entries.at(-1)?.intersectionRect;
    if (seen === undefined || seen.width === 0 || seen.height === 0) return;
    const { left, top, right, bottom } = seen;
    const now = [left, top, right, bottom].join();
    if (now !== before) put({ left, top, right, bottom, most: Number.POSITIVE_INFINITY });
    before = now;
  });
  const ask = () => {
    observer.unobserve(all);
    observer.observe(all);
  };
  ask();
  const asking = setInterval(ask, AGAIN);
  return () => {
    clearInterval(asking);
    observer.disconnect();
    all.remove();
  };
}
