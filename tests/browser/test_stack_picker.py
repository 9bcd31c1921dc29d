"""Which of several stacks, and of which forward pass: chosen in the toolbar, in JupyterLab and on plain pages."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable

import pytest
import torch
from gallery import Gallery
from lab import Lab
from playwright.sync_api import TimeoutError as TookTooLong

from attnwidget import Attention, AttentionStack, AttentionWidget

Show = Callable[..., Gallery]

SOURCE = ["the", "bank", "lent", "her", "money", "for", "the", "boat"]
TARGET = ["la", "banque", "lui", "a", "prêté", "de", "l'argent"]


def stack(queries: int, keys: int, seed: int, heads: int = 8) -> AttentionStack:
    generator = torch.Generator().manual_seed(seed)
    drawn = [[1.7 * torch.randn(1, heads, n, 16, generator=generator) for n in (queries, keys)] for _ in range(6)]
    return AttentionStack([Attention(q, k) for q, k in drawn])


def translator(**more: object) -> AttentionWidget:
    source, target = len(SOURCE), len(TARGET)
    sizes = {"encoder": (source, source), "decoder": (target, target), "decoder, cross-attention": (target, source)}
    sources = {(i, name): stack(*of, 10 * i + at) for i in range(50) for at, (name, of) in enumerate(sizes.items())}
    words = {"encoder": SOURCE, "decoder": TARGET, "decoder, cross-attention": TARGET}
    keys = {"decoder, cross-attention": SOURCE}
    return AttentionWidget.from_attention(sources, tokens=words, key_tokens=keys, **more)  # type: ignore[arg-type]


@pytest.mark.thorough
@pytest.mark.parametrize("width", [320, 400, 700, 1100])
@pytest.mark.parametrize("host", ["jupyter-light", "jupyter-dark"])
def test_the_pickers_at_every_width(gallery: Show, host: str, width: int) -> None:
    shown = gallery(translator(forward=2, stack="decoder, cross-attention"), host=host, width=width)
    shown.click(2, 1)
    shown.settle()
    shown.screenshot(f"stacks-{width}-{host}")
    assert "forward 2 · decoder, cross-attention · layer 0" in shown.page.locator("[data-aw=status]").inner_text()
    shown.check()
    shown.page.get_by_role("button", name="Stack decoder, cross-attention").click()
    shown.page.get_by_role("menuitemradio", name="encoder", exact=True).wait_for()
    shown.screenshot(f"stacks-menu-{width}-{host}")
    shown.check()


@pytest.mark.thorough
@pytest.mark.parametrize("view", ["graph", "heads", "text", "stages"])
def test_the_pickers_are_there_in_every_view(gallery: Show, view: str) -> None:
    shown = gallery(translator(view=view), width=900)
    shown.screenshot(f"stacks-{view}")
    shown.page.get_by_role("button", name="Stack encoder").wait_for()
    shown.page.get_by_role("textbox", name="forward, 0 to 49").wait_for()
    shown.check()


def test_choosing_by_keys_moves_nothing_above_the_picture(gallery: Show) -> None:
    shown = gallery(translator(), width=1100)
    forward = shown.page.get_by_role("textbox", name="forward, 0 to 49")
    picker = shown.page.locator("[data-aw=picker]")
    before = picker.bounding_box()
    pixels = shown.pixels()
    forward.focus()
    shown.page.keyboard.press("ArrowUp")
    shown.page.locator("[data-aw=status]").get_by_text("forward 1").wait_for()
    shown.settle()
    assert (shown.widgets[0].forward, forward.input_value()) == (1, "1")
    assert shown.pixels() != pixels
    forward.fill("49")
    shown.page.keyboard.press("Enter")
    shown.page.locator("[data-aw=status]").get_by_text("forward 49").wait_for()
    assert shown.page.get_by_role("button", name="next forward").is_disabled()
    shown.page.get_by_role("button", name="Stack encoder").focus()
    shown.page.keyboard.press("Enter")
    shown.page.get_by_role("menuitemradio", name="decoder", exact=True).wait_for()
    shown.page.keyboard.press("ArrowDown")
    shown.page.keyboard.press("Enter")
    shown.page.locator("[data-aw=status]").get_by_text("decoder").wait_for()
    shown.settle()
    assert (shown.widgets[0].stack, shown.widgets[0].forward) == ("decoder", 49)
    labels = shown.page.locator(".aw-labels").first.locator("bdi").all_inner_texts()
    assert labels[:2] == TARGET[:2]
    after = picker.bounding_box()
    assert before is not None
    assert after is not None
    assert [after[name] for name in ("x", "y", "height")] == [before[name] for name in ("x", "y", "height")]
    shown.check()


@pytest.mark.thorough
def test_a_lost_kernel_leaves_the_name_of_what_is_shown(gallery: Show) -> None:
    """The picker never names a stack whose picture did not come."""
    shown = gallery(translator(forward=3), width=900)
    shown.end_kernel()
    shown.page.get_by_role("button", name="next forward").click()
    shown.page.get_by_text("The kernel is gone", exact=True).wait_for()
    forward = shown.page.get_by_role("textbox", name="forward, 0 to 49")
    assert (forward.input_value(), forward.is_disabled()) == ("3", True)
    stack_menu = shown.page.get_by_role("button", name="Stack encoder")
    assert stack_menu.is_disabled()
    assert "The kernel is gone" in (stack_menu.get_attribute("title") or "")
    assert "forward 3 · encoder" in shown.page.locator("[data-aw=status]").inner_text()


BANK = """
import attnwidget as aw
from attnwidget.samples import load_sample
q, k, v, tokens, mask = load_sample("bank")
def forward(i):
    return aw.AttentionStack([aw.Attention(q[layer], k[layer], v[layer]) for layer in range(i, i + 2)])
names = ("encoder", "decoder")
stacks = {(i, name): forward(i + at) for i in range(3) for at, name in enumerate(names)}
w = aw.AttentionWidget.from_attention(stacks, tokens={"encoder": tokens})
w
"""


@pytest.mark.thorough
def test_choosing_in_jupyterlab_and_what_a_saved_notebook_says(lab: Lab) -> None:
    notebook = lab.open([BANK], width=1400, height=1100)
    notebook.run_cell(0)
    page = notebook.page
    root = page.locator(".attnwidget")
    status = root.locator("[data-aw=status]")
    root.get_by_role("button", name="next forward").click()
    status.get_by_text(re.compile("forward 1 · encoder")).wait_for()
    assert notebook.evaluate("print(w.forward, w.stack)") == "1 encoder"
    root.get_by_role("button", name="Stack encoder").click()
    root.get_by_role("menuitemradio", name="decoder").click()
    status.get_by_text(re.compile("forward 1 · decoder")).wait_for()
    assert notebook.evaluate("print(w.forward, w.stack, w.tokens)") == "1 decoder None"
    notebook.evaluate("w.forward = 2")
    status.get_by_text(re.compile("forward 2 · decoder")).wait_for()
    notebook.screenshot("lab-stacks", of=".attnwidget")

    notebook.restart_kernel()
    with contextlib.suppress(TookTooLong):  # a question that was on its way may have told it before: nothing to click
        root.get_by_role("button", name="previous forward").click(timeout=3000)
    root.get_by_text("The kernel is gone", exact=True).wait_for()
    assert root.get_by_role("textbox", name="forward, 0 to 2").input_value() == "2"
    assert root.get_by_role("button", name="Stack decoder").is_disabled()
    assert "forward 2 · decoder" in status.inner_text()
    assert notebook.problems == []
