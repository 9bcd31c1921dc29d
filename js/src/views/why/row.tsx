/** The parts of a row's keys: stacks along the keys, the answer in a sentence, and the list of parts at one key. */

import { rove, Token } from "../../components/dom";
import { Named, placeText } from "../../components/place";
import type { StreamPart } from "../../contract/requests";
import {
  type Against,
  barsWords,
  heightWords,
  looks,
  type Phrase,
  reason,
  sumWords,
  wroteWords,
} from "../../data/reason-words";
import { contrasts, leadingAt, type Piece, type RowParts, rangeOf, stacks, subtractedAt } from "../../data/reasons";
import { segmentStyle } from "../../draw/segment-colors";
import type { Ui } from "../../state/ui";
import { count, listNumber } from "../../text/format";
import type { Chosen } from "./chosen";
import { HeadLink, otherName } from "./head-link";

const PLOT = 148; // height of the stacks
const LEFT = 40; // for the numbers of the axis
const EDGE = 6; // right of the last label
const LABELS = 58; // below the stacks
const PITCH = 40; // of columns, at most
const LEAST_PITCH = 13;
const WIDEST = 600; // of the stacks
const LIST = 264; // beside them
const LEAST_BESIDE = 400; // of the stacks beside the list
const LETTERS = 9; // of a label
const SLOTS = [1, 2, 3, 4, 5, 6, 0, 7]; // the colors of the parts: grays last
const REST = 8; // which is gray too

interface Props {
  readonly ui: Ui;
  readonly row: RowParts;
  readonly chosen: Chosen;
  readonly pinned: number | null;
}

const score = (value: number) => listNumber(value, "scores");

/** Show the parts of the keys of a row. */
export function RowOfParts({ ui, row, chosen, pinned }: Props) {
  const against: Against = chosen.against.value;
  const terms = contrasts(row, against);
  const at = pinned === null ? -1 : row.keys.indexOf(pinned);
  const pointed = chosen.pointed.value;
  const shown = pointed !== null && pointed < row.keys.length ? pointed : at >= 0 ? at : null;
  const room = ui.width.value / ui.unit.value;
  const beside = room >= LEAST_BESIDE + LIST + 36;
  return (
    <>
      <Sentence {...{ ui, row, terms, against }} at={at} />
      <div class="aw-why-row" data-beside={beside || undefined}>
        <Stacks
          {...{ ui, row, terms, chosen, pinned }}
          wide={Math.floor(Math.min(WIDEST, beside ? room - LIST - 36 : room))}
          point={(key) => {
            chosen.pointed.value = key;
          }}
        />
        <Parts {...{ ui, row, terms, against }} at={shown} />
      </div>
    </>
  );
}

interface SentenceProps {
  readonly ui: Ui;
  readonly row: RowParts;
  readonly terms: readonly (readonly number[])[];
  readonly against: Against;
  readonly at: number;
}

/** "bank₁₄ looks at river: 61 % of what sets it above the mean of the row's other keys is what head 1·4 wrote there." */
function Sentence({ ui, row, terms, against, at }: SentenceProps) {
  const { store } = ui;
  if (at < 0) return <p class="aw-why-sentence">Choose a key: click a column.</p>;
  const weight = row.weights[at]!;
  const total = sumAt(terms, at);
  const { leading, ofAll } = leadingAt(row, against, at);
  const scale = against === "none" ? 0 : Math.max(...[row.scores[at]!, subtractedAt(row, against, at)].map(Math.abs));
  return (
    <p class="aw-why-sentence" aria-live="polite">
      <b>
        <Named labels={store.queryLabels.value} index={store.query.value ?? 0} side="query" opens />
      </b>{" "}
      {looks(weight)}{" "}
      <b>
        <Named labels={store.keyLabels.value} index={row.keys[at]!} side="key" />
      </b>{" "}
      <span class="aw-muted">(weight {listNumber(weight, "weights")})</span>:{" "}
      {Number.isNaN(total)
        ? `no ${weight > 0 ? "other " : ""}key has a weight, so there is no mean to compare with`
        : reason(total, leading, against, otherName(ui, against), scale).map((phrase) => (
            <Words ui={ui} row={row} phrase={phrase} />
          ))}
      .
      {!ofAll && (
        <span class="aw-muted"> Parts that are not listed may be larger: this comparison was not saved in full.</span>
      )}
    </p>
  );
}

function Words({ ui, row, phrase }: { ui: Ui; row: RowParts; phrase: Phrase }) {
  if (typeof phrase === "string") return <>{phrase}</>;
  return "strong" in phrase ? <b>{phrase.strong}</b> : <Wrote ui={ui} part={row.parts[phrase.part]!} />;
}

const sumAt = (terms: readonly (readonly number[])[], at: number) => terms.reduce((sum, own) => sum + own[at]!, 0);

/** What a part is; a head leads to that head. */
function Wrote({ ui, part }: { ui: Ui; part: StreamPart }) {
  const words = wroteWords(part);
  if (part.layer === null || part.head === null) return <>{words}</>;
  const [before, after] = words.split(part.label);
  return (
    <>
      {before}
      <HeadLink ui={ui} part={part} />
      {after}
    </>
  );
}

interface StacksProps {
  readonly ui: Ui;
  readonly row: RowParts;
  readonly terms: readonly (readonly number[])[];
  readonly chosen: Chosen;
  readonly pinned: number | null;
  readonly wide: number;
  point(key: number | null): void;
}

/** The places in `row.keys` that fit: the pinned key, the one compared with, and those of largest weight. */
function fitting(row: RowParts, most: number, must: readonly (number | null)[]): number[] {
  const all = row.keys.map((_, place) => place);
  if (all.length <= most) return all;
  const first = (place: number) => (must.includes(row.keys[place]!) ? 1 : 0);
  const order = [...all].sort((a, b) => first(b) - first(a) || row.weights[b]! - row.weights[a]!);
  return order.slice(0, most).sort((a, b) => a - b);
}

function Stacks({ ui, row, terms, chosen, pinned, wide, point }: StacksProps) {
  const { store } = ui;
  const against = chosen.against.value;
  const must = [pinned, typeof against === "number" ? against : null];
  const places = fitting(row, Math.max(1, Math.floor((wide - LEFT - EDGE) / LEAST_PITCH)), must);
  const pieces = stacks(terms.map((own) => places.map((place) => own[place]!)));
  const [low, high] = rangeOf(pieces);
  const pitch = Math.min(PITCH, (wide - LEFT - EDGE) / places.length);
  const y = (value: number) => 6 + ((PLOT - 12) * (high - value)) / (high - low || 1);
  const hidden = row.others + row.keys.length - places.length;
  const tall = PLOT + LABELS;
  const chosenColumn = Math.max(
    0,
    places.findIndex((place) => row.keys[place] === pinned),
  );
  return (
    <figure class="aw-why-stacks">
      <figcaption>
        <b>Parts of each key</b>{" "}
        <span class="aw-muted">
          {barsWords(against, otherName(ui, against))}
          {hidden > 0 && `; ${count(places.length)} of ${count(places.length + hidden)} keys, those of largest weight`}
        </span>
      </figcaption>
      <svg
        class="aw-chart"
        data-aw="picture"
        viewBox={`0 0 ${wide} ${tall}`}
        style={{ width: `calc(${wide} * var(--aw-u))` }}
        role="group"
        aria-label={`Parts of ${count(places.length)} keys`}
        onMouseLeave={() => point(null)}
      >
        {[low, 0, high].map((value) => (
          <g key={value}>
            <path
              class="aw-grid"
              data-zero={value === 0 || undefined}
              d={`M${LEFT} ${y(value)}H${LEFT + pitch * places.length}`}
            />
            {(value === 0 || Math.abs(y(value) - y(0)) > 11) && (
              <text data-end x={LEFT - 6} y={y(value) + 3.5}>
                {value === 0 ? "0" : tick(value)}
              </text>
            )}
          </g>
        ))}
        {places.map((place, column) => (
          <Column
            key={row.keys[place]}
            {...{ ui, row, place, y }}
            less={heightWords(row.scores[place]! - subtractedAt(row, against, place), against, otherName(ui, against))}
            x={LEFT + column * pitch}
            pitch={pitch}
            pieces={pieces[column]!}
            isPinned={row.keys[place] === pinned}
            isOther={row.keys[place] === against}
            isTabStop={column === chosenColumn}
            point={() => point(place)}
            rove={(event) =>
              rove(
                event,
                column,
                places.length,
                (to) => store.select({ key: row.keys[places[to]!]! }),
                ".aw-why-column",
              )
            }
            pin={(event) => {
              const key = row.keys[place]!;
              if (event.shiftKey) chosen.against.value = against === key ? "others" : key;
              else store.select({ key });
            }}
          />
        ))}
        {places.map((place, column) => (
          <ColumnLabel
            key={row.keys[place]}
            {...{ ui }}
            at={row.keys[place]!}
            x={LEFT + (column + 0.5) * pitch}
            isPinned={row.keys[place] === pinned}
          />
        ))}
      </svg>
    </figure>
  );
}

/** A number with three digits, for the axis. */
const tick = (value: number) => String(Number(value.toPrecision(2))).replace("-", "−");

interface ColumnProps {
  readonly ui: Ui;
  readonly row: RowParts;
  readonly place: number;
  readonly x: number;
  readonly pitch: number;
  readonly pieces: readonly Piece[];
  readonly isPinned: boolean;
  readonly isOther: boolean;
  readonly isTabStop: boolean;
  /** What the column shows, if it is not the score. */
  readonly less: string;
  y(value: number): number;
  point(): void;
  rove(event: KeyboardEvent): void;
  pin(event: MouseEvent): void;
}

function Column({
  ui,
  row,
  place,
  x,
  pitch,
  pieces,
  isPinned,
  isOther,
  isTabStop,
  less,
  y,
  point,
  rove,
  pin,
}: ColumnProps) {
  const key = row.keys[place]!;
  const about = `${placeText(ui.store.keyLabels.value, key, "key")}: score ${score(row.scores[place]!)}, weight ${listNumber(row.weights[place]!, "weights")}${less}`;
  const gap = pitch > 8 ? 2 : 0.5;
  const wide = pitch - gap;
  const ends = pieces.map(({ to }) => to);
  const [low, high] = [Math.min(0, ...ends), Math.max(0, ...ends)];
  return (
    <g
      class="aw-why-column"
      role="button"
      tabindex={isTabStop ? 0 : -1}
      aria-pressed={isPinned}
      aria-label={about}
      onMouseEnter={point}
      onClick={pin}
      onKeyDown={rove}
    >
      <title>{about}</title>
      <rect class="aw-hit" x={x} y={0} width={pitch} height={PLOT + LABELS} />
      {pieces.map(({ part, from, to }) => (
        <rect
          key={part}
          x={x + gap / 2}
          width={wide}
          y={Math.min(y(from), y(to))}
          height={Math.max(0, Math.abs(y(from) - y(to)) - 0.5)}
          style={{ fill: colorOf(ui, part, pieces.length) }}
        />
      ))}
      {(isPinned || isOther) && (
        <rect
          class="aw-why-ring"
          data-other={isOther || undefined}
          x={x + gap / 2 - 1.5}
          width={wide + 3}
          y={y(high) - 2.5}
          height={y(low) - y(high) + 5}
          rx={2.5}
        />
      )}
    </g>
  );
}

/** The name of a key below its column, which has it in full. */
function ColumnLabel({ ui, at, x, isPinned }: { ui: Ui; at: number; x: number; isPinned: boolean }) {
  const { text, subscript } = ui.store.keyLabels.value.at(at);
  return (
    <text
      class="aw-why-label"
      data-chosen={isPinned || undefined}
      transform={`translate(${x + 3} ${PLOT + 8}) rotate(-45)`}
    >
      {text.length > LETTERS ? `${text.slice(0, LETTERS - 1)}…` : text}
      <tspan class="aw-sub" dy="2">
        {isPinned ? subscript : ""}
      </tspan>
    </text>
  );
}

/** The color of a part: one of eight; the last of all is the rest, in gray. */
function colorOf(ui: Ui, part: number, parts: number): string {
  return segmentStyle(part === parts - 1 ? REST : SLOTS[part]!, ui.theme.value);
}

interface PartsProps {
  readonly ui: Ui;
  readonly row: RowParts;
  readonly terms: readonly (readonly number[])[];
  readonly against: Against;
  readonly at: number | null;
}

/** The parts at one key, with their terms: a legend, and the numbers. The sentence's parts are among them. */
function Parts({ ui, row, terms, against, at }: PartsProps) {
  const own = (part: number) => (at === null ? Number.NaN : terms[part]![at]!);
  const stacked = row.parts.slice(0, row.stacked).map((part, number) => ({ part, value: own(number) }));
  const leading = at === null ? [] : leadingAt(row, against, at).leading;
  const beside = leading
    .filter(([part]) => part >= row.stacked)
    .map(([part, value]) => ({ part: row.parts[part]!, value }));
  const rest = own(row.stacked) - beside.reduce((sum, { value }) => sum + value, 0);
  const lines = [...stacked, ...beside, ...(row.more > beside.length ? [{ part: null, value: rest }] : [])];
  const most = Math.max(...lines.map(({ value }) => Math.abs(value) || 0), 1e-12);
  const sum = at === null ? Number.NaN : sumAt(terms, at);
  const color = (line: number) => colorOf(ui, Math.min(line, row.stacked), row.stacked + 1);
  return (
    <div class="aw-why-parts">
      <div class="aw-why-parts-head">
        {at === null ? (
          <span class="aw-muted">point at a key</span>
        ) : (
          <b>
            <Token labels={ui.store.keyLabels.value} index={row.keys[at]!} subscript />
          </b>
        )}
      </div>
      <ul>
        {lines.map(({ part, value }, line) => (
          <li key={part?.label ?? "rest"}>
            <i style={{ background: color(line) }} />
            <span class="aw-why-name">
              {part === null ? `${count(row.more - beside.length)} more parts` : <HeadLink ui={ui} part={part} />}
            </span>
            <span class="aw-why-bar" aria-hidden="true">
              {Number.isFinite(value) && (
                <i
                  data-below={value < 0 || undefined}
                  style={{ width: `${(Math.abs(value) / most) * 50}%`, background: color(line) }}
                />
              )}
            </span>
            <span class="aw-why-number">{Number.isNaN(value) ? "" : plus(value)}</span>
          </li>
        ))}
      </ul>
      {at !== null && !Number.isNaN(sum) && (
        <p class="aw-why-sum">
          sum {plus(sum)} = {sumWords(row.scores[at]!, subtractedAt(row, against, at), against, otherName(ui, against))}{" "}
          <span class="aw-muted">rounding at most {row.rounding.toExponential(0).replace("-", "−")}</span>
        </p>
      )}
    </div>
  );
}

const plus = (value: number) => (value > 0 ? `+${score(value)}` : score(value));
