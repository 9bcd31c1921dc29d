"""Numbers for JSON, which has none for NaN and ±∞."""

from __future__ import annotations

from math import isfinite
from typing import overload


@overload
def as_json(value: float) -> float | str: ...
@overload
def as_json(value: float | None) -> float | str | None: ...
def as_json(value: float | None) -> float | str | None:
    """Return a number as it can be sent: as it is, or the text "nan", "inf" or "-inf".

    >>> as_json(0.5), as_json(float("-inf")), as_json(None)
    (0.5, '-inf', None)
    """
    return value if value is None or isfinite(value) else str(value)
