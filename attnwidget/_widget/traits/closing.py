"""Widgets that are closed for good: they let go of what they held, and say so when they are asked for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

FOREIGN = ("_model_id", "_repr_mimebundle_", "_holding_sync")  # of ipywidgets, set after a widget is made


class ClosedError(traitlets.TraitError, RuntimeError):
    """Raised when a closed widget is used."""


class ClosedForGood(anywidget.AnyWidget):
    """A widget that drops its private attributes when it is closed: whatever needs one of them raises `ClosedError`.

    Traits can be read as they were, but not set.
    """

    _is_closed = False
    _foreign: frozenset[str]
    _dropped: frozenset[str] = frozenset()

    def __new__(cls, *args: Any, **keywords: Any) -> Any:
        made = super().__new__(cls, *args, **keywords)
        vars(made)["_foreign"] = frozenset(vars(made)).union(FOREIGN, ("_foreign",))
        return made

    def close(self) -> None:
        """Close the widget; closing it again does nothing."""
        super().close()
        if self._is_closed:
            return
        own = {name for name in vars(self) if name.startswith("_")} - self._foreign
        self.__dict__.update(_is_closed=True, _dropped=frozenset(own))
        for name in own:
            self.__dict__.pop(name, None)

    def open(self) -> None:
        """Open the widget; a closed one cannot be opened again."""
        if self._is_closed:
            raise self._closed_error()
        super().open()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(closed: run its cell again, or make a new widget)"

    def _closed_error(self) -> ClosedError:
        return ClosedError(
            f"this {type(self).__name__} is closed, and holds its tensors no longer: run its cell again, or make a new "
            "widget"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_closed and self.has_trait(name) and name != "comm":
            raise self._closed_error()
        super().__setattr__(name, value)

    if not TYPE_CHECKING:  # for types, each attribute is there

        def __getattr__(self, name: str) -> Any:
            if name in self._dropped or (self._is_closed and hasattr(type(self), name)):  # or it needs what was dropped
                raise self._closed_error()
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
