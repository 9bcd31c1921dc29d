/** What floats over the page: in the top layer, which no output area clips, and inside what of the page can be seen. */

/** What of the page can be seen, in pixels of its window. */
export interface Seen {
  readonly left: number;
  readonly top: number;
  readonly right: number;
  readonly bottom: number;
  /** How tall something may be: less than there is while nobody has said how much of a frame can be seen. */
  readonly most: number;
}

/** As much of something that floats is seen nearly everywhere, and the rest of it by scrolling. */
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

/** Only the browser knows of a frame what of it is in view: it tells of something as large as the frame. */
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
