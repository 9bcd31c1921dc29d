/** Running text, or an image cut into patches, colored by the pinned token's weights, with a panel. */

import type { View } from "../../components/dom";
import type { Ui } from "../../state/ui";
import { passagesView } from "./passages";

/** Return the text view. */
export function text(ui: Ui): View {
  return passagesView(ui, false);
}

/** Return the image view. */
export function image(ui: Ui): View {
  return passagesView(ui, true);
}
