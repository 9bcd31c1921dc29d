"""Custom masks that an edit adds to the rules of a call, by positions in the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..._rules.parsing import READINGS, by_reading
from ..._utils.validation import FLOATS, as_choice, told
from ..intercept.output_edits import EditRefused
from .seen_call import SeenCall

LONGER = "while a model generates, give a mask of the whole text, or a function of positions"


class CustomMask:
    """A mask: bools (True where a query may attend), numbers that are added to scores, or a function.

    Args:
        given: a tensor or array by positions of the text that broadcasts to (B, H, Q, K), as in `Attention`; or a mask
            function f(b, h, q_idx, kv_idx) -> bool.
        dims: the axes of an ambiguous shape: "qk", "bk", "bqk", "hqk" or "bhqk".

    Raises:
        TypeError, ValueError: anything else.
    """

    def __init__(self, given: Any, dims: str | None = None) -> None:
        self._dims = None if dims is None else as_choice(dims, READINGS, "mask_dims")
        self._tensor: Tensor | None = None
        self._function: Callable[..., Any] | None = None
        self._sizes: dict[str, tuple[int, int]] = {}  # the mask's queries and keys, by layer
        given = torch.from_numpy(given) if isinstance(given, np.ndarray) else given
        if isinstance(given, Tensor):
            if given.dtype is not torch.bool and given.dtype not in FLOATS:
                kind = str(given.dtype).removeprefix("torch.")
                raise TypeError(f"mask holds {kind}: give bools, True where a query may attend, or numbers to add")
            self._tensor = given.detach()
        elif callable(given):
            if dims is not None:
                raise ValueError("mask_dims names the axes of a tensor, but mask is a function: leave it out")
            self._function = given
        else:
            raise TypeError(
                f"mask is {told(given)}: give False to remove the mask of the call; bools, True where a query may "
                "attend, or numbers that are added to scores, as a tensor; or a function f(b, h, q_idx, kv_idx) -> bool"
            )

    def __str__(self) -> str:
        if self._tensor is None:
            return getattr(self._function, "__name__", type(self._function).__name__)
        return f"{str(self._tensor.dtype).removeprefix('torch.')} {tuple(self._tensor.shape)}"

    @property
    def is_added(self) -> bool:
        """Whether its numbers are added to scores."""
        return self._tensor is not None and self._tensor.dtype is not torch.bool

    def missing(self, name: str, queries: int, keys: int) -> str | None:
        """Return how the mask is larger than a layer; None if it is not."""
        more = self._sizes.get(name, (0, 0))
        if more[0] <= queries and more[1] <= keys:
            return None
        shape = () if self._tensor is None else tuple(self._tensor.shape)
        return f"mask has shape {shape}, but {name} had {queries} queries and {keys} keys"

    def cells(self, seen: SeenCall, samples: Sequence[int], heads: Sequence[int], rows: Tensor) -> Tensor:
        """Return the mask for some queries of a call, bools or numbers that broadcast to (samples, heads, rows, K).

        Args:
            seen: the call.
            samples, heads: their indices in the call.
            rows: the indices of the queries in the call.

        Raises:
            EditRefused: the mask does not fit.
        """
        keys = torch.arange(seen.keys.start, seen.keys.stop, device=rows.device)
        places, numbers = rows + seen.queries.start, [head + seen.first_head for head in heads]
        if self._function is not None:
            return cells_of(self._call_function, samples, numbers, places, keys)
        found = self._fitting(seen).to(rows.device)
        index = (samples, numbers, places.tolist(), keys.tolist())
        for axis, one in enumerate(index):
            if found.shape[axis] > 1:
                found = found.index_select(axis, torch.tensor(one, device=found.device))
        return found

    def _fitting(self, seen: SeenCall) -> Tensor:
        """Return the tensor with axes (B, H, Q, K)."""
        assert self._tensor is not None
        given, call = tuple(self._tensor.shape), seen.call
        heads = call.q.shape[1] if call.heads is None else call.heads.total
        Q, K = seen.queries.stop, seen.keys.stop
        longer = max(Q, given[-2] if len(given) > 1 else 1), max(K, given[-1] if given else 1)
        try:
            found = by_reading(self._tensor, "mask", READINGS, self._dims, (seen.samples, heads, *longer))
        except ValueError as error:
            advice = f"; {LONGER}" if len(seen.queries) != Q else ""
            raise EditRefused(f"in {seen.name}: {error}{advice}") from None
        self._sizes[seen.name] = found.shape[2], found.shape[3]
        return found

    def _call_function(self, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        assert self._function is not None
        try:
            found = self._function(b, h, q_idx, kv_idx)
        except Exception as error:
            raise EditRefused(
                f"mask(b, h, q_idx, kv_idx) fails for sample {int(b)}, head {int(h)}, queries up to "
                f"{int(q_idx.max())} and keys up to {int(kv_idx.max())}: {error}"
            ) from error
        if not isinstance(found, Tensor) or found.dtype is not torch.bool:
            kind = str(found.dtype).removeprefix("torch.") if isinstance(found, Tensor) else type(found).__name__
            raise EditRefused(f"the mask function returns {kind}: return a bool tensor")
        size = (len(q_idx), len(kv_idx))
        try:
            return found.expand(size)
        except RuntimeError:
            raise EditRefused(
                f"the mask function returns shape {tuple(found.shape)}, but its indices broadcast to {size}: return a "
                "bool for each pair of indices"
            ) from None


def cells_of(
    mask: Callable[..., Tensor], samples: Sequence[int], heads: Sequence[int], queries: Tensor, keys: Tensor
) -> Tensor:
    """Return the values of a mask function for some cells, (samples, heads, queries, keys) bool."""

    def index(one: int) -> Tensor:
        return torch.tensor(one, device=keys.device)

    rows = [[mask(index(b), index(h), queries[:, None], keys) for h in heads] for b in samples]
    size = (len(queries), len(keys))
    return torch.stack([torch.stack([one.expand(size) for one in row]) for row in rows])
