"""One attention that a module computes in pieces is one map: chunks of queries, rows, heads, samples, or both."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from captured import weights
from torch import Tensor, nn

from attnwidget import Capture, capture, intervene

B, H, N, D = 2, 4, 12, 8
LOWER = torch.ones(N, N).bool().tril()
BAND = LOWER & ~torch.ones(N, N).bool().tril(-4)
Way = Callable[[Tensor, Tensor, Tensor], Tensor]
sdpa = F.scaled_dot_product_attention


def scores(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.mT) * D**-0.5


def written(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None = None) -> Tensor:
    found = scores(q, k)
    return (found if allowed is None else found.masked_fill(~allowed, -torch.inf)).softmax(-1) @ v


def into_a_buffer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    output = torch.empty_like(v)
    for i in range(0, N, 5):
        output[:, :, i : i + 5] = written(q[:, :, i : i + 5], k, v)
    return output


def by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bhqk,bhkd->bhqd", (torch.einsum("bhqd,bhkd->bhqk", q, k) * D**-0.5).softmax(-1), v)


def each_row(attend: Way, first: Callable[[int], int]) -> Way:
    def way(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        spans = [(i, slice(first(i), i + 1)) for i in range(N)]
        return torch.cat([attend(q[:, :, i : i + 1], k[:, :, keys], v[:, :, keys]) for i, keys in spans], 2)

    return way


def each_row_of_each_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    heads = [
        torch.cat([sdpa(q[:, h, i : i + 1], k[:, h, : i + 1], v[:, h, : i + 1]) for i in range(N)], 1) for h in range(H)
    ]
    return torch.stack(heads, 1)


WAYS: dict[str, tuple[Way, Tensor | None]] = {
    "chunks": (lambda q, k, v: torch.cat([written(c, k, v) for c in q.split(5, 2)], 2), None),
    "chunks, SDPA": (lambda q, k, v: torch.cat([sdpa(c, k, v) for c in q.split(5, 2)], 2), None),
    "chunks, einsum": (lambda q, k, v: torch.cat([by_einsum(c, k, v) for c in q.split(5, 2)], 2), None),
    "chunks, scaled one by one": (
        lambda q, k, v: torch.cat([((c / D**0.5) @ k.mT).softmax(-1) @ v for c in q.split(5, 2)], 2),
        None,
    ),
    "chunks, each with its mask": (
        lambda q, k, v: torch.cat(
            [written(q[:, :, i : i + 4], k, v, LOWER[i : i + 4]) for i in range(0, N, 4)],
            2,
        ),
        LOWER,
    ),
    "chunks into a buffer": (into_a_buffer, None),
    "rows": (each_row(sdpa, lambda i: 0), LOWER),
    "rows, written": (each_row(written, lambda i: 0), LOWER),
    "rows of a window": (each_row(sdpa, lambda i: max(0, i - 3)), BAND),
    "heads": (
        lambda q, k, v: torch.stack([sdpa(q[:, h], k[:, h], v[:, h], attn_mask=LOWER) for h in range(H)], 1),
        LOWER,
    ),
    "heads, sliced": (
        lambda q, k, v: torch.cat(
            [written(q[:, h : h + 1], k[:, h : h + 1], v[:, h : h + 1]) for h in range(H)],
            1,
        ),
        None,
    ),
    "samples": (
        lambda q, k, v: torch.stack([sdpa(q[b], k[b], v[b], is_causal=True) for b in range(B)]),
        LOWER,
    ),
    "heads of samples": (
        lambda q, k, v: torch.stack(
            [torch.stack([written(q[b, h], k[b, h], v[b, h]) for h in range(H)]) for b in range(B)],
        ),
        None,
    ),
    "chunks of samples": (
        lambda q, k, v: torch.stack([torch.cat([sdpa(c, k[b], v[b]) for c in q[b].split(5, 1)], 1) for b in range(B)]),
        None,
    ),
    "rows of heads": (each_row_of_each_head, LOWER),
}


class Layer(nn.Module):
    def __init__(self, way: Way, contiguous: bool = False) -> None:
        super().__init__()
        self.qkv, self.out, self.way, self.contiguous = nn.Linear(32, 96), nn.Linear(32, 32), way, contiguous

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (H, D)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        q, k, v = (y.contiguous() for y in (q, k, v)) if self.contiguous else (q, k, v)
        self.q, self.k = q.detach().clone(), k.detach().clone()
        return x + self.out(self.way(q, k, v).transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self, way: Way, contiguous: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(50, 32)
        self.layers = nn.ModuleList([Layer(way, contiguous), Layer(way, contiguous)])

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.table(input_ids)
        for layer in self.layers:
            x = layer(x)
        return x


def captured(model: nn.Module, **how: object) -> Capture:
    with torch.no_grad(), capture(model, **how) as cap:
        model(torch.arange(B * N).view(B, N))
    assert not cap.skipped
    return cap


@pytest.mark.parametrize("contiguous", [False, True], ids=["token by token", "head by head"])
@pytest.mark.parametrize("name", WAYS)
def test_the_whole_is_one_map_of_each_layer(name: str, contiguous: bool) -> None:
    way, allowed = WAYS[name]
    model = Model(way, contiguous).eval()
    cap = captured(model)
    assert list(cap.calls) == ["layers.0", "layers.1"]
    for layer, att in zip(model.layers, cap.calls.values(), strict=True):
        expected = scores(layer.q, layer.k)
        expected = expected if allowed is None else expected.masked_fill(~allowed, -torch.inf)
        assert (weights(att) - expected.softmax(-1)).abs().max() < 1e-6
        assert att.witness is not None
        assert att.witness.checked == "all"
    assert [len(one) for one in cap.tokens] == [N] * B
    assert cap.nbytes <= 2 * 3 * B * N * 32 * 4 * 1.1  # q, k and v of two layers, each once


@pytest.mark.parametrize("shared_by", [2, 4])
def test_heads_may_share_their_keys(shared_by: int) -> None:
    group = [h // shared_by for h in range(H)]

    def way(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.stack([sdpa(q[:, h], k[:, g], v[:, g]) for h, g in enumerate(group)], 1)

    model = Model(way, contiguous=True).eval()
    att = next(iter(captured(model).calls.values()))
    assert (weights(att) - scores(model.layers[0].q, model.layers[0].k[:, group]).softmax(-1)).abs().max() < 1e-6
    assert att.k is not None
    assert att.k.shape[1] == H // shared_by


def test_calls_that_are_not_pieces_of_one_attention_stay_apart() -> None:
    def two_streams(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return sdpa(q, k, v) + sdpa(q.flip(2), k, v)

    def windows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # each with keys of its own: they may be anything
        return torch.cat([sdpa(q[:, :, i : i + 4], k[:, :, i : i + 4], v[:, :, i : i + 4]) for i in range(0, N, 4)], 2)

    def two_scales(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.cat([sdpa(q[:, :, :6], k, v, scale=1.0), sdpa(q[:, :, 6:], k, v, scale=0.1)], 2)

    for way, count in ((two_streams, 2), (windows, 3), (two_scales, 2)):
        cap = captured(Model(way).eval())
        assert len(cap.calls) == 2 * count
        assert [name for name in cap.calls if "#" not in name] == ["layers.0", "layers.1"]


def test_a_call_that_turns_out_to_be_whole_is_read_in_its_own_module() -> None:
    class Pooled(nn.Module):  # one head, of whose memory others could follow
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(32, 96), nn.Sequential(nn.Linear(32, 32), nn.Dropout())

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x)[:, None].chunk(3, -1)
            return self.out(sdpa(q, k[:, :, ::2], v[:, :, ::2])[:, 0])

    model = nn.Sequential(Pooled(), Pooled()).eval()
    with torch.no_grad(), capture(model) as cap:
        model(torch.randn(B, N, 32))
    assert list(cap.calls) == ["0", "1"]
    assert len(cap.attention) == 2


def test_keys_that_change_between_the_pieces_end_them() -> None:
    def changing(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found = []
        for i in range(0, N, 4):
            found.append(sdpa(q[:, :, i : i + 4], k, v))
            k[:, :, i] += 1.0
        return torch.cat(found, 2)

    model = Model(changing).eval()
    first, second, *_ = captured(model).calls.values()
    assert first.k is not None
    assert second.k is not None
    assert torch.equal(first.k, model.layers[0].k)
    assert torch.equal(second.k[:, :, 0], first.k[:, :, 0] + 1)


def test_an_edit_of_pieces_is_refused_and_layers_have_the_numbers_of_the_capture() -> None:
    model, ids = Model(WAYS["chunks"][0]).eval(), torch.arange(B * N).view(B, N)
    refused = pytest.raises(ValueError, match=r"^layers\.1 computes its attention in pieces")
    with torch.no_grad(), refused, intervene(model, {(1, 0): "zero"}):
        model(ids)


def test_choices_and_files_know_the_whole(tmp_path: object) -> None:
    model = Model(WAYS["rows"][0]).eval()
    whole = captured(model)
    some = captured(model, heads=[2], queries=[-1, 3], layers=1)
    (att,) = some.calls.values()
    expected = list(whole.calls.values())[1].block(batch=1, head=2)
    assert (att.block(batch=1, head=0) - expected[[3, -1]]).abs().max() < 1e-6
    whole.save(f"{tmp_path}/cap.safetensors")
    again = Capture.load(f"{tmp_path}/cap.safetensors")
    assert torch.equal(weights(again.calls["layers.1"]), weights(whole.calls["layers.1"]))


class Sliced(nn.Module):
    """Heads merged with samples, some entries at a time, as diffusers' `enable_attention_slicing` computes them."""

    def __init__(self, heads: int, size: int, heads_first: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.of_head, self.size, self.heads_first = heads, size, heads_first
        self.q, self.k, self.v = (nn.Linear(8 * heads, 8 * heads) for _ in range(3))

    def merged(self, x: Tensor) -> Tensor:
        x = x.unflatten(-1, (self.of_head, 8))
        return x.permute(2, 0, 1, 3).flatten(0, 1) if self.heads_first else x.transpose(1, 2).flatten(0, 1)

    def apart(self, x: Tensor, samples: int) -> Tensor:
        if self.heads_first:
            return x.unflatten(0, (self.of_head, samples)).transpose(0, 1)
        return x.unflatten(0, (samples, self.of_head))

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        q, k, v = self.merged(self.q(x)), self.merged(self.k(source)), self.merged(self.v(source))
        self.weights = self.apart(scores(q, k).softmax(-1), len(x))
        output = torch.zeros_like(q)
        for i in range(0, len(q), self.size):
            some = slice(i, i + self.size)
            buffer = torch.empty(len(q[some]), q.shape[1], k.shape[1])
            found = torch.baddbmm(buffer, q[some], k[some].mT, beta=0, alpha=D**-0.5).softmax(-1)
            output[some] = found @ v[some]
        return self.apart(output, len(x)).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize(
    ("heads", "samples", "size", "queries", "keys"),
    [(4, 2, 1, 9, 9), (4, 3, 2, 9, 7), (2, 3, 4, 5, 5), (4, 2, 1, 1, 7), (4, 1, 3, 1, 1), (1, 3, 1, 9, 9)],
)
def test_slices_of_heads_merged_with_samples_are_one_map(
    heads: int, samples: int, size: int, queries: int, keys: int, heads_first: bool
) -> None:
    model = Sliced(heads, size, heads_first).eval()
    x, source = torch.randn(samples, queries, 8 * heads), torch.randn(samples, keys, 8 * heads)
    with torch.no_grad():
        plain = model(x, source)
        cap = capture(model)
        assert torch.equal(cap(x, source), plain)
    assert not cap.skipped
    (att,) = cap.calls.values()
    assert (weights(att) - model.weights).abs().max() < 1e-6
