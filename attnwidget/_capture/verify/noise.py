"""How far rounding can take an output from the exact one, row by row, from the numbers of the call itself.

A kernel may round at every step: q and k, their products, the scaled and the masked scores, the weights, the sums, the
output. Each rounding changes a number x by at most u · |x|, with the unit roundoff u of its type (Higham 2002,
*Accuracy and Stability of Numerical Algorithms*, §2.2). Errors of scores become relative errors of weights. Errors of
weights move the output by their values' distance from it. Independent errors are added as variances, each with `SIGMAS`
standard deviations of a uniform error (Higham & Mary 2019).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..._utils.validation import FLOATS

SUMS = 2.0**-24  # of additions, which kernels do in float32 or better; models in float64 may compute the softmax there
UNIT = {torch.float64: SUMS, torch.float32: SUMS, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
EXPONENTIAL = 2.0**-19  # relative error of exp in fused kernels, which compute about twenty bits
LEAST = {torch.float16: 2.0**-25}  # half the spacing of the numbers near 0, if it is not negligible
FACTORS = {"highest": 0.0, "high": 2.0**-11, "medium": 2.0**-8}  # of products in float32: TF32, bfloat16
UNIFORM = 1 / math.sqrt(3)  # standard deviation of a uniform error, relative to its largest
SIGMAS = 6.0  # of all numbers of many calls none is farther off by chance
SHARE = 0.65  # of an error of a score: `weight_changes` adds it to the error of the sum, which is about as large
OUTPUT_ROUNDINGS = 2.5  # of the output: in the kernel, and in another type afterwards
LARGEST_EXPONENT = 80.0


@dataclass(frozen=True)
class Precision:
    """Unit roundoffs of one call.

    Attributes:
        kept: of numbers between two steps.
        factors: of the factors of a product, beyond their own type.
        least: half the spacing of the numbers near 0.
    """

    kept: float
    factors: float
    least: float

    @property
    def weights(self) -> float:
        """Of weights, and of the values that they multiply."""
        return max(self.kept, self.factors, EXPONENTIAL)

    @classmethod
    def of(cls, *tensors: Tensor) -> Precision:
        """Return the coarsest precision of a call with these tensors, such as its output, q and v."""
        types = {x.dtype for x in tensors if x.dtype in FLOATS}
        kept = max(UNIT[one] for one in types)
        plain = torch.get_float32_matmul_precision()
        factors = FACTORS[plain] if tensors[0].device.type == "cpu" else max(FACTORS["high"], FACTORS[plain])
        return cls(kept, factors, max(LEAST.get(one, 0.0) for one in types))


def score_errors(precision: Precision, scaled: Tensor, masked: Tensor, spread: Tensor, size: int) -> Tensor:
    """Return how far rounding can move each score, in the shape of the scores; 0 for blocked ones.

    Args:
        precision: of the call.
        scaled: the scaled scores, before softcap and biases.
        masked: the scores after them; −∞ in blocked cells.
        spread: √Σ (q_d k_d)², scaled.
        size: the number of terms of each product.
    """
    kept = precision.kept
    of_terms = 4 * kept**2 + 2 * precision.factors**2 + size * SUMS**2
    variance = 2 * (kept * scaled) ** 2 + (kept * masked) ** 2 + of_terms * spread**2
    return (SHARE * SIGMAS * UNIFORM * variance.sqrt_()).masked_fill_(masked.isinf(), 0.0)


def weight_changes(weights: Tensor, errors: Tensor) -> Tensor:
    """Return how far errors of the scores can move each weight, in the shape of the weights."""
    common = (weights * errors).sum(-1, keepdim=True)
    return ((errors + common).clamp_(max=LARGEST_EXPONENT).expm1_() * weights).clamp_(max=1.0)


def output_noise(precision: Precision, weights: Tensor, changes: Tensor, values: Tensor, output: Tensor) -> Tensor:
    """Return how far rounding can move each number of the output, (…, rows, Dv).

    Args:
        precision: of the call.
        weights: (…, rows, K).
        changes: `weight_changes` of the same shape.
        values: (…, K, Dv).
        output: the exact output, (…, rows, Dv).
    """
    squares, moved = values**2, changes**2
    apart = moved @ squares - 2 * output * (moved @ values) + output**2 * moved.sum(-1, keepdim=True)
    # A sum is rounded at every step, at the size that it has reached; so is that of the weights.
    of_sums = 2 / 3 * weights.shape[-1] * SUMS**2 * (weights @ squares)
    own = (SIGMAS * UNIFORM) ** 2 * (
        2 * precision.weights**2 * (weights**2 @ squares) + of_sums + precision.least**2 * squares.sum(-2, keepdim=True)
    )
    of_output = OUTPUT_ROUNDINGS * precision.kept * output.abs() + 2 * precision.least
    return (apart.clamp_min_(0.0) + own).sqrt_() + of_output


def noise_of_weights(precision: Precision, weights: Tensor, changes: Tensor) -> Tensor:
    """Return how far rounding can move each weight, with its own rounding."""
    return changes + SIGMAS * UNIFORM * precision.weights * weights + 2 * precision.least
