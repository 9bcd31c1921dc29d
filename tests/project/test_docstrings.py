"""What a user may call says what it does, what it takes and gives, and shows a call; doctest runs each of these."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from in_hand import in_hand

import attnwidget
from attnwidget import masks, results, samples, scaling

OWN = ("self", "cls")


def functions() -> Iterator[tuple[str, Any]]:
    """Yield what a user may call, by name: functions, and methods of what is in hand."""
    for module in (attnwidget, masks, results, samples, scaling):
        for name in getattr(module, "__all__", None) or [one for one in vars(module) if one[0] != "_"]:
            value = getattr(module, name)
            if inspect.isfunction(value) and value.__module__.startswith("attnwidget"):
                yield name, value
    for owner, value in in_hand().items():
        for name in dir(value):
            member = inspect.getattr_static(type(value), name, None)
            function = getattr(member, "__func__", member)
            if name[0] != "_" and inspect.isfunction(function) and function.__module__.startswith("attnwidget"):
                yield f"{owner}.{name}", function


FUNCTIONS = dict(functions())


def parts_missing(function: Any) -> list[str]:
    """Return what a docstring lacks of: a sentence, each argument, what is returned, a call."""
    text = inspect.getdoc(function) or ""
    sentence = text.partition("\n\n")[0]
    code = inspect.unwrap(function).__code__  # without the keywords that a TypedDict stands for
    parameters = [one for one in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if one not in OWN]
    lacks = [] if sentence.endswith(".") else ["a sentence"]
    lacks += [f"the argument {one}" for one in parameters if one not in text.partition("Args:")[2]]
    returns = inspect.signature(function).return_annotation
    first = sentence.partition(" ")[0]
    if returns not in (None, "None") and "Returns:" not in text and first not in ("Return", "Make", "Show", "Measure"):
        lacks.append("what is returned")
    return lacks if ">>> " in text else [*lacks, "an example"]


def test_there_are_as_many_as_are_public() -> None:
    assert len(FUNCTIONS) > 60
    assert {"capture", "Attention.block", "AttentionWidget.to_html", "Capture.save", "sliding_window"} <= set(FUNCTIONS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_a_user_calls_says_all_that_is_needed_to_call_it(name: str) -> None:
    assert parts_missing(FUNCTIONS[name]) == []


def test_a_docstring_without_its_parts_is_found() -> None:
    def halve(x: float, digits: int = 2) -> float:
        """Return half of a number

        Args:
            x: the number.
        """
        return round(x / 2, digits)

    assert parts_missing(halve) == ["a sentence", "the argument digits", "an example"]


CLASSES = {
    name: value
    for module in (attnwidget, results, scaling)
    for name, value in ((name, getattr(module, name)) for name in module.__all__)
    if inspect.isclass(value)
}
# It needs a model with rotary positions, which takes longer to build than all other examples together.
BUILT_ELSEWHERE = {"DistanceProfile"}


def test_every_public_class_shows_how_one_comes_by_it() -> None:
    assert len(CLASSES) > 40
    without = {name for name, value in CLASSES.items() if ">>> " not in (inspect.getdoc(value) or "")}
    assert without == BUILT_ELSEWHERE
