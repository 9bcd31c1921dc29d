/** The colors of segments: those that are drawn in the look, far enough from the page and from each other. */

import { expect, test } from "vitest";
import { contrast, parseColor } from "../../src/draw/color";
import { palerIn, SEGMENT_COLORS, segmentColor } from "../../src/draw/segment-colors";

const PAGES = { light: "#ffffff", dark: "#111213" } as const;
const LEAST = { light: 3, dark: 3.95 } as const;

test.each(["light", "dark"] as const)("eight colors that are seen on a %s page", (theme) => {
  const page = parseColor(PAGES[theme])!;
  expect(new Set(SEGMENT_COLORS[theme]).size).toBe(8);
  for (const color of SEGMENT_COLORS[theme]) {
    expect(contrast(parseColor(color)!, page)).toBeGreaterThanOrEqual(LEAST[theme]);
  }
});

test("a slot's color, gray for those that have none, and nothing paler in a contrast theme", () => {
  expect(segmentColor(3, "light", "gray")).toBe("#195f28");
  expect(segmentColor(3, "contrast", "gray")).toBe("#6ba571");
  expect(segmentColor(-1, "dark", "gray")).toBe("gray");
  expect([palerIn("light"), palerIn("dark"), palerIn("contrast-light")]).toEqual([0.42, 0.55, 1]);
});
