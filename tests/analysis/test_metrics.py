"""The metrics of a head, beside a plain loop over its dense weights."""

from __future__ import annotations

from math import isnan, log2

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import Case, cases
from tolerance import Bound, Rounding, approx, rounding, sums

from attnwidget import Attention, masks
from attnwidget._analysis.metrics import NAMES, Metrics
from examples import examples

TOKENS = list("abcabbacdabcaabb")


def by_loop(att: Attention, tokens: list[str] | None, batch: int = 0, head: int = 0) -> dict[str, float | None]:
    """Every metric as its docstring says, cell by cell."""
    P = att.block(batch=batch, head=head).double().numpy()
    allowed = att.block("allowed", batch=batch, head=head).numpy()
    Q, K = P.shape
    square = Q == K
    seen = allowed[0] | allowed[-1]
    first, last = (np.flatnonzero(seen)[[0, -1]]) if seen.any() else (0, K - 1)
    found: dict[str, list[float]] = {name: [] for name in NAMES}
    for i, (p, open_keys) in enumerate(zip(P, allowed, strict=True)):
        found["masked_share"].append(1 - open_keys.mean())
        if not open_keys.any() or (square and not (open_keys[i] or seen[i])):
            continue
        found["entropy"].append(-sum(w * log2(w) for w in p if w > 0))
        found["first_token"].append(p[first])
        found["last_token"].append(p[last])
        if not square:
            continue
        found["itself"].append(p[i])
        found["mean_distance"].append(sum(w * abs(i - j) for j, w in enumerate(p)))
        if i > 0:
            found["previous_token"].append(p[i - 1])
        if tokens is None:
            continue
        same = [j for j in range(K) if j != i and tokens[j] == tokens[i]]
        after = [j for j in range(1, i) if tokens[j - 1] == tokens[i]]
        for name, keys in (("same_token", same), ("induction", after)):
            if any(open_keys[j] for j in keys):
                found[name].append(sum(p[j] for j in keys))
    return {name: float(np.mean(values)) if values else None for name, values in found.items()}


def check(found: Metrics, wanted: dict[str, float | None], within: Rounding) -> None:
    for name in NAMES:
        value = getattr(found, name)
        assert (value is None) == (wanted[name] is None), name
        if value is not None:
            assert value == approx(wanted[name], within.entropy if name == "entropy" else share(within)), name


def share(within: Rounding) -> Bound:
    """The bound for a sum of weights, times a distance or not, and for their mean over the rows."""
    return {"rtol": within.weights["rtol"] + sums(within.keys, 0)["rtol"], "atol": within.weights["atol"]}


@given(cases(), st.data())
@examples(60)
def test_they_are_what_a_loop_finds(case: Case, data: st.DataObject) -> None:
    att = case.attention()
    head = data.draw(st.integers(0, att.shape.H - 1))
    tokens = data.draw(st.lists(st.sampled_from("abc"), min_size=att.shape.K, max_size=att.shape.K))
    check(att.metrics(head=head, tokens=tokens), by_loop(att, tokens, head=head), case.rounding())


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"is_causal": True},
        {"window": 3, "is_causal": True},
        {"mask": masks.padding([11])},
        {"softcap": 3.0, "is_causal": True},
        {"bias": torch.randn(4, 16, 16, generator=torch.Generator().manual_seed(3))},
        {"bias": torch.randn(1, 16, 16, generator=torch.Generator().manual_seed(4)), "is_causal": True},
        {"bias": lambda score, b, h, q, k: score - (h + 1) * (q - k).abs()},
        {"mask": torch.rand(1, 4, 16, 16, generator=torch.Generator().manual_seed(5)) > 0.4},
        {"mask": torch.ones(16, 16).tril(-1).bool()},
    ],
)
def test_under_every_kind_of_rule(rules: dict[str, object]) -> None:
    g = torch.Generator().manual_seed(0)
    q, k = torch.randn(1, 4, 16, 8, generator=g), torch.randn(1, 2, 16, 8, generator=g)
    att = Attention(q * 3, k, **rules)  # type: ignore[arg-type]
    for head in range(4):
        within = rounding(att, added=4 * 15.0)  # the steepest of the biases
        check(att.metrics(head=head, tokens=TOKENS), by_loop(att, TOKENS, head=head), within)


def test_what_is_given_as_weights_or_scores() -> None:
    weights = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    weights[..., 2] = 0  # rows that do not sum to 1 are taken as they are
    for att in (Attention.from_weights(weights), Attention.from_scores(weights * 9, is_causal=True)):
        within = Rounding(product=9, score=9, features=1, keys=16, value=0, length=0, dtype=torch.float32)
        check(att.metrics(1, 2, tokens=TOKENS), by_loop(att, TOKENS, 1, 2), within)


def test_known_heads() -> None:
    n = 8
    itself = Attention.from_weights(torch.eye(n)).metrics()
    assert (itself.itself, itself.mean_distance, itself.entropy, itself.previous_token) == (1, 0, 0, 0)
    previous = Attention.from_weights(torch.eye(n).roll(-1, 1)).metrics()  # query 0 looks at the last
    assert previous.previous_token == 1
    tokens = list("abcdabcd")
    induction = torch.zeros(n, n)
    induction[range(4), 0] = 1
    induction[range(4, 8), [1, 2, 3, 4]] = 1
    found = Attention.from_weights(induction).metrics(tokens=tokens)
    assert found.induction == 1
    assert found.same_token == 0
    assert found.first_token == 0.5


def test_padding_does_not_count() -> None:
    q, k = torch.randn(2, 1, 1, 6, 8)
    within = rounding(Attention(q, k))
    padded = Attention(q, k, mask=masks.padding([4])).metrics(tokens=list("abab??"))
    alone = Attention(q[..., :4, :], k[..., :4, :]).metrics(tokens=list("abab"))
    for name in NAMES[: NAMES.index("masked_share")]:
        bound = within.entropy if name == "entropy" else share(within)
        assert getattr(padded, name) == approx(getattr(alone, name), bound), name
    assert padded.masked_share == approx(1 / 3, sums(6, size=0))
    left = Attention(q, k, mask=torch.tensor([[0, 0, 1, 1, 1, 1]]).bool(), mask_dims="bk", is_causal=True).metrics()
    cut = Attention(q[..., 2:, :], k[..., 2:, :], is_causal=True).metrics()
    assert left.first_token == approx(cut.first_token, share(within))


def test_none_where_there_is_nothing_to_compare() -> None:
    q, k = torch.randn(1, 1, 3, 8), torch.randn(1, 1, 5, 8)
    cross = Attention(q, k).metrics()
    for name in ("previous_token", "itself", "same_token", "induction", "mean_distance"):
        assert getattr(cross, name) is None, name
    assert cross.entropy is not None
    own = Attention(k, k).metrics()
    assert own.same_token is own.induction is None
    assert own.itself is not None
    blocked = Attention(k, k, mask=torch.zeros(5, 5).bool()).metrics()
    assert blocked.entropy is None
    assert blocked.masked_share == 1
    with pytest.raises(ValueError, match="4 tokens but 5 keys"):
        Attention(k, k).metrics(tokens=list("abcd"))
    with pytest.raises(IndexError):
        Attention(k, k).metrics(head=3)


def test_nan_is_seen_and_stays_where_it_may_be_seen() -> None:
    q, k = torch.randn(2, 1, 2, 6, 8)
    k[0, 0, 5] = torch.nan
    assert isnan(Attention(q, k).metrics().entropy or 0)
    blocked = Attention(q, k, mask=masks.padding([5]))
    within = rounding(Attention(q, k.nan_to_num()))
    check(blocked.metrics(), by_loop(blocked, None), within)
    k = k.clone()
    k[0, 1, 5] = torch.inf
    blocked = Attention(q, k, mask=masks.padding([5]))
    check(blocked.metrics(head=1), by_loop(blocked, None, head=1), within)


@pytest.mark.parametrize("causal", [False, True])
def test_sampled_rows_are_exact(causal: bool) -> None:
    g = torch.Generator().manual_seed(2)
    att = Attention(
        torch.randn(1, 2, 700, 8, generator=g) * 3, torch.randn(1, 1, 700, 8, generator=g), is_causal=causal
    )
    found = att.metrics(head=1, rows=16)
    assert found.rows == 16
    rows = range(699 % 44, 700, 44)
    P = att.block(head=1, queries=rows).double()
    assert len(rows) == 16
    at, own = torch.arange(16), torch.tensor(rows)
    within = rounding(att)
    assert found.itself == approx(P[at, own].mean().item(), share(within))
    distance = (P * (own[:, None] - torch.arange(700)).abs()).sum(1).mean().item()
    assert found.mean_distance == approx(distance, share(within))
    assert found.entropy == approx(-torch.xlogy(P, P).sum(1).mean().item() / np.log(2), within.entropy)


def test_large_scores_and_float64() -> None:
    g = torch.Generator().manual_seed(6)
    q, k = torch.randn(2, 1, 1, 40, 16, generator=g, dtype=torch.float64)
    for att in (Attention(q, k * 400), Attention((q * 20).float(), (k * 20).float()), Attention(q.half(), k.half())):
        check(att.metrics(), by_loop(att, None), rounding(att))
