"""Two attentions side by side: every number is that of the dense matrices, the selection is one, errors say why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from carrying import carrying
from front_end import BLOCKED, NUMBER, FrontEnd, decode, decode_cells
from hypothesis import given
from hypothesis import strategies as st
from reference import Case, cases, dense
from tolerance import Bound, approx, exponentials, rounding, sums, together
from torch import Tensor, nn
from torch.testing import assert_close

from attnwidget import Attention, AttentionStack, AttentionWidget, capture, compare, load_sample
from attnwidget._engine import cost
from attnwidget._engine.level_cache import LevelKey
from attnwidget._engine.stages import MASKED
from attnwidget._messages.pictures import comparison, picture
from attnwidget.attention import STAGES
from examples import examples

HIDES = {"masked": torch.logical_and}  # elsewhere a blocked number is 0, or there is nothing blocked


def attentions(n: int = 6, count: int = 2, heads: int = 2, **second: Any) -> list[Attention]:
    """Attentions of the same tensors, the first without a mask, the others causal, or as said."""
    q, k, v = torch.randn(3, 1, heads, n, 8, generator=torch.Generator().manual_seed(n))
    return [Attention(q, k, v), *(Attention(q, k, v, **(second or {"is_causal": True})) for _ in range(count - 1))]


def stacks() -> dict[str, AttentionStack]:
    q, k, v = torch.randn(3, 2, 1, 3, 5, 8)
    layers = list(zip(q, k, v, strict=True))
    return {
        name: AttentionStack([Attention(*x, is_causal=name == "mask") for x in layers]) for name in ("no mask", "mask")
    }


def apart(*sides: Attention, stage: str = "weights") -> Bound:
    """The bound for B − A, and for either side, which go as float32."""
    size = 1.0 if stage == "weights" else max(rounding(att).score for att in sides)
    return together(*(rounding(att)[stage] for att in sides), sums(1), size=size)


def numbers(part: dict[str, Any]) -> tuple[Any, Any]:
    return decode_cells(part["values"], part["blocked"])


# The difference.


def expected(one: dict[str, Any], other: dict[str, Any], stage: str) -> tuple[Tensor, Tensor]:
    """B − A of two dense stages, and which cells have one."""
    a, b = one["allowed"], other["allowed"]
    there = torch.ones_like(a) if stage not in MASKED else a & b if stage == "masked" else a | b
    return other[stage] - one[stage], there


@given(cases(longest=24), st.integers(0, 2**16), st.sampled_from(STAGES), st.booleans())
@examples(120)
def test_the_difference_is_that_of_the_dense_matrices(case: Case, seed: int, stage: str, same: bool) -> None:
    (_, H, Q, _), (_, _, K, _) = case.q.shape, case.k.shape
    a, head = case.attention(), H - 1
    make = torch.Generator().manual_seed(seed)
    mask = torch.rand(Q, K, generator=make) > 0.3
    k = case.k if same else torch.randn(case.k.shape, generator=make).to(case.k.dtype)
    b = carrying(Attention(case.q, k, case.v, mask=mask, mask_dims="qk", scale=0.5))
    both = comparison.ComparedPair(a, b, *(comparison.together((n, n), (None, None), ("A", "B"), "") for n in (Q, K)))
    made = comparison.pictures(both, LevelKey(0, head, stage, "max"))
    group = head // (H // case.k.shape[1])
    at = (*case.q.shape[:2], 0, head)
    second = dense(case.q[0, head], k[0, group], case.v[0, group], allowed=mask, scale=0.5, at=at)
    wanted, there = expected(case.dense(0, head), second, stage)
    values, kinds = numbers(made["change"])
    size = max(float(x[stage].nan_to_num(0, 0, 0).abs().max()) for x in (case.dense(0, head), second))
    within = together(case.rounding()[stage], rounding(b)[stage], sums(1), size=size)  # sent as float32
    assert_close(torch.tensor(values[kinds == NUMBER]).double(), wanted[torch.tensor(kinds == NUMBER)], **within)
    assert (kinds == BLOCKED).tolist() == (~there).tolist()
    for side, stages in (("a", case.dense(0, head)), ("b", second)):
        shown, marks = numbers(made[side])
        hidden = ~stages["allowed"] if stage in MASKED else torch.zeros_like(stages["allowed"])
        assert (marks == BLOCKED).tolist() == hidden.tolist()
        seen = torch.tensor(shown[marks == NUMBER]).double()
        assert_close(seen, stages[stage][torch.tensor(marks == NUMBER)], **within)


@given(
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.integers(1, 12),
    st.sampled_from(STAGES),
    st.sampled_from(("max", "mean")),
    st.integers(0, 2**16),
)
@examples(80)
def test_a_bin_has_the_change_of_largest_size(
    shape: tuple[int, int], size: int, stage: str, pool: str, seed: int
) -> None:
    (Q, K), make = shape, torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(n, 4, generator=make) for n in (Q, K, K))
    a, b = (
        carrying(Attention(q, k, v, mask=torch.rand(Q, K, generator=make) > 0.5, mask_dims="qk")),
        carrying(Attention(q, k, v, is_causal=True)),
    )
    both = comparison.ComparedPair(a, b, *(comparison.together((n, n), (None, None), ("A", "B"), "") for n in (Q, K)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "PICTURE_SIZE", size)
        patch.setattr(comparison, "QUERIES", 7)
        patch.setattr(comparison, "KEYS", 5)
        made = comparison.pictures(both, LevelKey(0, 0, stage, pool))
    change = b.block(stage) - a.block(stage)
    there = torch.ones(Q, K).bool()
    if stage in MASKED:
        there = HIDES.get(stage, torch.logical_or)(a.block("allowed"), b.block("allowed"))
    values, kinds = numbers(made["change"])
    largest = max(float(att.block(stage).nan_to_num(0, 0, 0).abs().max()) for att in (a, b))
    within = together(rounding(a)[stage], rounding(b)[stage], sums(1), size=largest)
    wide, tall = made["key_bin"], made["query_bin"]
    for row in range(values.shape[0]):
        for column in range(values.shape[1]):
            at = slice(row * tall, (row + 1) * tall), slice(column * wide, (column + 1) * wide)
            inside = change[at][there[at]]
            if len(inside) == 0:
                assert kinds[row, column] == BLOCKED
                continue
            assert abs(values[row, column]) == approx(float(inside.abs().max()), within)
            assert float((inside - values[row, column]).abs().min()) <= within["atol"]
    for side, att in (("a", a), ("b", b)):
        seen = att.overview(size=size, stage=stage, pool=pool)
        shown, marks = numbers(made[side])
        open_bins = torch.tensor(marks != BLOCKED)
        if stage in MASKED:
            assert torch.equal(open_bins, seen.allowed)
        bound = together(rounding(att).pooled(stage, wide * tall), sums(1), size=largest)
        assert_close(torch.tensor(shown)[open_bins].float(), seen.values[open_bins], **bound)


def test_a_picture_of_512_is_cell_by_cell_and_fits_a_message() -> None:
    a, b = attentions(512, heads=1)
    w = compare(a, b)
    made = w.comparison
    assert (made["query_bin"], made["key_bin"], made["sampled"]) == (1, 1, None)
    assert sum(len(made[part]["values"]["data"]) for part in ("a", "b", "change")) <= 240 * 1024
    values, _ = numbers(made["change"])
    wanted = (b.block() - a.block()).numpy()
    assert abs(values - wanted).max() <= made["change"]["high"] / 2  # coarse, for the eye
    assert made["change"]["high"] == approx(wanted.max(), apart(a, b))
    assert compare(*attentions(600, heads=1)).comparison["query_bin"] == 2


def test_a_long_head_is_sampled_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "AT_ONCE", 1000)
    a, b = attentions(1100, heads=1)
    w = compare(a, b, query=7)
    made = w.comparison
    assert made["sampled"] == {"first": 1, "every": 3, "exact": 0}
    rows = range(1, 1100, 3)
    change = b.block(queries=rows) - a.block(queries=rows)
    values, kinds = numbers(made["change"])
    assert values.shape == (len(rows), 367)
    wanted = torch.nn.functional.pad(change, (0, -1100 % 3)).view(len(rows), -1, 3)
    largest = wanted.gather(2, wanted.abs().argmax(2, keepdim=True))[..., 0].numpy()
    assert abs(np.where(kinds == NUMBER, values - largest, 0)).max() < made["change"]["high"] / 2
    assert w.changes is not None
    w.query, w.key = None, 3
    assert w.changes is None  # a column takes all rows


def test_of_a_very_long_head_fewer_rows_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "AT_ONCE", 1000)
    monkeypatch.setattr(comparison, "MAX_SAMPLED_CELLS", 1100 * 100)
    made = compare(*attentions(1100, heads=1)).comparison
    assert (made["query_bin"], made["key_bin"], made["sampled"]["every"]) == (11, 11, 11)
    assert made["change"]["values"]["shape"] == [100, 100]


def test_nothing_as_large_as_a_long_head_is_held() -> None:
    q, k = torch.randn(2, 3000, 4)
    both = comparison.ComparedPair(
        Attention(q, k),
        Attention(q, k, is_causal=True),
        *[comparison.together((3000, 3000), (None, None), ("A", "B"), "")] * 2,
    )
    sizes: list[int] = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = func(*args, **(kwargs or {}))
            if isinstance(found, Tensor):
                sizes.append(found.numel())
            return found

    with Watch():
        comparison.pictures(both, LevelKey(0, 0, "weights", "max"))
    assert max(sizes) <= 512 * 2048


# The widget.


def test_the_numbers_of_the_pinned_query_are_exact() -> None:
    q, k, v, tokens, _ = load_sample("bank")
    a, b = (
        AttentionStack([Attention(*x, is_causal=causal) for x in zip(q, k, v, strict=True)]) for causal in (False, True)
    )
    w = compare({"no mask": a, "causal": b}, tokens=tokens, layer=5, head=7, query=14, key=5)
    made = w.changes
    places = decode(made["places"]).astype(int)
    one, other = (side[5].block(head=7, queries=14)[0] for side in (a, b))
    within = exponentials(float(rounding(a[5]).score))  # the same kernel's scores, over a row in one go or in blocks
    np.testing.assert_allclose(decode(made["a"]["values"]), one[places], **within)
    np.testing.assert_allclose(decode(made["b"]["values"]), other[places], **within)
    change = together(within, within, size=float(one.max() + other.max()))
    np.testing.assert_allclose(decode(made["change"]["values"]), (other - one)[places], **change)
    assert list(places) == torch.maximum(one, other).argsort(descending=True, stable=True)[:12].tolist()
    assert decode(made["b"]["blocked"]).tolist() == [key > 14 for key in places]
    assert made["a"]["blocked"] is not None
    rest = sorted(set(range(20)) - set(places))
    assert made["rest"]["count"] == len(rest)
    of_rest = together(within, sums(20), size=1.0)  # 1 less what is listed
    assert made["rest"]["a"] == approx(float(one[rest].sum()), of_rest)
    assert made["rest"]["b"] == approx(float(other[rest].sum()), of_rest)
    at = list(places).index(5)
    assert float(decode(made["change"]["values"])[at]) == approx(0.048929, together(change, {"rtol": 0, "atol": 5e-7}))


def test_what_is_pinned_is_listed_and_what_both_mask_is_counted() -> None:
    q, k, v = torch.randn(3, 40, 8)
    w = compare(Attention(q, k, v, window=30), Attention(q, k, v, is_causal=True, window=30), query=39, key=0)
    places = decode(w.changes["places"]).tolist()
    assert places[-1] == 0
    assert len(places) == 12
    assert w.changes["masked"] == 10
    assert w.changes["rest"]["count"] == 30 - 11
    w.query, w.key = None, 2
    assert w.changes["side"] == "key"
    weights = [att.block(keys=2)[:, 0] for att in w.attentions.values()]
    assert decode(w.changes["places"])[0] == int(torch.maximum(*weights).argmax())


def test_it_is_computed_only_while_it_is_looked_at() -> None:
    w = compare(*attentions())
    assert w.view == "compare"
    assert w.changes is None
    w.view = "heatmap"
    assert w.comparison is None
    w.view = "compare"
    w.query = 3
    assert w.comparison is not None
    assert w.changes["query"] == 3
    w.stage = "scores"
    assert w.comparison["stage"] == "scores"
    assert (numbers(w.comparison["change"])[0] == 0).all()  # of the same scores, by the same kernel


def test_the_selection_is_one() -> None:
    sides = stacks()
    w = compare(sides, query=2, key=1)
    for layer in (1, 0):
        for head in (2, 1):
            w.layer, w.head = layer, head
            a, b = (stack[layer].block(head=head) for stack in sides.values())
            assert (w.comparison["layer"], w.comparison["head"]) == (layer, head)
            within = apart(*(stack[layer] for stack in sides.values()))
            np.testing.assert_allclose(numbers(w.comparison["change"])[0], np.where(a + b > 0, b - a, np.nan), **within)
            assert (w.changes["layer"], w.changes["head"]) == (layer, head)
    assert torch.equal(w.weights(3), sides["no mask"][0].block(head=1, queries=3)[0])  # the same call


def test_each_of_several_is_compared_with_the_first() -> None:
    q, k, v = torch.randn(3, 5, 4)
    one, two, three = Attention(q, k, v), Attention(q, k, v, is_causal=True), Attention(q, k, v, window=2)
    w = compare(one, two, three, query=4)
    assert (w.sides, w.against) == (["A", "B", "C"], "B")
    w.against = "C"
    wanted = (three.block() - one.block()).numpy()
    values, kinds = numbers(w.comparison["change"])
    np.testing.assert_allclose(values[kinds == NUMBER], wanted[kinds == NUMBER], **apart(one, three))
    assert w.changes["against"] == "C"
    assert compare(one, two, three, against="C").comparison["against"] == "C"
    with pytest.raises(ValueError, match="'A' is compared with others, not 'A'"):
        w.against = "A"
    assert w.against == "C"


def test_a_capture_is_a_side() -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    tokens = torch.randn(1, 5, 8)
    cap = capture(attention).run(tokens, tokens, tokens)
    pair = compare({"as it is": cap, "one layer": cap.attention[0]})
    values, kinds = numbers(pair.comparison["change"])
    assert set(values[kinds == NUMBER].tolist()) == {0.0}
    with pytest.raises(TypeError, match="b is str: give an Attention, an AttentionStack, an AttentionWidget or a"):
        compare({"a": cap, "b": "cap"})


def test_other_rules_hold_for_all_sides() -> None:
    a, b = attentions()
    w = compare(a, b)
    w.what_if = {"scale": 1.0}
    wanted = (b.what_if({"scale": 1.0}).block() - a.what_if({"scale": 1.0}).block()).numpy()
    within = apart(*(att.what_if({"scale": 2.0}) for att in (a, b)))
    np.testing.assert_allclose(numbers(w.comparison["change"])[0], wanted, **within)
    with pytest.raises(IndexError, match="A: key 99"):
        w.what_if = {"drop_keys": [99]}
    changed = AttentionWidget.from_attention(a, what_if={"scale": 2.0})
    wanted = a.what_if({"scale": 2.0}).block().numpy()
    np.testing.assert_allclose(numbers(compare(a, changed).comparison["b"])[0], wanted, **within)


def test_only_stages_that_all_sides_have_are_there() -> None:
    a, b = attentions()
    w = compare(a, Attention.from_weights(b.block(head=0)[None, None].expand(1, 2, -1, -1)))
    assert w.facts["stages"] == ["weights"]
    with pytest.raises(ValueError, match="B: only weights were given, so scores"):
        w.stage = "scores"
    assert compare(a, b).facts["stages"] == ["scores", "scaled", "masked", "weights", "contribution"]


def test_other_numbers_types_and_no_numbers() -> None:
    q, k, v = torch.randn(3, 4, 8)
    wide = Attention(q.double(), k.double(), v.double())
    w = compare(Attention(q.half(), k.half(), v.half()), wide)
    wanted = wide.block() - w.attention.block().double()
    np.testing.assert_allclose(numbers(w.comparison["change"])[0], wanted.numpy(), **apart(wide, w.attention))
    broken = q.clone()
    broken[1] = torch.nan
    w = compare(Attention(q, k), Attention(broken, k), query=1)
    values, _ = numbers(w.comparison["change"])
    assert np.isnan(values[1]).all()
    assert np.isfinite(values[[0, 2, 3]]).all()
    assert w.changes["rest"]["b"] == 0


# Different lengths.

SHORT, LONG = ["[CLS]", "a", "cat", "[SEP]"], ["[CLS]", "a", "black", "cat", "sleeps", "[SEP]"]


def of_lengths(**show: Any) -> Any:
    make = torch.Generator().manual_seed(1)
    sides = [Attention(*torch.randn(3, n, 8, generator=make)) for n in (len(SHORT), len(LONG))]
    return compare(dict(zip(("short", "long"), sides, strict=True)), tokens={"short": SHORT, "long": LONG}, **show)


def test_different_lengths_are_brought_together_by_token() -> None:
    w = of_lengths(query=2)
    made = w.comparison
    assert (made["queries"], made["keys"]) == (4, 4)
    for axis in ("query_places", "key_places"):
        assert decode(made[axis]["a"]).tolist() == [0, 1, 2, 3]
        assert decode(made[axis]["b"]).tolist() == [0, 1, 3, 5]
        assert made[axis]["only"] == [0, 2]
    short, long = (att.block() for att in w.attentions.values())
    common = torch.tensor([0, 1, 3, 5])
    within = apart(*w.attentions.values())
    np.testing.assert_allclose(numbers(made["change"])[0], long[common][:, common] - short, **within)
    assert w.changes["only"]["a"] == {"count": 0, "sum": 0.0}
    assert w.changes["only"]["b"]["count"] == 2
    assert w.changes["only"]["b"]["sum"] == approx(float(long[3, [2, 4]].sum()), within)


def test_tokens_may_come_from_widgets_and_change() -> None:
    short, long = (AttentionWidget(*torch.randn(2, len(t), 8), tokens=t) for t in (SHORT, LONG))
    w = compare(long, short, query=2)
    assert decode(w.comparison["query_places"]["a"]).tolist() == [0, 1, 3, 5]
    assert w.changes is None  # "black" has none to be compared with
    w.query = 3
    assert w.changes["query"] == 3
    w.tokens = ["[CLS]", "cat", "cat", "cat", "sleeps", "[SEP]"]
    assert decode(w.comparison["query_places"]["b"]).tolist() == [0, 2, 3]


def test_other_tokens_at_the_same_places_are_counted() -> None:
    a, b = attentions(3)
    w = compare(a, b, tokens={"A": ["I", "have", "it"], "B": ["I", "own", "it"]})
    assert w.comparison["query_places"] is None
    assert w.comparison["differ"] == [1, 1]
    assert compare(a, b, tokens=["I", "have", "it"]).comparison["differ"] == [0, 0]


# Errors.

Q = torch.randn(2, 3, 4, 8)


@pytest.mark.parametrize(
    ("sides", "show", "error", "said"),
    [
        ((), {}, ValueError, "nothing was given to compare: give two, compare"),
        ((Attention(Q, Q),), {}, ValueError, "one was given"),
        (({"a": Attention(Q, Q)},), {}, ValueError, "one was given"),
        (({1: Attention(Q, Q), "b": Attention(Q, Q)},), {}, TypeError, "the name of a side is 1"),
        ((Attention(Q, Q), Q), {}, TypeError, "B is Tensor: give an Attention"),
        ((Attention(Q, Q), Attention(Q[:, :2], Q[:, :2])), {}, ValueError, "A has 3 heads but B has 2"),
        ((Attention(Q, Q), Attention(Q[:1], Q[:1])), {}, ValueError, "A has 2 samples but B has 1"),
        ((AttentionStack([Attention(Q, Q)] * 2), Attention(Q, Q)), {}, ValueError, "A has 2 layers but B has 1"),
        ((Attention(Q, Q), Attention(Q[:, :, :3], Q)), {}, ValueError, "A has 4 queries but B has 3: give tokens"),
        ((Attention(Q, Q), Attention(Q, Q[:, :, :3])), {}, ValueError, "A has 4 keys but B has 3"),
        ((Attention(Q, Q), Attention(Q, Q)), {"tokens": {"C": ["a"]}}, ValueError, "tokens has 'C', which is not a"),
        ((Attention(Q, Q), Attention(Q, Q)), {"tokens": {"B": ["a"]}}, ValueError, r"tokens\['B'\] has 1 string"),
        ((Attention(Q, Q), Attention(Q, Q)), {"titel": ""}, TypeError, "did you mean 'title'"),
        ((Attention(Q, Q), Attention(Q, Q)), {"against": "C"}, ValueError, "give one of 'B'"),
        ((Attention(Q, Q), Attention(Q, Q)), {"head": 3}, IndexError, "head 3 is not there"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared(sides: Any, show: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        compare(*sides, **show)


def test_sequences_with_nothing_in_common_and_too_long_ones() -> None:
    a, b = Attention(*torch.randn(2, 2, 4)), Attention(*torch.randn(2, 3, 4))
    with pytest.raises(ValueError, match="and no token in common"):
        compare(a, b, tokens={"A": ["a", "b"], "B": ["c", "d", "e"]})
    with pytest.raises(ValueError, match="too many to match: give at most 4,096"):
        comparison.together((5000, 4999), (["a"] * 5000, ["a"] * 4999), ("A", "B"), "queries")


def test_a_comparison_stays_as_it_is() -> None:
    w = compare(*attentions())
    with pytest.raises(TypeError, match="call compare again"):
        w.attention = w.attention
    with pytest.raises(TypeError, match="call compare again"):
        w.update(*torch.randn(2, 4, 8))
    with pytest.raises(TypeError, match=r"call compare\(a, b\)"):
        type(w).from_attention(w.attention)


# The front-end.


def test_a_front_end_may_choose_and_is_told_why_not(front_end: FrontEnd) -> None:
    w = compare(*attentions(count=3))
    state = front_end.state(w)
    assert state["sides"] == ["A", "B", "C"]
    assert state["comparison"]["error"] is None
    w.set_state({"against": "C", "head": 1})
    assert (w.against, w.head, w.comparison["against"]) == ("C", 1, "C")
    for wrong in ("D", None, 3, ["B"]):
        w.set_state({"against": wrong})
        assert w.against == "C"
    assert len(front_end.refusals(w)) == 4
    w.set_state({"sides": ["x"], "comparison": None, "changes": None})
    assert w.sides == ["A", "B", "C"]
    assert w.comparison is not None


def test_the_kernel_says_what_changes_most_among_some_places(front_end: FrontEnd) -> None:
    w = compare(*attentions())
    ask = {"id": "1", "kind": "change", "layer": 0, "batch": 0, "head": 1, "stage": "weights", "against": "B"}
    change = w.attentions["B"].block(head=1) - w.attentions["A"].block(head=1)
    (reply,) = front_end.ask(w, {**ask, "queries": [1, 4], "keys": [0, 6]})
    part = change[1:4]
    at = int(part.abs().argmax())
    assert (reply["query"], reply["key"]) == (1 + at // 6, at % 6)
    within = apart(*w.attentions.values())
    assert reply["value"] == approx(float(part.flatten()[at]), within)
    assert reply["value"] == approx((reply["b"] or 0) - reply["a"], within)
    (blocked,) = front_end.ask(w, {**ask, "queries": [0, 1], "keys": [3, 4]})
    assert blocked["b"] is None
    assert blocked["value"] == approx(-blocked["a"], within)
    for wrong in (
        {"against": "A"},
        {"against": "C"},
        {"queries": [0, 7]},
        {"queries": [2, 2]},
        {"keys": None},
        {"stage": "x"},
    ):
        (refused,) = front_end.ask(w, {**ask, "queries": [0, 1], "keys": [0, 1], **wrong})
        assert refused["ok"] is False, wrong
    plain = AttentionWidget(*torch.randn(2, 4, 8))
    (refused,) = front_end.ask(plain, {**ask, "head": 0, "queries": [0, 1], "keys": [0, 1]})
    assert "compare(a, b)" in refused["error"]


def test_what_cannot_be_computed_is_said(front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    w = compare(*attentions())

    def fails(*_: Any) -> None:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(comparison, "pictures", fails)
    w.head = 1
    assert w.comparison["error"] == "CUDA out of memory"
    monkeypatch.undo()
    w.head = 0
    assert w.comparison["error"] is None


def test_is_long_of_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "AT_ONCE", 150_000)
    a, b = attentions(600, heads=1)
    assert picture.is_long(a, LevelKey(0, 0, "weights", "max"))
    assert compare(b, a).comparison["sampled"] is not None


def test_a_widget_that_shows_words_under_other_rules_is_compared_piece_by_piece() -> None:
    q, k, v = torch.randn(3, 4, 8)
    w = AttentionWidget(q, k, v, tokens=["he", "##llo", "you", "."], pieces="words", what_if={"scale": 1.0})
    both = compare({"rules": w, "none": Attention(q, k, v)}, query=1)
    assert both.tokens == ["he", "##llo", "you", "."]
    torch.testing.assert_close(both.weights(1), Attention(q, k, v, scale=1.0).block(queries=1)[0])
