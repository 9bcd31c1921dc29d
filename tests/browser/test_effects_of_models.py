"""What a real model loses without segments and heads, from the run to the picture: a plain page, JupyterLab, a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gallery import Gallery
from lab import Lab, OfflinePages
from lanes import mostly_thorough
from test_segments_view import text

from attnwidget import AttentionWidget, effect

transformers = pytest.importorskip("transformers")

Show = Callable[..., Gallery]
PARTS = {"document": (3, 8), "question": (8, 14), "answer": (14, 20)}
MODEL = """
import torch, transformers
from attnwidget import capture
torch.manual_seed(0)
config = transformers.GPT2Config(n_layer=2, n_head=4, n_embd=32, vocab_size=97, n_positions=64, initializer_range=0.3,
                                 bos_token_id=1, eos_token_id=1)
model = transformers.GPT2LMHeadModel(config).eval()
ids = torch.randint(2, 97, (1, 20), generator=torch.Generator().manual_seed(1))
cap = capture(model).run(ids)
"""


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    AttentionWidget.close_all()


def made() -> tuple[Any, Any, AttentionWidget]:
    """A model, its input, and a widget that has run the model without everything."""
    found: dict[str, Any] = {}
    exec(MODEL, found)
    w = found["cap"].widget(model=found["model"], segments=PARTS, view="segments", segment="document")
    w.segments_show = "effect"
    w._effects.finish()
    return found["model"], found["ids"], w


def test_the_page_draws_what_the_model_loses(gallery: Show) -> None:
    model, ids, w = made()
    shown = gallery(w, width=900)
    shown.wait_for_lines()
    shown.screenshot("effects-of-a-model")
    assert "Did it matter that the answer looked there" in text(shown, ".aw-seg-heading")
    rows = shown.page.locator("[data-aw=picture] [data-at]").all_inner_texts()
    assert {row.split("\n")[0] for row in rows} >= set(PARTS)
    without = effect(model, ids, {"all": {"drop_keys": [*range(3, 8)]}})
    assert f"{without.before:.6f}"[:7] in text(shown, "[data-aw=status]").replace("−", "-")
    lost = without.before - without.after
    shown_lost = float(text(shown, "[data-aw=status]").replace("−", "-").split("lost ")[1].split(" ")[0])
    assert shown_lost == pytest.approx(lost, abs=2e-6)
    assert shown.page.locator(".aw-chances li").count() >= 8
    assert text(shown, ".aw-fx-runs .aw-visually-hidden") == "All runs are done."
    heads = shown.page.locator("[data-aw=effect-heads] [data-at]")
    assert heads.count() == 8
    assert "8 heads exact" in text(shown, "[data-aw=status]")
    shown.check()


@pytest.mark.thorough
def test_a_file_keeps_them(offline_page: OfflinePages, tmp_path: Path) -> None:
    *_, w = made()
    path = tmp_path / "effects.html"
    w.to_html(path)
    page = offline_page(path.read_text(encoding="utf-8"), over="file", width=900)
    page.page.wait_for_selector(".aw-fx-row[data-at]")
    said = page.page.locator(".attnwidget").inner_text()
    assert "Did it matter that the answer looked there" in said
    assert "next token" in said
    page.page.locator("[data-aw=picture] [data-at]", has_text="question").click()
    page.page.wait_for_function(
        "() => /without question/.test(document.querySelector('.aw-panel-head').innerText.replace(/\\s+/g, ' '))"
    )
    page.page.wait_for_selector(".aw-chances")


@pytest.mark.parametrize("view", mostly_thorough("segments", "graph", "heatmap"))
def test_a_file_says_what_is_lost_without_a_head_and_what_is_not_in_it(
    offline_page: OfflinePages, tmp_path: Path, view: str
) -> None:
    *_, w = made()
    lost = w.effects["heads"]["lost"][4]
    w.set_trait("view", view)
    w.layer, w.head = 1, 0
    path = tmp_path / "effects.html"
    w.to_html(path)
    page = offline_page(path.read_text(encoding="utf-8"), over="file", width=900)
    page.page.wait_for_selector("[data-aw=status]")
    if view == "segments":
        page.page.locator("[data-aw=effect-heads] [data-at]", has_text="1·0").click()
        page.page.mouse.move(1, 1)
    else:
        word = page.page.get_by_role("radio", name="head 1·0")
        beside = word.inner_text().replace("−", "-").removeprefix("head 1·0 lost ")
        assert float(beside) == pytest.approx(lost, abs=6e-4)
        word.click()
    panel = page.page.locator(".aw-fx-panel" if view == "segments" else ".aw-without")
    panel.get_by_text("The next token without it was not saved: open the notebook to compute it.").wait_for()
    said = " ".join(panel.inner_text().replace("−", "-").split())
    assert "head 1·0" in said
    assert float(said.split("” ")[1].split(" nats")[0]) == pytest.approx(lost, abs=6e-4)
    if view != "segments":
        assert f"without head 1·0, lost {lost:.3f} nats" in said


@pytest.mark.thorough
def test_in_jupyterlab_it_runs_answers_and_stops(lab: Lab) -> None:
    notebook = lab.open(
        [MODEL, f"w = cap.widget(model=model, segments={PARTS!r}, view='segments', segment='document')\nw"], width=1600
    )
    notebook.run_all()
    root = notebook.page.locator(".attnwidget").first
    root.get_by_role("radio", name="effect").click()
    root.get_by_text("8 heads exact").wait_for(timeout=60_000)
    notebook.screenshot("effects", of=".attnwidget")
    assert root.locator(".aw-chances li").count() >= 8

    root.locator("[data-aw=effect-heads] [data-at]").nth(2).click()
    root.locator(".aw-panel-head", has_text="head").wait_for()
    root.locator(".aw-chances").wait_for(timeout=30_000)

    root.locator(".aw-menu[aria-label=More] > button, .aw-menu[aria-label=Edit] > button").first.click()
    root.get_by_role("menuitemradio", name="even").first.click()
    root.locator(".aw-seg-caption", has_text="made even").wait_for(timeout=30_000)
    root.get_by_text("8 heads exact").wait_for(timeout=60_000)

    root.get_by_role("tab", name="Heatmap").click()
    root.get_by_role("radio", name="document").click()
    root.locator(".aw-without .aw-chances").wait_for(timeout=30_000)
    assert not notebook.problems


PIECES = [
    "Ġa",
    "Ġb",
    "c",
    "Ġun",
    "be",
    "lief",
    "Ġg",
    "Ġh",
    "i",
    "Ġj",
    "k",
    "Ġl",
    "Ġm",
    "n",
    "o",
    "Ġp",
    "Ġq",
    "r",
    "Ġs",
    "Ġt",
]


def take_away(shown: Gallery, w: AttentionWidget, name: str) -> None:
    before = len(w.effect_details or [])
    shown.page.get_by_role("radio", name=name).click()
    while len(w.effect_details or []) == before:
        shown.settle()  # Python has taken it, and runs the model
    shown.finish()  # the page hears of it by this alone, also where it was there before the click had ended
    shown.page.locator(".aw-without .aw-chances").wait_for()


@pytest.mark.thorough
def test_a_word_is_taken_away_with_all_its_pieces(gallery: Show) -> None:
    found: dict[str, Any] = {}
    exec(MODEL, found)
    model, ids = found["model"], found["ids"]
    w = found["cap"].widget(model=model, tokens=PIECES, pieces="words", segments=PARTS, query=9, key=2)
    shown = gallery(w, width=900)
    take_away(shown, w, "key unbelief")
    shown.screenshot("effect-of-a-word")
    without = effect(model, ids, {"all": {"drop_keys": [3, 4, 5]}})
    lost = text(shown, ".aw-without").replace("−", "-").split("lost ")[1].split(" ")[0]
    assert float(lost) == pytest.approx(without.before - without.after, abs=5e-4)
    take_away(shown, w, "this edge")
    edge = effect(model, ids, {(0, 0): {"block": ([16, 17], [3, 4, 5])}})
    (detail,) = [one for one in w.effect_details if "query" in one["of"]]
    assert detail["after"] == pytest.approx(edge.after, rel=1e-4)
    shown.check()
