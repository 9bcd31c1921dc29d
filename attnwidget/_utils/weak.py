"""Call a method of an object without keeping the object alive, so that its owners may call it back without a cycle."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, cast


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls a bound method; once the object is gone or closed, it does nothing.

    An object is closed if it has a true `_is_closed`.

    >>> class Counter:
    ...     def up(self): return 1
    >>> counter = Counter()
    >>> up = weakly(counter.up)
    >>> up(), counter.__class__.__name__
    (1, 'Counter')
    >>> del counter
    >>> up()
    """
    reference = weakref.WeakMethod(cast(Any, method))

    def call(*given: Any, **keywords: Any) -> Any:
        found = reference()
        if found is None or getattr(found.__self__, "_is_closed", False):
            return None
        return found(*given, **keywords)

    return call
