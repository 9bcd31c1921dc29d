"""What the stages view draws: every stage of a head as a small picture, and one pair's way through them in numbers."""

from __future__ import annotations

from math import isfinite
from typing import Any

import torch
from torch import Tensor

from . import picture, pyramid, wire
from .attention import Attention
from .explain import Explanation
from .levels import Key
from .statistics import top_keys

SIZE = 128  # rows and columns of a small picture, at most
SHOWN = ("scores", "scaled", "capped", "masked", "weights")  # of the stages that there are
MASKED = ("masked", "weights")  # the stages in which a blocked cell has no number of its own
ROW = 64  # keys whose weights are drawn: all of them, or beyond that the strongest
STRONGEST = 24
OUTPUT_CELLS = 1 << 22  # queries × value size, beyond which the output is not drawn


def stages(att: Attention, batch: int, head: int, scores: dict[str, Any] | None = None) -> dict[str, Any]:
    """All stages of a head, small, with their ranges, and the output; `scores` if their picture is there already."""
    there = [stage for stage in SHOWN if stage in att.stages]
    known = {} if scores is None else {"scores": scores}
    return {
        "pictures": [known.get(stage) or _picture(att, batch, head, stage) for stage in there],
        "output": _output(att, batch, head),
    }


def _picture(att: Attention, batch: int, head: int, stage: str) -> dict[str, Any]:
    """A stage, exact; of a long head from one exact row in each bin, `every` queries apart."""
    every = 1
    if picture.is_long(att, Key(batch, head, stage, "max")):
        seen = pyramid.sampled(att, batch, head, rows=SIZE, columns=SIZE, stage=stage)
        every = seen.query_bin
    else:
        seen = pyramid.overview(att, batch, head, size=SIZE, stage=stage)
    blocked = ~seen.allowed if stage in MASKED and not bool(seen.allowed.all()) else None
    encoded = wire.encode_picture(seen.values, blocked, signed=stage != "weights")
    return {"stage": stage, "every": every, "query_bin": seen.query_bin, "key_bin": seen.key_bin, **encoded}


def _output(att: Attention, batch: int, head: int) -> dict[str, Any] | None:
    """weights · v, (Q, Dv), the number of largest size in each bin."""
    if att.v is None or att.shape.Q * (att.shape.Dv or 0) > OUTPUT_CELLS:
        return None
    values = att.output(batch, head)
    seen, query_bin, value_bin = pooled(values)
    encoded = wire.encode_picture(seen, None, signed=True)
    return {"query_bin": query_bin, "value_bin": value_bin, "rows": len(values), "columns": values.shape[1], **encoded}


def pooled(x: Tensor) -> tuple[Tensor, int, int]:
    """At most 128 × 128 of the numbers, of each bin that of largest size with its sign; rows and columns of a bin."""
    down, across = (max(1, -(-n // SIZE)) for n in x.shape)
    return _largest(_largest(x, down).mT, across).mT, down, across


def _largest(x: Tensor, width: int) -> Tensor:
    """Of each `width` rows the number of largest size, with its sign: (n, m) -> (⌈n / width⌉, m)."""
    if width == 1:
        return x
    high = pyramid.pool_first(x, width, torch.amax)
    low = pyramid.pool_first(x, width, torch.amin)
    return torch.where(high.abs() >= low.abs(), high, low)


def pair(
    att: Attention,
    query: int,
    key: int,
    batch: int,
    head: int,
    before: tuple[Attention, Explanation] | None = None,
) -> dict[str, Any]:
    """One pair's way from q · k to its share of the output, and its row; beside `before`, if there is one."""
    found = att.explain(query, key, batch=batch, head=head)
    keys, weights, blocked = _row(att, found, batch, head)
    values, bits = wire.encode_numbers(weights, blocked)
    return {
        "query": found.query,
        "key": found.key,
        **numbers(found),
        **_vectors(found),
        "row": {"keys": wire.encode(keys.cpu().numpy().astype("uint32")), "values": values, "blocked": bits},
        "original": None if before is None else _original(*before, keys, batch, head),
    }


def _original(att: Attention, was: Explanation, keys: Tensor, batch: int, head: int) -> dict[str, Any]:
    """The same pair and row under the rules that were given."""
    row = att.block(batch=batch, head=head, queries=was.query)[0][keys]
    value = None if was.value is None else wire.encode(wire.to_numpy(was.value))
    return {**numbers(was), "value": value, "row": wire.encode(wire.to_numpy(row))}


def numbers(found: Explanation) -> dict[str, Any]:
    """Every single number of an explanation, as JSON can hold it."""
    names = ("score", "scale", "scaled", "softcap", "capped", "masked", "maximum", "log_normalizer", "weight")
    effects = [{"name": e.name, "blocks": e.blocks, "adds": _number(e.adds)} for e in found.effects]
    single = {name: _number(getattr(found, name)) for name in (*names, "contribution", "share")}
    return {**single, "allowed": found.allowed, "effects": effects}


def _number(value: float | None) -> float | str | None:
    """JSON has no NaN and no infinity."""
    return value if value is None or isfinite(value) else str(value)


def _vectors(found: Explanation) -> dict[str, Any]:
    vectors = {"products": found.products, "value": found.value, "output": found.output}
    return {name: None if x is None else wire.encode(wire.to_numpy(x)) for name, x in vectors.items()}


def _row(att: Attention, found: Explanation, batch: int, head: int) -> tuple[Tensor, Tensor, Tensor]:
    """The query's keys, all or the strongest and the pair's own, in order; their weights, and which are blocked."""
    if att.shape.K <= ROW:
        weights = att.block(batch=batch, head=head, queries=found.query)[0]
        blocked = ~att.block("allowed", batch=batch, head=head, queries=found.query)[0]
        return torch.arange(att.shape.K, device=att.device), weights, blocked
    keys, weights = top_keys(att, found.query, STRONGEST, batch, head)
    if not bool((keys == found.key).any()):
        keys = torch.cat([keys, torch.tensor([found.key], device=keys.device)])
        weights = torch.cat([weights, weights.new_full((1,), found.weight)])
    order = keys.argsort()
    keys, weights = keys[order], weights[order]
    return keys, weights, (keys == found.key) & (not found.allowed)
