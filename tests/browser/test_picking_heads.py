"""The head picker: how three axes were read, and the two heads of a comparison."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gallery import show
from lab import OfflinePages
from lanes import mostly_thorough

from attnwidget import Attention, AttentionStack, AttentionWidget, compare

WIDTHS = mostly_thorough(600, 320, 1100)
HOSTS = mostly_thorough("jupyter-light", "jupyter-dark")


def stack(layers: int = 6, heads: int = 8) -> AttentionStack:
    source = torch.Generator().manual_seed(3)
    made = [2 * torch.randn(3, 1, heads, 14, 16, generator=source) for _ in range(layers)]
    return AttentionStack([Attention(*qkv, is_causal=True) for qkv in made])


TOKENS = ["[CLS]", "the", "bank", "lent", "her", "money", "and", "she", "sat", "on", "the", "river", "bank", "[SEP]"]


@pytest.mark.thorough
@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("width", WIDTHS)
def test_how_three_axes_were_read_is_said_beside_the_sample(offline_page: OfflinePages, host: str, width: int) -> None:
    q, k, v = torch.randn(3, 4, 14, 8, generator=torch.Generator().manual_seed(1))
    shown = show(offline_page, AttentionWidget(q, k, v, tokens=TOKENS), host=host, width=width)
    picker = shown.page.locator("[data-aw=picker]")
    assert "of 4" in picker.inner_text()
    note = picker.locator("[data-aw=axes-read]")
    assert note.inner_text().replace("\n", "").startswith('3 axes: sample, query, size. For heads: dims="hqd"')
    shown.screenshot(f"axes-read-{width}-{host}")
    shown.check()
    note.get_by_role("button", name="Dismiss this note").click()
    assert note.count() == 0
    assert "of 4" in picker.inner_text()
    shown.check()


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("width", WIDTHS)
def test_both_heads_of_a_comparison_can_be_picked(offline_page: OfflinePages, host: str, width: int) -> None:
    made = stack()
    widget: Any = compare({"L5H7": (made, 5, 7), "L2H1": (made, 2, 1)}, tokens=TOKENS, query=7, key=2)
    shown = show(offline_page, widget, host=host, width=width)
    other = shown.page.locator("[data-aw=other]")
    shown.screenshot(f"compare-heads-{width}-{host}")
    shown.check()
    other.get_by_role("textbox", name="head of L2H1, 0 to 7").fill("4")
    other.get_by_role("button", name="next layer of L2H1").click()
    shown.settle()
    assert widget.against_at == (3, 0, 4)
    assert (widget.layer, widget.head) == (5, 7)
    expected = made[3].block(head=4, queries=7, keys=2)
    assert f"{float(expected):.6f}" in shown.page.locator("[data-aw=status]").inner_text()
    assert "layer 3, head 4" in shown.page.locator(".aw-compare-heads").inner_text() or width < 720
    other.get_by_role("checkbox", name="same head").check()
    shown.settle()
    assert widget.against_at is None
    assert "layer 5, head 7" in shown.page.locator(".aw-compare-heads").inner_text()
    assert other.get_by_role("textbox").count() == 0
    shown.screenshot(f"compare-same-head-{width}-{host}")
    shown.check()
