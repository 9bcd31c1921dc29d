"""A capture that kept overviews alone, in every view: what can no longer be asked is said, and nothing fails."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gallery import Gallery, show
from lab import OfflinePages

from attnwidget import AttentionWidget, capture


def kept(**more: Any) -> AttentionWidget:
    q, k, v = torch.randn(3, 1, 4, 300, 8, generator=torch.Generator().manual_seed(1))
    with capture(keep="overview") as cap:
        torch.nn.functional.scaled_dot_product_attention(2 * q, k, v, is_causal=True)
    return cap.widget(**more)


def words_of(shown: Gallery) -> str:
    return " ".join(shown.page.locator(".attnwidget").inner_text().split())


def test_each_view_says_what_is_not_known(offline_page: OfflinePages) -> None:
    w = kept(query=5, key=3, segments={"a": (0, 100), "b": (100, 300)})
    shown = show(offline_page, [w], host="jupyter-light", width=900)
    for view in ("Heatmap", "Graph", "Text", "Heads", "Stages", "Segments"):
        shown.page.get_by_role("tab", name=view).click()
        shown.wait_for_lines()
        assert w.view == view.lower()
        shown.screenshot(f"overviews-{view.lower()}")
        found = words_of(shown)
        assert "single rows and keys, other stages, segments and What if are not available" in found, view
        if view != "Heads":  # which shows pictures and metrics, and these are known
            assert "keep='tensors'" in found, view
        shown.check()


@pytest.mark.thorough
def test_where_nothing_is_pinned_it_is_said_too(offline_page: OfflinePages) -> None:
    shown = show(offline_page, [kept()], host="jupyter-light", width=900)
    shown.wait_for_lines()
    shown.settle()
    shown.screenshot("overviews-strongest")
    assert "keep='tensors'" in words_of(shown)
    shown.check()
