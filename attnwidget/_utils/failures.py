"""What is reported and logged about a computation that failed."""

from __future__ import annotations

import logging

# Errors that an input or the machine can cause, and refusals: they are reported to the user. Any other error is a
# mistake in this package.
EXPECTED = (ValueError, TypeError, IndexError, RuntimeError, MemoryError)


def sentence_of(error: Exception) -> str:
    """Return an error as it is shown to a person.

    >>> sentence_of(ValueError("give 0 to 3")), sentence_of(KeyError("head")), sentence_of(MemoryError())
    ('give 0 to 3', "KeyError: 'head'", 'there is not enough memory for this')
    """
    name, words = type(error).__name__, str(error)
    if not words and isinstance(error, MemoryError):
        return "there is not enough memory for this"
    if not words:
        return name
    return words if isinstance(error, EXPECTED) else f"{name}: {words}"


def log_told(log: logging.Logger, what: str, error: Exception) -> None:
    """Log an error that the front-end has reported: as a warning only if it is a mistake in this package."""
    level = logging.DEBUG if isinstance(error, EXPECTED) else logging.WARNING
    log.log(level, "%s failed", what, exc_info=error, stacklevel=2)
