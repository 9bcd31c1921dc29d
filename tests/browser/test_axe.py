"""axe-core finds nothing: in any view, theme and width, with a menu open, and where no kernel answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gallery import Gallery, show
from lab import OfflinePages

from attnwidget import AttentionWidget, compare
from attnwidget.samples import load_sample

AXE = Path(__file__).parents[2] / "js" / "node_modules" / "axe-core" / "axe.min.js"
RUN = """async () => {
  const { violations } = await axe.run(".attnwidget", { resultTypes: ["violations"] });
  return violations.flatMap(({ id, help, nodes }) =>
    nodes.map(({ html, failureSummary }) => `${id}: ${help}: ${html.slice(0, 200)} ${failureSummary}`));
}"""
VIEWS = ["heatmap", "graph", "text", "image", "heads", "segments", "stages"]


def bank(**more: Any) -> AttentionWidget:
    q, k, v, tokens, mask = load_sample("bank")
    return AttentionWidget(q, k, v, tokens=tokens, mask=mask, layer=5, head=7, query=14, key=16, **more)


def image() -> AttentionWidget:
    q, k, v = torch.randn(3, 1, 4, 17, 8)
    return AttentionWidget(q, k, v, grid=(4, 4), tokens=[f"t{at}" for at in range(17)], query=3, view="image")


def found(shown: Gallery) -> list[str]:
    if not shown.page.evaluate("() => 'axe' in window"):
        shown.page.evaluate(AXE.read_text(encoding="utf-8"))
    problems: list[str] = shown.page.evaluate(RUN)
    return problems


def look(shown: Gallery, theme: str) -> None:
    shown.page.evaluate("(theme) => window.mounted[0].host.fromPython({ theme })", theme)
    shown.page.wait_for_selector(f".attnwidget[data-theme={theme}]")
    shown.wait_for_lines()


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_is_amiss_in_any_view_theme_and_width(offline_page: OfflinePages, view: str) -> None:
    w = image() if view == "image" else bank(view=view)
    shown = show(offline_page, w, width=900)
    problems = {}
    for width in (900, 320):
        shown.page.set_viewport_size({"width": width + 16, "height": 1400})
        for theme in ("light", "dark", "contrast"):
            look(shown, theme)
            problems[width, theme] = found(shown)
    assert [fault for faults in problems.values() for fault in faults] == []


def test_nothing_is_amiss_in_a_comparison(offline_page: OfflinePages) -> None:
    one, other = (torch.randn(1, 2, 12, 8) for _ in range(2))
    shown = show(offline_page, compare({"A": AttentionWidget(one, one), "B": AttentionWidget(other, other)}), width=900)
    assert found(shown) == []


@pytest.mark.parametrize("menu", ["Show", "Color", "More"])
def test_nothing_is_amiss_in_an_open_menu(offline_page: OfflinePages, menu: str) -> None:
    shown = show(offline_page, bank(), width=900)
    shown.menu(menu)
    assert found(shown) == []


def test_nothing_is_amiss_where_the_kernel_is_gone(offline_page: OfflinePages) -> None:
    shown = show(offline_page, bank(), width=900)
    shown.end_kernel()
    shown.page.get_by_role("radio", name="head 2", exact=True).click()
    shown.page.locator(".aw-notices").get_by_text("The kernel is gone").wait_for()
    assert found(shown) == []
