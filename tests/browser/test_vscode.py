"""The widget as VS Code shows it: in its themes, on its white panels, in a frame taller than what can be seen of it."""

from __future__ import annotations

from typing import get_args

import pytest
from lab import OfflinePages
from playwright.sync_api import Locator
from vscode import EDITOR, VsCode, VsCodeTheme, show_in_vscode

from attnwidget import AttentionWidget
from attnwidget.samples import load_sample

pytestmark = pytest.mark.thorough


def bank(**traits: object) -> AttentionWidget:
    q, k, v, tokens, mask = load_sample("bank")
    return AttentionWidget(q, k, v, tokens=tokens, mask=mask, layer=5, head=7, **traits)  # type: ignore[arg-type]


BACKGROUNDS = """() => {
  const panels = [...document.querySelectorAll(".cell-output-ipywidget-background")];
  return panels.map((panel) => getComputedStyle(panel).backgroundColor);
}"""


@pytest.mark.parametrize("theme", get_args(VsCodeTheme))
@pytest.mark.parametrize("width", [352, 900])
def test_in_every_theme_it_is_on_the_editors_page_and_has_no_faults(
    offline_page: OfflinePages, theme: VsCodeTheme, width: int
) -> None:
    shown = show_in_vscode(offline_page, bank(query=14, key=16), theme=theme, width=width)
    # No white frame is left around it; panels of other widgets are not ours.
    assert shown.frame.evaluate(BACKGROUNDS) == ["rgba(0, 0, 0, 0)", "rgb(255, 255, 255)"]
    assert shown.root().get_attribute("data-theme") == theme
    assert shown.root().evaluate("(root) => root.offsetWidth") == width - 32
    assert shown.faults == []
    shown.screenshot(f"{theme}-{width}")


def soon_in_sight(shown: VsCode, popup: Locator) -> None:
    """Wait until all of something that floats can be seen in the editor."""
    above = shown.page.evaluate("() => document.querySelector('#editor').scrollTop")
    shown.frame.wait_for_function(
        """([popup, above, below]) => {
          const { top, bottom } = popup.getBoundingClientRect();
          return above <= top && bottom <= below;
        }""",
        arg=[popup.element_handle(), above, above + EDITOR],
        timeout=10_000,
    )


@pytest.mark.parametrize("left", [60, 200, 340, 660])
@pytest.mark.parametrize("width", [352, 1200])
def test_menus_and_the_list_of_keys_keep_to_what_can_be_seen(offline_page: OfflinePages, left: int, width: int) -> None:
    """With only so many pixels of the editor below the toolbar."""
    shown = show_in_vscode(offline_page, bank(), width=width)
    menus = shown.frame.locator(".aw-toolbar .aw-menu")
    shown.scroll_to(shown.top_of(shown.frame.locator(".aw-toolbar")) - EDITOR + left)
    for index in range(menus.count()):
        menus.nth(index).locator("> button").click()
        popup = menus.nth(index).locator(".aw-popup")
        popup.wait_for()
        soon_in_sight(shown, popup)
        # What does not fit is reached by scrolling in it.
        last = popup.locator("button, input").last
        last.focus()
        soon_in_sight(shown, last)
        if index == menus.count() - 1:
            shown.screenshot(f"menu-{width}-{left}")
        shown.page.keyboard.press("Escape")
        popup.wait_for(state="detached")
    shown.frame.locator("[data-aw=picture]").focus()
    shown.scroll_to(shown.top_of(shown.frame.locator(".aw-toolbar")) - EDITOR + left)
    shown.page.keyboard.press("?")
    keys = shown.frame.locator("[role=dialog]")
    keys.wait_for()
    soon_in_sight(shown, keys)
    shown.scroll_to(shown.top_of(shown.frame.locator(".aw-toolbar")) - 100)  # it comes along
    soon_in_sight(shown, keys)
    shown.page.keyboard.press("Escape")
    assert shown.frame.locator(".aw-whole-window").count() == 0
    assert shown.faults == []


def test_letters_are_not_vscodes_shortcuts(offline_page: OfflinePages) -> None:
    shown = show_in_vscode(offline_page, bank())
    shown.frame.locator("[data-aw=picture]").click()
    for key in "abcdxyzvm":
        shown.page.keyboard.press(key)
    for key in ["Delete", "Backspace", "Enter", "PageDown", "ArrowDown", "Home"]:
        shown.page.keyboard.press(key)
    assert shown.keys == []
    shown.page.keyboard.press("F1")
    shown.page.keyboard.press("Control+s")
    assert [key for key in shown.keys if key != "Control"] == ["F1", "s"]


HIDDEN = """(item) => {
  item.scrollIntoView({ block: "nearest" });
  const { left, top, width, height } = item.getBoundingClientRect();
  const hit = document.elementFromPoint(left + width / 2, top + height / 2);
  return item.contains(hit) ? "" : `${item.innerText || item.type}: ${hit?.className}`;
}"""


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("width", [352, 900])
@pytest.mark.parametrize("view", ["heatmap", "stages", "segments"])
def test_every_menu_is_whole_and_each_item_can_be_clicked(
    offline_page: OfflinePages, theme: VsCodeTheme, width: int, view: str
) -> None:
    shown = show_in_vscode(offline_page, bank(view=view, segments="sentences"), theme=theme, width=width)
    menus = shown.frame.locator(".aw-toolbar .aw-menu")
    shown.screenshot(f"{view}-{width}-{theme}")
    for index in range(menus.count()):
        menus.nth(index).locator("> button").click()
        popup = menus.nth(index).locator(".aw-popup")
        popup.wait_for()
        soon_in_sight(shown, popup)
        name = popup.get_attribute("aria-label")
        shown.screenshot(f"{view}-{width}-{theme}-{name}")
        box, root = popup.bounding_box(), shown.root().bounding_box()
        assert box is not None
        assert root is not None
        assert root["x"] - 1 <= box["x"], "nothing sticks out of the widget"
        assert box["x"] + box["width"] <= root["x"] + root["width"] + 1
        assert popup.evaluate("(popup) => popup.scrollWidth - popup.clientWidth") == 0, "no note is cut off"
        hidden = popup.locator("button, input").evaluate_all(f"(items) => items.map({HIDDEN}).filter(Boolean)")
        assert hidden == [], name
        shown.page.keyboard.press("Escape")
        popup.wait_for(state="detached")
    assert shown.faults == []
