"""Summarize which modules of a captured model read the outputs of its heads."""

from __future__ import annotations

from collections.abc import Mapping

from ..._analysis.output_path import OutputPath
from ..._engine.sources import CARRIED
from ...attention import Attention
from .readout import LogitReadout, NormFacts


def path_of(attentions: Mapping[str, Attention]) -> OutputPath:
    """Return where the outputs of some attentions go, by name."""
    projections: dict[str, str] = {}
    refusals: dict[str, dict[str, str]] = {}
    readout: LogitReadout | None = None
    factors: set[float] = set()
    between: dict[str, NormFacts] = {}
    for name, att in attentions.items():
        carries = att.carries
        if carries is not None and carries.projection is not None:
            projections[name] = carries.projection
        if carries is not None and isinstance(carries.readout, LogitReadout):
            readout = carries.readout
            factors.add(carries.factor)
            between |= {one.name: one for one in readout.between}
        whys = {stage: why for stage in CARRIED if (why := att.why_not(stage)) is not None}
        refusals |= {name: whys} if whys else {}
    if readout is None:
        return OutputPath(projections, refusals=refusals)
    norm, unembedding, notes = readout.norm, readout.unembedding, []
    if unembedding.softcap:
        notes.append("a softcap follows: the stage logit is the logit before the cap")
    if unembedding.factor != 1:
        notes.append(f"logits are multiplied by {unembedding.factor:.6g}")
    notes += [f"what attention adds is multiplied by {one:.6g}" for one in sorted(factors) if one != 1]
    if between:
        more = f" and {len(between) - 1} more" if len(between) > 1 else ""
        one = next(iter(between.values()))
        notes.append(f"before or after it is added, it passes {one.name} ({one.kind}){more}, with the captured scales")
    last = None if norm is None else f"{norm.name} ({norm.kind})"
    return OutputPath(projections, last, unembedding.name, tuple(notes), refusals)
