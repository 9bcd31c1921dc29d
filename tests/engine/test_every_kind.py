"""Every kind of rule, at sizes that all differ, by all ways that the engine has: beside the book in float64."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from kinds import KINDS, SINKS, B, H, K, Q, kind
from reference import Case, pooled, with_sink
from tolerance import Rounding
from torch import Tensor
from torch.testing import assert_close

from attnwidget import Attention
from attnwidget._engine import overview, parts, segment_sums, stages
from attnwidget._engine.level_cache import LevelCache
from attnwidget._engine.regions import TileAddress
from attnwidget._engine.segment_sums import KeyGroups
from attnwidget._engine.softmax import run_to_end
from attnwidget._engine.stages import NORMALIZED
from attnwidget.attention import STAGES

POOLS = ("max", "mean")
BLOCKS = [pytest.param(False, id="one block"), pytest.param(True, id="many blocks")]
HEADS = [(0, 0), (1, 1), (0, 2), (1, 3), (0, 4), (1, 5)]  # of samples by turns: each head, two of each group
WITH_SINKS = ("plain", "causal", "upper right", "padding alone", "bools BHQK", "everything", "scale -40", "softcap")


@pytest.fixture
def blocks(request: pytest.FixtureRequest) -> None:
    """Cut short attention into many blocks where a test asks for it."""
    if request.param:
        request.getfixturevalue("tiny_blocks")


def by_the_book(case: Case, batch: int, head: int) -> tuple[dict[str, Any], Rounding]:
    """Every stage of a head, its sink included, and what rounding may change."""
    found, near = case.dense(batch, head), case.rounding()
    if "sinks" not in case.keywords:
        return found, near
    sink = SINKS[head]
    size = abs(sink) if math.isfinite(sink) else 0.0
    return with_sink(found, sink), replace(near, score=max(near.score, size), keys=near.keys + 1)


def close(found: Tensor, wanted: Tensor, within: Any) -> None:
    assert_close(found.double(), wanted, **within)


CASES = [(name, False) for name in KINDS] + [(name, True) for name in WITH_SINKS]


@pytest.mark.parametrize("blocks", BLOCKS, indirect=True)
@pytest.mark.parametrize(("name", "sinks"), CASES)
def test_blocks_rows_and_outputs_are_those_of_the_book(name: str, sinks: bool, blocks: None) -> None:
    case = kind(name, sinks=sinks)
    att = case.attention()
    for batch, head in HEADS:
        wanted, near = by_the_book(case, batch, head)
        at: dict[str, Any] = {"batch": batch, "head": head}
        some, part = {"queries": [Q - 1, 0, 5], "keys": slice(3, 16, 2)}, np.ix_([Q - 1, 0, 5], range(3, 16, 2))
        close(att.block(**some, **at), wanted["weights"][part], near.weights)  # before the head was seen
        for stage in STAGES if head in (0, 3) else ("masked", "weights"):
            close(att.block(stage, **at), wanted[stage], near[stage])
        assert torch.equal(att.block("allowed", **at), wanted["allowed"])
        assert torch.equal(att.block("allowed", **some, **at), wanted["allowed"][part])
        close(att.log_normalizer(batch, head), wanted["normalizer"], near.normalizer)
        group = head // 2
        close(att.output(batch, head), wanted["weights"] @ case.v[batch, group].double(), near.output)
        close(att.block("contribution", **some, **at), wanted["contribution"][part], near.contribution)
        if sinks:
            close(att.sink_weights(batch, head), wanted["sink"], near.weights)


@pytest.mark.parametrize("blocks", BLOCKS, indirect=True)
@pytest.mark.parametrize(("name", "sinks"), CASES)
def test_bins_are_those_of_the_book(name: str, sinks: bool, blocks: None) -> None:
    """Ragged ones at both ends, and one bin of all; whether or not the log-normalizers are known before."""
    case = kind(name, sinks=sinks)
    wanted, near = by_the_book(case, 1, 4)
    plain = case.attention()
    if stages.QUERIES > Q:
        asked = [("weights", pool, 5) for pool in POOLS]
    elif name == "softcap":
        asked = [*itertools.product(STAGES, POOLS, (5, 1))]
    else:  # before "masked" nothing but scale and softcap is in force
        asked = [*itertools.product(STAGES[3:], POOLS, (5,)), *itertools.product(("weights", "logit"), POOLS, (1,))]
    for stage, pool, size in asked:
        att = copy.copy(plain)  # which has seen nothing
        values, allowed = pooled(wanted, stage, pool, size)
        for _ in range(2 if stage in NORMALIZED else 1):
            seen = att.overview(1, 4, size=size, pool=pool, stage=stage)
            close(seen.values, values, near.pooled(stage, seen.query_bin * seen.key_bin))
            assert torch.equal(seen.allowed, allowed)
            att.log_normalizer(1, 4)


def bins_of(wanted: dict[str, Any], stage: str, pool: str, rows: range, columns: range, widths: tuple[int, int]) -> Any:
    """Bins of a part of a stage, and which have an allowed cell."""
    part = {
        name: x[rows.start : rows.stop, columns.start : columns.stop]
        for name, x in wanted.items()
        if name not in ("normalizer", "sink")
    }
    found = [
        pooled({name: x[at : at + widths[0], to : to + widths[1]] for name, x in part.items()}, stage, pool, 1)
        for at in range(0, len(rows), widths[0])
        for to in range(0, len(columns), widths[1])
    ]
    shape = -(-len(rows) // widths[0]), -(-len(columns) // widths[1])
    return tuple(torch.stack([one[i].flatten()[0] for one in found]).view(shape) for i in (0, 1))


TILES = [TileAddress(0, 2, 1, 5), TileAddress((1, 2), -1, -1, 3), TileAddress((2, 0), 0, 3, 4), TileAddress(-1, 0, 0)]
OF_TILES = ("plain", "causal window", "padding or window", "everything", "bias that blocks", "large bias")


@pytest.mark.parametrize("name", OF_TILES)
def test_tiles_are_those_of_the_book(name: str, tiny_blocks: None) -> None:
    """At the edges, with levels of their own for rows and columns: computed, and folded from a level that is kept."""
    case = kind(name)
    wanted, near = by_the_book(case, 1, 3)
    for stage, pool in itertools.product(("masked", "weights", "contribution", "logit"), POOLS):
        att = case.attention()
        levels = LevelCache(att, largest=9)  # bins of 2 × 2
        assert levels.finest == (1, 1)
        list(levels.build(1, 3, stage=stage, pool=pool))
        kept = levels.find(levels.build(1, 3, stage=stage, pool=pool).key)
        assert kept is not None
        assert levels.finest == (kept.row_level, kept.column_level)
        for at in TILES:
            level = at.level if isinstance(at.level, tuple) else (at.level % 6, at.level % 6)
            widths = 1 << level[0], 1 << level[1]
            rows, columns = at.ranges(Q, K, widths)
            values, allowed = bins_of(wanted, stage, pool, rows, columns, widths)
            for seen in (
                overview.tile(att, 1, 3, at, stage=stage, pool=pool),
                levels.tile(1, 3, at, stage=stage, pool=pool),
            ):
                close(seen.values, values, near.pooled(stage, widths[0] * widths[1]))
                assert torch.equal(seen.allowed, allowed)
                assert (seen.query_bin, seen.key_bin) == widths


@pytest.mark.parametrize("name", OF_TILES)
def test_sampled_rows_are_those_of_the_book(name: str, tiny_blocks: None) -> None:
    case = kind(name)
    wanted, near = by_the_book(case, 0, 5)
    rows = [2, 7, 12]  # whole bins before the last query
    for stage, pool in itertools.product(("masked", "weights", "contribution", "logit"), POOLS):
        seen = overview.sampled(case.attention(), 0, 5, query_bin=5, key_bin=6, stage=stage, pool=pool)
        assert (seen.query_bin, seen.key_bin) == (5, 6)
        for place, row in enumerate(rows):
            values, allowed = bins_of(wanted, stage, pool, range(row, row + 1), range(K), (1, 6))
            close(seen.values[place : place + 1], values, near.pooled(stage, 6))
            assert torch.equal(seen.allowed[place : place + 1], allowed)


@pytest.mark.parametrize("name", ["plain", "causal window and padding", "everything", "bias that blocks"])
def test_parts_that_workers_compute_are_those_of_the_book(
    name: str, tiny_blocks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "LEAST_CELLS", 1)
    monkeypatch.setattr(parts, "MOST_CELLS", 30)
    case = kind(name)
    wanted, near = by_the_book(case, 1, 4)
    with ThreadPoolExecutor(2) as executor:
        for stage, pool, size in itertools.product(("masked", "weights", "contribution", "saliency"), POOLS, (5, 13)):
            att = case.attention()
            seen = att.overview(1, 4, size=size, pool=pool, stage=stage, executor=executor)
            values, allowed = pooled(wanted, stage, pool, size)
            close(seen.values, values, near.pooled(stage, seen.query_bin * seen.key_bin))
            assert torch.equal(seen.allowed, allowed)
            found = att.known_rows(1, 4, range(Q))
            assert (found is None) == (stage == "masked")
            if found is not None:
                close(found.log_normalizer(), wanted["normalizer"], near.normalizer)


@pytest.mark.parametrize("name", ["plain", "causal", "lower right", "padding", "window on both sides"])
def test_a_pass_tells_the_share_that_is_done(name: str, tiny_blocks: None) -> None:
    for stage, pool in itertools.product(("masked", "weights", "logit"), POOLS):
        steps = overview.passes(kind(name).attention(), 1, 4, size=5, pool=pool, stage=stage, seconds=0)
        told = [(steps.done, share) for share in steps]
        assert told == sorted(told)
        assert 0 < told[0][1] < 0.5
        assert told[-1] == (Q, pytest.approx(1, rel=1e-12))


# Sums by groups of keys.

LABELS = np.array([1, 1, 1, 1, -1, 0, 3, 3, 1, 0, 0, 0, 0, -1, 3, 2, 2])  # runs of several lengths, keys of no group
OWN = torch.tensor([4, 0, -1, 9, 16, 3, 8, -1, 1, 14, 2, 10, 15])  # the key at each query's own place; none of two
ROWS: list[range | Tensor] = [range(Q), range(3, 11), torch.tensor([12, 0, 7, 5])]


def sums_by_hand(matrix: Tensor, rows: list[int], own: list[int] | None) -> tuple[Tensor, Tensor]:
    """Sums of some rows of a matrix by group, without what is in each one's own place, and that."""
    others, mine = torch.zeros(4, len(rows)).double(), torch.zeros(len(rows)).double()
    for at, row in enumerate(rows):
        for key in range(K):
            if own is not None and key == own[at]:
                mine[at] = matrix[row, key]
            elif LABELS[key] >= 0:
                others[LABELS[key], at] += matrix[row, key]
    return others, mine


def own_keys(rows: range | Tensor) -> Iterator[range | Tensor | None]:
    yield from (None, OWN[torch.tensor([*rows])])
    if isinstance(rows, range):
        yield range(rows.start + 2, rows.stop + 2)


@pytest.mark.parametrize("blocks", BLOCKS, indirect=True)
@pytest.mark.parametrize(("name", "sinks"), CASES)
def test_sums_by_group_of_keys_are_those_of_the_book(name: str, sinks: bool, blocks: None) -> None:
    case = kind(name, sinks=sinks)
    att = case.attention()
    groups, wide = KeyGroups(LABELS, 4, att.device), segment_sums.together(att)
    heads, batch = range(0 if sinks else 2, wide + (0 if sinks else 2)), 1
    books = [by_the_book(case, batch, head) for head in heads]
    small = segment_sums.all_small(att, batch, heads, range(Q))
    assert small == (name not in NOT_SMALL)
    for rows in ROWS if stages.QUERIES < Q else ROWS[:1]:
        for own in own_keys(rows):
            places = None if own is None else [int(one) for one in own]
            found = run_to_end(segment_sums.summing(att, batch, heads, rows, groups, own, small=small))
            for at, (wanted, near) in enumerate(books):
                others, mine = sums_by_hand(wanted["weights"], [*map(int, rows)], places)
                bound = {"rtol": near.weights["rtol"], "atol": near.weights["rtol"]}
                close(found.others[:, at], others[found.groups.start : found.groups.stop], bound)
                close(found.own[at], mine, bound)
                outside = [one for one in range(4) if one not in found.groups]
                assert not others[outside].any()
                if sinks:
                    close(found.sink[at], wanted["sink"][torch.tensor([*rows])], near.weights)
            assert sinks or found.sink is None
            for at, head in enumerate(heads):
                cells = books[at][0]["allowed"].long()
                counted = run_to_end(segment_sums.counting(att.head(batch, head), rows, groups, own))
                others, mine = sums_by_hand(cells, [*map(int, rows)], places)
                assert torch.equal(counted.others.double(), others[counted.groups.start : counted.groups.stop])
                assert torch.equal(counted.own.double(), mine)
                assert torch.equal(counted.total, cells.sum(1)[torch.tensor([*rows])])


NOT_SMALL = ("scale -40", "scale 40", "scale -40 and bools", "softcap", "floats", "floats filled with the lowest",
             "bias QK", "bias HQK", "bias of keys", "large bias", "bias by a function", "bias that blocks",
             "floats and bias by a function", "everything")  # fmt: skip


@pytest.mark.parametrize("stage", ["contribution", "value_norm", "logit", "saliency"])
@pytest.mark.parametrize("name", ["causal window and padding", "everything"])
def test_sums_of_what_weights_carry_are_those_of_the_book(name: str, stage: str, tiny_blocks: None) -> None:
    case = kind(name)
    att = case.attention()
    groups, heads = KeyGroups(LABELS, 4, att.device), range(3, 5)
    for rows in ROWS:
        for own in own_keys(rows):
            places = None if own is None else [int(one) for one in own]
            found = run_to_end(segment_sums.summing_stage(att, 1, heads, rows, groups, own, stage))
            for at, head in enumerate(heads):
                wanted, near = by_the_book(case, 1, head)
                others, mine = sums_by_hand(wanted[stage], [*map(int, rows)], places)
                bound = {"rtol": near[stage]["rtol"], "atol": K * max(near[stage]["atol"], near[stage]["rtol"])}
                close(found.others[:, at], others, bound)
                close(found.own[at], mine, bound)


# Tensors of other types, and what was given in the place of q and k.


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["causal", "everything", "bias that blocks", "softcap", "scale -40"])
def test_other_number_types_have_the_numbers_of_the_book(name: str, dtype: torch.dtype) -> None:
    case = kind(name, dtype=dtype)
    att = case.attention()
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    for batch, head in ((1, 2), (0, 5)):
        wanted, near = by_the_book(case, batch, head)
        for stage in STAGES:
            found = att.block(stage, batch=batch, head=head)
            assert found.dtype is wide
            close(found, wanted[stage], near[stage])
        close(att.output(batch, head), wanted["weights"] @ case.v[batch, head // 2].double(), near.output)
        for pool in POOLS:
            seen = att.overview(batch, head, size=4, pool=pool)
            assert seen.values.dtype is wide
            close(seen.values, pooled(wanted, "weights", pool, 4)[0], near.pooled("weights", 20))


@pytest.mark.parametrize("name", ["everything", "bias that blocks", "padding or window", "scale -40"])
def test_scores_and_weights_in_hand_have_the_same(name: str, tiny_blocks: None) -> None:
    case = kind(name)
    books = {(batch, head): by_the_book(case, batch, head) for batch in range(B) for head in range(H)}
    scores, weights = (
        torch.stack([torch.stack([books[b, h][0][stage] for h in range(H)]) for b in range(B)])
        for stage in ("scores", "weights")
    )
    scale = case.keywords.get("scale", case.q.shape[3] ** -0.5)
    of_scores = Attention.from_scores(scores, case.v.double(), **{**case.keywords, "scale": scale})
    of_weights = Attention.from_weights(weights, case.v.double())
    for (batch, head), (wanted, near) in books.items():
        output = wanted["weights"] @ case.v[batch, head // 2].double()
        for att in (of_scores, of_weights):
            assert_close(att.block(batch=batch, head=head), wanted["weights"], **near.weights)
            assert_close(att.block("contribution", batch=batch, head=head), wanted["contribution"], **near.contribution)
            assert_close(att.output(batch, head), output, **near.output)
    for att, (pool, stage) in itertools.product(
        (of_scores, of_weights), itertools.product(POOLS, ("weights", "contribution"))
    ):
        wanted, near = books[1, 4]
        seen = att.overview(1, 4, size=5, pool=pool, stage=stage).values
        assert_close(seen, pooled(wanted, stage, pool, 5)[0], **near.pooled(stage, 12))
