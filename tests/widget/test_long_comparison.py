"""The comparison of long heads: windows cost what they hold; what is sampled becomes exact in slices."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from allocations import PeakBytes
from front_end import BLOCKED, FrontEnd, decode_cells
from tolerance import approx, rounding, together

from attnwidget import Attention, compare
from attnwidget._engine import cost
from attnwidget._engine.level_cache import LevelKey
from attnwidget._messages.answers import requests
from attnwidget._messages.pictures import comparison
from attnwidget._widget.comparison.comparison_widget import ComparisonWidget
from attnwidget._widget.passes import comparison_pass

KEY = LevelKey(0, 0, "weights", "max")


def tensors(n: int) -> torch.Tensor:
    return torch.randn(3, n, 8, generator=torch.Generator().manual_seed(n))


def pair(a: Attention, b: Attention) -> comparison.ComparedPair:
    n = a.shape.Q
    return comparison.ComparedPair(a, b, *[comparison.together((n, n), (None, None), ("A", "B"), "")] * 2)


def part_of(made: dict[str, Any], name: str) -> tuple[Any, Any]:
    return decode_cells(made[name]["values"], made[name]["blocked"])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads of 1,100 are long."""
    monkeypatch.setattr(cost, "AT_ONCE", 1000)


# What known rules exclude is not computed.

OTHERS = [("weights", "max"), ("weights", "mean"), ("masked", "mean"), ("contribution", "max")]


@pytest.mark.parametrize(
    ("stage", "pool"),
    [("contribution", "mean"), ("masked", "max"), *(pytest.param(*one, marks=pytest.mark.thorough) for one in OTHERS)],
)
def test_windows_cost_what_they_hold_and_are_the_same_numbers(stage: str, pool: str) -> None:
    q, k, v = tensors(3000)
    key = LevelKey(0, 0, stage, pool)
    windows = [Attention(q, k, v, is_causal=True, window=window) for window in (64, 200)]
    found = comparison.ComparedPicture(pair(*windows), key, (6, 6))
    held = 2 * 3000 * (512 + 200 + 6)
    assert sum(found.steps()) <= 2 * held  # once for the log-normalizers
    span = comparison.ComparedPair.span
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison.ComparedPair, "span", lambda *about: about[-1])
        whole = comparison.ComparedPicture(pair(*windows), key, (6, 6))
        assert sum(whole.steps()) == 2 * 3000**2
    assert comparison.ComparedPair.span is span
    size = max(float(one.values[one.allowed].abs().max()) for one in whole.blocks())
    for one, other in zip(found.blocks(), whole.blocks(), strict=True):
        assert torch.equal(one.allowed, other.allowed)
        bound = together(rounding(windows[0]).pooled(stage, 36), rounding(windows[1]).pooled(stage, 36), size=size)
        torch.testing.assert_close(one.values[one.allowed], other.values[one.allowed], **bound)


@pytest.mark.parametrize(
    "stage",
    ["masked", *(pytest.param(one, marks=pytest.mark.thorough) for one in ("scores", "weights", "contribution"))],
)
def test_the_largest_change_of_a_bin_holds_a_few_rows(stage: str) -> None:
    q, k, v = tensors(2300)
    both, places = pair(Attention(q, k, v), Attention(q, k.flip(0), v)), range(252, 2300)
    with PeakBytes() as held:
        found = comparison.peak(both, KEY._replace(stage=stage), places, places)
    assert held.peak < 16e6  # of bytes: each side of the bin is 17 MB
    one, other = (side.block(stage, queries=places, keys=places) for side in (both.a, both.b))
    size = (other - one).abs()
    wanted = float(size.max())
    bound = together(*(rounding(side)[stage] for side in (both.a, both.b)), size=float(one.abs().max()))
    assert abs(found["value"]) == approx(wanted, bound)
    assert float(size[found["query"] - 252, found["key"] - 252]) == approx(wanted, bound)


def windows(n: int) -> comparison.ComparedPair:
    q, k, v = tensors(n)
    return pair(*[Attention(q, k, v, is_causal=True, window=window) for window in (256, 512)])


def test_windows_are_exact_at_once_as_long_as_they_hold_few_cells() -> None:
    assert not windows(4000).takes_long(KEY)
    assert windows(12_000).takes_long(KEY)  # 12,000 × 1,024 of each
    q, k, _ = tensors(4000)
    assert pair(Attention(q, k), Attention(q, k, is_causal=True)).takes_long(KEY)


@pytest.mark.parametrize("stage", ["masked", "contribution"])
def test_the_cells_that_are_counted_are_those_that_are_read(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    both, key = windows(3000), LevelKey(0, 0, stage, "max")
    monkeypatch.setattr(comparison.ComparedPicture, "_normalizing", lambda *_: ())
    read = sum(comparison.ComparedPicture(both, key, (6, 6)).steps())
    assert read == pytest.approx(both.cells(key, range(3000), range(3000)), rel=0.02)  # blocks are of whole bins
    assert read < 2 * 3000 * (2 * 512 + 12)


def test_the_largest_change_is_looked_for_where_there_may_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    both, read = windows(3000), []
    blocks = comparison.ComparedPair.blocks

    def counted(self: comparison.ComparedPair, *where: Any) -> Any:
        read.append(2 * len(where[3]) * len(where[4]))
        return blocks(self, *where)

    monkeypatch.setattr(comparison.ComparedPair, "blocks", counted)
    found = comparison.peak(both, KEY, range(3000), range(3000))
    assert sum(read) <= both.cells(KEY, range(3000), range(3000)) < 3000**2
    change = both.b.block() - both.a.block()
    assert (found["query"], found["key"]) == divmod(int(change.abs().argmax()), 3000)
    nothing = {"value": None, "a": None, "b": None, "query": 10, "key": 2000}
    assert comparison.peak(both, KEY, range(10, 20), range(2000, 2010)) == nothing


@pytest.mark.thorough
def test_many_questions_for_a_change_share_the_budget_of_their_message() -> None:
    q, k, v = tensors(3000)
    w = compare(*[Attention(q, k, v, is_causal=True, window=window) for window in (256, 512)])
    where = {"kind": "change", "layer": 0, "batch": 0, "head": 0, "stage": "weights", "against": "B"}
    asked = [{**where, "id": str(at), "queries": [0, 1500], "keys": [0, 1500]} for at in range(64)]
    made = requests.answer(w._request_context(), {"requests": asked})
    assert made is not None
    answered = [reply["ok"] for reply in made[0]["replies"]]
    needed = cost.CHANGE * w._both(0, 0).cells(KEY, range(1500), range(1500))
    assert answered == [at < cost.MAX_CELLS // needed for at in range(64)]
    assert 0 < sum(answered) < 64


def test_what_is_compared_at_once_is_within_the_budget() -> None:
    most = comparison.MOST_AT_ONCE * cost.AT_ONCE
    assert most <= cost.MAX_CELLS
    q, k, _ = tensors(9000)
    both = pair(Attention(q, k), Attention(q, k, is_causal=True))
    assert sum(comparison.rough(both, KEY).steps()) <= 4 * comparison.MAX_SAMPLED_CELLS


def test_the_largest_change_is_looked_for_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, _ = tensors(1500)
    both = pair(Attention(q, k), Attention(q, k, is_causal=True))
    everything = range(1500), range(1500)
    whole = comparison.peak(both, KEY, *everything)
    monkeypatch.setattr(comparison, "CELLS_AT_ONCE", 1500 * 64)
    with PeakBytes() as held:
        found = comparison.peak(both, KEY, *everything)
    assert (found["query"], found["key"]) == (whole["query"], whole["key"])
    assert held.peak < 1500 * 1500 * 4


# What is sampled becomes exact.


async def settled(w: ComparisonWidget) -> None:
    while w.comparison["error"] is None and w.comparison["sampled"] is not None:
        await asyncio.sleep(0.001)


def test_a_long_comparison_becomes_exact_and_says_how_far_it_is(
    quick: None, front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison_pass, "FIRST_REPORT", 0)
    monkeypatch.setattr(comparison_pass, "SLICE_SECONDS", 0)
    monkeypatch.setattr(comparison, "QUERIES", 66)
    q, k, v = tensors(1100)
    a, b = Attention(q, k, v), Attention(q, k, v, is_causal=True)

    async def main() -> ComparisonWidget:
        w = compare(a, b)
        assert w.comparison["sampled"] == {"first": 1, "every": 3, "exact": 0}
        await settled(w)
        return w

    w = asyncio.run(main())
    sent = [state["comparison"] for message in front_end.of(w) if "comparison" in (state := message.state)]
    rows = [made["sampled"]["exact"] for made in sent if made["sampled"] is not None]
    assert rows == sorted(rows)
    assert rows[0] == 0 < rows[-1]
    change = torch.nn.functional.pad(b.block() - a.block(), (0, 1, 0, 1)).view(367, 3, 367, 3).permute(0, 2, 1, 3)
    wanted = change.reshape(367, 367, 9)
    wanted = wanted.gather(2, wanted.abs().argmax(2, keepdim=True))[..., 0].numpy()
    for made in (w.comparison, sent[-2]):
        exact = slice(0, None if made["sampled"] is None else made["sampled"]["exact"])
        values, kinds = part_of(made, "change")
        apart = abs(np.where(kinds == BLOCKED, wanted, values) - wanted)[exact]
        assert apart.max() <= made["change"]["high"] / 2  # the steps of the colors
    for made in sent:
        assert sum(len(made[name]["values"]["data"]) for name in ("a", "b", "change")) <= 240 * 1024


def test_it_is_kept_and_known_again(quick: None) -> None:
    q, k, v = torch.randn(3, 1, 2, 1100, 8, generator=torch.Generator().manual_seed(0))

    async def main() -> None:
        w = compare(Attention(q, k, v), Attention(q, k, v, is_causal=True))
        await settled(w)
        first = w.comparison
        w.head = 1
        assert w.comparison["sampled"] is not None
        w.head = 0
        assert w.comparison["sampled"] is None
        assert w.comparison["a"] is first["a"]
        w.what_if = {"scale": 0.5}
        assert w.comparison["sampled"] is not None

    asyncio.run(main())


def test_it_goes_on_after_the_picture_changes_and_ends_with_the_view(quick: None) -> None:
    q, k, v = torch.randn(3, 1, 2, 1100, 8, generator=torch.Generator().manual_seed(0))

    async def main() -> None:
        w = compare(Attention(q, k, v), Attention(q, k, v, is_causal=True))
        w.head = 1  # ends what waits, but not this
        assert comparison_pass.JOB in w._scheduler.names
        w.view = "heatmap"
        assert comparison_pass.JOB not in w._scheduler.names
        w.view = "compare"
        await settled(w)
        assert w.comparison["head"] == 1

    asyncio.run(main())


def test_in_a_script_finish_makes_it_exact(quick: None) -> None:
    q, k, v = tensors(1100)
    w = compare(Attention(q, k, v), Attention(q, k, v, is_causal=True))
    assert w.comparison["sampled"] is not None
    w.finish()
    assert w.comparison["sampled"] is None
    assert w.picture["sampled"] is None


def test_a_key_of_a_long_head_is_listed_once_it_is_known(quick: None) -> None:
    q, k, v = tensors(1100)
    w = compare(Attention(q, k, v), Attention(q, k, v, is_causal=True), key=3)
    assert w.changes is None
    w.finish()
    assert w.changes["side"] == "key"


def test_a_very_long_one_is_first_of_few_rows_then_of_more(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "MAX_SAMPLED_CELLS", 1100 * 100)
    monkeypatch.setattr(comparison_pass, "FIRST_REPORT", 0)
    monkeypatch.setattr(comparison_pass, "SLICE_SECONDS", 0)
    q, k, v = tensors(1100)
    seen: list[tuple[int, bool]] = []

    async def main() -> None:
        w = compare(Attention(q, k, v), Attention(q, k, v, is_causal=True))
        seen.append((w.comparison["query_bin"], w.comparison["sampled"] is not None))
        w.observe(
            lambda change: seen.append((change.new["query_bin"], change.new["sampled"] is not None)), "comparison"
        )
        await settled(w)

    asyncio.run(main())
    assert list(dict.fromkeys(seen)) == [(11, True), (3, True), (3, False)]


def test_tensors_that_change_on_the_way_are_told(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison_pass, "SLICE_SECONDS", 0)
    q, k, v = tensors(1100)

    async def main() -> None:
        w = compare(Attention(q, k, v), Attention(q, k, v, is_causal=True))
        q.add_(1)
        await settled(w)
        assert "changed while they were compared" in w.comparison["error"]

    asyncio.run(main())
