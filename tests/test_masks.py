"""Masks never guess: what each kind means, how its axes are read, and what is asked where two readings fit."""

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from reference import allowed, attention
from tolerance import rounding
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.flex_attention import create_mask
from torch.testing import assert_close

from attnwidget import masks
from attnwidget._rules import rules
from attnwidget._utils.indexing import Block
from attnwidget.attention import Attention
from examples import examples

CPU = torch.device("cpu")


# What a mask means.


def test_true_in_a_bool_mask_may_be_attended_to_as_in_torch() -> None:
    mask = torch.tensor([[True, True, False], [True, False, True]])
    att = attention(1, 1, 2, 3, mask=mask)
    assert torch.equal(allowed(att)[0, 0], mask)
    theirs = F.scaled_dot_product_attention(att.q, att.k, att.v, attn_mask=mask)[0, 0]
    assert_close(att.output(), theirs, **rounding(att).output)
    assert torch.equal(allowed(attention(1, 1, 2, 3, mask=mask, mask_means="hide"))[0, 0], ~mask)
    assert torch.equal(allowed(attention(1, 1, 2, 3, mask=mask, mask_means="keep"))[0, 0], mask)


def test_a_float_mask_is_added_and_its_lowest_number_blocks() -> None:
    mask = torch.tensor([[0.5, -1e9, -torch.inf], [torch.finfo(torch.float32).min, 0.0, -3.0]])
    att = attention(1, 1, 2, 3, mask=mask)
    assert allowed(att)[0, 0].tolist() == [[True, True, False], [False, True, True]]
    expected = (att.block("scaled") + mask).masked_fill(~allowed(att)[0, 0], -torch.inf)
    assert_close(att.block("masked"), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_what_blocks_is_the_lowest_number_of_the_dtype_of_the_mask(dtype: torch.dtype) -> None:
    mask = torch.zeros(1, 3, dtype=dtype)
    mask[0, 1], mask[0, 2] = torch.finfo(dtype).min, torch.finfo(torch.float16).min
    att = attention(1, 1, 1, 3, mask=mask)
    assert allowed(att)[0, 0].tolist() == [[True, False, dtype is not torch.float16]]


def test_numbers_below_float32_block_scores_in_float32() -> None:
    att = attention(1, 1, 1, 2, mask=torch.tensor([[0.0, -1e300]], dtype=torch.float64))
    assert att.block("allowed").tolist() == [[True, False]]
    assert att.block().tolist() == [[1, 0]]


def test_nan_in_a_float_mask_is_seen() -> None:
    att = attention(1, 1, 2, 2, mask=torch.tensor([[0.0, torch.nan], [0.0, 0.0]]))
    assert att.block().isnan().all(1).tolist() == [True, False]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.int32, np.uint16, np.int8])
def test_an_integer_mask_means_what_it_is_said_to_mean(dtype: torch.dtype | type) -> None:
    ones = [[1, 0, 1]]
    mask = torch.tensor(ones, dtype=dtype) if isinstance(dtype, torch.dtype) else np.array(ones, dtype)
    with pytest.raises(ValueError, match=r"say mask_means='keep' if 1 may be attended to .*'hide' if 1 is blocked"):
        attention(1, 2, 4, 3, mask=mask)
    kept = allowed(attention(1, 2, 4, 3, mask=mask, mask_means="keep"))
    assert torch.equal(kept, torch.tensor([True, False, True]).expand(1, 2, 4, 3))
    assert torch.equal(allowed(attention(1, 2, 4, 3, mask=mask, mask_means="hide")), ~kept)


def test_a_mask_and_causal_both_apply() -> None:
    mask = torch.rand(5, 5) > 0.3
    att = attention(1, 1, 5, 5, mask=mask, is_causal=True)
    assert torch.equal(allowed(att)[0, 0], mask.tril())
    bias = torch.randn(5, 5)
    att = attention(1, 1, 5, 5, mask=bias, is_causal=True)
    assert_close(
        att.block("masked"), (att.block("scaled") + bias).masked_fill(~torch.ones(5, 5).tril().bool(), -torch.inf)
    )


# How its axes are read.


@pytest.mark.parametrize(
    ("shape", "dims", "sizes"),
    [
        ((2, 3, 4, 5), None, "bhqk"),
        ((2, 1, 1, 5), None, "bhqk"),
        ((1, 3, 4, 1), None, "bhqk"),
        ((2, 4, 5), None, "bqk"),
        ((3, 4, 5), None, "hqk"),
        ((3, 1, 5), "hqk", "hqk"),
        ((4, 5), None, "qk"),
        ((4, 1), None, "qk"),
        ((2, 5), None, "bk"),
        ((1, 5), None, "qk"),
        ((1, 5), "bk", "bk"),
        ((1, 4, 5), None, "bqk"),
        ((1, 1), None, "qk"),
    ],
)
def test_the_axes_are_those_that_fit(shape: tuple[int, ...], dims: str | None, sizes: str) -> None:
    mask = torch.rand(shape, generator=torch.manual_seed(3)) > 0.5
    at = tuple(slice(None) if axis in sizes else None for axis in "bhqk")
    assert torch.equal(allowed(attention(2, 3, 4, 5, mask=mask, mask_dims=dims)), mask[at].expand(2, 3, 4, 5))


def test_two_readings_that_differ_are_asked_about() -> None:
    padding = torch.tensor([[True, True, False], [True, False, False], [True, True, True]])
    with pytest.raises(ValueError, match=r"fits .* in two ways: say mask_dims='qk' or mask_dims='bk'"):
        attention(3, 2, 3, 3, mask=padding)
    by_query = allowed(attention(3, 2, 3, 3, mask=padding, mask_dims="qk"))
    by_batch = allowed(attention(3, 2, 3, 3, mask=padding, mask_dims="bk"))
    assert torch.equal(by_query, padding[None, None].expand(3, 2, 3, 3))
    assert torch.equal(by_batch, padding[:, None, None].expand(3, 2, 3, 3))
    mask = torch.rand(2, 3, 3) > 0.5
    with pytest.raises(ValueError, match="in two ways: say mask_dims='bqk' or mask_dims='hqk'"):
        attention(2, 2, 3, 3, mask=mask)
    assert torch.equal(allowed(attention(2, 2, 3, 3, mask=mask, mask_dims="hqk"))[1, 0], mask[0])


def test_two_readings_that_say_the_same_are_not_asked_about() -> None:
    same = torch.tensor([[True, True, False]]).expand(3, 3)
    assert torch.equal(allowed(attention(3, 1, 3, 3, mask=same)), same.expand(3, 1, 3, 3))


@pytest.mark.parametrize(
    ("mask", "keywords", "error", "match"),
    [
        (torch.zeros(3, 7), {}, ValueError,
         r"mask has shape \(3, 7\), which does not fit \(B, H, Q, K\) = \(2, 3, 4, 5\) as \(Q, K\) or \(B, K\)"),
        (torch.zeros(2, 5), {"mask_dims": "qk"}, ValueError, r"does not fit .* as \(Q, K\): give it those sizes, or 1"),
        (torch.zeros(5), {}, ValueError, r"mask has shape \(5,\), 1 axis: give \(Q, K\), \(B, K\)"),
        (torch.zeros(1, 1, 1, 1, 1), {}, ValueError, "5 axes: give"),
        (torch.zeros(4, 5), {"mask_dims": "bqk"}, ValueError, "2 axes: mask_dims 'bqk' names 3"),
        (torch.zeros(4, 5), {"mask_dims": "kq"}, ValueError, "no mask_dims is called 'kq': .*give one of qk, bk, bqk"),
        (torch.zeros(4, 5), {"mask_means": "keep"}, ValueError,
         "mask holds float32, which is added to the scores: leave mask_means out, or give a bool mask"),
        (torch.ones(4, 5).bool(), {"mask_means": "kept"}, ValueError, "did you mean 'keep'"),
        (torch.full((4, 5), 2), {"mask_means": "keep"}, ValueError, "mask holds int64 other than 0 and 1"),
        (torch.zeros(4, 5).to(torch.complex64), {}, TypeError, "mask holds complex64: give bool, or float32"),
        ([[True]], {}, TypeError, "mask is a list: give a torch tensor or a numpy array"),
        (torch.zeros(4, 5, device="meta"), {}, TypeError, "mask is without data"),
        (None, {"mask_means": "keep"}, ValueError, "mask_means is 'keep' but there is no mask: give mask= as well"),
        (None, {"mask_dims": "qk"}, ValueError, "mask_dims is 'qk' but there is no mask"),
    ],
)  # fmt: skip
def test_a_mask_that_cannot_be_read_is_refused(
    mask: object, keywords: dict[str, str], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        attention(2, 3, 4, 5, mask=mask, **keywords)


# The internal form.


KINDS = {
    "causal": masks.causal,
    "lower right": masks.causal_lower_right(4, 9),
    "far lower right": masks.causal_lower_right(9, 4),
    "window": masks.sliding_window(3),
    "padding": masks.padding([5, 30, 0]),
    "causal window": masks.and_masks(masks.causal, masks.sliding_window(4)),
    "padding or window": masks.or_masks(masks.padding([2, 0, 7]), masks.sliding_window(2)),
    "nothing or padding": masks.or_masks(masks.padding([0, 0, 0]), masks.padding([0, 3, 0])),
    "window of any": masks.and_masks(
        masks.sliding_window(5), lambda b, h, q_idx, kv_idx: (q_idx + kv_idx + b) % 2 == 0
    ),
    "nested": masks.and_masks(masks.or_masks(masks.causal, masks.padding([3, 3, 3])), masks.sliding_window(6)),
}


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
@examples(60)
def test_what_a_kind_knows_of_cells_is_true(kind: str, data: st.DataObject) -> None:
    few, start = st.integers(1, 12), st.integers(0, 12)
    query, key, batch = data.draw(start), data.draw(start), data.draw(st.integers(0, 2))
    queries = range(query, query + data.draw(few), data.draw(st.integers(1, 3)))
    cells = Block(batch, 0, queries, range(key, key + data.draw(few)))
    inside = rules.ask(KINDS[kind], cells, CPU)
    outer, inner = KINDS[kind].bounds(cells)
    by_key = dict(zip(cells.keys, inside.T, strict=True))
    assert set(outer) | set(inner) <= set(cells.keys)
    assert not any(seen.any() for k, seen in by_key.items() if k not in outer)
    assert all(seen.all() for k, seen in by_key.items() if k in inner)
    found = rules.ByIndex(KINDS[kind], CPU).allowed(cells)
    assert torch.equal(rules.whole(found, cells.queries, cells.keys, CPU), inside)
    assert isinstance(found, bool) == (bool(inside.all()) or not bool(inside.any()))


@pytest.mark.parametrize(
    "mask", [torch.ones(6, 6).tril().bool(), torch.zeros(6, 6).masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)]
)
def test_a_tensor_says_so_where_all_or_no_cells_are_allowed(mask: torch.Tensor) -> None:
    rules = attention(1, 1, 6, 6, mask=mask).rules
    assert rules.allowed(Block(0, 0, range(4, 6), range(2))) is True
    assert rules.allowed(Block(0, 0, range(2), range(4, 6))) is False
    assert torch.equal(rules.allowed(Block(0, 0, range(6), range(6))), torch.ones(6, 6).tril().bool())


@given(st.data())
@examples(100)
def test_a_strip_zeroes_what_it_blocks(data: st.DataObject) -> None:
    limit, start, few = st.none() | st.integers(-14, 14), st.integers(0, 12), st.integers(1, 12)
    strip = masks.BandLimits(data.draw(limit), data.draw(limit), data.draw(st.none() | st.integers(0, 20)))
    queries, keys = (range(first, first + data.draw(few)) for first in (data.draw(start), data.draw(start)))
    x = torch.full((len(keys), len(queries)), torch.nan)
    apart = torch.tensor(keys)[:, None] - torch.tensor(queries)
    inside = torch.ones_like(apart, dtype=torch.bool)
    inside &= apart >= (-99 if strip.low is None else strip.low)
    inside &= apart <= (99 if strip.high is None else strip.high)
    inside &= torch.tensor(keys)[:, None] < (99 if strip.stop is None else strip.stop)
    found = strip.zero_(x, queries, keys)
    assert found.isnan().equal(inside)
    assert (found[~inside] == 0).all()


# Masks as functions.


def count_cells_asked(mask: object, **keywords: object) -> tuple[Attention, list[int]]:
    asked: list[int] = []

    def counting(b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor) -> torch.Tensor:
        asked.append(q_idx.numel() * kv_idx.numel())
        return mask(b, h, q_idx, kv_idx)

    q = torch.randn(4000, 2)
    return Attention(q, q, mask=counting, **keywords), asked


def test_a_function_of_ones_own_is_asked_only_where_a_known_rule_leaves_it_open() -> None:
    att, asked = count_cells_asked(lambda b, h, q_idx, kv_idx: q_idx + kv_idx > 0, is_causal=True, window=100)
    asked.clear()
    att.overview()
    assert 0 < sum(asked) < 0.25 * 4000**2
    att, asked = count_cells_asked(lambda b, h, q_idx, kv_idx: q_idx + kv_idx > 0)
    asked.clear()
    att.overview()
    assert sum(asked) == 4000**2  # each cell once: not to count, to skip and to fill


@pytest.mark.parametrize(
    ("mask", "keywords", "share"),
    [
        (masks.causal, {}, 0.13),
        (masks.causal, {"window": 512}, 0.25),
        (masks.causal_lower_right(4000, 4000), {}, 0.13),
        (masks.padding([1500]), {}, 0),
        (masks.and_masks(masks.causal, masks.padding([1500])), {}, 0.07),
        (masks.or_masks(masks.causal, masks.padding([1500])), {}, 0.12),
    ],
)
def test_known_kinds_are_never_asked_cell_by_cell(
    mask: object, keywords: dict[str, int], share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the few blocks that an edge runs through."""
    asked, ask = [], rules.ask
    monkeypatch.setattr(rules, "ask", lambda mask, cells, device: asked.append(cells) or ask(mask, cells, device))
    q = torch.randn(4000, 2)
    att = Attention(q, q, mask=mask, **keywords)
    att.overview()
    assert sum(len(cells.queries) * len(cells.keys) for cells in asked) <= share * 4000**2


@pytest.mark.parametrize("kind", KINDS)
def test_flex_attention_reads_the_functions_alike(kind: str) -> None:
    expected = create_mask(KINDS[kind], 3, 2, 8, 11, device="cpu")
    assert torch.equal(allowed(attention(3, 2, 8, 11, mask=KINDS[kind])), expected)


@pytest.mark.filterwarnings("ignore:Lower right causal bias will produce NaNs")
def test_causal_from_the_lower_right_is_that_of_torch() -> None:
    for queries, keys in ((2, 5), (5, 2), (4, 4)):
        expected = causal_lower_right(queries, keys)._materialize()
        att = attention(1, 1, queries, keys, mask=masks.causal_lower_right(queries, keys))
        assert torch.equal(allowed(att)[0, 0], expected)


def test_a_window_is_n_keys_up_to_the_querys_own_as_in_mistral() -> None:
    att = attention(1, 1, 9, 9, is_causal=True, window=3)
    assert allowed(att)[0, 0].sum(1).tolist() == [1, 2, 3, 3, 3, 3, 3, 3, 3]
    alike = attention(1, 1, 9, 9, mask=masks.and_masks(masks.causal, masks.sliding_window(3)))
    assert torch.equal(allowed(att), allowed(alike))
    both_sides = allowed(attention(1, 1, 9, 9, window=3))[0, 0]
    assert torch.equal(both_sides, allowed(att)[0, 0] | allowed(att)[0, 0].T)
    assert att.window == 3


def test_a_function_and_causal_and_window_all_apply() -> None:
    document = torch.tensor([0, 0, 0, 1, 1, 1])
    att = attention(
        1, 1, 6, 6, mask=lambda b, h, q_idx, kv_idx: document[q_idx] == document[kv_idx], is_causal=True, window=2
    )
    apart = torch.arange(6)[:, None] - torch.arange(6)
    assert torch.equal(allowed(att)[0, 0], (document[:, None] == document) & (apart >= 0) & (apart < 2))


def test_mask_functions_can_be_copied_and_pickled() -> None:
    for kind in ("causal", "window", "padding", "causal window", "padding or window"):
        for other in (pickle.loads(pickle.dumps(KINDS[kind])), copy.deepcopy(KINDS[kind])):
            assert other == KINDS[kind]
    att = attention(1, 1, 4, 4, mask=KINDS["causal window"])
    assert torch.equal(pickle.loads(pickle.dumps(att)).block(), att.block())


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: masks.sliding_window(0), ValueError, "window is 0: give 1 or more"),
        (lambda: masks.sliding_window(1.5), TypeError, r"window is 1\.5: give an integer"),
        (lambda: masks.causal_lower_right(0, 3), ValueError, "queries is 0"),
        (lambda: masks.padding([3, -1]), ValueError, "lengths holds -1: give 0 or more"),
        (lambda: masks.padding(3), TypeError, "lengths is 3: give a list with an integer for each sample"),
        (lambda: masks.padding(torch.tensor([0.5])), TypeError, "give a list with an integer for each sample"),
        (lambda: masks.and_masks(), ValueError, "and_masks needs at least one mask function: give one or more"),
        (lambda: masks.or_masks(torch.ones(2)), TypeError, "or_masks is given a Tensor: give functions f"),
        (lambda: masks.and_masks(masks.causal, None), TypeError, "and_masks is given None: give functions f"),
        (lambda: attention(3, 1, 2, 2, mask=masks.padding([1, 2])), ValueError, "rules for 2 samples, and there are 3"),
        (lambda: attention(1, 1, 2, 2, window=0), ValueError, "window is 0: give 1 or more"),
        (lambda: attention(1, 1, 2, 2, mask=masks.causal, mask_means="keep"), ValueError,
         "mask_means is 'keep' but mask is a function, which returns True where a query may attend"),
        (lambda: attention(1, 1, 2, 2, mask=masks.causal, mask_dims="qk"), ValueError, "leave mask_dims out"),
        (lambda: attention(1, 1, 2, 2, mask=lambda b, h, q_idx, kv_idx: True), TypeError,
         "mask is a function that returns bool: let it return a bool tensor"),
        (lambda: attention(1, 1, 2, 2, mask=lambda b, h, q_idx, kv_idx: q_idx - kv_idx), TypeError,
         "mask is a function that returns int64: let it return a bool tensor"),
        (lambda: attention(1, 1, 2, 2, mask=lambda b, h, q_idx, kv_idx: torch.ones(3).bool()), ValueError,
         r"returns shape \(3,\) where its indices broadcast to \(2, 2\): let it return a number for each pair"),
        (lambda: attention(1, 1, 2, 2, mask=lambda b, h, q_idx, kv_idx: q_idx if q_idx > 1 else kv_idx), ValueError,
         r"mask\(b, h, q_idx, kv_idx\) fails for sample 0, head 0 and tensors of indices"),
        (lambda: attention(1, 1, 2, 2, mask=lambda q, k: q), ValueError, "takes 2 positional arguments but 4"),
    ],
)  # fmt: skip
def test_a_function_that_cannot_be_asked_is_refused_at_once(
    make: Callable[[], object], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        make()


@pytest.mark.parametrize("lengths", [[1], [1, 2, 3]])
def test_padding_of_another_number_of_samples_is_refused(lengths: list[int]) -> None:
    """Lengths of three samples were taken for a batch of two: the first two, without a word."""
    q = torch.zeros(2, 1, 4, 8, device="cpu")
    for mask in (masks.padding(lengths), masks.or_masks(masks.causal, masks.padding(lengths))):
        with pytest.raises(ValueError, match=f"rules for {len(lengths)} samples, and there are 2: give as many"):
            Attention(q, q, mask=mask)
    with pytest.raises(ValueError, match="the masks are for 1 and 3 samples"):
        masks.and_masks(masks.padding([1]), masks.padding([1, 2, 3]))
    assert Attention(q, q, mask=masks.padding([1, 2])).block("allowed", batch=1)[0].tolist() == [
        True,
        True,
        False,
        False,
    ]


def test_masks_say_what_they_are_and_causal_is_called_or_not() -> None:
    assert masks.causal() is masks.causal
    both = masks.and_masks(masks.causal, masks.padding([3, 5]))
    assert repr(both) == "causal: key ≤ query and padding: key < 3 | causal: key ≤ query and padding: key < 5"
    for maker in (masks.padding, masks.sliding_window, masks.causal_lower_right, masks.and_masks, masks.or_masks):
        with pytest.raises(TypeError, match=rf"masks\.{maker.__name__}.*call it, as in masks\.{maker.__name__}\("):
            Attention(torch.zeros(4, 2), torch.zeros(4, 2), mask=maker)
