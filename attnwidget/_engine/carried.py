"""What a weight carries: stages that are weights ⊙ (left · rightᵀ), a few numbers of each query and each key.

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
from .sources import CARRIED

NEEDS = {"value_norm": ("w_o",), "logit": ("w_o", "direction"), "saliency": ("grad_output",)}
SAVED = {"value_norm": "roots", "logit": "read"}  # what a file has in their place
GIVE = {
    "value_norm": "the output projection is not known: capture the model, or give att.carrying(w_o=…)",
    "logit": "the direction of a token is not known: capture the model, or give att.carrying(w_o=…, direction=…)",
    "saliency": "no gradient is known: capture(model, gradients=True) and call loss.backward(), or give "
    "att.carrying(grad_output=…)",
}


CHANGED = (
    "a tensor that it is made of was changed in place after it was captured or given, as the output projection by a "
    "step of training: capture the model again, or give att.carrying(…) again"
)
OTHER_RULES = "the gradient was taken of the attention as it was, not under other rules: take these away"


class Of(NamedTuple):
    """Which head of which sample."""

    batch: int
    head: int


def version_of(x: Tensor | None) -> int:
    """Return how often torch changed a tensor in place; 0 where it does not count."""
    return 0 if x is None or x.is_inference() else x._version


class Readout(Protocol):
    """What a model reads of its residual stream in the end."""

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""

    def refusal(self) -> str | None:
        """Return why it cannot be read any more; None if it can."""

    def directions(self, tokens: Sequence[int]) -> Tensor:
        """Return the direction of each token, (tokens, d_model)."""


@dataclass(frozen=True, eq=False)
class Carrying:
    """What the weights of an attention carry on, as far as it is known.

    w_o: (heads, Dv, d_model) the output projection, by head.
    heads: which of them each head of the attention is; None: the same.
    direction: (B or 1, d_model) what is read of the residual stream: of a token's logit, before the final norm's scale.
    scale: (B or 1, Q) what the final norm divides by at each query; None: 1.
    grad_output: (B, H, Q, Dv) ∂L/∂O.
    projection: the name of the module that the output projection is of.
    readout: what makes a direction of a token.
    factor: what the attention's part in the residual stream is multiplied by.
    is_before_cap: whether logits are bent by a softcap afterwards, so that the direction is of the logit before it.
    targets: of each sample, of which token the direction is.
    choices: of each sample, the tokens that are most likely next, the first the most.
    words: of tokens, their text, as far as it is known.
    refusals: by stage, why it cannot be had; and of "target", why no other token can be chosen.
    roots: (heads, Dv, r) of each head Rᵀ, of which ‖v W_O‖ = ‖v Rᵀ‖; of a file, which has no w_o.
    read: (B, heads, Dv) of each head W_O d; the same.
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
    versions: Mapping[str, int] | None = None  # of each tensor, by which changes in place are noticed
    _roots: dict[int, Tensor] = field(default_factory=dict, repr=False)  # by head: Rᵀ, of which ‖v W_O‖ = ‖v Rᵀ‖

    def __post_init__(self) -> None:
        if self.versions is None:
            object.__setattr__(self, "versions", {name: version_of(x) for name, x in self.tensors().items()})

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_roots": {}, "versions": None, "changed": [*map(self._changed, NEEDS)]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Fill a copy, whose tensors count from 0 again."""
        changed = [stage for stage, is_so in zip(NEEDS, state.pop("changed"), strict=True) if is_so]
        self.__dict__.update(state, refusals={**state["refusals"], **dict.fromkeys(changed, CHANGED)})
        self.__post_init__()

    @property
    def stages(self) -> tuple[str, ...]:
        """Return the stages that can be had."""
        return tuple(stage for stage in CARRIED if self.refusal(stage) is None)

    def refusal(self, stage: str) -> str | None:
        """Return why a stage cannot be had; None if it can."""
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
        """Return a token's text; its number where that is not known."""
        return self.words.get(token, f"token {token}")

    def with_targets(self, tokens: Sequence[int]) -> Carrying:
        """Return the same with the directions of other tokens, one for each sample; `readout` is known."""
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
        """Return the same for an attention under other rules, of which the gradient is none."""
        if self.grad_output is None:
            return self
        return replace(self, grad_output=None, refusals={**self.refusals, "saliency": OTHER_RULES})

    def tensors(self) -> dict[str, Tensor]:
        """Return what is read, by name."""
        named = {name: getattr(self, name) for name in ("w_o", "direction", "scale", "grad_output")}
        return {name: x for name, x in named.items() if x is not None}

    def left(self, stage: str, of: Of, queries: Indices, dtype: torch.dtype) -> Tensor | None:
        """Return the numbers of some queries, (queries, r); None where all are 1."""
        if stage == "saliency":
            assert self.grad_output is not None
            return take(self.grad_output[of.batch, of.head], queries, 0).to(dtype)
        if stage == "value_norm" or self.scale is None:
            return None
        scale = self.scale[_row(self.scale, of.batch)]
        return take(scale, queries, 0).to(dtype).reciprocal()[:, None]

    def right(self, stage: str, of: Of, values: Tensor) -> Tensor:
        """Return the numbers of some keys, (keys, r).

        Args:
            stage: which stage.
            of: which head of which sample.
            values: of the keys, (keys, Dv), in the dtype of results.
        """
        if stage == "saliency":
            return values
        if stage == "value_norm":
            return torch.linalg.vector_norm(values @ self.root(of.head).to(values.dtype), dim=1, keepdim=True)
        return values @ self.read_of(of).to(values.dtype)[:, None]

    def read_of(self, of: Of) -> Tensor:
        """Return W_O d, what is read of the values of a head, (Dv,)."""
        if self.read is not None:
            return self.read[of.batch, of.head]
        assert self.direction is not None
        direction = self.direction[_row(self.direction, of.batch)].double()
        return self._projection(of.head).double() @ direction.to(self._projection(of.head).device)

    def _projection(self, head: int) -> Tensor:
        """Return the part of the output projection that is a head's, (Dv, d_model)."""
        assert self.w_o is not None
        return self.w_o[head if self.heads is None else self.heads[head]]

    def root(self, head: int) -> Tensor:
        """Return Rᵀ, (Dv, at most Dv), with W_O = Rᵀ Qᵀ and Q orthonormal, so that lengths are those after W_O."""
        if self.roots is not None:
            return self.roots[head]
        if head not in self._roots:
            projection = self._projection(head).double()
            self._roots[head] = torch.linalg.qr(projection.mT, mode="r").R.mT.contiguous()
        return self._roots[head]


def _row(x: Tensor, batch: int) -> int:
    return batch if len(x) > 1 else 0


def factor(carrying: Carrying, stage: str, of: Of, queries: Indices, values: Tensor) -> Tensor:
    """Return what the weights of some queries are multiplied by, (keys, queries) or (keys, 1)."""
    left, right = carrying.left(stage, of, queries, values.dtype), carrying.right(stage, of, values)
    return right if left is None else right @ left.mT


def carried(weights: Tensor, of_cell: Tensor) -> Tensor:
    """Return weights × what each carries, (keys, queries); 0 where the weight is 0, whatever that is."""
    found = weights * of_cell
    return found if bool(of_cell.isfinite().all()) else found.masked_fill_(weights == 0, 0)
