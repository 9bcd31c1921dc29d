"""attnwidget shows the attention of any model, exactly, at any length, in the notebook.

>>> import torch
>>> from attnwidget import AttentionWidget
>>> q, k, v = torch.randn(3, 5, 8)
>>> AttentionWidget(q, k, v)
AttentionWidget(layer 0 of 1, head 0 of 1, 5 queries × 5 keys)
"""

from . import masks, results, scaling
from ._capture.capture import Capture, Forward, capture
from ._capture.find_heads import find_heads
from ._capture.interventions.effect import effect
from ._capture.interventions.intervene import Run, intervene
from ._capture.interventions.sweep import Sweep, sweep
from ._capture.stacks import NamedStack
from ._segments.reading import segments
from ._utils.report import report
from ._widget.comparison import ComparisonWidget, compare
from ._widget.named_stacks import LabeledStack
from ._widget.widget import AttentionWidget
from .attention import Attention
from .functional import ScaledDotProductAttention, scaled_dot_product_attention
from .samples import Sample, load_sample
from .stack import AttentionStack

__all__ = [
    "Attention",
    "AttentionStack",
    "AttentionWidget",
    "Capture",
    "ComparisonWidget",
    "Forward",
    "LabeledStack",
    "NamedStack",
    "Run",
    "Sample",
    "ScaledDotProductAttention",
    "Sweep",
    "__version__",
    "capture",
    "compare",
    "effect",
    "find_heads",
    "intervene",
    "load_sample",
    "masks",
    "report",
    "results",
    "scaled_dot_product_attention",
    "scaling",
    "segments",
    "sweep",
]
__version__ = "0.1.0.dev0"


def __dir__() -> list[str]:
    """Return the public names alone: what an editor is to offer."""
    return sorted(__all__)
