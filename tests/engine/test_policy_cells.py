"""A policy is checked against the rules by the cells that they leave, however long the head is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attnwidget import Attention
from attnwidget._engine import cache_policies
from attnwidget._rules.rules import Rules


@pytest.mark.parametrize("rules", [{"is_causal": True}, {"is_causal": True, "window": 9}])
def test_a_policy_of_a_long_causal_head_asks_for_few_cells(rules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    allowed = Rules.allowed

    def counted(self: Rules, cells: Any) -> Any:
        asked.append(len(cells.queries) * len(cells.keys))
        return allowed(self, cells)

    q, k = torch.randn(2, 800, 4)
    att = Attention(q, k, **rules)
    monkeypatch.setattr(cache_policies, "QUERIES", 50)
    monkeypatch.setattr(Rules, "allowed", counted)
    att.what_if({"keep": {"policy": "heavy_hitters", "budget": 4}, "drop_keys": [3]})
    assert sum(asked) < 800 * 110  # a square has 640,000, half of them later


@pytest.mark.parametrize("policy", ["heavy_hitters", "window"])
def test_a_key_that_comes_later_is_still_found(policy: str) -> None:
    mask = torch.ones(400, 400, dtype=torch.bool).tril()
    mask[311, 390] = True
    att = Attention(*torch.randn(2, 400, 4), mask=mask)
    with pytest.raises(ValueError, match="query 311 may attend to the later key 390"):
        att.what_if({"keep": {"policy": policy, "budget": 9}})
