"""The view of all heads, drawn by the real front-end: nothing amiss at any width, in any theme; what clicks do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gallery import Gallery, show
from lab import OfflinePages
from lanes import mostly_thorough

from attnwidget import Attention, AttentionStack, AttentionWidget
from attnwidget.samples import load_sample

Show = Callable[..., Gallery]
CARD = ".aw-head-card"


@pytest.fixture
def gallery(offline_page: OfflinePages) -> Show:
    def opened(widget: AttentionWidget, **keywords: Any) -> Gallery:
        widget.finish()  # the pictures of all heads, before the page opens
        return show(offline_page, widget, **keywords)

    return opened


def bank(**more: Any) -> AttentionWidget:
    q, k, v, tokens, mask = load_sample("bank")
    return AttentionWidget(q, k, v, **{"tokens": tokens, "mask": mask, "layer": 5, "head": 7, "view": "heads", **more})


def layers(*heads: int, groups: int | None = None, tokens: int = 24, **more: Any) -> AttentionWidget:
    """A widget of random layers of so many heads each, sharper from head to head."""
    g = torch.Generator().manual_seed(sum(heads))

    def layer(count: int) -> Attention:
        sharp = torch.linspace(0.3, 3, count)[:, None, None]
        q = torch.randn(1, count, tokens, 8, generator=g) * sharp
        return Attention(q, torch.randn(1, groups or count, tokens, 8, generator=g), is_causal=True)

    words = [f"t{at * at % 7}" for at in range(tokens)]
    stack = AttentionStack([layer(count) for count in heads])
    return AttentionWidget.from_attention(stack, tokens=words, **{"view": "heads", **more})


CASES: dict[str, Callable[[], AttentionWidget]] = {
    "by layer": bank,
    "by induction": lambda: bank(order="same_token", bar="same_token"),
    "one layer": lambda: layers(12),
    "one head": lambda: layers(1),
    "shared keys": lambda: layers(*[16] * 8, groups=4),
    "layers that differ": lambda: layers(4, 12, 8, 12),
    "32 by 32": lambda: layers(*[32] * 32, tokens=16),
    "32 by 32 by entropy": lambda: layers(*[32] * 32, tokens=16, order="entropy", bar="entropy"),
    "1 by 64": lambda: layers(64),
    "48 by 8": lambda: layers(*[8] * 48),
}


@pytest.mark.parametrize("case", mostly_thorough("layers that differ", *CASES))
@pytest.mark.parametrize(
    ("host", "width"), mostly_thorough(("jupyter-light", 600), ("jupyter-light", 960), ("jupyter-dark", 360))
)
def test_nothing_is_amiss(gallery: Show, case: str, host: str, width: int) -> None:
    shown = gallery(CASES[case](), host=host, width=width)
    shown.wait_for_lines()
    shown.screenshot(f"heads-{case.replace(' ', '-')}-{width}")
    shown.check()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "host", ["jupyter-dark", "jupyter-contrast", "vscode-dark", "vscode-contrast-light", "sepia", "jupyter-large"]
)
def test_in_every_host(gallery: Show, host: str) -> None:
    shown = gallery(bank(), host=host, width=960)
    shown.wait_for_lines()
    point(shown, 3, 7)
    shown.screenshot(f"heads-{host}")
    shown.check()


def point(shown: Gallery, layer: int, head: int, rows: int = 6, columns: int = 12) -> None:
    """Move the pointer onto a picture of a grid by layer."""
    box = shown.page.locator("[data-aw=picture]").bounding_box()
    assert box is not None
    size = 58  # the last row and column end where their pictures do, below and right of them only a margin
    across, down = (box["width"] - size) / (columns - 1), (box["height"] - size) / (rows - 1)
    shown.page.mouse.move(box["x"] + across * head + size / 2, box["y"] + down * layer + size / 3)
    shown.settle()


def test_a_head_that_is_pointed_at_is_measured_and_one_that_is_clicked_opens(gallery: Show) -> None:
    w = bank()
    shown = gallery(w, width=960)
    shown.wait_for_lines()
    layout = "() => [...document.querySelectorAll('.attnwidget, [data-aw=picture]')].map(x => x.offsetHeight)"
    before = shown.page.evaluate(layout)
    for layer, head in ((0, 0), (3, 7), (5, 11), (0, 11), (5, 0)):
        point(shown, layer, head)
        shown.check()  # inside of the widget, whichever corner it is in
        assert shown.page.locator(f"{CARD} b").inner_text() == f"Layer {layer} · head {head}"
        (record,) = (one for one in w.metrics(batch=0) if (one["layer"], one["head"]) == (layer, head))
        rows = {
            row.split("\n")[0]: row.split("\n")[-1] for row in shown.page.locator(".aw-head-metric").all_inner_texts()
        }
        assert float(rows["First token"]) == pytest.approx(record["first_token"], abs=6e-4)
        assert float(rows["Entropy"].split()[0]) == pytest.approx(record["entropy"], abs=6e-3)
    assert shown.page.evaluate(layout) == before
    point(shown, 3, 7)
    shown.page.mouse.down()
    shown.page.mouse.up()
    shown.wait_for_lines()
    assert (w.view, w.layer, w.head) == ("heatmap", 3, 7)
    shown.check()


def test_by_any_metric_the_largest_stands_first(gallery: Show) -> None:
    w = bank()
    shown = gallery(w, width=960)
    shown.choose("Order", "Previous token")
    shown.wait_for_lines()
    assert (w.order, w.bar) == ("previous_token", "previous_token")
    best = max(w.metrics(batch=0), key=lambda one: one["previous_token"])
    shown.page.mouse.move(0, 0)
    box = shown.page.locator("[data-aw=picture]").bounding_box()
    assert box is not None
    shown.page.mouse.move(box["x"] + 20, box["y"] + 20)
    shown.settle()
    assert shown.page.locator(f"{CARD} b").inner_text() == f"Layer {best['layer']} · head {best['head']}"
    shown.screenshot("heads-card-in-order")
    shown.check()


def test_keys_walk_and_open(gallery: Show) -> None:
    w = bank(layer=2, head=3)
    shown = gallery(w, width=960)
    shown.wait_for_lines()
    shown.page.locator("[data-aw=picture]").focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowUp"):
        shown.page.keyboard.press(key)
    shown.settle()
    assert shown.page.locator(f"{CARD} b").inner_text() == "Layer 2 · head 5"
    assert shown.page.locator("[aria-live]").first.inner_text() != ""
    shown.page.keyboard.press("Enter")
    shown.wait_for_lines()
    assert (w.view, w.layer, w.head) == ("heatmap", 2, 5)


def test_a_picture_says_which_head_it_is_of(gallery: Show) -> None:
    """One head looks at itself, all others at all: it is the one with a diagonal, and with ink."""
    scores = torch.zeros(1, 6, 16, 16)
    scores[0, 4] = 40 * torch.eye(16)
    w = AttentionWidget.from_attention(Attention.from_scores(scores), view="heads")
    shown = gallery(w, width=960, device_scale_factor=1)
    shown.wait_for_lines()
    inks = shown.page.evaluate(
        """() => {
          const canvas = document.querySelector("[data-aw=picture]");
          const context = canvas.getContext("2d");
          const pitch = (canvas.width - 58) / 5;
          return [...Array(6).keys()].map((head) => {
            const { data } = context.getImageData(Math.round(head * pitch) + 6, 6, 46, 46);
            const tones = new Set();
            for (let i = 0; i < data.length; i += 4) tones.add(data[i]);
            return tones.size;
          });
        }"""
    )
    assert inks[4] > 1
    assert [tones for head, tones in enumerate(inks) if head != 4] == [1] * 5


@pytest.mark.thorough
@pytest.mark.parametrize(("host", "width"), [("plain-light", 900), ("plain-dark", 320)])
def test_heads_like_one_and_only_some_layers(gallery: Show, host: str, width: int) -> None:
    shown = gallery(bank(order="similar"), host=host, width=width)
    shown.check()
    prompt = shown.page.locator(".aw-all-heads > .aw-prompt")
    assert "Most similar to layer 5, head 7 first" in prompt.inner_text()
    for name, value in (("First layer", "2"), ("Last layer", "3")):
        field = shown.page.locator(f'.aw-only input[aria-label="{name}"]')
        field.fill(value)
        field.blur()
    shown.settle()
    assert "24 of 72 heads" in prompt.inner_text()
    shown.check()


@pytest.mark.thorough
def test_what_a_cache_keeps_is_chosen_by_a_slider(gallery: Show) -> None:
    rules = {"keep": {"policy": "window", "budget": 16}}
    shown = gallery(layers(4, tokens=64, view="stages", query=40, key=3, what_if=rules))
    shown.page.locator(".aw-rules-toggle").first.click()
    slider = shown.page.locator(".aw-budget input")
    slider.fill("40")
    shown.page.wait_for_function("() => document.querySelector('.aw-budget').textContent.includes('40 of 64 keys')")
    assert shown.widgets[0].what_if == {"keep": {"policy": "window", "budget": 40}}
    shown.check()


@pytest.mark.thorough
@pytest.mark.parametrize("width", [360, 900])
def test_the_pictures_stand_right_below_how_to_read_them(gallery: Show, width: int) -> None:
    shown = gallery(bank(), width=width)
    shown.wait_for_lines()
    gap = shown.page.evaluate(
        """() => {
          const of = (part) => document.querySelector(`.aw-all-heads > ${part}`).getBoundingClientRect();
          return of(".aw-heads-frame").top - of(".aw-prompt").bottom;
        }"""
    )
    assert gap == pytest.approx(12, abs=0.5)
    shown.screenshot(f"heads-gap-{width}")


def balance(rows: Any) -> Any:
    """Of scores that are 0 but for the first key's: the log of its weight against another key's."""
    return (rows.weights[..., 0] / rows.weights[..., 1]).log()


@pytest.mark.thorough
@pytest.mark.parametrize(("host", "width"), [("plain-light", 900), ("plain-dark", 900), ("plain-dark", 360)])
def test_bars_of_ones_own_metric_go_both_ways_from_zero(gallery: Show, host: str, width: int) -> None:
    """The heads' numbers are −3 to 4: those below 0 have ink left of the middle of their bar alone."""
    scores = torch.zeros(1, 8, 16, 16)
    scores[0, :, :, 0] = torch.arange(8)[:, None] - 3.0
    att = Attention.from_scores(scores)
    w = AttentionWidget.from_attention(att, view="heads", bar="balance", kinds={"balance": balance})
    shown = gallery(w, host=host, width=width, device_scale_factor=1)
    shown.wait_for_lines()
    assert "the bar is balance, −4.000 to 4.000" in shown.page.locator(".aw-all-heads .aw-prompt").inner_text()
    shown.screenshot(f"heads-own-signed-{width}-{host}")
