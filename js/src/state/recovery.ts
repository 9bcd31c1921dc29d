/** Recovery when drawing throws: the error is kept, reported once, and drawing is retried at the next change. */

import { batch, type ReadonlySignal, signal } from "@preact/signals-core";

export interface Recovery {
  /** Why drawing failed; null if it works. */
  readonly failure: ReadonlySignal<{ readonly why: string } | null>;
  /** Change the state; if a consequence throws, keep the error. */
  attempt(change: () => void): void;
  /** Keep a drawing error. */
  failed(error: unknown): void;
}

export function createRecovery(): Recovery {
  const failure = signal<{ why: string } | null>(null);
  const failed = (error: unknown) => {
    try {
      failure.value = { why: error instanceof Error ? error.message : String(error) };
    } catch {
      // the error view throws as well: the next change draws again
    }
  };
  return {
    failure,
    failed,
    attempt(change) {
      try {
        batch(() => {
          failure.value = null;
          change();
        });
      } catch (error) {
        failed(error);
      }
    },
  };
}
