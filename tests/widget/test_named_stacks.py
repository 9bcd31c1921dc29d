"""Several stacks in one widget: towers and forward passes, of which one is shown, all of it."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from front_end import FrontEnd, decode_cells, decode_tokens

from attnwidget import Attention, AttentionStack, AttentionWidget, capture
from attnwidget._widget.stores.named_stacks import LabeledStack


def attention(queries: int, keys: int | None = None, heads: int = 2, seed: int = 0) -> Attention:
    torch.manual_seed(seed)
    keys = queries if keys is None else keys
    return Attention(*(torch.randn(1, heads, n, 8) for n in (queries, keys, keys)))


def stack(queries: int, keys: int | None = None, layers: int = 2, heads: int = 2, seed: int = 0) -> AttentionStack:
    return AttentionStack([attention(queries, keys, heads, seed + layer) for layer in range(layers)])


def translator(**show: Any) -> AttentionWidget:
    """Four words of a source, as many of a target: lengths tell nothing of whose they are."""
    return AttentionWidget.from_attention(
        {"encoder": stack(4, layers=3, seed=1), "decoder": stack(4, heads=4, seed=2), "cross": stack(4, seed=3)},
        tokens={"encoder": list("abcd"), "cross": list("wxyz")},
        key_tokens={"cross": list("abcd")},
        **show,
    )


def shown(front_end: FrontEnd, w: AttentionWidget) -> dict[str, Any]:
    """What a front-end draws by now."""
    state = front_end.state(w)
    return {
        "cells": decode_cells(state["picture"]["values"], state["picture"]["blocked"])[0],
        "tokens": decode_tokens(state["tokens"]),
        "key_tokens": decode_tokens(state["key_tokens"]),
        "facts": state["facts"],
        "findings": state["findings"],
        "layer": state["layer"],
    }


def test_another_stack_is_all_of_the_other_stack_in_one_message(front_end: FrontEnd) -> None:
    w = translator(layer=1, head=1)
    before, count = shown(front_end, w), len(front_end.of(w))
    assert before["tokens"] == before["key_tokens"] == list("abcd")
    w.stack = "cross"
    after = shown(front_end, w)
    first, *others = front_end.of(w)[count:]
    assert set(first.state) == {"stack"}  # what is wanted; `facts` says what is shown
    assert [{"facts", "picture", "tokens", "key_tokens", "thumbnails"} <= set(one.state) for one in others] == [True]
    assert (after["tokens"], after["key_tokens"]) == (list("wxyz"), list("abcd"))
    expected = stack(4, seed=3)[1].block(head=1)
    torch.testing.assert_close(torch.tensor(after["cells"]), expected, rtol=0, atol=1e-6)
    assert after["facts"]["version"] > before["facts"]["version"]
    assert {name: after["facts"][name] for name in ("stack", "stacks", "forward", "forwards")} == {
        "stack": "cross",
        "stacks": ["encoder", "decoder", "cross"],
        "forward": 0,
        "forwards": 1,
    }


def test_a_stack_without_tokens_shows_positions_though_it_is_as_long(front_end: FrontEnd) -> None:
    w = translator()
    w.stack = "decoder"
    assert (shown(front_end, w)["tokens"], shown(front_end, w)["key_tokens"]) == (None, None)
    w.stack = "encoder"
    assert shown(front_end, w)["tokens"] == list("abcd")


@pytest.mark.parametrize("view", ["heatmap", "graph", "heads", "stages", "text"])
def test_a_widget_that_was_elsewhere_is_as_one_made_there(front_end: FrontEnd, view: str) -> None:
    """Nothing of another stack is left in a cache under the same layer, sample, head, query and key."""
    w, fresh = translator(view=view), translator(view=view, stack="cross")
    w.query, w.key = 2, 1
    w.stack = "cross"
    for one in (w, fresh):
        one.query, one.key = 2, 1
    ours, theirs = front_end.state(w), front_end.state(fresh)
    versions = [state["facts"].pop("version") for state in (ours, theirs)]
    assert versions[0] != versions[1]
    for name in ("picture", "thumbnails", "survey", "links", "stages", "pair", "findings", "deviation", "facts",
                 "tokens", "key_tokens", "layer", "head", "pins", "errors"):  # fmt: skip
        assert ours[name] == theirs[name], name
    row = {"id": 1, "kind": "row", "layer": 1, "batch": 0, "head": 1, "stage": "weights", "query": 3}
    assert front_end.ask(w, row) == front_end.ask(fresh, row)
    find = {"id": 2, "kind": "find", "layer": 0, "batch": 0, "side": "query", "text": "a", "start": 0, "count": 5}
    assert front_end.ask(w, find) == front_end.ask(fresh, find)


def test_the_selection_stays_where_it_is_there_and_pins_go_with_their_text() -> None:
    w = translator(layer=2, head=1, query=3, key=0)
    w.stack = "decoder"
    assert (w.layer, w.head, w.pins, w.query) == (1, 1, [], None)
    w.head, w.heads = 3, [1, 3]
    w.stack = "cross"
    assert (w.layer, w.head, w.heads) == (1, 0, [1, 0]) or w.head in w.heads


def test_pins_stay_in_another_forward_of_the_same_stack() -> None:
    w = AttentionWidget.from_attention({i: stack(3 + i, seed=i) for i in range(3)}, query=2, key=1)
    w.forward = 2
    assert (w.query, w.key) == (2, 1)
    w.pins = [(4, 4)]
    w.forward = 0
    assert w.pins == []
    w.pins = [(2, 2)]
    w.attention = stack(2)  # so too where other tensors are assigned
    assert w.pins == []


def test_only_the_chosen_forward_is_read(front_end: FrontEnd) -> None:
    read: list[int] = []

    def source(forward: int) -> Callable[[], LabeledStack]:
        def make() -> LabeledStack:
            read.append(forward)
            return LabeledStack(stack(5 + forward % 3, seed=forward), tokens=[f"t{i}" for i in range(5 + forward % 3)])

        return make

    w = AttentionWidget.from_attention({forward: source(forward) for forward in range(50)}, forward=7)
    assert (read, w.forward, w.forwards, w.stack, w.stacks) == ([7], 7, 50, "", ("",))
    single = AttentionWidget.from_attention(stack(6, seed=7))
    sizes = [sum(message.size for message in front_end.of(one)) for one in (w, single)]
    assert sizes[0] < sizes[1] + 2000
    w.forward = -1
    w.forward = 7
    w.forward = 49
    assert (read, w.forward) == ([7, 49], 49)
    assert repr(w) == "AttentionWidget(forward 49 of 50, layer 0 of 2, head 0 of 2, 6 queries × 6 keys)"


def test_forwards_and_names_together() -> None:
    w = AttentionWidget.from_attention(
        {(0, "encoder"): stack(4), (0, "decoder"): stack(3), (1, "encoder"): stack(5), (2, "decoder"): stack(2)},
        tokens={"encoder": None, (0, "decoder"): list("xyz")},
        stack="decoder",
    )
    assert (w.forwards, w.stacks, w.tokens) == (3, ("encoder", "decoder"), list("xyz"))
    w.forward = 1  # which has no decoder: what is shown is named, never another's under its name
    assert (w.forward, w.stack, w.stacks, w.tokens) == (1, "encoder", ("encoder",), None)
    with pytest.raises(ValueError, match="no stack of forward 1 is called 'decoder': did you mean 'encoder'"):
        w.stack = "decoder"
    with w.hold_trait_notifications():
        w.forward, w.stack = 2, "decoder"
    assert (w.forward, w.stack, w._selected.shape.Q) == (2, "decoder", 2)


@pytest.mark.parametrize(
    ("sources", "show", "error", "said"),
    [
        ({}, {}, ValueError, "there are no stacks"),
        ({"a": 3}, {}, TypeError, "the stack 'a' is int: give an Attention"),
        ({"": stack(2)}, {}, TypeError, "a stack is called ''"),
        ({True: stack(2)}, {}, TypeError, "a stack is called True"),
        ({-1: stack(2)}, {}, TypeError, "a stack is called -1"),
        ({1: stack(2), 3: stack(2)}, {}, ValueError, "forwards are numbered 1, 3: number them from 0"),
        ({"a": stack(2)}, {"stack": "b"}, ValueError, "no stack is called 'b': give one of 'a'"),
        ({"a": stack(2)}, {"stack": 2}, TypeError, "stack is 2: give the name of a stack"),
        ({"a": stack(2)}, {"forward": 1}, IndexError, "forward 1 is not there"),
        ({"a": stack(2)}, {"tokens": {"b": ["x", "y"]}}, ValueError, "tokens has 'b', which is not a stack"),
        ({"a": stack(2)}, {"tokens": {"a": ["x"]}}, ValueError, "tokens"),
        ({"a": lambda: 3}, {}, TypeError, "attention is int"),
    ],
)
def test_what_cannot_be_is_refused_at_once(sources: Any, show: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=re.escape(said)):
        AttentionWidget.from_attention(sources, **show)


def test_a_refused_choice_changes_nothing(front_end: FrontEnd) -> None:
    w = AttentionWidget.from_attention(
        {"a": stack(3), "b": stack(4), "bad": lambda: 3},  # type: ignore[dict-item, return-value]
        tokens={"a": list("abc"), "b": list("abc")},
    )
    before = front_end.state(w)
    for name, error in (("b", ValueError), ("bad", TypeError), ("c", ValueError)):
        with pytest.raises(error):
            w.stack = name
        assert (w.stack, w.tokens, w._selected.shape.Q) == ("a", list("abc"), 3)
    assert front_end.state(w) == before
    w.set_state({"stack": "nowhere"})
    assert "no stack is called 'nowhere'" in front_end.refusals(w)[0]
    w.set_state({"stack": ["a"], "forward": "x"})
    assert (w.stack, w.forward, len(front_end.refusals(w))) == ("a", 0, 2)


def test_a_front_end_chooses(front_end: FrontEnd) -> None:
    w = translator()
    w.set_state({"stack": "decoder"})
    assert shown(front_end, w)["facts"]["stack"] == w.stack == "decoder"
    assert front_end.refusals(w) == []


def test_other_rules_stay_where_they_can_be_and_are_taken_back_with_the_reason(front_end: FrontEnd) -> None:
    w = AttentionWidget.from_attention({"square": stack(4), "also": stack(4), "short": stack(2)})
    w.what_if = {"drop_keys": [3]}
    w.stack = "also"
    assert w.what_if == {"drop_keys": [3]}
    assert float(w._selected.block()[0, 3]) == 0
    w.stack = "short"
    assert w.what_if == {}
    assert "the other rules are off" in front_end.refusals(w)[-1]
    torch.testing.assert_close(w._selected.block(), stack(2)[0].block(), rtol=0, atol=0)


def test_words_are_those_of_each_stack() -> None:
    pieces = ["▁the", "▁ba", "nk", "▁lent"]
    w = AttentionWidget.from_attention({"a": stack(4), "b": stack(4), "c": stack(3)},
                                       tokens={"a": pieces, "b": pieces[::-1]}, pieces="words")  # fmt: skip
    assert w._selected.shape.Q == 3
    w.stack = "b"
    assert (w.pieces, w._tokens_of("query")) != ("words", None)
    w.stack = "c"
    assert (w.pieces, w._selected.shape.Q, w._tokens_of("query")) == ("pieces", 3, None)


def test_what_was_set_of_a_stack_is_there_when_it_is_chosen_again() -> None:
    w = translator()
    w.stack = "decoder"
    w.tokens = list("1234")
    w.attention = stack(4, heads=4, seed=9)
    w.stack = "encoder"
    assert w.tokens == list("abcd")
    w.stack = "decoder"
    assert w.tokens == list("1234")
    torch.testing.assert_close(w.attention[0].block(), stack(4, heads=4, seed=9)[0].block(), rtol=0, atol=0)  # type: ignore[index]


def test_patches_and_image_are_those_of_each_stack() -> None:
    vision = LabeledStack(stack(7), grid=(2, 3), grid_start=1)
    w = AttentionWidget.from_attention({"vision_model": vision, "language_model": stack(5)}, view="image")
    w.stack = "language_model"
    assert (w.grid, w.grid_start, w.view) == (None, None, "heatmap")
    w.stack = "vision_model"
    assert (w.grid, w.grid_start) == ((2, 3), 1)


def test_replaced_tensors_are_not_kept() -> None:
    old = stack(4)
    kept = weakref.ref(old)
    w = AttentionWidget.from_attention({"a": old, "b": stack(3)})
    w.attention = stack(5)
    del old
    gc.collect()
    assert kept() is None


def test_a_file_holds_what_is_shown_and_says_which(tmp_path: Path) -> None:
    w = AttentionWidget.from_attention(
        {(i, name): stack(4, seed=i) for i in range(2) for name in ("encoder", "decoder")}, stack="decoder", forward=1
    )
    page = w.to_html(tmp_path / "a.html").read_text(encoding="utf-8")
    assert "Saved from attnwidget: forward pass 1, decoder, all layers, all heads." in page


def test_a_figure_says_which() -> None:
    pytest.importorskip("matplotlib")
    w = AttentionWidget.from_attention({(i, "decoder"): stack(4, seed=i) for i in range(2)}, forward=1)
    words = [text.get_text() for text in w.figure().findobj(lambda one: hasattr(one, "get_text"))]
    assert any("forward 1 · decoder · layer 0" in text for text in words)


def test_a_capture_of_several_forwards_is_chosen_by_number() -> None:
    model = torch.nn.Transformer(8, 2, 1, 1, 16, batch_first=True).eval()
    with capture(model) as cap, torch.no_grad():
        for length in (3, 4, 5):
            model(torch.randn(1, length, 8), torch.randn(1, length - 1, 8))
    w = cap.widget()
    assert (w.forwards, w.forward) == (3, 0)
    names = w.stacks
    assert len(names) == 3
    w.forward = 2
    assert w.attention.names == cap[2].stacks()[w.stack].attention.names  # type: ignore[union-attr]
    assert w._selected.shape.Q == 5
    w.stack = names[2]
    assert (w._selected.shape.Q, w._selected.shape.K) == (4, 5)
    again = cap.widget(forward=1, stack="decoder")
    assert (again.forward, again.stack, again._selected.shape.Q) == (1, "decoder", 3)
    crossing = cap.widget(forward=1, stack="decoder", cross=True)
    assert (crossing.forward, crossing.stack, crossing._selected.shape.K) == (1, "decoder, cross-attention", 4)
    alone = cap[2].widget()
    assert (alone.forwards, alone.forward, alone._selected.shape.Q) == (1, 0, 5)
    with pytest.raises(IndexError, match="forward 3 is not there"):
        cap.widget(forward=3)


def test_a_capture_of_one_stack_has_nothing_to_choose() -> None:
    model = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(1, 3, 8)
    with capture(model) as cap:
        model(x, x, x)
    w = cap.widget()
    assert (w.stack, w.stacks, w.forwards) == ("", ("",), 1)
    assert repr(w) == "AttentionWidget(layer 0 of 1, head 0 of 2, 3 queries × 3 keys)"
