"""Which cases of a test run on each commit, and which are left to `make thorough`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def left_to_thorough(cases: Iterable[Any], but: Collection[Any]) -> list[Any]:
    """Return the cases of a test, all but some of which are left to `make thorough`.

    Args:
        cases: of one parameter; or tuples, one value for each parameter.
        but: those that run on each commit.

    Raises:
        ValueError: one of these is no case.
    """
    cases = list(cases)
    missing = [one for one in but if one not in cases]
    if missing:
        raise ValueError(f"{missing[0]!r} is no case of this test")
    marks = {True: (), False: pytest.mark.thorough}
    return [
        pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=marks[one in but])  # type: ignore[arg-type]
        for one in cases
    ]
