/**
 * A comparison in the form that the heatmap's parts take: common places instead of positions, changes instead of
 * numbers.
 */

import { computed, type ReadonlySignal, signal } from "@preact/signals-core";
import { BLOCKED, NUMBER, type Picture } from "../../contract/decode";
import type { Pin } from "../../contract/values";
import {
  type CellChange,
  changedAt,
  labelsOf,
  largestCells,
  type PairChange,
  type Part,
  type Places,
  type ReadyComparison,
} from "../../data/comparison";
import { type Bin, numberIn } from "../../data/matrix";
import { latestAnswer, type Reading, stableComputed } from "../../state/queries";
import type { Store } from "../../state/store";
import type { Hover, Ui } from "../../state/ui";

/** The heatmap's view of the widget, with common places as positions. */
export interface PlaceSpace extends Ui {
  readonly changed: ReadonlySignal<CellChange | null>;
  /** Whether the pin has no counterpart on the other side. */
  readonly lost: ReadonlySignal<boolean>;
  /**
   * In a long head with rounded pictures, the largest change in each of the cells that change most, once known, with
   * the comparison that it belongs to. Cells that the kernel refuses are left out.
   */
  readonly largest: ReadonlySignal<readonly (PairChange & CellChange)[] | null>;
  /** Why no such change is known, after a request; otherwise "". */
  readonly refusal: ReadonlySignal<string>;
}

export const MOST_LISTED = 12;
const sizeOf = ({ value }: CellChange) => Math.abs(value ?? 0);

/** Return the heatmap's view of the widget, with places as positions. */
export function placeSpaceOf(outer: Ui, comparison: ReadonlySignal<ReadyComparison | null>): PlaceSpace {
  const { store, stop } = outer;
  const placeOf = (places: Places | undefined, position: number | null) =>
    position === null || places === undefined ? null : places.of(position);
  const query = computed(() => placeOf(comparison.value?.queries, store.query.value));
  const key = computed(() => placeOf(comparison.value?.keys, store.key.value));
  const back = (places: Places | undefined, place: number | null) =>
    place === null || places === undefined ? place : places.a(place);
  const positions = <T extends { query?: number | null; key?: number | null }>(change: T): T => ({
    ...change,
    ...(change.query === undefined ? {} : { query: back(comparison.value?.queries, change.query) }),
    ...(change.key === undefined ? {} : { key: back(comparison.value?.keys, change.key) }),
  });
  const placeStore: Store = {
    ...store,
    query,
    key,
    picture: computed(() => comparison.value?.pictures.a ?? null),
    queryLabels: computed(() => {
      const places = comparison.value?.queries;
      return places === undefined ? store.queryLabels.value : labelsOf(store.queryLabels.value, places);
    }),
    keyLabels: computed(() => {
      const places = comparison.value?.keys;
      return places === undefined ? store.keyLabels.value : labelsOf(store.keyLabels.value, places);
    }),
    shownPins: computed(() =>
      store.shownPins.value.map(
        ([q, k]): Pin => [placeOf(comparison.value?.queries, q), placeOf(comparison.value?.keys, k)],
      ),
    ),
    select: (change) => store.select(positions(change)),
    addPin(q, k) {
      const at = positions({ query: q, key: k });
      store.addPin(at.query, at.key);
    },
  };
  const pinBin = stableComputed<Bin>(() =>
    query.value === null || key.value === null
      ? null
      : {
          queries: { start: query.value, stop: query.value + 1 },
          keys: { start: key.value, stop: key.value + 1 },
        },
  );
  const hover = signal<Hover | null>(null);
  const hoverBin = stableComputed<Bin>(() => {
    const at = hover.value;
    return at !== null && "bin" in at ? at.bin : null;
  });
  const hoveredChange = changeSource(outer, comparison, hoverBin, stop);
  const pinnedChange = changeSource(outer, comparison, pinBin, stop);
  const lost = computed(() => {
    const [q, k] = [store.query.value, store.key.value];
    return (q !== null && query.value === null) || (k !== null && key.value === null);
  });
  const refusal = signal("");
  const largest = latestAnswer(
    computed(() => {
      const of = store.query.value === null || lost.value ? comparison.value : null;
      const queries = paddedPicture(outer, of, "a")?.padding ?? of?.queries.length ?? 0;
      return of === null || of.pictures.change.exact ? null : { of, queries, picture: of.pictures.a };
    }),
    () => null,
    ({ of, queries }, stopped) =>
      Promise.allSettled(largestCells(of, queries, MOST_LISTED).map((bin) => askChange(outer, of, bin, stopped))).then(
        (all) => {
          const refused = all.find((one) => one.status === "rejected");
          if (!stopped.aborted) {
            refusal.value = all.every((one) => one.status === "rejected") ? String(refused?.reason?.message ?? "") : "";
          }
          return all
            .flatMap((one) => (one.status === "fulfilled" ? { ...one.value, place: one.value.key } : []))
            .sort((one, other) => sizeOf(other) - sizeOf(one));
        },
      ),
    stop,
    { outlives: true },
  );
  return {
    ...outer,
    store: placeStore,
    hover,
    target: computed(() => {
      const at = hover.value;
      if (at === null) return null;
      return "target" in at ? at.target : { side: "query" as const, index: at.bin.queries.start };
    }),
    lost,
    hovered: computed(() => readingOf(hoveredChange.value)),
    pinned: computed(() => readingOf(pinnedChange.value)),
    largest,
    refusal,
    changed: computed(() => (hoverBin.value === null ? pinnedChange.value : hoveredChange.value)),
  };
}

/**
 * Return A's picture with the start of its padding, as A's mask gives it; null for side B if its tokens differ there,
 * because its rows are its own.
 */
export function paddedPicture(outer: Ui, of: ReadyComparison | null, side: Part): Picture | null {
  const own = outer.store.picture.value;
  if (of === null || (side === "b" && of.queries.differ > 0)) return null;
  const { layer, batch } = of.of;
  const padding = own?.of.layer === layer && own.of.batch === batch ? own.padding : null;
  const picture = of.pictures.a;
  if (padding === null) return { ...picture, padding };
  let first = 0;
  while (first < of.queries.length && of.queries.a(first) < padding) first++;
  return { ...picture, padding: first };
}

/** The exact numbers of some places: from the pictures, or from the kernel. */
function changeSource(
  { kernel, store }: Ui,
  comparison: ReadonlySignal<ReadyComparison | null>,
  bin: ReadonlySignal<Bin | null>,
  stop: AbortSignal,
): ReadonlySignal<CellChange | null> {
  const question = computed(() => {
    const of = comparison.value;
    return of === null || bin.value === null ? null : { picture: of.pictures.a, of, bin: bin.value };
  });
  return latestAnswer<{ picture: Picture; of: ReadyComparison; bin: Bin }, CellChange>(
    question,
    ({ of, bin }) => changedAt(of, bin),
    ({ of, bin }, signal) => askChange({ kernel, store }, of, bin, signal),
    stop,
  );
}

/** Ask the kernel for the largest change among some places. */
export async function askChange(
  { kernel }: Pick<Ui, "kernel" | "store">,
  of: ReadyComparison,
  bin: Bin,
  signal: AbortSignal,
): Promise<CellChange> {
  const { layer, batch: sample, head, stage } = of.of;
  const body = {
    ...{ layer, batch: sample, head, stage, against: of.against, against_at: of.againstAt },
    queries: [bin.queries.start, bin.queries.stop],
    keys: [bin.keys.start, bin.keys.stop],
  };
  const { value, a, b, query, key } = await kernel.request("change", body, { signal });
  if (!Number.isInteger(query) || !Number.isInteger(key)) throw new Error("the reply to “change” names no place");
  const number = (one: number | string | null) => (one === null ? null : numberIn(one));
  return { bin, query, key, a: number(a), b: number(b), value: number(value), of };
}

function readingOf(changed: CellChange | null): Reading | null {
  if (changed === null) return null;
  const { bin, query, key, value } = changed;
  return { bin, query, key, value: value ?? Number.NaN, kind: value === null ? BLOCKED : NUMBER };
}
