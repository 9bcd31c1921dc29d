"""Metrics and small pictures of heads in parts, which workers compute: some rows of heads that share a key head."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .._engine.base import AttentionBase, Head
from .._engine.kept_levels import only_overviews
from .._engine.matmul import exact
from .._engine.parts import needed_for
from .._engine.softmax import normalizers
from .._parallel.task import Subject, Task, named
from .._utils.indexing import cuts
from .head_sampling import HeadSampler, heads_at_once, rows_at_once
from .metrics import MetricMeans


class SampledPart(NamedTuple):
    """The result of a task.

    sums, counts: the state of `MetricMeans` for these heads and rows.
    values, allowed: as in `HeadSampler`.
    normalizers: (heads, rows) the log-normalizers, if requested.
    """

    sums: Tensor
    counts: Tensor
    values: Tensor
    allowed: Tensor
    normalizers: Tensor | None


def sampler_tasks(
    att: AttentionBase,
    batch: int,
    queries: range,
    most: float,
    *,
    name: str | None,
    ids: Tensor | None,
    bins: tuple[int, int] | None = None,
    with_normalizers: bool = False,
) -> Iterator[Task]:
    """Yield tasks for all heads of a sample.

    Args:
        att: the layer.
        batch: the sample.
        queries: the rows.
        most: the most cells of a task, unless fewer rows than are computed at once have more.
        name: of the layer, if there are several.
        ids: the token of each position, if known.
        bins: rows and keys of a bin of the pictures; None for no pictures.
        with_normalizers: whether to compute log-normalizers too.
    """
    if not queries:
        return
    state = att.versions(), None if ids is None else tuple(ids.tolist())
    subject = Subject((needed_for(att, "weights"), ids), name or "this attention", att, state)
    H, K = att.shape.H, max(1, att.shape.K)
    is_kept = only_overviews(att) is not None
    several = H if is_kept else heads_at_once(att)
    unit = max(1, len(queries)) if is_kept else rows_at_once(att, 1 if bins is None else bins[0])
    rows = max(1, int(most / (several * K) / unit)) * unit
    for heads in cuts(range(H), several, several):
        for part in cuts(range(len(queries)), 1, rows):
            some = queries[part.start : part.stop]
            where = named(name, batch, heads, range(some[0], some[-1] + 1))
            arguments = batch, heads, some, (queries[0], queries[-1]), bins, with_normalizers
            yield Task(sampled_part, subject, arguments, where, max(1, len(heads) * len(part) * K))


def sampled_part(
    value: tuple[AttentionBase, Tensor | None],
    batch: int,
    heads: range,
    queries: range,
    ends: tuple[int, int],
    bins: tuple[int, int] | None,
    with_normalizers: bool,
) -> SampledPart:
    """Measure some rows of some heads in a worker."""
    att, ids = copy.copy(value[0]), value[1]
    sampler = HeadSampler(att, batch, heads, queries, bins=bins, ids=ids, ends=ends)
    for _ in sampler.steps():
        pass
    found = None
    if with_normalizers:
        with exact(att.device):
            of_heads = [normalizers(Head(att, batch, head), queries).log_normalizer() for head in heads]
            found = torch.stack(of_heads)
    return SampledPart(*sampler.means.state, sampler.values, sampler.allowed, found)


def joined_means(heads: int, tasks: Sequence[Task], found: Sequence[SampledPart]) -> MetricMeans:
    """Return the metrics of all heads of a sample from their parts."""
    means = MetricMeans(heads)
    for task, one in zip(tasks, found, strict=True):
        of: range = task.arguments[1]  # type: ignore[assignment]
        means.add_sums(of, one.sums, one.counts)
    return means
