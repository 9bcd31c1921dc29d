/** The colors of segments, the same in every view, head and layer: handed out in order of appearance. */

import type { ColorSlot } from "../contract/messages";
import type { Theme } from "../contract/values";
import { isDark } from "./color";
import ramps from "./ramps.json";

const hexes = (text: string): readonly string[] => text.split(" ").map((hex) => `#${hex}`);

/** Eight for each page; the last is the gray of the asking segment. */
export const SEGMENT_COLORS = { light: hexes(ramps.segments.light), dark: hexes(ramps.segments.dark) };

/** How strong a segment is drawn that is not pinned, while another is; in a contrast theme all keep their color. */
const PALER = { light: 0.42, dark: 0.55, contrast: 1, "contrast-light": 1 } as const satisfies Record<Theme, number>;

/** Return a segment's color; that of the gray ones is `--aw-ink3`, which the page says. */
export function segmentColor(slot: ColorSlot, theme: Theme, ink3: string): string {
  return SEGMENT_COLORS[isDark(theme) ? "dark" : "light"][slot] ?? ink3;
}

/** The same for a style attribute. */
export const segmentStyle = (slot: ColorSlot, theme: Theme) => segmentColor(slot, theme, "var(--aw-ink3)");

/** Return how strong a segment is drawn beside another that is pinned, 0 to 1. */
export const palerIn = (theme: Theme): number => PALER[theme];
