"""The base of a widget's parts: what they share, and the hooks through which a widget runs them.

A part owns some traits. It checks them, keeps them valid for the layers on display, and says how its derived traits
follow from the selection. A hook calls `super()`, so it runs in every part; `Refreshing` calls the hooks.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from ..._utils.scheduler import Scheduler
from ..._utils.weak import weakly
from ...attention import Attention
from ...stack import AttentionStack
from ..derived.derived_trait import Derived, DerivedTrait
from ..derived.selection import Selection
from ..stores.across import AcrossLayers
from ..stores.layers import ShownLayers
from ..traits.taken_whole import TakenWhole


class WidgetPart(TakenWhole):
    """What every part can use, and the hooks that it may extend."""

    _shown: ShownLayers
    _lock: threading.RLock  # a front-end's message may arrive on another thread while a cell runs
    _scheduler: Scheduler
    _derived: Derived
    _version: int  # of the tensors, which may be replaced
    _is_changing = False  # while several traits change together: nothing follows from one of them alone

    hold_sync: Callable[[], AbstractContextManager[None]]

    # Hooks.

    def _make(self) -> None:
        """Make the objects that compute for this part; no trait is set yet."""

    def _watch(self) -> None:
        """Observe the traits that the part reacts to once the widget is open."""

    def _rules(self, at: Selection) -> dict[str, DerivedTrait]:
        """Return how each derived trait of the part follows from the selection."""
        return {}

    def _to_send_again(self) -> Iterator[str]:
        """Yield the traits to send again because another sample or layer is selected."""
        yield from ()

    def _forget_layers(self) -> None:
        """Drop results of the layers that were on display."""

    def _forget_tensors(self) -> None:
        """Drop results that outlive other rules, but not other tensors."""

    def _forget_tokens(self) -> None:
        """Drop results that depend on the tokens."""

    def _forget_segments(self) -> None:
        """Drop results that depend on the segments."""

    def _finish(self) -> None:
        """Compute now whatever is still under way."""

    def _end(self) -> None:
        """Stop computing: the widget is closed."""

    # What the widget does for its parts.

    @abstractmethod
    def _refresh(self) -> None:
        """Compute again each derived trait whose part of the selection has changed."""

    @abstractmethod
    def _show_layers(self, attention: Attention | AttentionStack) -> None:
        """Show these layers under the rules and in the words that are set."""

    @abstractmethod
    def _layers_across(self, attention: Attention | AttentionStack) -> AcrossLayers | None:
        """Return several layers as one, if they are shown so."""

    @abstractmethod
    def _replace_layers(self, attention: Attention | AttentionStack) -> None:
        """Show layers with other tensors or positions; no earlier result is used again."""

    @abstractmethod
    def _cancel(self) -> None:
        """Stop computing the picture on display."""

    @abstractmethod
    def _send_soon(self, *names: str) -> None:
        """Send traits that have the same values as before, but another meaning."""

    @abstractmethod
    def _say_refused(self, reason: object) -> None:
        """Tell the front-ends why a trait does not have the value that was set."""

    @abstractmethod
    def _put(self, **traits: Any) -> None:
        """Set derived traits, all in one message."""

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Let nothing follow from the traits that are set within."""
        before, self._is_changing = self._is_changing, True
        try:
            yield
        finally:
            self._is_changing = before

    @staticmethod
    def _when_changed(method: Callable[..., None], *given: str) -> Callable[[Any], None]:
        """Return an observer that calls a method and does not keep the widget alive."""
        call = weakly(method)
        return lambda change: call(*given)
