/** The thumbnails of heads: those that were sent, and for layers in view those that are requested. */

import { computed, effect, type ReadonlySignal, signal } from "@preact/signals-core";
import type { Grid } from "../../../contract/decode";
import { picturesOf } from "../../../data/survey";
import type { Ui } from "../../../state/ui";
import type { SegmentsModel } from "../model";

const MOST = 200; // heads per request

/** Return the picture of each row of the table of heads, at least of those in view. */
export function headPictures(ui: Ui, model: SegmentsModel, visible: ReadonlySignal<readonly number[]>) {
  const { store, kernel } = ui;
  const arrived = signal(0);
  const layers = new Map<number, readonly Grid[]>();
  const asked = new Set<number>();
  const place = (row: number) => model.heads.value?.heads[row];
  let of = "";
  const forget = () => {
    const now = [store.batch.value, store.facts.value.version, model.stage.value].join(" ");
    if (now === of) return;
    of = now;
    layers.clear();
    asked.clear();
  };
  const known = (layer: number, head: number): Grid | null => {
    const { thumbnails, survey } = store;
    const sent = thumbnails.value;
    const stage = model.stage.value;
    if (sent !== null && sent.layer === layer && sent.batch === store.batch.value && sent.stage === stage)
      return sent.heads[head] ?? null;
    const all = survey.value;
    const at =
      all?.batch === store.batch.value ? all.heads.findIndex((one) => one.layer === layer && one.head === head) : -1;
    return (at >= 0 && stage === "weights" ? all?.pictures[at] : null) ?? layers.get(layer)?.[head] ?? null;
  };
  const wanted = computed(() => {
    const found = visible.value.map(place).filter((of) => of !== undefined);
    return [...new Set(found.map(({ layer }) => layer))];
  });
  const ask = async (layer: number) => {
    asked.add(layer);
    try {
      const many = model.heads.peek()?.heads.filter((of) => of.layer === layer).length ?? 0;
      const stage = model.stage.peek();
      const body = { layer, batch: store.batch.peek(), heads: [0, Math.min(MOST, many)], stage };
      const reply = await kernel.request("thumbnails", body, { signal: ui.stop });
      if (stage !== model.stage.peek()) return;
      layers.set(layer, await picturesOf(reply.values, layer, body.batch, reply.buffers));
      arrived.value++;
    } catch {
      asked.delete(layer); // the kernel's state tells why; a plate stays
    }
  };
  const end = effect(() => {
    forget();
    if (kernel.away.value) return;
    for (const layer of wanted.value) {
      if (!asked.has(layer) && !layers.has(layer) && known(layer, 0) === null) void ask(layer);
    }
  });
  return {
    arrived,
    of(row: number): Grid | null {
      const at = place(row);
      return at === undefined ? null : known(at.layer, at.head);
    },
    dispose: end,
  };
}
