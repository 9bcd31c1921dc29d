"""Mass, mass per token and lift between segments, beside a loop over cells in float64, for every kind of attention."""

from __future__ import annotations

from math import isnan, nan
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import Case, cases
from tolerance import FEW, eps, roundings
from torch import Tensor

from attnwidget import Attention, AttentionStack, load_sample, masks, segments
from attnwidget._analysis.segment_mass import RowGroups, segment_sums, set_aside
from attnwidget._engine.softmax import run_to_end
from attnwidget.results import Segment, Segments
from examples import examples


def loop(
    weights: Any, may: Any, rows: list[list[int]], columns: list[list[int]], sink: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Mass and even attention by the definition, in float64.

    Args:
        weights: (Q, K).
        may: (Q, K) bool, which cells are allowed.
        rows: the queries of each row.
        columns: the keys of each column.
        sink: (Q,), what a learned sink takes.
    """
    weights, may = weights.tolist(), may.tolist()  # a number at a time of a tensor takes long
    mass, even = torch.full((2, len(rows), len(columns) + (sink is not None)), nan, dtype=torch.float64)
    for s, queries in enumerate(rows):
        counted = [query for query in queries if any(may[query])]
        for t, keys in enumerate(columns if counted else []):
            each = [sum(weights[query][key] for key in keys) for query in counted]
            shares = [sum(may[query][key] for key in keys) / sum(may[query]) for query in counted]
            mass[s, t], even[s, t] = sum(each) / len(each), sum(shares) / len(shares)
        if sink is not None and counted:
            mass[s, -1], even[s, -1] = sum(float(sink[query]) for query in counted) / len(counted), 0.0
    return mass, even


def near(found: Tensor, wanted: Tensor, relative: float, keys: int) -> None:
    rounding = roundings(keys) * eps(found.dtype)
    torch.testing.assert_close(found.double(), wanted, rtol=relative + rounding, atol=1e-30, equal_nan=True)


def pieces(names: list[str], length: int) -> Segments:
    """Segments of random names, one for each token but the first."""
    spans: dict[str, list[tuple[int, int]]] = {}
    for at, name in enumerate(names[: length - 1], 1):
        spans.setdefault(name, []).append((at, at + 1))
    return segments(spans, length=length) if spans else Segments((Segment("first token", 0, 1),), 1, "first token")


def places_of(found: Segments) -> list[list[int]]:
    return [found.positions(name).tolist() for name in found.distinct]


NAMES = st.lists(st.sampled_from("abcd"), min_size=40, max_size=40)


@examples(60)
@given(cases(longest=20, dtypes=(torch.float64, torch.float32, torch.bfloat16)), NAMES, NAMES, st.booleans())
def test_any_attention_is_as_the_definition(case: Case, of_keys: Any, of_queries: Any, has_sink: bool) -> None:
    (B, H, Q, _), (_, _, K, _) = case.q.shape, case.k.shape
    if has_sink:
        case.keywords["sinks"] = torch.linspace(-2, 2, H)
    att = case.attention()
    keys, queries = pieces(of_keys, K), pieces(of_queries, Q)
    bound = case.rounding().weights["rtol"]
    for batch in range(B):
        found = att.by_segment(queries, keys, batch=batch)
        assert found.keys == (*keys.distinct, *(["learned sink"] if has_sink else []))
        assert found.queries == queries.distinct
        for head in {0, H - 1}:
            dense = case.dense(batch, head)
            sink, weights = None, dense["weights"]
            if has_sink:
                logit = case.keywords["sinks"][head].double()
                both = torch.logaddexp(dense["normalizer"], logit)
                sink = torch.exp(logit - both)
                weights = weights * torch.exp(dense["normalizer"] - both)[:, None]  # 1 − sink would be rounding
            mass, even = loop(weights, dense["allowed"], places_of(queries), places_of(keys), sink)
            near(found.mass[head], mass, bound, K)
            near(found.even[head], even, FEW * eps(found.even.dtype), 1)
            near(found.lift[head], mass / even.masked_fill(even == 0, nan), bound + FEW * eps(found.even.dtype), K)
            one = att.by_segment(queries, keys, batch=batch, head=head, measure="per_token")
            sizes = torch.tensor([len(one) for one in places_of(keys)] + [nan] * has_sink)
            near(one.values, mass / sizes, bound, K)


@examples(60)
@given(cases(longest=20, dtypes=(torch.float64, torch.float32)), NAMES)
def test_what_is_set_aside_is_taken_off_both(case: Case, names: list[str]) -> None:
    n = min(case.q.shape[2], case.k.shape[2])
    square = Case(
        case.q[:, :, :n], case.k[:, :, :n], case.v[:, :, :n], {"scale": 0.5, "is_causal": True},
        torch.ones(*case.q.shape[:2], n, n).tril().bool(), torch.zeros(*case.q.shape[:2], n, n), 1.0,
    )  # fmt: skip
    found = pieces(names, n)
    att = square.attention()
    dense = square.dense(0, 0)
    mass = att.by_segment(found, head=0, without=("sink", "self"))
    columns = [keys for keys, name in zip(places_of(found), found.distinct, strict=True) if name != "first token"]
    weights, may = dense["weights"].clone(), dense["allowed"].clone()
    whole = [sum(may[query].tolist()) for query in range(n)]
    weights.fill_diagonal_(0)
    raw, shares = torch.full((2, len(places_of(found)), len(columns)), nan, dtype=torch.float64)
    for s, queries in enumerate(places_of(found)):
        for t, keys in enumerate(columns):
            raw[s, t] = sum(float(weights[i, j]) for i in queries for j in keys) / len(queries)
            shares[s, t] = sum((bool(may[i, j]) and i != j) / whole[i] for i in queries for j in keys) / len(queries)
    bound = square.rounding().weights["rtol"] * 2
    if columns:
        near(mass.mass, raw / raw.sum(1, keepdim=True), bound, n)
        near(mass.even, shares / shares.sum(1, keepdim=True), bound, n)
    rest = 1 - raw.sum(1)
    torch.testing.assert_close(
        mass.aside.double(), rest, rtol=bound + FEW * n * eps(mass.aside.dtype), atol=n * eps(mass.aside.dtype)
    )
    assert mass.without == ("first token", "self")
    assert "first token" not in mass.keys


class TestOneDefinition:
    def test_rows_sum_to_one_and_even_attention_has_lift_one(self) -> None:
        found = segments({"a": (1, 3), "b": (3, 20)}, length=40)
        att = Attention(*torch.zeros(2, 1, 3, 40, 8), is_causal=True).by_segment(found)
        torch.testing.assert_close(att.mass.sum(-1), torch.ones(3, 4))
        lift = att.lift[~att.lift.isnan()]
        torch.testing.assert_close(lift, torch.ones_like(lift))
        assert att.lift[0, 0].isnan().tolist() == [False, True, True, True]  # the first token sees itself alone

    def test_the_example_by_hand(self) -> None:
        weights = torch.tensor([[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0.25, 0.5, 0.25, 0], [0.5, 0.25, 0.125, 0.125]])
        att = Attention.from_scores(weights.log(), scale=1.0, is_causal=True)
        found = att.by_segment(segments({"a": (1, 3), "b": (3, 4)}, length=4), head=0)
        assert found.mass[1].tolist() == pytest.approx([0.375, 0.625, 0])
        assert found.even[1].tolist() == pytest.approx([5 / 12, 7 / 12, 0])
        assert found.lift[1].tolist()[:2] == pytest.approx([0.9, 15 / 14])
        assert isnan(found.lift[1, 2])
        assert found.per_token[2].tolist() == pytest.approx([0.5, 0.1875, 0.125])
        aside = att.by_segment(segments({"a": (1, 3), "b": (3, 4)}, length=4), head=0, without=("sink", "self"))
        assert aside.keys == ("a", "b")
        assert aside.aside.tolist() == pytest.approx([1.0, 0.75, 0.625])
        torch.testing.assert_close(aside.mass[1:], torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
        assert aside.mass[0].isnan().all()  # all is set aside

    def test_a_query_without_keys_is_in_no_mean(self) -> None:
        mask = torch.ones(4, 4, dtype=torch.bool).tril()
        mask[2] = False
        found = Attention(*torch.zeros(2, 4, 8), mask=mask).by_segment(
            [1, 2], segments({"a": (1, 4)}, length=4), head=0
        )
        assert found.queries == ("1", "2")
        assert found.mass[0].tolist() == [0.5, 0.5]
        assert found.mass[1].isnan().all()

    def test_positions_names_and_segments_ask_alike(self) -> None:
        q, k, *_ = load_sample("bank")
        att = Attention(q[2, 0], k[2, 0], dims="hqd", is_causal=True)
        parts = segments({"a": (1, 8), "b": (8, 15), "c": (15, 20)}, length=20)
        whole = att.by_segment(parts)
        torch.testing.assert_close(att.by_segment("c", parts).mass[:, 0], whole.mass[:, 3])
        for positions in (range(15, 20), slice(15, 20), [15, 16, 17, 18, 19], torch.arange(15, 20)):
            each = att.by_segment(positions, parts)
            assert each.shape == (12, 5, 4)
            torch.testing.assert_close(each.mass.mean(1), whole.mass[:, 3])
        twice = att.by_segment([3, 3, 5], parts)
        assert twice.queries == ("3", "3", "5")
        torch.testing.assert_close(twice.mass, att.by_segment(range(20), parts).mass[:, [3, 3, 5]])
        backwards = att.by_segment([19, 3, -2], parts)
        assert backwards.queries == ("19", "3", "18")
        torch.testing.assert_close(backwards.mass[:, 0], each.mass[:, 4])
        torch.testing.assert_close(backwards.mass[:, 2], each.mass[:, 3])

    def test_what_is_inside_a_segment_leaves_the_rest_elsewhere(self) -> None:
        nested = segments({"turn": {"doc 1": (1, 3), "doc 2": (3, 5)}, "answer": (6, 8)}, length=8)
        found = Attention(*torch.zeros(2, 8, 4), is_causal=True).by_segment([7], nested["turn"], head=0)
        assert found.keys == ("doc 1", "doc 2", "elsewhere")
        assert found.mass[0].tolist() == [0.25, 0.25, 0.5]

    def test_what_is_left_of_hardly_anything_is_no_rounding(self) -> None:
        """Nearly all of each row is its own: of a difference of sums no digit would be right."""
        q = torch.eye(4, dtype=torch.float32) * 5
        parts = segments({"a": (1, 3), "b": (3, 4)}, length=4)
        found = Attention(q, q, scale=1.0).by_segment(parts, head=0, without="self")
        assert float(found.aside[1]) > 1 - 1e-9
        third = torch.tensor(1 / 3)
        torch.testing.assert_close(found.mass[1], torch.stack([third, third, third]))
        torch.testing.assert_close(found.mass[2], torch.stack([third, 2 * third, 0 * third]))


def make(*shape: int, seed: int = 0, size: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * size


def dense_mass(att: Attention, queries: list[list[int]], labels: Tensor, count: int, head: int) -> Tensor:
    """Mass of a long head from its whole matrix, in float64: (rows, groups)."""
    weights = torch.softmax(att.block("masked", head=head).double(), 1).nan_to_num(0)
    by_group = torch.zeros(len(weights), count, dtype=torch.float64).index_add_(1, labels, weights)
    return torch.stack([by_group[rows].mean(0) for rows in queries])


class TestLongHeads:
    """Several blocks of keys and of queries, in each of the ways that they are computed."""

    N = 2600

    @pytest.mark.parametrize(
        ("size", "keywords"),
        [
            pytest.param(0.3, {}, marks=pytest.mark.thorough),
            pytest.param(6.0, {}, marks=pytest.mark.thorough),
            (0.3, {"is_causal": True}),
            pytest.param(6.0, {"is_causal": True, "window": 700}, marks=pytest.mark.thorough),
            (6.0, {"is_causal": True, "sinks": torch.tensor([1.0, -torch.inf, 30.0, -3.0])}),
            pytest.param(
                0.3,
                {"is_causal": True, "sinks": torch.tensor([1.0, -torch.inf, 3.0, -3.0])},
                marks=pytest.mark.thorough,
            ),
            (6.0, {"softcap": 20.0, "mask": masks.padding([2100])}),
            (1.0, {"is_causal": True, "bias": lambda score, b, h, q_idx, kv_idx: score - 0.01 * (q_idx - kv_idx)}),
        ],
    )
    def test_grouped_heads_are_as_their_matrices(self, size: float, keywords: dict[str, Any]) -> None:
        n = self.N
        att = Attention(make(1, 4, n, 16, size=size), make(1, 2, n, 16, seed=1), **keywords)
        parts = segments({"a": [(1, 40), (50, 51), (2400, 2600)], "b": (51, 2399)}, length=n)
        rows = [parts.positions(name).tolist() for name in parts.distinct]
        labels = torch.from_numpy(parts.labels())
        found = att.by_segment(parts)
        few = att.by_segment(range(n - 30, n), parts)
        for head in (0, 3):
            exact = dense_mass(att, [*rows, list(range(n - 30, n))], labels, 4, head)
            if "sinks" in keywords:
                exact = exact * 0  # below
                weights = att.block("weights", head=head).double()
                by_group = torch.zeros(n, 4, dtype=torch.float64).index_add_(1, labels, weights)
                exact = torch.stack([by_group[one].mean(0) for one in [*rows, list(range(n - 30, n))]])
                sink = att.sink_weights(head=head).double()
                wanted = torch.stack([sink[one].mean() for one in rows])
                torch.testing.assert_close(found.mass[head, :, 4].double(), wanted, rtol=1e-4, atol=1e-12)
            bound = {"rtol": 2e-5, "atol": 2e-6}  # of scores up to 100 in float32; rows add to 1
            torch.testing.assert_close(found.mass[head, :, :4].double(), exact[:-1], **bound)
            torch.testing.assert_close(few.mass[head, :, :4].double().mean(0), exact[-1], **bound)
        torch.testing.assert_close(found.mass.sum(-1), torch.ones(4, 4))
        shares = att.block("allowed").double()
        shares /= shares.sum(1, keepdim=True)
        even = torch.zeros(n, 4, dtype=torch.float64).index_add_(1, labels, shares)
        torch.testing.assert_close(
            found.even[0, :, :4].double(), torch.stack([even[one].mean(0) for one in rows]), rtol=1e-6, atol=0
        )

    def test_sums_do_not_drift(self) -> None:
        """Equal weights, one by one, would all be rounded alike."""
        n = 40_000
        att = Attention(torch.zeros(1, 8), torch.zeros(n, 8))
        found = att.by_segment([0], segments({"a": (1, 30_001), "b": (30_001, n)}, length=n), head=0)
        wanted = torch.tensor([[1.0, 30_000, 9_999]]) / n
        torch.testing.assert_close(found.mass, wanted, rtol=8 * eps(torch.float32), atol=0)

    @pytest.mark.parametrize(
        "keywords",
        [
            {"is_causal": True, "window": 600},
            {"is_causal": True, "sinks": torch.tensor([0.5])},
            {"mask": lambda b, h, q_idx, kv_idx: (q_idx < 2000) | (q_idx > 2030) & (kv_idx > q_idx - 50)},
            {"bias": lambda score, b, h, q_idx, kv_idx: torch.where(q_idx == 4200, -torch.inf, score)},
        ],
    )
    @pytest.mark.parametrize("size", [0.3, pytest.param(6.0, marks=pytest.mark.thorough)])
    def test_many_queries_are_as_each_by_itself(self, size: float, keywords: dict[str, Any]) -> None:
        """Means over thousands of queries at once, some without keys, in segments of many pieces and in none."""
        n = 4700
        att = Attention(make(1, n, 16, size=size), make(1, n, 16, seed=1), dims="hqd", **keywords)
        spans = {f"s{i}": [(s, s + 40) for s in range(1 + 40 * i, n - 100, 400)] for i in range(10)}
        parts = segments({**spans, "turn": {"answer": (n - 99, n)}}, length=n)["turn"]
        for asked in (segments(spans, length=n), parts):
            found = att.by_segment(asked, parts, head=0)
            for row, name in enumerate(found.queries):
                each = att.by_segment(asked.positions(name), parts, head=0)
                for whole, one in ((found.mass, each.mass), (found.even, each.even)):
                    mean = one.double().nanmean(0)
                    torch.testing.assert_close(whole[row].double(), mean, rtol=1e-5, atol=1e-9, equal_nan=True)

    def test_many_small_segments(self) -> None:
        n, count = 3000, 300
        att = Attention(make(2, n, 16), make(2, n, 16, seed=1), dims="hqd", is_causal=True)
        parts = segments({f"s{i}": (max(1, i * 10), i * 10 + 10) for i in range(count)}, length=n)
        found = att.by_segment([n - 1, 1500], parts, head=1)
        labels = torch.from_numpy(parts.labels())
        exact = dense_mass(att, [[n - 1], [1500]], labels, count + 1, 1)
        torch.testing.assert_close(found.mass.double(), exact, rtol=1e-5, atol=1e-12)
        assert found.lift[1, 200:].isnan().all()  # they come after it

    def test_it_comes_in_small_steps_that_may_be_dropped(self) -> None:
        n = 9000
        att = Attention(make(n, 16), make(n, 16, seed=1), is_causal=True)
        parts = segments({"a": (1, 5000), "b": (5000, n)}, length=n)
        rows = RowGroups(parts.positions("b"), parts.positions("b") * 0, 1)
        steps = segment_sums(att, 0, [0], rows, parts.labels(), 3)
        cells = [next(steps) for _ in range(3)]
        assert 0 < max(cells) <= 1 << 20
        assert torch.is_grad_enabled()  # between the steps the caller's mode is back
        steps.close()
        whole = run_to_end(segment_sums(att, 0, [0], rows, parts.labels(), 3))
        torch.testing.assert_close(whole.mass[0], att.by_segment("b", parts, head=0).mass)

    @pytest.mark.thorough
    def test_131072_tokens_are_as_exact(self) -> None:
        n, rows = 131_072, 64
        q, k = make(2, n, 8), make(1, n, 8, seed=1)
        att = Attention(q[None], k[None], is_causal=True)
        spans = {f"doc {i}": (1 + 3_276 * i, 1 + 3_276 * (i + 1)) for i in range(39)}
        parts = segments({**spans, "answer": (n - rows, n)}, length=n)
        found = att.by_segment("answer", parts, without=("sink", "self"), measure="lift")
        labels = torch.from_numpy(parts.labels())
        later = torch.arange(n) > torch.arange(n - rows, n)[:, None]
        for head in range(2):
            weights = (q[head, -rows:].double() @ k[0].double().mT / 8**0.5).masked_fill(later, -torch.inf).softmax(-1)
            even = (~later).double() / (~later).sum(1, keepdim=True)
            shares = []
            for cells in (weights, even):
                kept = cells.clone()
                kept[:, 0] = kept[torch.arange(rows), torch.arange(n - rows, n)] = 0
                sums = torch.zeros(rows, len(parts.distinct), dtype=torch.float64).index_add_(1, labels, kept).mean(0)
                shares.append(sums / sums.sum())
            wanted = (shares[0] / shares[1])[[parts.distinct.index(name) for name in found.keys]]
            torch.testing.assert_close(
                found.values[head, 0].double(), wanted, rtol=roundings(n) * eps(torch.float32), atol=0
            )

    @pytest.mark.parametrize("many", [False, True])
    def test_a_bar_is_told_of_all_cells_block_by_block(self, many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        bars: list[Any] = []

        class Bar:
            def __init__(self, *, total: int, **_: Any) -> None:
                self.total, self.n, self.updates = total, 0, []
                bars.append(self)

            def __enter__(self) -> Any:
                return self

            def __exit__(self, *_: object) -> None:
                self.updates.append(None)

            def update(self, cells: int) -> None:
                self.n += cells
                self.updates.append(cells)

        monkeypatch.setattr("attnwidget._analysis.segment_mass.progress_bar", lambda: Bar)
        n = 3000
        att = Attention(make(1, 2, n, 8), make(1, 2, n, 8, seed=1), is_causal=True)
        parts = segments({"a": (1, 2000), "b": (2000, n)}, length=n)
        asked = AttentionStack([att, att]) if many else att
        plain = asked.by_segment("b", parts, without="self")
        assert not bars
        assert torch.equal(asked.by_segment("b", parts, without="self", progress=True).mass, plain.mass)
        (bar,) = bars
        assert bar.n == bar.total == 2 * 1000 * n * (1 + many)
        assert bar.updates[-1] is None  # closed
        assert len(bar.updates) > 4
        assert max(bar.updates[:-2]) <= 1 << 21


class TestOtherOrigins:
    def test_weights_that_were_given(self) -> None:
        weights = torch.softmax(make(2, 3, 50, 50), -1)
        weights[0, 0, 7, 3] = nan
        att = Attention.from_weights(weights)
        parts = segments({"a": (1, 20), "b": (20, 50)}, length=50)
        found = att.by_segment(range(50), parts)
        assert found.mass[0, 7].isnan().tolist() == [False, True, False]
        assert found.mass.isnan().sum() == 1
        wanted = weights[0, 1].double()[:, 20:].sum(1)
        torch.testing.assert_close(found.mass[1, :, 2].double(), wanted, rtol=1e-6, atol=0)
        assert found.even[1, 3].tolist() == pytest.approx([1 / 50, 19 / 50, 30 / 50])

    def test_heads_put_together_and_words(self) -> None:
        sample = load_sample("bank")
        q, k, mask = sample.q[3], sample.k[3], sample.mask
        att = Attention(q, k, mask=mask[:, None, None, :].bool())
        parts = segments("sentences", tokens=sample.tokens[0])
        each = att.by_segment(parts)
        torch.testing.assert_close(att.combine().by_segment(parts).mass[0], each.mass.mean(0))
        words = att.merge(sample.tokens)
        assert words.shape.K == 20
        torch.testing.assert_close(words.by_segment(parts).mass, each.mass)
        pieces_of_two = att.merge([[0, *range(1, 10), 9, *range(10, 19)]] * 2)
        fewer = segments({"a": (1, 10), "b": (10, 19)}, length=19)
        apart = segments({"a": (1, 11), "b": (11, 20)}, length=20)
        torch.testing.assert_close(
            pieces_of_two.by_segment("b", fewer, head=2).mass, att.by_segment("b", apart, head=2).mass
        )

    def test_several_heads_by_their_maximum_are_as_they_are(self) -> None:
        att = Attention(make(1, 3, 9, 4), make(1, 3, 9, 4, seed=1), is_causal=True)
        parts = segments({"a": (1, 5), "b": (5, 9)}, length=9)
        weights = att.combine(how="max").block()
        assert att.combine(how="max").by_segment("b", parts, head=0).mass[0].tolist() == pytest.approx(
            [weights[5:, keys].sum(1).mean().item() for keys in (slice(1), slice(1, 5), slice(5, 9))]
        )

    def test_queries_that_come_after_the_keys_before(self) -> None:
        """The rows of a generated text, of which some queries are kept: each stands at its own place."""
        q, k = make(12, 8), make(12, 8, seed=1)
        whole = Attention(q, k, is_causal=True)
        parts = segments({"prompt": (1, 9), "answer": (9, 12)}, length=12)
        last = Attention(q[8:], k, mask=masks.causal_lower_right(4, 12)).as_part(None, None, 8)
        found, wanted = last.by_segment("answer", parts, head=0), whole.by_segment("answer", parts, head=0)
        torch.testing.assert_close(found.mass, wanted.mass)
        torch.testing.assert_close(
            last.by_segment("answer", parts, head=0, without="self").mass,
            whole.by_segment("answer", parts, head=0, without="self").mass,
        )
        rows = last.by_segment(parts, head=0)
        assert rows.mass[0].isnan().all()  # the query of the first token is not among them
        chosen = Attention(q[[3, 10]], k, mask=torch.ones(12, 12).tril().bool()[[3, 10]]).as_part(None, [3, 10], 0)
        torch.testing.assert_close(
            chosen.by_segment(parts, head=0).mass[2], whole.by_segment([10], parts, head=0).mass[0]
        )

    def test_cross_attention_has_segments_of_either_side(self) -> None:
        att = Attention(make(5, 8), make(9, 8, seed=1))
        ours, theirs = segments({"answer": (1, 5)}, length=5), segments({"a": (1, 4), "b": (4, 9)}, length=9)
        found = att.by_segment(ours, theirs, head=0)
        assert (found.queries, found.keys) == (("first token", "answer"), ("first token", "a", "b"))
        torch.testing.assert_close(found.mass[1, 2], att.block()[1:, 4:].sum(1).mean())
        cross = att.as_part(None, None, None, elsewhere=True)
        none = cross.by_segment(ours, theirs, head=0, without="self")
        assert none.aside.tolist() == [0, 0]  # no query has a key of its own
        torch.testing.assert_close(none.mass, found.mass)

    def test_half_types_and_float64(self) -> None:
        parts = segments({"a": (1, 4), "b": (4, 9)}, length=9)
        q, k = make(9, 8), make(9, 8, seed=1)
        exact = Attention(q.double(), k.double()).by_segment(parts)
        assert exact.mass.dtype == torch.float64
        half = Attention(q.half(), k.half()).by_segment(parts)
        assert half.mass.dtype == torch.float32
        rounded = Attention(q.half().double(), k.half().double()).by_segment(parts)
        torch.testing.assert_close(half.mass.double(), rounded.mass, rtol=1e-5, atol=0)

    def test_nan_stays_in_the_rows_that_have_it(self) -> None:
        q = make(6, 4)
        q[3, 0] = nan
        found = Attention(q, make(6, 4, seed=1), is_causal=True).by_segment(
            range(6), segments({"a": (1, 6)}, length=6), head=0
        )
        assert found.mass.isnan().any(1).tolist() == [False, False, False, True, False, False]
        parts = segments({"a": (1, 3), "b": (3, 5), "c": (5, 6)}, length=6)
        of_segments = Attention(q, make(6, 4, seed=1), is_causal=True).by_segment(parts, head=0)
        assert of_segments.mass.isnan().any(1).tolist() == [False, False, True, False]

    def test_numpy_takes_it_in_the_type_that_is_asked_for(self) -> None:
        found = Attention(make(6, 4), make(6, 4, seed=1)).by_segment(
            range(6), segments({"a": (1, 6)}, length=6), head=0
        )
        assert np.asarray(found).dtype == np.float32
        assert np.asarray(found, dtype=np.float64).dtype == np.float64
        assert np.array(found, dtype=np.float32, copy=True)[0, 0] == found.values[0, 0]


class TestStack:
    def test_it_is_each_layer(self) -> None:
        q, k, *_ = load_sample("bank")
        layers = [Attention(q[i], k[i]) for i in range(3)]
        parts = segments({"a": (1, 8), "b": (8, 20)}, length=20)
        found = AttentionStack(layers, names=["one", "two", "three"]).by_segment("b", parts, batch=1, measure="lift")
        assert found.shape == (3, 12, 1, 3)
        for layer, att in enumerate(layers):
            torch.testing.assert_close(found.values[layer], att.by_segment("b", parts, batch=1, measure="lift").values)
        record = found.records()[40]
        assert {name: record[name] for name in ("layer", "name", "head", "query", "key", "tokens")} == {
            "layer": 1, "name": "two", "head": 1, "query": "b", "key": "a", "tokens": 7,
        }  # fmt: skip
        assert record["lift"] == pytest.approx(found.lift[1, 1, 0, 1].item())
        assert record["mass"] == pytest.approx(record["per_token"] * 7)
        assert record["mass"] == pytest.approx(record["lift"] * record["even"])

    def test_layers_with_fewer_heads_and_without_sinks(self) -> None:
        layers = [
            Attention(*torch.zeros(2, 1, 2, 4, 8), sinks=0.0),
            Attention(*torch.zeros(2, 1, 1, 4, 8)),
        ]
        found = AttentionStack(layers).by_segment(segments({"a": (1, 4)}, length=4), without=["learned sink"])
        assert found.shape == (2, 2, 2, 2)
        assert found.mass[1, 1].isnan().all()
        torch.testing.assert_close(found.mass[0], torch.tensor([0.25, 0.75]).expand(2, 2, 2))
        torch.testing.assert_close(found.aside[0], torch.full((2, 2), 0.2))
        assert found.aside[1, 0].tolist() == [0, 0]
        assert next(one for one in found.records() if one["layer"] == one["head"] == 1)["mass"] is None

    def test_an_error_names_its_layer(self) -> None:
        layers = [Attention(*torch.zeros(2, 4, 8)), Attention(*torch.zeros(2, 5, 8))]
        with pytest.raises(ValueError, match="layer 1: the segments have 4 tokens, but there are 5 keys"):
            AttentionStack(layers).by_segment(segments({"a": (1, 4)}, length=4))


class TestWhatIsRefused:
    PARTS = segments({"a": (1, 4), "b": (4, 6)}, length=6)

    @pytest.mark.parametrize(
        ("arguments", "keywords", "error", "told"),
        [
            (([1],), {}, TypeError, "there are no keys"),
            (("a",), {}, TypeError, "there are no keys"),
            (([1], [(1, 2)]), {}, TypeError, r"give the result of segments\(…\)"),
            (({"a": (1, 9)},), {}, ValueError, "a"),
            (("c", PARTS), {}, KeyError, "give one of first token, a, b"),
            (([6], PARTS), {}, IndexError, "query 6 is not there"),
            ((segments({"a": (1, 4)}, length=4),), {}, ValueError, "have 4 tokens, but there are 6 keys"),
            ((segments({"a": (1, 4)}, length=4), PARTS), {}, ValueError, "have 4 tokens, but there are 6 queries"),
            ((PARTS,), {"measure": "masses"}, ValueError, "did you mean 'mass'"),
            ((PARTS,), {"without": "sinks"}, ValueError, "did you mean 'sink'"),
            ((PARTS,), {"without": ["learned sink"]}, ValueError, "give some of sink, self, first token, a, b"),
            ((PARTS,), {"head": 2}, IndexError, "head 2 is not there"),
            ((PARTS,), {"batch": 2}, IndexError, "batch 2 is not there"),
            ((PARTS,), {"without": None}, TypeError, "without is None: give names of segments"),
            ((PARTS,), {"without": 3}, TypeError, "without is 3: give names of segments"),
        ],
    )
    def test_it_tells_what_to_give(self, arguments: Any, keywords: Any, error: Any, told: str) -> None:
        with pytest.raises(error, match=told):
            Attention(*torch.zeros(2, 6, 4)).by_segment(*arguments, **keywords)

    def test_spans_by_name_are_segments(self) -> None:
        att, spans = Attention(*torch.randn(2, 2, 6, 4)), {"a": (1, 4), "b": [4, 5]}
        made = att.by_segment(segments(spans, length=6))
        for asked in ((spans,), (spans, spans), (segments(spans, length=6), spans)):
            found = att.by_segment(*asked)
            assert (found.queries, found.keys) == (made.queries, made.keys)
            torch.testing.assert_close(found.mass, made.mass)
        cross = Attention(torch.randn(1, 3, 4), torch.randn(1, 6, 4))
        found = cross.by_segment({"first": (0, 2)}, spans)
        torch.testing.assert_close(found.mass[0, found.queries.index("first"), found.keys.index("b")],
                                   cross.block()[1:2, 4:].sum(1).mean().double(), check_dtype=False)  # fmt: skip
        torch.testing.assert_close(AttentionStack([att]).by_segment(spans).mass[0], made.mass)

    def test_queries_whose_places_are_not_known(self) -> None:
        with pytest.raises(ValueError, match="their places among the keys are unknown"):
            Attention(torch.zeros(2, 4), torch.zeros(6, 4)).by_segment("a", self.PARTS)

    def test_an_own_key_that_is_not_known_is_not_set_aside(self) -> None:
        cross = Attention(torch.zeros(2, 4), torch.zeros(6, 4))
        with pytest.raises(ValueError, match=r"without has 'self'.* are unknown: leave 'self' out"):
            cross.by_segment([0, 1], self.PARTS, without=("sink", "self"))
        stack = AttentionStack([Attention(*torch.zeros(2, 6, 4)), cross], names=["self", "cross"])
        with pytest.raises(ValueError, match=r"^cross: without has 'self'"):
            stack.by_segment([0, 1], self.PARTS, without="self")

    def test_what_is_set_aside_is_named(self) -> None:
        assert set_aside("sink", ("a", "b"), has_sink=False) == ()
        found = Attention(*torch.zeros(2, 6, 4), sinks=0.0).by_segment(self.PARTS, head=0, without=["sink", "a"])
        assert found.without == ("first token", "learned sink", "a")
        assert found.keys == ("b",)
        assert found.aside.tolist() == pytest.approx([5 / 7] * 3)
        assert found.mass.tolist() == [[1.0]] * 3
        assert repr(found) == ("SegmentMass(mass, 3 rows × 1 segments, (3, 1), without first token, learned sink, a)")
