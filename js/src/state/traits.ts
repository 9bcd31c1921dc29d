/** Traits of a model as signals: as they are, or decoded. */

import { type ReadonlySignal, type Signal, signal } from "@preact/signals-core";
import type { MessageListener, Model, TraitName, Traits } from "../contract/traits";

/** What listens to a model until the signal aborts. */
export interface Listener {
  onChange(name: TraitName, heard: () => void): void;
  onMessage(heard: MessageListener): void;
}

/** Listen to a model until `stop` aborts. */
export function listenTo(model: Model, stop: AbortSignal): Listener {
  return {
    onChange(name, heard) {
      model.on(`change:${name}`, heard);
      stop.addEventListener("abort", () => model.off(`change:${name}`, heard));
    },
    onMessage(heard) {
      model.on("msg:custom", heard);
      stop.addEventListener("abort", () => model.off("msg:custom", heard));
    },
  };
}

export type Mirrored<Name extends TraitName> = { readonly [K in Name]: Signal<Traits[K]> };

/** Return signals that follow the traits of these names. */
export function mirrorTraits<Name extends TraitName>(
  model: Model,
  names: readonly Name[],
  { onChange }: Listener,
): Mirrored<Name> {
  const mirror = <K extends Name>(name: K) => {
    const value = signal(model.get(name));
    onChange(name, () => {
      value.value = model.get(name);
    });
    return [name, value] as const;
  };
  return Object.fromEntries(names.map(mirror)) as Mirrored<Name>;
}

/** Return how to decode a trait: of each the newest value wins, and one that cannot be decoded is said, not thrown. */
export function traitDecoder(model: Model, { onChange }: Listener, said: (problem: string) => void) {
  return <K extends TraitName, T>(
    name: K,
    decode: (message: NonNullable<Traits[K]>) => Promise<T>,
  ): ReadonlySignal<T | null> => {
    const value = signal<T | null>(null);
    let newest = 0;
    const read = async () => {
      const own = ++newest;
      const message = model.get(name);
      try {
        const next = message == null ? null : await decode(message);
        if (own === newest) value.value = next;
      } catch (error) {
        if (own === newest) said(`${name} could not be read: ${(error as Error).message}`);
      }
    };
    onChange(name, read);
    void read();
    return value;
  };
}
