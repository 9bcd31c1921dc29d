"""Einsums of q and k, and of weights and v, read as products of matrices."""

from __future__ import annotations

import string
from typing import Any

from torch import Tensor

from ..._utils.validation import FLOATS
from .traced_scores import Sizes, TracedScores, TracedWeights


def read_equation(equation: Any, operands: tuple[Any, ...]) -> tuple[list[tuple[str, Tensor]], str] | None:
    """Return two tensors, each with the letters of its axes, and the letters of the result; None for another einsum."""
    given = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], list | tuple) else list(operands)
    parts = str(equation).replace(" ", "").split("->")
    if len(parts) != 2 or len(given) != 2 or parts[0].count(",") != 1:
        return None
    one, two = parts[0].split(",")
    one, two, out = _without_dots(one, two, parts[1], given)
    return [(one, given[0]), (two, given[1])], out


def _without_dots(one: str, two: str, out: str, given: list[Tensor]) -> tuple[str, str, str]:
    """Return the three terms of an einsum with letters for "...", aligned at the right."""
    rest = [x.ndim - len(names.replace(".", "")) for x, names in zip(given, (one, two), strict=True) if "." in names]
    unused = [letter for letter in string.ascii_letters if letter not in f"{one}{two}{out}"]
    letters = "".join(unused[: max(rest, default=0)])
    return (
        one.replace("...", letters[len(letters) - given[0].ndim + len(one.replace(".", "")) :]),
        two.replace("...", letters[len(letters) - given[1].ndim + len(two.replace(".", "")) :]),
        out.replace("...", letters),
    )


def scores_of(result: Tensor, out: str, one: tuple[str, Tensor], two: tuple[str, Tensor]) -> TracedScores | None:
    """Return the scores of an einsum of q and k; the last letter of `out` that only one of them has is the key axis."""
    alone = [name for name in out if (name in one[0]) != (name in two[0])]
    sums = [name for name in one[0] if name in two[0] and name not in out]
    if len(alone) < 2 or not sums or result.dtype not in FLOATS or len(set(out)) != len(out):
        return None
    query, key = alone[-2:]
    if key in one[0]:
        one, two = two, one
    batch = [name for name in out if name not in (query, key)]
    found = []
    for (names, x), own in ((one, query), (two, key)):
        if set(names) != {*sums, own, *(n for n in batch if n in names)} or len(names) != x.ndim:
            return None
        x = x.permute([names.index(n) for n in (*(n for n in batch if n in names), own, *sums)]).flatten(-len(sums))
        sizes = [result.shape[out.index(n)] if n in names else 1 for n in batch]
        found.append(x.reshape(*sizes, *x.shape[-2:]))
    letters = (*batch, query, key)
    order = tuple(letters.index(name) for name in out)
    shape = tuple(result.shape[out.index(name)] for name in letters)
    is_plain = order == tuple(range(len(out)))
    return TracedScores(found[0], found[1], result.dtype, shape, order=None if is_plain else order)


def values_of(
    known: TracedWeights, names: str, v: Tensor, others: str, result: Tensor, out: str
) -> tuple[Tensor, Tensor] | None:
    """Return v (…, K, Dv) and the output (…, Q, Dv) of an einsum of weights and v; None for another einsum.

    Args:
        known: the weights.
        names: the letters of their axes.
        v: the other tensor.
        others: the letters of its axes.
        result: of the einsum.
        out: the letters of its axes.
    """
    if len(known.sizes) != len(names):
        return None
    axes = known.order or tuple(range(len(names)))
    letters = [names[axes.index(i)] for i in range(len(names))]
    *batch, query, key = letters
    size = [name for name in others if name not in names]
    there = [name for name in batch if name in others]
    if not size or set(others) != {*size, key, *there} or sorted(out) != sorted([*batch, query, *size]):
        return None
    v = v.permute([others.index(name) for name in (*there, key, *size)]).flatten(-len(size))
    sizes: Sizes = tuple(known.sizes[i] if name in others else 1 for i, name in enumerate(batch))
    v = v.reshape(*sizes, *v.shape[-2:])
    return v, result.permute([out.index(name) for name in (*batch, query, *size)]).flatten(-len(size))
