"""Running text and images, drawn by the real front-end: nothing amiss at any width, in any theme; what clicks do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gallery import Gallery
from lanes import mostly_thorough

from attnwidget import Attention, AttentionStack, AttentionWidget
from attnwidget.samples import load_sample

Show = Callable[..., Gallery]

ARABIC = [
    "كتب", "الطالب", "رسالة", "طويلة", "إلى", "صديقه", "القديم", "ثم", "انتظر",
    "جوابه", "أياما", "كثيرة", "ولم", "يصل", "شيء", "من", "البريد",
]  # fmt: skip
BYTES = [
    "<|endoftext|>", "def", "Ġmill", "er", "(", "x", "):", "Ċ", "ĠĠĠ", "Ġreturn", "Ġ\"", "Ã©", "âĤ", "¬", "\"", "Ġ#",
    "ĠðŁ", "ĺ", "Ĭ", "Ċ",
]  # fmt: skip


def bank(**more: Any) -> AttentionWidget:
    q, k, v, tokens, mask = load_sample("bank")
    return AttentionWidget(q, k, v, **{"tokens": tokens, "mask": mask, "layer": 5, "head": 7, "view": "text", **more})


def random(queries: int, keys: int, **more: Any) -> AttentionWidget:
    generator = torch.Generator().manual_seed(queries * 1000 + keys)
    q, k = torch.randn(1, 2, queries, 16, generator=generator), torch.randn(1, 2, keys, 16, generator=generator)
    return AttentionWidget(1.5 * q, k, **{"view": "text", **more})


def patches(**more: Any) -> AttentionWidget:
    """Of 64 patches [CLS] attends to the ninth."""
    scores = torch.randn(2, 65, 65, generator=torch.Generator().manual_seed(1))
    scores[:, 0, 9] = 9
    tokens = ["[CLS]", *(f"{at // 8}, {at % 8}" for at in range(64))]
    image = torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(2))
    more = {"tokens": tokens, "grid": (8, 8), "image": image, "view": "image", "query": 0, **more}
    return AttentionWidget.from_weights(scores.softmax(-1), dims="hqk", **more)


CASES: dict[str, Callable[[], AttentionWidget]] = {
    "text": lambda: bank(query=14),
    "nothing": bank,
    "scores": lambda: bank(query=14, key=16, stage="scaled"),
    "key": lambda: bank(key=14, direction="key"),
    "bytes": lambda: random(20, 20, tokens=BYTES, query=12, is_causal=True),
    "arabic": lambda: random(len(ARABIC), len(ARABIC), tokens=ARABIC, query=3),
    "cross": lambda: random(4, len(ARABIC), tokens=["four", "words", "of", "text"], key_tokens=ARABIC, query=1),
    "positions": lambda: random(60, 60, query=8),
    "image": patches,
    "grid": lambda: random(65, 65, view="image", grid=(8, 8), query=30, is_causal=True),
    "words over an image": lambda: random(
        4, 64, view="image", grid=(8, 8), tokens=["a", "red", "old", "boat"], query=1
    ),
}


@pytest.mark.parametrize("case", mostly_thorough("cross", *CASES))
@pytest.mark.parametrize(
    ("host", "width"), mostly_thorough(("jupyter-light", 520), ("jupyter-light", 960), ("jupyter-dark", 360))
)
def test_nothing_is_amiss(gallery: Show, case: str, host: str, width: int) -> None:
    shown = gallery(CASES[case](), host=host, width=width)
    shown.wait_for_lines()
    shown.screenshot(f"reading-{case.replace(' ', '-')}-{width}")
    shown.check()


@pytest.mark.thorough
@pytest.mark.parametrize("host", ["jupyter-contrast", "vscode-dark", "vscode-contrast-light", "sepia", "jupyter-large"])
@pytest.mark.parametrize("case", ["text", "image"])
def test_in_every_host(gallery: Show, case: str, host: str) -> None:
    shown = gallery(CASES[case](), host=host, width=900)
    shown.wait_for_lines()
    shown.screenshot(f"reading-{case}-{host}")
    shown.check()


def test_a_word_is_pinned_and_colored_by_its_exact_weights(gallery: Show) -> None:
    w = bank()
    shown = gallery(w)
    shown.page.locator(".aw-word").get_by_text("lent", exact=True).click()
    shown.wait_for_lines()
    at = w.query
    assert at is not None
    assert w.tokens[0][at] == "lent"
    weights = w.weights(at)
    special = {i for i, token in enumerate(w.tokens[0]) if token.startswith("[")}
    most = max(float(weights[i]) for i in range(len(weights)) if i not in special)
    expected = {i for i in range(len(weights)) if float(weights[i]) >= 0.05 * most} - special - {at}
    tinted = shown.page.eval_on_selector_all(".aw-tinted", "all => all.map(one => Number(one.dataset.at))")
    assert set(tinted) == expected


@pytest.mark.thorough
def test_pinning_and_pointing_move_no_line(gallery: Show) -> None:
    shown = gallery(bank(), width=360)
    first = "all => all.map(line => Number(line.querySelector('[data-at]').dataset.at))"
    before = shown.page.eval_on_selector_all(".aw-line", first)
    assert len(before) > 1
    height = shown.page.locator(".aw-passages").bounding_box()
    for word in shown.page.locator(".aw-word").all()[:6]:
        word.hover()
        word.click()
        shown.settle()
        assert shown.page.eval_on_selector_all(".aw-line", first) == before
    assert shown.page.locator(".aw-passages").bounding_box() == height


def test_of_a_long_text_little_is_in_the_page(gallery: Show) -> None:
    words = ["the", "river", "bank", "lent", "money", "to", "an", "old", "miller", "fished", "soft", "stones", "near"]
    w = random(10_000, 10_000, is_causal=True, tokens=[words[at * 7 % len(words)] for at in range(10_000)], query=9_000)
    shown = gallery(w)
    shown.wait_for_lines()
    assert shown.page.locator("[data-at]").count() < 600
    pinned = shown.page.locator("[data-at='9000']")
    box, frame = pinned.bounding_box(), shown.page.locator(".aw-flow").bounding_box()
    assert box is not None
    assert frame is not None
    assert frame["y"] <= box["y"] <= frame["y"] + frame["height"]
    shown.page.locator(".aw-flow").evaluate("box => { box.scrollTop = 0 }")
    shown.settle()
    assert shown.page.locator("[data-at='0']").count() == 1
    assert shown.page.locator("[data-at]").count() < 600
    shown.check()


def test_a_patch_is_pinned_and_the_image_is_shown_alone(gallery: Show) -> None:
    w = patches()
    shown = gallery(w)
    shown.wait_for_lines()
    box = shown.page.locator(".aw-patches").bounding_box()
    assert box is not None
    color = """canvas => { const [x, y] = [canvas.width * 0.5 / 8, canvas.height * 1.5 / 8];
        return [...canvas.getContext("2d").getImageData(x, y, 1, 1).data] }"""
    over = shown.page.locator(".aw-patches canvas").nth(1)
    shown.check()
    strongest = over.evaluate(color)  # [CLS] attends to the ninth position: row 1, column 0
    shown.page.mouse.click(box["x"] + box["width"] * 3.5 / 8, box["y"] + box["height"] * 2.5 / 8)
    shown.leave()
    shown.wait_for_lines()
    assert w.query == 1 + 2 * 8 + 3
    assert over.evaluate(color) != strongest
    shown.page.get_by_text("show the image alone").click()
    shown.settle()
    assert over.evaluate("canvas => getComputedStyle(canvas).opacity") == "0"


@pytest.mark.thorough
def test_without_a_kernel_it_still_draws(gallery: Show) -> None:
    for case in (CASES["text"], patches):
        shown = gallery(case(), live=False)
        tinted = shown.page.locator(".aw-tinted").count()
        assert tinted > 0 or shown.page.locator(".aw-patches").count() == 1
        assert shown.page.locator(".aw-ranks .aw-rank").count() > 5


def test_words_on_demand(gallery: Show) -> None:
    w = random(5, 5, tokens=["the", "mill", "##er", "##s", "lent"], query=3)
    shown = gallery(w)
    shown.choose("More", "words")
    shown.wait_for_lines()
    assert (w.pieces, w.query, w.facts["queries"]) == ("words", 1, 3)
    assert shown.page.locator(".aw-word").all_inner_texts() == ["the", "millers", "lent"]
    shown.check()


@pytest.mark.parametrize("how", mostly_thorough("mean", "max"))
def test_several_heads_are_read_as_one(gallery: Show, how: str) -> None:
    """What is colored, listed and said is of the heads together, not of the selected one."""
    w = bank(query=14, heads=[2, 7, 9], head=7, combine=how)
    shown = gallery(w, width=960)
    shown.wait_for_lines()
    assert isinstance(w.attention, AttentionStack)
    layer = w.attention[5]
    each = torch.stack([layer.block("weights", head=head, queries=14)[0] for head in (2, 7, 9)])
    weights = (each.mean(0) if how == "mean" else each.amax(0)).tolist()
    special = {i for i, token in enumerate(w.tokens[0]) if token.startswith("[")}
    most = max(weight for i, weight in enumerate(weights) if i not in special)
    expected = {i for i, weight in enumerate(weights) if weight >= 0.05 * most} - special - {14}
    tinted = "all => all.map(one => Number(one.dataset.at))"
    assert set(shown.page.eval_on_selector_all(".aw-tinted", tinted)) == expected
    first = shown.page.locator(".aw-ranks .aw-rank").first.inner_text().split("\n")
    assert float(first[-1]) == pytest.approx(max(weights), abs=6e-5)
    words = "mean" if how == "mean" else "maximum"
    assert f"{words} of heads 2, 7, 9" in str(shown.page.locator(".aw-passages").get_attribute("aria-label"))
    assert f"{words} of heads 2, 7, 9" in shown.page.locator(".attnwidget").inner_text()
    shown.screenshot(f"reading-{how}-of-heads")
    shown.check()


@pytest.mark.thorough
def test_an_image_shows_several_heads_as_one(gallery: Show) -> None:
    w = patches(heads=[0, 1], combine="mean")
    shown = gallery(w, width=960)
    shown.wait_for_lines()
    assert isinstance(w.attention, Attention)
    mean = torch.stack([w.attention.block("weights", head=head, queries=0)[0] for head in (0, 1)]).mean(0)
    listed = shown.page.locator(".aw-ranks .aw-rank").first.inner_text().split("\n")
    assert float(listed[-1]) == pytest.approx(float(mean.max()), abs=6e-5)
    shown.screenshot("reading-image-of-heads")
    shown.check()
