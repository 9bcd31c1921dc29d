"""Every state that a reader can meet, drawn by the real front-end from real widgets, measured and photographed.

Each test says that nothing is amiss (audit.js: nothing sticks out, overlaps, is cut off, is small, pale or nameless;
nothing on the console) and that the words are there; how it looks is in test-artifacts/screenshots/gallery-*.png.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from colors_by_hand import SCORES, WEIGHTS, wrong_colors
from gallery import Gallery
from lanes import mostly_thorough

from attnwidget import AttentionWidget
from attnwidget._widget.derived.derived_trait import DerivedTrait
from attnwidget._widget.derived.selection import Selection
from attnwidget.samples import load_sample

Show = Callable[..., Gallery]


def bank(**more: Any) -> AttentionWidget:
    q, k, v, tokens, mask = load_sample("bank")
    return AttentionWidget(q, k, v, **{"tokens": tokens, "mask": mask, "layer": 5, "head": 7, **more})


def of_scores(scores: torch.Tensor, **more: Any) -> AttentionWidget:
    """A widget of one head with exactly these scores, (Q, K)."""
    return AttentionWidget(scores, torch.eye(scores.shape[1]), **{"scale": 1.0, **more})


def random(queries: int, keys: int, count: int = 1, size: int = 16, sharp: float = 1.5, **more: Any) -> AttentionWidget:
    """A widget of random attention, `count` heads of it, with something of a diagonal."""
    generator = torch.Generator().manual_seed(queries * 1000 + keys)
    q = torch.randn(1, count, queries, size, generator=generator) * sharp
    k = torch.randn(1, count, keys, size, generator=generator)
    angles = torch.arange(max(queries, keys)).float() / 12
    turning = torch.stack([angles.cos(), angles.sin()], -1) * 3
    q[..., :2] += turning[:queries]
    k[..., :2] += turning[:keys]
    return AttentionWidget(q, k, **more)


def text_of(gallery: Gallery, part: str) -> str:
    return " ".join(gallery.page.locator(f"[data-aw={part}]").first.inner_text().split())


# The bank sample: every width of the layout, in every theme and host.

THEMES = ["jupyter-light", "jupyter-dark", "jupyter-contrast"]
OTHERS = [
    "vscode-light",
    "vscode-dark",
    "vscode-contrast",
    "vscode-contrast-light",
    "plain-light",
    "plain-dark",
    "sepia",
]
NARROW = dict.fromkeys((320, 360, 519), "narrow")
MODES = {**NARROW, 600: "under", 760: "beside", 900: "beside", 1250: "wide", 2000: "wide"}


@pytest.mark.parametrize(
    ("host", "width"),
    mostly_thorough(
        *(("jupyter-light", 900), ("jupyter-dark", 900), ("jupyter-light", 360)),
        *((host, width) for width in MODES for host in THEMES if host == "jupyter-light" or width in (360, 900)),
        *((host, 900) for host in OTHERS),
        *(("plain-light", width) for width in (320, 600, 760, 1250)),
        everyday=3,
    ),
)
def test_widths_and_hosts(gallery: Show, host: str, width: int) -> None:
    shown = gallery(bank(), host=host, width=width)
    shown.click(14, 16)
    shown.hover(5, 8)
    shown.settle()
    shown.screenshot(f"bank-{width}-{host}")
    root = shown.page.locator(".attnwidget")
    assert root.get_attribute("data-mode") == MODES[width]
    name, _, theme = host.partition("-")
    assert root.get_attribute("data-host") == (name if name in ("jupyter", "vscode") else "other")
    assert root.get_attribute("data-theme") == (theme or "light")
    assert text_of(shown, "status").startswith("bank 5 → river 8 weight 0.223724")
    assert text_of(shown, "panel").startswith("bank14 attends to 16 lent .2283 8 river .2242")
    assert (shown.widgets[0].query, shown.widgets[0].key) == (14, 16)
    shown.check()


@pytest.mark.parametrize("spacings", [(2, 8), pytest.param((0, 1, 4), marks=pytest.mark.thorough)])
def test_a_toolbar_that_does_not_fit_is_folded(gallery: Show, spacings: tuple[int, ...]) -> None:
    """Whatever the font: letters further apart make every word wider, up to half of its width and more."""
    w = random(17, 17, 4, grid=(4, 4), tokens=[f"t{at}" for at in range(17)], query=3, key=5)
    shown = gallery(w, host="jupyter-light", width=780)
    views = ("heatmap", "graph", "text", "image", "heads", "segments", "stages")
    for spacing, view in itertools.product(spacings, views):
        shown.page.add_style_tag(content=f".aw-toolbar * {{ letter-spacing: {spacing}px !important }}")
        shown.page.set_viewport_size({"width": 776 + spacing % 3, "height": 1400})  # another: it is measured again
        w.set_trait("view", view)
        shown.finish()
        shown.wait_for_lines()
        shown.screenshot(f"toolbar-{view}-{spacing}")
        wide, room = shown.page.evaluate(
            """() => [".aw-toolbar", ".attnwidget"].map((one) =>
                 document.querySelector(one).getBoundingClientRect().right)"""
        )
        assert wide <= room, view
        if spacing < 4:  # the views stay words as long as they fit
            assert shown.page.get_by_role("tab").count() == 7, view
        shown.menu("More")
        words = "".join(shown.page.locator(".aw-popup[aria-label='More'], .aw-toolbar").all_inner_texts())
        for menu in {"heatmap": ("Show", "Color"), "graph": ("Read", "Keep"), "text": ("Show", "Read")}.get(view, ()):
            assert menu in words, view  # in the toolbar or in the menu: it is somewhere
        shown.page.keyboard.press("Escape")


@pytest.mark.thorough
def test_a_reader_with_larger_type(gallery: Show) -> None:
    shown = gallery(bank(query=14, key=16), host="jupyter-large", width=1100)
    shown.screenshot("bank-1100-large-type")
    size = shown.page.locator("[data-aw=status]").evaluate("(node) => getComputedStyle(node).fontSize")
    assert float(size.removesuffix("px")) == pytest.approx(11 * 18 / 13, abs=0.1)
    shown.check()


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_forced_colors(gallery: Show, scheme: str) -> None:
    shown = gallery(bank(query=14, key=16), width=900, forced_colors="active", color_scheme=scheme)
    shown.screenshot(f"bank-forced-colors-{scheme}")
    theme = shown.page.locator(".attnwidget").get_attribute("data-theme")
    assert theme == {"light": "contrast-light", "dark": "contrast"}[scheme]
    # What is chosen stands out by its ground: the browser must not take that away.
    pill, page = shown.page.evaluate(
        """() => [".aw-panel .aw-pill", ".attnwidget"].map((selector) => {
          return getComputedStyle(document.querySelector(selector)).backgroundColor;
        })"""
    )
    assert pill != page
    shown.check()


@pytest.mark.thorough
def test_a_device_of_one_pixel_to_a_pixel(gallery: Show) -> None:
    shown = gallery(bank(query=14, key=16), width=900, device_scale_factor=1)
    shown.screenshot("bank-900-1x")
    shown.check()


def test_two_widgets_on_one_page_are_independent(gallery: Show) -> None:
    shown = gallery([bank(), bank(head=3)], width=900, height=1800)
    shown.click(14, 16, index=1)
    shown.settle()
    first, second = shown.widgets
    assert (first.query, first.key) == (None, None)
    assert (second.query, second.key) == (14, 16)
    assert shown.page.locator(".aw-ring[data-pinned]").count() == 1
    assert shown.pixels(0) != shown.pixels(1)
    shown.check()


# What the pointer and the menus show.


@pytest.mark.parametrize(("width", "queries"), mostly_thorough((900, 20), (600, 20), (360, 20), (900, 3)))
def test_hovering_changes_no_layout(gallery: Show, width: int, queries: int) -> None:
    q, k, v, tokens, _ = load_sample("bank")
    at = slice(queries)
    few = AttentionWidget(q[..., at, :], k, v, tokens=[row[at] for row in tokens], key_tokens=tokens, layer=5, head=7)
    shown = gallery(few, width=width)
    shown.leave()
    shown.settle()
    boxes = """() => ["toolbar", "picker", "picture", "legend", "panel", "status"].map((name) => {
      const { x, y, width, height } = document.querySelector(`[data-aw=${name}]`).getBoundingClientRect();
      return [name, x, y, ...(name === "panel" ? [] : [width, height])];
    })"""
    before = shown.page.evaluate(boxes)
    assert "Point at a row to see its keys" in text_of(shown, "panel")
    assert shown.page.locator(".aw-ring").count() == 0
    shown.check()
    shown.hover(1, 0)
    shown.settle()
    assert text_of(shown, "status").startswith("she 1 → [CLS] 0 weight 0.6")
    shown.screenshot(f"hovered-{width}-{queries}-queries")
    assert shown.page.evaluate(boxes) == before
    shown.check()


def test_labels_and_keys_pin(gallery: Show) -> None:
    shown = gallery(bank(), host="jupyter-light")
    shown.page.locator(".aw-label", has_text="lent").last.click()
    shown.leave()
    shown.settle()
    shown.screenshot("key-pinned")
    assert (shown.widgets[0].query, shown.widgets[0].key) == (None, 16)
    assert text_of(shown, "panel").startswith("lent is attended to by")
    shown.check()
    shown.page.locator(".aw-label", has_text="lent").first.click()
    shown.leave()
    shown.settle()
    shown.screenshot("query-pinned")
    assert (shown.widgets[0].query, shown.widgets[0].key) == (16, None)
    assert text_of(shown, "panel").startswith("lent attends to")
    shown.check()

    shown.click(14, 16)
    picture = shown.page.locator("[data-aw=picture]")
    shown.page.locator("[role=radiogroup][aria-label=Head] [aria-checked=true]").focus()
    shown.page.keyboard.press("Tab")
    assert picture.evaluate("(node) => node === document.activeElement"), "one Tab leads from the heads to the picture"
    shown.page.keyboard.press("ArrowDown")
    shown.settle()
    shown.screenshot("keyboard-focus")
    assert (shown.widgets[0].query, shown.widgets[0].key) == (15, 16)
    width = picture.evaluate("(node) => getComputedStyle(node).outlineWidth")
    assert width == "2px"
    shown.check()


def test_zoomed_in(gallery: Show) -> None:
    shown = gallery(random(64, 64, tokens=[f"tok{i}" for i in range(64)]), host="jupyter-light")
    before = shown.page.locator(".aw-label").count()
    shown.zoom(20, 30, by=3)
    shown.hover(32, 32)
    shown.settle()
    shown.screenshot("zoomed-64")
    assert shown.page.locator(".aw-plot[data-zoomed]").count() == 1
    assert shown.page.locator(".aw-label").count() != before
    shown.check()
    shown.page.locator("[data-aw=picture]").dblclick()
    shown.settle()
    assert shown.page.locator(".aw-plot[data-zoomed]").count() == 0


def check_menus(shown: Gallery, *menus: str) -> None:
    """Open each menu in turn; Escape closes it, and leaves the focus on its button."""
    for menu in menus:
        shown.menu(menu)
        shown.settle()
        shown.screenshot(f"menu-{menu.lower()}")
        shown.check()
        shown.page.keyboard.press("Escape")
        assert shown.page.locator(".aw-popup").count() == 0
        assert shown.page.evaluate("() => document.activeElement.parentElement.getAttribute('aria-label')") == menu


@pytest.mark.parametrize("host", mostly_thorough(*THEMES))
def test_menus(gallery: Show, host: str) -> None:
    check_menus(gallery(bank(), host=host), "Show", "Color", "More")


@pytest.mark.parametrize(("menus", "width"), mostly_thorough((("View", "More"), 320), (("More", "Show"), 600)))
def test_menus_where_there_is_little_room(gallery: Show, menus: tuple[str, ...], width: int) -> None:
    check_menus(gallery(bank(), width=width), *menus)


@pytest.mark.thorough
def test_the_menu_of_a_pooled_picture(gallery: Show) -> None:
    shown = gallery(random(1024, 1024), host="jupyter-light")
    shown.menu("Pool")
    shown.settle()
    shown.screenshot("menu-pool")
    shown.check()
    shown.page.get_by_role("menuitemradio", name="mean").click()
    shown.settle()
    assert shown.widgets[0].pool == "mean"
    assert "the mean of 2 × 2 cells" in text_of(shown, "legend")


# Stages, colors and ranges.


@pytest.mark.parametrize("host", mostly_thorough("jupyter-light", "jupyter-dark"))
def test_stages(gallery: Show, host: str) -> None:
    shown = gallery(bank(batch=1, softcap=2.0, query=1, key=4), host=host)
    stages = {"scores": "scores", "scaled": "scaled scores", "capped": "capped scores", "masked": "masked scores"}
    for stage, said in {**stages, "contribution": "contributions"}.items():
        shown.choose("Show", stage)
        assert shown.widgets[0].stage == stage
        shown.screenshot(f"stage-{stage}-{host}")
        assert f"{said} over its keys" in text_of(shown, "panel")
        shown.check()


LOOKS: dict[str, tuple[dict[str, Any], str]] = {
    "log": ({"color_scale": "log"}, "Weight, log"),
    "row": ({"color_range": "row"}, "each row has its own range"),
    "unit": ({"color_range": "unit"}, "fixed range"),
    "own": ({"color_range": (0.05, 0.3)}, "custom range"),
    "viridis": ({"palette": "viridis"}, "range of this head"),
    "scores-unit": ({"stage": "scores", "color_range": "unit"}, "beyond ±1"),
}


@pytest.mark.parametrize("host", mostly_thorough("jupyter-light", "jupyter-dark"))
def test_colors(gallery: Show, host: str) -> None:
    w = bank(query=14, key=16)
    shown = gallery(w, host=host)
    plain = {name: getattr(w, name) for name in ("color_scale", "color_range", "palette", "stage")}
    seen = {shown.pixels()}
    for name, (looks, said) in LOOKS.items():
        for trait, value in {**plain, **looks}.items():
            setattr(w, trait, value)
        shown.finish()
        shown.settle()
        shown.screenshot(f"colors-{name}-{host}")
        assert said in text_of(shown, "legend"), name
        seen.add(shown.pixels())
        shown.check()
    assert len(seen) == 1 + len(LOOKS), "each is another picture"


def test_colors_of_a_known_matrix(gallery: Show) -> None:
    weights = of_scores(torch.tensor(WEIGHTS).log().clamp(min=-300).float())
    scores = of_scores(torch.tensor(SCORES).float(), stage="scores")
    for theme in ("light", "dark"):
        shown = gallery([weights, scores], host=f"jupyter-{theme}", height=1800)
        pictures = shown.page.locator("[data-aw=picture]")
        assert wrong_colors(pictures.nth(0), pictures.nth(1), theme) == []
        shown.check()


# Cells that are not numbers.


def planted(**more: Any) -> AttentionWidget:
    """As in the look's ninth picture: causal and padded, one query may attend to nothing, one is NaN."""
    tokens = ["the", "bank", "lent", "her", "money", ".", "[PAD]", "[PAD]"]
    scores = torch.randn(8, 8, generator=torch.Generator().manual_seed(4)) * 1.2
    scores[:, 2] += 2
    scores[4] = torch.nan
    allowed = torch.ones(8, 8, dtype=torch.bool).tril()
    allowed[:, 6:] = False
    allowed[2] = False
    return of_scores(scores, tokens=tokens, mask=allowed, **more)


def infinite(**more: Any) -> AttentionWidget:
    """Scores that overflow in both directions."""
    q = torch.tensor([[1e30], [-1e30], [1.0], [0.5], [-2.0], [0.0]])
    k = torch.tensor([[1e30], [1.0], [-0.5], [2.0], [0.0]])
    return AttentionWidget(q, k, scale=1.0, **{"stage": "scores", "color_range": (-2, 2), **more})


@pytest.mark.parametrize("host", mostly_thorough(*THEMES, "vscode-contrast-light"))
def test_cells_that_are_no_numbers(gallery: Show, host: str) -> None:
    shown = gallery([planted(), infinite()], host=host, width=760, height=1800)
    shown.hover(3, 1)
    shown.settle()
    shown.screenshot(f"cells-{host}")
    assert "masked" in text_of(shown, "legend")
    assert "NaN, 5 cells" in text_of(shown, "legend")
    shown.check()
    shown.hover(2, 1)
    shown.settle()
    assert "Fully masked: its output is 0." in text_of(shown, "panel")
    shown.screenshot(f"cells-blocked-row-{host}")
    shown.hover(4, 1)
    shown.settle()
    assert "NaN in 5 keys: look for it in q of this query" in text_of(shown, "panel")
    shown.check()
    shown.hover(0, 0, index=1)
    shown.settle()
    shown.screenshot(f"infinite-{host}")
    legend = shown.page.locator("[data-aw=legend]").nth(1).inner_text()
    assert [part for part in ("+∞", "−∞", "beyond ±2") if part not in " ".join(legend.split())] == []
    shown.check()


@pytest.mark.thorough
@pytest.mark.parametrize("size", [20, 26, 48, 80])
def test_masked_and_nan_cells_get_smaller(gallery: Show, size: int) -> None:
    scores = torch.randn(size, size, generator=torch.Generator().manual_seed(size)) * 1.5
    scores[size // 2] = torch.nan
    shown = gallery(of_scores(scores, is_causal=True), host="jupyter-light", width=520)
    shown.screenshot(f"cells-small-{size}")
    assert "masked" in text_of(shown, "legend")
    shown.check()


# Messages.


def failing(**more: Any) -> AttentionWidget:
    """One head of it runs out of memory."""

    class Failing(AttentionWidget):
        def _rules(self, at: Selection) -> dict[str, DerivedTrait]:
            rules = super()._rules(at)
            return {**rules, "picture": rules["picture"]._replace(make=self._fail)} if self.head == 3 else rules

        def _fail(self, *of: Any) -> None:
            raise RuntimeError(
                "CUDA out of memory while reading k of layer 5. Tried to allocate 20.00 GiB, 1.16 GiB are free."
            )

    q, k, v, tokens, mask = load_sample("bank")
    return Failing(q, k, v, **{"tokens": tokens, "mask": mask, "layer": 5, "head": 7, **more})


@pytest.mark.parametrize(
    ("host", "width"), mostly_thorough(("jupyter-light", 900), ("jupyter-dark", 900), ("jupyter-light", 360))
)
def test_a_head_that_cannot_be_computed(gallery: Show, host: str, width: int) -> None:
    shown = gallery(failing(), host=host, width=width)
    shown.page.get_by_role("radio", name="head 3", exact=True).click()
    shown.page.get_by_text("This head could not be computed").wait_for()
    shown.leave()
    shown.settle()
    shown.screenshot(f"message-error-{width}-{host}")
    assert "CUDA out of memory while reading k of layer 5." in shown.page.locator(".aw-problem").inner_text()
    shown.check()
    shown.page.get_by_role("radio", name="head 4", exact=True).click()
    shown.page.get_by_text("This head could not be computed").wait_for(state="detached")


@pytest.mark.thorough
@pytest.mark.parametrize("width", [900, 360])
def test_waiting_for_the_kernel(gallery: Show, width: int) -> None:
    shown = gallery(bank(query=14, key=16), host="jupyter-light", width=width)
    before = shown.pixels()
    shown.hold()
    shown.page.get_by_role("radio", name="head 3", exact=True).click()
    shown.page.get_by_text("Waiting for the kernel").wait_for()
    shown.hover(5, 8)
    shown.settle()
    shown.screenshot(f"message-waiting-{width}")
    assert shown.pixels() == before, "the last picture stays"
    assert text_of(shown, "status").startswith("bank 5 → river 8 weight 0.223724")
    shown.check()
    shown.release()
    shown.page.get_by_text("Waiting for the kernel").wait_for(state="detached")
    is_new = "(before) => document.querySelector('[data-aw=picture]').toDataURL() !== before"
    shown.page.wait_for_function(is_new, arg=before)
    assert shown.widgets[0].head == 3


@pytest.mark.parametrize("width", mostly_thorough(900, 360))
def test_the_kernel_is_gone(gallery: Show, width: int) -> None:
    shown = gallery(bank(query=14, key=16), host="jupyter-light", width=width)
    before = shown.pixels()
    shown.end_kernel()
    shown.page.get_by_role("radio", name="head 3", exact=True).click()
    shown.page.get_by_text("The kernel is gone").wait_for()
    shown.hover(5, 8)
    shown.settle()
    shown.screenshot(f"message-gone-{width}")
    assert shown.pixels() == before
    chosen = shown.page.locator("[role=radiogroup][aria-label=Head] [aria-checked=true]")
    assert chosen.get_attribute("aria-label") == "head 7", "the ring stays with the picture"
    assert text_of(shown, "status").startswith("bank 5 → river 8 weight 0.223724")
    shown.check()


@pytest.mark.thorough
def test_a_range_of_ones_own(gallery: Show) -> None:
    shown = gallery(bank(), host="jupyter-light")
    shown.menu("Color")
    shown.page.get_by_label("Low end of the colors").fill("2")
    shown.page.get_by_label("High end of the colors").fill("1")
    shown.page.get_by_role("button", name="Set").click()
    shown.page.get_by_text("The first must be smaller").wait_for()
    shown.screenshot("own-range-refused")
    shown.check()
    assert shown.widgets[0].color_range == "head"
    shown.page.get_by_label("Low end of the colors").fill("0.1")
    shown.page.get_by_role("button", name="Set").click()
    shown.settle()
    color_range: Any = shown.widgets[0].color_range
    assert tuple(color_range) == (0.1, 1.0)
    assert "custom range" in text_of(shown, "legend")


@pytest.mark.thorough
def test_with_no_kernel_behind_it(gallery: Show) -> None:
    shown = gallery(bank(), live=False)
    shown.click(14, 16)
    shown.settle()
    assert text_of(shown, "panel").startswith("bank14 attends to 16 lent .2283")
    assert shown.page.locator(".aw-ring[data-pinned]").count() == 1
    shown.check()


# Sizes.


TEXT = "the keys that a query attends to most are drawn in the darkest ink of all that there is on this page"


def words(count: int) -> list[str]:
    text = TEXT.split()
    return [text[i % len(text)] for i in range(count)]


@pytest.mark.parametrize(
    ("queries", "keys", "width"),
    mostly_thorough(
        (50, 3, 320),
        (2048, 2048, 900),
        (1, 1, 600),
        (4, 4, 600),
        (4, 4, 1250),
        (1, 40, 900),
        (1, 40, 320),
        (50, 3, 900),
        (26, 26, 900),
        (40, 40, 900),
        (64, 64, 900),
        (64, 64, 360),
        (128, 128, 600),
        (16, 512, 900),
        (512, 16, 900),
        (300, 300, 900),
        (300, 300, 360),
        (512, 512, 900),
        (2048, 2048, 320),
        everyday=2,
    ),
)
def test_sizes(gallery: Show, queries: int, keys: int, width: int) -> None:
    drawn = random(queries, keys, count=2, tokens=words(queries), key_tokens=words(keys))
    shown = gallery(drawn, host="jupyter-light", width=width)
    name = f"size-{queries}x{keys}-{width}"
    shown.screenshot(name)
    faults = shown.faults
    query, key = 2 * queries // 3, keys // 3
    shown.click(query, key)
    shown.hover(queries // 4, keys // 2)
    shown.page.wait_for_function("() => document.querySelector('[data-aw=panel] .aw-ranks')")
    shown.settle()
    shown.screenshot(f"{name}-pinned")
    pinned = shown.widgets[0]
    assert pinned.query is not None
    assert pinned.key is not None
    bins = shown.widgets[0].picture
    assert abs(pinned.query - query) <= 4 * bins["query_bin"]
    assert abs(pinned.key - key) <= 4 * bins["key_bin"]
    shown.check(also=faults)


@pytest.mark.parametrize("host", mostly_thorough("jupyter-light", "jupyter-dark"))
def test_many_heads_and_layers(gallery: Show, host: str) -> None:
    q = torch.randn(80, 1, 64, 12, 8, generator=torch.Generator().manual_seed(0)) * 2
    k = torch.randn(80, 1, 8, 12, 8, generator=torch.Generator().manual_seed(1))
    shown = gallery(AttentionWidget(q, k, tokens=words(12), layer=17, head=41), host=host, width=1000)
    shown.screenshot(f"heads-64-layers-80-{host}")
    assert "of 80" in text_of(shown, "picker")
    assert shown.page.locator("[role=radio]").count() == 64
    shown.check()
    shown.page.get_by_label("layer, 0 to 79").fill("79")
    shown.page.keyboard.press("Enter")
    shown.page.wait_for_function("() => document.querySelector('[data-aw=status]').textContent.includes('layer 79')")
    assert shown.widgets[0].layer == 79
    shown.check()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("heads", "groups", "width"),
    [(64, 8, 320), (64, 8, 700), (12, 4, 900), (16, 1, 600), (128, 16, 900), (12, 12, 760), (3, 3, 360)],
)
def test_grouped_heads(gallery: Show, heads: int, groups: int, width: int) -> None:
    q = torch.randn(3, 1, heads, 12, 8, generator=torch.Generator().manual_seed(0)) * 2
    k = torch.randn(3, 1, groups, 12, 8, generator=torch.Generator().manual_seed(1))
    shown = gallery(AttentionWidget(q, k, tokens=words(12), head=heads * 3 // 4), host="jupyter-light", width=width)
    shown.screenshot(f"heads-{heads}-groups-{groups}-{width}")
    chosen = shown.page.locator("[role=radio][aria-checked=true]").last
    assert chosen.get_attribute("aria-label") == f"head {heads * 3 // 4}"
    row = shown.page.locator(".aw-heads").bounding_box()
    box = chosen.bounding_box()
    assert row is not None
    assert box is not None
    assert row["x"] - 1 <= box["x"], "the chosen head is scrolled into view"
    assert box["x"] + box["width"] <= row["x"] + row["width"] + 1, "the chosen head is scrolled into view"
    shown.check()


# Tokens.

ODD = [
    "<s>",
    "Ġthe",
    "▁wide",
    "##ing",
    " ",
    "\n",
    "\t",
    "\x00\x1b",
    "\u200b",
    "مرحبا",
    "שלום",
    "👩‍👩‍👧‍👦",
    "日本語の",
    "e\u0301\u0323\u0308",
    "<img src=x onerror='window.hacked=1'>",
    "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunter",
    "\u202egnitirw",
    "</script>",
    "&amp;",
    "[SEP]",
]


@pytest.mark.parametrize(
    ("host", "width"), mostly_thorough(("plain-light", 900), ("jupyter-dark", 900), ("plain-light", 360))
)
def test_odd_tokens(gallery: Show, host: str, width: int) -> None:
    shown = gallery(random(len(ODD), len(ODD), tokens=ODD, title="‮A title\n<b>of</b> its own"), host=host, width=width)
    shown.click(14, 15)
    shown.hover(16, 9)
    shown.settle()
    shown.screenshot(f"tokens-odd-{width}-{host}")
    assert shown.page.locator(".attnwidget img, .attnwidget script, .aw-title b").count() == 0
    assert shown.page.evaluate("() => window.hacked") is None
    shown.check()
    shown.hover(15, 15)
    shown.settle()
    shown.screenshot(f"tokens-long-{width}-{host}")
    shown.check()


@pytest.mark.thorough
def test_only_positions(gallery: Show) -> None:
    shown = gallery(random(20, 30), host="jupyter-light")
    shown.click(3, 4)
    shown.settle()
    shown.screenshot("tokens-none")
    assert text_of(shown, "status").startswith("query 3 → key 4 weight")
    shown.check()


@pytest.mark.thorough
def test_a_long_title_and_layer_names(gallery: Show) -> None:
    q, k = torch.randn(2, 2, 1, 3, 6, 8, generator=torch.Generator().manual_seed(0))
    title = "Which heads of the fine-tuned model still tell the two senses of one word apart, and which no longer do?"
    for width in (900, 320):
        shown = gallery(AttentionWidget(q, k, title=title), host="jupyter-light", width=width)
        shown.screenshot(f"title-{width}")
        assert shown.page.locator(".aw-title").inner_text() == title
        shown.check()


# The graph.


def graph(**more: Any) -> AttentionWidget:
    """As in the look's second picture."""
    return bank(**{"view": "graph", "layer": 2, "head": 0, "heads": [0, 4, 8, 9], **more})


def long_graph(tokens: int, heads: int = 4, **more: Any) -> AttentionWidget:
    shown = {"view": "graph", "tokens": words(tokens), "head": 0, "heads": list(range(heads))}
    return random(tokens, tokens, count=heads, **{**shown, **more})


CHOSEN: dict[str, dict[str, Any]] = {
    "none": {},
    "query": {"query": 14},
    "key": {"key": 5},
    "pair": {"query": 14, "key": 5},
    "pins": {"pins": [(3, None), (9, None), (14, None)]},
    "one-head": {"heads": [9], "head": 9, "query": 14},
    "one-head-none": {"heads": [9], "head": 9},
    "twelve-heads": {"heads": list(range(12)), "query": 14},
    "by-key": {"direction": "key"},
    "by-key-pinned": {"direction": "key", "query": 14, "key": 5},
    "top-3": {"top_k": 3, "threshold": 0.0, "query": 14},
    "all": {"threshold": 0.0, "query": 14},
    "strong": {"threshold": 0.1, "query": 14},
}


@pytest.mark.parametrize("host", mostly_thorough("jupyter-light", "jupyter-dark"))
@pytest.mark.parametrize("name", mostly_thorough("by-key-pinned", *CHOSEN))
def test_graph(gallery: Show, name: str, host: str) -> None:
    shown = gallery(graph(**CHOSEN[name]), host=host)
    shown.wait_for_lines()
    shown.screenshot(f"graph-{name}-{host}")
    shown.check()


@pytest.mark.parametrize(
    ("host", "width"),
    mostly_thorough(
        *(("jupyter-light", width) for width in (760, 320, 360, 519, 600, 1250, 2000)),
        *((host, 360) for host in ("jupyter-dark", "jupyter-contrast")),
        *((host, 900) for host in ("jupyter-contrast", "jupyter-large", *OTHERS)),
    ),
)
def test_widths_and_hosts_of_the_graph(gallery: Show, host: str, width: int) -> None:
    shown = gallery(graph(query=14), host=host, width=width)
    shown.wait_for_lines()
    shown.screenshot(f"graph-{width}-{host}")
    assert shown.page.locator(".aw-graph-row > i").count() > 0 or width < 520
    assert shown.page.locator(".aw-graph-row > span").count() == 20
    shown.check()
    shown.page.locator(".aw-label").nth(3).hover()
    shown.settle()
    shown.check()


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_forced_colors_of_the_graph(gallery: Show, scheme: str) -> None:
    shown = gallery(graph(query=14), forced_colors="active", color_scheme=scheme)
    shown.wait_for_lines()
    shown.screenshot(f"graph-forced-colors-{scheme}")
    swatches = shown.page.eval_on_selector_all(
        ".aw-graph-key > i, .aw-graph-row > i", "(nodes) => nodes.map((node) => getComputedStyle(node).backgroundColor)"
    )
    assert len(set(swatches)) == 4, "the bars keep the colors of their heads"
    shown.check()


@pytest.mark.parametrize("pinned", mostly_thorough(True, False))
@pytest.mark.parametrize("width", mostly_thorough(900, 360))
@pytest.mark.parametrize("tokens", mostly_thorough(200, 1, 2, 40, 53, 2000))
def test_sizes_of_the_graph(gallery: Show, tokens: int, width: int, pinned: bool) -> None:
    at = {"query": 2 * tokens // 3} if pinned else {}
    shown = gallery(long_graph(tokens, **at), host="jupyter-light", width=width)
    if pinned:
        shown.wait_for_lines()
    shown.screenshot(f"graph-{tokens}-{width}{'-pinned' if pinned else ''}")
    if pinned:
        assert shown.page.locator(".aw-graph-columns .aw-pill").count() == 1
        counted = """(labels, side) => labels.filter((label) => label.style[side]).reduce((sum, label) => {
          const gap = label.matches(".aw-graph-gap");
          return sum + (gap ? Number(/[\\d,]+/.exec(label.textContent)[0].replace(",", "")) : 1);
        }, 0)"""
        for column in ("left", "right"):  # every token has its row, or is counted in a gap
            assert shown.page.eval_on_selector_all(".aw-graph-columns .aw-label", counted, column) == tokens
    shown.check()


@pytest.mark.thorough
@pytest.mark.parametrize("host", ["jupyter-light", "jupyter-dark"])
def test_graph_of_many_grouped_heads(gallery: Show, host: str) -> None:
    q = torch.randn(3, 1, 64, 12, 8, generator=torch.Generator().manual_seed(0)) * 2
    k = torch.randn(3, 1, 8, 12, 8, generator=torch.Generator().manual_seed(1))
    drawn = AttentionWidget(q, k, tokens=words(12), view="graph", heads=[0, 7, 8, 40, 63], head=40, query=7)
    shown = gallery(drawn, host=host, width=1000)
    shown.wait_for_lines()
    shown.screenshot(f"graph-64-heads-{host}")
    shown.check()


@pytest.mark.thorough
@pytest.mark.parametrize("width", [900, 360])
def test_graph_of_odd_tokens(gallery: Show, width: int) -> None:
    drawn = random(len(ODD), len(ODD), count=2, tokens=ODD, view="graph", heads=[0, 1], query=14)
    shown = gallery(drawn, host="jupyter-light", width=width)
    shown.wait_for_lines()
    shown.screenshot(f"graph-odd-{width}")
    assert shown.page.locator(".attnwidget img, .attnwidget script").count() == 0
    assert shown.page.evaluate("() => window.hacked") is None
    shown.check()


@pytest.mark.parametrize("host", mostly_thorough("jupyter-light", "jupyter-dark"))
def test_graph_with_masked_blocked_and_nan(gallery: Show, host: str) -> None:
    w = planted(view="graph")
    shown = gallery(w, host=host)
    for query, name in ((3, "masked"), (2, "blocked"), (4, "nan")):
        w.query = query
        shown.finish()
        shown.wait_for_lines()
        shown.screenshot(f"graph-{name}-{host}")
        shown.check()


def test_hovering_over_the_graph(gallery: Show) -> None:
    shown = gallery(graph(query=14), host="jupyter-light")
    shown.wait_for_lines()
    box = shown.page.locator("[data-aw=picture]").bounding_box()
    assert box is not None
    shown.page.mouse.move(box["x"] + box["width"] - 4, box["y"] + 5.5 * 22)
    shown.settle()
    shown.screenshot("graph-hovered-band")
    assert re.match(r"bank 14 → bank 5 head 9 weight 0\.9208\d+", text_of(shown, "status"))
    shown.check()
    shown.page.locator(".aw-graph-columns .aw-label").nth(30).hover()
    shown.settle()
    shown.screenshot("graph-hovered-label")
    shown.check()


@pytest.mark.parametrize(
    ("menus", "width"),
    mostly_thorough((("Read", "Keep", "More"), 900), (("Read", "Keep"), 700), (("More",), 600), (("More",), 320)),
)
def test_menus_of_the_graph(gallery: Show, menus: tuple[str, ...], width: int) -> None:
    check_menus(gallery(graph(), width=width), *menus)


# Several pins, stages and weights in hand, in the heatmap.


@pytest.mark.parametrize("host", mostly_thorough("jupyter-light", "jupyter-dark"))
def test_three_pins(gallery: Show, host: str) -> None:
    shown = gallery(bank(pins=[(3, 8), (9, 0), (14, 16)]), host=host)
    shown.wait_for_lines()
    for over in ("last", "mean", "sum"):
        shown.page.get_by_role("radio", name=over, exact=True).click()
        shown.leave()
        shown.settle()
        shown.screenshot(f"pins-{over}-{host}")
        assert shown.page.locator(".aw-ring[data-further]").count() == 2
        assert shown.page.locator(".aw-ring[data-pinned]").count() == 1
        assert shown.page.locator(".aw-labels .aw-pill-outline").count() == 4
        expected = f"3 queries {over}" if over != "last" else "bank14 attends to"
        assert text_of(shown, "panel").startswith(expected)
        shown.check()


@pytest.mark.thorough
@pytest.mark.parametrize("width", [600, 360])
def test_pins_where_there_is_little_room(gallery: Show, width: int) -> None:
    shown = gallery(bank(pins=[(3, 8), (9, 0), (14, 16)]), width=width)
    shown.wait_for_lines()
    shown.page.get_by_role("radio", name="mean", exact=True).click()
    shown.settle()
    shown.screenshot(f"pins-{width}")
    shown.check()


@pytest.mark.thorough
@pytest.mark.parametrize("view", ["heatmap", "graph"])
def test_weights_in_hand(gallery: Show, view: Literal["heatmap", "graph"]) -> None:
    weights = torch.randn(2, 1, 4, 9, 9, generator=torch.Generator().manual_seed(0)).mul(2).softmax(-1)
    drawn = AttentionWidget.from_weights(weights, tokens=words(9), query=4, view=view)
    shown = gallery(drawn, host="jupyter-light")
    shown.wait_for_lines()
    shown.screenshot(f"from-weights-{view}")
    shown.check()
