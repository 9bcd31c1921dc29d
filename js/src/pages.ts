/** The labels of a sequence that is too long to be sent whole: a page of tokens at a time, as they are looked at. */

import { signal } from "@preact/signals-core";
import { count } from "./format";
import { display, type Labels, styleOf, type TokenText, unnamed } from "./tokens";

export const PAGE = 4096;
const KEPT = 256; // pages: all of a million tokens
const AT_ONCE = 2;
const WAITING = 4; // of the pages that are looked for while others are on their way, the newest
const MOST_TEXTS = 200_000;

/**
 * Until its page is here a token is its position; whoever has read that from a signal's effect reads again when it comes.
 * Which tokens occur twice cannot be known, so that every one that is not special carries its position.
 */
export function pagedLabels(
  first: readonly string[],
  length: number,
  ask: (start: number, stop: number) => Promise<readonly string[] | null>,
): Labels {
  const style = styleOf(new Set(first));
  const texts = new Map<string, TokenText>();
  const pages = new Map<number, readonly TokenText[]>();
  const arrivals = signal(0);
  const onTheWay = new Set<number>();
  let wanted: number[] = [];
  let due = false;
  let latest = -1; // the page that was read last is the last of the map already

  const read = (token: string): TokenText => {
    let text = texts.get(token);
    if (text === undefined) {
      if (texts.size > MOST_TEXTS) texts.clear();
      text = display(token, style);
      texts.set(token, text);
    }
    return text;
  };
  const keep = (page: number, tokens: readonly string[]) => {
    pages.set(page, tokens.map(read));
    if (pages.size > KEPT) pages.delete(pages.keys().next().value as number);
  };
  for (let stop = PAGE; stop <= first.length; stop += PAGE) keep(stop / PAGE - 1, first.slice(stop - PAGE, stop));

  function want(page: number): void {
    wanted = [...wanted.filter((other) => other !== page), page].slice(-WAITING);
    if (due) return;
    due = true;
    queueMicrotask(() => {
      due = false;
      next();
    });
  }

  function next(): void {
    while (onTheWay.size < AT_ONCE) {
      const page = wanted.pop();
      if (page === undefined) return;
      if (onTheWay.has(page) || pages.has(page)) continue;
      onTheWay.add(page);
      const arrived = (tokens: readonly string[] | null) => {
        onTheWay.delete(page);
        if (tokens !== null) {
          keep(page, tokens);
          arrivals.value++;
        }
        next();
      };
      ask(page * PAGE, Math.min(length, (page + 1) * PAGE)).then(arrived, () => arrived(null)); // the kernel's state says why
    }
  }

  return {
    length,
    at(position) {
      const page = Math.floor(position / PAGE);
      const tokens = pages.get(page);
      if (tokens === undefined) {
        void arrivals.value;
        if (position >= 0 && position < length) want(page);
        return unnamed(position);
      }
      if (page !== latest) {
        pages.delete(page);
        pages.set(page, tokens);
        latest = page;
      }
      const shown = tokens[position % PAGE];
      if (shown === undefined) return unnamed(position);
      return { ...shown, position, repeated: false, subscript: shown.special ? "" : count(position) };
    },
    find: () => null,
  };
}
