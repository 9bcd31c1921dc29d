"""What each row keeps under a cache, as the heatmap colors it: the numbers of `Attention.keep`, also in steps."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from front_end import FrontEnd
from tolerance import eps, roundings

from attnwidget import Attention, AttentionWidget
from attnwidget._messages import decoding
from attnwidget._widget import recall_pass

N = 90
WINDOW = {"keep": {"policy": "window", "budget": 12}}


def tensors(n: int = N) -> torch.Tensor:
    return torch.randn(2, 1, 2, n, 8, generator=torch.Generator().manual_seed(2)) * 2


def shown(w: AttentionWidget) -> np.ndarray[Any, Any]:
    return decoding.decode(w.recall["values"])


@pytest.mark.parametrize("policy", [{"policy": "window", "budget": 12}, {"policy": "tova", "budget": 12}])
def test_it_is_what_keep_finds(policy: dict[str, Any]) -> None:
    att = Attention(*tensors(), is_causal=True, sinks=torch.tensor([0.5, -1.0]))
    w = AttentionWidget.from_attention(att, what_if={"keep": policy})
    for head in range(2):
        w.head = head
        wanted = att.keep(**policy, head=head).recall.numpy()
        assert (w.recall["layer"], w.recall["batch"], w.recall["head"]) == (0, 0, head)
        np.testing.assert_allclose(shown(w), wanted, rtol=roundings(N) * eps(torch.float32) * 10)
        assert (w.recall["every"], w.recall["share"], w.recall["error"]) == (1, 1, None)


def test_only_the_heatmap_of_one_head_under_a_cache_has_it() -> None:
    w = AttentionWidget(*tensors(), is_causal=True)
    assert w.recall is None
    w.what_if = WINDOW
    assert w.recall is not None
    w.set_trait("heads", [0, 1])
    w.combine = "mean"
    assert w.recall is None
    w.combine = "none"
    assert w.recall is not None
    w.view = "graph"
    assert w.recall is None


def test_rows_that_attend_to_nothing_have_none_and_of_very_many_the_least_of_several_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recall_pass, "MAX_NUMBERS", 40)
    mask = torch.ones(N, N).tril().bool()
    mask[3] = False
    att = Attention(*tensors(), mask=mask)
    w = AttentionWidget.from_attention(att, what_if=WINDOW)
    every = att.keep("window", 12).recall.numpy()
    assert np.isnan(every[3])
    assert w.recall["every"] == 3
    np.testing.assert_allclose(shown(w), np.nanmin(every.reshape(-1, 3), 1), rtol=1e-5)


def test_a_long_head_comes_in_steps(front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall_pass, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(recall_pass, "SLICE_SECONDS", 0.0)
    n = 3000
    att = Attention(*tensors(n), is_causal=True)

    async def main() -> None:
        w = AttentionWidget.from_attention(att, what_if=WINDOW)
        assert w.recall["share"] < 1
        assert np.isnan(shown(w)).any()
        while w._scheduler.names:
            await asyncio.sleep(0.001)
        assert w.recall["share"] == 1
        wanted = att.keep("window", 12).recall.numpy()
        np.testing.assert_allclose(shown(w), wanted, rtol=roundings(n) * eps(torch.float32) * 10, atol=1e-6)
        w.head = 1
        w.finish()
        np.testing.assert_allclose(shown(w), att.keep("window", 12, head=1).recall.numpy(), rtol=1e-4, atol=1e-6)

    asyncio.run(main())
