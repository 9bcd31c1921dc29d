"""One number for a layer: `cap.attention`, `intervene`, `effect`, `sweep` and `find_heads` mean the same module."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from left_to_thorough import left_to_thorough
from torch import Tensor, nn

from attnwidget import capture, effect, find_heads, intervene, sweep

B, N, D, H = 2, 9, 24, 3
SIZE = D // H
Way = Callable[[Tensor, Tensor, Tensor], Tensor]


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT / SIZE**0.5


def weights(q: Tensor, k: Tensor) -> Tensor:
    return scores(q, k).softmax(-1)


def additive(q: Tensor, k: Tensor) -> Tensor:
    return torch.tanh(q[:, :, :, None] + k[:, :, None]).sum(-1).softmax(-1)


def largest(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    w = weights(q, k)
    return w.masked_fill(w < w.topk(3, -1).values[..., -1:], 0) @ v


def merged(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Partial attentions, joined by their log-sum-exp: a capture shows none of them."""
    parts = [(scores(q, some), values) for some, values in zip(k.chunk(3, 2), v.chunk(3, 2), strict=True)]
    sums = [part.logsumexp(-1, keepdim=True) for part, _ in parts]
    whole = torch.stack(sums).logsumexp(0)
    outputs = zip(parts, sums, strict=True)
    return torch.stack([part.softmax(-1) @ values * (own - whole).exp() for (part, values), own in outputs]).sum(0)


SHOWN: dict[str, Way] = {
    "written out": lambda q, k, v: weights(q, k) @ v,
    "sdpa": F.scaled_dot_product_attention,
    "causal sdpa": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "einsum": lambda q, k, v: torch.einsum("bhqk,bhkd->bhqd", weights(q, k), v),
    "lower triangle": lambda q, k, v: weights(q, k).tril() @ v,
    "gate": lambda q, k, v: (weights(q, k) * torch.sigmoid(k.sum(-1))[:, :, None]) @ v,
    "largest": largest,
    "mixed heads": lambda q, k, v: torch.einsum("bhqk,hg->bgqk", weights(q, k), torch.full((H, H), 1 / H)) @ v,
    "additive": lambda q, k, v: additive(q, k) @ v,
    "additive by a sum": lambda q, k, v: (additive(q, k)[..., None] * v[:, :, None]).sum(-2),
    "additive by einsum": lambda q, k, v: torch.einsum("bhqk,bhkd->bhqd", additive(q, k), v),
    "sigmoid": lambda q, k, v: F.normalize(scores(q, k).sigmoid(), p=1, dim=-1) @ v,
}
HIDDEN: dict[str, Way] = {
    "sigmoid, refused": lambda q, k, v: scores(q, k).sigmoid() @ v,
    "negative": lambda q, k, v: (2 * weights(q, k) - weights(q / 2, k)) @ v,
    "linear": lambda q, k, v: q.softmax(-1) @ (k.softmax(-2).mT @ v),
    "none": lambda q, k, v: v,
}
WAYS = SHOWN | HIDDEN


class Layer(nn.Module):
    def __init__(self, way: Way) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(D, D) for _ in range(4))
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (H, SIZE)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return x + self.out(self.way(q, k, v).transpose(1, 2).flatten(2))


class Layers(nn.Module):
    """Layers that are called in any order, some of them twice."""

    def __init__(self, ways: list[Way], order: list[int]) -> None:
        super().__init__()
        self.layers, self.order = nn.ModuleList(Layer(way) for way in ways), order

    def forward(self, x: Tensor) -> Tensor:
        for one in self.order:
            x = self.layers[one](x)
        return x


def without_head(model: Layers, name: str, head: int, x: Tensor) -> Tensor:
    """The output without a head: a hook makes its numbers 0 before W_O, in one call of the module."""
    module, _, which = name.partition(" #")
    calls, layer = 0, model.get_submodule(module)
    assert isinstance(layer, Layer)

    def hook(_: nn.Module, args: tuple[Tensor]) -> tuple[Tensor] | None:
        nonlocal calls
        calls += 1
        if calls != int(which or 1):
            return None
        y = args[0].clone()
        y[..., head * SIZE : (head + 1) * SIZE] = 0
        return (y,)

    handle = layer.out.register_forward_pre_hook(hook)
    try:
        return model(x)  # type: ignore[no-any-return]
    finally:
        handle.remove()


def stack_of(*kinds: str) -> tuple[Layers, Tensor]:
    torch.manual_seed(1)
    return Layers([WAYS[kind] for kind in kinds], [*range(len(kinds))]).eval(), torch.randn(B, N, D)


def captured(model: nn.Module, x: Tensor, **how: Any) -> Any:
    with warnings.catch_warnings(), torch.no_grad(), capture(model, strict=False, **how) as cap:
        warnings.simplefilter("ignore")
        model(x)
    return cap


def size(output: Tensor) -> Tensor:
    return output[1, 3].norm()


@pytest.mark.parametrize("seed", left_to_thorough(range(40), (0, 1, 2, 3)))
@torch.no_grad()
def test_a_number_means_the_module_that_cap_attention_shows(seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    ways = [*(WAYS[rng.choice(list(WAYS))] for _ in range(rng.randint(2, 4))), SHOWN["written out"]]
    order = [*rng.sample(range(len(ways)), len(ways)), rng.randrange(len(ways))]
    model, x = Layers(ways, order).eval(), torch.randn(B, N, D)
    names = captured(model, x).attention.names
    losses = {one["layer"]: one for one in sweep(model, (x,), over="layers", target=size)}
    assert [one["name"] for one in losses.values()] == [*names]
    for number, name in enumerate(names):
        head = rng.randrange(H)
        expected = without_head(model, name, head, x)
        with intervene(model, {(number, head): "zero"}) as run:
            assert (model(x) - expected).abs().max() < 1e-5
        assert run.edited == {name: (head,)}
    found = effect(model, (x,), {(number, head): "zero"}, target=size)
    assert found.after == pytest.approx(float(size(expected)), abs=1e-5)
    with pytest.raises(ValueError, match="has edited nothing"), intervene(model, {len(names): "zero"}):
        model(x)


@torch.no_grad()
def test_a_layer_whose_output_contradicts_it_has_no_number() -> None:
    class Times(torch.overrides.TorchFunctionMode):
        """Multiplies what one layer's kernel returns, where nothing sees it."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            return result * 1.5 if func is F.scaled_dot_product_attention else result

    model, x = stack_of("written out", "sdpa", "additive", "written out")
    with Times():
        cap = captured(model, x)
        assert cap.attention.names == ("layers.0", "layers.2", "layers.3")
        for number, name in enumerate(cap.attention.names):
            with intervene(model, {number: "zero"}) as run:
                model(x)
            assert list(run.edited) == [name]
            chosen = captured(model, x, layers=[number])
            assert chosen.attention.names == (name,)
        assert captured(model, x, layers=-2).attention.names == ("layers.2",)
        with pytest.raises(ValueError, match="does more than they tell"), intervene(model, {"layers.1": "zero"}):
            model(x)


@torch.no_grad()
def test_partial_attentions_take_no_number_from_later_layers() -> None:
    torch.manual_seed(1)
    model, x = (
        Layers([SHOWN["sdpa"], merged, SHOWN["additive"], SHOWN["sdpa"]], [0, 1, 2, 3]).eval(),
        torch.randn(B, N, D),
    )
    cap = captured(model, x)
    assert cap.attention.names == ("layers.0", "layers.2", "layers.3")
    assert [one["name"] for one in sweep(model, (x,), over="layers", target=size)] == [*cap.attention.names]
    found = effect(model, (x,), {(1, 2): "zero"}, target=size)
    assert found.after == pytest.approx(float(size(without_head(model, "layers.2", 2, x))), abs=1e-5)
    assert captured(model, x, layers=-2).attention.names == ("layers.2",)
    with pytest.raises(ValueError, match=r"layers.1 was edited, .* Name the module"), intervene(model, {1: "zero"}):
        model(x)


@pytest.mark.parametrize(
    "how",
    [{"values": False}, {"keep": "overview"}, {"heads": [1]}, {"queries": [2]}, {"dtype": torch.bfloat16}],
    ids=str,
)
@torch.no_grad()
def test_a_layer_keeps_its_number_whatever_is_kept_of_it(how: dict[str, Any]) -> None:
    model, x = stack_of("sdpa", "largest", "sigmoid, refused", "additive", "written out")
    assert captured(model, x, **how).attention.names == ("layers.0", "layers.1", "layers.3", "layers.4")


@torch.no_grad()
def test_weights_alone_take_outputs_and_weights_and_refuse_the_rest_by_name() -> None:
    model, x = stack_of("sdpa", "additive", "sdpa")
    own = captured(model, x).attention[1]
    given = torch.eye(N)
    values = model.layers[1].v(model.layers[0](x)).unflatten(-1, (H, SIZE)).transpose(1, 2)
    cut = torch.stack([own.block(head=h, batch=0) for h in range(H)]).index_fill(2, torch.tensor([3, 5]), 0)
    for edit, expected in {
        "weights": (given, values),
        "cut": ({"block": (slice(None), [3, 5]), "renormalize": False}, torch.stack([cut, cut]) @ values),
        "output": ({"output": torch.ones(SIZE)}, torch.ones_like(values)),
    }.values():
        seen: list[Tensor] = []
        handle = model.layers[1].out.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0]))
        with intervene(model, {(1, (0, 2)): edit}):
            model(x)
        handle.remove()
        found = seen[0].unflatten(-1, (H, SIZE)).transpose(1, 2)
        assert (found[0, [0, 2]] - expected[0, [0, 2]]).abs().max() < 1e-5
        assert not torch.allclose(found[0, 1], expected[0, 1], atol=1e-3)
    for refused in ("mean", {"drop_keys": [1]}, {"temperature": 2.0}, lambda block: block.weights):
        with (
            pytest.raises(ValueError, match=r"^layers.1 is known by its weights alone"),
            intervene(model, {1: refused}),
        ):
            model(x)


def test_gradients_flow_around_a_head_of_weights_alone() -> None:
    model, x = stack_of("sdpa", "additive", "sdpa")
    with intervene(model, {(1, 2): "zero"}):
        size(model(x)).backward()
    edited = model.layers[1].v.weight.grad
    model.zero_grad()
    size(without_head(model, "layers.1", 2, x)).backward()
    assert edited is not None
    assert torch.allclose(edited, model.layers[1].v.weight.grad, atol=1e-6)  # type: ignore[arg-type]


def test_a_sweep_leaves_out_a_layer_that_its_edit_cannot_be_made_in() -> None:
    model, x = stack_of("sdpa", "additive", "sdpa")
    with pytest.warns(UserWarning, match="the sweep leaves out 'layers.1': layers.1 is known by its weights alone"):
        found = sweep(model, (x,), over="heads", edit="uniform", target=size)
    assert {(one["layer"], one["name"]) for one in found} == {(0, "layers.0"), (2, "layers.2")}
    assert (list(found.left_out), found.total, found.is_partial) == (["layers.1"], 2 * H, False)
    with pytest.raises(ValueError, match=r"layers.1 is known by its weights alone"):
        sweep(model, (x,), over="heads", edit="uniform", layers=[1], target=size)
    with pytest.warns(UserWarning, match="leaves out"):
        keys = sweep(model, (x,), over="keys", target=size)
    alone = effect(model, (x,), {0: {"drop_keys": [4]}, 2: {"drop_keys": [4]}}, target=size)
    assert keys[4]["after"] == pytest.approx(alone.after, abs=1e-6)


class Dropping(nn.Module):
    """Leaves out layers in some passes, as layer drop and early exits do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(SHOWN["sdpa"]) for _ in range(3))
        self.left: set[int] = set()

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            x = x if number in self.left else layer(x)
        return x


@torch.no_grad()
def test_a_number_that_means_two_modules_in_one_block_is_refused() -> None:
    torch.manual_seed(1)
    model, x = Dropping().eval(), torch.randn(B, N, D)
    with intervene(model, {(0, 1): "zero"}) as run:
        for model.left in ({2}, set(), {1}):
            model(x)
    assert run.edited == {"layers.0": (1,)}
    for first, then in (({1}, set()), (set(), {1}), ({0}, set()), (set(), {0})):
        model.left = first
        run = intervene(model, {(1, 1): "zero"})
        with run:
            model(x)
            model.left = then
            with pytest.raises(ValueError, match=r"other layers ran: name the module"):
                model(x)


@torch.no_grad()
def test_heads_of_several_texts_are_told_apart_by_module() -> None:
    torch.manual_seed(1)
    model = Dropping().eval()
    caps = []
    for model.left in ({1}, set()):
        with capture(model) as cap:
            model(torch.randn(1, N, D))
        caps.append(cap)
    with capture(model) as both:
        for model.left in ({1}, set()):
            model(torch.randn(1, N, D))
    found = find_heads(both, kind="entropy", top=None)
    texts = {(one["name"], one["n"]) for one in found}
    assert texts == {("layers.0", 2), ("layers.1", 1), ("layers.2", 2)}
    assert len({(one["layer"], one["name"]) for one in found}) == len({one["layer"] for one in found}) == 3


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, D)
        self.layers = nn.Sequential(*(Layer(SHOWN[one]) for one in ("causal sdpa", "lower triangle", "causal sdpa")))

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.layers(self.embed(input_ids)) @ self.embed.weight.T  # type: ignore[no-any-return]


def test_a_widgets_effects_are_those_of_its_layers_and_it_names_one_that_has_none() -> None:
    torch.manual_seed(1)
    model, ids = Language().eval(), torch.randint(0, 20, (1, N))
    with torch.no_grad(), capture(model) as cap:
        model(ids)
    parts = {"first": (1, 4), "last": (4, N)}
    how: dict[str, Any] = {"model": model, "inputs": ids, "target": 3, "segments": parts}
    w = cap.widget(**how, view="segments", segments_show="effect")
    w.finish()
    of_heads = {(layer, head): {(layer, head): "zero"} for layer in (1, 2) for head in range(H)}
    for (layer, head), edits in of_heads.items():
        found = effect(model, ids, edits, target=3)
        assert w.effects["heads"]["lost"][layer * H + head] == pytest.approx(
            found.before - found.after, rel=1e-4, abs=1e-5
        )
    only_weights = "layer 1 are left out: layers.1 is known by its weights alone, without q and k"
    assert w.effects["left_out"] == f"the keys of {only_weights}"
    assert w.effects["segments"]["dropped"] == "keys dropped in 2 of 3 layers"
    w.effect_edit = "uniform"
    w.finish()
    assert w.effects["left_out"] == f"the keys and heads of {only_weights}"
    assert w.effects["heads"]["lost"][H : 2 * H] == ["nan"] * H
    assert (w.effects["state"], w.effects["error"]) == ("done", None)
    w.effect_edit = "cut"
    w.finish()
    assert w.effects["left_out"] is None


def test_why_and_composition_leave_out_a_layer_of_weights_alone_by_its_name() -> None:
    model, x = stack_of("sdpa", "largest", "sdpa")
    cap = captured(model, x, sources=True)
    assert ("1·2", "layers.1") in {(part.label, part.module) for part in cap.why(2, 0, 5, 3).key_parts}
    for asked in (lambda: cap.why(1, 0, 5, 3), lambda: cap.why_row(1, 0, 5), lambda: cap.composition(layers=[0, 1])):
        with pytest.raises(ValueError, match=r"layers.1 is known by its weights alone"):
            asked()
    with pytest.warns(UserWarning, match=r"layers.1 is known by its weights alone"):
        found = cap.composition()
    assert {edge.layer for edge in found.edges} == {0, 2}
