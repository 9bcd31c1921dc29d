/** What is done when something that draws the state throws: it is kept, said once, and drawn anew at the next change. */

import { batch, type ReadonlySignal, signal } from "@preact/signals-core";

export interface Recovery {
  /** Why what is shown could not be drawn; null while it can. */
  readonly failure: ReadonlySignal<{ readonly why: string } | null>;
  /** Change the state; where what follows from it throws, keep that. */
  attempt(change: () => void): void;
  /** Keep an error of what draws. */
  failed(error: unknown): void;
}

export function createRecovery(): Recovery {
  const failure = signal<{ why: string } | null>(null);
  const failed = (error: unknown) => {
    try {
      failure.value = { why: error instanceof Error ? error.message : String(error) };
    } catch {
      // what says so throws as well: the next change draws it anew
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
