"""The distance of an output from torch's own, and the effect of other rules or number types, over some queries."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import asdict, dataclass
from math import inf, isfinite
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .._engine.base import AttentionBase, Head
from .._engine.matmul import exactly, full
from .._engine.softmax import exact_block, run_to_end, whole_rows
from .._engine.stages import allowed_cells, values
from .._rules.rules import whole
from .._utils.indexing import Block, cuts

MAX_ROWS = 256  # queries that are compared
MAX_CELLS = 1 << 22  # cells in their rows together; longer rows are fewer
MIN_ROWS = 16
CELLS_AT_ONCE = 1 << 19  # cells of the rows held together
TOLERANCES = {torch.float16: 5e-3, torch.bfloat16: 4e-2}  # relative errors of torch's own result; else 1e-4


@dataclass(frozen=True)
class Parity:
    """The distance of the output from torch's own attention.

    difference: the largest |Δ| over the queries compared. queries: how many were compared.
    equal: whether it is within rounding for the dtype.
    """

    difference: float
    queries: int
    equal: bool


def parity(head: Head) -> Parity | None:
    """Return the distance of the output from torch's own attention: see `comparing`."""
    return run_to_end(exactly(head.att.device, comparing(head)))


def comparing(head: Head) -> Generator[None, None, Parity | None]:
    """Compare the output with `F.scaled_dot_product_attention` on the same tensors.

    At most 256 queries are compared. Returns None if torch cannot compute it: see `why_not`. For torch a learned sink
    is one more key and value of zeros, with its score in the mask. Yields after some of the queries.
    """
    att, q, k, v = head.att, head.q, head.k, head.v
    if why_not(att) or q is None or k is None or v is None:
        return None
    kind = torch.promote_types(q.dtype, v.dtype)  # torch takes tensors of one type
    q, k, v = (x.to(kind) for x in (q, k, v))
    worst, size, count, sink = 0.0, 0.0, 0, head.sink
    if sink is not None:
        k, v = (torch.cat([x, x.new_zeros(1, x.shape[1])]) for x in (k, v))
    for rows in sampled_rows(att):
        cells = head.block(rows)
        allowed = whole(allowed_cells(att, cells), rows, cells.keys, att.device)
        added = torch.zeros(len(rows), att.shape.K, dtype=torch.float32, device=att.device)
        for bias in att.rules.biases:
            added = bias.apply(added.mT.contiguous(), cells).mT
        added = added.masked_fill(~allowed, -inf).to(q.dtype)
        if sink is not None:
            added = torch.cat([added, added.new_full((len(rows), 1), sink)], 1)
        with full(att.device):
            theirs = F.scaled_dot_product_attention(
                q[rows.start : rows.stop : rows.step][None, None], k[None, None], v[None, None], added[None, None],
                scale=att.scale,
            )[0, 0]  # fmt: skip
        ours = weights_of(att, cells) @ values(head, cells.keys)
        gap = (ours - theirs.to(ours.dtype)).abs()
        gap = gap.masked_fill(~allowed.any(1, keepdim=True), 0)  # torch's kernels differ in fully masked rows
        worst, size, count = max(worst, float(gap.max())), max(size, float(ours.abs().max())), count + len(rows)
        yield
    if not isfinite(worst) or count == 0:
        return None
    return Parity(worst, count, worst <= TOLERANCES.get(kind, 1e-4) * max(size, 1e-30))


def why_not(att: AttentionBase) -> str:
    """Return why torch's attention cannot be compared, "" if it can."""
    if att.q is None or att.k is None:
        return f"only {att.source.gives} were given: torch SDPA needs q and k"
    if att.v is None:
        return "there is no v, so no output to compare with torch SDPA"
    if att.softcap is not None:
        return "torch SDPA has no softcap to compare with"
    return "torch SDPA takes no bias that is a function" if att.rules.by_score else ""


@dataclass(frozen=True)
class Change:
    """The effect of other rules, or another number type, on a head: the largest |Δ| over the queries compared.

    weights: of a weight. output: of a number of the output, None without v. queries: how many were compared.
    """

    weights: float
    output: float | None
    queries: int


def changing(head: Head, changed: AttentionBase) -> Generator[None, None, Change]:
    """Return the largest difference between a head and another attention's, over at most 256 queries.

    Args:
        head: of one attention.
        changed: another attention, of the same shape.

    Yields:
        After some of the queries.
    """
    before, after = head.att, changed
    weights, output, count = 0.0, 0.0, 0
    for rows in sampled_rows(before):
        cells = head.block(rows)
        one, other = weights_of(before, cells), weights_of(after, cells)
        weights = _largest(weights, one - other)
        count += len(rows)
        if before.v is not None and after.v is not None:
            outputs = [row @ values(head._replace(att=att), cells.keys) for att, row in ((before, one), (after, other))]
            output = _largest(output, outputs[0] - outputs[1])
        yield
    return Change(weights, None if before.v is None else output, count)


def deviating(head: Head, before: AttentionBase | None, same: Parity | None) -> Generator[None, None, dict[str, Any]]:
    """Return the differences from torch's output and from the output before the change, or why unknown, as JSON."""
    why = "" if same is not None else why_not(head.att) or "the output holds NaN, so it cannot be compared"
    torch_own = {"difference": None, "queries": 0, "equal": False} if same is None else asdict(same)
    original = None
    if before is not None:
        original = asdict((yield from changing(head._replace(att=before), head.att)))
    if original is not None:
        original = {name: number if isfinite(number or 0) else None for name, number in original.items()}
    return {"torch": {**torch_own, "why": why}, "original": original}


def _largest(so_far: float, x: Tensor) -> float:
    """Return the larger of a number and the largest |x|; NaN stays NaN."""
    return float(torch.maximum(x.abs().amax() if x.numel() else x.new_zeros(()), x.new_tensor(so_far)))


def weights_of(att: AttentionBase, cells: Block) -> Tensor:
    """Return the weights of some queries over all keys, (queries, K)."""
    if att.source.gives == "weights":
        return exact_block(att, cells, "weights", None)
    return whole_rows(att, cells, "weights")


def sampled_rows(att: AttentionBase) -> list[range]:
    """Return the queries to compare: all, or evenly spread ones up to the last, in runs of at most 2²² cells."""
    Q, K = att.shape.Q, max(att.shape.K, 1)
    step = max(1, -(-Q // max(MIN_ROWS, min(MAX_ROWS, MAX_CELLS // K))))
    rows = range((Q - 1) % step, Q, step)
    return [rows[at.start : at.stop] for at in cuts(range(len(rows)), 1, max(1, CELLS_AT_ONCE // K))]
