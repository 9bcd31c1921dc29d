"""A comparison of heads of one model: each side at its own layer, sample and head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from front_end import decode
from torch import Tensor

from attnwidget import Attention, AttentionStack, AttentionWidget, ComparisonWidget, compare

L, B, H, N = 3, 2, 4, 6
A_AT, B_AT = (2, 0, 3), (1, 1, 2)  # layer, sample, head


@pytest.fixture
def stack() -> AttentionStack:
    layers = [Attention(*torch.randn(3, B, H, N, 8), is_causal=i == 1) for i in range(L)]
    return AttentionStack(layers)


def widget_at(stack: AttentionStack, place: tuple[int, int, int], **show: Any) -> AttentionWidget:
    layer, batch, head = place
    return AttentionWidget.from_attention(stack, layer=layer, batch=batch, head=head, **show)


def weights(stack: AttentionStack, place: tuple[int, int, int], stage: str = "weights") -> Tensor:
    layer, batch, head = place
    return stack[layer].block(stage, batch=batch, head=head)


def shown(w: ComparisonWidget, name: str) -> Tensor:
    found: Any = w.comparison
    assert found["error"] is None, found["error"]
    return torch.from_numpy(decode(found[name]["values"]).copy())


def asked(w: ComparisonWidget, **request: Any) -> dict[str, Any]:
    sent: list[Any] = []
    w.send = lambda *message: sent.append(message)  # type: ignore[method-assign, misc, assignment]
    w._receive(None, {"requests": [{"id": "1", **request}]}, None)
    reply: dict[str, Any] = sent[-1][0]["replies"][0]
    return reply


def test_widgets_are_compared_at_their_own_selections(stack: AttentionStack) -> None:
    w = compare({"L2H3": widget_at(stack, A_AT), "L1H2": widget_at(stack, B_AT)}, view="compare")
    assert (w.layer, w.batch, w.head) == A_AT
    assert w.against_at == B_AT
    a, b = weights(stack, A_AT), weights(stack, B_AT)
    for name, expected in (("a", a), ("b", b), ("change", b - a)):
        torch.testing.assert_close(shown(w, name), expected)
    assert repr(w).endswith("; 'L1H2' at layer 1, sample 1, head 2)")


def test_two_heads_of_one_model_are_one_line(stack: AttentionStack) -> None:
    w = compare((stack, 2, 3), (stack, 1, 2), (stack, 0, 0), view="compare")
    assert w.sides == ["A", "B", "C"]
    torch.testing.assert_close(shown(w, "b"), weights(stack, (1, 0, 2)))
    w.against = "C"
    torch.testing.assert_close(shown(w, "b"), weights(stack, (0, 0, 0)))
    w.against = "B"
    assert w.against_at == (1, 0, 2)
    torch.testing.assert_close(shown(w, "b"), weights(stack, (1, 0, 2)))


def test_both_sides_can_be_picked(stack: AttentionStack) -> None:
    w = compare(stack, stack, view="compare")
    assert w.against_at is None  # of two attentions one selection for both, as it was
    w.head = 1
    torch.testing.assert_close(shown(w, "b"), weights(stack, (0, 0, 1)))
    w.set_state({"against_at": list(B_AT)})  # as a front-end does
    torch.testing.assert_close(shown(w, "b"), weights(stack, B_AT))
    w.layer, w.head = 1, 0
    torch.testing.assert_close(shown(w, "a"), weights(stack, (1, 0, 0)))
    torch.testing.assert_close(shown(w, "b"), weights(stack, B_AT))
    w.against_at = None
    torch.testing.assert_close(shown(w, "b"), weights(stack, (1, 0, 0)))


def test_every_answer_is_of_both_places(stack: AttentionStack) -> None:
    w = compare((stack, 2, 3), (stack, 1, 2), view="compare", against_at=B_AT, query=3)
    a, b = weights(stack, (2, 0, 3))[3], weights(stack, B_AT)[3]
    found: Any = w.changes
    places = decode(found["places"]).astype(int)
    torch.testing.assert_close(torch.from_numpy(decode(found["b"]["values"]).copy()), b[places])
    at = {"layer": 2, "batch": 0, "head": 3, "stage": "weights", "against": w.against}
    reply = asked(w, kind="change", queries=[3, 4], keys=[2, 3], against_at=list(B_AT), **at)
    assert reply["a"] == pytest.approx(float(a[2]), rel=1e-5)
    assert reply["b"] == pytest.approx(float(b[2]), rel=1e-5)
    stale = asked(w, kind="change", queries=[3, 4], keys=[2, 3], against_at=None, **at)
    assert stale["error"] == "another side, or another head of it, is selected"


def test_tokens_are_those_of_each_sample() -> None:
    stack = AttentionStack([Attention(*torch.randn(3, 2, 2, 3, 4)), Attention(*torch.randn(3, 2, 2, 3, 4))])
    tokens = [["a", "b", "c"], ["a", "x", "y"]]
    w = compare((stack, 0, 0), (stack, 1, 1), tokens=tokens, view="compare")
    found: Any = w.comparison
    assert found["differ"] == [0, 0]
    w.against_at = (1, 1, 1)
    found = w.comparison
    assert found["differ"] == [2, 2]


def test_a_keyword_is_that_of_all_sides(stack: AttentionStack) -> None:
    w = compare(widget_at(stack, A_AT), widget_at(stack, B_AT), head=1)
    assert (w.layer, w.batch, w.head, w.against_at) == (2, 0, 1, (1, 1, 1))
    both = compare(widget_at(stack, A_AT), widget_at(stack, A_AT))
    assert (both.head, both.against_at) == (3, None)
    beside = compare(stack, widget_at(stack, B_AT))  # one without a selection looks where the other does
    assert (beside.layer, beside.batch, beside.head, beside.against_at) == (*B_AT, None)


def test_rules_and_stages_are_those_of_the_layers_that_are_compared() -> None:
    q, k, v = torch.randn(3, 1, 2, N, 4)
    stack = AttentionStack([Attention(q, k, v), Attention.from_weights(torch.randn(1, 2, N, N).softmax(-1), v)])
    w = compare((stack, 0, 0), (stack, 0, 1))
    assert "scores" in w.facts["stages"]
    w.against_at = (1, 0, 1)
    assert w.facts["stages"] == ["weights", "contribution"]
    with pytest.raises(ValueError, match="only weights were given"):
        w.stage = "scores"
    with pytest.raises(ValueError, match="B: "):
        w.what_if = {"scale": 2.0}


def test_a_stage_that_the_other_place_has_not_is_left() -> None:
    q, k = torch.randn(2, 1, 2, N, 4)
    stack = AttentionStack([Attention(q, k), Attention.from_weights(torch.randn(1, 2, N, N).softmax(-1))])
    w = compare((stack, 0, 0), (stack, 0, 1), stage="scores", view="compare")
    w.against_at = (1, 0, 1)
    assert w.stage == "weights"
    assert w.comparison["error"] is None


@pytest.mark.parametrize(
    ("place", "error", "line"),
    [
        ((3, 0, 0), IndexError, "layer 3 is not there"),
        ((0, 2, 0), IndexError, "batch 2 is not there"),
        ((0, 0, 4), IndexError, "head 4 is not there"),
        ((0, 0), TypeError, r"give \(layer, batch, head\), such as"),
        ("head 3", TypeError, r"give \(layer, batch, head\), such as"),
    ],
)
def test_a_place_that_is_not_there_is_refused(stack: AttentionStack, place: Any, error: Any, line: str) -> None:
    w = compare(stack, stack)
    with pytest.raises(error, match=line):
        w.against_at = place
    assert w.against_at is None
    sent: list[Any] = []
    w.send = lambda *message: sent.append(message)  # type: ignore[method-assign, misc, assignment]
    w.set_state({"against_at": place})
    assert "refused" in sent[0][0]
    with pytest.raises(error, match=line):
        compare(stack, stack, against_at=place)


def test_a_side_that_is_no_head_of_a_stack_is_refused(stack: AttentionStack) -> None:
    with pytest.raises(TypeError, match=r"A is a tuple of 2: give \(stack, layer, head\)"):
        compare((stack, 1), stack)  # type: ignore[arg-type]
    with pytest.raises(IndexError, match="head 9 is not there"):
        compare((stack, 0, 0), (stack, 0, 9))


@pytest.mark.parametrize("stage", ["weights", "masked"])
def test_long_heads_are_compared_at_their_own_places(stage: str) -> None:
    stack = AttentionStack(
        [Attention(*torch.randn(2, 1, 3, 1100, 4), window=200), Attention(*torch.randn(2, 1, 3, 1100, 4))]
    )
    w = compare((stack, 0, 2), (stack, 1, 1), view="compare", stage=stage)
    w.finish()
    found: Any = w.comparison
    plain = compare((stack, 1, 1), (stack, 1, 1), view="compare", stage=stage)
    plain.finish()
    assert found["b"]["high"] == pytest.approx(plain.comparison["a"]["high"], rel=1e-5)


def test_a_file_and_a_figure_have_both_places(stack: AttentionStack, tmp_path: Path) -> None:
    w = compare((stack, 2, 3), (stack, 1, 2), view="compare", query=2)
    assert w.to_html(tmp_path / "a.html", layers="selected").stat().st_size > 0
    w.view = "heatmap"
    w.view = "compare"
    assert w.figure() is not None
