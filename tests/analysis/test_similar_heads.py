"""Heads that are like one, beside a plain loop, and where the answer is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tolerance import eps, roundings

from attnwidget import Attention, AttentionStack
from attnwidget._analysis.metrics import NAMES

WITHIN = roundings(1024) * eps(torch.float64) * 1e3


def stack() -> AttentionStack:
    make = torch.Generator().manual_seed(4)
    layers = []
    for _ in range(3):
        q, k = torch.randn(2, 1, 4, 24, 8, generator=make, dtype=torch.float64) * 2
        layers.append(Attention(q, k, is_causal=True))
    return AttentionStack(layers)


TOKENS = list("abcdef") * 4


def test_distances_are_what_a_loop_finds() -> None:
    found = stack().similar(1, 2, top=None, tokens=TOKENS)
    assert len(found) == 11
    records = stack().metrics(tokens=TOKENS)
    own = next(one for one in records if (one["layer"], one["head"]) == (1, 2))
    values = {name: [one[name] for one in records] for name in NAMES if own[name] is not None}
    spread = {name: float(np.std(column)) for name, column in values.items() if np.std(column) > 1e-4}
    mine = stack()[1].block(head=2).flatten()
    for one in found:
        other = next(two for two in records if (two["layer"], two["head"]) == (one["layer"], one["head"]))
        wanted = np.sqrt(np.mean([((other[name] - own[name]) / spread[name]) ** 2 for name in spread]))
        assert one["metrics"] == pytest.approx(wanted, rel=WITHIN)
        theirs = stack()[one["layer"]].block(head=one["head"]).flatten()
        cosine = float(mine @ theirs / mine.norm() / theirs.norm())
        assert one["picture"] == pytest.approx(1 - cosine, rel=WITHIN, abs=WITHIN)
    for by in ("metrics", "picture"):
        distances = [one[by] for one in stack().similar(1, 2, by=by, top=None, tokens=TOKENS)]  # type: ignore[arg-type]
        assert distances == sorted(distances)
    assert [one["rank"] for one in found] == list(range(1, 12))


def test_the_same_head_elsewhere_is_the_nearest() -> None:
    first = stack()
    q, k = (x.clone() for x in (first[0].q, first[0].k) if x is not None)
    assert first[2].q is not None
    assert first[2].k is not None
    q[:, 3], k[:, 3] = first[2].q[:, 1], first[2].k[:, 1]
    twin = AttentionStack([Attention(q, k, is_causal=True), first[1], first[2]])
    nearest = twin.similar("layer 2", 1, top=1)[0]
    assert (nearest["layer"], nearest["head"], nearest["rank"]) == (0, 3, 1)
    assert nearest["picture"] == pytest.approx(0, abs=WITHIN)
    assert nearest["metrics"] == pytest.approx(0, abs=WITHIN)


def test_layers_of_other_lengths_have_no_picture_in_common() -> None:
    other = Attention(*torch.randn(2, 1, 2, 9, 8), is_causal=True)
    both = AttentionStack([*stack()[:1], other])
    found = both.similar(0, 0, top=None)
    assert {one["layer"]: one["picture"] is None for one in found} == {0: False, 1: True}
    assert all(one["metrics"] is not None for one in found)


def test_what_is_not_there() -> None:
    with pytest.raises(IndexError, match="head 9 is not there"):
        stack().similar(0, 9)
    with pytest.raises(IndexError, match="layer 5 is not there"):
        stack().similar(5, 0)
    with pytest.raises(ValueError, match="did you mean 'picture'"):
        stack().similar(0, 0, by="pictures")  # type: ignore[arg-type]
