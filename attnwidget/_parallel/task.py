"""Tasks, and the subjects that they share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, eq=False)
class Subject:
    """The shared input of several tasks.

    value: an attention and its settings; passed to the function of each task.
    name: in errors, such as "layer 3".
    owner: the object with which results of an interrupted call are kept; None: they are not kept.
    state: identifies the results together with the task: with another state they are other results.
    advice: what to give instead of a subject that cannot be sent; "": a mask or a function that can be.
    """

    value: Any
    name: str
    owner: Any = None
    state: Hashable = ()
    advice: str = ""


@dataclass(frozen=True, eq=False)
class Task:
    """Some work that is independent of all other work.

    function: takes the subject's value and the arguments; at the top of a module, because workers find it by name.
    subject: shared with other tasks.
    arguments: small, and hashable.
    where: in errors, such as "layer 3, sample 0, head 5, queries 4,096–8,191".
    cells: the amount of work, in any unit.
    """

    function: Callable[..., Any]
    subject: Subject
    arguments: tuple[Hashable, ...]
    where: str
    cells: float = 1.0
    key: Hashable = field(init=False)

    def __post_init__(self) -> None:
        key = self.function.__module__, self.function.__qualname__, self.subject.state, self.arguments
        object.__setattr__(self, "key", key)


def named(layer: str | None, batch: int, heads: Sequence[int] | int, queries: range | None = None) -> str:
    """Return the name of a task in errors.

    >>> named("layer 3", 0, 5, range(4096, 8192)), named(None, 0, range(4))
    ('layer 3, sample 0, head 5, queries 4,096–8,191', 'sample 0, heads 0–3')
    """
    heads = [heads] if isinstance(heads, int) else heads
    which = f"head {heads[0]}" if len(heads) == 1 else f"heads {heads[0]}–{heads[-1]}"
    parts = [*([] if layer is None else [layer]), f"sample {batch}", which]
    if queries:
        parts.append(f"queries {queries[0]:,}–{queries[-1]:,}")
    return ", ".join(parts)
