"""attnwidget shows the attention of any model, exactly, at any length, in the notebook.

>>> import torch
>>> from attnwidget import AttentionWidget
>>> q, k, v = torch.randn(3, 5, 8)
>>> AttentionWidget(q, k, v)
AttentionWidget(layer 0 of 1, head 0 of 1, 5 queries × 5 keys)
"""

from .attention import Attention
from .samples import load_sample
from .stack import AttentionStack
from .widget import AttentionWidget

__all__ = ["Attention", "AttentionStack", "AttentionWidget", "load_sample"]
__version__ = "0.1.0.dev0"
