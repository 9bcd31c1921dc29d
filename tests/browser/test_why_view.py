"""The Why view: the sentence, the row, the terms and the graph of heads; by pointer, by keys, and in a saved page."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import copying
import pytest
import torch
from gallery import Gallery, show
from lab import OfflinePages
from lanes import mostly_thorough

from attnwidget import AttentionWidget, Capture, capture

QUERY = 29


@functools.cache
def captured() -> Capture:
    text, _ = copying.repeated(1, 30, torch.Generator().manual_seed(5))
    with torch.inference_mode(False), torch.enable_grad():
        model = copying.trained()
    return capture(model, sources=True).run(text)


@functools.cache
def pinned() -> tuple[int, int]:
    """The head that copies, and the key that it looks at."""
    weights = torch.stack([captured().attention[1].block(head=h, queries=QUERY)[0] for h in range(copying.HEADS)])
    head = int(weights.amax(1).argmax())
    return head, int(weights[head].argmax())


def widget(**more: object) -> AttentionWidget:
    head, key = pinned()
    words = [f"w{word}" for word in range(30)]
    at = {"layer": 1, "head": head, "query": QUERY, "key": key, "view": "why", **more}
    return captured().widget(tokens=words, **at)  # type: ignore[arg-type]


def shown_in(offline_page: OfflinePages, w: AttentionWidget, host: str = "jupyter-light", width: int = 900) -> Gallery:
    shown = show(offline_page, [w], host=host, width=width)
    shown.page.wait_for_selector(".aw-why-graph")
    shown.page.wait_for_selector(".aw-why-terms")
    shown.settle()
    return shown


def sentence(shown: Gallery) -> str:
    return " ".join(shown.page.locator(".aw-why-sentence").inner_text().split())


@pytest.mark.parametrize("host", mostly_thorough("jupyter-light", "jupyter-dark", "jupyter-contrast"))
@pytest.mark.parametrize("width", mostly_thorough(900, 320, 600, 1400))
def test_the_answer_stands_in_words_and_nothing_overflows(offline_page: OfflinePages, host: str, width: int) -> None:
    head, key = pinned()
    shown = shown_in(offline_page, widget(), host, width)
    answer = captured().why(1, head, QUERY, key, against="others")
    best = answer.key_parts[int(answer.by_key.abs().argmax())]
    value = float(answer.by_key.max())
    assert f"w{QUERY}{QUERY} looks at w{key}{key}" in sentence(shown)
    than = "the mean of the row's other keys"
    wrote = f"what head {best.label} wrote there"
    share = f"{value / answer.score * 100:.0f} % of what sets it above {than} is {wrote}"
    added = f"its score is {answer.score:.3f} above {than}; {wrote} adds {value:.3f}"
    assert share in sentence(shown) or added in sentence(shown)
    assert answer.subtracted is not None
    own, less, sums = (
        f"{x:.3f}".replace("-", "−") for x in (answer.score + answer.subtracted, answer.subtracted, answer.score)
    )
    equation = f"= the score {own} less {less}, the mean of the row's other keys under their weights"
    feet = [" ".join(one.inner_text().split()) for one in shown.page.locator(".aw-why-sum").all()]
    assert len(feet) == 2
    assert f"sum +{sums} {equation}" in feet[0]
    assert f"sum {sums} {equation}" in feet[1]
    title = "each cell is one term of the score less the mean of the row's other keys"
    assert title in shown.page.locator(".aw-why-title").inner_text()
    wide = shown.page.evaluate(
        "() => { const e = document.querySelector('.aw-why'); return [e.scrollWidth, e.clientWidth]; }"
    )
    assert wide[0] <= wide[1]
    shown.screenshot(f"why-{host}-{width}")
    shown.check()


def test_columns_pin_keys_parts_lead_to_heads_and_shift_compares(offline_page: OfflinePages) -> None:
    head, key = pinned()
    w = widget()
    shown = shown_in(offline_page, w)
    page = shown.page
    page.locator(f".aw-why-column[aria-label^='w{key - 1} {key - 1}:']").click()
    shown.settle()
    assert (w.query, w.key) == (QUERY, key - 1)
    assert "below the mean of the row's other keys" in sentence(shown)
    page.locator(f".aw-why-column[aria-label^='w{key} {key}:']").click(modifiers=["Shift"])
    shown.settle()
    assert page.get_by_role("radio", name=f"w{key} {key}").get_attribute("aria-checked") == "true"
    difference = captured().why(1, head, QUERY, key - 1, against=key)
    number = f"{difference.score:.3f}".replace("-", "−")
    page.wait_for_selector(f".aw-why-terms:has-text('{number}')")
    page.locator(".aw-why-column[aria-pressed='true']").focus()
    page.keyboard.press("ArrowRight")
    shown.settle()
    assert w.key == key
    page.get_by_role("radio", name="the row's mean").click()
    page.locator(".aw-why-parts .aw-link").first.click()
    shown.settle()
    assert w.layer == 0
    shown.check()


def test_the_graph_follows_a_head_back_and_opens_the_cells(offline_page: OfflinePages) -> None:
    head, _ = pinned()
    w = widget()
    shown = shown_in(offline_page, w)
    page = shown.page
    edges = page.locator(".aw-why-edge")
    many = edges.count()
    slider = page.get_by_role("slider")
    slider.fill("0.45")
    shown.settle()
    assert 0 < edges.count() < many
    assert page.locator(".aw-why-least output").inner_text() == "45 %"
    slider.fill("0.1")
    page.get_by_role("button", name=re.compile("^follow 1·")).click()
    shown.settle()
    names = [edge.get_attribute("aria-label") or "" for edge in edges.all()]
    assert names
    assert all(f"head 1·{head}" in name or "head 0·" in name for name in names)
    page.locator(".aw-why-dot[aria-pressed='true']").focus()
    page.keyboard.press("ArrowLeft")
    shown.settle()
    assert w.layer == 0
    page.get_by_role("button", name="show all heads").click()
    page.locator(f".aw-why-dot[aria-label='head 1·{head}']").hover()
    page.wait_for_function("() => document.querySelector('.aw-why-preview canvas').width > 1")
    assert page.locator(".aw-why-preview").inner_text() == f"1·{head}"
    page.locator(f".aw-why-dot[aria-label='head 1·{head}']").click()
    shown.settle()
    assert (w.layer, w.head) == (1, head)
    page.locator(".aw-why-edge[aria-label*='head 1·']").first.dispatch_event("click")
    shown.settle()
    assert (w.view, w.layer) == ("heatmap", 1)
    shown.check()


def test_a_saved_page_has_what_was_asked_for(offline_page: OfflinePages, tmp_path: Path) -> None:
    captured().composition()
    path = widget().to_html(tmp_path / "why.html")
    page = offline_page(Path(path).read_text(encoding="utf-8"), over="file")
    page.page.wait_for_selector(".aw-why-graph")
    page.page.wait_for_selector(".aw-why-terms")
    assert "above the mean of the row's other keys" in page.page.locator(".aw-why-sentence").inner_text()
    key = pinned()[1]
    page.page.get_by_role("radio", name="nothing").click()
    page.page.wait_for_selector(".aw-why-sum:has-text('= the model')")
    page.page.locator(f".aw-why-column[aria-label^='w{key - 1} {key - 1}:']").click()
    page.page.wait_for_selector(".aw-why [role=alert]")
    assert "not saved" in page.page.locator(".aw-why [role=alert]").first.inner_text()
    assert page.problems == []


def test_without_sources_or_a_pin_it_says_what_to_do(offline_page: OfflinePages) -> None:
    plain = AttentionWidget(*torch.randn(3, 1, 2, 6, 8), view="why")
    shown = show(offline_page, [plain, widget(query=None, key=None)], host="jupyter-light", width=900)
    shown.page.wait_for_selector(".aw-why-graph")
    prompts = [one.inner_text() for one in shown.page.locator(".aw-why .aw-prompt").all()]
    assert "capture(model, sources=True)" in prompts[0]
    assert "Pin a cell" in prompts[1]
    shown.check()
