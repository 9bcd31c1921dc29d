"""Exact attention, block by block, in torch. No Q × K tensor is ever made.

Rules. Each block goes through `Rules` once. Known masks (causal, windows, padding and combinations) give two ranges of
keys for a range of queries: *outer*, where some may attend, and *inner*, where all may. Blocks outside the outer range
are never computed, and blocks inside the inner range are never masked. Blocks are cut at the ends of inner ranges, so
only the triangle at a diagonal is evaluated cell by cell. A user's tensors and functions are evaluated once for each
block that no known rule excludes. A bias function may also block cells, with −∞; no other rule needs the scores.

Sources. A source provides one stage, `scores` or `weights`, and all later stages follow from it; earlier stages raise
an error. `Attention.stages` lists the available stages. Combined heads read another attention block by block; overviews
first compute the log-normalizers of its heads. The stages in `stages.NORMALIZED` need a whole row, unless the source
provides them.

Passes. `overview.pooled` is a pass over a head: a generator that stops after each block. Its caller decides how long to
run it, and drops it to cancel. The kind of `Stripe` decides how to process a block: a plain stage, weights with known
log-normalizers, or the online softmax during pooling. If ‖q‖ · ‖k‖ bounds all scores to be small,
`softmax.DirectSoftmax` takes exp without a running maximum.
"""
