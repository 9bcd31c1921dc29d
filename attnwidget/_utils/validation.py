"""Check a user's tensors, numbers and words; each error names the next step.

Nothing is copied or moved.
"""

from __future__ import annotations

import math
import operator
import reprlib
import warnings
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.utils.dlpack import from_dlpack

from .mutation import note_shared

LISTED = 24  # the most names in an error
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def as_tensor(x: Any, name: str) -> Tensor:
    """Return a tensor on the memory of x.

    Args:
        x: a torch tensor, or anything with `__dlpack__` or `__array__`.
        name: of the argument, for errors.

    Raises:
        TypeError: x is of another type, or its numbers cannot be read one by one.

    >>> as_tensor(np.array([[1.0, 2.0]]), "q")
    tensor([[1., 2.]], dtype=torch.float64)
    """
    if not isinstance(x, Tensor | np.ndarray) and hasattr(x, "__dlpack__"):
        try:
            x = from_dlpack(x)
            note_shared(x)
        except (BufferError, RuntimeError, TypeError, ValueError):  # read-only, or a dtype that DLPack lacks
            if not hasattr(x, "__array__"):
                raise
    if not isinstance(x, Tensor) and hasattr(x, "__array__"):
        x = _from_numpy(np.asanyarray(x), name)
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is {kind_of(x)}: give a torch tensor or a numpy array")
    _refuse_without_numbers(x, name)
    if hasattr(x, "full_tensor"):
        raise TypeError(f"{name} is spread over several devices: give {name}.full_tensor()")
    if x.layout is not torch.strided or x.is_quantized or x.is_meta:
        kind = "quantized" if x.is_quantized else "without data" if x.is_meta else str(x.layout).removeprefix("torch.")
        raise TypeError(f"{name} is {kind}: give a dense tensor with its numbers")
    return x


def _refuse_without_numbers(x: Tensor, name: str) -> None:
    """Raise TypeError for a tensor whose numbers cannot be read one by one, with what to give instead."""
    kind = type(x).__name__
    if kind == "FakeTensor":
        raise TypeError(f"{name} is a FakeTensor, which has no numbers: give the tensor itself, outside FakeTensorMode")
    if kind == "MaskedTensor":
        raise TypeError(f"{name} is a MaskedTensor: give {name}.get_data(), and what may be attended to as mask=")
    if x.is_nested:
        raise TypeError(f"{name} is a nested tensor: give {name}.to_padded_tensor(0.0), and the lengths as a mask")
    if is_lazy(x):
        raise TypeError(f"{name} is a parameter without numbers yet: run its module once")
    functorch = getattr(torch._C, "_functorch", None)
    if functorch is not None and functorch.is_batchedtensor(x):
        raise TypeError(f"{name} is inside torch.vmap, where its numbers cannot be read: call this outside")
    if functorch is not None and functorch.is_gradtrackingtensor(x):
        raise TypeError(
            f"{name} is inside torch.func.grad, vjp or jvp, and here nothing has a gradient: call this outside, or use "
            "attnwidget.scaled_dot_product_attention"
        )


def detached(x: Any) -> Any:
    """Return x, a tensor without its graph; the memory stays the same."""
    return x.detach() if isinstance(x, Tensor) and not is_lazy(x) else x


def _from_numpy(x: np.ndarray[Any, Any], name: str) -> Tensor:
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array: give {name}.filled(0), and what is masked as mask=")
    if x.dtype.kind not in "biufc" or x.dtype.itemsize > (16 if x.dtype.kind == "c" else 8):
        raise TypeError(f"{name} holds {x.dtype}: give float32 or float64")
    x = np.asarray(x, dtype=x.dtype.newbyteorder("="))  # copies big-endian numbers only
    if not x.flags.aligned or any(step < 0 or step % x.itemsize for step in x.strides):
        x = x.copy()  # torch has no such strides
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ")  # we only read
        found = torch.from_numpy(x)
    note_shared(found)
    return found


def check_floats(x: Tensor, name: str) -> None:
    """Raise TypeError unless x holds numbers with which attention can be computed."""
    if x.dtype in FLOATS:
        return
    dtype = str(x.dtype).removeprefix("torch.")
    if x.dtype.is_complex:
        raise TypeError(f"{name} holds {dtype}: attention needs real numbers: give its real part or its modulus")
    if x.dtype.is_floating_point:
        raise TypeError(f"{name} holds {dtype} without its scale: multiply it by its scale and convert it to float32")
    raise TypeError(f"{name} holds {dtype}: attention needs floating point: convert it to float32")


# Words and numbers.


def told(value: Any) -> str:
    """Return a value as text for an error, whatever it is and however long."""
    try:
        return reprlib.repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, or deeply nested lists
        return f"{kind_of(value)} too large to be written"


def kind_of(value: Any) -> str:
    """Return the type of a value for an error, with its article.

    >>> kind_of(3), kind_of("text"), kind_of(None)
    ('an int', 'a str', 'None')
    """
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}"


def as_choice(value: Any, options: Sequence[str], name: str) -> str:
    """Return value if it is one of the options; else raise ValueError with the nearest of them."""
    if isinstance(value, str) and value in options:
        return value
    raise ValueError(f"no {name} is called {value!r}: {nearest(value, options)}give one of {', '.join(options)}")


LARGEST = float(torch.finfo(torch.float32).max)


def as_number(value: Any, name: str) -> float:
    """Return value as a finite float; else raise TypeError or ValueError."""
    try:
        number = float(value) if not isinstance(value, str | bool) else None
    except OverflowError:
        raise ValueError(f"{name} is {told(value)}: give a number that a float holds") from None
    except (TypeError, ValueError, RuntimeError):
        number = None
    if number is None:
        raise TypeError(f"{name} is {told(value)}: give a number")
    if not math.isfinite(number):
        raise ValueError(f"{name} is {number}: give a finite number")
    if abs(number) > LARGEST:
        raise ValueError(f"{name} is {number}: give a number up to {LARGEST:.3g}, the largest of float32")
    return number


def as_positive(value: Any, name: str) -> float:
    """Return value as a finite float above 0; else raise TypeError or ValueError."""
    number = as_number(value, name)
    if number <= 0:
        raise ValueError(f"{name} is {number}: give a number above 0, or None for none")
    return number


def as_size(value: Any, name: str) -> int:
    """Return value as an integer of at least 1; else raise TypeError or ValueError."""
    try:
        size = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {told(value)}: give an integer") from None
    if size < 1:
        raise ValueError(f"{name} is {told(size)}: give 1 or more")
    return size


ELSEWHERE = {  # keywords of other libraries: our keyword for each, and how to write it
    "attention_mask": ("mask", 'mask=attention_mask, mask_means="keep"'),
    "attn_mask": ("mask", "mask=attn_mask, if it is of scaled_dot_product_attention, where True may attend"),
    "key_padding_mask": ("mask", 'mask=key_padding_mask, mask_means="hide"'),
    "src_key_padding_mask": ("mask", 'mask=src_key_padding_mask, mask_means="hide"'),
    "block_mask": ("mask", "mask=block_mask.mask_mod"),
    "score_mod": ("bias", "bias=score_mod"),
    "attn_bias": ("bias", "bias=attn_bias"),
    "softmax_scale": ("scale", "scale=softmax_scale"),
    "sm_scale": ("scale", "scale=sm_scale"),
    "scaling": ("scale", "scale=scaling"),
    "sliding_window": ("window", "window=sliding_window"),
    "s_aux": ("sinks", "sinks=s_aux"),
    "attention": ("tokens", "AttentionWidget.from_weights(attention, tokens=tokens)"),
    "attentions": ("tokens", "AttentionWidget.from_weights(attentions, tokens=tokens)"),
    "encoder_attention": ("tokens", "AttentionWidget(outputs), of a model's outputs with all of them"),
    "cross_attention": ("tokens", "AttentionWidget(outputs), of a model's outputs with all of them"),
    "labels": ("tokens", "tokens=labels"),
}


def refuse_unknown(given: Iterable[str], known: Iterable[str]) -> None:
    """Raise TypeError for the first unknown keyword, with its equivalent, or the nearest known one."""
    known = list(known)
    for name in given:
        if name not in known:
            ours, written = ELSEWHERE.get(name, ("", ""))
            if ours in known:
                raise TypeError(f"no keyword is called {name!r}: write {written}")
            there = ", ".join(known) if len(known) <= LISTED else f"the {len(known)} that its help() lists"
            raise TypeError(f"no keyword is called {name!r}: {nearest(name, known)}give one of {there}")


def nearest(name: Any, known: Sequence[str]) -> str:
    """Return "did you mean …? else " if one of the known names is close to the given one, else nothing."""
    close = closest(name, known)
    return "" if close is None else f"did you mean {close!r}? else "


def closest(name: Any, known: Sequence[str], cutoff: float = 0.6) -> str | None:
    """Return the known name nearest to the given one; None if none is as near as `cutoff`, 0 to 1."""
    return next(iter(get_close_matches(str(name), known, n=1, cutoff=cutoff)), None)
