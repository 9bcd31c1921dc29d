/** The layout of the three pictures of a comparison, as pure functions. Lengths are CSS pixels. */

import { type Figure, fit, type LabelRoom, type Mode, wholePixels } from "../../geometry/layout";

export const GAP = 21; // between two pictures
const HEAD = 72; // above them: name, letter, pinned key
const SWITCH = 8; // more room for the choice of a single picture
const MOST_LABEL = 110;
const TICKS = 52;
const LEAST_BESIDE = 720; // below this width, only one picture is shown

/** Whether all three pictures are side by side. */
export const isBeside = (mode: Mode) => mode === "beside" || mode === "wide";

/**
 * Return the place of one of the three pictures, which have equal size. Only pinned keys have labels, so these
 * need no room of their own.
 */
export function layoutCompare(input: {
  width: number;
  rows: number;
  columns: number;
  labels: LabelRoom;
  dpr: number;
  unit?: number;
  mode?: Mode;
}): Figure {
  const { width, rows, columns, labels, dpr } = input;
  const unit = input.unit ?? 1;
  const mode = input.mode ?? (width < LEAST_BESIDE * unit ? "under" : "beside");
  const frame = Math.min(width, 1280 * unit);
  const most = (labels.queryTicks ? TICKS : mode === "narrow" ? 88 : MOST_LABEL) * unit;
  const labelRoom = Math.min(most, Math.ceil(labels.query)) + 2;
  const left = labelRoom + 14 * unit;
  const room = isBeside(mode) ? (frame - left - 2 * GAP * unit) / 3 : frame - left;
  const cells = fit(room, rows, columns, dpr, unit, labels.keyTicks && Boolean(labels.queryTicks));
  return {
    mode,
    ...cells,
    left,
    top: (HEAD + (isBeside(mode) ? 0 : SWITCH)) * unit,
    width: wholePixels(cells.cellWidth * cells.columns, dpr),
    height: wholePixels(cells.cellHeight * cells.rows, dpr),
    overhang: 0,
    labelRoom,
    keyRoom: 0,
    positions: 0,
    below: 0,
    panel: 0,
  };
}
