"""Maps below 0, such as contacts after APC: shown as scores, with a title of one's own."""

from __future__ import annotations

import pytest
import torch

from attnwidget import Attention, AttentionWidget

MAP = torch.rand(7, 7, generator=torch.Generator().manual_seed(0)) - 0.4
NAMES = list("MKTAYIA")


def test_a_signed_map_is_drawn_as_given() -> None:
    w = AttentionWidget.from_scores(MAP, tokens=NAMES, title="Contacts")
    assert (w.stage, w.title, w.tokens) == ("scores", "Contacts", NAMES)
    assert (w.picture["low"], w.picture["high"]) == pytest.approx((float(MAP.min()), float(MAP.max())), rel=1e-3)
    assert torch.allclose(w.attention.block(), MAP.softmax(-1))
    w = AttentionWidget.from_scores(MAP.expand(2, 7, 7), dims="hqk", is_causal=True, stage="weights")
    assert (w.stage, w.attention.shape.H, float(w.attention.block()[0, 0])) == ("weights", 2, 1.0)


@pytest.mark.parametrize("how", [{"tokens": NAMES}, {"v": NAMES}])
def test_weights_below_zero_are_shown_so_after_a_warning(how: dict[str, list[str]]) -> None:
    with pytest.warns(UserWarning, match=r"go down to -0\.\d+, so they are not weights: .*AttentionWidget.from_scores"):
        w = AttentionWidget.from_weights(MAP, **how)  # type: ignore[arg-type]
    assert (w.stage, w.tokens) == ("scores", NAMES)
    with pytest.raises(ValueError, match=r"AttentionWidget\.from_scores\(scores, title=…\) draws a signed map"):
        Attention.from_weights(MAP)
