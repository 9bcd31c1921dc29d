"""What a weight contributes downstream: stages of the form weights ⊙ (left · rightᵀ), from a few numbers per position.

value_norm  weight · ‖v W_O‖                     Kobayashi et al. 2020, §3
logit       weight · (v W_O · d) / s             d: the direction of a token, s: the final norm's scale at the query
saliency    weight · (∂L/∂O · v) = A ⊙ ∂L/∂A     O: the head's output
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from .._utils.indexing import Indices, take
from .._utils.mutation import version_of
from .sources import CARRIED

NEEDS = {"value_norm": ("w_o",), "logit": ("w_o", "direction"), "saliency": ("grad_output",)}
SAVED = {"value_norm": "roots", "logit": "read"}  # what a file holds instead
GIVE = {
    "value_norm": "the output projection is not known: capture the model, or give att.carrying(w_o=…)",
    "logit": "the direction of a token is not known: capture the model, or give att.carrying(w_o=…, direction=…)",
    "saliency": "no gradient is known: capture(model, gradients=True) and call loss.backward(), or give "
    "att.carrying(grad_output=…)",
}


CHANGED = (
    "one of its tensors was changed in place after it was captured or given, such as the output projection by a "
    "training step: capture the model again, or give att.carrying(…) again"
)
OTHER_RULES = "the gradient is of the original attention, not under other rules: remove the changes"


class Of(NamedTuple):
    """A head and its sample."""

    batch: int
    head: int


class Readout(Protocol):
    """The unembedding of a model: the directions that its logits read from the residual stream."""

    @property
    def vocabulary(self) -> int:
        """The number of tokens."""

    def refusal(self) -> str | None:
        """Return why it can no longer be read; None if it can."""

    def directions(self, tokens: Sequence[int]) -> Tensor:
        """Return the direction of each token, (tokens, d_model)."""


@dataclass(frozen=True, eq=False)
class Carrying:
    """What the weights of an attention contribute downstream, if known.

    w_o: (heads, Dv, d_model) the output projection by head.
    heads: the row of w_o for each head of the attention; None for the same numbers.
    direction: (B or 1, d_model) the direction read from the residual stream, such as a token's logit before the scale
        of the final norm.
    scale: (B or 1, Q) what the final norm divides by at each query; None for 1.
    grad_output: (B, H, Q, Dv) ∂L/∂O.
    projection: the name of the output projection's module.
    readout: gives the direction of a token.
    factor: the factor of the attention's output in the residual stream.
    is_before_cap: whether the model applies a softcap to its logits; the direction then gives the logit before it.
    targets: the target token of each sample, for the direction.
    choices: the most likely next tokens of each sample, the most likely first.
    words: the text of tokens, if known.
    refusals: by stage, why it is not available; "target": why no other token can be chosen.
    roots: (heads, Dv, r) Rᵀ of each head, with ‖v W_O‖ = ‖v Rᵀ‖; from a file, instead of w_o.
    read: (B, heads, Dv) W_O d of each head; from a file, instead of w_o and direction.
    """

    w_o: Tensor | None = None
    heads: tuple[int, ...] | None = None
    direction: Tensor | None = None
    scale: Tensor | None = None
    grad_output: Tensor | None = None
    projection: str | None = None
    readout: Readout | None = None
    factor: float = 1.0
    is_before_cap: bool = False
    targets: tuple[int, ...] | None = None
    choices: tuple[tuple[int, ...], ...] = ()
    words: Mapping[int, str] = field(default_factory=dict)
    refusals: Mapping[str, str] = field(default_factory=dict)
    roots: Tensor | None = None
    read: Tensor | None = None
    versions: Mapping[str, int] | None = None  # of each tensor, to notice changes in place
    _roots: dict[int, Tensor] = field(default_factory=dict, repr=False)  # by head: Rᵀ, as in `roots`

    def __post_init__(self) -> None:
        if self.versions is None:
            object.__setattr__(self, "versions", {name: version_of(x) for name, x in self.tensors().items()})

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_roots": {}, "versions": None, "changed": [*map(self._changed, NEEDS)]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Fill a copy; the versions of its tensors start from 0 again."""
        changed = [stage for stage, is_so in zip(NEEDS, state.pop("changed"), strict=True) if is_so]
        self.__dict__.update(state, refusals={**state["refusals"], **dict.fromkeys(changed, CHANGED)})
        self.__post_init__()

    @property
    def stages(self) -> tuple[str, ...]:
        """The available stages."""
        return tuple(stage for stage in CARRIED if self.refusal(stage) is None)

    def refusal(self, stage: str) -> str | None:
        """Return why a stage is not available; None if it is."""
        told = self.refusals.get(stage)
        if told is not None:
            return told
        if stage in SAVED and getattr(self, SAVED[stage]) is not None:
            return None
        if not all(getattr(self, name) is not None for name in NEEDS[stage]):
            return GIVE[stage]
        changed = None if stage != "logit" or self.readout is None else self.readout.refusal()
        if changed is not None:
            return changed
        return CHANGED if self._changed(stage) else None

    def _changed(self, stage: str) -> bool:
        """Return whether a tensor that a stage needs was changed in place."""
        before, needed = self.versions or {}, (*NEEDS[stage], *(("scale",) if stage == "logit" else ()))
        return any(version_of(getattr(self, name)) != before.get(name, 0) for name in needed)

    def named(self, token: int) -> str:
        """Return a token's text, or its number if the text is not known."""
        return self.words.get(token, f"token {token}")

    def with_targets(self, tokens: Sequence[int]) -> Carrying:
        """Return the same with the directions of other tokens, one for each sample; needs `readout`."""
        assert self.readout is not None
        direction = self.readout.directions(tokens) * self.factor
        versions = {**(self.versions or {}), "direction": version_of(direction)}
        refusals = {stage: why for stage, why in self.refusals.items() if stage != "logit"}
        return replace(self, direction=direction, targets=tuple(tokens), versions=versions, refusals=refusals)

    def on(self, device: torch.device) -> Carrying:
        """Return the same on a device."""
        named = {name: x for name, x in self.tensors().items() if x.device != device}
        if not named:
            return self
        moved: dict[str, Any] = {name: x.to(device) for name, x in named.items()}
        versions = {**(self.versions or {}), **{name: version_of(x) for name, x in moved.items()}}
        return replace(self, **moved, versions=versions)

    def without_gradient(self) -> Carrying:
        """Return the same without the gradient, which does not hold under other rules."""
        if self.grad_output is None:
            return self
        return replace(self, grad_output=None, refusals={**self.refusals, "saliency": OTHER_RULES})

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name."""
        named = {name: getattr(self, name) for name in ("w_o", "direction", "scale", "grad_output")}
        return {name: x for name, x in named.items() if x is not None}

    def left(self, stage: str, of: Of, queries: Indices, dtype: torch.dtype) -> Tensor | None:
        """Return `left` for some queries, (queries, r); None if all are 1."""
        if stage == "saliency":
            assert self.grad_output is not None
            return take(self.grad_output[of.batch, of.head], queries, 0).to(dtype)
        if stage == "value_norm" or self.scale is None:
            return None
        scale = self.scale[_row(self.scale, of.batch)]
        return take(scale, queries, 0).to(dtype).reciprocal()[:, None]

    def right(self, stage: str, of: Of, values: Tensor) -> Tensor:
        """Return `right` for some keys, (keys, r), from their values (keys, Dv) in the dtype of results."""
        if stage == "saliency":
            return values
        if stage == "value_norm":
            return torch.linalg.vector_norm(values @ self.root(of.head).to(values.dtype), dim=1, keepdim=True)
        return values @ self.read_of(of).to(values.dtype)[:, None]

    def read_of(self, of: Of) -> Tensor:
        """Return W_O d of a head, (Dv,): the direction to read from its values."""
        if self.read is not None:
            return self.read[of.batch, of.head]
        assert self.direction is not None
        direction = self.direction[_row(self.direction, of.batch)].double()
        return self._projection(of.head).double() @ direction.to(self._projection(of.head).device)

    def _projection(self, head: int) -> Tensor:
        """Return a head's part of the output projection, (Dv, d_model)."""
        assert self.w_o is not None
        return self.w_o[head if self.heads is None else self.heads[head]]

    def root(self, head: int) -> Tensor:
        """Return Rᵀ, (Dv, at most Dv), with W_O = Rᵀ Qᵀ and Q orthonormal, so that ‖v Rᵀ‖ = ‖v W_O‖."""
        if self.roots is not None:
            return self.roots[head]
        if head not in self._roots:
            projection = self._projection(head).double()
            self._roots[head] = torch.linalg.qr(projection.mT, mode="r").R.mT.contiguous()
        return self._roots[head]


def _row(x: Tensor, batch: int) -> int:
    return batch if len(x) > 1 else 0


def factor(carrying: Carrying, stage: str, of: Of, queries: Indices, values: Tensor) -> Tensor:
    """Return the factors of the weights of some queries, (keys, queries) or (keys, 1)."""
    left, right = carrying.left(stage, of, queries, values.dtype), carrying.right(stage, of, values)
    return right if left is None else right @ left.mT


def carried(weights: Tensor, of_cell: Tensor) -> Tensor:
    """Return weights × factors, (keys, queries); 0 for a weight of 0, even if the factor is NaN or infinite."""
    found = weights * of_cell
    return found if bool(of_cell.isfinite().all()) else found.masked_fill_(weights == 0, 0)
