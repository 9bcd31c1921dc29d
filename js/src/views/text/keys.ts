/** The keyboard on running text and patches: arrows move the pin along the text and between lines. */

import { headLines, pinLines } from "../../components/keyboard";
import { cellAt, positionAt } from "../../geometry/patches";
import type { KeyLine, Ui } from "../../state/ui";
import type { Line } from "../../text/lines";
import { lineOf } from "../../text/lines";
import { hoveredIn } from "./looks";
import type { Flow, TextModel } from "./model";

/** Return the keys of running text: arrows move the pin along the text, between lines, and between patches. */
export function textKeys(ui: Ui, model: TextModel, withImage: boolean, step: number): KeyLine[] {
  const { store } = ui;
  const flows = model.flows.value;
  const side = ui.target.value?.side ?? store.direction.value;
  const flow = flows.find(({ passage }) => passage.sides.includes(side)) ?? flows[0];
  if (flow === undefined) return [];
  const at = (side === "query" ? store.query : store.key).value;
  const pin = (position: number | null) => {
    if (position !== null)
      store.select(side === "query" ? { query: position, key: null } : { query: null, key: position });
  };
  const place = at === null ? undefined : flow.places.value.get(at);
  const rtl = place !== undefined && flow.lines.value[lineOf(flow.lines.value, place)]?.rtl === true;
  const pinPointed = () => pin(hoveredIn(ui, flow.passage));
  return [
    {
      shown: "← ↑ → ↓",
      does: `pin another ${withImage ? "token or patch" : "token"} (Shift: 10 at a time)`,
      keys: {
        ArrowLeft: () => pin(stepAlong(flow, at, rtl ? step : -step, withImage)),
        ArrowRight: () => pin(stepAlong(flow, at, rtl ? -step : step, withImage)),
        ArrowUp: () => pin(stepAcross(model, flow, at, -1, withImage)),
        ArrowDown: () => pin(stepAcross(model, flow, at, 1, withImage)),
      },
    },
    {
      shown: "Home End",
      does: "first, last token of the line",
      keys: { Home: () => pin(endOfLine(flow, at, 0)), End: () => pin(endOfLine(flow, at, 1)) },
    },
    { shown: "Enter", does: "pin what the pointer is on", keys: { Enter: pinPointed, " ": pinPointed } },
    ...pinLines(ui),
    ...headLines(ui),
  ];
}

/** Return the position so many tokens further: hidden tokens are skipped, and pages are turned. */
export function stepAlong(flow: Flow, at: number | null, by: number, withImage: boolean): number | null {
  const { passage, pages } = flow;
  const shown = (position: number) =>
    withImage || (flow.places.value.has(position) ?? false) || (pages > 1 && !passage.labels.at(position).special);
  if (at === null) return flow.tokens.value[0]?.position ?? passage.patches?.start ?? null;
  let [position, left] = [at, Math.abs(by)];
  for (let next = at + Math.sign(by); left > 0 && next >= 0 && next < passage.length; next += Math.sign(by)) {
    if (!shown(next)) continue;
    position = next;
    left--;
  }
  return position;
}

/** The token above or below, nearest to this one's center; for a patch, the next row. */
function stepAcross(model: TextModel, flow: Flow, at: number | null, by: 1 | -1, withImage: boolean): number | null {
  const { patches } = flow.passage;
  if (at === null) return stepAlong(flow, null, 1, withImage);
  const cell = withImage && patches !== null ? cellAt(patches, at) : null;
  if (patches !== null && cell !== null) return positionAt(patches, cell + by * patches.columns) ?? at;
  const place = flow.places.value.get(at);
  if (place === undefined) return stepAlong(flow, null, 1, withImage);
  const [tokens, lines] = [flow.tokens.value, flow.lines.value];
  const index = lineOf(lines, place);
  const to = lines[index + by];
  if (to === undefined) return withImage && by > 0 && patches !== null ? patches.start : at;
  const middles = (line: Line) => {
    let x = 0;
    return tokens.slice(line.start, line.stop).map((token) => {
      const width = model.widthOf(token) + (token.gap === "" ? 0 : 4);
      x += width;
      return x - width / 2;
    });
  };
  const from = lines[index] as Line;
  const x = middles(from)[place - from.start] as number;
  const distances = middles(to).map((middle) => Math.abs(middle - x));
  return tokens[to.start + distances.indexOf(Math.min(...distances))]?.position ?? at;
}

/** The first or last token of the line. */
function endOfLine(flow: Flow, at: number | null, end: 0 | 1): number | null {
  const place = at === null ? 0 : flow.places.value.get(at);
  if (place === undefined) return at;
  const line = flow.lines.value[lineOf(flow.lines.value, place)];
  if (line === undefined) return at;
  return flow.tokens.value[end === 0 ? line.start : line.stop - 1]?.position ?? at;
}
