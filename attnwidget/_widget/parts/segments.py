"""The traits of segments, checked against the selected sample, and the attention between segments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, get_args

import traitlets

from ..._messages.segments.segment_mass import SINK
from ..._segments.named import FIRST, TEMPLATE
from ..._segments.segments import Segments
from ..._utils.validation import nearest, told
from ..._utils.weak import weakly
from ..derived.derived_trait import DerivedTrait
from ..derived.selection import Selection
from ..passes.exact_pass import SEGMENTS, SEGMENTS_OF_HEADS
from ..passes.masses import Masses, MassPlace
from ..stores.segment_store import GivenSegments, SegmentStore, asked_in, columns_of, path_of, rows_of
from ..traits.keywords import Measure
from ..traits.trait_types import Choice, Names, Text, WrongType, WrongValue, derived, refusing
from .tokens import TokensPart

NO_SEGMENTS = 'there are no segments: give segments= as well, such as "sentences"'


class NameOrPath(traitlets.TraitType[Any, Any]):
    """The name of a segment, or the path of names to a nested one, outermost first; or None."""

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


Made = dict[str, Any]


class SegmentsPart(TokensPart):
    """Segments, and the attention between them; those of the selected sample are sent."""

    _segment_store: SegmentStore
    _masses: Masses

    segments = traitlets.Any(None, help="The named parts of the text: one for all samples, or one for each.").tag(
        sync=True, role="given", to_json=lambda value, self: self._segments_message("query")
    )
    key_segments = traitlets.Any(None, help="Those of the keys; None: as the queries'.").tag(
        sync=True, role="given", to_json=lambda value, self: self._segments_message("key")
    )
    measure: Choice[Measure] = Choice(*get_args(Measure), help="How the attention to a segment is read.").tag(
        sync=True, role="look"
    )
    aside = Names((FIRST, TEMPLATE), help="Segments that are left out of the shares; also 'sink' and 'self'.").tag(
        sync=True, role="look"
    )
    asking = NameOrPath(help="The segment whose attention is looked at, by name or path; None: the answer.").tag(
        sync=True, role="numbers"
    )
    segment = TextOrNone(help="The pinned segment, or None.").tag(sync=True, role="selection")
    segment_path = Names((), help="The segments whose inner segments are shown, outermost first.").tag(
        sync=True, role="numbers"
    )

    mass = derived("The attention between segments in the selected head.")
    head_mass = derived("The attention from one segment to each segment, in all heads.")

    def _make(self) -> None:
        super()._make()
        self._segment_store = SegmentStore(weakly(self._given_segments))
        put_again, recolored = weakly(self.set_trait), weakly(self._send_segments)
        self._masses = Masses(self._segment_store, self._scheduler, put_again, recolored)

    def _rules(self, at: Selection) -> dict[str, DerivedTrait]:
        asking = tuple(at.asking) if isinstance(at.asking, list) else at.asking
        place = (asking, tuple(at.segment_path), at.summed_stage) if self._masses.has_segments else ()
        is_shown = place and at.view == "segments"
        in_block = place and at.view == "heatmap" and at.segment is not None  # a pinned block of two segments
        of_head, of_heads = (*at.sample, at.shown_head, *place), (*at.sample, *place)
        return super()._rules(at) | {
            "mass": DerivedTrait(
                of_head if is_shown or in_block else (), self._mass, self._no_mass, leave=self._leave_mass
            ),
            "head_mass": DerivedTrait(
                of_heads if is_shown else (), self._head_mass, self._no_head_mass, leave=self._leave_head_mass
            ),
        }

    def _forget_layers(self) -> None:
        super()._forget_layers()
        self._masses.forget()

    def _forget_segments(self) -> None:
        super()._forget_segments()
        self._segment_store.forget()
        self._masses.forget()
        self._derived.forget("mass", "head_mass")

    def _finish(self) -> None:
        super()._finish()
        self._masses.finish()

    def _end(self) -> None:
        super()._end()
        self._masses.forget()

    def _watch(self) -> None:
        super()._watch()
        self.observe(self._when_changed(self._on_segments), ["segments", "key_segments"])

    def _on_segments(self) -> None:
        if not self._is_changing:
            self._forget_segments()
            self._refresh()

    def _send_segments(self) -> None:
        self._send_soon("segments", "key_segments")

    def _given_segments(self) -> GivenSegments:
        return GivenSegments(self.segments, self.key_segments, self.tokenizer)

    # The attention between segments.

    def _mass(self, layer: int, batch: int, head: int | str, *place: Any) -> Made:
        return self._masses.of_head(self._shown, (layer, batch, head), MassPlace(*place))

    def _no_mass(self, error: Exception, layer: int, batch: int, head: int | str, *place: Any) -> Made:
        return self._masses.failed(error, {"layer": layer, "batch": batch, "head": head, **MassPlace(*place).of()})

    def _leave_mass(self) -> None:
        self._masses.leave(SEGMENTS)

    def _head_mass(self, layer: int, batch: int, *place: Any) -> Made:
        return self._masses.of_heads(self._shown, (layer, batch), MassPlace(*place))

    def _no_head_mass(self, error: Exception, layer: int, batch: int, *place: Any) -> Made:
        return self._masses.failed(error, {"batch": batch, **MassPlace(*place).of()})

    def _leave_head_mass(self) -> None:
        self._masses.leave(SEGMENTS_OF_HEADS)

    # Which segments there are.

    def _segments_of(self, side: str, at: tuple[int, int] | None = None) -> Segments | None:
        """Return the segments of a layer and sample, the selected ones by default; None if none fit."""
        try:
            return self._segment_store.of(side, self._shown, *(at or (self.layer, self.batch)))
        except Exception:  # the message of the segments says why
            return None

    def _known_segments(self, layer: int, batch: int) -> tuple[Segments | None, bool]:
        """Return a sample's key segments, and whether a rule such as "sentences" made them: for custom metrics."""
        given = self.segments if self.key_segments is None else self.key_segments
        return self._segments_of("key", (layer, batch)), isinstance(given, str)

    def _segments_message(self, side: str) -> dict[str, Any] | None:
        return self._segment_store.message(side, self._shown, self.layer, self.batch, self.asking)

    @traitlets.validate("segments", "key_segments")
    def _segments_can_be(self, proposal: Any) -> Any:
        value, name = proposal["value"], proposal["trait"].name
        if value is None:
            return None
        if self._is_changing:  # another stack: the message of its segments says what is wrong
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
        """Return the names of the columns under a path, in the selected layer and sample by default.

        Raises:
            WrongValue: there is no such path.
        """
        found, layer = self._needed("key", at), self.layer if at is None else at[0]
        try:
            columns = columns_of(found, path, lambda names, _: [0] * len(names))
        except (KeyError, ValueError) as error:
            raise WrongValue(f"segment_path is {told(list(path))}: {error.args[0]}") from None
        return [*columns.names, *([SINK] if self._shown.layers[layer].has_sinks else [])]

    def _row_names(self, path: Sequence[str]) -> list[str]:
        """Return the names of the query segments inside a path.

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
        """Unpin the segment if it is not a column under the new path."""
        if not self._is_column(self.segment, self.segment_path):
            self.segment = None

    def _segments_that_are_there(self, at: tuple[int, int]) -> dict[str, Any]:
        """Return the segment traits that a sample has: another sample or layer may have other segments."""
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
        found = super()._what_is_there()
        return found | self._segments_that_are_there((found["layer"], found["batch"]))

    def _to_send_again(self) -> Iterator[str]:
        yield from super()._to_send_again()
        if self.segments is not None or self.key_segments is not None or self._segment_store.has_told:
            for name, side in (("segments", "query"), ("key_segments", "key")):
                if self._segment_store.is_new(name, self._segments_message(side)):
                    yield name
