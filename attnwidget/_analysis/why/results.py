"""The results of asking why a head looked there, for people and for pandas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..._utils.indexing import as_index
from .contrasts import NO_WEIGHT, NoMean, check_against, compared_with
from .part_names import StreamPart, told_apart
from .sentences import because, leading_parts, plus, sum_of, told

SIDES = ("query", "key", "value")
SHOWN = 8  # parts in words
HELD = "Held as in this run: the scales of norms, and the weights of earlier heads."


@dataclass(frozen=True, eq=False)
class Why:
    """One score as a sum over the parts of its query and of its key: score = Σ over a and b of terms[a, b].

    layer, head: the head that looked; `layer` is its short name.
    query, key: the pair.
    against: what the score is compared with: the position of another key, "others", the mean of the row's other keys
        under their weights, or "mean", the row's mean under its weights; None: nothing.
    query_parts, key_parts: the parts of the residual stream at the query and at the key.
    terms: (query parts, key parts) float64, in units of the score, times the attention's scale, before any softcap.
    score: the model's own score, less `subtracted`.
    rounding: score − Σ terms: what the model's own arithmetic rounded away. It is 0 up to the precision of its dtype.
    weight: the weight of the pair, after mask, bias and softmax.
    words: the texts of query, key and `against`; empty if unknown.
    subtracted: the score, or the mean of scores, of what it is compared with; 0 for nothing. None if a file of an
        earlier version does not have it.

    >>> import torch
    >>> from attnwidget import capture
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    >>> cap = capture(model, sources=True).run(torch.randn(1, 5, 8))
    >>> found = cap.why(1, 0, 4, 2, against="others")
    >>> bool(abs(found.terms.sum() + found.rounding - found.score) < 1e-4)
    True
    """

    layer: str
    head: int
    query: int
    key: int
    against: int | str | None
    query_parts: tuple[StreamPart, ...]
    key_parts: tuple[StreamPart, ...]
    terms: Tensor = field(repr=False)
    score: float
    rounding: float
    weight: float
    words: tuple[str, ...] = ()
    subtracted: float | None = None

    def __post_init__(self) -> None:
        queries, keys = told_apart(self.query_parts, self.key_parts)
        object.__setattr__(self, "query_parts", queries)
        object.__setattr__(self, "key_parts", keys)

    @property
    def by_key(self) -> Tensor:
        """The sum of the terms of each key part, (key parts,)."""
        return self.terms.sum(0)

    @property
    def by_query(self) -> Tensor:
        """The sum of the terms of each query part, (query parts,)."""
        return self.terms.sum(1)

    def records(self) -> list[dict[str, Any]]:
        """Return each term as a record for `pandas.DataFrame`, the largest first: its parts, value and share."""
        total = float(self.terms.sum())
        flat = self.terms.flatten()
        found = []
        for i in flat.abs().argsort(descending=True, stable=True).tolist():
            a, b = divmod(i, len(self.key_parts))
            labels = {"query_part": self.query_parts[a].label, "key_part": self.key_parts[b].label}
            value = float(flat[i])
            found.append({**labels, "term": value, "share": value / total if total else float("nan")})
        return found

    @property
    def sentence(self) -> str:
        """The answer in one sentence: what the largest parts of the key give to the score, or to its difference."""
        names = self._word(0, self.query), self._word(1, self.key)
        scale = max(abs(self.score + (self.subtracted or 0)), abs(self.subtracted or 0))
        how: dict[str, Any] = {"other": self._other, "scale": 0.0 if self.against is None else scale}
        return because(names, self.weight, self.key_parts, self.by_key, self.against, **how)

    @property
    def _other(self) -> str:
        return self._word(2, self.against) if isinstance(self.against, int) else ""

    @property
    def _sum(self) -> str:
        own = self.score + (self.subtracted or 0)
        return sum_of(own, self.subtracted, self.against, self._other)

    def _word(self, which: int, position: int) -> str:
        return f"{self.words[which]!r} ({position})" if len(self.words) > which else f"position {position}"

    def __str__(self) -> str:
        score = plus(self.score)
        score = f"score {score}" if self.against is None else f"{self._sum.removeprefix('the ')}: {score}"
        head = f"Head {self.layer}·{self.head}: {self._word(0, self.query)} → {self._word(1, self.key)}"
        lines = [f"{head}, weight {told(self.weight)}, {score}", f"  {self.sentence}"]
        for title, parts, sums in (
            ("parts of the key", self.key_parts, self.by_key),
            ("parts of the query", self.query_parts, self.by_query),
        ):
            lines.append(f"  {title}")
            order = sums.abs().argsort(descending=True, stable=True).tolist()
            lines += [f"    {plus(float(sums[i])):>9}  {parts[i].label}" for i in order[:SHOWN]]
            rest = order[SHOWN:]
            if rest:
                lines.append(f"    {plus(float(sums[rest].sum())):>9}  {len(rest)} more")
        total = plus(float(self.terms.sum()))
        lines += [f"    {total:>9}  sum = {self._sum}; not explained (rounding): {self.rounding:+.1e}", f"  {HELD}"]
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class WhyRow:
    """The scores of one query as sums over the parts of each key: scores[j] = Σ over b of terms[b, j].

    layer, head, query: of the row.
    parts: the parts of the keys, the largest over the row first.
    terms: (parts, keys) float64.
    scores: (keys,) the model's own scores times the scale, before any softcap, less `subtracted`.
    weights: (keys,) the weights.
    rounding: the largest |scores − Σ terms|.
    against: what each score is compared with, as of `Why`; with "others", each key with the other keys of its own.
    subtracted: (keys,) what is subtracted from each score; None for nothing.

    >>> import torch
    >>> from attnwidget import capture
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    >>> cap = capture(model, sources=True).run(torch.randn(1, 5, 8))
    >>> row = cap.why_row(1, 0, 4)
    >>> row.terms.shape[1], row.scores.shape
    (5, torch.Size([5]))
    """

    layer: str
    head: int
    query: int
    parts: tuple[StreamPart, ...]
    terms: Tensor = field(repr=False)
    scores: Tensor = field(repr=False)
    weights: Tensor = field(repr=False)
    rounding: float
    against: int | str | None = None
    subtracted: Tensor | None = field(default=None, repr=False)

    def compared(self, against: int | str | None) -> WhyRow:
        """Return the row with its terms and scores less those of what they are compared with.

        Args:
            against: "others", the mean of the other keys under their weights, for each key its own; NaN for a key
                beside which no other has a weight. "mean", the mean of all keys under their weights. A key. None.

        Raises:
            ValueError: the row is compared with something already; or no key has a weight.
        """
        if self.against is not None:
            raise ValueError(f"this row is compared with {self.against!r}: compare the row that why_row(…) returns")
        if against is None:
            return self
        against = against if isinstance(against, str) else as_index(against, len(self.scores), "against", "keys")
        everything = torch.cat([self.terms, self.scores[None]])
        if isinstance(against, str):
            check_against(against)
            if not bool(self.weights.any()):
                raise NoMean(NO_WEIGHT.format(query=self.query))
        zero = compared_with(everything, self.weights, against)
        apart = everything - zero
        return replace(self, terms=apart[:-1], scores=apart[-1], against=against, subtracted=zero[-1].clone())

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", told_apart(self.parts)[0])

    def against_mean(self) -> Tensor:
        """Return the terms less their mean under the row's weights, (parts, keys)."""
        return self.compared("mean").terms

    def records(self) -> list[dict[str, Any]]:
        """Return the terms as records for `pandas.DataFrame`: key, part, term and weight."""
        return [
            {"key": j, "part": part.label, "term": float(self.terms[i, j]), "weight": float(self.weights[j])}
            for j in range(self.terms.shape[1])
            for i, part in enumerate(self.parts)
        ]

    def __str__(self) -> str:
        order = self.weights.argsort(descending=True, stable=True).tolist()
        what = "score" if self.against is None else sum_of(0, None, self.against, f"position {self.against}")[4:]
        head = f"Head {self.layer}·{self.head}: position {self.query} → {len(order)} keys"
        lines = [
            f"{head}. Each key's parts sum to its {what}.",
            f"  {'key':>7} {'weight':>7} {'sum':>10}  largest parts",
        ]
        for j in order[:SHOWN]:
            largest = (f"{plus(value)} {self.parts[i].label}" for i, value in leading_parts(self.terms[:, j]))
            lines.append(
                f"  {j:>7} {told(float(self.weights[j])):>7} {plus(float(self.scores[j])):>10}  {', '.join(largest)}"
            )
        lines += [f"  {len(order) - SHOWN} more keys"] if len(order) > SHOWN else []
        lines.append(f"  not explained (rounding): at most {self.rounding:.1e}. {HELD}")
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class DistanceProfile:
    """The score of a query with one key's content at other positions, all else held.

    distances: (n,) the query's position less each position.
    scores: (n,) float64, times the scale, before any softcap, mask or bias.
    distance, score: of the pair as it is.
    """

    distances: Tensor = field(repr=False)
    scores: Tensor = field(repr=False)
    distance: int
    score: float


@dataclass(frozen=True)
class Edge:
    """How much a part of the residual stream gives to a head.

    source: the part.
    layer, head: the head that reads it.
    side: "query", "key" or "value".
    share: of the score by which the head prefers what it looks at to the average key, or of its output. The shares of
        all parts on one side sum to 1: where some are below 0, others may exceed it. A head that prefers no key has no
        edges on its query and key side.
    score: the mean over the queries of what it adds to that score; of the value side, the share.

    >>> import torch
    >>> from attnwidget import capture
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    >>> cap = capture(model, sources=True).run(torch.randn(1, 5, 8))
    >>> edge = cap.composition().into(1, 0, "key")[0]
    >>> edge.layer, edge.head, edge.side
    (1, 0, 'key')
    """

    source: StreamPart
    layer: int
    head: int
    side: str
    share: float
    score: float


@dataclass(frozen=True, eq=False)
class Composition:
    """Which parts of the residual stream each head reads, on a text.

    parts: of the stream, in its order.
    heads: (layer, head) of each head that reads.
    shares: (heads, 3, parts) float64: of the query, key and value side. See `Edge`.
    scores: the same shape.
    names: the short names of layers.
    queries: the number of queries over which they were taken.

    >>> import torch
    >>> from attnwidget import capture
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    >>> cap = capture(model, sources=True).run(torch.randn(1, 5, 8))
    >>> found = cap.composition()
    >>> found.heads, found.shares.shape[:2]
    (((0, 0), (0, 1), (1, 0), (1, 1)), torch.Size([4, 3]))
    """

    parts: tuple[StreamPart, ...] = field(repr=False)
    heads: tuple[tuple[int, int], ...] = field(repr=False)
    shares: Tensor = field(repr=False)
    scores: Tensor = field(repr=False)
    names: tuple[str, ...]
    queries: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", told_apart(self.parts)[0])

    @property
    def edges(self) -> list[Edge]:
        """All edges, by head, side and part; those of 0 are left out."""
        return [edge for i in range(len(self.heads)) for edge in self._edges(i)]

    def _edges(self, which: int) -> list[Edge]:
        layer, head = self.heads[which]
        sides, parts = self.shares[which].nonzero(as_tuple=True)
        return [
            Edge(self.parts[p], layer, head, SIDES[s], float(self.shares[which, s, p]), float(self.scores[which, s, p]))
            for s, p in zip(sides.tolist(), parts.tolist(), strict=True)
        ]

    def records(self) -> list[dict[str, Any]]:
        """Return the edges as records for `pandas.DataFrame`: source, its kind, layer, head, side, share, score."""
        return [
            {
                "source": one.source.label,
                "kind": one.source.kind,
                "layer": one.layer,
                "head": one.head,
                "side": one.side,
                "share": one.share,
                "score": one.score,
            }
            for one in self.edges
        ]

    def __str__(self) -> str:
        order = sorted(self.edges, key=lambda one: -abs(one.share))
        lines = [
            f"What {len(self.heads)} heads read, over {self.queries} {'query' if self.queries == 1 else 'queries'}.",
            "Query and key side: shares of the score by which a head prefers the keys that it looks at over the",
            "average of its allowed keys. Value side: shares of its output.",
            *(
                f"  {one.share:>5.0%} of the {one.side} side of head {one.layer}·{one.head} is {one.source.label}"
                for one in order[:SHOWN]
            ),
        ]
        lines += [f"  {len(order) - SHOWN:,} smaller shares"] if len(order) > SHOWN else []
        return "\n".join([*lines, f"  {HELD}"])

    def into(self, layer: int, head: int, side: str | None = None) -> list[Edge]:
        """Return the edges into a head, the largest share first.

        Raises:
            ValueError: this head is not among those that were asked for.
        """
        if (layer, head) not in self.heads:
            raise ValueError(f"head {head} of layer {layer} was not asked for: give layers= that hold it")
        found = [one for one in self._edges(self.heads.index((layer, head))) if side in (None, one.side)]
        return sorted(found, key=lambda one: -abs(one.share))


def ordered(parts: Sequence[StreamPart], times: Mapping[Any, int] | None = None) -> list[int]:
    """Return the numbers of parts in the order of the stream: embeddings, then layer by layer.

    Args:
        parts: the parts.
        times: when each was written, by its kind, module and head; see `PartIndex.times`.
    """

    def place(i: int) -> tuple[int, int, int, int, int]:
        part = parts[i]
        kinds = {"head": 0, "attention": 0, "bias": 1, "MLP": 2, "module": 2}
        layer = -1 if part.layer is None and part.kind != "bias" else part.layer if part.layer is not None else 10**6
        time = (times or {}).get((part.kind, part.module), 0)
        return layer, kinds.get(part.kind, 0), part.head or 0, time, i

    return sorted(range(len(parts)), key=place)
