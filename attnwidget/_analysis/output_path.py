"""The path of the heads' outputs in a model, in words: the modules found, and the parts that are unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class OutputPath:
    """The modules that read the outputs of the heads, as found while capturing.

    projections: by attention name, the module of its output projection.
    norm: the final norm and its kind; None if unknown, or there is none.
    unembedding: the name of the weight that gives logits; None if unknown.
    notes: on these, such as a softcap on the logits.
    refusals: by attention name and missing stage, the reason.

    >>> import torch
    >>> from attnwidget import capture
    >>> x = torch.randn(1, 5, 8)
    >>> found = capture(torch.nn.MultiheadAttention(8, 2, batch_first=True)).run(x, x, x).output_path
    >>> found.projections, found.unembedding
    ({'MultiheadAttention': 'MultiheadAttention.out_proj'}, None)
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
