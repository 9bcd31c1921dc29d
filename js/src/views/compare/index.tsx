/** A, B and their difference beside one another: one selection, one scale for both; below, what changes for the pin. */

import { computed, effect, type ReadonlySignal, signal } from "@preact/signals-core";
import { QueryLabels } from "../../components/axis-labels";
import { mount, part, px, rove, Token, type View } from "../../components/dom";
import { watchKeyboard } from "../../components/keyboard";
import { countKinds, KindList, type Kinds, Ramp, ticksOf } from "../../components/legend";
import { Message } from "../../components/message";
import { isNamed } from "../../components/phrases";
import { createPointer } from "../../components/pointer";
import { Rings, ZoomHint } from "../../components/rings";
import type { Grid, Picture } from "../../contract/decode";
import { isSigned, legendOf } from "../../contract/stages";
import { mergedGrid, PARTS, type Part, type Places, type ReadyComparison, sharedRange } from "../../data/comparison";
import type { Bin } from "../../data/matrix";
import { foldGrid, paint } from "../../draw/cells";
import { type ColorMapper, makeColorMapper } from "../../draw/color-mapper";
import { cellOf } from "../../geometry/cell-grid";
import { createPlot, type Plot } from "../../state/plot";
import type { Store } from "../../state/store";
import type { Ui } from "../../state/ui";
import { count, listNumber, signed } from "../../text/format";
import { fade, pictureCanvas } from "../heatmap/heatmap";
import { ChangeList } from "./changes";
import { GAP, isBeside, layoutCompare } from "./layout";
import { askChange, type PlaceSpace, placeSpaceOf } from "./place-space";

const LEAST_WIDTH = 640; // of the list, however small the pictures are
const NAMES = { a: "picture", b: "picture-b", change: "picture-change" } as const;
const LETTERS = { a: "A", b: "B", change: "B − A" } as const;

export function compare(outer: Ui): View {
  const node = part("aw-compare");
  const comparison = computed(() => {
    const found = outer.store.comparison.value;
    return found !== null && found.error === null ? found : null;
  });
  const ui = placeSpaceOf(outer, comparison);
  const { store, stop } = ui;
  const single = signal<Part>("a"); // where only one picture has room
  const plot = createPlot(ui, layoutCompare, false);
  const grids = gridsOf(comparison, plot);
  const mappers = mappersOf(outer, comparison, grids);

  const figure = part("aw-figure");
  const live = part("aw-visually-hidden");
  live.setAttribute("aria-live", "polite");
  const askPeak = (picture: Picture, bin: Bin) => {
    const of = comparison.value;
    return of === null || of.pictures.a !== picture
      ? Promise.resolve({ query: bin.queries.start, key: bin.keys.start })
      : askChange(outer, of, bin, stop);
  };
  const pictures = PARTS.map((name) => {
    const frame = part("aw-plot");
    const canvas = pictureCanvas(NAMES[name]);
    const over = part("aw-over");
    frame.append(canvas, over);
    const pointer = createPointer(ui, plot, canvas, { first: name === "a", peakIn: askPeak });
    watchKeyboard(ui, plot, canvas, pointer);
    const rings = mount(over, () => <Rings ui={ui} plot={plot} />);
    return { name, frame, canvas, over, pointer, rings };
  });
  const parts = [
    mount(part("aw-labels"), () => <QueryLabels ui={ui} plot={plot} />),
    mount(part("aw-compare-heads"), () => <Heads ui={ui} plot={plot} single={single} comparison={comparison.value} />),
    mount(part("aw-floating"), () =>
      pictures.some(({ pointer }) => pointer.hint.value) ? <ZoomHint plot={plot} /> : null,
    ),
  ];
  figure.append(...pictures.map(({ frame }) => frame), ...parts.map((view) => view.node), live);
  const legend = mount(part("aw-legend aw-compare-legends", "legend"), () => (
    <Legend
      ui={ui}
      plot={plot}
      only={isBeside(ui.mode.value) ? null : single.value}
      comparison={comparison.value}
      grids={grids.value}
      mappers={mappers.value}
    />
  ));
  const list = mount(part("aw-panel aw-changes", "panel"), () => <ChangeList ui={ui} comparison={comparison.value} />);
  const problem = mount(part("aw-problem"), () => <Problem ui={ui} />);
  node.append(figure, legend.node, list.node, problem.node);

  const lefts = computed(() => {
    const at = plot.figure.value;
    if (at === null) return [];
    const step = isBeside(ui.mode.value) ? at.width + GAP * ui.unit.value : 0;
    return PARTS.map((_, index) => at.left + index * step);
  });
  let last: readonly unknown[] = [];
  const ends = [
    effect(() => {
      const at = plot.figure.value;
      if (at === null) return;
      const right = lefts.value.at(-1)! + at.width;
      const beside = isBeside(ui.mode.value);
      Object.assign(figure.style, { width: px(right), height: px(at.top + at.height) });
      for (const [index, { name, frame, canvas }] of pictures.entries()) {
        const [left, width, height] = [px(lefts.value[index]!), px(at.width), px(at.height)];
        Object.assign(frame.style, { left, top: px(at.top), width, height });
        Object.assign(canvas.style, { width, height });
        frame.hidden = !beside && name !== single.value;
      }
      ui.extent.value = beside ? Math.min(ui.width.value, Math.max(right, LEAST_WIDTH * ui.unit.value)) : null;
    }),
    effect(() => {
      const failed = store.comparison.value?.error != null;
      for (const view of [figure, legend.node, list.node]) view.hidden = failed;
    }),
    effect(() => draw()),
    effect(() => {
      const of = comparison.value;
      if (of === null) return;
      for (const { name, canvas } of pictures) canvas.setAttribute("aria-label", nameOf(outer, of, name));
    }),
    effect(() => {
      outer.change.value = ui.changed.value;
      live.textContent = spoken(ui);
    }),
  ];

  function draw(): void {
    const at = plot.figure.value;
    const cellGrid = plot.cellGrid.value;
    const of = comparison.value;
    const drawn = grids.value;
    const both = ui.paints.value;
    if (at === null || cellGrid === null || of === null || drawn === null || both === null) return;
    const now = [of, ui.paints.value, store.color_scale.value, store.color_range.value];
    const another = last.length > 0 && now.some((value, index) => value !== last[index]);
    last = now;
    const { rows, columns } = cellGrid;
    for (const { name, frame, canvas, over } of pictures) {
      const mapper = mappers.value?.[name];
      if (mapper === undefined) continue;
      if (another && !frame.hidden) fade(canvas, over);
      paint(canvas, {
        grid: drawn[name],
        mapper,
        paints: mapper.signed ? both.diverging : both.sequential,
        stage: of.of.stage,
        cellWidth: columns.cell,
        cellHeight: rows.cell,
        viewport: { k: 1, x: columns.offset, y: rows.offset },
        width: at.width,
        height: at.height,
        dpr: ui.dpr.value,
        unit: ui.unit.value,
        font: ui.font.value,
        numbers: plot.numbersFit.value,
        exact: of.pictures[name].exact,
        patch: null,
      });
      frame.toggleAttribute("data-zoomed", plot.viewport.value.k > 1);
    }
  }

  return {
    node,
    dispose() {
      for (const end of ends) end();
      for (const { pointer, rings } of pictures) {
        pointer.dispose();
        rings.dispose();
      }
      for (const view of [...parts, legend, list, problem]) view.dispose();
      outer.change.value = null;
    },
  };
}

// --- what is drawn -------------------------------------------------------------------------------------------------------------

type Grids = { readonly [K in Part]: Grid };
type Mappers = { readonly [K in Part]: ColorMapper };

/** The cells that are drawn: folded where the screen has fewer pixels, changes by their size. */
function gridsOf(comparison: ReadonlySignal<ReadyComparison | null>, plot: Plot): ReadonlySignal<Grids | null> {
  return computed(() => {
    const of = comparison.value;
    const scale = plot.scale.value;
    if (of === null || scale === null) return null;
    const { a, b, change } = of.pictures;
    const [down, across] = [scale.queries / a.queryBin, scale.keys / a.keyBin];
    return {
      a: foldGrid(a.grid!, down, across),
      b: foldGrid(b.grid!, down, across),
      change: foldGrid(change.grid!, down, across, Math.abs),
    };
  });
}

/** One scale for A and B, and one of its own, symmetric, for their difference. */
function mappersOf(
  { store }: Ui,
  comparison: ReadonlySignal<ReadyComparison | null>,
  grids: ReadonlySignal<Grids | null>,
): ReadonlySignal<Mappers | null> {
  return computed(() => {
    const of = comparison.value;
    const drawn = grids.value;
    if (of === null || drawn === null) return null;
    const { a, b, change } = of.pictures;
    const range = store.color_range.value;
    const together = range === "row" ? mergedGrid(drawn.a, drawn.b) : drawn.a;
    const sides = makeColorMapper(
      { ...a, ...sharedRange(a, b) },
      together,
      isSigned(of.of.stage),
      store.color_scale.value,
      range,
    );
    const own = Array.isArray(range) ? "head" : range; // a range of one's own is one of the numbers, not of changes
    return { a: sides, b: sides, change: makeColorMapper(change, drawn.change, true, "linear", own) };
  });
}

function nameOf({ store }: Ui, { of, against, queries, keys }: ReadyComparison, name: Part): string {
  const layers = store.facts.value.layers.length > 1 ? `layer ${of.layer}, ` : "";
  const size = `${count(queries.length)} queries by ${count(keys.length)} keys`;
  const sides = { a: store.sides.value?.[0] ?? "A", b: against };
  const what = name === "change" ? `change from ${sides.a} to ${sides.b}` : sides[name];
  return `Attention ${of.stage}, ${what}, ${layers}head ${of.head}, ${size}`;
}

/** The pinned pair for those who hear it. */
function spoken({ store, pinned, changed }: PlaceSpace): string {
  const now = changed.value;
  if (pinned.value === null || now === null || now.query !== store.query.value || now.key !== store.key.value)
    return "";
  const said = (value: number | null) => (value === null ? "masked" : listNumber(value, now.of.of.stage));
  const [query, key] = [store.queryLabels.value.at(now.query), store.keyLabels.value.at(now.key)];
  const change = now.value === null ? "" : `, change ${signed(now.value, now.of.of.stage)}`;
  return `query ${query.position} ${query.text}, key ${key.position} ${key.text}, A ${said(now.a)}, B ${said(now.b)}${change}`;
}

/** The names above the pictures, or the choice of one, and the pinned or hovered key above each. */
function Heads({
  ui,
  plot,
  single,
  comparison,
}: {
  ui: Ui;
  plot: Plot;
  single: { value: Part };
  comparison: ReadyComparison | null;
}) {
  const at = plot.figure.value;
  if (at === null || comparison === null) return null;
  const unit = ui.unit.value;
  const beside = isBeside(ui.mode.value);
  const names = { a: ui.store.sides.value?.[0] ?? "A", b: comparison.against, change: "B − A" };
  const step = at.width + GAP * unit;
  const lettered = names.a !== "A" || names.b !== "B";
  return (
    <>
      {!beside && (
        <div class="aw-compare-switch" role="radiogroup" aria-label="Picture">
          {PARTS.map((name, index) => (
            <button
              type="button"
              role="radio"
              key={name}
              aria-checked={single.value === name}
              tabIndex={single.value === name ? 0 : -1}
              onClick={() => {
                single.value = name;
              }}
              onKeyDown={(event) =>
                rove(event, index, PARTS.length, (to) => {
                  single.value = PARTS[to]!;
                })
              }
            >
              {LETTERS[name]}
            </button>
          ))}
        </div>
      )}
      {PARTS.map((name, index) => {
        if (!beside && name !== single.value) return null;
        const left = beside ? at.left + index * step : at.left;
        return (
          <div
            class="aw-compare-head"
            key={name}
            style={{ left: px(left), width: px(at.width), top: px(beside ? 0 : 32 * unit) }}
          >
            <b title={names[name]}>
              <bdi>{names[name]}</bdi>
            </b>
            {beside && <span>{name === "change" ? "difference" : lettered ? LETTERS[name] : ""}</span>}
          </div>
        );
      })}
      {PARTS.map((name, index) =>
        beside || name === single.value ? (
          <KeyPins key={name} ui={ui} plot={plot} left={beside ? at.left + index * step : at.left} />
        ) : null,
      )}
    </>
  );
}

const PILL = 6.5; // pixels a character, about: only to keep pills inside

function KeyPins({ ui, plot, left }: { ui: Ui; plot: Plot; left: number }) {
  const { store } = ui;
  const at = plot.figure.value;
  const cellGrid = plot.cellGrid.value;
  if (at === null || cellGrid === null) return null;
  const unit = ui.unit.value;
  const pinned = store.key.value;
  const hover = ui.hover.value;
  const pointed =
    hover === null
      ? null
      : "bin" in hover
        ? hover.bin.keys.start
        : hover.target.side === "key"
          ? hover.target.index
          : null;
  const labels = store.keyLabels.value;
  const label = (index: number, pill: boolean) => {
    const box = plot.box(store.query.value ?? 0, index);
    if (box === null || box.x + box.width < 0 || box.x > at.width) return null;
    const named = isNamed(labels, index);
    const { text, subscript } = labels.at(index);
    const letters = Math.min(18, text.length + (named ? 0 : 4)) + subscript.length;
    const half = (letters * PILL * unit) / 2 + 8 * unit;
    const middle = Math.max(Math.min(half, at.width / 2), Math.min(box.x + box.width / 2, at.width - half));
    const style = { left: px(left + middle), top: px(at.top - 23 * unit), maxWidth: px(at.width) };
    return (
      <button
        type="button"
        class={pill ? "aw-label aw-key-pin aw-pill" : "aw-label aw-key-pin"}
        key={`${pill} ${index}`}
        style={style}
        title={text}
        tabIndex={pill ? 0 : -1}
        onClick={() => store.select({ key: null })}
      >
        {named ? <Token labels={labels} index={index} subscript /> : `key ${text}`}
      </button>
    );
  };
  const apart =
    pinned === null ||
    pointed === null ||
    cellGrid.columns.cell * Math.abs(cellOf(cellGrid.columns, pinned) - cellOf(cellGrid.columns, pointed)) > 90 * unit;
  return (
    <>
      {pinned !== null && label(pinned, true)}
      {pointed !== null && pointed !== pinned && apart && label(pointed, false)}
    </>
  );
}

// --- the legend ------------------------------------------------------------------------------------------------------------------

interface LegendProps {
  readonly ui: Ui;
  /** The one picture that is shown, if it is one. */
  readonly only: Part | null;
  readonly plot: Plot;
  readonly comparison: ReadyComparison | null;
  readonly grids: Grids | null;
  readonly mappers: Mappers | null;
}

function Legend({ ui, plot, only, comparison, grids, mappers }: LegendProps) {
  const { store } = ui;
  const at = plot.figure.value;
  const both = ui.paints.value;
  if (at === null || comparison === null || grids === null || mappers === null || both === null) return null;
  const { stage, pool } = comparison.of;
  const beside = isBeside(ui.mode.value);
  const columns = {
    paddingLeft: px(at.left),
    gridTemplateColumns: `repeat(3, ${px(at.width)})`,
    columnGap: px(GAP * ui.unit.value),
  };
  const scale = plot.scale.value;
  const pooled = scale !== null && scale.queries * scale.keys > 1;
  const cells = (n: number) => `${count(n)} ${pooled ? "pooled " : ""}${n === 1 ? "cell" : "cells"}`;
  const kinds = sumOf(countKinds(grids.a, mappers.a), countKinds(grids.b, mappers.b));
  const sides = mappers.a.signed ? both.diverging : both.sequential;
  const every = comparison.pictures.a.sampled?.every ?? 1;
  const bins = pooled && `${count(every > 1 ? 1 : scale.queries)} × ${count(scale.keys)} cells`;
  const range = store.color_range.value;
  const changes = comparison.pictures.change.low !== 0 || comparison.pictures.change.high !== 0;
  const left = onlyText(comparison, store);
  return (
    <div class="aw-compare-legend" data-beside={beside || undefined} style={beside ? columns : {}}>
      {only !== "change" && (
        <div class="aw-compare-key">
          <div class="aw-ramp">
            <span>
              {legendOf(stage)}
              {mappers.a.log ? ", log" : ""}
            </span>
            <Ramp paints={sides} ticks={ticksOf(mappers.a, stage)} mark={null} />
          </div>
        </div>
      )}
      <div class="aw-compare-key aw-kinds">
        <KindList {...{ kinds, stage, cells }} mapper={mappers.a} paints={sides} />
        {range === "row" && <span>each row on its own range, the same in A and B</span>}
        {pooled && (
          <span>
            A, B: the {pool === "max" ? "maximum" : "mean"} of {bins}
          </span>
        )}
        {every > 1 && <span>1 of {count(every)} rows</span>}
        {left !== null && <span>{left}</span>}
      </div>
      {(only === null || only === "change") && (
        <div class="aw-compare-key">
          <div class="aw-ramp">
            <span>Change</span>
            {changes ? (
              <Ramp paints={both.diverging} ticks={ticksOf(mappers.change, stage)} mark={null} />
            ) : (
              <span>none</span>
            )}
          </div>
          {pooled && <div>the largest of {bins}</div>}
        </div>
      )}
    </div>
  );
}

function sumOf(one: Kinds, other: Kinds): Kinds {
  const names = Object.keys(one) as (keyof Kinds)[];
  return Object.fromEntries(names.map((name) => [name, one[name] + other[name]])) as unknown as Kinds;
}

/** What is not compared, or not labelled: "left out: 2 queries of A, 3 of B". */
function onlyText({ queries, keys }: ReadyComparison, { facts }: Store): string | null {
  const some = (n: number, [one, many]: readonly [string, string], side: string) =>
    n > 0 ? [`${count(n)} ${n === 1 ? one : many} of ${side}`] : [];
  const text = (what: readonly [string, string], { only: [a, b] }: Places) => [
    ...some(a, what, "A"),
    ...some(b, what, "B"),
  ];
  const same = facts.value.queries === facts.value.keys && `${queries.only}` === `${keys.only}`;
  const said = same
    ? text(["token", "tokens"], queries)
    : [...text(["query", "queries"], queries), ...text(["key", "keys"], keys)];
  if (said.length > 0) return `without a partner, left out: ${said.join(", ")}`;
  const other = Math.max(queries.differ, keys.differ);
  return other === 0 ? null : `labels are A's: B has ${count(other)} other${other === 1 ? "" : "s"}`;
}

/** These two could not be compared: Python's own sentence. */
function Problem({ ui }: { ui: Ui }) {
  const found = ui.store.comparison.value;
  if (found === null || found.error === null) return null;
  return (
    <div class="aw-notice">
      <Message
        sign="error"
        title="These could not be compared"
        text={found.error}
        actions={[{ name: "Try again", run: () => void ui.kernel.request("retry").catch(() => {}) }]}
      />
    </div>
  );
}
