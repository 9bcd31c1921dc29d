"""Sums of weights by class of keys, computed by torch's fused attention with one-hot values.

On a GPU this is several times faster than streaming blocks through memory, because torch's kernel keeps the scores on
the chip. The values 0 and 1 are exact, and all is computed in float32, `CLASSES` classes at a time. It gives neither
maxima nor log-normalizers, for which blocks are streamed.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from .._rules.rules import Allowed, Bias, cut, whole
from .._utils.indexing import Indices, take
from .base import AttentionBase, Head
from .softmax import is_finite
from .sources import Products
from .stages import KEYS, new
from .stripes import Stripe

DEVICES = ("cuda",)  # device types where this is faster
CLASSES = 128  # in one call: the size of a value


def sums_by_attention(att: AttentionBase, head: Head, queries: Indices) -> bool:
    """Return whether torch's attention can compute the weights of some queries, and is faster on this device."""
    if att.device.type not in DEVICES or not isinstance(att.source, Products) or att.result_dtype != torch.float32:
        return False
    if att.softcap is not None or att.sinks is not None:
        return False
    return all(isinstance(bias, Bias) for bias in att.rules.biases) and is_finite(head, queries)


def weights_by_class(head: Head, queries: Indices, classes: Tensor, count: int) -> Tensor:
    """Sum the weights of some queries by class of keys.

    Args:
        head: which head.
        queries: which queries.
        classes: (K,) int64, from 0 up to `count`; keys with other numbers take weight but are not summed.
        count: the number of classes.

    Returns:
        (count, queries), 0 for a fully masked query.
    """
    att, found = head.att, new(head.att, count, len(queries)).zero_()
    assert head.q is not None
    assert head.k is not None
    span = att.rules.span(head.block(queries))
    if not span or not count:
        return found
    q, k = (take(x, at, 0).to(att.result_dtype)[None, None] for x, at in ((head.q, queries), (head.k, span)))
    added, empty = _added(head, queries, span)
    of_keys = classes[span.start : span.stop, None]
    for first in range(0, count, CLASSES):
        v = (of_keys == torch.arange(first, first + CLASSES, device=att.device)).to(att.result_dtype)[None, None]
        sums = F.scaled_dot_product_attention(q, k, v, attn_mask=added, scale=att.scale)[0, 0]  # (queries, CLASSES)
        if empty is not None:
            sums = sums.masked_fill(empty, 0)
        found[first : first + CLASSES] = sums.mT[: count - first]
    return found


def _added(head: Head, queries: Indices, keys: range) -> tuple[Tensor | None, Tensor | None]:
    """Return the biases, with −∞ in blocked cells, (queries, keys); and which rows are fully masked, (queries, 1)."""
    att, cells = head.att, head.block(queries, keys)
    allowed = att.rules.allowed(cells)
    if allowed is True and not att.rules.biases:
        return None, None
    added = new(att, len(queries), len(keys)).zero_()
    for bias in att.rules.biases:
        added += cut(bias.added, cells)  # type: ignore[union-attr]  # functions are excluded by `sums_by_attention`
    if allowed is True:
        return added, None
    is_open = whole(allowed, queries, keys, att.device)
    return added.masked_fill_(~is_open, -torch.inf), ~is_open.any(1, keepdim=True)


class AttentionStripe(Stripe):
    """The sum of weights, computed by torch's attention: each bin of keys is a class."""

    def run(self) -> Iterator[tuple[range, Allowed]]:
        """Sum all keys at once; yield the allowed cells block by block."""
        region, (first, count) = self.region, (self.columns.start, len(self.bins))
        classes = torch.arange(len(region.keys), device=self.att.device) // region.key_bin - first
        self.bins.copy_(weights_by_class(self.head, self.rows, classes, count))
        row, rules = self.head.block(self.rows, region.keys), self.att.rules
        for keys in rules.pieces(row, region.key_bin, KEYS):
            allowed = rules.allowed(row._replace(keys=keys))
            if allowed is not False:
                yield keys, allowed


def own_apart(head: Head, queries: Indices, classes: Tensor, count: int, own: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sum weights by class of keys, and separate the weight of each query's own key.

    The own keys get classes of their own, because subtracting them from a sum would leave rounding errors.

    Args:
        head, queries, classes, count: as in `weights_by_class`.
        own: (queries,) the key at each query's position, −1 for none; None if unknown.

    Returns:
        (count, queries) without own keys, and (queries,) the weights of own keys.
    """
    if own is None or not bool((own >= 0).any()):
        return weights_by_class(head, queries, classes, count), new(head.att, len(queries)).zero_()
    places, at = own.clamp(min=0).unique(return_inverse=True)
    finer = classes.clone()
    finer[places] = count + torch.arange(len(places), device=finer.device)
    found = weights_by_class(head, queries, finer, count + len(places))
    others, apart = found[:count], found[count:]  # (count, queries) and (places, queries)
    mine = apart.gather(0, at[None])[0].masked_fill(own < 0, 0)
    apart.scatter_(0, at[None], apart.gather(0, at[None]).masked_fill(own >= 0, 0))
    numbers = classes[places]
    inside = (numbers >= 0) & (numbers < count)
    others = others.index_add(0, numbers[inside], apart[inside])
    return others, mine
