/** What a page tells Python for `attnwidget.report()`: its host, its browser, and errors in drawing. */

import { effect } from "@preact/signals-core";
import type { Kernel } from "../kernel/kernel";
import type { Recovery } from "./recovery";

/** Milliseconds to wait, so that drawing comes first. */
const LATER = 1000;

/** Hosts that are not pages of Jupyter, by elements that only their pages have. */
const PROGRAMS: readonly (readonly [string, string])[] = [
  ["VS Code", "body[data-vscode-theme-kind]"],
  ["marimo", "marimo-filename, marimo-mode, marimo-code"],
  ["Colab", "colab-shaded-scroller, [data-colab]"],
];

/** Return the name of this page's host, with its version if the page tells. */
export function frontEnd(page: Document = document): string {
  for (const [name, selector] of PROGRAMS) if (page.querySelector(selector) !== null) return name;
  try {
    const config = JSON.parse(page.getElementById("jupyter-config-data")?.textContent ?? "{}") as object;
    const { appName, appVersion } = config as { appName?: unknown; appVersion?: unknown };
    if (appName) return `${appName} ${appVersion ?? ""}`.trim();
    if ("baseUrl" in config) return "a page of Jupyter";
  } catch {
    // not this host's format
  }
  return "a page of its own";
}

/** Return the name and version of the browser. */
export function browser(agent: string): string {
  const [, name, version] = /(Firefox|Edg|Electron|Chrome|Version)\/([\d.]+)/.exec(agent) ?? [];
  return name ? `${name === "Version" ? "Safari" : name} ${version}` : agent;
}

/** Report shortly after the start, and again after each drawing error. */
export function tellPage(kernel: Pick<Kernel, "tell">, recovery: Recovery, stop: AbortSignal): void {
  const tell = (error: object = {}) =>
    kernel.tell({ page: { front_end: frontEnd(), browser: browser(navigator.userAgent), ...error } });
  const later = setTimeout(tell, LATER);
  const end = effect(() => {
    const failure = recovery.failure.value;
    if (failure !== null) tell({ error: failure.why });
  });
  stop.addEventListener("abort", () => {
    clearTimeout(later);
    end();
  });
}
