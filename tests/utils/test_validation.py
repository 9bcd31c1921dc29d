"""What may be given as q, k and v, and what is said where it may not."""

import warnings

import numpy as np
import pytest
import torch
from tolerance import approx, rounding, sums
from torch.testing import assert_close

from attnwidget import scaled_dot_product_attention
from attnwidget._engine.axes import as_heads
from attnwidget._utils.validation import as_tensor, refuse_unknown
from attnwidget.attention import Attention

# What is taken, and that nothing of it is copied.


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_floating_tensors_are_taken_as_views(dtype: torch.dtype) -> None:
    q = torch.randn(2, 3, 5, 4).to(dtype).requires_grad_()
    att = Attention(q, q, q)
    for part in (att.q, att.k, att.v):
        assert part.data_ptr() == q.data_ptr()
        assert part.dtype is dtype
        assert not part.requires_grad


@pytest.mark.parametrize(
    ("shape", "dims", "wanted"),
    [
        ((5, 4), None, (1, 1, 5, 4)),
        ((2, 5, 4), None, (2, 1, 5, 4)),
        ((2, 3, 5, 4), None, (2, 3, 5, 4)),
        ((3, 5, 4), "hqd", (1, 3, 5, 4)),
        ((5, 3, 4), "qhd", (1, 3, 5, 4)),
        ((2, 5, 3, 4), "bqhd", (2, 3, 5, 4)),
        ((5, 2, 4), "qbd", (2, 1, 5, 4)),
        ((4, 5), "dq", (1, 1, 5, 4)),
    ],
)
def test_axes_are_read_by_number_or_by_name(shape: tuple[int, ...], dims: str | None, wanted: tuple[int, ...]) -> None:
    q = torch.randn(shape)
    att = Attention(q, q, q, dims=dims)
    assert att.q.shape == att.k.shape == att.v.shape == wanted
    assert att.q.data_ptr() == q.data_ptr()
    by_name = torch.einsum(
        f"{dims or 'bhqd'[-2:] if len(shape) == 2 else dims or {3: 'bqd', 4: 'bhqd'}[len(shape)]}->qd", q
    )
    assert_close(att.q.sum((0, 1)), by_name, **sums(q.numel(), size=float(q.abs().sum())))


def test_tensors_need_not_be_contiguous() -> None:
    x = torch.randn(4, 6, 10)
    q = x[:, ::2, 1:9:2]
    assert torch.equal(Attention(q, q).block(batch=1), Attention(q.contiguous(), q.contiguous()).block(batch=1))
    shared = torch.randn(1, 1, 4).expand(3, 5, 4)
    assert Attention(shared, shared).block().tolist() == [[approx(0.2, sums(5, size=0))] * 5] * 5


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_arrays_share_their_memory(dtype: type) -> None:
    q = np.ones((3, 4), dtype)
    att = Attention(q, q)
    q[0, 0] = 7
    assert att.q[0, 0, 0, 0] == 7
    assert att.q.numpy().dtype == dtype


def test_read_only_arrays_are_taken_without_a_warning() -> None:
    q = np.ones((3, 4), np.float32)
    q.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert as_tensor(q, "q").data_ptr() == q.ctypes.data


def test_arrays_of_any_layout_have_the_same_numbers() -> None:
    q = np.arange(12, dtype=np.float32).reshape(3, 4)
    record = np.zeros(3, dtype=[("skip", "i1"), ("x", "f4", 4)])
    record["x"] = q
    for odd in (q[::-1, ::-1], q.T, np.asfortranarray(q), q.astype(">f4"), record["x"], np.broadcast_to(q[0], (3, 4))):
        assert torch.equal(as_tensor(odd, "q"), torch.tensor(odd.tolist()))


class Foreign:
    """An array of some other library."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return self.array


class Exchanged(Foreign):
    def __dlpack__(self, **keywords: object) -> object:
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("library", [Foreign, Exchanged])
def test_arrays_of_other_libraries_are_taken(library: type[Foreign]) -> None:
    q = np.ones((3, 4), np.float32)
    assert as_tensor(library(q), "q").data_ptr() == q.ctypes.data
    read_only = np.broadcast_to(q, (2, 3, 4))
    assert as_tensor(library(read_only), "q").shape == (2, 3, 4)


class OnDevice:
    """An array as CuPy's: it has the exchange of memory alone, and numpy may not look at it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self, **keywords: object) -> object:
        return self.tensor.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.tensor.__dlpack_device__()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_arrays_that_only_exchange_memory_are_taken(dtype: torch.dtype) -> None:
    q = torch.randn(3, 4).to(dtype)
    att = Attention(OnDevice(q), OnDevice(q), OnDevice(q), mask=OnDevice(torch.ones(3, 3).tril()))
    assert att.q.data_ptr() == att.k.data_ptr() == att.v.data_ptr() == q.data_ptr()
    assert att.dtype is dtype
    output, weights = scaled_dot_product_attention(OnDevice(q), OnDevice(q), OnDevice(q))
    assert_close(weights, Attention(q, q).block(), **rounding(Attention(q, q)).weights)
    assert output.dtype is dtype


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_arrays_of_jax_share_their_memory(dtype: str) -> None:
    jnp = pytest.importorskip("jax.numpy")
    q, mask = jnp.linspace(0, 1, 12, dtype=dtype).reshape(3, 4), jnp.tri(3, dtype=bool)
    att = Attention(q, q, q, mask=mask)
    assert att.q.data_ptr() == q.unsafe_buffer_pointer()
    assert att.q[0, 0].tolist() == q.tolist()
    assert torch.equal(att.block("allowed"), torch.ones(3, 3).tril().bool())
    with pytest.raises(TypeError, match="q holds int32: attention needs floating point"):
        Attention(jnp.ones((2, 3), int), q)


def test_what_is_given_keeps_its_gradients_to_itself() -> None:
    q = torch.randn(2, 3, requires_grad=True)
    bias = torch.zeros(2, 2, requires_grad=True)
    att = Attention(q * 1, q * 1, q * 1, bias=bias * 1)
    assert not any(x.requires_grad for x in (att.q, att.k, att.v, *att.rules.tensors().values()))


# What is refused.

OK = torch.zeros(1, 4, 6, 8)


@pytest.mark.parametrize(
    ("q", "k", "v", "error", "match"),
    [
        (torch.zeros(5, 64), torch.zeros(5, 32), None, ValueError,
         "k has head size 32 but q has 64: project them to the same size"),
        (OK, torch.zeros(1, 3, 6, 8), None, ValueError,
         "q has 4 heads but k has 3: the heads of q must be a multiple of those of k"),
        (OK, torch.zeros(1, 8, 6, 8), None, ValueError, "q has 4 heads but k has 8"),
        (OK, torch.zeros(2, 4, 6, 8), None, ValueError, "k has batch size 2 but q has 1: expand one to the other"),
        (torch.zeros(2, 6, 8), torch.zeros(1, 6, 8), None, ValueError, "k has batch size 1 but q has 2"),
        (OK, OK, torch.zeros(1, 4, 7, 8), ValueError, "v has 7 positions but k has 6: give each key its value"),
        (OK, OK, torch.zeros(1, 2, 6, 8), ValueError, "v has 2 heads but k has 4: give both the same heads"),
        (OK, OK, torch.zeros(3, 4, 6, 8), ValueError, "v has batch size 3 but q has 1"),
        (OK, torch.zeros(6, 8), None, ValueError, "k has 2 axes but q has 4: give both the same axes"),
        (torch.zeros(4), OK, None, ValueError, r"q has shape \(4,\): give 2 to 4 axes"),
        (torch.zeros(1, 1, 1, 1, 1, 1), OK, None, ValueError,
         r"'bhqd' for 4; name others, such as dims='hqd'\), or 5 for a stack of layers$"),
        (3, OK, None, TypeError, "q is an int: give a torch tensor"),
        (OK, torch.tensor(1.0), None, ValueError, r"k has shape \(\): give 2 to 4 axes"),
        (torch.zeros(1, 1, 1, 1, 1), OK, None, ValueError,
         r"q has shape \(1, 1, 1, 1, 1\), 5 axes: select one layer, or make a stack of layers"),
        (torch.zeros(0, 4), OK, None, ValueError, r"q has shape \(0, 4\), its position axis is empty"),
        (OK, torch.zeros(1, 4, 6, 0), None, ValueError, "its head size axis is empty"),
        (torch.zeros(0, 2, 4), OK, None, ValueError, "its batch axis is empty"),
        (OK.long(), OK, None, TypeError, "q holds int64: attention needs floating point: convert it to float32"),
        (OK, OK.bool(), None, TypeError, "k holds bool: attention needs floating point"),
        (OK, OK, OK.to(torch.complex64), TypeError, "v holds complex64: attention needs real numbers"),
        (OK, OK, OK.to(torch.float8_e5m2), TypeError, "v holds float8_e5m2 without its scale"),
        (OK.to(torch.float8_e4m3fn), OK, None, TypeError,
         "q holds float8_e4m3fn without its scale: multiply it by its scale"),
        (OK, OK.double(), None, TypeError, "k holds float64 but q float32: convert them to one dtype"),
        ([[1.0, 2.0]], OK, None, TypeError, "q is a list: give a torch tensor or a numpy array"),
        (None, OK, None, TypeError, "q is None: give a torch tensor"),
        ("q", OK, None, TypeError, "q is a str: give a torch tensor"),
        (OK, None, None, TypeError, "k is None: give a torch tensor"),
        (np.array([["a"]]), OK, None, TypeError, "q holds <U1: give float32 or float64"),
        (np.array([[object()]]), OK, None, TypeError, "q holds object: give float32 or float64"),
        (np.zeros((2, 2), np.longdouble), OK, None, TypeError, "q holds float128: give float32 or float64"),
        (np.ma.masked_equal([[1.0, 2.0]], 2), OK, None, TypeError, r"q is a masked array: give q\.filled\(0\)"),
        (torch.zeros(2, 2, device="meta"), OK, None, TypeError, "q is without data: give a dense tensor"),
        (torch.zeros(2, 2).to_sparse(), OK, None, TypeError, "q is sparse_coo: give a dense tensor"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_the_next_step(
    q: object, k: object, v: object, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        Attention(q, k, v)


def test_a_tensor_spread_over_devices_is_refused() -> None:
    """A real DTensor, of a mesh of one."""
    distributed = pytest.importorskip("torch.distributed.tensor")
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        q = distributed.distribute_tensor(torch.zeros(2, 4), mesh, [distributed.Shard(0)])
        with pytest.raises(TypeError, match=r"q is spread over several devices: give q\.full_tensor\(\)"):
            Attention(q, q)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("dims", "error", "match"),
    [
        (
            "bsd",
            ValueError,
            r"dims 'bsd' has the letter 's': use b \(batch\), h \(head\), q \(position\), d \(head size\)",
        ),
        ("BQD", ValueError, "has the letter 'B'"),
        ("bhd", ValueError, "dims 'bhd' must name q and d, and each axis once"),
        ("qqd", ValueError, "must name q and d, and each axis once"),
        ("qd", ValueError, r"q has shape \(2, 3, 4\) but dims 'qd' names 2 axes: give a letter per axis"),
        (3, TypeError, "dims is an int: give a string such as 'bhqd'"),
    ],
)
def test_axes_that_cannot_be_read_are_named(dims: object, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        as_heads(torch.zeros(2, 3, 4), torch.zeros(2, 3, 4), None, dims)


def test_an_unknown_keyword_is_refused() -> None:
    refuse_unknown(["head"], ["head", "batch"])
    with pytest.raises(
        TypeError, match=r"no keyword is called 'heads': did you mean 'head'\? else give one of head, batch"
    ):
        refuse_unknown(["batch", "heads"], ["head", "batch"])
    with pytest.raises(TypeError, match="no keyword is called 'colour': give one of head, batch"):
        refuse_unknown({"colour": 1}, ["head", "batch"])
