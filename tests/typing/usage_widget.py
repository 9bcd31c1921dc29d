"""How the widget is called, for mypy to read: every keyword has a type, and a wrong call is an error.

`make types` checks it with warn_unused_ignores: a wrong call that mypy lets pass is an ignore without use. None of
these functions is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import assert_type

from attnwidget import Attention, AttentionStack, AttentionWidget, ComparisonWidget, capture, compare, segments
from attnwidget.results import HeadRows

q = k = v = torch.zeros(1, 2, 4, 8)
mask = torch.ones(4, 4, dtype=torch.bool)
stack = AttentionStack([Attention(q, k), Attention(q, k)])
words = ["the", "bank", "lent", "money"]
widget = AttentionWidget(q, k)


def tensors_and_rules() -> None:
    """Tensors, arrays, lists of layers; whatever is between scores and weights, of all layers or of each."""
    AttentionWidget(q, k, v, mask=mask, mask_means="keep", is_causal=True, window=4, scale=0.5, softcap=30.0)
    AttentionWidget(q, k, v, sinks=q)
    AttentionWidget(np.zeros((4, 8)), np.zeros((4, 8)), mask=lambda batch, head, query, key: key <= query)
    AttentionWidget([q, q], [k, k], is_causal=[True, False], window=[None, 4], dims="bhqd")
    AttentionWidget(q, k, mask_means="kept")  # type: ignore[arg-type]
    AttentionWidget(q, k, window="4")  # type: ignore[arg-type]
    AttentionWidget(q, k, is_casual=True)  # type: ignore[call-arg]
    AttentionWidget()  # type: ignore[call-arg]
    AttentionWidget("q", k)  # type: ignore[arg-type]


class Output:
    """What a model returned."""

    attentions: tuple[Tensor, ...] | None = None


def weights_alone() -> None:
    """One argument, or tokens beside it."""
    AttentionWidget(q)
    AttentionWidget((q, q), words, view="graph")
    AttentionWidget(Output(), [words, words])
    AttentionWidget(stack, words, layer=1)
    AttentionWidget.from_weights(Output(), words)
    widget.update([q, q])
    AttentionWidget(Attention)  # type: ignore[arg-type]
    AttentionWidget(q, words, sinks="q")  # type: ignore[arg-type]


def positions() -> None:
    """What is at the positions."""
    AttentionWidget(q, k, tokens=words, key_tokens=[words], tokenizer=None, pieces="words")
    AttentionWidget(q, k, tokens=[101, 2003, 102, 7], grid=(2, 2), grid_side="key", grid_start=None, image="cat.png")
    AttentionWidget(q, k, tokens=4)  # type: ignore[arg-type]
    AttentionWidget(q, k, pieces="word")  # type: ignore[arg-type]
    AttentionWidget(q, k, grid=14)  # type: ignore[arg-type]


def looks() -> None:
    """What is looked at, and how."""
    AttentionWidget(
        q, k, layer=0, batch=0, head=np.int64(1), query=None, key=3, heads=range(2), pins=[(3, None), (2, 1)]
    )
    AttentionWidget(q, k, view="graph", stage="contribution", pool="mean", combine="max", what_if={"scale": 1.0})
    AttentionWidget(q, k, stage="logit", target=np.int64(7))
    AttentionWidget(q, k, target=1.5)  # type: ignore[arg-type]
    AttentionWidget(q, k, color_scale="log", color_range=(0, 0.5), palette="viridis", theme="contrast", title="Bank")
    AttentionWidget(
        q, k, top_k=3, threshold=0.1, direction="key", bar="induction", order="layer", only_heads=(8, None, 0.3)
    )
    AttentionWidget(q, k, head=1.5)  # type: ignore[arg-type]
    AttentionWidget(q, k, pins=[3])  # type: ignore[list-item]
    AttentionWidget(q, k, view="compare")  # type: ignore[arg-type]
    AttentionWidget(q, k, segments={"doc 1": (0, 2)}, view="segments", measure="lift", aside=["sink"], asking="doc 1")
    AttentionWidget(q, k, segments="sentences", segment_path=("doc 1",), segment=None, key_segments=segments("lines"))
    AttentionWidget(
        q, k, segments_show="effect", effect_target=(4, 262), effect_edit="uniform", order="effect", bar="effect"
    )
    AttentionWidget(q, k, segments=[{"role": "user", "content": "Where?"}], measure="weight")  # type: ignore[arg-type]
    AttentionWidget(q, k, stage="weight")  # type: ignore[arg-type]
    AttentionWidget(q, k, color_range="view"), AttentionWidget(q, k, color_range="layer")
    AttentionWidget(q, k, color_range="rows")  # type: ignore[arg-type]
    AttentionWidget(q, k, kinds={"mine": on_documents}, bar="mine", order="mine")
    AttentionWidget(q, k, order=3)  # type: ignore[arg-type]
    AttentionWidget(q, k, colour_scale="log")  # type: ignore[call-arg]


def on_documents(rows: HeadRows) -> Tensor:
    """A metric of one's own, which sees tokens and segments."""
    assert_type(rows.tokens, Sequence[str] | None)
    (span,) = rows.segments["doc 1"]
    return rows.weights[..., span.start : span.stop].sum(2)


def traits() -> None:
    """What is read and set on a widget."""
    assert_type(widget.layer, int)
    assert_type(widget.query, int | None)
    assert_type(widget.heads, list[int])
    assert_type(widget.pins, list[tuple[int | None, int | None]])
    assert_type(widget.view, Literal["heatmap", "graph", "text", "image", "heads", "segments", "stages", "why"])
    widget.view = "graf"  # type: ignore[assignment]
    assert_type(widget.threshold, float)
    assert_type(widget.top_k, int | None)
    assert_type(compare(widget, widget).against_at, tuple[int, int, int] | None)
    widget.query, widget.key = None, np.int64(3)
    widget.pins = [(3, None)]
    widget.color_range = (0.0, 0.5)
    widget.layer = "first"  # type: ignore[assignment]
    widget.head = None  # type: ignore[assignment]
    widget.view = 3  # type: ignore[assignment]
    widget.threshold = "low"  # type: ignore[assignment]


def other_ways() -> None:
    """The other ways to make one, and other tensors in it."""
    assert_type(AttentionWidget.from_attention(stack, tokens=words, layer=1), AttentionWidget)
    AttentionWidget.from_attention(stack, is_causal=True)  # type: ignore[call-arg]
    AttentionWidget.from_attention(q)  # type: ignore[arg-type]
    assert_type(AttentionWidget.from_weights([q, q], view="heads", dims=None), AttentionWidget)
    AttentionWidget.from_weights(q, scale=1.0)  # type: ignore[call-arg]
    widget.update(q, k, v, is_causal=False)
    widget.update(q, k, v, tokens=words)  # type: ignore[call-arg]


def comparisons() -> None:
    """Several beside one another."""
    assert_type(compare(Attention(q, k), stack, tokens=words, against="B", view="graph"), ComparisonWidget)
    compare({"a": widget, "b": stack}, tokens={"a": words, "b": words}, view="compare")
    compare((stack, 5, 7), (stack, 2, 9), against_at=(0, 0, 1))
    compare({"L5H7": widget, "L2H9": (stack, 2, 9)})
    compare(q, k)  # type: ignore[arg-type]
    compare(widget, widget, against=1)  # type: ignore[arg-type]
    compare(widget, widget, is_causal=True)  # type: ignore[call-arg]


def captures() -> None:
    """Of a model."""
    with capture(torch.nn.Linear(1, 1)) as cap:
        assert_type(cap.widget(words, cross=True, key_tokens=words, view="heads"), AttentionWidget)
        cap.widget(tokens=words, head=1)
        cap.widget(words, stack="decoder", forward=2)
        cap.widget(words, view="head")  # type: ignore[arg-type]


def results() -> None:
    """What methods return."""
    assert_type(widget.weights(2), Tensor)
    assert_type(widget.attention, Attention | AttentionStack)
