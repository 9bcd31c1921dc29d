"""Heads that are combined and pieces that are merged: known windows cost what they hold there too."""

from __future__ import annotations

import pytest
import torch
from tolerance import rounding, sums, together
from torch import Tensor

from attnwidget import Attention
from attnwidget._engine import cost, overview, softmax, stages
from attnwidget._engine.cost import COMBINED, WORDS, cells
from attnwidget._engine.matmul import Scratch
from attnwidget._engine.overview import OverviewPass
from attnwidget._engine.regions import Region
from attnwidget._utils.indexing import Indices

N, WINDOW, QUERIES = 300, 16, 32


@pytest.fixture(autouse=True)
def _short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short attention has as many blocks as long attention has."""
    for module in (cost, overview, stages, softmax):
        monkeypatch.setattr(module, "QUERIES", QUERIES)


def make(**rules: object) -> Attention:
    source = torch.Generator().manual_seed(2)
    q, k = (torch.randn(1, 2, N, 8, generator=source) for _ in range(2))
    return Attention(q, k, **rules)  # type: ignore[arg-type]


def derived(kind: str, att: Attention) -> Attention:
    if kind == "words":
        return att.merge([place // 2 for place in range(N)])
    return att.combine(how=kind)


class Counted:
    """How many cells the sources of blocks are asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, att: Attention) -> None:
        self.cells = 0
        kind = type(att.source.rows(0, 0, range(1), 1.0))
        block = kind.block

        def counted(rows: object, keys: Indices, scratch: Scratch | None) -> Tensor:
            made: Tensor = block(rows, keys, scratch)  # type: ignore[arg-type]
            self.cells += made.numel()
            return made

        monkeypatch.setattr(kind, "block", counted)


@pytest.mark.parametrize("kind", ["mean", "max", "words"])
@pytest.mark.parametrize("pool", ["max", "mean"])
def test_a_window_costs_what_it_holds_and_is_the_same(kind: str, pool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    att = derived(kind, make(is_causal=True, window=WINDOW))
    n = att.shape.Q
    count = Counted(monkeypatch, att)
    found = att.overview(size=50, pool=pool)
    assert count.cells <= n * (QUERIES + WINDOW + 8)
    each = WORDS if kind == "words" else COMBINED * 2
    assert cells(att, 0, 0, range(n), range(n), "weights") <= each * n * (QUERIES + WINDOW + 8)
    whole = att.block()
    wide = found.query_bin
    padded = torch.nn.functional.pad(whole, (0, -n % wide, 0, -n % wide))
    bins = padded.view(padded.shape[0] // wide, wide, padded.shape[1] // wide, wide)
    wanted = bins.amax((1, 3)) if pool == "max" else bins.mean((1, 3))
    if pool == "mean":
        counts = torch.nn.functional.pad(torch.ones(n, n), (0, -n % wide, 0, -n % wide)).view_as(bins).mean((1, 3))
        wanted = wanted / counts
    bound = together(rounding(make()).pooled("weights", wide * wide), sums(4))
    torch.testing.assert_close(found.values, wanted, **bound)
    allowed = torch.nn.functional.pad(att.block("allowed"), (0, -n % wide, 0, -n % wide)).view_as(bins).amax((1, 3))
    assert torch.equal(found.allowed, allowed)


def test_weights_that_are_given_are_never_left_out() -> None:
    x = torch.rand(1, 2, 40, 40, generator=torch.Generator().manual_seed(0))
    given = Attention.from_weights(x)
    assert not given.combine().source.zero_where_blocked
    assert given.combine().combine().source.zero_where_blocked is False
    assert make().combine().source.zero_where_blocked
    assert derived("words", make()).combine().source.zero_where_blocked


@pytest.mark.parametrize("of", ["pieces", "words"])
def test_steps_over_many_heads_are_not_longer(of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = torch.Generator().manual_seed(2)
    heads = 64 if of == "pieces" else 16
    q, k = (torch.randn(1, heads, 120, 4, generator=source) for _ in range(2))
    pieces = Attention(q, k)
    att = (pieces if of == "pieces" else pieces.merge(list(range(120)))).combine()
    largest = 0
    kind = type(att.source.rows(0, 0, range(1), 1.0))
    block = kind.block

    def counted(rows: object, keys: Indices, scratch: Scratch | None) -> Tensor:
        nonlocal largest
        made: Tensor = block(rows, keys, scratch)  # type: ignore[arg-type]
        largest = max(largest, heads * made.numel())
        return made

    monkeypatch.setattr(kind, "block", counted)
    monkeypatch.setattr(overview, "COMBINED_QUERIES", 4 * QUERIES)
    monkeypatch.setattr(overview, "LEAST_QUERIES", 1)
    OverviewPass(att, Region(0, 0, range(20), range(120), 1, 4), "weights", "max", 0).finish()
    assert largest <= overview.COMBINED_QUERIES * 120 // (1 if of == "pieces" else overview.OF_WORDS)
