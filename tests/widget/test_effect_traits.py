"""What a front-end and a user may ask of a model's effects, and what is refused in a sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attnwidget import AttentionWidget


@pytest.fixture
def w() -> AttentionWidget:
    return AttentionWidget(*torch.randn(2, 1, 2, 4, 8))


def test_without_a_model_there_are_no_effects(w: AttentionWidget) -> None:
    w.segments_show = "effect"
    assert w.effects is None
    assert w.effect_details is None


def test_a_target_is_a_position_and_a_token(w: AttentionWidget) -> None:
    w.effect_target = torch.tensor([3, 7])
    assert w.effect_target == (3, 7)
    w.effect_target = None
    assert w.effect_target is None


@pytest.mark.parametrize("wrong", ["37", [3], [3, 7, 1], [True, 2], 3, {3: 1, 7: 2}, [0.5, 1], [[1], [2]]])
def test_what_is_no_target_is_refused(w: AttentionWidget, wrong: Any) -> None:
    with pytest.raises(TypeError, match="give \\(position, token id\\)"):
        w.effect_target = wrong


@pytest.mark.parametrize("wrong", [[-1, 2], [0, 2**40]])
def test_a_target_that_cannot_be_is_refused(w: AttentionWidget, wrong: Any) -> None:
    with pytest.raises(ValueError, match="give \\(position, token id\\)"):
        w.effect_target = wrong


def test_heads_can_be_ordered_by_effect_before_there_is_any(w: AttentionWidget) -> None:
    w.view, w.order, w.bar = "heads", "effect", "effect"
    assert w.figure(width=3) is not None


def test_a_front_end_may_set_them(w: AttentionWidget) -> None:
    w.set_state({"segments_show": "effect", "effect_edit": "uniform", "effect_target": [2, 5]})
    assert (w.segments_show, w.effect_edit, w.effect_target) == ("effect", "uniform", (2, 5))
