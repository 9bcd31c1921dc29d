/** Which numbers stand in cells, and how large: `cell-numbers.json` is written here and read by pytest (test_cell_numbers.py). */

import { test } from "vitest";
import { isRoomFor } from "../../src/draw/label-room";
import { numberFont } from "../../src/geometry/layout";
import { checkGolden } from "../helpers/golden";

/** Two fonts, of which the wider has no room where the other begins. */
const WIDTHS = [0.5, 0.62];

test("numbers stand in the same cells in the widget and in a figure", () => {
  const cells = Array.from({ length: 37 }, (_, at) => 8 + at);
  const made = WIDTHS.map((wide) => {
    const measure = (text: string, size: number) => text.length * size * wide;
    const sizeIn = (signed: boolean) => (cell: number) =>
      isRoomFor(cell, cell, signed, 1, measure) ? numberFont(cell) : null;
    return { wide, unsigned: cells.map(sizeIn(false)), signed: cells.map(sizeIn(true)) };
  });
  checkGolden("cell-numbers.json", { cells, made });
});
