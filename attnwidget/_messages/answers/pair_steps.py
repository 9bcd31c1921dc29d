"""One pair's numbers at every stage, as the stages view draws them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..._analysis.explain import Explanation
from ..._analysis.statistics import top_keys
from ..._utils.jsonable import as_json
from ...attention import Attention
from ..codec import encoding

MAX_ROW_KEYS = 64  # keys drawn in a row; a longer row shows the strongest
STRONGEST_KEYS = 24


def pair(
    att: Attention,
    query: int,
    key: int,
    batch: int,
    head: int,
    before: tuple[Attention, Explanation] | None = None,
) -> dict[str, Any]:
    """Compute a pair's numbers from q · k to its share of the output, and its row of weights.

    Args:
        att: the layer.
        query, key, batch, head: the pair.
        before: the layer without the what-if rules, and the pair explained there; None if there are no such rules.
    """
    found = att.explain(query, key, batch=batch, head=head)
    keys, weights, blocked = _row(att, found, batch, head)
    values, bits = encoding.encode_numbers(weights, blocked)
    return {
        "query": found.query,
        "key": found.key,
        **numbers(found),
        **_vectors(found),
        "row": {"keys": encoding.encode(keys.cpu().numpy().astype("uint32")), "values": values, "blocked": bits},
        "original": None if before is None else _original(*before, keys, batch, head),
    }


def _original(att: Attention, was: Explanation, keys: Tensor, batch: int, head: int) -> dict[str, Any]:
    """Return the same pair and row without the what-if rules."""
    row = att.block(batch=batch, head=head, queries=was.query)[0][keys]
    value = None if was.value is None else encoding.encode(encoding.to_numpy(was.value))
    return {**numbers(was), "value": value, "row": encoding.encode(encoding.to_numpy(row))}


def numbers(found: Explanation) -> dict[str, Any]:
    """Return all single numbers of an explanation, ready for JSON."""
    of_row = ("maximum", "log_normalizer", "sink", "sink_weight")
    names = ("score", "scale", "scaled", "softcap", "capped", "masked", *of_row, "weight")
    effects = [{"name": e.name, "blocks": e.blocks, "adds": as_json(e.adds)} for e in found.effects]
    single = {name: as_json(getattr(found, name)) for name in (*names, "contribution", "share")}
    carried = {stage: [as_json(n), as_json(found.per_weight[stage])] for stage, n in found.carried.items()}
    return {**single, "carried": carried, "allowed": found.allowed, "effects": effects}


def _vectors(found: Explanation) -> dict[str, Any]:
    vectors = {"products": found.products, "value": found.value, "output": found.output}
    return {name: None if x is None else encoding.encode(encoding.to_numpy(x)) for name, x in vectors.items()}


def _row(att: Attention, found: Explanation, batch: int, head: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the row's keys (all, or the strongest and the pair's own), their weights, and which are blocked."""
    if att.shape.K <= MAX_ROW_KEYS:
        weights = att.block(batch=batch, head=head, queries=found.query)[0]
        blocked = ~att.block("allowed", batch=batch, head=head, queries=found.query)[0]
        return torch.arange(att.shape.K, device=att.device), weights, blocked
    keys, weights = top_keys(att.head(batch, head), found.query, STRONGEST_KEYS)
    if not bool((keys == found.key).any()):
        keys = torch.cat([keys, torch.tensor([found.key], device=keys.device)])
        weights = torch.cat([weights, weights.new_full((1,), found.weight)])
    order = keys.argsort()
    keys, weights = keys[order], weights[order]
    return keys, weights, (keys == found.key) & (not found.allowed)
