"""Read the axes of a user's tensors by number or name, bring them into one order, and check that they fit.

The results are q (B, H, Q, D), k (B, G, K, D), v (B, G, K, Dv), and scores or weights (B, H, Q, K).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .._utils.validation import as_tensor, check_floats, kind_of

LETTERS = {"b": "batch", "h": "head", "q": "position", "d": "head size"}
MATRIX = {"b": "batch", "h": "head", "q": "query", "k": "key"}


def default_dims(letters: dict[str, str]) -> dict[int, str]:
    """Return the default names of the axes, by their number."""
    b, h, q, last = letters
    return {2: q + last, 3: b + q + last, 4: b + h + q + last}


def as_heads(q: Any, k: Any, v: Any, dims: str | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return q, k and v as views with all axes, after checking that they fit.

    Args:
        q: the queries.
        k: the keys.
        v: the values, or None.
        dims: a letter of `LETTERS` for each axis; None for the default of their number.

    Returns:
        (B, H, Q, D), (B, G, K, D) and (B, G, K, Dv) or None.

    Raises:
        TypeError: they are not floating tensors, or q and k have two dtypes.
        ValueError: their axes, sizes or devices do not fit.

    >>> import torch
    >>> q, k, _ = as_heads(torch.zeros(5, 8, 64), torch.zeros(7, 2, 64), None, dims="qhd")
    >>> q.shape, k.shape
    (torch.Size([1, 8, 5, 64]), torch.Size([1, 2, 7, 64]))
    """
    q = _floats(q, "q", dims, LETTERS)
    others = {name: _floats(x, name, dims, LETTERS) for name, x in (("k", k), ("v", v)) if x is not None or name == "k"}
    _check_alike({"q": q, **others})
    q, *rest = (by_name(x, dims, LETTERS) for x in (q, *others.values()))
    k, v = rest[0], rest[1] if len(rest) > 1 else None
    _check_fit(q, k, v)
    return q, k, v


def as_matrix(x: Any, v: Any, dims: str | None, name: str) -> tuple[Tensor, Tensor | None]:
    """Return scores or weights, and v, as views with all axes, after checking that they fit.

    The axes of v have the same order: positions in the place of queries, and features in the place of keys.

    Args:
        x: scores or weights.
        v: the values, or None.
        dims: a letter of `MATRIX` for each axis of x; None for the default of their number.
        name: of x, for errors.

    Returns:
        (B, H, Q, K), and (B, G, K, Dv) or None.

    >>> import torch
    >>> x, v = as_matrix(torch.zeros(2, 5, 7), torch.zeros(2, 7, 3), "hqk", "scores")
    >>> x.shape, v.shape
    (torch.Size([1, 2, 5, 7]), torch.Size([1, 2, 7, 3]))
    """
    x = _floats(x, name, dims, MATRIX)
    if dims is not None and "q" not in dims:
        x, dims = x.unsqueeze(dims.index("k")), dims.replace("k", "qk")
    of_v = None if dims is None else dims.replace("k", "d")
    v = None if v is None else _floats(v, "v", of_v, LETTERS)
    _check_alike({name: x} if v is None else {name: x, "v": v})
    x = by_name(x, dims, MATRIX)
    if v is not None:
        v = by_name(v, of_v, LETTERS)
        _check_values(x, v, name)
    return x, v


def by_name(x: Tensor, dims: str | None, letters: dict[str, str]) -> Tensor:
    """Return x with its axes in the order of the letters, and size 1 for axes that it lacks."""
    dims = dims or default_dims(letters)[x.ndim]
    x = x.permute([dims.index(letter) for letter in letters if letter in dims])
    for axis, letter in enumerate(letters):
        if letter not in dims:
            x = x.unsqueeze(axis)
    return x


def as_given(x: Tensor, ndim: int, dims: str | None, letters: dict[str, str]) -> Tensor:
    """Undo `by_name`: return x with its axes as they were given.

    >>> import torch
    >>> as_given(torch.zeros(1, 8, 5, 64), 3, "qhd", LETTERS).shape
    torch.Size([5, 8, 64])
    """
    dims = dims or default_dims(letters)[ndim]
    for axis, letter in reversed(list(enumerate(letters))):
        if letter not in dims:
            x = x.squeeze(axis)
    there = [letter for letter in letters if letter in dims]
    return x.permute([there.index(letter) for letter in dims])


def _floats(x: Any, name: str, dims: str | None, letters: dict[str, str]) -> Tensor:
    x = as_tensor(x, name)
    check_floats(x, name)
    _check_rank(x, name, dims, letters)
    return x


def _check_rank(x: Tensor, name: str, dims: str | None, letters: dict[str, str]) -> None:
    shape, known = tuple(x.shape), default_dims(letters)
    if x.ndim == 5 and (dims is None or len(dims) == 4):
        raise ValueError(f"{name} has shape {shape}, 5 axes: select one layer, or make a stack of layers from it")
    if dims is None and x.ndim not in known:
        readings = ", ".join(f"{names!r} for {count}" for count, names in known.items())
        other = "".join(letters)[1:]  # heads without samples
        raise ValueError(
            f"{name} has shape {shape}: give 2 to 4 axes ({readings}; name others, such as dims={other!r}), "
            "or 5 for a stack of layers"
        )
    if dims is not None:
        _check_dims(dims, letters)
        if x.ndim != len(dims):
            raise ValueError(
                f"{name} has shape {shape} but dims {dims!r} names {len(dims)} axes: give a letter per axis"
            )
    for size, letter in zip(shape, dims or known[x.ndim], strict=True):
        if not size:
            raise ValueError(
                f"{name} has shape {shape}, its {letters[letter]} axis is empty: give at least one of each"
            )


def _check_dims(dims: str, letters: dict[str, str]) -> None:
    known = ", ".join(f"{letter} ({word})" for letter, word in letters.items())
    needed = ["k"] if letters is MATRIX else ["q", "d"]  # without q each head has one query
    if not isinstance(dims, str):
        raise TypeError(f"dims is {kind_of(dims)}: give a string such as {''.join(letters)!r}")
    for letter in dims:
        if letter not in letters:
            raise ValueError(f"dims {dims!r} has the letter {letter!r}: use {known}")
    if len(set(dims)) != len(dims) or not set(needed) <= set(dims):
        raise ValueError(f"dims {dims!r} must name {' and '.join(needed)}, and each axis once: use {known}")


def _check_alike(parts: dict[str, Tensor]) -> None:
    """Raise unless all have the same number of axes and device, and all but v the same dtype."""
    (first, like), *others = parts.items()
    for name, x in others:
        if x.ndim != like.ndim:
            raise ValueError(f"{name} has {x.ndim} axes but {first} has {like.ndim}: give both the same axes")
        if x.dtype != like.dtype and name != "v":  # values meet weights, which are computed in a type of their own
            raise TypeError(
                f"{name} holds {x.dtype} but {first} {like.dtype}: convert them to one dtype".replace("torch.", "")
            )
        if x.device != like.device:
            raise ValueError(f"{name} is on {x.device} but {first} is on {like.device}: move them to one device")


def _check_fit(q: Tensor, k: Tensor, v: Tensor | None) -> None:
    (B, H, _, D), G = q.shape, k.shape[1]
    if k.shape[3] != D:
        raise ValueError(f"k has head size {k.shape[3]} but q has {D}: project them to the same size")
    if H % G:
        raise ValueError(f"q has {H} heads but k has {G}: the heads of q must be a multiple of those of k")
    for name, x in (("k", k), ("v", v)):
        if x is not None and x.shape[0] != B:
            raise ValueError(f"{name} has batch size {x.shape[0]} but q has {B}: expand one to the other")
    if v is not None and v.shape[1] != G:
        raise ValueError(f"v has {v.shape[1]} heads but k has {G}: give both the same heads")
    if v is not None and v.shape[2] != k.shape[2]:
        raise ValueError(f"v has {v.shape[2]} positions but k has {k.shape[2]}: give each key its value")


def _check_values(x: Tensor, v: Tensor, name: str) -> None:
    (B, H, _, K), (batches, G, values, _) = x.shape, v.shape
    if batches != B:
        raise ValueError(f"v has batch size {batches} but {name} has {B}: expand one to the other")
    if H % G:
        raise ValueError(f"v has {G} heads but {name} has {H}: the heads of {name} must be a multiple of those of v")
    if values != K:
        raise ValueError(f"v has {values} positions but {name} has {K} keys: give each key its value")
