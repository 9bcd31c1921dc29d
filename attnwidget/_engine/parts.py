"""Split an overview into tasks for workers, and merge the results."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from math import ceil
from typing import NamedTuple

import torch
from torch import Tensor

from .._parallel.executors import workers_of
from .._parallel.task import Subject, Task, named
from .._parallel.work import gather
from .base import AttentionBase, with_sources
from .kept_levels import only_overviews
from .logsumexp import LogSumExp
from .matmul import exact
from .overview import Overview, parts_of, pooled
from .regions import Region
from .softmax import run_to_end
from .sources import CARRIED

MOST_CELLS = 1 << 30  # in a task: about a second of one thread
LEAST_CELLS = 1 << 24  # in a task; less is not worth one
TASKS_PER_WORKER = 4  # at least, if tasks are long enough, so that all workers end at about the same time


class PooledPart(NamedTuple):
    """Some rows of a pooled region, with the log-normalizers of their queries.

    values, allowed, cells: as in `PooledRegion`.
    normalizers: None if the stage needs none.
    """

    values: Tensor
    allowed: Tensor
    cells: Tensor | None
    normalizers: LogSumExp | None


def needed_for(att: AttentionBase, stage: str) -> AttentionBase:
    """Return an attention without values and `carries` if a stage does not need them, so that they are not sent.

    It has no ways to the residual stream either. Its cache is empty, so results do not depend on earlier computations.
    """
    found = with_sources(att, None)
    if stage not in CARRIED:
        keeps_v = stage == "contribution" or att.source.derived
        found.__setstate__({"carries": None, **({} if keeps_v else {"v": None})})
    return found


def subject_of(att: AttentionBase, stage: str, name: str | None) -> Subject:
    """Return the data that the tasks of an attention share.

    Args:
        att: the attention.
        stage: the stage that they compute.
        name: of the layer, if there are several.
    """
    return Subject(needed_for(att, stage), name or "this attention", att, att.versions())


def pooled_part(att: AttentionBase, region: Region, stage: str, pool: str, part: range | None) -> PooledPart:
    """Pool some rows of a region in a worker: see `pooled`."""
    att = copy.copy(att)
    with exact(att.device):
        found = run_to_end(pooled(att, region, stage, pool, part))
    rows = region.queries if part is None else region.queries[part.start : part.stop]
    return PooledPart(*found, att.known_rows(region.batch, region.head, rows))


def cells_of_a_task(executor: Executor | None, cells: float) -> float:
    """Return the most cells of a task, given the number of all cells."""
    each = cells / (TASKS_PER_WORKER * max(1, workers_of(executor).count()))
    return min(max(each, LEAST_CELLS), MOST_CELLS)


def overview_tasks(
    subject: Subject, region: Region, stage: str, pool: str, most: float, name: str | None
) -> Iterator[Task]:
    """Yield the tasks for the overview of a head, whose results `merged_overview` merges.

    Args:
        subject: from `subject_of`.
        region: all queries and keys of a head.
        stage: the stage to pool.
        pool: "max" or "mean".
        most: the most cells of a task.
        name: of the layer, if there are several.
    """
    att = subject.value
    is_whole = only_overviews(att) is not None or not region.queries
    parts = [(range(len(region.queries)), 1)] if is_whole else parts_of(att, region, stage, pool, most)
    for part, cells in parts:
        where = named(name, region.batch, region.head, region.queries[part.start : part.stop])
        yield Task(pooled_part, subject, (region, stage, pool, None if is_whole else part), where, max(cells, 1))


def merged_overview(att: AttentionBase, tasks: Sequence[Task], found: Sequence[PooledPart]) -> Overview:
    """Merge the parts of a head's overview, and cache their log-normalizers."""
    region: Region = tasks[0].arguments[0]  # type: ignore[assignment]
    with exact(att.device):
        values, allowed = (torch.cat(parts).to(att.device) for parts in zip(*(one[:2] for one in found), strict=True))
    for task, one in zip(tasks, found, strict=True):
        part: range | None = task.arguments[3]  # type: ignore[assignment]
        rows = region.queries if part is None else region.queries[part.start : part.stop]
        remember(att, region, rows, one, task.subject.state)
    return Overview(values, allowed, region.query_stride, region.key_bin)


def remember(att: AttentionBase, region: Region, rows: range, found: PooledPart, versions: object) -> None:
    """Cache the log-normalizers of a part, unless the tensors have changed since."""
    if found.normalizers is not None and versions == att.versions():
        numbers = LogSumExp(*(x.to(att.device) for x in found.normalizers))
        att.remember_rows(region.batch, region.head, rows, numbers)


def overviews(
    layers: Sequence[tuple[str | None, AttentionBase]],
    batch: int,
    heads: Sequence[Sequence[int]],
    size: int,
    pool: str,
    stage: str,
    executor: Executor | None,
    progress: bool,
) -> list[list[Overview]]:
    """Compute overviews of heads of several layers: see `AttentionStack.overviews`.

    Args:
        layers: their names and attentions.
        batch: which sample.
        heads: which heads of each layer.
        size, pool, stage: as in `overview`.
        executor: whose workers compute them; None for this thread.
        progress: draw a bar.
    """
    regions = [[_whole(att, batch, head, size) for head in of] for (_, att), of in zip(layers, heads, strict=True)]
    cells = sum(len(one.queries) * len(one.keys) for of in regions for one in of)
    most = cells_of_a_task(executor, cells)
    tasks: list[list[list[Task]]] = []
    for (name, att), of in zip(layers, regions, strict=True):
        subject = subject_of(att, stage, name)
        tasks.append([list(overview_tasks(subject, one, stage, pool, most, name)) for one in of])
    every = [task for of in tasks for its in of for task in its]
    results = iter(gather(every, executor, progress=progress, desc="overviews"))
    return [
        [merged_overview(att, its, [next(results) for _ in its]) for its in of]
        for (_, att), of in zip(layers, tasks, strict=True)
    ]


def _whole(att: AttentionBase, batch: int, head: int, size: int) -> Region:
    widths = ceil(att.shape.Q / size), ceil(att.shape.K / size)
    kept = only_overviews(att)
    widths = widths if kept is None else kept.whole_bins(*widths)
    return Region(batch, head, range(att.shape.Q), range(att.shape.K), *widths)
