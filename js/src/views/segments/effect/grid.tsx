/** The loss without each head, as a grid with a row for each layer. Heads not yet run are outlines. */

import { computed, effect, type ReadonlySignal } from "@preact/signals-core";
import { mount, part, px, type View } from "../../../components/dom";
import { pointIn } from "../../../components/gestures";
import { Ramp } from "../../../components/legend";
import { largest } from "../../../data/segments";
import type { Paints } from "../../../draw/color-mapper";
import type { Ui } from "../../../state/ui";
import { cleared, type Style, styleOf } from "../drawing/style";
import { watchRowKeys } from "../input/keys";
import { watchSpots } from "../input/pointing";
import type { SegmentsModel, Spot } from "../model";
import { lossText } from "./bars";
import { type EffectModel, isShown } from "./model";

const CELL = { wide: 28, tall: 24 } as const;
const LEFT = 26; // for layer numbers
const TOP = 18; // for head numbers

interface Grid {
  readonly rows: number;
  readonly columns: number;
  readonly wide: number;
  readonly tall: number;
  readonly gap: number;
  readonly left: number;
  readonly top: number;
  /** The row of the table of heads at each place, −1 for none. */
  at(row: number, column: number): number;
}

/** Return the grid; a click pins a head. */
export function effectGrid(
  ui: Ui,
  model: SegmentsModel,
  effects: EffectModel,
  room: ReadonlySignal<number>,
  pin: (head: number) => void,
): View {
  const node = part("aw-seg-matrix");
  const figure = part("aw-seg-figure");
  const canvas = document.createElement("canvas");
  canvas.tabIndex = 0;
  canvas.dataset.aw = "effect-grid";
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-roledescription", "grid of heads");
  const layout = computed(() => layGrid(effects.now.value?.heads?.counts ?? [], room.value, ui.unit.value));
  const most = computed(() => largest(effects.lost.value.map((lost) => Math.abs(lost ?? 0)).filter(Number.isFinite)));
  const labels = mount(part("aw-seg-labels"), () => <Labels {...{ ui, model, effects }} at={layout.value} />);
  const legend = mount(part("aw-legend", "legend"), () => <Legend {...{ ui, model, effects }} most={most.value} />);
  figure.append(canvas, labels.node);
  node.append(figure, legend.node);
  const ends = [
    effect(() => {
      const at = layout.value;
      const paints = ui.paints.value?.diverging;
      Object.assign(figure.style, {
        width: px(at.left + at.columns * at.wide),
        height: px(at.top + at.rows * at.tall),
      });
      Object.assign(canvas.style, { left: px(at.left), top: px(at.top) });
      if (paints) paintGrid(canvas, { at, lost: effects.lost.value, most: most.value, paints, style: styleOf(ui) });
    }),
    effect(() => {
      canvas.setAttribute("aria-label", `Loss without each of ${effects.lost.value.length} heads`);
    }),
  ];
  const spotAt = (event: MouseEvent): Spot | null => {
    const at = layout.peek();
    const { x, y } = pointIn(canvas, event);
    const head = at.at(Math.floor(y / at.tall), Math.floor(x / at.wide));
    return head < 0 ? null : { part: "heads", head, column: model.pinned.peek() };
  };
  watchSpots(ui, model, canvas, "heads", spotAt, ({ head }) => pin(head!));
  watchRowKeys(ui, model, canvas, {
    what: "head",
    ids: () => effects.lost.value.map((_, row) => row),
    at: () =>
      model.hover.value?.head ?? model.heads.value?.heads.findIndex((_, row) => isSelected(ui, model, row)) ?? -1,
    wide: () => layout.value.columns,
    point(head) {
      model.hover.value = { part: "heads", head, column: model.pinned.value };
    },
    pin,
  });
  return {
    node,
    dispose() {
      for (const end of ends) end();
      labels.dispose();
      legend.dispose();
    },
  };
}

const isSelected = (ui: Ui, model: SegmentsModel, row: number) => {
  const table = model.heads.value;
  return table !== null && isShown(ui, table, row);
};

function layGrid(counts: readonly number[], room: number, unit: number): Grid {
  const columns = Math.max(1, ...counts);
  const wide = Math.max(2, Math.min(CELL.wide * unit, Math.floor((room - LEFT * unit) / columns)));
  const tall = Math.max(2, Math.min(CELL.tall * unit, Math.round((wide * CELL.tall) / CELL.wide)));
  const firsts = counts.map((_, layer) => counts.slice(0, layer).reduce((sum, heads) => sum + heads, 0));
  const at = (row: number, column: number) => (column >= 0 && column < (counts[row] ?? 0) ? firsts[row]! + column : -1);
  return {
    rows: counts.length,
    columns,
    wide,
    tall,
    gap: wide >= 12 ? unit : 0,
    left: LEFT * unit,
    top: TOP * unit,
    at,
  };
}

interface Scene {
  readonly at: Grid;
  readonly lost: readonly (number | null)[];
  readonly most: number;
  readonly paints: Paints;
  readonly style: Style;
}

function paintGrid(canvas: HTMLCanvasElement, { at, lost, most, paints, style }: Scene): void {
  const context = cleared(canvas, at.columns * at.wide, at.rows * at.tall, style.dpr);
  if (context === null) return;
  const [wide, tall] = [at.wide - at.gap, at.tall - at.gap];
  context.font = `400 ${10 * style.unit}px ${style.font}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let row = 0; row < at.rows; row++) {
    for (let column = 0; column < at.columns; column++) {
      const head = at.at(row, column);
      if (head < 0) continue;
      const value = lost[head] ?? null;
      const [x, y] = [column * at.wide, row * at.tall];
      context.beginPath();
      if (value === null || Number.isNaN(value)) {
        context.roundRect(x + 0.5, y + 0.5, wide - 1, tall - 1, at.gap && 2.5 * style.unit);
        context.strokeStyle = style.line;
        context.stroke();
        continue;
      }
      const share = most > 0 ? Math.max(-1, Math.min(1, value / most)) : 0;
      const entry = Math.round(127.5 + 127.5 * share);
      context.roundRect(x, y, wide, tall, at.gap && 2.5 * style.unit);
      context.fillStyle = paints.css[entry]!;
      context.fill();
      if (Math.abs(value) < 0.095 || wide < 24 * style.unit) continue;
      context.fillStyle = paints.inkOn[entry]!;
      context.fillText(lossText(value), x + wide / 2, y + tall / 2 + 0.5);
    }
  }
}

interface LabelsProps {
  readonly ui: Ui;
  readonly model: SegmentsModel;
  readonly effects: EffectModel;
}

/** The numbers of layers and heads, and rings. */
function Labels({ ui, model, at }: LabelsProps & { at: Grid }) {
  const { layer, head } = ui.store;
  const table = model.heads.value;
  const pointed = model.hover.value?.part === "heads" ? table?.heads[model.hover.value.head!] : undefined;
  const every = (size: number) => Math.max(1, Math.ceil((16 * ui.unit.value) / size));
  const number = (own: number, isNow: boolean, style: Record<string, string>) => (
    <span class="aw-fx-number" data-now={isNow || undefined} key={own} style={style}>
      {own}
    </span>
  );
  const isNumbered = (own: number, now: number, size: number) => own % every(size) === 0 || own === now;
  const ring = (place: { layer: number; head: number }, pinned: boolean) => (
    <i
      class="aw-ring"
      key={pinned ? "pin" : "hover"}
      data-pinned={pinned || undefined}
      data-small={at.wide < 16 || undefined}
      style={{
        transform: `translate(${at.left + place.head * at.wide}px, ${at.top + place.layer * at.tall}px)`,
        width: px(at.wide - at.gap),
        height: px(at.tall - at.gap),
      }}
    />
  );
  return (
    <>
      {Array.from({ length: at.columns }, (_, own) =>
        isNumbered(own, head.value, at.wide)
          ? number(own, own === head.value, { left: px(at.left + (own + 0.5) * at.wide), top: px(at.top / 2) })
          : null,
      )}
      {Array.from({ length: at.rows }, (_, own) =>
        isNumbered(own, layer.value, at.tall)
          ? number(own, own === layer.value, { left: px(at.left / 2), top: px(at.top + (own + 0.5) * at.tall) })
          : null,
      )}
      {pointed && ring(pointed, false)}
      {ring({ layer: layer.value, head: head.value }, true)}
    </>
  );
}

function Legend({ ui, model, effects, most }: LabelsProps & { most: number }) {
  const paints = ui.paints.value?.diverging;
  const table = model.heads.value;
  if (!paints) return null;
  const spot = model.hover.value;
  const row = spot?.part === "heads" ? spot.head! : (table?.heads.findIndex((_, at) => isShown(ui, table, at)) ?? -1);
  const lost = effects.lost.value[row] ?? null;
  const ticks = [-most, 0, most].map((value, at) => ({ at: at / 2, text: lossText(value), end: at === 2 }));
  return (
    <>
      <div class="aw-ramp">
        <span>Lost</span>
        <Ramp paints={paints} ticks={ticks} mark={lost === null || most === 0 ? null : 0.5 + lost / most / 2} />
      </div>
      {effects.lost.value.includes(null) && (
        <div class="aw-kinds">
          <span>
            <i class="aw-fx-none" />
            not yet run
          </span>
        </div>
      )}
    </>
  );
}
