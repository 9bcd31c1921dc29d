"""Masks and biases whose finite numbers are added to the scores and hide nothing, though masks are made to hide."""

from __future__ import annotations

from collections.abc import Generator
from math import inf
from typing import Literal, NamedTuple

import numpy as np
from torch import Tensor

from .._engine.base import Head
from .._engine.softmax import run_to_end
from .._rules.rules import Bias
from .._utils.indexing import cuts

CELLS_AT_ONCE = 1 << 20  # cells of a mask that are read together
Severity = Literal["error", "warning", "note"]
HIDES = 20.0  # a smaller difference between two numbers hides nothing: e⁻²⁰ is 2e-9


class AddedNumbers(NamedTuple):
    """The numbers of a mask or bias, without those that block a cell.

    values: the numbers, in ascending order; () if there are more than two.
    is_by_query: whether all keys of a query get the same number.
    blocks: whether it blocks some cells.
    """

    values: tuple[float, ...]
    is_by_query: bool
    blocks: bool = False


class AddedMask(NamedTuple):
    """A mask or bias that hides nothing, in the words of a `Finding`."""

    kind: str
    severity: Severity
    message: str
    advice: str


UNKNOWN = AddedNumbers((), False)


def added_mask(bias: Bias, given: object) -> AddedMask | None:
    """Return what is to be said about a mask or bias that hides nothing in any head; None if it is sound.

    Args:
        bias: the rule.
        given: the mask as the user gave it, whose type decides the advice.

    >>> import torch
    >>> mask = Bias("mask", torch.ones(1, 1, 3, 3).tril(), torch.finfo(torch.float32).min)
    >>> print(added_mask(mask, torch.ones(3, 3)).message)
    a mask of only 0 and 1 was added to the scores; nothing is hidden by it
    """
    return _said(run_to_end(_reading(bias.added, bias.lowest)), bias.name, given, is_from_model=False)


def finding_added_mask(head: Head, bias: Bias) -> Generator[None, None, AddedMask | None]:
    """Return the same about a mask or bias in one head; yields after each part that is read.

    Reading stops at the first number that shows the mask to be sound.
    """
    x, att = bias.added, head.att
    batch, number = (at if size > 1 else 0 for size, at in zip(x.shape[:2], (head.batch, head.head), strict=True))
    own = x[batch : batch + 1, number : number + 1]
    found = yield from _reading(own, bias.lowest)
    if len(found.values) == 1 and own.shape != x.shape:  # a sample without padding has one number: read the others
        found = yield from _reading(x, bias.lowest)
    given = att.options.mask if bias.name == "mask" else att.options.bias
    return None if att.shape.K == 1 else _said(found, bias.name, given, is_from_model=att.witness is not None)


def _reading(x: Tensor, lowest: float) -> Generator[None, None, AddedNumbers]:
    """Read a mask or bias, (B or 1, H or 1, Q or 1, K or 1), until it is seen to be sound: `UNKNOWN`."""
    x = x.detach()
    seen: set[float] = set()
    is_few, is_by_query, blocks = True, True, False
    for matrix in (x[b, h] for b in range(x.shape[0]) for h in range(x.shape[1])):
        for at in cuts(range(len(matrix)), 1, max(1, CELLS_AT_ONCE // x.shape[3])):
            part = matrix[at.start : at.stop]
            least, most = part.aminmax()
            if not float(most) < inf:  # NaN or +∞
                return UNKNOWN
            if float(least) <= lowest:
                blocks, is_by_query, part = True, False, part[part > lowest]
                if not len(part):
                    yield
                    continue
                least, most = part.aminmax()
            seen |= {float(least) + 0.0, float(most) + 0.0}  # not −0
            is_few = is_few and len(seen) <= 2 and bool(((part == least) | (part == most)).all())
            is_by_query = is_by_query and bool((part == part[:, :1]).all())
            if (not is_few and not is_by_query) or (blocks and seen == {0.0}):
                return UNKNOWN
            yield
    return AddedNumbers(tuple(sorted(seen)) if is_few else (), is_by_query, blocks)


def _said(found: AddedNumbers, name: str, given: object, *, is_from_model: bool) -> AddedMask | None:
    values = found.values
    if found.blocks:
        return _said_beside_blocked(values, name, is_from_model=is_from_model)
    is_sure = name == "mask" and not is_from_model  # numbers of a bias may be meant as they are
    mild: Severity = "warning" if is_sure else "note"
    kind = f"{name} of only {' and '.join(_texts(values))}" if values else f"{name} of one number a query"
    added = f"the model added a {kind} to the scores" if is_from_model else f"a {kind} was added to the scores"
    if len(values) == 2:
        gap = values[1] - values[0]
        if gap >= HIDES and values[0] != 0:
            return None
        does = "nothing is hidden by it" if gap < HIDES else "numbers above 0 raise scores, and hide nothing"
        is_usual = values in ((0.0, 1.0), (-1.0, 0.0)) or gap >= HIDES  # the numbers of usual mistakes
        severity: Severity = mild if not is_usual else "error" if is_sure else "warning"
        advice = _way_to_hide(name, values, given, is_from_model=is_from_model)
        return AddedMask(kind, severity, f"{added}; {does}", advice)
    if len(values) == 1 and (values[0] or not is_from_model):  # a model gives zeros for a text without padding
        return AddedMask(
            kind,
            mild if values[0] else "note",
            f"{added}: each key gets the same number, so nothing is hidden by it",
            f"Expected if no key should be hidden; otherwise check how the {name} was made.",
        )
    if not values and found.is_by_query:
        return AddedMask(
            kind,
            mild,
            f"{added}: all keys of a query get the same number, so nothing is hidden by it",
            f"A {name} that tells keys apart varies along its last axis: transpose it, or give it as (B, 1, 1, K).",
        )
    return None


def _said_beside_blocked(values: tuple[float, ...], name: str, *, is_from_model: bool) -> AddedMask | None:
    """Return what is to be said about 0 and 1 beside −∞: a causal mask to which a mask of padding was added."""
    if values != (0.0, 1.0):
        return None
    kind = f"{name} of 0 and 1 beside blocked cells"
    added = f"the model added a {kind} to the scores" if is_from_model else f"a {kind} was added to the scores"
    return AddedMask(
        kind,
        "warning" if name == "mask" else "note",
        f"{added}; 0 and 1 hide nothing",
        "If one of the two was meant to hide keys, as in a mask of padding, make that mask bool before it is joined.",
    )


def _way_to_hide(name: str, values: tuple[float, ...], given: object, *, is_from_model: bool) -> str:
    """Return the ways to a mask that hides one of two numbers."""
    least, most = values
    if is_from_model:
        return "The model's own result has it too. To hide keys, let the model add −∞, or give a bool mask, there."
    to_bool = ".astype(bool)" if isinstance(given, np.ndarray) else ".bool()"
    if values == (0.0, 1.0):
        is_one = f"{name}{to_bool}"
        return f"If 0 should hide a key, give mask={is_one}; if 1 should, give mask={is_one}, mask_means='hide'."
    low, high = _texts(values)
    is_low = f"{name} == 0" if least == 0 else f"{name} != 0" if most == 0 else f"{name} == {name}.min()"
    is_high = f"{name} != 0" if least == 0 else f"{name} == 0" if most == 0 else f"{name} == {name}.max()"
    return f"If {low} should hide a key, give mask={is_high}; if {high} should, give mask={is_low}."


def _texts(values: tuple[float, ...]) -> list[str]:
    """Return numbers with as many digits as tell them apart."""
    for digits in (3, 6, 9, 17):
        found = [f"{value:.{digits}g}".replace("-", "−") for value in values]
        if len({*found}) == len(values):
            break
    return found
