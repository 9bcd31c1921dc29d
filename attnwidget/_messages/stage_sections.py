"""Answers for the sections of the stages view: spread of scores and weights, gradients, cost.

Each is a dict of numbers that JSON can hold, envelopes, and lists and dicts of those.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from .. import scaling
from .._utils.jsonable import as_json
from ..attention import Attention
from . import encoding
from .stage_pictures import pool_matrix

MAX_CHART_ROWS = 512  # of a chart, at most: beyond, every so many
MAX_SWEPT_ROWS = 128  # queries and keys of one's own that are swept
MAX_GRADIENT_CELLS = 1 << 24  # cells of a head whose gradients are drawn
TIMED_RUNS = 3  # of each length that is timed

Made = dict[str, Any]


def spread(att: Attention, batch: int, head: int) -> Made:
    """Compute how widely q, k, scores and weights are spread, and entropy, peak and p(1 − p) of each row."""
    found = att.statistics(batch, head)
    every = max(1, -(-len(found.entropy) // MAX_CHART_ROWS))
    variances = ("q_variance", "k_variance", "v_variance", "scores_variance", "scaled_variance")
    rows = {"entropy": found.entropy, "peak": found.peak, "sensitivity": found.sensitivity, "allowed": found.allowed}
    return {
        **{name: as_json(getattr(found, name)) for name in variances},
        "theory": found.theory,
        "scale": att.scale,
        "every": every,
        "rows": {name: vector(x[::every]) for name, x in rows.items()},
        "means": {name: as_json(float(rows[name].double().mean())) for name in ("entropy", "peak", "sensitivity")},
        "empty": found.empty_rows,
        "saturated": found.saturated_rows,
        "uniform": found.uniform_rows,
    }


def sweep(att: Attention, batch: int, head: int, own: bool) -> Made:
    """Compute attention at each head size, scaled and not: of the first 128 own queries and keys, or of random ones."""
    q = k = None
    sizes: tuple[int, ...] = scaling.HEAD_SIZES
    if own:
        if att.q is None or att.k is None or att.shape.D is None:
            raise ValueError("there is no q and no k of one's own: sweep fresh ones")
        q, k = att.q[batch, head, :MAX_SWEPT_ROWS], att.k[batch, att.group(head), :MAX_SWEPT_ROWS]
        sizes = (*(size for size in sizes if size < att.shape.D), att.shape.D)
    return {"own": own, "steps": [_step(step) for step in scaling.sweep(q, k, sizes=sizes)]}


def _step(step: scaling.Step) -> Made:
    return {name: vector(x) if isinstance(x, Tensor) else as_json(x) for name, x in vars(step).items()}


def gradients(att: Attention, batch: int, head: int) -> Made:
    """Compute the gradients of L = the sum of the output, each as a small picture with the range of all its numbers."""
    cells = att.shape.Q * att.shape.K
    if cells > MAX_GRADIENT_CELLS:
        raise ValueError(
            f"the gradients of {cells:,} weights are too many to draw: att.gradients() has those of q, k and v"
        )
    found = att.gradients(batch=batch, head=head)
    pictures = {name: getattr(found, name) for name in ("v", "weights", "scores", "q", "k")}
    return {"pictures": {name: None if x is None else small(x) for name, x in pictures.items()}}


def jacobian(att: Attention, query: int, batch: int, head: int) -> Made:
    """Compute the Jacobian of the softmax at one query, as a small picture."""
    return {"query": query, "picture": small(att.jacobian(query, batch=batch, head=head))}


def cost(att: Attention) -> Made:
    """Measure what a head of this size takes on this machine as it grows."""
    rows = scaling.cost(head_size=att.shape.D or 64, runs=TIMED_RUNS)
    return {"head_size": att.shape.D or 64, "device": "cpu", "steps": [asdict(row) for row in rows]}


def small(x: Tensor) -> Made:
    """Return at most 128 × 128 numbers, of each bin the one of largest size; the range is that of all."""
    made, row_bin, column_bin = pool_matrix(x)
    finite = x[x.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (None, None)
    encoded = encoding.encode_picture(made, None, signed=True)
    return {
        **encoded,
        "low": low,
        "high": high,
        "rows": x.shape[0],
        "columns": x.shape[1],
        "row_bin": row_bin,
        "column_bin": column_bin,
    }


def vector(x: Tensor) -> Made:
    return encoding.encode(encoding.to_numpy(x.to(torch.float32)))
