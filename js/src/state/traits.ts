/** Traits of a model as signals, plain or decoded. */

import { type ReadonlySignal, type Signal, signal } from "@preact/signals-core";
import { fitsTrait, insteadOf } from "../contract/plain";
import type { MessageListener, Model, TraitName, Traits } from "../contract/traits";
import type { Recovery } from "./recovery";

/** A listener on a model until the signal aborts. */
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

/** Return signals that follow these traits; an invalid value is reported and ignored. */
export function mirrorTraits<Name extends TraitName>(
  model: Model,
  names: readonly Name[],
  { onChange }: Listener,
  { attempt }: Pick<Recovery, "attempt">,
  said: (problem: string) => void,
): Mirrored<Name> {
  const mirror = <K extends Name>(name: K) => {
    const first = model.get(name);
    const fits = fitsTrait(name, first);
    if (!fits) said(`${name} could not be read`);
    const value = signal(fits ? first : insteadOf(name));
    onChange(name, () => {
      const next = model.get(name);
      if (!fitsTrait(name, next)) return said(`${name} could not be read`);
      attempt(() => {
        value.value = next;
      });
    });
    return [name, value] as const;
  };
  return Object.fromEntries(names.map(mirror)) as Mirrored<Name>;
}

/** Return how to decode a trait: the newest value wins, and decoding errors are reported, not thrown. */
export function traitDecoder(
  model: Model,
  { onChange }: Listener,
  { attempt }: Pick<Recovery, "attempt">,
  said: (problem: string) => void,
) {
  return <K extends TraitName, T>(
    name: K,
    decode: (message: NonNullable<Traits[K]>) => Promise<T>,
  ): ReadonlySignal<T | null> => {
    const value = signal<T | null>(null);
    let newest = 0;
    const read = async () => {
      const own = ++newest;
      const message = model.get(name);
      let next: T | null;
      try {
        next = message == null ? null : await decode(message);
      } catch (error) {
        if (own === newest) said(`${name} could not be read: ${(error as Error).message}`);
        return;
      }
      if (own !== newest) return;
      attempt(() => {
        value.value = next;
      });
    };
    onChange(name, read);
    void read();
    return value;
  };
}
