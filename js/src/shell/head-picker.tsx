/** The choice of sample, layer and head: chips, steppers, and a thumbnail for each head with its own color range. */

import { Component } from "preact";
import { mount, part, rove, type View } from "../components/dom";
import { Menu } from "../components/menu";
import { NumberField } from "../components/number-field";
import { headWords, sampleWord, withoutKernel } from "../components/phrases";
import { Thumbnail } from "../components/thumbnail";
import type { HeadPlace } from "../contract/messages";
import { isSigned, wordsOf } from "../contract/stages";
import { HEAD_COLORS, isDark } from "../draw/color";
import type { Ui } from "../state/ui";
import { count } from "../text/format";
import { canCombine } from "../views/heads/menus";

const CHIPS = 12; // with more layers there is a stepper

const SAMPLES = { sample: "Sample", map: "Map", window: "Window" } as const;

/** Return the choice of sample, layer and heads that stands below the toolbar. */
export function headPicker(ui: Ui): View {
  return mount(part("aw-picker", "picker"), () => <Picker ui={ui} />);
}

function Picker({ ui }: { ui: Ui }) {
  const { store } = ui;
  const facts = store.facts.value;
  const narrow = ui.mode.value === "narrow";
  const all = store.view.value === "heads"; // the view itself shows all heads
  return (
    <>
      <StackPicker ui={ui} />
      {(facts.saved?.samples.length ?? facts.batches) > 1 && (
        <div class="aw-group">
          <span>{SAMPLES[sampleWord(facts)]}</span>
          <Stepper
            name={sampleWord(facts)}
            value={store.batch.value}
            count={facts.batches}
            of
            choose={(batch) => store.select({ batch })}
          />
          <AxesRead read={facts.axes_read} />
        </div>
      )}
      {facts.across && <AsOne ui={ui} words={facts.across} />}
      {facts.layers.length > 1 && !narrow && !all && <Layers ui={ui} />}
      {facts.heads > 1 && !all && <Heads ui={ui} label={!narrow} />}
      {facts.batches < 2 && <AxesRead read={facts.axes_read} />}
      {store.view.value === "compare" && <HeadOfOther ui={ui} />}
    </>
  );
}

/** The layers that are shown as one, and a button back to them. */
function AsOne({ ui, words }: { ui: Ui; words: string }) {
  return (
    <div class="aw-group" data-aw="across">
      {!ui.store.title.value?.toLowerCase().startsWith(words.toLowerCase()) && (
        <span>{words.charAt(0).toUpperCase() + words.slice(1)}</span>
      )}
      {!ui.store.facts.value.saved && (
        <button type="button" class="aw-toggle" onClick={() => ui.store.show({ across: null })}>
          show single layers
        </button>
      )}
    </div>
  );
}

/** The choice of forward pass and of stack (encoder, decoder, vision tower). */
function StackPicker({ ui }: { ui: Ui }) {
  const { store } = ui;
  const { stacks = [], forwards = 1, request, ...shown } = store.facts.value;
  const reason = fixed(ui);
  // Show the wanted stack at once; if it cannot come, show the current one.
  const wanted = reason === undefined ? { stack: store.stack.value, forward: store.forward.value } : shown;
  const { stack = "", forward = 0 } = wanted;
  if (forwards < 2 && stacks.length < 2) return null;
  return (
    <div class="aw-stacks">
      {forwards > 1 && (
        <div class="aw-group" data-aw="forward" title={reason ?? `cap[${forward}]`}>
          <span>{request ? "Request" : "Forward pass"}</span>
          <Stepper
            name="forward"
            value={forward}
            count={forwards}
            of
            disabled={reason !== undefined}
            choose={(next) => store.show({ forward: next })}
          />
          {request && forward === shown.forward && <span class="aw-request">id {request}</span>}
        </div>
      )}
      {stacks.length > 1 && (
        <div class="aw-group" data-aw="stack">
          <Menu
            name="Stack"
            label="Stack"
            value={stack}
            side="left"
            disabled={reason}
            sections={[
              {
                value: stack,
                choices: stacks.map((name) => ({ value: name, name })),
                choose: (name) => store.show({ stack: name }),
              },
            ]}
          />
        </div>
      )}
    </div>
  );
}

/** Return why no other stack can be chosen; undefined if one can. */
function fixed(ui: Ui): string | undefined {
  if (ui.store.facts.value.saved) return "This file holds only what is shown. Open the notebook for the rest.";
  return withoutKernel(ui, "choose another");
}

const AXES: Record<string, string> = { b: "sample", h: "head", q: "query", k: "key", d: "size" };
const OTHERWISE: Record<string, readonly [string, string]> = {
  bqd: ["For heads", "hqd"],
  bqk: ["For heads", "hqk"],
  hqk: ["For samples", "bqk"],
  bhk: ["For queries of one head", "bqk"],
};

/** How three unnamed axes were read and how to say otherwise, until dismissed. */
class AxesRead extends Component<{ read: string | null | undefined }, { away: boolean }> {
  override state = { away: false };

  override render() {
    const { read } = this.props;
    const otherwise = read && OTHERWISE[read];
    if (!otherwise || this.state.away) return null;
    return (
      <span class="aw-axes-read" data-aw="axes-read">
        3 axes: {[...read].map((letter) => AXES[letter] ?? letter).join(", ")}. {otherwise[0]}:{" "}
        <code>dims="{otherwise[1]}"</code>
        <button type="button" aria-label="Dismiss this note" onClick={() => this.setState({ away: true })}>
          ×
        </button>
      </span>
    );
  }
}

/** The choice of B's layer, sample and head: the same as A's, or its own. */
function HeadOfOther({ ui }: { ui: Ui }) {
  const { store } = ui;
  const { layers, batches, heads } = store.facts.value;
  const counts = { layer: layers.length, sample: batches, head: heads };
  if (Object.values(counts).every((total) => total < 2)) return null;
  const reason = fixed(ui);
  const own = store.against_at.value ?? null;
  const place = own ?? ([store.layer.value, store.batch.value, store.head.value] as const);
  const choose = (at: HeadPlace | null) => store.show({ against_at: at });
  const name = store.against.value ?? "B";
  return (
    <div class="aw-group aw-other" data-aw="other" title={reason}>
      <span>
        <bdi>{name}</bdi>
      </span>
      <button
        type="button"
        role="checkbox"
        class="aw-check"
        aria-checked={own === null}
        title={reason ?? `${name} shows the same layer, sample and head as ${store.sides.value?.[0] ?? "A"}`}
        disabled={reason !== undefined}
        onClick={() => choose(own === null ? place : null)}
      >
        same head
      </button>
      {own !== null &&
        Object.entries(counts).map(([part, total], index) =>
          total < 2 ? null : (
            <div class="aw-group" key={part}>
              <span>{part[0]!.toUpperCase() + part.slice(1)}</span>
              <Stepper
                name={`${part} of ${name}`}
                value={place[index]!}
                count={total}
                disabled={reason !== undefined}
                choose={(next) => {
                  const [layer, sample, head] = place.map((at, one) => (one === index ? next : at));
                  choose([layer!, sample!, head!]);
                }}
              />
            </div>
          ),
        )}
    </div>
  );
}

/** Whether this item can be selected: a saved file may hold only some. */
const isHere = (saved: readonly number[] | undefined, index: number) => saved?.includes(index) ?? true;

function Layers({ ui }: { ui: Ui }) {
  const { store } = ui;
  const names = store.facts.value.layers;
  const choose = (layer: number) => store.select({ layer });
  if (names.length > CHIPS) return <LayerStepper ui={ui} />;
  return (
    <div class="aw-group">
      <span>Layer</span>
      <div class="aw-chips" role="radiogroup" aria-label="Layer">
        {names.map((name, index) => (
          <button
            type="button"
            role="radio"
            key={index}
            aria-checked={index === store.layer.value}
            aria-label={`layer ${index}`}
            tabIndex={index === store.layer.value ? 0 : -1}
            title={isHere(store.facts.value.saved?.layers, index) ? name : store.facts.value.saved?.others}
            disabled={!isHere(store.facts.value.saved?.layers, index)}
            onClick={() => choose(index)}
            onKeyDown={(event) => rove(event, index, names.length, choose)}
          >
            {index}
          </button>
        ))}
      </div>
    </div>
  );
}

/** Step through the layers, or type one. */
export function LayerStepper({ ui }: { ui: Ui }) {
  const { store } = ui;
  const layers = store.facts.value.layers.length;
  if (layers < 2) return null;
  return (
    <div class="aw-group">
      <span>Layer</span>
      <Stepper
        name="layer"
        value={store.layer.value}
        count={layers}
        of={ui.mode.value !== "narrow"}
        choose={(layer) => store.select({ layer })}
      />
    </div>
  );
}

/** Step through the heads, or type one. */
export function HeadStepper({ ui }: { ui: Ui }) {
  const { store } = ui;
  const { heads, head_numbers } = store.facts.value;
  if (heads < 2) return null;
  const number = head_numbers?.[store.head.value];
  return (
    <div class="aw-group">
      <span>Head</span>
      <Stepper name="head" value={store.head.value} count={heads} choose={(head) => store.select({ head })} />
      {number !== undefined && (
        <span class="aw-muted" title={headWords(store.head.value, store.facts.value)}>
          ({number})
        </span>
      )}
    </div>
  );
}

interface StepperProps {
  readonly name: string;
  readonly value: number;
  readonly count: number;
  readonly of?: boolean;
  readonly disabled?: boolean;
  choose(value: number): void;
}

/** ‹ 17 › of 80: step, or type a number. */
function Stepper({ name, value, count: total, of, disabled = false, choose }: StepperProps) {
  const typed = (event: Event) => {
    const input = event.currentTarget as HTMLInputElement;
    const wanted = Number(input.value.trim() || Number.NaN);
    if (Number.isInteger(wanted) && wanted >= 0 && wanted < total && wanted !== value) choose(wanted);
    else input.value = String(value);
  };
  const walk = (event: KeyboardEvent) => {
    event.stopPropagation();
    const next = value + (event.key === "ArrowUp" ? 1 : event.key === "ArrowDown" ? -1 : 0);
    if (next === value) return;
    event.preventDefault();
    if (next >= 0 && next < total) choose(next);
  };
  return (
    <div class="aw-stepper">
      <button
        type="button"
        aria-label={`previous ${name}`}
        disabled={disabled || value === 0}
        onClick={() => choose(value - 1)}
      >
        ‹
      </button>
      <NumberField
        inputMode="numeric"
        label={`${name}, 0 to ${total - 1}`}
        text={String(value)}
        disabled={disabled}
        onChange={typed}
        onKeyDown={walk}
      />
      <button
        type="button"
        aria-label={`next ${name}`}
        disabled={disabled || value === total - 1}
        onClick={() => choose(value + 1)}
      >
        ›
      </button>
      {of && <span class="aw-muted">of {count(total)}</span>}
    </div>
  );
}

/** Every head with its thumbnail; heads that share a key/value head stand over one line. */
function Heads({ ui, label }: { ui: Ui; label: boolean }) {
  const { store } = ui;
  const { heads, groups, head_numbers } = store.facts.value;
  const nameOf = (head: number) => headWords(head, store.facts.value);
  const thumbnails = store.thumbnails.value;
  const signed = isSigned(thumbnails?.stage ?? "weights");
  const paints = (signed ? ui.paints.value?.diverging : ui.paints.value?.sequential) ?? null;
  const room = Math.min(ui.width.value / ui.unit.value, 1280) - (label ? 50 : 0);
  const chip = head_numbers ? 39 : 29; // room for both numbers
  const dense = heads * chip > Math.max(room, CHIPS * chip);
  const isSeveral = store.view.value === "graph" || (canCombine(ui) && store.combine.value !== "none");
  const shown = isSeveral ? store.shownHeads.value : [store.head.value];
  const dark = isDark(ui.theme.value);
  const isOne = typeof store.pictured.value === "string";
  const colorOf = (head: number) =>
    shown.length > 1 && !isOne ? HEAD_COLORS[dark ? "dark" : "light"][shown.indexOf(head) % 12] : undefined;
  const choose = (head: number) => store.select(isSeveral ? { head, heads: [head] } : { head });
  const shared = groups < heads ? heads / groups : 0;
  const highs =
    store.color_range.value === "layer" && thumbnails?.stage === "weights" ? (thumbnails.highs ?? null) : null;
  const most = highs?.reduce((high, other) => Math.max(high, other), 0) ?? 0;
  const shareOf = (head: number) => (highs === null || most === 0 ? 1 : (highs[head] ?? most) / most);
  const whose =
    thumbnails === null
      ? ""
      : `; thumbnail${thumbnails.stage === "weights" ? "" : ` of ${wordsOf(thumbnails.stage)}`} with ${highs === null ? "its own color range" : "the color range of the layer"}`;
  return (
    <div class="aw-group">
      {label && (
        <span title={isSeveral ? "Shift-click to choose several" : undefined}>{isSeveral ? "Heads" : "Head"}</span>
      )}
      <div
        class="aw-heads"
        {...(isSeveral ? { role: "group", "aria-label": "Heads" } : { role: "radiogroup", "aria-label": "Head" })}
        data-dense={dense || undefined}
        data-many={heads >= 8 || undefined}
        data-numbered={head_numbers ? "" : undefined}
        ref={(list) => keepInView(list, store.head.value)}
      >
        {Array.from({ length: heads }, (_, head) => {
          const chosen = shown.includes(head);
          const color = chosen ? colorOf(head) : undefined;
          const grid = thumbnails?.heads[head];
          return (
            <button
              type="button"
              {...{ role: isSeveral ? "checkbox" : "radio", "aria-checked": chosen }}
              key={head}
              style={color ? { "--aw-head": color } : undefined}
              aria-label={nameOf(head)}
              tabIndex={head === store.head.value ? 0 : -1}
              title={
                isHere(store.facts.value.saved?.heads, head)
                  ? `${nameOf(head)}${shared ? `, key/value head ${Math.floor(head / shared)}` : ""}${whose}`
                  : store.facts.value.saved?.others
              }
              disabled={!isHere(store.facts.value.saved?.heads, head)}
              onClick={(event) =>
                isSeveral && (event.shiftKey || event.ctrlKey || event.metaKey) ? store.toggleHead(head) : choose(head)
              }
              onKeyDown={(event) => rove(event, head, heads, choose)}
            >
              <Thumbnail grid={grid ?? null} {...{ paints, signed }} share={shareOf(head)} />
              <span>
                {!dense || chosen || (head % 8 === 0 && Math.abs(head - store.head.value) > 1) ? head : " "}
                {!dense && head_numbers ? ` (${head_numbers[head]})` : ""}
              </span>
              {shared > 1 && <i class="aw-shared" data-last={head % shared === shared - 1 || undefined} />}
            </button>
          );
        })}
      </div>
    </div>
  );
}

/** Scroll only the list, so that a newly chosen head is in view. */
function keepInView(list: HTMLElement | null, head: number): void {
  if (list === null || list.dataset.head === String(head)) return;
  list.dataset.head = String(head);
  requestAnimationFrame(() => {
    const [chosen, frame] = [list.children[head]?.getBoundingClientRect(), list.getBoundingClientRect()];
    if (chosen === undefined) return;
    const margin = 24;
    if (chosen.left < frame.left + margin) list.scrollLeft += chosen.left - frame.left - margin;
    else if (chosen.right > frame.right - margin) list.scrollLeft += chosen.right - frame.right + margin;
  });
}
