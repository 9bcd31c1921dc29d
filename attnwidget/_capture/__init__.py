"""Attention calls of a torch model, recorded while its fused kernels stay on.

How a call is seen. transformers looks up its attention function for each call in `AttentionInterface`, which is wrapped
while a capture is open and hands on the module (`transformers`). Other calls of torch's functions are seen by a
`TorchFunctionMode`, entered only if some class of the model may call torch by itself; it finds the module in the frames
of the stack (`hooks`, `recorder`). No module is changed: the model gets hooks for where its forward passes, and those
of parts that are called alone, begin and end, and its modules hooks that note what they are given (`provenance`). What
a reported call calls in turn is not reported again.

How a call is kept. It is read as an `ObservedCall`, whose tensors are still the model's; `RecordMatcher` finds its
`Record`: of the same name, and if k begins (or, where a window has cut it, ends) with the kept keys, the new rows are
appended (`matching`, `records`, `kept_tensors`); where it begins with only some of them, it is a branch, a forward pass
of its own. Each thread has its own passes. Rows stay as the calls had them until the block ends; then each sample takes
its own, also where beams have changed places, which `generate` is asked for (`lineage`, `transformers`). Masks are kept
as `Spans` where every row is a run of keys, so that decoding is linear too (`call_rules`). Tokens that assisted
generation has tried and rejected leave the record; what a backward pass computes again is not recorded. Whether it is
self- or cross-attention is decided by the tensors that q and k come from (`provenance`), and what has no positions of
the text is refused (`positions`).

Where a model writes attention out, the same mode traces it: `ScoreTracer` knows which living tensors are scores of
which q and k, and what was done to them (a scale, a softcap, masks, biases), and which are their softmax; where those
meet v, a call is complete (`tracing`, `traced_tensors`). Any other step ends the trace: then nothing is recorded, and
the softmax is named in `Capture.skipped`, as are modules that hold attention by their names and ran without a record
(`coverage`).

What it is of. The ids and masks that a model or a part of it reads are noted with its calls (`reading`, `text`), become
labels (`labels`), and name its towers (`towers`, `stacks`).

What is kept. Layers, heads and queries are chosen as calls come in (`selection`, `parts`, `KeptQueries` of
`kept_tensors`), whole forward passes when the next begins; beyond a limit of bytes calls are named as skipped
(`limit`). A call can be reduced at once to an overview (`reduced`).

What weights carry. Who reads a call's output is known by comparing rows of what modules are given and give; the way
from there to the logits is followed through additions by a mode, in the first forward pass (`carried`). Gradients come
by hooks on the outputs themselves.

How a record is verified. Some rows of each output are computed again when the call is made, from its own q, k, v and
rules, whatever is kept, and before dropout; a record that was joined of several calls is verified once more when the
block ends. One that does not give its outputs is removed and named as skipped (`verification`).
"""
