/** Running text, coloured by what the pinned token attends to or by who attends to it; a panel beside. */

import type { View } from "../../components/dom";
import type { Ui } from "../../state/ui";
import { reader } from "./reader";

export function text(ui: Ui): View {
  return reader(ui, false);
}
