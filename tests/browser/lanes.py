"""Which cases of a test run for each commit, and which are left to `make thorough`."""

from __future__ import annotations

from typing import Any

import pytest


def mostly_thorough(*cases: Any, everyday: int = 1) -> list[Any]:
    """Mark all cases but the first ones as left to `make thorough`; of two such lists crossed, the firsts of both stay.

    A case of several arguments is a tuple. One that was named before is left out.
    """
    marked: list[Any] = []
    for at, case in enumerate(cases):
        if case not in cases[:at]:
            values = case if isinstance(case, tuple) else (case,)
            marked.append(pytest.param(*values, marks=[pytest.mark.thorough] if at >= everyday else []))
    return marked
