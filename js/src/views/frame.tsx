/** The whole widget: toolbar, picker, picture with its panel, legend, status. */

import { effect } from "@preact/signals-core";
import type { Ui } from "../ui";
import { mount, part, type View } from "./dom";
import { heatmap } from "./heatmap";
import { legend } from "./legend";
import { Message } from "./message";
import { panel } from "./panel";
import { picker } from "./picker";
import { notice, status } from "./status";
import { toolbar } from "./toolbar";

export function frame(ui: Ui): View {
  const { store } = ui;
  const node = part("aw-frame");
  const title = mount(part("aw-titles"), () =>
    store.title.value ? <div class="aw-title">{store.title.value}</div> : null,
  );
  const picture = heatmap(ui);
  const side = panel(ui);
  const under = part("aw-under");
  const problem = mount(part("aw-problem"), () => <Problem ui={ui} />);
  const colours = legend(ui);
  const main = part("aw-main");
  const column = part("aw-column");
  const views = [title, toolbar(ui), picker(ui), picture, side, problem, colours, notice(ui), status(ui)];
  const [, tools, pick, , , , , notes, line] = views as [View, View, View, View, View, View, View, View, View];
  column.append(picture.node, problem.node, colours.node);
  main.append(column, side.node);
  under.append(notes.node, line.node);
  node.append(title.node, tools.node, pick.node, main, under);

  const end = effect(() => {
    const facts = store.facts.value;
    pick.node.hidden = facts.layers.length < 2 && facts.heads < 2 && facts.batches < 2;
    ui.root.dataset.mode = ui.mode.value;
    const figure = picture.figure.value;
    const failed = store.problem.value !== null && store.picture.value === null;
    picture.node.hidden = failed;
    if (figure === null) return;
    // The panel's first row stands level with the picture's first.
    side.node.style.marginTop = `${Math.max(0, figure.top - 30 * ui.unit.value)}px`;
    side.node.style.marginLeft = `${36 * ui.unit.value}px`;
    side.node.style.width = `${figure.panel}px`;
    colours.node.style.paddingLeft = `${figure.left}px`;
    colours.node.style.maxWidth = `${Math.max(figure.left + figure.width + figure.overhang, Math.min(ui.width.value, 420 * ui.unit.value))}px`;
  });

  return {
    node,
    dispose() {
      end();
      for (const view of views) view.dispose();
    },
  };
}

/** The selected head could not be computed: Python's own sentence, and what to do. */
function Problem({ ui }: { ui: Ui }) {
  const text = ui.store.problem.value;
  if (text === null) return null;
  return (
    <div class="aw-notice">
      <Message
        sign="error"
        title="This head could not be computed"
        text={`${text} The other heads are as before.`}
        actions={[
          { name: "Try again", run: () => void ui.kernel.request("retry").catch(() => {}) },
          { name: "Copy the message", run: () => void navigator.clipboard?.writeText(text) },
        ]}
      />
    </div>
  );
}
