"""The shown attention between segments: quick parts at once, the rest in slices on the event loop."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import inf
from typing import Any, NamedTuple

from ..._engine.base import AttentionBase
from ..._engine.cost import AT_ONCE
from ..._messages.pictures.heads_overview import FIRST_SECONDS, SLICE_SECONDS
from ..._messages.segments.segment_mass import HeadMasses, MassPass, Wanted
from ..._segments.segments import Segments
from ..._utils.failures import log_told, sentence_of
from ..._utils.scheduler import Scheduler, in_slices
from ..stores.layers import ShownLayers
from ..stores.segment_store import Asking, SegmentStore, asked_in, columns_of, own_color_at, path_of, rows_of
from .exact_pass import SEGMENTS, SEGMENTS_OF_HEADS

MAX_KEPT = 16  # passes
MAX_AT_ONCE = 1 << 28  # weights of a head; without an event loop, more are not computed at once

Made = dict[str, Any]
Tell = Callable[[str, Made], object]

log = logging.getLogger(__name__)


class MassPlace(NamedTuple):
    """The asking segment, the opened path, and the summed stage."""

    asking: str | tuple[str, ...] | None
    path: tuple[str, ...]
    stage: str = "weights"

    def of(self) -> Made:
        """Return it with the names used in messages."""
        *outer, name = path_of(self.asking) or ("",)
        return {"path": list(self.path), "asking": name, "asking_path": outer, "stage": self.stage}


class Masses:
    """The attention between segments, for the selected head and for all heads.

    Args:
        store: returns the segments.
        slices: computes the rest.
        tell: sets a trait again when more of it is known.
        recolored: called when the colors of segments have changed.
    """

    def __init__(self, store: SegmentStore, slices: Scheduler, tell: Tell, recolored: Callable[[], object]) -> None:
        self._store, self._slices, self._tell, self._recolored = store, slices, tell, recolored
        self._number = 0  # of the last pass, which requests refer to
        self._passes: OrderedDict[Any, MassPass] = OrderedDict()
        self._of_heads: OrderedDict[Any, HeadMasses] = OrderedDict()
        self._shown: dict[str, MassPass | HeadMasses] = {}  # by trait name

    def forget(self) -> None:
        """Drop all results, because the tensors, rules, tokens or segments have changed."""
        self.leave()
        self._passes.clear()
        self._of_heads.clear()
        self._shown.clear()

    def leave(self, *jobs: str) -> None:
        """Pause; the results so far stay for the next time."""
        for job in jobs or (SEGMENTS, SEGMENTS_OF_HEADS):
            self._slices.drop(job)

    @property
    def has_segments(self) -> bool:
        """Whether there are segments."""
        return self._store.are_given

    # The traits.

    def of_head(self, shown: ShownLayers, at: tuple[int, int, int | str], place: MassPlace) -> Made:
        """Return the masses of a head, or of combined heads, the quick ones at once; the rest follows."""
        self.leave(SEGMENTS)
        found = self._shown["mass"] = self._pass_of(shown, *at, place)
        self._begin("mass", SEGMENTS, found, lambda: found.sampled, found.cells <= MAX_AT_ONCE)
        return found.message()

    def of_heads(self, shown: ShownLayers, at: tuple[int, int], place: MassPlace) -> Made:
        """Return the masses of all heads with a layer's length, the quick ones at once; the rest follows."""
        self.leave(SEGMENTS_OF_HEADS)
        found = self._shown["head_mass"] = self._pass_of_heads(shown, *at, place)
        self._begin("head_mass", SEGMENTS_OF_HEADS, found, lambda: True, whole=True)
        return found.message()

    def saved(self, shown: ShownLayers, at: tuple[int, int, int | str], place: MassPlace, keep: bool) -> MassPass:
        """Return the masses of a head for a file: those known, and all if that is quick.

        Args:
            shown: the layers.
            at: layer, sample and head.
            place: the asking segment, the path, and the summed stage.
            keep: whether requests about them will follow.
        """
        found = self._pass_of(shown, *at, place, keep=keep)
        for _ in found:
            if found.sampled and found.cells > AT_ONCE:
                break
        return found

    def saved_heads(self, shown: ShownLayers, at: tuple[int, int], place: MassPlace, keep: bool) -> HeadMasses:
        """Return the masses of all heads with a layer's length for a file, for a sample; see `saved`."""
        found = self._pass_of_heads(shown, *at, place, keep=keep)
        for _ in found:
            pass
        return found

    def places(self, shown: ShownLayers, layer: int, batch: int) -> list[tuple[str | None, tuple[str, ...]]]:
        """Return the segments that can ask or be opened, one level deep: (asking, path).

        None without segments; only the first if the segments do not fit, and the masses then have the reason.
        """
        try:
            both = self._store.both(shown, layer, batch)
        except Exception:  # a source may raise anything
            return [(None, ())]
        if both is None:
            return []
        queries, keys = both
        inside = [name for name in keys.distinct if len(keys.inside(name).distinct) > 1]
        return [(None, ()), *((name, ()) for name in queries.distinct), *((None, (name,)) for name in inside)]

    def segments(self, side: str, shown: ShownLayers, layer: int, batch: int, asking: Asking) -> dict[str, Any] | None:
        """Return the segments of one side as sent."""
        return self._store.message(side, shown, layer, batch, asking)

    def failed(self, error: Exception, of: Made) -> Made:
        """Return a message with the reason for missing masses."""
        return {"id": self._next(), **of, "error": sentence_of(error)}

    def finish(self) -> None:
        """Compute the rest of the shown masses now."""
        for name, job in (("mass", SEGMENTS), ("head_mass", SEGMENTS_OF_HEADS)):
            found = self._shown.get(name)
            if found is not None and not found.finished:
                for _ in found:
                    pass
                self.leave(job)
                self._put(name, found)

    # Requests.

    def find(self, number: int) -> MassPass:
        """Return the masses of a head by their number; ValueError if they are gone."""
        return _numbered(self._passes.values(), number)

    def find_heads(self, number: int) -> HeadMasses:
        """Return the masses of all heads by their number; ValueError if they are gone."""
        return _numbered(self._of_heads.values(), number)

    # Computing.

    def _pass_of(
        self,
        shown: ShownLayers,
        layer: int,
        batch: int,
        head: int | str,
        place: MassPlace,
        *,
        keep: bool = True,
    ) -> MassPass:
        """Return the pass over a head: the earlier one if it is kept."""
        key, att = (layer, batch, head, *place), shown.layers[layer]
        found = self._passes.get(key)
        if found is None or found.versions != att.versions():
            wanted = self._wanted(shown, layer, batch, head, place)
            found = MassPass(shown.of_own_text(layer, batch), wanted, self._next())
        if keep or key in self._passes:
            self._keep(self._passes, key, found)
        return found

    def _pass_of_heads(
        self,
        shown: ShownLayers,
        layer: int,
        batch: int,
        place: MassPlace,
        *,
        keep: bool = True,
    ) -> HeadMasses:
        """Return the pass over all heads with a layer's length."""
        shape = shown.layers[layer].shape
        key = (batch, shape.Q, shape.K, *place, shown.versions())
        found = self._of_heads.get(key)
        if found is None:
            wanted = self._wanted(shown, layer, batch, 0, place)
            found = HeadMasses(_OfOwnText(shown, batch), wanted, self._next())
        if keep or key in self._of_heads:
            self._keep(self._of_heads, key, found)
        return found

    def _wanted(self, shown: ShownLayers, layer: int, batch: int, head: int | str, place: MassPlace) -> Wanted:
        both = self._store.both(shown, layer, batch)
        if both is None:
            raise ValueError('there are no segments: give segments=, such as "sentences"')
        queries, keys = both
        outer, name = asked_in(queries, place.asking)
        asked = [*outer, name]
        columns = columns_of(keys, place.path, partial(self._colors, keys, asked))
        return Wanted(layer, batch, head, place.path, name, columns, rows_of(queries, outer), place.stage, outer)

    def _colors(self, keys: Segments, asked: Sequence[str], names: Sequence[str], path: Sequence[str]) -> list[int]:
        return self._store.colors(names, own_color_at(asked, path), (keys.entries, tuple(path)))

    def _next(self) -> int:
        self._number += 1
        return self._number

    @staticmethod
    def _keep(kept: OrderedDict[Any, Any], key: Any, found: Any) -> None:
        kept[key] = found
        kept.move_to_end(key)
        while len(kept) > MAX_KEPT:
            kept.popitem(last=False)

    def _begin(
        self, name: str, job: str, found: MassPass | HeadMasses, enough: Callable[[], bool], whole: bool
    ) -> None:
        """Compute the quick part, and start a job for the rest."""
        has_loop = self._slices.find_loop() is not None
        until = time.monotonic() + FIRST_SECONDS if has_loop else inf if whole else -inf
        for _ in found:
            if enough() and time.monotonic() > until:
                self._slices.start(job, self._rest(name, found))
                return
        self._done(name, found)

    def _rest(self, name: str, found: MassPass | HeadMasses) -> Iterator[None]:
        """Compute the rest; send results from time to time, each interval twice as long."""
        try:
            yield from in_slices(
                found, lambda: self._tell(name, found.message()), slice_seconds=SLICE_SECONDS, first=2 * FIRST_SECONDS
            )
        except Exception as error:
            log_told(log, f"the trait {name}", error)
            self._tell(name, self.failed(error, found.wanted.of() if name == "mass" else _of_heads(found)))
        else:
            self._put(name, found)

    def _put(self, name: str, found: MassPass | HeadMasses) -> None:
        if self._shown.get(name) is found:
            self._done(name, found)
            self._tell(name, found.message())

    def _done(self, name: str, found: MassPass | HeadMasses) -> None:
        """Color the segments with most mass in all heads, if there are more segments than colors."""
        if not isinstance(found, HeadMasses) or found.wanted.path or found.wanted.stage != "weights":
            return
        wanted, columns = found.wanted, found.wanted.columns
        if not self._store.choose(columns.names, wanted.outermost, columns.text, found.strongest()):
            return
        colors = self._store.colors(columns.names, wanted.outermost, columns.text)
        kept: list[MassPass | HeadMasses] = [*self._passes.values(), *self._of_heads.values()]
        for one in kept:
            if one.wanted.columns.text == columns.text and one.wanted.outermost == wanted.outermost:
                one.wanted.columns.colors[:] = colors
        self._recolored()
        shown = self._shown.get("mass")
        if shown is not None:
            self._tell("mass", shown.message())


class _OfOwnText:
    """The layers of a sample; if the keys are another text, no key is a query's own."""

    def __init__(self, shown: ShownLayers, batch: int) -> None:
        self._shown, self._batch = shown, batch

    def __len__(self) -> int:
        return len(self._shown.layers)

    def __getitem__(self, layer: int) -> AttentionBase:
        return self._shown.of_own_text(layer, min(self._batch, self._shown.layers[layer].shape.B - 1))


def _of_heads(found: MassPass | HeadMasses) -> Made:
    return {"batch": found.wanted.batch, **found.wanted.place()}


def _numbered(kept: Any, number: int) -> Any:
    for one in kept:
        if one.number == number:
            return one
    raise ValueError("other segments are shown now: send the request again")
