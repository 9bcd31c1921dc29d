"""What is allowed, counted: as the whole mask says, and at once at any length where the rules are known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from reference import Case, cases

from attnwidget import Attention, masks
from attnwidget._analysis.mask_counts import cells_to_ask, count_allowed


def check(att: Attention, allowed: torch.Tensor, batch: int = 0, head: int = 0) -> None:
    found = count_allowed(att.head(batch, head))
    later = allowed.triu(1)
    assert found.by_query.tolist() == allowed.sum(1).tolist()
    assert found.by_key.tolist() == allowed.sum(0).tolist()
    assert (found.total, found.above, found.diagonal) == (
        int(allowed.sum()),
        int(later.sum()),
        int(allowed.diagonal().sum()),
    )
    assert (found.above_at is None) == (not later.any())
    if found.above_at is not None:
        assert bool(later[found.above_at])


@given(cases())
def test_the_counts_are_those_of_the_mask(case: Case) -> None:
    att, allowed = case.attention(), case.allowed
    check(att, allowed[-1, -1], att.shape.B - 1, att.shape.H - 1)


KNOWN: dict[str, dict[str, Any]] = {
    "nothing": {},
    "causal": {"is_causal": True},
    "lower right": {"mask": masks.causal_lower_right(9, 14)},
    "window": {"window": 3},
    "causal window and padding": {"mask": masks.and_masks(masks.causal, masks.sliding_window(4), masks.padding([6]))},
    "padding as a tensor": {"mask": (torch.arange(14) % 5 != 2)[None], "mask_dims": "bk", "is_causal": True},
    "padding as a float": {"mask": torch.where(torch.arange(14) < 6, 0.0, -torch.inf)[None, None, None]},
    "dropped keys": {"is_causal": True, "drop": [0, 3]},
    "window before the first key": {"mask": masks.and_masks(masks.sliding_window(2), masks.padding([1]))},
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_rules_are_not_asked_cell_by_cell(name: str) -> None:
    keywords = dict(KNOWN[name])
    drop = keywords.pop("drop", None)
    att = Attention(torch.randn(9, 4), torch.randn(14, 4), **keywords)
    att = att if drop is None else att.what_if({"drop_keys": drop})
    assert cells_to_ask(att.head(0, 0)) == 0
    check(att, att.block("allowed"))


def test_others_are() -> None:
    q, k = torch.randn(9, 4), torch.randn(14, 4)
    own = Attention(q, k, mask=lambda b, h, q_idx, kv_idx: (q_idx + kv_idx) % 3 == 0)
    assert cells_to_ask(own.head(0, 0)) == 9 * 14
    either = Attention(q, k, mask=masks.or_masks(masks.sliding_window(2), masks.padding([1])))
    assert cells_to_ask(either.head(0, 0)) == 9 * 14
    check(either, either.block("allowed"))
