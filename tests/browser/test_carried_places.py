"""What weights carry, in every view, of a page and of a file: the stage's own numbers, its name, both signs' colors."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from gallery import show
from lab import OfflinePages, Page
from lanes import mostly_thorough
from PIL import Image
from test_carried_by_link import PARTS, quoted, widget

from attnwidget import AttentionWidget, segments
from attnwidget._engine.sources import Stage
from attnwidget._export.look.numbers import list_number
from attnwidget._export.page import snapshot

VIEWS = ("heatmap", "graph", "text", "segments", "heads", "stages")
QUERY, KEY = 9, 6


def opened(offline_page: OfflinePages, w: AttentionWidget, where: str, folder: Path) -> Page:
    if where == "page":
        return show(offline_page, w, width=900).shown
    page = offline_page(w.to_html(folder / "carried.html"), over="file", offline=True, width=900)
    page.page.wait_for_selector("[data-aw=status]")
    page.rest()
    return page


def said(page: Page, part: str) -> str:
    return " ".join(page.page.locator(part).first.inner_text().split())


def signs_seen(page: Page, part: str) -> tuple[bool, bool]:
    """Whether a part of the page has pixels in the colors above zero, orange, and below it, blue."""
    picture = Image.open(io.BytesIO(page.page.locator(part).first.screenshot())).convert("RGB")
    red, _, blue = np.moveaxis(np.asarray(picture, dtype=int), -1, 0)
    return bool((red - blue > 80).sum() > 20), bool((blue - red > 80).sum() > 20)


def wanted(w: AttentionWidget, view: str, stage: Stage) -> str:
    """The number of the pinned pair, or of the pinned segment."""
    att = w._shown.layers[1]
    if view == "segments":
        sums = att.by_segment("door", segments(PARTS, length=10), head=0, stage=stage)  # type: ignore[arg-type]
        return list_number(float(sums.sum[0, sums.keys.index("small")]), stage)
    return list_number(float(att.block(stage, head=0, queries=QUERY)[0, KEY]), stage)


@pytest.mark.parametrize(
    ("stage", "where"),
    mostly_thorough(
        *(("logit", "page"), ("saliency", "file"), ("logit", "file"), ("saliency", "page")),
        *(("value_norm", "page"), ("value_norm", "file")),
        everyday=2,
    ),
)
def test_every_view_has_its_numbers_its_name_and_its_signs(
    offline_page: OfflinePages, tmp_path: Path, stage: Stage, where: str
) -> None:
    w = widget(stage=stage, layer=1, query=QUERY, key=KEY, segment="small", theme="light")
    named = {"value_norm": "Value norm", "logit": f"Logit of {quoted(w)}", "saliency": "Saliency"}[stage]
    signs = {
        "graph": "above 0 below",
        "segments": "above the line +, below −",
        "heads": "each picture from − to +",
    }
    page = opened(offline_page, w, where, tmp_path)
    for view in VIEWS:
        page.page.get_by_role("tab", name=view.title(), exact=True).click()
        page.rest()
        text = said(page, ".aw-body")
        assert named in text
        if view != "heads":
            assert wanted(w, view, stage) in text
        if view == "stages":
            continue  # a step for each of the three, below the pictures of how the weight came about
        legend = said(page, ".aw-ramp") if view in ("heatmap", "text") else text
        if stage == "value_norm":
            assert "−" not in legend
            continue
        if view in ("heatmap", "text"):
            assert legend.count("−") == 1  # from − over 0 to +
            assert " 0 " in legend
        else:
            assert signs[view] in text
        part = {"segments": ".aw-seg-matrix", "heads": ".aw-all-heads"}.get(view, ".aw-body")
        assert signs_seen(page, part) == (True, True), view


@pytest.mark.thorough
def test_a_file_writes_tokens_as_the_page_does(offline_page: OfflinePages, tmp_path: Path) -> None:
    """Its tokenizer says how its tokens are written: the sign before a word is its own here, and no space."""
    w = widget(view="text", layer=1, query=QUERY)
    shown = [said(opened(offline_page, w, where, tmp_path), ".aw-body") for where in ("page", "file")]
    assert "▁hangs" in shown[0]
    assert shown[0] == shown[1]


def pin_query(page: Page, query: int) -> None:
    """Pin a query by its label in the heatmap, and go back to all heads."""
    page.page.get_by_role("tab", name="Heatmap").click()
    page.rest()
    page.page.locator("button.aw-label").nth(query).click()
    page.rest()
    page.page.get_by_role("tab", name="Heads").click()
    page.rest()


def summed(w: AttentionWidget, layer: int, head: int, query: int | None) -> str:
    """The sum of a head's logits over the keys of a query, or its mean over all, as the card says it."""
    sums = w._shown.layers[layer].block("logit", head=head).sum(1)
    return list_number(float(sums.mean() if query is None else sums[query]), "logit")


def card(page: Page) -> str:
    """What is said of layer 0, head 1: the second picture."""
    page.page.locator(".aw-heads-frame [data-aw=picture]").hover(position={"x": 90, "y": 20})
    page.page.locator(".aw-head-card").wait_for()
    return said(page, ".aw-head-card")


@pytest.mark.thorough
@pytest.mark.parametrize("where", ["page", "file"])
def test_heads_are_tinted_by_the_query_that_is_pinned(offline_page: OfflinePages, tmp_path: Path, where: str) -> None:
    w = widget(stage="logit", view="heads", layer=1, query=QUERY, bar="stage_sum", theme="light")
    page = opened(offline_page, w, where, tmp_path)
    assert f"the sum of logits over the keys of query {QUERY}" in said(page, ".aw-prompt")
    told = card(page)
    assert f"sums over the keys of query {QUERY}" in told
    assert f"Sum of the stage {summed(w, 0, 1, QUERY)} " in f"{told} "
    if where == "page":
        return  # there Python sends the sums of another query
    pin_query(page, 3)
    assert "the sum of logits over the keys of query 3" in said(page, ".aw-prompt")
    assert "not saved" not in said(page, ".aw-prompt")
    assert f"Sum of the stage {summed(w, 0, 1, 3)} " in f"{card(page)} "


@pytest.mark.thorough
def test_heads_say_it_where_the_sums_of_a_query_are_not_in_the_file(
    offline_page: OfflinePages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "MAX_SUMS_BYTES", 0)
    w = widget(stage="logit", view="heads", layer=1, query=QUERY, bar="stage_sum", theme="light")
    page = opened(offline_page, w, "file", tmp_path)
    assert f"the sum of logits over the keys of query {QUERY}" in said(page, ".aw-prompt")  # it was pinned
    pin_query(page, 3)
    caption = said(page, ".aw-prompt")
    assert "the sum of logits over the keys, mean over the queries" in caption
    assert "The sums of query 3 alone were not saved: open the notebook to compute them." in caption
    told = card(page)
    assert "sums over the keys, mean over the queries" in told
    assert f"Sum of the stage {summed(w, 0, 1, None)} " in f"{told} "
