"""Sums by segment of what weights carry: beside loops in float64, for every kind of attention; what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from allocations import Largest
from carrying import carrying, largest, parts_of
from hypothesis import given
from hypothesis import strategies as st
from reference import Case, cases
from tolerance import Bound, approx, rounding, sums, together
from torch import Tensor
from torch.testing import assert_close

from attnwidget import Attention, AttentionStack, segments
from attnwidget._engine.sources import CARRIED
from attnwidget.results import Segment, Segments
from examples import examples

STAGES = ("contribution", *CARRIED)
THREE = segments({"a": (1, 4), "b": (4, 6), "c": (6, 9)})


def pieces(names: list[str], length: int) -> Segments:
    """Segments of random names, one for each token but the first."""
    spans: dict[str, list[tuple[int, int]]] = {}
    for at, name in enumerate(names[: length - 1], 1):
        spans.setdefault(name, []).append((at, at + 1))
    return segments(spans, length=length) if spans else Segments((Segment("first token", 0, 1),), 1, "first token")


def loop(numbers: Tensor, may: Tensor, rows: list[list[int]], columns: list[list[int]]) -> Tensor:
    """The mean over the queries of a row, those that may attend to something, of the sum over the keys of a column."""
    values, allowed = numbers.tolist(), may.any(1).tolist()
    found = torch.full((len(rows), len(columns)), torch.nan, dtype=torch.float64)
    for s, queries in enumerate(rows):
        counted = [query for query in queries if allowed[query]]
        for t, keys in enumerate(columns if counted else []):
            found[s, t] = sum(sum(values[query][key] for key in keys) for query in counted) / len(counted)
    return found


def most(att: Attention, stage: str) -> float:
    """What a weight of 1 carries at most."""
    assert att.v is not None
    return float(att.v.double().norm(dim=-1).max()) if stage == "contribution" else largest(att, stage)


def added_up(within: Bound, att: Attention, stage: str) -> Bound:
    """The bound for a mean of sums over keys: weights sum to 1, so that sums are no larger than what one carries."""
    return together(within, sums(att.shape.K, 0.0, att.result_dtype), size=most(att, stage))


def bound(att: Attention, stage: str) -> Bound:
    return added_up(together(rounding(att)[stage], size=most(att, stage)), att, stage)


NAMES = st.lists(st.sampled_from("abcd"), min_size=40, max_size=40)


@examples(40)
@given(cases(longest=20, dtypes=(torch.float64, torch.float32, torch.bfloat16)), NAMES, NAMES, st.booleans())
def test_any_attention_is_as_the_definition(case: Case, of_keys: Any, of_queries: Any, has_sink: bool) -> None:
    (B, H, Q, _), (_, _, K, _) = case.q.shape, case.k.shape
    if has_sink:
        case.keywords["sinks"] = torch.linspace(-2, 2, H)
    att = case.attention()
    keys, queries = pieces(of_keys, K), pieces(of_queries, Q)
    rows, columns = ([one.positions(name).tolist() for name in one.distinct] for one in (queries, keys))
    for stage in STAGES:
        found = att.by_segment(queries, keys, batch=B - 1, stage=stage)  # type: ignore[arg-type]
        assert found.keys == (*keys.distinct, *(["learned sink"] if has_sink else []))
        for head in range(H):
            dense = case.dense(B - 1, head)
            numbers = dense[stage]
            if has_sink:
                both = torch.logaddexp(dense["normalizer"], case.keywords["sinks"][head].double())
                numbers = numbers * torch.exp(dense["normalizer"] - both)[:, None]
            values = found.values[head].double()
            within = together(*[case.rounding()[stage]] * 2, size=most(att, stage))
            wanted = loop(numbers, dense["allowed"], rows, columns)
            assert_close(values[:, : len(columns)], wanted, **added_up(within, att, stage), equal_nan=True)
            if has_sink:
                assert bool((values[:, -1].nan_to_num() == 0).all())  # a sink has no value to carry


def of(queries: int = 9, heads: int = 4, **rules: Any) -> Attention:
    make = torch.Generator().manual_seed(0)
    q = torch.randn(2, heads, queries, 8, generator=make)
    k, v = torch.randn(2, 2, 2, queries, 8, generator=make)
    return carrying(Attention(q, k, v, is_causal=True, **rules))


def test_logits_of_all_segments_are_what_the_head_adds() -> None:
    att, parts = of(window=4), parts_of(2, 4, 9, 8, torch.float32)
    found = att.by_segment([8], THREE, batch=1, stage="logit")
    for head in range(4):
        written = att.output(1, head)[8].double() @ parts["w_o"][head].double()
        wanted = written @ parts["direction"][1].double() / parts["scale"][1, 8].double()
        assert float(found.values[head, 0].double().sum()) == approx(float(wanted), bound(att, "logit"))


def test_what_is_set_aside_is_left_out_and_the_rest_stays_as_it_is() -> None:
    att = of()
    whole = att.by_segment("c", THREE, head=1, stage="saliency")
    without = att.by_segment("c", THREE, head=1, stage="saliency", without=("sink", "a"))
    assert whole.keys == ("first token", "a", "b", "c")
    assert without.keys == ("b", "c")
    assert torch.equal(without.sum, whole.sum[:, 2:])
    assert_close(without.aside, whole.sum[:, :2].sum(1))


def test_each_querys_own_key_is_set_aside() -> None:
    att = of()
    numbers = att.block("logit", head=2).double()
    numbers.diagonal().zero_()
    wanted = loop(numbers, att.block("allowed", head=2), [[6, 7, 8]], [[0], [1, 2, 3], [4, 5], [6, 7, 8]])
    found = att.by_segment("c", THREE, head=2, stage="logit", without="self")
    assert_close(found.sum.double(), wanted, **bound(att, "logit"))


def test_of_each_token_it_is_divided_by_the_keys() -> None:
    att = of()
    whole = att.by_segment(THREE, head=0, stage="logit")
    each = att.by_segment(THREE, head=0, stage="logit", measure="per_token")
    assert torch.equal(each.values, whole.sum / torch.tensor([1.0, 3, 2, 3]))


def test_a_stack_has_all_heads_of_all_layers() -> None:
    first, second = of(), of(heads=2)
    found = AttentionStack([first, second]).by_segment("c", THREE, stage="logit")
    assert found.shape == (2, 4, 1, 4)
    assert torch.equal(found.sum[0], first.by_segment("c", THREE, stage="logit").sum)
    assert torch.equal(found.sum[1, :2], second.by_segment("c", THREE, stage="logit").sum)
    assert bool(found.sum[1, 2:].isnan().all())


def test_records_say_what_was_summed() -> None:
    found = of().by_segment("c", THREE, head=0, stage="logit")
    record = found.records()[1]
    assert record.keys() == {"query", "key", "stage", "sum", "per_token", "aside", "tokens"}
    assert (record["stage"], record["key"], record["tokens"]) == ("logit", "a", 3)
    assert record["sum"] == float(found.sum[0, 1])
    assert repr(found) == "SegmentMass(sum of logit, 1 rows × 4 segments, (1, 4))"


def test_what_is_no_share_has_no_mass_and_no_lift() -> None:
    att = of()
    with pytest.raises(ValueError, match='logit are not shares that sum to 1: give measure="sum"'):
        att.by_segment(THREE, stage="logit", measure="mass")
    with pytest.raises(ValueError, match='saliency has none: give measure="sum"'):
        att.by_segment(THREE, stage="saliency", measure="lift")
    with pytest.raises(ValueError, match="value_norm has none"):
        _ = att.by_segment(THREE, stage="value_norm").lift
    with pytest.raises(ValueError, match='its mass: give measure="mass"'):
        att.by_segment(THREE, measure="sum")
    with pytest.raises(ValueError, match="its mass"):
        _ = att.by_segment(THREE).sum


def test_stages_before_the_weights_have_no_sums() -> None:
    with pytest.raises(ValueError, match="no stage is called 'scores'"):
        of().by_segment(THREE, stage="scores")  # type: ignore[arg-type]


def test_what_is_not_known_is_refused_by_the_name_of_its_layer() -> None:
    att = of()
    plain = Attention(att.q, att.k, att.v, is_causal=True)
    with pytest.raises(ValueError, match="logit is not known: the direction of a token is not known"):
        plain.by_segment(THREE, stage="logit")
    with pytest.raises(ValueError, match="layer 1: logit is not known"):
        AttentionStack([att, plain]).by_segment(THREE, stage="logit")


def test_no_matrix_of_queries_and_keys_is_made() -> None:
    make = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 1, 3000, 8, generator=make)
    att = carrying(Attention(q, k, v, is_causal=True))
    parts = segments({"a": (1, 1000), "b": (1000, 3000)})
    for stage in STAGES:
        with Largest() as seen:
            att.by_segment(parts, stage=stage)  # type: ignore[arg-type]
        assert seen.cells < 3000 * 3000 / 4


def test_weights_that_were_given_carry_the_same() -> None:
    att = of()
    weights = torch.stack([torch.stack([att.block(batch=b, head=h) for h in range(4)]) for b in range(2)])
    assert att.v is not None
    v = att.v.repeat_interleave(2, 1)
    same = Attention.from_weights(weights, v).carrying(**parts_of(2, 4, 9, 8, torch.float32))
    for stage in CARRIED:
        found = same.by_segment("c", THREE, head=3, stage=stage).sum  # type: ignore[arg-type]
        wanted = att.by_segment("c", THREE, head=3, stage=stage).sum  # type: ignore[arg-type]
        assert_close(found, wanted, **bound(att, stage))
