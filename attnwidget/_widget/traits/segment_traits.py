"""The traits of segments: which there are, which are looked at, and how; checked against the selected sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, get_args

import traitlets

from ..._messages.segments.segment_mass import SINK
from ..._segments.named import FIRST, TEMPLATE
from ..._segments.segments import Segments
from ..._utils.validation import nearest, told
from ..stores.segment_store import SegmentStore, asked_in, columns_of, path_of, rows_of
from .keywords import Measure
from .token_traits import TokenTraits
from .trait_types import Choice, Names, Text, WrongType, WrongValue, refusing

NO_SEGMENTS = 'there are no segments: give segments= as well, such as "sentences"'


class NameOrPath(traitlets.TraitType[Any, Any]):
    """The name of a segment, or the names that lead to a nested one, outermost first; or None."""

    default_value: Any = None

    def validate(self, obj: Any, value: Any) -> Any:
        if value is None:
            return None
        names: list[Any] = [value] if isinstance(value, str) else [*value] if isinstance(value, list | tuple) else []
        if not names or not all(isinstance(name, str) for name in names):
            advice = "give a name, or the names that lead to a nested segment, such as ['documents', 'doc 1']"
            raise WrongType(f"{self.name} is {told(value)}: {advice}")
        sendable = [name.encode("utf-8", "replace").decode() for name in names]
        return sendable[0] if len(sendable) == 1 else sendable


class TextOrNone(Text):
    """A string that can be sent, or None."""

    default_value: Any = None

    def validate(self, obj: Any, value: Any) -> Any:
        return None if value is None else super().validate(obj, value)


class SegmentTraits(TokenTraits):
    """The traits of segments; those of the selected sample are sent."""

    _segment_store: SegmentStore
    _is_changing: bool

    segments = traitlets.Any(None, help="The named parts of the text: one for all samples, or one for each.").tag(
        sync=True, role="given", to_json=lambda value, self: self._segments_message("query")
    )
    key_segments = traitlets.Any(None, help="Those of the keys; None: as the queries'.").tag(
        sync=True, role="given", to_json=lambda value, self: self._segments_message("key")
    )
    measure: Choice[Measure] = Choice(*get_args(Measure), help="How the attention to a segment is read.").tag(
        sync=True, role="look"
    )
    aside = Names((FIRST, TEMPLATE), help="Segments that are set aside; also 'sink' and 'self'.").tag(
        sync=True, role="look"
    )
    asking = NameOrPath(help="The segment whose attention is looked at, by name or path; None: the answer.").tag(
        sync=True, role="numbers"
    )
    segment = TextOrNone(help="The pinned segment, or None.").tag(sync=True, role="selection")
    segment_path = Names((), help="The segments that are gone down into, outermost first.").tag(
        sync=True, role="numbers"
    )

    def _segments_of(self, side: str, at: tuple[int, int] | None = None) -> Segments | None:
        """Return the segments of the selected layer and sample, or of others; None where there are none that fit."""
        try:
            return self._segment_store.of(side, self._shown, *(at or (self.layer, self.batch)))
        except Exception:  # whatever a source raises: the message says it
            return None

    def _known_segments(self, layer: int, batch: int) -> tuple[Segments | None, bool]:
        """Return the segments of the keys of a layer and sample, and whether a rule found them: for own metrics."""
        given = self.segments if self.key_segments is None else self.key_segments
        return self._segments_of("key", (layer, batch)), isinstance(given, str)

    def _segments_message(self, side: str) -> dict[str, Any] | None:
        return self._segment_store.message(side, self._shown, self.layer, self.batch, self.asking)

    @traitlets.validate("segments", "key_segments")
    def _segments_can_be(self, proposal: Any) -> Any:
        value, name = proposal["value"], proposal["trait"].name
        if value is None:
            return None
        if self._is_changing:  # another stack, of whose segments the message says what is wrong
            return value
        with refusing():  # also a layer set at the same time, that is not there
            side = "key" if name == "key_segments" else "query"
            self._segment_store.check(value, side, self._shown, self.layer, self.batch)
        return value

    @traitlets.validate("asking")
    def _asking_is_there(self, proposal: Any) -> Any:
        path = path_of(proposal["value"])
        for depth, name in enumerate(path):
            self._one_of(name, "asking", self._row_names(path[:depth]))
        return proposal["value"]

    @traitlets.validate("segment")
    def _segment_is_there(self, proposal: Any) -> str | None:
        name = proposal["value"]
        return name if name is None else self._one_of(name, "segment", self._column_names(self.segment_path))

    @traitlets.validate("segment_path")
    def _path_is_there(self, proposal: Any) -> list[str]:
        path: list[str] = proposal["value"]
        for depth, name in enumerate(path):
            self._one_of(name, "segment_path", self._column_names(path[:depth]))
            self._column_names(path[: depth + 1])
        return path

    def _needed(self, side: str, at: tuple[int, int] | None = None) -> Segments:
        found = self._segments_of(side, at)
        if found is None:
            raise WrongValue(NO_SEGMENTS)
        return found

    def _column_names(self, path: Sequence[str], at: tuple[int, int] | None = None) -> list[str]:
        """Return the names of the columns of a place, of the selected layer and sample or of others.

        Raises:
            WrongValue: there is no such place.
        """
        found, layer = self._needed("key", at), self.layer if at is None else at[0]
        try:
            columns = columns_of(found, path, lambda names, _: [0] * len(names))
        except (KeyError, ValueError) as error:
            raise WrongValue(f"segment_path is {told(list(path))}: {error.args[0]}") from None
        return [*columns.names, *([SINK] if self._shown.layers[layer].has_sinks else [])]

    def _row_names(self, path: Sequence[str]) -> list[str]:
        """Return the names of the segments of the queries inside a path.

        Raises:
            WrongValue: there is nothing inside.
        """
        try:
            return rows_of(self._needed("query"), path).names
        except (KeyError, ValueError) as error:
            raise WrongValue(f"asking is inside {told(list(path))}: {error.args[0]}") from None

    def _is_column(self, name: str | None, path: Sequence[str], at: tuple[int, int] | None = None) -> bool:
        try:
            return name is None or name in self._column_names(path, at)
        except traitlets.TraitError:
            return False

    @staticmethod
    def _one_of(name: str, what: str, names: Sequence[str]) -> str:
        if name not in names:
            raise WrongValue(f"{what} is {told(name)}: {nearest(name, names)}give one of {told(', '.join(names))}")
        return name

    @traitlets.observe("segment_path")
    def _leave_the_segment(self, change: Any) -> None:
        """Pin no segment that is not among the columns of another place."""
        if not self._is_column(self.segment, self.segment_path):
            self.segment = None

    def _segments_that_are_there(self, at: tuple[int, int]) -> dict[str, Any]:
        """Return the traits of segments without what is not there: another sample or layer may have others."""
        queries, path = self._segments_of("query", at), [*self.segment_path]
        if path and not self._has_place(path, at):
            path = []
        asked = path_of(self.asking)
        asking = None if queries is None or asked_in(queries, asked) != (asked[:-1], *asked[-1:]) else self.asking
        segment = self.segment if self._is_column(self.segment, path, at) else None
        return {"asking": asking, "segment_path": path, "segment": segment}

    def _has_place(self, path: Sequence[str], at: tuple[int, int]) -> bool:
        try:
            return bool(self._column_names(path, at))
        except traitlets.TraitError:
            return False

    def _what_is_there(self) -> dict[str, Any]:
        """Return the selection without what is not there."""
        found = super()._what_is_there()
        return found | self._segments_that_are_there((found["layer"], found["batch"]))

    def _to_send_again(self) -> Iterator[str]:
        """Yield the traits that are to be sent again, as another sample or layer is selected."""
        yield from super()._to_send_again()
        if self.segments is not None or self.key_segments is not None or self._segment_store.has_told:
            for name, side in (("segments", "query"), ("key_segments", "key")):
                if self._segment_store.is_new(name, self._segments_message(side)):
                    yield name
