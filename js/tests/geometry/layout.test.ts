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
  tickPositions,
  usesTicks,
} from "../../src/geometry/layout";

const DPRS = [0.8, 1, 1.25, 2];
const COUNTS = [1, 2, 4, 20, 64, 300, 512];
const WIDTHS = [320, 321, 375, 480, 519, 520, 600, 719, 720, 800, 900, 1003, 1099, 1100, 1279, 1280, 1281, 1600, 2000];
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

/** All figures for all widths, matrices and densities. */
function* figures(labels: LabelRoom, unit = 1) {
  for (const width of WIDTHS) {
    for (const rows of COUNTS) {
      for (const columns of COUNTS) {
        for (const dpr of DPRS) {
          const figure = layoutFigure({ width, rows, columns, labels, dpr, unit });
          yield { width, rows, columns, dpr, figure, where: `${rows} × ${columns} in ${width} at ${dpr}` };
        }
      }
    }
  }
}

describe.each(Object.entries(LABELS))("labels: %s", (_, labels) => {
  test.each([1, 1.4])("every matrix fits into every width from 320 to 2,000, at %s of the usual size", (unit) => {
    for (const { width, figure, where } of figures(labels, unit)) {
      const frame = Math.min(width, 1280 * unit);
      const beside = figure.mode === "beside" || figure.mode === "wide";
      const used = figure.left + figure.width + figure.overhang + (beside ? 36 * unit + figure.panel : 0);
      expect(used, where).toBeLessThanOrEqual(frame + 1e-6);
      expect(figure.panel, where).toBeLessThanOrEqual(frame);
      expect(figure.left, where).toBeGreaterThan(0);
      expect(figure.width, where).toBeGreaterThan(0);
    }
  });

  test("a picture is at most 720 wide and 640 tall, its cells at most 44", () => {
    for (const { figure, where } of figures(labels)) {
      expect(figure.width, where).toBeLessThanOrEqual(720 + 1e-6);
      expect(figure.height, where).toBeLessThanOrEqual(640 + 1e-6);
      expect(Math.max(figure.cellWidth, figure.cellHeight), where).toBeLessThanOrEqual(MAX_CELL);
    }
  });

  test("cells above 5 px are whole device pixels, all are at least one, and all of them are there", () => {
    for (const { rows, columns, dpr, figure, where } of figures(labels)) {
      const sizes = [figure.cellWidth * dpr, figure.cellHeight * dpr];
      const isWhole = sizes.every((size) => size >= 1 && (size <= 5 * dpr || Math.abs(size - Math.round(size)) < 1e-9));
      const { fold } = figure;
      expect([isWhole, figure.rows, figure.columns], where).toEqual([
        true,
        Math.ceil(rows / fold),
        Math.ceil(columns / fold),
      ]);
      const off = figure.width - figure.columns * figure.cellWidth + figure.height - figure.rows * figure.cellHeight;
      expect(off, where).toBeLessThan(1e-9);
      expect(off, where).toBeGreaterThan(-2 / dpr);
    }
  });

  test("no slanted label reaches out of the room that is kept for it", () => {
    if (labels.keyTicks) return;
    for (const { columns, figure, where } of figures(labels)) {
      const scale = labelFont(figure.cellWidth) / 12;
      for (let index = Math.max(0, columns - 40); index < columns; index++) {
        if (figure.fold > 1 || usesTicks(figure.cellWidth, 1)) break;
        const along = Math.min(labels.keys(index) * scale, (figure.keyRoom - 16) / Math.SQRT1_2);
        const right = (index + 0.5) * figure.cellWidth + along * Math.SQRT1_2 + 3;
        expect(right, `${where}, key ${index}`).toBeLessThanOrEqual(figure.width + figure.overhang + 1);
      }
    }
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
