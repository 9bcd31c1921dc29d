"""Run a model with edits, several per batch, and compare each run with one without edits."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._analysis.effect import divergences, log_probabilities
from ..._utils.interrupts import surely
from ..call.memory_limit import free_bytes
from ..modules.module_walk import device_of
from ..session.options import read_options
from ..session.recorder import Recorder
from .comparing import function_target
from .edits import PerSample
from .intervene import intervene_in
from .model_call import RepeatableCall
from .targets import ComparedTarget, find_logits, read_at, read_target, refuse_positions_first

Edits = Mapping[Any, Any]  # in the form that `intervene` takes

MAX_AT_ONCE = 16  # samples of one run
TOKENS_AT_ONCE = {"cpu": 1024, "cuda": 16_384}  # larger batches are no faster
SHARE = 0.25  # of the free memory that a run may take
HIDDEN = 24  # one sample needs at most this many times the size of the q and k of all layers
ROUNDING = 64  # times eps · |logit|: how far a sample in a batch may differ from the same sample alone


class LayerFacts(NamedTuple):
    """An attention layer of the model.

    name: the name of its module.
    heads, queries, keys: their numbers.
    """

    name: str
    heads: int
    queries: int
    keys: int


@dataclass
class RunEffect:
    """The effect of one edit.

    Attributes:
        before, after: the target's log-probability, or the function's number.
        kl: the KL divergence of the next token at the target's position; None for a function.
        rows: (2, V) logits at that position, without and with the edit; None for a function.
        kl_more: the mean divergence over the additional positions; None if there are none.
    """

    before: float
    after: float
    kl: float | None = None
    rows: Tensor | None = field(default=None, repr=False)
    kl_more: float | None = None


class EditedRuns:
    """Runs of one sample of a call with edits.

    Args:
        call: the call to repeat.
        batch: its sample.
        cross: whether the layers are cross-attention.
        at_once: the maximum number of samples in one run; None: as many as fit and run faster together than in turn.
        whole: whether every run has all samples of the call, as a function of the output needs.
    """

    def __init__(
        self, call: RepeatableCall, batch: int, *, cross: bool = False, at_once: int | None = None, whole: bool = False
    ) -> None:
        self._call, self._batch, self._cross, self._at_once = call, batch, cross, at_once
        apart = call.can_repeat and not whole
        self._one = call.copies(batch, 1) if apart else call
        self._sample = 0 if apart else batch
        self._bytes = 0
        self._sizes: set[tuple[int, int]] = set()  # numbers of samples and queries of self-attention layers
        self.layers: tuple[LayerFacts, ...] = ()
        self.logits: Tensor | None = None  # (n, V) without edits
        self.output: Any = None
        self.seconds = 0.0
        self._compared: dict[Any, Tensor] = {}  # rows without edits, by positions and batch size
        self._keeps = call.takes("logits_to_keep") and not {"logits_to_keep", "labels"} & {*call.kwargs}
        self.is_alone = at_once == 1 or not apart  # whether each run has one sample

    # Without edits.

    def begin(self) -> None:
        """Run the model once without edits to find its layers and the time of a run.

        Raises:
            ValueError: no attention was captured, so nothing can be edited.
        """
        _, recorder = recorded(self._one)
        forwards = recorder.matcher.forwards
        records = forwards[-1] if forwards else {}
        shapes = {name: one.attention.shape for name, one in records.items() if one.cross == self._cross}
        self.layers = tuple(LayerFacts(name, shape.H, shape.Q, shape.K) for name, shape in shapes.items())
        own = [one.attention.shape for one in records.values() if not one.cross]
        self._sizes = {(shape.B, shape.Q) for shape in own}
        if not self.layers:
            kind = "cross-attention" if self._cross else "self-attention"
            why = "; ".join(f"{name}: {reason}" for name, reason in recorder.skipped.items())
            raise ValueError(f"no {kind} was captured, so nothing can be edited{': ' + why if why else ''}")
        self._bytes = sum(4 * one.heads * (one.queries + one.keys) * 64 for one in self.layers)
        del recorder, forwards, records
        begun = time.perf_counter()
        self.output = output = self._one()
        self.seconds = time.perf_counter() - begun
        with contextlib.suppress(ValueError):
            self.logits = find_logits(output, self._call)[self._sample]

    def layers_with(self, left_out: Collection[str]) -> tuple[int, ...]:
        """Return the numbers of all layers but those whose names are given."""
        return tuple(number for number, one in enumerate(self.layers) if one.name not in left_out)

    def read(self, target: Any, at: Any, *, first_piece: bool = False) -> ComparedTarget:
        """Return the compared target: see `attnwidget.effect`."""
        if callable(target):
            return function_target(target)
        if self.logits is None:
            find_logits(self.output, self._call)  # raises an error that gives the reason
            raise AssertionError
        refuse_positions_first(self._one, self._sizes)
        place = read_at(at, self._one, self._sample, len(self.logits))
        return read_target(target, self._one, self.logits[place], place, first_piece=first_piece)

    # With edits.

    def size(self, total: int, seconds: float = math.inf) -> int:
        """Return the number of samples of a run: as many as fit and are no slower together than in turn.

        Args:
            total: the number of edits.
            seconds: the maximum time of a run of more than one sample.
        """
        if self.is_alone:
            return 1
        length = max((one.queries for one in self.layers), default=1)
        device = device_of(self._call.model)
        free, each = free_bytes(device), self._bytes * HIDDEN
        each += 0 if self.logits is None else 3 * self.logits.numel() * self.logits.element_size()
        most = [MAX_AT_ONCE if self._at_once is None else self._at_once, total + 1]
        if self._at_once is None:
            most.append(TOKENS_AT_ONCE.get(device.type, 4096) // max(1, length))
            most.append(MAX_AT_ONCE if free is None else int(SHARE * free) // max(1, each))
        if self.seconds * 2 > seconds:
            most.append(1)
        elif seconds < math.inf:
            most.append(int(seconds / max(self.seconds, 1e-6)))
        return max(1, min(most))

    def room(self, target: ComparedTarget, more: Sequence[int], size: int) -> int:
        """Return how many edits fit into the next run of this size, which may also need one sample without edits."""
        known = size == 1 or self.is_alone or (self._places(target, more), size) in self._compared
        return max(1, size - (not known)) if not self.is_alone else 1

    def run(
        self, edits: Sequence[Edits], target: ComparedTarget, more: Sequence[int] = (), size: int = 1
    ) -> list[RunEffect]:
        """Run the model once, with one edit per sample.

        Args:
            edits: at most as many as there is `room` for.
            target: the compared target.
            more: additional positions for the KL divergence.
            size: the number of samples of the run.

        Returns:
            The effect of each edit, relative to a run of the same batch size, because rounding depends on it.
        """
        if target.function is not None:
            number = target.number(self.output)
            return [RunEffect(number, target.number(self._edited(self._one, one))) for one in edits]
        places = self._places(target, more)
        if size == 1 or self.is_alone:
            before = self._alone(places)
            return [_effect_of(before, self._edited_rows(self._one, one, places)[0], places, target) for one in edits]
        copies = self._call.copies(self._batch, size)
        fresh = (places, size) not in self._compared
        slots = [*([{}] if fresh else []), *edits]
        rows = self._edited_rows(copies, joined([*slots, *([{}] * (size - len(slots)))]), places)
        if fresh:
            if self._differs(rows[0], places):
                self.is_alone = True  # samples of a batch influence each other
                return self.run(edits, target, more)
            self._compared[places, size] = rows[0].clone()
        before = self._compared[places, size]
        return [_effect_of(before, x, places, target) for x in rows[fresh : len(slots)]]

    @staticmethod
    def _places(target: ComparedTarget, more: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted({int(target.at or 0), *more}))

    def _alone(self, places: tuple[int, ...]) -> Tensor:
        """Return rows without edits from a run of one sample."""
        if (places, 1) not in self._compared:
            rows = self._rows(self._one(**self._logits_to_keep(places)), places)
            if self._keeps and self._differs(rows[self._sample], places):
                self._keeps = False
                rows = self._rows(self._one(), places)
            self._compared[places, 1] = rows[self._sample].clone()
        return self._compared[places, 1]

    def _differs(self, rows: Tensor, places: tuple[int, ...]) -> bool:
        """Return whether rows without edits differ from the first run by more than rounding."""
        assert self.logits is not None
        first = self.logits[list(places)]
        largest = first[first.isfinite()].abs().max().clamp_min(1.0) if bool(first.isfinite().any()) else 1.0
        return not bool(
            ((rows - first).abs().nan_to_num(nan=0.0) <= ROUNDING * torch.finfo(rows.dtype).eps * largest).all()
        )

    def _logits_to_keep(self, places: tuple[int, ...]) -> dict[str, Any]:
        """Return the argument that makes a transformers model compute logits only at these positions."""
        return {"logits_to_keep": torch.tensor(places, device=device_of(self._call.model))} if self._keeps else {}

    def _edited(self, call: RepeatableCall, edits: Edits, **more: Any) -> Any:
        """Return the output of a run with edits.

        Raises:
            ValueError: an edit was not made.
        """
        with intervene_in(self._call.model, edits, [one.name for one in self.layers], cross=self._cross):
            return call(**more)

    def _edited_rows(self, call: RepeatableCall, edits: Edits, places: tuple[int, ...]) -> Tensor:
        """Return the logits (samples, n, V) of a run with edits at n positions."""
        return self._rows(self._edited(call, edits, **self._logits_to_keep(places)), places)[
            [self._sample] if call is self._one else slice(None)
        ]

    def _rows(self, output: Any, places: tuple[int, ...]) -> Tensor:
        logits = find_logits(output, self._call)
        return logits if self._keeps and logits.shape[1] == len(places) else logits[:, list(places)]


def recorded(call: RepeatableCall) -> tuple[Any, Recorder]:
    """Return the output of a call, and a capture's records of it, which number its layers."""
    recorder = Recorder(call.model, read_options(clone=False, values=False, strict=False))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about kept tensors and samples
        recorder.begin()
        try:
            output = call()
        finally:
            surely(recorder.stop)
        recorder.settle()
    return output, recorder


def joined(edits: Sequence[Edits]) -> dict[Any, Any]:
    """Combine the edits of several samples into those of one batch."""
    keys = dict.fromkeys(key for one in edits for key in one)
    return {key: PerSample([one.get(key) for one in edits]) for key in keys}


def _effect_of(before: Tensor, after: Tensor, places: tuple[int, ...], target: ComparedTarget) -> RunEffect:
    """Return the effect of an edit, from the logits (n, V) at n positions without and with it."""
    assert target.token is not None
    here = places.index(int(target.at or 0))
    p, q = (float(log_probabilities(x[here])[target.token]) for x in (before, after))
    kl = divergences(before, after)
    more = [i for i in range(len(places)) if i != here or len(places) == 1]
    return RunEffect(
        p,
        q,
        float(kl[here]),
        torch.stack([before[here], after[here]]),
        float(kl[more].mean()) if len(places) > 1 else None,
    )
