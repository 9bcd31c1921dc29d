"""Save in a file what the weights of a captured attention contribute, without the model's weights.

Each head's output projection is replaced by the root of its square, (Dv, Dv), which preserves lengths, and by the
direction in its values for the chosen token, (Dv,). A file therefore has these stages for that token only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..._engine.carried import Carrying, Of
from ..._engine.sources import CARRIED
from ...attention import Attention

NO_OTHER = (
    "a file has only the logit of the token that was chosen when it was saved, and no unembedding: choose another on "
    "the capture, cap.target = …, and save it again"
)
PARTS = ("roots", "read", "scale", "grad_output")


def entry_of_carried(att: Attention, add: Callable[[Tensor], str]) -> dict[str, Any] | None:
    """Return a file's entry for what the weights contribute; None if nothing is known.

    Args:
        att: the attention.
        add: puts a tensor into the file and returns its name there.
    """
    carries = att.carries
    if carries is None:
        return None
    B, H, there = att.shape.B, att.shape.H, carries.stages
    found: dict[str, Tensor | None] = {}
    if "value_norm" in there:
        roots = [carries.root(head).to(att.result_dtype) for head in range(H)]
        found["roots"] = torch.stack(roots)
    if "logit" in there:
        rows = [torch.stack([carries.read_of(Of(b, head)) for head in range(H)]) for b in range(B)]
        found |= {"read": torch.stack(rows).to(att.result_dtype), "scale": carries.scale}
    if "saliency" in there:
        found["grad_output"] = carries.grad_output
    refusals = {stage: why for stage in CARRIED if (why := carries.refusal(stage)) is not None}
    entry: dict[str, Any] = {name: add(x.contiguous()) for name, x in found.items() if x is not None}
    targets = None if carries.targets is None else list(carries.targets)
    own = {"targets": targets, "projection": carries.projection, "refusals": refusals}
    return {**entry, **own, "before_cap": carries.is_before_cap}


def with_carried(att: Attention, entry: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Attention:
    """Return an attention from a file with what its weights contribute.

    Raises:
        LookupError, ValueError: an entry is missing or invalid.
    """
    B, H, _, Q, _, _, Dv = att.shape
    found: dict[str, Any] = {name: tensors[entry[name]] for name in PARTS if name in entry}
    shapes = {"read": (B, H, Dv), "scale": (B, Q), "grad_output": (B, H, Q, Dv)}
    for name, x in found.items():
        wanted = shapes.get(name, (H, Dv, x.shape[-1]))
        if tuple(x.shape) != wanted or not x.is_floating_point():
            raise ValueError(f"{name} has shape {tuple(x.shape)}: expected {wanted}")
    targets = entry.get("targets")
    refusals = {str(stage): str(why) for stage, why in dict(entry.get("refusals", {})).items()}
    return att.as_carrying(
        Carrying(
            **found,
            targets=None if targets is None else tuple(int(one) for one in targets),
            is_before_cap=entry.get("before_cap") is True,
            projection=None if entry.get("projection") is None else str(entry["projection"]),
            refusals={**refusals, "target": NO_OTHER},
        )
    )
