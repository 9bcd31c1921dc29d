"""Findings and parity with torch come in steps on the kernel's loop, and are those of `Attention.check`."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

import pytest
import torch
from allocations import PeakBytes
from front_end import FrontEnd

from attnwidget import Attention, AttentionStack, AttentionWidget
from attnwidget._analysis import diagnostics, parity, statistics
from attnwidget._engine.matmul import exactly
from attnwidget._messages.pictures import heads_overview
from attnwidget._utils.scheduler import Scheduler
from attnwidget._widget import refreshing

N = 1100  # more cells than are checked at once


def tensors(n: int = N, heads: int = 2) -> torch.Tensor:
    return torch.randn(3, 1, heads, n, 8, generator=torch.Generator().manual_seed(5))


async def settled(w: AttentionWidget) -> None:
    while "afterwards" in w._scheduler.names:
        await asyncio.sleep(0.001)


@pytest.mark.thorough
def test_a_step_reads_a_block_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 2100
    monkeypatch.setattr(statistics, "QUERIES", 128)
    monkeypatch.setattr(parity, "CELLS_AT_ONCE", 32 * n)
    monkeypatch.setattr(parity, "MAX_ROWS", 256)
    q, k, v = tensors(n)
    k[..., -200:, :], v[..., -200:, :] = 0, 0  # as padding
    att = Attention(q, k, v, mask=torch.rand(n, n, generator=torch.Generator().manual_seed(1)) > 0.1, mask_dims="qk")
    steps = exactly(att.device, diagnostics.examining(att.head(0, 1), None))
    count, largest = 0, 0
    while True:
        with PeakBytes() as held:
            try:
                next(steps)
            except StopIteration as end:
                found, same = end.value
                break
        count, largest = count + 1, max(largest, held.peak)
    assert count >= 2 * -(-n // 128) + 256 // 32
    assert largest < 4 * n * n  # not even the weights of the head
    assert [asdict(one) for one in found] == [asdict(one) for one in att.check(head=1)]
    assert same is not None
    assert same.equal


def test_a_change_of_the_head_is_followed_by_steps(front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "QUERIES", 128)
    monkeypatch.setattr(refreshing, "SLICE", 0)
    steps = 0
    step = Scheduler._step

    def counted(scheduler: Scheduler) -> None:
        nonlocal steps
        steps += "afterwards" in scheduler.names
        step(scheduler)

    monkeypatch.setattr(Scheduler, "_step", counted)
    q, k, v = tensors()
    att = Attention(q, k, v)

    async def main() -> AttentionWidget:
        nonlocal steps
        w = AttentionWidget.from_attention(att)
        await settled(w)
        steps = 0
        front_end.of(w)[0]
        w.set_state({"head": 1})
        assert w.findings is not None  # those of head 0, until the others are there
        await settled(w)
        return w

    w = asyncio.run(main())
    assert steps > 2 * -(-N // 128)
    assert w.findings == [asdict(one) for one in att.check(head=1)]
    assert w.deviation["head"] == 1


def test_another_head_on_the_way_begins_anew() -> None:
    att = Attention(*tensors(heads=3))

    async def main() -> AttentionWidget:
        w = AttentionWidget.from_attention(att)
        await settled(w)
        w.set_state({"head": 1})
        for _ in range(3):
            await asyncio.sleep(0.03)
        w.set_state({"head": 2})
        await settled(w)
        return w

    w = asyncio.run(main())
    assert w.deviation["head"] == 2


def test_what_is_asked_of_a_long_head_comes_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnwidget._widget.derived.findings_cache.MAX_UNASKED_CELLS", 1000)
    att = Attention(*tensors())

    async def main() -> AttentionWidget:
        w = AttentionWidget.from_attention(att)
        await settled(w)
        assert w.findings is None
        w._receive(w, {"requests": [{"id": "a", "kind": "check", "layer": 0, "batch": 0, "head": 0}]}, [])
        assert w.findings is None
        assert "afterwards" in w._scheduler.names
        await settled(w)
        return w

    w = asyncio.run(main())
    assert w.findings == [asdict(one) for one in att.check()]


def test_what_fails_on_the_way_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("no memory")
        yield

    async def main() -> AttentionWidget:
        w = AttentionWidget.from_attention(Attention(*tensors()))
        await settled(w)
        monkeypatch.setattr("attnwidget._widget.derived.findings_cache.examining", fails)
        w.set_state({"head": 1})
        await settled(w)
        return w

    w = asyncio.run(main())
    assert "no memory" in w.errors["findings"]


def test_in_a_script_a_longer_head_is_checked_only_when_it_is_asked_for(
    front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    att = Attention(*tensors(9, heads=4))
    monkeypatch.setattr("attnwidget._widget.derived.findings_cache.MAX_CHECKED_AT_ONCE", 81)
    assert AttentionWidget.from_attention(att).findings is not None, "so many cells are checked at once"
    monkeypatch.setattr("attnwidget._widget.derived.findings_cache.MAX_CHECKED_AT_ONCE", 80)
    monkeypatch.setattr("attnwidget._widget.derived.findings_cache.MAX_KEPT_HEADS", 2)
    w = AttentionWidget.from_attention(att)
    assert (w.findings, w.deviation) == (None, None)
    at = {"kind": "check", "layer": 0, "batch": 0}
    for head in (1, 2, 3):
        assert front_end.ask(w, {"id": "a", **at, "head": head})[0]["ok"]
        assert w.findings is None, "another head is shown"
    found = {}
    for head in (1, 2, 3):
        w.head = head
        found[head] = w.findings
    assert found[1] is None, "those that were asked for last are remembered"
    assert [found[head] for head in (2, 3)] == [[asdict(one) for one in att.check(head=head)] for head in (2, 3)]
    assert w.deviation["head"] == 3


@pytest.mark.parametrize("act", ["open", "layer"])
def test_the_small_pictures_of_many_heads_follow_the_large_one(act: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads_overview, "MAX_AT_ONCE", 80 * 32 * 700 - 1)
    layers = [Attention(*torch.randn(3, 1, 80, 700, 4, generator=torch.Generator().manual_seed(n))) for n in range(2)]

    async def main() -> None:
        w = AttentionWidget.from_attention(AttentionStack(layers))
        if act == "layer":
            await settled(w)
            w.set_state({"layer": 1})
        of = int(act == "layer")
        assert w.picture["layer"] == of
        assert w.thumbnails is None or w.thumbnails["layer"] != of
        await settled(w)
        assert w.thumbnails is not None
        assert w.thumbnails["layer"] == of
        assert w.findings is not None
        alone = AttentionWidget.from_attention(layers[of])
        await settled(alone)
        assert w.thumbnails["values"] == alone.thumbnails["values"]

    asyncio.run(main())
