/** The width of texts in the widget's font, and the room that the labels of both axes need. */

import { CROWDED, type LabelRoom, NUMBERS_FROM, numberFont } from "../geometry/layout";
import { count } from "../text/format";
import type { Labels } from "../text/labels";
import { RECALL, SINK } from "../text/words";

/** The width of a text at a size and weight, in CSS pixels. */
export type Measure = (text: string, size: number, weight?: number) => number;

const MOST_MEASURED = 8192;

/** Return a function that measures text in a font and remembers widths. */
export function measureIn(family: string, unit: number, canvas = document.createElement("canvas")): Measure {
  const context = canvas.getContext("2d");
  const known = new Map<string, number>();
  let set = "";
  return (text, size, weight = 400) => {
    const id = `${size} ${weight} ${text}`;
    let width = known.get(id);
    if (width === undefined) {
      const font = `${weight} ${size * unit}px ${family}`;
      if (context && font !== set) {
        context.font = font;
        set = font;
      }
      width = context?.measureText(text).width ?? text.length * size * 0.6;
      if (known.size >= MOST_MEASURED) known.clear();
      known.set(id, width);
    }
    return width;
  };
}

/** The properties of a picture on which the room depends. */
export interface Size {
  readonly queries: number;
  readonly keys: number;
  readonly queryBin: number;
  readonly keyBin: number;
  readonly rows: number;
  readonly columns: number;
  /** Whether the learned sink's column is shown. */
  readonly sink: boolean;
  /** Whether the recall column is shown. */
  readonly recall: boolean;
  /** Whether the strip of received weights is shown. */
  readonly received: boolean;
}

/** Only so many labels of a long axis are measured: their room is small, and others may not have been sent. */
export const LABELS_MEASURED = 1024;

/** Return the room for the labels of both axes; of a long axis, for tokens and positions. */
export function labelRoom(size: Size, queries: Labels, keys: Labels, measure: Measure): LabelRoom {
  const full = (labels: Labels, index: number, long: boolean) => {
    const label = labels.at(index);
    const subscript = long ? "" : label.subscript; // a long axis shows positions next to tokens
    return measure(label.text, 12, 600) + (subscript === "" ? 0 : measure(subscript, 9) + 1);
  };
  const longest = (labels: Labels, long: boolean, total: number) => {
    let most = measure(count(total - 1), 10);
    for (let i = 0; i < (long ? Math.min(total, LABELS_MEASURED) : total); i++) {
      most = Math.max(most, full(labels, i, long));
      if (long && most >= CROWDED) break;
    }
    return most;
  };
  const long = { query: size.queryBin > 1, key: size.keyBin > 1 };
  const named = (labels: Labels) => labels.at(0).text !== count(0);
  return {
    queryTicks: long.query,
    keyTicks: long.key,
    query: longest(queries, long.query, size.queries),
    key: longest(keys, long.key, size.keys),
    keys: (index: number) => (long.key ? 0 : full(keys, index, false)),
    ticks: measure(count(size.queries - 1), 10),
    positions: long.query && named(queries) ? measure(count(size.queries - 1), 10) : 0,
    below: long.key && named(keys),
    sink: size.sink ? measure(SINK, 12, 600) : 0,
    received: size.received,
    recall: size.recall ? measure(RECALL, 12, 600) : 0,
  };
}

/**
 * Return whether the numbers of a picture fit into its cells, including negative ones, so that no picture shows only
 * some.
 */
export function isRoomFor(height: number, width: number, signed: boolean, unit: number, measure: Measure): boolean {
  const cell = Math.min(height, width);
  const widest = measure(signed ? "−.88" : ".88", numberFont(cell, unit));
  return cell >= NUMBERS_FROM * unit && widest <= width - 2;
}

/** Of more cells, what keys receive is not computed unasked, as in Python. */
export const MOST_RECEIVED = 2 ** 28;

/** Return whether what the keys of a matrix receive is shown below its heatmap. */
export function receivesBelow({ queries, keys }: { readonly queries: number; readonly keys: number }): boolean {
  return queries > 1 && queries * keys <= MOST_RECEIVED;
}
