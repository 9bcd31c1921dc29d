"""Merge the captures of several processes, each with a part of a model: by layer, by head and by position."""

from __future__ import annotations

import glob
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..._engine.base import Part
from ..._engine.kept_levels import KeptLevels
from ..._engine.sources import Given
from ..._rules.row_spans import Spans, as_spans, simplify
from ...attention import Attention
from ...masks import Mask
from ..records.overview_record import ReducedAttention, reduced_attention
from . import capture_file
from .capture_file import LoadedCapture, LoadedRecord

HEADS, QUERIES = 1, 2  # axes
ROWS_AT_ONCE = 256  # of a mask
ONE_BY_ONE = "load each file alone"
NAMED = 8  # missing processes in an error


def load_files(pattern: str | Path) -> LoadedCapture:
    """Read one file, or all files that match a pattern as one capture: see `Capture.load`."""
    text = str(pattern)
    if not glob.has_magic(text) or Path(text).exists():
        return capture_file.load(pattern)
    paths = sorted(glob.glob(text), key=_by_numbers)
    if not paths:
        raise FileNotFoundError(
            f"no file matches {text!r}: {capture_file.ADVICE}, or a pattern such as run-*.safetensors"
        )
    parts = {Path(path).name: capture_file.load(path) for path in paths}
    return next(iter(parts.values())) if len(parts) == 1 and not _size(parts) else join(parts)


def _by_numbers(path: str) -> list[tuple[bool, int, str]]:
    """Return a sort key that puts run-10 after run-9."""
    groups = itertools.groupby(path, str.isdecimal)
    return [(is_number, int(found) if is_number else 0, found) for is_number, of in groups for found in ["".join(of)]]


def join(parts: Mapping[str, LoadedCapture], *, are_all: bool = False) -> LoadedCapture:
    """Return one capture from the files of several processes, by file name.

    Args:
        parts: by file name.
        are_all: whether the others are known to have nothing, and these are in the order of their heads.

    Raises:
        ValueError: a part is missing or there twice, or the files are not of one run; it names the files.
    """
    parts = parts if are_all else _in_order(parts)
    counts = {name: len(part.forwards) for name, part in parts.items()}
    (first, count), *others = counts.items()
    unlike = next((f"{name} {n}" for name, n in others if n != count), None)
    if unlike:
        raise ValueError(f"{first} has {count} forward passes but {unlike}: give the files of one run")
    all_there = are_all or _size(parts) > 0
    by_file = [{name: part.forwards[i] for name, part in parts.items()} for i in range(count)]
    forwards = [_joined(one, all_there=all_there) for one in by_file]
    skipped = {
        name if sum(name in one.skipped for one in parts.values()) == 1 else f"{name} ({file})": why
        for file, part in parts.items()
        for name, why in part.skipped.items()
    }
    towers = tuple(dict.fromkeys(tower for part in parts.values() for tower in part.towers))
    tokenizers = [part.tokenizer for part in parts.values() if part.tokenizer is not None]
    words = [one for one in tokenizers if not isinstance(one, str)]
    requests = next((part.requests for part in parts.values() if part.requests), ())
    return LoadedCapture(forwards, skipped, next(iter([*words, *tokenizers]), None), towers, requests=requests)


def _size(parts: Mapping[str, LoadedCapture]) -> int:
    """Return how many processes the files report; 0 if they do not."""
    return next((part.process[1] for part in parts.values() if part.process is not None), 0)


def _in_order(parts: Mapping[str, LoadedCapture]) -> dict[str, LoadedCapture]:
    """Return the parts by process number, if the files report it; raise if one is missing or doubled."""
    if not _size(parts):
        return dict(parts)
    silent = next((name for name, part in parts.items() if part.process is None), None)
    if silent is not None:
        raise ValueError(
            f"{silent} is from a single process, and other files are of several: give the files of one run"
        )
    sizes = {part.process[1]: name for name, part in parts.items() if part.process is not None}
    if len(sizes) > 1:
        told = " and ".join(f"{name} is one of {size} processes" for size, name in sizes.items())
        raise ValueError(f"{told}: give the files of one run")
    ranks: dict[int, str] = {}
    for name, part in parts.items():
        rank = part.process[0] if part.process is not None else 0
        if rank in ranks:
            raise ValueError(f"{ranks[rank]} and {name} are both of process {rank}: give one of them")
        ranks[rank] = name
    missing = list(itertools.islice((rank for rank in range(_size(parts)) if rank not in ranks), NAMED + 1))
    if missing:
        which = f"process {missing[0]}" if len(missing) == 1 else f"processes {', '.join(map(str, missing[:NAMED]))}"
        which += ", …" * (len(missing) > NAMED)
        raise ValueError(f"the part of {which} of {_size(parts)} is missing: there are {', '.join(ranks.values())}")
    return {ranks[rank]: parts[ranks[rank]] for rank in sorted(ranks)}


def _joined(parts: Mapping[str, Mapping[str, LoadedRecord]], *, all_there: bool) -> dict[str, LoadedRecord]:
    """Return one forward pass from the same pass in several files."""
    found: dict[str, dict[str, LoadedRecord]] = {}
    for file, records in parts.items():
        for name, record in records.items():
            found.setdefault(name, {})[file] = record
    return {name: _one_of(name, records, all_there=all_there) for name, records in found.items()}


def _one_of(name: str, records: Mapping[str, LoadedRecord], *, all_there: bool) -> LoadedRecord:
    """Return one record from a layer's records in several files, each with other heads or other queries.

    Args:
        name: of the layer.
        records: by file name.
        all_there: whether these are known to be all files.
    """
    file, *others = sorted(records, key=lambda one: _first_numbers(records[one].attention.part))
    joined, part = records[file].attention, records[file].attention.part or Part()
    for other in others:
        try:
            _refuse_another_run(records[file], records[other])
            joined, part = _laid_together(joined, part, records[other].attention)
        except ValueError as error:
            raise ValueError(f"{name!r} of {file} and of {other} {error}") from error
    if others and part.heads is not None:
        missing = sorted(set(range(part.heads[-1])) - set(part.heads))
        if missing and not all_there:
            raise ValueError(f"{name!r}: no file has head {missing[0]}: give all files of one run")
        alike = len({record.attention.shape.H for record in records.values()}) == 1  # else the last lacks some heads
        part = part._replace(heads=None) if all_there and alike and not missing else part
    text = next((one.text for one in records.values() if one.text.tensors()), records[file].text)
    return replace(records[file], attention=joined.as_part(*part), text=text)


def _first_numbers(part: Part | None) -> tuple[int, int]:
    heads, queries, *_ = part or Part()
    return (heads or (0,))[0], (queries or (0,))[0]


def _refuse_another_run(one: LoadedRecord, other: LoadedRecord) -> None:
    if one.cross != other.cross:
        raise ValueError(f"are not of one run, because one is cross-attention: {ONE_BY_ONE}")
    if isinstance(one.attention, ReducedAttention) is not isinstance(other.attention, ReducedAttention):
        raise ValueError(f"are not of one run, because one holds pictures without q and k: {ONE_BY_ONE}")


def _laid_together(joined: Attention, part: Part, other: Attention) -> tuple[Attention, Part]:
    """Return two attentions as one, and its part of the model's call."""
    theirs = other.part or Part()
    if part.heads != theirs.heads and part.queries == theirs.queries:
        numbers = _both("head", part.heads, theirs.heads)
        return _along(HEADS, joined, other), part._replace(heads=numbers)
    if part.heads == theirs.heads and part.queries != theirs.queries:
        numbers = _both("query", part.queries, theirs.queries)
        return _along(QUERIES, joined, other), part._replace(queries=numbers)
    raise ValueError(
        "have the same heads and the same queries: if processes each run the whole model on samples of their own, "
        + ONE_BY_ONE
    )


def _both(what: str, ours: tuple[int, ...] | None, theirs: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the numbers of both, concatenated."""
    if ours is None or theirs is None:
        raise ValueError(f"have each {what} of one twice, because the other has all: {ONE_BY_ONE}")
    doubled = sorted(set(ours) & set(theirs))
    if doubled:
        raise ValueError(f"both have {what} {doubled[0]}: {ONE_BY_ONE}")
    if ours[-1] > theirs[0]:
        raise ValueError(f"have {what} {theirs[0]} of one before {what} {ours[-1]} of the other: {ONE_BY_ONE}")
    return (*ours, *theirs)


def _along(axis: int, a: Attention, b: Attention) -> Attention:
    """Return two attentions as one, along the axis of heads or of queries."""
    _refuse_unlike(axis, a, b)
    if isinstance(a, ReducedAttention) and isinstance(b, ReducedAttention):
        return _pictures_along(axis, a, b)
    if isinstance(a.source, Given) and isinstance(b.source, Given):
        weights = torch.cat([a.source.matrix, b.source.matrix], axis)
        v = a.v if a.v is None or axis == QUERIES else torch.cat([a.v, _need(b.v)], axis)
        return Attention.from_weights(weights, v)
    keywords: dict[str, Any] = {name: getattr(a, name) for name in ("scale", "softcap", "is_causal", "window")}
    keywords |= {name: _rule(name, axis, a, b) for name in ("mask", "bias")}
    keywords["sinks"] = a.sinks if a.sinks is None or axis == QUERIES else torch.cat([a.sinks, _need(b.sinks)])
    return Attention(*_tensors(axis, a, b), **keywords)


def _pictures_along(axis: int, a: ReducedAttention, b: ReducedAttention) -> Attention:
    """Return two reduced attentions as one, along the axis of heads."""
    if axis != HEADS:
        raise ValueError(f"hold pictures without q and k of other queries, which cannot be merged: {ONE_BY_ONE}")
    x, y = a.source, b.source
    mask = None if x.is_whole else _rule("mask", axis, a, b)
    return reduced_attention(
        KeptLevels(
            torch.cat([x.values, y.values], 1),
            _cat(1, x.allowed, y.allowed, [a.shape.H, b.shape.H]),
            torch.cat([x.log_normalizers, y.log_normalizers], 1),
            torch.cat([x.metric_sums, y.metric_sums], 2),
            torch.cat([x.metric_counts, y.metric_counts], 2),
            x.bins,
            None if x.sinks is None else torch.cat([x.sinks, _need(y.sinks)]),
        ),
        (a.shape.Q, a.shape.K),
        mask,
        a.is_causal,
    )


def _refuse_unlike(axis: int, a: Attention, b: Attention) -> None:
    """Raise if two attentions are not two parts of one."""
    kept = [
        name for name in ("B", "Q", "K", "D", "Dv", "H", "G") if name not in ({"H", "G"} if axis == HEADS else {"Q"})
    ]
    unlike = [name for name in kept if getattr(a.shape, name) != getattr(b.shape, name)]
    unlike += [
        name for name in ("scale", "softcap", "is_causal", "window", "dtype") if getattr(a, name) != getattr(b, name)
    ]
    if (a.v is None) != (b.v is None) or (a.sinks is None) != (b.sinks is None):
        unlike.append("v or sinks")
    if a.shape.H * b.shape.G != b.shape.H * a.shape.G:
        unlike.append("heads in a group")
    if unlike:
        raise ValueError(f"differ in {', '.join(unlike)}, so they are not parts of one: give the files of one run")


def _tensors(axis: int, a: Attention, b: Attention) -> list[Any]:
    if axis == HEADS:
        return [None if x is None else torch.cat([x, _need(y)], 1) for x, y in ((a.q, b.q), (a.k, b.k), (a.v, b.v))]
    if a.is_causal or a.window is not None:
        raise ValueError(f"have other queries, and rules that count queries from the first: {ONE_BY_ONE}")
    if not torch.equal(_need(a.k), _need(b.k)):
        raise ValueError(f"have other queries, and keys that differ: {ONE_BY_ONE}")
    return [torch.cat([_need(a.q), _need(b.q)], 2), a.k, a.v]


def _need(x: Tensor | None) -> Tensor:
    assert x is not None  # checked before
    return x


def _rule(name: str, axis: int, a: Attention, b: Attention) -> Any:
    """Return the mask or bias of both."""
    one, other = getattr(a.options, name), getattr(b.options, name)
    if one is None and other is None:
        return None
    if axis == QUERIES and name == "mask" and not (isinstance(one, Tensor) or isinstance(other, Tensor)):
        ends = [_spans_of(x, one) for x, one in ((a, one), (b, other))]
        sizes = [a.shape.Q, b.shape.Q]
        spans = Spans(
            *(_cat(axis, getattr(ends[0], side), getattr(ends[1], side), sizes) for side in ("starts", "stops"))
        )
        return simplify(spans, a.shape.B, sum(sizes), a.shape.K)
    if type(one) is not type(other):
        raise ValueError(f"have a {name} in different forms: {ONE_BY_ONE}")
    sizes = [(x.shape.H, x.shape.Q)[axis - HEADS] for x in (a, b)]
    if isinstance(one, Spans):
        return Spans(*(_cat(axis, x, y, sizes) for x, y in ((one.starts, other.starts), (one.stops, other.stops))))
    if isinstance(one, Tensor):
        return _cat(axis, one, other, sizes)
    mine, theirs = (x.tensors() if isinstance(x, Mask) else {} for x in (one, other))
    same = mine.keys() == theirs.keys() and all(_are_equal(x, theirs[key]) for key, x in mine.items())
    if axis == HEADS and repr(one) == repr(other) and same:
        return one
    raise ValueError(f"have a {name} that cannot be merged: {ONE_BY_ONE}")


def _spans_of(att: Attention, mask: Any) -> Spans:
    """Return a mask, or none, of an attention as spans of its queries.

    Raises:
        ValueError: its rows are not runs of keys.
    """
    Q, K = att.shape.Q, att.shape.K
    if isinstance(mask, Spans):
        return mask
    if mask is None:
        none = torch.zeros(1, 1, 1, dtype=torch.int32, device=att.device)
        return Spans(none, none + K)
    if not isinstance(mask, Mask) or not mask.shared:
        raise ValueError(f"have a mask that cannot be merged: {ONE_BY_ONE}")
    zero = torch.zeros((), dtype=torch.int64, device=att.device)
    keys = torch.arange(K, device=att.device)
    found = []
    for rows in torch.arange(Q, device=att.device).split(ROWS_AT_ONCE):
        spans = as_spans(mask(zero, zero, rows[:, None], keys).expand(1, 1, len(rows), K))
        if spans is None:
            raise ValueError(f"have a mask that cannot be merged: {ONE_BY_ONE}")
        found.append([ends.expand(1, 1, len(rows)) for ends in (spans.starts, spans.stops)])
    return Spans(*(torch.cat(ends, 2) for ends in zip(*found, strict=True)))


def _cat(axis: int, x: Tensor, y: Tensor, sizes: Iterable[int]) -> Tensor:
    """Return the rules of both along an axis; a rule that is the same for all stays so."""
    if x.shape[axis] == y.shape[axis] == 1 and _are_equal(x, y):
        return x
    others = [max(m, n) for m, n in zip(x.shape, y.shape, strict=True)]
    found = []
    for rule, size in zip((x, y), sizes, strict=True):
        found.append(rule.expand(*others[:axis], size, *others[axis + 1 :]))
    return torch.cat(found, axis)


def _are_equal(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape and x.dtype == y.dtype and torch.equal(x, y)
