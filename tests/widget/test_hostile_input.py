"""What comes from a front-end: made plain and bounded, tried before it is kept, checked as a whole."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from front_end import FrontEnd

from attnwidget import Attention, AttentionStack, AttentionWidget, compare
from attnwidget._utils.plain import MAX_ITEMS, as_plain


def tensors(*shape: int) -> list[torch.Tensor]:
    return list(torch.randn(3, *shape))


def layers_that_differ() -> AttentionStack:
    """A decoder's: its second layer has fewer keys and heads, the third weights only."""
    q, k, v = tensors(1, 4, 16, 8)
    return AttentionStack(
        [Attention(q, k, v), Attention(q[:, :2], k[:, :2, :7], v[:, :2, :7]), Attention.from_weights(torch.eye(9))]
    )


def from_front_end(w: AttentionWidget, **traits: Any) -> None:
    w.comm.handle_msg({"content": {"data": {"method": "update", "state": traits}}, "buffers": []})


def assert_whole(w: AttentionWidget) -> None:
    """Every trait is such as its own definition takes, the lists belong to the single ones, the picture to them all."""
    for name in ("layer", "batch", "head", "heads", "query", "key", "pins", "stage", "what_if"):
        assert w.traits()[name]._validate(w, getattr(w, name)) == getattr(w, name)
    assert w.head in w.heads
    assert (w.query, w.key) == (w.pins[-1] if w.pins else (None, None))
    assert [w.picture[name] for name in ("layer", "batch", "head", "stage")] == [w.layer, w.batch, w.head, w.stage]
    assert w.picture["error"] is None


WHERE = {"layer": 0, "batch": 0, "head": 0, "stage": "weights"}
GOOD = {"id": "good", "kind": "row", "query": 2, **WHERE}


# A layer that has less.


@pytest.mark.parametrize(
    ("who", "view", "pins", "kept"),
    [
        ("Python", "graph", [(3, 15)], [(3, None)]),
        ("front-end", "heatmap", [(None, 15)], []),
        ("Python", "stages", [(3, 15), (2, 3)], [(2, 3)]),
        ("front-end", "stages", [(2, 3), (4, 15)], [(4, None)]),
        ("front-end", "graph", [(3, 15)], [(3, None)]),
    ],
)
def test_a_layer_with_fewer_keys_and_heads_keeps_what_is_there(
    pins: Any, kept: Any, view: str, who: str, front_end: FrontEnd
) -> None:
    w = AttentionWidget.from_attention(layers_that_differ(), head=3, heads=[3, 1], pins=pins, view=view)
    if who == "Python":
        w.layer = 1
    else:
        from_front_end(w, layer=1)
    assert (w.layer, w.head, w.heads, w.pins) == (1, 0, [0], kept)
    assert_whole(w)
    assert front_end.state(w)["pins"] == [list(pin) for pin in kept]
    from_front_end(w, query=1)
    assert w.query == 1
    assert front_end.refusals(w) == []


def test_a_layer_and_a_place_that_it_has_not_are_refused_together(front_end: FrontEnd) -> None:
    w = AttentionWidget.from_attention(layers_that_differ(), pins=[(3, 15)])
    from_front_end(w, layer=1, query=2, key=14)
    assert (w.layer, w.query, w.key) == (0, 3, 15)
    assert "key 14 is not there" in front_end.refusals(w)[0]
    from_front_end(w, layer=1, query=2, key=6)
    assert (w.layer, w.query, w.key) == (1, 2, 6)
    assert_whole(w)


def test_pieces_and_words_keep_only_a_stage_that_they_have() -> None:
    w = AttentionWidget(*tensors(4, 8), tokens=["a", "Ġb", "c", "d"], stage="capped", softcap=2.0)
    w.set_state({"pieces": "words"})
    assert w.stage == "weights"
    assert_whole(w)


@pytest.mark.parametrize("who", ["Python", "front-end"])
@pytest.mark.parametrize(("rules", "layer"), [({"drop_keys": [15]}, 1), ({"scale": 0.5}, 2), ({"softcap": 3.0}, 2)])
def test_rules_that_cannot_be_in_the_layer_that_one_goes_to_are_put_back_with_a_word(
    rules: dict[str, Any], layer: int, who: str, front_end: FrontEnd
) -> None:
    stack = layers_that_differ()
    w = AttentionWidget.from_attention(stack, what_if=rules)
    if who == "Python":
        w.layer = layer
    else:
        from_front_end(w, layer=layer)
    assert w.what_if == front_end.state(w)["what_if"] == {}
    assert_whole(w)
    assert [said[:22] for said in front_end.refusals(w)] == ["the other rules are of"]
    assert torch.equal(w.weights(2), stack[layer].block("weights", queries=range(2, 3))[0])


def test_rules_stay_in_a_layer_where_they_can_be(front_end: FrontEnd) -> None:
    w = AttentionWidget.from_attention(layers_that_differ(), what_if={"drop_keys": [-1], "scale": 0.5})
    w.layer = 1
    assert w.what_if == {"drop_keys": [-1], "scale": 0.5}
    assert float(w.weights(0)[6]) == 0
    assert_whole(w)
    assert front_end.refusals(w) == []


def test_rules_that_one_side_of_a_comparison_cannot_have_are_put_back(front_end: FrontEnd) -> None:
    q, k, v = tensors(1, 2, 6, 4)
    a = AttentionStack([Attention(q, k, v), Attention(q, k, v)])
    b = AttentionStack([Attention(q, k, v), Attention.from_weights(torch.eye(6).expand(1, 2, 6, 6))])
    w = compare(a, b, what_if={"scale": 0.5}, stage="scaled")
    from_front_end(w, layer=1)
    assert (w.layer, w.what_if, w.stage) == (1, {}, "weights")
    assert w.comparison["error"] is None
    assert len(front_end.refusals(w)) == 1


# Values that are no plain, bounded ones.

RULES: list[Any] = [
    {"scale": 10**300}, {"scale": 10**400}, {"scale": 10**5000}, {"scale": math.inf}, {"scale": -math.inf},
    {"scale": math.nan}, {"scale": 1e300}, {"scale": 1e-300}, {"temperature": 1e-30, "scale": 1e30},
    {"window": 10**300}, {"window": 2**60}, {"softcap": 1e-320}, {"softcap": 10**300}, {"dtype": math.inf},
    {"dtype": 10**5000}, {"a\ud800": 1}, {"scale": "\ud800"}, {"drop_keys": ["\ud800"]}, {"drop_keys": [10**400]},
    {"drop_keys": {"3": 1}}, {"causal": [[]]}, {"causal": {}}, {"mask": b"x"}, {1: 2}, [], None, 3, "x", b"x",
]  # fmt: skip


@pytest.mark.parametrize("way", ["a trait", "a message"])
def test_rules_that_cannot_be_computed_are_refused_and_the_rest_is_answered(way: str, front_end: FrontEnd) -> None:
    w = AttentionWidget(*tensors(1, 2, 6, 8))
    for number, rules in enumerate(RULES, 1):
        if way == "a trait":
            w.set_state({"what_if": rules})
            (reply,) = front_end.ask(w, GOOD)
        else:
            w._receive(w, {"what_if": rules, "requests": [GOOD]}, [])
            (reply,) = front_end.custom(w)[-1].data["content"]["replies"]
        assert reply["ok"], rules
        assert w.what_if == {}
        assert len(front_end.refusals(w)) == number, rules
        assert_whole(w)


def test_rules_are_tried_before_they_are_kept(front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    w = AttentionWidget(*tensors(1, 2, 6, 8))

    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("value cannot be converted to type float without overflow")

    with monkeypatch.context() as patch:
        patch.setattr(Attention, "block", fails)
        from_front_end(w, what_if={"scale": 2.0})
    assert w.what_if == front_end.state(w)["what_if"] == {}
    assert "without overflow" in front_end.refusals(w)[0]
    from_front_end(w, what_if={"scale": 2.0})
    assert w.what_if == {"scale": 2.0}


ODD: list[tuple[str, Any]] = [
    ("top_k", 0), ("top_k", -3), ("top_k", 2**40), ("pins", {}), ("pins", {"a": 1}), ("pins", [[]]), ("pins", "ab"),
    ("pins", [{"0": 1, "1": 2}]), ("pins", [[0, 0]] * 1001), ("pins", [[0, 0]] * MAX_ITEMS), ("heads", {"0": 1}),
    ("heads", bytearray(4)), ("heads", []), ("color_range", {"1": 0, "3": 0}), ("color_range", [0, 10**400]),
    ("threshold", 10**400), ("threshold", math.nan), ("layer", 10**5000), ("query", 10**400), ("head", math.inf),
    ("stack", "\ud800"), ("view", "x" * 100_000), ("stage", "contribution"),
]  # fmt: skip


def test_what_is_odd_is_refused_and_both_sides_hold_the_same(front_end: FrontEnd) -> None:
    w = AttentionWidget(*tensors(2, 1, 2, 6, 8)[:2])
    before = w.get_state()
    for number, (name, value) in enumerate(ODD, 1):
        w.set_state({name: value, "query": 2} if name != "query" else {name: value})
        assert w.get_state() == before, f"{name}: a change is taken whole, or not at all"
        assert_whole(w)
        assert len(front_end.refusals(w)) == number, name
        assert front_end.of(w)[-1].state[name] == before[name]
    w.set_state({"against": "B", "query": 2})  # a trait of comparisons alone
    assert (w.query, len(front_end.refusals(w))) == (2, len(ODD))


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [("heads", [1, 1, 0], [1, 0]), ("what_if", {"sinks": None}, {"sinks": False}), ("pins", [[2, 3]], [[2, 3]])],
)
def test_the_front_end_hears_what_became_of_its_value(
    name: str, value: Any, kept: Any, front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ipywidgets.widgets.widget.JUPYTER_WIDGETS_ECHO", False)  # it would tell some of them
    w = AttentionWidget(*tensors(1, 2, 6, 8))
    for _ in range(2):  # the second changes nothing here, but there
        before = len(front_end.messages)
        from_front_end(w, **{name: value})
        heard = [message.state[name] for message in front_end.messages[before:] if name in message.state]
        assert [value, *heard][-1] == kept
    assert front_end.refusals(w) == []


def test_top_k_is_one_or_more_in_python_too() -> None:
    w = AttentionWidget(*tensors(4, 8), top_k=3)
    with pytest.raises(ValueError, match="top_k is 0: give 1 to"):
        w.top_k = 0
    assert w.top_k == 3


@pytest.mark.parametrize("value", [10**300, 2**60])
def test_no_window_is_longer_than_any_text(value: int) -> None:
    with pytest.raises(ValueError, match="give at most"):
        Attention(*tensors(4, 8), window=value)


def test_a_plain_value_is_a_copy_within_bounds() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    kept = {"a": [1, 0.5, None, True, "x"], "b": {}}
    made = as_plain(kept, "x")
    assert made == kept
    assert made["a"] is not kept["a"]
    for wrong in (deep, [0] * (MAX_ITEMS + 1), {1: 2}, b"", {1}, object(), "x" * 10_001, "\udfff", 2**53 + 1, math.inf):
        with pytest.raises((TypeError, ValueError), match=r"^x (holds|is|has) "):
            as_plain(wrong, "x")


# Messages of many requests.


def test_a_message_of_thousands_of_requests_is_refused_as_a_whole(front_end: FrontEnd) -> None:
    w = AttentionWidget(*tensors(1, 2, 6, 8))
    w._receive(w, {"requests": [{"id": "x" * 200, "kind": "ping"}] * 100_000}, [])
    (told,) = front_end.custom(w)
    assert list(told.data["content"]) == ["refused"]
    assert told.size < 1000
    assert front_end.ask(w, GOOD)[0]["ok"]


@pytest.mark.parametrize("count", [0, 64, 65])
def test_each_request_has_one_reply(count: int, front_end: FrontEnd) -> None:
    w = AttentionWidget(*tensors(1, 2, 6, 8))
    replies = front_end.ask(w, *({"id": str(n), "kind": "ping"} for n in range(count)))
    assert [reply["id"] for reply in replies] == [str(n) for n in range(count)]
    assert [reply["ok"] for reply in replies] == [n < 64 for n in range(count)]


def test_a_reply_holds_neither_a_long_name_nor_a_long_sentence(front_end: FrontEnd) -> None:
    w = AttentionWidget(*tensors(1, 2, 6, 8))
    w._receive(
        w, {"requests": [{"id": "x" * 10**6, "kind": "find", "layer": "\ud800" * 10**6, "against": "y" * 10**6}]}, []
    )
    assert front_end.custom(w)[-1].size < 2000


def test_tiles_of_a_stage_that_is_not_there_are_refused_with_the_reason(front_end: FrontEnd) -> None:
    w = AttentionWidget(*tensors(1, 2, 6, 8)[:2])
    request = {"id": "1", "kind": "tiles", **WHERE, "stage": "contribution", "pool": "max", "view": "a"}
    (reply,) = front_end.ask(w, {**request, "tiles": [[0, 0, 0, 0]]})
    assert reply["error"] == "there is no v, so no contribution: give Attention(q, k, v)"


def test_a_number_that_no_float_holds_is_refused_in_python_too() -> None:
    with pytest.raises(ValueError, match="give a number that a float holds"):
        Attention(*torch.zeros(2, 3, 4), scale=10**400)
