"""Reduce a capture afterwards: q, k and v of each call become an exact overview and numbers for each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor

from torch import Tensor

from ..._parallel.task import Task
from ..._parallel.work import gather
from ...attention import Attention
from ..files.capture_file import LoadedRecord
from ..records.overview_record import ReducedAttention, reduced_by_tasks, reducing_tasks
from ..text.stacks import TextedRecord


def reduce_records(
    forwards: Sequence[Mapping[str, TextedRecord]], executor: Executor | None, progress: bool
) -> list[dict[str, LoadedRecord]]:
    """Reduce all records of a capture: see `Capture.reduce`."""
    records = [(name, record) for of in forwards for name, record in of.items()]
    atts = [record.attention for _, record in records]
    each = [_tasks_of(name, record, att) for (name, record), att in zip(records, atts, strict=True)]
    results = iter(gather([task for its in each for task in its], executor, progress=progress, desc="reducing"))
    made = iter([_made(att, its, [next(results) for _ in its]) for att, its in zip(atts, each, strict=True)])
    return [
        {name: LoadedRecord(name, record.cross, next(made), record.text) for name, record in of.items()}
        for of in forwards
    ]


def _tasks_of(name: str, record: TextedRecord, att: Attention) -> list[Task]:
    if isinstance(att, ReducedAttention) or not att.shape.Q or not att.shape.K:
        return []
    return reducing_tasks(att, name, _ids_of(record, att))


def _ids_of(record: TextedRecord, att: Attention) -> Tensor | None:
    """Return the tokens of all positions as numbers, (B, K), if they are known."""
    ids = None if record.cross else record.text.ids
    return ids if ids is not None and ids.shape == (att.shape.B, att.shape.K) else None


def _made(att: Attention, tasks: Sequence[Task], found: Sequence[object]) -> Attention:
    return reduced_by_tasks(att, tasks, found) if tasks else att  # type: ignore[arg-type]
