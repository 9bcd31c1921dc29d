"""Read the arguments of `Attention.carrying` and `Attention.with_target`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor

from .._utils.indexing import as_index
from .._utils.mutation import version_of
from .._utils.validation import as_tensor
from .base import AttentionBase, OnlyWeightsError
from .carried import NEEDS, Carrying

A = TypeVar("A", bound=AttentionBase)
NO_UNEMBEDDING = (
    "a direction was given but the unembedding is not known: give att.carrying(direction=…) for another token"
)


def carrying(att: A, given: Mapping[str, Any]) -> A:
    """Return an attention with stages after the weights: see `Attention.carrying`."""
    if att.source.derived:
        raise OnlyWeightsError(
            "combined heads and merged words have only weights: call carrying on single heads and subword tokens, "
            "before combining or merging"
        )
    if not any(x is not None for x in given.values()):
        raise ValueError(f"carrying has no argument: give one of {', '.join(given)}")
    before = att.carries or Carrying()
    found = read(att, given, before.w_o)
    settled = {stage for stage, needs in NEEDS.items() if set(needs) & set(found)}
    new: dict[str, Any] = {**found, "refusals": {s: why for s, why in before.refusals.items() if s not in settled}}
    if "w_o" in found:
        new |= {"heads": None, "projection": None, "roots": None, "read": None}
    if "direction" in found:
        new |= {"scale": found.get("scale"), "readout": None, "targets": None, "read": None}
    versions = {**(before.versions or {}), **{name: version_of(x) for name, x in found.items()}}
    return att.as_carrying(replace(before, **new, versions=versions, _roots={}))


def with_target(att: A, token: Any) -> A:
    """Return an attention with the logits of another token: see `Attention.with_target`."""
    carries = att.carries
    known = None if carries is None or carries.w_o is None else carries.readout
    if carries is None or known is None or known.refusal() is not None:
        att.check_stage("logit")
        raise ValueError((carries or Carrying()).refusals.get("target", NO_UNEMBEDDING))
    B = att.shape.B
    given = [token] * B if isinstance(token, int) or not isinstance(token, Sequence) else list(token)
    if len(given) != B:
        raise ValueError(f"there are {len(given)} tokens for {B} samples: give one, or one for each sample")
    many = known.vocabulary
    return att.as_carrying(carries.with_targets([as_index(one, many, "token", "tokens") for one in given]))


def read(att: AttentionBase, given: Mapping[str, Any], w_o: Tensor | None) -> dict[str, Tensor]:
    """Check the arguments of `Attention.carrying`, and return those given, each in one form.

    Args:
        att: the attention.
        given: w_o, direction, scale and grad_output, or None for each.
        w_o: the output projection already known, or None.

    Raises:
        TypeError, ValueError: an argument is not a tensor, or its shape does not fit.
    """
    B, H, _, Q, _, _, Dv = att.shape
    if Dv is None:
        raise ValueError("carrying needs v: give Attention(q, k, v)")
    found = {name: as_tensor(x, name).detach().to(att.device) for name, x in given.items() if x is not None}
    if "w_o" in found:
        w_o = found["w_o"] = _read_projection(found["w_o"], H, Dv)
    if "direction" in found:
        found["direction"] = _read_rows(found["direction"], "direction", B, None if w_o is None else w_o.shape[2])
    if "scale" in found:
        found["scale"] = _read_rows(found["scale"], "scale", B, Q)
    if "grad_output" in found:
        found["grad_output"] = _read_gradient(found["grad_output"], (B, H, Q, Dv))
    return found


def _read_gradient(gradient: Tensor, wanted: tuple[int, ...]) -> Tensor:
    """Return ∂L/∂O, (B, H, Q, Dv)."""
    found = gradient.reshape((1,) * (4 - gradient.ndim) + gradient.shape)
    if found.shape != wanted:
        raise ValueError(f"grad_output has shape {tuple(gradient.shape)}: give ∂L/∂O of all heads, {wanted}")
    return found


def _read_projection(w_o: Tensor, heads: int, size: int) -> Tensor:
    """Return an output projection by head, (H, Dv, d_model)."""
    if w_o.ndim == 2 and w_o.shape[0] == heads * size:
        return w_o.unflatten(0, (heads, size))
    if w_o.ndim == 3 and w_o.shape[:2] == (heads, size):
        return w_o
    raise ValueError(
        f"w_o has shape {tuple(w_o.shape)}: give ({heads * size}, d_model), or ({heads}, {size}, d_model), so that "
        "the layer adds the concatenated outputs of its heads times w_o"
    )


def _read_rows(x: Tensor, name: str, batches: int, size: int | None) -> Tensor:
    """Return a direction or a scale, one for all samples or one for each."""
    rows = x[None] if x.ndim == 1 else x
    if rows.ndim != 2 or len(rows) not in (1, batches) or rows.shape[1] != (size or rows.shape[1]):
        wanted = f"({size or 'd_model'},) or ({batches}, {size or 'd_model'})"
        raise ValueError(f"{name} has shape {tuple(x.shape)}: give {wanted}")
    return rows
