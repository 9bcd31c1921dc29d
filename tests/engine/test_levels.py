"""A level that is kept, while it is built and afterwards: what is there is exact, row by row from the top."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from kinds import K, Q, kind
from reference import pooled
from torch.testing import assert_close

from attnwidget import Attention
from attnwidget._engine import level_cache
from attnwidget._engine.level_cache import LevelBuild, LevelCache, LevelKey, LevelStore
from attnwidget._engine.stages import BY_SIZE

AT = (1, 4)
POOLS = ("max", "mean")
STAGES = ("masked", "weights", "contribution", "logit")


@pytest.fixture(autouse=True)
def _small_steps(tiny_blocks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(level_cache, "QUERIES_PER_STEP", 4)
    monkeypatch.setattr(level_cache, "ROWS_PER_STEP", 2)


def building(name: str, stage: str, pool: str) -> tuple[LevelCache, LevelBuild, dict[str, Any], Any]:
    """Return a cache, a level that is begun in bins of 2 × 2, and the stages of its head with their bounds."""
    case = kind(name)
    levels = LevelCache(case.attention(), largest=9)
    build = levels.build(*AT, stage=stage, pool=pool, seconds=0)
    return levels, build, case.dense(*AT), case.rounding().pooled(stage, 4)


def bins(wanted: dict[str, Any], stage: str, pool: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a stage in bins of 2 × 2, and which have an allowed cell."""
    padded = {stage: wanted[stage], "allowed": wanted["allowed"]}
    rows = [
        [
            pooled({name: x[at : at + 2, to : to + 2] for name, x in padded.items()}, stage, pool, 1)
            for to in range(0, K, 2)
        ]
        for at in range(0, Q, 2)
    ]
    values, allowed = (
        torch.tensor([[float(one[i]) for one in row] for row in rows], dtype=torch.float64) for i in (0, 1)
    )
    return values, allowed.bool()


@pytest.mark.parametrize(("stage", "pool"), [*itertools.product(STAGES, POOLS)])
def test_the_rows_that_are_there_are_exact_while_the_others_are_not_yet(stage: str, pool: str) -> None:
    levels, build, wanted, within = building("causal window and padding", stage, pool)
    values, allowed = bins(wanted, stage, pool)
    seen: list[tuple[int, int, float]] = []
    left = build.cells_left
    assert left > 0
    assert build.level is not None
    for share in build:
        rows = build.rows
        seen.append((rows, build.finished_queries, share))
        assert build.finished_queries == min(2 * rows, Q)
        assert_close(build.level.overview.values[:rows].double(), values[:rows], **within)
        assert torch.equal(build.level.overview.allowed[:rows], allowed[:rows])
        assert 0 <= build.cells_left < left
    assert seen == sorted(seen)
    assert len({rows for rows, _, _ in seen}) >= 3
    assert seen[-1] == (7, Q, 1.0)
    assert levels.find(build.key) is build.level
    assert levels.nbytes == build.level.nbytes > 0


@pytest.mark.parametrize("stage", STAGES[1:])
def test_the_strongest_beside_the_first_key_is_kept_for_each_row(stage: str) -> None:
    """The first key is so often the strongest that it hides what else the first bins hold."""
    _, build, wanted, within = building("everything", stage, "max")
    for _ in build:
        pass
    assert build.level is not None
    assert build.level.beside_first is not None
    beside = wanted[stage][:, 1]  # the other key of the first bin
    for row in range(7):
        pair = beside[2 * row : 2 * row + 2]
        largest = pair[pair.abs().argmax()] if stage in BY_SIZE else pair.max()
        assert_close(build.level.beside_first[row].double(), largest, **within)
    for other in (("masked", "max"), (stage, "mean")):
        _, without, _, _ = building("everything", *other)
        assert without.level is not None
        assert without.level.beside_first is None


def test_another_goes_on_where_one_has_stopped() -> None:
    """Workers in the place of this process, this process in that of workers, and after an interrupt."""
    levels, build, wanted, within = building("causal window and padding", "contribution", "mean")
    values, _ = bins(wanted, "contribution", "mean")
    while build.rows < 2:
        next(build)
    before = build.rows
    with ThreadPoolExecutor(2) as executor:
        build.give_to(executor)
        build.wait = 60
        while build.rows <= before:
            next(build)
    build.give_to(None)
    assert build.rows > before
    for _ in build:
        pass
    found = levels.find(build.key)
    assert found is not None
    assert found.cells is not None
    assert_close(found.overview.values.double(), values, **within)
    assert found.cells.tolist() == [[(2 if at < 6 else 1) * (2 if to < 8 else 1) for to in range(9)] for at in range(7)]


def test_what_was_cancelled_is_not_kept() -> None:
    levels, build, _, _ = building("plain", "weights", "max")
    next(build)
    build.close()
    assert build.level is None
    assert list(build) == []
    assert levels.find(build.key) is None
    assert levels.nbytes == 0


def test_a_level_folds_to_coarser_ones_and_not_to_finer() -> None:
    for (stage, pool), name in itertools.product(itertools.product(STAGES, POOLS), ("everything", "padding or window")):
        _, build, wanted, _ = building(name, stage, pool)
        for _ in build:
            pass
        level = build.level
        assert level is not None
        assert [level.has(at) for at in ((0, 1), (1, 0), (1, 1), (1, 3), (2, 1))] == [False, False, True, True, True]
        folded = level.fold(slice(2, 7), slice(1, 9), 2, 3)  # rows 4 to 12, keys 2 to 16
        assert (folded.query_bin, folded.key_bin) == (4, 6)
        part = {of: wanted[of][4:13, 2:17] for of in (stage, "allowed")}
        for row, column in itertools.product(range(3), range(3)):
            cells = {of: x[4 * row : 4 * row + 4, 6 * column : 6 * column + 6] for of, x in part.items()}
            value, is_open = pooled(cells, stage, pool, 1)
            near = kind(name).rounding().pooled(stage, 24)
            assert_close(folded.values[row, column].double(), value[0, 0], **near)
            assert bool(folded.allowed[row, column]) == bool(is_open[0, 0])


def test_levels_of_several_attentions_share_a_store() -> None:
    one, other = (LevelKey(0, head, "weights", "max") for head in (0, 1))
    store = LevelStore()
    caches = [LevelCache(Attention(torch.randn(1, 2, 8, 3), torch.randn(1, 2, 9, 3)), store=store) for _ in range(2)]
    for cache in caches:
        list(cache.build(0, 0))
    assert caches[0].find(one) is not caches[1].find(one)
    assert [cache.find(other) for cache in caches] == [None, None]
    each = caches[0].nbytes
    assert each == caches[1].nbytes == 8 * 9 * (4 + 1) + 8 * 4
    small = LevelStore(2 * each)
    caches = [LevelCache(Attention(torch.randn(1, 2, 8, 3), torch.randn(1, 2, 9, 3)), store=small) for _ in range(3)]
    for cache in caches[:2]:
        list(cache.build(0, 0))
    assert caches[0].find(one) is not None  # now the other is the least recent
    list(caches[2].build(0, 0))
    assert [cache.nbytes for cache in caches] == [each, 0, each]
