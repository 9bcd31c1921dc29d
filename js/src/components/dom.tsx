/** Small shared pieces of markup. */

import { effect } from "@preact/signals-core";
import { type ComponentChildren, render } from "preact";
import { type Labels, positionUnder } from "../text/labels";

export interface View {
  readonly node: HTMLElement;
  dispose(): void;
}

/** Keep a node's content in step with the signals that `template` reads. */
export function mount(node: HTMLElement, template: () => ComponentChildren): View {
  const end = effect(() => render(template(), node));
  return {
    node,
    dispose() {
      end();
      render(null, node);
    },
  };
}

/** Return an element with a class and the name of its part (for tests and the user's own CSS). */
export function part(className: string, name?: string): HTMLElement {
  const node = document.createElement("div");
  node.className = className;
  if (name) node.dataset.aw = name;
  return node;
}

export const px = (length: number) => `${length}px`;

/** Show a token as text, never as markup, isolated from the text direction around it. */
export function Token({ labels, index, subscript }: { labels: Labels; index: number; subscript: boolean }) {
  const label = labels.at(index);
  const under = subscript ? positionUnder(label) : "";
  return (
    <>
      <bdi>{label.text}</bdi>
      {under && <sub>{under}</sub>}
    </>
  );
}

export function Chevron() {
  return (
    <svg class="aw-chevron" viewBox="0 0 10 10" aria-hidden="true">
      <path d="M1.5 3.5 5 7 8.5 3.5" />
    </svg>
  );
}

/**
 * Move focus and choice within a group that is one Tab stop: arrows, Home and End. With `among`, a selector, the group has
 * other children too.
 */
export function rove(
  event: KeyboardEvent,
  index: number,
  count: number,
  choose: (index: number) => void,
  among?: string,
): void {
  const moves: Record<string, number> = {
    ArrowRight: index + 1,
    ArrowDown: index + 1,
    ArrowLeft: index - 1,
    ArrowUp: index - 1,
    Home: 0,
    End: count - 1,
  };
  const next = moves[event.key];
  if (next === undefined) return;
  event.preventDefault();
  event.stopPropagation();
  const to = Math.max(0, Math.min(count - 1, next));
  choose(to);
  const group = (event.currentTarget as HTMLElement).parentElement;
  const children = among === undefined ? group?.children : group?.querySelectorAll(among);
  (children?.[to] as HTMLElement | undefined)?.focus();
}
