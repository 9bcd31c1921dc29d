"""No deprecated name outlives its minor version, and none is declared for a version that is still to come."""

from __future__ import annotations

import importlib
import pkgutil

import attnwidget
from attnwidget._utils.deprecated import DECLARED, Deprecation, release

COMPILED = "attnwidget._engine.fused_kernels"  # importing it compiles it; no user calls what is in it


def declared() -> list[Deprecation]:
    """Return what any module of the package declares."""
    for module in pkgutil.walk_packages(attnwidget.__path__, "attnwidget."):
        if module.name != COMPILED:
            importlib.import_module(module.name)
    return DECLARED


def overdue(found: list[Deprecation], version: str) -> list[str]:
    """Return what is to be said of each name that a version should have no more."""
    return [f"{one.name}: its last version was {one.since}: take it out" for one in found if one.outlives(version)]


def test_no_deprecated_name_outlives_its_minor_version() -> None:
    assert overdue(declared(), attnwidget.__version__) == []


def test_none_is_deprecated_since_a_version_that_is_still_to_come() -> None:
    early = [one for one in declared() if release(one.since) > release(attnwidget.__version__)]
    assert early == [], "since= is the version that is being written"


def test_one_that_outlives_its_version_would_be_found() -> None:
    old = Deprecation("att.old()", "att.new()", since="0.1")
    assert overdue([old], "0.1.3") == []
    assert overdue([old], "0.2.0.dev0") == ["att.old(): its last version was 0.1: take it out"]
