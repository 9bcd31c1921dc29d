"""Workers compute the same as this process, but for rounding."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import signal
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from killed import KilledOnce
from tolerance import Bound, assert_same_overview, rounding, sums
from torch import Tensor

from attnwidget import Attention, AttentionStack, Capture, capture, masks, segments
from attnwidget._capture.files import capture_file
from attnwidget._engine import parts
from attnwidget._parallel import executors, kept_results
from attnwidget._parallel.task import Subject

pytestmark = pytest.mark.processes

KINDS = ("threads", "processes")
N, D = 1300, 16


def near(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return (q_idx - kv_idx).abs() < 100 + 50 * h


def broken(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    if bool((torch.as_tensor(q_idx) == 1100).any()):  # not looked at until rows are computed
        raise ArithmeticError("no such rows")
    return q_idx >= kv_idx


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make tasks of few cells, so that these short texts have many."""
    monkeypatch.setattr(parts, "LEAST_CELLS", 1 << 18)
    monkeypatch.setattr(parts, "MOST_CELLS", 1 << 19)


def tensors(dtype: torch.dtype = torch.float32, heads: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    q = torch.randn(2, heads, N, D)
    k, v = torch.randn(2, 2, 2, N, D)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def turned() -> Attention:
    return Attention(*(x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors()), is_causal=True)


def of_two_sizes() -> Attention:
    q, k, v = tensors()
    return Attention(torch.cat([q[:, :, :700], 90 * q[:, :, 700:]], 2), k, v)


def peaked() -> Attention:
    q, k, v = tensors()
    return Attention(40 * q, k, v, is_causal=True)


ATTENTIONS: dict[str, Callable[[], Attention]] = {  # each made anew, so that it knows no log-normalizers
    "plain": lambda: Attention(*tensors()),
    "peaked": peaked,
    "rows of other sizes": of_two_sizes,
    "window, sinks, softcap": lambda: Attention(
        *tensors(), is_causal=True, window=90, sinks=torch.randn(4), softcap=5.0
    ),
    "padding": lambda: Attention(*tensors(), mask=masks.and_masks(masks.causal, masks.padding([N, 900]))),
    "tensor": lambda: Attention(*tensors(), mask=torch.rand(N, N) > 0.3),
    "bias": lambda: Attention(*tensors(), bias=torch.randn(4, N, N)),
    "function": lambda: Attention(*tensors(), mask=near),
    "half": lambda: Attention(*tensors(torch.float16), is_causal=True),
    "double": lambda: Attention(*tensors(torch.float64)),
    "turned": turned,
    "scores": lambda: Attention.from_scores(seeded(2, 4, 700, 500)),
    "weights": lambda: Attention.from_weights(seeded(2, 4, 700, 500).softmax(-1), torch.randn(2, 4, 500, 8)),
    "heads as one": lambda: Attention(*tensors(), is_causal=True).combine([0, 3]),
    "words": lambda: Attention(*tensors(), is_causal=True).merge([i // 2 for i in range(N)]),
}


def seeded(*shape: int) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(*shape)


def everyday(*names: str) -> list[Any]:
    """Return all attentions, those that are not named for a thorough run alone."""
    return [name if name in names else pytest.param(name, marks=pytest.mark.thorough) for name in ATTENTIONS]


@pytest.mark.parametrize("name", everyday("window, sinks, softcap", "padding", "function", "turned", "scores", "words"))
def test_overviews_are_the_same_whoever_computes_them(name: str, pools: dict[str, Executor]) -> None:
    at = {"batch": 1, "head": ATTENTIONS[name]().shape.H - 1}
    pairs = [("weights", "max"), ("weights", "mean")]
    pairs += [("contribution", "max")] if name in ("plain", "turned") else []
    pairs += [("masked", "mean"), ("scores", "max")] if name in ("tensor", "padding") else []
    for stage, pool in pairs:
        for size in (100, 7):
            expected = ATTENTIONS[name]().overview(**at, size=size, stage=stage, pool=pool)
            for kind in KINDS if size == 100 else KINDS[1:]:
                found = ATTENTIONS[name]().overview(**at, size=size, stage=stage, pool=pool, executor=pools[kind])
                assert_same_overview(found, expected, ATTENTIONS["plain" if name == "heads as one" else name](), stage)


def test_an_overview_has_several_tasks(pools: dict[str, Executor]) -> None:
    att = ATTENTIONS["plain"]()
    subject = parts.subject_of(att, "weights", None)
    region = parts._whole(att, 0, 0, 100)
    tasks = list(parts.overview_tasks(subject, region, "weights", "max", 1 << 19, None))
    assert [task.where for task in tasks][:2] == [
        "sample 0, head 0, queries 0–506",
        "sample 0, head 0, queries 507–1,013",
    ]
    assert all(len(pickle.dumps(task.arguments)) < 1000 for task in tasks)


def test_log_normalizers_are_known_afterwards(pools: dict[str, Executor]) -> None:
    found, expected = ATTENTIONS["peaked"](), ATTENTIONS["peaked"]()
    found.overview(1, 2, size=100, executor=pools["processes"])
    expected.overview(1, 2, size=100)
    known, there = (att.known_rows(1, 2, range(N)) for att in (found, expected))
    assert known is not None
    assert there is not None
    torch.testing.assert_close(known.m + known.log_l, there.m + there.log_l, **rounding(found).normalizer)


def test_overviews_of_a_stack(pools: dict[str, Executor]) -> None:
    stack = AttentionStack([ATTENTIONS["plain"](), ATTENTIONS["scores"]()], names=["first", "second"])
    here = stack.overviews(1, size=50)
    assert [len(of) for of in here] == [4, 4]
    for kind in KINDS:
        found = stack.overviews(-1, size=50, executor=pools[kind])
        for layer, att in enumerate(stack):
            for head in range(4):
                expected = copy.copy(att).overview(1, head, size=50)  # which knows no log-normalizers from before
                for one in (found[layer][head], here[layer][head]):
                    assert_same_overview(one, expected, att)
    with pytest.raises(IndexError, match="first: batch 2 is not there"):
        stack.overviews(2)
    with pytest.raises(ValueError, match="second: there is no v"):
        AttentionStack([stack[0], stack[1]], ["first", "second"]).overviews(stage="contribution")


@pytest.mark.thorough
def test_processes_that_are_started_anew_find_the_same() -> None:
    att = ATTENTIONS["function"]()
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = att.overview(1, 3, size=100, executor=pool)
    assert_same_overview(found, copy.copy(att).overview(1, 3, size=100), att)


@pytest.mark.parametrize(
    "name",
    [
        "padding",
        *(pytest.param(name, marks=pytest.mark.thorough) for name in ("plain", "bias", "function", "half", "words")),
        pytest.param("window, sinks, softcap", marks=pytest.mark.thorough),
    ],
)
def test_segment_masses_and_metrics(name: str, pools: dict[str, Executor]) -> None:
    att = ATTENTIONS[name]()
    length = att.shape.K
    named = segments({"a": (1, 90), "b": (200, 400), "c": (400, length)}, length=length)
    stack = AttentionStack([att, att])
    mass = stack.by_segment("c", named, batch=1)
    numbers = stack.metrics(tokens=None, rows=200, kinds=["sink", "streaming"])
    bound = sums(2 * length)
    for kind in KINDS:
        found = stack.by_segment("c", named, batch=1, executor=pools[kind])
        torch.testing.assert_close(found.mass, mass.mass, equal_nan=True, **bound)
        torch.testing.assert_close(found.even, mass.even, equal_nan=True, **bound)
        one = att.by_segment(named, batch=1, head=1, executor=pools[kind])
        torch.testing.assert_close(one.values, att.by_segment(named, batch=1, head=1).values, equal_nan=True, **bound)
        measured = stack.metrics(tokens=None, rows=200, kinds=["sink", "streaming"], executor=pools[kind])
        assert_same_records(measured, numbers, bound)


def test_what_weights_carry_between_segments(pools: dict[str, Executor]) -> None:
    named = segments({"a": (1, 90), "b": (200, N)}, length=N)
    expected = ATTENTIONS["plain"]().by_segment(named, stage="contribution")
    found = ATTENTIONS["plain"]().by_segment(named, stage="contribution", executor=pools["processes"])
    torch.testing.assert_close(found.values, expected.values, equal_nan=True, **sums(2 * N))


def assert_same_records(found: list[dict[str, Any]], expected: list[dict[str, Any]], bound: Bound) -> None:
    assert [list(one) for one in found] == [list(one) for one in expected]
    for mine, theirs in zip(found, expected, strict=True):
        for key, value in theirs.items():
            if isinstance(value, float):
                assert mine[key] == pytest.approx(value, rel=bound["rtol"], abs=bound["atol"]), key
            else:
                assert mine[key] == value, key


def test_metrics_with_tokens_and_a_function_of_ones_own(pools: dict[str, Executor]) -> None:
    att = ATTENTIONS["padding"]()
    tokens = ["ab"[i % 7 > 3] for i in range(N)]
    stack = AttentionStack([att])
    expected = stack.metrics(0, tokens=tokens, rows=64, kinds={"first": first_weight})
    for kind in KINDS:
        found = stack.metrics(0, tokens=tokens, rows=64, kinds={"first": first_weight}, executor=pools[kind])
        assert_same_records(found, expected, sums(2 * N))
    with pytest.raises(TypeError, match=r"layer 0, or a kind of head cannot be sent to another process"):
        stack.metrics(kinds={"own": lambda rows: rows.weights[0]}, executor=pools["processes"])


def first_weight(rows: Any) -> Tensor:
    found: Tensor = rows.weights[..., 0]
    return found


# Saved captures.


def recorded(n: int = 600) -> Capture:
    torch.manual_seed(1)
    with capture() as cap:
        for _ in range(2):
            F.scaled_dot_product_attention(*torch.randn(3, 1, 4, n, 32), is_causal=True)
    return cap


@pytest.fixture(params=[pytest.param("read", marks=pytest.mark.thorough), "mapped"])
def saved(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if request.param == "mapped":
        monkeypatch.setattr(capture_file, "READ_BYTES", 0)
    recorded().save(tmp_path / "run.safetensors")
    return tmp_path / "run.safetensors"


def test_of_a_saved_capture_only_the_path_travels(
    saved: Path, pools: dict[str, Executor], monkeypatch: pytest.MonkeyPatch
) -> None:
    cap = Capture.load(saved)
    att = cap.attention[1]

    def refused(*_: Any) -> None:
        raise AssertionError("a file is written")

    monkeypatch.setattr(executors, "_written", refused)
    sent = executors.Processes(pools["processes"]).send(parts.subject_of(att, "weights", "layer 1"))
    assert len(pickle.dumps(sent.given)) < 4000 < att.q.nbytes
    assert str(saved).encode() in pickle.dumps(sent.given)
    found = att.overview(0, 2, size=100, executor=pools["processes"])
    assert_same_overview(found, copy.copy(att).overview(0, 2, size=100), att)


def test_tensors_that_changed_since_they_were_loaded_travel_as_they_are(
    saved: Path, pools: dict[str, Executor]
) -> None:
    att = Capture.load(saved).attention[0]
    expected = Attention(att.q.clone() * 3, att.k.clone(), is_causal=True).overview(0, 1, size=60)
    att.q.mul_(3)
    with pytest.warns(UserWarning, match="q changed in place"):
        found = att.overview(0, 1, size=60, executor=pools["processes"])
    assert_same_overview(found, expected, att)


def test_a_worker_without_the_file_says_so(saved: Path, pools: dict[str, Executor]) -> None:
    att = Capture.load(saved).attention[0]
    saved.rename(saved.with_name("elsewhere.safetensors"))
    says = rf"^sample 0, head 1, queries \d+–.*: in process \d+ on .*: {saved} is not there: put the file where"
    with pytest.raises(RuntimeError, match=says) as raised:
        att.overview(0, 1, size=60, executor=pools["processes"])
    assert isinstance(raised.value.__cause__, FileNotFoundError)
    assert att.overview(0, 1, size=60, executor=pools["threads"]).shape == (60, 60)


def test_a_file_that_was_written_over_is_noticed(saved: Path, pools: dict[str, Executor]) -> None:
    att = Capture.load(saved).attention[0]
    torch.manual_seed(5)
    with capture() as other:
        for _ in range(2):
            F.scaled_dot_product_attention(*torch.randn(3, 1, 4, 600, 32), is_causal=True)
    other.save(saved)
    with pytest.raises(RuntimeError, match="holds other numbers than when it was loaded"):
        att.overview(0, 1, size=60, executor=pools["processes"])
    with capture() as shorter:
        F.scaled_dot_product_attention(*torch.randn(3, 1, 1, 5, 32), is_causal=True)
    shorter.save(saved)
    with pytest.raises(RuntimeError, match=r"cannot be read as the file|holds other numbers|its worker was lost"):
        att.overview(0, 1, size=60, executor=pools["processes"])


def test_a_reduced_capture_is_the_same_whoever_computes_it(saved: Path, pools: dict[str, Executor]) -> None:
    cap = Capture.load(saved)
    here, kept = cap.reduce(), {kind: cap.reduce(executor=pools[kind]) for kind in KINDS}
    assert list(here.calls) == list(cap.calls)
    for layer, att in enumerate(cap.attention):
        small = here.attention[layer]
        expected = att.overview(0, 3, size=75)
        torch.testing.assert_close(small.overview(0, 3, size=75).values, expected.values, **sums(600))
        torch.testing.assert_close(small.log_normalizer(0, 3), att.log_normalizer(0, 3), **sums(600, 10.0))
        assert small.metrics(0, 2).entropy == pytest.approx(att.metrics(0, 2).entropy, rel=sums(600)["rtol"])
        for found in kept.values():
            other = found.attention[layer].source.tensors()
            for name, x in small.source.tensors().items():
                torch.testing.assert_close(other[name], x, **sums(600, 10.0))
    assert repr(here.reduce().attention) == repr(here.attention)


def test_a_capture_that_was_reduced_later_is_one_that_was_reduced_at_once(pools: dict[str, Executor]) -> None:
    def run(**how: Any) -> Capture:
        torch.manual_seed(1)
        with capture(**how) as cap:
            F.scaled_dot_product_attention(*torch.randn(3, 2, 4, 300, 32), is_causal=True)
        return cap

    at_once, later = run(keep="overview").attention[0], run().reduce(executor=pools["processes"]).attention[0]
    for name, x in at_once.source.tensors().items():
        torch.testing.assert_close(later.source.tensors()[name], x, **sums(300, 10.0))


# What goes wrong.


def test_a_mask_that_cannot_be_sent_is_refused_and_threads_take_it(pools: dict[str, Executor]) -> None:
    q, k, _ = tensors()
    att = Attention(q, k, mask=lambda b, h, q_idx, kv_idx: q_idx >= kv_idx)
    with pytest.raises(TypeError, match=r"this attention cannot be sent to another process.*executor=ThreadPoolEx"):
        att.overview(executor=pools["processes"])
    assert_same_overview(att.overview(executor=pools["threads"]), copy.copy(att).overview(), att)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_says_which_layer_head_and_queries(kind: str, pools: dict[str, Executor]) -> None:
    q, k, _ = tensors()
    stack = AttentionStack([Attention(q, k), Attention(q, k, mask=broken)], ["first", "second"])
    with pytest.raises(RuntimeError, match=r"^second, sample 0, head \d, queries 1,014–1,299: no such rows$"):
        stack.overviews(size=100, executor=pools[kind])
    kept = kept_results._kept[stack[0]]
    assert len(kept) > 0
    stack[[0]].overviews(size=100, executor=pools[kind])
    assert not any(key[2] == stack[0].versions() for key in kept)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="processes are not killed by a signal here")
def test_a_worker_that_is_killed_in_the_midst_of_a_pass_loses_nothing(
    fresh_pool: ProcessPoolExecutor, tmp_path: Path
) -> None:
    mask = KilledOnce(tmp_path, query=700)
    att, alone = (Attention(*tensors(), mask=mask) for _ in range(2))
    with pytest.warns(UserWarning, match=r"a worker was lost after \d of \d tasks: the rest is done by a new pool"):
        found = att.overview(1, 3, size=100, executor=fresh_pool)
    assert mask.has_killed
    assert_same_overview(found, alone.overview(1, 3, size=100), alone)
    known, there = (one.known_rows(1, 3, range(N)) for one in (att, alone))
    assert known is not None
    assert there is not None
    torch.testing.assert_close(known.m + known.log_l, there.m + there.log_l, **rounding(alone).normalizer)


def test_tensors_of_another_device_are_left_to_threads() -> None:
    subject = Subject(torch.empty(8, 4, device="meta"), "layer 3")
    with (
        ProcessPoolExecutor(1) as pool,
        pytest.raises(ValueError, match="layer 3 is on meta, which other processes do"),
    ):
        executors.Processes(pool).send(subject)
