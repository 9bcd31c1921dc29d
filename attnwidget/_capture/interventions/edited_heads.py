"""Compute the outputs of edited heads block by block, after verifying that a call is understood.

A block's weights are the softmax of its scores over all keys under the edited rules. With gradients on, a block is
recomputed in the backward pass instead of being kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..._engine.weights_block import WeightsBlock
from ..._engine.what_if import round_to
from ..call.rule_slices import take_part
from ..intercept.output_edits import EditRefused
from ..records.weights_record import weights_differ
from ..verify.noise import Precision, noise_of_weights, output_noise, score_errors, weight_changes
from ..verify.verification import DroppedWeights, RowsOfOutput, sampled_rows
from .edits import Applied
from .patching import OtherRun
from .seen_call import SeenCall
from .softmax_rules import SoftmaxRules

CELLS_AT_ONCE = 1 << 19  # weights of one block, over its samples and heads: 2 MiB
ON_DEVICE = 16  # the factor on a GPU, where each block costs some launches
Chain = tuple[Applied, ...]  # the edits of one head of one sample, outermost intervention first


class EditedHeads:
    """Heads and samples of a call that have the same edits.

    Args:
        seen: the call.
        samples, heads: their indices; the heads share one key head, or each has its own.
        chain: the edits.
    """

    def __init__(self, seen: SeenCall, samples: Sequence[int], heads: Sequence[int], chain: Chain) -> None:
        call = seen.call
        if call.v is None:
            raise EditRefused(f"the values of {seen.name} were not captured: leave this layer out")
        self._seen, self._samples, self._heads, self._chain = seen, tuple(samples), tuple(heads), chain
        self._numbers = tuple(head + seen.first_head for head in heads)  # in the model
        self._edits = [one.edit for one in chain]
        self._types = call.q, call.v
        share = call.q.shape[1] // call.k.shape[1]
        groups = list(dict.fromkeys(head // share for head in heads))
        wide = torch.promote_types(call.q.dtype, torch.float32)
        q = self._part_of(call.q)
        k, v = (take_part(take_part(x, 0, self._samples), 1, groups) for x in (call.k, call.v))
        self.rules = SoftmaxRules(seen, self._samples, self._heads, self._edits)
        for name in self.rules.number_types:
            q, k, v = (round_to(x, name) for x in (q, k, v))
        self._q, self._k, self._v = (x.to(wide) for x in (q, k, v))
        self._matrix: Tensor | None = None  # the weights (samples, heads, Q, K), if q and k are unknown
        if call.weights is not None:
            self._matrix = self._part_of(call.weights)

    # The edited outputs and weights.

    def outputs(self) -> Tensor:
        """Return the edited outputs, (samples, heads, Q, Dv), in the dtype of the computation."""
        applied = self._output_edit()
        if applied is not None:
            return self._given_output(applied)
        rows_of_blocks = list(self._rows_of_blocks())
        if len(rows_of_blocks) == 1:
            return self._block(rows_of_blocks[0])
        if torch.is_grad_enabled():
            how: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
            return torch.cat([checkpoint(self._block, rows, **how) for rows in rows_of_blocks], 2)
        found = self._v.new_empty(*self._q.shape[:3], self._v.shape[3])
        for rows in rows_of_blocks:  # written at once: keeping small tensors would fragment the memory
            found[:, :, rows.start : rows.stop] = self._block(rows)
        return found

    def write_output(self, output: Tensor) -> None:
        """Write the edited outputs into the call's output, (B, H, Q, Dv)."""
        found = self.outputs().to(output.dtype)
        output[self._place(output)] = found

    def write_weights(self, weights: Tensor) -> None:
        """Write the edited weights into the call's, (B, H, Q, K): 0 for a zeroed head, NaN for a replaced output."""
        K, applied = self._k.shape[2], self._output_edit()
        for rows in self._rows_of_blocks():
            own = weights[:, :, rows.start : rows.stop, :K]
            if applied is None:
                own[self._place(own)] = self.weights(rows).to(own.dtype)
            else:
                own[self._place(own)] = 0.0 if isinstance(applied.edit.output, float) else torch.nan

    def _place(self, x: Tensor) -> tuple[Tensor, Tensor]:
        b, h = (torch.tensor(one, device=x.device) for one in (self._samples, self._heads))
        return b[:, None], h

    def _output_edit(self) -> Applied | None:
        """Return the last edit that replaces the output; None if none does."""
        return next((one for one in reversed(self._chain) if one.edit.output is not None), None)

    def _rows_of_blocks(self) -> Iterator[range]:
        n, h, Q, _ = self._q.shape
        cells = CELLS_AT_ONCE if self._q.device.type == "cpu" else CELLS_AT_ONCE * ON_DEVICE
        step = max(1, cells // max(1, n * h * self._k.shape[2]))
        return (range(start, min(start + step, Q)) for start in range(0, Q, step))

    def _block(self, rows: range) -> Tensor:
        with torch._C.DisableTorchFunction():
            return _product(self.weights(rows), self._v)

    def weights(self, rows: range) -> Tensor:
        """Return the weights of some queries, (samples, heads, rows, K)."""
        index = torch.arange(rows.start, rows.stop, device=self._q.device)
        if self._matrix is not None:
            weights = self._matrix[:, :, rows.start : rows.stop].to(self._v)
            allowed = torch.ones_like(weights, dtype=torch.bool)  # unknown; the edits of such a call do not ask
        else:
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
            found = [[given.weights(seen, b, h, queries) for h in self._numbers] for b in self._samples]
            return torch.stack([torch.stack([x.to(weights) for x in one]) for one in found])
        if isinstance(given, Tensor):
            return self._rows_of(given, applied, queries, seen.keys).to(weights).expand_as(weights)
        assert callable(given)
        assert seen.number is not None
        block = WeightsBlock(weights, allowed, seen.name, seen.number, self._samples, self._numbers, queries, seen.keys)
        own = given(block)
        if not isinstance(own, Tensor) or own.shape != weights.shape:
            shape = tuple(own.shape) if isinstance(own, Tensor) else type(own).__name__
            raise EditRefused(
                f"{applied.edit.text} returned {shape} for a block of weights {tuple(weights.shape)}: return the same "
                "shape"
            )
        return own.to(weights)

    def _rows_of(self, given: Tensor, applied: Applied, queries: range, keys: range | None) -> Tensor:
        """Return the part of a given tensor for these samples, heads and queries."""
        found = self._fitting(given, applied, keys)
        if found.shape[0] > 1:
            found = take_part(found, 0, self._samples)
        if found.shape[1] > 1:
            found = take_part(found, 1, [applied.heads.index(number) for number in self._numbers])
        if found.shape[2] > 1:
            found = found[:, :, queries.start : queries.stop]
        return found if keys is None else found[..., keys.start : keys.stop]

    def _fitting(self, given: Tensor, applied: Applied, keys: range | None) -> Tensor:
        """Return a given tensor with four axes: samples, heads of the key, queries of the whole text, and the last.

        Raises:
            EditRefused: the shape does not fit.
        """
        last = self._v.shape[-1] if keys is None else keys.stop
        wanted = self._seen.samples, len(applied.heads), self._seen.queries.stop, last
        found = given[(None,) * (4 - given.ndim)]
        may_repeat = (0, 1) if keys is not None else (0, 1, 2)
        sizes = enumerate(zip(found.shape, wanted, strict=True)) if found.ndim == 4 else ()
        if found.ndim == 4 and all(n == size or (n == 1 and axis in may_repeat) for axis, (n, size) in sizes):
            return found
        _, H, Q, _ = wanted
        shapes = (wanted[2:], wanted[1:], wanted) if keys is not None else ((last,), (H, 1, last), (H, Q, last), wanted)
        raise EditRefused(
            f"the tensor for {applied.rule.key!r} has shape {tuple(given.shape)}: for {self._seen.name} give "
            f"{', '.join(map(str, shapes[:-1]))} or {wanted}"
        )

    def _given_output(self, applied: Applied) -> Tensor:
        n, h, Q, _ = self._q.shape
        shape, given, seen = (n, h, Q, self._v.shape[-1]), applied.edit.output, self._seen
        if isinstance(given, OtherRun):
            found = [[given.outputs(seen, b, head, seen.queries) for head in self._numbers] for b in self._samples]
            return torch.stack([torch.stack([x.to(self._v) for x in one]) for one in found])
        if isinstance(given, Tensor):
            return self._rows_of(given, applied, seen.queries, None).to(self._v).expand(shape)
        return self._v.new_zeros(()).expand(shape)

    # Verification.

    def differs(self, kernel: Any) -> bool | None:
        """Return whether the call's output differs from that of these heads without edits.

        Args:
            kernel: the output, as in `verification.sample_output`.

        Returns:
            None if the output has another shape.
        """
        if self._matrix is not None:
            is_there = isinstance(kernel, Tensor) and kernel.shape[:2] == self._seen.call.q.shape[:2]
            v = self._v.to(self._types[1].dtype)
            return bool(weights_differ(self._matrix, v, self._part_of(kernel.detach()))) if is_there else None
        rows = sampled_rows(self._q.shape[2])
        found = self._own_rows(kernel, rows)
        if found is None:
            return None
        precision, wide = Precision.of(found, *self._types), torch.float64
        with torch.no_grad():
            index = torch.tensor(rows, device=self._q.device)
            q, k, v = self._q[:, :, index].to(wide), self._k.to(wide), self._v.to(wide)
            scores = self.rules.scaled(_product(q, k.mT))
            spread = _product(q**2, k.mT**2).sqrt() * abs(self.rules.scale)
            weights, allowed = self.rules.weights(scores, index)
            masked = scores.masked_fill(~allowed, -torch.inf)
            changes = weight_changes(weights, score_errors(precision, scores, masked, spread, q.shape[-1]))
            expected = found.to(wide)
            if isinstance(kernel, DroppedWeights):
                difference = (expected * (1 - kernel.p) - weights).masked_fill(expected == 0, 0)
                noise = noise_of_weights(precision, weights, changes)
            else:
                again = _product(weights, v)
                difference, noise = again - expected, output_noise(precision, weights, changes, v, again)
            return bool(((difference.abs() > noise).any(-1) & allowed.any(-1)).any())

    def _part_of(self, x: Tensor) -> Tensor:
        """Return the part of these samples and heads of x (B, H, …)."""
        return take_part(take_part(x, 0, self._samples), 1, self._heads)

    def _own_rows(self, kernel: Any, rows: list[int]) -> Tensor | None:
        """Return some rows of these heads' output or weights; None if the shape is wrong."""
        (B, H, Q, _), Dv, K = self._seen.call.q.shape, self._v.shape[-1], self._k.shape[2]
        own, wanted = kernel, (B, H, Q, Dv)
        if isinstance(kernel, RowsOfOutput):
            own, rows, wanted = kernel.output, list(range(len(rows))), (B, H, len(rows), Dv)
        elif isinstance(kernel, DroppedWeights):
            own, wanted = kernel.weights, (B, H, Q, K)
        if not isinstance(own, Tensor) or own.shape != wanted:
            return None
        return self._part_of(own.detach())[:, :, rows]


def _product(x: Tensor, y: Tensor) -> Tensor:
    """Return x (n, h, rows, a) times y (n, h or 1, a, b), without copying y for each head."""
    if y.shape[1] == x.shape[1]:
        return x @ y
    return (x.flatten(1, 2)[:, None] @ y).squeeze(1).unflatten(1, x.shape[1:3])


def by_key_head(heads: Sequence[int], share: int) -> Iterator[list[int]]:
    """Yield groups of heads that can be computed together: those of one key head, or all if each has its own."""
    groups: dict[int, list[int]] = {}
    for head in heads:
        groups.setdefault(head // share if share > 1 else 0, []).append(head)
    yield from groups.values()
