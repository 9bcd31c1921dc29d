/** What many files set up for each test: fake timers, and what ends with the test. */

import { afterEach, beforeEach, vi } from "vitest";

/** Time stands still in each test of the file, or of the `describe` around it, until it is moved. */
export function useFakeTime(): void {
  beforeEach(() => {
    vi.useFakeTimers();
  });
  afterEach(() => {
    vi.useRealTimers();
  });
}

/** Fake time, and what each test may hang its kernel and views on: aborted at its end. */
export function endOfTest(): Pick<AbortController, "abort" | "signal"> {
  let end = new AbortController();
  useFakeTime();
  beforeEach(() => {
    end = new AbortController();
  });
  afterEach(() => end.abort());
  return {
    get signal() {
      return end.signal;
    },
    abort: () => end.abort(),
  };
}
