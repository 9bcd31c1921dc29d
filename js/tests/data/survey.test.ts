/** All heads: what is read of what was sent, their ranks and order, and where they stand. */

import { describe, expect, test } from "vitest";
import {
  cornerOf,
  decodeSurvey,
  type HeadFilter,
  isShown,
  layoutHeads,
  METRICS,
  metricText,
  nameOf,
  nearest,
  orderOf,
  placeAt,
  rankOf,
  stepFrom,
  strongestOf,
} from "../../src/data/survey";
import { surveyOf } from "../helpers/survey.ts";

const NAN = Number.NaN;

describe("what was sent", () => {
  test("heads are numbered layer by layer, and those that are not ready have no picture", async () => {
    const survey = await decodeSurvey(surveyOf([2, 3], { entropy: [1, 2] }, { ready: 1 }));
    expect(survey.heads).toEqual([
      { layer: 0, head: 0 },
      { layer: 0, head: 1 },
      { layer: 1, head: 0 },
      { layer: 1, head: 1 },
      { layer: 1, head: 2 },
    ]);
    expect(survey.pictures.map((picture) => picture !== null)).toEqual([true, true, false, false, false]);
    expect(survey.complete).toBe(false);
    expect([...survey.metrics[0]!.values]).toEqual([1, 2, NAN, NAN, NAN]);
  });

  test("bars of bits are full where all keys are alike, those of weights at 1", async () => {
    const survey = await decodeSurvey(
      surveyOf([3], { entropy: [1, 3, 2], itself: [0.1, 0.2, NAN], mean_distance: [2, 8, 4] }),
    );
    const full = Object.fromEntries(survey.metrics.map(({ name, high, median }) => [name, [high, median]]));
    expect(full.entropy).toEqual([Math.log2(16), 2]);
    expect(full.itself![0]).toBe(1);
    expect(full.itself![1]).toBeCloseTo(0.15);
    expect(full.mean_distance).toEqual([8, 4]);
    expect(survey.metrics.map(({ name }) => name)).toEqual(["entropy", "itself", "mean_distance"]);
  });

  test("more pictures than heads are an error", async () => {
    const message = surveyOf([2], { entropy: [1, 2] });
    message.layers[0]!.heads = 1;
    await expect(decodeSurvey(message)).rejects.toThrow("there are 1 heads, got pictures of 2");
  });
});

describe("ranks and order", () => {
  const message = surveyOf([2, 2], {
    entropy: [3, 1, 2, 2],
    itself: [0.5, 0.5, 0.5, 0.5],
    first_token: [0.1, NAN, 0.9, 0.2],
  });

  test("the metric in which a head ranks best, where heads differ", async () => {
    const survey = await decodeSurvey(message);
    const [entropy, first, itself] = survey.metrics;
    expect([0, 1, 2, 3].map((place) => rankOf(entropy!, place))).toEqual([1, 4, 2, 2]);
    expect([0, 1, 2, 3].map((place) => rankOf(first!, place))).toEqual([3, 0, 1, 2]);
    expect(itself?.name).toBe("itself");
    expect(strongestOf(survey, 0)).toEqual({ metric: entropy, rank: 1, of: 4 });
    expect(strongestOf(survey, 2)).toEqual({ metric: first, rank: 1, of: 3 });
    expect(strongestOf(survey, 1)).toBeNull(); // the least of one, none of another, and in the third all are alike
  });

  test("those most like one first, by the sum of their ranks by metrics and by picture", async () => {
    const survey = await decodeSurvey(message);
    const grid = (...values: number[]) => ({
      rows: 1,
      columns: 2,
      values: Float32Array.from(values),
      kinds: new Uint8Array(2),
    });
    const pictures = [grid(1, 0), grid(1, 0.1), grid(0, 1), grid(1, 0.2)];
    // By picture 0 is like 1, then 3, then 2. By metrics: entropy and, where both have it, the first token.
    expect(nearest({ ...survey, pictures }, 0)).toEqual([0, 3, 1, 2]);
    expect(orderOf({ ...survey, pictures }, "similar", 2)[0]).toBe(2);
    const alone = { ...survey, pictures: [...pictures.slice(0, 3), { ...grid(1, 0.2), rows: 2 }] };
    expect(nearest(alone, 0)).toEqual([0, 3, 2, 1]); // another size: last by picture, and still there
    expect(nearest({ ...survey, pictures: [pictures[0]!, null, null, pictures[1]!] }, 0)).toEqual([0, 3, 2, 1]);
  });

  test("only some layers, and those above a number", async () => {
    const survey = await decodeSurvey(message);
    const entropy = survey.metrics[0]!;
    const places = (filter: HeadFilter) => [0, 1, 2, 3].filter((place) => isShown(survey, place, filter, entropy));
    expect(places({ from: 1, to: null, above: null })).toEqual([2, 3]);
    expect(places({ from: null, to: 0, above: 2 })).toEqual([0]);
    expect(places({ from: null, to: null, above: 3 })).toEqual([]);
    const shown = (place: number) => place !== 1;
    const layout = layoutHeads(survey, "layer", 952, 1, { shown });
    expect([0, 1, 2].map((column) => layout.at(column, 0))).toEqual([0, 2, 3]);
    expect(layout.where[1]![0]).toBeLessThan(0); // outside of the canvas
    expect(stepFrom(layout, 1, 1, 0)).toBe(0);
    expect(layoutHeads(survey, "layer", 952, 1, { shown: () => false }).at(0, 0)).toBe(-1);
  });

  test("the largest first, those without a number last", async () => {
    const survey = await decodeSurvey(message);
    expect(orderOf(survey, "layer")).toEqual([0, 1, 2, 3]);
    expect(orderOf(survey, "entropy")).toEqual([0, 2, 3, 1]);
    expect(orderOf(survey, "first_token")).toEqual([2, 3, 0, 1]);
    expect(orderOf(survey, "induction")).toEqual([0, 1, 2, 3]); // which nobody knows
  });

  test("numbers as they are written", () => {
    expect(metricText(1.3914, "bits")).toBe("1.39 bits");
    expect(metricText(0.5674, "weight")).toBe(".567");
    expect(metricText(1, "weight")).toBe("1.00");
    expect(metricText(8.66, "tokens")).toBe("8.7");
    expect(metricText(1234.5, "tokens")).toBe("1,235");
    expect(metricText(0.466, "share")).toBe("47 %");
    expect(metricText(NAN, "weight")).toBe("NaN");
    expect(METRICS.map(({ word }) => word)).toContain("Same token elsewhere");
  });
});

describe("where they stand", () => {
  const survey = async (...layers: number[]) => {
    const total = layers.reduce((a, b) => a + b);
    return decodeSurvey(surveyOf(layers, { entropy: Array.from({ length: total }, (_, at) => at) }));
  };

  test("12 × 6 as drawn: 58 pixels, pitch 74 × 76", async () => {
    const layout = layoutHeads(await survey(...new Array<number>(6).fill(12)), "layer", 952);
    expect([layout.size, layout.across, layout.down, layout.bars]).toEqual([58, 74, 76, true]);
    expect(layout.left + layout.width - 2 * layout.margin).toBeLessThanOrEqual(952);
  });

  test.each([1272, 952, 592, 352])(
    "it fits %i pixels with pictures of 14 at least, or scrolls with pictures of 20",
    async (width) => {
      for (const [layers, heads] of [
        [6, 12],
        [32, 32],
        [12, 16],
        [1, 4],
        [2, 100],
      ] as const) {
        const of = await survey(...new Array<number>(layers).fill(heads));
        for (const order of ["layer", "entropy"]) {
          const layout = layoutHeads(of, order, width);
          const wide = layout.left + layout.width - 2 * layout.margin;
          expect(wide <= width || (layout.size === 20 && order === "layer"), `${layers} × ${heads} ${order}`).toBe(
            true,
          );
          expect(layout.size).toBeGreaterThanOrEqual(14);
          expect(layout.where.length).toBe(layers * heads);
        }
      }
    },
  );

  test("a single layer is wrapped where its heads do not fit", async () => {
    const wrapped = layoutHeads(await survey(64), "layer", 592);
    expect([wrapped.named, wrapped.left, wrapped.top]).toEqual([true, 0, 0]);
    expect(wrapped.width).toBeLessThanOrEqual(592 + 2 * wrapped.margin);
    expect(nameOf({ layer: 0, head: 7 }, { layers: ["a"] })).toBe("7");
    expect(nameOf({ layer: 1, head: 1 }, { layers: ["a", "b"] })).toBe("1·1");
    expect(layoutHeads(await survey(12), "layer", 952).rows).toBe(1);
  });

  test("32 × 32: 20 pixels, no bars", async () => {
    const layout = layoutHeads(await survey(...new Array<number>(32).fill(32)), "layer", 952);
    expect([layout.size, layout.bars]).toEqual([20, false]);
    expect(layout.height).toBeLessThan(920);
  });

  test("what a point is over is the head whose picture or bar is there", async () => {
    const of = await survey(3, 2);
    const layout = layoutHeads(of, "layer", 952);
    for (let place = 0; place < 5; place++) {
      const { x, y } = cornerOf(layout, place);
      expect(placeAt(layout, x + 1, y + 1)).toBe(place);
      expect(placeAt(layout, x + layout.size - 1, y + layout.size + 6)).toBe(place);
    }
    const { x, y } = cornerOf(layout, 2);
    expect(placeAt(layout, x + 10, y + layout.down + 10)).toBe(-1); // the second layer has but two
    expect(placeAt(layout, -40, 10)).toBe(-1);
  });

  test("arrows walk, and in a shorter layer to its last head", async () => {
    const layout = layoutHeads(await survey(3, 1, 3), "layer", 952);
    expect(stepFrom(layout, 0, 1, 0)).toBe(1);
    expect(stepFrom(layout, 2, 1, 0)).toBe(2);
    expect(stepFrom(layout, 0, -1, 0)).toBe(0);
    expect(stepFrom(layout, 2, 0, 1)).toBe(3);
    expect(stepFrom(layout, 3, 0, 1)).toBe(4);
    expect(stepFrom(layout, 1, 0, -1)).toBe(1);
  });

  test("by a metric the largest stands first", async () => {
    const layout = layoutHeads(await survey(3, 3), "entropy", 952);
    expect(layout.named).toBe(true);
    expect(layout.where[5]).toEqual([0, 0]);
    expect(layout.at(5, 0)).toBe(0);
    expect([layout.left, layout.top]).toEqual([0, 0]);
  });
});
