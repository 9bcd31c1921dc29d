"""Find the heads that do something most, over many texts: each kind is measured in each text, with its spread."""

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
from ..session.callers import module_of
from ..text.labels import can_spell
from .capture import Capture, Forward, capture
from .texts import TextOfSample, TextSample, inputs_of, samples_of_forward

TO_NULL = "query_focused"  # the kind that needs a query without content


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
    """Find the heads that do something most, over a set of texts: a list of records, ready for `pandas.DataFrame`.

    Args:
        models_or_captures: a model, which is run on each text and captured; or a `Capture`, a `Forward`, an
            `AttentionStack` or an `Attention`, in which each sample is a text. A list or a dict of them compares
            several.
        texts: for a model: a list of strings (with a tokenizer), of ids, or of dicts of the model's arguments. For a
            stack or an attention: the tokens of each sample as strings, if a kind compares tokens.
        kind: one kind, or a list; or a custom metric: a function that takes `attnwidget.results.HeadRows`, some exact
            rows of some heads, and returns a tensor (heads, rows), NaN for rows that do not count. Its mean over the
            rows is the number. A dict names it: {"mine": function}.

            The fields of `attnwidget.results.Metrics`: "entropy", "first_token", "previous_token", "itself",
            "same_token", "last_token", "induction", "mean_distance", "masked_share", "learned_sink".

            "sink": the share of rows with more than `threshold` on the first token, among rows that may attend to more
            than one key (Gu et al. 2025, arXiv 2410.10781, §2, row by row).

            "streaming": the weight on the `first` keys, the `window` keys up to the query's own key, and the learned
            sink, in rows that may attend to any other key (Xiao et al. 2024, arXiv 2309.17453; 2410.10819).

            "retrieval": among the answer's tokens that occur in the needle, the share whose strongest key, in the row
            that writes the token, is that token of the needle (Wu et al. 2024, arXiv 2404.15574, §2; their code
            divides by the tokens of the needle instead). Needs the segments "needle" and "answer".

            "query_focused": the weight on the documents from the tokens of the query, less the weight from a query
            without content (Zhang et al. 2025, QRHead, arXiv 2506.09944, §2, for the documents that hold the answer:
            name these by `roles`; their retriever leaves out tokens far below the mean). Needs the segments "query" and
            "documents", and `null`.

            "lookback": in the answer's rows, mean weight on the tokens before the answer ÷ (this weight + mean weight
            on the answer's tokens so far, with the row's own) (Chuang et al. 2024, arXiv 2407.07071, §2.1, as in
            their code, Lookback-Lens. There the last words of the prompt, which ask for an answer, belong to the
            answer; here if the segment begins with them). Needs the segment "answer".

            "receiver": the excess kurtosis, over the sentences, of the mean weight that a sentence's tokens receive
            from sentences 4 or more later (Bogdan et al. 2025, Thought Anchors, arXiv 2506.19143, §5, as in their
            code without its ranks by depth). Needs the segments of six sentences or more.
        top: the number of heads to return for each kind and model; None for all.
        tokenizer: for texts that are strings; None: the pipeline's. Its words decide which tokens are the same.
        segments: the parts of the text: {"needle": (start, stop), …} in tokens, or a list of such runs under a name;
            `Segments`; or a source for `attnwidget.segments`, such as "sentences" or the messages of a chat. One for
            all texts, or a list with one for each. None: the segments that a capture knows.
        roles: the segments that play the "needle", the "answer", the "query", the "documents" and the "sentences", if
            their names differ: {"documents": ["passage 1", "passage 2"]}. By default the documents are the segments
            whose names begin with "doc", the query may be called "question", and the sentences are all segments of the
            innermost level; `Segments` and chats know their answer.
        null: for "query_focused", the same texts with a query without content, such as "N/A"; or a capture of them.
        null_segments: the segments of `null`, if they differ from `segments`.
        rows: for kinds that look at all rows, the number of rows in each text, evenly spread. None: all rows if all
            heads of a text have at most 2²⁸ cells, else up to 32. Each row is exact.
        threshold: for "sink".
        first, window: for "streaming", in keys.

    Returns:
        A dict for each head, the highest mean first: kind, model (its name or number if there are several), rank (from
        1), layer, name, head (and model_head, if a capture kept only some), mean and std (standard deviation over the
        texts, with n − 1; None for one text), n (texts with something to measure), rows (measured in all of them).

    Raises:
        ValueError: there is no such kind; a kind needs an argument that is missing; there is nothing to measure.
        TypeError: an object is neither a model nor a capture; or texts cannot be read.

    >>> from attnwidget import Attention
    >>> previous, first = torch.eye(8).roll(-1, 1), torch.eye(8)[[0] * 8]
    >>> att = Attention.from_weights(torch.stack([previous, first])[None])
    >>> [(one["head"], one["mean"]) for one in find_heads(att, kind="previous_token")]
    [(0, 1.0), (1, 0.142857)]
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
                    f"null has {others} text{'s' if others > 1 else ''} for {count} texts: give each text once more, "
                    "with a query without content"
                )
        where = {"model": name} if len(given) > 1 or isinstance(models_or_captures, Mapping) else {}
        for one in kinds:
            found += measured.records(one, where, top)
    return found


class _Spread:
    """The numbers of each head in each text, by kind."""

    def __init__(self) -> None:
        self._values: dict[str, dict[tuple[str, int], dict[int, float]]] = {}  # by layer and head, for each text
        self._heads: dict[tuple[str, int], dict[str, Any]] = {}
        self._numbers: dict[str, int] = {}  # of layers, by name: other layers may run in another text
        self._rows: dict[str, int] = {}

    def add(self, kind: str, layer: int, name: str, att: Attention, text: int, values: Tensor) -> None:
        """Add a layer's numbers, (heads,), of one text to those that are already there."""
        if name not in self._numbers:
            is_taken = layer in self._numbers.values()
            self._numbers[name] = max(self._numbers.values()) + 1 if is_taken else layer
        number = self._numbers[name]
        for head, value in enumerate(values.tolist()):
            self._heads.setdefault((name, head), {"layer": number, "name": name, **head_numbers(att, head)})
            of_texts = self._values.setdefault(kind, {}).setdefault((name, head), {})
            of_texts[text] = of_texts.get(text, 0.0) + value

    def count(self, kind: str, rows: int) -> None:
        """Count rows that were measured."""
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
                f"{kind}: no row of these texts counts, see its definition in help(find_heads): give other texts, or "
                "tokens if the kind compares them"
            )
        found.sort(key=lambda one: (-one["mean"], one["layer"], one["head"]))
        return [{"kind": kind, **where, "rank": rank, **one} for rank, one in enumerate(found[:top], 1)]


class _Asked(NamedTuple):
    """The questions for each text."""

    kinds: Mapping[str, OwnMetric | None]
    roles: Mapping[str, list[str]]
    rows: int | None
    numbers: Mapping[str, Any]

    def measure(self, source: Any, texts: Any, tokenizer: Any, segments: Any, spread: _Spread, sign: int) -> int:
        """Measure all texts, add the numbers times the sign, and return the number of texts."""
        number = -1
        for number, one in enumerate(_samples(source, texts, tokenizer, main=segments is not None)):
            known = _SegmentsOfText.of(segments, number, one) if self._needs_segments(segments) else _SegmentsOfText()
            self._measure(one, number, known, spread, sign)
        if isinstance(segments, list | tuple) and len(segments) != number + 1:
            raise ValueError(f"segments has {len(segments)} entries for {number + 1} texts: give one for each")
        if number < 0:
            raise ValueError("there are no texts: give one or more")
        return number + 1

    def _needs_segments(self, segments: Any) -> bool:
        return segments is not None or any(kind in NEEDS for kind in self.kinds)

    def _measure(self, one: TextSample, number: int, known: _SegmentsOfText, spread: _Spread, sign: int) -> None:
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


# Sources of attention.


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
    """Return the null source and texts of each model or capture."""
    if null is None:
        raise ValueError(
            "query_focused needs a query without content to compare with: give null=, the same texts with 'N/A' for "
            "the query, or a capture of them"
        )
    if isinstance(null, Mapping) and set(null) == set(given):
        return {name: (one, None) if _is_recorded(one) else (given[name], one) for name, one in null.items()}
    if _is_recorded(null):
        if len(given) > 1:
            raise ValueError("null is one capture for several models: give a dict with one for each, by name")
        return dict.fromkeys(given, (null, None))
    for name, one in given.items():
        if _is_recorded(one):
            raise ValueError(f"null holds texts, but {told(name)} is a capture: give the capture of these texts")
    return {name: (one, null) for name, one in given.items()}


def _is_recorded(given: Any) -> bool:
    return isinstance(given, Forward | AttentionStack | Attention)


def _samples(source: Any, texts: Any, tokenizer: Any, *, main: bool) -> Iterator[TextSample]:
    """Yield each text of a model, a capture or a stack.

    Args:
        source: the model, capture or stack.
        texts: as in `find_heads`.
        tokenizer: for strings.
        main: only the text's own stack, if there are several towers.
    """
    if isinstance(source, Attention | AttentionStack):
        stack = AttentionStack([source]) if isinstance(source, Attention) else source
        yield from _of_stack(stack, texts)
    elif isinstance(source, Forward):
        if texts is not None:
            raise ValueError("texts are for models; a capture has its own texts: leave them out")
        for forward in source if isinstance(source, Capture) else [source]:
            yield from samples_of_forward(forward, main=main)
    else:
        yield from _of_model(source, texts, tokenizer, main=main)


def _of_stack(stack: AttentionStack, texts: Any) -> Iterator[TextSample]:
    for batch in range(max(att.shape.B for att in stack)):
        layers = []
        for number, (name, att) in enumerate(zip(stack.names, stack, strict=True)):
            if batch < att.shape.B:
                tokens = None if texts is None else check_tokens(texts, att.shape.B, att.shape.K, "texts")
                layers.append((number, name, att, None if tokens is None else as_ids(tokens[batch])))
                text = TextOfSample(tokens=None if tokens is None else tokens[batch])
        yield TextSample(layers, batch, text)


def _of_model(model: Any, texts: Any, tokenizer: Any, *, main: bool) -> Iterator[TextSample]:
    """Run a model on each text in turn, and yield its samples."""
    module = module_of(model)
    if module is None:
        raise TypeError(f"{kind_of(model)} is neither a model nor a capture: give an nn.Module, or a capture")
    if texts is None:
        raise ValueError("a model needs texts, and there are none: give a list of strings, or of ids")
    if isinstance(texts, str | Mapping | Tensor) or not isinstance(texts, Iterable):
        texts = [texts]
    for text in texts:
        cap = capture(model, tokenizer=tokenizer, values=False)
        spelling = tokenizer if can_spell(tokenizer) else cap.tokenizer
        inputs = inputs_of(text, spelling, module)
        with torch.no_grad(), cap:
            module(**inputs) if isinstance(inputs, Mapping) else module(inputs)
        ids = inputs.get("input_ids") if isinstance(inputs, Mapping) else inputs
        for forward in cap:
            yield from samples_of_forward(forward, main=main, ids=ids if isinstance(ids, Tensor) else None)


# Segments.


class _SegmentsOfText(NamedTuple):
    """The segments of a text: the runs of keys by name, and their own roles."""

    spans: Mapping[str, Spans] = {}
    roles: Mapping[str, Sequence[str]] = {}

    @classmethod
    def of(cls, given: Any, number: int, one: TextSample) -> _SegmentsOfText:
        """Return the segments of one text, from those given for all texts or for each."""
        if given is None:
            return cls._of_capture(one)
        if isinstance(given, list | tuple) and not is_chat(given):
            if number >= len(given):
                raise ValueError(f"segments has {len(given)} entries, but there are more texts: give one for each")
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
    def _of_capture(cls, one: TextSample) -> _SegmentsOfText:
        """Return a capture's own segments, prompt and answer of a generated text; else nothing."""
        if one.forward is None:
            return cls()
        try:
            return cls._read(one.forward.segments(batch=one.batch))
        except ValueError:  # they are not known: the kind reports what it needs
            return cls()

    @classmethod
    def _read(cls, found: Segments, *, guessed: bool = False) -> _SegmentsOfText:
        """Return segments with their answer, unless it is only the last of many, and their sentences."""
        text = HeadText.of(None, None, found, guessed=guessed)
        return cls(text.segments, text.roles)


def _is_place(runs: Any) -> bool:
    """Return whether a value is (start, stop) or a range, or a list of these."""
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
