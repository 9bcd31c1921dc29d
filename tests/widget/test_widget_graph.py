"""Several heads, several pins, their links, and tensors that are replaced."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import ipywidgets
import numpy as np
import pytest
import torch
from front_end import FrontEnd, decode, decode_cells
from tolerance import rounding
from torch import Tensor
from torch.testing import assert_close

from attnwidget import Attention, AttentionStack, AttentionWidget
from attnwidget._messages.codec import encoding
from attnwidget._utils import throttle


def widget(**show: Any) -> AttentionWidget:
    torch.manual_seed(0)
    return AttentionWidget(*torch.randn(3, 1, 4, 6, 8), **show)


def links_of(w: AttentionWidget) -> tuple[np.ndarray, np.ndarray]:
    """Partners and weights as the front-end reads them."""
    return decode(w.links["partners"]), decode(w.links["weights"])


def drawn(w: AttentionWidget) -> Tensor:
    """The numbers of the picture."""
    return torch.tensor(decode_cells(w.picture["values"], w.picture["blocked"])[0]).nan_to_num(0)  # blocked is 0


def test_head_is_one_of_heads_whichever_is_set() -> None:
    w = widget(heads=[1, 3])
    assert (w.head, w.heads) == (1, [1, 3])
    w.head = 3
    assert w.heads == [1, 3]
    w.head = 2
    assert w.heads == [2]
    w.heads = [0, 1]
    assert w.head == 0
    w.heads = (1, -1, 1)
    assert (w.head, w.heads) == (1, [1, 3])


def test_query_and_key_are_the_last_pin_whichever_is_set() -> None:
    w = widget(pins=[(1, 2), (3, None)])
    assert (w.query, w.key) == (3, None)
    w.query, w.key = 5, 0
    assert w.pins == [(5, 0)]
    w.pins = [(0, 1), (-1, -2)]
    assert (w.query, w.key, w.pins) == (5, 4, [(0, 1), (5, 4)])
    w.pins = []
    assert (w.query, w.key) == (None, None)
    w.query = 2
    w.query = None
    assert w.pins == []


@pytest.mark.parametrize(
    ("show", "error", "match"),
    [
        ({"heads": [0, 99]}, IndexError, "head 99 is not there"),
        ({"heads": []}, ValueError, "give at least one head"),
        ({"heads": 3}, TypeError, "give a list of heads"),
        ({"heads": [True]}, TypeError, "give a list of heads"),
        ({"pins": [(99, 0)]}, IndexError, "query 99 is not there"),
        ({"pins": [(0, 99)]}, IndexError, "key 99 is not there"),
        ({"pins": [(None, None)]}, TypeError, "pairs"),
        ({"pins": [1, 2]}, TypeError, "pairs"),
        ({"threshold": 2}, ValueError, "from 0 to 1"),
        ({"threshold": "much"}, TypeError, "from 0 to 1"),
        ({"direction": "left"}, ValueError, "direction"),
    ],
)
def test_what_is_not_there_is_refused(show: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        widget(**show)
    w = widget()
    before = w.heads, w.pins, w.threshold
    ((name, value),) = show.items()
    with pytest.raises(error, match=match):
        setattr(w, name, value)
    assert (w.heads, w.pins, w.threshold) == before


@pytest.mark.parametrize("direction", ["query", "key"])
def test_the_graph_has_the_strongest_links_of_every_token(direction: str) -> None:
    w = widget(view="graph", heads=[0, 2], direction=direction)
    partners, weights = links_of(w)
    assert partners.shape == weights.shape == (2, 6, 3)
    for place, head in enumerate(w.heads):
        dense = w.attention.block(head=head)
        dense = dense if direction == "query" else dense.mT
        assert_close(torch.tensor(weights[place]), dense.topk(3).values, **rounding(w.attention).weights)
        assert (partners[place] == dense.topk(3).indices.numpy()).all()


def test_links_are_sent_for_the_graph_only_and_follow_heads_and_top_k(front_end: FrontEnd) -> None:
    w = widget()
    assert w.links is None
    w.view = "graph"
    assert w.links["heads"] == [0]
    w.heads = [0, 3]
    assert w.links["heads"] == [0, 3]
    w.top_k = 5
    assert links_of(w)[0].shape == (2, 6, 5)
    sent = len(front_end.of(w))
    w.threshold = 0.5  # how they are drawn is the front-end's
    assert [set(message.state) for message in front_end.of(w)[sent:]] == [{"threshold"}]


@pytest.mark.thorough
def test_links_keep_to_the_budget_of_an_interaction() -> None:
    q = torch.randn(1, 12, 2000, 4)
    w = AttentionWidget(q, q, view="graph", heads=range(12), top_k=10)
    size = len(w.links["partners"]["data"]) + len(w.links["weights"]["data"])
    assert size <= encoding.BUDGET
    assert w.links["partners"]["shape"] == [12, 2000, 1]


def test_two_widgets_can_be_linked() -> None:
    one, two = widget(), widget()
    for name in ("head", "query", "key"):
        ipywidgets.link((one, name), (two, name))
    one.head, one.query, two.key = 3, 4, 1
    assert (two.head, two.heads, two.query, one.key) == (3, [3], 4, 1)
    assert one.pins == two.pins == [(4, 1)]


# Other tensors.


def test_update_replaces_the_picture_and_keeps_what_is_still_there() -> None:
    w = widget(is_causal=True, head=3, query=5, key=1, tokens=list("abcdef"))
    q, k, v = torch.randn(3, 1, 4, 6, 8)
    w.update(q, k, v)
    att = Attention(q, k, v, is_causal=True)
    assert_close(drawn(w), att.block(head=3), **rounding(att).weights)
    assert (w.head, w.query, w.key, w.facts["version"]) == (3, 5, 1, 1)
    assert w.get_state()["tokens"] is not None


def test_update_with_fewer_of_everything_drops_what_is_gone() -> None:
    w = widget(head=3, heads=[1, 3], query=5, key=1, tokens=list("abcdef"))
    w.update(*torch.randn(3, 1, 2, 4, 8))
    assert (w.head, w.query, w.key) == (0, None, 1)
    assert w.heads == [1] or w.heads == [0]
    assert w.head in w.heads
    assert w.get_state()["tokens"] is None
    assert w.picture["queries"] == 4


def test_update_that_is_refused_changes_nothing() -> None:
    w = widget()
    before = w.attention, w.picture
    with pytest.raises(ValueError, match="head size"):
        w.update(torch.randn(4, 8), torch.randn(4, 6))
    with pytest.raises(TypeError, match="is_causal"):
        w.update(*torch.randn(3, 4, 8), is_casual=True)
    assert (w.attention, w.picture) == before


def test_another_attention_or_stack_can_be_assigned() -> None:
    w = widget()
    layers = [Attention(*torch.randn(2, 1, 2, 5, 8)), Attention(*torch.randn(2, 1, 3, 7, 8))]
    w.attention = AttentionStack(layers)
    w.layer = 1
    assert (w.facts["heads"], w.facts["queries"]) == (3, 7)
    with pytest.raises(TypeError, match="update"):
        w.attention = torch.randn(4, 4)


def test_of_many_updates_the_last_is_drawn_and_nothing_of_the_others_is_kept(
    front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    due: list[Callable[[], None]] = []  # in the place of timers: it runs when the test says so

    def timer(seconds: float, function: Callable[[], None]) -> SimpleNamespace:
        assert seconds == throttle.INTERVAL
        return SimpleNamespace(start=partial(due.append, function))

    monkeypatch.setattr(throttle, "time", SimpleNamespace(monotonic=lambda: 0.0))
    monkeypatch.setattr(throttle, "threading", SimpleNamespace(Timer=timer))
    w = widget()
    kept = []
    for step in range(30):
        q, k, v = torch.randn(3, 1, 4, 6, 8)
        kept.append(weakref.ref(q))
        w.update(q, k, v)
        if step == 29:
            last = Attention(q, k, v).block(head=w.head)
    del q, k, v
    sent = [message for message in front_end.of(w) if "picture" in message.state]
    assert len(sent) == 2  # as it was opened, and the first update; those in between were skipped
    assert not torch.equal(drawn(w), last)
    (late,) = due
    late()
    assert_close(drawn(w), last, **rounding(w.attention).weights)
    gc.collect()
    assert [ref() for ref in kept[:-1]] == [None] * 29


# Stages that not every attention has.


def test_weights_in_hand_are_shown_as_they_are() -> None:
    weights = torch.rand(2, 1, 3, 4, 5)
    w = AttentionWidget.from_weights(weights, layer=1, head=2)
    assert torch.equal(drawn(w), weights[1, 0, 2])
    assert w.facts["stages"] == ["weights"]
    assert w.facts["head_size"] is None
    with pytest.raises(ValueError, match="only weights were given"):
        w.stage = "scores"
    assert w.stage == "weights"


def test_contribution_needs_values() -> None:
    q, k, v = torch.randn(3, 5, 8)
    w = AttentionWidget(q, k, v, stage="contribution")
    assert_close(drawn(w), w.attention.block() * v.norm(dim=1), **rounding(w.attention).contribution)
    with pytest.raises(ValueError, match="no v"):
        AttentionWidget(q, k, stage="contribution")


def test_a_layer_without_the_stage_in_view_shows_its_weights() -> None:
    layers = [Attention(*torch.randn(3, 1, 2, 5, 8)), Attention.from_weights(torch.rand(1, 2, 5, 5))]
    w = AttentionWidget.from_attention(AttentionStack(layers), stage="scaled")
    w.layer = 1
    assert (w.stage, w.picture["stage"], w.picture["error"]) == ("weights", "weights", None)


def test_biases_windows_and_softcaps_reach_the_attention() -> None:
    q, k, v = torch.randn(3, 6, 8)
    show = {"bias": torch.randn(6, 6), "window": 3, "softcap": 2.0, "is_causal": True}
    w = AttentionWidget(q, k, v, stage="capped", **show)
    within = rounding(w.attention, added=float(show["bias"].abs().max()))
    assert_close(drawn(w), 2 * torch.tanh(q @ k.T / 8**0.5 / 2), **within.masked)
    w.stage = "weights"
    assert_close(drawn(w), Attention(q, k, v, **show).block(), **within.weights)


def test_links_of_several_long_heads_are_sent_as_far_as_they_are_quick() -> None:
    q, k = torch.randn(2, 1, 4, 4096, 4, generator=torch.Generator().manual_seed(0))
    plain = AttentionWidget(q, k, view="graph", heads=[0, 1, 2, 3])
    assert plain.links is None  # the view says so, and draws what is pinned
    window = AttentionWidget(q, k, is_causal=True, window=64, view="graph", heads=[0, 1, 2, 3])
    assert window.links is not None
    assert window.links["heads"] == [0, 1, 2, 3]
