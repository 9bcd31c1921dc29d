"""Rules of calls, taken apart and joined, beside the same cells written out. All sizes differ."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from attnwidget._capture.call.call_rules import (
    CallRules,
    added_numbers,
    allowed_by_mask,
    evaluate_mask,
    join,
    rules_of_queries,
    rules_of_rows,
    shorten_rules,
)
from attnwidget._capture.call.flex_attention import ScoreMod
from attnwidget._capture.call.lineage import ENDED
from attnwidget._capture.call.observed_call import ObservedCall
from attnwidget._capture.call.query_offset import keys_after, keys_before
from attnwidget._capture.call.rule_slices import HEADS, QUERIES, key_heads, part_of_rule, take_part
from attnwidget._rules.row_spans import Spans

B, H, Q, K = 3, 4, 5, 7
CPU = torch.device("cpu")
LEARNED = torch.tensor([0.3, -0.2, 0.7, 0.1])


def drawn(*sizes: int) -> Tensor:
    return torch.rand(sizes, generator=torch.Generator().manual_seed(sum(sizes))) > 0.4


def spans(samples: int = B, heads: int = H, queries: int = Q, keys: int = K) -> Spans:
    starts = torch.arange(samples)[:, None, None] + torch.arange(queries) // 3
    starts = starts.expand(samples, heads, queries).clone() % keys
    stops = (starts + 1 + torch.arange(heads)[:, None] + torch.arange(queries)).clamp(max=keys)
    return Spans(starts.int(), stops.int())


def by_head(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return kv_idx * 2 <= q_idx * 3 + h + b


by_head.sizes = (B, H)  # type: ignore[attr-defined]


def cells(rules: CallRules) -> tuple[Tensor, Tensor]:
    """Which cells a call allows, and what it adds to them, (B, H, queries, keys)."""
    shape = (B, H, rules.queries, rules.keys)
    allowed = torch.ones(shape, dtype=torch.bool)
    mask = rules.mask
    if isinstance(mask, Spans):
        places = torch.arange(rules.keys)
        allowed = allowed & (places >= mask.starts[..., None]) & (places < mask.stops[..., None])
    elif isinstance(mask, Tensor) and mask.dtype is torch.bool:
        allowed = allowed & mask
    elif callable(mask):
        index = [torch.arange(n).view([-1 if i == axis else 1 for i in range(4)]) for axis, n in enumerate(shape)]
        allowed = allowed & mask(*index)
    if rules.is_causal:
        allowed = allowed & torch.ones(rules.queries, rules.keys, dtype=torch.bool).tril()
    added = torch.zeros(shape)
    for x in (mask, rules.bias):
        added = added + x if isinstance(x, Tensor) and x.is_floating_point() else added
    return allowed, added


def assert_cells(rules: CallRules, allowed: Tensor, added: Tensor) -> None:
    found, numbers = cells(rules)
    assert torch.equal(found, allowed)
    assert torch.equal(numbers.masked_fill(~allowed, 0), added.masked_fill(~allowed, 0))


MASKS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "spans": spans,
    "spans of all": lambda: spans(1, 1),
    "cells": lambda: drawn(B, H, Q, K),
    "cells by sample": lambda: drawn(B, 1, Q, K),
    "cells by head": lambda: drawn(1, H, Q, K),
    "function": lambda: by_head,
    "floats": lambda: torch.randn(B, 1, Q, K),
}
BIASES: dict[str, Callable[[], Any]] = {"none": lambda: None, "by head": lambda: torch.randn(1, H, Q, K)}


def every(test: Any) -> Any:
    test = pytest.mark.parametrize("mask", MASKS)(test)
    return pytest.mark.parametrize(("bias", "is_causal"), [("none", False), ("by head", True)])(test)


def made(mask: str, bias: str, is_causal: bool) -> CallRules:
    return CallRules(Q, K, 2, is_causal, MASKS[mask](), BIASES[bias]())


@every
def test_what_is_allowed_and_added_is_what_the_rules_say(mask: str, bias: str, is_causal: bool) -> None:
    rules = made(mask, bias, is_causal)
    allowed, added = cells(rules)
    found = allowed_by_mask(rules, CPU)
    written = evaluate_mask(found, rules) if isinstance(found, Spans) else found
    if not (isinstance(rules.mask, Tensor) and rules.mask.dtype is torch.bool and is_causal):  # no call has both
        assert torch.equal(written.expand(B, H, Q, K), allowed)
    numbers = added_numbers(rules)
    assert (numbers is None) == (bias == "none" and mask != "floats")
    assert numbers is None or torch.equal(numbers.expand(B, H, Q, K), added)


@every
def test_some_queries_have_their_own_rules(mask: str, bias: str, is_causal: bool) -> None:
    rules, rows = made(mask, bias, is_causal), [1, 4]
    allowed, added = cells(rules)
    found = rules_of_queries(rules, rows, CPU)
    assert (found.queries, found.keys, found.first, found.is_causal) == (2, K, 2, False)
    assert_cells(found, allowed[:, :, rows], added[:, :, rows])


@every
def test_rows_of_a_batch_change_places_and_those_that_have_ended_attend_to_nothing(
    mask: str, bias: str, is_causal: bool
) -> None:
    rules = made(mask, bias, is_causal)
    if isinstance(rules.mask, Tensor) and rules.mask.dtype is torch.bool and is_causal:
        return
    allowed, added = cells(rules)
    for order in ([2, 0, 1], [1, 1, 0], [2, ENDED, 0]):
        found = rules_of_rows(rules, order, CPU)
        index = torch.tensor(order).clamp(min=0)
        wanted = allowed[index] & (torch.tensor(order) != ENDED)[:, None, None, None]
        assert (found.queries, found.keys, found.first) == (Q, K, 2)
        assert_cells(found, wanted, added[index])


@every
def test_the_first_queries_and_keys_have_the_rules_of_the_whole(mask: str, bias: str, is_causal: bool) -> None:
    rules = made(mask, bias, is_causal)
    allowed, added = cells(rules)
    found = shorten_rules(rules, 3, 4)
    assert (found.queries, found.keys, found.first, found.is_causal) == (3, 4, 2, is_causal)
    assert_cells(found, allowed[:, :, :3, :4], added[:, :, :3, :4])


KINDS = ("none", "spans", "spans of all", "cells", "floats")


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
@pytest.mark.parametrize(("bias", "is_causal"), [("none", True), ("by head", False)])
def test_calls_that_are_joined_keep_their_own_cells_among_all_keys(
    first: str, second: str, bias: str, is_causal: bool
) -> None:
    """A call of five queries and seven keys, then one of a single query whose keys begin at the third."""
    one = CallRules(Q, K, 0, is_causal and first != "cells", MASKS[first](), BIASES[bias]())
    other_mask = {
        "none": None, "spans": spans(B, 1, 1, 8), "spans of all": spans(1, 1, 1, 8), "cells": drawn(1, H, 1, 8),
        "floats": torch.randn(1, H, 1, 8),
    }[second]  # fmt: skip
    other = CallRules(1, 8, 2, False, other_mask, None)
    found = join([one, other], 10, CPU)
    assert (found.queries, found.keys, found.first, found.is_causal) == (Q + 1, 10, 0, False)
    allowed, added = torch.zeros(B, H, Q + 1, 10, dtype=torch.bool), torch.zeros(B, H, Q + 1, 10)
    allowed[:, :, :Q, :K], added[:, :, :Q, :K] = cells(one)
    allowed[:, :, Q:, 2:], added[:, :, Q:, 2:] = cells(other)
    assert_cells(found, allowed, added)


def test_calls_with_functions_of_the_score_are_not_joined() -> None:
    rules = CallRules(Q, K, 0, False, None, ScoreMod(lambda score, *_: score))
    with pytest.raises(ValueError, match="score_mod"):
        join([rules, CallRules(1, 8, 0, False, None, None)], 8, CPU)


def test_a_function_is_asked_for_so_many_cells_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        asked.append(q_idx.numel())
        return by_head(b, h, q_idx, kv_idx)

    mask.sizes = (B, H)  # type: ignore[attr-defined]
    monkeypatch.setattr("attnwidget._capture.call.call_rules.MASK_CELLS_AT_ONCE", 2 * B * H * K + 1)
    rules = CallRules(Q, K, 0, False, mask, None)
    assert torch.equal(evaluate_mask(mask, rules, CPU), cells(CallRules(Q, K, 0, False, by_head, None))[0])
    assert asked == [2, 2, 1]


# Heads and queries of a rule.


@pytest.mark.parametrize("which", [[1, 2], [0, 3], [2]])
@pytest.mark.parametrize("axis", [HEADS, QUERIES])
@pytest.mark.parametrize("mask", [*MASKS])
def test_a_part_of_a_rule_is_that_of_its_heads_or_queries(mask: str, axis: int, which: list[int]) -> None:
    rule = MASKS[mask]()
    part = part_of_rule(rule, axis, which)
    allowed, added = cells(CallRules(Q, K, 0, False, rule, None))
    if callable(part) and not isinstance(part, Spans):
        heads, queries = (which, list(range(Q))) if axis == HEADS else (list(range(H)), which)
        index = torch.arange(B)[:, None, None, None], torch.arange(len(heads))[:, None, None]
        found = part(*index, torch.arange(len(queries))[:, None], torch.arange(K))
        assert torch.equal(found, allowed.index_select(axis, torch.tensor(which)))
        assert part.sizes == (B, len(heads))
        return
    index = torch.tensor(which)
    sizes = [B, H, Q, K]
    sizes[axis] = len(which)
    wanted = allowed.index_select(axis, index), added.index_select(axis, index)
    if isinstance(part, Spans):
        places = torch.arange(K)
        found = (places >= part.starts[..., None]) & (places < part.stops[..., None])
        assert torch.equal(found.expand(sizes), wanted[0])
    elif part is not None:
        assert torch.equal(part.expand(sizes), wanted[0] if part.dtype is torch.bool else wanted[1])


def test_a_part_of_a_function_of_the_score_knows_the_models_heads() -> None:
    score_mod = ScoreMod(lambda score, b, h, q_idx, kv_idx: score + LEARNED[h] * (kv_idx - q_idx))
    for axis, which in ((HEADS, [1, 3]), (QUERIES, [0, 4])):
        part = part_of_rule(score_mod, axis, which)
        assert isinstance(part, ScoreMod)
        h = torch.arange(2 if axis == HEADS else H)[:, None, None]
        q_idx = torch.arange(2 if axis == QUERIES else Q)[:, None]
        found = part(torch.zeros(()), torch.zeros((), dtype=torch.int64), h, q_idx, torch.arange(K))
        whole = LEARNED[:, None, None] * (torch.arange(K) - torch.arange(Q)[:, None])
        assert torch.equal(found, whole.index_select(axis - 1, torch.tensor(which)))


def test_a_run_of_places_is_a_view_and_others_are_copies() -> None:
    x = torch.randn(B, H, Q, K)
    for which, is_view in (([1, 2], True), ([3], True), ([0, 2], False), ([2, 1], False), ([], False)):
        part = take_part(x, HEADS, which)
        assert torch.equal(part, x[:, which])
        assert (part.data_ptr() == x[:, which[:1] or [0]].data_ptr() or part._is_view()) == is_view


@pytest.mark.parametrize(
    ("heads", "share", "groups"),
    [
        ([0, 1, 4, 5], 4, [0, 1]),
        ([0, 1, 4], 4, [0, 0, 1]),
        ([0, 1, 2, 3, 4, 5], 3, [0, 1]),
        ([2, 3, 4, 5, 6, 7], 6, [0, 0, 1]),
        ([5], 2, [2]),
        ([0, 2, 4], 1, [0, 2, 4]),
    ],
)
def test_key_heads_are_shared_by_as_many_heads_in_a_row(heads: list[int], share: int, groups: list[int]) -> None:
    assert key_heads(heads, share) == groups
    times = len(heads) // len(groups)
    assert [groups[i // times] for i in range(len(heads))] == [head // share for head in heads]


# Where queries stand among more keys.


def call(queries: int = Q, keys: int = 9, **how: Any) -> ObservedCall:
    q, k = torch.randn(2, 3, queries, 4), torch.randn(2, 1, keys, 4)
    return ObservedCall(q, k, None, **how)


def test_a_causal_mask_tells_where_the_queries_stand() -> None:
    places, rows = torch.arange(9), torch.arange(Q)[:, None]
    for mask, before in (
        (places <= rows + 4, 4),  # they are the last
        ((places <= rows + 4) & (places > rows), 4),
        ((places <= rows) | (places >= Q), 0),  # they are the first, and more follows
        ((places <= rows) | (places == 8), 0),
        (places <= rows + 5, None),  # one key more than a cache would have
        (torch.ones(Q, 9, dtype=torch.bool), None),
    ):
        assert keys_before(call(), mask[None, None]) == before
    assert keys_before(call(is_causal=True), None) == 4  # which the last ones do not contradict


@pytest.mark.parametrize("shape", [(2, 1), (1, 3), (2, 3)])
@pytest.mark.parametrize("added", [False, True])
def test_every_sample_and_head_is_asked_where_the_queries_stand(shape: tuple[int, int], added: bool) -> None:
    """Of a text with padding, its mask may not tell: keys that would come later are none that it may attend to."""
    places, rows = torch.arange(9), torch.arange(Q)[:, None]
    for last, before in (
        ((places <= rows) | (places >= Q), 0),
        (places <= rows + 4, 4),
        (torch.ones(Q, 9, dtype=torch.bool), None),
    ):
        mask = (places <= rows).repeat(*shape, 1, 1)
        mask[-1, -1] = last
        bias = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
        found = keys_before(call(bias=bias), None) if added else keys_before(call(), mask)
        assert found == before
    mask[0, 0], mask[-1, -1] = places <= rows + 4, (places <= rows) | (places >= Q)
    assert keys_before(call(), mask) is None  # they contradict each other


def test_one_query_or_a_cache_or_the_module_tells_where_the_queries_stand() -> None:
    all_keys = torch.ones(1, 1, 1, 9, dtype=torch.bool)
    assert keys_before(call(queries=1), all_keys) == 8
    assert keys_before(call(queries=2), torch.ones(1, 1, 2, 9, dtype=torch.bool)) is None
    for length, before in ((9, 4), (8, None)):  # how many keys the cache has
        known: Any = SimpleNamespace(length=length)
        assert keys_before(call(grown=known), torch.ones(1, 1, Q, 9, dtype=torch.bool)) == before
    assert keys_before(call(after=1), None) == 3
    assert keys_before(call(after=4), None) == 0
    assert keys_before(call(after=6), None) == 0
    layer = torch.nn.MultiheadAttention
    found = [keys_after(layer(4, 2, add_bias_kv=bias, add_zero_attn=zero)) for bias in (0, 1) for zero in (0, 1)]
    assert found == [0, 1, 1, 2]
    assert (keys_after(None), keys_after(torch.nn.Linear(2, 2))) == (0, 0)


@pytest.mark.parametrize("row", [0, 70, 199])
def test_of_many_queries_the_first_and_the_last_are_asked_too(row: int) -> None:
    """At most so many rows are asked, evenly spread: a rule that holds for all is seen; the ends are among them."""
    places, rows = torch.arange(203), torch.arange(200)[:, None]
    mask = places <= rows + 3
    assert keys_before(call(200, 203), mask[None, None]) == 3
    if row != 70:
        mask = mask.clone()
        mask[row] = True
        assert keys_before(call(200, 203), mask[None, None]) == (3 if row == 199 else None)
