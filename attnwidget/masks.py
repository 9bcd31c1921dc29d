"""Which keys a query may attend to: the conventions of masks, read once into `Rules` that are asked block by block.

A bool mask means what torch's SDPA means by it, True = may attend; a float mask is added. Whatever has two readings is
refused with the keyword that tells them apart. Masks stay as they were given: nothing is expanded to (Q, K).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from .places import Cells, hull, positions, take
from .tensors import FLOATS, as_choice, as_tensor

MEANINGS = ("keep", "hide")
READINGS = ("qk", "bk", "bqk", "hqk", "bhqk")  # of a mask's axes, the likely one of each length first

Coverage = Literal["all", "some", "none"]  # how many cells of a block are allowed


class Rule(Protocol):
    """One reason for which cells are blocked. A new kind of mask is a class with these four."""

    def span(self, cells: Cells) -> range:
        """Keys outside of which none of the queries may attend."""

    def coverage(self, cells: Cells) -> Coverage:
        """How many of the cells are allowed; "some" is always true enough."""

    def allowed(self, cells: Cells) -> Tensor:
        """bool, (queries, keys) or broadcasts to it."""

    def tensors(self) -> tuple[Tensor, ...]:
        """What the rule is read from, and changes with."""


@dataclass(frozen=True)
class Causal:
    """key ≤ query, aligned at the upper left as torch's `is_causal`."""

    device: torch.device

    def span(self, cells: Cells) -> range:
        rows, columns = hull(cells.queries), hull(cells.keys)
        return range(columns.start, min(columns.stop, rows.stop))

    def coverage(self, cells: Cells) -> Coverage:
        rows, columns = hull(cells.queries), hull(cells.keys)
        if columns.start >= rows.stop:
            return "none"
        return "all" if columns.stop <= rows.start + 1 else "some"

    def allowed(self, cells: Cells) -> Tensor:
        queries, keys = (positions(places, self.device) for places in (cells.queries, cells.keys))
        return (keys[:, None] <= queries).mT  # (queries, keys), laid out as the engine's blocks

    def tensors(self) -> tuple[Tensor, ...]:
        return ()


@dataclass(frozen=True, eq=False)
class Keep:
    """A bool or integer mask: what is not 0 may be attended to, or where `hide`, may not."""

    mask: Tensor  # (B or 1, H or 1, Q or 1, K or 1)
    hide: bool

    def span(self, cells: Cells) -> range:
        return hull(cells.keys)

    def coverage(self, cells: Cells) -> Coverage:
        return count(self.allowed(cells))

    def allowed(self, cells: Cells) -> Tensor:
        part = cut(self.mask, cells)
        return part == 0 if self.hide else part.bool()

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.mask,)


@dataclass(frozen=True, eq=False)
class Bias:
    """A float mask, added to the scores; at or below `lowest`, the least finite number, it blocks."""

    mask: Tensor  # (B or 1, H or 1, Q or 1, K or 1)
    lowest: float

    def span(self, cells: Cells) -> range:
        return hull(cells.keys)

    def coverage(self, cells: Cells) -> Coverage:
        return count(self.allowed(cells))

    def allowed(self, cells: Cells) -> Tensor:
        return (cut(self.mask, cells) <= self.lowest).logical_not_()  # NaN is allowed, and so seen

    def added(self, cells: Cells) -> Tensor:
        """What is added to the scores, (queries, keys) or broadcasts to it."""
        return cut(self.mask, cells)

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.mask,)


class Rules(NamedTuple):
    """All that is in force: a cell is allowed if every rule allows it, and every bias is added to its score."""

    rules: tuple[Rule, ...] = ()
    biases: tuple[Bias, ...] = ()

    def span(self, cells: Cells) -> range:
        """Keys outside of which none of the queries may attend."""
        for rule in self.rules:
            cells = cells._replace(keys=rule.span(cells))
        return hull(cells.keys)

    def coverage(self, cells: Cells) -> Coverage:
        """How many of the cells are allowed."""
        found: set[Coverage] = set()
        for rule in self.rules:
            found.add(rule.coverage(cells))
            if "none" in found:
                return "none"
        return "some" if "some" in found else "all"

    def allowed(self, cells: Cells) -> Tensor | None:
        """bool, (queries, keys) or broadcasts to it; None for all."""
        parts = [rule.allowed(cells) for rule in self.rules]
        return reduce(torch.logical_and, parts) if parts else None

    def tensors(self) -> tuple[Tensor, ...]:
        """What the rules are read from, and change with."""
        return tuple(tensor for rule in self.rules for tensor in rule.tensors())


def cut(mask: Tensor, cells: Cells) -> Tensor:
    """The part of a mask for some cells; axes of size 1 stay, and broadcast."""
    mask = mask[cells.batch if mask.shape[0] > 1 else 0, cells.head if mask.shape[1] > 1 else 0]
    for axis, places in enumerate((cells.queries, cells.keys)):
        if mask.shape[axis] > 1:
            mask = take(mask, places, axis)
    return mask  # (queries or 1, keys or 1)


def count(allowed: Tensor) -> Coverage:
    by_key = allowed.sum(0, dtype=torch.int32)  # (keys or 1,), several times faster than any() and all()
    if not by_key.any():
        return "none"
    return "all" if bool((by_key == allowed.shape[0]).all()) else "some"


def read_mask(
    mask: Any,
    means: str | None,
    dims: str | None,
    *,
    is_causal: bool,
    shape: tuple[int, int, int, int],
    dtype: torch.dtype,
    device: torch.device,
) -> Rules:
    """Rules from a mask as a user gives it.

    Args:
        mask: bool, floating or integer tensor or array that broadcasts to shape; None for none.
        means: what 1 or True means, "keep" or "hide"; needed for integers.
        dims: how the axes of the mask are read, one of `READINGS`; needed where two readings fit and differ.
        is_causal: whether key ≤ query is asked for as well.
        shape: (B, H, Q, K).
        dtype: of the scores.
        device: of q, k and v.

    Raises:
        TypeError, ValueError: a mask that cannot be read, or could be read in two ways.

    >>> import torch
    >>> from attnwidget.places import Cells
    >>> rules = read_mask(torch.eye(3).bool(), None, None, is_causal=True, shape=(1, 1, 3, 3), dtype=torch.float32,
    ...                   device=torch.device("cpu"))
    >>> rules.coverage(Cells(0, 0, range(0, 1), range(1, 3)))
    'none'
    """
    rules = Rules((Causal(device),)) if is_causal else Rules()
    if mask is None:
        for name, value in (("mask_means", means), ("mask_dims", dims)):
            if value is not None:
                raise ValueError(f"{name} is {value!r} but there is no mask: give mask= as well")
        return rules
    mask = as_tensor(mask, "mask")
    if mask.device != device:
        raise ValueError(f"mask is on {mask.device} but q is on {device}: move them to one device")
    if means is not None:
        as_choice(means, MEANINGS, "mask_means")
    mask = _by_reading(mask, dims, shape)
    rule = _as_rule(mask, means, dtype)
    return Rules((*rules.rules, rule), (rule,) if isinstance(rule, Bias) else ())


def _as_rule(mask: Tensor, means: str | None, dtype: torch.dtype) -> Keep | Bias:
    name = str(mask.dtype).removeprefix("torch.")
    if mask.dtype in FLOATS:
        if means is not None:
            raise ValueError(
                f"mask holds {name}, which is added to the scores: leave mask_means out, or give a bool mask"
            )
        return Bias(mask, max(torch.finfo(mask.dtype).min, torch.finfo(dtype).min))
    if mask.is_floating_point() or mask.is_complex():
        raise TypeError(f"mask holds {name}: give bool, or float32 to be added to the scores")
    if mask.dtype is not torch.bool:
        if means is None:
            raise ValueError(
                f"mask holds {name}: say mask_means='keep' if 1 may be attended to (an attention_mask), "
                "or mask_means='hide' if 1 is blocked (a key_padding_mask)"
            )
        if bool(((mask != 0) & (mask != 1)).any()):
            raise ValueError(f"mask holds {name} other than 0 and 1: compare it with what it stands for, to get bool")
    return Keep(mask, hide=means == "hide")


def _by_reading(mask: Tensor, dims: str | None, shape: tuple[int, int, int, int]) -> Tensor:
    """The mask with its axes at their places of (B, H, Q, K)."""
    sizes = dict(zip("bhqk", shape, strict=True))
    given, wanted = tuple(mask.shape), f"(B, H, Q, K) = {shape}"
    if dims is not None:
        as_choice(dims, READINGS, "mask_dims")
    readings = [reading for reading in READINGS if len(reading) == mask.ndim and dims in (None, reading)]
    if not readings:
        axes = "1 axis" if mask.ndim == 1 else f"{mask.ndim} axes"
        advice = f"mask_dims {dims!r} names {len(dims)}" if dims else "give (Q, K), (B, K), (B, Q, K) or (B, H, Q, K)"
        raise ValueError(f"mask has shape {given}, {axes}: {advice}")
    fitting = [
        reading
        for reading in readings
        if all(size in (1, sizes[axis]) for axis, size in zip(reading, given, strict=True))
    ]
    if not fitting:
        tried = " or ".join(f"({', '.join(reading.upper())})" for reading in readings)
        raise ValueError(f"mask has shape {given}, which does not fit {wanted} as {tried}: give it those sizes, or 1")
    if len(fitting) > 1 and not torch.equal(mask, mask[:1].expand_as(mask)):  # the readings differ in the first axis
        choices = " or ".join(f"mask_dims={reading!r}" for reading in fitting)
        raise ValueError(f"mask has shape {given}, which fits {wanted} in two ways: say {choices}")
    return mask[tuple(slice(None) if axis in fitting[0] else None for axis in "bhqk")]
