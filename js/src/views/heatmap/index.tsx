/** The heatmap with its legend below and its panel on the right; while zoomed, the minimap above the panel. */

import { computed, effect } from "@preact/signals-core";
import { part, px, type View } from "../../components/dom";
import { legend } from "../../components/legend";
import { minimap, windowOf } from "../../components/minimap";
import { panel } from "../../components/ranking-panel";
import type { Ui } from "../../state/ui";
import { heatmap } from "./heatmap";

const PANEL_GAP = 36;
const HEADLINE = 30; // of the panel, above its first row
const ROW = 22;
const SUMS = 54;
const LEGEND_LEAST = 420;

/** Return the heatmap view: the matrix, its legend, the ranked list and, for a long head, a minimap. */
export function heatmapView(ui: Ui): View {
  const node = part("aw-main");
  const column = part("aw-column");
  const marked = ui.marked.peek();
  if (marked !== null) ui.destination.value = { query: null, key: null, close: false, block: marked };
  const picture = heatmap(ui);
  const colors = legend(ui, picture.plot);
  const beside = part("aw-beside");
  const map = minimap(ui);
  const side = panel(ui);
  column.append(picture.node, colors.node, picture.legend);
  beside.append(map.node, side.node);
  node.append(column, beside);
  const zoomed = computed(() => windowOf(ui) !== null);
  const ends = [
    effect(() => {
      const figure = picture.plot.figure.value;
      if (figure === null) return;
      const unit = ui.unit.value;
      beside.style.marginLeft = px(PANEL_GAP * unit);
      beside.style.width = px(figure.panel);
      const left = px(figure.left - (figure.inset ?? 0)); // stays when tokens appear
      for (const node of [colors.node, picture.legend]) node.style.paddingLeft = left;
      const least = Math.min(ui.width.value, LEGEND_LEAST * unit);
      const wide = Math.max(figure.left + figure.width + figure.overhang, least);
      colors.node.style.maxWidth = px(wide);
      const isBeside = figure.mode === "beside" || figure.mode === "wide";
      ui.extent.value = isBeside ? wide + PANEL_GAP * unit + figure.panel : null;
      // Room for any row's list, so that pointing at one moves nothing.
      const { queries, keys, has_sinks } = ui.store.facts.value;
      const rows = Math.min(figure.mode === "narrow" ? 6 : 12, Math.max(queries, keys)) + (has_sinks ? 2 : 1);
      side.node.style.minHeight = px((HEADLINE + ROW * rows + SUMS) * unit);
    }),
    effect(() => {
      const figure = picture.plot.figure.value;
      if (figure === null) return;
      // The panel's first row is level with the picture's first; the minimap, with its upper edge.
      beside.style.marginTop = px(zoomed.value ? figure.top : Math.max(0, figure.top - HEADLINE * ui.unit.value));
    }),
  ];
  return {
    node,
    dispose() {
      for (const end of ends) end();
      for (const view of [picture, colors, map, side]) view.dispose();
    },
  };
}
