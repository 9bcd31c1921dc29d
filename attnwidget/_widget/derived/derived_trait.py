"""Traits that follow from others: each is computed again only if its sources have changed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..._utils.failures import log_told, sentence_of

INTERRUPTED = "interrupted before it was computed: w.finish() computes it"

log = logging.getLogger(__name__)


def _nothing() -> None:
    """Do nothing."""


class DerivedTrait(NamedTuple):
    """How one trait follows from others.

    Attributes:
        of: its present sources; () while nobody needs it, and then it is None.
        make: computes its value from the sources.
        instead: returns a value that reports the error if `make` raises, from the error and the sources. Without it the
            value is None, and the error is reported beside it.
        required: whether to raise an error, because nothing can be shown without this trait.
        leave: called when nobody needs it any longer.
    """

    of: tuple[Any, ...]
    make: Callable[..., Any]
    instead: Callable[..., Any] | None = None
    required: bool = False
    leave: Callable[[], None] = _nothing


class Derived:
    """The traits that follow from others, and the sources of their last values.

    Args:
        rules: returns the present rule of each, by name.
        put: sets one of them.
        tell: called with each computed trait and its error, or None.
        strict: returns whether errors are raised, as while a widget opens.
    """

    def __init__(
        self,
        rules: Callable[[], Mapping[str, DerivedTrait]],
        put: Callable[[str, Any], None],
        tell: Callable[[str, str | None], None],
        strict: Callable[[], bool],
    ) -> None:
        self._rules, self._put, self._tell, self._strict = rules, put, tell, strict
        self._made: dict[str, tuple[Any, ...]] = {}

    def bring(self, name: str) -> bool:
        """Update one of them to the selection; return False if it is up to date."""
        rule = self._rules()[name]
        if self._made.get(name) == rule.of:
            return False
        value, error = self._value(name, rule, rule.of)
        self._put(name, value)
        self._tell(name, error)
        self._made[name] = rule.of
        return True

    def interrupt(self, reason: str = INTERRUPTED) -> None:
        """Report that an interrupt came before those that are out of date; each is computed when next updated."""
        for name, rule in self._rules().items():
            if self._made.get(name) == rule.of:
                continue
            self._made.pop(name, None)
            if rule.required or not rule.of:
                self.bring(name)
            elif rule.instead is not None:
                self._put(name, rule.instead(RuntimeError(reason), *rule.of))
                self._tell(name, None)
            else:
                self._put(name, None)
                self._tell(name, reason)

    def hold_back(self, reason: str) -> None:
        """Report all but the required ones as pending; each is computed when next updated."""
        for name, rule in self._rules().items():
            if rule.required:
                self.bring(name)
                continue
            self._made.pop(name, None)
            rule.leave()
            later = rule.of and rule.instead is not None
            self._put(name, rule.instead(RuntimeError(reason), *rule.of) if later and rule.instead else None)
            self._tell(name, None)

    def value(self, name: str, *of: Any) -> Any:
        """Return the value of one of them for other sources."""
        return self._value(name, self._rules()[name], of)[0]

    def is_of(self, name: str, of: tuple[Any, ...]) -> bool:
        """Return whether one of them has these sources."""
        return self._made.get(name) == of

    def forget(self, *names: str) -> None:
        """Mark these, or all if none are named, to be computed again at the next update."""
        for name in names or list(self._made):
            self._made.pop(name, None)

    def _value(self, name: str, rule: DerivedTrait, of: tuple[Any, ...]) -> tuple[Any, str | None]:
        """The value, and the error if the value does not contain it."""
        if not of:
            rule.leave()
            return None, None
        try:
            return rule.make(*of), None
        except Exception as error:
            if rule.required or self._strict():
                raise
            if rule.instead is not None:
                log_told(log, name, error)
                found = rule.instead(error, *of)
                return found, sentence_of(error) if found is None else None
            log.warning("%s could not be computed", name, exc_info=True)
            return None, sentence_of(error)
