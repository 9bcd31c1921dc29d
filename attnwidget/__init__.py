"""attnwidget shows the attention of any model, exactly, at any length, in the notebook.

>>> import torch
>>> from attnwidget import AttentionWidget
>>> q, k, v = torch.randn(3, 5, 8)
>>> AttentionWidget(q, k, v)
AttentionWidget(layer 0 of 1, head 0 of 1, 5 queries × 5 keys)
"""

from . import masks
from ._capture.capture import Capture, capture
from ._widget.comparison import compare
from ._widget.widget import AttentionWidget
from .attention import Attention
from .functional import ScaledDotProductAttention, scaled_dot_product_attention
from .samples import load_sample
from .stack import AttentionStack

__all__ = [
    "Attention",
    "AttentionStack",
    "AttentionWidget",
    "Capture",
    "ScaledDotProductAttention",
    "capture",
    "compare",
    "load_sample",
    "masks",
    "scaled_dot_product_attention",
]
__version__ = "0.1.0.dev0"
