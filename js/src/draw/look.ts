/** What a widget takes over from its page: theme, colors, font and text size. */

import type { Palette, Theme, ThemePreference } from "../contract/values";
import { contrast, cssOf } from "./color";
import { type Paints, readPaints } from "./color-mapper";
import { detectHost, detectTheme, pageColor } from "./theme";

export interface Look {
  readonly theme: Theme;
  readonly font: string;
  /** CSS pixels for one pixel of the design: more where the host's text is larger. */
  readonly unit: number;
  readonly paints: { readonly sequential: Paints; readonly diverging: Paints };
  /** The same text as long as no color has changed. */
  readonly key: string;
}

/** Read the look of the page, and write it into the attributes and variables that the style sheet reads. */
export function takeLook(root: HTMLElement, preference: ThemePreference, palette: Palette): Look {
  const theme = detectTheme(root, preference);
  root.dataset.host = detectHost(root);
  root.dataset.theme = theme;
  root.toggleAttribute("data-own-theme", theme !== detectTheme(root, "auto"));
  // The widget takes the page's own background if the host has no variable for it.
  const page = root.dataset.host === "other" && preference === "auto" ? pageColor(root) : undefined;
  if (page === undefined) root.style.removeProperty("--aw-bg");
  else root.style.setProperty("--aw-bg", cssOf(page));
  root.removeAttribute("data-dim-grays");
  const style = getComputedStyle(root);
  const size = Number.parseFloat(style.getPropertyValue("--jp-ui-font-size1"));
  const unit = size > 0 && root.dataset.host === "jupyter" ? size / 13 : 1;
  root.style.setProperty("--aw-u", `${unit}px`);
  const paints = readPaints(style, theme, palette);
  root.toggleAttribute("data-dim-grays", contrast(paints.ink3, paints.page) < 4.5);
  root.style.setProperty("--aw-plate", paints.plate);
  const key = [theme, JSON.stringify(palette), style.backgroundColor, style.color].join();
  return { theme, font: style.fontFamily || "sans-serif", unit, paints, key };
}
