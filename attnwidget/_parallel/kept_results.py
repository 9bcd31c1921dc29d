"""Results of interrupted calls, kept with their subject until the same call is made again."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from .task import Task

_kept: WeakKeyDictionary[Any, dict[Hashable, Any]] = WeakKeyDictionary()
_lock = threading.Lock()


def keep(tasks: Sequence[Task], results: Mapping[int, Any]) -> None:
    """Keep the results of some tasks, by their numbers."""
    with _lock:
        for number, result in results.items():
            if tasks[number].subject.owner is not None:
                _kept.setdefault(tasks[number].subject.owner, {})[tasks[number].key] = result


def take(tasks: Sequence[Task]) -> dict[int, Any]:
    """Return the results of tasks that have run before, by their numbers, and forget them."""
    found = {}
    with _lock:
        for number, task in enumerate(tasks):
            known = None if task.subject.owner is None else _kept.get(task.subject.owner)
            if known is not None and task.key in known:
                found[number] = known.pop(task.key)
    return found
