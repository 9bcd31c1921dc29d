"""Call a method of an object without keeping the object alive, so that its owners may call it back without a cycle."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, cast


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls a bound method; once the object is gone, it does nothing.

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
        return None if found is None else found(*given, **keywords)

    return call
