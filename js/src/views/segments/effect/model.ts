/**
 * The effects as signals: each segment and each head with its mass and the loss without it.
 */

import { computed, type ReadonlySignal, type Signal, signal } from "@preact/signals-core";
import type { EffectsMessage } from "../../../contract/messages";
import { type EffectOrder, LEAST_LOST, lossesIn, ordered, type Scales, scalesOf } from "../../../data/effects";
import { meanOf } from "../../../data/segments";
import { nameOf } from "../../../data/survey";
import type { Removal, Ui } from "../../../state/ui";
import type { HeadTable, SegmentsModel } from "../model";

/** A segment (by its column of the mass), or a head (by its row of the table). */
export interface EffectRow {
  readonly at: number;
  readonly name: string;
  /** NaN if unknown or excluded. */
  readonly mass: number;
  /** null before the run. */
  readonly lost: number | null;
  readonly isAside?: boolean;
}

export interface EffectModel {
  readonly now: ReadonlySignal<EffectsMessage | null>;
  readonly order: Signal<EffectOrder>;
  readonly segments: ReadonlySignal<readonly EffectRow[]>;
  readonly segmentScales: ReadonlySignal<Scales>;
  readonly heads: ReadonlySignal<readonly EffectRow[]>;
  readonly headScales: ReadonlySignal<Scales>;
  /** Losses of all heads, in the order of the table. */
  readonly lost: ReadonlySignal<readonly (number | null)[]>;
  /** The last pin: what the page shows the model without. */
  readonly kind: Signal<"segment" | "head">;
  /** What the model is shown without: under the pointer, or else pinned. */
  readonly removed: ReadonlySignal<Removal | null>;
}

/** Return the signals of the effects; the mass is over all heads, because segments are removed from all. */
export function effectModel(ui: Ui, model: SegmentsModel): EffectModel {
  const { store } = ui;
  const now = computed(() => store.effects.value ?? null);
  const kind = signal<"segment" | "head">("segment");
  const segments = computed(() => ordered(segmentRows(model, now.value), ui.effectOrder.value));
  const lost = computed(() => lossesIn(now.value?.heads?.lost ?? []));
  const heads = computed(() => ordered(headRows(ui, model, lost.value), ui.effectOrder.value));
  const scales = (rows: readonly EffectRow[]) => {
    const losses = rows.map((row) => row.lost ?? Number.NaN);
    const masses = rows.map((row) => row.mass);
    return scalesOf(masses, losses, now.value?.unit === "nats" ? LEAST_LOST : 1e-6);
  };
  const removed = computed<Removal | null>(() => {
    const spot = model.hover.value;
    const table = model.heads.value;
    const selected = table?.heads.findIndex((_, row) => isShown(ui, table, row)) ?? -1;
    const isHead = spot?.part === "heads" || (spot?.part !== "list" && kind.value === "head");
    const at = isHead ? (spot?.head ?? selected) : spot?.part === "list" ? spot.column : model.pinned.value;
    const row = (isHead ? heads : segments).value.find((one) => one.at === at);
    const mass = model.mass.value;
    if (row === undefined || mass === null) return null;
    const { name, lost } = row;
    const own = { lost, mass: row.mass };
    const pinned = { isPinned: at === (isHead ? selected : model.pinned.value) && isHead === (kind.value === "head") };
    if (!isHead) return { ...own, ...pinned, name, of: { segment: name, path: [...mass.path] } };
    const { layer, head } = table!.heads[at]!;
    return { ...own, ...pinned, name: `head ${name}`, of: { layer, head } };
  });
  return {
    ...{ now, segments, heads, lost, removed, kind, order: ui.effectOrder },
    segmentScales: computed(() => scales(segments.value)),
    headScales: computed(() => scales(heads.value)),
  };
}

/** Whether a row of the table is the selected head. */
export function isShown({ store }: Ui, { heads }: HeadTable, row: number): boolean {
  return heads[row]?.layer === store.layer.value && heads[row]?.head === store.head.value;
}

/** The mean mass of each segment over all heads, and the loss without it. */
function segmentRows(model: SegmentsModel, now: EffectsMessage | null): EffectRow[] {
  const mass = model.mass.value;
  const table = model.heads.value;
  if (mass === null) return [];
  const runs = now?.segments;
  const losses = runs && runs.path.join("\n") === mass.path.join("\n") ? lossesIn(runs.lost) : [];
  return mass.keys.map((name, at) => ({
    ...{ at, name, lost: losses[runs?.names.indexOf(name) ?? -1] ?? null },
    mass: table === null ? Number.NaN : meanOf(table.heads.map((_, row) => massOf(table, row, at))),
    isAside: !model.left.value.columns.includes(at),
  }));
}

/** The mass of each head on the pinned segment, and the loss without the head. */
function headRows({ store }: Ui, model: SegmentsModel, losses: readonly (number | null)[]): EffectRow[] {
  const table = model.heads.value;
  if (table === null) return [];
  return table.heads.map(({ layer, head }, at) => ({
    ...{ at, name: nameOf({ layer, head }, store.facts.value), lost: losses[at] ?? null },
    mass: model.pinned.value < 0 ? Number.NaN : massOf(table, at, model.pinned.value),
  }));
}

function massOf({ rest, columns }: HeadTable, row: number, column: number): number {
  const at = columns[column] ?? -1;
  return at < 0 ? Number.NaN : rest.mass[row * rest.columns + at]!;
}
