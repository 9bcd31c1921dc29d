"""What a picture shows of a long head, of padding and of a range, and that what is ringed is what is drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gallery import Gallery
from lanes import mostly_thorough

from attnwidget import AttentionWidget, compare
from attnwidget.samples import load_sample

Show = Callable[..., Gallery]


def bank(**more: Any) -> AttentionWidget:
    q, k, v, tokens, mask = load_sample("bank")
    return AttentionWidget(q, k, v, **{"tokens": tokens, "mask": mask, "layer": 5, "head": 7, **more})


def long(length: int, **more: Any) -> AttentionWidget:
    """A head whose later half has only weak weights, but for its first key."""
    generator = torch.Generator().manual_seed(length)
    q, k = (torch.randn(1, 1, length, 8, generator=generator) for _ in range(2))
    q[..., 0], k[..., 0, 0] = 4.0, 8.0
    return AttentionWidget(q, k, is_causal=True, tokens=["river"] * length, **more)


def box(shown: Gallery) -> tuple[float, float]:
    found = shown.page.locator("[data-aw=picture]").bounding_box()
    assert found is not None
    return found["x"], found["width"]


@pytest.mark.thorough
@pytest.mark.parametrize("length", [512, 600, 2048])
@pytest.mark.parametrize(("width", "least"), [(360, 260), (900, 490)])
def test_a_long_head_uses_the_width(gallery: Show, length: int, width: int, least: int) -> None:
    """No room is kept for token labels where there are none: the picture begins after its positions."""
    shown = gallery(long(length), width=width)
    left, wide = box(shown)
    assert left < 64
    assert wide >= least
    shown.screenshot(f"long-{length}-{width}")
    shown.check()


@pytest.mark.parametrize("host", mostly_thorough("jupyter-light", "jupyter-dark"))
def test_zoomed_in_cells_are_whole_and_a_button_leads_back(gallery: Show, host: str) -> None:
    shown = gallery(long(1500), host=host, width=900)
    right = sum(box(shown))
    assert shown.page.get_by_role("button", name="Whole head").count() == 0
    field = shown.page.locator("[data-aw=goto]")
    field.fill("1200, 1190")
    field.press("Enter")
    shown.wait_for_lines()
    shown.screenshot(f"zoomed-whole-cells-{host}")
    assert sum(box(shown)) == pytest.approx(right, abs=0.6)  # tokens have come in on the left alone
    assert box(shown)[0] > 64
    edges = shown.page.evaluate(
        """() => {
          const canvas = document.querySelector("[data-aw=picture]");
          const { width, height } = canvas;
          const pixels = canvas.getContext("2d").getImageData(0, 0, width, height).data;
          const alpha = (x, y) => pixels[4 * (y * width + x) + 3];
          const run = (at) => { // of the runs of painted pixels along a line, the lengths of the first and the last
            const runs = [];
            let long = 0;
            for (let i = 0; i < at.length; i++) {
              if (at[i]) long++;
              else if (long) { runs.push(long); long = 0; }
            }
            if (long) runs.push(long);
            return runs;
          };
          const middle = Math.round(height / 2);
          const rows = Array.from({ length: height }, (_, y) => alpha(8, y) > 0);
          return run(rows);
        }"""
    )
    assert len(edges) > 8
    assert max(edges) - min(edges) <= 2  # the first and the last are as tall as all others
    shown.check()
    shown.page.get_by_role("button", name="Whole head").click()
    shown.wait_for_lines()
    assert shown.page.get_by_role("button", name="Whole head").count() == 0
    assert shown.widgets[0].query == 1200


def test_weak_weights_have_colors_of_their_own(gallery: Show) -> None:
    """On the range of the head they are one flat color; the range of what is in view is a click, or a key, away."""
    shown = gallery(long(1500), width=900)
    field = shown.page.locator("[data-aw=goto]")
    field.fill("1400, 1300")
    field.press("Enter")
    shown.wait_for_lines()
    colors = """() => {
      const picture = document.querySelector("[data-aw=picture]");
      const canvas = Object.assign(document.createElement("canvas"), { width: picture.width, height: picture.height });
      const context = canvas.getContext("2d", { willReadFrequently: true });
      context.drawImage(picture, 0, 0);
      const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
      const seen = new Set();
      for (let at = 0; at < pixels.length; at += 4) {
        if (pixels[at + 3] === 255) seen.add(pixels[at] >> 5 << 6 | pixels[at + 1] >> 5 << 3 | pixels[at + 2] >> 5);
      }
      return seen.size;
    }"""
    flat = shown.page.evaluate(colors)
    shown.page.get_by_role("button", name="range of this head").click()
    shown.wait_for_lines()
    shown.screenshot("range-in-view")
    assert shown.widgets[0].color_range == "view"
    assert shown.page.evaluate(colors) > flat + 5
    assert "range in view" in shown.page.locator("[data-aw=legend]").inner_text()
    shown.page.locator("[data-aw=picture]").focus()
    shown.page.keyboard.press("w")
    shown.wait_for_lines()
    assert shown.widgets[0].color_range == "head"
    assert shown.page.evaluate(colors) == flat
    shown.page.keyboard.press("w")
    shown.wait_for_lines()
    assert shown.widgets[0].color_range == "view"
    assert shown.page.evaluate(colors) > flat + 5
    shown.check()


def test_the_menu_says_the_range_and_has_that_of_the_layer(gallery: Show) -> None:
    shown = gallery(bank(), width=900)
    value = shown.page.locator(".aw-menu[aria-label=Color] > button")
    assert value.inner_text().split("\n")[-1].endswith("linear")
    shown.choose("Color", "0 to 1")
    assert "linear, 0 to 1" in " ".join(value.inner_text().split())
    shown.choose("Color", "layer")
    assert shown.widgets[0].color_range == "layer"
    legend = shown.page.locator("[data-aw=legend]").inner_text()
    assert "range of the layer's heads" in legend
    highs = np.frombuffer(shown.widgets[0].thumbnails["highs"]["data"], "<f4")
    assert f"{highs.max():.2g}".lstrip("0") in legend.split()
    third = shown.page.locator("[role=radio][aria-label='head 3']")
    assert "on the range of all heads of the layer" in (third.get_attribute("title") or "")
    before = shown.page.locator("[data-aw=legend] .aw-ramp").inner_text()
    third.click()
    shown.wait_for_lines()
    assert shown.page.locator("[data-aw=legend] .aw-ramp").inner_text() == before
    shown.screenshot("range-of-the-layer")
    shown.check()


@pytest.mark.thorough
@pytest.mark.parametrize("host", ["jupyter-light", "jupyter-dark"])
@pytest.mark.parametrize("width", [320, 900])
def test_without_a_kernel_the_stages_view_draws_what_the_picture_has(gallery: Show, host: str, width: int) -> None:
    shown = gallery(bank(), host=host, width=width)
    shown.end_kernel()
    shown.page.evaluate("() => window.mounted[0].host.fromPython({ view: 'stages', query: 14, key: 16 })")
    shown.page.get_by_text("Of the stages only the weights were saved").wait_for()
    shown.settle()
    assert shown.page.locator(".aw-small-head b").all_inner_texts() == ["Weights"]
    shown.screenshot(f"stages-without-a-kernel-{width}-{host}")
    shown.check()


BREAK = """() => {
  const create = document.createElement.bind(document);
  document.createElement = (name, ...rest) => {
    if (name === "canvas") throw new Error("the page has no canvas left");
    return create(name, ...rest);
  };
  window.mends = () => { document.createElement = create; };
  window.mounted[0].host.fromPython({ view: "graph" });
}"""


@pytest.mark.thorough
@pytest.mark.parametrize("host", ["jupyter-light", "jupyter-dark"])
@pytest.mark.parametrize("width", [360, 900])
def test_rows_of_padding_are_hatched_in_a_comparison(gallery: Show, host: str, width: int) -> None:
    both = {"one": bank(batch=1), "other": bank(batch=1, head=2)}
    shown = gallery(compare(both), host=host, width=width)
    assert shown.page.locator(".aw-padded:visible").count() == (3 if width == 900 else 1)
    assert "rows of padding" in shown.page.locator("[data-aw=legend]").inner_text()
    shown.screenshot(f"padding-compared-{width}-{host}")
    shown.check()


@pytest.mark.parametrize("host", mostly_thorough("jupyter-light", "jupyter-dark"))
@pytest.mark.parametrize("width", mostly_thorough(900, 320))
def test_what_could_not_be_drawn_is_said_and_comes_back(gallery: Show, host: str, width: int) -> None:
    shown = gallery(bank(), host=host, width=width)
    shown.page.evaluate(BREAK)
    said = shown.page.locator("[data-aw=broken]")
    said.wait_for()
    shown.screenshot(f"broken-{width}-{host}")
    shown.check()
    shown.page.evaluate("() => { window.mends(); }")
    said.get_by_role("button", name="Draw it again").click()
    shown.settle()
    assert shown.page.locator("[data-aw=picture]").count() == 1


@pytest.mark.parametrize("host", mostly_thorough("jupyter-light", "jupyter-dark"))
def test_rows_of_padding_are_said_to_be(gallery: Show, host: str) -> None:
    shown = gallery(bank(batch=1), host=host, width=900)
    tokens = load_sample("bank").tokens[1]
    first = tokens.index("[PAD]")
    rows = shown.page.locator(".aw-padded")
    assert rows.count() == 1
    shown.hover(len(tokens) - 1, 1)
    shown.settle()
    shown.screenshot(f"padding-{host}")
    assert "[PAD] 19, padding" in " ".join(shown.page.locator("[data-aw=status]").inner_text().split())
    assert "rows of padding" in shown.page.locator("[data-aw=legend]").inner_text()
    found = rows.bounding_box()
    assert found is not None
    assert found["y"] == pytest.approx(shown.place(first, 0)[1] - found["height"] / (len(tokens) - first) / 2, abs=1.5)
    shown.check()


@pytest.mark.thorough
@pytest.mark.parametrize("width", [320, 360])
def test_the_toolbar_of_a_narrow_widget_is_whole(gallery: Show, width: int) -> None:
    for how in ({"view": "stages", "query": 14, "key": 16}, {"what_if": {"scale": 0.1, "causal": True}}):
        shown = gallery(bank(**how), width=width)
        more = shown.page.locator(".aw-menu[aria-label=More] > button").bounding_box()
        assert more is not None
        assert more["x"] + more["width"] <= width + 8
        shown.screenshot(f"toolbar-{width}-{how.get('view', 'heatmap')}")
        shown.check()


@pytest.mark.parametrize("width", mostly_thorough(900, 360))
def test_the_pictures_are_alike_and_other_rules_cover_nothing(gallery: Show, width: int) -> None:
    shown = gallery(bank(view="stages", query=14, key=16), width=width, height=2200)
    names = shown.page.locator('.aw-step svg[aria-label="The query\'s weights"] text').all_text_contents()
    if width == 900:  # narrower, fewer have a name: repeated tokens are told apart
        assert [name for name in names if name.startswith("bank")] == ["bank5", "bank14"]
    sizes = shown.page.evaluate(
        "() => [...document.querySelectorAll('.aw-small-picture')].map((node) => [node.offsetWidth, node.offsetHeight])"
    )
    assert len(sizes) == 5
    assert sizes[4] == sizes[0], "the output is as large as the stages before it"
    shown.page.get_by_role("button", name="What if").click()
    shown.wait_for_lines()
    assert shown.page.locator(".aw-popup").count() == 0
    panel = shown.page.locator(".aw-other-rules").bounding_box()
    pictures = shown.page.locator(".aw-steps-row").bounding_box()
    ladder = shown.page.locator(".aw-ladder").bounding_box()
    assert panel is not None
    assert pictures is not None
    assert ladder is not None
    assert pictures["y"] + pictures["height"] <= panel["y"]
    assert panel["y"] + panel["height"] <= ladder["y"]
    shown.page.get_by_role("radio", name="without the mask").click()
    shown.wait_for_lines()
    assert shown.widgets[0].what_if == {"mask": False}
    shown.screenshot(f"what-if-{width}")
    shown.check()


@pytest.mark.thorough
@pytest.mark.parametrize("view", ["heatmap", "stages"])
@pytest.mark.parametrize("width", [320, 600])
def test_the_budget_of_a_cache_is_a_slider_with_a_track(gallery: Show, width: int, view: str) -> None:
    keep = {"keep": {"policy": "heavy_hitters", "budget": 8}}
    q, k, v = torch.randn(3, 24, 16, generator=torch.Generator().manual_seed(0))
    widget = AttentionWidget(q, k, v, is_causal=True, query=20, key=3, what_if=keep)
    widget.set_trait("view", view)
    shown = gallery(widget, host="jupyter-dark", width=width)
    if view == "stages":
        shown.page.get_by_role("button", name="What if").first.click()
    else:
        shown.menu("What if")
    slider = shown.page.get_by_role("slider", name="Keys that the cache holds")
    assert slider.evaluate("(input) => getComputedStyle(input).appearance") == "auto"
    # what belongs together begins at one height, and a choice that needs a second line stays beside its name
    if view == "stages":
        lefts = shown.page.locator(".aw-other-rules [role=radio], .aw-other-rules input").evaluate_all(
            "(all) => all.map((one) => one.getBoundingClientRect().left)"
        )
        names = shown.page.locator(".aw-other-rules [role=radiogroup] > span").evaluate_all(
            "(all) => all.map((one) => one.getBoundingClientRect().right)"
        )
        assert min(lefts) >= max(names)
    else:  # what the pointer is on, and the fields, stand out from the menu
        fill, behind = shown.page.locator(".aw-popup input[name=scale]").evaluate(
            "(input) => [input, input.closest('.aw-popup')].map((one) => getComputedStyle(one).backgroundColor)"
        )
        assert fill != behind
    shown.screenshot(f"cache-{view}-{width}")
    shown.check()


def test_the_field_to_go_to_a_token_says_how(gallery: Show) -> None:
    shown = gallery(bank(), width=600)
    shown.page.locator("[data-aw=picture]").focus()
    shown.page.keyboard.press("/")
    hint = shown.page.locator(".aw-card .aw-key-hint")
    assert hint.inner_text() == "/"
    shown.page.keyboard.type("bank")
    assert hint.inner_text() == "Enter"
    shown.page.keyboard.press("Enter")
    shown.page.locator(".aw-card").get_by_text("1 of 2").wait_for()
    assert hint.count() == 0
    shown.check()
