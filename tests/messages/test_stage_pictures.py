"""The small pictures under another scale, against those that are drawn from the start."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from front_end import BLOCKED, decode_cells

from attnwidget import Attention, masks
from attnwidget._messages.pictures import stage_pictures

NO_ROW = torch.ones(100, 90).bool().index_fill_(0, torch.tensor([0, 1, 2, 3, 40]), False)
RULES: tuple[dict[str, Any], ...] = (
    {},
    {"is_causal": True},
    {"window": 7, "is_causal": True},
    {"mask": masks.padding([60])},
    {"mask": NO_ROW},
    {"scale": 3.0},
)


def both(att: Attention, scale: float) -> tuple[Any, Any]:
    """What is drawn at another scale from what was drawn before, and from the start."""
    kept = stage_pictures.StagePictures()
    kept.draw(att, 0, 0, (), {})
    rules = {"scale": scale}
    again = kept.draw(att.what_if(rules), 0, 0, (), rules)
    return again, stage_pictures.stages(att.what_if(rules), 0, 0)


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize(
    ("scale", "dtype"), [(1e-3, torch.float64), (0.4, torch.bfloat16), (20.0, torch.float32)], ids=str
)
def test_at_another_scale_the_pictures_are_those_from_the_start(
    rules: dict[str, Any], scale: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(100, 8), torch.randn(90, 8), torch.randn(90, 70)
    made, wanted = both(Attention(q.to(dtype), k.to(dtype), v.to(dtype), **rules), scale)
    assert [one["stage"] for one in made["pictures"]] == [one["stage"] for one in wanted["pictures"]]
    for one, other in (*zip(made["pictures"], wanted["pictures"], strict=True), (made["output"], wanted["output"])):
        assert {name: one[name] for name in one if name.endswith("bin")} == {
            name: other[name] for name in other if name.endswith("bin")
        }
        # within a fortieth of a step of the colors
        np.testing.assert_allclose([one["low"], one["high"]], [other["low"], other["high"]], rtol=1e-4, atol=1e-7)
        (values, kinds), (right, right_kinds) = decode_cells(one["values"]), decode_cells(other["values"])
        assert ((kinds == BLOCKED) == (right_kinds == BLOCKED)).all()
        signed = one.get("stage") != "weights"
        shown = kinds != BLOCKED
        rtol, atol = (0, 0.01 * other["high"]) if signed else (0.15, 1e-4 * other["high"])  # a step of the colors
        np.testing.assert_allclose(values[shown], right[shown], rtol=rtol, atol=max(atol, 1e-9))


def test_nothing_is_multiplied_again_while_a_scale_is_dragged(monkeypatch: pytest.MonkeyPatch) -> None:
    att, kept, drawn = Attention(*torch.randn(3, 100, 8)), stage_pictures.StagePictures(), []
    own = stage_pictures.stages
    monkeypatch.setattr(stage_pictures, "stages", lambda *all_: (drawn.append(all_), own(*all_))[1])

    def draw(rules: dict[str, Any], of: int = 0) -> None:
        kept.draw(att.what_if(rules), 0, 0, (of,), rules)

    for rules in ({}, {"scale": 1.0}, {"temperature": 2.0}, {"scale": 0.1, "temperature": 3.0}):
        draw(rules)
    assert len(drawn) == 1
    draw({"scale": 1.0, "causal": True})
    draw({"scale": 2.0, "causal": True})
    assert len(drawn) == 2
    draw({"scale": 2.0, "dtype": "float16"})
    draw({}, of=1)
    assert len(drawn) == 4


@pytest.mark.parametrize(
    "att",
    [
        Attention(*torch.randn(3, 100, 8), softcap=2.0),
        Attention(*torch.randn(3, 100, 8), bias=torch.randn(100, 100)),
        Attention(*torch.randn(3, 20, 8)),
        Attention.from_scores(torch.randn(100, 100)),
        Attention(torch.full((100, 8), torch.inf), torch.randn(100, 8)),
    ],
    ids=["softcap", "bias", "exact", "scores", "infinite"],
)
def test_what_a_scale_does_not_just_multiply_is_drawn_from_the_start(att: Attention) -> None:
    made, wanted = both(att, 0.7)
    assert repr(made) == repr(wanted)
