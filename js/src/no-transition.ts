/**
 * Stands for d3-transition in the bundle. d3-zoom asks it only to interrupt animations, and here there are none: with it
 * would come d3-color, d3-ease and d3-timer, a sixth of the bundle.
 */
import { selection } from "d3-selection";

selection.prototype.interrupt = function interruptNothing(this: unknown) {
  return this;
};

export function interrupt(): void {}
