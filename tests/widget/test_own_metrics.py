"""Metrics of the user's own in the heads view: measured in steps, as bars and order, with what goes wrong in them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
import traitlets
from front_end import FrontEnd, decode_cells
from torch import Tensor

from attnwidget import Attention, AttentionStack, AttentionWidget, find_heads
from attnwidget.results import HeadRows

LAYERS, HEADS, N = 2, 3, 12


def stack() -> AttentionStack:
    make = torch.Generator().manual_seed(3)
    return AttentionStack(
        [Attention(*torch.randn(2, 1, HEADS, N, 8, generator=make), is_causal=True) for _ in range(LAYERS)]
    )


def largest(rows: HeadRows) -> Tensor:
    return rows.weights.amax(2)


def by_hand(layers: AttentionStack) -> list[float]:
    return [float(att.block(head=head).amax(1).mean()) for att in layers for head in range(HEADS)]


def sent(w: AttentionWidget, name: str) -> list[float]:
    return list(decode_cells(w.survey["own"][name])[0].tolist())


def test_a_function_of_exact_rows_is_a_metric_of_all_heads() -> None:
    layers = stack()
    w = AttentionWidget.from_attention(layers, view="heads", kinds={"largest": largest}, bar="largest", order="largest")
    assert sent(w, "largest") == pytest.approx(by_hand(layers))
    assert (w.bar, w.order) == ("largest", "largest")
    assert [one["largest"] for one in w.metrics()] == pytest.approx(by_hand(layers))
    assert "kinds" not in w.get_state()
    words = [text.get_text() for text in w.figure().axes[0].texts]
    assert "Ordered by largest, largest first." in words
    least = sorted(by_hand(layers))[3:5]
    w.only_heads = (None, None, sum(least) / 2)  # between two heads: one head's own value would hang on its last bit
    assert any(text.get_text().startswith("2 of 6 heads with largest above") for text in w.figure().axes[0].texts)


TOKENS = ["<s>", *(f"w{at}" for at in range(1, 7)), ".", *(f"a{at}" for at in range(8, N))]


def on_document(rows: HeadRows) -> Tensor:
    """The weight that the answer's tokens put on those of the document that are words."""
    assert rows.tokens is not None
    (document,), (answer,) = rows.segments["document"], rows.segments["answer"]
    words = [at for at in document if rows.tokens[at].startswith("w")]
    outside = (rows.queries < answer.start) | (rows.queries >= answer.stop)
    return rows.weights[..., words].sum(2).masked_fill(outside, torch.nan)


def test_a_function_sees_tokens_and_segments_and_is_called_again_when_they_are_others() -> None:
    layers = stack()
    given = {"document": (1, 8), "answer": (8, N)}
    w = AttentionWidget.from_attention(
        layers, view="heads", tokens=TOKENS, segments=given, kinds={"mine": on_document}, bar="mine"
    )
    each = [att.block(head=head) for att in layers for head in range(HEADS)]
    assert sent(w, "mine") == pytest.approx([float(one[8:, 1:7].sum(1).mean()) for one in each])
    assert [one["mine"] for one in w.metrics()] == pytest.approx(sent(w, "mine"))
    w.segments = {"document": (1, 4), "answer": (8, N)}
    assert sent(w, "mine") == pytest.approx([float(one[8:, 1:4].sum(1).mean()) for one in each])
    w.segments = {"question": (1, 4)}
    assert w.survey["problems"]["mine"] == "layer 0: KeyError: 'document'"


def test_a_kind_by_name_is_told_the_segments_of_the_widget() -> None:
    layers = stack()
    segments = {"context": (1, 8), "answer": (8, N)}
    w = AttentionWidget.from_attention(layers, view="heads", tokens=TOKENS, segments=segments, kinds=["lookback"])
    found = find_heads(layers, kind="lookback", segments={"answer": (8, N)}, top=None)
    wanted = {(one["layer"], one["head"]): one["mean"] for one in found}
    assert sent(w, "lookback") == pytest.approx(
        [wanted[layer, head] for layer in range(LAYERS) for head in range(HEADS)]
    )
    assert w.survey["problems"] == {}


def test_others_can_be_given_later_and_what_named_the_old_ones_goes_back() -> None:
    w = AttentionWidget.from_attention(stack(), view="heads", kinds={"largest": largest}, bar="largest")
    w.kinds = [largest, "lookback"]
    assert (w.bar, list(w.kinds)) == ("largest", ["largest", "lookback"])
    assert "answer" in w.survey["problems"]["lookback"]
    w.kinds = {}
    assert w.bar == "entropy"
    assert w.survey["own"] == {}
    with pytest.raises(traitlets.TraitError, match="largest"):
        w.bar = "largest"


def test_what_a_function_raises_is_said_and_all_else_is_there() -> None:
    def broken(rows: HeadRows) -> Tensor:
        raise ZeroDivisionError("division by zero")

    def of_shape(rows: HeadRows) -> Tensor:
        return rows.weights

    w = AttentionWidget.from_attention(
        stack(), view="heads", kinds={"broken": broken, "shapeless": of_shape, "largest": largest}
    )
    assert w.survey["problems"]["broken"] == "layer 0: ZeroDivisionError: division by zero"
    assert "shape" in w.survey["problems"]["shapeless"]
    assert w.survey["error"] is None
    assert w.survey["metrics"]["entropy"] is not None
    assert sent(w, "largest") == pytest.approx(by_hand(stack()))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"entropy": largest}, "a name of its own"),
        ({"sink": "sink"}, "exists already"),
        ({"effect": largest}, "exists already"),
        ({"mine": 3}, "function of attnwidget.results.HeadRows"),
        ({f"mine {n}": largest for n in range(9)}, "at most 8 are shown"),
        ("retrieve", "did you mean 'retrieval'"),
    ],
)
def test_what_is_no_metric_is_refused(given: Any, says: str) -> None:
    with pytest.raises((TypeError, ValueError, traitlets.TraitError), match=says):
        AttentionWidget.from_attention(stack(), kinds=given)


def test_it_is_measured_in_steps(front_end: FrontEnd) -> None:
    seen: list[int] = []

    def counted(rows: HeadRows) -> Tensor:
        seen.append(rows.weights.shape[0])
        return largest(rows)

    q = torch.randn(4, 1, 8, 700, 8, generator=torch.Generator().manual_seed(1))
    layers = AttentionStack([Attention(one, one, is_causal=True) for one in q])

    async def main() -> None:
        w = AttentionWidget.from_attention(layers, view="heads", kinds={"counted": counted})
        at_once = len(seen)
        while w._scheduler.names:
            await asyncio.sleep(0.001)
        assert len(seen) > at_once
        assert w.survey["problems"] == {}
        wanted = [float(att.block(head=head).amax(1).mean()) for att in layers for head in range(8)]
        assert sent(w, "counted") == pytest.approx(wanted, rel=1e-5)

    asyncio.run(main())
