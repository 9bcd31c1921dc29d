"""In torch's inference mode, and with another default device, everything computes what it computes outside of them."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from interrupting import interrupted_at, lines_of
from torch import Tensor, nn

import attnwidget
from attnwidget import (
    Attention,
    AttentionStack,
    AttentionWidget,
    Capture,
    ScaledDotProductAttention,
    capture,
    compare,
    effect,
    find_heads,
    intervene,
    load_sample,
    masks,
    scaled_dot_product_attention,
    scaling,
    segments,
    sweep,
)

B, H, G, N, D = 2, 3, 1, 12, 8
PARTS = segments({"a": (2, 5), "answer": (5, 9)}, length=N)
TOKENS = ["[CLS]", "the", "em", "##bed", "##ding", "of", "the", "bank", ".", "[SEP]", "[PAD]", "[PAD]"]


class Tensors:
    """What a user has: made outside or inside of inference mode, always on the CPU."""

    def __init__(self, queries: int = N) -> None:
        source = torch.Generator().manual_seed(0)

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=source, device="cpu")

        self.q, self.k, self.v = random(B, H, queries, D), random(B, G, queries, D), random(B, G, queries, D)
        self.bias, self.sinks, self.slopes = random(H, queries, queries), random(H), random(H)
        self.keep = torch.ones(B, queries, dtype=torch.bool, device="cpu")
        self.keep[1, -2:] = False
        self.weights = random(B, H, queries, queries).softmax(-1)
        self.w_o = random(H, D, 6)
        self.grad = random(queries, D)


def attentions(x: Tensors) -> dict[str, Attention]:
    """Return an attention of every kind."""
    return {
        "plain": Attention(x.q, x.k, x.v),
        "rules": Attention(
            x.q, x.k, x.v, is_causal=True, window=7, softcap=5.0, sinks=x.sinks, bias=x.bias, mask=x.keep,
            mask_dims="bk",
        ),
        "functions": Attention(
            x.q, x.k, x.v,
            mask=masks.and_masks(masks.causal, masks.or_masks(masks.sliding_window(4), masks.padding([9, 5]))),
            bias=lambda score, b, h, q_idx, kv_idx: score + x.slopes[h] * (kv_idx - q_idx),
        ),
        "lower right": Attention(x.q, x.k, x.v, mask=masks.causal_lower_right(N, N), sinks=0.5),
        "own mask": Attention(x.q, x.k, x.v, mask=lambda b, h, q_idx, kv_idx: (q_idx + kv_idx) % 3 > 0),
        "scores": Attention.from_scores(x.bias[None], is_causal=True),
        "weights": Attention.from_weights(x.weights, x.v),
    }  # fmt: skip


def of_one(name: str, x: Tensors) -> Iterator[Any]:
    """Yield what an attention answers to every question."""
    att = attentions(x)[name]
    at: dict[str, Any] = {"batch": 1, "head": 2 if att.shape.H > 2 else 0} if att.shape.B > 1 else {}
    yield att.shape, att.stages, str(att.dtype), str(att.device), att.description, repr(att)
    for stage in (*att.stages, "allowed"):
        yield att.block(stage, **at), att.block(stage, queries=[0, 5], keys=slice(3), **at)
        for pool in ("max", "mean") if stage != "allowed" else ():
            found = att.overview(stage=stage, size=5, pool=pool, **at)
            yield found.values, found.allowed
    if att.has_sinks:
        yield att.sink_weights(**at), att.block("masked", keys="sink", **at)
    yield att.top_keys(3, 4, **at), att.received(**at)
    yield att.statistics(**at), att.metrics(**at), att.metrics(tokens=TOKENS, rows=3, **at)
    yield att.check(TOKENS, **at), att.explain(7, 3, **at)
    if "masked" in att.stages:
        yield att.log_normalizer(**at), att.jacobian(4, **at)
        yield att.what_if({"causal": True, "drop_keys": [2]}).block(**at)
        yield att.what_if({"scale": 0.5}).block(**at)
        kept = [att.keep(masks.sliding_window(3), **at)]
        kept += [att.keep(policy, 6, **at) for policy in ("window", "heavy_hitters", "tova")] if name == "rules" else []
        yield [(one.recall, one.kept, one.output_error) for one in kept]
    yield att.by_segment(PARTS, **at), att.by_segment([3, 7], PARTS, measure="lift", without=("sink", "self"), **at)
    if att.v is not None:
        yield att.output(**at), att.gradients(**at), att.gradients(x.grad, **at)
        yield att.explain(7, 3, w_o=x.w_o[at["head"]], **at)
    if att.v is not None:
        w_o, gradient = x.w_o[: att.shape.H], x.q[: att.shape.B, : att.shape.H]
        carrying = att.carrying(w_o=w_o, direction=x.w_o[0, 0], grad_output=gradient)
        for stage in ("value_norm", "logit", "saliency"):
            yield carrying.block(stage, **at), carrying.overview(stage=stage, size=5, **at).values
    for made in (att.combine(how="mean"), att.combine([0], "max")):
        yield made.block(batch=at.get("batch", 0)), made.overview(size=5).values
    words = att.merge([0, 1, 2, 2, 2, 3, 4, 5, 6, 7, 8, 9])
    yield words.block(**at), words.overview(size=5, pool="mean", **at).values, words.statistics(**at)


def of_stacks(x: Tensors) -> Iterator[Any]:
    """Yield what a stack of layers answers."""
    stack = AttentionStack([att for name, att in attentions(x).items() if name != "scores"])
    yield len(stack), stack.names, repr(stack), stack[0].shape, stack["layer 1"].shape, len(stack[1:])
    yield stack.metrics(), stack.metrics(1, tokens=TOKENS, rows=3), stack.pair(5, 2, batch=1), stack.weights(1)
    with ThreadPoolExecutor(1) as pool:
        for found in (stack.overviews(1, size=5), stack.overviews(1, size=5, stage="weights", executor=pool)):
            yield [[(one.values, one.allowed) for one in of] for of in found]
        yield stack.by_segment(PARTS, batch=1, executor=pool), stack.metrics(executor=pool)
    yield stack.by_segment(PARTS, batch=1), stack.similar(0, 1), stack.metrics(kinds=["sink", "streaming"])
    yield stack[["layer 1"]].keep("window", 6), find_heads(stack, kind=["sink", "lookback"], segments=PARTS)
    yield stack.by_layer(-1, batch=1).block(head=0)
    yield stack.combine(grids=[(2, x.q.shape[2] // 2)] * len(stack)).block()
    yield AttentionStack.from_arrays({"one": {"q": x.q, "k": x.k}, "two": {"q": x.q, "k": x.k}})[1].block(batch=1)
    yield stack.rollout(1).block(), stack.rollout(heads="max").block(), stack.rollout(heads=[0, 2]).block()
    yield stack.combine(heads=[0]).block(batch=-1), stack.combine(how="max").block(queries=[1, 3])


def of_functions(x: Tensors) -> Iterator[Any]:
    """Yield what functions without an `Attention` answer."""
    yield scaled_dot_product_attention(x.q, x.k, x.v, is_causal=True, bias=x.bias, sinks=x.sinks, softcap=4.0)
    yield scaled_dot_product_attention(x.q, x.k, x.v, mask=masks.padding([9, 5]), window=3)
    yield scaled_dot_product_attention(*(part.numpy() for part in (x.q, x.k, x.v)), is_causal=True)
    yield ScaledDotProductAttention(dropout=0.5).eval()(x.q, x.k, x.v, x.keep, mask_dims="bk")
    steps = scaling.sweep(sizes=[2, 8], queries=6), scaling.sweep(x.q[0, 0], x.k[0, 0], sizes=[4, 8])
    yield steps
    yield [(one.length, one.dense_bytes) for one in scaling.cost([4, 8], runs=1)]
    sample = load_sample("cat")
    yield sample.q, sample.mask, Attention(sample.q[0], sample.k[0], sample.v[0]).block()
    b, h, q_idx, kv_idx = (torch.tensor(n, device="cpu") for n in (1, 0, 3, 2))
    for mask in (masks.causal, masks.causal_lower_right(3, 9), masks.sliding_window(2), masks.padding([9, 5])):
        yield mask(b, h, q_idx, kv_idx)


def shown(widget: AttentionWidget, *views: str) -> Iterator[Any]:
    """Yield what a widget shows and answers, as a user goes through it."""
    for view in (*views, "graph", "text", "stages", "heads", "heatmap"):
        widget.view = view
        for query, key in ((5, 2), (None, 3)):
            widget.query, widget.key = query, key
            yield widget.weights(5), {name: value for name, value in widget.get_state().items() if name in COMPARED}
    yield widget.metrics(), widget.metrics(0, rows=2)
    for field, value in (("stage", "masked"), ("pool", "mean"), ("batch", 1), ("head", 1)):
        setattr(widget, field, value)
        yield widget.picture
    for request in REQUESTS:
        replies: list[Any] = []
        widget.send = lambda *reply, replies=replies: replies.append(reply)  # type: ignore[method-assign, misc]
        widget._receive(None, {"requests": [{"id": 1, **AT, **request}]}, None)
        yield replies
    widget.finish()
    yield widget.picture


COMPARED = ("picture", "thumbnails", "survey", "links", "findings", "deviation", "stages", "pair", "facts", "errors",
            "comparison", "changes", "tokens", "grid", "image")  # fmt: skip
AT = {"layer": 0, "batch": 1, "head": 1, "stage": "weights"}
REQUESTS: list[dict[str, Any]] = [
    {"kind": "row", "query": 3},
    {"kind": "column", "key": 3},
    {"kind": "cells", "queries": [0, 4], "keys": [1, 3]},
    {"kind": "peak", "queries": [0, 4], "keys": [1, 3]},
    {"kind": "ranked", "queries": [3, 5], "over": "mean", "count": 4},
    {"kind": "ranked", "keys": [3], "over": "sum", "count": 4},
    {"kind": "strongest", "count": 3, "skip_first": True},
    {"kind": "tiles", "pool": "max", "view": "a", "tiles": [[0, 0, 0, 0]]},
    {"kind": "tokens", "side": "query", "start": 0, "stop": 9},
    {"kind": "find", "side": "query", "text": "bank", "start": 0, "count": 3},
    {"kind": "thumbnails", "heads": [0, 1]},
    {"kind": "check"},
    {"kind": "spread"},
    {"kind": "sweep", "own": True},
    {"kind": "sweep", "own": False},
    {"kind": "gradients"},
    {"kind": "jacobian", "query": 3},
    {"kind": "change", "queries": [0, 4], "keys": [1, 3], "against": "B"},
]


def of_widgets(x: Tensors) -> Iterator[Any]:
    """Yield what widgets show: of tensors, of weights, of stacks by name, of words, of patches, and after an update."""
    at: dict[str, Any] = {"is_causal": True, "sinks": x.sinks, "tokens": TOKENS}
    widget = AttentionWidget(x.q, x.k, x.v, grid=(3, 3), image=np.zeros((9, 9, 3), np.uint8), **at)
    yield from shown(widget, "image")
    widget.what_if = {"scale": 1.0}
    yield widget.picture, widget.thumbnails, widget.deviation
    widget.what_if, widget.heads, widget.combine, widget.stage = {}, [0, 2], "mean", "weights"
    yield widget.picture
    widget.combine, widget.pieces = "none", "words"
    yield widget.picture, widget.weights(1)
    widget.update(x.q, x.k, x.v, bias=x.bias)
    yield widget.picture
    weights = AttentionWidget.from_weights([x.weights, x.weights])
    yield weights.picture, weights.metrics()
    named = AttentionWidget.from_attention({"a": Attention(x.q, x.k), "b": Attention(x.q, x.k, x.v)})
    named.stack = "b"
    yield named.picture, repr(named)


def of_comparisons(x: Tensors) -> Iterator[Any]:
    """Yield what a comparison shows."""
    a, b = Attention(x.q, x.k, x.v), Attention(x.q, x.k, x.v, is_causal=True)
    yield from shown(compare(a, b, tokens=TOKENS), "compare")


def of_files(folder: Path, x: Tensors) -> Iterator[Any]:
    """Yield what is written and drawn."""
    widget = AttentionWidget(x.q, x.k, x.v, is_causal=True, tokens=TOKENS, query=3, key=2)
    yield widget.to_html(folder / "a.html").stat().st_size > 0
    for view in ("heatmap", "graph", "stages"):
        widget.view = view
        drawn = io.BytesIO()
        widget.figure(width=3).savefig(drawn, format="png")
        yield len(drawn.getvalue()) > 0
    yield sorted(dict(widget._repr_mimebundle_()[0]))  # type: ignore[index]


class Model(nn.Module):
    """Two layers of attention, one of torch's own and one written out."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.MultiheadAttention(16, 4, batch_first=True)
        self.second = WrittenOut()

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        return self.second(self.first(x, x, x, key_padding_mask=padding)[0])


class WrittenOut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one(x).unflatten(-1, (4, 4)).mT for one in (self.q, self.k, self.v))
        return ((q @ k.mT * 0.5).softmax(-1) @ v).flatten(-2)


def model() -> Model:
    torch.manual_seed(0)
    return Model().eval()


def of_captures(folder: Path, made: Model, x: Tensors) -> Iterator[Any]:
    """Yield what a capture has of a model, while it is recorded, saved and read again."""
    inputs = x.q.flatten(1, 2)[:, :N, :].repeat(1, 1, 2), ~x.keep
    for options in ({}, {"values": False, "clone": False}, {"keep": "overview"}, {"queries": slice(-4, None)}):
        with torch.no_grad(), capture(made, **options) as cap:
            made(*inputs)
            made(*inputs)
        for forward in (cap, cap[0]):
            stack = forward.attention
            yield cap.skipped, repr(cap), stack.names, cap.nbytes > 0
            yield [att.overview(1, 0).values for att in stack], forward.metrics()
            yield forward.widget().picture
        if not options:
            yield cap[0].segments({"b": (5, 9)}).sizes
            yield cap.pair(3, 2), cap.weights(0), cap.attention[0].block(batch=1), list(cap.calls), list(cap.stacks())
            cap.save(folder / "a.safetensors")
            read = Capture.load(folder / "a.safetensors")
            yield read.attention[0].block(batch=1), read.widget().picture, read.metrics()
            yield capture(made).run(*inputs).attention[0].block(batch=1)
            yield [(att.overview(1, 0).values, att.log_normalizer(1, 1)) for att in cap.reduce().attention]


def of_interventions(made: Model, x: Tensors) -> Iterator[Any]:
    """Yield what a model gives whose heads are edited."""
    inputs, own = (x.q.flatten(1, 2)[:, :N, :].repeat(1, 1, 2), ~x.keep), np.full((N, N), 0.5, np.float32)
    edits: list[Any] = ["zero", "uniform", {"drop_keys": [1]}, {"block": ([3], [-1])}, {"window": 2}, own]
    edits += [{"output": own[0, :4]}, {"from": Attention(x.q, x.k)}, lambda block: block.weights.flip(-1)]
    for edit in edits:
        with torch.no_grad(), intervene(made, {(0, 1): edit}) as run:
            output = made(*inputs)
        yield output, run.edited
    yield run.effect(target=first_of).change, effect(made, inputs, {(0, 1): "zero"}, target=first_of).after
    yield (
        sweep(made, inputs, over="keys", layers=[0], target=first_of, edit="cut")[3],
        sweep(made, inputs, target=first_of)[1],
    )


def first_of(output: Any) -> Any:
    """Return one number of a model's output."""
    return (output[0] if isinstance(output, tuple) else output).flatten()[0]


def assert_same(found: Any, expected: Any, where: str = "") -> None:
    """Raise unless both are alike, numbers but for what another way through the same kernels changes."""
    if isinstance(expected, Tensor):
        assert str(found.device) == "cpu", where
        torch.testing.assert_close(
            found.detach(), expected.detach(), equal_nan=True, msg=lambda said: f"{where}: {said}"
        )
    elif isinstance(expected, np.ndarray):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=where)
    elif isinstance(expected, dict) and "deflated" in expected and not isinstance(expected["data"], int):
        assert_same(numbers(found), numbers(expected), where)
        assert_same({**found, "data": 0}, {**expected, "data": 0}, where)
    elif dataclasses.is_dataclass(expected) and not isinstance(expected, type):
        assert_same(vars(found), vars(expected), where)
    elif isinstance(expected, dict):
        assert list(found) == list(expected), where
        for name in expected:
            assert_same(found[name], expected[name], f"{where} {name}")
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), where
        for i, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same(one, other, f"{where} {i}")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5, nan_ok=True), where
    elif isinstance(expected, bytes | memoryview):
        assert len(found) == len(expected), where
    else:
        assert found == expected, where


def numbers(envelope: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Return the numbers of an envelope; of bits and codes none, for those may be one apart."""
    data = zlib.decompress(envelope["data"]) if envelope["deflated"] else envelope["data"]
    return np.frombuffer(data, "<f4") if envelope["dtype"] == "float32" else np.zeros(0)


def questions(folder: Path) -> dict[str, Callable[[Tensors], Iterator[Any]]]:
    return {
        **{f"attention: {name}": partial(of_one, name) for name in attentions(THEIRS)},
        "stacks": of_stacks,
        "functions": of_functions,
        "widgets": of_widgets,
        "comparisons": of_comparisons,
        "files": partial(of_files, folder),
        "captures": partial(of_captures, folder, MODEL),
        "interventions": partial(of_interventions, MODEL),
    }


THEIRS, MODEL = Tensors(), model()
NAMES = [*questions(Path())]
MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "inference mode": torch.inference_mode,
    "another default device": lambda: default_device("meta"),
}


# Of such tensors an attention is asked for each commit; what is drawn and captured of it, before a release.
OUTSIDE = dict.fromkeys(
    ("stacks", "widgets", "comparisons", "files", "captures", "interventions"), pytest.mark.thorough
)


@contextmanager
def default_device(device: str) -> Iterator[None]:
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)
        vars(torch._GLOBAL_DEVICE_CONTEXT).pop("device_context", None)  # torch 2.5 asks the None there for its device


def answers(asked: Iterator[Any], *modes: Callable[[], AbstractContextManager[Any]]) -> list[Any]:
    """Return all that is answered, each question asked in the next of some modes."""
    found = []
    for mode in cycle(modes):
        with mode():
            try:
                found.append(next(asked))
            except StopIteration:
                return found
    raise AssertionError("there are no modes")


@pytest.mark.parametrize("name", NAMES)
def test_modes_of_the_caller_change_nothing(name: str, tmp_path: Path) -> None:
    """Each question is asked once in either mode, the one before it in the other, so that what it leaves is used."""
    ask, (one, other) = questions(tmp_path)[name], MODES.values()
    expected = answers(ask(THEIRS), nullcontext)
    for modes in ((one, other), (other, one)):
        assert_same(answers(ask(THEIRS), *modes), expected)


@pytest.mark.thorough
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_a_mode_of_the_caller_changes_nothing(name: str, mode: str, tmp_path: Path) -> None:
    ask, inside = questions(tmp_path)[name], MODES[mode]
    expected = answers(ask(THEIRS), nullcontext)
    for modes in [(inside, nullcontext), (nullcontext, inside)]:  # each question in and out of it
        assert_same(answers(ask(THEIRS), *modes), expected)


@pytest.mark.parametrize("name", [pytest.param(name, marks=OUTSIDE.get(name, ())) for name in NAMES])
def test_tensors_of_inference_mode_are_shown_inside_and_outside_of_it(name: str, tmp_path: Path) -> None:
    ask = questions(tmp_path)[name]
    expected = answers(ask(THEIRS), nullcontext)
    with torch.inference_mode():
        given = Tensors()
    for modes in [(nullcontext,), (torch.inference_mode, nullcontext)]:
        assert_same(answers(ask(given), *modes), expected)


OF_ENGINE = {
    "head",
    "find",
    "group",
    "versions",
    "known_rows",
    "longest_key",
    "own_keys",
    "remember",
    "remember_rows",
    "of",
    "replaced",
    "as_part",
    "as_read",
    "check_stage",
    "as_carrying",
    "why_not",
}  # what the package asks of its own attentions
NOTHING_COMPUTED = {
    "count",
    "index",
    "open",
    "close",
    "set_state",
    "as_strings",
    "labels_of_layer",
}  # in a way of its own
OF_LOGITS = {"backward", "with_target"}  # of models that have them: see `test_logits_of_a_captured_model`


def test_every_public_function_is_among_the_questions() -> None:
    source = Path(__file__).read_text()
    for one in (Attention, AttentionStack, AttentionWidget, Capture):
        theirs = {name for base in one.__mro__ if not base.__module__.startswith("attnwidget") for name in vars(base)}
        for name in {*dir(one)} - theirs:
            found = inspect.getattr_static(one, name)
            function = getattr(found, "__func__", found)
            ours = inspect.isfunction(function) and function.__module__.startswith("attnwidget")
            if ours and not name.startswith("_") and name not in OF_ENGINE | NOTHING_COMPUTED | OF_LOGITS:
                assert f".{name}(" in source, f"{one.__name__}.{name}"


class WithLogits(torch.nn.Module):
    """One layer before a final norm and an unembedding."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm, self.unembedding = torch.nn.LayerNorm(8), torch.nn.Linear(8, 20, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        added, _ = self.attention(x, x, x, need_weights=False)
        logits: Tensor = self.unembedding(self.norm(x + added))
        return logits


def test_logits_of_a_captured_model() -> None:
    torch.manual_seed(0)
    model, x = WithLogits().eval(), torch.randn(2, 5, 8)

    def logits() -> list[Tensor]:
        with torch.no_grad(), capture(model) as cap:
            model(x)
        att = cap.attention[0]
        return [one.block("logit", batch=1, head=1) for one in (att, att.with_target(7))]

    expected = logits()
    assert not torch.equal(*expected)
    with torch.inference_mode():
        found = logits()
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    with torch.device("meta"):
        found = logits()
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))

    def reasons() -> list[Tensor]:
        cap = capture(model, sources=True).run(x)
        found = cap.why(0, 1, 4, 2, against="mean", batch=1).terms, cap.why_row(0, 1, 4).terms
        with pytest.raises(ValueError, match="no rotation"):
            cap.attention[0].distance_profile(4, 2)
        return [*found, cap.composition().shares]

    expected = reasons()
    with torch.inference_mode():
        found = reasons()
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    with torch.device("meta"):
        found = reasons()
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    torch.set_default_dtype(torch.float64)
    try:
        found = reasons()
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    with torch.device("meta"):
        cap = capture(model, gradients=True).run(x)
        cap.backward(target=7)
        saliency = cap.attention[0].block("saliency", batch=1)
    assert saliency.device.type == "cpu"
    assert saliency.abs().max() > 0


@cache
def trees() -> list[tuple[Path, ast.Module]]:
    """Return the syntax tree of each file of the package."""
    return [(path, ast.parse(path.read_text())) for path in sorted(PACKAGE.rglob("*.py"))]


def tensors_made() -> Iterator[tuple[str, ast.Call]]:
    """Yield every call of the package that makes a tensor of nothing, with where it is."""
    from torch.utils._device import _device_constructors

    makers = {one.__name__ for one in _device_constructors()}
    for path, tree in trees():
        for node in ast.walk(tree):
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Attribute) and ast.unparse(called.value) == "torch" and called.attr in makers:
                yield f"{path.name}:{node.lineno}: {ast.unparse(node)}", node


PACKAGE = Path(attnwidget.__file__).parent


def test_every_tensor_that_is_made_says_on_which_device() -> None:
    made = list(tensors_made())
    assert len(made) > 40
    keywords = {where: {keyword.arg for keyword in call.keywords} for where, call in made}
    assert [where for where, named in keywords.items() if not named & {"device", None}] == []


def modes_held_at_a_yield() -> Iterator[str]:
    """Yield where a generator of the package holds a mode while it rests, so that its caller computes in it."""
    modes = ("exact(", "full(", "no_grad", "inference_mode", "DisableTorch")
    for path, tree in trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef) or any(
                "contextmanager" in ast.unparse(x) for x in node.decorator_list
            ):
                continue
            for block in ast.walk(node):
                held = ", ".join(ast.unparse(one) for one in block.items) if isinstance(block, ast.With) else ""
                if any(mode in held for mode in modes) and any(
                    isinstance(inner, ast.Yield | ast.YieldFrom) for inner in ast.walk(block)
                ):
                    yield f"{path.name}:{block.lineno}: with {held}"


def test_no_generator_rests_in_a_mode_of_its_own() -> None:
    assert list(modes_held_at_a_yield()) == []


def test_gradients_are_as_they_were_after_several_heads_recalled_side_by_side() -> None:
    att = Attention(*torch.randn(3, 1, 2, 40, 8), is_causal=True)
    w = AttentionWidget.from_attention(att, what_if={"keep": {"policy": "window", "budget": 12}}, heads=[0, 1])
    w.combine = "mean"
    assert torch.is_grad_enabled()
    w.combine = "max"
    w.close()
    assert torch.is_grad_enabled()


@pytest.mark.skipif(not hasattr(torch.backends.mkldnn, "matmul"), reason="this torch has no such switch")
def test_an_interrupt_at_any_line_leaves_the_caller_in_the_modes_it_was_in() -> None:
    backend = torch.backends.mkldnn.matmul
    before, att = backend.fp32_precision, Attention(*torch.randn(3, 9, 4))
    lines = lines_of(lambda: att.block(keys=3))
    assert lines > 50
    try:
        for line in range(1, lines + 1):
            backend.fp32_precision = "bf16"
            with interrupted_at(line):
                att.block(keys=3)
            assert torch.is_grad_enabled(), f"after line {line}"
            att.block(keys=3)  # what an interrupt leaves undone, the next block does
            assert backend.fp32_precision == "bf16", f"after line {line}"
    finally:
        backend.fp32_precision = before
