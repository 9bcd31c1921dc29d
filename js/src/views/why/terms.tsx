/** The terms of one score: query parts × key parts, and their sum. */

import type { StreamPart } from "../../contract/requests";
import { type Against, ofWords, sumWords } from "../../data/reason-words";
import { folded, type PairParts } from "../../data/reasons";
import type { Ui } from "../../state/ui";
import { cellNumber, count, listNumber } from "../../text/format";
import { HeadLink, otherName } from "./head-link";

const CELL = 28;
const NAMES = 96; // left of the cells
const LEAST = 15;

/** Show the largest query parts × key parts of a score, or of its difference from what it is compared with. */
export function Terms({ ui, pair: whole, against }: { ui: Ui; pair: PairParts; against: Against }) {
  const room = ui.width.value / ui.unit.value - NAMES - 8;
  const pair = folded(whole, Math.max(3, Math.floor(room / (LEAST + 1)) - 1));
  const rows = [...pair.query_parts, null].slice(0, pair.query_parts.length + (pair.more[0] > 0 ? 1 : 0));
  const columns = [...pair.key_parts, null].slice(0, pair.key_parts.length + (pair.more[1] > 0 ? 1 : 0));
  const all = pair.key_parts.length + 1;
  const at = (row: number, column: number) => pair.terms[row * all + column]!;
  const most = Math.max(...pair.terms.map(Math.abs), 1e-12);
  const sum = pair.terms.reduce((total, one) => total + one, 0);
  const other = otherName(ui, against);
  const isOf = sumWords(pair.score + (pair.subtracted ?? 0), pair.subtracted, against, other);
  const cell = Math.max(LEAST, Math.min(CELL, Math.floor(room / columns.length) - 1));
  const paints = ui.paints.value?.diverging;
  const fill = (value: number) => {
    const place = Math.round(127.5 + (127.5 * value) / most);
    return { background: paints?.css[place] ?? "", color: paints?.inkOn[place] ?? "" };
  };
  const name = (part: StreamPart | null, more: number) => (part === null ? `${count(more)} more` : part.label);
  return (
    <div class="aw-why-terms" style={{ "--aw-why-cell": `calc(${cell} * var(--aw-u))` }}>
      <table aria-label={`Terms of ${ofWords(against, other)}`}>
        <thead>
          <tr>
            <td />
            {columns.map((part) => (
              <th key={part?.label ?? "rest"} scope="col">
                <div>{part === null ? name(part, pair.more[1]) : <HeadLink ui={ui} part={part} />}</div>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((part, row) => (
            <tr key={part?.label ?? "rest"}>
              <th scope="row">{part === null ? name(part, pair.more[0]) : <HeadLink ui={ui} part={part} />}</th>
              {columns.map((other, column) => {
                const value = at(row, column);
                const title = `query ${name(part, pair.more[0])} × key ${name(other, pair.more[1])}: ${listNumber(value, "scores")}`;
                return (
                  <td key={other?.label ?? "rest"} style={fill(value)} title={title}>
                    {cell >= 26 && Math.abs(value) >= most * 0.08 ? cellNumber(value, "scores") : ""}
                    <span class="aw-visually-hidden">{cell >= 26 ? "" : listNumber(value, "scores")}</span>
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
      <p class="aw-why-sum">
        rows are parts of the query, columns parts of the key · sum {listNumber(sum, "scores")} = {isOf}
        <span class="aw-muted">; not explained (rounding) {pair.rounding.toExponential(0).replaceAll("-", "−")}</span>
      </p>
    </div>
  );
}
