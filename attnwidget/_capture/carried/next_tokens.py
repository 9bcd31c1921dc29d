"""Find the most likely next tokens after each call of a model, for several calls at once while it generates."""

from __future__ import annotations

import threading
from typing import Protocol

import torch
from torch import Tensor

CHOICES = 8  # most likely next tokens
IN_GROUP = 64  # logits in a group; the largest of each group is found first
MOST_LOGITS = 1 << 18  # searched at every position: more would take as long as a layer
BYTES_AT_ONCE = 1 << 22  # of waiting logits
CALLS_AT_ONCE = 16
COPIED_AT_ONCE = 1 << 15  # logits: for more, torch wakes other threads, which takes longer than the copy


class HasLikely(Protocol):
    """The facts from one call of the model."""

    likely: Tensor | LogitsOfSteps | None  # (B, n, 8)


class LogitsOfSteps:
    """Copies of the logits of one-token calls that still wait for their most likely next tokens.

    Args:
        logits: the logits of such a call, (B, 1, vocabulary).
    """

    def __init__(self, logits: Tensor) -> None:
        B, _, size = logits.shape
        count = min(CALLS_AT_ONCE, BYTES_AT_ONCE // max(1, B * size * logits.element_size()))
        self._rows = logits.new_empty(max(1, count), B, size)
        self._waiting: list[HasLikely] = []
        self._lock = threading.Lock()

    def add(self, facts: HasLikely, logits: Tensor) -> bool:
        """Copy the logits of a call; return False if their shape, dtype or device differs."""
        rows = self._rows
        if logits.shape != (rows.shape[1], 1, rows.shape[2]) or logits.dtype is not rows.dtype:
            return False
        if logits.device != rows.device:
            return False
        with self._lock:
            pairs = zip(*(x.split(COPIED_AT_ONCE, 1) for x in (rows[len(self._waiting)], logits[:, 0])), strict=True)
            for own, given in pairs:
                own.copy_(given)
            self._waiting.append(facts)
            facts.likely = self
            if len(self._waiting) == len(rows):
                self._find()
        return True

    def find(self) -> None:
        """Find the tokens of all waiting calls."""
        with self._lock:
            if self._waiting:
                self._find()

    def _find(self) -> None:
        found = _largest(self._rows[: len(self._waiting)])  # (calls, B, 8)
        for facts, own in zip(self._waiting, found, strict=True):
            facts.likely = own[:, None]
        self._waiting = []


def note_likely(facts: HasLikely, logits: Tensor, waiting: LogitsOfSteps | None) -> LogitsOfSteps | None:
    """Find the most likely next tokens of a call, or let its logits wait with others; return the waiting logits.

    Args:
        facts: the facts of the call.
        logits: (B, n, vocabulary).
        waiting: the logits of earlier calls.
    """
    one_fits = 2 * logits.numel() * logits.element_size() <= BYTES_AT_ONCE
    if logits.shape[1] != 1 or not one_fits or logits.numel() > MOST_LOGITS:
        facts.likely = most_likely(logits)
        return waiting
    if waiting is not None and waiting.add(facts, logits):
        return waiting
    if waiting is not None:
        waiting.find()
    waiting = LogitsOfSteps(logits)
    waiting.add(facts, logits)
    return waiting


def most_likely(logits: Tensor) -> Tensor:
    """Return the most likely tokens (B, n, up to 8) at each position; if there are many logits, only at the last."""
    return _largest(logits if logits.numel() <= MOST_LOGITS else logits[:, -1:])


def _largest(some: Tensor) -> Tensor:
    size, count = some.shape[2], some.shape[2] // IN_GROUP
    if count < 2 * CHOICES:
        return some.topk(min(CHOICES, size)).indices
    groups = some[..., : count * IN_GROUP].unflatten(2, (count, IN_GROUP))
    best = groups.amax(3).topk(CHOICES).indices  # the groups with the largest maxima have the most likely tokens
    tokens = (best[..., None] * IN_GROUP + torch.arange(IN_GROUP, device=best.device)).flatten(2)
    rest = torch.arange(count * IN_GROUP, size, device=best.device).expand(*tokens.shape[:2], -1)
    tokens = torch.cat([tokens, rest], 2)
    return tokens.gather(2, some.gather(2, tokens).topk(CHOICES).indices)
