/** The labels of a sequence too long to be sent whole: fetched by pages of tokens on demand. */

import { signal } from "@preact/signals-core";
import { count } from "../text/format";
import { type Labels, unnamed, unread } from "../text/labels";
import { inText, partly } from "../text/split-characters";
import { display, joinOf, pieceOf, styleOf, type TokenStyle, type TokenText } from "../text/tokens";

export const PAGE = 4096;
const KEPT = 256; // pages: all of a million tokens
const AT_ONCE = 2;
const WAITING = 4; // wanted pages kept in the queue, the newest
const MOST_TEXTS = 200_000;

/**
 * Until its page arrives, a token is shown as its position; an effect that read it runs again on arrival. Repeated
 * tokens cannot be known, so every token that is not special shows its position.
 */
export function pagedLabels(
  first: readonly string[],
  length: number,
  ask: (start: number, stop: number) => Promise<readonly string[] | null>,
  spelling?: TokenStyle,
): Labels {
  const kinds = new Set(first);
  const style = spelling ?? styleOf(kinds);
  const join = joinOf(kinds, style);
  const texts = new Map<string, TokenText>();
  const pages = new Map<number, readonly string[]>();
  const arrivals = signal(0);
  const onTheWay = new Set<number>();
  let wanted: number[] = [];
  let due = false;
  let latest = -1; // the last page read is already the last of the map

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
    pages.set(page, tokens);
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
      ask(page * PAGE, Math.min(length, (page + 1) * PAGE)).then(arrived, () => arrived(null)); // the kernel's state tells
    }
  }

  /** A token, if its page is here; otherwise the page is requested. */
  function raw(position: number): string | null {
    const page = Math.floor(position / PAGE);
    const tokens = pages.get(page);
    if (tokens === undefined) {
      void arrivals.value;
      if (position >= 0 && position < length) want(page);
      return null;
    }
    if (page !== latest) {
      pages.delete(page);
      pages.set(page, tokens);
      latest = page;
    }
    return tokens[position % PAGE] ?? null;
  }

  /** A neighboring token; no other page is requested. */
  const near = (position: number) => pages.get(Math.floor(position / PAGE))?.[position % PAGE] ?? null;

  return {
    length,
    raw,
    at(position) {
      const token = raw(position);
      if (token === null) return unnamed(position);
      const { text, special } = read(token);
      const shown = { text: partly(near, position, text, style), special };
      return { ...shown, position, repeated: true, subscript: shown.special ? "" : count(position) };
    },
    piece(position) {
      const token = raw(position);
      return token === null ? unread(position) : inText(pieceOf(token, style, join), near, position, style);
    },
    find: () => null,
  };
}
