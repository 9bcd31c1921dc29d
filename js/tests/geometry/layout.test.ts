import { describe, expect, test } from "vitest";
import {
  fit,
  GAPS_FROM,
  type LabelRoom,
  labelFont,
  labelStep,
  layoutFigure,
  MAX_CELL,
  modeOf,
  NUMBERS_FROM,
  nameRoom,
  numberFont,
  roundPositions,
  tickPositions,
  usesTicks,
  wholePixels,
} from "../../src/geometry/layout";
import { THOROUGH } from "../helpers/thorough.ts";

const DPRS = THOROUGH ? [0.8, 1, 1.25, 2] : [0.8, 1.25];
const COUNTS = THOROUGH ? [1, 2, 4, 20, 64, 300, 512] : [1, 4, 20, 64, 300, 512];
const WIDTHS = THOROUGH
  ? [320, 321, 375, 480, 519, 520, 600, 719, 720, 800, 900, 1003, 1099, 1100, 1279, 1280, 1281, 1600, 2000]
  : [320, 519, 520, 719, 720, 1003, 1099, 1100, 1281];
const LABELS: Record<string, LabelRoom> = {
  short: { query: 30, key: 30, keys: () => 30, keyTicks: false },
  "very long": { query: 900, key: 900, keys: () => 900, keyTicks: false },
  "one long at the end": {
    query: 120,
    key: 200,
    keys: (index) => (index > 0 && index % 19 === 0 ? 200 : 20),
    keyTicks: false,
  },
  positions: { query: 40, key: 40, keys: () => 0, keyTicks: true },
};

describe("the widget's own width decides", () => {
  test.each([
    [1, "narrow"],
    [319, "narrow"],
    [320, "narrow"],
    [519, "narrow"],
    [520, "under"],
    [719, "under"],
    [720, "beside"],
    [1099, "beside"],
    [1100, "wide"],
    [4000, "wide"],
  ] as const)("%s px: %s", (width, mode) => {
    expect(modeOf(width)).toBe(mode);
    expect(modeOf(width * 1.5, 1.5)).toBe(mode);
  });
});

/** Figures for all widths, matrices and densities. */
function figures(labels: LabelRoom, unit = 1) {
  return WIDTHS.flatMap((width) =>
    COUNTS.flatMap((rows) =>
      COUNTS.flatMap((columns) =>
        DPRS.map((dpr) => {
          const figure = layoutFigure({ width, rows, columns, labels, dpr, unit });
          return { width, rows, columns, dpr, figure, where: `${rows} × ${columns} in ${width} at ${dpr}` };
        }),
      ),
    ),
  );
}

type Shown = ReturnType<typeof figures>[number];

/** What is wrong with some figures: all at once, because to expect something takes longer than to lay a figure out. */
const wrong = (all: readonly Shown[], isRight: (one: Shown) => boolean) =>
  all.filter((one) => !isRight(one)).map(({ where }) => where);

describe.each(Object.entries(LABELS))("labels: %s", (_, labels) => {
  const usual = figures(labels);

  test.each([1, 1.4])("every matrix fits into every width from 320 to 2,000, at %s of the usual size", (unit) => {
    const fits = ({ width, figure }: Shown) => {
      const frame = Math.min(width, 1280 * unit);
      const beside = figure.mode === "beside" || figure.mode === "wide";
      const used = figure.left + figure.width + figure.overhang + (beside ? 36 * unit + figure.panel : 0);
      return used <= frame + 1e-6 && figure.panel <= frame && figure.left > 0 && figure.width > 0;
    };
    expect(wrong(unit === 1 ? usual : figures(labels, unit), fits)).toEqual([]);
  });

  test("a picture is at most 720 wide and 640 tall, its cells at most 44", () => {
    const isSmall = ({ figure }: Shown) =>
      figure.width <= 720 + 1e-6 &&
      figure.height <= 640 + 1e-6 &&
      Math.max(figure.cellWidth, figure.cellHeight) <= MAX_CELL;
    expect(wrong(usual, isSmall)).toEqual([]);
  });

  test("cells above 5 px are whole device pixels, all are at least one, and all of them are there", () => {
    const isWhole = ({ rows, columns, dpr, figure }: Shown) => {
      const sizes = [figure.cellWidth * dpr, figure.cellHeight * dpr];
      const off = figure.width - figure.columns * figure.cellWidth + figure.height - figure.rows * figure.cellHeight;
      return (
        sizes.every((size) => size >= 1 && (size <= 5 * dpr || Math.abs(size - Math.round(size)) < 1e-9)) &&
        figure.rows === Math.ceil(rows / figure.fold) &&
        figure.columns === Math.ceil(columns / figure.fold) &&
        off < 1e-9 &&
        off > -2 / dpr
      );
    };
    expect(wrong(usual, isWhole)).toEqual([]);
  });

  test("no slanted label reaches out of the room that is kept for it", () => {
    const isRoom = ({ columns, figure }: Shown) => {
      if (labels.keyTicks || figure.fold > 1 || usesTicks(figure.cellWidth, 1)) return true;
      const scale = labelFont(figure.cellWidth) / 12;
      return Array.from({ length: Math.min(40, columns) }, (_, at) => columns - 1 - at).every((index) => {
        const along = Math.min(labels.keys(index) * scale, (figure.keyRoom - 16) / Math.SQRT1_2);
        const right = (index + 0.5) * figure.cellWidth + along * Math.SQRT1_2 + 3;
        return right <= figure.width + figure.overhang + 1;
      });
    };
    expect(wrong(usual, isRoom)).toEqual([]);
  });
});

test("the frame stays left: from 1,280 on, more width changes nothing", () => {
  const of = (width: number) => layoutFigure({ width, rows: 64, columns: 64, labels: LABELS.short!, dpr: 1 });
  expect(of(2000)).toEqual(of(1280));
});

test("the panel is 340 wide from 1,100, 260 to 340 beside the picture, and as wide as the frame below 720", () => {
  const panel = (width: number) => layoutFigure({ width, rows: 20, columns: 20, labels: LABELS.short!, dpr: 1 }).panel;
  expect([panel(1100), panel(1999)]).toEqual([340, 340]);
  expect(panel(720)).toBe(260);
  expect(panel(1050)).toBeGreaterThan(280);
  expect(panel(1099)).toBeLessThanOrEqual(340);
  expect([panel(719), panel(400)]).toEqual([719, 400]);
});

test("labels take at most 160 px before the picture, 88 where it is narrow, and 96 above it", () => {
  const long = (width: number) => layoutFigure({ width, rows: 20, columns: 20, labels: LABELS["very long"]!, dpr: 1 });
  expect(long(1200).labelRoom).toBe(162);
  expect(long(400).labelRoom).toBe(90);
  for (const width of WIDTHS) expect(long(width).keyRoom).toBeLessThanOrEqual(96);
});

describe("one fit", () => {
  test("square cells, as large as 44", () => {
    expect(fit(720, 4, 4, 1)).toEqual({ fold: 1, rows: 4, columns: 4, cellWidth: 44, cellHeight: 44 });
    expect(fit(500, 20, 20, 1)).toMatchObject({ cellWidth: 25, cellHeight: 25 });
    expect(fit(505, 20, 20, 2)).toMatchObject({ cellWidth: 25, cellHeight: 25 });
    expect(fit(515, 20, 20, 2)).toMatchObject({ cellWidth: 25.5, cellHeight: 25.5 });
  });

  test("one query over many keys is a band, not a hairline", () => {
    const { cellHeight, cellWidth } = fit(720, 1, 512, 1);
    expect([cellHeight, cellWidth]).toEqual([22, 720 / 512]);
    expect(fit(720, 512, 1, 1)).toMatchObject({ cellHeight: 640 / 512, cellWidth: 22 });
  });

  test("more cells than pixels are folded, and no more than needed", () => {
    expect(fit(300, 512, 512, 1)).toMatchObject({ fold: 2, rows: 256, columns: 256, cellWidth: 300 / 256 });
    expect(fit(300, 512, 512, 2).fold).toBe(1);
    expect(fit(200, 511, 511, 1)).toMatchObject({ fold: 3, rows: 171 });
  });

  test.each([1, 1.25, 2, 3])("many cells use the room they have, at %s pixels to one", (dpr) => {
    for (let room = 120; room <= 640; room += 37) {
      for (const count of [130, 200, 256, 300, 512]) {
        const { cellWidth, columns } = fit(room, count, count, dpr);
        expect(cellWidth * columns, `${count} in ${room}`).toBeGreaterThan(0.93 * room);
        expect(cellWidth * columns, `${count} in ${room}`).toBeLessThanOrEqual(room + 1e-9);
      }
    }
  });

  test("no room at all is no error", () => {
    for (const room of [0, -50]) expect(fit(room, 20, 20, 1).cellWidth).toBeGreaterThan(0);
  });
});

describe("labels along an axis", () => {
  test.each([
    [44, 12],
    [16, 12],
    [15, 10],
    [13, 10],
    [12, 9],
    [6, 9],
  ])("cells of %s px: font %s", (cell, font) => {
    expect(labelFont(cell)).toBe(font);
    expect(labelFont(cell * 2, 2)).toBe(font);
  });

  test("every cell has its label from 12 px; below they are at least 14 apart", () => {
    expect(labelStep(GAPS_FROM)).toBe(1);
    expect(labelStep(NUMBERS_FROM)).toBe(1);
    for (const cell of [5.5, 6, 7, 8, 9.6, 11, 11.9]) {
      const step = labelStep(cell);
      expect(step * cell).toBeGreaterThanOrEqual(14);
      expect((step - 1) * cell).toBeLessThan(14);
    }
  });

  test("positions instead, at 5 px or less and where a cell stands for several tokens", () => {
    expect([usesTicks(5, 1), usesTicks(5.01, 1), usesTicks(44, 2), usesTicks(44, 1)]).toEqual([
      true,
      false,
      true,
      false,
    ]);
    expect([usesTicks(7, 1, 1.4), usesTicks(7.1, 1, 1.4)]).toEqual([true, false]);
  });
});

describe("ticks", () => {
  test.each([
    [0, 299, 1, 40],
    [0, 16_383, 0.04, 72],
    [128, 191, 10, 72],
    [4096, 4103, 22, 40],
    [0, 511, 0.5, 72],
    [3, 1000, 0.7, 40],
    [17, 18, 3, 72],
  ])(
    "from %s to %s at %s px a token: both ends, between them round positions, none too close",
    (first, last, pixels, apart) => {
      const ticks = tickPositions(first, last, pixels, apart);
      expect(ticks[0]).toBe(first);
      const between = ticks.slice(1, -1);
      const step = (between[1] ?? between[0]! + 1) - between[0]!;
      for (const tick of between) expect(tick % step).toBe(0);
      for (let at = 1; at < ticks.length; at++) {
        expect((ticks[at]! - ticks[at - 1]!) * pixels).toBeGreaterThanOrEqual(0.7 * apart - 1e-6);
      }
      if ((last - first) * pixels >= apart) expect(ticks.at(-1)).toBe(last);
    },
  );

  test("random axes: strictly rising, within the ends, never nearer than seven tenths of what was asked", () => {
    for (let trial = 0; trial < 500; trial++) {
      const first = (trial * 37) % 400;
      const last = first + ((trial * 911) % 5000);
      const pixels = 0.02 + ((trial * 7) % 90) / 10;
      const ticks = tickPositions(first, last, pixels, 40);
      const gaps = ticks.slice(1).map((tick, at) => (tick - ticks[at]!) * pixels);
      const all = ticks.every((tick) => tick >= first && tick <= last && Number.isInteger(tick));
      expect([all, Math.min(28, ...gaps) > 28 - 1e-6], `${first} to ${last} at ${pixels}`).toEqual([true, true]);
    }
  });

  test("a single token has a single tick", () => {
    expect(tickPositions(5, 5, 44, 40)).toEqual([5]);
    expect(tickPositions(5, 4, 44, 40)).toEqual([5]);
  });
});

describe("to the pixel", () => {
  const labels: LabelRoom = { query: 30, key: 40, keys: () => 40, keyTicks: false };
  const few = { width: 1200, rows: 3, columns: 5, labels, dpr: 1 };

  test("a few cells: 44 each, their labels left and above, the last one slanted beyond them", () => {
    expect(layoutFigure(few)).toEqual({
      ...{ mode: "wide", fold: 1, rows: 3, columns: 5, cellWidth: 44, cellHeight: 44, left: 58, top: 45 },
      ...{ width: 220, height: 132, overhang: 15, labelRoom: 32, keyRoom: 45, inset: 0, positions: 0, margin: 0 },
      ...{ names: null, below: 0, panel: 340, sink: null, recall: null, received: null },
    });
  });

  test("the titles of the axes have their corner, the strip of received weights its place", () => {
    const bare = { ...labels, query: 5, key: 5 };
    const { left, top, received } = layoutFigure({ ...few, labels: { ...bare, received: true } });
    expect([left, top, received]).toEqual([58, 40, { gap: 6, height: 20 }]);
    expect(layoutFigure({ ...few, width: 300, unit: 1, labels: bare })).toMatchObject({ left: 58, top: 40 });
    const large = layoutFigure({ ...few, width: 2400, unit: 2, labels: { ...bare, received: true } });
    expect([large.left, large.top, large.received]).toEqual([116, 80, { gap: 12, height: 40 }]);
  });

  /** Positions in the place of tokens, with all that may stand beside the picture. */
  const long = {
    ...{ width: 900, rows: 300, columns: 200, dpr: 1 },
    labels: {
      ...{ query: 70, key: 50, keys: () => 0, ticks: 28, positions: 28, keyTicks: true, queryTicks: true },
      ...{ below: true, sink: 26, recall: 30, margins: true },
    },
  };

  test("many cells: positions, margins, and the columns of a sink and of recall", () => {
    const { cellWidth, cellHeight, ...figure } = layoutFigure(long);
    expect([cellWidth, cellHeight]).toEqual([640 / 300, 640 / 300]);
    expect(figure).toEqual({
      ...{ mode: "beside", fold: 1, rows: 300, columns: 200, left: 64, top: 54, width: 426, height: 640, overhang: 64 },
      ...{ labelRoom: 52, keyRoom: 48, inset: 46, positions: 38, margin: 6, names: null, below: 20, panel: 266 },
      ...{ sink: { gap: 8, width: 12 }, recall: { gap: 28, width: 12 }, received: null },
    });
    const alone = layoutFigure({ ...long, labels: { ...long.labels, sink: 0 } });
    expect([alone.sink, alone.recall, alone.overhang]).toEqual([null, { gap: 8, width: 12 }, 44]);
    const large = layoutFigure({ ...few, labels: { ...labels, sink: 26, recall: 30 } });
    expect([large.sink, large.recall, large.overhang]).toEqual([{ gap: 8, width: 44 }, { gap: 60, width: 12 }, 96]);
  });

  const names = { query: 50.2, key: 40, token: 30.5, bracket: 20.1, levels: 2, ends: [{ length: 60, at: 0.9 }] };

  test("names of segments have their own room", () => {
    const beside = { query: 53, key: 40, token: 33, outside: 53, bracket: 23, levels: 2, left: 139, top: 101 };
    expect(nameRoom(names, "wide", 1)).toEqual(beside);
    expect(nameRoom(names, "narrow", 1)).toEqual({ ...beside, outside: 0, bracket: 0, left: 93 });
    expect(nameRoom({ ...names, levels: 0 }, "under", 1)).toEqual({
      ...{ ...beside, bracket: 0, levels: 0, left: 8 + 33 + 10 + 53, top: 60 },
    });
    const most = { query: 300, key: 300, token: 300, bracket: 300, levels: 1, ends: [] };
    const { key, ...room } = nameRoom(most, "wide", 1);
    expect(key).toBeCloseTo(80 * Math.SQRT2);
    expect(room).toMatchObject({ query: 110, token: 72, outside: 110, bracket: 84, left: 8 + 110 + 16 + 84 });
    expect(nameRoom(most, "narrow", 1)).toMatchObject({
      query: 72,
      token: 64,
      outside: 0,
      bracket: 0,
      left: 8 + 72 + 16,
    });
    expect(nameRoom({ ...most, levels: 0 }, "wide", 1).top).toBeLessThanOrEqual(97);
    expect(nameRoom({ ...most, levels: 0, key: 1 }, "wide", 1).top).toBe(53 + 20);
  });

  test("room for names grows with the size of letters; where there is no name outside, there is no gap for it", () => {
    const most = { query: 900, key: 900, token: 900, bracket: 900, levels: 1, ends: [] };
    expect(nameRoom(most, "wide", 2)).toMatchObject({ query: 220, token: 144, outside: 220, bracket: 168, left: 436 });
    expect(nameRoom(most, "wide", 2).key).toBeCloseTo(160 * Math.SQRT2);
    expect(nameRoom({ ...most, levels: 0 }, "wide", 2).left).toBe(16 + 144 + 20 + 220);
    expect(nameRoom({ ...most, levels: 0, key: 1 }, "wide", 2).top).toBe(Math.ceil(104 * Math.SQRT1_2 + 32) + 40);
    expect(nameRoom({ ...most, levels: 0, query: 20 }, "narrow", 1).left).toBe(8 + 64);
  });

  test("what stands right of the picture grows with the size of letters", () => {
    const twice = (own: Partial<LabelRoom>, width = 2400) =>
      layoutFigure({ ...few, width, labels: { ...labels, ...own }, unit: 2 });
    expect(twice({ sink: 26 }).sink).toEqual({ gap: 16, width: 88 });
    expect(twice({ recall: 1 })).toMatchObject({ recall: { gap: 16, width: 24 }, overhang: 45 });
    const far = { ...names, ends: [{ length: 60, at: 1 }] };
    expect(twice({ names: far }).overhang).toBe(Math.ceil(40 * Math.SQRT1_2 + 16));
    expect(twice({ names: { ...names, token: 1, ends: [] } }).overhang).toBe(32);
    expect([twice({}, 1440).panel, twice({ key: 900 }).keyRoom, layoutFigure(few).keyRoom]).toEqual([520, 192, 45]);
    const ticks = { keyTicks: true, queryTicks: true };
    expect(twice({ ...ticks, key: 50 }).overhang).toBe(Math.ceil(50 * Math.SQRT1_2 + 6));
    expect(twice({ ...ticks, key: 1 }).overhang).toBe(32);
  });

  test("keys that are not shown need no room right of the picture", () => {
    const plain = { ...long.labels, sink: 0, recall: 0 };
    const at = (keys: () => number) => layoutFigure({ ...long, labels: { ...plain, keys } }).overhang;
    expect([at(() => 0), at(() => 900)]).toEqual([35, 35]);
    const none = { ...names, token: 1, ends: [] };
    expect(layoutFigure({ ...few, width: 230, labels: { ...labels, names: none } }).overhang).toBe(16);
  });

  test("names of segments stand in the place of tokens and positions", () => {
    const figure = layoutFigure({ ...few, width: 500, labels: { ...labels, names, margins: true } });
    expect(figure).toMatchObject({
      ...{ mode: "narrow", left: 6 + 93, top: 6 + 101, overhang: 24, labelRoom: 33, inset: 0, margin: 6, panel: 500 },
      ...{ cellWidth: 44, cellHeight: 44, names: nameRoom(names, "narrow", 1) },
    });
    // The last name is 40 · √½ + 8 long, and begins a tenth of the picture's 22 · 5 pixels before its end.
    const close = layoutFigure({ ...few, width: 230, labels: { ...labels, names } });
    expect([close.cellWidth, close.overhang]).toEqual([22, 26]);
    const far = { ...names, ends: [{ length: 60, at: 1 }] };
    expect(layoutFigure({ ...few, labels: { ...labels, names: far } }).overhang).toBe(Math.ceil(40 * Math.SQRT1_2 + 8));
    const none = { ...names, token: 1, ends: [] };
    expect(layoutFigure({ ...few, labels: { ...labels, names: none } }).overhang).toBe(16);
  });

  test.each<[string, Parameters<typeof layoutFigure>[0]]>([
    ["a few cells", few],
    ["many cells", long],
    ["a narrow one", { ...few, width: 400 }],
    ["one with names", { ...few, width: 700, labels: { ...labels, names, margins: true } }],
    ["few rows of many columns", { ...few, rows: 2, columns: 300 }],
    ["many rows of few columns", { ...few, rows: 250, columns: 3 }],
  ])("at twice the size of letters all is twice as large, to a pixel or two: %s", (_, input) => {
    const twice = (one: number | undefined) => 2 * one!;
    const { query, key, keys, ticks, positions, sink, recall, names: own } = input.labels;
    const larger: LabelRoom = {
      ...{ ...input.labels, query: 2 * query, key: 2 * key, keys: (index) => 2 * keys(index) },
      ...(ticks === undefined ? {} : { ticks: twice(ticks), positions: twice(positions) }),
      ...(sink === undefined ? {} : { sink: twice(sink), recall: twice(recall) }),
    };
    const named = own && {
      ...{ query: 2 * own.query, key: 2 * own.key, token: 2 * own.token, bracket: 2 * own.bracket, levels: own.levels },
      ends: own.ends.map(({ length, at }) => ({ length: 2 * length, at })),
    };
    const small = layoutFigure({ ...input, dpr: 2 });
    const large = layoutFigure({
      ...input,
      width: 2 * input.width,
      labels: named ? { ...larger, names: named } : larger,
      unit: 2,
    });
    expect([large.mode, large.fold, large.rows, large.columns]).toEqual([
      ...[small.mode, small.fold, small.rows, small.columns],
    ]);
    const lengths = ({ mode, fold, rows, columns, cellWidth, cellHeight, ...figure }: typeof small) =>
      Object.entries(figure).flatMap(([name, one]) =>
        Object.entries(typeof one === "number" ? { "": one } : { ...one })
          .filter(([part]) => part !== "levels")
          .map(([part, length]) => [`${name} ${part}`, length as number] as const),
      );
    expect(large.cellWidth).toBeCloseTo(2 * small.cellWidth, 1);
    expect(large.cellHeight).toBeCloseTo(2 * small.cellHeight, 1);
    lengths(large).forEach(([name, length], at) => {
      expect(Math.abs(length - 2 * lengths(small)[at]![1]), name).toBeLessThanOrEqual(named ? 10 : 4);
    });
  });

  test("beside few rows of many keys stand their tokens, above it positions", () => {
    const { rows, columns, cellHeight, labelRoom, inset, keyRoom } = layoutFigure({
      ...{ ...few, rows: 2, columns: 300 },
      labels: { ...labels, query: 70, key: 100, keys: () => 100 },
    });
    expect([rows, columns, cellHeight, labelRoom, inset]).toEqual([2, 300, 22, 72, 0]);
    expect(keyRoom).toBe(Math.ceil(44 * Math.SQRT1_2 + 16));
    const tall = layoutFigure({ ...few, rows: 250, columns: 3, labels: { ...labels, query: 70, ticks: 20 } });
    expect([tall.labelRoom, tall.left, tall.inset]).toEqual([52, 58, 52 + 14 - 58]);
  });

  test("the widget's outer width may be another than the picture's", () => {
    expect(layoutFigure({ ...few, width: 700, mode: "beside" })).toMatchObject({ mode: "beside", panel: 260 });
    expect(layoutFigure({ ...few, width: 1150, mode: "beside" }).panel).toBe(339);
    expect(layoutFigure({ ...few, width: 1200, mode: "beside" }).panel).toBe(340);
  });

  test("only the last forty keys can reach beyond the picture", () => {
    const at = (long: number) =>
      layoutFigure({ ...few, columns: 100, labels: { ...labels, keys: (key) => (key === long ? 40 : 1) } });
    expect(at(99).overhang).toBeGreaterThan(at(50).overhang);
    expect(at(50).overhang).toBe(at(0).overhang);
  });

  test("where pixels are few, cells that nobody counts fill the room, others are whole", () => {
    expect(fit(500, 30, 60, 1, 1, true)).toMatchObject({ cellWidth: 8, cellHeight: 8 }); // of 8.33: little is left empty
    expect(fit(500, 30, 67, 1, 1, true)).toMatchObject({ cellWidth: 500 / 67, cellHeight: 500 / 67 });
    expect(fit(500, 30, 67, 1, 1)).toMatchObject({ cellWidth: 7, cellHeight: 7 });
    expect(fit(500, 10, 100, 1.1).cellWidth).toBe(5);
    const pooled = layoutFigure({ ...long, width: 1200, rows: 81, columns: 81 });
    expect(pooled.cellHeight).toBeCloseTo(640 / 81);
    expect(fit(300, 1300, 512, 1)).toMatchObject({ fold: 3, rows: 434, columns: 171 });
    expect(fit(1500, 9, 700, 1)).toMatchObject({ fold: 1, cellWidth: 1, cellHeight: 9 });
    expect(fit(1500, 400, 9, 1)).toMatchObject({ fold: 1, cellHeight: 1.6, cellWidth: 9 });
    expect(fit(60, 400, 4, 1)).toMatchObject({ cellHeight: 1.6, cellWidth: 15 }); // of 22, but there are 60 pixels for four
  });

  test("sizes of letters and numbers", () => {
    const cells = [27.9, 28, 33.9, 34];
    expect(cells.map((cell) => numberFont(cell))).toEqual([9, 10, 10, 11]);
    expect(cells.map((cell) => numberFont(2 * cell, 2))).toEqual([9, 10, 10, 11]);
    expect([labelStep(11.9), labelStep(12), labelStep(23.9, 2), labelStep(24, 2)]).toEqual([2, 1, 2, 1]);
    expect(usesTicks(44, 1.5)).toBe(true);
  });

  test("round positions from the first to before the last", () => {
    expect(roundPositions(0, 100, 1, 10)).toEqual([0, 16, 32, 48, 64, 80, 96]);
    expect(roundPositions(5, 40, 2, 10)).toEqual([8, 16, 24, 32]);
    expect(roundPositions(8, 24, 2, 16)).toEqual([8, 16]);
    expect(roundPositions(0, 3, 10, 5)).toEqual([0, 1, 2]);
    expect(tickPositions(0, 299, 1, 40)).toEqual([0, 64, 128, 192, 256, 299]);
    expect(tickPositions(0, 28, 1, 40)).toEqual([0, 28]);
    expect(tickPositions(0, 27, 1, 40)).toEqual([0]);
    expect(tickPositions(4, 92, 1, 40)).toEqual([4, 92]);
    expect(tickPositions(36, 93, 1, 40)).toEqual([36, 64, 93]);
    expect([wholePixels(10.7, 2), wholePixels(10.5, 2), wholePixels(2.9999999999, 1)]).toEqual([10.5, 10.5, 3]);
  });
});
