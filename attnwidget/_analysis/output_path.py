"""Where the outputs of a model's heads go, in words: which modules were found, and what is not known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class OutputPath:
    """Which modules read the outputs of the heads, as they were found while capturing.

    projections: of each attention, by name, the module that its output projection is of.
    norm: the final norm and what it is; None where it is not known, or there is none.
    unembedding: the name of the weight that makes logits; None where it is not known.
    notes: what is said of these, such as a softcap on the logits.
    refusals: of each attention, by name, and of each stage that it has not, why.
    """

    projections: Mapping[str, str]
    norm: str | None = None
    unembedding: str | None = None
    notes: tuple[str, ...] = ()
    refusals: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{name} → {projection}" for name, projection in self.projections.items()]
        if self.unembedding is not None:
            lines.append(f"final norm: {self.norm or 'none'}; unembedding: {self.unembedding}")
        lines += self.notes
        said: dict[tuple[str, str], list[str]] = {}
        for name, whys in self.refusals.items():
            for stage, why in whys.items():
                said.setdefault((stage, why), []).append(name)
        for (stage, why), names in said.items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            lines.append(f"no {stage} of {names[0]}{more}: {why}")
        return "\n".join(lines) or "nothing was found"

    __repr__ = __str__
