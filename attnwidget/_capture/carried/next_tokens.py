"""The most likely next tokens after each call of a model, found of several calls at once while it generates."""

from __future__ import annotations

import threading
from typing import Protocol

import torch
from torch import Tensor

CHOICES = 8  # tokens, of those that are most likely next
IN_GROUP = 64  # logits of which the largest is looked for first
MOST_LOGITS = 1 << 18  # of which the most likely are looked for at each position: more would take as long as a layer
BYTES_AT_ONCE = 1 << 22  # of logits that wait
CALLS_AT_ONCE = 16
COPIED_AT_ONCE = 1 << 15  # logits: of more, torch wakes its other threads, which takes longer than to copy them


class HasLikely(Protocol):
    """What is known of a call of the model."""

    likely: Tensor | LogitsOfSteps | None  # (B, n, 8)


class LogitsOfSteps:
    """Copies of the logits of calls with one token each, whose most likely next tokens are not looked for yet.

    Args:
        logits: of such a call, (B, 1, vocabulary).
    """

    def __init__(self, logits: Tensor) -> None:
        B, _, size = logits.shape
        count = min(CALLS_AT_ONCE, BYTES_AT_ONCE // max(1, B * size * logits.element_size()))
        self._rows = logits.new_empty(max(1, count), B, size)
        self._waiting: list[HasLikely] = []
        self._lock = threading.Lock()

    def add(self, facts: HasLikely, logits: Tensor) -> bool:
        """Copy the logits of a call; False if they are of another kind."""
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
        """Find the tokens of all calls that wait."""
        with self._lock:
            if self._waiting:
                self._find()

    def _find(self) -> None:
        found = _largest(self._rows[: len(self._waiting)])  # (calls, B, 8)
        for facts, own in zip(self._waiting, found, strict=True):
            facts.likely = own[:, None]
        self._waiting = []


def note_likely(facts: HasLikely, logits: Tensor, waiting: LogitsOfSteps | None) -> LogitsOfSteps | None:
    """Note the most likely next tokens of a call, or its logits with those of others; return the latter.

    Args:
        facts: of the call.
        logits: (B, n, vocabulary).
        waiting: those of the calls before.
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
    """Return the most likely tokens at each position, or of many logits at the last alone: (B, n, up to 8)."""
    return _largest(logits if logits.numel() <= MOST_LOGITS else logits[:, -1:])


def _largest(some: Tensor) -> Tensor:
    size, count = some.shape[2], some.shape[2] // IN_GROUP
    if count < 2 * CHOICES:
        return some.topk(min(CHOICES, size)).indices
    groups = some[..., : count * IN_GROUP].unflatten(2, (count, IN_GROUP))
    best = groups.amax(3).topk(CHOICES).indices  # the most likely tokens are in the groups with the largest maxima
    tokens = (best[..., None] * IN_GROUP + torch.arange(IN_GROUP, device=best.device)).flatten(2)
    rest = torch.arange(count * IN_GROUP, size, device=best.device).expand(*tokens.shape[:2], -1)
    tokens = torch.cat([tokens, rest], 2)
    return tokens.gather(2, some.gather(2, tokens).topk(CHOICES).indices)
