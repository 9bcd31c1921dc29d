"""Exact blocks, log-normalizers and outputs: as the dense float64 attention, and as torch's own, on any input."""

import copy
import pickle
import threading
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from reference import Case, cases, dense
from tolerance import Bound, approx, exponentials, rounding, sums
from torch.testing import assert_close

from attnwidget.attention import STAGES, Attention
from examples import examples


def close(actual: torch.Tensor, expected: torch.Tensor, bound: Bound) -> None:
    assert_close(actual.double(), expected.double(), **bound, equal_nan=True)


# The same numbers as by the book.


@given(cases(), st.data())
@examples(80)
def test_every_stage_is_that_of_the_dense_matrix(case: Case, data: st.DataObject) -> None:
    att = case.attention()
    batch, head = data.draw(st.integers(0, att.shape.B - 1)), data.draw(st.integers(0, att.shape.H - 1))
    expected, within = case.dense(batch, head), case.rounding()
    for stage in STAGES:
        actual = att.block(stage, batch=batch, head=head)
        assert actual.dtype == (torch.float64 if case.q.dtype == torch.float64 else torch.float32)
        close(actual, expected[stage], within[stage])
    assert torch.equal(att.block("allowed", batch=batch, head=head), expected["allowed"])
    close(att.log_normalizer(batch, head), expected["normalizer"], within.normalizer)


@given(cases(), st.data())
@examples(60)
def test_part_of_the_weights_is_exact_whether_or_not_the_head_was_seen_before(case: Case, data: st.DataObject) -> None:
    att = case.attention()
    queries = data.draw(st.lists(st.integers(-att.shape.Q, att.shape.Q - 1), max_size=5))
    keys = data.draw(st.slices(att.shape.K))
    expected = case.dense(0, 0)["weights"][queries][:, list(range(*keys.indices(att.shape.K)))]
    close(att.block(queries=queries, keys=keys), expected, case.rounding().weights)
    att.log_normalizer()
    close(att.block(queries=queries, keys=keys), expected, case.rounding().weights)


@given(cases(dtypes=(torch.float32, torch.float64)))
@examples(60)
def test_output_is_that_of_torch(case: Case) -> None:
    case.keywords |= {"softcap": None}  # torch has none of these two
    assume(case.factor == 1)
    mask = case.bias.masked_fill(~case.allowed, -torch.inf).to(case.q.dtype)
    scale, times = case.keywords["scale"], case.q.shape[1] // case.k.shape[1]
    k, v = case.k.repeat_interleave(times, 1), case.v.repeat_interleave(times, 1)  # as enable_gqa does
    expected = F.scaled_dot_product_attention(case.q, k, v, attn_mask=mask, scale=scale)
    empty = ~case.allowed.any(-1, keepdim=True)
    expected = expected.masked_fill(empty, 0)
    att = case.attention()
    for batch in range(att.shape.B):
        for head in range(att.shape.H):
            close(att.output(batch, head), expected[batch, head], case.rounding().output)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_computed_in_float32(dtype: torch.dtype) -> None:
    """exp(−18) is 0 in float16, and products in bfloat16 are off by 1 %."""
    q, k = (torch.linspace(-3, 3, n * 4).view(n, 4).to(dtype) for n in (5, 2600))
    v = k[:, :3].abs()
    att = Attention(q, k, v)
    expected = dense(q, k, scale=0.5)
    assert att.dtype is dtype
    close(att.block("weights"), expected["weights"], rounding(att).weights)
    assert 0 < att.block("weights").min() < 1e-8
    close(att.output(), expected["weights"] @ v.double(), rounding(att).output)


def test_rows_sum_to_one_over_more_keys_than_a_block_has() -> None:
    att = Attention(*torch.randn(2, 5000, 8), is_causal=True)
    totals = att.block(queries=slice(None, None, 100)).sum(1)
    assert_close(totals, torch.ones(50), **rounding(att).weights)


@pytest.mark.parametrize("largest", [450, 4650, 100_000])
def test_weights_stay_exact_where_scores_are_large(largest: float) -> None:
    """One number for the log-normalizer would be off by 1e-4 at 4650. D is 1, so scores are right to the last bit."""
    steps = torch.arange(3000) % 64
    q, k = largest - torch.arange(16.0)[:, None], 1 - steps[:, None] / 2**22 * (4096 // max(1, largest // 256))
    att = Attention(q, k, scale=1.0)
    expected = dense(q, k, scale=1.0)
    assert torch.equal(att.block("masked").double(), expected["masked"].float().double())
    by_hand = torch.softmax(att.block("masked").double(), 1)
    within = exponentials(float(att.block("masked").max() - att.block("masked").min()))
    assert_close(att.block().double(), by_hand, **within)
    att.log_normalizer()
    assert_close(att.block(queries=[3, 0], keys=slice(7, 90)).double(), by_hand[[3, 0], 7:90], **within)
    one_number = torch.exp(att.block("masked") - att.log_normalizer()[:, None])
    assert largest < 4650 or (one_number / by_hand - 1).abs().max() > 3 * within["rtol"]  # what the pair is for


# Blocked cells.


def test_a_query_that_may_attend_to_nothing_has_no_weights_and_output_zero() -> None:
    mask = torch.tensor([[True, False], [False, False]])
    att = Attention(torch.randn(2, 4), torch.randn(2, 4), torch.tensor([[1.0], [torch.nan]]), mask=mask)
    assert att.block().tolist() == [[1, 0], [0, 0]]
    assert att.block("masked")[1].tolist() == [-torch.inf] * 2
    assert att.log_normalizer()[1] == -torch.inf
    assert att.output()[1].tolist() == [0]


def test_a_row_masked_with_the_lowest_finite_number_is_empty_not_uniform() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        mask = torch.zeros(2, 3, dtype=dtype)
        mask[1] = torch.finfo(dtype).min
        att = Attention(torch.ones(2, 4), torch.ones(3, 4), mask=mask)
        assert_close(att.block(), torch.tensor([[1 / 3] * 3, [0.0] * 3]))
        assert att.block("allowed").tolist() == [[True] * 3, [False] * 3]
        assert att.block("masked")[1].tolist() == [-torch.inf] * 3


@pytest.mark.parametrize(("queries", "keys"), [(2, 5), (5, 2), (1, 9), (9, 1), (700, 3000), (3000, 700)])
def test_causal_is_aligned_at_the_upper_left_as_torch_has_it(queries: int, keys: int) -> None:
    q, k, v = torch.randn(queries, 4), torch.randn(keys, 4), torch.randn(keys, 4)
    att = Attention(q, k, v, is_causal=True)
    expected = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    assert torch.equal(att.block("allowed"), torch.ones(queries, keys).tril().bool())
    assert_close(att.output(), expected, **rounding(att).output)


@pytest.mark.parametrize("where", ["causal", "bool", "float"])
def test_a_key_that_is_nan_reaches_only_queries_that_may_see_it(where: str) -> None:
    q, k, v = torch.randn(3, 700, 4)
    k[650], v[650] = torch.nan, torch.nan
    allowed = torch.ones(700, 700).tril().bool()
    mask = {"causal": None, "bool": allowed, "float": torch.zeros(700, 700).masked_fill(~allowed, -torch.inf)}[where]
    att = Attention(q, k, v, mask=mask, is_causal=where == "causal")
    for seen in (att.block(), att.output(), att.overview(size=700).values):
        assert seen[:650].isfinite().all()
        assert seen[650:, 0].isnan().all()


def test_a_query_that_is_nan_has_weights_that_are_nan() -> None:
    q, k = torch.randn(4, 3), torch.randn(5, 3)
    q[2] = torch.nan
    att = Attention(q, k, k)
    assert att.block().isnan().all(1).tolist() == [False, False, True, False]
    assert att.output().isnan().all(1).tolist() == [False, False, True, False]
    assert att.log_normalizer().isnan().tolist() == [False, False, True, False]


def test_a_blocked_value_that_is_infinite_reaches_no_output() -> None:
    v = torch.tensor([[1.0], [torch.inf]])
    att = Attention(torch.zeros(2, 3), torch.zeros(2, 3), v, is_causal=True)
    assert att.output().flatten().tolist() == [1, torch.inf]


def test_scores_beyond_float32_are_seen_as_nan() -> None:
    att = Attention(torch.full((1, 2), 1e30), torch.full((3, 2), 1e30))
    assert att.block("scores").isposinf().all()
    assert att.block().isnan().all()


# Whatever mode the caller is in.


def test_autocast_around_the_caller_changes_nothing() -> None:
    q, k, v = torch.randn(3, 40, 8)
    expected = Attention(q, k, v)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        att = Attention(q, k, v)
        assert torch.equal(att.block(), expected.block())
        assert torch.equal(att.output(), expected.output())
        assert torch.equal(att.overview(size=7).values, expected.overview(size=7).values)


def test_lowered_matmul_precision_changes_nothing_and_is_left_as_it_was() -> None:
    q, k = torch.randn(2, 64, 64)
    expected = Attention(q, k).block()
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        assert torch.equal(Attention(q, k).block(), expected)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch before 2.9 has no such key"
)
def test_lowered_precision_of_one_backend_changes_nothing_and_is_left_as_it_was() -> None:
    backend = torch.backends.mkldnn.matmul
    q, k, v = torch.randn(3, 64, 64)
    expected, before = Attention(q, k, v), backend.fp32_precision
    seen = []
    try:
        backend.fp32_precision = "bf16"
        att = Attention(q, k, v, bias=lambda score, *where: seen.append(backend.fp32_precision) or score)
        assert torch.equal(att.block(), expected.block())
        assert torch.equal(att.output(), expected.output())
        assert backend.fp32_precision == "bf16"
        assert seen[-1] == "ieee"
    finally:
        backend.fp32_precision = before


def test_a_million_keys_are_summed_in_float32_without_loss() -> None:
    att = Attention(torch.zeros(1, 1), torch.zeros(2**20, 1), torch.ones(2**20, 1))
    assert att.log_normalizer()[0] == approx(20 * np.log(2), sums(1, size=0))  # whole numbers are summed without error
    assert att.block(keys=7)[0, 0] == approx(2**-20, sums(1, size=0))
    assert att.output()[0, 0] == approx(1, sums(1, size=0))


def test_queries_beyond_the_last_key_and_its_window_are_empty() -> None:
    att = Attention(torch.randn(9, 4), torch.randn(3, 4), torch.ones(3, 1), is_causal=True, window=2)
    assert att.block("allowed").sum(1).tolist() == [1, 2, 2, 1, 0, 0, 0, 0, 0]
    assert att.output()[:, 0].tolist() == approx([1, 1, 1, 1, 0, 0, 0, 0, 0], sums(3))
    assert att.statistics().empty_rows == 5


def test_tensors_with_gradients_are_looked_at_without() -> None:
    q, k, v = (torch.randn(5, 4, requires_grad=True) for _ in range(3))
    att = Attention(q, k, v)
    for seen in (att.q, att.block(), att.output(), att.log_normalizer(), att.overview().values):
        assert not seen.requires_grad
    assert q.grad_fn is None
    assert q.requires_grad


def test_what_was_seen_in_inference_mode_can_be_used_outside() -> None:
    with torch.inference_mode():
        q = torch.randn(5, 4)
        att = Attention(q, q, q)
        seen = att.log_normalizer(), att.block(), att.output(), att.overview().values
    for x in (*seen, att.block(queries=2)):
        assert not x.is_inference()
        x += 1  # refused for tensors of inference mode


def test_default_dtype_of_the_caller_changes_nothing() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        att = Attention(np.ones((2, 3), np.float32), np.ones((2, 3), np.float32), is_causal=True)
        assert att.block().dtype == att.log_normalizer().dtype == att.overview().values.dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


# Asking for a block.


def test_a_block_is_two_dimensional_whatever_is_asked_for() -> None:
    att = Attention(*torch.randn(2, 6, 4))
    full, within = att.block(), rounding(att).weights
    assert_close(att.block(queries=-1, keys=2), full[5:, 2:3], **within)
    assert_close(att.block(queries=slice(None, None, -2)), full[[5, 3, 1]], **within)
    assert_close(att.block(queries=range(1, 6, 2), keys=torch.tensor([3, -1])), full[1::2][:, [3, 5]], **within)
    assert_close(att.block(keys=np.array([4, 4])), full[:, [4, 4]], **within)
    assert att.block(queries=[], keys=slice(2, 2)).shape == (0, 0)
    assert att.block("allowed", queries=[]).shape == (0, 6)
    assert att.block(queries=slice(0, 0)).shape == (0, 6)


def test_what_is_not_there_is_named() -> None:
    att = Attention(torch.zeros(2, 12, 3, 4), torch.zeros(2, 12, 5, 4))
    with pytest.raises(IndexError, match="head 99 is not there: this attention has heads 0 to 11"):
        att.block(head=99)
    with pytest.raises(IndexError, match="batch 2 is not there: this attention has batches 0 to 1"):
        att.output(2) if att.v is not None else att.log_normalizer(2)
    with pytest.raises(IndexError, match="query 3 is not there: this attention has queries 0 to 2"):
        att.block(queries=3)
    with pytest.raises(IndexError, match="key -6 is not there: this attention has keys 0 to 4"):
        att.block(keys=[0, -6])
    with pytest.raises(IndexError, match="batch 1 is not there: this attention has batch 0 only"):
        Attention(torch.zeros(1, 2), torch.zeros(1, 2)).overview(batch=1)
    with pytest.raises(TypeError, match=r"query is 1\.5: give an integer"):
        att.block(queries=1.5)
    with pytest.raises(TypeError, match="key is True: give an integer"):
        att.block(keys=[True, False])
    with pytest.raises(ValueError, match="no stage is called 'weight': did you mean 'weights'"):
        att.block("weight")


def test_no_output_without_v() -> None:
    with pytest.raises(ValueError, match=r"there is no v, so no output: give Attention\(q, k, v\)"):
        Attention(torch.zeros(1, 2), torch.zeros(1, 2)).output()


# One value, shared.


def test_an_attention_does_not_change() -> None:
    att = Attention(torch.zeros(1, 2), torch.zeros(1, 2))
    with pytest.raises(AttributeError, match="an Attention is immutable, so scale cannot be set: make a new one"):
        att.scale = 2.0
    with pytest.raises(AttributeError, match="so q cannot be deleted"):
        del att.q


def test_tensors_changed_in_place_are_looked_at_anew_and_said() -> None:
    q, k = torch.randn(3, 4), torch.randn(3, 4)
    mask = torch.ones(3, 3, dtype=torch.bool)
    att = Attention(q, k, mask=mask)
    att.log_normalizer()
    q.mul_(3)
    mask[0, 1] = False
    expected = dense(q, k, scale=0.5, allowed=mask)["weights"]
    with pytest.warns(UserWarning, match=r"q and mask changed in place after this Attention was made"):
        assert_close(att.block().double(), expected, **rounding(att).weights)


@pytest.mark.parametrize("name", ["q", "k", "v", "mask", "bias", "scores", "weights"])
def test_a_tensor_changed_in_place_is_said_once_by_its_name(name: str) -> None:
    x = {"q": torch.randn(3, 4), "k": torch.randn(3, 4), "v": torch.randn(3, 4), "bias": torch.zeros(3, 3)}
    x |= {"mask": torch.ones(3, 3).tril(), "scores": torch.randn(3, 3), "weights": torch.rand(3, 3)}
    if name in ("scores", "weights"):
        att = getattr(Attention, f"from_{name}")(x[name])
    else:
        att = Attention(x["q"], x["k"], x["v"], mask=x["mask"], bias=x["bias"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = att.block()
        copied = copy.copy(att)
    x[name].add_(1)
    with pytest.warns(UserWarning, match=rf"^{name} changed in place .* give it {name}\.clone\(\)") as said:
        after = att.overview().values
    assert said[0].filename == __file__
    assert name in ("v", "scores", "mask", "bias") or not torch.equal(before, after)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for ask in (att.block, att.output, att.statistics, lambda: att.top_keys(0)):
            if ask != att.output or att.v is not None:
                ask()
        fresh = copy.copy(att)
        fresh.block()
    with pytest.warns(UserWarning, match=f"^{name} changed in place"):
        copied.top_keys(0)


def test_copies_and_pickles_compute_the_same() -> None:
    att = Attention(*torch.randn(3, 3, 4), mask=torch.zeros(3, 3), is_causal=True)
    for other in (copy.deepcopy(att), pickle.loads(pickle.dumps(att)), copy.copy(att)):
        assert torch.equal(other.block(), att.block())
        assert other.shape == att.shape


def test_threads_share_one_attention() -> None:
    att = Attention(*torch.randn(3, 1, 4, 300, 8), is_causal=True)
    expected = [Attention(att.q, att.k, att.v, is_causal=True).block(head=head) for head in range(4)]
    wrong = []

    def work() -> None:
        for head in (0, 1, 2, 3) * 3:
            att.overview(head=head, size=50)
            if not torch.allclose(att.block(head=head), expected[head], **rounding(att).weights):
                wrong.append(head)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_it_says_what_it_is() -> None:
    att = Attention(torch.zeros(2, 8, 1000, 64).half(), torch.zeros(2, 2, 7, 64).half(), is_causal=True)
    assert repr(att) == (
        "Attention(2 samples × 8 heads in 2 groups, 1,000 queries × 7 keys, head size 64, no v, causal, float16, cpu)"
    )
    assert att.shape == (2, 8, 2, 1000, 7, 64, None)
    assert att.shape.Dv is None
    assert att.scale == 1 / 8
    assert att.device == torch.device("cpu")


def test_an_unknown_keyword_is_named_with_the_nearest() -> None:
    with pytest.raises(TypeError, match="no keyword is called 'causal': did you mean 'is_causal'"):
        Attention(torch.zeros(1, 2), torch.zeros(1, 2), causal=True)
    with pytest.raises(TypeError, match="is_causal is 'no': give True or False"):
        Attention(torch.zeros(1, 2), torch.zeros(1, 2), is_causal="no")
    with pytest.raises(ValueError, match="scale is nan: give a finite number"):
        Attention(torch.zeros(1, 2), torch.zeros(1, 2), scale=float("nan"))
    with pytest.raises(TypeError, match="scale is 'big': give a number"):
        Attention(torch.zeros(1, 2), torch.zeros(1, 2), scale="big")


def test_the_only_key_has_all_the_weight_and_equal_keys_share_equally_to_the_last_bit() -> None:
    """Of eighths, whose products no machine rounds: whether it does so alike in every row is up to its library."""
    for seed in range(50):
        torch.manual_seed(seed)
        q, k = torch.randint(-16, 17, (2, 6, 8)) / 8
        k[1] = k[0]
        att = Attention(q, k, is_causal=True)
        for _ in range(2):  # before and after the head's log-normalizers are known
            first, third = att.block(queries=0)[0], att.block(queries=3)[0]
            assert first.tolist() == [1, 0, 0, 0, 0, 0]
            assert third[0] == third[1]
            att.overview()
