"""The flow of a widget: when a trait changes, the derived traits that follow from it are computed again."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from math import inf
from typing import Any

import anywidget
import traitlets

from .._messages.pictures import heads_overview
from .._utils import scheduler
from .._utils.failures import sentence_of
from .._utils.plain import sendable
from .._utils.scheduler import Scheduler, in_slices
from .._utils.throttle import Throttle
from .._utils.weak import weakly
from ..attention import Attention
from ..stack import AttentionStack
from .derived.derived_trait import Derived, DerivedTrait
from .derived.selection import Selection
from .parts.effects import EffectsPart
from .parts.head import HeadPart
from .parts.heads import HeadsPart
from .parts.stages import StagesPart
from .stores.layers import ShownLayers
from .traits.keywords import WRITABLE, names_of

FOLLOWED = (*Selection._fields, "what_if", "target", "pieces")  # other derived traits follow from these
PAUSE = 0.4  # seconds without another change before the rest is computed, for example while a scale is dragged
SLICE = 0.02  # seconds of the rest at once
AFTERWARDS = -1.0  # urgency of the rest: it comes before the exact picture of a long head


def _nothing() -> None:
    """Do nothing."""


class Refreshing(HeadPart, StagesPart, HeadsPart, EffectsPart, anywidget.AnyWidget):
    """A widget whose derived traits follow from its other traits; a new part is one more base class here."""

    errors = traitlets.Dict(help="Why derived traits could not be computed, by name.").tag(sync=True, role="derived")

    def _make(self) -> None:
        # Callbacks hold the widget weakly: no cycle keeps its tensors after it is closed.
        self._lock = threading.RLock()
        self._scheduler = Scheduler(self._lock)
        rules, put, tell = weakly(self._rules_now), weakly(self.set_trait), weakly(self._tell_error)
        self._derived = Derived(rules, put, tell, weakly(self._is_opening))
        self._throttle = Throttle(weakly(self._refresh), self._lock)
        self._awaited = self._rules_awaited = False  # true while a front-end sets a trait, or other rules
        self._version = 0
        super()._make()

    def _watch(self) -> None:
        self.observe(self._when_changed(self._refresh), FOLLOWED)
        super()._watch()

    # The layers on display, from which everything is computed.

    def _show_layers(self, attention: Attention | AttentionStack) -> None:
        self._shown = ShownLayers(
            attention,
            self._token_store,
            words=self.pieces == "words",
            rules=self.what_if,
            target=self.target,
            version=self._version,
            place=self._named_stacks.place(self._chosen),
            across=self._layers_across(attention),
        )
        self._forget_layers()

    def _replace_layers(self, attention: Attention | AttentionStack) -> None:
        self._derived.forget()  # first: after an interrupt, no earlier result may pass for one of the new tensors
        self._forget_tensors()
        self._version += 1
        self._show_layers(attention)

    # From the selection to the derived traits.

    def _refresh(self) -> None:
        if self._is_changing:
            return
        with self._lock, self.hold_sync(), self._telling_of_interrupts():
            self._show_what_is_set()
            self._drop_what_is_gone()
            self._leave_rules_that_do_not_fit()
            self._drop_a_stage_that_is_gone()
            self._send_soon(*self._to_send_again())
            if self._waits_for_evictions():
                return
            later = self._what_can_wait()
            for name in self._rules_now():
                if name not in later:
                    self._derived.bring(name)
            self._bring_effects()
            work = in_slices(self._afterwards(), _nothing, slice_seconds=SLICE, first=inf)
            if later and self._scheduler.start("afterwards", work, AFTERWARDS):
                self._scheduler.hold_back(PAUSE if self._rules_awaited else scheduler.AFTER)

    def _rules_now(self) -> dict[str, DerivedTrait]:
        return self._rules(Selection.of(self))

    def _show_what_is_set(self) -> None:
        """Apply the chosen rules and words to the layers, in case an interrupt prevented it."""
        shown, words = self._shown, self.pieces == "words"
        if (shown.rules, shown.target, shown.words) != (self.what_if, self.target, words):
            self._replace_layers(self._shown.attention)
        self._shown.kinds, self._shown.segments_of = self.kinds, weakly(self._known_segments)

    def _what_can_wait(self) -> tuple[str, ...]:
        """Return the traits that may follow later, once for many changes, while a person waits for the others."""
        if self._scheduler.find_loop() is None:
            return ()
        checks = ("findings", "deviation")
        if not self._rules_awaited:
            long = self._findings.takes_long(self._shown, self.layer, self.batch, self.head)
            many = heads_overview.take_long(self._shown.layers[self.layer], self.batch)
            return (*(checks if self._awaited or long else ()), *(("thumbnails",) if many else ()))
        return (*checks, "thumbnails", "picture") if self.view == "stages" else (*checks, "thumbnails")

    def _afterwards(self) -> Iterator[None]:
        for name in sorted(self._rules_now(), key=lambda name: name != "thumbnails"):  # seen, unlike the others
            with contextlib.suppress(Exception):  # the trait fails in the same way, and reports it
                if name == "findings":
                    yield from self._finding()
                elif name == "thumbnails" and not self._derived.is_of(name, self._rules_now()[name].of):
                    yield from self._drawing_thumbnails()
            with self.hold_sync():
                made = self._derived.bring(name)
                if name == "findings":
                    self._derived.bring("deviation")
            if made:
                yield

    def _bring_what_is_missing(self) -> None:
        """Compute the traits that an interrupt has left out."""
        if self.picture.get("sampled") is not None and not self._exact_pass.under_way:
            self._derived.forget("picture")
        self._refresh()

    # Interrupts and errors.

    @contextlib.contextmanager
    def _telling_of_interrupts(self) -> Iterator[None]:
        """If the block is interrupted or runs out of memory, report that instead of the missing numbers."""
        try:
            yield
        except BaseException as error:
            is_mistake = isinstance(error, Exception) and not isinstance(error, MemoryError)
            if not is_mistake and self.comm is not None:
                with self.hold_sync():
                    self._drop_what_is_gone()
                    self._derived.interrupt(*([sentence_of(error)] if isinstance(error, MemoryError) else []))
                    self._send_soon(*names_of(type(self), *WRITABLE))  # some may have changed unnoticed
            raise

    def notify_change(self, change: Any) -> None:
        """Notify observers of a change; if they are interrupted, the widget reports that."""
        can_be_set = change["name"] in FOLLOWED or self.trait_metadata(change["name"], "role") in WRITABLE
        if can_be_set and hasattr(self, "_derived") and not self._is_changing:
            with self._telling_of_interrupts():
                super().notify_change(change)
        else:
            super().notify_change(change)

    def _tell_error(self, name: str, error: str | None) -> None:
        """Report why a trait could not be computed, or clear the report."""
        others = {other: said for other, said in self.errors.items() if other != name}
        self.set_trait("errors", others if error is None else {**others, name: error})

    def _is_opening(self) -> bool:
        return self.comm is None

    # To the front-end.

    def _send_soon(self, *names: str) -> None:
        with self.hold_sync():
            self._states_to_send.update(names)

    def _put(self, **traits: Any) -> None:
        with self.hold_sync():
            for name, value in traits.items():
                self.set_trait(name, value)

    def _say_refused(self, reason: object) -> None:
        self.send({"refused": sendable(str(reason))})
