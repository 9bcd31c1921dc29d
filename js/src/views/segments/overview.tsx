/** An overview above scrolling lines: the pinned segment along the whole answer, each pixel its largest token. */

import { computed, effect, signal } from "@preact/signals-core";
import { part, px, type View } from "../../components/dom";
import { pointIn } from "../../components/gestures";
import { largest, largestSize, roundUp } from "../../data/segments";
import { askLine, type MassLine } from "../../state/segment-queries";
import type { Ui } from "../../state/ui";
import { count } from "../../text/format";
import { linesWithin } from "./drawing/layout";
import { zeroOf } from "./drawing/stacks";
import { cleared, styleOf } from "./drawing/style";
import type { SegmentsModel } from "./model";
import type { TokensState } from "./words/states";

const TALL = 24;

/** Return the strip; a click scrolls to its place. */
export function overview(ui: Ui, model: SegmentsModel, state: TokensState, scroller: HTMLElement): View {
  const node = part("aw-seg-overview");
  const canvas = document.createElement("canvas");
  canvas.setAttribute("role", "img");
  node.append(canvas);
  const line = signal<MassLine | null>(null);
  const column = computed(() => shownColumn(model));
  const ends = [
    effect(() => {
      const [now, at, measure] = [model.mass.value, column.value, model.measure.value];
      const aside = ui.store.aside.value ?? [];
      line.value = null;
      if (now === null || at < 0 || !state.scrolls.value || ui.kernel.away.value) return;
      const current = new AbortController();
      askLine(ui.kernel, now, { column: at, measure, aside }, current.signal).then(
        (found) => {
          if (!current.signal.aborted) line.value = found;
        },
        () => {}, // the kernel's state tells why
      );
      return () => current.abort();
    }),
    effect(() => {
      node.hidden = !state.scrolls.value;
      if (!state.scrolls.value) return;
      node.style.paddingLeft = px(state.left.value);
      draw(ui, model, state, canvas, line.value, column.value);
      const now = model.mass.value;
      canvas.setAttribute("aria-label", `${now?.keys[column.value] ?? ""} along ${count(now?.total ?? 0)} tokens`);
    }),
  ];
  const go = (event: MouseEvent) => {
    const share = pointIn(canvas, event).x / Math.max(1, canvas.clientWidth);
    const { height } = state.view.peek();
    const total = (state.layout.peek()?.lines.length ?? 0) * state.box.peek().pitch;
    scroller.scrollTop = share * total - height / 2;
  };
  canvas.addEventListener("pointerdown", go, { signal: ui.stop });
  canvas.addEventListener("pointermove", (event) => event.buttons === 1 && go(event), { signal: ui.stop });
  return {
    node,
    dispose() {
      for (const end of ends) end();
    },
  };
}

/** The pinned column, or the one with most of the answer's attention. */
function shownColumn(model: SegmentsModel): number {
  if (model.pinned.value >= 0) return model.pinned.value;
  const whole = model.whole.value;
  if (whole === null) return -1;
  const mass = (column: number) => Math.abs(whole.rest.mass[whole.row * whole.rest.columns + column]!);
  return model.left.value.columns.reduce((most, column) => (most < 0 || mass(column) > mass(most) ? column : most), -1);
}

function draw(
  ui: Ui,
  model: SegmentsModel,
  state: TokensState,
  canvas: HTMLCanvasElement,
  line: MassLine | null,
  column: number,
): void {
  const style = styleOf(ui);
  const layout = state.layout.value;
  const view = state.view.value;
  const [wide, tall] = [view.width - state.left.value, TALL * style.unit];
  const context = cleared(canvas, wide, tall, style.dpr);
  const tokens = layout?.lefts.length ?? 0;
  if (context === null || layout === null || tokens === 0) return;
  const { start, stop } = linesWithin(layout.lines.length, state.box.value.pitch, view.top, view.top + view.height);
  const [from, to] = [layout.lines[start]?.start ?? 0, layout.lines[stop - 1]?.stop ?? tokens];
  context.fillStyle = style.track;
  context.globalAlpha = 0.55;
  context.fillRect((wide * from) / tokens, 0, Math.max(2, (wide * (to - from)) / tokens), tall);
  context.globalAlpha = 1;
  context.fillStyle = style.track;
  context.fillRect(0, tall - 1 / style.dpr, wide, 1 / style.dpr);
  if (line === null) return;
  const most = model.measure.value === "mass" && model.shares.value ? 1 : roundUp(largestSize(line.values));
  const zero = zeroOf(model);
  const pixels = Math.max(1, Math.round(wide * style.dpr));
  context.fillStyle = style.color(model.mass.value?.keyColors[column] ?? -1);
  const many = line.values.length;
  for (let pixel = 0; pixel < pixels; pixel++) {
    const first = Math.floor((pixel * many) / pixels);
    const last = Math.max(first + 1, Math.floor(((pixel + 1) * many) / pixels));
    const some = line.values.subarray(first, last);
    const [high, low] = [(largest(some) / most) * (1 - zero), (largest(some.map((value) => -value)) / most) * zero];
    if (high + low > 0)
      context.fillRect(pixel / style.dpr, tall * (1 - zero - high), 1 / style.dpr, tall * (high + low));
  }
}
