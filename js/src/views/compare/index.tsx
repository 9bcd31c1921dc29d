/**
 * A, B and their difference next to each other: one selection and one scale for both; below, the changes at the pin.
 */

import { computed, effect, type ReadonlySignal, signal } from "@preact/signals-core";
import { QueryLabels } from "../../components/axis-labels";
import { mount, part, px, type View } from "../../components/dom";
import { watchKeyboard } from "../../components/keyboard";
import { Message } from "../../components/message";
import { ofModel } from "../../components/phrases";
import { createPointer } from "../../components/pointer";
import { PaddedRows, Rings, ZoomHint } from "../../components/rings";
import type { Picture } from "../../contract/decode";
import { PARTS, type Part, type ReadyComparison } from "../../data/comparison";
import type { Bin } from "../../data/matrix";
import { paint } from "../../draw/cells";
import { isRoomFor } from "../../draw/label-room";
import { createPlot, type Plot } from "../../state/plot";
import type { Ui } from "../../state/ui";
import { count, listNumber, signed } from "../../text/format";
import { pictureCanvas } from "../heatmap/heatmap";
import { fade } from "../heatmap/painter";
import { ChangeList } from "./changes";
import { Heads } from "./headings";
import { GAP, isBeside, layoutCompare } from "./layout";
import { Legend } from "./legend";
import { type Grids, gridsOf, type Mappers, mappersOf } from "./mappers";
import { askChange, type PlaceSpace, paddedPicture, placeSpaceOf } from "./place-space";

const LEAST_WIDTH = 640; // of the list, even below small pictures
const NAMES = { a: "picture", b: "picture-b", change: "picture-change" } as const;

/** Return the comparison: three pictures, their legends, and the list of changes. */
export function compare(outer: Ui): View {
  const node = part("aw-compare");
  const comparison = computed(() => {
    const found = outer.store.comparison.value;
    return found !== null && found.error === null ? found : null;
  });
  const ui = placeSpaceOf(outer, comparison);
  const single = signal<Part>("a"); // if only one picture fits
  const plot = createPlot(ui, layoutCompare, false);
  const grids = gridsOf(comparison, plot);
  const mappers = mappersOf(outer, comparison, grids);

  const figure = part("aw-figure");
  const live = part("aw-visually-hidden");
  live.setAttribute("aria-live", "polite");
  const pictures = PARTS.map((name) => comparedPicture(outer, ui, plot, comparison, name));
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
      padded={paddedPicture(outer, comparison.value, "a")}
      plot={plot}
      only={isBeside(ui.mode.value) ? null : single.value}
      comparison={comparison.value}
      grids={grids.value}
      mappers={mappers.value}
    />
  ));
  const list = mount(part("aw-panel aw-changes", "panel"), () => (
    <ChangeList
      ui={ui}
      comparison={comparison.value}
      padding={paddedPicture(outer, comparison.value, "a")?.padding ?? null}
    />
  ));
  const problem = mount(part("aw-problem"), () => <Problem ui={ui} />);
  node.append(figure, legend.node, list.node, problem.node);

  const draw = painter(ui, plot, comparison, grids, mappers, pictures);
  const ends = [
    effect(() => place(ui, plot, figure, pictures, single.value)),
    effect(() => {
      // Without a kernel, what was not saved never arrives.
      const none = comparison.value === null && (ui.store.comparison.value !== null || ui.kernel.away.value);
      for (const view of [figure, legend.node, list.node]) view.hidden = none;
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

  return {
    node,
    dispose() {
      for (const end of ends) end();
      for (const { pointer, views } of pictures) {
        pointer.dispose();
        for (const view of views) view.dispose();
      }
      for (const view of [...parts, legend, list, problem]) view.dispose();
      outer.change.value = null;
    },
  };
}

/** One of the three pictures: its canvas, overlays and pointer. */
function comparedPicture(
  outer: Ui,
  ui: PlaceSpace,
  plot: Plot,
  comparison: ReadonlySignal<ReadyComparison | null>,
  name: Part,
) {
  const frame = part("aw-plot");
  const canvas = pictureCanvas(NAMES[name]);
  const padded = mount(part("aw-over"), () => (
    <PaddedRows ui={ui} plot={plot} of={paddedPicture(outer, comparison.value, name)} />
  ));
  const over = part("aw-over");
  frame.append(canvas, padded.node, over);
  const peakIn = (picture: Picture, bin: Bin) => {
    const of = comparison.value;
    return of === null || of.pictures.a !== picture
      ? Promise.resolve({ query: bin.queries.start, key: bin.keys.start })
      : askChange(outer, of, bin, ui.stop);
  };
  const pointer = createPointer(ui, plot, canvas, { first: name === "a", peakIn });
  watchKeyboard(ui, plot, canvas, pointer);
  const rings = mount(over, () => <Rings ui={ui} plot={plot} />);
  return { name, frame, canvas, over, pointer, views: [padded, rings] };
}

type ComparedPicture = ReturnType<typeof comparedPicture>;

/** Place the pictures: side by side, or only the chosen one. */
function place(
  ui: PlaceSpace,
  plot: Plot,
  figure: HTMLElement,
  pictures: readonly ComparedPicture[],
  single: Part,
): void {
  const at = plot.figure.value;
  if (at === null) return;
  const beside = isBeside(ui.mode.value);
  const step = beside ? at.width + GAP * ui.unit.value : 0;
  const right = at.left + (pictures.length - 1) * step + at.width;
  Object.assign(figure.style, { width: px(right), height: px(at.top + at.height) });
  for (const [index, { name, frame, canvas }] of pictures.entries()) {
    const [left, width, height] = [px(at.left + index * step), px(at.width), px(at.height)];
    Object.assign(frame.style, { left, top: px(at.top), width, height });
    Object.assign(canvas.style, { width, height });
    frame.hidden = !beside && name !== single;
  }
  ui.extent.value = beside ? Math.min(ui.width.value, Math.max(right, LEAST_WIDTH * ui.unit.value)) : null;
}

/** Paint the pictures with the current cells; another comparison, or other colors, fade in. */
function painter(
  ui: PlaceSpace,
  plot: Plot,
  comparison: ReadonlySignal<ReadyComparison | null>,
  grids: ReadonlySignal<Grids | null>,
  mappers: ReadonlySignal<Mappers | null>,
  pictures: readonly ComparedPicture[],
): () => void {
  const { store } = ui;
  let last: readonly unknown[] = [];
  return () => {
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
        numbers:
          plot.numbersFit.value && isRoomFor(rows.cell, columns.cell, mapper.signed, ui.unit.value, plot.measure.value),
        exact: of.pictures[name].exact,
        patch: null,
      });
      frame.toggleAttribute("data-zoomed", plot.viewport.value.k > 1);
    }
  };
}

function nameOf({ store }: Ui, { of, against, queries, keys, numbers }: ReadyComparison, name: Part): string {
  const layers = store.facts.value.layers.length > 1 ? `layer ${of.layer}, ` : "";
  const size = `${count(queries.length)} queries by ${count(keys.length)} keys`;
  const sides = { a: store.sides.value?.[0] ?? "A", b: against };
  const what = name === "change" ? `change from ${sides.a} to ${sides.b}` : sides[name];
  return `Attention ${of.stage}, ${what}, ${layers}head ${of.head}${ofModel(numbers[name === "b" ? 1 : 0])}, ${size}`;
}

/** The pinned pair for screen readers. */
function spoken({ store, pinned, changed }: PlaceSpace): string {
  const now = changed.value;
  if (pinned.value === null || now === null || now.query !== store.query.value || now.key !== store.key.value)
    return "";
  const said = (value: number | null) => (value === null ? "masked" : listNumber(value, now.of.of.stage));
  const [query, key] = [store.queryLabels.value.at(now.query), store.keyLabels.value.at(now.key)];
  const change = now.value === null ? "" : `, change ${signed(now.value, now.of.of.stage)}`;
  return `query ${query.position} ${query.text}, key ${key.position} ${key.text}, A ${said(now.a)}, B ${said(now.b)}${change}`;
}

/** The message when the two could not be compared: Python's sentence. */
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
