"""The view "segments": where the answer looked, from a widget that has segments, as a reader uses and hears it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gallery import Gallery
from test_axe import found, look

from attnwidget import AttentionWidget

Show = Callable[..., Gallery]

DOCUMENTS = {
    "system": "Answer from the documents alone and name the one you used .",
    "doc 1": "The mill by the river was built in 1874 by two brothers who came with little money .",
    "doc 2": "Bread was baked on Fridays . The oven stood behind the house and took half a day to heat .",
    "doc 3": "He hung the key on a nail beside the kitchen door . His daughter put it there after the flood of 1902 .",
    "doc 4": "The church has a bell that is rung at noon and for storms .",
    "question": "Where is the key kept , and since when ?",
    "answer": "The key hangs on a nail beside the kitchen door . The daughter put it there after the flood of 1902 .",
}
SPOKEN = "answer token nail 103, doc 3, mass .{}, {} times even"


def tensors() -> tuple[list[str], dict[str, tuple[int, int]], torch.Tensor, torch.Tensor]:
    """Tokens, where each document is, q and k: heads look for the same words, some more than others."""
    tokens = ["[CLS]"]
    spans: dict[str, tuple[int, int]] = {}
    for name, text in DOCUMENTS.items():
        words = text.split()
        spans[name] = (len(tokens), len(tokens) + len(words))
        tokens += words
    return tokens, spans, *meanings(tokens, (2, 4), torch.Generator().manual_seed(1))


def story(**more: Any) -> AttentionWidget:
    """A text of seven segments, doc 3 in two sentences."""
    tokens, spans, q, k = tensors()
    start, stop = spans["doc 3"]
    middle = tokens.index(".", start) + 1
    inside = {"first sentence": (start, middle), "second sentence": (middle, stop)}
    segments: dict[str, Any] = {**spans, "doc 3": [(start, stop), inside]}
    return AttentionWidget(q, k, **{"tokens": tokens, "segments": segments, "view": "segments", **more})


def meanings(
    tokens: list[str], heads: tuple[int, int], generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """q and k, (L, 1, H, Q, 24), in which the same word is alike, and so is what stands around it."""
    vectors = {word: torch.randn(24, generator=generator) for word in dict.fromkeys(map(str.lower, tokens))}
    own = torch.stack([vectors[word.lower()] for word in tokens])
    around = torch.stack([own[max(0, at - 3) : at + 4].mean(0) for at in range(len(tokens))])
    sharp = torch.rand(*heads, 2, generator=generator)
    x = sharp[..., :1, None] * own + 2 * sharp[..., 1:, None] * around
    q = (x + 0.3 * torch.randn(x.shape, generator=generator))[:, None]
    return q, (x + 0.3 * torch.randn(x.shape, generator=generator))[:, None]


def long_story(segments: int = 200, answer: int = 2000) -> AttentionWidget:
    generator = torch.Generator().manual_seed(2)
    words = ["river", "stone", "key", "mill", "and", "bread", "winter", ".", "door", "nail"]
    tokens = ["[CLS]", *(words[at] for at in torch.randint(len(words), (segments * 5 + answer,), generator=generator))]
    spans = {f"passage {at}": (1 + 5 * at, 6 + 5 * at) for at in range(segments)}
    spans["answer"] = (1 + 5 * segments, len(tokens))
    q, k = torch.randn(2, 1, 2, len(tokens), 16, generator=generator)
    return AttentionWidget(q, k, tokens=tokens, segments=spans, is_causal=True, view="segments")


@pytest.fixture
def nail() -> int:
    """The position of "nail" in the answer."""
    words = [word for text in DOCUMENTS.values() for word in text.split()]
    return len(words) - DOCUMENTS["answer"].split()[::-1].index("nail")


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    AttentionWidget.close_all()


def ready(shown: Gallery) -> None:
    """Have all segments and heads computed and shown."""
    shown.finish()
    shown.page.wait_for_function("() => !/so far/.test(document.querySelector('.aw-seg-foot')?.textContent ?? '')")
    shown.wait_for_lines()


def text(shown: Gallery, part: str) -> str:
    return " ".join(shown.page.locator(part).first.inner_text().split())


def heard(shown: Gallery) -> str:
    return " ".join(shown.page.locator(".aw-segments > [aria-live]").inner_text().split())


def masses(rows: slice | list[int], keys: slice) -> tuple[float, float]:
    """What queries of layer 1, head 1 give some keys in float64, without the first token; and even attention would."""
    _, _, *both = tensors()
    q, k = (np.asarray(one[1, 0, 1], dtype=np.float64) for one in both)
    scores = q @ k.T / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    left = weights[rows][:, 1:].sum(-1).mean()
    return weights[rows][:, keys].sum(-1).mean() / left, (keys.stop - keys.start) / (len(q) - 1)


WIDTHS = [320, 360, 519, 600, 760, 900, 1250, 1600]
HOSTS = ["plain-dark", "jupyter-contrast", "vscode-contrast-light", "sepia", "jupyter-large"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("width", "host"),
    [*((width, "plain-light") for width in WIDTHS), *((900, host) for host in HOSTS), (360, HOSTS[0])],
)
def test_nothing_is_amiss_at_any_width_and_in_any_theme(gallery: Show, nail: int, width: int, host: str) -> None:
    shown = gallery(story(query=nail, segment="doc 3", layer=1, head=1), host=host, width=width, height=2400)
    shown.wait_for_lines()
    shown.screenshot(f"segments-{width}-{host}")
    assert "Where did the answer look" in text(shown, ".aw-seg-heading")
    assert text(shown, ".aw-panel-head").endswith("attends to")
    shown.check()


BAR_ENDS = """() => {
  const written = (node) => {
    const range = document.createRange();
    range.selectNodeContents(node);
    return range.getBoundingClientRect();
  };
  const keys = [...document.querySelectorAll("button.aw-seg-key")].map((row) => {
    const bar = row.querySelector(".aw-seg-bar").getBoundingClientRect();
    const [name, sub] = ["aw-seg-name", "aw-seg-name sub"].map((part) => row.querySelector("." + part));
    return bar.left - Math.max(name.getBoundingClientRect().right, sub.getBoundingClientRect().right);
  });
  const [sorted, other] = ["true", "false"].map((pressed) =>
    document.querySelector(`.aw-seg-header button[aria-pressed=${pressed}]`).getBoundingClientRect());
  const numbers = [...document.querySelectorAll(".aw-seg-head .aw-number")].map(written);
  const sheet = document.querySelector(".aw-seg-heads .aw-seg-sheet").getBoundingClientRect();
  const last = document.querySelector(".aw-seg-header button:last-child").getBoundingClientRect();
  const unit = Number.parseFloat(getComputedStyle(document.querySelector(".attnwidget")).fontSize) / 12;
  return { keys, numbers: numbers.map(({ left }) => left - (sorted.left + other.width - 4 * unit)),
    right: sheet.right - Math.max(last.right - 4 * unit, ...numbers.map(({ right }) => right)) };
}"""


@pytest.mark.thorough
@pytest.mark.parametrize("width", [905, 1250])
def test_all_of_the_mass_is_written_beside_the_longest_bar(gallery: Show, width: int) -> None:
    tokens, spans, *_ = tensors()
    mask = torch.ones(len(tokens), len(tokens)).tril().bool()
    mask[slice(*spans["answer"])] = False
    mask[slice(*spans["answer"]), slice(*spans["doc 3"])] = True
    shown = gallery(story(segment="doc 3", mask=mask), width=width)
    ready(shown)
    assert set(shown.page.locator(".aw-seg-head .aw-number").all_inner_texts()) == {"1.000"}
    assert min(shown.page.evaluate(BAR_ENDS)["numbers"]) >= 2


@pytest.mark.thorough
@pytest.mark.parametrize(("width", "host"), [(905, "plain-light"), (1250, "jupyter-large"), (600, "vscode-dark")])
@pytest.mark.parametrize("measure", ["mass", "per_token", "lift"])
def test_names_and_numbers_end_before_the_bars(gallery: Show, nail: int, measure: str, width: int, host: str) -> None:
    tokens, spans, *_ = tensors()
    at = next(at for at in range(*spans["doc 3"]) if tokens[at] == "nail")
    tokens[at] = tokens[nail] = "chandelier hook"
    w = story(query=nail, segment="doc 3", layer=1, head=1, tokens=tokens, measure=measure)
    shown = gallery(w, width=width, host=host)
    ready(shown)
    # as wide a scrollbar as systems have that do not lay it over what scrolls
    shown.page.add_style_tag(content=".aw-seg-heads > .aw-seg-scroller { border-right: 15px solid gray }")
    shown.settle()
    gaps = shown.page.evaluate(BAR_ENDS)
    assert len(gaps["keys"]) > 0
    assert min(gaps["keys"]) >= 0
    assert len(gaps["numbers"]) == 8
    assert min(gaps["numbers"]) >= 2
    assert gaps["right"] >= -0.5
    assert shown.page.locator("button.aw-seg-key bdi").first.inner_text() == "chandelier hook"


@pytest.mark.thorough
def test_in_forced_colors(gallery: Show, nail: int) -> None:
    shown = gallery(story(query=nail, segment="doc 3"), width=900, forced_colors="active")
    shown.wait_for_lines()
    shown.screenshot("segments-forced")
    shown.check()


def test_numbers_are_those_of_float64(gallery: Show, nail: int) -> None:
    w = story(query=nail, segment="doc 3", layer=1, head=1)
    shown = gallery(w, width=900)
    _, spans, *_ = tensors()
    start, stop = spans["doc 3"]
    mass, even = masses([nail], slice(start, stop))
    whole, _ = masses(slice(*spans["answer"]), slice(start, stop))
    listed = {"mass": f"{mass:.4f}", "per_token": f"{mass / (stop - start):.4f}", "lift": f"×{mass / even:.1f}"}
    for measure, number in listed.items():
        w.set_trait("measure", measure)
        shown.finish()
        shown.wait_for_lines()
        row = " ".join(shown.page.locator(".aw-seg-row[aria-current]").inner_text().split())
        assert number.removeprefix("0") in row
        assert f"mass {mass:.6f}" in text(shown, "[data-aw=status]")
        assert f"lift {mass / even:.2f}" in text(shown, "[data-aw=status]")
        assert "Whole answer" in text(shown, ".aw-seg-sums")
        if measure == "mass":
            assert f"{whole:.4f}".removeprefix("0") in text(shown, ".aw-seg-sums")
            pinned = float("0" + row.split()[2])
            keys = shown.page.locator(".aw-seg-key .aw-number").all_inner_texts()
            numbers = [float("0" + one if one.startswith(".") else one.replace("−", "-")) for one in keys]
            assert sum(numbers) == pytest.approx(pinned, abs=1e-3)
        assert "Where did the answer look" in text(shown, ".aw-seg-heading")
        assert text(shown, ".aw-panel-head").endswith("attends to")
        shown.check()


def test_pointing_pinning_down_and_back(gallery: Show, nail: int) -> None:
    w = story(layer=1, head=1)
    shown = gallery(w, width=900)
    ready(shown)
    page = shown.page
    word = page.locator(".aw-seg-word", has_text="nail").first
    box = word.bounding_box()
    assert box is not None
    x = box["x"] + box["width"] / 2
    base = box["y"] - 8  # the lowest band of its stack
    page.mouse.move(x, base)
    shown.settle()
    assert heard(shown).startswith("answer token nail 103, ")
    assert word.get_attribute("data-hovered") is not None
    page.mouse.click(x, base)
    shown.wait_for_lines()
    assert (w.query, w.key) == (nail, None)
    pinned = w.segment
    assert pinned is not None
    assert word.get_attribute("class") == "aw-seg-word aw-pill"

    page.locator(".aw-seg-row[title='doc 3']").click()  # another segment: the token stays
    shown.wait_for_lines()
    assert (w.query, w.segment) == (nail, "doc 3")
    page.locator(".aw-seg-row[title='doc 3']").click()  # the pin again: what is inside
    shown.wait_for_lines()
    assert w.segment_path == ["doc 3"]
    assert page.locator(".aw-seg-row[title='first sentence']").count() == 1
    assert "outside doc 3" in text(shown, ".aw-seg-rows")
    shown.screenshot("segments-inside")
    shown.check()

    page.locator(".aw-seg-row[title='first sentence']").click()
    shown.wait_for_lines()
    page.locator(".aw-seg-row[title='first sentence']").click()  # nothing inside: the cells
    shown.wait_for_lines()
    assert w.view == "heatmap"
    assert page.locator(".aw-plot[data-zoomed]").count() == 1
    assert text(shown, ".aw-back-slot") == "‹ segments answer → first sentence"
    shown.screenshot("segments-cells")
    shown.check()
    page.locator("[data-aw=picture]").focus()
    page.keyboard.press("Backspace")
    shown.wait_for_lines()
    assert str(w.view) == "segments"
    page.locator("[data-aw=picture]").focus()
    page.keyboard.press("Backspace")  # one level up
    shown.wait_for_lines()
    assert (w.segment_path, w.segment) == ([], "doc 3")


def test_by_keys_alone(gallery: Show, nail: int) -> None:
    w = story(layer=1, head=1)
    shown = gallery(w, width=900)
    ready(shown)
    page = shown.page
    page.locator("[data-aw=picture]").focus()
    words = DOCUMENTS["answer"].split()
    for _ in range(words.index("nail") + 1):
        page.keyboard.press("ArrowRight")
    for _ in range(4):
        page.keyboard.press("ArrowUp")
    assert heard(shown).startswith("answer token nail 103, doc 3, mass .")
    assert " times even" in heard(shown)
    page.keyboard.press("Enter")
    shown.wait_for_lines()
    assert (w.query, w.segment) == (nail, "doc 3")
    page.keyboard.press("r")
    page.keyboard.press("r")
    shown.settle()
    assert w.measure == "lift"
    page.keyboard.press("End")
    assert heard(shown).startswith("answer token . 119, doc 3")
    page.keyboard.press("?")
    page.keyboard.press("?")
    assert "previous, next token" in text(shown, ".aw-card")
    page.keyboard.press("Escape")
    page.locator("[data-aw=picture]").focus()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    shown.settle()
    assert [w.query, w.segment] == [None, None]

    page.locator("[data-aw=segment-heads]").focus()
    page.keyboard.press("ArrowRight")
    shown.wait_for_lines()
    assert w.segment == "system"
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    shown.wait_for_lines()
    assert w.segment == "doc 3"
    best = page.locator(".aw-seg-id").first.inner_text()
    page.keyboard.press("Home")
    assert heard(shown).startswith(f"layer {best[0]} head {best[2]}, answer, doc 3")
    page.keyboard.press("Enter")
    shown.wait_for_lines()
    assert f"{w.layer}·{w.head}" == best

    page.locator("[data-aw=segment-matrix]").focus()
    page.keyboard.press("ArrowUp")
    assert heard(shown).startswith("question, doc 3")
    page.keyboard.press("Enter")
    shown.wait_for_lines()
    assert w.asking == "question"
    assert "Where did" in text(shown, ".aw-seg-heading")


def test_heads_are_sorted_and_a_click_selects_one(gallery: Show) -> None:
    w = story(segment="doc 3")
    shown = gallery(w, width=900)
    ready(shown)
    numbers = [float("0" + one) for one in shown.page.locator(".aw-seg-head .aw-number").all_inner_texts()]
    assert len(numbers) == 8
    assert numbers == sorted(numbers, reverse=True)
    shown.page.get_by_role("button", name="Sort by doc 3, largest first").click()
    shown.settle()
    assert shown.page.locator(".aw-seg-head .aw-number").first.inner_text() == f"{numbers[-1]:.3f}".removeprefix("0")
    row = shown.page.locator(".aw-seg-head").nth(1)
    name = row.locator(".aw-seg-id").inner_text()
    row.click(force=True)
    shown.wait_for_lines()
    assert f"{w.layer}·{w.head}" == name
    assert shown.page.locator(".aw-seg-head[data-now] .aw-seg-id").inner_text() == name


def test_what_is_set_aside_is_said_wherever_it_counts(gallery: Show, nail: int) -> None:
    w = story(query=nail, segment="doc 3")
    shown = gallery(w, width=900)
    shown.wait_for_lines()
    assert "excluded: first token" in text(shown, ".aw-seg-legend")
    shown.menu("Exclude")
    shown.page.get_by_role("menuitemcheckbox", name="answer").click()
    shown.wait_for_lines()
    assert w.aside == ["first token", "template", "answer"]
    assert "answer" not in text(shown, ".aw-seg-header")
    assert "excluded: first token, answer" in text(shown, ".aw-seg-rows")
    assert shown.page.locator(".aw-seg-labels > button[title=answer]").count() == 0
    w.aside = [*DOCUMENTS, "first token"]
    shown = gallery(w, width=900)
    shown.screenshot("segments-all-aside")
    assert "everything is excluded" in text(shown, ".aw-seg-legend")
    shown.check()


@pytest.mark.thorough
def test_without_segments_it_says_how_to_make_them_and_makes_them(gallery: Show) -> None:
    w = story(segments=None)
    shown = gallery(w, width=900)
    shown.screenshot("segments-none")
    assert "No segments yet" in text(shown, ".aw-seg-message")
    shown.check()
    shown.page.get_by_role("button", name="By sentences").click()
    shown.wait_for_lines()
    assert w.segments == "sentences"


def test_each_of_many_quick_keys_is_a_step(gallery: Show) -> None:
    w = story(layer=1, head=1)
    shown = gallery(w, width=900)
    ready(shown)
    page = shown.page
    page.locator("[data-aw=segment-heads]").focus()
    names = [name for name in w.mass["keys"] if name != "first token"]
    assert len(names) == len(DOCUMENTS)
    at = -1
    for keys in range(1, 21):  # there and back, many at once while answers to earlier ones arrive
        for _ in range(keys % 6 + 1):
            page.keyboard.press("ArrowRight" if keys % 2 else "ArrowLeft")
            at = max(0, min(len(names) - 1, at + (1 if keys % 2 else -1))) if at >= 0 else 0
    shown.wait_for_lines()
    assert w.segment == names[at]
    for key in "]]][}{]":
        page.keyboard.press(key)
    shown.wait_for_lines()
    assert [w.layer, w.head] == [0, 3]


def test_of_200_segments_the_numbers_pointed_at_are_those_of_float64(gallery: Show) -> None:
    w = long_story(answer=300)
    shown = gallery(w, width=900)
    ready(shown)
    generator = torch.Generator().manual_seed(2)
    torch.randint(10, (1300,), generator=generator)
    q, k = torch.randn(2, 1, 2, 1301, 16, generator=generator).double()[:, 0, 0]
    scores = (q @ k.T / 4).masked_fill(torch.ones(1301, 1301).triu(1) > 0, -torch.inf)
    weights = scores.softmax(-1)[:, 1:]  # without the first token
    matrix = shown.page.locator(".aw-seg-matrix canvas").first
    box = matrix.bounding_box()
    assert box is not None
    shown.page.mouse.move(box["x"] + box["width"] * 0.305, box["y"] + box["height"] * 0.605)
    shown.page.wait_for_function(
        "() => / → passage [0-9]+ ?mass [0-9.]/.test(document.querySelector('[data-aw=status]').textContent)"
    )
    said = text(shown, "[data-aw=status]")
    found = re.search(r"passage (\d+) → passage (\d+) ?mass ([\d.]+) ?weight ([\d.]+)", said)
    assert found is not None, said
    row, column = int(found[1]), int(found[2])
    given = weights[1 + 5 * row : 6 + 5 * row]
    raw = given[:, 5 * column : 5 * column + 5].sum(-1).mean()
    assert 40 < column < row < 140
    assert float(found[4]) == pytest.approx(float(raw), rel=1e-4)
    assert float(found[3]) == pytest.approx(float(raw / given.sum(-1).mean()), rel=1e-4)
    first = shown.page.locator("button.aw-seg-row").first
    name, share = first.get_attribute("title"), float(first.locator(".aw-number").inner_text())
    at = slice(1000, 1300) if name == "answer" else slice(5 * int(name[8:]), 5 * int(name[8:]) + 5)  # type: ignore[index]
    answer = weights[1001:]
    assert share == pytest.approx(float(answer[:, at].sum(-1).mean() / answer.sum(-1).mean()), abs=5.1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("width", [320, 900])
def test_no_violations_in_any_theme(gallery: Show, nail: int, width: int) -> None:
    shown = gallery(story(query=nail, segment="doc 3"), width=width)
    problems: list[str] = []
    for theme in ("light", "dark", "contrast"):
        look(shown, theme)
        problems += found(shown)
    assert problems == []


@pytest.mark.thorough
def test_200_segments_and_2000_tokens(gallery: Show) -> None:
    w = long_story()
    shown = gallery(w, width=900)
    shown.page.wait_for_function("() => document.querySelectorAll('.aw-seg-row[title]').length > 8")
    shown.wait_for_lines()
    shown.screenshot("segments-long")
    page = shown.page
    assert page.locator(".aw-seg-overview").is_visible()
    scroller = page.locator(".aw-seg-tokens > .aw-seg-scroller")
    assert scroller.evaluate("(node) => node.clientHeight") == 360
    assert page.locator(".aw-seg-word").count() < 200  # of 2,000: only what is in view
    assert page.locator("button.aw-seg-row").count() == 12
    assert "more segments" in text(shown, ".aw-seg-rows")
    names = page.locator(".aw-seg-labels > button")
    assert 10 < names.count() < 60  # of 400
    scroller.evaluate("(node) => { node.scrollTop = node.scrollHeight; }")
    shown.wait_for_lines()
    shown.screenshot("segments-long-end")
    page.locator("[data-aw=picture]").focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowUp")
    shown.wait_for_lines()
    assert heard(shown).startswith("answer token ")
    assert "mass" in heard(shown)  # what came into view was asked for
    shown.check()


@pytest.mark.thorough
def test_a_thousand_segments_are_gone_down_into_and_up_by_keys(gallery: Show) -> None:
    """Past what puts them together to one of them, to its cells, and back; at each level the exact mass."""
    n = 2 + 1000 + 6
    spans = {f"doc {at}": (at, at + 1) for at in range(1, 1001)}
    q, k = torch.randn(2, 1, 1, n, 8, generator=torch.Generator().manual_seed(3))
    given = {"docs": spans, "question": (1001, 1004), "answer": (1004, n)}
    w = AttentionWidget(q, k, segments=given, is_causal=True, view="segments", aside=[])
    weights = w.attention.block("weights", head=0)[1004:].double().mean(0)  # type: ignore[union-attr]
    shown = gallery(w, width=900)
    ready(shown)
    page = shown.page

    def go_down(name: str, keys: slice, presses: int) -> None:
        """Point at a segment in the heads' table, have it sort, and go inside."""
        page.locator("[data-aw=segment-heads]").focus()
        for _ in range(presses):
            page.keyboard.press("ArrowRight")
        page.wait_for_function("(name) => document.querySelector('.aw-segments')?.textContent.includes(name)", arg=name)
        shown.wait_for_lines()
        assert w.segment == name
        mass = float(weights[keys].sum())
        assert f"{mass:.4f}"[1:] in heard(shown) + text(shown, ".aw-seg-rows")
        page.keyboard.press("Enter")
        shown.wait_for_lines()
        ready(shown)

    go_down("docs", slice(1, 1001), 2)
    assert w.segment_path == ["docs"]
    shown.screenshot("segments-thousand")
    go_down("doc 9 – doc 16", slice(9, 17), 2)
    assert w.segment_path == ["docs", "doc 9 – doc 16"]
    assert "‹ docs" in text(shown, ".aw-seg-up")
    go_down("doc 11", slice(11, 12), 3)
    assert w.view == "heatmap"
    page.keyboard.press("Backspace")  # the heatmap has the keys now, and then the segments again
    shown.wait_for_lines()
    assert (w.view, w.segment_path) == ("segments", ["docs", "doc 9 – doc 16"])
    for path, segment in ((["docs"], "doc 9 – doc 16"), ([], "docs")):
        page.keyboard.press("Backspace")
        shown.wait_for_lines()
        assert (w.segment_path, w.segment) == (path, segment)
    shown.check()
