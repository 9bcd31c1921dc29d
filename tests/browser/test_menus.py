"""The menus of the toolbar, walked by keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from gallery import HOSTS, Gallery
from lanes import mostly_thorough
from test_picture_details import bank

Show = Callable[..., Gallery]

FOCUSED = """(popup) => {
  const items = [...popup.querySelectorAll("button, input")];
  return [items.indexOf(document.activeElement), items.length];
}"""


@pytest.mark.parametrize("width", mostly_thorough(900, 360))
@pytest.mark.parametrize("view", mostly_thorough("heatmap", "stages"))
def test_home_and_end_lead_to_the_first_and_the_last_item_of_every_menu(gallery: Show, width: int, view: Any) -> None:
    shown = gallery(bank(view=view), width=width)
    menus = shown.page.locator(".aw-toolbar .aw-menu")
    for index in range(menus.count()):
        menus.nth(index).locator("> button").click()
        popup = menus.nth(index).locator(".aw-popup")
        popup.wait_for()
        last = popup.evaluate(FOCUSED)[1] - 1
        in_field = popup.locator("button, input").last.evaluate("(item) => item.matches('input')")
        found = []
        for key in ("Home", "End", *(() if in_field else ("Home", "ArrowUp", "ArrowDown", "End"))):
            shown.page.keyboard.press(key)
            found.append(popup.evaluate(FOCUSED)[0])
        assert found == ([0, last] if in_field else [0, last, 0, last, 0, last])
        if in_field:  # there they are the field's own keys
            shown.page.keyboard.press("Home")
            assert popup.evaluate(FOCUSED)[0] == last
        shown.page.keyboard.press("Escape")
        popup.wait_for(state="detached")
    shown.check()


@pytest.mark.thorough
@pytest.mark.parametrize("view", ["heatmap", "stages", "graph", "text"])
@pytest.mark.parametrize("width", [240, 289, 320])
def test_no_button_of_the_toolbar_is_cut_where_a_side_bar_leaves_little_room(
    gallery: Show, width: int, view: Any
) -> None:
    shown = gallery(bank(view=view), width=width)
    root = shown.page.locator(".attnwidget").bounding_box()
    assert root is not None
    for button in shown.page.locator(".aw-toolbar button:visible").all():
        box = button.bounding_box()
        assert box is not None
        assert root["x"] - 1 <= box["x"]
        assert box["x"] + box["width"] <= root["x"] + root["width"] + 1, button.get_attribute("aria-label")
    shown.screenshot(f"toolbar-{view}-{width}")


def test_the_views_are_tabs_where_the_width_has_a_fraction(gallery: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a zoomed page: the toolbar's own width is a whole number, and may be the larger one."""
    monkeypatch.setitem(HOSTS, "plain-light", f"{HOSTS['plain-light']}<style>body {{ padding-right: 0.4px }}</style>")
    shown = gallery(bank(), width=900)
    assert shown.page.get_by_role("tab").count() > 5
