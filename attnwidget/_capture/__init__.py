"""Attention calls of a torch model, recorded while its fused kernels stay on.

Seeing a call (`intercept/`). transformers looks up its attention function for each call in `AttentionInterface`, which
is wrapped while a capture is open and passes the module on. A `TorchFunctionMode` sees calls of torch's own functions;
it is entered only if some class of the model may call them, and finds the module in the frames of the stack. No module
is changed: hooks mark the start and end of forward passes, and note the inputs of modules. Functions that a reported
call uses inside are not reported again.

Keeping a call (`call/`, `records/`). An `ObservedCall` holds the model's own tensors; `RecordMatcher` finds its
`Record`, by name and by keys. If k begins (or, after a window has cut it, ends) with the kept keys, the new rows are
appended; if it begins with only some of them, it is a branch, a separate forward pass. Each thread has its own passes.
Rows stay in the order of the calls until the block ends, and are then sorted into samples, even if beams have changed
places. Masks are kept as `Spans` if every row is one run of keys, so decoding takes linear time. Rejected tokens of
assisted generation leave the record; a backward pass's repeated calls are not recorded.

Self or cross (`modules/`). The tensors that q and k come from decide. Calls whose queries or keys are not positions of
the text are refused.

Hand-written attention (`tracing/`). The same mode traces products, softmax and values. `ScoreTracer` knows which living
tensors are scores, from which q and k, and with which scale, softcap, masks and biases; when their softmax meets v, a
call is complete. Any other operation ends the trace. Nothing is recorded then, and `Capture.skipped` names the softmax,
and each module that is attention by name and ran without a record.

Text (`text/`). Ids and masks that the model reads are noted with its calls. They become labels and name its towers.

Limits (`session/`, `records/`). Layers, heads and queries are chosen as calls arrive, forward passes when the next one
begins. Calls beyond the limit of bytes are named as skipped. A call can be reduced at once to an overview.

From weights to logits (`carried/`). Rows of modules' inputs and outputs are compared to find the reader of a call's
output. A mode follows additions from there to the logits, in the first forward pass. Gradients come from hooks on the
outputs.

Verification (`verify/`). Some rows of each output are computed again from q, k, v and the rules, before dropout and
independent of what is kept. A record of several calls is verified again when the block ends. A record that contradicts
its output is removed and named as skipped.
"""
