"""Sweeps of the head size against the dense formula, and the cost of growing."""

from __future__ import annotations

import pytest
import torch

from attnwidget import scaling


def test_a_sweep_is_the_dense_formula() -> None:
    q, k = torch.randn(2, 20, 64, dtype=torch.float64)
    steps = scaling.sweep(q, k, sizes=[1, 8, 64, 128])
    assert [step.head_size for step in steps] == [1, 8, 64]
    for step in steps:
        d = step.head_size
        scores = q[:, :d] @ k[:, :d].mT
        for factor, prefix in ((d**-0.5, ""), (1.0, "unscaled_")):
            p = torch.softmax(scores * factor, 1)
            entropy = -(p * p.log2()).sum(1).mean()
            assert getattr(step, f"{prefix}entropy") == pytest.approx(float(entropy))
            assert getattr(step, f"{prefix}peak") == pytest.approx(float(p.amax(1).mean()))
            assert getattr(step, f"{prefix}sensitivity") == pytest.approx(float((p * (1 - p)).sum(1).mean()))
            torch.testing.assert_close(getattr(step, f"{prefix}weights"), p[:16, :16])
        assert step.scores_variance == pytest.approx(float(scores.var()))
        assert step.scaled_variance == pytest.approx(float((scores / d**0.5).var()))


def test_fresh_numbers_follow_the_theory() -> None:
    steps = scaling.sweep(queries=256, sizes=[4, 64, 1024])
    for step in steps:
        assert step.scores_variance == pytest.approx(step.theory, rel=0.15)
        assert step.scaled_variance == pytest.approx(1, rel=0.15)
    assert steps[-1].unscaled_peak > 0.9 > 0.1 > steps[-1].peak
    again = scaling.sweep(queries=256, sizes=[4, 64, 1024])
    assert [step.scores_variance for step in again] == [step.scores_variance for step in steps]


def test_what_cannot_be_swept() -> None:
    q = torch.randn(3, 4)
    with pytest.raises(ValueError, match="one of q and k is None"):
        scaling.sweep(q)
    with pytest.raises(ValueError, match="give at least one size up to that"):
        scaling.sweep(q, q, sizes=[8])
    with pytest.raises(ValueError, match="give one head"):
        scaling.sweep(q, torch.randn(3, 5))


def test_cost_counts_bytes_and_measures_time() -> None:
    (found,) = scaling.cost([96], head_size=16, runs=2)
    assert (found.length, found.dense_bytes, found.seen_bytes) == (96, 96 * 96 * 4, 2 * 96 * 16 * 4)
    assert min(found.dense_seconds, found.fused_seconds, found.seen_seconds) > 0
    with pytest.raises(ValueError, match="runs"):
        scaling.cost([4], runs=0)
