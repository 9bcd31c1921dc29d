/** Names that all views share. */

/** The column of each row's recall under a cache. */
export const RECEIVED = "received";
export const RECEIVED_TITLE = "Mean weight that each key receives, of the queries that may attend to it";
export const RECALL = "recall";
export const recallTitle = (hasSinks: boolean) =>
  `Recall: the share of each row's weight on keys that the cache still holds${hasSinks ? " and on the learned sink" : ""}`;

/** The column of a learned sink, which has no key. */
export const SINK = "sink";
export const SINK_TITLE = "Learned sink: an extra column of the softmax, without a key or a value";

/** What the axes of a picture are, in its corner. */
export const KEYS_TITLE = "keys →";
export const QUERIES_TITLE = "queries ↓";
