/** The widget's style sheet as the build makes it: the files that `styles/widget.css` names, one after the other. */

import { readFileSync } from "node:fs";
import { join } from "node:path";

export const STYLES = join(import.meta.dirname, "..", "..", "src", "styles");

export function styleFiles(): string[] {
  const list = readFileSync(join(STYLES, "widget.css"), "utf8");
  return [...list.matchAll(/^@import "(.+)";$/gm)].map((found) => join(STYLES, found[1] as string));
}

export function styleSheet(): string {
  return styleFiles()
    .map((name) => readFileSync(name, "utf8"))
    .join("\n");
}
