"""Heads that are combined and pieces that are merged where it is unusual: empty words, explained cells, saved masks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tolerance import rounding
from torch import Tensor
from torch.testing import assert_close

from attnwidget import Attention, masks, segments
from attnwidget._engine import cost
from attnwidget._rules.row_spans import as_spans

N = 8
WORDS = [[0, 0, 1, 2, 2, 3, 4, 5], [0, 0, 0, 1, 1, 1, 2, 2]]  # the second sample has three, and three empty ones


def made(**rules: Any) -> Attention:
    q, k, v = torch.randn(3, 2, 2, N, 4, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return Attention(q, k, v, **rules)


def test_a_sink_takes_nothing_of_words_that_are_empty() -> None:
    att = made(sinks=torch.tensor([0.5, -0.5], dtype=torch.float64))
    words = att.merge(WORDS)
    assert words.shape.Q == 6
    pieces = att.sink_weights(batch=1, head=1)
    wanted = torch.stack([pieces[:3].mean(), pieces[3:6].mean(), pieces[6:].mean(), *torch.zeros(3).double()])
    assert_close(words.sink_weights(batch=1, head=1), wanted, **rounding(att).weights)
    assert words.explain(4, 1, batch=1, head=1).sink_weight == 0  # a row of empty words alone
    assert made().merge(WORDS).explain(4, 1, batch=1, head=1).sink_weight == made().explain(4, 1).sink_weight


def test_no_word_may_attend_to_one_that_is_empty() -> None:
    words = made().merge(WORDS)
    assert not words.block("allowed", batch=1, keys=range(3, 6)).any()
    assert bool(words.block("allowed", batch=1, queries=range(3), keys=range(3)).all())
    assert bool(words.block("allowed", batch=0).all())
    mask = words.options.mask
    assert isinstance(mask, masks.Mask)
    one, queries, keys = torch.tensor(1), torch.arange(6)[:, None], torch.arange(6)[None]
    assert torch.equal(mask(one, one, queries, keys), words.block("allowed", batch=1))
    assert not mask(one, one, queries, keys[:, 3:]).any()  # as a function of indices, without its bounds


def test_the_mask_of_words_is_named_and_not_saved() -> None:
    words = made(mask=masks.sliding_window(2)).merge(WORDS[0])
    assert [effect.name for effect in words.explain(0, 4).effects if effect.blocks] == ["mask"]
    assert not any(effect.blocks for effect in words.explain(0, 1).effects)
    mask = words.options.mask
    assert isinstance(mask, masks.Mask)
    with pytest.raises(ValueError, match="cannot be saved: save the attention of the subword tokens"):
        masks.mask_to_json(mask, lambda x: "x")


def of_heads() -> tuple[Attention, Tensor]:
    """An attention whose heads have other rules, and which cells any of them has."""
    allowed = torch.rand(1, 2, N, N, generator=torch.Generator().manual_seed(1)) > 0.5
    allowed[..., [0, 1, 3]] = True  # each row has a key of each segment
    allowed[0, :, 5, 2] = False
    return made(mask=allowed), allowed[0].any(0)


def test_what_no_head_may_attend_to_is_blocked_by_name() -> None:
    att, allowed = of_heads()
    both = att.combine(how="mean")
    assert torch.equal(both.block("allowed"), allowed)
    assert [effect.name for effect in both.explain(5, 2).effects if effect.blocks] == ["mask of any of the heads"]


def test_segments_count_the_keys_between_the_ends_of_rows() -> None:
    """As of a mask that a model was seen to use, whose rows begin where the padding of their sample ends."""
    rows = torch.arange(N)
    starts, stops = torch.tensor([0, 3])[:, None].expand(2, N).clamp(max=rows), (rows + 1).expand(2, N)
    cells = (torch.arange(N) >= starts[..., None]) & (torch.arange(N) < stops[..., None])
    spans = as_spans(cells[:, None])
    assert spans is not None
    named = segments({"one": (1, 4), "two": (4, 8)}, length=N)
    for batch in range(2):
        at = {"batch": batch, "head": 1, "measure": "lift"}
        found = made(mask=spans).by_segment(named, **at)
        assert_close(found.values, made(mask=cells[:, None].clone()).by_segment(named, **at).values, equal_nan=True)
    both = made(mask=spans, is_causal=True, window=4).by_segment(named, batch=1, measure="lift")
    wanted = made(mask=cells[:, None].clone(), is_causal=True, window=4).by_segment(named, batch=1, measure="lift")
    assert_close(both.values, wanted.values, equal_nan=True)


def test_segments_count_the_keys_of_any_head() -> None:
    att, allowed = of_heads()
    named = segments({"one": (0, 3), "two": (3, 8)}, length=N)
    found = att.combine(how="max").by_segment(named, head=0, measure="lift")
    assert found.keys == ("first token", "one", "two")
    weights, parts = att.combine(how="max").block(), (slice(0, 1), slice(1, 3), slice(3, 8))
    mass = torch.stack([weights[:, at].sum(1) for at in parts], 1)
    even = torch.stack([allowed[:, at].sum(1) for at in parts], 1) / allowed.sum(1, keepdim=True)
    wanted = torch.stack([mass[at].mean(0) / even[at].mean(0) for at in parts])
    assert_close(found.values.double(), wanted, rtol=1e-5, atol=1e-7)


def test_words_cost_the_log_normalizers_of_all_their_pieces() -> None:
    """Unless these are known, or the words are few: their rows are computed at once."""
    pieces = Attention(*torch.randn(2, 1, 1, 60, 4))
    words = pieces.merge([i // 2 for i in range(60)])
    assert cost.normalizers(words, 0, 0, range(30), "weights") == 60 * 60
    assert cost.normalizers(words, 0, 0, range(16), "weights") == 0
    pieces.log_normalizer()
    assert cost.normalizers(words, 0, 0, range(30), "weights") == 0
