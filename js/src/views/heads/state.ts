/** The state of the view of all heads as signals: layout, head under the pointer, metric. */

import { computed, type ReadonlySignal } from "@preact/signals-core";
import { type HeadMetric, type HeadOf, type HeadsLayout, isShown, layoutHeads, type Survey } from "../../data/survey";
import type { Ui } from "../../state/ui";

export interface HeadsState {
  readonly layout: ReadonlySignal<HeadsLayout | null>;
  /** The metric of the bars. */
  readonly metric: ReadonlySignal<HeadMetric | null>;
  /** Places among all heads; -1 for none. */
  readonly pointed: ReadonlySignal<number>;
  readonly selected: ReadonlySignal<number>;
  /** The head that the card describes. */
  readonly described: ReadonlySignal<number>;
  point(place: number): void;
  /** Show one head in the heatmap. */
  open(place: number): void;
}

/** Lay out the shown heads in their order. */
export function arranged(ui: Ui, survey: Survey, metric: HeadMetric | null): HeadsLayout {
  const { store, onlyHeads } = ui;
  const [layer, head, only] = [store.layer.value, store.head.value, onlyHeads.value];
  const like = survey.heads.findIndex((one) => one.layer === layer && one.head === head);
  const shown = only === null ? null : (place: number) => isShown(survey, place, only, metric);
  const width = Math.min(ui.width.value, 1280 * ui.unit.value);
  return layoutHeads(survey, store.order.value, width, ui.unit.value, { like: Math.max(0, like), shown });
}

/** Return the signals of the view of all heads. */
export function headsState(ui: Ui): HeadsState {
  const { store } = ui;
  const metric = computed(() => store.survey.value?.metrics.find(({ name }) => name === store.bar.value) ?? null);
  const layout = computed<HeadsLayout | null>(() => {
    const survey = store.survey.value;
    if (survey === null || ui.width.value === 0) return null;
    return arranged(ui, survey, metric.value);
  });
  const placeOf = ({ layer, head }: HeadOf) =>
    store.survey.value?.heads.findIndex((one) => one.layer === layer && one.head === head) ?? -1;
  const pointed = computed(() => (ui.pointedHead.value === null ? -1 : placeOf(ui.pointedHead.value)));
  const selected = computed(() => placeOf({ layer: store.layer.value, head: store.head.value }));
  return {
    layout,
    metric,
    pointed,
    selected,
    // A card below the pictures is always there, so that nothing moves.
    described: computed(() => (pointed.value < 0 && ui.mode.value === "narrow" ? selected.value : pointed.value)),
    point(place) {
      ui.pointedHead.value = store.survey.value?.heads[place] ?? null;
    },
    open(place) {
      const head = store.survey.value?.heads[place];
      if (head === undefined) return;
      store.select({ layer: head.layer, head: head.head, heads: [head.head] });
      store.show({ view: "heatmap" });
    },
  };
}
