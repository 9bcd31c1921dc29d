"""Cache policies where an attention is unusual: padding alone, one query, masks of a user's own, copies."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from attnwidget import Attention, masks
from attnwidget._engine import evictions
from attnwidget._engine.cache_policies import (
    Evicting,
    as_key_mask,
    cells_to_evict,
    finding_evictions,
    kept_keys,
    read_policy,
)
from attnwidget.masks import Block, Mask

N = 24


def made(samples: int = 1, heads: int = 2, groups: int | None = None, **rules: Any) -> Attention:
    make, groups = torch.Generator().manual_seed(8), heads if groups is None else groups
    q, k, v = (
        torch.randn(samples, h, N, d, generator=make, dtype=torch.float64)
        for h, d in ((heads, 4), (groups, 4), (groups, 5))
    )
    return Attention(q, k, v, is_causal=True, **rules)


# Beside a loop over the rows of a layer.


def evicted_by_loop(rows: Tensor, allowed: Tensor, sinks: Tensor | None, how: dict[str, Any], head: int) -> Tensor:
    """Which keys each query has, (N, N) bool, decided one after the other as the docstring of `Attention.keep` says.

    Args:
        rows, allowed: (H, N, N) masked scores of a sample, and which of them count.
        sinks: (H,) logits.
        how: policy, budget and recent.
        head: whose keys they are.
    """
    found, there = torch.zeros(N, N, dtype=torch.bool), []
    sums = torch.zeros(N, dtype=torch.float64)
    for query in range(N):
        there.append(query)
        found[query, there] = True
        scores = rows[:, query, there]
        if sinks is not None:
            scores = torch.cat([scores, sinks[:, None].double()], 1)
        weights = scores.softmax(1)[:, : len(there)]
        if how["policy"] == "tova":
            value, may_go = weights.mean(0), len(there)
        else:
            sums[there] += weights[head]
            value, may_go = sums[there], sum(key <= query - how["recent"] for key in there)
        if len(there) == how["budget"]:
            there.pop(int(value[:may_go].argmin()))
    return found & allowed[head]


GREEDY = [
    {"policy": "heavy_hitters", "budget": 9, "recent": 4},
    {"policy": "heavy_hitters", "budget": 5, "recent": 0},
    {"policy": "tova", "budget": 6},
]


@pytest.mark.parametrize("scale", [0.5, 200.0])  # of large scores the one that a row was taken off may be evicted
@pytest.mark.parametrize("rules", ["plain", "sinks", "softcap and bias"])
@pytest.mark.parametrize("how", GREEDY, ids=lambda how: "-".join(map(str, how.values())))
@pytest.mark.parametrize("rows", [128, 5, 1])  # queries of a step
def test_what_is_evicted_is_what_a_loop_evicts(
    how: dict[str, Any], rules: str, scale: float, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evictions, "MOST_ROWS", rows)
    bias = torch.randn(6, N, N, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    given: dict[str, Any] = {
        "plain": {},
        "sinks": {"sinks": torch.linspace(-3, 3, 6)},
        "softcap and bias": {"softcap": 5.0, "bias": bias},
    }[rules]
    att = made(2, 6, 3, scale=scale, **given)
    changed = att.what_if({"keep": how})
    scores, allowed = (torch.stack([att.block(of, batch=1, head=h) for h in range(6)]) for of in ("masked", "allowed"))
    for head in (4, 1):
        wanted = evicted_by_loop(scores, allowed, att.sinks, how, head)
        assert torch.equal(changed.block("allowed", batch=1, head=head), wanted)
        found = att.keep(**how, batch=1, head=head)
        assert found.kept.tolist() == wanted.sum(1).tolist()
        assert found.cut.tolist() == (wanted != allowed[head]).any(1).tolist()


@pytest.mark.parametrize("policy", ["heavy_hitters", "tova", "snapkv"])
def test_a_mask_of_a_policy_knows_which_keys_some_queries_have(policy: str) -> None:
    att = made(2, 6, 3)
    mask = kept_keys(att.what_if({"keep": {"policy": policy, "budget": 7, "prompt": 15, "observe": 3}}))
    assert isinstance(mask, Evicting)
    for batch, head in ((0, 1), (1, 4)):
        cells = torch.tensor([[int(until) > query for until in mask.until(batch, head)] for query in range(N)])
        for queries, keys in ((range(3), range(N)), (range(9, 20), range(4, 17)), (range(20, N), range(2))):
            part = cells[queries.start : queries.stop, keys.start : keys.stop]
            outer, inner = mask.bounds(Block(batch, head, queries, keys))
            reached = [key for key, is_in in zip(keys, part.any(0).tolist(), strict=True) if is_in]
            assert [*outer] == ([*range(reached[0], reached[-1] + 1)] if reached else [])
            assert bool(inner) is bool(part.all())
            b, h = torch.tensor(batch), torch.tensor(head)
            asked = mask(b, h, torch.tensor(queries)[:, None], torch.tensor(keys)[None])
            assert torch.equal(asked, part)


def test_evictions_of_all_heads_are_found_in_steps_that_tell_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evictions, "MOST_ROWS", 5)
    for policy, sets in (("heavy_hitters", 6), ("tova", 1)):
        att = made(2, 6, 3).what_if({"keep": {"policy": policy, "budget": 7}})
        before = cells_to_evict(att, 1)
        assert before > 0
        steps = finding_evictions(att, 1)
        shares = [next(steps) for _ in range(7)]
        assert cells_to_evict(att, 1) == before  # of no head all is found
        shares += [*steps]
        assert shares == sorted(shares)
        assert len(shares) >= 5 * sets
        assert 0 <= shares[0] < shares[-1] <= 1
        assert cells_to_evict(att, 1) == 0
        assert [*finding_evictions(att, 1)] == []
        assert cells_to_evict(att, 0) == before  # the other sample has its own
    assert cells_to_evict(made(), 0) == 0
    assert [*finding_evictions(made(), 0)] == []


def test_a_policy_is_read_with_its_numbers() -> None:
    att = made()
    read = {
        "window": ({"budget": 9}, (9, 4, 4, 0, 32)),
        "heavy_hitters": ({"budget": 9}, (9, 4, 4, 0, 32)),
        "tova": ({"budget": 0.25, "recent": 0}, (6, 4, 0, 0, 32)),
        "snapkv": ({"budget": 20, "prompt": 23, "observe": 7, "sinks": 1}, (20, 1, 10, 23, 7)),
    }
    for name, (given, wanted) in read.items():
        found = read_policy(att, {"policy": name, **given})
        assert (found.budget, found.sinks, found.recent, found.prompt, found.observe) == wanted
    assert read_policy(att, {"policy": "tova", "budget": 1.0}).budget == N
    assert read_policy(att, {"policy": "tova", "budget": 0.01}).budget == 1
    assert read_policy(att, {"policy": "tova", "budget": 0.3}).budget == 8  # a share is rounded up
    assert str(read_policy(att, {"policy": "heavy_hitters", "budget": 9})) == "heavy hitters of 9 keys"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"policy": "lru", "budget": 9}, "no policy is called 'lru'"),
        ({"policy": "tova"}, "a policy needs a budget"),
        ({"policy": "tova", "budget": 0}, "budget is 0: give 1 or more"),
        ({"policy": "tova", "budget": 0.0}, "budget is 0: give a share of the keys, above 0 and at most 1"),
        ({"policy": "tova", "budget": 1.01}, r"budget is 1\.01: give a share of the keys"),
        ({"policy": "tova", "budget": True}, "budget is True: give how many keys"),
        ({"policy": "window", "budget": 4}, "budget is 4 keys, and sinks takes 4 of them"),
        ({"policy": "window", "budget": 9, "sinks": 9}, "and sinks takes 9 of them"),
        ({"policy": "heavy_hitters", "budget": 3, "recent": 3}, "and recent takes 3 of them"),
        ({"policy": "snapkv", "budget": 5, "observe": 5, "prompt": 9}, "and observe takes 5 of them"),
        ({"policy": "snapkv", "budget": 9, "observe": 2}, "give the number of its tokens, prompt="),
        ({"policy": "snapkv", "budget": 9, "observe": 2, "prompt": N}, "prompt is 24 of 24 tokens"),
        ({"policy": "heavy_hitters", "budget": 3, "recent": -1}, "recent is -1: give 1 or more"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises((TypeError, ValueError), match=told):
        read_policy(made(), given)


def test_a_policy_needs_attention_to_what_came_before() -> None:
    att = made(2, 6, 3)
    assert att.q is not None
    with pytest.raises(ValueError, match="query 0 may attend to the later key 1"):
        Attention(att.q, att.k).keep("window", 9)
    with pytest.raises(ValueError, match="which is not known in"):
        Attention(att.q[:, :, :5], att.k).keep("window", 9)
    later = torch.ones(2, 6, N, N, dtype=torch.bool).tril()
    later[1, 4, 20, 21] = True
    with pytest.raises(ValueError, match="query 20 may attend to the later key 21"):
        Attention(att.q, att.k, mask=later).keep("tova", 9)
    part = Attention(att.q[:, :, 4:], att.k, is_causal=False, mask=masks.causal_lower_right(N - 4, N))
    part = part.as_part(None, [*range(4, N)], 0)
    with pytest.raises(ValueError, match="there are 20 queries for 24 keys: give attention with all queries"):
        part.keep("tova", 9)
    whole = att.keep("window", 9, sinks=2, head=4).kept[4:]
    assert torch.equal(part.keep("window", 9, sinks=2, head=4).kept, whole)


def test_a_window_keeps_the_first_keys_that_are_no_padding() -> None:
    lead = torch.arange(N) >= torch.tensor([[0], [5]])  # the second sample is padded on the left
    att = made(2, 6, 3, mask=lead, mask_dims="bk")
    there = att.what_if({"keep": {"policy": "window", "budget": 6, "sinks": 2}})
    for batch, first in ((0, 0), (1, 5)):
        cells = there.block("allowed", batch=batch, head=4)
        for query in range(N):
            wanted = {key for key in range(first, query + 1) if query - key < 4 or key < first + 2}
            assert set(cells[query].nonzero()[:, 0].tolist()) == wanted
        mask = kept_keys(there)
        assert mask is not None
        inner = mask.bounds(Block(batch, 4, range(8, 12), range(6, 15))).inner
        assert inner == range(8, 15)  # those near the last of the queries


def key_mask(given: Tensor) -> Mask:
    found = as_key_mask(made(2, 6, 3), given)
    assert found is not None
    return found


def test_keys_that_only_some_heads_may_attend_to_are_no_padding() -> None:
    mask = torch.ones(1, 3, 12, 12, dtype=torch.bool)
    mask[:, 0, :, :4] = False
    mask[:, 2, :, :1] = False
    att = Attention(*torch.zeros(2, 1, 3, 12, 2), mask=mask, is_causal=True)
    kept = att.what_if({"keep": {"policy": "window", "budget": 5, "sinks": 3}})
    rows = [kept.block("allowed", head=head, queries=11)[0].nonzero().flatten().tolist() for head in range(3)]
    assert rows == [[10, 11], [0, 1, 2, 10, 11], [1, 2, 10, 11]]


def test_more_observers_than_the_prompt_has_are_refused() -> None:
    with pytest.raises(ValueError, match="observe is 9 but the prompt has 8 tokens: give at most 8"):
        made().keep("snapkv", 12, prompt=8, observe=9)
    assert made().keep("snapkv", 12, prompt=8, observe=8).cut.logical_not().all()  # no key before them can go


def test_a_budget_that_holds_the_whole_prompt_forgets_nothing() -> None:
    att = made()
    found = att.keep("snapkv", 16, prompt=16, observe=4)
    assert torch.equal(found.kept, torch.arange(1, N + 1))
    assert_close(found.recall, torch.ones_like(found.recall))
    assert bool(att.keep("snapkv", 15, prompt=16, observe=4).cut[16:].all())  # one key less, and one goes


def test_a_sample_of_padding_alone_keeps_nothing_and_its_neighbor_all_it_has() -> None:
    att = made(2, 6, 3, mask=masks.padding([N, 0]))
    alone = Attention(att.q[:1], att.k[:1], att.v[:1], is_causal=True)  # type: ignore[index]
    found = att.keep("window", 8, batch=1)
    assert found.kept.tolist() == found.allowed.tolist() == [0] * N
    assert bool(found.recall.isnan().all())
    assert torch.equal(att.keep("window", 8, batch=0).kept, alone.keep("window", 8).kept)


def test_one_query_whose_later_keys_are_all_padding_has_a_window() -> None:
    whole = made(mask=masks.padding([11]))
    assert whole.q is not None
    part = Attention(whole.q[:, :, 10:11], whole.k, whole.v, mask=masks.padding([11])).as_part(None, [10], 0)
    found = part.keep("window", 6, sinks=2)
    assert found.kept.tolist() == [6]
    assert float(found.recall[0]) == pytest.approx(float(whole.keep("window", 6, sinks=2).recall[10]))


def test_the_last_query_alone_has_no_later_keys() -> None:
    whole = made()
    assert whole.q is not None
    part = Attention(whole.q[:, :, -1:], whole.k, whole.v).as_part(None, [N - 1], 0)
    assert part.keep("window", 6, sinks=2).kept.tolist() == [6]


@pytest.mark.parametrize("policy", [{"policy": "window", "budget": 8}, {"policy": "tova", "budget": 8}])
def test_no_queries_have_no_cells(policy: dict[str, Any]) -> None:
    changed = made().what_if({"keep": policy})
    for queries, keys in ((range(5, 5), range(8)), (range(8), range(5, 5))):
        for rule in changed.rules.rules:  # each by itself: one that says no spares the others
            outer, inner = rule.bounds(Block(0, 1, queries, keys))
            assert set(inner) <= set(outer) <= set(keys)
            allowed = rule.allowed(Block(0, 1, queries, keys))
            assert not isinstance(allowed, Tensor) or allowed.shape == (len(queries), len(keys))
    for stage in ("weights", "allowed"):
        assert changed.block(stage, queries=range(5, 5)).shape == (0, N)
        assert changed.block(stage, keys=range(5, 5)).shape == (N, 0)


@pytest.mark.parametrize("policy", ["tova", "heavy_hitters"])
def test_a_copy_decides_by_itself_and_alike(policy: str) -> None:
    changed = made().what_if({"keep": {"policy": policy, "budget": 6}})
    wanted = changed.block(head=1)
    for other in (copy.deepcopy(changed), pickle.loads(pickle.dumps(changed))):
        assert_close(other.block(head=1), wanted)
        assert repr(other) == repr(changed)
        assert other.q is not None
        other.q.zero_()  # its own: the original stays
        assert_close(changed.block(head=1), wanted)


SHAPES = [(1, 1, 1), (1, 1, N), (2, 1, N), (1, 6, 1), (2, 6, N)]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape)))
def test_a_mask_of_kept_keys_is_that_of_its_sample_and_head(shape: tuple[int, int, int]) -> None:
    given = torch.rand(*shape, N, generator=torch.Generator().manual_seed(3)) > 0.4
    mask = key_mask(given)
    assert mask.shared == (shape[:2] == (1, 1))
    att, wanted = made(2, 6, 3, mask=mask), made(2, 6, 3, mask=given.expand(2, 6, N, N))
    for batch in range(2):
        for head in (0, 4):
            at = {"batch": batch, "head": head}
            assert torch.equal(att.block("allowed", **at), wanted.block("allowed", **at))
            assert torch.equal(att.overview(**at, size=6).allowed, wanted.overview(**at, size=6).allowed)


def test_a_mask_of_kept_keys_has_a_name_where_a_cell_is_explained() -> None:
    given = torch.ones(N, dtype=torch.bool)
    given[3] = False
    att = made(mask=key_mask(given))
    blocking = [effect.name for effect in att.explain(9, 3).effects if effect.blocks]
    assert blocking == ["keys kept by a mask"]
    assert not any(effect.blocks for effect in att.explain(9, 4).effects)


@pytest.mark.parametrize(
    ("policy", "name"),
    [("window", "window of 6 keys"), ("heavy_hitters", "heavy hitters of 6 keys"), ("tova", "tova of 6 keys")],
)
def test_an_explanation_names_the_policy_and_says_what_it_blocks(policy: str, name: str) -> None:
    att = made().what_if({"keep": {"policy": policy, "budget": 6}})
    there = att.block("allowed", queries=20)[0]
    for key in range(21):
        effect, causal = att.explain(20, key).effects
        assert (effect.name, effect.blocks) == (name, not there[key])
        assert (causal.name, causal.blocks) == ("causal: key ≤ query", False)


def test_the_first_key_is_found_behind_much_padding() -> None:
    lead, n = 70, 80
    att = Attention(*torch.zeros(2, 1, 1, n, 2), mask=torch.arange(n)[None] >= lead, mask_dims="bk", is_causal=True)
    there = att.what_if({"keep": {"policy": "window", "budget": 4, "sinks": 2}}).block("allowed", queries=n - 1)
    assert there[0].nonzero()[:, 0].tolist() == [lead, lead + 1, n - 2, n - 1]
