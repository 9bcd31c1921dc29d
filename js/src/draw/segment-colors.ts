/** The colors of segments, in order of appearance and the same in every view, head and layer. */

import type { ColorSlot } from "../contract/messages";
import type { Theme } from "../contract/values";
import { isDark } from "./color";
import ramps from "./ramps.json";

const hexes = (text: string): readonly string[] => text.split(" ").map((hex) => `#${hex}`);

/** Eight per theme; the last is the gray of the asking segment. */
export const SEGMENT_COLORS = { light: hexes(ramps.segments.light), dark: hexes(ramps.segments.dark) };

/** The opacity of segments that are not pinned while another is; contrast themes keep full color. */
const PALER = { light: 0.42, dark: 0.55, contrast: 1, "contrast-light": 1 } as const satisfies Record<Theme, number>;

/** Return a segment's color; gray ones use `--aw-ink3` from the page. */
export function segmentColor(slot: ColorSlot, theme: Theme, ink3: string): string {
  return SEGMENT_COLORS[isDark(theme) ? "dark" : "light"][slot] ?? ink3;
}

/** The same for a style attribute. */
export const segmentStyle = (slot: ColorSlot, theme: Theme) => segmentColor(slot, theme, "var(--aw-ink3)");

/** Return the opacity of a segment while another is pinned, 0 to 1. */
export const palerIn = (theme: Theme): number => PALER[theme];
