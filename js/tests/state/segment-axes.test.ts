import { expect, test } from "vitest";
import { blockNumber } from "../../src/state/segment-axes";

test("a number that came rounded says so, and has no digits that it does not know", () => {
  const known = { mass: 0, perToken: 0, lift: 0, aside: { names: [], share: 0 }, looked: 1, of: 1 };
  const write = (value: number) => value.toFixed(4);
  expect(blockNumber(0.24457, { ...known, exact: true }, write)).toBe("0.2446");
  expect(blockNumber(0.24457, { ...known, exact: false }, write)).toBe("about .24");
  expect(blockNumber(0, { ...known, exact: false }, write)).toBe("0.0000");
  expect(blockNumber(Number.NaN, { ...known, exact: false }, write)).toBe("none");
});
