"""Masks as runs of keys: the same cells, the same bounds, and the simplify mask that says so."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnwidget import Attention, masks
from attnwidget._rules import rules
from attnwidget._rules.row_spans import Spans, as_spans, merge_equal_ends, simplify
from attnwidget._utils.indexing import Block
from attnwidget.masks import Band, Padding

CPU = torch.device("cpu")


@st.composite
def runs(draw: st.DrawFn) -> torch.Tensor:
    """A bool mask (B, H, Q, K) whose rows are runs of keys, some of them empty."""
    B, H, Q, K = (draw(st.integers(1, n)) for n in (3, 2, 7, 9))
    make = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    ends = torch.randint(0, K + 1, (2, B, H, Q), generator=make)
    keys = torch.arange(K)
    return (keys >= ends[0, ..., None]) & (keys < ends[1, ..., None])


@given(runs(), st.data())
def test_spans_say_what_the_mask_says(mask: torch.Tensor, data: st.DataObject) -> None:
    B, H, Q, K = mask.shape
    spans = as_spans(mask)
    assert spans is not None
    b, h = data.draw(st.integers(0, B - 1)), data.draw(st.integers(0, H - 1))
    first, start = data.draw(st.integers(0, Q - 1)), data.draw(st.integers(0, K - 1))
    cells = Block(b, h, range(first, data.draw(st.integers(first + 1, Q))), range(start, K))
    inside = mask[b, h, first : cells.queries.stop, start:]
    outer, inner = spans.bounds(cells)
    assert torch.equal(rules.ask(spans, cells, CPU), inside)
    assert not any(inside[:, i].any() for i, key in enumerate(cells.keys) if key not in outer)
    assert [key in inner for key in cells.keys] == inside.all(0).tolist()
    starts, stops = (ends[:, None] for ends in spans.row_ends(cells))
    columns = torch.arange(start, K)
    assert torch.equal((columns >= starts) & (columns < stops), inside)
    some = cells._replace(queries=torch.tensor(list(cells.queries)))
    assert spans.bounds(some) == (outer, inner)


@given(runs())
def test_the_simplest_mask_says_the_same(mask: torch.Tensor) -> None:
    B, H, Q, K = mask.shape
    spans = as_spans(mask)
    assert spans is not None
    simple = simplify(spans, B, Q, K)
    q, k = torch.zeros(B, H, Q, 2), torch.zeros(B, H, K, 2)
    att = Attention(q, k, mask=simple)
    for b in range(B):
        for h in range(H):
            assert torch.equal(att.block("allowed", batch=b, head=h), mask[b, h])


def test_known_masks_are_known_again() -> None:
    causal = torch.ones(6, 6).tril().bool()[None, None]
    window = causal & ~causal.tril(-3)
    lower_right = torch.ones(3, 6).tril(3).bool()[None, None]
    padded = (torch.arange(6) < torch.tensor([6, 4])[:, None])[:, None, None].expand(2, 1, 6, 6)
    found = [simplify(as_spans(mask) or Spans(*[torch.zeros(0)] * 2), 1, *mask.shape[2:]) for mask in (causal, window)]
    assert found == [Band(None, 0), Band(-2, 0)]
    assert simplify(as_spans(lower_right), 1, 3, 6) == masks.causal_lower_right(3, 6)  # type: ignore[arg-type]
    assert simplify(as_spans(padded), 2, 6, 6) == Padding((6, 4))  # type: ignore[arg-type]
    assert simplify(as_spans(torch.ones_like(causal)), 1, 6, 6) is None  # type: ignore[arg-type]
    left = as_spans(padded.flip(3) & causal)
    assert isinstance(simplify(left, 2, 6, 6), Spans)  # type: ignore[arg-type]


def test_rows_with_holes_are_no_spans() -> None:
    mask = torch.ones(1, 1, 4, 5).bool()
    mask[0, 0, 2, 3] = False
    assert as_spans(mask) is None


def test_what_is_the_same_along_an_axis_is_kept_once() -> None:
    ends = torch.tensor([[[0, 1]], [[0, 1]]], dtype=torch.int32)
    assert merge_equal_ends(ends, ends + 2).starts.shape == (1, 1, 2)


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_one_short_row_is_read_as_rows_of_many_are(length: int) -> None:
    rows = torch.tensor([list(cells) for cells in itertools.product([False, True], repeat=length)])
    for row in rows:
        alone, among = as_spans(row[None, None, None]), as_spans(torch.stack([row, row])[None, None])
        assert (alone is None) == (among is None)
        if alone is not None and among is not None:
            assert torch.equal(alone.starts, among.starts[:, :, :1]), row
            assert torch.equal(alone.stops, among.stops[:, :, :1]), row
            assert alone.starts.dtype == among.starts.dtype
