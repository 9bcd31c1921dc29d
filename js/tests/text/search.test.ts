import { expect, test } from "vitest";
import { readWanted, stepped } from "../../src/text/search";

test.each([
  ["12301", { query: 12_301, key: null }],
  ["12,301", { query: 12_301, key: null }],
  [" 7 ", { query: 7, key: null }],
  ["12,301, 4,110", { query: 12_301, key: 4110 }],
  ["12301, 4110", { query: 12_301, key: 4110 }],
  ["12301,4110", { query: 12_301, key: 4110 }],
  ["12301 4110", { query: 12_301, key: 4110 }],
  ["12,301 → 4,110", { query: 12_301, key: 4110 }],
  ["12301->4110", { query: 12_301, key: 4110 }],
  ["0 → 0", { query: 0, key: 0 }],
  ["sluice", { text: "sluice" }],
  ["12 monkeys", { text: "12 monkeys" }],
  ["1.5", { text: "1.5" }],
  ["-3", { text: "-3" }],
  ['"12"', { text: "12" }],
  ["“12”", { text: "12" }],
  ["16384", { beyond: 16_384, total: 16_384 }],
  ["12301, 16,384", { beyond: 16_384, total: 16_384 }],
  ["", null],
  ["  ", null],
])("%s", (typed, wanted) => {
  expect(readWanted(typed, 16_384, 16_384)).toEqual(wanted);
});

test("of more queries than keys each has its own end", () => {
  expect(readWanted("90, 10", 100, 10)).toEqual({ beyond: 10, total: 10 });
  expect(readWanted("90, 9", 100, 10)).toEqual({ query: 90, key: 9 });
});

test("the places of a text go round, in both directions", () => {
  const found = { text: "bank", positions: [5, 14, 2], total: 3, at: 0 };
  expect(stepped(found, 1)?.at).toBe(1);
  expect(stepped({ ...found, at: 2 }, 1)?.at).toBe(0);
  expect(stepped(found, -1)?.at).toBe(2);
});

test("where not all places are known the next one may have to be asked for", () => {
  const found = { text: "the", positions: [0, 8], total: 40, at: 1 };
  expect(stepped(found, 1)).toBeNull();
  expect(stepped({ ...found, at: 0 }, -1)).toBeNull();
});

test.each([
  ["12, 301", { query: 12, key: 301 }],
  ["12,30", { query: 12, key: 30 }],
  ["1,234,567 1", { beyond: 1_234_567, total: 90_000 }],
  ["1234,567", { query: 1234, key: 567 }],
  ["7  →  8", { query: 7, key: 8 }],
  ["7 -> 8", { query: 7, key: 8 }],
  ["7 8 9", { text: "7 8 9" }],
  ["x7", { text: "x7" }],
  ["7x", { text: "7x" }],
  ["7 → ", { text: "7 →" }],
  ['"a" b', { text: '"a" b' }],
  ['""', { text: '""' }],
  ['a "b"', { text: 'a "b"' }],
  ["89999 49999", { query: 89_999, key: 49_999 }],
  ["90000", { beyond: 90_000, total: 90_000 }],
  ["5 50000", { beyond: 50_000, total: 50_000 }],
])("of 90,000 queries and 50,000 keys: %s", (typed, wanted) => {
  expect(readWanted(typed, 90_000, 50_000)).toEqual(wanted);
});

test("a step keeps what was found", () => {
  const found = { text: "bank", positions: [5, 14, 2], total: 3, at: 1 };
  expect(stepped(found, -1)).toEqual({ ...found, at: 0 });
  expect(stepped(found, 1)).toEqual({ ...found, at: 2 });
  expect(stepped({ ...found, total: 4, at: 2 }, 1)).toBeNull();
});
