"""Decode the widget's traits into arrays, to draw pictures without a front-end."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._engine.stages import SIGNED
from . import encoding

NUMBER, BLOCKED, NAN, PLUS_INF, MINUS_INF = range(5)  # kinds of cells, as in js/src/contract/decode.ts

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class DecodedMatrix:
    """A matrix as it is drawn.

    Attributes:
        values: (rows, columns) float32.
        kinds: (rows, columns) uint8: NUMBER, BLOCKED, NAN, PLUS_INF or MINUS_INF.
        queries, keys: how many the head has.
        query_bin, key_bin: queries in one row, keys in one column.
        low, high: the least and greatest finite number, or None.
        every: one exact row stands for this many queries; 1 if all rows are exact.
        sink: (rows,) float32, the learned sink's column; None if there is no sink.
    """

    values: Array
    kinds: Array
    stage: str
    pool: str
    queries: int
    keys: int
    query_bin: int
    key_bin: int
    low: float | None
    high: float | None
    every: int
    sink: Array | None = None

    @property
    def kind(self) -> str:
        """The color ramp to use: weights have one direction, scores have two."""
        return "diverging" if self.stage in SIGNED else "sequential"

    @property
    def is_pooled(self) -> bool:
        return self.query_bin * self.key_bin > 1


def of_picture(picture: dict[str, Any]) -> DecodedMatrix:
    """Decode the trait `picture`, or part of a comparison with the same fields.

    Raises:
        ValueError: it holds no numbers; the message is the picture's own error.
    """
    if picture.get("values") is None:
        raise ValueError(picture.get("error") or "nothing has been computed yet: wait for the picture")
    values, kinds = decode_cells(picture["values"], picture.get("blocked"))
    sampled = picture.get("sampled")
    names = ("stage", "pool", "queries", "keys", "query_bin", "key_bin", "low", "high")
    known: dict[str, Any] = {name: picture[name] for name in names}
    sink = None if picture.get("sink") is None else decode(picture["sink"])
    return DecodedMatrix(values, kinds, **known, every=sampled["every"] if sampled else 1, sink=sink)


def decode(envelope: encoding.Envelope) -> Array:
    """Return the array in an envelope from `encoding.encode` or `encoding.encode_bits`."""
    raw = zlib.decompress(envelope["data"]) if envelope["deflated"] else envelope["data"]
    shape = envelope["shape"]
    if envelope["dtype"] == "bits":
        return np.unpackbits(np.frombuffer(raw, np.uint8), count=math.prod(shape)).astype(bool).reshape(shape)
    return np.frombuffer(raw, np.dtype(envelope["dtype"]).newbyteorder("<")).reshape(shape)


def decode_cells(envelope: encoding.Envelope, blocked: encoding.Envelope | None) -> tuple[Array, Array]:
    """Return the numbers of a matrix, exact or quantised, and the kind of each cell."""
    array = decode(envelope)
    if envelope["dtype"] == "uint8":
        return _dequantised(array, envelope["scale"])
    kinds = np.full(array.shape, NUMBER, np.uint8)
    for kind, found in ((NAN, np.isnan(array)), (PLUS_INF, np.isposinf(array)), (MINUS_INF, np.isneginf(array))):
        kinds[found] = kind
    if blocked is not None:
        kinds[decode(blocked)] = BLOCKED
    return array, kinds


def _dequantised(codes: Array, scale: dict[str, Any]) -> tuple[Array, Array]:
    code = np.arange(256, dtype=np.float64)
    if scale["kind"] == "log":
        numbers = scale["high"] * 2.0 ** (-scale["octaves"] * (encoding.TOP_CODE - code) / (encoding.TOP_CODE - 1))
        numbers[encoding.ZERO_CODE] = 0
    elif scale["kind"] == "linear":
        numbers = scale["high"] * (code - encoding.MIDDLE_CODE) / (encoding.MIDDLE_CODE - 1)
    else:
        numbers = scale["high"] * code / encoding.TOP_CODE
    what = np.full(256, NUMBER, np.uint8)
    what[[encoding.BLOCKED_CODE, encoding.NAN_CODE, encoding.PLUS_INF_CODE, encoding.MINUS_INF_CODE]] = (
        BLOCKED,
        NAN,
        PLUS_INF,
        MINUS_INF,
    )
    return numbers.astype(np.float32)[codes], what[codes]
