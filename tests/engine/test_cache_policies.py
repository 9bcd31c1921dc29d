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
from attnwidget._engine.cache_policies import as_key_mask
from attnwidget.masks import Block, Mask

N = 24


def made(samples: int = 1, heads: int = 2, **rules: Any) -> Attention:
    q, k, v = torch.randn(3, samples, heads, N, 4, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    return Attention(q, k, v, is_causal=True, **rules)


def key_mask(given: Tensor) -> Mask:
    found = as_key_mask(made(2), given)
    assert found is not None
    return found


def test_more_observers_than_the_prompt_has_are_refused() -> None:
    with pytest.raises(ValueError, match="observe is 9, and the prompt has 8 tokens: give at most 8"):
        made().keep("snapkv", 12, prompt=8, observe=9)
    assert made().keep("snapkv", 12, prompt=8, observe=8).cut.logical_not().all()  # no key before them can go


def test_a_budget_that_holds_the_whole_prompt_forgets_nothing() -> None:
    att = made()
    found = att.keep("snapkv", 16, prompt=16, observe=4)
    assert torch.equal(found.kept, torch.arange(1, N + 1))
    assert_close(found.recall, torch.ones_like(found.recall))
    assert bool(att.keep("snapkv", 15, prompt=16, observe=4).cut[16:].all())  # one key less, and one goes


def test_a_sample_of_padding_alone_keeps_nothing_and_its_neighbor_all_it_has() -> None:
    att = made(2, mask=masks.padding([N, 0]))
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


SHAPES = [(1, 1, 1), (1, 1, N), (2, 1, N), (1, 2, 1), (2, 2, N)]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape)))
def test_a_mask_of_kept_keys_is_that_of_its_sample_and_head(shape: tuple[int, int, int]) -> None:
    given = torch.rand(*shape, N, generator=torch.Generator().manual_seed(3)) > 0.4
    mask = key_mask(given)
    assert mask.shared == (shape[:2] == (1, 1))
    att, wanted = made(2, mask=mask), made(2, mask=given.expand(2, 2, N, N))
    for batch in range(2):
        for head in range(2):
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
