"""The keywords of an attention: declared once, listed by help(), refused where wrong, and read once."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from attnwidget import Attention, ScaledDotProductAttention, masks, scaled_dot_product_attention
from attnwidget._rules import parsing
from attnwidget._rules.options import KEYWORDS, OPTIONS, AttentionKeywords, AttentionOptions, LayeredKeywords

MAKE = torch.Generator().manual_seed(0)
q, k, v = (torch.randn(2, heads, 5, d, generator=MAKE) for heads, d in ((6, 4), (3, 4), (3, 7)))
TAKERS = {
    "Attention": Attention,
    "from_scores": Attention.from_scores,
    "function": scaled_dot_product_attention,
    "module": ScaledDotProductAttention().forward,
}


def test_types_and_values_name_the_same_keywords() -> None:
    assert set(AttentionKeywords.__annotations__) == {field.name for field in OPTIONS}
    assert set(LayeredKeywords.__annotations__) == set(KEYWORDS)


@pytest.mark.parametrize("taker", TAKERS)
def test_help_lists_every_keyword_with_its_default(taker: str) -> None:
    found = inspect.signature(TAKERS[taker]).parameters
    assert set(KEYWORDS) <= set(found)
    for field in OPTIONS:
        assert found[field.name].default is field.default
    assert all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in found.values())


@pytest.mark.parametrize("taker", TAKERS)
def test_an_unknown_keyword_is_refused_with_the_nearest(taker: str) -> None:
    tensors = [q[0]] if taker == "from_scores" else [q, k, v]
    with pytest.raises(TypeError, match="no keyword is called 'is_casual': did you mean 'is_causal'"):
        TAKERS[taker](*tensors, is_casual=True)
    with pytest.raises(TypeError, match="no keyword is called 'extra_masks'"):
        TAKERS[taker](*tensors, extra_masks=())


def test_options_tell_what_was_given() -> None:
    mask = torch.ones(5, 5, requires_grad=True)
    options = Attention(q, k, v, mask=mask, window=3, scale=2.0).options
    assert (options.window, options.scale, options.softcap, options.bias) == (3, 2.0, None, None)
    assert options.mask.data_ptr() == mask.data_ptr()
    assert not options.mask.requires_grad
    assert options.describe() == ("window 3", "mask added")
    with pytest.raises(AttributeError):
        options.window = 4


def count_readings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []

    def counted(name: str) -> Any:
        before = getattr(parsing, name)
        return lambda *of: (found.append(name), before(*of))[1]

    for name in ("_read_mask", "_read_bias"):
        monkeypatch.setattr(parsing, name, counted(name))
    return found


def test_a_what_if_reads_no_mask_and_no_bias_again(monkeypatch: pytest.MonkeyPatch) -> None:
    att = Attention(q, k, v, mask=torch.ones(5, 5).tril().long(), mask_means="keep", bias=torch.randn(5, 5))
    read = count_readings(monkeypatch)
    found = [att.what_if(x) for x in ({"scale": 0.3}, {"window": 2}, {"drop_keys": [1]}, {"dtype": "int8"})]
    assert read == []
    assert found[1].rules.rules[1] is att.rules.rules[0], "the mask is the same rule"
    assert found[1].block()[4].count_nonzero() == 2
    assert att.what_if({"mask": False}).block()[0].count_nonzero() == 5
    assert read == ["_read_mask"]


def test_masks_of_a_what_if_are_options_too() -> None:
    att = Attention(q, k, v).what_if({"causal": "lower right", "drop_keys": [0]})
    names = [name for name, _ in att.options.extra_masks]
    assert names == ["causal", "drop_keys"]
    assert att.options.extra_masks[0][1] == masks.causal_lower_right(5, 5)
    assert att.options.describe() == ("causal, lower right", "without 1 key")
    assert att.what_if({"causal": False, "drop_keys": []}).options.extra_masks == ()


def test_options_of_unknown_names_are_refused() -> None:
    with pytest.raises(TypeError, match="did you mean 'softcap'"):
        AttentionOptions.of({"soft_cap": 1.0})


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda att: pickle.loads(pickle.dumps(att))])
def test_a_copy_has_the_options_and_computes_afresh(copied: Callable[[Attention], Attention]) -> None:
    mask = torch.ones(5, 5).tril().bool()
    att = Attention(q, k, v, mask=mask, window=3).what_if({"drop_keys": [2], "scale": 0.5})
    att.log_normalizer()
    found = copied(att)
    assert found.known_rows(0, 0, range(5)) is None
    assert found.options.describe() == ("window 3", "masked", "without 1 key")
    assert repr(found) == repr(att)
    for changes in ({"window": None}, {"mask": False}, {"drop_keys": []}):
        assert torch.equal(found.what_if(changes).block(), att.what_if(changes).block())


def test_a_mask_that_changed_in_place_is_what_it_now_is_in_a_what_if() -> None:
    mask = torch.ones(5, 5, dtype=torch.bool)
    att = Attention(q, k, v, mask=mask)
    mask[:, 0] = False
    found = att.what_if({"scale": 0.5})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert found.block()[:, 0].eq(0).all()
