"""KV-cache policies as masks: which keys each query still has.

An evicted key never comes back, so one number for each key is enough: the first query that no longer has it. These O(K)
numbers of a head are found in one pass over its queries, when the head is first used.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .._rules.parsing import read_mask_function
from .._rules.rules import whole
from .._utils.indexing import Block, Indices, cuts, hull
from .._utils.validation import as_choice, as_number, as_size, told
from ..masks import NO_KEYS, KeyBounds, Mask
from .base import AttentionBase
from .evictions import NEVER, Finding, Greedy, cells_of_decisions, evicting
from .matmul import exact
from .softmax import whole_rows
from .stages import QUERIES

POLICIES = ("window", "heavy_hitters", "snapkv", "tova")
FIRST_KEYS = 4  # which "window" always keeps: Xiao et al. 2024, §3.2
OBSERVED, POOLED = 32, 7  # how many queries vote, and the pool width in keys: Li et al. 2024, §4
A = TypeVar("A", bound=AttentionBase)


@dataclass(frozen=True)
class CachePolicy:
    """Which keys a cache keeps.

    name: one of `POLICIES`.
    budget: the most keys for a query, its own included.
    sinks: for "window", how many of them are the first keys.
    recent: for "heavy_hitters", how many of them are the last keys.
    prompt: for "snapkv", the number of tokens before keys are evicted.
    observe: for "snapkv", how many of the last queries of the prompt vote.
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
    """Read a policy that a user gives.

    Args:
        att: the attention that it is for.
        given: policy, budget, and optionally sinks, recent, prompt and observe.

    Raises:
        TypeError, ValueError: the policy is unknown, or its numbers do not fit.
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
            f"budget is {budget} keys, and {what} takes {count} of them: give a larger budget, or a smaller {what}="
        )
    if name == "snapkv":
        if prompt is None:
            raise ValueError("snapkv evicts keys at the end of the prompt: give the number of its tokens, prompt=")
        prompt = as_size(prompt, "prompt")
        if prompt >= att.shape.K:
            raise ValueError(f"prompt is {prompt:,} of {att.shape.K:,} tokens, so nothing comes after it: give fewer")
        if observe > prompt:
            raise ValueError(f"observe is {observe} but the prompt has {prompt} tokens: give at most {prompt}")
    return CachePolicy(name, budget, sinks, recent, prompt or 0, observe)


def _as_budget(given: Any, keys: int) -> int:
    if given is None:
        raise ValueError("a policy needs a budget: give how many keys a query has at most, or a share of them below 1")
    if isinstance(given, float):
        share = as_number(given, "budget")
        if not 0 < share <= 1:
            raise ValueError(f"budget is {share:g}: give a share of the keys, above 0 and at most 1, or their number")
        return max(1, ceil(share * keys))
    if isinstance(given, bool):
        raise TypeError(f"budget is {given}: give how many keys a query has at most, or a share of them below 1")
    return as_size(given, "budget")


def _as_count(given: Any, name: str, otherwise: int) -> int:
    return otherwise if given is None else 0 if type(given) is int and given == 0 else as_size(given, name)


def policy_mask(att: AttentionBase, policy: CachePolicy) -> Mask:
    """Return the keys that a policy leaves each query, as an additional mask.

    Raises:
        ValueError: the attention is not causal self-attention with all its queries.
    """
    own = att.own_keys(range(att.shape.Q))
    if own is None:
        raise ValueError(
            f"{policy} needs the position of each query among the keys, which is not known in {att!r}: give "
            "self-attention, or a mask as the policy"
        )
    places = torch.tensor(list(own), dtype=torch.int64, device="cpu")
    if policy.name != "window" and (len(places) != att.shape.K or int(places[0]) != 0):
        raise ValueError(
            f"{policy} needs all queries from the first key on, but there are {len(places):,} queries for "
            f"{att.shape.K:,} keys: give attention with all queries, or the policy 'window'"
        )
    for batch in range(att.shape.B):
        later = _later_key(att, batch, places)
        if later is not None:
            raise ValueError(
                f"a cache holds only earlier keys, but query {later[0]:,} may attend to the later key {later[1]:,}: "
                "give causal attention, or a mask as the policy"
            )
    if policy.name == "window":
        firsts = tuple(_first_key(att, batch) for batch in range(att.shape.B))
        return WindowAndFirst(policy, places, firsts)
    return Evicting(policy, att)


def _later_key(att: AttentionBase, batch: int, places: Tensor) -> tuple[int, int] | None:
    """Return a query and a later key that it may attend to; None if there is none."""
    device = att.device
    for head in range(1 if att.rules.same_for_heads else att.shape.H):
        for rows in cuts(range(len(places)), 1, QUERIES):
            own = places[rows.start : rows.stop]
            keys = att.rules.span(Block(batch, head, rows, range(int(own[0]) + 1, att.shape.K)))
            if not keys:  # a causal rule leaves only keys between these queries
                continue
            allowed = att.rules.allowed(Block(batch, head, rows, keys))
            later = torch.arange(keys.start, keys.stop, device="cpu") > own[:, None]
            found = (whole(allowed, rows, keys, device).cpu() & later).nonzero()
            if len(found):
                return rows.start + int(found[0, 0]), keys.start + int(found[0, 1])
    return None


def _first_key(att: AttentionBase, batch: int) -> int:
    """Return the first key that any query of any head may attend to; earlier keys are padding."""
    rows, heads = range(att.shape.Q), range(1 if att.rules.same_for_heads else att.shape.H)
    for keys in cuts(range(att.shape.K), 1, 64):
        blocks = (att.rules.allowed(Block(batch, head, rows, keys)) for head in heads)
        firsts = [whole(one, rows, keys, att.device).any(0).nonzero()[:1] for one in blocks]
        if (first := min((int(one) for one in firsts if len(one)), default=None)) is not None:
            return keys.start + first
    return 0


@dataclass(frozen=True, eq=False)
class WindowAndFirst(Mask):
    """The last keys up to the query's own, and the first keys after padding.

    policy: how many of both.
    places: (Q,), the key at each query's position.
    firsts: the first key of each sample.
    """

    policy: CachePolicy
    places: Tensor
    firsts: tuple[int, ...]

    @property
    def shared(self) -> bool:  # type: ignore[override]
        """Whether it is the same for all samples."""
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
    """The keys that a policy has not evicted yet, computed for each head on first use.

    policy: which policy.
    att: the attention whose weights decide.
    """

    policy: CachePolicy
    att: AttentionBase
    _known: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    _begun: dict[tuple[int, int], Finding] = field(default_factory=dict)
    _versions: list[tuple[int, ...]] = field(default_factory=list)  # of the tensors, for all cached results
    _lock: threading.RLock = field(default_factory=threading.RLock)
    shared = False

    def until(self, batch: int, head: int) -> Tensor:
        """Return the first query that no longer has each key, (K,) int64; `NEVER` for a key that is kept."""
        with self._lock:
            self._forget_others()
            for _ in self._finding(self._of(batch, head)):
                pass
            return self._known[self._of(batch, head)]

    def finding(self, batch: int, heads: range) -> Iterator[float]:
        """Compute what some heads evict, in chunks; yields the share done, or nothing if it is known."""
        sets = list(dict.fromkeys(self._of(batch, head) for head in heads))
        for number, of in enumerate(sets):
            while True:
                with self._lock:
                    self._forget_others()
                    share = next(self._finding(of), None)
                if share is None:
                    break
                yield (number + share) / len(sets)

    def cells_left(self, batch: int) -> int:
        """Return the cost of computing what is not known yet of a sample's heads, in weights."""
        shape = self.att.shape
        with self._lock:
            self._forget_others()
            left = {self._of(batch, head) for head in range(shape.H)} - self._known.keys()
        if not left or self.policy.name == "snapkv":
            return 0
        together = shape.H // len(self._sets(batch))
        return len(left) * cells_of_decisions(shape.Q, self.policy.budget, together)

    def _sets(self, batch: int) -> list[tuple[int, int]]:
        return list(dict.fromkeys(self._of(batch, head) for head in range(self.att.shape.H)))

    def _of(self, batch: int, head: int) -> tuple[int, int]:
        return (batch, 0) if self.policy.name == "tova" else (batch, head)  # which all heads of a layer share

    def _forget_others(self) -> None:
        """Drop results from before the tensors changed."""
        now = self.att.versions()
        if self._versions != [now]:
            self._known.clear()
            self._begun.clear()
            self._versions[:] = [now]

    def _finding(self, of: tuple[int, int]) -> Iterator[float]:
        """Resume where another call stopped; after an error or interrupt, start again."""
        while of not in self._known:
            steps = self._begun.pop(of, None) or EVICTIONS[self.policy.name](self.att, self.policy, *of)
            try:
                share = next(steps)
            except StopIteration as end:
                self._known[of] = end.value
                return
            self._begun[of] = steps
            yield share

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
    """A user's mask tensor, (B or 1, H or 1, Q or 1, K), True for keys to keep."""

    kept: Tensor

    @property
    def shared(self) -> bool:  # type: ignore[override]
        """Whether it is the same for all samples and heads."""
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
    """Return the mask of the keys that a cache keeps; None without a policy."""
    return dict(att.options.extra_masks).get("keep")


def _evicting(att: AttentionBase) -> Evicting | None:
    """Return the evicting mask of an attention, or for merged words, of their subword tokens."""
    found = kept_keys(getattr(att.source, "pieces", att))
    return found if isinstance(found, Evicting) else None


def finding_evictions(att: AttentionBase, batch: int) -> Iterator[float]:
    """Compute what a cache evicts in all heads of a sample, in chunks; yields the share done, or nothing if known."""
    found = _evicting(att)
    if found is not None:
        yield from found.finding(batch, range(found.att.shape.H))


def cells_to_evict(att: AttentionBase, batch: int) -> int:
    """Return the cost of computing what a cache evicts in all heads, in weights; 0 if it is known."""
    found = _evicting(att)
    return 0 if found is None else found.cells_left(batch)


def with_keys(att: A, mask: Mask | None) -> A:
    """Return the attention over the keys that a mask keeps; None for all keys."""
    extra = {name: one for name, one in att.options.extra_masks if name != "keep"}
    extra |= {} if mask is None else {"keep": mask}
    return att.replaced(replace(att.options, extra_masks=tuple(extra.items())), att.source, att.v)


# Policies that evict.


def _heavy_hitters(att: AttentionBase, policy: CachePolicy, batch: int, head: int) -> Finding:
    """Evict the key whose weights have the smallest sum so far, except recent keys; each head separately."""
    return evicting(att, batch, range(head, head + 1), Greedy(policy.budget, policy.recent, sums=True))


def _tova(att: AttentionBase, policy: CachePolicy, batch: int, head: int) -> Finding:
    """Evict the key with the smallest weight of the current query, averaged over the heads of the layer."""
    return evicting(att, batch, range(att.shape.H), Greedy(policy.budget, 0, sums=False))


def _snapkv(att: AttentionBase, policy: CachePolicy, batch: int, head: int) -> Finding:
    """Keep the last keys of the prompt, and the earlier keys with the largest pooled weights of its last queries."""
    before, until = policy.prompt - policy.observe, torch.full((att.shape.K,), NEVER, device="cpu")
    count = policy.budget - policy.observe
    if count >= before:
        return until
    rows: Indices = range(before, policy.prompt)
    with exact(att.device):
        weights = whole_rows(att, Block(batch, head, rows, range(att.shape.K)), "weights")
        votes = weights[:, :before].sum(0, dtype=torch.float64)  # (keys,)
    yield 0.5
    pooled = F.max_pool1d(votes[None], POOLED, stride=1, padding=POOLED // 2)[0]
    order = torch.sort(pooled, descending=True, stable=True).indices  # of equal votes, the earlier key first
    until[order[count:].cpu()] = policy.prompt
    return until


EVICTIONS: dict[str, Callable[[AttentionBase, CachePolicy, int, int], Finding]] = {
    "heavy_hitters": _heavy_hitters,
    "tova": _tova,
    "snapkv": _snapkv,
}


def as_key_mask(att: AttentionBase, given: Any) -> Mask | None:
    """Read a mask that a user gives as the policy, a function or a bool tensor; None if it is neither."""
    if isinstance(given, Mask) or (callable(given) and not isinstance(given, Tensor)):
        return read_mask_function(given, (att.shape.B, att.shape.H, att.shape.Q, att.shape.K), att.device)
    if isinstance(given, np.ndarray):
        given = torch.from_numpy(given)
    if not isinstance(given, Tensor):
        return None
    B, H, _, Q, K, *_ = att.shape
    if given.dtype != torch.bool:
        raise TypeError(f"the mask is {given.dtype}: give bools, True for keys to keep")
    kept = given.detach()[(None,) * (4 - given.ndim)] if given.ndim <= 4 else given
    wanted = ((1, B), (1, H), (1, Q), (K,))
    if kept.ndim != 4 or not all(n in there for n, there in zip(kept.shape, wanted, strict=True)):
        raise ValueError(
            f"the mask has shape {tuple(given.shape)}: give {(Q, K)} for queries and keys, or ({K},) for keys"
        )
    return GivenKeys(kept)


def told_policy(given: Any) -> str:
    """Return the error message for an unknown policy."""
    return f"policy is {told(given)}: give one of {', '.join(POLICIES)}, or a mask"
