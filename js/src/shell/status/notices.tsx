/** Notices around a view: a lost kernel, a change that Python refused, a part that could not be computed. */

import { mount, part, type View } from "../../components/dom";
import { Message } from "../../components/message";
import type { TraitName } from "../../contract/traits";
import type { Ui } from "../../state/ui";

/** Return the notices. */
export function notice(ui: Ui): View {
  return mount(part("aw-notices"), () => <Notice ui={ui} />);
}

function Notice({ ui }: { ui: Ui }) {
  const state = ui.kernel.state.value;
  const refused = ui.store.refused.value;
  const missing = ui.store.missing.value;
  const told = ui.told.value;
  const lacks = missing === null ? "" : ` ${missing}`;
  const message =
    told !== null ? (
      <Message sign="empty" title={told.title} text={told.text} />
    ) : state === "gone" ? (
      <Message
        sign="gone"
        title="The kernel is gone"
        text={`You see the last picture.${lacks} Run the cell again to compute more.`}
      />
    ) : state === "orphan" ? (
      <Message
        sign="gone"
        title="No kernel has this widget"
        text={`You see what was saved.${lacks} Run the cell again to compute more.`}
      />
    ) : state === "silent" ? (
      <Message
        sign="gone"
        title="No kernel answers"
        text={`You see what was saved.${lacks} If a cell is running, wait for it to finish. Otherwise run this widget's cell to compute more.`}
      />
    ) : refused !== null && ui.store.facts.value.saved !== undefined ? (
      <Message sign="empty" title="Not in this file" text={refused} />
    ) : refused !== null ? (
      <Message sign="error" title="Python refused this" text={refused} />
    ) : (
      failed(ui)
    );
  return message === null ? null : <div class="aw-notice">{message}</div>;
}

/** Plain names of the derived traits. */
const DERIVED: Partial<Record<TraitName, string>> = {
  thumbnails: "thumbnails of the heads",
  links: "links",
  stages: "stages",
  pair: "steps of the pinned pair",
  findings: "checks",
  deviation: "comparison with torch",
  changes: "changes at the pin",
};

/** Which parts of this selection could not be computed; all others are shown. */
function failed({ store }: Ui) {
  const errors = Object.entries(store.errors.value ?? {});
  if (errors.length === 0) return null;
  const names = errors.map(([name]) => DERIVED[name as TraitName] ?? name);
  const reasons = new Set(errors.map(([, reason]) => reason));
  return <Message sign="empty" title={`Not computed: ${names.join(", ")}`} text={[...reasons].join("; ")} />;
}
