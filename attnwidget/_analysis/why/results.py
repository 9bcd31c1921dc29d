"""The results of asking why a head looked there, for people and for pandas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..effect import fixed
from .parts import StreamPart

SIDES = ("query", "key", "value")
SHOWN = 8  # parts in words
HELD = "Held as in this run: the scales of norms, and the weights of earlier heads."


@dataclass(frozen=True, eq=False)
class Why:
    """One score as a sum over the parts of its query and of its key: score = Σ over a and b of terms[a, b].

    layer, head: the head that looked; `layer` is its short name.
    query, key: the pair.
    against: the score it is compared with: of another key, or "mean", the row's mean under its own weights; None: 0.
    query_parts, key_parts: the parts of the residual stream at the query and at the key.
    terms: (query parts, key parts) float64, in units of the score, times the attention's scale, before any softcap.
    score: the model's own score, less that of `against`.
    rounding: score − Σ terms: what the model's own arithmetic rounded away. It is 0 up to the precision of its dtype.
    weight: the weight of the pair, after mask, bias and softmax.
    words: the texts of query, key and `against`; empty if unknown.

    >>> import torch
    >>> from attnwidget import capture
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    >>> cap = capture(model, sources=True).run(torch.randn(1, 5, 8))
    >>> found = cap.why(1, 0, 4, 2)
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
        """The answer in one sentence, with the shares of the largest parts of the key."""
        others = None if self.against is None else "the other keys" if self.against == "mean" else "the other key"
        return because(self._word(0, self.query), self._word(1, self.key), self.key_parts, self.by_key, others)

    def _word(self, which: int, position: int) -> str:
        return f"{self.words[which]!r} ({position})" if len(self.words) > which else f"position {position}"

    def __str__(self) -> str:
        versus = ""
        if self.against == "mean":
            versus = ", against the mean of its row"
        elif self.against is not None:
            versus = f", against {self._word(2, int(self.against))}"
        head = f"Head {self.layer}·{self.head}: {self._word(0, self.query)} → {self._word(1, self.key)}"
        lines = [
            f"{head}, weight {self.weight:.4f}, score {fixed(self.score, signed=True)}{versus}",
            f"  {self.sentence}",
        ]
        for title, parts, sums in (
            ("parts of the key", self.key_parts, self.by_key),
            ("parts of the query", self.query_parts, self.by_query),
        ):
            lines.append(f"  {title}")
            order = sums.abs().argsort(descending=True, stable=True).tolist()
            lines += [f"    {fixed(float(sums[i]), signed=True):>9}  {parts[i].label}" for i in order[:SHOWN]]
            rest = order[SHOWN:]
            if rest:
                lines.append(f"    {fixed(float(sums[rest].sum()), signed=True):>9}  {len(rest)} more")
        total = fixed(float(self.terms.sum()), signed=True)
        lines += [f"    {total:>9}  sum, not explained (rounding): {self.rounding:+.1e}", f"  {HELD}"]
        return "\n".join(lines)


def because(query: str, key: str, parts: Sequence[StreamPart], terms: Tensor, others: str | None) -> str:
    """Return in words what sets a key apart, from the largest parts of the key.

    Args:
        query, key: the words.
        parts: of the key.
        terms: (parts,) what each adds to the score, or to its difference from that of others.
        others: what the score is compared with, in words; None: nothing.
    """
    total = float(terms.sum())
    order = terms.abs().argsort(descending=True, stable=True).tolist()[:2]
    if not order or not abs(total) > 1e-3 * float(terms.abs().sum()):
        return f"{query} looks at {key}: the parts of the key cancel, so that nothing sets it apart."
    what = "its score" if others is None else f"what sets it {'apart from' if total > 0 else 'below'} {others}"
    first, *second = (f"{_percent(float(terms[i]) / total)} of {{}} is {_wrote(parts[i], key)}" for i in order)
    return f"{query} looks at {key}: {first.format(what)}" + "".join(f"; {one.format('it')}" for one in second) + "."


def _percent(x: float) -> str:
    return f"{x * 100:.0f} %".replace("-", "−")


def _wrote(part: StreamPart, key: str) -> str:
    if part.kind in ("token", "position", "type", "input"):
        return f"the {part.label} itself" if part.kind == "token" else f"the {part.label}"
    if part.kind == "head":
        return f"what head {part.label} wrote at {key}"
    return f"what {part.label} wrote at {key}" if part.kind in ("MLP", "attention") else part.label


@dataclass(frozen=True, eq=False)
class WhyRow:
    """The scores of one query as sums over the parts of each key: scores[j] = Σ over b of terms[b, j].

    layer, head, query: of the row.
    parts: the parts of the keys, the largest over the row first.
    terms: (parts, keys) float64.
    scores: (keys,) the model's own scores times the scale, before any softcap.
    weights: (keys,) the weights.
    rounding: the largest |scores − Σ terms|.

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

    def against_mean(self) -> Tensor:
        """Return the terms less their mean under the row's weights, (parts, keys)."""
        return self.terms - (self.terms @ self.weights.to(self.terms))[:, None]

    def records(self) -> list[dict[str, Any]]:
        """Return the terms as records for `pandas.DataFrame`: key, part, term and weight."""
        return [
            {"key": j, "part": part.label, "term": float(self.terms[i, j]), "weight": float(self.weights[j])}
            for j in range(self.terms.shape[1])
            for i, part in enumerate(self.parts)
        ]


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
    share: of the score by which the head prefers what it looks at to the average key, or of its output; the shares of
        all parts on one side sum to 1.
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

    def into(self, layer: int, head: int, side: str | None = None) -> list[Edge]:
        """Return the edges into a head, the largest share first.

        Raises:
            ValueError: this head is not among those that were asked for.
        """
        if (layer, head) not in self.heads:
            raise ValueError(f"head {head} of layer {layer} was not asked for: give layers= that hold it")
        found = [one for one in self._edges(self.heads.index((layer, head))) if side in (None, one.side)]
        return sorted(found, key=lambda one: -abs(one.share))


def ordered(parts: Sequence[StreamPart]) -> list[int]:
    """Return the numbers of parts in the order of the stream: embeddings, then layer by layer."""

    def place(i: int) -> tuple[int, int, int, int]:
        part = parts[i]
        kinds = {"head": 0, "attention": 0, "bias": 1, "MLP": 2}
        layer = -1 if part.layer is None and part.kind != "bias" else part.layer if part.layer is not None else 10**6
        return layer, kinds.get(part.kind, 0), part.head or 0, i

    return sorted(range(len(parts)), key=place)
