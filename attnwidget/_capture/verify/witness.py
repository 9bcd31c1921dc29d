"""What a capture keeps of a call's own output: two sums of each row, to compare any head with later."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..._engine.base import AttentionBase, Shape
from ..._utils.validation import as_number
from ..call.call_rules import CallRules
from .noise import OUTPUT_ROUNDINGS, Precision
from .verification import ComparedRows, OutputSample, rows_that_differ

SUMS = 2  # of each row: a wrong row that keeps both is not found by chance
CELLS_AT_ONCE = 1 << 19
Checked = Literal["all", "rows", "some"]


@dataclass
class CaptureLacks:
    """What a capture lacks, known once its block has ended; all of its attentions share it."""

    lines: list[str] = field(default_factory=list)


@functools.lru_cache(maxsize=16)
def _directions(size: int) -> Tensor:
    return torch.randn(size, SUMS, generator=torch.Generator("cpu").manual_seed(size), device="cpu")


@dataclass(frozen=True)
class Digest:
    """Sums of each row of an output, (B, H, Q, SUMS), its norms, (B, H, Q, 1), and the precision of the call."""

    sums: Tensor
    norms: Tensor
    precision: Precision

    @classmethod
    def of(cls, output: Tensor, q: Tensor, v: Tensor) -> Digest:
        """Return the digest of an output (B, H, Q, Dv)."""
        with torch.no_grad():
            order = sorted(range(3), key=output.stride, reverse=True)  # as it lies in memory, which is read faster
            wide = output.detach().permute(*order, 3).float()
            back = [order.index(axis) for axis in range(3)]
            found = wide @ _directions(output.shape[-1]).to(wide.device), wide.norm(dim=-1, keepdim=True)
            sums, norms = (x.permute(*back, 3) for x in found)
            return cls(sums, norms, Precision.of(output, q, v))


@dataclass(frozen=True)
class Witness:
    """What is known about the output of the model's own call.

    Attributes:
        checked: "all" if every row was compared during the capture; "rows" if each can be compared now; "some" if only
            rows that were drawn at random were compared.
        report: what the capture lacks.
        digest: of the first rows of the output, for "rows".
        lost: (B, H, n) bool, whether the weights of the first n queries are NaN in the model, as their q then is here.
        maps: whether its samples are not those of the module's input, but windows, groups or heads.
    """

    checked: Checked
    report: CaptureLacks
    digest: Digest | None = None
    lost: Tensor | None = None
    maps: bool = False

    def lost_rows(self, batch: int, head: int) -> list[int]:
        """Return the queries whose weights are NaN in the model, because their products overflowed."""
        return [] if self.lost is None else [int(row) for row in self.lost[batch, head].nonzero()]

    @property
    def missing(self) -> list[str]:
        """What the capture lacks, in lines."""
        return self.report.lines

    def to_json(self, add: Callable[[Tensor], str]) -> dict[str, Any]:
        """Return JSON from which `from_json` restores it; `add` puts a tensor into the file."""
        told: dict[str, Any] = {"checked": self.checked}
        told |= {} if self.lost is None else {"lost": add(self.lost)}
        told |= {"maps": True} if self.maps else {}
        if self.digest is None:
            return told
        kept = self.digest.precision
        tensors = {"sums": add(self.digest.sums), "norms": add(self.digest.norms)}
        return {**told, **tensors, "precision": [kept.kept, kept.factors, kept.least]}

    @classmethod
    def from_json(
        cls, told: Mapping[str, Any], tensors: Mapping[str, Tensor], lacks: CaptureLacks, shape: Shape
    ) -> Witness:
        """Return what `to_json` described, for an attention of this shape."""
        if told["checked"] not in get_args(Checked):
            raise ValueError(f"rows that are checked {told['checked']!r:.40}")
        (B, H, *_), lost = shape, tensors[told["lost"]] if "lost" in told else None
        if lost is not None and (lost.dtype, *lost.shape) != (torch.bool, B, H, min(lost.shape[-1], shape.Q)):
            raise ValueError(f"lost queries {tuple(lost.shape)}")
        maps = bool(told.get("maps"))
        if "sums" not in told:
            return cls("some" if told["checked"] == "rows" else told["checked"], lacks, None, lost, maps)
        sums, norms = (tensors[told[name]] for name in ("sums", "norms"))
        (B, H, *_), rows = shape, sums.shape[2] if sums.ndim == 4 else 0
        if (*sums.shape, *norms.shape) != (B, H, rows, SUMS, B, H, rows, 1) or rows > shape.Q:
            raise ValueError(f"sums {tuple(sums.shape)} and norms {tuple(norms.shape)} of outputs")
        kept, factors, least = (as_number(one, "precision") for one in told["precision"])
        return cls(
            told["checked"], lacks, Digest(sums.float(), norms.float(), Precision(kept, factors, least)), lost, maps
        )

    def rows_that_differ(self, att: AttentionBase, batch: int, head: int) -> Iterator[list[int]]:
        """Yield the queries of a head, some at a time, that do not give the output of the model's call."""
        digest = self.digest
        if digest is None or att.q is None or att.k is None or att.v is None:
            return
        K, group = att.shape.K, head // (att.shape.H // att.shape.G)
        keys, values = att.k[batch : batch + 1, group : group + 1], att.v[batch : batch + 1, group : group + 1]
        values = values.double() @ _directions(values.shape[-1]).to(values.device, torch.float64)
        mask: Any = att.options.mask
        bias: Any = att.options.bias
        rules = CallRules(att.shape.Q, K, 0, att.is_causal, mask, bias)
        how: dict[str, Any] = {"scale": att.scale, "softcap": att.softcap, "sinks": att.sinks, "rules": rules}
        step = max(1, CELLS_AT_ONCE // K)
        last = min(att.shape.Q, digest.sums.shape[2])
        for first in range(0, last, step):
            rows = list(range(first, min(first + step, last)))
            at = slice(rows[0], rows[-1] + 1)
            own = digest.sums[batch : batch + 1, head : head + 1, at].to(att.device)
            norms = digest.norms[batch, head, at].to(att.device)
            sample = OutputSample(rows, [batch], [head], own, digest.precision)
            rounded = OUTPUT_ROUNDINGS * digest.precision.kept * SUMS**0.5 * 2 * norms + 4 * digest.precision.least
            compared = ComparedRows(sample, att.q[batch : batch + 1, head : head + 1, at], keys, values)
            with torch.no_grad():
                found = rows_that_differ([compared], rounded=rounded, **how)[0, 0]
            yield [first + row for row in found.nonzero().flatten().tolist()]
