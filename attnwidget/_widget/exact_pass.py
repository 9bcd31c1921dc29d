"""The picture of the selected head: exact at once, or sampled at first and then made exact by a pass, by and by."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

from .._engine.level_cache import LevelBuild, LevelKey
from .._messages import encoding, picture
from .._messages.heads_overview import ALL_HEADS
from .._messages.picture import PICTURE_OF, Picture, Refinement, as_failure, as_trait
from .._messages.tiles import PASS, TileQueue
from .._utils.scheduler import Scheduler
from .layers import ShownLayers


class Put(Protocol):
    """Sets traits, all of them in one message."""

    def __call__(self, **traits: Any) -> None: ...


class ExactPass:
    """The picture that is shown, and while it is a sampled one what makes it exact, in slices on the event loop.

    Args:
        slices: where the pass runs.
        views: whose tiles wait for it.
        send: a message, with its buffers.
        put: `picture` and `progress`, as they become known.
    """

    def __init__(
        self, slices: Scheduler, views: TileQueue, send: Callable[[dict[str, Any], list[bytes]], None], put: Put
    ) -> None:
        self._slices, self._views, self._send, self._put = slices, views, send, put
        self._refinement: Refinement | None = None  # while the picture is a sampled one
        self._of: dict[str, Any] = {}  # of what

    @property
    def build(self) -> LevelBuild | None:
        """The pass over the head, while there is one."""
        return None if self._refinement is None else self._refinement.build

    def picture(self, held: ShownLayers, *of: Any) -> Picture:
        """The exact picture where it is quick or its level is kept, else a sampled one; the exact one follows.

        Args:
            of: layer, batch, head, stage, pool; of several heads as one their name.
        """
        self.cancel()
        try:
            return as_trait(held.stack[of[0]].shape, of, self._look(held, of))
        except Exception:
            self.cancel()
            raise

    def as_far_as_known(self, shown: Picture) -> Picture:
        """The picture with the rows that are exact by now, for a front-end that asks for all there is."""
        refinement = self._refinement
        if refinement is None or refinement.exact_rows == 0 or shown.get("sampled") is None:
            return shown
        return shown | refinement.picture()

    def rest(self, guard: AbstractContextManager[Any]) -> Iterator[float]:
        """Take all steps that are left, each with the guard held, and tell the share that is done."""
        while (refinement := self._refinement) is not None:
            steps = refinement.steps()
            while True:
                with guard:  # a front-end's message may come in between
                    if self._refinement is not refinement or next(steps, steps) is steps:
                        break
                yield refinement.share

    def resume(self) -> None:
        """Go on, where there is an event loop to do so."""
        if self._refinement is None:
            return
        runs = self._slices.start(PASS, self._refinement.steps(), math.inf)
        self._tell(self._refinement.share, None, "running" if runs else "stopped")

    def stop(self, shown: Picture) -> None:
        """Leave it at what is known of the picture that is shown."""
        if self._refinement is None:
            return
        self._slices.drop(PASS)
        self._views.pass_stopped(self._refinement.build)
        self._tell(self._refinement.share, None, "stopped", picture=self.as_far_as_known(shown))

    def cancel(self) -> None:
        """Compute nothing more of what was selected before."""
        self._refinement = None
        for job in self._slices.names:
            if job != ALL_HEADS:
                self._slices.drop(job)
        self._views.forget()
        self._put(progress=None)

    def _look(self, held: ShownLayers, of: tuple[Any, ...]) -> Picture:
        layer, batch, name, stage, pool = of
        levels, head = held.source(layer, name)
        att, key = levels.att, LevelKey(batch, head, stage, pool)
        if not picture.is_long(att, key):
            return picture.exact_now(att, key)
        kept = levels.find(key)
        if kept is not None:
            return picture.from_level(levels, key, kept)
        self._of = dict(zip(PICTURE_OF, of, strict=True))
        self._refinement = Refinement(
            levels,
            key,
            on_rows=lambda band: self._send_band(held.version, band),
            on_progress=self._tell,
            on_done=lambda made: self._end(as_trait(held.stack[of[0]].shape, of, made)),
            on_error=lambda error: self._end(failure(error, held, of)),
        )
        self.resume()
        return self._refinement.picture()

    def _tell(self, share: float, seconds_left: float | None, state: str = "running", **also: Any) -> None:
        if self._refinement is None:
            return
        self._views.pass_advanced(self._refinement.build)
        self._put(**also, progress={**self._of, "share": share, "seconds_left": seconds_left, "state": state})

    def _send_band(self, version: int, band: dict[str, Any]) -> None:
        buffers: list[bytes] = []
        values = encoding.detach(band["values"], buffers)
        self._send({"band": {**self._of, "version": version, **band, "values": values}}, buffers)

    def _end(self, made: Picture) -> None:
        """The exact picture is there, or will not be."""
        refinement, self._refinement = self._refinement, None
        self._slices.drop(PASS)
        if refinement is not None:
            self._views.pass_advanced(refinement.build)
        self._put(picture=made, progress=None)


def failure(error: Exception, held: ShownLayers, of: tuple[Any, ...]) -> Picture:
    """What takes the place of a picture that cannot be computed."""
    return as_failure(held.stack[of[0]].shape, of, error)
