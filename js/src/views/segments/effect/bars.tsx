/**
 * Mass and loss on one zero: a bar for the mass, a dot for the loss, words if they
 * disagree.
 */

import type { ComponentChildren } from "preact";
import { disagreement, placeOn, type Scales } from "../../../data/effects";
import { largest } from "../../../data/segments";
import { count, listNumber, roundedUp } from "../../../text/format";
import { axisText } from "../words/numbers";
import type { EffectRow } from "./model";

interface BarsProps {
  readonly rows: readonly EffectRow[];
  readonly scales: Scales;
  readonly most: number;
  readonly pinned: number;
  readonly hovered: number | undefined;
  readonly unit: string;
  /** "segments" or "heads". */
  readonly what: string;
  color(row: EffectRow): string;
  /** What stands between a row's name and its bar. */
  mark(row: EffectRow): ComponentChildren;
}

/** Return the listed rows in order: the first ones, and the pinned one. */
export function listedRows(rows: readonly EffectRow[], most: number, pinned: number): readonly EffectRow[] {
  if (rows.length <= most + 1) return rows;
  const first = rows.slice(0, most);
  const pin = rows.find(({ at }) => at === pinned);
  return pin === undefined || first.includes(pin) ? first : [...first, pin];
}

/** `2.38`, `.41`, `−.08`: a loss in little room. */
export function lossText(value: number | null): string {
  if (value === null) return "";
  if (Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return listNumber(value, "scores");
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 0.005) return value < 0 ? ">−.01" : "<.01";
  const text = size.toFixed(size >= 100 ? 0 : 2).replace(/^0/, "");
  return value < 0 ? `−${text}` : text;
}

/** Draw the rows, with the scale of mass above and that of loss below. */
export function EffectBars(props: BarsProps) {
  const { rows, scales, most, pinned, unit, what } = props;
  const shown = listedRows(rows, most, pinned);
  const others = rows.filter((row) => !shown.includes(row));
  const known = others.map(({ lost }) => lost ?? Number.NaN).filter((lost) => !Number.isNaN(lost));
  const asNumber = (value: number) => axisText(value, "mass").replace("-", "−");
  const parts = Array.from({ length: scales.parts + 1 }, (_, at) => at / scales.parts);
  const lines = parts.map((at) => <s key={at} data-zero={at === 0 || undefined} style={{ left: place(scales, at) }} />);
  const ticks = (end: number) =>
    parts.map((at) => (
      <i key={at} style={{ left: place(scales, at) }}>
        {asNumber(end * at)}
      </i>
    ));
  return (
    <>
      <div class="aw-fx-row aw-fx-axis" aria-hidden="true">
        <span>mass</span>
        <span />
        <span>{ticks(scales.mass)}</span>
        <span>mass</span>
        <span>
          lost<small>{unit && `, ${unit}`}</small>
        </span>
      </div>
      {shown.map((row) => (
        <Row key={row.at} {...{ ...props, row, lines }} />
      ))}
      <div class="aw-fx-row aw-fx-axis" aria-hidden="true">
        <span>lost</span>
        <span />
        <span>{ticks(scales.lost)}</span>
      </div>
      {others.length > 0 && (
        <div class="aw-fx-more">
          {count(others.length)} more {what}
          {known.length > 0 && `, lost at most ${bound(Math.max(...known))}`}
          {known.length < others.length && `, ${count(others.length - known.length)} not run`}
        </div>
      )}
    </>
  );
}

const bound = (lost: number) => lossText(roundedUp(lost, Math.abs(lost) >= 99.5 ? 0 : 2));

const place = (scales: Scales, share: number) => `${placeOn(scales, share)}%`;

function Row(props: BarsProps & { row: EffectRow; lines: ComponentChildren }) {
  const { row, lines, scales, pinned, hovered } = props;
  const words = disagreement(scales, row.mass, row.lost);
  const isPinned = row.at === pinned;
  return (
    <div
      class="aw-fx-row"
      data-now={isPinned || undefined}
      data-hovered={row.at === hovered || undefined}
      data-words={words || undefined}
      data-at={row.at}
    >
      <span title={row.name}>
        <bdi class={isPinned && props.what === "segments" ? "aw-pill" : ""}>{row.name}</bdi>
      </span>
      <span>{props.mark(row)}</span>
      <span class="aw-fx-plot">
        {lines}
        <Bar {...{ row, scales, words }} color={props.color(row)} />
      </span>
      <span class="aw-number">
        {row.isAside ? "aside" : Number.isNaN(row.mass) ? "–" : listNumber(row.mass, "weights")}
      </span>
      <span class="aw-number">{lossText(row.lost)}</span>
      <span>{words}</span>
    </div>
  );
}

/**
 * The bar (paler beyond the loss, hollow if that is unknown), the dot of the loss, and a line to it.
 */
function Bar({ row, scales, color, words }: { row: EffectRow; scales: Scales; color: string; words: string }) {
  const mass = largest([row.mass]) / scales.mass;
  const lost = row.lost === null || Number.isNaN(row.lost) ? null : row.lost / scales.lost;
  const [zero, end] = [placeOn(scales, 0), placeOn(scales, mass)];
  const dot = lost === null ? end : placeOn(scales, lost);
  const from = (start: number, stop: number) => ({ left: `${start}%`, width: `${stop - start}%` });
  return (
    <>
      {mass > 0 && (
        <i
          data-pale={dot < end || undefined}
          data-hollow={lost === null || undefined}
          style={{ ...from(zero, end), color }}
        />
      )}
      {mass > 0 && dot < end && <i style={{ ...from(zero, Math.max(zero, dot)), color }} />}
      {dot > end && <u data-words={words || undefined} style={from(end, dot)} />}
      {lost !== null && <b style={{ left: `${dot}%` }} />}
    </>
  );
}

/** How to read the bars. */
export function BarsKey({ color, rows }: { color: string; rows: readonly EffectRow[] }) {
  return (
    <>
      <span>
        <i class="aw-fx-swatch" style={{ color }} />
        <span>
          mass<span class="aw-fx-paler">, paler beyond the loss</span>
          {rows.some(({ lost }) => lost === null) && ", hollow: not yet run"}
        </span>
      </span>
      <span>
        <b class="aw-fx-dot" />
        lost without it
      </span>
      <span>words: mass and loss ≥ half the axis apart</span>
    </>
  );
}
