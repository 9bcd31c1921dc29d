/** The drawn cells of a comparison and their colors: one scale for A and B, one for their difference. */

import { computed, type ReadonlySignal } from "@preact/signals-core";
import type { Grid } from "../../contract/decode";
import { isSigned } from "../../contract/stages";
import { mergedGrid, type Part, type ReadyComparison, sharedRange } from "../../data/comparison";
import { foldGrid } from "../../draw/cells";
import { type ColorMapper, makeColorMapper } from "../../draw/color-mapper";
import type { Plot } from "../../state/plot";
import type { Ui } from "../../state/ui";

export type Grids = { readonly [K in Part]: Grid };
export type Mappers = { readonly [K in Part]: ColorMapper };

/** Return the drawn cells: folded if the screen has fewer pixels, changes by their size. */
export function gridsOf(comparison: ReadonlySignal<ReadyComparison | null>, plot: Plot): ReadonlySignal<Grids | null> {
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

/** Return one scale for A and B, and a symmetric one for their difference. */
export function mappersOf(
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
    const own = Array.isArray(range) ? "head" : range; // a custom range does not apply to changes
    return { a: sides, b: sides, change: makeColorMapper(change, drawn.change, true, "linear", own) };
  });
}
