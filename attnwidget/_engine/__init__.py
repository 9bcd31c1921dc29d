"""Exact attention, block by block; torch only. Nothing of Q × K is ever made.

A block goes through `Rules` once. Known masks (causal, windows, padding, and what combines them) give two ranges of
keys for a run of queries: *outer*, where any of them may attend, and *inner*, where all may. Blocks outside are never
computed, those inside never masked, and rows of blocks are cut where an inner range ends, so that only the triangle at
a diagonal is asked cell by cell. Tensors and functions of a user are evaluated once for each block that no known rule
excludes. A bias function may block too, with −∞; it is the one rule that needs the scores.

A source gives one stage, `scores` or `weights`, and all later stages follow from it; what comes before is refused, and
`Attention.stages` lists what there is. A combined head asks another attention block by block; overviews let it compute
the log-normalizers of its heads first, in steps. Stages of `stages.NORMALIZED` need a whole row, unless the source
gives them.

A pass over a head is `overview.pooled`, a generator that stops after each block: whoever drives it decides how long a
slice is, and drops it to cancel. What is done to a block depends on the stripe: a plain stage, weights whose
log-normalizers are known, or the online softmax beside the pooling. Where ‖q‖ · ‖k‖ bounds all scores to be small,
`softmax.DirectSoftmax` takes exp without a running maximum.
"""
