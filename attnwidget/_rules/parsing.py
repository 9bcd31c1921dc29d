"""Read the masks, windows and biases that users give into `Rules`.

As in torch's SDPA, True in a bool mask means "may attend", and a float mask is added. An ambiguous mask raises an error
that names the keyword to give.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from .._utils.indexing import Block
from .._utils.validation import FLOATS, as_choice, as_number, as_tensor, check_floats
from ..masks import Mask, as_mask, causal, sliding_window
from .options import AttentionOptions, MaskDims, MaskMeans
from .rules import Bias, ByIndex, Keep, Rule, Rules, ScoreFunction, indices

MEANINGS = get_args(MaskMeans)
READINGS = get_args(MaskDims)  # of a mask's axes, for each number of axes the most likely first
BIASES = ("qk", "hqk", "bqk", "bhqk")

ROOM = 100  # nested calls to leave between a mask function and Python's limit

Sizes = tuple[int, int, int, int]  # (B, H, Q, K)


class MaskAndBias(NamedTuple):
    """The mask and the bias of an attention as rules, which other options of the same tensors reuse."""

    mask: tuple[Rule, ...] = ()
    bias: Bias | ScoreFunction | None = None


def read_mask_and_bias(
    options: AttentionOptions,
    shape: Sizes,
    dtype: torch.dtype,
    device: torch.device,
    known: tuple[AttentionOptions, MaskAndBias] | None = None,
) -> MaskAndBias:
    """Read the mask and the bias that a user gave.

    Args:
        options: their mask is a bool, floating or integer tensor or array that broadcasts to shape, or a mask function;
            their bias is a floating tensor or array that broadcasts to shape, or
            f(score, b, h, q_idx, kv_idx) -> score.
        shape: (B, H, Q, K).
        dtype: of q and k.
        device: of q, k and v.
        known: other options for the same tensors, with their mask and bias; equal ones are reused.

    Raises:
        TypeError, ValueError: a mask or bias has no reading, or two.
    """
    if not isinstance(options.is_causal, bool | np.bool_):
        raise TypeError(f"is_causal is {options.is_causal!r}: give True or False")
    if options.window is not None:
        sliding_window(options.window)  # raises if it is invalid
    before, read = known if known is not None else (None, MaskAndBias())
    if before is not None and _mask_keywords(before) == _mask_keywords(options):
        mask = read.mask
    else:
        mask = _read_mask(options.mask, options.mask_means, options.mask_dims, shape, dtype, device)
    if before is not None and before.bias is options.bias:
        return MaskAndBias(mask, read.bias)
    return MaskAndBias(mask, _read_bias(options.bias, shape, dtype, device))


def _mask_keywords(options: AttentionOptions) -> tuple[Any, ...]:
    return id(options.mask), options.mask_means, options.mask_dims


def rules_of(options: AttentionOptions, read: MaskAndBias, device: torch.device) -> Rules:
    """Return all rules of some options, given their mask and bias."""
    known = [mask for _, mask in options.extra_masks]
    known += [causal] if options.is_causal else []
    known += [] if options.window is None else [sliding_window(options.window)]
    added = read.bias if isinstance(read.bias, Bias) else None
    rules: list[Rule] = [*(ByIndex(mask, device) for mask in known), *read.mask]
    rules += [] if added is None else [added]
    functions = [read.bias] if isinstance(read.bias, ScoreFunction) else []
    return Rules(tuple(rules), (*functions, *(rule for rule in rules if isinstance(rule, Bias))))


def read_sinks(options: AttentionOptions, heads: int) -> Tensor | None:
    """Return the logit of each head's learned sink, (H,), as a view; None without sinks.

    Raises:
        TypeError, ValueError: the logits have the wrong type or shape, or hold NaN or +∞; −∞ means no sink.

    >>> read_sinks(AttentionOptions(sinks=0.0), 2)
    tensor([0., 0.])
    """
    if options.sinks is None:
        return None
    if isinstance(options.sinks, int | float):
        if options.sinks == -inf:
            return None
        return torch.tensor(as_number(options.sinks, "sinks"), device="cpu").expand(heads)
    found = as_tensor(options.sinks, "sinks").detach()
    check_floats(found, "sinks")
    if found.shape not in ((), (heads,)):
        raise ValueError(
            f"sinks has shape {tuple(found.shape)} but there are {heads} query heads: give one number for each, "
            f"({heads},), or one for all"
        )
    if bool(torch.any(found.isnan() | (found == inf))):
        raise ValueError("sinks holds NaN or +∞: give finite numbers, or −∞ for a head without a sink")
    return found.expand(heads)


def read_rules(options: AttentionOptions, shape: Sizes, dtype: torch.dtype, device: torch.device) -> Rules:
    """Read the rules of some options: see `read_mask_and_bias`.

    >>> import torch
    >>> options = AttentionOptions(mask=torch.eye(3).bool(), is_causal=True)
    >>> rules = read_rules(options, shape=(1, 1, 3, 3), dtype=torch.float32, device=torch.device("cpu"))
    >>> rules.allowed(Block(0, 0, range(0, 1), range(1, 3)))
    False
    """
    return rules_of(options, read_mask_and_bias(options, shape, dtype, device), device)


class DerivedMask(Mask):
    """A mask derived from another attention. It is not probed, since that could take long.

    For example, which keys a cache evicts can depend on the weights of all earlier queries.
    """


def _is_function(x: Any) -> bool:
    return callable(x) and not isinstance(x, Tensor) and not hasattr(x, "__array__")


# Functions of indices.


def _read_mask(
    mask: Any, means: str | None, dims: str | None, shape: Sizes, dtype: torch.dtype, device: torch.device
) -> tuple[Rule, ...]:
    given = {name: value for name, value in (("mask_means", means), ("mask_dims", dims)) if value is not None}
    if mask is None:
        for name, value in given.items():
            raise ValueError(f"{name} is {value!r} but there is no mask: give mask= as well")
        return ()
    if _is_function(mask):
        for name, value in given.items():
            raise ValueError(
                f"{name} is {value!r} but mask is a function, which returns True where a query may attend: "
                f"leave {name} out"
            )
        return tuple(ByIndex(one, device) for one in read_mask_function(mask, shape, device).parts_of_all())
    if means is not None:
        as_choice(means, MEANINGS, "mask_means")
    if dims is not None:
        as_choice(dims, READINGS, "mask_dims")
    mask = _on_device(mask, "mask", device)
    return (_as_rule(by_reading(mask, "mask", READINGS, dims, shape), means, dtype),)


def read_mask_function(mask: Any, shape: Sizes, device: torch.device) -> Mask:
    """Return a mask function as a `Mask`, after probing it with a few cells.

    Raises:
        TypeError, ValueError: it does not return a bool for each cell, or is for another number of samples.
    """
    found = as_mask(mask)
    if found.sample_count not in (None, shape[0]):
        there = "there is 1" if shape[0] == 1 else f"there are {shape[0]}"
        raise ValueError(
            f"mask has rules for {found.sample_count} samples, and {there}: give as many lengths as samples"
        )
    if not isinstance(mask, DerivedMask):
        _probe(mask, (), "mask", shape, device, lambda found: found.dtype is torch.bool, "a bool tensor")
    return found


def _read_score_function(bias: Any, shape: Sizes, dtype: torch.dtype, device: torch.device) -> ScoreFunction:
    score = torch.zeros((), dtype=torch.promote_types(dtype, torch.float32), device=device)
    _probe(bias, (score,), "bias", shape, device, Tensor.is_floating_point, "a floating tensor")
    return ScoreFunction(bias)


def _deeper(function: Any, calls: int) -> Any:
    """Return a function that makes its call `calls` levels deeper, since later calls come from deeper in the stack."""
    return (lambda *given: _deeper(function, calls - 1)(*given)) if calls else function


def _probe(
    function: Any,
    first: tuple[Tensor, ...],
    name: str,
    shape: Sizes,
    device: torch.device,
    fits: Callable[[Tensor], bool],
    wanted: str,
) -> None:
    """Probe a function with the last cells, so that a mistake in it raises an error at once."""
    B, H, Q, K = shape
    cells = Block(B - 1, H - 1, range(max(0, Q - 2), Q), range(max(0, K - 3), K))
    size = (len(cells.queries), len(cells.keys))
    with torch.no_grad():
        try:
            found = _deeper(function, ROOM)(*(x.expand(size) for x in first), *indices(cells, device))
        except RecursionError as error:
            raise ValueError(
                f"{name} is a function whose calls are nested too deep for Python: nest at most some hundred calls"
            ) from error
        except Exception as error:
            raise ValueError(
                f"{name}({'score, ' * len(first)}b, h, q_idx, kv_idx) fails for sample {B - 1}, head {H - 1} "
                f"and tensors of indices up to query {Q - 1} and key {K - 1}: {error}"
            ) from error
    if not isinstance(found, Tensor) or not fits(found):
        kind = str(found.dtype).removeprefix("torch.") if isinstance(found, Tensor) else type(found).__name__
        raise TypeError(f"{name} is a function that returns {kind}: let it return {wanted}")
    if found.ndim > 2 or any(n not in (1, m) for n, m in zip(found.shape[::-1], size[::-1], strict=False)):
        raise ValueError(
            f"{name} is a function that returns shape {tuple(found.shape)} where its indices broadcast to {size}: "
            "let it return a number for each pair of indices"
        )


# Tensors.


def _on_device(x: Any, name: str, device: torch.device) -> Tensor:
    x = as_tensor(x, name)
    if x.device != device:
        raise ValueError(f"{name} is on {x.device} but q is on {device}: move them to one device")
    return x


def _read_bias(bias: Any, shape: Sizes, dtype: torch.dtype, device: torch.device) -> Bias | ScoreFunction | None:
    if bias is None:
        return None
    if _is_function(bias):
        return _read_score_function(bias, shape, dtype, device)
    bias = _on_device(bias, "bias", device)
    if bias.dtype not in FLOATS:
        name = str(bias.dtype).removeprefix("torch.")
        raise TypeError(f"bias holds {name}: give float32, to be added to the scores, or pass it as mask=")
    return Bias("bias", by_reading(bias, "bias", BIASES, None, shape), _lowest(bias, dtype))


def _as_rule(mask: Tensor, means: str | None, dtype: torch.dtype) -> Keep | Bias:
    name = str(mask.dtype).removeprefix("torch.")
    if mask.dtype in FLOATS:
        if means is not None:
            raise ValueError(
                f"mask holds {name}, which is added to the scores: leave mask_means out, or give a bool mask"
            )
        return Bias("mask", mask, _lowest(mask, dtype))
    if mask.is_floating_point() or mask.is_complex():
        raise TypeError(f"mask holds {name}: give bool, or float32, to be added to the scores")
    if mask.dtype is not torch.bool:
        if means is None:
            raise ValueError(
                f"mask holds {name}: say mask_means='keep' if 1 may be attended to (an attention_mask), "
                "or mask_means='hide' if 1 is blocked (a key_padding_mask)"
            )
        if bool(((mask != 0) & (mask != 1)).any()):
            raise ValueError(f"mask holds {name} other than 0 and 1: give a bool mask, such as mask != 0")
    return Keep(mask, hide=means == "hide")


def _lowest(x: Tensor, dtype: torch.dtype) -> float:
    """Return the number at or below which a bias blocks: masks are often filled with the lowest one of a type.

    The coarser type of q and the bias, unless the bias has numbers that float16 does not: it was not made there.
    """
    own, of_q = torch.finfo(x.dtype).min, torch.finfo(dtype).min
    if dtype is torch.float16 and own < of_q and bool(((x < 2 * of_q) & (x > -torch.inf)).any()):
        return own
    return max(own, of_q)


def by_reading(x: Tensor, name: str, readings: tuple[str, ...], dims: str | None, shape: Sizes) -> Tensor:
    """Return a mask or bias as (B, H, Q, K), with size 1 for axes that it lacks."""
    sizes = dict(zip("bhqk", shape, strict=True))
    given, wanted = tuple(x.shape), f"(B, H, Q, K) = {shape}"
    possible = [reading for reading in readings if len(reading) == x.ndim and dims in (None, reading)]
    if not possible:
        axes = "1 axis" if x.ndim == 1 else f"{x.ndim} axes"
        advice = f"{name}_dims {dims!r} names {len(dims)}" if dims else f"give {_spelled(readings, ', ')}"
        raise ValueError(f"{name} has shape {given}, {axes}: {advice}")
    fitting = [
        reading
        for reading in possible
        if all(size in (1, sizes[axis]) for axis, size in zip(reading, given, strict=True))
    ]
    if not fitting:
        raise ValueError(
            f"{name} has shape {given}, which does not fit {wanted} as {_spelled(tuple(possible), ' or ')}: "
            "give it those sizes, or 1"
        )
    if len(fitting) > 1 and not torch.equal(x, x[:1].expand_as(x)):  # the readings differ in the first axis
        choices = " or ".join(f"mask_dims={reading!r}" for reading in fitting)
        advice = f"say {choices}" if name == "mask" else "give it 4 axes, of size 1 where it is the same for all"
        raise ValueError(f"{name} has shape {given}, which fits {wanted} in two ways: {advice}")
    x = x[tuple(slice(None) if axis in fitting[0] else None for axis in "bhqk")]
    for axis, step in enumerate(x.stride()):
        x = x.narrow(axis, 0, 1) if step == 0 else x  # an expanded axis repeats one number
    return x


def _spelled(readings: tuple[str, ...], between: str) -> str:
    return between.join(f"({', '.join(reading.upper())})" for reading in readings)
