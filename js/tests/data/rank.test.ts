import { describe, expect, test } from "vitest";
import { BLOCKED, MINUS_INF, NAN, NUMBER, type Picture, PLUS_INF } from "../../src/contract/decode";
import { rank, saidLink, shortened } from "../../src/data/rank";
import { random } from "../helpers/states.ts";

const numbers = (...values: number[]) => Float32Array.from(values);
const kindsOf = (values: Float32Array) =>
  Uint8Array.from(values, (value) =>
    Number.isNaN(value) ? NAN : value === Infinity ? PLUS_INF : value === -Infinity ? MINUS_INF : NUMBER,
  );

test("the strongest come first, and of equals the one that stands first", () => {
  const values = numbers(0.125, 0.25, 0.125, 0.25, 0.25);
  expect(rank(values, kindsOf(values), 4).top).toEqual([1, 3, 4, 0]);
});

test("what is not listed is counted and summed", () => {
  const values = numbers(0.5, 0.25, 0.125, 0.125);
  const ranking = rank(values, kindsOf(values), 2);
  expect(ranking.rest).toEqual({ count: 2, sum: 0.25 });
  expect(ranking.sum).toBe(1);
});

test("a ranking with fewer of the strongest is that of the same row", () => {
  const next = random(11);
  for (let trial = 0; trial < 50; trial++) {
    const values = Float32Array.from({ length: 1 + Math.floor(30 * next()) }, () => next());
    const kinds = kindsOf(values);
    const most = 1 + Math.floor(12 * next());
    const { rest, ...short } = shortened(rank(values, kinds, 12), most);
    const { rest: wanted, ...whole } = rank(values, kinds, most);
    expect(short).toEqual(whole);
    expect(rest.count).toBe(wanted.count);
    expect(rest.sum).toBeCloseTo(wanted.sum, 6);
  }
});

test("the numbers of the strongest stand beside them", () => {
  const values = numbers(0.125, 0.5, 0.25);
  expect(rank(values, kindsOf(values), 2)).toMatchObject({ top: [1, 2], values: [0.5, 0.25] });
});

test("blocked and NaN cells are counted apart and never listed", () => {
  const values = numbers(Number.NaN, 0.25, 0, 0.75);
  const kinds = kindsOf(values);
  kinds[2] = BLOCKED;
  expect(rank(values, kinds, 12)).toMatchObject({ top: [3, 1], allowed: 2, blocked: 1, nan: 1, sum: 1 });
});

test("a query that may see nothing has no keys, no entropy and no sum", () => {
  const values = numbers(Number.NaN, Number.NaN);
  expect(rank(values, Uint8Array.of(BLOCKED, BLOCKED), 12)).toEqual({
    top: [],
    values: [],
    allowed: 0,
    blocked: 2,
    nan: 0,
    sum: 0,
    rest: { count: 0, sum: 0 },
    entropy: 0,
    maxEntropy: 0,
    ninety: 0,
    sink: null,
  });
});

test("an empty row is no error", () => {
  expect(rank(numbers(), new Uint8Array(), 12).top).toEqual([]);
});

describe("entropy in bits", () => {
  test.each([
    ["uniform over four: 2", [0.25, 0.25, 0.25, 0.25], 2, 2],
    ["all on one of four: 0", [0, 1, 0, 0], 0, 2],
    ["a half and two quarters: 1.5", [0.5, 0.25, 0.25], 1.5, Math.log2(3)],
    ["one key only: 0 of 0", [1], 0, 0],
  ])("%s", (_, weights, entropy, most) => {
    const values = numbers(...weights);
    const ranking = rank(values, kindsOf(values), 12);
    expect(ranking.entropy).toBeCloseTo(entropy, 12);
    expect(ranking.maxEntropy).toBeCloseTo(most, 12);
  });

  test("a masked key does not count towards the most it could be", () => {
    const values = numbers(0.5, 0.5, 0, 0);
    expect(rank(values, Uint8Array.of(NUMBER, NUMBER, BLOCKED, BLOCKED), 12).maxEntropy).toBe(1);
  });
});

describe("the fewest keys that hold 90 %", () => {
  test.each([
    ["nine of ten equal ones", Array(10).fill(0.1), 9],
    ["one that has it all", [0, 1, 0], 1],
    ["exactly nine tenths", [0.9, 0.1], 1],
    ["a little less than nine tenths", [0.89, 0.06, 0.05], 2],
  ])("%s", (_, weights, expected) => {
    const values = numbers(...weights);
    expect(rank(values, kindsOf(values), 3).ninety).toBe(expected);
  });
});

test("infinite scores stand at the ends and make no NaN of the order", () => {
  const values = numbers(1, -Infinity, Infinity, 2, Infinity);
  expect(rank(values, kindsOf(values), 5).top).toEqual([2, 4, 3, 0, 1]);
});

test("the values themselves are left as they are", () => {
  const values = numbers(0.1, 0.7, 0.2);
  rank(values, kindsOf(values), 1);
  expect([...values]).toEqual([...numbers(0.1, 0.7, 0.2)]);
});

test("random rows: equal to sorting and summing by hand", () => {
  const next = random(7);
  for (let trial = 0; trial < 200; trial++) {
    const length = 1 + Math.floor(40 * next());
    const raw = Array.from({ length }, () => Math.floor(9 * next()));
    const total = raw.reduce((a, b) => a + b, 0) || 1;
    const values = Float32Array.from(raw, (value) => value / total);
    const kinds = Uint8Array.from(values, () => (next() < 0.2 ? BLOCKED : NUMBER));
    const most = 1 + Math.floor(12 * next());
    const pairs = [...values].map((value, at) => ({ value, at })).filter(({ at }) => kinds[at] === NUMBER);
    pairs.sort((a, b) => (a.value === b.value ? a.at - b.at : b.value - a.value));
    const sum = pairs.reduce((a, { value }) => a + value, 0);
    const entropy = pairs.reduce((a, { value }) => (value === 0 ? a : a + (value / sum) * Math.log2(sum / value)), 0);
    const ranking = rank(values, kinds, most);
    expect(ranking.top).toEqual(pairs.slice(0, most).map(({ at }) => at));
    expect(ranking.sum).toBeCloseTo(sum, 9);
    expect(ranking.entropy).toBeCloseTo(entropy, 9);
    expect(ranking.rest.count).toBe(Math.max(0, pairs.length - most));
    expect(ranking.rest.sum).toBeCloseTo(
      pairs.slice(most).reduce((a, { value }) => a + value, 0),
      9,
    );
    const held = (count: number) => pairs.slice(0, count).reduce((a, { value }) => a + value, 0);
    expect(held(ranking.ninety)).toBeGreaterThanOrEqual(0.9 * sum - 1e-6);
    if (ranking.ninety > 0) expect(held(ranking.ninety - 1)).toBeLessThan(0.9 * sum);
  }
});

test("what leaves the strongest joins the rest, infinite numbers apart", () => {
  const values = numbers(Infinity, Infinity, 2, 1);
  const short = shortened(rank(values, kindsOf(values), 3), 1);
  expect(short).toMatchObject({ top: [0], values: [Infinity], rest: { count: 3, sum: 3 } });
});

describe("the strongest link of a head", () => {
  const pictureOf = (values: number[], columns: number, more: Partial<Picture> = {}) =>
    ({
      of: { layer: 0, batch: 0, head: 0, stage: "weights", pool: "max" },
      queries: values.length / columns,
      keys: columns,
      exact: true,
      sampled: null,
      grid: { rows: values.length / columns, columns, values: numbers(...values), kinds: kindsOf(numbers(...values)) },
      ...more,
    }) as Picture;

  const none = { first: false, own: false, sink: false };

  test("is the largest weight of its row, on a key that is neither the first nor the query's own", () => {
    const picture = pictureOf([1, 0, 0, 0.1, 0.1, 0.8, 0.1, 0.3, 0.6], 3);
    expect(saidLink(picture)).toEqual({ query: 1, key: 2, weight: expect.closeTo(0.8), apart: none });
    const cross = pictureOf([0.2, 0.8, 0.7, 0.3, 0.3, 0.7], 2); // of another text: none is its own
    expect(saidLink(cross)).toMatchObject({ query: 0, key: 1, apart: none });
    expect(saidLink(cross, (query) => query === 0)).toMatchObject({ query: 2, key: 1, apart: none });
  });

  test("sets apart by name what weighs more", () => {
    const rows = [1, 0, 0, 0.9, 0.1, 0, 0.1, 0.3, 0.6];
    expect(saidLink(pictureOf(rows, 3))).toMatchObject({ query: 2, key: 1, apart: { ...none, own: true } });
    const sink = numbers(0, 0, 0.31);
    expect(saidLink(pictureOf(rows, 3, { sink }))?.apart).toEqual({ first: false, own: true, sink: true });
    const both = [1, 0, 0, 0, 0.9, 0.1, 0, 0, 0.8, 0.1, 0.1, 0, 0.35, 0.25, 0.05, 0.35];
    expect(saidLink(pictureOf(both, 4))).toMatchObject({ query: 3, key: 1, apart: { first: true, own: true } });
  });

  test("is one to the first or the own key where all others have next to nothing", () => {
    expect(saidLink(pictureOf([1, 0, 1, 0], 2))).toEqual({ query: 0, key: 0, weight: 1, apart: none });
    const own = [1, 0, 0, 0.01, 0.98, 0.01, 0.01, 0.02, 0.97];
    expect(saidLink(pictureOf(own, 3))).toMatchObject({ query: 0, key: 0, apart: none });
    expect(saidLink(pictureOf(own, 3), (query) => query === 0)).toMatchObject({ query: 1, key: 1, apart: none });
  });

  test("is not there where nothing leads, or where a cell is not a pair of weights", () => {
    expect(saidLink(pictureOf([0.25, 0.25, 0.25, 0.25], 4))).toBeNull();
    expect(saidLink(pictureOf([0.2, 0.40001, 0.4], 3))).toBeNull();
    expect(saidLink(pictureOf([0.6, 0.4, 0.4, 0.6], 2))).toMatchObject({ query: 0, key: 0, apart: none });
    expect(saidLink(pictureOf([1, 0, 0, 0.5, 0.5, 0, 1 / 3, 1 / 3, 1 / 3], 3), (query) => query === 0)).toBeNull();
    expect(saidLink(pictureOf([1, 0, 0.5, 0.5], 2, { exact: false }))).toBeNull();
    expect(saidLink(pictureOf([1, Number.NaN, 0.5, 0.5], 2))).toBeNull();
    expect(saidLink(pictureOf([1, 0, 0.5, 0.5], 2, { queries: 4, keys: 4 }))).toBeNull();
    expect(saidLink(pictureOf([-0.5, 1.5, 0.5, 0.5], 2))).toBeNull();
    const scores = { of: { layer: 0, batch: 0, head: 0, stage: "scores", pool: "max" } } as Partial<Picture>;
    expect(saidLink(pictureOf([1, 2, 3, 4], 2, scores))).toBeNull();
    expect(saidLink(null)).toBeNull();
  });
});
