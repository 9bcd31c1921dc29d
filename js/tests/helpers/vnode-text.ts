/** What a component says, without a page: its text, and the titles and labels in it. */

import type { ComponentChildren, VNode } from "preact";

interface Said {
  /** All text, a space around each element that is not part of a word. */
  readonly text: string;
  /** The titles and aria-labels, from the outside in. */
  readonly titles: readonly string[];
  /** The text of each element of a class. */
  of(className: string): string[];
}

/** Call the components of a tree, and collect its words. Those that need a page, canvases, cannot be read so. */
export function said(tree: ComponentChildren): Said {
  const titles: string[] = [];
  const byClass = new Map<string, string[]>();
  const read = (node: ComponentChildren): string => {
    if (node === null || node === undefined || typeof node === "boolean") return "";
    if (Array.isArray(node)) return node.map(read).join("");
    if (typeof node !== "object") return String(node);
    const { type, props } = node as VNode<Record<string, unknown>>;
    if (typeof type === "function") {
      const isClass = type.prototype !== undefined && "render" in type.prototype;
      if (!isClass) return read((type as (props: object) => ComponentChildren)(props));
      const made = new (type as new (props: object) => { render(props: object, state: object): ComponentChildren })(
        props,
      );
      return read(made.render(props, {}));
    }
    for (const name of ["title", "aria-label"]) if (typeof props[name] === "string") titles.push(props[name]);
    const inner = read(props.children as ComponentChildren);
    const text = type === "bdi" || type === "tspan" ? inner : ` ${inner} `;
    for (const name of String(props.class ?? "")
      .split(" ")
      .filter(Boolean)) {
      byClass.set(name, [...(byClass.get(name) ?? []), plain(text)]);
    }
    return text;
  };
  const text = plain(read(tree));
  return { text, titles, of: (className) => byClass.get(className) ?? [] };
}

const plain = (text: string) => text.replace(/\s+/g, " ").trim();
