"""What a cache evicts is found in steps on the kernel's loop, before anything of it is drawn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from front_end import FrontEnd

from attnwidget import Attention, AttentionStack, AttentionWidget
from attnwidget._engine import cache_policies
from attnwidget._engine.cache_policies import Evicting, cells_to_evict
from attnwidget._utils.scheduler import Scheduler
from attnwidget._widget.passes import eviction_pass
from attnwidget._widget.passes.eviction_pass import EVICTIONS, WAIT

AT_ONCE = eviction_pass.MAX_CELLS_AT_ONCE  # without the fixture
N, HEADS = 300, 3
POLICY = {"policy": "heavy_hitters", "budget": 40}


def tensors(n: int = N) -> torch.Tensor:
    return torch.randn(2, 1, HEADS, n, 8, generator=torch.Generator().manual_seed(5)) * 2


@pytest.fixture(autouse=True)
def in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction_pass, "MAX_CELLS_AT_ONCE", 0)
    monkeypatch.setattr(eviction_pass, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(eviction_pass, "REPORT_SECONDS", 0.0)


async def found(w: AttentionWidget) -> None:
    while w._scheduler.names:
        await asyncio.sleep(0.001)


def row_of(w: AttentionWidget, query: int) -> list[Any]:
    asked = {"kind": "row", "layer": 0, "batch": 0, "head": 0, "stage": "weights", "query": query, "id": 1}
    sent: list[Any] = []
    w.send = lambda content, buffers=None: sent.append((content, buffers))  # type: ignore[method-assign]
    w._receive(w, {"requests": [asked]}, [])
    return list(sent[0][0]["replies"])


def test_a_policy_is_followed_in_steps_and_nothing_is_wrong_meanwhile(front_end: FrontEnd) -> None:
    steps = 0
    step = Scheduler._step

    def counted(scheduler: Scheduler) -> None:
        nonlocal steps
        steps += 1
        step(scheduler)

    async def main() -> None:
        w = AttentionWidget(*tensors(), is_causal=True)
        await found(w)
        version, before = w.facts["version"], w.picture
        w.set_state({"what_if": {"keep": POLICY}})
        assert w.what_if["keep"] == POLICY
        assert w.picture["error"] == eviction_pass.FOUND
        assert w.picture["values"] is None
        assert w.thumbnails is None
        assert w.progress["what"] == "evictions"
        assert WAIT in row_of(w, 299)[0]["error"]
        Scheduler._step = counted  # type: ignore[method-assign]
        try:
            await found(w)
        finally:
            Scheduler._step = step  # type: ignore[method-assign]
        assert steps >= HEADS * (N // 128)
        assert w.progress is None
        assert w.facts["version"] > version
        assert w.picture["error"] is None
        assert w.picture["values"] != before["values"]
        assert row_of(w, 299)[0].get("error") is None
        plain = AttentionWidget(*tensors(), is_causal=True, what_if={"keep": POLICY})
        plain.finish()
        assert plain.picture["values"] == w.picture["values"]
        assert plain.thumbnails == w.thumbnails
        assert torch.equal(w.weights(299), plain.weights(299))

    asyncio.run(main())


def test_pieces_are_merged_into_words_before_it_is_found_and_their_words_wait_for_it(front_end: FrontEnd) -> None:
    """Whether words may be attended to follows from what the cache holds: it was once found at once, in seconds."""
    tokens = [f"{'Ġ' * (at % 2)}a" for at in range(N)]

    async def main() -> None:
        w = AttentionWidget(*tensors(), is_causal=True, tokens=tokens, pieces="words")
        await found(w)
        w.set_state({"what_if": {"keep": POLICY}})
        of_all_heads = cells_to_evict(Attention(*tensors(), is_causal=True).what_if({"keep": POLICY}), 0)
        assert cells_to_evict(w._shown.layers[0], 0) == of_all_heads, "nothing is found yet"
        assert w.progress["what"] == "evictions"
        assert w.picture["error"] == eviction_pass.FOUND
        await found(w)
        plain = AttentionWidget(*tensors(), is_causal=True, tokens=tokens, what_if={"keep": POLICY}, pieces="words")
        plain.finish()
        assert (w.progress, w.picture["error"]) == (None, None)
        assert w.picture["values"] == plain.picture["values"]

    asyncio.run(main())


@pytest.mark.parametrize("policy", ["heavy_hitters", "tova"])
def test_many_queries_that_keep_few_keys_each_are_gone_through_in_steps_too(policy: str) -> None:
    """Each of them takes its time, however few the weights are by which it decides."""
    keep = {"keep": {"policy": policy, "budget": 4}}
    short, long = (Attention(*torch.randn(2, 1, 1, n, 4), is_causal=True).what_if(keep) for n in (200, 5_000))
    assert 0 < cells_to_evict(short, 0) < AT_ONCE < cells_to_evict(long, 0)
    long.block("weights", batch=0, head=0, queries=range(4_999, 5_000), keys=range(5))
    assert cells_to_evict(long, 0) == 0


def test_it_can_be_stopped_goes_on_and_ends_with_another_choice(front_end: FrontEnd) -> None:
    async def main() -> None:
        w = AttentionWidget(*tensors(), is_causal=True)
        w.set_state({"what_if": {"keep": POLICY}})
        pass_of = {"kind": "pass", "layer": 0, "batch": 0, "head": 0, "stage": "weights"}
        w._receive(w, {"requests": [{**pass_of, "action": "stop"}]}, [])
        assert w.progress["state"] == "stopped"
        assert EVICTIONS not in w._scheduler.names
        w._receive(w, {"requests": [{**pass_of, "action": "resume"}]}, [])
        assert w.progress["state"] == "running"
        w.set_state({"what_if": {}})
        assert EVICTIONS not in w._scheduler.names
        assert w.picture["error"] is None
        w.set_state({"what_if": {"keep": POLICY}})
        w.finish()
        assert w.picture["error"] is None
        assert w.progress is None

    asyncio.run(main())


def test_a_figure_and_a_file_wait_for_it(front_end: FrontEnd, tmp_path: Any) -> None:
    async def main() -> None:
        w = AttentionWidget(*tensors(), is_causal=True)
        w.set_state({"what_if": {"keep": POLICY}})
        page = w.to_html(tmp_path / "kept.html").read_text()
        assert eviction_pass.FOUND not in page
        w.set_state({"what_if": {"keep": {**POLICY, "budget": 50}}})
        w.figure()
        assert w.picture["error"] is None

    asyncio.run(main())


def test_other_layers_of_the_heads_view_come_in_steps_too(front_end: FrontEnd) -> None:
    q, k = tensors()
    stack = AttentionStack([Attention(q, k, is_causal=True), Attention(k, q, is_causal=True)])

    async def main() -> None:
        w = AttentionWidget.from_attention(stack, view="heads")
        w.set_state({"what_if": {"keep": {"policy": "tova", "budget": 40}}})
        await found(w)
        recall = w.survey["metrics"]["recall"]
        assert recall is not None
        whole = AttentionWidget.from_attention(stack, view="heads", what_if=w.what_if)
        whole.finish()
        assert whole.survey["metrics"]["recall"] == recall

    asyncio.run(main())


def test_what_cannot_be_found_is_said_once(front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no memory for it")
        yield

    monkeypatch.setitem(cache_policies.EVICTIONS, "heavy_hitters", fail)

    async def main() -> None:
        w = AttentionWidget(*tensors(), is_causal=True)
        w.set_state({"what_if": {"keep": POLICY}})
        await found(w)
        assert "no memory for it" in w.picture["error"]
        assert w.progress is None

    asyncio.run(main())


def test_a_step_is_short_and_steps_come_to_what_one_call_finds() -> None:
    q, k = torch.randn(2, 1, 2, 2000, 16, generator=torch.Generator().manual_seed(1))
    att = Attention(q, k, is_causal=True)
    for policy in ("heavy_hitters", "tova"):
        given = {"keep": {"policy": policy, "budget": 300}}
        at_once, stepwise = (dict(att.what_if(given).options.extra_masks)["keep"] for _ in range(2))
        assert isinstance(at_once, Evicting)
        assert isinstance(stepwise, Evicting)
        shares = list(stepwise.finding(0, range(2)))
        assert len(shares) >= 2000 // 128
        assert shares == sorted(shares)
        assert shares[-1] == 1
        assert list(stepwise.finding(0, range(2))) == []
        for head in range(2):
            assert torch.equal(at_once.until(0, head), stepwise.until(0, head))


def test_what_was_found_before_the_tensors_changed_is_not_used() -> None:
    q, k = tensors()
    att = Attention(q, k, is_causal=True).what_if({"keep": POLICY})
    before = att.block("allowed")
    wanted = Attention(q.flip(-2), k, is_causal=True).what_if({"keep": POLICY}).block("allowed")
    q[:] = q.flip(-2)
    with pytest.warns(UserWarning, match="changed in place"):
        assert torch.equal(att.block("allowed"), wanted)
    assert not torch.equal(wanted, before)


def test_an_interrupt_leaves_nothing_half_found(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = tensors()
    att = Attention(q, k, is_causal=True).what_if({"keep": POLICY})
    mask = dict(att.options.extra_masks)["keep"]
    assert isinstance(mask, Evicting)
    whole = Attention(q, k, is_causal=True).what_if({"keep": POLICY}).block("allowed")
    steps = mask.finding(0, range(1))
    next(steps)
    (of,) = mask._begun

    def interrupted() -> Any:
        raise KeyboardInterrupt
        yield

    mask._begun[of] = interrupted()
    with pytest.raises(KeyboardInterrupt):
        next(steps)
    assert torch.equal(att.block("allowed"), whole)
