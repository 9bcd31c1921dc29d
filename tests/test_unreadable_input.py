"""Tensors whose numbers cannot be read, and rules that are too deep, are refused with the next step."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.masked import masked_tensor

from attnwidget import Attention, AttentionWidget, masks


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.randn(4, 8)


UNREADABLE: dict[str, tuple[Callable[[], Any], str]] = {
    "FakeTensor": (fake, "q is a FakeTensor, which has no numbers: give the tensor itself"),
    "nested, strided": (
        lambda: torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(4, 8)]),
        "q is a nested tensor: give q.to_padded_tensor",
    ),
    "nested, jagged": (
        lambda: torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(4, 8)], layout=torch.jagged),
        "q is a nested tensor: give q.to_padded_tensor",
    ),
    "MaskedTensor": (
        lambda: masked_tensor(torch.randn(4, 8), torch.ones(4, 8, dtype=torch.bool)),
        "q is a MaskedTensor: give q.get_data",
    ),
    "lazy parameter": (lambda: torch.nn.UninitializedParameter(), "q is a parameter without numbers yet"),
}


@pytest.mark.filterwarnings("ignore")  # torch says of each of these that it is a prototype
@pytest.mark.parametrize("kind", UNREADABLE)
@pytest.mark.parametrize("make", [Attention, AttentionWidget])
def test_a_tensor_whose_numbers_cannot_be_read_is_refused(make: Callable[..., Any], kind: str) -> None:
    tensor, said = UNREADABLE[kind]
    with pytest.raises(TypeError, match=said):
        make(tensor(), torch.randn(4, 8))


@pytest.mark.parametrize("make", [Attention, AttentionWidget])
def test_transforms_of_functions_are_refused(make: Callable[..., Any]) -> None:
    x = torch.randn(2, 4, 8)
    with pytest.raises(TypeError, match=r"q is inside torch\.vmap"):
        torch.vmap(lambda q: make(q, q) and q)(x)
    with pytest.raises(TypeError, match=r"inside torch\.func\.grad, vjp or jvp, and here nothing has a gradient"):
        torch.func.grad(lambda q: make(q, q) and q.sum())(x[0])


@pytest.mark.filterwarnings("ignore")
def test_a_masked_tensor_is_no_mask() -> None:
    mask = masked_tensor(torch.ones(4, 4, dtype=torch.bool), torch.ones(4, 4, dtype=torch.bool))
    with pytest.raises(TypeError, match="mask is a MaskedTensor"):
        Attention(*torch.randn(2, 4, 8), mask=mask)


def test_masks_nested_hundreds_deep_are_refused_where_they_are_made() -> None:
    def nested(depth: int) -> masks.MaskFunction:
        made: masks.MaskFunction = masks.causal
        for n in range(depth):
            made = (masks.and_masks if n % 2 else masks.or_masks)(made, masks.sliding_window(3))
        return made

    with pytest.raises(ValueError, match="masks are nested more than 64 deep: pass them all to one or_masks"):
        nested(940)
    assert AttentionWidget(*torch.randn(2, 4, 8), mask=nested(64)).picture["error"] is None


def causal(b: Any, h: Any, q_idx: torch.Tensor, kv_idx: torch.Tensor) -> torch.Tensor:
    return q_idx >= kv_idx


def as_it_is(score: torch.Tensor, *_: Any) -> torch.Tensor:
    return score


@pytest.mark.parametrize(("name", "function"), [("mask", causal), ("bias", as_it_is)])
def test_a_function_that_calls_others_to_pythons_limit_is_refused(name: str, function: Callable[..., Any]) -> None:
    def nested(depth: int) -> Callable[..., torch.Tensor]:
        made: Callable[..., torch.Tensor] = function
        for _ in range(depth):
            made = functools.partial(lambda inner, *given: inner(*given), made)
        return made

    left = sys.getrecursionlimit() - len(inspect.stack())
    with pytest.raises(ValueError, match=f"{name} is a function whose calls are nested too deep for Python"):
        AttentionWidget(*torch.randn(2, 4, 8), **{name: nested(left - 60)})
    w = AttentionWidget(*torch.randn(2, 4, 8), **{name: nested(100)})
    assert w.picture["error"] is None
