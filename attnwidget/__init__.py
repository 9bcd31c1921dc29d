"""Show the attention of any model in the notebook, exactly and at any length.

>>> import torch
>>> from attnwidget import AttentionWidget
>>> q, k, v = torch.randn(3, 5, 8)
>>> AttentionWidget(q, k, v)
AttentionWidget(layer 0 of 1, head 0 of 1, 5 queries × 5 keys)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and type checkers; at runtime `__getattr__` imports these
    from . import masks, results, scaling, serving
    from ._atlas.atlas import Atlas
    from ._atlas.build import atlas
    from ._atlas.page.atlas_widget import AtlasWidget
    from ._capture.api.capture import Capture, Forward, capture
    from ._capture.api.find_heads import find_heads
    from ._capture.interventions.effect import effect
    from ._capture.interventions.intervene import Run, intervene
    from ._capture.interventions.sweep import Sweep, sweep
    from ._capture.text.stacks import NamedStack
    from ._segments.reading import segments
    from ._utils.report import report
    from ._widget.comparison.comparison_widget import ComparisonWidget, compare
    from ._widget.stores.named_stacks import LabeledStack
    from ._widget.widget import AttentionWidget
    from .attention import Attention
    from .functional import ScaledDotProductAttention, scaled_dot_product_attention
    from .samples import Sample, load_sample
    from .stack import AttentionStack

__all__ = [
    "Atlas",
    "AtlasWidget",
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
    "atlas",
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
    "serving",
    "sweep",
]
__version__ = "1.0.0rc1"

_MODULES = {
    "Atlas": "_atlas.atlas",
    "AtlasWidget": "_atlas.page.atlas_widget",
    "Attention": "attention",
    "AttentionStack": "stack",
    "AttentionWidget": "_widget.widget",
    "Capture": "_capture.api.capture",
    "ComparisonWidget": "_widget.comparison.comparison_widget",
    "Forward": "_capture.api.capture",
    "LabeledStack": "_widget.stores.named_stacks",
    "NamedStack": "_capture.text.stacks",
    "Run": "_capture.interventions.intervene",
    "Sample": "samples",
    "ScaledDotProductAttention": "functional",
    "Sweep": "_capture.interventions.sweep",
    "atlas": "_atlas.build",
    "capture": "_capture.api.capture",
    "compare": "_widget.comparison.comparison_widget",
    "effect": "_capture.interventions.effect",
    "find_heads": "_capture.api.find_heads",
    "intervene": "_capture.interventions.intervene",
    "load_sample": "samples",
    "masks": "masks",
    "report": "_utils.report",
    "results": "results",
    "scaled_dot_product_attention": "functional",
    "scaling": "scaling",
    "segments": "_segments.reading",
    "serving": "serving",
    "sweep": "_capture.interventions.sweep",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that computing loads no widgets and showing loads no capture."""
    if name not in _MODULES:
        raise AttributeError(f"module 'attnwidget' has no attribute {name!r}")
    module = importlib.import_module(f".{_MODULES[name]}", __name__)
    globals()[name] = found = module if name == _MODULES[name] else getattr(module, name)
    return found


def __dir__() -> list[str]:
    """Return only the public names, for completion in editors."""
    return sorted(__all__)
