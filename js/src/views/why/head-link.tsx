/** The name of a part of the residual stream. */

import type { StreamPart } from "../../contract/requests";
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
