"""What each trait takes, what it refuses, and the sentence that it says then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import traitlets
from hypothesis import given
from hypothesis import strategies as st

from attnwidget._widget.traits import Choice, ColorRange, Index, OnlyHeads, Text


class Box(traitlets.HasTraits):
    head = Index()
    query = Index(None, allow_none=True)
    stage = Choice("weights", "scores", "scaled", "masked")
    color_range = ColorRange()
    only_heads = OnlyHeads()
    title = Text()


@pytest.mark.parametrize(
    "number", [3, np.int64(3), np.uint8(3), torch.tensor(3), np.array(3)], ids=lambda number: type(number).__name__
)
def test_an_index_is_any_whole_number(number: Any) -> None:
    box = Box(head=number, query=number)
    assert (box.head, box.query) == (3, 3)
    assert type(box.head) is type(box.query) is int


def test_only_what_may_be_unpinned_is_none() -> None:
    assert Box(query=None).query is None
    with pytest.raises(TypeError, match=r"^head is None: give a whole number$"):
        Box(head=None)


@pytest.mark.parametrize("value", [1.0, "1", True, [1], torch.tensor([1, 2]), np.array([1.5]), {}])
def test_an_index_is_nothing_else(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^query is .*: give a whole number or None$"):
        Box(query=value)


@pytest.mark.parametrize(("wrong", "meant"), [("weigths", "weights"), ("Scaled", "scaled"), ("mask", "masked")])
def test_a_wrong_word_brings_the_nearest(wrong: str, meant: str) -> None:
    with pytest.raises(ValueError, match=rf"stage is called '{wrong}': did you mean '{meant}'\? else give one of"):
        Box(stage=wrong)


@pytest.mark.parametrize("wrong", ["", "xyz", None, 3, ["weights"], {"weights": 1}, b"weights"])
def test_what_is_no_word_is_told_the_words(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"^(stage is|no stage is called) .*: give one of weights, scores, scaled"):
        Box(stage=wrong)


@pytest.mark.parametrize("value", ["head", "row", "layer", "view", "unit"])
def test_a_color_range_is_a_word(value: str) -> None:
    assert Box(color_range=value).color_range == value


@pytest.mark.parametrize(
    "value",
    [(0, 0.5), [0, 0.5], np.array([0, 0.5]), torch.tensor([0, 0.5]), (np.float32(0), torch.tensor(0.5))],
    ids=lambda value: type(value).__name__,
)
def test_a_color_range_is_two_numbers(value: Any) -> None:
    found = Box(color_range=value).color_range
    assert found == (0.0, 0.5)
    assert [type(bound) for bound in found] == [float, float]


@pytest.mark.parametrize(
    "value",
    [3, None, (), (1,), (1, 2, 3), ("0", "1"), (0, None), (False, True), "01", {"a": 1, "b": 2}, (0, float("nan")),
     (-float("inf"), 0), (0, 10**400), (0, [1])],
)  # fmt: skip
def test_a_color_range_is_nothing_else(value: Any) -> None:
    with pytest.raises(ValueError, match="give head, row, layer, view, unit, or two numbers"):
        Box(color_range=value)


@pytest.mark.parametrize(("value", "said"), [((1, 1), r"\(1, 1\)"), ((2, 1), r"\(2, 1\)")])
def test_a_color_range_ascends(value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"^color_range is {said}: the first must be less than the second$"):
        Box(color_range=value)


def test_a_nearly_right_range_brings_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'unit'"):
        Box(color_range="units")


@pytest.mark.parametrize(("given", "kept"), [(None, ""), ("naïve ✓", "naïve ✓"), ("half \ud800", "half ?")])
def test_a_title_is_text_that_can_be_sent(given: Any, kept: str) -> None:
    assert Box(title=given).title == kept


@pytest.mark.parametrize("value", [3, b"title", ["title"]])
def test_a_title_is_nothing_else(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^title is .*: give a string$"):
        Box(title=value)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.sampled_from(["head", "query", "stage", "color_range", "title"]), json_values)
def test_junk_is_refused_as_a_trait_error_and_changes_nothing(name: str, value: Any) -> None:
    box, refusal = Box(), None
    before = getattr(box, name)
    try:
        setattr(box, name, value)
    except traitlets.TraitError as error:
        refusal = error
    if refusal is not None:
        assert isinstance(refusal, ValueError | TypeError)
        assert getattr(box, name) == before
        str(refusal).encode()


@pytest.mark.parametrize("name", ["head", "query", "stage", "color_range", "title"])
@pytest.mark.parametrize(
    "make", [lambda: nested(50_000), lambda: 10**4000, lambda: [0] * 10**6], ids=["deep", "huge", "long"]
)
def test_junk_without_end_is_refused_in_a_short_sentence(name: str, make: Callable[[], Any]) -> None:
    value = make()
    if isinstance(value, int) and name in ("head", "query"):
        return  # a whole number; the widget says that there is no such head
    with pytest.raises(traitlets.TraitError) as refusal:
        setattr(Box(), name, value)
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (None, None),
        ((8, 12, None), (8, 12, None)),
        ([None, 3.0, 0.5], (None, 3, 0.5)),
        ([np.int64(1), None, np.float32(0.25)], (1, None, 0.25)),
        ([None, None, None], None),
    ],
)
def test_only_heads_are_limits_or_none(value: Any, kept: Any) -> None:
    assert Box(only_heads=value).only_heads == kept


@pytest.mark.parametrize(
    "value",
    ["8", 8, [8], [1, 2, 3, 4], [-1, None, None], [None, 1.5, None], [None, None, "a"], [float("inf"), 2, None]],
)
def test_only_heads_are_nothing_else(value: Any) -> None:
    with pytest.raises(
        ValueError, match=r"^only_heads is .*: .*give \(first layer, last layer, least value of `bar`\)"
    ):
        Box(only_heads=value)
