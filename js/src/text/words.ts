/** Names that every view uses alike. */

/** Of the column of a learned sink, which has no key. */
export const SINK = "sink";
export const SINK_TITLE = "Learned sink: one more column of the softmax, without a key and without a value";
