"""Messages from the front-end: untrusted, and answered without a traceback in the kernel's log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import traitlets

from ..._export.view import SavedHead, SavedTrait
from ..._messages.answers import requests
from ..._utils.failures import sentence_of
from ..._utils.plain import as_plain
from ..._utils.report import take_page
from ..._utils.weak import weakly
from ..derived.selection import Selection
from ..refreshing import Refreshing
from ..traits.closing import ClosedError
from ..traits.keywords import WRITABLE, names_of
from ..traits.trait_types import refusing
from .export_view import ExportView
from .front_ends import answer_script, is_of_marimo
from .request_context import RequestContext
from .requested_files import Chosen, RequestedFiles

LINKED_TO_CLOSED = (
    "a widget that is linked to this one is closed, so it does not follow: unlink it, or run its cell again"
)


class FrontEndMessages(Refreshing):
    """A widget that takes traits and requests from its front-ends."""

    _files: RequestedFiles
    _is_closed: bool

    def _make(self) -> None:
        super()._make()
        self._files = RequestedFiles(weakly(self._export_view), weakly(self._all_chosen))

    def _watch(self) -> None:
        self.on_msg(weakly(self._receive))
        super()._watch()

    def _end(self) -> None:
        super()._end()
        self._files.forget()

    @contextlib.contextmanager
    def _unless_closed(self) -> Iterator[bool]:
        """Hold the lock, and return whether the widget is still open: another thread may close it first."""
        with vars(self).get("_lock", contextlib.nullcontext()):
            yield not self._is_closed

    # Traits.

    def set_state(self, sync_data: dict[str, Any]) -> None:
        """Set the traits that a front-end may set; a wrong value is reset there, with the reason.

        If an error stops it halfway, the current values are sent, because the front-end may show others. A closed
        widget takes none.
        """
        with self._unless_closed() as is_open:
            if not is_open:
                return
            try:
                self._take(sync_data if isinstance(sync_data, dict) else {})
            except MemoryError as error:  # no Python caller is waiting
                self._say_refused(sentence_of(error))
                self.send_state(names_of(type(self), *WRITABLE))
            except BaseException:
                self.send_state(names_of(type(self), *WRITABLE))
                raise
            finally:
                self._scheduler.hold_back()

    def _take(self, given: dict[str, Any]) -> None:
        names = [name for name in names_of(type(self), *WRITABLE) if name in given]
        with self._waited_for(rules="what_if" in names):
            try:
                super().set_state(self._read_traits(names, given))  # ipywidgets echoes this to all front-ends
            except traitlets.TraitError as error:
                is_of_other = isinstance(error, ClosedError)  # this one takes no state once it is closed
                self._say_refused(LINKED_TO_CLOSED if is_of_other else error)
                self.send_state(names)
            else:
                self._send_what_differs(names, given)

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> dict[str, Any]:
        """Return traits as they are sent, by default all of them: see `ipywidgets.Widget.get_state`.

        In marimo, `mo.ui.anywidget(w).value` asks for all of them. It gets the traits that a reader can set, such as
        layer, head, query and key, without the pictures.
        """
        if key is None and is_of_marimo(self.comm):
            key = names_of(type(self), *WRITABLE)
        found: dict[str, Any] = super().get_state(key, drop_defaults)
        return found

    def send_state(self, key: Any = None) -> None:
        """Send traits, by default all of them; a widget that was closed in `hold_sync` sends none."""
        if not self._is_closed:
            super().send_state(self.keys if key is None else key)

    def _read_traits(self, names: list[str], given: dict[str, Any]) -> dict[str, Any]:
        """Return the values from a front-end as plain, bounded values of the traits' types."""
        traits: dict[str, Any] = self.traits()
        with refusing():
            return {name: traits[name].validate(self, as_plain(given[name], name)) for name in names}

    def _send_what_differs(self, names: list[str], given: dict[str, Any]) -> None:
        """Send the traits whose value differs from the one set in the front-end, which shows its own until then."""
        now = self.get_state(names)
        differing = [name for name in names if as_plain(now[name], name) != as_plain(given[name], name)]
        if differing:
            self.send_state(differing)

    def _sent_traits(self) -> dict[str, Any]:
        return dict(self.get_state([*self.class_trait_names(role=lambda role: role is not None, sync=True)]))

    def _all_chosen(self) -> Chosen:
        """Return the traits that a user has set, and the versions of the tensors."""
        values = {name: getattr(self, name) for name in names_of(type(self), *WRITABLE)}
        given = tuple(getattr(self, name) for name in names_of(type(self), "given"))
        return Chosen({**values, "version": self._version, "versions": self._selected.versions()}, given)

    # Requests.

    def _receive(self, _: Any, content: Any, __: Any) -> None:
        script = answer_script(content)
        if script is not None:
            self.send(script)
            return
        if take_page(content):
            return
        with self._unless_closed() as is_open:
            if not is_open:
                return
            try:
                if isinstance(content, dict) and "what_if" in content:
                    self._try_rules(content["what_if"])
                reply = requests.answer(self._request_context(), content)
            except requests.Interrupted as error:
                self.send(*error.reply)
                raise
            except KeyboardInterrupt:
                self._send_reply(requests.refuse(content, requests.INTERRUPTED))
                self.send_state("what_if")
                raise
            except MemoryError as error:
                reply = requests.refuse(content, sentence_of(error))
                self.send_state("what_if")
            finally:
                self._scheduler.hold_back()
        self._send_reply(reply)

    def _send_reply(self, reply: tuple[dict[str, Any], list[bytes]] | None) -> None:
        if reply is not None:
            self.send(*reply)

    def _try_rules(self, changes: Any) -> None:
        """Set other rules, and send all that follows in one message: a dragged scale sends many rules a second."""
        with self._waited_for(rules=True):
            try:
                with self.hold_sync():
                    self.set_trait("what_if", self._read_traits(["what_if"], {"what_if": changes})["what_if"])
            except traitlets.TraitError as error:
                self._say_refused(error)

    @contextlib.contextmanager
    def _waited_for(self, *, rules: bool) -> Iterator[None]:
        """Note that a person waits for the results of the block, and whether other rules were set."""
        self._awaited, self._rules_awaited = True, rules
        try:
            yield
        finally:
            self._awaited = self._rules_awaited = False

    def _segments_by(self, unit: str) -> None:
        """Make segments of the tokens: a front-end asks for them if there are none."""
        with self._waited_for(rules=False):
            self.segments = unit

    def _request_context(self) -> RequestContext:
        return RequestContext(
            shown=self._shown,
            token_store=self._token_store,
            tile_queue=self._tile_queue,
            exact_pass=self._exact_pass,
            evictions=self._evictions,
            findings=self._findings,
            derived=self._derived,
            selection=Selection.of(self),
            refresh=self._refresh,
            files=self._files,
            masses=self._masses,
            segments_by=self._segments_by,
            effects=self._effects,
        )

    # Exports.

    def _export_view(self) -> ExportView:
        """Return the widget as exports see it."""
        return ExportView(
            traits=self,
            shown=self._shown,
            exact_pass=self._exact_pass,
            context=self._request_context(),
            derivations=self._derived,
            sent=self._sent_traits,
            masses=self._masses,
            recalls=self._whole_recall,
            more=self._more_traits,
            find_patches=self._patches,
        )

    def _more_traits(self, heads: Sequence[SavedHead]) -> Iterable[SavedTrait]:
        """Return the traits that another kind of widget saves of these heads."""
        return ()
