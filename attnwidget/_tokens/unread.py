"""The label of a position whose token is not known, told apart from a token that is spelled alike."""

from __future__ import annotations


class Unread(str):
    """A label in the place of a token that nobody has seen, such as the number of a position that a cache held.

    It is shown as any string. What compares tokens with one another compares none of a text that has one: whether it is
    the same token as another is not known.

    >>> Unread("3") == "3", isinstance(Unread("3"), Unread)
    (True, True)
    """

    __slots__ = ()
