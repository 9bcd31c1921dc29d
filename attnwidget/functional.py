"""Attention as tutorials write it: the formula, its dense weights, and gradients by autograd.

It computes all (Q, K) weights, so it suits learning, training and short sequences. `Attention` handles any length.
"""

from __future__ import annotations

import warnings
from math import inf
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ._analysis.added_masks import added_mask
from ._engine.axes import LETTERS, MATRIX, as_given, as_heads
from ._engine.matmul import full
from ._rules.options import AttentionKeywords, AttentionOptions, KeywordsBesideMask, MaskLike, TensorLike, with_keywords
from ._rules.parsing import read_rules, read_sinks
from ._rules.rules import Bias, Rules, ScoreFunction, indices, whole
from ._utils.indexing import Block
from ._utils.mutation import levels_to_the_caller
from ._utils.validation import as_number, as_positive, as_tensor

if TYPE_CHECKING:
    from typing_extensions import Unpack


@overload
def scaled_dot_product_attention(
    q: Tensor, k: TensorLike, v: TensorLike, *, dims: str | None = None, **options: Unpack[AttentionKeywords]
) -> tuple[Tensor, Tensor]: ...
@overload
def scaled_dot_product_attention(
    q: NDArray[Any], k: TensorLike, v: TensorLike, *, dims: str | None = None, **options: Unpack[AttentionKeywords]
) -> tuple[NDArray[Any], NDArray[Any]]: ...
@overload
def scaled_dot_product_attention(
    q: TensorLike, k: TensorLike, v: TensorLike, *, dims: str | None = None, **options: Unpack[AttentionKeywords]
) -> tuple[Any, Any]: ...
@with_keywords
def scaled_dot_product_attention(
    q: TensorLike,
    k: TensorLike,
    v: TensorLike,
    *,
    dims: str | None = None,
    **options: Unpack[AttentionKeywords],
) -> tuple[Any, Any]:
    """Compute softmax(q · kᵀ / √D) · v and the weights (Vaswani et al. 2017, eq. 1).

    Arrays give arrays. Tensors give tensors, which autograd can differentiate.

    Args:
        q, k, v: (Q, D), (K, D) and (K, Dv), or all of them (B, …) or (B, H, …); k and v may have fewer heads.
        mask: a bool mask is True where a query may attend. In an integer mask, 1 means the same with
            `mask_means="keep"`, and the opposite with "hide". A float mask is added; a warning comes if it holds only 0
            and 1, which hide nothing.
        mask_dims, bias, is_causal, window, scale, softcap, sinks, dims: as in `Attention`. Sinks can be trained.

    Returns:
        output, shaped like q with Dv instead of D, in the dtype of q; and weights, shaped like q with K instead of D,
        in float64 for float64, otherwise float32. Rows of weights sum to 1; with sinks, to 1 minus the weight of the
        sink. A fully masked query has weights 0 and output 0.

    Raises:
        TypeError, ValueError: an input has no reading, or more than one. The message tells what to give instead.

    >>> q, k, v = np.array([[1.0, 0.0]]), np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[10.0], [20.0]])
    >>> output, weights = scaled_dot_product_attention(q, k, v)
    >>> weights.round(3), output.round(3)
    (array([[0.67, 0.33]]), array([[13.302]]))
    """
    output, weights = _attend(q, k, v, nn.Identity(), dims, AttentionOptions.of(options))
    if isinstance(q, np.ndarray):
        return output.detach().numpy(), weights.detach().numpy()
    return output, weights


class ScaledDotProductAttention(nn.Module):
    """`scaled_dot_product_attention` as a module, with dropout of the weights while it trains.

    Args:
        dropout: the probability that a weight is dropped in training (Vaswani et al. 2017, §5.4). The returned weights
            are those before dropout, so their rows always sum to 1.

    Raises:
        ValueError, TypeError: dropout is not a probability.

    The default scale follows from the last axis of q, so the module does not need the size of the model.

    >>> attention = ScaledDotProductAttention(dropout=0.1)
    >>> output, weights = attention(*torch.randn(3, 2, 5, 8))
    >>> output.shape, weights.shape
    (torch.Size([2, 5, 8]), torch.Size([2, 5, 5]))
    """

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__()
        dropout = as_number(dropout, "dropout")
        if not 0 <= dropout <= 1:
            raise ValueError(f"dropout is {dropout}: give a probability, from 0 to 1")
        self.dropout = nn.Dropout(dropout)

    @with_keywords
    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: MaskLike | None = None,
        *,
        dims: str | None = None,
        **options: Unpack[KeywordsBesideMask],
    ) -> tuple[Tensor, Tensor]:
        """Return output and weights; the arguments are those of `scaled_dot_product_attention`."""
        return _attend(q, k, v, self.dropout, dims, AttentionOptions.of({"mask": mask, **options}))


def _attend(
    q: Any, k: Any, v: Any, dropout: nn.Module, dims: str | None, options: AttentionOptions
) -> tuple[Tensor, Tensor]:
    axes = as_tensor(q, "q").ndim
    q, k, v = as_heads(q, k, as_tensor(v, "v"), dims)
    (B, H, Q, D), (_, G, K, _), given = q.shape, k.shape, q.dtype
    scale = D**-0.5 if options.scale is None else as_number(options.scale, "scale")
    softcap = None if options.softcap is None else as_positive(options.softcap, "softcap")
    rules = read_rules(options, (B, H, Q, K), given, q.device)
    _warn_of_masks(rules, options)
    wide = torch.promote_types(given, torch.float32)
    q, k, v = q.to(wide), *(x.to(wide).repeat_interleave(H // G, 1) for x in (k, v))  # (B, H, …)
    with full(q.device):
        S = (q * scale) @ k.mT  # (B, H, Q, K)
        S = S if softcap is None else softcap * torch.tanh(S / softcap)
        S = _biased(S, rules)
        allowed = _allowed(S, rules)  # broadcasts to (B, H, Q, K)
        empty = ~allowed.any(-1, keepdim=True)
        sink = _sinks(options, S)  # (B, H, Q, 1)
        empty = empty if sink is None else empty & (sink == -inf)
        S = S.masked_fill(~allowed, -inf).masked_fill(empty, 0)  # a softmax of −∞ alone is NaN, and so its gradient
        S = S if sink is None else torch.cat([S, sink], -1)  # (B, H, Q, K + 1)
        weights = torch.softmax(S, -1)[..., :K].masked_fill(~allowed, 0)  # (B, H, Q, K)
        output = dropout(weights) @ v  # (B, H, Q, Dv)
    of_weights = None if dims is None else dims.replace("d", "k")
    return as_given(output.to(given), axes, dims, LETTERS), as_given(weights, axes, of_weights, MATRIX)


def _warn_of_masks(rules: Rules, options: AttentionOptions) -> None:
    """Warn of a mask that is plainly a mistake, such as floats 0 and 1, which are added."""
    for bias in rules.biases:
        found = added_mask(bias, options.mask) if isinstance(bias, Bias) and bias.name == "mask" else None
        if found is not None and found.severity == "error":
            warnings.warn(f"{found.message}. {found.advice}", stacklevel=levels_to_the_caller())


def _sinks(options: AttentionOptions, S: Tensor) -> Tensor | None:
    """Return the column of the sinks, (B, H, Q, 1), for scores (B, H, Q, K); None without sinks."""
    found = read_sinks(options, S.shape[1])
    if found is None:
        return None
    trained = options.sinks if isinstance(options.sinks, Tensor) else found  # in its graph
    return trained.to(S.device, S.dtype).expand(S.shape[1])[:, None, None].expand(*S.shape[:3], 1)


def _biased(S: Tensor, rules: Rules) -> Tensor:
    """Return the scores (B, H, Q, K) plus all biases, with their gradients."""
    for bias in rules.biases:
        if isinstance(bias, ScoreFunction):
            S = torch.stack([torch.stack([_changed(S, b, h, bias) for h in range(S.shape[1])]) for b in range(len(S))])
        else:
            S = (S + bias.added).to(S.dtype)
    return S


def _changed(S: Tensor, batch: int, head: int, bias: ScoreFunction) -> Tensor:
    cells = Block(batch, head, range(S.shape[2]), range(S.shape[3]))
    changed: Tensor = bias.function(S[batch, head], *indices(cells, S.device))
    return changed.to(S.dtype).expand(S.shape[2:])  # (Q, K)


def _allowed(S: Tensor, rules: Rules) -> Tensor:
    """Return which cells are allowed, (B or 1, H or 1, Q, K) bool; one head stands for all if they are equal."""
    B, H, Q, K = S.shape
    shared = all(rule.shared for rule in rules.rules)
    with torch.no_grad():
        each = [
            whole(rules.allowed(Block(b, h, range(Q), range(K))), range(Q), range(K), S.device)
            for b in range(1 if shared else B)
            for h in range(1 if shared else H)
        ]
        allowed = torch.stack(each).view(1 if shared else B, 1 if shared else H, Q, K)
        return allowed & ~(torch.finfo(S.dtype).min >= S) if rules.by_score else allowed
