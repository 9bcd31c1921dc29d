/** The views by name. The heatmap is in the core script; each other view is a part that is loaded when first opened. */

import type { View } from "../components/dom";
import type { ViewName } from "../contract/values";
import type { Ui } from "../state/ui";
import { heatmapView } from "../views/heatmap/index";

type Make = (ui: Ui) => View;

/** The parts of the script: one for each `import()` here, with everything that only it needs. */
const LOADERS: Record<Exclude<ViewName, "heatmap">, () => Promise<Make>> = {
  compare: async () => (await import("../views/compare/index")).compare,
  graph: async () => (await import("../views/graph/index")).graph,
  text: async () => (await import("../views/text/index")).text,
  image: async () => (await import("../views/text/index")).image,
  heads: async () => (await import("../views/heads/index")).heads,
  segments: async () => (await import("../views/segments/index")).segments,
  why: async () => (await import("../views/why/index")).why,
  stages: async () => (await import("../views/stages/index")).stages,
};

export const PARTS = Object.keys(LOADERS) as (keyof typeof LOADERS)[];

const loaded = new Map<ViewName, Make>();

/** Return the constructor of a view (the heatmap for an unknown name); undefined while it is not loaded. */
export function loadedView(name: ViewName): Make | undefined {
  return Object.hasOwn(LOADERS, name) ? loaded.get(name) : heatmapView;
}

/** Load a view. Rejects if the page does not allow it, and can then be called again. */
export async function loadView(name: ViewName): Promise<void> {
  if (loadedView(name) === undefined) loaded.set(name, await LOADERS[name as keyof typeof LOADERS]());
}
