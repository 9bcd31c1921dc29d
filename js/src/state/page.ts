/** What a page says of itself to Python, for `attnwidget.report()`: its program, its browser, what it could not draw. */

import { effect } from "@preact/signals-core";
import type { Kernel } from "../kernel/kernel";
import type { Recovery } from "./recovery";

/** Milliseconds after which it says so: what is drawn comes first. */
const LATER = 1000;

/** Programs that no page of Jupyter's names, each by what only its pages have. */
const PROGRAMS: readonly (readonly [string, string])[] = [
  ["VS Code", "body[data-vscode-theme-kind]"],
  ["marimo", "marimo-filename, marimo-mode, marimo-code"],
  ["Colab", "colab-shaded-scroller, [data-colab]"],
];

/** Return the name of the program whose page this is, with its version where the page has it. */
export function frontEnd(page: Document = document): string {
  for (const [name, selector] of PROGRAMS) if (page.querySelector(selector) !== null) return name;
  try {
    const config = JSON.parse(page.getElementById("jupyter-config-data")?.textContent ?? "{}") as object;
    const { appName, appVersion } = config as { appName?: unknown; appVersion?: unknown };
    if (appName) return `${appName} ${appVersion ?? ""}`.trim();
    if ("baseUrl" in config) return "a page of Jupyter";
  } catch {
    // it says something else
  }
  return "a page of its own";
}

/** Return the name and version of the browser. */
export function browser(agent: string): string {
  const [, name, version] = /(Firefox|Edg|Electron|Chrome|Version)\/([\d.]+)/.exec(agent) ?? [];
  return name ? `${name === "Version" ? "Safari" : name} ${version}` : agent;
}

/** Say it a moment after the start, and again with each thing that could not be drawn. */
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
