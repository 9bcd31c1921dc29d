"""Nothing jumps: whatever a hand does, the widget keeps its height, and what stands in it its place.

Heights are those of the page, measured after each gesture in every view, at three widths. What may change is said where
it does: pinning a pair unfolds its steps in the stages view, below the pictures.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from gallery import Gallery
from lanes import mostly_thorough

from attnwidget import AttentionWidget, compare
from attnwidget.samples import load_sample

Show = Callable[..., Gallery]
Gesture = tuple[str, Callable[[Gallery], Any]]

MEASURED = """() => {
  const root = document.querySelector(".attnwidget").getBoundingClientRect();
  const places = { widget: ["height", root.height] };
  for (const name of ["toolbar", "picker", "picture", "panel", "legend", "status"]) {
    const node = document.querySelector(`[data-aw=${name}]`);
    if (node === null || node.offsetParent === null) continue;
    const { top, height } = node.getBoundingClientRect();
    places[`${name}'s top`] = ["top", top - root.top];
    if (name === "picture" || name === "panel") places[`${name}'s height`] = ["height", height];
  }
  const goTo = document.querySelector("[data-aw=goto]");
  if (goTo !== null) places["the field's top"] = ["top", goTo.getBoundingClientRect().top - root.top];
  return Object.fromEntries(Object.entries(places).map(([name, [, value]]) => [name, value]));
}"""


def bank(**more: Any) -> AttentionWidget:
    q, k, v, tokens, mask = load_sample("bank")
    return AttentionWidget(q, k, v, **{"tokens": tokens, "mask": mask, "layer": 5, "head": 7, **more})


def long(length: int = 1100, **more: Any) -> AttentionWidget:
    generator = torch.Generator().manual_seed(length)
    q, k = (torch.randn(1, 2, length, 8, generator=generator) * 1.5 for _ in range(2))
    words = [("sluice", "door", "rain", "key")[at % 4] for at in range(length)]
    widget = AttentionWidget(q, k, is_causal=True, tokens=words, **more)
    widget.finish()  # the progress that a test shows is its own
    return widget


def measured(shown: Gallery, *, waiting: bool = False) -> dict[str, float]:
    """Where parts are: when all answers have come, or while the kernel is busy."""
    if not waiting:
        shown.wait_for_lines()
    shown.settle()
    places: dict[str, float] = shown.page.evaluate(MEASURED)
    return places


def moved(before: dict[str, float], now: dict[str, float], but: set[str]) -> list[str]:
    return [part for part in sorted(before.keys() & now.keys() - but) if abs(now[part] - before[part]) > 0.5]


def jumps(shown: Gallery, gestures: list[Gesture], but: set[str] = frozenset()) -> Iterator[str]:  # type: ignore[assignment]
    """Say what moved by more than half a pixel, after which gesture; `but` are parts that may change.

    The kernel is busy during each gesture: what stands there between the gesture and its answer is measured too.
    """
    before = measured(shown)
    for name, gesture in gestures:
        shown.hold()
        gesture(shown)
        meanwhile = measured(shown, waiting=True)
        shown.release()
        now = measured(shown)
        for part in moved(before, meanwhile, but):
            yield f"{name}, not answered yet: {part} {before[part]:.1f} → {meanwhile[part]:.1f}"
        for part in moved(before, now, but):
            yield f"{name}: {part} {before[part]:.1f} → {now[part]:.1f}"
        before = now


def at(across: float, down: float, button: str | None = None, **how: Any) -> Callable[[Gallery], None]:
    """Point at, or click on, a place of the picture, in shares of its size."""

    def gesture(shown: Gallery) -> None:
        box = shown.shown.box("[data-aw=picture]")
        x, y = box["x"] + box["width"] * across, box["y"] + box["height"] * down
        if button is None:
            shown.page.mouse.move(x, y)
        elif button == "double":
            shown.page.mouse.dblclick(x, y)
        elif button == "zoom":
            shown.page.mouse.move(x, y)
            shown.page.keyboard.down("Control")
            for _ in range(how["by"]):
                shown.page.mouse.wheel(0, -50)
            shown.page.keyboard.up("Control")
        else:
            shown.page.mouse.click(x, y)

    return gesture


def leave(shown: Gallery) -> None:
    shown.leave()


HOVER_AND_PIN: list[Gesture] = [
    ("point", at(0.3, 0.6)),
    ("point elsewhere", at(0.07, 0.95)),
    ("leave", leave),
    ("pin", at(0.3, 0.6, "click")),
    ("leave the pin", leave),
    ("point beside the pin", at(0.2, 0.9)),
    ("free the pin", at(0.3, 0.6, "click")),
    ("leave again", leave),
]
ZOOM: list[Gesture] = [
    ("zoom a little", at(0.3, 0.6, "zoom", by=5)),
    ("zoom more", at(0.3, 0.6, "zoom", by=6)),
    ("zoom to cells", at(0.3, 0.6, "zoom", by=8)),
    ("leave the zoom", leave),
    ("double-click back", at(0.5, 0.5, "double")),
    ("leave the whole", leave),
]
SIDES = [("one", 7), ("other", 2)]
WIDE = mostly_thorough(900, 320, 360, 600, 1280)
NARROW = mostly_thorough(360, 320, 600, 900, 1280)


@pytest.mark.parametrize("width", WIDE)
def test_the_heatmap(gallery: Show, width: int) -> None:
    shown = gallery(bank(), width=width)
    assert [*jumps(shown, HOVER_AND_PIN), *jumps(shown, ZOOM)] == []


def progress(share: float | None) -> Callable[[Gallery], None]:
    """Let the exact pass of the head have come so far, or have ended."""
    of = {"layer": 0, "batch": 0, "head": 0, "stage": "weights", "pool": "max"}
    now = None if share is None else {**of, "share": share, "seconds_left": 4, "state": "running"}

    def gesture(shown: Gallery) -> None:
        shown.page.evaluate("(now) => window.mounted[0].host.fromPython({ progress: now })", now)

    return gesture


BUSY = "() => document.querySelector('[data-aw=status]').textContent.includes('Waiting for the kernel')"


@pytest.mark.parametrize("width", WIDE)
@pytest.mark.parametrize("make", mostly_thorough(long, bank))
def test_a_kernel_that_is_busy(gallery: Show, make: Callable[[], AttentionWidget], width: int) -> None:
    """That it is busy is said after a while, and moves nothing: no answer is so slow that the page jumps twice."""
    shown = gallery(make(), width=width)
    at(0.3, 0.6)(shown)
    before = measured(shown)
    shown.hold()
    shown.page.locator("[data-aw=picture]").press("]")  # the next head
    shown.page.wait_for_function(BUSY)
    still = shown.page.locator(".aw-still")  # at the picture, which is another head's
    assert re.search(r"^Still showing .*head \d+$", still.inner_text().strip())
    assert moved(before, measured(shown, waiting=True), set()) == []
    at(0.2, 0.9)(shown)
    assert moved(before, measured(shown, waiting=True), set()) == []
    shown.release()
    assert moved(before, measured(shown), set()) == []
    assert still.count() == 0


@pytest.mark.thorough
def test_a_graph_whose_links_are_due_says_so(gallery: Show) -> None:
    """It has no bands then, as a head has whose weights are all too small."""
    shown = gallery(bank(view="graph"), width=900)
    shown.hold()
    shown.page.locator("[data-aw=picture]").press("]")
    shown.page.wait_for_function(BUSY)
    assert shown.page.locator(".aw-still").inner_text().strip() == "Waiting for the links"
    assert "You still see" not in shown.page.locator("[data-aw=status]").inner_text()
    shown.release()
    shown.page.wait_for_selector(".aw-still", state="detached")


def search(shown: Gallery) -> None:
    field = shown.page.locator("[data-aw=goto]")
    field.fill("rain")
    field.press("Enter")


@pytest.mark.parametrize("width", NARROW)
def test_a_long_head(gallery: Show, width: int) -> None:
    shown = gallery(long(), width=width)
    computing: list[Gesture] = [
        ("the pass begins", progress(0.02)),
        ("the pass goes on", progress(0.6)),
        ("point meanwhile", at(0.3, 0.6)),
        ("the pass ends", progress(None)),
        ("leave when it has ended", leave),
    ]
    found = [*jumps(shown, HOVER_AND_PIN), *jumps(shown, computing)]
    # The minimap, which only a part in view has, may push the panel down; nothing else.
    minimap = {"panel's top", "panel's height", "the field's top"} | (
        {"widget", "status's top"} if width < 1280 else set()
    )
    zooming = jumps(shown, [*ZOOM[:3]], minimap)
    assert [*found, *zooming, *jumps(shown, [("search a token", search), *HOVER_AND_PIN[:2]])] == []


@pytest.mark.parametrize(
    ("view", "width"),
    mostly_thorough(
        *(("text", 360), ("graph", 900)),
        *((view, width) for view in ("text", "graph", "heads") for width in (320, 360, 600, 900, 1280)),
        everyday=2,
    ),
)
def test_the_other_views(gallery: Show, view: str, width: int) -> None:
    shown = gallery(bank(view=view), width=width)
    gestures = [
        ("point", at(0.3, 0.4)),
        ("point elsewhere", at(0.1, 0.2)),
        ("leave", leave),
    ]
    if view != "heads":  # there a click opens the head
        gestures += [("pin", at(0.1, 0.2, "click")), ("leave the pin", leave), ("free it", at(0.1, 0.2, "click"))]
    assert [*jumps(shown, gestures)] == []


@pytest.mark.thorough
@pytest.mark.parametrize("width", WIDE)
@pytest.mark.parametrize("view", ["heatmap", "text", "graph"])
def test_a_very_long_head_with_a_sink(gallery: Show, view: str, width: int) -> None:
    """Its numbers are long and come from the kernel: room for them is there before they are, in one line each."""
    shown = gallery(long(5000, view=view, sinks=torch.tensor([0.3, 0.5])), width=width)
    assert [*jumps(shown, HOVER_AND_PIN)] == []


@pytest.mark.thorough
@pytest.mark.parametrize("width", NARROW)
def test_a_short_head_with_a_sink(gallery: Show, width: int) -> None:
    """A query has the sink in its list, a key has not; a click on the label of a key pins the key alone."""
    shown = gallery(bank(sinks=torch.tensor([0.5] * 12)), width=width)
    pin_a_key = ("pin a key", lambda shown: shown.page.locator("button.aw-label[style*=rotate]").nth(3).click())
    assert [*jumps(shown, [*HOVER_AND_PIN, pin_a_key, ("leave the key", leave)])] == []


@pytest.mark.parametrize("width", WIDE)
def test_a_comparison(gallery: Show, width: int) -> None:
    q, k, v, tokens, mask = load_sample("bank")
    sides = {name: AttentionWidget(q, k, v, tokens=tokens, mask=mask, layer=5, head=head) for name, head in SIDES}
    assert [*jumps(gallery(compare(sides), width=width), HOVER_AND_PIN)] == []


@pytest.mark.thorough
@pytest.mark.parametrize("width", WIDE)
def test_text_of_two_sides(gallery: Show, width: int) -> None:
    q, k, v, tokens, _ = load_sample("bank")
    w = AttentionWidget(q[..., :7, :], k, v, tokens=[row[:7] for row in tokens], key_tokens=tokens, view="text")
    gestures = [("point", at(0.1, 0.15)), ("leave", leave), ("pin", at(0.1, 0.15, "click")), ("leave the pin", leave)]
    assert [*jumps(gallery(w, width=width), gestures)] == []


@pytest.mark.parametrize("width", WIDE)
def test_stages_and_what_if(gallery: Show, width: int) -> None:
    """Pinning unfolds the steps of the pair below the pictures; nothing moves the pictures."""
    shown = gallery(bank(view="stages", query=14, key=16), width=width)
    grip = shown.page.locator(".aw-grip").first

    def dot() -> float:
        box = grip.bounding_box()
        assert box is not None
        return box["y"]

    def drag(shown: Gallery) -> None:
        box = grip.bounding_box()
        assert box is not None
        shown.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        shown.page.mouse.down()
        shown.page.mouse.move(box["x"] + box["width"] / 2 + 25, box["y"] + box["height"] / 2, steps=4)

    def let_go(shown: Gallery) -> None:
        shown.page.mouse.up()

    def as_it_was(shown: Gallery) -> None:
        shown.page.get_by_role("button", name="Reset").click()

    gestures: list[Gesture] = [
        ("point at the scores", at(0.03, 0.5)),
        ("leave", leave),
    ]
    measured(shown)
    before = dot()
    rules: list[Gesture] = [("drag the scale", drag), ("let go", let_go), ("as it was", as_it_was)]
    assert [*jumps(shown, gestures), *jumps(shown, rules)] == []
    assert abs(dot() - before) < 0.5
    assert [
        *jumps(shown, [("free the pin", at(0.03, 0.5, "click"))], {"widget", "status's top", "picture's height"})
    ] == []


def test_a_double_click_back_keeps_the_pin(gallery: Show) -> None:
    shown = gallery(long(), width=900)
    w = shown.widgets[0]
    shown.page.mouse.dblclick(*shown.place(600, 300))
    shown.wait_for_lines()
    pinned = (w.query, w.key, list(w.pins))
    assert pinned[0] is not None, "on the whole a double click is one click"
    for place in (0.5, 0.3):
        at(0.27, 0.55, "zoom", by=12)(shown)
        shown.wait_for_lines()
        assert shown.page.locator(".aw-plot[data-zoomed]").count() == 1
        at(place, place, "double")(shown)
        shown.wait_for_lines()
        assert shown.page.locator(".aw-plot[data-zoomed]").count() == 0
        assert (w.query, w.key, list(w.pins)) == pinned


@pytest.mark.thorough
@pytest.mark.parametrize("width", WIDE)
@pytest.mark.parametrize("view", ["heatmap", "graph", "text"])
def test_while_an_answer_is_on_its_way(gallery: Show, view: str, width: int) -> None:
    """A kernel that takes its time moves nothing, neither before its answer nor with it."""
    shown = gallery(long(view=view), width=width)
    places = [at(0.3, 0.6), at(0.3, 0.6, "click"), at(0.06, 0.93, "click"), leave]
    before, found = measured(shown), []
    for number, gesture in enumerate(places):
        shown.hold()
        gesture(shown)
        shown.settle()
        waiting = shown.page.evaluate(MEASURED)
        shown.release()
        answered = measured(shown)
        found += [(number, "waiting", part, before[part], waiting[part]) for part in moved(before, waiting, set())]
        found += [(number, "answered", part, before[part], answered[part]) for part in moved(before, answered, set())]
        before = answered
    assert found == []
