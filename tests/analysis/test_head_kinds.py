"""The kinds of heads, each beside a plain loop over its dense weights, in float64, as its paper defines it."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan, nan
from typing import Any

import numpy as np
import pytest
import torch
from tolerance import eps, roundings

from attnwidget import Attention, AttentionStack, find_heads, masks
from attnwidget.results import HeadRows

N = 30
TOKENS = list("abcdefghij") * 3
SEGMENTS: dict[str, Any] = {
    "needle": (4, 9),
    "doc 1": (2, 6),
    "doc 2": [(6, 9), (10, 12)],
    "query": (13, 17),
    "answer": (20, 30),
}
SENTENCES = [(1, 4), (4, 6), (6, 10), (10, 13), (13, 15), (16, 20), (20, 25), (25, 30)]
Loop = Callable[[np.ndarray, np.ndarray], float]  # of weights (Q, K) and which are allowed


def sink_loop(P: np.ndarray, allowed: np.ndarray) -> float:
    first = int(np.flatnonzero(allowed[0] | allowed[-1])[0])
    rows = [i for i in range(len(P)) if allowed[i].sum() > 1 and counts(P, allowed, i)]
    return float(np.mean([P[i, first] > 0.3 for i in rows])) if rows else nan


def streaming_loop(P: np.ndarray, allowed: np.ndarray) -> float:
    begin, found = int(np.flatnonzero(allowed[0] | allowed[-1])[0]), []
    for i in range(len(P)):
        kept = [j for j in range(P.shape[1]) if begin <= j < begin + 2 or 0 <= i - j < 5]
        others = [j for j in range(P.shape[1]) if j not in kept]
        if allowed[i, others].any() and counts(P, allowed, i):
            found.append(1 - sum(P[i, j] for j in others))
    return float(np.mean(found)) if found else nan


def counts(P: np.ndarray, allowed: np.ndarray, i: int) -> bool:
    """Whether a row is no padding, and attends to anything."""
    return bool(allowed[i].any() and (allowed[i, i] or (allowed[0] | allowed[-1])[i]))


def retrieval_loop(P: np.ndarray, allowed: np.ndarray) -> float:
    needle, found = range(*SEGMENTS["needle"]), []
    for said in range(*SEGMENTS["answer"]):
        if TOKENS[said] in [TOKENS[j] for j in needle] and counts(P, allowed, said - 1):
            strongest = int(P[said - 1].argmax())
            found.append(strongest in needle and TOKENS[strongest] == TOKENS[said])
    return float(np.mean(found))


def lookback_loop(P: np.ndarray, allowed: np.ndarray) -> float:
    start, found = SEGMENTS["answer"][0], []
    first = int(np.flatnonzero(allowed[0] | allowed[-1])[0])
    for i in range(*SEGMENTS["answer"]):
        if not counts(P, allowed, i):
            continue
        context, new = P[i, first:start].mean(), P[i, start : i + 1].mean()
        found.append(context / (context + new))
    return float(np.mean(found))


def documents_loop(P: np.ndarray, allowed: np.ndarray) -> float:
    keys = [*range(2, 6), *range(6, 9), *range(10, 12)]
    return float(np.mean([sum(P[i, j] for j in keys) for i in range(*SEGMENTS["query"])]))


def receiver_loop(P: np.ndarray, allowed: np.ndarray) -> float:
    count = len(SENTENCES)
    by = [[P[slice(*s), slice(*t)].mean() for t in SENTENCES] for s in SENTENCES]
    received = np.array([np.mean([by[s][t] for s in range(t + 4, count)]) for t in range(count - 4)])
    apart = received - received.mean()
    return float((apart**4).mean() / (apart**2).mean() ** 2 - 3)


LOOPS: dict[str, Loop] = {
    "sink": sink_loop,
    "streaming": streaming_loop,
    "retrieval": retrieval_loop,
    "lookback": lookback_loop,
    "receiver": receiver_loop,
}
RULES: list[dict[str, Any]] = [
    {"is_causal": True},
    {"is_causal": True, "window": 24},
    {"is_causal": True, "softcap": 3.0},
    {"is_causal": True, "bias": torch.randn(4, N, N, generator=torch.Generator().manual_seed(3))},
    {"is_causal": True, "sinks": torch.tensor([0.5, -1.0, 2.0, -torch.inf])},
    {"is_causal": True, "mask": masks.padding([N, 27])},
    {"is_causal": True, "mask": torch.arange(N) >= torch.tensor([0, 3, 1, 2]).view(1, 4, 1, 1)},  # padding of each head
]


def made(rules: dict[str, Any], dtype: torch.dtype = torch.float64) -> Attention:
    make = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 4, N, 8, generator=make) * 2, torch.randn(2, 2, N, 8, generator=make)
    return Attention(q.to(dtype), k.to(dtype), **rules)


def dense(att: Attention, batch: int, head: int) -> tuple[np.ndarray, np.ndarray]:
    weights = att.block(batch=batch, head=head).double().numpy()
    return weights, att.block("allowed", batch=batch, head=head).numpy()


def by_head(records: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {one["head"]: one for one in records}


WITHIN = roundings(64) * eps(torch.float64) * 1e3


@pytest.mark.parametrize("rules", RULES, ids=lambda rules: "-".join(rules))
@pytest.mark.parametrize("kind", LOOPS)
def test_each_kind_is_what_a_loop_finds(kind: str, rules: dict[str, Any]) -> None:
    att = made(rules)
    segments = {f"sentence {i}": run for i, run in enumerate(SENTENCES)} if kind == "receiver" else SEGMENTS
    found = by_head(find_heads(att, TOKENS, kind=kind, segments=segments, top=None, first=2, window=5))
    for head in range(4):
        wanted = [LOOPS[kind](*dense(att, batch, head)) for batch in range(2)]
        assert found[head]["mean"] == pytest.approx(np.mean(wanted), rel=WITHIN, abs=WITHIN), head
        assert found[head]["std"] == pytest.approx(np.std(wanted, ddof=1), rel=WITHIN, abs=WITHIN), head
        assert found[head]["n"] == 2


@pytest.mark.parametrize("rules", RULES, ids=lambda rules: "-".join(rules))
def test_query_focused_is_less_that_of_the_null_query(rules: dict[str, Any]) -> None:
    att = made(rules)
    assert att.q is not None
    assert att.k is not None
    other = Attention(att.q.flip(0), att.k * 0.5, **rules)
    found = by_head(find_heads(att, kind="query_focused", segments=SEGMENTS, null=other, top=None))
    for head in range(4):
        wanted = [
            documents_loop(*dense(att, batch, head)) - documents_loop(*dense(other, batch, head)) for batch in range(2)
        ]
        assert found[head]["mean"] == pytest.approx(np.mean(wanted), rel=WITHIN, abs=WITHIN)


def test_of_a_query_in_two_runs_the_tokens_between_do_not_count() -> None:
    att, runs = made({"is_causal": True}), [(20, 22), (25, 27)]
    documents = [*range(2, 6), *range(6, 9), *range(10, 12)]
    given = {**SEGMENTS, "query": runs}
    even = att.what_if({"scale": 0.0})
    found = by_head(find_heads(att, kind="query_focused", segments=given, null=even, top=None))
    for head in range(4):
        wanted = []
        for batch in range(2):
            (P, _), (E, _) = dense(att, batch, head), dense(even, batch, head)
            wanted.append(np.mean([P[row, documents].sum() - E[row, documents].sum() for row in (20, 21, 25, 26)]))
        assert found[head]["mean"] == pytest.approx(np.mean(wanted), rel=WITHIN, abs=WITHIN)


def test_lookback_and_receiver_are_those_of_the_published_code() -> None:
    """Their shapes, not their text: rows of a generation step by step; NaN where sentences are too near."""
    P, _ = dense(made({"is_causal": True}), 0, 2)
    start, stop = SEGMENTS["answer"]
    steps = [P[i, : i + 1] for i in range(start - 1, stop)]  # what each token is written from; the first has no answer
    ratios = []
    for step in steps[1:]:
        on_context, on_new = step[:start].mean(), step[start:].mean()
        ratios.append(on_context / (on_context + on_new))
    assert lookback_loop(P, np.ones_like(P, bool)) == pytest.approx(np.mean(ratios))
    by = np.array([[P[slice(*s), slice(*t)].mean() for t in SENTENCES] for s in SENTENCES])
    by[np.triu_indices_from(by, k=-3)] = nan  # the sentence itself, and the three before
    received = [np.nanmean(column) for column in by.T if np.isfinite(column).any()]
    apart = (received - np.mean(received)) / np.std(received)
    assert receiver_loop(P, np.ones_like(P, bool)) == pytest.approx(np.mean(apart**4) - 3)


@pytest.mark.parametrize("rules", [RULES[0], RULES[-1]], ids=lambda rules: "-".join(rules))
def test_metrics_are_those_of_an_attention(rules: dict[str, Any]) -> None:
    att = made(rules)
    names = ["induction", "entropy", "first_token"]
    for one in find_heads(att, TOKENS, kind=names, top=None):
        values = [getattr(att.metrics(batch, one["head"], tokens=TOKENS), one["kind"]) for batch in range(2)]
        assert one["mean"] == pytest.approx(np.mean(values), rel=WITHIN)
    assert {one["kind"] for one in find_heads(att, TOKENS, kind=names)} == set(names)


def test_rows_that_are_padding_or_empty_do_not_count() -> None:
    q, k = torch.randn(2, 1, 1, 6, 8, dtype=torch.float64)
    left = Attention(q, k, mask=torch.tensor([[0, 0, 1, 1, 1, 1]]).bool(), mask_dims="bk", is_causal=True)
    alone = Attention(q[..., 2:, :], k[..., 2:, :], is_causal=True)
    for kind in ("sink", "streaming"):
        padded, cut = (find_heads(att, kind=kind, first=1, window=1)[0] for att in (left, alone))
        assert padded["mean"] == pytest.approx(cut["mean"], rel=WITHIN, abs=WITHIN)
    right = Attention(q, k, mask=torch.tensor([[1, 1, 1, 1, 0, 0]]).bool(), mask_dims="bk", is_causal=True)
    alone = Attention(q[..., :4, :], k[..., :4, :], is_causal=True)  # after it, padding attends to real keys
    for kind in ("sink", "streaming"):
        padded, cut = (find_heads(att, kind=kind, first=1, window=1, threshold=0.2)[0] for att in (right, alone))
        assert padded["mean"] == pytest.approx(cut["mean"], rel=WITHIN, abs=WITHIN)


def test_known_heads() -> None:
    """A head that copies from the needle is the retrieval head, and no other is."""
    n, needle, answer = 16, range(3, 7), range(10, 14)
    tokens = [f"w{i}" for i in range(n)]
    for said, from_ in zip(answer, needle, strict=True):
        tokens[said] = tokens[from_]
    copying, near = torch.eye(n), torch.eye(n)
    for said, from_ in zip(answer, needle, strict=True):
        copying[said - 1] = torch.eye(n)[from_] * 0.6 + 0.4 / n
        near[said - 1] = torch.eye(n)[from_ - 1]  # the token before: looks at the needle, but writes something else
    uniform = torch.full((n, n), 1 / n)
    att = Attention.from_weights(torch.stack([near, uniform, copying, torch.eye(n)])[None])
    found = find_heads(att, tokens, kind="retrieval", segments={"needle": needle, "answer": answer})
    assert (found[0]["head"], found[0]["mean"]) == (2, 1.0)
    assert [one["mean"] for one in found[1:]] == [0.0, 0.0, 0.0]  # where all are equal, none is the strongest


def test_a_needle_and_a_receiver_in_sharp_cases() -> None:
    n = 40
    runs = [(i * 5, i * 5 + 5) for i in range(8)]
    sentences = {f"s{i}": run for i, run in enumerate(runs)}
    broad = torch.tril(torch.rand(n, n, generator=torch.Generator().manual_seed(0)) + 1)
    narrow = broad.clone()
    narrow[:, 5:10] += 30 * torch.tril(torch.ones(n, n))[:, 5:10]
    weights = torch.stack([broad, narrow])
    att = Attention.from_weights((weights / weights.sum(2, keepdim=True))[None])
    found = find_heads(att, kind="receiver", segments=sentences)
    assert [one["head"] for one in found] == [1, 0]


def test_a_metric_of_ones_own() -> None:
    att = made({"is_causal": True})
    seen: list[tuple[int, ...]] = []

    def second(rows: HeadRows) -> torch.Tensor:
        seen.append(tuple(rows.weights.shape))
        assert rows.own is not None
        assert rows.allowed.shape == rows.weights.shape[1:]
        return rows.weights[..., 1].masked_fill(rows.own < 1, torch.nan)

    found = by_head(find_heads(att, TOKENS, kind=second, top=None))
    for head in range(4):
        wanted = np.mean([dense(att, batch, head)[0][1:, 1].mean() for batch in range(2)])
        assert found[head]["mean"] == pytest.approx(wanted, rel=WITHIN)
        assert found[head]["kind"] == "second"
    assert all(shape[2] == N for shape in seen)
    records = AttentionStack([att]).metrics(kinds={"mine": second, "sink": "sink"})
    assert all({"mine", "sink", "entropy"} <= set(one) for one in records)
    with pytest.raises(ValueError, match=r"one returned \(4,\) for weights"):
        find_heads(att, kind={"one": lambda rows: rows.weights.sum((1, 2))[:1].expand(4)})


def test_a_long_head_is_measured_in_blocks_of_rows() -> None:
    make = torch.Generator().manual_seed(2)
    att = Attention(*torch.randn(2, 1, 2, 3000, 4, generator=make), is_causal=True)
    sizes: list[int] = []

    def largest(rows: HeadRows) -> torch.Tensor:
        sizes.append(rows.weights.numel())
        return rows.weights.amax(2)

    whole = find_heads(att, kind=largest)
    assert max(sizes) <= 1 << 20
    assert whole[0]["rows"] == 3000
    assert find_heads(att, kind=largest, rows=10)[0]["rows"] == 10
    wanted = float(att.block(head=whole[0]["head"]).amax(1).mean())
    assert whole[0]["mean"] == pytest.approx(wanted, rel=roundings(3000) * eps(torch.float32))


def test_what_is_missing_is_said() -> None:
    att = made({"is_causal": True})
    cases: list[tuple[dict[str, Any], str]] = [
        ({"kind": "retreival"}, "did you mean 'retrieval'"),
        ({"kind": "retrieval"}, "retrieval needs to know which tokens are the needle: give segments="),
        ({"kind": "retrieval", "segments": SEGMENTS}, "compares tokens, which are unknown"),
        ({"kind": "lookback", "segments": {"answer": (0, 4)}}, "but there are none: let the answer begin later"),
        ({"kind": "lookback", "segments": {"answer": (20, 40)}}, "tokens 20 to 40, and there are 30"),
        ({"kind": "lookback", "segments": SEGMENTS, "roles": {"answer": "anser"}}, "did you mean 'answer'"),
        ({"kind": "query_focused", "segments": SEGMENTS}, "give null="),
        (
            {"kind": "receiver", "segments": SEGMENTS | {"other": (0, 1)}, "roles": {"sentences": ["query"]}},
            "there are only 1",
        ),
        ({"kind": "induction"}, "no row of these texts counts"),
        ({"kind": "streaming"}, "no row of these texts counts"),
        ({"kind": "sink", "segments": [SEGMENTS]}, "segments has 1 entries, but there are more texts"),
        ({"kind": []}, "kind is empty"),
        ({"kind": "sink", "top": 0}, "top is 0"),
    ]
    for keywords, message in cases:
        with pytest.raises(ValueError, match=message):
            find_heads(att, **keywords)
    cross = Attention(torch.randn(3, 4), torch.randn(5, 4))
    with pytest.raises(ValueError, match="give self-attention"):
        find_heads(cross, kind="streaming")
    with pytest.raises(TypeError, match="may be layers or models"):
        find_heads([att, att], kind="sink")


def test_nan_is_seen() -> None:
    att = made({"is_causal": True})
    assert att.q is not None
    q = att.q.clone()
    q[0, 1, 5] = nan
    assert att.k is not None
    found = find_heads(Attention(q, att.k, is_causal=True), kind={"own": lambda rows: rows.weights[..., 0]}, top=None)
    assert not any(isnan(one["mean"]) for one in found)
