/** The names of parts of the residual stream, and of keys. */

import { placeText } from "../../components/place";
import type { StreamPart } from "../../contract/requests";
import type { Against } from "../../data/reason-words";
import type { Ui } from "../../state/ui";

/** The name of a part; of a head, a link to it. */
export function HeadLink({ ui, part }: { ui: Ui; part: StreamPart }) {
  const { layer, head, label } = part;
  if (layer === null || head === null) return <span title={part.module}>{label}</span>;
  const title = `Show head ${head} of layer ${layer} (${part.module})`;
  return (
    <button type="button" class="aw-link" title={title} onClick={() => ui.store.select({ layer, head })}>
      {label}
    </button>
  );
}

/** The name of the key that others are compared with, as a text; "" if it is something else. */
export function otherName(ui: Ui, against: Against): string {
  if (typeof against !== "number") return "";
  return placeText(ui.store.keyLabels.value, against, "key");
}
