"""axe-core finds nothing: in any view, theme and width, with a menu open, and where no kernel answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from gallery import Gallery, show
from lab import OfflinePages

from attnwidget import AttentionWidget, capture, compare
from attnwidget.samples import load_sample

AXE = Path(__file__).parents[2] / "js" / "node_modules" / "axe-core" / "axe.min.js"
RUN = """async () => {
  const { violations } = await axe.run(".attnwidget", { resultTypes: ["violations"] });
  return violations.flatMap(({ id, help, nodes }) =>
    nodes.map(({ html, failureSummary }) => `${id}: ${help}: ${html.slice(0, 200)} ${failureSummary}`));
}"""
WIDTHS = (1200, 900, 600, 320)  # one of each layout
THEMES = ("light", "dark", "contrast", "contrast-light")


def bank(**more: Any) -> AttentionWidget:
    q, k, v, tokens, mask = load_sample("bank")
    at: Any = {"layer": 5, "head": 7, "query": 14, "key": 16, **more}
    return AttentionWidget(q, k, v, tokens=tokens, mask=mask, **at)


def image() -> AttentionWidget:
    q, k, v = torch.randn(3, 1, 4, 17, 8)
    return AttentionWidget(q, k, v, grid=(4, 4), tokens=[f"t{at}" for at in range(17)], query=3, view="image")


def segmented(**more: Any) -> AttentionWidget:
    inside = {"one": (1, 4), "two": (4, 7)}
    return bank(segments={"first": [(1, 7), inside], "answer": (12, 20)}, segment="first", view="segments", **more)


def explained() -> AttentionWidget:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
    cap = capture(model, sources=True).run(torch.randn(1, 12, 16))
    return cap.widget(layer=2, head=1, query=9, key=4, view="why")


def long() -> AttentionWidget:
    return AttentionWidget(*torch.randn(3, 1, 4, 3000, 8), is_causal=True, tokens=["a"] * 3000, query=2900, key=4)


def compared() -> AttentionWidget:
    one, other = (torch.randn(1, 2, 12, 8) for _ in range(2))
    return compare({"A": AttentionWidget(one, one), "B": AttentionWidget(other, other)}, query=3, key=5, view="compare")


SHOWN: dict[str, Callable[[], AttentionWidget]] = {
    **{view: partial(bank, view=view) for view in ("heatmap", "graph", "text", "heads", "stages")},
    "segments": segmented,
    "segments that are not there": partial(bank, view="segments"),
    "image": image,
    "compare": compared,
    "why": explained,
    "a long heatmap": long,
    "nothing pinned": partial(bank, query=None, key=None, layer=0),
    "several heads as one": partial(bank, heads=[7, 2, 3], combine="mean"),
}


def found(shown: Gallery) -> list[str]:
    if not shown.page.evaluate("() => 'axe' in window"):
        shown.page.evaluate(AXE.read_text(encoding="utf-8"))
    problems: list[str] = shown.page.evaluate(RUN)
    return problems


def look(shown: Gallery, theme: str) -> None:
    """Show the widgets in a theme; light high contrast is one that a host has, and no choice of the reader's."""
    own = "auto" if theme == "contrast-light" else theme
    shown.page.evaluate(
        """([own, isHosts]) => {
          const { dataset, style } = document.body;
          if (isHosts) dataset.vscodeThemeKind = "vscode-high-contrast-light";
          else delete dataset.vscodeThemeKind;
          style.setProperty("--vscode-editor-background", isHosts ? "#fff" : "");
          for (const { host } of window.mounted) host.fromPython({ theme: own });
        }""",
        [own, own == "auto"],
    )
    shown.page.wait_for_selector(f".attnwidget[data-theme={theme}]")
    shown.wait_for_lines()


def test_nothing_is_amiss_in_any_view(offline_page: OfflinePages) -> None:
    """In light and in dark at a middle width; `make thorough` has the other themes and widths."""
    parts = {"first": [(1, 7), {"one": (1, 4), "two": (4, 7)}], "answer": (12, 17)}
    q, k, v = torch.randn(3, 1, 4, 17, 8, generator=torch.Generator().manual_seed(0))
    w = AttentionWidget(
        q, k, v, tokens=[f"t{at}" for at in range(17)], grid=(4, 4), segments=parts, segment="first", query=14, key=6
    )
    problems = {}
    for shown_one, views in (
        (w, ("heatmap", "graph", "text", "image", "heads", "stages", "segments")),
        (compared(), ("compare",)),
        (explained(), ("why",)),
    ):
        shown = show(offline_page, shown_one, width=900)
        for view in views:
            shown_one.set_trait("view", view)
            shown.finish()
            for theme in ("light", "dark"):
                look(shown, theme)
                problems[view, theme] = found(shown)
    assert {at: faults for at, faults in problems.items() if faults} == {}


@pytest.mark.thorough
@pytest.mark.parametrize("what", SHOWN)
def test_nothing_is_amiss_in_any_view_theme_and_width(offline_page: OfflinePages, what: str) -> None:
    shown = show(offline_page, SHOWN[what](), width=WIDTHS[0])
    problems = {}
    for width in WIDTHS:
        shown.page.set_viewport_size({"width": width + 16, "height": 1400})
        for theme in THEMES:
            look(shown, theme)
            problems[width, theme] = found(shown)
    assert {at: faults for at, faults in problems.items() if faults} == {}


@pytest.mark.thorough
def test_what_is_seen_is_what_is_said(offline_page: OfflinePages) -> None:
    """The rules are run on each theme as it is drawn: ink on paper of its own color is found in that theme alone."""
    shown = show(offline_page, bank(), width=900)
    pale = ".attnwidget[data-theme=contrast-light] [data-aw=status]"
    shown.page.add_style_tag(content=f"{pale}, {pale} * {{ color: #ccc !important; }}")
    amiss = []
    for theme in THEMES:
        look(shown, theme)
        if any(fault.startswith("color-contrast") for fault in found(shown)):
            amiss.append(theme)
    assert amiss == ["contrast-light"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("view", "width"),
    [*((view, 900) for view in ("heatmap", "graph", "heads", "segments")), ("heatmap", 320), ("stages", 320)],
)
def test_nothing_is_amiss_in_any_open_menu(offline_page: OfflinePages, view: str, width: int) -> None:
    shown = show(offline_page, segmented() if view == "segments" else bank(view=view), width=width)
    problems = {}
    menus = shown.page.locator(".aw-toolbar .aw-menu")
    for index in range(menus.count()):
        menus.nth(index).locator("> button").click()
        popup = menus.nth(index).locator(".aw-popup")
        popup.wait_for()
        for theme in THEMES:
            look(shown, theme)
            assert popup.is_visible()
            problems[popup.get_attribute("aria-label"), theme] = found(shown)
        shown.page.keyboard.press("Escape")
        popup.wait_for(state="detached")
    assert len(problems) >= len(THEMES)
    assert {at: faults for at, faults in problems.items() if faults} == {}


@pytest.mark.thorough
def test_nothing_is_amiss_in_the_tour_and_the_list_of_keys(offline_page: OfflinePages) -> None:
    shown = show(offline_page, bank(), width=900)
    shown.page.locator("[data-aw=picture]").focus()
    for label in ("Tour", "Keyboard shortcuts"):
        shown.page.keyboard.press("?")
        shown.page.locator(f"[role=dialog][aria-label='{label}']").wait_for()
        for theme in THEMES:
            look(shown, theme)
            assert found(shown) == []


@pytest.mark.thorough
def test_nothing_is_amiss_where_the_kernel_is_gone(offline_page: OfflinePages) -> None:
    shown = show(offline_page, bank(), width=900)
    shown.end_kernel()
    shown.page.get_by_role("radio", name="head 2", exact=True).click()
    shown.page.locator(".aw-notices").get_by_text("The kernel is gone").wait_for()
    assert found(shown) == []
