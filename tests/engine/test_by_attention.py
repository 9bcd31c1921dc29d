"""Means of maps and masses of segments from torch's fused attention: as the blocks that stream past have them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from reference import dense, pooled
from tolerance import rounding
from torch.testing import assert_close

from attnwidget import masks, segments
from attnwidget._engine import by_attention, fused, overview, segment_sums
from attnwidget.attention import Attention

B, H, G, N, D = 2, 6, 3, 90, 16
AT = {"batch": 1, "head": 4}


@pytest.fixture(autouse=True)
def _short_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short attention takes as many calls as long attention: rows of 40 queries, and 16 classes at once."""
    monkeypatch.setattr(by_attention, "CLASSES", 16)
    for module in (overview, segment_sums):
        monkeypatch.setattr(module, "QUERIES", 40)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Have a CPU take the way of a GPU; the shapes of the values that torch's attention is called with."""
    found: list[tuple[int, ...]] = []
    attend = F.scaled_dot_product_attention

    def counting(q: Any, k: Any, v: Any, **how: Any) -> Any:
        found.append(tuple(v.shape[-2:]))
        return attend(q, k, v, **how)

    monkeypatch.setattr(by_attention, "DEVICES", ("cpu",))
    monkeypatch.setenv(fused.VARIABLE, "0")
    monkeypatch.setattr(F, "scaled_dot_product_attention", counting)
    return found


def tensors(on: str = "cpu", queries: int = N, keys: int = N) -> tuple[torch.Tensor, torch.Tensor]:
    make = torch.Generator().manual_seed(queries + keys)
    q, k = torch.randn(B, H, queries, D, generator=make), torch.randn(B, G, keys, D, generator=make)
    return q.to(on), k.to(on)


def matrix(on: str) -> torch.Tensor:
    return torch.randn(N, N, generator=torch.Generator().manual_seed(5)).to(on)


CASES: dict[str, Callable[[str], Attention]] = {
    "plain": lambda on: Attention(*tensors(on)),
    "causal": lambda on: Attention(*tensors(on), is_causal=True),
    "window": lambda on: Attention(*tensors(on), is_causal=True, window=7),
    "fewer keys": lambda on: Attention(*tensors(on, N, 30), mask=masks.causal_lower_right(N, 30)),  # 60 empty rows
    "fewer queries": lambda on: Attention(*tensors(on, 30, N), mask=masks.causal_lower_right(30, N)),
    "padding": lambda on: Attention(*tensors(on), mask=masks.padding([N, 51])),
    "all padding": lambda on: Attention(*tensors(on), mask=masks.padding([N, 0])),
    "mask of bools": lambda on: Attention(*tensors(on), mask=matrix(on) < 0.3),
    "function": lambda on: Attention(*tensors(on), mask=lambda b, h, q, k: (q + 2 * k) % 7 > 2),
    "bias": lambda on: Attention(*tensors(on), bias=matrix(on), is_causal=True),
    "bias alone": lambda on: Attention(*tensors(on), bias=matrix(on)),
    "bias of heads": lambda on: Attention(*tensors(on), bias=matrix(on)[:H, None, :] * torch.ones(N, 1, device=on)),
    "bfloat16": lambda on: Attention(*(x.bfloat16() for x in tensors(on)), is_causal=True),
    "another scale": lambda on: Attention(*tensors(on), scale=0.7),
}


def streamed(build: Callable[[str], Attention], read: Callable[[Attention], Any], on: str = "cpu") -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_attention, "DEVICES", ())
        return read(build(on))


@pytest.mark.parametrize("size", [100, 23, 1])
@pytest.mark.parametrize("case", CASES)
def test_the_mean_of_a_map_is_that_of_streamed_blocks(case: str, size: int, calls: list[tuple[int, ...]]) -> None:
    found = CASES[case]("cpu").overview(**AT, pool="mean", size=size)
    assert calls or case == "all padding"
    assert all(columns == by_attention.CLASSES for _, columns in calls)
    expected = streamed(CASES[case], lambda att: att.overview(**AT, pool="mean", size=size))
    assert_close(found.values, expected.values, rtol=1e-5, atol=1e-8)
    assert float((found.values - expected.values).abs().max()) <= 1e-6
    assert torch.equal(found.allowed, expected.allowed)


def test_it_is_the_mean_of_the_dense_matrix(calls: list[tuple[int, ...]]) -> None:
    q, k = tensors()
    att = Attention(q, k, is_causal=True)
    values, _ = pooled(
        dense(q[1, 4], k[1, 2], scale=0.25, allowed=torch.ones(N, N).tril().bool()), "weights", "mean", 20
    )
    found = att.overview(**AT, pool="mean", size=20).values.double()
    assert_close(found, values, **rounding(att).pooled("weights", 5 * 5))
    assert len(calls) == 4  # 8 bins of the first 40 queries, 16 of the next, and 18 of the rest, in two calls


@pytest.mark.parametrize("case", ["plain", "causal", "window", "fewer keys", "padding", "bias"])
def test_the_columns_of_a_mean_are_what_keys_receive(case: str, calls: list[tuple[int, ...]]) -> None:
    """Column sums come of the same calls: of up to as many keys as there are bins, one by one."""

    def received(att: Attention, size: int) -> torch.Tensor:
        found = att.overview(**AT, pool="mean", size=size)
        rows = torch.tensor([len(part) for part in torch.arange(att.shape.Q).split(found.query_bin)])
        return (found.values.double() * rows[:, None]).sum(0)  # a mean over the keys of a bin, a sum over queries

    att = CASES[case]("cpu")
    weights = att.block(**AT).double()
    for size in (N, 10):
        calls.clear()
        found = received(att, size)
        assert calls
        bins = weights.sum(0).split(-(-att.shape.K // size))
        expected = torch.stack([part.mean() for part in bins])
        assert_close(found, expected, rtol=2e-6, atol=1e-6)
        assert_close(found, streamed(CASES[case], lambda one, size=size: received(one, size)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("without", [(), ("sink", "self")])
@pytest.mark.parametrize("case", [name for name in CASES if not name.startswith("fewer")])
def test_masses_of_segments_are_those_of_streamed_blocks(
    case: str, without: tuple[str, ...], calls: list[tuple[int, ...]]
) -> None:
    named = segments({"one": (0, 10), "two": (10, 11), "three": (13, 60), "last": (88, 90)}, length=N)

    def read(att: Attention) -> torch.Tensor:
        return att.by_segment(named, batch=1, without=without).values

    found, expected = read(CASES[case]("cpu")), streamed(CASES[case], read)
    assert calls or case == "all padding"
    assert_close(found, expected, rtol=1e-5, atol=1e-7, equal_nan=True)
    assert float((found - expected).nan_to_num().abs().max()) <= 1e-6


def test_masses_where_no_query_has_a_key_of_its_own(calls: list[tuple[int, ...]]) -> None:
    """As between two texts: each key counts in its segment."""
    asking = segments({"question": (0, 20)}, length=30)
    named = segments({"one": (0, 10), "two": (13, 40)}, length=N)

    def build(on: str) -> Attention:
        return Attention(*tensors(on, 30, N)).as_part(None, None, None, elsewhere=True)

    found = build("cpu").by_segment(asking, named, without="self").values
    assert calls
    assert_close(found, streamed(build, lambda att: att.by_segment(asking, named, without="self").values))
    assert float(found[..., -2:].nan_to_num().abs().max()) > 0.1


def test_a_querys_own_key_is_apart_to_the_last_digits(calls: list[tuple[int, ...]]) -> None:
    """Where nearly all of a weight is the own key's, a difference would be rounding."""
    q = torch.randn(40, 16, generator=torch.manual_seed(0)) * 3
    att = Attention(q, q, is_causal=True)
    classes = torch.arange(40) % 3 - 1  # some in none
    own = torch.arange(40)
    own[7], own[9] = -1, 3
    others, mine = by_attention.own_apart(att.head(0, 0), range(40), classes, 2, own)
    weights = dense(q, q, scale=0.25, allowed=torch.ones(40, 40).tril().bool())["weights"]
    at = weights.gather(1, own.clamp(min=0)[:, None])[:, 0].masked_fill(own < 0, 0)
    assert_close(mine.double(), at, rtol=1e-4, atol=1e-12)
    rest = weights.clone()
    rest[own >= 0, own[own >= 0]] = 0
    expected = torch.stack([rest[:, classes == one].sum(1) for one in range(2)])
    assert_close(others.double(), expected, rtol=1e-3, atol=1e-12)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Attention(*tensors(), softcap=3.0),
        lambda: Attention(*tensors(), sinks=0.5),
        lambda: Attention(*tensors(), bias=lambda s, b, h, q, k: s * 0.5),
        lambda: Attention(*(x.double() for x in tensors())),
        lambda: Attention.from_weights(torch.ones(9, 9) / 9),
        lambda: Attention(tensors()[0], tensors()[1].index_fill(2, torch.tensor([5]), torch.nan)),
        lambda: Attention(tensors()[0], tensors()[1] * 1e30),
    ],
    ids=["softcap", "sinks", "function of scores", "float64", "weights", "NaN", "beyond float32"],
)
@pytest.mark.filterwarnings("ignore:q, k or v")
def test_what_torchs_attention_does_not_compute_streams_past(
    build: Callable[[], Attention], calls: list[tuple[int, ...]]
) -> None:
    build().overview(pool="mean")
    assert calls == []


def test_the_maximum_and_a_cpu_stay_with_streamed_blocks(calls: list[tuple[int, ...]]) -> None:
    Attention(*tensors()).overview(pool="max")
    streamed(CASES["plain"], lambda att: att.overview(pool="mean"))
    assert calls == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("case", CASES)
def test_on_a_gpu_it_is_what_a_cpu_streams(case: str) -> None:
    found = CASES[case]("cuda").overview(**AT, pool="mean", size=23)
    expected = streamed(CASES[case], lambda att: att.overview(**AT, pool="mean", size=23))
    assert float((found.values.cpu() - expected.values).abs().max()) <= 1e-6
    assert torch.equal(found.allowed.cpu(), expected.allowed)
