"""Metrics of a head: how widely it attends, and to which tokens.

Each is a mean over queries, exact for every query that is computed. Fully masked queries count only for the masked
share, and so does padding: queries whose own position is blocked for themselves and for the first and last query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from .._engine.pooling import pool_first
from .._tokens.unread import Unread
from .._utils.indexing import positions
from .._utils.readable import Readable


@dataclass(frozen=True, repr=False)
class Metrics(Readable):
    """Means over the queries of one head; p are a query's weights.

    A metric is None if it has nothing to average. `same_token` and `induction` need all tokens, which may be missing if
    a cache held some before the block of a capture. Metrics that compare a query's place with a key's need to know
    these places: if there are more keys than queries, a capture must know which keys came before.

    entropy: bits, −Σ p log₂ p (Shannon 1948): 0 if one key has all the weight, log₂ n if n keys share it equally. A
        learned sink counts as one more key.
    first_token: weight on the first key that the first or the last query may attend to, the "attention sink" (Xiao et
        al. 2024).
    previous_token: on the key before the query's own place, for all queries but the first (Clark et al. 2019, §3.1).
    itself: on the key at the query's own place.
    same_token: on keys elsewhere with the query's own token, for queries that may attend to any.
    last_token: on the last key that the first or the last query may attend to, which is the text's last token, such as
        [SEP] (Clark et al. 2019, §3.2). In a causal model only the last query may attend to it.
    induction: on keys right after an earlier occurrence of the query's token, for queries that may attend to any: the
        prefix matching of induction heads (Olsson et al. 2022).
    mean_distance: Σ p |query − key|, tokens.
    masked_share: the share of keys that a query may not attend to.
    learned_sink: weight on the learned sink, which has no key (`Attention.sink_weights`); None without learned sinks.
    rows: the number of queries used: all, or evenly spread ones.

    >>> import torch
    >>> from attnwidget import Attention
    >>> att = Attention(torch.eye(3), torch.eye(3), torch.eye(3), is_causal=True)
    >>> found = att.metrics()
    >>> round(found.first_token, 2), round(found.entropy, 2)
    (0.54, 0.82)
    """

    entropy: float | None
    first_token: float | None
    previous_token: float | None
    itself: float | None
    same_token: float | None
    last_token: float | None
    induction: float | None
    mean_distance: float | None
    masked_share: float | None
    learned_sink: float | None
    rows: int


NAMES = tuple(field.name for field in fields(Metrics) if field.name != "rows")
SINK_THRESHOLD = 0.3  # weight on the first token: Gu et al. 2025, §2
FIRST_KEYS, WINDOW = 4, 64  # of a streaming head; the first keys as in Xiao et al. 2024
MEASURED = (*NAMES, "sink", "streaming")  # measured for all heads; kinds of `find_heads` too
SURVEYED = (*MEASURED, "recall")  # in the heads view: recall, if a cache keeps only some keys


def as_ids(tokens: Sequence[str]) -> Tensor | None:
    """Number tokens, the same for the same token: (n,) int64; None if one of them is unknown.

    >>> as_ids(["a", "b", "a"])
    tensor([0, 1, 0])
    >>> as_ids(["a", Unread("1"), "a"])
    """
    if any(isinstance(token, Unread) for token in tokens):
        return None
    known: dict[str, int] = {}
    numbers = [known.setdefault(token, len(known)) for token in tokens]
    return torch.tensor(numbers, dtype=torch.int64, device="cpu")


class MetricIndex:
    """Index tensors that all heads share: the keys that each metric counts for some queries.

    Args:
        keys: the number of keys.
        heads: the most heads measured at once.
        ids: the token of each position, (keys,), if known.
        own: the key at each query's own place; None if keys have other places.
        dtype: of the weights.
        device: of the weights.

    Attributes:
        own: (rows,), the keys at the queries' own places; None if keys have other places.
        before: (rows,), the keys before those.
        row: (rows,), the numbers of the queries among these.
        distance: (keys, heads, rows), in tokens; None if keys have other positions.
        alike: for each metric that compares tokens, the keys and the rows of the counted cells, concatenated.
    """

    def __init__(
        self,
        keys: int,
        heads: int,
        ids: Tensor | None,
        own: Sequence[int] | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.ids = ids
        self.own: Tensor | None = None
        self.before = self.row = torch.empty(0, device=device)
        self.distance: Tensor | None = None
        self.alike: dict[str, tuple[Tensor, Tensor]] = {}
        if own is None:
            return
        self.own = positions(own, device) if isinstance(own, range) else torch.tensor(own, device=device)
        self.row = torch.arange(len(own), device=device)
        self.before = (self.own - 1).clamp_(min=0)
        key = torch.arange(keys, device=device)[:, None]
        distance = (key - self.own).abs_().to(dtype)
        self.distance = distance[:, None].expand(-1, heads, -1).contiguous()
        if ids is None:
            return
        for name, counted in alike_cells(ids.to(device), self.own).items():
            found = counted.nonzero()
            self.alike[name] = found[:, 0], found[:, 1]

    @property
    def names(self) -> list[str]:
        """The metrics that `measure` computes, in its order; with learned sinks, one more at the end."""
        own = ["itself", "previous_token", "mean_distance", "streaming"] if self.own is not None else []
        return ["first_token", "last_token", *own, *self.alike, "sink", "entropy", "masked_share"]


def alike_cells(ids: Tensor, own: Tensor) -> dict[str, Tensor]:
    """Return the cells that each metric counts which compares tokens, (keys, rows) bool.

    Args:
        ids: the token of each key, (keys,).
        own: the key at each query's own place, (rows,).
    """
    key = torch.arange(len(ids), device=ids.device)[:, None]
    same = ids[:, None] == ids[own]  # (keys, rows)
    after = torch.zeros_like(same)
    after[1:] = same[:-1]
    return {"same_token": same & (key != own), "induction": after & (key < own)}


class AllowedRows:
    """The allowed cells of some rows, and numbers that follow: computed once for all heads that share them.

    Args:
        allowed: (keys, 1, rows) bool.

    Attributes:
        allowed: as given.
        counts: (1, rows), the number of allowed keys of each query.
        blocked_share: (1, rows), the share of blocked keys of each query.
    """

    def __init__(self, allowed: Tensor) -> None:
        self.allowed = allowed
        self.counts = allowed.sum(0, dtype=torch.float32)
        self.blocked_share = 1 - self.counts / max(1, len(allowed))
        self._pooled: Tensor | None = None

    @classmethod
    def of(cls, allowed: Tensor) -> AllowedRows | None:
        """Return None if everything is allowed."""
        return None if bool(allowed.all()) else cls(allowed)

    def pooled(self, width: int) -> Tensor:
        """Return which of so many bins of keys have an allowed cell, (bins, 1, rows) uint8."""
        if self._pooled is None:
            self._pooled = pool_first(self.allowed.to(torch.uint8), width, torch.amax)
        return self._pooled


class MetricMeans:
    """Means of the metrics of some heads, as rows come in."""

    def __init__(self, heads: int) -> None:
        self._sums = torch.zeros(len(MEASURED), heads, dtype=torch.float64, device="cpu")
        self._counts = torch.zeros(len(MEASURED), heads, dtype=torch.int64, device="cpu")

    def add(self, names: Sequence[str], rows: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Add rows of all heads.

        Args:
            names: of the metrics.
            rows: of some heads in order, values and whether they count, (metrics, heads, rows) both.
        """
        at = [MEASURED.index(name) for name in names]
        counts = torch.cat([counted for _, counted in rows], 1)
        found = torch.cat([values for values, _ in rows], 1).where(counts, 0)
        self._sums[at] += found.sum(2, dtype=torch.float64).cpu()
        self._counts[at] += counts.sum(2).cpu()

    @property
    def state(self) -> tuple[Tensor, Tensor]:
        """The sums, (metrics, heads) float64, and the number of rows in each, int64."""
        return self._sums, self._counts

    def restore(self, sums: Tensor, counts: Tensor) -> None:
        """Continue from another's state."""
        self._sums, self._counts = sums, counts

    def add_sums(self, heads: range, sums: Tensor, counts: Tensor) -> None:
        """Add another's state, over some of the heads and other rows."""
        self._sums[:, heads.start : heads.stop] += sums
        self._counts[:, heads.start : heads.stop] += counts

    @property
    def values(self) -> Tensor:
        """The means, (metrics, heads) float64; NaN if nothing counted."""
        return self._sums / self._counts

    def records(self, rows: int) -> list[Metrics]:
        """Return the metrics of each head over `rows` queries."""
        found, counted = self.values.mT.tolist(), (self._counts > 0).mT.tolist()
        heads = (
            {
                name: value if there else None
                for name, value, there in zip(MEASURED, *head, strict=True)
                if name in NAMES
            }
            for head in zip(found, counted, strict=True)
        )
        return [Metrics(**head, rows=rows) for head in heads]


class WeightRows(NamedTuple):
    """All weights of some queries of some heads.

    e: (keys, heads, rows), the weights times `total`; 0 in blocked cells.
    total: (heads, rows), with the learned sink; 0 for a fully masked query.
    entropy: (heads, rows), bits.
    sink: (heads, rows), the weight of the learned sink; None without learned sinks.
    allowed: the allowed cells; None if all are.
    scratch: memory of the shape of `e`, to overwrite.
    """

    e: Tensor
    total: Tensor
    entropy: Tensor
    sink: Tensor | None
    allowed: AllowedRows | None
    scratch: Tensor


class RealKeys:
    """The keys that are not padding: those that the first or the last query may attend to.

    Args:
        allowed: (keys,) bool.

    Attributes:
        allowed: as given.
        first: the first of them.
        last: the last of them.
    """

    def __init__(self, allowed: Tensor) -> None:
        self.allowed = allowed
        keys = allowed.nonzero()[:, 0]
        self.first, self.last = (int(keys[0]), int(keys[-1])) if len(keys) else (0, len(allowed) - 1)


def measure(index: MetricIndex, rows: WeightRows, real: RealKeys) -> tuple[Tensor, Tensor]:
    """Compute metrics of rows of some heads.

    Args:
        index: the keys that they count.
        rows: the weights.
        real: the keys that are not padding.

    Returns:
        Values, and whether they count: (metrics, heads, rows) both, in the order of `index.names`, then
        `learned_sink` if there are sinks.
    """
    e, total, entropy, sink, allowed, scratch = rows
    there = total != 0  # true for NaN, which therefore shows
    if index.own is not None and allowed is not None:
        there = there & (allowed.allowed[index.own, 0, index.row] | real.allowed[index.own])
    weights = [e[real.first], e[real.last]]
    counted = [there, there]
    if index.own is not None and index.distance is not None:
        weights += [e[index.own, :, index.row].mT, e[index.before, :, index.row].mT]
        weights.append(torch.mul(e, index.distance[:, : e.shape[1]], out=scratch).sum(0))
        counted += [there, there & (index.own > 0), there]
        kept, others = near(index.own, rows, real.first)
        weights.append(kept)
        counted.append(there & others)
    for keys, at in index.alike.values():
        on = e.new_zeros(total.mT.shape).index_add_(0, at, e[keys, :, at])  # (rows, heads)
        open_pairs = e.new_ones(len(keys)) if allowed is None else allowed.allowed[keys, 0, at].to(e.dtype)
        reached = e.new_zeros(len(on)).index_add_(0, at, open_pairs) > 0
        weights.append(on.mT)
        counted.append(there & reached)
    several = torch.tensor(len(e) > 1, device=e.device) if allowed is None else allowed.counts > 1
    weights.append((e[real.first] > SINK_THRESHOLD * total).to(e.dtype) * total)
    counted.append(there & several)
    blocked = total.new_zeros(()) if allowed is None else allowed.blocked_share.to(total.dtype)
    values = torch.stack(weights).div_(total.where(there, 1))
    sinks, of_sinks = ([], []) if sink is None else ([sink], [there])
    values = torch.cat([values, torch.stack([entropy, blocked.expand(total.shape), *sinks])])
    return values, torch.stack([*counted, there, torch.ones_like(there), *of_sinks])


def near(own: Tensor, rows: WeightRows, first: int) -> tuple[Tensor, Tensor]:
    """Return the weight that each row keeps near and first, and whether it may attend to any other key.

    Args:
        own: (rows,), the keys at the queries' own places.
        rows: the weights.
        first: the first key that is not padding.

    Returns:
        The weight, times the total, on the first keys, the last ones up to the query's own, and the learned sink,
        (heads, rows); and (1, rows) or (rows,) bool.
    """
    e, total, _, sink, allowed, _ = rows
    K = len(e)
    stop = min(first + FIRST_KEYS, K)
    behind = own - torch.arange(WINDOW, device=own.device)[:, None]  # (window, rows)
    counts = behind >= stop  # earlier ones are among the first, or do not exist
    row, keys = torch.arange(len(own), device=own.device).expand(len(behind), -1), behind.clamp(min=0)
    kept = e[first:stop].sum(0) + (e[keys, :, row] * counts[..., None]).sum(0).mT  # (heads, rows)
    kept = kept if sink is None else kept + sink * total
    if allowed is None:
        return kept, counts.sum(0) + (stop - first) < K
    open_keys = allowed.allowed[first:stop].sum(0) + (allowed.allowed[keys, 0, row] & counts).sum(0)
    return kept, allowed.counts > open_keys
