/**
 * The first picture of a widget: drawn from its traits while the front-end is still unpacked, where the front-end then
 * draws the same. It stands for the common case, a heatmap with tokens or positions beside it; otherwise it draws nothing.
 */

import { decodePicture, decodeTokens, type Picture } from "./contract/decode";
import { isSigned } from "./contract/stages";
import type { Model, Traits } from "./contract/traits";
import { axisCells, cornerStyles, drawnLabel, labelPlaces, type Style, ticksAlong } from "./draw/axis-marks";
import { paint } from "./draw/cells";
import { makeColorMapper } from "./draw/color-mapper";
import { isRoomFor, labelRoom, measureIn, receivesBelow } from "./draw/label-room";
import { takeLook } from "./draw/look";
import { ownCellGrid, reachOf } from "./geometry/cell-grid";
import { layoutFigure, modeOf, usesTicks } from "./geometry/layout";
import { WHOLE } from "./geometry/viewport";
import { isPadding } from "./state/padding";
import { count } from "./text/format";
import { type Labels, labels } from "./text/labels";
import { KEYS_TITLE, QUERIES_TITLE } from "./text/words";

/** From this width on, the head picker takes one line. */
const LEAST_WIDTH = 720;
/** Milliseconds. */
const LONGEST_FRAME = 100;

/** Draw the first picture into the place of a widget, if this can, and wait until the page has shown it. */
export async function paintFirst(model: Model, place: HTMLElement): Promise<void> {
  if (await isPainted(model, place)) await nextFrame();
}

/** A page in the background shows no frames. */
const nextFrame = () =>
  new Promise<void>((resolve) => {
    setTimeout(resolve, LONGEST_FRAME);
    requestAnimationFrame(() => setTimeout(resolve));
  });

async function isPainted(model: Model, place: HTMLElement): Promise<boolean> {
  const get = <K extends keyof Traits>(name: K) => model.get(name) as Traits[K];
  if (!isPlain(get)) return false;
  const { queries, keys } = get("facts");
  const [picture, ofQueries, ofKeys, isThere] = await Promise.all([
    decodePicture(get("picture")),
    labelsOf(get("tokens"), queries),
    labelsOf(get("key_tokens"), keys),
    isPlaced(place),
  ]);
  if (ofQueries === null || ofKeys === null || picture.grid === null || picture.sink != null) return false;
  if (!isThere || place.querySelector(".attnwidget") !== null) return false;
  const root = document.createElement("div");
  root.className = "attnwidget";
  root.dataset.first = ""; // for the front-end, which puts its own into the same element
  place.append(root);
  if (draw(root, get, picture, ofQueries, ofKeys)) return true;
  root.remove();
  return false;
}

/** Whether the place has a width, or soon has one: a notebook puts it into the page a little later. */
function isPlaced(place: HTMLElement): boolean | Promise<boolean> {
  if (place.clientWidth > 0) return true;
  return new Promise((resolve) => {
    const observer = new ResizeObserver(() => {
      if (place.clientWidth > 0) end(true);
    });
    const end = (isThere: boolean) => {
      observer.disconnect();
      resolve(isThere);
    };
    observer.observe(place);
    setTimeout(end, LONGEST_FRAME, false);
  });
}

type Get = <K extends keyof Traits>(name: K) => Traits[K];

/** Whether the traits ask for a heatmap of one head, without anything pinned, tried out or named. */
function isPlain(get: Get): boolean {
  const { layer, batch, head, stage, pool, values } = get("picture");
  const isCurrent = layer === get("layer") && batch === get("batch") && head === get("head") && stage === get("stage");
  const chosen = [get("query"), get("key"), get("across"), get("grid"), get("image"), get("recall"), get("sides")];
  const others = [...Object.keys(get("what_if")), ...get("pins")];
  return (
    get("view") === "heatmap" &&
    isCurrent &&
    pool === get("pool") &&
    values != null &&
    get("combine") === "none" &&
    get("color_range") !== "layer" &&
    get("segments") == null &&
    get("key_segments") == null &&
    chosen.every((one) => one == null) &&
    others.length === 0
  );
}

/** The labels of one side; null if not all tokens were sent. */
async function labelsOf(message: Traits["tokens"], length: number): Promise<Labels | null> {
  if (message == null) return labels(null, length);
  const tokens = (await decodeTokens(message)) ?? [];
  if ((message.length ?? tokens.length) > tokens.length) return null;
  return labels(tokens, length, message.spelling === "text" ? "words" : message.spelling);
}

/** Draw all of it; false where there is no room that the front-end is known to use in the same way. */
function draw(root: HTMLElement, get: Get, picture: Picture, ofQueries: Labels, ofKeys: Labels): boolean {
  const { unit, font, paints } = takeLook(root, get("theme"), get("palette"));
  const style = getComputedStyle(root);
  const outer = root.getBoundingClientRect().width;
  const width = outer - Number.parseFloat(style.paddingLeft) - Number.parseFloat(style.paddingRight);
  if (outer < LEAST_WIDTH * unit || picture.grid === null) return false;
  const mode = modeOf(outer, unit);
  root.dataset.mode = mode;
  const dpr = window.devicePixelRatio || 1;
  const measure = measureIn(font, unit);
  const { rows, columns } = picture.grid;
  const size = { ...picture, rows, columns, sink: false, recall: false, received: receivesBelow(picture) };
  const figure = layoutFigure({
    ...{ width, mode, rows, columns, dpr, unit },
    labels: { ...labelRoom(size, ofQueries, ofKeys, measure), margins: false, names: null },
  });
  const cells = ownCellGrid(reachOf(size, figure, unit), WHOLE, size);
  if (cells.rows.bin !== picture.queryBin || cells.columns.bin !== picture.keyBin) return false; // folded
  const canvas = document.createElement("canvas");
  Object.assign(canvas.style, { width: `${figure.width}px`, height: `${figure.height}px` });
  const signed = isSigned(picture.of.stage);
  const [scale, range] = [get("color_scale"), get("color_range")];
  const numbers =
    cells.rows.bin * cells.columns.bin === 1 && isRoomFor(cells.rows.cell, cells.columns.cell, signed, unit, measure);
  if (numbers && !picture.exact) return false; // its numbers are still to be asked for
  paint(canvas, {
    ...{ grid: picture.grid, cellWidth: cells.columns.cell, cellHeight: cells.rows.cell, viewport: WHOLE },
    mapper: makeColorMapper(picture, picture.grid, signed, scale, range),
    paints: signed ? paints.diverging : paints.sequential,
    ...{ stage: picture.of.stage, width: figure.width, height: figure.height, dpr, unit, font, numbers },
    ...{ exact: picture.exact, patch: null },
  });
  const under = figure.below + (figure.received ? figure.received.gap + figure.received.height : 0);
  const whole = element("div", "aw-figure", {
    width: `${figure.left + figure.width + figure.overhang}px`,
    height: `${figure.top + figure.height + under}px`,
  });
  const plot = element("div", "aw-plot", {
    ...{ left: `${figure.left}px`, top: `${figure.top}px` },
    ...{ width: `${figure.width}px`, height: `${figure.height}px` },
  });
  plot.append(canvas);
  whole.append(plot);
  const both = { queryLabels: { value: ofQueries }, keyLabels: { value: ofKeys } };
  const axes = [
    { axis: axisCells("query", cells.rows, picture.queryBin, dpr), names: ofQueries },
    { axis: axisCells("key", cells.columns, picture.keyBin, dpr), names: ofKeys },
  ] as const;
  for (const { axis, names } of axes) {
    const marks = element("div", "aw-labels");
    if (usesTicks(axis.pitch, axis.bin, unit)) marks.append(...ticks(ticksAlong(axis, figure, unit)));
    else {
      for (const index of labelPlaces(axis, [], unit)) {
        const label = names.at(index);
        const drawn = drawnLabel({
          ...{ axis, figure, measure, unit, index, label, pill: null, hovered: false, numbered: false },
        });
        const node = element("button", "aw-label", drawn.style); // as the front-end has it: a style each
        (node as HTMLButtonElement).tabIndex = -1;
        const isPad = axis.side === "query" ? isPadding(both, picture, index) : index >= picture.ownKeys;
        node.toggleAttribute("data-special", label.special || isPad);
        node.append(element("bdi", "", {}, drawn.text));
        if (drawn.subscript !== "") node.append(element("sub", "", {}, drawn.subscript));
        marks.append(node);
      }
    }
    whole.append(marks);
  }
  const [keysAt, queriesAt] = cornerStyles(figure, unit);
  const titles = element("div", "aw-labels");
  titles.append(
    element("span", "aw-axis-title", keysAt, KEYS_TITLE),
    element("span", "aw-axis-title", queriesAt, QUERIES_TITLE),
  );
  whole.append(titles);
  root.append(inFrame(get, whole));
  return true;
}

/** The frame with room for toolbar and picker. */
function inFrame(get: Get, figure: HTMLElement): HTMLElement {
  const frame = element("div", "aw-frame");
  const title = get("title");
  if (title !== "") frame.append(element("div", "aw-title", {}, title));
  frame.append(element("div", "aw-toolbar"));
  const { layers, heads, batches, stacks, forwards } = get("facts");
  const isAlone = (stacks?.length ?? 1) < 2 && (forwards ?? 1) < 2;
  if (layers.length > 1 || heads > 1 || batches > 1 || !isAlone) frame.append(element("div", "aw-picker"));
  const main = element("div", "aw-main");
  const column = element("div", "aw-column");
  column.append(figure);
  main.append(column);
  frame.append(main);
  return frame;
}

function ticks(all: ReturnType<typeof ticksAlong>): HTMLElement[] {
  return all.flatMap(({ position, line, text }) => {
    const label = element("span", "aw-label", text, count(position));
    label.dataset.tick = "";
    return [element("i", "aw-tick", line), label];
  });
}

function element(tag: string, name: string, style: Style = {}, text = ""): HTMLElement {
  const node = document.createElement(tag);
  if (name !== "") node.className = name;
  Object.assign(node.style, style);
  node.textContent = text;
  return node;
}
