"""The layers of a model: by number, by name, each with its own heads and lengths."""

import re
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from tolerance import approx, rounding
from torch.testing import assert_close

from attnwidget import AttentionWidget, masks
from attnwidget._analysis import all_heads
from attnwidget._engine.base import Shape
from attnwidget.attention import Attention
from attnwidget.stack import AttentionStack, stack_layers


def layers() -> list[Attention]:
    return [Attention(*torch.randn(2, 1, heads, length, 4)) for heads, length in ((2, 3), (4, 5), (1, 7))]


def test_layers_are_found_by_number_and_by_name() -> None:
    given = layers()
    stack = AttentionStack(given)
    assert len(stack) == 3
    assert list(stack) == given
    assert stack[-1] is given[2]
    assert stack["layer 1"] is given[1]
    assert stack.names == ("layer 0", "layer 1", "layer 2")
    assert [layer.shape.H for layer in stack] == [2, 4, 1]


def test_layers_may_differ_in_heads_length_window_and_mask() -> None:
    """As Gemma 2 alternates: a window in every other layer."""
    q = torch.randn(1, 4, 30, 8)
    given = [
        Attention(q, q, is_causal=True, window=4, softcap=50.0),
        Attention(q, q[:, :2], is_causal=True),
        Attention(q[:, :1, :7], q[:, :1], mask=masks.padding([20])),
        Attention.from_weights(torch.rand(2, 9)),
    ]
    stack = AttentionStack(given, names=["local", "global", "cross", "weights"])
    assert [att.shape.H for att in stack] == [4, 4, 1, 1]
    assert [(att.shape.Q, att.shape.K) for att in stack] == [(30, 30), (30, 30), (7, 30), (2, 9)]
    assert [att.window for att in stack] == [4, None, None, None]
    assert [int(att.block("allowed", queries=-1).sum()) for att in stack] == [4, 30, 20, 9]
    assert stack["weights"].stages == ("weights",)


def test_a_slice_is_a_stack_that_keeps_its_names() -> None:
    stack = AttentionStack(layers(), names=["encoder.0", "encoder.1", "decoder.0"])
    part = stack[1:]
    assert isinstance(part, AttentionStack)
    assert part.names == ("encoder.1", "decoder.0")
    assert part[0] is stack["encoder.1"]


def test_a_layer_that_is_not_there_is_named() -> None:
    stack = AttentionStack(layers(), names=["encoder.0", "encoder.1", "decoder.0"])
    with pytest.raises(IndexError, match="layer 3 is not there: this stack has layers 0 to 2"):
        stack[3]
    with pytest.raises(IndexError, match="layer -2 is not there: this stack has layer 0 only"):
        stack[:1][-2]
    with pytest.raises(KeyError, match=r"no layer is called 'decoder\.1': the nearest is 'encoder\.1'"):
        stack["decoder.1"]


def test_a_part_of_a_name_finds_the_layer_that_has_it() -> None:
    stack = AttentionStack(layers(), ["encoder.layer.0.self", "encoder.layer.1.self", "decoder.layer.2.self"])
    assert stack["layer.2"] is stack[2]
    with pytest.raises(KeyError, match=r"2 layers have 'encoder' in their names, such as 'encoder.layer.0.self': give"):
        stack["encoder"]
    with pytest.raises(KeyError, match=r"no layer is called 'layr\.1': the nearest is"):
        stack["layr.1"]


def test_several_layers_are_chosen_by_glob_regex_and_list() -> None:
    stack = AttentionStack(layers(), ["encoder.layer.0.self", "encoder.layer.1.self", "decoder.layer.2.self"])
    for where, found in {
        "encoder.*": [0, 1],
        "layer.[02].*": [0, 2],
        re.compile(r"layer\.[12]"): [1, 2],
        (0, -1): [0, 2],
        ("layer.1", 0, 0): [1, 0],
    }.items():
        part = stack[where]
        assert isinstance(part, AttentionStack)
        assert list(part) == [stack[i] for i in found]
        assert list(part.names) == [stack.names[i] for i in found]
    assert stack[[2]].names == stack[range(2, 3)].names == ("decoder.layer.2.self",)
    for where in ("cross.*", re.compile("cross")):
        with pytest.raises(KeyError, match=r"no layer matches 'cross.*': the first is 'encoder"):
            stack[where]
    with pytest.raises(IndexError, match="layer 3 is not there"):
        stack[[0, 3]]


def test_a_name_that_looks_like_a_glob_is_still_a_name() -> None:
    stack = AttentionStack(layers(), ["a*", "a[0]", "ab"])
    assert stack["a*"] is stack[0]
    assert stack["a[0]"] is stack[1]


# All heads.


def test_metrics_of_a_stack_are_those_of_each_head() -> None:
    q = torch.randn(2, 2, 4, 9, 8, dtype=torch.float64)
    stack = stack_layers(q, q[:, :, :2], is_causal=True, names=["first", "second"])
    tokens = [list("abcabcabc"), list("xyxyxyxyx")]
    found = stack.metrics(tokens=tokens)
    assert [(one["layer"], one["name"], one["batch"], one["head"]) for one in found] == [
        (i, name, batch, head) for i, name in enumerate(stack.names) for batch in range(2) for head in range(4)
    ]
    for one in found:
        own = stack[one["layer"]].metrics(one["batch"], one["head"], tokens=tokens[one["batch"]])
        bound = rounding(stack[one["layer"]]).entropy  # the widest of them
        for name, value in asdict(own).items():
            assert one[name] == (None if value is None else approx(value, bound)), name
    (first, *_) = stack.metrics(1, rows=3, tokens=tokens[0])
    assert (first["batch"], first["rows"]) == (1, 3)
    assert len(stack[:1].metrics(0)) == 4
    with pytest.raises(IndexError, match="batch 2 is not there"):
        stack.metrics(2)


def test_metrics_of_layers_that_the_tokens_do_not_fit_do_without_them() -> None:
    stack = AttentionStack([Attention(*torch.randn(2, n, 4)) for n in (3, 5)])
    assert [one["same_token"] is None for one in stack.metrics(tokens=["a", "a", "a"])] == [False, True]


def test_one_pair_is_looked_at_in_all_heads() -> None:
    q = torch.randn(2, 2, 4, 9, 8)
    stack = stack_layers(q, q[:, :, :2], is_causal=True)
    found = stack.pair(-2, 3, batch=1)
    assert found.shape == (2, 4)
    for layer, att in enumerate(stack):
        for head in range(4):
            assert found[layer, head] == att.block(batch=1, head=head, queries=7)[0, 3]
    assert stack.pair(3, 5).tolist() == [[0.0] * 4] * 2


def test_a_pair_of_layers_with_other_heads_and_lengths() -> None:
    stack = AttentionStack(layers())
    found = stack.pair(-1, -1)
    assert found.isnan().tolist() == [[False, False, True, True], [False] * 4, [False, True, True, True]]
    assert found[2, 0] == stack[2].block(queries=6)[0, 6]
    with pytest.raises(IndexError, match="layer 0: query 4 is not there"):
        stack.pair(4, 0)


def test_all_weights_of_a_layer_are_one_tensor() -> None:
    q = torch.randn(2, 4, 9, 8)
    stack = AttentionStack([Attention(q, q[:, :2], is_causal=True)], ["h.0.attn"])
    found = stack.weights("h.0")
    assert found.shape == (2, 4, 9, 9)
    for b in range(2):
        for h in range(4):
            assert torch.equal(found[b, h], stack[0].block(batch=b, head=h))
    assert torch.equal(stack.weights(0, batch=1), found[1])
    assert torch.equal(stack.weights(0, head=-1), found[:, 3])
    assert torch.equal(stack.weights(0, 1, 2), found[1, 2])
    with pytest.raises(IndexError, match="head 4 is not there"):
        stack.weights(0, head=4)


def test_weights_too_many_for_one_tensor_are_refused_with_what_to_ask() -> None:
    q = torch.zeros(1, 2, 1, 1).expand(1, 2, 1 << 14, 1)
    with pytest.raises(ValueError, match=r"1 × 2 heads of 16,384 × 16,384 are .*: ask for a block, att\.block\(head=0"):
        AttentionStack([Attention(q, q)]).weights(0)


@pytest.mark.parametrize(
    ("given", "names", "error", "match"),
    [
        ([], None, ValueError, "layers is empty: give at least one Attention"),
        ([torch.zeros(2, 2)], None, TypeError, "layer 0 is a Tensor: give an Attention for each layer"),
        (layers()[0], None, TypeError, "layers is a single Attention: give a list of Attention"),
        (layers(), ["a"], ValueError, "names has 1 string but there are 3 layers: give one for each"),
        (layers(), ["a", "b", "a"], ValueError, "names holds 'a' twice: give each layer its own name"),
        (layers(), "abc", TypeError, "names is the string 'abc': give a list with one string for each layer"),
        (layers(), [0, 1, 2], TypeError, "names holds 0: give strings"),
    ],
)
def test_what_is_no_stack_is_refused(given: object, names: object, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        AttentionStack(given, names)


def test_a_stack_does_not_change() -> None:
    with pytest.raises(AttributeError, match="so names cannot be set: make a new one"):
        AttentionStack(layers()).names = ("a", "b", "c")


def test_it_says_what_it_holds() -> None:
    att = Attention(torch.zeros(3, 4), torch.zeros(3, 4))
    assert repr(AttentionStack([att], ["only"])) == f"AttentionStack of 1 layer\n  only: {att!r}"
    lines = repr(AttentionStack([att] * 40)).splitlines()
    assert [lines[0], lines[4]] == ["AttentionStack of 40 layers", "  … 35 more"]
    assert lines[-1].startswith("  layer 39: Attention(")


# From tensors.


def test_tensors_with_layers_make_a_stack() -> None:
    q, k, v = torch.randn(3, 6, 2, 4, 5, 8)
    stack = stack_layers(q, k, v, is_causal=True)
    assert len(stack) == 6
    assert stack[2].q.data_ptr() == q[2].data_ptr()
    assert torch.equal(stack[2].block(head=1), Attention(q[2], k[2], v[2], is_causal=True).block(head=1))
    assert torch.equal(stack_layers(q.numpy(), k.numpy())[5].q, q[5])
    assert stack_layers(q.transpose(2, 3), k.transpose(2, 3), dims="bqhd")[0].shape.H == 4


def test_layers_of_different_sizes_come_as_lists() -> None:
    q = [torch.randn(2, 4, 8), np.ones((2, 9, 8), np.float32)]
    stack = stack_layers(q, q, names=["a", "b"])
    assert [layer.shape.Q for layer in stack] == [4, 9]
    assert stack.names == ("a", "b")


def test_a_mask_is_one_for_all_layers_or_one_for_each() -> None:
    q = torch.randn(2, 1, 1, 3, 4)
    mask = torch.ones(3, 3).tril().bool()
    assert [att.block("allowed").sum() for att in stack_layers(q, q, mask=mask)] == [6, 6]
    assert [att.block("allowed").sum() for att in stack_layers(q, q, mask=[mask, None])] == [6, 9]


def test_any_keyword_is_one_for_all_layers_or_a_list_with_one_for_each() -> None:
    q = torch.randn(2, 1, 1, 6, 4)
    stack = stack_layers(q, q, window=[2, None], softcap=[None, 5.0], is_causal=True, scale=[0.5, 1.0])
    assert [(att.window, att.softcap, att.scale) for att in stack] == [(2, None, 0.5), (None, 5.0, 1.0)]
    assert [int(att.block("allowed").sum()) for att in stack] == [11, 21]
    bias = [torch.zeros(6, 6), lambda score, b, h, q_idx, kv_idx: -score]
    negated = stack_layers(q, q, bias=bias)[1].block("masked")
    assert_close(negated, -Attention(q[1], q[1]).block("scaled"), **rounding(Attention(q[1], q[1])).masked)


@pytest.mark.parametrize(
    ("q", "k", "keywords", "match"),
    [
        (torch.zeros(2, 1, 1, 3, 4), torch.zeros(1, 1, 1, 3, 4), {}, "k has 1 layers but q has 2: give one for each"),
        (torch.zeros(2, 1, 1, 3, 4), torch.zeros(1, 1, 3, 4), {}, "k has 4 axes: give 5, layers first, or a list"),
        ([torch.zeros(3, 4)] * 2, [torch.zeros(3, 4), torch.zeros(3, 5)], {}, "layer 1: k has head size 5 but q has 4"),
        ([torch.zeros(3, 4)], [torch.zeros(3, 4)], {"mask": [None, None]}, "mask has 2 layers but q has 1"),
    ],
)
def test_layers_that_do_not_fit_are_named(q: object, k: object, keywords: dict[str, object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        stack_layers(q, k, **keywords)


# Arrays by name.


def test_arrays_by_name_are_layers_by_name() -> None:
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 3)
    stack = AttentionStack.from_arrays(
        {"first": {"q": q, "k": k, "v": v}, "second": {"q": q.numpy(), "k": k.numpy(), "v": None, "window": 2}},
        is_causal=True,
        scale=0.5,
    )
    assert stack.names == ("first", "second")
    for att, window, values in ((stack[0], None, v), (stack[1], 2, None)):
        expected = Attention(q, k, values, is_causal=True, scale=0.5, window=window)
        assert att.shape == expected.shape
        assert torch.equal(att.block(batch=1, head=3), expected.block(batch=1, head=3))


def test_arrays_by_name_take_dims_of_all_or_their_own() -> None:
    q, k = torch.randn(4, 5, 8), torch.randn(2, 5, 8)
    stack = AttentionStack.from_arrays({"one": {"q": q.numpy(), "k": k.numpy()}}, dims="hqd")
    assert (stack[0].shape.B, stack[0].shape.H, stack[0].shape.G) == (1, 4, 2)
    batches = AttentionStack.from_arrays({"one": {"q": q, "k": q, "dims": "bqd"}}, dims="hqd")
    assert (batches[0].shape.B, batches[0].shape.H) == (4, 1)


@pytest.mark.parametrize(
    ("arrays", "kind", "why"),
    [
        ([torch.randn(3, 4)] * 2, TypeError, "arrays is a list: give a mapping of names"),
        ({}, ValueError, "layers is empty"),
        ({"one": torch.randn(3, 4)}, TypeError, "layer 'one' is a Tensor: give {\"q\": …"),
        ({"one": {"q": torch.randn(3, 4)}}, ValueError, "layer 'one' has no k, but 'q': give"),
        ({"one": {"Q": torch.randn(3, 4), "q": None}}, ValueError, "layer 'one' has no q and no k, but 'Q', 'q'"),
        ({"one": {"q": torch.randn(3, 4), "k": torch.randn(3, 4), "is_casual": 1}}, ValueError, "is 'is_causal' meant"),
        ({"one": {"q": torch.randn(3, 4), "k": torch.randn(3, 4), "hidden": 1}}, ValueError, "does not take: give {"),
        ({"one": {"q": torch.randn(3, 4), "k": torch.randn(3, 5)}}, ValueError, "layer 'one': k has head size 5"),
        ({1: {"q": torch.randn(3, 4), "k": torch.randn(3, 4)}}, TypeError, "name"),
    ],
    ids=str,
)
def test_arrays_that_are_no_layers_are_refused_with_what_is_wanted(arrays: Any, kind: type, why: str) -> None:
    with pytest.raises(kind, match=re.escape(why)):
        AttentionStack.from_arrays(arrays)


def test_all_rows_are_measured_up_to_the_limit_and_some_beyond_it() -> None:
    most = all_heads.MAX_EXACT_CELLS // (16 * 2048)
    for keys, is_whole in ((most, True), (most + 1, False)):
        plan = all_heads.RowPlan([Shape(1, 16, 4, 2048, keys, 64, 32)], 0)
        assert (plan.whole, len(plan.queries[0]) == 2048) == (is_whole, is_whole)


def test_the_row_of_one_query_in_every_layer() -> None:
    layers = [Attention(*torch.randn(2, 2, 3, 5, 4), is_causal=True, sinks=torch.ones(3)) for _ in range(4)]
    found = AttentionStack(layers).by_layer(-2, batch=1)
    assert found.shape[:5] == (1, 3, 3, 4, 5)
    for head in range(3):
        wanted = torch.cat([att.block(batch=1, head=head, queries=[3]) for att in layers])
        torch.testing.assert_close(found.block(head=head), wanted)
    w = AttentionWidget(found, tokens=[f"layer {i}" for i in range(4)], key_tokens=list("abcde"))
    assert w.as_strings("tokens")[0] == "layer 0"
    with pytest.raises(IndexError, match="query 5 is not there"):
        AttentionStack(layers).by_layer(5)
    with pytest.raises(ValueError, match="2 heads and 5 keys and 3 heads and 5 keys"):
        AttentionStack([layers[0], Attention(*torch.randn(2, 2, 2, 5, 4))]).by_layer(0)
