"""The widget as its users see it: from Python, from the notebook, and in a notebook that was saved."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from front_end import BLOCKED, Array, FrontEnd, decode, decode_cells, decode_tokens
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ipywidgets.widgets import widget as ipywidget
from tolerance import Rounding, approx, rounding

from attnwidget import Attention, AttentionStack, AttentionWidget
from attnwidget._analysis.head_sampling import HeadSampler
from attnwidget._engine import overview as overviews

Make = Callable[..., AttentionWidget]


def tensors(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> list[torch.Tensor]:
    return list(torch.randn(3, *shape, generator=torch.Generator().manual_seed(seed)).to(dtype).unbind(0))


def by_the_book(q: torch.Tensor, k: torch.Tensor, allowed: Any = None) -> Array:
    """softmax(q · kᵀ / √D) of one head, in float64."""
    scores = q.detach().double() @ k.detach().double().mT * q.shape[-1] ** -0.5
    return torch.softmax(scores if allowed is None else scores.masked_fill(~allowed, -torch.inf), -1).numpy()


def drawn(state: dict[str, Any]) -> Array:
    """The numbers of the picture in a state."""
    return decode_cells(state["picture"]["values"], state["picture"]["blocked"])[0]


# Of queries and keys of up to 8 normal numbers, none of which is longer than 6, and up to 16 of them.
WITHIN = Rounding(product=36, score=36 / 2, features=8, keys=16, value=6, length=6, dtype=torch.float32)


def assert_close(found: Any, wanted: Any, stage: str = "weights") -> None:
    assert np.shape(found) == np.shape(wanted)
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), **WITHIN[stage])


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """(batch, head, stage, pool) of each picture that is computed; thumbnails are not counted."""
    computed: list[tuple[Any, ...]] = []
    overview = overviews.overview

    def counted(att: Any, batch: int, head: int, *, size: int, pool: str = "max", stage: str = "weights") -> Any:
        if size == 512:
            computed.append((batch, head, stage, pool))
        return overview(att, batch, head, size=size, pool=pool, stage=stage)

    monkeypatch.setattr(overviews, "overview", counted)
    return computed


def two_layers() -> AttentionStack:
    """Layers that differ in heads, samples and lengths."""
    (q, k, v), (p, _, _) = tensors(2, 4, 6, 8), tensors(1, 2, 3, 8, seed=1)
    return AttentionStack([Attention(q, k, v), Attention(p, k[:1, :1], v[:1, :1])], names=["first", "second"])


# Opening.


def test_the_opening_state_has_all_that_is_drawn(front_end: FrontEnd) -> None:
    q, k, v = tensors(2, 4, 6, 8)
    w = AttentionWidget(q, k, v, head=2, batch=1, tokens=list("abcdef"), title="Six letters", query=-1)
    assert [message.kind for message in front_end.of(w)] == ["comm_open"]
    state = front_end.state(w)
    assert_close(drawn(state), by_the_book(q[1, 2], k[1, 2]))
    picture = {name: value for name, value in state["picture"].items() if name not in ("values", "low", "high")}
    assert picture == {
        "layer": 0, "batch": 1, "head": 2, "stage": "weights", "pool": "max",
        "queries": 6, "keys": 6, "own_keys": 6, "query_bin": 1, "key_bin": 1, "sampled": None,
        "blocked": None, "sink": None, "padding": None, "error": None,
    }  # fmt: skip
    assert (state["picture"]["low"], state["picture"]["high"]) == (drawn(state).min(), drawn(state).max())
    assert state["facts"] == {
        "version": 0, "layers": ["layer 0"], "batches": 2, "heads": 4, "groups": 4, "queries": 6, "keys": 6,
        "head_size": 8, "value_size": 8, "dtype": "float32", "device": "cpu", "is_causal": False,
        "stages": ["scores", "scaled", "masked", "weights", "contribution"], "has_pieces": False,
        "has_sinks": False, "why": False, "targets": None,
        "checked": None,
        "axes_read": None, "head_numbers": None, "model_heads": None, "stack": "", "stacks": [""], "forward": 0,
        "forwards": 1, "request": None, "across": None, "every": 1,
    }  # fmt: skip
    assert decode_tokens(state["tokens"]) == decode_tokens(state["key_tokens"]) == list("abcdef")
    assert (state["title"], state["layer"], state["batch"], state["head"]) == ("Six letters", 0, 1, 2)
    assert (state["query"], state["key"], state["view"], state["stage"]) == (5, None, "heatmap", "weights")
    assert state["_esm"].strip()


def test_thumbnails_are_of_all_heads_each_on_its_own_range(front_end: FrontEnd) -> None:
    q, k, _ = tensors(2, 3, 6, 8)
    state = front_end.state(AttentionWidget(q, k, batch=1))
    values, _ = decode_cells(state["thumbnails"]["values"])
    assert (state["thumbnails"]["layer"], state["thumbnails"]["batch"]) == (0, 1)
    for head in range(3):
        wanted = by_the_book(q[1, head], k[1, head])
        np.testing.assert_allclose(values[head], wanted / wanted.max(), atol=0.5 / 250 * 1.01)


def test_each_widget_has_an_id_of_its_own() -> None:
    q, k, _ = tensors(3, 4)
    made = [AttentionWidget(q, k) for _ in range(3)]
    assert len({w.uid for w in made} - {""}) == 3
    assert [w.model_id for w in made] == [w.uid for w in made]  # by which a page finds the model: kernel/hearing.ts


def test_a_long_matrix_comes_pooled_and_quantised(front_end: FrontEnd) -> None:
    q, k, _ = tensors(1100, 8)
    state = front_end.state(AttentionWidget(q, k))
    picture = state["picture"]
    assert (picture["query_bin"], picture["key_bin"]) == (3, 3)
    assert picture["values"]["shape"] == [367, 367]
    whole = by_the_book(q, k)
    first = whole[:3, :3].max()
    assert drawn(state)[0, 0] == pytest.approx(first, rel=0.03)
    assert picture["high"] == approx(whole.max(), rounding(Attention(q, k)).weights)
    assert decode(state["thumbnails"]["values"]).shape[1:] <= (32, 32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_float_type_is_shown(dtype: torch.dtype, front_end: FrontEnd) -> None:
    q, k, v = tensors(1, 2, 5, 8, dtype=dtype)
    w = AttentionWidget(q, k, v, head=1)
    assert_close(drawn(front_end.state(w)), by_the_book(q[0, 1], k[0, 1]))
    assert w.facts["dtype"] == str(dtype).removeprefix("torch.")
    assert w.weights(0).dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [((5, 8), (1, 1, 1)), ((2, 5, 8), (1, 2, 1)), ((2, 3, 5, 8), (1, 2, 3)), ((4, 2, 3, 5, 8), (4, 2, 3))],
    ids=["2-D", "3-D", "4-D", "5-D"],
)
@pytest.mark.parametrize("of", [torch.Tensor, np.ndarray])
def test_axes_are_layers_samples_and_heads(shape: Any, wanted: Any, of: type, front_end: FrontEnd) -> None:
    q, k, v = tensors(*shape)
    given = (q, k, v) if of is torch.Tensor else [x.numpy() for x in (q, k, v)]
    layers, batches, heads = wanted
    w = AttentionWidget(*given, layer=-1, batch=-1, head=-1)
    assert (w.layer, w.batch, w.head) == (layers - 1, batches - 1, heads - 1)
    assert (len(w.facts["layers"]), w.facts["batches"], w.facts["heads"]) == wanted
    assert_close(drawn(front_end.state(w)), by_the_book(q.reshape(-1, 5, 8)[-1], k.reshape(-1, 5, 8)[-1]))


@pytest.mark.parametrize("several", [list, tuple])
def test_a_list_of_tensors_is_layers_which_may_differ(several: type, front_end: FrontEnd) -> None:
    (q, k, v), (p, m, u) = tensors(1, 2, 5, 8), tensors(1, 4, 3, 8, seed=1)
    w = AttentionWidget(several([q, p]), several([k, m]), several([v, u]), layer=1, head=3)
    assert isinstance(w.attention, AttentionStack)
    assert_close(drawn(front_end.state(w)), by_the_book(p[0, 3], m[0, 3]))


def test_other_axes_by_name(front_end: FrontEnd) -> None:
    q, k, _ = tensors(5, 3, 8)
    w = AttentionWidget(q, k, dims="qhd", head=2)
    assert_close(drawn(front_end.state(w)), by_the_book(q[:, 2], k[:, 2]))


def test_cross_attention_grouped_heads_and_other_value_sizes(front_end: FrontEnd) -> None:
    q, k, v = torch.randn(1, 6, 4, 8), torch.randn(1, 2, 7, 8), torch.randn(1, 2, 7, 3)
    w = AttentionWidget(q, k, v, head=5, tokens=list("abcd"), key_tokens=list("1234567"))
    state = front_end.state(w)
    assert_close(drawn(state), by_the_book(q[0, 5], k[0, 1]))
    assert decode_tokens(state["tokens"]) == list("abcd")
    assert decode_tokens(state["key_tokens"]) == list("1234567")
    facts = w.facts
    assert (facts["heads"], facts["groups"], facts["queries"], facts["keys"]) == (6, 2, 4, 7)
    assert (facts["head_size"], facts["value_size"]) == (8, 3)
    assert AttentionWidget(q, k).facts["value_size"] is None
    assert decode_tokens(front_end.state(AttentionWidget(q, k, tokens=list("abcd")))["key_tokens"]) is None


def test_tensors_in_training_and_views_are_shown_and_left_alone(front_end: FrontEnd) -> None:
    base = torch.randn(1, 2, 10, 16, requires_grad=True)
    q, k = base[:, :, ::2, ::2], base[:, :, 1::2, 1::2]
    before = base.detach().clone()
    w = AttentionWidget(q, k)
    assert_close(drawn(front_end.state(w)), by_the_book(q[0, 0], k[0, 0]))
    assert not w.weights(0).requires_grad
    assert base.grad is None
    assert torch.equal(base, before)
    q.sum().backward()


def test_padding_differs_from_sample_to_sample(front_end: FrontEnd) -> None:
    q, k, v = tensors(2, 1, 4, 8)
    keep = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    w = AttentionWidget(q, k, v, mask=keep, mask_means="keep", mask_dims="bk")
    assert front_end.state(w)["picture"]["blocked"] is None, "nothing is blocked in the first sample"
    w.batch = 1
    state = front_end.state(w)
    values, kinds = decode_cells(state["picture"]["values"], state["picture"]["blocked"])
    assert (kinds[:, 2:] == BLOCKED).all()
    assert (kinds[:, :2] != BLOCKED).all()
    assert_close(values[:, :2], by_the_book(q[1, 0], k[1, 0], keep[1].bool())[:, :2])
    w.stage = "scores"
    assert front_end.state(w)["picture"]["blocked"] is None, "every score has a number"


def test_an_attention_that_is_there_already_is_shown(front_end: FrontEnd) -> None:
    q, k, _ = tensors(1, 2, 5, 8)
    att = Attention(q, k, is_causal=True)
    w = AttentionWidget.from_attention(att, head=1, stage="masked", tokens=list("abcde"))
    assert w.attention is att
    assert w.facts["is_causal"] is True
    assert decode_cells(w.picture["values"], w.picture["blocked"])[1][0].tolist() == [0, *[BLOCKED] * 4]
    stack = two_layers()
    assert AttentionWidget.from_attention(stack).attention is stack
    assert AttentionWidget.from_attention(stack).facts["layers"] == ["first", "second"]


# Setting traits from Python.


def test_another_head_changes_the_picture_and_nothing_else(
    front_end: FrontEnd, pictures: list[tuple[Any, ...]]
) -> None:
    q, k, v = tensors(1, 4, 6, 8)
    w = AttentionWidget(q, k, v, query=2)
    before, sent = front_end.state(w), len(front_end.of(w))
    w.head = 3
    after = front_end.state(w)
    assert_close(drawn(after), by_the_book(q[0, 3], k[0, 3]))
    changed = {"head", "heads", "picture", "deviation"}
    assert {name for name in after if after[name] != before[name]} == changed
    assert {name for message in front_end.of(w)[sent:] for name in message.state} == changed
    assert pictures == [(0, 0, "weights", "max"), (0, 3, "weights", "max")]
    w.head = 3
    assert len(pictures) == 2


def test_looks_and_pins_need_no_new_picture(front_end: FrontEnd, pictures: list[tuple[Any, ...]]) -> None:
    q, k, v = tensors(1, 4, 6, 8)
    w = AttentionWidget(q, k, v)
    w.palette, w.theme, w.color_scale, w.color_range, w.title = "viridis", "dark", "log", (0, 0.5), "Dark"
    w.query, w.key = 1, 2
    assert len(pictures) == 1
    state = front_end.state(w)
    assert [state[name] for name in ("palette", "theme", "color_scale", "color_range", "title", "query", "key")] == [
        "viridis", "dark", "log", [0, 0.5], "Dark", 1, 2
    ]  # fmt: skip


@pytest.mark.parametrize("stage", ["scores", "scaled", "masked"])
def test_another_stage_is_drawn(stage: str, front_end: FrontEnd) -> None:
    q, k, v = tensors(1, 1, 6, 8)
    w = AttentionWidget(q, k, v)
    w.stage = stage
    assert_close(drawn(front_end.state(w)), q[0, 0] @ k[0, 0].T / (1 if stage == "scores" else 8**0.5), stage)
    assert front_end.state(w)["picture"]["stage"] == stage


def test_a_mean_is_drawn_in_place_of_a_maximum(front_end: FrontEnd) -> None:
    q, k, _ = tensors(1024, 4)
    w = AttentionWidget(q, k, pool="mean")
    wanted = by_the_book(q, k).reshape(512, 2, 512, 2).mean((1, 3))
    np.testing.assert_allclose(drawn(front_end.state(w)), wanted, rtol=0.03, atol=wanted.max() / 60_000)
    w.pool = "max"
    assert w.picture["pool"] == "max"
    assert (drawn(front_end.state(w)) >= wanted * 0.97).all()


def test_another_layer_brings_everything_in_step(front_end: FrontEnd, pictures: list[tuple[Any, ...]]) -> None:
    stack = two_layers()
    w = AttentionWidget.from_attention(stack, batch=1, head=3, query=5, key=5, tokens=list("abcdef"))
    told: list[tuple[str, Any]] = []
    w.observe(lambda change: told.append((change["name"], change["new"])), ["batch", "head", "query", "key"])
    w.layer = 1
    state = front_end.state(w)
    selection = {"layer": 1, "batch": 0, "head": 0, "query": None, "key": 5}  # what is not there is let go
    assert {name: state[name] for name in selection} == selection
    assert {name: getattr(w, name) for name in selection} == selection
    assert dict(told) == {"batch": 0, "head": 0, "query": None}
    assert (state["facts"]["heads"], state["facts"]["queries"], state["facts"]["keys"]) == (2, 3, 6)
    assert (state["thumbnails"]["layer"], state["thumbnails"]["batch"]) == (1, 0)
    assert state["thumbnails"]["values"]["shape"] == [2, 3, 6]
    assert state["tokens"] is None, "they are for six queries, and this layer has three"
    assert_close(drawn(state), stack[1].block())
    assert pictures == [(1, 3, "weights", "max"), (0, 0, "weights", "max")]

    w.layer = 0
    state = front_end.state(w)
    assert decode_tokens(state["tokens"]) == list("abcdef"), "and they are back"
    assert state["thumbnails"]["values"]["shape"] == [4, 6, 6]
    assert (w.head, w.query, w.key) == (0, None, 5)


def test_another_sample_brings_its_own_tokens_and_thumbnails(front_end: FrontEnd) -> None:
    q, k, _ = tensors(2, 2, 3, 8)
    w = AttentionWidget(q, k, tokens=[list("abc"), list("xyz")])
    assert decode_tokens(front_end.state(w)["tokens"]) == list("abc")
    w.batch = 1
    state = front_end.state(w)
    assert decode_tokens(state["tokens"]) == decode_tokens(state["key_tokens"]) == list("xyz")
    assert state["thumbnails"]["batch"] == 1
    assert_close(drawn(state), by_the_book(q[1, 0], k[1, 0]))


def test_several_traits_at_once_make_one_picture(pictures: list[tuple[Any, ...]]) -> None:
    w = AttentionWidget.from_attention(two_layers())
    with w.hold_trait_notifications():
        w.layer, w.head, w.stage, w.pool = 1, 1, "scaled", "mean"
    assert pictures == [(0, 0, "weights", "max"), (0, 1, "scaled", "mean")]
    assert (w.picture["layer"], w.picture["head"], w.picture["stage"]) == (1, 1, "scaled")


def test_traits_set_together_arrive_together(front_end: FrontEnd) -> None:
    w = AttentionWidget.from_attention(two_layers(), tokens=list("abcdef"))
    sent = len(front_end.of(w))
    with w.hold_sync():
        w.layer, w.head, w.theme = 1, 1, "dark"
    (message,) = front_end.of(w)[sent:]
    changed = {"layer", "head", "heads", "theme", "facts", "tokens", "key_tokens", "thumbnails", "picture", "deviation"}
    assert set(message.state) == changed
    assert message.state["picture"]["layer"] == 1


def test_what_observers_see_is_in_step(front_end: FrontEnd) -> None:
    w = AttentionWidget.from_attention(two_layers())
    seen: list[tuple[Any, ...]] = []
    w.observe(lambda change: seen.append((w.picture["layer"], w.facts["heads"], w.thumbnails["layer"])), "layer")
    w.layer = 1
    assert seen == [(1, 2, 1)]


def numbers(n: int) -> list[Any]:
    return [n, np.int64(n), np.uint8(n) if n >= 0 else np.int8(n), torch.tensor(n), np.array(n)]


@pytest.mark.parametrize(("name", "last"), [("head", 3), ("query", 4), ("key", 6)])
def test_places_are_any_whole_numbers_and_negative_ones_count_from_the_end(
    name: str, last: int, front_end: FrontEnd
) -> None:
    (q, _, _), (_, k, v) = tensors(1, 4, 5, 8), tensors(1, 2, 7, 8)
    w = AttentionWidget(q, k, v)
    for place, wanted in [*((n, 2) for n in numbers(2)), *((n, last) for n in numbers(-1))]:
        setattr(w, name, 0)
        setattr(w, name, place)
        assert getattr(w, name) == front_end.state(w)[name] == wanted
        assert type(getattr(w, name)) is int
    assert getattr(AttentionWidget(q, k, v, **{name: -1}), name) == last


def test_pins_are_let_go_with_none() -> None:
    q, k, v = tensors(6, 8)
    w = AttentionWidget(q, k, v, query=1, key=-1)
    assert (w.query, w.key) == (1, 5)
    w.query = w.key = None
    assert (w.query, w.key) == (None, None)


def test_tokens_may_be_changed_while_it_is_shown(front_end: FrontEnd, pictures: list[tuple[Any, ...]]) -> None:
    q, k, _ = tensors(2, 1, 3, 8)
    w = AttentionWidget(q, k)
    assert front_end.state(w)["tokens"] is None
    w.tokens = ("a", "b", "c")
    state = front_end.state(w)
    assert decode_tokens(state["tokens"]) == decode_tokens(state["key_tokens"]) == list("abc")
    w.tokens = np.array([list("def"), list("ghi")])
    w.batch = 1
    state = front_end.state(w)
    assert decode_tokens(state["tokens"]) == decode_tokens(state["key_tokens"]) == list("ghi")
    w.key_tokens = ["", "</script>", "日本"]
    assert decode_tokens(front_end.state(w)["key_tokens"]) == ["", "</script>", "日本"]
    w.tokens = None
    state = front_end.state(w)
    assert (state["tokens"], decode_tokens(state["key_tokens"])) == (None, ["", "</script>", "日本"])
    w.key_tokens = None
    assert front_end.state(w)["key_tokens"] is None
    assert len(pictures) == 2


def test_tokens_are_what_was_given() -> None:
    q, k, _ = tensors(3, 8)
    tokens = ["a", "b", "c"]
    assert AttentionWidget(q, k, tokens=tokens).tokens is tokens


# Numbers and words for the user.


@pytest.mark.parametrize("query", [0, 5, -1, np.int64(3), torch.tensor(3)])
def test_weights_are_the_exact_row_of_the_selected_head(query: Any) -> None:
    q, k, v = tensors(2, 4, 6, 8)
    w = AttentionWidget(q, k, v, batch=1, head=2)
    assert_close(w.weights(query), by_the_book(q[1, 2], k[1, 2])[int(query)])
    w.head = 0
    assert_close(w.weights(query), by_the_book(q[1, 0], k[1, 0])[int(query)])


def test_the_repr_is_a_line() -> None:
    w = AttentionWidget.from_attention(two_layers(), layer=1, head=1, tokens=list("abc"))
    assert repr(w) == "AttentionWidget(layer 1 of 2, head 1 of 2, 3 queries × 6 keys)"
    bundle = w._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    assert data["text/plain"] == repr(w)
    assert len(data.pop("image/png")) <= 64 * 1024
    assert len(json.dumps(data)) < 1000


# A saved notebook.


@pytest.mark.parametrize("length", [5, 300])
def test_the_state_can_be_saved(length: int) -> None:
    q, k, v = tensors(1, 2, length, 8)
    w = AttentionWidget(q, k, v, is_causal=True, tokens=["é"] * length, color_range=(0, 1), query=1)
    state, paths, buffers = ipywidget._remove_buffers(w.get_state())
    saved = json.loads(json.dumps(state, allow_nan=False))
    ipywidget._put_buffers(saved, paths, [bytes(buffer) for buffer in buffers])
    values, kinds = decode_cells(saved["picture"]["values"], saved["picture"]["blocked"])
    assert (kinds[np.triu_indices(length, 1)] == BLOCKED).all()
    assert values[0, 0] == 1
    assert decode_tokens(saved["tokens"]) == ["é"] * length
    embedded = w._get_embed_state()
    assert json.dumps(embedded["state"], allow_nan=False)


# What a front-end sends.


def from_front_end(w: AttentionWidget, **traits: Any) -> None:
    w.comm.handle_msg({"content": {"data": {"method": "update", "state": traits}}, "buffers": []})


def test_a_click_is_followed(front_end: FrontEnd, pictures: list[tuple[Any, ...]]) -> None:
    w = AttentionWidget.from_attention(two_layers(), query=4)
    told: list[str] = []
    w.observe(lambda change: told.append(change["name"]), ["layer", "head", "query"])
    from_front_end(w, layer=1, head=1, stage="scaled", query=None)
    assert (w.layer, w.head, w.stage, w.query) == (1, 1, "scaled", None)
    assert pictures[1:] == [(0, 1, "scaled", "max")]
    assert front_end.state(w)["picture"] == w.picture
    assert sorted(told) == ["head", "layer", "query"]
    assert front_end.refusals(w) == []


FOREIGN = ("_view_count", "uid", "title", "facts", "picture", "thumbnails", "tokens", "key_tokens", "_esm", "_css",
           "_model_name", "_anywidget_id", "layout", "keys", "comm", "_stack", "no_such", "")  # fmt: skip


def test_what_is_the_kernels_cannot_be_overwritten(front_end: FrontEnd) -> None:
    q, k, _ = tensors(3, 4)
    w = AttentionWidget(q, k, tokens=list("abc"))
    before, sent, comm = w.get_state(), len(front_end.messages), w.comm
    for value in (None, "x", {}, {"values": None}, 3, []):
        from_front_end(w, **dict.fromkeys(FOREIGN, value))
        assert w.get_state() == before
        assert w.comm is comm
        assert len(front_end.messages) == sent
    from_front_end(w, picture=None, query=2)
    assert w.query == 2, "what may be set is taken"


REFUSED: list[dict[str, Any]] = [
    {"head": 99}, {"head": -3}, {"layer": 1}, {"layer": -99}, {"head": 1, "layer": -99}, {"batch": 10**30},
    {"query": 3}, {"key": -4}, {"head": 1.0}, {"head": "1"}, {"head": None}, {"head": True}, {"query": [1]},
    {"query": {"a": {"b": [1, 2, {"c": None}]}}}, {"stage": "weight"}, {"stage": None}, {"stage": ["weights"]},
    {"pool": 1}, {"view": "tree"}, {"theme": {}}, {"palette": "x" * 10**5}, {"color_scale": [[[]]]},
    {"color_range": [1, 0]}, {"color_range": ["a", "b"]}, {"color_range": [0, 10**400]}, {"color_range": [0, None]},
    {"color_range": 3}, {"color_range": "heads"}, {"head": 1, "stage": "scores", "theme": "darkest"},
    {"query": 1, "key": 2, "head": 7}, {"layer": float("inf")}, {"theme": "half \ud800"},
    {"color_range": [0, float("nan")]},
]  # fmt: skip


def test_what_cannot_be_is_put_back_with_the_reason(front_end: FrontEnd) -> None:
    q, k, _ = tensors(1, 2, 3, 4)
    w = AttentionWidget(q, k, query=0, color_range=(0, 1))
    before = w.get_state()
    for number, traits in enumerate(REFUSED):
        from_front_end(w, **traits)
        assert w.get_state() == before, traits
        *said, refusal = front_end.refusals(w)
        assert len(said) == number, traits
        assert 10 < len(refusal) <= 500
        last = front_end.of(w)[-1].state
        assert set(last) == set(traits), "the front-end hears what is so"
        assert all(json.dumps(last[name]) == json.dumps(before[name]) for name in traits)
    from_front_end(w, head=1)
    assert w.picture["head"] == 1


def test_endless_nesting_is_refused(front_end: FrontEnd) -> None:
    q, k, _ = tensors(1, 2, 3, 4)
    w = AttentionWidget(q, k)
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    before = w.get_state()
    for name in ("head", "stage", "color_range"):
        w.set_state({"query": 1, name: deep})
        assert w.get_state() == before
    assert len(front_end.refusals(w)) == 3


def test_a_state_that_is_none_is_ignored() -> None:
    q, k, _ = tensors(1, 2, 3, 4)
    w = AttentionWidget(q, k, head=1)
    before = w.get_state()
    for junk in (None, [], ["head"], "head", 3):
        w.set_state(junk)  # type: ignore[arg-type]
        assert w.get_state() == before


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters()), inner, max_size=3),
    max_leaves=5,
)
words = st.sampled_from(["weights", "scores", "max", "mean", "log", "linear", "dark", "viridis", "row", "heatmap"])
OURS = ("layer", "batch", "head", "query", "key", "view", "stage", "pool", "color_scale", "color_range", "palette",
        "theme")  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.dictionaries(st.sampled_from([*OURS, *FOREIGN]), st.integers(-4, 4) | words | json_values, max_size=4),
        max_size=4,
    )
)
def test_after_any_junk_the_state_is_whole_and_both_sides_agree(
    front_end: FrontEnd, changes: list[dict[str, Any]]
) -> None:
    w = AttentionWidget.from_attention(two_layers(), tokens=list("abcdef"))
    for change in changes:
        w.set_state(change)
    att = w.attention[w.layer]
    B, H, _, Q, K, _, _ = att.shape
    assert 0 <= w.batch < B
    assert 0 <= w.head < H
    assert w.query is None or 0 <= w.query < Q
    assert w.key is None or 0 <= w.key < K
    assert_in_step(w, front_end)
    w.close()


def assert_in_step(w: AttentionWidget, front_end: FrontEnd) -> None:
    """The picture and all around it are of the selection, and the front-end has the same."""
    state = w.get_state()
    assert [w.picture[name] for name in ("layer", "batch", "head", "stage", "pool")] == [
        w.layer, w.batch, w.head, w.stage, w.pool
    ]  # fmt: skip
    att = w.attention if isinstance(w.attention, Attention) else w.attention[w.layer]
    values = decode_cells(w.picture["values"], w.picture["blocked"])[0]
    assert_close(values, att.block(w.stage, batch=w.batch, head=w.head), w.stage)
    assert w.facts["heads"] == att.shape.H
    assert (w.thumbnails["layer"], w.thumbnails["batch"]) == (w.layer, w.batch)
    held = front_end.state(w)
    wrong = [name for name in state if json.dumps(plain(state[name])) != json.dumps(plain(held[name]))]
    assert wrong == []


def plain(value: Any) -> Any:
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in sorted(value.items())}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def test_a_question_is_answered(front_end: FrontEnd) -> None:
    q, k, _ = tensors(1, 2, 3, 4)
    w = AttentionWidget(q, k)
    where = {"layer": 0, "batch": 0, "head": 1, "stage": "weights"}
    row, ping, wrong = front_end.ask(
        w, {"id": "1", "kind": "row", "query": 2, **where}, {"id": "2", "kind": "ping"}, {"id": "3", "kind": "?"}
    )
    assert_close(decode(row["values"]), by_the_book(q[0, 1], k[0, 1])[2])
    assert ping == {"id": "2", "ok": True}
    assert (wrong["id"], wrong["ok"]) == ("3", False)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(json_values | st.fixed_dictionaries({"requests": st.lists(json_values, max_size=4) | json_values}))
def test_any_message_is_taken_without_a_traceback(front_end: FrontEnd, content: Any) -> None:
    q, k, _ = tensors(1, 2, 3, 4)
    w = AttentionWidget(q, k)
    w._receive(w, content, [])
    asked = content.get("requests") if isinstance(content, dict) else None
    answers = [message.data["content"]["replies"] for message in front_end.custom(w)]
    assert [len(replies) for replies in answers] == ([len(asked)] if isinstance(asked, list) else [])
    w.close()


# When something cannot be computed.


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Heads for whose picture or thumbnail there is no memory."""
    heads: set[int] = set()
    overview = overviews.overview

    def failing(att: Any, batch: int, head: int, **keywords: Any) -> Any:
        if head in heads:
            raise RuntimeError("CUDA out of memory. Tried to allocate 97.00 GiB")
        return overview(att, batch, head, **keywords)

    def steps(self: HeadSampler) -> Iterator[None]:
        if heads & set(self.heads):
            raise RuntimeError("CUDA out of memory. Tried to allocate 97.00 GiB")
        return small(self)

    small = HeadSampler.steps
    monkeypatch.setattr(overviews, "overview", failing)
    monkeypatch.setattr(HeadSampler, "steps", steps)
    return heads


def test_a_head_that_cannot_be_computed_says_why_and_the_others_work(front_end: FrontEnd, broken: set[int]) -> None:
    q, k, _ = tensors(1, 4, 6, 8)
    w = AttentionWidget(q, k)
    broken.add(2)
    w.head = 2
    picture = front_end.state(w)["picture"]
    assert picture["error"] == "CUDA out of memory. Tried to allocate 97.00 GiB"
    assert (picture["head"], picture["queries"], picture["keys"], picture["values"]) == (2, 6, 6, None)
    assert (picture["blocked"], picture["low"], picture["high"]) == (None, None, None)
    w.head = 3
    assert_in_step(w, front_end)
    assert w.picture["error"] is None
    w.head = 2
    assert w.picture["error"]
    broken.clear()
    (reply,) = front_end.ask(w, {"id": "again", "kind": "retry"})
    assert reply == {"id": "again", "ok": True}
    assert_in_step(w, front_end)


def test_a_layer_whose_thumbnails_cannot_be_computed_is_shown_without(front_end: FrontEnd, broken: set[int]) -> None:
    w = AttentionWidget.from_attention(two_layers())
    broken.add(1)
    w.layer = 1
    assert front_end.state(w)["thumbnails"] is None
    assert front_end.state(w)["picture"]["error"] is None
    broken.clear()
    front_end.ask(w, {"id": "again", "kind": "retry"})
    assert_in_step(w, front_end)


def test_an_interrupt_leaves_a_picture_that_comes_with_the_next_change(
    front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, _ = tensors(1, 4, 6, 8)
    w = AttentionWidget(q, k)

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(overviews, "overview", interrupted)
        with pytest.raises(KeyboardInterrupt):
            w.head = 1
    assert (w.head, w.picture["head"], w.picture["error"][:11]) == (1, 1, "interrupted")
    w.pool = "mean"
    assert_in_step(w, front_end)
    front_end.ask(w, {"id": "again", "kind": "retry"})
    assert_in_step(w, front_end)


# Threads, and the end.


@pytest.mark.parametrize("act", ["from a cell", "from a front-end"])
def test_the_newest_selection_wins_however_long_an_older_one_takes(
    act: str, front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, _ = tensors(1, 4, 6, 8)
    w = AttentionWidget(q, k)
    overview, computing, go_on = overviews.overview, threading.Event(), threading.Event()

    def slow(att: Any, batch: int, head: int, **keywords: Any) -> Any:
        if head == 1:
            computing.set()
            go_on.wait()
        return overview(att, batch, head, **keywords)

    monkeypatch.setattr(overviews, "overview", slow)
    newer = {"from a cell": lambda: setattr(w, "head", 2), "from a front-end": lambda: w.set_state({"head": 2})}[act]
    threads = [threading.Thread(target=lambda: setattr(w, "head", 1)), threading.Thread(target=newer)]
    threads[0].start()
    computing.wait()
    threads[1].start()
    threads[1].join(0.2)  # it waits for its turn, or overtakes
    go_on.set()
    for thread in threads:
        thread.join()
    assert w.head == 2
    assert_in_step(w, front_end)


def test_two_threads_leave_one_state(front_end: FrontEnd) -> None:
    w = AttentionWidget.from_attention(two_layers(), tokens=list("abcdef"))
    where = {"layer": 0, "batch": 0, "head": 0, "stage": "weights"}
    start, failures = threading.Barrier(2), []

    def run(act: Callable[[int], None]) -> None:
        try:
            start.wait()
            for n in range(20):
                act(n)
        except BaseException as error:
            failures.append(error)

    def in_a_cell(n: int) -> None:
        w.layer = n % 2
        w.head = (n // 2) % 2
        w.stage = ("weights", "scaled")[n % 3 == 0]

    def in_a_subshell(n: int) -> None:
        w.set_state({"head": n % 2, "query": n % 3, "pool": ("max", "mean")[n % 2]})
        w._receive(w, {"requests": [{"id": str(n), "kind": "row", "query": 2, **where}, {"kind": "retry"}]}, [])

    threads = [threading.Thread(target=run, args=(act,)) for act in (in_a_cell, in_a_subshell)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    replies = [reply for message in front_end.custom(w) for reply in message.data["content"].get("replies", [])]
    assert [reply["ok"] for reply in replies] == [True] * 40
    assert_in_step(w, front_end)
