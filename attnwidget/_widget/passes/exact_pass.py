"""The picture of the selected head: exact at once, or sampled first and then made exact by a pass."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from typing import Any

from ..._engine.level_cache import LevelBuild, LevelKey
from ..._messages.codec import encoding
from ..._messages.pictures import picture
from ..._messages.pictures.heads_of_stage import STAGE_HEADS
from ..._messages.pictures.heads_overview import ALL_HEADS
from ..._messages.pictures.picture import Picture, Refinement
from ..._messages.pictures.tiles import PASS, TileQueue
from ..._parallel.executors import workers_of
from ..._utils.failures import log_told
from ..._utils.scheduler import Scheduler
from ..stores.layers import ShownLayers
from .eviction_pass import EVICTIONS, Put

RECALL = "recall"  # the job that computes the recall of each row under a cache policy
EXACT_STAGES = "exact stages"  # the job that makes the stages of a long head exact
SEGMENTS, SEGMENTS_OF_HEADS = "segments", "segments of all heads"  # jobs for the attention between segments
WAIT = 0.05  # seconds per wait for a worker, while the exact picture is awaited
OWN_JOBS = (
    ALL_HEADS,
    STAGE_HEADS,
    EXACT_STAGES,
    SEGMENTS,
    SEGMENTS_OF_HEADS,
    EVICTIONS,
    RECALL,
)  # they end when their results are no longer wanted

log = logging.getLogger(__name__)


class ExactPass:
    """The shown picture, and the pass that makes a sampled one exact.

    Args:
        scheduler: runs the pass in slices on the event loop.
        tile_queue: sends tiles as soon as the pass has them.
        send: sends a message with its buffers.
        put: sets `picture` and `progress`.
        shown: returns the shown picture.

    Attributes:
        executor: computes the next exact pictures; None: this process.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        tile_queue: TileQueue,
        send: Callable[[dict[str, Any], list[bytes]], None],
        put: Put,
        shown: Callable[[], Picture],
    ) -> None:
        self._scheduler, self._tile_queue, self._send, self._put = scheduler, tile_queue, send, put
        self._shown_picture = shown
        self.executor: Executor | None = None
        self._refinement: Refinement | None = None  # while the picture is sampled
        self._of: dict[str, Any] = {}  # the picture's layer, batch, head, stage, pool

    @property
    def build(self) -> LevelBuild | None:
        """The pass over the head, if one is running."""
        return None if self._refinement is None else self._refinement.build

    @property
    def under_way(self) -> bool:
        """Whether the exact picture is still due, in the background or by `rest`."""
        return self._refinement is not None

    def picture(self, shown: ShownLayers, *of: Any) -> Picture:
        """Return the exact picture if it is quick or its level is kept, else a sampled one; the exact one follows.

        Args:
            of: layer, batch, head, stage, pool; combined heads have a name.
        """
        self.cancel()
        try:
            return picture.labeled(self._look(shown, of), of, shown.stack[of[0]].shape)
        except Exception:
            self.cancel()
            raise

    def as_far_as_known(self, sampled: Picture) -> Picture:
        """Return the picture with all rows that are exact by now, for a front-end that has just opened."""
        refinement = self._refinement
        if refinement is None or refinement.exact_rows == 0 or sampled.get("sampled") is None:
            return sampled
        return sampled | refinement.picture()

    def give_to(self, executor: Executor | None) -> None:
        """Let an executor compute the current exact picture and the next ones.

        Raises:
            TypeError: it is not an executor.
        """
        workers_of(executor)
        self.executor = executor
        if self._refinement is not None:
            self._refinement.build.give_to(executor)

    def rest(self, lock: AbstractContextManager[Any], executor: Executor | None = None) -> Iterator[float]:
        """Compute the rest, each step with the lock held, and yield the finished share after each step.

        Args:
            lock: the widget's lock.
            executor: computes this rest; None: the current executor.
        """
        while (refinement := self._refinement) is not None:
            build, steps = refinement.build, refinement.steps()
            build.wait = WAIT
            if executor is not None:
                build.give_to(executor)
            try:
                while True:
                    with lock:  # lets a front-end's message in between
                        if self._refinement is not refinement or next(steps, steps) is steps:
                            break
                    yield refinement.share
            finally:
                build.wait = 0.0
                build.give_to(self.executor)

    def resume(self) -> None:
        """Continue the pass, if there is an event loop."""
        if self._refinement is None:
            return
        runs = self._scheduler.start(PASS, self._refinement.steps(), math.inf)
        self._tell(self._refinement.share, None, "running" if runs else "stopped")

    def stop(self) -> None:
        """Stop the pass, and show what is known of the picture."""
        if self._refinement is None:
            return
        self._scheduler.drop(PASS)
        self._tile_queue.pass_stopped(self._refinement.build)
        self._tell(self._refinement.share, None, "stopped", picture=self.as_far_as_known(self._shown_picture()))

    def cancel(self) -> None:
        """End the pass, and all other jobs for the picture."""
        if self._refinement is not None:
            self._refinement.build.close()  # its steps refer to it: the cycle would keep the tensors
        self._refinement = None
        for job in self._scheduler.names:
            if job not in OWN_JOBS:
                self._scheduler.drop(job)
        self._tile_queue.forget()
        self._put(progress=None)

    def _look(self, shown: ShownLayers, of: tuple[Any, ...]) -> Picture:
        layer, batch, name, stage, pool = of
        levels, head = shown.source(layer, name)
        att, key = levels.att, LevelKey(batch, head, stage, pool)
        if not picture.is_long(att, key):
            return picture.exact_now(att, key)
        kept = levels.find(key)
        if kept is not None:
            return picture.from_level(levels, key, kept)
        self._of = dict(zip(picture.OF, of, strict=True))
        self._refinement = Refinement(
            levels,
            key,
            on_sampled=lambda made: self._put(picture=picture.labeled(made, of, shown.stack[layer].shape)),
            on_rows=lambda band: self._send_band(shown.version, band),
            on_progress=self._tell,
            on_done=lambda made: self._end(picture.labeled(made, of, shown.stack[layer].shape)),
            on_error=lambda error: self._fail(error, shown, of),
            executor=self.executor,
        )
        self.resume()
        return self._refinement.picture()

    def _tell(self, share: float, seconds_left: float | None, state: str = "running", **also: Any) -> None:
        if self._refinement is None:
            return
        self._tile_queue.pass_advanced(self._refinement.build)
        progress = {**self._of, "share": share, "seconds_left": seconds_left, "state": state}
        workers = self._refinement.build.workers if state == "running" else None
        self._put(**also, progress=progress if workers is None else {**progress, "workers": workers})

    def _send_band(self, version: int, band: dict[str, Any]) -> None:
        buffers: list[bytes] = []
        values = encoding.detach(band["values"], buffers)
        self._send({"band": {**self._of, "version": version, **band, "values": values}}, buffers)

    def _fail(self, error: Exception, shown: ShownLayers, of: tuple[Any, ...]) -> None:
        log_told(log, "the exact picture", error)
        self._end(picture.failed(error, of, shown.stack[of[0]].shape))

    def _end(self, made: Picture) -> None:
        """Show the exact picture, or why it could not be computed."""
        refinement, self._refinement = self._refinement, None
        self._scheduler.drop(PASS)
        if refinement is not None:
            self._tile_queue.pass_advanced(refinement.build)
        self._put(picture=made, progress=None)
