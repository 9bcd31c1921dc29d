"""The way of the outputs of heads is known from an earlier capture, and looked for anew where it may differ."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from captured import GPT2, build
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from attnwidget import Capture, capture
from attnwidget._capture.carried.residual_stream import StreamWatcher

STAGES = "value_norm", "logit"
OTHER_WAY = "its output took another path than in an earlier forward pass of this model"
SETTING = {"gate": 1.0, "skips": False}


class Layer(nn.Module):
    """Attention with a projection, whose result is added."""

    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.qkv, self.out, self.times = nn.Linear(size, 3 * size), nn.Linear(size, size), 1.0

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        output = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.times * self.out(output) * SETTING["gate"]


class Model(nn.Module):
    """Two layers, a norm and an unembedding."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm, self.unembedding = nn.LayerNorm(8), nn.Linear(8, 20, bias=False)
        self.config = SimpleNamespace(scale=2.0)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[: 1 if SETTING["skips"] else 2]:
            x = layer(x)
        logits: Tensor = self.unembedding(self.norm(x)) * self.config.scale
        return logits


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model().eval()


X = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(3))


def captured(model: nn.Module, x: Tensor = X) -> Capture:
    with torch.no_grad(), capture(model) as cap:
        model(x)
    return cap


def watched(model: nn.Module, x: Tensor = X) -> tuple[Capture, bool, list[str]]:
    """A capture, whether it followed tensors to the logits, and the linear maps and norms that it watched."""
    entered, own = [], StreamWatcher.__enter__
    with pytest.MonkeyPatch.context() as patch, torch.no_grad(), capture(model) as cap:
        leaves = [(name, one) for name, one in model.named_modules() if not list(one.children())]
        names = [name for name, one in leaves if one._forward_hooks and not isinstance(one, nn.Embedding)]
        patch.setattr(StreamWatcher, "__enter__", lambda self: entered.append(self) or own(self))
        model(x)
    return cap, bool(entered), names


def as_new(model: Model) -> Model:
    """A model with the same weights and settings, that was never captured."""
    new = Model().eval()
    new.load_state_dict(model.state_dict())
    for one, other in zip(new.layers, model.layers, strict=True):
        one.times = other.times
    new.config.scale = model.config.scale
    return new


def stages_of(one: Capture) -> list[Tensor]:
    """What head 1 of the last sample carries in all layers."""
    return [a.block(stage, batch=-1, head=1) for a in one.attention for stage in STAGES]


def same_stages(one: Capture, other: Capture) -> bool:
    """Whether head 1 of the last sample carries the same in all layers."""
    return all(torch.equal(a, b) for a, b in zip(stages_of(one), stages_of(other), strict=True))


def test_a_second_capture_follows_nothing_and_has_the_same_numbers() -> None:
    pytest.importorskip("transformers")
    gpt2, ids = build(GPT2, "sdpa"), torch.arange(3, 12)[None]
    first, follows, names = watched(gpt2, ids)
    assert follows
    assert "transformer.h.0.mlp.c_fc" in names
    second, follows, names = watched(gpt2, ids)
    assert not follows
    layers = range(len(gpt2.transformer.h))
    assert names == [*(f"transformer.h.{i}.attn.c_proj" for i in layers), "transformer.ln_f"]
    assert same_stages(first, second)
    assert first.output_path == second.output_path


def test_another_text_in_a_second_capture_has_its_own_scale(model: Model) -> None:
    captured(model)
    assert same_stages(captured(model, X.flip(1) * 3), captured(as_new(model), X.flip(1) * 3))


def test_a_model_that_gives_no_logits_is_known_too() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=8, n_positions=16, vocab_size=20)
    bare, ids = transformers.GPT2Model._from_config(config, attn_implementation="sdpa").eval(), torch.arange(3, 9)[None]
    first, follows, _ = watched(bare, ids)
    second, follows_again, _ = watched(bare, ids)
    assert follows
    assert not follows_again
    assert torch.equal(first.attention[1].block("value_norm"), second.attention[1].block("value_norm"))
    assert "gave no logits" in str(second.attention[1].why_not("logit"))


def change_weights(model: Model) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())))


def change_data(model: Model) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data * 1.5


def change_a_setting(model: Model) -> None:
    model.layers[1].times = 0.25


def change_the_config(model: Model) -> None:
    model.config.scale = 0.5


def load_other_weights(model: Model) -> None:
    model.load_state_dict({name: x.flip(0) * 1.5 for name, x in model.state_dict().items()}, assign=True)


def change_a_module(model: Model) -> None:
    model.layers[0].out = nn.Linear(8, 8, bias=False)
    model.layers[0].out.bias = nn.Parameter(torch.zeros(8))


@pytest.mark.parametrize(
    "change",
    [change_weights, change_data, change_a_setting, change_the_config, load_other_weights, change_a_module],
)
def test_a_model_that_was_changed_has_the_numbers_of_one_never_captured(
    model: Model, change: Callable[[Model], None]
) -> None:
    before = stages_of(captured(model))
    captured(model)
    change(model)
    after = captured(model)
    assert same_stages(after, captured(as_new(model)))
    assert not all(torch.equal(a, b) for a, b in zip(before, stages_of(after), strict=True))


HOOKS: dict[str, Callable[[nn.Module], Any]] = {
    "after a module": lambda own: own.register_forward_hook(lambda module, args, output: output.square()),
    "before a module": lambda own: own.register_forward_pre_hook(lambda module, args: (args[0].square(),)),
    "after all modules": lambda own: register_module_forward_hook(
        lambda module, args, output: output.square() if module is own else None
    ),
    "before all modules": lambda own: register_module_forward_pre_hook(
        lambda module, args: (args[0].square(),) if module is own else None
    ),
}


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("kind", HOOKS)
def test_a_hook_of_the_user_ends_what_was_known(model: Model, kind: str, inside: bool) -> None:
    captured(model)
    hook = None if inside else HOOKS[kind](model.layers[1].out)
    with torch.no_grad(), capture(model) as cap:
        hook = hook or HOOKS[kind](model.layers[1].out)
        model(X)
    assert cap.attention[0].why_not("logit") is None
    assert cap.attention[1].why_not("logit") is not None
    hook.remove()
    assert captured(model).attention[1].why_not("logit") is None


def test_a_forward_of_its_own_ends_what_was_known(model: Model) -> None:
    captured(model)
    layer = model.layers[1]
    own = type(layer).forward
    layer.forward = lambda x: own(layer, x).square()  # type: ignore[method-assign]
    cap, follows, _ = watched(model)
    assert follows
    assert "does not reach the final norm by additions and norms alone" in str(cap.attention[1].why_not("logit"))


def test_what_no_setting_shows_is_refused_once_and_then_looked_for_anew(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured(model)
    own = nn.functional.linear

    def bent(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        result: Tensor = own(x, weight, bias)
        return result.square() if weight is model.layers[1].out.weight else result

    monkeypatch.setattr(nn.functional, "linear", bent)
    cap = captured(model)
    assert OTHER_WAY in str(cap.attention[1].why_not("value_norm"))
    assert cap.attention[0].why_not("value_norm") is None
    _, follows, _ = watched(model)
    assert follows
    monkeypatch.undo()
    assert same_stages(captured(model), captured(as_new(model)))


def test_other_logits_than_were_known_are_refused(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    captured(model)
    own = nn.functional.linear
    monkeypatch.setattr(
        nn.functional, "linear", lambda x, w, b=None: own(x, w, b) * (3 if w is model.unembedding.weight else 1)
    )
    cap = captured(model)
    assert OTHER_WAY in str(cap.attention[0].why_not("logit"))
    assert cap.attention[0].why_not("value_norm") is None
    _, follows, _ = watched(model)
    assert follows


def test_a_layer_that_did_not_run_in_the_earlier_capture_is_not_known(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SETTING, "skips", True)
    assert len(captured(model).attention) == 1
    monkeypatch.setitem(SETTING, "skips", False)
    cap = captured(model)
    assert OTHER_WAY in str(cap.attention[1].why_not("logit"))
    assert cap.attention[1].why_not("value_norm") is None
    assert same_stages(captured(model), captured(as_new(model)))


def test_a_second_text_in_a_block_goes_the_way_that_the_first_has_confirmed(model: Model) -> None:
    captured(model)
    with torch.no_grad(), capture(model) as cap:
        model(X)
        model(X.flip(1))
    for forward, x in zip(cap, (X, X.flip(1)), strict=True):
        alone = captured(as_new(model), x)
        pairs = zip(forward.attention, alone.attention, strict=True)
        assert all(torch.equal(a.block(stage), b.block(stage)) for a, b in pairs for stage in STAGES)


def test_a_norm_between_is_followed_each_time(model: Model) -> None:
    class Normed(nn.Module):
        """A layer whose result is normed before it goes on."""

        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.layer, self.norm = layer, nn.LayerNorm(8)

        def forward(self, x: Tensor) -> Tensor:
            normed: Tensor = self.norm(self.layer(x))
            return normed

    model.layers[1] = Normed(model.layers[1])
    first, _, _ = watched(model)
    second, follows, _ = watched(model)
    assert follows
    assert first.attention[1].why_not("logit") is None
    assert same_stages(first, second)


def test_layers_of_torchs_own_attention_are_known_too() -> None:
    class Torchs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.ModuleList(nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(2))
            self.norm, self.unembedding = nn.LayerNorm(8), nn.Linear(8, 20, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = x + layer(x, x, x, need_weights=False)[0]
            logits: Tensor = self.unembedding(self.norm(x))
            return logits

    model = Torchs().eval()
    captured(model)
    second, follows, names = watched(model, X.flip(1))
    assert not follows
    assert "unembedding" not in names
    before = stages_of(second)
    assert same_stages(second, captured(Torchs().eval(), X.flip(1)))
    with torch.no_grad():
        model.layers[1].out_proj.weight.mul_(2)
    after = stages_of(captured(model, X.flip(1)))
    assert not all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_an_interrupted_model_leaves_what_is_known(model: Model) -> None:
    captured(model)
    hook = model.norm.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("stop")))
    with pytest.raises(RuntimeError, match="stop"), torch.no_grad(), capture(model):
        model(X)
    hook.remove()
    assert not any(one._forward_hooks for one in model.modules())
    assert same_stages(captured(model), captured(as_new(model)))


def test_what_is_known_of_a_model_ends_with_it() -> None:
    import gc
    import weakref

    model = Model().eval()
    captured(model)
    captured(model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
