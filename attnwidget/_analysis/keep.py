"""What a row loses if a cache keeps only some keys: the exact mass that is kept, and the error of the output."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._engine.base import AttentionBase, Head
from .._engine.cache_policies import as_key_mask, kept_keys, policy_mask, read_policy, told_policy, with_keys
from .._engine.logsumexp import LogSumExp
from .._engine.matmul import exact, exactly
from .._engine.softmax import Softmax, normalizing, weigh
from .._engine.stages import QUERIES, blocks, new, values
from .._rules.rules import ByIndex, whole
from .._utils.indexing import Block, cuts
from .._utils.validation import as_size
from ..masks import Mask, MaskFunction
from .head_sampling import weight_rows

ROUNDING = 2.0**-19  # of a share of weights in float32


@dataclass(frozen=True, eq=False)
class Kept:
    """The share of its weights that each row of a head keeps, if a cache holds only some keys.

    policy: in words.
    recall: (Q,) the share of the row's mass on the kept keys: exp(log-normalizer over the kept keys − log-normalizer
        over all). A learned sink is not a key and is always kept. NaN for a fully masked query.
    kept, allowed: (Q,) int64, the number of keys that a query has, and had.
    output_error: (Q,) ‖output over the kept keys − output‖ / ‖output‖; None without v.
    mask: of the kept keys, as `Attention(mask=…)` takes it beside the same q and k.

    >>> import torch
    >>> from attnwidget import Attention
    >>> att = Attention(torch.eye(3), torch.eye(3), torch.eye(3), is_causal=True)
    >>> found = att.keep("window", 2, sinks=0)
    >>> found.kept.tolist(), found.allowed.tolist()
    ([1, 2, 2], [1, 2, 3])
    """

    policy: str
    recall: Tensor
    kept: Tensor
    allowed: Tensor
    output_error: Tensor | None
    mask: MaskFunction

    @property
    def cut(self) -> Tensor:
        """(Q,) bool, the rows that have lost a key."""
        return self.kept < self.allowed

    @property
    def mean(self) -> float:
        """The mean recall of the rows that have lost a key; 1 if none has."""
        return float(self.recall[self.cut].mean()) if bool(self.cut.any()) else 1.0

    @property
    def mean_error(self) -> float | None:
        """The mean error of the output of the rows that have lost a key; None without v."""
        if self.output_error is None:
            return None
        return float(self.output_error[self.cut].mean()) if bool(self.cut.any()) else 0.0

    def worst(self, count: int = 10) -> list[int]:
        """Return the rows that keep least, among those that have lost a key, the worst first.

        Args:
            count: the most rows.

        Returns:
            Their queries; an example is in `attnwidget.Attention.keep`.
        """
        rows = self.cut.nonzero()[:, 0]
        order = self.recall[rows].sort(stable=True).indices[: as_size(count, "count")]
        return rows[order].tolist()

    def records(self) -> list[dict[str, Any]]:
        """Return a dict for each query, ready for `pandas.DataFrame`."""
        errors = [None] * len(self.recall) if self.output_error is None else self.output_error.tolist()
        rows = zip(self.recall.tolist(), self.kept.tolist(), self.allowed.tolist(), errors, strict=True)
        names = ("recall", "kept", "allowed", "output_error")
        return [{"query": query, **dict(zip(names, row, strict=True))} for query, row in enumerate(rows)]

    def __repr__(self) -> str:
        lost = int(self.cut.sum())
        error = "" if self.mean_error is None else f", mean error of the output {self.mean_error:.3g}"
        return f"Kept({self.policy}: mean recall {self.mean:.3g} of {lost:,} rows that lose keys{error})"


def keep(att: AttentionBase, policy: Any, batch: int, head: int, numbers: Mapping[str, Any]) -> Kept:
    """Compute the effect of a policy on one head: see `Attention.keep`."""
    found = att.head(batch, head)
    mask = key_mask(att, policy, numbers)
    return kept_by(found, mask, str(mask) if isinstance(policy, str) else "a mask")


def key_mask(att: AttentionBase, policy: Any, numbers: Mapping[str, Any]) -> Mask:
    """Return the keys that a policy keeps, as a mask.

    Raises:
        TypeError, ValueError: there is no such policy, or it does not fit.
    """
    att.check_stage("masked")
    if isinstance(policy, str):
        return policy_mask(att, read_policy(att, {"policy": policy, **numbers}))
    mask = as_key_mask(att, policy)
    if mask is None:
        raise TypeError(told_policy(policy))
    given = [name for name, value in numbers.items() if value is not None]
    if given:
        raise ValueError(f"a mask already says which keys are kept: leave out {given[0]}=")
    return mask


def kept_by(head: Head, mask: Mask, policy: str) -> Kept:
    """Compute the effect of a mask on a head: one pass over its own keys, one over the kept keys."""
    att = head.att
    with exact(att.device):
        fewer = Head(with_keys(att, mask), head.batch, head.head)
        before, output, allowed = _pass(head)
        after, kept_output, kept = _pass(fewer)
        recall = _recall(before, after)
        error = None
        if output is not None and kept_output is not None:
            lost, size = torch.linalg.vector_norm(kept_output - output, dim=1), torch.linalg.vector_norm(output, dim=1)
            error = torch.where(lost == 0, lost, lost / size)
    return Kept(policy, recall, kept, allowed, error, mask)


def recalling(head: Head) -> Generator[tuple[range, Tensor | None], None, None]:
    """Compute the recall of each row, for a head of an attention over a cache's keys: as `Kept.recall`.

    Yields:
        After each block its rows; once they are done their recall, (rows,), until then None.
    """
    fewer = head.att
    whole_head = Head(with_keys(fewer, None), head.batch, head.head)
    for rows in cuts(range(fewer.shape.Q), 1, QUERIES):
        each = []
        for one in (whole_head, head):
            steps = exactly(fewer.device, normalizing(one, rows))
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    each.append(end.value)
                    break
                yield rows, None
        before, after = each
        with exact(fewer.device):
            recall = _recall(before, after)
        yield rows, recall


def _recall(before: LogSumExp, after: LogSumExp) -> Tensor:
    """Return the kept share of the weights, from the log-normalizers over all keys and over the kept keys."""
    recall = (after.m - before.m + (after.log_l - before.log_l)).exp()
    recall.masked_fill_(recall > 1 - ROUNDING, 1)  # the sums over all keys and over those kept may have other orders
    return recall.masked_fill(after.log_l.isposinf(), 0).masked_fill(before.log_l.isposinf(), torch.nan)


def _pass(head: Head) -> tuple[LogSumExp, Tensor | None, Tensor]:
    """Return the log-normalizers of all rows, their outputs (Q, Dv) if there is v, and their numbers of keys."""
    att, Q = head.att, head.att.shape.Q
    m, log_l = new(att, 2, Q)
    output = None if att.v is None else new(att, Q, att.shape.Dv or 0)
    counts = torch.zeros(Q, dtype=torch.int64, device=att.device)
    for rows in cuts(range(Q), 1, QUERIES):
        at = slice(rows.start, rows.stop)
        softmax, total = Softmax(head, len(rows)), new(att, len(rows), att.shape.Dv or 0).zero_()
        for keys, S, allowed in blocks(head, rows, "masked"):
            if isinstance(allowed, Tensor):
                counts[at] += allowed.expand(len(rows), len(keys)).sum(1)
            else:
                counts[at] += len(keys)
            e, shrink = softmax.add(S, S.amax(0))
            if output is not None:
                total = weigh(e, values(head, keys)) + (total if shrink is None else total * shrink[:, None])
            del e, S
        m[at], log_l[at] = softmax.logsumexp()
        if output is not None:
            empty = (softmax.m == -torch.inf)[:, None]
            output[at] = (total / softmax.l[:, None]).masked_fill(empty, 0)
    return LogSumExp(m, log_l), output, counts


# All heads of a layer.


def recall_of_heads(att: AttentionBase, batch: int, queries: range) -> Generator[None, None, Tensor]:
    """Compute the mean recall of some rows of each head, for an attention over a cache's keys.

    Yields:
        After each block.

    Returns:
        (heads,) float64, the mean over the rows that lose a key, 1 if none does; NaN if all keys are kept.
    """
    H, mask = att.shape.H, kept_keys(att)
    sums, counts = torch.zeros(2, H, dtype=torch.float64, device=att.device)
    if mask is None:
        return torch.full((H,), torch.nan, dtype=torch.float64, device="cpu")
    whole_att, rule = with_keys(att, None), ByIndex(mask, att.device)
    for piece, part, _, found in weight_rows(whole_att, batch, range(H), queries):
        rows = queries[piece.start : piece.stop]
        with exact(att.device):
            for at, head in enumerate(part):
                cells = Block(batch, head, rows, range(att.shape.K))
                kept = whole(rule.allowed(cells), rows, cells.keys, att.device).mT  # (keys, rows)
                before = torch.ones_like(kept) if found.allowed is None else found.allowed.allowed[:, 0]
                total = found.total[at]
                mass = (found.e[:, at] * kept).sum(0) / total.where(total != 0, 1)
                mass = mass if found.sink is None else mass + found.sink[at]
                cut = (before & ~kept).any(0) & (total != 0)
                sums[head] += mass.where(cut, 0).sum(dtype=torch.float64)
                counts[head] += cut.sum()
        yield
    return torch.where(counts > 0, sums / counts, 1.0).cpu()
