"""Under VS Code's conditions, what Python says coming at 2 MB/s: all arrives, and nothing stands for another."""

from __future__ import annotations

import pytest
import torch
from lab import OfflinePages
from vscode import show_in_vscode

from attnwidget import AttentionWidget

pytestmark = pytest.mark.thorough

SLOW = 2_000_000  # bytes a second


def test_heads_that_are_changed_faster_than_they_come_end_with_the_last(offline_page: OfflinePages) -> None:
    w = AttentionWidget(*torch.randn(3, 1, 6, 1200, 16, generator=torch.Generator().manual_seed(0)))
    shown = show_in_vscode(offline_page, w)
    shown.frame.evaluate("(rate) => { window.bytesPerSecond = rate; }", SLOW)
    status = shown.frame.locator("[data-aw=status]")
    for head in (3, 1, 5):
        shown.frame.get_by_role("radio", name=f"head {head}", exact=True).click()
    status.get_by_text("head 5 ·").wait_for()
    assert w.head == 5
    assert shown.frame.locator(".aw-notices").inner_text() == ""
    picture = shown.frame.locator("[data-aw=picture]")
    picture.hover(position={"x": 100, "y": 100})
    status.get_by_text("maximum").wait_for()  # its exact number has come too
    assert not shown.faults
