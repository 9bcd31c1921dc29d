"""Where bins, tiles, pieces and places lie: counted out cell by cell."""

from __future__ import annotations

import itertools

import pytest
import torch
from kinds import KINDS, B, H, K, Q, kind

from attnwidget import Attention, masks
from attnwidget._engine import cost
from attnwidget._engine.axes import LETTERS, MATRIX, as_given, by_name
from attnwidget._engine.base import Part, longest
from attnwidget._engine.level_cache import LevelCache
from attnwidget._engine.pooling import AllowedCounts, bins_within, count_cells
from attnwidget._engine.regions import Region, TileAddress, as_levels, top_level
from attnwidget._utils.indexing import Block
from attnwidget.masks import BandLimits


def plain(queries: int = Q, keys: int = K) -> Attention:
    return Attention(torch.zeros(queries, 2), torch.zeros(keys, 2))


# Bins.


LIMITS = [
    BandLimits(), BandLimits(high=0), BandLimits(low=-2), BandLimits(stop=6), BandLimits(-3, 1), BandLimits(2, 4),
    BandLimits(1, 0), BandLimits(2, 2), BandLimits(high=-4), BandLimits(low=9), BandLimits(-1, 0, 5),
    BandLimits(low=3, stop=4), BandLimits(stop=0), BandLimits(low=0, stop=11), BandLimits(high=20, stop=K),
]  # fmt: skip
PLACES = [range(Q), range(3, 11), range(2, Q, 5), range(0, Q, 3)]


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_bins_within_band_limits_are_those_that_have_a_cell(limits: BandLimits) -> None:
    att = plain()
    for queries, keys, down, across in itertools.product(PLACES, (range(K), range(4, 15)), (1, 3, 20), (1, 4, 50)):
        inside = torch.tensor(
            [
                [
                    (limits.low is None or key - query >= limits.low)
                    and (limits.high is None or key - query <= limits.high)
                    and (limits.stop is None or key < limits.stop)
                    for key in keys
                ]
                for query in queries
            ]
        )
        bins = [[part.any() for part in rows.split(across, 1)] for rows in inside.split(down)]
        found = bins_within(att, Region(0, 0, queries, keys, down, across), limits)
        assert torch.equal(found, torch.tensor(bins)), (queries, keys, down, across)


def test_cells_of_ragged_bins_are_counted() -> None:
    att, region = plain(), Region(0, 0, range(2, Q), range(3, K), 4, 5)  # 11 × 14 cells
    assert count_cells(att, region).tolist() == [[20, 20, 16], [20, 20, 16], [15, 15, 12]]
    assert region.shape == (3, 3)
    counts = AllowedCounts(att, region)
    allowed = torch.rand(4, 10, generator=torch.Generator().manual_seed(1)) < 0.5
    counts.add(range(4, 8), range(3, 13), allowed)
    counts.add(range(8, 11), range(13, 17), True)
    counts.add(range(4), range(3, 8), False)
    inside = [int(part.sum()) for part in allowed.split(5, 1)]
    assert counts.counts.tolist() == [[0, 0, 0], [*inside, 0], [0, 0, 12]]
    counts.mark(range(4), slice(1, 3), torch.tensor([[True, False]]))
    assert counts.counts[0].tolist() == [0, 1, 0]


def test_sampled_queries_end_with_the_last_and_lie_a_bin_apart() -> None:
    att = plain()
    for width, wanted in ((5, [2, 7, 12]), (4, [0, 4, 8, 12]), (13, [12]), (20, [12]), (1, [*range(13)])):
        region = Region(0, 0, range(Q), range(K), width, 3).sample(att)
        assert [*region.queries] == wanted
        assert (region.query_bin, region.query_stride) == (1, 1 if width == 1 else width)
    part = Region(0, 0, range(4, 12), range(K), 4, 3).sample(att)
    assert [*part.queries] == [4, 8]  # those of the whole that lie inside


def test_columns_count_from_the_first_key_of_a_region() -> None:
    region = Region(0, 0, range(Q), range(6, K), 1, 4)
    assert region.columns(range(6, 10)) == slice(0, 1)
    assert region.columns(range(10, 15)) == slice(1, 3)
    assert region.columns(range(16, 17)) == slice(2, 3)


def test_tiles_meet_and_the_last_is_ragged() -> None:
    for size, widths in ((4, (1, 2)), (3, (2, 1)), (100, (1, 1))):
        step = size * widths[0], size * widths[1]
        count = -(-Q // step[0]), -(-K // step[1])
        rows = [TileAddress(0, row, 0, size).ranges(Q, K, widths)[0] for row in range(count[0])]
        columns = [TileAddress(0, 0, column, size).ranges(Q, K, widths)[1] for column in range(count[1])]
        assert [at for part in rows for at in part] == [*range(Q)]
        assert [at for part in columns for at in part] == [*range(K)]
        assert all(len(part) == step[0] for part in rows[:-1])
        last = TileAddress(0, -1, -1, size)
        assert last.ranges(Q, K, widths) == (rows[-1], columns[-1])
        for at in (TileAddress(0, count[0], 0, size), TileAddress(0, 0, count[1], size)):
            with pytest.raises(IndexError, match="is not there"):
                at.ranges(Q, K, widths)


def test_the_last_level_is_one_bin() -> None:
    for queries, keys, top in ((Q, K, 5), (1, 1, 0), (2, 1, 1), (1, 4, 2), (4, 5, 3), (16, 3, 4), (17, 3, 5)):
        att = plain(queries, keys)
        assert top_level(att) == top
        assert as_levels(att, -1) == (top, top)
        assert as_levels(att, (0, top)) == (0, top)
        for wrong in (top + 1, (0, top + 1), (top + 1, 0)):
            with pytest.raises(IndexError, match=f"level {top + 1} is not there"):
                as_levels(att, wrong)


def test_the_finest_level_that_is_kept_has_no_more_bins_than_allowed() -> None:
    for largest, level in ((17, 0), (16, 1), (9, 1), (8, 2), (5, 2), (4, 3), (1, 5)):
        rows, columns = LevelCache(plain(), largest=largest).finest
        assert columns == level
        for n, of in ((Q, rows), (K, columns)):
            assert -(-n // (1 << of)) <= largest
            assert of == 0 or -(-n // (1 << (of - 1))) > largest


# Pieces of a row.


@pytest.mark.parametrize("name", [name for name in KINDS if "scale" not in name])
def test_pieces_cover_what_may_be_attended_to_once(name: str, tiny_blocks: None) -> None:
    """In order, without gaps, none longer than allowed, cut at bins; what is left out is blocked."""
    case = kind(name)
    rules = case.attention().rules
    rows = [range(4), range(4, 9), range(9, 13), range(1, 13, 4), torch.tensor([2, 11])]
    for (batch, head), queries, width, limit in itertools.product([(0, 0), (1, 5)], rows, (1, 3), (4, 7)):
        cells = Block(batch, head, queries, range(K))
        span, pieces = rules.span(cells), [*rules.pieces(cells, width, limit)]
        keys_of_pieces = [key for keys in pieces for key in keys]
        assert [key for key in keys_of_pieces if key >= span.start] == [*span]
        assert not keys_of_pieces or keys_of_pieces[0] // width == span.start // width  # the rest of the first bin
        assert all(len(keys) <= limit for keys in pieces)
        for keys in pieces:
            one_bin = keys.start // width == (keys.stop - 1) // width
            assert one_bin or keys.start % width == 0
        allowed = case.allowed[batch, head][torch.tensor([*queries])]
        assert not allowed[:, : span.start].any()
        assert not allowed[:, span.stop :].any()


def test_a_piece_ends_where_a_rule_begins_to_allow_everything(tiny_blocks: None) -> None:
    """What lies before the diagonal of a causal mask, a multiple of a bin, needs none."""
    rules = Attention(torch.zeros(20, 2), torch.zeros(20, 2), is_causal=True).rules
    cells = Block(0, 0, range(8, 12), range(20))
    assert [*rules.pieces(cells, 1, 50)] == [range(9), range(9, 12)]
    assert [*rules.pieces(cells, 4, 50)] == [range(8), range(8, 12)]
    assert rules.allowed(cells._replace(keys=range(9))) is True
    assert rules.allowed(cells._replace(keys=range(12, 20))) is False


# Axes.


def test_axes_come_back_as_they_were_given() -> None:
    sizes = dict(zip("bhqkd", (2, 6, 13, 17, 5), strict=True))
    for letters in (LETTERS, MATRIX):
        needed = [*letters][2:]
        for count in (2, 3, 4):
            for dims in itertools.permutations(letters, count):
                if not set(needed) <= set(dims):
                    continue
                x = torch.randn([sizes[one] for one in dims])
                read = by_name(x, "".join(dims), letters)
                assert read.shape == tuple(sizes[one] if one in dims else 1 for one in letters)
                assert torch.equal(as_given(read, count, "".join(dims), letters), x)
        for count, dims in ((2, "".join(needed)), (3, "b" + "".join(needed)), (4, "".join(letters))):
            x = torch.randn([sizes[one] for one in dims])
            assert torch.equal(by_name(x, None, letters), by_name(x, dims, letters))
            assert torch.equal(as_given(by_name(x, None, letters), count, None, letters), x)


# Places of queries among the keys.


def test_the_key_at_a_querys_own_place() -> None:
    square, wide = plain(7, 7), plain(7, 9)
    assert square.own_keys(range(2, 5)) == range(2, 5)
    assert wide.own_keys(range(7)) is None
    assert wide.as_part(None, None, 2).own_keys(range(1, 4)) == [3, 4, 5]
    assert square.as_part(None, [1, 3, 4, 8, 9, 10, 20]).own_keys(range(7)) is None  # before which keys is not known
    assert wide.as_part([0], [1, 3, 4, 8, 9, 10, 20], 5).own_keys(range(2, 5)) == [9, 13, 14]
    assert square.as_part(None, None, elsewhere=True).own_keys(range(7)) is None
    assert square.as_part(None, None, 3, elsewhere=True).own_keys(range(7)) is None
    assert square.as_part([2], None).own_keys(range(7)) == range(7)


def test_a_part_of_a_call_says_which() -> None:
    assert Part().describe() == ""
    assert Part((4,)).describe() == "head 4"
    assert Part((4, 5), (7,)).describe() == "heads 4, 5; query 7"
    assert Part((4, 5, 6), (7, 8, 9, 11)).describe() == "heads 4 to 6; queries 7, 8, 9, 11"
    assert Part(None, (1000, 1001, 1002)).describe() == "queries 1,000 to 1,002"
    att = Attention(torch.zeros(1, 3, 2, 4), torch.zeros(1, 3, 2, 4)).as_part([5, 7, 9], None)
    assert "heads 5, 7, 9" in repr(att)
    with pytest.raises(IndexError, match=r"head 3 is not there: .*, counted .* among the kept heads: heads 5, 7, 9"):
        att.block(head=3)
    assert plain().as_part(None, None).part is None


def test_the_longest_vector_is_found_wherever_it_is() -> None:
    x = torch.ones((1 << 13) + 3, 2)
    assert longest(x) == pytest.approx(2**0.5)
    for place in (0, (1 << 13) - 1, 1 << 13, len(x) - 1):
        spiked = x.clone()
        spiked[place, 1] = -3e4
        assert longest(spiked) == pytest.approx(3e4)
    assert longest(x[:0]) == 0
    assert longest((x * 1000).half()) == pytest.approx(1000 * 2**0.5)  # whose square float16 does not hold
    assert longest(x.index_fill(0, torch.tensor([7]), torch.nan)) != longest(x)


# What an answer costs.


def test_a_region_costs_the_cells_that_are_computed() -> None:
    att = Attention(torch.zeros(B, H, 40, 2), torch.zeros(B, 3, 50, 2), is_causal=True, window=6)
    everything = range(40), range(50)
    exact = int(att.block("allowed", batch=1, head=4).sum())
    assert exact <= cost.cells(att, 1, 4, *everything, "weights") <= 40 * 50
    assert cost.cells(att, 1, 4, *everything, "scores") == 40 * 50
    rows = [cost.cells(att, 1, 4, range(at, at + 1), range(50), "weights") for at in range(40)]
    assert sum(rows) == exact  # of single queries nothing is too many
    assert cost.cells(att, 1, 4, range(10, 14), range(8, 12), "weights") == 16
    padded = Attention(torch.zeros(B, H, 9, 2), torch.zeros(B, 3, 20, 2), mask=masks.padding([20, 7]))
    assert [cost.cells(padded, batch, 0, range(9), range(20), "weights") for batch in (0, 1)] == [9 * 20, 9 * 7]
    given = Attention.from_weights(torch.ones(1, 2, 4, 6) / 6)
    assert cost.cells(given, 0, 1, range(4), range(6), "weights") == 24
    assert cost.worth_of_a_cell(given, 0, 1) == 1
    heads = att.combine([1, 4, 5])
    assert cost.cells(heads, 1, 0, range(9), range(50), "weights") == 3 * cost.COMBINED * cost.cells(
        att, 1, 4, range(9), range(50), "weights"
    )
    assert cost.worth_of_a_cell(heads, 1, 0) == 3 * cost.COMBINED
    words = Attention(torch.zeros(6, 2), torch.zeros(6, 2)).merge([0, 0, 1, 2, 3, 4])
    assert cost.cells(words, 0, 0, range(5), range(5), "weights") == cost.WORDS * 25
    assert cost.worth_of_a_cell(words, 0, 0) == cost.WORDS
    assert cost.worth_of_a_cell(words.combine(), 0, 0) == cost.WORDS * (cost.COMBINED // 2)


def test_log_normalizers_cost_the_rows_that_are_not_known(tiny_blocks: None) -> None:
    att = plain()
    assert cost.normalizers(att, 0, 0, range(Q), "weights") == Q * K
    assert cost.normalizers(att, 0, 0, range(Q), "masked") == 0
    att.block(queries=range(4, 8), keys=[0])
    assert cost.normalizers(att, 0, 0, range(Q), "contribution") == (Q - 4) * K
    assert cost.normalizers(att, 0, 0, range(4, 8), "weights") == 0
    given = Attention.from_weights(torch.ones(4, 6) / 6)
    assert cost.normalizers(given, 0, 0, range(4), "weights") == 0


def test_a_budget_is_spent_and_not_overdrawn() -> None:
    budget = cost.CostBudget(100)
    budget.spend(60, "wait")
    with pytest.raises(ValueError, match="this takes 41 numbers to compute, at most 100 at once: ask for less"):
        budget.spend(41, "ask for less")
    budget.spend(40, "wait")
    assert budget.left == 0
    again = cost.CostBudget(10)
    again.use(4)
    assert again.left == 6
    again.use(99)
    assert again.left == 0
