import { describe, expect, test } from "vitest";
import type { EffectDetail, EffectsMessage } from "../../src/contract/messages";
import {
  chancesOf,
  detailOf,
  disagreement,
  editWords,
  effectKey,
  LOOKED_AT,
  lossesIn,
  lossOf,
  NEEDED,
  ordered,
  placeOn,
  scalesOf,
  withEffect,
} from "../../src/data/effects";
import { orderOf, type Survey } from "../../src/data/survey";

const NAMES = ["doc 3", "question", "answer", "doc 2", "system", "doc 1", "doc 5", "doc 4"];
const MASSES = [0.2446, 0.0597, 0.1477, 0.1626, 0.0567, 0.1333, 0.0962, 0.0993];
const LOST = [2.38, 1.9, 0.41, 0.09, 0.06, 0.04, 0.02, -0.08];

describe("two scales over one zero", () => {
  test("end at round numbers, with as many gridlines as each other", () => {
    expect(scalesOf(MASSES, LOST)).toEqual({ mass: 0.25, lost: 2.5, parts: 5, left: 0.032 });
    expect(scalesOf([0.3265], [0.61])).toMatchObject({ mass: 0.4, lost: 0.8, parts: 4 });
  });

  test.each([
    ["no loss that counts", [0.2], [0.001, -0.0004], 0.05],
    ["nothing known", [Number.NaN], [Number.NaN], 0.05],
    ["another unit", [0.2], [0.0003], 0.0003, 1e-6],
  ])("with %s the axis of loss does not make it look large", (_, masses, losses, end, least?: number) => {
    const scales = least === undefined ? scalesOf(masses, losses) : scalesOf(masses, losses, least);
    expect(scales.lost).toBeGreaterThanOrEqual(end);
    expect(scales.lost).toBeLessThanOrEqual(2 * end);
  });

  test("what a removal gains is on the left of zero, and as far as the page goes", () => {
    const scales = scalesOf([0.25], [1, -3]);
    expect(scales).toMatchObject({ lost: 3, left: 1 });
    expect([-1, 0, 1].map((share) => placeOn(scales, share))).toEqual([0, 50, 100]);
    expect(placeOn(scales, Number.NEGATIVE_INFINITY)).toBe(0);
    expect(scalesOf([0.2], [1, Number.NEGATIVE_INFINITY]).left).toBe(1);
    expect(placeOn(scalesOf([0.2], [Number.POSITIVE_INFINITY, 1]), Number.POSITIVE_INFINITY)).toBe(100);
  });
});

test("words say where mass and loss disagree: half the axis apart or more", () => {
  const scales = scalesOf(MASSES, LOST);
  const words = NAMES.map((_, at) => disagreement(scales, MASSES[at]!, LOST[at]!));
  expect(words).toEqual(["", NEEDED, "", LOOKED_AT, "", LOOKED_AT, "", ""]);
  expect(disagreement({ mass: 1, lost: 1, parts: 1, left: 0 }, 0.5, 0)).toBe(LOOKED_AT);
  expect(disagreement({ mass: 1, lost: 1, parts: 1, left: 0 }, 0.499, 0)).toBe("");
  expect(disagreement({ mass: 1, lost: 1, parts: 1, left: 0 }, 0, 1)).toBe(NEEDED);
  expect(disagreement({ mass: 1, lost: 1, parts: 1, left: 0 }, 0.25, 0.75)).toBe(NEEDED);
  expect([LOOKED_AT, NEEDED]).toEqual(["looked at, hardly needed", "needed, hardly looked at"]);
});

test.each([
  [0.2, null],
  [Number.NaN, 2],
  [0.2, Number.NaN],
])("of mass %f and loss %f nothing is said", (mass, lost) => {
  expect(disagreement(scalesOf(MASSES, LOST), mass, lost)).toBe("");
});

test("an order is by loss, by mass, or as it was; what is not run yet is last, and a gain after a loss", () => {
  const all = [
    { name: "a", mass: 0.1, lost: -0.2 },
    { name: "b", mass: Number.NaN, lost: null },
    { name: "c", mass: 0.3, lost: 0.1 },
    { name: "d", mass: 0.2, lost: 0.4 },
  ];
  const names = (order: "effect" | "mass" | "text") =>
    ordered(all, order)
      .map(({ name }) => name)
      .join("");
  expect([names("effect"), names("mass"), names("text")]).toEqual(["dcab", "cdab", "abcd"]);
});

const DETAIL: EffectDetail = {
  ...{ of: { segment: "doc 3", path: [] }, at: 4, token: 7, target: " nail", edit: "zero" },
  ...{ before: -0.2, after: -2.6, kl: 1.7, kl_answer: null, vocabulary: 100 },
  tokens: [
    [" nail", 0.8, 0.1],
    [" hook", 0.1, 0.5],
    [" peg", 0.05, 0.2],
  ],
};

test("what is not listed is summed, and never below zero", () => {
  const { rows, rest } = chancesOf(DETAIL, 2);
  expect(rows.map(({ text }) => text)).toEqual([" nail", " hook"]);
  expect(rest.count).toBe(98);
  expect(rest.before).toBeCloseTo(0.1, 12);
  expect(rest.after).toBeCloseTo(0.4, 12);
  const full = { ...DETAIL, tokens: [["a", 0.7, 1.0000001] as [string, number, number]] };
  expect(chancesOf(full, 8).rest.after).toBe(0);
});

const EFFECTS: EffectsMessage = {
  ...{ error: null, at: 4, text: "on a", target: { token: 7, text: " nail" }, targets: [], edit: "zero", edits: [] },
  ...{ unit: "nats", segments: null, heads: { counts: [2, 1], lost: [0.5, null, "-inf"] } },
  ...{ done: 2, total: 3, seconds_left: null, state: "stopped" },
};

test("a run is found by what was taken away, with the target and the edit in force alone", () => {
  const of = { segment: "doc 3", path: [] };
  expect(detailOf([DETAIL], EFFECTS, of)).toBe(DETAIL);
  expect(detailOf([DETAIL], { ...EFFECTS, edit: "uniform" }, of)).toBeNull();
  expect(detailOf([DETAIL], { ...EFFECTS, target: { token: 8, text: "x" } }, of)).toBeNull();
  expect(detailOf([DETAIL], EFFECTS, { segment: "doc 3", path: ["doc 1"] })).toBeNull();
  expect(detailOf(null, EFFECTS, of)).toBeNull();
  expect(effectKey({ layer: 1, head: 2 })).not.toBe(effectKey({ layer: 1, head: 2, query: 3, key: 4 }));
  expect(effectKey({ head: 2, layer: 1 })).toBe(effectKey({ layer: 1, head: 2 }));
});

test("losses keep what is not known apart from what is no number", () => {
  expect(lossesIn([0.5, null, "nan", "-inf"])).toEqual([0.5, null, Number.NaN, Number.NEGATIVE_INFINITY]);
});

test("all heads have the loss as one more metric, and can be ordered by it", () => {
  const survey = {
    ...{ batch: 0, pictures: [null, null, null], metrics: [], complete: true, error: null, problems: [] },
    layers: [
      { heads: 2, groups: 2, queries: 3, keys: 3, rows: 3 },
      { heads: 1, groups: 1, queries: 3, keys: 3, rows: 3 },
    ],
    heads: [
      { layer: 0, head: 0 },
      { layer: 0, head: 1 },
      { layer: 1, head: 0 },
    ],
  } as Survey;
  const lost = [-0.5, 0.25, 1];
  const found = withEffect(survey, { ...EFFECTS, heads: { counts: [2, 1], lost } });
  expect(found.metrics[0]).toMatchObject({ name: "effect", high: 1, median: 0.25 });
  expect([...found.metrics[0]!.values]).toEqual(lost);
  expect(orderOf(found, "effect")).toEqual([2, 1, 0]);
  expect(found.pictures).toBe(survey.pictures);
  expect(withEffect(survey, null)).toBe(survey);
  const other = withEffect(survey, { ...EFFECTS, heads: { counts: [3], lost } }); // of another stack
  expect(other.metrics[0]!.values.every(Number.isNaN)).toBe(true);
});

test("what the runs of all found is found again by what was taken away, and by nothing else", () => {
  const now = {
    segments: { path: ["doc"], names: ["a", "b"], lost: [0.5, null], dropped: "" },
    heads: { counts: [1, 3], lost: [0.1, "nan", null, "-inf"] },
  } as Partial<EffectsMessage> as EffectsMessage;
  expect(lossOf(now, { segment: "a", path: ["doc"] })).toBe(0.5);
  expect(lossOf(now, { segment: "b", path: ["doc"] })).toBeNull();
  expect(lossOf(now, { segment: "c", path: ["doc"] })).toBeNull();
  expect(lossOf(now, { segment: "a", path: [] })).toBeNull(); // another segment of that name
  const deep = { ...now, segments: { ...now.segments!, path: ["doc", "part"] } };
  expect([
    lossOf(deep, { segment: "a", path: ["doc", "part"] }),
    lossOf(deep, { segment: "a", path: ["doc"] }),
  ]).toEqual([...[0.5, null]]);
  expect([0, 1, 2].map((head) => lossOf(now, { layer: 1, head }))).toEqual([
    Number.NaN,
    null,
    Number.NEGATIVE_INFINITY,
  ]);
  expect(lossOf(now, { layer: 0, head: 0 })).toBe(0.1);
  expect(lossOf(now, { layer: 0, head: 1 })).toBeNull(); // the layer has no such head
  expect(lossOf(now, { layer: 0, head: 0, query: 2, key: 1 })).toBeNull(); // one edge of it
  expect(lossOf(now, { key: 0 })).toBeNull();
  expect(lossOf({ ...now, segments: null, heads: null }, { layer: 0, head: 0 })).toBeNull();
});

test("what is done to what is edited is said around its name", () => {
  const edits = [
    { value: "zero", of: "none" },
    { value: "uniform", of: "made even" },
  ] as unknown as EffectsMessage["edits"];
  expect(editWords({ ...EFFECTS, edits, edit: "uniform" })).toEqual(["", "made even"]);
  expect(editWords({ ...EFFECTS, edits, edit: "zero" })).toEqual(["without", ""]);
  expect(editWords({ ...EFFECTS, edits, edit: "another" })).toEqual(["without", ""]);
  expect([editWords(null), editWords(undefined)]).toEqual([
    ["without", ""],
    ["without", ""],
  ]);
});

test("of runs of one removal the last is shown, of the same token, position and edit", () => {
  const of = { segment: "doc 3", path: [] };
  const later = { ...DETAIL, kl: 2 };
  expect(detailOf([DETAIL, later, { ...DETAIL, of: { segment: "doc 4", path: [] } }], EFFECTS, of)).toBe(later);
  expect(detailOf([DETAIL], { ...EFFECTS, at: 5 }, of)).toBeNull();
  expect(detailOf([DETAIL], { ...EFFECTS, target: null }, of)).toBeNull();
  expect(detailOf(undefined, EFFECTS, of)).toBeNull();
  expect(detailOf([], EFFECTS, of)).toBeNull();
});

test("removals have the same name only where they are the same in each part", () => {
  const names = [
    { segment: "a", path: [] },
    { segment: "a", path: ["b"] },
    { layer: 1, head: 2 },
    { layer: 2, head: 1 },
    { layer: 1, head: 2, query: 3, key: 4 },
    { layer: 1, head: 2, query: 4, key: 3 },
    { key: 4 },
  ].map((of) => effectKey(of as never));
  expect(new Set(names).size).toBe(names.length);
});

test.each<[number[], number[], [number, number, number, number]]>([
  [[0.13], [1.1], [0.15, 1.2, 3, 0]],
  [[0.2], [-0.5, 1], [0.2, 1, 4, 0.5]],
  [[1], [10], [1, 10, 5, 0]],
  [[0.5], [0.05], [0.5, 0.05, 5, 0]],
  [[0.99], [7.2], [1, 7.5, 5, 0]],
])("scales of masses up to %j and losses %j", (masses, losses, [mass, lost, parts, left]) => {
  const scales = scalesOf(masses, losses);
  expect([scales.mass, scales.lost, scales.parts]).toEqual([mass, lost, parts]);
  expect(scales.left).toBeCloseTo(left, 12);
  expect([0, 1, 2].map((share) => placeOn(scales, share))).toEqual([
    (100 * scales.left) / (1 + scales.left),
    ...[100, 100],
  ]);
});

test("all losses are told by counts of the heads before, and the middle of an even count is the larger", () => {
  const survey = {
    ...{ batch: 0, pictures: [], complete: true, error: null, problems: [], metrics: [{ name: "entropy" }] },
    layers: [3, 1].map((heads) => ({ heads, groups: heads, queries: 5, keys: 7, rows: 5 })),
    heads: [0, 1, 2, 3].map((head) => ({ layer: Number(head === 3), head: head % 3 })),
  } as unknown as Survey;
  const found = withEffect(survey, { ...EFFECTS, heads: { counts: [3, 1], lost: [0.5, null, -2, 1] } });
  expect([...found.metrics[1]!.values]).toEqual([0.5, Number.NaN, -2, 1]);
  expect(found.metrics[1]).toMatchObject({ word: "Loss without it", kind: "nats", high: 2, median: 0.5 });
  expect(found.metrics).toHaveLength(2);
  const none = withEffect(survey, { ...EFFECTS, heads: { counts: [3, 1], lost: [null, null, null, null] } });
  expect(none.metrics[1]).toMatchObject({ high: 1, median: Number.NaN });
  expect(withEffect(survey, { ...EFFECTS, heads: null }).metrics[1]!.values.every(Number.isNaN)).toBe(true);
  expect(withEffect(survey, undefined)).toBe(survey);
});

test("three layers of heads each have their own losses", () => {
  const now = { ...EFFECTS, heads: { counts: [2, 3, 1], lost: [0.5, 1, 1.5, 2, 2.5, 3] } };
  const lost = (layer: number, head: number) => lossOf(now, { layer, head });
  expect([lost(0, 1), lost(1, 0), lost(1, 2), lost(2, 0)]).toEqual([1, 1.5, 2.5, 3]);
  expect([lost(1, 3), lost(3, 0)]).toEqual([null, null]);
  expect(lossOf(now, { layer: 1, head: "mean" } as never)).toBeNull();
  expect(lossOf(now, { segment: "a", path: [] })).toBeNull();
});
