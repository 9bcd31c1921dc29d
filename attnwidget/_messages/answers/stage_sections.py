"""Answers for sections of the stages view: spread of scores and weights, gradients, cost.

Each answer is a nested dict of lists, envelopes, and numbers that JSON can hold.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from ... import scaling
from ..._analysis.gradients import VectorGradients, computing_gradients, jacobian_rows
from ..._analysis.statistics import Statistics, cells_of_statistics, computing_statistics, worth_of_statistics
from ..._engine import cost
from ..._engine.base import Head
from ..._engine.matmul import exactly
from ..._engine.softmax import run_to_end
from ..._utils.jsonable import as_json
from ...attention import Attention
from ..codec import encoding
from ..pictures.stage_pictures import CELLS_AT_ONCE, SmallMatrix, small
from .long_answers import SLICE, LongAnswer

MAX_CHART_ROWS = 512  # rows in a chart, at most; longer ones are sampled evenly
MAX_SPREAD_CELLS = 3 << 32  # three passes over 65,536 tokens (a minute); longer heads are sampled by rows
MAX_SAMPLED_CELLS = 1 << 22  # cells in the sample of rows that is read first
MAX_SWEPT_ROWS = 128  # the head's own queries and keys used in a sweep
MAX_GRADIENT_CELLS = 1 << 24  # cells in a head whose gradients are drawn
TIMED_RUNS = 3  # for each length

Made = dict[str, Any]


def spread(att: Attention, batch: int, head: int) -> LongAnswer:
    """Begin to compute the spread of q, k, scores and weights, and entropy, peak and p(1 − p) of each row.

    The preliminary answer is exact for a sample of queries; for a head of more than `MAX_SPREAD_CELLS` it is final.
    """
    one, Q = att.head(batch, head), att.shape.Q
    some = MAX_SAMPLED_CELLS * cost.STATISTICS // worth_of_statistics(one)
    few = max(1, min(MAX_CHART_ROWS, some // max(1, att.shape.K)))
    every = max(1, -(-Q // few))
    sampled, whole = range(0, Q, every), range(Q)
    cells = cells_of_statistics(one, whole)
    first, begun, remaining = {}, 0, whole
    if cells > MAX_SPREAD_CELLS * cost.STATISTICS:
        remaining, cells = sampled, cells_of_statistics(one, sampled)
    elif cells > SLICE:
        begun = cost.SAMPLED * cells_of_statistics(one, sampled)
        first = _spread(att, run_to_end(exactly(att.device, computing_statistics(one, sampled))), sampled)
    return LongAnswer(_spreading(att, one, remaining), cells, first, begun)


def _spreading(att: Attention, head: Head, queries: range) -> Generator[int, None, Made]:
    steps = exactly(att.device, computing_statistics(head, queries))
    while True:
        try:
            yield next(steps)
        except StopIteration as end:
            return _spread(att, end.value, queries)


def _spread(att: Attention, found: Statistics, queries: range) -> Made:
    """Return the statistics of some queries, with at most 512 numbers in each chart."""
    some = max(1, -(-len(queries) // MAX_CHART_ROWS))
    variances = ("q_variance", "k_variance", "v_variance", "scores_variance", "scaled_variance")
    rows = {"entropy": found.entropy, "peak": found.peak, "sensitivity": found.sensitivity, "allowed": found.allowed}
    return {
        **{name: as_json(getattr(found, name)) for name in variances},
        "theory": found.theory,
        "scale": att.scale,
        "every": some * queries.step,
        "looked": len(queries),
        "rows": {name: vector(x[::some]) for name, x in rows.items()},
        "means": {name: as_json(float(rows[name].double().mean())) for name in ("entropy", "peak", "sensitivity")},
        "empty": found.empty_rows,
        "saturated": found.saturated_rows,
        "uniform": found.uniform_rows,
    }


def sweep(att: Attention, batch: int, head: int, own: bool) -> Made:
    """Compute attention at each head size, scaled and unscaled, for the first 128 positions or for random ones."""
    q = k = None
    sizes: tuple[int, ...] = scaling.HEAD_SIZES
    if own:
        if att.q is None or att.k is None or att.shape.D is None:
            raise ValueError("this attention has no q and k to sweep: use random ones (own=false)")
        q, k = att.q[batch, head, :MAX_SWEPT_ROWS], att.k[batch, att.group(head), :MAX_SWEPT_ROWS]
        sizes = (*(size for size in sizes if size < att.shape.D), att.shape.D)
    return {"own": own, "steps": [_step(step) for step in scaling.sweep(q, k, sizes=sizes)]}


def _step(step: scaling.Step) -> Made:
    return {name: vector(x) if isinstance(x, Tensor) else as_json(x) for name, x in vars(step).items()}


def gradients(att: Attention, batch: int, head: int) -> LongAnswer:
    """Begin to compute the gradients of L = the sum of the output, each as a small picture with its full range."""
    cells = att.shape.Q * att.shape.K
    if cells > MAX_GRADIENT_CELLS:
        raise ValueError(
            f"the gradients of {cells:,} weights are too many to draw: att.gradients() gives those of q, k and v"
        )
    nothing = dict.fromkeys(("v", "weights", "scores", "q", "k"))
    return LongAnswer(_differentiating(att, batch, head), cells * cost.GRADIENT, {"pictures": nothing})


def _differentiating(att: Attention, batch: int, head: int) -> Generator[int, None, Made]:
    Q, K = att.shape.Q, att.shape.K
    weights, scores = SmallMatrix(Q, K), SmallMatrix(Q, K)
    limit = max(1, CELLS_AT_ONCE // max(K, 1))
    steps = exactly(att.device, computing_gradients(att.head(batch, head), None, limit, weights.row_bin))
    while True:
        try:
            found = next(steps)
        except StopIteration as end:
            vectors: VectorGradients = end.value
            break
        weights.add(found.rows, found.weights)
        if found.scores is not None:
            scores.add(found.rows, found.scores)
        cells = len(found.rows) * K
        del found
        yield cost.GRADIENT * cells
    pictures = {
        "v": small(vectors.v),
        "weights": weights.picture(),
        "scores": scores.picture() if att.source.gives == "scores" else None,
        "q": None if vectors.q is None else small(vectors.q),
        "k": None if vectors.k is None else small(vectors.k),
    }
    return {"pictures": pictures}


def jacobian(att: Attention, query: int, batch: int, head: int) -> Made:
    """Compute the Jacobian of the softmax at one query, as a small picture."""
    K = att.shape.K
    found = SmallMatrix(K, K)
    limit = max(1, CELLS_AT_ONCE // max(K, 1))
    for rows, part in jacobian_rows(att.head(batch, head), query, limit, found.row_bin):
        found.add(rows, part)
    return {"query": query, "picture": found.picture()}


def timing(att: Attention) -> Made:
    """Measure how the time for a head grows with its length on this machine."""
    rows = scaling.cost(head_size=att.shape.D or 64, runs=TIMED_RUNS)
    return {"head_size": att.shape.D or 64, "device": "cpu", "steps": [asdict(row) for row in rows]}


def vector(x: Tensor) -> Made:
    return encoding.encode(encoding.to_numpy(x.to(torch.float32)))
