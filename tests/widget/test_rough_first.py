"""A picture whose sampled rows take too long comes in fewer rows first, then in all, then exact: each says so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from front_end import FrontEnd, decode_cells
from tolerance import rounding, sums, together

from attnwidget import Attention, AttentionWidget
from attnwidget._engine import cost
from attnwidget._engine.level_cache import LevelCache, LevelKey
from attnwidget._messages.pictures import picture

KEY = LevelKey(0, 0, "weights", "max")


def attention(heads: int = 4, n: int = 1100) -> Attention:
    source = torch.Generator().manual_seed(0)
    return Attention(*(torch.randn(1, heads, n, 8, generator=source) for _ in range(3)))


def test_the_first_picture_is_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = torch.randn(2, 1, 32, 20_000, 2, generator=torch.Generator().manual_seed(0))
    att = Attention(q, k).combine()
    monkeypatch.setattr(picture, "MAX_FIRST_CELLS", 1 << 26)
    looked: list[int] = []
    sampled = picture.overview.sampled

    def noted(*about: Any, **how: Any) -> Any:
        looked.append(how["query_bin"])
        return sampled(*about, **how)

    monkeypatch.setattr(picture.overview, "sampled", noted)
    made = picture.sampled_picture(LevelCache(att), KEY)
    assert made["sampled"]["every"] == made["query_bin"] == looked[0]
    rows = -(-20_000 // looked[0])
    assert cost.cells(att, 0, 0, range(rows), range(20_000), "weights") <= (1 << 26) * 1.1
    assert rows >= 4


def test_it_is_sampled_finer_and_then_exact(front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "AT_ONCE", 1000)
    monkeypatch.setattr(picture, "MAX_FIRST_CELLS", 1100 * 100 * cost.COMBINED)
    monkeypatch.setattr(picture, "LIMITS", picture.Limits(report=0, estimate=0, slice=0))
    att = attention()

    async def main() -> AttentionWidget:
        w = AttentionWidget.from_attention(att, heads=[0, 1])
        w.combine = "mean"
        while w.progress is not None:
            await asyncio.sleep(0.001)
        return w

    w = asyncio.run(main())
    states = [message.state["picture"] for message in front_end.of(w) if "picture" in message.state]
    of_mean = [made for made in states if made["head"] == "mean 0 1"]
    seen = [(made["query_bin"], made["sampled"] and made["sampled"]["every"]) for made in of_mean]
    assert list(dict.fromkeys(seen)) == [(24, 24), (3, 3), (3, None)]
    whole = att.combine([0, 1]).block()
    bound = together(rounding(att).weights, sums(2))
    for made in of_mean:
        values, _ = decode_cells(made["values"], made["blocked"])
        if made["sampled"] is None:
            continue
        rows = whole[made["sampled"]["first"] :: made["sampled"]["every"]]
        wanted = torch.nn.functional.pad(rows, (0, -1100 % 3)).view(len(rows), -1, 3).amax(2)
        apart = abs(torch.tensor(values).log2() - wanted.log2())
        assert values.shape == wanted.shape
        assert float(apart.max()) <= 16 / 249 + bound["atol"] / float(wanted.min())


def test_a_stop_while_it_is_rough_goes_on_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "AT_ONCE", 1000)
    monkeypatch.setattr(picture, "MAX_FIRST_CELLS", 1100 * 10)
    monkeypatch.setattr(picture, "LIMITS", picture.Limits(report=0, estimate=0, slice=0))

    async def main() -> None:
        w = AttentionWidget.from_attention(attention(1))
        assert w.picture["sampled"]["every"] > 3
        await asyncio.sleep(0.003)
        w._exact_pass.stop()
        assert w.progress["state"] == "stopped"
        w._exact_pass.resume()
        while w.progress is not None:
            await asyncio.sleep(0.001)
        assert w.picture["sampled"] is None
        assert w.picture["error"] is None

    asyncio.run(main())


def test_in_a_script_finish_goes_through_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "AT_ONCE", 1000)
    monkeypatch.setattr(picture, "MAX_FIRST_CELLS", 1100 * 10)
    w = AttentionWidget.from_attention(attention(1))
    w.finish()
    assert w.picture["sampled"] is None
