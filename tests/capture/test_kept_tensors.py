"""What is kept of tensors while a text grows: beside plain tensors that are cut and joined; all sizes differ."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attnwidget._capture.call.call_rules import CallRules
from attnwidget._capture.call.observed_call import ObservedCall
from attnwidget._capture.records import kept_tensors
from attnwidget._capture.records.kept_tensors import GrowingTensor, TensorKeeper, bytes_of_mask
from attnwidget._rules.row_spans import Spans

B, H, G, Q, K, D, DV = 2, 6, 3, 5, 7, 4, 8


def some(length: int, seed: int = 0) -> Tensor:
    return torch.randn(B, G, length, D, generator=torch.Generator().manual_seed(length + 100 * seed))


# Tensors that grow.


@pytest.mark.parametrize("is_copy", [True, False])
@pytest.mark.parametrize("at_once", [1, 2, 64])
def test_a_tensor_that_grows_has_what_was_appended_and_not_what_was_dropped(
    is_copy: bool, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_tensors, "APPENDED", at_once)
    first = some(7)
    given = first.clone()
    kept, whole = GrowingTensor(first, is_copy=is_copy), first.clone()
    assert kept.version() == (None if is_copy else 0)
    for step, (add, drop) in enumerate(((1, 0), (1, 0), (2, 3), (1, 0), (30, 0), (1, 2), (1, 0))):
        new = some(add, step + 1)
        kept.append(new)
        whole = torch.cat([whole, new], 2)
        new.zero_()  # what was appended is a copy
        assert (kept.length, kept.shape) == (whole.shape[2], (B, G, whole.shape[2], D))
        assert kept.nbytes == whole.numel() * 4
        assert torch.equal(kept.view(), whole)
        assert torch.equal(kept.view(3), whole[:, :, 3:])
        kept.shorten(drop)
        whole = whole[:, :, : whole.shape[2] - drop]
    assert torch.equal(first, given)  # nothing is written into the model's own
    assert kept.version() is None
    other = kept.copy()
    other.append(some(1, 50))
    assert torch.equal(kept.view(), whole)
    trimmed = kept.trim()
    assert torch.equal(trimmed, whole)
    assert trimmed.untyped_storage().nbytes() == trimmed.numel() * 4
    kept.append(some(2, 51))
    assert torch.equal(trimmed, whole)  # later growth leaves it alone
    assert torch.equal(kept.trim(), torch.cat([whole, some(2, 51)], 2))
    assert torch.equal(other.trim(), torch.cat([whole, some(1, 50)], 2))


def test_places_of_a_growing_tensor_are_kept_and_rows_are_taken() -> None:
    kept, whole = GrowingTensor(some(7), is_copy=False), torch.cat([some(7), some(1, 3)], 2)
    kept.append(some(1, 3))
    rows = torch.tensor([[1, 0, 0, 1, 1, 0, 1, 1], [0, 0, 1, 1, 0, 1, 0, 0], [1] * 8])
    taken = kept.take(rows).view()
    for sample in range(3):
        for at in range(8):
            assert torch.equal(taken[sample, :, at], whole[rows[sample, at], :, at])
    kept.keep([1, 4, 7])
    assert torch.equal(kept.view(), whole[:, :, [1, 4, 7]])
    kept.append(some(1, 4))
    assert torch.equal(kept.view(), torch.cat([whole[:, :, [1, 4, 7]], some(1, 4)], 2))
    assert torch.equal(kept.copy().view(2), torch.cat([whole[:, :, 7:], some(1, 4)], 2))


def test_changes_of_the_models_own_tensor_are_counted() -> None:
    x = some(7)
    own, copied = GrowingTensor(x, is_copy=False), GrowingTensor(x, is_copy=True)
    x.mul_(2)
    assert (own.version(), copied.version()) == (1, None)
    with torch.inference_mode():
        assert GrowingTensor(some(7), is_copy=False).version() is None


# How tensors are kept.


@pytest.mark.parametrize("clone", [True, False])
def test_a_tensor_is_kept_as_a_copy_or_as_it_is(clone: bool) -> None:
    keeper, x = TensorKeeper(clone=clone), some(7).requires_grad_()
    kept = keeper.tensor(x)
    assert torch.equal(kept, x)
    assert not kept.requires_grad
    assert (kept.data_ptr() == x.data_ptr()) == (not clone)
    part = x[:, 1:]
    of_part = keeper.tensor(part)
    assert torch.equal(of_part, part)
    assert of_part.is_contiguous()
    assert of_part.data_ptr() != part.data_ptr()  # which would keep all of x
    short = TensorKeeper(clone=clone, dtype=torch.float16)
    assert short.tensor(x).dtype is short.converted(x).dtype is torch.float16
    assert keeper.converted(x) is x
    assert short.parameter(x).dtype is torch.float32
    assert (keeper.parameter(x).data_ptr() == x.data_ptr()) == (not clone)


def test_the_room_that_a_call_takes_is_known_before() -> None:
    call = ObservedCall(torch.zeros(B, H, Q, D), some(K), torch.zeros(B, G, K, DV))
    q, k, v = B * H * Q * D, B * G * K * D, B * G * K * DV
    assert TensorKeeper().size_of(call) == 4 * (q + k + v)
    assert TensorKeeper(values=False).size_of(call) == 4 * (q + k)
    assert TensorKeeper(dtype=torch.float16).size_of(call) == 2 * (q + k + v)
    assert TensorKeeper().size_of(call, 2) == 4 * 2 * B * (H * D + G * D + G * DV)
    call.v = None
    assert TensorKeeper().size_of(call) == 4 * (q + k)


# Masks.


def spans_of(mask: Any, queries: int = Q, keys: int = K) -> Tensor:
    assert isinstance(mask, Spans)
    places = torch.arange(keys)
    return (places >= mask.starts[..., None]) & (places < mask.stops[..., None])


@pytest.mark.parametrize("kind", ["bool", "floats", "lowest"])
def test_a_mask_whose_rows_are_runs_is_kept_as_where_they_start_and_end(kind: str) -> None:
    allowed = (torch.arange(K) <= torch.arange(Q)[:, None] + torch.arange(B)[:, None, None])[:, None]
    blocked = -torch.inf if kind == "floats" else torch.finfo(torch.float32).min
    mask = allowed if kind == "bool" else torch.zeros(B, 1, Q, K).masked_fill(~allowed, blocked)
    kept = TensorKeeper().mask(mask)
    assert torch.equal(spans_of(kept).expand(B, 1, Q, K), allowed)
    assert bytes_of_mask(kept) == kept.starts.nbytes + kept.stops.nbytes
    other = TensorKeeper().mask(mask.expand(B, H, Q, K))  # expanded: one head holds all
    assert torch.equal(spans_of(other).expand(B, 1, Q, K), allowed)
    assert other.starts.shape[1] == 1


@pytest.mark.parametrize("added", [0.5, -3.0])
def test_a_mask_that_adds_numbers_or_has_gaps_is_kept_whole(added: float) -> None:
    floats = torch.zeros(B, 1, Q, K)
    floats[1, 0, 4, 6] = added
    kept = TensorKeeper().mask(floats)
    assert isinstance(kept, Tensor)
    assert torch.equal(kept, floats)
    assert kept.data_ptr() != floats.data_ptr()
    assert bytes_of_mask(kept) == floats.nbytes
    gaps = torch.ones(B, H, Q, K, dtype=torch.bool)
    gaps[..., 3] = False
    assert torch.equal(TensorKeeper().mask(gaps), gaps)
    function = lambda *_: True  # noqa: E731
    assert TensorKeeper().mask(function) is function
    assert (bytes_of_mask(function), bytes_of_mask(None)) == (0, 0)


def test_a_mask_is_read_once_for_all_layers_and_again_when_it_has_changed() -> None:
    keeper, mask = TensorKeeper(), torch.ones(B, 1, Q, K, dtype=torch.bool)
    first = keeper.mask(mask)
    assert keeper.mask(mask) is first
    assert keeper.mask(mask[:]) is first
    mask[1, 0, :, 5:] = False  # in place: another mask from now on
    changed = keeper.mask(mask)
    assert not torch.equal(spans_of(changed).expand(B, 1, Q, K), spans_of(first).expand(B, 1, Q, K))
    assert torch.equal(spans_of(changed).expand(B, 1, Q, K), mask)
    part = keeper.mask(mask[:, :, 1:])
    assert torch.equal(spans_of(part).expand(B, 1, Q - 1, K), mask[:, :, 1:])
    assert torch.equal(spans_of(keeper.mask(mask[1:])).expand(1, 1, Q, K), mask[1:])
    assert torch.equal(spans_of(keeper.mask(mask[:1])).expand(1, 1, Q, K), mask[:1])
    keeper.forget_masks()
    assert keeper.mask(mask) is changed  # it is still there
    del mask
    keeper.forget_masks()
    assert keeper._masks == {}


def test_rules_of_the_same_calls_are_joined_once_for_all_layers() -> None:
    keeper, cpu = TensorKeeper(), torch.device("cpu")
    calls = [CallRules(Q, Q, 0, True, None, None), CallRules(1, Q + 1, 0, False, None, None)]
    first = keeper.joined(calls, Q + 1, cpu)
    assert keeper.joined([CallRules(*vars(one).values()) for one in calls], Q + 1, cpu) is first
    for change in ({"queries": 2}, {"first": 1, "keys": Q}, {"is_causal": True}, {"mask": torch.ones(1, 1, 1, Q + 1)}):
        other = CallRules(**{**vars(calls[1]), **change})
        assert keeper.joined([calls[0], other], Q + 1, cpu) is not first
        first = keeper.joined(calls, Q + 1, cpu)
    assert keeper.joined(calls, Q + 2, cpu).keys == Q + 2
