"""Products in oneDNN and in MKL, and exponentials that need no maximum: the same numbers, whichever is taken."""

import io
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from reference import dense, pooled
from tolerance import Bound, rounding, sums
from torch.testing import assert_close

from attnwidget._engine import matmul, softmax
from attnwidget.attention import Attention


def of_product(k: torch.Tensor, q: torch.Tensor) -> Bound:
    """The bound for k · qᵀ: a sum over D, no larger than the lengths of both multiplied."""
    size = k.double().norm(dim=1).max() * q.double().norm(dim=1).max()
    return {"rtol": 0, "atol": sums(k.shape[1], float(size))["atol"]}


@pytest.mark.parametrize(("keys", "queries", "D"), [(2048, 512, 64), (1024, 130, 24), (512, 257, 100), (16, 8192, 16)])
@pytest.mark.parametrize(
    ("x86", "intel", "capability"),
    [(True, False, "AVX512"), (True, False, "AVX2"), (True, True, "AVX512"), (False, False, "DEFAULT")],
)
def test_a_product_is_as_exact_by_either_way(
    keys: int, queries: int, D: int, x86: bool, intel: bool, capability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matmul, "X86", x86)
    monkeypatch.setattr(matmul, "made_by_intel", lambda: intel)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(matmul, "has_avx512", matmul.has_avx512.__wrapped__)
    convolves = torch.backends.mkldnn.is_available() and (x86, intel, capability) == (True, False, "AVX512")
    assert matmul.Product(torch.zeros(queries, D)).convolves == convolves
    k, q = torch.randn(keys, D), torch.randn(queries, D)
    found = matmul.product(k, q, matmul.Scratch(keys * queries, k.dtype, k.device))
    assert found.is_contiguous()
    assert_close(found.double(), k.double() @ q.double().mT, **of_product(k, q))
    k[5], q[7, 3] = torch.nan, torch.inf
    found = matmul.product(k, q)
    assert found[5].isnan().all()
    assert not found[torch.arange(keys) != 5].isnan().any()
    assert found[:, torch.arange(queries) != 7][torch.arange(keys) != 5].isfinite().all()


@pytest.mark.parametrize("pool", ["max", "mean"])
def test_an_overview_is_the_same_by_either_way(pool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "X86", True)
    monkeypatch.setattr(matmul, "has_avx512", lambda: True)
    q, k = torch.randn(2, 2100, 16, generator=torch.Generator().manual_seed(0))
    seen = []
    for intel in (True, False):
        monkeypatch.setattr(matmul, "made_by_intel", lambda intel=intel: intel)
        seen.append(Attention(q, k, is_causal=True).overview(pool=pool).values)
    assert_close(*seen, rtol=1e-5, atol=0)
    assert float((seen[0] - seen[1]).abs().max()) <= 1e-6


@pytest.mark.parametrize(
    ("system", "said", "cpuinfo", "intel"),
    [
        ("linux", "", "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: x\n", True),
        ("linux", "x86_64", "processor\t: 0\nvendor_id\t: AuthenticAMD\n", False),
        ("linux", "", None, False),  # no such file: what says nothing counts as another's
        ("win32", "Intel64 Family 6 Model 151 Stepping 2, GenuineIntel", None, True),
        ("win32", "AMD64 Family 25 Model 97 Stepping 2, AuthenticAMD", None, False),
        ("darwin", "i386", None, True),
    ],
)
def test_the_processors_maker_is_read_from_the_system(
    system: str, said: str, cpuinfo: str | None, intel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: str, **how: object) -> io.StringIO:
        assert path == "/proc/cpuinfo"
        if cpuinfo is None:
            raise FileNotFoundError(path)
        return io.StringIO(cpuinfo)

    monkeypatch.setattr(matmul, "X86", True)
    monkeypatch.setattr(matmul, "sys", SimpleNamespace(platform=system))
    monkeypatch.setattr(matmul.platform, "processor", lambda: said)
    monkeypatch.delenv("PROCESSOR_IDENTIFIER", raising=False)
    monkeypatch.setattr(matmul, "open", read, raising=False)
    assert matmul.made_by_intel.__wrapped__() is intel


def test_a_product_reads_tensors_that_lie_in_any_order() -> None:
    k, q = torch.randn(32, 512, 3)[..., 1].mT, torch.randn(32, 1024)[:, ::2].mT
    assert_close(matmul.product(k, q), k @ q.mT, **of_product(k, q))


def test_a_product_under_autocast_and_lowered_precision_stays_float32() -> None:
    k, q = torch.randn(2048, 64), torch.randn(256, 64)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", torch.bfloat16), matmul.exact(k.device):
            found = matmul.product(k, q)
    finally:
        torch.set_float32_matmul_precision(before)
    assert found.dtype == torch.float32
    assert_close(found, k @ q.mT, **of_product(k, q))


@pytest.mark.parametrize("scale", [0.1, 2.5, 5.0, 60.0])  # scores on both sides of what needs the maximum taken off
@pytest.mark.parametrize("pool", ["max", "mean"])
def test_small_and_large_scores_meet(scale: float, pool: str) -> None:
    make = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 600, 16, generator=make, dtype=torch.float64)
    q, k = F.normalize(q, dim=1), F.normalize(k, dim=1)
    allowed = torch.ones(600, 600).tril().bool()
    for stage in ("weights", "contribution"):
        att = Attention(q.float() * 3, k.float() * 3, v.float(), scale=scale, is_causal=True)
        values, _ = pooled(dense(att.q[0, 0], att.k[0, 0], v.float(), scale=scale, allowed=allowed), stage, pool, 50)
        seen = att.overview(size=50, pool=pool, stage=stage).values
        assert_close(seen.double(), values, **rounding(att).pooled(stage, 12 * 12))
    assert softmax.is_small(att.head(0, 0), range(600)) == (scale * 9 < softmax.SMALL)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e30])
def test_numbers_that_are_not_small_are_noticed(bad: float) -> None:
    q, k = torch.randn(2, 100, 4)
    k[3, 1] = bad
    att = Attention(q, k)
    assert not softmax.is_small(att.head(0, 0), range(100))
    assert softmax.is_small(Attention(q, k[4:]).head(0, 0), range(100))


@pytest.mark.filterwarnings("ignore:q, k or v")
def test_the_longest_key_follows_the_tensors() -> None:
    q, k = torch.randn(2, 100, 4)
    head = Attention(q, k).head(0, 0)
    assert softmax.is_small(head, range(100))
    k[3] *= 1e6
    assert not softmax.is_small(head, range(100))


def test_a_stage_before_the_softmax_is_the_same_once_log_normalizers_are_known() -> None:
    att = Attention(*torch.randn(3, 50, 4), is_causal=True)
    before = [att.overview(stage=stage, size=7).values for stage in att.stages]
    att.log_normalizer()
    for stage, values in zip(att.stages, before, strict=True):
        assert_close(att.overview(stage=stage, size=7).values, values, **rounding(att)[stage])


def test_an_interrupt_while_the_callers_precision_is_brought_back(monkeypatch: pytest.MonkeyPatch) -> None:
    bring_back, came = matmul._bring_back, 0

    def interrupted_once(user: matmul._User) -> None:
        nonlocal came
        came += 1
        if came == 1:
            raise KeyboardInterrupt
        bring_back(user)

    monkeypatch.setattr(matmul, "_bring_back", interrupted_once)
    with pytest.raises(KeyboardInterrupt), matmul.full(torch.device("cpu")):
        assert len(matmul._users) == 1
    assert len(matmul._users) == 0
