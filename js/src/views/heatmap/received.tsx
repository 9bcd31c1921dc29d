/** The strip below the picture: the mean weight that each key receives, as bars. */

import { computed, effect } from "@preact/signals-core";
import { pinRowOrColumn } from "../../components/axis-labels";
import { mount, part, px, type View } from "../../components/dom";
import { pointIn } from "../../components/gestures";
import { placeText } from "../../components/place";
import { NUMBER } from "../../contract/decode";
import { type Axis, cellsInView, cellUnder, startOf } from "../../geometry/cell-grid";
import { GAPS_FROM, labelFont } from "../../geometry/layout";
import type { Plot } from "../../state/plot";
import { type Received, receivedSource } from "../../state/queries";
import type { Ui } from "../../state/ui";
import { listNumber } from "../../text/format";
import { RECEIVED, RECEIVED_TITLE } from "../../text/words";

export interface ReceivedStrip extends View {
  /** The strip and its name. */
  readonly nodes: readonly HTMLElement[];
}

/** Return the strip with its name; empty while nothing is known. */
export function receivedStrip(ui: Ui, plot: Plot): ReceivedStrip {
  const { store, kernel, stop } = ui;
  const node = part("aw-sink");
  const canvas = document.createElement("canvas");
  canvas.dataset.aw = "received";
  canvas.setAttribute("role", "img");
  node.append(canvas);
  const hasRoom = computed(() => plot.figure.value?.received != null);
  const received = receivedSource(store, kernel, hasRoom, stop);
  const name = mount(part("aw-sink-labels"), () => <Name ui={ui} plot={plot} received={received.value} />);
  const options = { signal: stop, passive: true };
  const keyAt = (event: PointerEvent | MouseEvent) => {
    const columns = plot.cellGrid.value?.columns;
    const at = columns === undefined ? null : cellUnder(columns, pointIn(canvas, event).x);
    const key = columns === undefined || at === null ? null : at * columns.bin;
    return key === null || key >= store.facts.value.keys ? null : key;
  };
  canvas.addEventListener(
    "pointermove",
    (event) => {
      const key = event.pointerType === "touch" ? null : keyAt(event);
      ui.hover.value = key === null ? null : { target: { side: "key", index: key } };
    },
    options,
  );
  canvas.addEventListener("pointerleave", () => (ui.hover.value = null), options);
  canvas.addEventListener(
    "click",
    (event) => {
      const key = keyAt(event);
      if (key !== null) pinRowOrColumn(ui, "key", key, event.shiftKey);
    },
    options,
  );
  const end = effect(() => {
    const figure = plot.figure.value;
    const known = received.value;
    const columns = plot.cellGrid.value?.columns;
    node.hidden = figure?.received == null || known === null || columns === undefined;
    if (figure?.received == null || known === null || columns === undefined || ui.paints.value === null) return;
    const { left, top, width, height, below, received: strip } = figure;
    const size = { width: px(width), height: px(strip.height) };
    Object.assign(node.style, { left: px(left), top: px(top + height + below + strip.gap), ...size });
    Object.assign(canvas.style, size);
    canvas.setAttribute("aria-label", summary(ui, known));
    const color = getComputedStyle(ui.root).getPropertyValue("--aw-ink3").trim();
    draw(canvas, known, columns, { width, height: strip.height, dpr: ui.dpr.value, unit: ui.unit.value, color });
  });
  return {
    node,
    nodes: [node, name.node],
    dispose() {
      end();
      name.dispose();
    },
  };
}

const isKnown = ({ kinds, values }: Received, key: number) => kinds[key] === NUMBER && !Number.isNaN(values[key]!);

/** The greatest and the least mean, and 0. */
function extentOf(received: Received): { high: number; low: number } {
  let [high, low] = [0, 0];
  for (let key = 0; key < received.values.length; key++) {
    if (!isKnown(received, key)) continue;
    high = Math.max(high, received.values[key]!);
    low = Math.min(low, received.values[key]!);
  }
  return { high, low };
}

/** Draw a bar for each column in view: of several keys, that which receives most. */
function draw(
  canvas: HTMLCanvasElement,
  received: Received,
  columns: Axis,
  { width, height, dpr, unit, color }: { width: number; height: number; dpr: number; unit: number; color: string },
): void {
  canvas.width = Math.round(width * dpr);
  canvas.height = Math.round(height * dpr);
  const context = canvas.getContext("2d");
  if (context === null) return;
  const { high, low } = extentOf(received);
  if (high === low) return;
  context.fillStyle = color;
  const whole = (length: number) => Math.round(length * dpr);
  const tall = canvas.height;
  const zero = Math.round((tall * high) / (high - low));
  const gap = columns.cell >= GAPS_FROM * unit ? 1 : 0;
  const { start, stop } = cellsInView(columns);
  for (let at = start; at < stop; at++) {
    let most = 0;
    for (let key = at * columns.bin; key < Math.min((at + 1) * columns.bin, received.values.length); key++) {
      if (isKnown(received, key) && Math.abs(received.values[key]!) > Math.abs(most)) most = received.values[key]!;
    }
    const left = whole(startOf(columns, at, dpr));
    const right = Math.max(left + 1, whole(startOf(columns, at + 1, dpr) - gap));
    const length = Math.round((tall * most) / (high - low));
    context.fillRect(left, zero, right - left, -length);
  }
  context.globalAlpha = 0.4;
  context.fillRect(0, Math.min(zero, tall - 1), whole(columns.size), 1);
}

/** `Mean weight received by each key: most by [CLS] 0, .3104`. */
export function summary({ store }: Ui, received: Received): string {
  let most: number | null = null;
  for (let key = 0; key < received.values.length; key++) {
    if (isKnown(received, key) && (most === null || received.values[key]! > received.values[most]!)) most = key;
  }
  if (most === null) return RECEIVED_TITLE;
  const token = placeText(store.keyLabels.value, most, "key");
  return `${RECEIVED_TITLE}: most by ${token}, ${listNumber(received.values[most]!, "weights")}`;
}

/** The strip's name; while a key is pointed at, its number. */
function Name({ ui, plot, received }: { ui: Ui; plot: Plot; received: Received | null }) {
  const figure = plot.figure.value;
  if (figure?.received == null || received === null) return null;
  const unit = ui.unit.value;
  const at = ui.hover.value;
  const bin = plot.cellGrid.value?.columns.bin ?? 1;
  const pointed = at === null ? null : "target" in at ? at.target : "bin" in at ? at.bin.keys.start : null;
  const key = pointed === null || typeof pointed === "number" ? pointed : pointed.side === "key" ? pointed.index : null;
  const number = key !== null && bin === 1 && isKnown(received, key) ? received.values[key]! : null;
  const { height, gap } = figure.received;
  return (
    <span
      class="aw-label aw-sink-name"
      title={RECEIVED_TITLE}
      style={{
        right: px(8 * unit + (figure.margin ?? 0) - figure.left),
        top: px(figure.top + figure.height + figure.below + gap),
        lineHeight: px(height),
        fontSize: px(labelFont(figure.cellHeight, unit) * unit),
      }}
    >
      {number === null ? RECEIVED : listNumber(number, "weights")}
    </span>
  );
}
