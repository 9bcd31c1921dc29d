"""Kinds of heads: what a head does in one text, as one number, from exact rows of its weights.

Each kind names the rows that it needs, and collects them block by block: no tensor of queries × keys is made. A kind
that depends on parts of the text is given its segments.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from .._engine.base import AttentionBase
from .._engine.kept_levels import only_overviews
from .._engine.matmul import exact
from .._engine.softmax import run_to_end
from .._segments.segments import Segments
from .._utils.indexing import positions
from .._utils.readable import listed
from .._utils.validation import nearest, told
from .head_sampling import HeadSampler, real_keys, weight_rows
from .metrics import FIRST_KEYS, MEASURED, NAMES, SINK_THRESHOLD, WINDOW, WeightRows

APART = 4  # sentences between a sentence and the nearest one that counts for it (Bogdan et al. 2025)

Spans = tuple[range, ...]


class HeadRows(NamedTuple):
    """Some exact rows of some heads of a layer, which a custom metric receives block by block.

    A metric is a function that takes this and returns (heads, rows): a number for each row, NaN for a row that does not
    count. Its value for a head is the mean over the rows.

    weights: (heads, rows, keys); 0 in blocked cells. A learned sink has the rest up to 1.
    queries: (rows,), the numbers of these queries.
    own: (rows,), the key at each query's own place; None if keys have other places.
    allowed: (rows, keys), whether each query may attend to each key.
    first: the first key that is not padding.
    ids: (keys,), a number for each token, the same for the same token; None if unknown.
    segments: the runs of keys of each named part of the text; in the widget, of its keys.
    tokens: a string for each key; None if unknown.

    >>> import torch
    >>> from attnwidget import find_heads
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    >>> found = find_heads(model, [{"src": torch.randn(1, 5, 8)}], kind=lambda rows: rows.weights.amax(-1))
    >>> len(found)
    2
    """

    weights: Tensor
    queries: Tensor
    own: Tensor | None
    allowed: Tensor
    first: int
    ids: Tensor | None
    segments: Mapping[str, Spans]
    tokens: Sequence[str] | None = None

    def __repr__(self) -> str:
        return listed("HeadRows", self._asdict().items())


OwnMetric = Callable[[HeadRows], Tensor]
KindLike = str | OwnMetric
KindsLike = KindLike | Sequence[KindLike] | Mapping[str, KindLike]


@dataclass(frozen=True)
class HeadText:
    """The text, for the kinds that need it.

    ids: (keys,), a number for each token; None if unknown.
    segments: the runs of keys of each name, in order.
    roles: which segments are the "needle", the "answer", the "query", the "documents" and the "sentences", if their
        names do not say so.
    tokens: a string for each key; None if unknown.
    """

    ids: Tensor | None = None
    segments: Mapping[str, Spans] = field(default_factory=dict)
    roles: Mapping[str, Sequence[str]] = field(default_factory=dict)
    tokens: Sequence[str] | None = None

    @classmethod
    def of(
        cls,
        ids: Tensor | None,
        tokens: Sequence[str] | None = None,
        segments: Segments | None = None,
        *,
        guessed: bool = False,
    ) -> HeadText:
        """Return the text of an attention.

        Args:
            ids, tokens: of its keys.
            segments: its named parts.
            guessed: whether a rule such as "sentences" found them; the last one need not be the answer then.
        """
        if segments is None:
            return cls(ids, tokens=tokens)
        spans: dict[str, Spans] = {}
        for one in segments:
            spans[one.name] = (*spans.get(one.name, ()), range(one.start, one.stop))
        inner = [one.name for one in segments if one.level == segments.depth - 1 and one.name not in NOT_SENTENCES]
        roles = {"sentences": list(dict.fromkeys(inner))}
        return cls(ids, spans, roles if guessed else {**roles, "answer": [segments.answer]}, tokens)


class Collector(Protocol):
    """Receives the rows of all heads, and returns a number for each at the end.

    `there` are the rows that are neither fully masked nor padding, (heads, rows).
    """

    def add(self, heads: slice, rows: HeadRows, there: Tensor) -> None: ...
    def values(self) -> Tensor: ...


class RowMeans:
    """The mean of a metric over the rows that count.

    Args:
        heads: the number of heads.
        metric: returns (heads, rows) for some rows, NaN for a row that does not count.
        name: of the metric, for errors.
    """

    def __init__(self, heads: int, metric: OwnMetric, name: str) -> None:
        self._metric, self._name = metric, name
        self._sums = torch.zeros(heads, dtype=torch.float64, device="cpu")
        self._counts = torch.zeros(heads, dtype=torch.int64, device="cpu")

    def add(self, heads: slice, rows: HeadRows, there: Tensor) -> None:
        """Add rows of some heads."""
        found = self._metric(rows)
        wanted = tuple(rows.weights.shape[:2])
        if not isinstance(found, Tensor) or tuple(found.shape) != wanted:
            given = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(
                f"{self._name} returned {given} for weights of {tuple(rows.weights.shape)}: return a tensor (heads, "
                f"rows), here {wanted}, with NaN for rows that do not count"
            )
        counted = there & ~found.isnan()
        self._sums[heads] += found.where(counted, 0).sum(1, dtype=torch.float64).cpu()
        self._counts[heads] += counted.sum(1).cpu()

    def values(self) -> Tensor:
        """Return the means, (heads,) float64; NaN if no row counted."""
        return self._sums / self._counts


class ReceiverKurtosis:
    """How unequally later sentences attend to earlier ones.

    Args:
        heads: the number of heads.
        sentences: the runs of keys, in order.
        keys: the number of keys.
        device: of the weights.
    """

    def __init__(self, heads: int, sentences: Spans, keys: int, device: torch.device) -> None:
        self.number = torch.full((keys,), -1, device=device)  # of the sentence of each key
        for i, span in enumerate(sentences):
            self.number[span.start : span.stop] = i
        self._sizes = torch.bincount(self.number[self.number >= 0], minlength=len(sentences)).double()
        self._received = torch.zeros(heads, len(sentences), dtype=torch.float64, device=device)
        self._asked = torch.zeros(len(sentences), dtype=torch.bool, device=device)  # sentences with queries

    def add(self, heads: slice, rows: HeadRows, there: Tensor) -> None:
        """Add the weight that each sentence receives from the rows; the mean of a sentence's rows counts once."""
        assert rows.own is not None
        asking = self.number[rows.own]
        named, inside = asking >= 0, self.number >= 0
        asking = asking[named]
        count = len(self._sizes)
        of = rows.weights[:, named][..., inside].double()  # (heads, rows, keys)
        by = of.new_zeros(*of.shape[:2], count).index_add_(2, self.number[inside], of)  # (heads, rows, sentences)
        far = torch.arange(count, device=of.device) <= asking[:, None] - APART
        self._received[heads] += (by * far / self._sizes[asking][:, None]).sum(1)
        self._asked[asking] = True

    def values(self) -> Tensor:
        """Return the excess kurtosis over the sentences, (heads,) float64; NaN if fewer than two differ."""
        places = torch.arange(len(self._sizes), device=self._sizes.device)
        later = (places[:, None] >= places + APART) & self._asked[:, None]  # (asking, sentences)
        counts = later.sum(0)
        received = (self._received / self._sizes / counts)[:, counts > 0]
        apart = received - received.mean(1, keepdim=True)
        return (apart.pow(4).mean(1) / apart.square().mean(1).square() - 3).cpu()


# The kinds.


class Kind(NamedTuple):
    """A kind of head.

    name: of the kind.
    collect: returns the collector of the rows, for a number of heads.
    queries: the rows that it needs, and whether evenly spread ones of them are enough.
    """

    name: str
    collect: Callable[[int], Collector]
    queries: range
    may_sample: bool


def sink(threshold: float) -> OwnMetric:
    """Whether a row has more than a threshold on the first token; rows with a single allowed key do not count."""

    def metric(rows: HeadRows) -> Tensor:
        found = (rows.weights[..., rows.first] > threshold).to(rows.weights.dtype)
        return found.masked_fill(rows.allowed.sum(1) < 2, torch.nan)

    return metric


def streaming(first: int, window: int) -> OwnMetric:
    """The weight on the first keys and on the last ones up to the query's own; rows without other keys do not count."""

    def metric(rows: HeadRows) -> Tensor:
        assert rows.own is not None
        key = torch.arange(rows.weights.shape[2], device=rows.weights.device)
        apart = rows.own[:, None] - key
        kept = ((key >= rows.first) & (key < rows.first + first)) | ((apart >= 0) & (apart < window))  # (rows, keys)
        lost = torch.einsum("hrk,rk->hr", rows.weights, (~kept).to(rows.weights.dtype))
        return (1 - lost).masked_fill(~(rows.allowed & ~kept).any(1), torch.nan)

    return metric


def retrieval(needle: Spans, steps: range) -> OwnMetric:
    """Whether the strongest key is a token of the needle, the one that comes next; counted only if one comes next."""

    def metric(rows: HeadRows) -> Tensor:
        assert rows.ids is not None
        assert rows.own is not None
        there = torch.zeros(len(rows.ids), dtype=torch.bool, device=rows.ids.device)
        for span in needle:
            there[span.start : span.stop] = True
        following = rows.ids[(rows.own + 1).clamp(max=len(rows.ids) - 1)]
        same = there & (rows.ids == following[:, None])  # (rows, keys)
        best, other = rows.weights.masked_fill(~same, 0).amax(2), rows.weights.masked_fill(same, 0).amax(2)
        found = (best > other).to(rows.weights.dtype)  # among equal keys none is the strongest
        counted = same.any(1) & (rows.own >= steps.start) & (rows.own < steps.stop)
        return found.masked_fill(~counted, torch.nan)

    return metric


def lookback(start: int, stop: int) -> OwnMetric:
    """Mean weight on the tokens before the answer ÷ (the same + mean weight on the answer's tokens so far)."""

    def metric(rows: HeadRows) -> Tensor:
        assert rows.own is not None
        answer = rows.weights[..., start:stop].cumsum(2)
        so_far = (rows.own - start).clamp(0, stop - start - 1)
        new = answer.gather(2, so_far.expand(len(answer), -1)[..., None])[..., 0] / (so_far + 1)
        context = rows.weights[..., rows.first : start].sum(2) / max(1, start - rows.first)
        return (context / (context + new)).masked_fill((rows.own < start) | (rows.own >= stop), torch.nan)

    return metric


def query_focused(query: Spans, documents: Spans) -> OwnMetric:
    """The weight on the documents, from the tokens of the query."""

    def metric(rows: HeadRows) -> Tensor:
        assert rows.own is not None
        found = sum(rows.weights[..., span.start : span.stop].sum(2) for span in documents)
        asked = sum(((rows.own >= span.start) & (rows.own < span.stop)).int() for span in query)
        assert isinstance(found, Tensor)
        assert isinstance(asked, Tensor)
        return found.masked_fill(asked == 0, torch.nan)

    return metric


NEEDS = {
    "retrieval": ("needle", "answer"),
    "lookback": ("answer",),
    "query_focused": ("query", "documents"),
    "receiver": ("sentences",),
}
KINDS = (*NAMES, "sink", "streaming", *NEEDS)
ROLES = tuple(dict.fromkeys(role for roles in NEEDS.values() for role in roles))
NOT_SENTENCES = ("first token", "template", "padding", "other")


class KindReader:
    """Reads the names of kinds, and custom functions, for one attention and one text.

    Args:
        att: the attention.
        text: of its keys.
        threshold: for the kind "sink".
        first, window: for the kind "streaming", in keys.
    """

    def __init__(
        self,
        att: AttentionBase,
        text: HeadText,
        *,
        threshold: float = SINK_THRESHOLD,
        first: int = FIRST_KEYS,
        window: int = WINDOW,
    ) -> None:
        self._att, self._text, self._keys = att, text, att.shape.K
        self._threshold, self._first, self._window = threshold, first, window
        found = att.own_keys(range(att.shape.Q))
        self._own = None if found is None else found

    def read(self, name: str, own: OwnMetric | None = None) -> Kind:
        """Return a kind by name, or one from a function.

        Raises:
            ValueError: something that it needs is unknown.
        """
        whole = range(self._att.shape.Q)
        if own is not None:
            return self._of_rows(name, own, whole, may_sample=True)
        if name == "sink":
            return self._of_rows(name, sink(self._threshold), whole, may_sample=True)
        if self._own is None:
            raise ValueError(
                f"{name} compares a query's place with a key's, but these places are unknown in "
                f"{self._att!r}: give self-attention"
            )
        if name == "streaming":
            return self._of_rows(name, streaming(self._first, self._window), whole, may_sample=True)
        return getattr(self, f"_{name}")(name)

    def _of_rows(self, name: str, metric: OwnMetric, queries: range, *, may_sample: bool = False) -> Kind:
        return Kind(name, lambda heads: RowMeans(heads, metric, name), queries, may_sample)

    def _retrieval(self, name: str) -> Kind:
        needle, answer = self._spans(name, "needle"), self._spans(name, "answer")
        if self._text.ids is None:
            raise ValueError("retrieval compares tokens, which are unknown: give texts, or tokens= of a stack")
        steps = range(answer[0].start - 1, answer[-1].stop - 1)  # the row before a token writes it
        return self._of_rows(name, retrieval(needle, steps), self._at(steps))

    def _lookback(self, name: str) -> Kind:
        answer = self._spans(name, "answer")
        start, stop = answer[0].start, answer[-1].stop
        if start == 0:
            raise ValueError(
                "lookback compares an answer with the tokens before it, but there are none: let the answer begin later"
            )
        return self._of_rows(name, lookback(start, stop), self._at(range(start, stop)))

    def _query_focused(self, name: str) -> Kind:
        query, documents = self._spans(name, "query"), self._spans(name, "documents")
        rows = range(min(span.start for span in query), max(span.stop for span in query))
        return self._of_rows(name, query_focused(query, documents), self._at(rows))

    def _receiver(self, name: str) -> Kind:
        sentences = self._spans(name, "sentences")
        if len(sentences) < APART + 2:
            raise ValueError(
                f"receiver compares the attention to sentences from those {APART} or more later, and there are only "
                f"{len(sentences)}: give {APART + 2} or more, such as segments='sentences' of a longer text"
            )
        make = lambda heads: ReceiverKurtosis(heads, sentences, self._keys, self._att.device)  # noqa: E731
        return Kind(name, make, range(self._att.shape.Q), may_sample=False)

    def _at(self, places: range) -> range:
        """Return the queries with the given own places: the shortest range that has all of them."""
        assert self._own is not None
        if isinstance(self._own, range):
            return range(max(places.start, 0), min(places.stop, len(self._own)))
        there = [query for query, place in enumerate(self._own) if place in places]
        return range(there[0], there[-1] + 1) if there else range(0)

    def _spans(self, name: str, role: str) -> Spans:
        """Return the runs of keys of a role; ValueError if no segment has it, or some are out of range."""
        found = spans_of_role(self._text, role)
        if not found:
            known = ", ".join(map(repr, self._text.segments)) or "none"
            raise ValueError(
                f"{name} needs to know which tokens are the {role}: give segments={{{role!r}: (start, stop), …}} in "
                f"tokens, or roles={{{role!r}: name}} (known segments: {known})"
            )
        for span in found:
            if not 0 <= span.start < span.stop <= self._keys:
                raise ValueError(
                    f"the {role} is at tokens {span.start:,} to {span.stop:,}, but there are {self._keys:,}: give "
                    "existing places"
                )
        return found


def spans_of_role(text: HeadText, role: str) -> Spans:
    """Return the runs of keys of a role, in order; none if no segment has it."""
    if role in text.roles:
        unknown = [name for name in text.roles[role] if name not in text.segments]
        if unknown:
            known = list(text.segments)
            raise ValueError(
                f"no segment is called {unknown[0]!r}, as in roles: {nearest(unknown[0], known)}give one of "
                f"{', '.join(known) or 'none that are known'}"
            )
        names = list(text.roles[role])
    else:
        names = [name for name in text.segments if _has_role(name, role)]
    return tuple(sorted((span for name in names for span in text.segments[name]), key=lambda span: span.start))


def read_roles(given: Any) -> dict[str, list[str]]:
    """Return the names of the segments with a role, as given by a user.

    Raises:
        TypeError, ValueError: there is no such role, or it has no names.

    >>> read_roles({"documents": ["passage 1", "passage 2"], "query": "asked"})
    {'documents': ['passage 1', 'passage 2'], 'query': ['asked']}
    """
    advice = "give names of segments by role, {'documents': ['passage 1', 'passage 2']}"
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(f"roles is {told(given)}: {advice}")
    found: dict[str, list[str]] = {}
    for role, names in given.items():
        if role not in ROLES:
            raise ValueError(f"roles has {told(role)}: {nearest(role, ROLES)}give some of {', '.join(ROLES)}")
        if not isinstance(names, Iterable) or not all(isinstance(name, str) for name in names):
            raise TypeError(f"roles has {told(names)} as the {role}: {advice}")
        found[role] = [names] if isinstance(names, str) else list(names)
    return found


def _has_role(name: str, role: str) -> bool:
    if role == "sentences":
        return name not in NOT_SENTENCES
    if role == "documents":
        return name.lower().startswith("doc")
    return name == role or (role == "query" and name == "question")


# Requests.


def read_names(kinds: Any, what: str = "kind") -> dict[str, OwnMetric | None]:
    """Return kinds from a user's argument: one or several names or functions, or functions by name.

    Raises:
        TypeError, ValueError: it has another form, or an unknown name.

    >>> list(read_names(["induction", "sink"]))
    ['induction', 'sink']
    """
    if isinstance(kinds, Mapping):
        given: list[tuple[Any, Any]] = [(name, None if one == name else one) for name, one in kinds.items()]
    else:
        listed = list(kinds) if isinstance(kinds, Iterable) and not isinstance(kinds, str) else [kinds]
        given = [(_name_of(one), one if callable(one) else None) for one in listed]
    found: dict[str, OwnMetric | None] = {}
    for name, metric in given:
        if metric is None and (not isinstance(name, str) or name not in KINDS):
            raise ValueError(
                f"no kind of head is called {told(name)}: {nearest(name, KINDS)}give one of {', '.join(KINDS)}, or a "
                "function of attnwidget.results.HeadRows"
            )
        if metric is not None and (not callable(metric) or name in KINDS):
            raise TypeError(
                f"{what} {told(name)} is {told(metric)}: give a function of attnwidget.results.HeadRows under a name "
                "of its own"
            )
        if name in found:
            raise ValueError(f"{what} has {told(name)} twice: give functions by name, {{'mine': function}}")
        found[name] = metric
    if not found:
        raise ValueError(f"{what} is empty: give one of {', '.join(KINDS)}")
    return found


def _name_of(kind: Any) -> Any:
    if not callable(kind):
        return kind
    name = getattr(kind, "__name__", type(kind).__name__)
    return "own metric" if name == "<lambda>" else name


class HeadValues(NamedTuple):
    """The numbers of some kinds in one sample of one layer.

    values: by kind, (heads,) float64; NaN if nothing counted.
    rows: by kind, the number of queries used.
    """

    values: dict[str, Tensor]
    rows: dict[str, int]


def measure_heads(
    att: AttentionBase,
    batch: int,
    kinds: Mapping[str, OwnMetric | None],
    text: HeadText,
    queries: range,
    **numbers: Any,
) -> HeadValues:
    """Compute kinds of heads in one sample of a layer: see `measuring`."""
    return run_to_end(measuring(att, batch, kinds, text, queries, **numbers))


def measuring(
    att: AttentionBase,
    batch: int,
    kinds: Mapping[str, OwnMetric | None],
    text: HeadText,
    queries: range,
    **numbers: Any,
) -> Generator[None, None, HeadValues]:
    """Compute kinds of heads in one sample of a layer, in steps.

    Args:
        att: the layer.
        batch: the sample.
        kinds: names, with custom functions.
        text: of the sample.
        queries: the rows for kinds that use all of them.
        numbers: keywords of `KindReader`.

    Yields:
        After each block.

    Raises:
        ValueError: something that a kind needs is unknown.
    """
    values: dict[str, Tensor] = {}
    rows: dict[str, int] = {}
    named = [name for name, own in kinds.items() if own is None and name in NAMES]
    if named:
        sampler = HeadSampler(att, batch, range(att.shape.H), queries, ids=text.ids)
        yield from sampler.steps()
        values |= {name: sampler.means.values[MEASURED.index(name)] for name in named}
        rows |= dict.fromkeys(named, len(sampler.queries))
    reader = KindReader(att, text, **numbers)
    others = [reader.read(name, own) for name, own in kinds.items() if name not in values]
    if others and (kept := only_overviews(att)) is not None:
        raise kept.refusal(f"{others[0].name}, which needs whole rows, is")
    by_rows: dict[range, list[Kind]] = {}
    for kind in others:
        at = range(kind.queries.start, kind.queries.stop)
        by_rows.setdefault(queries if kind.may_sample else at, []).append(kind)
    for at, together in by_rows.items():
        values |= yield from _measuring(att, batch, together, text, at)
        rows |= dict.fromkeys((kind.name for kind in together), len(at))
    return HeadValues(values, rows)


def _measuring(
    att: AttentionBase, batch: int, kinds: list[Kind], text: HeadText, queries: range
) -> Generator[None, None, dict[str, Tensor]]:
    """Compute kinds that look at the same rows."""
    heads = range(att.shape.H)
    with exact(att.device):  # sums are created inside: tensors of inference mode cannot change outside
        collectors = {kind.name: kind.collect(len(heads)) for kind in kinds}
    ends = {0, att.shape.Q - 1} if len(queries) else ()
    real_of = real_keys(att, batch, ends)
    ids = None if text.ids is None else text.ids.to(att.device)
    for piece, part, _, found in weight_rows(att, batch, heads, queries):
        at = queries[piece.start : piece.stop]
        with exact(att.device):
            real = real_of(part.start)  # weight_rows gives heads with their own rules one at a time
            rows = _as_rows(att, at, found, real.first, ids, text)
            there = found.total != 0  # true for NaN, which therefore shows
            if rows.own is not None:
                number = torch.arange(len(at), device=att.device)
                there = there & (rows.allowed[number, rows.own] | real.allowed[rows.own])
            for collector in collectors.values():
                collector.add(slice(part.start, part.stop), rows, there)
        yield
    return {name: collector.values() for name, collector in collectors.items()}


def _as_rows(
    att: AttentionBase, at: range, found: WeightRows, first: int, ids: Tensor | None, text: HeadText
) -> HeadRows:
    weights = (found.e / found.total.where(found.total != 0, 1)).permute(1, 2, 0)  # (heads, rows, keys)
    own = att.own_keys(at)
    places = (
        None
        if own is None
        else positions(own, att.device)
        if isinstance(own, range)
        else torch.tensor(own, device=att.device)
    )
    everything = torch.ones(1, 1, dtype=torch.bool, device=att.device)
    allowed = everything if found.allowed is None else found.allowed.allowed[:, 0].mT
    return HeadRows(
        weights,
        positions(at, att.device),
        None if places is None else places.to(att.device),
        allowed.expand(len(at), att.shape.K),
        first,
        ids,
        text.segments,
        text.tokens,
    )
