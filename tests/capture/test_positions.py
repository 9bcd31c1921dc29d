"""Attention whose queries and keys are not positions is told, and never drawn as if they were."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from captured import TEXT
from torch import Tensor, nn

from attnwidget import capture
from attnwidget._capture.call.observed_call import ObservedCall
from attnwidget._capture.modules.position_check import why_not_positions
from attnwidget._capture.modules.self_or_cross import Invocation

transformers = pytest.importorskip("transformers")


class CrossCovariance(nn.Module):
    """As XCiT: q and k are transposed, and each cell is a pair of channels."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.qkv, self.temperature, self.fused = nn.Linear(32, 96), nn.Parameter(torch.ones(4, 1, 1)), fused

    def forward(self, x: Tensor) -> Tensor:
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, 4, C // 4).permute(2, 0, 3, 4, 1).unbind(0)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        if self.fused:
            found = F.scaled_dot_product_attention(q * self.temperature, k, v, scale=1.0)
        else:
            found = ((q @ k.transpose(-2, -1)) * self.temperature).softmax(-1) @ v
        return found.permute(0, 3, 1, 2).reshape(B, N, C)


class ChannelMaps(nn.Module):
    """As Restormer: channels of an image (B, C, H, W)."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Conv2d(32, 96, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(1, (4, 8)).flatten(3) for t in self.qkv(x).chunk(3, 1))
        return ((F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT).softmax(-1) @ v).flatten(1, 2).view_as(x)


class Usual(CrossCovariance):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("length", [12, 8])  # the latter as many as a head has channels
@pytest.mark.parametrize("fused", [True, False])
def test_attention_over_channels_is_told_beside_the_usual(fused: bool, length: int) -> None:
    model = nn.Sequential(Usual(fused), CrossCovariance(fused)).eval()
    with torch.no_grad(), capture(model) as cap:
        for _ in range(2):
            model(torch.randn(2, length, 32))
    assert [one.all.names for one in cap] == [("0",), ("0",)]
    assert list(cap.skipped) == ["1"]
    assert "attends over channels" in cap.skipped["1"]


def test_attention_over_the_channels_of_an_image_is_told() -> None:
    model = nn.Sequential(ChannelMaps()).eval()
    with pytest.raises(ValueError, match="attends over channels"), torch.no_grad(), capture(model):
        model(torch.randn(2, 32, 5, 6))


def test_queries_that_are_chosen_by_their_content_are_told() -> None:
    config = transformers.InformerConfig(
        prediction_length=4, context_length=20, lags_sequence=[1], d_model=16, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16,
        num_time_features=1, sampling_factor=1,
    )  # fmt: skip
    model = transformers.InformerModel(config).eval()
    past, future = torch.randn(2, 21), torch.randn(2, 4)
    with torch.no_grad(), capture(model) as cap:
        model(
            past_values=past, past_time_features=torch.randn(2, 21, 1), past_observed_mask=torch.ones(2, 21),
            future_values=future, future_time_features=torch.randn(2, 4, 1),
        )  # fmt: skip
    assert set(cap.skipped) == {"encoder.layers.0.self_attn", "decoder.layers.0.self_attn"}
    assert all("not the text's positions" in why for why in cap.skipped.values())
    assert cap.all.names == ("decoder.layers.0.encoder_attn",)


@pytest.mark.parametrize(("length", "told"), [(16, False), (64, True)])
def test_blocks_of_big_bird_are_told_and_its_full_attention_is_shown(length: int, told: bool) -> None:
    config = transformers.BigBirdConfig(
        **TEXT, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, block_size=4,
        num_random_blocks=1,
    )  # fmt: skip
    model, ids = transformers.BigBirdModel(config).eval(), torch.randint(3, 50, (1, length))
    with torch.no_grad():
        if told:
            with pytest.raises(ValueError, match="not the text's positions"), capture(model):
                model(ids)
        else:
            with capture(model) as cap:
                model(ids)
            assert cap.attention[0].shape[3:5] == (length, length)


class LocalSelfAttention(nn.Module):
    """May take its text in blocks, by its name."""


class ProbSparseAttention(nn.Module):
    """Chooses its queries, by its name."""


def why(module: nn.Module, given: tuple[int, ...], q: tuple[int, ...], keys: int | None = None) -> str | None:
    """What is said of a call with q (B, H, Q, D) of a module that was given one tensor of this shape."""
    B, H, Q, D = q
    k = torch.randn(B, H, keys or Q, D)
    return why_not_positions(ObservedCall(torch.randn(q), k, k), Invocation(module, (torch.randn(given),), {}))


def test_blocks_are_told_where_they_are_not_all_positions() -> None:
    local = LocalSelfAttention()
    assert why(local, (3, 12, 8), (3, 2, 12, 4)) is None
    for q, keys in (((6, 2, 6, 4), 6), ((6, 2, 6, 4), 12), ((3, 2, 12, 4), 6)):
        assert "in blocks" in str(why(local, (3, 12, 8), q, keys))
        assert why(nn.Identity(), (3, 12, 8), q, keys) is None
        assert "in blocks" in str(why(ProbSparseAttention(), (3, 12, 8), q, keys))
    assert why_not_positions(ObservedCall(torch.randn(3, 2, 5, 4), torch.randn(3, 2, 5, 4), None), None) is None


@pytest.mark.parametrize(
    ("given", "q", "is_told"),
    [
        ((3, 9, 10), (3, 2, 5, 9), True),  # a text of nine positions and ten channels, in two heads of five
        ((3, 9, 10), (3, 2, 9, 5), False),
        ((3, 9, 10), (3, 1, 5, 9), False),  # half of its channels
        ((3, 10, 4, 3), (3, 2, 5, 12), True),  # an image, channels first
        ((3, 4, 3, 10), (3, 2, 5, 12), True),  # and last
        ((3, 4, 3, 10), (3, 2, 12, 5), False),
        ((3, 10, 4, 3), (3, 2, 5, 13), False),
    ],
)
def test_channels_are_told_by_the_sizes_of_what_a_module_was_given(given: Any, q: Any, is_told: bool) -> None:
    found = why(nn.Identity(), given, q)
    assert found is None if not is_told else found is not None and "over channels" in found
    assert why(nn.Identity(), given, q, q[2] + 1) is None  # as many keys as queries, or they are no channels


class Attend(nn.Module):
    """Is given q, k and v ready-made, as x-transformers' Attend or Megatron's core attention."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.layout = layout

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.layout == "bnhd":
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        self.weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        output = self.weights @ v
        return output.transpose(1, 2) if self.layout == "bnhd" else output


class Split(nn.Module):
    def __init__(self, heads: int, size: int, layout: str) -> None:
        super().__init__()
        self.of_head, self.layout = (heads, size), layout
        self.qkv, self.attend = nn.Linear(heads * size, 3 * heads * size), Attend(layout)

    def forward(self, x: Tensor, cache: list[Tensor] | None = None) -> Tensor:
        q, k, v = (y.unflatten(-1, self.of_head) for y in self.qkv(x).chunk(3, -1))
        if self.layout != "bnhd":
            q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        if cache is not None:
            k, v = (torch.cat([*before, now], 2) for before, now in zip((cache[:1], cache[1:]), (k, v), strict=True))
            cache[:] = [k, v]
        if self.layout == "merged":
            q, k, v = (y.flatten(0, 1) for y in (q, k, v))
        found = self.attend(q, k, v)
        found = found.unflatten(0, (len(x), -1)) if self.layout == "merged" else found
        return (found if self.layout == "bnhd" else found.transpose(1, 2)).flatten(2)


@pytest.mark.parametrize("layout", ["bhnd", "bnhd", "merged"])
def test_q_and_k_given_ready_made_are_positions_whatever_sizes_coincide(layout: str) -> None:
    sizes = [(b, n, h, d) for b in (1, 2) for n in (1, 2, 4) for h in (1, 4) for d in (1, 2, 4, 8) if n in (1, d, h)]
    for b, n, h, d in sizes:
        model = Split(h, d, layout).eval()
        with torch.no_grad(), capture(model) as cap:
            model(torch.randn(b, n, h * d))
        assert not cap.skipped
        (att,) = cap.attention
        wanted = model.attend.weights.reshape(b, h, n, n)
        found = torch.stack([torch.stack([att.block(batch=i, head=j) for j in range(h)]) for i in range(b)])
        torch.testing.assert_close(found, wanted)


def test_a_text_generated_from_one_token_is_one_map() -> None:
    model, cache = Split(4, 8, "bhnd").eval(), []
    with torch.no_grad(), capture(model) as cap:
        for _ in range(3):
            model(torch.randn(1, 1, 32), cache)
    assert not cap.skipped
    assert [tuple(att.shape[:5]) for att in cap.attention] == [(1, 4, 4, 3, 3)]


class NestedCrossCovariance(CrossCovariance):
    """Leaves q · k to a module that is given both."""

    def __init__(self) -> None:
        super().__init__(fused=False)
        self.attend = Attend("bhnd")

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 4, 1).unbind(0)
        return self.attend(q, k, v).permute(0, 3, 1, 2).flatten(2)


@pytest.mark.parametrize("length", [1, 8, 12])
def test_channels_given_ready_made_are_told(length: int) -> None:
    model = nn.Sequential(Usual(fused=True), NestedCrossCovariance()).eval()
    with torch.no_grad(), capture(model) as cap:
        for _ in range(2):
            model(torch.randn(2, length, 32))
    assert "attends over channels" in cap.skipped["1.attend"]
    assert [one.all.names for one in cap] == [("0",), ("0",)]


class OneHeadOfConvolutions(nn.Module):
    """Positions last, as in diffusion: with one head, a shape that a channel attention of (B, N, C) has as well."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Conv1d(6, 18, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.mT for y in self.qkv(x).chunk(3, 1))
        return (x.mT + (q @ k.mT / 6**0.5).softmax(-1) @ v).mT


def test_positions_that_come_last_are_positions() -> None:
    with torch.no_grad(), capture(nn.Sequential(OneHeadOfConvolutions()).eval()) as cap:
        cap(torch.randn(2, 6, 9))
    assert not cap.skipped
    assert cap.attention[0].shape[3:5] == (9, 9)
