"""Names that go away: for one minor version a call by the old name works, and warns with what to write instead.

    @renamed_keywords({"bands": "ribbons"}, since="0.2")        # f(bands=3) calls f(ribbons=3), and warns
    def f(ribbons: int = 1) -> ...

    @deprecated("attnwidget.old", instead="attnwidget.new", since="0.2")
    def old(...) -> ...

`since` is the version that first warns. All of that minor version warns; the next has the name no more, and
`tests/project/test_deprecations.py` fails until it is taken out.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from .mutation import levels_to_the_caller

Function = TypeVar("Function", bound=Callable[..., object])


class Deprecation(NamedTuple):
    """A name that goes away.

    Args:
        name: as a user writes it.
        instead: what to write in its place.
        since: the version that first warns: "0.2".
    """

    name: str
    instead: str
    since: str

    @property
    def gone(self) -> str:
        """Return the version that no longer has the name.

        >>> Deprecation("att.old()", "att.new()", since="0.2").gone
        '0.3'
        """
        major, minor = release(self.since)
        return f"{major}.{minor + 1}"

    def outlives(self, version: str) -> bool:
        """Return whether the name should be gone in a version.

        >>> old = Deprecation("att.old()", "att.new()", since="0.2")
        >>> old.outlives("0.2.7"), old.outlives("0.3.0.dev0")
        (False, True)
        """
        return release(version) >= release(self.gone)

    def warn(self) -> None:
        """Warn at the line outside this package that used the name."""
        warnings.warn(
            f"{self.name} is deprecated since attnwidget {self.since} and goes in {self.gone}: "
            f"write {self.instead} instead",
            DeprecationWarning,
            stacklevel=levels_to_the_caller(),
        )


DECLARED: list[Deprecation] = []
"""All that modules have declared when they were imported."""


def release(version: str) -> tuple[int, int]:
    """Return the major and minor number of a version.

    >>> release("0.10.1.dev0")
    (0, 10)
    """
    found = re.match(r"(\d+)\.(\d+)(?![\d])", version)
    if found is None:
        raise ValueError(f"{version!r} is no version: write major and minor number, as in '0.2'")
    return int(found[1]), int(found[2])


def declare(name: str, *, instead: str, since: str) -> Deprecation:
    """Return a deprecation that is known to the tests; where the name is used, call its `warn`."""
    release(since)
    declared = Deprecation(name, instead, since)
    DECLARED.append(declared)
    return declared


def deprecated(name: str, *, instead: str, since: str) -> Callable[[Function], Function]:
    """Let a function or method warn when it is called.

    Args:
        name: as a user writes it: "att.old()".
        instead: what to write in its place.
        since: the version that first warns.
    """
    declared = declare(name, instead=instead, since=since)

    def with_warning(function: Function) -> Function:
        @functools.wraps(function)
        def warns(*args: object, **keywords: object) -> object:
            declared.warn()
            return function(*args, **keywords)

        return warns  # type: ignore[return-value]

    return with_warning


def renamed_keywords(names: Mapping[str, str], *, since: str) -> Callable[[Function], Function]:
    """Let a function take keywords by their old names, too, and warn.

    Args:
        names: the new name of each old one.
        since: the version that first warns.

    Raises:
        TypeError: at a call that gives a keyword by both names.
    """

    def with_old_names(function: Function) -> Function:
        called = function.__qualname__.removesuffix(".__init__").rpartition("<locals>.")[2]
        declared = {old: declare(f"{old}= of {called}", instead=f"{new}=", since=since) for old, new in names.items()}

        @functools.wraps(function)
        def renames(*args: object, **keywords: object) -> object:
            for old in declared.keys() & keywords.keys():
                if names[old] in keywords:
                    raise TypeError(
                        f"{called} got {old}= and {names[old]}=, two names of one thing: give {names[old]}="
                    )
                declared[old].warn()
                keywords[names[old]] = keywords.pop(old)
            return function(*args, **keywords)

        return renames  # type: ignore[return-value]

    return with_old_names
