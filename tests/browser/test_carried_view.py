"""What weights carry, in a browser: stages with signs, the token of a logit in the legend and in the menu, a pair."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from captured import GPT2, build
from gallery import Gallery, show
from lab import OfflinePages
from lanes import mostly_thorough

from attnwidget import AttentionWidget, capture

TEXT = ["the", "key", "hangs", "on", "a", "small", "nail", "by", "the", "door"]


class Words:
    """A tokenizer whose word for an id is one of the text's, or made up."""

    spelling = "spaced"

    def convert_ids_to_tokens(self, one: int) -> str:
        return "▁" + (TEXT[one - 3] if 3 <= one < 3 + len(TEXT) else f"word{one}")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [3 + TEXT.index(word) for word in text.split()]


def widget(**show_: Any) -> AttentionWidget:
    model = build(GPT2, "sdpa")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 4 if parameter.ndim > 1 else 1
    cap = capture(model, gradients=True, tokenizer=Words())
    cap.run(input_ids=torch.arange(3, 3 + len(TEXT))[None])
    cap.backward()
    return cap.widget(**show_)


def check_pair(page: Gallery, w: AttentionWidget) -> None:
    """The steps of a pair say what its weight carries."""
    w.view, w.key = "stages", 6
    page.finish()
    page.wait_for_lines()
    steps = page.page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll(".aw-step")].map((step) => [
          step.querySelector("h4").textContent, step.querySelector("output").textContent]))"""
    )
    for stage, name in (("value_norm", "Value norm"), ("logit", "Logit"), ("saliency", "Saliency")):
        wanted = w.pair["carried"][stage][0]
        assert float(steps[name].replace("−", "-")) == pytest.approx(wanted, abs=6e-4)
    page.screenshot("carried-pair")


@pytest.mark.parametrize(("width", "theme"), mostly_thorough((760, "light"), (760, "dark"), (420, "light")))
def test_a_logit_is_of_the_token_that_is_chosen(offline_page: OfflinePages, width: int, theme: str) -> None:
    w = widget(stage="logit", query=9, theme=theme, layer=1)
    page = show(offline_page, w, width=width)
    named = [text for _, text in w.facts["targets"][0]["choices"]]
    legend = page.page.locator(".aw-ramp").first
    assert f"Logit of “{named[0]}”, direct path" in legend.inner_text()
    page.screenshot(f"carried-logit-{width}-{theme}")
    if width == 760:
        page.choose("Show", f"“{named[2]}”")
        assert w.target == w.facts["targets"][0]["choices"][2][0]
        assert f"Logit of “{named[2]}”, direct path" in legend.inner_text()
        page.menu("Show")
        page.screenshot(f"carried-menu-{width}-{theme}")
        page.page.keyboard.press("Escape")
        check_pair(page, w)


@pytest.mark.thorough
@pytest.mark.parametrize("view", ["text", "heatmap"])
def test_saliency_is_drawn_in_two_directions(offline_page: OfflinePages, view: str) -> None:
    w = widget(stage="saliency", query=9, layer=1, view=view)
    page = show(offline_page, w, width=760)
    assert "Saliency weight · ∂L/∂weight" in page.page.locator(".aw-ramp").first.inner_text()
    page.screenshot(f"carried-saliency-{view}")
