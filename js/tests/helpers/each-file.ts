/**
 * Runs before each file that needs a page. The files share one: to make a page, and to load the widget into it, takes
 * longer than most of them.
 */

import { options } from "preact";
import { afterEach, beforeAll, vi } from "vitest";
import { emptyPage } from "./setup.ts";

/** Preact asks for one frame for all effects that wait; one that it has asked for under fake time may never come. */
beforeAll(() => {
  options.requestAnimationFrame = (flush: () => void) => {
    const done = () => {
      clearTimeout(timeout);
      cancelAnimationFrame(frame);
      setTimeout(flush);
    };
    const timeout = setTimeout(done, 35);
    const frame = requestAnimationFrame(done);
  };
});

afterEach(async () => {
  await emptyPage();
  vi.unstubAllGlobals();
  vi.useRealTimers();
});
