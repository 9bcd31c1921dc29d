"""What several tests of the engine share."""

from __future__ import annotations

import pytest

from attnwidget._engine import (
    by_attention,
    cache_policies,
    cost,
    dense_masks,
    fused_pass,
    merged_words,
    overview,
    pooling,
    segment_sums,
    softmax,
    stages,
    stripe_choice,
    stripes,
)
from attnwidget._rules import rules

QUERIES, KEYS = 4, 5  # of a block: a few tokens then have as many blocks as thousands have


@pytest.fixture
def tiny_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut blocks of 4 queries and 5 keys, so that short attention goes the ways of long attention."""
    for module in (by_attention, cache_policies, cost, dense_masks, overview, pooling, segment_sums, softmax, stages,
                   stripe_choice, stripes):  # fmt: skip
        for name, size in (("QUERIES", QUERIES), ("KEYS", KEYS)):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, size)
    monkeypatch.setattr(stripe_choice, "MOST_QUERIES", QUERIES)
    monkeypatch.setattr(fused_pass, "CELLS_AT_ONCE", QUERIES * KEYS)
    monkeypatch.setattr(rules, "MIN_INNER_KEYS", 1)
    monkeypatch.setattr(dense_masks, "PRODUCT_CELLS", QUERIES * KEYS)
    monkeypatch.setattr(dense_masks, "MAX_CELLS_AT_ONCE", 60)
    monkeypatch.setattr(overview, "SCATTERED_QUERIES", 3)
    monkeypatch.setattr(overview, "COMBINED_QUERIES", 8)
    monkeypatch.setattr(overview, "LEAST_QUERIES", 2)
    monkeypatch.setattr(segment_sums, "CELLS", QUERIES * KEYS)
    monkeypatch.setattr(segment_sums, "MAX_KEYS", 2 * KEYS)
    monkeypatch.setattr(segment_sums, "LONG_RUN", 3)
    for module in (stages, merged_words):
        monkeypatch.setattr(module, "FEW_CELLS", 1)
    monkeypatch.setattr(merged_words, "ROWS_AT_ONCE", 3)
    monkeypatch.setattr(merged_words, "KEYS_AT_ONCE", 4)
    monkeypatch.setattr(merged_words, "FEW_WORDS", 1)
