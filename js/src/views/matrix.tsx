/** The heatmap with its legend below and its panel beside. */

import { effect } from "@preact/signals-core";
import type { Ui } from "../ui";
import { part, px, type View } from "./dom";
import { heatmap } from "./heatmap";
import { legend } from "./legend";
import { panel } from "./panel";

const PANEL_GAP = 36;
const HEADLINE = 30; // of the panel, above its first row
const ROW = 22;
const SUMS = 54;
const LEGEND_LEAST = 420;

export function matrix(ui: Ui): View {
  const node = part("aw-main");
  const column = part("aw-column");
  const picture = heatmap(ui);
  const colours = legend(ui);
  const side = panel(ui);
  column.append(picture.node, colours.node);
  node.append(column, side.node);
  const end = effect(() => {
    const figure = picture.figure.value;
    if (figure === null) return;
    const unit = ui.unit.value;
    // The panel's first row stands level with the picture's first.
    side.node.style.marginTop = px(Math.max(0, figure.top - HEADLINE * unit));
    side.node.style.marginLeft = px(PANEL_GAP * unit);
    side.node.style.width = px(figure.panel);
    colours.node.style.paddingLeft = px(figure.left);
    const least = Math.min(ui.width.value, LEGEND_LEAST * unit);
    const wide = Math.max(figure.left + figure.width + figure.overhang, least);
    colours.node.style.maxWidth = px(wide);
    const beside = figure.mode === "beside" || figure.mode === "wide";
    ui.extent.value = beside ? wide + PANEL_GAP * unit + figure.panel : null;
    // Room for all that a row may show, so that pointing at one moves nothing.
    const { queries, keys } = ui.store.facts.value;
    const rows = Math.min(figure.mode === "narrow" ? 6 : 12, Math.max(queries, keys)) + 1;
    side.node.style.minHeight = px((HEADLINE + ROW * rows + SUMS) * unit);
  });
  return {
    node,
    dispose() {
      end();
      for (const view of [picture, colours, side]) view.dispose();
    },
  };
}
