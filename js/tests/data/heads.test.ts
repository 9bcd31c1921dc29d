/** All heads: metrics of every kind, a stage in the place of weights, and where each picture stands to the pixel. */

import { describe, expect, test } from "vitest";
import type { Grid } from "../../src/contract/decode";
import type { Facts, StageHeadsMessage, SurveyMessage } from "../../src/contract/messages";
import {
  cornerOf,
  decodeStageHeads,
  decodeSurvey,
  type HeadMetric,
  hasSigns,
  isOrdered,
  isShown,
  isTinted,
  layoutHeads,
  METRICS,
  metricOrNone,
  metricText,
  nameOf,
  nearest,
  numberInAll,
  orderOf,
  pictureOf,
  placeAt,
  rankOf,
  type Survey,
  stepFrom,
  strongestOf,
  surveyOfLayer,
  withStage,
} from "../../src/data/survey";
import { bytesOf } from "../helpers/segments.ts";
import { codes, floats } from "../helpers/states.ts";
import { surveyOf } from "../helpers/survey.ts";

const [NAN, INF] = [Number.NaN, Number.POSITIVE_INFINITY];
const metric = (values: number[], changes: Partial<HeadMetric> = {}): HeadMetric => ({
  ...{ name: "entropy", word: "Entropy", kind: "bits", high: 1, median: 0 },
  ...{ values: Float32Array.from(values), ...changes },
});
const layers = (...heads: number[]): Survey =>
  ({
    ...{ batch: 0, pictures: [], metrics: [], complete: true, error: null, problems: [] },
    layers: heads.map((count) => ({ heads: count, groups: count, queries: 5, keys: 7, rows: 5 })),
    heads: heads.flatMap((count, layer) => Array.from({ length: count }, (_, head) => ({ layer, head }))),
  }) as Survey;

describe("metrics", () => {
  const sent = (changes: Partial<SurveyMessage>): SurveyMessage => ({
    ...surveyOf([2, 1], { entropy: [0.5, 1, 0.25] }, { keys: 1 }),
    ...changes,
  });

  test("of the user's own are full at the largest size, and go both ways where one is below zero", async () => {
    const own = {
      first: floats([1, -4, 2]),
      second: floats([3, 1, NAN]),
      third: null,
      zero: floats([0, 0, 0]),
      up: floats([5, 1, 2]),
    };
    const survey = await decodeSurvey(sent({ own, problems: { third: "ValueError: no" } }));
    const [, first, second, zero] = survey.metrics;
    expect(survey.metrics.map(({ name, word, kind, high, median }) => [name, word, kind, high, median])).toEqual([
      ["entropy", "Entropy", "bits", 1, 0.5], // of a single key there are no bits: an axis of one
      ["first", "first", "own", 4, 1],
      ["second", "second", "own", 3, 2],
      ["zero", "zero", "own", 1, 0],
      ["up", "up", "own", 5, 2],
    ]);
    expect([first, second, zero].map((one) => hasSigns(one!))).toEqual([true, false, false]);
    expect(survey.problems).toEqual(["third: ValueError: no"]);
    expect(survey.complete).toBe(true);
    expect((await decodeSurvey(sent({}))).problems).toEqual([]);
  });

  test("go both ways where they are losses or sums of a stage", () => {
    const kinds = ["bits", "weight", "tokens", "share", "nats", "stage", "size", "own"] as const;
    expect(kinds.filter(isTinted)).toEqual(["nats", "stage"]);
    const below = (kind: (typeof kinds)[number]) => hasSigns(metric([1, -1], { kind }));
    expect(kinds.filter(below)).toEqual(["nats", "stage", "own"]);
  });

  test("of a layer after one without heads stand in the places of their own layer", async () => {
    const message = surveyOf([0, 2], { entropy: [1, 2] });
    const { heads, pictures } = await decodeSurvey({ ...message, pictures: [null, message.pictures[1]!] });
    expect(heads.map(({ layer, head }) => [layer, head])).toEqual([
      [1, 0],
      [1, 1],
    ]);
    expect(pictures.map((picture) => picture?.values.length)).toEqual([16, 16]);
  });

  test("that all are nothing have a bar of one all the same", async () => {
    const survey = await decodeSurvey(surveyOf([2], { mean_distance: [0, 0], entropy: [NAN, NAN] }));
    expect(survey.metrics.map(({ name, high, median }) => [name, high, median])).toEqual([
      ["entropy", 4, NAN],
      ["mean_distance", 1, 0],
    ]);
  });

  test("that another library made are not taken for sums of a stage, nor for losses", async () => {
    const message = surveyOf([1], { entropy: [1] });
    const metrics = { ...message.metrics, effect: floats([1]), stage_sum: floats([1]), stage_size: floats([1]) };
    const survey = await decodeSurvey({ ...message, metrics });
    expect(survey.metrics.map(({ name }) => name)).toEqual(["entropy"]);
  });

  test("have a word each, and a brief one where it is long", () => {
    expect(METRICS.map(({ name, word, brief, kind }) => [name, word, brief ?? "", kind].join("|"))).toEqual([
      "entropy|Entropy||bits",
      "first_token|First token||weight",
      "previous_token|Previous token||weight",
      "itself|Itself||weight",
      "same_token|Same token elsewhere|same token|weight",
      "last_token|Last token||weight",
      "induction|Induction||weight",
      "mean_distance|Mean distance||tokens",
      "masked_share|Masked||share",
      "learned_sink|Learned sink||share",
      "sink|Rows on the first token|sink rows|share",
      "streaming|First and near tokens|streaming|share",
      "recall|Kept by the cache|recall|share",
      "effect|Loss without it|effect|nats",
      "stage_sum|Sum of the stage|sum|stage",
      "stage_size|Sum of its sizes|size|size",
    ]);
  });

  test("are written by their kind", () => {
    expect(metricText(0.0021, "stage")).toBe("0.0021");
    expect(metricText(-0.0021, "size")).toBe("−0.0021");
    expect(metricText(0.25, "nats")).toBe(".2500 nats");
    expect([99.94, 100, 100.4, 12_345.6].map((value) => metricText(value, "tokens"))).toEqual([
      ...["99.9", "100", "100", "12,346"],
    ]);
    expect(metricText(-1.5, "own")).toBe("−1.500");
    expect([0.9994, 0.9996, 0, 10.5].map((value) => metricText(value, "weight"))).toEqual([
      ...[".999", "1.00", ".000", "10.500"],
    ]);
    expect(metricText(INF, "bits")).toBe("NaN");
    expect([metricOrNone(NAN, "nats"), metricOrNone(-INF, "nats"), metricOrNone(NAN, "bits")]).toEqual([
      ...["not run", "none", "none"],
    ]);
    expect(metricOrNone(0.5, "bits")).toBe("0.50 bits");
  });
});

describe("ranks", () => {
  test("of equal ranks the first metric is named; infinite numbers have no rank", () => {
    const [a, b] = [metric([3, 1, INF]), metric([3, 2, 1], { name: "itself" })];
    const survey = { ...layers(3), metrics: [a, b] };
    expect(strongestOf(survey, 0)).toEqual({ metric: b, rank: 1, of: 3 }); // ∞ stands above it in the other
    expect(rankOf(a, 2)).toBe(0);
    expect(strongestOf({ ...survey, metrics: [a] }, 2)).toBeNull();
    expect(strongestOf({ ...survey, metrics: [b, { ...b, name: "induction" }] }, 0)!.metric).toBe(b);
    expect(strongestOf({ ...survey, metrics: [b] }, 2)).toBeNull();
  });

  test("order heads by a metric that is known of one at least", () => {
    const survey = { ...layers(3), metrics: [metric([NAN, NAN, NAN]), metric([NAN, 1, NAN], { name: "effect" })] };
    expect([isOrdered(survey, "entropy"), isOrdered(survey, "effect"), isOrdered(survey, "itself")]).toEqual([
      ...[false, true, false],
    ]);
    expect(orderOf({ ...survey, metrics: [metric([-5, NAN, -3])] }, "entropy")).toEqual([2, 0, 1]);
  });

  test("a filter takes both its layers in, and of the metric what is above alone", () => {
    const survey = layers(1, 1, 1, 1);
    const shown = (from: number | null, to: number | null, above: number | null, one: HeadMetric | null) =>
      [0, 1, 2, 3].filter((place) => isShown(survey, place, { from, to, above }, one));
    expect(shown(1, 2, null, null)).toEqual([1, 2]);
    expect(shown(null, null, 0.5, metric([0.25, 0.5, 0.75, NAN]))).toEqual([2]);
    expect(shown(null, null, 0.5, null)).toEqual([0, 1, 2, 3]);
    expect(shown(null, null, null, metric([-1, 0, NAN, 1]))).toEqual([0, 1, 2, 3]);
    expect(isShown(survey, 0, null, metric([0, 0, 0, 0]))).toBe(true);
  });
});

describe("those most like one", () => {
  const survey = { ...layers(4), metrics: [metric([1, 5, 9, 2])] };

  test("are not told by what differs by rounding alone", () => {
    expect(nearest(survey, 0)).toEqual([0, 3, 1, 2]);
    const rounded = metric([1000, 1000.02, 1000, 1000], { name: "mean_distance", kind: "tokens" });
    expect(nearest({ ...survey, metrics: [...survey.metrics, rounded] }, 0)).toEqual([0, 3, 1, 2]);
    const apart = { ...rounded, values: Float32Array.of(1000, 1000.2, 1000, 1000) };
    expect(nearest({ ...survey, metrics: [...survey.metrics, apart] }, 0)).toEqual([0, 3, 2, 1]);
  });

  test.each([
    ...(["sink", "streaming", "recall", "effect", "stage_sum", "stage_size"] as const).map((name) => [name, "share"]),
    ["mine", "own"],
  ] as [string, HeadMetric["kind"]][])("are not told by %s", (name, kind) => {
    const more = metric([0, 9, 0, 0], { name, kind });
    expect(nearest({ ...survey, metrics: [...survey.metrics, more] }, 0)).toEqual([0, 3, 1, 2]);
  });

  test("come first where they stand in that order", () => {
    const { left, named, where } = layoutHeads({ ...layers(2, 2), metrics: survey.metrics }, "similar", 952, 1, {
      like: 2,
    });
    expect([left, named, where[2], where[1]]).toEqual([0, true, [0, 0], [1, 0]]);
  });
});

describe("a stage in the place of weights", () => {
  const message: StageHeadsMessage = {
    ...{ batch: 2, stage: "logit", query: 4, error: null },
    ...{ sums: floats([1, -6, NAN]), sizes: floats([2, 8, 3]) },
    pictures: [codes([0.5, 1, -1, 0, 1, 0.25, 0, -0.5], [2, 2, 2], { kind: "linear", high: 1 }), null],
  };

  test("is decoded layer by layer", async () => {
    const found = await decodeStageHeads(message);
    expect(found).toMatchObject({ batch: 2, stage: "logit", query: 4, error: null });
    expect(found.layers.map((layer) => layer?.length ?? null)).toEqual([2, null]);
    expect(found.layers[0]![0]!.values[2]).toBe(-1);
    expect([...found.sums, ...found.sizes]).toEqual([1, -6, NAN, 2, 8, 3]);
    await expect(decodeStageHeads({ ...message, sums: bytesOf([1]) })).rejects.toThrow("sums must be float32");
    await expect(decodeStageHeads({ ...message, sizes: bytesOf([1]) })).rejects.toThrow("sums must be float32");
  });

  test("adds its sums and sizes; the middle of an even count is between two", async () => {
    const survey = { ...layers(2, 1), metrics: [metric([1, 2, 3])] };
    const found = withStage(survey, await decodeStageHeads(message));
    expect(found.metrics.map(({ name, word, kind, high, median }) => [name, word, kind, high, median])).toEqual([
      ["entropy", "Entropy", "bits", 1, 0],
      ["stage_sum", "Sum of the stage", "stage", 6, -2.5],
      ["stage_size", "Sum of its sizes", "size", 8, 3],
    ]);
    const zero = withStage(survey, { ...found.ofStage!, sums: Float32Array.of(0, 0, NAN) });
    expect(zero.metrics[1]!.high).toBe(1);
  });

  test("of other heads, or without a number, adds none; the first error stands", async () => {
    const ofStage = await decodeStageHeads({ ...message, error: "out of memory" });
    const survey = layers(2, 2);
    const found = withStage(survey, { ...ofStage, sizes: new Float32Array(4).fill(NAN) });
    expect([found.metrics, found.error]).toEqual([[], "out of memory"]);
    expect(withStage({ ...survey, error: "no" }, ofStage).error).toBe("no");
  });

  test("has the pictures of its heads, those of weights none", async () => {
    const [own, weights] = [(await decodeStageHeads(message)).layers, [{}, {}, {}] as Grid[]];
    const survey = { ...layers(2, 1), pictures: weights };
    const found = withStage(survey, await decodeStageHeads(message));
    expect([0, 1, 2].map((place) => pictureOf(found, place))).toEqual([own[0]![0], own[0]![1], null]);
    expect([0, 1, 2].map((place) => pictureOf(survey, place))).toEqual(weights);
    expect(pictureOf({ ...survey, pictures: [] }, 1)).toBeNull();
  });
});

test("small pictures alone tell of the heads of their layer", () => {
  const pictures = [{}, {}, {}] as Grid[];
  const facts = { groups: 2, queries: 5, keys: 7 } as Facts;
  const survey = surveyOfLayer(
    { layer: 4, batch: 1, heads: pictures, highs: null, rows: null, stage: "weights" },
    facts,
  );
  expect(survey).toEqual({
    ...{ batch: 1, layers: [{ heads: 3, groups: 2, queries: 5, keys: 7, rows: 5 }], pictures, metrics: [] },
    ...{ heads: [0, 1, 2].map((head) => ({ layer: 4, head })), complete: true, error: null, problems: [] },
  });
  expect(layoutHeads(survey, "layer", 952).where).toEqual([
    [0, 0],
    [1, 0],
    [2, 0],
  ]);
});

describe("where heads stand, to the pixel", () => {
  const numbers = (survey: Survey, order: string, width: number, unit = 1) => {
    const {
      size,
      across,
      down,
      columns,
      rows,
      margin,
      left,
      top,
      width: wide,
      height,
      bars,
      named,
    } = layoutHeads(survey, order, width, unit);
    return [size, across, down, columns, rows, margin, left, top, wide, height, bars, named];
  };
  const by = (survey: Survey) => ({ ...survey, metrics: [metric(survey.heads.map((_, at) => at))] });
  const even = (rows: number, heads: number) => layers(...new Array<number>(rows).fill(heads));

  test.each<[string, Survey, string, number, (number | boolean)[]]>([
    [
      "a row for each layer",
      layers(12, 9, 12, 12, 12, 12),
      "layer",
      952,
      [58, 74, 76, 12, 6, 4, 30, 22, 880, 454, true, false],
    ],
    ["a single layer", layers(12), "layer", 952, [58, 74, 76, 12, 1, 4, 0, 22, 880, 74, true, false]],
    ["a single layer that does not fit", layers(64), "layer", 592, [58, 74, 90, 8, 8, 4, 0, 0, 584, 724, true, true]],
    ["by a metric", by(layers(3, 4)), "entropy", 952, [58, 74, 90, 13, 1, 4, 0, 0, 954, 94, true, true]],
    [
      "a layer for each 60 pixels of 920",
      even(15, 2),
      "layer",
      952,
      [48, 61, 66, 2, 15, 4, 30, 22, 117, 988, true, false],
    ],
    ["many layers", even(32, 32), "layer", 952, [20, 26, 26, 32, 32, 3, 30, 22, 832, 832, false, false]],
    ["closer", even(12, 16), "layer", 352, [17, 20, 20, 16, 12, 1.5, 30, 22, 320, 240, false, false]],
    ["wider than the room", even(2, 100), "layer", 592, [20, 23, 23, 100, 2, 1.5, 30, 22, 2300, 46, false, false]],
    ["many by a metric", by(even(32, 32)), "entropy", 352, [20, 26, 26, 13, 79, 3, 0, 0, 338, 2054, false, false]],
  ])("%s", (_, survey, order, width, expected) => {
    expect(numbers(survey, order, width)).toEqual(expected);
    const twice = expected.map((one, at) => (typeof one === "number" && at !== 3 && at !== 4 ? 2 * one : one));
    expect(numbers(survey, order, 2 * width, 2)).toEqual(twice);
  });

  test("pictures shrink as little as they need to", () => {
    const [size, across] = numbers(even(3, 16), "layer", 952);
    // 15 pitches and a picture are no wider than 922: of 58 pixels 15 · 58 + 45 = 915 are, of 59 15 · 59 + 46 = 931 are not.
    expect([size, across]).toEqual([45, 58]);
    const named = numbers(by(even(10, 10)), "entropy", 592);
    expect([named[0], named[1], named[3], named[4]]).toEqual([47, 60, 10, 10]);
  });

  test("a place is found at its column and row, and nowhere else", () => {
    const layout = layoutHeads(layers(2, 3), "layer", 952);
    expect(layout.where).toEqual([
      ...[
        [0, 0],
        [1, 0],
      ],
      ...[
        [0, 1],
        [1, 1],
        [2, 1],
      ],
    ]);
    expect([
      layout.at(0, 1),
      layout.at(2, 1),
      layout.at(2, 0),
      layout.at(3, 0),
      layout.at(-1, 1),
      layout.at(0, 2),
    ]).toEqual([...[2, 4, -1, -1, -1, -1]]);
    const full = layoutHeads(layers(3, 3), "layer", 952);
    expect([full.at(-1, 1), full.at(3, 0), full.at(2, 0)]).toEqual([-1, -1, 2]);
    expect(cornerOf(layout, 4)).toEqual({ x: 4 + 2 * 74, y: 4 + 76 });
    // Half of the gap around a picture is its own: 8 of 16 pixels across, and of the margin 4 above.
    expect([placeAt(layout, 4 + 74 - 8, 4 + 76), placeAt(layout, 4 + 74 - 8.1, 4 + 76)]).toEqual([3, 2]);
    expect([placeAt(layout, 10, 76), placeAt(layout, 10, 75.9)]).toEqual([2, 0]);
  });

  test("arrow keys go to what is there: past a layer that is shorter, and from a head that is hidden to the first", () => {
    const layout = layoutHeads(layers(4, 2, 3), "layer", 952);
    expect([stepFrom(layout, 3, 0, 1), stepFrom(layout, 8, 0, -1), stepFrom(layout, 8, 0, 1)]).toEqual([5, 5, 8]);
    expect([stepFrom(layout, 5, 1, 0), stepFrom(layout, 5, -1, 0), stepFrom(layout, 0, 0, -1)]).toEqual([5, 4, 0]);
    expect([stepFrom(layout, 6, 0, -1), stepFrom(layout, 4, 0, -1), stepFrom(layout, 1, -1, 0)]).toEqual([4, 0, 0]);
    expect(stepFrom(layoutHeads(layers(2, 0, 2), "layer", 952), 1, 0, 1)).toBe(3);
    const some = layoutHeads(layers(4), "layer", 952, 1, { shown: (place) => place > 1 });
    expect(some.where.map(([column]) => column)).toEqual([-999, -999, 0, 1]);
    expect([stepFrom(some, 0, 0, 1), stepFrom(some, 2, 1, 0)]).toEqual([2, 3]);
  });
});

test("a head is named by its layer, and by its number in the model where a capture kept some", () => {
  const facts = { layers: ["a", "b"], model_heads: [[0, 5], null] };
  expect(nameOf({ layer: 0, head: 1 }, facts)).toBe("0·1 (5)");
  expect(nameOf({ layer: 1, head: 1 }, facts)).toBe("1·1");
  expect(nameOf({ layer: 0, head: "mean" }, { layers: ["a"] })).toBe("mean");
  expect([0, 1].map((head) => numberInAll(facts, head))).toEqual([undefined, undefined]);
  const alike = { layers: ["a", "b"], model_heads: [[0, 5], [0, 6]] }; // biome-ignore format: one line
  expect([0, 1].map((head) => numberInAll(alike, head))).toEqual([0, undefined]);
  expect(numberInAll({ layers: ["a"], model_heads: null }, 0)).toBeUndefined();
  expect(numberInAll({ layers: ["a", "b"], model_heads: [null, [0]] }, 0)).toBeUndefined();
});
