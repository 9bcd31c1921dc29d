import { describe, expect, test } from "vitest";
import { cellAt, edge, reveal, visible, WHOLE } from "../../src/geometry/viewport";

describe("edges", () => {
  test.each([1, 1.25, 1.5, 2, 3])("at %s device pixels to a CSS pixel every edge is on a whole one", (dpr) => {
    for (let index = 0; index < 30; index++) {
      const at = edge(index, 17 / dpr, 1.37, -41.3, dpr) * dpr;
      expect(Math.abs(at - Math.round(at))).toBeLessThan(1e-9);
    }
  });

  test("neighbors share their edge: no cell overlaps and none is lost", () => {
    for (let index = 0; index < 30; index++) {
      expect(edge(index + 1, 7, 1.21, 3.3, 2)).toBeGreaterThan(edge(index, 7, 1.21, 3.3, 2));
    }
    expect(edge(3, 10, WHOLE.k, WHOLE.x, 1)).toBe(30);
  });
});

describe("the cells in view", () => {
  test("unzoomed: all", () => {
    expect(visible(20, 10, 1, 0, 200)).toEqual({ start: 0, stop: 20 });
  });

  test("zoomed twice to the middle: those that are at least partly there", () => {
    // Cells are 20 wide and the picture begins at −95: from 95 to 295 are cells 4 (80 to 100) to 14 (280 to 300).
    expect(visible(20, 10, 2, -95, 200)).toEqual({ start: 4, stop: 15 });
  });

  test("a cell that only touches the edge is not in view, in spite of rounding", () => {
    expect(visible(20, 10, 2, -100, 200)).toEqual({ start: 5, stop: 15 });
    expect(visible(300, 0.1, 3, -0.3 * 7, 0.3 * 5)).toEqual({ start: 7, stop: 12 });
  });

  test("never beyond the ends, never negative", () => {
    expect(visible(5, 10, 1, 30, 200)).toEqual({ start: 0, stop: 5 });
    expect(visible(5, 10, 1, -500, 200)).toEqual({ start: 50, stop: 50 });
    expect(visible(0, 10, 1, 0, 200)).toEqual({ start: 0, stop: 0 });
  });
});

describe("the cell under a position", () => {
  test.each([
    [0, 0],
    [9.99, 0],
    [10, 1],
    [39.9, 3],
    [40, null],
    [-0.1, null],
  ])("%s px is cell %s of four that are 10 wide", (position, cell) => {
    expect(cellAt(position, 4, 10, 1, 0)).toBe(cell);
  });

  test("zoomed and panned: the cell whose middle it is", () => {
    for (let index = 0; index < 12; index++) {
      expect(cellAt((index + 0.5) * 10 * 2.5 - 33, 12, 10, 2.5, -33)).toBe(index);
    }
  });
});

describe("how far to move so that a cell is in view", () => {
  test("what is in view stays", () => {
    expect(reveal(5, 10, 2, -90, 200)).toBe(0);
  });

  test.each([0, 3, 8, 14, 19])("cell %s is whole in view afterwards, and no further than needed", (index) => {
    const offset = -95;
    const by = reveal(index, 10, 2, offset, 200);
    const start = index * 20 + offset + by;
    expect(start).toBeGreaterThanOrEqual(0);
    expect(start + 20).toBeLessThanOrEqual(200);
    if (by !== 0) expect([0, 180]).toContain(start);
  });
});

test("an edge is so far from where the picture begins, magnified; a cell wider than the view shows its end", () => {
  expect([edge(3, 10, 2, 4, 1), edge(3, 10, 0.5, -4, 2)]).toEqual([64, 11]);
  expect([reveal(0, 10, 1, 0, 5), reveal(0, 10, 1, 0, 10)]).toEqual([-5, 0]);
});
