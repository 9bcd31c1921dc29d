"""Traits that are set together: all of them, or none, even after an interrupt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import traitlets


class TakenWhole(traitlets.HasTraits):
    """Several traits that are set together or not at all, even if the setting code is interrupted."""

    @contextmanager
    def hold_trait_notifications(self) -> Iterator[None]:
        """Set traits within, and send them after all checks; after any error, restore them.

        traitlets restores only what its own checks refuse. An interrupt, or a lack of memory, would leave unchecked
        values, and every later request would use them.
        """
        if self._cross_validation_lock:
            yield
            return
        before, changes = dict(self._trait_values), dict[str, Any]()

        def hold(change: Any) -> None:
            changes.setdefault(change["name"], change)["new"] = change["new"]

        try:
            self.notify_change = hold  # type: ignore[method-assign]
            self._cross_validation_lock = True
            yield
            for name in list(changes):
                check = getattr(type(self), name)._cross_validate  # noqa: SLF001  # as traitlets itself asks
                self.set_trait(name, check(self, getattr(self, name)))
        except BaseException:
            changes.clear()
            self._trait_values = before
            raise
        finally:
            self._cross_validation_lock = False
            vars(self).pop("notify_change", None)
            for change in changes.values():
                self.notify_change(change)
