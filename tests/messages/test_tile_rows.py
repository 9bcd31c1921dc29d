"""Tiles side by side come from one pass over their queries, each as it would be alone."""

from typing import Any

import pytest
import torch
from tolerance import rounding
from torch.testing import assert_close

from attnwidget import Attention
from attnwidget._engine import overview
from attnwidget._engine.level_cache import LevelCache, LevelKey
from attnwidget._messages.pictures import tiles
from attnwidget._messages.pictures.tiles import Address, TileRow

RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "window": {"is_causal": True, "window": 50},
    "mask": {"mask": torch.rand(700, 700, generator=torch.Generator().manual_seed(3)) > 0.3, "mask_means": "keep"},
}
# Without a gap up to the ragged end; with gaps, out of order, and of two widths.
ASKED = {
    "whole row": [(0, column) for column in range(6)],
    "gaps, out of order": [(0, 4), (0, 0), (1, 2), (0, 1), (1, 0), (0, 5)],
}


def attention(**rules: Any) -> Attention:
    q, k = torch.randn(2, 1, 2, 700, 8, generator=torch.Generator().manual_seed(5))
    return Attention(q, k, **rules)


def row_of(att: Attention, stage: str, pool: str, asked: str) -> TileRow:
    addresses = [Address(0, level, 2, column) for level, column in ASKED[asked]]
    return TileRow(LevelCache(att), LevelKey(0, 1, stage, pool), addresses)


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("pool", ["max", "mean"])
@pytest.mark.parametrize("stage", ["scaled", "masked", "weights"])
@pytest.mark.parametrize("rules", RULES)
def test_each_tile_is_as_it_is_alone(rules: str, stage: str, pool: str, asked: str) -> None:
    att = attention(**RULES[rules])
    row = row_of(att, stage, pool, asked)
    found = tiles.last_of(row.exact())
    assert [tile.address for tile in found] == row.addresses
    for tile in found:
        alone = overview.tile(att, 0, 1, tile.address.tile, stage=stage, pool=pool)
        assert (tile.overview.query_bin, tile.overview.key_bin) == (alone.query_bin, alone.key_bin)
        assert_close(tile.overview.values, alone.values, **rounding(att).pooled(stage, 1))
        assert torch.equal(tile.overview.allowed, alone.allowed)


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("rules", RULES)
def test_sampled_tiles_hold_the_exact_rows(rules: str, asked: str) -> None:
    att = attention(**RULES[rules])
    for tile in tiles.last_of(row_of(att, "weights", "max", asked).sampled(8)):
        alone = overview.tile(att, 0, 1, tile.address.tile)
        rows = range(tile.first - 2 * tiles.TILE_SIZE, len(alone.values), tile.every)
        assert_close(tile.overview.values, alone.values[rows], **rounding(att).pooled("weights", 1))


@pytest.mark.parametrize(("asked", "passes"), [("whole row", 1), ("gaps, out of order", 4)])
def test_what_lies_side_by_side_is_one_pass(monkeypatch: pytest.MonkeyPatch, asked: str, passes: int) -> None:
    begun: list[Any] = []
    begin = tiles.OverviewPass
    monkeypatch.setattr(tiles, "OverviewPass", lambda *given: begun.append(given) or begin(*given))
    tiles.last_of(row_of(attention(), "weights", "max", asked).exact())
    assert len(begun) == passes
