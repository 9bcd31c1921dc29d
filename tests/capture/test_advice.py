"""What a refusal says to do: in the words of the library whose model it is, and never of another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnwidget import AttentionWidget, capture


class Sigmoid(nn.Module):
    """Attention without a softmax, which no picture shows."""

    def forward(self, x: Tensor) -> Tensor:
        return (x @ x.mT).sigmoid() @ x


class Sdpa(nn.Module):
    """Attention of one head, by torch's function."""

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)


class Model(nn.Module):
    """A model of one attention."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x)


def of_library(name: str, kind: type[nn.Module]) -> type[nn.Module]:
    """A class as if it were of a library."""
    return type(kind.__name__, (kind,), {"__module__": f"{name}.models.some"})


X = torch.randn(2, 4, 5, 8)


OF_ANY_MODEL = "its q, k and v to AttentionWidget, if its code has them"
WAYS = {
    "transformers": "load the model with attn_implementation='eager'",
    "sentence_transformers": "model_kwargs={'attn_implementation': 'eager'}",
    "transformer_lens": "model.run_with_cache(tokens)",
    "timm": "timm.utils.AttentionExtract",
    "torchvision": "create_feature_extractor",
    "x_transformers": "return_attn=True",
    "esm": "need_head_weights=True",
}


@pytest.mark.parametrize("name", WAYS)
def test_a_refusal_has_the_way_on_of_the_models_library(name: str) -> None:
    model = of_library(name, Model)(Sigmoid())
    with pytest.raises(ValueError, match="none of 1 attention calls") as refused, capture(model):
        model(X)
    assert WAYS[name] in str(refused.value)
    assert OF_ANY_MODEL not in str(refused.value)


def test_the_innermost_module_of_a_known_library_decides() -> None:
    inner = of_library("timm", Model)(Sigmoid())
    outer = of_library("transformers", Model)(inner)
    with pytest.raises(ValueError, match="AttentionExtract"), capture(outer):
        outer(X)


def test_a_class_of_ones_own_that_is_made_of_a_librarys_is_of_that_library() -> None:
    class Own(of_library("x_transformers", nn.Module)):  # type: ignore[misc]
        pass

    model = Own()
    model.attention = Sigmoid()
    model.forward = model.attention.forward
    with pytest.raises(ValueError, match="return_attn=True"), capture(model):
        model(X)


def test_a_model_of_ones_own_is_not_told_to_be_called_as_another() -> None:
    model = Model(Sigmoid())
    with pytest.raises(ValueError, match="none of 1 attention calls") as refused, capture(model):
        model(X)
    assert str(refused.value).endswith(OF_ANY_MODEL)
    assert "output_attentions" not in str(refused.value)


def test_without_a_model_the_advice_is_for_the_library_of_what_was_called() -> None:
    model = of_library("timm", Model)(Sigmoid())
    other = Model(Sdpa())
    with capture() as cap:
        other(X)
        model(X)
    (why,) = cap.skipped.values()
    assert WAYS["timm"] in why


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_reason_that_has_a_way_on_of_its_own_keeps_it() -> None:
    """As attention in a transform of torch, in a model of a library."""
    model = of_library("timm", Model)(Sdpa())
    with torch.no_grad(), pytest.raises(ValueError, match="none of 1 attention calls") as refused, capture(model):
        torch.vmap(model)(X[:, None])
    assert "call the model on the whole batch" in str(refused.value)
    assert WAYS["timm"] not in str(refused.value)


@pytest.mark.parametrize(
    ("package", "words"),
    [
        ("onnxruntime.capi.session", "capture the PyTorch model that it was exported from"),
        ("torch.export.exported_program", "capture the Python model that it was made from"),
        ("jaxlib.xla", None),
        ("jax.numpy", "give q, k and v to AttentionWidget"),
        ("builtins", None),
    ],
)
def test_what_is_no_module_is_named(package: str, words: str | None) -> None:
    given = type("Given", (SimpleNamespace,), {"__module__": package})()
    with pytest.raises(TypeError, match=words or "give an nn.Module"):
        capture(given)


def test_an_exported_program_is_refused_with_the_way_on() -> None:
    program = torch.export.export(Model(Sdpa()), (X,))
    with pytest.raises(TypeError, match=r"model is an ExportedProgram: .*capture the Python model"):
        capture(program)
    module: Any = program.module()
    with pytest.raises(ValueError, match="capture the Python model"), capture(module):
        module(X)


def test_a_scripted_model_is_refused_with_the_way_on() -> None:
    model: Any = torch.jit.trace(Model(Sdpa()), X)
    with pytest.raises(ValueError, match="capture the Python model"), capture(model):
        model(X)


class Sine(nn.Module):
    """No attention."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sin()


@pytest.mark.parametrize("compile_it", [lambda model: torch.jit.trace(model, X), torch.fx.symbolic_trace])
def test_a_graph_in_which_no_attention_was_seen_has_the_way_on(compile_it: Callable[[nn.Module], Any]) -> None:
    model = compile_it(Sine())
    why = "no attention call was seen in .*: nothing can be seen inside a graph: capture the Python model"
    with pytest.raises(ValueError, match=why), capture(model):
        model(X)


def test_under_vmap_the_model_runs_and_the_reason_is_our_own() -> None:
    model = Model(Sdpa())
    results = []
    with (
        pytest.raises(ValueError, match=r"it runs under torch\.vmap .*: call the model on"),
        capture(model),
    ):
        results.append(torch.vmap(model)(X))
    assert torch.equal(results[0], torch.vmap(model)(X))


def call_in_another_thread(model: nn.Module) -> None:
    """Call a model, and wait for it."""
    thread = threading.Thread(target=model, args=(X,))
    thread.start()
    thread.join()


def test_calls_in_another_thread_are_told() -> None:
    model = Model(Sdpa())
    with capture(model) as cap:
        model(X)
        call_in_another_thread(model)
    assert "another thread" in cap.skipped["Model"]
    with pytest.raises(ValueError, match="another thread"), capture(model):
        call_in_another_thread(model)


def test_a_hook_that_another_thread_is_removing_does_not_break_the_forward() -> None:
    model = Model(nn.MultiheadAttention(8, 2, batch_first=True))
    model.forward = lambda x: model.attention(x, x, x)[0]  # type: ignore[method-assign]
    x = torch.randn(2, 5, 8)
    with capture(model) as cap:
        for module in model.modules():
            module._forward_pre_hooks_with_kwargs.clear()  # what torch has taken away first
        model(x)
    assert len(cap) == 1


def test_bands_are_refused_with_the_place_of_each_column() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    torch.manual_seed(0)
    config = transformers.LongformerConfig(vocab_size=60, attention_window=[4], max_position_embeddings=40, **sizes)
    model, ids = transformers.LongformerModel(config).eval(), torch.randint(3, 60, (1, 16))
    with torch.no_grad():
        output = model(ids, output_attentions=True, output_hidden_states=True)
        with pytest.raises(ValueError, match="column j of query i at key"), capture(model):
            model(ids)
    for show in (AttentionWidget, AttentionWidget.from_weights):
        with pytest.raises(ValueError, match="16 queries and 5 keys, so its columns are not the keys"):
            show(output)
    band, dense = output.attentions[0], torch.zeros(1, 2, 16, 16)
    for query in range(16):
        for column in range(5):
            key = query + column - 4 // 2
            if 0 <= key < 16:
                dense[..., query, key] = band[..., query, column]
    own, x = model.encoder.layer[0].attention.self, output.hidden_states[0]
    q, k = (f(x).unflatten(-1, (2, 8)).transpose(1, 2) for f in (own.query, own.key))
    places = torch.arange(16)
    near = (places[:, None] - places).abs() <= 2
    expected = (q @ k.mT * 8**-0.5).masked_fill(~near, -torch.inf).softmax(-1)
    assert (dense - expected).abs().max() < 1e-6
    assert AttentionWidget.from_weights(dense).weights(10)[10] == dense[0, 0, 10, 10]
