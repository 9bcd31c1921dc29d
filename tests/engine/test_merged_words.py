"""Pieces merged into words: the definition of Clark et al. (2019, §4.1), cell by cell, and what follows from it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tolerance import approx, rounding
from torch import Tensor

from attnwidget import Attention, AttentionWidget, masks
from attnwidget._engine.base import OnlyWeightsError

IDS = [0, 0, 1, 2, 2, 2, None, 3, 4, 4]
SPANS = [(0, 2), (2, 3), (3, 6), (6, 7), (7, 8), (8, 10)]
TOKENS = ["em", "##bed", "the", "mill", "##er", "##s", "[SEP]", "a", "riv", "##er"]


def random(**more: Any) -> Attention:
    generator = torch.Generator().manual_seed(7)
    shapes = ((4, 10, 8), (1, 10, 8), (1, 10, 5))
    q, k, v = (torch.randn(2, *shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return Attention(q, k, v, **more)


Spans = list[tuple[int, int]]


def by_definition(weights: Tensor, rows: Spans = SPANS, columns: Spans = SPANS) -> Tensor:
    """Summed over the pieces of the key, averaged over those of the query."""
    return torch.stack([torch.stack([weights[q0:q1, k0:k1].sum(1).mean() for k0, k1 in columns]) for q0, q1 in rows])


def any_of(allowed: Tensor, rows: Spans, columns: Spans) -> Tensor:
    """Whether any piece of one word may attend to any of the other."""
    return torch.tensor([[bool(allowed[a:b, c:d].any()) for c, d in columns] for a, b in rows])


@pytest.mark.parametrize(
    "rules",
    [{}, {"is_causal": True}, {"window": 3}, {"softcap": 2.0}, {"mask": torch.rand(10, 10) > 0.4}],
    ids=["plain", "causal", "window", "softcap", "mask"],
)
def test_weights_are_those_of_the_definition(rules: dict[str, Any]) -> None:
    att = random(**rules)
    merged = att.merge(IDS)
    assert merged.shape[:5] == (2, 4, 4, 6, 6)
    assert merged.scale == 1.0
    for batch in range(2):
        for head in range(4):
            expected = by_definition(att.block(batch=batch, head=head))
            torch.testing.assert_close(merged.block(batch=batch, head=head), expected, **rounding(att).weights)


def test_rows_sum_to_one_as_those_of_the_pieces_do() -> None:
    totals = random(is_causal=True).merge(IDS).block().sum(1)
    torch.testing.assert_close(totals, torch.ones(6, dtype=torch.float64), **rounding(random()).weights)


@pytest.mark.parametrize("rules", [{"is_causal": True}, {"mask": masks.sliding_window(2)}])
def test_a_word_may_attend_where_any_of_its_pieces_may(rules: dict[str, Any]) -> None:
    att = random(**rules)
    allowed = att.block("allowed")
    expected = torch.tensor([[bool(allowed[a:b, c:d].any()) for c, d in SPANS] for a, b in SPANS])
    assert torch.equal(att.merge(IDS).block("allowed"), expected)


QUERY_IDS = [[0, 1, 1, 2, 2, 2, 3], [0, 0, 0, 0, 1, 2, 2]]  # of each sample its own; the second has three words
QUERY_SPANS = [[(0, 1), (1, 3), (3, 6), (6, 7)], [(0, 4), (4, 5), (5, 7)]]
OTHER_RULES: list[dict[str, Any]] = [
    {},
    {"mask": masks.causal_lower_right(7, 10)},
    {"mask": torch.rand(2, 4, 7, 10, generator=torch.Generator().manual_seed(2)) > 0.6},
    {"mask": masks.padding([9, 4]), "sinks": torch.linspace(-1, 2, 4)},
    {"bias": lambda score, b, h, q_idx, kv_idx: torch.where((kv_idx + h) % 4 == 1, -torch.inf, score)},
]


@pytest.mark.parametrize("rules", OTHER_RULES, ids=lambda rules: "-".join(rules) or "plain")
def test_words_of_queries_and_keys_may_differ_and_those_of_samples(rules: dict[str, Any], tiny_blocks: None) -> None:
    make = torch.Generator().manual_seed(3)
    q, k = (torch.randn(2, *shape, generator=make, dtype=torch.float64) for shape in ((4, 7, 8), (2, 10, 8)))
    att = Attention(q, k, **rules)
    words = att.merge(QUERY_IDS, IDS)
    assert words.shape[:5] == (2, 4, 4, 4, 6)
    within = rounding(att, added=3.0).weights
    for batch in range(2):
        rows, count = QUERY_SPANS[batch], len(QUERY_SPANS[batch])
        for head in range(4):
            at = {"batch": batch, "head": head}
            wanted = torch.zeros(4, 6, dtype=torch.float64)
            wanted[:count] = by_definition(att.block(**at), rows, SPANS)
            allowed = torch.zeros(4, 6, dtype=torch.bool)
            allowed[:count] = any_of(att.block("allowed", **at), rows, SPANS)
            torch.testing.assert_close(words.block(**at), wanted, **within)
            torch.testing.assert_close(
                words.block(queries=[2, 0], keys=[5, 1, 2], **at), wanted[[2, 0]][:, [5, 1, 2]], **within
            )
            assert torch.equal(words.block("allowed", **at), allowed)
            for pool in ("max", "mean"):
                seen = words.overview(**at, size=3, pool=pool)
                pieces = torch.nn.functional.pad(wanted, (0, 0, 0, 2)).view(3, 2, 3, 2)
                by_bin = pieces.amax((1, 3)) if pool == "max" else pieces.mean((1, 3))
                torch.testing.assert_close(seen.values, by_bin[: len(seen.values)], **within)
                opened = torch.nn.functional.pad(allowed, (0, 0, 0, 2)).view(3, 2, 3, 2).any(3).any(1)
                assert torch.equal(seen.allowed, opened[: len(seen.values)])


def test_samples_with_other_words_have_empty_ones_at_the_end() -> None:
    merged = random().merge([IDS, list(range(10))])
    assert merged.shape[3:5] == (10, 10)
    assert not merged.block("allowed", batch=0)[:, 6:].any()
    assert not merged.block(batch=0)[6:].any()
    torch.testing.assert_close(merged.block(batch=1), random().block(batch=1), **rounding(random()).weights)


def test_it_is_computed_where_it_is_looked_at() -> None:
    """No (Q, K): an attention of thirty thousand pieces gives a row at once."""
    n = 30_000
    q, k = torch.randn(2, n, 4)
    merged = Attention(q, k, is_causal=True).merge([at // 3 for at in range(n)])
    row = merged.block(queries=6_000)
    assert row.shape == (1, 10_000)
    assert float(row.sum()) == approx(1, rounding(Attention(q, k)).weights)
    assert not row[0, 6_001:].any()


def test_any_block_is_that_of_the_whole() -> None:
    att = random(is_causal=True)
    merged = att.merge(IDS)
    whole = merged.block()
    some = merged.block(queries=[5, 0, 2], keys=[4, 1])
    within = rounding(att).weights
    torch.testing.assert_close(some, whole[[5, 0, 2]][:, [4, 1]], **within)
    seen = merged.overview(size=3)
    torch.testing.assert_close(seen.values, torch.nn.functional.max_pool2d(whole[None], 2)[0], **within)


@pytest.mark.parametrize("rules", [{"is_causal": True}, {"mask": masks.sliding_window(2)}])
def test_what_is_blocked_is_not_among_the_strongest(rules: dict[str, Any]) -> None:
    merged = random(**rules).merge(IDS)
    keys, weights = merged.top_keys(2)
    allowed = merged.block("allowed", queries=2)[0]
    assert len(keys) == int(allowed.sum())
    assert bool(allowed[keys].all())
    assert torch.equal(weights, merged.block(queries=2)[0, keys])


@pytest.mark.parametrize(
    ("words", "error", "says"),
    [
        ([0] * 9, ValueError, "9 entries but there are 10 positions"),
        ([0, 1, 0, *range(2, 9)], ValueError, r"words\[2\] is word 0 again"),
        ("words", TypeError, "give encoding.word_ids"),
        ([0.5] * 10, TypeError, r"words\[0\] is 0.5"),
        ([[0] * 10] * 3, ValueError, "3 lists but there are 2 samples"),
    ],
)
def test_words_that_do_not_fit(words: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        random().merge(words)


def test_other_keys_need_words_of_their_own() -> None:
    with pytest.raises(ValueError, match="key_words="):
        Attention(torch.randn(2, 4), torch.randn(3, 4)).merge([0, 1])


# In the widget.


def shown(**more: Any) -> AttentionWidget:
    att = random(is_causal=True)
    return AttentionWidget.from_attention(att, tokens=TOKENS, **more)


def test_the_widget_merges_on_demand_and_takes_the_pins_along() -> None:
    w = shown(query=4, key=1)
    assert w.facts["has_pieces"]
    w.pieces = "words"
    assert (w.facts["queries"], w.facts["keys"], w.facts["stages"]) == (6, 6, ["weights"])
    assert (w.query, w.key, w.pins) == (2, 0, [(2, 0)])
    assert w.get_state("tokens")["tokens"]["text"] == b"embedthemillers[SEP]ariver"
    wanted = by_definition(random(is_causal=True).block())[2]
    torch.testing.assert_close(w.weights(2), wanted, **rounding(random()).weights)
    w.pieces = "pieces"
    assert (w.facts["queries"], w.query, w.key) == (10, 3, 0)
    assert w.get_state("tokens")["tokens"]["length"] == 10


def test_other_rules_come_before_the_merging() -> None:
    w = shown(pieces="words", what_if={"temperature": 0.5})
    att = random(is_causal=True).what_if({"temperature": 0.5})
    torch.testing.assert_close(w.weights(2), by_definition(att.block())[2], **rounding(att).weights)
    w.what_if = {}
    wanted = by_definition(random(is_causal=True).block())[2]
    torch.testing.assert_close(w.weights(2), wanted, **rounding(random()).weights)


def test_other_tokens_are_other_words() -> None:
    w = shown(pieces="words")
    w.tokens = [token.removeprefix("##") for token in TOKENS]
    assert w.facts["queries"] == 10
    assert not w.facts["has_pieces"]


def test_without_tokens_there_are_no_words() -> None:
    with pytest.raises(ValueError, match="no tokens: give tokens= as well"):
        AttentionWidget.from_attention(random(), pieces="words")


def test_a_front_end_may_merge_and_nothing_else() -> None:
    w = shown(query=4)
    w.set_state({"pieces": "words"})
    assert (w.pieces, w.query) == ("words", 2)
    w.set_state({"pieces": "syllables"})
    assert w.pieces == "words"


def test_layers_of_another_length_stay_in_pieces() -> None:
    from attnwidget import AttentionStack

    short = Attention(*torch.randn(2, 2, 4, 5, 8, dtype=torch.float64))
    w = AttentionWidget.from_attention(AttentionStack([random(), short]), tokens=TOKENS, pieces="words")
    assert w.facts["queries"] == 6
    w.layer = 1
    assert w.facts["queries"] == 5


def test_pieces_of_any_sample_can_be_merged() -> None:
    q = torch.randn(2, 1, 4, 8)
    w = AttentionWidget(q, q, tokens=[["[CLS]", "the", "bank", "[SEP]"], ["[CLS]", "em", "##bed", "[SEP]"]])
    assert w.facts["has_pieces"]
    assert not AttentionWidget(q, q, tokens=["[CLS]", "the", "bank", "[SEP]"]).facts["has_pieces"]


def test_a_stage_that_words_do_not_have_is_refused_with_the_way_back() -> None:
    w = shown(pieces="words")
    with pytest.raises(ValueError, match=r'so scaled is not known: ask single heads and .*w\.pieces = "pieces"'):
        w.stage = "scaled"
    w.pieces = "pieces"
    w.stage = "scaled"
    assert w.stage == "scaled"


def test_an_attention_knows_nothing_of_widgets_where_it_refuses_a_stage() -> None:
    one = Attention(*torch.randn(2, 3, 4)).merge(["a", "em", "##bed"])
    with pytest.raises(OnlyWeightsError, match=r"so scores is not known: ask single heads and subword tokens$"):
        one.block("scores")
