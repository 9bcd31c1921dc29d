"""The typed keywords, the traits and what `help()` lists are one and the same."""

from __future__ import annotations

import inspect
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch

from attnwidget import Attention, AttentionWidget, Capture, ComparisonWidget, compare
from attnwidget._rules.options import KEYWORDS
from attnwidget._widget.traits.keywords import ComparisonKeywords, ShowKeywords, WidgetKeywords, keywords_of


def words_of(hint: Any) -> list[Any]:
    """The words of a Literal, or of a union of them."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [word for part in get_args(hint) for word in words_of(part)]


@pytest.mark.parametrize(
    ("keywords", "widget"), [(ShowKeywords, AttentionWidget), (ComparisonKeywords, ComparisonWidget)]
)
def test_every_keyword_has_a_type_and_every_type_is_a_keyword(keywords: type, widget: type[AttentionWidget]) -> None:
    assert set(keywords.__annotations__) == set(keywords_of(widget))
    assert set(WidgetKeywords.__annotations__) == {*keywords_of(AttentionWidget), *KEYWORDS}
    hints = get_type_hints(keywords)
    for name, trait in widget.class_traits(words=lambda _: True).items():
        if hasattr(trait, "words") and name in hints:
            assert sorted(words_of(hints[name])) == sorted(trait.words), name


@pytest.mark.parametrize("function", [AttentionWidget, AttentionWidget.__init__, AttentionWidget.from_weights,
                                      AttentionWidget.from_attention, Capture.widget, compare])  # fmt: skip
def test_help_lists_every_keyword_with_its_default(function: Any) -> None:
    listed = inspect.signature(function).parameters
    expected = {*keywords_of(ComparisonWidget if function is compare else AttentionWidget)}
    assert expected <= set(listed)
    assert not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in listed.values())
    assert (listed["stage"].default, listed["top_k"].default, listed["heads"].default) == ("weights", None, (0,))
    assert ("mask" in listed) is (function in (AttentionWidget, AttentionWidget.__init__))


def test_the_docstring_says_what_every_keyword_is() -> None:
    args = (inspect.getdoc(AttentionWidget) or "").split("Args:")[1].split("Raises:")[0]
    said = {name.strip() for line in args.splitlines() if line[4:5] != " " and ":" in line
            for name in line.split(":")[0].split(",")}  # fmt: skip
    missing = {*inspect.signature(AttentionWidget).parameters} - said - {"grid_side", "grid_start"}  # said with grid
    assert missing == set()


def test_the_keywords_that_are_listed_are_those_that_are_taken() -> None:
    q, k, v = torch.randn(3, 1, 2, 4, 8)
    defaults = {
        name: one.default
        for name, one in inspect.signature(AttentionWidget).parameters.items()
        if one.kind is inspect.Parameter.KEYWORD_ONLY and name != "layout"
    }
    plain, spelled = AttentionWidget(q, k, v), AttentionWidget(q, k, v, **defaults)
    for name in keywords_of(AttentionWidget):
        if name != "layout":
            assert getattr(spelled, name) == getattr(plain, name), name
    both = {name: one.default for name, one in inspect.signature(compare).parameters.items() if name in ("pool", "bar")}
    assert compare(Attention(q, k), Attention(q, k), **both).pool == "max"


def test_positions_that_are_given_with_words_are_those_of_words() -> None:
    tokens = ["Ġthe", "Ġun", "belief", "Ġin", "Ġit"]
    q, k = torch.randn(2, 5, 8)
    for given in ({"query": 1, "key": 3}, {"pins": [(0, 2), (1, 3)]}, {"query": -3, "key": -1}):
        w = AttentionWidget(q, k, tokens=tokens, pieces="words", **given)  # type: ignore[arg-type]
        assert (w.query, w.key) == (1, 3)
    with pytest.raises(IndexError, match="query 4 "):
        AttentionWidget(q, k, tokens=tokens, pieces="words", query=4)


def test_a_head_or_a_pair_that_is_not_among_those_given_is_refused() -> None:
    q, k = torch.randn(2, 1, 6, 8, 4)
    with pytest.raises(
        ValueError, match=r"head is 1, which is not one of heads \[0, 4\]: give one of these, or no heads"
    ):
        AttentionWidget(q, k, head=1, heads=[0, 4])
    with pytest.raises(ValueError, match=r"\(query, key\) is \(5, None\), but the last of pins is \(3, 4\)"):
        AttentionWidget(q, k, pins=[(1, 2), (3, 4)], query=5)
    w = AttentionWidget(q, k, head=-2, heads=[0, 4], pins=[(1, 2), (3, 4)], query=3)
    assert (w.head, w.heads, w.query, w.key, w.pins) == (4, [0, 4], 3, 4, [(1, 2), (3, 4)])
