"""Our own code inside a model's forward pass: its errors are reported, and the model goes on without them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
Tell = Callable[[Exception], None]
STRICT = "ATTNWIDGET_STRICT"
log = logging.getLogger("attnwidget")


class Deliberate(Exception):
    """An error that is meant to end the model's forward pass, such as an edit that is impossible."""


def keep_from_model(error: Exception, tell: Tell | None = None) -> None:
    """Tell an error of our own code, so that the model can go on.

    Args:
        error: that was caught.
        tell: takes it; its own errors pass through only if they are `Deliberate`. None: it is only logged.

    Raises:
        Deliberate: the error is one.
        Exception: the error itself, if the environment variable ATTNWIDGET_STRICT is 1.
    """
    if isinstance(error, Deliberate) or os.environ.get(STRICT) == "1":
        raise error
    log.debug("attnwidget could not read a model's call", exc_info=error)
    try:
        if tell is not None:
            tell(error)
    except Deliberate:
        raise
    except Exception:
        log.debug("attnwidget could not tell why", exc_info=True)


def quietly(tell: Tell | None, do: Callable[..., T], *args: Any, **kwargs: Any) -> T | None:
    """Return what a function returns; tell its error and return None if it raises one: see `keep_from_model`."""
    try:
        return do(*args, **kwargs)
    except Exception as error:
        keep_from_model(error, tell)
        return None
