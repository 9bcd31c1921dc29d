import { describe, expect, test } from "vitest";
import { MOST_FOLDED, roomOf } from "../../src/shell/toolbar-menus";

const fitting = (...room: Parameters<typeof roomOf>) => {
  const { fits, tabs } = roomOf(...room);
  return [tabs, fits.menus, fits.few, fits.much];
};

describe("what fits into the toolbar", () => {
  test.each([
    ["wide", 5, [true, true, true, true]],
    ["beside", 6, [true, true, true, true]],
    ["under", 5, [true, true, true, false]],
    ["under", 6, [true, true, false, false]],
    ["narrow", 5, [false, false, false, false]],
  ] as const)("%s with %i views: views as words, menus, few menus, much", (mode, views, expected) => {
    expect(fitting(mode, views, 0)).toEqual(expected);
  });

  test("each fold takes more of it away, the views as words last", () => {
    expect(Array.from({ length: MOST_FOLDED + 1 }, (_, folded) => fitting("wide", 5, folded))).toEqual([
      [true, true, true, true],
      [true, true, true, false],
      [true, true, false, false],
      [true, false, false, false],
      [false, false, false, false],
    ]);
  });

  test("some menus stand there always, some never", () => {
    for (const mode of ["narrow", "wide"] as const) {
      const { fits } = roomOf(mode, 5, 0);
      expect([fits.nothing, fits["more than there is"]]).toEqual([true, false]);
    }
  });
});
