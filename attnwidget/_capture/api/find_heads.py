"""Which heads do what, over many texts: kinds of heads measured in each text, with their spread, the highest first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._analysis.all_heads import RowPlan, head_numbers
from ..._analysis.head_kinds import NEEDS, HeadText, KindsLike, OwnMetric, Spans, measure_heads, read_names, read_roles
from ..._analysis.head_sampling import sample
from ..._analysis.metrics import FIRST_KEYS, SINK_THRESHOLD, WINDOW, as_ids
from ..._segments.chat import is_chat
from ..._segments.reading import segments as segments_of
from ..._segments.segments import Segments
from ..._tokens.inputs import check_tokens
from ..._utils.validation import as_number, as_size, kind_of, told
from ...attention import Attention
from ...stack import AttentionStack
from ..call.call_text import UNKNOWN
from ..modules.module_walk import device_of
from ..session.callers import module_of
from ..text.labels import can_spell
from .capture import Capture, Forward, capture

TO_NULL = "query_focused"  # the kind that is compared with a query that asks nothing


def find_heads(
    models_or_captures: Any,
    texts: Any = None,
    *,
    kind: KindsLike,
    top: int | None = 20,
    tokenizer: Any = None,
    segments: Any = None,
    roles: Mapping[str, str | Sequence[str]] | None = None,
    null: Any = None,
    null_segments: Any = None,
    rows: int | None = None,
    threshold: float = SINK_THRESHOLD,
    first: int = FIRST_KEYS,
    window: int = WINDOW,
) -> list[dict[str, Any]]:
    """Find the heads that do something most, over a set of texts: a list of records, as `pandas.DataFrame` takes it.

    Args:
        models_or_captures: a model, which is run on each text and captured; or what is there already: a `Capture`, a
            `Forward`, an `AttentionStack` or an `Attention`, of which each sample is a text. A list or a dict of such
            compares several.
        texts: what a model is run on: a list of strings (with a tokenizer), of ids, or of dicts of the model's
            arguments. Of a stack or an attention, the tokens of each sample as strings, where a kind compares tokens.
        kind: which, or several in a list; or a metric of your own: a function that takes
            `attnwidget.results.HeadRows`, some exact rows of some heads, and returns a tensor (heads, rows), NaN where
            a row does not count, whose mean over the rows is the number; in a dict under a name: {"mine": function}.

            The fields of `attnwidget.results.Metrics`: "entropy", "first_token", "previous_token", "itself",
            "same_token", "last_token", "induction", "mean_distance", "masked_share", "learned_sink".

            "sink": the share of rows with more than `threshold` on the first token (Gu et al. 2025, arXiv 2410.10781,
            §2, one row after the other), of rows that may attend to more than one key.

            "streaming": the weight on the `first` keys, the `window` keys up to the query's own and the learned sink,
            of rows that may attend to any other (Xiao et al. 2024, arXiv 2309.17453; 2410.10819).

            "retrieval": of the tokens of the answer that are in the needle, the share whose strongest key, in the row
            that writes them, is that token of the needle (Wu et al. 2024, arXiv 2404.15574, §2; their code
            divides by the tokens of the needle instead). Needs the segments "needle" and "answer".

            "query_focused": the weight on the documents from the tokens of the query, less that from a query that asks
            nothing (Zhang et al. 2025, QRHead, arXiv 2506.09944, §2, of the documents that hold the answer: name these
            by `roles`; their retriever leaves out tokens far below the mean). Needs the segments "query" and
            "documents", and `null`.

            "lookback": mean weight on the tokens before the answer ÷ (that + mean weight on the answer's tokens so
            far, the row's own among them), of the answer's rows (Chuang et al. 2024, arXiv 2407.07071, §2.1, as in
            their code, Lookback-Lens; the words at the end of the prompt that ask for an answer count there as
            answered, and here where the segment begins with them). Needs the segment "answer".

            "receiver": the excess kurtosis, over the sentences, of the mean weight that a sentence's tokens are given
            by the sentences 4 or more later (Bogdan et al. 2025, Thought Anchors, arXiv 2506.19143, §5, as in their
            code without its ranks by depth). Needs the segments of six sentences or more.
        top: how many heads of each kind and model; None for all.
        tokenizer: for texts that are strings; that of a pipeline where None. Its words are what tokens are compared by.
        segments: what stands where in the text: {"needle": (start, stop), …} in tokens, or a list of such runs under a
            name; `Segments`; or what `attnwidget.segments` makes them of, such as "sentences" or the messages of a
            chat. For all texts alike, or a list with one for each. Those that a capture knows where None.
        roles: which segments the "needle", the "answer", the "query", the "documents" and the "sentences" are, where
            their names do not say: {"documents": ["passage 1", "passage 2"]}. Else the documents are those whose names
            begin with "doc", the query may be called "question", and the sentences are all segments, of the innermost
            level; `Segments` and chats know their answer.
        null: for "query_focused", the same texts with a query that asks nothing, such as "N/A"; or their capture.
        null_segments: theirs, where they are at other tokens than `segments`.
        rows: of kinds that look at all rows, how many of each text, evenly spread; None for all while all heads of a
            text have at most 2²⁸ cells, else up to 32 of each. Each row is exact.
        threshold: of "sink".
        first, window: of "streaming", keys.

    Returns:
        A dict for each head, the highest mean first: kind, model (the name or number of one of several), rank (from 1),
        layer, name, head (and model_head, where a capture kept some), mean and std (the standard deviation, with n − 1;
        None of one text) over the texts, n (how many texts had anything to measure), rows (how many rows that is in
        all).

    Raises:
        ValueError: no such kind, a kind that needs what is not given, texts in which there is nothing to measure.
        TypeError: something that is neither a model nor a capture; texts that cannot be read.

    >>> from attnwidget import Attention
    >>> previous, first = torch.eye(8).roll(-1, 1), torch.eye(8)[[0] * 8]
    >>> att = Attention.from_weights(torch.stack([previous, first])[None])
    >>> [(one["head"], one["mean"]) for one in find_heads(att, kind="previous_token")]
    [(0, 1.0), (1, 0.14285714285714285)]
    >>> find_heads(att, kind={"to key 3": lambda rows: rows.weights[..., 3]}, top=1)[0]["mean"]
    0.125
    """
    kinds = read_names(kind)
    top = None if top is None else as_size(top, "top")
    numbers = {
        "threshold": as_number(threshold, "threshold"),
        "first": as_size(first, "first"),
        "window": as_size(window, "window"),
    }
    given = _named(models_or_captures)
    texts, null = (list(one) if isinstance(one, Iterator) else one for one in (texts, null))  # each model reads them
    nulls = _nulls(given, null) if TO_NULL in kinds else {}
    rows = None if rows is None else as_size(rows, "rows")
    named = read_roles(roles)
    found: list[dict[str, Any]] = []
    for name, source in given.items():
        measured = _Spread()
        asked = _Asked(kinds, named, rows, numbers)
        count = asked.measure(source, texts, tokenizer, segments, measured, 1)
        if name in nulls:
            only = _Asked({TO_NULL: None}, named, rows, numbers)
            places = segments if null_segments is None else null_segments
            others = only.measure(*nulls[name], tokenizer, places, measured, -1)
            if others != count:
                raise ValueError(
                    f"null has {others} text{'s' if others > 1 else ''} to be compared with {count}: give each text "
                    "once more, with a query that asks nothing"
                )
        where = {"model": name} if len(given) > 1 or isinstance(models_or_captures, Mapping) else {}
        for one in kinds:
            found += measured.records(one, where, top)
    return found


class _Spread:
    """The numbers of each head in each text, by kind."""

    def __init__(self) -> None:
        self._values: dict[str, dict[tuple[int, int], dict[int, float]]] = {}  # of each text, by layer and head
        self._heads: dict[tuple[int, int], dict[str, Any]] = {}
        self._rows: dict[str, int] = {}

    def add(self, kind: str, layer: int, name: str, att: Attention, text: int, values: Tensor) -> None:
        """Add a layer's numbers, (heads,), in one text; a text that is there already is added to."""
        for head, value in enumerate(values.tolist()):
            self._heads.setdefault((layer, head), {"layer": layer, "name": name, **head_numbers(att, head)})
            of_texts = self._values.setdefault(kind, {}).setdefault((layer, head), {})
            of_texts[text] = of_texts.get(text, 0.0) + value

    def count(self, kind: str, rows: int) -> None:
        """Add rows that were looked at."""
        self._rows[kind] = self._rows.get(kind, 0) + rows

    def records(self, kind: str, where: Mapping[str, Any], top: int | None) -> list[dict[str, Any]]:
        """Return the records of a kind."""
        found = []
        for at, of_texts in self._values.get(kind, {}).items():
            values = torch.tensor(
                [value for value in of_texts.values() if value == value], dtype=torch.float64, device="cpu"
            )
            if len(values):
                std = float(values.std()) if len(values) > 1 else None
                spread = {"mean": float(values.mean()), "std": std, "n": len(values)}
                found.append({**self._heads[at], **spread, "rows": self._rows[kind]})
        if not found:
            raise ValueError(
                f"{kind}: no row of these texts counts, by its definition in help(find_heads): give other texts, or "
                "tokens where it compares them"
            )
        found.sort(key=lambda one: (-one["mean"], one["layer"], one["head"]))
        return [{"kind": kind, **where, "rank": rank, **one} for rank, one in enumerate(found[:top], 1)]


class _Sample(NamedTuple):
    """One text: its layers, by number and name, each with a number for each token of its keys."""

    layers: list[tuple[int, str, Attention, Tensor | None]]
    batch: int
    text: _TextOfSample
    forward: Forward | None = None


class _TextOfSample(NamedTuple):
    """What is known of a text, for its segments: ids with a tokenizer, or a string for each token."""

    tokenizer: Any = None
    ids: Tensor | None = None
    tokens: list[str] | None = None


class _Asked(NamedTuple):
    """What is asked of each text."""

    kinds: Mapping[str, OwnMetric | None]
    roles: Mapping[str, list[str]]
    rows: int | None
    numbers: Mapping[str, Any]

    def measure(self, source: Any, texts: Any, tokenizer: Any, segments: Any, spread: _Spread, sign: int) -> int:
        """Measure all texts, add what is found, times the sign, and return how many texts there were."""
        number = -1
        for number, one in enumerate(_samples(source, texts, tokenizer, main=segments is not None)):
            known = _SegmentsOfText.of(segments, number, one) if self._needs_segments(segments) else _SegmentsOfText()
            self._measure(one, number, known, spread, sign)
        if isinstance(segments, list | tuple) and len(segments) != number + 1:
            raise ValueError(
                f"segments has {len(segments)} entries, and there are {number + 1} texts: give one for each"
            )
        if number < 0:
            raise ValueError("there are no texts: give one or more")
        return number + 1

    def _needs_segments(self, segments: Any) -> bool:
        return segments is not None or any(kind in NEEDS for kind in self.kinds)

    def _measure(self, one: _Sample, number: int, known: _SegmentsOfText, spread: _Spread, sign: int) -> None:
        roles = {**known.roles, **self.roles}
        plan = RowPlan([att.shape for _, _, att, _ in one.layers], one.batch)
        for place, (layer, name, att, ids) in enumerate(one.layers):
            queries = plan.queries[place] if self.rows is None else sample(att.shape.Q, self.rows)
            text = HeadText(ids, known.spans, roles, one.text.tokens)
            found = measure_heads(att, one.batch, self.kinds, text, queries, **self.numbers)
            for kind, values in found.values.items():
                spread.add(kind, layer, name, att, number, sign * values)
                if place == 0 and sign > 0:
                    spread.count(kind, found.rows[kind])


# Where the attention comes from.


def _named(given: Any) -> dict[Any, Any]:
    """Return models and captures by name, or by number."""
    if isinstance(given, Mapping):
        found = dict(given)
    elif isinstance(given, list | tuple):
        found = dict(enumerate(given))
    else:
        return {0: given}
    if not found:
        raise ValueError("there is no model and no capture: give one or more")
    if all(isinstance(one, Attention) for one in found.values()) and not isinstance(given, Mapping):
        raise TypeError("a list of attentions may be layers or models: give AttentionStack([…]), or a dict by name")
    return found


def _nulls(given: Mapping[Any, Any], null: Any) -> dict[Any, tuple[Any, Any]]:
    """Return for each model or capture what is compared with it: a source and its texts."""
    if null is None:
        raise ValueError(
            "query_focused is compared with a query that asks nothing: give null=, the same texts with 'N/A' for the "
            "query, or a capture of them"
        )
    if isinstance(null, Mapping) and set(null) == set(given):
        return {name: (one, None) if _is_recorded(one) else (given[name], one) for name, one in null.items()}
    if _is_recorded(null):
        if len(given) > 1:
            raise ValueError("null is one capture, of several models: give a dict with one for each, by their names")
        return dict.fromkeys(given, (null, None))
    for name, one in given.items():
        if _is_recorded(one):
            raise ValueError(f"null holds texts, but {told(name)} is a capture: give the capture of these texts")
    return {name: (one, null) for name, one in given.items()}


def _is_recorded(given: Any) -> bool:
    return isinstance(given, Forward | AttentionStack | Attention)


def _samples(source: Any, texts: Any, tokenizer: Any, *, main: bool) -> Iterator[_Sample]:
    """Yield each text of a model, a capture or a stack.

    Args:
        source: where the attention comes from.
        texts: as in `find_heads`.
        tokenizer: for strings.
        main: only the stack whose text it is, where there are several towers.
    """
    if isinstance(source, Attention | AttentionStack):
        stack = AttentionStack([source]) if isinstance(source, Attention) else source
        yield from _of_stack(stack, texts)
    elif isinstance(source, Forward):
        if texts is not None:
            raise ValueError("texts are for models, and a capture has its own: leave them out")
        for forward in source if isinstance(source, Capture) else [source]:
            yield from _of_forward(forward, main=main)
    else:
        yield from _of_model(source, texts, tokenizer, main=main)


def _of_stack(stack: AttentionStack, texts: Any) -> Iterator[_Sample]:
    for batch in range(max(att.shape.B for att in stack)):
        layers = []
        for number, (name, att) in enumerate(zip(stack.names, stack, strict=True)):
            if batch < att.shape.B:
                tokens = None if texts is None else check_tokens(texts, att.shape.B, att.shape.K, "texts")
                layers.append((number, name, att, None if tokens is None else as_ids(tokens[batch])))
                text = _TextOfSample(tokens=None if tokens is None else tokens[batch])
        yield _Sample(layers, batch, text)


def _of_forward(forward: Forward, *, main: bool, ids: Tensor | None = None) -> Iterator[_Sample]:
    """Yield the samples of one forward pass; `ids` are those that were read, where the capture does not know them."""
    numbers = {name: number for number, name in enumerate(forward.attention.names)}
    stacks = [one for one in forward.stacks().values() if not one.cross]
    if main and (of_text := forward._main_stack()) is not None:  # noqa: SLF001
        stacks = [of_text]
    layers: list[tuple[int, str, Attention, Sequence[Tensor | None] | None]] = []
    side = stacks[-1].keys
    raw = ids if side.ids is None else side.ids
    for one in stacks:
        words = one.keys.as_words(forward.tokenizer)
        known: list[Tensor | None] | None = None if words is None else [as_ids(sample) for sample in words]
        for name, att in zip(one.records, one.attention, strict=True):
            if known is None and ids is not None and ids.shape == (att.shape.B, att.shape.K):
                known = [*ids]
            layers.append((numbers[name], name, att, known))
    layers.sort(key=lambda layer: layer[0])
    for batch in range(max(att.shape.B for _, _, att, _ in layers)):
        there = [layer for layer in layers if batch < layer[2].shape.B]
        text = _TextOfSample(
            forward.tokenizer if can_spell(forward.tokenizer) else None,
            None if raw is None or batch >= len(raw) or bool((raw[batch] == UNKNOWN).any()) else raw[batch],
        )
        of_layers = [(i, name, att, None if k is None else k[batch]) for i, name, att, k in there]
        yield _Sample(of_layers, batch, text, forward)


def _of_model(model: Any, texts: Any, tokenizer: Any, *, main: bool) -> Iterator[_Sample]:
    """Run a model on each text, one after the other, and yield its samples."""
    module = module_of(model)
    if module is None:
        raise TypeError(f"{kind_of(model)} is neither a model nor a capture: give an nn.Module, or a capture")
    if texts is None:
        raise ValueError("a model is run on texts, and there are none: give a list of strings, or of ids")
    if isinstance(texts, str | Mapping | Tensor) or not isinstance(texts, Iterable):
        texts = [texts]
    for text in texts:
        cap = capture(model, tokenizer=tokenizer, values=False)
        spelling = tokenizer if can_spell(tokenizer) else cap.tokenizer
        inputs = _inputs_of(text, spelling, module)
        with torch.no_grad(), cap:
            module(**inputs) if isinstance(inputs, Mapping) else module(inputs)
        ids = inputs.get("input_ids") if isinstance(inputs, Mapping) else inputs
        for forward in cap:
            yield from _of_forward(forward, main=main, ids=ids if isinstance(ids, Tensor) else None)


def _inputs_of(text: Any, tokenizer: Any, module: torch.nn.Module) -> Any:
    """Return what a model is called with for a text: its arguments by name, or ids (1, n)."""
    device = device_of(module)
    if isinstance(text, str):
        if not can_spell(tokenizer):
            raise ValueError(f"texts holds a string, {told(text)}: give the tokenizer as well, as tokenizer=, or ids")
        if not callable(tokenizer):
            found = tokenizer.encode(text)
            return torch.tensor([list(getattr(found, "ids", found))], device=device)
        text = tokenizer(text, return_tensors="pt")
    if isinstance(text, Mapping) or hasattr(text, "keys"):
        return {name: x.to(device) if isinstance(x, Tensor) else x for name, x in dict(text).items()}
    ids = torch.as_tensor(text, device=device)
    if ids.ndim not in (1, 2) or ids.is_floating_point():
        raise TypeError(f"a text is {told(text)}: give a string, ids, or a dict of the model's arguments")
    return ids[None] if ids.ndim == 1 else ids


# Segments.


class _SegmentsOfText(NamedTuple):
    """The segments of a text: by name, the runs of keys; and roles that they have by themselves."""

    spans: Mapping[str, Spans] = {}
    roles: Mapping[str, Sequence[str]] = {}

    @classmethod
    def of(cls, given: Any, number: int, one: _Sample) -> _SegmentsOfText:
        """Return the segments of one text, as they are given for all, or for each."""
        if given is None:
            return cls._of_capture(one)
        if isinstance(given, list | tuple) and not is_chat(given):
            if number >= len(given):
                raise ValueError(f"segments has {len(given)} entries, and there are more texts: give one for each")
            given = given[number]
        if isinstance(given, Mapping) and all(_is_place(runs) for runs in given.values()):
            length = max(att.shape.K for _, _, att, _ in one.layers)
            return cls({str(name): _spans(str(name), runs, length) for name, runs in given.items()})
        try:
            found = segments_of(given, tokenizer=one.text.tokenizer, ids=one.text.ids, tokens=one.text.tokens)
        except (TypeError, ValueError) as error:
            raise type(error)(f"segments of text {number}: {error}") from error
        return cls._read(found, guessed=isinstance(given, str))

    @classmethod
    def _of_capture(cls, one: _Sample) -> _SegmentsOfText:
        """Return what a capture knows itself, prompt and answer of a text that was generated; else nothing."""
        if one.forward is None:
            return cls()
        try:
            return cls._read(one.forward.segments(batch=one.batch))
        except ValueError:  # they are not told apart: the kind says what it needs
            return cls()

    @classmethod
    def _read(cls, found: Segments, *, guessed: bool = False) -> _SegmentsOfText:
        """Return segments with the answer that they know, unless it is only the last of many, and their sentences."""
        text = HeadText.of(None, None, found, guessed=guessed)
        return cls(text.segments, text.roles)


def _is_place(runs: Any) -> bool:
    """Return whether something is (start, stop) or a range, or a list of such."""
    if isinstance(runs, range):
        return True
    if not isinstance(runs, tuple | list) or not runs:
        return False
    return (len(runs) == 2 and all(type(one) is int for one in runs)) or all(map(_is_place, runs))


def _spans(name: str, runs: Any, length: int) -> Spans:
    if isinstance(runs, range) or type(runs[0]) is int:
        runs = [runs]
    found = tuple(run if isinstance(run, range) else range(*run) for run in runs)
    for run in found:
        if not 0 <= run.start < run.stop <= length or run.step != 1:
            raise ValueError(
                f"the {name} is at tokens {run.start:,} to {run.stop:,}, and there are {length:,}: give places that "
                "are there"
            )
    return found
