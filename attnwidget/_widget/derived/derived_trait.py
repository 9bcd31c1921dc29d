"""Traits that follow from others: each is made again only where what it follows from has changed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..._utils.failures import log_told, sentence_of

INTERRUPTED = "interrupted before it was there: w.finish() computes it"

log = logging.getLogger(__name__)


def _nothing() -> None:
    """Do nothing."""


class DerivedTrait(NamedTuple):
    """How one trait follows from others.

    Attributes:
        of: what it is of, as it is now; () while nobody wants it, and then it is None.
        make: makes its value from what it is of.
        instead: makes a value that tells of the error where `make` raises, from the error and what it was to be of.
            Without it the value is None, and the error is told beside it.
        required: whether an error is raised, as nothing can be shown without this trait.
        leave: called when nobody wants it any longer.
    """

    of: tuple[Any, ...]
    make: Callable[..., Any]
    instead: Callable[..., Any] | None = None
    required: bool = False
    leave: Callable[[], None] = _nothing


class Derived:
    """The traits that follow from others, and of what each was last made.

    Args:
        rules: tells how each follows, by name, as it is now.
        put: sets one of them.
        tell: told of each that is made why it could not be computed, or None.
        strict: tells whether what cannot be computed raises, as while a widget is opened.
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
        """Bring one of them to what is selected; return False where it is there already."""
        rule = self._rules()[name]
        if self._made.get(name) == rule.of:
            return False
        value, error = self._value(name, rule, rule.of)
        self._put(name, value)
        self._tell(name, error)
        self._made[name] = rule.of
        return True

    def interrupt(self, reason: str = INTERRUPTED) -> None:
        """Say of those that are not of what is selected what came between; each is made when next brought."""
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
        """Say of all but those that are required that they are still to come; each is made when next brought."""
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
        """Return what one of them would be of something else."""
        return self._value(name, self._rules()[name], of)[0]

    def is_of(self, name: str, of: tuple[Any, ...]) -> bool:
        """Return whether one of them is of this."""
        return self._made.get(name) == of

    def forget(self, *names: str) -> None:
        """Make these again when they are next brought, or, where none are named, all of them."""
        for name in names or list(self._made):
            self._made.pop(name, None)

    def _value(self, name: str, rule: DerivedTrait, of: tuple[Any, ...]) -> tuple[Any, str | None]:
        """The value, and why there is none where that is not in the value itself."""
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
