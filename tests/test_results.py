"""Whoever annotates what a method returned finds its type at a public place."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import types
import typing
from collections.abc import Iterator
from typing import Any

import pytest

import attnwidget
from attnwidget import results, samples, scaling

PUBLIC = (attnwidget, results, scaling, samples)
OTHERS = ("torch", "numpy", *sys.stdlib_module_names)
BETWEEN_PACKAGES = {"Attention.head", "Attention.known_rows"}  # of an Attention: what the engine asks of it


def public_functions() -> Iterator[tuple[str, Any]]:
    """All functions, methods and properties that have no underscore, by name."""
    for module in PUBLIC:
        for name in module.__all__:
            found = getattr(module, name)
            if inspect.isfunction(found):
                yield name, found
            elif inspect.isclass(found):
                for member in dir(found):
                    static = inspect.getattr_static(found, member)
                    function = static.fget if isinstance(static, property) else getattr(static, "__func__", static)
                    ours = inspect.isfunction(function) and function.__module__.startswith("attnwidget")
                    if ours and not member.startswith("_") and f"{name}.{member}" not in BETWEEN_PACKAGES:
                        yield f"{name}.{member}", function


FUNCTIONS = dict(public_functions())


def types_in(hint: Any) -> Iterator[type]:
    """Every class that a type names, with those of the fields of our own, but for fields that its repr keeps back."""
    inner = typing.get_args(hint)
    if inner:
        for part in inner:
            yield from types_in(part)
    elif isinstance(hint, type):
        yield hint
        if hint.__module__.startswith("attnwidget") and (dataclasses.is_dataclass(hint) or hasattr(hint, "_fields")):
            fields = dataclasses.fields(hint) if dataclasses.is_dataclass(hint) else ()
            kept_back = {field.name for field in fields if not field.repr}
            for name, part in typing.get_type_hints(hint).items():
                if name not in kept_back:
                    yield from types_in(part)


def return_type(function: Any) -> Any:
    hint = function.__annotations__["return"]
    if not isinstance(hint, str):
        return hint
    names = {"Self": Any, **vars(typing), **vars(types), **vars(sys.modules[function.__module__])}  # 3.10 has no Self
    return eval(hint, names)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_returned_can_be_annotated(name: str) -> None:
    assert "return" in FUNCTIONS[name].__annotations__
    public = {found for module in PUBLIC for found in vars(module).values() if inspect.isclass(found)}
    for found in types_in(return_type(FUNCTIONS[name])):
        assert found in public or found.__module__.split(".")[0] in OTHERS, f"{name} returns {found}"


def test_results_are_those_that_are_returned() -> None:
    returned = {found for function in FUNCTIONS.values() for found in types_in(return_type(function))}
    given = {results.HeadRows, results.WeightsBlock}  # to a function of the user's own
    assert {getattr(results, name) for name in results.__all__} - given <= returned


def test_the_public_names_are_those_and_no_others() -> None:
    classes = (
        "Atlas AtlasWidget Attention AttentionStack AttentionWidget Capture ComparisonWidget Forward LabeledStack "
        "NamedStack Run Sample "
        "ScaledDotProductAttention Sweep"
    )
    functions = "atlas capture compare effect find_heads intervene load_sample report segments sweep"
    functions = f"{functions} scaled_dot_product_attention"
    assert set(attnwidget.__all__) == {*f"{classes} {functions} masks results scaling serving __version__".split()}
    assert inspect.isfunction(attnwidget.capture)
    assert inspect.isfunction(attnwidget.compare)
    assert re.fullmatch(r"\d+\.\d+\.\d+(rc\d+)?(\.dev\d+)?", attnwidget.__version__)


def test_an_effect_that_rounds_to_zero_is_printed_without_a_minus() -> None:
    printed = str(results.Effect("{0: 'zero'}", "' Paris'", 3, 2, before=-1e-6, after=-2e-6))
    assert "log-probability 0.0000 → 0.0000, change 0.0000 nats" in printed
    printed = str(results.Effect("{0: 'zero'}", "' Paris'", 3, 2, before=-0.25, after=-1.5))
    assert "log-probability -0.2500 → -1.5000, change -1.2500 nats" in printed
