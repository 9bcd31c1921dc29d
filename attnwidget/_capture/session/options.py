"""What a capture records and keeps: the arguments of `capture`, checked once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch

from ..._tokens.tokenizers import spell
from ..._utils.choices import Numbers
from ..._utils.validation import FLOATS, as_choice, as_size
from ..call.memory_limit import read_limit
from ..modules.selection import Heads, Layer, read_heads, read_layers
from ..modules.self_or_cross import ToldCross

Keep = Literal["tensors", "overview"]


@dataclass(frozen=True)
class CaptureOptions:
    """The arguments of `capture`, beside the model, as `read_options` has checked them.

    Attributes:
        layers: to record; None: all.
        queries: of each record to keep; None: all.
        heads: to keep, for all layers or by layer; None: all.
        cross: the user's word on which modules are cross-attention.
        keep: "tensors", or "overview" to reduce them at once.
        values: whether to keep v.
        gradients: whether to keep the gradients of the heads' outputs.
        sources: whether to keep what each attention and MLP writes into the residual stream.
        clone: whether to copy tensors.
        device: where to keep tensors; None: where they are.
        dtype: the type in which to keep them; None: as they are.
        last: how many of the last forward passes to keep; None: all.
        every: keep each n-th forward pass; None: all.
        limit: the most bytes to keep; None: a share of the free memory.
        strict: whether to raise at the end of the block for attention that cannot be shown; else only warn.
        tokenizer: spells the ids that the model reads, or its name; None: they stay ids.
    """

    layers: tuple[Layer, ...] | None = None
    queries: Numbers | None = None
    heads: Heads | None = None
    cross: ToldCross = field(default_factory=ToldCross)
    keep: Keep = "tensors"
    values: bool = True
    gradients: bool = False
    sources: bool = False
    clone: bool = True
    device: torch.device | None = None
    dtype: torch.dtype | None = None
    last: int | None = None
    every: int | None = None
    limit: int | None = None
    strict: bool = True
    tokenizer: Any = None


def read_options(
    *,
    layers: Any = None,
    queries: Any = None,
    heads: Any = None,
    cross: Any = None,
    keep: Any = "tensors",
    values: Any = True,
    gradients: Any = False,
    sources: Any = False,
    clone: Any = True,
    device: Any = None,
    dtype: Any = None,
    last: Any = None,
    every: Any = None,
    limit: Any = None,
    strict: Any = True,
    tokenizer: Any = None,
) -> CaptureOptions:
    """Check the arguments of `capture` and return them; raise TypeError or ValueError with what to give instead."""
    if dtype is not None and dtype not in FLOATS:
        raise TypeError(f"dtype is {dtype!r}: give torch.float16, bfloat16, float32 or float64, or None")
    as_choice(keep, get_args(Keep), "keep")
    if keep == "overview" and queries is not None:
        raise ValueError("keep='overview' needs all queries: leave queries= out, or give keep='tensors'")
    return CaptureOptions(
        layers=read_layers(layers),
        queries=None if queries is None else Numbers(queries, "queries"),
        heads=read_heads(heads),
        cross=ToldCross(cross),
        keep=keep,
        values=bool(values),
        gradients=_read_gradients(gradients, keep, values),
        sources=_read_sources(sources, keep, values),
        clone=bool(clone),
        device=_read_device(device),
        dtype=dtype,
        last=None if last is None else as_size(last, "last"),
        every=None if every is None else as_size(every, "every"),
        limit=read_limit(limit),
        strict=bool(strict),
        tokenizer=read_tokenizer(tokenizer),
    )


def _read_gradients(gradients: Any, keep: str, values: Any) -> bool:
    if not isinstance(gradients, bool):
        raise TypeError(f"gradients is {gradients!r}: give True to keep the gradients of the heads' outputs, or False")
    if gradients and (keep != "tensors" or not values):
        given = "values=False" if keep == "tensors" else "keep='overview'"
        raise ValueError(f"gradients are kept beside q, k and v: leave {given} out")
    return gradients


def _read_device(device: Any) -> torch.device | None:
    try:
        return None if device is None else torch.empty(0, device=device).device
    except (AssertionError, NotImplementedError, RuntimeError, TypeError) as error:
        raise ValueError(
            f"device is {device!r}, which this torch does not have: give one that it has, such as 'cpu', or None"
        ) from error


def read_tokenizer(tokenizer: Any) -> Any:
    """Return a tokenizer, or its name; raise TypeError if it cannot spell ids."""
    if tokenizer is not None and not isinstance(tokenizer, str):
        spell([], tokenizer, "ids")
    return tokenizer


def _read_sources(sources: Any, keep: str, values: Any) -> bool:
    if not isinstance(sources, bool):
        raise TypeError(
            f"sources is {sources!r}: give True to keep what each attention and MLP writes into the residual stream, "
            f"or False"
        )
    if sources and (keep != "tensors" or not values):
        given = "values=False" if keep == "tensors" else "keep='overview'"
        raise ValueError(f"sources=True needs q, k and v: leave {given} out")
    return sources
