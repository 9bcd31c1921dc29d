"""A change of the scores that rounding hides in every single row is found over all rows of a call."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnwidget._capture.call.call_rules import CallRules
from attnwidget._capture.verify import verification
from attnwidget._capture.verify.verification import differs, sample_output

N = 64
DISTANCE = (torch.arange(N)[:, None] - torch.arange(N)).abs()


def tensors(dtype: torch.dtype, size: float, *, alike: bool = False, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k, v of a call whose scaled scores have a standard deviation; perhaps all its queries are alike."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, 8, N, 16, generator=generator) for _ in range(3))
    q = q[:, :, :1].expand_as(q) if alike else q
    return (size * q).to(dtype), k.to(dtype), v.to(dtype)


def is_found(q: Tensor, k: Tensor, v: Tensor, scores: Tensor) -> bool:
    """Return whether an output that these scores give is told from that of q, k and v."""
    sample = sample_output(scores.softmax(-1) @ v, q, k, v)
    assert sample is not None
    rules = CallRules(N, N, 0, False, None, None)
    return bool(differs(sample, q, k, v, scale=None, softcap=None, rules=rules, first=0))


CHANGES = {
    "a temperature": lambda scores: scores / 1.04,
    "a softcap": lambda scores: 120 * (scores / 120).tanh(),
    "a bias by distance": lambda scores: scores - (0.006 * DISTANCE).to(scores),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_no_single_row_shows_the_rows_of_a_call_show_together(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = tensors(torch.bfloat16, 10.0)
    scores = CHANGES[change](q @ k.mT / 4)
    assert is_found(q, k, v, scores)
    monkeypatch.setattr(verification, "follow_a_change", lambda rows: torch.zeros((), dtype=torch.bool))
    assert not is_found(q, k, v, scores)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("size", [0.3, 3.0, 30.0, 300.0])
def test_rounding_is_no_change_even_where_all_rows_round_alike(size: float, alike: bool, dtype: torch.dtype) -> None:
    for seed in range(5):
        q, k, v = tensors(dtype, size, alike=alike, seed=seed)
        assert not is_found(q, k, v, q @ k.mT / 4)
        assert not is_found(q, k, v, q / 4 @ k.mT)
