"""How a loss reaches scores, weights, q, k and v: the backward pass of attention, some queries at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._engine.base import AttentionBase, Head
from .._engine.matmul import exact
from .._engine.softmax import exact_block, sink_weights, whole_rows
from .._engine.stages import new, plain, streamed, values
from .._rules.rules import Bias, ScoreFunction, indices
from .._utils.indexing import Block, as_index, cuts
from .._utils.validation import as_tensor

STRIPE = 1 << 22  # cells of the queries that are computed at once
DENSE = 1 << 24  # cells of the gradients of weights and scores that are kept, at most
LARGEST_JACOBIAN = 4096  # keys


@dataclass(frozen=True, eq=False)
class Gradients:
    """Derivatives of a loss L, given that of the output, for one head alone.

    Where several heads share k and v, the gradients of those are sums over the heads.

    q: (Q, D), k: (K, D): None where scores or weights were given. v: (K, Dv).
    weights: (Q, K), dL/dA = dL/dO · vᵀ.
    scores: (Q, K), of QKᵀ before the scale; 0 where blocked. None where weights were given.
    sink: 0-D, of the logit of the head's learned sink; None where there is none.
    weights and scores are None as well where they would have more than 16,777,216 cells.
    """

    q: Tensor | None
    k: Tensor | None
    v: Tensor
    weights: Tensor | None
    scores: Tensor | None
    sink: Tensor | None = None


def gradients(head: Head, grad_output: Any) -> Gradients:
    """Return the gradients of a head: see `Attention.gradients`."""
    att = head.att
    if att.v is None:
        raise ValueError("there is no v, so no output to differentiate: give Attention(q, k, v)")
    Q, K, Dv = att.shape.Q, att.shape.K, att.shape.Dv or 0
    with exact(att.device):
        dO = _given(att, grad_output, Q, Dv)
        v = values(head, range(K))  # (K, Dv)
        small, scored = Q * K <= DENSE, att.source.gives == "scores"
        dA = new(att, Q, K) if small else None
        dS = new(att, Q, K) if small and scored else None
        dV = torch.zeros_like(v)
        q, k = (None if x is None else x.to(att.result_dtype) for x in (head.q, head.k))
        dsink = None if head.sink is None else new(att).fill_(0)
        dQ, dK = (None if x is None else torch.zeros_like(x) for x in (q, k))
        for rows in cuts(range(Q), 1, max(1, STRIPE // max(K, 1))):
            at, cells = slice(rows.start, rows.stop), head.block(rows)
            p = _weights(att, cells)  # (queries, K)
            by_weight = dO[at] @ v.mT  # (queries, K)
            dV += _reached(p.mT, dO[at])
            if dA is not None:
                dA[at] = by_weight
            if not scored:
                continue
            if dsink is not None:  # it has no value: dL/dA is 0 there
                taken = sink_weights(head, rows)
                dsink -= (taken * (p * by_weight.masked_fill(p == 0, 0)).sum(1)).sum() if taken is not None else 0
            by_score = _through_scores(att, cells, _through_softmax(p, by_weight))
            if dS is not None:
                dS[at] = by_score
            if q is not None and k is not None and dQ is not None and dK is not None:
                dQ[at] = _reached(by_score, k)
                dK += _reached(by_score.mT, q[at])
        return Gradients(dQ, dK, dV, dA, dS, dsink)


def jacobian(head: Head, query: int) -> Tensor:
    """Return the softmax's Jacobian at one row: see `Attention.jacobian`."""
    att = head.att
    query = as_index(query, att.shape.Q, "query", "queries")
    if att.shape.K > LARGEST_JACOBIAN:
        raise ValueError(
            f"the Jacobian of a row over {att.shape.K:,} keys has {att.shape.K**2:,} numbers: "
            f"give an attention of at most {LARGEST_JACOBIAN:,} keys"
        )
    with exact(att.device):
        p = _weights(att, head.block(range(query, query + 1)))[0]
        return torch.diag(p) - torch.outer(p, p)


def _given(att: AttentionBase, grad_output: Any, Q: int, Dv: int) -> Tensor:
    """Return dL/dO, (Q, Dv); ones for L = the sum of the output."""
    if grad_output is None:
        return new(att, Q, Dv).fill_(1)
    found = as_tensor(grad_output, "grad_output").detach()
    if found.shape != (Q, Dv):
        raise ValueError(f"grad_output has shape {tuple(found.shape)} but the output of a head is ({Q}, {Dv})")
    return found.to(att.device, att.result_dtype)


def _weights(att: AttentionBase, cells: Block) -> Tensor:
    if streamed(att, "weights") == "weights":
        return exact_block(att, cells, "weights", None)
    return whole_rows(att, cells, "weights")


def _through_softmax(p: Tensor, by_weight: Tensor) -> Tensor:
    """Return (diag(p) − p pᵀ) · dL/dA of each row; what has no weight has no gradient, whatever its value."""
    by_weight = by_weight.masked_fill(p == 0, 0)
    return p * (by_weight - (p * by_weight).sum(1, keepdim=True))


def _through_scores(att: AttentionBase, cells: Block, by_masked: Tensor) -> Tensor:
    """Return dL/d(QKᵀ), (queries, K): from the stage masked back through biases, softcap and scale."""
    nothing = by_masked == 0  # stays so, even where a blocked score is NaN
    capped = plain(att, cells, "capped").mT  # (queries, K)
    for bias in reversed(_with_inputs(att, cells, capped)):
        by_masked = bias(by_masked)
    if att.softcap is not None:
        by_masked = by_masked * (1 - (capped / att.softcap) ** 2)
    return (by_masked * att.scale).masked_fill(nothing, 0)


def _reached(share: Tensor, x: Tensor) -> Tensor:
    """Return share · x, where what is NaN or infinite in x reaches only what has a share of it."""
    finite = x.isfinite()
    if bool(finite.all()):
        return share @ x
    reached = (share != 0).to(x.dtype) @ (~finite).to(x.dtype) > 0
    return torch.where(reached, share @ x, share @ x.where(finite, 0))


def _with_inputs(att: AttentionBase, cells: Block, S: Tensor) -> list[Any]:
    """Return, for each bias that is a function, what takes a gradient back through it; a sum takes it as it is."""
    steps = []
    for bias in att.rules.biases:
        if isinstance(bias, Bias):
            S = bias.apply(S.mT.clone(), cells).mT
            continue
        steps.append(_Back(bias, cells, S))
        S = steps[-1].value
    return steps


class _Back:
    """One bias function, differentiated by autograd at the scores that it was given."""

    def __init__(self, bias: ScoreFunction, cells: Block, S: Tensor):
        with torch.enable_grad():
            self._given = S.detach().clone().requires_grad_()
            changed = bias.function(self._given, *indices(cells, S.device))
            self._changed = changed.to(S.dtype).expand(S.shape)
        self.value = self._changed.detach()

    def __call__(self, gradient: Tensor) -> Tensor:
        if not self._changed.requires_grad:  # a function that does not look at the score
            return torch.zeros_like(gradient)
        (found,) = torch.autograd.grad(self._changed, self._given, gradient, allow_unused=True)
        return torch.zeros_like(gradient) if found is None else found
