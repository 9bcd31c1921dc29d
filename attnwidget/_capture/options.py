"""What a capture is asked to record and to keep: the arguments of `capture`, checked once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from .._utils.validation import FLOATS


@dataclass(frozen=True)
class CaptureOptions:
    """The arguments of `capture`, beside the model, as `read_options` has checked them.

    Attributes:
        layers: numbers and names, or parts of names, of the layers to record; None: all.
        device: where to keep tensors; None: where they are.
        dtype: the type to keep them in; None: as they are.
        values: whether to keep v.
        clone: whether to copy tensors.
    """

    layers: list[int | str] | None = None
    device: torch.device | None = None
    dtype: torch.dtype | None = None
    values: bool = True
    clone: bool = True


def read_options(*, layers: Any, device: Any, dtype: Any, values: Any, clone: Any) -> CaptureOptions:
    """Check the arguments of `capture` and return them; raise TypeError or ValueError with what to give instead."""
    if dtype is not None and dtype not in FLOATS:
        raise TypeError(f"dtype is {dtype!r}: give torch.float16, bfloat16, float32 or float64, or None")
    return CaptureOptions(_read_layers(layers), _read_device(device), dtype, bool(values), bool(clone))


def _read_device(device: Any) -> torch.device | None:
    try:
        return None if device is None else torch.empty(0, device=device).device
    except (AssertionError, NotImplementedError, RuntimeError, TypeError) as error:
        raise ValueError(
            f"device is {device!r}, which this torch has not: give one that it has, such as 'cpu' or 'cuda:0', or None"
        ) from error


def _read_layers(layers: Any) -> list[int | str] | None:
    if layers is None:
        return None
    given = list(layers) if isinstance(layers, Iterable) and not isinstance(layers, str) else [layers]
    for one in given:
        if not isinstance(one, int | str) or isinstance(one, bool):
            raise TypeError(f"layers holds {one!r}: give numbers, or names of modules or dotted parts of them")
        if isinstance(one, int) and one < 0:
            raise ValueError(f"layers holds {one}: count from 0, for how many there are is known only at the end")
    if not given:
        raise ValueError("layers is empty: name one or more, or leave it out for all")
    return given


def is_part_of_name(part: str, name: str) -> bool:
    """Return whether a dotted name holds a dotted part: "h.5" is one of "transformer.h.5.attn", "h" of "h.5"."""
    return f".{part}." in f".{name}."
