"""The stages view of a long head: sampled at first, the output too, and then exact stage by stage."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from allocations import PeakBytes
from front_end import FrontEnd, decode_cells
from tolerance import rounding, sums, together

from attnwidget import Attention, AttentionWidget
from attnwidget._engine import cost, softmax
from attnwidget._messages.pictures import stage_pictures
from attnwidget._widget.passes.exact_pass import EXACT_STAGES

N = 900


@pytest.fixture(autouse=True)
def _long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "AT_ONCE", 1000)


def attention(n: int = N, heads: int = 2) -> Attention:
    source = torch.Generator().manual_seed(0)
    return Attention(*(torch.randn(1, heads, n, 8, generator=source) for _ in range(3)), is_causal=True)


def kinds(made: dict[str, Any]) -> list[int]:
    return [one["every"] for one in made["pictures"]]


def test_the_output_is_that_of_the_sampled_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    of_rows = softmax.output_rows

    def counted(head: Any, rows: Any) -> Any:
        asked.append(len(rows))
        return of_rows(head, rows)

    monkeypatch.setattr(stage_pictures, "output_rows", counted)
    att = attention()
    made = stage_pictures.stages(att, 0, 1)
    assert kinds(made) == [8, 8, 8, 8]
    assert sum(asked) == 113
    output = made["output"]
    assert (output["query_bin"], output["value_bin"], output["rows"], output["columns"]) == (8, 1, N, 8)
    values, _ = decode_cells(output["values"], output["blocked"])
    wanted = att.output(0, 1)[3::8]
    torch.testing.assert_close(torch.tensor(values).float(), wanted, **together(rounding(att).output, sums(1)))


def test_it_becomes_exact_stage_by_stage(front_end: FrontEnd) -> None:
    att = attention()

    async def main() -> AttentionWidget:
        w = AttentionWidget.from_attention(att, view="stages")
        w.head = 1
        assert kinds(w.stages) == [8, 8, 8, 8]
        assert EXACT_STAGES in w._scheduler.names
        while EXACT_STAGES in w._scheduler.names:
            await asyncio.sleep(0.001)
        return w

    w = asyncio.run(main())
    sent = [message.state["stages"] for message in front_end.of(w) if "stages" in message.state]
    steps = [kinds(made) for made in sent if made is not None and made["head"] == 1]
    assert steps == [[8, 8, 8, 8], [8, 8, 8, 8], [1, 8, 8, 8], [1, 1, 8, 8], [1, 1, 1, 8], [1, 1, 1, 1]]
    cost.AT_ONCE = 1 << 26
    at_once = stage_pictures.stages(att, 0, 1)
    cost.AT_ONCE = 1000
    shown, wanted = ([*made["pictures"], made["output"]] for made in (w.stages, at_once))
    for one, other in zip(shown, wanted, strict=True):
        assert (one["query_bin"], one["low"] is None) == (other["query_bin"], other["low"] is None)
        values, marks = decode_cells(one["values"], one["blocked"])
        numbers, other_marks = decode_cells(other["values"], other["blocked"])
        assert (marks == other_marks).all()
        step = (one["values"].get("scale") or {"high": 0.0})["high"] / 60
        bound = together(sums(N), size=max(abs(other["low"]), abs(other["high"])))
        assert float(torch.tensor(values - numbers).nan_to_num().abs().max()) <= step + bound["atol"]


def test_it_ends_with_the_view_and_with_the_head() -> None:
    async def main() -> None:
        w = AttentionWidget.from_attention(attention(), view="stages")
        assert EXACT_STAGES in w._scheduler.names
        w.view = "heatmap"
        assert EXACT_STAGES not in w._scheduler.names
        w.view = "stages"
        w.head = 1
        while EXACT_STAGES in w._scheduler.names:
            await asyncio.sleep(0.001)
        assert w.stages["head"] == 1

    asyncio.run(main())


def test_a_step_of_the_scale_costs_sampled_rows_alone() -> None:
    async def main() -> None:
        w = AttentionWidget.from_attention(attention(4000, 1), view="stages")
        with PeakBytes() as held:
            w.what_if = {"scale": 0.3}
        assert max(kinds(w.stages)) == 32
        assert held.peak < 4 * 4000 * 4000  # the weights

    asyncio.run(main())


def test_in_a_script_finish_makes_it_exact() -> None:
    w = AttentionWidget.from_attention(attention(), view="stages")
    assert kinds(w.stages) == [8, 8, 8, 8]
    w.finish()
    assert kinds(w.stages) == [1, 1, 1, 1]


def test_a_very_long_one_stays_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_pictures, "MAX_EXACT_STAGE_CELLS", N * N - 1)

    async def main() -> None:
        w = AttentionWidget.from_attention(attention(), view="stages")
        assert EXACT_STAGES not in w._scheduler.names

    asyncio.run(main())
