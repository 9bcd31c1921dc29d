"""Samples and heads that models merge into one axis, in either order, are told apart by how the axis came about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from captured import assert_equal, in_both
from torch import Tensor, nn

from attnwidget import capture
from attnwidget._capture.tracing.heads_axis import HEADS_STEPS, HeadsAxis, _split

B, H, D, N = 2, 4, 8, 7
Layout = Callable[[Tensor], Tensor]  # of features (B, N, H · D), one part of (B · H or H · B, N, D)
SAMPLES_FIRST: dict[str, Layout] = {
    "transpose and reshape": lambda x: x.view(B, N, H, D).transpose(1, 2).reshape(-1, N, D),
    "permute, contiguous and view": lambda x: x.view(B, N, H, D).permute(0, 2, 1, 3).contiguous().view(-1, N, D),
    "unflatten and flatten": lambda x: x.unflatten(-1, (H, D)).swapaxes(1, 2).flatten(0, 1),
    "positions before samples": lambda x: x.transpose(0, 1).contiguous().view(N, B * H, D).transpose(0, 1),
    "stack": lambda x: torch.stack(x.chunk(H, -1), 1).flatten(0, 1),
}
HEADS_FIRST: dict[str, Layout] = {
    "cat of parts": lambda x: torch.cat(x.split(D, -1), 0),
    "cat of chunks": lambda x: torch.cat(torch.chunk(x, H, dim=2), dim=0),
    "permute, contiguous and view": lambda x: x.view(B, N, H, D).permute(2, 0, 1, 3).contiguous().view(-1, N, D),
    "stack": lambda x: torch.stack(x.chunk(H, -1)).flatten(0, 1),
    "transposed before": lambda x: x.view(B, N, H, D).transpose(1, 2).transpose(0, 1).reshape(H * B, N, D),
}


class Merged(nn.Module):
    """Attention whose samples and heads are one axis."""

    def __init__(self, layout: Layout, heads_first: bool, scaled: bool) -> None:
        super().__init__()
        self.qkv, self.layout, self.heads_first = nn.Linear(H * D, 3 * H * D), layout, heads_first
        self.scaled, self.num_heads = scaled, H

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (self.layout(y.contiguous()) for y in self.qkv(x).chunk(3, -1))
        q = q * D**-0.5 if self.scaled else q
        each = mask.repeat(H, 1, 1) if self.heads_first else mask.repeat_interleave(H, 0)
        w = torch.bmm(q, k.transpose(1, 2)).masked_fill(each, -torch.inf).softmax(-1)
        self.weights = self.unmerged(w)
        return self.unmerged(torch.bmm(w, v)).transpose(1, 2).flatten(2)

    def unmerged(self, x: Tensor) -> Tensor:
        if self.heads_first:
            return x.clone().view(H, B, *x.shape[1:]).transpose(0, 1)
        return x.clone().view(B, H, *x.shape[1:])


CASES = [
    (name, layout, first) for first, all_ in enumerate((SAMPLES_FIRST, HEADS_FIRST)) for name, layout in all_.items()
]


@pytest.mark.parametrize("inference", [False, True], ids=["", "inference"])
@pytest.mark.parametrize("scaled", [False, True], ids=["", "scaled"])
@pytest.mark.parametrize(("name", "layout", "first"), CASES)
def test_samples_and_heads_are_told_apart(name: str, layout: Layout, first: int, scaled: bool, inference: bool) -> None:
    torch.manual_seed(0)
    model, x = Merged(layout, bool(first), scaled).eval(), torch.randn(B, N, H * D)
    mask = torch.ones(N, N).triu(1).bool() & torch.tensor([True, False])[:, None, None]  # another for each sample
    with torch.inference_mode(inference), torch.no_grad(), capture(model) as cap:
        model(x, mask)
    assert cap.skipped == {}
    assert cap.attention[0].shape[:2] == (B, H)
    assert_equal(cap.attention, [in_both(lambda own, x: own(x, mask) is not None and own.weights, model, x)])


def test_four_axes_with_heads_first() -> None:
    class FourAxes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(H * D, 3 * H * D)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).reshape(B, N, 3, H, D).permute(2, 3, 0, 1, 4).unbind(0)
            w = (q @ k.mT).softmax(-1)
            self.weights = w.transpose(0, 1)
            return (w @ v).permute(1, 2, 0, 3).flatten(2)

    torch.manual_seed(0)
    model, x = FourAxes().eval(), torch.randn(B, N, H * D)
    with torch.no_grad(), capture(model) as cap:
        model(x)
    assert_equal(cap.attention, [in_both(lambda own, x: own(x) is not None and own.weights, model, x)])


class OverRows(nn.Module):
    """Attention between the rows of an alignment (rows, columns, samples, features), with heads as the first axis."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(H * D, 3 * H * D)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.view(*x.shape[:3], H, D) for y in self.qkv(x).chunk(3, -1))
        w = torch.einsum("icnhd,jcnhd->hcnij", q, k).softmax(-1)
        self.weights = w.permute(1, 2, 0, 3, 4).flatten(0, 1)
        return torch.einsum("hcnij,jcnhd->icnhd", w, v).flatten(3)


class TiedRows(OverRows):
    """Attention between columns, one for all rows, whose features are products of rows and features."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.view(*x.shape[:3], H, D) for y in self.qkv(x).chunk(3, -1))
        w = torch.einsum("rinhd,rjnhd->hnij", q, k).div(9).softmax(-1)
        self.weights = w.transpose(0, 1)
        return torch.einsum("hnij,rjnhd->rinhd", w, v).flatten(3)


@pytest.mark.parametrize("kind", [OverRows, TiedRows])
def test_einsum_with_heads_first_and_two_axes_of_samples(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model, x = kind().eval(), torch.randn(N, 3, B, H * D)
    with torch.no_grad(), capture(model) as cap:
        model(x)
    assert cap.skipped == {}
    assert_equal(cap.attention, [in_both(lambda own, x: own(x) is not None and own.weights, model, x)])


def test_what_cannot_be_told_is_shown_as_samples() -> None:
    class Unknown(nn.Module):
        num_heads = H

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
            return (q @ k.mT).softmax(-1) @ v

    parts = torch.randn(3, B * H, N, D)
    with torch.no_grad(), capture(model := Unknown()) as cap:
        model(*parts)
    assert cap.attention[0].shape[:2] == (B * H, 1)
    with torch.no_grad(), capture(model) as cap:
        model(*parts[:, :H])
    assert cap.attention[0].shape[:2] == (1, H)


def test_heads_of_a_text_without_samples_are_told_by_how_its_features_are_split() -> None:
    class Alone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(H * D, 3 * H * D)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (y.reshape(N, H, D).transpose(0, 1) for y in self.qkv(x).chunk(3, -1))
            self.weights = torch.bmm(q, k.mT).softmax(-1)
            return torch.bmm(self.weights, v).transpose(0, 1).flatten(1)

    torch.manual_seed(0)
    model, x = Alone().eval(), torch.randn(N, H * D)
    with torch.no_grad(), capture(model) as cap:
        model(x)
    assert cap.attention[0].shape[:2] == (1, H)
    assert_equal(cap.attention, [in_both(lambda own, x: own(x) is not None and own.weights[None], model, x)])


@pytest.mark.parametrize(
    ("before", "after", "axis"),
    [
        ((B, N, H * D), (B, N, H, D), HeadsAxis(2, H)),
        ((N, H * D), (N, H, D), HeadsAxis(1, H)),
        ((N, B, H * D), (N, B * H, D), HeadsAxis(1, H)),
        ((N, B, 3, H * D), (N, B, 3, H, D), HeadsAxis(3, H)),
        ((B, N, H * D), (B, N, H * D), None),
        ((B, N, H * D), (B, N * H, D + 1), HeadsAxis(1, H)),
        ((B, N, H * D), (N, B, H, D), None),
        ((B, N, H * D), (B, N, H, D + 1), None),
        ((B, N, H * D), (B, N + 1, D), None),
        ((H * D,), (H, D), None),
    ],
)
def test_the_last_axis_is_split_into_heads(before: Any, after: Any, axis: HeadsAxis | None) -> None:
    assert _split(before, after) == axis


def test_an_axis_of_heads_is_followed_through_what_merges_it() -> None:
    """What stands after the heads in a merged axis is counted with them; other axes only move it."""
    x = torch.empty(B, N, H, D)
    for shape, known, found in (
        ((B * N, H, D), HeadsAxis(2, H), HeadsAxis(1, H)),
        ((B, N * H, D), HeadsAxis(2, H), HeadsAxis(1, H)),
        ((B, N * H, D), HeadsAxis(1, N), HeadsAxis(1, N, H)),
        ((B * N, H, D), HeadsAxis(0, B), HeadsAxis(0, B, N)),
        ((B, N, H * D), HeadsAxis(2, H), HeadsAxis(2, H, D)),
        ((B, N, H * D), HeadsAxis(1, N), HeadsAxis(1, N)),
        ((B, N, H, D), HeadsAxis(2, H, 3), HeadsAxis(2, H, 3)),
        ((B * N * H, D), HeadsAxis(2, H), HeadsAxis(0, H)),
        ((N, B, H, D), HeadsAxis(2, H), HeadsAxis(2, H)),
    ):
        assert HEADS_STEPS[torch.reshape](known, x.new_empty(shape), x, torch.reshape, (shape,), {}) == found
