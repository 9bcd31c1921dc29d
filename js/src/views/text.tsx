/** Running text, coloured by what the pinned token attends to or by who attends to it; a panel beside. */

import type { Ui } from "../ui";
import type { View } from "./dom";
import { reader } from "./reader";

export function text(ui: Ui): View {
  return reader(ui, false);
}
