"""How a model reads its residual stream: norms, final norm, unembedding, and the direction of a token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..._utils.mutation import version_of
from .projections import COMPARED, LEAST, coarsest

EPSILONS = ("eps", "variance_epsilon", "epsilon", "layer_norm_eps")
USUAL = (1e-5, 1e-6, 1e-8, 1e-12, 0.0)
CHANGED = "the weights of the final norm or the unembedding were changed after the capture: capture the model again"
CHANGED_BETWEEN = "the weights of {} were changed after the capture: capture the model again"


@dataclass(frozen=True)
class NormFacts:
    """How a norm maps x to y: (x, less its mean) / scale · gain + bias.

    name: the name of the module.
    centered: whether it subtracts the mean.
    weight: (d_model,); None without one.
    plus_one: whether the gain is 1 + weight (Gemma).
    eps: added before the root.
    """

    name: str
    centered: bool
    weight: Tensor | None
    plus_one: bool
    eps: float

    @property
    def kind(self) -> str:
        """The type of norm."""
        return "LayerNorm" if self.centered else "RMSNorm, 1 + weight" if self.plus_one else "RMSNorm"

    @property
    def settings(self) -> tuple[Any, ...]:
        """The computation, apart from the weight."""
        return self.name, self.centered, self.weight is None, self.plus_one, self.eps

    def gain(self) -> Tensor | float:
        """Return the factor of each number, (d_model,) float64."""
        if self.weight is None:
            return 1.0
        return self.weight.detach().double() + self.plus_one

    def scale(self, x: Tensor) -> Tensor:
        """Return the divisor at each position, (B, Q) float32, from x (B, Q, d_model)."""
        wide = x.detach().to(torch.promote_types(x.dtype, torch.float32))
        wide = wide - wide.mean(-1, keepdim=True) if self.centered else wide
        return wide.square().mean(-1).add_(self.eps).sqrt_()

    def before(self, directions: Tensor) -> Tensor:
        """Map directions in y, (n, d_model), to directions in x: x · result / scale = y · directions, less bias."""
        gain = self.gain()
        rows = directions * (gain.to(directions.device) if isinstance(gain, Tensor) else gain)
        return rows - rows.mean(-1, keepdim=True) if self.centered else rows


def read_norm(module: nn.Module, name: str, x: Tensor, y: Tensor) -> NormFacts | None:
    """Return what a norm computes, from some rows of its input and output; None if it is of no known type.

    Args:
        module: the norm.
        name: its name.
        x: its input, (…, d_model).
        y: its output, (…, d_model).
    """
    rows, wanted = (z.detach().reshape(-1, z.shape[-1])[[0, -1]].double() for z in (x, y))
    bias = getattr(module, "bias", None)
    added = bias.detach().double() if isinstance(bias, Tensor) else 0.0
    for found in _possible(module, name, x.shape[-1]):
        centered = rows - rows.mean(-1, keepdim=True) if found.centered else rows
        scale = centered.square().mean(-1, keepdim=True).add(found.eps).sqrt()
        again = centered / scale * found.gain() + added
        bound = (
            LEAST
            * coarsest(x.dtype, y.dtype)
            * (rows.abs().amax() / scale * torch.as_tensor(found.gain(), device=x.device).abs())
        )
        if bool(((again - wanted).abs() <= bound + 1e-30).all()):
            return found
    return None


def _possible(module: nn.Module, name: str, size: int) -> Iterator[NormFacts]:
    weight = getattr(module, "weight", None)
    if isinstance(weight, Tensor) and weight.is_meta:  # it lies elsewhere between its calls
        return
    weight = weight if isinstance(weight, Tensor) and weight.shape == (size,) else None
    own = [float(x) for x in (getattr(module, one, None) for one in EPSILONS) if isinstance(x, float)]
    for eps in dict.fromkeys([*own, *USUAL]):
        for centered in (False, True):
            for plus_one in (False, True) if weight is not None else (False,):
                yield NormFacts(name, centered, weight, plus_one, eps)


@dataclass(frozen=True)
class Unembedding:
    """The linear map from the final norm's output to the logits.

    name: the name of its weight in the model.
    weight: (vocabulary, d_model).
    factor: the factor of the logits.
    softcap: whether a softcap follows; the readout then gives the logit before it.
    """

    name: str
    weight: Tensor
    factor: float = 1.0
    softcap: bool = False

    def gives(self, x: Tensor, logits: Tensor) -> bool:
        """Return whether some logits of a position are those of x, without a softcap.

        Args:
            x: (…, d_model); the last row is compared.
            logits: (…, n, vocabulary), of the last position or of others.
        """
        row, weight = x.reshape(-1, x.shape[-1])[-1].double(), self.weight.detach()[:COMPARED].double()
        given = logits.detach().reshape(-1, logits.shape[-1])[:, :COMPARED].double()
        again = weight @ row * self.factor
        size = weight.abs() @ row.abs() * abs(self.factor)
        bound = LEAST * coarsest(x.dtype, logits.dtype, self.weight.dtype) * len(row) ** 0.5 * size
        same = (given[-1] - again).abs() <= bound
        return bool(same.all()) or bool(((given - again).abs() <= bound).all(-1).any())


@dataclass(frozen=True, eq=False)
class LogitReadout:
    """How the model makes its logits, as of when it ran.

    norm: the final norm; None if there is none.
    unembedding: the map from the final norm's output to the logits.
    others: norms before it, by their calls.
    passes: the calls of these norms that an attention's contribution passes, in order.
    """

    norm: NormFacts | None
    unembedding: Unembedding
    others: Mapping[str, NormFacts] = field(default_factory=dict)
    passes: tuple[str, ...] = ()
    versions: Mapping[str, int] = field(default_factory=dict)  # of each weight, by name

    @classmethod
    def of(
        cls, norm: NormFacts | None, unembedding: Unembedding, others: Mapping[str, NormFacts] | None = None
    ) -> LogitReadout:
        """Return a readout that notices later changes of the weights."""
        found = cls(norm, unembedding, others or {})
        return replace(found, versions=found._now())

    def through(self, calls: tuple[str, ...]) -> LogitReadout:
        """Return the readout of a contribution that passes these norms first."""
        return replace(self, passes=calls)

    @property
    def between(self) -> tuple[NormFacts, ...]:
        """The norms that the contribution passes, in order."""
        return tuple(self.others[one] for one in self.passes)

    def _now(self) -> dict[str, int]:
        final = version_of(None if self.norm is None else self.norm.weight)
        others = {name: version_of(one.weight) for name, one in self.others.items()}
        return {**others, "": version_of(self.unembedding.weight) + final}

    @property
    def vocabulary(self) -> int:
        """The number of tokens."""
        return len(self.unembedding.weight)

    def refusal(self) -> str | None:
        """Return why the readout is no longer valid; None if it is valid."""
        now = self._now()
        if now[""] != self.versions.get(""):
            return CHANGED
        changed = (self.others[one].name for one in self.passes if now[one] != self.versions.get(one))
        name = next(changed, None)
        return None if name is None else CHANGED_BETWEEN.format(name)

    def directions(self, tokens: Sequence[int]) -> Tensor:
        """Return tokens' directions in an attention's contribution, without the norms' scales: (tokens, d_model)."""
        weight = self.unembedding.weight
        rows = weight.detach()[torch.tensor(list(tokens), device=weight.device)].double() * self.unembedding.factor
        for norm in reversed((*self.between, *([] if self.norm is None else [self.norm]))):
            rows = norm.before(rows)
        return rows.float()
