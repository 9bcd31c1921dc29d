"""The fused pass: the same numbers as the pass that is there without numba, asked for once, and in nobody's way."""

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import Case, cases, dense, pooled
from tolerance import assert_same_overview, rounding
from torch.testing import assert_close

import attnwidget
from attnwidget import masks
from attnwidget._engine import fused, fused_stripes, overview, parts, stages, stripe_choice
from attnwidget._engine.fused import Accelerator, State, alone, limits_of_block, shares, side_by_side
from attnwidget._engine.level_cache import LevelCache
from attnwidget.attention import Attention
from examples import examples

# One process compiles the kernels, where they are not compiled yet.
pytestmark = pytest.mark.xdist_group("fused")
needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed: pip install -e '.[fast]'")
POOLS = ("max", "mean")
BLOCK_KEYS = 64  # of a block here, so that short attention has several


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have passes of any length take the compiled kernels, in small blocks; returns them."""
    monkeypatch.delenv(fused.VARIABLE, raising=False)
    monkeypatch.setattr(fused, "LEAST_CELLS", 0)
    monkeypatch.setattr(fused, "QUERIES_AT_ONCE", 16)
    monkeypatch.setattr(fused_stripes, "KEYS_AT_ONCE", 3 * BLOCK_KEYS)
    monkeypatch.setattr(fused_stripes, "block_keys", lambda: BLOCK_KEYS)
    for module in (overview, stages, stripe_choice):
        monkeypatch.setattr(module, "QUERIES", 128)
    kernels = fused.ACCELERATOR.wait()
    assert kernels is not None, fused.ACCELERATOR.describe()
    return kernels


@pytest.fixture
def counted(fast: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often each kernel was called."""
    calls = {"add_maxima": 0, "add_sums": 0}

    def counting(name: str) -> Any:
        def call(*arguments: Any) -> None:
            calls[name] += 1
            getattr(fast, name)(*arguments)

        return call

    kernels = SimpleNamespace(**{name: counting(name) for name in calls})
    monkeypatch.setattr(fused.ACCELERATOR, "_kernels", kernels)
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


# The kernels.


@needs_numba
def test_exp2_is_right_to_the_last_bits(fast: Any) -> None:
    x = np.concatenate([np.linspace(-126.4, 40, 400_001), np.linspace(-1, 1, 100_001)]).astype(np.float32)
    found = by_exp2(fast, x)
    x, found = x[x >= -125], found[x >= -125]  # below, float32 has fewer bits
    exact = np.exp2(x.astype(np.float64))
    assert np.max(np.abs(found - exact) / exact) <= 2e-7  # 1.7 times the distance of 1 to the next number
    assert by_exp2(fast, np.float32([0, 1, -1, -30, 5])).tolist() == [1, 2, 0.5, 2**-30, 32]
    assert by_exp2(fast, np.float32([-np.inf, -1e30, -200, -127, -126.75])).tolist() == [0] * 5
    odd = np.array([0x7FC00001, 0xFFC12345, 0x7F800001], np.uint32).view(np.float32)  # NaN, whatever else it holds
    assert np.isnan(by_exp2(fast, odd)).all()


def by_exp2(kernels: Any, x: np.ndarray) -> np.ndarray:
    return np.array([kernels.exp2(one) for one in x.tolist() for one in [np.float32(one)]], np.float32)


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


@needs_numba
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("size", [300, 13, 1])  # cell by cell; several cells; one bin is wider than a block
@pytest.mark.parametrize("case", CASES)
def test_the_fused_pass_and_the_present_one_agree(case: str, size: int, pool: str, counted: dict[str, int]) -> None:
    found = both(CASES[case], size=size, pool=pool)
    assert counted["add_maxima" if pool == "max" else "add_sums"] > 0 or case in ("all padding",)
    ours, theirs = found.fused.values, found.present.values
    cells = found.fused.query_bin * found.fused.key_bin
    bound = rounding(found.ours, added=40.0).pooled("weights", cells) if found.ours.q is not None else {}
    assert_close(ours, theirs, **(bound or {"rtol": 1e-5, "atol": 1e-7}))
    if "peaked" not in case and "scores" not in case:  # elsewhere rounding a score is more than that
        assert float((ours - theirs).abs().max()) <= 1e-6
    assert torch.equal(found.fused.allowed, found.present.allowed)
    normalizers = found.ours.log_normalizer(0, 0), found.theirs.log_normalizer(0, 0)
    assert_close(*normalizers, rtol=1e-6, atol=1e-5)


@needs_numba
@given(cases(longest=50), st.integers(1, 60), st.sampled_from(POOLS), st.integers(1, 20))
@examples(100)
def test_every_bin_is_that_of_the_dense_matrix(case: Case, size: int, pool: str, block: int) -> None:
    assert fused.ACCELERATOR.wait() is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(fused.VARIABLE, raising=False)
        patch.setattr(fused, "LEAST_CELLS", 0)
        patch.setattr(fused_stripes, "block_keys", lambda: block)
        patch.setattr(fused_stripes, "KEYS_AT_ONCE", 3 * block)
        seen = case.attention().overview(size=size, pool=pool)
    values, allowed = pooled(case.dense(0, 0), "weights", pool, size)
    assert_close(seen.values.double(), values, **case.rounding().pooled("weights", seen.query_bin * seen.key_bin))
    assert torch.equal(seen.allowed, allowed)


@needs_numba
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


@needs_numba
def test_a_querys_only_key_has_weight_1_and_an_empty_row_0(fast: Any) -> None:
    q, k = make(150, 145, scale=9)
    for pool in POOLS:
        seen = Attention(q, k, mask=masks.causal_lower_right(150, 145)).overview(size=150, pool=pool).values
        assert bool((seen[:5] == 0).all())
        assert seen[5, 0] == 1
        assert bool((seen <= 1).all())


@needs_numba
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("at", [0, 64])
def test_a_kernel_reads_a_part_of_a_block_as_all_of_it(
    threads: int, at: int, fast: Any, in_threads: Callable[[int], None]
) -> None:
    S = torch.randn(600, 333, generator=torch.Generator().manual_seed(0))
    in_threads(threads)
    bins, m, total = torch.full((40, 333), -torch.inf), torch.full((333,), -torch.inf), torch.zeros(333)
    base, limits = m.clone(), limits_of_block(masks.BandLimits(high=50), range(333), range(600))

    def pool(part: slice) -> None:
        first = min(at, part.start)  # which query the block that it is given begins with
        block = S[:, first:].contiguous().numpy()
        about = bins.numpy(), 3, 16, m.numpy(), base.numpy(), total.numpy()
        fast.add_maxima(block, first, 600, *about, part.start, part.stop, *limits)

    side_by_side(pool, shares(333))
    masked = S.masked_fill(torch.arange(600)[:, None] > torch.arange(333) + 50, -torch.inf)
    assert torch.equal(m, masked.amax(0))
    expected = torch.cat([torch.full((3, 333), -torch.inf), masked, torch.full((37, 333), -torch.inf)])
    assert torch.equal(bins, expected.view(40, 16, 333).amax(1))
    assert_close(total.double(), (masked - m).double().exp().sum(0), rtol=1e-6, atol=0)


@needs_numba
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("case", ["plain", "causal", "softcap", "bias by a function", "one query"])
def test_threads_change_no_more_than_last_bits(
    case: str, pool: str, counted: dict[str, int], in_threads: Callable[[int], None]
) -> None:
    in_threads(1)
    alone = CASES[case]().overview(pool=pool).values
    before = sum(counted.values())
    in_threads(3)
    together = CASES[case]().overview(pool=pool).values
    assert_close(together, alone, rtol=1e-5, atol=1e-7)
    assert (sum(counted.values()) > 2 * before) is (case != "one query")  # each has blocks of its own


# Threads.


def test_each_part_of_the_queries_is_given_to_one_thread(in_threads: Callable[[int], None]) -> None:
    for threads, queries in itertools.product((1, 2, 5, 64), (1, 63, 64, 65, 512)):
        in_threads(threads)
        parts = shares(queries)
        assert len(parts) <= threads
        assert sorted(at for part in parts for at in range(part.start, part.stop)) == list(range(queries))


def test_a_thread_of_the_pass_multiplies_for_itself_and_the_others_as_before(in_threads: Callable[[int], None]) -> None:
    """torch's number of threads is one of the process as well: threads that begin later take it over."""
    in_threads(3)
    fused._workers.cache_clear()
    counts: list[int] = []
    side_by_side(lambda part: counts.append(torch.get_num_threads()), shares(512))
    assert alone(torch.get_num_threads) == 1
    assert counts == [1, 1, 1]
    assert torch.get_num_threads() == 3
    with ThreadPoolExecutor(1) as later:
        assert later.submit(torch.get_num_threads).result() == 3


def test_an_error_of_one_part_is_raised_once_all_have_ended(in_threads: Callable[[int], None]) -> None:
    in_threads(2)
    failed, ended = threading.Event(), []

    def work(part: slice) -> None:
        if part.start == 0:
            failed.set()
            raise ValueError("the first")
        assert failed.wait(60)
        ended.append(part)

    with pytest.raises(ValueError, match="the first"):
        side_by_side(work, shares(512))
    assert ended == [slice(256, 512)]


def test_no_part_leaves_gradients(in_threads: Callable[[int], None]) -> None:
    in_threads(2)
    x = torch.ones(4, 4, requires_grad=True)
    made: list[torch.Tensor] = []
    side_by_side(lambda part: made.append(x @ x), shares(512))
    made.append(alone(torch.matmul, x, x))
    assert [one.requires_grad for one in made] == [False] * 3


# When it is taken.


@needs_numba
def test_a_pass_asks_once_and_stays_with_what_it_was_told(fast: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = make(250, 250)
    accelerator = Accelerator()
    monkeypatch.setattr(stripe_choice, "ACCELERATOR", accelerator)
    accelerator.state = State.COMPILING
    steps = overview.passes(Attention(q, k), 0, 0, seconds=0)
    next(steps)
    accelerator._kernels, accelerator.state = fast, State.READY  # in the midst of it
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(fused.VARIABLE, "0")
        expected = Attention(q, k).overview()
    assert torch.equal(steps.finish().values, expected.values)
    accelerator._kernels = SimpleNamespace(add_maxima=None)  # would be called, if it were asked now
    with pytest.raises(TypeError):
        Attention(q, k).overview()


@needs_numba
@pytest.mark.parametrize("pool", POOLS)
def test_what_workers_compute_is_all_of_it_fused_or_nothing(
    pool: str, counted: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "LEAST_CELLS", 1 << 12)
    monkeypatch.setattr(parts, "MOST_CELLS", 1 << 13)
    q, k = make(250, 250)
    with ThreadPoolExecutor(2) as executor:
        found = Attention(q, k).overview(pool=pool, executor=executor)
    assert sum(counted.values()) >= 2 * -(-250 // BLOCK_KEYS)
    assert_same_overview(found, Attention(q, k).overview(pool=pool), Attention(q, k))


@needs_numba
def test_a_level_that_is_begun_without_it_is_finished_without_it(
    fast: Any, counted: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k = make(250, 250)
    monkeypatch.setenv(fused.VARIABLE, "0")
    levels = LevelCache(Attention(q, k), largest=60)
    build = levels.build(0, 0, seconds=0)
    next(build)
    monkeypatch.delenv(fused.VARIABLE)
    for _ in build:
        pass
    assert sum(counted.values()) == 0
    for _ in LevelCache(Attention(q, k), largest=60).build(0, 0):
        pass
    assert counted["add_maxima"] > 0


def test_a_short_pass_has_nothing_compiled_and_a_long_one_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The module that would be compiled stands for one that takes a minute."""
    begun, go_on = threading.Event(), threading.Event()
    monkeypatch.delenv(fused.VARIABLE, raising=False)
    monkeypatch.setattr(fused, "find_spec", lambda name: object())
    monkeypatch.setattr(fused, "DELAY", 0)
    slow = Accelerator("slow_kernels")
    monkeypatch.setattr(fused, "import_module", lambda name: (begun.set(), go_on.wait(60), name)[2])
    monkeypatch.setattr(stripe_choice, "ACCELERATOR", slow)
    monkeypatch.setattr(fused, "LEAST_CELLS", 150 * 160)
    Attention(*make(149, 160)).overview()
    assert slow.state is State.UNASKED
    try:
        seen = Attention(*make(150, 160)).overview()
        assert slow.state is State.COMPILING
        assert begun.wait(60)
        assert seen.values.shape == (150, 160)
        assert slow.of_pass(fused.LEAST_CELLS) is None
        assert slow.describe() == "compiling"
    finally:
        go_on.set()
    assert slow.wait() == "slow_kernels"
    assert slow.describe() == "ready"


def test_what_cannot_be_compiled_is_told_and_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> Any:
        raise RuntimeError("LLVM knows no such processor\nand more")

    monkeypatch.delenv(fused.VARIABLE, raising=False)
    monkeypatch.setattr(fused, "find_spec", lambda name: object())
    monkeypatch.setattr(fused, "import_module", fail)
    monkeypatch.setattr(fused, "LEAST_CELLS", 0)
    broken = Accelerator()
    monkeypatch.setattr(stripe_choice, "ACCELERATOR", broken)
    assert broken.wait() is None
    monkeypatch.setitem(fused.NOTES, "fused pass", broken.describe)
    assert "fused pass: failed: RuntimeError: LLVM knows no such processor\n" in f"{attnwidget.report()}\n"
    q, k = make(300, 300)
    values, _ = pooled(dense(q, k, scale=0.25), "weights", "max", 100)
    assert_close(Attention(q, k).overview(size=100).values.double(), values, rtol=1e-5, atol=1e-7)


def test_an_error_that_names_a_file_is_told_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> Any:
        raise OSError("no room in /srv/somebody/cache")

    monkeypatch.setattr(fused, "find_spec", lambda name: object())
    monkeypatch.setattr(fused, "import_module", fail)
    broken = Accelerator()
    assert broken.wait() is None
    assert broken.failure == "OSError"


def test_a_program_that_may_begin_no_thread_any_more_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python begins none once its last words are said: then it is as if nobody had asked."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.delenv(fused.VARIABLE, raising=False)
    monkeypatch.setattr(fused, "find_spec", lambda name: object())
    monkeypatch.setattr(fused, "import_module", lambda name: name)
    late = Accelerator("kernels")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert late.of_pass(fused.LEAST_CELLS) is None
        assert late.state is State.UNASKED
    assert late.wait() == "kernels"


def test_nothing_is_compiled_for_a_program_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> Any:
        raise AssertionError("nobody has use for it")

    ended = threading.Thread(target=lambda: None)
    ended.start()
    ended.join()
    monkeypatch.setattr(fused, "find_spec", lambda name: object())
    monkeypatch.setattr(fused, "import_module", fail)
    with monkeypatch.context() as patch:
        patch.setattr(threading, "main_thread", lambda: ended)
        late = Accelerator("kernels")
        late.begin(0.01)
        thread = late._thread
        assert thread is not None
        thread.join()
    assert (late.state, late.failure) == (State.UNASKED, "")


def test_kernels_are_compiled_by_a_process_of_low_priority_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "cache" / f"new_kernels.add.py{sys.version_info[0]}{sys.version_info[1]}.nbi"
    (tmp_path / "new_kernels.py").write_text(
        "import os\nfrom pathlib import Path\n"
        f"kept = Path({str(kept)!r})\n"
        "kept.parent.mkdir(exist_ok=True)\n"
        "kept.write_bytes(b'0.99.1 ' + f'{os.getpid()} {os.nice(0)}'.encode())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(kept.parent))
    monkeypatch.setattr(fused.metadata, "version", lambda name: "0.99.1")
    assert not fused.is_compiled("new_kernels")
    fused.compile_apart("new_kernels")
    _, process, niceness = kept.read_text().split()
    assert int(process) != os.getpid()
    assert int(niceness) == 19
    os.utime(tmp_path / "new_kernels.py", (1, 1))
    assert fused.is_compiled("new_kernels")
    monkeypatch.setattr(fused.metadata, "version", lambda name: "0.99.2")
    assert not fused.is_compiled("new_kernels")


def test_without_numba_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(fused.VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, "numba", None)  # as Python has it where an import is forbidden
    alone = Accelerator()
    assert alone.wait() is None
    assert alone.describe() == "numba is not installed: pip install 'attnwidget[fast]'"
    assert alone.of_pass(1 << 40) is None


@pytest.mark.parametrize("word", ["0", "off", "False"])
def test_the_environment_turns_it_off(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fused.VARIABLE, word)
    untouched = Accelerator()
    assert untouched.of_pass(1 << 40) is None
    assert untouched.state is State.UNASKED
    assert untouched.describe() == f"turned off (ATTNWIDGET_FAST={word})"


@needs_numba
@pytest.mark.parametrize(
    "att",
    [
        Attention(torch.zeros(9, 2, dtype=torch.float64), torch.zeros(9, 2, dtype=torch.float64)),
        Attention.from_weights(torch.ones(9, 9) / 9),
    ],
    ids=["float64", "weights"],
)
def test_what_it_does_not_compute_is_left_to_the_present_pass(att: Attention, counted: dict[str, int]) -> None:
    att.overview()
    assert sum(counted.values()) == 0


NO_FOLDER = (
    "import numba.core.caching as c\n"
    "for one in vars(c).values():\n"
    "    if hasattr(one, '_locator_classes'):\n"
    "        one._locator_classes = []\n"
)


@needs_numba
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("before", "said"),
    [
        (NO_FOLDER, "False ready"),
        ("import os; os.environ['NUMBA_DISABLE_JIT'] = '1'", "- failed: RuntimeError: NUMBA_DISABLE_JIT is set"),
    ],
)
def test_where_numba_keeps_or_compiles_nothing(before: str, said: str) -> None:
    program = (
        f"{before}\nimport sys\nfrom attnwidget._engine.fused import ACCELERATOR\n"
        "print(getattr(ACCELERATOR.wait(), 'KEPT', '-'), ACCELERATOR.describe())\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != fused.VARIABLE}
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert found.stdout.strip() == said


@needs_numba
@pytest.mark.thorough
def test_what_one_process_has_compiled_the_next_one_reads(tmp_path: Path) -> None:
    program = (
        "from attnwidget._engine.fused import ACCELERATOR\n"
        "kernels = ACCELERATOR.wait()\n"
        "for one in (kernels.add_maxima, kernels.add_sums):\n"
        "    print(sum(one.stats.cache_hits.values()), sum(one.stats.cache_misses.values()))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != fused.VARIABLE}
    environment["NUMBA_CACHE_DIR"] = str(tmp_path)
    said = []
    for _ in range(2):
        how: dict[str, Any] = {"capture_output": True, "text": True, "check": True, "env": environment}
        said.append(subprocess.run([sys.executable, "-c", program], **how).stdout.split())
    assert said == [["0", "1"] * 2, ["1", "0"] * 2]


@needs_numba
@pytest.mark.thorough
def test_a_program_that_ends_soon_ends_well() -> None:
    """It does not wait for a compiler that nobody has use for, nor is one killed in its midst."""
    program = (
        "import torch\nfrom attnwidget import Attention\nfrom attnwidget._engine.fused import ACCELERATOR, State\n"
        "Attention(*torch.randn(2, 4096, 2)).overview()\n"
        "print(ACCELERATOR.state in (State.COMPILING, State.READY))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != fused.VARIABLE}
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert found.stderr == ""
    assert found.stdout.split() == ["True"]


@pytest.mark.parametrize(("x86", "intel", "keys"), [(True, True, 512), (True, False, 2048), (False, False, 512)])
def test_the_kind_of_processor_says_how_many_keys_a_block_has(
    x86: bool, intel: bool, keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "X86", x86)
    monkeypatch.setattr(fused, "made_by_intel", lambda: intel)
    assert fused.block_keys.__wrapped__() == keys
