"""What a cache of keys may forget: policies as masks, which say of each query which keys are still there.

A policy that evicts one key after the other never brings one back, so of each key it is enough to know from which
query on it is gone: O(K) numbers of a head, found by going through its queries once, when the head is first asked for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .._rules.rules import whole
from .._utils.indexing import Block, Indices, cuts, hull
from .._utils.validation import as_choice, as_number, as_size, told
from ..masks import NO_KEYS, KeyBounds, Mask, as_mask
from .base import AttentionBase
from .matmul import exact
from .softmax import exact_block, whole_rows
from .stages import QUERIES

POLICIES = ("window", "heavy_hitters", "snapkv", "tova")
FIRST_KEYS = 4  # that "window" always keeps: Xiao et al. 2024, §3.2
OBSERVED, POOLED = 32, 7  # queries that vote, and keys that a vote is for: Li et al. 2024, §4
CELLS_AT_ONCE = 1 << 22  # scores that are computed before the queries are gone through
NEVER = torch.iinfo(torch.int64).max
A = TypeVar("A", bound=AttentionBase)


@dataclass(frozen=True)
class CachePolicy:
    """Which keys a cache keeps.

    name: one of `POLICIES`.
    budget: how many keys a query has at most, its own among them.
    sinks: of "window", how many of these are the first keys.
    recent: of "heavy_hitters", how many of these are the last keys.
    prompt: of "snapkv", how many tokens are read before keys are forgotten.
    observe: of "snapkv", how many of the last queries of the prompt vote.
    """

    name: str
    budget: int
    sinks: int = FIRST_KEYS
    recent: int = 0
    prompt: int = 0
    observe: int = OBSERVED

    def __str__(self) -> str:
        return f"{self.name.replace('_', ' ')} of {self.budget:,} keys"


def read_policy(att: AttentionBase, given: Mapping[str, Any]) -> CachePolicy:
    """Return a policy as a user gives it.

    Args:
        att: the attention that it is for.
        given: policy, budget, and sinks, recent, prompt and observe where they are not the default.

    Raises:
        TypeError, ValueError: no such policy, or numbers that do not fit.
    """
    name = as_choice(given.get("policy"), POLICIES, "policy")
    budget = _as_budget(given.get("budget"), att.shape.K)
    sinks = _as_count(given.get("sinks"), "sinks", FIRST_KEYS)
    recent = _as_count(given.get("recent"), "recent", budget // 2)
    observe = as_size(OBSERVED if given.get("observe") is None else given["observe"], "observe")
    prompt = given.get("prompt")
    inside = {"window": ("sinks", sinks), "heavy_hitters": ("recent", recent), "snapkv": ("observe", observe)}
    what, count = inside.get(name, ("", 0))
    if count >= budget:
        raise ValueError(
            f"budget is {budget} keys, of which {what} takes {count}: give a larger budget, or a smaller {what}="
        )
    if name == "snapkv":
        if prompt is None:
            raise ValueError("snapkv forgets keys once, where the prompt ends: say how many tokens it has, prompt=")
        prompt = as_size(prompt, "prompt")
        if prompt >= att.shape.K:
            raise ValueError(f"prompt is {prompt:,} of {att.shape.K:,} tokens, so nothing comes after it: give less")
        if observe > prompt:
            raise ValueError(f"observe is {observe}, and the prompt has {prompt} tokens: give observe= no larger")
    return CachePolicy(name, budget, sinks, recent, prompt or 0, observe)


def _as_budget(given: Any, keys: int) -> int:
    if given is None:
        raise ValueError("a policy needs a budget: give how many keys a query has at most, or a share of them below 1")
    if isinstance(given, float):
        share = as_number(given, "budget")
        if not 0 < share <= 1:
            raise ValueError(f"budget is {share:g}: give a share of the keys, above 0 and at most 1, or their number")
        return max(1, ceil(share * keys))
    return as_size(given, "budget")


def _as_count(given: Any, name: str, otherwise: int) -> int:
    return otherwise if given is None else 0 if type(given) is int and given == 0 else as_size(given, name)


def policy_mask(att: AttentionBase, policy: CachePolicy) -> Mask:
    """Return the keys that a policy leaves each query, as a mask for the attention beside its own.

    Raises:
        ValueError: the attention is no causal self-attention with all its queries.
    """
    own = att.own_keys(range(att.shape.Q))
    if own is None:
        raise ValueError(
            f"{policy} goes by the place of each query among the keys, which is not known in {att!r}: give "
            "self-attention, or a mask as the policy"
        )
    if att.source.gives != "scores":
        raise ValueError("only weights were given, so it is not known what is left of a row: give Attention(q, k)")
    places = torch.tensor(list(own), dtype=torch.int64, device="cpu")
    if policy.name != "window" and (len(places) != att.shape.K or int(places[0]) != 0):
        raise ValueError(
            f"{policy} is decided by all queries from the first key on, and there are {len(places):,} queries of "
            f"{att.shape.K:,} keys: give attention that has them all, or the policy 'window'"
        )
    for batch in range(att.shape.B):
        later = _later_key(att, batch, places)
        if later is not None:
            raise ValueError(
                f"a cache holds what came before, and query {later[0]:,} may attend to key {later[1]:,}, which comes "
                "later: give causal attention, or a mask as the policy"
            )
    if policy.name == "window":
        firsts = tuple(_first_key(att, batch) for batch in range(att.shape.B))
        return WindowAndFirst(policy, places, firsts)
    return Evicting(policy, att)


def _later_key(att: AttentionBase, batch: int, places: Tensor) -> tuple[int, int] | None:
    """Return a query and a key after its own place that the rules allow; None where there is none."""
    device = att.device
    for head in range(1 if att.rules.same_for_heads else att.shape.H):
        for rows in cuts(range(len(places)), 1, QUERIES):
            own = places[rows.start : rows.stop]
            keys = range(int(own[0]) + 1, att.shape.K)
            if not keys:
                continue
            allowed = att.rules.allowed(Block(batch, head, rows, keys))
            if allowed is False:
                continue
            later = torch.arange(keys.start, keys.stop, device="cpu") > own[:, None]
            found = (whole(allowed, rows, keys, device).cpu() & later).nonzero()
            if len(found):
                return rows.start + int(found[0, 0]), keys.start + int(found[0, 1])
    return None


def _first_key(att: AttentionBase, batch: int) -> int:
    """Return the first key that any query may attend to: those before are padding."""
    rows = range(att.shape.Q)
    for keys in cuts(range(att.shape.K), 1, 64):
        allowed = whole(att.rules.allowed(Block(batch, 0, rows, keys)), rows, keys, att.device).any(0)
        if bool(allowed.any()):
            return keys.start + int(allowed.int().argmax())
    return 0


@dataclass(frozen=True, eq=False)
class WindowAndFirst(Mask):
    """The last keys up to the query's own, and the first ones that are no padding.

    policy: how many of both.
    places: (Q,), the key at each query's own place.
    firsts: of each sample, the first key.
    """

    policy: CachePolicy
    places: Tensor
    firsts: tuple[int, ...]

    @property
    def shared(self) -> bool:  # type: ignore[override]
        """Whether all samples have the same."""
        return len(set(self.firsts)) == 1

    def __call__(self, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        place = self.places.to(q_idx.device)[q_idx]
        first = torch.tensor(self.firsts, device=kv_idx.device)[b]
        near = place - kv_idx < self.policy.budget - self.policy.sinks
        return near | ((kv_idx >= first) & (kv_idx < first + self.policy.sinks))

    def bounds(self, cells: Block) -> KeyBounds:
        columns = hull(cells.keys)
        if not len(cells.queries):
            return KeyBounds(columns, NO_KEYS)
        last = int(self.places[hull(cells.queries)[-1]])
        inner = range(max(columns.start, last - self.policy.budget + self.policy.sinks + 1), columns.stop)
        return KeyBounds(columns, inner if inner else NO_KEYS)

    def describe(self, batch: int) -> str:
        return str(self)

    def __str__(self) -> str:
        return str(self.policy)


@dataclass(frozen=True, eq=False)
class Evicting(Mask):
    """The keys that a policy has not evicted yet, found for each head when it is first asked for.

    policy: which.
    att: the attention whose rows decide.
    """

    policy: CachePolicy
    att: AttentionBase
    _known: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    shared = False

    def until(self, batch: int, head: int) -> Tensor:
        """Return of each key the first query that does not have it any more, (K,) int64; `NEVER` of those kept."""
        of = (batch, 0) if self.policy.name == "tova" else (batch, head)  # which all heads of a layer share
        with self._lock:
            if of not in self._known:
                with exact(self.att.device):
                    self._known[of] = EVICTIONS[self.policy.name](self.att, self.policy, batch, head)
            return self._known[of]

    def __call__(self, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return q_idx < self.until(int(b), int(h)).to(kv_idx.device)[kv_idx]

    def bounds(self, cells: Block) -> KeyBounds:
        columns, rows = hull(cells.keys), hull(cells.queries)
        if not rows or not columns:
            return KeyBounds(columns, NO_KEYS)
        until = self.until(cells.batch, cells.head)[columns.start : columns.stop]
        there = (until > rows[0]).nonzero()[:, 0]
        if not len(there):
            return KeyBounds(NO_KEYS, NO_KEYS)
        outer = range(columns.start + int(there[0]), columns.start + int(there[-1]) + 1)
        return KeyBounds(outer, columns if bool((until > rows[-1]).all()) else NO_KEYS)

    def describe(self, batch: int) -> str:
        return str(self)

    def __str__(self) -> str:
        return str(self.policy)

    def __reduce__(self) -> Any:
        return Evicting, (self.policy, self.att)


@dataclass(frozen=True, eq=False)
class GivenKeys(Mask):
    """A mask tensor of the user's own, (B or 1, H or 1, Q or 1, K), True where a key is kept."""

    kept: Tensor

    @property
    def shared(self) -> bool:  # type: ignore[override]
        """Whether all samples and heads have the same."""
        return tuple(self.kept.shape[:2]) == (1, 1)

    def __call__(self, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        kept = self.kept.to(kv_idx.device)
        of = kept[b if len(kept) > 1 else 0, h if kept.shape[1] > 1 else 0]  # (Q or 1, K)
        return of[q_idx if len(of) > 1 else torch.zeros_like(q_idx), kv_idx]

    def bounds(self, cells: Block) -> KeyBounds:
        return KeyBounds(hull(cells.keys), NO_KEYS)

    def describe(self, batch: int) -> str:
        return str(self)

    def __str__(self) -> str:
        return "keys kept by a mask"


def kept_keys(att: AttentionBase) -> Mask | None:
    """Return the keys that a cache keeps, where an attention is over these alone."""
    return dict(att.options.extra_masks).get("keep")


def with_keys(att: A, mask: Mask | None) -> A:
    """Return the attention over the keys that a mask keeps; over all where None."""
    extra = {name: one for name, one in att.options.extra_masks if name != "keep"}
    extra |= {} if mask is None else {"keep": mask}
    return att.replaced(replace(att.options, extra_masks=tuple(extra.items())), att.source, att.v)


# Policies that evict.


def _score_rows(att: AttentionBase, batch: int, heads: range) -> Any:
    """Yield the masked scores of query after query, (heads, keys up to its own) as arrays."""
    Q, K = att.shape.Q, att.shape.K
    at_once = max(1, CELLS_AT_ONCE // max(1, K * len(heads)))
    for rows in cuts(range(Q), 1, at_once):
        keys = range(rows.stop)
        blocks = [exact_block(att, Block(batch, head, rows, keys), "masked", None) for head in heads]
        scores = torch.stack(blocks).cpu().numpy()  # (heads, rows, keys)
        for row in rows:
            yield row, scores[:, row - rows.start, : row + 1]


def _weights(scores: Any, sinks: Any) -> Any:
    """Return the weights of the keys that are there, (heads, keys), each row over these alone and its learned sink."""
    peak = np.maximum(scores.max(1, initial=-np.inf), sinks)
    peak = np.where(np.isneginf(peak), 0, peak)
    e = np.exp(scores - peak[:, None])
    total = e.sum(1) + np.exp(sinks - peak)
    return e / np.where(total == 0, 1, total)[:, None]


def _sinks(att: AttentionBase, heads: range) -> Any:
    if att.sinks is None:
        return np.full(len(heads), -np.inf)
    return att.sinks[heads.start : heads.stop].double().cpu().numpy()


def _evicted_one_by_one(
    att: AttentionBase, batch: int, heads: range, budget: int, weigh: Callable[[Any, Any, Any], Any], protected: int
) -> Tensor:
    """Go through the queries; where the cache is full, evict the key with the least of something.

    Args:
        att: the attention.
        batch: which sample.
        heads: whose rows decide together.
        budget: keys that a query has at most, its own among them.
        weigh: takes what was kept of each key so far, which keys are there, and their weights (heads, keys); returns
            what is kept of each from now on, by which one is chosen. Of equal ones the earliest is evicted.
        protected: how many of the last keys are not evicted.
    """
    until = np.full(att.shape.K, NEVER, dtype=np.int64)
    kept, there = np.zeros(att.shape.K), np.empty(0, dtype=np.int64)
    sinks = _sinks(att, heads)
    for row, scores in _score_rows(att, batch, heads):
        there = np.append(there, row)
        kept[there] = weigh(kept[there], there, _weights(scores[:, there], sinks))
        if len(there) >= budget:
            at = int(kept[there[: max(1, len(there) - protected)]].argmin())
            until[there[at]] = row + 1
            there = np.delete(there, at)
    return torch.from_numpy(until)


def _heavy_hitters(att: AttentionBase, policy: CachePolicy, batch: int, head: int) -> Tensor:
    """Evict the key whose weights have the least sum so far, among all but the last ones: one head by itself."""
    heads = range(head, head + 1)
    add: Callable[[Any, Any, Any], Any] = lambda kept, _, weights: kept + weights[0]  # noqa: E731
    return _evicted_one_by_one(att, batch, heads, policy.budget, add, policy.recent)


def _tova(att: AttentionBase, policy: CachePolicy, batch: int, head: int) -> Tensor:
    """Evict the key with the least weight of the last query, the mean over the heads of the layer."""
    last: Callable[[Any, Any, Any], Any] = lambda kept, _, weights: weights.mean(0)  # noqa: E731
    return _evicted_one_by_one(att, batch, range(att.shape.H), policy.budget, last, 0)


def _snapkv(att: AttentionBase, policy: CachePolicy, batch: int, head: int) -> Tensor:
    """Keep the last keys of the prompt, and those before with most of the weights of its last queries, pooled."""
    before, until = policy.prompt - policy.observe, torch.full((att.shape.K,), NEVER, device="cpu")
    count = policy.budget - policy.observe
    if count >= before:
        return until
    rows: Indices = range(before, policy.prompt)
    weights = whole_rows(att, Block(batch, head, rows, range(att.shape.K)), "weights")
    votes = weights[:, :before].sum(0, dtype=torch.float64)  # (keys,)
    pooled = F.max_pool1d(votes[None], POOLED, stride=1, padding=POOLED // 2)[0]
    order = torch.sort(pooled, descending=True, stable=True).indices  # of equal ones the earlier first
    until[order[count:].cpu()] = policy.prompt
    return until


EVICTIONS: dict[str, Callable[[AttentionBase, CachePolicy, int, int], Tensor]] = {
    "heavy_hitters": _heavy_hitters,
    "tova": _tova,
    "snapkv": _snapkv,
}


def as_key_mask(att: AttentionBase, given: Any) -> Mask | None:
    """Return a mask of a user's own as the policy: a function of indices or a bool tensor; None if it is neither."""
    if isinstance(given, Mask) or (callable(given) and not isinstance(given, Tensor)):
        return as_mask(given)
    if isinstance(given, np.ndarray):
        given = torch.from_numpy(given)
    if not isinstance(given, Tensor):
        return None
    B, H, _, Q, K, *_ = att.shape
    if given.dtype != torch.bool:
        raise TypeError(f"the mask is {given.dtype}: give bools, True where a key is kept")
    kept = given.detach()[(None,) * (4 - given.ndim)] if given.ndim <= 4 else given
    wanted = ((1, B), (1, H), (1, Q), (K,))
    if kept.ndim != 4 or not all(n in there for n, there in zip(kept.shape, wanted, strict=True)):
        raise ValueError(
            f"the mask has shape {tuple(given.shape)}: give {(Q, K)} for queries and keys, or ({K},) for keys"
        )
    return GivenKeys(kept)


def told_policy(given: Any) -> str:
    """Return what a policy may be, for errors."""
    return f"policy is {told(given)}: give one of {', '.join(POLICIES)}, or a mask"
