"""What the model loses without segments and heads, as the page draws it: numbers by hand, so that each is known.

`test_effects_of_models.py` has those of a real model.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from gallery import Gallery
from lanes import mostly_thorough
from PIL import Image
from test_axe import found, look
from test_segments_view import long_story, story, text

from attnwidget import AttentionWidget

Show = Callable[..., Gallery]

LOST = {"system": 0.06, "doc 1": 0.04, "doc 2": 0.09, "doc 3": 2.38, "doc 4": -0.08, "question": 1.9, "answer": 0.41}
TOKENS: list[list[Any]] = [
    ["nail", 0.8124, 0.0752],
    ["hook", 0.0610, 0.2418],
    ["peg", 0.0212, 0.0907],
    ["chain", 0.0098, 0.0884],
    ["string", 0.0121, 0.0705],
    ["rope", 0.0054, 0.0612],
    ["wall", 0.0190, 0.0498],
    ["ring", 0.0077, 0.0431],
    ["door", 0.0031, 0.0301],
    ["hat", 0.0012, 0.0202],
]


def detail(of: dict[str, Any], lost: float = 2.38, **more: Any) -> dict[str, Any]:
    """One run without something."""
    rest = {"kl": 1.694, "kl_answer": 0.412, "vocabulary": 50_257, "tokens": TOKENS}
    return {
        "of": of,
        "at": 76,
        "token": 17,
        "target": " nail",
        "edit": "zero",
        "before": -0.207784,
        "after": -0.207784 - lost,
        **rest,
        **more,
    }


def with_effects(w: AttentionWidget, heads: list[float | None] | None = None, **more: Any) -> AttentionWidget:
    """A widget that has been told what each segment and each head does."""
    names = ["first token", *LOST]
    counts = [w.facts["heads"]] * len(w.facts["layers"])
    lost = heads or [0.24, 0.03, -0.13, 0.0, 0.05, 0.61, None, None]
    done = len(LOST) + sum(one is not None for one in lost)
    effects = {
        "error": None,
        "at": 76,
        "text": " The key hangs on a",
        "target": {"token": 17, "text": " nail"},
        "targets": [
            {"at": 76, "token": 17, "text": " nail", "note": "p .8124"},
            {"at": 76, "token": 18, "text": " hook", "note": "p .0610"},
        ],
        "edit": "zero",
        "edits": [
            {"value": "zero", "name": "without it", "of": "set to zero"},
            {"value": "cut", "name": "weights to 0", "of": "with weights of 0"},
            {"value": "uniform", "name": "even", "of": "made even"},
        ],
        "unit": "nats",
        "segments": {
            "path": [],
            "names": names,
            "lost": [LOST.get(name, 0.01) for name in names],
            "dropped": "keys dropped in 2 layers",
        },
        "heads": {"counts": counts, "lost": lost},
        "done": done,
        "total": len(LOST) + len(lost),
        "run_seconds": 0.4,
        "seconds_left": 6.0,
        "state": "running",
        **more,
    }
    w._effects.__dict__["bring"] = lambda: None  # which would find no model
    w.set_trait("effects", effects)
    w.set_trait("effect_details", [detail({"segment": name, "path": []}, LOST.get(name, 0.01)) for name in names])
    return w


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    AttentionWidget.close_all()


def shown_effects(**more: Any) -> AttentionWidget:
    more = {"segment": "doc 3", "layer": 1, "head": 1, "segments_show": "effect", **more}
    return with_effects(story(**more))


WIDTHS = [320, 360, 519, 600, 760, 900, 1250, 1600]
HOSTS = ["plain-dark", "jupyter-contrast", "vscode-contrast-light", "sepia", "jupyter-large"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("width", "host"),
    [*((width, "plain-light") for width in WIDTHS), *((900, host) for host in HOSTS), (360, HOSTS[0])],
)
def test_nothing_is_amiss_at_any_width_and_in_any_theme(gallery: Show, width: int, host: str) -> None:
    shown = gallery(shown_effects(), host=host, width=width, height=2400)
    shown.wait_for_lines()
    shown.screenshot(f"effects-{width}-{host}")
    assert "Did it matter that the answer looked there" in text(shown, ".aw-seg-heading")
    shown.check()


def heard(shown: Gallery) -> str:
    return " ".join(shown.page.locator(".aw-segments > [aria-live]").inner_text().split())


def rows(shown: Gallery, part: str = "picture") -> list[str]:
    """Names, in order."""
    names: list[str] = shown.page.locator(f"[data-aw={part}] [data-at] bdi").all_inner_texts()
    return names


def test_words_numbers_and_orders(gallery: Show) -> None:
    shown = gallery(shown_effects(), width=1250)
    shown.wait_for_lines()
    check_mass_is_that_of_all_heads(shown)
    assert rows(shown) == ["doc 3", "question", "answer", "doc 2", "system", "doc 1", "first token", "doc 4"]
    question = shown.page.locator("[data-aw=picture] [data-at]").nth(1).inner_text().split("\n")
    assert question[-2:] == ["1.90", "needed, hardly looked at"]
    assert "before" in text(shown, ".aw-chances")
    listed = text(shown, ".aw-chances").split()
    assert listed[listed.index("nail") :][:3] == ["nail", ".8124", ".0752"]
    assert text(shown, ".aw-chances").endswith("50,249 more tokens .0514 .2793")
    assert text(shown, ".aw-seg-sums") == "Lost, “nail” 2.380 nats KL, this token 1.694 KL, answer 0.412"
    assert text(shown, "[data-aw=status]").startswith(
        "without doc 3 → nail log probability −0.207784 to −2.587784, lost 2.380000"
    )
    assert "keys dropped in 2 layers · 8 segments exact · 6 of 8 heads" in text(shown, "[data-aw=status]")

    shown.choose("Order", "by mass")
    by_mass = rows(shown)
    assert by_mass[0] == "answer"
    assert by_mass[-1] == "first token"
    shown.page.locator("[data-aw=picture]").focus()
    shown.page.keyboard.press("r")
    shown.settle()
    assert rows(shown) == shown.widgets[0].mass["keys"]
    shown.check()


def check_mass_is_that_of_all_heads(shown: Gallery) -> None:
    listed = {
        name: row.split("\n")[1]
        for name, row in zip(
            rows(shown), shown.page.locator("[data-aw=picture] [data-at]").all_inner_texts(), strict=True
        )
    }
    heads = {
        name: float("0" + row.split("\n")[1])
        for name, row in zip(
            rows(shown, "effect-heads"),
            shown.page.locator("[data-aw=effect-heads] [data-at]").all_inner_texts(),
            strict=True,
        )
    }
    assert len(heads) == 8
    assert float("0" + listed["doc 3"]) == pytest.approx(sum(heads.values()) / 8, abs=1e-4)
    assert listed["first token"] == "aside"


def test_pointing_pinning_and_going_inside(gallery: Show) -> None:
    w = shown_effects()
    shown = gallery(w, width=900)
    shown.wait_for_lines()
    page = shown.page
    page.locator("[data-aw=picture] [data-at]", has_text="doc 4").hover()
    shown.settle()
    assert text(shown, ".aw-panel-head") == "without doc 4"
    assert heard(shown).startswith("doc 4, mass .")
    assert heard(shown).endswith("lost −0.080 nats")
    page.locator("[data-aw=picture] [data-at]", has_text="doc 4").click()
    shown.wait_for_lines()
    assert w.segment == "doc 4"
    assert page.locator("[data-aw=picture] .aw-pill").inner_text() == "doc 4"

    picture = page.locator("[data-aw=picture]")
    shown.leave()
    picture.focus()
    for key in ("Home", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    shown.wait_for_lines()
    assert w.segment == "question"
    page.keyboard.press("Escape")
    shown.wait_for_lines()
    assert w.get_state("segment") == {"segment": None}

    page.locator("[data-aw=effect-heads] [data-at]").nth(1).click()  # a head: the picker follows
    shown.wait_for_lines()
    assert (w.layer, w.head) == (0, 0)
    assert text(shown, ".aw-panel-head") == "without head 0·0"
    shown.check()


def test_heads_as_a_grid(gallery: Show) -> None:
    w = shown_effects()
    shown = gallery(w, width=900)
    shown.wait_for_lines()
    grid = shown.page.locator("[data-aw=effect-grid]")
    box = grid.bounding_box()
    assert box is not None
    shown.page.mouse.move(box["x"] + 2.5 * 28, box["y"] + 12)
    shown.settle()
    assert heard(shown).startswith("head 0·2")
    assert heard(shown).endswith("lost −0.130 nats")
    assert shown.page.locator(".aw-fx-row[data-hovered]").count() == 1
    shown.leave()
    grid.focus()
    shown.page.keyboard.press("ArrowDown")  # there is no further layer
    shown.page.keyboard.press("ArrowRight")
    shown.settle()
    assert heard(shown) == "head 1·2, mass .2101, not yet run"
    shown.page.keyboard.press("Enter")
    shown.wait_for_lines()
    assert (w.layer, w.head) == (1, 2)
    assert "not yet run" in text(shown, ".aw-seg-matrix [data-aw=legend]")
    shown.check()


HOLLOW = """() => [...document.querySelectorAll(".aw-fx-row[data-at]")].map((row) => {
  const [bar, dot] = [row.querySelector(".aw-fx-plot > i"), row.querySelector(".aw-fx-plot > b")];
  return [bar && getComputedStyle(bar).backgroundColor === "rgba(0, 0, 0, 0)", dot === null];
})"""


@pytest.mark.thorough
@pytest.mark.parametrize("host", ["plain-light", "plain-dark", "vscode-contrast"])
def test_the_bar_of_what_was_not_run_is_hollow_and_the_legend_says_so(gallery: Show, host: str) -> None:
    shown = gallery(shown_effects(), host=host, width=900)
    shown.wait_for_lines()
    shown.screenshot(f"effects-not-yet-run-{host}")
    bars = [(hollow, unknown) for hollow, unknown in shown.page.evaluate(HOLLOW) if hollow is not None]
    assert {*bars} == {(True, True), (False, False)}
    assert "hollow: not yet run" in text(shown, ".aw-seg-legend")


PROGRESS = {  # state: what is spoken, what is written beside the bar
    "running": ("The model runs without each segment and each head.", "13 of 15 runs, about 6 s left Stop"),
    "stopped": ("Stopped.", "Stopped: 13 of 15 runs Resume"),
    "failed": ("Failed.", "13 of 15 runs The model's memory is full: give a shorter text. Try again"),
    "idle": ("", "13 of 15 runs Run"),
    "done": ("All runs are done.", ""),
}


def test_progress_says_how_far_it_is_and_what_can_be_done(gallery: Show) -> None:
    w = story(segment="doc 3", segments_show="effect")
    shown = gallery(with_effects(w), width=900)
    for state, (spoken, written) in PROGRESS.items():
        error = "the model's memory is full: give a shorter text" if state == "failed" else None
        done: dict[str, Any] = {"done": 15, "total": 15} if state == "done" else {}
        with_effects(w, error=error, state=state, **done)
        shown.finish()
        shown.wait_for_lines()
        progress = shown.page.locator("[data-aw=progress]")
        assert progress.locator("[aria-live]").text_content() == spoken
        assert progress.locator("[role=progressbar]").count() == (0 if state == "done" else 1)
        assert written == (text(shown, "[data-aw=progress] .aw-progress-line") if written else "")
        shown.check()


@pytest.mark.thorough
def test_without_a_model_it_says_why(gallery: Show) -> None:
    shown = gallery(story(segment="doc 3", segments_show="effect"), width=900)
    shown.wait_for_lines()
    assert "Where did the answer look" in text(shown, ".aw-seg-heading")
    shown.menu("More")
    item = shown.page.get_by_role("menuitemradio", name="effect", exact=False)
    assert item.get_attribute("aria-disabled") == "true"
    assert "needs a model: cap.widget(model=model, inputs=inputs)" in item.inner_text()
    item.click(force=True)
    shown.settle()
    assert shown.widgets[0].segments_show == "effect"
    assert "Where did the answer look" in text(shown, ".aw-seg-heading")


def test_words_lead_from_attention_to_effect_and_back(gallery: Show) -> None:
    w = with_effects(story(segment="doc 3"))
    shown = gallery(w, width=900)
    shown.wait_for_lines()
    assert "Where did the answer look" in text(shown, ".aw-seg-heading")
    shown.page.get_by_role("radio", name="effect").click()
    shown.wait_for_lines()
    assert w.segments_show == "effect"
    assert "Did it matter" in text(shown, ".aw-seg-heading")
    shown.page.get_by_role("radio", name="attention").click()
    shown.wait_for_lines()
    assert "Where did the answer look" in text(shown, ".aw-seg-heading")
    shown.screenshot("effects-attention")
    shown.check()


def tint_of(shown: Gallery, place: int) -> int:
    """How much more red than blue there is left of a picture of the heads view, which are all in one row."""
    picture = shown.page.locator("[data-aw=picture]")
    pixels = np.asarray(Image.open(io.BytesIO(picture.screenshot())).convert("RGB"), dtype=int)
    scale = shown.page.evaluate("() => devicePixelRatio")
    red, _, blue = pixels[int(33 * scale), int((4 + 74 * place - 2) * scale)]  # 58 pixels every 74, from 4 on
    return int(red - blue)


@pytest.mark.parametrize(
    ("width", "host"), mostly_thorough((900, "plain-light"), (900, "plain-dark"), (360, "plain-light"))
)
def test_heads_view_tints_and_orders(gallery: Show, width: int, host: str) -> None:
    w = with_effects(story(view="heads", bar="effect", order="effect"))
    shown = gallery(w, width=width, host=host)
    shown.wait_for_lines()
    shown.screenshot(f"effects-heads-{width}-{host}")
    assert "what “nail” loses without the head" in text(shown, ".aw-all-heads > .aw-prompt")
    assert "13 of 15 runs, about 6 s left" in text(shown, ".aw-fx-runs")
    picture = shown.page.locator("[data-aw=picture]")
    if width == 900:  # from the largest loss over a gain to what was not run
        assert tint_of(shown, 0) > 60
        assert tint_of(shown, 5) < -40
        assert abs(tint_of(shown, 7)) < 20
    said = shown.page.locator(".aw-all-heads > [aria-live]")
    picture.focus()
    heard = {}
    for key in ("Home", "End"):
        shown.page.keyboard.press(key)
        shown.page.keyboard.press("ArrowDown" if key == "End" else key)  # to the last row
        shown.settle()
        heard[key] = said.inner_text()
    assert heard == {
        "Home": "layer 1, head 1, loss without it .6100 nats",  # of which most is lost
        "End": "layer 1, head 3, loss without it not run",
    }
    shown.check()


@pytest.mark.parametrize(
    ("width", "host"), mostly_thorough((900, "plain-light"), (900, "plain-dark"), (360, "plain-light"))
)
def test_without_it_in_the_panel(gallery: Show, width: int, host: str) -> None:
    query, key = 90, 53
    w = with_effects(story(view="heatmap", layer=1, head=1, segment="doc 3", query=query, key=key))
    edge = {"layer": 1, "head": 1, "query": query, "key": key}
    w.set_trait("effect_details", [*w.effect_details, detail(edge, 0.5)])
    shown = gallery(w, width=width, host=host)
    shown.wait_for_lines()
    words = shown.page.locator(".aw-without [role=radio]").all_inner_texts()
    assert words[0] == "this edge lost 0.500"
    assert words[2:] == ["doc 3 lost 2.380", "head 1·1 lost 0.610"]
    assert "lost" not in words[1]  # it was not run
    assert words[1].startswith("key ")
    assert shown.page.locator(".aw-without .aw-chances").count() == 0
    shown.page.get_by_role("radio", name="this edge").click()
    shown.settle()
    assert "Lost, “nail” 0.500 nats" in text(shown, ".aw-without .aw-seg-sums")
    shown.page.get_by_role("radio", name="doc 3").click()
    shown.settle()
    assert "Lost, “nail” 2.380 nats" in text(shown, ".aw-without .aw-seg-sums")
    shown.screenshot(f"effects-panel-{width}-{host}")
    shown.check()
    shown.page.get_by_role("radio", name="doc 3").click()  # again: it folds
    shown.settle()
    assert shown.page.locator(".aw-without .aw-chances").count() == 0


@pytest.mark.thorough
@pytest.mark.parametrize("view", ["graph", "stages", "heads", "text"])
def test_without_it_in_views_without_a_panel(gallery: Show, view: str) -> None:
    w = with_effects(story(view=view, layer=1, head=1, query=90))
    w.set_trait("effect_details", [detail({"layer": 1, "head": 1}, 0.61)])
    shown = gallery(w, width=900)
    shown.wait_for_lines()
    shown.page.get_by_role("radio", name="head 1·1").click()
    shown.settle()
    assert shown.page.locator(".aw-without").count() == 1
    assert "Lost, “nail” 0.610 nats" in text(shown, ".aw-without .aw-seg-sums")
    assert text(shown, ".aw-without [aria-live]") == "without head 1·1, lost 0.610 nats"
    shown.screenshot(f"effects-below-{view}")
    shown.check()


@pytest.mark.thorough
def test_a_progress_report_does_not_build_the_page_anew(gallery: Show) -> None:
    w = shown_effects()
    shown = gallery(w, width=900)
    shown.wait_for_lines()
    picture = shown.page.locator("[data-aw=picture]")
    picture.focus()
    with_effects(w, heads=[0.24, 0.03, -0.13, 0.0, 0.05, 0.61, 0.2, 0.1], state="done")
    shown.page.keyboard.press("ArrowDown")
    shown.page.keyboard.press("Enter")  # what Python sends with its answer holds what is new
    shown.wait_for_lines()
    assert picture.evaluate("(node) => node === document.activeElement")
    assert shown.page.locator("[data-aw=progress] [role=progressbar]").count() == 0
    assert len(rows(shown, "effect-heads")) == 8


@pytest.mark.thorough
def test_two_hundred_segments_and_many_heads(gallery: Show) -> None:
    w = long_story(answer=300)
    names = ["first token", *(f"passage {at}" for at in range(200)), "answer"]
    lost = [0.001 * at for at in range(len(names))]
    with_effects(w, heads=[0.5, None])
    effects = {**w.effects, "segments": {"path": [], "names": names, "lost": lost, "dropped": "keys dropped"}}
    w.set_trait("effects", effects)
    w.segments_show = "effect"
    shown = gallery(w, width=900)
    shown.wait_for_lines()
    assert len(rows(shown)) == 12
    assert rows(shown)[0] == "answer"
    assert "190 more segments, lost at most .19" in text(shown, ".aw-fx-more")
    shown.screenshot("effects-many")
    shown.check()


@pytest.mark.thorough
@pytest.mark.parametrize(("edit", "of"), [("uniform", "made even"), ("cut", "with weights of 0")])
def test_another_edit_is_in_every_word(gallery: Show, edit: str, of: str) -> None:
    w = with_effects(story(segment="doc 3", segments_show="effect"), edit=edit)
    w.set_trait("effect_details", [detail({"segment": "doc 3", "path": []}, edit=edit)])
    shown = gallery(w, width=900)
    shown.wait_for_lines()
    assert text(shown, ".aw-panel-head") == f"doc 3 {of}"
    assert text(shown, "[data-aw=status]").startswith(f"doc 3 {of} → nail")
    assert text(shown, ".aw-seg-caption") == f"mean mass over 8 heads, each segment {of}"
    assert f"Each head {of}" in shown.page.locator(".aw-segments").inner_text()


@pytest.mark.thorough
def test_why_nothing_can_be_run_is_said(gallery: Show) -> None:
    none: dict[str, Any] = {
        "at": None,
        "target": None,
        "targets": [],
        "segments": None,
        "heads": None,
        "done": 0,
        "total": 0,
    }
    error = "the inputs of the model are not known: give cap.widget(model=model, inputs=inputs)"
    w = with_effects(story(segments_show="effect"), error=error, state="failed", **none)
    w.set_trait("effect_details", [])
    shown = gallery(w, width=900)
    shown.wait_for_lines()
    assert text(shown, ".aw-seg-list") == (
        "The inputs of the model are not known: give cap.widget(model=model, inputs=inputs)."
    )
    shown.check()


@pytest.mark.thorough
def test_without_a_kernel_it_stopped_and_what_is_known_stays(gallery: Show) -> None:
    shown = gallery(shown_effects(), width=900, live=False)
    shown.page.locator("[data-aw=picture] [data-at]", has_text="question").click()
    shown.page.wait_for_function("() => /Stopped: 13 of 15 runs/.test(document.body.innerText)", timeout=20_000)
    assert shown.page.locator("[data-aw=progress] button").count() == 0
    assert text(shown, ".aw-panel-head") == "without question"
    assert "Lost, “nail” 1.900 nats" in text(shown, ".aw-seg-sums")


@pytest.mark.thorough
def test_menus_are_folded_where_room_is_little(gallery: Show) -> None:
    w = shown_effects()
    shown = gallery(w, width=360)
    shown.wait_for_lines()
    shown.choose("More", "by mass")
    assert rows(shown)[0] == "answer"
    for item, edit in (("even", "uniform"), ("weights to 0", "cut")):
        shown.choose("More", item)
        shown.wait_for_lines()
        assert w.effect_edit == edit


@pytest.mark.thorough
@pytest.mark.parametrize("spacing", [0, 2, 6])
@pytest.mark.parametrize("width", [900, 600])
def test_what_is_shown_can_be_chosen_on_the_page_whatever_the_font(gallery: Show, width: int, spacing: int) -> None:
    """In the toolbar, or where words are too wide for that above the view; at 900 px the views stay words."""
    w = shown_effects()
    shown = gallery(w, width=width + 4)
    wide = f".aw-toolbar *, .aw-seg-reading * {{ letter-spacing: {spacing}px !important }}"
    shown.page.add_style_tag(content=wide)
    shown.page.set_viewport_size({"width": width, "height": 1400})  # another width: it is measured again
    shown.wait_for_lines()
    words = shown.page.get_by_role("radiogroup", name="Show")
    assert words.locator("[role=radio]:visible").all_inner_texts() == ["attention", "effect"]
    assert width < 900 or shown.page.get_by_role("tab").count() == 6
    menus = shown.page.locator(".aw-menu[aria-label=Target] > button, .aw-menu[aria-label=Edit] > button")
    assert [" ".join(menu.split()) for menu in menus.all_inner_texts()] == ["Target nail", "Edit without it"]
    shown.screenshot(f"effects-menus-{width}-{spacing}")
    shown.check()
    menus.nth(1).click()
    shown.page.get_by_role("menuitemradio", name="even").click()
    shown.wait_for_lines()
    assert w.effect_edit == "uniform"
    menus.nth(0).click()
    shown.page.get_by_role("menuitemradio", name="hook").click()
    shown.wait_for_lines()
    assert w.effect_target == (76, 18)
    shown.page.get_by_role("radio", name="attention").click()
    shown.wait_for_lines()
    assert w.segments_show == "attention"
    assert words.locator("[role=radio]:visible").all_inner_texts() == ["attention", "effect"]
    measures = shown.page.get_by_role("radiogroup", name="Measure")
    assert measures.locator("[role=radio]:visible").all_inner_texts() == ["mass", "per token", "lift"]
    shown.check()


@pytest.mark.thorough
@pytest.mark.parametrize("width", [900, 360])
def test_axe_finds_nothing(gallery: Show, width: int) -> None:
    shown = gallery(shown_effects(), width=width)
    shown.wait_for_lines()
    problems: list[str] = []
    for theme in ("light", "dark", "contrast"):
        look(shown, theme)
        problems += found(shown)
    assert not problems, "\n".join(problems)
