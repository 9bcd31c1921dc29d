"""Each part has the name of what wrote it: own models of many kinds, against gradients that know the writers by name.

Every model marks what each writer adds, under the name that the part must have. A second run cuts the model at the
marks and holds the scales of norms, so what is left is linear: a score is then the sum over the marks of gradient times
value, and each of these is the term of the part with that name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnwidget import Capture, capture

D, H, V, T = 16, 2, 30, 8
KEEP = torch.tensor([0, 2, 3, 6])


class Marks:
    """What writers added, by name, while the model is cut there; nothing is changed while `cuts` is False."""

    def __init__(self) -> None:
        self.cuts = False
        self.found: dict[str, Tensor] = {}
        self.keys: list[tuple[Tensor, Tensor]] = []

    def __call__(self, name: str, x: Tensor) -> Tensor:
        if not self.cuts:
            return x
        assert name not in self.found
        self.found[name] = x.detach().clone().requires_grad_()
        return self.found[name]

    def hold(self, scale: Tensor) -> Tensor:
        return scale.detach() if self.cuts else scale


class Norm(nn.Module):
    def __init__(self, marks: Marks) -> None:
        super().__init__()
        self.gain, self.marks = nn.Parameter(torch.rand(D) + 0.5), [marks]

    def forward(self, x: Tensor) -> Tensor:
        return x * self.marks[0].hold(torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)) * self.gain


class Attention(nn.Module):
    def __init__(self, marks: Marks) -> None:
        super().__init__()
        self.qkv, self.out, self.marks = nn.Linear(D, 3 * D), nn.Linear(D, D), [marks]

    def forward(self, x: Tensor) -> Tensor:
        marks = self.marks[0]
        q, k, v = (y.unflatten(-1, (H, D // H)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        number = len(marks.keys)
        marks.keys.append((q, k))
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(marks(f"heads {number}", heads).transpose(1, 2).flatten(2))


class MLP(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))


class Adapter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(D, 4), nn.Linear(4, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(F.silu(self.down(x)))


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv1d(D, D, 3, padding=2, groups=D)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.depthwise(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))


class Experts(nn.Module):
    """Two MLPs; each token goes to one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.each = nn.Linear(D, 2), nn.ModuleList([MLP(), MLP()])

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).max(-1)
        found = torch.zeros_like(x)
        for i, expert in enumerate(self.each):
            found[chosen == i] = expert(x[chosen == i]) * weights[chosen == i][:, None]
        return found


class Block(nn.Module):
    """A block of a kind; `n` is the number that its parts must have."""

    def __init__(self, marks: Marks, kind: str) -> None:
        super().__init__()
        self.marks, self.kind = [marks], kind
        self.attn, self.n1, self.n2 = Attention(marks), Norm(marks), Norm(marks)
        self.alpha, self.scale = 0.3, nn.Parameter(torch.rand(D))
        for name, make in EXTRA.get(kind, {"mlp": MLP}).items():
            self.add_module(name, make())
        if kind == "functional":
            self.up, self.down = nn.Parameter(torch.randn(2 * D, D) * 0.3), nn.Parameter(torch.randn(D, 2 * D) * 0.3)

    def forward(self, x: Tensor, n: int, path: str) -> Tensor:
        found: Tensor = getattr(self, f"_{self.kind}", self._usual)(x, self.marks[0], n, path)
        return found

    def _usual(self, x: Tensor, mark: Marks, n: int, path: str) -> Tensor:
        x = x + self.attn(self.n1(x))
        return x + mark(f"MLP {n}", self.mlp(self.n2(x)))

    def _parallel(self, x: Tensor, mark: Marks, n: int, path: str) -> Tensor:
        y = self.n1(x)
        return x + (self.attn(y) + mark(f"MLP {n}", self.mlp(y)))

    def _functional(self, x: Tensor, mark: Marks, n: int, path: str) -> Tensor:
        x = x + self.attn(self.n1(x))
        return x + mark(f"MLP {n}", F.linear(F.relu(F.linear(self.n2(x), self.up)), self.down))

    def _function(self, x: Tensor, mark: Marks, n: int, path: str) -> Tensor:
        x = x + self.attn(self.n1(x))
        return x + mark(f"tanh in blocks.{path}", torch.tanh(self.n2(x)))

    def _scaled(self, x: Tensor, mark: Marks, n: int, path: str) -> Tensor:
        x = x + self.alpha * self.attn(self.n1(x))
        return torch.addcmul(x, mark(f"MLP {n}", self.mlp(self.n2(x))), self.scale)

    def _mixed(self, x: Tensor, mark: Marks, n: int, path: str) -> Tensor:
        x = torch.add(x, self.attn(self.n1(x)), alpha=0.5)
        return torch.lerp(x, mark(f"MLP {n}", self.mlp(self.n2(x))), 0.3)

    def _convolution(self, x: Tensor, mark: Marks, n: int, path: str) -> Tensor:
        x = x + self.attn(self.n1(x))
        x = x + mark(f"{path}.conv", self.conv(self.n2(x)))
        return x + mark(f"MLP {n}", self.mlp(self.n2(x)))

    def _two(self, x: Tensor, mark: Marks, n: int, path: str) -> Tensor:
        x = x + mark(f"{path}.first_mlp", self.first_mlp(self.n2(x)))
        x = x + self.attn(self.n1(x))
        return x + mark(f"{path}.second_mlp", self.second_mlp(self.n2(x)))

    def _adapter(self, x: Tensor, mark: Marks, n: int, path: str) -> Tensor:
        x = x + self.attn(self.n1(x))
        y = self.n2(x)
        return x + (mark(f"MLP {n}", self.ffn(y)) + mark(f"{path}.adapter", self.adapter(y)))

    def _experts(self, x: Tensor, mark: Marks, n: int, path: str) -> Tensor:
        x = x + self.attn(self.n1(x))
        return x + mark(f"MLP {n}", self.moe(self.n2(x)))

    def _depth(self, x: Tensor, mark: Marks, n: int, path: str) -> Tensor:
        """Some positions alone pass the block (mixture of depths)."""
        inside = x[:, KEEP]
        y = inside + self.attn(self.n1(inside))
        y = y + mark(f"MLP {n}", self.mlp(self.n2(y)))
        x = x.clone()
        x[:, KEEP] = y
        return x

    def _added_at(self, x: Tensor, mark: Marks, n: int, path: str) -> Tensor:
        x = x + self.attn(self.n1(x))
        return x.index_add(1, KEEP, mark(f"MLP {n}", self.mlp(self.n2(x[:, KEEP]))))

    def _gathered(self, x: Tensor, mark: Marks, n: int, path: str) -> Tensor:
        x = x + self.attn(self.n1(x))
        at = KEEP[None, :, None].expand(x.shape[0], -1, D)
        y = x.gather(1, at)
        return x.scatter(1, at, y + mark(f"MLP {n}", self.mlp(self.n2(y))))

    def _masked(self, x: Tensor, mark: Marks, n: int, path: str) -> Tensor:
        mask = torch.zeros(x.shape[1], dtype=torch.bool)
        mask[KEEP] = True
        y = x + self.attn(self.n1(x))
        y = y + mark(f"MLP {n}", self.mlp(self.n2(y)))
        return torch.where(mask[None, :, None], y, x)

    def _slices(self, x: Tensor, mark: Marks, n: int, path: str) -> Tensor:
        x = x.clone()
        x[:, 1:] += self.attn(self.n1(x))[:, 1:]
        x[:, :-1].add_(mark(f"MLP {n}", self.mlp(self.n2(x)))[:, :-1])
        return x

    def _halves(self, x: Tensor, mark: Marks, n: int, path: str) -> Tensor:
        x = x + self.attn(self.n1(x))
        first, last = x[:, :3], x[:, 3:]
        last = last + mark(f"MLP {n}", self.mlp(self.n2(last)))
        return torch.cat([first, last], dim=1)


EXTRA: dict[str, dict[str, Callable[[], nn.Module]]] = {
    "convolution": {"mlp": MLP, "conv": Convolution},
    "two": {"first_mlp": MLP, "second_mlp": MLP},
    "adapter": {"ffn": MLP, "adapter": Adapter},
    "experts": {"moe": Experts},
}


class Net(nn.Module):
    """Embeddings and three blocks of a kind, put together in a way."""

    def __init__(self, kind: str, way: str = "list") -> None:
        super().__init__()
        self.marks = Marks()
        torch.manual_seed(0)
        self.words, self.places, self.way = nn.Embedding(V, D), nn.Embedding(T, D), way
        blocks = [Block(self.marks, kind) for _ in range(1 if way == "tied" else 3)]
        named = way == "dict"
        self.blocks = nn.ModuleDict(dict(zip("abc", blocks, strict=True))) if named else nn.ModuleList(blocks)
        self.before, self.fuse = (MLP(), nn.Linear(2 * D, D)) if way in ("mlp", "concat") else (None, None)
        if way == "mlp":
            self.before[2].bias = None  # a part of its own
        self.mixer = nn.ModuleList([Convolution(), Convolution()]) if way == "mixers" else None
        with torch.no_grad():
            for x in self.parameters():
                if x.ndim > 1:
                    x.normal_(0, 0.4)

    def forward(self, tokens: Tensor) -> Tensor:
        mark, way = self.marks, self.way
        x = mark("token", self.words(tokens))
        if way == "mlp":
            x = mark("input", self.before(x))
        elif way == "function":
            x = mark("input", torch.relu(x))
        elif way == "waves":
            numbers = torch.arange(tokens.shape[1])
            x = x + mark("position of places", self.places(numbers))
            x = x + mark("computed position", torch.sin(numbers[:, None] / torch.arange(1, D + 1)))
        else:
            x = x + mark("position", self.places(torch.arange(tokens.shape[1])))
        skipped = x
        for n in range(3):
            if way == "tied":
                block, path = self.blocks[0], "0"
            elif way == "dict":
                block, path = self.blocks["abc"[n]], f"blocks.{'abc'[n]}"
            else:
                block, path = self.blocks[n], str(n)
            if way == "mixers" and n < 2:
                x = x + mark(f"mixer.{n}", self.mixer[n](x))
            if way == "concat" and n == 2:
                x = self.fuse(torch.cat([x, skipped], -1))
            if way == "skip" and n == 2:
                x = x + skipped
            x = block(x, n, path)
            skipped = x if n == 0 else skipped
        return x


KINDS = [
    *("usual", "parallel", "functional", "function", "scaled", "mixed", "convolution", "two", "adapter", "experts"),
    *("depth", "added_at", "gathered", "masked", "slices", "halves"),
]
WAYS = ["tied", "dict", "mlp", "function", "mixers", "concat", "skip", "waves"]
TOKENS = torch.tensor([[3, 8, 1, 20, 8, 22, 5, 0], [9, 8, 7, 6, 5, 4, 3, 2]])


def expected(model: Net, layer: int, head: int, query: int, key: int) -> dict[str, float]:
    """What each writer gives to a score of the second sample."""
    model.marks.cuts, model.marks.found, model.marks.keys = True, {}, []
    with torch.enable_grad():
        model(TOKENS)
        q, k = model.marks.keys[layer]
        score = (q.detach()[1, head, query] * k[1, head, key]).sum() * (D // H) ** -0.5
        taken = [*model.marks.found.items()]
        grads = torch.autograd.grad(score, [x for _, x in taken], allow_unused=True)
    model.marks.cuts, found = False, {}
    for (name, x), grad in zip(taken, grads, strict=True):
        if grad is None:
            continue
        if name.startswith("heads"):
            each = (x * grad).detach().sum((0, 2, 3)).tolist()
            found |= {f"{name.removeprefix('heads ')}·{h}": value for h, value in enumerate(each)}
        else:
            found[name] = float((x * grad).detach().sum())
    return found


def captured(model: nn.Module) -> Capture:
    return capture(model, sources=True).run(TOKENS)


def is_close(found: dict[str, float], wanted: dict[str, float]) -> None:
    small = {name for name, value in {**found, **wanted}.items() if abs(value) < 1e-6}
    assert {*found} - small == {*wanted} - small
    for name in {*found} - small:
        assert found[name] == pytest.approx(wanted[name], rel=1e-3, abs=1e-4), name


def check(model: Net) -> None:
    cap = captured(model)
    for query, key in ((3, 2), (3, 1)):
        wanted = expected(model, 2, 1, query, key)
        pair, row = cap.why(2, 1, query, key, batch=1), cap.why_row(2, 1, query, batch=1)
        by_pair = {p.label: float(x) for p, x in zip(pair.key_parts, pair.by_key, strict=True) if p.kind != "bias"}
        by_row = {p.label: float(x) for p, x in zip(row.parts, row.terms[:, key], strict=True) if p.kind != "bias"}
        is_close(by_pair, wanted)
        is_close(by_row, wanted)
    parts = cap.composition(batch=1).parts
    assert not [label for label, count in Counter(part.label for part in parts).items() if count > 1]
    names = {part.label for part in parts if part.kind != "bias"}
    assert {*wanted} <= names


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_is_what_the_module_of_its_name_wrote(kind: str) -> None:
    check(Net(kind).eval())


@pytest.mark.parametrize("way", WAYS)
def test_blocks_that_are_put_together_in_another_way_keep_their_names(way: str) -> None:
    check(Net("usual", way).eval())


class Through(Net):
    """The stream passes a function after the first block."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__("usual")
        self.function = function

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for n in range(3):
            x = self.blocks[n](x, n, str(n))
            x = self.function(x) if n == 0 else x
        return x


def in_another_library(x: Tensor) -> Tensor:
    return torch.from_numpy(np.tanh(x.numpy()))


def into_empty(x: Tensor) -> Tensor:
    return torch.tanh(x, out=torch.empty_like(x))


def in_a_view(x: Tensor) -> Tensor:
    found = torch.zeros_like(x)
    found.view(-1)[:] = x.flatten()
    return found


def by_its_data(x: Tensor) -> Tensor:
    found = torch.zeros_like(x)
    found.data = x
    return found


def at_a_mask(x: Tensor) -> Tensor:
    found, mask = torch.zeros_like(x), torch.zeros(x.shape[:2], dtype=torch.bool)
    mask[:, ::2] = True
    found[mask], found[~mask] = x[mask], x[~mask]
    return found


def by_codes(x: Tensor) -> Tensor:
    return F.embedding(x.sum(-1).sigmoid().mul(4).long(), torch.linspace(-1, 1, 5)[:, None].expand(5, D))


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.tanh()


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "in place": lambda x: x.clone().relu_(),
    "custom": Own.apply,
    "aten": torch.ops.aten.tanh,
    "numbers": lambda x: torch.tensor(x.tolist()),
    "one number": lambda x: x + x.mean().item(),
    "vmap": lambda x: torch.func.vmap(torch.tanh)(x),
    "gate": lambda x: x * x.mean(-1, keepdim=True).sigmoid(),
    "sort": lambda x: x.sort(1).values,
    "positions": lambda x: x.cumsum(1),
    "features": lambda x: torch.where(x > 0, x, 0.1 * x),
    "NumPy": in_another_library,
    "out=": into_empty,
    "a view": in_a_view,
    "data": by_its_data,
    "a mask": at_a_mask,
    "codes": by_codes,
}


UNSEEN = {"numbers", "NumPy", "vmap"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_an_attention_had_a_part_in_is_never_the_input(name: str) -> None:
    """It has the name of the function that computed it, or is refused; nothing before it is lost without a word."""
    with torch.no_grad():
        cap = captured(Through(FUNCTIONS[name]).eval())
    if name in UNSEEN:
        with pytest.raises(ValueError, match="in a way that torch does not show"):
            cap.why(2, 1, 3, 2, batch=1)
        return
    labels = {part.label for part in cap.why(2, 1, 3, 2, batch=1).key_parts if part.kind != "bias"}
    (own,) = labels - {"1·0", "1·1", "MLP 1"}
    assert own.endswith(" in the model")


def by_a_mask(x: Tensor) -> Tensor:
    found, mask = x.clone(), torch.zeros(x.shape[:2], dtype=torch.bool)
    mask[:, ::2] = True
    found[mask] = (x * 2)[mask]
    return found


def test_rows_picked_by_a_mask_do_not_take_the_place_of_earlier_heads() -> None:
    with torch.no_grad():
        cap = captured(Through(by_a_mask).eval())
    with pytest.raises(ValueError, match=r"cannot be followed through an index"):
        cap.why(2, 1, 3, 2, batch=1)
    assert {"0·0", "0·1"} <= {part.label for part in cap.why(2, 1, 3, 1, batch=1).key_parts}


class Packed(Tensor):
    """Weights of 8 bits that are unpacked in each product, as of a library for quantization."""

    def __new__(cls, x: Tensor) -> Packed:
        return Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype)  # type: ignore[attr-defined, no-any-return]

    def __init__(self, x: Tensor) -> None:
        self.scale = x.abs().amax(1, keepdim=True) / 127
        self.codes = (x / self.scale).round().to(torch.int8)

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["scale", "codes"], None

    def dequantize(self) -> Tensor:
        return self.codes.float() * self.scale

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            return F.linear(args[0], args[1].dequantize(), *args[2:])
        return super().__torch_function__(func, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return Packed(args[0].dequantize())
        raise NotImplementedError(f"inside of Packed: {func}")


def test_packed_weights_have_parts() -> None:
    model = Net("usual").eval()
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight = nn.Parameter(Packed(module.weight.detach()), requires_grad=False)
    check(model)
