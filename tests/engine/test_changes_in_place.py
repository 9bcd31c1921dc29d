"""Tensors that change in place: whatever was kept of them is computed anew, and nothing of before is shown."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tolerance import rounding
from torch import Tensor
from torch.testing import assert_close

from attnwidget import Attention, segments
from attnwidget._engine import overview, softmax
from attnwidget._engine.base import Head
from attnwidget._engine.level_cache import LevelCache, LevelKey
from attnwidget._engine.regions import TileAddress

B, H, G, N, D, Dv = 2, 6, 3, 12, 5, 7
PARTS = segments({"a": (2, 5), "b": (5, 9)}, length=N)

pytestmark = pytest.mark.filterwarnings("ignore:.*changed in place")


def tensors() -> dict[str, Tensor]:
    make = torch.Generator().manual_seed(3)
    found = {
        name: torch.randn(*shape, generator=make)
        for name, shape in (("q", (B, H, N, D)), ("k", (B, G, N, D)), ("v", (B, G, N, Dv)), ("bias", (H, N, N)))
    }
    found["mask"] = torch.rand(B, 1, N, N, generator=make) < 0.8
    found["sinks"] = torch.randn(H, generator=make)
    return found


def made(x: dict[str, Tensor]) -> Attention:
    return Attention(x["q"], x["k"], x["v"], bias=x["bias"], mask=x["mask"], sinks=x["sinks"], is_causal=True)


CHANGES: dict[str, Callable[[Tensor], Any]] = {
    "q": lambda x: x.mul_(-3),
    "k": lambda x: x[1, 2].mul_(40),
    "v": lambda x: x[:, :, ::2].neg_(),
    "bias": lambda x: x[4].triu_(-3),
    "mask": lambda x: x[1, 0, :, 3].logical_not_(),
    "sinks": lambda x: x.add_(torch.arange(H)),
}
ANSWERS: dict[str, Callable[[Attention], Any]] = {
    "block": lambda att: att.block(batch=1, head=4),
    "part of a block": lambda att: att.block("contribution", batch=1, head=4, queries=[11, 2], keys=range(1, 12)),
    "log-normalizers": lambda att: att.log_normalizer(1, 4),
    "output": lambda att: att.output(1, 4),
    "sink": lambda att: att.sink_weights(1, 4),
    "maximum": lambda att: att.overview(1, 4, size=5).values,
    "mean": lambda att: att.overview(1, 4, size=5, pool="mean", stage="contribution").values,
    "allowed": lambda att: att.overview(1, 4, size=12).allowed,
    "sampled rows": lambda att: overview.sampled(att, 1, 4, query_bin=3, key_bin=2).values,
    "segments": lambda att: att.by_segment(PARTS, batch=1, head=4).values,
    "statistics": lambda att: att.statistics(1, 4).entropy,
    "heads as one": lambda att: att.combine([1, 4], "max").block(batch=1),
    "words": lambda att: att.merge([0, 0, *range(1, 11)]).block(batch=1, head=4),
    "other rules": lambda att: att.what_if({"scale": 0.3, "drop_keys": [3]}).block(batch=1, head=4),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_answer_is_that_of_the_tensors_as_they_are(name: str) -> None:
    x = tensors()
    att = made(x)
    heads, words = att.combine([1, 4], "mean"), att.merge([0, 0, *range(1, 11)])
    changed = att.what_if({"softcap": 2.0})
    before = {of: ask(att) for of, ask in ANSWERS.items()}
    made_of_it = heads, words, changed
    was = [one.overview(1, 0, size=5).values for one in made_of_it]
    with torch.no_grad():
        CHANGES[name](x[name])
    fresh = made({name: tensor.clone() for name, tensor in x.items()})
    within = rounding(fresh, added=20.0)
    bound = {"rtol": 4 * within.weights["rtol"], "atol": 64 * within.weights["rtol"]}
    same = 0
    for of, ask in ANSWERS.items():
        found, wanted = ask(att), ask(fresh)
        assert_close(found, wanted, **bound, msg=lambda told, of=of: f"{of}: {told}")
        same += torch.equal(wanted, before[of])
    assert same < len(ANSWERS)  # else nothing has changed, and this test shows nothing
    anew = fresh.combine([1, 4], "mean"), fresh.merge([0, 0, *range(1, 11)]), fresh.what_if({"softcap": 2.0})
    for one, other in zip(made_of_it, anew, strict=True):
        assert_close(one.overview(1, 0, size=5).values, other.overview(1, 0, size=5).values, **bound)
    assert len(was) == 3


@pytest.mark.parametrize("policy", ["heavy_hitters", "tova", "snapkv"])
def test_what_a_cache_evicts_is_decided_anew(policy: str) -> None:
    make = torch.Generator().manual_seed(4)
    q, k = (torch.randn(B, heads, N, D, generator=make, dtype=torch.float64) * 2 for heads in (H, G))
    keep = {"keep": {"policy": policy, "budget": 5, "prompt": 9, "observe": 2}}
    att = Attention(q, k, is_causal=True).what_if(keep)
    before = att.block("allowed", batch=1, head=4)
    k.neg_()
    wanted = Attention(q.clone(), k.clone(), is_causal=True).what_if(keep)
    assert torch.equal(att.block("allowed", batch=1, head=4), wanted.block("allowed", batch=1, head=4))
    assert not torch.equal(before, wanted.block("allowed", batch=1, head=4))
    assert_close(att.block(batch=1, head=4), wanted.block(batch=1, head=4), **rounding(wanted).weights)


def test_a_level_that_was_begun_before_is_not_kept(tiny_blocks: None) -> None:
    x = tensors()
    att = made(x)
    levels = LevelCache(att, largest=6)
    build = levels.build(1, 4, seconds=0)
    next(build)
    assert not build.changed
    x["k"].mul_(2)
    assert build.changed
    for _ in build:
        pass
    assert levels.find(LevelKey(1, 4, "weights", "max")) is None
    list(levels.build(1, 4))
    assert levels.find(LevelKey(1, 4, "weights", "max")) is not None
    x["mask"][1, 0, :, 5].logical_not_()
    assert levels.find(LevelKey(1, 4, "weights", "max")) is None
    tile = levels.tile(1, 4, TileAddress(1, 0, 0)).values
    fresh = made({name: tensor.clone() for name, tensor in x.items()})
    assert_close(tile, overview.tile(fresh, 1, 4, TileAddress(1, 0, 0)).values, **rounding(fresh, added=9.0).weights)


def test_rows_that_were_half_read_before_a_change_are_not_known_after_it(tiny_blocks: None) -> None:
    x = tensors()
    att = made(x)
    steps = softmax.normalizing(Head(att, 1, 4), range(8, 12))
    next(steps)
    x["k"].mul_(2)
    softmax.run_to_end(steps)
    assert att.known_rows(1, 4, range(8, 12)) is None


def test_a_key_head_with_long_keys_is_not_taken_for_another() -> None:
    """Scores of one head are small enough to need no maximum; those of the next, of 600 times longer keys, overflow."""
    x = tensors()
    x["k"][:, 1] *= 600
    att = Attention(x["q"], x["k"])
    for batch in range(B):
        for head in (0, 2):
            assert att.log_normalizer(batch, head).isfinite().all()


def test_rows_of_a_pass_during_which_a_tensor_changed_are_not_known(tiny_blocks: None) -> None:
    x = tensors()
    att = made(x)
    steps = overview.passes(att, 1, 4, size=5, seconds=0)
    while steps.done < 8:
        next(steps)
    assert att.known_rows(1, 4, range(4)) is not None
    x["q"].neg_()
    assert att.known_rows(1, 4, range(4)) is None
    steps.finish()
    assert att.known_rows(1, 4, range(8, 12)) is None


def test_keys_that_have_grown_are_not_taken_for_short_ones() -> None:
    """How long the longest key is decides whether a maximum must be taken off the scores."""
    q, k = (tensors()[name] for name in ("q", "k"))
    att = Attention(q, k, scale=1.0)
    for _ in range(2):
        assert_close(att.block(batch=1, head=4), Attention(q, k.clone(), scale=1.0).block(batch=1, head=4))
        for pool in ("max", "mean"):
            wanted = Attention(q, k.clone(), scale=1.0).overview(1, 4, size=5, pool=pool).values
            assert_close(att.overview(1, 4, size=5, pool=pool).values, wanted)
        assert att.known_rows(1, 4, range(N)) is not None  # what is found of the tensors as they are is kept again
        k.mul_(1000)


def test_the_change_is_told_once_and_names_the_tensors() -> None:
    x = tensors()
    att = made(x)
    x["q"].add_(1)
    x["sinks"].add_(1)
    with pytest.warns(UserWarning, match=r"^q and sinks changed in place after this Attention was made"):
        att.block(batch=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        att.block(batch=1)


@pytest.mark.parametrize("kind", ["numpy", "a view of numpy", "inference"])
def test_changes_that_torch_does_not_count_are_noticed(kind: str) -> None:
    rng = np.random.default_rng(0)
    own = rng.standard_normal((3, 9, 8)).astype(np.float32)
    if kind == "inference":
        with torch.inference_mode():
            own = torch.from_numpy(own).clone()
    q, k, v = own if kind != "a view of numpy" else (x[:, None].swapaxes(0, 1) for x in own)
    att = Attention(q, k, v)
    att.log_normalizer()
    with torch.inference_mode(kind == "inference"):
        own[0, 2] *= 50
    with pytest.warns(UserWarning, match="q changed in place"):
        found = att.block("weights", queries=2, keys=[0, 1, 2, 3, 4, 5, 6, 8, 7])
    fresh = Attention(*(torch.as_tensor(np.asarray(x)).clone() for x in (q, k, v)))
    assert_close(found, fresh.block("weights", queries=2, keys=[0, 1, 2, 3, 4, 5, 6, 8, 7]))


def test_of_a_large_array_evenly_spread_numbers_are_read() -> None:
    q, k = np.random.default_rng(0).standard_normal((2, 1, 8, 4096, 64)).astype(np.float32)
    att = Attention(q, k)
    before = att.versions()
    assert att.versions() == before
    q[0, 3, 1024:2048] = 0
    assert att.versions() != before
