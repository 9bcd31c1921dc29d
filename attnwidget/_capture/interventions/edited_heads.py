"""Compute the outputs of edited heads block by block, and verify that a call is understood before it is edited.

The weights of a block are what the call's own would be under the changed rules, softmax(scores) over all keys, so that
they meet v as they are. With gradients on, a block is computed again in the backward pass instead of being kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..._engine.weights_block import WeightsBlock
from ..._engine.what_if import round_to
from ..output_edits import EditRefused
from ..parts import take_part
from ..verification import DroppedWeights, RowsOfOutput, rounding_of, sampled_rows
from .edits import Applied
from .other_runs import OtherRun
from .seen_call import SeenCall
from .softmax_rules import SoftmaxRules

CELLS_AT_ONCE = 1 << 19  # weights of a block, of all samples and heads that are computed together: 2 MiB
ON_DEVICE = 16  # times as many on a GPU, where each block costs some launches
SOME_KEYS = 32
Chain = tuple[Applied, ...]  # the edits of a head of a sample: of the outermost intervention first


class EditedHeads:
    """Some heads of some samples of a call that are edited in the same way.

    Args:
        seen: the call.
        samples, heads: which; the heads share their keys, or have each its own.
        chain: their edits.
    """

    def __init__(self, seen: SeenCall, samples: Sequence[int], heads: Sequence[int], chain: Chain) -> None:
        call = seen.call
        if call.v is None:
            raise EditRefused(f"the values of {seen.name} were not seen: leave this layer out")
        self._seen, self._samples, self._heads, self._chain = seen, tuple(samples), tuple(heads), chain
        self._edits = [one.edit for one in chain]
        self._types = call.q, call.v
        share = call.q.shape[1] // call.k.shape[1]
        groups = list(dict.fromkeys(head // share for head in heads))
        wide = torch.promote_types(call.q.dtype, torch.float32)
        q = take_part(take_part(call.q, 0, self._samples), 1, self._heads)
        k, v = (take_part(take_part(x, 0, self._samples), 1, groups) for x in (call.k, call.v))
        self.rules = SoftmaxRules(seen, self._samples, self._heads, self._edits)
        for name in self.rules.number_types:
            q, k, v = (round_to(x, name) for x in (q, k, v))
        self._q, self._k, self._v = (x.to(wide) for x in (q, k, v))

    # What the edits come to.

    def outputs(self) -> Tensor:
        """Return their outputs, (samples, heads, Q, Dv), in the type in which they are computed."""
        applied = next((one for one in reversed(self._chain) if one.edit.output is not None), None)
        if applied is not None:
            return self._given_output(applied)
        n, h, Q, _ = self._q.shape
        cells = CELLS_AT_ONCE if self._q.device.type == "cpu" else CELLS_AT_ONCE * ON_DEVICE
        step = max(1, cells // max(1, n * h * self._k.shape[2]))
        needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in (self._q, self._k, self._v))
        blocks = []
        for rows in (range(start, min(start + step, Q)) for start in range(0, Q, step)):
            if needs_grad and step < Q:
                found = checkpoint(self._block, rows, use_reentrant=False, preserve_rng_state=False)
            else:
                found = self._block(rows)
            blocks.append(found)
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks, 2)

    def _block(self, rows: range) -> Tensor:
        with torch._C.DisableTorchFunction():
            return _product(self.weights(rows), self._v)

    def weights(self, rows: range) -> Tensor:
        """Return the weights of some queries, (samples, heads, rows, K)."""
        index = torch.arange(rows.start, rows.stop, device=self._q.device)
        weights, allowed = self.rules.weights(self._scores(self._q[:, :, rows.start : rows.stop]), index)
        if any(one.even for one in self._edits):
            weights = allowed / allowed.sum(-1, keepdim=True).clamp(min=1).to(weights.dtype)
        for applied in self._chain:
            if applied.edit.weights is not None:
                weights = self._own_weights(applied, weights, allowed, rows)
        taken = self.rules.set_to_zero(index)
        return weights if taken is None else weights.masked_fill(taken, 0)

    def _scores(self, q: Tensor) -> Tensor:
        return self.rules.scaled(_product(q, self._k.mT))

    def _own_weights(self, applied: Applied, weights: Tensor, allowed: Tensor, rows: range) -> Tensor:
        given, seen = applied.edit.weights, self._seen
        queries = range(seen.queries.start + rows.start, seen.queries.start + rows.stop)
        if isinstance(given, OtherRun):
            found = [[given.weights(seen, b, h, queries) for h in self._heads] for b in self._samples]
            return torch.stack([torch.stack([x.to(weights) for x in one]) for one in found])
        if isinstance(given, Tensor):
            return self._rows_of(given, applied, queries, seen.keys).to(weights).expand_as(weights)
        assert callable(given)
        block = WeightsBlock(weights, allowed, seen.name, seen.number, self._samples, self._heads, queries, seen.keys)
        own = given(block)
        if not isinstance(own, Tensor) or own.shape != weights.shape:
            shape = tuple(own.shape) if isinstance(own, Tensor) else type(own).__name__
            raise EditRefused(
                f"{applied.edit.text} returned {shape} for a block of weights {tuple(weights.shape)}: return as many"
            )
        return own.to(weights)

    def _rows_of(self, given: Tensor, applied: Applied, queries: range, keys: range | None) -> Tensor:
        """Return the part of numbers of one's own that is for these samples, heads and queries."""
        seen, what = self._seen, "weights" if keys is not None else "output"
        wanted = len(seen.queries) if seen.queries.start == 0 else seen.queries.stop
        sizes = (seen.samples, len(applied.heads), wanted, *(() if keys is None else (keys.stop,)))
        found = given[(None,) * (4 - given.ndim)]  # of one head, or of all alike
        shape = found.shape[: len(sizes)]
        rows_fit = shape[2] == wanted or (keys is None and shape[2] == 1)
        fits = shape[0] in (1, sizes[0]) and shape[1] in (1, sizes[1]) and rows_fit
        if (
            not fits
            or (keys is not None and shape[3] != keys.stop)
            or (keys is None and given.shape[-1] != self._v.shape[-1])
        ):
            last = keys.stop if keys is not None else self._v.shape[-1]
            raise EditRefused(
                f"what is given as {what} for {applied.rule.key!r} has shape {tuple(given.shape)}, and {seen.name} has "
                f"{seen.samples} samples, {len(applied.heads)} heads that are named, {wanted} queries and {last} "
                f"{'keys' if keys is not None else 'numbers of a value'}: give numbers of that shape"
            )
        if found.shape[0] > 1:
            found = take_part(found, 0, self._samples)
        if found.shape[1] > 1:
            found = take_part(found, 1, [applied.heads.index(head) for head in self._heads])
        if found.shape[2] > 1:
            found = found[:, :, queries.start : queries.stop]
        return found if keys is None else found[..., keys.start : keys.stop]

    def _given_output(self, applied: Applied) -> Tensor:
        n, h, Q, _ = self._q.shape
        shape, given, seen = (n, h, Q, self._v.shape[-1]), applied.edit.output, self._seen
        if isinstance(given, OtherRun):
            found = [[given.outputs(seen, b, head, seen.queries) for head in self._heads] for b in self._samples]
            return torch.stack([torch.stack([x.to(self._v) for x in one]) for one in found])
        if isinstance(given, Tensor):
            return self._rows_of(given, applied, seen.queries, None).to(self._v).expand(shape)
        return self._v.new_zeros(()).expand(shape)

    # Whether the call is understood.

    def differs(self, kernel: Any) -> bool | None:
        """Return whether the call's own output is other than these heads' q, k, v and rules come to, without edits.

        Args:
            kernel: the output, as `verification.sample_output` takes it.

        Returns:
            None where the output is not of their shape.
        """
        rows = sampled_rows(self._q.shape[2])
        found = self._own_rows(kernel, rows)
        if found is None:
            return None
        with torch.no_grad():
            index = torch.tensor(rows, device=self._q.device)
            scores = self._scores(self._q[:, :, index])
            weights, allowed = self.rules.weights(scores, index)
            expected, filled, largest = found.to(weights), allowed.any(-1), weights.amax(-1)
            if isinstance(kernel, DroppedWeights):
                difference = (expected * (1 - kernel.p) - weights).masked_fill(expected == 0, 0)
            else:
                again = _product(weights, self._v)
                some = self._v[:, :, :: max(1, self._v.shape[2] // SOME_KEYS)].abs().max()
                difference, largest = again - expected, torch.maximum(again.abs().max(), some)
            rounding = rounding_of(found, *self._types)
            bound = 4 * rounding * (4 + scores.abs().max()) * largest
            return bool(((difference.abs().amax(-1) > bound) & filled).any())

    def _own_rows(self, kernel: Any, rows: list[int]) -> Tensor | None:
        """Return some rows of these heads' output, or weights; None if it is not of their shape."""
        (B, H, Q, _), Dv, K = self._seen.call.q.shape, self._v.shape[-1], self._k.shape[2]
        own, wanted = kernel, (B, H, Q, Dv)
        if isinstance(kernel, RowsOfOutput):
            own, rows, wanted = kernel.output, list(range(len(rows))), (B, H, len(rows), Dv)
        elif isinstance(kernel, DroppedWeights):
            own, wanted = kernel.weights, (B, H, Q, K)
        if not isinstance(own, Tensor) or own.shape != wanted:
            return None
        part = take_part(take_part(own.detach(), 0, self._samples), 1, self._heads)
        return part[:, :, rows]


def _product(x: Tensor, y: Tensor) -> Tensor:
    """Return x (n, h, rows, a) times y (n, h or 1, a, b), without a copy of y for each head."""
    if y.shape[1] == x.shape[1]:
        return x @ y
    return (x.flatten(1, 2)[:, None] @ y).squeeze(1).unflatten(1, x.shape[1:3])


def together(heads: Sequence[int], share: int) -> Iterator[list[int]]:
    """Yield heads that can be computed together: those of one key head, or, where each has its own, all."""
    groups: dict[int, list[int]] = {}
    for head in heads:
        groups.setdefault(head // share if share > 1 else 0, []).append(head)
    yield from groups.values()
