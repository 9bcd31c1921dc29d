"""Whatever our reading of a call raises, the model computes as without us, and no layer is missing without a word."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from captured import GPT2, build, weights
from torch import Tensor, nn

from attnwidget import Capture, capture, intervene
from attnwidget._capture.call import cache_growth, pieces
from attnwidget._capture.carried.output_watcher import OutputWatcher
from attnwidget._capture.carried.residual_stream import StreamWatcher
from attnwidget._capture.intercept import hooks
from attnwidget._capture.interventions.editor import CallEdit, Editor
from attnwidget._capture.modules.coverage import AttentionModules
from attnwidget._capture.modules.self_or_cross import Invocation, Provenance
from attnwidget._capture.records.decode_steps import NotedCall
from attnwidget._capture.records.forward_passes import RecordMatcher
from attnwidget._capture.records.kept_tensors import GrowingTensor, TensorKeeper
from attnwidget._capture.records.record import Record
from attnwidget._capture.session import callers, recorder
from attnwidget._capture.session.callers import ModelCalls
from attnwidget._capture.sources.linear_rules import LinearRules
from attnwidget._capture.sources.stream_tape import StreamTape
from attnwidget._capture.text.text_watcher import TextWatcher
from attnwidget._capture.tracing import tracer
from attnwidget._capture.tracing.heads_axis import HeadsAxes
from attnwidget._capture.tracing.positions_order import PositionOrder
from attnwidget._capture.tracing.traced_tensors import TracedTensors
from attnwidget._capture.verify import batched

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
B, H, N, D = 2, 4, 9, 8
ERRORS = itertools.cycle([ZeroDivisionError, KeyError, AttributeError, RuntimeError, TypeError, AssertionError])
AFTER = itertools.cycle([0, 1, 3])  # calls that go well before
Way = Callable[[Tensor, Tensor, Tensor], Tensor]


def written(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / D**0.5).softmax(-1) @ v


def in_slices(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    return torch.cat([written(q[i : i + 1], k[i : i + 1], v[i : i + 1]) for i in range(len(q))]).unflatten(0, (B, H))


class Layer(nn.Module):
    def __init__(self, way: Way) -> None:
        super().__init__()
        self.qkv, self.out, self.way = nn.Linear(H * D, 3 * H * D), nn.Linear(H * D, H * D), way

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (H, D)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        self.weights = (q @ k.mT / D**0.5).softmax(-1).detach()
        return x + self.out(self.way(q, k, v).transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(20, H * D)
        ways = written, F.scaled_dot_product_attention, in_slices
        self.layers = nn.ModuleList([Layer(way) for way in ways])
        self.torchs = nn.MultiheadAttention(H * D, H, batch_first=True)
        self.norm, self.head = nn.LayerNorm(H * D), nn.Linear(H * D, 20, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.table(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x + self.torchs(x, x, x)[0]))


def failing(patched: pytest.MonkeyPatch, owner: Any, name: str, error: type[BaseException], after: int) -> list[Any]:
    """Let a function of ours raise from its call number `after` on; return what it was called with then."""
    own, calls = getattr(owner, name), []

    def fails(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) > after:
            raise error("planted")
        return own(*args, **kwargs)

    patched.setattr(owner, name, fails)
    return calls


STAGES = [
    (recorder.Recorder, "record_call"), (recorder.Recorder, "_read_with_text"), (recorder.Recorder, "_followed"),
    (recorder.Recorder, "_record_pieces"), (recorder.Recorder, "before"), (recorder.Recorder, "_forward_ended"),
    (recorder, "heads_of_process"), (callers, "why_not_positions"), (ModelCalls, "_running"),
    (ModelCalls, "_name_of_caller"), (hooks, "read_sdpa"), (hooks, "_split_heads"), (hooks, "kernel_output"),
    (hooks, "_multi_head_body"), (tracer.ScoreTracer, "trace"), (tracer.ScoreTracer, "_meet_values"),
    (tracer.ScoreTracer, "_heads_of"), (tracer.ScoreTracer, "layout_of_query"), (TracedTensors, "_note"),
    (TracedTensors, "of"), (HeadsAxes, "trace"), (HeadsAxes, "of"), (PositionOrder, "trace"),
    (RecordMatcher, "begin"), (RecordMatcher, "end"), (RecordMatcher, "add"), (RecordMatcher, "_place"),
    (RecordMatcher, "settle"), (Record, "__init__"), (Record, "add_output"), (Record, "settle"),
    (Record, "take_checks"), (Record, "fault"), (Record, "rules"),
    (Record, "_witness"), (TensorKeeper, "growing"), (GrowingTensor, "trim"),
    (batched, "differ"), (Provenance, "_enter"), (Provenance, "_leave"), (Provenance, "is_cross"),
    (Provenance, "forward_ended"), (Invocation, "source_of"), (AttentionModules, "_ran_now"),
    (AttentionModules, "unseen"), (TextWatcher, "_begin"), (TextWatcher, "_text_of"), (TextWatcher, "_looked_up"),
    (OutputWatcher, "begin"), (OutputWatcher, "follow"), (OutputWatcher, "_linear"), (OutputWatcher, "_model_ended"),
    (StreamWatcher, "_set"), (StreamWatcher, "known"), (StreamTape, "_before"),
    (StreamTape, "_after"), (StreamTape, "_module_began"), (StreamTape, "_module_ended"), (StreamTape, "reads"),
    (StreamTape, "_source"), (StreamTape, "following"), (StreamTape, "_node"), (LinearRules, "_linear"),
]  # fmt: skip


EVERY_DAY = {
    "_record_pieces", "read_sdpa", "_meet_values", "end", "_place", "rules", "differ", "_enter", "_text_of", "_after",
    "read_call", "take_result", "known",
}  # fmt: skip


def each(stages: list[tuple[Any, str]]) -> pytest.MarkDecorator:
    """Return a parametrization over stages; some are tried every day."""
    marks = {True: (), False: (pytest.mark.thorough,)}
    given = [pytest.param(*one, id=f"{one[0].__name__}.{one[1]}", marks=marks[one[1] in EVERY_DAY]) for one in stages]
    return pytest.mark.parametrize(("owner", "name"), given)


@each(STAGES)
def test_an_error_of_ours_costs_what_it_hits_and_never_the_model(
    owner: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ids = Model().eval(), torch.arange(B * N).view(B, N) % 20
    with torch.no_grad():
        plain = model(ids)
    wanted = {f"layers.{i}": layer.weights for i, layer in enumerate(model.layers)}
    with monkeypatch.context() as patched, torch.no_grad():
        called = failing(patched, owner, name, next(ERRORS), next(AFTER))
        with capture(model, sources=owner is not StreamWatcher, strict=False) as cap:
            assert torch.equal(model(ids), plain)
        assert called
    check(cap, wanted)


@pytest.mark.parametrize("name", ["_slice_axis", "_memory_of"])
def test_pieces_are_not_shown_apart_because_reading_them_failed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = Model().eval(), torch.arange(B * N).view(B, N) % 20
    failing(monkeypatch, pieces, name, TypeError, 1)
    with torch.no_grad(), capture(model, strict=False) as cap:
        model(ids)
    check(cap, {f"layers.{i}": layer.weights for i, layer in enumerate(model.layers)})
    assert "planted" in cap.skipped["layers.2"]


def check(cap: Capture, wanted: dict[str, Tensor]) -> None:
    """Each layer is right, or is named; the rest of the capture can be read."""
    shown = dict(cap.calls) if len(cap) else {}
    for name, of_layer in wanted.items():
        if name in shown:
            torch.testing.assert_close(weights(shown[name]).flatten(0, 1), of_layer.flatten(0, 1))
        else:
            assert {name, "Model"} & cap.skipped.keys(), name
    assert "torchs" in shown or {"torchs", "Model"} & cap.skipped.keys()
    assert not any("#" in name for name in shown)
    if shown:
        assert cap.tokens is None or len(cap.tokens) == B
        cap.metrics()


GENERATING = [
    (recorder, "read_call"), (RecordMatcher, "repeat"), (RecordMatcher, "note_step"), (Record, "extend"),
    (Record, "repeating"), (Record, "confirm_keys"), (hooks, "_seen_output"), (cache_growth, "_note"),
    (NotedCall, "take_result"),
]  # fmt: skip


@each(GENERATING)
def test_nor_does_it_cost_a_generated_text(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, how = build(GPT2, "sdpa"), {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    plain = model.generate(torch.arange(3, 8)[None], **how)
    whole = capture(model).run(plain[:, :-1])
    with monkeypatch.context() as patched:
        failing(patched, owner, name, next(ERRORS), 1)
        with capture(model, strict=False) as cap:
            assert torch.equal(model.generate(torch.arange(3, 8)[None], **how), plain)
    assert len(cap) < 2 or cap.skipped
    shown = dict(cap.calls) if len(cap) == 1 else {}
    for of_layer, att in whole.calls.items():
        if of_layer in shown:
            torch.testing.assert_close(weights(shown[of_layer]), weights(att))
        else:
            assert len(cap) > 1 or {of_layer, type(model).__name__} & cap.skipped.keys()


def test_an_interrupt_passes_and_a_developer_can_ask_for_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = Model().eval(), torch.zeros(B, N, dtype=torch.long)
    for error, strict in ((KeyboardInterrupt, "0"), (ZeroDivisionError, "1")):
        with monkeypatch.context() as patched, torch.no_grad():
            patched.setenv("ATTNWIDGET_STRICT", strict)
            failing(patched, hooks, "read_sdpa", error, 0)
            with pytest.raises(error, match="planted"), capture(model, strict=False):
                model(ids)
    with torch.no_grad(), capture(model) as cap:  # nothing is left behind
        model(ids)
    assert not cap.skipped


@pytest.mark.parametrize("stage", [(tracer.ScoreTracer, "_meet_values"), (Editor, "_edit_of"), (CallEdit, "write")])
def test_an_edit_ends_with_the_name_of_the_module(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = Model().eval(), torch.zeros(B, N, dtype=torch.long)
    failing(monkeypatch, *stage, ZeroDivisionError, 0)
    refused = pytest.raises(ValueError, match=r"layers\.0 cannot be edited: .*planted")
    with torch.no_grad(), refused, intervene(model, {(0, 1): "zero"}):
        model(ids)


def test_a_call_that_cannot_become_a_map_costs_itself_alone() -> None:
    def given(heads: tuple[int, int, int] = (4, 4, 4), queries: int = 5, keys: int = 5, **how: Any) -> nn.Module:
        class Call(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                sizes = zip(heads, (queries, keys, keys), strict=True)
                F.scaled_dot_product_attention(*(torch.randn(2, h, n, 8) for h, n in sizes), **how)
                return x

        return Call()

    wrong = [
        given(scale=float("nan")), given(scale=float("inf")), given((8, 4, 2), enable_gqa=True), given((1, 4, 4)),
        given(queries=0), given(keys=0),
    ]  # fmt: skip
    model = nn.Sequential(given(), *wrong, given())
    with capture(model, strict=False) as cap:
        model(torch.zeros(1))
    assert list(cap.calls) == ["0", str(len(wrong) + 1)]
    assert list(map(int, sorted(cap.skipped))) == [*range(1, len(wrong) + 1)]
    assert len(cap.metrics()) == 2 * 2 * 4
    cap.widget()
