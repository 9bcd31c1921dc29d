"""Each question to an `Attention` is answered of the sample and head that it names, and of nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tolerance import eps
from torch import Tensor
from torch.testing import assert_close

from attnwidget import Attention, segments

B, H, G, N, D, Dv = 2, 6, 3, 11, 5, 7
MAKE = torch.Generator().manual_seed(2)
q, k, v, bias, w_o, grad = (
    torch.randn(*shape, generator=MAKE, dtype=torch.float64)
    for shape in ((B, H, N, D), (B, G, N, D), (B, G, N, Dv), (H, N, N), (H, Dv, 4), (N, Dv))
)
SINKS = torch.tensor([0.5, -1.0, 2.0, -3.0, 1.5, 0.0], dtype=torch.float64)
PADDING = torch.arange(N) < torch.tensor([[N], [N - 2]])
PARTS = segments({"a": (2, 5), "b": (5, 9)}, length=N)
TOKENS = list("abcabdabcad")
PATH: dict[str, Any] = {
    "direction": torch.randn(B, 4, generator=MAKE, dtype=torch.float64),
    "scale": torch.rand(B, N, generator=MAKE, dtype=torch.float64) + 0.5,
    "grad_output": torch.randn(B, H, N, Dv, generator=MAKE, dtype=torch.float64),
}


def made() -> Attention:
    att = Attention(
        q, k, v, bias=bias, sinks=SINKS, mask=PADDING, mask_dims="bk", is_causal=True, window=9, softcap=4.0, scale=0.7
    )
    return att.carrying(w_o=w_o, **PATH)


def alone(batch: int, head: int) -> Attention:
    """Return one head of one sample as an attention of its own."""
    sample, of, group = slice(batch, batch + 1), slice(head, head + 1), slice(head // 2, head // 2 + 1)
    rules = {"is_causal": True, "window": 9, "softcap": 4.0, "scale": 0.7}
    att = Attention(
        q[sample, of], k[sample, group], v[sample, group], bias=bias[of], sinks=SINKS[of], mask=PADDING[sample],
        mask_dims="bk", **rules,
    )  # fmt: skip
    path = {name: x[sample, of] if name == "grad_output" else x[sample] for name, x in PATH.items()}
    return att.carrying(w_o=w_o[of], **path)


QUESTIONS: dict[str, Callable[..., Any]] = {
    "block": lambda att, **at: att.block(queries=[3, 10], keys=slice(1, 8), **at),
    "block of what weights carry": lambda att, **at: att.block("logit", **at),
    "block of allowed cells": lambda att, **at: att.block("allowed", **at),
    "block of the sink": lambda att, **at: att.block("masked", keys="sink", queries=[3, 10], **at),
    "sink_weights": lambda att, **at: att.sink_weights(**at),
    "log_normalizer": lambda att, **at: att.log_normalizer(**at),
    "output": lambda att, **at: att.output(**at),
    "overview": lambda att, **at: att.overview(size=4, pool="mean", stage="masked", **at),
    "top_keys": lambda att, **at: att.top_keys(8, 3, **at),
    "by_segment": lambda att, **at: att.by_segment(PARTS, measure="lift", **{"head": 0, **at}),
    "by_segment of a stage": lambda att, **at: att.by_segment([4, 7], PARTS, stage="saliency", **{"head": 0, **at}),
    "by_segment without": lambda att, **at: att.by_segment(PARTS, without=("sink", "self"), **{"head": 0, **at}),
    "keep window": lambda att, **at: att.keep("window", 5, sinks=1, **at),
    "keep heavy_hitters": lambda att, **at: att.keep("heavy_hitters", 5, recent=1, **at),
    "keep snapkv": lambda att, **at: att.keep("snapkv", 5, prompt=9, observe=2, **at),
    "check": lambda att, **at: [vars(one) for one in att.check(TOKENS, **at)],
    "explain": lambda att, **at: att.explain(8, 3, w_o=w_o[0], **at),
    "gradients": lambda att, **at: att.gradients(grad, **at),
    "jacobian": lambda att, **at: att.jacobian(8, **at),
    "statistics": lambda att, **at: att.statistics(**at),
    "metrics": lambda att, **at: att.metrics(tokens=TOKENS, rows=3, **at),
}


def same(found: Any, wanted: Any, where: str = "") -> None:
    """Raise unless two answers are equal, numbers but for rounding."""
    bound = {"rtol": 1e5 * eps(torch.float64), "atol": 1e5 * eps(torch.float64)}
    if isinstance(wanted, Tensor):
        assert_close(found, wanted, equal_nan=True, **bound, msg=lambda told: f"{where}: {told}")
    elif dataclasses.is_dataclass(wanted):
        fields = {field.name for field in dataclasses.fields(wanted)} - {
            "mask"
        }  # that of a policy has a head of its own
        same({n: getattr(found, n) for n in fields}, {n: getattr(wanted, n) for n in fields}, where)
    elif isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), where
        for name in wanted:
            same(found[name], wanted[name], f"{where} {name}")
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted), where
        for at, (one, other) in enumerate(zip(found, wanted, strict=True)):
            same(one, other, f"{where} {at}")
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=bound["rtol"], abs=bound["atol"], nan_ok=True), where
    else:
        assert found == wanted, where


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_is_answered_of_its_sample_and_head(name: str) -> None:
    ask, att = QUESTIONS[name], made()
    for batch, head in ((1, 4), (0, 3), (1, 0)):
        wanted = ask(alone(batch, head))
        same(ask(att, batch=batch, head=head), wanted, name)
        same(ask(att, batch=batch - B, head=head - H), wanted, name)
    same(ask(att), ask(alone(0, 0)), name)
    if "allowed" not in name and name != "check":
        with pytest.raises(AssertionError):  # else the samples and heads would be too much alike for this test
            same(ask(att, batch=1, head=4), ask(att, batch=1, head=3))
        if "sink" not in name.split(" of the "):
            with pytest.raises(AssertionError):
                same(ask(att, batch=1, head=4), ask(att, batch=0, head=4))


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("at", [{"batch": B}, {"batch": -B - 1}, {"head": H}, {"head": -H - 1}], ids=str)
def test_a_sample_or_head_that_is_not_there_is_refused(name: str, at: dict[str, int]) -> None:
    with pytest.raises(IndexError, match="is not there: this attention has"):
        QUESTIONS[name](made(), **at)


def test_masses_of_all_heads_are_those_of_each() -> None:
    att = made()
    found = att.by_segment(PARTS, batch=1)
    assert found.values.shape[0] == H
    for head in range(H):
        same(found.values[head], att.by_segment(PARTS, batch=1, head=head).values)


def test_heads_and_words_are_put_together_in_their_sample() -> None:
    att = made()
    heads = torch.stack([att.block(batch=1, head=head) for head in range(H)])
    same(att.combine([1, 4, 5], "max").block(batch=1), heads[[1, 4, 5]].amax(0))
    same(att.combine().block(batch=-1), heads.mean(0))
    words = att.merge([0, 0, 1, 2, 3, 3, 4, 5, 6, 7, 8])
    assert words.shape[:5] == (B, H, H, 9, 9)
    same(words.block(batch=1, head=4)[0, 0], heads[4, :2, :2].sum(1).mean())


def test_what_is_given_beside_sample_and_head_is_heard() -> None:
    att, at = made(), {"batch": 1, "head": 4}
    weights, values = att.block(**at), v[1, 2]
    explained = att.explain(8, 3, w_o=w_o[4], **at)
    same(explained.contribution, float((weights[8, 3] * values[3] @ w_o[4]).norm()))
    assert explained.contribution != att.explain(8, 3, **at).contribution
    assert att.metrics(rows=3, **at).rows == 3
    assert att.metrics(**at).same_token is None
    assert att.metrics(tokens=TOKENS, **at).same_token is not None
    keys, found = att.top_keys(8, 3, **at)
    same(found, weights[8].sort(descending=True).values[:3])
    same(weights[8, keys], found)
    same(att.gradients(**at).v, weights.sum(0)[:, None].expand(N, Dv))
    same(att.gradients(grad, **at).v, weights.mT @ grad)
    same(att.overview(size=2, stage="scaled", **at).values[1, 0], att.block("scaled", **at)[6:, :6].max())
    same(att.overview(size=2, pool="mean", **at).values[1, 0], weights[6:, :6].mean())
    row = weights[8]
    same(att.jacobian(8, **at), row.diag() - row[:, None] * row)


def test_what_is_not_said_is_the_first_sample_ten_keys_and_no_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    bad = q.clone()
    bad[1, 0, 3] = torch.nan
    kinds = [finding.kind for finding in Attention(bad, k, v).check()]
    assert ("nan" in kinds, kinds) == (False, [found.kind for found in Attention(bad, k, v).check(batch=0)])
    assert kinds != [finding.kind for finding in Attention(bad, k, v).check(batch=1)]
    assert Attention(q, k, v).top_keys(8)[0].shape == (10,)
    att = made()
    with ThreadPoolExecutor(1) as workers:
        att.overview(size=2, executor=workers)
    att.by_segment(PARTS)
    assert capsys.readouterr().err == ""
