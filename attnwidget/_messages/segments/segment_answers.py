"""Answers about attention between segments: more tokens, one column for all tokens, the cells behind a mass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..._analysis.all_heads import stage_rows
from ..._engine.cost import RANKED, CostBudget
from ..._utils.jsonable import as_json
from ..codec import encoding
from .segment_mass import CELLS_AT_ONCE, SINK, HeadMasses, MassPass
from .segment_reading import read
from .segment_rows import Numbers

MAX_WINDOW = 16_384  # numbers in one answer: tokens × columns
MAX_LINE = 2000  # numbers in one column over all tokens
MAX_HEAD_COLUMNS = 16
STRONGEST = 6  # the cost of a weight when searching for the strongest: 2²⁸ / 6 weights take 0.6 s on one core
FEWER = "ask for fewer at once"

Made = dict[str, Any]


def columns(found: MassPass, span: range, budget: CostBudget) -> Made:
    """Return the masses of some tokens of the asking segment."""
    if len(span) * len(found.names) > MAX_WINDOW:
        most = max(1, MAX_WINDOW // len(found.names))
        raise ValueError(f"{len(span):,} tokens were requested: ask for at most {most:,} at once")
    budget.spend(len(span) * found.worth_of_rows(RANKED), FEWER)
    positions = found.asked[span.start : span.stop].astype(np.uint32)
    return {"positions": encoding.encode(positions), **found.columns(span.start, span.stop)}


def line(found: MassPass, column: int, measure: str, aside: Sequence[str]) -> Made:
    """Return one column's reading for the asking segment's tokens; if long, each number is the largest of several."""
    known = found.known_tokens()
    own = found.own_columns(found.asked.tolist())
    parts = {**known, "self": spread(known["self"], own, known), "self_even": spread(known["self_even"], own, known)}
    sizes = [*found.wanted.columns.sizes, *(0 for _ in range(len(found.names) - len(found.wanted.columns.names)))]
    values = read(parts, found.names, sizes, aside, measure, found.wanted.stage)[0][:, column]
    every = max(1, -(-len(values) // MAX_LINE))
    room = np.full(-(-len(values) // every) * every, np.nan)
    room[: len(values)] = values
    bins = _largest(room.reshape(-1, every))
    share = float(np.isfinite(known["mass"][:, 0]).mean()) if len(values) else 1.0
    return {"values": encoding.encode(bins.astype(np.float32)), "every": every, "known": share}


def _largest(room: Numbers) -> Numbers:
    """Return the number with the largest absolute value in each row, NaN if all are NaN."""
    sizes = np.where(np.isnan(room), -1, np.abs(room))
    found: Numbers = np.take_along_axis(room, sizes.argmax(1)[:, None], 1)[:, 0]
    return found


def spread(own_part: np.ndarray[Any, Any], own: np.ndarray[Any, Any], known: Made) -> Numbers:
    """Return what each token gives its own key as a matrix, in that key's column."""
    found = np.zeros(known["mass"].shape)
    there = np.flatnonzero(own >= 0)
    found[there, own[there]] = own_part[there]
    return found


def keys(found: MassPass, query: int, column: int, count: int, budget: CostBudget) -> Made:
    """Return one query's strongest keys in a segment."""
    mine = _keys_of(found, column)
    budget.spend(found.worth_of_rows(RANKED), FEWER)
    weights = _weights(found, [query])[0, torch.from_numpy(mine)]
    at = weights.abs().topk(min(count, len(mine))).indices
    top = weights[at]
    return {
        "positions": encoding.encode(mine[at.numpy()].astype(np.uint32)),
        "values": encoding.encode(encoding.to_numpy(top)),
        "rest": {"count": len(mine) - len(top), "sum": as_json(float(weights.sum() - top.sum()))},
    }


def block(found: MassPass, row: int, column: int, count: int, budget: CostBudget) -> Made:
    """Return the exact numbers known for a cell of the matrix, and its strongest weights."""
    mine, queries = _keys_of(found, column), found.wanted.rows.positions[row]
    budget.spend(len(queries) * found.worth_of_rows(STRONGEST), "open a smaller segment")
    best: list[tuple[float, int, int]] = []
    at_once = max(1, CELLS_AT_ONCE // max(1, found.att.shape.K))
    for start in range(0, len(queries), at_once):
        some = queries[start : start + at_once]
        weights = _weights(found, some.tolist())[:, torch.from_numpy(mine)]
        places = weights.abs().flatten().topk(min(count, weights.numel())).indices
        for value, place in zip(weights.flatten()[places].tolist(), places.tolist(), strict=True):
            best.append((value, int(some[place // len(mine)]), int(mine[place % len(mine)])))
        best = sorted(best, key=lambda one: -abs(one[0]))[:count]
    numbers = {name: _number(values[row, column]) for name, values in found.matrix().items()}
    kinds = (("values", 0, np.float32), ("queries", 1, np.uint32), ("keys", 2, np.uint32))
    cells_of = {name: encoding.encode(np.array([one[i] for one in best], dtype)) for name, i, dtype in kinds}
    return {**numbers, "looked": int(found.looked[row]), **cells_of}


def heads(found: HeadMasses, chosen: Sequence[int]) -> Made:
    """Return some columns for all heads."""
    made: Made = found.parts(chosen)
    return made


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _keys_of(found: MassPass, column: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the keys in a column."""
    if column >= len(found.wanted.columns.names):
        raise ValueError(f"{SINK} has no keys: choose another segment")
    return np.flatnonzero(found.wanted.columns.labels == column)


def _weights(found: MassPass, queries: Sequence[int]) -> Tensor:
    """Return the numbers that are summed for some queries, (queries, K); several heads give their mean or largest."""
    chosen = torch.as_tensor(list(queries), device=found.att.device)
    each = [stage_rows(found.att, found.wanted.batch, head, chosen, found.wanted.stage) for head in found.wanted.heads]
    if len(each) == 1:
        return each[0].cpu()
    stacked = torch.stack(each).cpu()
    return stacked.amax(0) if found.wanted.takes_largest else stacked.mean(0)
