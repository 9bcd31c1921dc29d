/**
 * Which host a view is in, and how light its page is. Hosts show it in different places, and some variables mislead: in
 * VS Code, Jupyter's variables exist and are always light, so VS Code is checked first.
 */

import type { Theme, ThemePreference } from "../contract/values";
import { type Color, luminanceOf, parseColor } from "./color";

export type HostName = "jupyter" | "vscode" | "other";
/** Below this luminance, white text contrasts more than black. */
const DARK = 0.179;
const FORCED_COLORS = "(forced-colors: active)";
const PREFERS_DARK = "(prefers-color-scheme: dark)";

/** Return which host the element stands in. */
export function detectHost(el: Element): HostName {
  const { vscodeThemeKind, jpThemeLight, jpThemeName } = bodyOf(el).dataset;
  if (vscodeThemeKind !== undefined) return "vscode";
  return jpThemeLight !== undefined || jpThemeName !== undefined ? "jupyter" : "other";
}

/**
 * Return the user's choice; else the host's theme; else one by the page's lightness; else the system's preference.
 */
export function detectTheme(el: Element, preference: ThemePreference = "auto"): Theme {
  if (preference !== "auto") return preference;
  if (matches(FORCED_COLORS)) return matches(PREFERS_DARK) ? "contrast" : "contrast-light";
  const isDark = hostIsDark(el) ?? pageIsDark(el) ?? matches(PREFERS_DARK);
  if (hostHasHighContrast(el)) return isDark ? "contrast" : "contrast-light";
  return isDark ? "dark" : "light";
}

/** Call `onChange` whenever the host, the theme or their colors may have changed. */
export function watchTheme(el: Element, onChange: () => void, signal: AbortSignal): void {
  if (signal.aborted) return;
  const observer = new MutationObserver(() => onChange());
  for (const target of [bodyOf(el), el.ownerDocument.documentElement]) observer.observe(target, { attributes: true });
  signal.addEventListener("abort", () => observer.disconnect(), { once: true });
  for (const query of [PREFERS_DARK, FORCED_COLORS]) {
    if (typeof matchMedia === "function") matchMedia(query).addEventListener("change", () => onChange(), { signal });
  }
}

function bodyOf(el: Element): HTMLElement {
  return el.ownerDocument.body;
}

/** The host's theme, or undefined if it does not tell. */
function hostIsDark(el: Element): boolean | undefined {
  const body = bodyOf(el);
  const { vscodeThemeKind, jpThemeLight } = body.dataset;
  if (vscodeThemeKind !== undefined) {
    return vscodeThemeKind !== "vscode-light" && vscodeThemeKind !== "vscode-high-contrast-light";
  }
  if (jpThemeLight !== undefined) return jpThemeLight === "false";
  // marimo on its body, Colab on the root of its frame
  if (body.classList.contains("dark-theme")) return true;
  if (body.classList.contains("light-theme")) return false;
  const colab = el.ownerDocument.documentElement.getAttribute("theme");
  return colab === "dark" ? true : colab === "light" ? false : undefined;
}

function hostHasHighContrast(el: Element): boolean {
  const { vscodeThemeKind, jpThemeName } = bodyOf(el).dataset;
  if (vscodeThemeKind !== undefined) return vscodeThemeKind.startsWith("vscode-high-contrast");
  return jpThemeName !== undefined && /high contrast/i.test(jpThemeName);
}

/** Return the nearest opaque background behind the element, or undefined if there is none up to the root. */
export function pageColor(el: Element): Color | undefined {
  for (let at = el.isConnected ? parentOf(el) : bodyOf(el); at; at = parentOf(at)) {
    const color = parseColor(getComputedStyle(at).backgroundColor);
    if (color && color.a > 0.5) return color;
  }
  return undefined;
}

function pageIsDark(el: Element): boolean | undefined {
  const color = pageColor(el);
  return color && luminanceOf(color) < DARK;
}

/** The parent, also across a shadow root. */
function parentOf(el: Element): Element | null {
  if (el.assignedSlot) return el.assignedSlot;
  if (el.parentElement) return el.parentElement;
  const root = el.getRootNode();
  return "host" in root ? (root as ShadowRoot).host : null;
}

function matches(query: string): boolean {
  return typeof matchMedia === "function" && matchMedia(query).matches;
}
