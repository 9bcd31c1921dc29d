"""`sweep`: edit each head, layer, segment or key in turn, and measure the effect."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import isnan
from typing import Any, Literal, SupportsIndex, get_args

import torch

from ..._analysis.effect import fixed
from ..._segments.named import FIRST
from ..._segments.reading import segments as segments_of
from ..._segments.segments import Segments
from ..._utils.progress_bars import progress_bar
from ..._utils.time_left import TimeLeft
from ..._utils.validation import as_choice, as_size, told
from ..intercept.output_edits import LayerRefused
from ..modules.towers import Towers
from ..text.labels import can_spell
from .comparing import TargetLike, read_sample
from .model_call import RepeatableCall, read_call
from .runs import EditedRuns
from .swept_part import SweptPart, name_of_edit
from .targets import ComparedTarget, texts_of

Over = Literal["heads", "layers", "segments", "keys"]
Progress = bool | Callable[[int, int, float | None], Any]
SETTLE = 1.0  # seconds before the remaining time is reported
Record = dict[str, Any]


class Sweep(list[Record]):
    """The records of a sweep, one per run; `pandas.DataFrame` accepts the list.

    Attributes:
        over: "heads", "layers", "segments" or "keys".
        target: the token's text, or the function's name.
        seconds: the time of one run, as first measured.

    An interrupted sweep keeps its records so far, with `is_partial` True; `resume()` continues it.

    >>> import torch
    >>> from attnwidget import sweep
    >>> model, x = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(1, 5, 8)
    >>> found = sweep(model, (x, x, x), over="heads", target=lambda output: output[0].norm())
    >>> found.total, found.over, sorted(found[0])[:3]
    (2, 'heads', ['after', 'at', 'before'])
    """

    def __init__(self, work: _Work) -> None:
        super().__init__()
        self._work = work
        self.over = work.over
        self.target, self.seconds = work.target.name, work.runs.seconds

    @property
    def total(self) -> int:
        """The number of runs of the whole sweep, without those of layers that were left out."""
        return len(self._work.parts)

    @property
    def left_out(self) -> dict[str, str]:
        """The layers that this edit cannot be made in: the reason by module name."""
        return dict(self._work.left_out)

    @property
    def is_partial(self) -> bool:
        """Whether runs are missing."""
        return len(self) < self.total

    def resume(self, progress: Progress = False) -> Sweep:
        """Make the missing runs, and return this sweep.

        Args:
            progress: as in `sweep`.

        Returns:
            This sweep, unchanged if it is complete.

        >>> import torch
        >>> model, x = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(1, 5, 8)
        >>> def size(output):
        ...     return output[0].norm()
        >>> found = sweep(model, (x, x, x), over="heads", target=size)
        >>> found.is_partial, len(found.resume())
        (False, 2)
        """
        _check_progress(progress)
        _advance(self, self._work, progress)
        return self

    def __repr__(self) -> str:
        what = (
            f"{len(self)} of {self.total} runs, partial: resume() goes on" if self.is_partial else f"{self.total} runs"
        )
        known = (one for one in self if not isnan(one["change"]))
        largest = max(known, key=lambda one: abs(one["change"]), default=None)
        change = (
            ""
            if largest is None
            else f", largest change {fixed(largest['change'], signed=True)} ({_place_of(largest)})"
        )
        return f"Sweep over {self.over}, {self.target!r}: {what}{change}"


class _Work:
    """The runs of a sweep."""

    def __init__(
        self, runs: EditedRuns, target: ComparedTarget, edit: Any, over: Over, parts: Sequence[tuple[Record, SweptPart]]
    ) -> None:
        self.runs, self.target, self.edit, self.over, self.parts = runs, target, edit, over, list(parts)
        self.left_out: dict[str, str] = {}

    def records(self, done: int) -> Iterator[list[Record]]:
        """Yield the records of one run of the model at a time, skipping the first `done` parts."""
        runs = self.runs
        size = runs.size(len(self.parts))
        while done < len(self.parts):
            some = self.parts[done : done + runs.room(self.target, (), size)]
            try:
                edits = [part.edits(self.edit, runs.layers_with(self.left_out)) for _, part in some]
                found = runs.run(edits, self.target, size=size)
            except LayerRefused as refused:
                self._leave_out(refused, done)
                continue
            except torch.OutOfMemoryError:
                if size == 1:
                    raise
                size //= 2  # the estimate was too low
                continue
            yield [self._record(place, one) for (place, _), one in zip(some, found, strict=True)]
            done += len(some)

    def _leave_out(self, refused: LayerRefused, done: int) -> None:
        """Go on without a layer that cannot be edited.

        Raises:
            LayerRefused: no layer is left, or runs that are done have edited it.
        """
        number = next((i for i, one in enumerate(self.runs.layers) if one.name == refused.layer), None)
        by_layer = [part for _, part in self.parts if part.layer is not None]
        left = [one for one in self.parts[done:] if one[1].layer != number]
        names = {*self.left_out, refused.layer}
        wanted = {number for _, part in left for number in part.numbers(self.runs.layers_with(names))}
        if number is None or refused.layer in self.left_out or not wanted or (done and not by_layer):
            raise refused
        self.left_out[refused.layer] = str(refused)
        self.parts[done:] = left

    def _record(self, place: Record, found: Any) -> Record:
        of = {"edit": name_of_edit(self.edit), "target": self.target.name, "at": self.target.at}
        return {
            **place,
            **of,
            "before": found.before,
            "after": found.after,
            "change": found.after - found.before,
            "kl": found.kl,
        }


def sweep(
    model: Any,
    inputs: Any,
    *,
    over: Over = "heads",
    edit: Any = "zero",
    target: TargetLike = None,
    at: SupportsIndex = -1,
    batch: SupportsIndex | None = None,
    tokenizer: Any = None,
    first_piece: bool = False,
    segments: Any = None,
    layers: Sequence[int] | None = None,
    cross: bool = False,
    at_once: int | None = None,
    progress: Progress = False,
) -> Sweep:
    """Edit one head, layer, segment or key at a time, run the model, and measure the effect of each edit.

    Args:
        model, inputs, target, at, batch, tokenizer, first_piece: as in `effect`.
        over: what is edited at a time. "keys" are the positions of the text without its padding. Keys and segments are
            edited in all heads of all layers.
        edit: for heads and layers, any edit of `intervene`, or "cut", here a synonym of "zero". For segments and keys,
            "zero": no query attends to them, and the other keys take over their weight; "cut": their weights become 0,
            and the other weights stay; "uniform": a segment's weight is spread evenly over its keys.
        segments: the named parts of the text, for over="segments", as in `attnwidget.segments`.
        layers: restricts the sweep to these layers, numbered as in `cap.attention`; None: all. Keys and segments
            belong to one text, so in a model with several towers give the layers of one tower.
        cross: sweep cross-attention, numbered as in `cap.cross`.
        at_once: the maximum number of samples in one run of the model; None: as many as fit into memory and run faster
            together than in turn.
        progress: True draws a bar with the remaining time, if tqdm is installed. A function takes the number of runs
            done, the total and the seconds left (None while unknown), and ends the sweep if it returns False.

    Returns:
        `Sweep`, a list of records with layer, name and head, or segment, or key and token; edit, target, at, before,
        after, change (of the log-probability in nats, or of the function's number) and kl at that position. If
        interrupted, it keeps the records so far and is marked partial; `resume()` continues it. Layers that this edit
        cannot be made in are left out, with a warning; `left_out` has the reasons.

    Raises:
        TypeError, ValueError, IndexError: as in `effect`; or segments are missing, or no layer can be edited so.

    Each change is relative to a run without edits of the same batch size, so both are rounded alike. Rounding errors
    of about 1e-6 nats remain in float32, and 1e-2 in bfloat16.

    >>> import torch
    >>> model, x = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(1, 5, 8)
    >>> found = sweep(model, (x, x, x), over="heads", target=lambda output: output[0].norm())
    >>> [(one["layer"], one["head"]) for one in found], found.is_partial
    ([(0, 0), (0, 1)], False)
    """
    as_choice(over, get_args(Over), "over")
    _check_progress(progress)
    call = read_call(model, inputs, tokenizer)
    sample = 0 if callable(target) and batch is None else read_sample(batch, call.batches or 1)
    most = None if at_once is None else as_size(at_once, "at_once")
    runs = EditedRuns(call, sample, cross=cross, at_once=most, whole=callable(target))
    runs.begin()
    goal = runs.read(target, at, first_piece=first_piece)
    parts = list(_parts(over, edit, call, runs, sample, layers, segments))
    found = Sweep(_Work(runs, goal, edit, over, parts))
    found.resume(progress)
    if found.left_out:
        name, why = next(iter(found.left_out.items()))
        others = f" and {len(found.left_out) - 1} more" if len(found.left_out) > 1 else ""
        warnings.warn(f"the sweep leaves out {name!r}{others}: {why} (Sweep.left_out has each reason)", stacklevel=2)
    return found


def _parts(
    over: Over, edit: Any, call: RepeatableCall, runs: EditedRuns, sample: int, layers: Any, segments: Any
) -> Iterator[tuple[Record, SweptPart]]:
    """Yield each part to edit, with the fields that identify it in a record."""
    wanted = range(len(runs.layers)) if layers is None else _read_layers(layers, len(runs.layers))
    if over in ("heads", "layers"):
        for layer in wanted:
            place = {"layer": layer, "name": runs.layers[layer].name}
            if over == "layers":
                yield place, SweptPart(layer)
            else:
                yield from (
                    ({**place, "head": head}, SweptPart(layer, head)) for head in range(runs.layers[layer].heads)
                )
        return
    length = _length(runs, wanted)
    which = None if layers is None else tuple(wanted)
    if over == "keys" and edit == "uniform":
        raise ValueError("the weight on one key is even already: give edit='zero' or 'cut'")
    if over == "keys":
        yield from _keys(call, sample, length, which)
    else:
        yield from _segments(call, sample, length, segments, which)


def _length(runs: EditedRuns, wanted: Sequence[int]) -> int:
    """Return the number of keys.

    Raises:
        ValueError: the layers attend to several texts.
    """
    towers = Towers([one.name for one in runs.layers])
    texts: dict[tuple[str, int], int] = {}
    for layer in wanted:
        texts.setdefault((towers.name_of(runs.layers[layer].name), runs.layers[layer].keys), layer)
    if len(texts) > 1:
        listed = ", ".join(f"layer {layer} to {keys:,} keys" for (_, keys), layer in texts.items())
        raise ValueError(f"the layers attend to several texts, {listed}: say which are meant, such as layers=range(2)")
    return next(iter(texts))[1]


def _read_layers(given: Any, count: int) -> list[int]:
    """Return the numbers of layers without duplicates.

    Raises:
        TypeError, ValueError, IndexError: these are not numbers, are empty, or name a missing layer.
    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"layers is {told(given)}: give numbers of layers, such as [0, 1]")
    found = []
    for one in given:
        if isinstance(one, bool) or not hasattr(one, "__index__"):
            raise TypeError(f"layers has {told(one)}: give numbers of layers, such as [0, 1]")
        if not -count <= one.__index__() < count:
            raise IndexError(f"layers has {told(one)}, which does not exist: there are 0 to {count - 1}")
        found.append(one.__index__() % count)
    if not found:
        raise ValueError("layers is empty: name one or more, or leave it out for all")
    return list(dict.fromkeys(found))


def _check_progress(given: Any) -> None:
    if not isinstance(given, bool) and not callable(given):
        raise TypeError(
            f"progress is {told(given)}: give True for a bar, or a function of runs done, runs in all and seconds left"
        )


def _keys(
    call: RepeatableCall, sample: int, length: int, layers: tuple[int, ...] | None
) -> Iterator[tuple[Record, SweptPart]]:
    ids, real = call.text(sample, length)
    texts = [None] * length if ids is None else texts_of(ids.tolist(), call, 0)
    for key in range(length):
        if real is None or bool(real[key]):
            yield {"key": key, "token": texts[key]}, SweptPart(keys=(key,), layers=layers)


def _segments(
    call: RepeatableCall, sample: int, length: int, source: Any, layers: tuple[int, ...] | None
) -> Iterator[tuple[Record, SweptPart]]:
    if source is None:
        raise ValueError('over is "segments", but no segments are given: give segments={"document": (0, 40)}')
    ids, real = call.text(sample, length)
    known: Record = {} if ids is None else {"ids": ids.tolist()}
    known |= {"tokenizer": call.tokenizer} if known and can_spell(call.tokenizer) else {}
    found = segments_of(source, **known, length=length)
    begins = found.positions(FIRST).tolist() if FIRST in found.distinct and not isinstance(source, Segments) else []
    if real is not None and begins and not bool(real[begins[0]]):
        raise ValueError(
            f"sample {sample} begins with padding, and its first token cannot be told from padding: give tokenizer=, "
            "or only this sample, without padding"
        )
    for name in found.distinct:
        positions = tuple(one for one in found.positions(name).tolist() if real is None or bool(real[one]))
        if positions:
            yield {"segment": name, "tokens": len(positions)}, SweptPart(keys=positions, layers=layers)


def _advance(found: Sweep, work: _Work, progress: Progress) -> None:
    """Make the missing runs until done or interrupted."""
    begun, left = time.monotonic(), TimeLeft(time.monotonic(), len(found) / max(1, found.total), SETTLE)
    bar = (
        progress_bar()(total=found.total, initial=len(found), unit="run", desc=found.over) if progress is True else None
    )
    try:
        for records in work.records(len(found)):
            found += records
            seconds = left.at(time.monotonic(), len(found) / found.total)
            if bar is not None:
                bar.update(len(records))
            elif callable(progress) and progress(len(found), found.total, seconds) is False:
                break
    except KeyboardInterrupt:
        pass
    finally:
        if bar is not None:
            bar.close()
    if found.is_partial:
        passed = time.monotonic() - begun
        warnings.warn(
            f"the sweep ended after {len(found)} of {found.total} runs ({passed:.1f} s): it is partial, and resume() "
            "goes on",
            stacklevel=3,
        )


def _place_of(record: Record) -> str:
    if "segment" in record:
        return str(record["segment"])
    if "key" in record:
        return f"key {record['key']}"
    return f"layer {record['layer']}" + (f", head {record['head']}" if "head" in record else "")
