"""Bytes on the wire: what was encoded is what is read, marks are kept apart, and budgets hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from front_end import BLOCKED, MINUS_INF, NAN, NUMBER, PLUS_INF, decode, decode_cells, decode_tokens
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from attnwidget._messages.codec import encoding

BEYOND = (257, 256)  # the smallest picture that is quantised
INTERACTION = 256 * 1024


def picture(values: Any, blocked: Any = None, *, signed: bool = False) -> dict[str, Any]:
    return encoding.encode_picture(
        torch.as_tensor(values), None if blocked is None else torch.as_tensor(blocked), signed=signed
    )


def spread(first: Any, fill: float, shape: tuple[int, int] = BEYOND, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """A large matrix whose first cells are these."""
    cells = np.full(shape, fill, dtype)
    cells.flat[: len(first)] = first
    return cells


def read(encoded: dict[str, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    values, kinds = decode_cells(encoded["values"], encoded["blocked"])
    return values.ravel(), kinds.ravel()


# Arrays.


@given(hnp.arrays(st.sampled_from(["<f4", ">f4", "u1", "<u4", ">u4"]), hnp.array_shapes(min_dims=1, max_dims=3)))
def test_an_array_is_read_as_it_was_written(array: np.ndarray[Any, Any]) -> None:
    envelope = encoding.encode(array)
    assert envelope["dtype"] == array.dtype.name
    assert np.array_equal(decode(envelope), array, equal_nan=array.dtype.kind == "f")


def test_an_array_need_not_be_contiguous() -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 6)[::2, ::-1].T
    assert np.array_equal(decode(encoding.encode(array)), array)


@given(hnp.arrays(bool, hnp.array_shapes(min_dims=1, max_dims=2, max_side=20)))
def test_bits_are_read_as_they_were_written(cells: np.ndarray[Any, Any]) -> None:
    envelope = encoding.encode_bits(cells)
    assert envelope["dtype"] == "bits"
    assert len(envelope["data"]) == -(-cells.size // 8)
    assert np.array_equal(decode(envelope), cells)


def test_the_first_bit_is_the_highest() -> None:
    assert encoding.encode_bits(np.array([True] + [False] * 8))["data"] == b"\x80\x00"


def test_what_repeats_is_deflated_and_noise_is_not() -> None:
    flat, noise = np.zeros(40_000, np.uint8), np.random.default_rng(0).integers(0, 256, 40_000).astype(np.uint8)
    assert encoding.encode(flat)["deflated"]
    assert len(encoding.encode(flat)["data"]) < 400
    assert not encoding.encode(noise)["deflated"]
    assert encoding.encode(noise)["data"] == noise.tobytes()
    assert not encoding.encode(flat[:4000])["deflated"], "too small to be worth it"


# Exact pictures.


@given(
    hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9)), st.booleans(), st.integers(0, 2**32)
)
def test_a_small_picture_is_exact(cells: np.ndarray[Any, Any], signed: bool, seed: int) -> None:
    hidden = np.random.default_rng(seed).random(cells.shape) < 0.3
    encoded = picture(cells, hidden, signed=signed)
    values, kinds = read(encoded)
    assert encoded["values"]["dtype"] == "float32"
    assert np.array_equal(values, np.where(hidden, np.nan, cells).ravel(), equal_nan=True)
    assert np.array_equal(kinds == BLOCKED, hidden.ravel())
    finite = cells[np.isfinite(cells) & ~hidden]
    assert (encoded["low"], encoded["high"]) == ((finite.min(), finite.max()) if finite.size else (None, None))


def test_256_tokens_are_exact_and_257_are_not() -> None:
    assert picture(np.zeros((256, 256), np.float32))["values"]["dtype"] == "float32"
    assert picture(np.zeros(BEYOND, np.float32))["values"]["dtype"] == "uint8"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_float_type_is_sent_as_float32(dtype: torch.dtype) -> None:
    encoded = encoding.encode_picture(torch.tensor([[0.5, -1.25]], dtype=dtype, requires_grad=True), None, signed=True)
    assert decode(encoded["values"]).tolist() == [[0.5, -1.25]]


@pytest.mark.parametrize("shape", [(2, 3), BEYOND])
def test_float64_beyond_float32_is_infinite_and_does_not_set_the_range(shape: tuple[int, int]) -> None:
    encoded = picture(spread([1e300, -1e300, 2.0, -4.0], 0.0, shape, np.float64), signed=True)
    values, kinds = read(encoded)
    assert kinds[:4].tolist() == [PLUS_INF, MINUS_INF, NUMBER, NUMBER]
    assert values[:4].tolist() == pytest.approx([np.inf, -np.inf, 2.0, -4.0], abs=4 / 124 / 2)
    assert (encoded["low"], encoded["high"]) == (-4.0, 2.0)


# Quantised pictures.

magnitudes = st.floats(2**-14, 1.0, width=32)


@given(st.lists(magnitudes, min_size=1, max_size=50), st.sampled_from([1.0, 0.37, 2.0**-100, 2.0**100]))
def test_log_codes_are_within_half_a_step(cells: list[float], high: float) -> None:
    wanted = np.float32(cells) * np.float32(high)
    values, kinds = read(picture(spread([high, *wanted], 0.0)))
    assert (kinds == NUMBER).all()
    assert values[0] == pytest.approx(high)
    step = encoding.OCTAVES / 249
    assert np.abs(np.log2(values[1 : 1 + len(cells)] / wanted)).max() <= step / 2 * 1.001
    assert (values[1 + len(cells) :] == 0).all()


@given(st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=50), st.sampled_from([1.0, 0.37, 2.0**-100, 2.0**100]))
def test_linear_codes_are_within_half_a_step(cells: list[float], high: float) -> None:
    wanted = np.float32(cells) * np.float32(high)
    values, kinds = read(picture(spread([-high, *wanted], 0.0), signed=True))
    assert (kinds == NUMBER).all()
    assert values[0] == pytest.approx(-high)
    assert np.abs(values[1 : 1 + len(cells)] - wanted).max() <= high / 124 / 2 * 1.001
    assert (values[1 + len(cells) :] == 0).all()


@pytest.mark.parametrize("tiny", [2**-16.1, 1e-20, 1e-38, 1.4e-45])
def test_tiny_is_not_zero(tiny: float) -> None:
    codes = decode(picture(spread([1.0, tiny, 0.0], 0.5))["values"]).ravel()
    assert codes[:3].tolist() == [250, 1, 0]


@pytest.mark.parametrize("signed", [False, True])
def test_marks_are_kept_apart(signed: bool) -> None:
    cells = spread([np.nan, np.inf, -np.inf, 0.25, 0.0, 0.5], 0.5)
    hidden = np.zeros(BEYOND, bool)
    hidden[-1] = True
    hidden.flat[5] = True
    cells[-1, 0] = np.nan  # blocked all the same
    cells[-1, 1] = 9.0  # does not set the range
    encoded = picture(cells, hidden, signed=signed)
    values, kinds = read(encoded)
    assert encoded["blocked"] is None, "codes say it"
    assert kinds[:6].tolist() == [NAN, PLUS_INF, MINUS_INF, NUMBER, NUMBER, BLOCKED]
    assert (kinds[-256:] == BLOCKED).all()
    assert (encoded["low"], encoded["high"]) == (0.0, 0.5)
    assert encoded["values"]["scale"]["high"] == 0.5
    assert values[3] == pytest.approx(0.25, rel=0.03)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(
    ("fill", "kind", "limits"),
    [(0.0, NUMBER, (0, 0)), (np.nan, NAN, (None, None)), (np.inf, PLUS_INF, (None, None)),
     (-np.inf, MINUS_INF, (None, None))],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(3, 3), BEYOND])
def test_a_picture_without_numbers(fill: float, kind: int, limits: Any, shape: tuple[int, int], signed: bool) -> None:
    encoded = picture(np.full(shape, fill, np.float32), signed=signed)
    values, kinds = read(encoded)
    assert (kinds == kind).all()
    assert np.array_equal(values, np.full(values.shape, fill), equal_nan=True)
    assert (encoded["low"], encoded["high"]) == limits
    assert np.isfinite(encoded["values"].get("scale", {"high": 0})["high"])


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("shape", [(3, 3), BEYOND])
def test_a_picture_that_is_all_blocked(shape: tuple[int, int], signed: bool) -> None:
    encoded = picture(np.zeros(shape, np.float32), np.ones(shape, bool), signed=signed)
    assert (read(encoded)[1] == BLOCKED).all()
    assert (encoded["low"], encoded["high"]) == (None, None)


# Budgets.


def worst(signed: bool, kinds: int = 250) -> np.ndarray[Any, Any]:
    """512 × 512 numbers whose codes are as random as they can be."""
    codes = np.random.default_rng(0).integers(1, kinds, (512, 512))
    codes[0, 0] = 249 if signed else 250
    cells = (codes - 125) / 124 if signed else 2.0 ** (-encoding.OCTAVES * (250 - codes) / 249)
    return cells.astype(np.float32)


@pytest.mark.parametrize("signed", [False, True])
def test_the_worst_picture_is_within_an_interaction(signed: bool) -> None:
    encoded = picture(worst(signed), signed=signed)
    assert len(encoded["values"]["data"]) <= INTERACTION - 4096, "with room for all else in the message"
    values, kinds = read(encoded)
    assert (kinds == NUMBER).all()
    wanted = worst(signed).ravel()
    off = np.abs(values - wanted) * 124 if signed else np.abs(np.log2(values / wanted)) * 249 / encoding.OCTAVES
    assert off.max() <= 1.01, "steps twice as wide, and no wider"


@pytest.mark.parametrize("sharpness", [1, 8])
def test_the_largest_exact_picture_is_within_an_interaction(sharpness: float) -> None:
    scores = torch.randn(256, 256, generator=torch.Generator().manual_seed(0))
    for values, signed in ((scores, True), (torch.softmax(sharpness * scores, 1), False)):
        encoded = encoding.encode_picture(values, None, signed=signed)
        assert encoded["values"]["dtype"] == "float32"
        assert len(encoded["values"]["data"]) <= INTERACTION - 4096, "with room for all else in the message"


@pytest.mark.parametrize("step", [2, 4])
@pytest.mark.parametrize("signed", [False, True])
def test_wider_steps_round_to_the_nearest_and_keep_zero_and_marks(signed: bool, step: int) -> None:
    codes = np.arange(256, dtype=np.uint8)
    coarse = encoding._coarser(codes, step, signed=signed).astype(int)
    values = slice(1, 250 if signed else 251)
    assert np.abs(coarse - codes)[values].max() <= step / 2
    assert coarse[values].min() >= 1
    assert coarse[values].max() <= (249 if signed else 250)
    assert len(set(coarse[values])) <= 250 // step + 1
    assert coarse[0] == 0
    assert coarse[252:].tolist() == [252, 253, 254, 255]
    assert coarse[125 if signed else 250] == (125 if signed else 250), "zero, or the greatest, stays"


def test_a_calm_picture_keeps_its_fine_steps() -> None:
    smooth = np.linspace(-1, 1, 512 * 512, dtype=np.float32).reshape(512, 512)
    assert len(np.unique(decode(picture(smooth, signed=True)["values"]))) == 249


# Thumbnails and tokens.


def test_thumbnails_have_a_range_each() -> None:
    heads = [
        (torch.tensor([[0.5, 0.25], [0.0, 0.125]]), torch.tensor([[True, True], [False, True]])),
        (torch.tensor([[2.0**-20, 2.0**-21], [np.nan, np.inf]]), torch.ones(2, 2, dtype=torch.bool)),
        (torch.zeros(2, 2), torch.ones(2, 2, dtype=torch.bool)),
    ]
    envelope = encoding.encode_thumbnails(heads)
    assert envelope["shape"] == [3, 2, 2]
    assert envelope["scale"] == {"kind": "unit", "high": 1.0}
    values, kinds = decode_cells(envelope)
    assert values[0].ravel().tolist() == pytest.approx([1, 0.5, np.nan, 0.25], abs=0.0021, nan_ok=True)
    assert kinds[0].ravel().tolist() == [NUMBER, NUMBER, BLOCKED, NUMBER]
    assert values[1].ravel().tolist() == pytest.approx([1, 0.5, np.nan, np.inf], abs=0.0021, nan_ok=True)
    assert kinds[1].ravel().tolist() == [NUMBER, NUMBER, NAN, PLUS_INF]
    assert (values[2] == 0).all()


@given(st.none() | st.lists(st.text(st.characters()), min_size=1))
@example(["half \ud800", "\udfff"])
def test_tokens_are_read_as_they_were_written(tokens: list[str] | None) -> None:
    assert decode_tokens(encoding.encode_tokens(tokens)) == tokens


def test_tokens_are_one_buffer_of_utf8() -> None:
    message = encoding.encode_tokens(["né", "", "</script>"])
    assert message is not None
    assert message["text"] == "né</script>".encode()
    assert decode(message["ends"]).tolist() == [3, 3, 12]


# Replies.


def test_an_envelope_of_a_reply_points_to_its_buffer() -> None:
    buffers = [b"first"]
    values, _ = encoding.encode_numbers(torch.tensor([1.0, 2.0]), None)
    assert encoding.detach(None, buffers) is None
    detached = encoding.detach(values, buffers)
    assert detached is not None
    assert detached["data"] == 1
    assert decode(detached, buffers).tolist() == [1, 2]
