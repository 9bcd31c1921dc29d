"""Encode data for the front-end: arrays as envelopes, pictures at one byte per cell, tokens as one buffer.

Exact numbers are sent as float32. A picture with more cells than a person can read has one byte per cell: codes for
zero, blocked, NaN and ±∞, and 250 steps between. `docs/contract.md` lists the codes;
`js/src/contract/decode.ts` is the mirror.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from math import log2
from typing import Any

import numpy as np
import torch
from torch import Tensor

Envelope = dict[str, Any]

# Codes in a picture with one byte per cell.
ZERO_CODE = 0
MIDDLE_CODE = 125  # zero, if values are signed
TOP_CODE = 250  # the greatest value
BLOCKED_CODE, NAN_CODE, PLUS_INF_CODE, MINUS_INF_CODE = 252, 253, 254, 255
OCTAVES = 16  # the log scale reaches from the maximum down to maximum / 65,536

EXACT_CELLS = 256 * 256  # a picture with no more cells is sent as float32
BUDGET = 240 * 1024  # bytes in one picture: an interaction sends at most 256 KiB
WORTH_DEFLATING = 4096  # bytes
WHOLE_TOKENS = 65_536  # tokens; up to here all are sent at once, if they take
TEXT = 224 * 1024  # bytes at most
PAGE = 4096  # tokens sent at a time otherwise
STEPS = (2, 4, 8, 16, 32, 64, 128)  # neighboring codes merged into one if a picture has too many bytes
UNIT = {"kind": "unit", "high": 1.0}
EVEN = 4  # up to this step, merged codes are evenly spaced


def encode(array: np.ndarray[Any, Any]) -> Envelope:
    """Return an array as an envelope: bytes (deflated if that saves at least 2 %), dtype and shape."""
    raw = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return _envelope(raw, array.dtype.name, array.shape)


def encode_bits(cells: np.ndarray[Any, Any]) -> Envelope:
    """Return booleans as an envelope, eight per byte, the first in the highest bit."""
    return _envelope(np.packbits(cells).tobytes(), "bits", cells.shape)


def encode_numbers(values: Tensor, blocked: Tensor | None) -> tuple[Envelope, Envelope | None]:
    """Return exact numbers as float32, and which cells are blocked (None if none are)."""
    return encode(to_numpy(values)), None if blocked is None else encode_bits(blocked.cpu().numpy())


def encode_picture(values: Tensor, blocked: Tensor | None, *, signed: bool) -> dict[str, Any]:
    """Encode a matrix for display: exact up to 256 × 256 cells, one byte per cell above that.

    Returns:
        The envelopes `values` and `blocked`, and `low` and `high`, the least and greatest finite value, or None.
    """
    if values.numel() > EXACT_CELLS:
        return {**encode_cells(values, blocked, signed=signed), "blocked": None}
    cells = to_numpy(values)
    exact, bits = encode_numbers(values, blocked)
    low, high = _range(cells, blocked)
    return {"low": low, "high": high, "values": exact, "blocked": bits}


def encode_cells(values: Tensor, blocked: Tensor | None, *, signed: bool) -> dict[str, Any]:
    """Encode a matrix for display, one byte per cell.

    Returns:
        The envelope `values`, and `low` and `high`, the least and greatest finite value, or None.
    """
    return encode_together([(values, blocked)], signed=signed)[0]


def encode_together(
    parts: Sequence[tuple[Tensor, Tensor | None]], *, signed: bool, budget: float = BUDGET
) -> list[dict[str, Any]]:
    """Encode several matrices for display, one byte per cell.

    Args:
        parts: (values, blocked) of each matrix; blocked may be None.
        signed: whether values run in two directions from 0.
        budget: bytes for all of them together; if noise does not deflate, all get fewer steps.

    Returns:
        The result of `encode_cells` for each matrix.
    """
    made: list[dict[str, Any]] = []
    codes = []
    for values, blocked in parts:
        cells = to_numpy(values)
        low, high = _range(cells, blocked)
        most = max(abs(low or 0.0), abs(high or 0.0))
        scale = {"kind": "linear", "high": most} if signed else {"kind": "log", "high": most, "octaves": OCTAVES}
        codes.append(_mark(_signed_codes(cells, most) if signed else _log_codes(cells, most), cells, blocked))
        made.append({"low": low, "high": high, "values": {**encode(codes[-1]), "scale": scale}})
    excess = 8 * (sum(len(one["values"]["data"]) for one in made) - budget) / max(1, sum(code.size for code in codes))
    for step in STEPS if excess > 0 else ():
        if excess > 1 + log2(step):  # doubling the step saves at most one bit per cell
            continue
        for one, fine in zip(made, codes, strict=True):
            one["values"] |= encode(_coarser(fine, step, signed=signed))
        if sum(len(one["values"]["data"]) for one in made) <= budget:
            break
    return made


def _range(cells: np.ndarray[Any, Any], blocked: Tensor | None) -> tuple[float | None, float | None]:
    """Return the least and greatest finite value, or None and None."""
    shown = np.isfinite(cells) if blocked is None else np.isfinite(cells) & ~blocked.cpu().numpy()
    finite = cells[shown]
    return (float(finite.min()), float(finite.max())) if finite.size else (None, None)


def encode_thumbnails(heads: Iterable[tuple[Tensor, Tensor]]) -> Envelope:
    """Encode small pictures, each on its own range: 0 to 1 in 250 steps.

    Args:
        heads: (values, allowed) of each head, two matrices of one shape.
    """
    values, allowed = zip(*heads, strict=True)
    cells = to_numpy(torch.stack(values))
    high = np.max(cells, axis=(1, 2), keepdims=True, where=np.isfinite(cells), initial=0.0)
    return {**encode(_mark(_share_codes(cells, high), cells, ~torch.stack(allowed))), "scale": UNIT}


def encode_signed_thumbnails(heads: Iterable[tuple[Tensor, Tensor]]) -> Envelope:
    """Encode small pictures of signed numbers, each on its own range: −1 to 1 in 248 steps."""
    made = []
    for values, allowed in heads:
        cells = to_numpy(values)
        high = float(np.max(np.abs(cells), where=np.isfinite(cells), initial=0.0))
        made.append(_mark(_signed_codes(cells, high), cells, ~allowed))
    return {**encode(np.stack(made)), "scale": {"kind": "linear", "high": 1.0}}


def encode_highs(heads: Iterable[tuple[Tensor, Tensor]]) -> Envelope:
    """Encode the largest finite absolute value of each small picture, as float32."""
    cells = (np.abs(to_numpy(values)) for values, _ in heads)
    return encode(np.array([np.max(one, where=np.isfinite(one), initial=0.0) for one in cells], np.float32))


def encode_shares(values: Tensor) -> Envelope:
    """Encode nonnegative numbers as shares of the largest, in 250 steps."""
    cells = to_numpy(values)
    high = float(np.max(cells, where=np.isfinite(cells), initial=0.0))
    return {**encode(_mark(_share_codes(cells, high), cells, None)), "scale": {**UNIT, "high": high}}


def encode_tokens(tokens: Sequence[str] | None) -> dict[str, Any] | None:
    """Encode tokens as one UTF-8 buffer, the byte offset where each token ends, and their number.

    If they are too many or too long to send at once, the buffer holds only the first ones.
    """
    if tokens is None:
        return None
    if len(tokens) <= WHOLE_TOKENS:
        whole = _joined(_as_bytes(tokens))
        if len(whole["text"]) + len(whole["ends"]["data"]) <= TEXT:
            return {**whole, "length": len(tokens)}
    return {**encode_page(tokens[:PAGE]), "length": len(tokens)}


def encode_all_tokens(tokens: Sequence[str] | None, spelling: str | None = None) -> dict[str, Any] | None:
    """Encode all tokens for a file, however many, and how their vocabulary is written if known."""
    if tokens is None:
        return None
    return {**_joined(_as_bytes(tokens)), "length": len(tokens)} | ({"spelling": spelling} if spelling else {})


def encode_page(tokens: Sequence[str]) -> dict[str, Any]:
    """Encode some tokens as one UTF-8 buffer and the byte offset where each token ends.

    If the text is too long, the longest tokens are cut.
    """
    pieces, longest = _as_bytes(tokens), TEXT
    while sum(map(len, pieces)) > TEXT:
        longest //= 2
        pieces = [piece if len(piece) <= longest else _cut(piece, longest) for piece in pieces]
    return _joined(pieces)


def _as_bytes(tokens: Sequence[str]) -> list[bytes]:
    return [token.encode("utf-8", "surrogatepass") for token in tokens]


def _cut(piece: bytes, longest: int) -> bytes:
    """Return the beginning of a token in whole characters, with an ellipsis."""
    return piece[: max(0, longest - 3)].decode("utf-8", "ignore").encode() + "…".encode()


def _joined(pieces: Sequence[bytes]) -> dict[str, Any]:
    ends = np.cumsum([len(piece) for piece in pieces], dtype=np.uint32)
    return {"text": b"".join(pieces), "ends": encode(ends)}


def encode_links(heads: Sequence[tuple[Tensor, Tensor]], sinks: Sequence[Tensor | None] = ()) -> dict[str, Any]:
    """Encode the strongest links of several heads, (heads, n, count): partners and exact weights.

    `sinks` holds the learned sink's weights for each head, (queries,); None for a head without a sink.
    """
    partners = np.stack([partners.cpu().numpy().astype(np.uint32) for partners, _ in heads])
    weights = np.stack([to_numpy(weights) for _, weights in heads])
    known = [to_numpy(one) for one in sinks if one is not None]
    return {
        "partners": encode(partners),
        "weights": encode(weights),
        "sinks": encode(np.stack(known)) if known else None,
    }


def detach(envelope: Envelope | None, buffers: list[bytes]) -> Envelope | None:
    """Move an envelope's bytes to the message's buffers, and return it with the buffer's index as `data`."""
    if envelope is None:
        return None
    buffers.append(envelope["data"])
    return {**envelope, "data": len(buffers) - 1}


def to_numpy(values: Tensor) -> np.ndarray[Any, Any]:
    """Return a tensor of any device and float type as float32 in main memory; values out of range become ±∞."""
    return values.detach().to("cpu", torch.float32).numpy()


def _envelope(raw: bytes, dtype: str, shape: tuple[int, ...]) -> Envelope:
    deflated = False
    if len(raw) >= WORTH_DEFLATING:
        # Run lengths and frequencies: twice as fast on pictures as searching for repeats, and smaller.
        deflate = zlib.compressobj(1, strategy=zlib.Z_RLE)
        smaller = deflate.compress(raw) + deflate.flush()
        if len(smaller) < 0.98 * len(raw):
            raw, deflated = smaller, True
    return {"data": raw, "dtype": dtype, "shape": list(shape), "deflated": deflated}


def _share_codes(cells: np.ndarray[Any, Any], high: Any) -> np.ndarray[Any, Any]:
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.nan_to_num(cells / np.float32(high), nan=0.0, posinf=0.0, neginf=0.0)
    return np.rint(share * TOP_CODE).astype(np.uint8)


def _log_codes(cells: np.ndarray[Any, Any], high: float) -> np.ndarray[Any, Any]:
    if high == 0:
        return np.zeros(cells.shape, np.uint8)
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.rint(TOP_CODE + (TOP_CODE - 1) / OCTAVES * np.log2(np.maximum(cells, 0) / np.float32(high)))
    codes = np.clip(np.nan_to_num(steps, nan=0.0, posinf=TOP_CODE, neginf=1), 1, TOP_CODE).astype(np.uint8)
    codes[cells == 0] = ZERO_CODE
    return codes


def _signed_codes(cells: np.ndarray[Any, Any], high: float) -> np.ndarray[Any, Any]:
    with np.errstate(divide="ignore", invalid="ignore"):
        share = cells / np.float32(high) if high > 0 else np.zeros_like(cells)
    steps = np.rint(MIDDLE_CODE + (MIDDLE_CODE - 1) * np.clip(np.nan_to_num(share), -1, 1))
    return steps.astype(np.uint8)


def _coarser(codes: np.ndarray[Any, Any], step: int, *, signed: bool) -> np.ndarray[Any, Any]:
    """Return values with fewer codes; with very few codes, those near the greatest value stay closer together."""
    is_value, code = (codes > ZERO_CODE) & (codes <= TOP_CODE), np.arange(256)
    if signed:
        coarse = np.clip(MIDDLE_CODE + np.rint((code - MIDDLE_CODE) / step) * step, 1, 2 * MIDDLE_CODE - 1)
    elif step <= EVEN:
        coarse = np.clip(TOP_CODE - np.rint((TOP_CODE - code) / step) * step, 1, TOP_CODE)
    else:
        below = np.sqrt((TOP_CODE - 1) * np.clip(TOP_CODE - code, 0, TOP_CODE - 1))
        coarse = TOP_CODE - np.rint(np.minimum(np.rint(below / step) * step, TOP_CODE - 1) ** 2 / (TOP_CODE - 1))
    return np.where(is_value, coarse.astype(np.uint8)[codes], codes)


def _mark(codes: np.ndarray[Any, Any], cells: np.ndarray[Any, Any], blocked: Tensor | None) -> np.ndarray[Any, Any]:
    codes[np.isnan(cells)] = NAN_CODE
    codes[np.isposinf(cells)] = PLUS_INF_CODE
    codes[np.isneginf(cells)] = MINUS_INF_CODE
    if blocked is not None:
        codes[blocked.cpu().numpy()] = BLOCKED_CODE
    return codes
