"""The public interface is what `interface.json` says: a name or signature changes only with a line in the changelog.

`ATTNWIDGET_CONTRACT=write .venv/bin/pytest tests/project/test_interface.py` writes the file again. It refuses while the
changelog's first section does not name what has changed.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import attnwidget
from attnwidget import masks, results, samples, scaling

HERE = Path(__file__).parent
GOLDEN = HERE / "interface.json"
CHANGELOG = HERE.parents[1] / "CHANGELOG.md"
MODULES = (attnwidget, masks, results, samples, scaling)

Interface = dict[str, str]


def interface_of(modules: tuple[ModuleType, ...]) -> Interface:
    """Return every public name with how it is called: functions, classes, their members, fields and keywords."""
    found: Interface = {}
    for module in modules:
        for name in sorted(getattr(module, "__all__", None) or [one for one in vars(module) if one[0] != "_"]):
            value = getattr(module, name)
            full = name if module is attnwidget else f"{module.__name__.partition('.')[2]}.{name}"
            if not str(getattr(value, "__module__", "attnwidget")).startswith("attnwidget"):
                continue
            found.update(entries(full, value) if inspect.isclass(value) or callable(value) else [(full, "value")])
    return found


def entries(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if not inspect.isclass(value):
        yield name, called(value)
        return
    yield name, "class" + called(value)
    for member in sorted(set(dir(value))):
        static = inspect.getattr_static(value, member)
        function = static.fget if isinstance(static, property) else getattr(static, "__func__", static)
        if member.startswith("_") or not getattr(function, "__module__", "").startswith("attnwidget"):
            continue
        if isinstance(static, property):
            yield f"{name}.{member}", "property"
        elif inspect.isroutine(function):
            yield f"{name}.{member}", called(function)
    if dataclasses.is_dataclass(value):
        yield from ((f"{name}.{field.name}", "field") for field in dataclasses.fields(value) if field.name[0] != "_")
    if hasattr(value, "class_traits"):
        yield from ((f"{name}.{trait}", "trait") for trait in sorted(traits_of(value)))


def traits_of(value: Any) -> set[str]:
    return {name for name, trait in value.class_traits(sync=True).items() if name[0] != "_" and ours(trait)}


def ours(trait: Any) -> bool:
    return bool(trait.this_class.__module__.startswith("attnwidget"))


def called(function: Any) -> str:
    """Return the parameters of a function, with the names of the keywords that a TypedDict stands for."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # of a builtin
        return "()"
    plain, keywords = [], []
    for parameter in signature.parameters.values():
        expanded = unpacked(parameter, function)
        keywords += [f"{name}=…" for name in expanded]
        plain += [] if expanded else [parameter.replace(annotation=inspect.Parameter.empty)]
    text = str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))[1:-1]
    return re.sub(r" at 0x\w+", "", f"({', '.join(filter(None, [text, *keywords]))})")


def unpacked(parameter: inspect.Parameter, function: Any) -> list[str]:
    if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
        return []
    target = function.__init__ if inspect.isclass(function) else function
    hint = typing.get_type_hints(target).get(parameter.name) if "Unpack" in str(parameter.annotation) else None
    return sorted(typing.get_type_hints(typing.get_args(hint)[0])) if typing.get_args(hint) else []


def differences(before: Interface, now: Interface) -> dict[str, str]:
    """Return what appeared, went or changed, in words."""
    gone = dict.fromkeys(before.keys() - now.keys(), "is gone")
    new = dict.fromkeys(now.keys() - before.keys(), "is new")
    changed = {
        name: f"was {before[name]}, is {now[name]}" for name in before.keys() & now.keys() if before[name] != now[name]
    }
    return {**gone, **new, **changed}


def untold(names: Iterator[str] | set[str], changelog: str) -> list[str]:
    """Return which names the changelog's first section does not have as code."""
    section = changelog.split("\n## ")[1]
    words = set(re.findall(r"[A-Za-z_][A-Za-z_0-9]*", " ".join(re.findall(r"`([^`]+)`", section))))
    return sorted(name for name in names if name.rpartition(".")[2] not in words)


def test_the_public_interface_changes_only_with_the_changelog() -> None:
    now = interface_of(MODULES)
    before = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}
    changes = differences(before, now)
    if os.environ.get("ATTNWIDGET_CONTRACT") == "write":
        missing = untold(set(changes), CHANGELOG.read_text(encoding="utf-8")) if before else []
        assert missing == [], "name these in the first section of CHANGELOG.md before the interface is written again"
        GOLDEN.write_text(json.dumps(now, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
        return
    assert changes == {}, "tell it in CHANGELOG.md, then write the interface again: see the head of this file"


def test_it_sees_what_appears_goes_and_changes() -> None:
    now = interface_of(MODULES)
    assert "Attention.block" in now
    assert "AttentionWidget.view" in now
    assert "results.Overview" in now
    assert "mask_means=" in now["Attention"]
    assert "segments=" in now["AttentionWidget"], "the keywords of a TypedDict are part of it"
    assert "*, batch=0" in now["Attention.block"], "and whether a parameter is given by name only"
    fewer = {name: text for name, text in now.items() if name != "Attention.block"}
    assert differences(now, fewer) == {"Attention.block": "is gone"}
    assert differences(fewer, now) == {"Attention.block": "is new"}
    assert "capture" in differences({**now, "capture": "(model)"}, now)


@pytest.mark.parametrize(
    ("names", "left"),
    [({"capture", "Attention.block"}, ["capture"]), ({"Attention.exact"}, ["Attention.exact"]), (set(), [])],
)
def test_the_changelog_is_asked_for_each_name(names: set[str], left: list[str]) -> None:
    """As code: the words of its sentences name nothing."""
    changelog = "# Changelog\n\n## [Unreleased]\n\n- `att.block(stage)`: exact.\n\n## [0.1.0]\n\n- `capture`.\n"
    assert untold(names, changelog) == left
