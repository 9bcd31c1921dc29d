"""Traits that follow from others: each is made again only where what it follows from has changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


def nothing(*_: Any) -> None:
    """What is sent of something that cannot be computed, where it is not said why."""


class DerivedTrait(NamedTuple):
    """How one trait follows from others.

    of: what it is of, as it is now; () while nobody wants it, and then it is None.
    make: from what it is of to its value.
    instead: what takes its place where that raises: it is given the error, and what it was to be of. None: it raises.
    leave: called when nobody wants it any longer.
    """

    of: tuple[Any, ...]
    make: Callable[..., Any]
    instead: Callable[..., Any] | None = nothing
    leave: Callable[[], None] = nothing


class Derived:
    """The traits that follow from others, and of what each was last made.

    Args:
        rules: tells the rule of each by name, as they are now.
        put: sets one of them.
        strict: whether what cannot be computed raises, as while a widget is opened.
    """

    def __init__(
        self,
        rules: Callable[[], Mapping[str, DerivedTrait]],
        put: Callable[[str, Any], None],
        strict: Callable[[], bool],
    ) -> None:
        self._rules, self._put, self._strict = rules, put, strict
        self._made: dict[str, tuple[Any, ...]] = {}

    def bring(self, name: str) -> bool:
        """Bring one of them to what is selected; False where it is there already."""
        rule = self._rules()[name]
        if self._made.get(name) == rule.of:
            return False
        self._put(name, self._value(rule, rule.of))
        self._made[name] = rule.of
        return True

    def value(self, name: str, *of: Any) -> Any:
        """What one of them would be of something else."""
        return self._value(self._rules()[name], of)

    def is_of(self, name: str, of: tuple[Any, ...]) -> bool:
        """Whether one of them is of this."""
        return self._made.get(name) == of

    def forget(self, *names: str) -> None:
        """What these were made of is another now, or, where none are named, of all."""
        for name in names or list(self._made):
            self._made.pop(name, None)

    def _value(self, rule: DerivedTrait, of: tuple[Any, ...]) -> Any:
        if not of:
            rule.leave()
            return None
        try:
            return rule.make(*of)
        except Exception as error:
            if rule.instead is None or self._strict():
                raise
            return rule.instead(error, *of)
