"""Axes and labels of models that move positions or heads about: right, or left out with a word."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnwidget import Capture, capture

B, H, N, D = 3, 4, 12, 32
IDS = torch.arange(B * N).view(B, N)
ORDER = torch.randperm(N, generator=torch.Generator().manual_seed(0))


class Own(nn.Module):
    def __init__(self, way: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Linear(D, D) for _ in range(3))
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self.one(x), self.two(x), self.three(x))


class Net(nn.Module):
    def __init__(self, way: Any, before: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.before, self.own = nn.Embedding(B * N, D), before, Own(way)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.table(input_ids)
        return self.own(x if self.before is None else self.before(x))


def captured(way: Any, before: Any = None) -> tuple[Net, Capture, list[str]]:
    model = Net(way, before).eval()
    with warnings.catch_warnings(record=True) as said, torch.no_grad(), capture(model) as cap:
        warnings.simplefilter("always")
        model(IDS)
    return model, cap, [str(one.message) for one in said]


def split(x: Tensor) -> Tensor:
    return x.unflatten(-1, (H, -1)).transpose(1, 2)


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(split(q), split(k), split(v))


MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "flipped": lambda x: x.flip(1),
    "flipped by an index": lambda x: x[:, torch.arange(N - 1, -1, -1)],
    "permuted": lambda x: x[:, ORDER],
    "permuted by a list": lambda x: x[:, ORDER.tolist(), :],
    "rolled": lambda x: x.roll(3, 1),
    "selected": lambda x: x.index_select(1, ORDER),
    "gathered": lambda x: x.gather(1, ORDER[None, :, None].expand(B, -1, D)),
    "samples flipped": lambda x: x.flip(0),
}


@pytest.mark.parametrize("move", MOVES)
def test_reordered_positions_lose_their_tokens_with_a_word(move: str) -> None:
    _, cap, said = captured(plain, MOVES[move])
    assert cap.tokens is None
    assert any("in another order than the text" in one and "'own'" in one for one in said)


@pytest.mark.parametrize("move", ["flipped", "permuted", "rolled"])
def test_positions_that_are_reordered_in_the_module_itself_lose_them_too(move: str) -> None:
    def moved(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (MOVES[move](x) for x in (q, k, v))
        return (split(q) @ split(k).mT).softmax(-1) @ split(v)

    assert captured(moved)[1].tokens is None


BACK: dict[str, Callable[[Tensor], Tensor]] = {
    "twice": lambda x: x.flip(1).relu().flip(1),
    "rolled back": lambda x: x.roll(3, 1).relu().roll(-3, 1),
    "sorted back": lambda x: x[:, ORDER].relu()[:, ORDER.argsort()],
    "of features": lambda x: x.flip(-1),
    "parts of positions": lambda x: torch.cat([x[:, :5], x[:, 5:]], 1),
}


@pytest.mark.parametrize("move", BACK)
def test_positions_in_their_own_order_keep_their_tokens(move: str) -> None:
    _, cap, said = captured(plain, BACK[move])
    assert cap.tokens == IDS.tolist()
    assert not any("in another order" in one for one in said)


def heads_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (split(x).transpose(0, 1) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v)


def heads_first_merged(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (split(x).transpose(0, 1).flatten(0, 1) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v)


def merged(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (split(x).flatten(0, 1) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v)


def groups(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = split(q).unflatten(1, (2, 2))
    k, v = (split(x)[:, ::2].unsqueeze(2) for x in (k, v))
    return (q @ k.mT).softmax(-1) @ v


WAYS = [heads_first, heads_first_merged, merged, groups]


def expected(model: Net, way: Any) -> Tensor:
    """Return the weights (B, H, N, N) of the model, by plain formulas."""
    x = model.table(IDS)
    q, k = split(model.own.one(x)), split(model.own.two(x))
    if way is groups:
        return (q @ k[:, ::2].repeat_interleave(2, 1).mT).softmax(-1)
    return (q @ k.mT * (D // H) ** -0.5).softmax(-1)


@pytest.mark.parametrize("way", WAYS)
def test_samples_and_heads_are_told_apart_wherever_they_are(way: Any) -> None:
    model, cap, _ = captured(way)
    (att,) = cap.attention
    assert (att.shape.B, att.shape.H, cap.tokens) == (B, H, IDS.tolist())
    with torch.no_grad():
        weights = expected(model, way)
    for batch, head in ((0, 1), (2, 3)):
        assert (att.block(batch=batch, head=head) - weights[batch, head]).abs().max() < 1e-6


@pytest.mark.parametrize("axis", [1, 2])
def test_windows_are_samples_and_never_heads(axis: int) -> None:
    def windows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (split(x).unflatten(2, (3, 4)) for x in (q, k, v))
        q, k, v = (x.transpose(1, 2).flatten(0, 1) if axis == 1 else x for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v)

    model, cap, _ = captured(windows)
    (att,) = cap.attention
    assert (att.shape.B, att.shape.H, att.shape.K, cap.tokens) == (B * 3, H, 4, None)
    x = model.table(IDS)
    q, k = (split(f(x)).unflatten(2, (3, 4))[1, 2, 2] for f in (model.own.one, model.own.two))
    weights = (q @ k.mT * (D // H) ** -0.5).softmax(-1)
    assert (att.block(batch=1 * 3 + 2, head=2) - weights).abs().max() < 1e-6


def test_copies_of_several_samples_have_no_tokens() -> None:
    tiled = captured(plain, lambda x: x.repeat(2, 1, 1))[1]
    assert tiled.tokens is None
    assert tiled.attention[0].shape.B == 2 * B


def test_time_and_space_are_two_stacks() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    config = transformers.TimesformerConfig(image_size=32, patch_size=8, num_frames=3, **sizes)
    model = transformers.TimesformerModel(config).eval()
    with torch.no_grad(), capture(model) as cap:
        model(torch.randn(2, 3, 3, 32, 32))
    stacks = cap[0].stacks()
    assert list(stacks) == ["encoder, temporal_attention", "encoder, attention"]
    assert [{att.shape.K for att in one.attention} for one in stacks.values()] == [{3}, {17}]
    assert stacks["encoder, attention"].grids()["grid"] == (4, 4)


@pytest.mark.parametrize("kind", ["Detr", "TableTransformer"])
def test_keys_of_another_source_are_cross_attention_where_positions_are_added(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8] * 4, depths=[1] * 4, out_features=["stage4"]
    )
    sizes = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in (("layers", 1), ("ffn_dim", 32))}
    sizes |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "d_model": 32, "num_queries": 6}
    own = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None, "backbone_config": backbone}
    model = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**sizes, **own)).eval()
    with torch.no_grad(), capture(model) as cap:
        model(torch.randn(1, 3, 64, 96))  # 2 × 3 places in the last stage: as many as queries
    found = {name: one.cross for name, one in cap[0].stacks().items()}
    assert found == {"encoder": False, "decoder": False, "decoder, cross-attention": True}


def test_windows_are_maps_and_samples_are_samples() -> None:
    def in_windows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.unflatten(1, (3, 4)).flatten(0, 1) for x in (q, k, v))
        return F.scaled_dot_product_attention(*map(split, (q, k, v)))

    for way, word in ((in_windows, "map 0 of 9"), (plain, "sample 0 of 3")):
        _, cap, _ = captured(way)
        w = cap.widget()
        assert word in repr(w)
        assert w.facts["axes_read"] == ("maps" if word.startswith("map") else None)
