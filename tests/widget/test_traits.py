"""What each trait takes, what it refuses, and the sentence that it says then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import traitlets
from hypothesis import given
from hypothesis import strategies as st

from attnwidget import Attention, ComparisonWidget, compare

# A widget with all traits: each test leaves it as it was.
SHOWN = compare(*[Attention(*torch.randn(2, 1, 4, 5, 2))] * 2)
AS_IT_WAS = {
    name: getattr(SHOWN, name)
    for name in ("kinds", "head", "heads", "pins", "stage", "color_range", "only_heads", "title", "aside", "against_at",
                 "top_k", "threshold", "bar", "what_if")
}  # fmt: skip


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    yield
    for name, value in AS_IT_WAS.items():
        setattr(SHOWN, name, value)


def box(**given: Any) -> ComparisonWidget:
    """The widget with some traits set."""
    for name, value in given.items():
        setattr(SHOWN, name, value)
    return SHOWN


@pytest.mark.parametrize(
    "number", [3, np.int64(3), np.uint8(3), torch.tensor(3), np.array(3)], ids=lambda number: type(number).__name__
)
def test_an_index_is_any_whole_number(number: Any) -> None:
    w = box(head=number, query=number)
    assert (w.head, w.query) == (3, 3)
    assert type(w.head) is type(w.query) is int


def test_only_what_may_be_unpinned_is_none() -> None:
    assert box(query=None).query is None
    with pytest.raises(TypeError, match=r"^head is None: give a whole number$"):
        box(head=None)


@pytest.mark.parametrize("value", [1.0, "1", True, [1], torch.tensor([1, 2]), np.array([1.5]), {}])
def test_an_index_is_nothing_else(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^query is .*: give a whole number or None$"):
        box(query=value)


@pytest.mark.parametrize(("wrong", "meant"), [("weigths", "weights"), ("Scaled", "scaled"), ("mask", "masked")])
def test_a_wrong_word_brings_the_nearest(wrong: str, meant: str) -> None:
    with pytest.raises(ValueError, match=rf"stage is called '{wrong}': did you mean '{meant}'\? else give one of"):
        box(stage=wrong)


@pytest.mark.parametrize("wrong", ["", "xyz", None, 3, ["weights"], {"weights": 1}, b"weights"])
def test_what_is_no_word_is_told_the_words(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"^(stage is|no stage is called) .*: give one of weights, scores, scaled"):
        box(stage=wrong)


@pytest.mark.parametrize("value", ["head", "row", "layer", "view", "unit"])
def test_a_color_range_is_a_word(value: str) -> None:
    assert box(color_range=value).color_range == value


@pytest.mark.parametrize(
    "value",
    [(0, 0.5), [0, 0.5], np.array([0, 0.5]), torch.tensor([0, 0.5]), (np.float32(0), torch.tensor(0.5))],
    ids=lambda value: type(value).__name__,
)
def test_a_color_range_is_two_numbers(value: Any) -> None:
    found = box(color_range=value).color_range
    assert found == (0.0, 0.5)
    assert [type(bound) for bound in found] == [float, float]


@pytest.mark.parametrize(
    "value",
    [3, None, (), (1,), (1, 2, 3), ("0", "1"), (0, None), (False, True), "01", {"a": 1, "b": 2}, (0, float("nan")),
     (-float("inf"), 0), (0, 10**400), (0, [1])],
)  # fmt: skip
def test_a_color_range_is_nothing_else(value: Any) -> None:
    with pytest.raises(ValueError, match="give head, row, layer, view, unit, or two numbers"):
        box(color_range=value)


@pytest.mark.parametrize(("value", "said"), [((1, 1), r"\(1, 1\)"), ((2, 1), r"\(2, 1\)")])
def test_a_color_range_ascends(value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"^color_range is {said}: the first must be less than the second$"):
        box(color_range=value)


def test_a_nearly_right_range_brings_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'unit'"):
        box(color_range="units")


@pytest.mark.parametrize(("given", "kept"), [(None, ""), ("naïve ✓", "naïve ✓"), ("half \ud800", "half ?")])
def test_a_title_is_text_that_can_be_sent(given: Any, kept: str) -> None:
    assert box(title=given).title == kept


@pytest.mark.parametrize("value", [3, b"title", ["title"]])
def test_a_title_is_nothing_else(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^title is .*: give a string$"):
        box(title=value)


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
    refusal, before = None, getattr(SHOWN, name)
    try:
        setattr(SHOWN, name, value)
    except traitlets.TraitError as error:
        refusal = error
    if refusal is not None:
        assert isinstance(refusal, ValueError | TypeError | IndexError)
        assert getattr(SHOWN, name) == before
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
        setattr(SHOWN, name, value)
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
    assert box(only_heads=value).only_heads == kept


@pytest.mark.parametrize(
    "value",
    ["8", 8, [8], [1, 2, 3, 4], [-1, None, None], [None, 1.5, None], [None, None, "a"], [float("inf"), 2, None]],
)
def test_only_heads_are_nothing_else(value: Any) -> None:
    with pytest.raises(
        ValueError, match=r"^only_heads is .*: .*give \(first layer, last layer, least value of `bar`\)"
    ):
        box(only_heads=value)


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("heads", (3, np.int64(1), 3), [3, 1]),
        ("pins", [(1, None), [None, torch.tensor(2)], (3, 4)], [(1, None), (None, 2), (3, 4)]),
        ("pins", [], []),
        ("pins", [(0, 0)] * 1000, [(0, 0)] * 1000),
        ("aside", ("b", "a", "b"), ["b", "a"]),
        ("aside", ["half \ud800"], ["half ?"]),
        ("aside", [str(n) for n in range(1000)], [str(n) for n in range(1000)]),
        ("against_at", [0, np.int8(0), 2], (0, 0, 2)),
        ("against_at", None, None),
        ("top_k", 1, 1),
        ("top_k", 2**31 - 1, 2**31 - 1),
        ("top_k", None, None),
        ("threshold", 0, 0.0),
        ("threshold", np.float32(1), 1.0),
        ("kinds", None, {}),
        ("kinds", {f"mine {n}": len for n in range(8)}, {f"mine {n}": len for n in range(8)}),
        ("what_if", {"scale": 2}, {"scale": 2}),
    ],
)
def test_what_a_list_a_place_or_a_limit_may_be(name: str, value: Any, kept: Any) -> None:
    assert getattr(box(**{name: value}), name) == kept


@pytest.mark.parametrize(
    ("name", "value", "error", "said"),
    [
        ("heads", [], ValueError, "heads is empty: give at least one head"),
        ("heads", 3, TypeError, "give a list of heads"),
        ("heads", "12", TypeError, "give a list of heads"),
        ("heads", [0, True], TypeError, "give a list of heads"),
        ("pins", [(None, None)], TypeError, "give a list of pairs"),
        ("pins", [(1, 2, 3)], TypeError, "give a list of pairs"),
        ("pins", [(1,)], TypeError, "give a list of pairs"),
        ("pins", [(1, False)], TypeError, "give a list of pairs"),
        ("pins", {1: 2}, TypeError, "give a list of pairs"),
        ("pins", [(0, 0)] * 1001, ValueError, "pins are 1,001 places: pin at most 1,000"),
        ("aside", "self", TypeError, "give a list of names"),
        ("aside", ["a", 3], TypeError, "give a list of names"),
        ("aside", [str(n) for n in range(1001)], ValueError, "aside are 1,001 names: give at most 1,000"),
        ("against_at", (1, 2), TypeError, r"give \(layer, batch, head\)"),
        ("against_at", (1, 2, 3, 4), TypeError, r"give \(layer, batch, head\)"),
        ("against_at", (1, 2, None), TypeError, r"give \(layer, batch, head\)"),
        ("top_k", 0, ValueError, "top_k is 0: give 1 to 2,147,483,647"),
        ("top_k", 2**31, ValueError, "give 1 to"),
        ("threshold", -0.001, ValueError, "give a weight from 0 to 1"),
        ("threshold", 1.001, ValueError, "give a weight from 0 to 1"),
        ("threshold", None, TypeError, "give a weight from 0 to 1"),
        ("kinds", {f"mine {n}": len for n in range(9)}, ValueError, "kinds has 9 metrics, and at most 8 are shown"),
        ("kinds", {"layer": len}, ValueError, "exists already"),
        ("kinds", {"stage_size": len}, ValueError, "exists already"),
        ("kinds", 3, ValueError, "no kind of head is called 3"),
        ("bar", "mine", ValueError, "give one of entropy, first_token"),
        ("what_if", [("scale", 2)], TypeError, "give a dict such as"),
    ],
)
def test_what_a_list_a_place_or_a_limit_may_not_be(name: str, value: Any, error: type[Exception], said: str) -> None:
    before = getattr(SHOWN, name)
    with pytest.raises(error, match=said) as refused:
        setattr(SHOWN, name, value)
    assert isinstance(refused.value, traitlets.TraitError), "several that are set at once are put back together"
    assert getattr(SHOWN, name) == before


def test_a_bar_may_be_a_metric_of_ones_own() -> None:
    assert box(kinds={"mine": len}, bar="mine").bar == "mine"


class Broken(dict[str, Any]):
    """Segments that raise when they are read."""

    def __init__(self, error: Exception) -> None:
        super().__init__(a=(0, 1))
        self.error = error

    def items(self) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("raised", "kind"),
    [(IndexError, IndexError), (TypeError, TypeError), (ImportError, TypeError), (ValueError, ValueError),
     (OverflowError, ValueError)],
)  # fmt: skip
def test_what_is_raised_while_a_value_is_read_is_refused_as_a_trait_does(
    raised: type[Exception], kind: type[Exception]
) -> None:
    with pytest.raises(kind, match="so it is") as refused:
        SHOWN.segments = Broken(raised("so it is"))
    assert isinstance(refused.value, traitlets.TraitError), "several that are set at once are put back together"
    assert SHOWN.segments is None


def test_a_mistake_while_a_value_is_read_is_raised_as_it_is() -> None:
    with pytest.raises(AttributeError, match="so it is"):
        SHOWN.segments = Broken(AttributeError("so it is"))
