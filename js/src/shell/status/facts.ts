import { drawnWords, headWords, sampleWord, showsCells, stackWords } from "../../components/phrases";
import type { Picture } from "../../contract/decode";
import type { Facts } from "../../contract/messages";
import { leftOf, levelsOf } from "../../data/segments";
import { axisSegments } from "../../state/segment-axes";
import type { Ui } from "../../state/ui";
import { count } from "../../text/format";
import { showsEffect } from "../../views/segments/words/menus";

export function facts(ui: Ui, picture: Picture): string {
  const { store } = ui;
  if (store.view.value === "heads") return allHeads(ui);
  if (store.view.value === "segments")
    return showsEffect(ui) ? effectFacts(ui) : segmentFacts(ui, ui.mode.value === "narrow");
  const { dtype, device, is_causal } = store.facts.value;
  const { head } = picture.of;
  const drawn = store.view.value === "graph" && store.drawnHeads.value.length > 1 ? store.drawnHeads.value : [head];
  const named = drawn.length > 1 ? drawnWords(drawn, store.facts.value) : headWords(drawn[0]!, store.facts.value);
  const cells = store.view.value === "heatmap" && isPooled(picture) && showsCells(ui);
  const sides = store.sides.value ?? [];
  const compares = store.view.value === "compare";
  return [
    ...stackWords(store.facts.value),
    sides.length > 0 && !compares ? `A: ${sides[0]}` : "",
    ...placeWords(picture.of, named, store.facts.value),
    `${count(picture.queries)} × ${count(picture.keys)}`,
    maskedAtEnd(picture),
    store.view.value === "heatmap" ? segmentCount(ui) : "",
    ...(cells ? ["exact"] : [is_causal ? "causal" : "", dtype, device, sampling(ui, picture)]),
  ]
    .filter(Boolean)
    .join(" · ");
}

/** Which keys at the end no query may attend to: the padding of a shorter sample. */
function maskedAtEnd({ keys, ownKeys }: Picture): string {
  const many = keys - ownKeys;
  return many <= 0 ? "" : many === 1 ? "last key masked" : `last ${count(many)} keys masked`;
}

/** Return layer, sample and head, each if there are several. */
export function placeWords(of: { layer: number; batch: number }, named: string, facts: Facts): string[] {
  return [
    facts.layers.length > 1 ? `layer ${of.layer}` : "",
    facts.batches > 1 ? `${sampleWord(facts)} ${of.batch}` : "",
    facts.heads > 1 || facts.head_numbers ? named : "",
  ].filter(Boolean);
}

/** How many effects are known, of those that can be. */
function effectFacts({ store }: Ui): string {
  const { segments, heads } = store.effects.value!;
  const known = (lost: readonly unknown[]) => lost.filter((one) => one !== null).length;
  const part = (all: readonly unknown[], what: string) => {
    const lost = all.filter((one) => one !== "nan");
    return known(lost) < lost.length
      ? `${count(known(lost))} of ${count(lost.length)} ${what}`
      : `${count(lost.length)} ${what} exact`;
  };
  const { dtype, device } = store.facts.value;
  return [
    segments?.dropped,
    segments && part(segments.lost, "segments"),
    heads && part(heads.lost, "heads"),
    dtype,
    device,
  ]
    .filter(Boolean)
    .join(" · ");
}

/** What the masses were computed from. */
function segmentFacts({ store }: Ui, narrow: boolean): string {
  const now = store.mass.value;
  if (now === null || now.error !== null) return "";
  const { queries } = store.facts.value;
  const { columns } = leftOf(now.keys, store.aside.value ?? []);
  return [
    ...stackWords(store.facts.value),
    ...placeWords(now.of, headWords(now.of.head, store.facts.value), store.facts.value),
    `${count(now.total)} of ${count(queries)} queries`,
    `${count(columns.length)} ${columns.length === 1 ? "segment" : "segments"}`,
    narrow || columns.length === now.keys.length || now.stage !== "weights"
      ? ""
      : "mass is a share of what is not excluded",
  ]
    .filter(Boolean)
    .join(" · ");
}

/** `6 layers × 12 heads`, and the size of a head if all have the same. */
function allHeads(ui: Ui): string {
  const { facts, survey, sides, batch } = ui.store;
  const { dtype, device, batches } = facts.value;
  const layers = survey.value?.layers ?? [];
  const same = (of: (layer: (typeof layers)[number]) => number) => layers.every((one) => of(one) === of(layers[0]!));
  const [first] = layers;
  if (first === undefined) return "";
  const heads = same((layer) => layer.heads)
    ? `× ${first.heads} heads`
    : `, ${count(survey.value!.heads.length)} heads`;
  const square = same((layer) => layer.queries) && same((layer) => layer.keys);
  return [
    ...stackWords(facts.value),
    (sides.value?.length ?? 0) > 0 ? `A: ${sides.value![0]}` : "",
    `${layers.length} ${layers.length === 1 ? "layer" : "layers"} ${heads}`.replace(" ,", ","),
    batches > 1 ? `${sampleWord(facts.value)} ${batch.value}` : "",
    square ? `${count(first.queries)} × ${count(first.keys)}` : "",
    dtype,
    device,
  ]
    .filter(Boolean)
    .join(" · ");
}

/** `8 segments, 2 levels`. */
function segmentCount({ store }: Ui): string {
  const found = axisSegments(store, "query") ?? axisSegments(store, "key");
  if (found === null) return "";
  const { distinct, more } = found.segments;
  const [segments, levels] = [distinct.length, levelsOf(found.segments)];
  const words = `${count(segments)} ${segments === 1 ? "segment" : "segments"}${levels > 1 ? `, ${levels} levels` : ""}`;
  return more > 0 ? `${words}, ${count(more)} pieces not shown` : words;
}

const isPooled = ({ queryBin, keyBin }: Picture) => queryBin * keyBin > 1;

/** Whether the whole picture of a long head is exact; a zoomed part says this itself. */
function sampling({ store, window }: Ui, picture: Picture): string {
  if (!isPooled(picture) || window.value !== null || store.view.value !== "heatmap") return "";
  if (picture.sampled === null) return "exact";
  return `sampled: 1 of ${count(picture.sampled.every)} rows`;
}
