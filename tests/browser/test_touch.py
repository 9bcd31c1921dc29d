"""By finger, in Chromium with a touch screen: tap pins, one finger scrolls the page, two zoom and move the picture."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import pytest
import torch
from gallery import Gallery, show
from lab import OfflinePages
from lanes import mostly_thorough
from playwright.sync_api import FloatRect

from attnwidget import Attention, AttentionWidget, compare
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


def bank(**traits: Any) -> AttentionWidget:
    q, k, v, tokens, mask = load_sample("bank")
    return AttentionWidget(q, k, v, tokens=tokens, mask=mask, layer=5, head=7, **traits)


def by_finger(
    offline_page: OfflinePages, widget: AttentionWidget | None = None, width: int = 900, height: int = 500
) -> tuple[Gallery, Touches]:
    shown = show(offline_page, bank() if widget is None else widget, width=width, height=height, touch=True)
    return shown, Touches(shown.page.context.new_cdp_session(shown.page))


def pinned(shown: Gallery) -> tuple[int | None, int | None]:
    (widget,) = shown.widgets
    return widget.query, widget.key


def tap(shown: Gallery, place: tuple[float, float]) -> None:
    shown.page.touchscreen.tap(*place)
    shown.settle()


def wait_for(shown: Gallery, wanted: tuple[int | None, int | None]) -> None:
    """Wait until the kernel has heard what is pinned."""
    for _ in range(50):
        if pinned(shown) == wanted:
            return
        shown.settle()
    assert pinned(shown) == wanted


@pytest.mark.parametrize("width", mostly_thorough(900, 320))
def test_a_tap_pins_and_frees(offline_page: OfflinePages, width: int) -> None:
    shown, _ = by_finger(offline_page, width=width)
    tap(shown, shown.place(3, 5))
    wait_for(shown, (3, 5))
    assert shown.page.locator(".aw-ring[data-pinned]").count() == 1
    tap(shown, shown.place(7, 2))
    wait_for(shown, (7, 2))
    shown.widgets[0].query, shown.widgets[0].key = 12, 9  # no tap: two at one place would be a double tap
    shown.finish()
    shown.settle()
    tap(shown, shown.place(12, 9))
    wait_for(shown, (None, None))
    label = shown.page.locator(".aw-labels .aw-label").nth(4)
    label.tap()
    wait_for(shown, (8 if width == 320 else 4, None))
    shown.check()
    shown.screenshot(f"touch-{width}")


@pytest.mark.thorough
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


class Fingers(NamedTuple):
    """Two fingers around a place."""

    shown: Gallery
    touches: Touches
    place: tuple[float, float]

    def spread(self, first: int, last: int, across: int = 0) -> None:
        """Take them from so far on each side of the place to so far, both moved across meanwhile."""
        x, y = self.place
        self.touches.down((x - first, y), (x + first, y))
        for step in range(1, 11):
            apart, moved = first + (last - first) * step / 10, across * step / 10
            self.touches.move((x - apart + moved, y), (x + apart + moved, y))
        self.touches.up()
        self.shown.settle()


def assert_the_page_is_as_it_was(shown: Gallery) -> None:
    assert shown.page.evaluate("() => [visualViewport.scale, scrollY]") == [1, 0]


def test_two_fingers_zoom_and_hold_the_picture(offline_page: OfflinePages) -> None:
    shown, touches = by_finger(offline_page)
    two = Fingers(shown, touches, shown.place(10, 10))
    before = shown.pixels()
    two.spread(40, 120)
    shown.page.locator(".aw-plot[data-zoomed]").wait_for()
    near = shown.pixels()
    assert near != before
    assert_the_page_is_as_it_was(shown)
    two.spread(60, 60, across=-70)  # together they move it
    assert shown.pixels() != near
    two.spread(160, 30)
    shown.page.wait_for_function("() => document.querySelector('.aw-plot[data-zoomed]') === null")
    assert shown.pixels() == before
    assert pinned(shown) == (None, None)
    shown.check()


@pytest.mark.thorough
def test_two_fingers_zoom_all_pictures_of_a_comparison_alike(offline_page: OfflinePages) -> None:
    q, k, v = torch.randn(3, 1, 2, 18, 8, generator=torch.Generator().manual_seed(0))
    w = compare(Attention(q, k, v), Attention(q, k, v, is_causal=True), view="compare")
    shown, touches = by_finger(offline_page, w)
    pictures = [shown.page.locator(f"[data-aw={name}]") for name in ("picture", "picture-b", "picture-change")]

    def pixels() -> list[str]:
        return [one.evaluate("(canvas) => canvas.toDataURL()") for one in pictures]

    before = pixels()
    box = pictures[1].bounding_box()
    assert box is not None
    two = Fingers(shown, touches, (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2))
    two.spread(30, 90)
    assert all(now != once for now, once in zip(pixels(), before, strict=True))
    assert_the_page_is_as_it_was(shown)
    two.spread(90, 20)
    assert pixels() == before
    assert pinned(shown) == (None, None)
    shown.check()


@pytest.mark.thorough
def test_two_fingers_go_into_a_long_head_down_to_its_cells(offline_page: OfflinePages) -> None:
    tokens = [f"t{at}" for at in range(2000)]
    w = AttentionWidget(
        *torch.randn(3, 1, 1, 2000, 8, generator=torch.Generator().manual_seed(0)), is_causal=True, tokens=tokens
    )
    shown, touches = by_finger(offline_page, w, height=900)
    query, key = 1500, 700
    two = Fingers(shown, touches, shown.place(query, key))
    for _ in range(3):
        two.spread(20, 140)
    shown.wait_for_lines()
    assert_the_page_is_as_it_was(shown)
    tap(shown, two.place)
    shown.page.wait_for_function("() => document.querySelectorAll('.aw-ring[data-pinned]').length === 1")
    shown.wait_for_lines()
    found = pinned(shown)
    assert None not in found
    assert (
        max(abs(query - (found[0] or 0)), abs(key - (found[1] or 0))) <= 4
    )  # the place has stayed between the fingers
    shown.check()


@pytest.mark.thorough
def test_tokens_heads_stages_and_menus_are_used_by_taps_alone(offline_page: OfflinePages) -> None:
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


@pytest.mark.thorough
def test_patches_segments_and_sides_are_pinned_by_taps(offline_page: OfflinePages) -> None:
    image = AttentionWidget(*torch.randn(3, 1, 2, 65, 8), view="image", grid=(8, 8), grid_start=1)
    shown, _ = by_finger(offline_page, image, height=900)
    box = shown.shown.box(".aw-patches")
    tap(shown, (box["x"] + box["width"] * 3.5 / 8, box["y"] + box["height"] * 2.5 / 8))
    wait_for(shown, (1 + 2 * 8 + 3, None))
    shown.check()

    parts = bank(view="segments", segments={"first": [(1, 7), {"one": (1, 4), "two": (4, 7)}], "answer": (12, 20)})
    shown, _ = by_finger(offline_page, parts, height=1400)
    shown.finish()
    box = cast(FloatRect, shown.page.locator(".aw-seg-word").nth(2).bounding_box())
    tap(shown, (box["x"] + box["width"] / 2, box["y"] - 8))
    wait_for(shown, (14, None))
    assert parts.segment is not None
    name = shown.page.locator(".aw-seg-row[title='first']")
    if parts.segment != "first":
        name.tap()
        shown.wait_for_lines()
        assert parts.segment == "first"
    name.tap()  # again: what is inside
    shown.wait_for_lines()
    assert parts.segment_path == ["first"]
    shown.check()

    q, k, v = torch.randn(3, 1, 2, 18, 8)
    sides = compare(Attention(q, k, v), Attention(q, k, v, is_causal=True), view="compare")
    shown, _ = by_finger(offline_page, sides, height=900)
    box = shown.shown.box("[data-aw=picture-b]")
    tap(shown, (box["x"] + box["width"] * 3.5 / 18, box["y"] + box["height"] * 9.5 / 18))
    wait_for(shown, (9, 3))
    assert shown.page.locator(".aw-ring[data-pinned]").count() == 3
    shown.check()
