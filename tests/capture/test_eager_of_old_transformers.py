"""Eager attention that models take from their own module, as those of transformers before 5.1 do."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from attnwidget import capture, intervene

pytest.importorskip("transformers")
from transformers.modeling_utils import AttentionInterface

HEADS, SIZE = 2, 4
SOURCE = """
from torch import nn


def eager_attention_forward(module, query, key, value, attention_mask, scaling, dropout=0.0, **others):
    weights = (query @ key.mT * scaling).softmax(-1)
    return (weights @ value).transpose(1, 2), weights


class SomebodysAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4).unbind()
        self.seen = q, k
        return eager_attention_forward(self, q, k, v, None, scaling=0.5)[0].flatten(2)
"""


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module of a model's own, beside an interface that is not asked for eager attention."""
    if "get_interface" in vars(AttentionInterface):
        monkeypatch.delattr(AttentionInterface, "get_interface")
    made = types.ModuleType("transformers.models.somebodys.modeling_somebodys")
    exec(SOURCE, vars(made))
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


def model_of(own: types.ModuleType) -> tuple[Any, Tensor]:
    """A model of one layer, and what it is given."""
    torch.manual_seed(0)
    return nn.Sequential(own.SomebodysAttention()), torch.randn(2, 5, HEADS * SIZE)


def test_it_is_captured_with_the_models_numbers_and_put_back(own: types.ModuleType) -> None:
    model, x = model_of(own)
    function = own.eager_attention_forward
    with torch.no_grad(), capture(model) as cap:
        model(x)
    assert own.eager_attention_forward is function
    q, k = model[0].seen
    wanted = (q @ k.mT * 0.5).softmax(-1)
    found = torch.stack([torch.stack([cap.attention[0].block(batch=b, head=h) for h in (0, 1)]) for b in (0, 1)])
    assert_close(found, wanted)


def test_its_heads_are_edited(own: types.ModuleType) -> None:
    model, x = model_of(own)
    with torch.no_grad():
        plain = model(x)
        with intervene(model, {(0, 1): "zero"}):
            edited = model(x)
    assert torch.equal(edited[..., :SIZE], plain[..., :SIZE])
    assert not edited[..., SIZE:].any()
