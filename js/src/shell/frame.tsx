/** The whole widget: title, toolbar, picker, chosen view, status. */

import { effect } from "@preact/signals-core";
import { mount, part, px, type View } from "../components/dom";
import { goBack } from "../components/keyboard";
import { Message } from "../components/message";
import { timeLeft } from "../components/progress";
import { Without } from "../components/without";
import type { Progress } from "../contract/messages";
import type { ViewName } from "../contract/values";
import type { Ui } from "../state/ui";
import { percent } from "../text/format";
import { Card } from "./card";
import { headPicker } from "./head-picker";
import { keepKeys } from "./keys";
import { copyMessage } from "./saving";
import { stage } from "./stage";
import { notice } from "./status/notices";
import { status } from "./status/status";
import { stillShown } from "./status/waiting";
import { toolbar } from "./toolbar";

/** The views that show the cells of a block. */
const LEADS_BACK: readonly ViewName[] = ["heatmap", "text", "graph"];

/** The views without a panel beside the picture. */
const BELOW: readonly ViewName[] = ["graph", "heads", "stages", "why"];

/** Return the whole widget, which swaps its view when another is chosen. */
export function frame(ui: Ui): View {
  const { store } = ui;
  const node = part("aw-frame");
  const title = mount(part("aw-titles"), () =>
    store.title.value ? <div class="aw-title">{store.title.value}</div> : null,
  );
  const tools = toolbar(ui);
  const pick = headPicker(ui);
  const body = part("aw-body");
  const problem = mount(part("aw-problem"), () => <Problem ui={ui} />);
  const notes = notice(ui);
  const line = status(ui);
  const still = stillShown(ui);
  const card = mount(part("aw-card-slot"), () =>
    ui.card.value === null ? null : <Card key={ui.card.value} ui={ui} card={ui.card.value} />,
  );
  const back = mount(part("aw-back-slot"), () => <Back ui={ui} />);
  // Views with a panel show it there; the segments view is about it anyway.
  const without = mount(part("aw-below"), () => (BELOW.includes(store.view.value) ? <Without ui={ui} /> : null));
  keepKeys(ui);
  const shown = stage(ui);
  body.append(shown.node, problem.node, card.node);
  const above = [title.node, tools.node, pick.node, back.node, still.node];
  node.append(...above, body, without.node, notes.node, line.node);

  const ends = [
    effect(() => {
      const facts = store.facts.value;
      const fewer = store.view.value === "heads" || (facts.layers.length < 2 && facts.heads < 2);
      const alone = (facts.stacks?.length ?? 1) < 2 && (facts.forwards ?? 1) < 2;
      pick.node.hidden = fewer && facts.batches < 2 && alone;
      ui.root.dataset.mode = ui.mode.value;
      const failed = store.problem.value !== null;
      shown.node.hidden = failed && store.picture.value === null;
      shown.node.toggleAttribute("data-failed", failed);
    }),
    effect(() => {
      const extent = ui.extent.value;
      if (extent === null) node.style.removeProperty("--aw-extent");
      else node.style.setProperty("--aw-extent", px(extent));
    }),
  ];

  return {
    node,
    dispose() {
      for (const end of ends) end();
      for (const view of [shown, title, tools, pick, back, still, problem, card, without, notes, line]) view.dispose();
    },
  };
}

/** The button from the cells of a block back to the previous view. */
function Back({ ui }: { ui: Ui }) {
  const from = ui.cameFrom.value;
  const { view } = ui.store;
  if (from === null || from.view === view.value || !LEADS_BACK.includes(view.value)) return null;
  return (
    <button type="button" class="aw-back" onClick={() => goBack(ui)}>
      ‹ {from.view} <span class="aw-muted">{from.block}</span>
    </button>
  );
}

/** The progress of finding what a cache evicts, with a button to stop it. */
function Evictions({ ui, text, progress }: { ui: Ui; text: string; progress: Progress }) {
  const { layer, batch, head, stage, share } = progress;
  const stopped = progress.state === "stopped";
  const action = stopped ? "resume" : "stop";
  const left = stopped ? "stopped" : timeLeft(progress.seconds_left);
  return (
    <div class="aw-notice" data-aw="evictions">
      <Message
        sign="waiting"
        title="What the cache keeps"
        text={`${text}: ${[percent(Math.floor(100 * share) / 100), left].filter(Boolean).join(", ")}.`}
        actions={[
          {
            name: stopped ? "Resume" : "Stop",
            run: () => void ui.kernel.request("pass", { layer, batch, head, stage, action }).catch(() => {}),
          },
        ]}
      />
    </div>
  );
}

/** The message when the selected head could not be computed: Python's sentence, and what to do. */
function Problem({ ui }: { ui: Ui }) {
  const text = ui.store.problem.value;
  if (text === null) return null;
  const progress = ui.store.progress.value;
  if (progress?.what !== undefined) return <Evictions ui={ui} text={text} progress={progress} />;
  return (
    <div class="aw-notice">
      <Message
        sign="error"
        title="This head could not be computed"
        text={`${text} The other heads are unaffected.`}
        actions={[
          { name: "Try again", run: () => void ui.kernel.request("retry").catch(() => {}) },
          { name: "Copy the message", run: () => void copyMessage(ui, text) },
        ]}
      />
    </div>
  );
}
