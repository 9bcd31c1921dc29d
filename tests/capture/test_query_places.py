"""A query's own place among the keys, where a cache held keys before it: what metrics compare it with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from captured import DECODERS, GPT2, SEQUENCES, build
from tolerance import rounding
from torch import Tensor

from attnwidget import Attention, Capture, capture
from attnwidget._engine.base import Part

transformers = pytest.importorskip("transformers")

IDS = torch.randint(3, 9, (2, 21), generator=torch.Generator().manual_seed(5))


def second_turn(**how: Any) -> Capture:
    """Nine queries after twelve keys that were read before the block."""
    model, cache = build(DECODERS["Llama"], "sdpa"), transformers.DynamicCache()
    with torch.no_grad():
        model(IDS[:, :12], past_key_values=cache)
        with capture(model, **how) as cap:
            model(IDS[:, 12:], past_key_values=cache)
    return cap


def expected(w: Tensor, ids: list[int], first: int) -> dict[str, float]:
    """The metrics of one head from its weights (Q, K), query i at key `first` + i; all queries count."""
    rows = range(len(w))
    found: dict[str, list[float]] = {"itself": [], "previous_token": [], "mean_distance": [], "induction": []}
    for i in rows:
        own = first + i
        found["itself"].append(float(w[i, own]))
        found["previous_token"].append(float(w[i, own - 1]))
        found["mean_distance"].append(float(sum(abs(j - own) * w[i, j] for j in range(own + 1))))
        after = [j for j in range(1, own) if ids[j - 1] == ids[own]]
        if after:
            found["induction"].append(float(w[i, after].sum()))
    return {name: sum(values) / len(values) for name, values in found.items()}


@pytest.mark.parametrize("how", [{}, {"queries": slice(-4, None)}])
def test_metrics_know_how_many_keys_came_before(how: dict[str, Any], tmp_path: Path) -> None:
    cap = second_turn(**how)
    first = 21 - cap.attention[0].shape.Q
    words = [str(one) for one in IDS[1].tolist()]
    cap.save(tmp_path / "turn.safetensors")
    for att in (cap.attention[1], Capture.load(tmp_path / "turn.safetensors").attention[1]):
        found = att.metrics(batch=1, head=2, tokens=words)
        wanted = expected(att.block(batch=1, head=2).double(), IDS[1].tolist(), first)
        for name, value in wanted.items():
            torch.testing.assert_close(torch.tensor(getattr(found, name)), torch.tensor(value), **rounding(att).weights)
        combined = att.combine([2], "mean").metrics(batch=1, tokens=words)
        torch.testing.assert_close(torch.tensor(combined.previous_token), torch.tensor(found.previous_token))
        assert att.what_if({"scale": 0.0}).metrics(batch=1, head=2).previous_token is not None


def test_keys_elsewhere_are_no_queries_places() -> None:
    model = build(SEQUENCES["BART"], "sdpa")
    with torch.no_grad(), capture(model) as cap:
        model(input_ids=IDS, decoder_input_ids=IDS[:, :9])
    assert cap.cross[0].part == Part(elsewhere=True)
    assert cap.cross[0].metrics(head=0).previous_token is None
    assert Attention(torch.randn(3, 4), torch.randn(5, 4)).metrics().previous_token is None


def test_a_prompt_and_its_continuation_are_no_part() -> None:
    model = build(GPT2, "sdpa")
    with torch.no_grad(), capture(model) as cap:
        model.generate(IDS, max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert cap.attention[0].part is None
    assert cap.attention[0].metrics(head=1).previous_token is not None
