/** Above the pictures: their names, or the choice of one, and the key that is pinned or under the pointer. */

import { px, rove, Token } from "../../components/dom";
import { isNamed, ofModel, sampleWord } from "../../components/phrases";
import { PARTS, type Part, type ReadyComparison } from "../../data/comparison";
import { cellOf } from "../../geometry/cell-grid";
import type { Plot } from "../../state/plot";
import type { Ui } from "../../state/ui";
import { GAP, isBeside } from "./layout";

const LETTERS = { a: "A", b: "B", change: "B − A" } as const;

/** Draw the names above the pictures, or the choice of one, and the key above each. */
export function Heads({
  ui,
  plot,
  single,
  comparison,
}: {
  ui: Ui;
  plot: Plot;
  single: { value: Part };
  comparison: ReadyComparison | null;
}) {
  const at = plot.figure.value;
  if (at === null || comparison === null) return null;
  const unit = ui.unit.value;
  const beside = isBeside(ui.mode.value);
  const names = { a: ui.store.sides.value?.[0] ?? "A", b: comparison.against, change: "B − A" };
  const step = at.width + GAP * unit;
  const lettered = names.a !== "A" || names.b !== "B";
  const where = placesOf(ui, comparison);
  return (
    <>
      {!beside && (
        <div class="aw-compare-switch" role="radiogroup" aria-label="Picture">
          {PARTS.map((name, index) => (
            <button
              type="button"
              role="radio"
              key={name}
              aria-checked={single.value === name}
              tabIndex={single.value === name ? 0 : -1}
              onClick={() => {
                single.value = name;
              }}
              onKeyDown={(event) =>
                rove(event, index, PARTS.length, (to) => {
                  single.value = PARTS[to]!;
                })
              }
            >
              {LETTERS[name]}
            </button>
          ))}
        </div>
      )}
      {PARTS.map((name, index) => {
        if (!beside && name !== single.value) return null;
        const left = beside ? at.left + index * step : at.left;
        return (
          <div
            class="aw-compare-head"
            key={name}
            style={{ left: px(left), width: px(at.width), top: px(beside ? 0 : 32 * unit) }}
          >
            <b title={names[name]}>
              <bdi>{names[name]}</bdi>
              {!beside && where[name] && <span class="aw-muted"> {where[name]}</span>}
            </b>
            {beside && (
              <span title={where[name] || undefined}>
                {name === "change"
                  ? "difference"
                  : [lettered ? LETTERS[name] : "", where[name]].filter(Boolean).join(": ")}
              </span>
            )}
          </div>
        );
      })}
      {PARTS.map((name, index) =>
        beside || name === single.value ? (
          <KeyPins key={name} ui={ui} plot={plot} left={beside ? at.left + index * step : at.left} />
        ) : null,
      )}
    </>
  );
}

/** The layer, sample and head of each side, if there are several: "layer 2, head 9". */
function placesOf({ store }: Ui, { of, againstAt, numbers }: ReadyComparison): Record<Part, string> {
  const { layers, batches, heads } = store.facts.value;
  const told = (number: number | null, layer: number, batch: number, head: number) => {
    const parts = [
      layers.length > 1 && `layer ${layer}`,
      batches > 1 && `${sampleWord(store.facts.value)} ${batch}`,
      (heads > 1 || number !== null) && `head ${head}${ofModel(number)}`,
    ];
    return parts.filter(Boolean).join(", ");
  };
  const a = [of.layer, of.batch, Number(of.head)] as const;
  return { a: told(numbers[0], ...a), b: told(numbers[1], ...(againstAt ?? a)), change: "" };
}

const PILL = 6.5; // approximate pixels per character, to keep pills inside

function KeyPins({ ui, plot, left }: { ui: Ui; plot: Plot; left: number }) {
  const { store } = ui;
  const at = plot.figure.value;
  const cellGrid = plot.cellGrid.value;
  if (at === null || cellGrid === null) return null;
  const unit = ui.unit.value;
  const pinned = store.key.value;
  const hover = ui.hover.value;
  const pointed =
    hover === null
      ? null
      : "bin" in hover
        ? hover.bin.keys.start
        : hover.target.side === "key"
          ? hover.target.index
          : null;
  const labels = store.keyLabels.value;
  const label = (index: number, pill: boolean) => {
    const box = plot.box(store.query.value ?? 0, index);
    if (box === null || box.x + box.width < 0 || box.x > at.width) return null;
    const named = isNamed(labels, index);
    const { text, subscript } = labels.at(index);
    const letters = Math.min(18, text.length + (named ? 0 : 4)) + subscript.length;
    const half = (letters * PILL * unit) / 2 + 8 * unit;
    const middle = Math.max(Math.min(half, at.width / 2), Math.min(box.x + box.width / 2, at.width - half));
    const style = { left: px(left + middle), top: px(at.top - 23 * unit), maxWidth: px(at.width) };
    return (
      <button
        type="button"
        class={pill ? "aw-label aw-key-pin aw-pill" : "aw-label aw-key-pin"}
        key={`${pill} ${index}`}
        style={style}
        title={text}
        tabIndex={pill ? 0 : -1}
        onClick={() => store.select({ key: null })}
      >
        {named ? <Token labels={labels} index={index} subscript /> : `key ${text}`}
      </button>
    );
  };
  const apart =
    pinned === null ||
    pointed === null ||
    cellGrid.columns.cell * Math.abs(cellOf(cellGrid.columns, pinned) - cellOf(cellGrid.columns, pointed)) > 90 * unit;
  return (
    <>
      {pinned !== null && label(pinned, true)}
      {pointed !== null && pointed !== pinned && apart && label(pointed, false)}
    </>
  );
}
