"""Some rows of an output, computed again from q, k, v and the rules of its call: right ones pass, others do not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from reference import dense
from torch import Tensor

from attnwidget._capture.call.call_rules import CallRules
from attnwidget._capture.call.flex_attention import ScoreMod
from attnwidget._capture.verify import verification
from attnwidget._capture.verify.noise import Precision
from attnwidget._capture.verify.verification import (
    DroppedWeights,
    OutputSample,
    RowsOfOutput,
    differ,
    differs,
    is_changed_by_rounding,
    rows_to_compare,
    sample_output,
    sampled_rows,
)
from attnwidget._rules.row_spans import Spans

B, H, G, Q, K, D, DV = 4, 6, 2, 7, 11, 5, 3
SLOPES = torch.tensor([0.3, -0.2, 0.7, 0.1, -0.5, 0.4])


def drawn(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def chance(*sizes: int) -> Tensor:
    found = torch.rand(sizes, generator=torch.Generator().manual_seed(sum(sizes))) > 0.4
    found[..., 0] = True
    return found


def tensors() -> tuple[Tensor, Tensor, Tensor]:
    return drawn(B, H, Q, D), drawn(B, G, K, D) + 0.1, drawn(B, G, K, DV)


def spans() -> Spans:
    starts = torch.arange(B)[:, None, None] + torch.arange(H)[:, None] % 2 + torch.zeros(Q)
    stops = starts + 2 + torch.arange(Q)
    return Spans(starts.int(), stops.clamp(max=K).int())


def by_sample_and_head(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return (kv_idx <= q_idx + h) & (kv_idx >= b - 1)


def sloped(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + SLOPES[h] * (kv_idx - q_idx) + b * 0.1 * (kv_idx % 2)


HOWS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "negative scale": lambda: {"scale": -0.7},
    "softcap": lambda: {"softcap": 0.8, "scale": 1.5},
    "causal": lambda: {"is_causal": True},
    "mask": lambda: {"mask": chance(B, H, Q, K)},
    "mask of samples": lambda: {"mask": chance(B, 1, 1, K)},
    "mask of heads": lambda: {"mask": chance(1, H, 1, K)},
    "floats": lambda: {"mask": drawn(B, 1, Q, K).masked_fill(~chance(B, 1, Q, K), -torch.inf)},
    "lowest": lambda: {"mask": torch.zeros(1, H, Q, K).masked_fill(~chance(1, H, Q, K), torch.finfo().min)},
    "spans": lambda: {"mask": spans()},
    "function": lambda: {"mask": by_sample_and_head},
    "score function": lambda: {"bias": ScoreMod(sloped)},
    "bias": lambda: {"bias": drawn(1, H, Q, K), "is_causal": True},
    "sinks": lambda: {"sinks": torch.tensor([0.5, -2.0, 1.0, 3.0, 0.0, -1.0]), "scale": 0.9},
}


def written_out(q: Tensor, k: Tensor, v: Tensor, how: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The output (B, H, Q, Dv) and the weights (B, H, Q, K) in float64, by the book."""
    mask, bias, sinks = how.get("mask"), how.get("bias"), how.get("sinks")
    index = [torch.arange(n).view([-1 if i == axis else 1 for i in range(4)]) for axis, n in enumerate((B, H, Q, K))]
    allowed, added = torch.ones(B, H, Q, K, dtype=torch.bool), torch.zeros(B, H, Q, K, dtype=torch.float64)
    if isinstance(mask, Spans):
        allowed = (index[3] >= mask.starts[..., None]) & (index[3] < mask.stops[..., None])
    elif isinstance(mask, Tensor):
        allowed = allowed & (mask if mask.dtype is torch.bool else mask > torch.finfo().min)
        added = added if mask.dtype is torch.bool else added + mask.double().masked_fill(~(mask > torch.finfo().min), 0)
    elif mask is not None:
        allowed = allowed & mask(*index)
    if how.get("is_causal"):
        allowed = allowed & (index[3] <= index[2])
    if isinstance(bias, Tensor):
        added = added + bias
    elif bias is not None:
        added = added + bias(torch.zeros(B, H, Q, K, dtype=torch.float64), *index)
    weights = torch.zeros(B, H, Q, K, dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            g = h // (H // G)
            rules = {"scale": how.get("scale") or D**-0.5, "softcap": how.get("softcap")}
            found = dense(q[b, h], k[b, g], v[b, g], allowed=allowed[b, h], bias=added[b, h], **rules, at=(B, H, b, h))
            weights[b, h] = found["weights"]
            if sinks is not None:
                left = torch.sigmoid(found["normalizer"] - sinks[h].double())
                weights[b, h] *= left[:, None]
    values = v.double().repeat_interleave(H // G, 1)
    return weights @ values, weights


def rules_of(how: dict[str, Any]) -> CallRules:
    return CallRules(Q, K, 0, bool(how.get("is_causal")), how.get("mask"), how.get("bias"))


def is_refused(sample: OutputSample | None, how: dict[str, Any], q: Tensor, k: Tensor, v: Tensor) -> bool:
    assert sample is not None
    of_scores = {name: how.get(name) for name in ("scale", "softcap", "sinks")}
    return bool(differs(sample, q, k, v, **of_scores, rules=rules_of(how), first=0))


@pytest.mark.parametrize("kind", HOWS)
def test_an_output_passes_where_it_is_that_of_its_rules_alone(kind: str) -> None:
    (q, k, v), how = tensors(), HOWS[kind]()
    output, weights = written_out(q, k, v, how)
    assert not is_refused(sample_output(output.float(), q, k, v), how, q, k, v)
    dropped = weights * 1.25
    dropped[..., 1::3] = 0
    assert not is_refused(sample_output(DroppedWeights(dropped.float(), 0.2), q, k, v), how, q, k, v)
    assert is_refused(sample_output(DroppedWeights(dropped.float(), 0.25), q, k, v), how, q, k, v)
    for b, h, row in ((0, 0, 0), (B - 1, H - 1, Q - 1), (0, 3, Q // 2), (B - 1, 2, Q // 2)):
        for change in (3e-3, -3e-3):
            other = output.clone()
            other[b, h, row, 1] += change
            if not weights[b, h, row].any():
                continue  # nothing is asked of a row without keys
            assert is_refused(sample_output(other.float(), q, k, v), how, q, k, v), (b, h, row)


@pytest.mark.parametrize("kind", [kind for kind in HOWS if kind != "plain"])
def test_an_output_of_other_rules_is_refused(kind: str) -> None:
    (q, k, v), how = tensors(), HOWS[kind]()
    plain, _ = written_out(q, k, v, {})
    assert is_refused(sample_output(plain.float(), q, k, v), how, q, k, v)
    output, _ = written_out(q, k, v, how)
    assert is_refused(sample_output(output.float(), q, k, v), {}, q, k, v)
    for axis in (0, 1, 2):
        assert is_refused(sample_output(output.flip(axis).float(), q, k, v), how, q, k, v), axis


def test_a_call_of_a_record_is_held_to_its_own_queries_and_keys() -> None:
    """The call begins at query 2 of the record and at key 3."""
    q, k, v = tensors()
    own_q, own_k, own_v = q[:, :, 2:6], k[:, :, 3:9], v[:, :, 3:9]
    output = torch.nn.functional.scaled_dot_product_attention(own_q, own_k, own_v, enable_gqa=True)
    sample = sample_output(output, own_q, own_k, own_v)
    assert sample is not None
    assert (sample.rows, sample.samples, sample.heads) == ([*range(4)], [*range(B)], [*range(H)])
    how: dict[str, Any] = {"scale": None, "softcap": None}
    rules = CallRules(4, 6, 3, False, None, None)
    assert not differs(sample, q, k, v, **how, rules=rules, first=2)
    for first, of_keys, keys in ((1, 3, 6), (3, 3, 6), (2, 2, 6), (2, 4, 6), (2, 3, 5), (2, 3, 7)):
        assert differs(sample, q, k, v, **how, rules=CallRules(4, keys, of_keys, False, None, None), first=first)


def test_only_what_has_the_shape_of_the_output_is_sampled() -> None:
    q, k, v = tensors()
    right = drawn(B, H, Q, DV)
    assert sample_output(right, q, k, v) is not None
    for wrong in (None, right[:-1], right[:, :-1], right[:, :, :-1], right[..., :-1], right.transpose(1, 2), (right,)):
        assert sample_output(wrong, q, k, v) is None
    assert sample_output(right[:, :, :0], q[:, :, :0], k, v) is None
    assert sample_output(DroppedWeights(right, 0.1), q, k, v) is None
    of_rows = sample_output(RowsOfOutput(right[:, :, [0, 3, 6]]), q, k, v)
    assert of_rows is not None
    assert torch.equal(of_rows.output, right[:, :, [0, 3, 6]])
    assert sample_output(RowsOfOutput(right[:, :, :2]), q, k, v) is None
    chosen = sample_output(right, q, k, v, [1, 2], copied=False)
    assert chosen is not None
    assert torch.equal(chosen.output, right[:, :, 1:3])
    copied = sample_output(right, q, k, v, [1, 2])
    assert copied is not None
    right[0, 0, 1] = 9
    assert (chosen.output[0, 0, 0] == 9).all()
    assert not (copied.output == 9).any()


def test_the_first_the_middle_and_the_last_row_are_compared() -> None:
    assert [sampled_rows(n) for n in (1, 2, 3, 8, 9)] == [[0], [0, 1], [0, 1, 2], [0, 4, 7], [0, 4, 8]]


def test_all_rows_of_a_small_call_are_verified_and_of_a_larger_one_some_of_all_parts() -> None:
    assert verification.drawn(3, 2, 4, 11, 11, 8) == ([0, 1, 2], [0, 1], [*range(11)])
    samples, groups, rows = verification.drawn(8, 12, 1, 128, 128, 32)
    assert [one - samples[0] for one in samples] == [0, 3, 6]  # a view has them
    assert {0, 64, 127} <= {*rows}
    assert 3 * 12 * 3 <= len(samples) * len(groups) * len(rows) <= verification.LEAST_CELLS // 128
    others = [verification.drawn(40, 8, 4, 300, n, 64)[0] for n in range(300, 320)]
    assert len({tuple(one) for one in others}) > 1, "drawn, not always the same"
    samples, groups, rows = verification.drawn(1, 8, 4, 131_072, 131_072, 128)
    assert len(samples) * len(groups) <= 2
    assert len(rows) == 3


def test_of_very_many_keys_some_heads_are_compared_with_all_that_share_their_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    q, k, v = drawn(3, 10, Q, D), drawn(3, 5, K, D), drawn(3, 5, K, DV)
    output = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    for numbers, groups in ((10**6, 5), (2 * K * D * 4, 4), (2 * K * D * 2, 2), (1, 1)):
        monkeypatch.setattr(verification, "KEY_NUMBERS", numbers)
        verification.drawn.cache_clear()
        sample = sample_output(output, q, k, v)
        assert sample is not None
        assert len(sample.heads) == 2 * groups
        assert sample.heads == [head for group in sample.heads[::2] for head in (group, group + 1)]
        rules = CallRules(Q, K, 0, False, None, None)
        assert not differs(sample, q, k, v, scale=None, softcap=None, rules=rules, first=0)
        sample.output[-1, -1, -1] += 0.01
        assert differs(sample, q, k, v, scale=None, softcap=None, rules=rules, first=0)


@pytest.mark.parametrize("order", [[2, 3, 0, 1], [3, 3, 0], [1, 2]])
def test_rows_follow_samples_that_change_places(order: list[int]) -> None:
    q, k, v = tensors()
    output = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    sample = sample_output(output, q, k, v)
    assert sample is not None
    sample.reorder(order)
    moved = [x[order] for x in (q, k, v)]
    assert len(sample.samples) == len({*order})
    rules = CallRules(Q, K, 0, False, None, None)
    if sample.samples:
        assert not differs(sample, *moved, scale=None, softcap=None, rules=rules, first=0)
        sample.samples = [(one + 1) % len(order) for one in sample.samples]
        assert differs(sample, *moved, scale=None, softcap=None, rules=rules, first=0)


def test_layers_are_alike_only_where_all_is() -> None:
    """What makes two layers' outputs one product."""
    (q, k, v), rows = tensors(), drawn(B, H, Q, DV)
    one = sample_output(rows, q, k, v)
    assert one is not None
    kind = rows_to_compare(one, q, k, v).kind
    assert rows_to_compare(replace(one), q + 1, k, v).kind == kind
    assert rows_to_compare(one, q, k, v, slice(0, K)).kind == kind
    others = [
        rows_to_compare(one, q, k[:, :, 1:], v[:, :, 1:]),
        rows_to_compare(one, q, k, v.double()),
        rows_to_compare(one, q, k, v, slice(1, K)),
        rows_to_compare(one, q, k, v, slice(0, K - 1)),
        *(
            rows_to_compare(replace(one, **change), q, k, v)
            for change in (
                {"rows": [0, 3, 5]},
                {"samples": [0, 1]},
                {"precision": Precision(1.0, 0, 0)},
                {"dropout": 0.1},
            )
        ),
    ]
    assert kind not in {other.kind for other in others}


def test_each_of_several_layers_with_rules_is_compared_by_its_own_numbers() -> None:
    how, rows = {"scale": -0.4, "softcap": 2.0, "sinks": SLOPES}, []
    for layer in range(3):
        q, k, v = (x + layer for x in tensors())
        output, _ = written_out(q, k, v, how)
        output[B - 1, H - 1, Q - 1] += 0.05 * (layer == 1)
        sample = sample_output(output.float(), q, k, v)
        assert sample is not None
        rows.append(rows_to_compare(sample, q, k, v))
    assert differ(rows, **how, rules=rules_of({})).tolist() == [False, True, False]


# Types that are too short.


@pytest.mark.parametrize(
    ("dtype", "size", "is_changed"),
    [
        (torch.float16, 1.0, False),
        (torch.float16, 60.0, True),
        (torch.float16, 1e5, True),  # beyond what it holds
        (torch.bfloat16, 3.0, False),
        (torch.bfloat16, 60.0, True),
        (torch.float32, 1e6, False),
        (torch.float64, 1e6, False),
    ],
)
def test_a_type_changes_weights_by_the_size_of_scores(dtype: torch.dtype, size: float, is_changed: bool) -> None:
    q, k, _ = tensors()
    assert is_changed_by_rounding(size * q, size * k, None, dtype) == is_changed
    assert is_changed_by_rounding(-size * q, size * k, None, dtype) == is_changed
    if 1 < size < 1e4:
        assert not is_changed_by_rounding(size * q, size * k, 1e-6, dtype)
        assert not is_changed_by_rounding(size * q, size * k, -1e-6, dtype)
        assert is_changed_by_rounding(size * q, size * k, -1.0, dtype) == is_changed


def test_the_share_of_a_weight_that_a_type_may_change_is_one_half() -> None:
    """A score of 2,048 + 1 is 2,048 in float16: a change by 1, more than log 2; with half the scale, it is less."""
    q, k = torch.tensor([[[[1.0]]]]), torch.tensor([[[[2049.0], [1.0]]]])
    assert is_changed_by_rounding(q, k, 1.0, torch.float16)
    assert not is_changed_by_rounding(q, k, 0.5, torch.float16)
    assert is_changed_by_rounding(q, k, -math.log(2) - 1e-3, torch.float16)
    assert not is_changed_by_rounding(q, k, math.log(2) - 1e-3, torch.float16)
    assert not is_changed_by_rounding(q[:, :, :0], k, 1.0, torch.float16)
    assert not is_changed_by_rounding(q * torch.nan, k, 1.0, torch.float16)
    last = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0])[None, None, :, None]  # only the last of five rows is large
    assert is_changed_by_rounding(last, k, 1.0, torch.float16)
    assert is_changed_by_rounding(last.flip(2), k, 1.0, torch.float16)


def test_a_type_of_more_range_and_fewer_digits_is_looked_at_too_and_so_is_the_size_of_a_head() -> None:
    q, k, _ = tensors()
    assert is_changed_by_rounding((60 * q).half(), (60 * k).half(), None, torch.bfloat16)
    assert not is_changed_by_rounding((60 * q).half(), (60 * k).half(), None, torch.float32)
    own, other = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 2, 4)
    own[..., 0], other[0, 0, :, 0] = 1.0, torch.tensor([2049.0, 1.0])
    assert not is_changed_by_rounding(own, other, None, torch.float16)  # by 1 / √4
    assert is_changed_by_rounding(own, other, 1.0, torch.float16)
    assert is_changed_by_rounding(own[..., :1], other[..., :1], None, torch.float16)
