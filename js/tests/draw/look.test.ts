import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { LOOK } from "../../src/draw/color";

const css = readFileSync("src/styles/theme.css", "utf8");

test.each([
  ["light", ".attnwidget {"],
  ["dark", '.attnwidget[data-theme="dark"] {'],
] as const)("canvases of a %s look have the style sheet's colors", (ground, selector) => {
  const start = css.indexOf(selector);
  expect(start).toBeGreaterThanOrEqual(0);
  const block = css.slice(start, css.indexOf("}", start));
  const colors = Object.fromEntries(
    [...block.matchAll(/--aw-(\w+): (#\w+);/g)].map(([, name, color]) => [name, color]),
  );
  const { page, ...others } = LOOK[ground];
  expect({ bg: page, ...others }).toEqual(
    Object.fromEntries(["bg", "ink", "ink3", "data", "bad"].map((name) => [name, colors[name]])),
  );
});
