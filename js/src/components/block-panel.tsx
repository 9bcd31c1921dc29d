/** The panel of a block (queries of one segment, keys of another): its measures and its strongest cells. */

import type { ReadonlySignal } from "@preact/signals-core";
import type { Side } from "../contract/values";
import { segmentStyle } from "../draw/segment-colors";
import {
  axisSegments,
  type BlockCells,
  type BlockReading,
  blockNumber,
  blockReading,
  lookAt,
  type PinnedBlock,
  pinnedBlock,
  pinnedSegment,
  segmentAt,
} from "../state/segment-axes";
import type { Ui } from "../state/ui";
import { count, listNumber } from "../text/format";
import { Token } from "./dom";
import { isNamed, sentence } from "./phrases";

/** Whether the panel is about segments: one is pinned, and no cell is. */
export function showsBlock({ store }: Ui): boolean {
  if (store.view.value !== "heatmap" || store.query.value !== null || store.key.value !== null) return false;
  return pinnedSegment(store, "query") !== null || pinnedSegment(store, "key") !== null;
}

/** Show the pinned block, or what to pin next. */
export function BlockPanel({ ui, cells }: { ui: Ui; cells: ReadonlySignal<BlockCells> }) {
  const block = pinnedBlock(ui.store);
  if (block === null) return <OneSide ui={ui} />;
  return (
    <div class="aw-block">
      <div class="aw-panel-head">
        <span class="aw-pill">{block.query.name}</span>
        <span>to</span>
        <span class="aw-pill">{block.key.name}</span>
      </div>
      <Readings ui={ui} reading={blockReading(ui.store)} />
      <Cells ui={ui} cells={cells.value} />
      {hasView(ui, block) ? (
        <p class="aw-prompt">Press Esc to go back to the whole head.</p>
      ) : (
        <button type="button" class="aw-action" onClick={() => lookAt(ui, block)}>
          Click again to see its cells.
        </button>
      )}
    </div>
  );
}

/** Whether the view lies inside the block. */
function hasView({ window }: Ui, { query, key }: PinnedBlock): boolean {
  const seen = window.value;
  if (seen === null) return false;
  const meets = (a: { start: number; stop: number }, b: { start: number; stop: number }) =>
    a.start < b.stop && b.start < a.stop;
  return (
    Math.min(seen.cellWidth, seen.cellHeight) >= 12 &&
    query.spans.some((span) => meets(span, seen.queries)) &&
    key.spans.some((span) => meets(span, seen.keys))
  );
}

function OneSide({ ui }: { ui: Ui }) {
  const [query, key] = [pinnedSegment(ui.store, "query"), pinnedSegment(ui.store, "key")];
  return (
    <>
      <div class="aw-panel-head">
        <span class="aw-pill">{(query ?? key)?.name}</span>
        <span>{query !== null ? "as queries" : "as keys"}</span>
      </div>
      <p class="aw-prompt">
        {query !== null
          ? "Click a segment above the picture to see what these queries give to it."
          : "Click a segment left of the picture to see what its queries give to these keys."}
      </p>
    </>
  );
}

function Readings({ ui, reading }: { ui: Ui; reading: BlockReading | null }) {
  const error = ui.store.mass.value?.error ?? null;
  if (error !== null) return <p class="aw-prompt">{sentence(error)}</p>;
  if (reading === null) return <div class="aw-block-readings" />;
  const { mass, perToken, lift, aside, looked, of, exact } = reading;
  const number = (value: number) => blockNumber(value, reading, (one) => listNumber(one, "weights"));
  return (
    <>
      <div class="aw-block-readings">
        <div title="The mean weight that these queries give to these keys, as a share of all that is not excluded">
          <span>Mass</span>
          <b>{number(mass)}</b>
        </div>
        <div title="Mass divided by the number of keys">
          <span>Per token</span>
          <b>{number(perToken)}</b>
        </div>
        <div title="Mass divided by the mass of even attention">
          <span>Lift</span>
          <b>{blockNumber(lift, reading, (one) => `×${one.toFixed(2)}`)}</b>
        </div>
      </div>
      {aside.names.length > 0 && (
        <p class="aw-block-note">
          excluded: {aside.names.join(", ")} {listNumber(aside.share, "weights")}
        </p>
      )}
      {looked < of && (
        <p class="aw-block-note">
          of {count(looked)} of {count(of)} queries
        </p>
      )}
      {!exact && (
        <p class="aw-block-note">rounded to 1/125 because there are many segments; the cells below are exact</p>
      )}
    </>
  );
}

function Cells({ ui, cells }: { ui: Ui; cells: BlockCells }) {
  if (cells !== null && "problem" in cells) return <p class="aw-prompt">{sentence(cells.problem)}</p>;
  const { queryLabels, keyLabels } = ui.store;
  const rows = cells === null ? [] : [...cells.queries].map((query, at) => [query, cells.keys[at]!, cells.values[at]!]);
  return (
    <>
      <h4 class="aw-block-title">Strongest in this block</h4>
      <ol class="aw-block-cells" aria-label="Strongest in this block">
        {(rows as [number, number, number][]).map(([query, key, weight]) => (
          <li key={`${query} ${key}`}>
            <button type="button" class="aw-block-cell" onClick={() => pinCell(ui, query, key)}>
              <SegmentMark ui={ui} side="query" position={query} />
              <Place labels={queryLabels.value} position={query} />
              <i>→</i>
              <SegmentMark ui={ui} side="key" position={key} />
              <Place labels={keyLabels.value} position={key} />
              <span class="aw-number">{listNumber(weight, "weights")}</span>
            </button>
          </li>
        ))}
      </ol>
      {cells !== null && rows.length === 0 && <p class="aw-prompt">No query here may attend to any of these keys.</p>}
    </>
  );
}

/** Pin a cell, and bring it into view if the picture is zoomed. */
function pinCell({ store, window, destination }: Ui, query: number, key: number): void {
  store.select({ query, key });
  if (window.value !== null) destination.value = { query, key, close: false };
}

function Place({ labels, position }: { labels: Ui["store"]["keyLabels"]["value"]; position: number }) {
  return (
    <span class="aw-token" title={labels.at(position).text}>
      <Token labels={labels} index={position} subscript={false} />
      {isNamed(labels, position) && <i> {count(position)}</i>}
    </span>
  );
}

/** A short margin in the color of a position's segment; nothing without segments. */
export function SegmentMark({ ui, side, position }: { ui: Ui; side: Side; position: number }) {
  const found = segmentAt(axisSegments(ui.store, side), position);
  if (found === null) return null;
  const { node, slot } = found;
  return <i class="aw-segment-mark" title={node.name} style={{ background: segmentStyle(slot, ui.theme.value) }} />;
}
