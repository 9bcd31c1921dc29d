"""The numbers of all heads of one layer in some texts of the same length, from exact rows of their weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from .._analysis.all_heads import weights_of
from .._analysis.head_sampling import real_keys, rows_of_texts, sample, weight_rows
from .._analysis.metrics import MEASURED, MetricIndex, MetricMeans, RealKeys, WeightRows, alike_cells, measure
from .._engine.base import AttentionBase
from .._engine.matmul import exact
from .bins import CURVE, DISTANCES, SIDE, curve_bins, distance_bins, position_bins
from .links import CONTENT, OF_A_TEXT, LinkLists, excerpt_places, mixed
from .token_kinds import ASIDE, TextFacts

MOST_CELLS = 1 << 24  # of a head in one text; of a longer text evenly spread rows are computed
AT_ONCE = 1 << 20  # cells of all heads of several texts that are computed together
MOST_AT_ONCE = 1 << 22  # of one text; a longer one is computed in blocks
CHOICES = 8  # keys that a link's query can choose from, if any query of the text has so many
MOST_INDICES = 4  # kept; each is as large as a block
METRICS = (*MEASURED, "set_aside", "output", "effect")


class LayerOfTexts(NamedTuple):
    """The numbers of a layer's heads in some texts.

    metrics: (metrics, texts, heads) float64, the mean over the rows; NaN if nothing counts. In the order of `METRICS`.
    sums: over the texts, by name, (…, heads, …): see `LayerTotals`.
    links: candidates for the lists of links.
    sampled: whether only some rows were computed.
    """

    metrics: Tensor
    sums: dict[str, Tensor]
    links: LinkLists
    sampled: bool


class Projected(NamedTuple):
    """How a layer's heads write into the residual stream.

    gram: (heads, Dv, Dv), W_O · W_Oᵀ of each head: the squared size of an output o is o · gram · oᵀ. None if W_O is
        unknown; sizes are then those of the heads' own outputs.
    keep_values: whether values are kept with the links, to name the tokens that they write.
    """

    gram: Tensor | None
    keep_values: bool

    @classmethod
    def of(cls, att: AttentionBase) -> Projected:
        """Return how an attention's heads write, as far as the capture knows it."""
        carries = att.carries
        if carries is None or carries.w_o is None:
            return cls(None, keep_values=False)
        w_o = carries.w_o.detach().to(att.result_dtype)  # (heads, Dv, d_model)
        if carries.heads is not None:
            w_o = w_o[list(carries.heads)]
        return cls(torch.bmm(w_o, w_o.mT), keep_values=carries.readout is not None)


class IndexCache:
    """Index tensors, and memory, for texts of the same length."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], MetricIndex] = {}
        self._memory: dict[str, Tensor] = {}

    def zeros(self, name: str, like: Tensor, *shape: int) -> Tensor:
        """Return memory of a name: zeros at first, then what was left there, because new pages of memory are slow."""
        found = self._memory.get(name)
        if found is None or found.shape != shape or found.dtype != like.dtype or found.device != like.device:
            found = self._memory[name] = like.new_zeros(shape)
        return found

    def of(self, att: AttentionBase, rows: range, heads: int) -> MetricIndex:
        """Return the index of a block of rows."""
        own = att.own_keys(rows)
        places = own if own is None or isinstance(own, range) else tuple(own)
        key = (rows, places, att.shape.K, heads, att.result_dtype, att.device)
        if key not in self._known:
            if len(self._known) >= MOST_INDICES:
                self._known.clear()
            self._known[key] = MetricIndex(att.shape.K, heads, None, own, att.result_dtype, att.device)
        return self._known[key]


def texts_at_once(att: AttentionBase) -> int:
    """Return the number of texts of a layer to measure together."""
    shape = att.shape
    return max(1, AT_ONCE // max(1, shape.H * shape.Q * shape.K))


def measure_layer(
    att: AttentionBase,
    batches: range,
    facts: Sequence[TextFacts],
    texts: Sequence[int],
    *,
    projected: Projected,
    cache: IndexCache,
    kinds: int,
    salt: int,
    rows: int | None = None,
) -> Iterator[LayerOfTexts]:
    """Measure all heads of a layer in some texts; together where their masks are the same, else in turn.

    Args:
        att: the layer.
        batches: the samples.
        facts: of each text's tokens.
        texts: their numbers in the corpus.
        projected: how the heads write.
        cache: shared by texts of the same length.
        kinds: the number of kinds of tokens.
        salt: of the layer, for the choice of ordinary links.
        rows: the most rows to compute; None: all of a text of up to 4,096 tokens.
    """
    shape = att.shape
    most = max(1, MOST_CELLS // shape.K) if rows is None else rows
    queries = sample(shape.Q, most)
    make = partial(_Measuring, att, queries=queries, projected=projected, cache=cache, kinds=kinds)
    whole = len(queries) == shape.Q and len(batches) * shape.H * shape.Q * shape.K <= MOST_AT_ONCE
    found = rows_of_texts(att, batches, queries) if whole else None
    if found is not None:
        yield make(batches=batches, facts=facts).together(found, texts, salt)
        return
    for batch, own, text in zip(batches, facts, texts, strict=True):
        yield make(batches=range(batch, batch + 1), facts=[own]).in_blocks([text], salt)


class _Measuring:
    """Measures some texts, block by block; several texts only in one block."""

    def __init__(
        self,
        att: AttentionBase,
        *,
        batches: range,
        facts: Sequence[TextFacts],
        queries: range,
        projected: Projected,
        cache: IndexCache,
        kinds: int,
    ) -> None:
        self.att, self.batches, self.queries, self.projected, self.cache = att, batches, queries, projected, cache
        B, H, K, device, dtype = len(batches), att.shape.H, att.shape.K, att.device, att.result_dtype
        own = att.own_keys(queries)
        self.own = None if own is None else torch.tensor([*own], device=device)
        self.step = queries.step if len(queries) > 1 else 1
        self.content = torch.stack([one.content for one in facts]).to(device)  # (B, K)
        numbers = torch.stack([one.kinds for one in facts]).to(device)
        self.key_kinds = one_hot(numbers, kinds).to(dtype)  # (B, K, S)
        if self.own is None:
            row_kinds = torch.full((B, len(queries)), kinds - 1, device=device)
            self.content_rows = torch.ones_like(row_kinds, dtype=torch.bool)
        else:
            row_kinds, self.content_rows = numbers[:, self.own], self.content[:, self.own]
        self.row_kinds = one_hot(row_kinds, kinds).to(dtype)  # (B, rows, S)
        self.ids = [one.ids for one in facts]
        zeros = partial(torch.zeros, dtype=torch.float64, device=device)
        self.distance = zeros(4, B, H, 2 * K - 1)  # weight; weight of content; pairs; pairs of content
        self.position = zeros(4, B, H, K)
        self.kinds = zeros(B, H, kinds, kinds)  # by the query's and the key's kind
        self.kind_rows = zeros(B, H, kinds)
        Dv = att.shape.Dv
        self.output = None if Dv is None else zeros(B, H, Dv)
        self.size = zeros(B, H)
        shape = (2, B, H, len(queries))
        self.best = torch.zeros(shape, dtype=dtype, device=device)
        self.partner = torch.zeros(shape, dtype=torch.int64, device=device)
        self.choices = torch.zeros(B, H, len(queries), device=device)
        self._same: tuple[range, Tensor] = range(0), torch.empty(0, device=device)  # cells with the same tokens
        self.whole: Tensor | None = None  # all weights, (B, H, rows, K), if they are one block
        self.means = MetricMeans(B * H)

    def together(self, found: WeightRows, texts: Sequence[int], salt: int) -> LayerOfTexts:
        """Measure all rows of all texts in one block."""
        H = self.att.shape.H
        real = real_keys(self.att, self.batches[0], (self.queries[0], self.queries[-1]))(0)
        index = self.cache.of(self.att, self.queries, len(self.batches) * H)
        with exact(self.att.device):
            names, measured = self._block(range(len(self.queries)), range(H), index, found, real)
            self.means.add(names, [measured])
        return self._result(texts, salt)

    def in_blocks(self, texts: Sequence[int], salt: int) -> LayerOfTexts:
        """Measure one text in blocks of rows and heads."""
        att, batch, H = self.att, self.batches[0], self.att.shape.H
        of_real = real_keys(att, batch, (self.queries[0], self.queries[-1]))
        measures: list[tuple[Tensor, Tensor]] = []
        for piece, heads, together, found in weight_rows(att, batch, range(H), self.queries):
            with exact(att.device):
                index = self.cache.of(att, self.queries[piece.start : piece.stop], together)
                names, measured = self._block(piece, heads, index, found, of_real(heads.start))
                measures.append(measured)
                if heads.stop == H:
                    self.means.add(names, measures)
                    measures = []
        return self._result(texts, salt)

    def _block(
        self, piece: range, heads: range, index: MetricIndex, found: WeightRows, real: RealKeys
    ) -> tuple[list[str], tuple[Tensor, Tensor]]:
        """Add a block, and return the metrics of its rows with their names."""
        names = [*index.names, *(["learned_sink"] if self.att.has_sinks else [])]
        values, counted = measure(index, found, real)
        there = counted[index.names.index("entropy")]
        weights, pairs = self._add(piece, heads, found, there)
        if self.own is not None and all(ids is not None for ids in self.ids):
            alike, of_alike = self._alike(piece, weights, pairs, there)
            values, counted = torch.cat([values, alike]), torch.cat([counted, of_alike])
            names += ["same_token", "induction"]
        return names, (values, counted)

    def _alike(self, piece: range, weights: Tensor, pairs: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        """Return the metrics that compare tokens, and whether they count, (2, texts · heads, rows) both."""
        assert self.own is not None
        if self._same[0] != piece:
            own = self.own[piece.start : piece.stop]
            cells = [[*alike_cells(ids.to(own.device), own).values()] for ids in self.ids if ids is not None]
            which = torch.stack([torch.stack(one) for one in cells]).mT  # (B, 2, rows, keys)
            self._same = piece, which.transpose(0, 1)[:, :, None].contiguous()  # (2, B, 1, rows, keys)
        found, reached = [], []
        for which in self._same[1]:
            found.append(torch.mul(weights, which).sum(3))
            reached.append((torch.mul(pairs, which) > 0).any(3).expand(-1, weights.shape[1], -1))
        return torch.stack(found).flatten(1, 2), torch.stack(reached).flatten(1, 2) & there

    def _add(self, piece: range, heads: range, found: WeightRows, counted: Tensor) -> tuple[Tensor, Tensor]:
        """Add a block of rows; return its weights, (B, heads, rows, keys), and its pairs, (B, heads or 1, rows, keys).

        Args:
            piece: the rows.
            heads: the heads.
            found: their weights, (keys, B · heads, rows).
            counted: (B · heads, rows), the rows that count.
        """
        B, h, at, rows = len(self.batches), len(heads), slice(heads.start, heads.stop), slice(piece.start, piece.stop)
        size = len(piece), self.content.shape[1]
        inside = (self.content_rows[:, rows, None] & self.content[:, None])[:, None]  # (B, 1, rows, keys)
        pairs = self.cache.zeros("pairs", found.e, 2 * B, *size)
        if heads.start == 0 or not self.att.rules.same_for_heads:
            self._add_pairs(at, rows, pairs.unflatten(0, (2, B, 1)), found, counted.unflatten(0, (B, h)), inside)
        cells = self.cache.zeros("cells", found.e, 2 * B * h, *size)  # of all links, and of links among content tokens
        weights = cells.unflatten(0, (2, B, h))
        share = (counted / found.total.where(found.total != 0, 1)).unflatten(0, (B, h))
        torch.mul(found.e.permute(1, 2, 0).unflatten(0, (B, h)), share[..., None], out=weights[0])
        torch.mul(weights[0], inside, out=weights[1])
        self.position[:2, :, at] += cells.sum(1).unflatten(0, (2, B, h))
        self._add_distances(self.distance[:2, :, at], rows, cells)
        W, of_rows = weights[0], self.row_kinds[:, rows]
        by_key = (W.flatten(1, 2) @ self.key_kinds).unflatten(1, (h, -1))  # (B, heads, rows, S)
        self.kinds[:, at] += torch.einsum("bhrk,brq->bhqk", by_key, of_rows)
        self.kind_rows[:, at] += counted.unflatten(0, (B, h)).to(W.dtype) @ of_rows
        self._add_output(at, W)
        self.best[:, :, at, rows], self.partner[:, :, at, rows] = weights.max(4)
        if h == self.att.shape.H and len(piece) == len(self.queries):
            self.whole = W
        return W, pairs[:B, None]

    def _add_pairs(
        self, at: slice, rows: slice, pairs: Tensor, found: WeightRows, counted: Tensor, inside: Tensor
    ) -> None:
        """Count the pairs of a block, once for all heads if they have the same masks.

        Args:
            at: the heads of the block.
            rows: its rows.
            pairs: (2, B, 1, rows, keys), to overwrite: all pairs, and those among content tokens.
            found: the weights.
            counted: (B, heads, rows), the rows that count.
            inside: (B, 1, rows, keys), the pairs among content tokens.
        """
        at = slice(None) if self.att.rules.same_for_heads else at
        pairs[0] = 1 if found.allowed is None else found.allowed.allowed.permute(1, 2, 0)
        pairs[0] *= counted.any(1)[:, None, :, None]
        torch.mul(pairs[0], inside, out=pairs[1])
        self.position[2:, :, at] += pairs.sum(3)
        self._add_distances(self.distance[2:, :, at], rows, pairs.flatten(0, 2))
        self.choices[:, at, rows] = pairs[0].sum(3)

    def _add_distances(self, totals: Tensor, rows: slice, cells: Tensor) -> None:
        """Add cells, (2 · B · heads or 2 · B, rows, keys), to totals by distance, (2, B, heads, 2 · keys − 1)."""
        if self.own is None:
            return
        own = self.own[rows].tolist()
        runs = [(own[0], cells)] if self.step == 1 else [(one, cells[:, [i]]) for i, one in enumerate(own)]
        for first, run in runs:
            H, R, K = run.shape
            sums = diagonals(run, self.cache.zeros(f"wide {H}", run, H, R, K + R) if R > 1 else None)
            totals[..., first : first + sums.shape[1]] += sums.unflatten(0, (2, len(self.batches), -1))

    def _add_output(self, at: slice, W: Tensor) -> None:
        v = self.att.v
        if v is None or self.output is None:
            return
        groups = [self.att.group(head) for head in range(at.start, at.stop)]
        of_heads = v[self.batches.start : self.batches.stop, groups].to(W.dtype)  # (B, heads, K, Dv)
        o = torch.matmul(W, of_heads)  # (B, heads, rows, Dv)
        self.output[:, at] += o.sum(2)
        gram = self.projected.gram
        squares = (o if gram is None else torch.matmul(o, gram[at])) * o
        self.size[:, at] += squares.sum(3).clamp_(min=0).sqrt_().sum(2)

    # What is found.

    def _result(self, texts: Sequence[int], salt: int) -> LayerOfTexts:
        B, H = len(self.batches), self.att.shape.H
        means = self.means.values.unflatten(1, (B, H))
        unknown = means.new_full((1, B, H), torch.nan)
        size = unknown if self.output is None else (self.size / self.kind_rows.sum(2)).cpu()[None]
        with exact(self.att.device):
            links = self._links(texts, salt)
        aside = (self.kinds[..., :ASIDE].sum((2, 3)) / self.kind_rows.sum(2)).cpu()[None]
        metrics = torch.cat([means, aside, size, unknown])
        return LayerOfTexts(metrics, self._sums(), links, len(self.queries) < self.att.shape.Q)

    def _sums(self) -> dict[str, Tensor]:
        """Return sums over the texts of the means in each, and the number of texts that have such a mean, on the CPU.

        See `LayerTotals` for their names.
        """
        K, rows = self.att.shape.K, self.kind_rows.sum(2)[..., None].cpu()  # (B, H, 1), the queries that count
        kinds = self.kinds.cpu()
        distance = _in_bins(self.distance, distance_bins(K), DISTANCES)
        found: dict[str, Tensor] = {}
        for name, x in (
            ("distance", distance),
            ("curve", _in_bins(self.distance, curve_bins(K), CURVE)),
            ("position", _in_bins(self.position, position_bins(K), SIDE)),
        ):  # weights and pairs, each of all links and among content tokens
            found[f"{name}_sum"], found[f"{name}_count"] = _summed(x[:2], x[2:], 1)
        of_kinds = _summed(kinds, self.kind_rows[..., None].cpu(), 0)
        found["kind_sum"], found["kind_count"] = of_kinds[0], of_kinds[1][..., 0]
        found["share_sum"], counted = _summed(distance[0], rows, 0)
        found["counted"] = counted.mT
        found["on_kind_sum"], _ = _summed(kinds.sum(2), rows, 0)
        occurs = self.key_kinds.bool().any(1).cpu()[:, None]  # (B, 1, S)
        found["kind_texts"] = (occurs & (rows > 0)).sum(0)
        if self.output is not None:
            found["output_sum"], _ = _summed(self.output.cpu(), rows, 0)
        return found

    def _links(self, texts: Sequence[int], salt: int) -> LinkLists:
        """Return the candidates of the texts: the strongest links of each, and a random one, of all and of content."""
        H, n, device = self.att.shape.H, len(self.queries), self.att.device
        least = self.choices.amax((1, 2)).clamp(2, CHOICES)[:, None, None]
        eligible = (self.choices >= least) & (self.best > 0)  # (2, B, H, rows)
        eligible[CONTENT] &= self.content_rows[:, None]
        top, rows = self.best.where(eligible, -1).topk(min(OF_A_TEXT, n), 3)  # (2, B, H, OF_A_TEXT)
        drawn = [mixed(text, salt, H, device) for text in texts]
        order, number = (torch.stack([one[i] for one in drawn]) for i in (0, 1))  # (B, H)
        rank = number % eligible.sum(3).clamp(min=1)
        chosen = (eligible.cumsum(3) <= rank[..., None]).sum(3, keepdim=True).clamp(max=n - 1)
        random = order[..., None].where(eligible.gather(3, chosen), -torch.inf)
        more = OF_A_TEXT - top.shape[3]
        strength = pad(top.double().where(top > 0, -torch.inf), (0, more), value=-torch.inf)
        random, chosen = pad(random, (0, OF_A_TEXT - 1), value=-torch.inf), pad(chosen, (0, OF_A_TEXT - 1))
        rows = pad(rows, (0, more))
        orders = torch.stack([strength[0], random[0], strength[1], random[1]])  # (LISTS, B, H, OF_A_TEXT)
        at = torch.stack([rows[0], chosen[0], rows[1], chosen[1]])
        kind = torch.tensor([0, 0, 1, 1], device=device)[:, None, None, None]
        text = torch.arange(len(texts), device=device)[:, None, None]
        head = torch.arange(H, device=device)[:, None]
        place = kind, text, head, at
        return self._read_links(torch.tensor(texts, device=device), orders, at, self.partner[place], self.best[place])

    def _read_links(self, texts: Tensor, order: Tensor, at: Tensor, keys: Tensor, weights: Tensor) -> LinkLists:
        """Return links with their rows, and their values where these are needed; arguments (LISTS, B, H, count)."""
        B, H, device = len(self.batches), self.att.shape.H, self.att.device
        queries = self.queries.start + at * self.step
        places = excerpt_places(keys if self.own is None else self.own[at], keys, self.att.shape.K)
        text = torch.arange(B, device=device)[:, None, None]
        head = torch.arange(H, device=device)[:, None]
        inside = places.clamp(min=0)
        if self.whole is not None:
            row = self.whole[text[..., None], head[..., None], at[..., None], inside]
        else:
            row = self._computed(queries, order).gather(4, inside)
        values = None
        if self.projected.keep_values and self.att.v is not None:
            groups = torch.tensor([self.att.group(one) for one in range(H)], device=device)[:, None]
            values = self.att.v[self.batches.start : self.batches.stop][text, groups, keys].float()
        row = (row * (places >= 0)).float()
        texts = texts[:, None, None].expand(*keys.shape)
        found = (order, weights.double(), texts, queries, keys, row, values)
        return LinkLists(*(None if x is None else x.transpose(1, 2).flatten(2, 3).cpu() for x in found))  # type: ignore[arg-type]

    def _computed(self, queries: Tensor, order: Tensor) -> Tensor:
        """Compute the rows of one text's links again, (LISTS, 1, H, count, K): it was measured in blocks."""
        found = torch.zeros(*queries.shape, self.att.shape.K, dtype=self.att.result_dtype, device=self.att.device)
        for one, text, head, place in (order > -torch.inf).nonzero().tolist():
            query = int(queries[one, text, head, place])
            rows = range(query, query + 1)
            found[one, text, head, place] = weights_of(self.att, self.batches[0], head, rows)[0]
        return found


def diagonals(cells: Tensor, wide: Tensor | None = None) -> Tensor:
    """Sum cells by distance: (heads, rows, keys) to (heads, rows + keys − 1).

    Args:
        cells: (heads, rows, keys).
        wide: (heads, rows, keys + rows), zeros or what an earlier call of the same shape left there, to overwrite.

    The sum at place j has the cells whose query, counted from the block's first, minus the key is j − (keys − 1).

    >>> diagonals(torch.tensor([[[1, 2], [3, 4]]]))
    tensor([[2, 5, 3]])
    """
    H, R, K = cells.shape
    if R == 1:
        return cells[:, 0].flip(1)
    wide = cells.new_zeros(H, R, K + R) if wide is None else wide
    wide[:, :, :K] = cells.flip(2)
    return wide.as_strided((H, R, K + R - 1), (R * (K + R), K + R - 1, 1)).sum(1)


def _in_bins(x: Tensor, bins: Tensor, count: int) -> Tensor:
    """Return sums over bins of the last axis, on the CPU: (…, n) to (…, count)."""
    found = torch.zeros(*x.shape[:-1], count, dtype=x.dtype, device="cpu")
    return found.index_add_(x.ndim - 1, bins, x.cpu())


def _summed(sums: Tensor, counts: Tensor, texts: int) -> tuple[Tensor, Tensor]:
    """Return the sum over texts of sums ÷ counts, and the number of texts whose count is not 0.

    Args:
        sums: of each text.
        counts: of what was summed, in the same shape, or with axes of size 1.
        texts: the axis of the texts.
    """
    there = counts > 0
    return (sums / counts.where(there, 1)).where(there, 0).sum(texts), there.sum(texts)


def layer_salts(names: Sequence[str]) -> list[int]:
    """Return a number for each layer, from its name, for the choice of ordinary links."""
    return [sum(ord(letter) * 31**i for i, letter in enumerate(name)) % (1 << 31) for name in names]
