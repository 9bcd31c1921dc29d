"""Calls of the public API as users write them, which mypy checks and nobody runs.

`make types` refuses a right call that mypy refuses, and a wrong one that it lets through: for such a line its
`type: ignore` is unused. So an editor completes what is right here, and underlines what is wrong.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import assert_type

from attnwidget import (
    Attention,
    AttentionStack,
    Capture,
    Run,
    ScaledDotProductAttention,
    capture,
    find_heads,
    intervene,
    masks,
    scaled_dot_product_attention,
    segments,
)
from attnwidget.results import HeadRows, Kept, OutputPath, WeightsBlock
from attnwidget.stack import stack_layers

q, k, v = torch.randn(3, 1, 4, 6, 8)
array = np.zeros((6, 8), np.float32)


def even(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return kv_idx % 2 == 0


def slope(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return score - (q_idx - kv_idx).abs() * 2.0**-h


# Right.


def results_have_types(x: Tensor) -> None:
    assert_type(scaled_dot_product_attention(x, x, x), tuple[Tensor, Tensor])
    scaled_dot_product_attention(array, array, array)[0].astype(np.float64)

    @capture(torch.nn.Linear(8, 8), last=1)
    def step(x: Tensor, times: int = 1) -> int:
        return times

    assert_type(step(q, 2), int)
    assert_type(step.capture, Capture)
    step("q")  # type: ignore[arg-type]
    Attention(q, k, mask=masks.causal())


def every_keyword() -> None:
    Attention(q, k)
    Attention(array, array, array, is_causal=True)
    Attention(
        q, k, v, mask=torch.ones(6, 6), mask_means="keep", mask_dims="qk", bias=q, window=4, scale=0.5, softcap=30
    )
    Attention(q, k, v, mask=None, mask_means=None, mask_dims=None, bias=None, window=None, scale=None, softcap=None)
    Attention(q, k, v, sinks=torch.zeros(2))
    Attention(q, k, sinks=array)
    Attention(q, k, sinks=0.0).block(keys="sink")
    Attention(q, k, sinks=None)
    Attention(q, k, v, dims="bhqd", mask=masks.causal, bias=slope)
    Attention(q, k, v, mask=masks.and_masks(masks.sliding_window(3), even))
    Attention(q, k, v, mask=even, bias=array)
    Attention.from_scores(q, v, mask=array, scale=0.5, is_causal=True, dims="bhqk")
    Attention.from_weights(q, dims="bhqk")
    scaled_dot_product_attention(array, array, array, mask=masks.causal, window=3, bias=slope)
    ScaledDotProductAttention(dropout=0.1).forward(q, k, v, masks.causal, window=3, mask_means="hide")
    stack_layers([q, q], [k, k], window=[None, 4], is_causal=True, mask=[None, masks.causal], scale=0.5)
    stack_layers([q, q], [k, k], sinks=[None, q])
    stack_layers([q, q], [k, k], sinks=array)


def results() -> None:
    att = Attention(q, k, v)
    assert_type(att, Attention)
    assert_type(Attention.from_scores(q), Attention)
    assert_type(att.combine([0, 1], "max"), Attention)
    assert_type(att.merge([0, 0, 1, 2, 3, 4]), Attention)
    assert_type(att.what_if({"scale": 0.5}), Attention)
    assert_type(att.block("scores", head=1, queries=[0, 2]), Tensor)
    assert_type(att.top_keys(0), tuple[Tensor, Tensor])
    assert_type(att.sink_weights(0, 1), Tensor)
    assert_type(att.options.window, int | None)
    assert_type(AttentionStack([att])[0], Attention)
    stack = AttentionStack([att])
    assert_type(stack.rollout(), Attention)
    assert_type(stack[:1], AttentionStack)
    assert_type(stack[[0, "layer 0"]], AttentionStack)
    assert_type(stack[re.compile("layer")], AttentionStack)
    assert_type(stack.pair(0, -1), Tensor)
    assert_type(stack.weights("layer 0", head=1), Tensor)
    assert_type(stack.metrics(tokens=["a"], rows=3), list[dict[str, Any]])
    assert_type(stack.metrics(kinds=["sink", first_key]), list[dict[str, Any]])
    assert_type(stack.similar(0, 1, by="picture", top=None), list[dict[str, Any]])
    assert_type(stack.keep("tova", 0.25), list[dict[str, Any]])
    assert_type(att.keep("window", 16, sinks=2), Kept)
    assert_type(att.keep(even).recall, Tensor)
    assert_type(att.keep(array).mean, float)


def first_key(rows: HeadRows) -> Tensor:
    return rows.weights[..., 0]


def heads() -> None:
    places = {"needle": (3, 9), "answer": (20, 30)}
    found = find_heads(torch.nn.Linear(2, 2), [[1, 2]], kind="retrieval", segments=places, top=None)
    assert_type(found, list[dict[str, Any]])
    find_heads(Attention(q, k), kind={"mine": first_key, "sink": "sink"}, threshold=0.5, rows=64)
    find_heads(Attention(q, k), kind=[first_key, "streaming"], roles={"query": "asked"}, first=2, window=128)
    find_heads(Attention(q, k))  # type: ignore[call-arg]
    Attention(q, k).keep("window", "16")  # type: ignore[arg-type]


def even_weights(block: WeightsBlock) -> Tensor:
    return block.allowed / block.allowed.sum(-1, keepdim=True)


def an_intervention() -> None:
    model = torch.nn.MultiheadAttention(4, 2)
    named = segments({"doc": (0, 2)}, length=4)
    with intervene(model, {(0, (0, 1)): "zero", "self_attn": {"block": ("doc", [1])}}, segments=named) as run:
        assert_type(run, Run)
    assert_type(run.edited, dict[str, tuple[int, ...]])
    assert_type(run.skipped, dict[str, str])
    intervene(model, {0: even_weights, ("all", 1): torch.zeros(2, 2)}, cross=True)
    intervene(model, ["zero"])  # type: ignore[arg-type]


def a_capture() -> None:
    model = torch.nn.Linear(2, 2)
    cap = capture(
        model,
        layers=[0, -1, slice(2), "encoder.*", re.compile("h")],
        queries=slice(-512, None),
        heads={0: [5, 7], "h.3": slice(4)},
        cross={"decoder.*": True, re.compile("self"): False},
        keep="overview",
        values=False,
        clone=False,
        device="cpu",
        dtype=torch.float16,
        last=2,
        every=3,
        limit="2GB",
        strict=False,
        tokenizer="gpt2",
    )
    assert_type(cap, Capture)
    assert_type(cap[0].tokens, list[list[str]] | list[list[int | None]] | None)
    assert_type(cap["decoder"], Any)
    assert_type(cap.inputs, dict[str, Tensor])
    assert_type(cap.towers, tuple[str, ...])
    cap.tokenizer = "gpt2"
    cap.widget(stack="decoder", tokens=[["a"]], layer=1)
    assert_type(cap.run(q), Capture)
    assert_type(cap.attention["h.0"], Any)
    assert_type(cap.attention[-1], Attention)
    assert_type(cap.pair(0, 1, cross=True), Tensor)
    assert_type(cap.weights(-1, batch=0), Tensor)
    assert_type(cap.metrics(rows=3), list[dict[str, Any]])
    assert_type(cap.numbers, list[int])
    capture(layers="encoder", queries=-1, heads=[1, 3])
    capture(limit=1 << 30, cross=False)
    carried = capture(cross=False, gradients=True)
    carried.target = " nail"
    carried.backward(7, at=-1)
    assert_type(carried.output_path, OutputPath)
    assert_type(carried.attention[0].with_target([7, 9]).carrying(w_o=q), Attention)
    capture(cross=["cross_attn", "encoder_attn"])
    assert_type(cap.all, AttentionStack)


# Wrong.


def an_unknown_keyword() -> None:
    Attention(q, k, is_casual=True)  # type: ignore[call-arg]
    Attention.from_scores(q, causal=True)  # type: ignore[call-arg]
    scaled_dot_product_attention(q, k, v, soft_cap=1.0)  # type: ignore[call-overload]
    ScaledDotProductAttention().forward(q, k, v, is_casual=True)  # type: ignore[call-arg]
    Attention(q, k, extra_masks=())  # type: ignore[call-arg]
    Attention.from_weights(q, is_causal=True)  # type: ignore[call-arg]
    stack_layers(q, k, windows=[4])  # type: ignore[call-arg]


def a_wrong_value() -> None:
    Attention(q, k, mask="causal")  # type: ignore[arg-type]
    Attention(q, k, mask=[[True, False]])  # type: ignore[arg-type]
    Attention(q, k, mask_means="show")  # type: ignore[arg-type]
    Attention(q, k, mask_dims="kq")  # type: ignore[arg-type]
    Attention(q, k, is_causal="yes")  # type: ignore[arg-type]
    Attention(q, k, window=2.5)  # type: ignore[arg-type]
    Attention(q, k, scale="big")  # type: ignore[arg-type]
    Attention(q, k, softcap=[30])  # type: ignore[arg-type]
    Attention(q, k, sinks="learned")  # type: ignore[arg-type]
    Attention(q, k, bias=even)  # type: ignore[arg-type]
    Attention(q, k, mask=slope)  # type: ignore[arg-type]
    Attention("q", k)  # type: ignore[arg-type]
    Attention([[1.0]], k)  # type: ignore[arg-type]
    Attention(q, k, v, masks.causal)  # type: ignore[arg-type, call-arg]
    Attention(q, k, dims=4)  # type: ignore[arg-type]
    scaled_dot_product_attention(q, k)  # type: ignore[call-overload]


def wrong_arguments_of_capture() -> None:
    capture(layers=1.5)  # type: ignore[arg-type]
    capture(keep="weights")  # type: ignore[arg-type]
    capture(queries="last")  # type: ignore[arg-type]
    capture(heads={1.5: 0})  # type: ignore[dict-item]
    capture(last="2")  # type: ignore[arg-type]
    capture(cross=1)  # type: ignore[arg-type]
    capture(every=[1])  # type: ignore[arg-type]
    capture(limit=[1])  # type: ignore[arg-type]
    capture(layer=1)  # type: ignore[call-arg]


def a_change() -> None:
    Attention(q, k).options.window = 4  # type: ignore[misc]
