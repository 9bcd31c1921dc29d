"""Number a model's layers: a capture and an intervention count them by the same class."""

from __future__ import annotations

from collections.abc import Sequence


class LayerOrder:
    """The numbers of layers as `cap.attention` and `cap.cross` count them.

    Layers are numbered as they are first seen, self- and cross-attention separately. A layer that turns out not to be
    shown gives up its number, and the later ones move up.

    Args:
        known: the names of a capture's layers, of one kind, in order; no other layer of that kind gets a number.
        cross: the kind of `known`.

    >>> numbers = LayerOrder()
    >>> [numbers.of(name, cross=False) for name in ("first", "second", "third")]
    [0, 1, 2]
    >>> numbers.drop("second")
    >>> numbers.of("third", cross=False)
    1
    """

    def __init__(self, known: Sequence[str] | None = None, *, cross: bool = False) -> None:
        self._numbers: dict[bool, dict[str, int]] = {False: {}, True: {}}
        self._of_pass: dict[bool, dict[str, None]] = {False: {}, True: {}}  # the layers of the last forward pass
        self._is_known = {cross: known is not None}
        self._dropped: set[str] = set()
        if known is not None:
            self._numbers[cross] = {name: number for number, name in enumerate(known)}

    def of(self, name: str, cross: bool) -> int | None:
        """Return the number of a layer, assigned when it is first seen; None if it has none."""
        own = self._numbers[cross]
        if name in self._dropped or (name not in own and self._is_known.get(cross)):
            return None
        return own.setdefault(name, len(own))

    def names(self, cross: bool) -> list[str]:
        """Return the names of all layers of a kind that have a number, in order."""
        return [*self._numbers[cross]]

    def drop(self, name: str) -> None:
        """Take the number of a layer away: it is not shown."""
        self._dropped.add(name)
        for cross, own in self._numbers.items():
            if name in own and not self._is_known.get(cross):
                self._numbers[cross] = {other: i for i, other in enumerate(one for one in own if one != name)}
                self._of_pass[cross].pop(name, None)

    def drop_module(self, module: str) -> None:
        """Take the numbers of all calls of a module away."""
        for cross in (False, True):
            for name in self.names(cross):
                if name.partition(" #")[0] == module:
                    self.drop(name)

    # Forward passes: in each, the layers that run count from 0.

    def begin_pass(self, name: str, cross: bool, *, anew: bool = False) -> None:
        """Begin another forward pass if its first layer has run before, or if it is another call of a whole model."""
        if anew or name in self._of_pass[cross]:
            self._of_pass = {False: {}, True: {}}

    def in_pass(self, name: str, cross: bool) -> int:
        """Return the number of a layer among those that have run in this forward pass, as in `cap[i].attention`."""
        own = self._of_pass[cross]
        own.setdefault(name)
        return list(own).index(name)
