/** The views by name. The heatmap is there from the start; each other one is a part of the script, loaded when opened. */

import type { View } from "../components/dom";
import type { ViewName } from "../contract/values";
import type { Ui } from "../state/ui";
import { heatmapView } from "../views/heatmap/index";

type Make = (ui: Ui) => View;

/** What the build cuts off as parts: each `import()` here, with what only it needs. */
const LOADERS: Record<Exclude<ViewName, "heatmap">, () => Promise<Make>> = {
  compare: async () => (await import("../views/compare/index")).compare,
  graph: async () => (await import("../views/graph/index")).graph,
  text: async () => (await import("../views/text/index")).text,
  image: async () => (await import("../views/text/index")).image,
  heads: async () => (await import("../views/heads/index")).heads,
  segments: async () => (await import("../views/segments/index")).segments,
  stages: async () => (await import("../views/stages/index")).stages,
};

export const PARTS = Object.keys(LOADERS) as (keyof typeof LOADERS)[];

const loaded = new Map<ViewName, Make>();

/** Return what draws this view, the heatmap for a name that is none; undefined while it is not loaded. */
export function loadedView(name: ViewName): Make | undefined {
  return Object.hasOwn(LOADERS, name) ? loaded.get(name) : heatmapView;
}

/** Load what draws a view. It rejects where the page does not let it, and may then be asked again. */
export async function loadView(name: ViewName): Promise<void> {
  if (loadedView(name) === undefined) loaded.set(name, await LOADERS[name as keyof typeof LOADERS]());
}
