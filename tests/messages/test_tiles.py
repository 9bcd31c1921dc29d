"""Tiles, levels and slices: every tile of every level is the pooled dense matrix, however it was come by."""

import itertools
import sys

import pytest
import torch
from allocations import Largest
from hypothesis import given
from hypothesis import strategies as st
from reference import Case, cases, dense, pooled
from tolerance import approx, rounding, sums
from torch import Tensor
from torch.testing import assert_close

from attnwidget._engine import fused_pass, logsumexp, matmul, overview, regions, stages
from attnwidget._engine.level_cache import LevelCache
from attnwidget._engine.regions import TileAddress
from attnwidget._engine.stages import BY_SIZE
from attnwidget.attention import STAGES, Attention
from examples import examples

POOLS = ("max", "mean")

Level = int | tuple[int, int]


def widths(level: Level) -> tuple[int, int]:
    """Queries and keys of a bin."""
    rows, columns = level if isinstance(level, tuple) else (level, level)
    return 1 << rows, 1 << columns


def whole_level(tiles: object, att: Attention, head: int, level: Level, size: int, **what: str) -> tuple[Tensor, ...]:
    """All tiles of a level, put together."""
    rows, columns = (-(-n // (size * width)) for n, width in zip(att.shape[3:5], widths(level), strict=True))
    seen = [[tiles(0, head, TileAddress(level, r, c, size), **what) for c in range(columns)] for r in range(rows)]
    return tuple(
        torch.cat([torch.cat([getattr(one, part) for one in row], 1) for row in seen]) for part in ("values", "allowed")
    )


def expected(case: dict, stage: str, pool: str, level: Level) -> tuple[Tensor, Tensor]:
    rows, columns = [], []
    x, allowed, (height, width) = case[stage], case["allowed"], widths(level)
    counted = allowed if stage == "masked" else torch.ones_like(allowed)
    for some, open_cells, inside in zip(*(y.split(height) for y in (x, allowed, counted)), strict=True):
        values, opens = [], []
        for cells, a, c in zip(some.split(width, 1), open_cells.split(width, 1), inside.split(width, 1), strict=True):
            opens.append(a.any())
            if pool == "max":
                values.append(cells.flatten()[cells.abs().argmax()] if stage in BY_SIZE else cells.max())
            else:
                values.append(cells[c].mean() if c.any() else torch.tensor(-torch.inf, dtype=torch.float64))
        rows.append(torch.stack(values))
        columns.append(torch.stack(opens))
    return torch.stack(rows), torch.stack(columns)


@given(cases(longest=60), st.sampled_from(STAGES), st.sampled_from(POOLS), st.integers(3, 70), st.booleans(), st.data())
@examples(100)
def test_every_tile_of_every_level_is_that_of_the_dense_matrix(
    case: Case, stage: str, pool: str, size: int, known: bool, data: st.DataObject
) -> None:
    head, att = case.q.shape[1] - 1, case.attention()
    if known:
        att.log_normalizer(head=head)
    matrix = case.dense(0, head)
    level = data.draw(st.integers(0, regions.top_level(att)))
    levels = LevelCache(att, largest=data.draw(st.sampled_from((1, 7, 16, 100))))
    if data.draw(st.booleans()):
        assert list(levels.build(0, head, stage=stage, pool=pool, seconds=0))
        assert not list(levels.build(0, head, stage=stage, pool=pool))
    values, allowed = expected(matrix, stage, pool, level)
    within = case.rounding().pooled(stage, 4**level)
    for tiles in (lambda *at, **what: overview.tile(att, *at, **what), levels.tile):
        found, open_bins = whole_level(tiles, att, head, level, size, stage=stage, pool=pool)
        assert_close(found.double(), values, **within)
        assert torch.equal(open_bins, allowed)


@given(cases(longest=60), st.sampled_from(STAGES), st.sampled_from(POOLS), st.integers(3, 70), st.data())
@examples(100)
def test_rows_and_columns_may_have_levels_of_their_own(
    case: Case, stage: str, pool: str, size: int, data: st.DataObject
) -> None:
    head, att = case.q.shape[1] - 1, case.attention()
    each = st.integers(0, regions.top_level(att))
    level = (data.draw(each), data.draw(each))
    values, allowed = expected(case.dense(0, head), stage, pool, level)
    found, open_bins = whole_level(
        lambda *at, **what: overview.tile(att, *at, **what), att, head, level, size, stage=stage, pool=pool
    )
    assert_close(found.double(), values, **case.rounding().pooled(stage, 2 ** sum(level)))
    assert torch.equal(open_bins, allowed)


@given(cases(longest=60), st.sampled_from(STAGES), st.sampled_from(POOLS), st.data())
@examples(100)
def test_sampled_rows_equal_exact_ones(case: Case, stage: str, pool: str, data: st.DataObject) -> None:
    """Of a picture as of any of its tiles, whatever is known already."""
    head, att = case.q.shape[1] - 1, case.attention()
    Q = att.shape.Q
    level = data.draw(st.integers(0, 6).map(lambda top: min(top, regions.top_level(att))))
    query_bin, key_bin = 1 << level, data.draw(st.integers(1, 70))
    places = torch.arange((Q - 1) % query_bin, Q, query_bin)
    if data.draw(st.booleans()):
        overview.tile(att, 0, head, TileAddress(0, 0, 0, 16))  # some rows are known
    exact = pooled_keys(case.dense(0, head), places, stage, pool, key_bin)
    seen = overview.sampled(att, 0, head, query_bin=query_bin, key_bin=key_bin, stage=stage, pool=pool)
    assert (seen.query_bin, seen.key_bin) == (query_bin, key_bin)
    within = case.rounding().pooled(stage, max(key_bin, query_bin))
    assert_close(seen.values.double(), exact[0], **within)
    assert torch.equal(seen.allowed, exact[1])

    rows = data.draw(st.integers(0, (Q - 1) // (7 * query_bin)))
    region = regions.tile_region(att, 0, head, TileAddress(level, rows, -1, 7)).sample(att)
    assert set(region.queries) == set(places.tolist()) & set(range(rows * 7 * query_bin, (rows + 1) * 7 * query_bin))
    first = overview.OverviewPass(att, region, stage, pool, 0).finish()
    part = {name: x[:, region.keys.start :] for name, x in case.dense(0, head).items() if name != "normalizer"}
    exact = pooled_keys(part, torch.tensor(region.queries), stage, pool, query_bin)
    assert_close(first.values.double(), exact[0], **within)
    assert torch.equal(first.allowed, exact[1])
    assert first.query_bin == query_bin


def pooled_keys(matrix: dict, queries: Tensor, stage: str, pool: str, key_bin: int) -> tuple[Tensor, Tensor]:
    """Some rows of a dense matrix, pooled along the keys, and which bins have an allowed cell."""
    x, allowed = matrix[stage][queries], matrix["allowed"][queries]
    opened = torch.stack([part.any(1) for part in allowed.split(key_bin, 1)], 1)
    if pool == "max" and stage in BY_SIZE:
        return torch.stack([p.gather(1, p.abs().argmax(1)[:, None])[:, 0] for p in x.split(key_bin, 1)], 1), opened
    if pool == "max":
        return torch.stack([part.amax(1) for part in x.split(key_bin, 1)], 1), opened
    counted = allowed if stage == "masked" else torch.ones_like(allowed)
    parts = zip(x.masked_fill(~counted, 0).split(key_bin, 1), counted.split(key_bin, 1), strict=True)
    return torch.stack([some.sum(1) / c.sum(1) for some, c in parts], 1).nan_to_num(-torch.inf), opened


@pytest.mark.parametrize(
    ("keywords", "pool"),
    [
        ({"is_causal": True, "window": 300}, "mean"),
        *(
            pytest.param(keywords, pool, marks=pytest.mark.thorough)
            for keywords, pool in (
                ({}, "max"),
                ({}, "mean"),
                ({"is_causal": True}, "max"),
                ({"is_causal": True}, "mean"),
            )
        ),
    ],
)
def test_tiles_of_a_long_head(keywords: dict, pool: str) -> None:
    q, k, v = torch.randn(3, 2048, 8, generator=torch.manual_seed(0))
    apart = torch.arange(2048) - torch.arange(2048)[:, None]
    allowed = torch.ones(2048, 2048, dtype=torch.bool)
    allowed &= apart <= 0 if "is_causal" in keywords else True
    allowed &= apart.abs() < keywords.get("window", 9999)
    matrix = dense(q, k, v, scale=8**-0.5, allowed=allowed)
    att = Attention(q, k, v, **keywords)
    for level in (0, 1, 3, 11):
        values, open_bins = pooled(matrix, "weights", pool, 2048 >> level)
        found = whole_level(lambda *at, **what: overview.tile(att, *at, **what), att, 0, level, 256, pool=pool)
        assert_close(found[0].double(), values, **rounding(att).pooled("weights", 4**level))
        assert torch.equal(found[1], open_bins)


def test_a_tile_needs_the_rows_in_view_only_and_never_much_memory() -> None:
    att = Attention(*torch.randn(2, 100_000, 2), is_causal=True)
    with Largest() as largest:
        fine = overview.tile(att, 0, 0, TileAddress(0, -1, -1))
        overview.tile(att, 0, 0, TileAddress(5, 0, 0))
    assert largest.cells <= stages.QUERIES * stages.KEYS
    assert att.known_rows(0, 0, range(att.shape.Q)) is None
    rows = range(100_000 - fine.values.shape[0], 100_000)
    block = att.block(queries=rows, keys=range(100_000 - fine.values.shape[1], 100_000))
    assert_close(fine.values, block, **rounding(att).weights)


def test_rows_that_were_looked_at_are_known_from_then_on() -> None:
    att = Attention(*torch.randn(2, 3000, 8), is_causal=True)
    overview.tile(att, 0, 0, TileAddress(0, 1, 0))
    looked_at = att.known_rows(0, 0, range(256, 512))
    assert looked_at is not None
    anew = Attention(att.q, att.k, is_causal=True).log_normalizer()[256:512]
    assert_close(looked_at.log_normalizer(), anew, **rounding(att).normalizer)
    assert att.known_rows(0, 0, range(256, 513)) is None
    assert att.known_rows(0, 0, torch.tensor([300, 511])) is not None
    assert att.known_rows(0, 0, torch.tensor([300, 512])) is None
    overview.sampled(att, 0, 0, query_bin=100, key_bin=100)
    assert att.known_rows(0, 0, range(99, 3000, 100)) is not None
    att.block(queries=[1, 1000], keys=[0])
    assert att.known_rows(0, 0, torch.tensor([1000, 1, 1])) is not None
    assert att.known_rows(0, 0, range(2)) is None
    assert att.known_rows(0, 0, range(att.shape.Q)) is None
    att.log_normalizer()
    assert torch.equal(att.known_rows(0, 0, range(256, 512)).m, looked_at.m)


def test_a_tile_of_known_rows_computes_its_own_cells_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    att = Attention(*torch.randn(2, 3000, 8))
    cells, of, pool = [], matmul.Product.of, fused_pass.FusedPass._pool

    def counting(product: matmul.Product, k: Tensor, room: matmul.Scratch | None) -> Tensor:
        cells.append(len(product.q) * len(k))
        return of(product, k, room)

    def counting_too(fused: fused_pass.FusedPass, keys: range, *about: object, **scores: int) -> None:
        cells.append(len(fused._rows) * len(keys))
        pool(fused, keys, *about, **scores)  # type: ignore[arg-type]

    monkeypatch.setattr(matmul.Product, "of", counting)
    monkeypatch.setattr(fused_pass.FusedPass, "_pool", counting_too)
    for column, many in ((3, 256 * 3256), (4, 256 * 256), (2, 256 * 256)):
        cells.clear()
        overview.tile(att, 0, 0, TileAddress(0, 2, column))
        assert sum(cells) == many


def test_log_normalizers_are_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logsumexp, "MAX_HEADS", 3)
    att = Attention(torch.randn(1, 6, 100, 4), torch.randn(1, 6, 100, 4))

    def known() -> list[int]:
        return [head for head in range(6) if att.known_rows(0, head, range(10)) is not None]

    for head in (0, 1):
        att.log_normalizer(head=head)
    for head in (2, 3, 4):
        att.block(head=head, queries=range(10), keys=[0])  # these are not whole, and make room first
    assert known() == [0, 1, 4]
    for head in (2, 3):
        att.log_normalizer(head=head)
    assert known() == [1, 2, 3]
    one = 100 * (4 + 4 + 1)
    monkeypatch.setattr(logsumexp, "MAX_BYTES", 2 * one)
    att.log_normalizer(head=5)
    assert known() == [3, 5]
    assert att._memory.nbytes == 2 * one
    monkeypatch.setattr(logsumexp, "MAX_BYTES", 1)
    att.log_normalizer(head=0)
    assert known() == [0]  # the last is always kept: it takes less than its q


@pytest.mark.filterwarnings("ignore:.*changed")
def test_rows_known_of_tensors_that_changed_are_not_used() -> None:
    q, k = torch.randn(2, 1500, 4)
    att = Attention(q, k)
    steps = overview.passes(att, 0, 0, seconds=0)
    while steps.done < 512:
        next(steps)
    assert att.known_rows(0, 0, range(512)) is not None
    q.neg_()
    assert att.known_rows(0, 0, range(512)) is None
    steps.finish()
    assert att.known_rows(0, 0, range(1024, 1500)) is None  # of a row of blocks that was begun before
    tile = overview.tile(att, 0, 0, TileAddress(0, 0, 0)).values
    assert_close(tile, Attention(q, k).block()[:256, :256], **rounding(att).weights)


def test_a_tile_that_is_not_there_is_refused() -> None:
    att = Attention(*torch.randn(2, 1000, 2))
    assert regions.top_level(att) == 10
    assert overview.tile(att, 0, 0, TileAddress(-1, 0, 0)).values.shape == (1, 1)
    with pytest.raises(IndexError, match="level 11 is not there: this attention has levels 0 to 10"):
        overview.tile(att, 0, 0, TileAddress(11, 0, 0))
    with pytest.raises(IndexError, match="row 4 is not there: this attention has rows 0 to 3"):
        overview.tile(att, 0, 0, TileAddress(0, 4, 0))
    with pytest.raises(IndexError, match="level 11 is not there"):
        overview.tile(att, 0, 0, TileAddress((0, 11), 0, 0))
    with pytest.raises(ValueError, match="give an integer, or one for rows and one for columns"):
        overview.tile(att, 0, 0, TileAddress((0, 1, 2), 0, 0))
    with pytest.raises(IndexError, match="column 1 is not there"):
        overview.tile(att, 0, 0, TileAddress((0, 2), 3, 1))
    with pytest.raises(TypeError, match="query_bin is None and rows is None: give one of them"):
        overview.sampled(att, 0, 0, columns=4)
    with pytest.raises(ValueError, match="no pool is called"):
        LevelCache(att).tile(0, 0, TileAddress(0, 0, 0), pool="sum")
    levels = LevelCache(att)
    list(levels.build(0, 0))
    with pytest.raises(IndexError, match="column 4 is not there"):
        levels.tile(0, 0, TileAddress(0, 0, 4))


def test_levels_are_kept_within_a_budget_the_least_recent_forgotten_first() -> None:
    att = Attention(torch.randn(1, 3, 64, 4), torch.randn(1, 3, 64, 4))
    one = 64 * 64 * (4 + 1) + 64 * 4
    levels = LevelCache(att, budget=2 * one)
    for head in range(2):
        list(levels.build(0, head))
    assert levels.nbytes == 2 * one
    levels.tile(0, 0, TileAddress(0, 0, 0))  # so that head 1 is the least recent
    list(levels.build(0, 2))
    assert [bool(list(levels.build(0, head))) for head in (2, 0)] == [False, False]
    assert levels.nbytes == 2 * one
    small = LevelCache(att, budget=one - 1)
    list(small.build(0, 0))
    assert small.nbytes == 0
    assert small.tile(0, 0, TileAddress(1, 0, 0)).values.shape == (32, 32)


@pytest.mark.filterwarnings("ignore:.*changed")
def test_levels_of_tensors_that_changed_are_not_used() -> None:
    q, k = torch.randn(2, 40, 4)
    att = Attention(q, k)
    levels = LevelCache(att)
    list(levels.build(0, 0))
    q.neg_()
    assert_close(levels.tile(0, 0, TileAddress(0, 0, 0)).values, Attention(q, k).block(), **rounding(att).weights)
    half_way = levels.build(0, 0, seconds=0)
    next(half_way)
    q.neg_()
    list(half_way)
    assert_close(levels.tile(0, 0, TileAddress(0, 0, 0)).values, Attention(q, k).block(), **rounding(att).weights)


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("scale", [0.1, 9.0])
def test_a_pass_in_slices_is_the_overview_to_the_last_bit(
    pool: str, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_pass, "CELLS_AT_ONCE", 1 << 19)
    q, k = torch.randn(2, 3000, 8)
    expected = Attention(q, k, is_causal=True, scale=scale).overview(pool=pool)
    att = Attention(q, k, is_causal=True, scale=scale)
    slices = overview.passes(att, 0, 0, pool=pool, seconds=0)
    with pytest.raises(RuntimeError, match="not finished"):
        slices.result  # noqa: B018
    shares, done = [], []
    for share in slices:
        assert torch.is_grad_enabled()  # whoever runs between the slices is in no mode of ours
        shares.append(share)
        done.append(slices.done)
    assert len(shares) > 8
    assert shares == sorted(shares)
    assert shares[-1] == approx(1, sums(len(shares), size=0, dtype=torch.float64))
    assert done[-1] == 3000
    assert torch.equal(slices.result.values, expected.values)
    assert torch.equal(slices.result.allowed, expected.allowed)
    assert att.known_rows(0, 0, range(att.shape.Q)) is not None
    assert list(slices) == []


def test_a_pass_that_is_dropped_leaves_what_it_has_finished() -> None:
    att = Attention(*torch.randn(2, 3000, 8))
    slices = overview.passes(att, 0, 0, seconds=0)
    while slices.done < 1000:
        next(slices)
    next(slices)
    slices.close()
    assert att.known_rows(0, 0, range(att.shape.Q)) is None
    assert att.known_rows(0, 0, range(slices.done)) is not None
    assert att.known_rows(0, 0, range(slices.done, slices.done + 1)) is None
    with pytest.raises(RuntimeError, match="cancelled"):
        next(slices)


def test_a_slice_is_short_at_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends at the first step after its time: by this clock each step takes a second, so each slice has one step."""
    monkeypatch.setattr(overview, "perf_counter", itertools.count().__next__)
    att = Attention(torch.randn(1000, 16), torch.randn(200_000, 16))
    slices = overview.passes(att, 0, 0, seconds=1)
    shares = [next(slices) for _ in range(6)]
    assert shares == sorted(set(shares))
    assert max(b - a for a, b in itertools.pairwise([0.0, *shares])) < 0.15


def test_rows_of_a_tile_are_had_in_slices_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_pass, "CELLS_AT_ONCE", 256 * stages.KEYS)
    att = Attention(torch.randn(1000, 16), torch.randn(100_000, 16))
    region = regions.tile_region(att, 0, 0, TileAddress(0, 0, 7, 256))
    slices = overview.OverviewPass(att, region, "weights", "max", 0)
    shares = list(slices)
    assert len(shares) >= 100_000 // stages.KEYS
    assert shares == sorted(shares)
    assert shares[-1] == 1
    block = att.block(queries=range(256), keys=range(7 * 256, 8 * 256))
    assert_close(slices.result.values, block, **rounding(att).weights)


def test_a_bar_shows_how_far_it_is(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    att = Attention(*torch.randn(2, 1500, 8))
    bars = pytest.importorskip("tqdm.auto")
    assert bars
    seen = att.overview(progress=True)
    assert "overview: 100%" in capsys.readouterr().err
    assert torch.equal(seen.values, Attention(att.q, att.k).overview().values)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ImportError, match=r"pip install 'attnwidget\[progress\]'"):
        att.overview(progress=True)
