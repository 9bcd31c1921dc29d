"""One attention call: q, k and v as they are, and exactly the part of the weights that is asked for.

weights = softmax(q · kᵀ / √D)          Vaswani et al. 2017, eq. 1
output  = weights · v
"""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from . import engine, pyramid
from .engine import Memory, Pair, exact
from .masks import Rules, read_mask
from .places import Cells, as_index, as_places, take
from .pyramid import STAGES, Overview
from .tensors import as_choice, as_heads, as_number, refuse_unknown

__all__ = ["STAGES", "Attention", "Shape"]

KEYWORDS = ("mask", "mask_means", "mask_dims", "is_causal", "scale", "dims")


class Shape(NamedTuple):
    """Sizes of one attention call; Dv is None without v."""

    B: int
    H: int
    G: int
    Q: int
    K: int
    D: int
    Dv: int | None


class Attention:
    """Scaled dot-product attention of q, k and v, computed where it is looked at. Nothing (Q, K) is held.

    Args:
        q: queries, (Q, D), (B, Q, D) or (B, H, Q, D); tensor, array, or anything with `__dlpack__` or `__array__`.
        k: keys, with the axes of q, K for Q and G for H; H is a multiple of G, and query head h uses key head
            h // (H // G), as torch's `enable_gqa`.
        v: values, as k with Dv for D; may be left out.
        mask: bool (True = may attend) or float (added; −∞ or the least finite number blocks), which broadcasts to
            (B, H, Q, K); 3-D is (B, Q, K), 2-D is (Q, K) or padding (B, K).
        mask_means: "keep" or "hide": what 1 means in an integer mask, and True in a bool one.
        mask_dims: "qk", "bk", "bqk", "hqk" or "bhqk", where a mask fits in two ways.
        is_causal: key ≤ query, from the upper left as in torch; with a mask, both apply.
        scale: what the scores are multiplied by; 1 / √D where None.
        dims: the axes by name where the default for their number is wrong, e.g. "hqd" or "bqhd"; q is the position in
            k and v too.

    Raises:
        TypeError, ValueError: an input that cannot be read in exactly one way, with what was wanted instead.

    q, k and v are views (B, H, Q, D), (B, G, K, D) and (B, G, K, Dv). Results are float64 for float64, else float32.

    >>> q, k = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    >>> att = Attention(q, k, scale=1.0)
    >>> att.block("scores")
    tensor([[2., 0.],
            [0., 2.]])
    >>> att.block(queries=0)
    tensor([[0.8808, 0.1192]])
    """

    q: Tensor
    k: Tensor
    v: Tensor | None
    shape: Shape
    scale: float
    is_causal: bool
    rules: Rules
    _memory: Memory

    def __init__(
        self,
        q: Any,
        k: Any,
        v: Any = None,
        *,
        mask: Any = None,
        mask_means: str | None = None,
        mask_dims: str | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        dims: str | None = None,
        **unknown: NoReturn,
    ) -> None:
        refuse_unknown(unknown, KEYWORDS)
        if not isinstance(is_causal, bool | np.bool_):
            raise TypeError(f"is_causal is {is_causal!r}: give True or False")
        q, k, v = as_heads(q, k, v, dims)
        (B, H, Q, D), (_, G, K, _) = q.shape, k.shape
        shape = Shape(B, H, G, Q, K, D, None if v is None else v.shape[3])
        scale = D**-0.5 if scale is None else as_number(scale, "scale")
        rules = read_mask(
            mask, mask_means, mask_dims, is_causal=bool(is_causal), shape=(B, H, Q, K), dtype=q.dtype, device=q.device
        )
        self.__dict__.update(q=q, k=k, v=v, shape=shape, rules=rules, _memory=Memory())
        self.__dict__.update(scale=scale, is_causal=bool(is_causal))

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"an Attention does not change, so {name} cannot be set: make a new one")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"an Attention does not change, so {name} cannot be deleted: make a new one")

    def __repr__(self) -> str:
        B, H, G, Q, K, D, Dv = self.shape
        parts = [f"{B} × {H} heads" + (f" in {G} groups" if G != H else ""), f"{Q:,} queries × {K:,} keys"]
        parts += [f"head size {D}" + (f" and {Dv}" if Dv not in (None, D) else ""), "" if Dv else "no v"]
        parts += ["causal" if self.is_causal else "", "masked" if len(self.rules.rules) > self.is_causal else ""]
        parts += [str(self.dtype).removeprefix("torch."), str(self.device)]
        return f"Attention({', '.join(part for part in parts if part)})"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of q as it was given."""
        return self.q.dtype

    @property
    def result_dtype(self) -> torch.dtype:
        """The dtype of what is computed: float64 for float64, else float32."""
        return torch.promote_types(self.q.dtype, torch.float32)

    @property
    def device(self) -> torch.device:
        """Where q, k and v are, and all results."""
        return self.q.device

    def block(
        self,
        stage: str = "weights",
        *,
        batch: int = 0,
        head: int = 0,
        queries: Any = slice(None),
        keys: Any = slice(None),
    ) -> Tensor:
        """An exact block of a stage.

        Args:
            stage: "scores", "scaled", "masked" (−∞ where blocked), "weights" (over all keys, also if few are asked
                for) or "allowed" (bool).
            batch, head: which; negative counts from the end.
            queries, keys: an int, a slice, a range, or a sequence or 1-D tensor of ints.

        Returns:
            (queries, keys), always 2-D.

        Raises:
            IndexError: a batch, head, query or key that is not there.
            ValueError: there is no such stage.

        >>> att = Attention(torch.zeros(3, 4), torch.zeros(3, 4), is_causal=True)
        >>> att.block(queries=[0, 2], keys=slice(2))
        tensor([[1.0000, 0.0000],
                [0.3333, 0.3333]])
        """
        as_choice(stage, (*STAGES, "allowed"), "stage")
        batch, head = self.find(batch, head)
        rows = as_places(queries, self.shape.Q, "query", "queries", self.device)
        columns = as_places(keys, self.shape.K, "key", "keys", self.device)
        cells = Cells(batch, head, rows, columns)
        with exact(self.device):
            if stage == "allowed":
                allowed = self.rules.allowed(cells)
                allowed = torch.tensor(True, device=self.device) if allowed is None else allowed
                return allowed.expand(len(rows), len(columns)).clone(memory_format=torch.contiguous_format)
            S = engine.block(self, cells, "masked" if stage == "weights" else stage)
            if stage == "weights":
                pair = self._pair(batch, head)
                if pair is None:
                    pair = engine.normalizers(self, batch, head, rows)
                else:
                    pair = Pair(take(pair.m, rows, 0), take(pair.log_l, rows, 0))
                S = engine.exp_(pair.log_weights(S))
            return S.mT.contiguous()  # (queries, keys)

    def log_normalizer(self, batch: int = 0, head: int = 0) -> Tensor:
        """log Σ exp(masked) over the keys, natural, for each query: FlashAttention's logsumexp.

        Returns:
            (Q,); −∞ for a query that may attend to nothing.

        >>> Attention(torch.zeros(1, 4), torch.zeros(8, 4)).log_normalizer()
        tensor([2.0794])
        """
        batch, head = self.find(batch, head)
        with exact(self.device):
            pair = self._pair(batch, head)
            if pair is None:
                pair = engine.normalizers(self, batch, head, range(self.shape.Q))
                self.remember(batch, head, pair)
            return pair.log_normalizer()

    def output(self, batch: int = 0, head: int = 0) -> Tensor:
        """weights · v, streamed (Dao et al. 2022).

        Returns:
            (Q, Dv); 0 for a query that may attend to nothing.

        Raises:
            ValueError: there is no v.

        >>> Attention(torch.zeros(1, 4), torch.zeros(2, 4), torch.tensor([[1.0], [3.0]])).output()
        tensor([[2.]])
        """
        if self.v is None:
            raise ValueError("there is no v, so no output: give Attention(q, k, v)")
        batch, head = self.find(batch, head)
        with exact(self.device):
            out, pair = engine.output(self, self.v, batch, head)
        self.remember(batch, head, pair)
        return out

    def overview(
        self, batch: int = 0, head: int = 0, *, size: int = 512, pool: str = "max", stage: str = "weights"
    ) -> Overview:
        """A stage of one head, pooled to at most size × size bins, computed in one streamed pass.

        Args:
            size: rows and columns, at most; a bin is ⌈Q / size⌉ × ⌈K / size⌉ cells, the last of them ragged.
            pool: "max" keeps single strong links; "mean" is over all cells of a bin, blocked weights being 0, but over
                the allowed ones only for the stage "masked".

        Returns:
            Overview with values (rows, columns) and allowed (rows, columns), True where any cell of the bin is.

        Raises:
            IndexError: a batch or head that is not there.
            ValueError: a stage, pool or size that is not.

        >>> Attention(*torch.zeros(2, 4, 8)).overview(size=2, pool="mean").values
        tensor([[0.2500, 0.2500],
                [0.2500, 0.2500]])
        """
        return pyramid.overview(self, batch, head, size=size, pool=pool, stage=stage)

    def find(self, batch: Any, head: Any) -> tuple[int, int]:
        """batch and head from 0 up; IndexError if they are not there."""
        return as_index(batch, self.shape.B, "batch", "batches"), as_index(head, self.shape.H, "head", "heads")

    def group(self, head: int) -> int:
        """The key head that a query head uses."""
        return head // (self.shape.H // self.shape.G)

    def remember(self, batch: int, head: int, pair: Pair) -> None:
        """Keep the log-normalizers of all queries of a head, for the blocks to come."""
        self._memory.put((batch, head), self._versions(), pair)

    def _pair(self, batch: int, head: int) -> Pair | None:
        return self._memory.get((batch, head), self._versions())

    def _versions(self) -> tuple[int, ...]:
        """Counts changes in place: what was remembered before one is no longer true."""
        tensors = (self.q, self.k, *self.rules.tensors())
        return tuple(0 if tensor.is_inference() else tensor._version for tensor in tensors)
