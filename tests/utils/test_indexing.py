"""Indices along an axis: what may be given, and how a range is cut at bins."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from attnwidget._utils.indexing import as_index, as_indices, cuts, hull, positions, take

CPU = torch.device("cpu")


def read(where: Any, count: int = 7) -> range | list[int]:
    found = as_indices(where, count, "key", "keys", CPU)
    return found if isinstance(found, range) else found.tolist()


def test_one_index_counts_from_either_end() -> None:
    assert [as_index(at, 3, "head", "heads") for at in (0, 2, -1, -3, np.int64(1), torch.tensor(1))] == [
        0,
        2,
        2,
        0,
        1,
        1,
    ]
    for at in (3, -4):
        with pytest.raises(IndexError, match=f"head {at} is not there: this attention has heads 0 to 2"):
            as_index(at, 3, "head", "heads")
    with pytest.raises(IndexError, match="head 1 is not there: this attention has head 0 only"):
        as_index(1, 1, "head", "heads")
    for at in (1.0, "1", None, True):
        with pytest.raises(TypeError, match=r"head is .*: give an integer"):
            as_index(at, 3, "head", "heads")


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        (slice(None), range(7)),
        (slice(-3, None), range(4, 7)),
        (slice(None, None, 3), range(0, 7, 3)),
        (slice(None, None, -2), [6, 4, 2, 0]),
        (slice(5, 2), range(5, 2)),
        (range(2, 6, 2), range(2, 6, 2)),
        (range(6, 2, -3), [6, 3]),
        (range(-2, 0), [5, 6]),
        (range(0), range(0)),
        (4, range(4, 5)),
        (-7, range(1)),
        ([3, -1, 3], [3, 6, 3]),
        (torch.tensor([0, -2]), [0, 5]),
        (np.array([6]), [6]),
        (torch.tensor(2), range(2, 3)),
        ([], []),
    ],
)
def test_indices_come_in_every_form(where: Any, wanted: Any) -> None:
    assert read(where) == wanted


@pytest.mark.parametrize("where", [range(5, 8), range(-8, 0), [7], [0, -8], 7, torch.tensor([7])])
def test_indices_that_are_not_there_are_refused(where: Any) -> None:
    with pytest.raises(IndexError, match="is not there: this attention has keys 0 to 6"):
        read(where)


@pytest.mark.parametrize("where", ["all", 1.5, [1.5], [True], torch.zeros(1, 1).long(), np.zeros((2, 2), int)])
def test_what_is_no_index_is_refused(where: Any) -> None:
    with pytest.raises(TypeError, match="give"):
        read(where)


def test_a_range_is_cut_at_bins_without_gaps() -> None:
    for start, stop, width, limit in itertools.product((0, 4, 9), (0, 5, 17), (1, 3, 4, 30), (1, 2, 5, 8)):
        pieces = [*cuts(range(start, stop), width, limit)]
        assert all(len(piece) <= max(limit, 0) for piece in pieces)
        assert [at for piece in pieces for at in piece if at >= start] == [*range(start, stop)]
        for piece in pieces:
            one_bin = len(piece) == 0 or piece.start // width == (piece.stop - 1) // width
            assert one_bin or piece.start % width == 0
        if limit >= width:  # then no bin is in two pieces
            assert all(piece.stop % width == 0 for piece in pieces[:-1])
            full = limit // width * width
            assert all(len(piece) == full for piece in pieces[1:-1])


def test_the_hull_holds_all_indices_and_no_more() -> None:
    assert hull(range(3, 9, 4)) == range(3, 8)
    assert hull(range(5, 5)) == hull(torch.tensor([], dtype=torch.int64)) == range(0)
    assert hull(torch.tensor([4, 2, 9])) == range(2, 10)
    assert hull(range(4, 5)) == range(4, 5)


def test_a_range_cuts_a_view_and_a_tensor_copies() -> None:
    x = torch.arange(24).view(4, 6)
    assert torch.equal(take(x, range(1, 4, 2), 0), x[1:4:2])
    assert torch.equal(take(x, range(2, 5), 1), x[:, 2:5])
    assert take(x, range(2, 5), 1).untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert torch.equal(take(x, torch.tensor([5, 0]), 1), x[:, [5, 0]])
    assert positions(range(1, 8, 3), CPU).tolist() == [1, 4, 7]
    assert positions(torch.tensor([3, 1]), CPU).tolist() == [3, 1]
