"""Weights of another kind than softmax(q kᵀ under rules): their numbers are kept as they met v, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnwidget import Attention, Capture, capture, intervene
from attnwidget._capture.tracing.traced_tensors import MERGED, VALUES_BY_QUERY

N, D = 11, 32


def split(x: Tensor) -> Tensor:
    return x.unflatten(-1, (4, -1)).transpose(1, 2)


class Plain(nn.Module):
    """A layer that is read, so that a capture has something to show."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(D, 3 * D)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(y) for y in self.qkv(x).chunk(3, -1))
        return x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class Layer(nn.Module):
    """A module whose name does not tell that it is attention; `way` returns its weights and its output."""

    def __init__(self, way: Callable[[Any, Tensor], tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.score = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, 1)
        self.seeds = nn.Parameter(torch.randn(3, D))
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        self.weights, output = self.way(self, x)
        return output


class PoolAttention(Layer):
    """The same, with a telling name."""


def captured(layer: nn.Module, **how: Any) -> Capture:
    torch.manual_seed(1)
    model = nn.Sequential(Plain(), layer).eval()
    x = torch.randn(3, N, D)
    with torch.no_grad():
        plain = model(x)
        with capture(model, **how) as cap:
            assert torch.equal(model(x), plain)
    return cap


def bahdanau(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    w = self.score(torch.tanh(self.one(x[:, :1]) + self.two(x))).squeeze(-1).softmax(1)
    return w[:, None], torch.bmm(w.unsqueeze(1), x).squeeze(1)


def pooled_by_sum(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    w = self.score(torch.tanh(self.one(x))).softmax(1)
    return w.mT, (w * x).sum(1)


def pooled_by_einsum(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    w = self.score(self.one(x).relu()).squeeze(-1).softmax(-1)
    return w[:, None], torch.einsum("bk,bkd->bd", w, x)


def luong(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    w = torch.einsum("bqd,bkd->bqk", self.one(x), x).softmax(-1)
    return w, torch.einsum("bqk,bkd->bqd", w, self.two(x))


def every_pair(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    w = self.score(torch.tanh(self.one(x)[:, :, None] + self.two(x)[:, None])).squeeze(-1).softmax(-1)
    return w, w @ x


def slots(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    w = (self.one(x) @ self.seeds.T).softmax(-1) + 1e-8
    w = w / w.sum(1, keepdim=True)
    return w.mT, torch.einsum("bkq,bkd->bqd", w, x)


@pytest.mark.parametrize("way", [bahdanau, pooled_by_sum, pooled_by_einsum, luong, every_pair, slots])
def test_softmaxes_over_positions_are_shown(way: Any) -> None:
    cap = captured(layer := Layer(way))
    assert cap.skipped == {}
    (found,) = (att for name, att in cap.calls.items() if name == "1")
    shown = torch.stack([found.block(batch=batch) for batch in range(3)])
    assert (shown - layer.weights).abs().max() < 1e-6
    assert found.shape.K == N


def experts(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    w = F.linear(x, self.seeds).softmax(-1)
    made = torch.stack([self.one(x), self.two(x), x], 2)
    return w, (w[..., None] * made).sum(2)


def experts_by_einsum(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    w = F.linear(x, self.seeds).softmax(-1)
    return w, torch.einsum("bse,bsed->bsd", w, torch.stack([self.one(x), self.two(x), x], 2))


def streams(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    mix = F.linear(x, self.one.weight[:9]).unflatten(-1, (3, 3)).softmax(-1)
    made = mix @ torch.stack([x, self.one(x), self.two(x)], 2)
    return mix, made.mean(2)


def words(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    w = F.linear(x, self.seeds).softmax(-1)
    return w, w @ self.seeds


def branches(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """As in selective kernels: a softmax over branches, for each channel."""
    made = torch.stack([self.one(x), self.two(x)], 1).unflatten(-1, (8, 4)).transpose(2, 3)  # (B, 2, 8, N, 4)
    w = made.mean((-1, -2), keepdim=True).softmax(1)
    return w, (w * made).sum(1).transpose(1, 2).flatten(2)


def linear_attention(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """As in efficient attention: softmaxes of q and k alone."""
    q, k = self.one(x).softmax(-1), self.two(x).softmax(1)
    return k, q @ (k.mT @ x)


def linear_attention_by_head(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    q, k = split(self.one(x)).softmax(-1), split(self.two(x)).softmax(-2)
    return k, (q @ torch.einsum("bhnd,bhne->bhde", k, split(x))).transpose(1, 2).flatten(2)


NO_POSITIONS = [experts, experts_by_einsum, streams, words, branches, linear_attention, linear_attention_by_head]


@pytest.mark.parametrize("way", NO_POSITIONS)
def test_softmaxes_over_no_positions_are_neither_shown_nor_named(way: Any) -> None:
    cap = captured(Layer(way))
    assert (list(cap.calls), cap.skipped) == (["0"], {})


def test_attention_over_channels_is_named() -> None:
    """As in DANet: the largest product minus each product, between channels."""

    class ChannelAttention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            flat = x.flatten(2)
            products = flat @ flat.mT
            weights = (products.amax(-1, keepdim=True) - products).softmax(-1)
            return (weights @ flat).view_as(x) + x

    model = nn.Sequential(nn.Conv2d(3, 6, 1), ChannelAttention()).eval()
    with torch.no_grad(), pytest.raises(ValueError, match="over channels, not over positions"), capture(model):
        model(torch.randn(2, 3, 4, 5))


def banded(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    q, k = split(self.one(x)), F.pad(split(self.two(x)), (0, 0, 1, 1)).unfold(2, 3, 1)
    w = torch.einsum("bhnd,bhndw->bhnw", q, k).softmax(-1)
    return w, torch.einsum("bhnw,bhndw->bhnd", w, k).transpose(1, 2).flatten(2)


def gathered(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    q, k = split(self.one(x)), split(self.two(x))
    top = (q @ k.mT).topk(4, -1)
    w, values = top.values.softmax(-1), k[:, :, None].expand(-1, -1, N, -1, -1)
    values = values.gather(3, top.indices[..., None].expand(-1, -1, -1, -1, 8))
    return w, (w[..., None] * values).sum(3).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("way", [banded, gathered])
def test_values_that_differ_by_query_are_named_by_their_own_module(way: Any) -> None:
    cap = captured(nn.Sequential(Layer(way), Plain()))
    assert list(cap.calls) == ["0", "1.1"]
    assert list(cap.skipped) == ["1.0"]
    assert VALUES_BY_QUERY[:40] in cap.skipped["1.0"]


def merged(self: Any, x: Tensor, partial: Any) -> tuple[Tensor, Tensor]:
    q, k = split(self.one(x)), split(self.two(x))
    (one, first), (other, second) = (partial(q, k[:, :, part]) for part in (slice(5), slice(5, N)))
    share = torch.sigmoid(first - second)
    one, other = (x() if callable(x) else x for x in (one, other))
    return share, (one * share + other * (1 - share)).transpose(1, 2).flatten(2)


def by_sdpa(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return F.scaled_dot_product_attention(q, k, k), (q @ k.mT * 8**-0.5).logsumexp(-1, keepdim=True)


def by_sdpa_later(q: Tensor, k: Tensor) -> tuple[Any, Tensor]:
    return lambda: F.scaled_dot_product_attention(q, k, k), (q @ k.mT * 8**-0.5).logsumexp(-1, keepdim=True)


def written(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    scores = q @ k.mT
    return scores.softmax(-1) @ k, scores.logsumexp(-1, keepdim=True)


def by_flex(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    output, log_sum_exp = flex_attention(q, k, k, return_lse=True)
    return output, log_sum_exp[..., None]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("partial", [by_sdpa, by_sdpa_later, written, by_flex])
def test_partial_attentions_that_are_merged_are_named_and_not_shown(partial: Any) -> None:
    cap = captured(nn.Sequential(Layer(lambda self, x: merged(self, x, partial)), Plain()))
    assert list(cap.calls) == ["0", "1.1"]
    assert cap.skipped.keys() == {"1.0"}
    assert cap.skipped["1.0"].startswith(MERGED[:60])


def mixed(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    q, k = split(self.one(x)), split(self.two(x))
    w = torch.einsum("bhqk,hg->bgqk", q @ k.mT, torch.eye(4) + 0.3).softmax(-1)
    return w, (w @ k).transpose(1, 2).flatten(2)


def test_they_are_saved_and_read(tmp_path: Path) -> None:
    cap = captured(layer := Layer(mixed))
    cap.save(tmp_path / "weights.safetensors")
    again = Capture.load(tmp_path / "weights.safetensors")
    for head in range(4):
        expected = layer.weights[2, head]
        assert torch.equal(again.calls["1"].block(batch=2, head=head), expected)
    assert "from weights" in repr(again.calls["1"])
    assert torch.allclose(again.calls["1"].output(1, 3), cap.calls["1"].output(1, 3))


def test_only_the_wanted_heads_and_queries_are_kept() -> None:
    cap = captured(layer := Layer(mixed), heads=[1, 3], queries=[2, -1])
    found, weights = cap.calls["1"], layer.weights
    assert (found.shape.H, found.shape.Q) == (2, 2)
    assert torch.equal(found.block(batch=1, head=1), weights[1, 3, [2, N - 1]])
    assert found.part is not None
    assert (found.part.heads, found.part.queries) == ((1, 3), (2, N - 1))


def test_they_are_named_where_they_are_not_kept() -> None:
    cap = captured(Layer(mixed), strict=False, limit=16_000)
    assert list(cap.calls) == ["0"]
    assert list(cap.skipped) == ["1"]


def test_an_overview_keeps_their_weights_and_no_log_normalizers() -> None:
    cap = captured(layer := Layer(mixed), keep="overview")
    assert list(cap.attention.names) == ["0", "1"]
    for found in (cap.attention[1], captured(Layer(mixed)).reduce().attention[1]):
        assert (found.block(batch=2, head=3) - layer.weights[2, 3]).abs().max() < 1e-6
        with pytest.raises(ValueError, match="no log-normalizer"):
            found.log_normalizer(head=1)


def test_negative_weights_are_named() -> None:
    def apart(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k = split(self.one(x)), split(self.two(x))
        w = (q @ k.mT).softmax(-1) - 0.5 * (q @ q.mT).softmax(-1)
        return w, (w @ k).transpose(1, 2).flatten(2)

    assert "below 0" in captured(Layer(apart)).skipped["1"]


def test_a_widget_shows_them_beside_others_and_an_edit_of_their_scores_refuses_them() -> None:
    cap = captured(Layer(mixed))
    widget = cap.widget()
    widget.layer = 1
    assert (widget.stage, widget.errors) == ("weights", {})
    model = nn.Sequential(Plain(), Layer(mixed)).eval()
    with (
        torch.no_grad(),
        pytest.raises(ValueError, match="1 is known by its weights alone"),
        intervene(model, {("1", 0): "mean"}),
    ):
        model(torch.randn(3, N, D))


def test_in_training_they_are_shown_before_dropout_or_named() -> None:
    class Dropped(Layer):
        pass

    def dropped(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k = split(self.one(x)), split(self.two(x))
        w = (q @ k.mT).pow(2).softmax(-1)
        return w, (F.dropout(w, 0.5, self.training) @ split(x)).transpose(1, 2).flatten(2)

    model = nn.Sequential(Plain(), Dropped(dropped)).train()
    with torch.no_grad(), capture(model) as cap:
        model(torch.randn(3, N, D))
    assert list(cap.skipped) == ["1"]


def test_padding_is_removed_from_them() -> None:
    weights = torch.rand(2, 2, 5, 5)
    weights[1, :, :, 3:] = 0
    from attnwidget._capture.text.unpadded import part_of

    att = Attention.from_weights(weights, torch.randn(2, 2, 5, 4))
    assert torch.equal(part_of(att, 1, range(3), range(3)).block(head=1), weights[1, 1, :3, :3])
    with pytest.raises(ValueError, match="attends to its padding"):
        part_of(att, 0, range(3), range(3))
