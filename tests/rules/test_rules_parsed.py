"""How masks, biases and sinks are read: of every sample, head, query and key, and refused at once where they fail."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from kinds import B, G, H, K, Q, some
from tolerance import rounding
from torch import Tensor
from torch.testing import assert_close

from attnwidget import Attention, masks
from attnwidget._rules.options import AttentionOptions
from attnwidget._rules.parsing import read_rules
from attnwidget._rules.row_spans import as_spans
from attnwidget._rules.rules import Bias, Keep, both, settled, whole
from attnwidget._utils.indexing import Block

CPU = torch.device("cpu")


def made(**rules: Any) -> Attention:
    make = torch.Generator().manual_seed(1)
    return Attention(torch.randn(B, H, Q, 5, generator=make), torch.randn(B, G, K, 5, generator=make), **rules)


@pytest.mark.parametrize("axis", range(4))
def test_a_table_that_is_one_too_short_is_refused_when_it_is_given(axis: int) -> None:
    """Not when its last sample, head, query or key is first looked at."""
    sizes = [B, H, Q, K]

    def mask(*where: Tensor) -> Tensor:
        return table[where[axis]] & (where[2] >= 0) & (where[3] >= 0)

    def bias(score: Tensor, *where: Tensor) -> Tensor:
        return score + table.float()[where[axis]]

    table = torch.ones(sizes[axis], dtype=torch.bool)
    assert made(mask=mask, bias=bias).block("allowed").all()
    table = torch.ones(sizes[axis] - 1, dtype=torch.bool)
    where = f"for sample {B - 1}, head {H - 1} and tensors of indices up to query {Q - 1} and key {K - 1}"
    with pytest.raises(ValueError, match=rf"mask\(b, h, q_idx, kv_idx\) fails {where}"):
        made(mask=mask)
    with pytest.raises(ValueError, match=rf"bias\(score, b, h, q_idx, kv_idx\) fails {where}"):
        made(bias=bias)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 1), (1, 3), (2, 3)])
def test_a_function_may_give_what_broadcasts(shape: tuple[int, ...]) -> None:
    """It is asked of two queries and three keys before."""
    asked: list[tuple[int, ...]] = []

    def mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        asked.append(torch.broadcast_shapes(q_idx.shape, kv_idx.shape))
        return torch.ones(shape if len(asked) == 1 else (), dtype=torch.bool)

    made(mask=mask)
    assert asked == [(2, 3)]


@pytest.mark.parametrize("shape", [(2,), (3, 2), (1, 2, 3), (2, 4), (3, 3)])
def test_a_function_that_gives_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="where its indices broadcast to"):
        made(mask=lambda *where: torch.ones(shape, dtype=torch.bool))


def test_an_expanded_mask_is_kept_once() -> None:
    for shape, held in (((1, 1, 1, K), (1, 1, 1, K)), ((1, H, Q, 1), (1, H, Q, 1)), ((B, 1, Q, K), (B, 1, Q, K))):
        mask = some(*shape)
        (rule,) = made(mask=mask.expand(B, H, Q, K)).rules.rules
        assert isinstance(rule, Keep)
        assert tuple(rule.mask.shape) == held
        assert (rule.shared, rule.same_for_heads, rule.by_key) == (held[:2] == (1, 1), held[1] == 1, held[2] == 1)
        assert rule.mask.data_ptr() == mask.data_ptr()


def test_what_is_the_same_for_all_heads_is_known() -> None:
    for rules, same in (
        ({"is_causal": True, "mask": masks.padding([K, 3])}, True),
        ({"mask": some(B, 1, Q, K)}, True),
        ({"mask": some(1, H, 1, K)}, False),
        ({"mask": lambda b, h, q_idx, kv_idx: kv_idx > h + q_idx}, False),
        ({"bias": torch.zeros(1, H, Q, K)}, False),
        ({"bias": torch.zeros(B, 1, Q, K)}, True),
        ({"bias": lambda score, *where: score}, False),
    ):
        assert made(**rules).rules.same_for_heads is same, rules


def test_a_bias_that_is_a_function_comes_before_what_is_added() -> None:
    added = torch.randn(Q, K, generator=torch.Generator().manual_seed(3))
    att = made(bias=lambda score, *where: score * score, mask=added)
    wanted = att.block("scaled", batch=1, head=4) ** 2 + added
    size = float(att.block("scaled", batch=1, head=4).abs().max()) ** 2 + float(added.abs().max())
    assert_close(att.block("masked", batch=1, head=4), wanted, **rounding(att, added=size).masked)


def test_limits_of_all_rules_are_known_where_each_is_a_band() -> None:
    rules = made(is_causal=True, window=4, mask=masks.padding([K, 6])).rules
    assert [rules.band_limits(batch) for batch in range(B)] == [(-3, 0, K), (-3, 0, 6)]
    assert made(is_causal=True, bias=lambda score, *where: score).rules.band_limits(0) is None
    assert made(is_causal=True, mask=some(1, 1, 1, K)).rules.band_limits(0) is None
    assert made().rules.band_limits(0) == (None, None, None)


def test_cells_say_in_one_word_where_they_agree() -> None:
    cells = torch.tensor([[True, False], [True, True]])
    assert settled(cells) is cells
    assert settled(torch.ones(3, 2, dtype=torch.bool)) is True
    assert settled(torch.zeros(3, 2, dtype=torch.bool)) is False
    assert torch.equal(
        settled(torch.tensor([[True, True], [False, True]])), torch.tensor([[True, True], [False, True]])
    )
    last = torch.zeros(3, 2, dtype=torch.bool)
    last[2, 1] = True
    assert settled(last) is last
    for one in (True, False):
        assert both(one, True) is one
        assert both(True, one) is one
        assert both(one, False) is both(False, one) is False
    assert both(cells, True) is both(True, cells) is cells
    assert both(cells, False) is both(False, cells) is False
    assert both(cells, ~cells) is False
    assert torch.equal(
        both(cells, torch.tensor([[True, True], [False, True]])), torch.tensor([[True, False], [False, True]])
    )
    assert torch.equal(whole(True, range(2), range(3), CPU), torch.ones(2, 3, dtype=torch.bool))
    assert torch.equal(whole(cells[:, :1], range(2), range(3), CPU), torch.ones(2, 3, dtype=torch.bool))


def test_no_queries_or_no_keys_are_all_allowed() -> None:
    rules = made(mask=masks.padding([0, 0]), is_causal=True).rules
    assert rules.allowed(Block(0, 0, range(0), range(K))) is True
    assert rules.allowed(Block(0, 0, range(Q), range(0))) is True
    assert rules.allowed(Block(0, 0, range(1), range(1))) is False


def test_nan_in_what_is_added_is_not_taken_for_blocked() -> None:
    added = torch.tensor([[0.0, torch.nan, -torch.inf], [torch.nan, 1.0, torch.finfo(torch.float32).min]])
    rule = Bias("bias", added[None, None], torch.finfo(torch.float32).min)
    found = rule.allowed(Block(0, 0, range(2), range(3)))
    assert torch.equal(found, torch.tensor([[True, True, False], [True, True, False]]))
    assert rule.allowed(Block(0, 0, range(2), range(2))) is True
    assert rule.allowed(Block(0, 0, range(2), range(2, 3))) is False


@pytest.mark.parametrize("given", [0.5, 2, torch.tensor(0.5), np.linspace(-1, 1, H), torch.linspace(-1, 1, H).half()])
def test_sinks_are_one_number_or_one_for_each_head(given: Any) -> None:
    att = made(sinks=given)
    assert att.sinks is not None
    assert att.sinks.shape == (H,)
    wanted = torch.as_tensor(given).double().expand(H)
    assert torch.equal(att.sinks.double(), wanted)
    assert [att.head(1, head).sink for head in range(H)] == wanted.tolist()


NO_SINKS = [True, math.inf, math.nan, torch.zeros(1), torch.zeros(B, H), torch.zeros(G)]


@pytest.mark.parametrize("given", [*NO_SINKS, torch.tensor([0.0, math.nan, 0, 0, 0, 0])])
def test_what_is_no_logit_of_each_head_is_refused(given: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="sinks"):
        made(sinks=given)


def test_a_bias_of_samples_and_keys_is_no_bias() -> None:
    """Such a mask is of padding; a bias would be a mistake."""
    with pytest.raises(ValueError, match=rf"bias has shape \({B}, {K}\), which does not fit .* as \(Q, K\)"):
        made(bias=torch.zeros(B, K))


@pytest.mark.parametrize("name", ["mask", "bias"])
def test_a_tensor_of_another_device_is_refused(name: str) -> None:
    options = AttentionOptions(**{name: torch.zeros(Q, K)})
    with pytest.raises(ValueError, match=f"{name} is on cpu but q is on meta: move them to one device"):
        read_rules(options, (B, H, Q, K), torch.float32, torch.device("meta"))


def test_options_say_what_was_given_and_nothing_else() -> None:
    assert AttentionOptions().describe() == ()
    assert AttentionOptions(sinks=0.0, bias=torch.zeros(1), softcap=3.0).describe() == (
        "biased", "softcap 3.0", "learned sinks",
    )  # fmt: skip
    assert AttentionOptions(is_causal=True, window=3, mask=torch.zeros(1)).describe() == (
        "causal",
        "window 3",
        "mask added",
    )


def test_runs_are_found_in_a_mask_that_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnwidget._rules import row_spans

    monkeypatch.setattr(row_spans, "CELLS_AT_ONCE", B * 3 * K)  # one row of each at a time
    starts = torch.randint(0, K // 2, (B, 3, Q, 1), generator=torch.Generator().manual_seed(1))
    stops = starts + torch.randint(0, K // 2, (B, 3, Q, 1), generator=torch.Generator().manual_seed(2))
    mask = (torch.arange(K) >= starts) & (torch.arange(K) < stops)
    spans = as_spans(mask)
    assert spans is not None
    empty = starts == stops
    assert torch.equal(spans.starts.long(), starts.masked_fill(empty, 0)[..., 0])
    assert torch.equal(spans.stops.long(), stops.masked_fill(empty, 0)[..., 0])
    for batch, head, query in ((1, 2, Q - 1), (0, 1, 4)):
        broken = mask.clone()
        broken[batch, head, query] = torch.tensor([True, False, True] + [False] * (K - 3))
        assert as_spans(broken) is None
