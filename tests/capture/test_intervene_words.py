"""The words of `intervene`: keys, edits, segments, samples, and what is refused, when and why."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_intervene_calls import DV, B, E, H, Layers, Q, by_sdpa, text
from torch import Tensor, nn
from torch.testing import assert_close

from attnwidget import Attention, AttentionStack, Capture, capture, intervene, segments
from attnwidget._capture.call.observed_call import ProcessHeads
from attnwidget._capture.interventions import edited_heads, editor
from attnwidget._capture.interventions.edits import PerSample
from attnwidget.results import Segment


def heads_of(model: Layers, layer: int) -> Tensor:
    found = model.layers[layer].heads
    assert isinstance(found, Tensor)
    return found.clone()


def edited(edits: Any, layer: int = 0, positions: int = 7, **how: Any) -> tuple[Tensor, Attention]:
    """What the heads of a layer give with edits, and their attention without."""
    model, x = Layers(by_sdpa), text(positions)
    with torch.no_grad():
        with capture(model) as cap:
            model(x)
        with intervene(model, edits, **how):
            model(x)
    return heads_of(model, layer), cap.attention[layer]


def outputs(att: Attention) -> Tensor:
    B, heads = att.shape.B, att.shape.H
    return torch.stack([torch.stack([att.output(batch=b, head=h) for h in range(heads)]) for b in range(B)])


def weights(att: Attention, head: int) -> Tensor:
    return torch.stack([att.block(batch=b, head=head) for b in range(att.shape.B)])


# Keys.


@pytest.mark.parametrize(
    ("key", "layer", "heads"),
    [
        ((1, 2), 1, (2,)),
        ((1, -1), 1, (3,)),
        ((1, (0, 3)), 1, (0, 3)),
        ((1, range(1, 3)), 1, (1, 2)),
        (1, 1, (0, 1, 2, 3)),
        ("layers.1", 1, (0, 1, 2, 3)),
        (("layers.1", 2), 1, (2,)),
        ("layers.[1-9]", 1, (0, 1, 2, 3)),
        ((re.compile("1$"), (1, 2)), 1, (1, 2)),
        (("all", 2), None, (2,)),
        ("all", None, (0, 1, 2, 3)),
    ],
)
def test_keys(key: Any, layer: int | None, heads: tuple[int, ...]) -> None:
    model, x = Layers(by_sdpa), text()
    with torch.no_grad(), intervene(model, {key: "zero"}) as run:
        model(x)
    there = ["layers.0", "layers.1"] if layer is None else [f"layers.{layer}"]
    assert run.edited == dict.fromkeys(there, heads)
    for i in range(2):
        zeros = [bool((heads_of(model, i)[:, head] == 0).all()) for head in range(H)]
        assert zeros == [(layer is None or i == layer) and head in heads for head in range(H)]


def test_the_key_that_names_a_head_most_closely_counts() -> None:
    found, att = edited({"all": "zero", 0: {"drop_keys": [0]}, (0, 1): "uniform"}, 0)
    assert_close(found[:, 1], outputs(att.what_if({}))[:, 1] * 0 + even(att)[:, 1])
    assert_close(found[:, 2], outputs(att.what_if({"drop_keys": [0]}))[:, 2])
    found, _ = edited({"all": "zero", 0: {"drop_keys": [0]}}, 1)
    assert bool((found == 0).all())


def test_a_layer_counts_before_heads_of_all_layers_whichever_is_given_first() -> None:
    edits: list[tuple[Any, Any]] = [(("all", 1), "zero"), (0, {"drop_keys": [0]}), ((0, 3), "uniform")]
    for given in (edits, edits[::-1]):
        found, att = edited(dict(given), 0)
        assert_close(found[:, :3], outputs(att.what_if({"drop_keys": [0]}))[:, :3], rtol=1e-4, atol=1e-5)
        assert_close(found[:, 3], even(att)[:, 3], rtol=1e-4, atol=1e-5)
        found, _ = edited(dict(given), 1)
        assert [bool((found[:, head] == 0).all()) for head in range(H)] == [False, True, False, False]


def even(att: Attention) -> Tensor:
    """The outputs with even weights over the keys that are allowed."""
    assert att.v is not None
    allowed = att.block("allowed").float()
    return (allowed / allowed.sum(-1, keepdim=True)) @ att.v


@pytest.mark.parametrize(
    ("edits", "why"),
    [
        ([(0, 1)], "give a dict"),
        ({0.5: "zero"}, "0.5: give a layer"),
        ({(0, 1, 2): "zero"}, "give a layer"),
        ({(0, ()): "zero"}, "names no head"),
        ({-1: "zero"}, "count them from the first"),
        ({0: {"mask": [[True]]}}, "give False to remove the mask"),
        ({0: {"mask": torch.ones(2, 2, dtype=torch.int64)}}, "mask holds int64: give bools"),
        ({0: {"mask": torch.ones(2, 2) > 0, "mask_dims": "kq"}}, "mask_dims"),
        ({0: {"mask": lambda b, h, q, k: q >= k, "mask_dims": "qk"}}, "mask is a function: leave it out"),
        ({0: {"mask": False, "mask_dims": "qk"}}, "give a tensor"),
        ({0: {"scale": 1.0, "mask_dims": "qk"}}, "'mask_dims' only works together with 'mask': give both"),
        ({(0, True): "zero"}, "give a layer"),
        ({0: "zeros"}, "did you mean 'zero'"),
        ({0: 3}, "3 is not an edit"),
        ({0: {}}, "is not an edit"),
        ({0: {"windows": 3}}, "did you mean 'window'"),
        ({0: {"window": 0}}, "1 or more"),
        ({0: {"temperature": 0}}, "temperature"),
        ({0: {"softcap": -1}}, "softcap"),
        ({0: {"mask": True, "scale": "x"}}, "scale"),
        ({0: {"keep": None}}, "keep is None: give"),
        ({0: {"keep": {"policy": "windows", "budget": 2}}}, "did you mean 'window'"),
        ({0: {"keep": {"policy": "window", "budgets": 2}}}, "keep has 'budgets'"),
        ({0: {"keep": {"policy": "tova"}}}, "keep needs a budget"),
        ({0: {"drop_keys": None}}, "give a list"),
        ({0: {"drop_keys": ["doc"]}}, "give segments="),
        ({0: {"drop_keys": [1.5]}}, "give numbers"),
        ({0: {"drop_keys": slice(5, 1, -1)}}, "ascending"),
        ({0: {"drop_keys": []}}, r"drop_keys is \[\], which names no position"),
        ({0: {"block": (range(0), [1])}}, r"block's queries is range\(0, 0\), which names no position"),
        ({0: {"output": "x"}}, "output is 'x': give real numbers"),
        ({0: {"output": [[1.0], [2.0, 3.0]]}}, "output is .*: give real numbers"),
        ({0: {"block": [1, 2]}}, "give \\(queries, keys\\)"),
        ({0: {"block": ([1], [2]), "renormalize": 1}}, "True or False"),
        ({0: {"renormalize": False}}, "give both"),
        ({0: {"from": "x"}}, "give a capture"),
        ({0: {"from": Attention(torch.zeros(2, 4), torch.zeros(2, 4)), "take": "scores"}}, "'weights' or 'outputs'"),
        ({0: {"output": torch.zeros(4), "scale": 1}}, "give it alone"),
        ({0: torch.zeros(4)}, r"give \(Q, K\)"),
        ({0: torch.zeros(4, 4, dtype=torch.complex64)}, "real numbers"),
        ({"encoder": "zero"}, "no module of Layers has this name"),
        ({"layer.1": "zero"}, "did you mean 'layers.1'"),
    ],
)
def test_what_is_no_edit_is_refused_before_the_model_runs(edits: Any, why: str) -> None:
    with pytest.raises((TypeError, ValueError), match=why):
        intervene(Layers(by_sdpa), edits).__enter__()


@pytest.mark.parametrize(
    ("model", "why"), [(torch.relu, "is a function"), (3, "give an nn.Module$"), (None, "give an nn.Module")]
)
def test_what_is_no_model_is_refused(model: Any, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        intervene(model, {0: "zero"})


@pytest.mark.parametrize(
    ("edits", "why"),
    [
        ({2: "zero"}, r"2 has edited nothing: the layers that ran are 0 'layers.0', 1 'layers.1'"),
        ({(0, 4): "zero"}, "layers.0 has heads 0 to 3, and no head 4"),
        ({0: "zero", "layers.0": "uniform"}, "head 0 of layers.0 is named by 0 and by 'layers.0'"),
        ({(0, 1): "zero", (0, (1, 2)): "uniform"}, r"head 1 of layers.0 is named by \(0, 1\) and by \(0, \(1, 2\)\)"),
        ({0: {"drop_keys": [7]}}, "drop_keys has 7, but there are positions 0 to 6"),
        ({0: {"block": ([9], [1])}}, "block's queries has 9"),
        ({0: {"drop_keys": [-8]}}, "drop_keys has -8"),
        ({0: {"drop_keys": range(5, 9)}}, "drop_keys has 7, but there are positions 0 to 6"),
        ({0: {"drop_keys": range(20, 30, 3)}}, "drop_keys has 20, but there are positions 0 to 6"),
        ({0: {"drop_keys": Segment("doc", 4, 9)}}, "drop_keys has 7, but there are positions 0 to 6"),
        (
            {0: {"drop_keys": slice(8, 12)}},
            r"drop_keys has slice\(8, 12, None\), which is not one of the positions 0 to 6",
        ),
        ({0: {"drop_keys": slice(5, 3)}}, "which is not one of the positions 0 to 6"),
        ({0: {"block": (slice(-12, -9), [1])}}, "block's queries has .* which is not one of the positions 0 to 6"),
        ({0: {"mask": False}}, "changed nothing, because no matching call has a mask"),
        ({0: {"softcap": None}}, "has a softcap"),
        ({0: {"sinks": None}}, "has learned sinks"),
        ({0: {"window": None}}, "has a window of its own"),
        (
            {(0, 1): torch.zeros(6, 6)},
            r"for \(0, 1\) has shape \(6, 6\): for layers.0 give \(7, 7\), \(1, 7, 7\) or \(3, 1, 7, 7\)",
        ),
        ({(0, 1): {"output": torch.zeros(3)}}, r"has shape \(3,\)"),
        ({0: lambda block: block.weights[..., :2]}, r"returned \(3, 4, 7, 2\) for a block of weights"),
        ({0: {"mask": torch.ones(6, 6) > 0}}, r"mask has shape \(6, 6\), which does not fit"),
        ({0: {"mask": torch.ones(9, 9) > 0}}, r"mask has shape \(9, 9\), but layers.0 had 7 queries and 7 keys"),
        ({0: {"mask": torch.ones(9, 7) > 0}}, r"mask has shape \(9, 7\), but layers.0 had 7 queries and 7 keys"),
        ({0: {"mask": lambda b, h, q, k: q - k}}, "returns int64: return a bool tensor"),
        ({0: {"mask": lambda b, h, q, k: (q >= k)[:2]}}, r"returns shape \(2, 7\), but its indices broadcast to"),
        ({0: {"mask": lambda b, h, q, k: missing}}, r"fails for sample 0, head 0.*missing"),  # noqa: F821
        ({0: {"keep": {"policy": "window", "budget": 4}}}, "and sinks takes 4 of them: give a larger budget"),
        (
            {0: {"keep": {"policy": "window", "budget": 6}, "causal": False}},
            "query 0 may attend to the later key 1",
        ),
        ({0: {"keep": {"policy": "tova", "budget": 3}, "mask": torch.zeros(7, 7)}}, "give it as bools"),
        ({0: PerSample(["zero"])}, "has edits for 1 samples, but the batch has 3"),
    ],
)
def test_an_edit_that_is_not_made_is_an_error(edits: Any, why: str) -> None:
    model = Layers(by_sdpa)
    with torch.no_grad(), pytest.raises(ValueError, match=why), intervene(model, edits):
        model(text())


def test_a_model_that_is_not_called_is_an_error() -> None:
    with pytest.raises(ValueError, match="was not called in the block"), intervene(Layers(by_sdpa), {0: "zero"}):
        pass


# Edits.

WHAT_IF: list[dict[str, Any]] = [
    {"scale": 1.0},
    {"temperature": 3.0},
    {"softcap": 0.5},
    {"window": 2},
    {"drop_keys": [0, 3]},
    {"causal": False},
    {"causal": "lower right"},
    {"scale": 0.3, "temperature": 2.0, "drop_keys": [1], "window": 4},
    {"dtype": "bfloat16"},
    {"dtype": "int8"},
    {"keep": {"policy": "window", "budget": 3, "sinks": 1}},
    {"keep": {"policy": "heavy_hitters", "budget": 4}},
    {"keep": {"policy": "heavy_hitters", "budget": 0.5, "recent": 1}, "temperature": 0.5, "drop_keys": [2]},
    {"keep": {"policy": "tova", "budget": 3}, "dtype": "int8"},
    {"keep": {"policy": "snapkv", "budget": 3, "prompt": 5, "observe": 2}, "window": 6},
]


@pytest.mark.parametrize("words", WHAT_IF)
def test_words_of_what_if_are_those_of_what_if(words: dict[str, Any]) -> None:
    found, att = edited({(0, (1, 2)): words})
    wanted = outputs(att.what_if(words))
    assert_close(found[:, [1, 2]], wanted[:, [1, 2]], rtol=1e-4, atol=1e-5)
    assert_close(found[:, [0, 3]], outputs(att)[:, [0, 3]], rtol=1e-4, atol=1e-5)


def test_a_mask_is_removed_as_by_what_if() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = (torch.arange(49).view(7, 7) % 3 > 0) | torch.eye(7, dtype=torch.bool)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    model, x = Layers(attend), text()
    with torch.no_grad():
        with capture(model) as cap:
            model(x)
        with intervene(model, {(0, 1): {"mask": False}}):
            model(x)
    wanted = outputs(cap.attention[0].what_if({"mask": False}))[:, 1]
    assert_close(heads_of(model, 0)[:, 1], wanted, rtol=1e-4, atol=1e-5)


def test_mean_and_uniform_are_two_names_of_even_weights() -> None:
    found, att = edited({(0, 1): "mean", (0, 2): "uniform"})
    assert_close(found[:, 1:3], even(att)[:, 1:3], rtol=1e-4, atol=1e-5)


def test_a_block_moves_the_weight_to_other_keys_or_drops_it() -> None:
    edits = {(0, 1): {"block": ([3, 5], slice(0, 2))}, (0, 2): {"block": ([3, 5], slice(0, 2)), "renormalize": False}}
    found, att = edited(edits)
    assert att.v is not None
    own = weights(att, 1)
    own[:, [3, 5], :2] = 0
    wanted = (own / own.sum(-1, keepdim=True)) @ att.v[:, 1]
    assert_close(found[:, 1], wanted, rtol=1e-4, atol=1e-5)
    own = weights(att, 2)
    own[:, [3, 5], :2] = 0
    assert_close(found[:, 2], own @ att.v[:, 2], rtol=1e-4, atol=1e-5)


def test_a_query_whose_keys_are_all_blocked_gives_zero() -> None:
    found, _ = edited({(0, 1): {"block": ([2], None)}})
    assert bool((found[:, 1, 2] == 0).all())
    assert not bool((found[:, 1, 3] == 0).any())


def test_segments_are_named() -> None:
    named = segments({"doc 1": (1, 3), "doc 2": {"title": (3, 4), "body": (4, 5)}, "answer": (5, 7)}, length=7)
    by_name = {(0, 1): {"drop_keys": "doc 1"}, (0, 2): {"block": ("answer", ["doc 1", "body"])}}
    by_place = {(0, 1): {"drop_keys": [1, 2]}, (0, 2): {"block": (range(5, 7), [1, 2, 4])}}
    assert torch.equal(edited(by_name, segments=named)[0], edited(by_place)[0])
    entry = next(one for one in named if one.name == "doc 1")
    assert torch.equal(edited({(0, 1): {"drop_keys": entry}, (0, 2): by_place[0, 2]})[0], edited(by_place)[0])
    with pytest.raises(ValueError, match="no segment is called 'doc 3'"):
        edited({0: {"drop_keys": "doc 3"}}, segments=named)
    with pytest.raises(ValueError, match="block's queries has 5, but there are positions 0 to 4"):
        edited(by_name, segments=named, positions=5)  # of a longer text


def test_places_count_from_either_end() -> None:
    by_place = edited({(0, 1): {"drop_keys": [4, 5, 6]}, (0, 2): {"block": ([0, 2, 4], [1, 3])}})[0]
    for keys, queries in (
        (range(-3, 0), range(0, 6, 2)),
        (slice(-3, None), slice(0, 6, 2)),
        ([-1, -2, 4], [-3, -5, 0]),
    ):
        found = edited({(0, 1): {"drop_keys": keys}, (0, 2): {"block": (queries, [1, -4])}})[0]
        assert torch.equal(found, by_place)
    assert torch.equal(
        edited({(0, 1): {"drop_keys": slice(4, 90)}, (0, 2): {"block": ([0, 2, 4], [1, 3])}})[0], by_place
    )


def test_a_call_without_queries_is_left_as_it_is() -> None:
    class Empty(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(x, x, x)

    model = Empty()
    with torch.no_grad(), intervene(model, {(0, 1): "uniform"}) as run:
        assert model(torch.zeros(1, 2, 0, 4)).shape == (1, 2, 0, 4)
        assert model(torch.zeros(0, 2, 3, 4)).shape == (0, 2, 3, 4)
    assert run.edited == {}


def test_a_segment_of_several_pieces_is_named_whole() -> None:
    named = segments({"doc": [(1, 3), (4, 5)]}, length=7)
    by_name = edited({(0, 1): {"drop_keys": "doc"}, (0, 2): {"block": ("doc", [0])}}, segments=named)[0]
    by_place = edited({(0, 1): {"drop_keys": [1, 2, 4]}, (0, 2): {"block": ([1, 2, 4], [0])}})[0]
    assert torch.equal(by_name, by_place)


@pytest.mark.parametrize("cells", [None, 7 * 3])
def test_weights_of_ones_own(cells: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if cells is not None:  # a few queries at a time
        monkeypatch.setattr(edited_heads, "CELLS_AT_ONCE", cells)
    own = torch.rand(B, 2, Q, Q, generator=torch.Generator().manual_seed(3))
    found, att = edited({(0, (3, 1)): own, (0, 2): own[0, 0]})
    assert att.v is not None
    assert_close(found[:, 3], own[:, 0] @ att.v[:, 3], rtol=1e-4, atol=1e-5)
    assert_close(found[:, 1], own[:, 1] @ att.v[:, 1], rtol=1e-4, atol=1e-5)
    assert_close(found[:, 2], own[0, 0] @ att.v[:, 2], rtol=1e-4, atol=1e-5)


def test_a_function_is_given_the_block_and_where_it_is() -> None:
    blocks: list[Any] = []

    def first_key_alone(block: Any) -> Tensor:
        blocks.append(block)
        return torch.zeros_like(block.weights).index_fill(-1, torch.tensor([0]), 1.0)

    found, att = edited({(1, (0, 2)): first_key_alone}, 1)
    assert att.v is not None
    assert_close(found[:, [0, 2]], att.v[:, [0, 2], :1].expand(-1, -1, 7, -1))
    (block,) = blocks
    assert (block.name, block.layer, block.heads, block.samples) == ("layers.1", 1, (0, 2), (0, 1, 2))
    assert (block.queries, block.keys) == (range(7), range(7))
    assert torch.equal(block.allowed[0, 0], torch.ones(7, 7, dtype=torch.bool).tril())
    assert_close(block.weights[:, 0], weights(att, 0), rtol=1e-4, atol=1e-6)


def test_outputs_of_ones_own() -> None:
    value, values, whole = torch.randn(DV), torch.randn(2, 1, DV), torch.randn(B, 1, Q, DV)
    found, _ = edited({(0, 0): {"output": value}, (0, (2, 1)): {"output": values}, (0, 3): {"output": whole}})
    assert_close(found[:, 0], value.expand(B, Q, DV))
    assert_close(found[:, 2], values[0].expand(B, Q, DV))
    assert_close(found[:, 1], values[1].expand(B, Q, DV))
    assert_close(found[:, 3], whole[:, 0])


def test_each_sample_has_an_edit_of_its_own() -> None:
    found, att = edited(
        {(0, 1): PerSample(["zero", None, "zero"]), (0, 2): PerSample([{"drop_keys": [0]}, "uniform", None])}
    )
    plain = outputs(att)
    assert bool((found[[0, 2], 1] == 0).all())
    assert_close(found[1, 1], plain[1, 1], rtol=1e-4, atol=1e-5)
    assert_close(found[0, 2], outputs(att.what_if({"drop_keys": [0]}))[0, 2], rtol=1e-4, atol=1e-5)
    assert_close(found[1, 2], even(att)[1, 2], rtol=1e-4, atol=1e-5)
    assert_close(found[2, 2], plain[2, 2], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("causal", [True, "lower right"])
def test_a_causal_rule_counts_from_the_corner_that_it_names_where_keys_are_more(causal: Any) -> None:
    torch.manual_seed(0)
    model, x, memory = nn.MultiheadAttention(E, H, batch_first=True).eval(), text(5), text(7)
    with torch.no_grad():
        with capture(model) as cap:
            model(x, memory, memory)
        with intervene(model, {0: {"causal": causal}}, cross=True):
            _, found = model(x, memory, memory, average_attn_weights=False)
    changed = cap.cross[0].what_if({"causal": causal})
    for head in range(H):
        assert_close(found[:, head], weights(changed, head), rtol=1e-4, atol=1e-6)


# Several calls.


def test_each_call_of_the_model_has_places_of_its_own() -> None:
    model, edits = Layers(by_sdpa), {(0, 1): {"drop_keys": [-1], "window": 4}}
    with torch.no_grad(), intervene(model, edits):
        for positions in (Q, 5, 8):
            model(text(positions))
            assert torch.equal(heads_of(model, 0), edited(edits, positions=positions)[0])


def test_a_layer_that_is_called_by_itself_has_the_same_name_each_time() -> None:
    model, x = Layers(by_sdpa), text()
    with torch.no_grad(), intervene(model, {("layers.1", 2): {"drop_keys": [-2]}}) as run:
        for given in (x, x[:, :5]):
            found = model.layers[1](given)
            with intervene(model, {(0, 0): "zero"}):
                model(given)  # another pass between them
            assert torch.equal(found, model.layers[1](given))
    assert run.edited == {"layers.1": (2,)}


def test_a_block_that_is_entered_again_asks_for_its_edits_anew() -> None:
    has_mask = [True]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bools if has_mask[0] else None)

    bools = torch.ones(Q, Q, dtype=torch.bool).tril(1)
    model, x = Layers(attend), text()
    cases: list[tuple[Any, Any, str]] = [
        ("zero", lambda: None, "was not called in the block"),
        ({"mask": False}, lambda: (has_mask.clear(), has_mask.append(False), model(x)), "changed nothing"),
        ({"from": another_run()}, lambda: model(x[:, :5]), "has 7 queries in .*, but this run had 5"),
    ]
    with torch.no_grad():
        for edit, again, why in cases:
            run = intervene(model, {0: edit})
            with run:
                model(x)
            with pytest.raises(ValueError, match=why), run:
                again()


@pytest.fixture
def second_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has the second third of the heads of a model."""
    monkeypatch.setattr(editor, "heads_of_process", lambda module, call: ProcessHeads(H, H, 3 * H))


@pytest.mark.usefixtures("second_of_three")
def test_heads_of_one_process_of_three_have_their_numbers_in_the_model() -> None:
    """See test_intervene_processes.py for real processes."""
    own = torch.rand(B, 4, Q, Q, generator=torch.Generator().manual_seed(3))
    mask = torch.rand(3 * H, Q, Q, generator=torch.Generator().manual_seed(4)) > 0.3
    mask |= torch.eye(Q, dtype=torch.bool)
    blocks: list[Any] = []

    def note(block: Any) -> Tensor:
        blocks.append(block)
        return block.weights * 2  # type: ignore[no-any-return]

    model, x = Layers(by_sdpa), text()
    with torch.no_grad():
        att = capture(model).run(x).attention[0]
        with intervene(model, {(0, (11, 1, 4, 8)): own, (0, 5): {"mask": mask}, (0, 6): note, (0, 0): "zero"}) as run:
            model(x)
        found = heads_of(model, 0)
        with pytest.raises(ValueError, match="heads 0 to 11, and no head 12"), intervene(model, {(0, 12): "zero"}):
            model(x)
    assert run.edited == {"layers.0": (4, 5, 6)}
    assert att.v is not None
    assert_close(found[:, 0], own[:, 2] @ att.v[:, 0])
    cells = mask[5] & torch.ones(Q, Q, dtype=torch.bool).tril()
    scores = (att.q[:, 1] @ att.k[:, 1].mT * att.scale).masked_fill(~cells, -torch.inf)
    assert_close(found[:, 1], scores.softmax(-1) @ att.v[:, 1])
    assert_close(found[:, 2], 2 * outputs(att)[:, 2])
    assert_close(found[:, 3], outputs(att)[:, 3])
    assert [block.heads for block in blocks] == [(6,)]


# From another run.


def another_run(**how: Any) -> Capture:
    model = Layers(by_sdpa)
    with torch.no_grad(), capture(model, **how) as cap:
        model(text().flip(1))
    return cap


@pytest.mark.parametrize("of", ["capture", "forward", "stack", "attention"])
def test_weights_and_outputs_of_another_run(of: str) -> None:
    cap = another_run()
    sources: dict[str, Any] = {"forward": cap[0], "stack": cap.attention, "attention": cap.attention[0]}
    source = sources.get(of, cap)
    found, att = edited({(0, 1): {"from": source}, (0, 2): {"from": source, "take": "outputs"}})
    other = cap.attention[0]
    assert att.v is not None
    assert_close(found[:, 1], weights(other, 1) @ att.v[:, 1], rtol=1e-4, atol=1e-5)
    assert_close(found[:, 2], outputs(other)[:, 2], rtol=1e-4, atol=1e-5)


def test_a_run_that_kept_some_heads_gives_those() -> None:
    cap = another_run(heads=[1, 3])
    found, att = edited({(0, (1, 3)): {"from": cap}})
    assert att.v is not None
    for head in (1, 3):
        wanted = weights(another_run().attention[0], head) @ att.v[:, head]
        assert_close(found[:, head], wanted, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="has no head 2"):
        edited({(0, 2): {"from": cap}})


@pytest.mark.parametrize(
    ("source", "positions", "why"),
    [
        (lambda: another_run(), 6, "capture a run of the same lengths|has 7 queries in .*, but this run had 6"),
        (lambda: another_run(), 8, "capture a run of the same lengths"),
        (lambda: another_run(queries=slice(2)), 7, "capture without queries="),
        (lambda: another_run(layers=0), 7, "has no call of 'layers.1'"),
        (lambda: AttentionStack([another_run().attention[1]], ["other"]), 7, "has 1 layers"),
    ],
)
def test_a_run_that_does_not_fit_is_refused(source: Any, positions: int, why: str) -> None:
    with pytest.raises((ValueError, IndexError), match=why):
        edited({1: {"from": source()}}, positions=positions)


def test_outputs_need_values() -> None:
    with pytest.raises(ValueError, match="capture with values=True"):
        edited({0: {"from": another_run(values=False), "take": "outputs"}})


# What cannot be edited.


class LinearAttention(nn.Module):
    """Attention without a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(E, 3 * E), nn.Linear(E, E)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one.unflatten(-1, (H, -1)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        return self.out((q.relu() @ (k.relu().mT @ v)).transpose(1, 2).flatten(-2))


def test_attention_that_is_not_seen_is_refused_where_it_is_named_and_told_where_it_is_not() -> None:
    model, x = Layers(by_sdpa), text()
    model.layers.append(LinearAttention())
    with torch.no_grad():
        for key in ("all", "layers.2"):
            with pytest.raises(ValueError, match=r"layers\.2"), intervene(model, {key: "zero"}):
                model(x)
        with intervene(model, {0: "zero"}) as run:
            model(x)
        why = r"5 has edited nothing: .*layers\.2 was not captured"
        with pytest.raises(ValueError, match=why), intervene(model, {5: "zero"}):
            model(x)
    assert list(run.skipped) == ["layers.2"]
    with torch.no_grad(), intervene(model, {"layers.0": "zero"}) as run:
        model(x)
    assert run.edited == {"layers.0": (0, 1, 2, 3)}


def test_a_compiled_model_is_refused_before_it_runs() -> None:
    model = Layers(by_sdpa)
    compiled = torch.compile(model, backend="eager")
    with pytest.raises(ValueError, match=r"is compiled.*_orig_mod"):
        intervene(compiled, {0: "zero"}).__enter__()
    model.layers[1].compile(backend="eager")
    with pytest.raises(ValueError, match=r"layers\.1 is compiled"):
        intervene(model, {0: "zero"}).__enter__()


def test_a_scripted_layer_is_refused_before_it_runs() -> None:
    class Plain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(x, x, x)

    model = nn.Sequential(Layers(by_sdpa), torch.jit.trace(Plain(), text()))
    with pytest.raises(ValueError, match=r"1 cannot be edited: torch\.jit compiled it"):
        intervene(model, {"all": "zero"}).__enter__()


class Recomputed(torch.autograd.Function):
    """A checkpoint as other libraries write it."""

    @staticmethod
    def forward(ctx: Any, function: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.function = function
        ctx.save_for_backward(x)
        with torch.no_grad():
            return function(x)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            output = ctx.function(x)
        torch.autograd.backward(output, grad)
        return None, x.grad


def test_what_is_computed_again_is_refused_and_never_half_edited() -> None:
    """Where torch does not do it: see test_intervene_checkpoints.py."""
    plain, model = Layers(by_sdpa), Layers(by_sdpa)
    inner = model.layers[1].forward
    model.layers[1].forward = lambda y: Recomputed.apply(inner, y)  # type: ignore[method-assign, no-untyped-call]
    with pytest.raises(ValueError, match="gradient checkpointing"), intervene(model, {1: "zero"}):
        model(text().requires_grad_())
    with torch.no_grad(), intervene(model, {1: "zero"}) as run:
        model(text())
    assert run.edited == {"layers.1": (0, 1, 2, 3)}
    grads = []
    for one in (plain, model):  # an edit beside the checkpoint is as it is without, in and after the block
        for inside in (True, False):
            one.zero_grad()
            x = text().requires_grad_()
            with intervene(one, {(0, 1): {"drop_keys": [1]}}):
                output = one(x).square().sum()
                if inside:
                    output.backward()
            if not inside:
                output.backward()
            grads.append([x.grad, *(p.grad.clone() for p in one.parameters())])  # type: ignore[union-attr]
    for found in grads[1:]:
        for a, b in zip(found, grads[0], strict=True):
            assert_close(a, b)


def test_a_call_under_vmap_is_refused() -> None:
    model = Layers(by_sdpa)
    with torch.no_grad(), pytest.raises(ValueError, match=r"torch\.vmap"), intervene(model, {0: "zero"}):
        torch.vmap(model)(text()[None])


def test_attention_that_is_computed_in_parts_is_refused() -> None:
    def in_halves(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = (q @ k.mT / 5**0.5).softmax(-1)
        return torch.cat([weights[:, :, :3] @ v, weights[:, :, 3:] @ v], 2)

    model = Layers(in_halves)
    with torch.no_grad(), pytest.raises(ValueError, match="in parts"), intervene(model, {0: "zero"}):
        model(text())


def test_a_function_that_does_more_than_its_arguments_tell_is_refused() -> None:
    class Gate(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            return result * 1.5 if func is F.scaled_dot_product_attention else result

    model = Layers(by_sdpa)
    with torch.no_grad(), Gate(), pytest.raises(ValueError, match="does more than they tell"):  # noqa: SIM117
        with intervene(model, {"layers.0": "zero"}):
            model(text())
