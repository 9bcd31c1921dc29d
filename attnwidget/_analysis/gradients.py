"""How a loss reaches scores, weights, q, k and v: the backward pass of attention, some queries at a time."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._engine.base import AttentionBase, Head
from .._engine.matmul import exact, exactly
from .._engine.softmax import exact_block, sink_weights, whole_rows
from .._engine.stages import new, plain, streamed, values
from .._rules.rules import Bias, ScoreFunction, indices
from .._utils.indexing import Block, as_index, cuts
from .._utils.readable import Readable
from .._utils.validation import as_tensor

STRIPE = 1 << 22  # cells computed at once
DENSE = 1 << 24  # the most cells of the kept gradients of weights and scores
LARGEST_JACOBIAN = 4096  # keys


@dataclass(frozen=True, eq=False, repr=False)
class Gradients(Readable):
    """Derivatives of a loss L, from its derivative by the output, for one head alone.

    If several heads share k and v, the gradients of k and v are sums over the heads.

    q: (Q, D), k: (K, D): None if scores or weights were given. v: (K, Dv).
    weights: (Q, K), dL/dA = dL/dO · vᵀ.
    scores: (Q, K), of QKᵀ before the scale; 0 in blocked cells. None if weights were given.
    sink: 0-D, of the logit of the head's learned sink; None if there is none.
    weights and scores are None as well if they would have more than 16,777,216 cells.

    >>> import torch
    >>> from attnwidget import Attention
    >>> att = Attention(torch.eye(3), torch.eye(3), torch.eye(3), is_causal=True)
    >>> found = att.gradients()
    >>> found.v.shape, found.scores[0].tolist()
    (torch.Size([3, 3]), [0.0, 0.0, 0.0])
    """

    q: Tensor | None
    k: Tensor | None
    v: Tensor
    weights: Tensor | None
    scores: Tensor | None
    sink: Tensor | None = None


class GradientRows(NamedTuple):
    """Gradients of the weights and of the scores of some queries, (queries, K); scores None if weights were given.

    rows: the queries.
    """

    rows: range
    weights: Tensor
    scores: Tensor | None


class VectorGradients(NamedTuple):
    """Gradients of q, k and v, and of the logit of the learned sink; None as in `Gradients`."""

    q: Tensor | None
    k: Tensor | None
    v: Tensor
    sink: Tensor | None


def gradients(head: Head, grad_output: Any) -> Gradients:
    """Return the gradients of a head: see `Attention.gradients`."""
    att = head.att
    Q, K = att.shape.Q, att.shape.K
    steps = exactly(att.device, computing_gradients(head, grad_output, max(1, STRIPE // max(K, 1))))
    kept: tuple[Tensor | None, Tensor | None] | None = None
    while True:
        try:
            found = next(steps)
        except StopIteration as end:
            vectors: VectorGradients = end.value
            weights, scores = kept or (None, None)
            return Gradients(vectors.q, vectors.k, vectors.v, weights, scores, vectors.sink)
        if Q * K > DENSE:
            continue
        if kept is None:
            kept = new(att, Q, K), None if found.scores is None else new(att, Q, K)
        for whole, part in zip(kept, (found.weights, found.scores), strict=True):
            if whole is not None and part is not None:
                whole[found.rows.start : found.rows.stop] = part


def computing_gradients(
    head: Head, grad_output: Any, limit: int, width: int = 1
) -> Generator[GradientRows, None, VectorGradients]:
    """Compute the gradients of a head, some queries at a time.

    Args:
        head: the head.
        grad_output: dL/dO, (Q, Dv); None for ones.
        limit: the most queries at a time.
        width: cut the queries at multiples of this, if the limit allows it.

    Raises:
        ValueError: there is no v.
    """
    att = head.att
    if att.v is None:
        raise ValueError("there is no v, so no output to differentiate: give Attention(q, k, v)")
    Q, K, Dv = att.shape.Q, att.shape.K, att.shape.Dv or 0
    dO = _given(att, grad_output, Q, Dv)
    v = values(head, range(K))  # (K, Dv)
    scored = att.source.gives == "scores"
    dV = torch.zeros_like(v)
    q, k = (None if x is None else x.to(att.result_dtype) for x in (head.q, head.k))
    dsink = None if head.sink is None else new(att).fill_(0)
    dQ, dK = (None if x is None else torch.zeros_like(x) for x in (q, k))
    for rows in cuts(range(Q), width, limit):
        at, cells = slice(rows.start, rows.stop), head.block(rows)
        p = _weights(att, cells)  # (queries, K)
        by_weight = dO[at] @ v.mT  # (queries, K)
        dV += _reached(p.mT, dO[at])
        if not scored:
            yield GradientRows(rows, by_weight, None)
            continue
        if dsink is not None:  # it has no value: its dL/dA is 0
            taken = sink_weights(head, rows)
            dsink -= (taken * (p * by_weight.masked_fill(p == 0, 0)).sum(1)).sum() if taken is not None else 0
        by_score = _through_scores(att, cells, _through_softmax(p, by_weight))
        if q is not None and k is not None and dQ is not None and dK is not None:
            dQ[at] = _reached(by_score, k)
            dK += _reached(by_score.mT, q[at])
        del p
        yield GradientRows(rows, by_weight, by_score)
    return VectorGradients(dQ, dK, dV, dsink)


def jacobian(head: Head, query: int) -> Tensor:
    """Return the softmax's Jacobian at one row: see `Attention.jacobian`."""
    K = head.att.shape.K
    return next(jacobian_rows(head, query, max(1, K)))[1]


def jacobian_rows(head: Head, query: int, limit: int, width: int = 1) -> Generator[tuple[range, Tensor], None, None]:
    """Compute the softmax's Jacobian at one row, some of its rows at a time.

    Args:
        head: the head.
        query: of the row.
        limit: the most rows at a time.
        width: cut the rows at multiples of this, if the limit allows it.

    Yields:
        The numbers of some rows, and the rows, (rows, K).
    """
    att, K = head.att, head.att.shape.K
    query = as_index(query, att.shape.Q, "query", "queries")
    if K > LARGEST_JACOBIAN:
        raise ValueError(
            f"the Jacobian of a row over {K:,} keys has {K**2:,} numbers: "
            f"give an attention of at most {LARGEST_JACOBIAN:,} keys"
        )
    with exact(att.device):
        p = _weights(att, head.block(range(query, query + 1)))[0]
    for rows in cuts(range(K), width, limit):
        with exact(att.device):
            part = torch.outer(p[rows.start : rows.stop], p).neg_()  # (rows, K)
            part.diagonal(rows.start).add_(p[rows.start : rows.stop])
        yield rows, part


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
    """Return (diag(p) − p pᵀ) · dL/dA of each row; a cell without weight has no gradient, whatever its value."""
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
    """Return share · x; NaN or ∞ in x reaches only cells with a nonzero share."""
    finite = x.isfinite()
    if bool(finite.all()):
        return share @ x
    reached = (share != 0).to(x.dtype) @ (~finite).to(x.dtype) > 0
    return torch.where(reached, share @ x, share @ x.where(finite, 0))


def _with_inputs(att: AttentionBase, cells: Block, S: Tensor) -> list[Any]:
    """Return, for each bias that is a function, the backward function; a sum needs none."""
    steps = []
    for bias in att.rules.biases:
        if isinstance(bias, Bias):
            S = bias.apply(S.mT.clone(), cells).mT
            continue
        steps.append(_Back(bias, cells, S))
        S = steps[-1].value
    return steps


class _Back:
    """One bias function, differentiated by autograd at its scores."""

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
