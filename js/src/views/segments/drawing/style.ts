/** The colors and type of this view's canvases, from the page. */

import type { Theme } from "../../../contract/values";
import { palerIn, segmentColor } from "../../../draw/segment-colors";
import type { Ui } from "../../../state/ui";

export interface Style {
  readonly theme: Theme;
  readonly dpr: number;
  readonly unit: number;
  readonly font: string;
  readonly page: string;
  readonly ink: string;
  readonly ink2: string;
  readonly ink3: string;
  readonly track: string;
  readonly line: string;
  readonly plate: string;
  /** The opacity of segments while another is pinned. */
  readonly paler: number;
  /** Whether pinned segments have an outline, because nothing is paler. */
  readonly outlined: boolean;
  color(slot: number): string;
}

/** Read the page's style; repeated whenever theme, font or size change. */
export function styleOf(ui: Ui): Style {
  const theme = ui.theme.value;
  void ui.paints.value;
  const style = getComputedStyle(ui.root);
  const named = (name: string) => style.getPropertyValue(name).trim();
  const ink3 = named("--aw-ink3");
  return {
    theme,
    dpr: ui.dpr.value,
    unit: ui.unit.value,
    font: ui.font.value,
    page: ui.paints.value?.sequential.page ?? named("--aw-bg"),
    ink: named("--aw-ink"),
    ink2: named("--aw-ink2"),
    ink3,
    track: named("--aw-track"),
    line: named("--aw-line"),
    plate: named("--aw-plate"),
    paler: palerIn(theme),
    outlined: theme === "contrast" || theme === "contrast-light",
    color: (slot) => segmentColor(slot, theme, ink3),
  };
}

/** Return a canvas's context in CSS pixels, cleared; null if it cannot draw. */
export function cleared(canvas: HTMLCanvasElement, width: number, height: number, dpr: number) {
  const [wide, tall] = [Math.round(width * dpr), Math.round(height * dpr)];
  if (canvas.width !== wide) canvas.width = wide;
  if (canvas.height !== tall) canvas.height = tall;
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  const context = canvas.getContext("2d");
  context?.setTransform(dpr, 0, 0, dpr, 0, 0);
  context?.clearRect(0, 0, width, height);
  return context;
}

/** Return a length in whole device pixels. */
export const whole = (length: number, dpr: number) => Math.round(length * dpr) / dpr;
