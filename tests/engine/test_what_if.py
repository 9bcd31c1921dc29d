"""The same tensors under other rules, against an attention made with those rules."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tolerance import sums

from attnwidget import Attention, masks
from attnwidget._engine.what_if import round_to

B, H, G, Q, K, D, Dv = 2, 6, 3, 7, 9, 4, 5
q, k, v = (
    torch.randn(B, *shape, generator=torch.Generator().manual_seed(sum(shape)))
    for shape in ((H, Q, D), (G, K, D), (G, K, Dv))
)
KEEP = torch.rand(B, 1, Q, K, generator=torch.Generator().manual_seed(3)) < 0.8


def made(**keywords: Any) -> Attention:
    return Attention(q, k, v, **keywords)


GIVEN = {"mask": KEEP, "is_causal": True, "window": 5, "softcap": 3.0, "scale": 0.5}
CHANGES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"scale": 1.0}, {"scale": 1.0}),
    ({"scale": -2.0}, {"scale": -2.0}),
    ({"scale": 0.0}, {"scale": 0.0}),
    ({"temperature": 4.0}, {"scale": 0.125}),
    ({"scale": 2.0, "temperature": 4.0}, {"scale": 0.5}),
    ({"softcap": None}, {"softcap": None}),
    ({"softcap": 1.0}, {"softcap": 1.0}),
    ({"mask": False}, {"mask": None}),
    ({"mask": True}, {}),
    ({"causal": False}, {"is_causal": False}),
    ({"window": None}, {"window": None}),
    ({"window": 2, "mask": False}, {"window": 2, "mask": None}),
    (
        {"causal": "lower right", "mask": False},
        {"is_causal": False, "mask": masks.causal_lower_right(Q, K)},
    ),
    (
        {"drop_keys": [0, -1], "mask": False},
        {"mask": (torch.arange(K) > 0) & (torch.arange(K) < K - 1)},
    ),
]


@pytest.mark.parametrize(("changes", "keywords"), CHANGES, ids=lambda value: str(list(value)))
def test_a_change_is_what_would_have_been_given(changes: dict[str, Any], keywords: dict[str, Any]) -> None:
    wanted = GIVEN | keywords
    if isinstance(wanted["mask"], torch.Tensor) and wanted["mask"].ndim == 1:
        wanted["mask"] = wanted["mask"].expand(B, 1, Q, K)
    found, expected = made(**GIVEN).what_if(changes), made(**wanted)
    for stage in ("scaled", "masked", "weights", "contribution"):
        torch.testing.assert_close(found.block(stage, batch=1, head=4), expected.block(stage, batch=1, head=4))
    torch.testing.assert_close(found.overview(1, 4).values, expected.overview(1, 4).values)
    torch.testing.assert_close(found.output(1, 4), expected.output(1, 4))


def test_the_original_stays() -> None:
    att = made(**GIVEN)
    before = att.block()
    att.what_if({"scale": 3.0, "drop_keys": [1], "dtype": "int8"}).block()
    torch.testing.assert_close(att.block(), before)
    assert att.scale == 0.5


def test_changes_can_follow_changes_and_be_copied() -> None:
    twice = made().what_if({"drop_keys": [0]}).what_if({"scale": 1.0})
    assert twice.scale == 1.0
    assert twice.block()[:, 0].eq(0).all()
    assert twice.what_if({"drop_keys": []}).block()[:, 0].gt(0).all()
    lower = made().what_if({"causal": "lower right"})
    torch.testing.assert_close(lower.what_if({"causal": False}).block(), made().block())
    dropped = made().what_if({"drop_keys": [0], "causal": "lower right"})
    again = copy.deepcopy(dropped)
    torch.testing.assert_close(again.block(), dropped.block())
    assert "without 1 key" in repr(dropped)
    effects = {effect.name: effect.blocks for effect in dropped.explain(3, 0).effects}
    assert effects.pop("dropped keys")
    assert not any(effects.values())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_number_types_round_the_tensors_alone(dtype: str) -> None:
    found = made().what_if({"dtype": dtype})
    expected = Attention(*(round_to(x, dtype) for x in (q, k, v)))
    assert torch.equal(found.block(), expected.block())  # the same kernels, of the same numbers
    assert torch.equal(found.output(), expected.output())
    assert not torch.equal(found.block(), made().block())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_scores_in_hand_are_rounded_as_they_are(dtype: str) -> None:
    scores = torch.randn(5, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 3
    found = Attention.from_scores(scores).what_if({"dtype": dtype})
    torch.testing.assert_close(found.block("scores"), round_to(scores, dtype))
    torch.testing.assert_close(found.block(), Attention.from_scores(round_to(scores, dtype)).block())
    assert float((found.block("scores") - scores).abs().max()) > 1e-4  # float16 has 11 bits


def test_eight_bits_have_a_scale_for_each_token() -> None:
    x = torch.randn(3, 7) * torch.tensor([[1.0], [100.0], [0.0]])
    found = round_to(x, "int8")
    step = x.abs().amax(1, keepdim=True) / 127
    assert bool(((found - x).abs() <= step / 2 + sums(1, size=0)["rtol"] * x.abs()).all())
    assert len(round_to(torch.linspace(-3, 3, 4001)[None], "int8").unique()) == 255  # −127 to 127
    assert found[2].eq(0).all()


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"color": 1}, ValueError, "what_if has 'color': there are scale"),
        ([], TypeError, "give a dict"),
        ({"scale": float("nan")}, ValueError, "finite"),
        ({"scale": "big"}, TypeError, "scale"),
        ({"temperature": 0}, ValueError, "temperature"),
        ({"causal": "upper"}, ValueError, "lower right"),
        ({"causal": 1}, ValueError, "lower right"),
        ({"mask": 1}, TypeError, "give False to remove the mask"),
        ({"window": 0}, ValueError, "1 or more"),
        ({"drop_keys": [99]}, IndexError, "key 99 is not there"),
        ({"drop_keys": 3}, TypeError, "give a list of keys"),
        ({"dtype": "float8"}, ValueError, "float16, bfloat16, int8"),
    ],
)
def test_what_cannot_be(changes: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        made().what_if(changes)


def test_given_weights_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="only weights were given"):
        Attention.from_weights(torch.ones(1, 1)).what_if({"scale": 2.0})
    att = Attention.from_scores(torch.randn(4, 4))
    torch.testing.assert_close(att.what_if({"scale": 2.0}).block(), (att.block("scores") * 2).softmax(1))
