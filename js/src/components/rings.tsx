/** Overlays of the picture: rings and rules for pin and pointer, the readout next to the pointer, the zoom hint. */

import { BLOCKED, type Picture } from "../contract/decode";
import type { Bin } from "../data/matrix";
import { cellOf, cellsInView, startOf } from "../geometry/cell-grid";
import { paddedRows } from "../state/padding";
import type { Box, Plot } from "../state/plot";
import type { Ui } from "../state/ui";
import { count } from "../text/format";
import { px, Token } from "./dom";
import { numberOf, rangeOf } from "./phrases";

const LEAST_RING = 6;
const RULES_APART_FROM = 6; // below this height, the two rules of a row become one line

/** Draw rings around pinned and hovered cells, and rules along the pinned row and column. */
export function Rings({ ui, plot }: { ui: Ui; plot: Plot }) {
  const { store } = ui;
  const { box } = plot;
  const [query, key] = [store.query.value, store.key.value];
  const further = store.shownPins.value.slice(0, -1).filter(([q, k]) => q !== null && k !== null) as [number, number][];
  const at = ui.hover.value;
  const hovered = at !== null && "bin" in at ? box(at.bin.queries.start, at.bin.keys.start) : null;
  const pinned = query !== null && key !== null ? box(query, key) : null;
  const line = box(query ?? 0, key ?? 0);
  if (line === null) return null;
  const overPin = pinned !== null && hovered !== null && pinned.x === hovered.x && pinned.y === hovered.y;
  return (
    <>
      {query !== null && <Rules from={line.y} length={line.height} across />}
      {key !== null && <Rules from={line.x} length={line.width} />}
      {hovered !== null && !overPin && <Ring box={hovered} key="hover" />}
      {further.map(([q, k]) => (
        <Ring box={box(q, k) ?? line} further key={`${q} ${k}`} />
      ))}
      {pinned !== null && <Ring box={pinned} pinned key="pin" />}
    </>
  );
}

function Ring({ box, pinned, further }: { box: Box; pinned?: boolean; further?: boolean }) {
  const width = Math.max(LEAST_RING, box.width);
  const height = Math.max(LEAST_RING, box.height);
  const x = box.x + (box.width - width) / 2;
  const y = box.y + (box.height - height) / 2;
  return (
    <i
      class="aw-ring"
      data-pinned={pinned || undefined}
      data-further={further || undefined}
      data-small={box.width < LEAST_RING || undefined}
      style={{ width: px(width), height: px(height), transform: `translate(${x}px, ${y}px)` }}
    />
  );
}

/** Lines along both edges of a row or column. */
function Rules({ from, length, across }: { from: number; length: number; across?: boolean }) {
  const edges = length < RULES_APART_FROM ? [from + length / 2 - 0.5] : [from - 1, from + length];
  return (
    <>
      {edges.map((edge) => (
        <i
          class="aw-rule"
          key={edge}
          style={
            across
              ? { left: 0, right: 0, height: "1px", top: px(edge) }
              : { top: 0, bottom: 0, width: "1px", left: px(edge) }
          }
        />
      ))}
    </>
  );
}

/** Shown once: "Ctrl + scroll to zoom". */
export function ZoomHint({ plot }: { plot: Plot }) {
  const figure = plot.figure.value;
  if (figure === null) return null;
  const key = /Mac|iPhone|iPad/.test(navigator.platform) ? "⌘" : "Ctrl";
  return (
    <div class="aw-hint" style={{ left: px(figure.left + figure.width / 2), top: px(figure.top + figure.height / 2) }}>
      {key} + scroll to zoom
    </div>
  );
}

/** Draw a veil over rows of padding, of this picture or another. */
export function PaddedRows({ ui, plot, of }: { ui: Ui; plot: Plot; of?: Picture | null }) {
  const picture = of === undefined ? ui.store.picture.value : of;
  const cellGrid = plot.cellGrid.value;
  if (picture === null || cellGrid === null) return null;
  const { rows } = cellGrid;
  const dpr = ui.dpr.value;
  return (
    <>
      {paddedRows(ui.store, picture, cellsInView(rows), rows.bin).map(({ start, stop }) => {
        const top = startOf(rows, start, dpr);
        return <i class="aw-padded" key={start} style={{ top: px(top), height: px(startOf(rows, stop, dpr) - top) }} />;
      })}
    </>
  );
}

/** The button in the corner from a part of the picture back to the whole. */
export function WholeHead({ plot, reset }: { plot: Plot; reset: () => void }) {
  const figure = plot.figure.value;
  if (figure === null || plot.viewport.value.k <= 1) return null;
  return (
    <button
      type="button"
      class="aw-whole-head"
      title="Show the whole head (double-click, or key 0)"
      style={{ left: px(figure.left + figure.width), top: px(figure.top) }}
      onClick={reset}
    >
      Whole head
    </button>
  );
}

/** Whether sampled rows are about to become exact. */
function computing({ store, kernel }: Ui): boolean {
  return !store.facts.value.saved && !kernel.away.value && store.progress.value?.state !== "stopped";
}

/** Draw the lower edge of the exact rows while the others are sampled. */
export function ExactTo({ ui, plot }: { ui: Ui; plot: Plot }) {
  const picture = ui.store.picture.value;
  const cellGrid = plot.cellGrid.value;
  if (picture?.sampled == null || cellGrid === null || cellGrid.levels !== null) return null;
  const { exact, every } = picture.sampled;
  const { rows } = cellGrid;
  const place = exact * picture.queryBin;
  if (place >= picture.queries) return null;
  const at = startOf(rows, cellOf(rows, place), ui.dpr.value);
  const unit = ui.unit.value;
  if (at < 0 || at > rows.size) return null;
  const low = at + 20 * unit > rows.size; // no room below the line
  return (
    <>
      {exact > 0 && <i class="aw-exact-line" style={{ top: px(at - 1) }} />}
      {exact > 0 && at >= 20 * unit && (
        <span class="aw-exact-note" style={{ top: px(at - 20 * unit) }}>
          exact to here
        </span>
      )}
      {!low && (
        <span class="aw-exact-note" style={{ top: px(at + 3 * unit) }}>
          {exact > 0 ? "below: " : ""}1 of {count(every)} rows
        </span>
      )}
    </>
  );
}

/** Show the number next to the pointer, if cells have none. */
export function Readout({ ui, plot }: { ui: Ui; plot: Plot }) {
  const figure = plot.figure.value;
  const picture = ui.store.picture.value;
  const at = ui.hover.value;
  if (figure === null || picture === null || plot.numbersFit.value || at === null || !("bin" in at)) return null;
  const box = plot.box(at.bin.queries.start, at.bin.keys.start);
  if (box === null) return null;
  const away = 14 * ui.unit.value;
  const [before, after] = [figure.left + box.x - away, figure.left + box.x + box.width + away];
  const above = box.y + box.height / 2 > figure.height / 2;
  const room = Math.min(ui.width.value, 1280 * ui.unit.value) - 8;
  const left = before > room - after; // on the side with more room; never outside the widget
  return (
    <div
      class="aw-readout"
      style={{
        left: px(left ? before : after),
        top: px(figure.top + (above ? box.y - away : box.y + box.height + away)),
        maxWidth: px(Math.min(260 * ui.unit.value, left ? before : room - after)),
        transform: `translate(${left ? "-100%" : "0"}, ${above ? "-100%" : "0"})`,
      }}
    >
      <Reading ui={ui} bin={at.bin} />
    </div>
  );
}

function Reading({ ui, bin }: { ui: Ui; bin: Bin }) {
  const { store } = ui;
  const picture = store.picture.value;
  const reading = ui.hovered.value;
  const { queries, keys } = bin;
  const known =
    reading !== null && reading.bin.queries.start === queries.start && reading.bin.keys.start === keys.start;
  const stage = picture?.of.stage ?? "weights";
  const unknown = store.facts.value.saved ? "" : "…"; // a file has the number at once or never
  const number = !known ? unknown : reading.kind === BLOCKED ? "masked" : numberOf(reading.value, reading.kind, stage);
  if (bin.standsFor !== undefined) {
    const several = keys.stop - keys.start > 1;
    return (
      <>
        <b>{number}</b> row {count(queries.start)} stands for {count(bin.standsFor)}
        <br />
        {several ? "keys" : "key"} {rangeOf(keys)}
        {several && known && reading.kind !== BLOCKED ? ", maximum" : ""}
        {computing(ui) ? "; computing the rest" : ""}
      </>
    );
  }
  if (queries.stop - queries.start > 1 || keys.stop - keys.start > 1) {
    return (
      <>
        <b>{number}</b>{" "}
        {known && reading.kind !== BLOCKED ? `maximum, at ${count(reading.query)} → ${count(reading.key)}` : ""}
        <br />
        queries {rangeOf(queries)}, keys {rangeOf(keys)}
      </>
    );
  }
  return (
    <>
      <b>{number}</b> <Token labels={store.queryLabels.value} index={queries.start} subscript /> →{" "}
      <Token labels={store.keyLabels.value} index={keys.start} subscript />
    </>
  );
}
