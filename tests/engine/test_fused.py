"""The fused pass: the same numbers as torch gives without it, with any number of threads and on any processor."""

import ctypes
import platform
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import Case, cases, pooled
from tolerance import rounding
from torch.testing import assert_close

import attnwidget
from attnwidget import masks
from attnwidget._engine import dense_masks, fused, fused_pass, overview, parts, stages, stripe_choice
from attnwidget.attention import Attention
from examples import examples

needs_library = pytest.mark.skipif(fused.loaded().library is None, reason=f"fused pass: {fused.loaded().state}")
POOLS = ("max", "mean")


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Have several stripes and calls of short attention take the library; how often it was called."""
    monkeypatch.delenv(fused.VARIABLE, raising=False)
    monkeypatch.setattr(fused_pass, "CELLS_AT_ONCE", 128 * 40)
    monkeypatch.setattr(stripe_choice, "MOST_QUERIES", 128)
    for module in (dense_masks, overview, stages, stripe_choice):
        monkeypatch.setattr(module, "QUERIES", 128)
    library, calls = fused.library(), {"run": 0, "finish": 0}
    assert library is not None, fused.loaded().state
    call = fused_pass.in_threads

    def counting(function: Any, *about: Any) -> None:
        calls["run" if function is library.run else "finish"] += 1
        call(function, *about)

    monkeypatch.setattr(fused_pass, "in_threads", counting)
    return calls


@pytest.fixture
def in_threads() -> Iterator[Callable[[int], None]]:
    """Sets how many threads torch has, as a user does."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


class Both(NamedTuple):
    """An attention made twice, and its overview by either pass."""

    ours: Attention
    fused: overview.Overview
    theirs: Attention
    present: overview.Overview


def both(build: Callable[[], Attention], **how: Any) -> Both:
    ours, theirs = build(), build()
    found = ours.overview(**how)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(fused.VARIABLE, "0")
        return Both(ours, found, theirs, theirs.overview(**how))


def make(queries: int, keys: int, D: int = 16, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(queries * 31 + keys)
    return torch.randn(queries, D, generator=source) * scale, torch.randn(keys, D, generator=source)


# The same numbers.

CASES: dict[str, Callable[[], Attention]] = {
    "plain": lambda: Attention(*make(250, 290)),
    "causal": lambda: Attention(*make(250, 250), is_causal=True),
    "causal, fewer queries": lambda: Attention(*make(88, 290), mask=masks.causal_lower_right(88, 290)),
    "causal, fewer keys": lambda: Attention(*make(290, 88), mask=masks.causal_lower_right(290, 88)),  # empty rows
    "window": lambda: Attention(*make(188, 188), is_causal=True, window=13),
    "window on both sides": lambda: Attention(*make(188, 188), window=5),
    "padding": lambda: Attention(*make(113, 225), mask=masks.padding([139])),
    "all padding": lambda: Attention(*make(75, 113), mask=masks.padding([0])),
    "documents": lambda: Attention(
        *make(150, 150), mask=masks.and_masks(masks.causal, lambda b, h, q, k: q // 62 == k // 62)
    ),
    "key padding tensor": lambda: Attention(*make(100, 175), mask=torch.arange(175)[None] % 7 > 1),
    "function": lambda: Attention(*make(113, 113), mask=lambda b, h, q, k: (q + k) % 5 > 1),
    "bias by a function": lambda: Attention(*make(88, 163), bias=lambda s, b, h, q, k: s - (q - k).abs() / 6),
    "softcap": lambda: Attention(*make(100, 163, scale=4), softcap=5.0, is_causal=True),
    "sinks": lambda: Attention(make(100, 163)[0][None], make(100, 163)[1][None], sinks=torch.tensor([1.5])),
    "negative scale": lambda: Attention(*make(100, 163), scale=-3.0),
    "peaked": lambda: Attention(*make(113, 175, scale=12)),
    "peaked and causal": lambda: Attention(*make(163, 163, scale=12), is_causal=True),
    "falling scores": lambda: Attention(torch.ones(75, 4), torch.linspace(120, -120, 250)[:, None].expand(-1, 4)),
    "rising scores": lambda: Attention(torch.ones(75, 4), torch.linspace(-120, 120, 250)[:, None].expand(-1, 4)),
    "bfloat16": lambda: Attention(*(x.bfloat16() for x in make(88, 163)), is_causal=True),
    "given scores": lambda: Attention.from_scores(make(75, 138)[0] @ make(75, 138)[1].mT),
    "one query": lambda: Attention(*make(1, 375)),
    "one key": lambda: Attention(*make(125, 1)),
}


@needs_library
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("size", [300, 13, 1])  # cell by cell; several cells; one bin is wider than a block
@pytest.mark.parametrize("case", CASES)
def test_the_fused_pass_and_the_present_one_agree(case: str, size: int, pool: str, counted: dict[str, int]) -> None:
    found = both(CASES[case], size=size, pool=pool)
    assert counted["run"] > 0 or case == "all padding"
    ours, theirs = found.fused.values, found.present.values
    cells = found.fused.query_bin * found.fused.key_bin
    bound = rounding(found.ours, added=40.0).pooled("weights", cells) if found.ours.q is not None else {}
    assert_close(ours, theirs, **(bound or {"rtol": 1e-5, "atol": 1e-7}))
    if not {"peaked", "scores", "negative"} & {*case.split()}:  # elsewhere rounding a score is more than that
        assert float((ours - theirs).abs().max()) <= 1e-6
    assert torch.equal(found.fused.allowed, found.present.allowed)
    normalizers = found.ours.log_normalizer(0, 0), found.theirs.log_normalizer(0, 0)
    assert_close(*normalizers, rtol=1e-6, atol=1e-5)


def random_mask(down: int, across: int) -> torch.Tensor:
    mask = torch.rand(down, across, generator=torch.Generator().manual_seed(1)) > 0.4
    mask[:5] = False  # empty rows
    return mask


def random_bias(down: int, across: int) -> torch.Tensor:
    bias = torch.randn(1, 1, down, across, generator=torch.Generator().manual_seed(2))
    return bias.masked_fill(torch.rand(down, across, generator=torch.Generator().manual_seed(3)) > 0.7, -torch.inf)


TENSORS: dict[str, dict[str, Any]] = {
    "mask": {"mask": random_mask(150, 170)},
    "mask of bytes, turned": {"mask": random_mask(170, 150).to(torch.uint8).mT, "mask_means": "hide"},
    "mask of keys": {"mask": random_mask(6, 170)[5:]},
    "bias": {"bias": random_bias(150, 170)},
    "bias of queries, and a mask": {"bias": random_bias(150, 1), "mask": random_mask(150, 170)},
    "mask and window": {"mask": random_mask(150, 170), "window": 40},
    "lowest numbers": {"bias": random_bias(150, 170).clamp(min=torch.finfo(torch.float32).min)},
}


@needs_library
@pytest.mark.parametrize("size", [200, 13])
@pytest.mark.parametrize("case", TENSORS)
def test_masks_and_biases_that_are_tensors_are_applied_by_the_library(
    case: str, size: int, counted: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k = make(150, 170)
    found = both(lambda: Attention(q, k, **TENSORS[case]), size=size)
    assert_close(found.fused.values, found.present.values, rtol=1e-5, atol=1e-7)
    assert torch.equal(found.fused.allowed, found.present.allowed)
    assert counted["run"] == 2  # one for each stripe: no blocks of scores
    ours, theirs = (att.log_normalizer(0, 0) for att in (found.ours, found.theirs))
    assert_close(ours, theirs, rtol=1e-6, atol=1e-5)
    sampled = overview.sampled(Attention(q, k, **TENSORS[case]), 0, 0, rows=40, columns=30)
    monkeypatch.setenv(fused.VARIABLE, "0")
    expected = overview.sampled(Attention(q, k, **TENSORS[case]), 0, 0, rows=40, columns=30)
    assert_close(sampled.values, expected.values, rtol=1e-5, atol=1e-7)
    assert torch.equal(sampled.allowed, expected.allowed)


@needs_library
@given(cases(longest=50), st.integers(1, 60), st.sampled_from(POOLS), st.integers(1, 2000))
@examples(100)
def test_every_bin_is_that_of_the_dense_matrix(case: Case, size: int, pool: str, at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(fused.VARIABLE, raising=False)
        patch.setattr(fused_pass, "CELLS_AT_ONCE", at_once)
        seen = case.attention().overview(size=size, pool=pool)
    values, allowed = pooled(case.dense(0, 0), "weights", pool, size)
    assert_close(seen.values.double(), values, **case.rounding().pooled("weights", seen.query_bin * seen.key_bin))
    assert torch.equal(seen.allowed, allowed)


@needs_library
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("is_causal", [False, True])
def test_numbers_that_are_not_finite_are_seen_where_they_are_seen_without_it(
    bad: float, pool: str, is_causal: bool, counted: dict[str, int]
) -> None:
    q, k = make(75, 88)
    k[60, 3] = q[17, 5] = bad
    found = both(lambda: Attention(q, k, is_causal=is_causal), size=13, pool=pool)
    assert sum(counted.values()) > 0
    assert_close(found.fused.values, found.present.values, equal_nan=True, rtol=1e-5, atol=1e-7)
    assert torch.equal(found.fused.allowed, found.present.allowed)
    weights = [att.block("weights", queries=slice(10, 20)) for att in (found.ours, found.theirs)]
    assert_close(*weights, equal_nan=True, rtol=1e-5, atol=1e-7)


@needs_library
def test_a_querys_only_key_has_weight_1_and_an_empty_row_0(counted: dict[str, int]) -> None:
    q, k = make(150, 145, scale=9)
    for pool in POOLS:
        seen = Attention(q, k, mask=masks.causal_lower_right(150, 145)).overview(size=150, pool=pool).values
        assert bool((seen[:5] == 0).all())
        assert seen[5, 0] == 1
        assert bool((seen <= 1).all())


@needs_library
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("case", ["plain", "causal", "softcap", "bias by a function", "one query"])
def test_threads_do_not_change_a_bit(
    case: str, pool: str, counted: dict[str, int], in_threads: Callable[[int], None]
) -> None:
    in_threads(1)
    alone = CASES[case]().overview(pool=pool).values
    in_threads(3)
    assert torch.equal(CASES[case]().overview(pool=pool).values, alone)
    assert counted["run"] > 0


@needs_library
@pytest.mark.parametrize("pool", POOLS)
def test_without_openmp_the_numbers_are_the_same(
    pool: str, counted: dict[str, int], in_threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_threads(3)
    q, k = make(300, 400)
    expected = Attention(q, k).overview(size=30, pool=pool).values
    monkeypatch.setattr(fused, "_openmp", lambda: None)
    assert torch.equal(Attention(q, k).overview(size=30, pool=pool).values, expected)


@needs_library
@pytest.mark.skipif(platform.machine() != "x86_64", reason="two kinds of vectors are compared")
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("size", [300, 13, 4])
def test_every_kind_of_vectors_gives_the_same_bits(
    size: int, pool: str, counted: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {}
    for kind in ("AVX2", torch.backends.cpu.get_cpu_capability()):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda kind=kind: kind)
        found = fused.loaded.__wrapped__()
        monkeypatch.setattr(fused_pass, "library", lambda found=found: found.library)
        seen[found.state] = Attention(*make(250, 290, scale=5), is_causal=True).overview(size=size, pool=pool).values
    assert "ready, avx2" in seen
    assert all(torch.equal(one, seen["ready, avx2"]) for one in seen.values())


@needs_library
@pytest.mark.parametrize("D", [1, 3, 64, 256, 700])
def test_heads_of_any_size_are_multiplied(D: int, counted: dict[str, int]) -> None:
    q, k = make(70, 90, D)
    seen = Attention(q, k, scale=1.0).block("weights")
    assert_close(Attention(q, k, scale=1.0).overview().values, seen, rtol=1e-4, atol=1e-7)
    assert counted["run"] > 0


@needs_library
def test_columns_of_a_larger_tensor_are_read_where_they_are(counted: dict[str, int]) -> None:
    q, k = make(150, 150, 48)
    expected = Attention(q[:, ::3].clone(), k[:, 16:32].clone()).overview(size=40).values
    assert torch.equal(Attention(q[:, ::3], k[:, 16:32]).overview(size=40).values, expected)


# When it is taken.


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Have uninitialized memory hold NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@needs_library
@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("rules", [{}, {"is_causal": True, "window": 1100}])
def test_parts_of_the_queries_give_the_same_bits(
    rules: dict[str, Any], pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the keys with which a part begins, and the size of its stripes."""
    monkeypatch.setattr(parts, "LEAST_CELLS", 1 << 12)
    monkeypatch.setattr(parts, "MOST_CELLS", 700 * 3300)
    q, k = make(3300, 3300, 3)
    with ThreadPoolExecutor(2) as executor:
        found = Attention(q, k, **rules).overview(pool=pool, size=200, executor=executor)
    expected = Attention(q, k, **rules).overview(pool=pool, size=200)
    assert torch.equal(found.values, expected.values)
    assert bool(expected.values.isfinite().all())


@needs_library
@pytest.mark.parametrize(
    "att",
    [
        Attention(torch.zeros(9, 2, dtype=torch.float64), torch.zeros(9, 2, dtype=torch.float64)),
        Attention.from_weights(torch.ones(9, 9) / 9),
    ],
    ids=["float64", "weights"],
)
def test_what_it_does_not_compute_is_left_to_torch(att: Attention, counted: dict[str, int]) -> None:
    att.overview()
    assert sum(counted.values()) == 0


@needs_library
@pytest.mark.parametrize("word", ["0", "off", "False"])
def test_the_environment_turns_it_off(word: str, counted: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fused.VARIABLE, word)
    Attention(*make(250, 250)).overview()
    assert sum(counted.values()) == 0
    assert f"fused pass: turned off (ATTNWIDGET_FAST={word})\n" in f"{attnwidget.report()}\n"


@pytest.mark.parametrize(
    ("machine", "capability", "content", "state"),
    [
        ("x86_64", "DEFAULT", None, "this processor has no vectors that it is compiled for"),
        ("riscv64", "DEFAULT", None, "this processor has no vectors that it is compiled for"),
        ("x86_64", "AVX2", None, "not compiled for linux on x86_64"),
        ("x86_64", "AVX2", b"no library", "cannot be loaded: OSError"),
    ],
)
def test_where_there_is_no_library_torch_computes_and_the_report_says_why(
    machine: str, capability: str, content: bytes | None, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(fused.VARIABLE, raising=False)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(fused, "FOLDER", tmp_path)
    if content is not None:
        (tmp_path / f"linux-{machine}.so").write_bytes(content)
    monkeypatch.setattr(fused, "loaded", fused.loaded.__wrapped__)
    assert fused.library() is None
    assert f"fused pass: {state}\n" in f"{attnwidget.report()}\n"
    assert_close(Attention(*make(30, 30)).overview().values, Attention(*make(30, 30)).block("weights"))


@needs_library
def test_the_structs_are_those_of_the_source() -> None:
    """A field more or less in one of them would give wrong numbers, or crash."""
    source = (Path(__file__).parents[2] / "native" / "pass.c").read_text()
    for name in ("QUERIES", "PANEL", "BLOCK"):
        assert f"    {name} = {getattr(fused, name)}," in source
    for name, ours in (("pass", fused.PassArguments), ("grid", fused.GridArguments)):
        body = source.split(f"struct {name} {{", 1)[1].split("};", 1)[0]
        fields = []
        for line in body.splitlines():
            declared = line.split("//")[0].strip().rstrip(";")
            if declared:
                kind, names = declared.replace("const ", "").split(" ", 1)
                for one in names.split(","):
                    pointer = one.strip().startswith("*")
                    fields.append((one.strip(" *"), "pointer" if pointer else kind))
        kinds = {ctypes.c_void_p: "pointer", ctypes.c_int64: "i64", ctypes.c_float: "float"}
        assert [(name, kinds[kind]) for name, kind in ours._fields_] == fields
