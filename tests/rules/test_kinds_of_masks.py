"""What a kind of mask says of itself: its bounds, limits and name, whom it is the same for, and its form in a file."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from kinds import scattered
from torch import Tensor

from attnwidget import Attention, masks
from attnwidget._rules.row_spans import Spans
from attnwidget._rules.rules import ask
from attnwidget._utils.indexing import Block
from attnwidget.masks import And, Band, BandLimits, Mask, Or, Padding

B, Q, K = 2, 9, 14
CPU = torch.device("cpu")
TWO_BANDS = masks.and_masks(Band(-4, None), masks.and_masks(Band(None, 2), masks.padding([K, 8])))
EXACT: dict[str, Mask] = {
    "causal": masks.causal,
    "lower right": masks.causal_lower_right(Q, K),
    "upper right": masks.causal_lower_right(K, Q),
    "window": masks.sliding_window(3),
    "from five ahead": Band(5, None),
    "ahead": Band(2, 4),
    "behind": Band(-6, -2),
    "no cell": Band(3, -3),
    "every cell": Band(None, 50),
    "padding": masks.padding([K - 3, 4]),
    "padding alone": masks.padding([0, K]),
    "bands and padding": TWO_BANDS,
}


def cells_of(mask: Mask, batch: int, queries: range, keys: range) -> Tensor:
    return ask(mask, Block(batch, 0, queries, keys), CPU)


@pytest.mark.parametrize("name", EXACT)
def test_bounds_of_a_band_are_no_wider_and_no_narrower_than_its_cells(name: str) -> None:
    mask = EXACT[name]
    for batch, first, start in itertools.product(range(B), range(Q), (0, 3, 9)):
        for queries, keys in ((range(first, Q), range(start, K)), (range(first, first + 1), range(start, start + 5))):
            cells = cells_of(mask, batch, queries, keys)
            outer, inner = mask.bounds(Block(batch, 0, queries, keys))
            reached, shared = cells.any(0), cells.all(0)
            band = mask.band_limits(batch)
            assert band is not None
            if reached.any():
                assert [*outer] == [key for key, is_in in zip(keys, reached.tolist(), strict=True) if is_in]
            elif band.low is None or band.high is None or band.low <= band.high:
                assert not outer
            assert [*inner] == [key for key, is_in in zip(keys, shared.tolist(), strict=True) if is_in]


@pytest.mark.parametrize("name", EXACT)
def test_limits_are_the_whole_mask(name: str) -> None:
    mask = EXACT[name]
    apart = torch.arange(K) - torch.arange(Q)[:, None]
    for batch in range(B):
        limits = mask.band_limits(batch)
        assert limits is not None
        inside = torch.ones(Q, K, dtype=torch.bool)
        inside &= apart >= limits.low if limits.low is not None else True
        inside &= apart <= limits.high if limits.high is not None else True
        inside &= torch.arange(K) < limits.stop if limits.stop is not None else True
        assert torch.equal(inside, cells_of(mask, batch, range(Q), range(K)))


def test_limits_that_meet_are_the_narrower_of_each() -> None:
    one, other = BandLimits(-3, 5, 20), BandLimits(-7, 2, 9)
    assert one.meet(other) == other.meet(one) == BandLimits(-3, 2, 9)
    assert one.meet(BandLimits()) == BandLimits().meet(one) == one
    assert BandLimits(low=0).meet(BandLimits(high=0)) == BandLimits(0, 0)
    assert BandLimits(low=-1).meet(BandLimits(low=0, stop=0)) == BandLimits(low=0, stop=0)


def test_a_union_spans_its_parts_and_what_runs_together_is_inside() -> None:
    mask = masks.or_masks(masks.padding([4, 0]), Band(3, 5), Band(6, 8))
    outer, inner = mask.bounds(Block(0, 0, range(1, 2), range(K)))
    assert (outer, inner) == (range(10), range(10))  # keys 0 to 3, 4 to 6 and 7 to 9 touch
    outer, inner = mask.bounds(Block(1, 0, range(1, 2), range(K)))
    assert (outer, inner) == (range(4, 10), range(4, 10))
    outer, inner = masks.or_masks(Band(-9, -8), Band(2, 5)).bounds(Block(0, 0, range(2), range(K)))
    assert (outer, inner) == (range(2, 7), range(3, 6))
    assert not masks.or_masks(Band(None, -20), masks.padding([0])).bounds(Block(0, 0, range(2), range(K))).outer
    assert masks.joined([range(5, 7), range(2), range(3, 3), range(1, 4), range(7, 9)]) == [range(4), range(5, 9)]
    assert masks.joined([range(9), range(2, 3)]) == [range(9)]
    assert masks.overlap(range(2, 5), range(7, 9)) == range(7, 7)


PROPERTIES: list[tuple[Mask, bool, bool, int | None]] = [
    (masks.causal, True, False, None),
    (masks.padding([3, 4]), False, True, 2),
    (masks.and_masks(masks.causal, masks.sliding_window(3)), True, False, None),
    (masks.and_masks(masks.causal, masks.padding([3, 4, 5])), False, False, 3),
    (masks.or_masks(masks.padding([3, 4]), masks.padding([1, 9])), False, True, 2),
    (masks.and_masks(scattered), False, False, None),
]


@pytest.mark.parametrize(("mask", "shared", "by_key", "samples"), PROPERTIES)
def test_a_mask_knows_whom_it_is_the_same_for(mask: Mask, shared: bool, by_key: bool, samples: int | None) -> None:
    assert (mask.shared, mask.by_key, mask.sample_count) == (shared, by_key, samples)


@pytest.mark.parametrize(
    ("mask", "told"),
    [
        (masks.causal, "causal: key ≤ query"),
        (masks.causal_lower_right(2, 5), "causal: key ≤ query + 3"),
        (masks.causal_lower_right(5, 2), "causal: key ≤ query − 3"),
        (masks.sliding_window(4), "window 4: |query − key| < 4"),
        (masks.sliding_window(1), "window 1: |query − key| < 1"),
        (Band(-2, 5), "-2 ≤ key − query ≤ 5"),
        (Band(3, None), "3 ≤ key − query"),
        (masks.padding([3, 7]), "padding: key < 7"),
        (masks.and_masks(masks.causal, scattered), "causal: key ≤ query and mask scattered"),
        (masks.or_masks(masks.padding([1, 2]), masks.causal), "padding: key < 2 or causal: key ≤ query"),
        (masks.and_masks(lambda b, h, q_idx, kv_idx: kv_idx > 0), "mask"),
    ],
)
def test_a_mask_says_of_a_sample_what_it_is(mask: Mask, told: str) -> None:
    assert mask.describe(1) == told


WRITTEN: list[Mask] = [
    masks.causal,
    masks.causal_lower_right(3, 9),
    masks.sliding_window(3),
    Band(-2, 5),
    Band(4, None),
    masks.padding([0, 3, 9]),
    masks.and_masks(masks.causal, masks.or_masks(masks.padding([2, 5]), masks.sliding_window(2))),
]


@pytest.mark.parametrize("mask", WRITTEN, ids=lambda mask: type(mask).__name__)
def test_a_mask_is_the_same_again_from_its_form_in_a_file(mask: Mask) -> None:
    told = json.loads(json.dumps(masks.mask_to_json(mask, lambda x: pytest.fail("no tensor is in it"))))
    found = masks.mask_from_json(told, {})
    assert found == mask
    assert type(found) is type(mask)
    with pytest.raises(ValueError, match="no mask has the kind 'strange': import the module that defines it"):
        masks.mask_from_json({**told, "kind": "strange"}, {})


def test_spans_are_the_same_again_from_their_form_in_a_file() -> None:
    starts, stops = torch.tensor([[[0, 1, 2]]], dtype=torch.int32), torch.tensor([[[3, 3, 5]]], dtype=torch.int32)
    written: dict[str, Tensor] = {}

    def add(x: Tensor) -> str:
        written[f"tensor {len(written)}"] = x
        return f"tensor {len(written) - 1}"

    mask = masks.and_masks(masks.causal, Spans(starts, stops))
    found = masks.mask_from_json(json.loads(json.dumps(masks.mask_to_json(mask, add))), written)
    assert isinstance(found, And)
    spans = found.parts[1]
    assert isinstance(spans, Spans)
    assert torch.equal(spans.starts, starts)
    assert torch.equal(spans.stops, stops)
    assert set(mask.tensors()) == {"1.starts", "1.stops"}


def test_parts_that_all_have_to_allow_a_cell_are_told_one_by_one() -> None:
    union = masks.or_masks(masks.causal, masks.padding([1]))
    mask = masks.and_masks(masks.causal, masks.and_masks(masks.sliding_window(3), union))
    assert mask.parts_of_all() == (masks.causal, masks.sliding_window(3), union)
    att = Attention(torch.zeros(3, 2), torch.zeros(3, 2), mask=mask)
    assert [rule.describe(0) for rule in att.rules.rules] == [one.describe(0) for one in mask.parts_of_all()]


def test_sizes_of_masks_are_whole_numbers_within_reason() -> None:
    assert masks.sliding_window(2**53) == Band(1 - 2**53, 2**53 - 1)
    with pytest.raises(ValueError, match=r"give at most 9,007,199,254,740,992 keys"):
        masks.sliding_window(2**53 + 1)
    assert masks.padding(torch.tensor([3, 0])) == masks.padding((3, 0)) == Padding((3, 0))
    with pytest.raises(TypeError, match="give a list with an integer for each sample"):
        masks.padding([True, 2])
    with pytest.raises(TypeError, match="and_masks is given a Tensor"):
        masks.and_masks(masks.causal, torch.ones(2, 2))


def test_masks_may_be_nested_64_deep_and_no_deeper() -> None:
    mask: Mask = masks.causal
    for _ in range(64):
        mask = masks.or_masks(mask, masks.sliding_window(3))
    assert isinstance(mask, Or)
    assert (
        Attention(torch.zeros(5, 2), torch.zeros(5, 2), mask=mask).block("allowed")[0].tolist()
        == [True] * 3 + [False] * 2
    )
    for combine, word in ((masks.and_masks, "and_masks"), (masks.or_masks, "or_masks")):
        with pytest.raises(ValueError, match=f"nested more than 64 deep: pass them all to one {word}"):
            combine(masks.causal, mask)


def test_a_strip_is_zeroed_outside_of_its_limits() -> None:
    limits = [None, -7, -2, 0, 3, 9]
    for low, high, stop in itertools.product(limits, limits, (None, 0, 4, 20)):
        strip = BandLimits(low, high, stop)
        for queries, keys in ((range(4), range(6)), (range(5, 9), range(2, 12)), (range(1, 8), range(9, 12))):
            apart = torch.tensor(keys)[:, None] - torch.tensor(queries)
            inside = (apart >= (-99 if low is None else low)) & (apart <= (99 if high is None else high))
            inside &= torch.tensor(keys)[:, None] < (99 if stop is None else stop)
            found = strip.zero_(torch.ones(len(keys), len(queries)), queries, keys)
            assert torch.equal(found, inside.float()), (strip, queries, keys)
