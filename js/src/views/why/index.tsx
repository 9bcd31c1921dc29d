/**
 * Why a head looked there: the answer in one sentence, the parts of the row's keys, the terms of the pair, and the graph
 * of heads behind it.
 */

import { effect, signal } from "@preact/signals-core";
import { mount, part, Token, type View } from "../../components/dom";
import { RadioWords } from "../../components/radio-words";
import { Asked, headOf, Unfold } from "../../components/unfold";
import type { Reply } from "../../contract/requests";
import { type Against, ofWords } from "../../data/reason-words";
import type { PairParts, RowParts } from "../../data/reasons";
import { vector } from "../../data/stage-data";
import type { Ui } from "../../state/ui";
import type { Chosen } from "./chosen";
import { otherName } from "./head-link";
import { HeadsGraph, isSmall } from "./heads-graph";
import { RowOfParts } from "./row";
import { Terms } from "./terms";

const WIDEST = 960; // of the view, as in why.css
const GRAPH = "Heads behind it";

/** Return the view that says why a head looked there. */
export function why(ui: Ui): View {
  const chosen: Chosen = {
    against: signal("others"),
    side: signal("all"),
    least: signal(0.2),
    follows: signal(false),
    pointed: signal(null),
    pointedHead: signal(null),
    open: signal(new Set(isSmall(ui) ? [GRAPH] : [])),
  };
  ui.keyLines.value = () => [
    { shown: "← →", does: "In the bars: the key before, or after", keys: {} },
    { shown: "Shift and click", does: "Compare with that key", keys: {} },
    { shown: "← → ↑ ↓", does: "In the graph: the head beside this one", keys: {} },
  ];
  const view = mount(part("aw-why"), () => <Why ui={ui} chosen={chosen} />);
  const end = effect(() => {
    ui.extent.value = ui.mode.value === "narrow" ? null : Math.min(ui.width.value, WIDEST * ui.unit.value);
  });
  return {
    ...view,
    dispose() {
      end();
      view.dispose();
    },
  };
}

async function readRow(reply: Reply<"why_row">): Promise<RowParts | null> {
  if (reply.terms === undefined || reply.apart === undefined) return null;
  const [terms, apart] = await Promise.all([reply.terms, reply.apart].map((one) => vector(one, reply.buffers)));
  return terms && apart ? { ...(reply as Required<Reply<"why_row">>), terms, apart } : null;
}

async function readPair(reply: Reply<"why">): Promise<PairParts | string | null> {
  if (reply.nothing !== undefined) return reply.nothing;
  if (reply.terms === undefined) return null;
  const terms = await vector(reply.terms, reply.buffers);
  return terms && { ...(reply as Required<Reply<"why">>), terms };
}

function Why({ ui, chosen }: { ui: Ui; chosen: Chosen }) {
  const { store, kernel } = ui;
  const { why: known, saved } = store.facts.value;
  const [query, key] = [store.query.value, store.key.value];
  if (known !== true) return <p class="aw-prompt">{lacking(Object.keys(store.what_if.value).length > 0)}</p>;
  // What is drawn once an answer has come reads these: reading them here draws it again when one changes.
  for (const one of [...Object.values(chosen), ui.width, ui.unit, ui.theme, ui.paints]) void one.value;
  for (const labels of [store.queryLabels, store.keyLabels]) void labels.value;
  const { body, key: of } = headOf(ui);
  const against = chosen.against.value;
  const others = typeof against === "number" ? [against] : [];
  const keys = saved ? [] : [...new Set([...(key === null ? [] : [key]), ...others])];
  const asks = kernel.away.value && !saved ? null : query;
  return (
    <>
      {query === null ? (
        <p class="aw-prompt">
          Pin a cell to see why the head looked there.{" "}
          <button type="button" class="aw-link" onClick={() => store.show({ view: "heatmap" })}>
            Show the heatmap
          </button>
        </p>
      ) : (
        <Headline ui={ui} chosen={chosen} query={query} />
      )}
      {asks !== null && (
        <Asked
          ui={ui}
          kind="why_row"
          body={{ ...body, query: asks, keys }}
          of={[of, asks, keys].join()}
          read={readRow}
          tall={300}
          draw={(row) => row && <RowOfParts {...{ ui, row, chosen, key: key ?? undefined }} pinned={key} />}
        />
      )}
      {asks !== null && key !== null && key !== against && (
        <section aria-label="Terms">
          <h3 class="aw-why-title">
            Query parts × key parts{" "}
            <span class="aw-muted">each cell is one term of {ofWords(against, otherName(ui, against))}</span>
          </h3>
          <Asked
            ui={ui}
            kind="why"
            body={{ ...body, query: asks, key, against: against === "none" ? null : against }}
            of={[of, asks, key, against].join()}
            read={readPair}
            tall={200}
            draw={(pair) =>
              typeof pair === "string" ? (
                <p class="aw-muted">{`${pair[0]?.toUpperCase()}${pair.slice(1)}.`}</p>
              ) : (
                pair && <Terms ui={ui} pair={pair} against={against} />
              )
            }
          />
        </section>
      )}
      <div class="aw-sections">
        <Unfold name={GRAPH} note="what each head reads from earlier ones, on this text" open={chosen.open}>
          {() => <HeadsGraph ui={ui} chosen={chosen} />}
        </Unfold>
      </div>
    </>
  );
}

function lacking(otherRules: boolean): string {
  return otherRules
    ? "The parts of a score are those of the model's own attention. Reset What if to see them."
    : "This attention has no record of what was written into the residual stream. Capture the model with capture(model, sources=True).";
}

/** A choice as a text that is no number: objects would put numbers first. */
const choiceOf = (against: Against) => (typeof against === "number" ? `key ${against}` : against);

/** "bank → river", and what the parts are compared with. */
function Headline({ ui, chosen, query }: { ui: Ui; chosen: Chosen; query: number }) {
  const { store } = ui;
  const key = store.key.value;
  const own = chosen.against.value;
  const pins = store.pins.value.filter(([at, to]) => at === query && to !== null && to !== key).map(([, to]) => to!);
  const others = [...new Set([...pins, ...(typeof own === "number" && own !== key ? [own] : [])])];
  const words: Record<string, string> = { others: "the other keys", mean: "the row's mean", none: "nothing" };
  for (const at of others) words[choiceOf(at)] = otherName(ui, at);
  const choose = (value: string) => {
    chosen.against.value = others.find((at) => choiceOf(at) === value) ?? (value as "others" | "mean" | "none");
  };
  return (
    <div class="aw-why-head">
      <span class="aw-steps-pair">
        <span class="aw-pill">
          <Token labels={store.queryLabels.value} index={query} subscript />
        </span>
        {key !== null && (
          <>
            <span>→</span>
            <span class="aw-pill">
              <Token labels={store.keyLabels.value} index={key} subscript />
            </span>
          </>
        )}
      </span>
      <RadioWords name="Compare with" label="against" words={words} chosen={choiceOf(own)} choose={choose} />
    </div>
  );
}
