/** Did it matter that the answer looked there? Each segment and each head: its mass, and the loss without it. */

import { computed, effect, type ReadonlySignal, signal } from "@preact/signals-core";
import { mount, part, type View } from "../../../components/dom";
import { EffectRuns } from "../../../components/effect-runs";
import { sentence } from "../../../components/phrases";
import { Thumbnail } from "../../../components/thumbnail";
import { Removed } from "../../../components/without";
import { editWords } from "../../../data/effects";
import { segmentStyle } from "../../../draw/segment-colors";
import { askEffect } from "../../../state/effects";
import type { Ui } from "../../../state/ui";
import { count } from "../../../text/format";
import { headPictures } from "../drawing/pictures";
import { watchRowKeys } from "../input/keys";
import { goUp, pinColumn } from "../input/pins";
import { watchSpots } from "../input/pointing";
import type { SegmentsModel, Spot } from "../model";
import { Folding, layPairs, type Rooms, section } from "../parts";
import { WordsAbove } from "../words/measure";
import { inWords } from "../words/numbers";
import { BarsKey, EffectBars, listedRows } from "./bars";
import { effectGrid } from "./grid";
import { type EffectModel, type EffectRow, effectModel, isShown } from "./model";

const MOST = { segments: 12, heads: 8, narrow: 5 } as const;

/** Show the loss without each segment and head. */
export function effectBody(ui: Ui, model: SegmentsModel, body: HTMLElement, rooms: ReadonlySignal<Rooms>): View[] {
  const effects = effectModel(ui, model);
  const open = { heads: signal(true), matrix: signal(false) };
  const pinSegment = (column: number) => {
    const again = effects.kind.value === "segment" || column !== model.pinned.value;
    effects.kind.value = "segment";
    if (again) pinColumn(ui, model, column);
    const [mass, state] = [model.mass.value, effects.now.value?.state];
    const segment = mass?.keys[column];
    if (mass && segment && state !== "running") askEffect(ui, { segment, path: [...mass.path] });
  };
  const pinHead = (row: number) => {
    const at = model.heads.value?.heads[row];
    if (at === undefined) return;
    effects.kind.value = "head";
    ui.store.select({ layer: at.layer, head: at.head, heads: [at.head] });
    askEffect(ui, { layer: at.layer, head: at.head });
  };
  const top = mount(part("aw-seg-reading"), () => <WordsAbove ui={ui} />);
  const title = mount(part("aw-seg-heading"), () => <Title {...{ ui, model }} />);
  const bars = rowsPart(ui, model, {
    ...{ name: "picture", says: "Mass and loss by segment", column: true, pin: pinSegment },
    ids: () => listedRows(effects.segments.value, MOST.segments, model.pinned.value).map(({ at }) => at),
    at: () => (model.hover.value?.part === "list" ? model.hover.value.column : model.pinned.value),
    draw: () => <SegmentBars {...{ ui, model, effects }} />,
  });
  const legend = mount(part("aw-legend aw-seg-legend", "legend"), () => (
    <BarsKey color={colorOf(ui, model)} rows={[...effects.segments.value, ...effects.heads.value]} />
  ));
  const panel = mount(part("aw-seg-list aw-fx-panel", "panel"), () => <Panel {...{ ui, effects }} />);
  const gridTitle = mount(part("aw-seg-heading"), () => (
    <Folding ui={ui} open={open.matrix} name={gridName(effects)} note={`${count(effects.lost.value.length)} heads`} />
  ));
  const grid = effectGrid(
    ui,
    model,
    effects,
    computed(() => rooms.value.matrix),
    pinHead,
  );
  const headsTitle = mount(part("aw-seg-heading"), () => (
    <Folding ui={ui} open={open.heads} name={headsName(effects)} note={<HeadsNote {...{ ui, model, effects }} />} />
  ));
  const runs = mount(part("aw-fx-runs", "progress"), () => <EffectRuns ui={ui} />);
  const shown = computed(() => {
    const most = ui.mode.value === "narrow" ? MOST.narrow : MOST.heads;
    return listedRows(effects.heads.value, most, selectedRow(ui, model)).map(({ at }) => at);
  });
  const pictures = headPictures(ui, model, shown);
  const heads = rowsPart(ui, model, {
    ...{ name: "effect-heads", says: "Mass and loss by head", column: false, pin: pinHead },
    ids: () => shown.value,
    at: () => (model.hover.value?.part === "heads" ? (model.hover.value.head ?? -1) : selectedRow(ui, model)),
    draw: () => <HeadBars {...{ ui, model, effects, pictures }} />,
  });
  const listed = part("");
  listed.append(runs.node, heads.node);
  const end = layPairs(ui, rooms, {
    ...{ body, open, several: computed(() => effects.now.value?.heads != null) },
    above: [top.node],
    first: [section([title.node, bars.node, legend.node]), panel.node],
    second: [section([gridTitle.node, grid.node]), section([headsTitle.node, listed])],
    folds: [grid.node, listed],
  });
  const removed = effect(() => {
    ui.removed.value = effects.removed.value;
  });
  return [
    ...[top, title, bars, legend, panel, gridTitle, grid, headsTitle, runs, heads],
    {
      node: body,
      dispose() {
        for (const one of [end, removed, pictures.dispose]) one();
        ui.removed.value = null;
      },
    },
  ];
}

interface Rows {
  readonly name: string;
  readonly says: string;
  /** Rows are columns of the mass, or heads. */
  readonly column: boolean;
  ids(): readonly number[];
  at(): number;
  pin(at: number): void;
  draw(): preact.ComponentChildren;
}

/** Rows that respond to the pointer and to keys. */
function rowsPart(ui: Ui, model: SegmentsModel, { name, says, column, ids, at, pin, draw }: Rows): View {
  const view = mount(part("aw-fx", name), draw);
  const { node } = view;
  node.tabIndex = 0;
  node.style.width = "100%";
  node.setAttribute("role", "application");
  node.setAttribute("aria-roledescription", "bars");
  node.setAttribute("aria-label", says);
  const spot = (own: number): Spot =>
    column ? { part: "list", column: own } : { part: "heads", head: own, column: model.pinned.peek() };
  const spotAt = ({ target }: MouseEvent) => {
    const own = (target as HTMLElement).closest<HTMLElement>("[data-at]")?.dataset.at;
    return own === undefined ? null : spot(Number(own));
  };
  const chosen = ({ head, column: own }: Spot) => pin(column ? own : head!);
  watchSpots(ui, model, node, column ? "list" : "heads", spotAt, chosen);
  watchRowKeys(ui, model, node, {
    ...{ what: column ? "segment" : "head", ids, at, pin },
    point(own) {
      model.hover.value = spot(own);
    },
  });
  return view;
}

interface Props {
  readonly ui: Ui;
  readonly model: SegmentsModel;
  readonly effects: EffectModel;
}

const selectedRow = (ui: Ui, { heads }: SegmentsModel) =>
  heads.value?.heads.findIndex((_, row) => isShown(ui, heads.value!, row)) ?? -1;

const colorOf = (ui: Ui, model: SegmentsModel, column = model.pinned.value) =>
  segmentStyle(model.mass.value?.keyColors[column] ?? -1, ui.theme.value);

function SegmentBars({ ui, model, effects }: Props) {
  const color = ({ at }: EffectRow) => colorOf(ui, model, at);
  return (
    <EffectBars
      rows={effects.segments.value}
      scales={effects.segmentScales.value}
      most={MOST.segments}
      pinned={model.pinned.value}
      hovered={model.hover.value?.part === "list" ? model.hover.value.column : undefined}
      unit={effects.now.value?.unit ?? ""}
      what="segments"
      color={color}
      mark={(row) => <i class="aw-seg-mark" style={{ background: color(row) }} />}
    />
  );
}

function HeadBars({ ui, model, effects, pictures }: Props & { pictures: ReturnType<typeof headPictures> }) {
  void pictures.arrived.value;
  const paints = ui.paints.value?.sequential ?? null;
  return (
    <EffectBars
      rows={effects.heads.value}
      scales={effects.headScales.value}
      most={ui.mode.value === "narrow" ? MOST.narrow : MOST.heads}
      pinned={selectedRow(ui, model)}
      hovered={model.hover.value?.part === "heads" ? model.hover.value.head : undefined}
      unit=""
      what="heads"
      color={() => colorOf(ui, model)}
      mark={({ at }) => <Thumbnail grid={pictures.of(at)} paints={paints} />}
    />
  );
}

// --- headings and words ---------------------------------------------------------------------------------------------

function Title({ ui, model }: Omit<Props, "effects">) {
  const now = model.mass.value;
  const table = model.heads.value;
  if (now === null) return null;
  const heads = table === null ? "all heads" : `${count(table.heads.length)} heads`;
  return (
    <>
      <h4 class="aw-heading">Did it matter that {inWords(now.asking)} looked there</h4>
      {now.path.length > 0 && (
        <button type="button" class="aw-seg-up" onClick={() => goUp(ui, model)}>
          ‹ {now.path.at(-2) ?? "all segments"} <span class="aw-muted">inside {now.path.at(-1)}</span>
        </button>
      )}
      <span class="aw-seg-caption">
        mean mass over {heads}
        {table !== null && table.share < 1 && ` (${Math.floor(100 * table.share)} % computed)`}, each segment{" "}
        {editWords(ui.store.effects.value)[1] || "removed from all"}
      </span>
    </>
  );
}

const editOf = ({ now }: EffectModel) => now.value?.edits.find(({ value }) => value === now.value?.edit);
const gridName = (effects: EffectModel) => `Each head ${editOf(effects)?.of ?? "removed"}`;
const headsName = ({ now }: EffectModel) =>
  now.value?.state === "running" ? "Running every head once" : "What each head does";

function HeadsNote({ ui, model, effects }: Props) {
  const name = model.mass.value?.keys[model.pinned.value];
  const words = effects.lost.value.includes(null) ? "order so far" : "";
  const mass = name === undefined ? "pin a segment for its mass" : `mass on ${inWords(name)}`;
  if (ui.mode.value === "narrow") return <>{mass}</>;
  return <>{[effects.order.value === "text" ? "" : words, mass].filter(Boolean).join(", ")}</>;
}

/** The model's next token without the pinned segment or head. */
function Panel({ ui, effects }: Omit<Props, "model">) {
  const removed = effects.removed.value;
  const error = effects.now.value?.error;
  if (removed === null) {
    const prompt = "Click a segment, or a head, to see what the model says without it.";
    return <p class="aw-prompt">{error ? sentence(error) : prompt}</p>;
  }
  const [before, after] = editWords(effects.now.value);
  return (
    <>
      <div class="aw-panel-head">
        {before && <span>{before}</span>}
        <span class={removed.isPinned ? "aw-pill" : "aw-name"}>
          <bdi>{removed.name}</bdi>
        </span>
        {after && <span>{after}</span>}
      </div>
      <Removed ui={ui} of={removed.of} hint={removed.isPinned ? "" : "Click to see the next token."} />
    </>
  );
}
