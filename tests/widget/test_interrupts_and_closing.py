"""Interrupts in the middle of anything, memory that ends in a pass, threads; and what is left of a closed widget."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
import traitlets
from front_end import FrontEnd, attached, decode, decode_cells
from interrupting import interrupted_at, lines_of
from tolerance import rounding
from torch.multiprocessing.reductions import StorageWeakRef

from attnwidget import Attention, AttentionStack, AttentionWidget, compare
from attnwidget._engine import cost, level_cache
from attnwidget._engine.level_cache import LevelBuild
from attnwidget._messages.answers import requests
from attnwidget._messages.pictures import picture
from attnwidget._messages.pictures.comparison import ExactComparison
from attnwidget._utils.scheduler import Scheduler
from attnwidget._widget.derived.derived_trait import INTERRUPTED
from attnwidget._widget.passes import comparison_pass, eviction_pass, exact_pass, recall_pass
from attnwidget._widget.passes.eviction_pass import EVICTIONS

LONG = 700  # tokens: where heads are long from a few cells on, the picture comes sampled first


def tensors(*shape: int) -> list[torch.Tensor]:
    return list(torch.randn(3, *shape))


@pytest.fixture
def long_from_few_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads of LONG tokens are long, and are made exact in several steps."""
    monkeypatch.setattr(cost, "AT_ONCE", 1000)
    monkeypatch.setattr(level_cache, "QUERIES_PER_STEP", 64)
    monkeypatch.setattr(picture, "LIMITS", picture.Limits(report=0, estimate=0, slice=0))


def assert_shows_what_is_selected(w: AttentionWidget) -> None:
    """The picture is exact and of what the traits say, under their rules."""
    assert w.picture["error"] is None
    assert w.picture["sampled"] is None
    assert w.progress is None
    assert w.errors == {}
    assert [w.picture[name] for name in ("layer", "batch", "stage", "pool")] == [w.layer, w.batch, w.stage, w.pool]
    attention = w.attention
    att = (attention if isinstance(attention, Attention) else attention[w.layer]).what_if(w.what_if)
    if w.combine != "none" and len(w.heads) > 1:
        wanted = att.combine(w.heads, w.combine).block(w.stage, batch=w.batch)
    else:
        assert w.picture["head"] == w.head
        wanted = att.block(w.stage, batch=w.batch, head=w.head)
    found = decode_cells(w.picture["values"], w.picture["blocked"])[0]
    assert w.picture["queries"] == att.shape.Q
    if found.shape == tuple(wanted.shape):
        np.testing.assert_allclose(found, wanted.numpy(), **rounding(att)["weights"], equal_nan=True)


def head(w: AttentionWidget) -> None:
    w.head = 1


def rules(w: AttentionWidget) -> None:
    w.what_if = {"scale": 0.3}


def tensors_of_another_step(w: AttentionWidget) -> None:
    w.attention = Attention(*reversed(tensors(1, 2, 10, 8)))


def another_layer(w: AttentionWidget) -> None:
    w.layer = 1


def several_heads(w: AttentionWidget) -> None:
    w.combine = "mean"
    w.heads = [0, 1]


def all_heads(w: AttentionWidget) -> None:
    w.view = "heads"


def stages(w: AttentionWidget) -> None:
    w.view = "stages"
    w.set_state({"query": 2, "key": 3})


def two_layers() -> AttentionWidget:
    q, k, v = torch.randn(3, 1, 2, 12, 8, generator=torch.Generator().manual_seed(1))
    fewer = Attention(q, k[:, :, :7], v[:, :, :7])
    return AttentionWidget.from_attention(AttentionStack([Attention(q, k, v), fewer]), pins=[(3, 9)])


@pytest.mark.parametrize("times", [3, pytest.param(20, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("act", [head, rules, tensors_of_another_step, another_layer, several_heads, all_heads, stages])
def test_whatever_is_interrupted_is_whole_after_finish(act: Callable[[AttentionWidget], None], times: int) -> None:
    w = two_layers()
    lines = lines_of(lambda: act(w))
    w.close()
    assert lines > 300
    for line in range(lines // (2 * times), lines, lines // times):
        w = two_layers()
        with interrupted_at(line):
            act(w)
        w.finish()
        assert_shows_what_is_selected(w)
        fresh = AttentionWidget.from_attention(
            w.attention, layer=w.layer, head=w.head, heads=w.heads, pins=w.pins, view=w.view, what_if=w.what_if,
            combine=w.combine,
        )  # fmt: skip
        for name in ("survey", "stages", "pair", "thumbnails", "links"):
            assert (getattr(w, name) is None) == (getattr(fresh, name) is None), name
        assert w.findings == fresh.findings
        fresh.close()
        w.close()


def test_an_interrupt_is_said_in_the_place_of_the_picture(front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    w = AttentionWidget(*tensors(1, 4, 6, 8))

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("attnwidget._engine.overview.overview", interrupted)
        with pytest.raises(KeyboardInterrupt):
            w.head = 1
    assert (w.head, w.picture["head"], w.picture["error"]) == (1, 1, INTERRUPTED)
    assert front_end.state(w)["picture"]["error"] == INTERRUPTED
    w.head = 0
    assert_shows_what_is_selected(w)
    with monkeypatch.context() as patch:
        patch.setattr("attnwidget._engine.overview.overview", interrupted)
        with pytest.raises(KeyboardInterrupt):
            w.head = 1
    (reply,) = front_end.ask(w, {"id": "again", "kind": "retry"})
    assert reply["ok"]
    assert_shows_what_is_selected(w)


@pytest.mark.usefixtures("long_from_few_cells")
def test_finish_goes_on_where_it_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, _ = tensors(LONG, 4)
    w = AttentionWidget(q, k)
    taken, step = 0, LevelBuild.__next__

    def sometimes(self: LevelBuild) -> float:
        nonlocal taken
        taken += 1
        if taken % 3 == 0:
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(LevelBuild, "__next__", sometimes)
    interrupts, share = 0, 0.0
    while w.progress is not None:
        try:
            w.finish()
        except KeyboardInterrupt:
            interrupts += 1
            assert w.picture["sampled"] is not None
            assert w._exact_pass._refinement is not None
            assert share <= w._exact_pass._refinement.share, "nothing is computed again"
            share = w._exact_pass._refinement.share
    assert interrupts
    assert_shows_what_is_selected(w)


@pytest.mark.usefixtures("long_from_few_cells")
def test_a_head_that_was_interrupted_is_finished_too(monkeypatch: pytest.MonkeyPatch) -> None:
    w = AttentionWidget(*torch.randn(2, 1, 2, LONG, 4))

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("attnwidget._engine.overview.sampled", interrupted)
        with pytest.raises(KeyboardInterrupt):
            w.head = 1
    w.finish()
    assert w.picture["head"] == 1
    assert_shows_what_is_selected(w)


def test_an_interrupted_message_is_answered_whole(front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    w = AttentionWidget(*tensors(1, 2, 6, 8))
    row = {"kind": "row", "layer": 0, "batch": 0, "head": 0, "stage": "weights", "query": 1}

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(requests.ANSWERS, "column", interrupted)
    with pytest.raises(KeyboardInterrupt):
        w._receive(w, {"requests": [{**row, "id": "1"}, {**row, "id": "2", "kind": "column"}, {**row, "id": "3"}]}, [])
    (answer,) = front_end.custom(w)
    replies = answer.data["content"]["replies"]
    assert [(reply["id"], reply["ok"]) for reply in replies] == [("1", True), ("2", False), ("3", False)]
    assert replies[2]["error"] == "interrupted: ask again"
    assert len(answer.buffers) == 1


def stops(error: type[BaseException]) -> Callable[..., Any]:
    """Return what raises an error, whatever it is given."""

    def stop(*_: Any, **__: Any) -> None:
        raise error

    return stop


def taken(w: AttentionWidget, error: type[BaseException], act: Callable[[], None]) -> None:
    """Have a front-end do something that an error stops: an interrupt goes on to the kernel, nothing else does."""
    if error is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            act()
    else:
        act()


STOPPED = pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])


@STOPPED
@pytest.mark.parametrize("where", ["_read_traits", "_send_what_differs", "_index"])
def test_what_a_front_end_set_when_it_was_stopped_is_taken_whole_or_put_back(
    where: str, error: type[BaseException], front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = AttentionWidget.from_attention(two_layers().attention, pins=[(3, 9)])
    state = {"head": 1, "query": 2, "key": 4, "palette": "viridis"}
    with monkeypatch.context() as patch:
        patch.setattr(w, where, stops(error))
        taken(w, error, lambda: w.set_state(state))
    wanted = (1, 2, 4, "viridis") if where == "_send_what_differs" else (0, 3, 9, "attnwidget")
    assert (w.head, w.query, w.key, w.palette) == wanted
    held = front_end.state(w)
    assert tuple(held[name] for name in ("head", "query", "key", "palette")) == wanted
    assert held["pins"] == [[wanted[1], wanted[2]]]
    said = [] if error is KeyboardInterrupt else ["there is not enough memory for this"]
    assert front_end.refusals(w) == said
    w.finish()
    assert_shows_what_is_selected(w)


@STOPPED
def test_what_was_not_checked_yet_is_put_back_and_no_later_question_meets_it(
    error: type[BaseException], front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`against` was kept once, of a side that is not there: every question after it ended with that error."""
    sides = {name: Attention(*tensors(1, 2, 8, 4)) for name in ("a", "b", "c")}
    w = compare(sides)
    with monkeypatch.context() as patch:
        patch.setattr("attnwidget._widget.comparison.comparison_widget.nearest", stops(error))
        taken(w, error, lambda: w.set_state({"palette": "viridis", "against": "nobody", "query": 1}))
    assert (w.against, w.palette, w.query) == ("b", "attnwidget", None)
    assert [front_end.state(w)[name] for name in ("against", "palette", "query")] == ["b", "attnwidget", None]
    w.set_state({"query": 1})
    assert w.query == 1
    assert w.comparison["error"] is None


def test_several_traits_set_in_python_are_put_back_where_that_is_stopped() -> None:
    w = two_layers()

    def stopped() -> None:
        with w.hold_trait_notifications():
            w.head, w.query, w.view = 1, 99, "graph"  # not checked yet
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert (w.head, w.query, w.view) == (0, 3, "heatmap")
    with w.hold_trait_notifications():
        w.head, w.view = 1, "graph"
    assert (w.head, w.heads, w.view) == (1, [1], "graph")
    assert w.links is not None
    w.finish()
    assert_shows_what_is_selected(w)


@STOPPED
def test_a_trait_that_was_stopped_on_its_way_to_the_page_is_sent(
    error: type[BaseException], front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = two_layers()
    with monkeypatch.context() as patch:
        patch.setattr(w, "_should_send_property", stops(error))
        with pytest.raises(error):
            w.palette = "viridis"
    assert w.palette == front_end.state(w)["palette"] == "viridis"


@STOPPED
def test_a_message_whose_rules_were_stopped_has_a_reply_to_each_request(
    error: type[BaseException], front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = two_layers()
    row = {"kind": "row", "layer": 0, "batch": 0, "head": 0, "stage": "weights", "query": 1}
    content = {"what_if": {"scale": 2.0}, "requests": [{**row, "id": "1"}, {**row, "id": "2"}]}
    with monkeypatch.context() as patch:
        patch.setattr(w, "_check_rules", stops(error))
        taken(w, error, lambda: w._receive(w, content, []))
    (answer,) = [one for one in front_end.custom(w) if "replies" in one.data["content"]]
    reason = "interrupted: ask again" if error is KeyboardInterrupt else "there is not enough memory for this"
    assert answer.data["content"]["replies"] == [{"id": name, "ok": False, "error": reason} for name in "12"]
    assert w.what_if == front_end.state(w)["what_if"] == {}
    assert front_end.ask(w, {**row, "id": "3"})[0]["ok"]


def test_memory_that_ends_where_all_is_brought_to_a_change_is_said_and_then_there(
    front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = two_layers()
    with monkeypatch.context() as patch:
        patch.setattr(w, "_what_can_wait", stops(MemoryError))
        with pytest.raises(MemoryError):
            w.head = 1
    said = "there is not enough memory for this"
    assert (w.head, w.picture["head"], w.picture["error"]) == (1, 1, said)
    assert front_end.state(w)["picture"]["error"] == said
    w.finish()
    assert_shows_what_is_selected(w)


@pytest.mark.usefixtures("long_from_few_cells")
def test_memory_that_ends_in_a_pass_is_said_and_the_next_head_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    w = AttentionWidget(*torch.randn(2, 1, 2, LONG, 4))

    def ends(self: LevelBuild) -> float:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(LevelBuild, "__next__", ends)
        w.finish()
    assert (w.picture["error"], w.progress) == ("there is not enough memory for this", None)
    w.head = 1
    w.finish()
    assert_shows_what_is_selected(w)
    w.head = 0
    w.finish()
    assert_shows_what_is_selected(w)


ASKED = 10  # questions of each thread


def test_four_threads_leave_one_state(front_end: FrontEnd) -> None:
    w = two_layers()
    att, scales = w.attention[0], [0.1 * n for n in range(1, ASKED + 1)]  # type: ignore[index]
    rows = [att.what_if(rules).block(queries=range(1, 2))[0] for rules in ({}, *({"scale": x} for x in scales))]
    start, failures = threading.Barrier(4), []
    row = {"kind": "row", "layer": 0, "batch": 0, "head": 0, "stage": "weights", "query": 1}

    def run(thread: int) -> None:
        try:
            start.wait()
            for n in range(ASKED):
                if thread == 0:
                    w.layer = n % 2
                elif thread == 1:
                    w.set_state({"head": n % 2, "query": n % 9, "key": n % 12})
                elif thread == 2:
                    w._receive(w, {"what_if": {"scale": scales[n]}, "requests": [{**row, "id": f"{n} {n + 1}"}]}, [])
                else:
                    w._receive(w, {"requests": [{**row, "id": f"{n}"}, {"kind": "retry", "id": f"{n}r"}]}, [])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    replies = {
        reply["id"]: attached(reply, message.buffers)
        for message in front_end.custom(w)
        for reply in message.data["content"].get("replies", [])
    }
    assert sorted(replies) == sorted(name for n in range(ASKED) for name in (f"{n} {n + 1}", f"{n}", f"{n}r"))
    assert all(reply["ok"] for reply in replies.values())
    for name in set(replies) - {f"{n}r" for n in range(ASKED)}:
        found = decode(replies[name]["values"]).ravel()
        _, _, under = name.partition(" ")  # the rules of its own message; else those that were in force, whichever
        wanted = [rows[int(under)]] if under else rows
        assert any(np.allclose(found, x.numpy(), **rounding(att)["weights"]) for x in wanted), name
    w.head = w.head
    w.finish()
    assert_shows_what_is_selected(w)


# What is left of a closed widget.


def plain() -> AttentionWidget:
    return AttentionWidget(*tensors(1, 2, 12, 8), is_causal=True)


def words() -> AttentionWidget:
    return AttentionWidget(*tensors(1, 2, 12, 8), tokens=["a", "Ġb", "c"] * 4, pieces="words")


def compared() -> AttentionWidget:
    return compare(Attention(*tensors(1, 2, 12, 8)), Attention(*tensors(1, 2, 12, 8)))


def named() -> AttentionWidget:
    return AttentionWidget.from_attention({name: Attention(*tensors(1, 2, 12, 8)) for name in ("a", "b")})


def long() -> AttentionWidget:
    return AttentionWidget(*torch.randn(2, LONG, 4))


def seen(view: str) -> Callable[[], AttentionWidget]:
    return lambda: AttentionWidget(*tensors(1, 2, 12, 8), view=view, query=1, key=2, what_if={"scale": 0.3})


def combined() -> AttentionWidget:
    return AttentionWidget(*tensors(1, 2, 12, 8), heads=[0, 1], combine="mean")


KINDS = [plain, words, compared, named, long, combined, *(seen(view) for view in ("graph", "heads", "stages", "text"))]


@contextmanager
def no_collector() -> Iterator[None]:
    """Let nothing go but what nobody names any longer."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def used(make: Callable[[], AttentionWidget]) -> list[weakref.ref[Any]]:
    """Make a widget, look at it from both sides, close it and let it go."""
    w = make()
    attention = w.attention
    att = attention if isinstance(attention, Attention) else attention[0]
    ends = [weakref.ref(x) for x in (w, att, att.q)]
    at = {"layer": 0, "batch": 0, "head": 0, "stage": "weights", "pool": "max"}
    kinds = [{"kind": "row", "query": 1}, {"kind": "spread"}, {"kind": "gradients"}, {"kind": "strongest", "count": 3}]
    tiles = {"kind": "tiles", "view": "a", "tiles": [[3, 3, 0, 0]]}
    w.set_state({"query": 2, "stage": "scaled"})
    w.set_state({"stage": "weights"})
    w._receive(w, {"requests": [{**at, **kind} for kind in [*kinds, tiles]]}, [])
    w._repr_mimebundle_()
    w.close()
    return ends


@pytest.mark.usefixtures("long_from_few_cells")
@pytest.mark.parametrize("make", KINDS, ids=range(len(KINDS)))
def test_the_tensors_of_a_closed_widget_go_with_its_last_name(make: Callable[[], AttentionWidget]) -> None:
    with no_collector():
        assert [end() for end in used(make)] == [None, None, None]


@pytest.mark.usefixtures("long_from_few_cells")
@pytest.mark.parametrize("make", [plain, long, seen("heads")], ids=range(3))
def test_they_go_where_a_loop_runs_too(make: Callable[[], AttentionWidget]) -> None:
    async def in_a_kernel() -> list[weakref.ref[Any]]:
        ends = used(make)
        await asyncio.sleep(0.01)  # what was due on the loop finds nothing to do
        return ends

    with no_collector():
        assert [end() for end in asyncio.run(in_a_kernel())] == [None, None, None]


def stages_of_a_long_head() -> AttentionWidget:
    return AttentionWidget(*torch.randn(2, 900, 4), view="stages")


def evictions() -> AttentionWidget:
    keep = {"policy": "heavy_hitters", "budget": 40}
    return AttentionWidget(*torch.randn(2, 300, 4), is_causal=True, what_if={"keep": keep})


def recall() -> AttentionWidget:
    keep = {"policy": "window", "budget": 40}
    return AttentionWidget(*torch.randn(2, 900, 4), is_causal=True, what_if={"keep": keep})


def long_comparison() -> AttentionWidget:
    return compare(Attention(*torch.randn(2, 900, 4)), Attention(*torch.randn(2, 900, 4)))


@pytest.mark.parametrize(
    ("make", "job"),
    [
        (long, exact_pass.PASS),
        (stages_of_a_long_head, exact_pass.EXACT_STAGES),
        (evictions, EVICTIONS),
        (recall, recall_pass.RECALL),
        (long_comparison, comparison_pass.JOB),
    ],
)
def test_a_closed_widget_takes_no_further_step(
    make: Callable[[], AttentionWidget], job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "AT_ONCE", 1000)
    monkeypatch.setattr(eviction_pass, "MAX_CELLS_AT_ONCE", 0)
    monkeypatch.setattr(recall_pass, "FIRST_SECONDS", -1.0)
    steps: list[None] = []
    step = Scheduler._step

    async def in_a_kernel() -> None:
        w = make()
        scheduler = w._scheduler
        assert job in scheduler.names
        w.close()
        assert scheduler.names == []
        monkeypatch.setattr(Scheduler, "_step", lambda scheduler: [steps.append(None), step(scheduler)][1])
        scheduler._not_before = 0.0
        for _ in range(20):
            await asyncio.sleep(0.001)

    asyncio.run(in_a_kernel())
    assert len(steps) <= 1  # what was due on the loop finds nothing to do


USES: dict[str, Callable[[AttentionWidget], Any]] = {
    "weights": lambda w: w.weights(0),
    "attention": lambda w: w.attention,
    "metrics": lambda w: w.metrics(),
    "update": lambda w: w.update(*tensors(1, 2, 12, 8)),
    "figure": lambda w: w.figure(),
    "to_html": lambda w: w.to_html("never.html"),
    "finish": lambda w: w.finish(),
    "open": lambda w: w.open(),
    "head": lambda w: setattr(w, "head", 1),
    "palette": lambda w: setattr(w, "palette", "viridis"),
    "model_id": lambda w: w.model_id,  # a box of widgets asks for it
    "what_if": lambda w: setattr(w, "what_if", {"causal": True}),
}


@pytest.mark.parametrize("make", [plain, compared], ids=["widget", "comparison"])
def test_a_closed_widget_says_so_and_holds_no_tensor(make: Callable[[], AttentionWidget]) -> None:
    w = make()
    attention = w.attention
    stack = [attention] if isinstance(attention, Attention) else [*attention]
    storage = StorageWeakRef(stack[0].q.untyped_storage())
    receive = w._receive
    w.close()
    w.close()
    assert repr(w) == f"{type(w).__name__}(closed: run its cell again, or make a new widget)"
    assert w.head == 0
    for ask in USES.values():
        with pytest.raises(RuntimeError, match=f"this {type(w).__name__} is closed.*make a new widget"):
            ask(w)
    assert w.head == 0
    receive(w, {"requests": [{"kind": "row", "query": 1}]}, [])  # what another thread was about to take
    w.set_state({"head": 1})
    if make is plain:
        with no_collector():
            del attention, stack, receive
            assert storage.expired()


def test_a_widget_linked_to_a_closed_one_tells_its_front_end(front_end: FrontEnd) -> None:
    one, other = AttentionWidget(*tensors(1, 2, 12, 8)), AttentionWidget(*tensors(1, 2, 12, 8))
    traitlets.link((one, "query"), (other, "query"))
    other.close()
    one.set_state({"query": 3})  # as a click sets it
    assert "a widget that is linked to this one is closed" in front_end.custom(one)[-1].text
    assert one.query == 3


def test_a_widget_may_be_closed_while_it_holds_its_state_back() -> None:
    w = plain()
    with w.hold_sync():
        w.head = 1
        w.close()
    assert w.head == 1


def test_what_was_shown_before_goes_when_others_are_shown() -> None:
    w = AttentionWidget(*tensors(1, 2, 12, 8))
    with no_collector():
        ends = [weakref.ref(x) for x in (w.attention, w.attention.q)]  # type: ignore[union-attr]
        w.update(*tensors(1, 2, 12, 8))
        assert [end() for end in ends] == [None, None]
    w.close()


def test_an_exact_comparison_that_was_interrupted_is_finished_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "AT_ONCE", 1000)  # heads of 1,100 are long
    q, k, v = tensors(1100, 8)
    w = compare(Attention(q, k, v), Attention(q, k, v, is_causal=True))
    assert w.comparison["sampled"] is not None

    def interrupted(*_: Any, **__: Any) -> Iterator[None]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ExactComparison, "message", interrupted)
        with pytest.raises(KeyboardInterrupt):
            w.finish()
    w.finish()
    assert (w.comparison["error"], w.comparison["sampled"]) == (None, None)
