"""By finger, in Chromium with a touch screen: tap pins, one finger scrolls the page, two zoom and move the picture."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from gallery import Gallery, show
from lab import OfflinePages

from attnwidget import AttentionWidget
from attnwidget.samples import load_sample


class Touches(NamedTuple):
    """Fingers on a page, as the screen tells of them."""

    session: Any

    def down(self, *fingers: tuple[float, float]) -> None:
        self._send("touchStart", fingers)

    def move(self, *fingers: tuple[float, float]) -> None:
        self._send("touchMove", fingers)

    def up(self) -> None:
        self._send("touchEnd", ())

    def _send(self, kind: str, fingers: tuple[tuple[float, float], ...]) -> None:
        points = [{"x": x, "y": y, "id": at} for at, (x, y) in enumerate(fingers)]
        self.session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})


def by_finger(offline_page: OfflinePages, width: int = 900, **traits: Any) -> tuple[Gallery, Touches]:
    q, k, v, tokens, mask = load_sample("bank")
    widget = AttentionWidget(q, k, v, tokens=tokens, mask=mask, layer=5, head=7, **traits)
    shown = show(offline_page, widget, width=width, height=500, touch=True)
    return shown, Touches(shown.page.context.new_cdp_session(shown.page))


def pinned(shown: Gallery) -> tuple[int | None, int | None]:
    (widget,) = shown.widgets
    return widget.query, widget.key


def tap(shown: Gallery, place: tuple[float, float]) -> None:
    shown.page.touchscreen.tap(*place)
    shown.settle()


def wait_for(shown: Gallery, wanted: tuple[int | None, int | None]) -> None:
    """Wait until the kernel has heard what is pinned."""
    for _ in range(200):
        if pinned(shown) == wanted:
            return
        shown.page.wait_for_timeout(10)
    assert pinned(shown) == wanted


@pytest.mark.parametrize("width", [320, 900])
def test_a_tap_pins_and_frees(offline_page: OfflinePages, width: int) -> None:
    shown, _ = by_finger(offline_page, width)
    tap(shown, shown.place(3, 5))
    wait_for(shown, (3, 5))
    assert shown.page.locator(".aw-ring[data-pinned]").count() == 1
    tap(shown, shown.place(7, 2))
    wait_for(shown, (7, 2))
    shown.page.wait_for_timeout(700)  # two taps at once would be a double tap
    tap(shown, shown.place(7, 2))
    wait_for(shown, (None, None))
    label = shown.page.locator(".aw-labels .aw-label").nth(4)
    label.tap()
    wait_for(shown, (8 if width == 320 else 4, None))
    shown.check()
    shown.screenshot(f"touch-{width}")


def test_one_finger_scrolls_the_page(offline_page: OfflinePages) -> None:
    shown, touches = by_finger(offline_page)
    x, y = shown.place(10, 10)
    before = shown.pixels()
    touches.down((x, y))
    for step in range(1, 13):
        touches.move((x, y - 12 * step))
    touches.up()
    shown.page.wait_for_function("() => window.scrollY > 60")
    assert pinned(shown) == (None, None)
    assert shown.pixels() == before  # neither moved nor zoomed
    shown.check()


def test_two_fingers_zoom_and_hold_the_picture(offline_page: OfflinePages) -> None:
    shown, touches = by_finger(offline_page)
    x, y = shown.place(10, 10)
    before = shown.pixels()
    scale = "() => visualViewport.scale"

    def spread(first: int, last: int, across: int = 0) -> None:
        touches.down((x - first, y), (x + first, y))
        for step in range(1, 11):
            apart = first + (last - first) * step / 10
            moved = across * step / 10
            touches.move((x - apart + moved, y), (x + apart + moved, y))
        touches.up()
        shown.settle()

    spread(40, 120)
    shown.page.locator(".aw-plot[data-zoomed]").wait_for()
    near = shown.pixels()
    assert near != before
    assert shown.page.evaluate(scale) == 1  # the page itself is not magnified
    assert shown.page.evaluate("() => scrollY") == 0
    spread(60, 60, across=-70)  # together they move it
    assert shown.pixels() != near
    spread(160, 30)
    shown.page.wait_for_function("() => document.querySelector('.aw-plot[data-zoomed]') === null")
    assert shown.pixels() == before
    assert pinned(shown) == (None, None)
    shown.check()


def test_every_view_is_used_by_taps_alone(offline_page: OfflinePages) -> None:
    shown, _ = by_finger(offline_page)
    page = shown.page

    def view(name: str) -> None:
        page.get_by_role("tab", name=name, exact=True).tap()
        shown.settle()

    view("Graph")
    page.locator(".aw-graph-columns .aw-label").nth(6).tap()
    wait_for(shown, (6, None))
    view("Text")
    page.locator(".aw-passages [data-at='8']").tap()
    wait_for(shown, (8, None))
    view("Stages")
    page.locator(".aw-small-picture canvas").nth(2).tap(position={"x": 50, "y": 50})
    page.wait_for_function("() => document.querySelectorAll('.aw-small-picture .aw-ring').length > 0")
    assert None not in pinned(shown)
    view("Heads")
    # The first tap points and says what is known of the head, the second opens it.
    page.locator("[data-aw=picture]").tap(position={"x": 60, "y": 60})
    card = page.locator(".aw-head-card, [data-aw=card]")
    card.first.wait_for()
    page.locator("[data-aw=picture]").tap(position={"x": 60, "y": 60})
    page.locator("[role=tab][aria-selected=true]:text-is('Heatmap')").wait_for()
    page.locator(".aw-menu[aria-label=Show] > button").tap()
    page.get_by_role("menuitemradio", name="scaled").tap()
    shown.settle()
    assert shown.widgets[0].stage == "scaled"
    shown.check()
