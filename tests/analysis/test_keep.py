"""What a cache may forget: each policy and each number beside a plain loop over dense scores, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tolerance import eps, roundings

from attnwidget import Attention, AttentionStack, AttentionWidget, compare, masks
from attnwidget.results import Kept

N, HEADS = 40, 4
WITHIN = roundings(64) * eps(torch.float64) * 1e3
RULES: list[dict[str, Any]] = [
    {},
    {"softcap": 2.0},
    {"window": 20},
    {"sinks": torch.tensor([0.5, -1.0, 2.0, -torch.inf])},
    {"bias": torch.randn(HEADS, N, N, generator=torch.Generator().manual_seed(3))},
    {"mask": masks.padding([N, 33])},
    {"mask": torch.tensor([[False] * 5 + [True] * (N - 5), [True] * N]), "mask_dims": "bk"},
]
POLICIES: list[dict[str, Any]] = [
    {"policy": "window", "budget": 10},
    {"policy": "window", "budget": 7, "sinks": 0},
    {"policy": "heavy_hitters", "budget": 10},
    {"policy": "heavy_hitters", "budget": 9, "recent": 2},
    {"policy": "tova", "budget": 10},
    {"policy": "snapkv", "budget": 12, "prompt": 28, "observe": 5},
]


def made(rules: dict[str, Any], scale: float = 2.0) -> Attention:
    make = torch.Generator().manual_seed(5)
    q = torch.randn(2, HEADS, N, 8, generator=make, dtype=torch.float64) * scale
    k, v = torch.randn(2, 2, 2, N, 8, generator=make, dtype=torch.float64)
    return Attention(q, k, v, is_causal=True, **rules)


def sink_of(att: Attention, head: int) -> float:
    return 0.0 if att.sinks is None else float(torch.exp(att.sinks[head].double()))


def softmax(scores: np.ndarray, sink: float) -> np.ndarray:
    e = np.exp(scores)
    total = e.sum() + sink
    return e / total if total else e


def kept_by_loop(att: Attention, batch: int, head: int, policy: str, budget: int, **more: Any) -> list[set[int]]:
    """The keys that each query has, as the docstring of `Attention.keep` says, one after the other."""
    scores = [att.block("masked", batch=batch, head=h).numpy() for h in range(HEADS)]
    allowed = [att.block("allowed", batch=batch, head=h).numpy() for h in range(HEADS)]
    if policy == "window":
        sinks, first = more.get("sinks", 4), int(np.flatnonzero(allowed[head].any(0))[0])
        near = budget - sinks
        return [{j for j in range(i + 1) if i - j < near or first <= j < first + sinks} for i in range(N)]
    if policy == "snapkv":
        prompt, observe = more["prompt"], more["observe"]
        before = prompt - observe
        votes = np.zeros(before)
        for i in range(before, prompt):
            votes += softmax(scores[head][i], sink_of(att, head))[:before]
        pooled = [max(votes[max(0, j - 3) : j + 4]) for j in range(before)]
        order = sorted(range(before), key=lambda j: (-pooled[j], j))[: budget - observe]
        return [set(range(i + 1)) if i < prompt else {*order, *range(before, i + 1)} for i in range(N)]
    there: list[int] = []
    sums, found = np.zeros(N), []
    for i in range(N):
        there.append(i)
        found.append(set(there))
        weights = [softmax(scores[h][i, there], sink_of(att, h)) for h in range(HEADS)]
        if policy == "tova":
            value = dict(zip(there, np.mean(weights, 0), strict=True))
            may_go = there
        else:
            sums[there] += weights[head]
            value = {j: sums[j] for j in there}
            may_go = [j for j in there if j <= i - more.get("recent", budget // 2)]
        if len(there) == budget:
            there.remove(min(may_go, key=lambda j: (value[j], j)))
    return found


@pytest.mark.parametrize("rules", RULES, ids=lambda rules: "-".join(rules) or "causal")
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: "-".join(map(str, policy.values())))
def test_each_policy_is_what_a_loop_finds(policy: dict[str, Any], rules: dict[str, Any]) -> None:
    att = made(rules)
    for batch, head in ((0, 0), (1, 2)):
        found = att.keep(**policy, batch=batch, head=head)
        there = kept_by_loop(att, batch, head, **policy)
        check(att, batch, head, there, found)
        longest = N if policy["policy"] == "snapkv" else policy["budget"]
        assert int(found.kept.max()) <= longest


def check(att: Attention, batch: int, head: int, there: list[set[int]], found: Kept) -> None:
    scores = att.block("masked", batch=batch, head=head).numpy()
    allowed = att.block("allowed", batch=batch, head=head).numpy()
    assert att.v is not None
    v, sink = att.v[batch, att.group(head)].numpy(), sink_of(att, head)
    for i in range(N):
        keys = [j for j in sorted(there[i]) if allowed[i, j]]
        assert int(found.kept[i]) == len(keys), i
        assert int(found.allowed[i]) == int(allowed[i].sum())
        whole, part = np.exp(scores[i]).sum() + sink, np.exp(scores[i, keys]).sum() + sink
        if not allowed[i].any() and not sink:
            assert bool(found.recall[i].isnan())
            continue
        assert float(found.recall[i]) == pytest.approx(part / whole, rel=WITHIN, abs=WITHIN)
        output = softmax(scores[i], sink) @ v
        after = softmax(scores[i, keys], sink) @ v[keys] if keys else np.zeros(8)
        size = np.linalg.norm(output)
        assert found.output_error is not None
        wanted = np.linalg.norm(after - output) / size if size else 0.0
        assert float(found.output_error[i]) == pytest.approx(wanted, rel=WITHIN * 100, abs=WITHIN * 100)


def test_means_worst_rows_and_records() -> None:
    found = made({}).keep("window", 8)
    lost = found.recall[8:]
    assert found.cut.tolist() == [False] * 8 + [True] * 32
    assert found.mean == pytest.approx(float(lost.mean()))
    assert found.mean_error == pytest.approx(float(found.output_error[8:].mean()))  # type: ignore[index]
    assert found.worst(3) == (lost.argsort()[:3] + 8).tolist()
    assert found.records()[9]["recall"] == float(found.recall[9])
    assert set(found.records()[0]) == {"query", "recall", "kept", "allowed", "output_error"}
    whole = made({}).keep("window", N)
    assert (whole.mean, whole.mean_error, whole.worst()) == (1.0, 0.0, [])
    assert bool((whole.recall == 1).all())


def test_all_heads_of_a_stack() -> None:
    stack = AttentionStack([made({}), made({"window": 12})], names=["a", "b"])
    found = stack.keep("tova", 9, batch=1)
    assert [(one["name"], one["head"]) for one in found] == [(name, head) for name in "ab" for head in range(HEADS)]
    for one in found:
        kept = stack[one["layer"]].keep("tova", 9, batch=1, head=one["head"])
        assert (one["recall"], one["output_error"]) == (kept.mean, kept.mean_error)
        assert (one["worst_query"], one["cut"]) == (kept.worst(1)[0], int(kept.cut.sum()))


def test_any_mask_is_a_policy() -> None:
    att = made({})
    even = torch.arange(N) % 2 == 0
    functions = (lambda b, h, q, k: k % 2 == 0, even, even.expand(N, N), even.numpy())
    found = [att.keep(mask, head=1) for mask in functions]
    check(att, 0, 1, [{j for j in range(i + 1) if j % 2 == 0} for i in range(N)], found[0])
    assert all(torch.equal(one.recall, found[0].recall) for one in found)
    shown = Attention(att.q, att.k, att.v, is_causal=True, mask=found[0].mask)
    assert torch.equal(shown.block("allowed", head=1), (att.block("allowed") & even))
    cross = Attention(torch.randn(3, 4), torch.randn(5, 4))
    assert cross.keep(torch.tensor([True, False, True, True, True])).kept.tolist() == [4, 4, 4]


def test_budgets_are_shares_as_well() -> None:
    att = made({})
    assert torch.equal(att.keep("window", 0.25).recall, att.keep("window", 10).recall)
    assert att.keep("tova", 0.25).policy == "tova of 10 keys"


@pytest.mark.parametrize(
    "policy",
    [
        {"policy": "window"},
        {"policy": "window", "sinks": 0},
        {"policy": "heavy_hitters"},
        {"policy": "heavy_hitters", "recent": 1},
        {"policy": "tova"},
        {"policy": "snapkv", "prompt": 30, "observe": 4},
    ],
)
@pytest.mark.parametrize("budget", [N, N + 1, 25 * N, 1.0])
def test_a_budget_of_all_keys_or_more_keeps_every_one(policy: dict[str, Any], budget: float) -> None:
    att = made({})
    for head in range(att.shape.H):
        found = att.keep(**policy, budget=budget, head=head)
        torch.testing.assert_close(found.recall, torch.ones_like(found.recall), rtol=WITHIN, atol=WITHIN)
        assert torch.equal(found.kept, found.allowed)
        assert (found.mean, found.worst(), float(found.output_error.sum())) == (1.0, [], 0.0)  # type: ignore[union-attr]
        changed = att.what_if({"keep": {**policy, "budget": budget}})
        assert torch.equal(changed.block("allowed", head=head), att.block("allowed", head=head))
        assert torch.equal(changed.output(head=head), att.output(head=head))


def test_what_does_not_fit_is_refused() -> None:
    att = made({})
    cases: list[tuple[Attention, dict[str, Any], str]] = [
        (att, {"policy": "windw", "budget": 4}, "did you mean 'window'"),
        (att, {"policy": "window"}, "a policy needs a budget"),
        (att, {"policy": "window", "budget": 4}, "budget is 4 keys, and sinks takes 4 of them"),
        (att, {"policy": "window", "budget": 1.5}, "a share of the keys"),
        (att, {"policy": "snapkv", "budget": 40}, "at the end of the prompt: give the number of its tokens"),
        (att, {"policy": "snapkv", "budget": 40, "prompt": N}, "nothing comes after it"),
        (att, {"policy": torch.ones(N).bool(), "budget": 4}, "leave out budget="),
        (att, {"policy": torch.ones(3).bool()}, r"give \(40, 40\) for queries and keys"),
        (Attention(att.q, att.k), {"policy": "tova", "budget": 4}, "query 0 may attend to the later key 1"),
        (Attention(torch.randn(3, 4), torch.randn(5, 4)), {"policy": "window", "budget": 5}, "or a mask as the policy"),
        (Attention.from_weights(torch.eye(4)), {"policy": "window", "budget": 5}, "only weights were given"),
    ]
    for given, keywords, message in cases:
        with pytest.raises(ValueError, match=message):
            given.keep(**keywords)
    with pytest.raises(TypeError, match="give bools"):
        att.keep(torch.ones(N))
    with pytest.raises(TypeError, match="budget is True: give how many keys"):
        att.keep("tova", True)
    with pytest.raises(TypeError, match="mask is a function that returns int64: let it return a bool"):
        att.keep(lambda b, h, q, k: q - k)
    with pytest.raises(ValueError, match="mask has rules for 3 samples, and there"):
        att.keep(masks.padding([3, 4, 5]))
    with pytest.raises(TypeError, match="give one of window"):
        att.keep(3)  # type: ignore[arg-type]
    with pytest.raises(IndexError):
        att.keep("window", 8, head=9)


def test_a_part_of_the_queries_has_the_same_window() -> None:
    att = made({})
    assert att.q is not None
    rows = [20, 21, 30, 39]
    part = Attention(att.q[:, :, rows], att.k, att.v, mask=torch.ones(N, N).tril().bool()[rows]).as_part(None, rows, 0)
    found, whole = part.keep("window", 8), att.keep("window", 8)
    torch.testing.assert_close(found.recall, whole.recall[rows], rtol=WITHIN, atol=WITHIN)
    with pytest.raises(ValueError, match="needs all queries from the first key on"):
        part.keep("tova", 8)


def test_it_is_a_what_if() -> None:
    att = made({})
    for policy in POLICIES:
        found, changed = att.keep(**policy, head=1), att.what_if({"keep": policy})
        recall = (changed.log_normalizer(head=1) - att.log_normalizer(head=1)).exp()
        torch.testing.assert_close(found.recall, recall, rtol=WITHIN, atol=WITHIN)
        assert torch.equal(changed.block("allowed", head=1).sum(1), found.kept)
        assert changed.what_if({"keep": None}).block(head=1).equal(att.block(head=1))
    colder = att.what_if({"scale": 0.1, "keep": {"policy": "tova", "budget": 9}})
    by_hand = Attention(att.q, att.k, att.v, is_causal=True, scale=0.1).keep("tova", 9)
    assert torch.equal(colder.block("allowed").sum(1), by_hand.kept)
    assert "tova of 9 keys" in repr(colder)
    with pytest.raises(ValueError, match="keep has 'size': there are policy, budget"):
        att.what_if({"keep": {"size": 3}})
    with pytest.raises(TypeError, match=r"give \{.policy.: .window., .budget.: 64\}"):
        att.what_if({"keep": 3})
    policy = {"policy": "window", "budget": 8}
    assert compare(att, att.what_if({"keep": policy})).sides == ["A", "B"]
    w = AttentionWidget.from_attention(att, what_if={"keep": policy})
    assert w.what_if["keep"] == policy
    assert torch.equal(w.weights(39), att.what_if({"keep": policy}).block(queries=39)[0])


def test_a_long_head_is_kept_in_blocks() -> None:
    make = torch.Generator().manual_seed(2)
    q, k = torch.randn(2, 1, 1, 3000, 16, generator=make)
    att = Attention(q, k, is_causal=True)
    for policy in ("window", "heavy_hitters", "tova"):
        found = att.keep(policy, 200)
        assert found.output_error is None
        assert int(found.kept.max()) == 200
        assert int(found.kept[150]) == 151
        row = att.block(queries=2999)[0]
        kept = att.what_if({"keep": {"policy": policy, "budget": 200}}).block("allowed", queries=2999)[0]
        within = roundings(3000) * eps(torch.float32) * 10
        assert float(found.recall[2999]) == pytest.approx(float(row[kept].sum()), rel=within, abs=within)


@pytest.mark.parametrize("policy", ["heavy_hitters", "tova"])
def test_keys_far_below_one_that_was_just_evicted_still_count(policy: str) -> None:
    """In float32 they all underflow beside it, and so would the weights of all that are there."""
    k = torch.eye(N)[None, None].expand(1, HEADS, N, N).contiguous()
    scores = torch.randn(1, HEADS, N, N, generator=torch.Generator().manual_seed(4))
    scores[..., 12:, 3] = 400  # once key 3 is gone, it must not be what the others are compared with
    scores[..., 3:12, 3] = -400
    att = Attention(scores, k, is_causal=True, scale=1.0)
    there = kept_by_loop(att, 0, 1, policy, 8)
    assert 3 not in there[12]
    found = att.what_if({"keep": {"policy": policy, "budget": 8}}).block("allowed", head=1)
    assert [set(row.nonzero()[:, 0].tolist()) for row in found] == there
