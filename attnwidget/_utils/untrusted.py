"""Read values and tensors of a file that anybody may have made: each of a known type, size and range, or refused.

Nothing is converted: a text that looks like a number is not one, nor is a bool.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .validation import told

LONGEST = 10_000  # characters of a name or a sentence
LARGEST = 1 << 53  # the integers up to here are the same in JSON, float64 and JavaScript
FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def part_of(entry: Any, name: str) -> Any:
    """Return a part of a JSON object.

    Raises:
        ValueError: it is another value than an object, or has no such part.

    >>> part_of({"texts": 3}, "texts")
    3
    """
    if not isinstance(entry, dict):
        raise ValueError(f"{told(entry)} stands where an object with {name!r} is expected")
    if name not in entry:
        raise ValueError(f"{name!r} is missing")
    return entry[name]


def as_text(value: Any, name: str, longest: int = LONGEST) -> str:
    """Return a text of at most so many characters; else raise ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"{name} is {told(value)}, not a text")
    if len(value) > longest:
        raise ValueError(f"{name} has {len(value):,} characters, and {longest:,} are the most")
    return value


def as_flag(value: Any, name: str) -> bool:
    """Return true or false; else raise ValueError."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {told(value)}, neither true nor false")
    return value


def as_whole(value: Any, name: str, stop: int = LARGEST, least: int = 0) -> int:
    """Return an integer of a range; else raise ValueError.

    >>> as_whole(3, "head", 4)
    3
    >>> as_whole(True, "head", 4)
    Traceback (most recent call last):
    ValueError: head is True, not an integer from 0 to 3
    """
    if type(value) is not int or not least <= value < stop:
        raise ValueError(f"{name} is {told(value)}, not an integer from {least:,} to {stop - 1:,}")
    return value


def as_finite(value: Any, name: str) -> float:
    """Return a finite number; else raise ValueError."""
    if type(value) not in (int, float) or not abs(value) <= torch.finfo(torch.float64).max or not math.isfinite(value):
        raise ValueError(f"{name} is {told(value)}, not a finite number")
    return float(value)


def as_list(value: Any, name: str, most: int, length: int | None = None) -> list[Any]:
    """Return a list of at most so many entries, or of exactly `length`; else raise ValueError."""
    if not isinstance(value, list):
        raise ValueError(f"{name} is {told(value)}, not a list")
    if len(value) > most or (length is not None and len(value) != length):
        expected = f"at most {most:,}" if length is None else f"{length:,}"
        raise ValueError(f"{name} has {len(value):,} entries where {expected} are expected")
    return value


def as_object(value: Any, name: str, most: int) -> dict[str, Any]:
    """Return a JSON object of at most so many entries; else raise ValueError."""
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {told(value)}, not an object")
    if len(value) > most:
        raise ValueError(f"{name} has {len(value):,} entries where at most {most:,} are expected")
    for key in value:
        as_text(key, f"a name in {name}")
    return value


def as_texts(value: Any, name: str, most: int, length: int | None = None) -> list[str]:
    """Return a list of texts; else raise ValueError."""
    return [as_text(one, f"{name}[{at}]") for at, one in enumerate(as_list(value, name, most, length))]


def tensor_of(
    tensors: Mapping[str, Tensor],
    key: Any,
    name: str,
    shape: Sequence[int],
    dtypes: Collection[torch.dtype] = FLOATING,
    *,
    finite: bool = True,
) -> Tensor:
    """Return a tensor of a file.

    Args:
        tensors: those of the file, by their names in it.
        key: its name in the file.
        name: in errors.
        shape: that it must have.
        dtypes: it must have one of them.
        finite: whether each number must be finite.

    Raises:
        ValueError: there is no such tensor, or it is another one.
    """
    if not isinstance(key, str) or key not in tensors:
        raise ValueError(f"{name} is the tensor {told(key)}, which is missing")
    x = tensors[key]
    check_tensor(x.shape, x.dtype, name, shape, dtypes)
    if finite and x.is_floating_point() and not bool(x.isfinite().all()):
        raise ValueError(f"{name} has numbers that are not finite")
    return x


def check_tensor(
    found: Sequence[int], dtype: torch.dtype, name: str, shape: Sequence[int], dtypes: Collection[torch.dtype]
) -> None:
    """Raise ValueError unless a tensor has the shape, and one of the types, that are expected."""
    if tuple(found) != tuple(shape):
        raise ValueError(f"{name} has the shape {told(tuple(found))} in place of {tuple(shape)}")
    if dtype not in dtypes:
        wanted = " or ".join(str(one).removeprefix("torch.") for one in dtypes)
        raise ValueError(f"{name} holds {str(dtype).removeprefix('torch.')} in place of {wanted}")


def kind_named(value: Any, options: Sequence[str], name: str) -> str:
    """Return one of some words; else raise ValueError."""
    if not isinstance(value, str) or value not in options:
        raise ValueError(f"{name} is {told(value)} in place of {' or '.join(options)}")
    return value
