"""Sums of weights by class of keys, from torch's fused attention: its output, where a value tells the class of its key.

On a GPU that is the way to exact sums without a Q × K tensor: torch's kernel keeps the scores on the chip, where blocks
that stream through memory would take several times as long. Values are one-hot, and 0 and 1 are exact, so that all
is computed in float32; some classes at a time, 512 in a few calls. It gives no maximum and no log-normalizers: those
stay with blocks that stream past.
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

DEVICES = ("cuda",)  # kinds of those where it is the quicker way
CLASSES = 128  # of one call: numbers of a value


def sums_by_attention(att: AttentionBase, head: Head, queries: Indices) -> bool:
    """Whether torch's attention computes the weights of some queries, on a device where that is the quicker way."""
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
        classes: (K,) int64, from 0 up to `count`; others are left out, but take their share of the weights.
        count: how many classes there are.

    Returns:
        (count, queries), 0 of a query that may attend to nothing.
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
    """Return what is added to scores, −∞ where a cell is blocked, (queries, keys); and empty rows, (queries, 1)."""
    att, cells = head.att, head.block(queries, keys)
    allowed = att.rules.allowed(cells)
    if allowed is True and not att.rules.biases:
        return None, None
    added = new(att, len(queries), len(keys)).zero_()
    for bias in att.rules.biases:
        added += cut(bias.added, cells)  # type: ignore[union-attr]  # those that are functions are not served
    if allowed is True:
        return added, None
    is_open = whole(allowed, queries, keys, att.device)
    return added.masked_fill_(~is_open, -torch.inf), ~is_open.any(1, keepdim=True)


class AttentionStripe(Stripe):
    """The sum of weights, from torch's attention: a bin of keys is a class."""

    def run(self) -> Iterator[tuple[range, Allowed]]:
        """Sum all keys at once; yield, block by block, which cells are allowed."""
        region, (first, count) = self.region, (self.columns.start, len(self.bins))
        classes = torch.arange(len(region.keys), device=self.att.device) // region.key_bin - first
        self.bins.copy_(weights_by_class(self.head, self.rows, classes, count))
        row, rules = self.head.block(self.rows, region.keys), self.att.rules
        for keys in rules.pieces(row, region.key_bin, KEYS):
            allowed = rules.allowed(row._replace(keys=keys))
            if allowed is not False:
                yield keys, allowed


def own_apart(head: Head, queries: Indices, classes: Tensor, count: int, own: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sum weights by class of keys without that of a query's own key, which is given apart.

    The own keys of these queries are classes of their own, for a difference of two sums would be rounding.

    Args:
        head, queries, classes, count: as of `weights_by_class`.
        own: (queries,) the key at each query's own place, −1 for none; None where none is known.

    Returns:
        (count, queries), and (queries,) what each query gives to its own key.
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
